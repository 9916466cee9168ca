//! The time left over: best-effort reads and writes, in small pieces and fair turns.
//!
//! Promise: reads and writes that both wait get equal time, whatever they cost each; a block's
//! pieces follow each other; on a disk with an arm one file is stayed with while what waits goes on
//! where the last piece ended: for [`TURN`] when somebody waits who has not had as much, else for
//! [`RUN_MAX`]. When a piece may begin is not decided here.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{CycleLimits, Job};
use crate::disk_model::{DiskModel, MilliVisits, Moved};
use crate::ports::{BlockRef, Direction, FileHandle, Transfer};
use crate::split::Pieces;
use crate::units::{Bytes, MIB, Nanos};

/// What is left of a run when the other way, or a newcomer, gets its turn: the two seeks of 30 ms
/// then cost a disk with an arm half of its time, and nobody waits for a tenth of a second more.
const TURN: Bytes = Bytes(8 * MIB);

/// What is left of a run when the next of those gets its turn who have had one before. They have
/// long to go anyway: with eight of them, seeks were a seventh of the time of uploads after 8 MiB
/// each, and are a twentieth now.
const RUN_MAX: Bytes = Bytes(32 * MIB);

/// Files of which it is remembered that they have had a turn. Uploads that go on and on are few;
/// where they are more, some are newcomers again.
const SERVED_MAX: usize = 16;

/// Both queues and whose turn it is.
pub(super) struct BestEffortQueue {
    model: DiskModel,
    reads: Lane,
    writes: Lane,
    /// Where the last piece ended, unless something else has moved the arm.
    run: Option<Run>,
    /// Pieces at the device, and the disk time of each by the model.
    flying: Vec<(Transfer, Nanos)>,
}

/// A piece that may go next.
#[derive(Clone, Copy)]
pub(super) struct Next {
    pub(super) piece: Transfer,
    /// Which waiting job it begins; none when one is being cut.
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
struct Lane {
    queue: VecDeque<Job>,
    /// The job that is being cut.
    cutting: Option<Cutting>,
    /// Disk time used, by the model; see `BestEffortQueue::push`.
    used: Nanos,
    /// Files that have had a turn, and where it ended.
    served: VecDeque<(FileHandle, Bytes)>,
    /// Disk time that newcomers have had since one of those had its turn.
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
    /// It is a newcomer's.
    is_new: bool,
}

impl BestEffortQueue {
    pub(super) fn new(limits: &CycleLimits) -> Self {
        Self {
            model: limits.model,
            reads: Lane::new(limits.jobs_max),
            writes: Lane::new(limits.intake.jobs_max),
            run: None,
            flying: Vec::with_capacity(limits.in_flight_max() as usize),
        }
    }

