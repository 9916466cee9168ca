//! Checks of recording (RFC 2326, sections 10.3 and 10.11), with the video frames of
//! [`record_target`](super::record_target).

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::client::Response;
use super::digest::Credentials;
use super::record_target::{RecordSession, RecordTarget};
use super::scene::TransportKind;
use super::{Check, Outcome, passed, skipped};

pub(super) const CHECKS: &[Check] = &[
    Check::record("record-options", "2326 10.1", "OPTIONS names ANNOUNCE and RECORD", options),
    Check::record("record-password", "7616 3.3", "only who knows the password records", password),
    Check::record("record-announce", "2326 10.3", "ANNOUNCE of a description is taken", announce),
    Check::record("record-no-sdp", "2326 10.3", "ANNOUNCE of nothing is refused", no_description),
    Check::record("record-type", "2326 12.16", "ANNOUNCE in another format is refused", other_type),
    Check::record("record-unknown", "2326 10.4", "SETUP of what was not announced", unannounced),
    Check::record("record-early", "2326 A.2", "RECORD before SETUP is refused", early),
    Check::record("record-setup-udp", "2326 12.39", "SETUP over UDP with mode=record", setup_udp),
    Check::record("record-setup-tcp", "2326 10.12", "SETUP over TCP with mode=record", setup_tcp),
    Check::record("record-play", "2326 11.3.7", "455 for PLAY of what is recorded", play),
    Check::record("record-udp", "2326 10.11", "video is recorded over UDP", record_udp),
    Check::record("record-tcp", "2326 10.11", "video is recorded over TCP", record_tcp),
    Check::record("record-between", "2326 10.12", "requests between frames are answered", between),
    Check::record("record-pause", "2326 10.6", "RECORD after PAUSE goes on", pause),
    Check::record("record-ended", "2326 10.7", "after TEARDOWN the session is gone", ended),
    Check::record("record-stranger", "2326 3.4", "454 for a session of somebody else", stranger),
];

/// How long is recorded.
const SPAN: Duration = Duration::from_secs(2);

fn refused(response: &Response, what: &str) -> Result<()> {
    let Response { status, reason, .. } = response;
    ensure!((400..500).contains(status), "{what} is answered {status} {reason}, not by a 4xx");
    Ok(())
}

fn options(record_target: &RecordTarget) -> Result<Outcome> {
    let response = record_target.connect()?.ask("OPTIONS", record_target.url(), &[])?;
    let response = response.expect(&[200], "OPTIONS")?;
    let public = response.need("Public")?;
    for method in ["ANNOUNCE", "SETUP", "RECORD", "TEARDOWN"] {
        ensure!(public.split(',').any(|own| own.trim() == method), "{public} lacks {method}");
    }
    passed("")
}

fn password(record_target: &RecordTarget) -> Result<Outcome> {
    let mut connection = record_target.connect()?;
    let known = connection.credentials.take();
    let response = record_target.announce(&mut connection)?;
    if response.status == 200 {
        return skipped("anybody may record");
    }
    let response = response.expect(&[401], "ANNOUNCE without a password")?;
    let Some(Credentials { name, password }) = known else {
        return skipped("it wants a password, and the address has none");
    };
    response.need("WWW-Authenticate")?;
    connection.credentials = Some(Credentials { name, password: format!("{password}?") });
    let response = record_target.announce(&mut connection)?;
    response.expect(&[401, 403], "ANNOUNCE with a wrong password")?;
    record_target
        .announce(&mut record_target.connect()?)?
        .expect(&[200], "ANNOUNCE with the password")?;
    passed("")
}

fn announce(record_target: &RecordTarget) -> Result<Outcome> {
    record_target.announce(&mut record_target.connect()?)?.expect(&[200], "ANNOUNCE")?;
    passed("")
}

fn no_description(record_target: &RecordTarget) -> Result<Outcome> {
    let headers = [("Content-Type", "application/sdp")];
    let mut said = vec![];
    for body in ["", "This describes nothing.\r\n"] {
        let response =
            record_target.connect()?.ask_with("ANNOUNCE", record_target.url(), &headers, body)?;
        refused(&response, &format!("ANNOUNCE of {body:?}"))?;
        said.push(response.status.to_string());
    }
    passed(said.join(", "))
}

fn other_type(record_target: &RecordTarget) -> Result<Outcome> {
    let headers = [("Content-Type", "text/html")];
    let body = "<p>This describes nothing.</p>";
    let response =
        record_target.connect()?.ask_with("ANNOUNCE", record_target.url(), &headers, body)?;
    refused(&response, "ANNOUNCE of text/html")?;
    passed(response.status.to_string())
}

fn unannounced(record_target: &RecordTarget) -> Result<Outcome> {
    let mut connection = record_target.connect()?;
    record_target.announce(&mut connection)?.expect(&[200], "ANNOUNCE")?;
    let url = format!("{}/nobody-has-this", record_target.url());
    let headers = [("Transport", "RTP/AVP/TCP;unicast;interleaved=0-1;mode=record")];
    let response = connection.ask("SETUP", &url, &headers)?;
    refused(&response, "SETUP of what was not announced")?;
    passed(response.status.to_string())
}

