//! What can go wrong with a disk, and when.

use tactus_core::units::{MonoTime, Nanos};

/// One kind of trouble for some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) from: MonoTime,
    pub(crate) to: MonoTime,
    pub(crate) trouble: Trouble,
}

/// A kind of trouble.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// Reads fail with EIO.
    Errors { permille: u64 },
    /// Reads bring fewer bytes than asked for.
    Short { permille: u64 },
    /// Every read takes this many times as long.
    Slow { factor: u64 },
    /// Some reads are answered late; the others are not held up.
    Spikes { permille: u64, extra: Nanos },
    /// Flushes fail with EIO.
    FlushErrors { permille: u64 },
    /// Reads of titles whose checksums are known bring a wrong byte, and say nothing.
    Flips { permille: u64 },
    /// Nothing is answered until the fault ends.
    Hang,
}

impl Fault {
    /// How many times as long a read takes.
    pub(crate) fn factor(&self) -> u64 {
        match self.trouble {
            Trouble::Slow { factor } => factor,
            _ => 1,
        }
    }

    pub(crate) fn is_on(&self, now: MonoTime) -> bool {
        self.from <= now && now < self.to
    }
}