    pub(super) fn push(&mut self, job: Job) {
        let direction = job.transfer.direction;
        let other = self.lane(direction.other()).used;
        let lane = self.lane_mut(direction);
        if lane.is_empty() {
            // Who had nothing to do has no claim to the time that passed meanwhile.
            lane.used = lane.used.max(other);
        }
        assert!(lane.queue.len() < lane.queue.capacity(), "a job has a place in its arena");
        lane.queue.push_back(job);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    /// Nothing waits, and nothing that is being written would miss a flush that begins now.
    pub(super) fn is_written(&self) -> bool {
        let is_write = |&(piece, _): &(Transfer, Nanos)| piece.direction == Direction::Write;
        self.is_empty() && !self.flying.iter().any(is_write)
    }

    /// The piece whose turn it is.
    pub(super) fn next(&self) -> Option<Next> {
        let [first, second] = match self.is_turn_of_writes() {
            true => [Direction::Write, Direction::Read],
            false => [Direction::Read, Direction::Write],
        };
        self.next_of(first).or_else(|| self.next_of(second))
    }

    /// The piece that goes on where the last one ended, whoever else waits.
    pub(super) fn further(&self) -> Option<Next> {
        let lane = self.lane(self.run?.direction);
        let at = lane.queue.iter().position(|job| self.goes_on(&job.transfer));
        let begun = lane.cutting.is_none().then_some(at).flatten();
        let piece = Pieces::of(lane.queue.get(begun?)?.transfer).peek()?;
        Some(self.looked_at(piece, begun)).filter(|_| self.model.has_arm())
    }

    /// The next piece that is written.
    pub(super) fn next_write(&self) -> Option<Next> {
        self.next_of(Direction::Write)
    }

    /// Whether writes, and what else belongs to uploads, come before reads.
    pub(super) fn is_turn_of_writes(&self) -> bool {
        if self.model.has_arm()
            && let Some(run) = self.run.filter(|run| run.len < TURN)
            && self.next_of(run.direction).is_some_and(|next| next.goes_on)
        {
            return run.direction == Direction::Write;
        }
        self.reads.is_empty() || self.writes.used <= self.reads.used
    }

    /// Disk time that a flush takes from what uploads get.
    pub(super) fn charge_flush(&mut self, time: Nanos) {
        let from = if self.writes.is_empty() { self.reads.used } else { Nanos(0) };
        self.writes.used = self.writes.used.max(from) + time;
    }

    /// Time until `next` ends that began now, behind those that are under way.
    pub(super) fn time_of(&self, next: Next) -> Nanos {
        self.flying.iter().map(|&(_, cost)| cost).sum::<Nanos>() + next.cost
    }

    /// Gives out `next`.
    pub(super) fn take(&mut self, next: Next) -> StartedJob {
        let Next { piece, at, goes_on, cost } = next;
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

    /// Something else goes to the device: the arm moves.
    pub(super) fn interrupt(&mut self) {
        if let Some(Run { direction, file, end, len, .. }) = self.run.take()
            && len >= TURN
        {
            self.lane_mut(direction).note_served(file, end);
        }
    }

    /// Pieces at the device.
    pub(super) fn in_flight(&self) -> u32 {
        self.flying.len() as u32
    }

    /// Notes the end of a transfer, if it was a piece.
    pub(super) fn note_end(&mut self, transfer: Transfer) {
        let at = self.flying.iter().position(|&(piece, _)| piece == transfer);
        if let Some(at) = at {
            self.flying.swap_remove(at);
        }
    }

    /// Takes out what is left of the read of `block`, to be read in one.
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

    fn next_of(&self, direction: Direction) -> Option<Next> {
        let lane = self.lane(direction);
        if let Some(piece) = lane.cutting.as_ref().and_then(|cutting| cutting.pieces.peek()) {
            return Some(self.looked_at(piece, None));
        }
        let at = self.staying(direction).or_else(|| self.turning(direction)).unwrap_or(0);
        let piece = Pieces::of(lane.queue.get(at)?.transfer).peek()?;
        Some(self.looked_at(piece, Some(at)))
    }

    /// The waiting job with which the run goes on, as long as it may.
    fn staying(&self, direction: Direction) -> Option<usize> {
        let run = self.run.filter(|_| self.model.has_arm())?;
        let lane = self.lane(direction);
        let at = lane.queue.iter().position(|job| self.goes_on(&job.transfer))?;
        let others = || lane.queue.iter().filter(|job| job.transfer.file != run.file);
        let is_urged = || others().any(|job| self.is_newcomer(&job.transfer));
        (run.len < TURN || (run.len < RUN_MAX && !is_urged())).then_some(at)
    }

    /// The waiting job whose turn it is: newcomers', for as long as the others have had theirs.
    fn turning(&self, direction: Direction) -> Option<usize> {
        let lane = self.lane(direction);
        let turn = self.model.moving(MilliVisits(1000), moved(direction, TURN.0 as u32));
        let new = lane.favoured < turn;
        let mut jobs = lane.queue.iter();
        let whose = jobs.position(|job| self.is_newcomer(&job.transfer) == new);
        whose.filter(|_| self.model.has_arm())
    }

    /// Whether its file has not had a turn yet. The number of a file may be another file's later,
    /// which then begins before the place where that one's turn ended.
    fn is_newcomer(&self, piece: &Transfer) -> bool {
        let served = &self.lane(piece.direction).served;
        !served.iter().any(|&(file, end)| file == piece.file && end <= piece.offset)
    }

    fn goes_on(&self, piece: &Transfer) -> bool {
        self.run.is_some_and(|run| {
            (run.direction, run.file, run.end) == (piece.direction, piece.file, piece.offset)
        })
    }

    fn looked_at(&self, piece: Transfer, at: Option<usize>) -> Next {
        let goes_on = self.goes_on(&piece);
        // Without an arm each request costs the same.
        let visits = MilliVisits(if goes_on && self.model.has_arm() { 0 } else { 1000 });
        let cost = self.model.moving(visits, moved(piece.direction, piece.len));
        Next { piece, at, goes_on, cost }
    }

    fn lane(&self, direction: Direction) -> &Lane {
        match direction {
            Direction::Read => &self.reads,
            Direction::Write => &self.writes,
        }
    }

    fn lane_mut(&mut self, direction: Direction) -> &mut Lane {
        match direction {
            Direction::Read => &mut self.reads,
            Direction::Write => &mut self.writes,
        }
    }
}

impl Lane {
    fn new(jobs_max: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(jobs_max),
            cutting: None,
            used: Nanos(0),
            served: VecDeque::with_capacity(SERVED_MAX),
            favoured: Nanos(0),
        }
    }

    /// The file has had a turn, up to `end`.
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

/// What one transfer moves.
pub(super) fn moved(direction: Direction, len: u32) -> Moved {
    let len = Bytes(u64::from(len));
    match direction {
        Direction::Read => Moved { read: len, ..Moved::NOTHING },
        Direction::Write => Moved { written: len, ..Moved::NOTHING },
    }
}
