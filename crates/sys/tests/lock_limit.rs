//! A limit for locked memory that is smaller than the arena: reads go on without registration.
//!
//! The limit holds for a whole process, so this test has one for itself.

#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

use std::os::fd::AsRawFd;

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tactus_core::ports::{BlockRef, Direction, DiskPort, FileHandle, Transfer};
use tactus_core::units::Bytes;
use tactus_ring::arena::{HeapRegion, arena};
use tactus_sys::clock;
use tactus_sys::disk::uring::Tender;
use tactus_sys::disk::{self, DiskDevice, DiskFacts, DiskOptions};

#[test]
fn a_refused_registration_is_reported_and_reads_go_on() {
    let mut rights = capabilities(None).unwrap();
    rights.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, rights).unwrap();
    let little = Rlimit { current: Some(65_536), maximum: Some(65_536) };
    setrlimit(Resource::Memlock, little).unwrap();

    let (mut keeper, view) = arena(Box::new(HeapRegion::new(4 << 20)), 1 << 20);
    let options = DiskOptions { depth: 4, ..DiskOptions::default() };
    let mut device = disk::open(view.clone(), options).unwrap();
    let registered = |device: &DiskDevice| match device.facts() {
        DiskFacts::Ring(facts) => facts.registered,
        other => panic!("{other:?}"),
    };
    assert_eq!(registered(&device), Err(libc::ENOMEM));
    assert!(device.renewer().prepare(&Tender::default()).unwrap());
    assert!(device.may_leave());
    device.leave(0);
    assert_eq!(registered(&device), Err(libc::ENOMEM), "the reason is kept");

    let itself = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lock_limit.rs");
    let open = std::fs::File::open(itself).unwrap();
    let block = keeper.take().unwrap();
    let port_block = BlockRef { place: block.place, generation: block.generation };
    let file = FileHandle(open.as_raw_fd());
    let transfer = Transfer::new(Direction::Read, port_block, file, Bytes(0), 8192);
    device.submit(clock::now(), transfer).unwrap();
    let completion = loop {
        device.kick(clock::now());
        if let Some(completion) = device.poll_completion(clock::now()) {
            break completion;
        }
        std::thread::yield_now();
    };
    let text = include_bytes!("lock_limit.rs");
    assert_eq!(completion.result, Ok(text.len() as u32));
    keeper.filled(block);
    let lease = keeper.lend(block);
    assert_eq!(&view.bytes(&lease)[..text.len()], text);
}
