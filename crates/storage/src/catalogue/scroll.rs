//! Reads a directory of any size in parts: directories first, then titles, each sorted by name.
//!
//! Promise: it returns only entries that can be requested (no links, devices, other mounts or
//! reserved names), each once; names that no path can express are counted. Names that begin with a
//! dot are served, but listed only for callers with the right to read. Memory is bounded for any
//! size: each pass keeps the next names in order, as many as the limit allows. Between two parts,
//! no thread and no permit is held.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Dir, FileType};
use tactus_core::path::check_name;

use super::listing::{self, Entry};
use super::volume::{Fault, is_reserved};
use super::{
    Catalogue, Detail, Digests, Directory, FileVersion, OpenFault, media_type, path_below, path_of,
};

/// How a directory is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScanOptions {
    /// Memory for names.
    pub(super) names_max: usize,
    /// Include names that begin with a dot.
    pub(super) everything: bool,
    pub(super) detail: Detail,
}

/// A position in the order of a directory: directories precede titles.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    is_title: bool,
    name: String,
}

impl Position {
    /// The position of a listing's link; a directory's link ends with a slash.
    #[must_use]
    pub fn of_link(decoded: &str) -> Self {
        let directory = decoded.strip_suffix('/');
        let name = directory.unwrap_or(decoded).to_owned();
        Self { is_title: directory.is_none(), name }
    }

    /// Memory of the name in a pass, with its overhead.
    fn cost(&self) -> usize {
        self.name.len() + size_of::<Self>() + ALLOCATION
    }

    fn compare(&self, is_title: bool, name: &str) -> Ordering {
        (self.is_title, self.name.as_str()).cmp(&(is_title, name))
    }
}

/// Overhead of an allocation, roughly.
const ALLOCATION: usize = 16;

/// A directory that is being read.
#[derive(Debug)]
pub struct Scroll {
    catalogue: Arc<Catalogue>,
    /// None while a part is read, and after a failure.
    state: Option<Box<State>>,
}

#[derive(Debug)]
struct State {
    directory: Directory,
    reading: ScanOptions,
    /// The next names.
    names: std::vec::IntoIter<Position>,
    /// The end of the last pass.
    after: Option<Position>,
    /// Whether more names follow `names`.
    more: bool,
    /// Number of names that no path can express.
    unlisted: u64,
    has_counted: bool,
}

impl Scroll {
    pub(super) fn new(
        catalogue: &Arc<Catalogue>,
        directory: Directory,
        reading: ScanOptions,
        after: Option<Position>,
    ) -> Self {
        let names = Vec::new().into_iter();
        let (more, unlisted, has_counted) = (true, 0, false);
        let state = State { directory, reading, names, after, more, unlisted, has_counted };
        Self { catalogue: Arc::clone(catalogue), state: Some(Box::new(state)) }
    }

    pub(super) fn set_detail(&mut self, detail: Detail) {
        if let Some(state) = &mut self.state {
            state.reading.detail = detail;
        }
    }

    /// The next entries, at most `most`; none at the end.
    ///
    /// # Errors
    /// When the directory cannot be read; nothing follows then.
    pub async fn next(&mut self, most: usize) -> Result<Vec<Entry>, OpenFault> {
        let mut state = self.state.take().ok_or(OpenFault::Busy)?;
        let catalogue = Arc::clone(&self.catalogue);
        let volume = state.directory.open.as_ref().map(|(index, _)| *index);
        let step = move || {
            let entries = state.step(&catalogue, most)?;
            Ok::<_, OpenFault>((state, entries))
        };
        let (state, entries) = match volume {
            Some(index) => self.catalogue.volumes[index].listings.run(step).await??,
            None => step()?,
        };
        self.state = Some(state);
        Ok(entries)
    }

    /// Whether everything has been read.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.as_ref().is_none_or(|state| state.names.len() == 0 && !state.more)
    }

    /// Number of entries that are not listed, because no path can express their names; known once a
    /// part has been read.
    #[must_use]
    pub fn unlisted(&self) -> u64 {
        self.state.as_ref().map_or(0, |state| state.unlisted)
    }
}

impl State {
    fn step(&mut self, catalogue: &Catalogue, most: usize) -> Result<Vec<Entry>, OpenFault> {
        let mut entries = Vec::new();
        while entries.is_empty() {
            if self.names.len() == 0 {
                if !self.more {
                    break;
                }
                self.pass(catalogue)?;
            }
            let names: Vec<_> = self.names.by_ref().take(most.max(1)).collect();
            if let Some(last) = names.last() {
                self.after = Some(last.clone());
            }
            entries = self.look_at(catalogue, names)?;
        }
        Ok(entries)
    }