fn early(record_target: &RecordTarget) -> Result<Outcome> {
    let mut connection = record_target.connect()?;
    record_target.announce(&mut connection)?.expect(&[200], "ANNOUNCE")?;
    let response = connection.ask("RECORD", record_target.url(), &[])?;
    let response = response.expect(&[454, 455], "RECORD before SETUP")?;
    passed(response.status.to_string())
}

fn setup_udp(record_target: &RecordTarget) -> Result<Outcome> {
    let take = record_target.set_up(TransportKind::Udp)?;
    let transport = &take.transport;
    let port = take.sockets.as_ref().context("it is over UDP")?[0].local_addr()?.port();
    let own = transport.client_port;
    ensure!(own == Some((port, port + 1)), "client_port is {own:?}, was {port}");
    let (rtp, rtcp) = transport.server_port.context("there is no server_port")?;
    check_mode(&take)?;
    passed(format!("server_port {rtp}-{rtcp}"))
}

fn setup_tcp(record_target: &RecordTarget) -> Result<Outcome> {
    let take = record_target.set_up(TransportKind::Tcp)?;
    let transport = &take.transport;
    ensure!(transport.spec == "RTP/AVP/TCP", "the transport is {}", transport.spec);
    let channels = transport.interleaved.context("there is no interleaved")?;
    ensure!(channels == (0, 1), "the channels are {channels:?}, not those that were asked for");
    check_mode(&take)?;
    passed("")
}

/// The default is another one.
fn check_mode(session: &RecordSession<'_>) -> Result<()> {
    let mode = session.transport.mode.as_deref();
    ensure!(mode == Some("record"), "mode is {mode:?}, not record");
    Ok(())
}

fn play(record_target: &RecordTarget) -> Result<Outcome> {
    let mut take = record_target.set_up(TransportKind::Tcp)?;
    let response = take.ask("PLAY", &[])?.expect(&[455, 405, 501], "PLAY of what is recorded")?;
    passed(response.status.to_string())
}

fn record_udp(record_target: &RecordTarget) -> Result<Outcome> {
    record(record_target, TransportKind::Udp)
}

fn record_tcp(record_target: &RecordTarget) -> Result<Outcome> {
    record(record_target, TransportKind::Tcp)
}

fn record(record_target: &RecordTarget, kind: TransportKind) -> Result<Outcome> {
    let mut take = record_target.set_up(kind)?;
    take.record()?;
    take.send(SPAN)?;
    let reports = take.look(Duration::ZERO)?;
    let asked = Instant::now();
    take.tear_down()?;
    let took = asked.elapsed();
    passed(match kind {
        TransportKind::Udp => format!("TEARDOWN took {took:.1?}"),
        TransportKind::Tcp => format!("TEARDOWN took {took:.1?}, {reports} reports of the server"),
    })
}

fn between(record_target: &RecordTarget) -> Result<Outcome> {
    let mut take = record_target.set_up(TransportKind::Tcp)?;
    take.record()?;
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        take.send(SPAN / 10)?;
        let asked = Instant::now();
        take.ask("OPTIONS", &[])?.expect(&[200], "OPTIONS while it records")?;
        slowest = slowest.max(asked.elapsed());
    }
    take.tear_down()?;
    passed(format!("10 answers, the slowest after {slowest:.1?}"))
}

fn pause(record_target: &RecordTarget) -> Result<Outcome> {
    let mut take = record_target.set_up(TransportKind::Tcp)?;
    take.record()?;
    take.send(SPAN / 2)?;
    let paused = take.ask("PAUSE", &[])?;
    if [405, 501].contains(&paused.status) {
        return skipped("PAUSE is not offered");
    }
    paused.expect(&[200], "PAUSE while it records")?;
    take.ask("RECORD", &[])?.expect(&[200], "RECORD after PAUSE")?;
    take.send(SPAN / 2)?;
    take.tear_down()?;
    passed("")
}

fn ended(record_target: &RecordTarget) -> Result<Outcome> {
    let mut take = record_target.set_up(TransportKind::Tcp)?;
    take.record()?;
    take.send(SPAN / 4)?;
    take.tear_down()?;
    let response = match take.ask("RECORD", &[]) {
        Ok(response) => response,
        // Its connection may have gone with it.
        Err(_) => {
            let headers = [("Session", take.id.as_str())];
            record_target.connect()?.ask("RECORD", record_target.url(), &headers)?
        }
    };
    // Appendix A.2: the state of what has no session any more does not know RECORD.
    let response = response.expect(&[454, 455], "RECORD after TEARDOWN")?;
    passed(response.status.to_string())
}

fn stranger(record_target: &RecordTarget) -> Result<Outcome> {
    let take = record_target.set_up(TransportKind::Udp)?;
    let mut other = record_target.connect()?;
    let headers = [("Session", "nobody-has-this")];
    for method in ["RECORD", "TEARDOWN"] {
        let response = other.ask(method, record_target.url(), &headers)?;
        response.expect(&[454, 455], &format!("{method} of no session"))?;
    }
    drop(take);
    passed("")
}
