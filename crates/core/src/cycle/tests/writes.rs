//! Uploads, recordings and flushes.

use super::*;
use crate::disk_model::TransferredBytes;
use crate::ports::SyncScope;

const FLOOR: u32 = 50;

fn disk(model: DiskModel, floor_thousandths: u32) -> Cycle {
    let write_path = WritePathLimits { jobs_max: 64, syncs_max: 100, floor_thousandths };
    let model = DiskModel { depth: 4, ..model };
    let (length, best_effort_depth, jobs_max) = (LENGTH, 1, 512);
    let learning = None;
    Cycle::new(CycleLimits { length, model, best_effort_depth, jobs_max, write_path, learning })
}

fn flash() -> DiskModel {
    DiskModel {
        visit: Nanos::from_micros(100),
        sweep: Nanos(0),
        read_mib: Nanos::from_millis(4),
        write_mib: Nanos::from_millis(8),
        depth: 4,
        flush: Nanos::from_millis(5),
    }
}

/// A place of the write share for one MiB of `file`.
fn upload(place: u32, file: i32, offset: u64) -> Job {
    let mut job = job(place, offset, u64::MAX);
    job.transfer.direction = Direction::Write;
    job.transfer.file = FileHandle(file);
    job
}

/// Without an arm each request costs the same.
fn time(model: &DiskModel, transfer: Transfer, goes_on: bool) -> Nanos {
    let visits = MilliVisits(if goes_on && model.has_arm() { 0 } else { 1000 });
    model.moving(visits, moved(transfer.direction, transfer.len))
}

/// Whether a piece begins where the previous one ended.
fn goes_on(before: Option<Transfer>, next: Transfer) -> bool {
    before.is_some_and(|before| {
        let end = before.offset + Bytes(u64::from(before.len));
        (before.direction, before.file, end) == (next.direction, next.file, next.offset)
    })
}

/// A disk that executes one transfer or flush after the other, with the times of the model.
struct Player {
    cycle: Cycle,
    model: DiskModel,
    now: MonoTime,
    last: Option<Transfer>,
}

enum TestEvent {
    Moved(Transfer, Turn, Nanos, Option<JobEnd>),
    Flushed(Vec<u32>),
    Rested,
}

impl Player {
    fn new(model: DiskModel, floor: u32) -> Self {
        Self { cycle: disk(model, floor), model, now: BEGUN, last: None }
    }

    fn step(&mut self) -> TestEvent {
        let mut group = vec![];
        while let Some(sync) = self.cycle.poll_sync(self.now) {
            group.push(sync.token);
        }
        if !group.is_empty() {
            self.now += self.model.flush;
            assert!(self.now <= self.cycle.end_of_cycle(self.now.before(Nanos(1))));
            for _ in &group {
                self.cycle.handle_synced(self.now);
            }
            self.last = None;
            return TestEvent::Flushed(group);
        }
        let Some((transfer, turn)) = self.cycle.poll_transfer(self.now) else {
            // Like the disk server, which polls once a millisecond.
            self.now += Nanos::from_millis(1);
            return TestEvent::Rested;
        };
        // In a sweep of some dozens each way of the arm is short.
        let arm = if turn == Turn::RealTime { self.model.sweep.0 / 8 } else { self.model.sweep.0 };
        let law = DiskModel { sweep: Nanos(arm), ..self.model };
        let took = time(&law, transfer, goes_on(self.last, transfer));
        let end = self.cycle.end_of_cycle(self.now);
        self.now += took;
        self.last = Some(transfer);
        assert!(
            turn == Turn::RealTime || self.now <= end,
            "{turn:?} ran over the end of the cycle"
        );
        TestEvent::Moved(transfer, turn, took, complete(&mut self.cycle, transfer))
    }
}

