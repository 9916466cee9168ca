//! The usual metrics of a process, with the names of Prometheus' own client libraries.
//!
//! Promise: figures that `/proc` does not provide are left out. It reads four small files and one
//! directory.

use std::fs;

use rustix::process::{Resource, getrlimit};

/// Figures of this process.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Process {
    pub(super) cpu_seconds: f64,
    pub(super) start_seconds: f64,
    pub(super) virtual_bytes: f64,
    pub(super) resident_bytes: f64,
    pub(super) threads: f64,
    pub(super) open_files: f64,
    /// None: unlimited.
    pub(super) open_files_max: Option<f64>,
}

impl Process {
    pub(super) fn now() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let boot = fs::read_to_string("/proc/stat").ok()?;
        let boot = boot.lines().find_map(|line| line.strip_prefix("btime "));
        let boot: f64 = boot?.trim().parse().ok()?;
        // The directory itself is open while it is read.
        let open_files = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
        let status = fs::read_to_string("/proc/self/status").ok()?;
        Self::of(&stat, &status, boot, open_files)
    }

    /// The fields of proc_pid_stat(5) and proc_pid_status(5).
    fn of(stat: &str, status: &str, boot: f64, open_files: usize) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<_> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let size = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kibibytes * 1024.0)
        };
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / TICKS,
            threads: field(20)?,
            start_seconds: boot + field(22)? / TICKS,
            virtual_bytes: size("VmSize:")?,
            resident_bytes: size("VmRSS:")?,
            open_files: open_files as f64,
            open_files_max: getrlimit(Resource::Nofile).current.map(|limit| limit as f64),
        })
    }
}

/// `USER_HZ`, the unit of times in `/proc`; the same on all supported machines.
const TICKS: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w11_the_figures_of_a_process_are_in_base_units() {
        let stat = "7 (a) b) S 1 1 1 0 -1 0 0 0 0 0 250 50 0 0 20 0 9 0 1000 4096000 10 0";
        let status = "Name:\ta\nVmSize:\t    4000 kB\nVmRSS:\t      40 kB\n";
        let process = Process::of(stat, status, 1_000.0, 5).expect("a whole line");
        assert_eq!(process.cpu_seconds, 3.0);
        assert_eq!((process.threads, process.start_seconds), (9.0, 1_010.0));
        assert_eq!((process.virtual_bytes, process.resident_bytes), (4_096_000.0, 40_960.0));
        let own = Process::now().expect("this host provides the figures");
        assert!(own.resident_bytes > 1e6 && own.threads >= 1.0 && own.open_files >= 3.0);
    }
}
