//! Sums of what is promised, what is refused, and that all comes back.

use super::*;
use crate::units::{KIB, MIB};
use proptest::prelude::*;

fn terms() -> Terms {
    let disk = DiskTerms {
        model: DiskModel::SLOWEST,
        cycle: SECOND,
        share_thousandths: 950,
        block: Bytes(MIB),
        blocks: 500,
        ahead: 0,
        cost: SendCost {
            per_send: Nanos::from_micros(6),
            per_mib: Nanos::from_micros(400),
            read_per_mib: Nanos::from_micros(100),
        },
        intake: None,
    };
    let cpu = Nanos::from_millis(700);
    let disks = alloc::vec![disk, DiskTerms { block: Bytes(256 * KIB), ..disk }];
    let (link, classes) = (BitRate(1_000_000_000), alloc::vec![]);
    Terms { disks, link, datagrams: None, classes, cpu, streams: 100 }
}

const INTAKE: IntakeTerms = IntakeTerms { places: 40, place: Bytes(MIB), floor_thousandths: 50 };

/// The first disk takes uploads.
fn terms_with_uploads() -> Terms {
    let mut terms = terms();
    terms.disks[0].intake = Some(INTAKE);
    terms
}

fn level(ledger: &Ledger, resource: Resource) -> Level {
    ledger.levels().find(|level| level.resource == resource).expect("it is listed")
}

#[test]
fn a_flush_and_the_floor_of_uploads_are_kept_out_of_what_streams_may_fill() {
    let of = |terms| level(&Ledger::new(terms), Resource::Disk).limit;
    let kept = DiskModel::SLOWEST.flush.0 + SECOND.0 / 20;
    assert_eq!(of(terms_with_uploads()), of(terms()) - kept);
    assert_eq!(of(terms()), SECOND.0 / 1000 * 950);
    // A flush that is longer than half a cycle cannot be planned in one.
    let mut short = terms_with_uploads();
    short.disks[0].cycle = Nanos::from_millis(20);
    assert_eq!(of(short), 20_000_000 / 1000 * 900 - 10_000_000);
}

#[test]
fn datagrams_are_counted_on_the_wire_and_one_by_one() {
    let mut ledger = Ledger::new(terms());
    let sending = Nanos::from_millis(3);
    let (rate, wire) = (BitRate(8_000_000), BitRate(8_400_000));
    let wish = |is_held| Wish::Datagrams {
        rate,
        wire,
        sending,
        tick: Tick::Ms10,
        is_held,
        turn: None,
        class: None,
    };
    let demand = ledger.demand(0, wish(false), ENDLESS);
    let paced = Wish::Paced { rate, tick: Tick::Ms10, burst: Bytes(0) };
    let connected = ledger.demand(0, paced, ENDLESS);
    assert_eq!((demand.link, demand.window), (wire, connected.window));
    // 100 us for each MiB that is read, and not 100 sends.
    assert_eq!(demand.cpu, Nanos(95_367) + sending);
    assert_eq!(Demand { link: rate, is_datagrams: false, cpu: connected.cpu, ..demand }, connected);
    // What waits for others to leave with has its place meanwhile.
    let tick = Tick::Ms250;
    let patient =
        Wish::Datagrams { rate, wire, sending, tick, is_held: false, turn: None, class: None };
    let paced = Wish::Paced { rate, tick, burst: Bytes(0) };
    let (patient, connected) =
        (ledger.demand(0, patient, ENDLESS), ledger.demand(0, paced, ENDLESS));
    assert_eq!((patient.window, patient.blocks), (connected.window, connected.blocks));
    let held = ledger.demand(0, wish(true), ENDLESS);
    assert_eq!((held.per_cycle, held.blocks, held.link), (Moved::NOTHING, 0, wire));
    for demand in [demand, held] {
        ledger.admit(demand).expect("an empty house has room");
    }
    assert_eq!(level(&ledger, Resource::Link).used, 2 * wire.0);
    for demand in [demand, held] {
        ledger.release(demand);
    }
    assert!(ledger.levels().all(|level| level.used == 0));
}

#[test]
fn a_title_that_repeats_needs_a_block_more_wherever_its_turns_meet() {
    let ledger = Ledger::new(terms());
    let Terms { disks, .. } = ledger.terms();
    let (block, cycle) = (disks[0].block, disks[0].cycle);
    let (rate, wire, sending) = (BitRate(8_000_000), BitRate(8_400_000), Nanos(1));
    let window = |turn| {
        let (tick, is_held, class) = (Tick::Ms10, false, None);
        let wish = Wish::Datagrams { rate, wire, sending, tick, is_held, turn, class };
        ledger.demand(0, wish, Share::whole(Bytes(u64::MAX))).window()
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
        assert!(u64::from(window(Some(turn))) >= most, "{turn:?}: {most}");
    }
    assert!(window(None) < window(Some(block)));
    assert_eq!(window(Some(Bytes(1 << 40))), window(None) + 2);
}

