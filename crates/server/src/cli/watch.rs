//! Watches the volumes of a running server: mounts, writability, and files that cannot be served.
//!
//! Promise: a newly mounted directory is served within [`LOOK`], without a restart. Nothing is
//! stored in a file system that was mounted over a writable volume. Problems, and uploads that wait
//! for the disk, are reported as conditions. A disk that hangs delays only its own watch.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::StatVfsMountFlags;
use tactus_config::Config;
use tactus_control::engine::Engine;
use tactus_engine::counters::DiskCounters;
use tactus_http::Uploads;
use tactus_storage::catalogue::Catalogue;
use tactus_storage::conditions::Kind;
use tactus_storage::store::{Identity, KnownIdentities};
use tokio::task::JoinSet;

use super::upload_wait::{DiskUse, UploadWait};

/// How often the mount of each volume is checked.
const LOOK: Duration = Duration::from_secs(2);
/// How often all files of a volume are inspected, counted from the end of the last inspection.
const INSPECTION: Duration = Duration::from_secs(600);

/// Watches all volumes until it is dropped.
pub(super) struct VolumeWatches {
    tasks: JoinSet<()>,
    is_over: Arc<AtomicBool>,
}

impl VolumeWatches {
    pub(super) fn begin(
        config: &Config,
        catalogue: &Arc<Catalogue>,
        uploads: Option<&Uploads>,
        engine: &Engine,
    ) -> Self {
        let (mut tasks, is_over) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
        let disks = engine.counters.disks.iter().zip(&engine.volumes);
        for ((index, volume), (counters, facts)) in config.volumes.iter().enumerate().zip(disks) {
            let wait = UploadWait::new(facts.cycle(), volume.upload_floor);
            let volume = Arc::new(VolumeWatch {
                index,
                path: volume.path.clone(),
                mount: volume.mount.clone(),
                takes_uploads: volume.uploads,
                known: config.state.as_deref().map(KnownIdentities::within),
                own: Identity::of(&volume.path).ok().flatten(),
                catalogue: Arc::clone(catalogue),
                uploads: uploads.cloned(),
                counters: Arc::clone(counters),
                wait: Mutex::new(wait),
                begun: Instant::now(),
                is_over: Arc::clone(&is_over),
            });
            tasks.spawn(look(Arc::clone(&volume)));
            tasks.spawn(inspect(volume));
        }
        let catalogue = Arc::clone(catalogue);
        tasks.spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                let catalogue = Arc::clone(&catalogue);
                tokio::task::spawn_blocking(move || catalogue.recheck()).await.ok();
            }
        });
        Self { tasks, is_over }
    }

    /// Stops the watches and releases their resources, except where a disk hangs.
    pub(super) async fn end(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.tasks.shutdown().await;
    }
}

