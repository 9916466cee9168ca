//! By when the bytes of a title are needed: the decoding times of its frames.
//!
//! Promise: whoever has all bytes before a deadline's byte at the deadline's time has each frame of
//! the clock's program when it is decoded. Deadlines ascend in bytes and times. There are at most
//! [`DEADLINES_MAX`], and a merged one is early, never late. Each packet takes constant time on
//! average, whatever its times are.
//!
//! Only those bytes count that no later byte with an earlier deadline covers: frames of several
//! streams are interleaved, and bytes arrive in order. A stack of deadlines has them: a new one
//! removes all that are not before it.

use alloc::vec::Vec;

use super::super::{Packet, Pcr, Pid, Pts, pes_times};
use super::moved;
use super::tables::Program;
use super::video::Codec;
use crate::units::MediaTime;

/// The bytes before `at` are needed at `time`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Deadline {
    pub(super) at: u64,
    pub(super) time: u64,
}

/// Finds the deadlines of a title.
#[derive(Clone, Debug)]
pub(super) struct DeadlineBuilder {
    streams: Vec<Stream>,
    /// By the ends of packets.
    ends: Staircase,
    /// By the beginnings of frames: the earliest time of all frames that begin there or later.
    begins: Staircase,
}

/// A stream of the followed program, and its current PES packet.
#[derive(Clone, Copy, Debug)]
struct Stream {
    pid: Pid,
    /// Video or audio. Times of other data are often wrong.
    is_media: bool,
    unit: Unit,
}

/// When a PES packet is needed.
#[derive(Clone, Copy, Debug)]
enum Unit {
    /// Never: nothing has begun, or it has sections and no frames.
    Never,
    /// At this time stamp, once there is a clock. It began at this byte.
    Stamped(u64, Pts),
    /// At this time of the title.
    Needed(u64),
    /// It has no usable time stamp. By the clock each of its packets is due before it is decoded.
    Clocked,
}

#[derive(Clone, Debug)]
struct Staircase {
    steps: Vec<Deadline>,
    /// Steps within this time are merged; 0 for none.
    merged: u64,
    /// A merged step has the time of its last one instead of that of its first one.
    is_late: bool,
}

/// Deadlines of a title; with more, neighbours are merged. Three hours of a frame each 40 ms.
pub(super) const DEADLINES_MAX: usize = 1 << 18;
/// Deadlines are whole ticks of 90 kHz, rounded down.
pub(super) const TICK: u64 = 300;
/// What is merged first: half a frame.
const MERGED_MIN: u64 = 27_000_000 / 50;

impl Default for DeadlineBuilder {
    fn default() -> Self {
        let stairs = |is_late| Staircase { steps: Vec::new(), merged: 0, is_late };
        Self { streams: Vec::new(), ends: stairs(false), begins: stairs(true) }
    }
}

impl DeadlineBuilder {
    /// The streams of this program count from now on.
    pub(super) fn follow(&mut self, program: &Program) {
        let before = core::mem::take(&mut self.streams);
        self.streams.extend(program.streams.iter().map(|stream| {
            let known = before.iter().find(|known| known.pid == stream.pid);
            let unit = known.map_or(Unit::Never, |known| known.unit);
            Stream { pid: stream.pid, is_media: Codec::of(stream.kind).is_some(), unit }
        }));
    }

