//! Failing writes and flushes (W9), full disks, and other servers on the same volume.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Fails one write or flush, once; all others are real.
#[derive(Clone)]
struct Failing {
    plain: PlainMedium,
    /// Operations before the failing one.
    left: Arc<AtomicUsize>,
    after: Arc<AtomicUsize>,
}

impl Failing {
    fn at(number: usize) -> Self {
        let (left, after) = (Arc::new(AtomicUsize::new(number)), Arc::default());
        Self { plain: PlainMedium::new(4, 128 * 1024), left, after }
    }

    /// Whether this operation fails.
    fn fails(&self) -> bool {
        let step = |left: usize| left.checked_sub(1);
        match self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step) {
            Ok(left) => left == 1,
            Err(_) => {
                self.after.fetch_add(1, Ordering::SeqCst);
                false
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }
}

fn broken() -> PendingIo {
    Box::pin(async { Err(io::Error::from_raw_os_error(5)) })
}

struct FailingSlot(Box<dyn WriteSlot>, Failing);

impl WriteSlot for FailingSlot {
    fn memory(&mut self) -> &mut [u8] {
        self.0.memory()
    }

    fn write(self: Box<Self>, to: Extent) -> PendingIo {
        if self.1.fails() { broken() } else { self.0.write(to) }
    }
}

impl Medium for Failing {
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
        Box::pin(async move { Box::new(FailingSlot(place.await, this)) as Box<dyn WriteSlot> })
    }

    fn sync(&self, file: &Arc<OwnedFd>, what: Flush) -> PendingIo {
        if self.fails() { broken() } else { self.plain.sync(file, what) }
    }
}

/// The acknowledged operations.
#[derive(Clone, Default)]
pub(super) struct Acked {
    /// Names and their least acknowledged versions.
    put: Option<u64>,
    replaced: Option<u64>,
    deleted: bool,
    upload: Option<StoreId>,
    offset: u64,
    named: bool,
}

const SENT: [usize; 3] = [0, 150_001, 300_000];

fn bytes() -> [Vec<u8>; 3] {
    [content(1, 140_000), content(2, 200_000), content(3, SENT[2])]
}

