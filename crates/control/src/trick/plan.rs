//! The read plan of a trick play: blocks, order and rate.
//!
//! Promise: each block is read once, even if several consecutive video frames lie in it. At the
//! planned rate, each video frame is in memory when the one before it is shown.

use tactus_core::ts::trick::Choice;
use tactus_core::units::{BitRate, Bytes, MediaTime};

/// Video frames, and their blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    pub(super) choices: Vec<Choice>,
    /// Blocks of the title, in read order.
    pub(super) stops: Vec<u32>,
    /// For each video frame, the number of blocks that are read for it.
    pub(super) fresh: Vec<u32>,
    pub(super) block: Bytes,
    pub(super) title_len: Bytes,
    pub(super) rate: BitRate,
    pub(super) ready: Bytes,
    /// Limit of the read bytes held.
    pub(super) buffer_max: Bytes,
}

/// A need: this number of further bytes at this time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ByteNeed {
    pub(super) at: MediaTime,
    pub(super) bytes: u64,
}

/// A rate, and the bytes that must be ready at the beginning, to meet the needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pace {
    pub(super) rate: BitRate,
    pub(super) ready: Bytes,
}

impl Plan {
    pub(super) fn new(choices: Vec<Choice>, block: Bytes, title_len: Bytes) -> Self {
        let (mut stops, mut fresh) = (vec![], vec![]);
        let mut needs = Vec::with_capacity(choices.len());
        let mut before: Option<(u32, u32)> = None;
        let mut largest = 0;
        for (nth, choice) in choices.iter().enumerate() {
            let (from, to) = blocks_of(choice, block);
            let is_new = |each: &u32| before.is_none_or(|(from, to)| !(from..=to).contains(each));
            let new: Vec<u32> = (from..=to).filter(is_new).collect();
            let bytes = new.iter().map(|&each| len_of(each, block, title_len)).sum();
            let at = nth.checked_sub(1).map_or(MediaTime(0), |before| choices[before].due);
            needs.push(ByteNeed { at, bytes });
            fresh.push(new.len() as u32);
            stops.extend(new);
            largest = largest.max(u64::from(to - from + 1) * block.0);
            before = Some((from, to));
        }
        let Pace { rate, ready } = Pace::of(&needs);
        // The blocks of the current video frame, and the bytes that come meanwhile.
        let buffer_max = Bytes(ready.0 + 2 * largest);
        Self { choices, stops, fresh, block, title_len, rate, ready, buffer_max }
    }

    /// Number of bytes to read.
    pub(super) fn len(&self) -> Bytes {
        let each = |&stop: &u32| len_of(stop, self.block, self.title_len);
        Bytes(self.stops.iter().map(each).sum())
    }

    /// The first and the last block of video frame `nth`.
    pub(super) fn blocks(&self, nth: usize) -> Option<(u32, u32)> {
        self.choices.get(nth).map(|choice| blocks_of(choice, self.block))
    }

    /// Length of a block.
    pub(super) fn len_of(&self, stop: u32) -> u64 {
        len_of(stop, self.block, self.title_len)
    }
}

impl Pace {
    /// The lowest rate that meets `needs` if the next two are ready at the beginning, with never
    /// more than that read ahead.
    pub(super) fn of(needs: &[ByteNeed]) -> Self {
        let pairs = needs.windows(2).map(|pair| pair[0].bytes + pair[1].bytes);
        let single = needs.iter().map(|need| need.bytes);
        let ready = pairs.chain(single).max().unwrap_or(0).max(1);
        let (mut low, mut high) = (RATE_LEAST, RATE_MOST);
        while low < high {
            let rate = low + (high - low) / 2;
            if meets(needs, rate, ready) {
                high = rate;
            } else {
                low = rate + 1;
            }
        }
        // The surplus lets a reader in this process catch up after delays.
        Self { rate: BitRate(low + low.div_ceil(32)), ready: Bytes(ready) }
    }
}

/// Lower limit of the rate: a lower rate makes no difference to a disk.
const RATE_LEAST: u64 = 64_000;
const RATE_MOST: u64 = 100_000_000_000;

