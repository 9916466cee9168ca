//! The plan of a stream of datagrams: its front, the due times of its bytes, and the changes in
//! them.
//!
//! Promise: lookups are pure and do not allocate. A plan is built once on the control side and only
//! read afterwards.

use alloc::boxed::Box;
use core::ops::Range;

use super::Counting;
use crate::byte_clock::{ByteClock, DueTimes};
use crate::polyline::Polyline;
use crate::ts::{self, Index, LongTable, PCR_BYTE, Pcr, Pid, RunTimes};
use crate::units::{BitRate, Bytes, MediaTime, MonoTime};

/// The differences from a stream that sends its title's bytes at one rate. The default has none.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// Complete packets that leave once, before the first byte of the title.
    pub front: Box<[u8]>,
    /// The framing of the title's packets. Their bytes leave; arrival times and parity do not.
    pub packets: ts::Framing,
    /// The due times of the bytes of the range; `None` at one rate.
    pub line: Option<Polyline>,
    /// Counters and clocks continue over turns, and from the stream before.
    pub restamping: Option<Restamping>,
    /// Null packets fill the stream up to exactly this rate.
    pub stuff: Option<BitRate>,
    /// It is a part of a session with continuous counters; `None` if it is the only part.
    pub counting: Option<Counting>,
    /// The stream does not begin before this time; one that follows another begins at its end.
    pub begin: Option<MonoTime>,
}

/// The changes of the clocks in a title.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Restamping {
    /// The PID of the pacing clock and its value at the range's first byte; `None` if bytes are not
    /// paced by it.
    pub clock: Option<(Pid, Pcr)>,
    /// The duration of a turn by the title's clock, if bytes are not paced by it. Zero if its times
    /// cannot be moved: then each turn restarts the clock with a mark.
    pub turn: Option<MediaTime>,
    /// Jumps of the clock in the range: from this byte on it is moved by this much to be
    /// continuous. Ascending; entries are behind byte 0.
    pub runs: Box<[RunTimes]>,
    /// The hash of the table at the start of the range, if that table is longer than a packet.
    pub ahead: Option<LongTable>,
}

impl Plan {
    /// The plan of the part `range` of an indexed title by its own clock, read in blocks of `block`
    /// bytes, and the rate to reserve: the constant rate, or that of the fastest block. `None` if
    /// the part has no duration.
    pub fn of(index: &Index, range: Range<u64>, block: Bytes) -> Option<(Self, BitRate)> {
        let Range { start: first, end } = range;
        let line = Polyline::of(index, first, end)?;
        let begins = index.pcr_at(first);
        let begun = index.time_at(first).0;
        // Before the first PCR of the first run its clock is extrapolated: there is no jump.
        let jumps = index.runs().iter().skip(1);
        let inner = jumps.filter(|run| first < run.at && run.at < end);
        let runs = inner.filter_map(|run| {
            // The value of the clock there if it had been continuous.
            let law = begins.after(MediaTime(run.time.0.checked_sub(begun)?));
            let at = run.at.checked_sub(first + PCR_BYTE).filter(|&at| at > 0)?;
            Some(RunTimes { at, moved: law.since(run.pcr) })
        });
        let ahead = index.tables_near(first);
        let ahead = ahead.and_then(|tables| LongTable::of(tables.pmt_pid, &tables.pmt));
        let clock = Some((index.clock_at(first), begins));
        let restamping = match index.flaws().split_times {
            0 => Restamping { clock, turn: None, runs: runs.collect(), ahead },
            // Moving clocks without their timestamps would be worse than restarting them.
            _ => Restamping { turn: Some(MediaTime(0)), ahead, ..Restamping::default() },
        };
        // In joined recordings the clock rates agree to 100 ppm only.
        let is_one = index.runs().len() == 1 && index.is_constant();
        let rates = index.rates().filter(|_| is_one);
        let (rate, line) = match rates {
            Some(rates) => (rates.mean, None),
            None => (line.peak(Bytes(first), block), Some(line)),
        };
        let packets = ts::Framing { stride: index.stride() };
        Some((Self { packets, line, restamping: Some(restamping), ..Self::default() }, rate))
    }

    /// The plan of bytes that leave unchanged at these times.
    pub fn of_times(line: Polyline) -> Self {
        Self { line: Some(line), ..Self::default() }
    }

    /// Whether the bytes leave unchanged.
    pub fn is_of_times(&self) -> bool {
        let Self { front, packets, line: _, restamping, stuff, counting, begin: _ } = self;
        front.is_empty()
            && packets.is_plain()
            && restamping.is_none()
            && stuff.is_none()
            && counting.is_none()
    }

    /// The same for a title whose packets have this framing.
    #[must_use]
    pub fn of_packets(self, packets: ts::Framing) -> Self {
        Self { packets, ..self }
    }

    /// The same with null packets up to exactly `rate`.
    #[must_use]
    pub fn stuffed(self, rate: BitRate) -> Self {
        Self { stuff: Some(rate), ..self }
    }

    /// The same with complete packets in front.
    #[must_use]
    pub fn with_front(self, packets: &[u8]) -> Self {
        Self { front: packets.into(), ..self }
    }
}

/// The due times of a title's bytes: by its byte clock, and by its line if it has one.
#[derive(Clone, Copy, Debug)]
pub struct TitleSchedule<'a> {
    /// Its start and the reserved rate.
    pub clock: ByteClock,
    /// Its plan.
    pub plan: Option<&'a Plan>,
}

impl DueTimes for TitleSchedule<'_> {
    fn due(&self, offset: Bytes) -> MonoTime {
        match self.plan.and_then(|plan| plan.line.as_ref()) {
            Some(line) => self.clock.start() + line.due(offset, line.hint(offset)),
            None => self.clock.due(offset),
        }
    }

    fn rate(&self) -> BitRate {
        self.clock.rate()
    }
}
