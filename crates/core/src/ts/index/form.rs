//! The encoded form of an index: numbers of seven bits a byte, deltas where they are smaller.
//!
//! Promise: encoding and decoding round-trip. Any other bytes are refused or decode to a valid
//! index. There is no checksum: the storage adds one, and the owner.

use alloc::vec::Vec;

use super::deadlines::{DEADLINES_MAX, Deadline, TICK};
use super::line::{POINTS_MAX, Point, Polyline, RUNS_MAX, Run};
use super::tables::{LastCounts, PROGRAMS_MAX, STREAMS_MAX, TABLES_MAX};
use super::{ACCESSES_MAX, Access, AccessKind, Flaws, Index, Program, Stream, Tables};
use crate::encoding::{Reader, Writer};
use crate::ts::{Pcr, Pid};
use crate::units::MediaTime;

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
        let clock = pid(&mut from)?;
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
            let decoded = MediaTime(tick_after(from, last.decoded.0)?);
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
            let (pmt_pid, pmt) = (pid(&mut from)?, from.bytes()?);
            tables.push(Tables { at, pat, pmt_pid, pmt, sdt: from.bytes()? });
        }
        let mut programs = Vec::new();
        for _ in 0..from.at_most(PROGRAMS_MAX as u64)? {
            let number = from.at_most(u64::from(u16::MAX))? as u16;
            let (table, clock) = (pid(&mut from)?, pid(&mut from)?);
            let mut streams = Vec::new();
            for _ in 0..from.at_most(STREAMS_MAX as u64)? {
                streams.push(Stream { pid: pid(&mut from)?, kind: from.byte()? });
            }
            programs.push(Program { number, table, clock, streams });
        }
        let decoded = MediaTime(tick_after(&mut from, 0)?);
        let deadlines = from.list(DEADLINES_MAX, 2, FIRST_DEADLINE, |from, last| {
            let at = from.after(last.at, len)?;
            Some(Deadline { at, time: tick_after(from, last.time)? })
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

fn pid(from: &mut Reader<'_>) -> Option<Pid> {
    from.at_most(0x1fff).map(|pid| Pid(pid as u16))
}

/// A time in whole ticks of 90 kHz.
fn tick_after(from: &mut Reader<'_>, last: u64) -> Option<u64> {
    let step = from.number()?.checked_mul(TICK)?;
    last.checked_add(step).filter(|&time| time <= MAX)
}
