//! CPU time: what a server's process tree ran, what kernel workers ran, and what ran in neither.
//!
//! Promise: run time is the scheduler's own, in nanoseconds, over all threads of the tree. `X` is
//! the interrupt work outside threads: cores x T - idle - iowait - run time of all threads, less
//! the same of an idle stretch scaled to T. The softirq column is not used: it counts work inside
//! send calls twice. A thread that ends between two looks is lost to its tree, so trees must be
//! long-lived; the run time of all threads comes from cpuacct where the kernel has it, which loses
//! none.

use std::collections::HashMap;
use std::fs;

use anyhow::{Context, Result};
use serde::Serialize;
use tactus_core::units::{MonoTime, Nanos};

use crate::clock;
use crate::priority;

/// A look at all threads of the machine.
#[derive(Debug)]
pub struct CpuSnapshot {
    at: MonoTime,
    threads: HashMap<u32, Thread>,
    /// Run time of all threads, ended ones too, since boot; if the kernel keeps it.
    all: Option<Nanos>,
    /// Idle and iowait time of all cores, since boot.
    idle: Nanos,
    /// Time that the hypervisor gave to others, since boot.
    steal: Nanos,
}

#[derive(Debug)]
struct Thread {
    process: u32,
    parent: u32,
    name: String,
    kernel: bool,
    real_time: bool,
    ran: Nanos,
}

/// What ran between two looks.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CpuUsage {
    /// Wall time, seconds.
    pub wall: f64,
    /// Run time of the server's process tree, seconds.
    pub tree: f64,
    /// The part of `tree` that ran in threads with a real-time policy, seconds.
    pub real_time: f64,
    /// Run time of the receiver's thread, seconds. Most of it is switches of the processor to the
    /// thread and away. A server with a higher priority than the receiver causes fewer of them.
    pub receiver: f64,
    /// Run time of the bench's other threads, such as the gap detector's, seconds.
    pub bench: f64,
    /// Run time of kernel threads by kind, seconds; kinds under a millisecond are left out.
    pub kernel: Vec<(String, f64)>,
    /// Run time of all threads of the machine, seconds.
    pub all: f64,
    /// cores x T - idle - iowait - all, seconds, before the idle stretch is taken off.
    pub outside: f64,
    /// Steal time of all cores, seconds.
    pub steal: f64,
}

/// The name of the receiver's thread.
pub const RECEIVER: &str = "receiver";
/// USER_HZ, the unit of /proc/stat: fixed at 100 by the kernel's interface.
const TICK: Nanos = Nanos::from_millis(10);

/// Nanoseconds of run time of the root group, hence of all threads (cgroup v1, cpuacct).
const ALL_RUN_TIME: &str = "/sys/fs/cgroup/cpuacct/cpuacct.usage";

impl CpuSnapshot {
    /// Looks now.
    pub fn take() -> Result<Self> {
        let mut threads = HashMap::new();
        for process in numbered("/proc")? {
            // A process that ends meanwhile is no error.
            let Ok(identity) = Identity::read(process) else { continue };
            let Ok(tasks) = numbered(&format!("/proc/{process}/task")) else { continue };
            for task in tasks {
                let path = format!("/proc/{process}/task/{task}");
                let (Ok(ran), Ok(stat)) = (
                    fs::read_to_string(format!("{path}/schedstat")),
                    fs::read_to_string(format!("{path}/stat")),
                ) else {
                    continue;
                };
                let (name, real_time) =
                    name_and_policy(&stat).with_context(|| format!("{path}/stat"))?;
                let ran = ran.split_whitespace().next().and_then(|text| text.parse().ok());
                threads.insert(
                    task,
                    Thread {
                        process,
                        parent: identity.parent,
                        name,
                        kernel: identity.kernel,
                        real_time,
                        ran: Nanos(ran.with_context(|| format!("{path}/schedstat"))?),
                    },
                );
            }
        }
        let (idle, steal) = idle_and_steal(&fs::read_to_string("/proc/stat")?)?;
        let all = fs::read_to_string(ALL_RUN_TIME).ok();
        let all = all.and_then(|text| text.trim().parse().ok()).map(Nanos);
        Ok(Self { at: clock::now(), threads, all, idle, steal })
    }

