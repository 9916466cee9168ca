//! What a cycle learns about its disk: it meters the reads, and probes in time that is left over.
//!
//! Promise: the model in use is that of the estimator, from the end of the cycle on in which it has
//! changed. Probes come after all other work, and stop for it.

use super::meter::Meter;
use super::probe::{ProbeLimits, ProbeRead, Probes};
use super::{Cycle, CycleLimits, FAR, Job, WAIT_MIN};
use crate::disk_model::MilliVisits;
use crate::estimator::{BusySpan, DEEP, Doubt, Estimate, Estimator, ModelOrigin};
use crate::ports::Transfer;
use crate::units::{Bytes, MonoTime, Nanos};

/// What is learned about a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Learning {
    /// Where the model of the start comes from.
    pub origin: ModelOrigin,
    /// Reads reach the device: no cache of this host answers them.
    pub is_direct: bool,
    /// What is probed; `None`: nothing.
    pub probe: Option<ProbeLimits>,
}

impl CycleLimits {
    /// Limit of transfers in flight, of all kinds.
    pub fn in_flight_max(&self) -> u32 {
        self.model.in_flight_max(self.best_effort_depth)
    }
}

/// What has been learned about the disk.
pub(super) struct LearningState {
    estimator: Estimator,
    meter: Meter,
    probes: Option<Probes>,
    cycle: u64,
}

impl Cycle {
    /// What is known about the disk; `None` if nothing is learned.
    pub fn estimate(&self) -> Option<Estimate> {
        self.learning.as_ref().map(|learning| learning.estimator.estimate())
    }

    /// Ends the cycles before `now` for the estimator, before the wants of the new cycle come. True
    /// if one has ended.
    pub fn end_cycles(&mut self, now: MonoTime) -> bool {
        let cycle = self.cycle_of(now);
        if self.learning.as_ref().is_none_or(|learning| learning.cycle == cycle) {
            return false;
        }
        let promised = self.sweeps.backlog(now + FAR);
        let all = self.sweeps.backlog(MonoTime(u64::MAX));
        let Some(learning) = &mut self.learning else { return false };
        learning.cycle = cycle;
        let span = learning.meter.cut(now);
        learning.note(span);
        learning.estimator.end_cycle(now, promised, all);
        let model = learning.estimator.model();
        if model != self.limits.model {
            self.limits.model = model;
            self.sweeps.set_model(model);
            self.best_effort.set_model(model);
        }
        true
    }

    /// The next read of a probe for the device, if one may start at `now`.
    pub fn poll_probe(&mut self, now: MonoTime) -> Option<ProbeRead> {
        let depth = self.limits.model.depth;
        if self.at_device() >= depth {
            return None;
        }
        if !self.is_probing()
            && let Some(reads) = self.next_probe_len(now)
        {
            self.learning.as_mut()?.probes.as_mut()?.begin(now, reads);
        }
        let is_disturbed = self.has_work();
        let learning = self.learning.as_mut()?;
        let probes = learning.probes.as_mut()?;
        if is_disturbed {
            probes.stop();
        }
        let read = probes.poll()?;
        let before = learning.meter.note_probe(now, read.offset.0, read.len);
        learning.note(before);
        Some(read)
    }

    /// Notes the end of a read of a probe. A failed one tells nothing.
    pub fn handle_probed(&mut self, now: MonoTime, read: ProbeRead, is_read: bool) {
        let Some(learning) = &mut self.learning else { return };
        let doubt = learning.estimator.doubt();
        if let Some(probes) = &mut learning.probes {
            probes.note_end(now, doubt);
            if !is_read {
                probes.stop();
                learning.meter.spoil();
            }
        }
        self.note_end(now, Some(read.len));
    }

    /// Notes that the completions at `now` were polled `late`.
    pub fn note_late_poll(&mut self, now: MonoTime, late: Nanos) {
        if let Some(learning) = &mut self.learning {
            learning.meter.note_late_poll(now, late);
        }
    }

    fn is_probing(&self) -> bool {
        let probes = self.learning.as_ref().and_then(|learning| learning.probes.as_ref());
        probes.is_some_and(Probes::is_running)
    }

    pub(super) fn next_probe(&self) -> Option<MonoTime> {
        let learning = self.learning.as_ref()?;
        learning.probes.as_ref()?.next(learning.estimator.doubt())
    }

