//! The recently requested titles; the least recently used one is evicted first.
//!
//! Promise: the limits of number and of memory for checksums hold, except for the title that was
//! requested last. For each version of a file and media type there is at most one title. An evicted
//! title stays open for the streams that hold it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tactus_core::units::Bytes;

use super::{FileVersion, OpenTitle};

/// The key of a remembered title: a version of a file, and the media type that the name implies. A
/// file with two names (hard links) can have two types.
pub(super) type TitleKey = (FileVersion, &'static str);

#[derive(Debug)]
pub(super) struct KnownTitles {
    inner: Mutex<Inner>,
    max: usize,
    /// Memory for their checksums.
    sums_max: u64,
}

#[derive(Default, Debug)]
struct Inner {
    titles: HashMap<TitleKey, (u64, Arc<OpenTitle>)>,
    /// In order of their last use; the first entry is evicted next.
    by_use: BTreeMap<u64, TitleKey>,
    /// Counts uses.
    now: u64,
    /// Memory of the checksums of all titles.
    sums: u64,
}

impl KnownTitles {
    /// Room for `max` titles, at least one, with at most `sums_max` of checksums in total.
    pub(super) fn new(max: usize, sums_max: Bytes) -> Self {
        Self { inner: Mutex::new(Inner::default()), max: max.max(1), sums_max: sums_max.0 }
    }

    pub(super) fn get(&self, known: &TitleKey) -> Option<Arc<OpenTitle>> {
        self.lock().touch(known)
    }

    /// Remembers `title`, or returns the one that another thread has remembered meanwhile.
    pub(super) fn remember(&self, known: TitleKey, title: Arc<OpenTitle>) -> Arc<OpenTitle> {
        let mut inner = self.lock();
        if let Some(remembered) = inner.touch(&known) {
            return remembered;
        }
        inner.sums += title.sums_size();
        while inner.titles.len() >= self.max || inner.sums > self.sums_max {
            let Some((_, oldest)) = inner.by_use.pop_first() else { break };
            let gone = inner.titles.remove(&oldest);
            inner.sums -= gone.map_or(0, |(_, title)| title.sums_size());
        }
        let now = inner.tick();
        inner.by_use.insert(now, known);
        inner.titles.insert(known, (now, Arc::clone(&title)));
        title
    }

    /// All remembered titles.
    pub(super) fn all(&self) -> Vec<(TitleKey, Arc<OpenTitle>)> {
        let inner = self.lock();
        inner.titles.iter().map(|(known, (_, title))| (*known, Arc::clone(title))).collect()
    }

    pub(super) fn forget(&self, known: &TitleKey) {
        let mut inner = self.lock();
        if let Some((used, title)) = inner.titles.remove(known) {
            inner.by_use.remove(&used);
            inner.sums -= title.sums_size();
        }
    }

    /// Forgets all titles of a version.
    pub(super) fn forget_version(&self, version: &FileVersion) {
        let known: Vec<_> = {
            let inner = self.lock();
            inner.titles.keys().filter(|(known, _)| known == version).copied().collect()
        };
        known.iter().for_each(|known| self.forget(known));
    }

    /// A panic of another thread leaves at worst one use uncounted, so the map is still valid.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn touch(&mut self, known: &TitleKey) -> Option<Arc<OpenTitle>> {
        let now = self.tick();
        let (used, title) = self.titles.get_mut(known)?;
        self.by_use.remove(used);
        *used = now;
        let title = Arc::clone(title);
        self.by_use.insert(now, *known);
        Some(title)
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }
}
