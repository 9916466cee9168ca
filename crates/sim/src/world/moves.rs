//! Servers that move to other cores while the world runs, at random.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tactus_core::ports::Waker;
use tactus_core::units::{MonoTime, Nanos};
use tactus_engine::migration::{Migration, Passage};
use tactus_engine::name::{Job, ServerName};

use super::World;
use super::schedule::Event;

/// A migration under way.
pub(super) struct Move {
    migration: Arc<Migration>,
    to: usize,
    woken: Arc<AtomicBool>,
    begun: MonoTime,
}

/// Wakes the core that a server moves to.
struct Wake(Arc<AtomicBool>);

impl Waker for Wake {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
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
        let passage = match name.job {
            Job::Disk => Passage::ByControl,
            _ => Passage::Direct,
        };
        let mailbox = self.cores[to].core.mailbox();
        let woken = Arc::new(AtomicBool::new(false));
        let waker = Box::new(Wake(Arc::clone(&woken)));
        let migration = Migration::new(name, (mailbox, to as u32), passage, waker);
        migration.begin(&self.cores[from].core.mailbox());
        self.ring_core(from);
        self.moving = Some(Move { migration, to, woken, begun: self.now });
    }

    /// What the control side does for a migration, after each turn of a core.
    pub(super) fn follow_move(&mut self) {
        let Some(Move { migration, to, woken, .. }) = &self.moving else { return };
        if let Some(mut server) = migration.take() {
            server.resume(*to as u32).expect("simulated ports follow");
            migration.go_on(server, None);
        }
        if woken.swap(false, Ordering::Relaxed) {
            let to = *to;
            self.ring_core(to);
        }
        let Some(Move { migration, to, .. }) = &self.moving else { return };
        if migration.is_left_alone() {
            let ServerName { job, index } = migration.name();
            let (index, to) = (usize::from(index), *to);
            let placement = &mut self.placement;
            match job {
                Job::Disk => placement.disks[index] = to,
                Job::Block => placement.blocks[index] = to,
                Job::Delivery => placement.delivery = to,
                Job::Link => placement.links[index] = to,
                Job::Packets => placement.packets[index] = to,
                Job::File => placement.file = to,
            }
            self.tally.moves += 1;
            self.moving = None;
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
