//! Devices that keep packets until their time: those with the queueing discipline `fq` on each of
//! their queues.
//!
//! Promise: an answer is at most a second old. A device with an unknown property does not count.

use std::io;

use tactus_core::units::{MonoTime, Nanos, SECOND};

use crate::clock;
use crate::packets::routes::{Device, FairQueue, Queue, QueueKind, Routes};

/// The devices, by the last query.
pub(super) struct TimedDevices {
    routes: Routes,
    devices: Vec<Device>,
    kept: Option<usize>,
    /// Lead of packets before their time.
    ahead: Nanos,
    looked: MonoTime,
}

/// Limit of the age of an answer.
const VALID_FOR: Nanos = SECOND;

impl TimedDevices {
    pub(super) fn new(ahead: Nanos) -> io::Result<Self> {
        let (devices, kept) = (vec![], None);
        let routes = Routes::open()?;
        let mut own = Self { routes, devices, kept, ahead, looked: clock::now() };
        own.renew()?;
        Ok(own)
    }

    /// The limit of packets of one flow on each of them; `None` if there are no such devices.
    pub(super) fn kept(&self) -> Option<usize> {
        self.kept
    }

    /// The devices, and the routing queries.
    pub(super) fn look(&mut self) -> (&mut Routes, &[Device]) {
        if clock::now().since(self.looked) > VALID_FOR && self.renew().is_err() {
            self.devices.clear();
        }
        (&mut self.routes, &self.devices)
    }

    fn renew(&mut self) -> io::Result<()> {
        self.looked = clock::now();
        let queues = self.routes.queues()?;
        self.devices = self.routes.devices()?;
        // A device that came later with a lower limit does not count.
        let least = self.kept.unwrap_or(1);
        let kept =
            |device: &Device| kept(&queues, device.index, self.ahead).filter(|&kept| kept >= least);
        self.devices.retain(|device| kept(device).is_some());
        if self.kept.is_none() {
            self.kept = self.devices.iter().filter_map(kept).min();
        }
        Ok(())
    }
}

/// The limit of packets of one flow that a device keeps until their time, if that is at most
/// `ahead` away; `None` if one of its queues does not keep them.
fn kept(queues: &[Queue], device: u32, ahead: Nanos) -> Option<usize> {
    let own = || queues.iter().filter(move |queue| queue.device == device);
    let root = own().find(|queue| queue.parent == Queue::ROOT)?;
    let keeps = |queue: &Queue| match queue.kind {
        QueueKind::Fair(FairQueue { packets, of_flow, horizon })
            if horizon.is_none_or(|horizon| horizon > ahead) =>
        {
            Some(packets.min(of_flow) as usize)
        }
        _ => None,
    };
    if root.kind != QueueKind::Many {
        return keeps(root);
    }
    let below = own().filter(|queue| !matches!(queue.parent, Queue::ROOT | Queue::INGRESS));
    let kept: Option<Vec<usize>> = below.map(keeps).collect();
    kept?.into_iter().min()
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::tc::TcHandle;

    use super::*;

    const FAIR: FairQueue =
        FairQueue { packets: 10_000, of_flow: 100, horizon: Some(Nanos::from_millis(10_000)) };
    const AHEAD: Nanos = Nanos::from_millis(2);

    fn class(minor: u16) -> TcHandle {
        TcHandle { major: 1, minor }
    }

    fn queue(parent: TcHandle, kind: QueueKind) -> Queue {
        Queue { device: 2, parent, kind }
    }

    fn kept_by(queues: &[Queue]) -> Option<usize> {
        kept(queues, 2, AHEAD)
    }

    #[test]
    fn a_device_keeps_packets_when_all_of_its_queues_do() {
        let (fair, other) = (QueueKind::Fair(FAIR), QueueKind::Other);
        assert_eq!(kept_by(&[queue(Queue::ROOT, fair)]), Some(100));
        assert_eq!(kept_by(&[queue(Queue::ROOT, fair), queue(Queue::INGRESS, other)]), Some(100));
        assert_eq!(kept_by(&[queue(Queue::ROOT, other), queue(class(1), fair)]), None);
        let many = queue(Queue::ROOT, QueueKind::Many);
        let small = QueueKind::Fair(FairQueue { of_flow: 50, ..FAIR });
        assert_eq!(kept_by(&[many, queue(class(1), fair), queue(class(2), small)]), Some(50));
        assert_eq!(kept_by(&[many, queue(class(1), fair), queue(class(2), other)]), None);
        let ingress = queue(Queue::INGRESS, other);
        assert_eq!(kept_by(&[ingress, many, queue(class(1), fair)]), Some(100));
        assert_eq!(kept_by(&[many]), None);
        let elsewhere = Queue { device: 3, parent: Queue::ROOT, kind: fair };
        assert_eq!(kept_by(&[elsewhere]), None);
    }

    #[test]
    fn a_device_that_throws_away_what_is_early_keeps_nothing() {
        let until = |horizon| QueueKind::Fair(FairQueue { horizon: Some(horizon), ..FAIR });
        assert_eq!(kept_by(&[queue(Queue::ROOT, until(AHEAD))]), None);
        assert_eq!(kept_by(&[queue(Queue::ROOT, until(AHEAD + Nanos(1)))]), Some(100));
        let old = QueueKind::Fair(FairQueue { horizon: None, packets: 70, ..FAIR });
        assert_eq!(kept_by(&[queue(Queue::ROOT, old)]), Some(70));
    }
}
