//! Memory that this process may still use: the machine's, within the limits of its control groups,
//! of either version.
//!
//! Promise: the result is an amount that does not trigger the out-of-memory killer, as far as the
//! kernel reports it. It is a snapshot, not a reservation. [`lock_process`] keeps the memory that
//! this process has in RAM.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Memory of the machine and of this process' control groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Bytes in the machine.
    pub total: u64,
    /// Bytes available without swapping (`MemAvailable`).
    pub available: u64,
    /// The tightest limit of a control group in bytes; `None` without a limit.
    pub limit: Option<u64>,
    /// Bytes left below that limit, without swapping.
    pub left: Option<u64>,
}

impl Memory {
    /// The memory that may still be used, by machine and limit.
    pub fn room(&self) -> u64 {
        self.available.min(self.left.unwrap_or(u64::MAX))
    }

    /// The memory that could be used if no other program used any, by machine and limit.
    pub fn most(&self) -> u64 {
        self.total.min(self.limit.unwrap_or(u64::MAX))
    }
}

/// Bytes of a page: the smallest size on common machines.
pub const PAGE: u64 = 4096;

/// Reads the figures. An unreadable figure is zero, or absent.
pub fn memory() -> Memory {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let tightest = limits(&groups, Path::new("/sys/fs/cgroup")).min_by_key(|(_, left)| *left);
    Memory {
        total: meminfo_bytes(&meminfo, "MemTotal"),
        available: meminfo_bytes(&meminfo, "MemAvailable"),
        limit: tightest.map(|(limit, _)| limit),
        left: tightest.map(|(_, left)| left),
    }
}

/// Locks the present and future memory of this process, each page from its first use on. The kernel
/// then neither swaps it out nor drops the program's code. If locked memory has a limit, requests
/// for memory fail there later.
///
/// # Errors
/// `ENOMEM` or `EPERM` if `RLIMIT_MEMLOCK` is too small and `CAP_IPC_LOCK` is missing.
pub fn lock_process() -> io::Result<()> {
    use rustix::mm::MlockAllFlags;
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    Ok(rustix::mm::mlockall(flags)?)
}

/// One line of `/proc/meminfo`, in bytes; zero if it is missing.
pub(crate) fn meminfo_bytes(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find(|line| line.split(':').next() == Some(name));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// The limits of the groups in `/proc/self/cgroup` and of their parent groups, each with the amount
/// left below it.
fn limits(groups: &str, root: &Path) -> impl Iterator<Item = (u64, u64)> {
    let mut found = Vec::new();
    for line in groups.lines() {
        // "hierarchy:controllers:path"; version 2 has hierarchy 0 and no controllers.
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (mount, limit, usage, files) = if controllers.is_empty() {
            let files = ["inactive_file", "active_file"];
            (root.to_path_buf(), "memory.max", "memory.current", files)
        } else if controllers.split(',').any(|name| name == "memory") {
            let files = ["total_inactive_file", "total_active_file"];
            (root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", files)
        } else {
            continue;
        };
        let mut group = mount.join(path.trim_start_matches('/'));
        // In a container the path may be that of the host: then the mount is the group.
        if path.contains("..") || !group.exists() {
            group = mount.clone();
        }
        for group in group.ancestors().take_while(|group| group.starts_with(&mount)) {
            let number = |name: &str| -> Option<u64> {
                let file: PathBuf = group.join(name);
                // "max" is no number: no limit here.
                fs::read_to_string(file).ok()?.trim().parse().ok()
            };
            if let (Some(limit), Some(usage)) = (number(limit), number(usage))
                && limit < UNLIMITED
            {
                let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
                // The kernel drops them when memory is needed, as those in `MemAvailable`.
                let cached = files.map(|name| stat_bytes(&stat, name)).iter().sum();
                let used = usage.saturating_sub(cached);
                found.push((limit, limit.saturating_sub(used)));
            }
        }
    }
    found.into_iter()
}

/// One line of `memory.stat`; zero if it is missing.
fn stat_bytes(stat: &str, name: &str) -> u64 {
    let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// Version 1 writes "no limit" as the largest whole number of pages.
const UNLIMITED: u64 = 1 << 62;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let memory = memory();
        assert!(memory.total > 0 && memory.available > 0 && memory.available <= memory.total);
        assert!(memory.room() <= memory.available);
    }

    #[test]
    fn a_line_of_meminfo_is_found_by_its_whole_name() {
        let text = "MemTotalX:  1 kB\nMemTotal:       24113752 kB\nHugePages_Total:       3\n";
        assert_eq!(meminfo_bytes(text, "MemTotal"), 24_113_752 * 1024);
        assert_eq!(meminfo_bytes(text, "MemFree"), 0);
    }

    #[test]
    fn the_tightest_limit_counts_also_when_it_is_of_a_group_around() {
        let root = std::env::temp_dir().join(format!("tactus-memory-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let file = root.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("outer/memory.max", "1000\n");
        write("outer/memory.current", "900\n");
        write("outer/inner/memory.max", "max\n");
        write("outer/inner/memory.current", "100\n");
        write("outer/memory.stat", "anon 300\ninactive_file 500\nactive_file 50\n");
        write("memory/box/memory.limit_in_bytes", "5000");
        write("memory/box/memory.usage_in_bytes", "4000");
        write("memory/box/memory.stat", "inactive_file 1\ntotal_inactive_file 700\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712");
        write("memory/memory.usage_in_bytes", "4000");
        let of = |groups: &str| limits(groups, &root).collect::<Vec<_>>();
        assert_eq!(of("0::/outer/inner\n"), [(1000, 650)]);
        assert_eq!(of("7:cpu,cpuacct:/a\n5:memory:/box\n"), [(5000, 1700)]);
        assert_eq!(of("5:memory:/elsewhere\n0::/../..\n"), []);
        fs::remove_dir_all(&root).unwrap();
    }
}
