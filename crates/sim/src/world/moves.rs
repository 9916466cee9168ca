//! Servers that move to other cores while the world runs, at random.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tactus_core::ports::Waker;
use tactus_core::units::{MonoTime, Nanos, SECOND};
use tactus_engine::migration::{Migration, MigrationWakers};
use tactus_engine::name::{Job, ServerName};

use super::schedule::Event;
use super::{World, after_pause, paused_by};
use crate::device::open;
use crate::verdict::{Invariant, require};

/// A migration under way.
pub(super) struct Move {
    migration: Arc<Migration>,
    to: usize,
    /// The cores that are to be woken, the old one first.
    woken: [(usize, Arc<AtomicBool>); 2],
    begun: MonoTime,
    /// Requests of programs until then.
    requests: u64,
}

/// Wakes a core after the turn.
struct Wake(Arc<AtomicBool>);

impl Waker for Wake {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The control side looks after each turn.
struct Silent;

impl Waker for Silent {
    fn wake(&self) {}
}

impl World {
    /// Sends a random server to a random core.
    pub(super) fn move_one(&mut self) {
        let Some(every) = self.swarm.moves else { return };
        if self.now < self.end {
            let next = Nanos(self.dice_of_moves.between(1, 2 * every.0));
            self.push(self.now + next, Event::Move);
        }
        let places: Vec<_> = (0..self.cores.len())
            .flat_map(|at| self.cores[at].core.names().map(move |name| (at, name)))
            .collect();
        if self.moving.is_some() || places.is_empty() {
            return;
        }
        let (from, name) = places[self.dice_of_moves.below(places.len() as u64) as usize];
        let other = 1 + self.dice_of_moves.below(self.cores.len() as u64 - 1) as usize;
        let to = (from + other) % self.cores.len();
        self.begin_move(name, from, to);
    }

    /// Sends a server to another core, while no other is on its way.
    pub(super) fn begin_move(&mut self, name: ServerName, from: usize, to: usize) {
        let woken = [from, to].map(|core| (core, Arc::new(AtomicBool::new(false))));
        let wake = |core: &(usize, Arc<AtomicBool>)| Box::new(Wake(Arc::clone(&core.1)));
        let wakers = MigrationWakers {
            from: wake(&woken[0]),
            to: wake(&woken[1]),
            control: Box::new(Silent),
        };
        let migration = Migration::new(name, to as u32, wakers);
        let mailboxes = [from, to].map(|core| self.cores[core].core.mailbox());
        migration.begin(&mailboxes[0], &mailboxes[1]);
        let requests = self.programs.next_token();
        self.moving = Some(Move { migration, to, woken, begun: self.now, requests });
        self.follow_move();
    }

    /// What the control side does for a migration, after each turn of a core.
    pub(super) fn follow_move(&mut self) {
        let Some(Move { woken, .. }) = &self.moving else { return };
        let is_woken = |flag: &AtomicBool| flag.swap(false, Ordering::Relaxed);
        let cores = [0, 1].map(|at| is_woken(&woken[at].1).then_some(woken[at].0));
        for core in cores.into_iter().flatten() {
            self.ring_core(core);
        }
        let Some(Move { migration, to, requests, .. }) = &self.moving else { return };
        if migration.is_left_alone() {
            let ServerName { job, index } = migration.name();
            let (index, to) = (usize::from(index), *to);
            let placement = &mut self.placement;
            match job {
                Job::Disk => placement.disks[index] = to,
                Job::Block => placement.blocks[index] = to,
                Job::Delivery => placement.deliveries[index] = to,
                Job::Link => placement.links[index] = to,
                Job::Packets => placement.packets[index] = to,
                Job::File => {
                    placement.file = to;
                    self.tally.carried += self.programs.under_way(*requests) as u64;
                }
            }
            self.tally.moves += 1;
            self.moving = None;
        }
    }

    /// Checks that a server that is to move has moved after a second in which the machine was not
    /// paused.
    pub(super) fn check_move(&self) {
        let Some(moving) = &self.moving else { return };
        let pauses = &self.swarm.pauses;
        // In a pause no core can begin it.
        let begun = after_pause(pauses, moving.begun);
        let paused = paused_by(pauses, self.now).0 - paused_by(pauses, moving.begun).0;
        let awake = self.now.since(begun).0.saturating_sub(paused);
        require(awake <= SECOND.0, Invariant::Progress, || {
            format!("{} has not moved after {:?}", moving.migration.name(), Nanos(awake))
        });
    }

    /// Tells the devices which core takes a turn, and when.
    pub(super) fn note_turning(&self, at: usize) {
        for device in &self.devices {
            let mut device = open(device);
            (device.turning, device.now) = (at as u32, self.now);
        }
    }

    /// The time from which a link server on the core `at` may have had no turn.
    pub(super) fn last_turn(&self, at: usize) -> MonoTime {
        let last = self.cores[at].last;
        self.moving.as_ref().map_or(last, |moving| last.min(moving.begun))
    }

    /// Whether a server may take its turn on the core `at`.
    pub(super) fn may_sit(&self, at: usize, places: &[usize]) -> bool {
        places.contains(&at) || self.moving.as_ref().is_some_and(|moving| moving.to == at)
    }
}
