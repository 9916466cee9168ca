//! A file whose every word says where it is, and an arena to read it into.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

use tactus_core::ports::{self, Completion, Direction, DiskPort, FileHandle, Transfer};
use tactus_core::units::Bytes;
use tactus_ring::arena::{ArenaOwner, BlockRef, HeapRegion, Lease, View, arena};
use tactus_sys::clock;
use tactus_sys::disk::uring::Registration;
use tactus_sys::disk::{DiskDevice, DiskOptions, ReadMethod, open};
use tactus_sys::file::{Access, OpenedFile, open_beneath};

pub(crate) const BLOCK: u32 = 32 * 1024;

/// Every read method that this kernel may have.
pub(crate) const METHODS: [(ReadMethod, Registration); 3] = [
    (ReadMethod::Best, Registration::Wanted),
    (ReadMethod::Best, Registration::NotWanted),
    (ReadMethod::Threads, Registration::NotWanted),
];

pub(crate) struct Fixture {
    pub(crate) keeper: ArenaOwner,
    pub(crate) view: View,
    pub(crate) file: OpenedFile,
    pub(crate) file_len: u64,
}

impl Fixture {
    pub(crate) fn new(places: u32, file_len: u64) -> Self {
        let region = HeapRegion::new((places * BLOCK) as usize);
        let (keeper, view) = arena(Box::new(region), BLOCK);
        // Beside the build, not in the temporary directory: that may have no direct reads.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut file = File::create(directory.path().join("title")).unwrap();
        file.write_all(&content(0, file_len as usize)).unwrap();
        file.sync_all().unwrap();
        let root = File::open(directory.path()).unwrap();
        let file = open_beneath(&root, Path::new("title"), Access::Direct).unwrap();
        assert!(file.direct, "the build directory lies on a file system with direct reads");
        Self { keeper, view, file, file_len }
    }

    pub(crate) fn open(
        &self,
        (method, registration): (ReadMethod, Registration),
        depth: u32,
    ) -> DiskDevice {
        let options = DiskOptions { depth, threads: 3, method, registration };
        open(self.view.clone(), options).unwrap()
    }

    /// A transfer of `len` bytes from `offset` on, into a block taken for it.
    pub(crate) fn transfer(&mut self, offset: u64, len: u32) -> Transfer {
        let block = self.keeper.take().expect("a free block");
        transfer(block, FileHandle(self.file.file.as_raw_fd()), offset, len)
    }

    /// Checks what a completion says and what its block holds, then frees the block.
    pub(crate) fn check(&mut self, completion: Completion) {
        let Transfer { offset, at, len, .. } = completion.transfer;
        let there = self.file_len.saturating_sub(offset.0).min(u64::from(len)) as u32;
        assert_eq!(completion.result, Ok(there), "{completion:?}");
        let block = block_of(completion.transfer);
        self.keeper.filled(block);
        let lease = self.keeper.lend(block);
        let bytes = &self.view.bytes(&lease)[at as usize..][..there as usize];
        assert!(bytes == content(offset.0, there as usize), "wrong bytes: {completion:?}");
        self.free(lease);
    }

    pub(crate) fn free(&mut self, lease: Lease) {
        let block = lease.block();
        assert!(self.keeper.give_back(lease));
        self.keeper.evict(block);
    }
}

pub(crate) fn transfer(block: BlockRef, file: FileHandle, offset: u64, len: u32) -> Transfer {
    let block = ports::BlockRef { place: block.place, generation: block.generation };
    let (direction, offset) = (Direction::Read, Bytes(offset));
    Transfer::new(direction, block, file, offset, len)
}

pub(crate) fn block_of(transfer: Transfer) -> BlockRef {
    BlockRef { place: transfer.block.place, generation: transfer.block.generation }
}

/// What the file holds from `offset` on, a multiple of eight: a mix of each word's offset.
pub(crate) fn content(offset: u64, len: usize) -> Vec<u8> {
    let words = (offset..).step_by(8).take(len.div_ceil(8));
    let mut bytes: Vec<u8> = words.flat_map(|at| mix(at).to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// splitmix64: also the tests' source of chance.
pub(crate) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Kicks and polls until a transfer has ended.
pub(crate) fn next(device: &mut impl DiskPort) -> Completion {
    loop {
        device.kick(clock::now());
        if let Some(completion) = device.poll_completion(clock::now()) {
            return completion;
        }
        std::thread::yield_now();
    }
}
