//! Cores: a pinned thread polls the servers placed on it and sleeps until the earliest deadline.
//!
//! The [`Host`] decides how the thread runs (pinned, real-time, how it sleeps). The simulator turns
//! cores without threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tactus_core::mutant;
use tactus_core::units::{MonoTime, Nanos};
use tactus_ring::spsc::Consumer;

use crate::counters::{CoreCounters, ServerCounters};
use crate::migration::{Mailbox, Migration, Order};
use crate::name::{Job, ServerName};
use crate::server::Server;

/// The thread that a core runs on.
pub trait Host {
    /// The monotonic clock.
    fn now(&mut self) -> MonoTime;

    /// Sleeps until `until` or a wake-up; for a bounded time when there is no deadline.
    fn sleep(&mut self, until: Option<MonoTime>);

    /// Whether the core should end.
    fn is_stopping(&self) -> bool;
}

/// The servers placed on one core, in the order in which they are polled.
pub struct Core {
    placed: Vec<PlacedServer>,
    mailbox: Mailbox,
    orders: Consumer<Order>,
    /// Servers that are to arrive.
    expected: Vec<ExpectedServer>,
    /// While streams run anywhere, servers on other cores may send at any time without a wake-up.
    pub(crate) look_at_least_every: Nanos,
    /// Whether there are other cores that run; shared by all cores of an engine.
    pub(crate) several: Arc<AtomicBool>,
    /// When the next turn is due.
    due: Option<MonoTime>,
    counters: Arc<CoreCounters>,
    /// Of all servers of the engine: those of a server are written by the core on which it is.
    pub(crate) of_servers: Arc<[(ServerName, ServerCounters)]>,
}

/// The place of one server.
struct PlacedServer {
    name: ServerName,
    server: Box<dyn Server>,
    /// The index of its counters.
    counters: Option<usize>,
    /// Set while the server is to leave.
    leaving: Option<Arc<Migration>>,
}

/// A server that is to arrive.
struct ExpectedServer {
    migration: Arc<Migration>,
    /// Whether its old core knows that this one is ready for it.
    is_announced: bool,
    since: MonoTime,
    /// Set when it has arrived: the time in which it began nothing.
    pause: Option<Nanos>,
}

impl Default for Core {
    fn default() -> Self {
        let (mailbox, orders) = Mailbox::new();
        Self {
            placed: Vec::with_capacity(SERVERS),
            mailbox,
            orders,
            expected: Vec::with_capacity(SERVERS),
            look_at_least_every: Nanos(0),
            several: Arc::default(),
            due: None,
            counters: Arc::default(),
            of_servers: Arc::default(),
        }
    }
}

impl Core {
    /// The core's counters of its own turns.
    pub fn counters(&self) -> Arc<CoreCounters> {
        Arc::clone(&self.counters)
    }

    /// The control side's end of the orders for this core.
    pub fn mailbox(&self) -> Mailbox {
        self.mailbox.clone()
    }

