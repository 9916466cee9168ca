//! Finds the media facts of titles before the titles are requested: for all volumes at the start,
//! and for new titles when a directory is listed.
//!
//! Promise: titles are inspected one at a time, in a quarter of a reader's time, on a thread of its
//! own, so that no stream and no request waits for it. The results are bounded in number, and
//! belong to one version of a file. Until a title is inspected, it has no rate in listings.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, Dir, FileType};
use tactus_media::MediaFacts;

use super::known_titles::TitleKey;
use super::volume::{OpenObject, WaitPolicy};
use super::{Catalogue, Entry, EntryKind, media_type, shown};

/// Titles whose facts are stored: 10 MB.
const TITLES_MAX: usize = 65_536;
/// Titles that may be queued, for example those of one large directory.
const WANTED_MAX: usize = 4096;
/// Directories that may be queued in the walk at the start.
const DIRECTORIES_MAX: usize = 65_536;
/// Pause after an inspection, in multiples of its duration.
const REST: u32 = 3;
/// Longest of these pauses.
const REST_MAX: Duration = Duration::from_secs(1);
/// The interval at which the thread checks whether the catalogue was dropped.
const IDLE: Duration = Duration::from_secs(1);

/// The results, and the queue.
#[derive(Default, Debug)]
pub(super) struct Survey {
    inner: Mutex<Inner>,
    wake: Condvar,
}

#[derive(Default, Debug)]
struct Inner {
    facts: HashMap<TitleKey, Option<MediaFacts>>,
    /// In order of insertion; the first is evicted next.
    order: VecDeque<TitleKey>,
    /// Queued titles, by volume and name, without duplicates.
    queued: VecDeque<(usize, String)>,
    waiting: HashSet<(usize, String)>,
}

impl Survey {
    /// The facts of a version: outer none when it was not inspected yet.
    pub(super) fn known(&self, version: &TitleKey) -> Option<Option<MediaFacts>> {
        self.lock().facts.get(version).copied()
    }

    /// Stores a result.
    pub(super) fn store(&self, version: TitleKey, facts: Option<MediaFacts>) {
        let mut inner = self.lock();
        if inner.facts.insert(version, facts).is_none() {
            inner.order.push_back(version);
        }
        while inner.order.len() > TITLES_MAX {
            let Some(oldest) = inner.order.pop_front() else { break };
            inner.facts.remove(&oldest);
        }
    }

    /// Queues a title, unless the queue is full.
    pub(super) fn queue(&self, volume: usize, name: String) {
        let mut inner = self.lock();
        if inner.queued.len() < WANTED_MAX && inner.waiting.insert((volume, name.clone())) {
            inner.queued.push_back((volume, name));
            self.wake.notify_one();
        }
    }

    fn take(&self) -> Option<(usize, String)> {
        let mut inner = self.lock();
        let next = inner.queued.pop_front()?;
        inner.waiting.remove(&next);
        Some(next)
    }

    fn wait(&self) {
        let inner = self.lock();
        if inner.queued.is_empty() {
            drop(self.wake.wait_timeout(inner, IDLE));
        }
    }

    /// Each change is atomic, so the table stays valid after a panic of another thread.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Catalogue {
    /// Starts the thread: it inspects all stored titles, and then queued ones, until the catalogue
    /// is dropped.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn begin_survey(self: &Arc<Self>) -> std::io::Result<()> {
        let (survey, catalogue) = (Arc::clone(&self.survey), Arc::downgrade(self));
        let work = move || run(&survey, &catalogue);
        std::thread::Builder::new().name("survey".into()).spawn(work).map(drop)
    }

    /// Queues a title that has just been stored.
    pub fn queue_inspection(&self, volume: usize, name: &str) {
        if is_media(name) {
            self.survey.queue(volume, name.to_owned());
        }
    }

    /// Queues a title of a listing whose version is unknown.
    pub(super) fn queue_entry(&self, volume: usize, directory: &str, entry: &Entry) {
        if entry.kind != EntryKind::Directory && is_media(&entry.name) {
            self.survey.queue(volume, joined(directory, &entry.name));
        }
    }

    /// Inspects one title. May block.
    fn look_at(&self, volume: usize, name: &str) {
        let Ok(OpenObject::File { file, version }) =
            self.volumes[volume].open_beneath(name, WaitPolicy::AsNeeded)
        else {
            return;
        };
        self.queue_unindexed(volume, name, &file);
        let version = (version, media_type::of(name));
        if self.survey.known(&version).is_some() {
            return;
        }
        // Read-ahead would read megabytes around a few pages, and the ledger does not count these
        // reads. A file system without this advice only reads more.
        rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap_or_default();
        let begun = Instant::now();
        let facts = (self.rules.probe)(&File::from(file), name);
        self.survey.store(version, facts);
        std::thread::sleep((begun.elapsed() * REST).min(REST_MAX));
    }

    /// The directories and titles in one directory. May block.
    fn entries_of(&self, volume: usize, directory: &str) -> Option<(Vec<String>, Vec<String>)> {
        let opened = self.volumes[volume].open_beneath(directory, WaitPolicy::AsNeeded);
        let Ok(OpenObject::Directory { handle }) = opened else { return None };
        let (mut directories, mut titles) = (Vec::new(), Vec::new());
        for entry in Dir::read_from(&handle).ok()? {
            let Ok(entry) = entry else { break };
            let Some(name) = shown(entry.file_name()) else { continue };
            let path = joined(directory, &name);
            match entry.file_type() {
                FileType::Directory => directories.push(path),
                // Some file systems report no type; opening the file determines it.
                FileType::RegularFile | FileType::Unknown if is_media(&name) => titles.push(path),
                _ => {}
            }
            if titles.len() >= TITLES_MAX {
                break;
            }
        }
        Some((directories, titles))
    }
}

