//! The settings of the engine: volumes, memory, link, cores, and the limits of streams.
//!
//! Promise: each default is defined here once. Values that depend on the host stay [`Auto`] and are
//! determined at start.

use std::path::PathBuf;

use tactus_core::units::{BitRate, Bytes, KIB, MIB, Nanos, SECOND};
use tactus_notation::Auto;
use tactus_notation::units::Percent;
use tactus_sys::topology::SYSTEM;

use crate::class::Classes;
use crate::placement::{CorePlan, ServerName};

/// What the engine starts with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineSettings {
    /// The disks, in order.
    pub volumes: Vec<Volume>,
    /// Limits of memory and streams.
    pub memory: Memory,
    /// The network path.
    pub link: Link,
    /// Share of each real-time core's time that streams may fill.
    pub cpu_budget: Percent,
    /// Placement of servers on cores, and their priority.
    pub cores: Cores,
    /// How datagrams are sent.
    pub packets: Packets,
    /// The link that is kept full with gap frames, which time its datagrams exactly.
    pub gap_frames: Option<GapFrames>,
    /// Deliveries without a rate.
    pub best_effort: BestEffort,
    /// When the connection of a slow client is ended.
    pub slow_reader: SlowReader,
    /// Classes of the link, for datagrams.
    pub classes: Classes,
    /// Media time that is sent at once at the start of a title at its own rate.
    pub start_burst: Nanos,
    /// Most connections of clients at once; each has an open file.
    pub connections_max: u32,
    /// Whether titles may be sent as datagrams.
    pub sends_datagrams: bool,
    /// Most local clients at once; zero: none.
    pub local_clients: u16,
}

impl EngineSettings {
    /// The most packet servers that can share the work of these settings.
    pub fn packet_servers_max(&self) -> u16 {
        packet_servers_max(&self.classes, self.gap_frames.as_ref(), self.packets)
    }
}

/// The most packet servers: one if a single server has to schedule a whole link or to own the
/// device's queue.
pub fn packet_servers_max(
    classes: &Classes,
    gap_frames: Option<&GapFrames>,
    packets: Packets,
) -> u16 {
    let is_single =
        !classes.0.is_empty() || gap_frames.is_some() || packets.back_end == BackEnd::Xdp;
    if is_single { 1 } else { u16::MAX }
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            volumes: vec![],
            memory: Memory::default(),
            link: Link::default(),
            cpu_budget: Percent::whole(70),
            cores: Cores::default(),
            packets: Packets::default(),
            gap_frames: None,
            best_effort: BestEffort::default(),
            slow_reader: SlowReader::default(),
            classes: Classes::default(),
            start_burst: SECOND,
            connections_max: 10_000,
            sends_datagrams: false,
            local_clients: 0,
        }
    }
}

/// One disk's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Volume {
    /// The directory.
    pub path: PathBuf,
    /// Path of its files in URLs: `/`, or `/name/`.
    pub mount: String,
    /// One turn of the disk: divides a second, or is a whole number of them. By default 250 ms on
    /// flash; on a hard disk [`ArmVolume`](tactus_core::cycle_choice::ArmVolume) chooses it.
    pub cycle: Auto<Nanos>,
    /// Size of a read. By default 256 KiB on flash, 1 MiB on a hard disk.
    pub block: Auto<Bytes>,
    /// Requests in flight; by default from the disk model.
    pub depth: Auto<u32>,
    /// The disk model, a file written by `tactus measure`; by default inside the volume.
    pub model: PathBuf,
    /// Part of each cycle that paced streams may fill.
    pub budget: Percent,
    /// Whether blocks are kept in the page cache and sent by reference, or read directly and
    /// copied.
    pub sendfile: Sendfile,
    /// Whether it takes uploads, changes and deletions of titles.
    pub uploads: bool,
    /// Whether titles can be read during their upload.
    pub unfinished: UnfinishedTitles,
    /// Memory for writes under way.
    pub write_share: Bytes,
    /// Part of each cycle that uploads get even when streams fill the rest.
    pub upload_floor: Percent,
}

impl Volume {
    /// The volume at `path`, with the defaults of a single one.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            model: path.join(MODEL_FILE),
            path,
            mount: "/".into(),
            cycle: Auto::Auto,
            block: Auto::Auto,
            depth: Auto::Auto,
            budget: Percent::whole(90),
            sendfile: Sendfile::Auto,
            uploads: false,
            unfinished: UnfinishedTitles::Hidden,
            write_share: WRITE_SHARE,
            upload_floor: Percent::whole(5),
        }
    }
}

/// Half a second of a fast disk's writes: more would only lengthen the wait before a flush.
const WRITE_SHARE: Bytes = Bytes(64 * MIB);

/// Whether titles can be read during their upload.
#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[serde(rename_all = "lowercase")]
pub enum UnfinishedTitles {
    /// A title becomes visible when it is complete.
    #[default]
    Hidden,
    /// Up to the durable watermark.
    Visible,
}

/// Whether blocks are sent from the page cache.
#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Sendfile {
    /// Where it costs less, if the host permits it.
    #[default]
    Auto,
    /// Wherever the host permits it.
    On,
    /// Never: direct reads only.
    Off,
}

