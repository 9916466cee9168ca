//! The cycle against its promises.

mod learning;
mod writes;

use super::*;
use crate::ports::{Direction, FileHandle};
use crate::units::{Bytes, KIB, MIB};
use alloc::vec;
use proptest::prelude::*;

const LENGTH: Nanos = Nanos::from_millis(1000);
/// The head of the first cycle is over.
const BEGUN: MonoTime = MonoTime(HEAD.0);

fn spinning(depth: u32) -> Cycle {
    Cycle::new(CycleLimits {
        length: LENGTH,
        model: DiskModel { depth, ..DiskModel::SLOWEST },
        best_effort_depth: 2,
        jobs_max: 512,
        write_path: WritePathLimits { jobs_max: 64, syncs_max: 100, floor_thousandths: 0 },
        learning: None,
    })
}

fn job(place: u32, position: u64, deadline: u64) -> Job {
    let block = BlockRef { place, generation: 1 };
    let (offset, len) = (Bytes(position), MIB as u32);
    let (direction, file) = (Direction::Read, FileHandle(1));
    let transfer = Transfer::new(direction, block, file, offset, len);
    Job { transfer, deadline: MonoTime(deadline), position }
}

fn complete(cycle: &mut Cycle, transfer: Transfer) -> Option<JobEnd> {
    cycle.handle_completion(BEGUN, Completion { transfer, result: Ok(transfer.len) })
}

fn filled(place: u32) -> JobEnd {
    let block = BlockRef { place, generation: 1 };
    JobEnd::Filled(BlockReadEnd { block, result: Ok(MIB as u32) })
}

/// Runs every transfer that may start at `now` to its end, one at a time.
fn drain(cycle: &mut Cycle, now: MonoTime) -> Vec<Transfer> {
    let mut all = vec![];
    while let Some((transfer, _)) = cycle.poll_transfer(now) {
        all.push(transfer);
        complete(cycle, transfer);
    }
    all
}

#[test]
fn real_time_transfers_go_in_the_order_of_places() {
    let mut cycle = spinning(2);
    for (place, position) in [(0, 50), (1, 10), (2, 90), (3, 30)] {
        cycle.add_real_time(job(place, position * MIB, 0));
    }
    cycle.commit();
    let places: Vec<_> = drain(&mut cycle, BEGUN).iter().map(|t| t.offset.0 / MIB).collect();
    assert_eq!(places, [10, 30, 50, 90]);
}

/// The number of 200 jobs in the first sweep; they are `gap` apart and the last is the most urgent.
fn first_sweep(gap: u64, begin: MonoTime, asked: bool) -> usize {
    let mut cycle = spinning(1);
    for place in 0..200 {
        cycle.add_real_time(job(place, u64::from(place) * gap, 1000 - u64::from(place)));
    }
    if asked {
        cycle.commit_cycle(begin);
    } else {
        cycle.commit();
    }
    let order: Vec<_> = drain(&mut cycle, begin).iter().map(|t| t.block.place).collect();
    assert_eq!(order.len(), 200);
    let count = order.iter().position(|&place| place == 199).unwrap() + 1;
    assert_eq!(order[0] as usize, 200 - count, "the most urgent, the lowest place first");
    assert!(order[..count].is_sorted());
    count
}

#[test]
fn when_a_cycle_cannot_read_everything_the_most_urgent_go_first() {
    // One visit of 6 + 24 ms and 13 ms for each MiB: 74 fill a second.
    assert_eq!(first_sweep(MIB, MonoTime(0), true), 74);
    // A visit for each: n * 19 + sqrt(n) * 24 ms, for 44 of them 995 ms.
    assert_eq!(first_sweep(2 * MIB, MonoTime(0), true), 44);
}

