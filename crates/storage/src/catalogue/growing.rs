//! Growing titles: uploads that can be read before they are complete, up to their durable
//! watermark.
//!
//! Promise: readers see only durable bytes. A growing title never hides a stored title of the same
//! name. A reader keeps the same file to its end, whatever happens to the name meanwhile. A lookup
//! finds the title at every moment, also while it changes from growing to stored.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;
use tactus_core::units::{BitRate, Bytes, Nanos, WallTime};
use tactus_engine::message::{TitleId, VolumeId};
use tactus_media::{MediaFacts, MediaKind};
use tokio::sync::{OnceCell, watch};

use super::{Catalogue, OpenTitle, media_type, volume};

/// The progress of a growing title.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermark {
    /// Bytes that are on stable storage.
    pub durable: Bytes,
    /// Whether more bytes will come.
    pub state: Growth,
}

/// The state of a growing title.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// More bytes come.
    Growing,
    /// It is complete and has its name.
    Whole,
    /// It will never be complete.
    GivenUp,
}

/// A reader's view of a growing title, beside the title itself.
#[derive(Clone, Debug)]
pub struct Follower {
    /// Its path in its volume; its file may have another name, or none.
    pub path: String,
    /// Its length at the end, when it is known.
    pub declared: Option<Bytes>,
    watermark: watch::Receiver<Watermark>,
}

impl Follower {
    /// The current watermark.
    pub fn watermark(&self) -> Watermark {
        *self.watermark.borrow()
    }

    /// The current watermark; [`Self::next`] then waits for a later one.
    pub fn look(&mut self) -> Watermark {
        *self.watermark.borrow_and_update()
    }

    /// Waits until the watermark changes from the one last seen here. If the writer ended before
    /// the title was complete, the state is [`Growth::GivenUp`].
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

/// The announcement of a growing title.
#[derive(Debug)]
pub struct GrowingTitleSpec {
    /// The disk that stores it.
    pub volume: VolumeId,
    /// Its path there.
    pub path: String,
    /// Its file, open for reading, with a file offset of its own.
    pub file: OwnedFd,
    /// Its length, when it is known.
    pub declared: Option<Bytes>,
    /// Its rate, when it is known.
    pub rate: Option<BitRate>,
}

/// The writer's side. Dropping it removes the growing title, and wakes its readers.
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

/// Titles that can be read while they grow, each with an open file. Titles above this limit can be
/// read when they are complete. The limit exists because uploads that can be resumed may be many,
/// and may rest for long.
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
    /// Makes `coming` readable as long as no stored object has its name. Of two growing titles with
    /// one name, lookups find the later one. Returns none if there are [`GROWING_TITLES_MAX`]
    /// already. May block.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn announce(&self, coming: GrowingTitleSpec) -> std::io::Result<Option<GrowthPublisher>> {
        let GrowingTitleSpec { volume, path, file, declared, rate } = coming;
        let direct = volume::read_past_cache(&file).map_err(|_| Errno::IO)?;
        let id = self.number();
        let start = Watermark { durable: Bytes(0), state: Growth::Growing };
        let (watermark, seen) = watch::channel(start);
        // The time makes the entity tag specific to this run: a tag that a client kept from an
        // earlier run belongs to another file.
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

    /// The growing title of `name`. Callers must look here before they look up the stored name: the
    /// title can get its name in between, and then it is no longer here.
    pub(super) fn coming_to(&self, volume: VolumeId, name: &str) -> Option<GrowingEntry> {
        let growing = self.growing.lock();
        // The map is mostly empty, and then no key needs to be built.
        if growing.is_empty() { None } else { growing.get(&(volume, name.to_owned())).cloned() }
    }
}

impl GrowingEntry {
    /// The title up to its watermark.
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
            // The title is changing now.
            modified: WallTime(now.map_or(0, |now| now.as_nanos() as u64)),
            etag: known.etag,
            media_type: media_type::of(name),
            position: 0,
            // The checksums are complete only when the title is.
            sums: None,
            media: OnceCell::new_with(Some(known.rate.map(facts))),
            sent_file: OnceLock::new(),
            following: Some(known.following),
        }))
    }
}

/// The media facts that follow from a rate alone.
fn facts(rate: BitRate) -> MediaFacts {
    let kind = MediaKind::TransportStream { stride: 188, broken: false };
    MediaFacts { kind, rate, peak: None, duration: Nanos(0), head: Bytes(0) }
}

impl GrowthPublisher {
    /// Marks all bytes before `end` as durable.
    pub fn advance(&self, end: Bytes) {
        self.watermark.send_if_modified(|watermark| {
            let further = end > watermark.durable && watermark.state == Growth::Growing;
            if further {
                watermark.durable = end;
            }
            further
        });
    }

    /// Marks the title as complete and named. When this publisher is dropped, only the stored title
    /// is found.
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
        // Another upload may have announced the same name meanwhile.
        if titles.get(&self.key).is_some_and(|known| known.id == self.id) {
            titles.remove(&self.key);
        }
    }
}
