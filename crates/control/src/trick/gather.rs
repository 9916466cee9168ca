//! Collects video frames from the blocks that hold them.
//!
//! Promise: a block is held while the next video frame needs it, and no longer.

use std::collections::VecDeque;

use tactus_core::ts::trick::Choice;

use super::plan::Plan;

pub(super) struct Gather {
    plan: Plan,
    /// The next video frame, and the next block of its own.
    video_frame: usize,
    stop: usize,
    /// Number of blocks of this video frame that are still to come.
    missing: Option<u32>,
    /// The received part of the next block.
    incoming: Vec<u8>,
    /// Blocks of this video frame.
    blocks: VecDeque<(u32, Vec<u8>)>,
}

impl Gather {
    pub(super) fn new(plan: Plan) -> Self {
        let (incoming, blocks) = (vec![], VecDeque::new());
        Self { plan, video_frame: 0, stop: 0, missing: None, incoming, blocks }
    }

    /// Adds read bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.incoming.extend(bytes);
    }

    /// Number of bytes held.
    pub(super) fn buffered(&self) -> usize {
        self.incoming.len() + self.blocks.iter().map(|(_, block)| block.len()).sum::<usize>()
    }

    /// The next video frame; `None` if it has not come, or there is none.
    pub(super) fn next(&mut self) -> Option<(Choice, Vec<u8>)> {
        let &choice = self.plan.choices.get(self.video_frame)?;
        let missing = self.missing.get_or_insert(self.plan.fresh[self.video_frame]);
        while *missing > 0 {
            let stop = self.plan.stops[self.stop];
            let len = self.plan.len_of(stop) as usize;
            if self.incoming.len() < len {
                return None;
            }
            let behind = self.incoming.split_off(len);
            self.blocks.push_back((stop, std::mem::replace(&mut self.incoming, behind)));
            self.stop += 1;
            *missing -= 1;
        }
        let (from, to) = self.plan.blocks(self.video_frame).expect("it is there");
        let mut bytes = Vec::with_capacity((choice.end - choice.at) as usize);
        for number in from..=to {
            let found = self.blocks.iter().find(|(each, _)| *each == number);
            let (_, block) = found.expect("it was read with this video frame or the one before");
            let begin = u64::from(number) * self.plan.block.0;
            let first = choice.at.saturating_sub(begin) as usize;
            let end = (choice.end - begin).min(block.len() as u64) as usize;
            bytes.extend(&block[first..end]);
        }
        self.video_frame += 1;
        self.missing = None;
        let next = self.plan.blocks(self.video_frame);
        let is_needed = |each: u32| next.is_some_and(|(from, to)| (from..=to).contains(&each));
        self.blocks.retain(|(each, _)| is_needed(*each));
        Some((choice, bytes))
    }
}
