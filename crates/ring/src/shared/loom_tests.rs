//! Every interleaving of two honest sides on small rings, and of falling asleep and ringing.

use loom::thread;

use super::*;

const LAYOUT: RingLayout = RingLayout { pushed: 0, taken: 8, slots: 16, capacity: 2 };
/// The mark, behind two slots of two words.
const MARK: usize = 48;

#[test]
fn messages_arrive_whole_once_and_in_order() {
    loom::model(|| {
        let words = Words::zeroed(7);
        let mut sender = Sender::<2>::new(words.clone(), LAYOUT);
        let mut receiver = Receiver::<2>::new(words, LAYOUT);
        let pushing = thread::spawn(move || {
            (0..3_u64).filter(|&value| sender.push(&[value, !value]).unwrap()).collect::<Vec<_>>()
        });
        let mut taken: Vec<_> = (0..2).filter_map(|_| receiver.pop().unwrap()).collect();
        let pushed = pushing.join().unwrap();
        taken.extend(std::iter::from_fn(|| receiver.pop().unwrap()));
        assert_eq!(taken, pushed.iter().map(|&value| [value, !value]).collect::<Vec<_>>());
    });
}

#[test]
fn nobody_sleeps_with_a_message_in_the_ring_and_no_ring_on_its_way() {
    loom::model(|| {
        let words = Words::zeroed(7);
        let mut sender = Sender::<2>::new(words.clone(), LAYOUT);
        let mut receiver = Receiver::<2>::new(words.clone(), LAYOUT);
        let theirs = SleepMark::new(words.clone(), MARK);
        let pushing = thread::spawn(move || {
            assert_eq!(sender.push(&[1, 2]), Ok(true));
            theirs.must_ring()
        });
        let mine = SleepMark::new(words, MARK);
        mine.set();
        let seen = receiver.pop().unwrap().is_some();
        let rung = pushing.join().unwrap();
        assert!(seen || rung, "it would sleep for ever");
    });
}
