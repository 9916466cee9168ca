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

const BYTES: ByteRingLayout = ByteRingLayout { written: 0, taken: 128, bytes: 256, capacity: 1000 };

fn byte_pair() -> (ByteWriter, ByteReader, SharedBytes, Words) {
    let memory = zeroed(4096);
    let words = Words::new(Arc::clone(&memory) as Arc<dyn SharedMemory>);
    let bytes = SharedBytes::new(Arc::clone(&memory) as Arc<dyn SharedMemory>, BYTES.bytes);
    (ByteWriter::new(memory, BYTES), ByteReader::new(words.clone(), BYTES), bytes, words)
}

#[test]
fn bytes_arrive_in_order_and_only_where_there_is_room() {
    let (writer, mut reader, bytes, _) = byte_pair();
    let byte = |at: usize| (at * 7 + at / 256) as u8;
    let (mut sent, mut read) = (0, 0);
    let mut random = 12345_u64;
    while read < 100_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let count = (random >> 33) as usize % 700;
        let source: Vec<u8> = (sent..sent + count).map(byte).collect();
        let taken = if random >> 63 == 0 {
            writer.write(&[&source[..count / 3], &[], &source[count / 3..]]).unwrap()
        } else {
            let filled = writer.fill(count, |at, into| {
                into.copy_from_slice(&source[at..at + into.len()]);
                Ok::<_, ()>(())
            });
            filled.unwrap().unwrap()
        };
        assert_eq!(taken, count.min(1000 - (sent - read)), "as much as there is room for");
        sent += taken;
        assert_eq!(writer.written(), sent as u64);
        assert_eq!(reader.look(), Ok((sent - read) as u64));
        let (at, len) = reader.next();
        assert!(len > 0 || sent == read);
        let mut copy = vec![0; len.min(400)];
        bytes.copy_out(at as u64, &mut copy);
        assert!(copy.iter().enumerate().all(|(nth, &got)| got == byte(read + nth)));
        reader.consume(copy.len() as u64);
        read += copy.len();
    }
}

#[test]
fn bytes_that_are_built_in_place_arrive_when_they_are_handed_over() {
    let (mut writer, mut reader, bytes, _) = byte_pair();
    let byte = |at: usize| (at * 7 + at / 256) as u8;
    let (mut sent, mut read) = (0, 0);
    while read < 20_000 {
        let space = writer.space().unwrap();
        let len = space.len().min(333);
        space.iter_mut().zip(sent..).for_each(|(place, at)| *place = byte(at));
        assert_eq!(reader.look(), Ok((sent - read) as u64), "it is not handed over");
        writer.advance(len);
        sent += len;
        assert_eq!(writer.seen_room(), 1000 - (sent - writer.taken() as usize));
        reader.look().unwrap();
        let (at, len) = reader.next();
        let mut copy = vec![0; len.min(250)];
        bytes.copy_out(at as u64, &mut copy);
        assert!(copy.iter().enumerate().all(|(nth, &got)| got == byte(read + nth)));
        reader.consume(copy.len() as u64);
        read += copy.len();
    }
    let more = writer.seen_room() + 1;
    let advance = std::panic::AssertUnwindSafe(|| writer.advance(more));
    assert!(std::panic::catch_unwind(advance).is_err(), "only bytes that there is room for");
}

#[test]
fn a_failed_fill_publishes_nothing() {
    let (writer, mut reader, _, _) = byte_pair();
    assert_eq!(writer.write(&[&[1; 900]]), Ok(900));
    assert_eq!(reader.look(), Ok(900));
    reader.consume(900);
    let mut pieces = 0;
    let failed = writer.fill(500, |_, _| {
        pieces += 1;
        if pieces == 2 { Err(5) } else { Ok(()) }
    });
    assert_eq!((failed, pieces), (Ok(Err(5)), 2));
    assert_eq!((reader.look(), writer.written()), (Ok(0), 900));
    assert_eq!(writer.write(&[&[2; 2000]]), Ok(1000), "the room is free again");
}

#[test]
fn positions_that_cannot_be_are_broken() {
    let (writer, mut reader, _, words) = byte_pair();
    let taken = SharedWord::new(words.clone(), BYTES.taken);
    assert_eq!(writer.write(&[&[0; 10]]), Ok(10));
    taken.store(5);
    assert_eq!(writer.write(&[&[0; 10]]), Ok(10));
    for lie in [4, 21, u64::MAX] {
        taken.store(lie);
        assert_eq!(writer.write(&[&[0; 10]]), Err(Broken), "{lie}");
    }
    taken.store(20);
    assert_eq!(writer.write(&[&[0; 2000]]), Ok(1000), "an honest position is taken again");
    let written = SharedWord::new(words, BYTES.written);
    written.store(1001);
    assert_eq!(reader.look(), Err(Broken), "more than the ring has");
    written.store(30);
    assert_eq!(reader.look(), Ok(30));
    written.store(29);
    assert_eq!(reader.look(), Err(Broken), "it goes back");
}
