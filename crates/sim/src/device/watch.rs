//! Checks of the engine's promises at a disk: the order of reads, and the states of each block.
//!
//! It uses its own arithmetic, from the limits of the volume, never the engine's.

use std::collections::VecDeque;

use tactus_core::disk_model::DiskModel;
use tactus_core::ports::{Direction, FileHandle, Transfer};
use tactus_core::units::{MIB, MonoTime, Nanos, SECTOR};

use crate::title::{Audience, Title};
use crate::verdict::{Invariant, require};

/// The limits of a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskLimits {
    pub(crate) model: DiskModel,
    pub(crate) cycle: Nanos,
    pub(crate) block: u32,
    pub(crate) best_effort_depth: u32,
    /// Delay of a message between servers: zero on one core, one polling interval on several.
    pub(crate) message_delay: Nanos,
    /// The disk obeys its model, so that every promise about order holds.
    pub(crate) obeys: bool,
    /// Constant factor by which the disk is slower than its model, if it has no worse fault.
    pub(crate) slower: Option<u64>,
    /// Limit of the time of a write on its way into the engine.
    pub(crate) upload_delay: Nanos,
    /// Size of a place of the write share.
    pub(crate) write_place: u32,
    /// Part of each cycle that uploads get if they need it, in thousandths.
    pub(crate) floor_thousandths: u32,
}

pub(super) struct Watch {
    limits: DiskLimits,
    places: Vec<Life>,
    last_start: MonoTime,
    /// The last best-effort transfer that was begun.
    best_effort: Option<MonoTime>,
    /// Best-effort transfers at the device, and the time that each takes by the model.
    flying: Vec<(Transfer, Nanos)>,
    /// Where the last transfer ended, if it was of best effort.
    run: Option<(Direction, FileHandle, u64)>,
    sweep: Sweep,
    writes: Writes,
    /// Transfers and flushes at the device, and since when there are none.
    at_device: u32,
    idle_since: MonoTime,
}

/// The observed state of uploads.
struct Writes {
    places: Vec<Life>,
    /// Model time begun since real-time reads were wanted, and when they were.
    ahead: Nanos,
    ahead_since: MonoTime,
    /// Since when there are always bytes to write, and their number.
    waiting_since: MonoTime,
    waiting: u64,
    /// The part of them that the engine may not have received yet.
    coming: VecDeque<(MonoTime, u64)>,
    /// Model time begun in each of the last cycles.
    used: [Nanos; FLOOR_CYCLES as usize],
    cycle: u64,
    flush: Option<MonoTime>,
    flushes: u32,
}

/// A written file.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrittenFile {
    pub(super) position: u64,
    pub(super) len: u64,
    pub(super) is_recording: bool,
}

/// The present generation of a place.
#[derive(Clone, Copy, Default)]
struct Life {
    generation: u32,
    in_flight: u32,
    /// One past the last requested byte of the block.
    end: u32,
}

/// The real-time reads of the running cycle so far.
#[derive(Clone, Copy, Default)]
struct Sweep {
    cycle: u64,
    last: u64,
    /// Number of times that the arm moved back.
    returns: u64,
    starts: u64,
}

impl Watch {
    pub(super) fn new(limits: DiskLimits, places: u32, write_places: u32) -> Self {
        Self {
            limits,
            places: vec![Life::default(); places as usize],
            last_start: MonoTime(0),
            best_effort: None,
            flying: Vec::with_capacity(FLYING_MAX),
            run: None,
            sweep: Sweep::default(),
            writes: Writes {
                places: vec![Life::default(); write_places as usize],
                ahead: Nanos(0),
                ahead_since: MonoTime(0),
                waiting_since: MonoTime(0),
                waiting: 0,
                coming: VecDeque::new(),
                used: [Nanos(0); FLOOR_CYCLES as usize],
                cycle: 0,
                flush: None,
                flushes: 0,
            },
            at_device: 0,
            idle_since: MonoTime(0),
        }
    }

    fn note_end(&mut self, now: MonoTime) {
        self.at_device -= 1;
        if self.at_device == 0 {
            self.idle_since = now;
        }
    }

