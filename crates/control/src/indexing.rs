//! Indexes titles in the background: those that are requested without an index, newly stored ones,
//! and those that the inspection of a volume finds without one. Before that it reads the first
//! bytes for requests that wait for a preview.
//!
//! Promise: one title at a time is read as best effort, so streams and uploads do not wait. The
//! catalogue knows the progress. A title without room is tried again after the next inspection. A
//! title that was not requested is interrupted for one that is, and later goes on where it was.
//! Previews have at most half of the time while an index is made.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

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
use tokio::time::Instant;

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
    begin_tasks(catalogue, broker);
}

/// Begins the two tasks that read titles.
fn begin_tasks<R: RangeReader>(catalogue: &Arc<Catalogue>, reader: &R) {
    let turn = Arc::default();
    let worker = Worker {
        catalogue: Arc::clone(catalogue),
        reader: reader.clone(),
        turn: Arc::clone(&turn),
    };
    let other = Worker { catalogue: Arc::clone(catalogue), reader: reader.clone(), turn };
    tokio::spawn(async move { worker.index_all().await });
    tokio::spawn(async move { other.preview_all().await });
}

/// Reads ranges of titles as best effort.
trait RangeReader: Clone + Send + Sync + 'static {
    /// Reads `range` of a title, at least one byte of it.
    ///
    /// # Errors
    /// If there is no room for another reader.
    fn read_range(&self, title: Arc<OpenTitle>, range: Range<u64>) -> Result<Reading, Busy>;
}

impl RangeReader for Broker {
    fn read_range(&self, title: Arc<OpenTitle>, range: Range<u64>) -> Result<Reading, Busy> {
        Self::read_range(self, title, range)
    }
}

/// One of the two tasks that read titles.
struct Worker<R> {
    catalogue: Arc<Catalogue>,
    reader: R,
    /// The task that reads now.
    turn: Arc<Mutex<()>>,
}

/// The index of a title that was interrupted for a requested one.
struct InterruptedIndex {
    version: FileVersion,
    pass: Pass,
}

/// The end of an attempt.
enum Attempt {
    Ended(IndexOutcome),
    Interrupted(Option<InterruptedIndex>),
}

/// Whose index is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// That of the current title: it gives way to the other reader between two pieces, and to
    /// requested titles.
    Queue,
    /// That of a title for which a request waits.
    Preview,
}

impl<R: RangeReader> Worker<R> {
    async fn index_all(&self) {
        // At most one: until it goes on, only requested titles are read.
        let mut interrupted = None;
        loop {
            let unindexed = self.catalogue.next_unindexed().await;
            match self.index(&unindexed, &mut interrupted).await {
                Attempt::Ended(outcome) => self.catalogue.handle_index_end(outcome),
                Attempt::Interrupted(index) => {
                    interrupted = index.or(interrupted);
                    self.catalogue.handle_index_interruption(unindexed);
                }
            }
        }
    }

    async fn index(
        &self,
        unindexed: &Unindexed,
        interrupted: &mut Option<InterruptedIndex>,
    ) -> Attempt {
        for _ in 0..TRIES_MAX {
            match self.try_index(unindexed, Purpose::Queue, interrupted).await {
                Ok(attempt) => return attempt,
                Err(busy) => {
                    tracing::debug!(
                        title = unindexed.name, %busy,
                        "the index of a title is delayed: there is no room"
                    )
                }
            }
            tokio::time::sleep(AGAIN).await;
            // The other title may be on a disk with room.
            if self.catalogue.is_index_outranked(unindexed) {
                return Attempt::Interrupted(None);
            }
        }
        Attempt::Ended(IndexOutcome::Failed)
    }

