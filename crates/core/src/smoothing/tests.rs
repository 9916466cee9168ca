//! Smoothed schedules against their bounds and the least possible peak.

use super::*;
use crate::units::Nanos;
use alloc::vec;
use proptest::prelude::*;

const SECOND: u64 = 27_000_000;
const NO_LIMIT: Bytes = Bytes(u64::MAX);

fn consumption(shape: Shape, points: &[(u64, u64)]) -> Consumption {
    let points = points.iter().map(|&(time, bytes)| (MediaTime(time), Bytes(bytes)));
    Consumption::new(shape, points).unwrap()
}

fn player(held: u64, burst: u64) -> PlayerBuffer {
    let [held, burst, late] = [held, burst, 0].map(MediaTime);
    PlayerBuffer { held, burst, burst_max: NO_LIMIT, late }
}

/// The segments of a line behind its burst: time, bytes.
fn segments(line: &Polyline) -> Vec<(u64, u64)> {
    let points: Vec<_> = line.points().collect();
    let apart =
        |pair: &[(Bytes, MediaTime)]| (pair[1].1.0 - pair[0].1.0, pair[1].0.0 - pair[0].0.0);
    points.windows(2).map(apart).filter(|&(time, _)| time > 0).collect()
}

/// The least peak of any schedule within the bounds, as time and bytes: the steepest way from an
/// upper bound to a later lower one. It begins at a corner of the upper bounds' lower hull.
fn least_peak(consumption: &Consumption, player: PlayerBuffer) -> (u64, u64) {
    let start = Point { time: 0, bytes: consumption.at(player.burst.0).min(player.burst_max.0) };
    let (mut upper, mut lower) = (vec![start], vec![]);
    for bound in consumption.bounds(player) {
        match bound {
            Bound::Upper(point) => upper.push(point),
            Bound::Lower(point) => lower.push((point, upper.len())),
        }
    }
    assert!(upper.is_sorted_by_key(|point| point.time));
    assert!(lower.is_sorted_by_key(|(point, _)| point.time));
    // Whether `far` is reached from `from` as steeply by way of `near`, or more so.
    let is_no_corner = |from: &Point, near: &Point, far: &Point| {
        let rise = |to: &Point| i128::from(to.bytes) - i128::from(from.bytes);
        let later = |to: &Point| i128::from(to.time - from.time);
        rise(near) * later(far) >= rise(far) * later(near)
    };
    let (mut hull, mut taken, mut most) = (Vec::<Point>::new(), 0, (1, 0));
    for (to, known) in lower {
        while let Some(next) = upper[taken..known].first().filter(|next| next.time < to.time) {
            while let [.., from, near] = &hull[..]
                && is_no_corner(from, near, next)
            {
                hull.pop();
            }
            hull.push(*next);
            taken += 1;
        }
        for from in &hull {
            let rise = to.bytes.saturating_sub(from.bytes);
            let is_steeper = u128::from(rise) * u128::from(most.0)
                > u128::from(most.1) * u128::from(to.time - from.time);
            if is_steeper {
                most = (to.time - from.time, rise);
            }
        }
    }
    most
}

/// The bytes sent by `ticks`.
fn sent(line: &Polyline, ticks: u64) -> u64 {
    let nanos = (u128::from(ticks) * 1000).div_ceil(27) as u64;
    line.allowed(Nanos(nanos)).0.min(line.len().0)
}

fn judge(consumption: &Consumption, player: PlayerBuffer) -> Result<(), TestCaseError> {
    let line = consumption.smoothed(player);
    prop_assert_eq!(line.len(), consumption.len());
    if Bytes(consumption.at(player.burst.0)) == consumption.len() && player.burst_max == NO_LIMIT {
        prop_assert_eq!(line.duration(), MediaTime(1), "it leaves at once");
        return Ok(());
    }
    // The byte of a pause, and those of a tick by which the time of the test is rounded.
    let slack =
        2 + segments(&line).iter().map(|&(time, bytes)| bytes.div_ceil(time)).max().unwrap();
    for bound in consumption.bounds(player) {
        let (Bound::Lower(point) | Bound::Upper(point)) = bound;
        let sent = sent(&line, point.time.min(line.duration().0));
        match bound {
            Bound::Lower(point) => prop_assert!(sent + slack >= point.bytes, "{point:?} {sent}"),
            Bound::Upper(point) => prop_assert!(sent <= point.bytes + slack, "{point:?} {sent}"),
        }
    }
    let (time, bytes) = least_peak(consumption, player);
    let title = consumption.points[consumption.points.len() - 1];
    let is_below_mean =
        u128::from(bytes) * u128::from(title.time) < u128::from(title.bytes) * u128::from(time);
    let (time, bytes) = if is_below_mean { (title.time, title.bytes) } else { (time, bytes) };
    for (took, came) in segments(&line) {
        let peak = u128::from(bytes) * u128::from(took);
        // One byte more for a pause.
        prop_assert!(
            u128::from(came.saturating_sub(1)) * u128::from(time) <= peak + u128::from(time),
            "{came} in {took}, least {bytes} in {time}"
        );
    }
    Ok(())
}