#[test]
fn an_upload_is_written_in_small_pieces_one_place_after_the_other() {
    let mut cycle = disk(flash(), FLOOR);
    cycle.add_best_effort(upload(3, 9, MIB));
    cycle.add_best_effort(upload(5, 9, 0));
    let all = drain(&mut cycle, BEGUN);
    assert!(all.iter().all(|t| t.direction == Direction::Write && t.len == 128 * KIB as u32));
    let places: Vec<_> = all.iter().map(|t| t.block.place).collect();
    assert_eq!(places, [[3; 8], [5; 8]].concat());
}

#[test]
fn a_place_comes_back_when_its_last_piece_has_landed_with_the_error_of_any() {
    for fails in [None, Some(2)] {
        let mut cycle = disk(flash(), FLOOR);
        cycle.add_best_effort(upload(3, 9, 0));
        // The same place of the other arena is another block.
        cycle.add_best_effort(job(3, 0, 0));
        let mut ended = vec![];
        let mut written = 0;
        while let Some((transfer, _)) = cycle.poll_transfer(BEGUN) {
            written += u32::from(transfer.direction == Direction::Write);
            let is_failing = transfer.direction == Direction::Write && fails == Some(written);
            // A device that takes less than all of it is broken as well.
            let len = if is_failing { transfer.len - 4096 } else { transfer.len };
            ended.extend(cycle.handle_completion(BEGUN, Completion { transfer, result: Ok(len) }));
        }
        let block = BlockRef { place: 3, generation: 1 };
        let result = if fails.is_some() { Err(SHORT_WRITE) } else { Ok(()) };
        assert!(ended.contains(&JobEnd::Written(BlockWriteEnd { block, result })), "{ended:?}");
        assert!(ended.contains(&filled(3)) && ended.len() == 2);
    }
}

#[test]
fn an_upload_never_starts_what_could_end_after_the_cycle() {
    let mut cycle = disk(DiskModel::SLOWEST, FLOOR);
    cycle.add_best_effort(upload(7, 1, 0));
    let written = Bytes(128 * KIB);
    let model = DiskModel::SLOWEST;
    let piece =
        model.moving(MilliVisits(1000), TransferredBytes { written, ..TransferredBytes::NOTHING });
    assert!(cycle.poll_transfer(MonoTime(LENGTH.0 - piece.0 + 1)).is_none());
    assert!(cycle.poll_transfer(MonoTime(LENGTH.0 - piece.0)).is_some());
}

#[test]
fn downloads_and_uploads_share_the_time_left() {
    for model in [flash(), DiskModel::SLOWEST] {
        let mut player = Player::new(model, FLOOR);
        let (mut read, mut written) = (Nanos(0), Nanos(0));
        let mut next = 0;
        for place in 0..3 {
            player.cycle.add_best_effort(job(place, u64::from(place) * MIB, 0));
            player.cycle.add_best_effort(upload(place, 9, u64::from(place) * MIB));
            next = place + 1;
        }
        while player.now < MonoTime(LENGTH.0 * 20) {
            let TestEvent::Moved(transfer, _, took, ended) = player.step() else { continue };
            let sum = if transfer.direction == Direction::Read { &mut read } else { &mut written };
            *sum += took;
            // The next request follows each completion.
            next += 1;
            let position = u64::from(next) * MIB;
            match ended {
                Some(JobEnd::Filled(filled)) => {
                    player.cycle.add_best_effort(job(filled.block.place, position, 0));
                }
                Some(JobEnd::Written(written)) => {
                    player.cycle.add_best_effort(upload(written.block.place, 9, position));
                }
                None => {}
            }
        }
        let (less, more) = (read.min(written), read.max(written));
        assert!(less.0 * 10 >= more.0 * 8, "{read:?} read, {written:?} written");
    }
}

/// MiB of each run, with its file.
fn runs(all: &[Transfer]) -> Vec<(i32, usize)> {
    let files: Vec<_> = all.iter().map(|transfer| transfer.file.0).collect();
    files.chunk_by(|a, b| a == b).map(|run| (run[0], run.len().div_ceil(8))).collect()
}

/// A spinning disk.
fn arm() -> Cycle {
    disk(DiskModel { flush: Nanos(0), ..DiskModel::SLOWEST }, FLOOR)
}

