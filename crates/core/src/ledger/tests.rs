//! Sums of promises, refusals, and complete returns.

use super::*;
use crate::cost::{Order, OutputCost, PacedRead, SendCost, TitlePart, WindowLimits, WriteLimits};
use crate::disk_model::DiskModel;
use crate::envelope::{Envelope, Spans};
use crate::polyline::Polyline;
use crate::stagger::Tick;
use crate::units::{KIB, MIB, MediaTime, SECOND};
use alloc::vec;
use proptest::prelude::*;

fn limits() -> Limits {
    let disk = DiskLimits {
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
    let cores = alloc::vec![Nanos::from_millis(700)];
    let disks = alloc::vec![disk, DiskLimits { block: Bytes(256 * KIB), ..disk }];
    let (link, classes) = (BitRate(1_000_000_000), alloc::vec![]);
    Limits { disks, link, datagrams: None, classes, cores, streams: 100 }
}

const SEND: SendCost = SendCost {
    per_send: Nanos::from_micros(6),
    per_packet: Nanos(0),
    per_mib: Nanos::from_micros(300),
};

const INTAKE: WriteLimits = WriteLimits { places: 40, place: Bytes(MIB), floor_thousandths: 50 };

/// The first disk takes uploads.
fn terms_with_uploads() -> Limits {
    let mut limits = limits();
    limits.disks[0].write_path = Some(INTAKE);
    limits.disks[1].windows = WindowLimits { each: 7, all: 60 };
    limits
}

fn level(ledger: &Ledger, resource: Resource) -> Level {
    ledger.levels().find(|level| level.resource == resource).expect("it is listed")
}

#[test]
fn a_flush_and_the_floor_of_uploads_are_kept_out_of_what_streams_may_fill() {
    let of = |limits| level(&Ledger::new(limits), Resource::Disk).limit;
    let kept = DiskModel::SLOWEST.flush.0 + SECOND.0 / 20;
    assert_eq!(of(terms_with_uploads()), of(limits()) - kept);
    assert_eq!(of(limits()), SECOND.0 / 1000 * 950);
    // A flush longer than half a cycle cannot be planned within one.
    let mut short = terms_with_uploads();
    short.disks[0].cycle = Nanos::from_millis(20);
    assert_eq!(of(short), 20_000_000 / 1000 * 900 - 10_000_000);
}

#[test]
fn a_recording_is_admitted_or_refused_like_a_delivery() {
    let mut ledger = Ledger::new(terms_with_uploads());
    let empty: Vec<_> = ledger.levels().collect();
    let cost = recording(&ledger, 0, 8_000_000);
    assert_eq!((cost.source.places, cost.rows), (6, 0));
    // No core sends a recording.
    let room = ledger.room_for(cost, &[]);
    for _ in 0..room {
        ledger.admit(cost).expect("there was room for as many");
    }
    let short = ledger.admit(cost).expect_err("and for no more");
    assert_eq!((room, short.resource, short.limit), (6, Resource::WriteShare, 38));
    // Writes need disk time like reads.
    let stream = connected(&ledger, 0, 8_000_000);
    let room_before = Ledger::new(terms_with_uploads()).room_for(stream, &[0]);
    assert!(ledger.room_for(stream, &[0]) < room_before);
    let fast = recording(&ledger, 0, 900_000_000);
    assert_eq!(ledger.admit(fast).map_err(|s| s.resource), Err(Resource::Disk));
    for _ in 0..room {
        ledger.release(cost);
    }
    assert_eq!(ledger.levels().collect::<Vec<_>>(), empty);
    // A volume without uploads takes no recordings.
    let other = recording(&ledger, 1, 64_000);
    assert_eq!(ledger.admit(other).map_err(|s| s.resource), Err(Resource::WriteShare));
}

const ENDLESS: TitlePart = TitlePart::whole(Bytes(1 << 40));

fn reading(rate: u64) -> PacedRead {
    let (rate, tick, burst) = (BitRate(rate), Tick::Ms62, Bytes(0));
    PacedRead { rate, tick, burst, order: Order::Once, is_pinned: false }
}

/// The cost of generated packets.
fn packets(ledger: &Ledger, wire: u64, class: Option<u16>) -> Cost {
    let output = OutputCost::datagrams(BitRate(wire), Nanos(1), class.map(ClassNumber));
    Cost::stream(ledger.disk(0).nothing().cost, output)
}

fn recording(ledger: &Ledger, disk: u32, rate: u64) -> Cost {
    Cost::recording(ledger.disk(disk).recorded(BitRate(rate)).cost)
}

/// The cost of a stream at `rate` into a connection.
fn connected(ledger: &Ledger, disk: u32, rate: u64) -> Cost {
    let source = ledger.disk(disk).paced(&reading(rate), ENDLESS);
    Cost::stream(source.cost, OutputCost::connection(SEND, BitRate(rate), Tick::Ms62))
}

/// The cost of a stream by `line`, which begins in slot `begin`.
fn following(ledger: &Ledger, line: &Polyline, begin: u64) -> PlannedCost {
    let envelope =
        Envelope::of(line, Spans { lead: Nanos(0), lag: Nanos(0) }).expect("it is short");
    let at = |rate: BitRate| connected(ledger, 0, rate.0);
    PlannedCost::following(&envelope, begin, at(envelope.peak()), at)
}

/// A minute at one rate, a minute at another one.
fn two_minutes(first: u64, second: u64) -> Polyline {
    let minute = 60 * 27_000_000;
    let points = [(0, 0), (first * 60 / 8, minute), ((first + second) * 60 / 8, 2 * minute)];
    let points = points.map(|(at, time)| (Bytes(at), MediaTime(time)));
    Polyline::through(&points).expect("it ascends")
}

#[test]
fn streams_whose_peaks_lie_apart_fit_where_the_sum_of_their_peaks_does_not() {
    let mut limits = limits();
    limits.link = BitRate(11_000_000);
    let mut ledger = Ledger::new(limits);
    let empty: Vec<_> = ledger.levels().collect();
    let [early, late] = [two_minutes(10_000_000, 1_000_000), two_minutes(1_000_000, 10_000_000)];
    let first = following(&ledger, &early, 100);
    ledger.admit_planned(&first).expect("an empty link has room");
    let same = ledger.admit_planned(&following(&ledger, &early, 100)).expect_err("both peaks");
    assert_eq!((same.resource, same.needed), (Resource::Link, 20_000_000));
    // The envelope of the second one rises a second before the first one's has fallen.
    let other = following(&ledger, &late, 102);
    ledger.admit_planned(&other).expect("their peaks lie apart");
    // A constant rate has to fit beside the highest sum, a planned one beside its own time.
    assert!(ledger.admit(connected(&ledger, 0, 1_000_000)).is_err());
    let later = following(&ledger, &late, 300);
    ledger.admit_planned(&later).expect("afterwards there is room");
    for cost in [first, other, later] {
        ledger.release_planned(&cost);
    }
    assert_eq!(ledger.levels().collect::<Vec<_>>(), empty);
}

proptest! {
    #[test]
    fn in_no_second_more_is_promised_than_there_is(
        streams in prop::collection::vec(
            (0u64..200, 100_000u64..30_000_000, 100_000u64..30_000_000, any::<bool>()), 1..60,
        ),
    ) {
        let mut ledger = Ledger::new(limits());
        let empty: Vec<_> = ledger.levels().collect();
        let (mut constant, mut planned) = (vec![], vec![]);
        for (begin, first, second, is_constant) in streams {
            if is_constant {
                let cost = connected(&ledger, 0, first);
                constant.extend(ledger.admit(cost).is_ok().then_some(cost));
            } else {
                let cost = following(&ledger, &two_minutes(first, second), begin);
                planned.extend(ledger.admit_planned(&cost).is_ok().then_some(cost));
            }
        }
        let full: Vec<_> = ledger.levels().collect();
        for cost in &planned {
            ledger.release_planned(cost);
            ledger.restore_planned(cost);
        }
        prop_assert_eq!(ledger.levels().collect::<Vec<_>>(), full);
        for slot in 0..400 {
            let own = planned.iter().flat_map(|cost| &cost.steps);
            let now = own.filter(|(slots, _)| slots.contains(&slot)).map(|(_, cost)| cost);
            let all: Vec<_> = now.chain(&constant).collect();
            let link: u64 = all.iter().map(|cost| cost.output.wire.0).sum();
            let cpu: u64 = all.iter().map(|cost| cost.source.cpu.0 + cost.output.cpu.0).sum();
            let visits = all.iter().map(|cost| cost.source.visits.0).sum();
            let nothing = TransferredBytes::NOTHING;
            let read = all.iter().fold(nothing, |sum, cost| sum.plus(cost.source.per_cycle));
            let time = ledger.limits().disks[0].model.moving(MilliVisits(visits), read);
            prop_assert!(link <= ledger.limits().link.0 && cpu <= ledger.limits().cores[0].0);
            prop_assert!(time <= disk_limit(&ledger.limits().disks[0]));
        }
        for cost in &constant {
            ledger.release(*cost);
        }
        for cost in &planned {
            ledger.release_planned(cost);
        }
        prop_assert_eq!(ledger.levels().collect::<Vec<_>>(), empty);
    }
}

#[test]
fn datagrams_and_connections_fill_the_same_link_and_leave_nothing_behind() {
    let mut ledger = Ledger::new(limits());
    let all = [packets(&ledger, 8_400_000, None), connected(&ledger, 0, 8_000_000)];
    for cost in all {
        ledger.admit(cost).expect("an empty server has room");
    }
    assert_eq!(level(&ledger, Resource::Link).used, 16_400_000);
    for cost in all {
        ledger.release(cost);
    }
    assert!(ledger.levels().all(|level| level.used == 0));
}

#[test]
fn what_is_admitted_fits_and_the_next_one_names_the_short_resource() {
    let mut ledger = Ledger::new(limits());
    let cost = connected(&ledger, 0, 8_800_000);
    let room = ledger.room_for(cost, &[0]);
    for _ in 0..room {
        ledger.admit(cost).expect("there was room for as many");
    }
    let short = ledger.admit(cost).expect_err("and for no more");
    assert_eq!(short.resource, Resource::Disk);
    assert!(short.needed > short.limit);
    assert_eq!(ledger.room_for(cost, &[0]), 0);
    // Another disk is not affected.
    assert!(ledger.room_for(connected(&ledger, 1, 8_800_000), &[0]) > 0);
}

#[test]
fn each_core_has_time_of_its_own_and_the_one_without_is_named() {
    let each = Nanos::from_millis(3);
    let mut ledger = Ledger::new(Limits { cores: alloc::vec![each; 3], ..limits() });
    let empty: Vec<_> = ledger.levels().collect();
    // Read by core 0. A core that only sends has time for one more.
    let cost = connected(&ledger, 0, 8_000_000);
    let on = |server| cost.by(server);
    let (both, sends) = (cost.source.cpu + cost.output.cpu, cost.output.cpu);
    let room = |cores: &[u32]| u64::from(ledger.room_for(cost, cores));
    assert_eq!(room(&[0]), each.0 / both.0);
    assert_eq!(room(&[1]), each.0 / sends.0);
    assert_eq!(ledger.limit_for(cost, &[1], &[0]).1, Resource::Cpu);
    assert_eq!(room(&[1, 2]), 2 * room(&[1]));
    assert!(room(&[0, 1, 2]) < room(&[0]) + room(&[1, 2]), "core 0 reads for all");
    for _ in 0..room(&[1]) {
        ledger.admit(on(1)).expect("there is room");
    }
    let short = ledger.admit(on(1)).expect_err("core 1 is full");
    assert_eq!((short.resource, short.number), (Resource::Cpu, 1));
    assert!(ledger.free_time(1) < sends && ledger.free_time(2) == each);
    ledger.admit(on(2)).expect("core 2 is idle");
    ledger.release(on(2));
    for _ in 0..each.0 / sends.0 {
        ledger.release(on(1));
    }
    assert_eq!(ledger.levels().collect::<Vec<_>>(), empty);
}

#[test]
fn a_server_that_moves_takes_its_promises_along_and_none_goes_where_there_is_no_room() {
    let each = Nanos::from_millis(3);
    let limits = Limits { cores: alloc::vec![each; 2], ..limits() };
    // Read by server 0 on core 0, sent by server 1, which keeps a third of its core for itself.
    let kept = Nanos(each.0 / 3);
    let places = [(0, Nanos(0)), (1, kept)].map(|(core, kept)| ServerPlace { core, kept });
    let mut ledger = Ledger::with_servers(limits, places);
    let empty: Vec<_> = ledger.levels().collect();
    let cost = connected(&ledger, 0, 8_000_000).by(1);
    let used = |ledger: &Ledger| {
        let of_cores = ledger.levels().filter(|level| level.resource == Resource::Cpu);
        of_cores.map(|level| (level.used, level.limit)).collect::<Vec<_>>()
    };
    let apart = u64::from(ledger.room_for(cost, &[1]));
    assert_eq!(apart, (each - kept).0 / cost.output.cpu.0);
    let followed =
        PlannedCost { lasting: cost.lasting(), steps: alloc::vec![(3..9, cost.following())] };
    ledger.admit_planned(&followed).expect("there is room");
    ledger.admit(cost).expect("there is room");
    ledger.move_server(1, 0).expect("there is room for both");
    let both = cost.source.cpu + cost.output.cpu;
    assert_eq!(used(&ledger), [(2 * both.0, (each - kept).0), (0, each.0)]);
    assert_eq!(u64::from(ledger.room_for(cost, &[1])), (each - kept).0 / both.0 - 2);
    while ledger.admit(cost).is_ok() {}
    let before = used(&ledger);
    ledger.move_server(0, 1).expect("the reads have room on an empty core");
    while ledger.admit(cost).is_ok() {}
    let apart = used(&ledger);
    let short = ledger.move_server(0, 0).expect_err("core 0 is full of what is sent");
    assert_eq!((short.resource, short.number), (Resource::Cpu, 0));
    assert!(used(&ledger) == apart && apart != before, "a move that is refused changes nothing");
    let streams = ledger.streams();
    for _ in 1..streams {
        ledger.release(cost);
    }
    ledger.release_planned(&followed);
    ledger.move_server(1, 1).expect("nothing is promised");
    ledger.move_server(0, 0).expect("nothing is promised");
    assert_eq!(ledger.levels().collect::<Vec<_>>(), empty);
}

#[test]
fn nothing_is_promised_of_a_closed_core_and_one_that_is_opened_again_has_its_time() {
    let mut ledger = Ledger::with_servers(
        Limits { cores: alloc::vec![SECOND; 2], ..limits() },
        [(0, Nanos(0)), (1, Nanos(1_000))].map(|(core, kept)| ServerPlace { core, kept }),
    );
    let before: Vec<_> = ledger.of_cores().collect();
    ledger.move_server(1, 0).expect("nothing is promised");
    let time = ledger.close_core(1);
    assert_eq!((time, ledger.is_open(1)), (SECOND, false));
    assert!(ledger.levels().all(|level| level.resource != Resource::Cpu || level.number == 0));
    assert_eq!(ledger.of_cores().nth(1), Some((Nanos(0), Nanos(0))));
    // Also a server without a promise stays away.
    assert!(ledger.move_server(1, 1).is_err());
    ledger.open_core(1, time);
    ledger.move_server(1, 1).expect("it is open");
    assert_eq!(ledger.of_cores().collect::<Vec<_>>(), before);
}

#[test]
fn a_core_with_less_time_than_its_servers_keep_has_what_it_had_when_they_have_left() {
    let mut ledger = Ledger::with_servers(
        Limits { cores: alloc::vec![SECOND, Nanos(1_000)], ..limits() },
        [800, 900].map(|kept| ServerPlace { core: 0, kept: Nanos(kept) }),
    );
    let before: Vec<_> = ledger.of_cores().collect();
    for to in [1, 0] {
        for server in [0, 1] {
            ledger.move_server(server, to).expect("nothing is promised");
        }
    }
    assert_eq!(ledger.of_cores().collect::<Vec<_>>(), before);
}

#[test]
fn a_class_keeps_its_guarantee_from_others_and_has_no_more_than_its_ceiling() {
    let class = ClassLimits {
        parent: None,
        guaranteed: BitRate(600_000_000),
        ceiling: Some(BitRate(800_000_000)),
        is_oversubscribed: false,
    };
    let mut ledger = Ledger::new(Limits { classes: alloc::vec![class], ..limits() });
    let empty: Vec<_> = ledger.levels().collect();
    assert_eq!(level(&ledger, Resource::Link).used, 600_000_000);
    // The rest is for the other streams.
    let other = packets(&ledger, 400_000_001, None);
    assert_eq!(ledger.admit(other).map_err(|short| short.resource), Err(Resource::Link));
    let other = packets(&ledger, 350_000_000, None);
    ledger.admit(other).expect("it is free");
    let own = packets(&ledger, 600_000_000, Some(0));
    ledger.admit(own).expect("it is guaranteed");
    assert_eq!(level(&ledger, Resource::Link).used, 950_000_000);
    // Beyond its guarantee, the class may use the link's free rate, up to its ceiling.
    let more = ledger.admit(packets(&ledger, 60_000_000, Some(0))).expect_err("the link is full");
    assert_eq!((more.resource, more.class), (Resource::Link, None));
    ledger.release(other);
    let more = packets(&ledger, 200_000_000, Some(0));
    ledger.admit(more).expect("up to its ceiling");
    let short = ledger.admit(packets(&ledger, 1, Some(0))).expect_err("and no further");
    assert_eq!((short.resource, short.class), (Resource::Class, Some(ClassNumber(0))));
    assert_eq!((short.needed, short.limit), (800_000_001, 800_000_000));
    ledger.release(more);
    ledger.release(own);
    assert_eq!(ledger.levels().collect::<Vec<_>>(), empty);
}

#[test]
fn what_datagrams_leave_by_may_carry_less_than_the_link_and_connections_have_the_rest() {
    let class = |guaranteed| ClassLimits {
        parent: None,
        guaranteed: BitRate(guaranteed),
        ceiling: None,
        is_oversubscribed: false,
    };
    let slower = Limits {
        datagrams: Some(BitRate(100_000_000)),
        classes: alloc::vec![class(60_000_000)],
        ..limits()
    };
    let mut ledger = Ledger::new(slower);
    let empty: Vec<_> = ledger.levels().collect();
    let output = OutputCost { wire: BitRate(700_000_000), ..OutputCost::NONE };
    let connection = Cost::stream(ledger.disk(0).nothing().cost, output);
    ledger.admit(connection).expect("they leave by the link");
    let used = |ledger: &Ledger| {
        [Resource::Link, Resource::Datagrams].map(|resource| level(ledger, resource).used)
    };
    assert_eq!(used(&ledger), [760_000_000, 60_000_000]);
    assert_eq!(level(&ledger, Resource::Datagrams).limit, 100_000_000);
    // Outside of classes, and beyond the guarantee of one.
    let other = packets(&ledger, 40_000_000, None);
    ledger.admit(other).expect("it is free");
    for class in [None, Some(0)] {
        let rate = if class.is_some() { 60_000_001 } else { 1 };
        let short = ledger.admit(packets(&ledger, rate, class)).expect_err("it is full");
        assert_eq!((short.resource, short.class), (Resource::Datagrams, None));
        assert_eq!((short.needed, short.limit), (100_000_001, 100_000_000));
    }
    let own = packets(&ledger, 60_000_000, Some(0));
    ledger.admit(own).expect("it is guaranteed");
    let (needed, limit) = (BitRate(100_000_001), BitRate(100_000_000));
    let more = ledger.change_classes(alloc::vec![class(60_000_001)]);
    assert_eq!(more, Err(ClassChangeError::Datagrams { needed, limit }));
    for cost in [connection, other, own] {
        ledger.release(cost);
    }
    assert_eq!(ledger.levels().collect::<Vec<_>>(), empty);
    ledger.change_classes(alloc::vec![class(100_000_000)]).expect("all of it");
}

#[test]
fn a_refused_request_changes_nothing() {
    let mut ledger = Ledger::new(limits());
    let before: Vec<_> = ledger.levels().collect();
    let cost = connected(&ledger, 0, 2_000_000_000);
    assert!(ledger.admit(cost).is_err());
    assert_eq!(ledger.levels().collect::<Vec<_>>(), before);
}

#[test]
fn streams_of_a_held_title_need_no_disk_and_no_memory_of_their_own() {
    let mut ledger = Ledger::new(limits());
    let whole = TitlePart::whole(Bytes(100 * MIB));
    let pin = ledger.disk(0).pinned(whole.title_len).cost;
    ledger.admit(Cost::stream(pin, OutputCost::NONE)).expect("a fifth of the arena");
    let before: Vec<_> = ledger.levels().collect();
    let reading = PacedRead { is_pinned: true, ..reading(4_000_000) };
    let source = ledger.disk(0).paced(&reading, whole);
    let output = OutputCost::connection(SEND, reading.rate, reading.tick);
    let cost = Cost::stream(source.cost, output);
    ledger.admit(cost).expect("room on the link");
    for (was, is) in before.iter().zip(ledger.levels()) {
        let shared = is.resource.is_of_disk();
        assert_eq!(was.used == is.used, shared, "{is:?}");
    }
}

#[test]
fn streams_have_memory_for_their_windows_or_are_refused() {
    let mut ledger = Ledger::new(terms_with_uploads());
    let cost = connected(&ledger, 1, 64_000);
    (0..8).for_each(|_| ledger.admit(cost).unwrap());
    let refused = ledger.admit(cost).unwrap_err();
    assert_eq!((refused.resource, refused.needed, refused.limit), (Resource::ReadAhead, 63, 60));
    let levels = ledger.levels().filter(|level| level.resource == Resource::ReadAhead);
    let levels: Vec<_> = levels.map(|level| (level.number, level.used, level.limit)).collect();
    assert_eq!(levels, [(1, 56, 60)]);
    assert_eq!(ledger.limit_for(cost, &[0], &[0]), (0, Resource::ReadAhead));
    ledger.release(cost);
    assert_eq!(ledger.limit_for(cost, &[0], &[0]), (1, Resource::ReadAhead));
    (0..7).for_each(|_| ledger.release(cost));
    assert_eq!(ledger.limit_for(cost, &[0], &[0]), (8, Resource::ReadAhead));
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
            let cost = match records {
                true => recording(&ledger, disk, rate),
                false => connected(&ledger, disk, rate),
            };
            if ledger.admit(cost).is_ok() {
                live.push(cost);
            }
            prop_assert!(ledger.levels().all(|level| level.used <= level.limit));
            let streams: u32 = live.iter().map(|cost| cost.rows).sum();
            prop_assert_eq!(ledger.streams(), streams);
        }
        for cost in live {
            ledger.release(cost);
        }
        prop_assert_eq!(ledger.levels().collect::<Vec<_>>(), empty);
    }
}
