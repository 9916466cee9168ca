//! Streams of sound: in step with their media clock, whatever becomes of a disk.

use std::net::SocketAddr;
use std::sync::Arc;

use tactus_core::datagrams::{Framing, Plan, Session, Sound};
use tactus_core::ports::SocketHandle;
use tactus_core::rtp;
use tactus_core::rtp::pcm::{Encoding, PacketTime, PcmFormat, samples};
use tactus_core::stagger::Tick;
use tactus_core::units::{Bytes, MILLISECOND, MonoTime, SECOND};
use tactus_engine::message::{Datagrams, Outcome, Output, Rate, StreamId};

use crate::fixture::{BOTH, Datagram, Fixture, TICK, TITLE, content};
use crate::{finished, retired};

const FORMAT: PcmFormat =
    PcmFormat { encoding: Encoding::L16, channels: 2, packet_time: PacketTime::Ms1 };
const ZERO: u32 = u32::MAX - 5;
/// Bytes of a packet, and of one sample of all channels.
const PACKET: usize = 192;
const FRAME: usize = 4;

fn start(fixture: &mut Fixture, title: i32, begin: Option<MonoTime>) -> StreamId {
    let pace = Some(Rate { rate: FORMAT.rate(), burst: Bytes(0), tick: Tick::Ms10 });
    let mut start = fixture.start_of(title, pace, 0..TITLE.0);
    let stream = start.stream;
    let session = Session { source: 7, sequence: 65_000, timestamp: ZERO };
    start.framing = Framing::Sound(Sound { session, format: FORMAT, width: 2 });
    start.output = Output::Datagrams(Datagrams::to(SocketHandle(70), to(stream)));
    start.plan = Some(Arc::new(Plan { begin, ..Plan::default() }));
    fixture.begin(start);
    stream
}

fn to(stream: StreamId) -> SocketAddr {
    SocketAddr::from(([239, 1, 1, stream.index as u8], 5004))
}

fn left(fixture: &Fixture, stream: StreamId) -> Vec<Datagram> {
    let network = fixture.network();
    let own = network.datagrams.iter().filter(|datagram| datagram.to == to(stream));
    own.cloned().collect()
}

/// Each packet has the samples of its timestamp, and leaves in the tick in which they are due.
/// Returns the first timestamp.
fn assert_in_step(datagrams: &[Datagram], title: i32) -> u32 {
    let first = rtp::Packet::read(&datagrams[0].bytes).expect("RTP").timestamp;
    for datagram in datagrams {
        let packet = rtp::Packet::read(&datagram.bytes).expect("RTP");
        let number = packet.timestamp.wrapping_sub(first) as usize;
        let bytes = content(title, (number * FRAME) as u64, PACKET as u64);
        let swapped: Vec<u8> = bytes.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect();
        let len = (TITLE.0 as usize - number * FRAME).min(PACKET);
        assert_eq!(packet.payload[..len], swapped[..len], "sample {number}");
        assert!(packet.payload.len() == PACKET && packet.payload[len..].iter().all(|&it| it == 0));
        let now = ZERO.wrapping_add(samples(datagram.at) as u32);
        assert!(now.wrapping_sub(packet.timestamp) <= 2 * 48 * TICK.0 as u32 / 1_000_000 + 10);
    }
    first
}

#[test]
fn sound_leaves_at_the_times_of_its_media_clock_to_the_last_sample() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let one = start(&mut fixture, 1, Some(MonoTime(9 * SECOND.0)));
        fixture.pass(MILLISECOND.times(300));
        let other = start(&mut fixture, 2, Some(MonoTime(9 * SECOND.0)));
        let late = start(&mut fixture, 3, None);
        fixture.pass(SECOND.times(18));
        let [one, other, late] = [(one, 1), (other, 2), (late, 3)].map(|(stream, title)| {
            let datagrams = left(&fixture, stream);
            assert_eq!(datagrams.len() as u64, TITLE.0.div_ceil(PACKET as u64));
            assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
            assert!(retired(&fixture, stream));
            (assert_in_step(&datagrams, title), datagrams[0].at)
        });
        assert_eq!(one, other, "they begin together");
        assert_eq!(one.0, ZERO.wrapping_add(9 * 48_000));
        assert_eq!(late.0.wrapping_sub(ZERO) % 48, 0);
        let counters = &fixture.control.counters;
        assert_eq!(counters.packets[0].underruns.value(), 0);
        assert_eq!(counters.blocks[0].leased.value(), 0);
    }
}

#[test]
fn what_a_slow_disk_has_not_brought_is_left_out_and_the_stream_stays_in_step() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let stream = start(&mut fixture, 1, None);
        fixture.pass(SECOND.times(2));
        fixture.disk().holds = true;
        fixture.pass(SECOND.times(3));
        fixture.disk().holds = false;
        fixture.pass(SECOND.times(13));
        let datagrams = left(&fixture, stream);
        assert_in_step(&datagrams, 1);
        let whole = TITLE.0.div_ceil(PACKET as u64) as usize;
        assert!((whole - 3000..whole - 1000).contains(&datagrams.len()), "{}", datagrams.len());
        let jumps = datagrams.windows(2).filter(|pair| {
            let [one, next] = [0, 1].map(|nth| rtp::Packet::read(&pair[nth].bytes).expect("RTP"));
            let numbers = u32::from(next.sequence.wrapping_sub(one.sequence));
            assert_eq!(next.timestamp.wrapping_sub(one.timestamp), 48 * numbers);
            numbers > 1
        });
        assert_eq!(jumps.count(), 1, "one gap");
        assert_eq!(fixture.control.counters.packets[0].underruns.value(), 1);
        assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
        assert!(retired(&fixture, stream));
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
    }
}
