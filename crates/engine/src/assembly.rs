//! Assembly: makes the servers and the rings between them, and places them on cores.
//!
//! Only this module sees every ring. The capacities follow from the most that the ledger can grant,
//! so no push ever fails: at most one want, one lease and one answer for each place of each arena,
//! and at most two messages of each kind for each stream.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tactus_core::cost::RESIDENT_WINDOW;
use tactus_core::cycle::{CycleLimits, GROUP_MAX, Learning, WritePathLimits};
use tactus_core::disk_model::DiskModel;
use tactus_core::kernel_read_ahead::TurnLimits;
use tactus_core::ports::{DiskPort, FilePort, LinkPort, PacketPort, Waker};
use tactus_core::units::{BitRate, Bytes, Nanos, SECOND};
use tactus_ring::arena::ArenaOwner;
use tactus_ring::counter::{Counter, Histogram, Snapshot};
use tactus_ring::spsc::{Consumer, Producer, ring};

use crate::block::{BlockRings, BlockServer, Requester};
use crate::cores::Core;
use crate::counters::{
    BlockCounters, ClassCounters, CoreCounters, DeliveryCounters, DiskCounters, FileCounters,
    LinkCounters, PacketCounters, ServerCounters, StreamCounters,
};
use crate::delivery::{
    DeliveryParts, DeliveryServer, EMPTY_ROUNDS, LinkEnd, Links, VolumeLimits, VolumeParts,
};
use crate::disk::{self, DiskRings, DiskServer, ProbeSetup};
use crate::egress::{DeliveryEnd, DeliveryRings, Memory};
use crate::file::{FileParts, FileServer, FileVolume, PLACES_OF_CLIENT_MAX, REQUESTS_MAX};
use crate::link::{LinkParts, LinkServer, Patience};
use crate::message::{
    ClassChange, Command, HANDLES_MAX, LocalCommand, LocalReport, PacketClass, Report, WriteAnswer,
    WriteRequest,
};
use crate::name::{Job, ServerName};
use crate::packets::{PacketParts, PacketServer};
use crate::server::Server;

/// One volume: its device, its memory and its disk cycle.
pub struct VolumeSetup<D> {
    /// The device.
    pub port: D,
    /// The owner of the volume's blocks.
    pub keeper: ArenaOwner,
    /// The memory that holds the blocks.
    pub memory: Memory,
    /// Length of the disk cycle.
    pub cycle: Nanos,
    /// Performance of the disk.
    pub model: DiskModel,
    /// The turns in which the kernel begins to read ahead for streams; `None` if it may do so from
    /// the first block on.
    pub read_ahead: Option<TurnLimits>,
    /// Best-effort pieces in flight at once.
    pub best_effort_depth: u32,
    /// The write path of uploads; `None` if the volume takes no uploads.
    pub write_path: Option<WritePathSetup>,
    /// What is learned about the disk; `None`: it always keeps its model.
    pub learning: Option<LearningSetup>,
}

/// What is learned about a disk, and by what.
pub struct LearningSetup {
    /// The rules.
    pub rules: Learning,
    /// What probes read with; set if the rules allow probes.
    pub probe: Option<ProbeSetup>,
    /// Wakes the control side when the estimate of the disk changes.
    pub waker: Box<dyn Waker>,
}

/// The write path of one volume. Its places belong to the write share. The control side owns their
/// keeper, and the device's port their memory.
pub struct WritePathSetup {
    /// Number of places of the write share.
    pub places: u32,
    /// Limit of unanswered flushes.
    pub syncs_max: u32,
    /// Part of each cycle reserved for uploads that need it, in thousandths. The ledger must use
    /// the same number.
    pub floor_thousandths: u32,
    /// Wakes the control side when there are answers.
    pub waker: Box<dyn Waker>,
}

/// The control side's end of a volume's write path.
pub struct WritePath {
    /// Write and flush requests: at most one write for each place, and at most `syncs_max` flushes.
    pub requests: Producer<WriteRequest>,
    /// One answer for each request.
    pub answers: Consumer<WriteAnswer>,
}

/// The core of each server, by the number of the core within the engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Number of cores, also of those without a server.
    pub cores: usize,
    /// Each volume's disk server.
    pub disks: Vec<usize>,
    /// Each volume's block server.
    pub blocks: Vec<usize>,
    /// Each delivery server; at least one.
    pub deliveries: Vec<usize>,
    /// Each link server.
    pub links: Vec<usize>,
    /// Each packet server.
    pub packets: Vec<usize>,
    /// The file server, if there is one.
    pub file: usize,
}

