//! What a cycle learns about its disk: it meters the reads, and probes in time that is left over.
//!
//! Promise: the model in use is that of the estimator, from the end of the cycle on in which it has
//! changed. Probes come after all other work, and stop for it.

use super::meter::Meter;
use super::probe::{LONG, ProbeLimits, ProbeRead, Probes};
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
        learning.end_long_probe(now);
        learning.estimator.end_cycle(now, promised, all);
        if let Some(end) = learning.probes.as_mut().and_then(Probes::warmed_up) {
            learning.estimator.begin_window(now, end);
        }
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
        if self.at_device() >= self.limits.model.depth {
            return None;
        }
        if self.next_probe().is_none_or(|next| now < next) && !self.is_probing() {
            return None;
        }
        if !self.may_probe(now) {
            self.learning.as_mut()?.probes.as_mut()?.stop();
            return None;
        }
        if !self.is_probing() && self.at_device() == 0 {
            self.begin_probe(now);
        }
        let learning = self.learning.as_mut()?;
        let read = learning.probes.as_mut()?.poll(now)?;
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
                probes.give_up(now);
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
        let LearningState { estimator, probes, .. } = self.learning.as_ref()?;
        probes.as_ref()?.next(estimator.doubt(), estimator.is_bounded())
    }

    /// Whether a read of a probe may begin at `now`: after the head of the cycle, without other
    /// work, and in time for its end within the cycle. A disk that seems too slow for that is given
    /// half of the cycle, or it would seem slow for ever.
    fn may_probe(&self, now: MonoTime) -> bool {
        let Some(learning) = &self.learning else { return false };
        let Some(probes) = &learning.probes else { return false };
        let is_alone = self.at_device() == probes.in_flight() && !self.flushes.is_under_way();
        let half = Nanos(self.limits.length.0 / 2);
        let room = probes.time(&learning.estimator.seen(), 0).min(half);
        is_alone
            && !self.has_work()
            && now >= self.reads_ahead.max(self.end_of_head(now))
            && now + room <= self.end_of_cycle(now)
    }

    /// Begins the probe that is due, if there is time for it.
    fn begin_probe(&mut self, now: MonoTime) {
        let end = self.end_of_cycle(now);
        // Its first cycle does not count.
        let end_long = self.end_of_cycle(MonoTime(end.0 + LONG.0 - 1));
        let half = Nanos(self.limits.length.0 / 2);
        let Some(learning) = &mut self.learning else { return };
        let Some(probes) = &mut learning.probes else { return };
        let (doubt, is_bounded) = (learning.estimator.doubt(), learning.estimator.is_bounded());
        if probes.is_long_due(now, doubt, is_bounded) {
            probes.begin_long(now, end_long);
            return;
        }
        let model = learning.estimator.seen();
        let least = model.depth * DEEP;
        let is_unsure = doubt == Doubt::Unknown;
        let fits = |time: Nanos| now + time <= end;
        if is_unsure && fits(probes.time(&model, 2 * least).times(2)) {
            probes.begin(now, 2 * least);
        } else if fits(probes.time(&model, least).times(2).min(half)) {
            probes.begin(now, least);
        }
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

    /// Notes a read that has `waited` until `now` for what the device was reading already. Many
    /// wait for the device at the same time: that time counts once.
    pub(super) fn note_waited(&mut self, now: MonoTime, len: u32, waited: Nanos) {
        let Some(learning) = self.learning.as_mut().filter(|_| waited >= WAIT_MIN) else { return };
        let (time, from_idle) = learning.meter.note_wait(now, waited);
        let first = from_idle.then_some(Bytes(u64::from(len)));
        learning.estimator.note_wait(time, first);
    }

    /// Notes that the device reads `len` bytes more than it was asked for, because the kernel reads
    /// ahead in a file. They take the time of the last deep evidence. By the model in force, a disk
    /// that only seemed slow would never seem idle again.
    pub fn note_read_ahead(&mut self, now: MonoTime, len: u32) {
        let bytes = Bytes(u64::from(len));
        let model = match &mut self.learning {
            Some(learning) => {
                learning.estimator.note_ahead(bytes);
                learning.estimator.seen()
            }
            None => self.limits.model,
        };
        let time = model.reading(MilliVisits(1000), bytes);
        self.reads_ahead = self.reads_ahead.max(now) + time;
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

    fn end_long_probe(&mut self, now: MonoTime) {
        if self.probes.as_mut().is_some_and(|probes| probes.end_long(now)) {
            self.estimator.note_filled();
        }
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
