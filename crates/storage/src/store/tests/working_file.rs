//! Titles that are written in place: what of them survives which end.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::*;

pub(super) async fn work(store: &Store, path: &str) -> (WorkingFile, File) {
    let (path, principal) = (path.to_owned(), Principal::new("ann"));
    let (first, last) = (Precondition::Any, Precondition::Any);
    let spec = WorkingFileSpec { path, first, last, principal };
    let file = store.work(spec).await.unwrap();
    let descriptors = file.descriptors().unwrap();
    (file, descriptors.write.into())
}

pub(super) fn read(volume_dir: &TestVolume, name: &str) -> Option<Vec<u8>> {
    std::fs::read(volume_dir.path(name)).ok()
}

/// The checksums of a title, which it may get after its name. Until then there are none.
async fn sums_at_last(volume: &Store, title: &Path) -> Arc<Sums> {
    let title = File::open(title).unwrap();
    for _ in 0..500 {
        if let Some(sums) = volume.sums_of(&title).unwrap() {
            return sums;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it gets no checksums");
}

/// Waits for what a start does in the background.
pub(super) async fn until(holds: impl Fn() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it does not happen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w5_a_working_file_is_no_title_before_its_end_and_gets_its_checksums() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let before = content(1, 1000);
    store(&volume, put("one.ts", None), &before).await.unwrap();
    for len in [0, 1, 65_536, 200_001] {
        let bytes = content(2, len);
        for is_synced in [false, true] {
            let (mut file, write) = work(&volume, "one.ts").await;
            assert!(file.grow(len as u64).unwrap() >= len as u64);
            write.write_all_at(&bytes, 0).unwrap();
            let present = read(&volume_dir, "one.ts");
            if is_synced {
                file.sync().await.unwrap();
            }
            assert!(read(&volume_dir, "one.ts") == present);
            assert!(file.is_within_claim());
            drop(write);
            let stored = file.finish().await.unwrap();
            assert_eq!((stored.created, stored.len.0), (false, len as u64));
            assert!(read(&volume_dir, "one.ts").as_ref() == Some(&bytes));
            let sums = sums_at_last(&volume, &volume_dir.path("one.ts")).await;
            assert_eq!((sums.len().0, sums.whole()), (len as u64, crc32c::crc32c(&bytes)));
            assert_eq!(volume_dir.own("sums/due"), 0);
            until(|| volume_dir.own("working") == 0).await;
        }
    }
    assert_eq!(volume.usage(), Account { stored: 200_001, reserved: 0, uploads: 0 });
    volume.close().await;
    assert_eq!(volume_dir.own("stage"), 0);
}

/// Plain files, and flushes of one directory that wait for a test.
struct HeldFlushes {
    plain: PlainMedium,
    /// The directory's inode; 0: none.
    directory: AtomicU64,
    begun: AtomicUsize,
    is_open: watch::Sender<bool>,
}

impl Medium for HeldFlushes {
    fn slot_size(&self) -> usize {
        self.plain.slot_size()
    }

    fn places_each(&self) -> usize {
        2
    }

    fn place(&self) -> Pending<Box<dyn WriteSlot>> {
        self.plain.place()
    }

    fn reserve(&self, what: Reserve) -> Pending<Arc<dyn Medium>> {
        self.plain.reserve(what)
    }

    fn sync(&self, file: &Arc<OwnedFd>, what: Flush) -> PendingIo {
        let flush = self.plain.sync(file, what);
        if rustix::fs::fstat(file).unwrap().st_ino != self.directory.load(Ordering::SeqCst) {
            return flush;
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        let mut is_open = self.is_open.subscribe();
        Box::pin(async move {
            is_open.wait_for(|&is_open| is_open).await.map_err(io::Error::other)?;
            flush.await
        })
    }
}

/// Without this, a power failure brings the bytes of a working file back over newer ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w10_no_change_is_answered_while_the_name_of_a_working_file_may_come_back() {
    let volume_dir = TestVolume::new();
    let (is_open, _) = watch::channel(false);
    let held = Arc::new(HeldFlushes {
        plain: PlainMedium::new(4, 128 * 1024),
        directory: AtomicU64::new(0),
        begun: AtomicUsize::new(0),
        is_open,
    });
    let medium = Arc::clone(&held) as Arc<dyn Medium>;
    let (volume, _) = Store::open(volume_dir.0.path(), medium, options()).await.unwrap();
    let (mut file, write) = work(&volume, "one.ts").await;
    file.grow(5).unwrap();
    write.write_all_at(b"bytes", 0).unwrap();
    file.sync().await.unwrap();
    drop(write);
    let working = std::fs::metadata(volume_dir.path(".tactus/working")).unwrap();
    // The first change after a start flushes what the last run may have left.
    held.directory.store(working.ino(), Ordering::SeqCst);
    let finished = tokio::spawn(file.finish());
    until(|| held.begun.load(Ordering::SeqCst) == 1).await;
    assert!(!finished.is_finished());
    held.is_open.send_replace(true);
    finished.await.unwrap().unwrap();
    until(|| held.begun.load(Ordering::SeqCst) == 2).await;

    let (mut file, write) = work(&volume, "two.ts").await;
    file.grow(5).unwrap();
    write.write_all_at(b"bytes", 0).unwrap();
    file.sync().await.unwrap();
    drop(write);
    until(|| volume.inner.removals.pending().is_none()).await;
    held.begun.store(0, Ordering::SeqCst);
    held.is_open.send_replace(false);
    // It is a title, and its flush is under way.
    file.finish().await.unwrap();
    assert!(read(&volume_dir, "two.ts").as_deref() == Some(b"bytes"));
    assert_eq!(volume_dir.own("working"), 1, "bytes never outlive their record");
    until(|| held.begun.load(Ordering::SeqCst) == 1).await;
    let other = volume.clone();
    let deleted = tokio::spawn(async move { other.delete("two.ts", Precondition::Any).await });
    until(|| held.begun.load(Ordering::SeqCst) == 2).await;
    assert!(read(&volume_dir, "two.ts").is_none() && !deleted.is_finished());
    held.is_open.send_replace(true);
    deleted.await.unwrap().unwrap();
    // Nothing is left to flush.
    until(|| volume.inner.removals.pending().is_none()).await;
    until(|| volume_dir.own("working") == 0).await;
    held.begun.store(0, Ordering::SeqCst);
    volume.delete("one.ts", Precondition::Any).await.unwrap();
    assert_eq!(held.begun.load(Ordering::SeqCst), 0);
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w8_what_was_synced_has_its_name_after_the_next_start_and_the_rest_is_gone() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(3, 300_000);
    let (mut synced, write) = work(&volume, "a/synced.ts").await;
    synced.grow(300_000).unwrap();
    write.write_all_at(&bytes, 0).unwrap();
    synced.sync().await.unwrap();
    synced.retarget("a/renamed.ts", Precondition::Any).await.unwrap();
    let (mut dropped, other) = work(&volume, "a/dropped.ts").await;
    dropped.grow(10).unwrap();
    other.write_all_at(b"bytes", 0).unwrap();
    dropped.sync().await.unwrap();
    drop(dropped);
    let (unsynced, last) = work(&volume, "a/unsynced.ts").await;
    last.write_all_at(b"bytes", 0).unwrap();
    assert_eq!(volume_dir.own("working"), 2, "the file and its record");
    let another = volume_dir.crashed();
    let (after, report) = super::open(&another, options()).await;
    assert_eq!((report.working, report.strays), (1, 0));
    until(|| read(&another, "a/renamed.ts").as_ref() == Some(&bytes)).await;
    until(|| another.own("working") == 0).await;
    assert_eq!(another.titles(), [("a/renamed.ts".to_owned(), 300_000)]);
    assert_eq!(after.usage().stored, 300_000);
    after.close().await;
    drop((synced, unsynced));
    assert_eq!(volume_dir.own("working"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_a_program_can_still_write_is_copied() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(4, 100_000);
    let (file, write) = work(&volume, "one.ts").await;
    write.write_all_at(&bytes, 0).unwrap();
    file.finish().await.unwrap();
    write.write_all_at(b"late", 0).unwrap();
    assert!(read(&volume_dir, "one.ts").as_ref() == Some(&bytes));
    let sums = sums_at_last(&volume, &volume_dir.path("one.ts")).await;
    assert_eq!(sums.whole(), crc32c::crc32c(&bytes));
}

/// Puts the checksums of a title back to where a crash before they were made would leave them, with
/// a part of them written. Returns the mark.
fn make_due(volume_dir: &TestVolume, name: &str) -> PathBuf {
    let title = File::open(volume_dir.path(name)).unwrap();
    let id = sums::SumsAttribute::read(title).unwrap().unwrap().id().unwrap();
    let [mark, _] = sums::due_places(id).map(|place| volume_dir.path(".tactus/sums").join(place));
    let made = volume_dir.path(".tactus/sums").join(sums::place_of(id));
    std::fs::rename(made, &mark).unwrap();
    File::options().write(true).open(&mark).unwrap().set_len(10).unwrap();
    mark
}

/// Makes `path` as old as a file of an earlier run.
fn age(path: &Path) {
    let then = std::time::SystemTime::now() - Duration::from_secs(60);
    File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w4_checksums_that_are_due_are_made_by_the_next_start_wherever_their_title_is() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(5, 300_000);
    for path in ["a/stays.ts", "a/moves.ts", "a/goes.ts"] {
        store(&volume, put(path, None), &bytes).await.unwrap();
    }
    volume.close().await;
    let version = |name: &str| {
        let stat = rustix::fs::stat(volume_dir.path(name)).unwrap();
        crate::catalogue::FileVersion::of(&stat)
    };
    let before = version("a/stays.ts");
    let marks = ["a/stays.ts", "a/moves.ts", "a/goes.ts"].map(|name| make_due(&volume_dir, name));
    marks.iter().for_each(|mark| age(mark));
    // What reads the volume without a store reads it without comparison, and so does `verify`.
    let title = File::open(volume_dir.path("a/stays.ts")).unwrap();
    let root = File::open(volume_dir.0.path()).unwrap();
    assert_eq!(Manifests::look_up(root.as_fd(), title.as_fd()), Ok(None));
    let verdict = verify(volume_dir.0.path(), "a/stays.ts", &mut |_| {}).unwrap();
    assert_eq!(verdict, Verdict::NoSums);
    // By other programs, without the server.
    std::fs::create_dir(volume_dir.path("b")).unwrap();
    std::fs::rename(volume_dir.path("a/moves.ts"), volume_dir.path("b/moved.ts")).unwrap();
    std::fs::remove_file(volume_dir.path("a/goes.ts")).unwrap();

    let volume = volume_dir.open().await;
    for name in ["a/stays.ts", "b/moved.ts"] {
        let sums = sums_at_last(&volume, &volume_dir.path(name)).await;
        assert_eq!(sums.whole(), crc32c::crc32c(&bytes));
    }
    assert_eq!(version("a/stays.ts"), before, "readers go on with the version that they have");
    until(|| volume.checksums_due() == 0).await;
    volume.close().await;
    // The mark of the third is renamed by the first census without its title, and removed by the
    // next one.
    assert_eq!(volume_dir.own("sums/due"), 1);
    let volume = volume_dir.open().await;
    until(|| volume_dir.own("sums/due") == 0).await;
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w4_a_mark_whose_title_a_census_has_missed_is_good_when_it_is_found() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(6, 300_000);
    store(&volume, put("one.ts", None), &bytes).await.unwrap();
    volume.close().await;
    let mark = make_due(&volume_dir, "one.ts");
    let unfound = PathBuf::from(format!("{}{}", mark.display(), sums::UNFOUND));
    std::fs::rename(&mark, &unfound).unwrap();
    let title = File::open(volume_dir.path("one.ts")).unwrap();
    let root = File::open(volume_dir.0.path()).unwrap();
    assert_eq!(Manifests::look_up(root.as_fd(), title.as_fd()), Ok(None), "it is not damaged");
    let volume = volume_dir.open().await;
    let sums = sums_at_last(&volume, &volume_dir.path("one.ts")).await;
    assert_eq!(sums.whole(), crc32c::crc32c(&bytes));
    volume.close().await;
    // Without mark and checksums it is.
    let mark = make_due(&volume_dir, "one.ts");
    std::fs::remove_file(mark).unwrap();
    let found = Manifests::look_up(root.as_fd(), title.as_fd());
    assert_eq!(found, Err(ChecksumFault::Missing));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w10_a_title_that_is_deleted_or_replaced_leaves_no_checksums_and_no_mark() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(7, 20_000_000);
    for number in 0..4 {
        let (mut file, write) = work(&volume, "one.ts").await;
        file.grow(bytes.len() as u64).unwrap();
        write.write_all_at(&bytes, 0).unwrap();
        drop(write);
        file.finish().await.unwrap();
        if number == 3 {
            volume.delete("one.ts", Precondition::Any).await.unwrap();
        }
    }
    until(|| volume.checksums_due() == 0).await;
    let manifests = |volume_dir: &TestVolume| {
        (0..=0xff_u8).map(|first| volume_dir.own(&format!("sums/{first:02x}"))).sum::<usize>()
    };
    until(|| volume_dir.own("trash") == 0).await;
    assert_eq!((volume_dir.own("sums/due"), manifests(&volume_dir)), (0, 0));
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_needed_before_the_bytes_and_its_limits_are_kept() {
    let volume_dir = TestVolume::new();
    let limits = Limits { title_max: Bytes(1_000_000), ..Limits::default() };
    let volume = volume_dir.open_with(StoreOptions { limits, ..options() }).await;
    let (mut file, write) = work(&volume, "one.ts").await;
    assert!(file.is_within_claim());
    assert_eq!(file.grow(10).unwrap(), 1_000_000, "no more than a title may have");
    assert!(matches!(file.grow(1_000_001), Err(UploadError::TooLarge(1_000_000))));
    write.set_len(1_000_001).unwrap();
    assert!(!file.is_within_claim());
    file.clear();
    assert_eq!(write.metadata().unwrap().len(), 0);
    drop(write);
    drop(file);
    assert_eq!(volume.usage(), Account::default());
}
