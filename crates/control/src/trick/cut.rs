//! Datagrams of a trick play: packets grouped into datagrams.
//!
//! Promise: a datagram holds at most seven packets, which follow each other closely. It is due with
//! its first packet.

use std::collections::VecDeque;

use tactus_core::datagrams::{Framing, PAYLOAD, Session};
use tactus_core::generated::TimedDatagram;
use tactus_core::rtp::{self, Header};
use tactus_core::ts::PACKET;
use tactus_core::ts::trick::DuePacket;
use tactus_core::units::{BitRate, Bytes, MediaTime};

use super::nanos;
use super::trail::Trail;

pub(super) struct Cutter {
    framing: Framing,
    /// Packets further apart than this leave in separate datagrams.
    apart: MediaTime,
    pending: Vec<DuePacket>,
    ready: VecDeque<TimedDatagram>,
    /// Number of datagrams so far.
    count: u64,
    trail: Trail,
}

/// Packets in a datagram.
const EACH: usize = PAYLOAD.0 as usize / PACKET;

impl Cutter {
    /// Cuts a multiplex of `rate`, and records its counters in `trail`.
    pub(super) fn new(framing: Framing, rate: BitRate, trail: Trail) -> Self {
        let datagram = rate.time_for(Bytes(PAYLOAD.0));
        let apart = MediaTime((u128::from(datagram.0) * 27 / 1000) as u64);
        let (pending, ready) = (Vec::with_capacity(EACH), VecDeque::new());
        Self { framing, apart, pending, ready, count: 0, trail }
    }

    pub(super) fn add(&mut self, placed: DuePacket) {
        let is_far = self
            .pending
            .first()
            .is_some_and(|first| placed.due.0.saturating_sub(first.due.0) > self.apart.0);
        if is_far || self.pending.len() == EACH {
            self.flush();
        }
        self.pending.push(placed);
    }

    /// Completes the current datagram without waiting for further packets.
    pub(super) fn flush(&mut self) {
        let Some(first) = self.pending.first() else { return };
        let nth = self.count;
        // Wraps at its width.
        let ticks = (first.due.0 / 300) as u32;
        self.count += 1;
        let mut parts: Vec<&[u8]> = Vec::with_capacity(1 + EACH);
        let header;
        if let Framing::Rtp(Session { source, sequence, timestamp }) = self.framing {
            header = Header {
                // RFC 2250, section 2.1: a jump of the timestamp.
                marker: nth == 0,
                payload_type: rtp::MP2T,
                sequence: sequence.wrapping_add(nth as u16),
                timestamp: timestamp.wrapping_add(ticks),
                source,
            }
            .write();
            parts.push(&header);
        }
        parts.extend(self.pending.iter().map(|placed| &placed.bytes[..]));
        self.ready.push_back(TimedDatagram::of_parts(nanos(first.due), &parts));
        self.trail.add(ticks, self.pending.iter().map(|placed| &placed.bytes));
        self.pending.clear();
    }

    pub(super) fn next(&mut self) -> Option<TimedDatagram> {
        self.ready.pop_front()
    }
}
