//! Checks of what is said: no media flow.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::client::{Item, PATIENCE, TWO};
use super::scene::{Scene, TransportKind, describe};
use super::{Check, Outcome, passed, skipped};

pub(super) const CHECKS: &[Check] = &[
    Check::new("options", "2326 10.1", "OPTIONS names what can be asked", options),
    Check::new("options-star", "2326 10.1", "OPTIONS * is answered", options_star),
    Check::new("cseq-echoed", "2326 12.17", "answers have the number of their request", cseq),
    Check::new("cseq-of-refusals", "2326 12.17", "refusals have it too", cseq_of_refusals),
    Check::new("cseq-missing", "2326 12.17", "a request without a number is refused", no_cseq),
    Check::new(
        "pipelined",
        "2326 9.1",
        "requests that come at once are answered in order",
        pipelined,
    ),
    Check::new("in-pieces", "2326 9", "a request that comes byte by byte is answered", in_pieces),
    Check::new("header-case", "2326 4.2", "names of headers are told without their case", case),
    Check::new("unknown-header", "2326 12", "a header that nobody knows is passed over", unknown),
    Check::new("describe", "2326 10.2", "DESCRIBE answers a description", description),
    Check::new("sdp", "8866 5", "the description is well formed", sdp),
    Check::new("not-found", "2326 7.1.1", "404 for what is not there", not_found),
    Check::new("method-unknown", "2326 11", "501 for a method that nobody knows", method_unknown),
    Check::new("version", "2326 7.1.1", "505 for a version that nobody knows", version),
    Check::new("version-two", "7826 4.1", "2.0 is spoken, or answered by 505", version_two),
    Check::new("malformed", "2326 7.1.1", "400 for what is no request", malformed),
    Check::new("require", "2326 12.32", "551 for a feature that nobody has", require),
    Check::new(
        "transport-unknown",
        "2326 11.3.13",
        "461 for a transport that nobody has",
        transport_unknown,
    ),
    Check::new(
        "transport-second",
        "2326 12.39",
        "of several transports the first that can be",
        transport_second,
    ),
    Check::new("session-unknown", "2326 11.3.6", "454 for a session that is none", session_unknown),
    Check::new(
        "session-missing",
        "2326 11.3.6",
        "454 or 455 for PLAY without a session",
        session_missing,
    ),
    Check::new(
        "session-id",
        "2326 3.4",
        "sessions are named by eight characters or more, each another",
        session_id,
    ),
    Check::new(
        "setup-udp",
        "2326 12.39",
        "SETUP over UDP answers with both sides' ports",
        setup_udp,
    ),
    Check::new("setup-tcp", "2326 10.12", "SETUP over TCP answers with channels", setup_tcp),
    Check::new(
        "setup-again",
        "2326 10.4",
        "SETUP that is repeated in its session changes nothing",
        setup_again,
    ),
    Check::new(
        "url-other",
        "2326 11.3.5",
        "what names a session but another title does nothing",
        url_other,
    ),
    Check::new(
        "url-of-medium",
        "2326 11.3.11",
        "460 for PLAY of one medium of several",
        url_of_medium,
    ),
    Check::new("state", "2326 11.3.7", "455 for what cannot be done in this state", state),
    Check::new("teardown", "2326 10.7", "after TEARDOWN the session is gone", teardown),
    Check::new(
        "keep-alive",
        "2326 10.8",
        "GET_PARAMETER without a body keeps a session",
        keep_alive,
    ),
];

fn options(scene: &Scene) -> Result<Outcome> {
    for method in ["DESCRIBE", "SETUP", "PLAY", "TEARDOWN", "OPTIONS"] {
        ensure!(scene.methods.iter().any(|own| own == method), "Public does not name {method}");
    }
    passed(scene.methods.join(" "))
}

fn options_star(scene: &Scene) -> Result<Outcome> {
    let response = scene.connect()?.ask("OPTIONS", "*", &[])?.expect(&[200], "OPTIONS *")?;
    passed(response.header("Server").unwrap_or("no Server"))
}

