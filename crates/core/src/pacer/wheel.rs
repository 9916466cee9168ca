//! The wheel: the tick in which each sleeper wakes.
//!
//! Promise: a sleeper wakes in the first turn at or after its tick, never before. Setting and
//! clearing take constant time, and so does finding the next tick with a possible wake-up. A tick
//! further away than the wheel has slots shares a slot with nearer ones and is skipped once per
//! round.

use alloc::vec;
use alloc::vec::Vec;

use super::line::NONE;

/// Ticks in a round: 0.4 s at 100 us. The gap between packets of 1,316 bytes from 26 kbit/s on.
const SLOTS: usize = 4096;
const WORD: usize = 64;

/// A sleeper's links, in a circle through all of its slot.
#[derive(Clone, Copy, Debug)]
struct Sleeper {
    tick: u64,
    before: u32,
    after: u32,
    /// A slot, [`AWAKE`], or [`NONE`].
    place: u32,
}

/// The slot of sleepers whose tick has come.
const AWAKE: u32 = SLOTS as u32;

/// Sleepers by tick.
#[derive(Clone, Debug)]
pub(super) struct Wheel {
    /// The last tick that has come.
    now: u64,
    sleepers: Vec<Sleeper>,
    heads: Vec<u32>,
    /// The slots with sleepers as bits, and the non-zero words of these bits.
    words: [u64; SLOTS / WORD],
    summary: u64,
}

impl Wheel {
    pub(super) fn new(sleepers: usize, now: u64) -> Self {
        let free = Sleeper { tick: 0, before: NONE, after: NONE, place: NONE };
        Self {
            now,
            sleepers: vec![free; sleepers],
            heads: vec![NONE; SLOTS + 1],
            words: [0; SLOTS / WORD],
            summary: 0,
        }
    }

    /// Wakes `sleeper` at `tick`, which lies ahead; replaces an earlier setting.
    pub(super) fn set(&mut self, sleeper: u32, tick: u64) {
        assert!(tick > self.now, "a tick that has come wakes nobody");
        let Sleeper { tick: set, place, .. } = self.sleepers[sleeper as usize];
        if place != NONE && set == tick {
            return;
        }
        self.clear(sleeper);
        self.sleepers[sleeper as usize].tick = tick;
        self.link(sleeper, (tick % SLOTS as u64) as u32);
    }

    /// Cancels the wake-up of `sleeper`.
    pub(super) fn clear(&mut self, sleeper: u32) {
        let Sleeper { before, after, place, .. } = self.sleepers[sleeper as usize];
        if place == NONE {
            return;
        }
        self.sleepers[sleeper as usize].place = NONE;
        if after == sleeper {
            self.empty(place);
            return;
        }
        self.sleepers[before as usize].after = after;
        self.sleepers[after as usize].before = before;
        if self.heads[place as usize] == sleeper {
            self.heads[place as usize] = after;
        }
    }

    /// Advances to `tick`. Adds the number of inspected sleepers to `looks`.
    pub(super) fn turn(&mut self, tick: u64, looks: &mut u64) {
        let until = tick.min(self.now + SLOTS as u64);
        let mut passed = self.now;
        self.now = tick;
        while let Some(slot) = self.next_after(passed).filter(|&slot| slot <= until) {
            self.visit((slot % SLOTS as u64) as u32, looks);
            passed = slot;
        }
    }

    /// Removes a sleeper whose tick has come.
    pub(super) fn wake(&mut self) -> Option<u32> {
        let first = self.heads[AWAKE as usize];
        if first == NONE {
            return None;
        }
        self.clear(first);
        Some(first)
    }

    /// The sleepers whose tick has come, in the order of waking.
    pub(super) fn awake(&self) -> impl Iterator<Item = u32> {
        let first = self.heads[AWAKE as usize];
        let mut next = (first != NONE).then_some(first);
        core::iter::from_fn(move || {
            let sleeper = next?;
            let after = self.sleepers[sleeper as usize].after;
            next = (after != first).then_some(after);
            Some(sleeper)
        })
    }

