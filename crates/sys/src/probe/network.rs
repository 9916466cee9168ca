//! Facts about the network: interfaces, and how TCP and queues are set.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tactus_core::units::BitRate;

use super::{line, number, qdisc};

/// What the network is like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Network {
    /// All interfaces, by name.
    pub interfaces: Vec<Interface>,
    /// Congestion control that new sockets get.
    pub congestion: Option<String>,
    /// Congestion controls that a socket may choose without rights.
    pub congestion_allowed: Vec<String>,
    /// Queueing discipline that new interfaces get.
    pub default_qdisc: Option<String>,
    /// Most bytes that TCP lets a socket's send buffer grow to.
    pub send_buffer_max: Option<u64>,
}

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// It is up and has a carrier, or cannot tell (loopback).
    pub up: bool,
    /// It leads back to this machine.
    pub loopback: bool,
    /// Its speed; `None` where the driver does not tell (virtual ones).
    pub speed: Option<BitRate>,
    /// Largest packet in bytes.
    pub mtu: Option<u32>,
    /// The driver; `None` for what is not a device.
    pub driver: Option<String>,
    /// The queueing discipline at its root.
    pub qdisc: Option<String>,
}

/// A queue of a device, in which datagrams wait and may be thrown away: a socket is told that they
/// were sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Queue {
    /// The name of the device.
    pub device: String,
    /// Its queueing discipline.
    pub discipline: String,
    /// Packets that it has thrown away since it was made, of whoever sent them. The kernel counts
    /// up to 2^32, and then from 0 again.
    pub dropped: u64,
}

/// Most devices of which [`queues`] tells: those with the lowest numbers.
const QUEUES_MAX: usize = 64;

/// The queues of devices of this process' namespace, those without one left out.
pub fn queues() -> Vec<Queue> {
    let roots = qdisc::at_roots().unwrap_or_default().into_iter();
    let roots = roots.filter(|(_, root)| !matches!(root.kind.as_str(), "noqueue" | "noop"));
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    let Ok(socket) = rustix::net::socket_with(family, SocketType::DGRAM, flags, None) else {
        return vec![];
    };
    let queue = |(index, root): (u32, qdisc::Root)| {
        let device = rustix::net::netdevice::index_to_name(&socket, index).ok()?;
        Some(Queue { device, discipline: root.kind, dropped: root.dropped.into() })
    };
    roots.filter_map(queue).take(QUEUES_MAX).collect()
}

/// Looks at the network of this process' namespace.
pub fn network() -> Network {
    let roots = qdisc::at_roots().unwrap_or_default();
    let mut interfaces: Vec<_> = fs::read_dir("/sys/class/net")
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_else(|_| Vec::<std::path::PathBuf>::new())
        .iter()
        .filter_map(|path| interface(path, &roots))
        .collect();
    interfaces.sort_by(|a, b| a.name.cmp(&b.name));
    let allowed = line("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap_or_default();
    Network {
        interfaces,
        congestion: line("/proc/sys/net/ipv4/tcp_congestion_control"),
        congestion_allowed: allowed.split_whitespace().map(str::to_owned).collect(),
        default_qdisc: line("/proc/sys/net/core/default_qdisc"),
        send_buffer_max: line("/proc/sys/net/ipv4/tcp_wmem")
            .and_then(|triple| triple.split_whitespace().nth(2)?.parse().ok()),
    }
}

fn interface(path: &Path, roots: &BTreeMap<u32, qdisc::Root>) -> Option<Interface> {
    /// `IFF_LOOPBACK` in the flags.
    const LOOPBACK: u64 = 0x8;
    let flags = line(path.join("flags"))?;
    let flags = u64::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
    let index = number(path.join("ifindex")).and_then(|index| u32::try_from(index).ok());
    let driver = fs::read_link(path.join("device/driver")).ok();
    Some(Interface {
        name: path.file_name()?.to_string_lossy().into_owned(),
        up: matches!(line(path.join("operstate")).as_deref(), Some("up" | "unknown")),
        loopback: flags & LOOPBACK != 0,
        // Mbit/s; -1 where the driver does not know.
        speed: number(path.join("speed"))
            .filter(|speed| *speed > 0 && *speed < u64::from(u32::MAX))
            .map(|mega| BitRate(mega * 1_000_000)),
        mtu: number(path.join("mtu")).and_then(|mtu| u32::try_from(mtu).ok()),
        driver: driver.and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned())),
        qdisc: index.and_then(|index| Some(roots.get(&index)?.kind.clone())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_a_loopback() {
        let network = network();
        let loopback = network.interfaces.iter().find(|it| it.loopback).unwrap();
        assert_eq!((loopback.name.as_str(), loopback.speed), ("lo", None));
        assert!(loopback.mtu.unwrap() >= 1500);
        assert!(network.congestion.is_some());
        let default = network.congestion.unwrap();
        assert!(network.congestion_allowed.contains(&default) || default == "bbr");
    }
}