impl Drop for VolumeWatches {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

async fn look(volume: Arc<VolumeWatch>) {
    loop {
        let this = Arc::clone(&volume);
        if tokio::task::spawn_blocking(move || this.look()).await.is_err() {
            tracing::error!(
                "the watch of a volume has failed; changes of its mount are not noticed until a \
                 restart"
            );
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn inspect(volume: Arc<VolumeWatch>) {
    loop {
        let this = Arc::clone(&volume);
        let begun = Instant::now();
        let inspected = tokio::task::spawn_blocking(move || {
            this.catalogue.inspect(this.index, || this.is_over.load(Ordering::Relaxed));
        });
        if inspected.await.is_err() {
            return;
        }
        tokio::time::sleep(INSPECTION.max(begun.elapsed() * 10)).await;
    }
}

/// The watch of one volume.
struct VolumeWatch {
    index: usize,
    path: PathBuf,
    mount: String,
    takes_uploads: bool,
    known: Option<KnownIdentities>,
    /// The volume's identity at the start.
    own: Option<Identity>,
    catalogue: Arc<Catalogue>,
    uploads: Option<Uploads>,
    counters: Arc<DiskCounters>,
    wait: Mutex<UploadWait>,
    begun: Instant,
    is_over: Arc<AtomicBool>,
}

impl VolumeWatch {
    fn look(&self) {
        let conditions = self.catalogue.conditions();
        let shown = self.path.display();
        let reopened = self.catalogue.reopen(self.index, || self.may_take());
        let missing = match reopened {
            Ok(false) => self.is_hidden().then(|| {
                format!(
                    "the disk of {shown} was unmounted or hidden; its open files are still served"
                )
            }),
            Ok(true) => {
                tracing::info!("a new file system is mounted at {shown} and is served from now on");
                let over = || self.is_over.load(Ordering::Relaxed);
                self.catalogue.inspect(self.index, over);
                None
            }
            Err(error) => Some(format!("cannot open {shown}: {error}; mount its disk")),
        };
        conditions.set(Kind::VolumeMissing, &self.mount, missing);
        if !self.takes_uploads {
            return;
        }
        conditions.set(Kind::UploadsRefused, &self.mount, self.refusal());
        let flags = rustix::fs::statvfs(&self.path).map(|about| about.f_flag);
        let is_read_only = flags.is_ok_and(|flags| flags.contains(StatVfsMountFlags::RDONLY));
        let read_only = is_read_only.then(|| {
            format!("the file system of {shown} is read-only; see the kernel's log and remount it")
        });
        conditions.set(Kind::ReadOnly, &self.mount, read_only);
        let store = self.uploads.as_ref().and_then(|uploads| uploads.volumes.get(self.index));
        let uncounted = store.and_then(Option::as_ref).and_then(|store| store.uncounted());
        let uncounted = uncounted.map(|place| {
            format!(
                "uploads with a quota are refused: the size of {place} in {shown} cannot be \
                     determined"
            )
        });
        conditions.set(Kind::QuotaUnknown, &self.mount, uncounted);
        let (now, so_far) = (self.begun.elapsed(), DiskUse::of(&self.counters));
        let mut wait = self.wait.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waits) = wait.look(now, so_far) {
            conditions.set(Kind::UploadsWait, &self.mount, waits);
        }
    }

    /// Whether the mounted file system may replace the open one.
    fn may_take(&self) -> bool {
        let store = self.uploads.as_ref().and_then(|uploads| uploads.volumes.get(self.index));
        let Some(Some(store)) = store else { return true };
        let there = Identity::of(&self.path).ok().flatten();
        if there == self.own {
            return true;
        }
        store.refuse("another file system was mounted over the volume; restart the server");
        // An empty mount point is not a volume: the open file system stays in service.
        there.is_some()
    }

    /// Whether a writable volume is open, but another file system hides it.
    fn is_hidden(&self) -> bool {
        let stores = self.uploads.as_ref().map(|uploads| &uploads.volumes);
        let is_open = stores.and_then(|stores| stores.get(self.index)).is_some_and(Option::is_some);
        is_open
            && self.own.is_some()
            && !Identity::of(&self.path).is_ok_and(|there| there == self.own)
    }

    /// Why uploads are refused.
    fn refusal(&self) -> Option<String> {
        let store = self.uploads.as_ref().and_then(|uploads| uploads.volumes.get(self.index));
        let trouble = self.uploads.as_ref().and_then(|uploads| uploads.trouble(self.index));
        if store.is_some_and(Option::is_some) {
            return trouble;
        }
        match self.known.as_ref().map(|known| known.check(&self.path)) {
            Some(Err(lost)) => Some(lost.to_string()),
            _ if self.uploads.as_ref().is_some_and(|uploads| uploads.is_lost(self.index)) => {
                let shown = self.path.display();
                Some(format!(
                    "the volume is mounted at {shown} again; restart the server to accept uploads"
                ))
            }
            _ => trouble,
        }
    }
}
