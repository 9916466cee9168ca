//! Every interleaving of two threads on small rings; loom also reports unordered accesses and leaks.

use loom::sync::Arc;
use loom::thread;

use super::*;

/// One thread pushes `values`, the other pops them, on a ring of `capacity`.
fn hand_over(capacity: usize, values: u32) {
    loom::model(move || {
        let (mut producer, mut consumer) = ring(capacity);
        let pushing = thread::spawn(move || {
            for value in 0..values {
                while producer.push(value).is_err() {
                    thread::yield_now();
                }
            }
        });
        for expected in 0..values {
            let value = loop {
                match consumer.pop() {
                    Some(value) => break value,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(value, expected, "in order, none lost, none twice");
        }
        pushing.join().unwrap();
        assert_eq!(consumer.pop(), None);
    });
}

#[test]
fn nothing_is_lost_or_doubled_with_one_slot() {
    hand_over(1, 2);
}

#[test]
fn nothing_is_lost_or_doubled_with_two_slots() {
    hand_over(2, 3);
}

#[test]
fn nothing_is_lost_or_doubled_with_four_slots() {
    hand_over(4, 5);
}

#[test]
fn batches_arrive_whole_and_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let pushing = thread::spawn(move || {
            let mut values = 0..3;
            while !values.is_empty() {
                if producer.push_all(&mut values) == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < 3 {
            let before = expected;
            for value in consumer.drain() {
                assert_eq!(value, expected);
                expected += 1;
            }
            if expected == before {
                thread::yield_now();
            }
        }
        pushing.join().unwrap();
        assert!(consumer.is_empty());
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
