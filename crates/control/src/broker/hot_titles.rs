//! Pinned titles: hot ones, which have several viewers at once, and kept ones, which the operator
//! names.
//!
//! Promise: a hot title is pinned only while half of its arena stays for all other streams. A
//! pinned title stays while one of its streams relies on it. When memory is short, titles without
//! viewers go first, the least recently watched before the others; kept titles never go. This
//! module decides; the broker acts.

use std::collections::HashMap;

use tactus_core::cost::Cost;
use tactus_engine::message::{TitleId, VolumeId};

/// Number of simultaneous viewers that makes a title hot.
const WATCHERS: u32 = 2;

/// The viewers of each title, and the pinned titles.
#[derive(Default)]
pub(super) struct HotTitles {
    titles: HashMap<TitleId, Title>,
    /// Counts uses, for the order of last use.
    uses: u64,
}

#[derive(Default)]
struct Title {
    watchers: u32,
    /// Watchers that were admitted because the title is pinned.
    relying: u32,
    pin: Option<Pin>,
    /// The operator has pinned it: it stays in memory until the operator releases it.
    is_kept: bool,
    used: u64,
}

/// A pin in the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pin {
    /// Its slot in the stream table.
    pub(super) slot: u32,
    pub(super) cost: Cost,
    pub(super) volume: VolumeId,
    /// Blocks of the arena.
    pub(super) blocks: u32,
    /// All of it is in memory.
    pub(super) is_complete: bool,
}

/// A title that is kept in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptTitle {
    /// All of it is in memory.
    pub is_complete: bool,
    /// The number of its viewers.
    pub viewers: u32,
}

impl Title {
    fn is_unwatched(&self) -> bool {
        !self.is_kept && self.watchers == 0 && self.pin.is_some_and(|pin| pin.is_complete)
    }
}

impl HotTitles {
    /// Whether all of the title is in memory.
    pub(super) fn is_pinned(&self, title: TitleId) -> bool {
        self.titles.get(&title).and_then(|t| t.pin).is_some_and(|pin| pin.is_complete)
    }

    /// Adds a viewer. Returns whether the title should now be pinned.
    pub(super) fn enter(&mut self, title: TitleId, relies: bool) -> bool {
        self.uses += 1;
        let entry = self.titles.entry(title).or_default();
        entry.watchers += 1;
        entry.relying += u32::from(relies);
        entry.used = self.uses;
        entry.watchers >= WATCHERS && entry.pin.is_none()
    }

    /// Removes a viewer.
    pub(super) fn leave(&mut self, title: TitleId, relied: bool) {
        let entry = self.titles.get_mut(&title).expect("only who has entered leaves");
        entry.watchers -= 1;
        entry.relying -= u32::from(relied);
        if entry.watchers == 0 && entry.pin.is_none() {
            self.titles.remove(&title);
        }
    }

    /// Notes that the engine has begun to read the title into memory.
    pub(super) fn begin_pin(&mut self, title: TitleId, pin: Pin) {
        self.titles.entry(title).or_default().pin = Some(pin);
    }

    /// Marks a pinned title as kept, or no longer as kept. Returns whether its memory can be freed:
    /// it is not kept and has no viewer.
    pub(super) fn set_kept(&mut self, title: TitleId, is_kept: bool) -> bool {
        let Some(entry) = self.titles.get_mut(&title) else { return false };
        entry.is_kept = is_kept;
        !is_kept && entry.watchers == 0 && entry.pin.is_some()
    }

    /// A title, if it is kept.
    pub(super) fn kept(&self, title: TitleId) -> Option<KeptTitle> {
        let entry = self.titles.get(&title).filter(|entry| entry.is_kept)?;
        let is_complete = entry.pin?.is_complete;
        Some(KeptTitle { is_complete, viewers: entry.watchers })
    }

    /// Blocks of the kept titles of a volume.
    pub(super) fn kept_blocks(&self, volume: VolumeId) -> u64 {
        let kept = self.titles.values().filter(|title| title.is_kept);
        let pins = kept.filter_map(|title| title.pin).filter(|pin| pin.volume == volume);
        pins.map(|pin| u64::from(pin.blocks)).sum()
    }

    /// Notes that all of the title is in memory.
    pub(super) fn complete_pin(&mut self, title: TitleId) {
        if let Some(pin) = self.titles.get_mut(&title).and_then(|title| title.pin.as_mut()) {
            pin.is_complete = true;
        }
    }