    /// What ran since `earlier`; the tree is that of process `root`.
    pub fn since(&self, earlier: &CpuSnapshot, root: u32) -> CpuUsage {
        let mut spent =
            CpuUsage { wall: seconds(self.at.since(earlier.at)), ..CpuUsage::default() };
        let mut kinds: HashMap<String, f64> = HashMap::new();
        for (task, thread) in &self.threads {
            let before = earlier.threads.get(task).filter(|then| then.process == thread.process);
            let before = before.map_or(Nanos::ZERO, |then| then.ran);
            let ran = seconds(thread.ran.saturating_sub(before));
            spent.all += ran;
            if thread.kernel {
                *kinds.entry(kind(&thread.name).to_owned()).or_default() += ran;
            } else if thread.process == std::process::id() {
                match thread.name.as_str() {
                    RECEIVER => spent.receiver += ran,
                    _ => spent.bench += ran,
                }
            } else if self.descends(thread, root) {
                spent.tree += ran;
                if thread.real_time {
                    spent.real_time += ran;
                }
            }
        }
        if let (Some(then), Some(now)) = (earlier.all, self.all) {
            spent.all = seconds(now.saturating_sub(then));
        }
        spent.kernel = kinds.into_iter().filter(|(_, ran)| *ran >= 0.001).collect();
        spent.kernel.sort_by(|left, right| right.1.total_cmp(&left.1));
        spent.steal = seconds(self.steal.saturating_sub(earlier.steal));
        let idle = seconds(self.idle.saturating_sub(earlier.idle));
        spent.outside = priority::cores() as f64 * spent.wall - idle - spent.all;
        spent
    }

    fn descends(&self, thread: &Thread, root: u32) -> bool {
        let mut thread = thread;
        // A tree deeper than this is none of ours; the bound also ends a loop of reused numbers.
        for _ in 0..16 {
            if thread.process == root || thread.parent == root {
                return true;
            }
            match self.threads.get(&thread.parent) {
                Some(parent) => thread = parent,
                None => return false,
            }
        }
        false
    }
}

/// Above this share of the machine other programs make X meaningless: it then holds their
/// interrupts and the work of those that they kept waiting.
const OTHERS_MAX: f64 = 0.10;

impl CpuUsage {
    /// The server's cost in CPU seconds: its tree, the kernel workers, and X; both of the latter
    /// less what `idle` saw without a server, scaled to this stretch.
    pub fn cost(&self, idle: &CpuUsage) -> Cost {
        let scale = if idle.wall > 0.0 { self.wall / idle.wall } else { 0.0 };
        Cost {
            tree: self.tree,
            workers: (self.workers() - idle.workers() * scale).max(0.0),
            outside: (self.quiet() && idle.quiet() && scale > 0.0)
                .then_some(self.outside - idle.outside * scale),
        }
    }

    fn workers(&self) -> f64 {
        self.kernel.iter().map(|(_, ran)| ran).sum()
    }

    /// Whether other programs left the machine alone, so that X means something.
    pub fn quiet(&self) -> bool {
        self.others() <= OTHERS_MAX
    }

    /// The share of the machine that neither the server nor the bench nor the kernel took.
    fn others(&self) -> f64 {
        let known = self.tree + self.receiver + self.bench + self.workers();
        (self.all - known).max(0.0) / (self.wall * priority::cores() as f64)
    }
}

/// What one server cost, in CPU seconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Run time of its threads.
    pub tree: f64,
    /// Run time of kernel workers above the idle stretch.
    pub workers: f64,
    /// X: interrupt work outside threads. May be slightly negative, for it is a difference; absent
    /// when other programs were at work.
    pub outside: Option<f64>,
}

impl Cost {
    /// All of it that is known.
    pub fn total(&self) -> f64 {
        self.tree + self.workers + self.outside.unwrap_or(0.0)
    }
}

/// The run time of one thread of this process so far.
pub fn thread_run_time(thread: u32) -> Result<Nanos> {
    ran(&format!("/proc/self/task/{thread}/schedstat"))
}

/// The run time of the calling thread so far.
pub fn own_run_time() -> Result<Nanos> {
    ran("/proc/thread-self/schedstat")
}

/// The run time of all threads of a process so far. One that ends meanwhile is left out.
pub fn process_run_time(process: u32) -> Result<Nanos> {
    let mut sum = Nanos(0);
    for task in numbered(&format!("/proc/{process}/task"))? {
        sum += ran(&format!("/proc/{process}/task/{task}/schedstat")).unwrap_or_default();
    }
    Ok(sum)
}

fn ran(path: &str) -> Result<Nanos> {
    let text = fs::read_to_string(path)?;
    let ran = text.split_whitespace().next().with_context(|| format!("{path} is empty"))?;
    Ok(Nanos(ran.parse()?))
}

struct Identity {
    parent: u32,
    kernel: bool,
}

