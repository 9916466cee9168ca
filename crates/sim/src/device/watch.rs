//! What a disk sees of the engine's promises: the order of reads, and the life of each block.
//!
//! It decides with arithmetic of its own, from the terms of the volume, never with the engine's.

use tactus_core::disk_model::DiskModel;
use tactus_core::ports::{Direction, FileHandle, Transfer};
use tactus_core::units::{MIB, MonoTime, Nanos, SECTOR};

use crate::title::{Audience, Title};
use crate::verdict::{Invariant, require};

/// What was agreed about a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskTerms {
    pub(crate) model: DiskModel,
    pub(crate) cycle: Nanos,
    pub(crate) block: u32,
    pub(crate) best_effort_depth: u32,
    /// How long a message may take between servers: nothing on one core, a look on several.
    pub(crate) message_delay: Nanos,
    /// The disk obeys its model, so that every promise about order holds.
    pub(crate) obeys: bool,
}

pub(super) struct Watch {
    terms: DiskTerms,
    places: Vec<Life>,
    last_start: MonoTime,
    /// The last best-effort transfer that was begun.
    best_effort: Option<MonoTime>,
    /// Best-effort transfers at the device, and the time that each takes by the model.
    flying: Vec<(Transfer, Nanos)>,
    /// Where the last transfer ended, if it was of best effort.
    run: Option<(Direction, FileHandle, u64)>,
    sweep: Sweep,
}

/// The present life of a place.
#[derive(Clone, Copy, Default)]
struct Life {
    generation: u32,
    in_flight: u32,
    /// One past the last byte of the block that was asked for.
    end: u32,
}

/// How the real-time reads of the running cycle went.
#[derive(Clone, Copy, Default)]
struct Sweep {
    cycle: u64,
    last: u64,
    /// Times that the arm went back.
    returns: u64,
    starts: u64,
}

impl Watch {
    pub(super) fn new(terms: DiskTerms, places: u32) -> Self {
        Self {
            terms,
            places: vec![Life::default(); places as usize],
            last_start: MonoTime(0),
            best_effort: None,
            flying: Vec::with_capacity(FLYING_MAX),
            run: None,
            sweep: Sweep::default(),
        }
    }

    pub(super) fn note_start(&mut self, now: MonoTime) {
        self.last_start = now;
        self.sweep.starts += 1;
    }

    pub(super) fn note_completion(&mut self, transfer: Transfer, title: &Title) {
        self.places[transfer.block.place as usize].in_flight -= 1;
        if title.audience == Audience::Downloads {
            self.land(transfer);
        }
    }

    pub(super) fn check_submit(&mut self, now: MonoTime, transfer: Transfer, title: &Title) {
        self.check_life(now, transfer, title);
        match title.audience {
            Audience::Paced => {
                self.run = None;
                self.check_real_time(now, transfer, title);
            }
            Audience::Downloads => self.check_best_effort(now, transfer),
            Audience::Both => self.run = None,
        }
    }

    fn check_life(&mut self, now: MonoTime, transfer: Transfer, title: &Title) {
        let Transfer { block, offset, at, len, .. } = transfer;
        let life = &mut self.places[block.place as usize];
        let expected = if block.generation == life.generation {
            life.end
        } else {
            require(life.in_flight == 0, Invariant::OneStatePerBlock, || {
                format!("{block:?} at {now:?} while the kernel writes life {}", life.generation)
            });
            0
        };
        let fits = u64::from(at) + u64::from(len) <= u64::from(self.terms.block);
        let aligned = offset.0.is_multiple_of(SECTOR) && u64::from(len).is_multiple_of(SECTOR);
        let inside = offset.0 < title.len.0 && len > 0;
        require(at == expected && fits && aligned && inside, Invariant::OneStatePerBlock, || {
            format!("{transfer:?} at {now:?}: expected at {expected} of the block")
        });
        *life = Life { generation: block.generation, in_flight: life.in_flight + 1, end: at + len };
    }

    fn cycle_of(&self, now: MonoTime) -> u64 {
        now.0 / self.terms.cycle.0
    }

    fn check_real_time(&mut self, now: MonoTime, transfer: Transfer, title: &Title) {
        if !self.terms.obeys {
            return;
        }
        let begin = MonoTime(self.cycle_of(now) * self.terms.cycle.0);
        let asked = begin.max(self.last_start) + self.terms.message_delay;
        let too_early = self.best_effort.filter(|&begun| begun > asked);
        require(too_early.is_none(), Invariant::RealTimeFirst, || {
            format!(
                "{transfer:?} at {now:?} was asked for by {asked:?}, but best effort began at {too_early:?}"
            )
        });
        let place = title.position + transfer.offset.0;
        let cycle = self.cycle_of(now);
        if cycle != self.sweep.cycle {
            self.sweep = Sweep { cycle, last: place, ..Sweep::default() };
        }
        if place < self.sweep.last {
            self.sweep.returns += 1;
        }
        self.sweep.last = place;
        let most = SWEEPS_MAX + self.sweep.starts;
        let in_order = !self.terms.model.has_arm() || self.sweep.returns <= most;
        require(in_order, Invariant::SweepInOrder, || {
            format!("the arm went back {} times by {now:?}", self.sweep.returns)
        });
    }

    fn check_best_effort(&mut self, now: MonoTime, transfer: Transfer) {
        self.best_effort = Some(now);
        self.check_piece(now, transfer);
        let depth = self.terms.best_effort_depth as usize;
        require(self.flying.len() <= depth, Invariant::RealTimeFirst, || {
            format!("{transfer:?} at {now:?}, {} in flight", self.flying.len())
        });
    }

    /// A piece is small, and ends within its cycle, with all that are before it.
    fn check_piece(&mut self, now: MonoTime, transfer: Transfer) {
        let model = &self.terms.model;
        let Transfer { direction, file, offset, len, .. } = transfer;
        let each = match direction {
            Direction::Read => model.read_mib,
            Direction::Write => model.write_mib,
        };
        let moving = each.0 as u128 * u128::from(len) / u128::from(MIB);
        // What goes on where the last piece ended costs an arm no way.
        let stays = model.has_arm() && self.run == Some((direction, file, offset.0));
        let way = if stays { 0 } else { model.visit.0 + model.sweep.0 };
        self.flying.push((transfer, Nanos(way + moving as u64)));
        self.run = Some((direction, file, offset.0 + u64::from(len)));
        let end = now + self.flying.iter().map(|&(_, time)| time).sum::<Nanos>();
        let limit = MonoTime((self.cycle_of(now) + 1) * self.terms.cycle.0);
        require(end <= limit && len <= PIECE, Invariant::RealTimeFirst, || {
            let count = self.flying.len();
            format!(
                "{transfer:?} at {now:?}, {count} in flight, would end at {end:?}, \
                 the cycle at {limit:?}"
            )
        });
    }

    fn land(&mut self, transfer: Transfer) {
        let at = self.flying.iter().position(|&(flying, _)| flying == transfer);
        require(at.is_some(), Invariant::OneCompletionEach, || format!("{transfer:?} ended twice"));
        self.flying.swap_remove(at.unwrap_or(0));
    }
}

/// More than any depth: nothing is allocated in a turn.
const FLYING_MAX: usize = 128;

/// The largest best-effort transfer.
const PIECE: u32 = 128 * 1024;

/// Sweeps that a cycle may have besides one for each stream that begins in it: what the cycle before
/// left, its own, and a last read that no longer fits before its end.
const SWEEPS_MAX: u64 = 4;
