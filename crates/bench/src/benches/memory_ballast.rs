//! Memory ballast: memory that a bench with emulated disks holds on a virtual machine that gives
//! free memory to its host.
//!
//! With free page reporting the host takes each free page away within seconds. The next touch of
//! that page waits until the host returns memory: 5 to 15 us for 4 KiB were measured, and 0.3 us
//! for a page that the machine has kept. A bench drops the page cache before each run. Without
//! ballast, all its reads go to such pages, and the copy into them was slower than an emulated
//! disk. With ballast the page cache soon fills the remaining memory. From then on the kernel
//! reuses the pages of the cache, as on a server that has run for some minutes.
//!
//! Promise: every page of the ballast has been written, and the stated amount stays available. A
//! machine that keeps its free memory has no ballast. The first reads of each run still go to pages
//! that the host has taken: ballast only bounds their number.

use std::str::FromStr;
use std::thread;

use anyhow::{Context, Error, Result, anyhow, ensure};
use tactus_core::units::{Bytes, KIB, MIB, Nanos};
use tactus_sys::memory::memory;

use super::say;
use crate::report::number;
use crate::{clock, interrupt, machine};

/// How much of the machine's memory a bench leaves free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeMemory {
    /// All of it: there is no ballast.
    All,
    /// So much of it, if it was free before.
    Part(Bytes),
}

impl FreeMemory {
    /// The amount that benches with emulated disks leave.
    pub(super) const EMULATED: Self = Self::Part(Bytes(5 * 1024 * MIB));
}

impl FromStr for FreeMemory {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "all" {
            return Ok(Self::All);
        }
        let help = "write whole GiB from 1 on, as in 5, or \"all\" for no ballast";
        let gib: u64 = text.parse().context(help)?;
        ensure!(gib > 0, help);
        gib.checked_mul(1024 * MIB).map(|bytes| Self::Part(Bytes(bytes))).context(help)
    }
}

/// Memory that is held until it is dropped.
#[derive(Debug)]
pub(super) struct MemoryBallast {
    free: FreeMemory,
    pieces: Vec<Vec<u8>>,
    /// How long it took to touch all of it.
    touching: Nanos,
}

/// The ballast is touched piece by piece: a quarter of a second each on a slow host.
const PIECE: usize = 32 * MIB as usize;
/// The bytes of the ballast. They are not zero: the allocator does not touch pages of zeros.
static CONTENT: [u8; 64 << 10] = [1; 64 << 10];
/// Two processors wait for the host at the same time.
const THREADS: usize = 2;
const PAGE: usize = 4 * KIB as usize;

impl MemoryBallast {
    /// Takes all memory but `free`. `None` on a machine that keeps its free memory.
    pub(super) fn load(free: FreeMemory) -> Result<Option<Self>> {
        if !machine::gives_free_memory_away() {
            return Ok(None);
        }
        let mut ballast = Self { free, pieces: Vec::new(), touching: Nanos::ZERO };
        let FreeMemory::Part(free) = free else { return Ok(Some(ballast)) };
        let size = surplus(room(), free);
        say(&format!(
            "this machine gives free memory to its host, which makes emulated disks slow: touching \
             {size:.1} to hold it, which may take a minute"
        ));
        let start = clock::now();
        ballast.pieces = touch_all_but(free)?;
        ballast.touching = clock::now().since(start);
        say(&format!("memory held: {}", ballast.describe()));
        Ok(Some(ballast))
    }

    fn size(&self) -> Bytes {
        Bytes((self.pieces.len() * PIECE) as u64)
    }

