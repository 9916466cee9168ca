//! A volume's device: direct reads by io_uring, or by threads if io_uring is refused; or the page
//! cache. On volumes with uploads also writes and flushes, which always bypass the page cache.
//!
//! Promise: it opens on any kernel and reports the chosen method and the reason, so that admission
//! can be set lower and the status page can show it.

mod progress;
mod workers;

pub mod writes;

pub mod pages;
pub mod threads;
pub mod uring;

use std::io;
use std::sync::Arc;

use tactus_core::ports::{Completion, Direction, DiskPort, Sync, SyncResult, Transfer};
use tactus_core::units::{MILLISECOND, MonoTime, Nanos};
use tactus_ring::arena::View;

use crate::disk::pages::{DiskPages, HeldBlocks};
use crate::disk::threads::DiskThreads;
use crate::disk::uring::{DiskRing, Registration, RingFacts, RingRenewer, Tender};
use crate::disk::writes::{WriteOptions, WriteThreads};

/// A disk port, by the best method that the kernel allows.
pub struct DiskDevice {
    reads: Reads,
    /// `None` if nothing is written: then a write is a defect, and a flush is returned.
    writes: Option<DiskWrites>,
}

#[expect(clippy::large_enum_variant, reason = "one per volume, made once, on every poll's path")]
enum Reads {
    Ring(DiskRing),
    Pages(DiskPages),
    Threads {
        port: DiskThreads,
        threads: u32,
        /// The error number by which io_uring was refused; `None` if it was not requested.
        refused: Option<i32>,
    },
}

/// The write side of a device.
#[expect(clippy::large_enum_variant, reason = "one per volume, made once, on every poll's path")]
pub enum DiskWrites {
    /// By io_uring.
    Ring(DiskRing),
    /// By ordinary threads, because io_uring was refused or not requested.
    Threads {
        /// The port.
        port: WriteThreads,
        /// The error number by which io_uring was refused; `None` if it was not requested.
        refused: Option<i32>,
    },
}

/// Options of a device for reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskOptions {
    /// Limit of transfers in flight.
    pub depth: u32,
    /// Threads for reading if io_uring is refused.
    pub threads: u32,
    /// The permitted read methods.
    pub method: ReadMethod,
    /// Whether the arena is registered with the kernel.
    pub registration: Registration,
}

/// The permitted read methods.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadMethod {
    /// io_uring, or threads if it is refused.
    Best,
    /// Threads only.
    Threads,
}

/// The chosen read method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskFacts {
    /// io_uring, with the features that the kernel granted.
    Ring(RingFacts),
    /// The page cache.
    Pages,
    /// Ordinary threads.
    Threads {
        /// Number of threads.
        threads: u32,
        /// The error number by which io_uring was refused; `None` if it was not requested.
        refused: Option<i32>,
    },
}

impl Default for DiskOptions {
    /// Sixteen reads of 128 to 256 KiB keep a flash device busy; more only adds to its latency.
    fn default() -> Self {
        Self {
            depth: 32,
            threads: 16,
            method: ReadMethod::Best,
            registration: Registration::Wanted,
        }
    }
}

/// Opens a device that fills the blocks of `view`'s arena.
///
/// # Errors
/// If neither method is available: file descriptors, threads or memory are exhausted, or a number
/// in the options is out of its range.
pub fn open(view: View, options: DiskOptions) -> io::Result<DiskDevice> {
    let DiskOptions { depth, threads, method, registration } = options;
    let refused = match method {
        ReadMethod::Best => match DiskRing::open(view.clone(), depth, registration) {
            Ok(ring) => return Ok(Reads::Ring(ring).into()),
            Err(refusal) => Some(errno_of(&refusal)),
        },
        ReadMethod::Threads => None,
    };
    let port = DiskThreads::open(view, depth, threads)?;
    Ok(Reads::Threads { port, threads, refused }.into())
}

