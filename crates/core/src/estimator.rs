//! The estimator: how fast a disk is, compared with the model of the start, from the reads that it
//! does.
//!
//! Promise: the estimate is an upper quantile of what was seen, so one bad moment does not move it,
//! and a lasting change does within seconds. It becomes better than the model of the start only by
//! *deep* evidence: reads that kept the disk as busy as admission wants it, and by no more than it
//! has done in a whole second. Light load shows that a disk is slow, but not that it is fast. The
//! cost of a read is constant and nothing is allocated.
//! The estimator knows no clock, no queue and no stream (`docs/design/admission.md`).

use core::mem;

use crate::disk_model::{DiskModel, MilliVisits, Ratio};
use crate::mutant;
use crate::units::{Bytes, MonoTime, Nanos, SECOND};

/// Where the model of the start comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModelOrigin {
    /// Measured thoroughly, by `tactus measure`.
    Measured,
    /// Guessed from a short look: twice as slow as is usual.
    Guess,
}

impl ModelOrigin {
    /// How fast the disk probably is, compared with the model.
    pub const fn expected(self) -> Ratio {
        match self {
            Self::Measured => Ratio::ONE,
            Self::Guess => Ratio::of_thousandths(500),
        }
    }
}

/// What is not known about a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// There is little evidence yet.
    Unknown,
    /// The last evidence differs from the estimate.
    Changing,
    /// Nothing.
    Known,
}

/// A span in which the device always had something to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BusySpan {
    /// Places that were read.
    pub visits: u64,
    /// Bytes that were read.
    pub bytes: Bytes,
    /// Its length.
    pub time: Nanos,
    /// From the lowest to the highest position that was read, for a disk with an arm.
    pub reach: u64,
    /// The device was idle before: its first answer took the latency of a single read.
    pub from_idle: bool,
    /// Each read has reached the device: no cache of this host has answered.
    pub is_direct: bool,
}

/// The reads that a cycle has left over: by the model, an eighth of a cycle or more.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Leftover {
    /// Less: the disk keeps up.
    #[default]
    Nothing,
    /// Reads of streams that are deferred, or of new ones.
    Deferred,
    /// Reads that running streams wait for: the disk has fallen behind.
    Promised,
}

/// What is known about a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Estimate {
    /// The model, relative to that of the start.
    pub ratio: Ratio,
    /// The ratio of the last cycle alone, if the disk was busy and fell behind in it.
    pub pressure: Option<Ratio>,
    /// What the last cycle has left over.
    pub leftover: Leftover,
    /// How much evidence there is, in thousandths.
    pub confidence: u32,
    /// Windows with deep evidence so far.
    pub samples: u64,
}

/// Sums of spans.
#[derive(Clone, Copy, Default, Debug)]
struct Sums {
    busy: Nanos,
    expected: Nanos,
}

impl Sums {
    fn add(&mut self, busy: Nanos, expected: Nanos) {
        self.busy += busy;
        self.expected += expected;
    }

    fn ratio(&self) -> Ratio {
        Ratio::of(self.busy, self.expected)
    }
}

/// Learns how fast a disk is.
pub struct Estimator {
    start: DiskModel,
    cycle: Nanos,
    /// Weights of the samples by their ratio; they decay.
    bins: [u32; BINS],
    /// Weight of the deep samples among them.
    evidence: u32,
    /// Weight of a guess, as long as there is no evidence.
    guess: u32,
    /// The last samples.
    last: [Ratio; 3],
    /// What the samples show.
    learned: Ratio,
    /// What the last deep window has shown, if only for a moment.
    seen: Ratio,
    /// The speed of the disk in three whole windows, at first that of the model. The best of them
    /// bounds the estimate.
    sustained: [Ratio; 3],
    /// Spans of the window: deep ones, and all with a bound for their latency.
    deep: Sums,
    all: Sums,
    /// Time by the model of the window's reads, and of what the kernel reads ahead.
    read: Nanos,
    read_ahead: Nanos,
    window_begun: MonoTime,
    window_end: MonoTime,
    /// A long probe fills the window.
    is_filled: bool,
    /// Spans of the cycle.
    cycle_sums: Sums,
    /// The widest reach so far.
    widest: u64,
    estimate: Estimate,
}

