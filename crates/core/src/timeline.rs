//! Sums over time: how much of a resource is promised in each slot of the next hours.
//!
//! Promise: adding and the maximum of any span take a time logarithmic in [`SLOTS`], whatever has
//! been added. What is removed leaves no trace.
//!
//! Slots are numbered from the start of the clock and kept modulo [`SLOTS`]. What is left in past
//! slots by a promise that has not returned counts for the slots that take their place: the sum is
//! then too high, never too low.

use alloc::boxed::Box;
use core::ops::Range;

use crate::units::{MonoTime, Nanos, SECOND};

/// The span of a slot.
pub const SLOT: Nanos = SECOND;
/// Slots of a timeline: four and a half hours.
pub const SLOTS: u64 = 1 << 14;

/// The sums of one resource: a segment tree. A node's maximum includes what was added to all of its
/// slots at once.
#[derive(Clone, Debug)]
pub struct Timeline {
    added: Box<[u64]>,
    most: Box<[u64]>,
}

/// The slot that contains `time`.
pub const fn slot_of(time: MonoTime) -> u64 {
    time.0 / SLOT.0
}

impl Default for Timeline {
    fn default() -> Self {
        let nodes = || alloc::vec![0; 2 * SLOTS as usize].into_boxed_slice();
        Self { added: nodes(), most: nodes() }
    }
}

impl Timeline {
    /// Adds `amount` to each slot of the span, which has at most [`SLOTS`] slots.
    pub fn add(&mut self, slots: Range<u64>, amount: u64) {
        self.change(slots, |sum| *sum += amount);
    }

    /// Takes back what was added.
    ///
    /// # Panics
    /// If more is taken than was added to these slots together.
    pub fn remove(&mut self, slots: Range<u64>, amount: u64) {
        self.change(slots, |sum| {
            *sum = sum.checked_sub(amount).expect("only what was added is removed");
        });
    }

    /// Adds all sums of another timeline.
    pub fn add_all(&mut self, other: &Self) {
        self.change_all(other, |sum, more| sum + more);
    }

    /// Takes back the sums of another timeline, all of which were added.
    ///
    /// # Panics
    /// If more is taken than was added.
    pub fn remove_all(&mut self, other: &Self) {
        self.change_all(other, |sum, less| {
            sum.checked_sub(less).expect("only what was added is removed")
        });
    }

    /// Node by node: the same span is added to the same nodes of each timeline.
    fn change_all(&mut self, other: &Self, change: impl Fn(u64, u64) -> u64) {
        for (sum, other) in self.added.iter_mut().zip(&other.added) {
            *sum = change(*sum, *other);
        }
        let leaves = SLOTS as usize..2 * SLOTS as usize;
        self.most[leaves.clone()].copy_from_slice(&self.added[leaves]);
        for node in (1..SLOTS as usize).rev() {
            let below = self.most[2 * node].max(self.most[2 * node + 1]);
            self.most[node] = self.added[node] + below;
        }
    }

    /// The largest sum in any slot of the span.
    pub fn max(&self, slots: Range<u64>) -> u64 {
        let [first, second] = spans(slots);
        let most = |span: Range<u64>| self.max_within(1, 0..SLOTS, span);
        most(first).max(most(second))
    }

    /// The largest sum in any slot.
    pub fn max_of_all(&self) -> u64 {
        self.most[1]
    }

    fn change(&mut self, slots: Range<u64>, change: impl Fn(&mut u64)) {
        for span in spans(slots) {
            self.change_within(1, 0..SLOTS, span, &change);
        }
    }

    fn change_within(
        &mut self,
        node: usize,
        of: Range<u64>,
        span: Range<u64>,
        change: &impl Fn(&mut u64),
    ) {
        if span.is_empty() || span.end <= of.start || of.end <= span.start {
            return;
        }
        if span.start <= of.start && of.end <= span.end {
            change(&mut self.added[node]);
            change(&mut self.most[node]);
            return;
        }
        let middle = of.start.midpoint(of.end);
        self.change_within(2 * node, of.start..middle, span.clone(), change);
        self.change_within(2 * node + 1, middle..of.end, span, change);
        self.most[node] = self.added[node] + self.most[2 * node].max(self.most[2 * node + 1]);
    }

