//! Learned disk models: from the counters of the disk servers to the ledger.
//!
//! Promise: the ledger has the learned model of each disk as soon as the disk server has. The
//! newest streams of an overloaded disk give way to the older ones. Each lasting change of a model
//! is logged once. This module decides nothing: the estimator and the overload do.

use std::path::PathBuf;
use std::sync::Arc;

use tactus_core::disk_model::{DiskModel, Ratio};
use tactus_core::estimator::{Estimate, ModelOrigin};
use tactus_core::overload::{Measures, Overload};
use tactus_core::units::{MonoTime, Nanos, SECOND};
use tactus_engine::counters::DiskCounters;
use tactus_engine::message::VolumeId;

use super::VolumeFacts;
use crate::broker::{Broker, Degradations};

/// The learned model of a disk, and where it comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LearnedModel {
    /// The model in use.
    pub model: DiskModel,
    /// Its times, compared with those of the start, in thousandths.
    pub ratio: u32,
    /// How much evidence there is, in thousandths.
    pub confidence: u32,
    /// Seconds with evidence at full depth.
    pub samples: u64,
    /// Where the model comes from.
    pub source: ModelSource,
}

/// Where a model comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModelSource {
    /// The file written by `tactus measure`.
    Measured,
    /// A short look at the start.
    Guess,
    /// The reads of this server.
    Learned,
}

impl ModelSource {
    /// Its name in the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Guess => "guess",
            Self::Learned => "learned",
        }
    }
}

/// The learned model of a volume's disk, from the disk's counters.
pub fn learned(facts: &VolumeFacts, counters: &DiskCounters) -> LearnedModel {
    let estimate = counters.estimate();
    let source = match (facts.origin(), estimate.confidence >= CERTAIN) {
        (ModelOrigin::Measured, _) if estimate.ratio == Ratio::ONE => ModelSource::Measured,
        (ModelOrigin::Guess, false) => ModelSource::Guess,
        _ => ModelSource::Learned,
    };
    LearnedModel {
        model: facts.model.slower_by(estimate.ratio),
        ratio: estimate.ratio.thousandths(),
        confidence: estimate.confidence,
        samples: estimate.samples,
        source,
    }
}

/// A guess counts as learned from this confidence on: ten seconds of evidence.
const CERTAIN: u32 = 500;

/// Follows the disks.
pub(super) struct Watch {
    disks: Vec<Disk>,
    degradations: Degradations,
}

struct Disk {
    counters: Arc<DiskCounters>,
    path: PathBuf,
    model: DiskModel,
    overload: Overload,
    deferred: usize,
    /// The ratio that was last logged, and when.
    logged: Ratio,
    logged_at: MonoTime,
}

/// Least time between two lines about one disk's model.
const LOG_EVERY: Nanos = Nanos(30 * SECOND.0);

impl Watch {
    pub(super) fn new(
        counters: &[Arc<DiskCounters>],
        volumes: &[VolumeFacts],
        degradations: Degradations,
        now: MonoTime,
    ) -> Self {
        let disk = |(counters, facts): (&Arc<DiskCounters>, &VolumeFacts)| Disk {
            counters: Arc::clone(counters),
            path: facts.path.clone(),
            model: facts.model,
            overload: Overload::default(),
            deferred: 0,
            logged: Ratio::ONE,
            logged_at: now,
        };
        Self { disks: counters.iter().zip(volumes).map(disk).collect(), degradations }
    }

    pub(super) fn look(&mut self, now: MonoTime, broker: &Broker) {
        for (disk, number) in self.disks.iter_mut().zip(0..) {
            let volume = VolumeId(number);
            let estimate = disk.counters.estimate();
            let known = (&disk.model, &estimate);
            let Measures { deferred, ends } =
                broker.follow_disk(now, volume, known, &mut disk.overload);
            self.degradations.set_deferred(volume, deferred);
            let name = disk.path.display();
            if ends {
                tracing::error!(
                    volume = %name, ended = deferred,
                    "the newest streams are ended: the disk is slower than it was promised"
                );
                self.degradations.note_ended(volume, deferred as u32);
            } else if deferred > disk.deferred {
                tracing::error!(
                    volume = %name, deferred, pressure = estimate.pressure.map(Ratio::thousandths),
                    "the disk is slower than it was promised: the newest streams wait for the \
                     others, and new streams are refused"
                );
            } else if deferred == 0 && disk.deferred > 0 {
                tracing::warn!(volume = %name, "the disk keeps up again: no stream waits");
            }
            disk.deferred = deferred;
            disk.log(now, &estimate);
        }
    }
}

impl Disk {
    /// Logs a model that has changed by a quarter since the last line.
    fn log(&mut self, now: MonoTime, estimate: &Estimate) {
        let (old, new) = (self.logged.thousandths(), estimate.ratio.thousandths());
        let is_news = new > old * 5 / 4 || new < old * 4 / 5;
        if !is_news || now.since(self.logged_at) < LOG_EVERY {
            return;
        }
        (self.logged, self.logged_at) = (estimate.ratio, now);
        tracing::info!(
            volume = %self.path.display(),
            percent = new / 10,
            confidence = estimate.confidence / 10,
            "the time of the disk's reads, compared with the model of the start, was learned"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r11_the_source_of_a_model_is_a_guess_until_there_is_evidence() {
        let counters = DiskCounters::default();
        let source = |origin, ratio: u32, confidence: u64| {
            counters.model_ratio.set(u64::from(Ratio::of_thousandths(ratio).0));
            counters.confidence.set(confidence);
            learned(&VolumeFacts::of_tests(origin), &counters).source
        };
        assert_eq!(source(ModelOrigin::Guess, 1000, 0), ModelSource::Guess);
        assert_eq!(source(ModelOrigin::Guess, 1500, 499), ModelSource::Guess);
        assert_eq!(source(ModelOrigin::Guess, 400, 500), ModelSource::Learned);
        assert_eq!(source(ModelOrigin::Measured, 1000, 1000), ModelSource::Measured);
        assert_eq!(source(ModelOrigin::Measured, 1300, 1000), ModelSource::Learned);
    }
}
