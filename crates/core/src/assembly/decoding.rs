//! Decoding times of video frames. RTP carries only presentation times.
//!
//! Promise: decoding times increase, and none lies after its presentation time while video frames
//! are reordered no more than at the beginning. If the reordering grows, this is violated only once
//! each time. A decoder that holds a number of video frames outputs one for each input: the
//! presentation time of the output is the decoding time of the input.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

/// Limit of the video frames that a decoder holds back (H.264, A.3.1; H.265, A.4.2).
const DEPTH_MAX: usize = 16;
/// The default of encoders, if the beginning shows no reordering depth.
const DEPTH_USUAL: usize = 2;
/// Ticks of a frame at 25 a second, if there is only one.
const SPAN_USUAL: i64 = 3_600;

/// Video frames of one stream, in the order of arrival.
#[derive(Clone, Debug)]
pub(super) struct Decoding {
    /// They are displayed in the order of arrival.
    is_in_order: bool,
    /// Number of video frames held back.
    depth: usize,
    shown: BinaryHeap<Reverse<i64>>,
    last: Option<i64>,
    /// For the first ones: the presentation time of the very first, and the duration of each.
    first: (i64, i64),
    count: usize,
}

impl Decoding {
    pub(super) fn new(is_in_order: bool) -> Self {
        let depth = if is_in_order { 0 } else { DEPTH_USUAL };
        let first = (0, SPAN_USUAL);
        Self { is_in_order, depth, shown: BinaryHeap::new(), last: None, first, count: 0 }
    }

    /// Starts with the presentation times of the first video frames.
    pub(super) fn begin(&mut self, shown: &[i64]) {
        let mut sorted = shown.to_vec();
        sorted.sort_unstable();
        let spans = sorted.windows(2).map(|two| two[1] - two[0]).filter(|span| *span > 0);
        self.first = (sorted.first().copied().unwrap_or(0), spans.min().unwrap_or(SPAN_USUAL));
        if !self.is_in_order {
            let later = |nth: usize| shown[..nth].iter().filter(|at| **at > shown[nth]).count();
            let depth = (0..shown.len()).map(later).max().unwrap_or(0);
            self.depth = depth.clamp(DEPTH_USUAL, DEPTH_MAX);
        }
    }

    /// The decoding time of the next video frame, which has this presentation time.
    pub(super) fn decoded(&mut self, shown: i64) -> i64 {
        self.shown.push(Reverse(shown));
        let at = match self.shown.len() > self.depth {
            false => {
                let (first, span) = self.first;
                first - (self.depth - self.count.min(self.depth)) as i64 * span
            }
            true => self.shown.pop().expect("there is one more than none").0,
        };
        self.count += 1;
        let next = self.last.map_or(0, |last| last + 1);
        let mut decoded = at.max(next);
        if decoded > shown {
            // More reordering than before: one more frame is held back from now on.
            if self.depth < DEPTH_MAX && !self.is_in_order && self.shown.len() >= self.depth {
                self.depth += 1;
                self.shown.push(Reverse(at));
            }
            decoded = shown;
        }
        self.last = Some(decoded.max(self.last.unwrap_or(0)));
        decoded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn through(shown: &[i64], look: usize) -> Vec<i64> {
        let mut decoding = Decoding::new(false);
        decoding.begin(&shown[..look.min(shown.len())]);
        shown.iter().map(|&at| decoding.decoded(at)).collect()
    }

    #[test]
    fn what_an_encoder_with_two_levels_makes_is_decoded_each_40_ms() {
        // I P B b b, as shown.
        let order = [0, 4, 2, 1, 3, 8, 6, 5, 7, 12, 10, 9, 11];
        let shown: Vec<_> = order.iter().map(|nth| 90_000 + nth * 3_600).collect();
        let expected: Vec<_> = (0..13).map(|nth| 90_000 + (nth - 2) * 3_600).collect();
        assert_eq!(through(&shown, 13), expected);
    }

    #[test]
    fn what_is_shown_as_it_comes_is_decoded_then() {
        let mut decoding = Decoding::new(true);
        decoding.begin(&[90_000, 93_600]);
        assert_eq!(
            [90_000, 93_600, 97_300].map(|at| decoding.decoded(at)),
            [90_000, 93_600, 97_300]
        );
    }

    proptest! {
        #[test]
        fn times_rise_and_none_is_late(
            depth in 0usize..6,
            keys in proptest::collection::vec(any::<u16>(), 30..120),
        ) {
            // An order that a decoder holding `depth` video frames can restore: none is overtaken
            // more often.
            let mut left: Vec<_> =
                (0..keys.len() as i64).map(|nth| (90_000 + nth * 3_000, 0)).collect();
            let mut shown = Vec::new();
            for key in keys {
                let most = left
                    .iter()
                    .position(|(_, overtaken)| *overtaken == depth)
                    .unwrap_or(left.len() - 1);
                let pick = usize::from(key) % (most.min(depth) + 1);
                left[..pick].iter_mut().for_each(|(_, overtaken)| *overtaken += 1);
                shown.push(left.remove(pick).0);
            }
            let decoded = through(&shown, shown.len());
            prop_assert!(decoded.windows(2).all(|two| two[0] < two[1]), "{decoded:?} of {shown:?}");
            prop_assert!(decoded.iter().zip(&shown).all(|(at, shown)| at <= shown));
        }
    }
}
