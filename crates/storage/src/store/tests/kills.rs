//! The process ends between two writes or flushes: the state after the next start.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use super::faults::{judge_opened, live};
use super::quota::{compare, limits};
use super::resume::{ann, create, send};
use super::*;

/// Permits a number of writes and flushes, and none after them, as if the process had ended.
#[derive(Clone)]
struct Ending {
    plain: PlainMedium,
    left: Arc<AtomicUsize>,
    over: Arc<Notify>,
}

impl Ending {
    fn after(count: usize) -> Self {
        let (left, over) = (Arc::new(AtomicUsize::new(count)), Arc::default());
        Self { plain: PlainMedium::new(4, 128 * 1024), left, over }
    }

    fn next(&self, what: impl FnOnce() -> PendingIo) -> PendingIo {
        let step = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step).is_ok() {
            return what();
        }
        self.over.notify_one();
        Box::pin(std::future::pending())
    }
}

struct EndingSlot(Box<dyn WriteSlot>, Ending);

impl WriteSlot for EndingSlot {
    fn memory(&mut self) -> &mut [u8] {
        self.0.memory()
    }

    fn write(self: Box<Self>, to: Extent) -> PendingIo {
        let Self(place, ending) = *self;
        ending.next(|| place.write(to))
    }
}

impl Medium for Ending {
    fn slot_size(&self) -> usize {
        self.plain.slot_size()
    }

    fn places_each(&self) -> usize {
        2
    }

    fn reserve(&self, _what: Reserve) -> Pending<Arc<dyn Medium>> {
        let this = self.clone();
        Box::pin(async move { Arc::new(this) as Arc<dyn Medium> })
    }

    fn place(&self) -> Pending<Box<dyn WriteSlot>> {
        let (place, this) = (self.plain.place(), self.clone());
        Box::pin(async move { Box::new(EndingSlot(place.await, this)) as Box<dyn WriteSlot> })
    }

    fn sync(&self, file: &Arc<OwnedFd>, what: Flush) -> PendingIo {
        self.next(|| self.plain.sync(file, what))
    }
}

/// A runtime in place of a process: at its end, tasks stop at their await points and threads after
/// their current work.
fn process() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

const END_WITHIN: Duration = Duration::from_secs(60);
/// More than these tests store.
const QUOTA: u64 = 4 << 20;

/// Compares the quotas after a start with the disk, once the census and all names are complete.
async fn audit(volume_dir: &TestVolume, volume: &Store) {
    settle(volume).await;
    let open = volume.inner.journal.look(|table| {
        let open = table.entries().filter(|(_, entry)| entry.named.is_none());
        let open = open.map(|(id, entry)| {
            (*id, entry.created.principal.clone(), entry.len.unwrap_or(entry.mark.len))
        });
        open.collect::<Vec<_>>()
    });
    compare(volume_dir, volume, &open);
}

/// Waits until the stored titles are counted, and every complete upload has its name and is closed.
async fn settle(volume: &Store) {
    volume.inner.counted().await;
    let complete = volume.inner.journal.look(|table| {
        let complete = table.entries().filter(|(_, entry)| entry.is_complete());
        complete.map(|(id, _)| *id).collect::<Vec<_>>()
    });
    for id in complete {
        volume.finish(&id, &ann()).await.unwrap();
        // The claim is released shortly after the journal record.
        while volume.inner.sessions.find(&id).is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Runs until write or flush `number`, and checks the state after the next start. Returns whether
/// the run had fewer operations than that.
fn killed_at(number: usize) -> bool {
    let volume_dir = TestVolume::new();
    let ending = Ending::after(number);
    let acked = Arc::default();
    let first = process();
    let lived = first.block_on(async {
        let (medium, told) = (Arc::new(ending.clone()), Arc::clone(&acked));
        let path = volume_dir.0.path().to_owned();
        let work = tokio::spawn(async move {
            let (volume, _) = Store::open(&path, medium, limits(QUOTA)).await.unwrap();
            live(&volume, &told).await.unwrap();
            volume.close().await;
        });
        tokio::select! {
            done = work => { done.unwrap(); true }
            () = ending.over.notified() => false,
        }
    });
    first.shutdown_timeout(END_WITHIN);
    process().block_on(async {
        let volume = volume_dir.open_with(limits(QUOTA)).await;
        audit(&volume_dir, &volume).await;
        let acked = lock(&acked).clone();
        judge_opened(&volume_dir, volume, &acked, number).await;
    });
    lived
}

/// Tasks that end with the server lose the results of their writes: this is not a disk failure.
#[tokio::test]
async fn a_stop_is_no_failure_of_the_disk() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open_with(limits(QUOTA)).await;
    volume.inner.write_failed(crate::store::medium::stopped());
    assert!(volume.inner.writable().is_err(), "nothing more is tried");
    volume.close().await;
    volume_dir.open_with(limits(QUOTA)).await.close().await;
}

#[test]
fn p4_p12_a_kill_at_any_write_or_flush_loses_nothing_and_keeps_no_room() {
    let (next, last) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
    // Most of a case waits for the disk.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number > last.load(Ordering::SeqCst) {
                        break;
                    }
                    if killed_at(number) {
                        last.fetch_min(number, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    let last = last.into_inner();
    assert!(last > 20, "only {last} operations");
}

/// The census of a start may or may not see a title that gets its name at the same time: the thread
/// that names it cannot tell.
#[test]
fn a_title_that_is_named_while_a_start_counts_is_counted_once() {
    process().block_on(async {
        let volume_dir = TestVolume::new();
        let volume = volume_dir.open_with(limits(QUOTA)).await;
        let bytes = content(12, 123_456);
        let id = volume.create(create("a.ts", Some(bytes.len()))).await.unwrap();
        send(&volume, &id, 0, &bytes).await;
        volume.close().await;
        let (may_count, counts) = tokio::sync::oneshot::channel::<()>();
        let medium = Arc::new(PlainMedium::new(4, 128 * 1024));
        let path = volume_dir.0.path();
        let after = async { drop(counts.await) };
        let opening = Store::open_and_count(path, medium, limits(QUOTA), after);
        let (volume, opened) = opening.await.unwrap();
        assert_eq!(opened.unnamed, 1);
        // Long enough for an operation that does not wait.
        for _ in 0..50 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            assert!(!volume_dir.path("a.ts").exists(), "it is named beside the count");
        }
        may_count.send(()).unwrap();
        settle(&volume).await;
        compare(&volume_dir, &volume, &[]);
        volume.close().await;
    });
}