#[test]
fn a_constant_rate_is_one_segment_behind_its_burst() {
    // 8 Mbit/s for a minute, with a point each 40 ms.
    let points: Vec<_> = (0..=1500).map(|frame| (frame * SECOND / 25, frame * 40_000)).collect();
    let line = consumption(Shape::Lines, &points).smoothed(player(2 * SECOND, SECOND));
    assert_eq!(
        line.points().collect::<Vec<_>>(),
        [
            (Bytes(0), MediaTime(0)),
            (Bytes(1_000_000), MediaTime(0)),
            (Bytes(60_000_000), MediaTime(59 * SECOND)),
        ]
    );
}

#[test]
fn a_peak_is_spread_over_the_buffer_before_it() {
    // 1 MB/s, 5 MB/s for ten seconds, 1 MB/s.
    let points =
        [(0, 0), (20 * SECOND, 20_000_000), (30 * SECOND, 70_000_000), (50 * SECOND, 90_000_000)];
    let peak = |held, burst| {
        let line = consumption(Shape::Lines, &points).smoothed(player(held, burst));
        segments(&line).into_iter().map(|(time, bytes)| bytes * SECOND / time).max().unwrap()
    };
    // 50 MB in ten seconds, less what a buffer of the slow part takes, over two seconds more.
    assert_eq!(peak(2 * SECOND, SECOND), 50_000_000 / 12);
    assert!(peak(20 * SECOND, SECOND) < 2_000_000);
}

#[test]
fn samples_are_there_at_their_times() {
    let points = [(0, 400), (SECOND, 500), (2 * SECOND, 10_500), (3 * SECOND, 10_600)];
    let consumption = consumption(Shape::Steps, &points);
    let line = consumption.smoothed(player(2 * SECOND, SECOND));
    // What is due within a second leaves at once.
    assert_eq!(line.allowed(Nanos(0)), Bytes(500));
    judge(&consumption, player(2 * SECOND, SECOND)).unwrap();
    let limited = PlayerBuffer { burst_max: Bytes(100), ..player(2 * SECOND, SECOND) };
    assert_eq!(consumption.smoothed(limited).allowed(Nanos(0)), Bytes(100));
    judge(&consumption, limited).unwrap();
}

#[test]
fn r01_bytes_that_come_late_are_due_earlier_even_if_the_burst_fills_the_buffer() {
    // A step of 100 bytes each 40 ms, and from two seconds on one of 1000.
    let step = |nth: u64| (nth * SECOND / 25, nth.min(50) * 100 + nth.saturating_sub(50) * 1000);
    let points: Vec<_> = (1..=150).map(step).collect();
    let consumption = consumption(Shape::Steps, &points);
    for (held, burst) in [(2 * SECOND, SECOND), (2 * SECOND, 2 * SECOND), (SECOND, SECOND)] {
        let late = SECOND / 16;
        let line =
            consumption.smoothed(PlayerBuffer { late: MediaTime(late), ..player(held, burst) });
        for &(time, bytes) in &points {
            let needed = time + held - burst;
            let due = line.ticks(Bytes(bytes), line.hint(Bytes(bytes))).0;
            let late = if due > 0 { late } else { 0 };
            assert!(due + late <= needed, "{bytes}: {due} for {needed}");
        }
    }
}

#[test]
fn r01_a_buffer_that_fills_early_because_points_are_early_is_enough() {
    // Frames by the milliseconds at which they are needed, in slots of 200 ms.
    let frames = [(0, 100), (1_940, 200), (1_990, 10_000_200), (5_000, 15_000_200)];
    let ticks = |millis: u64| millis * SECOND / 1000;
    let points = frames.map(|(millis, bytes)| (ticks(millis / 200 * 200), bytes));
    let whole = consumption(Shape::Steps, &points).with_resolution(MediaTime(ticks(200)));
    let player = PlayerBuffer { late: MediaTime(SECOND / 16), ..player(ticks(1_950), SECOND) };
    let line = whole.part(0..15_000_200).unwrap().smoothed(player);
    let due = |bytes: u64| line.ticks(Bytes(bytes - 1), line.hint(Bytes(bytes - 1))).0;
    // It holds all that is needed within 1.95 s.
    let begun = due(200);
    assert!(begun < player.held.0 - player.burst.0, "it is as early as it may be");
    for (millis, bytes) in frames {
        let late = if due(bytes) > 0 { player.late.0 } else { 0 };
        assert!(due(bytes) + late <= begun + ticks(millis), "{bytes}: {}", due(bytes));
    }
}

