//! The rig: runs many reads or writes at a given depth and measures their times.
//!
//! Promise: `depth` requests are at the device at any time until the last ones. Each transfers
//! exactly the requested bytes, past the page cache. Each request has a thread that waits for it: 4
//! us more than the engine's ring, the same for every size.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use tactus_core::units::{Bytes, Nanos, SECTOR};

/// The requests to run.
pub(super) struct Load<'a> {
    file: &'a File,
    offsets: Vec<u64>,
    len: u64,
    depth: usize,
    writes: bool,
}

/// The order of the requests on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// One after another.
    Sequential,
    /// Anywhere.
    Random,
    /// Anywhere, from the lowest to the highest: one sweep.
    Sweep,
}

/// The measured times.
#[derive(Clone, Default, Debug)]
pub(super) struct Timing {
    /// From the first request to the last completion.
    pub(super) wall: Duration,
    /// Each request's own time.
    pub(super) each: Vec<Duration>,
    /// Transferred bytes.
    pub(super) bytes: u64,
}

impl<'a> Load<'a> {
    pub(super) fn reads(file: &'a File, offsets: Vec<u64>, len: u64, depth: usize) -> Self {
        Self { file, offsets, len, depth, writes: false }
    }

    pub(super) fn writes(file: &'a File, offsets: Vec<u64>, len: u64, depth: usize) -> Self {
        Self { file, offsets, len, depth, writes: true }
    }
}

/// Runs `load`, or as much of it as fits into `limit`, at least one request for each place at the
/// device.
pub(super) fn run(load: &Load, limit: Option<Duration>) -> io::Result<Timing> {
    let next = AtomicUsize::new(0);
    let each = Mutex::new(Vec::with_capacity(load.offsets.len()));
    // Threads and their memory are created before the clock starts.
    let ready = Barrier::new(load.depth + 1);
    let worker = || -> io::Result<()> {
        let mut memory = Aligned::new(load.len as usize);
        let mut own = Vec::new();
        ready.wait();
        let begun = Instant::now();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let late = at >= load.depth && limit.is_some_and(|limit| begun.elapsed() > limit);
            let Some(&offset) = load.offsets.get(at).filter(|_| !late) else { break };
            let bytes = if load.writes { memory.stamped(offset) } else { memory.bytes() };
            let start = Instant::now();
            if load.writes {
                load.file.write_all_at(bytes, offset)?;
            } else {
                load.file.read_exact_at(bytes, offset)?;
            }
            own.push(start.elapsed());
        }
        each.lock().expect("a worker that panics ends the measurement").append(&mut own);
        Ok(())
    };
    let wall = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..load.depth).map(|_| scope.spawn(worker)).collect();
        ready.wait();
        let begun = Instant::now();
        let join = |worker: std::thread::ScopedJoinHandle<io::Result<()>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().try_for_each(join)?;
        Ok::<_, io::Error>(begun.elapsed())
    })?;
    let each = each.into_inner().expect("no worker has panicked");
    Ok(Timing { wall, bytes: each.len() as u64 * load.len, each })
}

/// `count` offsets of `len` bytes within `span` bytes; the same for the same seed.
pub(super) fn offsets(order: Order, span: Bytes, len: u64, count: usize, seed: u64) -> Vec<u64> {
    let places = (span.0 / SECTOR).saturating_sub(len / SECTOR).max(1);
    match order {
        Order::Sequential => {
            let fit = (span.0 / len).max(1);
            (0..count as u64).map(|index| index % fit * len).collect()
        }
        Order::Random | Order::Sweep => {
            let mut state = seed;
            let mut all: Vec<_> =
                (0..count).map(|_| splitmix(&mut state) % places * SECTOR).collect();
            if order == Order::Sweep {
                all.sort_unstable();
            }
            all
        }
    }
}

/// Sebastiano Vigna's splitmix64: good enough for offsets, and no dependency.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Opens `path` for reads past the page cache; never through a link, never blocking.
pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECT | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    File::options().read(true).custom_flags(flags.bits() as i32).open(path)
}

impl Timing {
    /// Adds the times of a later run.
    pub(super) fn extend(&mut self, later: Self) {
        self.wall += later.wall;
        self.each.extend(later.each);
        self.bytes += later.bytes;
    }

    /// Wall time per request: the cost of one more at this depth.
    pub(super) fn per_request(&self) -> Nanos {
        Nanos((self.wall.as_nanos() / self.each.len().max(1) as u128) as u64)
    }

    /// The standard deviation of the requests' times.
    pub(super) fn spread(&self) -> Nanos {
        let times = || self.each.iter().map(|time| time.as_nanos() as f64);
        let count = self.each.len().max(1) as f64;
        let mean = times().sum::<f64>() / count;
        let variance = times().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
        Nanos(variance.sqrt() as u64)
    }

    /// The time that a share of the requests does not exceed.
    pub(super) fn quantile(&self, share: f64) -> Nanos {
        let mut sorted = self.each.clone();
        sorted.sort_unstable();
        let at = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
        sorted.get(at).map_or(Nanos(0), |time| Nanos(time.as_nanos() as u64))
    }
}

/// Memory that is aligned to the sector, as O_DIRECT requires.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let mut memory = vec![0; len + SECTOR as usize];
        let mut state = len as u64;
        for word in memory.chunks_exact_mut(8) {
            word.copy_from_slice(&splitmix(&mut state).to_le_bytes());
        }
        let start = memory.as_ptr().align_offset(SECTOR as usize);
        Self { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    /// Bytes that differ in every sector, so that no layer below can deduplicate them.
    fn stamped(&mut self, offset: u64) -> &mut [u8] {
        for (index, sector) in self.bytes().chunks_exact_mut(SECTOR as usize).enumerate() {
            sector[..8].copy_from_slice(&(offset + index as u64 * SECTOR).to_le_bytes());
        }
        self.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::MIB;

    #[test]
    fn offsets_lie_within_the_span_and_on_sectors() {
        for order in [Order::Sequential, Order::Random, Order::Sweep] {
            for len in [4096, 65_536, MIB] {
                let all = offsets(order, Bytes(16 * MIB), len, 500, 7);
                assert_eq!(all.len(), 500);
                assert!(all.iter().all(|at| at.is_multiple_of(SECTOR) && at + len <= 16 * MIB));
            }
        }
        let sweep = offsets(Order::Sweep, Bytes(16 * MIB), 4096, 50, 7);
        assert!(sweep.is_sorted());
    }

    #[test]
    fn every_request_is_made_once_and_in_full() {
        let file = tempfile::tempfile().unwrap();
        let offsets: Vec<u64> = (0..20).map(|index| index * 65_536).collect();
        let written = run(&Load::writes(&file, offsets.clone(), 65_536, 4), None).unwrap();
        assert_eq!((written.each.len(), written.bytes), (20, 20 * 65_536));
        assert_eq!(file.metadata().unwrap().len(), 20 * 65_536);
        let read = run(&Load::reads(&file, offsets, 65_536, 4), None).unwrap();
        assert_eq!(read.each.len(), 20);
        assert!(read.quantile(0.5) <= read.quantile(1.0));
    }

    #[test]
    fn a_read_past_the_end_is_an_error_and_not_a_short_time() {
        let file = tempfile::tempfile().unwrap();
        assert!(run(&Load::reads(&file, vec![0], 4096, 1), None).is_err());
    }
}
