//! A volume's device: direct reads by io_uring where it is there, by threads where it is refused; or
//! the page cache. Where uploads are taken, writes and flushes beside them, which always go past the
//! page cache.
//!
//! Promise: it opens on any kernel and says which way it took and why, so that admission can be set
//! lower and the status page can say so.

mod progress;
mod workers;

pub mod writes;

pub mod pages;
pub mod threads;
pub mod uring;

use std::io;

use tactus_core::ports::{Completion, Direction, DiskPort, Sync, Synced, Transfer};
use tactus_core::units::MonoTime;
use tactus_ring::arena::View;

use crate::disk::pages::DiskPages;
use crate::disk::threads::DiskThreads;
use crate::disk::uring::{DiskRing, Registration, RingFacts};
use crate::disk::writes::{WriteOptions, WriteThreads};

/// A disk port, by the best way that the kernel allows.
pub struct DiskDevice {
    reads: Reads,
    /// `None` where nothing is written: then a write is a defect, and a flush given back.
    writes: Option<DiskWrites>,
}

#[expect(clippy::large_enum_variant, reason = "one per volume, made once, on every poll's path")]
enum Reads {
    Ring(DiskRing),
    Pages(DiskPages),
    Threads {
        port: DiskThreads,
        threads: u32,
        /// The error number by which io_uring was refused; `None` when it was not asked for.
        refused: Option<i32>,
    },
}

/// The half of a device that writes.
#[expect(clippy::large_enum_variant, reason = "one per volume, made once, on every poll's path")]
pub enum DiskWrites {
    /// By io_uring.
    Ring(DiskRing),
    /// By ordinary threads, because io_uring was refused or not wanted.
    Threads {
        /// The port.
        port: WriteThreads,
        /// The error number by which io_uring was refused; `None` when it was not asked for.
        refused: Option<i32>,
    },
}

/// How a device is opened for reads.
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
            Ok(ring) => return Ok(Reads::Ring(ring).into()),
            Err(refusal) => Some(errno_of(&refusal)),
        },
        Way::Threads => None,
    };
    let port = DiskThreads::open(view, depth, threads)?;
    Ok(Reads::Threads { port, threads, refused }.into())
}

/// Opens the half of a device that writes from the places of `view`'s write share.
///
/// # Errors
/// As [`open`].
pub fn open_writes(
    view: View,
    options: &WriteOptions,
    way: Way,
    registration: Registration,
) -> io::Result<DiskWrites> {
    let refused = match way {
        Way::Best => match DiskRing::open_for_writes(view.clone(), options, registration) {
            Ok(ring) => return Ok(DiskWrites::Ring(ring)),
            Err(refusal) => Some(errno_of(&refusal)),
        },
        Way::Threads => None,
    };
    let port = WriteThreads::open(view, options)?;
    Ok(DiskWrites::Threads { port, refused })
}

impl From<Reads> for DiskDevice {
    fn from(reads: Reads) -> Self {
        Self { reads, writes: None }
    }
}

impl From<DiskPages> for DiskDevice {
    fn from(port: DiskPages) -> Self {
        Reads::Pages(port).into()
    }
}

impl DiskDevice {
    /// The same device, which also writes.
    #[must_use]
    pub fn with_writes(self, writes: DiskWrites) -> Self {
        Self { writes: Some(writes), ..self }
    }

    /// Which way reads take.
    pub fn facts(&self) -> DiskFacts {
        match &self.reads {
            Reads::Ring(ring) => DiskFacts::Ring(ring.facts()),
            Reads::Pages(_) => DiskFacts::Pages,
            Reads::Threads { threads, refused, .. } => {
                DiskFacts::Threads { threads: *threads, refused: *refused }
            }
        }
    }

    /// How many transfers and flushes were submitted and not yet polled.
    pub fn in_flight(&self) -> u32 {
        let reads = match &self.reads {
            Reads::Ring(ring) => ring.in_flight(),
            Reads::Pages(port) => port.in_flight(),
            Reads::Threads { port, .. } => port.in_flight(),
        };
        reads + self.writes.as_ref().map_or(0, DiskWrites::in_flight)
    }

    /// Lets another thread be the next to use the device; see [`DiskRing::renew`].
    ///
    /// # Errors
    /// As [`DiskRing::open`]; the device is then as before.
    ///
    /// # Panics
    /// When transfers are in flight on a ring.
    pub fn renew(&mut self) -> io::Result<()> {
        if let Some(DiskWrites::Ring(ring)) = &mut self.writes {
            ring.renew()?;
        }
        match &mut self.reads {
            Reads::Ring(ring) => ring.renew(),
            Reads::Pages(_) | Reads::Threads { .. } => Ok(()),
        }
    }

    fn reads(&mut self) -> &mut dyn DiskPort {
        match &mut self.reads {
            Reads::Ring(ring) => ring,
            Reads::Pages(port) => port,
            Reads::Threads { port, .. } => port,
        }
    }
}

impl DiskWrites {
    /// How many transfers and flushes were submitted and not yet polled.
    pub fn in_flight(&self) -> u32 {
        match self {
            Self::Ring(ring) => ring.in_flight(),
            Self::Threads { port, .. } => port.in_flight(),
        }
    }

    /// The error number by which io_uring was refused, if it was asked for.
    pub fn refused(&self) -> Option<i32> {
        match self {
            Self::Ring(_) => None,
            Self::Threads { refused, .. } => *refused,
        }
    }

    fn port(&mut self) -> &mut dyn DiskPort {
        match self {
            Self::Ring(ring) => ring,
            Self::Threads { port, .. } => port,
        }
    }
}

impl DiskPort for DiskWrites {
    fn submit(&mut self, now: MonoTime, transfer: Transfer) -> Result<(), Transfer> {
        self.port().submit(now, transfer)
    }

    fn kick(&mut self, now: MonoTime) {
        self.port().kick(now);
    }

    fn poll_completion(&mut self, now: MonoTime) -> Option<Completion> {
        self.port().poll_completion(now)
    }

    fn submit_sync(&mut self, now: MonoTime, sync: Sync) -> Result<(), Sync> {
        self.port().submit_sync(now, sync)
    }

    fn poll_synced(&mut self, now: MonoTime) -> Option<Synced> {
        self.port().poll_synced(now)
    }
}

impl DiskPort for DiskDevice {
    fn submit(&mut self, now: MonoTime, transfer: Transfer) -> Result<(), Transfer> {
        match (transfer.direction, &mut self.writes) {
            (Direction::Read, _) => self.reads().submit(now, transfer),
            (Direction::Write, Some(writes)) => writes.submit(now, transfer),
            (Direction::Write, None) => panic!("nothing is written on this volume"),
        }
    }

    fn kick(&mut self, now: MonoTime) {
        self.reads().kick(now);
        if let Some(writes) = &mut self.writes {
            writes.kick(now);
        }
    }

    fn poll_completion(&mut self, now: MonoTime) -> Option<Completion> {
        let read = self.reads().poll_completion(now);
        read.or_else(|| self.writes.as_mut()?.poll_completion(now))
    }

    fn submit_sync(&mut self, now: MonoTime, sync: Sync) -> Result<(), Sync> {
        match &mut self.writes {
            Some(writes) => writes.submit_sync(now, sync),
            None => Err(sync),
        }
    }

    fn poll_synced(&mut self, now: MonoTime) -> Option<Synced> {
        self.writes.as_mut()?.poll_synced(now)
    }
}

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