#[test]
fn a_recording_is_admitted_or_refused_like_a_delivery() {
    let mut ledger = Ledger::new(terms_with_uploads());
    let empty: Vec<_> = ledger.levels().collect();
    let record = |rate| Wish::Record { rate: BitRate(rate) };
    let demand = ledger.demand(0, record(8_000_000), ENDLESS);
    // Three cycles of 1,000,000 bytes and 50,000 more, and three places.
    assert_eq!((demand.window(), demand.streams), (6, 0));
    let room = ledger.room_for(0, record(8_000_000));
    for _ in 0..room {
        ledger.admit(demand).expect("there was room for as many");
    }
    let short = ledger.admit(demand).expect_err("and for no more");
    assert_eq!((room, short.resource, short.limit), (6, Resource::WriteShare, 38));
    // What is written needs the disk's time as what is read does.
    let paced_before = Ledger::new(terms_with_uploads()).room_for(0, paced(8_000_000));
    assert!(ledger.room_for(0, paced(8_000_000)) < paced_before);
    let fast = ledger.demand(0, record(900_000_000), ENDLESS);
    assert_eq!(ledger.admit(fast).map_err(|s| s.resource), Err(Resource::Disk));
    for _ in 0..room {
        ledger.release(demand);
    }
    assert_eq!(ledger.levels().collect::<Vec<_>>(), empty);
    // A volume that takes no uploads takes no recordings.
    let other = ledger.demand(1, record(64_000), ENDLESS);
    assert_eq!(ledger.admit(other).map_err(|s| s.resource), Err(Resource::WriteShare));
}

const ENDLESS: Share = Share::whole(Bytes(1 << 40));

fn paced(rate: u64) -> Wish {
    Wish::Paced { rate: BitRate(rate), tick: Tick::Ms62, burst: Bytes(0) }
}

#[test]
fn what_is_admitted_fits_and_the_next_one_names_the_short_resource() {
    let mut ledger = Ledger::new(terms());
    let demand = ledger.demand(0, paced(8_800_000), ENDLESS);
    let room = ledger.room_for(0, paced(8_800_000));
    for _ in 0..room {
        ledger.admit(demand).expect("there was room for as many");
    }
    let short = ledger.admit(demand).expect_err("and for no more");
    assert_eq!(short.resource, Resource::Disk);
    assert!(short.needed > short.limit);
    assert_eq!(ledger.room_for(0, paced(8_800_000)), 0);
    // Another disk is not touched by it.
    assert!(ledger.room_for(1, paced(8_800_000)) > 0);
}

#[test]
fn each_block_of_an_itinerary_is_a_way_of_its_own() {
    let ledger = Ledger::new(terms());
    let rate = BitRate(64 * MIB);
    let of = |wish| ledger.demand(0, wish, ENDLESS);
    let (tick, burst) = (Tick::Ms62, Bytes(0));
    let [range, scattered, held] = [(false, false), (true, false), (true, true)]
        .map(|(is_scattered, is_held)| Wish::Reader { rate, tick, burst, is_held, is_scattered })
        .map(of);
    assert_eq!((range.visits, scattered.visits), (MilliVisits(1000), MilliVisits(8001)));
    assert_eq!(Demand { visits: range.visits, ..scattered }, range);
    // So fast a reader of a held title is one of any.
    assert_eq!(held, scattered);
    let slow = BitRate(1_000_000);
    let is_scattered = true;
    let slow = of(Wish::Reader { rate: slow, tick, burst, is_held: true, is_scattered });
    assert_eq!((slow.visits, slow.per_cycle), (MilliVisits(0), Moved::NOTHING));
}

