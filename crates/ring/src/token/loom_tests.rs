//! No call is lost: a sleeper that sleeps without an end is woken, whatever the interleaving. A lost
//! wake-up shows as a deadlock, which loom reports.

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;
use crate::spsc::ring;

/// What an eventfd does: counts, and wakes who waits for a count.
struct Event {
    count: Mutex<u32>,
    changed: Condvar,
}

fn call_from(ringers: u32, each: u32) {
    loom::model(move || {
        let token = Arc::new(Token::new());
        let event = Arc::new(Event { count: Mutex::new(0), changed: Condvar::new() });
        let mut inboxes = Vec::new();
        let mut calling = Vec::new();
        for _ in 0..ringers {
            let (mut outbox, inbox) = ring(2);
            inboxes.push(inbox);
            let (token, event) = (Arc::clone(&token), Arc::clone(&event));
            calling.push(thread::spawn(move || {
                for value in 0..each {
                    assert!(outbox.push(value).is_ok());
                    if token.ring() {
                        *event.count.lock().unwrap() += 1;
                        event.changed.notify_one();
                    }
                }
            }));
        }
        let mut taken = 0;
        while taken < ringers * each {
            for inbox in &mut inboxes {
                taken += inbox.drain().count() as u32;
            }
            if taken < ringers * each && token.park() {
                let mut count = event.count.lock().unwrap();
                while *count == 0 {
                    count = event.changed.wait(count).unwrap();
                }
                *count = 0;
                drop(count);
                assert!(token.unpark(), "an event without a call");
            }
        }
        calling.into_iter().for_each(|ringer| ringer.join().unwrap());
    });
}

#[test]
fn no_call_of_one_ringer_is_lost() {
    call_from(1, 2);
}

#[test]
fn no_call_of_two_ringers_is_lost() {
    call_from(2, 1);
}
