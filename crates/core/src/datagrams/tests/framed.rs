//! R10: titles whose packets have arrival times in front (192 bytes) or parity behind (204 bytes)
//! leave as the same packets would leave without them.

use super::*;
use crate::ts::{NULL_PACKET, PACKET, SYNC};
use alloc::vec;

/// The packets and due times of everything that a cutter sends.
fn sent(mut cutter: Cutter, title: &[u8]) -> (Vec<u8>, Vec<(MonoTime, u64)>) {
    let len = Bytes(title.len() as u64);
    let (mut bytes, mut due) = (vec![], vec![]);
    while let Some(message) = cutter.next(Some(len)) {
        let framing = cutter.packets();
        let part = &title[message.from.0 as usize..][..message.taken.0 as usize];
        let mut staged = vec![0; message.bytes.0 as usize];
        let begin = staged.len() - framing.bare(message.taken).0 as usize;
        framing.strip([part].into_iter(), &mut staged[begin..]);
        assert!(cutter.changes(&message) || framing.is_plain());
        cutter.compose(&message, &mut staged, 0);
        bytes.extend(staged);
        due.push((cutter.leaves(&message), message.bytes.0));
        cutter.advance(&message);
    }
    assert_eq!(cutter.taken(), len, "every byte is used");
    (bytes, due)
}

fn title(stride: usize, packets: usize) -> Vec<u8> {
    let lead = ts::Framing { stride }.lead();
    let unit = |nth: usize| {
        let mut unit = vec![nth as u8; stride];
        unit[lead..lead + PACKET].fill(0xaa);
        unit[lead..lead + 5].copy_from_slice(&[SYNC, 1, 0, 0x10 | nth as u8 & 15, nth as u8]);
        unit
    };
    (0..packets).flat_map(unit).collect()
}

fn cutter(stride: usize, stuff: Option<BitRate>, front: usize, segments_max: u32) -> Cutter {
    // Packets leave at the same times in each framing.
    let clock = ByteClock::new(MonoTime(7), BitRate(stride as u64 * 8 * 1000));
    let plan = Plan { stuff, ..Plan::default() }.of_packets(ts::Framing { stride });
    let plan = Some(Arc::new(plan.with_front(&NULL_PACKET.repeat(front))));
    let gathering = Gathering::of(Nanos::from_millis(20), Nanos::from_millis(1));
    Cutter::new(Cutting {
        framing: Framing::Plain,
        clock,
        gathering,
        segments_max,
        turn: None,
        plan,
    })
}

proptest! {
    #[test]
    fn r10_packets_leave_as_if_nothing_were_between_them(
        stride in prop::sample::select(vec![192usize, 204]),
        packets in 1usize..200,
        stuff in prop::option::of(1_600_000u64..4_000_000),
        front in 0usize..5,
        segments_max in 1u32..5,
    ) {
        let stuff = stuff.map(BitRate);
        let of = |stride| sent(cutter(stride, stuff, front, segments_max), &title(stride, packets));
        let (own, plain) = (of(stride), of(PACKET));
        prop_assert_eq!(own.1, plain.1);
        prop_assert!(own.0 == plain.0, "other bytes");
    }

    #[test]
    fn r10_what_is_no_packet_behind_damage_leaves_as_null_packets(
        stride in prop::sample::select(vec![192usize, 204]), lost in 1usize..180, at in 0usize..20,
    ) {
        let mut damaged = title(stride, 30);
        damaged.drain(at * stride + 10..at * stride + 10 + lost);
        damaged.truncate(28 * stride);
        let (bytes, _) = sent(cutter(stride, None, 0, 1), &damaged);
        prop_assert_eq!(bytes.len(), 28 * PACKET);
        for packet in bytes.chunks(PACKET) {
            prop_assert_eq!(packet[0], SYNC);
        }
        let before = sent(cutter(PACKET, None, 0, 1), &title(PACKET, at)).0;
        prop_assert!(bytes[..at * PACKET] == before, "what lies before it");
        prop_assert!(bytes[bytes.len() - PACKET..] == NULL_PACKET);
    }
}
