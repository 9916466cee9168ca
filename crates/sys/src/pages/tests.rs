//! The port against real files in the real page cache.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use super::*;
use tactus_core::ports::{BlockRef, Direction};
use tactus_core::units::Bytes;

use crate::clock;

const BLOCK: u32 = 64 * 1024;
const LEN: u64 = 20 * BLOCK as u64 + 1000;

struct Fixture {
    port: DiskPages,
    file: File,
    directory: tempfile::TempDir,
}

impl Fixture {
    fn new(places: u32) -> Self {
        // Beside the build, not in the temporary directory: that may be memory.
        let build = std::env::current_exe().unwrap();
        let directory = tempfile::tempdir_in(build.parent().unwrap()).unwrap();
        let path = directory.path().join("title");
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![7; LEN as usize]).unwrap();
        file.sync_all().unwrap();
        let rights = FillerRights::default();
        let options = PagesOptions { places, block: BLOCK, depth: 8, threads: 2, rights };
        let fixture = Self {
            port: DiskPages::open(options).unwrap(),
            file: File::open(path).unwrap(),
            directory,
        };
        // What was written lies there in folios of its own.
        fixture.forget();
        fixture
    }

    /// Asks the kernel to take back what nobody refers to.
    fn forget(&self) {
        // SAFETY: takes numbers only.
        unsafe {
            libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        }
    }

    fn transfer(&self, place: u32, generation: u32, block: u64) -> Transfer {
        Transfer {
            direction: Direction::Read,
            block: BlockRef { place, generation },
            file: FileHandle(self.file.as_raw_fd()),
            offset: Bytes(block * u64::from(BLOCK)),
            at: 0,
            len: BLOCK,
            sum: None,
        }
    }

    fn fill(&mut self, transfer: Transfer) -> Completion {
        self.port.submit(clock::now(), transfer).unwrap();
        self.port.kick(clock::now());
        loop {
            if let Some(completion) = self.port.poll_completion(clock::now()) {
                return completion;
            }
            std::thread::yield_now();
        }
    }

    /// Whether a block stays when the kernel takes back what nobody refers to.
    fn left_of(&self, block: u64) -> bool {
        self.forget();
        is_in_memory(Transfer { len: BLOCK, ..self.transfer(0, 0, block) })
    }
}

#[test]
fn a_filled_block_stays_in_memory_until_its_place_is_filled_anew() {
    let mut fixture = Fixture::new(2);
    assert!(!fixture.left_of(3));
    let first = fixture.transfer(0, 1, 3);
    assert_eq!(fixture.fill(first), Completion { transfer: first, result: Ok(BLOCK) });
    assert!(fixture.left_of(3), "its place refers to it");
    let second = fixture.transfer(1, 1, 4);
    fixture.fill(second);
    assert!(fixture.left_of(3) && fixture.left_of(4));
    fixture.fill(fixture.transfer(0, 2, 9));
    assert!(!fixture.left_of(3), "nobody refers to it");
    assert!(fixture.left_of(4) && fixture.left_of(9));
}

#[test]
fn what_is_given_up_leaves_the_page_cache_by_itself() {
    let mut fixture = Fixture::new(1);
    fixture.fill(fixture.transfer(0, 1, 0));
    let given_up = fixture.transfer(0, 1, 0);
    fixture.fill(fixture.transfer(0, 2, 12));
    // A real clock: the thread looks four times a second. Without it, this would not end.
    while is_in_memory(given_up) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_deleted_file_is_let_go_of_though_its_block_stays() {
    let mut fixture = Fixture::new(1);
    fixture.fill(fixture.transfer(0, 1, 2));
    let path = fixture.directory.path().join("title");
    std::fs::remove_file(&path).unwrap();
    let deleted = PathBuf::from(format!("{} (deleted)", path.display()));
    let is_open = |at: &std::io::Result<std::fs::DirEntry>| {
        // A descriptor that has been closed since is not open.
        std::fs::read_link(at.as_ref().unwrap().path()).is_ok_and(|to| to == deleted)
    };
    // Ours stays; the place's goes within seconds. Without that, this would not end.
    while std::fs::read_dir("/proc/self/fd").unwrap().filter(is_open).count() > 1 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(fixture.left_of(2));
}

#[test]
fn pieces_of_one_block_share_its_place() {
    let mut fixture = Fixture::new(1);
    let whole = fixture.transfer(0, 1, 5);
    let half = BLOCK / 2;
    let first = Transfer { len: half, ..whole };
    let second =
        Transfer { at: half, offset: whole.offset + Bytes(half.into()), len: half, ..whole };
    for piece in [second, first] {
        assert_eq!(fixture.fill(piece), Completion { transfer: piece, result: Ok(half) });
    }
    assert!(fixture.left_of(5));
}

#[test]
fn a_block_at_the_end_is_as_long_as_the_file() {
    let mut fixture = Fixture::new(1);
    let last = fixture.transfer(0, 1, 20);
    assert_eq!(fixture.fill(last).result, Ok(1000));
    let beyond = fixture.transfer(0, 2, 21);
    assert_eq!(fixture.fill(beyond).result, Ok(0));
    let nothing = Transfer { file: FileHandle(-1), ..fixture.transfer(0, 3, 0) };
    assert_eq!(fixture.fill(nothing).result, Err(DiskFault(libc::EBADF)));
}

#[test]
fn more_than_the_depth_is_given_back_and_the_rest_completes_once() {
    let mut fixture = Fixture::new(20);
    let all: Vec<_> = (0..20).map(|at| fixture.transfer(at, 1, at.into())).collect();
    let taken = all.iter().take_while(|&&each| fixture.port.submit(clock::now(), each).is_ok());
    assert_eq!(taken.count(), 8);
    fixture.port.kick(clock::now());
    let mut done = vec![];
    while fixture.port.in_flight() > 0 {
        done.extend(fixture.port.poll_completion(clock::now()).map(|each| each.transfer));
    }
    done.sort_by_key(|transfer| transfer.block.place);
    assert_eq!(done, all[..8]);
}

#[test]
fn wrong_sizes_are_refused() {
    let rights = FillerRights::default();
    let good = PagesOptions { places: 1, block: BLOCK, depth: 1, threads: 1, rights };
    for bad in [
        PagesOptions { places: 0, ..good },
        PagesOptions { block: 0, ..good },
        PagesOptions { depth: 0, ..good },
        PagesOptions { threads: 0, ..good },
    ] {
        let refused = DiskPages::open(bad).err().unwrap();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}
