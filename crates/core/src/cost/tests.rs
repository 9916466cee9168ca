//! Costs of sources and outputs.

use super::*;
use crate::units::{KIB, MIB};

const ENDLESS: TitlePart = TitlePart::whole(Bytes(1 << 40));

const FLASH: DiskLimits = DiskLimits { block: Bytes(256 * KIB), ..ARM };

const ARM: DiskLimits = DiskLimits {
    model: DiskModel::SLOWEST,
    cycle: SECOND,
    share_thousandths: 950,
    block: Bytes(MIB),
    blocks: 500,
    ahead: 0,
    windows: WindowLimits::NONE,
    server: 0,
    read_per_mib: Nanos::from_micros(100),
    deliver_block: Nanos(0),
    per_write: Nanos::from_micros(6),
    write_path: None,
};

const SEND: SendCost = SendCost {
    per_send: Nanos::from_micros(6),
    per_packet: Nanos(0),
    per_mib: Nanos::from_micros(300),
};

const fn disk(limits: &DiskLimits) -> Disk<'_> {
    Disk { number: 0, limits }
}

fn reading(rate: u64) -> PacedRead {
    let (rate, tick, burst) = (BitRate(rate), Tick::Ms62, Bytes(0));
    PacedRead { rate, tick, burst, order: Order::Once, is_pinned: false }
}

#[test]
fn a_stream_costs_what_its_source_and_its_output_cost() {
    let rate = BitRate(8_000_000);
    let reading = PacedRead { tick: Tick::Ms10, ..reading(rate.0) };
    let source = disk(&ARM).paced(&reading, ENDLESS);
    // 100 us for each MiB read.
    assert_eq!(source.cost.cpu, Nanos(95_367));
    let connection = OutputCost::connection(SEND, rate, reading.tick);
    // 300 us for each MiB sent, and 100 sends.
    assert_eq!((connection.wire, connection.cpu), (rate, Nanos(286_102 + 600_000)));
    let reader = OutputCost::reader(SEND, rate, reading.tick);
    assert_eq!(reader, OutputCost { wire: BitRate(0), ..connection });
    // Datagrams count on the wire and one by one.
    let (wire, sending) = (BitRate(8_400_000), Nanos::from_millis(3));
    let datagrams = OutputCost::datagrams(wire, sending, None);
    assert_eq!((datagrams.wire, datagrams.cpu), (wire, sending));
    assert_eq!(
        Cost::stream(source.cost, datagrams).cpu().collect::<alloc::vec::Vec<_>>(),
        [(0, source.cost.cpu), (0, sending)]
    );
}

#[test]
fn a_delivery_server_is_paid_for_each_block_whether_it_is_read_or_in_memory() {
    let limits = DiskLimits { deliver_block: Nanos(2_500), block: Bytes(256 * KIB), ..ARM };
    for is_pinned in [false, true] {
        // 3.8 blocks a second, counted as four.
        let paced = PacedRead { is_pinned, ..reading(8_000_000) };
        let source = disk(&limits).paced(&paced, ENDLESS);
        let cost = Cost::stream(source.cost, OutputCost::NONE).read_ahead_by(3);
        let cpu: alloc::vec::Vec<_> = cost.cpu().collect();
        assert_eq!(cpu[1], (3, Nanos(10_000)));
        assert_eq!(cost.lasting().cpu().next(), None);
        assert_eq!(cost.times(7).cpu().nth(1), Some((3, Nanos(70_000))));
    }
}

#[test]
fn as_many_streams_cost_as_many_times_as_much() {
    let source = disk(&ARM).paced(&reading(8_000_000), ENDLESS);
    let output = OutputCost::connection(SEND, BitRate(8_000_000), Tick::Ms62);
    let cost = Cost::stream(source.cost, output);
    let three = cost.times(3);
    assert_eq!(three.source.visits.0, 3 * cost.source.visits.0);
    assert_eq!(three.source.per_cycle.read.0, 3 * cost.source.per_cycle.read.0);
    assert_eq!((three.source.blocks, three.rows), (3 * cost.source.blocks, 3));
    assert_eq!(
        (three.output.wire.0, three.cpu().next()),
        (24_000_000, cost.cpu().next().map(|(core, time)| (core, time.times(3))))
    );
    assert_eq!(cost.times(1), cost);
}