/// A window of evidence; at least a cycle.
const WINDOW: Nanos = SECOND;
/// Weight of a whole sample.
const WHOLE: u32 = 1 << 16;
/// Part of the weights that a whole sample takes away, in 128ths: half of them in 30 samples.
const DECAY: u64 = 3;
/// Deep samples for full confidence: half of what the decay leaves in the long run.
const FULL: u32 = 20 * WHOLE;
/// Weight of a measured model, and of a guess, at the start. A guess has none any more when the
/// confidence is full.
const MEASURED: u32 = 30 * WHOLE;
const GUESS: u32 = 2 * WHOLE;
/// The part of the weight above the estimate: the upper quantile is the ninth decile.
const ABOVE: u32 = 10;
/// Bins for each doubling of the ratio.
const PER_OCTAVE: usize = 32;
/// From [`Ratio::MIN`] to [`Ratio::MAX`].
const BINS: usize = 14 * PER_OCTAVE;
/// On flash, a span of this many times the depth shows the pace and not the latency.
pub const DEEP: u32 = 4;
/// A disk that is this part of a cycle behind at its end has fallen behind. Streams have one cycle.
const BEHIND: u64 = 8;
/// The disk server sees the end of a read at its next poll.
const POLL: Nanos = Nanos::from_millis(2);

/// `2^(i/32)`, in 65536ths.
const STEPS: [u32; PER_OCTAVE] = [
    65536, 66971, 68438, 69936, 71468, 73032, 74632, 76266, 77936, 79642, 81386, 83169, 84990,
    86851, 88752, 90696, 92682, 94711, 96785, 98905, 101_070, 103_283, 105_545, 107_856, 110_218,
    112_631, 115_098, 117_618, 120_194, 122_825, 125_515, 128_263,
];

impl Estimator {
    /// Begins with `start`, for a disk with this cycle.
    pub fn new(start: DiskModel, origin: ModelOrigin, cycle: Nanos) -> Self {
        let mut bins = [0; BINS];
        let (measured, guess) = match origin {
            ModelOrigin::Measured => (MEASURED, 0),
            ModelOrigin::Guess => (0, GUESS),
        };
        bins[bin_of(Ratio::ONE)] = measured;
        let mut new = Self {
            start,
            cycle,
            bins,
            evidence: measured,
            guess,
            last: [Ratio::MIN; 3],
            learned: Ratio::ONE,
            seen: origin.expected(),
            sustained: [if start.has_arm() { Ratio::MIN } else { Ratio::ONE }; 3],
            deep: Sums::default(),
            all: Sums::default(),
            read: Nanos(0),
            read_ahead: Nanos(0),
            window_begun: MonoTime(0),
            window_end: MonoTime(0),
            is_filled: false,
            cycle_sums: Sums::default(),
            widest: 1,
            estimate: Estimate {
                ratio: Ratio::ONE,
                pressure: None,
                leftover: Leftover::Nothing,
                confidence: 0,
                samples: 0,
            },
        };
        new.estimate.confidence = new.confidence();
        new
    }

    /// What is known now.
    pub const fn estimate(&self) -> Estimate {
        self.estimate
    }

    /// The model by the estimate.
    pub fn model(&self) -> DiskModel {
        self.start.slower_by(self.estimate.ratio)
    }

    /// The model by what the last deep window has shown.
    pub fn seen(&self) -> DiskModel {
        self.start.slower_by(self.seen)
    }

    /// What a probe would tell.
    pub fn doubt(&self) -> Doubt {
        let (seen, learned) = (self.seen.max(self.sustained()).0, self.estimate.ratio.0);
        match self.evidence < FULL {
            true => Doubt::Unknown,
            false if seen > learned * 5 / 4 || learned > seen * 5 / 4 => Doubt::Changing,
            false => Doubt::Known,
        }
    }

    /// Whether the last deep window was faster than those whole windows. Then the disk may be so
    /// fast for a moment only.
    pub fn is_bounded(&self) -> bool {
        self.seen.0 * 9 / 8 < self.sustained().0
    }

    /// Notes a busy span.
    pub fn note_busy(&mut self, span: &BusySpan) {
        let BusySpan { visits, bytes, time, reach, from_idle, is_direct } = *span;
        if visits == 0 {
            return;
        }
        self.widest = self.widest.max(reach);
        let expected = self.expected(visits, bytes, reach);
        let bound = self.bound(visits, bytes, expected, from_idle);
        self.all.add(time, bound);
        self.cycle_sums.add(time, bound);
        self.read += expected;
        let is_deep = is_direct && self.is_deep(visits, expected, time);
        if mutant!(LightLoadTrusted, true, is_deep) {
            self.deep.add(time, mutant!(LightLoadTrusted, bound, expected));
        }
    }

