//! Checks of what flows.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::scene::{Packet, PlayResponse, Scene, Session, TransportKind, sender_reports};
use super::{Check, Outcome, passed, skipped};

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "play-udp",
        "2326 10.5",
        "PLAY over UDP: packets come from where was said",
        play_udp,
    ),
    Check::new(
        "play-tcp",
        "2326 10.12",
        "PLAY over TCP: packets in frames of the channels agreed",
        play_tcp,
    ),
    Check::new("play-range", "2326 12.29", "PLAY answers what is played", play_range),
    Check::new("rtp-info-udp", "2326 12.33", "RTP-Info is of the first packet, over UDP", info_udp),
    Check::new("rtp-info-tcp", "2326 12.33", "RTP-Info is of the first packet, over TCP", info_tcp),
    Check::new(
        "answers-between",
        "2326 10.12",
        "requests are answered while packets flow over TCP",
        between,
    ),
    Check::new("pause-udp", "2326 10.6", "no packet after PAUSE, over UDP", pause_udp),
    Check::new(
        "pause-tcp",
        "2326 10.6",
        "no packet after the answer to PAUSE, over TCP",
        pause_tcp,
    ),
    Check::new(
        "resume-udp",
        "2326 B",
        "PLAY after PAUSE goes on in numbers and times, over UDP",
        resume_udp,
    ),
    Check::new(
        "resume-tcp",
        "2326 B",
        "PLAY after PAUSE goes on in numbers and times, over TCP",
        resume_tcp,
    ),
    Check::new("seek", "2326 12.29", "PLAY from elsewhere says where, and numbers go on", seek),
    Check::new("range-invalid", "2326 11.3.8", "457 for a Range that is not there", range_invalid),
    Check::new(
        "range-malformed",
        "2326 12.29",
        "400 or 457 for a Range that is none",
        range_malformed,
    ),
    Check::new("range-end", "2326 10.5", "a Range ends where it says", range_end),
    Check::new("scale", "2326 12.34", "Scale is answered with what it is", scale),
    Check::new("teardown-ends", "2326 10.7", "no packet after TEARDOWN", teardown_ends),
    Check::new(
        "sender-reports-udp",
        "3550 6.4.1",
        "sender reports that fit the packets, over UDP",
        reports_udp,
    ),
    Check::new(
        "sender-reports-tcp",
        "3550 6.4.1",
        "sender reports that fit the packets, over TCP",
        reports_tcp,
    ),
    Check::new("time-out", "2326 12.37", "who is not heard of is not sent to for ever", time_out)
        .slow(),
    Check::new("kept-alive", "2326 12.37", "who is heard of keeps its session", kept_alive).slow(),
];

/// On a loaded machine.
const SOON: Duration = Duration::from_millis(300);

/// Packets of one medium, one after the other.
fn check_order(scene: &Scene, session: &Session<'_>, packets: &[Packet]) -> Result<()> {
    for packet in packets {
        let (kind, wanted) = (packet.payload_type, scene.payload_type);
        ensure!(kind == wanted, "payload type {kind}, but {wanted} was described");
        let (ssrc, first) = (packet.source, packets[0].source);
        ensure!(ssrc == first, "sources {first:08X} and {ssrc:08X}");
        let named = session.transport.ssrc;
        ensure!(named.is_none_or(|named| named == ssrc), "source {ssrc:08X}, not {named:08X?}");
    }
    for pair in packets.windows(2) {
        let step = pair[1].sequence.wrapping_sub(pair[0].sequence);
        ensure!(step == 1, "after packet {} comes {}", pair[0].sequence, pair[1].sequence);
    }
    Ok(())
}

fn play_udp(scene: &Scene) -> Result<Outcome> {
    flows_udp(scene, scene.set_up(TransportKind::Udp)?)
}

/// Plays, and looks at what comes and from where.
pub(super) fn flows_udp(scene: &Scene, mut session: Session<'_>) -> Result<Outcome> {
    session.play(&[])?;
    let came = session.listen(Duration::from_secs(2))?;
    let packets = session.packets(&came)?;
    ensure!(!packets.is_empty(), "no packet in 2 s");
    check_order(scene, &session, &packets)?;
    let server = session.transport.from().context("it is not said where packets come from")?;
    let host = session.connection.peer()?.ip();
    for arrival in &came {
        let Some(from) = arrival.from else { continue };
        let port = if arrival.is_control { server.1 } else { server.0 };
        ensure!(from.port() == port, "a packet from port {}, not {port}", from.port());
        let transport = &session.transport;
        let is_named = transport.source.is_some() || !transport.src_addr.is_empty();
        ensure!(
            is_named || from.ip() == host,
            "a packet from {}, which nobody has named",
            from.ip()
        );
    }
    passed(format!("{} packets in 2 s", packets.len()))
}

