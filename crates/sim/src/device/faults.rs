//! Faults of a disk, and their times.

use tactus_core::units::{BitRate, MonoTime, Nanos};

/// One kind of fault for some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) from: MonoTime,
    pub(crate) to: MonoTime,
    pub(crate) trouble: Trouble,
}

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// Reads fail with EIO.
    Errors { permille: u64 },
    /// Reads return fewer bytes than requested.
    Short { permille: u64 },
    /// Every read takes this many times as long.
    Slow { factor: u64 },
    /// A token bucket limits reads: it fills at this rate and holds the bytes of the time `burst`.
    Limited { rate: BitRate, burst: Nanos },
    /// Some reads are answered late; the others are not delayed.
    Spikes { permille: u64, extra: Nanos },
    /// Flushes fail with EIO.
    FlushErrors { permille: u64 },
    /// Reads of titles with known checksums return a wrong byte without an error.
    Flips { permille: u64 },
    /// No answer until the fault ends.
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

    /// The rate and the burst of the host's token bucket.
    pub(crate) fn limit(&self) -> Option<(BitRate, Nanos)> {
        match self.trouble {
            Trouble::Limited { rate, burst } => Some((rate, burst)),
            _ => None,
        }
    }

    pub(crate) fn is_on(&self, now: MonoTime) -> bool {
        self.from <= now && now < self.to
    }
}
