//! The control side's part of learning about disks: as the server's, without its locks and logs.

use tactus_core::disk_model::DiskModel;
use tactus_core::overload::{Measures, Overload};
use tactus_core::units::{MonoTime, Nanos};
use tactus_engine::message::{Command, StreamId};

use super::World;
use super::schedule::Event;
use crate::broker::Request;
use crate::device::open;

/// What the control side knows about the disk of a volume.
pub(super) struct LearnedDisk {
    /// The model of the start; `None`: the disk is not learned.
    pub(super) start: Option<DiskModel>,
    overload: Overload,
}

impl LearnedDisk {
    pub(super) fn new(start: Option<DiskModel>) -> Self {
        Self { start, overload: Overload::default() }
    }

    /// Whether new streams are refused.
    pub(super) fn is_overloaded(&self) -> bool {
        self.overload.is_any()
    }
}

/// Longest interval between two looks of the control side. A disk server wakes it earlier when the
/// estimate changes.
pub(super) const LOOK: Nanos = Nanos::from_millis(250);

impl World {
    pub(super) fn follow_disks(&mut self) {
        self.look_at_disks();
        if self.now < self.end {
            self.push(self.now + LOOK, Event::FollowDisks);
        }
    }

    pub(super) fn look_at_disks(&mut self) {
        let now = self.now;
        for volume in 0..self.learned.len() {
            let Some(start) = self.learned[volume].start else { continue };
            let estimate = self.control.counters.disks[volume].estimate();
            self.broker.set_model(volume, start.slower_by(estimate.ratio));
            let newest = self.newest(volume);
            let grants: Vec<_> =
                newest.iter().filter_map(|&stream| self.grant_of(stream)).collect();
            let overload = &mut self.learned[volume].overload;
            let known = (&start, &estimate);
            let Measures { deferred, ends } =
                self.broker.look((now, volume), known, &grants, overload);
            self.tally.deferred_max = self.tally.deferred_max.max(deferred as u64);
            for (at, &stream) in newest.iter().enumerate() {
                if at < deferred && ends {
                    self.tally.ended += 1;
                    self.leave(stream);
                } else {
                    self.defer(stream, at < deferred);
                }
            }
            let like = self.swarm.clients.iter().find(|client| client.volume == volume);
            if let Some(client) = like {
                let request = Request::Paced {
                    rate: client.rate,
                    tick: client.tick,
                    burst: client.burst,
                    is_pinned: false,
                };
                self.tally.capacity = u64::from(self.broker.capacity(volume, request));
            }
        }
    }

    fn grant_of(&self, stream: StreamId) -> Option<crate::broker::Grant> {
        self.live[stream.index as usize].as_ref().map(|live| live.grant)
    }

    /// Running streams of a volume, newest first.
    fn newest(&self, volume: usize) -> Vec<StreamId> {
        let mut running: Vec<(MonoTime, StreamId)> = self
            .live
            .iter()
            .flatten()
            .filter(|live| {
                live.grant.volume == volume && live.stopped.is_none() && live.finished.is_none()
            })
            .map(|live| (live.started, live.stream))
            .collect();
        running.sort_unstable_by_key(|&(started, stream)| (started, stream.index));
        running.into_iter().rev().map(|(_, stream)| stream).collect()
    }

    fn defer(&mut self, stream: StreamId, is_deferred: bool) {
        let Some(live) = self.live[stream.index as usize].as_mut() else { return };
        if live.is_deferred == is_deferred {
            return;
        }
        live.is_deferred = is_deferred;
        // From now on it may be late, and what it has missed it misses for good.
        open(&self.net).release_promise(stream.index);
        self.command(Command::Defer { stream, is_deferred });
    }
}
