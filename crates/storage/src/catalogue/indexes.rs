//! The indexes of requested titles: read from beside the title, or made if there is none.
//!
//! Promise: at most one index of a long title and one of a short title are made at a time, each in
//! a quarter of a reader's time; short titles never wait for long ones. At most [`COMING_MAX`]
//! indexes wait or are being made. The memory is bounded: the least recently used index is evicted
//! first. A request waits for an index at most [`PATIENCE`].

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::Stat;
use tactus_core::path::RequestPath;
use tactus_core::smoothing::Consumption;
use tactus_core::ts::{Index, IndexFault};
use tactus_core::units::{Bytes, MIB};
use tactus_engine::message::{TitleId, VolumeId};
use tactus_media::MediaKind;
use tactus_media::index::{self, IndexError, StoredIndex};
use tokio::sync::{Semaphore, watch};

use super::index_queue::{IndexOutcome, IndexProgress, IndexQueue, Unindexed};
use super::volume::{OpenObject, WaitPolicy};
use super::{Catalogue, FileVersion, OpenFault, OpenTitle, media_type};
use crate::warnings;

/// The index of a title, as far as it is known.
#[derive(Clone, Debug)]
pub enum IndexState {
    /// The complete index.
    Ready(Arc<Index>),
    /// The title has no index, for this reason.
    Never(IndexFault),
    /// The index is being made.
    Pending,
}

#[derive(Debug)]
pub(super) struct Indexes {
    known: Mutex<IndexCache>,
    /// The turns of long titles and of short ones.
    long: Arc<Semaphore>,
    short: Arc<Semaphore>,
    /// Titles that are to be indexed in the background.
    pub(super) queue: IndexQueue,
}

#[derive(Debug, Default)]
struct IndexCache {
    /// In order of use; the most recently used is last.
    titles: VecDeque<(TitleId, IndexState)>,
    size: usize,
    coming: HashMap<TitleId, watch::Receiver<()>>,
}

enum Lookup {
    Known(IndexState),
    Pending(watch::Receiver<()>),
    New(watch::Sender<()>, watch::Receiver<()>),
    Full,
}

/// Memory for indexes: thousands of ordinary ones, or eight of the largest.
const SIZE_MAX: usize = 64 * MIB as usize;
/// Most indexes in memory, however small.
const KNOWN_MAX: usize = 4096;
/// Most titles whose indexes are being made or wait for it.
const COMING_MAX: usize = 64;
/// How long a request waits for an index. Stored indexes are read and short titles are indexed by
/// then.
const PATIENCE: Duration = Duration::from_secs(2);
/// Titles from this length on count as long. The index of a shorter one takes half a second on a
/// disk that reads 60 MB/s, rests included.
pub const LONG: Bytes = Bytes(8 * MIB);
/// The rest after each read while an index is made, in multiples of the read's duration.
const REST: u32 = 3;

impl Default for Indexes {
    fn default() -> Self {
        let turn = || Arc::new(Semaphore::new(1));
        let (long, short) = (turn(), turn());
        Self { known: Mutex::default(), long, short, queue: IndexQueue::default() }
    }
}

impl Indexes {
    fn lock(&self) -> MutexGuard<'_, IndexCache> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, id: TitleId) -> Lookup {
        let mut known = self.lock();
        if let Some(found) = known.get(id) {
            return Lookup::Known(found);
        }
        if let Some(coming) = known.coming.get(&id) {
            return Lookup::Pending(coming.clone());
        }
        if known.coming.len() == COMING_MAX {
            return Lookup::Full;
        }
        let (tell, hear) = watch::channel(());
        known.coming.insert(id, hear.clone());
        Lookup::New(tell, hear)
    }

    /// The turn for a title of `len` bytes. An hour's film may take minutes, and short titles do
    /// not wait for it.
    fn turn(&self, len: Bytes) -> Arc<Semaphore> {
        Arc::clone(if len < LONG { &self.short } else { &self.long })
    }

    /// Stores a result; none if the index could not be determined.
    fn tell(&self, id: TitleId, found: Option<IndexState>) {
        let mut known = self.lock();
        known.coming.remove(&id);
        let Some(found) = found else { return };
        if let Some(at) = known.titles.iter().position(|(known, _)| *known == id)
            && let Some((_, before)) = known.titles.remove(at)
        {
            known.size -= size(&before);
        }
        known.size += size(&found);
        known.titles.push_back((id, found));
        while known.titles.len() > KNOWN_MAX || known.size > SIZE_MAX {
            let Some((_, gone)) = known.titles.pop_front() else { break };
            known.size -= size(&gone);
        }
    }
}

