//! Promises to reads at moments, of local programs: disk time, memory and CPU.

use std::sync::Arc;

use tactus_core::cost::{Cost, OutputCost};
use tactus_core::ledger::Resource;
use tactus_core::timed::{COPYING, TimedReads, TimedReserve};
use tactus_core::units::Nanos;
use tactus_storage::catalogue::OpenTitle;

use super::refusal::{Shortage, refusal};
use super::{Broker, DegradationLevel, Refusal, Shared, prices};

/// Room for the reads of one title at moments. Returned when dropped.
pub struct TimedGrant {
    shared: Arc<Shared>,
    cost: Cost,
    /// What the engine keeps the moments by.
    pub reserve: TimedReserve,
    /// Reads that are under way at once.
    pub under_way: u32,
    is_in_memory: bool,
}

impl TimedGrant {
    /// How far ahead of its moment a read has to come, for each block that it lies in.
    pub fn ahead(&self) -> Nanos {
        if self.is_in_memory { COPYING } else { self.reserve.ahead }
    }
}

impl Broker {
    /// Reserves the resources of reads at moments. `is_in_memory`: all bytes of the title are in
    /// memory that is counted elsewhere, and stay there as long as the grant.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    pub fn admit_timed(
        &self,
        title: &OpenTitle,
        reads: &TimedReads,
        is_in_memory: bool,
    ) -> Result<TimedGrant, Refusal> {
        let rules = &self.shared.rules;
        let what = || format!("reads of up to {} every {}", reads.len, reads.interval);
        let mut table = self.shared.table();
        let is_slow = self.shared.level(title.volume) >= DegradationLevel::Newcomers;
        if is_slow && !is_in_memory {
            table.refusals.count(Resource::Disk);
            return Err(refusal(Shortage::SlowDisk, None, &what(), rules));
        }
        let disk = table.ledger.disk(title.volume.0.into());
        let source = match is_in_memory {
            true => disk.timed_in_memory(reads),
            false => disk.timed(reads, title.len, prices::TIMED_BLOCK),
        };
        let reserve = disk.reserve(reads);
        let output = OutputCost::timed(prices::TIMED, reads);
        let cost = Cost::timed(source.cost, output).by(rules.servers.file);
        if let Err(short) = table.ledger.admit(cost) {
            table.refusals.count(short.resource);
            drop(table);
            return Err(refusal(Shortage::Room(short), None, &what(), rules));
        }
        drop(table);
        let shared = Arc::clone(&self.shared);
        Ok(TimedGrant { shared, cost, reserve, under_way: source.window, is_in_memory })
    }
}

impl Drop for TimedGrant {
    fn drop(&mut self) {
        self.shared.table().ledger.release(self.cost);
    }
}

impl std::fmt::Debug for TimedGrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TimedGrant").field("cost", &self.cost).finish_non_exhaustive()
    }
}
