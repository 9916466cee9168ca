//! Channels: from the configuration and a disk to datagrams on the loopback.

#[path = "station/fixture.rs"]
mod fixture;
#[path = "channels/framings.rs"]
mod framings;
#[path = "station/until.rs"]
mod until;
#[path = "channels/versions.rs"]
mod versions;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use dvb_conformance::{ConformanceMonitor, Indicator};
use tactus_control::settings::Sendfile;
use tactus_core::rtp::{self, rtcp};
use tactus_core::ts::{Continuity, PACKET, PCR_BYTE, Packet, Pcr};
use tactus_core::units::{MediaTime, SECOND, WallTime};
use tactus_engine::message::VolumeId;
use tactus_media::sample;
use tactus_playout::channel::{Channel, ScheduledTime};
use tactus_playout::channels::{OrderError, State, Status};
use tactus_sys::clock;
use tactus_sys::udp_input::{InputOptions, UdpInput};
use tactus_testkit::namespace;

use fixture::fixture;
use until::until;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn inbox(ip: IpAddr) -> UdpInput {
    // More than a whole title, so that a receiver without time loses nothing.
    let to = SocketAddr::new(ip, 0);
    let wanted = InputOptions { to, source: None, interface: None, buffer: 32 << 20 };
    UdpInput::open(&wanted).expect("a port")
}