#[test]
fn an_arm_stays_in_one_file_while_its_places_are_queued_in_sequence_but_not_for_ever() {
    let mut cycle = arm();
    // Two uploads with alternating places.
    for place in 0..64 {
        let (file, offset) = (place as i32 % 2, u64::from(place) / 2 * MIB);
        cycle.add_best_effort(upload(place, file, offset));
    }
    // The second is a newcomer when the first has had its turn; then neither is.
    assert_eq!(runs(&drain(&mut cycle, BEGUN)), [(0, 8), (1, 32), (0, 24)]);
    for place in 0..64 {
        let (file, offset) = (place as i32 % 2, (32 + u64::from(place) / 2) * MIB);
        cycle.add_best_effort(upload(place, file, offset));
    }
    assert_eq!(
        runs(&drain(&mut cycle, BEGUN)),
        [(0, 8), (1, 32), (0, 24)],
        "32 of the first in all"
    );
    // On flash runs gain nothing.
    let mut cycle = disk(flash(), FLOOR);
    for place in 0..4 {
        cycle.add_best_effort(upload(place, place as i32 % 2, u64::from(place) / 2 * MIB));
    }
    let places: Vec<_> = drain(&mut cycle, BEGUN).iter().map(|t| t.block.place).collect();
    assert!(places.is_sorted());
}

#[test]
fn a_small_upload_does_not_wait_for_the_long_runs_of_large_ones() {
    let mut cycle = arm();
    for place in 0..60 {
        let (file, offset) = (place as i32 % 3, u64::from(place) / 3 * MIB);
        cycle.add_best_effort(upload(place, file, offset));
    }
    let mut written = vec![];
    while runs(&written) != [(0, 8), (1, 8), (0, 8), (2, 9)] {
        let (transfer, _) = cycle.poll_transfer(BEGUN).expect("they wait");
        complete(&mut cycle, transfer);
        written.push(transfer);
        assert!(written.len() < 60 * 8, "{:?}", runs(&written));
    }
    cycle.add_best_effort(upload(60, 9, 0));
    // Another upload has got the handle of the first one's file.
    cycle.add_best_effort(upload(61, 0, 0));
    let rest = drain(&mut cycle, BEGUN);
    // The third was a newcomer itself, so an older file has its turn first; for no longer than a
    // turn.
    assert_eq!(runs(&rest)[..4], [(2, 1), (1, 8), (9, 1), (0, 1)], "{:?}", runs(&rest));
    assert_eq!(rest[10 * 8 - 1].block.place, 61);
}

#[test]
fn small_uploads_without_end_leave_large_ones_half_of_the_time() {
    let mut player = Player::new(DiskModel::SLOWEST, 0);
    let (mut small, mut large) = (Nanos(0), Nanos(0));
    for place in 0..8 {
        player.cycle.add_best_effort(upload(place, 1, u64::from(place) * MIB));
    }
    let (mut file, mut offset) = (2, 8 * MIB);
    for place in 8..40 {
        file += 1;
        player.cycle.add_best_effort(upload(place, file, 0));
    }
    while player.now < MonoTime(LENGTH.0 * 60) {
        let TestEvent::Moved(transfer, _, took, ended) = player.step() else { continue };
        *(if transfer.file.0 == 1 { &mut large } else { &mut small }) += took;
        let Some(JobEnd::Written(BlockWriteEnd { block, .. })) = ended else { continue };
        if transfer.file.0 == 1 {
            player.cycle.add_best_effort(upload(block.place, 1, offset));
            offset += MIB;
        } else {
            file += 1;
            player.cycle.add_best_effort(upload(block.place, file, 0));
        }
    }
    let (less, more) = (small.min(large), small.max(large));
    assert!(less.0 * 10 >= more.0 * 7, "{small:?} of small ones, {large:?} of a large one");
}

