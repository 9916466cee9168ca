//! The receiver's part of the network stack on a core of its own, as if it were another machine.
//!
//! On a veth pair whoever sends also does what the receiving kernel does with each frame. Here a thread of the kernel does
//! it (threaded NAPI), on the core it is tied to, every few microseconds: a network card that gathers interrupts for as
//! long is not asked by the sender for each frame either. What comes late thereby is late for any sender.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::command;

/// How long what has come may wait. The device holds 256 frames.
const GATHERS: &str = "20000";
/// Never asks to be woken: its timer does that.
const NEVER_ASKS: &str = "1000000000";
/// Above what the receiver itself does.
const PRIORITY: &str = "60";

/// Sets `device` of `namespace` up so, with its thread on `core`.
pub(super) fn set(namespace: &str, device: &str, core: usize) -> Result<()> {
    let inside = ["netns", "exec", namespace];
    // Without the second veth has no receiving side of its own for a sender that cuts its messages late.
    let features = ["--features", device, "gro", "on", "rx-udp-gro-forwarding", "on"];
    command::run("ip", &[&inside[..], &["ethtool"], &features].concat())?;
    let sets =
        [("threaded", "1"), ("gro_flush_timeout", GATHERS), ("napi_defer_hard_irqs", NEVER_ASKS)];
    for (name, value) in sets {
        // `ip netns exec` mounts the namespace's own /sys.
        let write = "echo \"$0\" > \"$1\"";
        let path = format!("/sys/class/net/{device}/{name}");
        command::run("ip", &[&inside[..], &["sh", "-c", write, value, &path]].concat())?;
    }
    let threads = threads_of(device)?;
    ensure!(!threads.is_empty(), "the kernel has no thread for the device {device}");
    for thread in threads {
        command::run("taskset", &["--pid", "--cpu-list", &core.to_string(), &thread])?;
        command::run("chrt", &["--fifo", "--pid", PRIORITY, &thread])?;
    }
    Ok(())
}

/// Threads of the kernel that receive for devices of this name.
fn threads_of(device: &str) -> Result<Vec<String>> {
    let name = format!("napi/{device}");
    let mut threads = vec![];
    for process in fs::read_dir("/proc").context("/proc")? {
        let process = process?;
        let comm = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        if comm.starts_with(&name) {
            threads.push(process.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(threads)
}