impl Placement {
    /// The default placement of `volumes` volumes on `cores` real-time cores. One core: all servers
    /// on it. Two cores: reading and sending apart. More cores: the disks are spread over the cores
    /// that do not send.
    pub fn sensible(volumes: usize, cores: usize) -> Self {
        assert!(cores > 0, "an engine has a core");
        let of_disk = |volume: usize| match cores {
            1 => 0,
            _ => 1 + volume % (cores - 1),
        };
        let disks: Vec<_> = (0..volumes).map(of_disk).collect();
        let blocks = disks.clone();
        let [deliveries, links, packets] = [(); 3].map(|()| vec![0]);
        Self { cores, blocks, disks, deliveries, links, packets, file: 0 }
    }
}

/// The parts of an engine.
pub struct Setup<D, L> {
    /// The volumes.
    pub volumes: Vec<VolumeSetup<D>>,
    /// The network path of each link server; at least one.
    pub links: Vec<L>,
    /// The network path of each packet server; none if no datagrams are sent.
    pub packets: Vec<PacketSetup>,
    /// What local clients need; `None` if there are none.
    pub local: Option<LocalSetup>,
    /// Slots of the stream table.
    pub streams: u32,
    /// When a peer counts as too slow.
    pub patience: Patience,
    /// The core of each server.
    pub placement: Placement,
    /// Of each delivery server, woken when it has reports.
    pub report_wakers: Vec<Box<dyn Waker>>,
}

/// Local clients.
pub struct LocalSetup {
    /// Clients at once. Each may hold [`PLACES_OF_CLIENT`](crate::file::PLACES_OF_CLIENT) places of
    /// each volume, which the ledger must not grant to others.
    pub clients: u16,
    /// Reads the page cache.
    pub port: Box<dyn FilePort>,
    /// Woken when there are reports.
    pub waker: Box<dyn Waker>,
}

/// The control side's end of the file server.
pub struct Local {
    /// Clients and their titles: room for everything that can be sent without a report between.
    pub commands: Producer<LocalCommand>,
    /// Results of the commands.
    pub reports: Consumer<LocalReport>,
}

/// A network path for datagrams.
pub struct PacketSetup {
    /// Sends the datagrams.
    pub port: Box<dyn PacketPort>,
    /// Its rate on the wire, with all headers.
    pub rate: BitRate,
    /// Resolution of its schedule.
    pub tick: Nanos,
    /// Its classes; each stands behind its parent. Only the first packet server has any: classes
    /// share one link, which one server must schedule.
    pub classes: Vec<PacketClass>,
}

/// The control side's end of the engine.
pub struct Control {
    /// Of each delivery server: starts and stops deliveries.
    pub commands: Vec<Producer<Command>>,
    /// Of each delivery server: results of the commands.
    pub reports: Vec<Consumer<Report>>,
    /// Each volume's write path.
    pub write_paths: Vec<Option<WritePath>>,
    /// Local clients, if there may be any.
    pub local: Option<Local>,
    /// Changes of the limits of datagram classes: room for one change of each class.
    pub classes: Producer<ClassChange>,
    /// The counters of the servers.
    pub counters: Counters,
}

/// All counters of an engine.
#[derive(Clone)]
pub struct Counters {
    /// The counters of each core.
    pub cores: Vec<Arc<CoreCounters>>,
    /// Each server, in the order of their assembly.
    pub servers: Arc<[(ServerName, ServerCounters)]>,
    /// Each volume's disk server.
    pub disks: Vec<Arc<DiskCounters>>,
    /// Each volume's block server.
    pub blocks: Vec<Arc<BlockCounters>>,
    /// Each delivery server.
    pub deliveries: Vec<Arc<DeliveryCounters>>,
    /// Each link server.
    pub links: Vec<Arc<LinkCounters>>,
    /// Each packet server.
    pub packets: Vec<Arc<PacketCounters>>,
    /// The file server.
    pub file: Arc<FileCounters>,
    /// Each class of its link.
    pub classes: Arc<[ClassCounters]>,
    /// Each slot of the stream table.
    pub streams: Arc<[StreamCounters]>,
}

impl Counters {
    /// The sum of one counter of all delivery servers.
    pub fn sum_of_deliveries(&self, counter: impl Fn(&DeliveryCounters) -> &Counter) -> u64 {
        self.deliveries.iter().map(|server| counter(server).value()).sum()
    }

    /// The sum of one counter of all link servers.
    pub fn sum_of_links(&self, counter: impl Fn(&LinkCounters) -> &Counter) -> u64 {
        self.links.iter().map(|link| counter(link).value()).sum()
    }