fn play_tcp(scene: &Scene) -> Result<Outcome> {
    flows_tcp(scene, scene.set_up(TransportKind::Tcp)?)
}

pub(super) fn flows_tcp(scene: &Scene, mut session: Session<'_>) -> Result<Outcome> {
    session.play(&[])?;
    // Whatever is no frame and no message fails, and so does another channel.
    let came = session.listen(Duration::from_secs(2))?;
    let packets = session.packets(&came)?;
    ensure!(!packets.is_empty(), "no packet in 2 s");
    check_order(scene, &session, &packets)?;
    passed(format!("{} packets in 2 s", packets.len()))
}

fn play_range(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up(TransportKind::Tcp)?;
    let played = session.play(&[("Range", "npt=0-")])?;
    let (from, to) = played.range.context("PLAY answers no Range in npt")?;
    ensure!(from < 1.0, "asked for the beginning, played from {from} s");
    match (to, scene.len) {
        (Some(to), Some(len)) => {
            ensure!((to - len).abs() < 1.0, "it ends at {to} s, described were {len} s");
            passed(format!("npt={from}-{to}"))
        }
        _ => passed(format!("npt={from}-")),
    }
}

fn info_udp(scene: &Scene) -> Result<Outcome> {
    info(scene, TransportKind::Udp)
}

fn info_tcp(scene: &Scene) -> Result<Outcome> {
    info(scene, TransportKind::Tcp)
}

fn info(scene: &Scene, kind: TransportKind) -> Result<Outcome> {
    let mut session = scene.set_up(kind)?;
    let played = session.play(&[])?;
    let first = session.first_packets(1)?[0];
    check_info(&played, &first)?;
    passed(format!("seq {} rtptime {}", first.sequence, first.timestamp))
}

fn check_info(played: &PlayResponse, first: &Packet) -> Result<()> {
    let info = played.response.header("RTP-Info").context("PLAY answers no RTP-Info")?;
    let sequence = played.sequence.with_context(|| format!("no seq in {info}"))?;
    let timestamp = played.timestamp.with_context(|| format!("no rtptime in {info}"))?;
    ensure!(sequence == first.sequence, "seq {sequence}, the first packet has {}", first.sequence);
    ensure!(
        timestamp == first.timestamp,
        "rtptime {timestamp}, the first packet has {}",
        first.timestamp
    );
    Ok(())
}

