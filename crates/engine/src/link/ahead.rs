//! The state of the next visits, loaded before they begin.
//!
//! A stream's state is cold when it is visited: all other streams have been sent since. Loaded one
//! after the other, each cache line costs a full wait. Loaded together, without dependencies
//! between them, the waits overlap.

use std::hint::black_box;

use super::LinkServer;

/// Streams whose state is loaded together. It stays in the second cache of the processor while the
/// kernel sends for them.
pub(super) const TOGETHER: usize = 8;

impl<P> LinkServer<P> {
    /// Loads the state of the streams that are visited next, and then the blocks it points to.
    pub(super) fn read_ahead(&self) {
        let next = || self.schedule.upcoming().take(TOGETHER).map(|index| index as usize);
        let mut read = 0;
        for index in next() {
            let counters = &self.streams[index];
            read ^= counters.bytes.value() ^ counters.session_bytes.value();
            read ^= self.deliveries[index].look_up();
        }
        for index in next() {
            let fed = self.fed.first(&self.deliveries[index].queue.blocks);
            read ^= fed.map_or(0, |fed| u64::from(fed.at) ^ fed.offset.0);
        }
        black_box(read);
    }
}