    /// The values of one histogram of all link servers.
    pub fn histogram_of_links(&self, histogram: impl Fn(&LinkCounters) -> &Histogram) -> Snapshot {
        sum_of(self.links.iter().map(|link| histogram(link)))
    }

    /// The sum of one counter of all packet servers.
    pub fn sum_of_packet_servers(&self, counter: impl Fn(&PacketCounters) -> &Counter) -> u64 {
        self.packets.iter().map(|server| counter(server).value()).sum()
    }

    /// The values of one histogram of all packet servers.
    pub fn histogram_of_packet_servers(
        &self,
        histogram: impl Fn(&PacketCounters) -> &Histogram,
    ) -> Snapshot {
        sum_of(self.packets.iter().map(|server| histogram(server)))
    }
}

fn sum_of<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Snapshot {
    let empty = Histogram::new().snapshot();
    histograms.fold(empty, |sum, histogram| sum.plus(&histogram.snapshot()))
}

/// Makes the servers and places them.
///
/// # Panics
/// If a cycle neither divides one second nor is a multiple of it, or a server has no place.
pub fn assemble<D, L>(setup: Setup<D, L>) -> (Vec<Core>, Control)
where
    D: DiskPort + Send + 'static,
    L: LinkPort + Send + 'static,
{
    let Setup { volumes, links, packets, local, streams, patience, placement, report_wakers } =
        setup;
    let delivery_servers = placement.deliveries.len();
    assert!(delivery_servers > 0, "an engine has a delivery server");
    let streams = streams as usize;
    let places: usize = volumes.iter().map(|volume| volume.keeper.places() as usize).sum();
    // Streams of pinned titles share blocks, so there may be more leases than places.
    let leases = places + streams * RESIDENT_WINDOW as usize;
    let stream_counters: Arc<[StreamCounters]> =
        (0..streams).map(|_| StreamCounters::default()).collect();
    let mut counters = Counters {
        cores: vec![],
        servers: Arc::default(),
        disks: vec![],
        blocks: vec![],
        deliveries: placement.deliveries.iter().map(|_| Arc::default()).collect(),
        links: links.iter().map(|_| Arc::default()).collect(),
        packets: packets.iter().map(|_| Arc::default()).collect(),
        file: Arc::default(),
        classes: packets
            .iter()
            .flat_map(|packets| &packets.classes)
            .map(|_| ClassCounters::default())
            .collect(),
        streams: Arc::clone(&stream_counters),
    };
    let mut cores: Vec<Core> = (0..placement.cores).map(|_| Core::default()).collect();
    counters.cores = cores.iter().map(Core::counters).collect();
    let named = |job, index: usize| {
        let index = u16::try_from(index).expect("an engine has fewer servers");
        ServerName { job, index }
    };
    let mut placed: Vec<(usize, ServerName, Box<dyn Server>)> = vec![];
    let mut parts: Vec<Vec<VolumeParts>> = (0..delivery_servers).map(|_| vec![]).collect();
    let mut memories = vec![];
    let mut write_paths = vec![];
    let mut file_volumes = vec![];
    let clients = local.as_ref().map(|local| local.clients);
    for (at, volume) in volumes.into_iter().enumerate() {
        assert!(
            volume.cycle.0.is_multiple_of(SECOND.0) || SECOND.0.is_multiple_of(volume.cycle.0),
            "a cycle divides a second or is a multiple of one"
        );
        let numbers = (leases, delivery_servers);
        let generated = assemble_volume(volume, numbers, clients, &mut counters);
        placed.push((placement.disks[at], named(Job::Disk, at), generated.disk));
        placed.push((placement.blocks[at], named(Job::Block, at), generated.block));
        for (parts, part) in parts.iter_mut().zip(generated.parts) {
            parts.push(part);
        }
        memories.push(generated.memory);
        write_paths.push(generated.write_path);
        file_volumes.extend(generated.file_volume);
    }
    let mut to_links: Vec<_> = (0..delivery_servers).map(|_| Links::default()).collect();
    let (classes, class_changes) = ring(counters.classes.len().max(1));
    let mut class_changes = Some(class_changes);
    let mut class_counters = Some(Arc::clone(&counters.classes));
    for (index, (setup, counters)) in packets.into_iter().zip(&counters.packets).enumerate() {
        let PacketSetup { port, rate, tick, classes } = setup;
        assert!(index == 0 || classes.is_empty(), "one packet server schedules all classes");
        let (ends, rings) = link_rings(leases, streams, delivery_servers);
        for (links, end) in to_links.iter_mut().zip(ends) {
            links.datagrams.push(end);
        }
        let server = PacketServer::new(PacketParts {
            port,
            rate,
            tick,
            classes,
            memories: memories.clone(),
            rings,
            // The limits of no classes never change.
            changes: class_changes.take().unwrap_or_else(|| ring(1).1),
            leases,
            counters: Arc::clone(counters),
            class_counters: class_counters.take().unwrap_or_else(|| Arc::new([])),
            streams: Arc::clone(&stream_counters),
        });
        placed.push((placement.packets[index], named(Job::Packets, index), Box::new(server)));
    }
    assert_eq!(links.len(), placement.links.len(), "each link server has a core");
    for (index, (port, counters)) in links.into_iter().zip(&counters.links).enumerate() {
        let (ends, rings) = link_rings(leases, streams, delivery_servers);
        for (links, end) in to_links.iter_mut().zip(ends) {
            links.connections.push(end);
        }
        let parts = LinkParts {
            memories: memories.clone(),
            rings,
            patience,
            leases,
            counters: Arc::clone(counters),
            streams: Arc::clone(&stream_counters),
        };
        let server = Box::new(LinkServer::new(port, parts));
        placed.push((placement.links[index], named(Job::Link, index), server));
    }
    assert_eq!(report_wakers.len(), delivery_servers, "each delivery server reports");
    let (mut commands, mut reports) = (vec![], vec![]);
    let of_deliveries = parts.into_iter().zip(to_links).zip(report_wakers);
    for (index, ((volumes, links), waker)) in of_deliveries.enumerate() {
        // For each stream: a start, the stop of its grant, a stop of all streams, an interleaved
        // message, an extension of a growing title, and a deferral with its end.
        let (to_server, server_commands) = ring(7 * streams + 1);
        let (server_reports, from_server) = ring(4 * streams + 1);
        commands.push(to_server);
        reports.push(from_server);
        let server = DeliveryServer::new(DeliveryParts {
            streams,
            wants: leases,
            volumes,
            commands: server_commands,
            reports: server_reports,
            waker,
            links,
            counters: Arc::clone(&counters.deliveries[index]),
        });
        placed.push((placement.deliveries[index], named(Job::Delivery, index), Box::new(server)));
    }
    let local = local.map(|local| {
        let (server, end) = assemble_local(local, file_volumes, &counters);
        placed.push((placement.file, named(Job::File, 0), Box::new(server)));
        end
    });
    counters.servers =
        placed.iter().map(|(_, name, _)| (*name, ServerCounters::default())).collect();
    for core in &mut cores {
        core.of_servers = Arc::clone(&counters.servers);
    }
    for (core, name, server) in placed {
        cores[core].place(name, server);
    }
    let several = Arc::new(AtomicBool::new(cores.len() > 1));
    for core in &mut cores {
        core.look_at_least_every = LOOK;
        core.several = Arc::clone(&several);
    }
    (cores, Control { commands, reports, write_paths, local, classes, counters })
}