fn cseq(scene: &Scene) -> Result<Outcome> {
    let mut connection = scene.connect()?;
    for number in [0, 7, 65_535, 65_536, i32::MAX as u32 - 1] {
        connection.cseq = number;
        // Asking compares.
        connection.ask("OPTIONS", scene.url(), &[])?.expect(&[200], "OPTIONS")?;
    }
    passed("")
}

fn cseq_of_refusals(scene: &Scene) -> Result<Outcome> {
    let mut connection = scene.connect()?;
    let nothing = scene.address.beside("there/is/nothing/here");
    connection.ask("DESCRIBE", &nothing, &[])?;
    connection.ask("PLAY", scene.presentation(), &[("Session", "0123456789")])?;
    connection.ask("NONSENSE", scene.url(), &[])?;
    passed("")
}

fn no_cseq(scene: &Scene) -> Result<Outcome> {
    let mut connection = scene.connect()?;
    connection.send_raw(format!("OPTIONS {} RTSP/1.0\r\n\r\n", scene.url()).as_bytes())?;
    connection.response()?.expect(&[400], "a request without CSeq")?;
    passed("")
}

fn pipelined(scene: &Scene) -> Result<Outcome> {
    let mut connection = scene.connect()?;
    let all = [
        connection.request("OPTIONS", scene.url(), &[]),
        connection.request("DESCRIBE", scene.url(), &[("Accept", "application/sdp")]),
        connection.request("OPTIONS", scene.url(), &[]),
    ];
    connection.send_raw(all.concat().as_bytes())?;
    for number in 1..=3 {
        let response = connection.response()?.expect(&[200], "each of three requests")?;
        let theirs = response.header("CSeq").map(str::to_owned);
        ensure!(theirs == Some(number.to_string()), "answer {number} has CSeq {theirs:?}");
    }
    passed("")
}

fn in_pieces(scene: &Scene) -> Result<Outcome> {
    let mut connection = scene.connect()?;
    let text = connection.request("DESCRIBE", scene.url(), &[("Accept", "application/sdp")]);
    for byte in text.as_bytes() {
        connection.send_raw(&[*byte])?;
        std::thread::sleep(Duration::from_millis(1));
    }
    connection.response()?.expect(&[200], "DESCRIBE")?;
    passed("")
}

fn case(scene: &Scene) -> Result<Outcome> {
    let mut connection = scene.connect()?;
    let text = format!("OPTIONS {} RTSP/1.0\r\ncSEQ:77\r\n\r\n", scene.url());
    connection.send_raw(text.as_bytes())?;
    let response = connection.response()?.expect(&[200], "OPTIONS with cSEQ")?;
    ensure!(response.header("CSeq") == Some("77"), "CSeq {:?}", response.header("CSeq"));
    passed("")
}

fn unknown(scene: &Scene) -> Result<Outcome> {
    let long = "x".repeat(500);
    let headers = [("X-Nobody-Knows", long.as_str()), ("Bandwidth", "1")];
    scene.connect()?.ask("OPTIONS", scene.url(), &headers)?.expect(&[200], "OPTIONS")?;
    passed("")
}

fn description(scene: &Scene) -> Result<Outcome> {
    let response = describe(&mut scene.connect()?, scene.url())?;
    let kind = response.header("Content-Type").unwrap_or_default();
    ensure!(kind.starts_with("application/sdp"), "Content-Type is {kind:?}");
    ensure!(response.version == "RTSP/1.0", "the version is {}", response.version);
    match response.header("Content-Base") {
        Some(base) => passed(format!("Content-Base {base}")),
        None => passed("no Content-Base: the address itself"),
    }
}