impl IndexCache {
    fn get(&mut self, id: TitleId) -> Option<IndexState> {
        let at = self.titles.iter().position(|(known, _)| *known == id)?;
        let found = self.titles.remove(at)?;
        let indexed = found.1.clone();
        self.titles.push_back(found);
        Some(indexed)
    }
}

fn size(indexed: &IndexState) -> usize {
    match indexed {
        IndexState::Ready(index) => index.size(),
        IndexState::Never(_) | IndexState::Pending => 0,
    }
}

impl Catalogue {
    /// The index of the title at `path`, as far as it is known. If it is unknown, starts to make it
    /// and waits for at most `PATIENCE`.
    ///
    /// # Errors
    /// When too many indexes are being made, or the volume fails.
    pub async fn index(
        self: &Arc<Self>,
        title: &OpenTitle,
        path: &RequestPath,
    ) -> Result<IndexState, OpenFault> {
        if title.following.is_some() {
            return Ok(IndexState::Pending);
        }
        let mut coming = match self.indexes.look(title.id) {
            Lookup::Known(found) => return Ok(found),
            Lookup::Full => return Err(OpenFault::Busy),
            Lookup::Pending(coming) => coming,
            Lookup::New(tell, coming) => {
                let (index, name) = self.volume_of(path)?.ok_or(OpenFault::NotFound)?;
                let (this, name, id) = (Arc::clone(self), name.to_owned(), title.id);
                let turn = self.indexes.turn(title.len);
                tokio::spawn(async move {
                    let found = this.find_index(index, name, id, turn).await;
                    this.indexes.tell(id, found);
                    drop(tell);
                });
                coming
            }
        };
        // The channel carries no values: it closes when the result is stored.
        let ended =
            tokio::time::timeout(PATIENCE, async { while coming.changed().await.is_ok() {} });
        let ended = ended.await.is_ok();
        match self.indexes.lock().get(title.id) {
            Some(found) => Ok(found),
            None if ended => Err(OpenFault::Busy),
            None => Ok(IndexState::Pending),
        }
    }

    /// The index of the title at `path` if it is in memory or stored, or the title is short.
    pub async fn index_at_hand(
        self: &Arc<Self>,
        title: &OpenTitle,
        path: &RequestPath,
    ) -> Option<Arc<Index>> {
        let known = self.indexes.lock().get(title.id);
        match known {
            Some(IndexState::Ready(index)) => return Some(index),
            Some(IndexState::Never(_)) => return None,
            Some(IndexState::Pending) | None => {}
        }
        if title.len < LONG {
            return match self.index(title, path).await {
                Ok(IndexState::Ready(index)) => Some(index),
                Ok(IndexState::Never(_) | IndexState::Pending) | Err(_) => None,
            };
        }
        let (volume, name) = self.volume_of(path).ok()??;
        let (this, wanted, id) = (Arc::clone(self), name.to_owned(), title.id);
        let look = move || this.kept_index(volume, &wanted, id);
        let kept = Arc::new(self.volumes[volume].lookups.run(look).await.ok()??);
        self.indexes.tell(id, Some(IndexState::Ready(Arc::clone(&kept))));
        Some(kept)
    }

    /// Whether it is known that a version can have no index.
    pub(super) fn can_have_no_index(&self, stat: &Stat) -> bool {
        self.indexes.queue.is_never(&FileVersion::of(stat))
    }

    /// Queues a title for an index.
    pub(super) fn want_index(&self, unindexed: Unindexed) {
        self.indexes.queue.push(unindexed);
    }

    /// Queues a title of a volume for an index: it has been stored, or has changed.
    pub fn queue_index(&self, volume: VolumeId, name: &str) {
        self.indexes.queue.push(Unindexed { volume, name: name.to_owned(), title: None });
    }

    /// The next title that is to be indexed in the background; waits for one. For one caller.
    pub async fn next_unindexed(&self) -> Unindexed {
        self.indexes.queue.next().await
    }

    /// How many of the bytes of the current title have been read.
    pub fn handle_index_read(&self, title: &Unindexed, read: Bytes, len: Bytes) {
        self.indexes.queue.handle_read(title, read, len);
    }

    /// Whether the work on the current title is to be interrupted for a requested one.
    pub fn is_index_outranked(&self, current: &Unindexed) -> bool {
        self.indexes.queue.is_outranked(current)
    }

    /// The work on the current title has been interrupted, and goes on after the requested titles.
    pub fn handle_index_interruption(&self, title: Unindexed) {
        self.indexes.queue.handle_interruption(title);
    }

    /// The work on the current title has ended.
    pub fn handle_index_end(&self, outcome: IndexOutcome) {
        self.indexes.queue.handle_end(outcome);
    }

