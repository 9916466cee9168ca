//! Which video frames are shown, and when.
//!
//! Promise: what is chosen is shown at the scale exactly; between two video frames there is time for the second one at
//! the title's rate, with all that is sent beside it; and no more video frames come in a second than asked for. Where they
//! are too far apart for a receiver, a video frame is shown again until the next one's time has come.

use alloc::vec::Vec;

use super::super::{Access, AccessKind};
use super::mux::{beside, place_ticks};
use super::scale::Scale;
use crate::units::{BitRate, MediaTime};

/// Fewer video frames in a second are none to find one's way by; where a title has no more, there are no more.
pub const PER_SECOND_MIN: u32 = 2;

/// No video frame for longer than this is a PTS error (TR 101 290, 2.5: 700 ms). Video frames of different sizes begin to arrive
/// at different times before they are shown: a tenth of a second for a large one.
const AGAIN_EACH: MediaTime = MediaTime(600 * 27_000);

/// Most repeated video frames in all: eleven hours without a new one. Invalid clocks may claim
/// centuries.
const AGAIN_MAX: u64 = 1 << 16;
/// Most repeated video frames between two video frames, plus one: 41 minutes.
const PARTS_MAX: u64 = 1 << 12;

/// By what is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// How fast; neither [`Scale::SLOW`] nor [`Scale::PLAY`], which show all video frames.
    pub scale: Scale,
    /// From where, on the title's line of time.
    pub from: MediaTime,
    /// Most video frames in a second.
    pub per_second: u32,
    /// Of what is built.
    pub rate: BitRate,
}

/// A video frame that is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The packets in which it lies, and others between them.
    pub at: u64,
    /// Behind the last one.
    pub end: u64,
    /// Where in the title, on its line of time.
    pub shown: MediaTime,
    /// When it is shown, from the first one on.
    pub due: MediaTime,
}

/// Chooses from `accesses`, which lie `stride` bytes a packet: the last entry at or before the beginning, then
/// whatever comes soon enough. What is shown again is there again, behind itself.
pub fn choose(accesses: &[Access], stride: usize, terms: Terms) -> Vec<Choice> {
    let Terms { scale, from, per_second, rate } = terms;
    let mut chosen: Vec<Choice> = Vec::new();
    let after = accesses.partition_point(|access| access.shown <= from);
    let is_entry = |access: &Access| access.kind == AccessKind::Entry;
    // A decoder begins with an entry; where none comes before, with the first one.
    let first = accesses[..after].iter().rposition(is_entry);
    let Some(first) = first.or_else(|| accesses.iter().position(is_entry)) else { return chosen };
    let begin = accesses[first].shown;
    let apart = MediaTime(SECOND / u64::from(per_second.max(1)));
    let mut take = |access: &Access| {
        if access.end <= access.at {
            return;
        }
        let due = scale.shown(MediaTime(access.shown.0.abs_diff(begin.0)));
        if let Some(last) = chosen.last() {
            let gap = MediaTime(due.0 - last.due.0);
            let packets = (access.end - access.at).div_ceil(stride as u64);
            let needed = place_ticks(packets + beside(gap) + 1, rate);
            if gap < apart || needed > gap {
                return;
            }
        }
        let Access { at, end, shown, .. } = *access;
        chosen.push(Choice { at, end, shown, due });
    };
    if scale.is_reverse() {
        accesses[..=first].iter().rev().for_each(&mut take);
    } else {
        accesses[first..].iter().for_each(&mut take);
    }
    again(&chosen, stride as u64, rate)
}

/// The same with video frames again where the next one is far away, as far as there is time for them.
fn again(chosen: &[Choice], stride: u64, rate: BitRate) -> Vec<Choice> {
    let mut all = Vec::with_capacity(chosen.len());
    let mut left = AGAIN_MAX;
    for (nth, choice) in chosen.iter().enumerate() {
        all.push(*choice);
        let Some(next) = chosen.get(nth + 1) else { break };
        let gap = next.due.0 - choice.due.0;
        // The last one is followed by the next video frame, which may be larger.
        let packets = [choice, next].map(|each| (each.end - each.at).div_ceil(stride));
        let packets = packets[0].max(packets[1]);
        let fits = |parts: &u64| {
            let part = MediaTime(gap / parts);
            place_ticks(packets + beside(part) + 1, rate) <= part
        };
        let most = gap.div_ceil(AGAIN_EACH.0).min(left + 1).min(PARTS_MAX);
        let parts = (2..=most).rev().find(fits).unwrap_or(1);
        left -= parts - 1;
        for part in 1..parts {
            let after = u128::from(gap) * u128::from(part) / u128::from(parts);
            all.push(Choice { due: MediaTime(choice.due.0 + after as u64), ..*choice });
        }
    }
    all
}

const SECOND: u64 = 27_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s01_clocks_that_lie_make_no_endless_repetition() {
        // Video frames a century apart, each sent in a moment.
        let century = 100 * 365 * 86_400 * SECOND;
        let chosen: Vec<_> = (0..40)
            .map(|nth| Choice {
                at: nth * 1000,
                end: nth * 1000 + 188,
                shown: MediaTime(nth * century),
                due: MediaTime(nth * century),
            })
            .collect();
        let all = again(&chosen, 188, BitRate(8_000_000));
        assert!(all.len() as u64 <= chosen.len() as u64 + AGAIN_MAX, "{}", all.len());
        assert!(chosen.iter().all(|choice| all.contains(choice)), "each is shown");
        assert!(all.is_sorted_by_key(|choice| choice.due));
        // Ten seconds apart they are shown again as before.
        let near = [chosen[0], Choice { due: MediaTime(10 * SECOND), ..chosen[1] }];
        assert_eq!(again(&near, 188, BitRate(8_000_000)).len(), 1 + 10_000 / 600 + 1);
    }
}
