//! Best-effort time: reads and writes in small pieces and fair turns.
//!
//! Promise: if reads and writes both wait, they get equal disk time, whatever their costs. The
//! pieces of a block follow each other. On a spinning disk, a run in one file continues while
//! waiting jobs continue where the last piece ended: for [`TURN`] if a job of a newcomer waits,
//! otherwise for [`RUN_MAX`]. This module does not decide when a piece may begin.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{CycleLimits, Job};
use crate::disk_model::{DiskModel, MilliVisits, TransferredBytes};
use crate::ports::{BlockRef, Direction, FileHandle, Transfer};
use crate::split::Pieces;
use crate::units::{Bytes, MIB, Nanos};

/// Limit of a run if the other direction or a newcomer waits. The two seeks of 30 ms then cost a
/// spinning disk half of its time, and a wait grows by at most a tenth of a second.
const TURN: Bytes = Bytes(8 * MIB);

/// Limit of a run if only jobs wait that have had a turn. They take long anyway: with eight of them
/// and turns of 8 MiB, seeks took a seventh of the time of uploads; with this limit they take a
/// twentieth.
const RUN_MAX: Bytes = Bytes(32 * MIB);

/// Limit of the files remembered to have had a turn. Long uploads are few; if they are more, some
/// count as newcomers again.
const SERVED_MAX: usize = 16;

/// Both queues and the order of turns.
pub(super) struct BestEffortQueue {
    model: DiskModel,
    reads: DirectionQueue,
    writes: DirectionQueue,
    /// End of the last piece, unless another transfer has moved the arm.
    run: Option<Run>,
    /// Pieces at the device, and the disk time of each by the model.
    flying: Vec<(Transfer, Nanos)>,
}

/// A piece that may go next.
#[derive(Clone, Copy)]
pub(super) struct NextPiece {
    pub(super) piece: Transfer,
    /// Index of the waiting job that it begins; `None` for the job being cut.
    at: Option<usize>,
    /// It begins where the last one ended.
    pub(super) goes_on: bool,
    /// Disk time by the model.
    pub(super) cost: Nanos,
}

/// A piece that goes to the device.
pub(super) struct StartedJob {
    pub(super) piece: Transfer,
    /// It is the last of its block.
    pub(super) is_last: bool,
}

/// One direction.
struct DirectionQueue {
    queue: VecDeque<Job>,
    /// The job being cut into pieces.
    cutting: Option<Cutting>,
    /// Disk time used, by the model; see `BestEffortQueue::push`.
    used: Nanos,
    /// Files that have had a turn, and the end of that turn.
    served: VecDeque<(FileHandle, Bytes)>,
    /// Disk time used by newcomers since the last turn of such a file.
    favoured: Nanos,
}

struct Cutting {
    job: Job,
    pieces: Pieces,
}

#[derive(Clone, Copy)]
struct Run {
    direction: Direction,
    file: FileHandle,
    end: Bytes,
    len: Bytes,
    /// It belongs to a newcomer.
    is_new: bool,
}

impl BestEffortQueue {
    pub(super) fn new(limits: &CycleLimits) -> Self {
        Self {
            model: limits.model,
            reads: DirectionQueue::new(limits.jobs_max),
            writes: DirectionQueue::new(limits.write_path.jobs_max),
            run: None,
            flying: Vec::with_capacity(limits.in_flight_max() as usize),
        }
    }

    pub(super) fn set_model(&mut self, model: DiskModel) {
        self.model = model;
    }

