//! Promises to recordings: disk time and places of the write share, at a rate.

use std::sync::Arc;

use tactus_core::cost::{Cost, Source};
use tactus_core::ledger::{Ledger, Resource};
use tactus_core::units::{BitRate, Nanos, SECOND};
use tactus_engine::message::VolumeId;

use super::refusal::{Shortage, refusal};
use super::{Broker, DegradationLevel, Refusal, Shared};

/// Room for one recording. Returned when dropped.
pub struct RecordGrant {
    shared: Arc<Shared>,
    cost: Cost,
    places: u32,
    /// The promised rate: slightly more than requested.
    pub rate: BitRate,
    /// Bound of the duration of each write.
    pub within: Nanos,
}

/// The reservation of a recording.
struct RecordingReservation {
    promised: BitRate,
    source: Source,
    /// Time to fill a place.
    full: Nanos,
    cycle: Nanos,
}

impl RecordingReservation {
    fn of(ledger: &Ledger, disk: u32, rate: BitRate) -> Self {
        let limits = &ledger.limits().disks[disk as usize];
        let place = limits.write_path.map_or(limits.block, |write_path| write_path.place);
        let promised = rate + BitRate(rate.0.div_ceil(DRIFT));
        // A place of a slow recording is written before it is full, and still costs the disk a
        // visit.
        let rate = promised.max(BitRate((place.0 * 8).div_ceil(WRITTEN_AFTER_SECONDS)));
        let full = Nanos((place.0 * 8).saturating_mul(SECOND.0) / rate.0);
        let source = ledger.disk(disk).recorded(rate);
        Self { promised, source, full, cycle: limits.cycle }
    }
}

impl Broker {
    /// Reserves the resources of a recording at `rate` on a volume that takes uploads.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    pub fn admit_recording(&self, volume: VolumeId, rate: BitRate) -> Result<RecordGrant, Refusal> {
        let mut table = self.shared.table();
        if self.shared.level(volume) >= DegradationLevel::Newcomers {
            table.refusals.count(Resource::Disk);
            let (what, rules) = (format!("a recording of {rate}"), &self.shared.rules);
            return Err(refusal(Shortage::SlowDisk, None, &what, rules));
        }
        let disk = u32::from(volume.0);
        let RecordingReservation { promised, source, full, cycle } =
            RecordingReservation::of(&table.ledger, disk, rate);
        let (cost, places) = (Cost::recording(source.cost), source.window);
        if let Err(short) = table.ledger.admit(cost) {
            table.refusals.count(short.resource);
            drop(table);
            let what = format!("a recording of {rate}");
            return Err(refusal(Shortage::Room(short), None, &what, &self.shared.rules));
        }
        drop(table);
        let within = cycle.times(3) + full;
        let shared = Arc::clone(&self.shared);
        Ok(RecordGrant { shared, cost, places, rate: promised, within })
    }

    /// How many more recordings at `rate` would be admitted to a volume that takes uploads.
    pub fn room_for_recordings(&self, volume: VolumeId, rate: BitRate) -> u32 {
        let table = self.shared.table();
        let disk = u32::from(volume.0);
        table.ledger.room_for(
            Cost::recording(RecordingReservation::of(&table.ledger, disk, rate).source.cost),
            &[],
        )
    }
}

/// Reserve for the drift of the source's clock: the promised rate exceeds the requested one by this
/// fraction.
const DRIFT: u64 = 64;

/// A source too slow to fill a place is written twice in four seconds: the full sectors, and the
/// last sector, padded.
const WRITTEN_AFTER_SECONDS: u64 = 2;

impl RecordGrant {
    /// Limit of its places of the write share.
    pub fn places(&self) -> u32 {
        self.places
    }
}

impl Drop for RecordGrant {
    fn drop(&mut self) {
        self.shared.table().ledger.release(self.cost);
    }
}

impl std::fmt::Debug for RecordGrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordGrant").field("cost", &self.cost).finish_non_exhaustive()
    }
}
