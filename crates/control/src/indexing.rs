//! Indexes titles in the background: those that are requested without an index, newly stored ones,
//! and those that the inspection of a volume finds without one. Before that it reads the first
//! bytes for requests that wait for a preview.
//!
//! Promise: one title at a time is read as best effort, so streams and uploads do not wait. The
//! catalogue knows the progress. A title without room is tried again after the next inspection.
//! Previews have at most half of the time while an index is made.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::Stat;
use tactus_core::smoothing::Consumption;
use tactus_core::ts::Indexer;
use tactus_core::units::{Bytes, KIB};
use tactus_engine::message::{TitleId, VolumeId};
use tactus_media::scan::Scan;
use tactus_media::{MediaKind, consumption};
use tactus_storage::catalogue::{
    Catalogue, FileVersion, IndexOutcome, LONG, OpenTitle, PREVIEW_MAX, Preview, PreviewRequest,
    SHORT, Unindexed,
};
use tactus_storage::store::{Busy, Reading, Store};
use tokio::io::AsyncReadExt;
use tokio::sync::Mutex;

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
    let turn = Arc::default();
    let worker = Worker {
        catalogue: Arc::clone(catalogue),
        broker: broker.clone(),
        turn: Arc::clone(&turn),
    };
    let other = Worker { catalogue: Arc::clone(catalogue), broker: broker.clone(), turn };
    tokio::spawn(async move { worker.index_all().await });
    tokio::spawn(async move { other.preview_all().await });
}

/// One of the two tasks that read titles.
struct Worker {
    catalogue: Arc<Catalogue>,
    broker: Broker,
    /// The task that reads now.
    turn: Arc<Mutex<()>>,
}

impl Worker {
    async fn index_all(&self) {
        loop {
            let unindexed = self.catalogue.next_unindexed().await;
            let outcome = self.index(&unindexed).await;
            self.catalogue.handle_index_end(outcome);
        }
    }

    async fn index(&self, unindexed: &Unindexed) -> IndexOutcome {
        for _ in 0..TRIES_MAX {
            match self.try_index(unindexed, Some(&self.turn)).await {
                Ok(outcome) => return outcome,
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

    async fn try_index(
        &self,
        unindexed: &Unindexed,
        turn: Option<&Mutex<()>>,
    ) -> Result<IndexOutcome, Busy> {
        let this = Arc::clone(&self.catalogue);
        let (volume, path) = (unindexed.volume, unindexed.name.clone());
        let found = tokio::task::spawn_blocking(move || this.unindexed(volume, &path)).await;
        // It has an index, or was removed.
        let Ok(Some((title, stat, kind))) = found else { return Ok(IndexOutcome::NotNeeded) };
        // A short title is indexed quickly on request; reading it here would cost more.
        if title.len < LONG {
            return Ok(IndexOutcome::NotNeeded);
        }
        let handle_read = |read: u64| {
            // A preview is not the current title.
            if turn.is_some() {
                self.catalogue.handle_index_read(unindexed, Bytes(read), title.len);
            }
        };
        let pass = look_and_read(&self.broker, &title, kind, (turn, handle_read)).await?;
        Ok(keep(&self.catalogue, title, unindexed.title, stat, pass).await)
    }

    /// Reads for the requests that wait for a preview, one after the other.
    async fn preview_all(&self) {
        let mut requests = self.catalogue.preview_requests();
        while let Some(request) = requests.recv().await {
            if !request.is_wanted() {
                continue;
            }
            let turn = self.turn.lock().await;
            let begun = Instant::now();
            let preview = self.preview(&request).await;
            request.answer(preview);
            drop(turn);
            // The index in progress goes on for as long.
            tokio::time::sleep(begun.elapsed().min(PREVIEW_MAX)).await;
        }
    }

    async fn preview(&self, request: &PreviewRequest) -> Preview {
        let PreviewRequest { ref title, ref unindexed, kind, ref range, .. } = *request;
        if title.len <= SHORT {
            return match self.try_index(unindexed, None).await {
                Ok(outcome) => {
                    self.catalogue.handle_preview_end(outcome);
                    Preview::Whole
                }
                Err(_) => Preview::None,
            };
        }
        let first = range.start..range.end.min(range.start + SHORT.0);
        match self.first(title, kind, first).await {
            Ok(Some(pass)) => {
                let found = tokio::task::spawn_blocking(move || pass.consumption()).await;
                found.ok().flatten().map_or(Preview::None, Preview::First)
            }
            Ok(None) | Err(_) => Preview::None,
        }
    }

    /// The pass over the first bytes of a range; `None` if a pass cannot begin there.
    async fn first(
        &self,
        title: &Arc<OpenTitle>,
        kind: MediaKind,
        first: Range<u64>,
    ) -> Result<Option<Pass>, Busy> {
        let pass = match kind {
            MediaKind::TransportStream { .. } => Some(Pass::Stream(Box::default())),
            kind if first.start == 0 => Some(Pass::of(Some(kind))),
            kind => {
                let mut head = vec![0; HEAD as usize];
                let mut reading = self.broker.read_first(Arc::clone(title), Bytes(HEAD))?;
                let read = reading.read_exact(&mut head).await;
                let scan = read.ok().and_then(|_| Scan::within(kind, &head));
                scan.map(|scan| Pass::Frames(Box::new(scan)))
            }
        };
        let Some(mut pass) = pass else { return Ok(None) };
        let mut reading = self.broker.read_range(Arc::clone(title), first)?;
        // What has been read in time counts.
        let read = read(&mut reading, &mut pass, (None, |_| {}));
        tokio::time::timeout(PREVIEW_MAX, read).await.unwrap_or_default();
        Ok(Some(pass))
    }
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

    /// The consumption of the bytes that have been added.
    fn consumption(self) -> Option<Consumption> {
        match self {
            Self::Stream(indexer) => {
                let index = indexer.finish().ok()?;
                consumption::of_index(&index, &(0..index.len()))
            }
            Self::Frames(scan) => scan.finish(),
        }
    }

    fn is_hopeless(&self) -> bool {
        match self {
            Self::Stream(indexer) => indexer.is_hopeless(),
            Self::Frames(scan) => scan.is_hopeless(),
        }
    }
}

/// Reads a title; of formats without an index only the beginning. With a turn, it gives way to the
/// other reader between two pieces.
async fn look_and_read(
    broker: &Broker,
    title: &Arc<OpenTitle>,
    kind: Option<MediaKind>,
    (turn, handle_read): (Option<&Mutex<()>>, impl Fn(u64)),
) -> Result<Pass, Busy> {
    let head = Bytes(HEAD).min(title.len);
    let mut reading = broker.read_first(Arc::clone(title), head)?;
    let mut looked = Pass::of(kind);
    read(&mut reading, &mut looked, (turn, &handle_read)).await;
    if looked.is_hopeless() {
        return Ok(looked);
    }
    let (mut reading, mut pass) = (broker.read(Arc::clone(title))?, Pass::of(kind));
    read(&mut reading, &mut pass, (turn, &handle_read)).await;
    Ok(pass)
}

async fn read(
    reading: &mut Reading,
    pass: &mut Pass,
    (turn, handle_read): (Option<&Mutex<()>>, impl Fn(u64)),
) {
    let mut piece = vec![0; PIECE];
    while !pass.is_hopeless() {
        let held = match turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        // A read error ends the indexing, and so does a title that can have no index.
        let Ok(count @ 1..) = reading.read(&mut piece).await else { break };
        pass.add(&piece[..count]);
        handle_read(pass.len());
        drop(held);
    }
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
