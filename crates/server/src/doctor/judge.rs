//! Judging: from facts about a host to findings. Pure, so that every finding can be tested.

use serde_json::Value;
use tactus_control::broker::{UDP_BUFFER, UDP_BUFFER_MIN};
use tactus_control::engine::READ_AHEAD_MAX;
use tactus_control::placement;
use tactus_core::units::{BitRate, Bytes, MIB};
use tactus_notation::units::exact;
use tactus_sys::memory::PAGE;
use tactus_sys::probe::{Device, DirectReads, Interface, Limit, Volume};

use super::{Facts, Finding, Requirements, State};

/// All findings, in the order in which an operator should read them.
pub fn all(facts: &Facts, needs: &Requirements) -> Vec<Finding> {
    let mut findings = vec![
        cores(facts),
        real_time(facts),
        locked_memory(facts),
        memory(facts, needs),
        huge_pages(facts, needs),
        io_uring(facts),
        descriptors(facts, needs),
    ];
    findings.extend(pipes(facts, needs));
    findings.extend([governor(facts), clock(facts)]);
    if let Some(volume) = &facts.volume {
        findings.push(direct_reads(volume));
        findings.push(file_system(volume));
        findings.push(flush(volume));
        if let Some(device) = &volume.device {
            findings.extend(scheduler(device));
            findings.extend(read_ahead(device, &volume.direct, needs));
        }
        findings.push(disk_model(volume, facts.model.as_ref()));
    }
    findings.push(link(facts, needs));
    findings.push(congestion(facts));
    findings.push(qdisc(facts));
    findings.push(packets(facts));
    findings.extend(facts.udp_output_buffer.map(udp_output));
    findings
}

/// Whether anything is bad: the exit code.
pub fn any_bad(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.state == State::Bad)
}

/// The fastest real interface that is up: the default of `[link] rate`.
pub fn fastest(interfaces: &[Interface]) -> Option<BitRate> {
    interfaces.iter().filter(|it| it.up && !it.loopback).filter_map(|it| it.speed).max()
}

fn cores(facts: &Facts) -> Finding {
    let cores = &facts.machine.cores;
    match cores.len() {
        0 | 1 => Finding::warn(
            "cores",
            "1 processor",
            "requests are parsed on the core that sends; without SCHED_FIFO they get in its way",
            "give the machine, the container or the control group a second processor",
        ),
        count => {
            let plan = placement::default_placement(cores, 1, u16::MAX);
            let described = placement::described(cores, &plan);
            Finding::ok("cores", format!("{count} processors; by default {described}"))
        }
    }
}

/// What the parts of a running server use of each core, by its own placement
/// (`/api/v1/placement`).
pub fn shares(placement: &Value) -> Vec<Finding> {
    placement.as_array().into_iter().flatten().map(share).collect()
}

fn share(core: &Value) -> Finding {
    let percent = |of: &Value| 100.0 * of["busy_ratio"].as_f64().unwrap_or_default();
    let part = |part: &Value| {
        format!("{} {:.1} %", part["name"].as_str().unwrap_or_default(), percent(part))
    };
    let parts: Vec<_> = core["parts"].as_array().into_iter().flatten().map(part).collect();
    let (cpu, busy) = (&core["cpu"], percent(core));
    let parts = if parts.is_empty() { "nothing is on it".into() } else { parts.join(", ") };
    let found = format!("core {cpu} is busy {busy:.1} % of its time: {parts}");
    if core["online"].as_bool() == Some(false) {
        return Finding::warn(
            "share",
            format!("core {cpu} is offline: {parts}"),
            "its parts move to other cores, which then admit fewer streams",
            format!("echo 1 > /sys/devices/system/cpu/cpu{cpu}/online"),
        );
    }
    if busy < SHARE_MAX {
        return Finding::ok("share", found);
    }
    Finding::warn(
        "share",
        found,
        "streams are late when the core has no time left",
        "tactus place add gives it another core now, [cores] placement at the next start; parts \
         move there by themselves",
    )
}

