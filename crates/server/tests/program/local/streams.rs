//! Streams at a rate, into rings of shared memory.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tactus_client::{BitRate, Client, MonoTime, Nanos, SECOND, Stream, StreamOptions, now};
use tactus_core::local::stream::{TAKEN, WRITTEN};
use tactus_media::sample::{self, TS_RATE};

use super::*;

/// 2 MB/s: the title takes one and a half seconds.
const RATE: BitRate = BitRate(16_000_000);
/// The longest tick, and the slot in which a stream enters.
const TICK: Nanos = Nanos::from_millis(251);

fn at_rate(first: u64) -> StreamOptions {
    StreamOptions { first, rate: Some(RATE), ..StreamOptions::default() }
}

/// What a stream with this beginning may have sent by now at most: no byte is early.
fn allowed(begun: MonoTime, rate: BitRate, burst: u64) -> u64 {
    rate.bytes_in(now().since(begun) + TICK).0 + burst
}

/// Reads a stream to its end, in place. Returns its bytes.
fn read_all(stream: &mut Stream, begun: MonoTime, burst: u64) -> Vec<u8> {
    let mut all = vec![];
    while !stream.is_at_end() {
        let rate = stream.rate();
        let chunk = stream.wait(None).expect("bytes");
        all.extend_from_slice(chunk);
        let len = chunk.len();
        assert!(all.len() as u64 <= allowed(begun, rate, burst), "byte {} is early", all.len());
        stream.consume(len);
    }
    assert_eq!(stream.chunk().expect("the end").len(), 0);
    all
}

impl Served {
    /// Another title with the same bytes: one with two viewers at once would stay in memory.
    fn copy(&self, nth: usize) -> String {
        let name = format!("copy-{nth}.ts");
        fs::write(self.titles().join(&name), &self.bytes).expect("a title");
        name
    }

    /// The parts of all resources that are promised, summed: zero without streams.
    fn promised(&self) -> f64 {
        let text = self.metrics();
        let values = text.lines().filter(|line| line.starts_with("tactus_promised"));
        let values: Vec<f64> = values
            .map(|line| line.rsplit(' ').next().and_then(|value| value.parse().ok()))
            .collect::<Option<_>>()
            .expect("numbers");
        assert!(!values.is_empty(), "{text}");
        values.iter().sum()
    }

