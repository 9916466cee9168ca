//! The rate of a transport stream, from the positions of its PCRs.
//!
//! Promise: the rate of a constant-rate stream is exact (from a second or two never above, some
//! bit/s below), also across the wrap of the clock; that of a variable-rate stream is the mean,
//! rounded up. Jumps of the clock are detected, and the rate then comes from the ranges between
//! them. It reads no file: windows in, samples out.
//!
//! The clock has whole ticks, so a span is known to one tick. The rate is therefore `ceil(bits /
//! (ticks + 1))`: the least whole rate that the samples permit.

use core::ops::Range;

use super::{Framing, PCR_BYTE, Pcr, Pid};
use crate::units::{BitRate, MediaTime};

/// A PCR and the byte of the file at which it is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcrSample {
    /// The offset of the byte.
    pub at: u64,
    /// The PCR.
    pub pcr: Pcr,
}

/// The longest range of one PID's clock without a jump in a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcrSpan {
    /// The PCR PID.
    pub pid: Pid,
    /// The run's first sample.
    pub first: PcrSample,
    /// The run's last sample.
    pub last: PcrSample,
    /// The window contains a jump of the clock.
    pub broken: bool,
}

/// The measured rate of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mux {
    /// Bits of the file for each second of its clock, rounded up.
    pub rate: BitRate,
    /// The clock jumps somewhere, so the rate is that of the sampled parts.
    pub broken: bool,
}

/// Ticks of 27 MHz in a second.
const SECOND: u64 = 27_000_000;
/// A larger distance of neighbouring samples is a jump. The standard allows 100 ms; ten times that
/// tolerates slow senders and still detects a new recording.
const GAP_MAX: MediaTime = MediaTime(SECOND);
/// A run shorter than one frame gives no rate.
const SPAN_MIN: MediaTime = MediaTime(SECOND / 25);
/// The largest factor between the rate of a run and the rate between two runs. Beyond it the clock
/// has jumped between them; quiet and busy scenes differ by less.
const SPREAD_MAX: u64 = 8;
/// A rate above 100 Gbit/s is a broken clock.
const RATE_MAX: u64 = 100_000_000_000;

impl PcrSpan {
    /// The run in `window`, which starts at byte `offset` of the file, of PID `pid` or of the first
    /// PID with a PCR.
    pub fn in_window(
        window: &[u8],
        offset: u64,
        framing: Framing,
        pid: Option<Pid>,
    ) -> Option<Self> {
        let mut run: Option<Self> = None;
        let mut best: Option<Self> = None;
        let mut broken = false;
        let mut wanted = pid;
        for (at, packet) in framing.packets(window) {
            if wanted.is_some_and(|wanted| wanted != packet.pid()) || packet.has_error() {
                continue;
            }
            let Some(pcr) = packet.pcr() else { continue };
            wanted = Some(packet.pid());
            let sample = PcrSample { at: offset + at as u64 + PCR_BYTE, pcr };
            run = match run {
                Some(run) if !packet.is_discontinuous() && pcr.since(run.last.pcr) <= GAP_MAX => {
                    Some(Self { last: sample, ..run })
                }
                _ => {
                    broken |= run.is_some();
                    best = longer(best, run);
                    Some(Self { pid: packet.pid(), first: sample, last: sample, broken: false })
                }
            };
        }
        longer(best, run).map(|best| Self { broken, ..best })
    }

    fn bytes(&self) -> u64 {
        self.last.at - self.first.at
    }

    fn ticks(&self) -> MediaTime {
        self.last.pcr.since(self.first.pcr)
    }

    /// Whether the run is too short for a rate. The next larger window may have a longer one.
    pub fn is_short(&self) -> bool {
        self.ticks() < SPAN_MIN
    }

    fn rate(&self) -> Option<BitRate> {
        (!self.is_short()).then(|| rate(self.bytes(), self.ticks().0))?
    }
}