fn meets(needs: &[ByteNeed], rate: u64, ready: u64) -> bool {
    // In bits and ticks, without rounding.
    const TICKS: u128 = 27_000_000;
    let full = u128::from(ready) * 8 * TICKS;
    let (mut level, mut now) = (full, 0);
    needs.iter().all(|need| {
        level = full.min(level + u128::from(rate) * u128::from(need.at.0.saturating_sub(now)));
        now = now.max(need.at.0);
        let wanted = u128::from(need.bytes) * 8 * TICKS;
        let is_met = level >= wanted;
        level = level.saturating_sub(wanted);
        is_met
    })
}

fn blocks_of(choice: &Choice, block: Bytes) -> (u32, u32) {
    // A title of more than 2^32 blocks is longer than any file.
    ((choice.at / block.0) as u32, ((choice.end - 1) / block.0) as u32)
}

fn len_of(stop: u32, block: Bytes, title_len: Bytes) -> u64 {
    (title_len.0 - u64::from(stop) * block.0).min(block.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: Bytes = Bytes(1000);

    /// Consecutive video frames at arbitrary times: place and length of each.
    fn choices() -> impl Strategy<Value = (Vec<Choice>, u64)> {
        let one = (0u64..3000, 1u64..2500, 1u64..30_000_000);
        (prop::collection::vec(one, 1..40), 0u64..900, any::<bool>()).prop_map(
            |(all, more, is_reverse)| {
                let (mut at, mut choices) = (0, vec![]);
                for &(gap, len, _) in &all {
                    at += gap;
                    let (shown, due) = (MediaTime(at), MediaTime(0));
                    choices.push(Choice { at, end: at + len, shown, due });
                    at += len;
                }
                if is_reverse {
                    choices.reverse();
                }
                let mut due = 0;
                for (choice, &(_, _, apart)) in choices.iter_mut().zip(&all) {
                    choice.due = MediaTime(due);
                    due += apart;
                }
                (choices, at + more)
            },
        )
    }

    proptest! {
        #[test]
        fn each_block_is_read_once_and_there_with_its_picture((choices, len) in choices()) {
            let plan = Plan::new(choices.clone(), BLOCK, Bytes(len));
            let mut stops = plan.stops.iter();
            let mut held: Vec<u32> = vec![];
            for (nth, choice) in choices.iter().enumerate() {
                let (from, to) = plan.blocks(nth).unwrap();
                prop_assert!(
                    u64::from(from) * 1000 <= choice.at && choice.end <= u64::from(to + 1) * 1000
                );
                held.retain(|each| (from..=to).contains(each));
                held.extend(stops.by_ref().take(plan.fresh[nth] as usize));
                prop_assert!((from..=to).all(|each| held.contains(&each)));
                let sum: u64 = held.iter().map(|&each| plan.len_of(each)).sum();
                prop_assert!(sum <= plan.buffer_max.0);
            }
            prop_assert_eq!(stops.next(), None);
            let mut once = plan.stops.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!(once.len(), plan.stops.len());
            prop_assert_eq!(plan.len().0, once.iter().map(|&each| plan.len_of(each)).sum::<u64>());
        }

        #[test]
        fn a_pace_is_enough_and_no_less_is(
            needs in prop::collection::vec((0u64..50_000_000, 0u64..2_000_000), 1..50),
        ) {
            let mut at = 0;
            let needs: Vec<ByteNeed> = needs
                .iter()
                .map(|&(apart, bytes)| {
                    at += apart;
                    ByteNeed { at: MediaTime(at), bytes }
                })
                .collect();
            let Pace { rate, ready } = Pace::of(&needs);
            // If several needs have the same time, no rate is high enough.
            prop_assume!(rate.0 < RATE_MOST);
            prop_assert!(meets(&needs, rate.0, ready.0));
            let least = rate.0 * 32 / 33 - 1;
            prop_assert!(least < RATE_LEAST || !meets(&needs, least - 1, ready.0));
        }
    }
}