impl Identity {
    /// Kernel threads have the flag PF_KTHREAD (include/linux/sched.h), field 9 of `stat`.
    fn read(process: u32) -> Result<Self> {
        const PF_KTHREAD: u64 = 0x0020_0000;
        let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
        let after_name = text.rsplit_once(')').context("stat without a name")?.1;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let parent = fields.get(1).context("stat without a parent")?.parse()?;
        let flags: u64 = fields.get(6).context("stat without flags")?.parse()?;
        Ok(Self { parent, kernel: flags & PF_KTHREAD != 0 })
    }
}

/// A thread's name, and whether its scheduling policy is a real-time one: SCHED_FIFO, SCHED_RR or
/// SCHED_DEADLINE (field 41 of `stat`).
fn name_and_policy(stat: &str) -> Option<(String, bool)> {
    let (head, after_name) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1;
    let policy = after_name.split_whitespace().nth(38)?;
    Some((name.to_owned(), matches!(policy, "1" | "2" | "6")))
}

fn idle_and_steal(stat: &str) -> Result<(Nanos, Nanos)> {
    let line = stat.lines().next().context("/proc/stat is empty")?;
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).map(|text| text.parse().unwrap_or(0)).collect();
    let column = |place: usize| ticks.get(place).copied().unwrap_or(0);
    Ok((TICK.times(column(3) + column(4)), TICK.times(column(7))))
}

/// The kind of a kernel thread: its name up to its number, `kworker` for `kworker/u8:2-events`.
fn kind(name: &str) -> &str {
    let end = name.find(['/', ':']).unwrap_or(name.len());
    name[..end].trim_end_matches(|c: char| c.is_ascii_digit())
}

fn numbered(directory: &str) -> Result<Vec<u32>> {
    let entries = fs::read_dir(directory)?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter_map(|name| name.parse().ok()).collect())
}

fn seconds(span: Nanos) -> f64 {
    span.0 as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_threads_are_grouped_by_their_name_without_numbers() {
        assert_eq!(kind("kworker/u8:2-events_unbound"), "kworker");
        assert_eq!(kind("ksoftirqd/1"), "ksoftirqd");
        assert_eq!(kind("kswapd0"), "kswapd");
        assert_eq!(kind("loop7"), "loop");
    }

    #[test]
    fn idle_is_idle_and_iowait_and_steal_stands_apart() {
        let stat = "cpu  1 2 3 400 50 6 7 8 0 0\ncpu0 1 1 1 1\n";
        let (idle, steal) = idle_and_steal(stat).unwrap();
        assert_eq!((idle, steal), (Nanos::from_millis(4_500), Nanos::from_millis(80)));
    }

    #[test]
    fn a_real_time_thread_is_known_by_its_policy_whatever_its_name() {
        let stat = |policy: u32| {
            let zeros = "0 ".repeat(35);
            format!("7 (a) b c) S 1 7 {zeros}{policy} 0 0")
        };
        for (policy, real_time) in [(0, false), (1, true), (2, true), (3, false), (6, true)] {
            assert_eq!(name_and_policy(&stat(policy)), Some(("a) b c".into(), real_time)));
        }
        assert_eq!(name_and_policy("7 (short) S 1"), None);
    }

    #[test]
    fn a_busy_thread_shows_up_under_its_process() {
        let before = CpuSnapshot::take().unwrap();
        let mut sum = 0_u64;
        let start = clock::now();
        while clock::now().since(start) < Nanos::from_millis(30) {
            sum = sum.wrapping_add(start.0);
        }
        std::hint::black_box(sum);
        let spent = CpuSnapshot::take().unwrap().since(&before, std::process::id());
        // The scheduler settles accounts at its tick at the latest.
        assert!(spent.bench > 0.01 && spent.all > 0.01, "{spent:?}");
    }

    #[test]
    fn cost_takes_the_idle_stretch_off_scaled_to_the_run() {
        let idle = CpuUsage {
            wall: 10.0,
            kernel: vec![("kworker".into(), 0.1)],
            outside: 0.2,
            ..CpuUsage::default()
        };
        let run = CpuUsage {
            wall: 20.0,
            tree: 3.0,
            all: 3.6,
            kernel: vec![("kworker".into(), 0.5), ("ksoftirqd".into(), 0.1)],
            outside: 1.0,
            ..CpuUsage::default()
        };
        let cost = run.cost(&idle);
        assert!((cost.workers - 0.4).abs() < 1e-9);
        assert!((cost.outside.unwrap() - 0.6).abs() < 1e-9);
        assert!((cost.total() - 4.0).abs() < 1e-9);
        let busy = CpuUsage { all: 3.6 + 0.2 * 20.0 * priority::cores() as f64, ..run };
        assert_eq!(busy.cost(&idle).outside, None);
    }
}
