//! Deliveries whose parts do not fit together.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tactus_core::block_list::BlockList;
use tactus_core::datagrams::{Framing, Plan, Session, Sound};
use tactus_core::ports::SocketHandle;
use tactus_core::rtp::pcm::{Encoding, PacketTime, PcmFormat};
use tactus_core::units::{BitRate, Bytes, MonoTime};
use tactus_engine::message::{
    Backpressure, Blocks, Chunks, Connection, Datagrams, Delivery, Extent, Mismatch, Output,
    Schedule,
};

use crate::BY_THE_CLOCK;
use crate::fixture::{BLOCK, BOTH, Fixture, TITLE};

const DATAGRAMS: Output = Output::Datagrams(Datagrams::to(
    SocketHandle(2),
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(239, 1, 1, 1)), 5004),
));

fn sound() -> Framing {
    let session = Session { source: 1, sequence: 2, timestamp: 3 };
    let (encoding, packet_time) = (Encoding::L24, PacketTime::Ms1);
    let format = PcmFormat { encoding, channels: 2, packet_time };
    Framing::Sound(Sound { session, format, width: 3 })
}

#[test]
fn a_delivery_whose_parts_do_not_fit_together_is_refused_with_the_reason() {
    let origin = Fixture::new(BOTH[0]).start_of(1, BY_THE_CLOCK, 0..TITLE.0).origin;
    let rate = BY_THE_CLOCK.expect("a rate");
    let whole = Extent::Range(Bytes(0)..TITLE);
    let list = BlockList::new([0, 2].into(), TITLE, Bytes(u64::from(BLOCK)));
    let list = Extent::List(list.expect("the title has them"));
    let rtp = Framing::Rtp(Session { source: 1, sequence: 2, timestamp: 3 });
    let times = Schedule::Plan(rate, Arc::new(Plan::default()));
    let plan = Plan { front: [0x47; 188].into(), ..Plan::default() };
    let plan = Schedule::Plan(rate, Arc::new(plan));
    let clock = Schedule::ByteClock(rate);
    let connection = Connection::of(SocketHandle(1));
    let client = &Output::Connection(connection.clone());
    let waiting = Connection { backpressure: Backpressure::Wait, ..connection };
    let (reader, datagrams) = (&Output::Connection(waiting), &DATAGRAMS);
    let check = |extent: &Extent, framing, schedule: &Schedule, output: &Output| {
        let output = output.clone();
        let blocks = Blocks { origin: origin.clone(), extent: extent.clone(), window: 4 };
        Delivery::of_blocks(blocks, framing, schedule.clone(), output).map(|_| ())
    };
    let best_effort = Schedule::BestEffort;
    let cases = [
        (&whole, Framing::Plain, &best_effort, datagrams, Mismatch::DatagramsWithoutRate),
        (&list, Framing::Plain, &best_effort, client, Mismatch::ListWithoutRate),
        (&whole, rtp, &best_effort, client, Mismatch::RtpWithoutRate),
        (&list, rtp, &clock, datagrams, Mismatch::ListAsDatagrams),
        (&whole, Framing::Plain, &plan, client, Mismatch::PlanWithoutRtp),
        (&whole, rtp, &clock, reader, Mismatch::RtpToReader),
        (&whole, Framing::Chunked, &clock, client, Mismatch::ChunkedBlocks),
        (&whole, sound(), &clock, client, Mismatch::SoundInConnection),
    ];
    for (extent, framing, schedule, output, mismatch) in cases {
        assert_eq!(check(extent, framing, schedule, output), Err(mismatch));
    }
    for (extent, framing, schedule, output) in [
        (&whole, Framing::Plain, &best_effort, client),
        (&list, Framing::Plain, &clock, reader),
        (&whole, rtp, &plan, client),
        (&whole, Framing::Plain, &times, client),
        (&whole, Framing::Plain, &plan, datagrams),
        (&whole, sound(), &plan, datagrams),
    ] {
        assert_eq!(check(extent, framing, schedule, output), Ok(()));
    }
}

#[test]
fn generated_chunks_have_their_rtp_headers_already_and_http_chunks_are_for_connections() {
    let rtp = Framing::Rtp(Session { source: 1, sequence: 2, timestamp: 3 });
    let chunks = |framing| {
        let ring = tactus_ring::spsc::ring(1).1;
        Chunks { ring, begin: MonoTime(0), rate: BitRate(1), framing }
    };
    let client = &Output::Connection(Connection::of(SocketHandle(1)));
    let check =
        |framing, output: &Output| Delivery::of_chunks(chunks(framing), output.clone()).map(|_| ());
    assert_eq!(check(rtp, client), Err(Mismatch::ChunksAsRtp));
    assert_eq!(check(sound(), &DATAGRAMS), Err(Mismatch::ChunksAsRtp));
    assert_eq!(check(Framing::Chunked, &DATAGRAMS), Err(Mismatch::ChunkedDatagrams));
    for (framing, output) in
        [(Framing::Plain, client), (Framing::Plain, &DATAGRAMS), (Framing::Chunked, client)]
    {
        assert_eq!(check(framing, output), Ok(()));
    }
}