    /// The volumes that are mounted in the directory.
    fn mounted<'a>(&self, catalogue: &'a Catalogue) -> Vec<&'a str> {
        let below = |volume: &'a super::volume::Volume| volume.below(&self.directory.path);
        let mut mounted: Vec<_> = catalogue.volumes.iter().filter_map(below).collect();
        mounted.sort_unstable();
        mounted.dedup();
        mounted
    }

    /// Reads all names, and keeps the smallest ones after the current position.
    fn pass(&mut self, catalogue: &Catalogue) -> Result<(), OpenFault> {
        let mounted = self.mounted(catalogue);
        let mut least = SmallestNames::new(self.reading.names_max, self.after.as_ref());
        let mut unlisted = UnlistedNames::default();
        if let Some((_, handle)) = &self.directory.open {
            for found in Dir::read_from(handle).map_err(Fault::Failed)? {
                let found = found.map_err(Fault::Failed)?;
                let raw = found.file_name();
                if matches!(raw.to_bytes(), b"." | b"..") {
                    continue;
                }
                if raw.to_bytes().starts_with(b".") && !self.reading.everything {
                    continue;
                }
                let kind = match found.file_type() {
                    FileType::Unknown => match listing::status(handle, raw) {
                        Ok(status) => FileType::from_raw_mode(u32::from(status.stx_mode)),
                        Err(_) => continue,
                    },
                    kind => kind,
                };
                if !matches!(kind, FileType::Directory | FileType::RegularFile) {
                    continue;
                }
                match raw.to_str() {
                    Ok(name) if is_reserved(name) || mounted.contains(&name) => {}
                    Ok(name) if check_name(name).is_ok() => {
                        least.offer(kind == FileType::RegularFile, name);
                    }
                    _ => unlisted.count(raw.to_bytes()),
                }
            }
            if !self.has_counted {
                unlisted.warn(catalogue, handle);
                self.unlisted = unlisted.count;
                self.has_counted = true;
            }
        }
        mounted.iter().for_each(|name| least.offer(false, name));
        (self.names, self.more) = least.sorted();
        Ok(())
    }

    fn look_at(
        &self,
        catalogue: &Catalogue,
        names: Vec<Position>,
    ) -> Result<Vec<Entry>, OpenFault> {
        let mounted = self.mounted(catalogue);
        let Some((index, handle)) = &self.directory.open else {
            return Ok(names.iter().map(|place| Entry::mounted(&place.name)).collect());
        };
        let root = listing::status(catalogue.volumes[*index].root(), c"").map_err(Fault::Failed)?;
        let below = path_below(&self.directory.path, &catalogue.volumes[*index].mount);
        let mut entries = Vec::with_capacity(names.len());
        for Position { name, .. } in names {
            if mounted.contains(&name.as_str()) {
                entries.push(Entry::mounted(&name));
                continue;
            }
            let Ok(text) = std::ffi::CString::new(name.as_bytes()) else { continue };
            // It was removed or became inaccessible meanwhile.
            let Ok(status) = listing::status(handle.as_fd(), &text) else { continue };
            if status.stx_mnt_id == root.stx_mnt_id {
                let mut is_new = false;
                let media_type = media_type::of(&name);
                let facts = |version: &FileVersion| {
                    let known = catalogue.survey.known(&(*version, media_type));
                    is_new = known.is_none();
                    known.flatten()
                };
                let mut entry = listing::entry(name, &status, facts);
                if is_new && let Some(entry) = &entry {
                    catalogue.queue_entry(*index, below.unwrap_or_default(), entry);
                }
                if self.reading.detail == Detail::Digests
                    && let Some(entry) = &mut entry
                {
                    let version = listing::version(&status);
                    entry.digests = Digests::in_directory(handle, &text, &version);
                }
                entries.extend(entry);
            }
        }
        Ok(entries)
    }
}

/// The smallest positions after a given one, as many as fit.
struct SmallestNames<'a> {
    heap: BinaryHeap<Position>,
    size: usize,
    size_max: usize,
    after: Option<&'a Position>,
    more: bool,
}

impl<'a> SmallestNames<'a> {
    fn new(size_max: usize, after: Option<&'a Position>) -> Self {
        Self { heap: BinaryHeap::new(), size: 0, size_max, after, more: false }
    }

    fn offer(&mut self, is_title: bool, name: &str) {
        if self.after.is_some_and(|after| after.compare(is_title, name).is_ge()) {
            return;
        }
        if self.more && self.heap.peek().is_some_and(|last| last.compare(is_title, name).is_le()) {
            return;
        }
        let place = Position { is_title, name: name.to_owned() };
        self.size += place.cost();
        self.heap.push(place);
        while self.size > self.size_max
            && self.heap.len() > 1
            && let Some(last) = self.heap.pop()
        {
            self.size -= last.cost();
            self.more = true;
        }
    }

    fn sorted(self) -> (std::vec::IntoIter<Position>, bool) {
        (self.heap.into_sorted_vec().into_iter(), self.more)
    }
}

/// Names that no path can express.
#[derive(Default)]
struct UnlistedNames {
    count: u64,
    example: Option<Vec<u8>>,
}

impl UnlistedNames {
    fn count(&mut self, name: &[u8]) {
        self.count += 1;
        self.example.get_or_insert_with(|| name.to_owned());
    }

    /// Warns, at most once a minute for all directories.
    fn warn(&self, catalogue: &Catalogue, directory: &OwnedFd) {
        let Some(example) = &self.example else { return };
        if !catalogue.unlisted.is_due() {
            return;
        }
        let name = example.escape_ascii().to_string();
        tracing::warn!(
            directory = %path_of(directory).display(), count = self.count, name,
            "names are not served, as they are not valid UTF-8 or contain forbidden characters; \
             rename them"
        );
    }
}

/// When the last warning about unlisted names was logged.
#[derive(Debug, Default)]
pub(super) struct LastWarning(Mutex<Option<Instant>>);

impl LastWarning {
    const EVERY: Duration = Duration::from_secs(60);

    fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= Self::EVERY);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}
