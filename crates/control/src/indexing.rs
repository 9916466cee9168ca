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
        let Ok(Some((title, stat))) = found else { return IndexOutcome::NotNeeded };
        // A short title is indexed quickly on request; reading it here would cost more.
        if title.len < LONG {
            return IndexOutcome::NotNeeded;
        }
        let handle_read =
            |read: u64| catalogue.handle_index_read(unindexed, Bytes(read), title.len);
        match look_and_read(broker, &title, handle_read).await {
            Ok(indexer) => {
                return keep(catalogue, title, unindexed.title, stat, indexer).await;
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

/// Reads a title; of other formats only the beginning.
async fn look_and_read(
    broker: &Broker,
    title: &Arc<OpenTitle>,
    handle_read: impl Fn(u64),
) -> Result<Indexer, Busy> {
    let head = Bytes(HEAD).min(title.len);
    let looked = read(broker.read_first(Arc::clone(title), head)?, &handle_read).await;
    if looked.is_hopeless() {
        return Ok(looked);
    }
    Ok(read(broker.read(Arc::clone(title))?, &handle_read).await)
}

async fn read(mut reading: Reading, handle_read: &impl Fn(u64)) -> Indexer {
    let (mut indexer, mut piece) = (Indexer::default(), vec![0; PIECE]);
    // A read error ends the indexing, and so does a title that can have no index.
    while let Ok(count @ 1..) = reading.read(&mut piece).await
        && !indexer.is_hopeless()
    {
        indexer.add(&piece[..count]);
        handle_read(indexer.len());
    }
    indexer
}

async fn keep(
    catalogue: &Arc<Catalogue>,
    title: Arc<OpenTitle>,
    wanted: Option<TitleId>,
    stat: Stat,
    indexer: Indexer,
) -> IndexOutcome {
    let never = IndexOutcome::Never(FileVersion::of(&stat));
    if indexer.is_hopeless() {
        return never;
    }
    if indexer.len() != title.len.0 {
        return IndexOutcome::Failed;
    }
    let this = Arc::clone(catalogue);
    let keep = move || match indexer.finish() {
        Ok(index) => this.keep_index(&title, wanted, &stat, index),
        Err(_) => never,
    };
    tokio::task::spawn_blocking(keep).await.unwrap_or(IndexOutcome::Failed)
}
