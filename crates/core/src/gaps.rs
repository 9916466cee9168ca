//! Gap frames: the start of each frame on the wire, if the link itself keeps the time.
//!
//! A link that always sends is a clock: its frames leave at its rate, so a frame's time follows
//! from the number of bytes before it. This module calculates the length of the frames that fill
//! the time between two others, and the progress of the wire from its reports of sent bytes.
//!
//! Promise: no frame begins on the wire before it is due. None begins later than a shortest frame
//! after it is due or the wire is free, while the wire keeps its rate. If the wire does not, the
//! calculation follows it: the bytes in flight never exceed the requested amount. This module knows
//! no devices. The argument: `docs/design/gap-frames.md`.

use crate::units::{BitRate, MonoTime, Nanos, SECOND};

/// The framing of a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireFraming {
    /// Bits per second, with all overhead.
    pub rate: BitRate,
    /// Overhead of a frame on the wire: on an Ethernet its checksum, preamble and gap, 24 bytes.
    pub overhead: u32,
    /// The shortest frame as it is handed over: 60 bytes; shorter ones are padded.
    pub frame_min: u32,
    /// The longest: header and MTU.
    pub frame_max: u32,
}

impl WireFraming {
    /// Bytes on the wire of a frame of `len`.
    pub const fn wire(&self, len: u32) -> u64 {
        let len = if len < self.frame_min { self.frame_min } else { len };
        (len + self.overhead) as u64
    }

    const fn fills_any_gap(&self) -> bool {
        let halves = 2 * (self.frame_min + self.overhead) <= self.frame_max + self.overhead;
        halves && self.frame_min > 0
    }

    /// Duration of this number of bytes. Rounds up.
    fn span(&self, bytes: u64) -> Nanos {
        Nanos((u128::from(bytes) * BYTE).div_ceil(u128::from(self.rate.0)) as u64)
    }
}

/// Bits per second times nanoseconds in a byte.
const BYTE: u128 = 8_000_000_000;

/// The frames laid onto one wire.
#[derive(Clone, Copy, Debug)]
pub struct Timeline {
    framing: WireFraming,
    /// When place 0 began, by the wire's reports so far.
    anchor: MonoTime,
    /// The place where the next frame begins.
    laid: u64,
    /// The place of the first byte that was ever laid, as if the wire had never run empty since.
    first: i64,
    /// The place from which on reports of sent bytes improve the anchor.
    valid_from: u64,
    /// Sum of all delays of the wire behind its rate.
    lost: Nanos,
}

/// The progress of a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Laid bytes that have been sent, without those left empty.
    pub sent: u64,
    /// Bytes of the frame behind them, which is being sent; zero if there is none.
    pub under_way: u64,
}

/// Divisor of the correction: each look applies this part of the apparent delay. Network cards
/// report frames in groups, tens of microseconds late.
const PART: u64 = 16;
/// A wire that is later than this has stalled, and the whole delay is applied at once.
const STOOD_STILL: Nanos = Nanos::from_millis(1);

impl Timeline {
    /// A wire that is free at `now`.
    ///
    /// # Panics
    /// If two shortest frames are longer than a longest one.
    pub fn new(framing: WireFraming, now: MonoTime) -> Self {
        assert!(framing.fills_any_gap(), "any gap of a shortest frame or more can be filled");
        Self { framing, anchor: now, laid: 0, first: 0, valid_from: 0, lost: Nanos(0) }
    }