    fn max_within(&self, node: usize, of: Range<u64>, span: Range<u64>) -> u64 {
        if span.is_empty() || span.end <= of.start || of.end <= span.start {
            return 0;
        }
        if span.start <= of.start && of.end <= span.end {
            return self.most[node];
        }
        let middle = of.start.midpoint(of.end);
        let first = self.max_within(2 * node, of.start..middle, span.clone());
        self.added[node] + first.max(self.max_within(2 * node + 1, middle..of.end, span))
    }
}

/// The span modulo the number of slots, in two parts.
fn spans(slots: Range<u64>) -> [Range<u64>; 2] {
    let len = (slots.end.saturating_sub(slots.start)).min(SLOTS);
    let start = slots.start % SLOTS;
    let end = start + len;
    [start..end.min(SLOTS), 0..end.saturating_sub(SLOTS)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_and_maxima_are_those_of_a_plain_list(
            changes in prop::collection::vec((0u64..3 * SLOTS, 1u64..SLOTS, 1u64..1000), 1..40),
            asked in prop::collection::vec((0u64..3 * SLOTS, 1u64..SLOTS), 1..20),
        ) {
            let mut timeline = Timeline::default();
            let mut plain = alloc::vec![0; SLOTS as usize];
            let change = |plain: &mut [u64], start: u64, len: u64, by: &dyn Fn(u64) -> u64| {
                for slot in start..start + len {
                    let sum = &mut plain[(slot % SLOTS) as usize];
                    *sum = by(*sum);
                }
            };
            let check = |timeline: &Timeline, plain: &[u64]| {
                for &(start, len) in &asked {
                    let slots = start..start + len;
                    let most = slots.clone().map(|slot| plain[(slot % SLOTS) as usize]).max();
                    prop_assert_eq!(timeline.max(slots), most.unwrap());
                }
                prop_assert_eq!(timeline.max_of_all(), *plain.iter().max().unwrap());
                Ok(())
            };
            for &(start, len, amount) in &changes {
                timeline.add(start..start + len, amount);
                change(&mut plain, start, len, &|sum| sum + amount);
            }
            check(&timeline, &plain)?;
            for &(start, len, amount) in changes.iter().skip(1) {
                timeline.remove(start..start + len, amount);
                change(&mut plain, start, len, &|sum| sum - amount);
            }
            check(&timeline, &plain)?;
            let (start, len, amount) = changes[0];
            timeline.remove(start..start + len, amount);
            prop_assert_eq!(timeline.max_of_all(), 0);
        }

        #[test]
        fn a_timeline_that_is_added_to_another_and_removed_again_counts_in_each_slot(
            changes in prop::collection::vec((0u64..3 * SLOTS, 1u64..SLOTS, 1u64..1000), 2..20),
            asked in prop::collection::vec((0u64..3 * SLOTS, 1u64..SLOTS), 1..20),
        ) {
            let mut parts = [Timeline::default(), Timeline::default()];
            let mut whole = Timeline::default();
            for (nth, &(start, len, amount)) in changes.iter().enumerate() {
                parts[nth % 2].add(start..start + len, amount);
                whole.add(start..start + len, amount);
            }
            let [mut sum, other] = parts;
            let alone = sum.clone();
            sum.add_all(&other);
            let all = |timeline: &Timeline| {
                let of = |&(start, len): &(u64, u64)| timeline.max(start..start + len);
                asked.iter().map(of).chain([timeline.max_of_all()]).collect::<alloc::vec::Vec<_>>()
            };
            prop_assert_eq!(all(&sum), all(&whole));
            for (nth, &(start, len, amount)) in changes.iter().enumerate() {
                if nth % 2 == 0 {
                    sum.remove(start..start + len, amount);
                    sum.add(start..start + len, amount);
                }
            }
            sum.remove_all(&other);
            prop_assert_eq!(all(&sum), all(&alone));
        }
    }
}
