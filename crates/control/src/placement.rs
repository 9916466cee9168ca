//! Placement: the assignment of servers to cores.
//!
//! Promise: every server has exactly one core. By default the control side has a core of its own on
//! machines with two or more. This module only decides; the cores are pinned when they start.

pub use tactus_engine::name::{Job, ServerName};
use tactus_notation::Auto;

/// One core and its servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CorePlan {
    /// The processor's number, as in `/proc/cpuinfo`.
    pub cpu: u32,
    /// The servers, in the order in which they are polled.
    pub servers: Vec<ServerName>,
}

/// The number of servers of each job that may have several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerCounts {
    /// Volumes: each has a disk server and a block server.
    pub volumes: u16,
    /// Delivery servers.
    pub deliveries: u16,
    /// Link servers.
    pub links: u16,
    /// Packet servers.
    pub packets: u16,
}

impl ServerCounts {
    /// One server of each job on each volume or for all of them.
    pub const fn single(volumes: u16) -> Self {
        Self { volumes, deliveries: 1, links: 1, packets: 1 }
    }

    /// Those of a placement: at least one of each job.
    pub fn of(placement: &[CorePlan], volumes: u16) -> Self {
        let number_of = |job| {
            let names = placement.iter().flat_map(|core| &core.servers);
            let count = names.filter(|name| name.job == job).count();
            u16::try_from(count).expect("a placement names fewer servers").max(1)
        };
        Self {
            volumes,
            deliveries: number_of(Job::Delivery),
            links: number_of(Job::Link),
            packets: number_of(Job::Packets),
        }
    }

    /// All servers, in the order of a byte's path.
    pub fn servers(self) -> Vec<ServerName> {
        let named = |job, index| ServerName { job, index };
        let of_volume = |index| [named(Job::Disk, index), named(Job::Block, index)];
        let of_volumes = (0..self.volumes).flat_map(of_volume);
        let several = |job, count| (0..count).map(move |index| named(job, index));
        of_volumes
            .chain(several(Job::Delivery, self.deliveries))
            .chain(several(Job::Link, self.links))
            .chain(several(Job::Packets, self.packets))
            .chain([named(Job::File, 0)])
            .collect()
    }
}

/// The default for a machine whose usable processors are `cpus`, in ascending order, with at most
/// `packets_max` packet servers.
///
/// - one: everything on it, together with the control side;
/// - two or three: all servers on the last one, apart from the control side;
/// - four or more: sending (delivery, link, packets) on the last, reading (disks, blocks, file) on
///   the one before; the control side has all others. The first processor has no server because it
///   takes most interrupts;
/// - eight or more: a quarter of the processors send, up to four, each with a link server and a
///   packet server.
///
/// One delivery server is for all of them: it takes a small part of the time of those that send
/// (`docs/design/placement.md`).
pub fn default_placement(cpus: &[u32], volumes: u16, packets_max: u16) -> Vec<CorePlan> {
    let single = ServerCounts::single(volumes);
    match cpus {
        [] => vec![CorePlan { cpu: 0, servers: single.servers() }],
        [rest @ .., reading, sending] if cpus.len() >= 4 => {
            let links = (cpus.len() / 4).clamp(1, LINKS_MAX) as u16;
            let counts = ServerCounts { links, packets: links.min(packets_max), ..single };
            let (further, first): (Vec<_>, Vec<_>) = counts
                .servers()
                .into_iter()
                .partition(|name| matches!(name.job, Job::Link | Job::Packets) && name.index > 0);
            let reads = |s: &ServerName| matches!(s.job, Job::Disk | Job::Block | Job::File);
            let (read, send): (Vec<_>, Vec<_>) = first.into_iter().partition(reads);
            let others = &rest[rest.len() + 1 - usize::from(links)..];
            let sends = |(index, &cpu): (u16, &u32)| {
                let own = further.iter().copied().filter(|name| name.index == index);
                CorePlan { cpu, servers: own.collect() }
            };
            let mut plan: Vec<_> = (1..).zip(others).map(sends).collect();
            plan.push(CorePlan { cpu: *reading, servers: read });
            plan.push(CorePlan { cpu: *sending, servers: send });
            plan
        }
        [.., last] => vec![CorePlan { cpu: *last, servers: single.servers() }],
    }
}

/// Link servers of the default placement at most: reading a byte takes a core a quarter of the time
/// of sending it, and one core reads.
const LINKS_MAX: usize = 4;

/// The processors of the control side: those without a server, or all.
pub fn control_cpus(cpus: &[u32], placement: &[CorePlan]) -> Vec<u32> {
    let free = |cpu: &u32| placement.iter().all(|plan| plan.cpu != *cpu);
    let left: Vec<u32> = cpus.iter().copied().filter(free).collect();
    if left.is_empty() { cpus.to_vec() } else { left }
}

