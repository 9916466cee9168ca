//! The distributions of clients and servers over two cores.
//!
//! Promise: of the fifteen ways to divide clients, file, block and disk server among cores, all
//! that need two cores at most are there, each once.

/// Where clients and servers run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Distribution {
    pub(super) name: String,
    /// The cores of the clients.
    pub(super) clients: &'static [usize],
    /// What serves them.
    pub(super) server: Server,
}

/// What serves the clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Server {
    /// The file system of the kernel.
    Kernel,
    /// Tactus, with these lines of `[cores]`, on these cores of the machine.
    Tactus { cores: String, may_use: &'static str },
}

/// Clients and all of Tactus on one core.
pub(super) const ONE_CORE: &str = "one core";
/// No `[cores]`, and clients wherever the kernel puts them.
pub(super) const DEFAULT: &str = "the default";
/// The same loads by `pread` and `pwrite`.
pub(super) const KERNEL_ONE: &str = "kernel, one core";
/// The same on both cores.
pub(super) const KERNEL_TWO: &str = "kernel, two cores";

const BOTH: &[usize] = &[0, 1];
const FIRST: &[usize] = &[0];
/// The servers that take part, and their names in `[cores]`.
const SERVERS: [(&str, &str); 3] = [("file", "file"), ("block", "block.0"), ("disk", "disk.0")];

/// All of them, in the order of the tables.
pub(super) fn all() -> Vec<Distribution> {
    let kernel =
        |name: &str, clients| Distribution { name: name.into(), clients, server: Server::Kernel };
    let tactus = |name: String, clients, cores, may_use| Distribution {
        name,
        clients,
        server: Server::Tactus { cores, may_use },
    };
    let mut all = vec![
        tactus(ONE_CORE.into(), FIRST, String::new(), "0"),
        tactus(DEFAULT.into(), BOTH, String::new(), "0-1"),
    ];
    // A bit says that the server is on the other core than the clients.
    for apart in 1..1 << SERVERS.len() {
        let [near, far] = [false, true].map(|is_apart| named(apart, is_apart));
        let near = ["client"].into_iter().chain(near).collect::<Vec<_>>().join(", ");
        let name = format!("{near} | {}", far.join(", "));
        all.push(tactus(name, FIRST, placement(apart), "0-1"));
    }
    // Clients on both cores: then the cores do not differ.
    for apart in 1..1 << (SERVERS.len() - 1) {
        let [near, far] = [false, true].map(|is_apart| named(apart, is_apart).join(", "));
        all.push(tactus(format!("{near} | {far}; clients free"), BOTH, placement(apart), "0-1"));
    }
    all.extend([kernel(KERNEL_ONE, FIRST), kernel(KERNEL_TWO, BOTH)]);
    all
}

/// The servers on one side.
fn named(apart: u32, is_apart: bool) -> Vec<&'static str> {
    let servers = SERVERS.iter().enumerate();
    let there = servers.filter(|(bit, _)| (apart >> bit & 1 == 1) == is_apart);
    there.map(|(_, (name, _))| *name).collect()
}

/// Lines of `[cores]`. The servers that have no part in it are with the disk's.
fn placement(apart: u32) -> String {
    let mut cores = [vec![], vec![]];
    for (bit, (name, key)) in SERVERS.iter().enumerate() {
        let core = &mut cores[(apart >> bit & 1) as usize];
        core.push(*key);
        if *name == "disk" {
            core.extend(["delivery", "link", "packets"]);
        }
    }
    let cores = cores.iter().enumerate().filter(|(_, servers)| !servers.is_empty());
    let cores = cores.map(|(cpu, servers)| {
        let servers: Vec<_> = servers.iter().map(|name| format!("\"{name}\"")).collect();
        format!("{{ cpu = {cpu}, servers = [{}] }}", servers.join(", "))
    });
    format!("placement = [{}]\nbalance = \"off\"\n", cores.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_division_among_two_cores_is_there_once() {
        // Stirling numbers: one way on one core and seven on two, of the fifteen in all.
        let all = all();
        let names: BTreeSet<_> = all.iter().map(|one| &one.name).collect();
        assert_eq!(names.len(), all.len());
        let divided = all.iter().filter(|one| one.name.starts_with("client"));
        assert_eq!(divided.count(), 7);
        let free = all.iter().filter(|one| one.name.ends_with("clients free"));
        assert_eq!(free.count(), 3);
    }

    #[test]
    fn servers_are_where_the_name_says() {
        let of = |name: &str| {
            let all = all();
            let one = all.iter().find(|one| one.name == name).unwrap().clone();
            let Server::Tactus { cores, .. } = one.server else { panic!("{one:?}") };
            cores
        };
        assert_eq!(
            of("client, file | block, disk"),
            "placement = [{ cpu = 0, servers = [\"file\"] }, { cpu = 1, servers = [\"block.0\", \
             \"disk.0\", \"delivery\", \"link\", \"packets\"] }]\nbalance = \"off\"\n"
        );
        assert_eq!(
            of("client | file, block, disk"),
            "placement = [{ cpu = 1, servers = [\"file\", \"block.0\", \"disk.0\", \"delivery\", \
             \"link\", \"packets\"] }]\nbalance = \"off\"\n"
        );
        assert!(of("file, disk | block; clients free").contains("{ cpu = 1, servers = [\"block"));
    }
}