#[test]
fn nothing_and_what_descends_is_no_demand() {
    let made = |points: &[(u64, u64)]| {
        Consumption::new(
            Shape::Steps,
            points.iter().map(|&(time, bytes)| (MediaTime(time), Bytes(bytes))),
        )
    };
    assert!(made(&[]).is_none());
    assert!(made(&[(0, 0), (5, 0)]).is_none());
    assert!(made(&[(5, 10), (4, 20)]).is_none());
    assert!(made(&[(5, 10), (6, 9)]).is_none());
}

#[test]
fn a_part_of_lines_begins_and_ends_between_their_points() {
    let whole = consumption(Shape::Lines, &[(0, 0), (0, 100), (SECOND, 1100), (3 * SECOND, 1300)]);
    let whole = whole.with_lead(MediaTime(7));
    let part = |from: u64, to: u64, points: &[(u64, u64)]| {
        let expected = consumption(Shape::Lines, points).with_lead(MediaTime(7));
        assert_eq!(whole.part(from..to), Some(expected), "{from} to {to}");
    };
    part(0, 1300, &[(0, 0), (0, 100), (SECOND, 1100), (3 * SECOND, 1300)]);
    part(600, 1200, &[(0, 0), (SECOND / 2, 500), (SECOND / 2 + SECOND, 600)]);
    part(1100, 1300, &[(0, 0), (2 * SECOND, 200)]);
    // Bytes behind the last point come at the mean rate.
    part(1100, 1500, &[(0, 0), (2 * SECOND, 200), (4 * SECOND, 400)]);
    assert!(whole.part(1300..1400).is_none());
}

#[test]
fn damaged_forms_are_refused_or_valid() {
    let points = [(0, 100), (SECOND, 1100), (3 * SECOND, 1300)];
    let whole = consumption(Shape::Steps, &points).encode();
    for at in 0..whole.len() {
        assert_eq!(Consumption::decode(&whole[..at]), None);
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            if let Some(other) = Consumption::decode(&damaged) {
                assert_eq!(other.smoothed(player(2 * SECOND, SECOND)).len(), other.len());
            }
        }
    }
}

