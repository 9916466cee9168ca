//! The limits of admission: the capacity that the ledger may promise on this host.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tactus_core::cost::{BEST_EFFORT_BLOCKS, DiskLimits, SendCost, WindowLimits, WriteLimits};
use tactus_core::cycle_choice::ArmVolume;
use tactus_core::disk_model::{DiskModel, Ratio};
use tactus_core::estimator::ModelOrigin;
use tactus_core::kernel_read_ahead::TurnLimits;
use tactus_core::ledger::{Ledger, Limits, ServerPlace};
use tactus_core::pacer;
use tactus_core::units::{BitRate, Bytes, KIB, MIB, Nanos, SECOND};
use tactus_engine::assembly::Placement;
use tactus_engine::disk::POLL_INTERVAL;
use tactus_engine::file::{CORE_SHARE_THOUSANDTHS, PLACES_OF_CLIENT};
use tactus_notation::Auto;
use tactus_sys::memory::Memory;
use tactus_sys::probe;

use crate::class::Class;
use crate::local::OWN_CLIENTS;
use crate::measure::{self, VolumeModel};
use crate::placement::{Job, ServerName};
use crate::settings::{
    ARENA_MAX_AUTO, EngineSettings, REFERENCE_MAX_AUTO, REFERENCE_MIN_AUTO, Sendfile, Volume,
};

/// The properties of one volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeFacts {
    /// The directory.
    pub path: PathBuf,
    /// The model of its disk.
    pub model: DiskModel,
    /// Whether the model was measured by `tactus measure`, or only quickly at the start.
    pub model_is_measured: bool,
    /// Whether the disk may be probed.
    pub(super) probes: bool,
    pub(super) limits: VolumeLimits,
}

/// The cycle and the memory of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct VolumeLimits {
    pub(super) cycle: Nanos,
    pub(super) block: Bytes,
    pub(super) arena: Bytes,
    pub(super) share_thousandths: u32,
    /// Blocks stay in the page cache and are sent by reference.
    pub(super) sendfile: bool,
    /// The device's read-ahead for each file in the page cache.
    pub(super) read_ahead: Bytes,
    /// The turns in which the kernel begins to read ahead for streams, if its windows are large.
    pub(super) turns: Option<TurnLimits>,
    /// The limits of uploads; none when it takes none.
    pub(super) write_path: Option<WriteLimits>,
}

impl VolumeLimits {
    /// Share of the disk's time for streams. Read-ahead windows have a share of their own.
    fn promised_thousandths(&self) -> u32 {
        self.turns.map_or(self.share_thousandths, |turns| turns.promised_thousandths())
    }

    /// Number of blocks in its memory.
    pub(super) fn places(&self) -> u32 {
        (self.arena.0 / self.block.0) as u32
    }

    /// Blocks that the kernel reads ahead of each stream: the window after the one that is used.
    fn ahead(&self) -> u32 {
        self.read_ahead.0.div_ceil(self.block.0) as u32
    }
}

impl VolumeFacts {
    /// One turn of the disk.
    pub fn cycle(&self) -> Nanos {
        self.limits.cycle
    }

    /// Size of a block.
    pub fn block(&self) -> Bytes {
        self.limits.block
    }

    /// Whether its blocks are sent by reference from the page cache, or copied.
    pub fn sendfile(&self) -> bool {
        self.limits.sendfile
    }

    /// Memory for writes under way; none when it takes no uploads.
    pub fn write_share(&self) -> Option<Bytes> {
        self.limits
            .write_path
            .map(|write_path| Bytes(write_path.place.0 * u64::from(write_path.places)))
    }

    /// The cost of sending its blocks to a connection.
    pub(super) fn connection_cost(&self) -> SendCost {
        connection_cost(self.limits.sendfile)
    }

    /// Where the model of its disk comes from.
    pub fn origin(&self) -> ModelOrigin {
        origin(self.model_is_measured)
    }

    /// Memory for its blocks.
    pub fn arena(&self) -> Bytes {
        self.limits.arena
    }
}

