//! What the cycle learns about its disk.

use super::*;
use crate::disk_model::Ratio;
use crate::estimator::{Estimate, ModelOrigin};
use alloc::collections::VecDeque;
use core::ops::Range;

/// A cycle on a flash disk that is read through the page cache.
fn by_reference(origin: ModelOrigin, read_mib: Nanos, probe: Option<ProbeLimits>) -> Cycle {
    let model = DiskModel {
        depth: 4,
        visit: Nanos(100_000),
        sweep: Nanos(0),
        read_mib,
        ..DiskModel::SLOWEST
    };
    Cycle::new(CycleLimits {
        length: LENGTH,
        model,
        best_effort_depth: 2,
        jobs_max: 512,
        write_path: WritePathLimits::default(),
        learning: Some(Learning { origin, is_direct: false, probe }),
    })
}

/// Begins a cycle at `now` with this number of blocks in the page cache. `waits` has the length of
/// the wait of each block and the time between the ends of two waits. The kernel reads `ahead`
/// bytes for each block.
fn read(cycle: &mut Cycle, now: MonoTime, blocks: u32, waits: (Nanos, Nanos), ahead: u32) {
    let (waited, apart) = waits;
    cycle.end_cycles(now);
    for place in 0..blocks {
        cycle.add_real_time(job(place, u64::from(place) * MIB, (now + LENGTH).0));
    }
    cycle.commit_cycle(now);
    let mut then = now;
    while let Some((transfer, _)) = cycle.poll_transfer(now) {
        cycle.note_begun(now, false);
        cycle.note_read_ahead(now, ahead);
        let end = Completion { transfer, result: Ok(transfer.len) };
        then += apart;
        assert!(cycle.handle_completion_in_memory(then, end, waited).is_some());
    }
}

fn estimate(cycle: &Cycle) -> Estimate {
    cycle.estimate().expect("it learns")
}

#[test]
fn r11_waits_for_what_is_on_its_way_tell_that_the_disk_is_slow_and_short_ones_nothing() {
    let ratio = |waits, ahead| {
        let mut cycle = by_reference(ModelOrigin::Measured, Nanos(1_000_000), None);
        let mut now = BEGUN;
        for _ in 0..100 {
            read(&mut cycle, now, 40, waits, ahead);
            now += LENGTH;
        }
        estimate(&cycle).ratio
    };
    let within = |thousandths: Range<u32>, ratio: Ratio| thousandths.contains(&ratio.thousandths());
    let (once, usual) = (Nanos::from_micros(5), Nanos::from_micros(900));
    // By the model, a read and those before it in the queue take 4.4 ms; a poll is late by 2 ms.
    let slow = ratio((Nanos::from_millis(24), once), 1);
    assert!(within(2001..4000, slow), "{slow:?}");
    // By the model, 40 MiB that the kernel reads ahead take 44 ms.
    let (mib, each) = (MIB as u32, Nanos::from_millis(6));
    let busy = ratio((each, each), mib);
    assert!(within(4001..5500, busy), "{busy:?}");
    assert_eq!(ratio((Nanos::from_millis(24), once), mib), Ratio::ONE);
    assert_eq!(ratio((usual, once), 1), Ratio::ONE);
}

#[test]
fn r11_a_disk_that_seemed_slow_for_a_moment_is_probed_and_trusted_again() {
    const EACH: u32 = 512 * KIB as u32;
    let probe = ProbeLimits { len: Bytes(1024 * MIB), block: EACH };
    let mut cycle = by_reference(ModelOrigin::Guess, Nanos::from_millis(7), Some(probe));
    let mut now = BEGUN;
    let long = Nanos::from_millis(100);
    for _ in 0..5 {
        read(&mut cycle, now, 10, (long, long), EACH);
        now += LENGTH;
    }
    let seemed = estimate(&cycle).ratio;
    assert!(seemed > Ratio::of_thousandths(10_000), "{seemed:?}");
    // By that ratio, what the kernel reads ahead takes more than all of the time.
    let mut flying = VecDeque::new();
    let mut done = now;
    for _ in 0..60 {
        read(&mut cycle, now, 50, (Nanos(0), Nanos(0)), EACH);
        for _ in 0..1000 {
            while let Some(&(_, read)) = flying.front().filter(|&&(end, _)| end <= now) {
                flying.pop_front();
                cycle.handle_probed(now, read, true);
            }
            while let Some(read) = cycle.poll_probe(now) {
                // Twice as fast as the guess.
                done = done.max(now) + Nanos::from_micros(1_800);
                flying.push_back((done, read));
            }
            now += Nanos::from_millis(1);
        }
    }
    let Estimate { ratio, confidence, .. } = estimate(&cycle);
    assert!(ratio < Ratio::of_thousandths(700) && confidence == 1000, "{ratio:?} {confidence}");
}
