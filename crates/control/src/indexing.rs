//! Indexes titles in the background: those that are requested without an index, newly stored ones,
//! and those that the inspection of a volume finds without one.
//!
//! Promise: one title at a time is read as best effort, so streams and uploads do not wait. The
//! catalogue knows the progress. A title without room is tried again after the next inspection.

use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Stat;
use tactus_core::ts::Indexer;
use tactus_core::units::{Bytes, KIB};
use tactus_engine::message::{TitleId, VolumeId};
use tactus_media::MediaKind;
use tactus_media::scan::Scan;
use tactus_storage::catalogue::{Catalogue, FileVersion, IndexOutcome, LONG, OpenTitle, Unindexed};
use tactus_storage::store::{Busy, Reading, Store};
use tokio::io::AsyncReadExt;

use crate::broker::Broker;

/// Interval and number of attempts when there is no room.
const AGAIN: Duration = Duration::from_secs(10);
const TRIES_MAX: u32 = 60;
/// Bytes that identify a transport stream: more than the search range of the first packet.
const HEAD: u64 = 128 * KIB;
/// Bytes read at once: 50 us of work.
const PIECE: usize = 256 * KIB as usize;

/// Indexes the titles that `stores` (by volume number) publish, and those that are requested or
/// found without an index.
pub fn begin(catalogue: &Arc<Catalogue>, broker: &Broker, stores: &[Option<Store>]) {
    for (index, store) in stores.iter().enumerate() {
        let volume = VolumeId(u16::try_from(index).expect("a host has fewer disks"));
        if let Some(store) = store {
            let catalogue = Arc::downgrade(catalogue);
            store.tell_named(move |path| {
                if let Some(catalogue) = catalogue.upgrade() {
                    catalogue.queue_inspection(index, path);
                    catalogue.queue_index(volume, path);
                }
            });
        }
    }
    let (catalogue, broker) = (Arc::clone(catalogue), broker.clone());
    tokio::spawn(async move {
        loop {
            let unindexed = catalogue.next_unindexed().await;
            let outcome = make(&catalogue, &broker, &unindexed).await;
            catalogue.handle_index_end(outcome);
        }
    });
}

async fn make(catalogue: &Arc<Catalogue>, broker: &Broker, unindexed: &Unindexed) -> IndexOutcome {
    for _ in 0..TRIES_MAX {
        let (this, volume, path) =
            (Arc::clone(catalogue), unindexed.volume, unindexed.name.clone());
        let found = tokio::task::spawn_blocking(move || this.unindexed(volume, &path)).await;
        // It has an index, or was removed.
        let Ok(Some((title, stat, kind))) = found else { return IndexOutcome::NotNeeded };
        // A short title is indexed quickly on request; reading it here would cost more.
        if title.len < LONG {
            return IndexOutcome::NotNeeded;
        }
        let handle_read =
            |read: u64| catalogue.handle_index_read(unindexed, Bytes(read), title.len);
        match look_and_read(broker, &title, kind, handle_read).await {
            Ok(pass) => {
                return keep(catalogue, title, unindexed.title, stat, pass).await;
            }
            Err(busy) => {
                tracing::debug!(
                    title = unindexed.name, %busy,
                    "the index of a title is delayed: there is no room"
                )
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
    IndexOutcome::Failed
}

/// A pass over a title.
enum Pass {
    /// A transport stream.
    Stream(Box<Indexer>),
    /// Another container, whose frames have no table.
    Frames(Box<Scan>),
}

impl Pass {
    /// A pass over a title in this container.
    fn of(kind: Option<MediaKind>) -> Self {
        match kind.and_then(Scan::of) {
            Some(scan) => Self::Frames(Box::new(scan)),
            None => Self::Stream(Box::default()),
        }
    }

    fn add(&mut self, piece: &[u8]) {
        match self {
            Self::Stream(indexer) => indexer.add(piece),
            Self::Frames(scan) => scan.add(piece),
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::Stream(indexer) => indexer.len(),
            Self::Frames(scan) => scan.len(),
        }
    }

    fn is_hopeless(&self) -> bool {
        match self {
            Self::Stream(indexer) => indexer.is_hopeless(),
            Self::Frames(scan) => scan.is_hopeless(),
        }
    }
}

/// Reads a title; of formats without an index only the beginning.
async fn look_and_read(
    broker: &Broker,
    title: &Arc<OpenTitle>,
    kind: Option<MediaKind>,
    handle_read: impl Fn(u64),
) -> Result<Pass, Busy> {
    let head = Bytes(HEAD).min(title.len);
    let reading = broker.read_first(Arc::clone(title), head)?;
    let looked = read(reading, Pass::of(kind), &handle_read).await;
    if looked.is_hopeless() {
        return Ok(looked);
    }
    Ok(read(broker.read(Arc::clone(title))?, Pass::of(kind), &handle_read).await)
}

async fn read(mut reading: Reading, mut pass: Pass, handle_read: &impl Fn(u64)) -> Pass {
    let mut piece = vec![0; PIECE];
    // A read error ends the indexing, and so does a title that can have no index.
    while let Ok(count @ 1..) = reading.read(&mut piece).await
        && !pass.is_hopeless()
    {
        pass.add(&piece[..count]);
        handle_read(pass.len());
    }
    pass
}

async fn keep(
    catalogue: &Arc<Catalogue>,
    title: Arc<OpenTitle>,
    wanted: Option<TitleId>,
    stat: Stat,
    pass: Pass,
) -> IndexOutcome {
    let never = IndexOutcome::Never(FileVersion::of(&stat));
    let is_hopeless = pass.is_hopeless();
    if !is_hopeless && pass.len() != title.len.0 {
        return IndexOutcome::Failed;
    }
    let this = Arc::clone(catalogue);
    let keep = move || match pass {
        Pass::Stream(_) if is_hopeless => never,
        Pass::Stream(indexer) => match indexer.finish() {
            Ok(index) => this.keep_index(&title, wanted, &stat, index),
            Err(_) => never,
        },
        Pass::Frames(scan) => this.keep_consumption(&title, wanted, &stat, scan.finish()),
    };
    tokio::task::spawn_blocking(keep).await.unwrap_or(IndexOutcome::Failed)
}