#[test]
fn a_held_title_is_read_without_the_disk_as_far_as_its_leases_go() {
    let of = |reading: PacedRead| disk(&ARM).paced(&reading, ENDLESS);
    let pinned = of(PacedRead { is_pinned: true, ..reading(4_000_000) });
    assert_eq!(
        (pinned.cost.per_cycle, pinned.cost.visits),
        (TransferredBytes::NOTHING, MilliVisits(0))
    );
    assert_eq!(pinned.cost.blocks, 0);
    assert!(pinned.window > 0);
    // Too fast for shared blocks: as if it were not pinned.
    let fast = of(PacedRead { is_pinned: true, ..reading(400_000_000) });
    assert_eq!(fast, of(reading(400_000_000)));
    assert!(fast.window > RESIDENT_WINDOW);
    // The limit of leases bounds a burst.
    let burst = of(PacedRead { is_pinned: true, burst: Bytes(50 * MIB), ..reading(4_000_000) });
    assert_eq!((burst.window, burst.cost.blocks), (RESIDENT_WINDOW, 0));
}

#[test]
fn a_title_that_repeats_needs_a_block_more_wherever_its_turns_meet() {
    let (block, cycle) = (ARM.block, ARM.cycle);
    let rate = BitRate(8_000_000);
    let window = |order| {
        let reading = PacedRead { tick: Tick::Ms10, order, ..reading(rate.0) };
        disk(&ARM).paced(&reading, TitlePart::whole(Bytes(u64::MAX))).window
    };
    let held = rate.bytes_in(cycle.times(2) + Tick::Ms10.span());
    // However the bytes of two cycles lie over turns of this length, they touch no more blocks.
    for turn in [1, 188, 5000, block.0 - 1, block.0, block.0 + 1, 3 * block.0, 1 << 40] {
        let turn = Bytes(turn);
        let last = turn.0.div_ceil(block.0) - 1;
        let touched = |from: u64| {
            let (begin, end) = (from, from + held.0 - 1);
            let number = |at: u64| at / turn.0 * (last + 1) + at % turn.0 / block.0;
            number(end) - number(begin) + 1
        };
        let begins = [0, 1, turn.0 / 2, turn.0 - 1, block.0.min(turn.0) - 1, turn.0 / 3];
        let most = begins.into_iter().map(touched).max().unwrap_or(0);
        assert!(u64::from(window(Order::Repeating(turn))) >= most, "{turn:?}: {most}");
    }
    assert!(window(Order::Once) < window(Order::Repeating(block)));
    assert_eq!(window(Order::Repeating(Bytes(1 << 40))), window(Order::Once) + 2);
}

#[test]
fn each_block_of_an_block_list_is_a_visit_of_its_own() {
    let of = |order, is_pinned| {
        disk(&ARM).paced(&PacedRead { order, is_pinned, ..reading(64 * MIB) }, ENDLESS)
    };
    let (range, scattered) = (of(Order::Once, false), of(Order::Scattered, false));
    assert_eq!(range.cost.visits, MilliVisits(1000));
    assert_eq!(scattered.cost.visits, MilliVisits(8001));
    let visits = range.cost.visits;
    assert_eq!(Source { cost: SourceCost { visits, ..scattered.cost }, ..scattered }, range);
    // A scattered reader of a pinned title counts as if it were not pinned.
    assert_eq!(of(Order::Scattered, true), scattered);
    let slow = PacedRead { order: Order::Scattered, is_pinned: true, ..reading(1_000_000) };
    let slow = disk(&ARM).paced(&slow, ENDLESS).cost;
    assert_eq!((slow.visits, slow.per_cycle), (MilliVisits(0), TransferredBytes::NOTHING));
}

#[test]
fn a_start_burst_is_memory_of_the_stream_as_far_as_its_title_goes() {
    let of = |burst, title_len| {
        let reading = PacedRead { burst: Bytes(burst), ..reading(8_000_000) };
        disk(&ARM).paced(&reading, TitlePart::whole(Bytes(title_len)))
    };
    let (without, with) = (of(0, 1 << 40), of(7 * MIB, 1 << 40));
    assert_eq!(with.window, without.window + 7);
    let cost = SourceCost { blocks: without.cost.blocks + 7, ..without.cost };
    assert_eq!(with.cost, cost);
    assert_eq!(of(7 * MIB, 9 * MIB).window, 9);
    assert_eq!(of(u64::MAX, 9 * MIB).window, 9);
}

#[test]
fn what_waits_to_leave_with_others_has_its_memory_meanwhile() {
    let of = |tick| disk(&ARM).paced(&PacedRead { tick, ..reading(80_000_000) }, ENDLESS);
    let (soon, late) = (of(Tick::Ms10), of(Tick::Ms250));
    assert!(late.window > soon.window);
    assert_eq!(late.cost.blocks, late.window);
}

#[test]
fn what_the_kernel_reads_ahead_is_memory_but_no_room_for_the_stream() {
    let ahead = DiskLimits { ahead: 4, ..FLASH };
    let part = TitlePart::whole(Bytes(40 * MIB));
    for read in [
        |disk: Disk<'_>, part| disk.paced(&reading(8_800_000), part),
        |disk: Disk<'_>, part| disk.best_effort(part),
    ] {
        let (with, without) = (read(disk(&ahead), part), read(disk(&FLASH), part));
        assert_eq!(with.window, without.window);
        assert_eq!(with.cost.blocks, without.cost.blocks + 4);
    }
}

