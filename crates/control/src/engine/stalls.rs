//! Stalls: times in which a real-time core did not run although work was due.
//!
//! Promise: each stall of a core is counted with its length. A stall long enough for viewers to
//! notice is logged at once, with its cause if the kernel's figures show it, and appears in the
//! status. The core itself only counts; everything here runs on the control side and reads counters
//! and `/proc`.

mod evidence;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tactus_core::units::{MonoTime, Nanos, SECOND};
use tactus_engine::assembly::Counters;
use tactus_engine::cores::CORE_STALL;
use tactus_engine::counters::CoreCounters;
use tactus_sys::clock;
use tactus_sys::thread::ThreadId;

use super::watchdog::LOOK;
use crate::core_threads::CoreThreads;
use evidence::{Clues, Figures, Sample};

/// The record of stalls. Clones share it.
#[derive(Clone, Default, Debug)]
pub struct Stalls(Arc<Mutex<Summary>>);

/// All stalls since the start.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Their number.
    pub count: u64,
    /// Their total length.
    pub total: Nanos,
    /// The length of the longest.
    pub longest: Nanos,
    /// The last one that was logged.
    pub last: Option<Stall>,
    /// Cores that are stalled now.
    pub standing: Vec<OngoingStall>,
}

/// A stall, or several in a short time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stall {
    /// The core; none when the whole machine was suspended.
    pub core: Option<u32>,
    /// Number of stalls.
    pub count: u64,
    /// Their total length.
    pub length: Nanos,
    /// When it was noticed.
    pub seen: MonoTime,
    /// Streams whose clocks it moved.
    pub streams: u64,
    /// The cause, as far as known.
    pub cause: String,
}

/// A core that is stalled now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OngoingStall {
    /// The core.
    pub core: u32,
    /// Since when.
    pub since: MonoTime,
    /// The cause, as far as known.
    pub cause: String,
}

impl Stalls {
    /// The current record.
    pub fn summary(&self) -> Summary {
        self.lock().clone()
    }

    /// Lines for the list of problems: stalls of the last ten minutes.
    pub fn degraded(&self, now: MonoTime) -> Vec<String> {
        let summary = self.lock();
        let standing = summary.standing.iter().map(|standing| {
            let length = now.since(standing.since);
            format!("core {} has not run for {}: {}", standing.core, Length(length), standing.cause)
        });
        let last = summary
            .last
            .as_ref()
            .filter(|last| last.length >= STANDING && now.since(last.seen) < DEGRADED_FOR);
        let last = last.map(|last| format!("{last}, {} ago", Length(now.since(last.seen))));
        standing.chain(last).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Summary> {
        // Each change is a single assignment, so the value is valid after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.core {
            Some(core) => write!(f, "core {core} was stalled for {}", Length(self.length))?,
            None => write!(f, "the machine was stopped for {}", Length(self.length))?,
        }
        if self.count > 1 {
            write!(f, " ({} times)", self.count)?;
        }
        write!(f, ": {}; {} streams stay later by as much", self.cause, self.streams)
    }
}

/// A duration for people, rounded down to milliseconds.
struct Length(Nanos);

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.0 / 1_000_000;
        match millis {
            0..1000 => write!(f, "{millis} ms"),
            _ => write!(f, "{}.{} s", millis / 1000, millis / 100 % 10),
        }
    }
}

/// A core that has not run for this long is reported while the stall lasts.
const STANDING: Nanos = Nanos::from_millis(250);
/// Stalls of at least this length are logged at once; shorter ones are summed up.
const LOGGED: Nanos = Nanos::from_millis(50);
/// At most one line per core in this time.
const QUIET: Nanos = SECOND.times(5);
/// How often short stalls are summed up in the log.
const SUMMED_UP: Nanos = SECOND.times(60);
/// How long a stall stays in the list of problems.
const DEGRADED_FOR: Nanos = SECOND.times(600);

