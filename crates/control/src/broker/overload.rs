//! The broker's answer to a disk that is not as its model says: the ledger gets another model, and
//! the newest streams of an overloaded disk are deferred, then ended.

use tactus_core::disk_model::DiskModel;
use tactus_core::estimator::Estimate;
use tactus_core::overload::{Measures, Need, Overload, Promise};
use tactus_core::units::MonoTime;
use tactus_engine::message::{Command, VolumeId};

use super::Broker;
use super::stream_table::StreamTable;

impl Broker {
    /// Gives the ledger the learned model of the disk of `volume`, and defers its newest streams if
    /// the disk falls behind. Returns the changes.
    pub(crate) fn follow_disk(
        &self,
        now: MonoTime,
        volume: VolumeId,
        (start, estimate): (&DiskModel, &Estimate),
        overload: &mut Overload,
    ) -> Measures {
        let mut table = self.shared.table();
        let disk = u32::from(volume.0);
        table.ledger.set_model(disk, start.slower_by(estimate.ratio));
        let (cycle, limit) =
            (table.ledger.limits().disks[disk as usize].cycle, table.ledger.disk_limit(disk));
        let worst = estimate.ratio.max(estimate.pressure.unwrap_or(estimate.ratio));
        let needed = worst.times(table.ledger.disk_time(disk, start, Need::default()));
        if needed <= cycle && !overload.is_any() {
            return Measures::default();
        }
        let newest = table.newest(volume);
        let needs: Vec<Need> = newest.iter().map(|&(_, need)| need).collect();
        let time = |without| table.ledger.disk_time(disk, start, without);
        let promise = Promise { cycle, limit, newest: &needs, time: &time };
        let measures = overload.look(now, estimate, &promise);
        for (at, &(index, _)) in newest.iter().enumerate() {
            let is_deferred = at < measures.deferred;
            if is_deferred && measures.ends {
                table.stop(index);
            } else {
                table.defer(index, is_deferred);
            }
        }
        measures
    }
}

impl StreamTable {
    /// Running streams of a volume that need its disk, newest first.
    fn newest(&self, volume: VolumeId) -> Vec<(u32, Need)> {
        let slots = (0u32..).zip(&self.slots);
        let running = slots.filter(|(_, slot)| {
            let runs = slot.output.is_some() && !slot.stopped && slot.need.is_any();
            slot.title.as_ref().is_some_and(|source| runs && source.title.volume == volume)
        });
        let mut newest: Vec<_> =
            running.map(|(index, slot)| (slot.begun, index, slot.need)).collect();
        newest.sort_unstable_by_key(|&(begun, ..)| std::cmp::Reverse(begun));
        newest.into_iter().map(|(_, index, need)| (index, need)).collect()
    }

    /// Defers a stream, or no longer. If the engine does not take commands now, the next look does
    /// it.
    fn defer(&mut self, index: u32, is_deferred: bool) {
        let enough = 5 * self.slots.len();
        let slot = &mut self.slots[index as usize];
        let stream = slot.stream(index);
        let has_room = self.commands[usize::from(stream.server.0)].free() > enough;
        if slot.is_deferred == is_deferred || !has_room {
            return;
        }
        slot.is_deferred = is_deferred;
        self.command(Command::Defer { stream, is_deferred });
    }
}