/// The rings between the delivery servers and one link: the delivery servers' ends, and the link's.
fn link_rings<O: Send>(
    leases: usize,
    streams: usize,
    delivery_servers: usize,
) -> (Vec<LinkEnd<O>>, DeliveryRings<O>) {
    let pair = || {
        let (requests, link_requests) = ring(leases + 4 * streams + 1);
        let (link_answers, answers) = ring(leases + 4 * streams + 1);
        let of_link = DeliveryEnd { requests: link_requests, answers: link_answers };
        (LinkEnd { requests, answers }, of_link)
    };
    let (ends, of_link) = (0..delivery_servers).map(|_| pair()).unzip();
    (ends, DeliveryRings::new(of_link))
}

struct GeneratedSession {
    disk: Box<dyn Server>,
    block: Box<dyn Server>,
    /// Of each delivery server.
    parts: Vec<VolumeParts>,
    memory: Memory,
    write_path: Option<WritePath>,
    file_volume: Option<FileVolume>,
}

fn assemble_volume<D: DiskPort + Send + 'static>(
    volume: VolumeSetup<D>,
    (wants, delivery_servers): (usize, usize),
    clients: Option<u16>,
    counters: &mut Counters,
) -> GeneratedSession {
    let places = volume.keeper.places() as usize;
    let block = Bytes(u64::from(volume.keeper.block_size()));
    let disk_counters = Arc::new(DiskCounters::default());
    let block_counters = Arc::new(BlockCounters::default());
    counters.disks.push(Arc::clone(&disk_counters));
    counters.blocks.push(Arc::clone(&block_counters));
    let local_places = usize::from(clients.unwrap_or(0)) * PLACES_OF_CLIENT_MAX as usize;
    let all_wants = wants + local_places;
    // For each want: a read or a promotion, the commit of its round, that of all parts of a cycle's
    // round, a drop, and a commit when a dropped block is read again after all.
    let (to_disk, disk_requests) = ring(5 * all_wants + 1);
    let (disk_filled, filled) = ring(places + 1);
    let (mut requesters, mut parts) = (vec![], vec![]);
    for _ in 0..delivery_servers {
        // For each want: the want, its end and a return. There are at most as many commits as wants
        // and rounds without one.
        let (to_block, requests) = ring(4 * wants + EMPTY_ROUNDS + 1);
        let (answers, from_block) = ring(wants + 1);
        requesters.push(Requester { requests, answers });
        let read_ahead = volume.read_ahead.map(|turns| turns.split(delivery_servers as u32));
        let limits = VolumeLimits { cycle: volume.cycle, block, read_ahead };
        let disk = Arc::clone(&disk_counters);
        parts.push(VolumeParts { limits, disk, to_block, from_block });
    }
    let (learning, probe, waker) = match volume.learning {
        Some(LearningSetup { rules, probe, waker }) => (Some(rules), probe, Some(waker)),
        None => (None, None, None),
    };
    let limits = CycleLimits {
        length: volume.cycle,
        model: volume.model,
        best_effort_depth: volume.best_effort_depth,
        jobs_max: places,
        write_path: volume.write_path.as_ref().map_or(WritePathLimits::default(), |write_path| {
            WritePathLimits {
                jobs_max: write_path.places as usize,
                syncs_max: write_path.syncs_max as usize,
                floor_thousandths: write_path.floor_thousandths,
            }
        }),
        learning: learning.map(|learning| Learning {
            probe: learning.probe.filter(|_| probe.is_some()),
            ..learning
        }),
    };
    let (disk_write_path, write_path) = volume.write_path.map(assemble_write_path).unzip();
    let rings =
        DiskRings { requests: disk_requests, filled: disk_filled, write_path: disk_write_path };
    let disk = DiskServer::new(volume.port, limits, rings, (probe, waker), disk_counters);
    let file_volume = clients.map(|_| {
        // For each place: its want, the commit of it, and its return.
        let (to_block, requests) = ring(4 * local_places + 1);
        let (answers, from_block) = ring(local_places + 1);
        requesters.push(Requester { requests, answers });
        FileVolume { block, memory: volume.memory.clone(), to_block, from_block }
    });
    let rings = BlockRings { requesters, delivery_servers, disk: to_disk, filled };
    let view = volume.memory.view().cloned();
    let block_server = BlockServer::new(volume.keeper, view, all_wants, rings, block_counters);
    GeneratedSession {
        disk: Box::new(disk),
        block: Box::new(block_server),
        parts,
        memory: volume.memory,
        write_path,
        file_volume,
    }
}

