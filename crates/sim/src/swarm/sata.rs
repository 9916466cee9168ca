//! The SATA disk of the worlds that are not drawn.

use tactus_core::units::Nanos;

use super::{Memory, VolumeSpec};
use crate::device::DiskKind;

impl VolumeSpec {
    /// A disk whose model is right, without faults and without uploads.
    pub(crate) fn sata() -> Self {
        Self {
            kind: DiskKind::Sata,
            cycle: Nanos::from_millis(250),
            block: 256 << 10,
            places: 32 * 256,
            best_effort_depth: 4,
            share_thousandths: 900,
            // Without the bytes of an arena, which would take most of the time of a run.
            memory: Memory::PageCache { ahead: 0 },
            write_path: None,
            faults: vec![],
            guess: None,
        }
    }
}
