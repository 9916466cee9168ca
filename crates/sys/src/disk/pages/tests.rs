//! The port against real files in the real page cache.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::resident::pages_of;
use super::*;
use tactus_core::ports::{
    BlockRef, Direction, FilePart, HeldPlace, LinkPort, SendResult, SocketHandle,
};
use tactus_core::units::Bytes;

use crate::clock;
use crate::memory::PAGE;
use crate::tcp::TcpLink;

const BLOCK: u32 = 64 * 1024;
/// The read-ahead of the device in the port's options; that of the real device may differ.
const WINDOW: Bytes = Bytes(2 * BLOCK as u64);
/// So much memory is never free.
const ALWAYS_SCARCE: Bytes = Bytes(u64::MAX);
const LEN: u64 = 20 * BLOCK as u64 + 1000;

fn byte_at(at: u64) -> u8 {
    ((at * 31) >> 8) as u8
}

struct Fixture {
    port: DiskPages,
    file: File,
    directory: tempfile::TempDir,
}

impl Fixture {
    fn new(places: u32) -> Self {
        Self::with_free_memory(places, ALWAYS_SCARCE)
    }

    fn with_free_memory(places: u32, free_min: Bytes) -> Self {
        Self::with(places, free_min, ReadAhead::Usual)
    }

