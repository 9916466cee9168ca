//! The indexes of requested titles: read from beside the title, or made if there is none.
//!
//! Promise: at most one index of a long title and one of a short title are made at a time, each in
//! a quarter of a reader's time; short titles never wait for long ones. At most [`COMING_MAX`]
//! indexes wait or are being made. The memory is bounded: the least recently used index is evicted
//! first. A request waits for an index at most [`PATIENCE`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::Stat;
use tactus_core::path::RequestPath;
use tactus_core::ts::{Index, IndexFault};
use tactus_core::units::{Bytes, MIB};
use tactus_engine::message::{TitleId, VolumeId};
use tactus_media::index::{self, IndexError};
use tokio::sync::{Semaphore, mpsc, watch};

use super::volume::{OpenObject, WaitPolicy};
use super::{Catalogue, OpenFault, OpenTitle, media_type};
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

/// A title that is to be indexed in the background.
#[derive(Debug)]
pub struct Unindexed {
    /// Its disk.
    pub volume: VolumeId,
    /// Its name there.
    pub name: String,
    /// The version that was requested, if it was.
    pub title: Option<TitleId>,
}

#[derive(Debug)]
pub(super) struct Indexes {
    known: Mutex<IndexCache>,
    /// The turns of long titles and of short ones.
    long: Arc<Semaphore>,
    short: Arc<Semaphore>,
    /// Titles that were requested without an index.
    want: mpsc::Sender<Unindexed>,
    wanted: Mutex<Option<mpsc::Receiver<Unindexed>>>,
}

#[derive(Debug, Default)]
struct IndexCache {
    /// In order of use; the most recently used is last.
    titles: VecDeque<(TitleId, IndexState)>,
    size: usize,
    coming: HashMap<TitleId, watch::Receiver<()>>,
    /// Titles that were queued for an index.
    queued: HashSet<TitleId>,
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
        let (want, wanted) = mpsc::channel(COMING_MAX);
        let wanted = Mutex::new(Some(wanted));
        Self { known: Mutex::default(), long: turn(), short: turn(), want, wanted }
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

    /// Queues a title for an index, once. A full queue is tried again at the next request.
    fn want(&self, id: TitleId, volume: VolumeId, name: &str) {
        let mut known = self.lock();
        if known.queued.len() >= KNOWN_MAX {
            known.queued.clear();
        }
        let unindexed = Unindexed { volume, name: name.to_owned(), title: Some(id) };
        if !known.queued.contains(&id) && self.want.try_send(unindexed).is_ok() {
            known.queued.insert(id);
        }
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

    /// The index of the title at `path` if it is in memory or stored, or the title is short. A long
    /// title without an index is queued for one.
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
        let kept = self.volumes[volume].lookups.run(look).await.ok()?;
        let Some(kept) = kept.map(Arc::new) else {
            self.indexes.want(id, self.volumes[volume].id, name);
            return None;
        };
        self.indexes.tell(id, Some(IndexState::Ready(Arc::clone(&kept))));
        Some(kept)
    }

    /// The titles that were requested without an index, for who makes indexes in the background.
    /// Only the first call gets them.
    pub fn wanted_indexes(&self) -> Option<mpsc::Receiver<Unindexed>> {
        self.indexes.wanted.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The title `name` of a volume with its status, if it exists and has no index yet. May block.
    pub fn unindexed(&self, volume: VolumeId, name: &str) -> Option<(Arc<OpenTitle>, Stat)> {
        let at = &self.volumes[usize::from(volume.0)];
        let OpenObject::File { file, .. } = at.open_beneath(name, WaitPolicy::AsNeeded).ok()?
        else {
            return None;
        };
        let stat = rustix::fs::fstat(&file).ok()?;
        let len = u64::try_from(stat.st_size).ok().filter(|&len| len > 0)?;
        if index::kept(at.root(), &stat).is_some() {
            return None;
        }
        Some((self.unnamed(volume, &file, Bytes(len)).ok()?, stat))
    }

    /// Stores the index of a title whose status was `stat`, unless the title has changed meanwhile,
    /// and keeps it in memory if a version was requested. May block.
    pub fn keep_index(&self, title: &OpenTitle, wanted: Option<TitleId>, stat: &Stat, made: Index) {
        let now = rustix::fs::fstat(&title.file);
        if !now.is_ok_and(|now| index::is_same(&now, stat)) {
            return;
        }
        let root = self.volumes[usize::from(title.volume.0)].root();
        if let Err(error) = index::keep(root.as_fd(), stat, &made) {
            tracing::debug!(%error, "an index cannot be kept");
        }
        if let Some(id) = wanted {
            self.indexes.tell(id, Some(IndexState::Ready(Arc::new(made))));
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
                    if let Err(error) = index::keep(root.as_fd(), &stat, &index) {
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

    /// The stored index of a title. May block.
    fn kept_index(&self, volume: usize, name: &str, id: TitleId) -> Option<Index> {
        let file = self.open_version(volume, name, id)?;
        let stat = rustix::fs::fstat(&file).ok()?;
        index::kept(self.volumes[volume].root(), &stat)
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
}