#[test]
fn a_sweep_ends_with_its_cycle() {
    // 100 ms are left: n * 19 + sqrt(n) * 24 ms, for 3 of them 98.6 ms.
    assert_eq!(first_sweep(2 * MIB, MonoTime(LENGTH.0 - 100_000_000), true), 3);
    // At least one read continues, however little time is left.
    assert_eq!(first_sweep(2 * MIB, MonoTime(LENGTH.0 - 1), true), 1);
}

#[test]
fn what_the_last_cycle_left_does_not_fill_the_new_one_before_its_own_requests_have_come() {
    assert_eq!(first_sweep(2 * MIB, MonoTime(LENGTH.0), false), 1);
    assert_eq!(first_sweep(2 * MIB, MonoTime(LENGTH.0), true), 44);
    // Wants may be absent: there may be no running streams.
    assert_eq!(first_sweep(2 * MIB, MonoTime(LENGTH.0) + HEAD, false), 43);
}

#[test]
fn parts_of_a_cycles_requests_are_one_sweep_and_wait_no_longer_than_its_head() {
    let begin = MonoTime(LENGTH.0);
    let parts = |of_second: Option<MonoTime>| {
        let mut cycle = spinning(1);
        for (place, position) in [(0, 50), (1, 10)] {
            cycle.add_real_time(job(place, position * MIB, 0));
        }
        cycle.commit_part();
        assert_eq!(cycle.poll_transfer(begin), None, "the other part is on its way");
        assert_eq!(cycle.poll_timeout(begin), Some(begin + HEAD));
        let mut now = begin + HEAD;
        if let Some(at) = of_second {
            cycle.add_real_time(job(2, 30 * MIB, 0));
            cycle.commit_cycle(at);
            now = at;
        }
        let places: Vec<_> = drain(&mut cycle, now).iter().map(|t| t.offset.0 / MIB).collect();
        assert_eq!(cycle.poll_transfer(now), None);
        places
    };
    assert_eq!(parts(Some(begin + Nanos::from_millis(1))), [10, 30, 50]);
    assert_eq!(parts(None), [10, 50]);
}

#[test]
fn the_device_never_holds_more_than_the_depth() {
    let mut cycle = spinning(3);
    for place in 0..10 {
        cycle.add_real_time(job(place, 0, 0));
        cycle.add_best_effort(job(100 + place, 0, 0));
    }
    cycle.commit();
    let started: Vec<Transfer> =
        core::iter::from_fn(|| cycle.poll_transfer(BEGUN)).map(|(t, _)| t).collect();
    assert_eq!(started.len(), 3);
    complete(&mut cycle, started[1]);
    assert!(cycle.poll_transfer(BEGUN).is_some());
    assert!(cycle.poll_transfer(BEGUN).is_none());
}

#[test]
fn best_effort_waits_for_real_time_and_comes_in_small_pieces() {
    let mut cycle = spinning(8);
    cycle.add_best_effort(job(7, 0, 0));
    cycle.add_real_time(job(1, 5 * MIB, 0));
    cycle.commit();
    let all = drain(&mut cycle, BEGUN);
    assert_eq!(all[0].block.place, 1);
    assert_eq!(all[1..].iter().map(|t| t.len).sum::<u32>(), MIB as u32);
    assert!(all[1..].iter().all(|t| t.block.place == 7 && t.len <= 128 * KIB as u32));
}

#[test]
fn best_effort_never_starts_what_could_end_after_the_cycle() {
    let mut cycle = spinning(8);
    cycle.add_best_effort(job(7, 0, 0));
    let piece = DiskModel::SLOWEST.reading(MilliVisits(1000), Bytes(128 * KIB));
    let late = MonoTime(LENGTH.0 - piece.0 + 1);
    assert!(cycle.poll_transfer(late).is_none());
    assert!(cycle.poll_transfer(MonoTime(LENGTH.0 - piece.0)).is_some());
    // One is in flight: the second would have to end after it.
    assert!(cycle.poll_transfer(MonoTime(LENGTH.0 - piece.0)).is_none());
    assert!(cycle.poll_transfer(MonoTime(LENGTH.0) + HEAD).is_some());
}