#[test]
fn where_the_way_to_another_file_does_not_fit_into_the_cycle_the_arm_stays() {
    let mut cycle = arm();
    for place in 0..20 {
        cycle.add_best_effort(upload(place, i32::from(place >= 10), u64::from(place % 10) * MIB));
    }
    let late = MonoTime(LENGTH.0 - Nanos::from_millis(20).0);
    for _ in 0..8 * 8 {
        let (transfer, _) = cycle.poll_transfer(BEGUN).expect("the first turn");
        assert_eq!(transfer.file, FileHandle(0));
        complete(&mut cycle, transfer);
    }
    let (transfer, _) = cycle.poll_transfer(late).expect("its tenth fits");
    assert_eq!((transfer.file, transfer.offset), (FileHandle(0), Bytes(8 * MIB)));
    complete(&mut cycle, transfer);
    let next = cycle.poll_transfer(MonoTime(LENGTH.0) + HEAD).expect("the second's turn").0;
    assert_eq!(next.block.place, 8, "a place is written to its end");
}

#[test]
fn more_than_the_depth_is_in_flight_of_one_run_only() {
    let write_path = WritePathLimits { jobs_max: 64, syncs_max: 100, floor_thousandths: 0 };
    let model = DiskModel { depth: 2, ..DiskModel::SLOWEST };
    let limits = CycleLimits {
        length: LENGTH,
        model,
        best_effort_depth: 4,
        jobs_max: 512,
        write_path,
        learning: None,
    };
    assert_eq!(limits.in_flight_max(), 4);
    let started = |jobs: &[Job], real_time: bool| {
        let mut cycle = Cycle::new(limits);
        jobs.iter().for_each(|&job| cycle.add_best_effort(job));
        let first: Vec<_> = (0..2).filter_map(|_| cycle.poll_transfer(BEGUN)).collect();
        assert_eq!(first.len(), 2);
        if real_time {
            cycle.add_real_time(job(9, 0, 0));
            cycle.commit();
        }
        core::iter::from_fn(|| cycle.poll_transfer(BEGUN)).count()
    };
    assert_eq!(started(&[upload(0, 1, 0)], false), 2);
    assert_eq!(started(&[upload(0, 1, 0)], true), 0, "a stream waits");
    let mut small = upload(0, 1, 0);
    small.transfer.len = 128 * KIB as u32;
    assert_eq!(started(&[small, upload(1, 2, 0), upload(2, 3, 0)], false), 2);
    let mut other = upload(1, 2, 0);
    other.transfer.len = 128 * KIB as u32;
    assert_eq!(started(&[small, other, upload(2, 3, 0)], false), 0, "the arm would move");
}

/// Keeps more real-time reads waiting than the disk can do, and uploads beside them. Returns the
/// time of uploads in each cycle, and checks that begun pieces end within it.
fn time_of_uploads_in_a_full_house(model: DiskModel, cycles: u64) -> Vec<u64> {
    let mut player = Player::new(model, FLOOR);
    let mut used = vec![0; cycles as usize + 1];
    for place in 0..8 {
        player.cycle.add_best_effort(upload(place, 9, u64::from(place) * MIB));
    }
    let (mut waiting, mut next) = (0, 0);
    while player.now < MonoTime(LENGTH.0 * cycles) {
        while waiting < 400 {
            // Many new streams, far apart: due after everything else.
            next += 1;
            let place = 8 + next as u32 % 500;
            player.cycle.add_real_time(job(place, next % 97 * 50 * MIB, LENGTH.0 * 1000 + next));
            waiting += 1;
        }
        player.cycle.commit();
        let cycle = (player.now.0 / LENGTH.0) as usize;
        let TestEvent::Moved(transfer, turn, took, ended) = player.step() else { continue };
        if turn == Turn::RealTime {
            waiting -= 1;
        } else {
            used[cycle] += took.0;
        }
        if let Some(JobEnd::Written(written)) = ended {
            let offset = transfer.offset.0 + 128 * KIB;
            player.cycle.add_best_effort(upload(written.block.place, 9, offset + 7 * MIB));
        }
    }
    used
}

