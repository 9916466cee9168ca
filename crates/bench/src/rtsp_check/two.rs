//! Checks of RTSP 2.0 (RFC 7826), which are asked of servers that speak it.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::client::{Connection, Response, ServerRequest, TWO};
use super::media::{flows_tcp, flows_udp};
use super::scene::{Packet, PlayResponse, Scene, Session, TransportKind, describe, session};
use super::transport::ports;
use super::{Check, Outcome, passed, skipped};

pub(super) const CHECKS: &[Check] = &[
    Check::two("two-options", "7826 13.1", "OPTIONS names what every server must know", options),
    Check::two("two-version", "7826 17.5.6", "505 for a later version", later_version),
    Check::two("two-both", "7826 4.1", "1.0 and 2.0 are answered each in its own", both),
    Check::two("two-date", "7826 18.21", "a message with a body has a Date", date),
    Check::two("two-supported", "7826 18.51", "Supported is answered, with play.basic", supported),
    Check::two("two-require", "7826 18.43", "551 names what is not there, and only that", require),
    Check::two("two-method", "7826 17.5.2", "501 for a method that nobody knows", method_unknown),
    Check::two("two-recording", "7826 13", "there is no recording in 2.0", recording),
    Check::two(
        "two-session-none",
        "7826 17.4.18",
        "454 for a session that is missing, or is none",
        session_none,
    ),
    Check::two("two-session-id", "7826 4.3", "sessions have 8 to 128 safe characters", session_id),
    Check::two("two-setup", "7826 13.3", "SETUP tells properties and formats of times", set_up),
    Check::two("two-setup-udp", "7826 18.54", "dest_addr is answered with src_addr", setup_udp),
    Check::two(
        "two-destination",
        "7826 17.4.27",
        "nothing is sent to who has not asked for it",
        destination,
    ),
    Check::two("two-pipelined", "7826 18.33", "SETUP and PLAY may be sent at once", pipelined),
    Check::two("two-keep-alive", "7826 10.5", "SET_PARAMETER without a body is fine", keep_alive),
    Check::two("two-play-udp", "7826 13.4", "packets come from where was said", play_udp),
    Check::two("two-play-tcp", "7826 14", "packets come in frames of the channels", play_tcp),
    Check::two("two-range", "7826 13.4", "PLAY answers a Range", range),
    Check::two("two-rtp-info", "7826 18.45", "RTP-Info is of the first packet", rtp_info),
    Check::two("two-seek-style", "7826 18.47", "PLAY says how it has sought", seek_style),
    Check::two(
        "two-range-format",
        "7826 18.5",
        "456 for times in a format that is not accepted",
        range_format,
    ),
    Check::two("two-pause", "7826 13.6", "PAUSE says where, and PLAY goes on there", pause),
    Check::two("two-end", "7826 13.5.1", "PLAY_NOTIFY tells the end of the stream", end_of_stream),
    Check::two("two-teardown", "7826 13.7", "after TEARDOWN the session is gone", teardown),
];

impl Scene {
    fn connect_two(&self) -> Result<Connection> {
        let mut connection = self.connect()?;
        connection.version = TWO;
        Ok(connection)
    }
}

/// The answer in 2.0.
fn ask(
    connection: &mut Connection,
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
) -> Result<Response> {
    let response = connection.ask(method, url, headers)?;
    ensure!(response.version == TWO, "{method} is answered in {}", response.version);
    Ok(response)
}

fn options(scene: &Scene) -> Result<Outcome> {
    let response = ask(&mut scene.connect_two()?, "OPTIONS", scene.url(), &[])?;
    let response = response.expect(&[200], "OPTIONS")?;
    let public = response.need("Public")?;
    for method in ["OPTIONS", "SETUP", "PLAY", "PAUSE", "TEARDOWN"] {
        ensure!(public.split(',').any(|own| own.trim() == method), "{public} lacks {method}");
    }
    passed(public)
}

fn later_version(scene: &Scene) -> Result<Outcome> {
    let mut connection = scene.connect()?;
    connection.version = "RTSP/3.0";
    let response = connection.ask("OPTIONS", scene.url(), &[])?;
    let response = response.expect(&[505], "RTSP/3.0")?;
    passed(format!("in {}", response.version))
}

