//! Counters written by one thread and read by any: the only output of a real-time thread about
//! itself.
//!
//! Promise: counting is a load and a store, never a locked instruction, and a reader never sees a
//! torn value. Readers of two counters may see one before and one after an event: sums over several
//! counters are not snapshots. A second writer would lose counts (and break nothing else). Keep
//! each counter in the struct of the thread that writes it, and share that struct by `Arc`.
//!
//! All accesses are `Relaxed`: a counter publishes nothing but itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number written by one thread.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at zero.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `amount`; wraps after 2^64.
    #[inline]
    pub fn add(&self, amount: u64) {
        self.set(self.value().wrapping_add(amount));
    }

    /// Replaces the value: for gauges.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Raises the value to `value` if that is higher: for maxima.
    #[inline]
    pub fn raise(&self, value: u64) {
        if value > self.value() {
            self.set(value);
        }
    }

    /// The present value.
    #[inline]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts of values: fixed buckets, 32 to each power of two, so a bucket is at most 1/32 (3.2 %) of
/// its values wide. Values from `LARGEST` on are counted as `LARGEST`.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[Counter]>,
    sum: Counter,
    max: Counter,
}

/// The counts of a [`Histogram`] at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    buckets: Box<[u64]>,
    sum: u64,
    max: u64,
}

/// The largest distinct value: 2^40 - 1, in nanoseconds 18 minutes.
pub const LARGEST: u64 = (1 << LARGEST_BITS) - 1;
const LARGEST_BITS: u32 = 40;
/// 32 buckets to a power of two.
const FINE_BITS: u32 = 5;
const FINE: u64 = 1 << FINE_BITS;
/// Below `FINE` each value has its own bucket; then 32 for each of the powers 5 to 39.
const BUCKETS: usize = ((LARGEST_BITS - FINE_BITS + 1) as usize) << FINE_BITS;

impl Histogram {
    /// An empty histogram (9 KiB).
    pub fn new() -> Self {
        let buckets = (0..BUCKETS).map(|_| Counter::new()).collect();
        Self { buckets, sum: Counter::new(), max: Counter::new() }
    }

    /// Counts `value` once.
    #[inline]
    pub fn record(&self, value: u64) {
        self.buckets[bucket_of(value)].add(1);
        self.sum.add(value);
        self.max.raise(value);
    }

    /// A copy for reading. Taken while the writer runs, it may contain a value in part (in a bucket
    /// and not yet in the sum); the next copy completes it.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            buckets: self.buckets.iter().map(Counter::value).collect(),
            sum: self.sum.value(),
            max: self.max.value(),
        }
    }

    /// [`Snapshot::quantile`] of everything so far.
    pub fn quantile(&self, share: f64) -> u64 {
        self.snapshot().quantile(share)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Snapshot {
    /// Number of values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Their sum, exactly.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The exact maximum. In a difference: the maximum since the start.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that a share of all values (0.99: 99 of 100) do not exceed. Rounds up to the end
    /// of its bucket, never down. Zero without values.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.count() as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, &count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return last_of(index).min(self.max);
            }
        }
        0
    }

    /// Number of values in buckets that end at or below `limit`: for cumulative exposition.
    pub fn count_up_to(&self, limit: u64) -> u64 {
        let within = self.buckets.iter().enumerate().filter(|(index, _)| last_of(*index) <= limit);
        within.map(|(_, count)| count).sum()
    }

    /// The counts of both.
    pub fn plus(&self, other: &Self) -> Self {
        let buckets = self.buckets.iter().zip(&other.buckets);
        Self {
            buckets: buckets.map(|(own, other)| own + other).collect(),
            sum: self.sum + other.sum,
            max: self.max.max(other.max),
        }
    }

    /// The counts since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let pairs = self.buckets.iter().zip(&earlier.buckets);
        Self {
            buckets: pairs.map(|(now, then)| now.wrapping_sub(*then)).collect(),
            sum: self.sum.wrapping_sub(earlier.sum),
            max: self.max,
        }
    }

    /// Adds another thread's values.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }
}

/// The bucket that counts `value`.
const fn bucket_of(value: u64) -> usize {
    let value = if value > LARGEST { LARGEST } else { value };
    if value < FINE {
        return value as usize;
    }
    // The leading one is implied by the row; the next five bits select within the row.
    let power = value.ilog2();
    let row = (power - FINE_BITS + 1) as u64;
    let column = (value >> (power - FINE_BITS)) - FINE;
    (row * FINE + column) as usize
}

/// The largest value that a bucket counts.
const fn last_of(bucket: usize) -> u64 {
    let (row, column) = (bucket as u64 / FINE, bucket as u64 % FINE);
    if row == 0 {
        return column;
    }
    ((FINE + column + 1) << (row - 1)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket_and_buckets_are_narrow() {
        let near_powers = (0..LARGEST_BITS).flat_map(|power| {
            let value = 1_u64 << power;
            [value.saturating_sub(1), value, value + 1, value + value / 3]
        });
        for value in (0..5000).chain(near_powers).filter(|value| *value <= LARGEST) {
            let bucket = bucket_of(value);
            let first = if bucket == 0 { 0 } else { last_of(bucket - 1) + 1 };
            assert!((first..=last_of(bucket)).contains(&value), "{value} in {bucket}");
            assert!((last_of(bucket) - first) * FINE <= first.max(1), "bucket {bucket} too wide");
        }
        assert_eq!(last_of(BUCKETS - 1), LARGEST);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_quantile_is_never_below_the_true_one_and_at_most_a_bucket_above() {
        let histogram = Histogram::new();
        assert_eq!(histogram.quantile(0.5), 0);
        (1..=1000).for_each(|value| histogram.record(value * 1000));
        for (share, exact) in [(0.0, 1000), (0.5, 500_000), (0.99, 990_000), (1.0, 1_000_000)] {
            let found = histogram.quantile(share);
            assert!((exact..=exact + exact / FINE).contains(&found), "{share}: {found}");
        }
        let all = histogram.snapshot();
        assert_eq!((all.count(), all.sum(), all.max()), (1000, 500_500_000, 1_000_000));
        assert_eq!(all.count_up_to(LARGEST), 1000);
    }

    #[test]
    fn a_difference_holds_only_what_came_between() {
        let histogram = Histogram::new();
        histogram.record(5);
        let before = histogram.snapshot();
        histogram.record(7);
        histogram.record(9);
        let mut between = histogram.snapshot().since(&before);
        assert_eq!((between.count(), between.sum(), between.quantile(0.1)), (2, 16, 7));
        between.merge(&before);
        assert_eq!(between, histogram.snapshot());
    }

    #[test]
    fn a_high_water_mark_only_rises() {
        let mark = Counter::new();
        for value in [3, 9, 4] {
            mark.raise(value);
        }
        assert_eq!(mark.value(), 9);
    }
}
