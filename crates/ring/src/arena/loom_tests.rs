//! The hand-over of a block between threads, in every interleaving: fill, lend, read elsewhere,
//! give back, and the next generation. `watch` shows loom each access to the bytes, so loom reports
//! an access that the words and rings do not order as a race.

use loom::thread;

use super::*;
use crate::spsc::{Consumer, ring};

const BLOCK: u32 = ALIGNMENT as u32;

fn one_block() -> (ArenaOwner, View) {
    arena(Box::new(HeapRegion::new(BLOCK as usize)), BLOCK)
}

fn next<T: Send>(consumer: &mut Consumer<T>) -> T {
    loop {
        match consumer.pop() {
            Some(value) => break value,
            None => thread::yield_now(),
        }
    }
}

#[test]
fn a_block_is_filled_lent_read_elsewhere_and_given_back() {
    loom::model(|| {
        let (mut keeper, view) = one_block();
        let (mut leases, mut to_send) = ring::<Lease>(2);
        let (mut sent, mut given_back) = ring::<Lease>(2);
        let reading = view.clone();
        let link = thread::spawn(move || {
            for life in 0..2 {
                let lease = next(&mut to_send);
                assert_eq!(reading.bytes(&lease)[0], life);
                assert!(sent.push(lease).is_ok());
            }
        });
        for life in 0..2 {
            let block = keeper.take().unwrap();
            view.fill(block, 0, &[life]);
            keeper.filled(block);
            assert!(leases.push(keeper.lend(block)).is_ok());
            assert!(keeper.give_back(next(&mut given_back)));
            keeper.evict(block);
        }
        link.join().unwrap();
    });
}

#[test]
fn a_block_is_filled_by_another_thread() {
    loom::model(|| {
        let (mut keeper, view) = one_block();
        let (mut transfers, mut to_fill) = ring::<BlockRef>(1);
        let (mut done, mut completions) = ring::<BlockRef>(1);
        let filling = view.clone();
        let disk = thread::spawn(move || {
            for life in 0..2 {
                let block = next(&mut to_fill);
                filling.fill(block, 0, &[life]);
                assert!(done.push(block).is_ok());
            }
        });
        for life in 0..2 {
            let block = keeper.take().unwrap();
            assert!(transfers.push(block).is_ok());
            let completed = next(&mut completions);
            keeper.filled(completed);
            let lease = keeper.lend(completed);
            assert_eq!(view.bytes(&lease)[0], life);
            assert!(keeper.give_back(lease));
            keeper.evict(completed);
        }
        disk.join().unwrap();
    });
}

#[test]
fn a_block_given_by_hand_needs_no_ring_to_be_ordered() {
    // The word alone orders filler and reader: here the reference travels through a relaxed atomic.
    use loom::sync::atomic::{AtomicU32, Ordering};
    loom::model(|| {
        let (mut keeper, view) = one_block();
        let done = loom::sync::Arc::new(AtomicU32::new(0));
        let block = keeper.take().unwrap();
        let (filling, finished) = (view.clone(), loom::sync::Arc::clone(&done));
        let disk = thread::spawn(move || {
            filling.fill(block, 0, &[9]);
            finished.store(1, Ordering::Relaxed);
        });
        while done.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        keeper.filled(block);
        let lease = keeper.lend(block);
        assert_eq!(view.bytes(&lease)[0], 9);
        disk.join().unwrap();
    });
}

#[test]
fn writes_that_land_together_are_all_counted() {
    loom::model(|| {
        let (mut keeper, view) = one_block();
        let block = keeper.take().unwrap();
        let _first = view.target(block, 0, 512);
        let _second = view.target(block, 512, 512);
        let other = view.clone();
        let landing = thread::spawn(move || {
            // SAFETY: no kernel has received this write.
            unsafe { other.landed(block) };
        });
        // SAFETY: as above.
        unsafe { view.landed(block) };
        landing.join().unwrap();
        keeper.filled(block);
        assert_eq!(keeper.counts().ready, 1);
    });
}

#[test]
fn a_place_is_filled_read_elsewhere_and_filled_again() {
    loom::model(|| {
        let (mut keeper, view) = one_block();
        let (mut writes, mut to_write) = ring::<BlockRef>(1);
        let (mut done, mut written) = ring::<BlockRef>(1);
        let reading = view.clone();
        let disk = thread::spawn(move || {
            for _ in 0..2 {
                let block = next(&mut to_write);
                // The device reads it.
                reading.copy_out(block, 0, &mut [0]);
                assert!(done.push(block).is_ok());
            }
        });
        for life in 0..2 {
            let block = keeper.take().unwrap();
            view.filling(block).bytes()[0] = life;
            assert!(writes.push(block).is_ok());
            keeper.emptied(next(&mut written));
        }
        disk.join().unwrap();
    });
}