    /// The next tick with a possible wake-up.
    pub(super) fn next(&self) -> Option<u64> {
        self.next_after(self.now)
    }

    /// Sorts the sleepers of a slot into those whose tick has come and those of later rounds.
    fn visit(&mut self, slot: u32, looks: &mut u64) {
        let head = self.heads[slot as usize];
        let last = self.sleepers[head as usize].before;
        self.empty(slot);
        let mut next = head;
        loop {
            let Sleeper { tick, after, .. } = self.sleepers[next as usize];
            self.link(next, if tick <= self.now { AWAKE } else { slot });
            *looks += 1;
            if next == last {
                return;
            }
            next = after;
        }
    }

    /// The first tick after `tick`, within a round, whose slot has sleepers.
    fn next_after(&self, tick: u64) -> Option<u64> {
        if self.summary == 0 {
            return None;
        }
        let from = ((tick + 1) % SLOTS as u64) as usize;
        let (word, bit) = (from / WORD, from % WORD);
        let rest = self.words[word] >> bit;
        let ahead = if rest != 0 {
            rest.trailing_zeros() as usize
        } else {
            // The next word that is not zero; this word comes last, after the wrap.
            let turned = self.summary.rotate_right((word as u32 + 1) % WORD as u32);
            let words = turned.trailing_zeros() as usize + 1;
            let found = (word + words) % WORD;
            words * WORD - bit + self.words[found].trailing_zeros() as usize
        };
        Some(tick + 1 + ahead as u64)
    }

    fn link(&mut self, sleeper: u32, place: u32) {
        let head = self.heads[place as usize];
        let (mut before, mut after) = (sleeper, sleeper);
        if head == NONE {
            self.heads[place as usize] = sleeper;
            self.fill(place);
        } else {
            (before, after) = (self.sleepers[head as usize].before, head);
            self.sleepers[before as usize].after = sleeper;
            self.sleepers[head as usize].before = sleeper;
        }
        let tick = self.sleepers[sleeper as usize].tick;
        self.sleepers[sleeper as usize] = Sleeper { tick, before, after, place };
    }

    const fn fill(&mut self, place: u32) {
        if place < AWAKE {
            let (word, bit) = (place as usize / WORD, place as usize % WORD);
            self.words[word] |= 1 << bit;
            self.summary |= 1 << word;
        }
    }

    fn empty(&mut self, place: u32) {
        self.heads[place as usize] = NONE;
        if place < AWAKE {
            let (word, bit) = (place as usize / WORD, place as usize % WORD);
            self.words[word] &= !(1 << bit);
            if self.words[word] == 0 {
                self.summary &= !(1 << word);
            }
        }
    }
}

const _: () = assert!(SLOTS / WORD == u64::BITS as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_sleeper_wakes_in_the_first_turn_at_or_after_its_tick(
            begin in 0u64..1 << 40,
            steps in prop::collection::vec((0u32..20, 1u64..20_000, 0u64..6_000), 1..200),
        ) {
            let mut wheel = Wheel::new(20, begin);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let (mut now, mut looks) = (begin, 0);
            for (sleeper, ahead, on) in steps {
                if ahead % 7 == 0 {
                    wheel.clear(sleeper);
                    model.remove(&sleeper);
                } else {
                    wheel.set(sleeper, now + ahead);
                    model.insert(sleeper, now + ahead);
                }
                let next = model.values().min().copied();
                let named = wheel.next();
                // Sleepers of later rounds may be reported a round too early, never too late.
                prop_assert_eq!(named.is_some(), next.is_some());
                prop_assert!(named.is_none_or(|named| named > now && Some(named) <= next));
                now += on;
                if on == 0 {
                    continue;
                }
                wheel.turn(now, &mut looks);
                let mut woken = alloc::vec![];
                while let Some(one) = wheel.wake() {
                    woken.push(one);
                }
                woken.sort_unstable();
                let due = model.iter().filter(|&(_, &tick)| tick <= now).map(|(&one, _)| one);
                prop_assert_eq!(&woken, &due.collect::<Vec<_>>());
                model.retain(|_, tick| *tick > now);
            }
        }
    }
}
