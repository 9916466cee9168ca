//! The consumption of a title whose frames come one after the other, as a scan finds them.
//!
//! Promise: memory is bounded by [`POINTS_MAX`], whatever comes. Times are rounded down to slots,
//! so a schedule by them is early and never late. A frame behind others needs them too: bytes count
//! as needed when the first frame behind them is.

use std::ops::Range;

use tactus_core::smoothing::{Consumption, Shape};
use tactus_core::units::{Bytes, MediaTime};

/// Frames that are due within this time count as due at its beginning.
pub const SLOT: MediaTime = MediaTime(27_000_000 / 100);
/// Upper bound of points; with more, the slots become longer. Two hours of a slot each 30 ms.
pub const POINTS_MAX: usize = 1 << 18;
/// Where times differ by more from what they should be, they are wrong.
const SPREAD_MAX: MediaTime = MediaTime(27_000_000 / 2);
/// Times that go back further than this are those of titles that are joined, or of tracks that are
/// not interleaved. FFmpeg interleaves within ten seconds (`max_interleave_delta`).
const BACK_MAX: MediaTime = MediaTime(27_000_000 * 11);

/// Steps that ascend in time and bytes.
#[derive(Clone, Debug)]
pub(crate) struct Stairs {
    /// The length of a step's slot, in multiples of [`SLOT`].
    each: u64,
    steps: Vec<Step>,
    first: Option<MediaTime>,
    latest: MediaTime,
    /// How much later than the first step of a part its time may begin.
    spread: MediaTime,
    is_jumbled: bool,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    slot: u64,
    end: u64,
}

impl Default for Stairs {
    fn default() -> Self {
        let (steps, latest, spread) = (Vec::new(), MediaTime(0), MediaTime(0));
        Self { each: 1, steps, first: None, latest, spread, is_jumbled: false }
    }
}

impl Stairs {
    /// A frame that is played at `time` and ends before byte `end`, behind all earlier ones.
    pub(crate) fn add(&mut self, time: MediaTime, end: u64) {
        self.is_jumbled |= time.0.saturating_add(BACK_MAX.0) < self.latest.0;
        self.first.get_or_insert(time);
        self.latest = self.latest.max(time);
        let slot = time.0 / (SLOT.0 * self.each);
        while self.steps.last().is_some_and(|last| last.slot >= slot) {
            self.steps.pop();
        }
        self.steps.push(Step { slot, end });
        if self.steps.len() > POINTS_MAX {
            self.each *= 2;
            self.steps.iter_mut().for_each(|step| step.slot /= 2);
            self.steps.dedup_by(|next, kept| {
                let is_same = next.slot == kept.slot;
                if is_same {
                    kept.end = next.end;
                }
                is_same
            });
        }
    }

    /// When the bytes before `end` are needed by what has come.
    pub(crate) fn time_of(&self, end: u64) -> Option<MediaTime> {
        let nth = self.steps.partition_point(|step| step.end < end);
        Some(MediaTime(self.steps.get(nth)?.slot * SLOT.0 * self.each))
    }

    /// Frames are early by up to this much less than the one that a part begins with.
    pub(crate) fn spread(&mut self, spread: MediaTime) {
        self.spread = spread.min(SPREAD_MAX);
    }

    /// Whether the times have no order.
    pub(crate) fn is_jumbled(&self) -> bool {
        self.is_jumbled
    }

    /// The time of the first frame, and the latest.
    pub(crate) fn times(&self) -> Option<Range<MediaTime>> {
        Some(self.first?..self.latest)
    }

    /// The consumption of a title of `len` bytes; `None` if there are no frames, or without order.
    pub(crate) fn finish(self, len: u64) -> Option<Consumption> {
        let begin = self.steps.first().filter(|_| !self.is_jumbled)?.slot;
        let length = SLOT.0 * self.each;
        let points = self
            .steps
            .iter()
            .map(|step| (MediaTime((step.slot - begin) * length), Bytes(step.end.min(len))));
        let resolution = self.spread.max(MediaTime(length));
        Some(Consumption::new(Shape::Steps, points)?.with_resolution(resolution))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> MediaTime {
        MediaTime(seconds * 27_000_000)
    }

    #[test]
    fn bytes_are_needed_when_the_first_frame_behind_them_is() {
        let mut stairs = Stairs::default();
        for (time, end) in [(0, 100), (3, 200), (1, 210), (2, 220), (6, 300), (4, 310)] {
            stairs.add(seconds(time), end);
        }
        assert_eq!(stairs.times(), Some(seconds(0)..seconds(6)));
        let consumption = stairs.finish(305).unwrap();
        assert_eq!((consumption.len(), consumption.duration()), (Bytes(305), seconds(4)));
        assert_eq!(consumption.points(), 4);
        // The first byte behind the first frame is needed at the second.
        let part = consumption.part(100..305).unwrap();
        assert!(part.duration() <= seconds(3) && part.points() == 3);
    }

    #[test]
    fn joined_titles_and_no_frames_have_none() {
        let mut stairs = Stairs::default();
        assert!(stairs.clone().finish(10).is_none());
        stairs.add(seconds(60), 100);
        stairs.add(seconds(0), 200);
        assert!(stairs.is_jumbled() && stairs.finish(200).is_none());
    }

    #[test]
    fn memory_is_bounded_and_each_frame_is_early() {
        let count = 3 * POINTS_MAX as u64;
        let mut stairs = Stairs::default();
        for nth in 0..count {
            stairs.add(MediaTime(nth * SLOT.0), nth * 10 + 10);
        }
        let consumption = stairs.finish(count * 10).unwrap();
        assert!(consumption.points() <= POINTS_MAX);
        let half = consumption.part(count * 5..count * 10).unwrap();
        assert!(half.duration().0 <= count / 2 * SLOT.0);
    }
}