/// Opens the write side of a device, which writes from the places of `view`'s write share.
///
/// # Errors
/// As [`open`].
pub fn open_writes(
    view: View,
    options: &WriteOptions,
    method: ReadMethod,
    registration: Registration,
) -> io::Result<DiskWrites> {
    let refused = match method {
        ReadMethod::Best => match DiskRing::open_for_writes(view.clone(), options, registration) {
            Ok(ring) => return Ok(DiskWrites::Ring(ring)),
            Err(refusal) => Some(errno_of(&refusal)),
        },
        ReadMethod::Threads => None,
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
    /// The same device with a write side.
    #[must_use]
    pub fn with_writes(self, writes: DiskWrites) -> Self {
        Self { writes: Some(writes), ..self }
    }

    /// The method of reads.
    pub fn facts(&self) -> DiskFacts {
        match &self.reads {
            Reads::Ring(ring) => DiskFacts::Ring(ring.facts()),
            Reads::Pages(_) => DiskFacts::Pages,
            Reads::Threads { threads, refused, .. } => {
                DiskFacts::Threads { threads: *threads, refused: *refused }
            }
        }
    }

    /// Transfers and flushes that were submitted and not yet polled.
    pub fn in_flight(&self) -> u32 {
        let reads = match &self.reads {
            Reads::Ring(ring) => ring.in_flight(),
            Reads::Pages(port) => port.in_flight(),
            Reads::Threads { port, .. } => port.in_flight(),
        };
        reads + self.writes.as_ref().map_or(0, DiskWrites::in_flight)
    }

    /// The control side's end, by which the device may leave its thread.
    pub fn renewer(&self) -> DeviceRenewer {
        let reads = match &self.reads {
            Reads::Ring(ring) => Some(ring.renewer()),
            Reads::Pages(_) | Reads::Threads { .. } => None,
        };
        let writes = match &self.writes {
            Some(DiskWrites::Ring(ring)) => Some(ring.renewer()),
            Some(DiskWrites::Threads { .. }) | None => None,
        };
        DeviceRenewer(reads.into_iter().chain(writes).collect())
    }

    /// Its blocks in the page cache, if it keeps them there.
    pub fn held(&self) -> Option<Arc<HeldBlocks>> {
        match &self.reads {
            Reads::Pages(port) => Some(port.held()),
            Reads::Ring(_) | Reads::Threads { .. } => None,
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
    /// Transfers and flushes that were submitted and not yet polled.
    pub fn in_flight(&self) -> u32 {
        match self {
            Self::Ring(ring) => ring.in_flight(),
            Self::Threads { port, .. } => port.in_flight(),
        }
    }

    /// The error number by which io_uring was refused, if it was requested.
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

    fn poll_synced(&mut self, now: MonoTime) -> Option<SyncResult> {
        self.port().poll_synced(now)
    }

    fn may_leave(&mut self) -> bool {
        self.port().may_leave()
    }

    fn leave(&mut self, cpu: u32) {
        self.port().leave(cpu);
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

    fn read_ahead(&self) -> u32 {
        match &self.reads {
            Reads::Pages(port) => port.read_ahead(),
            Reads::Ring(_) | Reads::Threads { .. } => 0,
        }
    }

    fn needs_device(&self) -> bool {
        match &self.reads {
            Reads::Pages(port) => port.needs_device(),
            Reads::Ring(_) | Reads::Threads { .. } => true,
        }
    }

    fn waited(&self) -> Nanos {
        match &self.reads {
            Reads::Pages(port) => port.waited(),
            Reads::Ring(_) | Reads::Threads { .. } => Nanos(0),
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

    fn poll_synced(&mut self, now: MonoTime) -> Option<SyncResult> {
        self.writes.as_mut()?.poll_synced(now)
    }

    fn first_look(&self) -> Nanos {
        match &self.writes {
            Some(DiskWrites::Ring(ring)) if ring.wakes() => MILLISECOND,
            // Flash with a cache that outlives a power failure.
            _ => Nanos::from_micros(100),
        }
    }

    fn may_leave(&mut self) -> bool {
        self.reads().may_leave() && self.writes.as_mut().is_none_or(DiskWrites::may_leave)
    }

    fn leave(&mut self, cpu: u32) {
        self.reads().leave(cpu);
        if let Some(writes) = &mut self.writes {
            writes.leave(cpu);
        }
    }
}

/// Makes the rings with which a device leaves its thread. Clones share their state.
#[derive(Clone, Default)]
pub struct DeviceRenewer(Vec<RingRenewer>);

impl DeviceRenewer {
    /// The same of two devices that move together.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        self.0.extend_from_slice(&other.0);
        self
    }

    /// Makes fresh rings, with which the device leaves its thread when it is next told to. `tender`
    /// belongs to this thread, which must look at it from now on. False if what was begun before
    /// the last leave is still under way: try again.
    ///
    /// # Errors
    /// As [`open`]; the device then stays as it is.
    pub fn prepare(&self, tender: &Tender) -> io::Result<bool> {
        if !self.settle() {
            return Ok(false);
        }
        let fresh = self.0.iter().map(RingRenewer::make).collect::<io::Result<Vec<_>>>()?;
        for (ring, fresh) in self.0.iter().zip(fresh) {
            ring.hand_in(fresh, tender);
        }
        Ok(true)
    }

    /// Closes the rings that the device has left. False if something of them is under way.
    pub fn settle(&self) -> bool {
        // Each is looked at.
        self.0.iter().filter(|ring| !ring.settle()).count() == 0
    }
}

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
