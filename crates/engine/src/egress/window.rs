//! Windows of one second: the evenness of a stream.
//!
//! Promise: each whole second of the monotonic clock is counted once, with exactly the bytes sent
//! at visits within it. The seconds in which a stream begins and ends are not whole and not
//! counted. The time of sending counts, not the due time, so lateness shows.

use tactus_core::units::{BitRate, Bytes, MonoTime, SECOND};

/// The running window of one stream.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Window {
    /// `None` before the first visit.
    second: Option<u64>,
    /// Whether the window began at a whole second.
    is_whole: bool,
    sent_before: Bytes,
    was_blocked: bool,
}

/// A whole second of one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Second {
    pub(crate) bytes: Bytes,
    /// The peer did not take all bytes: the peer causes an uneven second.
    pub(crate) was_blocked: bool,
}

impl Window {
    /// Loads the window into the cache, for callers that read many before using the first. The
    /// number has no meaning.
    pub(crate) fn look_up(&self) -> u64 {
        self.second.unwrap_or(0) ^ self.sent_before.0
    }

    /// Notes a visit at `now` before which `sent` bytes had been sent. Returns the second that ends
    /// with it.
    pub(crate) fn visit(&mut self, now: MonoTime, sent: Bytes, is_blocked: bool) -> Option<Second> {
        let second = now.0 / SECOND.0;
        self.was_blocked |= is_blocked;
        if self.second == Some(second) {
            return None;
        }
        // A stream without a visit for a second has no separate windows.
        let follows = self.second.is_some_and(|last| last + 1 == second);
        let ended = (follows && self.is_whole)
            .then(|| Second { bytes: sent - self.sent_before, was_blocked: self.was_blocked });
        *self = Self {
            second: Some(second),
            is_whole: self.second.is_some(),
            sent_before: sent,
            was_blocked: is_blocked,
        };
        ended
    }
}

impl Second {
    /// Deviation of the second from `rate`, in millionths of it.
    pub(crate) fn deviation(self, rate: BitRate) -> u64 {
        self.deviation_from(rate.bytes_in(SECOND))
    }

    /// Deviation of the second from the bytes that were due in it, in millionths of them.
    pub(crate) fn deviation_from(self, due: Bytes) -> u64 {
        let expected = due.0.max(1);
        let off = u128::from(self.bytes.0.abs_diff(expected));
        (off * 1_000_000 / u128::from(expected)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::Nanos;

    #[test]
    fn a_whole_second_holds_the_bytes_of_its_visits_and_no_others() {
        let mut window = Window::default();
        let tick = Nanos::from_micros(62_500);
        let mut now = MonoTime(5_700_000_000);
        let mut ended = vec![];
        for visit in 0..60 {
            ended.extend(window.visit(now, Bytes(visit * 1000), visit == 30));
            now += tick;
        }
        let even = Second { bytes: Bytes(16_000), was_blocked: false };
        assert_eq!(ended, [even, Second { was_blocked: true, ..even }, even]);
        assert_eq!(even.deviation(BitRate(128_000)), 0);
    }

    #[test]
    fn a_late_visit_shows_in_both_seconds() {
        let mut window = Window::default();
        let mut ended = vec![];
        let mut sent = 0;
        for (visit, late) in (0..64u64).map(|visit| (visit, u64::from(visit == 31) * 63_000_000)) {
            let now = MonoTime(visit * 62_500_000 + late);
            ended.extend(window.visit(now, Bytes(sent), false));
            sent += 1000;
        }
        let bytes: Vec<_> = ended.iter().map(|second| second.bytes.0).collect();
        assert_eq!(bytes, [15_000, 17_000]);
        assert_eq!(ended[0].deviation(BitRate(128_000)), 62_500);
    }

    #[test]
    fn a_stream_that_was_not_visited_begins_anew() {
        let mut window = Window::default();
        let at = |second: u64| MonoTime(second * SECOND.0);
        assert_eq!(window.visit(at(1), Bytes(0), false), None);
        assert_eq!(window.visit(at(2), Bytes(10), false), None);
        assert_eq!(window.visit(at(5), Bytes(30), false), None);
        assert!(window.visit(at(6), Bytes(40), false).is_some());
    }
}