/// `Retry-After` of a refusal: streams end often, but rarely within a second.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Cost of sending for a core, measured on a virtual machine with the receiver on the same host
/// (`docs/benchmarks.md`), plus a margin of a tenth: a copying send of data that is not in the
/// cache.
const COPIED: SendCost = SendCost {
    per_send: Nanos::from_micros(2),
    per_packet: Nanos::from_micros(5),
    per_mib: Nanos::from_micros(400),
};
/// The same by reference.
const BY_REFERENCE: SendCost = SendCost {
    per_send: Nanos::from_micros(3),
    per_packet: Nanos::from_micros(5),
    per_mib: Nanos::from_micros(150),
};
/// Cost of each MiB read from the disk, without its delivery server's: measured 30 to 50 us.
const READ: Nanos = Nanos::from_micros(90);
/// The same through the page cache: a copy, and a call for each 16 KiB.
const READ_CACHED: Nanos = Nanos::from_micros(190);
/// The same by single pages, without the kernel's read-ahead. It is charged to every stream of a
/// volume with turns, because all of them may begin at once.
const READ_SINGLE: Nanos = Nanos::from_micros(450);

/// Cost of each block for its delivery server: measured 1.2 us, and 2.3 us with few blocks a
/// second.
const DELIVER: Nanos = Nanos(2_500);

/// Flash has cheap visits: cycles are short, so that streams begin soon.
const FLASH_CYCLE: Nanos = Nanos::from_millis(250);
/// Default block size on flash.
pub const FLASH_BLOCK: Bytes = Bytes(256 * KIB);
/// The same by reference, where memory suffices for as many blocks. A stream takes a twentieth less
/// CPU time than with 256 KiB, in each of 14 rounds; with 1 MiB it took more than with 256.
const REFERENCE_BLOCK: Bytes = Bytes(512 * KIB);
/// A visit of a hard disk costs 10 ms, so visits are few and long. How long depends on the cycle:
/// the blocks of a stream in it are adjacent. They have the largest size of a request.
const ARM_BLOCK: Bytes = Bytes(MIB);

/// With a larger read-ahead, streams get it in turns. The read-ahead of all streams at once would
/// fill the memory and delay the other reads of the disk.
pub const READ_AHEAD_MAX: Bytes = Bytes(MIB);

/// Fewest streams whose read-ahead must fit into memory; otherwise the volume is read directly. A
/// stream without read-ahead takes more CPU time than direct reads.
const TURNS_MIN: u32 = 256;

/// Most deliveries without a rate at once: by default half of the memory for blocks is for them.
/// They leave room for streams at a rate, and each has its memory promised.
pub(super) fn downloads_max(settings: &EngineSettings, volumes: &[VolumeFacts]) -> u32 {
    settings.best_effort.streams_max.or_else(|| {
        let places: u32 = volumes.iter().map(|volume| volume.limits.places()).sum();
        (places / 2 / BEST_EFFORT_BLOCKS).max(DOWNLOADS_MIN).min(settings.memory.streams_max)
    })
}

/// With little memory, the ledger refuses what does not fit into it.
const DOWNLOADS_MIN: u32 = 64;

/// What a server holds in memory for the blocks of all its volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockMemory {
    /// The arena.
    pub arena: Bytes,
    /// Blocks that are held by reference in the page cache, with open files.
    pub cached_blocks: u64,
    /// Their bytes, for which pipes have room.
    pub cached: Bytes,
    /// Whether a volume's disk has an arm.
    pub has_arm: bool,
}

/// The memory that a server with `settings` takes for blocks on a machine with this `memory`.
/// Without a measured model it measures a disk for a moment, as the start does.
///
/// # Errors
/// If a volume is not accessible, or its model file is wrong.
pub fn block_memory(settings: &EngineSettings, memory: Memory) -> io::Result<BlockMemory> {
    let facts = volumes(settings, memory)?;
    let cached = || facts.iter().filter(|volume| volume.sendfile());
    Ok(BlockMemory {
        arena: Bytes(facts.iter().map(|volume| volume.arena().0).sum()),
        cached_blocks: cached().map(|volume| u64::from(volume.limits.places())).sum(),
        cached: Bytes(cached().map(|volume| volume.arena().0).sum()),
        has_arm: facts.iter().any(|volume| volume.model.has_arm()),
    })
}

/// Determines the properties of each volume of `settings` on a machine with this `memory`.
pub(super) fn volumes(settings: &EngineSettings, memory: Memory) -> io::Result<Vec<VolumeFacts>> {
    let memory = ArenaShare::of(settings.memory.arena, memory, settings.volumes.len());
    settings.volumes.iter().map(|volume| facts(settings, volume, memory)).collect()
}

