//! What a receiver saw: which stream got how many payload bytes, and when.
//!
//! Promise: appending costs no system call while the record has room, so the receiver is not late
//! because it takes notes. It stamps nothing itself and judges nothing.

use tactus_core::units::MonoTime;

/// Payload bytes of one `recv` call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Arrival {
    /// When the call returned.
    pub at: MonoTime,
    /// Which stream; the place of its request in the plan.
    pub stream: u32,
    /// How many payload bytes; never zero.
    pub bytes: u32,
}

/// All arrivals of a run in the order in which they were stamped.
#[derive(Debug)]
pub struct Record {
    arrivals: Vec<Arrival>,
    room: usize,
}

impl Record {
    /// An empty record with `room` places, all of them already backed by memory.
    pub fn with_room(room: usize) -> Self {
        let mut arrivals = vec![Arrival { at: MonoTime(1), stream: 1, bytes: 1 }; room];
        arrivals.clear();
        Self { arrivals, room }
    }

    /// Notes one arrival.
    pub fn push(&mut self, arrival: Arrival) {
        self.arrivals.push(arrival);
    }

    /// Whether the record had to grow, which may have delayed the receiver.
    pub fn outgrew_its_room(&self) -> bool {
        self.arrivals.len() > self.room
    }

    /// Splits the record by stream, for streams `0..streams`.
    pub fn traces(&self, streams: usize) -> Vec<Trace> {
        let mut sizes = vec![0_usize; streams];
        for arrival in &self.arrivals {
            sizes[arrival.stream as usize] += 1;
        }
        let mut traces: Vec<Trace> = sizes.into_iter().map(Trace::with_capacity).collect();
        for arrival in &self.arrivals {
            traces[arrival.stream as usize].push(arrival.at, arrival.bytes);
        }
        traces
    }
}

/// One stream's arrivals, in order of time.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    steps: Vec<Step>,
}

/// One arrival of a stream, and what had arrived by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// When.
    pub at: MonoTime,
    /// Payload bytes received before this arrival.
    pub before: u64,
    /// Payload bytes received with it.
    pub after: u64,
}

impl Trace {
    fn with_capacity(steps: usize) -> Self {
        Self { steps: Vec::with_capacity(steps) }
    }

    /// Adds an arrival; time never goes back.
    pub fn push(&mut self, at: MonoTime, bytes: u32) {
        let before = self.steps.last().map_or(0, |last| {
            assert!(last.at <= at, "arrivals come in the order of time");
            last.after
        });
        self.steps.push(Step { at, before, after: before + u64::from(bytes) });
    }

    /// All steps.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The steps stamped in `from..to`.
    pub fn between(&self, from: MonoTime, to: MonoTime) -> &[Step] {
        let first = self.steps.partition_point(|step| step.at < from);
        let end = self.steps.partition_point(|step| step.at < to);
        &self.steps[first..end.max(first)]
    }

    /// Payload bytes stamped in `from..to`.
    pub fn bytes_between(&self, from: MonoTime, to: MonoTime) -> u64 {
        match self.between(from, to) {
            [] => 0,
            [only] => only.after - only.before,
            [first, .., last] => last.after - first.before,
        }
    }

    /// All payload bytes.
    pub fn bytes(&self) -> u64 {
        self.steps.last().map_or(0, |last| last.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_splits_into_the_streams_that_wrote_it() {
        let mut record = Record::with_room(2);
        for (at, stream, bytes) in [(10, 1, 5), (11, 0, 7), (12, 1, 6)] {
            record.push(Arrival { at: MonoTime(at), stream, bytes });
        }
        assert!(record.outgrew_its_room());
        let traces = record.traces(3);
        assert_eq!(traces[0].bytes(), 7);
        assert_eq!(traces[2].bytes(), 0);
        assert_eq!(
            traces[1].steps(),
            [
                Step { at: MonoTime(10), before: 0, after: 5 },
                Step { at: MonoTime(12), before: 5, after: 11 }
            ]
        );
    }

    #[test]
    fn a_window_holds_its_start_and_not_its_end() {
        let mut trace = Trace::default();
        for at in [10, 20, 30] {
            trace.push(MonoTime(at), 100);
        }
        assert_eq!(trace.bytes_between(MonoTime(10), MonoTime(30)), 200);
        assert_eq!(trace.bytes_between(MonoTime(11), MonoTime(30)), 100);
        assert_eq!(trace.bytes_between(MonoTime(31), MonoTime(99)), 0);
    }
}