    /// The reads of the probe that may begin: on an idle disk, without waiting work, and in time to
    /// end within the cycle.
    fn next_probe_len(&self, now: MonoTime) -> Option<u32> {
        let learning = self.learning.as_ref()?;
        let block = u64::from(learning.probes.as_ref()?.block());
        let least = self.limits.model.depth * DEEP;
        let is_unsure = learning.estimator.doubt() == Doubt::Unknown;
        let wanted = if is_unsure { [2 * least, least] } else { [least, least] };
        let is_idle =
            self.at_device() == 0 && !self.flushes.is_under_way() && now >= self.reads_ahead;
        let is_due = self.next_probe().is_some_and(|next| next <= now);
        if !is_due || !is_idle || self.has_work() || now < self.end_of_head(now) {
            return None;
        }
        // As many more as are at the device at a time: the first answer takes the latency.
        let more = u64::from(self.limits.model.depth);
        let time = |reads: u32| {
            let visits = u64::from(reads) + more;
            self.limits.model.reading(MilliVisits(visits * 1000), Bytes(visits * block))
        };
        let fits = |reads: &u32| now + time(*reads).times(2) <= self.end_of_cycle(now);
        wanted.into_iter().find(fits)
    }

    /// Whether any work waits, even if it may not begin now.
    pub(super) fn has_work(&self) -> bool {
        let is_swept = self.sweeps.is_running() || self.sweeps.is_waiting();
        let is_uploaded = self.flushes.is_waiting() || !self.arrived.is_empty();
        is_swept || is_uploaded || !self.best_effort.is_empty()
    }

    /// Notes that streams have work: probes stop for it.
    pub(super) fn note_work(&mut self, now: MonoTime) {
        let probes = self.learning.as_mut().and_then(|learning| learning.probes.as_mut());
        if let Some(probes) = probes {
            probes.stop();
            probes.note_work(now);
        }
    }

    /// Notes a read that has `waited` for what the device was reading already.
    pub(super) fn note_waited(&mut self, len: u32, waited: Nanos) {
        let Some(learning) = self.learning.as_mut().filter(|_| waited >= WAIT_MIN) else { return };
        learning.note(Some(BusySpan {
            visits: 1,
            bytes: Bytes(u64::from(len)),
            time: waited,
            reach: 0,
            from_idle: true,
            is_direct: false,
        }));
    }

    pub(super) fn note_real_time(&mut self, now: MonoTime, job: &Job) {
        let Some(learning) = &mut self.learning else { return };
        let Transfer { direction, len, .. } = job.transfer;
        let before = learning.meter.note_begin(now, direction, job.position, len);
        learning.note(before);
    }

    /// Notes the end of a read of this length, or of a write or a flush.
    pub(super) fn note_end(&mut self, now: MonoTime, read: Option<u32>) {
        let Some(learning) = &mut self.learning else { return };
        match read {
            Some(len) => learning.meter.note_read_end(now, len),
            None => learning.meter.note_end(now),
        }
    }
}

impl LearningState {
    pub(super) fn new(learning: Learning, limits: &CycleLimits) -> Self {
        let Learning { origin, is_direct, probe } = learning;
        let CycleLimits { length, model, .. } = *limits;
        Self {
            estimator: Estimator::new(model, origin, length),
            meter: Meter::new(is_direct),
            // The time of an arm depends on the places of the titles, which a probe of one file
            // does not show.
            probes: probe.filter(|_| !model.has_arm()).map(Probes::new),
            cycle: 0,
        }
    }

    /// Reads of a probe at the device.
    pub(super) fn in_flight(&self) -> u32 {
        self.probes.as_ref().map_or(0, Probes::in_flight)
    }

    /// Notes a piece of best effort.
    pub(super) fn note_piece(&mut self, now: MonoTime, piece: &Transfer) {
        self.stop_probe();
        let before = self.meter.note_begin(now, piece.direction, piece.offset.0, piece.len);
        self.note(before);
    }

    /// Notes a flush.
    pub(super) fn note_flush(&mut self, now: MonoTime) {
        let before = self.meter.note_flush(now);
        self.note(before);
    }

    fn note(&mut self, span: Option<BusySpan>) {
        if let Some(span) = span {
            self.estimator.note_busy(&span);
        }
    }

    fn stop_probe(&mut self) {
        if let Some(probes) = &mut self.probes {
            probes.stop();
        }
    }
}