/// A placement as text: the servers of each core, and the cores of all other threads.
pub fn described(cpus: &[u32], placement: &[CorePlan]) -> String {
    let mut cores: Vec<_> = placement.iter().filter(|core| !core.servers.is_empty()).collect();
    cores.sort_by_key(|core| core.cpu);
    let of_core = |core: &&CorePlan| {
        let names: Vec<_> = core.servers.iter().map(ToString::to_string).collect();
        format!("{} on core {}", names.join(", "), core.cpu)
    };
    let mut all: Vec<_> = cores.iter().map(of_core).collect();
    let control = control_cpus(cpus, placement);
    let control: Vec<_> = control.iter().map(ToString::to_string).collect();
    let core = if control.len() == 1 { "core" } else { "cores" };
    all.push(format!("the rest on {core} {}", control.join(", ")));
    all.join("; ")
}

/// Checks that a machine with `volumes` disks and this placement has a server with this name.
///
/// # Errors
/// A sentence that names the server, for the message about the key.
pub fn check_name(
    name: ServerName,
    placement: &Auto<Vec<CorePlan>>,
    volumes: u16,
) -> Result<ServerName, String> {
    let counts = match placement {
        Auto::Set(plan) => ServerCounts::of(plan, volumes),
        // As many as the default may have.
        Auto::Auto => ServerCounts {
            links: LINKS_MAX as u16,
            packets: LINKS_MAX as u16,
            ..ServerCounts::single(volumes)
        },
    };
    let all = counts.servers();
    if all.contains(&name) { Ok(name) } else { Err(no_server(name, &all)) }
}

fn no_server(name: ServerName, all: &[ServerName]) -> String {
    let all: Vec<_> = all.iter().map(ToString::to_string).collect();
    format!("there is no server `{name}`; the servers are {}", all.join(", "))
}