    async fn try_index(
        &self,
        unindexed: &Unindexed,
        purpose: Purpose,
        interrupted: &mut Option<InterruptedIndex>,
    ) -> Result<Attempt, Busy> {
        let this = Arc::clone(&self.catalogue);
        let (volume, path) = (unindexed.volume, unindexed.name.clone());
        let found = tokio::task::spawn_blocking(move || this.unindexed(volume, &path)).await;
        // It has an index, or was removed.
        let Ok(Some((title, stat, kind))) = found else {
            return Ok(Attempt::Ended(IndexOutcome::NotNeeded));
        };
        // A short title is indexed quickly on request; reading it here would cost more.
        if title.len < LONG {
            return Ok(Attempt::Ended(IndexOutcome::NotNeeded));
        }
        let version = FileVersion::of(&stat);
        let begun = interrupted.take_if(|interrupted| interrupted.version == version);
        let mut pass = match begun {
            Some(InterruptedIndex { pass, .. }) => pass,
            None => Pass::of(kind),
        };
        if pass.len() == 0 {
            // Of formats without an index only the beginning is read.
            let mut looked = Pass::of(kind);
            let head = 0..HEAD.min(title.len.0);
            let mut reading = self.reader.read_range(Arc::clone(&title), head)?;
            self.read(&mut reading, &mut looked, unindexed, (purpose, title.len)).await;
            if looked.is_hopeless() {
                let outcome = keep(&self.catalogue, title, unindexed.title, stat, looked).await;
                return Ok(Attempt::Ended(outcome));
            }
        }
        let rest = pass.len()..title.len.0;
        let mut reading = match self.reader.read_range(Arc::clone(&title), rest) {
            Ok(reading) => reading,
            Err(busy) => {
                // It goes on with the next attempt.
                *interrupted = (pass.len() > 0).then_some(InterruptedIndex { version, pass });
                return Err(busy);
            }
        };
        if self.read(&mut reading, &mut pass, unindexed, (purpose, title.len)).await == Read::Cut {
            return Ok(Attempt::Interrupted(Some(InterruptedIndex { version, pass })));
        }
        let outcome = keep(&self.catalogue, title, unindexed.title, stat, pass).await;
        Ok(Attempt::Ended(outcome))
    }

    /// Adds to `pass` what `reading` gives of a title of `len` bytes.
    async fn read(
        &self,
        reading: &mut Reading,
        pass: &mut Pass,
        unindexed: &Unindexed,
        (purpose, len): (Purpose, Bytes),
    ) -> Read {
        let mut piece = vec![0; PIECE];
        loop {
            let turn = match purpose {
                Purpose::Queue if self.catalogue.is_index_outranked(unindexed) => return Read::Cut,
                Purpose::Queue => Some(self.turn.lock().await),
                Purpose::Preview => None,
            };
            if !read_piece(reading, pass, &mut piece).await {
                return Read::Ended;
            }
            // A preview is not the current title.
            if turn.is_some() {
                self.catalogue.handle_index_read(unindexed, Bytes(pass.len()), len);
            }
        }
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
            return match self.try_index(unindexed, Purpose::Preview, &mut None).await {
                Ok(Attempt::Ended(outcome)) => {
                    self.catalogue.handle_preview_end(outcome);
                    Preview::Whole
                }
                Ok(Attempt::Interrupted(_)) | Err(_) => Preview::None,
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
                let mut reading = self.reader.read_range(Arc::clone(title), 0..HEAD)?;
                let read = reading.read_exact(&mut head).await;
                let scan = read.ok().and_then(|_| Scan::within(kind, &head));
                scan.map(|scan| Pass::Frames(Box::new(scan)))
            }
        };
        let Some(mut pass) = pass else { return Ok(None) };
        let mut reading = self.reader.read_range(Arc::clone(title), first)?;
        let mut piece = vec![0; PIECE];
        let read = async { while read_piece(&mut reading, &mut pass, &mut piece).await {} };
        // What has been read in time counts.
        tokio::time::timeout(PREVIEW_MAX, read).await.unwrap_or_default();
        Ok(Some(pass))
    }
}

/// The end of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// All bytes have been read, or a read has failed, or the title can have no index.
    Ended,
    /// A requested title goes first.
    Cut,
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

/// Adds the next piece to a pass. `false` at the end of the title, or after a read error, or if the
/// title can have no index.
async fn read_piece(reading: &mut Reading, pass: &mut Pass, piece: &mut [u8]) -> bool {
    if pass.is_hopeless() {
        return false;
    }
    let Ok(count @ 1..) = reading.read(piece).await else { return false };
    pass.add(&piece[..count]);
    true
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

#[cfg(test)]
mod tests;