#[test]
fn a_class_keeps_its_guarantee_from_others_and_has_no_more_than_its_ceiling() {
    let class = ClassTerms {
        parent: None,
        guaranteed: BitRate(600_000_000),
        ceiling: Some(BitRate(800_000_000)),
        is_oversubscribed: false,
    };
    let mut ledger = Ledger::new(Terms { classes: alloc::vec![class], ..terms() });
    let empty: Vec<_> = ledger.levels().collect();
    assert_eq!(level(&ledger, Resource::Link).used, 600_000_000);
    let made = |wire, class| Wish::Made { wire: BitRate(wire), sending: Nanos(1), class };
    let of = |ledger: &Ledger, wire, class: Option<u16>| {
        ledger.demand(0, made(wire, class.map(ClassNumber)), ENDLESS)
    };
    // Others have the rest.
    let other = of(&ledger, 400_000_001, None);
    assert_eq!(ledger.admit(other).map_err(|short| short.resource), Err(Resource::Link));
    let other = of(&ledger, 350_000_000, None);
    ledger.admit(other).expect("it is free");
    let own = of(&ledger, 600_000_000, Some(0));
    ledger.admit(own).expect("it is guaranteed");
    assert_eq!(level(&ledger, Resource::Link).used, 950_000_000);
    // Beyond its guarantee it has what the link has, and not that above its ceiling.
    let more = ledger.admit(of(&ledger, 60_000_000, Some(0))).expect_err("the link is full");
    assert_eq!((more.resource, more.class), (Resource::Link, None));
    ledger.release(other);
    let more = of(&ledger, 200_000_000, Some(0));
    ledger.admit(more).expect("up to its ceiling");
    let short = ledger.admit(of(&ledger, 1, Some(0))).expect_err("and no further");
    assert_eq!((short.resource, short.class), (Resource::Class, Some(ClassNumber(0))));
    assert_eq!((short.needed, short.limit), (800_000_001, 800_000_000));
    ledger.release(more);
    ledger.release(own);
    assert_eq!(ledger.levels().collect::<Vec<_>>(), empty);
}

#[test]
fn what_datagrams_leave_by_may_carry_less_than_the_link_and_connections_have_the_rest() {
    let class = |guaranteed| ClassTerms {
        parent: None,
        guaranteed: BitRate(guaranteed),
        ceiling: None,
        is_oversubscribed: false,
    };
    let slower = Terms {
        datagrams: Some(BitRate(100_000_000)),
        classes: alloc::vec![class(60_000_000)],
        ..terms()
    };
    let mut ledger = Ledger::new(slower);
    let empty: Vec<_> = ledger.levels().collect();
    let made = |ledger: &Ledger, wire, class: Option<u16>| {
        let class = class.map(ClassNumber);
        ledger.demand(0, Wish::Made { wire: BitRate(wire), sending: Nanos(1), class }, ENDLESS)
    };
    let resident = Wish::Resident { rate: BitRate(700_000_000), tick: Tick::Ms10, burst: Bytes(0) };
    let mut connection = ledger.demand(0, resident, Share::whole(Bytes(MIB)));
    connection.cpu = Nanos(0);
    ledger.admit(connection).expect("they leave by the link");
    let used = |ledger: &Ledger| {
        [Resource::Link, Resource::Datagrams].map(|resource| level(ledger, resource).used)
    };
    assert_eq!(used(&ledger), [760_000_000, 60_000_000]);
    assert_eq!(level(&ledger, Resource::Datagrams).limit, 100_000_000);
    // Outside classes, and beyond the guarantee of one.
    let other = made(&ledger, 40_000_000, None);
    ledger.admit(other).expect("it is free");
    for class in [None, Some(0)] {
        let rate = if class.is_some() { 60_000_001 } else { 1 };
        let short = ledger.admit(made(&ledger, rate, class)).expect_err("it is full");
        assert_eq!((short.resource, short.class), (Resource::Datagrams, None));
        assert_eq!((short.needed, short.limit), (100_000_001, 100_000_000));
    }
    let own = made(&ledger, 60_000_000, Some(0));
    ledger.admit(own).expect("it is guaranteed");
    let (needed, limit) = (BitRate(100_000_001), BitRate(100_000_000));
    let more = ledger.change_classes(alloc::vec![class(60_000_001)]);
    assert_eq!(more, Err(Unkept::Datagrams { needed, limit }));
    for demand in [connection, other, own] {
        ledger.release(demand);
    }
    assert_eq!(ledger.levels().collect::<Vec<_>>(), empty);
    ledger.change_classes(alloc::vec![class(100_000_000)]).expect("all of it");
}

#[test]
fn a_refused_request_changes_nothing() {
    let mut ledger = Ledger::new(terms());
    let before: Vec<_> = ledger.levels().collect();
    let demand = ledger.demand(0, paced(2_000_000_000), ENDLESS);
    assert!(ledger.admit(demand).is_err());
    assert_eq!(ledger.levels().collect::<Vec<_>>(), before);
}

