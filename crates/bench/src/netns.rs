//! Two network namespaces joined by a veth pair: the server's side and the receiver's side.
//!
//! Promise: cubic on both sides whatever the host uses, and MTU 1500 unless a run asks for another
//! path, so that neither the 64 KiB MTU of the loopback nor the pacing of bbr shapes a result. Both
//! vanish with the value; what a killed run leaves behind, `tactus-bench cleanup` finds by its
//! name.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tactus_core::units::BitRate;

use crate::command;

/// The congestion control of both sides.
pub const CONGESTION_CONTROL: &str = "cubic";
/// What the names of all our namespaces start with.
pub const NAME_PREFIX: &str = "tactus-bench-";

const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 213, 0, 1);
const RECEIVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 213, 0, 2);
const RECEIVER_DEVICE: &str = "receiver";
const SERVER_DEVICE: &str = "server";
const NETWORK: &str = "10.213.0.0/30";
/// Clients with one address each: this whole network is on the receiver's side.
const CLIENTS: &str = "10.214.0.0/16";
const SWALLOWING_DEVICE: &str = "swallow";
const SWALLOWING_APART: &str = "swallow-apart";
const GROUPS: &str = "224.0.0.0/4";
const MTU: &str = "1500";
/// What TCP and IP add to a segment.
const HEADERS: u32 = 40;

/// What lies between server and receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum NetworkPath {
    /// A veth pair of MTU 1500.
    #[default]
    #[value(name = "1500")]
    Ethernet,
    /// A veth pair of MTU 9000.
    #[value(name = "9000")]
    JumboFrames,
    /// The loopback of one namespace.
    Loopback,
}

impl NetworkPath {
    /// The largest packet.
    fn mtu(self) -> u32 {
        match self {
            Self::Ethernet => 1_500,
            Self::JumboFrames => 9_000,
            Self::Loopback => 65_536,
        }
    }
}

impl std::fmt::Display for NetworkPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ethernet | Self::JumboFrames => write!(f, "veth, MTU {}", self.mtu()),
            Self::Loopback => write!(f, "loopback, MTU {}", self.mtu()),
        }
    }
}

/// The pair of namespaces.
#[derive(Debug)]
pub struct Wire {
    server: String,
    receiver: String,
    path: NetworkPath,
    /// Groups leave by a device that swallows them.
    swallows: bool,
}

impl Wire {
    /// Lays the wire.
    pub fn lay(path: NetworkPath) -> Result<Self> {
        let process = std::process::id();
        let server = format!("{NAME_PREFIX}server-{process}");
        if path == NetworkPath::Loopback {
            return Self::loop_back(server);
        }
        let receiver = format!("{NAME_PREFIX}receiver-{process}");
        let wire = Self { server, receiver, path, swallows: false };
        let mtu = path.mtu().to_string();
        let segment = (path.mtu() - HEADERS).to_string();
        ip(&["netns", "add", &wire.server])?;
        ip(&["netns", "add", &wire.receiver])?;
        ip(&[
            ["link", "add", SERVER_DEVICE, "netns", &wire.server, "type", "veth"],
            ["peer", "name", RECEIVER_DEVICE, "netns", &wire.receiver, "mtu", &mtu],
        ]
        .concat())?;
        for (namespace, device, address) in [
            (&wire.server, SERVER_DEVICE, SERVER_ADDRESS),
            (&wire.receiver, RECEIVER_DEVICE, RECEIVER_ADDRESS),
        ] {
            let address = format!("{address}/30");
            ip(&["-n", namespace, "address", "add", &address, "dev", device])?;
            ip(&["-n", namespace, "link", "set", device, "mtu", &mtu, "up"])?;
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
            // The route names the congestion control: a namespace may not choose one that the host
            // does not allow to everybody, and the host's own settings are not ours to change.
            let route = [
                ["-n", namespace, "route", "change", NETWORK, "dev", device, "proto"],
                ["kernel", "scope", "link", "congctl", CONGESTION_CONTROL, "mtu", &mtu, "advmss"],
            ];
            ip(&[&route.concat()[..], &[&segment]].concat())?;
            widen(namespace)?;
        }
        // Groups leave by the wire too.
        ip(&["-n", &wire.server, "route", "add", GROUPS, "dev", SERVER_DEVICE])?;
        Ok(wire)
    }

