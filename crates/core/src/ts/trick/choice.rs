//! Chooses the video frames to show, and their times.
//!
//! Promise: frames are shown at the exact scale. Between two frames there is time to send the
//! second one at the title's rate, with tables and clocks. There are at most the requested number
//! of frames in a second. If they are too far apart for a receiver, a frame is repeated until the
//! next one's time.

use alloc::vec::Vec;

use super::super::{Access, AccessKind};
use super::mux::{beside, place_ticks};
use super::scale::Scale;
use crate::units::{BitRate, MediaTime};

/// Fewer frames in a second are useless for searching; a title with fewer shows those that it has.
pub const PER_SECOND_MIN: u32 = 2;

/// A longer distance of frames is a PTS error (TR 101 290, 2.5: 700 ms). Frames of different sizes
/// begin to arrive at different times before their presentation: a tenth of a second for a large
/// one.
const AGAIN_EACH: MediaTime = MediaTime(600 * 27_000);

/// Upper bound of all repetitions: eleven hours without a new frame. Invalid clocks may claim
/// centuries.
const AGAIN_MAX: u64 = 1 << 16;
/// Upper bound of repetitions between two frames, plus one: 41 minutes.
const PARTS_MAX: u64 = 1 << 12;

/// The parameters of the choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrickOptions {
    /// The speed; neither [`Scale::SLOW`] nor [`Scale::PLAY`], which show all frames.
    pub scale: Scale,
    /// The start, on the title's timeline.
    pub from: MediaTime,
    /// The largest number of frames in a second.
    pub per_second: u32,
    /// The rate of the result.
    pub rate: BitRate,
}

/// A chosen video frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The offset of its first packet; other packets lie between its packets.
    pub at: u64,
    /// The end of its last packet.
    pub end: u64,
    /// Its time on the title's timeline.
    pub shown: MediaTime,
    /// Its presentation time, counted from the first one.
    pub due: MediaTime,
}

/// Chooses from `accesses`, whose packets have `stride` bytes: the last entry at or before the
/// start, then every frame that comes soon enough. Repetitions follow their frame.
pub fn choose(accesses: &[Access], stride: usize, options: TrickOptions) -> Vec<Choice> {
    let TrickOptions { scale, from, per_second, rate } = options;
    let mut chosen: Vec<Choice> = Vec::new();
    let after = accesses.partition_point(|access| access.shown <= from);
    let is_entry = |access: &Access| access.kind == AccessKind::Entry;
    // A decoder starts with an entry; if there is none before, with the first one.
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

/// Adds repetitions where the next frame is far away, as far as there is time for them.
fn again(chosen: &[Choice], stride: u64, rate: BitRate) -> Vec<Choice> {
    let mut all = Vec::with_capacity(chosen.len());
    let mut left = AGAIN_MAX;
    for (nth, choice) in chosen.iter().enumerate() {
        all.push(*choice);
        let Some(next) = chosen.get(nth + 1) else { break };
        let gap = next.due.0 - choice.due.0;
        // The last repetition is followed by the next frame, which may be larger.
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
        // Frames a century apart, each sent in a moment.
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
        // Ten seconds apart they are repeated as before.
        let near = [chosen[0], Choice { due: MediaTime(10 * SECOND), ..chosen[1] }];
        assert_eq!(again(&near, 188, BitRate(8_000_000)).len(), 1 + 10_000 / 600 + 1);
    }
}
