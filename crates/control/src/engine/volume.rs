//! A volume's start: its device, its memory, and the path of its blocks.
//!
//! By reference, blocks stay in the page cache and `sendfile` hands them to the socket: a third
//! less CPU than with a copy. Direct, they are read into an arena and copied: the server alone
//! decides the order of the sweep. If the host refuses one path, the other is used. Uploads are
//! written directly on both paths, from memory of their own.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use tactus_core::cost::WriteLimits;
use tactus_core::cycle::{GROUP_MAX, IN_MEMORY_MAX, Learning, ProbeLimits};
use tactus_core::ports::{Completion, DiskPort, FileHandle, Sync, SyncResult, Transfer};
use tactus_core::units::{Bytes, MonoTime};
use tactus_engine::assembly::{LearningSetup, VolumeSetup, WritePathSetup};
use tactus_engine::disk::ProbeSetup;
use tactus_engine::egress::Memory;
use tactus_ring::arena::{self, HeapRegion};
use tactus_sys::disk::pages::{DiskPages, FILES_PER_PLACE, FillerRights, PagesOptions, ReadAhead};
use tactus_sys::disk::uring::Registration;
use tactus_sys::disk::writes::WriteOptions;
use tactus_sys::disk::{self, DeviceRenewer, DiskDevice, DiskFacts, DiskOptions, ReadMethod};
use tactus_sys::file;
use tactus_sys::probe;
use tactus_sys::region::{HugeRegion, Locking, Pages};
use tactus_sys::waker::Waker;

use super::limits::{READ_AHEAD_MAX, VolumeFacts, VolumeLimits};
use super::write_path::{SYNCS_MAX, WriteShare};
use crate::core_threads::Wakers;
use crate::measure;
use crate::settings::EngineSettings;

/// Opens a volume's device and takes its memory; records the chosen path in `volume`.
pub(super) fn open(
    settings: &EngineSettings,
    volume: &mut VolumeFacts,
    rights: FillerRights,
    degraded: &mut Vec<String>,
) -> io::Result<VolumeSetup<DiskDevice>> {
    if volume.limits.sendfile {
        match by_reference(settings, volume, rights) {
            Ok(setup) => {
                let places = setup.keeper.places();
                let wanted = volume.limits.places();
                if places < wanted {
                    volume.limits.arena = Bytes(volume.limits.block.0 * u64::from(places));
                    degraded.push(format!(
                        "memory for {places} blocks instead of {wanted}, which need more open \
                         files (ulimit -n, fs.nr_open)"
                    ));
                }
                return Ok(setup);
            }
            Err(refused) => {
                volume.limits.sendfile = false;
                volume.limits.turns = None;
                degraded.push(format!(
                    "{} is read directly and copied, for half as much CPU time again ({refused})",
                    volume.path.display()
                ));
            }
        }
    }
    direct(settings, volume, degraded)
}

fn by_reference(
    settings: &EngineSettings,
    volume: &VolumeFacts,
    rights: FillerRights,
) -> Result<VolumeSetup<DiskDevice>, String> {
    let volumes = settings.volumes.len() as u64;
    let wanted = u64::from(volume.limits.places());
    if wanted < u64::from(PLACES_MIN) {
        return Err(format!(
            "its memory holds {wanted} blocks of {}, and {PLACES_MIN} are needed: see [memory] \
             arena",
            volume.limits.block
        ));
    }
    let allowed = file::raise_open_files(open_files(settings, wanted * volumes));
    // If both do not fit, they share the limit: half of it still holds thousands of connections.
    let left = allowed - open_files(settings, 0).min(allowed / 2);
    let places = wanted.min(left / (u64::from(FILES_PER_PLACE) * volumes)) as u32;
    if places < PLACES_MIN {
        return Err(format!("{allowed} open files are too few: see ulimit -n"));
    }
    let options = PagesOptions {
        places,
        block: volume.limits.block.0 as u32,
        depth: depth_of(volume) + IN_MEMORY_MAX,
        threads: FILLERS,
        free_min: free_min(),
        read_ahead: read_ahead_of(&volume.limits),
        rights,
    };
    let port = DiskPages::open(options).map_err(|error| {
        format!("pipes for its blocks: {error}; raise fs.pipe-user-pages-soft or fs.pipe-max-size")
    })?;
    Ok(VolumeSetup {
        port: port.into(),
        keeper: arena::elsewhere(places, options.block),
        memory: Memory::PageCache,
        cycle: volume.limits.cycle,
        model: volume.model,
        read_ahead: volume.limits.turns,
        best_effort_depth: BEST_EFFORT_DEPTH.min(options.depth),
        write_path: None,
        learning: None,
    })
}