    /// Both sides in one namespace.
    fn loop_back(server: String) -> Result<Self> {
        let receiver = server.clone();
        let wire = Self { server, receiver, path: NetworkPath::Loopback, swallows: false };
        ip(&["netns", "add", &wire.server])?;
        ip(&["-n", &wire.server, "link", "set", "lo", "up"])?;
        let local = ["route", "replace", "local", "127.0.0.1", "dev", "lo", "table", "local"];
        let on_server = ["-n", &wire.server];
        ip(&[&on_server[..], &local, &["congctl", CONGESTION_CONTROL]].concat())?;
        widen(&wire.server)?;
        Ok(wire)
    }

    /// What lies between the two sides.
    pub fn path(&self) -> NetworkPath {
        self.path
    }

    /// Where the server listens.
    pub fn server_address(&self) -> Ipv4Addr {
        match self.path {
            NetworkPath::Loopback => Ipv4Addr::LOCALHOST,
            NetworkPath::Ethernet | NetworkPath::JumboFrames => SERVER_ADDRESS,
        }
    }

    /// Where the receiver is.
    pub fn receiver_address(&self) -> Ipv4Addr {
        match self.path {
            NetworkPath::Loopback => Ipv4Addr::LOCALHOST,
            NetworkPath::Ethernet | NetworkPath::JumboFrames => RECEIVER_ADDRESS,
        }
    }

    /// The server's device.
    pub fn server_device(&self) -> &'static str {
        SERVER_DEVICE
    }

    /// The receiver's device.
    pub fn receiver_device(&self) -> &'static str {
        RECEIVER_DEVICE
    }

    /// Gives the receiver's side all addresses of 10.214.0.0/16; returns the address of each
    /// client.
    pub fn take_clients(&self) -> Result<fn(u16) -> Ipv4Addr> {
        ip(&["-n", &self.receiver, "route", "add", "local", CLIENTS, "dev", "lo"])?;
        let by = RECEIVER_ADDRESS.to_string();
        let route = ["via", &by, "dev", SERVER_DEVICE, "congctl", CONGESTION_CONTROL];
        ip(&[&["-n", &self.server, "route", "add", CLIENTS][..], &route].concat())?;
        Ok(|client| {
            let [high, low] = client.to_be_bytes();
            Ipv4Addr::new(10, 214, high, low)
        })
    }

    /// From now on groups do not leave by the wire but by a device that swallows them, as a network
    /// card takes away what it is given: `ifb`, which drops what nobody has redirected to it, and
    /// counts it as received. By the wire, what its other end does with each frame is a part of
    /// sending.
    pub fn swallow_groups(&mut self) -> Result<()> {
        self.swallow(GROUPS, SWALLOWING_DEVICE)?;
        self.swallows = true;
        Ok(())
    }

    /// The same for the groups of one network, by a device of their own, so that
    /// [`Self::swallowed_apart`] counts them.
    pub fn swallow_apart(&self, groups: &str) -> Result<()> {
        self.swallow(groups, SWALLOWING_APART)
    }

    fn swallow(&self, groups: &str, device: &str) -> Result<()> {
        let on_server = ["-n", &self.server];
        let make = ["link", "add", device, "mtu", MTU, "type", "ifb"];
        ip(&[&on_server[..], &make].concat())?;
        ip(&[&on_server[..], &["link", "set", device, "multicast", "on", "up"]].concat())?;
        let source = SERVER_ADDRESS.to_string();
        let route = ["route", "replace", groups, "dev", device, "src", &source];
        ip(&[&on_server[..], &route].concat()).map(drop)
    }

    /// Bytes behind the headers of UDP that [`Self::swallow_apart`]'s device has swallowed.
    pub fn swallowed_apart(&self) -> Result<u64> {
        payload(&self.server, SWALLOWING_APART)
    }

    /// Bytes behind the headers of UDP (IPv4) that have come to the receiver's device since it was
    /// made, or were swallowed. What comes as one message of several datagrams has its headers
    /// once, and counts as one packet there.
    pub fn received(&self) -> Result<u64> {
        let mut behind = payload(&self.receiver, RECEIVER_DEVICE)?;
        if self.swallows {
            behind += payload(&self.server, SWALLOWING_DEVICE)?;
        }
        Ok(behind)
    }

    /// Packets that the receiver's device had no room for. Of a pair the sender's end counts them.
    pub fn lost(&self) -> Result<u64> {
        Ok(counts(&self.server, SERVER_DEVICE)?[11])
    }

    /// A command that runs on the server's side; the arguments of `command` follow.
    pub fn on_server_side(&self, command: &Command) -> Command {
        inside(&self.server, command)
    }

    /// The same on the receiver's side.
    pub fn on_receiver_side(&self, command: &Command) -> Command {
        inside(&self.receiver, command)
    }

    /// Moves the calling thread to the receiver's side, for good.
    pub fn move_to_receiver_side(&self) -> Result<()> {
        enter(&self.receiver)
    }

    /// The name of the receiver's namespace, for a thread that outlives this borrow.
    pub fn receiver_side(&self) -> Side {
        Side { namespace: self.receiver.clone() }
    }

    /// Makes the server's side a wire of `rate`: a token bucket that lets each frame go when its
    /// bytes have had their time, and makes up for what its timer is late, up to a quarter of a
    /// millisecond. Before it a queue of 4 MB.
    pub fn shape(&self, rate: BitRate) -> Result<()> {
        let (limit, burst) = (format!("{}bit", rate.0), (rate.0 / 8 / 4000).max(3100).to_string());
        let tbf = ["root", "tbf", "rate", &limit, "burst", &burst, "limit", "4000000"];
        let place = ["-n", &self.server, "qdisc", "replace", "dev", SERVER_DEVICE];
        command::run("tc", &[&place[..], &tbf[..]].concat()).map(drop)
    }

    /// Turns UDP segmentation by the server's device on or off: off models a network card without.
    pub fn set_udp_segmentation(&self, on: bool) -> Result<()> {
        let state = if on { "on" } else { "off" };
        let setting = ["--features", SERVER_DEVICE, "tx-udp-segmentation", state];
        let mut ethtool = Command::new("ethtool");
        ethtool.args(setting);
        command::finish(&mut self.on_server_side(&ethtool)).map(drop)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let receiver = Some(&self.receiver).filter(|&receiver| *receiver != self.server);
        for namespace in receiver.into_iter().chain([&self.server]) {
            if let Err(error) = ip(&["netns", "delete", namespace]) {
                eprintln!("left behind: network namespace {namespace}: {error:#}");
            }
        }
    }
}

