//! A title that is read while it comes in: what has landed is flushed again and again, and each flush
//! lets its readers go a little further.
//!
//! Promise: nobody reads beyond what a flush has covered. A flush that fails ends the upload (W9). It
//! asks for one flush at a time, each joined with whatever else waits for one; it slows nothing down.

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

/// Who is told of titles that come in.
#[derive(Clone, Debug)]
pub(super) struct Announcer {
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) volume: VolumeId,
}

/// A title that can be read while it comes in. Dropped, it has never been.
pub(super) struct GrowingTitle {
    landed: Arc<WrittenWatermark>,
    task: JoinHandle<Option<GrowthPublisher>>,
}

/// What is known of a title that begins to come in.
pub(super) struct GrowingStart<'a> {
    pub(super) path: &'a str,
    pub(super) declared: Option<u64>,
    pub(super) rate: Option<BitRate>,
}

/// Up to where writes have landed without a hole.
#[derive(Debug)]
pub(super) struct WrittenWatermark {
    end: watch::Sender<u64>,
    /// What has landed beyond that: where each piece begins and ends.
    beyond: Mutex<BTreeMap<u64, u64>>,
}

/// A flush is not asked for again sooner than this after the last: as often as the shortest cycles
/// have one.
const PAUSE: Duration = Duration::from_millis(250);

impl GrowingTitle {
    /// Announces the title that is being written to `written`; none when there are too many. May fail only
    /// for want of file handles or memory.
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

    /// Where writes report.
    pub(super) fn landed(&self) -> Arc<WrittenWatermark> {
        Arc::clone(&self.landed)
    }

    /// The upload is over; what is left to say is said by the one who gets this. None when a flush has
    /// failed.
    pub(super) async fn end(self) -> Option<GrowthPublisher> {
        let Self { landed, task } = self;
        drop(landed);
        task.await.unwrap_or(None)
    }
}

impl Inner {
    /// Lets the title that is being written to `written` be found; none when there are too many.
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
    /// The same write, which reports when it has landed. It goes on when this is dropped.
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

/// The task behind a growing title.
struct Flusher {
    inner: Weak<Inner>,
    medium: Arc<dyn Medium>,
    file: Arc<OwnedFd>,
    seen: watch::Receiver<u64>,
}

impl Flusher {
    async fn run(mut self, announced: GrowthPublisher) -> Option<GrowthPublisher> {
        let mut durable = 0;
        // Ends when nobody writes any more.
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
