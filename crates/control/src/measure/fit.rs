//! Fits a model to measured times: the lowest line above all points.
//!
//! Promise: for every given point, the model's time is at least the point's. A mean through the
//! points would be too low for half of them, and a mean raised until it fits would be too high for
//! most. So the bound follows the outermost points. Floats are used to fit; the model itself is
//! integers, rounded up.

use tactus_core::disk_model::{DiskModel, MilliVisits};
use tactus_core::units::{Bytes, MIB, Nanos};

/// One measured sweep or batch: visits, bytes and time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// Places that were read.
    pub visits: u64,
    /// Bytes in all.
    pub bytes: Bytes,
    /// Time in all.
    pub time: Nanos,
}

/// Throughput at one depth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtDepth {
    /// Requests at the device.
    pub depth: u32,
    /// Wall time per request.
    pub per_request: Nanos,
}

/// The model of a flash disk, from random reads of several sizes at its `depth`.
pub fn flash(reads: &[Point], write_mib: Nanos, depth: u32) -> DiskModel {
    // time per visit = visit + size * per byte
    let per_visit = |p: &Point| {
        let visits = p.visits.max(1) as f64;
        (p.bytes.0 as f64 / visits / MIB as f64, p.time.0 as f64 / visits)
    };
    let points: Vec<_> = reads.iter().map(per_visit).collect();
    let (visit, read_mib) = lowest_line_above(&points);
    let model = DiskModel {
        visit: Nanos(visit.ceil() as u64),
        sweep: Nanos(0),
        read_mib: Nanos(read_mib.max(1.0).ceil() as u64),
        write_mib,
        depth,
        flush: DiskModel::FLASH_FLUSH,
    };
    above(model, reads)
}

/// The measurements of a hard disk.
#[derive(Clone, Copy, Debug)]
pub struct SpinningDisk<'a> {
    /// Mean times of sweeps over different numbers of places.
    pub sweeps: &'a [Point],
    /// A long read of one piece.
    pub long_read: Point,
    /// Standard deviation of visits over one distance, which the rotation causes.
    pub spread: Nanos,
    /// The part of the disk that the sweeps covered: the arm's travel time grows with its square
    /// root.
    pub span_thousandths: u32,
}

/// The model of a hard disk. The sum of n rotations spreads by the root of n, like the arm's travel
/// time: three standard deviations go into the same term.
pub fn spinning(arm: &SpinningDisk, write_mib: Nanos, depth: u32) -> DiskModel {
    let long = arm.long_read;
    let read_mib = long.time.0 as f64 / long.bytes.0.max(1) as f64 * MIB as f64;
    // (time - bytes) / n = visit + sweep / sqrt(n): a line over 1 / sqrt(n).
    let points: Vec<_> = arm
        .sweeps
        .iter()
        .map(|p| {
            let visits = p.visits.max(1) as f64;
            let moving = read_mib * p.bytes.0 as f64 / MIB as f64;
            (1.0 / visits.sqrt(), (p.time.0 as f64 - moving).max(0.0) / visits)
        })
        .collect();
    let (visit, sweep) = lowest_line_above(&points);
    let model = DiskModel {
        visit: Nanos(visit.ceil() as u64),
        sweep: Nanos(sweep.max(SWEEP_MIN).ceil() as u64),
        read_mib: Nanos(read_mib.max(1.0).ceil() as u64),
        write_mib,
        depth,
        flush: DiskModel::ARM_FLUSH,
    };
    let model = above(model, arm.sweeps);
    let whole = (1000.0 / f64::from(arm.span_thousandths.clamp(1, 1000))).sqrt();
    let travel = (model.sweep.0 as f64 * whole).ceil() as u64;
    DiskModel { sweep: Nanos(travel) + arm.spread.times(3), ..model }
}

/// Least sweep term: the time of a hard disk depends on the order, however small the measured
/// difference is.
const SWEEP_MIN: f64 = 1e6;