    /// Notes that streams have waited for the kernel's reads for this time. `first` has the bytes
    /// of the first block if the device was idle before. [`Self::note_ahead`] counts the bytes.
    pub fn note_wait(&mut self, time: Nanos, first: Option<Bytes>) {
        let bound = first.map_or(Nanos(0), |bytes| {
            let expected = self.expected(1, bytes, 0);
            self.bound(1, bytes, expected, true)
        });
        self.all.add(time, bound);
        self.cycle_sums.add(time, bound);
    }

    /// Notes that the kernel reads this many bytes ahead.
    pub fn note_ahead(&mut self, bytes: Bytes) {
        let time = self.start.reading(MilliVisits(1000), bytes);
        self.all.add(Nanos(0), time);
        self.cycle_sums.add(Nanos(0), time);
        self.read_ahead += time;
    }

    /// Begins a window at `now`, which ends at `end`: that of a long probe.
    pub fn begin_window(&mut self, now: MonoTime, end: MonoTime) {
        self.end_window(now, end);
    }

    /// Notes that a long probe has filled the window, which is about to end.
    pub fn note_filled(&mut self) {
        self.is_filled = true;
    }

    /// Ends a cycle, and a window if it is over. `promised` is the time by the model of reads that
    /// running streams wait for and that have not been begun; `all` is that of all streams' reads.
    pub fn end_cycle(&mut self, now: MonoTime, promised: Nanos, all: Nanos) {
        let sums = mem::take(&mut self.cycle_sums);
        let is_busy = sums.busy.0 >= self.cycle.0 / 4;
        let is_much = |time: Nanos| time.0 >= self.cycle.0 / BEHIND;
        self.estimate.leftover = match (is_much(promised), is_much(all)) {
            (true, _) => Leftover::Promised,
            (false, true) => Leftover::Deferred,
            (false, false) => Leftover::Nothing,
        };
        let is_behind = self.estimate.leftover == Leftover::Promised;
        self.estimate.pressure = (is_busy && is_behind).then(|| sums.ratio());
        if now >= self.window_end {
            self.end_window(now, now + Nanos(WINDOW.0.max(self.cycle.0)));
        }
    }

    /// Ends the window at `now`. The next one ends at `next`.
    fn end_window(&mut self, now: MonoTime, next: MonoTime) {
        let (deep, all) = (self.deep, self.all);
        (self.deep, self.all) = (Sums::default(), Sums::default());
        self.note_sustained(now);
        (self.window_begun, self.window_end) = (now, next);
        if deep.expected > Nanos(0) {
            self.seen = deep.ratio();
            self.add(self.seen, WHOLE);
            self.evidence = (self.evidence + WHOLE).min(u32::MAX / 2);
            self.estimate.samples += 1;
        } else if all.expected > Nanos(0) {
            // Light load is evidence only of a slow disk, and the less the lighter it is.
            let ratio = all.ratio();
            let full = self.cycle.0 / 4;
            let weight = u64::from(WHOLE) * all.expected.0.min(full) / full;
            if ratio > self.estimate.ratio && weight > 0 {
                self.add(ratio, weight as u32);
            }
        }
        self.estimate.ratio = self.learned.max(self.sustained());
        self.estimate.confidence = self.confidence();
    }

    /// Notes the speed of the disk in the whole window. Without a long probe it counts only if it
    /// is better than before. The kernel's read-ahead counts only beside a long probe, and at most
    /// as much as the other reads: it is noted for each viewer, though viewers of one place share
    /// it.
    fn note_sustained(&mut self, now: MonoTime) {
        let length = now.since(self.window_begun);
        let (read, ahead) = (mem::take(&mut self.read), mem::take(&mut self.read_ahead));
        let is_filled = mem::take(&mut self.is_filled);
        let all = if is_filled { read + ahead.min(read) } else { read };
        let ratio = Ratio::of(length, all);
        // The cycle may have been seen to begin late, and to end in time.
        let is_whole = length.0 >= WINDOW.0 / 16 * 15;
        if is_filled || is_whole && ratio < self.sustained() {
            let [a, b, _] = self.sustained;
            self.sustained = [ratio, a, b];
        }
    }

    fn sustained(&self) -> Ratio {
        let [a, b, c] = self.sustained;
        mutant!(BurstTrusted, Ratio::MIN, a.min(b).min(c))
    }