/// The rate of a stream from runs of one PID's clock, in file order: those of its ends, and of
/// positions in between that reveal a clock that was set back.
pub fn measure(spans: &[PcrSpan]) -> Option<Mux> {
    let local = || spans.iter().filter_map(PcrSpan::rate);
    let (low, high) = (local().min()?, local().max()?);
    let mut broken = spans.iter().any(|span| span.broken);
    let (mut bytes, mut ticks) = (0u64, 0u64);
    for span in spans {
        bytes = bytes.checked_add(span.bytes())?;
        ticks = ticks.checked_add(span.ticks().0)?;
    }
    for pair in spans.windows(2) {
        // The clock jumps, or the rate has changed more than the runs show.
        match stretch(&pair[0], &pair[1], low, high) {
            Some((more, last)) => {
                bytes = bytes.checked_add(more)?;
                ticks = ticks.checked_add(last)?;
            }
            None => broken = true,
        }
    }
    Some(Mux { rate: rate(bytes, ticks)?, broken })
}

/// The bytes between the first two neighbouring runs between which [`measure`] sees a jump. If the
/// rate has changed there, a run from the middle of these bytes shows it.
pub fn first_step(spans: &[PcrSpan]) -> Option<Range<u64>> {
    let local = || spans.iter().filter_map(PcrSpan::rate);
    let (low, high) = (local().min()?, local().max()?);
    let is_step = |pair: &&[PcrSpan]| {
        let is_between = !pair[0].broken && !pair[1].broken;
        is_between && stretch(&pair[0], &pair[1], low, high).is_none()
    };
    let step = spans.windows(2).find(is_step)?;
    Some(step[0].last.at..step[1].first.at)
}

/// Bytes and ticks between two runs, if the clock is continuous between them at a rate that fits
/// the slowest and the fastest run.
fn stretch(from: &PcrSpan, to: &PcrSpan, low: BitRate, high: BitRate) -> Option<(u64, u64)> {
    if from.broken || to.broken {
        return None;
    }
    let bytes = to.first.at.checked_sub(from.last.at)?;
    let span = u128::from(to.first.pcr.since(from.last.pcr).0);
    // Whole wraps are invisible in `span`: as many as the fastest run makes likely.
    let likely = u128::from(bytes) * 8 * u128::from(SECOND) / u128::from(high.0);
    let wrap = u128::from(Pcr::WRAP.0);
    let wraps = (likely + wrap / 2).saturating_sub(span) / wrap;
    let ticks = u64::try_from(span + wraps * wrap).ok()?;
    let fits = low.0 / SPREAD_MAX..=high.0.saturating_mul(SPREAD_MAX);
    (bytes == 0 || rate(bytes, ticks).is_some_and(|rate| fits.contains(&rate.0)))
        .then_some((bytes, ticks))
}

fn longer(one: Option<PcrSpan>, other: Option<PcrSpan>) -> Option<PcrSpan> {
    match (one, other) {
        (Some(one), Some(other)) if one.bytes() >= other.bytes() => Some(one),
        (one, other) => other.or(one),
    }
}

/// Rounds up, after allowing for the tick by which the samples may err.
fn rate(bytes: u64, ticks: u64) -> Option<BitRate> {
    let rate = (u128::from(bytes) * 8 * u128::from(SECOND)).div_ceil(u128::from(ticks) + 1);
    u64::try_from(rate).ok().filter(|rate| (1..=RATE_MAX).contains(rate)).map(BitRate)
}

#[cfg(test)]
mod tests {
    use super::super::packet::tests::packet;
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// The clock of a constant-rate stream at byte `at`, rounded down as a muxer does.
    fn law(base: u64, at: u64, rate: u64) -> Pcr {
        let ticks = u128::from(at) * 8 * u128::from(SECOND) / u128::from(rate);
        Pcr::at(MediaTime(base + (ticks % u128::from(Pcr::WRAP.0)) as u64))
    }

    /// `count` packets from packet `first` of a stream, every tenth with a clock.
    fn window(base: u64, first: u64, count: u64, rate: u64) -> Vec<u8> {
        (first..first + count)
            .flat_map(|nth| {
                let pcr = (nth % 10 == 0).then(|| law(base, nth * 188 + PCR_BYTE, rate));
                packet(256, nth as u8, pcr)
            })
            .collect()
    }

    fn span(bytes: &[u8], first: u64) -> PcrSpan {
        PcrSpan::in_window(bytes, first * 188, Framing::PLAIN, None).unwrap()
    }

