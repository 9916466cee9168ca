//! The rules of rows H05 to H13 and H21, on bytes alone.

use super::*;
use crate::scan::HeadScan;
use proptest::prelude::*;

fn request(head: &str) -> Result<Request, Fault> {
    let limits = Limits::default();
    let end = HeadScan::default().advance(head.as_bytes(), &limits)?.expect("a whole head");
    let head = head.as_bytes()[..end.len].to_vec();
    Request::parse(head, end, &limits).map_err(|rejected| rejected.fault)
}

#[test]
fn w02_an_invalid_request_keeps_the_fields_that_name_its_client() {
    let limits = Limits::default();
    for start in
        ["GET /%00 HTTP/1.1", "GET /a HTTP/1.1\r\nHost: h", "GET /a HTTP/1.1\r\nContent-Length: x"]
    {
        let head = format!("{start}\r\nHost: h\r\nX-Forwarded-For: 192.0.2.7\r\n\r\n");
        let end = HeadScan::default().advance(head.as_bytes(), &limits).unwrap().unwrap();
        let rejected = Request::parse(head.into_bytes(), end, &limits).unwrap_err();
        let fields = rejected.fields.expect("the fields can be parsed");
        assert_eq!(fields.one("x-forwarded-for"), Some(&b"192.0.2.7"[..]), "{start}");
    }
}

/// A request with these fields and a host.
fn with(fields: &str) -> Result<Request, Fault> {
    request(&format!("GET /a HTTP/1.1\r\nHost: h\r\n{fields}\r\n"))
}

fn fault(fields: &str) -> Fault {
    match with(fields) {
        Err(fault) => fault,
        Ok(request) => panic!("{fields:?} gave {request:?}"),
    }
}

#[test]
fn a_plain_request_is_understood() {
    let request =
        request("GET /a?b HTTP/1.1\r\nHost: h\r\nRange:\t bytes=0- \r\nX:\r\n\r\n").unwrap();
    assert_eq!((request.method, request.body), (Method::Get, Body::None));
    assert!(request.keeps_alive && !request.expects_continue);
    assert_eq!(request.fields.one("RANGE"), Some(&b"bytes=0-"[..]));
    assert_eq!(request.fields.one("x"), Some(&b""[..]));
    assert_eq!(request.fields.one("y"), None);
}

#[test]
fn h05_a_length_and_a_coding_conflict() {
    let both = "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n";
    assert_eq!(fault(both), Fault::TwoLengths);
    assert_eq!(fault("Content-Length: 3\r\nContent-Length: 3\r\n"), Fault::TwoLengths);
}

#[test]
fn h06_a_length_is_a_plain_number() {
    for length in ["+3", "0x10", "1, 1", "-1", "18446744073709551616", "", "1 1", "3.0", "٣"] {
        assert_eq!(fault(&format!("Content-Length: {length}\r\n")), Fault::BadLength, "{length}");
    }
    assert_eq!(
        with("Content-Length: 18446744073709551615\r\n").unwrap().body,
        Body::Length(u64::MAX)
    );
    assert_eq!(with("Content-Length: 0\r\n").unwrap().body, Body::None);
}

#[test]
fn h07_the_only_coding_is_chunked_alone() {
    for coding in ["chunked, identity", "identity", "chunked, chunked", "chunked,", ""] {
        let field = format!("Transfer-Encoding: {coding}\r\n");
        assert_eq!(fault(&field), Fault::BadCoding, "{coding}");
    }
    for coding in ["xchunked", "gzip", "gzip, chunked", "chunked;q=1", "\u{b}chunked"] {
        let field = format!("Transfer-Encoding: {coding}\r\n");
        assert!(matches!(fault(&field), Fault::UnknownCoding | Fault::Control), "{coding}");
    }
    let two = "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n";
    assert_eq!(fault(two), Fault::BadCoding);
    assert_eq!(with("transfer-encoding: Chunked\r\n").unwrap().body, Body::Chunked);
}