    /// Adds a sample; what was known before loses weight.
    fn add(&mut self, ratio: Ratio, weight: u32) {
        let part = DECAY * u64::from(weight);
        let decayed = |old: u32| old - (u64::from(old) * part).div_ceil(128 << 16) as u32;
        for bin in &mut self.bins {
            *bin = decayed(*bin);
        }
        self.evidence = decayed(self.evidence);
        let at = &mut self.bins[bin_of(ratio)];
        *at = at.saturating_add(weight);
        if weight >= WHOLE / 2 {
            self.last = [ratio, self.last[0], self.last[1]];
        }
        let [a, b, c] = self.last;
        // Two bad windows of three count at once, one counts only in the quantile.
        let median = a.min(b).max(a.max(b).min(c));
        let learned = self.quantile().max(median);
        self.learned = mutant!(SlownessIgnored, learned.min(Ratio::ONE), learned);
    }

    fn confidence(&self) -> u32 {
        (u64::from(self.evidence.min(FULL)) * 1000 / u64::from(FULL)) as u32
    }

    /// The ratio below which nine tenths of the weight are. Rounds up to the bin's end.
    fn quantile(&self) -> Ratio {
        let doubtful = u64::from(FULL - self.evidence.min(FULL));
        let guess = u64::from(self.guess) * doubtful / u64::from(FULL);
        let guessed = bin_of(Ratio::ONE);
        let total = guess + self.bins.iter().map(|&weight| u64::from(weight)).sum::<u64>();
        let mut above = 0;
        for (at, &weight) in self.bins.iter().enumerate().rev() {
            let weight = u64::from(weight) + if at == guessed { guess } else { 0 };
            above += weight;
            if weight > 0 && above * u64::from(ABOVE) > total {
                return end_of(at);
            }
        }
        Ratio::ONE
    }

    /// The time by the model of the start. The arm's travel over a part of the disk grows with the
    /// root of that part.
    fn expected(&self, visits: u64, bytes: Bytes, reach: u64) -> Nanos {
        let part = (u128::from(reach) * 1_000_000 / u128::from(self.widest)).isqrt();
        let sweep = Nanos((u128::from(self.start.sweep.0) * part / 1000) as u64);
        let model = DiskModel { sweep, ..self.start };
        model.reading(MilliVisits(visits * 1000), bytes)
    }

    /// An upper bound of the time of a healthy disk. The reads at the beginning and at the end of a
    /// span are not spread over the whole depth.
    fn bound(&self, visits: u64, bytes: Bytes, expected: Nanos, from_idle: bool) -> Nanos {
        if !from_idle {
            return expected;
        }
        if self.start.has_arm() {
            return expected + self.start.visit + self.start.sweep + POLL;
        }
        let more = u64::from(self.start.depth.saturating_sub(1));
        let bytes =
            Bytes((u128::from(bytes.0) * u128::from(visits + more)).div_ceil(u128::from(visits))
                as u64);
        self.start.reading(MilliVisits((visits + more) * 1000), bytes) + POLL
    }

    /// Whether a span tells the pace of a full disk. With an arm, half a full cycle does: the time
    /// grows at most as fast as the number of places. On slow flash, fewer reads take as long.
    fn is_deep(&self, visits: u64, expected: Nanos, time: Nanos) -> bool {
        let depth = u64::from(self.start.depth);
        match self.start.has_arm() {
            true => expected.0 >= self.cycle.0 / 2,
            false if time.0 >= self.cycle.0 / 2 => visits >= 2 * depth,
            false => visits >= depth * u64::from(DEEP),
        }
    }
}

/// The bin of a ratio.
fn bin_of(ratio: Ratio) -> usize {
    // In units of the least ratio, with 16 bits behind the point.
    let scaled =
        (u64::from(ratio.0.clamp(Ratio::MIN.0, Ratio::MAX.0)) << 16) / u64::from(Ratio::MIN.0);
    let octave = (scaled.ilog2() - 16) as usize;
    let rest = (scaled >> octave) as u32;
    let step = STEPS.partition_point(|&step| step <= rest) - 1;
    (octave * PER_OCTAVE + step).min(BINS - 1)
}

/// The highest ratio of a bin.
fn end_of(bin: usize) -> Ratio {
    let (octave, step) = ((bin + 1) / PER_OCTAVE, (bin + 1) % PER_OCTAVE);
    let scaled = u64::from(STEPS[step]) << octave;
    Ratio(((u64::from(Ratio::MIN.0) * scaled) >> 16) as u32)
}

#[cfg(test)]
mod tests;
