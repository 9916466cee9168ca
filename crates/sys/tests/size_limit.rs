//! A limit for the size of files in the middle of a write: the kernel writes a part, then refuses.
//!
//! The limit holds for a whole process, so this test has one for itself.

#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::process::{Resource, Rlimit, setrlimit};
use tactus_core::ports::{BlockRef, Direction, DiskFault, DiskPort, FileHandle, Transfer};
use tactus_core::units::Bytes;
use tactus_ring::arena::{HeapRegion, arena};
use tactus_sys::clock;
use tactus_sys::disk::uring::Registration;
use tactus_sys::disk::writes::WriteOptions;
use tactus_sys::disk::{ReadMethod, open_writes};

const PART: u64 = 3 * 4096;
const WHOLE: u32 = 8 * 4096;

/// Lifted again before the harness speaks, whose own output may go to a long file.
struct SizeLimit;

impl SizeLimit {
    fn set() -> Self {
        setrlimit(Resource::Fsize, Rlimit { current: Some(PART), maximum: None }).unwrap();
        Self
    }
}

impl Drop for SizeLimit {
    fn drop(&mut self) {
        setrlimit(Resource::Fsize, Rlimit { current: None, maximum: None }).unwrap();
    }
}

#[test]
fn a_write_of_which_a_part_was_done_is_never_counted_whole() {
    // SAFETY: no handler runs: the signal that comes with the refusal is ignored.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let _limit = SizeLimit::set();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (at, method) in [ReadMethod::Best, ReadMethod::Threads].into_iter().enumerate() {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).custom_flags(libc::O_DIRECT);
        let file = options.open(directory.path().join(at.to_string())).unwrap();
        let (mut keeper, view) = arena(Box::new(HeapRegion::new(WHOLE as usize)), WHOLE);
        let options = WriteOptions { depth: 1, syncs: 1, cores: vec![] };
        let mut port = open_writes(view.clone(), &options, method, Registration::Wanted).unwrap();
        let place = keeper.take().unwrap();
        let block = BlockRef { place: place.place, generation: place.generation };
        let (direction, file_handle) = (Direction::Write, FileHandle(file.as_raw_fd()));
        let transfer = Transfer::new(direction, block, file_handle, Bytes(0), WHOLE);
        port.submit(clock::now(), transfer).unwrap();
        let completion = loop {
            port.kick(clock::now());
            if let Some(completion) = port.poll_completion(clock::now()) {
                break completion;
            }
            std::thread::yield_now();
        };
        assert_eq!(completion.result, Err(DiskFault(libc::EFBIG)), "{method:?}");
        assert_eq!(file.metadata().unwrap().len(), PART, "the kernel did write a part");
        keeper.emptied(place);
    }
}
