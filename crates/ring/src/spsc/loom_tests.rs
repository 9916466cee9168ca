//! Every interleaving of two threads on small rings; loom also reports unordered accesses and
//! leaks.

use loom::sync::Arc;
use loom::thread;

use super::*;

/// One thread pushes `pushes` times while the other pops `pops` times; the rest is popped at the
/// end. Neither waits, so loom can try every interleaving.
fn hand_over(capacity: usize, chunk: usize, pushes: u32, pops: u32) {
    loom::model(move || {
        let (mut producer, mut consumer) = ring_of_chunks(capacity, chunk);
        let pushing = thread::spawn(move || {
            (0..pushes).filter(|value| producer.push(*value).is_ok()).collect::<Vec<_>>()
        });
        let mut popped: Vec<_> = (0..pops).filter_map(|_| consumer.pop()).collect();
        let pushed = pushing.join().unwrap();
        assert!(pushed.len() >= capacity.min(pushes as usize), "refused only when full");
        popped.extend(std::iter::from_fn(|| consumer.pop()));
        assert_eq!(popped, pushed, "in order, none lost, none twice");
    });
}

#[test]
fn nothing_is_lost_or_doubled_with_one_slot() {
    hand_over(1, CHUNK, 3, 3);
}

#[test]
fn nothing_is_lost_or_doubled_with_two_slots() {
    hand_over(2, CHUNK, 4, 4);
}

#[test]
fn nothing_is_lost_or_doubled_with_four_slots() {
    hand_over(4, CHUNK, 5, 3);
}

#[test]
fn a_chunk_is_used_again_only_when_all_its_values_are_gone() {
    hand_over(2, 1, 5, 4);
    hand_over(4, 2, 6, 3);
}

#[test]
fn batches_arrive_whole_and_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let pushing = thread::spawn(move || {
            let mut values = 0..4;
            producer.push_all(&mut values) + producer.push_all(&mut values)
        });
        let mut popped: Vec<_> = consumer.drain().collect();
        popped.extend(consumer.drain().take(1));
        let pushed = pushing.join().unwrap();
        assert!(pushed >= 2);
        popped.extend(consumer.drain());
        assert_eq!(popped, (0..pushed).collect::<Vec<_>>());
    });
}

#[test]
fn room_is_never_promised_twice() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let pushing = thread::spawn(move || {
            for value in 0..3 {
                let free = producer.free();
                assert!(free <= 2);
                let pushed = producer.push(value).is_ok();
                assert!(pushed || free == 0, "what was free stays free");
            }
        });
        let first = consumer.pop();
        assert!(first.is_none_or(|value| value == 0));
        assert!(consumer.len() <= 2);
        pushing.join().unwrap();
    });
}

#[test]
fn values_left_behind_are_dropped_once_whoever_ends_last() {
    loom::model(|| {
        let witness = Arc::new(());
        let (mut producer, mut consumer) = ring(2);
        let value = Arc::clone(&witness);
        let pushing = thread::spawn(move || {
            drop(producer.push(Arc::clone(&value)));
            drop(producer.push(value));
        });
        drop(consumer.pop());
        drop(consumer);
        pushing.join().unwrap();
        assert_eq!(Arc::strong_count(&witness), 1);
    });
}

#[test]
fn what_is_looked_at_is_not_written_before_it_is_discarded() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring_of_chunks(2, 1);
        let pushing = thread::spawn(move || {
            let mut next = 0;
            for _ in 0..4 {
                next += usize::from(producer.push(next).is_ok());
            }
            next
        });
        let mut seen = 0;
        for _ in 0..2 {
            for nth in 0..consumer.len() {
                assert_eq!(consumer.peek(nth), Some(&(seen + nth)));
            }
            if consumer.peek(0).is_some() {
                consumer.discard();
                seen += 1;
            }
        }
        assert!(pushing.join().unwrap() >= seen);
    });
}
