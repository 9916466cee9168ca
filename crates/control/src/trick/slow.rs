//! Slow motion: all video frames at a lower speed.

use std::sync::Arc;

use tactus_core::generated::TimedDatagram;
use tactus_core::ts::trick::{Multiplex, Scale};
use tactus_core::ts::{Access, Index, PACKET, Packet};
use tactus_core::units::MediaTime;

use super::cut::Cutter;
use super::plan::ByteNeed;
use crate::generated::Packetizer;

pub(super) struct SlowPacketizer {
    multiplex: Multiplex,
    index: Arc<Index>,
    scale: Scale,
    begin: MediaTime,
    cutter: Cutter,
    /// Position of the next byte in the title.
    at: u64,
    incoming: Vec<u8>,
    /// Number of inspected bytes.
    used: usize,
    has_ended: bool,
}

/// Packets inspected before other tasks may run.
const TURN: usize = 256;
/// Step of the read plan, in media time of the title.
const STEP: u64 = 27_000_000 / 2;

/// The needs of a title, from `access` on.
pub(super) fn needs(index: &Index, access: &Access, scale: Scale) -> Vec<ByteNeed> {
    let begin = index.time_at(access.at).0;
    let mut from = access.at;
    let mut needs = vec![];
    for nth in 0.. {
        let to = index.position_at(MediaTime(begin + (nth + 1) * STEP)).min(index.len());
        // One step ahead, as the first bytes of a step are needed at its beginning.
        needs.push(ByteNeed {
            at: scale.shown(MediaTime(nth * STEP)),
            bytes: to.saturating_sub(from),
        });
        from = from.max(to);
        if to == index.len() {
            break;
        }
    }
    needs
}

impl SlowPacketizer {
    pub(super) fn new(
        multiplex: Multiplex,
        index: Arc<Index>,
        at: u64,
        scale: Scale,
        cutter: Cutter,
    ) -> Self {
        let begin = index.time_at(at);
        let incoming = vec![];
        Self { multiplex, index, scale, begin, cutter, at, incoming, used: 0, has_ended: false }
    }

    /// Inspects the next packets; false if there are none.
    fn build(&mut self) -> bool {
        let stride = self.index.stride();
        for _ in 0..TURN {
            let rest = &self.incoming[self.used..];
            // The last packet needs no successor.
            if rest.len() < if self.has_ended { PACKET } else { stride } {
                self.incoming.drain(..self.used);
                self.used = 0;
                if self.has_ended {
                    self.cutter.flush();
                }
                return false;
            }
            let step = match Packet::first_of(rest) {
                Some(packet) => {
                    let passed = self.index.time_at(self.at).0.saturating_sub(self.begin.0);
                    let clock = self.index.pcr_at(self.at);
                    let Self { multiplex, cutter, scale, .. } = self;
                    multiplex.stretch(&packet, *scale, MediaTime(passed), clock, |placed| {
                        cutter.add(placed);
                    });
                    stride.min(rest.len())
                }
                // Lost synchronisation: continue at the next byte that may begin a packet.
                None => 1,
            };
            self.used += step;
            self.at += step as u64;
        }
        true
    }
}

impl Packetizer for SlowPacketizer {
    fn push(&mut self, bytes: &[u8]) {
        if self.used > 0 {
            self.incoming.drain(..self.used);
            self.used = 0;
        }
        self.incoming.extend(bytes);
    }

    fn end(&mut self) {
        self.has_ended = true;
    }

    fn next(&mut self) -> Option<(usize, TimedDatagram)> {
        loop {
            if let Some(timed) = self.cutter.next() {
                return Some((0, timed));
            }
            if !self.build() {
                return self.cutter.next().map(|timed| (0, timed));
            }
        }
    }

    fn buffered(&self) -> usize {
        self.incoming.len() - self.used
    }
}