#[test]
fn uploads_get_their_floor_over_any_ten_cycles_however_full_they_are() {
    let long_flush = DiskModel { flush: Nanos::from_millis(400), ..flash() };
    for model in [flash(), DiskModel::SLOWEST, long_flush] {
        let used = time_of_uploads_in_a_full_house(model, 60);
        let floor = LENGTH.0 * u64::from(FLOOR) / 1000;
        // A piece is not divided between two cycles.
        let piece = time(&model, upload(0, 0, 0).transfer, true).0 / 8 + model.visit.0;
        for (from, ten) in used[..60].windows(10).enumerate().skip(1) {
            let sum: u64 = ten.iter().sum();
            assert!(sum + piece >= floor * 10, "from cycle {from}: {sum} of {}", floor * 10);
            assert!(sum <= floor * 15, "from cycle {from}: {sum}: streams have paid for more");
        }
    }
}

#[test]
fn all_files_that_wait_for_a_flush_go_together_and_one_group_at_a_time() {
    const MORE: u32 = GROUP_MAX as u32 + 8;
    let mut cycle = disk(flash(), FLOOR);
    let sync = |token| Sync { token, file: FileHandle(token as i32), reach: SyncScope::All };
    let poll_all = |cycle: &mut Cycle, now| -> Vec<u32> {
        core::iter::from_fn(|| cycle.poll_sync(now)).map(|sync| sync.token).collect()
    };
    for token in 0..MORE {
        cycle.add_sync(sync(token));
    }
    let first = poll_all(&mut cycle, BEGUN);
    assert_eq!(first, (0..GROUP_MAX as u32).collect::<Vec<_>>());
    cycle.add_sync(sync(MORE));
    let later = BEGUN + Nanos::from_millis(4);
    assert!(poll_all(&mut cycle, later).is_empty(), "one group at a time");
    for _ in 0..GROUP_MAX {
        cycle.handle_synced(later);
    }
    // Flushes take at most half of the time left over, if other work needs it.
    cycle.add_best_effort(upload(3, 9, 0));
    assert!(poll_all(&mut cycle, later).is_empty());
    assert_eq!(cycle.poll_timeout(later), Some(later + Nanos::from_millis(4)));
    assert_eq!(
        poll_all(&mut cycle, later + Nanos::from_millis(4)),
        (GROUP_MAX as u32..=MORE).collect::<Vec<_>>()
    );
    for _ in GROUP_MAX as u32..=MORE {
        cycle.handle_synced(later + Nanos::from_millis(6));
    }
    drain(&mut cycle, later + Nanos::from_millis(6));
    cycle.add_sync(sync(MORE + 1));
    assert_eq!(
        poll_all(&mut cycle, later + Nanos::from_millis(6)),
        [MORE + 1],
        "nobody else wants it"
    );
}

#[test]
fn what_waits_to_be_written_comes_into_the_first_group_of_a_cycle() {
    let sync = Sync { token: 1, file: FileHandle(1), reach: SyncScope::All };
    let mut cycle = disk(flash(), FLOOR);
    cycle.add_sync(sync);
    cycle.add_best_effort(upload(3, 9, 0));
    assert!(cycle.poll_sync(BEGUN).is_none(), "it would miss the group");
    let pieces: Vec<_> =
        core::iter::from_fn(|| cycle.poll_transfer(BEGUN)).map(|(piece, _)| piece).collect();
    assert!(cycle.poll_sync(BEGUN).is_none(), "they are at the device");
    for piece in pieces {
        complete(&mut cycle, piece);
    }
    drain(&mut cycle, BEGUN + Nanos(1));
    assert!(cycle.poll_sync(BEGUN + Nanos(1)).is_some(), "all of it is written");

    // Not for longer than a flush takes, and only while the group still fits.
    let nearly_late = MonoTime(LENGTH.0).before(flash().flush + Nanos::from_millis(6));
    for (free, most) in [(BEGUN, flash().flush), (nearly_late, Nanos::from_millis(2))] {
        let mut cycle = disk(flash(), 0);
        cycle.add_sync(sync);
        cycle.add_best_effort(upload(3, 9, 0));
        assert!(cycle.poll_sync(free).is_none());
        assert!(cycle.poll_sync(free + most.saturating_sub(Nanos(1))).is_none());
        assert!(cycle.poll_sync(free + most).is_some());
    }
}