fn sdp(scene: &Scene) -> Result<Outcome> {
    let text = &scene.sdp_text;
    ensure!(!text.contains('\0'), "a zero byte");
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    // Section 5: the order of the lines of a session, and those that must be there.
    let session: String =
        lines.iter().take_while(|line| !line.starts_with("m=")).map(|line| &line[..1]).collect();
    let mut order = "vosiuepcbtrzka".chars().peekable();
    for kind in session.chars() {
        while order.peek().is_some_and(|&next| next != kind) {
            order.next();
        }
        ensure!(order.peek().is_some(), "{kind}= stands in the wrong place: {session}");
    }
    for kind in ["v", "o", "s", "t"] {
        ensure!(session.contains(kind), "{kind}= is missing");
    }
    ensure!(
        text.ends_with("\r\n") && !text.replace("\r\n", "").contains('\n'),
        "lines end by CR LF"
    );
    let is_connected = scene.sdp.connection.is_some();
    for media in &scene.sdp.media {
        ensure!(is_connected || media.connection.is_some(), "{} has no c=", media.kind);
        ensure!(
            media.attribute("control").is_some() || scene.sdp.media.len() == 1,
            "{} has no a=control",
            media.kind
        );
        let number = media.payload_type();
        let number = number.with_context(|| format!("{} has no payload type", media.kind))?;
        ensure!(number < 96 || media.encoding().is_some(), "type {number} has no a=rtpmap");
    }
    let kinds: Vec<_> = scene
        .sdp
        .media
        .iter()
        .map(|media| format!("{} {}", media.kind, media.encoding().unwrap_or("?")))
        .collect();
    passed(kinds.join(", "))
}

fn not_found(scene: &Scene) -> Result<Outcome> {
    let nothing = scene.address.beside("there/is/nothing/here");
    let response = scene.connect()?.ask("DESCRIBE", &nothing, &[("Accept", "application/sdp")])?;
    response.expect(&[404], "DESCRIBE of nothing")?;
    passed("")
}

fn method_unknown(scene: &Scene) -> Result<Outcome> {
    scene.connect()?.ask("NONSENSE", scene.url(), &[])?.expect(&[501], "NONSENSE")?;
    passed("")
}

fn version(scene: &Scene) -> Result<Outcome> {
    let mut connection = scene.connect()?;
    connection
        .send_raw(format!("OPTIONS {} RTSP/9.7\r\nCSeq: 1\r\n\r\n", scene.url()).as_bytes())?;
    connection.response()?.expect(&[505], "RTSP/9.7")?;
    passed("")
}

fn version_two(scene: &Scene) -> Result<Outcome> {
    let mut connection = scene.connect()?;
    connection.version = TWO;
    let response = connection.ask("OPTIONS", scene.url(), &[])?;
    if response.version == TWO {
        response.expect(&[200], "OPTIONS in 2.0")?;
        return passed("it speaks 2.0");
    }
    let what = format!("RTSP/2.0, in {},", response.version);
    response.expect(&[505], &what)?;
    passed("it speaks 1.0 only")
}

fn malformed(scene: &Scene) -> Result<Outcome> {
    let mut connection = scene.connect()?;
    connection.send_raw(b"This is no request\r\nCSeq: 1\r\n\r\n")?;
    match connection.next(Instant::now() + PATIENCE) {
        Ok(Some(Item::Response(response))) => {
            response.expect(&[400, 501, 505], "what is no request")?;
            passed("")
        }
        Ok(other) => bail!("what is no request is answered by {other:?}"),
        Err(_) => passed("the connection is closed without a word"),
    }
}

fn require(scene: &Scene) -> Result<Outcome> {
    let feature = "org.example.nobody-has-this";
    let headers = [("Require", feature)];
    let response = scene.connect()?.ask("OPTIONS", scene.url(), &headers)?;
    let response = response.expect(&[551], "Require of nothing")?;
    let named = response.header("Unsupported").unwrap_or_default();
    ensure!(named.contains(feature), "Unsupported says {named:?}");
    passed("")
}

fn transport_unknown(scene: &Scene) -> Result<Outcome> {
    let headers = [("Transport", "RAW/NOBODY/HAS;unicast")];
    let response = scene.connect()?.ask("SETUP", &scene.control, &headers)?;
    response.expect(&[461], "SETUP with RAW/NOBODY/HAS")?;
    passed("")
}

