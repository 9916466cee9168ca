//! Messages, row by row, and arbitrary bytes.

use super::*;
use alloc::string::ToString;
use proptest::prelude::*;

fn read(text: &str) -> Result<Request, Fault> {
    match piece(text.as_bytes())? {
        Piece::Head { len } => Request::parse(&text.as_bytes()[..len]),
        other => panic!("{other:?}"),
    }
}

fn malformed(text: &str) -> bool {
    matches!(read(text), Err(Fault::Malformed(_)))
}

#[test]
fn a_request_is_read() {
    let text = "SETUP rtsp://h/a.ts/track1 RTSP/1.0\r\nCSeq: 7\r\nSession:  abc;timeout=60\r\n\
                Require: x\r\nrequire: y\r\nContent-Length: 3\r\n\r\nabc";
    let request = read(text).unwrap();
    assert_eq!((request.method, request.cseq, request.body), (Method::Setup, 7, 3));
    assert_eq!((request.uri.as_str(), request.version), ("rtsp://h/a.ts/track1", Version::One));
    assert_eq!(request.session(), Some("abc"));
    assert!(request.fields("require").eq(["x", "y"]));
}

#[test]
fn s01_lines_and_heads_are_bounded() {
    let long = "x".repeat(LINE_MAX);
    let text = alloc::format!("OPTIONS rtsp://h/{long}");
    assert_eq!(piece(text.as_bytes()), Err(Fault::UriTooLong), "before its end has come");
    let text = alloc::format!("OPTIONS * RTSP/1.0\r\nCSeq: 1\r\nX: {long}");
    assert_eq!(piece(text.as_bytes()), Err(Fault::Malformed("line too long")));
    let text = alloc::format!("OPTIONS * RTSP/1.0\r\n{}", "X: y\r\n".repeat(HEAD_MAX / 6));
    assert_eq!(piece(text.as_bytes()), Err(Fault::Malformed("head too long")));
    let text = alloc::format!("OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n{}\r\n", "X: y\r\n".repeat(64));
    assert!(malformed(&text), "too many fields");
    assert_eq!(Fault::UriTooLong.status(), Status::URI_TOO_LONG);
}

#[test]
fn s02_empty_requests_and_leading_spaces_are_bad() {
    for text in ["\r\n", "\r\n\r\n", " OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n", "\0", "\n"] {
        assert!(matches!(piece(text.as_bytes()), Err(Fault::Malformed(_))), "{text:?}");
    }
    for text in [
        "OPTIONS\r\n\r\n",
        "OPTIONS *\r\n\r\n",
        "OPTIONS  RTSP/1.0\r\nCSeq: 1\r\n\r\n",
        "OPTIONS * RTSP/1.0 \r\nCSeq: 1\r\n\r\n",
        "OPTIONS * RTSP/\r\nCSeq: 1\r\n\r\n",
        "OPTIONS * RTSP/1.0\r\nCSeq\r\n\r\n",
        "OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n folded\r\n\r\n",
        "OPTIONS * RTSP/1.0\r\nCSeq: 1\nX: y\r\n\r\n",
    ] {
        assert!(malformed(text), "{text:?}");
    }
    assert_eq!(piece(b"A"), Ok(Piece::More), "short, and not over");
}

#[test]
fn s03_lengths_are_numbers_and_bounded() {
    let with = |length: &str| {
        read(&alloc::format!(
            "ANNOUNCE rtsp://h/a RTSP/1.0\r\nCSeq: 1\r\nContent-Length: {length}\r\n\r\n"
        ))
        .map(|request| request.body)
    };
    assert_eq!(with("65536"), Ok(65536));
    assert_eq!(with("65537"), Err(Fault::BodyTooLong));
    assert_eq!(with("99999999999999999999999"), Err(Fault::BodyTooLong));
    for bad in ["-1", "+1", "", "1 1", "0x1", "1, 1"] {
        assert!(matches!(with(bad), Err(Fault::Malformed(_))), "{bad}");
    }
}