#[test]
fn large_windows_have_memory_of_their_own() {
    let windows = DiskLimits { windows: WindowLimits { each: 16, all: 64 }, ..FLASH };
    for (title, expected) in [(40 * MIB, 16), (3 * MIB, 12)] {
        let part = TitlePart::whole(Bytes(title));
        let with = disk(&windows).paced(&reading(8_800_000), part);
        let without = disk(&FLASH).paced(&reading(8_800_000), part);
        let cost = SourceCost { windows: expected, ..without.cost };
        assert_eq!(with, Source { cost, ..without });
        assert_eq!(disk(&windows).best_effort(part), disk(&FLASH).best_effort(part));
    }
    let part = TitlePart::whole(Bytes(40 * MIB));
    for without in [
        PacedRead { is_pinned: true, ..reading(64_000) },
        PacedRead { order: Order::Scattered, ..reading(64_000) },
        PacedRead { order: Order::Repeating(part.len), ..reading(64_000) },
    ] {
        assert_eq!(disk(&windows).paced(&without, part).cost.windows, 0);
    }
}

#[test]
fn no_more_is_read_ahead_of_a_stream_than_its_title_has() {
    let ahead = DiskLimits { ahead: 4, ..FLASH };
    let title_len = Bytes(MIB + 1);
    let whole = TitlePart::whole(title_len);
    let disk = disk(&ahead);
    let sources =
        [disk.paced(&reading(8_800_000), whole), disk.best_effort(whole), disk.pinned(title_len)];
    assert!(sources.iter().all(|source| source.cost.blocks == 5), "{sources:?}");
    // After a few bytes the kernel reads ahead, up to the end of the title.
    let few = disk.best_effort(TitlePart { len: Bytes(10), title_len });
    assert_eq!((few.window, few.cost.blocks), (2, 5));
}

#[test]
fn short_titles_reserve_no_more_memory_than_they_have() {
    let of_ten = |title_len| {
        disk(&ARM).paced(&reading(8_800_000), TitlePart { len: Bytes(10), title_len }).window
    };
    assert_eq!((of_ten(Bytes(10)), of_ten(Bytes(1 << 40))), (1, 2));
    assert_eq!(disk(&ARM).best_effort(ENDLESS).window, 3);
}

#[test]
fn a_recording_fills_places_for_three_cycles() {
    let write_path = WriteLimits { places: 40, place: Bytes(MIB), floor_thousandths: 50 };
    let limits = DiskLimits { write_path: Some(write_path), ..ARM };
    let source = disk(&limits).recorded(BitRate(8_000_000));
    // Three cycles of 1,000,000 bytes and 50,000 more, and three places.
    assert_eq!((source.window, source.cost.places), (6, 6));
    assert_eq!(source.cost.per_cycle.read, Bytes(0));
    // One place per second is passed on.
    assert_eq!(source.cost.cpu, Nanos::from_micros(6));
}

#[test]
fn reads_at_moments_are_promised_for_the_most_that_can_come_at_once() {
    let millis = Nanos::from_millis;
    let reads = TimedReads { interval: millis(500), tolerance: millis(1), len: Bytes(4096) };
    let turns = Nanos::from_micros(7);
    let timed = |reads, title_len| disk(&ARM).timed(reads, title_len, turns);
    let source = timed(&reads, ENDLESS.title_len);
    // In a cycle of a second three moments, each of a read that may lie in two blocks.
    assert_eq!(source.cost.visits, MilliVisits(6000));
    assert_eq!(source.cost.per_cycle.read, Bytes(6 * MIB));
    // A block is wanted two cycles and 5 ms ahead, the first of two twice as early.
    assert_eq!((source.window, source.cost.blocks), (9, 9));
    // Four blocks a second, 100 us each, and 7 us for the turns.
    assert_eq!(source.cost.cpu, Nanos::from_micros(428));
    let reserve = disk(&ARM).reserve(&reads);
    assert_eq!((reserve.ahead, reserve.block), (millis(2005), Bytes(MIB)));

    let (short, tolerant) = (Bytes(4096), TimedReads { tolerance: millis(1000), ..reads });
    assert_eq!(timed(&reads, short).cost.visits, MilliVisits(3000), "one block");
    assert_eq!(timed(&tolerant, short).cost.visits, MilliVisits(5000));

    let in_memory = disk(&ARM).timed_in_memory(&reads);
    assert_eq!(in_memory.cost, disk(&ARM).nothing().cost);
    // Two a second: a visit each, and the copy.
    let sending = OutputCost::timed(SEND, &reads);
    assert_eq!((sending.wire, sending.cpu), (BitRate(0), Nanos(2343 + 12_000)));
}