fn transport_second(scene: &Scene) -> Result<Outcome> {
    let offer = "RAW/NOBODY/HAS;unicast,RTP/AVP/TCP;unicast;interleaved=0-1";
    let mut connection = scene.connect()?;
    let response = connection.ask("SETUP", &scene.control, &[("Transport", offer)])?;
    let response = response.expect(&[200], "SETUP")?;
    let taken = response.header("Transport").unwrap_or_default();
    ensure!(taken.starts_with("RTP/AVP/TCP"), "taken is {taken:?}");
    let session = response.header("Session").unwrap_or_default();
    let id = session.split(';').next().unwrap_or_default().to_owned();
    connection.ask("TEARDOWN", scene.presentation(), &[("Session", &id)])?;
    passed("")
}

fn session_unknown(scene: &Scene) -> Result<Outcome> {
    let mut connection = scene.connect()?;
    for method in ["PLAY", "TEARDOWN"] {
        let headers = [("Session", "nobody-has-this")];
        let response = connection.ask(method, scene.presentation(), &headers)?;
        response.expect(&[454], &format!("{method} of no session"))?;
    }
    passed("")
}

fn session_missing(scene: &Scene) -> Result<Outcome> {
    let response = scene.connect()?.ask("PLAY", scene.presentation(), &[])?;
    // Section 11.3.6 has 454 for a session that is missing, appendix A.2 leaves PLAY out of Init:
    // 455.
    let response = response.expect(&[454, 455], "PLAY without Session")?;
    passed(response.status.to_string())
}

fn session_id(scene: &Scene) -> Result<Outcome> {
    let (one, other) = (scene.set_up(TransportKind::Tcp)?, scene.set_up(TransportKind::Tcp)?);
    ensure!(one.id != other.id, "two sessions are named {}", one.id);
    for session in [&one, &other] {
        ensure!(session.id.len() >= 8, "{} is short enough to be guessed", session.id);
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"$-_.+".contains(&byte);
        ensure!(session.id.bytes().all(is_safe), "{} has other characters", session.id);
    }
    passed(format!("{} characters, time-out {} s", one.id.len(), one.timeout.as_secs()))
}

fn setup_udp(scene: &Scene) -> Result<Outcome> {
    let session = scene.set_up(TransportKind::Udp)?;
    let transport = &session.transport;
    let sockets = session.sockets.as_ref().context("it is over UDP")?;
    let port = sockets[0].local_addr()?.port();
    ensure!(transport.spec.starts_with("RTP/AVP"), "the transport is {}", transport.spec);
    ensure!(!transport.spec.contains("TCP"), "the transport is {}", transport.spec);
    ensure!(transport.is_unicast, "it does not say unicast");
    let own = transport.client_port;
    ensure!(own == Some((port, port + 1)), "client_port is {own:?}, was {port}");
    let server = transport.server_port.context("there is no server_port")?;
    let is_pair = server.0 % 2 == 0 && server.1 == server.0 + 1;
    passed(format!(
        "server_port {}-{}{}",
        server.0,
        server.1,
        if is_pair { "" } else { ", no pair" }
    ))
}

fn setup_tcp(scene: &Scene) -> Result<Outcome> {
    let session = scene.set_up(TransportKind::Tcp)?;
    let transport = &session.transport;
    ensure!(transport.spec == "RTP/AVP/TCP", "the transport is {}", transport.spec);
    let channels = transport.interleaved.context("there is no interleaved")?;
    ensure!(channels == (0, 1), "the channels are {channels:?}, not those that were asked for");
    match transport.ssrc {
        Some(ssrc) => passed(format!("ssrc {ssrc:08X}")),
        None => passed("no ssrc"),
    }
}