fn both(scene: &Scene) -> Result<Outcome> {
    ask(&mut scene.connect_two()?, "OPTIONS", scene.url(), &[])?.expect(&[200], "OPTIONS")?;
    let response = scene.connect()?.ask("OPTIONS", scene.url(), &[])?;
    let response = response.expect(&[200], "OPTIONS in 1.0")?;
    ensure!(response.version == "RTSP/1.0", "1.0 is answered in {}", response.version);
    passed("")
}

fn date(scene: &Scene) -> Result<Outcome> {
    let response = describe(&mut scene.connect_two()?, scene.url())?;
    let date = response.need("Date")?;
    // RFC 5322, as HTTP has it.
    ensure!(date.ends_with(" GMT") || date.ends_with(" UTC"), "Date is {date}");
    passed(date)
}

fn supported(scene: &Scene) -> Result<Outcome> {
    let headers = [("Supported", "play.basic")];
    let response = ask(&mut scene.connect_two()?, "OPTIONS", scene.url(), &headers)?;
    let response = response.expect(&[200], "OPTIONS")?;
    let all = response.need("Supported")?;
    ensure!(all.split(',').any(|tag| tag.trim() == "play.basic"), "Supported is {all}");
    passed(all)
}

fn require(scene: &Scene) -> Result<Outcome> {
    let feature = "org.example.nobody-has-this";
    let mut connection = scene.connect_two()?;
    let headers = [("Require", "play.basic")];
    ask(&mut connection, "OPTIONS", scene.url(), &headers)?.expect(&[200], "play.basic")?;
    let all = format!("play.basic, {feature}");
    let response = ask(&mut connection, "OPTIONS", scene.url(), &[("Require", &all)])?;
    let response = response.expect(&[551], "Require of nothing")?;
    let named = response.need("Unsupported")?;
    ensure!(named.trim() == feature, "Unsupported says {named:?}");
    passed("")
}

fn method_unknown(scene: &Scene) -> Result<Outcome> {
    let response = ask(&mut scene.connect_two()?, "NONSENSE", scene.url(), &[])?;
    response.expect(&[501], "NONSENSE")?;
    passed("")
}

fn recording(scene: &Scene) -> Result<Outcome> {
    let mut connection = scene.connect_two()?;
    for method in ["ANNOUNCE", "RECORD"] {
        let response = ask(&mut connection, method, scene.url(), &[])?;
        response.expect(&[501, 405], &format!("{method} in 2.0"))?;
    }
    passed("")
}

fn session_none(scene: &Scene) -> Result<Outcome> {
    let mut connection = scene.connect_two()?;
    for method in ["PLAY", "PAUSE", "TEARDOWN"] {
        for headers in [&[][..], &[("Session", "nobody-has-this")]] {
            let response = ask(&mut connection, method, scene.presentation(), headers)?;
            response.expect(&[454], &format!("{method} with {headers:?}"))?;
        }
    }
    passed("")
}

fn session_id(scene: &Scene) -> Result<Outcome> {
    let (one, other) =
        (scene.set_up_two(TransportKind::Tcp)?, scene.set_up_two(TransportKind::Tcp)?);
    ensure!(one.id != other.id, "two sessions are named {}", one.id);
    for session in [&one, &other] {
        let len = session.id.len();
        ensure!((8..=128).contains(&len), "{} has {len} characters", session.id);
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"$-_.+".contains(&byte);
        ensure!(session.id.bytes().all(is_safe), "{} has other characters", session.id);
    }
    passed(format!("{} characters, time-out {} s", one.id.len(), one.timeout.as_secs()))
}

fn set_up(scene: &Scene) -> Result<Outcome> {
    let session = scene.set_up_two(TransportKind::Tcp)?;
    let formats = session.answer.need("Accept-Ranges")?;
    ensure!(formats.split(',').any(|one| one.trim() == "npt"), "Accept-Ranges is {formats}");
    let properties = session.answer.need("Media-Properties")?;
    let has = |all: &[&str]| {
        let mut names = properties.split(',').filter_map(|one| one.trim().split('=').next());
        names.any(|name| all.contains(&name))
    };
    // One of each kind (section 18.29).
    for kind in [
        &["Random-Access", "Beginning-Only", "No-Seeking"][..],
        &["Immutable", "Dynamic", "Time-Progressing"],
        &["Unlimited", "Time-Limited", "Time-Duration"],
    ] {
        ensure!(has(kind), "Media-Properties is {properties:?}, with none of {kind:?}");
    }
    passed(format!("{properties}; {formats}"))
}