    /// Before a piece of an upload begins: checks that the disk has not rested while the piece
    /// could have begun. If real-time reads or writes that fit into the cycle had waited, they
    /// would come first.
    fn check_rest(&self, now: MonoTime) {
        if !self.limits.obeys || self.at_device > 0 {
            return;
        }
        let DiskLimits { cycle, ref model, .. } = self.limits;
        let head = Nanos(cycle.0 / 10).min(Nanos::from_millis(5));
        let piece = model.visit + model.sweep + Nanos(model.read_mib.max(model.write_mib).0 / 8);
        let block = u128::from(self.limits.block.max(self.limits.write_place));
        let most = u128::from(model.read_mib.max(model.write_mib).0);
        let block = model.visit + model.sweep + Nanos((block * most / u128::from(MIB)) as u64);
        // A block that does not fit any more before the floor blocks smaller transfers. The delay
        // also contains a message, a poll of the ring, and a reading of the clock.
        let delay =
            block + self.limits.message_delay + self.limits.upload_delay + Nanos::from_millis(2);
        let begun = self.idle_since.max(self.writes.waiting_since);
        let this = MonoTime(self.cycle_of(now) * cycle.0);
        let rested = |begin: MonoTime, end: MonoTime| begun.max(begin + head) + delay < end;
        // It fits now, so it would have fitted before.
        let too_long = rested(this, now)
            || (begun < this && rested(this.before(cycle), this.before(piece + delay)));
        require(!too_long, Invariant::NoNeedlessDegradation, || {
            format!("an upload begins at {now:?} on a disk that rests since {begun:?}")
        });
    }

    /// Notes that this number of upload bytes is on its way into the engine.
    pub(super) fn note_upload(&mut self, now: MonoTime, bytes: u64) {
        self.turn_cycles(now);
        if self.writes.waiting == 0 {
            self.writes.waiting_since = now + self.limits.upload_delay;
        }
        self.writes.waiting += bytes;
        self.writes.coming.push_back((now, bytes));
    }

    pub(super) fn note_written(&mut self, now: MonoTime, transfer: Transfer, is_recording: bool) {
        self.note_end(now);
        self.writes.places[transfer.block.place as usize].in_flight -= 1;
        if !is_recording {
            self.land(transfer);
        }
    }

    pub(super) fn note_synced(&mut self, now: MonoTime) {
        self.note_end(now);
        self.writes.flushes -= 1;
        if self.writes.flushes == 0 {
            self.writes.flush = None;
        }
    }

    pub(super) fn flush_time(&self) -> Nanos {
        self.limits.model.flush
    }

    /// Checks a flush: it belongs to a group that ends within the cycle; the next group comes after
    /// its end.
    pub(super) fn check_sync(&mut self, now: MonoTime) {
        self.run = None;
        self.at_device += 1;
        self.writes.flushes += 1;
        let begun = *self.writes.flush.get_or_insert(now);
        let limit = MonoTime((self.cycle_of(now) + 1) * self.limits.cycle.0);
        // One that is longer than half a cycle begins in its first half.
        let time = Nanos(self.limits.model.flush.0.min(self.limits.cycle.0 / 2));
        require(begun == now && now + time <= limit, Invariant::RealTimeFirst, || {
            format!("a flush at {now:?}, its group at {begun:?}, the cycle ends at {limit:?}")
        });
    }

    pub(super) fn check_write(&mut self, now: MonoTime, transfer: Transfer, file: WrittenFile) {
        self.turn_cycles(now);
        let places = &mut self.writes.places;
        check_life(now, transfer, places, (self.limits.write_place, file.len));
        let place = file.position + transfer.offset.0;
        if !file.is_recording {
            self.check_rest(now);
        }
        self.at_device += 1;
        if file.is_recording {
            self.run = None;
            self.check_sweep(now, place);
            return;
        }
        self.writes.waiting -= u64::from(transfer.len);
        let heard = now.before(self.limits.upload_delay);
        while self.writes.coming.front().is_some_and(|&(since, _)| since < heard) {
            self.writes.coming.pop_front();
        }
        let coming: u64 = self.writes.coming.iter().map(|&(_, bytes)| bytes).sum();
        if self.writes.waiting <= coming {
            // For a moment the engine may have had no write.
            self.writes.waiting_since = now + self.limits.upload_delay;
        }
        let time = self.check_piece(now, transfer);
        self.writes.used[(self.writes.cycle % FLOOR_CYCLES) as usize] += time;
        let asked = self.asked_by(now);
        if now > asked {
            if self.writes.ahead_since != asked {
                self.writes.ahead_since = asked;
                self.writes.ahead = Nanos(0);
            }
            self.writes.ahead += time;
        }
    }

