//! The neighbour's share: how much of a core does this machine have?
//!
//! Promise: where two machines are given the two threads of one core (simultaneous multithreading),
//! each has half of what the core can do in a moment, or a bit more, while both work. No counter
//! shows it: nobody is interrupted, nothing is stolen, and the same work takes 1.7 times as long.
//! So a thread that comes before all others works for ten microseconds, a hundred times a second,
//! as fast as a core can, and looks how long it took. It reads and writes no memory, so what else
//! runs on the core does not slow it down.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Result;
use tactus_core::units::{MILLISECOND, MonoTime, Nanos, SECOND};

use crate::clock;
use crate::figures::windows::Span;
use crate::priority;
use crate::watcher::Watcher;

/// Between two looks.
const PERIOD: Nanos = MILLISECOND.times(10);
/// As the gap detector.
const PRIORITY: u32 = 60;
/// 10 us, or somewhat less.
const STEPS: u64 = 2_000;
/// Of a second's looks so many may take longer, one in twenty, and it is still a second of a whole
/// core.
const SLOW_MAX: usize = 5;

/// The shortest that a look has taken since this process began: that of a whole core, if there was
/// one in all that time.
static SHORTEST: AtomicU64 = AtomicU64::new(u64::MAX);

/// A core that is looked at.
#[derive(Debug)]
pub struct Speed(Watcher<Result<Vec<SpeedSample>>>);

/// One look.
#[derive(Clone, Copy, Debug)]
struct SpeedSample {
    at: MonoTime,
    took: Nanos,
}

/// What was seen of a core.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CoreSpeed {
    /// Seconds in which somebody else worked on it.
    pub shared: Vec<Span>,
    /// The share of all looks that took longer.
    pub slow: f64,
}

impl Speed {
    /// Looks at `core` from now on.
    pub fn watch(core: usize) -> Result<Self> {
        Watcher::start("speed", move |stop| watch(core, stop)).map(Self)
    }

    /// Ends it and returns what was seen while it `measured`.
    pub fn stop(self, measured: Span) -> Result<CoreSpeed> {
        let looks = self.0.stop()??;
        Ok(judge(&looks, Nanos(SHORTEST.load(Ordering::Relaxed)), measured))
    }
}

fn watch(core: usize, stop: &AtomicBool) -> Result<Vec<SpeedSample>> {
    priority::pin(core)?;
    priority::fifo(PRIORITY)?;
    let mut looks = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        clock::sleep(PERIOD);
        // Its own instructions come from memory at first.
        work(STEPS / 20);
        let at = clock::now();
        work(STEPS);
        let took = clock::now().since(at);
        SHORTEST.fetch_min(took.0, Ordering::Relaxed);
        looks.push(SpeedSample { at, took });
    }
    Ok(looks)
}

/// Eight sums that have nothing to do with each other, in steps of three: more than a core has
/// units for.
fn work(steps: u64) {
    let mut sums: [u64; 8] = black_box([1, 2, 3, 4, 5, 6, 7, 8]);
    for step in 0..steps {
        for sum in &mut sums {
            *sum = (*sum ^ step).rotate_left(7).wrapping_add(step);
        }
    }
    black_box(sums);
}

/// A look is slow that took a quarter longer than the shortest.
fn judge(looks: &[SpeedSample], shortest: Nanos, measured: Span) -> CoreSpeed {
    let begin = measured.from;
    let is_slow = |look: &SpeedSample| look.took.0 * 4 > shortest.0 * 5;
    let second = |look: &SpeedSample| look.at.since(begin).0 / SECOND.0;
    let is_counted = |look: &&SpeedSample| (begin..measured.to).contains(&look.at);
    let counted: Vec<SpeedSample> = looks.iter().filter(is_counted).copied().collect();
    let shared = counted.chunk_by(|one, next| second(one) == second(next));
    let shared =
        shared.filter(|looks| looks.iter().filter(|look| is_slow(look)).count() > SLOW_MAX);
    let span = |looks: &[SpeedSample]| {
        let from = begin + SECOND.times(second(&looks[0]));
        Span { from, to: from + SECOND }
    };
    let slow = counted.iter().filter(|look| is_slow(look)).count();
    CoreSpeed {
        shared: shared.map(span).collect(),
        slow: slow as f64 / counted.len().max(1) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_in_which_more_than_one_look_in_twenty_is_slow_is_shared() {
        let measured = Span { from: MonoTime(5 * SECOND.0), to: MonoTime(9 * SECOND.0) };
        let looks = |second: u64, slow: u64| {
            (0..100).map(move |nth| {
                let at = MonoTime(second * SECOND.0 + nth * PERIOD.0);
                SpeedSample { at, took: Nanos(if nth < slow { 12_600 } else { 12_400 }) }
            })
        };
        let all = [(4, 100), (5, 0), (6, 5), (7, 6), (8, 100), (9, 100)];
        let all: Vec<SpeedSample> =
            all.into_iter().flat_map(|(second, slow)| looks(second, slow)).collect();
        let seen = judge(&all, Nanos(10_000), measured);
        let span = |second: u64| Span {
            from: MonoTime(second * SECOND.0),
            to: MonoTime((second + 1) * SECOND.0),
        };
        assert_eq!(seen, CoreSpeed { shared: vec![span(7), span(8)], slow: 111.0 / 400.0 });
        assert_eq!(judge(&[], Nanos(10_000), measured), CoreSpeed::default());
    }

    #[test]
    fn a_look_takes_microseconds() {
        // Without its priority nobody looks.
        let Ok(speed) = Speed::watch(0) else { return };
        clock::sleep(MILLISECOND.times(100));
        let all = Span { from: MonoTime(0), to: MonoTime(u64::MAX) };
        let Ok(seen) = speed.stop(all) else { return };
        let shortest = SHORTEST.load(Ordering::Relaxed);
        assert!((500..1_000_000).contains(&shortest), "{shortest} ns");
        assert!((0.0..=1.0).contains(&seen.slow));
    }
}