/// From here on a core is full for the balancer too, in percent of its time.
const SHARE_MAX: f64 = 80.0;

fn packets(facts: &Facts) -> Finding {
    let (had, lacking): (Vec<_>, Vec<_>) =
        facts.packets.iter().partition(|(_, found)| found.is_ok());
    let mut words: Vec<String> = had
        .into_iter()
        .filter_map(|(back_end, cost)| Some(format!("{back_end} {}", cost.as_ref().ok()?)))
        .collect();
    words.extend(lacking.into_iter().filter_map(|(back_end, cost)| {
        Some(format!("{back_end} cannot be had ({})", cost.as_ref().err()?))
    }));
    let found = format!("CPU time of a datagram on the loopback: {}", words.join(", "));
    if facts.packets.iter().any(|(_, cost)| cost.is_ok()) {
        return Finding::ok("packets", found);
    }
    Finding::warn(
        "packets",
        found,
        "channels cannot be sent, or nobody knows what they cost",
        "ip link set lo up",
    )
}

fn real_time(facts: &Facts) -> Finding {
    const COST: &str = "other programs on these cores delay sends by milliseconds, and half as \
                        many streams are admitted";
    let real_time = &facts.machine.real_time;
    match (real_time.fifo, real_time.group_without_budget) {
        (Ok(()), _) => Finding::ok("realtime", "SCHED_FIFO is allowed"),
        (Err(_), true) => Finding::warn(
            "realtime",
            "SCHED_FIFO is refused: this control group has no real-time budget",
            COST,
            "before the start: echo $$ > /sys/fs/cgroup/cpu/tasks; or give the group time: echo \
             950000 > /sys/fs/cgroup/cpu/GROUP/cpu.rt_runtime_us",
        ),
        (Err(_), false) => Finding::warn(
            "realtime",
            "SCHED_FIFO is refused",
            COST,
            "setcap cap_sys_nice,cap_ipc_lock+ep $(command -v tactus); or in a systemd unit: \
             LimitRTPRIO=50",
        ),
    }
}

fn locked_memory(facts: &Facts) -> Finding {
    match highest(facts.machine.lockable) {
        None => Finding::ok("memlock", "memory may be locked without a limit"),
        Some(limit) => Finding::warn(
            "memlock",
            format!("{} may be locked, the server does without", Bytes(limit)),
            "when memory is short, parts of the server may be swapped out, and streams are late",
            "before the start: ulimit -l unlimited; or in a systemd unit: LimitMEMLOCK=infinity",
        ),
    }
}

/// The server raises its own limits as far as it may.
fn highest(limit: Limit) -> Option<u64> {
    limit.hard
}

fn memory(facts: &Facts, needs: &Requirements) -> Finding {
    let room = Bytes(facts.machine.memory.room());
    let found = format!("{room} can be had, the arena takes {}", needs.arena);
    if room.0 >= needs.arena.0 + needs.arena.0 / 4 {
        return Finding::ok("memory", found);
    }
    Finding::bad(
        "memory",
        found,
        "the kernel may end the server, or other programs",
        "lower [memory] arena in the configuration, or raise the control group's limit",
    )
}

fn huge_pages(facts: &Facts, needs: &Requirements) -> Finding {
    let pages = &facts.machine.huge_pages;
    let needed = needs.arena.0.div_ceil(pages.size.0.max(2 * MIB));
    if pages.free >= needed {
        return Finding::ok("hugepages", format!("{} of {} are free", pages.free, pages.reserved));
    }
    match pages.transparent.as_deref() {
        Some(on @ ("always" | "madvise")) => {
            Finding::ok("hugepages", format!("transparent ones: {on}"))
        }
        other => Finding::warn(
            "hugepages",
            format!("{} are free, transparent ones: {}", pages.free, other.unwrap_or("none")),
            "each read and copy costs a little more CPU time",
            format!(
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; or: sysctl \
                 vm.nr_hugepages={needed}"
            ),
        ),
    }
}

