//! Which output the frames were of that have left by one ring.
//!
//! Promise: it holds no more than is in the ring, and what has left since it was last asked.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tactus_core::rtp;

pub(super) struct Tally(Mutex<Inner>);

struct Inner {
    /// Those that may be in the ring: the output, and bytes of payload.
    order: VecDeque<(usize, u64)>,
    /// How many have left.
    gone: u64,
    /// Packets and bytes of each output.
    sums: Vec<(u64, u64)>,
}

impl Tally {
    pub(super) fn new(outputs: usize) -> Self {
        let (order, sums) = (VecDeque::new(), vec![(0, 0); outputs]);
        Self(Mutex::new(Inner { order, gone: 0, sums }))
    }

    /// A packet of `len` bytes has been put into the ring.
    pub(super) fn pushed(&self, output: usize, len: usize) {
        let payload = len.saturating_sub(rtp::HEADER) as u64;
        self.inner().order.push_back((output, payload));
    }

    /// Packets and bytes of each output, when `gone` have left in all; what was known stays known.
    pub(super) fn gone(&self, gone: u64) -> Vec<(u64, u64)> {
        let mut inner = self.inner();
        while inner.gone < gone
            && let Some((output, payload)) = inner.order.pop_front()
        {
            inner.gone += 1;
            inner.sums[output].0 += 1;
            inner.sums[output].1 += payload;
        }
        inner.sums.clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_output_has_what_has_left_of_it() {
        let tally = Tally::new(2);
        for (output, len) in [(0, 112), (1, 62), (0, 32)] {
            tally.pushed(output, len);
        }
        assert_eq!(tally.gone(0), [(0, 0), (0, 0)]);
        assert_eq!(tally.gone(2), [(1, 100), (1, 50)]);
        // The engine forgets its count when it has ended.
        assert_eq!(tally.gone(0), [(1, 100), (1, 50)]);
        assert_eq!(tally.gone(9), [(2, 120), (1, 50)]);
    }
}
