//! The encoded form of an index: numbers of seven bits a byte, deltas where they are smaller.
//!
//! Promise: encoding and decoding round-trip. Any other bytes are refused or decode to a valid
//! index. There is no checksum: the storage adds one, and the owner.

use alloc::vec::Vec;

use super::deadlines::{DEADLINES_MAX, Deadline, TICK};
use super::line::{POINTS_MAX, Point, Polyline, RUNS_MAX, Run};
use super::tables::{LastCounts, PROGRAMS_MAX, STREAMS_MAX, TABLES_MAX};
use super::{ACCESSES_MAX, Access, AccessKind, Flaws, Index, Program, Stream, Tables};
use crate::ts::{Pcr, Pid};
use crate::units::MediaTime;

/// Longest section.
const SECTION_MAX: u64 = 1024;
/// Upper bound of file sizes and durations.
const MAX: u64 = 1 << 62;

impl Index {
    /// Encodes the index.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        for number in [u64::from(self.stride), self.len, self.packets, u64::from(self.clock.0)] {
            out.number(number);
        }
        let Flaws { skipped_bytes, sync_losses, marked, malformed, bad_sections, .. } = self.flaws;
        let Flaws { gaps, split_times, scrambled, .. } = self.flaws;
        for number in [skipped_bytes, sync_losses, marked, malformed, bad_sections] {
            out.number(number);
        }
        out.number(gaps);
        out.number(split_times);
        out.number(scrambled);
        out.number(self.line.tolerance);
        out.list(&self.line.points, Point { at: 0, time: 0 }, |out, last, point| {
            out.number(point.at - last.at);
            out.number(point.time - last.time);
        });
        out.list(&self.line.runs, FIRST_RUN, |out, last, run| {
            out.number(run.at - last.at);
            out.number(run.time.0 - last.time.0);
            out.number(run.pcr.ticks().0 << 1 | u64::from(run.announced));
        });
        out.list(&self.accesses, FIRST_ACCESS, |out, last, access| {
            out.number((access.at - last.at) << 1 | u64::from(access.kind == AccessKind::Intra));
            out.number(access.end - access.at);
            out.number(access.shown.0 - last.shown.0);
            out.number((access.decoded.0 - last.decoded.0) / TICK);
            out.0.push(access.counts.pat << 4 | access.counts.pmt);
        });
        out.number(self.tables.len() as u64);
        let mut last = 0;
        for tables in &self.tables {
            out.number(tables.at - last);
            out.bytes(&tables.pat);
            out.number(u64::from(tables.pmt_pid.0));
            out.bytes(&tables.pmt);
            out.bytes(&tables.sdt);
            last = tables.at;
        }
        out.number(self.programs.len() as u64);
        for program in &self.programs {
            let Program { number, table, clock, streams } = program;
            for number in [*number, table.0, clock.0] {
                out.number(u64::from(number));
            }
            out.number(streams.len() as u64);
            for stream in streams {
                out.number(u64::from(stream.pid.0));
                out.0.push(stream.kind);
            }
        }
        out.number(self.decoded.0 / TICK);
        out.list(&self.deadlines, FIRST_DEADLINE, |out, last, deadline| {
            out.number(deadline.at - last.at);
            out.number((deadline.time - last.time) / TICK);
        });
        out.0
    }

    /// Decodes an index; `None` if it is invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let stride = from.at_most(u64::from(u16::MAX))? as u16;
        let len = from.at_most(MAX)?;
        let packets = from.number()?;
        let clock = from.pid()?;
        let mut flaw = || from.number();
        let flaws = Flaws {
            skipped_bytes: flaw()?,
            sync_losses: flaw()?,
            marked: flaw()?,
            malformed: flaw()?,
            bad_sections: flaw()?,
            gaps: flaw()?,
            split_times: flaw()?,
            scrambled: flaw()?,
        };
        let tolerance = from.at_most(MAX)?;
        let points = from.list(POINTS_MAX + 2, 2, Point { at: 0, time: 0 }, |from, last| {
            let at = from.after(last.at, len)?;
            Some(Point { at, time: from.after(last.time, MAX)? })
        })?;
        let runs = from.list(RUNS_MAX, 3, FIRST_RUN, |from, last| {
            let at = from.after(last.at, len)?;
            let time = MediaTime(from.after(last.time.0, MAX)?);
            let pcr = from.at_most(Pcr::WRAP.0 << 1)?;
            let announced = pcr & 1 == 1;
            Some(Run { at, time, pcr: Pcr::at(MediaTime(pcr >> 1)), announced })
        })?;
        let accesses = from.list(ACCESSES_MAX, 5, FIRST_ACCESS, |from, last| {
            let step = from.number()?;
            let kind = if step & 1 == 1 { AccessKind::Intra } else { AccessKind::Entry };
            let at = last.at.checked_add(step >> 1).filter(|&at| at <= len)?;
            let end = from.after(at, len)?;
            let shown = MediaTime(from.after(last.shown.0, MAX)?);
            let decoded = MediaTime(from.tick_after(last.decoded.0)?);
            let counts = from.byte()?;
            Some(Access {
                at,
                end,
                shown,
                decoded,
                kind,
                counts: LastCounts { pat: counts >> 4, pmt: counts & 15 },
            })
        })?;
        let mut at = 0;
        let mut tables = Vec::new();
        for _ in 0..from.at_most(TABLES_MAX as u64 + 1)? {
            at = from.after(at, len)?;
            let pat = from.bytes()?;
            let (pmt_pid, pmt) = (from.pid()?, from.bytes()?);
            tables.push(Tables { at, pat, pmt_pid, pmt, sdt: from.bytes()? });
        }
        let mut programs = Vec::new();
        for _ in 0..from.at_most(PROGRAMS_MAX as u64)? {
            let number = from.at_most(u64::from(u16::MAX))? as u16;
            let (table, clock) = (from.pid()?, from.pid()?);
            let mut streams = Vec::new();
            for _ in 0..from.at_most(STREAMS_MAX as u64)? {
                streams.push(Stream { pid: from.pid()?, kind: from.byte()? });
            }
            programs.push(Program { number, table, clock, streams });
        }
        let decoded = MediaTime(from.tick_after(0)?);
        let deadlines = from.list(DEADLINES_MAX, 2, FIRST_DEADLINE, |from, last| {
            let at = from.after(last.at, len)?;
            Some(Deadline { at, time: from.tick_after(last.time)? })
        })?;
        let ascend = |pair: &[Deadline]| pair[0].at < pair[1].at && pair[0].time < pair[1].time;
        // The line goes from the beginning to the end, and its points ascend.
        let (first, last) = (points.first()?, points.last()?);
        let is_line = (first.at, first.time, last.at) == (0, 0, len)
            && last.time > 0
            && points.windows(2).all(|pair| pair[0].at < pair[1].at)
            && runs.windows(2).all(|pair| pair[0].at < pair[1].at)
            && !runs.is_empty();
        let is_one = matches!(stride, 188 | 192 | 204)
            && is_line
            && deadlines.windows(2).all(ascend)
            && from.0.is_empty();
        let index = is_one.then_some(Self {
            rates: None,
            is_constant: false,
            stride,
            len,
            packets,
            clock,
            flaws,
            line: Polyline { points, runs, tolerance },
            accesses,
            deadlines,
            decoded,
            tables,
            programs,
        });
        index.map(Self::with_rates)
    }
}

