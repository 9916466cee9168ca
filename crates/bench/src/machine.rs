//! Which machine this is, and how busy it is: printed with every result.
//!
//! Promise: what cannot be read is said to be unknown; nothing is guessed.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::command;
use crate::priority;

/// The facts.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name and the number of cores.
    pub processor: String,
    /// Memory, in GiB.
    pub memory: String,
    /// The kernel's release.
    pub kernel: String,
    /// When, in UTC.
    pub date: String,
    /// The load averages at that time.
    pub load: String,
    /// The host's congestion control; ours is in the settings.
    pub congestion_control: String,
    /// Tick and accounting facts.
    pub virtualisation: String,
}

impl Machine {
    /// Looks around.
    pub fn look() -> Self {
        let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let model = field(&file("/proc/cpuinfo"), "model name");
        let hypervised = file("/proc/cpuinfo").contains(" hypervisor");
        let memory = field(&file("/proc/meminfo"), "MemTotal");
        let memory = memory.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        Self {
            processor: format!(
                "{} x {}",
                priority::cores(),
                model.unwrap_or_else(|| "unknown".into())
            ),
            memory: memory.map_or("unknown".into(), |kib| format!("{} GiB", kib >> 20)),
            kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
            date: or_unknown(command::run("date", &["--utc", "+%Y-%m-%d %H:%M UTC"])),
            load: load(),
            congestion_control: file("/proc/sys/net/ipv4/tcp_congestion_control").trim().into(),
            virtualisation: match (hypervised, gives_free_memory_away()) {
                (true, true) => "virtual machine that gives free memory to its host".into(),
                (true, false) => "virtual machine".into(),
                (false, _) => "none seen".into(),
            },
        }
    }

    /// Name and value of each fact, in the order in which they are printed.
    pub fn facts(&self) -> Vec<(&'static str, &str)> {
        vec![
            ("processor", &self.processor),
            ("memory", &self.memory),
            ("kernel", &self.kernel),
            ("virtualisation", &self.virtualisation),
            ("date", &self.date),
            ("load average", &self.load),
            ("host congestion control", &self.congestion_control),
        ]
    }
}

/// Whether this machine gives free memory to a host, which takes it away until it is touched again
/// (free page reporting, `mm/page_reporting.c`; balloon drivers switch it on).
pub fn gives_free_memory_away() -> bool {
    let order = fs::read_to_string("/sys/module/page_reporting/parameters/page_reporting_order");
    order.is_ok_and(|order| is_reported(&order))
}

/// Whether free blocks of `order` and more are reported. Kernels that can report have the parameter
/// without a balloon too: -1 since Linux 6.2, before that the first order that no block has.
fn is_reported(order: &str) -> bool {
    order.trim().parse::<u32>().is_ok_and(|order| order <= LARGEST_ORDER)
}

/// The largest free block of a kernel for x86-64: 4 MiB (`MAX_PAGE_ORDER`).
const LARGEST_ORDER: u32 = 10;

/// The load averages over 1, 5 and 15 minutes.
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// File system, device and queue settings below `path`.
pub fn storage(path: &Path) -> String {
    let found = command::run(
        "findmnt",
        &["--noheadings", "--output", "FSTYPE,SOURCE,OPTIONS", "--target", &path.to_string_lossy()],
    );
    let mount = or_unknown(found);
    let device = mount.split_whitespace().nth(1).and_then(|source| source.strip_prefix("/dev/"));
    let queue = |name: &str| {
        let path = format!("/sys/block/{}/queue/{name}", device.unwrap_or_default());
        fs::read_to_string(path).map_or("unknown".into(), |text| text.trim().to_owned())
    };
    format!(
        "{mount}; read_ahead_kb {}, scheduler {}, max_sectors_kb {}, nr_requests {}",
        queue("read_ahead_kb"),
        queue("scheduler"),
        queue("max_sectors_kb"),
        queue("nr_requests"),
    )
}

fn or_unknown(text: Result<String>) -> String {
    text.map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_goes_to_a_host_only_when_a_balloon_has_set_the_order() {
        assert!(is_reported("9\n") && is_reported("0\n") && is_reported("10\n"));
        // Without a balloon, Linux 6.2 has -1 and Linux 6.1 has 11. Other texts are invalid.
        assert!(!["-1\n", "11\n", "4294967295\n", "", "Y\n"].into_iter().any(is_reported));
    }
}
