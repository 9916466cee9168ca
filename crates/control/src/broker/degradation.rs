//! Degradation levels: which services a volume gives up when its disk does not keep its model, in
//! one order.
//!
//! Promise: one order, defined in one place. The supervision of the disks decides when a level is
//! taken; the broker and the disk's cycle apply it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tactus_engine::message::VolumeId;

/// A degradation level of a volume; it includes all levels before it. Level 2 does not exist yet:
/// no content is synchronised with other sites.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
#[repr(u8)]
pub enum DegradationLevel {
    /// No degradation.
    #[default]
    Nothing = 0,
    /// Hot titles are not read ahead.
    Ahead = 1,
    /// Uploads get their reserved time and no more: the disk's cycle ensures it while real-time
    /// work fills it.
    Uploads = 3,
    /// Downloads without a rate are refused.
    Downloads = 4,
    /// Streams and recordings are refused.
    Newcomers = 5,
    /// Streams are ended, those without a rate first, then the newest.
    Streams = 6,
}

impl DegradationLevel {
    /// All levels, in ascending order.
    pub const ALL: [Self; 6] = [
        Self::Nothing,
        Self::Ahead,
        Self::Uploads,
        Self::Downloads,
        Self::Newcomers,
        Self::Streams,
    ];

    /// Its number in the manual.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The degraded service.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing is given up",
            Self::Ahead => "hot titles are not read ahead",
            Self::Uploads => "uploads have their floor",
            Self::Downloads => "downloads without a rate are refused",
            Self::Newcomers => "streams and recordings are refused",
            Self::Streams => "streams are ended",
        }
    }

    pub(crate) fn down(self) -> Self {
        let next = Self::ALL.into_iter().find(|&level| level > self);
        next.unwrap_or(Self::Streams)
    }

    pub(crate) fn up(self) -> Self {
        let before = Self::ALL.into_iter().rev().find(|&level| level < self);
        before.unwrap_or(Self::Nothing)
    }
}

/// The current levels of all volumes. Clones share them. The default has volumes without
/// degradation.
#[derive(Clone, Default, Debug)]
pub struct Degradations(Arc<[Degradation]>);

#[derive(Default, Debug)]
struct Degradation {
    /// Index into [`DegradationLevel::ALL`].
    level: AtomicU8,
    ended: AtomicU64,
    deferred: AtomicU64,
}

impl Degradations {
    pub(crate) fn new(volumes: usize) -> Self {
        Self((0..volumes).map(|_| Degradation::default()).collect())
    }

    /// The degradation level of a volume.
    #[must_use]
    pub fn level(&self, volume: VolumeId) -> DegradationLevel {
        let degradation = self.0.get(usize::from(volume.0));
        let at = degradation.map_or(0, |degradation| degradation.level.load(Ordering::Relaxed));
        let level = DegradationLevel::ALL[usize::from(at)];
        // Streams that wait for others come before all that is not promised yet.
        if self.deferred(volume) > 0 { level.max(DegradationLevel::Newcomers) } else { level }
    }

    /// The number of streams of a volume that were ended because of its disk.
    #[must_use]
    pub fn ended(&self, volume: VolumeId) -> u64 {
        let degradation = self.0.get(usize::from(volume.0));
        degradation.map_or(0, |degradation| degradation.ended.load(Ordering::Relaxed))
    }

    /// The number of streams of a volume whose reads come after those of all others, because its
    /// disk does not keep up.
    #[must_use]
    pub fn deferred(&self, volume: VolumeId) -> u64 {
        let degradation = self.0.get(usize::from(volume.0));
        degradation.map_or(0, |degradation| degradation.deferred.load(Ordering::Relaxed))
    }

    pub(crate) fn set_deferred(&self, volume: VolumeId, count: usize) {
        self.0[usize::from(volume.0)].deferred.store(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, volume: VolumeId, level: DegradationLevel) {
        let at =
            DegradationLevel::ALL.iter().position(|&each| each == level).expect("all are listed");
        self.0[usize::from(volume.0)].level.store(at as u8, Ordering::Relaxed);
    }

    pub(crate) fn note_ended(&self, volume: VolumeId, count: u32) {
        self.0[usize::from(volume.0)].ended.fetch_add(u64::from(count), Ordering::Relaxed);
    }
}