fn between(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up(TransportKind::Tcp)?;
    session.play(&[])?;
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let asked = Instant::now();
        session.ask("OPTIONS", &[])?.expect(&[200], "OPTIONS while it plays")?;
        slowest = slowest.max(asked.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    let came = session.listen(Duration::from_millis(100))?;
    let packets = session.packets(&came)?;
    ensure!(!packets.is_empty(), "no packet in a second");
    check_order(scene, &session, &packets)?;
    passed(format!("20 answers between {} packets, the slowest after {slowest:.1?}", packets.len()))
}

fn pause_udp(scene: &Scene) -> Result<Outcome> {
    pause(scene, TransportKind::Udp)
}

fn pause_tcp(scene: &Scene) -> Result<Outcome> {
    pause(scene, TransportKind::Tcp)
}

fn pause(scene: &Scene, kind: TransportKind) -> Result<Outcome> {
    let mut session = scene.set_up(kind)?;
    session.play(&[])?;
    session.first_packets(5)?;
    session.pause()?;
    let answered = Instant::now();
    let came = session.listen(Duration::from_secs(2))?;
    // What comes by another way may still be under way.
    let grace = if kind == TransportKind::Udp { SOON } else { Duration::ZERO };
    let late = session.packets(&came)?.iter().filter(|each| each.at > answered + grace).count();
    ensure!(late == 0, "{late} packets in the 2 s after PAUSE was answered");
    passed("")
}

fn resume_udp(scene: &Scene) -> Result<Outcome> {
    resume(scene, TransportKind::Udp)
}

fn resume_tcp(scene: &Scene) -> Result<Outcome> {
    resume(scene, TransportKind::Tcp)
}

fn resume(scene: &Scene, kind: TransportKind) -> Result<Outcome> {
    let mut session = scene.set_up(kind)?;
    session.play(&[])?;
    let mut before = session.first_packets(20)?;
    session.pause()?;
    let rest = session.listen(SOON)?;
    before.extend(session.packets(&rest)?);
    check_order(scene, &session, &before)?;
    let last = before[before.len() - 1];
    let played = session.play(&[])?;
    let after = session.first_packets(20)?;
    check_order(scene, &session, &after)?;
    let (first, next) = (after[0], last.sequence.wrapping_add(1));
    ensure!(first.sequence == next, "after packet {} comes {}", last.sequence, first.sequence);
    // Video frames may come in another order than they are shown in.
    let step = first.timestamp.wrapping_sub(last.timestamp) as i32;
    // A player that believes its timestamps waits for as long as they say.
    ensure!(
        step.unsigned_abs() < 10 * scene.clock,
        "timestamps go on from {} to {}",
        last.timestamp,
        first.timestamp
    );
    check_info(&played, &first)?;
    passed(format!("after {} comes {}, {step} ticks later", last.sequence, first.sequence))
}

fn seek(scene: &Scene) -> Result<Outcome> {
    let Some(len) = scene.len.filter(|&len| len > 1.0) else {
        return skipped("the description names no length");
    };
    let mut session = scene.set_up(TransportKind::Tcp)?;
    session.play(&[])?;
    let mut before = session.first_packets(5)?;
    session.pause()?;
    let rest = session.listen(SOON)?;
    before.extend(session.packets(&rest)?);
    let wanted = len / 2.0;
    let played = session.play(&[("Range", &format!("npt={wanted:.3}-"))])?;
    let (from, _) = played.range.context("PLAY answers no Range in npt")?;
    ensure!(
        (from - wanted).abs() < 10.0_f64.min(len / 2.0),
        "asked for {wanted} s, played from {from} s"
    );
    let first = session.first_packets(1)?[0];
    let last = before[before.len() - 1];
    let next = last.sequence.wrapping_add(1);
    ensure!(first.sequence == next, "after packet {} comes {}", last.sequence, first.sequence);
    check_info(&played, &first)?;
    passed(format!("asked for {wanted:.3} s, played from {from:.3} s"))
}

fn range_invalid(scene: &Scene) -> Result<Outcome> {
    let Some(len) = scene.len else { return skipped("the description names no length") };
    let mut session = scene.set_up(TransportKind::Tcp)?;
    let range = format!("npt={:.3}-", len + 1000.0);
    session.ask("PLAY", &[("Range", &range)])?.expect(&[457], "PLAY from behind the end")?;
    session.play(&[])?;
    passed("")
}

fn range_malformed(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up(TransportKind::Tcp)?;
    let response = session.ask("PLAY", &[("Range", "npt=soon-later")])?;
    response.expect(&[400, 457], "a Range that is none")?;
    passed("")
}

fn range_end(scene: &Scene) -> Result<Outcome> {
    if scene.len.is_none_or(|len| len < 3.0) {
        return skipped("the description names no length, or a short one");
    }
    let mut session = scene.set_up(TransportKind::Udp)?;
    let played = session.play(&[("Range", "npt=0-2")])?;
    let (_, to) = played.range.context("PLAY answers no Range in npt")?;
    let to = to.context("PLAY answers a Range without an end")?;
    ensure!((to - 2.0).abs() < 1.0, "asked for 2 s, it ends at {to} s");
    session.first_packets(1)?;
    let began = Instant::now();
    let came = session.listen(Duration::from_secs(6))?;
    let packets = session.packets(&came)?;
    let last = packets.last().map_or(Duration::ZERO, |last| last.at.duration_since(began));
    ensure!(last < Duration::from_secs(5), "packets for {last:.1?} and more");
    ensure!(last > Duration::from_millis(500), "packets for {last:.1?} only");
    passed(format!("2 s were sent in {last:.1?}"))
}

fn scale(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up(TransportKind::Tcp)?;
    let response = session.ask("PLAY", &[("Scale", "2"), ("Range", "npt=0-")])?;
    if response.status != 200 {
        return skipped(&format!("PLAY with a Scale is answered {}", response.status));
    }
    let Some(scale) = response.header("Scale") else {
        return skipped("PLAY answers no Scale: it is not supported");
    };
    let is: f64 = scale.parse().with_context(|| format!("Scale: {scale}"))?;
    ensure!(is != 0.0, "a Scale of nothing");
    session.first_packets(5)?;
    passed(format!("asked for 2, answered {is}"))
}

fn teardown_ends(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up(TransportKind::Udp)?;
    session.play(&[])?;
    session.first_packets(5)?;
    session.tear_down()?;
    let answered = Instant::now();
    let came = session.listen(Duration::from_secs(2))?;
    let late = session.packets(&came)?.iter().filter(|each| each.at > answered + SOON).count();
    ensure!(late == 0, "{late} packets in the 2 s after TEARDOWN was answered");
    passed("")
}

fn reports_udp(scene: &Scene) -> Result<Outcome> {
    reports(scene, TransportKind::Udp)
}

fn reports_tcp(scene: &Scene) -> Result<Outcome> {
    reports(scene, TransportKind::Tcp)
}

fn reports(scene: &Scene, kind: TransportKind) -> Result<Outcome> {
    let mut session = scene.set_up(kind)?;
    session.play(&[])?;
    // Two of the longest intervals of a session of two (RFC 3550, section 6.3.1).
    let enough = |came: &[super::scene::Arrival]| {
        sender_reports(came).is_ok_and(|reports| reports.len() >= 2)
    };
    let came = session.listen_until(Duration::from_secs(20), enough)?;
    let (reports, packets) = (sender_reports(&came)?, session.packets(&came)?);
    let first = packets.first().context("no packet in 20 s")?;
    ensure!(!reports.is_empty(), "no sender report in 20 s");
    for (at, source, info) in &reports {
        ensure!(
            *source == first.source,
            "a report of {source:08X}, but packets of {:08X}",
            first.source
        );
        let before = packets.iter().filter(|packet| packet.at <= *at).count() as u32;
        let off = info.packets.abs_diff(before);
        // What is on its way, and what was lost before we listened.
        ensure!(
            off <= 200 + before / 10,
            "{} packets are reported, {before} have come",
            info.packets
        );
        // The same moment by both clocks: that of the nearest packet, within some seconds.
        let near = packets.iter().rfind(|packet| packet.at <= *at).unwrap_or(first);
        let ticks = info.timestamp.wrapping_sub(near.timestamp) as i32;
        let seconds = f64::from(ticks) / f64::from(scene.clock);
        ensure!(
            seconds.abs() < 10.0,
            "timestamp {} where packets have {}",
            info.timestamp,
            near.timestamp
        );
    }
    if let [(_, _, one), (_, _, other), ..] = reports[..] {
        let wall = (other.time.0.wrapping_sub(one.time.0)) as f64 / 4_294_967_296.0;
        let media = f64::from(other.timestamp.wrapping_sub(one.timestamp)) / f64::from(scene.clock);
        ensure!(
            (wall - media).abs() < 0.1 * wall + 0.05,
            "{wall:.3} s of time are {media:.3} s of timestamps"
        );
        return passed(format!("{wall:.2} s apart, {media:.2} s of timestamps"));
    }
    passed("one in 20 s")
}

fn time_out(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up(TransportKind::Udp)?;
    session.play(&[])?;
    let limit = session.timeout + Duration::from_secs(30);
    let Some(_) = scene.len.filter(|&len| len > limit.as_secs_f64()) else {
        return skipped("the presentation is no longer than the time-out");
    };
    session.first_packets(1)?;
    let began = Instant::now();
    let mut last = began;
    while began.elapsed() < limit && last.elapsed() < Duration::from_secs(5) {
        let came = session.listen(Duration::from_secs(1))?;
        last = session.packets(&came)?.last().map_or(last, |packet| packet.at);
    }
    let lasted = last.duration_since(began);
    ensure!(began.elapsed() < limit, "packets for {} s without a word from us", limit.as_secs());
    ensure!(lasted + SOON >= session.timeout, "over after {lasted:.1?} of {:.1?}", session.timeout);
    session.is_over = true;
    session.ask("PLAY", &[])?.expect(&[454], "PLAY in a session that is over")?;
    passed(format!("over after {lasted:.1?}, its time-out is {} s", session.timeout.as_secs()))
}

fn kept_alive(scene: &Scene) -> Result<Outcome> {
    let mut session = scene.set_up(TransportKind::Udp)?;
    // Nothing flows: only what is said keeps it.
    let span = session.timeout.mul_f64(1.5);
    let began = Instant::now();
    while began.elapsed() < span {
        std::thread::sleep(session.timeout / 3);
        session.ask("OPTIONS", &[])?.expect(&[200], "OPTIONS within the session")?;
    }
    session.play(&[])?;
    session.first_packets(1)?;
    passed(format!("alive after {:.0?}", began.elapsed()))
}
