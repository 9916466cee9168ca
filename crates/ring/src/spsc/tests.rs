//! The ring against a plain queue, between two threads, and at its edges.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::*;

#[test]
fn a_ring_behaves_as_a_bounded_queue() {
    for chunk in [1, 2, 4, 8] {
        behaves_as_a_bounded_queue(ring_of_chunks(5, chunk));
    }
}

/// A fixed pattern of pushes and pops beside a model, over many turns of the ring.
fn behaves_as_a_bounded_queue((mut producer, mut consumer): (Producer<u32>, Consumer<u32>)) {
    let capacity = producer.capacity();
    assert_eq!(capacity, 5, "not one more");
    let mut model = VecDeque::new();
    let mut step = 0x9E37_79B9_u32;
    for value in 0..10_000 {
        step = step.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match step >> 30 {
            0 | 1 => match producer.push(value) {
                Ok(()) => model.push_back(value),
                Err(back) => {
                    assert_eq!(back, value, "a refused value comes back");
                    assert_eq!(model.len(), capacity, "refused only when full");
                }
            },
            2 => assert_eq!(consumer.pop(), model.pop_front()),
            _ => {
                let mut more = value..value + 3;
                let pushed = producer.push_all(&mut more);
                assert_eq!(pushed, 3.min(capacity - model.len()));
                model.extend(value..value + pushed as u32);
                assert_eq!(more.len(), 3 - pushed, "takes no value that it cannot push");
            }
        }
        assert_eq!(producer.free(), capacity - model.len());
        assert_eq!(consumer.len(), model.len());
        assert_eq!(consumer.is_empty(), model.is_empty());
        assert!(model.len() <= capacity);
    }
}

#[test]
fn a_drain_gives_back_only_what_was_taken() {
    let (mut producer, mut consumer) = ring(4);
    assert_eq!(producer.push_all(&mut (0..9)), 4);
    assert_eq!(consumer.drain().take(3).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(producer.free(), 3);
    assert_eq!(consumer.drain().collect::<Vec<_>>(), [3]);
    assert_eq!(consumer.drain().next(), None);
}

#[test]
fn positions_may_wrap_around() {
    let (mut producer, mut consumer) = ring(2);
    let near_end = usize::MAX - 3;
    producer.shared.head.0.store(near_end, Ordering::Relaxed);
    producer.shared.tail.0.store(near_end, Ordering::Relaxed);
    (producer.tail, producer.head_seen, producer.taken_back) = (near_end, near_end, near_end);
    (consumer.head, consumer.tail_seen) = (near_end, near_end);
    for value in 0..9 {
        assert_eq!(producer.push(value), Ok(()));
        assert_eq!(producer.push(value + 100), Ok(()));
        assert_eq!(producer.push(7), Err(7));
        assert_eq!(consumer.pop(), Some(value));
        assert_eq!(consumer.pop(), Some(value + 100));
        assert_eq!(consumer.pop(), None);
    }
}

#[test]
fn a_ring_that_holds_few_values_uses_little_memory() {
    let (mut producer, mut consumer) = ring(10_000);
    let mut chunks = HashSet::new();
    let mut values = 0..;
    for few in [100, 1, 70, 3].into_iter().cycle().take(1000) {
        assert_eq!(producer.push_all(&mut values.by_ref().take(few)), few);
        for nth in 0..consumer.len() {
            chunks.insert(producer.shared.first_slot(consumer.head.wrapping_add(nth)));
        }
        assert_eq!(consumer.drain().count(), few);
    }
    // A hundred values lie in three chunks at most.
    assert!(chunks.len() <= 3, "{chunks:?}");
}

#[test]
fn values_left_in_a_ring_are_dropped_once() {
    let witness = Arc::new(());
    let (mut producer, mut consumer) = ring(4);
    for _ in 0..6 {
        // Refused values are dropped by the caller.
        drop(producer.push(Arc::clone(&witness)));
    }
    drop(consumer.pop());
    assert_eq!(Arc::strong_count(&witness), 1 + 3);
    drop(producer);
    assert_eq!(Arc::strong_count(&witness), 1 + 3, "the consumer may still take them");
    assert!(consumer.pop().is_some());
    drop(consumer);
    assert_eq!(Arc::strong_count(&witness), 1);
}

#[test]
fn a_panicking_source_loses_nothing_already_pushed() {
    let (mut producer, mut consumer) = ring(8);
    let mut source = (0..).map(|value| if value == 2 { panic!("source ends") } else { value });
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        producer.push_all(&mut source);
    }));
    assert!(unwound.is_err());
    assert_eq!(consumer.drain().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(producer.free(), 8);
}

#[test]
fn two_threads_lose_nothing_and_keep_the_order() {
    const VALUES: u64 = 300_000;
    let (mut producer, mut consumer) = ring_of_chunks(16, 4);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut values = 0..VALUES;
            while !values.is_empty() {
                if producer.push_all(&mut values) == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < VALUES {
            let before = expected;
            for value in consumer.drain() {
                assert_eq!(value, expected);
                expected += 1;
            }
            if expected == before {
                std::thread::yield_now();
            }
        }
        assert_eq!(consumer.pop(), None);
    });
}

#[test]
fn what_is_looked_at_stays_until_it_is_discarded() {
    let (mut producer, mut consumer) = ring(3);
    let witness = Arc::new(());
    let mut model = VecDeque::new();
    for value in 0..50_u32 {
        while producer.push((value, Arc::clone(&witness))).is_ok() {
            model.push_back(value);
        }
        assert_eq!(consumer.len(), 3);
        for (nth, expected) in model.iter().enumerate() {
            assert_eq!(consumer.peek(nth).map(|(value, _)| value), Some(expected));
        }
        assert!(consumer.peek(3).is_none());
        for _ in 0..=value % 3 {
            consumer.discard();
            model.pop_front();
        }
        assert_eq!(Arc::strong_count(&witness), model.len() + 1, "dropped where it was, once");
    }
}

#[test]
fn a_ring_that_is_kept_is_freed_by_its_keeper() {
    let (mut producer, consumer) = ring(2);
    let witness = Arc::new(());
    assert!(producer.push(Arc::clone(&witness)).is_ok());
    let keep = producer.keep();
    drop(producer);
    drop(consumer);
    assert_eq!(Arc::strong_count(&witness), 2);
    drop(keep);
    assert_eq!(Arc::strong_count(&witness), 1);
}