    /// Notes that the title is no longer in memory, or could not be read.
    pub(super) fn end_pin(&mut self, title: TitleId) -> Option<Pin> {
        let entry = self.titles.get_mut(&title)?;
        let pin = entry.pin.take();
        entry.is_kept = false;
        if entry.watchers == 0 {
            self.titles.remove(&title);
        }
        pin
    }

    /// The slot in which the engine has the title pinned, or reads it to pin it.
    pub(super) fn slot_of(&self, title: TitleId) -> Option<u32> {
        self.titles.get(&title).and_then(|title| title.pin).map(|pin| pin.slot)
    }

    /// The pinned title other than `wanted` that is needed least: complete in memory, not kept, no
    /// viewer relies on it, and it is the least recently used.
    pub(super) fn least_needed(&self, wanted: Option<TitleId>) -> Option<TitleId> {
        let idle = self.titles.iter().filter(|&(&id, title)| {
            let is_idle = !title.is_kept && title.relying == 0 && Some(id) != wanted;
            is_idle && title.pin.is_some_and(|pin| pin.is_complete)
        });
        idle.min_by_key(|(_, title)| (title.watchers > 0, title.used)).map(|(&id, _)| id)
    }

    /// Whether the title is complete in memory although nobody watches it and it is not kept.
    pub(super) fn is_unwatched(&self, title: TitleId) -> bool {
        self.titles.get(&title).is_some_and(Title::is_unwatched)
    }

    /// The slots of all titles of this kind.
    pub(super) fn unwatched(&self) -> impl Iterator<Item = u32> {
        let unwatched = self.titles.values().filter(|title| title.is_unwatched());
        unwatched.filter_map(|title| title.pin).map(|pin| pin.slot)
    }

    /// The number of titles that are complete in memory.
    pub(super) fn pinned(&self) -> usize {
        self.titles.values().filter(|t| t.pin.is_some_and(|pin| pin.is_complete)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TitleId = TitleId(1);
    const B: TitleId = TitleId(2);

    fn new_pin() -> Pin {
        let (slot, cost, volume) = (0, Cost::default(), VolumeId(0));
        Pin { slot, cost, volume, blocks: 1, is_complete: false }
    }

    fn pin(hot_titles: &mut HotTitles, title: TitleId) {
        hot_titles.begin_pin(title, new_pin());
        hot_titles.complete_pin(title);
    }

    #[test]
    fn the_second_viewer_makes_a_title_popular_once() {
        let mut hot_titles = HotTitles::default();
        assert!(!hot_titles.enter(A, false));
        assert!(hot_titles.enter(A, false));
        hot_titles.begin_pin(A, new_pin());
        assert!(!hot_titles.is_pinned(A), "it is only being read");
        assert!(!hot_titles.enter(A, false));
        hot_titles.complete_pin(A);
        assert!(hot_titles.is_pinned(A));
    }

    #[test]
    fn a_title_that_somebody_relies_on_is_never_given_up() {
        let mut hot_titles = HotTitles::default();
        pin(&mut hot_titles, A);
        pin(&mut hot_titles, B);
        hot_titles.enter(A, true);
        hot_titles.enter(B, false);
        assert_eq!(hot_titles.least_needed(None), Some(B));
        hot_titles.end_pin(B);
        assert_eq!(hot_titles.least_needed(None), None);
        hot_titles.leave(A, true);
        assert_eq!(hot_titles.least_needed(None), Some(A));
    }

    #[test]
    fn of_titles_that_nobody_watches_the_one_used_longest_ago_goes_first() {
        let mut hot_titles = HotTitles::default();
        for title in [B, A] {
            hot_titles.enter(title, false);
            pin(&mut hot_titles, title);
            hot_titles.leave(title, false);
        }
        assert_eq!(hot_titles.least_needed(None), Some(B));
        // For a stream of that one, the other one goes.
        assert_eq!(hot_titles.least_needed(Some(B)), Some(A));
        hot_titles.end_pin(B);
        assert_eq!(hot_titles.least_needed(Some(A)), None);
        hot_titles.end_pin(A);
        assert_eq!(hot_titles.pinned(), 0);
        assert!(hot_titles.titles.is_empty());
    }
}
