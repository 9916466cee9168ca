//! Resynchronises a transport stream from the network: complete packets out, faults counted (TR 101
//! 290, 5.2).
//!
//! Promise: the output is packets of 188 bytes with sync byte, in order of arrival, with valid
//! adaptation fields and, for PAT and PMTs, valid sections. Everything else is dropped and counted.
//! Packets are not changed, and memory is bounded.
//!
//! Input need not be aligned to packets. Only plain packets are accepted: packets of 192 or 204
//! bytes never lock, as RFC 2250 sends neither over IP.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::sections::Sections;
use super::{Continuity, PACKET, PCR_BYTE, Packet, Pcr, Pid, SYNC};
use crate::units::{BitRate, MediaTime};

/// Sync bytes in a row that make a lock: TR 101 290 asks for five.
const LOCK: usize = 5;
/// Clocks that are followed; a stream over IP has one for each program.
const CLOCKS_MAX: usize = 16;
/// A larger distance of neighbouring PCRs is a jump, as in [`super::measure`].
const GAP_MAX: MediaTime = MediaTime(27_000_000);
/// The shortest span for a rate.
const SPAN_MIN: MediaTime = MediaTime(27_000_000);
/// A rate above 100 Gbit/s is a broken clock.
const RATE_MAX: u64 = 100_000_000_000;

/// The counters of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Delivered packets.
    pub packets: u64,
    /// Losses of sync.
    pub sync_losses: u64,
    /// Bytes outside of packets.
    pub skipped_bytes: u64,
    /// Packets dropped for an invalid adaptation field.
    pub malformed: u64,
    /// Packets dropped for an invalid section.
    pub bad_sections: u64,
    /// Packets with the transport error indicator.
    pub marked: u64,
    /// Continuity errors of all PIDs.
    pub gaps: u64,
    /// Jumps of a clock without the discontinuity indicator.
    pub clock_jumps: u64,
}

impl Counts {
    /// Each with its label value.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("packets", self.packets),
            ("sync_losses", self.sync_losses),
            ("skipped_bytes", self.skipped_bytes),
            ("malformed", self.malformed),
            ("bad_sections", self.bad_sections),
            ("marked", self.marked),
            ("continuity_gaps", self.gaps),
            ("clock_jumps", self.clock_jumps),
        ]
    }
}

/// The suitability of a packet for cutting.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Mark {
    /// A PAT begins in it.
    pub pat: bool,
    /// A random access point.
    pub random_access: bool,
}

/// One stream.
#[derive(Clone, Debug)]
pub struct Resync {
    locked: bool,
    /// Bytes of a partial packet, or too few for a lock.
    rest: Vec<u8>,
    watch: Watch,
}

/// Everything but the framing.
#[derive(Clone, Debug)]
struct Watch {
    continuity: Continuity,
    gaps: Box<[u32]>,
    sections: Sections,
    clocks: Vec<Clock>,
    rate: Option<BitRate>,
    counts: Counts,
}

/// One program's clock.
#[derive(Clone, Copy, Debug)]
struct Clock {
    pid: Pid,
    /// The last PCR, and bytes of the stream before it.
    last: Pcr,
    last_at: u64,
    /// The start of the measured span: its PCR, and bytes of the stream before.
    from: (Pcr, u64),
}

impl Default for Resync {
    fn default() -> Self {
        let watch = Watch {
            continuity: Continuity::default(),
            gaps: vec![0; Pid::COUNT].into_boxed_slice(),
            sections: Sections::default(),
            clocks: Vec::new(),
            rate: None,
            counts: Counts::default(),
        };
        Self { locked: false, rest: Vec::new(), watch }
    }
}

