//! Tally: the outputs of the frames that one ring has sent.
//!
//! Promise: it holds only the entries of the ring, and those sent since the last query.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tactus_core::rtp;

pub(super) struct Tally(Mutex<Inner>);

struct Inner {
    /// The frames that may be in the ring: output, and bytes of payload.
    order: VecDeque<(usize, u64)>,
    /// Number of frames that have left.
    gone: u64,
    /// Packets and bytes of each output.
    sums: Vec<(u64, u64)>,
}

impl Tally {
    pub(super) fn new(outputs: usize) -> Self {
        let (order, sums) = (VecDeque::new(), vec![(0, 0); outputs]);
        Self(Mutex::new(Inner { order, gone: 0, sums }))
    }

    /// Notes a packet of `len` bytes that was pushed into the ring.
    pub(super) fn pushed(&self, output: usize, len: usize) {
        let payload = len.saturating_sub(rtp::HEADER) as u64;
        self.inner().order.push_back((output, payload));
    }

    /// Packets and bytes of each output, when `gone` frames have left in all. A smaller `gone`
    /// changes nothing.
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
        // The engine resets its count when the stream has ended.
        assert_eq!(tally.gone(0), [(1, 100), (1, 50)]);
        assert_eq!(tally.gone(9), [(2, 120), (1, 50)]);
    }
}
