//! Placement: the assignment of servers to cores.
//!
//! Promise: every server has exactly one core. By default the control side has a core of its own on
//! machines with two or more. This module only decides; the cores are pinned when they start.

pub use tactus_engine::name::{Job, ServerName};

/// One core and its servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CorePlan {
    /// The processor's number, as in `/proc/cpuinfo`.
    pub cpu: u32,
    /// The servers, in the order in which they are polled.
    pub servers: Vec<ServerName>,
}

/// All servers of a machine with `volumes` disks and `links` link servers, in the order of a byte's
/// path.
pub fn servers(volumes: u16, links: u16) -> Vec<ServerName> {
    let named = |job, index| ServerName { job, index };
    let of_volume = |index| [named(Job::Disk, index), named(Job::Block, index)];
    let of_volumes = (0..volumes).flat_map(of_volume);
    let of_links = (0..links).map(|index| named(Job::Link, index));
    let delivery = std::iter::once(named(Job::Delivery, 0));
    let packets = std::iter::once(named(Job::Packets, 0));
    let file = std::iter::once(named(Job::File, 0));
    of_volumes.chain(delivery).chain(of_links).chain(packets).chain(file).collect()
}

/// The number of link servers of a placement: at least one.
pub fn links(placement: &[CorePlan]) -> usize {
    let names = placement.iter().flat_map(|core| &core.servers);
    names.filter(|name| name.job == Job::Link).count().max(1)
}

/// The default for a machine whose usable processors are `cpus`, in ascending order.
///
/// - one: everything on it, together with the control side;
/// - two or three: all servers on the last one, apart from the control side;
/// - four or more: sending (delivery, link, packets) on the last, reading (disks, blocks, file) on
///   the one before; the control side has all others. The first processor has no server because it
///   takes most interrupts;
/// - eight or more: a quarter of the processors send, up to four, each with a link server.
pub fn default_placement(cpus: &[u32], volumes: u16) -> Vec<CorePlan> {
    match cpus {
        [] => vec![CorePlan { cpu: 0, servers: servers(volumes, 1) }],
        [rest @ .., reading, sending] if cpus.len() >= 4 => {
            let links = (cpus.len() / 4).clamp(1, LINKS_MAX);
            let reads = |s: &ServerName| matches!(s.job, Job::Disk | Job::Block | Job::File);
            let is_first = |s: &ServerName| s.job != Job::Link || s.index == 0;
            let all = servers(volumes, links as u16);
            let (read, send): (Vec<_>, Vec<_>) = all.into_iter().partition(reads);
            let (first, further): (Vec<_>, Vec<_>) = send.into_iter().partition(is_first);
            let mut plan: Vec<_> = rest[rest.len() + 1 - links..]
                .iter()
                .zip(further)
                .map(|(&cpu, link)| CorePlan { cpu, servers: vec![link] })
                .collect();
            plan.push(CorePlan { cpu: *reading, servers: read });
            plan.push(CorePlan { cpu: *sending, servers: first });
            plan
        }
        [.., last] => vec![CorePlan { cpu: *last, servers: servers(volumes, 1) }],
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

/// Adds the omitted indices and checks that each server has one core.
///
/// # Errors
/// A sentence that names the server, for the message about the key.
pub fn complete(mut placement: Vec<CorePlan>, volumes: u16) -> Result<Vec<CorePlan>, String> {
    let links = u16::try_from(links(&placement)).expect("a file names fewer servers");
    let all = servers(volumes, links);
    let written: Vec<_> = placement.iter().flat_map(|plan| &plan.servers).copied().collect();
    for (at, name) in written.iter().enumerate() {
        if !all.contains(name) {
            return Err(format!(
                "there is no server `{name}`; the servers are {}",
                all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ));
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
    use super::*;

    fn cpus(count: u32) -> Vec<u32> {
        (0..count).collect()
    }

    #[test]
    fn every_server_has_exactly_one_core_on_any_machine() {
        for count in 0..20 {
            for volumes in 1..5 {
                let plan = default_placement(&cpus(count), volumes);
                assert_eq!(complete(plan.clone(), volumes), Ok(plan));
            }
        }
    }

    #[test]
    fn the_control_side_has_a_core_of_its_own_wherever_there_are_two() {
        for count in 2..20 {
            let plan = default_placement(&cpus(count), 2);
            let control = control_cpus(&cpus(count), &plan);
            assert!(control.contains(&0));
            assert!(plan.iter().all(|core| !control.contains(&core.cpu)));
        }
        assert_eq!(control_cpus(&[0], &default_placement(&[0], 1)), [0]);
    }

    #[test]
    fn a_quarter_of_many_processors_send() {
        let links_of = |count| {
            let plan = default_placement(&cpus(count), 2);
            let sends = |core: &&CorePlan| core.servers.iter().any(|name| name.job == Job::Link);
            (links(&plan), plan.iter().filter(sends).count())
        };
        assert_eq!(
            [2, 4, 7, 8, 12, 16, 64].map(links_of).map(|(links, _)| links),
            [1, 1, 1, 2, 3, 4, 4]
        );
        assert_eq!(links_of(16), (4, 4), "each on a core of its own");
    }

    #[test]
    fn a_placement_that_does_not_name_packets_has_them_where_the_link_is() {
        let plan = |names: &[&str]| CorePlan {
            cpu: 3,
            servers: names.iter().map(|name| name.parse().unwrap()).collect(),
        };
        let without = vec![plan(&["disk", "block", "delivery", "link"])];
        assert_eq!(complete(without, 1), Ok(vec![CorePlan { cpu: 3, servers: servers(1, 1) }]));
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