fn setup_udp(scene: &Scene) -> Result<Outcome> {
    let session = scene.set_up_two(TransportKind::Udp)?;
    let transport = &session.transport;
    let port = session.sockets.as_ref().context("it is over UDP")?[0].local_addr()?.port();
    let to = &transport.dest_addr;
    ensure!(ports(to) == Some((port, port + 1)), "dest_addr is {to:?}, the port was {port}");
    ensure!(!transport.src_addr.is_empty(), "there is no src_addr");
    passed(transport.src_addr.join(" "))
}

fn destination(scene: &Scene) -> Result<Outcome> {
    // RFC 5737: nobody has this address.
    let offer = "RTP/AVP;unicast;dest_addr=\"192.0.2.1:5000\"/\"192.0.2.1:5001\"";
    let mut connection = scene.connect_two()?;
    let headers = [("Transport", offer), ("Accept-Ranges", "npt")];
    let response = ask(&mut connection, "SETUP", &scene.control, &headers)?;
    if response.status == 200 {
        let (id, _) = session(response.need("Session")?)?;
        connection.ask("TEARDOWN", scene.presentation(), &[("Session", &id)])?;
        let taken = response.need("Transport")?;
        ensure!(!taken.contains("192.0.2.1"), "SETUP with somebody else's dest_addr is {taken}");
        return passed("dest_addr is passed over");
    }
    // Who is trusted may be another matter, and who knows only 1.0's words does not know the
    // transport.
    let response = response.expect(&[463, 403, 461], "SETUP with somebody else's dest_addr")?;
    passed(response.status.to_string())
}

fn pipelined(scene: &Scene) -> Result<Outcome> {
    let mut connection = scene.connect_two()?;
    let transport = ("Transport", "RTP/AVP/TCP;unicast;interleaved=0-1");
    let pipe = ("Pipelined-Requests", "77");
    let all = [
        connection.request("SETUP", &scene.control, &[pipe, transport, ("Accept-Ranges", "npt")]),
        connection.request("PLAY", scene.presentation(), &[pipe]),
        connection.request("TEARDOWN", scene.presentation(), &[pipe]),
    ];
    connection.send_raw(all.concat().as_bytes())?;
    let mut ids = vec![];
    for method in ["SETUP", "PLAY", "TEARDOWN"] {
        let response = connection.response()?.expect(&[200], &format!("{method} at once"))?;
        ids.extend(response.header("Session").map(session).transpose()?.map(|(id, _)| id));
    }
    ensure!(ids.windows(2).all(|pair| pair[0] == pair[1]), "they are of sessions {ids:?}");
    passed("")
}

fn keep_alive(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up_two(TransportKind::Tcp)?;
    let said = ask(&mut scene.connect_two()?, "OPTIONS", scene.url(), &[])?;
    let public = said.need("Public")?;
    if !public.contains("SET_PARAMETER") {
        return skipped("SET_PARAMETER is not offered");
    }
    for method in ["SET_PARAMETER", "OPTIONS"] {
        session.ask(method, &[])?.expect(&[200], &format!("{method} without a body"))?;
    }
    passed("")
}

fn play_udp(scene: &Scene) -> Result<Outcome> {
    flows_udp(scene, scene.set_up_two(TransportKind::Udp)?)
}

fn play_tcp(scene: &Scene) -> Result<Outcome> {
    flows_tcp(scene, scene.set_up_two(TransportKind::Tcp)?)
}

fn range(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up_two(TransportKind::Tcp)?;
    let played = session.play(&[])?;
    let (from, to) = played.range.context("PLAY answers no Range in npt")?;
    ensure!(from < 1.0, "asked for nothing, played from {from} s");
    passed(format!("npt={from}-{}", to.map(|to| to.to_string()).unwrap_or_default()))
}

fn rtp_info(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up_two(TransportKind::Tcp)?;
    let played = session.play(&[])?;
    let first = session.first_packets(1)?[0];
    check_info(scene, &played, &first)?;
    passed(format!("seq {} rtptime {}", first.sequence, first.timestamp))
}