#[test]
fn a_flush_begins_only_when_it_fits_into_what_is_left_of_the_cycle() {
    let mut cycle = disk(flash(), FLOOR);
    cycle.add_sync(Sync { token: 1, file: FileHandle(1), reach: SyncScope::All });
    let late = MonoTime(LENGTH.0 - flash().flush.0);
    assert!(cycle.poll_sync(late + Nanos(1)).is_none());
    assert!(cycle.poll_sync(MonoTime(LENGTH.0)).is_none(), "nor in the head of the next one");
    assert!(cycle.poll_sync(late).is_some());
}

#[test]
fn a_flush_waits_for_what_the_kernel_reads_ahead_but_not_beyond_its_place() {
    let sync = Sync { token: 1, file: FileHandle(1), reach: SyncScope::All };
    let each = flash().reading(MilliVisits(1000), Bytes(MIB));
    let mut cycle = disk(flash(), FLOOR);
    cycle.note_read_ahead(BEGUN, MIB as u32);
    cycle.note_read_ahead(BEGUN, MIB as u32);
    cycle.add_sync(sync);
    let over = BEGUN + each.times(2);
    assert!(cycle.poll_sync(over.before(Nanos(1))).is_none());
    assert_eq!(cycle.poll_timeout(BEGUN), Some(over));
    assert!(cycle.poll_sync(over).is_some());

    let mut cycle = disk(flash(), FLOOR);
    (0..5_000).for_each(|_| cycle.note_read_ahead(BEGUN, MIB as u32));
    cycle.add_sync(sync);
    let place = MonoTime(LENGTH.0).before(flash().flush + SLACK.times(2));
    assert!(cycle.poll_sync(place.before(Nanos(1))).is_none());
    assert!(cycle.poll_sync(place).is_some());
}

#[test]
fn no_write_goes_before_the_steps_of_a_flush_for_as_long_as_it_was_planned() {
    let mut cycle = disk(flash(), FLOOR);
    cycle.add_sync(Sync { token: 1, file: FileHandle(1), reach: SyncScope::All });
    assert!(cycle.poll_sync(BEGUN).is_some());
    cycle.add_best_effort(upload(3, 9, 0));
    cycle.add_best_effort(job(3, 0, 0));
    let begun = drain(&mut cycle, BEGUN + Nanos(1));
    assert!(!begun.is_empty() && begun.iter().all(|piece| piece.direction == Direction::Read));
    let planned = BEGUN + flash().flush;
    assert!(cycle.poll_transfer(planned.before(Nanos(1))).is_none());
    // A group that takes longer than planned holds no write back.
    assert!(cycle.poll_transfer(planned).is_some());
}

#[test]
fn one_flush_has_its_place_in_each_cycle_however_full_it_is() {
    let mut player = Player::new(flash(), FLOOR);
    let mut flushed = [0; 10];
    let mut next = 0;
    player.cycle.add_sync(Sync { token: 0, file: FileHandle(0), reach: SyncScope::All });
    let mut waiting = 0;
    while player.now < MonoTime(LENGTH.0 * 10) {
        while waiting < 400 {
            next += 1;
            let place = next as u32 % 500;
            player.cycle.add_real_time(job(place, next % 97 * 50 * MIB, LENGTH.0 * 1000 + next));
            waiting += 1;
        }
        player.cycle.commit();
        let cycle = (player.now.0 / LENGTH.0) as usize;
        match player.step() {
            TestEvent::Flushed(tokens) => {
                flushed[cycle] += 1;
                for token in tokens {
                    player.cycle.add_sync(Sync {
                        token: token + 1,
                        file: FileHandle(0),
                        reach: SyncScope::All,
                    });
                }
            }
            TestEvent::Moved(..) => waiting -= 1,
            TestEvent::Rested => {}
        }
    }
    assert_eq!(flushed, [1; 10]);
}

