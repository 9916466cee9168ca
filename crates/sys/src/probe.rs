//! Facts about the machine, for `tactus doctor` and the status page: plain data, read once.
//!
//! Promise: the probe changes nothing, needs no capabilities, and never fails as a whole. A fact
//! that cannot be read is absent, or carries the error number. This module judges nothing.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, Rlimit};
use rustix::thread::CapabilitySet;
use tactus_core::units::Bytes;

use crate::disk::uring;
use crate::memory::{self, Memory, PAGE, meminfo_bytes};
use crate::thread;
use crate::topology::cores_of;

mod network;
mod qdisc;
mod volume;

pub use network::{Interface, Network, Queue, network, queues};
pub use volume::{Device, DirectReads, Volume, volume};

/// The machine's resources for this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Release of the kernel, as in `uname -r`.
    pub kernel: String,
    /// Cores that this process may use.
    pub cores: Vec<u32>,
    /// Cores that the scheduler keeps free (`isolcpus`).
    pub isolated: Vec<u32>,
    /// The cores' frequency governor; `None` if the system does not control the frequency.
    pub governor: Option<String>,
    /// The clock source.
    pub clock_source: Option<String>,
    /// Whether a thread may be real-time.
    pub real_time: RealTime,
    /// Bytes of memory that may be locked; no limit with `CAP_IPC_LOCK`.
    pub lockable: Limit,
    /// Limit of open files.
    pub open_files: Limit,
    /// Bytes that all pipes of this user may hold; `None` without a limit.
    pub pipes: Option<Bytes>,
    /// Memory and its limits.
    pub memory: Memory,
    /// Huge pages.
    pub huge_pages: HugePages,
    /// Features of io_uring, or the error number of its refusal.
    pub io_uring: Result<IoUringFacts, i32>,
    /// The sysctl `kernel.io_uring_disabled`; `None` before Linux 6.6.
    pub io_uring_disabled: Option<u32>,
}

/// Whether a thread may run under `SCHED_FIFO`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RealTime {
    /// Granted, or the error number of the refusal.
    pub fifo: Result<(), i32>,
    /// This process' control group (version 1) has no real-time budget: no capability helps against
    /// this refusal.
    pub group_without_budget: bool,
    /// Microseconds of each second that all real-time threads together may use; `None` without a
    /// limit or without support in the kernel.
    pub budget_us: Option<u64>,
}

/// A resource limit; `None` is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// The current limit.
    pub soft: Option<u64>,
    /// The highest limit that this process may set.
    pub hard: Option<u64>,
}

/// Huge pages of the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HugePages {
    /// Bytes in a reserved one; zero if there are none.
    pub size: Bytes,
    /// Number of reserved pages.
    pub reserved: u64,
    /// Number of free ones.
    pub free: u64,
    /// The mode of transparent huge pages: `always`, `madvise` or `never`.
    pub transparent: Option<String>,
}

/// Features of io_uring on this kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoUringFacts {
    /// Completions can be deferred to the polling thread (Linux 6.1).
    pub deferred: bool,
    /// A ring can be restricted to its purpose.
    pub restricted: bool,
}

/// Reads the facts.
pub fn machine() -> Machine {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let cores = thread::allowed_cores().unwrap_or_default();
    Machine {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        isolated: line("/sys/devices/system/cpu/isolated").map_or(vec![], |list| cores_of(&list)),
        governor: cores.first().and_then(|core| {
            line(format!("/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"))
        }),
        cores,
        clock_source: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        real_time: RealTime {
            fifo: try_fifo(),
            group_without_budget: is_without_budget(&groups, Path::new("/sys/fs/cgroup")),
            budget_us: number("/proc/sys/kernel/sched_rt_runtime_us"),
        },
        lockable: lockable(),
        open_files: limit(Resource::Nofile),
        pipes: pipes(),
        memory: memory::memory(),
        huge_pages: huge_pages(),
        io_uring: uring::try_out()
            .map(|(deferred, restricted)| IoUringFacts { deferred, restricted }),
        io_uring_disabled: number("/proc/sys/kernel/io_uring_disabled").map(|value| value as u32),
    }
}

/// Requests the lowest real-time priority, on a thread that ends at once.
fn try_fifo() -> Result<(), i32> {
    let asked = std::thread::Builder::new().spawn(|| thread::run_fifo(1));
    let answer = asked.and_then(|thread| thread.join().expect("asking does not panic"));
    answer.map_err(|refused| refused.raw_os_error().unwrap_or(libc::EIO))
}

/// Whether the group of the `cpu` controller (version 1) has no real-time budget.
fn is_without_budget(groups: &str, root: &Path) -> bool {
    let group = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let has_cpu = parts.next()?.split(',').any(|name| name == "cpu");
        has_cpu.then_some(parts.next()?)
    });
    let budget = group.map(|group| {
        let group = root.join("cpu").join(group.trim_start_matches('/'));
        number(group.join("cpu.rt_runtime_us"))
    });
    budget.flatten() == Some(0)
}