fn io_uring(facts: &Facts) -> Finding {
    const COST: &str = "reads are made by threads, which cost more CPU time and keep no order";
    match (&facts.machine.io_uring, facts.machine.io_uring_disabled) {
        (Ok(ring), _) => {
            let deferred = if ring.deferred { ", completions when asked for" } else { "" };
            Finding::ok("io_uring", format!("works{deferred}"))
        }
        (Err(_), Some(1 | 2)) => Finding::warn(
            "io_uring",
            "the system is set to refuse it",
            COST,
            "sysctl kernel.io_uring_disabled=0",
        ),
        (Err(errno), _) => Finding::warn(
            "io_uring",
            format!("refused: {}", reason(*errno)),
            COST,
            "in a container allow io_uring_setup, io_uring_enter and io_uring_register in its \
             seccomp profile; else use Linux 5.15 or later",
        ),
    }
}

fn descriptors(facts: &Facts, needs: &Requirements) -> Finding {
    let needed = needs.descriptors;
    match highest(facts.machine.open_files) {
        Some(limit) if limit < needed => Finding::warn(
            "descriptors",
            format!("{limit} files may be open, the server may need {needed}"),
            "at the limit new connections wait until others close",
            format!(
                "before the start: ulimit -n {needed}; or in a systemd unit: LimitNOFILE={needed}"
            ),
        ),
        Some(limit) => Finding::ok("descriptors", format!("{limit} files may be open")),
        None => Finding::ok("descriptors", "files may be open without a limit"),
    }
}

/// Without the right to large pipes, blocks cannot be kept in the page cache.
fn pipes(facts: &Facts, needs: &Requirements) -> Option<Finding> {
    let Bytes(needed) = needs.cached;
    if needed == 0 {
        return None;
    }
    let Some(limit) = facts.machine.pipes else {
        return Some(Finding::ok("pipes", "pipes may hold any number of blocks"));
    };
    let found = format!("the pipes of a user may hold {limit} together");
    if limit.0 >= needed {
        return Some(Finding::ok("pipes", found));
    }
    let pages = (needed / PAGE + PIPE_PAGES_OF_OTHERS).next_power_of_two();
    Some(Finding::warn(
        "pipes",
        format!("{found}, and blocks in the page cache need {}", needs.cached),
        "streams are read directly and copied, for half as much CPU time again",
        format!(
            "sysctl fs.pipe-user-pages-soft={pages}, and in /etc/sysctl.d for later; the same for \
             fs.pipe-user-pages-hard, unless it is 0"
        ),
    ))
}

/// What the kernel lets an ordinary user have by default.
const PIPE_PAGES_OF_OTHERS: u64 = 16_384;

fn governor(facts: &Facts) -> Finding {
    match facts.machine.governor.as_deref() {
        None => Finding::ok("governor", "the processors' clock is not this system's to set"),
        Some("performance") => Finding::ok("governor", "performance"),
        Some(other) => Finding::warn(
            "governor",
            other,
            "a core that sleeps between sends slows down, and wakes later",
            "cpupower frequency-set -g performance",
        ),
    }
}

