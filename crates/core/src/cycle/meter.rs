//! The meter: spans in which the device is busy with reads, for the estimator.
//!
//! Promise: a span has only reads, and the time in which the device always had one. Spans with
//! writes or flushes are left out, because the times of those are not learned. A span ends with the
//! device idle, or with the cycle. A device whose reads have all ended when it is polled is not
//! idle if it gets the next ones at once. Time in which it waited for a late poll does not count.

use crate::estimator::BusySpan;
use crate::ports::Direction;
use crate::units::{Bytes, MonoTime, Nanos};

/// A poll that is later than this says more about the host than about the disk.
const STANDSTILL: Nanos = Nanos::from_millis(20);

/// The running span.
pub(super) struct Meter {
    /// Whether real-time and best-effort reads are known to reach the device.
    is_direct: bool,
    begun: MonoTime,
    from_idle: bool,
    /// When the last one at the device ended, in a span that has not been taken.
    idle_since: Option<MonoTime>,
    /// Transfers and flushes at the device.
    busy: u32,
    /// Reads at the device.
    reads: u64,
    /// Reads of the span that have ended.
    visits: u64,
    bytes: u64,
    /// Reads that continued where the last one ended cost an arm no visit.
    continued: u64,
    low: u64,
    high: u64,
    end: Option<u64>,
    /// Writes or flushes belong to it.
    is_mixed: bool,
    /// Reads that a cache may have answered belong to it.
    is_doubtful: bool,
    /// It began with a probe.
    is_probe: bool,
    /// The end of the last wait for the kernel's reads.
    waited: MonoTime,
}

impl Meter {
    pub(super) fn new(is_direct: bool) -> Self {
        Self {
            is_direct,
            begun: MonoTime(0),
            from_idle: true,
            idle_since: None,
            busy: 0,
            reads: 0,
            visits: 0,
            bytes: 0,
            continued: 0,
            low: u64::MAX,
            high: 0,
            end: None,
            is_mixed: false,
            is_doubtful: false,
            is_probe: false,
            waited: MonoTime(0),
        }
    }

    /// Notes that a transfer at `position` is handed to the device; returns the span before it, if
    /// one has ended.
    pub(super) fn note_begin(
        &mut self,
        now: MonoTime,
        direction: Direction,
        position: u64,
        len: u32,
    ) -> Option<BusySpan> {
        let before = self.begin(now, false);
        if direction == Direction::Write {
            self.is_mixed = true;
            return before;
        }
        self.is_doubtful |= !self.is_direct;
        self.note_read(position, len);
        before
    }

    /// As [`Self::note_begin`], for a read of a probe.
    pub(super) fn note_probe(
        &mut self,
        now: MonoTime,
        position: u64,
        len: u32,
    ) -> Option<BusySpan> {
        let before = self.begin(now, true);
        self.note_read(position, len);
        before
    }

    /// As [`Self::note_begin`], for a flush.
    pub(super) fn note_flush(&mut self, now: MonoTime) -> Option<BusySpan> {
        let before = self.begin(now, false);
        self.is_mixed = true;
        before
    }

    fn begin(&mut self, now: MonoTime, is_probe: bool) -> Option<BusySpan> {
        self.busy += 1;
        if self.busy > 1 {
            return None;
        }
        let idle = self.idle_since.take();
        if idle == Some(now) && is_probe == self.is_probe {
            return None;
        }
        let before = idle.and_then(|idle| self.span(idle));
        self.restart(now, true);
        self.is_probe = is_probe;
        before
    }

    fn note_read(&mut self, position: u64, len: u32) {
        let after = position + u64::from(len);
        self.continued += u64::from(self.end == Some(position));
        self.end = Some(after);
        self.low = self.low.min(position);
        self.high = self.high.max(after);
        self.reads += 1;
    }

    /// Notes the end of a read.
    pub(super) fn note_read_end(&mut self, now: MonoTime, len: u32) {
        self.reads -= 1;
        self.visits += 1;
        self.bytes += u64::from(len);
        self.note_end(now);
    }

    /// Notes the end of a write or a flush.
    pub(super) fn note_end(&mut self, now: MonoTime) {
        self.busy -= 1;
        if self.busy == 0 {
            self.idle_since = Some(now);
        }
    }

    /// Notes a wait for the kernel's reads, of the length `waited`, that ends at `now`. Returns the
    /// part of it that belongs to no span and to no earlier wait, and whether the device may have
    /// been idle before.
    pub(super) fn note_wait(&mut self, now: MonoTime, waited: Nanos) -> (Nanos, bool) {
        let begun = now.before(waited);
        let counted = self.waited.max(self.idle_since.unwrap_or(MonoTime(0)));
        let end = if self.busy > 0 { self.begun } else { now };
        self.waited = now;
        (end.since(begun.max(counted)), begun > counted && begun < end)
    }