/// The smallest depth with nearly the full throughput: deeper queues only disturb the order and
/// lengthen the wait of each request.
pub fn depth(measured: &[AtDepth]) -> u32 {
    let best = measured.iter().map(|at| at.per_request).min().unwrap_or_default();
    let enough = best.0 as f64 * NEARLY;
    let fits = measured.iter().filter(|at| at.per_request.0 as f64 <= enough);
    fits.map(|at| at.depth).min().unwrap_or(1)
}

/// Within 8 % of the best: two runs on one disk differ by more.
const NEARLY: f64 = 1.08;

/// Least time of a visit, even if a cache answers: 20 us.
const VISIT_MIN: f64 = 20e3;

/// `(a, b)` of the line `a + b x` that is nowhere below a point and has the least sum of ratios to
/// the points; neither `a` nor `b` is below its minimum. The line runs through two points, or
/// through one point and the least `a`: there are few of each, so all are tried.
fn lowest_line_above(points: &[(f64, f64)]) -> (f64, f64) {
    let through = |p: (f64, f64), q: (f64, f64)| {
        let slope = (q.1 - p.1) / (q.0 - p.0);
        (p.1 - slope * p.0, slope)
    };
    let pairs = points.iter().flat_map(|&p| points.iter().map(move |&q| (p, q)));
    let of_pairs = pairs.filter(|(p, q)| p.0 < q.0).map(|(p, q)| through(p, q));
    let of_one = points.iter().flat_map(|&p| [through((0.0, VISIT_MIN), p), (p.1, 0.0)]);
    let allowed = |&(a, b): &(f64, f64)| {
        // Rounding may put a line slightly below its own point.
        let above = |&(x, y): &(f64, f64)| (a + b * x) * (1.0 + 1e-9) >= y;
        a >= VISIT_MIN && b >= 0.0 && points.iter().all(above)
    };
    let excess = |&(a, b): &(f64, f64)| points.iter().map(|(x, y)| (a + b * x) / y.max(1.0)).sum();
    let candidates = of_pairs.chain(of_one).filter(allowed);
    let ranked = candidates.map(|line| (excess(&line), line));
    let best = ranked.min_by(|p: &(f64, _), q| p.0.total_cmp(&q.0));
    let highest = points.iter().map(|p| p.1).fold(VISIT_MIN, f64::max);
    best.map_or((highest, 0.0), |(_, line)| line)
}

/// Raises all times of a model by one factor, until no point lies above it. Repeats this, because
/// the model's rounding can leave it slightly too low.
fn above(mut model: DiskModel, points: &[Point]) -> DiskModel {
    for _ in 0..RAISES_MAX {
        let short = |p: &Point| {
            let said = model.reading(MilliVisits(p.visits * 1000), p.bytes).0.max(1);
            p.time.0 as f64 / said as f64
        };
        let factor = points.iter().map(short).fold(1.0, f64::max);
        if factor <= 1.0 {
            break;
        }
        let raise = |time: Nanos| Nanos((time.0 as f64 * factor).ceil() as u64);
        model = DiskModel {
            visit: raise(model.visit),
            sweep: raise(model.sweep),
            read_mib: raise(model.read_mib),
            ..model
        };
    }
    model
}