    /// Limits new frames to `frame_max`; laid frames do not change.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn set_frame_max(&mut self, frame_max: u32) {
        self.framing.frame_max = frame_max;
        assert!(self.framing.fills_any_gap(), "any gap of a shortest frame or more can be filled");
    }

    /// The wire's framing.
    pub const fn framing(&self) -> &WireFraming {
        &self.framing
    }

    /// Bytes that have been laid, without those left empty.
    pub const fn laid(&self) -> u64 {
        self.laid.wrapping_add_signed(-self.first)
    }

    /// Sum of all delays of the wire behind its rate.
    pub const fn lost(&self) -> Nanos {
        self.lost
    }

    /// Notes the wire's progress at `now`. Returns whether it had run empty.
    ///
    /// The sent bytes bound the time of place 0 from above, and this bound applies at once:
    /// otherwise later frames would be early. The unsent bytes bound it from below, if the device
    /// reports in time, and this bound is approached in steps.
    pub fn handle_progress(&mut self, now: MonoTime, progress: Progress) -> bool {
        let sent = progress.sent.wrapping_add_signed(self.first);
        assert!(sent + progress.under_way <= self.laid, "only what was laid is sent");
        if sent > self.valid_from {
            self.anchor = self.anchor.min(now.before(self.framing.span(sent)));
        }
        if progress.under_way > 0 {
            let earliest = now.before(self.framing.span(sent + progress.under_way));
            let behind = earliest.since(self.anchor);
            let step = if behind > STOOD_STILL { behind } else { Nanos(behind.0.div_ceil(PART)) };
            self.anchor += step;
            self.lost += step;
            self.rebase(sent);
            return false;
        }
        let here = self.position(now);
        let is_empty = sent == self.laid && here > self.laid;
        if is_empty {
            // The next frame begins now.
            self.first += (here - self.laid) as i64;
            self.laid = here;
            self.valid_from = here;
        }
        is_empty
    }

    /// Counts places from a later origin. One bit rate's number of bytes takes eight seconds,
    /// exactly.
    fn rebase(&mut self, sent: u64) {
        if sent > self.framing.rate.0 {
            self.anchor += SECOND.times(8);
            self.laid -= self.framing.rate.0;
            self.first -= self.framing.rate.0 as i64;
            self.valid_from = self.valid_from.saturating_sub(self.framing.rate.0);
        }
    }

    /// The length to hand over of the next filler frame, chosen so that the frame behind it does
    /// not begin before `until`; `None` if that frame may begin.
    pub fn gap(&self, until: MonoTime) -> Option<u32> {
        let gap = self.position(until).saturating_sub(self.laid);
        if gap == 0 {
            return None;
        }
        let (least, most) = (self.framing.wire(0), self.framing.wire(self.framing.frame_max));
        let wire = match gap {
            gap if gap <= most => gap.max(least),
            gap if gap < most + least => gap - least,
            _ => most,
        };
        Some(wire as u32 - self.framing.overhead)
    }

    /// Lays a frame of `len` bytes, as it is handed over.
    pub fn lay(&mut self, len: u32) {
        self.laid += self.framing.wire(len);
    }

    /// The start of a frame that is laid now.
    pub fn begins(&self) -> MonoTime {
        self.anchor + self.framing.span(self.laid)
    }

    /// The first byte that begins at a time or after it.
    fn position(&self, at: MonoTime) -> u64 {
        let bits = u128::from(at.since(self.anchor).0) * u128::from(self.framing.rate.0);
        bits.div_ceil(BYTE) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use proptest::prelude::*;

    const ETHERNET: WireFraming =
        WireFraming { rate: BitRate(100_000_000), overhead: 24, frame_min: 60, frame_max: 1514 };

    /// A wire with a crystal of its own, which may stall.
    struct Wire {
        /// Nanoseconds that a byte takes, times 10^9.
        byte: u128,
        free: u128,
        queue: VecDeque<(u64, u128)>,
        sent: u64,
    }

    impl Wire {
        fn new(framing: &WireFraming, millionths: i64) -> Self {
            let exact = BYTE * 1_000_000_000 / u128::from(framing.rate.0);
            let byte = (exact as i128 * (1_000_000 + i128::from(millionths)) / 1_000_000) as u128;
            Self { byte, free: 0, queue: VecDeque::new(), sent: 0 }
        }

        /// Takes a frame. Returns its start.
        fn push(&mut self, now: MonoTime, bytes: u64) -> MonoTime {
            let begins = self.free.max(u128::from(now.0) * 1_000_000_000);
            self.free = begins + self.byte * u128::from(bytes);
            self.queue.push_back((bytes, self.free));
            MonoTime((begins / 1_000_000_000) as u64)
        }

        fn queued(&self) -> u64 {
            self.queue.iter().map(|&(bytes, _)| bytes).sum()
        }

        /// Delays all unsent frames.
        fn stand_still(&mut self, nanos: u64) {
            let later = u128::from(nanos) * 1_000_000_000;
            self.free += later;
            self.queue.iter_mut().for_each(|(_, ends)| *ends += later);
        }

        fn look(&mut self, now: MonoTime) -> Progress {
            while let Some(&(bytes, ends)) = self.queue.front()
                && ends <= u128::from(now.0) * 1_000_000_000
            {
                self.queue.pop_front();
                self.sent += bytes;
            }
            let under_way = self.queue.front().map_or(0, |&(bytes, _)| bytes);
            Progress { sent: self.sent, under_way }
        }
    }

    const BEGIN: MonoTime = MonoTime(SECOND.0);

    /// A wire, filled 2 ms ahead by looks each 100 us that are up to `late` late, and a stream of 6
    /// Mbit/s on it.
    struct Fixture {
        wire: Wire,
        timeline: Timeline,
        due: u64,
        dice: u64,
        looks: u64,
        late: u64,
        last: MonoTime,
        worst_early: u64,
        worst_late: u64,
        worst_ahead: u64,
    }

    impl Fixture {
        fn new(millionths: i64, late: u64, seed: u64) -> Self {
            Self {
                wire: Wire::new(&ETHERNET, millionths),
                timeline: Timeline::new(ETHERNET, BEGIN),
                due: BEGIN.0 + 3_000_000,
                dice: seed | 1,
                looks: 0,
                late,
                last: BEGIN,
                worst_early: 0,
                worst_late: 0,
                worst_ahead: 0,
            }
        }

        fn roll(&mut self, sides: u64) -> u64 {
            self.dice ^= self.dice << 13;
            self.dice ^= self.dice >> 7;
            self.dice ^= self.dice << 17;
            self.dice % sides
        }

        fn look(&mut self) {
            self.looks += 1;
            let now = BEGIN + Nanos(self.looks * 100_000 + self.roll(self.late + 1));
            let now = now.max(self.last);
            self.last = now;
            self.timeline.handle_progress(now, self.wire.look(now));
            let until = now.0 + 2_000_000;
            while self.due <= until {
                self.fill(now, self.due);
                let begins = self.wire.push(now, ETHERNET.wire(1374)).0;
                self.timeline.lay(1374);
                self.worst_early = self.worst_early.max(self.due.saturating_sub(begins));
                self.worst_late = self.worst_late.max(begins.saturating_sub(self.due));
                self.due += 1_754_667;
            }
            self.fill(now, until);
            let free = (self.wire.free / 1_000_000_000) as u64;
            self.worst_ahead = self.worst_ahead.max(free.saturating_sub(now.0));
        }

        fn fill(&mut self, now: MonoTime, until: u64) {
            while let Some(filler) = self.timeline.gap(MonoTime(until)) {
                self.wire.push(now, ETHERNET.wire(filler));
                self.timeline.lay(filler);
            }
        }

        /// Restarts the counts.
        fn forget(&mut self) {
            (self.worst_early, self.worst_late, self.worst_ahead) = (0, 0, 0);
        }
    }

    proptest! {
        #[test]
        fn no_frame_begins_before_it_is_due_nor_a_shortest_frame_after_it_could(
            rate in 10_000_000u64..100_000_000_000, overhead in 0u32..64,
            frames in prop::collection::vec((60u32..=1514, 0u64..3_000_000), 1..60),
        ) {
            let framing = WireFraming { rate: BitRate(rate), overhead, ..ETHERNET };
            let mut timeline = Timeline::new(framing, MonoTime(5));
            let (mut due, mut free) = (MonoTime(5), MonoTime(5));
            for (len, later) in frames {
                due += Nanos(later);
                while let Some(gap) = timeline.gap(due) {
                    prop_assert!((framing.frame_min..=framing.frame_max).contains(&gap));
                    timeline.lay(gap);
                }
                let begins = timeline.begins();
                let latest = due.max(free) + framing.span(framing.wire(0)) + framing.span(1);
                prop_assert!(due <= begins && begins <= latest, "{due:?} {begins:?} {latest:?}");
                timeline.lay(len);
                free = timeline.begins();
            }
        }

        #[test]
        fn a_wire_of_another_crystal_is_followed(
            millionths in -200i64..=200, late in 0u64..400_000, seed in any::<u64>(),
        ) {
            let mut fixture = Fixture::new(millionths, late, seed);
            (0..10_000).for_each(|_| fixture.look());
            fixture.forget();
            (0..20_000).for_each(|_| fixture.look());
            // The longest frame takes 123 us; the position of the wire within it is unknown.
            prop_assert!(fixture.worst_early < 20_000, "{} early", fixture.worst_early);
            prop_assert!(fixture.worst_late < 180_000, "{} late", fixture.worst_late);
        }

        /// A queueing discipline with a late timer that catches up nothing, or a link with pause
        /// frames.
        #[test]
        fn a_wire_that_loses_time_is_followed(
            often in 5u64..100, long in 0u64..200_000, seed in any::<u64>(),
        ) {
            let mut fixture = Fixture::new(0, 50_000, seed);
            for _ in 0..30_000 {
                fixture.look();
                if fixture.roll(often) == 0 {
                    let lost = fixture.roll(long + 1);
                    fixture.wire.stand_still(lost);
                }
            }
            // The loss within the 2 ms that were laid before, and a sixteenth that is applied at a
            // look.
            let share = long / often / 2;
            let most = 150_000 + 8 * long + 20 * share + 16 * share;
            prop_assert!(fixture.worst_late < most, "{} late of {most}", fixture.worst_late);
            prop_assert!(fixture.worst_ahead < 2_200_000 + most, "{} ahead", fixture.worst_ahead);
        }

        #[test]
        fn a_wire_whose_rate_is_not_what_was_said_is_neither_overfilled_nor_early_for_long(
            millionths in -300_000i64..=300_000, seed in any::<u64>(),
        ) {
            let mut fixture = Fixture::new(millionths, 50_000, seed);
            (0..10_000).for_each(|_| fixture.look());
            fixture.forget();
            (0..20_000).for_each(|_| fixture.look());
            // For the 2 ms ahead and the part applied at a look: a part as large as the error.
            let error = millionths.unsigned_abs() * (2_000_000 + 16 * 150_000) / 1_000_000;
            prop_assert!(
                fixture.worst_early < 150_000 + 2 * error,
                "{} early",
                fixture.worst_early
            );
            prop_assert!(fixture.worst_late < 200_000 + 2 * error, "{} late", fixture.worst_late);
            prop_assert!(
                fixture.worst_ahead < 2_400_000 + 2 * error,
                "{} ahead",
                fixture.worst_ahead
            );
        }
    }

    /// The wire runs empty meanwhile, and all late frames come behind it at once: a sixteenth of
    /// the wire's time.
    #[test]
    fn whoever_was_stopped_for_long_goes_on() {
        for seconds in [1, 9, 100] {
            let mut fixture = Fixture::new(0, 50_000, 7);
            (0..10_000).for_each(|_| fixture.look());
            fixture.looks += seconds * 10_000;
            (0..seconds * 1_000 + 10_000).for_each(|_| fixture.look());
            fixture.forget();
            (0..20_000).for_each(|_| fixture.look());
            assert!(fixture.worst_early < 20_000, "{} early", fixture.worst_early);
            assert!(fixture.worst_late < 180_000, "{} late", fixture.worst_late);
            assert_eq!(fixture.timeline.laid(), fixture.wire.sent + fixture.wire.queued());
        }
    }

    /// A wire a tenth faster than specified, for longer than the time before.
    #[test]
    fn places_are_counted_anew_without_anybody_seeing_it() {
        let mut fixture = Fixture::new(-100_000, 0, 7);
        (0..10_000).for_each(|_| fixture.look());
        fixture.forget();
        // One minute.
        (0..600_000).for_each(|_| fixture.look());
        assert!(fixture.worst_early < 400_000, "{} early", fixture.worst_early);
        assert!(fixture.worst_late < 400_000, "{} late", fixture.worst_late);
        assert_eq!(fixture.timeline.laid(), fixture.wire.sent + fixture.wire.queued());
    }

    #[test]
    fn gaps_are_filled_to_the_byte() {
        let mut timeline = Timeline::new(ETHERNET, MonoTime(0));
        // 12,500 bytes: eight of the longest frames, and the rest.
        let mut gaps = alloc::vec![];
        while let Some(gap) = timeline.gap(MonoTime(1_000_000)) {
            gaps.push(gap);
            timeline.lay(gap);
        }
        assert_eq!((gaps.len(), gaps[0], gaps[8]), (9, 1514, 12_500 - 8 * 1538 - 24));
        assert_eq!((timeline.laid(), timeline.begins()), (12_500, MonoTime(1_000_000)));
        // A gap too short for a frame gets the shortest frame.
        assert_eq!(timeline.gap(MonoTime(1_000_080)), Some(60));
        assert_eq!(timeline.gap(MonoTime(1_000_000)), None);
    }

    #[test]
    fn a_wire_that_ran_empty_begins_again_at_once() {
        let mut timeline = Timeline::new(ETHERNET, MonoTime(0));
        timeline.lay(1514);
        let all = Progress { sent: 1538, under_way: 0 };
        assert!(timeline.handle_progress(MonoTime(1_000_000), all));
        // With the first whole byte after that.
        assert!((1_000_000..1_000_080).contains(&timeline.begins().0), "{:?}", timeline.begins());
        assert_eq!(timeline.laid(), 1538);
    }
}
