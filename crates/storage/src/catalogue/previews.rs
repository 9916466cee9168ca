//! Previews: what a request learns of a long title that has no index yet.
//!
//! Promise: a title up to [`SHORT`] is indexed as a whole; of a longer one the first [`SHORT`]
//! bytes of the range are read, for at most [`READ_MAX`]. A request waits for it at most
//! [`PATIENCE`], and at most [`WAITING_MAX`] requests wait; all others go on without. This module
//! reads nothing: one task reads for all of them, one after the other.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tactus_core::smoothing::Consumption;
use tactus_core::units::{Bytes, MIB};
use tactus_media::MediaKind;
use tokio::sync::{mpsc, oneshot};

use super::{OpenTitle, Unindexed};

/// What is read at once: a quarter of a second of a disk of 130 MB/s.
pub const SHORT: Bytes = Bytes(32 * MIB);
/// How long the first part of a longer title is read.
pub const READ_MAX: Duration = Duration::from_millis(500);
/// How long a request waits.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most requests that wait.
const WAITING_MAX: usize = 64;

/// A request that waits for a preview.
#[derive(Debug)]
pub struct PreviewRequest {
    /// The title, which has no index.
    pub title: Arc<OpenTitle>,
    /// Its place in the queue of indexes.
    pub unindexed: Unindexed,
    /// Its container.
    pub kind: MediaKind,
    /// The requested bytes.
    pub range: Range<u64>,
    answer: oneshot::Sender<Preview>,
}

/// What has been learned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Preview {
    /// The title has been read as a whole: it has an index, or can have none.
    Whole,
    /// The consumption of the first bytes of the range.
    First(Consumption),
    /// There is no room for the read, or the bytes have no times.
    None,
}

impl PreviewRequest {
    /// Whether the request has not been given up.
    pub fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }

    /// Ends the wait.
    pub fn answer(self, preview: Preview) {
        // A request that has been given up needs none.
        self.answer.send(preview).ok();
    }
}

/// The requests that wait. Without a reader there are no previews.
#[derive(Debug, Default)]
pub(super) struct Previews(Mutex<Option<mpsc::Sender<PreviewRequest>>>);

impl Previews {
    /// The requests, for one reader.
    pub(super) fn requests(&self) -> mpsc::Receiver<PreviewRequest> {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    /// Waits for a preview.
    pub(super) async fn preview(
        &self,
        title: &Arc<OpenTitle>,
        unindexed: Unindexed,
        kind: MediaKind,
        range: Range<u64>,
    ) -> Preview {
        let (answer, preview) = oneshot::channel();
        let title = Arc::clone(title);
        let request = PreviewRequest { title, unindexed, kind, range, answer };
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if sender.is_none_or(|sender| sender.try_send(request).is_err()) {
            return Preview::None;
        }
        match tokio::time::timeout(PATIENCE, preview).await {
            Ok(Ok(preview)) => preview,
            Ok(Err(_)) | Err(_) => Preview::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Catalogue, CatalogueRules, PathObject};
    use tactus_core::path::RequestPath;
    use tactus_engine::message::VolumeId;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn r01_64_requests_wait_for_a_preview_for_two_seconds_and_no_other_one_does() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.ts"), b"one").unwrap();
        let catalogue = Catalogue::new(dir.path(), CatalogueRules::default()).unwrap();
        let path = RequestPath::parse(b"/a.ts").unwrap();
        let Ok(PathObject::Title(title)) = catalogue.find_blocking(&path) else { panic!() };
        let previews = Arc::new(Previews::default());
        let waits = |first: u64| {
            let (previews, title) = (Arc::clone(&previews), Arc::clone(&title));
            tokio::spawn(async move {
                let begun = Instant::now();
                let name = "a.ts".to_owned();
                let unindexed = Unindexed { volume: VolumeId(0), name, title: Some(title.id) };
                let range = first..first + 1;
                let found = previews.preview(&title, unindexed, MediaKind::Ogg, range).await;
                (found, begun.elapsed())
            })
        };
        assert_eq!(waits(0).await.unwrap(), (Preview::None, Duration::ZERO), "there is no reader");
        let mut requests = previews.requests();
        let waiting: Vec<_> = (0..64).map(waits).collect();
        // All of them wait before the next one comes.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(waits(64).await.unwrap(), (Preview::None, Duration::ZERO));
        let first = requests.recv().await.unwrap();
        assert_eq!(first.range, 0..1, "in their order");
        first.answer(Preview::Whole);
        for (nth, waited) in waiting.into_iter().enumerate() {
            let (found, took) = waited.await.unwrap();
            match nth {
                0 => assert_eq!((found, took), (Preview::Whole, Duration::from_millis(500))),
                _ => assert_eq!((found, took), (Preview::None, Duration::from_secs(2))),
            }
        }
        let next = requests.recv().await.unwrap();
        assert!(!next.is_wanted(), "it has been given up");
    }
}