fn check_info(scene: &Scene, played: &PlayResponse, first: &Packet) -> Result<()> {
    let text = played.response.need("RTP-Info")?;
    let streams = streams(text).with_context(|| format!("RTP-Info: {text}"))?;
    // Of several the one that was set up; a single one may be called what it likes.
    let own = streams.iter().find(|one| one.url == scene.control).or(streams.first());
    let own = own.context("RTP-Info names no stream")?;
    let Packet { source, sequence, timestamp, .. } = *first;
    ensure!(own.source == source, "ssrc {:08X}, the first packet has {source:08X}", own.source);
    ensure!(own.sequence == Some(sequence), "{:?}, the first has {sequence}", own.sequence);
    ensure!(own.timestamp == Some(timestamp), "{:?}, the first has {timestamp}", own.timestamp);
    Ok(())
}

/// One stream of `RTP-Info`.
#[derive(PartialEq, Eq, Debug)]
struct Stream<'a> {
    url: &'a str,
    source: u32,
    sequence: Option<u16>,
    timestamp: Option<u32>,
}

/// As 2.0 writes them: `url="a" ssrc=1A:seq=5;rtptime=7`.
fn streams(mut text: &str) -> Result<Vec<Stream<'_>>> {
    let mut streams = vec![];
    loop {
        text = text.trim_start_matches([' ', ',']);
        if text.is_empty() {
            return Ok(streams);
        }
        let rest = text.strip_prefix("url=\"").context("no stream begins with url=\"")?;
        let (url, rest) = rest.split_once('"').context("a URL has no end")?;
        let rest = rest.trim_start().strip_prefix("ssrc=").context("a URL without ssrc")?;
        let (source, rest) = rest.split_once(':').context("ssrc without a colon")?;
        let (numbers, behind) = rest.split_once(',').unwrap_or((rest, ""));
        let number =
            |name: &str| numbers.split(';').find_map(|part| part.trim().strip_prefix(name));
        let source = u32::from_str_radix(source, 16).context("ssrc")?;
        let sequence = number("seq=").map(str::parse).transpose().context("seq")?;
        let timestamp = number("rtptime=").map(str::parse).transpose().context("rtptime")?;
        streams.push(Stream { url, source, sequence, timestamp });
        text = behind;
    }
}

fn seek_style(scene: &Scene) -> Result<Outcome> {
    let Some(len) = scene.len.filter(|&len| len > 4.0) else {
        return skipped("the description names no length, or a short one");
    };
    let wanted = len / 2.0;
    let range = format!("npt={wanted:.3}-");
    let mut styles = vec![];
    for style in ["RAP", "Next", "org.example.nobody-has-this"] {
        let mut session = scene.set_up_two(TransportKind::Tcp)?;
        let played = session.play(&[("Range", &range), ("Seek-Style", style)])?;
        let used = played.response.need("Seek-Style")?;
        let (from, _) = played.range.context("PLAY answers no Range in npt")?;
        match used {
            // The last place to begin at before, the same but for what is there already, the last
            // video frame before.
            "RAP" | "CoRAP" | "First-Prior" => {
                ensure!(from <= wanted + 0.001, "{used} of {wanted:.3} s is {from:.3} s");
            }
            "Next" => ensure!(from + 0.001 >= wanted, "{used} of {wanted:.3} s is {from:.3} s"),
            other => bail!("Seek-Style: {other} is none"),
        }
        styles.push(format!("{style} is {used}"));
    }
    passed(styles.join(", "))
}

fn range_format(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up_two(TransportKind::Tcp)?;
    let accepted = session.answer.need("Accept-Ranges")?;
    if accepted.split(',').any(|one| one.trim() == "clock") {
        return skipped("it accepts all formats");
    }
    let range = ("Range", "clock=19960213T143205Z-");
    let response = session.ask("PLAY", &[range])?.expect(&[456], "PLAY of a time of the clock")?;
    passed(response.need("Accept-Ranges")?)
}