/// How far the kernel reads ahead. The ledger counts the device's read-ahead as blocks of each
/// stream. Doubling adds as much again, at most the size of the arena. The arena is a third of the
/// free memory, so the ledger promises nothing for it.
fn read_ahead_of(limits: &VolumeLimits) -> ReadAhead {
    let doubled = Bytes(2 * limits.read_ahead.0);
    match limits.turns {
        Some(turns) => ReadAhead::InTurns(turns.window),
        // A file system without a device has a read-ahead of its own.
        None if doubled == Bytes(0) || doubled > READ_AHEAD_MAX => ReadAhead::Usual,
        None => ReadAhead::Doubled(doubled),
    }
}

/// Free memory that the page cache leaves to the machine. Within a control group with a limit its
/// pages would take the place of the group's own memory: none stays that is not in use.
fn free_min() -> Bytes {
    let memory = probe::machine().memory;
    if memory.limit.is_some() { Bytes(u64::MAX) } else { Bytes(memory.total / 8) }
}

/// Most open files when `blocks` are kept in the page cache.
pub fn open_files(settings: &EngineSettings, blocks: u64) -> u64 {
    let streams = u64::from(settings.memory.streams_max);
    let connections = u64::from(settings.connections_max);
    blocks * u64::from(FILES_PER_PLACE) + 2 * streams + connections + FILES_OF_THE_REST
}

/// With fewer blocks, hardly any stream is admitted.
const PLACES_MIN: u32 = 64;
/// Threads that wait for a flash device: its throughput rises up to about sixteen reads at a time.
const FILLERS: u32 = 16;
/// Titles that the catalogue keeps open, rings, logs.
const FILES_OF_THE_REST: u64 = 2048;

fn direct(
    settings: &EngineSettings,
    volume: &VolumeFacts,
    degraded: &mut Vec<String>,
) -> io::Result<VolumeSetup<DiskDevice>> {
    let VolumeLimits { cycle, block, arena: size, .. } = volume.limits;
    let region = region(settings, size, degraded)?;
    let (keeper, view) = arena::arena(Box::new(region), block.0 as u32);
    let depth = depth_of(volume);
    let best_effort_depth = BEST_EFFORT_DEPTH.min(depth);
    let port = disk::open(view.clone(), DiskOptions { depth, ..DiskOptions::default() })?;
    degraded.extend(refused_by(port.facts()));
    let (memory, model) = (Memory::Arena(view), volume.model);
    Ok(VolumeSetup {
        port,
        keeper,
        memory,
        cycle,
        model,
        read_ahead: None,
        best_effort_depth,
        write_path: None,
        learning: None,
    })
}

/// Takes memory; records refused kinds of it.
fn region(
    settings: &EngineSettings,
    size: Bytes,
    degraded: &mut Vec<String>,
) -> io::Result<HugeRegion> {
    let locking = if settings.memory.lock { Locking::Wanted } else { Locking::NotWanted };
    let region = HugeRegion::new(size.0 as usize, locking)?;
    if region.pages() == (Pages::Transparent { huge: 0 }) {
        degraded.push("no huge pages: each block costs more address translations".to_owned());
    }
    if settings.memory.lock && region.locked().is_err() {
        degraded
            .push("memory is not locked: under memory pressure blocks may be swapped".to_owned());
    }
    Ok(region)
}

