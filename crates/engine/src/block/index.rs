//! Which block of which title is at which place: a hash table of fixed size.

use crate::message::TitleId;

/// A block of a title.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    pub(super) title: TitleId,
    pub(super) block: u64,
}

/// Linear probing over twice as many slots as there are places; deletion moves later keys back, so
/// no tombstones pile up.
pub(super) struct Index {
    slots: Vec<Option<(Key, u32)>>,
    mask: usize,
}

impl Index {
    pub(super) fn new(places: u32) -> Self {
        let size = (places as usize * 2).next_power_of_two().max(2);
        Self { slots: vec![None; size], mask: size - 1 }
    }

    pub(super) fn find(&self, key: Key) -> Option<u32> {
        let mut at = self.home(key);
        while let Some((found, place)) = self.slots[at] {
            if found == key {
                return Some(place);
            }
            at = (at + 1) & self.mask;
        }
        None
    }

    pub(super) fn insert(&mut self, key: Key, place: u32) {
        debug_assert!(self.find(key).is_none(), "a block has one place");
        let mut at = self.home(key);
        while self.slots[at].is_some() {
            at = (at + 1) & self.mask;
        }
        self.slots[at] = Some((key, place));
    }

    pub(super) fn remove(&mut self, key: Key) {
        let mut at = self.home(key);
        while self.slots[at].is_some_and(|(found, _)| found != key) {
            at = (at + 1) & self.mask;
        }
        assert!(self.slots[at].is_some(), "only what was inserted is removed");
        let mut hole = at;
        loop {
            at = (at + 1) & self.mask;
            let Some((moved, _)) = self.slots[at] else { break };
            // A key may fill the hole only if the hole lies between its home and its slot.
            let from_home = at.wrapping_sub(self.home(moved)) & self.mask;
            let from_hole = at.wrapping_sub(hole) & self.mask;
            if from_home >= from_hole {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
        }
        self.slots[hole] = None;
    }

    fn home(&self, key: Key) -> usize {
        // Two rounds of a 64-bit mix (splitmix64's finaliser): titles and blocks both count up.
        let mut hash = key.title.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(key.block);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (hash ^ (hash >> 31)) as usize & self.mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_index_agrees_with_a_map_through_inserts_and_removals() {
        let mut index = Index::new(32);
        let mut model = BTreeMap::new();
        let mut state = 3u64;
        for step in 0..50_000u32 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = Key { title: TitleId((state >> 33) % 4), block: (state >> 40) % 24 };
            let name = (key.title, key.block);
            assert_eq!(index.find(key), model.get(&name).copied());
            if model.remove(&name).is_some() {
                index.remove(key);
            } else if model.len() < 32 {
                index.insert(key, step);
                model.insert(name, step);
            }
        }
    }
}