    pub(super) fn push(&mut self, job: Job) {
        let direction = job.transfer.direction;
        let other = self.lane(direction.other()).used;
        let lane = self.lane_mut(direction);
        if lane.is_empty() {
            // An idle direction has no claim to the time that passed meanwhile.
            lane.used = lane.used.max(other);
        }
        assert!(lane.queue.len() < lane.queue.capacity(), "a job has a place in its arena");
        lane.queue.push_back(job);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    /// Whether writes wait or are at the device.
    pub(super) fn has_writes(&self) -> bool {
        let is_write = |&(piece, _): &(Transfer, Nanos)| piece.direction == Direction::Write;
        !self.writes.is_empty() || self.flying.iter().any(is_write)
    }

    /// Whether no write waits, and no write in progress would miss a flush that begins now.
    pub(super) fn is_written(&self) -> bool {
        let is_write = |&(piece, _): &(Transfer, Nanos)| piece.direction == Direction::Write;
        self.is_empty() && !self.flying.iter().any(is_write)
    }

    /// The piece of the current turn.
    pub(super) fn next(&self) -> Option<NextPiece> {
        let [first, second] = match self.is_turn_of_writes() {
            true => [Direction::Write, Direction::Read],
            false => [Direction::Read, Direction::Write],
        };
        self.next_of(first).or_else(|| self.next_of(second))
    }

    /// The piece that continues where the last one ended, whatever else waits.
    pub(super) fn further(&self) -> Option<NextPiece> {
        let lane = self.lane(self.run?.direction);
        let at = lane.queue.iter().position(|job| self.goes_on(&job.transfer));
        let begun = lane.cutting.is_none().then_some(at).flatten();
        let piece = Pieces::of(lane.queue.get(begun?)?.transfer).peek()?;
        Some(self.looked_at(piece, begun)).filter(|_| self.model.has_arm())
    }

    /// The next piece to read.
    pub(super) fn next_read(&self) -> Option<NextPiece> {
        self.next_of(Direction::Read)
    }

    /// The next piece to write.
    pub(super) fn next_write(&self) -> Option<NextPiece> {
        self.next_of(Direction::Write)
    }

    /// Whether writes, and other work of uploads, come before reads.
    pub(super) fn is_turn_of_writes(&self) -> bool {
        if self.model.has_arm()
            && let Some(run) = self.run.filter(|run| run.len < TURN)
            && self.next_of(run.direction).is_some_and(|next| next.goes_on)
        {
            return run.direction == Direction::Write;
        }
        self.reads.is_empty() || self.writes.used <= self.reads.used
    }

    /// Charges the disk time of a flush to the uploads.
    pub(super) fn charge_flush(&mut self, time: Nanos) {
        let from = if self.writes.is_empty() { self.reads.used } else { Nanos(0) };
        self.writes.used = self.writes.used.max(from) + time;
    }

    /// Time until `next` would end if it began now, behind the pieces under way.
    pub(super) fn time_of(&self, next: NextPiece) -> Nanos {
        self.flying.iter().map(|&(_, cost)| cost).sum::<Nanos>() + next.cost
    }

    /// Issues `next`.
    pub(super) fn take(&mut self, next: NextPiece) -> StartedJob {
        let NextPiece { piece, at, goes_on, cost } = next;
        if !goes_on {
            self.interrupt();
        }
        let before = self.run.map_or(Bytes(0), |run| run.len);
        let is_new = self.run.map_or_else(|| self.is_newcomer(&piece), |run| run.is_new);
        self.run = Some(Run {
            direction: piece.direction,
            file: piece.file,
            end: piece.offset + Bytes(u64::from(piece.len)),
            len: before + Bytes(u64::from(piece.len)),
            is_new,
        });
        let lane = self.lane_mut(piece.direction);
        lane.used += cost;
        lane.favoured = if is_new { lane.favoured + cost } else { Nanos(0) };
        if let Some(at) = at {
            let job = lane.queue.remove(at).expect("it was there when it was looked at");
            lane.cutting = Some(Cutting { job, pieces: Pieces::of(job.transfer) });
        }
        let cutting = lane.cutting.as_mut().expect("a piece is cut from a job");
        cutting.pieces.next();
        let is_last = cutting.pieces.rest().is_none();
        if is_last {
            lane.cutting = None;
        }
        self.flying.push((piece, cost));
        StartedJob { piece, is_last }
    }

    /// Ends the run: another transfer moves the arm.
    pub(super) fn interrupt(&mut self) {
        if let Some(Run { direction, file, end, len, .. }) = self.run.take()
            && len >= TURN
        {
            self.lane_mut(direction).note_served(file, end);
        }
    }

    /// Number of pieces at the device.
    pub(super) fn in_flight(&self) -> u32 {
        self.flying.len() as u32
    }

    /// Notes the end of a transfer, if it was a best-effort piece.
    pub(super) fn note_end(&mut self, transfer: Transfer) {
        let at = self.flying.iter().position(|&(piece, _)| piece == transfer);
        if let Some(at) = at {
            self.flying.swap_remove(at);
        }
    }

    /// Removes the rest of the read of `block`, to be read in one transfer.
    pub(super) fn withdraw(&mut self, block: BlockRef) -> Option<Job> {
        let lane = &mut self.reads;
        if let Some(Cutting { job, pieces }) =
            lane.cutting.take_if(|cutting| cutting.job.transfer.block == block)
        {
            let rest = pieces.rest().expect("a job is cut until nothing is left");
            let done = u64::from(rest.at - job.transfer.at);
            return Some(Job { transfer: rest, position: job.position + done, ..job });
        }
        let at = lane.queue.iter().position(|job| job.transfer.block == block)?;
        lane.queue.remove(at)
    }

    fn next_of(&self, direction: Direction) -> Option<NextPiece> {
        let lane = self.lane(direction);
        if let Some(piece) = lane.cutting.as_ref().and_then(|cutting| cutting.pieces.peek()) {
            return Some(self.looked_at(piece, None));
        }
        let at = self.staying(direction).or_else(|| self.turning(direction)).unwrap_or(0);
        let piece = Pieces::of(lane.queue.get(at)?.transfer).peek()?;
        Some(self.looked_at(piece, Some(at)))
    }

    /// The waiting job that continues the run, if it may continue.
    fn staying(&self, direction: Direction) -> Option<usize> {
        let run = self.run.filter(|_| self.model.has_arm())?;
        let lane = self.lane(direction);
        let at = lane.queue.iter().position(|job| self.goes_on(&job.transfer))?;
        let others = || lane.queue.iter().filter(|job| job.transfer.file != run.file);
        let is_urged = || others().any(|job| self.is_newcomer(&job.transfer));
        (run.len < TURN || (run.len < RUN_MAX && !is_urged())).then_some(at)
    }

    /// The waiting job of the next turn: newcomers first, until the others are entitled to a turn.
    fn turning(&self, direction: Direction) -> Option<usize> {
        let lane = self.lane(direction);
        let turn = self.model.moving(MilliVisits(1000), moved(direction, TURN.0 as u32));
        let new = lane.favoured < turn;
        let mut jobs = lane.queue.iter();
        let whose = jobs.position(|job| self.is_newcomer(&job.transfer) == new);
        whose.filter(|_| self.model.has_arm())
    }

    /// Whether its file has not had a turn yet. A later file may get the same handle; its writes
    /// then begin before the end of that turn.
    fn is_newcomer(&self, piece: &Transfer) -> bool {
        let served = &self.lane(piece.direction).served;
        !served.iter().any(|&(file, end)| file == piece.file && end <= piece.offset)
    }

    fn goes_on(&self, piece: &Transfer) -> bool {
        self.run.is_some_and(|run| {
            (run.direction, run.file, run.end) == (piece.direction, piece.file, piece.offset)
        })
    }

    fn looked_at(&self, piece: Transfer, at: Option<usize>) -> NextPiece {
        let goes_on = self.goes_on(&piece);
        // Without an arm each request costs the same.
        let visits = MilliVisits(if goes_on && self.model.has_arm() { 0 } else { 1000 });
        let cost = self.model.moving(visits, moved(piece.direction, piece.len));
        NextPiece { piece, at, goes_on, cost }
    }

    fn lane(&self, direction: Direction) -> &DirectionQueue {
        match direction {
            Direction::Read => &self.reads,
            Direction::Write => &self.writes,
        }
    }

    fn lane_mut(&mut self, direction: Direction) -> &mut DirectionQueue {
        match direction {
            Direction::Read => &mut self.reads,
            Direction::Write => &mut self.writes,
        }
    }
}

impl DirectionQueue {
    fn new(jobs_max: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(jobs_max),
            cutting: None,
            used: Nanos(0),
            served: VecDeque::with_capacity(SERVED_MAX),
            favoured: Nanos(0),
        }
    }

    /// Notes a turn of the file, up to `end`.
    fn note_served(&mut self, file: FileHandle, end: Bytes) {
        let known = self.served.iter().position(|&(served, _)| served == file);
        if let Some(at) = known.or((self.served.len() == SERVED_MAX).then_some(0)) {
            self.served.remove(at);
        }
        self.served.push_back((file, end));
    }

    fn is_empty(&self) -> bool {
        self.cutting.is_none() && self.queue.is_empty()
    }
}

/// The bytes of one transfer, by direction.
pub(super) fn moved(direction: Direction, len: u32) -> TransferredBytes {
    let len = Bytes(u64::from(len));
    match direction {
        Direction::Read => TransferredBytes { read: len, ..TransferredBytes::NOTHING },
        Direction::Write => TransferredBytes { written: len, ..TransferredBytes::NOTHING },
    }
}