/// Two are enough, except for times of a few nanoseconds.
const RAISES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tactus_core::units::KIB;

    const WRITE: Nanos = Nanos::from_millis(1);

    fn batch(visits: u64, size: u64, time: f64) -> Point {
        Point { visits, bytes: Bytes(visits * size), time: Nanos(time as u64) }
    }

    fn near(found: Nanos, expected: u64) -> bool {
        found.0.abs_diff(expected) <= expected / 20
    }

    #[test]
    fn a_flash_disk_is_recognised() {
        // 60 us a visit and 2 GB/s.
        let time = |size: u64| 60e3 + size as f64 / 2.0;
        let sizes = [64 * KIB, 256 * KIB, MIB, 4 * MIB];
        let reads: Vec<_> =
            sizes.iter().map(|&size| batch(100, size, 100.0 * time(size))).collect();
        let model = flash(&reads, WRITE, 8);
        assert!(near(model.visit, 60_000) && near(model.read_mib, MIB / 2), "{model:?}");
        assert!(!model.has_arm());
    }

    /// The emulated disk of the bench: seek 1.5 ms + 14.5 ms * sqrt(distance), rotation 0 to 8.3
    /// ms, 150 MB/s.
    fn sweep_time(visits: u64, size: u64) -> f64 {
        let n = visits as f64;
        n * (1.5e6 + 4.15e6 + 14.5e6 * (1.0 / n).sqrt() + size as f64 / 0.15)
    }

    fn arm(sweeps: &[Point], spread: Nanos, span_thousandths: u32) -> SpinningDisk<'_> {
        let long_read = Point {
            visits: 1,
            bytes: Bytes(2 * MIB),
            time: Nanos((2.0 * MIB as f64 / 0.15) as u64),
        };
        SpinningDisk { sweeps, long_read, spread, span_thousandths }
    }

    #[test]
    fn a_spinning_disk_is_recognised() {
        let sweeps: Vec<_> =
            [4, 16, 64, 256].iter().map(|&n| batch(n, 64 * KIB, sweep_time(n, 64 * KIB))).collect();
        let model = spinning(&arm(&sweeps, Nanos(0), 1000), WRITE, 2);
        assert!(near(model.visit, 5_650_000), "{model:?}");
        assert!(near(model.sweep, 14_500_000), "{model:?}");
        assert!(near(model.read_mib, 6_990_507), "{model:?}");
        // The rotation of 8.3 ms adds three deviations of 2.4 ms.
        let turning = spinning(&arm(&sweeps, Nanos(2_396_000), 1000), WRITE, 2);
        assert!(near(turning.sweep, 21_690_000), "{turning:?}");
        // Measured on a sixteenth of the disk, the arm travels four times as long on the whole
        // disk.
        let part = spinning(&arm(&sweeps, Nanos(0), 1000 / 16), WRITE, 2);
        assert!(part.sweep.0 > 39 * model.sweep.0 / 10);
    }

    #[test]
    fn one_slow_size_does_not_spoil_the_others() {
        // 64 KiB cost 85 us on a disk that otherwise gives 1 GB/s.
        let sizes = [(64 * KIB, 85e3), (256 * KIB, 262e3), (MIB, 1049e3), (4 * MIB, 4194e3)];
        let reads: Vec<_> = sizes.iter().map(|&(size, time)| batch(1, size, time)).collect();
        let model = flash(&reads, WRITE, 8);
        let said = model.reading(MilliVisits(1000), Bytes(256 * KIB));
        assert!(said < Nanos(300_000), "{model:?} {said}");
    }

    #[test]
    fn the_smallest_depth_that_is_nearly_best_is_chosen() {
        let at = |depth, micros| AtDepth { depth, per_request: Nanos::from_micros(micros) };
        assert_eq!(depth(&[at(1, 400), at(2, 210), at(4, 120), at(8, 101), at(16, 100)]), 8);
        assert_eq!(depth(&[at(1, 100), at(2, 99), at(4, 103)]), 1);
        assert_eq!(depth(&[]), 1);
    }

    proptest! {
        #[test]
        fn no_measured_point_lies_above_the_model(
            points in prop::collection::vec((1u64..500, 1u64..2000, 1u64..10_000_000_000), 1..12),
        ) {
            let points: Vec<_> = points
                .into_iter()
                .map(|(visits, sectors, time)| Point {
                    visits,
                    bytes: Bytes(visits * sectors * 4096),
                    time: Nanos(time),
                })
                .collect();
            let turning = spinning(&arm(&points, Nanos(0), 1000), WRITE, 2);
            for model in [flash(&points, WRITE, 4), turning] {
                for p in &points {
                    let said = model.reading(MilliVisits(p.visits * 1000), p.bytes);
                    prop_assert!(said >= p.time, "{model:?} {p:?} {said}");
                }
            }
        }
    }
}