#[test]
fn h10_names_and_values_keep_the_grammar() {
    for field in ["Name : b", "Na me: b", ": b", "Name", "N\u{e9}: b", "\"a\": b"] {
        assert_eq!(fault(&format!("{field}\r\n")), Fault::Grammar, "{field}");
    }
    for line in ["GET  /a HTTP/1.1", "GET /a  HTTP/1.1", "GET /a", "GET", "G@T /a HTTP/1.1"] {
        let head = format!("{line}\r\nHost: h\r\n\r\n");
        assert!(matches!(request(&head), Err(Fault::Grammar | Fault::BadTarget)), "{line}");
    }
    for (version, fault) in [
        ("HTTP/2.0", Fault::Version),
        ("HTTP/1.2", Fault::Version),
        ("HTTP/0.9", Fault::Version),
        ("http/1.1", Fault::Grammar),
        ("HTTP/1.1x", Fault::Grammar),
        ("HTTP/11", Fault::Grammar),
    ] {
        let head = format!("GET /a {version}\r\nHost: h\r\n\r\n");
        assert_eq!(request(&head).unwrap_err(), fault, "{version}");
    }
}

#[test]
fn h11_http_1_0_has_no_codings() {
    let head = "GET /a HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(request(head).unwrap_err(), Fault::BadCoding);
}

#[test]
fn h15_methods_are_told_apart() {
    for (name, method) in [
        ("HEAD", Method::Head),
        ("OPTIONS", Method::Options),
        ("TRACE", Method::Other),
        ("PUT", Method::Put),
        ("MOVE", Method::Move),
        ("COPY", Method::Copy),
        ("get", Method::Unknown),
        ("BREW", Method::Unknown),
    ] {
        let head = format!("{name} /a HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(request(&head).unwrap().method, method, "{name}");
    }
    let connect = request("CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n").unwrap();
    assert_eq!((connect.method, connect.target), (Method::Other, Target::Authority));
}

#[test]
fn h21_underscores_imitate_nothing() {
    for fields in [
        "Content_Length: 3\r\n",
        "transfer_encoding: chunked\r\n",
        "X-A: 1\r\nX_A: 2\r\n",
        "X_A-B: 1\r\nx-a_b: 2\r\n",
        "If_Range: x\r\n",
    ] {
        assert_eq!(fault(fields), Fault::Underscore, "{fields}");
    }
    assert!(with("My_Own: 1\r\nMy_Own: 2\r\n").is_ok());
}

#[test]
fn a_single_field_does_not_repeat() {
    for field in ["Range: bytes=0-1", "If-Range: \"a\"", "Expect: 100-continue"] {
        assert_eq!(fault(&format!("{field}\r\n{field}\r\n")), Fault::Repeated, "{field}");
    }
}

#[test]
fn connections_go_on_as_asked() {
    let keeps = |version: &str, fields: &str| {
        request(&format!("GET /a {version}\r\nHost: h\r\n{fields}\r\n")).unwrap().keeps_alive
    };
    assert!(keeps("HTTP/1.1", ""));
    assert!(!keeps("HTTP/1.1", "Connection: x, Close\r\n"));
    assert!(!keeps("HTTP/1.0", ""));
    assert!(keeps("HTTP/1.0", "Connection: Keep-Alive\r\n"));
    assert!(!keeps("HTTP/1.0", "Connection: keep-alive\r\nConnection: close\r\n"));
}

#[test]
fn only_one_expectation_is_known() {
    assert!(with("Expect: 100-Continue\r\n").unwrap().expects_continue);
    assert_eq!(fault("Expect: 200-ok\r\n"), Fault::Expectation);
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let limits = Limits::default();
        for prefix in [&b""[..], b"GET /", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: h\r\n"]
        {
            let mut head = prefix.to_vec();
            head.extend(&bytes);
            head.extend(b"\r\n\r\n");
            if let Ok(Some(end)) = HeadScan::default().advance(&head, &limits) {
                drop(Request::parse(head[..end.len].to_vec(), end, &limits));
            }
        }
    }

    #[test]
    fn no_framing_has_two_meanings(
        fields in proptest::collection::vec(
            ("(?i:content-length|transfer-encoding|content_length)", "[0-9a-z, +-]{0,9}|chunked"),
            0..4
        )
    ) {
        let text: String =
            fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        if let Ok(request) = with(&text) {
            prop_assert!(fields.len() <= 1, "{text}");
            let expected = match fields.first() {
                None => Body::None,
                Some((_, value)) if value == "chunked" => Body::Chunked,
                Some((_, value)) => match value.trim().parse() {
                    Ok(0) => Body::None,
                    Ok(length) => Body::Length(length),
                    Err(_) => panic!("{text}"),
                },
            };
            prop_assert_eq!(request.body, expected);
        }
    }
}