    /// The size of the ballast and its cause, for a report.
    pub(super) fn describe(&self) -> String {
        let cause = "this machine gives free memory to its host";
        match self.free {
            FreeMemory::All => format!("none (--free-memory all), although {cause}"),
            FreeMemory::Part(free) if self.pieces.is_empty() => {
                format!("none, because no more than {free} are available; {cause}")
            }
            FreeMemory::Part(free) => {
                let pages = self.size().0 / PAGE as u64;
                let each = self.touching.0 as f64 * THREADS as f64 / pages as f64 / 1e3;
                format!(
                    "{:.1}, because {cause}; {free} are left. Touching it took {:.1} with \
                     {THREADS} threads: {} us of a thread for 4 KiB",
                    self.size(),
                    self.touching,
                    number(each)
                )
            }
        }
    }
}

/// Memory that this process may still use.
fn room() -> Bytes {
    Bytes(memory().room())
}

/// The ballast that leaves `free` of `room`: whole pieces.
fn surplus(room: Bytes, free: Bytes) -> Bytes {
    let piece = PIECE as u64;
    Bytes(room.saturating_sub(free).0 / piece * piece)
}

fn touch_all_but(free: Bytes) -> Result<Vec<Vec<u8>>> {
    thread::scope(|scope| {
        let threads = [(); THREADS].map(|()| scope.spawn(|| touch_until_left(free)));
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().map_err(|_| anyhow!("a thread of the ballast panicked"))??);
        }
        Ok(all)
    })
}

/// Takes pieces until only `free` is left. Other programs may take memory at the same time, so it
/// looks before each piece.
fn touch_until_left(free: Bytes) -> Result<Vec<Vec<u8>>> {
    let mut pieces = Vec::new();
    while surplus(room(), free) > Bytes::ZERO {
        interrupt::check()?;
        let mut piece = Vec::new();
        let refused = "the kernel refuses memory for the ballast; use --free-memory all";
        piece.try_reserve_exact(PIECE).context(refused)?;
        while piece.len() < PIECE {
            piece.extend_from_slice(&CONTENT);
        }
        pieces.push(piece);
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1024 * MIB;

    #[test]
    fn ballast_leaves_the_stated_amount_and_less_than_a_piece_more() {
        // `MemAvailable` of a machine of 24 GiB.
        let room = Bytes(24_174_728 * KIB);
        let ballast = surplus(room, Bytes(5 * GIB));
        assert_eq!(ballast, Bytes(577 * 32 * MIB));
        let left = room.0 - ballast.0;
        assert!((5 * GIB..5 * GIB + 32 * MIB).contains(&left));
    }

    #[test]
    fn a_machine_with_less_memory_than_is_to_stay_free_has_no_ballast() {
        for room in [0, 4 * GIB, 5 * GIB, 5 * GIB + 32 * MIB - 1] {
            assert_eq!(surplus(Bytes(room), Bytes(5 * GIB)), Bytes::ZERO);
        }
        assert_eq!(surplus(Bytes(5 * GIB + 32 * MIB), Bytes(5 * GIB)), Bytes(32 * MIB));
    }

    #[test]
    fn free_memory_is_whole_gib_or_all() {
        let read = |text: &str| text.parse::<FreeMemory>().ok();
        assert_eq!(read("5"), Some(FreeMemory::Part(Bytes(5 * GIB))));
        assert_eq!(read("all"), Some(FreeMemory::All));
        for wrong in ["0", "", "-1", "5.5", "5G", "All", "99999999999999999999", "17179869184"] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_report_says_what_is_held_and_why() {
        let describe = |free, pieces: usize| {
            let pieces = vec![Vec::new(); pieces];
            MemoryBallast { free, pieces, touching: Nanos::from_millis(2_048) }.describe()
        };
        assert_eq!(
            describe(FreeMemory::Part(Bytes(5 * GIB)), 32),
            "1 GiB, because this machine gives free memory to its host; 5 GiB are left. Touching \
             it took 2 s with 2 threads: 15.6 us of a thread for 4 KiB"
        );
        let none = describe(FreeMemory::Part(Bytes(5 * GIB)), 0);
        assert!(none.starts_with("none, because no more than 5"), "{none}");
        assert!(describe(FreeMemory::All, 0).starts_with("none (--free-memory all)"));
    }
}