/// Memory for the blocks of one volume.
#[derive(Clone, Copy, Debug)]
struct ArenaShare {
    /// On flash.
    usual: Bytes,
    /// By reference, if there is enough for larger blocks.
    by_reference: Option<Bytes>,
    /// What a disk with an arm may have at most, if it needs more.
    most: Bytes,
    /// For what the kernel reads ahead, where its windows are large: the page cache beside blocks.
    read_ahead: Bytes,
}

impl ArenaShare {
    /// Of each of `volumes`.
    fn of(arena: Auto<Bytes>, memory: Memory, volumes: usize) -> Self {
        let (all, free) = (memory.most(), memory.room());
        let share = |all: Bytes| Bytes(all.0 / volumes.max(1) as u64);
        let (most, usual, by_reference, enough) = match arena {
            Auto::Set(size) => (size, size, size, REFERENCE_MAX_AUTO),
            Auto::Auto => {
                let quarter = Bytes(free / 4);
                let third = Bytes(free / 3).min(REFERENCE_MAX_AUTO);
                (quarter, quarter.min(ARENA_MAX_AUTO), third, REFERENCE_MIN_AUTO)
            }
        };
        let is_enough = by_reference >= enough;
        Self {
            usual: share(usual),
            by_reference: is_enough.then(|| share(by_reference)),
            most: share(most),
            // By all memory, so that each start admits the same, as far as enough is free.
            read_ahead: share(Bytes((all / 10 * 3).min(free / 8 * 3))),
        }
    }
}

const fn origin(is_measured: bool) -> ModelOrigin {
    if is_measured { ModelOrigin::Measured } else { ModelOrigin::Guess }
}

fn facts(
    settings: &EngineSettings,
    volume: &Volume,
    memory: ArenaShare,
) -> io::Result<VolumeFacts> {
    let VolumeModel { model, is_measured: model_is_measured, probes } = measure::model_of(volume)?;
    let device = probe::volume(&volume.path)?.device;
    let read_ahead = device.and_then(|device| device.read_ahead).unwrap_or_default();
    let cycle = volume.cycle.or_else(|| FLASH_CYCLE);
    let share_thousandths = volume.budget.of(1000) as u32;
    let expected = origin(model_is_measured).expected();
    let disk = (&model, expected);
    let turns = turns_of(disk, read_ahead, memory.read_ahead, (cycle, share_thousandths));
    let sendfile = match volume.sendfile {
        Sendfile::On => true,
        Sendfile::Off => false,
        Sendfile::Auto => is_by_reference(&model, read_ahead, turns),
    };
    let usual = if model.has_arm() { ARM_BLOCK } else { FLASH_BLOCK };
    let (block, arena) = match (volume.block, memory.by_reference) {
        (Auto::Set(block), _) => (block, memory.usual),
        (Auto::Auto, Some(arena)) if sendfile => (REFERENCE_BLOCK.max(usual), arena),
        (Auto::Auto, _) => (usual, memory.usual),
    };
    let model = match volume.depth {
        Auto::Set(depth) => DiskModel { depth, ..model },
        Auto::Auto => model.polled_every(POLL_INTERVAL, block),
    };
    let flash = VolumeLimits {
        cycle,
        block,
        arena,
        write_path: volume.uploads.then(|| write_path(volume, volume.block.or_else(|| usual))),
        share_thousandths,
        read_ahead,
        turns: turns.filter(|_| sendfile),
        sendfile,
    };
    let limits = if model.has_arm() {
        let likely = model.slower_by(expected);
        with_arm(settings, volume, &likely, &flash, memory)
    } else {
        flash
    };
    Ok(VolumeFacts { path: volume.path.clone(), model, model_is_measured, probes, limits })
}

/// The turns in which the kernel begins to read ahead for streams, if it reads much ahead.
fn turns_of(
    disk: (&DiskModel, Ratio),
    read_ahead: Bytes,
    memory: Bytes,
    (cycle, share_thousandths): (Nanos, u32),
) -> Option<TurnLimits> {
    let is_large = read_ahead > READ_AHEAD_MAX && !disk.0.has_arm();
    is_large.then(|| TurnLimits::new(disk, read_ahead, memory, cycle, share_thousandths)).flatten()
}

/// Whether blocks are sent by reference unless the configuration says otherwise. A hard disk needs
/// its reads in the order of the sweep, not in that of the kernel's read-ahead.
fn is_by_reference(model: &DiskModel, read_ahead: Bytes, turns: Option<TurnLimits>) -> bool {
    let is_bounded = turns.is_some_and(|turns| turns.streams >= TURNS_MIN);
    !model.has_arm() && (read_ahead <= READ_AHEAD_MAX || is_bounded)
}