fn lockable() -> Limit {
    let rights = rustix::thread::capabilities(None).map(|sets| sets.effective);
    match rights {
        Ok(rights) if rights.contains(CapabilitySet::IPC_LOCK) => Limit { soft: None, hard: None },
        _ => limit(Resource::Memlock),
    }
}

/// The smaller one of `fs.pipe-user-pages-soft` and `fs.pipe-user-pages-hard`. Zero is no limit.
/// Neither applies to a process with one of two capabilities outside of user namespaces (pipe(7)).
fn pipes() -> Option<Bytes> {
    let exempting = CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN;
    let rights = rustix::thread::capabilities(None).map(|sets| sets.effective);
    if rights.is_ok_and(|rights| rights.intersects(exempting)) && !is_in_user_namespace() {
        return None;
    }
    let limits =
        ["soft", "hard"].map(|kind| number(format!("/proc/sys/fs/pipe-user-pages-{kind}")));
    let pages = limits.into_iter().flatten().filter(|&pages| pages > 0).min()?;
    Some(Bytes(pages * PAGE))
}

/// The first user namespace maps all users to themselves.
fn is_in_user_namespace() -> bool {
    line("/proc/self/uid_map").is_some_and(|map| {
        let numbers: Vec<&str> = map.split_whitespace().collect();
        numbers != ["0", "0", "4294967295"]
    })
}

fn limit(resource: Resource) -> Limit {
    let Rlimit { current, maximum } = rustix::process::getrlimit(resource);
    Limit { soft: current, hard: maximum }
}

fn huge_pages() -> HugePages {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    // These two are counts, without the unit that `meminfo_bytes` assumes.
    let count = |name| meminfo_bytes(&meminfo, name) / 1024;
    HugePages {
        size: Bytes(meminfo_bytes(&meminfo, "Hugepagesize")),
        reserved: count("HugePages_Total"),
        free: count("HugePages_Free"),
        transparent: line("/sys/kernel/mm/transparent_hugepage/enabled")
            .and_then(|list| chosen(&list).map(str::to_owned)),
    }
}

/// The first line of a small file.
fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// The number in a small file; absent if it is not a number, or negative.
fn number(path: impl AsRef<Path>) -> Option<u64> {
    line(path)?.parse().ok()
}

/// The word in brackets: `always [madvise] never`.
fn chosen(list: &str) -> Option<&str> {
    list.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let machine = machine();
        assert!(!machine.kernel.is_empty() && !machine.cores.is_empty());
        assert!(machine.memory.total > 0);
        assert!(
            machine.open_files.soft <= machine.open_files.hard || machine.open_files.hard.is_none()
        );
        assert!(machine.huge_pages.free <= machine.huge_pages.reserved);
        assert!(!machine.real_time.group_without_budget || machine.real_time.fifo.is_err());
    }

    #[test]
    fn what_the_pipes_of_a_user_may_hold_depends_on_the_rights_of_the_process() {
        // Capabilities belong to a thread.
        let without = std::thread::spawn(|| {
            let mut rights = rustix::thread::capabilities(None).unwrap();
            rights.effective.remove(CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN);
            rustix::thread::set_capabilities(None, rights).unwrap();
            const PIPE: usize = 512 * 1024;
            let count = pipes()?.0 as usize / PIPE + 1;
            let pipes = (0..count).map(|_| {
                let (_read, write) = rustix::pipe::pipe()?;
                rustix::pipe::fcntl_setpipe_size(&write, PIPE).map(|_| write)
            });
            // With a far higher limit, the open files would end before the pipes do.
            (count < 500).then(|| pipes.collect::<Result<Vec<_>, _>>().map(|pipes| pipes.len()))
        });
        match without.join().unwrap() {
            Some(opened) => assert_eq!(opened, Err(rustix::io::Errno::PERM)),
            None => println!("skipped: this host has another limit than 16,384 pages"),
        }
    }

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(cores_of("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(cores_of("7"), [7]);
        assert_eq!(cores_of("x"), []);
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("none"), None);
    }

    #[test]
    fn a_group_without_a_budget_is_found() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("cpu/outer/box");
        fs::create_dir_all(&group).unwrap();
        let groups = "5:memory:/box\n1:cpu,cpuacct:/outer/box\n0::/\n";
        assert!(!is_without_budget(groups, root.path()), "not told");
        for (text, without) in [("0\n", true), ("950000\n", false), ("-1\n", false)] {
            fs::write(group.join("cpu.rt_runtime_us"), text).unwrap();
            assert_eq!(is_without_budget(groups, root.path()), without);
        }
        assert!(!is_without_budget("0::/\n", root.path()));
    }
}