impl Resync {
    /// Takes the next bytes of the stream; `each` gets the packets that they complete.
    pub fn handle(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8; PACKET], Mark)) {
        if self.rest.is_empty() {
            let taken = self.walk(bytes, 0, &mut each);
            self.rest.extend(&bytes[taken..]);
        } else {
            let mut all = core::mem::take(&mut self.rest);
            let before = all.len();
            all.extend(bytes);
            let taken = self.walk(&all, before, &mut each);
            all.drain(..taken);
            self.rest = all;
        }
    }

    /// Whether `bytes` could be the beginning of a stream.
    pub fn looks_like_one(bytes: &[u8]) -> bool {
        bytes.len() >= PACKET && bytes.iter().step_by(PACKET).all(|&byte| byte == SYNC)
    }

    /// The counters.
    pub fn counts(&self) -> Counts {
        self.watch.counts
    }

    /// The continuity errors of each PID that has any.
    pub fn gaps(&self) -> impl Iterator<Item = (Pid, u32)> {
        let all = self.watch.gaps.iter().enumerate();
        all.filter(|(_, gaps)| **gaps > 0).map(|(pid, gaps)| (Pid(pid as u16), *gaps))
    }

    /// The rate by the PCR over the last second, rounded up; `None` before the first.
    pub fn rate(&self) -> Option<BitRate> {
        self.watch.rate
    }

    /// Takes packets from the start of `bytes`, of which `old` were carried over; returns the
    /// number of consumed bytes.
    fn walk(
        &mut self,
        bytes: &[u8],
        old: usize,
        each: &mut impl FnMut(&[u8; PACKET], Mark),
    ) -> usize {
        let mut at = 0;
        loop {
            if !self.locked {
                let from = at;
                at += lock(&bytes[at..]);
                self.watch.counts.skipped_bytes += (at - from) as u64;
                // One byte more than four packets, or not enough has come.
                if bytes.len() - at <= (LOCK - 1) * PACKET {
                    return at;
                }
                self.locked = true;
            }
            let Some(packet) = bytes[at..].first_chunk::<PACKET>() else { return at };
            // Joined from two datagrams, between which one may be missing.
            let joined = at < old && bytes.get(at + PACKET).is_some_and(|&next| next != SYNC);
            match Packet::read(packet) {
                Some(read) if !joined => {
                    if let Some(mark) = self.watch.handle_packet(&read) {
                        each(packet, mark);
                    }
                    at += PACKET;
                }
                _ => {
                    self.locked = false;
                    self.watch.counts.sync_losses += 1;
                    self.watch.counts.skipped_bytes += 1;
                    // This was no packet.
                    at += 1;
                }
            }
        }
    }
}

/// The offset of the first lock, or of a possible one.
fn lock(bytes: &[u8]) -> usize {
    let could = |at: usize| bytes[at..].iter().step_by(PACKET).take(LOCK).all(|&byte| byte == SYNC);
    (0..bytes.len()).find(|&at| could(at)).unwrap_or(bytes.len())
}

impl Watch {
    /// The mark of the packet; `None` if it is dropped.
    fn handle_packet(&mut self, packet: &Packet<'_>) -> Option<Mark> {
        if packet.has_error() {
            // None of its bits is reliable; the indicator stays visible in the recording.
            self.counts.marked += 1;
            self.counts.packets += 1;
            return Some(Mark::default());
        }
        if !packet.is_whole() {
            self.counts.malformed += 1;
            return None;
        }
        if let Some(fault) = self.continuity.handle_packet(packet) {
            let gaps = &mut self.gaps[usize::from(fault.pid.0)];
            *gaps = gaps.saturating_add(1);
            self.counts.gaps += 1;
            self.sections.handle_loss(fault.pid);
        }
        if self.sections.handle_packet(packet).is_err() {
            self.counts.bad_sections += 1;
            return None;
        }
        if let Some(pcr) = packet.pcr() {
            self.handle_pcr(packet, pcr);
        }
        self.counts.packets += 1;
        Some(Mark {
            pat: packet.pid() == Pid(0) && packet.starts_unit() && packet.has_payload(),
            random_access: packet.is_random_access(),
        })
    }

    fn handle_pcr(&mut self, packet: &Packet<'_>, pcr: Pcr) {
        let here = self.counts.packets * PACKET as u64 + PCR_BYTE;
        let clocks = self.clocks.len();
        let Some(clock) = self.clocks.iter_mut().find(|clock| clock.pid == packet.pid()) else {
            if clocks < CLOCKS_MAX {
                self.clocks.push(Clock {
                    pid: packet.pid(),
                    last: pcr,
                    last_at: here,
                    from: (pcr, here),
                });
            }
            return;
        };
        let announced = packet.is_discontinuous();
        let span = pcr.since(clock.last);
        if announced || span > GAP_MAX {
            // At the measured rate these bytes take that long: only PCRs were missing.
            let passed = self.rate.map_or(0, |rate| {
                let ticks = u128::from(here - clock.last_at) * 216_000_000 / u128::from(rate.0);
                u64::try_from(ticks).unwrap_or(u64::MAX)
            });
            let is_gap = passed.abs_diff(span.0) <= span.0 / 4;
            self.counts.clock_jumps += u64::from(!announced && !is_gap);
            clock.from = (pcr, here);
        }
        (clock.last, clock.last_at) = (pcr, here);
        let ticks = pcr.since(clock.from.0);
        if ticks >= SPAN_MIN {
            let bits = u128::from(here - clock.from.1) * 8 * 27_000_000;
            let rate = u64::try_from(bits.div_ceil(u128::from(ticks.0) + 1)).unwrap_or(u64::MAX);
            if (1..=RATE_MAX).contains(&rate) {
                self.rate = Some(BitRate(rate));
            }
            clock.from = (pcr, here);
        }
    }
}

#[cfg(test)]
mod tests;