/// The cycle and the memory of a disk with an arm.
fn with_arm(
    settings: &EngineSettings,
    volume: &Volume,
    model: &DiskModel,
    limits: &VolumeLimits,
    memory: ArenaShare,
) -> VolumeLimits {
    let disk = disk_limits(limits, *model, 0, 1);
    let cycle = match volume.cycle {
        Auto::Set(cycle) => Some(cycle),
        Auto::Auto => None,
    };
    let choice = ArmVolume { disk, start_burst: settings.start_burst, cycle }.choose(memory.most);
    VolumeLimits { cycle: choice.cycle, arena: choice.memory.max(limits.arena), ..*limits }
}

/// Write slots are as large as blocks of an arena, for the same reason: the arm should stay at a
/// place as long as it travelled there. A client that pauses in the middle of a slot returns it.
fn write_path(volume: &Volume, block: Bytes) -> WriteLimits {
    let place = block.min(PLACE_MAX);
    WriteLimits {
        places: (volume.write_share.0 / place.0) as u32,
        place,
        floor_thousandths: volume.upload_floor.of(1000) as u32,
    }
}

/// The largest size of a request.
const PLACE_MAX: Bytes = Bytes(MIB);

/// The limits of all resources. Without real-time priority half is promised, because other programs
/// on the cores then interfere.
pub(super) fn of(
    settings: &EngineSettings,
    volumes: &[VolumeFacts],
    servers: &[ServerName],
    cores: usize,
    rates: LinkRates,
    real_time: bool,
) -> Limits {
    let derate = derate(real_time);
    let local_places = match settings.local_clients {
        0 => 0,
        clients => u32::from(clients + OWN_CLIENTS) * PLACES_OF_CLIENT,
    };
    let disks = volumes.iter().enumerate().map(|(index, volume)| {
        let server = number_of(servers, Job::Disk, index);
        let disk = disk_limits(&volume.limits, volume.model, server, derate);
        DiskLimits { blocks: disk.blocks.saturating_sub(local_places), ..disk }
    });
    let share = |rate: BitRate| BitRate(settings.link.budget.of(rate.0));
    let link = share(rates.link);
    let datagrams = (rates.datagrams < rates.link).then(|| share(rates.datagrams));
    let cores = vec![core_time(settings, real_time); cores];
    let classes = settings.classes.0.iter().map(Class::limits).collect();
    let streams = settings.memory.streams_max;
    Limits { disks: disks.collect(), link, datagrams, classes, cores, streams }
}

/// Time per second that may be promised of a core whose thread is real-time, or not.
pub(super) fn core_time(settings: &EngineSettings, real_time: bool) -> Nanos {
    Nanos(settings.cpu_budget.of(SECOND.0) / u64::from(derate(real_time)))
}

fn derate(real_time: bool) -> u32 {
    if real_time { 1 } else { 2 }
}

/// The number of a server in the ledger.
///
/// # Panics
/// If there is no such server.
pub(super) fn number_of(servers: &[ServerName], job: Job, index: usize) -> u32 {
    let is_it = |name: &ServerName| name.job == job && usize::from(name.index) == index;
    servers.iter().position(is_it).expect("the engine has this server") as u32
}

/// The numbers of all servers with a job.
pub(super) fn numbers_of(servers: &[ServerName], job: Job) -> Vec<u32> {
    (0..).zip(servers).filter(|(_, name)| name.job == job).map(|(number, _)| number).collect()
}

/// Each server as the ledger sees it, by its number there.
pub(super) fn places_of(
    settings: &EngineSettings,
    servers: &[ServerName],
    placement: &Placement,
) -> Vec<ServerPlace> {
    let place = |name: &ServerName| {
        let index = usize::from(name.index);
        let core = match name.job {
            Job::Disk => placement.disks[index],
            Job::Block => placement.blocks[index],
            Job::Delivery => placement.deliveries[index],
            Job::Link => placement.links[index],
            Job::Packets => placement.packets[index],
            Job::File => placement.file,
        };
        let kept = match name.job {
            Job::File if settings.local_clients > 0 => CORE_SHARE_THOUSANDTHS * SECOND.0 / 1000,
            _ => 0,
        };
        ServerPlace { core: core as u32, kept: Nanos(kept) }
    };
    servers.iter().map(place).collect()
}

