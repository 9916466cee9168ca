//! The block server: which block of which title is in memory, and who holds it.
//!
//! Promise: a block is read once however many streams want it, is never taken away while somebody
//! holds it, and goes to whoever asked for it exactly once. It is the one keeper of its arena.
//! A read that nobody waits for any more is dropped, if the disk has not begun it.
//! It decides nothing about time: deadlines pass through it to the disk.

mod index;
mod recency;

use std::sync::Arc;

use tactus_core::cycle::{Filled, Job, Unfilled};
use tactus_core::mutant;
use tactus_core::ports::{self, Direction, DiskFault, Transfer};
use tactus_core::units::{Bytes, MonoTime, SECTOR};
use tactus_ring::arena::{BlockRef, Keeper, Lease};
use tactus_ring::spsc::{Consumer, Producer};

use crate::block::index::{Index, Key};
use crate::block::recency::Recency;
use crate::counters::BlockCounters;
use crate::internal::{FromBlock, Round, ToBlock, ToDisk, Want};
use crate::pool::{List, Pool};
use crate::server::Server;

/// The keeper of one arena, between one delivery server and one disk server.
pub struct BlockServer {
    keeper: Keeper,
    index: Index,
    recency: Recency,
    places: Vec<Place>,
    waiters: Pool<u32>,
    requests: Consumer<ToBlock>,
    answers: Producer<FromBlock>,
    disk: Producer<ToDisk>,
    filled: Consumer<Filled>,
    counters: Arc<BlockCounters>,
    /// Reads went to the disk since the last commit.
    uncommitted: bool,
}

#[derive(Clone, Copy, Default)]
struct Place {
    key: Option<Key>,
    state: State,
    generation: u32,
}

#[derive(Clone, Copy, Default)]
enum State {
    #[default]
    Free,
    Filling(Fill),
    /// In memory, held by nobody: on the recency list.
    Idle,
    Held,
}

/// A read under way.
#[derive(Clone, Copy)]
struct Fill {
    /// Bytes of the title that belong into the block.
    len: u32,
    /// As the disk has been told, with the soonest of the waiters' deadlines.
    job: Job,
    /// All who wait for it are best effort.
    best_effort: bool,
    /// Tokens to answer when the block is filled. The first is whose file is read; so also those that
    /// have been abandoned stay until the disk has answered.
    waiters: List,
    /// How many of them have not been abandoned.
    wanting: u32,
}

/// The rings of a block server.
pub(crate) struct BlockRings {
    pub(crate) requests: Consumer<ToBlock>,
    pub(crate) answers: Producer<FromBlock>,
    pub(crate) disk: Producer<ToDisk>,
    pub(crate) filled: Consumer<Filled>,
}

impl BlockServer {
    /// `waiters` is the most wants that can be open at once.
    pub(crate) fn new(
        keeper: Keeper,
        waiters: usize,
        rings: BlockRings,
        counters: Arc<BlockCounters>,
    ) -> Self {
        let places = keeper.places();
        Self {
            keeper,
            index: Index::new(places),
            recency: Recency::new(places),
            places: vec![Place::default(); places as usize],
            waiters: Pool::new(waiters),
            requests: rings.requests,
            answers: rings.answers,
            disk: rings.disk,
            filled: rings.filled,
            counters,
            uncommitted: false,
        }
    }

    fn handle_want(&mut self, want: Want) {
        let key = Key { title: want.title, block: want.block };
        let Some(place) = self.index.find(key) else {
            self.counters.misses.add(1);
            let fill = self.fill_of(want);
            self.begin_fill(key, fill);
            return;
        };
        self.counters.hits.add(1);
        let State::Filling(fill) = &mut self.places[place as usize].state else {
            self.lend(place, want.token);
            return;
        };
        self.waiters.push_back(&mut fill.waiters, want.token);
        fill.wanting += 1;
        fill.best_effort &= want.best_effort;
        if want.deadline < mutant!(PromotionForgotten, MonoTime(0), fill.job.deadline) {
            fill.job.deadline = want.deadline;
            let block = fill.job.transfer.block;
            self.tell_disk(ToDisk::Promote { block, deadline: want.deadline });
            self.uncommitted = true;
        }
    }

    /// Has the disk drop a read when the last who waited for it has gone. An answer that is on its way
    /// to the delivery server is not called back.
    fn handle_abandon(&mut self, token: u32, key: Key) {
        let Some(place) = self.index.find(key) else { return };
        let State::Filling(fill) = &mut self.places[place as usize].state else { return };
        // It may have been answered, and the block be read again for others.
        if !self.waiters.iter(&fill.waiters).any(|&waiter| waiter == token) {
            return;
        }
        fill.wanting -= 1;
        if fill.wanting == 0 {
            let block = fill.job.transfer.block;
            self.tell_disk(ToDisk::Drop { block });
        }
    }

    fn fill_of(&mut self, want: Want) -> Fill {
        let transfer = Transfer {
            direction: Direction::Read,
            block: ports::BlockRef { place: u32::MAX, generation: 0 },
            file: want.file,
            offset: Bytes(want.block * u64::from(self.keeper.block_size())),
            at: 0,
            len: want.len.next_multiple_of(SECTOR as u32),
            sum: None,
        };
        let job = Job { transfer, deadline: want.deadline, position: want.position };
        let mut waiters = List::default();
        self.waiters.push_back(&mut waiters, want.token);
        Fill { len: want.len, job, best_effort: want.best_effort, waiters, wanting: 1 }
    }

