//! A multiplex of video frames that are access points.

use tactus_core::generated::TimedDatagram;
use tactus_core::ts::trick::Multiplex;
use tactus_core::units::MediaTime;

use super::cut::Cutter;
use super::gather::Gather;
use super::plan::Plan;
use crate::generated::Packetizer;

pub(super) struct FastPacketizer {
    multiplex: Multiplex,
    gather: Gather,
    stride: usize,
    /// When the first video frame is shown.
    after: MediaTime,
    cutter: Cutter,
}

impl FastPacketizer {
    pub(super) fn new(
        multiplex: Multiplex,
        plan: Plan,
        stride: usize,
        after: MediaTime,
        cutter: Cutter,
    ) -> Self {
        Self { multiplex, gather: Gather::new(plan), stride, after, cutter }
    }

    /// Builds the next video frame; false if it has not come, or there is none.
    fn build(&mut self) -> bool {
        let Some((choice, bytes)) = self.gather.next() else { return false };
        let due = MediaTime(self.after.0 + choice.due.0);
        let Self { multiplex, cutter, .. } = self;
        // A scrambled or damaged video frame is skipped, and the one before it stays.
        multiplex.video_frame(&bytes, self.stride, due, |placed| cutter.add(placed));
        cutter.flush();
        true
    }
}

impl Packetizer for FastPacketizer {
    fn push(&mut self, bytes: &[u8]) {
        self.gather.push(bytes);
    }

    fn end(&mut self) {}

    fn next(&mut self) -> Option<(usize, TimedDatagram)> {
        loop {
            if let Some(timed) = self.cutter.next() {
                return Some((0, timed));
            }
            if !self.build() {
                return None;
            }
        }
    }

    fn buffered(&self) -> usize {
        self.gather.buffered()
    }
}