/// A disk as admission sees it; `server` reads it.
fn disk_limits(limits: &VolumeLimits, model: DiskModel, server: u32, derate: u32) -> DiskLimits {
    let VolumeLimits { block, sendfile, .. } = *limits;
    DiskLimits {
        model,
        cycle: limits.cycle,
        share_thousandths: limits.promised_thousandths() / derate,
        block,
        blocks: limits.places(),
        ahead: if sendfile && limits.turns.is_none() { limits.ahead() } else { 0 },
        windows: limits.turns.map_or(WindowLimits::NONE, |turns| turns.memory(block)),
        server,
        read_per_mib: match limits.turns {
            Some(_) => READ_SINGLE,
            None if sendfile => READ_CACHED,
            None => READ,
        },
        deliver_block: DELIVER,
        per_write: connection_cost(sendfile).of_small_send(),
        write_path: limits.write_path,
    }
}

/// The cost of sending blocks of a volume to a connection.
fn connection_cost(sendfile: bool) -> SendCost {
    if sendfile { BY_REFERENCE } else { COPIED }
}

/// Checks that the guarantees of the classes fit into the link.
pub(super) fn check_classes(ledger: &Ledger) -> io::Result<()> {
    let (taken, limits) = (ledger.classes().taken(), ledger.limits());
    let (room, key) = match limits.datagrams {
        Some(datagrams) => (datagrams, "[gap_frames] rate"),
        None => (limits.link, "[link] rate"),
    };
    if taken <= room {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "classes are guaranteed {taken} together, and their link has {room} for streams; say what \
         it carries by {key}"
    )))
}

/// The rates of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LinkRates {
    /// The capacity of the link.
    pub(super) link: BitRate,
    /// The rate of the datagram pacer: not above that.
    pub(super) datagrams: BitRate,
}

/// The capacity of the link, and its part for datagrams if the link `is_kept_full`. Determined
/// once, because interfaces appear and disappear: the promised rate must equal the paced rate.
pub(super) fn link_rates(settings: &EngineSettings, is_kept_full: bool) -> LinkRates {
    let link = link_rate(settings);
    let gaps = settings.gap_frames.as_ref().filter(|_| is_kept_full);
    LinkRates { link, datagrams: gaps.map_or(link, |gaps| gaps.rate.min(link)) }
}

/// The capacity of the link: as configured, or the speed of the fastest interface that is up and
/// reports it, as far as a pacer can keep it.
fn link_rate(settings: &EngineSettings) -> BitRate {
    settings.link.rate.or_else(|| {
        let interfaces = probe::network().interfaces;
        let speeds = interfaces.iter().filter(|each| each.up).filter_map(|each| each.speed);
        speeds.max().unwrap_or(UNKNOWN_LINK).min(pacer::RATE_MAX)
    })
}