/// Adds the omitted indices and checks that each server has one core.
///
/// # Errors
/// A sentence that names the server, for the message about the key.
pub fn complete(mut placement: Vec<CorePlan>, volumes: u16) -> Result<Vec<CorePlan>, String> {
    let all = ServerCounts::of(&placement, volumes).servers();
    let written: Vec<_> = placement.iter().flat_map(|plan| &plan.servers).copied().collect();
    for (at, name) in written.iter().enumerate() {
        if !all.contains(name) {
            return Err(no_server(*name, &all));
        }
        if written[..at].contains(name) {
            return Err(format!("`{name}` is placed twice; leave one of them"));
        }
    }
    let packets = ServerName { job: Job::Packets, index: 0 };
    let link = ServerName { job: Job::Link, index: 0 };
    if !written.contains(&packets)
        && let Some(core) = placement.iter_mut().find(|core| core.servers.contains(&link))
    {
        // Files from before the packet server existed: it shares the core of the link.
        core.servers.push(packets);
    }
    let file = ServerName { job: Job::File, index: 0 };
    let block = ServerName { job: Job::Block, index: 0 };
    if !written.contains(&file)
        && let Some(core) = placement.iter_mut().find(|core| core.servers.contains(&block))
    {
        // The same for the file server, which shares the core of the blocks.
        core.servers.push(file);
    }
    let written: Vec<_> = placement.iter().flat_map(|plan| &plan.servers).copied().collect();
    if let Some(missing) = all.iter().find(|name| !written.contains(name)) {
        return Err(format!("`{missing}` has no core; add it to the servers of one"));
    }
    for at in 1..placement.len() {
        if placement[..at].iter().any(|plan| plan.cpu == placement[at].cpu) {
            return Err(format!("cpu {} is listed twice; join its servers", placement[at].cpu));
        }
    }
    Ok(placement)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn cpus(count: u32) -> Vec<u32> {
        (0..count).collect()
    }

    #[test]
    fn every_server_has_exactly_one_core_on_any_machine() {
        for count in 0..20 {
            for volumes in 1..5 {
                for packets_max in 1..5 {
                    let plan = default_placement(&cpus(count), volumes, packets_max);
                    assert_eq!(complete(plan.clone(), volumes), Ok(plan));
                }
            }
        }
    }

    #[test]
    fn the_control_side_has_a_core_of_its_own_wherever_there_are_two() {
        for count in 2..20 {
            let plan = default_placement(&cpus(count), 2, 4);
            let control = control_cpus(&cpus(count), &plan);
            assert!(control.contains(&0));
            assert!(plan.iter().all(|core| !control.contains(&core.cpu)));
        }
        assert_eq!(control_cpus(&[0], &default_placement(&[0], 1, 4)), [0]);
    }

    #[test]
    fn a_quarter_of_many_processors_send() {
        let links_of = |count| {
            let plan = default_placement(&cpus(count), 2, 4);
            let sends = |core: &&CorePlan| {
                [Job::Link, Job::Packets]
                    .iter()
                    .all(|job| core.servers.iter().any(|name| name.job == *job))
            };
            (ServerCounts::of(&plan, 2).links, plan.iter().filter(sends).count())
        };
        assert_eq!(
            [2, 4, 7, 8, 12, 16, 64].map(links_of).map(|(links, _)| links),
            [1, 1, 1, 2, 3, 4, 4]
        );
        assert_eq!(links_of(16), (4, 4), "each on a core of its own");
        let one = default_placement(&cpus(16), 2, 1);
        assert_eq!(ServerCounts::of(&one, 2).packets, 1);
    }

    /// The fifteen ways to divide the programs, the file, the block and the disk server among up to
    /// four cores, as in AnT's table; the programs need no name in a placement.
    #[test]
    fn each_of_the_fifteen_distributions_is_a_placement() {
        let mut count = 0;
        for code in 0..4_usize.pow(4) {
            let core_of = |part: usize| code / 4_usize.pow(part as u32) % 4;
            // Each division once: a part is on a core of those before it, or on the next one.
            let is_first = |part: usize| {
                let before = (0..part).map(core_of).max().map_or(0, |most| most + 1);
                core_of(part) <= before
            };
            if !(0..4).all(is_first) {
                continue;
            }
            count += 1;
            let mut plan = BTreeMap::<u32, Vec<ServerName>>::new();
            let named = [(1, "file"), (2, "block.0"), (3, "disk.0"), (3, "delivery"), (3, "link")];
            for (part, name) in named {
                let servers = plan.entry(core_of(part) as u32).or_default();
                servers.push(name.parse().unwrap());
            }
            let plan = plan.into_iter().map(|(cpu, servers)| CorePlan { cpu, servers });
            let plan = complete(plan.collect(), 1).unwrap();
            let names: usize = plan.iter().map(|core| core.servers.len()).sum();
            assert_eq!(names, ServerCounts::single(1).servers().len());
        }
        assert_eq!(count, 15);
    }

    #[test]
    fn a_placement_is_told_in_words() {
        let told = |count| described(&cpus(count), &default_placement(&cpus(count), 1, 4));
        assert_eq!(
            told(2),
            "disk.0, block.0, delivery, link, packets, file on core 1; the rest on core 0"
        );
        assert_eq!(
            told(4),
            "disk.0, block.0, file on core 2; delivery, link, packets on core 3; the rest on \
             cores 0, 1"
        );
        assert!(told(64).contains("link.3, packets.3 on core 61"), "{}", told(64));
    }

    #[test]
    fn a_placement_that_does_not_name_packets_has_them_where_the_link_is() {
        let plan = |names: &[&str]| CorePlan {
            cpu: 3,
            servers: names.iter().map(|name| name.parse().unwrap()).collect(),
        };
        let without = vec![plan(&["disk", "block", "delivery", "link"])];
        let all = ServerCounts::single(1).servers();
        assert_eq!(complete(without, 1), Ok(vec![CorePlan { cpu: 3, servers: all }]));
    }

    #[test]
    fn deliveries_may_be_several_and_are_one_by_default() {
        let names = ["disk", "block", "delivery", "delivery.1", "link", "packets", "file"];
        let servers = names.iter().map(|name| name.parse().unwrap()).collect();
        let plan = vec![CorePlan { cpu: 3, servers }];
        assert_eq!(ServerCounts::of(&plan, 1).deliveries, 2);
        assert_eq!(complete(plan.clone(), 1), Ok(plan.clone()));
        let set = Auto::Set(plan);
        let second = ServerName { job: Job::Delivery, index: 1 };
        assert_eq!(check_name(second, &set, 1), Ok(second));
        assert!(check_name(ServerName { index: 2, ..second }, &set, 1).is_err());
        for count in [1, 2, 4, 8, 64] {
            let plan = default_placement(&cpus(count), 2, 4);
            assert_eq!(ServerCounts::of(&plan, 2).deliveries, 1);
        }
        // A gap in the numbers is a server without a core.
        let names = ["disk", "block", "delivery", "delivery.2", "link"];
        let servers = names.iter().map(|name| name.parse().unwrap()).collect();
        let gap = complete(vec![CorePlan { cpu: 3, servers }], 1).unwrap_err();
        assert!(gap.starts_with("there is no server `delivery.2`"), "{gap}");
    }

    #[test]
    fn a_placement_that_forgets_or_repeats_a_server_is_refused() {
        let plan = |cpu, names: &[&str]| CorePlan {
            cpu,
            servers: names.iter().map(|name| name.parse().unwrap()).collect(),
        };
        let forgets = complete(vec![plan(0, &["disk", "block", "link"])], 1).unwrap_err();
        assert_eq!(forgets, "`delivery` has no core; add it to the servers of one");
        let repeats = vec![plan(0, &["disk", "block", "link", "delivery"]), plan(1, &["link"])];
        assert_eq!(complete(repeats, 1).unwrap_err(), "`link` is placed twice; leave one of them");
        let absent = vec![plan(0, &["disk", "disk.1", "block", "link", "delivery"])];
        assert!(complete(absent, 1).unwrap_err().starts_with("there is no server `disk.1`"));
        let twice = vec![plan(1, &["disk", "block"]), plan(1, &["link", "delivery"])];
        assert_eq!(complete(twice, 1).unwrap_err(), "cpu 1 is listed twice; join its servers");
    }
}
