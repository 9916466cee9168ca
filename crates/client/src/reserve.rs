//! Room for reads of a title at moments.

use std::num::NonZeroU64;

use tactus_core::units::Nanos;

use crate::connection::{Connection, unexpected};
use crate::error::Result;
use crate::protocol::{Reply, Request};

/// The reads that room is reserved for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReserveOptions {
    /// Between the moments of two reads in the mean.
    pub interval: Nanos,
    /// How much earlier a moment may be than the mean interval allows. Zero for reads in an exact
    /// rhythm.
    pub tolerance: Nanos,
    /// Bytes of a read at most; no more than a block has.
    pub len: u32,
}

/// Reserved room for the reads of one title at moments, until the title is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserve {
    ahead: Nanos,
    block: NonZeroU64,
}

impl Reserve {
    pub(crate) fn new(
        connection: &Connection,
        handle: u32,
        options: &ReserveOptions,
    ) -> Result<Self> {
        let ReserveOptions { interval, tolerance, len } = *options;
        let (interval, tolerance) = (interval.0, tolerance.0);
        match connection.ask(&Request::Reserve { handle, interval, tolerance, len })? {
            Reply::Reserved { ahead, block } => {
                let block = NonZeroU64::new(block).unwrap_or(NonZeroU64::MAX);
                Ok(Self { ahead: Nanos(ahead), block })
            }
            other => Err(unexpected(other)),
        }
    }

    /// How far ahead of its moment a read of `len` bytes from `offset` on has to be submitted. The
    /// request needs some time to the server, so add a few milliseconds.
    #[must_use]
    pub fn ahead(&self, offset: u64, len: u32) -> Nanos {
        let end = offset.saturating_add(len.into());
        let blocks = end.div_ceil(self.block.get()).saturating_sub(offset / self.block);
        Nanos(self.ahead.0.saturating_mul(blocks.max(1)))
    }

    /// Bytes of a block. A read that lies in one block may be submitted later than one that lies in
    /// two.
    #[must_use]
    pub fn block(&self) -> u64 {
        self.block.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_submitted_ahead_by_the_blocks_that_it_lies_in() {
        let block = NonZeroU64::new(100).expect("not zero");
        let reserve = Reserve { ahead: Nanos(7), block };
        let ahead = |offset, len| reserve.ahead(offset, len).0;
        assert_eq!([ahead(0, 0), ahead(0, 100), ahead(99, 1)], [7; 3]);
        assert_eq!([ahead(99, 2), ahead(50, 100)], [14; 2]);
        assert_eq!(ahead(u64::MAX, u32::MAX), 7, "no overflow");
    }
}