fn clock(facts: &Facts) -> Finding {
    match facts.machine.clock_source.as_deref() {
        Some(slow @ ("hpet" | "acpi_pm" | "jiffies" | "pit" | "refined-jiffies")) => Finding::warn(
            "clock",
            slow,
            "each look at the time is a system call of microseconds",
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
        found => Finding::ok("clock", found.unwrap_or("unknown")),
    }
}

fn direct_reads(volume: &Volume) -> Finding {
    match volume.direct {
        DirectReads::Work(Some(steps)) => {
            Finding::ok("direct", format!("O_DIRECT works, in steps of {} bytes", steps.offset))
        }
        DirectReads::Work(None) => Finding::ok("direct", "O_DIRECT works"),
        DirectReads::Refused(errno) => Finding::bad(
            "direct",
            format!("O_DIRECT is refused on {}: {}", volume.file_system, reason(errno)),
            "reads pass through the page cache, where their time cannot be bounded: no rate is \
             certain",
            "move the titles to ext4, XFS or another file system with O_DIRECT",
        ),
        DirectReads::Untried => Finding::warn(
            "direct",
            "O_DIRECT could not be tried: the directory has no file and may not be written",
            "it is found out when the first title is opened",
            "put a title into the directory and run this again",
        ),
    }
}

fn file_system(volume: &Volume) -> Finding {
    let found = format!("{} at {}", volume.file_system, volume.mounted_at.display());
    let warn = |cost, fix: &str| Finding::warn("filesystem", found.clone(), cost, fix);
    match volume.file_system.as_str() {
        "ext4" | "xfs" => Finding::ok("filesystem", found),
        "btrfs" | "bcachefs" | "zfs" => warn(
            "checksums and copy-on-write make direct reads slower, and scatter files that change",
            "keep the titles on ext4 or XFS",
        ),
        "nfs" | "nfs4" | "cifs" | "smb3" | "fuseblk" | "fuse" | "9p" | "virtiofs" => warn(
            "the time of a read depends on another program or machine",
            "keep the titles on a local disk",
        ),
        "tmpfs" | "ramfs" => warn(
            "titles in memory go through the page cache: no rate is certain under memory pressure",
            "keep the titles on a disk",
        ),
        _ => warn(
            "the server has not been tried on it",
            "keep the titles on ext4 or XFS, or compare both with tactus measure",
        ),
    }
}

fn flush(volume: &Volume) -> Finding {
    if !volume.flushes {
        return Finding::bad(
            "flush",
            format!("{} is mounted without barriers", volume.mounted_at.display()),
            "an upload that was answered as stored is lost when the power fails",
            format!("mount -o remount,barrier=1 {}", volume.mounted_at.display()),
        );
    }
    let cache = volume.device.as_ref().and_then(|device| device.write_cache.as_deref());
    let cache = cache.map_or_else(String::new, |cache| format!("; its cache is {cache}"));
    Finding::ok("flush", format!("what is flushed reaches the disk{cache}"))
}

fn scheduler(device: &Device) -> Option<Finding> {
    let scheduler = device.scheduler.as_deref()?;
    let found = format!("{} has {scheduler}", device.name);
    Some(match scheduler {
        "bfq" | "kyber" => Finding::warn(
            "scheduler",
            found,
            "the kernel puts the sweep into an order of its own, and each read costs more CPU time",
            format!("echo mq-deadline > /sys/block/{}/queue/scheduler", device.name),
        ),
        _ => Finding::ok("scheduler", found),
    })
}

fn read_ahead(device: &Device, direct: &DirectReads, needs: &Requirements) -> Option<Finding> {
    let size = device.read_ahead?;
    let found = format!("{} reads {size} ahead", device.name);
    let less = || format!("echo 512 > /sys/block/{}/queue/read_ahead_kb", device.name);
    if !matches!(direct, DirectReads::Refused(_)) {
        if needs.cached > Bytes(0) {
            let used = found + "; streams are sent from the page cache";
            return Some(if size <= READ_AHEAD_MAX {
                Finding::ok("readahead", used)
            } else {
                let cost = "each stream needs memory for twice as much, so fewer are admitted";
                Finding::warn("readahead", used, cost, less())
            });
        }
        // Virtual disks call themselves rotational whatever they are, so the model says it.
        if needs.has_arm || size <= READ_AHEAD_MAX {
            let unused = found + "; streams read directly and do not need it";
            return Some(Finding::ok("readahead", unused));
        }
        return Some(Finding::warn(
            "readahead",
            found,
            "too much for this disk or memory: streams are read directly and copied, for half as \
             much CPU time again",
            less(),
        ));
    }
    if size >= READ_AHEAD_ENOUGH {
        return Some(Finding::ok("readahead", found));
    }
    Some(Finding::warn(
        "readahead",
        found,
        "without O_DIRECT every stream depends on it: small steps, many seeks",
        format!("blockdev --setra {} /dev/{}", READ_AHEAD_ENOUGH.0 / 512, device.name),
    ))
}

/// The size of some blocks; distributions set 128 KiB.
const READ_AHEAD_ENOUGH: Bytes = Bytes(4 * MIB);

fn disk_model(volume: &Volume, model: Option<&Result<String, String>>) -> Finding {
    const COST: &str = "each start guesses a cautious model; for the first minute, until it has \
                        learned what the disk can do, fewer streams are admitted";
    let fix = format!("tactus measure {}", volume.path.display());
    match model {
        Some(Ok(said)) => Finding::ok("model", said.as_str()),
        None => Finding::warn("model", "this volume has not been measured", COST, fix),
        Some(Err(wrong)) => Finding::bad(
            "model",
            wrong.as_str(),
            "the server does not start with a model that it cannot read",
            fix,
        ),
    }
}

fn link(facts: &Facts, needs: &Requirements) -> Finding {
    let up = facts.network.interfaces.iter().filter(|it| it.up && !it.loopback);
    let said = up.map(|it| match it.speed {
        Some(speed) => format!("{} {speed}", it.name),
        None => format!("{} of unknown speed", it.name),
    });
    let said: Vec<_> = said.collect();
    let found = if said.is_empty() { "no interface is up".into() } else { said.join(", ") };
    if needs.link_is_set || fastest(&facts.network.interfaces).is_some() {
        return Finding::ok("link", found);
    }
    Finding::warn(
        "link",
        found,
        "nothing is refused for the link: streams may be admitted that it cannot carry",
        "set [link] rate in the configuration to what the network path carries",
    )
}

fn congestion(facts: &Facts) -> Finding {
    let default = facts.network.congestion.as_deref().unwrap_or("unknown");
    let has_cubic = facts.network.congestion_allowed.iter().any(|name| name == "cubic");
    if default == "cubic" || has_cubic {
        return Finding::ok("congestion", format!("cubic for streams, {default} for others"));
    }
    Finding::warn(
        "congestion",
        format!("{default}, and cubic may not be chosen"),
        "a congestion control with a pace of its own delays sends and costs CPU time",
        "sysctl net.ipv4.tcp_allowed_congestion_control=\"reno cubic\"",
    )
}

fn qdisc(facts: &Facts) -> Finding {
    let up = || facts.network.interfaces.iter().filter(|it| it.up && !it.loopback);
    let shapes = |kind: &str| ["htb", "tbf", "cbq", "hfsc", "netem"].contains(&kind);
    let shaping = up().find(|it| it.qdisc.as_deref().is_some_and(shapes));
    if let Some(it) = shaping {
        return Finding::warn(
            "qdisc",
            format!("{} on {}", it.qdisc.as_deref().unwrap_or_default(), it.name),
            "it delays or drops what the server has timed already",
            format!(
                "set [link] rate to what it lets through; or: tc qdisc del dev {} root",
                it.name
            ),
        );
    }
    let each = up().filter_map(|it| Some(format!("{} on {}", it.qdisc.as_deref()?, it.name)));
    let each: Vec<_> = each.collect();
    let default = facts.network.default_qdisc.as_deref().unwrap_or("unknown");
    let found = if each.is_empty() { format!("default {default}") } else { each.join(", ") };
    Finding::ok("qdisc", found)
}

fn udp_output(buffer: Bytes) -> Finding {
    let found = format!("a socket of datagrams holds {}", exact(buffer));
    if buffer.0 >= UDP_BUFFER_MIN as u64 {
        return Finding::ok("udp_output", found);
    }
    Finding::warn(
        "udp_output",
        found,
        "a link that stops for a moment, or a few receivers that are not there, hold up all \
         channels that share a socket",
        format!("sysctl net.core.wmem_max={UDP_BUFFER}; or give the server CAP_NET_ADMIN"),
    )
}

fn reason(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

#[cfg(test)]
#[path = "judge/tests.rs"]
mod tests;
