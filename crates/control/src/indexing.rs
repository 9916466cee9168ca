//! Indexes titles in the background: newly stored ones before they are requested, and others when
//! they are requested first.
//!
//! Promise: one title at a time is read as best effort, so streams and uploads do not wait. A title
//! without room, or beyond the queue, is indexed when it is requested.

use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Stat;
use tactus_core::ts::Indexer;
use tactus_core::units::{Bytes, KIB};
use tactus_engine::message::{TitleId, VolumeId};
use tactus_storage::catalogue::{Catalogue, LONG, OpenTitle, Unindexed};
use tactus_storage::store::{Busy, Reading, Store};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

use crate::broker::Broker;

/// Queued titles: a day's recordings, or a large directory that is copied.
const WAITING_MAX: usize = 4096;
/// Interval and number of attempts when there is no room.
const AGAIN: Duration = Duration::from_secs(10);
const TRIES_MAX: u32 = 60;
/// Bytes that identify a transport stream: more than the search range of the first packet.
const HEAD: u64 = 128 * KIB;
/// Bytes read at once: 50 us of work.
const PIECE: usize = 256 * KIB as usize;

/// Indexes the titles that `stores` (by volume number) publish, and those that are requested
/// without an index.
pub fn begin(catalogue: &Arc<Catalogue>, broker: &Broker, stores: &[Option<Store>]) {
    let (tell, mut told) = mpsc::channel::<Unindexed>(WAITING_MAX);
    for (index, store) in stores.iter().enumerate() {
        let volume = VolumeId(u16::try_from(index).expect("a host has fewer disks"));
        let tell = tell.clone();
        if let Some(store) = store {
            let catalogue = Arc::downgrade(catalogue);
            store.tell_named(move |path| {
                if let Some(catalogue) = catalogue.upgrade() {
                    catalogue.queue_inspection(index, path);
                }
                // The queue is full: the title is indexed when it is requested.
                tell.try_send(Unindexed { volume, name: path.to_owned(), title: None }).ok();
            });
        }
    }
    if let Some(mut wanted) = catalogue.wanted_indexes() {
        tokio::spawn(async move {
            while let Some(title) = wanted.recv().await
                && tell.send(title).await.is_ok()
            {}
        });
    }
    let (catalogue, broker) = (Arc::clone(catalogue), broker.clone());
    tokio::spawn(async move {
        while let Some(unindexed) = told.recv().await {
            make(&catalogue, &broker, unindexed).await;
        }
    });
}

async fn make(catalogue: &Arc<Catalogue>, broker: &Broker, unindexed: Unindexed) {
    let Unindexed { volume, name, title: wanted } = unindexed;
    for _ in 0..TRIES_MAX {
        let (this, path) = (Arc::clone(catalogue), name.clone());
        let found = tokio::task::spawn_blocking(move || this.unindexed(volume, &path)).await;
        // It has an index, or was removed.
        let Ok(Some((title, stat))) = found else { return };
        // A short title is indexed quickly on request; reading it here would cost more.
        if title.len < LONG {
            return;
        }
        match look_and_read(broker, &title).await {
            Ok(indexer) => return keep(catalogue, title, wanted, stat, indexer).await,
            Err(busy) => {
                tracing::debug!(
                    title = name, %busy,
                    "the index of a title is delayed: there is no room"
                )
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Reads a title; of other formats only the beginning.
async fn look_and_read(broker: &Broker, title: &Arc<OpenTitle>) -> Result<Indexer, Busy> {
    let head = Bytes(HEAD).min(title.len);
    let looked = read(broker.read_first(Arc::clone(title), head)?).await;
    if looked.is_hopeless() {
        return Ok(looked);
    }
    Ok(read(broker.read(Arc::clone(title))?).await)
}

async fn read(mut reading: Reading) -> Indexer {
    let (mut indexer, mut piece) = (Indexer::default(), vec![0; PIECE]);
    // A read error ends the indexing, and so does a title that can have no index.
    while let Ok(count @ 1..) = reading.read(&mut piece).await
        && !indexer.is_hopeless()
    {
        indexer.add(&piece[..count]);
    }
    indexer
}

async fn keep(
    catalogue: &Arc<Catalogue>,
    title: Arc<OpenTitle>,
    wanted: Option<TitleId>,
    stat: Stat,
    indexer: Indexer,
) {
    if indexer.is_hopeless() || indexer.len() != title.len.0 {
        return;
    }
    let this = Arc::clone(catalogue);
    let keep = move || {
        if let Ok(index) = indexer.finish() {
            this.keep_index(&title, wanted, &stat, index);
        }
    };
    tokio::task::spawn_blocking(keep).await.ok();
}