#[test]
fn best_effort_lets_the_real_time_jobs_of_a_new_cycle_arrive_first() {
    let mut cycle = spinning(8);
    cycle.add_best_effort(job(7, 0, 0));
    let begin = MonoTime(LENGTH.0);
    assert!(cycle.poll_transfer(begin).is_none());
    assert_eq!(cycle.poll_timeout(begin), Some(begin + HEAD));
    cycle.add_real_time(job(1, 5 * MIB, 0));
    cycle.commit();
    let (first, turn) = cycle.poll_transfer(begin + Nanos(1)).unwrap();
    assert!(turn == Turn::RealTime && first.block.place == 1);
    assert!(cycle.poll_transfer(begin + HEAD).is_some_and(|(_, turn)| turn == Turn::BestEffort));
    assert_eq!(cycle.poll_timeout(begin + HEAD), Some(begin + LENGTH + HEAD));
}

#[test]
fn a_block_is_filled_once_when_its_last_piece_is_in_whatever_the_order() {
    let mut cycle = spinning(8);
    cycle.add_best_effort(job(7, 0, 0));
    let mut ended = vec![];
    let mut flying = vec![];
    loop {
        while let Some((transfer, _)) = cycle.poll_transfer(BEGUN) {
            flying.push(transfer);
        }
        let Some(transfer) = flying.pop() else { break };
        ended.extend(complete(&mut cycle, transfer));
    }
    assert_eq!(ended, [filled(7)]);
    assert_eq!(cycle.in_flight(), 0);
}

#[test]
fn what_is_in_memory_takes_no_place_at_the_device_and_its_end_waits_for_half_of_its_time() {
    let due = BEGUN + LENGTH;
    let begun = |more: &dyn Fn(&mut Cycle)| {
        let mut cycle = spinning(2);
        for (place, deadline) in [due + Nanos(5), due, due + Nanos(9)].into_iter().enumerate() {
            cycle.add_real_time(job(place as u32, place as u64 * MIB, deadline.0));
        }
        cycle.commit();
        for _ in 0..3 {
            assert!(cycle.poll_transfer(BEGUN).is_some(), "deeper than the queue");
            cycle.note_begun(BEGUN, false);
        }
        assert_eq!((cycle.in_flight(), cycle.at_device()), (3, 0));
        more(&mut cycle);
        while cycle.poll_transfer(BEGUN).is_some() {}
        cycle.patience(BEGUN)
    };
    assert_eq!(begun(&|_| ()), Nanos(LENGTH.0 / 2));
    let read = job(7, 0, due.0);
    let at_device = begun(&|cycle| {
        cycle.add_real_time(read);
        cycle.commit();
    });
    assert_eq!(at_device, Nanos(0));
    assert_eq!(begun(&|cycle| cycle.add_best_effort(read)), Nanos(0));
    assert_eq!(begun(&|cycle| cycle.add_real_time(read)), Nanos(0), "it waits for its round");
}

#[test]
fn the_first_byte_of_a_new_stream_is_found_at_once_and_no_more_is_begun_than_has_room() {
    let mut cycle = spinning(2);
    for place in 0..=IN_MEMORY_MAX {
        cycle.add_real_time(job(place, u64::from(place) * MIB, (BEGUN + JOIN).0));
    }
    cycle.commit();
    for _ in 0..IN_MEMORY_MAX {
        assert!(cycle.poll_transfer(BEGUN).is_some());
        cycle.note_begun(BEGUN, false);
    }
    assert!(cycle.poll_transfer(BEGUN).is_none());
    assert_eq!(cycle.patience(BEGUN), Nanos(0));
    let begun = job(0, 0, 0).transfer;
    let end = Completion { transfer: begun, result: Ok(begun.len) };
    assert!(cycle.handle_completion_in_memory(BEGUN, end, Nanos(0)).is_some());
    assert!(cycle.poll_transfer(BEGUN).is_some());
}