/// Reads the cores' counters.
pub(super) struct Watch {
    threads: CoreThreads,
    cores: Vec<Core>,
    counters: Counters,
    /// Moved clocks that have been reported.
    streams: u64,
    looked: MonoTime,
    suspended: Nanos,
    stalls: Stalls,
}

struct Core {
    cpu: u32,
    /// None while it is parked.
    thread: Option<ThreadId>,
    /// The kernel's figures of its thread, as far as it has any.
    figures: Option<Figures>,
    counters: Arc<CoreCounters>,
    seen: Baseline,
    /// The kernel's figures when the core last ran in time.
    well: Option<Sample>,
    standing: Option<Clues>,
    pending: PendingStalls,
}

#[derive(Clone, Copy, Default)]
struct Baseline {
    stalls: u64,
    stalled: u64,
}

/// Stalls that are not logged yet.
#[derive(Default)]
struct PendingStalls {
    count: u64,
    length: Nanos,
    longest: Nanos,
    cause: String,
    since: MonoTime,
    logged: Option<MonoTime>,
}

/// What to log now.
#[derive(PartialEq, Eq, Debug)]
enum LogAction {
    Nothing,
    Long,
    Short,
}

impl PendingStalls {
    fn add(&mut self, now: MonoTime, count: u64, length: Nanos, cause: String) {
        if self.count == 0 {
            self.since = now;
        }
        self.count += count;
        self.length += length;
        if length >= self.longest {
            (self.longest, self.cause) = (length, cause);
        }
    }

    fn due(&self, now: MonoTime) -> LogAction {
        let is_quiet = self.logged.is_some_and(|logged| now.since(logged) < QUIET);
        if self.count > 0 && self.longest >= LOGGED && !is_quiet {
            LogAction::Long
        } else if self.count > 0 && now.since(self.since) >= SUMMED_UP {
            LogAction::Short
        } else {
            LogAction::Nothing
        }
    }
}

impl Watch {
    pub(super) fn new(threads: CoreThreads, counters: &Counters, now: MonoTime) -> Self {
        let core = |(cpu, counters): (u32, &Arc<CoreCounters>)| Core {
            cpu,
            thread: None,
            figures: None,
            counters: Arc::clone(counters),
            seen: Baseline::default(),
            well: None,
            standing: None,
            pending: PendingStalls::default(),
        };
        let cores = threads.cpus().zip(&counters.cores).map(core).collect();
        Self {
            threads,
            cores,
            counters: counters.clone(),
            streams: 0,
            looked: now,
            suspended: clock::suspended(),
            stalls: Stalls::default(),
        }
    }

    pub(super) fn stalls(&self) -> Stalls {
        self.stalls.clone()
    }

    pub(super) fn look(&mut self, now: MonoTime) {
        let own_delay = now.since(self.looked).saturating_sub(LOOK);
        self.looked = now;
        self.look_at_suspension(now);
        let mut standing = vec![];
        for (at, core) in self.cores.iter_mut().enumerate() {
            core.follow(self.threads.thread(at));
            let found = core.look(now, own_delay);
            if let Some((count, length)) = found {
                let mut summary = self.stalls.lock();
                summary.count += count;
                summary.total += length;
                summary.longest = summary.longest.max(Nanos(core.counters.longest.value()));
            }
            standing.extend(core.standing(now));
        }
        self.stalls.lock().standing = standing;
        let moved = self.counters.sum_of_links(|link| &link.stalled_streams)
            + self.counters.sum_of_packet_servers(|packets| &packets.stalled_streams);
        for core in &mut self.cores {
            let log = core.pending.due(now);
            if log == LogAction::Nothing {
                continue;
            }
            let streams = moved - self.streams;
            self.streams = moved;
            let stall = core.tell(now, streams);
            match log {
                LogAction::Long => tracing::warn!("{stall}"),
                _ => tracing::info!("{stall}"),
            }
            self.stalls.lock().last = Some(stall);
        }
    }

