//! The line: an exact priority queue of siblings, by keys that do not decrease.
//!
//! Promise: members leave in the order of their keys, and equal ones in the order of entry. A
//! member is moved at most [`LEVELS`] times, whatever their number. A key is at the level of the
//! highest hexadecimal digit in which it differs from the last key that left, in the slot of that
//! digit (a radix heap). The links are stored with the members: a line allocates nothing.

use core::iter::successors;

use crate::mutant;

/// No member.
pub(super) const NONE: u32 = u32::MAX;

const DIGIT_BITS: u32 = 4;
const SLOTS: usize = 1 << DIGIT_BITS;
/// Ten digits of nanoseconds are 18 minutes. Keys that differ above them share one last slot, at
/// another level.
const DIGITS: usize = 10;
const LEVELS: usize = DIGITS + 1;

/// A member's links, in a circle through all of its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    key: u64,
    before: u32,
    after: u32,
    place: u32,
}

impl Link {
    pub(super) const FREE: Self = Self { key: 0, before: NONE, after: NONE, place: 0 };
}

/// Members by key.
#[derive(Clone, Debug)]
pub(super) struct KeyQueue {
    /// Lower bound of all keys: the last key that left.
    base: u64,
    /// The levels with members, as bits.
    levels: u32,
    /// The slots of each level that have members, as bits.
    slots: [u32; LEVELS],
    heads: [u32; DIGITS * SLOTS + 1],
}

impl KeyQueue {
    pub(super) const EMPTY: Self =
        Self { base: 0, levels: 0, slots: [0; LEVELS], heads: [NONE; DIGITS * SLOTS + 1] };

    pub(super) const fn is_empty(&self) -> bool {
        self.levels == 0
    }

    /// The position of the line: a new member enters at least here.
    pub(super) const fn base(&self) -> u64 {
        self.base
    }

    /// Enters `member`; a key below the line's base counts as the base.
    pub(super) fn enter(&mut self, links: &mut [Link], member: u32, key: u64) {
        let key = key.max(self.base);
        let place = self.place(key);
        let head = self.heads[place];
        let (mut before, mut after) = (member, member);
        if head == NONE {
            self.heads[place] = member;
            self.slots[place / SLOTS] |= 1 << (place % SLOTS);
            self.levels |= 1 << (place / SLOTS);
        } else {
            (before, after) = (links[head as usize].before, head);
            links[before as usize].after = member;
            links[head as usize].before = member;
        }
        links[member as usize] = Link { key, before, after, place: place as u32 };
    }

    /// Removes `member`, which is in this line.
    pub(super) fn leave(&mut self, links: &mut [Link], member: u32) {
        let Link { before, after, place, .. } = links[member as usize];
        let place = place as usize;
        if after == member {
            self.clear(place);
            return;
        }
        links[before as usize].after = after;
        links[after as usize].before = before;
        if self.heads[place] == member {
            self.heads[place] = after;
        }
    }

    /// Removes the first member. Adds the number of other members that it had to move to `moves`.
    pub(super) fn take_first(&mut self, links: &mut [Link], moves: &mut u64) -> Option<u32> {
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros() as usize;
        let place = level * SLOTS + self.slots[level].trailing_zeros() as usize;
        let head = self.heads[place];
        // Keys within a slot of the lowest level are equal; those of other levels are not.
        let is_alone = links[head as usize].after == head;
        let first = match level == 0 || is_alone {
            true => head,
            false => mutant!(LineUnsorted, head, smallest(links, head)),
        };
        self.leave(links, first);
        self.base = links[first as usize].key;
        if level > 0 && !is_alone {
            self.scatter(links, place, moves);
        }
        Some(first)
    }

    /// All members, in no order.
    pub(super) fn members(&self, links: &[Link]) -> impl Iterator<Item = u32> {
        let heads = self.heads.iter().copied().filter(|&head| head != NONE);
        heads.flat_map(move |head| {
            let after = move |&member: &u32| links[member as usize].after;
            successors(Some(head), move |member| Some(after(member)).filter(|&next| next != head))
        })
    }

    /// Moves all members of a slot to their new, lower levels.
    fn scatter(&mut self, links: &mut [Link], place: usize, moves: &mut u64) {
        let head = self.heads[place];
        let last = links[head as usize].before;
        self.clear(place);
        let mut next = head;
        loop {
            let Link { key, after, .. } = links[next as usize];
            self.enter(links, next, key);
            *moves += 1;
            if next == last {
                return;
            }
            next = after;
        }
    }

    fn clear(&mut self, place: usize) {
        let level = place / SLOTS;
        self.heads[place] = NONE;
        self.slots[level] &= !(1 << (place % SLOTS));
        if self.slots[level] == 0 {
            self.levels &= !(1 << level);
        }
    }

    const fn place(&self, key: u64) -> usize {
        let differs = key ^ self.base;
        let level = match differs {
            0 => 0,
            differs => (differs.ilog2() / DIGIT_BITS) as usize,
        };
        if level >= DIGITS {
            return DIGITS * SLOTS;
        }
        level * SLOTS + (key >> (level as u32 * DIGIT_BITS)) as usize % SLOTS
    }
}

/// The member with the smallest key in the circle of `head`; among equal ones the first.
fn smallest(links: &[Link], head: u32) -> u32 {
    let mut best = head;
    let mut next = links[head as usize].after;
    while next != head {
        if links[next as usize].key < links[best as usize].key {
            best = next;
        }
        next = links[next as usize].after;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec;
    use proptest::prelude::*;

    /// A step of a test: enter a key at this distance, take the first, or remove one.
    #[derive(Clone, Debug)]
    enum Step {
        Enter(u64),
        Take,
        Leave(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u32..44, any::<u64>()).prop_map(|(bits, far)| Step::Enter(far % (1 << bits))),
            3 => Just(Step::Take),
            1 => any::<usize>().prop_map(Step::Leave),
        ]
    }

    proptest! {
        #[test]
        fn members_leave_by_key_and_then_by_arrival(
            steps in prop::collection::vec(step(), 1..400), start in 0u64..1 << 60,
        ) {
            let mut line = KeyQueue { base: start, ..KeyQueue::EMPTY };
            let mut links = vec![Link::FREE; steps.len()];
            let mut model = BTreeSet::new();
            let (mut moves, mut entered) = (0, 0u64);
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Enter(ahead) => {
                        let key = line.base() + ahead;
                        line.enter(&mut links, number as u32, key);
                        model.insert((key, number as u32));
                        entered += 1;
                    }
                    Step::Take => {
                        let first = line.take_first(&mut links, &mut moves);
                        prop_assert_eq!(first, model.pop_first().map(|(_, member)| member));
                    }
                    Step::Leave(which) if !model.is_empty() => {
                        let gone = *model.iter().nth(which % model.len()).unwrap();
                        model.remove(&gone);
                        line.leave(&mut links, gone.1);
                    }
                    Step::Leave(_) => {}
                }
                prop_assert_eq!(line.is_empty(), model.is_empty());
                let members: BTreeSet<_> = line.members(&links).collect();
                prop_assert_eq!(members, model.iter().map(|&(_, member)| member).collect());
            }
            prop_assert!(moves <= entered * LEVELS as u64);
        }
    }
}