/// Virtual interfaces report no speed; they are as fast as the cores.
const UNKNOWN_LINK: BitRate = BitRate(40_000_000_000);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::Classes;
    use crate::settings::GapFrames;

    impl VolumeFacts {
        /// A volume of flash, without memory.
        pub(in crate::engine) fn of_tests(origin: ModelOrigin) -> Self {
            let limits = VolumeLimits {
                cycle: FLASH_CYCLE,
                block: FLASH_BLOCK,
                arena: Bytes(0),
                share_thousandths: 900,
                sendfile: false,
                read_ahead: Bytes(0),
                turns: None,
                write_path: None,
            };
            Self {
                path: PathBuf::new(),
                model: DiskModel::SLOWEST,
                model_is_measured: origin == ModelOrigin::Measured,
                probes: true,
                limits,
            }
        }
    }

    fn promised(settings: &EngineSettings, is_kept_full: bool) -> Ledger {
        let rates = link_rates(settings, is_kept_full);
        Ledger::new(of(settings, &[], &[], 1, rates, true))
    }

    #[test]
    fn datagrams_are_promised_what_the_link_carries_that_they_keep_full() {
        let gap_frames = GapFrames {
            device: "eth7".into(),
            rate: BitRate(10_000_000),
            overhead: GapFrames::OVERHEAD,
        };
        let mut settings =
            EngineSettings { gap_frames: Some(gap_frames), ..EngineSettings::default() };
        // Independent of the fastest interface of this host.
        let kept_full = promised(&settings, true);
        assert_eq!(kept_full.limits().datagrams, Some(BitRate(9_000_000)));
        assert!(kept_full.limits().link > BitRate(9_000_000));
        assert_eq!(promised(&settings, false).limits().datagrams, None);
        settings.link.rate = Auto::Set(BitRate(5_000_000));
        let slow = promised(&settings, true);
        assert_eq!((slow.limits().link, slow.limits().datagrams), (BitRate(4_500_000), None));
    }

    #[test]
    fn blocks_by_reference_have_more_memory_where_it_is_free() {
        let gib = |gib: u64| Bytes(gib * 1024 * MIB);
        let of = |arena, available: Bytes| {
            let memory =
                Memory { total: gib(24).0, available: available.0, limit: None, left: None };
            let ArenaShare { usual, by_reference, most, .. } = ArenaShare::of(arena, memory, 2);
            [Some(usual), by_reference, Some(most)].map(|share| share.map(|each| each.0 / MIB))
        };
        assert_eq!(of(Auto::Auto, gib(24)), [Some(512), Some(1024), Some(3072)]);
        assert_eq!(of(Auto::Auto, gib(8)), [Some(512), Some(1024), Some(1024)]);
        assert_eq!(of(Auto::Auto, gib(5)), [Some(512), Some(853), Some(640)]);
        assert_eq!(of(Auto::Auto, gib(4)), [Some(512), None, Some(512)]);
        assert_eq!(of(Auto::Auto, gib(2)), [Some(256), None, Some(256)]);
        assert_eq!(of(Auto::Set(gib(2)), gib(1)), [Some(1024); 3]);
        assert_eq!(of(Auto::Set(gib(1)), gib(24)), [Some(512), None, Some(512)]);
    }

    #[test]
    fn read_ahead_has_the_same_memory_at_each_start_while_enough_is_free() {
        let of = |total: u64, available: u64, group: Option<(u64, u64)>| {
            let (limit, left) = group.unzip();
            let memory = Memory { total, available, limit, left };
            ArenaShare::of(Auto::Auto, memory, 1).read_ahead.0
        };
        assert_eq!(of(10_000, 9_900, None), 3_000);
        assert_eq!(of(10_000, 8_000, None), 3_000);
        assert_eq!(of(10_000, 7_200, None), 2_700);
        assert_eq!(of(10_000, 9_900, Some((4_000, 3_900))), 1_200);
        assert_eq!(of(10_000, 9_900, Some((4_000, 800))), 300);
    }

    #[test]
    fn a_disk_that_reads_much_ahead_needs_speed_and_memory_for_blocks_by_reference() {
        let flash = |read_mib| DiskModel { read_mib, sweep: Nanos(0), ..DiskModel::SLOWEST };
        let (fast, slow) = (flash(Nanos::from_millis(1)), flash(Nanos::from_millis(9)));
        let [little, much] = [Bytes(512 * KIB), Bytes(8 * MIB)];
        let of = |model: &DiskModel, read_ahead, memory| {
            let disk = (model, Ratio::ONE);
            let turns = turns_of(disk, read_ahead, Bytes(memory * MIB), (FLASH_CYCLE, 900));
            assert!(turns.is_none_or(|turns| turns.promised_thousandths() == 788));
            (is_by_reference(model, read_ahead, turns), turns.map(|turns| turns.streams))
        };
        assert_eq!(of(&fast, little, 0), (true, None), "the ledger counts it");
        assert_eq!(of(&fast, much, 4096), (true, Some(256)));
        assert_eq!(of(&fast, much, 4095), (false, Some(255)));
        assert_eq!(of(&slow, much, 4096), (false, None));
        let arm = DiskModel { sweep: Nanos::from_millis(9), ..fast };
        assert_eq!([little, much].map(|ahead| of(&arm, ahead, 4096)), [(false, None); 2]);
    }

    #[test]
    fn classes_are_guaranteed_no_more_than_the_link_that_is_kept_full_has() {
        let class = "name = \"a\"\nguaranteed = \"10 Mbit/s\"\n";
        let classes = Classes(vec![Class::parse(class, &Classes::default()).expect("a class")]);
        let settings = EngineSettings { classes, ..EngineSettings::default() };
        let check = |datagrams: u64| {
            let (link, datagrams) = (BitRate(1_000_000_000), BitRate(datagrams));
            let rates = LinkRates { link, datagrams };
            check_classes(&Ledger::new(of(&settings, &[], &[], 1, rates, true)))
        };
        assert!(check(12_000_000).is_ok());
        let error = check(11_000_000).expect_err("nine tenths of it").to_string();
        assert!(error.contains("[gap_frames] rate"), "{error}");
    }
}