#[test]
fn s04_a_request_has_one_number() {
    for fields in
        ["", "CSeq: \r\n", "CSeq: -1\r\n", "CSeq: 4294967296\r\n", "CSeq: 1\r\ncseq: 1\r\n"]
    {
        assert!(malformed(&alloc::format!("OPTIONS * RTSP/1.0\r\n{fields}\r\n")), "{fields}");
    }
}

#[test]
fn s05_methods_and_versions_that_are_not_known_are_told() {
    let request = read("PLAYX * RTSP/3.0\r\nCSeq: 4294967295\r\n\r\n").unwrap();
    assert_eq!((request.method, request.version), (Method::Unknown, Version::Other));
    assert_eq!(read("options * RTSP/1.0\r\nCSeq: 1\r\n\r\n").unwrap().method, Method::Unknown);
}

#[test]
fn both_versions_are_told_apart_and_answered_as_they_ask() {
    let of = |version: &str| {
        read(&alloc::format!("OPTIONS * {version}\r\nCSeq: 1\r\n\r\n")).map(|one| one.version)
    };
    assert_eq!(of("RTSP/1.0"), Ok(Version::One));
    assert_eq!(of("RTSP/2.0"), Ok(Version::Two));
    for other in ["RTSP/2.1", "RTSP/1.1", "RTSP/02.0", "RTSP/999.999"] {
        assert_eq!(of(other), Ok(Version::Other), "{other}");
    }
    for bad in ["RTSP/2", "RTSP/2.", "RTSP/2.0.0", "RTSP/2.0000", "RTSP/-2.0", "RTS/2.0"] {
        assert!(matches!(of(bad), Err(Fault::Malformed(_))), "{bad}");
    }
    let line = |version| {
        let text = Reply::new(Status::URI_TOO_LONG).write(version, None);
        String::from_utf8(text).unwrap().lines().next().unwrap().to_string()
    };
    assert_eq!(line(Version::One), "RTSP/1.0 414 Request-URI Too Large");
    assert_eq!(line(Version::Two), "RTSP/2.0 414 Request-URI Too Long");
    assert_eq!(line(Version::Other), line(Version::One));
}

#[test]
fn answers_to_what_we_ask_are_read() {
    let answer = |text: &str| {
        let Ok(Piece::Head { len }) = piece(text.as_bytes()) else { panic!("{text}") };
        assert!(Answer::begins(&text.as_bytes()[..len]) && !Answer::begins(b"OPTIONS *"));
        Answer::parse(&text.as_bytes()[..len])
    };
    let status = Status(200);
    let said = "RTSP/2.0 200 \r\nCSeq: 4\r\nSession: x\r\nContent-Length: 2\r\n\r\nab";
    assert_eq!(answer(said), Ok(Answer { status, cseq: 4, body: 2 }));
    // The response of GStreamer to requests of either version.
    assert!(answer("RTSP/1.0 200 OK\r\nCSeq: 4\r\n\r\n").is_ok());
    assert!(answer("RTSP/2.0 501 Not Implemented\r\nCSeq: 4\r\n\r\n").is_ok());
    for bad in [
        "RTSP/2.0 200 OK\r\n\r\n",
        "RTSP/2.0\r\nCSeq: 4\r\n\r\n",
        "RTSP/2 200 OK\r\nCSeq: 4\r\n\r\n",
        "RTSP/2.0 2000 OK\r\nCSeq: 4\r\n\r\n",
        "RTSP/2.0 099 OK\r\nCSeq: 4\r\n\r\n",
        "RTSP/2.0 -20 OK\r\nCSeq: 4\r\n\r\n",
        "RTSP/2.0 200 OK\r\nCSeq: 4\r\nCSeq: 5\r\n\r\n",
    ] {
        assert!(matches!(answer(bad), Err(Fault::Malformed(_))), "{bad}");
    }
}