    /// Takes the next packet, which begins at byte `at`. `clock` is the last sample of the clock.
    pub(super) fn handle_packet(
        &mut self,
        at: u64,
        packet: &Packet<'_>,
        clock: Option<(MediaTime, Pcr)>,
    ) {
        if !packet.has_payload() {
            return;
        }
        let pid = packet.pid();
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.pid == pid) else { return };
        if packet.starts_unit() {
            stream.unit = match pes_times(packet) {
                _ if packet.is_scrambled() => Unit::Clocked,
                Some(times) => Unit::Stamped(at, times.decoded),
                None if packet.payload().starts_with(&[0, 0, 1]) => Unit::Clocked,
                None => Unit::Never,
            };
        }
        let Some((now, pcr)) = clock else { return };
        if let Unit::Stamped(begin, stamp) = stream.unit {
            stream.unit = match moved(now, pcr, stamp) {
                Some(time) => {
                    let time = if stream.is_media { time } else { time.max(now) };
                    self.begins.add(Deadline { at: begin, time: time.0 });
                    Unit::Needed(time.0)
                }
                None => Unit::Clocked,
            };
        }
        let time = match stream.unit {
            Unit::Needed(time) => time,
            Unit::Clocked => now.0,
            Unit::Never | Unit::Stamped(..) => return,
        };
        self.ends.add(Deadline { at: at + super::PACKET as u64, time });
    }

    /// The deadlines of a title whose clock began at `lead`, and the earliest time of the frames
    /// that begin at each of the bytes `begins` (ascending) or later. None of either if no frame
    /// has a time stamp.
    pub(super) fn finish(
        self,
        lead: MediaTime,
        begins: impl Iterator<Item = u64>,
    ) -> (Vec<Deadline>, Vec<MediaTime>) {
        if self.begins.steps.is_empty() {
            return (Vec::new(), begins.map(|_| MediaTime(0)).collect());
        }
        let whole = |time: u64| time.saturating_add(lead.0) / TICK * TICK;
        let mut steps = self.ends.steps;
        for step in &mut steps {
            step.time = whole(step.time);
        }
        // Times less than a tick apart have become the same.
        steps.dedup_by(|next, kept| {
            let is_same = next.time == kept.time;
            if is_same {
                kept.at = next.at;
            }
            is_same
        });
        let first = self.begins.steps;
        let earliest = begins.map(|begin| {
            let nth = first.partition_point(|step| step.at < begin);
            MediaTime(first.get(nth).or(first.last()).map_or(0, |step| whole(step.time)))
        });
        (steps, earliest.collect())
    }
}

impl Staircase {
    fn add(&mut self, step: Deadline) {
        while self.steps.last().is_some_and(|last| last.time >= step.time) {
            self.steps.pop();
        }
        self.steps.push(step);
        if self.steps.len() == DEADLINES_MAX {
            // The steps since the last merging may suffice.
            self.merged = self.merged.max(MERGED_MIN);
            self.merge();
            while self.steps.len() > DEADLINES_MAX / 4 * 3 {
                self.merged *= 2;
                self.merge();
            }
        }
    }