fn pause(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up_two(TransportKind::Tcp)?;
    session.ask("PAUSE", &[])?.expect(&[200], "PAUSE before PLAY")?;
    session.play(&[])?;
    session.first_packets(20)?;
    let paused = session.ask("PAUSE", &[])?.expect(&[200], "PAUSE")?;
    let at = paused.need("Range")?.trim();
    let seconds = at.strip_prefix("npt=").and_then(|at| at.split('-').next());
    let seconds: f64 = seconds.and_then(|at| at.parse().ok()).with_context(|| at.to_owned())?;
    let (from, _) = session.play(&[])?.range.context("PLAY answers no Range in npt")?;
    ensure!((from - seconds).abs() < 1.0, "paused at {seconds} s, it goes on at {from} s");
    session.first_packets(1)?;
    passed(format!("at {seconds} s"))
}

fn end_of_stream(scene: &Scene) -> Result<Outcome> {
    if scene.len.is_none_or(|len| len < 3.0) {
        return skipped("the description names no length, or a short one");
    }
    let mut session = scene.set_up_two(TransportKind::Udp)?;
    session.play(&[("Range", "npt=0-2")])?;
    let cseq = session.connection.cseq;
    let mut came = vec![];
    // Packets of two seconds, and what is left of the time to tell.
    for _ in 0..8 {
        came.extend(session.listen(Duration::from_secs(1))?);
        if session.connection.asked.iter().any(is_notice) {
            break;
        }
    }
    came.extend(session.listen(Duration::from_millis(300))?);
    let notice = session.connection.asked.iter().find(|asked| is_notice(asked)).cloned();
    let Some(notice) = notice else {
        return skipped("no PLAY_NOTIFY comes within 8 s of a Range of 2 s");
    };
    check_notice(&notice, &session, cseq)?;
    let last = session.packets(&came)?.last().map(|packet| packet.sequence);
    if let Some(text) = notice.header("RTP-Info") {
        let streams = streams(text).with_context(|| format!("RTP-Info: {text}"))?;
        let told = streams.first().and_then(|stream| stream.sequence);
        ensure!(told.is_none() || told == last, "the last packet is {last:?}, told is {told:?}");
    }
    passed(notice.header("Range").unwrap_or("no Range"))
}

fn is_notice(asked: &ServerRequest) -> bool {
    asked.method() == "PLAY_NOTIFY"
}

fn check_notice(notice: &ServerRequest, session: &Session<'_>, cseq: u32) -> Result<()> {
    let need = |name: &str| notice.header(name).with_context(|| format!("it has no {name}"));
    ensure!(notice.line.ends_with(TWO), "{}", notice.line);
    ensure!(need("Notify-Reason")? == "end-of-stream", "{:?}", notice.header("Notify-Reason"));
    ensure!(need("Session")? == session.id, "it is of session {:?}", notice.header("Session"));
    let status = need("Request-Status")?;
    let names = status.split(' ').any(|part| part == format!("cseq={cseq}"));
    ensure!(names, "{status} does not name the PLAY of CSeq {cseq}");
    ensure!(need("Range")?.starts_with("npt="), "{:?}", notice.header("Range"));
    Ok(())
}

fn teardown(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up_two(TransportKind::Udp)?;
    session.tear_down()?;
    let id = session.id.clone();
    let headers = [("Session", id.as_str())];
    let response = match session.ask("PLAY", &[]) {
        Ok(response) => response,
        // Its connection may have gone with it.
        Err(_) => ask(&mut scene.connect_two()?, "PLAY", scene.presentation(), &headers)?,
    };
    response.expect(&[454], "PLAY after TEARDOWN")?;
    passed("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_play_says_of_streams_is_read() {
        let text = "url=\"rtsp://a/x,y;z\" ssrc=0A13C760:seq=45102;rtptime=12345678, \
             url=\"rtsp://a/b\" ssrc=9A9DE123:seq=30211";
        let all = streams(text).expect("it is well formed");
        let [one, other] = &all[..] else { panic!("{all:?}") };
        assert_eq!((one.url, one.source), ("rtsp://a/x,y;z", 0x0a13_c760));
        assert_eq!((one.sequence, one.timestamp), (Some(45_102), Some(12_345_678)));
        assert_eq!((other.sequence, other.timestamp), (Some(30_211), None));
        for wrong in ["url=rtsp://a/b;seq=1", "url=\"a\":seq=1", "url=\"a\" ssrc=x:seq=1"] {
            assert!(streams(wrong).is_err(), "{wrong}");
        }
    }
}