#[test]
fn one_failed_piece_fails_the_block() {
    let mut cycle = spinning(8);
    cycle.add_best_effort(job(7, 0, 0));
    let mut results = vec![];
    let mut first = true;
    while let Some((transfer, _)) = cycle.poll_transfer(BEGUN) {
        let result = if first { Err(DiskFault(5)) } else { Ok(transfer.len) };
        first = false;
        results.extend(cycle.handle_completion(BEGUN, Completion { transfer, result }));
    }
    let block = BlockRef { place: 7, generation: 1 };
    assert_eq!(
        results,
        [JobEnd::Filled(BlockReadEnd { block, result: Err(BlockReadError::Fault(DiskFault(5))) })]
    );
}

#[test]
fn a_promoted_block_no_longer_waits_for_free_time() {
    let mut cycle = spinning(1);
    cycle.add_best_effort(job(6, 0, 0));
    cycle.add_best_effort(job(7, MIB, 0));
    cycle.promote(BlockRef { place: 7, generation: 1 }, MonoTime(9));
    cycle.commit();
    assert_eq!(drain(&mut cycle, BEGUN)[0].block.place, 7);
}

#[test]
fn a_block_promoted_while_it_is_cut_is_read_once_and_in_full() {
    // Before its first piece, after it, and after the second with the first still under way.
    for begun in 0..3 {
        let mut cycle = spinning(8);
        cycle.add_best_effort(job(7, 0, 0));
        cycle.add_best_effort(job(8, MIB, 0));
        let late = MonoTime(LENGTH.0 - 1);
        assert!(cycle.poll_transfer(late).is_none(), "it was looked at, but could not begin");
        let mut flying: Vec<_> = (0..begun).filter_map(|_| cycle.poll_transfer(BEGUN)).collect();
        cycle.promote(BlockRef { place: 7, generation: 1 }, MonoTime(9));
        cycle.commit();
        let (next, turn) = cycle.poll_transfer(late).unwrap();
        assert!(turn == Turn::RealTime && next.block.place == 7);
        flying.push((next, turn));
        assert_eq!(flying.iter().map(|(t, _)| t.len).sum::<u32>(), MIB as u32);
        let ended: Vec<_> =
            flying.into_iter().filter_map(|(t, _)| complete(&mut cycle, t)).collect();
        assert_eq!(ended, [filled(7)]);
        let rest = drain(&mut cycle, BEGUN);
        assert!(rest.len() == 8 && rest.iter().all(|t| t.block.place == 8));
        assert_eq!(cycle.best_effort.in_flight(), 0);
    }
}

#[test]
fn a_block_that_the_last_cycle_left_behind_is_overdue() {
    let mut cycle = spinning(1);
    cycle.add_real_time(job(0, 0, LENGTH.0 * 2));
    assert!(!cycle.is_overdue(MonoTime(LENGTH.0)));
    assert!(cycle.is_overdue(MonoTime(LENGTH.0 + 1)));
}

#[test]
fn a_forgotten_job_that_was_not_begun_is_answered_at_once_and_never_read() {
    let at = |place| BlockRef { place, generation: 1 };
    let dropped = |place| {
        Some(JobEnd::Filled(BlockReadEnd {
            block: at(place),
            result: Err(BlockReadError::Dropped),
        }))
    };
    let mut cycle = spinning(1);
    for place in 0..3 {
        cycle.add_real_time(job(place, u64::from(place) * MIB, 0));
    }
    assert_eq!(cycle.forget(at(1)), dropped(1));
    cycle.commit();
    let (first, _) = cycle.poll_transfer(BEGUN).unwrap();
    assert_eq!(cycle.forget(at(0)), None, "it is at the device");
    assert_eq!(cycle.forget(at(2)), dropped(2), "it was in the sweep");
    assert_eq!(complete(&mut cycle, first), Some(filled(0)));
    cycle.add_best_effort(job(7, 0, 0));
    assert!(cycle.poll_transfer(MonoTime(LENGTH.0 - 1)).is_none(), "looked at, not begun");
    assert_eq!(cycle.forget(at(7)), dropped(7));
    assert_eq!(cycle.forget(at(7)), None, "it is answered once");
    assert!(drain(&mut cycle, BEGUN).is_empty() && cycle.poll_timeout(BEGUN).is_none());
}

