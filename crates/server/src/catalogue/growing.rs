//! Titles that are still coming in: how much of each is on stable storage, for those who read it before
//! it is whole.
//!
//! Promise: nobody learns of a byte before it is durable. A title that has a name already is not
//! hidden by one that is on its way to it. Who has begun to read one reads the same file to its end,
//! whatever happens to the name meanwhile. Between a title's coming and its name there is no moment in
//! which it cannot be found.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use tactus_core::units::{BitRate, Bytes, Nanos, WallTime};
use tactus_engine::message::{TitleId, VolumeId};
use tokio::sync::{OnceCell, watch};

use super::{Catalogue, OpenTitle, media_type, volume};
use crate::media::{MediaFacts, MediaKind};

/// How far a growing title has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermark {
    /// What of it is on stable storage.
    pub durable: Bytes,
    /// Whether more will come.
    pub state: Growth,
}

/// What becomes of a growing title.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// More comes.
    Growing,
    /// It is whole, and has its name.
    Whole,
    /// It will never be whole.
    GivenUp,
}

/// What a reader of a growing title knows beside the title.
#[derive(Clone, Debug)]
pub struct Follower {
    /// Its path in its volume: its file may have another name, or none.
    pub path: String,
    /// Its length at the end, when it is known.
    pub declared: Option<Bytes>,
    watermark: watch::Receiver<Watermark>,
}

impl Follower {
    /// How far it has come.
    pub fn watermark(&self) -> Watermark {
        *self.watermark.borrow()
    }

    /// The same; [`Self::next`] waits for more than that.
    pub fn look(&mut self) -> Watermark {
        *self.watermark.borrow_and_update()
    }

    /// Waits until it has come further than was last seen here; one that nobody writes any more has
    /// been given up.
    pub async fn next(&mut self) -> Watermark {
        if self.watermark.changed().await.is_err() {
            let last = self.watermark();
            return match last.state {
                Growth::Growing => Watermark { state: Growth::GivenUp, ..last },
                _ => last,
            };
        }
        *self.watermark.borrow_and_update()
    }
}

/// What is announced of a title that begins to come in.
#[derive(Debug)]
pub struct GrowingTitleSpec {
    /// The disk it comes to.
    pub volume: VolumeId,
    /// Its path there.
    pub path: String,
    /// Its file, open for reading, with a place of its own.
    pub file: OwnedFd,
    /// Its length, when it is known.
    pub declared: Option<Bytes>,
    /// Its rate, when it is known.
    pub rate: Option<BitRate>,
}

/// The writer's side: dropped, the title is not there any more, and who reads it is told.
#[derive(Debug)]
pub struct GrowthPublisher {
    watermark: watch::Sender<Watermark>,
    titles: Arc<GrowingTitles>,
    key: Key,
    id: TitleId,
}

type Key = (VolumeId, String);

#[derive(Default, Debug)]
pub(super) struct GrowingTitles(Mutex<HashMap<Key, GrowingEntry>>);

/// Titles that can be read while they come in, each with an open file; the next ones are there when
/// they are whole. Uploads that can be resumed may be many and rest for long.
pub const GROWING_TITLES_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub(super) struct GrowingEntry {
    id: TitleId,
    file: Arc<OwnedFd>,
    direct: bool,
    etag: String,
    following: Follower,
    rate: Option<BitRate>,
}

impl GrowingTitles {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, GrowingEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Catalogue {
    /// Lets `coming` be found as long as nothing else has its name. May block. Of two that come to one
    /// name, the later one is found; none of more than [`GROWING_TITLES_MAX`].
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn announce(&self, coming: GrowingTitleSpec) -> std::io::Result<Option<GrowthPublisher>> {
        let GrowingTitleSpec { volume, path, file, declared, rate } = coming;
        let direct = volume::read_past_cache(&file).map_err(|_| Errno::IO)?;
        let id = self.number();
        let start = Watermark { durable: Bytes(0), state: Growth::Growing };
        let (watermark, seen) = watch::channel(start);
        // Of this run: what a client has kept of an earlier one is of another file.
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let etag = format!("\"g{:x}-{:x}\"", id.0, since.map_or(0, |since| since.as_nanos()));
        let following = Follower { path: path.clone(), declared, watermark: seen };
        let known = GrowingEntry { id, file: Arc::new(file), direct, etag, following, rate };
        let key = (volume, path);
        let mut growing = self.growing.lock();
        if growing.len() >= GROWING_TITLES_MAX {
            return Ok(None);
        }
        growing.insert(key.clone(), known);
        drop(growing);
        Ok(Some(GrowthPublisher { watermark, titles: Arc::clone(&self.growing), key, id }))
    }

    /// What is coming in under `name`. Asked for before its name is looked up: later it may have the
    /// name, and be here no more.
    pub(super) fn coming_to(&self, volume: VolumeId, name: &str) -> Option<GrowingEntry> {
        let growing = self.growing.lock();
        // Mostly nothing is, and then no key need be made.
        if growing.is_empty() { None } else { growing.get(&(volume, name.to_owned())).cloned() }
    }
}

impl GrowingEntry {
    /// The title as far as it has come.
    pub(super) fn title(self, volume: VolumeId, name: &str) -> Option<Arc<OpenTitle>> {
        let known = self;
        let Watermark { durable, .. } = known.following.watermark();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let file = known.file.try_clone().ok()?;
        Some(Arc::new(OpenTitle {
            id: known.id,
            volume,
            file,
            direct: known.direct,
            len: durable,
            // It changes now, and goes on changing.
            modified: WallTime(now.map_or(0, |now| now.as_nanos() as u64)),
            etag: known.etag,
            media_type: media_type::of(name),
            position: 0,
            // They are whole only when it is.
            sums: None,
            media: OnceCell::new_with(Some(known.rate.map(facts))),
            following: Some(known.following),
        }))
    }
}

/// What a rate alone says.
fn facts(rate: BitRate) -> MediaFacts {
    let kind = MediaKind::TransportStream { stride: 188, broken: false };
    MediaFacts { kind, rate, mean: rate, duration: Nanos(0), head: Bytes(0) }
}

impl GrowthPublisher {
    /// All before `end` is on stable storage.
    pub fn advance(&self, end: Bytes) {
        self.watermark.send_if_modified(|watermark| {
            let further = end > watermark.durable && watermark.state == Growth::Growing;
            if further {
                watermark.durable = end;
            }
            further
        });
    }

    /// It is whole, and has its name. When this is dropped, it is found there only.
    pub fn complete(&self, len: Bytes) {
        self.watermark.send_replace(Watermark { durable: len, state: Growth::Whole });
    }
}

impl Drop for GrowthPublisher {
    fn drop(&mut self) {
        self.watermark.send_if_modified(|watermark| {
            let was_growing = watermark.state == Growth::Growing;
            if was_growing {
                watermark.state = Growth::GivenUp;
            }
            was_growing
        });
        let mut titles = self.titles.lock();
        // Somebody else may be coming to this name by now.
        if titles.get(&self.key).is_some_and(|known| known.id == self.id) {
            titles.remove(&self.key);
        }
    }
}
