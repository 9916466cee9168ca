//! Which core a thread or program runs on, and with which right to it.
//!
//! Promise: a refused SCHED_FIFO is told to the caller, who says so in the report; it never stops a
//! run.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};

use crate::command;

/// Ties the calling thread to `core`.
pub fn pin(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).with_context(|| format!("cannot pin a thread to core {core}"))
}

/// Gives the calling thread SCHED_FIFO with `priority`.
pub fn fifo(priority: u32) -> Result<()> {
    let (thread, priority) = (gettid().as_raw_nonzero().to_string(), priority.to_string());
    command::run("chrt", &["--fifo", "--pid", &priority, &thread]).map(drop)
}

/// How many cores this machine has.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A command that starts `program` on `cores` (a list such as `0` or `0-1`) in the control group
/// `group`, and that is sent SIGTERM when the thread that started it ends.
pub fn on_cores(cores: &str, group: Option<&Path>, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]);
    if let Some(group) = group {
        let join = "echo $$ > \"$0\" && exec \"$@\"";
        command.args(["sh", "-c", join]).arg(group.join("cgroup.procs"));
    }
    command.args(["taskset", "--cpu-list", cores, program]);
    command
}

/// A class of the I/O scheduler (ioprio_set(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskClass {
    /// Before everything else, and of that the first.
    RealTime,
}

/// `command` and all that it starts, in `class`.
pub fn with_disk_class(class: DiskClass, command: &Command) -> Command {
    let mut inside = Command::new("ionice");
    match class {
        DiskClass::RealTime => inside.args(["--class", "1", "--classdata", "0"]),
    };
    inside.arg(command.get_program()).args(command.get_args());
    inside
}
