//! Tests of places: how many streams share one, and how far apart places are.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::units::MILLISECOND;

const TICK: Nanos = Nanos::from_micros(250);
const FAST: BitRate = BitRate(100_000_000_000);

fn cycle(rate: u64, datagrams: u32) -> Cycle {
    Cycle { rate: BitRate(rate), datagrams, payload: PAYLOAD }
}

/// The number of streams at each place, in the order in which places were first used.
fn shares(places: &[Place]) -> Vec<usize> {
    let mut shares: Vec<(Place, usize)> = Vec::new();
    for place in places {
        match shares.iter_mut().find(|(known, _)| known == place) {
            Some((_, count)) => *count += 1,
            None => shares.push((*place, 1)),
        }
    }
    shares.into_iter().map(|(_, count)| count).collect()
}

fn enter(places: &mut Places, cycle: Cycle, count: usize) -> Vec<Place> {
    (0..count).map(|_| places.enter(cycle, TICK).expect("the cycle has places")).collect()
}

#[test]
fn few_streams_of_one_rate_leave_in_the_same_turns() {
    let mut places = Places::new(FAST, TICK);
    assert_eq!(shares(&enter(&mut places, cycle(4_000_000, 1), 20)), [20]);
    assert_eq!(shares(&enter(&mut places, cycle(4_000_000, 1), 80)), [80]);
    assert_eq!(shares(&enter(&mut places, cycle(4_000_000, 1), 80)), [28, 52]);
}

#[test]
fn a_turn_is_no_longer_than_the_link_takes_for_it() {
    // 250 us of 1 Gbit/s are 22 datagrams on the wire; with three in a message seven streams.
    let mut places = Places::new(BitRate(1_000_000_000), TICK);
    assert_eq!(shares(&enter(&mut places, cycle(4_000_000, 1), 30)), [22, 8]);
    let mut places = Places::new(BitRate(1_000_000_000), TICK);
    assert_eq!(shares(&enter(&mut places, cycle(4_000_000, 3), 15)), [7, 7, 1]);
}

#[test]
fn different_cycles_together_fill_no_more_than_one_turn() {
    let mut places = Places::new(FAST, TICK);
    for nth in 0..16 {
        assert_eq!(shares(&enter(&mut places, cycle(4_000_000 + nth, 1), 1)), [1]);
    }
    assert_eq!(shares(&enter(&mut places, cycle(4_000_000, 1), 12)), [7, 5]);
}

#[test]
fn a_stream_without_room_for_two_turns_in_its_cycle_has_no_place() {
    let mut places = Places::new(FAST, TICK);
    assert_eq!(places.enter(cycle(100_000_000, 1), TICK), None);
    // Nor one beside too many other cycles.
    for nth in 0..64 {
        assert!(places.enter(cycle(1_000_000 + nth, 1), TICK).is_some());
    }
    assert_eq!(places.enter(cycle(2_000_000, 1), TICK), None);
}

proptest! {
    #[test]
    fn many_streams_are_spread_evenly(
        rate in 20_000u64..20_000_000, datagrams in 1u32..9, count in 1usize..2000,
    ) {
        let cycle = cycle(rate, datagrams);
        let mut places = Places::new(FAST, TICK);
        let Some(first) = places.enter(cycle, TICK) else { return Ok(()) };
        let of = u64::from(places.cycles[usize::from(first.cycle)].count);
        let mut all = enter(&mut places, cycle, count);
        all.push(first);
        let most = *shares(&all).iter().max().expect("some");
        let room = (SHARED_MAX / datagrams) as usize;
        prop_assert!(most <= room.max(all.len().div_ceil(of as usize)), "{most}");
        if all.len() > room * of as usize {
            let least = *shares(&all).iter().min().expect("some");
            prop_assert!(most - least <= 1, "{most} {least}");
        }
    }

    #[test]
    fn no_turn_serves_two_places_of_a_cycle(
        rate in 20_000u64..20_000_000, datagrams in 1u32..9, ticks in 1u64..10,
        start in 0u64..1 << 60,
    ) {
        let (cycle, grid) = (cycle(rate, datagrams), TICK.times(ticks));
        let mut places = Places::new(BitRate(1_000_000), TICK);
        let Some(first) = places.enter(cycle, grid) else { return Ok(()) };
        let count = places.cycles[0].count;
        let mut all = vec![first];
        all.extend((1..count).map(|_| places.enter(cycle, grid).expect("the cycle has places")));
        prop_assert!(shares(&all).iter().all(|&streams| streams == 1));
        let start = MonoTime(start);
        let mut begins: Vec<_> =
            all.iter().map(|&place| cycle.begin(places.phase(place), start)).collect();
        begins.sort_unstable();
        prop_assert!(begins.iter().all(|begin| begin.since(start) <= cycle.length()));
        // To the nanosecond.
        let apart = begins.windows(2).map(|pair| pair[1].since(pair[0]) + Nanos(1));
        prop_assert!(apart.min().is_none_or(|apart| apart >= grid));
    }

    #[test]
    fn a_delay_of_whole_cycles_keeps_the_phase(
        rate in 20_000u64..20_000_000, datagrams in 1u32..9, phase in any::<u64>(),
        start in 0u64..1 << 60, span in 0u64..20_000_000_000,
    ) {
        let (cycle, span, phase) = (cycle(rate, datagrams), Nanos(span), Phase(phase));
        let begin = cycle.begin(phase, MonoTime(start));
        let delay = cycle.whole(span);
        prop_assert!(delay >= span && delay <= span + cycle.length());
        // To the nanosecond, by which both are rounded up.
        let again = cycle.begin(phase, (begin + delay).before(Nanos(2)));
        prop_assert!(again.since((begin + delay).before(Nanos(2))) <= Nanos(2));
    }

    #[test]
    fn streams_that_have_left_leave_no_trace(
        steps in prop::collection::vec((any::<bool>(), 0u64..80, 1u32..4), 0..300),
    ) {
        let mut places = Places::new(FAST, TICK);
        let mut present = Vec::new();
        for (enters, nth, datagrams) in steps {
            if enters || present.is_empty() {
                present.extend(places.enter(cycle(1_000_000 + nth, datagrams), TICK));
            } else {
                let place = present.swap_remove(nth as usize % present.len());
                places.leave(place);
            }
        }
        present.drain(..).for_each(|place| places.leave(place));
        prop_assert_eq!(shares(&enter(&mut places, cycle(4_000_000, 1), 129)), [128, 1]);
    }
}

#[test]
fn a_grid_of_a_long_burst_keeps_places_apart() {
    let mut places = Places::new(BitRate(1_000_000), TICK);
    let seven = cycle(4_000_000, 3);
    let all: Vec<_> = (0..7).map(|_| places.enter(seven, MILLISECOND).expect("7.9 ms")).collect();
    assert_eq!(shares(&all), [1; 7]);
    assert_eq!(
        shares(&[&all[..], &[places.enter(seven, MILLISECOND).expect("a place")]].concat())
            .iter()
            .max(),
        Some(&2)
    );
}
