//! Two honest sides, and one that lies.

use super::*;

fn zeroed(len: usize) -> Arc<HeapRegion> {
    Arc::new(HeapRegion::new(len))
}

const LAYOUT: RingLayout = RingLayout { pushed: 0, taken: 128, slots: 256, capacity: 4 };

fn pair() -> (Sender<2>, Receiver<2>, Words) {
    let words = Words::new(zeroed(4096));
    (Sender::new(words.clone(), LAYOUT), Receiver::new(words.clone(), LAYOUT), words)
}

#[test]
fn messages_arrive_once_and_in_order_however_often_the_ring_turns() {
    let (mut sender, mut receiver, _) = pair();
    let (mut pushed, mut taken) = (0, 0);
    for turn in 0..1_000_u64 {
        for _ in 0..turn % 7 {
            if sender.push(&[pushed, !pushed]).unwrap() {
                pushed += 1;
            } else {
                assert_eq!(pushed - taken, 4, "refused only when full");
            }
        }
        for _ in 0..turn % 5 {
            match receiver.pop().unwrap() {
                Some(message) => {
                    assert_eq!(message, [taken, !taken]);
                    taken += 1;
                }
                None => assert_eq!(pushed, taken, "none only when empty"),
            }
        }
    }
    assert!(taken > 1_000);
}

#[test]
fn a_position_that_cannot_be_is_broken_and_touches_nothing() {
    for lie in [5, 1 << 40, u64::MAX] {
        let (_, mut receiver, words) = pair();
        words.at(LAYOUT.pushed).store(lie, Ordering::Relaxed);
        assert_eq!(receiver.pop(), Err(Broken), "{lie}");
        assert_eq!(receiver.pop(), Err(Broken), "and stays so");

        let (mut sender, mut receiver, words) = pair();
        for _ in 0..4 {
            assert_eq!(sender.push(&[1, 2]), Ok(true));
        }
        assert_eq!(receiver.pop(), Ok(Some([1, 2])));
        words.at(LAYOUT.taken).store(lie, Ordering::Relaxed);
        assert_eq!(sender.push(&[3, 4]), Err(Broken), "{lie}");
    }
    // One that goes back.
    let (mut sender, mut receiver, words) = pair();
    for turn in 0..8 {
        assert_eq!(sender.push(&[turn, 0]), Ok(true));
        assert_eq!(receiver.pop(), Ok(Some([turn, 0])));
    }
    assert_eq!(sender.free(), Ok(4));
    words.at(LAYOUT.taken).store(7, Ordering::Relaxed);
    assert_eq!(sender.free(), Err(Broken));
}

#[test]
fn a_message_that_changes_after_it_was_taken_does_not_change_the_copy() {
    let (mut sender, mut receiver, words) = pair();
    assert_eq!(sender.push(&[1, 2]), Ok(true));
    let message = receiver.pop().unwrap().unwrap();
    words.at(LAYOUT.slots).store(9, Ordering::Relaxed);
    assert_eq!(message, [1, 2]);
}

#[test]
fn a_sleeper_is_rung_for_once() {
    let (.., words) = pair();
    let (mine, theirs) = (SleepMark::new(words.clone(), 8), SleepMark::new(words, 8));
    assert!(!theirs.must_ring());
    mine.set();
    assert!(theirs.must_ring());
    assert!(!theirs.must_ring());
    mine.set();
    mine.clear();
    assert!(!theirs.must_ring());
}

#[test]
fn bytes_are_copied_within_their_range_only() {
    let memory = zeroed(8192);
    let mut bytes = SharedBytes::new(memory, 4096);
    assert_eq!(bytes.len(), 4096);
    bytes.copy_in(4093, &[1, 2, 3]);
    let mut copy = [0; 3];
    bytes.copy_out(4093, &mut copy);
    assert_eq!(copy, [1, 2, 3]);
    assert_eq!(bytes.fill(4095, 1, |byte| std::mem::replace(&mut byte[0], 7)), 3);
    for (at, len, is_within) in
        [(0, 4096, true), (4096, 0, true), (4096, 1, false), (u64::MAX, 1, false), (1, 4096, false)]
    {
        assert_eq!(bytes.has(at, len), is_within, "{at} {len}");
    }
}

#[test]
#[should_panic(expected = "within the data")]
fn bytes_beyond_the_range_are_not_copied() {
    SharedBytes::new(zeroed(8192), 4096).copy_in(4094, &[1, 2, 3]);
}