/// Walks through all volumes, with queued titles first; then handles queued titles only.
fn run(survey: &Survey, catalogue: &Weak<Catalogue>) {
    let Some(volumes) = catalogue.upgrade().map(|catalogue| catalogue.volumes.len()) else {
        return;
    };
    let mut directories: Vec<_> = (0..volumes).rev().map(|at| (at, String::new())).collect();
    let mut titles: Vec<(usize, String)> = Vec::new();
    loop {
        let Some(catalogue) = catalogue.upgrade() else { return };
        if let Some((volume, name)) = survey.take() {
            catalogue.look_at(volume, &name);
        } else if let Some((volume, name)) = titles.pop() {
            catalogue.look_at(volume, &name);
        } else if let Some((volume, directory)) = directories.pop() {
            let Some((more, found)) = catalogue.entries_of(volume, &directory) else { continue };
            let room = DIRECTORIES_MAX.saturating_sub(directories.len());
            directories.extend(more.into_iter().take(room).map(|path| (volume, path)));
            titles.extend(found.into_iter().map(|path| (volume, path)));
            // A library larger than the table is inspected when its directories are listed.
            if survey.lock().order.len() >= TITLES_MAX {
                (directories, titles) = (Vec::new(), Vec::new());
            }
        } else {
            drop(catalogue);
            survey.wait();
        }
    }
}

/// Whether a name is one of a video or audio file.
fn is_media(name: &str) -> bool {
    let media_type = media_type::of(name);
    media_type.starts_with("video/") || media_type.starts_with("audio/")
}

fn joined(directory: &str, name: &str) -> String {
    match directory.trim_matches('/') {
        "" => name.to_owned(),
        directory => format!("{directory}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{CatalogueRules, FileVersion, ListingScope, PathObject};
    use tactus_core::path::RequestPath;
    use tactus_core::units::{Nanos, SECOND};

    fn listed(catalogue: &Arc<Catalogue>, path: &str) -> Vec<(String, Option<Nanos>)> {
        let path = RequestPath::parse(path.as_bytes()).unwrap();
        let Ok(PathObject::Directory(directory)) = catalogue.find_blocking(&path) else { panic!() };
        let mut walk = catalogue.scroll(directory, ListingScope::Shown, None);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let entries = runtime.block_on(walk.next(1_000)).unwrap();
        let title = |entry: &crate::catalogue::Entry| match entry.kind {
            EntryKind::Title { own_rate: Some(_), duration, .. } => duration,
            _ => None,
        };
        entries.iter().map(|entry| (entry.name.clone(), title(entry))).collect()
    }

    /// Waits at most half a minute; usually it takes milliseconds.
    fn until(mut done: impl FnMut() -> bool) {
        for _ in 0..6000 {
            if done() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("not found in half a minute");
    }

    #[test]
    fn n01_rates_and_lengths_are_listed_before_a_title_was_asked_for_and_after_it_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        let lasting = |seconds| SECOND.times(seconds);
        tactus_media::sample::write_ts(&dir.path().join("a/b/x.ts"), lasting(4)).unwrap();
        tactus_media::sample::write_mp4(&dir.path().join("y.mp4"), lasting(8)).unwrap();
        std::fs::write(dir.path().join("notes.txt"), "none").unwrap();
        let rules = CatalogueRules { probe: tactus_media::probe::probe, ..Default::default() };
        let catalogue = Arc::new(Catalogue::new(dir.path(), rules).unwrap());
        catalogue.begin_survey().unwrap();
        until(|| listed(&catalogue, "/a/b/")[0].1.is_some());
        until(|| listed(&catalogue, "/").iter().any(|(_, duration)| duration.is_some()));
        assert!(listed(&catalogue, "/").contains(&("notes.txt".into(), None)));
        let before = listed(&catalogue, "/a/b/")[0].1;
        // Another program replaces the title: the next listings queue it.
        tactus_media::sample::write_ts(&dir.path().join("a/b/x.ts"), lasting(12)).unwrap();
        until(|| listed(&catalogue, "/a/b/")[0].1.is_some_and(|now| Some(now) != before));
    }

    #[test]
    fn n01_the_stored_facts_are_bounded() {
        let survey = Survey::default();
        let version = |inode| {
            let len = tactus_core::units::Bytes(1);
            let times = ((0, 0), (0, 0));
            (
                FileVersion { device: 1, inode, len, modified: times.0, changed: times.1 },
                "video/mp4",
            )
        };
        for inode in 0..TITLES_MAX as u64 + 10 {
            survey.store(version(inode), None);
            survey.queue(0, inode.to_string());
        }
        assert_eq!(survey.known(&version(5)), None);
        assert_eq!(survey.known(&version(TITLES_MAX as u64)), Some(None));
        let inner = survey.lock();
        assert_eq!((inner.facts.len(), inner.queued.len()), (TITLES_MAX, WANTED_MAX));
    }
}