fn assemble_local(
    setup: LocalSetup,
    volumes: Vec<FileVolume>,
    counters: &Counters,
) -> (FileServer, Local) {
    let LocalSetup { clients, port, waker } = setup;
    let clients = usize::from(clients);
    // For each client: its beginning and its end, for each handle its opening, its memory, its
    // reserve and its closing, and for each request under way that it is forwarded; in the other
    // direction also that it is broken.
    let each = clients * (4 * HANDLES_MAX as usize + REQUESTS_MAX + 2) + 1;
    let (commands, server_commands) = ring(each);
    let (server_reports, reports) = ring(each);
    let counters = Arc::clone(&counters.file);
    let server = FileServer::new(FileParts {
        clients,
        volumes,
        port,
        commands: server_commands,
        reports: server_reports,
        waker,
        counters,
    });
    (server, Local { commands, reports })
}

fn assemble_write_path(setup: WritePathSetup) -> (disk::WritePath, WritePath) {
    let WritePathSetup { places, syncs_max, waker, .. } = setup;
    let each = places as usize + syncs_max as usize + 1;
    let (requests, disk_requests) = ring(each);
    let (disk_answers, answers) = ring(each);
    let syncs_max = syncs_max as usize;
    let disk =
        disk::WritePath::new(places, syncs_max, GROUP_MAX, disk_requests, disk_answers, waker);
    (disk, WritePath { requests, answers })
}

/// Interval at which a core polls its rings while other cores may write into them.
const LOOK: Nanos = Nanos::from_millis(1);