/// One side of a wire, by name.
#[derive(Clone, Debug)]
pub struct Side {
    namespace: String,
}

impl Side {
    /// Moves the calling thread to this side, for good.
    pub fn enter(&self) -> Result<()> {
        enter(&self.namespace)
    }
}

/// Room in a namespace for many connections.
fn widen(namespace: &str) -> Result<()> {
    let enter = format!("--net={}", path(namespace).display());
    // Ports of finished rounds must not run out during the next.
    for setting in ["net.ipv4.ip_local_port_range=1024 65535", "net.core.somaxconn=8192"] {
        command::run("nsenter", &[&enter, "sysctl", "--write", "--quiet", setting])?;
    }
    Ok(())
}

/// Deletes every namespace that a run left behind; returns their names.
pub fn remove_leftovers() -> Result<Vec<String>> {
    let all = ip(&["netns", "list"])?;
    let names = all.lines().filter_map(|line| line.split_whitespace().next());
    let ours: Vec<String> =
        names.filter(|name| name.starts_with(NAME_PREFIX)).map(str::to_owned).collect();
    for name in &ours {
        ip(&["netns", "delete", name])?;
    }
    Ok(ours)
}

/// Received bytes of a device behind the headers of Ethernet, IPv4 and UDP.
fn payload(namespace: &str, device: &str) -> Result<u64> {
    const HEADERS: u64 = 14 + 20 + 8;
    let [bytes, packets, ..] = counts(namespace, device)?;
    Ok(bytes.saturating_sub(packets * HEADERS))
}

/// What the kernel counts of a device: received bytes, packets, errors, drops and four others, then
/// the same of what was sent.
fn counts(namespace: &str, device: &str) -> Result<[u64; 16]> {
    let enter = format!("--net={}", path(namespace).display());
    let text = command::run("nsenter", &[&enter, "cat", "/proc/net/dev"])?;
    let mut lines = text.lines().filter_map(|line| line.trim().split_once(':'));
    let (_, line) = lines.find(|(name, _)| *name == device).context("the device has gone")?;
    let counts: Result<Vec<u64>, _> = line.split_whitespace().map(str::parse).collect();
    counts.ok().and_then(|counts| counts.try_into().ok()).context("counts of a device")
}

fn inside(namespace: &str, command: &Command) -> Command {
    let mut inside = Command::new("nsenter");
    inside.arg(format!("--net={}", path(namespace).display()));
    inside.arg(command.get_program()).args(command.get_args());
    inside
}

fn enter(namespace: &str) -> Result<()> {
    let file = File::open(path(namespace))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("cannot enter the network namespace {namespace}"))
}

fn path(namespace: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(namespace)
}

fn ip(arguments: &[&str]) -> Result<String> {
    command::run("ip", arguments)
}
