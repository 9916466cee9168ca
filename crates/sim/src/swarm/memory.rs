//! Where the blocks of a volume are.

use tactus_core::disk_model::Ratio;
use tactus_core::kernel_read_ahead::TurnLimits;
use tactus_core::units::{Bytes, Nanos};

use crate::dice::Dice;

/// The memory of a volume's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    Arena,
    /// The page cache, and how many blocks the kernel reads ahead of each stream.
    PageCache {
        ahead: u32,
    },
}

impl Memory {
    pub(super) fn draw(dice: &mut Dice) -> Self {
        if dice.chance(500) {
            return Self::Arena;
        }
        Self::PageCache { ahead: dice.below(u64::from(AHEAD_MAX) + 1) as u32 }
    }

    /// Blocks granted to each stream in addition to those that it wants.
    pub(crate) fn ahead(self) -> u32 {
        match self {
            Self::Arena => 0,
            Self::PageCache { ahead } => ahead,
        }
    }

    /// The turns in which the kernel begins to read ahead for streams: with the largest windows.
    pub(crate) fn turns(self, cycle: Nanos) -> Option<TurnLimits> {
        let is_large = self == Self::PageCache { ahead: AHEAD_MAX };
        is_large.then_some(TurnLimits {
            windows: cycle,
            read_mib: Nanos(0),
            expected: Ratio::ONE,
            share_thousandths: 1000,
            cycle,
            window: Bytes(0),
            streams: 3,
            servers: 1,
        })
    }
}

/// Most blocks that the kernel reads ahead.
const AHEAD_MAX: u32 = 2;
