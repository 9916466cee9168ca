//! The titles that were asked for lately: the least recently used one goes first.
//!
//! Promise: never more than its bounds, in number and in memory for checksums, but for the title that was
//! asked for last; and at any time at most one title per version of a file. A title that goes stays open
//! for the streams that hold it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tactus_core::units::Bytes;

use super::{FileVersion, OpenTitle};

#[derive(Debug)]
pub(super) struct KnownTitles {
    inner: Mutex<Inner>,
    max: usize,
    /// Memory for their checksums.
    sums_max: u64,
}

#[derive(Default, Debug)]
struct Inner {
    titles: HashMap<FileVersion, (u64, Arc<OpenTitle>)>,
    /// By the time of their last use; the first entry is the next to go.
    by_use: BTreeMap<u64, FileVersion>,
    /// Counts uses.
    now: u64,
    /// Memory that the checksums of all of them take.
    sums: u64,
}

impl KnownTitles {
    /// Room for `max` titles, at least one, with checksums of `sums_max` in all.
    pub(super) fn new(max: usize, sums_max: Bytes) -> Self {
        Self { inner: Mutex::new(Inner::default()), max: max.max(1), sums_max: sums_max.0 }
    }

    pub(super) fn by_version(&self, version: &FileVersion) -> Option<Arc<OpenTitle>> {
        self.lock().touch(version)
    }

    /// Remembers `title`, or gives the one that another thread has remembered meanwhile.
    pub(super) fn remember(&self, version: FileVersion, title: Arc<OpenTitle>) -> Arc<OpenTitle> {
        let mut inner = self.lock();
        if let Some(known) = inner.touch(&version) {
            return known;
        }
        inner.sums += title.sums_size();
        while inner.titles.len() >= self.max || inner.sums > self.sums_max {
            let Some((_, oldest)) = inner.by_use.pop_first() else { break };
            let gone = inner.titles.remove(&oldest);
            inner.sums -= gone.map_or(0, |(_, title)| title.sums_size());
        }
        let now = inner.tick();
        inner.by_use.insert(now, version);
        inner.titles.insert(version, (now, Arc::clone(&title)));
        title
    }

    /// All that are remembered.
    pub(super) fn all(&self) -> Vec<(FileVersion, Arc<OpenTitle>)> {
        let inner = self.lock();
        inner.titles.iter().map(|(version, (_, title))| (*version, Arc::clone(title))).collect()
    }

    pub(super) fn forget(&self, version: &FileVersion) {
        let mut inner = self.lock();
        if let Some((used, title)) = inner.titles.remove(version) {
            inner.by_use.remove(&used);
            inner.sums -= title.sums_size();
        }
    }

    /// A panic elsewhere leaves at worst one use uncounted, so the map is still good.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn touch(&mut self, version: &FileVersion) -> Option<Arc<OpenTitle>> {
        let now = self.tick();
        let (used, title) = self.titles.get_mut(version)?;
        self.by_use.remove(used);
        *used = now;
        let title = Arc::clone(title);
        self.by_use.insert(now, *version);
        Some(title)
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }
}
