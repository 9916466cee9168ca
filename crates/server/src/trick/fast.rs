//! Pictures out of the blocks that they lie in.

use std::collections::VecDeque;

use tactus_core::made::Timed;
use tactus_core::ts::trick::Multiplex;
use tactus_core::units::MediaTime;

use super::cut::Cutter;
use super::plan::Plan;
use crate::made::Transformer;

pub(super) struct Fast {
    multiplex: Multiplex,
    plan: Plan,
    stride: usize,
    /// When the first picture is shown.
    after: MediaTime,
    cutter: Cutter,
    /// The next picture, and the next stop that comes with it.
    picture: usize,
    stop: usize,
    /// Stops of this picture that are still to come.
    missing: Option<u32>,
    /// What has come of the next stop.
    incoming: Vec<u8>,
    /// Blocks of this picture.
    blocks: VecDeque<(u32, Vec<u8>)>,
}

impl Fast {
    pub(super) fn new(
        multiplex: Multiplex,
        plan: Plan,
        stride: usize,
        after: MediaTime,
        cutter: Cutter,
    ) -> Self {
        let (incoming, blocks) = (vec![], VecDeque::new());
        Self {
            multiplex,
            plan,
            stride,
            after,
            cutter,
            picture: 0,
            stop: 0,
            missing: None,
            incoming,
            blocks,
        }
    }

    /// Builds the next picture; false when it has not come, or there is none.
    fn build(&mut self) -> bool {
        let Some(&choice) = self.plan.choices.get(self.picture) else { return false };
        let missing = self.missing.get_or_insert(self.plan.fresh[self.picture]);
        while *missing > 0 {
            let stop = self.plan.stops[self.stop];
            let len = self.plan.len_of(stop) as usize;
            if self.incoming.len() < len {
                return false;
            }
            let behind = self.incoming.split_off(len);
            self.blocks.push_back((stop, std::mem::replace(&mut self.incoming, behind)));
            self.stop += 1;
            *missing -= 1;
        }
        let (from, to) = self.plan.blocks(self.picture).expect("it is there");
        let mut bytes = Vec::with_capacity((choice.end - choice.at) as usize);
        for number in from..=to {
            let found = self.blocks.iter().find(|(each, _)| *each == number);
            let (_, block) = found.expect("it was read with this picture or the one before");
            let begin = u64::from(number) * self.plan.block.0;
            let first = choice.at.saturating_sub(begin) as usize;
            let end = (choice.end - begin).min(block.len() as u64) as usize;
            bytes.extend(&block[first..end]);
        }
        let due = MediaTime(self.after.0 + choice.due.0);
        let Self { multiplex, cutter, .. } = self;
        // What is scrambled or damaged is not shown, and the one before it stays.
        multiplex.picture(&bytes, self.stride, due, |placed| cutter.add(placed));
        cutter.flush();
        self.picture += 1;
        self.missing = None;
        let next = self.plan.blocks(self.picture);
        let is_needed = |each: u32| next.is_some_and(|(from, to)| (from..=to).contains(&each));
        self.blocks.retain(|(each, _)| is_needed(*each));
        true
    }
}

impl Transformer for Fast {
    fn push(&mut self, bytes: &[u8]) {
        self.incoming.extend(bytes);
    }

    fn end(&mut self) {}

    fn next(&mut self) -> Option<(usize, Timed)> {
        loop {
            if let Some(timed) = self.cutter.next() {
                return Some((0, timed));
            }
            if !self.build() {
                return None;
            }
        }
    }

    fn held(&self) -> usize {
        self.incoming.len() + self.blocks.iter().map(|(_, block)| block.len()).sum::<usize>()
    }
}