#[test]
fn streams_of_a_held_title_need_no_disk_and_no_memory_of_their_own() {
    let mut ledger = Ledger::new(terms());
    let whole = Share::whole(Bytes(100 * MIB));
    ledger.admit(ledger.demand(0, Wish::Hold, whole)).expect("a fifth of the arena");
    let before: Vec<_> = ledger.levels().collect();
    let resident =
        |rate, burst| Wish::Resident { rate: BitRate(rate), tick: Tick::Ms62, burst: Bytes(burst) };
    let wish = resident(4_000_000, 0);
    let demand = ledger.demand(0, wish, whole);
    ledger.admit(demand).expect("room on the link");
    assert!(demand.window() > 0);
    for (was, is) in before.iter().zip(ledger.levels()) {
        let shared = matches!(is.resource, Resource::Disk | Resource::Arena);
        assert_eq!(was.used == is.used, shared, "{is:?}");
    }
    // Too fast to live on shared blocks: as if it were not held.
    let wish = resident(400_000_000, 0);
    assert!(ledger.demand(0, wish, whole).window() > RESIDENT_WINDOW);
    // A burst is no reason to need memory of its own: it is as long as the leases allow.
    let demand = ledger.demand(0, resident(4_000_000, 50 * MIB), whole);
    assert_eq!((demand.window(), demand.blocks), (RESIDENT_WINDOW, 0));
}

#[test]
fn a_start_burst_is_memory_of_the_stream_as_far_as_its_title_goes() {
    let ledger = Ledger::new(terms());
    let of = |burst, title_len| {
        let wish = Wish::Paced { rate: BitRate(8_000_000), tick: Tick::Ms62, burst: Bytes(burst) };
        ledger.demand(0, wish, Share::whole(Bytes(title_len)))
    };
    let (without, with) = (of(0, 1 << 40), of(7 * MIB, 1 << 40));
    assert_eq!(with, Demand { blocks: without.blocks + 7, window: without.window + 7, ..without });
    assert_eq!(of(7 * MIB, 9 * MIB).window(), 9);
    assert_eq!(of(u64::MAX, 9 * MIB).window(), 9);
}

#[test]
fn what_the_kernel_reads_ahead_is_memory_but_no_room_for_the_stream() {
    let mut terms = terms();
    terms.disks[1].ahead = 4;
    let ledger = Ledger::new(terms.clone());
    terms.disks[1].ahead = 0;
    let without = Ledger::new(terms);
    for wish in [paced(8_800_000), Wish::BestEffort] {
        let of = |ledger: &Ledger| ledger.demand(1, wish, Share::whole(Bytes(40 * MIB)));
        assert_eq!(of(&ledger).window(), of(&without).window());
        assert_eq!(of(&ledger).blocks, of(&without).blocks + 4);
    }
}

#[test]
fn no_more_is_read_ahead_of_a_stream_than_its_title_has() {
    let mut terms = terms();
    terms.disks[1].ahead = 4;
    let ledger = Ledger::new(terms);
    let title_len = Bytes(MIB + 1);
    for wish in [paced(8_800_000), Wish::BestEffort, Wish::Hold] {
        let demand = ledger.demand(1, wish, Share::whole(title_len));
        assert_eq!(demand.blocks, 5, "{wish:?}");
    }
    // Of a few bytes the kernel reads on, as far as the title goes.
    let few = ledger.demand(1, Wish::BestEffort, Share { len: Bytes(10), title_len });
    assert_eq!((few.window(), few.blocks), (2, 5));
}

#[test]
fn short_titles_reserve_no_more_memory_than_they_have() {
    let ledger = Ledger::new(terms());
    let of_ten = |title_len| {
        ledger.demand(0, paced(8_800_000), Share { len: Bytes(10), title_len }).window()
    };
    assert_eq!((of_ten(Bytes(10)), of_ten(Bytes(1 << 40))), (1, 2));
    assert_eq!(ledger.demand(0, Wish::BestEffort, ENDLESS).window(), 3);
}

proptest! {
    #[test]
    fn the_ledger_is_the_sum_of_live_streams_and_empty_when_they_end(
        rates in prop::collection::vec((0u32..2, 64_000u64..200_000_000, any::<bool>()), 1..60),
    ) {
        let mut ledger = Ledger::new(terms_with_uploads());
        let empty: Vec<_> = ledger.levels().collect();
        let mut live = Vec::new();
        for (disk, rate, records) in rates {
            let record = Wish::Record { rate: BitRate(rate) };
            let wish = if records { record } else { paced(rate) };
            let demand = ledger.demand(disk, wish, ENDLESS);
            if ledger.admit(demand).is_ok() {
                live.push(demand);
            }
            prop_assert!(ledger.levels().all(|level| level.used <= level.limit));
            let streams: u32 = live.iter().map(|demand| demand.streams).sum();
            prop_assert_eq!(ledger.streams(), streams);
        }
        for demand in live {
            ledger.release(demand);
        }
        prop_assert_eq!(ledger.levels().collect::<Vec<_>>(), empty);
    }
}
