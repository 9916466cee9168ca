//! Counters of recordings.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tactus_core::units::{BitRate, Bytes};
use tactus_engine::message::VolumeId;

/// Why bytes are missing in a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossKind {
    /// The disk has not written the bytes before them.
    Disk,
    /// The source exceeded the reserved rate.
    Rate,
    /// They never arrived.
    Source,
}

impl LossKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Disk, Self::Rate, Self::Source];

    /// Its label value.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Rate => "rate",
            Self::Source => "source",
        }
    }
}

/// The missing bytes of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Loss {
    /// The number of gaps: losses after a successful write.
    pub gaps: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The figures of one recording.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The destination volume.
    pub volume: VolumeId,
    /// The path of the title there.
    pub path: String,
    /// The reserved rate.
    pub rate: BitRate,
    /// The start time.
    pub since: SystemTime,
    /// Bytes written.
    pub taken: Bytes,
    /// The durable part, which a restart after a power failure finds, as of the last check.
    pub durable: Bytes,
    /// The losses, in the order of [`LossKind::ALL`].
    pub lost: [Loss; 3],
    /// How often a source that can wait was faster than the rate, and waited.
    pub overruns: u64,
    /// How often a source that can wait was slower than the rate.
    pub underruns: u64,
}

/// The sums of a volume's recordings since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Running now.
    pub running: u64,
    /// Bytes written.
    pub taken: Bytes,
    /// The losses, in the order of [`LossKind::ALL`].
    pub lost: [Loss; 3],
    /// How often sources that can wait were faster than their rate, and waited.
    pub overruns: u64,
    /// How often sources that can wait were slower than their rate.
    pub underruns: u64,
}

#[derive(Default, Debug)]
struct Sums {
    taken: AtomicU64,
    overruns: AtomicU64,
    underruns: AtomicU64,
    gaps: [AtomicU64; 3],
    lost: [AtomicU64; 3],
}

impl Sums {
    fn losses(&self) -> [Loss; 3] {
        std::array::from_fn(|at| Loss {
            gaps: self.gaps[at].load(Ordering::Relaxed),
            bytes: self.lost[at].load(Ordering::Relaxed),
        })
    }
}

#[derive(Debug)]
pub(super) struct Counts {
    number: u64,
    volume: VolumeId,
    path: String,
    rate: BitRate,
    since: SystemTime,
    own: Sums,
    all: Arc<Sums>,
    durable: AtomicU64,
    gap: Mutex<Gap>,
}

/// The current gap.
#[derive(Debug, Default)]
struct Gap {
    /// Its kind; `None` if the last bytes were written.
    kind: Option<LossKind>,
    bytes: u64,
    said: Option<Instant>,
}

/// The first loss is logged at once, later ones at this interval.
const SAY_EVERY: Duration = Duration::from_secs(10);

impl Counts {
    pub(super) fn took(&self, bytes: u64) {
        for sums in [&self.own, &*self.all] {
            sums.taken.fetch_add(bytes, Ordering::Relaxed);
        }
        let mut gap = self.gap();
        if gap.kind.take().is_some() && gap.said.is_some_and(|said| said.elapsed() < SAY_EVERY) {
            let lost = std::mem::take(&mut gap.bytes);
            tracing::warn!(path = self.path, lost, "a recording continues after a loss");
        }
    }

    pub(super) fn lost(&self, kind: LossKind, bytes: u64, now: Instant) {
        let at = kind as usize;
        let mut gap = self.gap();
        let is_new = gap.kind.replace(kind) != Some(kind);
        gap.bytes += bytes;
        for sums in [&self.own, &*self.all] {
            sums.gaps[at].fetch_add(u64::from(is_new), Ordering::Relaxed);
            sums.lost[at].fetch_add(bytes, Ordering::Relaxed);
        }
        if gap.said.is_none_or(|said| now.saturating_duration_since(said) >= SAY_EVERY) {
            gap.said = Some(now);
            let (path, lost) = (&self.path, gap.bytes);
            match kind {
                LossKind::Disk => {
                    tracing::error!(
                        path,
                        lost,
                        "the disk is too slow for a recording: bytes are lost"
                    );
                }
                LossKind::Rate => {
                    let rate = self.rate;
                    tracing::error!(
                        path, lost, %rate,
                        "the source of a recording exceeds its rate: bytes are lost"
                    );
                }
                LossKind::Source => {
                    tracing::warn!(path, lost, "bytes of a recording did not arrive");
                }
            }
        }
    }

    pub(super) fn looked(&self, durable: u64) {
        self.durable.store(durable, Ordering::Relaxed);
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Relaxed)
    }

    pub(super) fn overran(&self) {
        for sums in [&self.own, &*self.all] {
            sums.overruns.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn underran(&self) {
        for sums in [&self.own, &*self.all] {
            sums.underruns.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn figures(&self) -> Figures {
        Figures {
            volume: self.volume,
            path: self.path.clone(),
            rate: self.rate,
            since: self.since,
            taken: Bytes(self.own.taken.load(Ordering::Relaxed)),
            durable: Bytes(self.durable.load(Ordering::Relaxed)),
            lost: self.own.losses(),
            overruns: self.own.overruns.load(Ordering::Relaxed),
            underruns: self.own.underruns.load(Ordering::Relaxed),
        }
    }

    fn gap(&self) -> MutexGuard<'_, Gap> {
        self.gap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running recordings.
#[derive(Debug)]
pub(super) struct Roll {
    volumes: Vec<Arc<Sums>>,
    running: Mutex<RunningRecordings>,
}

#[derive(Default, Debug)]
struct RunningRecordings {
    number: u64,
    all: BTreeMap<u64, Arc<Counts>>,
}

impl Roll {
    pub(super) fn new(volumes: usize) -> Self {
        let volumes = (0..volumes).map(|_| Arc::default()).collect();
        Self { volumes, running: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, RunningRecordings> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, volume: VolumeId, path: &str, rate: BitRate) -> Arc<Counts> {
        let mut running = self.lock();
        running.number += 1;
        let number = running.number;
        let counts = Arc::new(Counts {
            number,
            volume,
            path: path.to_owned(),
            rate,
            since: SystemTime::now(),
            own: Sums::default(),
            all: Arc::clone(&self.volumes[usize::from(volume.0)]),
            durable: AtomicU64::new(0),
            gap: Mutex::default(),
        });
        running.all.insert(number, Arc::clone(&counts));
        counts
    }

    pub(super) fn end(&self, counts: &Counts) {
        self.lock().all.remove(&counts.number);
    }

    pub(super) fn running(&self) -> Vec<Figures> {
        self.lock().all.values().map(|counts| counts.figures()).collect()
    }

    pub(super) fn totals(&self, volume: VolumeId) -> Totals {
        let Some(sums) = self.volumes.get(usize::from(volume.0)) else { return Totals::default() };
        let is_here = |counts: &&Arc<Counts>| counts.volume == volume;
        Totals {
            running: self.lock().all.values().filter(is_here).count() as u64,
            taken: Bytes(sums.taken.load(Ordering::Relaxed)),
            lost: sums.losses(),
            overruns: sums.overruns.load(Ordering::Relaxed),
            underruns: sums.underruns.load(Ordering::Relaxed),
        }
    }
}