    /// Whether more than one core of the engine runs: if not, this one only looks for messages when
    /// it is woken. Assembled cores are all taken as running.
    pub fn several(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.several)
    }

    /// Adds a server. Datagrams are polled before all others, because their deadlines are the
    /// tightest, then the servers in the order of a byte's path.
    pub fn place(&mut self, name: ServerName, server: Box<dyn Server>) {
        let rank = |name: &ServerName| (name.job != Job::Packets, *name);
        let at = self.placed.partition_point(|one| rank(&one.name) < rank(&name));
        let counters = self.of_servers.iter().position(|(of, _)| *of == name);
        self.placed.insert(at, PlacedServer { name, server, counters, leaving: None });
    }

    /// The names of the servers that sit here.
    pub fn names(&self) -> impl Iterator<Item = ServerName> {
        self.placed.iter().map(|one| one.name)
    }

    /// Polls every server until none has work left at `now`. Returns the time of the next turn. The
    /// number of rounds is bounded, so the thread always sleeps.
    pub fn turn(&mut self, now: MonoTime) -> Option<MonoTime> {
        self.turn_by(now, || now)
    }

    /// Like [`Self::turn`], and counts the time that each server takes by `clock`. The clock is
    /// read after each poll that did something, so a turn without work costs nothing.
    pub fn turn_by(
        &mut self,
        now: MonoTime,
        mut clock: impl FnMut() -> MonoTime,
    ) -> Option<MonoTime> {
        self.watch_stall(now);
        self.take_orders(now);
        self.let_servers_in(now);
        self.withdraw_for_work(now);
        let is_interrupted = self.poll(now, &mut clock);
        self.announce();
        let is_leaving = self.let_servers_go(&mut clock);
        let timeouts = self.placed.iter().filter_map(|one| one.server.poll_timeout(now));
        let again = is_leaving.then(|| now + TRY_AGAIN);
        let awake = is_interrupted.then_some(now).or_else(|| self.expects(now));
        let soonest = timeouts.chain(again).chain(awake).min();
        let looks = self.several.load(Ordering::Acquire) && !self.placed.is_empty();
        let look = looks.then(|| now + self.look_at_least_every);
        self.due = match (soonest, look) {
            (Some(soonest), Some(look)) => Some(soonest.min(look)),
            (soonest, look) => soonest.or(look),
        };
        self.counters.due.set(self.due.map_or(0, |due| due.0));
        self.report_arrivals();
        self.due
    }

    /// Returns true if it was interrupted, because a server waits for its arrival or the turn has
    /// lasted long. The next turn is then due at once and does the rest.
    fn poll(&mut self, now: MonoTime, clock: &mut impl FnMut() -> MonoTime) -> bool {
        let mut read = now;
        for _ in 0..ROUNDS {
            let mut any = false;
            for one in &mut self.placed {
                if !one.server.poll(now) {
                    continue;
                }
                any = true;
                let then = clock();
                if let Some((_, counters)) = one.counters.and_then(|at| self.of_servers.get(at)) {
                    counters.busy.add(then.since(read).0);
                }
                read = then;
                if self.expected.iter().any(|expected| expected.migration.is_ahead()) {
                    return true;
                }
            }
            if !any {
                break;
            }
            if read.since(now) > LONG_TURN {
                return true;
            }
        }
        false
    }

    fn take_orders(&mut self, now: MonoTime) {
        while let Some(order) = self.orders.pop() {
            match order {
                Order::Leave(migration) => {
                    let name = migration.name();
                    let one = self.placed.iter_mut().find(|one| one.name == name);
                    if let Some(one) = one {
                        one.leaving = Some(migration);
                    }
                }
                Order::Expect(migration) => self.expected.push(ExpectedServer {
                    migration,
                    is_announced: false,
                    since: now,
                    pause: None,
                }),
            }
        }
    }

    /// Lets servers go whose new cores are awake, after all that was due. Returns whether one
    /// cannot leave yet.
    fn let_servers_go(&mut self, clock: &mut impl FnMut() -> MonoTime) -> bool {
        let mut any = false;
        for at in (0..self.placed.len()).rev() {
            let Some(migration) = self.placed[at].leaving.take() else { continue };
            if !migration.is_expected() {
                self.placed[at].leaving = mutant!(OrderForgotten, None, Some(migration));
                continue;
            }
            let PlacedServer { name, server, counters, .. } = self.placed.remove(at);
            if let Err(server) = migration.leave(server, clock()) {
                let leaving = Some(migration);
                self.placed.insert(at, PlacedServer { name, server, counters, leaving });
                any = true;
            }
        }
        any
    }

    fn let_servers_in(&mut self, now: MonoTime) {
        for at in 0..self.expected.len() {
            let expected = &mut self.expected[at];
            if let Some((server, since)) = expected.migration.arrive() {
                expected.pause = Some(now.since(since));
                let name = expected.migration.name();
                self.place(name, server);
            }
        }
    }

    /// Before work that is due, says that no server can arrive, as one would wait for its end;
    /// otherwise that each can.
    fn withdraw_for_work(&mut self, now: MonoTime) {
        if self.expected.is_empty() {
            return;
        }
        let is_due = |one: &PlacedServer| one.server.poll_timeout(now).is_some_and(|at| at <= now);
        if !self.placed.iter().any(is_due) {
            return self.announce();
        }
        for expected in &mut self.expected {
            if expected.is_announced && now.since(expected.since) < GIVE_WAY {
                expected.migration.withdraw();
                expected.is_announced = false;
            }
        }
        // One that was on its way by then.
        self.let_servers_in(now);
    }

    /// Says that servers can arrive.
    fn announce(&mut self) {
        let waits = |one: &&mut ExpectedServer| !one.is_announced && one.pause.is_none();
        for expected in self.expected.iter_mut().filter(waits) {
            expected.migration.expect();
            expected.is_announced = true;
        }
    }

    /// When the core looks again for servers that are to arrive: while it was just woken for one it
    /// stays awake, and does not sleep and wake once more.
    fn expects(&self, now: MonoTime) -> Option<MonoTime> {
        let recent = |expected: &ExpectedServer| now.since(expected.since) < STAY_AWAKE;
        let waits = |expected: &ExpectedServer| expected.pause.is_none() && recent(expected);
        self.expected.iter().any(waits).then(|| now + LOOK_AGAIN)
    }

    /// Tells which servers have arrived, after they were polled.
    fn report_arrivals(&mut self) {
        self.expected.retain(|expected| match expected.pause {
            Some(pause) => {
                expected.migration.has_arrived(pause);
                false
            }
            None => true,
        });
    }

    /// Counts a turn that begins long after it was due: another program used the core, the machine
    /// was paused, or the turn before took too long.
    fn watch_stall(&mut self, now: MonoTime) {
        let Some(due) = self.due else { return };
        let late = now.since(due);
        if late > CORE_STALL {
            self.counters.stalls.add(1);
            self.counters.stalled.add(late.0);
            self.counters.longest.raise(late.0);
        }
    }

    /// Turns until the host stops; the core can run again then.
    #[must_use]
    pub fn run(mut self, host: &mut impl Host) -> Self {
        while !host.is_stopping() {
            let now = host.now();
            let until = self.turn_by(now, || host.now());
            host.sleep(until);
        }
        // Nothing is due at a core that does not run.
        self.due = None;
        self.counters.due.set(0);
        self
    }
}