    /// Takes a place for the block of `key`, and has the disk fill it.
    fn begin_fill(&mut self, key: Key, mut fill: Fill) {
        let BlockRef { place, generation } = match self.keeper.take() {
            Some(block) => block,
            None => {
                self.evict_oldest();
                self.keeper.take().expect("a place has just become free")
            }
        };
        self.index.insert(key, place);
        fill.job.transfer.block = ports::BlockRef { place, generation };
        self.places[place as usize] =
            Place { key: Some(key), state: State::Filling(fill), generation };
        self.tell_disk(ToDisk::Read { job: fill.job, best_effort: fill.best_effort });
        self.uncommitted = true;
    }

    fn commit(&mut self, round: Round) {
        if std::mem::take(&mut self.uncommitted) {
            self.tell_disk(ToDisk::Commit(round));
        }
    }

    /// Makes room. The ledger grants no more blocks than there are places, so when none is free, one
    /// is held by nobody.
    fn evict_oldest(&mut self) {
        let place = self.recency.front().expect("the ledger grants no more than the arena has");
        self.recency.remove(place);
        let entry = &mut self.places[place as usize];
        let key = entry.key.take().expect("an idle place has a block");
        entry.state = State::Free;
        let block = BlockRef { place, generation: entry.generation };
        self.index.remove(key);
        self.keeper.evict(block);
        self.counters.evictions.add(1);
    }

    fn handle_filled(&mut self, filled: Filled) {
        let place = filled.block.place;
        let block = BlockRef { place, generation: filled.block.generation };
        let entry = &mut self.places[place as usize];
        let State::Filling(mut fill) = std::mem::take(&mut entry.state) else {
            panic!("{block:?} is filled once")
        };
        let unfilled = match filled.result {
            Ok(bytes) if bytes >= fill.len => {
                self.keeper.filled(block);
                entry.state = State::Idle;
                self.recency.push_back(place);
                while let Some(token) = self.waiters.pop_front(&mut fill.waiters) {
                    self.lend(place, token);
                }
                return;
            }
            // The file has become shorter than the title was: its bytes are not there.
            Ok(_) => Unfilled::Fault(DiskFault(CUT_SHORT)),
            Err(unfilled) => unfilled,
        };
        let key = entry.key.take().expect("a filling place has a block");
        self.index.remove(key);
        self.keeper.failed(block);
        if unfilled == Unfilled::Dropped && fill.wanting > 0 {
            // Somebody has come meanwhile, perhaps in a round that has ended.
            self.begin_fill(key, fill);
            self.tell_disk(ToDisk::Commit(Round::Stream));
            return;
        }
        while let Some(token) = self.waiters.pop_front(&mut fill.waiters) {
            self.answer(match unfilled {
                Unfilled::Fault(DiskFault(errno)) => FromBlock::Failed { token, errno },
                Unfilled::Dropped => FromBlock::Dropped { token },
            });
        }
    }

    fn lend(&mut self, place: u32, token: u32) {
        let entry = &mut self.places[place as usize];
        if matches!(entry.state, State::Idle) {
            self.recency.remove(place);
            entry.state = State::Held;
        }
        let lease = self.keeper.lend(BlockRef { place, generation: entry.generation });
        self.answer(FromBlock::Ready { token, lease });
    }

    fn handle_return(&mut self, lease: Lease) {
        let place = lease.block().place;
        if self.keeper.give_back(lease) {
            self.places[place as usize].state = State::Idle;
            self.recency.push_back(place);
        }
    }

    fn answer(&mut self, answer: FromBlock) {
        let pushed = self.answers.push(answer);
        assert!(pushed.is_ok(), "the ring holds an answer for every want");
    }

    fn tell_disk(&mut self, message: ToDisk) {
        let pushed = self.disk.push(message);
        assert!(pushed.is_ok(), "the ring holds a message for every place");
    }
}

impl Server for BlockServer {
    fn poll(&mut self, _now: MonoTime) -> bool {
        let mut any = false;
        while let Some(filled) = self.filled.pop() {
            any = true;
            self.handle_filled(filled);
        }
        while let Some(request) = self.requests.pop() {
            any = true;
            match request {
                ToBlock::Want(want) => self.handle_want(want),
                ToBlock::Return(lease) => self.handle_return(lease),
                ToBlock::Commit(round) => self.commit(round),
                ToBlock::Abandon { token, title, block } => {
                    self.handle_abandon(token, Key { title, block });
                }
            }
        }
        if any {
            let counts = self.keeper.counts();
            self.counters.resident.set(u64::from(counts.ready + counts.lent));
            self.counters.leased.set(u64::from(counts.lent));
        }
        any
    }

    fn poll_timeout(&self, _now: MonoTime) -> Option<MonoTime> {
        None
    }
}

/// The error number of a title that is shorter than it was when it was opened: `ENODATA`.
const CUT_SHORT: i32 = 61;