    pub(super) fn wait_until_nothing_is_promised(&self) {
        let until = Instant::now() + PATIENCE;
        while self.promised() > 0.0 || self.metric("tactus_streams") > 0 {
            assert!(Instant::now() < until, "a promise of {} is left", self.promised());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_stream_arrives_byte_for_byte_at_its_rate_and_never_early() {
    let _turn = turn();
    let served = serve();
    let client = Client::connect(&served.socket).expect("a connection");
    let title = client.open(TITLE).expect("a title");
    let begun = now();
    let mut stream = client.stream(&title, &at_rate(0)).expect("room");
    assert_eq!((stream.rate(), stream.position()), (RATE, 0));
    // The stream needs the title no more.
    drop(title);
    stream.wait(None).expect("bytes");
    assert_eq!(served.metric("tactus_streams"), 1);
    assert!(served.promised() > 0.0);
    assert!(read_all(&mut stream, begun, 0) == served.bytes);
    // The grant comes back at the end, not at the close.
    served.wait_until_nothing_is_promised();
    drop(stream);
    assert_eq!(served.metric("tactus_underruns_total"), 0);

    // By an event loop, with bytes left unread for a while, from the middle, with a burst.
    let title = client.open(TITLE).expect("a title");
    let (first, burst) = (1_000_003, 200_000);
    let options = StreamOptions { burst, ..at_rate(first) };
    let begun = now();
    let mut stream = client.stream(&title, &options).expect("room");
    let mut got = vec![];
    while !stream.is_at_end() {
        let len = stream.chunk().expect("bytes").len();
        // A chunk ends where the ring begins again.
        let seen = stream.seen();
        if seen < 100_000 && stream.position() + (seen as u64) < title.len() {
            if client.arm().expect("a server") {
                let mut fd = [PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)];
                let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
                assert!(poll(&mut fd, Some(&patience)).expect("a wait") > 0, "no ring");
                client.disarm();
            }
            continue;
        }
        got.extend_from_slice(&stream.chunk().expect("bytes")[..len]);
        stream.consume(len);
        assert!(got.len() as u64 <= allowed(begun, RATE, burst), "byte {} is early", got.len());
    }
    assert!(got == served.bytes[first as usize..]);
    drop((stream, title, client));
    served.wait_until_nobody_is_left();
    served.wait_until_nothing_is_promised();
}

#[test]
fn a_title_is_streamed_at_its_own_rate_and_seeks_keep_one_place() {
    let _turn = turn();
    let served = serve();
    let clip = served.titles().join("clip.ts");
    sample::write_ts(&clip, SECOND.times(12)).expect("a clip");
    let bytes = fs::read(&clip).expect("a clip");
    let client = Client::connect(&served.socket).expect("a connection");
    let title = client.open("clip.ts").expect("a title");
    let begun = now();
    let mut stream = client.stream(&title, &StreamOptions::default()).expect("room");
    let off = stream.rate().0.abs_diff(TS_RATE.0);
    assert!(off < TS_RATE.0 / 100, "{} and not {TS_RATE}", stream.rate());
    let mut copy = vec![0; 400_000];
    for first in [0, 3_000_001, 188, 188, 4_000_000] {
        if first > 0 {
            stream.seek(first).expect("its own place");
        }
        assert_eq!(stream.position(), first);
        let mut done = 0;
        while done < copy.len() {
            done += stream.read(&mut copy[done..]).expect("bytes");
        }
        assert!(copy == bytes[first as usize..][..copy.len()], "from {first}");
        assert_eq!(served.metric("tactus_streams"), 1);
    }
    assert_eq!(stream.seek(title.len()).expect_err("behind the end").errno(), 22);
    // It goes on where it was, and begins again from its end.
    let rest = 12_000;
    stream.seek(title.len() - rest).expect("its own place");
    assert!(read_all(&mut stream, begun, 0) == bytes[bytes.len() - rest as usize..]);
    served.wait_until_nothing_is_promised();
    stream.seek(title.len() - rest).expect("room");
    assert!(read_all(&mut stream, begun, rest) == bytes[bytes.len() - rest as usize..]);
    served.wait_until_nothing_is_promised();
}

#[test]
fn a_stream_without_room_is_refused_with_its_reason() {
    let _turn = turn();
    let served = serve();
    let client = Client::connect(&served.socket).expect("a connection");
    let title = client.open(TITLE).expect("a title");
    let refused = |options: StreamOptions| {
        let refused = client.stream(&title, &options).expect_err("it cannot be");
        (refused.errno(), refused.to_string())
    };
    let without_rate = StreamOptions::default();
    let much = Some(BitRate(20_000_000_000));
    assert_eq!(refused(without_rate).0, 22, "no rate is known");
    assert_eq!(refused(at_rate(3_000_001)).0, 22, "behind the end");
    assert_eq!(refused(StreamOptions { rate: Some(BitRate(1)), ..without_rate }).0, 22);
    assert_eq!(refused(StreamOptions { room: 4096, ..at_rate(0) }).0, 22, "less than two ticks");
    assert_eq!(refused(StreamOptions { room: 1 << 40, ..at_rate(0) }).0, 28);
    assert_eq!(refused(StreamOptions { burst: u64::MAX, ..at_rate(0) }).0, 22);
    let (errno, reason) = refused(StreamOptions { rate: much, room: 60 << 20, ..without_rate });
    assert!([16, 28].contains(&errno) && reason.contains("no room for a stream of"), "{reason}");
    assert_eq!(served.promised(), 0.0);

    // As many as there is room for, and no more.
    // Their rings are too small for the title, so each of them goes on until it is read.
    let rate = Some(BitRate(1_000_000_000));
    let options = StreamOptions { rate, room: 2_600_000, ..without_rate };
    let mut streams = vec![];
    let refused = loop {
        let title = client.open(&served.copy(streams.len())).expect("a title");
        match client.stream(&title, &options) {
            Ok(stream) => streams.push(stream),
            Err(refused) => break refused,
        }
        assert!(streams.len() < 64, "nothing is ever full");
    };
    assert!([16, 28].contains(&refused.errno()), "{refused}");
    assert!(refused.message().contains("no room for a stream of 1 Gbit/s"), "{refused}");
    assert_eq!(client.stream(&title, &options).expect_err("still full").errno(), refused.errno());
    drop(streams);
    served.wait_until_nothing_is_promised();
    let mut stream = client.stream(&title, &options).expect("room again");
    assert!(read_all(&mut stream, now(), 3_000_001) == served.bytes);
}

#[test]
fn a_reader_that_stalls_is_ended_after_a_while_and_harms_no_other() {
    let _turn = turn();
    let served = serve_with(DISK_MODEL, "[slow_reader]\nbehind_max = \"1 s\"\n");
    let client = Client::connect(&served.socket).expect("a connection");
    let title = client.open(TITLE).expect("a title");
    let mut stalled = client.stream(&title, &at_rate(0)).expect("room");
    let begun = now();
    let copy = client.open(&served.copy(0)).expect("a title");
    let mut other = client.stream(&copy, &at_rate(0)).expect("room");
    assert!(read_all(&mut other, begun, 0) == served.bytes);
    // What has come is still there, then its end is told.
    let until = Instant::now() + PATIENCE;
    while served.metric("tactus_streams_ended_total{outcome=\"too_slow\"}") == 0 {
        assert!(Instant::now() < until, "it is waited for without end");
        std::thread::sleep(Duration::from_millis(10));
    }
    let chunk = stalled.chunk().expect("bytes");
    assert!(!chunk.is_empty() && *chunk == served.bytes[..chunk.len()]);
    let len = chunk.len();
    stalled.consume(len);
    let ended = loop {
        match stalled.chunk().map(<[u8]>::len) {
            Ok(0) => panic!("it is not complete"),
            Ok(len) => stalled.consume(len),
            Err(error) => break error,
        }
    };
    assert_eq!(ended.errno(), 110, "{ended}");
    served.wait_until_nothing_is_promised();
    // It can go on by a seek.
    let position = stalled.position();
    stalled.seek(position).expect("room");
    assert!(read_all(&mut stalled, now(), 3_000_001) == served.bytes[position as usize..]);
    assert_eq!(served.metric("tactus_underruns_total"), 0);
}

#[test]
fn a_program_that_lies_about_its_ring_ends_only_itself() {
    let _turn = turn();
    let served = serve();
    let client = Client::connect(&served.socket).expect("a connection");
    let title = client.open(TITLE).expect("a title");
    let begun = now();
    let mut honest = client.stream(&title, &at_rate(0)).expect("room");
    for (nth, lie) in [u64::MAX, 1 << 40, 3_000_002].into_iter().enumerate() {
        let liar = Raw::connect(&served.socket);
        let handle = liar.open(&served.copy(nth));
        let (_, mut ring) = liar.stream(handle, 0, RATE.0);
        ring.copy_in(TAKEN as u64, &lie.to_le_bytes());
        // What it writes into the server's words is never read.
        ring.copy_in(WRITTEN as u64, &7_u64.to_le_bytes());
        assert!(liar.is_cut(), "{lie}");
    }
    assert!(read_all(&mut honest, begun, 0) == served.bytes);
    drop((honest, title, client));
    served.wait_until_nobody_is_left();
    served.wait_until_nothing_is_promised();
}

#[test]
fn programs_that_die_in_the_middle_of_streams_leave_nothing_behind() {
    let _turn = turn();
    let served = serve();
    let other = Client::connect(&served.socket).expect("a connection");
    let before = served.left();
    let mut copies = 0;
    for turn in 0..20_u64 {
        // As if it were killed: its sockets close, and it ends no stream by a message.
        let client = Raw::connect(&served.socket);
        let streams: Vec<_> = (0..turn % 4)
            .map(|nth| {
                copies += 1;
                let handle = client.open(&served.copy(copies));
                client.stream(handle, nth * 700_000, RATE.0).0
            })
            .collect();
        std::thread::sleep(Duration::from_millis(turn % 7));
        if turn % 3 == 0
            && let Some(&stream) = streams.first()
        {
            let sought = client.ask(&Message::Seek { stream, first: 5 });
            assert!(matches!(sought, Reply::Sought { .. }), "{sought:?}");
        }
        drop(client);
    }
    served.wait_until_nothing_is_promised();
    let until = Instant::now() + PATIENCE;
    let is_back = |(files, maps)| files <= before.0 && maps <= before.1;
    while served.metric("tactus_local_clients") > 1 || !is_back(served.left()) {
        assert!(Instant::now() < until, "{:?} and not {before:?}", served.left());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(other.list("/news").expect("it is served as before").len(), 1);
}