/// Makes the disk server learn the model of the volume's disk. Without a file or memory for probes
/// it learns from the reads of streams only. The server wakes `reports` when its estimate changes.
/// Also returns the renewer of the probes' device.
pub(super) fn with_learning(
    setup: VolumeSetup<DiskDevice>,
    volume: &VolumeFacts,
    reports: &Waker,
) -> (VolumeSetup<DiskDevice>, DeviceRenewer) {
    let VolumeFacts { ref path, model, .. } = *volume;
    let block = volume.limits.block;
    let mut renewer = DeviceRenewer::default();
    let (probe, limits) = probe_file(volume)
        .and_then(|(file, len)| match ProbePort::open(file, model.depth, block) {
            Ok((setup, of_probes)) => {
                renewer = of_probes;
                Some((setup, ProbeLimits { len, block: block.0 as u32 }))
            }
            Err(error) => {
                tracing::warn!(volume = %path.display(), %error, "the disk is not probed");
                None
            }
        })
        .unzip();
    let rules = Learning {
        origin: volume.origin(),
        // The kernel's read-ahead answers most reads by reference.
        is_direct: !volume.limits.sendfile,
        probe: limits,
    };
    let waker = Box::new(Wakers(vec![reports.clone()]));
    (VolumeSetup { learning: Some(LearningSetup { rules, probe, waker }), ..setup }, renewer)
}

/// The file that probes of the volume's disk read, if it is to be probed.
fn probe_file(volume: &VolumeFacts) -> Option<(File, Bytes)> {
    let is_probed = volume.probes && !volume.model.has_arm();
    is_probed.then(|| measure::probe_file(&volume.path)).flatten()
}

/// A device for probes, with its file.
struct ProbePort {
    device: DiskDevice,
    _file: File,
}

impl ProbePort {
    fn open(file: File, depth: u32, block: Bytes) -> io::Result<(ProbeSetup, DeviceRenewer)> {
        let region = HeapRegion::new(depth as usize * block.0 as usize);
        let (keeper, view) = arena::arena(Box::new(region), block.0 as u32);
        let options = DiskOptions {
            depth,
            threads: depth,
            registration: Registration::NotWanted,
            ..DiskOptions::default()
        };
        let device = disk::open(view, options)?;
        let (handle, renewer) = (FileHandle(file.as_raw_fd()), device.renewer());
        let port = Box::new(Self { device, _file: file });
        Ok((ProbeSetup { port, keeper, file: handle }, renewer))
    }
}

impl DiskPort for ProbePort {
    fn submit(&mut self, now: MonoTime, transfer: Transfer) -> Result<(), Transfer> {
        self.device.submit(now, transfer)
    }

    fn kick(&mut self, now: MonoTime) {
        self.device.kick(now);
    }

    fn poll_completion(&mut self, now: MonoTime) -> Option<Completion> {
        self.device.poll_completion(now)
    }

    fn submit_sync(&mut self, _now: MonoTime, sync: Sync) -> Result<(), Sync> {
        Err(sync)
    }

    fn poll_synced(&mut self, _now: MonoTime) -> Option<SyncResult> {
        None
    }

    fn may_leave(&mut self) -> bool {
        self.device.may_leave()
    }

    fn leave(&mut self, cpu: u32) {
        self.device.leave(cpu);
    }
}

/// The waker for answers to uploads, and the processors of threads that wait for the file system.
pub(super) struct WritePathHost<'a> {
    pub(super) waker: &'a Waker,
    pub(super) cores: &'a [u32],
}