    /// The work on a title that a request has waited for has ended.
    pub fn handle_preview_end(&self, outcome: IndexOutcome) {
        self.indexes.queue.count(outcome);
    }

    /// Waits until the title at `path` has an index, or its consumption in the place of one.
    pub async fn index_made(self: &Arc<Self>, title: &Arc<OpenTitle>, path: &RequestPath) {
        let mut ends = self.indexes.queue.ends();
        let Ok(Some((volume, _))) = self.volume_of(path) else { return };
        loop {
            let is_in_memory = self.consumptions.has(title.id)
                || matches!(self.indexes.lock().get(title.id), Some(IndexState::Ready(_)));
            let (this, same) = (Arc::clone(self), Arc::clone(title));
            let look = move || {
                let stat = rustix::fs::fstat(&same.file);
                stat.is_ok_and(|stat| index::is_kept(this.volumes[volume].root(), &stat))
            };
            if is_in_memory || self.volumes[volume].lookups.run(look).await.unwrap_or(false) {
                return;
            }
            if ends.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// How far the making of indexes in the background is.
    pub fn index_progress(&self) -> IndexProgress {
        self.indexes.queue.progress()
    }

    /// Whether a file of a volume wants an index, as far as its status and name tell.
    pub(super) fn wants_index(&self, volume: usize, name: &str, stat: &Stat) -> bool {
        let volume = &self.volumes[volume];
        u64::try_from(stat.st_size).is_ok_and(|len| len >= LONG.0)
            && media_type::is_indexed(name)
            && index::has_room(volume.root())
            && !index::is_kept(volume.root(), stat)
            && !self.can_have_no_index(stat)
    }

    /// Queues a title of a volume if it wants an index. May block.
    pub(super) fn queue_unindexed(&self, volume: usize, name: &str, file: &OwnedFd) {
        if rustix::fs::fstat(file).is_ok_and(|stat| self.wants_index(volume, name, &stat)) {
            self.queue_index(self.volumes[volume].id, name);
        }
    }

    /// The title `name` of a volume with its status and container, if it exists and has no index of
    /// its present content yet. May block.
    pub fn unindexed(
        &self,
        volume: VolumeId,
        name: &str,
    ) -> Option<(Arc<OpenTitle>, Stat, Option<MediaKind>)> {
        let at = &self.volumes[usize::from(volume.0)];
        let OpenObject::File { file, .. } = at.open_beneath(name, WaitPolicy::AsNeeded).ok()?
        else {
            return None;
        };
        std::thread::sleep(index::until_settled(&rustix::fs::fstat(&file).ok()?));
        let stat = rustix::fs::fstat(&file).ok()?;
        let len = u64::try_from(stat.st_size).ok().filter(|&len| len > 0)?;
        if index::is_kept(at.root(), &stat) {
            return None;
        }
        let title = self.unnamed(volume, &file, Bytes(len)).ok()?;
        // A title's descriptor is for direct reads of whole blocks.
        let facts = (self.rules.probe)(&File::from(tactus_sys::file::reopen(&file).ok()?), name);
        Some((title, stat, facts.map(|facts| facts.kind)))
    }

    /// Stores the index of a title whose status was `stat`, unless the title has changed meanwhile,
    /// and keeps it in memory if a version was requested. May block.
    pub fn keep_index(
        &self,
        title: &OpenTitle,
        wanted: Option<TitleId>,
        stat: &Stat,
        made: Index,
    ) -> IndexOutcome {
        let now = rustix::fs::fstat(&title.file);
        if !now.is_ok_and(|now| index::is_same(&now, stat)) {
            return IndexOutcome::Failed;
        }
        let root = self.volumes[usize::from(title.volume.0)].root();
        // The title's own descriptor is for direct reads of whole blocks.
        let file = tactus_sys::file::reopen(&title.file).map(File::from);
        let kept = file.and_then(|file| index::keep(root.as_fd(), stat, &file, &made));
        let is_kept = kept.unwrap_or_else(|error| {
            tracing::debug!(%error, "an index cannot be kept");
            false
        });
        if let Some(id) = wanted {
            self.indexes.tell(id, Some(IndexState::Ready(Arc::new(made))));
        }
        match is_kept {
            true => IndexOutcome::Made,
            false => IndexOutcome::Never(FileVersion::of(stat)),
        }
    }

    /// Stores the consumption of a title in the same way; `None` if it can have none. May block.
    pub fn keep_consumption(
        &self,
        title: &OpenTitle,
        wanted: Option<TitleId>,
        stat: &Stat,
        made: Option<Consumption>,
    ) -> IndexOutcome {
        let now = rustix::fs::fstat(&title.file);
        if !now.is_ok_and(|now| index::is_same(&now, stat)) {
            return IndexOutcome::Failed;
        }
        let root = self.volumes[usize::from(title.volume.0)].root();
        let keep = |made: &Consumption| {
            // The title's own descriptor is for direct reads of whole blocks.
            let file = tactus_sys::file::reopen(&title.file).map(File::from);
            let kept =
                file.and_then(|file| index::keep_consumption(root.as_fd(), stat, &file, made));
            kept.unwrap_or_else(|error| {
                tracing::debug!(%error, "a consumption cannot be kept");
                false
            })
        };
        let is_kept = made.as_ref().is_some_and(keep);
        if let Some(id) = wanted {
            self.consumptions.insert(id, made.map(Arc::new));
        }
        match is_kept {
            true => IndexOutcome::Made,
            false => IndexOutcome::Never(FileVersion::of(stat)),
        }
    }

    async fn find_index(
        self: &Arc<Self>,
        volume: usize,
        name: String,
        id: TitleId,
        turn: Arc<Semaphore>,
    ) -> Option<IndexState> {
        let (this, wanted) = (Arc::clone(self), name.clone());
        let look = move || this.kept_index(volume, &wanted, id);
        if let Some(kept) = self.volumes[volume].lookups.run(look).await.ok()? {
            return Some(IndexState::Ready(Arc::new(kept)));
        }
        let turn = turn.acquire_owned().await.ok()?;
        let this = Arc::clone(self);
        let make = move || {
            let file = File::from(this.open_version(volume, &name, id)?);
            let made = index::make(&file, |_, took| std::thread::sleep(took * REST));
            let found = match made {
                Ok((index, stat)) => {
                    let root = this.volumes[volume].root();
                    if let Err(error) = index::keep(root.as_fd(), &stat, &file, &index) {
                        tracing::debug!(title = name, %error, "an index is in memory only");
                    }
                    Some(IndexState::Ready(Arc::new(index)))
                }
                Err(IndexError::Fault(fault)) => Some(IndexState::Never(fault)),
                Err(error) => {
                    if let Some(left_out) = warnings::poll("no index", &name) {
                        tracing::warn!(title = name, left_out, "a title has no index: {error}");
                    }
                    None
                }
            };
            drop(turn);
            found
        };
        tokio::task::spawn_blocking(make).await.ok()?
    }

    /// The stored index of a title. A title whose content only seems to be the same is queued to be
    /// read again. May block.
    fn kept_index(&self, volume: usize, name: &str, id: TitleId) -> Option<Index> {
        let file = File::from(self.open_version(volume, name, id)?);
        let stat = rustix::fs::fstat(&file).ok()?;
        let stored = index::kept(self.volumes[volume].root(), &stat, &file)?;
        if matches!(stored, StoredIndex::Sampled(_)) {
            let volume = self.volumes[volume].id;
            self.want_index(Unindexed { volume, name: name.to_owned(), title: Some(id) });
        }
        Some(stored.into_index())
    }

    /// The title's file for reads through the page cache; none if another file has the name now.
    pub(super) fn open_version(&self, volume: usize, name: &str, id: TitleId) -> Option<OwnedFd> {
        match self.volumes[volume].open_beneath(name, WaitPolicy::AsNeeded).ok()? {
            OpenObject::File { file, version } => {
                let known = (version, media_type::of(name));
                let same = self.known.get(&known).is_some_and(|title| title.id == id);
                same.then_some(file)
            }
            OpenObject::Directory { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{CatalogueRules, PathObject};
    use tactus_core::units::SECOND;
    use tactus_media::sample;

    #[tokio::test]
    async fn a_short_title_waits_for_no_long_one() {
        let directory = tempfile::tempdir().unwrap();
        let long = std::fs::File::create(directory.path().join("long.ts")).unwrap();
        long.set_len(LONG.0).unwrap();
        sample::write_ts(&directory.path().join("short.ts"), SECOND.times(3)).unwrap();
        let rules = CatalogueRules::default();
        let catalogue = Arc::new(Catalogue::new(directory.path(), rules).unwrap());
        let of = |path: &'static str| {
            let catalogue = Arc::clone(&catalogue);
            async move {
                let path = RequestPath::parse(path.as_bytes()).unwrap();
                let Ok(PathObject::Title(title)) = catalogue.find(&path).await else {
                    panic!("a title")
                };
                catalogue.index(&title, &path).await
            }
        };
        // A long title is being indexed.
        let turn = Arc::clone(&catalogue.indexes.long).acquire_owned().await.unwrap();
        let waits = tokio::spawn(of("/long.ts"));
        assert!(matches!(of("/short.ts").await, Ok(IndexState::Ready(_))));
        assert!(matches!(waits.await.unwrap(), Ok(IndexState::Pending)));
        drop(turn);
        assert!(matches!(of("/long.ts").await, Ok(IndexState::Never(_))));
    }

    /// `cat from > to; touch -r to`: other content in the same file, with its old times.
    fn rewrite(path: &std::path::Path, content: &[u8]) {
        let before = rustix::fs::stat(path).unwrap();
        std::fs::write(path, content).unwrap();
        let time = |tv_sec, nanos| rustix::fs::Timespec { tv_sec, tv_nsec: nanos as _ };
        let times = rustix::fs::Timestamps {
            last_access: time(before.st_atime, before.st_atime_nsec),
            last_modification: time(before.st_mtime, before.st_mtime_nsec),
        };
        rustix::fs::futimens(File::open(path).unwrap(), &times).unwrap();
        let after = rustix::fs::stat(path).unwrap();
        assert_eq!(
            (after.st_ino, after.st_size, after.st_mtime, after.st_mtime_nsec),
            (before.st_ino, before.st_size, before.st_mtime, before.st_mtime_nsec)
        );
    }

    #[tokio::test]
    async fn r12_other_content_in_the_same_file_with_its_old_times_has_an_index_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(".tactus")).unwrap();
        let path = directory.path().join("f.ts");
        sample::write_ts(&path, SECOND.times(20)).unwrap();
        // One title below the length from which samples are compared, and one beyond it.
        for len in [LONG.0 as usize - 188, LONG.0 as usize] {
            let mut first = std::fs::read(&path).unwrap();
            first.resize(len, 0);
            // The same, from a third of it on.
            let mut second = first[188 * 4000..].to_vec();
            second.resize(len, 0);
            std::fs::write(&path, &first).unwrap();
            let catalogue =
                || Arc::new(Catalogue::new(directory.path(), CatalogueRules::default()).unwrap());
            let index = async |catalogue: Arc<Catalogue>| {
                let path = RequestPath::parse(b"/f.ts").unwrap();
                let Ok(PathObject::Title(title)) = catalogue.find(&path).await else {
                    panic!("a title")
                };
                match catalogue.index(&title, &path).await {
                    Ok(IndexState::Ready(index)) => index,
                    other => panic!("{other:?}"),
                }
            };
            let running = catalogue();
            let before = index(Arc::clone(&running)).await;
            rewrite(&path, &second);
            let own = index::make(&File::open(&path).unwrap(), |_, _| {}).unwrap().0;
            assert_ne!(*before, own);
            assert_eq!(*index(running).await, own, "a server that had the old one");
            assert_eq!(*index(catalogue()).await, own, "a new server");
        }
    }

    #[tokio::test]
    async fn r12_titles_without_an_index_of_their_content_are_found_by_an_inspection() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        sample::write_ts(&path("a.ts"), SECOND.times(10)).unwrap();
        let long = |name: &str| std::fs::File::create(path(name)).unwrap().set_len(LONG.0).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(path("a.ts")).unwrap();
        file.set_len(LONG.0).unwrap();
        long("no_stream.ts");
        long("movie.mp4");
        sample::write_ts(&path("short.ts"), SECOND).unwrap();
        let rules = CatalogueRules::default();
        let catalogue = Arc::new(Catalogue::new(directory.path(), rules).unwrap());
        let inspect = || {
            catalogue.inspect(0, || false);
            catalogue.index_progress().wanted
        };
        assert_eq!(inspect(), 0, "nothing is stored in a foreign directory");
        std::fs::create_dir(path(".tactus")).unwrap();
        assert_eq!(inspect(), 2);
        assert_eq!(inspect(), 2, "each is queued once");
        for _ in 0..2 {
            let next = catalogue.next_unindexed().await;
            let (title, stat, _) = catalogue.unindexed(next.volume, &next.name).unwrap();
            let file = File::from(tactus_sys::file::reopen(&title.file).unwrap());
            let outcome = match index::make(&file, |_, _| {}) {
                Ok((index, _)) => catalogue.keep_index(&title, None, &stat, index),
                Err(_) => IndexOutcome::Never(FileVersion::of(&stat)),
            };
            catalogue.handle_index_end(outcome);
        }
        let progress = catalogue.index_progress();
        assert_eq!((progress.made, progress.without, inspect()), (1, 1, 0));
        let rights = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path("a.ts"), rights).unwrap();
        assert_eq!(inspect(), 1, "it is read again after a change");
    }
}