#[test]
fn what_the_floor_has_written_is_flushed_in_the_same_cycle_however_full_it_is() {
    let mut player = Player::new(flash(), FLOOR);
    let (mut waiting, mut next, mut flushed) = (0, 0, vec![]);
    player.cycle.add_best_effort(upload(0, 9, 0));
    while player.now < MonoTime(LENGTH.0 * 10) {
        while waiting < 400 {
            next += 1;
            let place = 1 + next as u32 % 500;
            player.cycle.add_real_time(job(place, next % 97 * 50 * MIB, LENGTH.0 * 1000 + next));
            waiting += 1;
        }
        player.cycle.commit();
        let event = player.step();
        let cycle = (player.now.0 - 1) / LENGTH.0;
        match event {
            TestEvent::Flushed(tokens) => {
                assert_eq!(tokens, [cycle as u32], "it was written in this cycle");
                flushed.push(cycle);
                player.cycle.add_best_effort(upload(0, 9, 0));
            }
            TestEvent::Moved(_, Turn::RealTime, ..) => waiting -= 1,
            TestEvent::Moved(.., Some(JobEnd::Written(_))) => player.cycle.add_sync(Sync {
                token: cycle as u32,
                file: FileHandle(9),
                reach: SyncScope::All,
            }),
            TestEvent::Moved(..) | TestEvent::Rested => {}
        }
    }
    assert_eq!(flushed, (0..10).collect::<Vec<_>>());
}

#[test]
fn a_recording_is_written_in_the_sweep_of_the_next_cycle() {
    let mut cycle = disk(DiskModel::SLOWEST, FLOOR);
    let record = |place, position| Job {
        position,
        deadline: MonoTime(LENGTH.0 * 4),
        ..upload(place, 1, position)
    };
    cycle.add_recording(BEGUN, record(1, 50 * MIB));
    let mut small = job(9, 0, 0);
    small.transfer.len = 4096;
    cycle.add_best_effort(small);
    let (first, turn) = cycle.poll_transfer(BEGUN).expect("its cycle has not begun");
    assert!(turn == Turn::BestEffort && first.block.place == 9);
    complete(&mut cycle, first);
    let begin = MonoTime(LENGTH.0);
    assert!(cycle.poll_transfer(begin).is_none(), "the running streams have not asked");
    cycle.add_real_time(job(2, 90 * MIB, LENGTH.0 * 3));
    cycle.add_real_time(job(3, 10 * MIB, LENGTH.0 * 3));
    cycle.commit_cycle(begin + Nanos(5));
    let sweep: Vec<_> = (0..3)
        .map(|_| {
            let (transfer, turn) = cycle.poll_transfer(begin + Nanos(5)).unwrap();
            complete(&mut cycle, transfer);
            assert_eq!(turn, Turn::RealTime);
            transfer.offset.0 / MIB
        })
        .collect();
    assert_eq!(sweep, [10, 50, 90]);
    // A recording that comes in the head of the next cycle does not delay earlier ones.
    cycle.add_recording(begin + HEAD, record(5, 0));
    cycle.add_recording(begin + LENGTH + Nanos(1), record(6, 0));
    let next = begin + LENGTH + HEAD;
    let (transfer, turn) = cycle.poll_transfer(next).unwrap();
    assert_eq!((transfer.block.place, turn), (5, Turn::RealTime));
    complete(&mut cycle, transfer);
    let (transfer, _) = cycle.poll_transfer(next + LENGTH).unwrap();
    assert_eq!(transfer.block.place, 6);
    complete(&mut cycle, transfer);
    let begin = begin + LENGTH.times(2);
    // Without running streams, it goes after the head.
    cycle.add_recording(begin + HEAD, record(4, 0));
    let next = begin + LENGTH + HEAD;
    assert_eq!(cycle.poll_timeout(begin + HEAD), Some(next));
    assert_eq!(
        cycle.poll_transfer(next).map(|(t, turn)| (t.block.place, turn)),
        Some((4, Turn::RealTime))
    );
}