/// Waits for `count` datagrams.
fn take(inbox: &mut UdpInput, count: usize) -> Vec<Vec<u8>> {
    let mut came = vec![];
    let end = Instant::now() + PATIENCE;
    while came.len() < count && Instant::now() < end {
        if inbox.receive(|datagram| came.push(datagram.bytes.to_vec())).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert_eq!(inbox.dropped().expect("it is counted"), 0);
    came
}

/// What RTP packets carry, which must follow each other.
fn payload(packets: &[Vec<u8>]) -> Vec<u8> {
    let read = |bytes| rtp::Packet::read(bytes).expect("RTP");
    for pair in packets.windows(2) {
        let (one, next) = (read(&pair[0]), read(&pair[1]));
        assert_eq!(next.sequence, one.sequence.wrapping_add(1));
        assert_eq!((next.source, next.payload_type), (one.source, rtp::MP2T));
        assert!(next.timestamp.wrapping_sub(one.timestamp) < 90_000, "less than a second later");
    }
    packets.iter().flat_map(|bytes| read(bytes).payload).copied().collect()
}

/// The packets of `title`, repeated: all but clocks, counters and frame starts are the same.
fn assert_same(left: &[u8], title: &[u8]) {
    let own = title.chunks(PACKET).cycle();
    for (nth, (left, own)) in left.chunks(PACKET).zip(own).enumerate() {
        let begins = own[1] & 0x40 != 0;
        assert!(left[..3] == own[..3] && (begins || left[12..] == own[12..]), "packet {nth}");
    }
}

/// No counter breaks and the first clock does not jump. Returns that clock with its bytes.
fn assert_whole(bytes: &[u8]) -> Vec<(u64, Pcr)> {
    let mut watch = Continuity::default();
    let mut clocks: Vec<(u64, Pcr)> = vec![];
    for (nth, bytes) in bytes.chunks(PACKET).enumerate() {
        let packet = Packet::first_of(bytes).expect("whole packets");
        assert_eq!(watch.handle_packet(&packet), None, "packet {nth}");
        assert!(!packet.is_discontinuous());
        if let Some(pcr) = packet.pcr() {
            if let Some(&(_, last)) = clocks.last() {
                // 2.3 of TR 101 290.
                assert!(pcr.since(last) <= MediaTime(27_000_000 / 10), "packet {nth}");
            }
            clocks.push((nth as u64 * PACKET as u64 + PCR_BYTE, pcr));
        }
    }
    assert!(clocks.len() > 20);
    clocks
}

/// How far each stamp is from where its byte is at `rate`, in ticks of 27 MHz, at most.
fn error_of(clocks: &[(u64, Pcr)], rate: u64) -> u64 {
    let (at, first) = clocks[0];
    let law = |to: u64| {
        first.after(MediaTime((u128::from(to - at) * 216_000_000 / u128::from(rate)) as u64))
    };
    let off = clocks.iter().map(|&(at, pcr)| pcr.since(law(at)).0.min(law(at).since(pcr).0));
    off.max().expect("there are some")
}

/// What a foreign checker of TR 101 290 says of a stream whose packets come `each`.
fn indicators(bytes: &[u8], each: impl Fn(u64) -> Duration) -> Vec<Indicator> {
    let mut monitor = ConformanceMonitor::new();
    let mut raised = vec![];
    for (nth, packet) in (0..).zip(bytes.chunks(PACKET)) {
        raised.extend(monitor.feed(packet, each(nth)).iter().map(|event| event.indicator));
    }
    // 3.10: the monitor drains the video buffer at the PID's mean rate, below the level's rate.
    raised.retain(|&indicator| indicator != Indicator::DataDelayError);
    raised
}

#[tokio::test(flavor = "multi_thread")]
async fn what_repeats_is_one_clean_stream_and_null_packets_make_a_constant_rate() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let even = dir.path().join("even.ts");
    let rate = sample::write_ts(&even, SECOND.times(3)).expect("a title").rate();
    let even = std::fs::read(even).expect("a title");
    // Without its null packets it is one of a variable rate.
    let is_null = |bytes: &&[u8]| bytes[1] & 0x1f == 0x1f && bytes[2] == 0xff;
    let varied: Vec<u8> =
        even.chunks(PACKET).filter(|bytes| !is_null(bytes)).flatten().copied().collect();
    assert!(varied.len() < even.len() * 19 / 20);
    std::fs::write(dir.path().join("varied.ts"), &varied).expect("a title");
    let mut inboxes = [(); 3].map(|()| inbox(Ipv4Addr::LOCALHOST.into()));
    let [loops, varies, stuffed] = [0, 1, 2].map(|nth| inboxes[nth].address().expect("bound"));
    let channels = format!(
        "[[channel]]\nname = \"loops\"\ntitle = \"/even.ts\"\nto = \"rtp://{loops}\"\n\
         [[channel]]\nname = \"varies\"\ntitle = \"/varied.ts\"\nto = \"rtp://{varies}\"\n\
         [[channel]]\nname = \"stuffed\"\ntitle = \"/varied.ts\"\nto = \"rtp://{stuffed}\"\n\
         stuff = \"6 Mbit/s\"\n\
         [[channel]]\nname = \"low\"\ntitle = \"/varied.ts\"\nto = \"udp://127.0.0.1:9\"\n\
         stuff = \"1 Mbit/s\"\n",
    );
    for sendfile in [Sendfile::Off, Sendfile::On] {
        let fixture = fixture(dir.path(), sendfile, &channels);
        let channels = fixture.begin();
        for name in ["loops", "varies", "stuffed"] {
            until(&channels, name, |status| status.state == State::Running).await;
        }
        let low = until(&channels, "low", |status| status.reason.is_some()).await;
        assert!(low.reason.expect("it waits").contains("fastest second"));
        // Two and a half turns of each.
        let turns = |bytes: usize| bytes * 5 / 2 / 1316;
        let counts = [turns(even.len()), turns(varied.len()), 6_000_000 / 8 * 15 / 2 / 1316];
        let task = tokio::task::spawn_blocking(move || {
            let mut heard = vec![];
            for (inbox, count) in inboxes.iter_mut().zip(counts) {
                heard.push(payload(&take(inbox, count)));
            }
            (inboxes, heard)
        });
        let (back, heard) = task.await.expect("all have come");
        inboxes = back;
        // As many have come later are of no use to the other way.
        channels.close().await;
        while !fixture.engine.broker.running().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for inbox in &mut inboxes {
            while inbox.receive(|_| ()).is_ok() {}
        }
        let counters = &fixture.engine.counters.packets[0];
        assert_eq!((counters.underruns.value(), counters.unstamped.value()), (0, 0));
        assert_eq!(counters.slots_late.value(), 0);
        let [loops, varies, stuffed] = [&heard[0], &heard[1], &heard[2]];
        // 500 ns are 13.5 ticks.
        assert_same(loops, &even);
        assert!(error_of(&assert_whole(loops), rate.0) <= 13);
        let at = |rate: u64| move |nth: u64| Duration::from_nanos(nth * 188 * 8_000_000_000 / rate);
        assert_eq!(indicators(loops, at(rate.0)), []);
        assert!(error_of(&assert_whole(stuffed), 6_000_000) <= 13);
        assert_eq!(indicators(stuffed, at(6_000_000)), []);
        let own: Vec<u8> =
            stuffed.chunks(PACKET).filter(|bytes| !is_null(bytes)).flatten().copied().collect();
        assert_same(&own, &varied);
        assert_same(varies, &varied);
        // Packets come when its clock says so.
        let clocks = assert_whole(varies);
        let when = |nth: u64| {
            let at = nth * PACKET as u64 + PCR_BYTE;
            let behind =
                clocks.partition_point(|&(known, _)| known <= at).clamp(1, clocks.len() - 1);
            let (from, to) = (clocks[behind - 1], clocks[behind]);
            let since = from.1.since(clocks[0].1).0 + 27_000_000;
            let more = i128::from(at) - i128::from(from.0);
            let slope = i128::from(to.1.since(from.1).0) * more / i128::from(to.0 - from.0);
            Duration::from_nanos((i128::from(since) + slope) as u64 * 1000 / 27)
        };
        assert_eq!(indicators(varies, when), []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_title_leaves_by_its_own_clock_and_begins_again_after_its_end() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let file = dir.path().join("loop.ts");
    let rate = sample::write_ts(&file, SECOND.times(6)).expect("a title").rate();
    let title = std::fs::read(&file).expect("a title");
    // What stands in front of the first packet, and a packet that was cut, are not sent.
    std::fs::write(&file, [b"front", &title[..], &title[..100]].concat()).expect("a title");
    for sendfile in [Sendfile::Off, Sendfile::On] {
        let mut own = inbox(Ipv4Addr::LOCALHOST.into());
        let mut fast = inbox(Ipv4Addr::LOCALHOST.into());
        let mut once = inbox("::1".parse().expect("an address"));
        let to = |inbox: &UdpInput| inbox.address().expect("bound");
        let channels = format!(
            "[[channel]]\nname = \"own\"\ntitle = \"/loop.ts\"\nto = \"rtp://{}\"\n\
             [[channel]]\nname = \"fast\"\ntitle = \"/loop.ts\"\nto = \"udp://{}\"\n\
             rate = \"10 Mbit/s\"\nburst = \"4 ms\"\n\
             [[channel]]\nname = \"once\"\ntitle = \"/loop.ts\"\nto = \"rtp://{}\"\n\
             rate = \"6 Mbit/s\"\nrepeat = false\n\
             [[channel]]\nname = \"none\"\ntitle = \"/none.ts\"\nto = \"udp://127.0.0.1:9\"\n",
            to(&own),
            to(&fast),
            to(&once),
        );
        let fixture = fixture(dir.path(), sendfile, &channels);
        let channels = fixture.begin();
        let waits = until(&channels, "none", |status| status.reason.is_some()).await;
        assert_eq!(waits.state, State::Waiting);
        for name in ["fast", "once"] {
            until(&channels, name, |status| status.starts > 0).await;
        }
        let status = until(&channels, "own", |status| status.state == State::Running).await;
        assert_eq!(status.set_rate_bits_per_second, Some(rate.0));

        let all = title.len().div_ceil(1316);
        let received = tokio::task::spawn_blocking(move || {
            let fast = take(&mut fast, 2 * all + 10);
            (take(&mut own, 700), fast, take(&mut once, all))
        });
        let (own, fast, once) = received.await.expect("all have come");
        let own = payload(&own);
        assert_same(&own, &title);
        assert!(payload(&once) == title, "the title once, as it is");
        let fast = fast.concat();
        assert!(fast.len() > 2 * title.len());
        assert_same(&fast, &title);
        assert_whole(&fast);
        until(&channels, "once", |status| status.state == State::Ended).await;
        channels.close().await;
        while !fixture.engine.broker.running().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(fixture.engine.counters.packets[0].refused.value(), 0);
    }
}

/// A title of so many seconds, of which each packet ends in `mark`: samples begin alike.
fn marked(dir: &Path, name: &str, seconds: u64, mark: u8) -> Vec<u8> {
    let file = dir.join(name);
    sample::write_ts(&file, SECOND.times(seconds)).expect("a title");
    let mut title = std::fs::read(&file).expect("a title");
    title.chunks_mut(188).for_each(|packet| packet[187] = mark);
    std::fs::write(&file, &title).expect("a title");
    title
}

/// Two inboxes whose ports follow each other: for packets and for their reports.
fn pair(ip: IpAddr) -> (UdpInput, UdpInput) {
    for _ in 0..100 {
        let first = inbox(ip);
        let address = first.address().expect("bound");
        let Some(port) = address.port().checked_add(1) else { continue };
        let to = SocketAddr::new(ip, port);
        let wanted = InputOptions { to, source: None, interface: None, buffer: 1 << 20 };
        if let Ok(second) = UdpInput::open(&wanted) {
            return (first, second);
        }
    }
    panic!("no two ports");
}

/// How many packets of each title come after each other, by their marks.
fn turns_of(bytes: &[u8]) -> Vec<(u8, usize)> {
    let mut turns: Vec<(u8, usize)> = vec![];
    for packet in bytes.chunks(PACKET) {
        match turns.last_mut() {
            Some((mark, count)) if *mark == packet[187] => *count += 1,
            _ => turns.push((packet[187], 1)),
        }
    }
    turns
}

#[tokio::test(flavor = "multi_thread")]
async fn titles_follow_each_other_in_one_session_with_reports_and_a_goodbye() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let (a, b) = (marked(dir.path(), "a.ts", 2, 1), marked(dir.path(), "b.ts", 4, 2));
    std::fs::write(dir.path().join("all.m3u8"), "#EXTM3U\nmissing.ts\na.ts\n/b.ts\n")
        .expect("a list");
    let (mut packets, mut reports) = pair(Ipv4Addr::LOCALHOST.into());
    let to = packets.address().expect("bound");
    let channels =
        format!("[[channel]]\nname = \"list\"\nplaylist = \"/all.m3u8\"\nto = \"rtp://{to}\"\n");
    let fixture = fixture(dir.path(), Sendfile::Off, &channels);
    let channels = fixture.begin();
    let count = 2 * (a.len().div_ceil(1316) + b.len().div_ceil(1316)) + 5;
    let came = tokio::task::spawn_blocking(move || (take(&mut packets, count), packets));
    let (came, packets) = came.await.expect("all have come");
    let bytes = payload(&came);
    // One stream, of whole titles.
    let [whole @ .., _] = &turns_of(&bytes)[..] else { panic!("something has come") };
    let packets_of = |title: &[u8]| title.len() / PACKET;
    let expected = [(1, packets_of(&a)), (2, packets_of(&b))];
    assert_eq!(whole, [expected, expected].concat());
    assert_whole(&bytes);
    let first = rtp::Packet::read(&came[0]).expect("RTP");
    let status = channels.one("list").expect("it is there");
    assert!(status.starts >= 5 && status.skips >= 2, "{status:?}");
    assert!(status.skipped.expect("one is missing").starts_with("/missing.ts"));
    channels.close().await;
    drop(packets);

    let mut told = vec![];
    while reports.receive(|datagram| told.push(datagram.bytes.to_vec())).is_ok() {}
    let (mut last, mut peer) = (None::<rtcp::SenderInfo>, rtcp::Peer::default());
    let mut gone = 0;
    for bytes in told {
        let heard = peer.handle(&bytes, 0).expect("a report");
        gone += usize::from(heard.is_gone);
        let info = heard.info.expect("a sender's");
        // Both clocks agree within 0.1 s: the machine may have stopped between the two readings.
        if let Some(last) = last.replace(info) {
            let wall = (u128::from(info.time.0 - last.time.0) * 90_000) >> 32;
            let media = info.timestamp.wrapping_sub(last.timestamp);
            assert!(wall.abs_diff(u128::from(media)) < 9_000, "{last:?} {info:?}");
        }
    }
    assert_eq!((gone, peer.source()), (1, Some(first.source)));
    let last = last.expect("reports have come");
    assert!(last.packets as usize >= count && last.octets as usize >= 2 * (a.len() + b.len()));
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_come_change_and_go_and_nobody_else_notices() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let a = marked(dir.path(), "a.ts", 8, 1);
    marked(dir.path(), "b.ts", 6, 2);
    marked(dir.path(), "fill.ts", 4, 3);
    let (steady, mut changed) =
        (inbox(Ipv4Addr::LOCALHOST.into()), inbox(Ipv4Addr::LOCALHOST.into()));
    let to = |inbox: &UdpInput| inbox.address().expect("bound");
    let changed_to = to(&changed);
    let text = format!(
        "[[channel]]\nname = \"steady\"\ntitle = \"/a.ts\"\nto = \"rtp://{}\"\n",
        to(&steady),
    );
    let fixture = fixture(dir.path(), Sendfile::Off, &text);
    let channels = fixture.begin();
    let of = |keys: &str| {
        let text = format!("name = \"x\"\nto = \"rtp://{changed_to}\"\n{keys}");
        Channel::parse(&text).expect("a channel")
    };
    // What is missing is filled in for.
    let is_new = channels.set(of("title = \"/later.ts\"\nfill = \"/fill.ts\"")).await;
    assert_eq!(is_new, Ok(true));
    // Who leaves a title at once may hear nothing of it.
    let is_heard = |status: &Status| status.sent_bytes > 0;
    until(&channels, "x", |status| status.state == State::Filling && is_heard(status)).await;
    // When there is something, it comes.
    assert_eq!(channels.set(of("title = \"/a.ts\"\nfill = \"/fill.ts\"")).await, Ok(false));
    until(&channels, "x", |status| status.title == "/a.ts" && is_heard(status)).await;
    // One that repeats by itself makes way for another playlist.
    assert_eq!(channels.set(of("playlist = [\"/b.ts\", \"/b.ts\"]")).await, Ok(false));
    until(&channels, "x", |status| status.title == "/b.ts" && is_heard(status)).await;
    assert_eq!(channels.request_title("x", "/fill.ts".into()).await, Ok(()));
    assert_eq!(channels.skip("x"), Ok(()));
    until(&channels, "x", |status| status.title == "/fill.ts").await;
    // Two may not go to one address, and nobody is called so.
    let mut same = of("title = \"/a.ts\"");
    same.name = "y".into();
    assert!(matches!(channels.set(same).await, Err(OrderError::SameAddress(_))));
    assert_eq!(channels.skip("y"), Err(OrderError::Unknown));
    let status = until(&channels, "x", |status| status.sent_bytes > 1_000_000).await;
    assert!(status.starts >= 4, "{status:?}");
    channels.remove("x").await.expect("it was there");
    assert!(channels.one("x").is_none());

    // One session, of whole packets, in which each title is left at a packet's end.
    let came = take(&mut changed, 1);
    let mut all = came;
    while changed.receive(|datagram| all.push(datagram.bytes.to_vec())).is_ok() {}
    let bytes = payload(&all);
    let marks: Vec<u8> = turns_of(&bytes).iter().map(|turn| turn.0).collect();
    assert!(marks.starts_with(&[3, 1, 2, 3]), "{marks:?}");
    assert_whole(&bytes);
    let mut steady = steady;
    let mut own = vec![];
    while steady.receive(|datagram| own.push(datagram.bytes.to_vec())).is_ok() {}
    let own = payload(&own);
    assert_same(&own, &a);
    assert_whole(&own);
    assert_eq!(channels.one("steady").expect("it is there").starts, 1);
    channels.close().await;
    while !fixture.engine.broker.running().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_near_the_end_of_a_title_leaves_no_gap_as_what_waits_keeps_its_place() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let a = marked(dir.path(), "a.ts", 3, 1);
    marked(dir.path(), "b.ts", 8, 2);
    marked(dir.path(), "c.ts", 8, 3);
    let mut heard = inbox(Ipv4Addr::LOCALHOST.into());
    let to = heard.address().expect("bound");
    let of = |titles: &str| {
        let text = format!("name = \"x\"\nto = \"rtp://{to}\"\nplaylist = [{titles}]\n");
        Channel::parse(&text).expect("a channel")
    };
    let fixture = fixture(dir.path(), Sendfile::Off, "");
    let channels = fixture.begin();
    assert_eq!(channels.set(of("\"/a.ts\", \"/b.ts\"")).await, Ok(true));
    until(&channels, "x", |status| status.next_title.as_deref() == Some("/b.ts")).await;
    // Less than two seconds are left: too few for another one to take the place of the second
    // title, which begins, and is left as soon as the third one is there.
    let near = a.len() as u64 / 2;
    until(&channels, "x", |status| status.sent_bytes > near || status.title == "/b.ts").await;
    assert_eq!(channels.set(of("\"/c.ts\", \"/c.ts\"")).await, Ok(false));
    until(&channels, "x", |status| status.title == "/c.ts").await;
    let status = until(&channels, "x", |status| status.sent_bytes > 500_000).await;
    assert_eq!(status.starts, 3, "{status:?}");
    channels.close().await;
    let mut all = take(&mut heard, 1);
    while heard.receive(|datagram| all.push(datagram.bytes.to_vec())).is_ok() {}
    let bytes = payload(&all);
    // Of the second there may be nothing, where the third was there at once.
    let marks = turns_of(&bytes).into_iter().map(|turn| turn.0);
    assert_eq!(marks.filter(|&mark| mark != 2).collect::<Vec<_>>(), [1, 3]);
    assert_whole(&bytes);
}

/// All that comes until `count` turns of titles have begun, and when they did.
fn turns_begun(mut inbox: UdpInput, count: usize) -> (Vec<Vec<u8>>, Vec<(u8, WallTime)>) {
    let (mut all, mut turns) = (vec![], Vec::<(u8, WallTime)>::new());
    let end = Instant::now() + PATIENCE;
    while turns.len() < count {
        assert!(Instant::now() < end, "{turns:?}");
        let heard = inbox.receive(|datagram| {
            let mark = datagram.bytes[datagram.bytes.len() - 1];
            if turns.last().is_none_or(|turn| turn.0 != mark) {
                turns.push((mark, clock::wall_now()));
            }
            all.push(datagram.bytes.to_vec());
        });
        if heard.is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    (all, turns)
}

/// Not before its time, and not a second behind it on a slow machine.
fn assert_at(heard: WallTime, time: WallTime) {
    assert!((time.0..time.0 + SECOND.0).contains(&heard.0), "{heard:?} for {time:?}");
}

const fn in_seconds(now: WallTime, seconds: u64) -> WallTime {
    WallTime(now.0 + SECOND.0 * seconds)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_its_time_comes_at_its_time_though_nothing_is_sent_before() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    marked(dir.path(), "a.ts", 1, 1);
    marked(dir.path(), "b.ts", 2, 2);
    let heard = inbox(Ipv4Addr::LOCALHOST.into());
    let to = heard.address().expect("bound");
    let fixture = fixture(dir.path(), Sendfile::Off, "");
    let channels = fixture.begin();
    let text = format!("name = \"x\"\nto = \"udp://{to}\"\ntitle = \"/a.ts\"\nrepeat = false\n");
    let mut channel = Channel::parse(&text).expect("a channel");
    // Neither falls on what is looked for every five seconds.
    let now = clock::wall_now();
    let (start, time) = (in_seconds(now, 2), in_seconds(now, 6));
    channel.playlist.start = Some(ScheduledTime::At(start));
    channel.playlist.timed = vec![(ScheduledTime::At(time), "/b.ts".into())];
    assert_eq!(channels.set(channel).await, Ok(true));
    let waits = until(&channels, "x", |status| status.reason.is_some()).await;
    assert!(waits.reason.expect("it waits").contains("start time"));
    assert_eq!(channels.skip("x"), Err(OrderError::Silent));
    let turns = tokio::task::spawn_blocking(move || turns_begun(heard, 2).1);
    let turns = turns.await.expect("both have come");
    assert_eq!((turns[0].0, turns[1].0), (1, 2));
    assert_at(turns[0].1, start);
    assert_at(turns[1].1, time);
    channels.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_begins_before_its_time_whatever_is_missing_and_what_comes_till_then_is_sent() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    marked(dir.path(), "fill.ts", 2, 1);
    marked(dir.path(), "b.ts", 12, 2);
    let heard = inbox(Ipv4Addr::LOCALHOST.into());
    let to = heard.address().expect("bound");
    let fixture = fixture(dir.path(), Sendfile::Off, "");
    let channels = fixture.begin();
    let text = format!(
        "name = \"x\"\nto = \"rtp://{to}\"\nplaylist = [\"/missing.ts\", \"/b.ts\"]\n\
         fill = \"/fill.ts\"\n"
    );
    let mut channel = Channel::parse(&text).expect("a channel");
    let now = clock::wall_now();
    let (start, time) = (in_seconds(now, 8), in_seconds(now, 16));
    channel.playlist.start = Some(ScheduledTime::At(start));
    channel.playlist.timed = vec![(ScheduledTime::At(time), "/late.ts".into())];
    assert_eq!(channels.set(channel).await, Ok(true));
    let turns = tokio::task::spawn_blocking(move || turns_begun(heard, 4));
    // It is there when it was missed once.
    until(&channels, "x", |status| {
        let is_late = |skipped: &String| skipped.starts_with("/late.ts");
        status.title == "/b.ts" && status.skipped.as_ref().is_some_and(is_late)
    })
    .await;
    let other = dir.path().join("other");
    std::fs::create_dir(&other).expect("a directory");
    marked(&other, "late.ts", 3, 3);
    std::fs::rename(other.join("late.ts"), dir.path().join("late.ts")).expect("a title");
    let (all, turns) = turns.await.expect("all have come");
    let [(1, _), (2, begun), (3, timed), (2, _)] = turns[..] else { panic!("{turns:?}") };
    assert_at(begun, start);
    assert_at(timed, time);
    assert_whole(&payload(&all));
    channels.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_again_and_again_makes_way_when_its_list_or_the_fill_is_another_one() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    marked(dir.path(), "a.ts", 2, 1);
    marked(dir.path(), "b.ts", 2, 2);
    let (list, new) = (dir.path().join("list.m3u8"), dir.path().join("new"));
    std::fs::write(&list, "a.ts\n").expect("a list");
    let fixture = fixture(dir.path(), Sendfile::Off, "");
    let channels = fixture.begin();
    let of = |keys: &str| {
        let text = format!("name = \"x\"\nto = \"udp://127.0.0.1:9\"\n{keys}");
        Channel::parse(&text).expect("a channel")
    };
    assert_eq!(channels.set(of("playlist = \"/list.m3u8\"")).await, Ok(true));
    until(&channels, "x", |status| status.title == "/a.ts" && status.sent_bytes > 0).await;
    std::fs::write(&new, "b.ts\n").expect("a list");
    std::fs::rename(&new, &list).expect("a list");
    until(&channels, "x", |status| status.title == "/b.ts" && status.sent_bytes > 0).await;

    for (nth, fill) in ["/a.ts", "/b.ts"].into_iter().enumerate() {
        let keys = format!("title = \"/missing.ts\"\nfill = \"{fill}\"");
        assert_eq!(channels.set(of(&keys)).await, Ok(false), "{nth}");
        let status = until(&channels, "x", |status| {
            status.state == State::Filling && status.title == fill && status.sent_bytes > 0
        });
        status.await;
    }
    // One that is not there takes nobody's place; without one nothing is sent.
    let missing = "title = \"/missing.ts\"\nfill = \"/none.ts\"";
    assert_eq!(channels.set(of(missing)).await, Ok(false));
    let skips = channels.one("x").expect("it is there").skips;
    let status = until(&channels, "x", |status| status.skips > skips + 1).await;
    assert_eq!((status.state, &*status.title), (State::Filling, "/b.ts"));
    assert_eq!(channels.set(of("title = \"/missing.ts\"")).await, Ok(false));
    until(&channels, "x", |status| status.state == State::Waiting).await;
    channels.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skip_leaves_what_is_on_the_air_then_and_nothing_that_comes_later() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let titles = [("a", 2, 1), ("b", 8, 2), ("c", 12, 3), ("d", 2, 4)];
    let titles = titles.map(|(name, seconds, mark)| {
        marked(dir.path(), &format!("{name}.ts"), seconds, mark).len() / PACKET
    });
    let heard = inbox(Ipv4Addr::LOCALHOST.into());
    let to = heard.address().expect("bound");
    let of = |keys: &str| {
        let text = format!("name = \"x\"\nto = \"udp://{to}\"\nrepeat = false\n{keys}\n");
        Channel::parse(&text).expect("a channel")
    };
    let fixture = fixture(dir.path(), Sendfile::Off, "");
    let channels = fixture.begin();
    let list = "playlist = [\"/a.ts\", \"/b.ts\", \"/c.ts\", \"/missing.ts\"]";
    assert_eq!(channels.set(of(list)).await, Ok(true));
    let skips = channels.clone();
    let heard = tokio::task::spawn_blocking(move || {
        // As soon as the second title sends: the end of the first may not be known here yet.
        let mut heard = heard;
        let mut all = vec![];
        while turns_of(&all).len() < 2 {
            heard.receive(|datagram| all.extend(datagram.bytes)).ok();
        }
        assert_eq!(skips.skip("x"), Ok(()));
        (heard, all)
    });
    let (mut heard, mut all) = heard.await.expect("it has come");
    let before = until(&channels, "x", |status| status.title == "/c.ts").await.skips;
    // Nothing follows: when that is known nobody waits for it any more.
    assert_eq!(channels.skip("x"), Ok(()));
    until(&channels, "x", |status| status.skips > before + 1).await;
    assert_eq!(channels.set(of("playlist = [\"/c.ts\", \"/d.ts\"]")).await, Ok(false));
    until(&channels, "x", |status| status.state == State::Ended).await;
    channels.close().await;
    while heard.receive(|datagram| all.extend(datagram.bytes)).is_ok() {}
    let [(1, a), (2, b), (3, c), (4, d)] = turns_of(&all)[..] else {
        panic!("{:?}", turns_of(&all))
    };
    assert_eq!([a, c, d], [titles[0], titles[2], titles[3]]);
    assert!(b < titles[1] / 2, "{b} of {}", titles[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_too_many_is_refused_and_all_others_are_kept() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    marked(dir.path(), "a.ts", 60, 1);
    let fixture = fixture(dir.path(), Sendfile::Off, "");
    let channels = fixture.begin();
    let text = "name = \"x\"\nto = \"udp://127.0.0.1:9\"\nplaylist = [\"/a.ts\", \"/a.ts\"]\n";
    let channel = Channel::parse(text).expect("a channel");
    assert_eq!(channels.set(channel).await, Ok(true));
    until(&channels, "x", |status| status.sent_bytes > 0).await;
    // As many orders as can be told at once: the channel takes them as it comes to it.
    let request = async || loop {
        match channels.request_title("x", "/a.ts".into()).await {
            Err(OrderError::Busy) => tokio::time::sleep(Duration::from_millis(1)).await,
            done => return done,
        }
    };
    for nth in 0..100 {
        assert_eq!(request().await, Ok(()), "{nth}");
    }
    assert_eq!(request().await, Err(OrderError::TooManyRequests));
    let end = Instant::now() + PATIENCE;
    until(&channels, "x", |_| channels.skip("x").is_ok()).await;
    while request().await != Ok(()) {
        assert!(Instant::now() < end, "one has gone, so there is room");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    channels.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_of_one_title_read_it_once_whenever_each_has_begun() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let title = marked(dir.path(), "a.ts", 3, 1);
    let mut inboxes = [(); 3].map(|()| inbox(Ipv4Addr::LOCALHOST.into()));
    let of = |inbox: &UdpInput, nth: usize| {
        let to = inbox.address().expect("bound");
        format!("name = \"c{nth}\"\ntitle = \"/a.ts\"\nto = \"rtp://{to}\"\n")
    };
    let texts = [0, 1, 2].map(|nth| of(&inboxes[nth], nth));
    let [first, second, later] = &texts;
    let fixture =
        fixture(dir.path(), Sendfile::Off, &format!("[[channel]]\n{first}[[channel]]\n{second}"));
    let channels = fixture.begin();
    // Two at the same time, and one in the midst of it.
    until(&channels, "c0", |status| status.sent_bytes > title.len() as u64 / 2).await;
    let later = Channel::parse(later).expect("a channel");
    assert_eq!(channels.set(later).await, Ok(true));
    // Two turns of each.
    let count = 2 * title.len() / 1316;
    let heard = tokio::task::spawn_blocking(move || {
        inboxes.each_mut().map(|inbox| payload(&take(inbox, count)))
    });
    for heard in heard.await.expect("all have come") {
        assert_same(&heard, &title);
    }
    let (disk, blocks) = (&fixture.engine.counters.disks[0], &fixture.engine.counters.blocks[0]);
    let block = fixture.engine.broker.block_of(VolumeId(0)).0;
    let of_title = (title.len() as u64).div_ceil(block);
    let (misses, hits) = (blocks.misses.value(), blocks.hits.value());
    assert_eq!(misses, of_title, "each block is read once; {hits} were there");
    assert!(hits >= 5 * of_title, "{hits} of {of_title} blocks");
    let read = disk.real_time_bytes.value() + disk.best_effort_bytes.value();
    assert!(read <= of_title * block, "{read} bytes");
    channels.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_is_announced_or_not_any_more_goes_on_in_its_session() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    marked(dir.path(), "a.ts", 6, 1);
    let interface = Some(tactus_sys::udp_input::interface("lo").expect("it is always there"));
    let open = |to: &str| {
        let to = to.parse().expect("an address");
        let wanted = InputOptions { to, source: None, interface, buffer: 8 << 20 };
        UdpInput::open(&wanted).expect("a group")
    };
    let (mut packets, mut sap) = (open("239.255.7.3:0"), open("239.255.255.255:9875"));
    let port = packets.address().expect("bound").port();
    let of = |announced: bool| {
        let text = format!(
            "name = \"x\"\ntitle = \"/a.ts\"\nto = \"rtp://239.255.7.3:{port}\"\n\
             interface = \"lo\"\nsource = \"127.0.0.1\"\nannounce = {announced}\n"
        );
        Channel::parse(&text).expect("a channel")
    };
    let fixture = fixture(dir.path(), Sendfile::Off, "");
    let channels = fixture.begin();
    assert_eq!(channels.set(of(false)).await, Ok(true));
    until(&channels, "x", |status| status.sent_bytes > 0).await;
    // Others on this machine may announce theirs: each description has its own number.
    let text = channels.description("x").expect("it is sent");
    let named = text.lines().find(|line| line.starts_with("o=")).expect("an origin").to_owned();
    let mut said = |wanted: usize| {
        let (mut said, end) = (vec![], Instant::now() + PATIENCE);
        while said.len() < wanted && Instant::now() < end {
            let own = |packet: &[u8]| {
                let text = String::from_utf8_lossy(packet);
                (text.contains(&named) && text.contains("application/sdp")).then_some(packet[0])
            };
            if sap.receive(|datagram| said.extend(own(datagram.bytes))).is_err() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        said
    };
    assert_eq!(channels.set(of(true)).await, Ok(false));
    assert_eq!(said(1), [0x20], "it is announced");
    // What was asked for twice is said once.
    assert_eq!(channels.set(of(true)).await, Ok(false));
    assert_eq!(channels.set(of(false)).await, Ok(false));
    assert_eq!(said(1), [0x24], "and is not any more");
    assert_eq!(channels.set(of(true)).await, Ok(false));
    assert_eq!(said(1), [0x20]);
    let status = until(&channels, "x", |status| status.sent_bytes > 500_000).await;
    assert_eq!(status.starts, 1);
    channels.close().await;
    assert_eq!(said(1), [0x24]);
    let mut all = take(&mut packets, 1);
    while packets.receive(|datagram| all.push(datagram.bytes.to_vec())).is_ok() {}
    // One session: no packet is lost, and its source is the same.
    assert_whole(&payload(&all));
}

/// What the next datagram to `group` looks like on the wire: source, TTL and class.
fn on_the_wire(group: Ipv4Addr) -> std::thread::JoinHandle<(Ipv4Addr, u8, u8)> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{AddressFamily, RecvFlags, SocketType, ipproto, recv, socket};
    let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::UDP));
    let raw = raw.expect("this test needs a raw socket: run it with CAP_NET_RAW");
    set_socket_timeout(&raw, Timeout::Recv, Some(PATIENCE)).expect("a socket");
    let end = Instant::now() + PATIENCE;
    // It gets what everybody on this machine sends, so it is read all the time.
    std::thread::spawn(move || {
        loop {
            assert!(Instant::now() < end, "nothing has come to {group}");
            let mut packet = [0; 2048];
            let (len, _) = recv(&raw, &mut packet[..], RecvFlags::empty()).expect("a packet");
            if len > 20 && packet[16..20] == group.octets() {
                let source = Ipv4Addr::new(packet[12], packet[13], packet[14], packet[15]);
                return (source, packet[8], packet[1] >> 2);
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_of_any_and_of_one_source_are_reached_as_configured_and_announced() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let title = marked(dir.path(), "a.ts", 6, 1);
    let join = |group: &str, source: Option<&str>| {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let to = SocketAddr::new(address(group), 0);
        let interface = Some(tactus_sys::udp_input::interface("lo").expect("it is always there"));
        let wanted = InputOptions { to, source: source.map(address), interface, buffer: 8 << 20 };
        UdpInput::open(&wanted).expect("a group")
    };
    let groups =
        [("239.255.7.1", None, "127.0.0.1"), ("232.7.7.1", Some("127.0.0.9"), "127.0.0.9")];
    let inboxes: Vec<_> = groups.iter().map(|&(group, from, _)| join(group, from)).collect();
    // Nobody but the named source is heard there.
    let mut stranger = join("232.7.7.1", Some("127.0.0.10"));
    let sap = SocketAddr::new("239.255.255.255".parse().expect("an address"), 9875);
    let interface = Some(tactus_sys::udp_input::interface("lo").expect("it is always there"));
    let mut announced =
        UdpInput::open(&InputOptions { to: sap, source: None, interface, buffer: 1 << 20 })
            .expect("SAP");
    let mut text = String::new();
    for ((at, &(group, _, source)), inbox) in groups.iter().enumerate().zip(&inboxes) {
        let to = SocketAddr::new(
            group.parse().expect("an address"),
            inbox.address().expect("bound").port(),
        );
        text.push_str(&format!(
            "[[channel]]\nname = \"c{at}\"\ntitle = \"/a.ts\"\nto = \"rtp://{to}\"\n\
             rate = \"4 Mbit/s\"\ninterface = \"lo\"\n\
             source = \"{source}\"\nhops = {}\ndscp = 34\nannounce = {}\n",
            7 + at,
            at == 0,
        ));
    }
    let wires = [Ipv4Addr::new(239, 255, 7, 1), Ipv4Addr::new(232, 7, 7, 1)].map(on_the_wire);
    let fixture = fixture(dir.path(), Sendfile::Off, &text);
    let channels = fixture.begin();
    let came = tokio::task::spawn_blocking(move || {
        let each = inboxes.into_iter().map(|mut inbox| take(&mut inbox, 20)).collect::<Vec<_>>();
        (each, wires.map(|wire| wire.join().expect("a packet")))
    });
    let (each, wires) = came.await.expect("all have come");
    for came in each {
        assert!(came.len() >= 20, "{} have come", came.len());
        assert_same(&payload(&came), &title);
    }
    assert_eq!(wires, [(Ipv4Addr::LOCALHOST, 7, 34), (Ipv4Addr::new(127, 0, 0, 9), 8, 34)]);
    assert!(stranger.receive(|_| {}).is_err(), "of another source nothing comes");

    let list = channels.m3u();
    assert!(list.starts_with("#EXTM3U\n#EXTINF:-1,c0\nrtp://@239.255.7.1:"), "{list}");
    assert!(list.contains("rtp://127.0.0.9@232.7.7.1:"), "{list}");
    let text = channels.description("c1").expect("it is sent");
    assert!(text.contains("a=source-filter: incl IN IP4 232.7.7.1 127.0.0.9\r\n"), "{text}");
    assert!(text.contains("c=IN IP4 232.7.7.1/8\r\n"), "{text}");
    let text = channels.description("c0").expect("it is sent");
    channels.close().await;
    let mut packets = vec![];
    while announced.receive(|datagram| packets.push(datagram.bytes.to_vec())).is_ok() {}
    // Others on this machine may announce theirs.
    let is_own = |packet: &&Vec<u8>| packet.ends_with(text.as_bytes());
    let own = packets.iter().find(is_own).expect("it was announced")[2..8].to_vec();
    packets.retain(|packet| packet[2..8] == own);
    let [begin, end] = &packets[..] else { panic!("{} announcements", packets.len()) };
    assert_eq!((begin[0], end[0]), (0x20, 0x24));
    assert_eq!(&begin[24..], text.as_bytes(), "what the description says");
    assert_eq!(begin[2..8], end[2..8]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_to_an_address_of_one_link_goes_by_the_interface_that_it_names() {
    if !namespace::is_inside(
        "a_channel_to_an_address_of_one_link_goes_by_the_interface_that_it_names",
    ) {
        return;
    }
    let ip = |words: &str| {
        let status = std::process::Command::new("ip").args(words.split(' ')).status();
        assert!(status.expect("this test needs ip (iproute2)").success(), "{words}");
    };
    ip("link set lo up");
    // Both links have the same addresses.
    for link in ["near", "far"] {
        ip(&format!("link add {link}0 type veth peer name {link}1"));
        for end in [0, 1] {
            ip(&format!("link set {link}{end} addrgenmode none up"));
            ip(&format!("-6 address add fe80::{}/64 dev {link}{end} nodad", end + 1));
        }
    }
    let there = tactus_sys::udp_input::interface("far1").expect("it was made");
    let to = SocketAddr::new("fe80::2".parse().expect("an address"), 5004);
    let wanted = InputOptions { to, source: None, interface: Some(there), buffer: 32 << 20 };
    let mut inbox = UdpInput::open(&wanted).expect("a port");
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    sample::write_ts(&dir.path().join("a.ts"), SECOND.times(3)).expect("a title");
    let channels = format!(
        "[[channel]]\nname = \"far\"\ntitle = \"/a.ts\"\nto = \"udp://{to}\"\n\
         interface = \"far0\"\n"
    );
    let fixture = fixture(dir.path(), Sendfile::Off, &channels);
    let _channels = fixture.begin();
    assert!(take(&mut inbox, 100).len() >= 100);
}
