//! What both ports promise, one by one.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tactus_core::ports::{Completion, DiskFault, DiskPort, FileHandle};
use tactus_core::units::SECOND;
use tactus_ring::arena::{HeapRegion, Region, arena};
use tactus_sys::clock;
use tactus_sys::disk::uring::{DiskRing, Registration, Tender};
use tactus_sys::disk::{DiskFacts, ReadMethod};

use crate::fixture::{BLOCK, Fixture, METHODS, block_of, next, transfer};

#[test]
fn every_byte_of_a_file_is_read_and_its_end_is_found_exactly() {
    for file_len in [0, 1, 4095, 4096, 4608, 70_000, 4 * u64::from(BLOCK)] {
        let mut fixture = Fixture::new(8, file_len);
        for method in METHODS {
            let mut device = fixture.open(method, 8);
            for offset in (0..=file_len + 4096).step_by(BLOCK as usize) {
                let transfer = fixture.transfer(offset / 4096 * 4096, BLOCK);
                device.submit(clock::now(), transfer).unwrap();
            }
            while device.in_flight() > 0 {
                fixture.check(next(&mut device));
            }
        }
    }
}

#[test]
fn a_block_is_filled_in_parts_at_their_places() {
    let mut fixture = Fixture::new(2, 1 << 20);
    for method in METHODS {
        let mut device = fixture.open(method, 8);
        let block = fixture.keeper.take().unwrap();
        let file = FileHandle(fixture.file.file.as_raw_fd());
        for part in 0..4 {
            let mut part_of = transfer(block, file, 40_960 + part * 8192, 8192);
            part_of.at = part as u32 * 8192;
            device.submit(clock::now(), part_of).unwrap();
        }
        while device.in_flight() > 0 {
            assert_eq!(next(&mut device).result, Ok(8192));
        }
        let whole = transfer(block, file, 40_960, BLOCK);
        fixture.check(Completion { transfer: whole, result: Ok(BLOCK) });
    }
}

#[test]
fn a_full_port_gives_the_transfer_back() {
    let mut fixture = Fixture::new(4, 1 << 20);
    for method in METHODS {
        let mut device = fixture.open(method, 3);
        for _ in 0..3 {
            let transfer = fixture.transfer(0, 4096);
            device.submit(clock::now(), transfer).unwrap();
        }
        let refused = fixture.transfer(4096, 4096);
        assert_eq!(device.submit(clock::now(), refused), Err(refused));
        fixture.check(next(&mut device));
        device.submit(clock::now(), refused).unwrap();
        while device.in_flight() > 0 {
            fixture.check(next(&mut device));
        }
        assert_eq!(device.poll_completion(clock::now()), None);
    }
}

#[test]
fn a_failed_read_is_reported_with_its_error() {
    let mut fixture = Fixture::new(2, 4096);
    let directory = std::fs::File::open("/").unwrap();
    for method in METHODS {
        let mut device = fixture.open(method, 2);
        for (file, errno) in [(-1, libc::EBADF), (directory.as_raw_fd(), libc::EISDIR)] {
            let block = fixture.keeper.take().unwrap();
            device.submit(clock::now(), transfer(block, FileHandle(file), 0, 4096)).unwrap();
            assert_eq!(next(&mut device).result, Err(DiskFault(errno)));
            fixture.keeper.failed(block);
        }
    }
}

#[test]
fn a_block_is_not_given_up_while_the_kernel_has_it() {
    let mut fixture = Fixture::new(1, 4096);
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut ring = DiskRing::open(fixture.view.clone(), 1, Registration::Wanted).unwrap();
    let block = fixture.keeper.take().unwrap();
    let endless = transfer(block, FileHandle(reader.as_raw_fd()), 0, 4096);
    ring.submit(clock::now(), endless).unwrap();
    ring.kick(clock::now());
    assert!(catch_unwind(AssertUnwindSafe(|| fixture.keeper.failed(block))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| fixture.keeper.filled(block))).is_err());
    assert_eq!(ring.poll_completion(clock::now()), None);
    // Nobody ever writes into the pipe: only the cancel ends this read.
    drop(ring);
    fixture.keeper.failed(block);
}