    /// Handles a suspension, during which the monotonic clock stands still: no core is late then.
    fn look_at_suspension(&mut self, now: MonoTime) {
        let suspended = clock::suspended();
        let length = suspended.saturating_sub(self.suspended);
        self.suspended = suspended;
        if length < LOGGED {
            return;
        }
        let streams = self.counters.sum_of_deliveries(|server| &server.streams);
        let cause = "it was suspended".to_owned();
        let stall = Stall { core: None, count: 1, length, seen: now, streams, cause };
        tracing::warn!("{stall}");
        let mut summary = self.stalls.lock();
        summary.count += 1;
        summary.total += length;
        summary.longest = summary.longest.max(length);
        summary.last = Some(stall);
    }
}

impl Core {
    /// Takes over a thread that was started or ended.
    fn follow(&mut self, thread: Option<ThreadId>) {
        if self.thread != thread {
            self.thread = thread;
            self.figures = thread.and_then(|thread| Figures::open(thread, self.cpu).ok());
            self.well = self.sample();
            self.standing = None;
        }
    }

    fn sample(&mut self) -> Option<Sample> {
        self.figures.as_mut()?.sample()
    }

    /// New stalls: their number and total length.
    fn look(&mut self, now: MonoTime, own_delay: Nanos) -> Option<(u64, Nanos)> {
        let CoreCounters { stalls, stalled, .. } = &*self.counters;
        let seen = Baseline { stalls: stalls.value(), stalled: stalled.value() };
        let (count, length) =
            (seen.stalls - self.seen.stalls, Nanos(seen.stalled - self.seen.stalled));
        if count > 0 {
            self.seen = seen;
            let clues = self.clues(own_delay);
            // Threads that were on the core during the stall are better evidence than those that
            // run now.
            let others = self.standing.take().map(|clues| clues.others);
            let clues = clues.with_others(others.unwrap_or_default());
            self.pending.add(now, count, length, clues.cause(length));
            self.well = self.sample();
            return Some((count, length));
        }
        if self.standing(now).is_some() {
            return None;
        }
        if self.overdue(now) > STANDING {
            let others = evidence::real_time_on(self.cpu);
            let clues = self.clues(own_delay).with_others(others);
            let length = self.overdue(now);
            let cause = clues.cause(length);
            tracing::warn!("core {} has not run for {}: {cause}", self.cpu, Length(length));
            self.standing = Some(clues);
        } else {
            self.standing = None;
            // Not during a stall: the figures from its beginning would be lost.
            if self.overdue(now) <= CORE_STALL {
                self.well = self.sample();
            }
        }
        None
    }

    fn clues(&mut self, own_delay: Nanos) -> Clues {
        let now = self.sample();
        Clues::between(self.well.as_ref(), now.as_ref(), own_delay)
    }

    /// By how much the core's next turn is late now.
    fn overdue(&self, now: MonoTime) -> Nanos {
        match self.counters.due.value() {
            0 => Nanos(0),
            due => now.since(MonoTime(due)),
        }
    }

    fn standing(&self, now: MonoTime) -> Option<OngoingStall> {
        let length = self.overdue(now);
        let clues = self.standing.as_ref().filter(|_| length > STANDING)?;
        let since = now.before(length);
        Some(OngoingStall { core: self.cpu, since, cause: clues.cause(length) })
    }