/// Runs one operation of each kind until one fails.
pub(super) async fn live(
    volume: &Store,
    acked: &Mutex<Acked>,
) -> Result<(), Box<dyn std::error::Error>> {
    let [old, new, live] = bytes();
    store(volume, put("a/film.ts", Some(old.len())), &old).await?;
    lock(acked).put = Some(1);
    store(volume, put("gone.ts", None), &old[..10]).await?;
    store(volume, put("a/film.ts", None), &new).await?;
    lock(acked).replaced = Some(2);
    let create = Create {
        path: Some("live.ts".into()),
        len: Some(live.len() as u64),
        precondition: Precondition::CreateOnly,
        principal: Principal::new("ann"),
        metadata: Vec::new(),
    };
    let id = volume.create(create).await?;
    lock(acked).upload = Some(id);
    let ann = Principal::new("ann");
    for ends in SENT.windows(2) {
        let mut appender = volume.append(&id, &ann, ends[0] as u64).await?;
        appender.append(&live[ends[0]..ends[1]]).await?;
        let offset = appender.commit().await?;
        lock(acked).offset = offset;
    }
    volume.delete("gone.ts", Precondition::Any).await?;
    lock(acked).deleted = true;
    volume.finish(&id, &ann).await?;
    lock(acked).named = true;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w9_a_failed_write_or_flush_ends_all_writing_and_loses_nothing() {
    let mut number = 0;
    loop {
        number += 1;
        let volume_dir = TestVolume::new();
        let medium = Failing::at(number);
        let acked = Mutex::default();
        match Store::open(volume_dir.0.path(), Arc::new(medium.clone()), options()).await {
            Err(error) => assert!(matches!(error, OpenError::Failed { .. }), "{error}"),
            Ok((volume, _)) => {
                let lived = live(&volume, &acked).await;
                if !medium.has_failed() {
                    lived.unwrap();
                    volume.close().await;
                    break;
                }
                assert!(lived.is_err(), "operation {number} failed and nobody heard of it");
                assert!(volume.broken().is_some());
                let operations = medium.after.load(Ordering::SeqCst);
                let refused = store(&volume, put("later.ts", None), b"x").await;
                assert!(matches!(refused, Err(UploadError::ReadOnly(_))));
                let refused = volume.delete("a/film.ts", Precondition::Any).await;
                assert!(matches!(refused, Err(ChangeError::ReadOnly(_))));
                assert_eq!(medium.after.load(Ordering::SeqCst), operations, "nothing is tried");
                volume.close().await;
                // No start writes to the volume before the operator has cleared the mark.
                let opened = Store::open(volume_dir.0.path(), Arc::new(medium.clone()), options());
                assert!(matches!(opened.await, Err(OpenError::Unchecked(_))));
                assert_eq!(medium.after.load(Ordering::SeqCst), operations);
                assert!(clear_failed(volume_dir.0.path()).unwrap());
                assert!(!clear_failed(volume_dir.0.path()).unwrap());
            }
        }
        let acked = lock(&acked).clone();
        judge(&volume_dir, &acked, number).await;
    }
    assert!(number > 20, "only {number} operations");
}

/// After the next start, every acknowledged change is there, and no change is there by half.
async fn judge(volume_dir: &TestVolume, acked: &Acked, number: usize) {
    judge_opened(volume_dir, volume_dir.open().await, acked, number).await;
}

pub(super) async fn judge_opened(
    volume_dir: &TestVolume,
    volume: Store,
    acked: &Acked,
    number: usize,
) {
    let [old, new, live] = bytes();
    let film = std::fs::read(volume_dir.path("a/film.ts")).ok();
    match &film {
        None => assert!(acked.put.is_none(), "operation {number}"),
        Some(film) if *film == old => assert!(acked.replaced.is_none(), "operation {number}"),
        Some(film) => assert!(*film == new, "operation {number}: a torn title"),
    }
    for (name, _) in volume_dir.titles() {
        let verdict = verify(volume_dir.0.path(), &name, &mut |_| {}).unwrap();
        assert!(matches!(verdict, Verdict::Whole(_)), "operation {number}: {name}: {verdict:?}");
    }
    assert!(!acked.deleted || !volume_dir.path("gone.ts").exists());
    let ann = Principal::new("ann");
    if let Some(id) = &acked.upload {
        let status = volume.status(id, &ann).unwrap();
        assert!(status.offset >= acked.offset, "operation {number}");
        assert!(status.finished || !acked.named);
        let from = status.offset as usize;
        if from < live.len() {
            let mut appender = volume.append(id, &ann, status.offset).await.unwrap();
            appender.append(&live[from..]).await.unwrap();
            appender.commit().await.unwrap();
        }
        volume.finish(id, &ann).await.unwrap();
        assert!(std::fs::read(volume_dir.path("live.ts")).unwrap() == live, "operation {number}");
    }
    volume.close().await;
    for directory in ["uploads", "stage", "trash"] {
        let left = volume_dir.own(directory);
        // An upload that was never acknowledged may remain until it expires.
        let may = usize::from(directory == "uploads" && acked.upload.is_none());
        assert!(left <= may, "operation {number}: {left} in {directory}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u16_what_is_dropped_at_any_byte_leaves_nothing() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(4, 300_000);
    for len in (0..=bytes.len()).step_by(23_077).chain([1, 4096, 65_536, 131_072, 262_144]) {
        for declared in [Some(bytes.len()), None] {
            let mut upload = volume.begin(put("x/y.ts", declared)).await.unwrap();
            upload.append(&bytes[..len]).await.unwrap();
            if len % 2 == 0 {
                upload.park();
            }
            if declared.is_some_and(|declared| declared > len) {
                let early = upload.finish().await;
                assert!(matches!(early, Err(UploadError::Incomplete { .. })));
            }
        }
    }
    assert_eq!(volume.usage(), Account::default());
    assert_eq!(volume_dir.titles(), []);
    assert!(!volume_dir.path("x").exists());
    volume.close().await;
    for directory in ["uploads", "stage", "trash", "sums"] {
        assert_eq!(volume_dir.own(directory), 0, "{directory}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u02_u09_what_is_too_large_is_refused_before_or_at_its_first_byte_too_many() {
    let volume_dir = TestVolume::new();
    let limits = Limits { title_max: Bytes(1000), ..Limits::default() };
    let volume = volume_dir.open_with(StoreOptions { limits, ..options() }).await;
    let refused = volume.begin(put("a.ts", Some(1001))).await.map(drop);
    assert!(matches!(refused, Err(UploadError::TooLarge(1000))));
    let mut upload = volume.begin(put("a.ts", None)).await.unwrap();
    upload.append(&content(1, 1000)).await.unwrap();
    assert!(matches!(upload.append(b"x").await, Err(UploadError::TooLarge(1000))));
    drop(upload);
    let mut upload = volume.begin(put("a.ts", Some(10))).await.unwrap();
    assert!(matches!(upload.append(&[0; 11]).await, Err(UploadError::TooLarge(10))));
    drop(upload);
    volume.close().await;
    assert_eq!(volume_dir.titles(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_reserve_stays_free_and_deletions_go_on() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    store(&volume, put("a.ts", None), b"something").await.unwrap();
    volume.close().await;
    let limits = Limits { reserve_min: Bytes(1 << 60), ..Limits::default() };
    let volume = volume_dir.open_with(StoreOptions { limits, ..options() }).await;
    let refused = volume.begin(put("b.ts", Some(1))).await.map(drop);
    assert!(matches!(refused, Err(UploadError::NoSpace)));
    let mut unknown = volume.begin(put("b.ts", None)).await.unwrap();
    assert!(matches!(unknown.append(b"1").await, Err(UploadError::NoSpace)));
    drop(unknown);
    assert!(volume.broken().is_none());
    volume.delete("a.ts", Precondition::Any).await.unwrap();
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_never_share_a_volume() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let medium = Arc::new(PlainMedium::default());
    let second = Store::open(volume_dir.0.path(), medium, options()).await;
    assert!(matches!(second, Err(OpenError::InUse(_))));
    volume.close().await;
    volume_dir.open().await.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a02_a07_names_lead_nowhere_else() {
    let volume_dir = TestVolume::new();
    let outside = TestVolume::new();
    let volume = volume_dir.open().await;
    std::fs::create_dir_all(volume_dir.path("dir/below")).unwrap();
    std::fs::write(volume_dir.path("file"), b"file").unwrap();
    std::os::unix::fs::symlink(outside.0.path(), volume_dir.path("link")).unwrap();
    std::os::unix::fs::symlink(outside.path("x"), volume_dir.path("dangling")).unwrap();
    let attempt = async |path: &str| store(&volume, put(path, None), b"x").await.map(drop);
    for path in [".tactus/x", ".Tactus", "dir/.tactus-y", ".tactus/uploads/x"] {
        let refused = attempt(path).await;
        assert!(matches!(refused, Err(UploadError::Name(NameFault::Reserved))), "{path}");
    }
    for path in ["", "/a", "a/", "a//b", "../a", "a/../b", ".", "a\0b"] {
        let refused = attempt(path).await;
        assert!(matches!(refused, Err(UploadError::Name(NameFault::Path(_)))), "{path}");
    }
    for path in ["link/x", "file/x", "dir/below/../../link/x"] {
        let refused = attempt(path).await;
        assert!(matches!(refused, Err(UploadError::Name(_))), "{path}");
    }
    for path in ["dir", "dir/below", "dangling", "link"] {
        let refused = attempt(path).await;
        assert!(matches!(refused, Err(UploadError::Name(NameFault::NoTitle))), "{path}");
        let refused = volume.delete(path, Precondition::Any).await;
        assert!(matches!(refused, Err(ChangeError::Name(NameFault::NoTitle))), "{path}");
    }
    assert_eq!(std::fs::read_dir(outside.0.path()).unwrap().count(), 0);
    assert!(volume.broken().is_none());
    volume.close().await;
}