    proptest! {
        #[test]
        fn a_constant_rate_comes_out_as_exactly_as_samples_allow_across_wraps(
            rate in 200_000u64..60_000_000, base in 0u64..Pcr::WRAP.0, gap in 0u64..400_000_000,
        ) {
            let head = window(base, 0, 2000, rate);
            let tail = window(base, 2000 + gap, 2000, rate);
            let (head, tail) = (span(&head, 0), span(&tail, 2000 + gap));
            let Mux { rate: BitRate(measured), broken } = measure(&[head, tail]).unwrap();
            prop_assert!(!broken && measured <= rate);
            // Each of the two outermost samples errs by a tick: over a second or two that is some
            // bit/s.
            let bits = u128::from(tail.last.at - head.first.at) * 8;
            let ticks = bits * u128::from(SECOND) / u128::from(rate);
            prop_assert!(u128::from(rate - measured) <= 2 * u128::from(rate) / ticks, "{measured}");
        }

        #[test]
        fn no_window_and_no_span_is_hostile_enough(
            bytes in proptest::collection::vec(any::<u8>(), 0..4000), offset in 0u64..1 << 50,
            samples in proptest::array::uniform4((0u64..1 << 60, 0u64..Pcr::WRAP.0)), broken: bool,
        ) {
            let found = PcrSpan::in_window(&bytes, offset, Framing::PLAIN, None);
            prop_assert!(found.is_none_or(|found| found.last.at >= found.first.at));
            let sample = |nth: usize, more: u64| PcrSample {
                at: samples[nth].0 + more,
                pcr: Pcr::at(MediaTime(samples[nth].1)),
            };
            let pid = Pid(256);
            let head = PcrSpan { pid, first: sample(0, 0), last: sample(1, 1 << 60), broken };
            let tail = PcrSpan { pid, first: sample(2, 0), last: sample(3, 1 << 61), broken };
            if let Some(mux) = measure(&[head, tail]) {
                prop_assert!(mux.rate.0 > 0 && mux.rate.0 <= RATE_MAX);
            }
        }
    }

    #[test]
    fn a_short_file_is_measured_by_its_only_window() {
        let bytes = window(77, 0, 500, 3_760_000);
        let mux = measure(&[span(&bytes, 0)]).unwrap();
        assert_eq!(mux, Mux { rate: BitRate(3_760_000), broken: false });
    }

    #[test]
    fn a_variable_rate_is_its_mean_rounded_up() {
        let head = window(0, 0, 1000, 2_000_000);
        let mut tail = span(&window(0, 9000, 1000, 4_000_000), 9000);
        // The whole of 10,000 packets lasts 5 s.
        let head = span(&head, 0);
        tail.last = PcrSample {
            at: head.first.at + 1_880_000,
            pcr: head.first.pcr.after(MediaTime(5 * SECOND)),
        };
        let mux = measure(&[head, PcrSpan { first: tail.last, ..tail }]).unwrap();
        assert_eq!(mux, Mux { rate: BitRate(3_008_000), broken: false });
    }

    #[test]
    fn two_recordings_in_one_file_are_said_to_be_broken() {
        let head = span(&window(5_000_000_000, 0, 2000, 3_760_000), 0);
        let tail = span(&window(1_000_000, 9000, 2000, 3_760_000), 9000);
        let mux = measure(&[head, tail]).unwrap();
        assert!(mux.broken);
        assert!((3_759_990..=3_760_000).contains(&mux.rate.0));
    }

    #[test]
    fn a_jump_inside_the_window_is_noticed_and_the_longer_part_counts() {
        let mut bytes = window(0, 0, 300, 3_760_000);
        bytes.extend(window(900 * SECOND, 300, 900, 3_760_000));
        let span = span(&bytes, 0);
        assert!(span.broken);
        assert_eq!(span.first.at, 300 * 188 + PCR_BYTE);
        assert_eq!(measure(&[span]), Some(Mux { rate: BitRate(3_760_000), broken: true }));
    }

    #[test]
    fn a_clock_that_stands_still_tells_no_rate() {
        let bytes: Vec<u8> =
            (0..50).flat_map(|n| packet(256, n, Some(Pcr::at(MediaTime(9))))).collect();
        assert_eq!(measure(&[span(&bytes, 0)]), None);
    }
}