#[test]
fn a_forgotten_job_that_is_being_cut_is_answered_by_the_last_piece_that_was_begun() {
    for (promoted, landed) in [(false, 0), (false, 1), (false, 2), (true, 0), (true, 2)] {
        let mut cycle = spinning(8);
        cycle.add_best_effort(job(7, 0, 0));
        let block = BlockRef { place: 7, generation: 1 };
        let mut flying: Vec<_> = (0..2).filter_map(|_| cycle.poll_transfer(BEGUN)).collect();
        for (piece, _) in flying.drain(..landed) {
            assert_eq!(complete(&mut cycle, piece), None);
        }
        if promoted {
            cycle.promote(block, MonoTime(9));
        }
        let mut answers: Vec<_> = cycle.forget(block).into_iter().collect();
        assert_eq!(answers.len(), usize::from(flying.is_empty()));
        answers.extend(flying.into_iter().filter_map(|(piece, _)| complete(&mut cycle, piece)));
        assert_eq!(
            answers,
            [JobEnd::Filled(BlockReadEnd { block, result: Err(BlockReadError::Dropped) })]
        );
        assert!(drain(&mut cycle, BEGUN).is_empty() && cycle.in_flight() == 0);
    }
}

/// A disk with a cycle of four seconds, and the clock that its model gives it.
struct ModelDisk {
    cycle: Cycle,
    now: MonoTime,
    /// Where the last transfer ended.
    arm: u64,
}

impl ModelDisk {
    const MODEL: DiskModel = DiskModel { depth: 1, ..DiskModel::SLOWEST };
    /// The longest way of the arm.
    const STROKE: u64 = 4096 * MIB;

    /// With `count` blocks of running streams, spread over the whole disk.
    fn running(count: u32) -> Self {
        let mut cycle = Cycle::new(CycleLimits {
            length: SECOND.times(4),
            model: Self::MODEL,
            best_effort_depth: 1,
            jobs_max: 2048,
            write_path: WritePathLimits::default(),
            learning: None,
        });
        let apart = Self::STROKE / u64::from(count) / MIB * MIB;
        for place in 0..count {
            cycle.add_real_time(job(place, u64::from(place) * apart, SECOND.0 * 8));
        }
        cycle.commit_cycle(MonoTime(0));
        Self { cycle, now: BEGUN, arm: 0 }
    }

    /// Adds the first blocks of a new stream, adjacent ones from `at` on.
    fn begin(&mut self, place: u32, blocks: u32, at: u64) {
        let deadline = self.now + JOIN;
        for number in 0..blocks {
            let position = at + u64::from(number) * MIB;
            self.cycle.add_real_time(job(place + number, position, deadline.0));
        }
        self.cycle.commit();
    }

    /// Does the next transfer, which takes the time of the model, scaled. The time of the arm grows
    /// with the root of its way.
    fn step(&mut self, percent: u64) -> Option<u32> {
        let (transfer, _) = self.cycle.poll_transfer(self.now)?;
        let way = self.arm.abs_diff(transfer.offset.0);
        let share = (way * 1_000_000 / Self::STROKE).isqrt();
        let arm = Nanos(Self::MODEL.sweep.0 * share / 1000);
        let visits = MilliVisits(if way == 0 { 0 } else { 1000 });
        let model = DiskModel { sweep: Nanos(0), ..Self::MODEL };
        let time = model.reading(visits, Bytes(u64::from(transfer.len))) + arm;
        self.now += Nanos(time.0 * percent / 100);
        self.arm = transfer.offset.0 + u64::from(transfer.len);
        complete(&mut self.cycle, transfer);
        Some(transfer.block.place)
    }
}

