//! Every interleaving of two honest sides on small rings, and of falling asleep and ringing.

use loom::cell::UnsafeCell;
use loom::thread;

use super::byte_ring::Positions;
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

/// A ring of two bytes, behind its two positions.
const BYTES: ByteRingLayout = ByteRingLayout { written: 0, taken: 8, bytes: 16, capacity: 2 };

/// Bytes that both sides touch: the model fails if they do so at the same time.
fn cells() -> Arc<[UnsafeCell<u8>; 2]> {
    Arc::new(std::array::from_fn(|_| UnsafeCell::new(0)))
}

/// Writes `byte` if there is room. Whether there was.
fn write(positions: &Positions, cells: &[UnsafeCell<u8>; 2], byte: u8) -> bool {
    let Some(room) = positions.room().unwrap() else { return false };
    if room.len == 0 {
        return false;
    }
    let (at, _) = positions.place(room.first, 1);
    // SAFETY: the model reports whoever else touches it.
    cells[at as usize].with_mut(|cell| unsafe { *cell = byte });
    room.publish(1);
    true
}

#[test]
fn a_byte_is_read_and_written_over_by_one_side_at_a_time() {
    loom::model(|| {
        let (words, cells) = (Words::zeroed(2), cells());
        let mut reader = ByteReader::new(words.clone(), BYTES);
        let positions = Positions::new(words, BYTES);
        let theirs = Arc::clone(&cells);
        let writing =
            thread::spawn(move || (1..=3).take_while(|&b| write(&positions, &theirs, b)).count());
        let mut read = vec![];
        let take = |reader: &mut ByteReader, read: &mut Vec<u8>| {
            reader.look().unwrap();
            while reader.seen() > 0 {
                let (at, _) = reader.next();
                // SAFETY: as in `write`.
                read.push(cells[at].with(|cell| unsafe { *cell }));
                reader.consume(1);
            }
        };
        take(&mut reader, &mut read);
        take(&mut reader, &mut read);
        let written = writing.join().unwrap();
        take(&mut reader, &mut read);
        assert_eq!(read, (1..=written as u8).collect::<Vec<_>>());
    });
}

#[test]
fn a_second_writer_finds_no_room_while_the_first_one_is_there() {
    loom::model(|| {
        let (words, cells) = (Words::zeroed(2), cells());
        let mut reader = ByteReader::new(words.clone(), BYTES);
        let positions = Arc::new(Positions::new(words, BYTES));
        let (other, theirs) = (Arc::clone(&positions), Arc::clone(&cells));
        let writing = thread::spawn(move || u64::from(write(&other, &theirs, 1)));
        let own = u64::from(write(&positions, &cells, 2));
        let all = own + writing.join().unwrap();
        assert_eq!(reader.look(), Ok(all));
        assert!(reader.seen() > 0, "one of them has room");
    });
}

#[test]
fn all_bytes_are_there_when_the_end_is_seen() {
    /// Behind the positions.
    const END: usize = 16;
    loom::model(|| {
        let (words, cells) = (Words::zeroed(3), cells());
        let mut reader = ByteReader::new(words.clone(), BYTES);
        let (end, seen) =
            (SharedWord::new(words.clone(), END), SharedWord::new(words.clone(), END));
        let positions = Positions::new(words, BYTES);
        let writing = thread::spawn(move || {
            assert!(write(&positions, &cells, 1) && write(&positions, &cells, 2));
            end.store(1);
        });
        if seen.load() == 1 {
            assert_eq!(reader.look(), Ok(2));
        }
        writing.join().unwrap();
    });
}