    /// Ends the cycles before `now`, and checks the time of uploads in each ten of them.
    fn turn_cycles(&mut self, now: MonoTime) {
        let cycle = self.cycle_of(now);
        while self.writes.cycle < cycle {
            // Only cycles with waiting uploads matter.
            if self.writes.waiting == 0 && self.writes.cycle + FLOOR_CYCLES < cycle {
                self.writes.cycle = cycle - FLOOR_CYCLES;
            }
            self.check_floor();
            self.writes.cycle += 1;
            self.writes.used[(self.writes.cycle % FLOOR_CYCLES) as usize] = Nanos(0);
        }
    }

    /// At the end of a cycle: checks that uploads that waited through the last ten have got their
    /// floor.
    fn check_floor(&self) {
        let Writes { waiting, waiting_since, cycle, .. } = self.writes;
        let length = self.limits.cycle;
        let first = (cycle + 1).saturating_sub(FLOOR_CYCLES);
        let waited = waiting > 0 && waiting_since <= MonoTime(first * length.0);
        if !(self.limits.obeys || self.limits.slower.is_some()) || !waited {
            return;
        }
        // A slower disk gives the same time, in which fewer bytes are written; begun work ends
        // first.
        let slower = self.limits.slower.map_or(1, |slower| 2 * slower);
        let used: Nanos = self.writes.used.iter().map(|used| used.times(slower)).sum();
        let share = length.0 * u64::from(self.limits.floor_thousandths) / 1000;
        let piece = self.limits.model.visit.0
            + self.limits.model.sweep.0
            + self.limits.model.write_mib.0 / 8;
        let floor = Nanos((share * FLOOR_CYCLES).saturating_sub(2 * piece));
        require(used >= floor, Invariant::UploadsGetTheirFloor, || {
            format!("{used:?} of {floor:?} in the ten cycles of {length:?} before {}", cycle + 1)
        });
    }

    /// The time by which all wants of this cycle have come.
    fn asked_by(&self, now: MonoTime) -> MonoTime {
        let begin = MonoTime(self.cycle_of(now) * self.limits.cycle.0);
        begin.max(self.last_start) + self.limits.message_delay
    }

    pub(super) fn note_start(&mut self, now: MonoTime) {
        self.last_start = now;
        self.sweep.starts += 1;
    }

    pub(super) fn note_completion(&mut self, now: MonoTime, transfer: Transfer, title: &Title) {
        self.note_end(now);
        self.places[transfer.block.place as usize].in_flight -= 1;
        if title.audience == Audience::Downloads {
            self.land(transfer);
        }
    }

    pub(super) fn check_submit(&mut self, now: MonoTime, transfer: Transfer, title: &Title) {
        self.turn_cycles(now);
        check_life(now, transfer, &mut self.places, (self.limits.block, title.len.0));
        self.at_device += 1;
        match title.audience {
            Audience::Paced => {
                self.run = None;
                self.check_real_time(now, transfer, title);
            }
            Audience::Downloads => self.check_best_effort(now, transfer),
            Audience::Both => self.run = None,
        }
    }

    fn cycle_of(&self, now: MonoTime) -> u64 {
        now.0 / self.limits.cycle.0
    }

    fn check_real_time(&mut self, now: MonoTime, transfer: Transfer, title: &Title) {
        if !self.limits.obeys {
            return;
        }
        let asked = self.asked_by(now);
        let too_early = self.best_effort.filter(|&begun| begun > asked);
        require(too_early.is_none(), Invariant::RealTimeFirst, || {
            format!(
                "{transfer:?} at {now:?} was asked for by {asked:?}, but best effort began at \
                 {too_early:?}"
            )
        });
        // Uploads come before it only within their floor; time owed from earlier cycles is added.
        let share = self.limits.cycle.0 * u64::from(self.limits.floor_thousandths) / 1000;
        let model = &self.limits.model;
        let piece = model.visit.0 + model.sweep.0 + model.write_mib.0 / 8;
        let most = Nanos(share.max(piece) * 2 + piece);
        let is_since = self.writes.ahead_since == asked;
        let ahead = if is_since { self.writes.ahead } else { Nanos(0) };
        require(ahead <= most, Invariant::RealTimeFirst, || {
            format!("{transfer:?} at {now:?} came after {ahead:?} of uploads")
        });
        self.check_sweep(now, title.position + transfer.offset.0);
    }