#[test]
fn transfers_that_were_never_kicked_come_back_when_the_port_is_dropped() {
    let mut fixture = Fixture::new(2, 4096);
    for method in METHODS {
        let mut device = fixture.open(method, 2);
        let transfers = [fixture.transfer(0, 4096), fixture.transfer(0, 4096)];
        for transfer in transfers {
            device.submit(clock::now(), transfer).unwrap();
        }
        drop(device);
        for transfer in transfers {
            fixture.keeper.failed(block_of(transfer));
        }
    }
}

#[test]
fn a_port_moves_from_thread_to_thread_with_what_is_under_way() {
    let mut fixture = Fixture::new(8, 1 << 20);
    for method in METHODS {
        let mut device = fixture.open(method, 4);
        let (renewer, before) = (device.renewer(), device.facts());
        for turn in 0..4 {
            let tender = Tender::default();
            assert!(renewer.prepare(&tender).unwrap(), "the last move is settled");
            let [first, second] = [0, 1].map(|at| fixture.transfer((turn + at) * 4096, 4096));
            // Threads know each other's turns by messages only.
            let (go, gone) = std::sync::mpsc::channel();
            let ended = AtomicBool::new(false);
            let (moved, done) = std::thread::scope(|scope| {
                let (tender, ended) = (&tender, &ended);
                scope.spawn(move || {
                    device.submit(clock::now(), first).unwrap();
                    device.kick(clock::now());
                    assert!(device.may_leave());
                    device.leave(0);
                    go.send(device).unwrap();
                    while !ended.load(Ordering::Relaxed) {
                        tender.tend();
                        std::thread::yield_now();
                    }
                });
                let mut device = gone.recv().unwrap();
                device.submit(clock::now(), second).unwrap();
                let done = [next(&mut device), next(&mut device)];
                assert_eq!(device.in_flight(), 0);
                ended.store(true, Ordering::Relaxed);
                (device, done)
            });
            device = moved;
            done.into_iter().for_each(|completion| fixture.check(completion));
            assert!(renewer.settle(), "nothing of the old ring is left");
            assert!(!tender.tend(), "nothing is tended any more");
            // An idle port leaves this thread for the next one's.
            assert!(renewer.prepare(&tender).unwrap() && device.may_leave());
            device.leave(0);
            assert!(renewer.settle() && !tender.tend());
            assert_eq!(device.facts(), before);
        }
    }
}

#[test]
fn what_a_port_has_left_behind_comes_when_its_thread_tends_it() {
    let mut fixture = Fixture::new(2, 1 << 20);
    let mut device = fixture.open((ReadMethod::Best, Registration::Wanted), 2);
    if !matches!(device.facts(), DiskFacts::Ring(facts) if facts.deferred) {
        println!("skipped: this kernel has no deferred completions");
        return;
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (renewer, tender) = (device.renewer(), Tender::default());
    assert!(renewer.prepare(&tender).unwrap());
    let block = fixture.keeper.take().unwrap();
    let slow = transfer(block, FileHandle(reader.as_raw_fd()), 0, 4096);
    device.submit(clock::now(), slow).unwrap();
    device.kick(clock::now());
    assert!(device.may_leave());
    device.leave(0);
    let quick = fixture.transfer(4096, 4096);
    let mut device = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut device = device;
            device.submit(clock::now(), quick).unwrap();
            fixture.check(next(&mut device));
            device
        });
        reading.join().unwrap()
    });
    assert!(!renewer.settle() && !device.may_leave(), "the old ring has a read under way");
    assert!(!renewer.prepare(&tender).unwrap(), "the next move waits for it");
    writer.write_all(&[7; 4096]).unwrap();
    let end = clock::now() + SECOND.times(10);
    let come = loop {
        assert!(tender.tend() && clock::now() < end);
        if let Some(come) = device.poll_completion(clock::now()) {
            break come;
        }
    };
    assert_eq!(come, Completion { transfer: slow, result: Ok(4096) });
    fixture.keeper.filled(block);
    assert!(renewer.settle() && !tender.tend());
}

