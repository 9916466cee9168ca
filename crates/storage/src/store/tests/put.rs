//! Uploads in one request, replacements, deletions and renames.

use super::*;

const LENGTHS: [usize; 9] = [0, 1, 4095, 4096, 4097, 65_536, 65_537, 131_072, 400_001];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w5_what_is_finished_is_there_with_its_checksums() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    for (seed, len) in LENGTHS.into_iter().enumerate() {
        for known in [true, false] {
            let bytes = content(seed as u64, len);
            let name = format!("a/b{seed}/{known}.ts");
            let what = put(&name, known.then_some(len));
            let finished = store(&volume, what, &bytes).await.unwrap();
            assert!(finished.created);
            assert_eq!(finished.len.0, len as u64);
            assert_eq!(std::fs::read(volume_dir.path(&name)).unwrap(), bytes);
            let file = std::fs::File::open(volume_dir.path(&name)).unwrap();
            let etag = crate::catalogue::FileVersion::of(&rustix::fs::fstat(&file).unwrap()).etag();
            assert_eq!(finished.etag, etag);
            let sums = volume.sums_of(&file).unwrap().unwrap();
            assert_eq!(sums.len().0, len as u64);
            assert_eq!(sums.whole(), crc32c::crc32c(&bytes));
            let units: Vec<_> = bytes.chunks(UNIT as usize).map(crc32c::crc32c).collect();
            assert_eq!(sums.table().units(), units);
        }
    }
    let total = 2 * LENGTHS.iter().sum::<usize>() as u64;
    assert_eq!(volume.usage(), Account { stored: total, reserved: 0, uploads: 0 });
    volume.close().await;
    assert_eq!(volume_dir.own("stage"), 0);
    let long = LENGTHS.iter().filter(|&&len| len as u64 > UNIT).count();
    assert_eq!(volume_dir.own("sums"), 2 * long);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w10_replaced_and_deleted_titles_leave_nothing() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let (old, new) = (content(1, 70_000), content(2, 300_000));
    let first = store(&volume, put("film.ts", None), &old).await.unwrap();
    let reader = std::fs::File::open(volume_dir.path("film.ts")).unwrap();
    let mut only = put("film.ts", Some(new.len()));
    only.precondition = Precondition::CreateOnly;
    assert!(matches!(store(&volume, only.clone(), &new).await, Err(UploadError::Exists)));
    only.precondition = Precondition::Match(vec!["\"0\"".into()]);
    let refused = store(&volume, only.clone(), &new).await;
    assert!(matches!(refused, Err(UploadError::PreconditionFailed)));
    only.precondition = Precondition::Match(vec![first.etag]);
    assert!(!store(&volume, only, &new).await.unwrap().created);
    assert_eq!(std::fs::read(volume_dir.path("film.ts")).unwrap(), new);
    let mut read = Vec::new();
    std::io::Read::read_to_end(&mut &reader, &mut read).unwrap();
    assert_eq!(read, old, "who began with the old version ends with it");
    assert_eq!(volume.usage().stored, new.len() as u64);

    let early = volume.rename("film.ts", Precondition::Any, "x/y/film.ts", ReplacePolicy::Nothing);
    assert!(matches!(early.await, Err(ChangeError::Name(NameFault::NoDirectory))));
    assert!(!volume_dir.path("x").exists());
    volume.make_directory("x").await.unwrap();
    volume.make_directory("x/y").await.unwrap();
    let moved = volume.rename("film.ts", Precondition::Any, "x/y/film.ts", ReplacePolicy::Nothing);
    assert!(moved.await.unwrap().created);
    assert_eq!(volume_dir.titles(), [("x/y/film.ts".to_owned(), new.len() as u64)]);
    let title = std::fs::File::open(volume_dir.path("x/y/film.ts")).unwrap();
    assert!(volume.sums_of(&title).unwrap().is_some());
    volume.delete("x/y/film.ts", Precondition::Any).await.unwrap();
    let gone = volume.delete("x/y/film.ts", Precondition::Any).await;
    assert!(matches!(gone, Err(ChangeError::NotFound)));
    assert_eq!(volume.usage(), Account::default());
    volume.close().await;
    for directory in ["sums", "stage", "trash"] {
        assert_eq!(volume_dir.own(directory), 0, "{directory}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_synced_in_between_without_an_effect_on_the_title() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(3, 300_000);
    for known in [true, false] {
        let mut upload = volume.begin(put("a.ts", known.then_some(bytes.len()))).await.unwrap();
        upload.sync().await.unwrap();
        // Ends within sectors, at their ends, and twice without a byte in between.
        for piece in [0..1, 1..4096, 4096..4096, 4096..131_072, 131_072..140_001] {
            upload.append(&bytes[piece]).await.unwrap();
            upload.sync().await.unwrap();
        }
        assert!(volume_dir.titles().is_empty() || !known, "it has no name");
        upload.append(&bytes[140_001..]).await.unwrap();
        upload.finish().await.unwrap();
        assert_eq!(std::fs::read(volume_dir.path("a.ts")).unwrap(), bytes);
        let file = std::fs::File::open(volume_dir.path("a.ts")).unwrap();
        assert_eq!(volume.sums_of(&file).unwrap().unwrap().whole(), crc32c::crc32c(&bytes));
    }
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_an_empty_directory_is_removed_without_its_contents() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    store(&volume, put("d/a.ts", None), b"one").await.unwrap();
    let full = volume.remove_empty_directory("d").await;
    assert!(matches!(full, Err(ChangeError::Name(NameFault::NotEmpty))));
    let title = volume.remove_empty_directory("d/a.ts").await;
    assert!(matches!(title, Err(ChangeError::Name(NameFault::NoDirectory))));
    volume.delete("d/a.ts", Precondition::Any).await.unwrap();
    volume.remove_empty_directory("d").await.unwrap();
    assert!(!volume_dir.path("d").exists());
    let gone = volume.remove_empty_directory("d").await;
    assert!(matches!(gone, Err(ChangeError::NotFound)));
    // The directory's name has to be made durable anew.
    store(&volume, put("d/a.ts", None), b"two").await.unwrap();
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w10_a_directory_goes_in_one_step_and_is_taken_apart_afterwards() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    volume.make_directory("films").await.unwrap();
    assert!(matches!(volume.make_directory("films/").await, Err(ChangeError::Exists)));
    assert!(matches!(volume.make_directory("none/films").await, Err(ChangeError::Name(_))));
    let bytes = content(3, 200_000);
    for number in 0..100 {
        let name = format!("films/{}/{number}.ts", number % 7);
        store(&volume, put(&name, None), &bytes).await.unwrap();
    }
    let any = || Precondition::Any;
    volume.make_directory("old").await.unwrap();
    volume.rename("films/", any(), "old/films", ReplacePolicy::Nothing).await.unwrap();
    assert_eq!(volume_dir.titles().len(), 100);
    // The same name again, perhaps with the same inodes: the directory's name is made durable
    // again.
    store(&volume, put("films/0/new.ts", None), &bytes).await.unwrap();
    volume.remove("old/", any()).await.unwrap();
    assert_eq!(volume_dir.titles(), [("films/0/new.ts".to_owned(), 200_000)]);
    // Titles in a directory that was taken apart no longer count.
    let left = || (volume_dir.own("trash"), volume_dir.own("sums"), volume.usage().stored);
    for _ in 0..2000 {
        if left() == (0, 1, 200_000) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(left(), (0, 1, 200_000));
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_directory_left_is_taken_apart_by_the_next_start() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    store(&volume, put("films/in/a.ts", None), &content(3, 200_000)).await.unwrap();
    store(&volume, put("b.ts", None), &content(4, 5)).await.unwrap();
    volume.close().await;
    // As if the power had failed right after the answer.
    let trash = volume_dir.path(".tactus/trash").join("0123456789abcdef0123456789abcdef");
    std::fs::rename(volume_dir.path("films"), trash).unwrap();
    let volume = volume_dir.open().await;
    // `own` does not count a directory that is empty, as one is whose contents have just moved.
    let is_empty = || std::fs::read_dir(volume_dir.path(".tactus/trash")).unwrap().next().is_none();
    for _ in 0..2000 {
        if is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!((volume_dir.own("trash"), volume_dir.own("sums")), (0, 0));
    volume.inner.counted().await;
    assert_eq!(volume.usage().stored, 5);
    volume.close().await;
}

/// Counts the open descriptors of the volume's file system during flushes; otherwise plain files.
struct CountingMedium {
    plain: PlainMedium,
    device: u64,
    most: std::sync::atomic::AtomicUsize,
    flushed: Mutex<std::collections::HashSet<u64>>,
}

impl Medium for CountingMedium {
    fn slot_size(&self) -> usize {
        self.plain.slot_size()
    }

    fn places_each(&self) -> usize {
        self.plain.places_each()
    }

    fn reserve(&self, what: medium::Reserve) -> medium::Pending<Arc<dyn Medium>> {
        self.plain.reserve(what)
    }

    fn place(&self) -> medium::Pending<Box<dyn medium::WriteSlot>> {
        self.plain.place()
    }

    fn sync(&self, file: &Arc<OwnedFd>, what: medium::Flush) -> medium::PendingIo {
        // Not by their paths: the kernel would walk up thousands of directories for each.
        let open = std::fs::read_dir("/proc/self/fd").unwrap().filter(|entry| {
            let stat = entry.as_ref().ok().and_then(|entry| rustix::fs::stat(entry.path()).ok());
            stat.is_some_and(|stat| stat.st_dev == self.device)
        });
        self.most.fetch_max(open.count(), std::sync::atomic::Ordering::Relaxed);
        lock(&self.flushed).insert(rustix::fs::fstat(file).unwrap().st_ino);
        self.plain.sync(file, what)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s03_a_path_of_thousands_of_new_directories_needs_few_descriptors() {
    let volume_dir = TestVolume::new();
    let medium = Arc::new(CountingMedium {
        plain: PlainMedium::new(4, 128 * 1024),
        device: rustix::fs::stat(volume_dir.0.path()).unwrap().st_dev,
        most: 0.into(),
        flushed: Mutex::default(),
    });
    let opening =
        Store::open(volume_dir.0.path(), Arc::clone(&medium) as Arc<dyn Medium>, options());
    let volume = opening.await.unwrap().0;
    // A path may have 4096 bytes.
    for depth in [1, 4, 5, 40, 1_900] {
        lock(&medium.flushed).clear();
        let above = format!("{depth}{}", "/d".repeat(depth));
        store(&volume, put(&format!("{above}/t"), None), b"hello").await.unwrap();
        let most = medium.most.load(std::sync::atomic::Ordering::Relaxed);
        assert!(most <= 64, "{most} descriptors for {depth} directories");
        // Each directory must be in one that was flushed after it was created; the last one holds
        // the title.
        let mut at =
            rustix::fs::open(volume_dir.0.path(), DIRECTORY, rustix::fs::Mode::empty()).unwrap();
        for segment in above.split('/') {
            let inode = rustix::fs::fstat(&at).unwrap().st_ino;
            assert!(lock(&medium.flushed).contains(&inode), "{segment} of {depth}");
            at = rustix::fs::openat(&at, segment, DIRECTORY, rustix::fs::Mode::empty()).unwrap();
        }
        assert!(lock(&medium.flushed).contains(&rustix::fs::fstat(&at).unwrap().st_ino));
        // Durable names are not flushed again.
        lock(&medium.flushed).clear();
        store(&volume, put(&format!("{above}/u"), None), b"hello").await.unwrap();
        assert!(lock(&medium.flushed).len() <= 2, "{depth}: {:?}", lock(&medium.flushed).len());
    }
    volume.close().await;
}

const DIRECTORY: rustix::fs::OFlags = rustix::fs::OFlags::DIRECTORY;