    fn with(places: u32, free_min: Bytes, read_ahead: ReadAhead) -> Self {
        // Beside the build, not in the temporary directory: that may be memory.
        let build = std::env::current_exe().unwrap();
        let directory = tempfile::tempdir_in(build.parent().unwrap()).unwrap();
        let path = directory.path().join("title");
        let mut file = File::create(&path).unwrap();
        file.write_all(&content(0, LEN as u32)).unwrap();
        file.sync_all().unwrap();
        let rights = FillerRights::default();
        let options = PagesOptions {
            places,
            block: BLOCK,
            depth: 8,
            threads: 2,
            free_min,
            read_ahead,
            rights,
        };
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
        Transfer::new(
            Direction::Read,
            BlockRef { place, generation },
            FileHandle(self.file.as_raw_fd()),
            Bytes(block * u64::from(BLOCK)),
            BLOCK,
        )
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

    fn is_in_memory(&self, block: u64) -> bool {
        let file = FileHandle(self.file.as_raw_fd());
        Residence::of(file, block * u64::from(BLOCK), BLOCK, Bytes(0)).is_in_memory
    }

    /// As [`Self::left_of`], for the last page of the block.
    fn is_end_left(&self, block: u64) -> bool {
        self.forget();
        let file = FileHandle(self.file.as_raw_fd());
        pages_of(file, (block + 1) * u64::from(BLOCK) - PAGE, PAGE) == Some(1)
    }

    /// Whether a block stays when the kernel takes back what nobody refers to.
    fn left_of(&self, block: u64) -> bool {
        self.forget();
        self.is_in_memory(block)
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
    fixture.fill(fixture.transfer(0, 2, 12));
    // A real clock: the thread looks four times a second. Without it, this would not end.
    while fixture.is_in_memory(0) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn what_is_given_up_stays_in_the_page_cache_while_memory_is_free() {
    let mut fixture = Fixture::with_free_memory(1, Bytes(0));
    fixture.fill(fixture.transfer(0, 1, 0));
    fixture.fill(fixture.transfer(0, 2, 12));
    // Three times as long as the thread takes to look.
    std::thread::sleep(std::time::Duration::from_millis(750));
    assert!(fixture.is_in_memory(0) && fixture.is_in_memory(12));
}

#[test]
fn a_deleted_file_is_let_go_of_though_its_block_stays() {
    let mut fixture = Fixture::new(1);
    fixture.fill(fixture.transfer(0, 1, 2));
    let path = fixture.directory.path().join("title");
    std::fs::remove_file(&path).unwrap();
    let deleted = PathBuf::from(format!("{} (deleted)", path.display()));
    // Ours stays; the place's goes within seconds. Without that, this would not end.
    while open_files_at(&deleted) > 1 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(fixture.left_of(2));
}

#[test]
fn no_file_is_kept_open_while_memory_is_free() {
    let mut fixture = Fixture::with_free_memory(2, Bytes(0));
    fixture.fill(fixture.transfer(0, 1, 0));
    // Three times as long as the thread takes to look.
    std::thread::sleep(std::time::Duration::from_millis(750));
    fixture.fill(fixture.transfer(1, 1, 12));
    // The first block was filled before the thread's first look: its file is closed only now.
    fixture.fill(fixture.transfer(0, 2, 7));
    while open_files_at(&fixture.directory.path().join("title")) > 1 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// How many descriptors of this process are open at this path.
fn open_files_at(path: &Path) -> usize {
    let is_open = |at: &std::io::Result<std::fs::DirEntry>| {
        // A descriptor that has been closed since is not open.
        std::fs::read_link(at.as_ref().unwrap().path()).is_ok_and(|to| to == path)
    };
    std::fs::read_dir("/proc/self/fd").unwrap().filter(is_open).count()
}

#[test]
fn the_kernel_reads_ahead_only_where_it_may() {
    let mut fixture = Fixture::with(4, ALWAYS_SCARCE, ReadAhead::InTurns(WINDOW));
    for block in 0..3 {
        fixture.fill(fixture.transfer(block, 1, block.into()));
        assert!(!fixture.is_in_memory(u64::from(block) + 1));
        assert_eq!(fixture.port.read_ahead(), 0);
    }
    let reads_ahead = Transfer { reads_ahead: true, ..fixture.transfer(3, 1, 3) };
    fixture.fill(reads_ahead);
    assert!(fixture.is_in_memory(4), "or on its way there");
    assert_eq!(fixture.port.read_ahead(), BLOCK);
    // A later transfer turns the read-ahead of the file off again.
    fixture.fill(fixture.transfer(0, 2, 12));
    assert!(!fixture.is_in_memory(13));
    // Another stream has read what lies behind its windows: nothing is left to be read.
    fixture.fill(fixture.transfer(1, 2, 9));
    fixture.fill(Transfer { reads_ahead: true, ..fixture.transfer(2, 2, 4) });
    assert_eq!(fixture.port.read_ahead(), 0);
}

#[test]
fn what_the_kernel_reads_ahead_counts_until_it_has_been_read() {
    let mut fixture = Fixture::with(4, ALWAYS_SCARCE, ReadAhead::Doubled(WINDOW));
    let of = |fixture: &mut Fixture, place, block: u64, blocks_behind: u64| {
        let rest = Bytes(blocks_behind * u64::from(BLOCK));
        fixture.fill(Transfer { rest, ..fixture.transfer(place, 1, block) });
        fixture.port.read_ahead()
    };
    assert_eq!(of(&mut fixture, 0, 0, 19), BLOCK, "nothing has been read");
    // By single pages, so that a part of them can go.
    let file = FileHandle(fixture.file.as_raw_fd());
    advise(file, Advice::Random);
    sum_of(&fixture, 0, 8 * BLOCK);
    discard::discard(file.0, 8 * u64::from(BLOCK), LEN);
    assert!(fixture.is_in_memory(7) && !fixture.is_in_memory(8));
    // A window is two blocks, and the next one is asked for at the beginning of the last.
    assert_eq!(of(&mut fixture, 1, 4, 15), 0, "the title is in memory up to block 7");
    assert_eq!(of(&mut fixture, 2, 5, 14), BLOCK, "block 8 is not");
    assert_eq!(of(&mut fixture, 3, 6, 1), 0, "nor need it be, where block 7 is the last one");
}

#[test]
fn a_file_may_end_anywhere_in_a_block() {
    let mut fixture = Fixture::new(1);
    let file = File::options().write(true).open(fixture.directory.path().join("title")).unwrap();
    let page = PAGE as u32;
    let ends = [1, page - 1, page, BLOCK - page, BLOCK - page + 1, BLOCK - 1, BLOCK];
    for (generation, end) in (1..).zip(ends) {
        file.set_len(2 * u64::from(BLOCK) + u64::from(end)).unwrap();
        let last = fixture.transfer(0, generation, 2);
        assert_eq!(fixture.fill(last).result, Ok(end));
    }
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

/// A link on the blocks of the fixture, and a connection.
struct Sending {
    link: TcpLink,
    ours: TcpStream,
    peer: TcpStream,
}

impl Sending {
    fn new(fixture: &Fixture) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let link = TcpLink::new([None, Some(fixture.port.held())]);
        Self { link, ours, peer: listener.accept().unwrap().0 }
    }

    /// What arrives of `len` bytes from `at` of the title on, sent out of place 0.
    fn send(&mut self, fixture: &Fixture, at: u64, len: u32) -> Vec<u8> {
        let (socket, file) = (self.ours.as_raw_fd(), FileHandle(fixture.file.as_raw_fd()));
        let place = HeldPlace { volume: 1, place: 0, has_more: false };
        let part = FilePart { file, offset: Bytes(at), len };
        let sent = self.link.send_held(clock::now(), SocketHandle(socket), place, part);
        assert_eq!(sent, SendResult::Some(len));
        let mut arrived = vec![0; len as usize];
        self.peer.read_exact(&mut arrived).unwrap();
        arrived
    }
}

fn content(from: u64, len: u32) -> Vec<u8> {
    (from..from + u64::from(len)).map(byte_at).collect()
}

#[test]
fn pages_sent_in_order_leave_their_place_at_once() {
    let mut fixture = Fixture::new(1);
    fixture.fill(fixture.transfer(0, 1, 3));
    let mut sending = Sending::new(&fixture);
    let begin = 3 * u64::from(BLOCK);
    let mut at = 0;
    for len in [1, 999, 20_000, BLOCK - 21_000] {
        assert!(fixture.is_end_left(3), "{at}: its end has not been sent");
        assert_eq!(sending.send(&fixture, begin + at, len), content(begin + at, len));
        at += u64::from(len);
    }
    assert!(!fixture.is_end_left(3), "nobody refers to it");
    // A refill of the place drops the unsent rest.
    fixture.fill(fixture.transfer(0, 2, 5));
    let begin = 5 * u64::from(BLOCK);
    assert_eq!(sending.send(&fixture, begin, 5000), content(begin, 5000));
    fixture.fill(fixture.transfer(0, 3, 7));
    assert!(!fixture.is_end_left(5));
    let begin = 7 * u64::from(BLOCK);
    assert_eq!(sending.send(&fixture, begin, BLOCK), content(begin, BLOCK));
}

#[test]
fn a_part_from_the_middle_of_a_place_is_sent_and_stays_there() {
    let mut fixture = Fixture::new(1);
    fixture.fill(fixture.transfer(0, 1, 3));
    let mut sending = Sending::new(&fixture);
    let begin = 3 * u64::from(BLOCK);
    assert_eq!(sending.send(&fixture, begin + 5000, 100), content(begin + 5000, 100));
    // A place holds parts in the order of their completion.
    let whole = fixture.transfer(0, 2, 5);
    let half = BLOCK / 2;
    let behind = Transfer { at: half, offset: whole.offset + Bytes(half.into()), ..whole };
    for piece in [Transfer { len: half, ..behind }, Transfer { len: half, ..whole }] {
        fixture.fill(piece);
    }
    let begin = 5 * u64::from(BLOCK);
    for at in [0, u64::from(half)] {
        assert_eq!(sending.send(&fixture, begin + at, half), content(begin + at, half));
    }
    assert!(fixture.left_of(5), "its place refers to it");
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

/// The sum of what the file of the fixture holds.
fn sum_of(fixture: &Fixture, block: u64, len: u32) -> Sum {
    let mut bytes = vec![0; len as usize];
    fixture.file.read_exact_at(&mut bytes, block * u64::from(BLOCK)).unwrap();
    Sum { len, crc32c: crc32c::crc32c(&bytes) }
}

#[test]
fn a_block_whose_sum_is_right_is_filled_and_a_damaged_one_is_not() {
    let mut fixture = Fixture::new(3);
    let whole = Transfer { sum: Some(sum_of(&fixture, 5, BLOCK)), ..fixture.transfer(0, 1, 5) };
    assert_eq!(fixture.fill(whole).result, Ok(BLOCK));
    let sum = Some(sum_of(&fixture, 20, 1000));
    let last = Transfer { sum, ..fixture.transfer(1, 1, 20) };
    assert_eq!(fixture.fill(last).result, Ok(1000));
    let cut = Transfer { sum: Some(Sum { len: 1001, crc32c: 0 }), ..fixture.transfer(1, 2, 20) };
    assert_eq!(fixture.fill(cut).result, Ok(1000), "the count tells that the file was cut");
    // One bit, on the disk and in memory alike.
    let at = 5 * u64::from(BLOCK) + 40_001;
    let path = fixture.directory.path().join("title");
    let writable = File::options().write(true).read(true).open(path).unwrap();
    let mut byte = [0];
    writable.read_exact_at(&mut byte, at).unwrap();
    writable.write_all_at(&[byte[0] ^ 4], at).unwrap();
    let damaged = Transfer { block: BlockRef { place: 2, generation: 1 }, ..whole };
    assert_eq!(fixture.fill(damaged).result, Err(DiskFault::DAMAGED));
    let unknown = Transfer { sum: None, ..fixture.transfer(2, 2, 5) };
    assert_eq!(fixture.fill(unknown).result, Ok(BLOCK));
}

#[test]
fn a_sum_is_compared_once_every_part_of_its_block_has_landed() {
    for (is_damaged, is_broken) in [(false, false), (true, false), (false, true)] {
        let mut fixture = Fixture::new(1);
        let mut sum = sum_of(&fixture, 7, BLOCK);
        sum.crc32c ^= u32::from(is_damaged);
        let part = BLOCK / 4;
        let whole = fixture.transfer(0, 1, 7);
        let parts: Vec<_> = (0..4)
            .map(|at| Transfer {
                at: at * part,
                offset: whole.offset + Bytes(u64::from(at * part)),
                len: part,
                sum: (at == 3).then_some(sum),
                file: if is_broken && at == 1 { FileHandle(-1) } else { whole.file },
                ..whole
            })
            .collect();
        // All at once, on several threads: the last may be the first to land.
        for part in &parts {
            fixture.port.submit(clock::now(), *part).unwrap();
        }
        fixture.port.kick(clock::now());
        let mut results = vec![];
        while fixture.port.in_flight() > 0 {
            let Some(done) = fixture.port.poll_completion(clock::now()) else { continue };
            results.push((done.transfer.at / part, done.result));
        }
        let of = |at: u32| results.iter().find(|done| done.0 == at).unwrap().1;
        assert_eq!(results.len(), 4);
        assert_eq!(of(0), Ok(part));
        assert_eq!(of(1).is_err(), is_broken);
        assert_eq!(of(3), if is_damaged { Err(DiskFault::DAMAGED) } else { Ok(part) });
        assert_eq!(results[3].0, 3, "it ends after the others");
    }
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
    let good = PagesOptions {
        places: 1,
        block: BLOCK,
        depth: 1,
        threads: 1,
        free_min: ALWAYS_SCARCE,
        read_ahead: ReadAhead::Usual,
        rights,
    };
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