#[test]
fn a_range_that_fits_the_burst_leaves_at_once() {
    let line =
        consumption(Shape::Lines, &[(0, 0), (SECOND / 2, 5000)]).smoothed(player(SECOND, SECOND));
    assert_eq!((line.len(), line.duration()), (Bytes(5000), MediaTime(1)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_schedule_within_the_bounds_has_a_lower_peak(
        steps in prop::collection::vec((0u64..SECOND, 0u64..100_000), 1..60),
        burst in 0u64..3 * SECOND, more in 1u64..3 * SECOND, late in 0u64..SECOND / 4,
        is_stepped: bool,
    ) {
        let (mut time, mut bytes) = (0, 0);
        let points = steps.iter().map(|&(later, further)| {
            (time, bytes) = (time + later, bytes + further);
            (MediaTime(time), Bytes(bytes))
        });
        let shape = if is_stepped { Shape::Steps } else { Shape::Lines };
        let first = core::iter::once((MediaTime(0), Bytes(0)));
        if let Some(consumption) = Consumption::new(shape, first.chain(points)) {
            let other = consumption.clone().with_lead(MediaTime(burst));
            let other = other.with_resolution(MediaTime(more));
            prop_assert_eq!(Consumption::decode(&other.encode()), Some(other));
            let late = MediaTime(late.min(burst + more - 1));
            judge(&consumption, PlayerBuffer { late, ..player(burst + more, burst) })?;
        }
    }
}

#[test]
fn bytes_behind_a_known_part_are_needed_along_the_line_and_never_later() {
    let known = consumption(Shape::Steps, &[(0, 100), (SECOND, 300), (2 * SECOND, 1_000)]);
    // A second for each thousand bytes, the first of them within the known part.
    let line = consumption(Shape::Lines, &[(0, 0), (10 * SECOND, 10_000)]);
    let joined = known.clone().followed_by(&line);
    assert_eq!((joined.len(), joined.at(SECOND)), (Bytes(10_000), 300));
    for time in (2 * SECOND..=10 * SECOND).step_by(SECOND as usize / 10) {
        let (needed, early) = (line.at(time), line.at(time + JOINED_STEP));
        assert!((needed..=early + 1_000).contains(&joined.at(time)), "{time}");
    }
    assert_eq!(known.clone().followed_by(&known), known, "steps do not follow");
    // What the line has needed before counts at the end of the known part.
    let late = consumption(Shape::Lines, &[(0, 0), (1, 5_000), (10 * SECOND, 10_000)]);
    let joined = known.followed_by(&late);
    assert!(joined.at(2 * SECOND) >= 5_000 && joined.at(2 * SECOND - 1) == 300);
}

#[test]
fn lines_go_on_as_lines() {
    let known = consumption(Shape::Lines, &[(0, 0), (SECOND, 1_000)]);
    let line = consumption(Shape::Lines, &[(0, 0), (SECOND, 1_000), (3 * SECOND, 9_000)]);
    let joined = known.followed_by(&line);
    assert_eq!((joined.points(), joined.at(2 * SECOND)), (3, 5_000));
}

#[test]
fn a_pause_is_one_byte_and_several_of_them_send_no_more_than_one_ahead() {
    let line = |bends: &[(u64, u64)]| {
        let bends: Vec<_> = bends.iter().map(|&(time, bytes)| Point { time, bytes }).collect();
        through(&bends).points().map(|(bytes, time)| (time.0, bytes.0)).collect::<Vec<_>>()
    };
    let next = line(&[(0, 10), (5, 10), (6, 20), (7, 30)]);
    assert_eq!(next, [(0, 0), (0, 10), (5, 11), (6, 20), (7, 30)]);
    let end = line(&[(0, 1), (5, 1), (9, 2)]);
    assert_eq!(end, [(0, 0), (0, 1), (9, 2)], "its byte is all that follows");
    let pauses = line(&[(0, 1), (5, 1), (6, 2), (9, 2), (10, 3), (20, 3), (22, 7)]);
    assert_eq!(pauses, [(0, 0), (0, 1), (6, 2), (10, 3), (20, 4), (22, 7)]);
}

proptest! {
    #[test]
    fn a_joined_consumption_is_smoothed_within_its_bounds(
        known in prop::collection::vec((1u64..SECOND, 1u64..100_000), 1..30),
        rest in prop::collection::vec((1u64..100 * SECOND, 1u64..10_000_000), 1..30),
        held in 0u64..4 * SECOND, burst in 0u64..2 * SECOND,
    ) {
        let ascending = |steps: &[(u64, u64)]| -> Vec<(u64, u64)> {
            let next = |sum: &mut (u64, u64), step: &(u64, u64)| {
                *sum = (sum.0 + step.0, sum.1 + step.1);
                Some(*sum)
            };
            steps.iter().scan((0, 0), next).collect()
        };
        let known = consumption(Shape::Steps, &ascending(&known));
        let lines: Vec<_> = core::iter::once((0, 0)).chain(ascending(&rest)).collect();
        let joined = known.clone().followed_by(&consumption(Shape::Lines, &lines));
        let ascends =
            |pair: &[Point]| pair[0].time < pair[1].time && pair[0].bytes < pair[1].bytes;
        prop_assert!(joined.points.windows(2).all(ascends));
        prop_assert_eq!(joined.len().0, known.len().0.max(lines[lines.len() - 1].1));
        prop_assert!(joined.points() <= known.points() + JOINED_MAX as usize + lines.len() + 1);
        judge(&joined, player(held.max(burst), burst))?;
    }
}

#[test]
fn r03_an_index_behind_the_media_does_not_raise_the_peak() {
    // A minute of a constant rate, and as many bytes as those of ten seconds behind it.
    let steps: Vec<_> = (0..600).map(|nth| (nth * SECOND / 10, (nth + 1) * 10_000)).collect();
    let media = consumption(Shape::Steps, &steps);
    let player = player(2 * SECOND, SECOND);
    let peak = |one: &Consumption| one.smoothed(player).rates().max().unwrap();
    let with_index = media.part(0..7_000_000).unwrap();
    assert_eq!(with_index.len(), Bytes(7_000_000));
    assert!(peak(&with_index).0 <= peak(&media).0 * 102 / 100, "{:?}", peak(&with_index));
}