/// Limits of memory and streams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Memory for blocks, of all volumes together; by default a quarter of the free memory, at most
    /// [`ARENA_MAX_AUTO`], or by reference a third of it, at most [`REFERENCE_MAX_AUTO`], or what
    /// the streams of a hard disk need.
    pub arena: Auto<Bytes>,
    /// Most streams at once.
    pub streams_max: u32,
    /// Whether to try to lock memory.
    pub lock: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self { arena: Auto::Auto, streams_max: 8_192, lock: true }
    }
}

/// The network path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The capacity of the link; by default the speed of the interface.
    pub rate: Auto<BitRate>,
    /// Part of it that paced payload may fill.
    pub budget: Percent,
}

impl Default for Link {
    fn default() -> Self {
        Self { rate: Auto::Auto, budget: Percent::whole(90) }
    }
}

/// How much of a shared resource one client, an address or a principal, may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientShare {
    /// An equal share for each active client, and one for a newcomer.
    Fair,
    /// At most this part.
    Part(Percent),
    /// All of it.
    All,
}

/// Deliveries without a rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BestEffort {
    /// Most of them at once; by default as many as half of the memory for blocks holds.
    pub streams_max: Auto<u32>,
    /// The share of one client.
    pub client_share: ClientShare,
}

impl Default for BestEffort {
    fn default() -> Self {
        Self { streams_max: Auto::Auto, client_share: ClientShare::Fair }
    }
}

/// Placement of servers on cores, and their priority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cores {
    /// By default [`default_placement`](crate::placement::default_placement).
    pub placement: Auto<Vec<CorePlan>>,
    /// Whether to try SCHED_FIFO.
    pub realtime: bool,
    /// Its priority, 1 to 99.
    pub priority: u32,
    /// Whether servers move by themselves, where there is more than one core for them.
    pub balance: bool,
    /// Servers that never move by themselves.
    pub fixed: Vec<ServerName>,
    /// Where the kernel describes the processors.
    pub system: PathBuf,
}

impl Default for Cores {
    fn default() -> Self {
        Self {
            placement: Auto::Auto,
            realtime: true,
            priority: 40,
            balance: true,
            fixed: vec![],
            system: SYSTEM.into(),
        }
    }
}

/// How datagrams are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packets {
    /// The link's time resolution for datagrams.
    pub tick: Nanos,
    /// The back end that sends them; by default the cheapest one in measurements.
    pub back_end: BackEnd,
}

impl Default for Packets {
    fn default() -> Self {
        Self { tick: PACKET_TICK, back_end: BackEnd::Auto }
    }
}

/// At most 4,000 wake-ups a second, which cost 2 % of a core. A datagram is late by half a tick on
/// average, which is less than the error of a receiver's clock.
const PACKET_TICK: Nanos = Nanos::from_micros(250);

/// A link that is kept full with gap frames.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GapFrames {
    /// Its device.
    pub device: String,
    /// Its exact capacity, including everything on the wire.
    pub rate: BitRate,
    /// Bytes that the wire adds to each frame.
    pub overhead: u32,
}

impl GapFrames {
    /// The default capacity.
    pub const RATE: BitRate = BitRate(1_000_000_000);
    /// The default overhead: checksum, preamble and the gap between frames (IEEE 802.3).
    pub const OVERHEAD: u32 = 24;
}

/// When the connection of a slow client is ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlowReader {
    /// Time that a paced stream may be behind its clock.
    pub behind_max: Nanos,
    /// Slowest rate of a download without a rate …
    pub download_rate_min: BitRate,
    /// … over this time.
    pub download_window: Nanos,
}

impl Default for SlowReader {
    fn default() -> Self {
        Self {
            behind_max: SECOND.times(10),
            download_rate_min: BitRate(32 * KIB),
            download_window: SECOND.times(60),
        }
    }
}

/// The kernel interface for datagrams.
#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[serde(rename_all = "lowercase")]
pub enum BackEnd {
    /// The cheapest one in measurements.
    #[default]
    Auto,
    /// `sendmmsg`.
    Sendmmsg,
    /// io_uring.
    #[serde(rename = "io_uring")]
    IoUring,
    /// `sendmmsg` with transmission times that `fq` keeps.
    #[serde(rename = "so_txtime")]
    Txtime,
    /// Frames on a packet socket for the destinations that permit it; `sendmmsg` for the others.
    #[serde(rename = "af_packet")]
    PacketSocket,
    /// The same with AF_XDP.
    #[serde(rename = "af_xdp")]
    Xdp,
}

/// Upper bound of the default memory for blocks, unless hard disks need more.
pub const ARENA_MAX_AUTO: Bytes = Bytes(1024 * MIB);

/// The same for blocks that stay in the page cache.
pub const REFERENCE_MAX_AUTO: Bytes = Bytes(2048 * MIB);

/// From so much on these blocks are twice as large. A stream then takes at most half as much memory
/// again, so this has room for as many streams as [`ARENA_MAX_AUTO`] with smaller blocks.
pub const REFERENCE_MIN_AUTO: Bytes = Bytes(1536 * MIB);

/// The disk model's file inside a volume.
pub const MODEL_FILE: &str = ".tactus/disk-model.toml";