    fn merge(&mut self) {
        let (merged, is_late) = (self.merged, self.is_late);
        let mut first = self.steps.first().map_or(0, |step| step.time);
        self.steps.dedup_by(|next, kept| {
            let is_one = next.time - first < merged;
            if is_one {
                kept.at = next.at;
                if is_late {
                    kept.time = next.time;
                }
            } else {
                first = next.time;
            }
            is_one
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::packet::tests::packet;
    use super::super::super::{PACKET, map_pes_times};
    use super::super::tables;
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 27_000_000;

    /// A program of one video stream (PID 256) and one of unknown data (PID 257).
    fn builder() -> DeadlineBuilder {
        let stream = |pid, kind| tables::Stream { pid: Pid(pid), kind };
        let streams = alloc::vec![stream(256, 0x1b), stream(257, 0x06)];
        let program = Program { number: 1, table: Pid(32), clock: Pid(256), streams };
        let mut builder = DeadlineBuilder::default();
        builder.follow(&program);
        builder
    }

    /// A packet of `pid`, in which a PES packet with these times of 90 kHz begins.
    fn begun(pid: u16, shown: u64, decoded: Option<u64>) -> [u8; PACKET] {
        let mut bytes = packet(pid, 0, None);
        bytes[1] |= 0x40;
        let flags = if decoded.is_some() { 0xc0 } else { 0x80 };
        let head = [0, 0, 1, 0xe0, 0, 0, 0x80, flags, 10, 0x21, 0, 1, 0, 1, 0x11, 0, 1, 0, 3];
        bytes[4..4 + head.len()].copy_from_slice(&head);
        // The first of these times is 0, the second one 1.
        assert!(map_pes_times(&mut bytes, |time| {
            Pts::at(if time == Pts::at(0) { shown } else { decoded.unwrap_or(0) })
        }));
        bytes
    }

    fn found(builder: DeadlineBuilder) -> Vec<(u64, u64)> {
        let (steps, _) = builder.finish(MediaTime(0), core::iter::empty());
        steps.iter().map(|step| (step.at / PACKET as u64, step.time / TICK)).collect()
    }

    fn add(builder: &mut DeadlineBuilder, nth: u64, bytes: &[u8; PACKET], now: u64, pcr: Pcr) {
        let packet = Packet::read(bytes).unwrap();
        builder.handle_packet(nth * PACKET as u64, &packet, Some((MediaTime(now), pcr)));
    }

    #[test]
    fn frames_are_needed_when_they_are_decoded_and_those_without_a_decoding_time_when_shown() {
        let mut builder = builder();
        let pcr = Pcr::at(MediaTime(0));
        add(&mut builder, 0, &begun(256, 9000, Some(5000)), 0, pcr);
        add(&mut builder, 1, &packet(256, 1, None), 0, pcr);
        add(&mut builder, 2, &begun(256, 8000, None), 0, pcr);
        // Another program's, and bytes without a frame.
        add(&mut builder, 3, &begun(300, 1, None), 0, pcr);
        add(&mut builder, 4, &packet(257, 0, None), 0, pcr);
        assert_eq!(found(builder), [(2, 5000), (3, 8000)]);
    }

    #[test]
    fn a_frame_covers_the_bytes_before_it_that_are_needed_later() {
        let mut builder = builder();
        let pcr = Pcr::at(MediaTime(0));
        add(&mut builder, 0, &begun(256, 9000, None), 0, pcr);
        add(&mut builder, 1, &begun(256, 9500, None), 0, pcr);
        add(&mut builder, 2, &begun(257, 7000, None), 0, pcr);
        assert_eq!(found(builder), [(3, 7000)]);
    }

    #[test]
    fn times_that_wrap_are_differences() {
        let mut builder = builder();
        // The clock of the title began a second before it wraps.
        let before = |ticks: u64| Pcr::at(MediaTime(Pcr::WRAP.0 - ticks));
        let wrap = Pcr::WRAP.0 / TICK;
        add(&mut builder, 0, &begun(256, wrap - 45_000, None), 0, before(SECOND));
        add(&mut builder, 1, &begun(256, 9000, None), SECOND / 2, before(SECOND / 2));
        assert_eq!(found(builder), [(1, 45_000), (2, 99_000)]);
    }

    #[test]
    fn times_of_another_clock_and_scrambled_frames_are_needed_by_the_clock() {
        let mut builder = builder();
        let pcr = Pcr::at(MediaTime(0));
        add(&mut builder, 0, &begun(256, 3000, None), 0, pcr);
        add(&mut builder, 1, &begun(256, 60 * 90_000, None), 4000 * TICK, pcr);
        let mut scrambled = begun(256, 9000, None);
        scrambled[3] |= 0x80;
        add(&mut builder, 2, &scrambled, 5000 * TICK, pcr);
        // Data that claims to be needed before it can have come.
        add(&mut builder, 3, &begun(257, 0, None), 6000 * TICK, Pcr::at(MediaTime(6000 * TICK)));
        assert_eq!(found(builder), [(1, 3000), (2, 4000), (3, 5000), (4, 6000)]);
    }

    #[test]
    fn the_number_of_deadlines_is_bounded_and_a_merged_one_is_early() {
        let mut ends = DeadlineBuilder::default().ends;
        let count = 3 * DEADLINES_MAX as u64;
        for nth in 0..count {
            ends.add(Deadline { at: nth + 1, time: nth * SECOND / 50 });
            assert!(ends.steps.len() < DEADLINES_MAX);
        }
        let is_early = |step: &Deadline| step.time <= (step.at - 1) * SECOND / 50;
        assert!(ends.steps.iter().all(is_early));
        assert_eq!(ends.steps.last().map(|step| step.at), Some(count));
        let apart = ends.steps.windows(2).map(|pair| pair[1].at - pair[0].at).max();
        assert!(apart <= Some(8), "{apart:?}");
    }

    proptest! {
        #[test]
        fn each_byte_has_the_earliest_time_of_all_that_need_it(
            times in prop::collection::vec(0u64..1000, 1..200),
        ) {
            let mut ends = DeadlineBuilder::default().ends;
            for (nth, &time) in times.iter().enumerate() {
                ends.add(Deadline { at: nth as u64 + 1, time });
            }
            for nth in 0..times.len() {
                let step = ends.steps.iter().find(|step| step.at > nth as u64).unwrap();
                prop_assert_eq!(Some(step.time), times[nth..].iter().copied().min());
            }
        }
    }
}
