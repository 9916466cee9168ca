//! Takes out of the page cache what no place refers to any more, while the machine has less free
//! memory than it shall keep. It runs on a thread of its own: where somebody else still refers to a
//! page, the kernel asks every core about it and waits for the answers.
//!
//! With more free memory than that, pages stay: the next viewer of the title finds them, and a
//! discard costs as much CPU as the read. With much more of it the thread is not told of blocks.
//!
//! It also owns the files of these blocks, so that none is closed on a real-time thread, and lets
//! go of those that have been deleted: an open file keeps its room on the disk.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tactus_core::units::{Bytes, Nanos};
use tactus_ring::spsc::{Consumer, Producer, ring};

use crate::clock;
use crate::waker::{Sleeper, Waker, waker};

/// The way to the thread. It ends soon after the port.
pub(super) struct Discarder {
    notes: Producer<PlaceEvent>,
    /// For each place, whether the thread has the file of its block.
    told: Box<[bool]>,
    waker: Waker,
    shared: Arc<Shared>,
}

struct Shared {
    stop: AtomicBool,
    /// Free memory is scarce, or may be so before a block that is filled now is given up.
    wants: AtomicBool,
}

/// The file whose pages a place refers to.
pub(super) struct FilePages {
    pub(super) file: OwnedFd,
    /// Where in the file the block begins.
    pub(super) offset: u64,
}

enum PlaceEvent {
    /// The place refers to this block.
    Filled { place: u32, kept: FilePages },
    /// It does so no longer.
    Emptied { place: u32 },
}

impl Discarder {
    pub(super) fn start(places: u32, block: u32, free_min: Bytes) -> io::Result<Self> {
        let (notes, given) = ring(4 * places as usize);
        let (waker, sleeper) = waker()?;
        let (stop, wants) = (AtomicBool::new(false), AtomicBool::new(true));
        let shared = Arc::new(Shared { stop, wants });
        let worker = DiscardThread {
            given,
            kept: (0..places).map(|_| None).collect(),
            block,
            next: 0,
            free_min,
            sleeper,
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new().name("tactus-discard".to_owned());
        thread.spawn(move || worker.run())?;
        Ok(Self { notes, told: vec![false; places as usize].into(), waker, shared })
    }

    /// Whether a block that is filled now may have to leave the page cache when it is given up.
    pub(super) fn wants(&self) -> bool {
        self.shared.wants.load(Ordering::Relaxed)
    }

    /// The place refers to pages of this file from now on.
    pub(super) fn filled(&mut self, place: u32, kept: FilePages) {
        self.told[place as usize] = true;
        self.note(PlaceEvent::Filled { place, kept });
    }

    /// What the place referred to will not be used again soon.
    pub(super) fn emptied(&mut self, place: u32) {
        if std::mem::take(&mut self.told[place as usize]) {
            self.note(PlaceEvent::Emptied { place });
        }
    }

    /// The thread looks by itself: no wake-up for each. When it is far behind, the kernel takes
    /// pages back when it needs them.
    fn note(&mut self, note: PlaceEvent) {
        drop(self.notes.push(note));
    }
}

impl Drop for Discarder {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}

/// The thread's side.
struct DiscardThread {
    given: Consumer<PlaceEvent>,
    kept: Box<[Option<FilePages>]>,
    block: u32,
    /// The place whose file is looked at next.
    next: usize,
    free_min: Bytes,
    sleeper: Sleeper,
    shared: Arc<Shared>,
}

impl DiscardThread {
    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let free = free_memory();
            // Until a block is given up, no more is read than all places hold.
            let soon = Bytes(self.kept.len() as u64 * u64::from(self.block));
            let wants = free.0 < self.free_min.0.saturating_add(soon.0);
            self.shared.wants.store(wants, Ordering::Relaxed);
            self.take_notes(free < self.free_min);
            self.let_go_of_deleted();
            self.sleeper.wait_until(Some(clock::now() + LOOK));
        }
    }

    fn take_notes(&mut self, is_scarce: bool) {
        while let Some(note) = self.given.pop() {
            match note {
                PlaceEvent::Filled { place, kept } => self.kept[place as usize] = Some(kept),
                PlaceEvent::Emptied { place } => {
                    if let Some(kept) = self.kept[place as usize].take()
                        && is_scarce
                    {
                        // A folio goes only as a whole, and may have begun in an earlier block; it
                        // goes with its last one.
                        let from = kept.offset - kept.offset % FOLIO_MAX;
                        discard(kept.file.as_raw_fd(), from, kept.offset + u64::from(self.block));
                    }
                }
            }
        }
    }

    /// Lets go of the deleted files among the next places: all places have their turn in fifteen
    /// seconds, unless they are very many.
    fn let_go_of_deleted(&mut self) {
        for _ in 0..self.kept.len().div_ceil(LOOKS_OF_ROUND).min(LOOKED_AT_MAX) {
            self.kept[self.next].take_if(|kept| {
                rustix::fs::fstat(&kept.file).is_ok_and(|facts| facts.st_nlink == 0)
            });
            self.next = (self.next + 1) % self.kept.len();
        }
    }
}

/// Memory of the machine that nothing uses, the page cache included.
fn free_memory() -> Bytes {
    let system = rustix::system::sysinfo();
    Bytes(system.freeram as u64 * u64::from(system.mem_unit))
}

/// Has the kernel forget a part of a file, as far as nobody refers to it.
pub(super) fn discard(file: RawFd, from: u64, to: u64) {
    // SAFETY: takes numbers only. It is advice: a refusal changes nothing.
    unsafe {
        libc::posix_fadvise(file, from as i64, (to - from) as i64, libc::POSIX_FADV_DONTNEED)
    };
}

/// Largest folio of the page cache on common machines: one huge page.
pub(super) const FOLIO_MAX: u64 = 2 << 20;
/// How often it looks.
const LOOK: Nanos = Nanos::from_millis(250);
/// Looks in which it has asked of the file of each place whether it was deleted: fifteen seconds.
/// In four seconds, 4,096 places took 2.5 % of the CPU time of 200 streams.
const LOOKS_OF_ROUND: usize = 60;
/// Files that it asks about in one look: about a millisecond of CPU time.
const LOOKED_AT_MAX: usize = 4096;