/// Sets up uploads, if the volume takes them: their memory, and the writing half of the device.
pub(super) fn with_uploads(
    setup: VolumeSetup<DiskDevice>,
    settings: &EngineSettings,
    volume: &VolumeFacts,
    host: &WritePathHost,
    degraded: &mut Vec<String>,
) -> io::Result<(VolumeSetup<DiskDevice>, Option<WriteShare>)> {
    let Some(WriteLimits { places, place, floor_thousandths }) = volume.limits.write_path else {
        return Ok((setup, None));
    };
    let region = region(settings, Bytes(place.0 * u64::from(places)), degraded)?;
    let (keeper, view) = arena::arena(Box::new(region), place.0 as u32);
    let options = WriteOptions {
        depth: depth_of(volume),
        syncs: GROUP_MAX as u32,
        cores: host.cores.to_vec(),
    };
    let writes = disk::open_writes(view.clone(), &options, ReadMethod::Best, Registration::Wanted)?;
    if let Some(errno) = writes.refused() {
        let error = io::Error::from_raw_os_error(errno);
        degraded.push(format!("no io_uring ({error}): writes go through threads and cost more"));
    }
    let write_path = WritePathSetup {
        // The rest of the region, up to a whole huge page, is used as well.
        places: keeper.places(),
        syncs_max: SYNCS_MAX,
        floor_thousandths,
        waker: Box::new(Wakers(vec![host.waker.clone()])),
    };
    let port = setup.port.with_writes(writes);
    Ok((
        VolumeSetup { port, write_path: Some(write_path), ..setup },
        Some(WriteShare { keeper, view }),
    ))
}

fn refused_by(facts: DiskFacts) -> Option<String> {
    match facts {
        DiskFacts::Threads { refused: Some(errno), .. } => {
            let error = io::Error::from_raw_os_error(errno);
            Some(format!("no io_uring ({error}): reads go through threads and cost more"))
        }
        DiskFacts::Threads { refused: None, .. } | DiskFacts::Pages => None,
        DiskFacts::Ring(ring) => ring
            .registered
            .is_err()
            .then(|| "blocks are not registered with the kernel: each read costs more".to_owned()),
    }
}

/// Transfers of either direction that may be under way at once.
fn depth_of(volume: &VolumeFacts) -> u32 {
    volume.model.in_flight_max(BEST_EFFORT_DEPTH)
}

/// Best-effort transfers at a device at once: a deep queue would delay the real-time ones behind
/// it.
const BEST_EFFORT_DEPTH: u32 = 4;

#[cfg(test)]
mod tests {
    use tactus_core::disk_model::DiskModel;
    use tactus_core::estimator::ModelOrigin;
    use tactus_core::units::{KIB, Nanos};

    use super::*;

    #[test]
    fn r11_nothing_is_written_for_probes_of_a_disk_that_is_not_to_be_probed() {
        let dir = tempfile::tempdir().expect("a directory");
        let flash = DiskModel { sweep: Nanos(0), ..DiskModel::SLOWEST };
        let facts = VolumeFacts {
            path: dir.path().into(),
            model: flash,
            ..VolumeFacts::of_tests(ModelOrigin::Measured)
        };
        assert!(probe_file(&facts).is_some());
        assert!(probe_file(&VolumeFacts { probes: false, ..facts.clone() }).is_none());
        assert!(probe_file(&VolumeFacts { model: DiskModel::SLOWEST, ..facts }).is_none());
    }

    #[test]
    fn small_read_aheads_are_doubled_and_large_ones_have_turns() {
        let of = |kib| {
            let limits = VolumeFacts::of_tests(ModelOrigin::Guess).limits;
            read_ahead_of(&VolumeLimits { read_ahead: Bytes(kib * KIB), ..limits })
        };
        let doubled = |kib| ReadAhead::Doubled(Bytes(kib * KIB));
        assert_eq!([of(128), of(512)], [doubled(256), doubled(1024)]);
        assert_eq!([of(0), of(513), of(1024)], [ReadAhead::Usual; 3]);
    }
}
