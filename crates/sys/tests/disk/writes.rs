//! What every port for writes promises: each byte at its place, no flush twice, no memory too
//! early.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;

use tactus_core::ports::{self, Completion, Direction, DiskFault, DiskPort, FileHandle};
use tactus_core::ports::{Sync, SyncResult, SyncScope, Transfer};
use tactus_core::units::{Bytes, SECOND};
use tactus_ring::arena::{ArenaOwner, BlockRef, HeapRegion, View, arena};
use tactus_sys::clock;
use tactus_sys::disk::uring::Registration;
use tactus_sys::disk::writes::WriteOptions;
use tactus_sys::disk::{DiskWrites, ReadMethod, open_writes};
use tactus_sys::waker::waker;
use tactus_testkit::small_disk::SmallDisk;

use crate::fixture::{BLOCK, METHODS, block_of, content, mix};

/// A write share and a directory to write into.
struct Share {
    keeper: ArenaOwner,
    view: View,
    directory: tempfile::TempDir,
}

impl Share {
    fn new(places: u32) -> Self {
        let (keeper, view) = arena(Box::new(HeapRegion::new((places * BLOCK) as usize)), BLOCK);
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self { keeper, view, directory }
    }

    fn open(
        &self,
        (method, registration): (ReadMethod, Registration),
        depth: u32,
        syncs: u32,
    ) -> Port {
        let options = WriteOptions { depth, syncs, cores: vec![] };
        Port(open_writes(self.view.clone(), &options, method, registration).unwrap())
    }

    fn file(&self) -> File {
        create(self.directory.path())
    }

    /// A place that holds what the file shall hold from `offset` on.
    fn filled(&mut self, file: &File, offset: u64) -> Transfer {
        let block = self.keeper.take().expect("a free place");
        self.view.fill(block, 0, &content(offset, BLOCK as usize));
        write_of(block, FileHandle(file.as_raw_fd()), offset, BLOCK)
    }
}

/// Which kind of flush the tests ask for, in turns.
const REACH: [SyncScope; 2] = [SyncScope::All, SyncScope::Data];

/// What a port for writes is to those who have only this half.
struct Port(DiskWrites);

impl Port {
    fn submit(&mut self, transfer: Transfer) -> Result<(), Transfer> {
        self.0.submit(clock::now(), transfer)
    }

    fn written(&mut self) -> Completion {
        loop {
            self.0.kick(clock::now());
            if let Some(completion) = self.0.poll_completion(clock::now()) {
                return completion;
            }
            std::thread::yield_now();
        }
    }

    fn flush(&mut self, token: u32, file: i32) -> Result<(), Sync> {
        self.0.submit_sync(
            clock::now(),
            Sync { token, file: FileHandle(file), reach: REACH[token as usize % 2] },
        )
    }

    fn flushed(&mut self) -> SyncResult {
        loop {
            self.0.kick(clock::now());
            if let Some(synced) = self.0.poll_synced(clock::now()) {
                return synced;
            }
            std::thread::yield_now();
        }
    }
}

fn create(directory: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT);
    options.open(directory.join(format!("{:x}", mix(clock::now().0)))).unwrap()
}

fn write_of(block: BlockRef, file: FileHandle, offset: u64, len: u32) -> Transfer {
    let block = ports::BlockRef { place: block.place, generation: block.generation };
    let (direction, offset) = (Direction::Write, Bytes(offset));
    Transfer::new(direction, block, file, offset, len)
}