#[test]
fn r08_a_new_stream_does_not_wait_for_the_end_of_a_sweep() {
    // 100 blocks take 2.14 s: half of the cycle is free.
    let mut disk = ModelDisk::running(100);
    for place in 0..10 {
        assert_eq!(disk.step(100), Some(place));
    }
    disk.begin(1000, 8, 700 * MIB);
    disk.begin(1100, 8, 50 * MIB);
    let order: Vec<_> = core::iter::from_fn(|| disk.step(100)).collect();
    let firsts: Vec<_> = (1100..1108).chain(1000..1008).collect();
    assert_eq!(order[..16], firsts, "both at once, the lower place first");
    assert_eq!(order[16..], (10..100).collect::<Vec<_>>(), "then the sweep continues");
}

#[test]
fn r08_a_new_stream_waits_if_the_sweep_would_end_after_its_cycle() {
    // 190 blocks take 3.96 s by the model.
    let mut disk = ModelDisk::running(190);
    assert_eq!(disk.step(100), Some(0));
    disk.begin(1000, 4, 700 * MIB);
    // A disk that is faster than its model gains the time after a while.
    let order: Vec<_> = core::iter::from_fn(|| disk.step(80)).collect();
    let at = order.iter().position(|&place| place == 1000).expect("it is read");
    assert!((20..150).contains(&at), "{at}");
    assert_eq!(order[at..at + 4], [1000, 1001, 1002, 1003]);
    assert!(disk.now < MonoTime(SECOND.0 * 4));
}

#[test]
fn r08_new_streams_begin_in_the_order_in_which_they_came() {
    let mut disk = ModelDisk::running(150);
    assert_eq!(disk.step(100), Some(0));
    // 40 blocks fit, 100 do not.
    disk.begin(1000, 100, 700 * MIB);
    disk.now += Nanos(1);
    disk.begin(1500, 4, 100 * MIB);
    let order: Vec<_> = core::iter::from_fn(|| disk.step(100)).collect();
    let at = |place| order.iter().position(|&read| read == place).expect("it is read");
    assert!(at(1000) < at(1500) && at(149) < at(1000), "{order:?}");
}

#[test]
fn r08_new_streams_whose_blocks_lie_between_each_other_begin_one_after_the_other() {
    // 155 blocks take 3.24 s: in the order of positions, a visit for each block, two do not fit.
    let mut disk = ModelDisk::running(155);
    assert_eq!(disk.step(100), Some(0));
    disk.begin(1000, 20, 3000 * MIB);
    disk.now += Nanos(1);
    disk.begin(1100, 20, 3000 * MIB);
    let order: Vec<_> = core::iter::from_fn(|| disk.step(100)).collect();
    let new: Vec<_> = order.iter().copied().filter(|&place| place >= 1000).collect();
    assert_eq!(new, (1000..1020).chain(1100..1120).collect::<Vec<_>>());
    assert_eq!(order[..20], new[..20], "the one that came first at once");
}

proptest! {
    #[test]
    fn r08_new_streams_never_move_a_sweep_beyond_the_end_of_its_cycle(
        running in 1u32..170,
        starts in prop::collection::vec((0u32..170, 1u32..30, 0u64..4060), 0..12),
    ) {
        let mut disk = ModelDisk::running(running);
        let (mut steps, mut at, mut left) = (0, 1000, running);
        while left > 0 {
            for &(_, blocks, position) in starts.iter().filter(|start| start.0 == steps) {
                disk.begin(at, blocks, position * MIB);
                at += blocks;
            }
            let place = disk.step(100);
            prop_assert!(place.is_some(), "{} of the running streams are left", left);
            left -= u32::from(place.is_some_and(|place| place < 1000));
            steps += 1;
        }
        prop_assert!(disk.now <= MonoTime(SECOND.0 * 4), "{:?}", disk.now);
    }
}