const FIRST_RUN: Run =
    Run { at: 0, time: MediaTime(0), pcr: Pcr::at(MediaTime(0)), announced: false };
const FIRST_ACCESS: Access = Access {
    at: 0,
    end: 0,
    shown: MediaTime(0),
    decoded: MediaTime(0),
    kind: AccessKind::Entry,
    counts: LastCounts { pat: 0, pmt: 0 },
};

const FIRST_DEADLINE: Deadline = Deadline { at: 0, time: 0 };

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn list<T: Copy>(&mut self, list: &[T], first: T, mut each: impl FnMut(&mut Self, T, T)) {
        self.number(list.len() as u64);
        let mut last = first;
        for &one in list {
            each(self, last, one);
            last = one;
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn at_most(&mut self, max: u64) -> Option<u64> {
        self.number().filter(|&number| number <= max)
    }

    fn after(&mut self, last: u64, max: u64) -> Option<u64> {
        last.checked_add(self.number()?).filter(|&number| number <= max)
    }

    /// A time in whole ticks of 90 kHz.
    fn tick_after(&mut self, last: u64) -> Option<u64> {
        let step = self.number()?.checked_mul(TICK)?;
        last.checked_add(step).filter(|&time| time <= MAX)
    }

    fn pid(&mut self) -> Option<Pid> {
        self.at_most(0x1fff).map(|pid| Pid(pid as u16))
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let len = self.at_most(SECTION_MAX)? as usize;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes.to_vec())
    }

    /// A list of at most `max` entries of at least `least` bytes each; the announced number must
    /// fit the remaining bytes.
    fn list<T: Copy>(
        &mut self,
        max: usize,
        least: usize,
        first: T,
        mut each: impl FnMut(&mut Self, T) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.at_most(max as u64)? as usize;
        if count > self.0.len() / least {
            return None;
        }
        let mut list = Vec::with_capacity(count);
        let mut last = first;
        for _ in 0..count {
            last = each(self, last)?;
            list.push(last);
        }
        Some(list)
    }
}