fn setup_again(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up(TransportKind::Tcp)?;
    // The second of them was taken, which only the server knows.
    let offer = "RAW/NOBODY/HAS;unicast,RTP/AVP/TCP;unicast;interleaved=0-1";
    let headers = [("Session", session.id.as_str()), ("Transport", offer)];
    let response = session.connection.ask("SETUP", &scene.control, &headers)?;
    // Section 10.4 leaves it to servers whether transports may change; this one does not.
    let response = response.expect(&[200, 455], "SETUP again")?;
    if response.status == 200 {
        let named = response.need("Session")?.split(';').next().unwrap_or_default().trim();
        ensure!(named == session.id, "it has begun another session, {named}");
        let (first, again) = (session.answer.need("Transport")?, response.need("Transport")?);
        ensure!(first == again, "it is {again} now, and was {first}");
    }
    session.play(&[])?;
    passed(response.status.to_string())
}

fn url_other(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up(TransportKind::Tcp)?;
    let nothing = scene.address.beside("there/is/nothing/here");
    let mut seen = vec![];
    for method in ["PLAY", "PAUSE", "TEARDOWN", "SETUP"] {
        let id = session.id.clone();
        let mut headers = vec![("Session", id.as_str())];
        if method == "SETUP" {
            headers.push(("Transport", "RTP/AVP/TCP;unicast;interleaved=2-3"));
        }
        let response = session.connection.ask(method, &nothing, &headers)?;
        let response = response.expect(&[404, 454, 455, 459], &format!("{method} of nothing"))?;
        seen.push(format!("{method} {}", response.status));
    }
    session.play(&[]).context("after it was asked for another title")?;
    passed(seen.join(", "))
}

fn url_of_medium(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up(TransportKind::Tcp)?;
    let id = session.id.clone();
    let more = scene.sdp.media.get(1).and_then(|media| media.attribute("control"));
    if let Some(control) = more {
        let transport = "RTP/AVP/TCP;unicast;interleaved=2-3";
        let headers = [("Session", id.as_str()), ("Transport", transport)];
        let url = scene.control_of(control);
        session.connection.ask("SETUP", &url, &headers)?.expect(&[200], "SETUP of another")?;
    }
    let headers = [("Session", id.as_str())];
    let response = session.connection.ask("PLAY", &scene.control, &headers)?;
    if more.is_some() {
        response.expect(&[460], "PLAY of one medium of two")?;
        return passed("");
    }
    // It is all that there is, though not called the presentation.
    let response = response.expect(&[200, 460], "PLAY of the only medium")?;
    passed(format!("one medium: {}", response.status))
}

fn state(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up(TransportKind::Tcp)?;
    // Not in appendix A.2; RFC 7826 has it as doing nothing.
    let pause = session.ask("PAUSE", &[])?.expect(&[455, 200], "PAUSE before PLAY")?;
    let record = session.ask("RECORD", &[])?;
    // Who may not record at all need not be told more.
    let record = record.expect(&[455, 405, 501, 401, 403], "RECORD of what is played")?;
    session.play(&[])?;
    passed(format!("PAUSE {}, RECORD {}", pause.status, record.status))
}

fn teardown(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up(TransportKind::Tcp)?;
    session.tear_down()?;
    for method in ["PLAY", "TEARDOWN"] {
        match session.ask(method, &[]) {
            Ok(response) => drop(response.expect(&[454], &format!("{method} after TEARDOWN"))?),
            // Its connection may have gone with it.
            Err(_) => {
                let headers = [("Session", session.id.as_str())];
                let response = scene.connect()?.ask(method, scene.presentation(), &headers)?;
                response.expect(&[454], &format!("{method} after TEARDOWN"))?;
            }
        }
    }
    passed("")
}

fn keep_alive(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up(TransportKind::Tcp)?;
    session.ask("OPTIONS", &[])?.expect(&[200], "OPTIONS within a session")?;
    if !scene.methods.iter().any(|method| method == "GET_PARAMETER") {
        return skipped("GET_PARAMETER is not offered");
    }
    session.ask("GET_PARAMETER", &[])?.expect(&[200], "GET_PARAMETER")?;
    passed("")
}