    fn check_sweep(&mut self, now: MonoTime, place: u64) {
        if !self.limits.obeys {
            return;
        }
        let cycle = self.cycle_of(now);
        if cycle != self.sweep.cycle {
            self.sweep = Sweep { cycle, last: place, ..Sweep::default() };
        }
        if place < self.sweep.last {
            self.sweep.returns += 1;
        }
        self.sweep.last = place;
        let most = SWEEPS_MAX + self.sweep.starts;
        let in_order = !self.limits.model.has_arm() || self.sweep.returns <= most;
        require(in_order, Invariant::SweepInOrder, || {
            format!("the arm went back {} times by {now:?}", self.sweep.returns)
        });
    }

    fn check_best_effort(&mut self, now: MonoTime, transfer: Transfer) {
        self.best_effort = Some(now);
        self.check_piece(now, transfer);
        let depth = self.limits.best_effort_depth as usize;
        require(self.flying.len() <= depth, Invariant::RealTimeFirst, || {
            format!("{transfer:?} at {now:?}, {} in flight", self.flying.len())
        });
    }

    /// Checks that a piece is small, and ends within its cycle, with all pieces before it.
    fn check_piece(&mut self, now: MonoTime, transfer: Transfer) -> Nanos {
        let model = &self.limits.model;
        let Transfer { direction, file, offset, len, .. } = transfer;
        let each = match direction {
            Direction::Read => model.read_mib,
            Direction::Write => model.write_mib,
        };
        let moving = each.0 as u128 * u128::from(len) / u128::from(MIB);
        // A piece that continues at the end of the last one costs an arm no seek.
        let stays = model.has_arm() && self.run == Some((direction, file, offset.0));
        let travel = if stays { 0 } else { model.visit.0 + model.sweep.0 };
        let time = Nanos(travel + moving as u64);
        self.flying.push((transfer, time));
        self.run = Some((direction, file, offset.0 + u64::from(len)));
        let flush = self.writes.flush.map_or(Nanos(0), |begun| {
            (begun + Nanos(model.flush.0.min(self.limits.cycle.0 / 2))).since(now)
        });
        let end = now + flush + self.flying.iter().map(|&(_, time)| time).sum::<Nanos>();
        let limit = MonoTime((self.cycle_of(now) + 1) * self.limits.cycle.0);
        require(end <= limit && len <= PIECE, Invariant::RealTimeFirst, || {
            let count = self.flying.len();
            format!(
                "{transfer:?} at {now:?}, {count} in flight, would end at {end:?}, \
                 the cycle at {limit:?}"
            )
        });
        time
    }

    fn land(&mut self, transfer: Transfer) {
        let at = self.flying.iter().position(|&(flying, _)| flying == transfer);
        require(at.is_some(), Invariant::OneCompletionEach, || format!("{transfer:?} ended twice"));
        self.flying.swap_remove(at.unwrap_or(0));
    }
}

fn check_life(
    now: MonoTime,
    transfer: Transfer,
    places: &mut [Life],
    (block_size, file_len): (u32, u64),
) {
    let Transfer { block, offset, at, len, .. } = transfer;
    let life = &mut places[block.place as usize];
    let expected = if block.generation == life.generation {
        life.end
    } else {
        require(life.in_flight == 0, Invariant::OneStatePerBlock, || {
            format!("{block:?} at {now:?} while the kernel has life {}", life.generation)
        });
        0
    };
    let fits = u64::from(at) + u64::from(len) <= u64::from(block_size);
    let aligned = offset.0.is_multiple_of(SECTOR) && u64::from(len).is_multiple_of(SECTOR);
    let inside = offset.0 < file_len && len > 0;
    require(at == expected && fits && aligned && inside, Invariant::OneStatePerBlock, || {
        format!("{transfer:?} at {now:?}: expected at {expected} of the block")
    });
    *life = Life { generation: block.generation, in_flight: life.in_flight + 1, end: at + len };
}

/// Number of cycles over which uploads have their floor.
const FLOOR_CYCLES: u64 = 10;

/// More than any depth: nothing is allocated in a turn.
const FLYING_MAX: usize = 128;

/// The largest best-effort transfer.
const PIECE: u32 = 128 * 1024;

/// Limit of the sweeps of a cycle besides one for each stream that begins in it: the rest of the
/// cycle before, its own, and a last read that no longer fits before its end; with uploads in
/// between, also the rest after them.
const SWEEPS_MAX: u64 = 6;