    /// Returns the stall to log; nothing is pending afterwards.
    fn tell(&mut self, now: MonoTime, streams: u64) -> Stall {
        let logged = Some(now);
        let PendingStalls { count, length, cause, .. } = std::mem::replace(
            &mut self.pending,
            PendingStalls { logged, ..PendingStalls::default() },
        );
        Stall { core: Some(self.cpu), count, length, seen: now, streams, cause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> (Watch, Arc<CoreCounters>) {
        let counters = CoreCounters::default();
        let counters = Arc::new(counters);
        let all = Counters {
            cores: vec![Arc::clone(&counters)],
            servers: Arc::default(),
            disks: vec![],
            blocks: vec![],
            deliveries: vec![Arc::default()],
            links: vec![Arc::default()],
            file: Arc::default(),
            packets: vec![Arc::default()],
            classes: Arc::new([]),
            streams: Arc::new([]),
        };
        // It has no thread: the counters alone tell of stalls.
        let threads = CoreThreads::new(vec![tactus_engine::cores::Core::default()], [0], None);
        (Watch::new(threads.unwrap(), &all, MonoTime(SECOND.0)), counters)
    }

    fn stall(counters: &CoreCounters, length: Nanos) {
        counters.stalls.add(1);
        counters.stalled.add(length.0);
        counters.longest.raise(length.0);
    }

    #[test]
    fn s04_a_stall_is_in_the_status_with_its_length_and_for_ten_minutes_among_the_problems() {
        for millis in [300, 5_000, 21_000] {
            let (mut watch, counters) = watch();
            let stalls = watch.stalls();
            let mut now = MonoTime(10 * SECOND.0);
            watch.look(now);
            assert_eq!(stalls.summary(), Summary::default());
            stall(&counters, Nanos::from_millis(millis));
            watch.counters.links[0].stalled_streams.add(3);
            now += LOOK;
            watch.look(now);
            let summary = stalls.summary();
            assert_eq!((summary.count, summary.longest), (1, Nanos::from_millis(millis)));
            let last = summary.last.expect("it is logged at once");
            assert_eq!((last.core, last.streams), (Some(0), 3));
            assert_eq!(last.length, Nanos::from_millis(millis));
            let said = stalls.degraded(now).join("\n");
            assert!(said.contains("core 0 was stalled for"), "{said}");
            assert!(said.contains("3 streams stay later by as much"), "{said}");
            assert_eq!(stalls.degraded(now + DEGRADED_FOR), Vec::<String>::new());
        }
    }

    #[test]
    fn s04_a_stalled_core_is_reported_before_it_runs_again() {
        let (mut watch, counters) = watch();
        let stalls = watch.stalls();
        let now = MonoTime(10 * SECOND.0);
        counters.due.set(now.0);
        watch.look(now + Nanos::from_millis(100));
        assert!(stalls.summary().standing.is_empty());
        watch.look(now + SECOND);
        let standing = stalls.summary().standing;
        assert_eq!((standing[0].core, standing[0].since), (0, now));
        assert!(stalls.degraded(now + SECOND)[0].starts_with("core 0 has not run for 1.0 s"));
        stall(&counters, SECOND.times(2));
        counters.due.set(now.0 + 3 * SECOND.0);
        watch.look(now + SECOND.times(2));
        assert!(stalls.summary().standing.is_empty());
        assert_eq!(stalls.summary().last.map(|last| last.length), Some(SECOND.times(2)));
    }

    #[test]
    fn s04_many_stalls_are_one_line_in_five_seconds_and_short_ones_one_in_a_minute() {
        let mut pending = PendingStalls::default();
        let begun = MonoTime(100 * SECOND.0);
        let mut lines = (0, 0);
        for looks in 0..480 {
            let now = begun + LOOK.times(looks);
            // Long stalls in the first minute, short ones in the second.
            let length = if looks < 240 { 80 } else { 20 };
            pending.add(now, 1, Nanos::from_millis(length), String::new());
            match pending.due(now) {
                LogAction::Nothing => continue,
                LogAction::Long => lines.0 += 1,
                LogAction::Short => lines.1 += 1,
            }
            pending = PendingStalls { logged: Some(now), ..PendingStalls::default() };
        }
        assert!((11..=13).contains(&lines.0), "{lines:?}");
        assert!((0..=2).contains(&lines.1), "{lines:?}");
    }
}