/// A turn that begins later than this counts as a stall: twice the lateness promised for 99.9 % of
/// all sends.
pub const CORE_STALL: Nanos = Nanos::from_millis(10);

/// A turn of this length ends when each server was polled once more: the next one has a fresh time,
/// and datagrams that have become due meanwhile come first in it.
const LONG_TURN: Nanos = Nanos::from_micros(500);

/// Seats for which a core has room without an allocation.
const SERVERS: usize = 64;

/// When a core looks again whether a server may leave.
const TRY_AGAIN: Nanos = Nanos::from_micros(50);

/// How long a core that expects a server stays awake for it: four turns of the packet server at its
/// usual tick. The old core lets a server go at the end of its turn. If the new core slept by then,
/// the time in which its thread wakes would be a part of the pause.
const STAY_AWAKE: Nanos = Nanos::from_millis(1);

/// How long work of its own comes first: a core that always works takes a server in all the same.
const GIVE_WAY: Nanos = CORE_STALL;

/// How often it looks meanwhile. A sleep as short takes no system call.
const LOOK_AGAIN: Nanos = SHORT_SLEEP;

/// The shortest sleep that is worth its system call.
pub const SHORT_SLEEP: Nanos = Nanos::from_micros(5);

/// A want travels delivery, block, disk, and a filled block disk, block, delivery, link: six rounds
/// pass it on even in the worst order of servers.
const ROUNDS: u32 = 6;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tactus_core::ports::Waker;

    use super::*;
    use crate::migration::MigrationWakers;

    /// Does something in its next polls.
    struct Worker(u32);

    impl Server for Worker {
        fn poll(&mut self, _now: MonoTime) -> bool {
            let works = self.0 > 0;
            self.0 = self.0.saturating_sub(1);
            works
        }

        fn poll_timeout(&self, _now: MonoTime) -> Option<MonoTime> {
            None
        }
    }

    /// Always has work that is due, and notes whether a server may arrive meanwhile.
    struct Due(Arc<Migration>, Arc<Mutex<Vec<bool>>>);

    impl Server for Due {
        fn poll(&mut self, _now: MonoTime) -> bool {
            self.1.lock().expect("no panic").push(self.0.is_expected());
            false
        }

        fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime> {
            Some(now)
        }
    }

    struct Silent;

    impl Waker for Silent {
        fn wake(&self) {}
    }

    #[test]
    fn a_core_is_ready_for_a_server_after_work_that_is_due_and_in_the_end_in_any_case() {
        let name = |job| ServerName { job, index: 0 };
        let wakers = MigrationWakers {
            from: Box::new(Silent),
            to: Box::new(Silent),
            control: Box::new(Silent),
        };
        let migration = Migration::new(name(Job::Disk), 1, wakers);
        let (mut from, mut to, seen) = (Core::default(), Core::default(), Arc::default());
        from.place(name(Job::Disk), Box::new(Worker(0)));
        to.place(name(Job::Link), Box::new(Due(Arc::clone(&migration), Arc::clone(&seen))));
        migration.begin(&from.mailbox(), &to.mailbox());
        let begun = MonoTime(1000);
        let times = [begun, begun + LOOK_AGAIN, begun + GIVE_WAY];
        for now in times {
            to.turn(now);
            assert!(migration.is_expected(), "between its turns");
        }
        assert_eq!(*seen.lock().expect("no panic"), [false, false, true]);
        from.turn(times[2]);
        to.turn(times[2]);
        assert!(to.names().eq([name(Job::Disk), name(Job::Link)]) && from.names().next().is_none());
    }

    #[test]
    fn a_turn_counts_the_time_of_the_servers_that_did_something_and_reads_no_clock_without_work() {
        let name = |job| ServerName { job, index: 0 };
        let (busy, other) = (name(Job::Disk), name(Job::Link));
        let names = [busy, other].map(|name| (name, ServerCounters::default()));
        let mut core = Core { of_servers: names.into(), ..Core::default() };
        core.place(busy, Box::new(Worker(2)));
        core.place(other, Box::new(Worker(1)));
        // It has no counters, and is counted nowhere.
        core.place(name(Job::File), Box::new(Worker(1)));
        let (begun, mut readings) = (MonoTime(1000), 0);
        let turn = |core: &mut Core, readings: &mut u64| {
            core.turn_by(begun, || {
                *readings += 1;
                MonoTime(1000 + 100 * *readings)
            });
        };
        turn(&mut core, &mut readings);
        let counted = |core: &Core| [0, 1].map(|at| core.of_servers[at].1.busy.value());
        assert_eq!((counted(&core), readings), ([200, 100], 4));
        turn(&mut core, &mut readings);
        assert_eq!((counted(&core), readings), ([200, 100], 4));
    }

    #[test]
    fn a_long_turn_ends_when_each_server_was_polled_and_the_next_is_due_at_once() {
        let mut core = Core::default();
        let name = |job| ServerName { job, index: 0 };
        core.place(name(Job::Disk), Box::new(Worker(3)));
        core.place(name(Job::Link), Box::new(Worker(2)));
        let begun = MonoTime(1000);
        let turn = |core: &mut Core, each: Nanos| {
            let mut polls = 0;
            let wanted = core.turn_by(begun, || {
                polls += 1;
                begun + each.times(polls)
            });
            (wanted, polls)
        };
        assert_eq!(turn(&mut core, LONG_TURN), (Some(begun), 2));
        assert_eq!(turn(&mut core, Nanos(1)), (None, 3));
    }
}