#[test]
fn a_kick_from_a_thread_that_is_not_the_issuer_stops_the_program() {
    let mut fixture = Fixture::new(2, 1 << 20);
    let mut ring = DiskRing::open(fixture.view.clone(), 2, Registration::Wanted).unwrap();
    if !ring.facts().deferred {
        println!("skipped: this kernel has no single issuers");
        return;
    }
    let first = fixture.transfer(0, 4096);
    ring.submit(clock::now(), first).unwrap();
    fixture.check(next(&mut ring));
    let second = fixture.transfer(0, 4096);
    ring.submit(clock::now(), second).unwrap();
    let elsewhere = std::thread::scope(|scope| scope.spawn(|| ring.kick(clock::now())).join());
    assert!(elsewhere.is_err());
    fixture.check(next(&mut ring));
}

/// Memory that tells when it is freed.
struct TrackedMemory {
    memory: HeapRegion,
    freed: Arc<AtomicBool>,
}

// SAFETY: as the heap region that it wraps.
unsafe impl Region for TrackedMemory {
    fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    fn len(&self) -> usize {
        self.memory.len()
    }
}

impl Drop for TrackedMemory {
    fn drop(&mut self) {
        self.freed.store(true, Ordering::SeqCst);
    }
}

#[test]
fn memory_that_the_kernel_may_still_write_is_never_freed() {
    for (same_thread, freed_at_the_end) in [(true, true), (false, false)] {
        let freed = Arc::new(AtomicBool::new(false));
        let memory = HeapRegion::new(BLOCK as usize);
        let region = TrackedMemory { memory, freed: Arc::clone(&freed) };
        let (mut keeper, view) = arena(Box::new(region), BLOCK);
        let mut ring = DiskRing::open(view, 1, Registration::NotWanted).unwrap();
        if !ring.facts().deferred {
            println!("skipped: without a single issuer any thread may wait");
            return;
        }
        let (reader, mut writer) = std::io::pipe().unwrap();
        let block = keeper.take().unwrap();
        let endless = transfer(block, FileHandle(reader.as_raw_fd()), 0, 4096);
        ring.submit(clock::now(), endless).unwrap();
        ring.kick(clock::now());
        drop(keeper);
        assert!(!freed.load(Ordering::SeqCst), "the port holds the arena");
        if same_thread {
            drop(ring);
        } else {
            // Not the issuer: it can neither cancel nor wait, so it must leak.
            std::thread::scope(|scope| scope.spawn(|| drop(ring)).join().unwrap());
            std::io::Write::write_all(&mut writer, b"late").unwrap();
        }
        assert_eq!(freed.load(Ordering::SeqCst), freed_at_the_end);
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    let fixture = Fixture::new(1, 0);
    for depth in [0, tactus_sys::disk::uring::DEPTH_MAX + 1] {
        assert!(DiskRing::open(fixture.view.clone(), depth, Registration::Wanted).is_err());
    }
    let threads = tactus_sys::disk::threads::DiskThreads::open;
    for (depth, count) in [(0, 1), (1, 0), (1, tactus_sys::disk::threads::THREADS_MAX + 1)] {
        assert!(threads(fixture.view.clone(), depth, count).is_err());
    }
}

#[test]
fn the_port_says_what_the_kernel_granted() {
    let fixture = Fixture::new(1, 0);
    for method in METHODS {
        match (method, fixture.open(method, 7).facts()) {
            ((_, Registration::Wanted), DiskFacts::Ring(facts)) => {
                assert_eq!((facts.depth, facts.registered), (7, Ok(())));
                assert!(facts.restricted);
            }
            ((_, Registration::NotWanted), DiskFacts::Ring(facts)) => {
                assert_eq!(facts.registered, Err(libc::ENOTSUP));
            }
            (_, DiskFacts::Threads { threads, refused }) => {
                assert_eq!((threads, refused), (3, None));
            }
            (_, DiskFacts::Pages) => panic!("an arena is not filled from the page cache"),
        }
    }
}
