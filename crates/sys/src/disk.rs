//! A volume's device: direct reads by io_uring where it is there, by threads where it is refused; or
//! the page cache.
//!
//! Promise: it opens on any kernel and says which way it took and why, so that admission can be set
//! lower and the status page can say so.

use std::io;

use tactus_core::ports::{Completion, DiskPort, Sync, Synced, Transfer};
use tactus_core::units::MonoTime;
use tactus_ring::arena::View;

use crate::pages::DiskPages;
use crate::threads::DiskThreads;
use crate::uring::{DiskRing, Registration, RingFacts};

/// A disk port, by the best way that the kernel allows.
#[expect(clippy::large_enum_variant, reason = "one per volume, made once, on every poll's path")]
pub enum DiskDevice {
    /// By io_uring.
    Ring(DiskRing),
    /// Through the page cache, by threads.
    Pages(DiskPages),
    /// By ordinary threads, because io_uring was refused or not wanted.
    Threads {
        /// The port.
        port: DiskThreads,
        /// How many threads.
        threads: u32,
        /// The error number by which io_uring was refused; `None` when it was not asked for.
        refused: Option<i32>,
    },
}

/// How a device is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskOptions {
    /// Most transfers in flight.
    pub depth: u32,
    /// Threads to read with where io_uring is refused.
    pub threads: u32,
    /// Which ways may be taken.
    pub way: Way,
    /// Whether the arena is registered with the kernel.
    pub registration: Registration,
}

/// Which ways to the device may be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// io_uring, or threads where it is refused.
    Best,
    /// Threads only.
    Threads,
}

/// Which way was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskFacts {
    /// io_uring, with what the kernel granted.
    Ring(RingFacts),
    /// The page cache.
    Pages,
    /// Ordinary threads.
    Threads {
        /// How many.
        threads: u32,
        /// The error number by which io_uring was refused; `None` when it was not asked for.
        refused: Option<i32>,
    },
}

impl Default for DiskOptions {
    /// Sixteen reads of 128 to 256 KiB keep a flash device busy; more only adds to its latency.
    fn default() -> Self {
        Self { depth: 32, threads: 16, way: Way::Best, registration: Registration::Wanted }
    }
}

/// Opens a device that fills the blocks of `view`'s arena.
///
/// # Errors
/// When neither way is open: file descriptors, threads or memory are exhausted, or a number in the
/// options is out of its range.
pub fn open(view: View, options: DiskOptions) -> io::Result<DiskDevice> {
    let DiskOptions { depth, threads, way, registration } = options;
    let refused = match way {
        Way::Best => match DiskRing::open(view.clone(), depth, registration) {
            Ok(ring) => return Ok(DiskDevice::Ring(ring)),
            Err(refusal) => Some(refusal.raw_os_error().unwrap_or(libc::EIO)),
        },
        Way::Threads => None,
    };
    let port = DiskThreads::open(view, depth, threads)?;
    Ok(DiskDevice::Threads { port, threads, refused })
}

impl DiskDevice {
    /// Which way was taken.
    pub fn facts(&self) -> DiskFacts {
        match self {
            Self::Ring(ring) => DiskFacts::Ring(ring.facts()),
            Self::Pages(_) => DiskFacts::Pages,
            Self::Threads { threads, refused, .. } => {
                DiskFacts::Threads { threads: *threads, refused: *refused }
            }
        }
    }

    /// How many transfers were submitted and not yet polled.
    pub fn in_flight(&self) -> u32 {
        match self {
            Self::Ring(ring) => ring.in_flight(),
            Self::Pages(port) => port.in_flight(),
            Self::Threads { port, .. } => port.in_flight(),
        }
    }

    /// Lets another thread be the next to use the device; see [`DiskRing::renew`].
    ///
    /// # Errors
    /// As [`DiskRing::open`]; the device is then as before.
    ///
    /// # Panics
    /// When transfers are in flight on a ring.
    pub fn renew(&mut self) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.renew(),
            Self::Pages(_) | Self::Threads { .. } => Ok(()),
        }
    }
}

impl DiskPort for DiskDevice {
    fn submit(&mut self, now: MonoTime, transfer: Transfer) -> Result<(), Transfer> {
        match self {
            Self::Ring(ring) => ring.submit(now, transfer),
            Self::Pages(port) => port.submit(now, transfer),
            Self::Threads { port, .. } => port.submit(now, transfer),
        }
    }

    fn kick(&mut self, now: MonoTime) {
        match self {
            Self::Ring(ring) => ring.kick(now),
            Self::Pages(port) => port.kick(now),
            Self::Threads { port, .. } => port.kick(now),
        }
    }

    fn poll_completion(&mut self, now: MonoTime) -> Option<Completion> {
        match self {
            Self::Ring(ring) => ring.poll_completion(now),
            Self::Pages(port) => port.poll_completion(now),
            Self::Threads { port, .. } => port.poll_completion(now),
        }
    }

    fn submit_sync(&mut self, now: MonoTime, sync: Sync) -> Result<(), Sync> {
        match self {
            Self::Ring(ring) => ring.submit_sync(now, sync),
            Self::Pages(port) => port.submit_sync(now, sync),
            Self::Threads { port, .. } => port.submit_sync(now, sync),
        }
    }

    fn poll_synced(&mut self, now: MonoTime) -> Option<Synced> {
        match self {
            Self::Ring(ring) => ring.poll_synced(now),
            Self::Pages(port) => port.poll_synced(now),
            Self::Threads { port, .. } => port.poll_synced(now),
        }
    }
}