    /// Takes `late` out of the span whose reads have all ended at this poll: the device waited for
    /// it. A device that is still busy after so long has stood still together with the host.
    pub(super) fn note_late_poll(&mut self, now: MonoTime, late: Nanos) {
        if self.busy == 0 && self.idle_since == Some(now) {
            self.begun = (self.begun + late).min(now);
        } else if self.busy > 0 && late >= STANDSTILL {
            self.is_mixed = true;
        }
    }

    /// Leaves the running span out: a read has failed.
    pub(super) fn spoil(&mut self) {
        self.is_mixed = true;
    }

    /// Ends the span, if there is one; another one begins if the device is busy.
    pub(super) fn cut(&mut self, now: MonoTime) -> Option<BusySpan> {
        if self.busy == 0 {
            return self.idle_since.take().and_then(|idle| self.span(idle));
        }
        let span = self.span(now);
        let is_mixed = self.busy > self.reads as u32;
        self.restart(now, false);
        (self.is_mixed, self.is_doubtful) = (is_mixed, self.reads > 0 && !self.is_direct);
        span
    }

    fn span(&self, now: MonoTime) -> Option<BusySpan> {
        let visits = self.visits.saturating_sub(self.continued);
        (!self.is_mixed && visits > 0).then(|| BusySpan {
            visits,
            bytes: Bytes(self.bytes),
            time: now.since(self.begun),
            reach: self.high.saturating_sub(self.low),
            from_idle: self.from_idle,
            is_direct: !self.is_doubtful,
        })
    }

    fn restart(&mut self, now: MonoTime, from_idle: bool) {
        (self.begun, self.from_idle) = (now, from_idle);
        (self.visits, self.bytes, self.continued) = (0, 0, 0);
        (self.low, self.high) = (u64::MAX, 0);
        (self.is_mixed, self.is_doubtful) = (false, false);
        if from_idle {
            self.end = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u32 = 4096;

    fn begin(meter: &mut Meter, now: u64, count: u64) -> Option<BusySpan> {
        let begun = (0..count)
            .map(|at| meter.note_begin(MonoTime(now), Direction::Read, 100_000 * (now + at), LEN));
        begun.fold(None, Option::or)
    }

    fn end(meter: &mut Meter, now: u64, count: u64) {
        (0..count).for_each(|_| meter.note_read_end(MonoTime(now), LEN));
    }

    #[test]
    fn r11_a_device_that_gets_more_when_it_is_polled_was_busy_all_the_time() {
        let mut meter = Meter::new(true);
        for poll in 0..10 {
            assert_eq!(begin(&mut meter, poll, 4), None);
            end(&mut meter, poll + 1, 4);
        }
        let span = begin(&mut meter, 50, 1).expect("it was idle since 10");
        assert_eq!((span.visits, span.bytes, span.time.0), (40, Bytes(40 * 4096), 10));
        assert!(span.from_idle && span.is_direct);
        end(&mut meter, 51, 1);
        assert_eq!(meter.cut(MonoTime(90)).map(|span| span.time.0), Some(1));
        assert_eq!(meter.cut(MonoTime(91)), None);
    }

    #[test]
    fn r11_time_in_which_the_device_waited_for_its_server_does_not_count() {
        let mut meter = Meter::new(true);
        begin(&mut meter, 0, 4);
        end(&mut meter, 100, 4);
        meter.note_late_poll(MonoTime(100), Nanos(90));
        begin(&mut meter, 100, 4);
        end(&mut meter, 110, 2);
        // Two reads are still at the device.
        meter.note_late_poll(MonoTime(110), Nanos(5));
        end(&mut meter, 115, 2);
        let span = meter.cut(MonoTime(120)).map(|span| (span.visits, span.time.0));
        assert_eq!(span, Some((8, 25)));
    }

    #[test]
    fn r11_a_span_goes_on_in_the_next_cycle_and_writes_leave_it_out() {
        let mut meter = Meter::new(true);
        begin(&mut meter, 0, 4);
        end(&mut meter, 5, 2);
        let cut = meter.cut(MonoTime(8)).map(|span| (span.visits, span.time.0));
        assert_eq!(cut, Some((2, 8)));
        end(&mut meter, 9, 2);
        let rest = meter.cut(MonoTime(20)).map(|span| (span.visits, span.time.0, span.from_idle));
        assert_eq!(rest, Some((2, 1, false)));
        begin(&mut meter, 30, 2);
        meter.note_begin(MonoTime(30), Direction::Write, 0, LEN);
        end(&mut meter, 31, 2);
        meter.note_end(MonoTime(32));
        assert_eq!(meter.cut(MonoTime(40)), None);
    }
}