/// What the file holds, read as anybody else would.
fn read(file: &File) -> Vec<u8> {
    fs::read(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

#[test]
fn every_byte_that_was_written_is_in_the_file_at_its_place() {
    let mut share = Share::new(8);
    for method in METHODS {
        let file = share.file();
        let mut port = share.open(method, 6, 1);
        let mut left: Vec<u64> = (0..20).rev().map(|block| block * u64::from(BLOCK)).collect();
        let mut running = 0;
        while !left.is_empty() || running > 0 {
            while running < 6
                && let Some(offset) = left.pop()
            {
                let transfer = share.filled(&file, offset);
                port.submit(transfer).unwrap();
                running += 1;
            }
            let completion = port.written();
            assert_eq!(completion.result, Ok(BLOCK));
            share.keeper.emptied(block_of(completion.transfer));
            running -= 1;
        }
        let len = 20 * BLOCK as usize;
        assert!(read(&file) == content(0, len), "other bytes than were written, by {method:?}");
    }
}

#[test]
fn a_place_is_written_in_parts_and_free_after_the_last() {
    let mut share = Share::new(1);
    for method in METHODS {
        let file = share.file();
        let mut port = share.open(method, 4, 1);
        let whole = share.filled(&file, 0);
        let part = BLOCK / 4;
        for at in (0..BLOCK).step_by(part as usize) {
            let offset = Bytes(u64::from(at));
            port.submit(Transfer { offset, at, len: part, ..whole }).unwrap();
        }
        for _ in 0..4 {
            assert_eq!(port.written().result, Ok(part));
        }
        share.keeper.emptied(block_of(whole));
        assert!(read(&file) == content(0, BLOCK as usize));
    }
}

#[test]
fn a_full_port_gives_the_write_and_the_flush_back() {
    let mut share = Share::new(3);
    for method in METHODS {
        let file = share.file();
        let mut port = share.open(method, 2, 2);
        let writes: Vec<_> = (0..3).map(|at| share.filled(&file, at * u64::from(BLOCK))).collect();
        port.submit(writes[0]).unwrap();
        port.submit(writes[1]).unwrap();
        assert_eq!(port.submit(writes[2]), Err(writes[2]));
        port.flush(1, file.as_raw_fd()).unwrap();
        port.flush(2, file.as_raw_fd()).unwrap();
        let (file, reach) = (FileHandle(file.as_raw_fd()), REACH[1]);
        let third = Sync { token: 3, file, reach };
        assert_eq!(port.flush(3, file.0), Err(third));
        assert_eq!(port.0.in_flight(), 4);
        // Looked for in the other order than they may have ended.
        let mut tokens = [port.flushed(), port.flushed()].map(|synced| {
            assert_eq!(synced.result, Ok(()));
            synced.sync.token
        });
        tokens.sort_unstable();
        assert_eq!(tokens, [1, 2]);
        for _ in 0..2 {
            assert_eq!(port.written().result, Ok(BLOCK));
        }
        port.submit(writes[2]).unwrap();
        assert_eq!(port.written().result, Ok(BLOCK));
        assert_eq!(port.0.poll_synced(clock::now()), None);
        assert_eq!(port.0.poll_completion(clock::now()), None);
        for write in writes {
            share.keeper.emptied(block_of(write));
        }
    }
}

#[test]
fn files_and_directories_are_flushed_and_what_cannot_be_says_why() {
    let share = Share::new(1);
    let directory = File::open(share.directory.path()).unwrap();
    let file = share.file();
    let (pipe, _end) = std::io::pipe().unwrap();
    for method in METHODS {
        let mut port = share.open(method, 1, 1);
        for (handle, result) in [
            (directory.as_raw_fd(), Ok(())),
            (file.as_raw_fd(), Ok(())),
            (-1, Err(DiskFault(libc::EBADF))),
            (pipe.as_raw_fd(), Err(DiskFault(libc::EINVAL))),
        ] {
            for token in [7, 8] {
                port.flush(token, handle).unwrap();
                let sync =
                    Sync { token, file: FileHandle(handle), reach: REACH[token as usize % 2] };
                assert_eq!(port.flushed(), SyncResult { sync, result });
            }
        }
    }
}

#[test]
fn the_end_of_a_flush_wakes_the_thread_that_has_begun_it() {
    for (method, registration) in METHODS {
        let share = Share::new(1);
        let mut port = share.open((method, registration), 1, 1);
        if !matches!(port.0, DiskWrites::Ring(_)) {
            println!("threads are looked at: {method:?}");
            continue;
        }
        let core = std::thread::spawn(move || {
            let (_waker, mut sleeper) = waker().unwrap();
            sleeper.take_thread();
            let file = share.file();
            for token in 0..20 {
                port.flush(token, file.as_raw_fd()).unwrap();
                port.0.kick(clock::now());
                let deadline = clock::now() + SECOND.times(60);
                // An earlier end may wake it once more.
                while port.0.poll_synced(clock::now()).is_none() {
                    sleeper.wait_until(Some(deadline));
                    assert!(clock::now() < deadline, "nothing wakes it");
                }
            }
        });
        core.join().unwrap();
    }
}

#[test]
fn a_failed_write_is_reported_with_its_error() {
    let mut share = Share::new(1);
    let read_only = File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
    for method in METHODS {
        let mut port = share.open(method, 1, 1);
        let write = share.filled(&read_only, 0);
        port.submit(write).unwrap();
        assert_eq!(port.written().result, Err(DiskFault(libc::EBADF)));
        share.keeper.emptied(block_of(write));
    }
}

#[test]
fn what_is_not_whole_sectors_is_never_asked_of_the_kernel() {
    let mut share = Share::new(1);
    for method in METHODS {
        let file = share.file();
        let mut port = share.open(method, 1, 1);
        let whole = share.filled(&file, 0);
        for wrong in [
            Transfer { len: 4095, ..whole },
            Transfer { offset: Bytes(512), ..whole },
            Transfer { at: 512, len: 4096, ..whole },
        ] {
            let stopped = catch_unwind(AssertUnwindSafe(|| port.submit(wrong)));
            assert!(stopped.is_err(), "{wrong:?}");
        }
        drop(port);
        share.keeper.emptied(block_of(whole));
        assert_eq!(file.metadata().unwrap().len(), 0);
    }
}

#[test]
fn a_full_disk_is_an_error_and_what_was_there_stays() {
    // A disk of its own, which needs a loop device.
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(disk) = SmallDisk::mount(home.path(), 16 << 20) else {
        println!("skipped: no right to mount a loop device");
        return;
    };
    for method in METHODS {
        let mut share = Share::new(4);
        let file = create(disk.path());
        let mut port = share.open(method, 4, 1);
        let mut whole = 0;
        let refused = loop {
            let transfer = share.filled(&file, whole);
            port.submit(transfer).unwrap();
            let completion = port.written();
            share.keeper.emptied(block_of(completion.transfer));
            match completion.result {
                Ok(len) => whole += u64::from(len),
                Err(fault) => break fault,
            }
            assert!(whole < 16 << 20, "more than the disk holds");
        };
        assert_eq!(refused, DiskFault(libc::ENOSPC));
        port.flush(1, file.as_raw_fd()).unwrap();
        assert_eq!(port.flushed().result, Ok(()));
        let there = read(&file);
        assert!(whole > 0 && there[..whole as usize] == content(0, whole as usize));
        file.set_len(0).unwrap();
    }
}

#[test]
fn a_place_is_not_given_up_while_the_kernel_reads_it() {
    for method in [METHODS[0], METHODS[1]] {
        let mut share = Share::new(1);
        let (_reader, mut writer) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while writer.write(&[0; 4096]).is_ok() {}
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        let mut port = share.open(method, 1, 1);
        let block = share.keeper.take().unwrap();
        // Nobody ever reads from the pipe: only the cancel ends this write.
        let endless = write_of(block, FileHandle(writer.as_raw_fd()), 0, 4096);
        port.submit(endless).unwrap();
        port.0.kick(clock::now());
        assert!(catch_unwind(AssertUnwindSafe(|| share.keeper.emptied(block))).is_err());
        assert_eq!(port.0.poll_completion(clock::now()), None);
        drop(port);
        share.keeper.emptied(block);
    }
}

#[test]
fn ports_that_go_with_writes_in_flight_leave_memory_and_the_file_right() {
    const PLACES: u32 = 12;
    let mut share = Share::new(PLACES);
    let file = share.file();
    let mut seed = 1;
    for round in 0..120 {
        let mut port = share.open(METHODS[round % 3], 8, 4);
        let mut running = vec![];
        for turn in 0..8 {
            seed += 1;
            let transfer = share.filled(&file, mix(seed) % 64 * u64::from(BLOCK));
            port.submit(transfer).unwrap();
            running.push(transfer);
            if turn % 3 == round % 2 {
                port.flush(turn as u32 % 4, file.as_raw_fd()).ok();
                port.0.kick(clock::now());
            }
        }
        for _ in 0..round % 5 {
            let completion = port.written();
            assert_eq!(completion.result, Ok(BLOCK));
            running.retain(|transfer| *transfer != completion.transfer);
            share.keeper.emptied(block_of(completion.transfer));
        }
        drop(port);
        for transfer in running {
            // Whatever had not been read by then is never written: this would be seen in the file.
            share.view.fill(block_of(transfer), 0, &[0xA5; BLOCK as usize]);
            share.keeper.emptied(block_of(transfer));
        }
        assert_eq!(share.keeper.counts().free, PLACES);
    }
    let there = read(&file);
    let expected = content(0, there.len());
    for (at, (got, wanted)) in there.chunks(4096).zip(expected.chunks(4096)).enumerate() {
        assert!(got == wanted || got.iter().all(|byte| *byte == 0), "foreign bytes in sector {at}");
    }
}

#[test]
fn what_waits_for_the_file_system_runs_off_the_core_that_asks() {
    const ALONE: &str = "TACTUS_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return waits_off_the_core_that_asks();
    }
    // Threads of other tests have the same names. A process of its own has none of them.
    let name = "writes::what_waits_for_the_file_system_runs_off_the_core_that_asks";
    let mut own = Command::new(std::env::current_exe().unwrap());
    let done = own.args(["--exact", name, "--nocapture"]).env(ALONE, "yes").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{done:?}");
}

fn waits_off_the_core_that_asks() {
    let cores = tactus_sys::thread::allowed_cores().unwrap();
    let &[first, .., last] = &cores[..] else {
        println!("skipped: one core only");
        return;
    };
    for (method, registration) in METHODS {
        let share = Share::new(1);
        let view = share.view.clone();
        let issuer = std::thread::spawn(move || {
            tactus_sys::thread::pin(last).unwrap();
            let options = WriteOptions { depth: 2, syncs: 2, cores: vec![first] };
            let writes = open_writes(view, &options, method, registration).unwrap();
            let is_ring = matches!(writes, DiskWrites::Ring(_));
            let mut port = Port(writes);
            let file = share.file();
            port.flush(1, file.as_raw_fd()).unwrap();
            assert_eq!(port.flushed().result, Ok(()));
            let ours = match is_ring {
                // The kernel names its threads after the one they work for, which it counts from 1.
                true => format!("iou-wrk-{}", rustix::thread::gettid().as_raw_nonzero()),
                false => "tactus-write".to_owned(),
            };
            threads(&ours)
        });
        let allowed = issuer.join().unwrap();
        assert!(!allowed.is_empty(), "no thread of {method:?} was seen");
        assert!(allowed.iter().all(|cores| *cores == first.to_string()), "{allowed:?}");
    }
}

/// The cores of each of this process' threads whose name begins so.
fn threads(name: &str) -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let status = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let field = |status: &str, key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim().to_owned())
    };
    let ours =
        status.filter(|status| field(status, "Name:").is_some_and(|it| it.starts_with(name)));
    ours.filter_map(|status| field(&status, "Cpus_allowed_list:")).collect()
}
