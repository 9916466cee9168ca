//! Titles that can be read while they are uploaded: written bytes are flushed repeatedly, and each
//! flush advances the readers' limit.
//!
//! Promise: no reader reads beyond the durable watermark. A failed flush ends the upload (W9).
//! There is one flush at a time, and it joins flushes that wait already, so it delays nothing else.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tactus_core::units::{BitRate, Bytes};
use tactus_engine::message::VolumeId;
use tactus_sys::file;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::medium::{Flush, Medium, PendingIo};
use super::{Inner, UploadError, lock};
use crate::catalogue::{Catalogue, GrowingTitleSpec, GrowthPublisher};

/// Shows titles in the catalogue while they are uploaded.
#[derive(Clone, Debug)]
pub(super) struct Announcer {
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) volume: VolumeId,
}

/// A title that can be read while it is uploaded. Dropping it withdraws the title.
pub(super) struct GrowingTitle {
    landed: Arc<WrittenWatermark>,
    task: JoinHandle<Option<GrowthPublisher>>,
}

/// The properties of a title whose upload begins.
pub(super) struct GrowingStart<'a> {
    pub(super) path: &'a str,
    pub(super) declared: Option<u64>,
    pub(super) rate: Option<BitRate>,
}

/// The written watermark: all writes below it have completed.
#[derive(Debug)]
pub(super) struct WrittenWatermark {
    end: watch::Sender<u64>,
    /// Completed writes beyond the watermark: begin and end of each.
    beyond: Mutex<BTreeMap<u64, u64>>,
}

/// Least time between two flushes: as often as the shortest disk cycle has one.
const PAUSE: Duration = Duration::from_millis(250);

impl GrowingTitle {
    /// Announces the title that is being written to `written`; none when there are too many. Fails
    /// only for lack of file handles or memory.
    pub(super) async fn begin(
        inner: &Arc<Inner>,
        audience: Announcer,
        written: &Arc<OwnedFd>,
        what: GrowingStart<'_>,
    ) -> Result<Option<Self>, UploadError> {
        let announced = inner.announce(&audience, written, what).await;
        let Some(announced) = announced.map_err(UploadError::Io)? else { return Ok(None) };
        let (end, seen) = watch::channel(0);
        let landed = Arc::new(WrittenWatermark { end, beyond: Mutex::default() });
        let medium = Arc::clone(&inner.medium);
        let flusher =
            Flusher { inner: Arc::downgrade(inner), medium, file: Arc::clone(written), seen };
        Ok(Some(Self { landed, task: tokio::spawn(flusher.run(announced)) }))
    }

    /// The watermark that completed writes advance.
    pub(super) fn landed(&self) -> Arc<WrittenWatermark> {
        Arc::clone(&self.landed)
    }

    /// Ends the flushes of a completed upload and returns the publisher for its last states. None
    /// when a flush has failed.
    pub(super) async fn end(self) -> Option<GrowthPublisher> {
        let Self { landed, task } = self;
        drop(landed);
        task.await.unwrap_or(None)
    }
}

impl Inner {
    /// Shows the title that is being written to `written` in the catalogue; none when there are too
    /// many.
    pub(super) async fn announce(
        &self,
        audience: &Announcer,
        written: &Arc<OwnedFd>,
        what: GrowingStart<'_>,
    ) -> io::Result<Option<GrowthPublisher>> {
        let GrowingStart { path, declared, rate } = what;
        let (path, declared) = (path.to_owned(), declared.map(Bytes));
        let (Announcer { catalogue, volume }, own) = (audience.clone(), Arc::clone(written));
        let announced = self.blocking(move || {
            let file = file::reopen(&own)?;
            catalogue.announce(GrowingTitleSpec { volume, path, file, declared, rate })
        });
        announced.await
    }
}

impl WrittenWatermark {
    /// The same write, which advances the watermark when it completes. It continues when this is
    /// dropped.
    pub(super) fn watch(self: &Arc<Self>, from: u64, to: u64, write: PendingIo) -> PendingIo {
        let this = Arc::clone(self);
        let seen = tokio::spawn(async move {
            write.await?;
            this.add(from, to);
            Ok(())
        });
        Box::pin(async move { seen.await.unwrap_or_else(|_| Err(super::medium::stopped())) })
    }

    fn add(&self, from: u64, to: u64) {
        let mut beyond = lock(&self.beyond);
        beyond.insert(from, to);
        self.end.send_if_modified(|end| {
            let before = *end;
            while let Some(next) = beyond.remove(end) {
                *end = next;
            }
            *end > before
        });
    }
}

/// The flush task of a growing title.
struct Flusher {
    inner: Weak<Inner>,
    medium: Arc<dyn Medium>,
    file: Arc<OwnedFd>,
    seen: watch::Receiver<u64>,
}

impl Flusher {
    async fn run(mut self, announced: GrowthPublisher) -> Option<GrowthPublisher> {
        let mut durable = 0;
        // Ends when the upload has dropped its watermark.
        while let Ok(end) = self.seen.wait_for(|&end| end > durable).await.map(|end| *end) {
            if let Err(error) = self.medium.sync(&self.file, Flush::Data).await {
                if let Some(inner) = self.inner.upgrade() {
                    inner.fail(error);
                }
                return None;
            }
            announced.advance(Bytes(end));
            durable = end;
            let over = self.seen.wait_for(|_| false);
            if let Ok(Err(_)) = tokio::time::timeout(PAUSE, over).await {
                break;
            }
        }
        Some(announced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lands_out_of_order_counts_when_the_hole_is_filled() {
        let (end, seen) = watch::channel(0);
        let landed = WrittenWatermark { end, beyond: Mutex::default() };
        let mut told = Vec::new();
        for (from, to) in [(4096, 8192), (12288, 16384), (0, 4096), (8192, 12288)] {
            landed.add(from, to);
            told.push(*seen.borrow());
        }
        assert_eq!(told, [0, 0, 8192, 16384]);
    }
}
