//! Promises to recordings: time of the disk and places of the write share, at a rate.

use std::sync::Arc;

use tactus_core::ledger::{Demand, Share, Wish};
use tactus_core::units::{BitRate, Bytes, Nanos};
use tactus_engine::message::VolumeId;

use super::{Broker, Refusal, Shared, refusal};

/// Room for one recording. Returned when dropped.
pub struct RecordGrant {
    shared: Arc<Shared>,
    demand: Demand,
    /// The rate that is promised: a little more than was asked for.
    pub rate: BitRate,
    /// How soon each of its writes is done.
    pub within: Nanos,
}

impl Broker {
    /// Reserves what a recording at `rate` needs, on a volume whose places have `place` bytes.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    pub fn admit_recording(
        &self,
        volume: VolumeId,
        rate: BitRate,
        place: Bytes,
    ) -> Result<RecordGrant, Refusal> {
        let mut book = self.shared.book();
        let disk = u32::from(volume.0);
        // Of a slow one a place is written before it is full, and still costs the disk a visit.
        let seconds = WRITTEN_AFTER.0.div_ceil(1_000_000_000);
        let promised = rate + BitRate(rate.0.div_ceil(DRIFT));
        let counted = promised.max(BitRate((place.0 * 8).div_ceil(seconds)));
        let demand =
            book.ledger.demand(disk, Wish::Record { rate: counted }, Share::whole(Bytes(0)));
        if let Err(short) = book.ledger.admit(demand) {
            book.refusals.count(short.resource);
            drop(book);
            let what = format!("a recording of {rate}");
            return Err(refusal(short, &what, self.shared.rules.retry_after));
        }
        let cycle = book.ledger.terms().disks[disk as usize].cycle;
        drop(book);
        let full = Nanos((place.0 * 8).saturating_mul(1_000_000_000) / counted.0);
        let within = cycle.times(3) + full;
        Ok(RecordGrant { shared: Arc::clone(&self.shared), demand, rate: promised, within })
    }
}

/// A source has a clock of its own, and a rate of its own to that clock: so much of it is promised on top.
const DRIFT: u64 = 64;

/// What has come of a slow recording is written after this time, though its place is not full.
const WRITTEN_AFTER: Nanos = Nanos(2_000_000_000);

impl RecordGrant {
    /// Places of the write share that it may have.
    pub fn places(&self) -> u32 {
        self.demand.window()
    }
}

impl Drop for RecordGrant {
    fn drop(&mut self) {
        self.shared.book().ledger.release(self.demand);
    }
}

impl std::fmt::Debug for RecordGrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordGrant").field("demand", &self.demand).finish_non_exhaustive()
    }
}
