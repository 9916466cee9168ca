//! No call is lost: a sleeper without a deadline is woken, in every interleaving. A lost wake-up
//! shows as a deadlock, which loom reports.

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;

/// The behaviour of an eventfd: counts, and wakes the thread that waits for a count.
struct Event {
    count: Mutex<u32>,
    changed: Condvar,
}

/// Each waker leaves one item of work, by a relaxed store that only the token orders, and calls
/// `wake`.
fn call_from(wakers: usize, preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let token = Arc::new(Token::new());
        let event = Arc::new(Event { count: Mutex::new(0), changed: Condvar::new() });
        let left: Vec<_> = (0..wakers).map(|_| Arc::new(AtomicU32::new(0))).collect();
        let calling = left.iter().map(|mine| {
            let (mine, token, event) = (Arc::clone(mine), Arc::clone(&token), Arc::clone(&event));
            thread::spawn(move || {
                mine.store(1, Ordering::Relaxed);
                if token.wake() {
                    *event.count.lock().unwrap() += 1;
                    event.changed.notify_one();
                }
            })
        });
        let calling: Vec<_> = calling.collect();
        while left.iter().any(|it| it.load(Ordering::Relaxed) == 0) {
            if token.park() {
                let mut count = event.count.lock().unwrap();
                while *count == 0 {
                    count = event.changed.wait(count).unwrap();
                }
                *count = 0;
                drop(count);
                assert!(token.unpark(), "an event without a call");
            }
        }
        calling.into_iter().for_each(|waker| waker.join().unwrap());
    });
}

#[test]
fn no_call_of_one_waker_is_lost() {
    call_from(1, None);
}

#[test]
fn no_call_of_two_wakers_is_lost() {
    // Bounded: without a bound the three threads take minutes. Lost calls need one preemption,
    // between a waker's store and its wake-up or between the sleeper's check and its park.
    call_from(2, Some(3));
}