#[test]
fn s13_http_is_not_spoken() {
    let text = "GET /a HTTP/1.0\r\nx-sessioncookie: 1\r\n\r\n";
    assert_eq!(read(text), Err(Fault::Http));
    assert_eq!(Fault::Http.status(), Status::NOT_FOUND);
}

#[test]
fn frames_stand_between_requests() {
    assert_eq!(piece(b"$\x01\0\x02ab"), Ok(Piece::Frame { channel: 1, len: 6 }));
    assert_eq!(piece(b"$\xff\xff\xffab"), Ok(Piece::More));
    assert_eq!(piece(b"$"), Ok(Piece::More));
}

#[test]
fn an_answer_is_one_message_whatever_stands_in_it() {
    let reply = Reply::said(Status::NOT_FOUND, "none").with("X", "a\r\nY: b");
    let written = String::from_utf8(reply.write(Version::One, Some(3))).unwrap();
    assert_eq!(
        written,
        "RTSP/1.0 404 Not Found\r\nCSeq: 3\r\nServer: tactus\r\n\
         Content-Type: text/plain; charset=utf-8\r\nX: aY: b\r\nContent-Length: 6\r\n\r\nnone\r\n"
    );
}

proptest! {
    #[test]
    fn s20_any_bytes_are_a_piece_or_a_fault(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        if let Ok(Piece::Head { len }) = piece(&bytes) {
            prop_assert!(len <= bytes.len());
            drop(Request::parse(&bytes[..len]));
            prop_assert!(Answer::begins(&bytes[..len]) || Answer::parse(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn s20_requests_that_are_damaged_never_crash(
        at in 0usize..120, byte: u8, cut in 0usize..130, at2 in 0usize..120, byte2: u8,
    ) {
        let mut bytes = b"SETUP rtsp://host/a.ts/track1 RTSP/1.0\r\nCSeq: 2\r\n\
                         Transport: RTP/AVP;unicast;client_port=5000-5001\r\nSession: a\r\n\r\n"
            .to_vec();
        let len = bytes.len();
        bytes[at % len] = byte;
        bytes[at2 % len] = byte2;
        bytes.truncate(cut);
        if let Ok(Piece::Head { len }) = piece(&bytes)
            && let Ok(request) = Request::parse(&bytes[..len])
        {
            drop(
                request
                    .field("transport")
                    .map(|value| super::super::transport::offers(request.version, value)),
            );
        }
    }

    #[test]
    fn what_a_piece_is_does_not_change_when_more_comes(
        cut in 0usize..60, more in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = b"OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n".to_vec();
        let whole = bytes.len();
        bytes.extend(more);
        let cut = cut.min(whole);
        let early = piece(&bytes[..cut]);
        let expected = if cut < whole { Piece::More } else { Piece::Head { len: whole } };
        prop_assert_eq!(early, Ok(expected));
        prop_assert_eq!(piece(&bytes), Ok(Piece::Head { len: whole }));
    }
}

#[test]
fn p04_names_of_protocols_and_media_types_are_case_insensitive() {
    let request = Request::parse(b"PLAY rtsp://h/a RtSp/1.0\r\ncSEQ: 1\r\nRANGE: NPT=1-\r\n\r\n");
    let request = request.unwrap();
    assert_eq!((request.version, request.field("range")), (Version::One, Some("NPT=1-")));
    let http = Request::parse(b"GET / http/1.1\r\n\r\n");
    assert_eq!(http.unwrap_err(), Fault::Http);
    assert!(Answer::begins(b"rtsp/2.0 200 OK\r\n") && !Answer::begins(b"RTS"));
    for accept in ["Application/SDP", "text/plain, APPLICATION/sdp;level=1", "*/*", "application/*"]
    {
        assert!(accepts_sdp(accept), "{accept}");
    }
    assert!(!accepts_sdp("text/plain") && !accepts_sdp("application/sdpx") && !accepts_sdp(""));
    assert!(is_sdp("APPLICATION/SDP; charset=utf-8") && !is_sdp("application/sdp2"));
}
