//! Several packet servers: each sends its own streams, as one would send them all.

use std::net::SocketAddr;

use tactus_core::datagrams::{Framing, Session};
use tactus_core::ports::SocketHandle;
use tactus_core::rtp;
use tactus_core::units::SECOND;
use tactus_engine::message::{Datagrams, Outcome, Output, PacketServerId, StreamId};

use crate::fixture::{BOTH, Fixture, TITLE, content};
use crate::{BY_THE_CLOCK, finished, retired};

const SESSION: Session = Session { source: 7, sequence: 9, timestamp: 11 };

fn to(stream: StreamId) -> SocketAddr {
    SocketAddr::from(([239, 3, 3, stream.index as u8], 5004))
}

/// Starts title 3 by a packet server, from a UDP output that all share.
fn start(fixture: &mut Fixture, server: u16, after: Option<StreamId>) -> StreamId {
    let mut parts = fixture.start_of(3, BY_THE_CLOCK, 0..TITLE.0);
    parts.framing = Framing::Rtp(SESSION);
    let (server, own) = (PacketServerId(server), parts.stream);
    let output = Datagrams::to(SocketHandle(70), to(after.unwrap_or(own)));
    parts.output = Output::Datagrams(Datagrams { server, after, ..output });
    fixture.begin(parts)
}

/// The sequence number and payload of each datagram to the receivers of a stream.
fn received(fixture: &Fixture, stream: StreamId) -> Vec<(u16, Vec<u8>)> {
    let network = fixture.network();
    let own = network.datagrams.iter().filter(|datagram| datagram.to == to(stream));
    let packet = |bytes: &[u8]| {
        let packet = rtp::Packet::read(bytes).expect("RTP");
        (packet.sequence, packet.payload.to_vec())
    };
    own.map(|datagram| packet(&datagram.bytes)).collect()
}

#[test]
fn each_packet_server_sends_its_own_streams_at_their_rates() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let streams: Vec<_> = (0..4).map(|nth| start(&mut fixture, nth % 2, None)).collect();
        fixture.pass(SECOND.times(11));
        for &stream in &streams {
            let payload: Vec<u8> =
                received(&fixture, stream).into_iter().flat_map(|(_, payload)| payload).collect();
            assert_eq!(payload, content(3, 0, TITLE.0));
            assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
            assert!(retired(&fixture, stream));
        }
        for server in &fixture.control.counters.packets {
            assert_eq!(server.bytes.value(), 2 * TITLE.0);
            assert_eq!(server.underruns.value(), 0);
        }
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
    }
}

#[test]
fn a_stream_follows_another_one_at_any_packet_server() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let first = start(&mut fixture, 1, None);
        fixture.pass(SECOND);
        let second = start(&mut fixture, 1, Some(first));
        fixture.pass(SECOND.times(22));
        let both = received(&fixture, first);
        let numbers = (0..).map(|nth| SESSION.sequence.wrapping_add(nth));
        assert!(both.iter().map(|(sequence, _)| *sequence).eq(numbers.take(both.len())));
        let payload: Vec<u8> = both.into_iter().flat_map(|(_, payload)| payload).collect();
        assert_eq!(payload, [content(3, 0, TITLE.0), content(3, 0, TITLE.0)].concat());
        assert_eq!(finished(&fixture, second), Some((Outcome::Complete, TITLE)));
        assert_eq!(fixture.control.counters.packets[0].bytes.value(), 0);
    }
}
