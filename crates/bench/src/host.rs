//! The host's share: when did what is below this machine take a core away?
//!
//! Promise: a timer of the kernel interrupts the core every 200 us, whatever runs there; between
//! two interrupts that are more than a millisecond apart, nothing ran. What a server or its kernel
//! does takes no interrupt away (the kernel closes them for microseconds), so no lateness of its
//! own is excused by this. A hypervisor mostly reports what it took as stolen time, but not always:
//! here steps of 12 ms were seen that no counter showed. The timer rests where the core has nothing
//! to do, and what is missing by that is no gap.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag, Sampler, data::Record};
use tactus_core::units::{MILLISECOND, MonoTime, Nanos};

use crate::clock;
use crate::figures::windows::Span;
use crate::gaps::Looks;
use crate::watcher::Watcher;

/// Between two interrupts.
const PERIOD: Nanos = Nanos::from_micros(200);
/// The kernel keeps the moments of so many bytes: four seconds of them.
const KEPT: usize = 512 << 10;
/// How often they are fetched.
const FETCH: Nanos = MILLISECOND.times(100);

/// A core that is watched.
#[derive(Debug)]
pub struct Host(Watcher<Beats>);

impl Host {
    /// Watches `core`; an error where the kernel gives no such timer (`kernel.perf_event_paranoid`,
    /// a container).
    pub fn watch(core: usize) -> Result<Self> {
        let mut sampler = Builder::new(Software::CPU_CLOCK)
            .any_pid()
            .one_cpu(core)
            .include_kernel()
            .sample_period(PERIOD.0)
            .sample(SampleFlag::TIME)
            .clockid(Clock::MONOTONIC)
            .build()
            .and_then(|counter| counter.sampled(KEPT))
            .with_context(|| format!("a timer on core {core}"))?;
        sampler.enable()?;
        let watch = Watcher::start("host", move |stop| {
            let mut beats = Beats::default();
            while !stop.load(Ordering::Relaxed) {
                clock::sleep(FETCH);
                fetch(&mut sampler, &mut beats);
            }
            beats
        });
        watch.map(Self)
    }

    /// Ends the watch and returns when the core was gone; an error if nothing was seen at all.
    pub fn stop(self) -> Result<Vec<Span>> {
        let beats = self.0.stop()?;
        ensure!(beats.count > 0, "the timer never interrupted the core");
        Ok(beats.gaps)
    }
}

fn fetch(sampler: &mut Sampler, beats: &mut Beats) {
    while let Some(record) = sampler.next_record() {
        match record.parse_record() {
            Ok(Record::Sample(sample)) => match sample.time() {
                Some(at) => beats.beat(MonoTime(at)),
                None => beats.rest(),
            },
            // It rested, or moments were lost.
            _ => beats.rest(),
        }
    }
}

/// Gaps between beats.
#[derive(Debug, Default)]
struct Beats {
    count: u64,
    last: Option<MonoTime>,
    gaps: Vec<Span>,
}

impl Beats {
    fn beat(&mut self, at: MonoTime) {
        if let Some(last) = self.last.filter(|&last| at.since(last) > Looks::OFTEN.gap) {
            self.gaps.push(Span { from: last, to: at });
        }
        self.last = Some(at);
        self.count += 1;
    }

    /// What follows says nothing of the time since the last beat.
    fn rest(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(micros: u64) -> MonoTime {
        MonoTime(micros * 1000)
    }

    #[test]
    fn only_a_step_of_more_than_a_millisecond_between_beats_is_a_gap() {
        let mut beats = Beats::default();
        for micros in [0, 200, 1200, 2300, 2500] {
            beats.beat(at(micros));
        }
        assert_eq!(beats.gaps, [Span { from: at(1200), to: at(2300) }]);
    }

    #[test]
    fn what_is_missing_while_the_timer_rests_is_no_gap() {
        let mut beats = Beats::default();
        beats.beat(at(0));
        beats.rest();
        beats.beat(at(9000));
        assert_eq!(beats.gaps, []);
    }

    #[test]
    fn a_core_that_works_is_interrupted_and_seen() {
        // A machine that gives no timer, or not this core, is measured without.
        let (Ok(host), Ok(())) = (Host::watch(0), crate::priority::pin(0)) else { return };
        let from = clock::now();
        while clock::now().since(from) < MILLISECOND.times(50) {}
        host.stop().unwrap();
    }
}
