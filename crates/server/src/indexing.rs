//! Indexes of titles that have just been stored: made in the background, before anybody wants them.
//!
//! Promise: one title at a time is read, in the time that the disk's plan has left over, as any download is: no
//! stream and no upload waits for it. Best effort: what finds no room, or comes in greater numbers than can
//! wait, gets its index when somebody wants it.

use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Stat;
use tactus_core::ts::Indexer;
use tactus_core::units::{Bytes, KIB};
use tactus_engine::message::VolumeId;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

use crate::broker::Broker;
use crate::catalogue::{Catalogue, LONG, OpenTitle};
use crate::store::{Busy, Reading, Store};

/// Titles that may wait: a day's recordings, or a large directory that is copied.
const WAITING_MAX: usize = 4096;
/// A full house is asked so often, so many times.
const AGAIN: Duration = Duration::from_secs(10);
const TRIES_MAX: u32 = 60;
/// What tells a transport stream: more than the reach of a search for packets.
const HEAD: u64 = 128 * KIB;
/// Read at once: 50 us of work.
const PIECE: usize = 256 * KIB as usize;

/// From now on titles that `stores`, the volumes by their numbers, have named get their indexes. It ends with
/// them.
pub fn begin(catalogue: &Arc<Catalogue>, broker: &Broker, stores: &[Option<Store>]) {
    let (tell, mut told) = mpsc::channel::<(VolumeId, String)>(WAITING_MAX);
    for (index, store) in stores.iter().enumerate() {
        let volume = VolumeId(u16::try_from(index).expect("a host has fewer disks"));
        let tell = tell.clone();
        if let Some(store) = store {
            let catalogue = Arc::downgrade(catalogue);
            store.tell_named(move |path| {
                if let Some(catalogue) = catalogue.upgrade() {
                    catalogue.queue_inspection(index, path);
                }
                // Too many: whoever wants it will ask.
                tell.try_send((volume, path.to_owned())).ok();
            });
        }
    }
    drop(tell);
    let (catalogue, broker) = (Arc::clone(catalogue), broker.clone());
    tokio::spawn(async move {
        while let Some((volume, name)) = told.recv().await {
            make(&catalogue, &broker, volume, name).await;
        }
    });
}

async fn make(catalogue: &Arc<Catalogue>, broker: &Broker, volume: VolumeId, name: String) {
    for _ in 0..TRIES_MAX {
        let (this, path) = (Arc::clone(catalogue), name.clone());
        let found = tokio::task::spawn_blocking(move || this.unindexed(volume, &path)).await;
        // It has one, or has gone.
        let Ok(Some((title, stat))) = found else { return };
        // That of a short one is made in no time when somebody wants it; read by itself it would cost more.
        if title.len < LONG {
            return;
        }
        match look_and_read(broker, &title).await {
            Ok(indexer) => return keep(catalogue, title, stat, indexer).await,
            Err(busy) => tracing::debug!(title = name, %busy, "its index waits"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Reads a title; of what is no transport stream nothing but its beginning.
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
    // What cannot be read ends early, and what is no index in the end is not read on.
    while let Ok(count @ 1..) = reading.read(&mut piece).await
        && !indexer.is_hopeless()
    {
        indexer.add(&piece[..count]);
    }
    indexer
}

async fn keep(catalogue: &Arc<Catalogue>, title: Arc<OpenTitle>, stat: Stat, indexer: Indexer) {
    if indexer.is_hopeless() || indexer.len() != title.len.0 {
        return;
    }
    let this = Arc::clone(catalogue);
    let keep = move || {
        if let Ok(index) = indexer.finish() {
            this.keep_index(&title, &stat, &index);
        }
    };
    tokio::task::spawn_blocking(keep).await.ok();
}
