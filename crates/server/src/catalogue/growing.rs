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
pub struct Edge {
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
pub struct Following {
    /// Its path in its volume: its file may have another name, or none.
    pub path: String,
    /// Its length at the end, when it is known.
    pub declared: Option<Bytes>,
    edge: watch::Receiver<Edge>,
}

impl Following {
    /// How far it has come.
    pub fn edge(&self) -> Edge {
        *self.edge.borrow()
    }

    /// The same; [`Self::next`] waits for more than that.
    pub fn look(&mut self) -> Edge {
        *self.edge.borrow_and_update()
    }

    /// Waits until it has come further than was last seen here; one that nobody writes any more has
    /// been given up.
    pub async fn next(&mut self) -> Edge {
        if self.edge.changed().await.is_err() {
            let last = self.edge();
            return match last.state {
                Growth::Growing => Edge { state: Growth::GivenUp, ..last },
                _ => last,
            };
        }
        *self.edge.borrow_and_update()
    }
}

/// What is announced of a title that begins to come in.
#[derive(Debug)]
pub struct Coming {
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
pub struct Announced {
    edge: watch::Sender<Edge>,
    titles: Arc<GrowingTitles>,
    key: Key,
    id: TitleId,
}

type Key = (VolumeId, String);

#[derive(Default, Debug)]
pub(super) struct GrowingTitles(Mutex<HashMap<Key, Known>>);

/// Titles that can be read while they come in, each with an open file; the next ones are there when
/// they are whole. Uploads that can be resumed may be many and rest for long.
pub const GROWING_TITLES_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub(super) struct Known {
    id: TitleId,
    file: Arc<OwnedFd>,
    direct: bool,
    etag: String,
    following: Following,
    rate: Option<BitRate>,
}

impl GrowingTitles {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Catalogue {
    /// Lets `coming` be found as long as nothing else has its name. May block. Of two that come to one
    /// name, the later one is found; none of more than [`GROWING_TITLES_MAX`].
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn announce(&self, coming: Coming) -> std::io::Result<Option<Announced>> {
        let Coming { volume, path, file, declared, rate } = coming;
        let direct = volume::read_past_cache(&file).map_err(|_| Errno::IO)?;
        let id = self.number();
        let start = Edge { durable: Bytes(0), state: Growth::Growing };
        let (edge, seen) = watch::channel(start);
        // Of this run: what a client has kept of an earlier one is of another file.
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let etag = format!("\"g{:x}-{:x}\"", id.0, since.map_or(0, |since| since.as_nanos()));
        let following = Following { path: path.clone(), declared, edge: seen };
        let known = Known { id, file: Arc::new(file), direct, etag, following, rate };
        let key = (volume, path);
        let mut growing = self.growing.lock();
        if growing.len() >= GROWING_TITLES_MAX {
            return Ok(None);
        }
        growing.insert(key.clone(), known);
        drop(growing);
        Ok(Some(Announced { edge, titles: Arc::clone(&self.growing), key, id }))
    }

    /// What is coming in under `name`. Asked for before its name is looked up: later it may have the
    /// name, and be here no more.
    pub(super) fn coming_to(&self, volume: VolumeId, name: &str) -> Option<Known> {
        let growing = self.growing.lock();
        // Mostly nothing is, and then no key need be made.
        if growing.is_empty() { None } else { growing.get(&(volume, name.to_owned())).cloned() }
    }
}

impl Known {
    /// The title as far as it has come.
    pub(super) fn title(self, volume: VolumeId, name: &str) -> Option<Arc<OpenTitle>> {
        let known = self;
        let Edge { durable, .. } = known.following.edge();
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

impl Announced {
    /// All before `end` is on stable storage.
    pub fn advance(&self, end: Bytes) {
        self.edge.send_if_modified(|edge| {
            let further = end > edge.durable && edge.state == Growth::Growing;
            if further {
                edge.durable = end;
            }
            further
        });
    }

    /// It is whole, and has its name. When this is dropped, it is found there only.
    pub fn complete(&self, len: Bytes) {
        self.edge.send_replace(Edge { durable: len, state: Growth::Whole });
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.edge.send_if_modified(|edge| {
            let was_growing = edge.state == Growth::Growing;
            if was_growing {
                edge.state = Growth::GivenUp;
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
