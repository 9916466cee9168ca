//! Programs that misuse the descriptor of their working file: they set attributes of the server,
//! give the file other names, and write beyond their claim.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FallocateFlags, XattrFlags};

use super::quota::limits;
use super::working_file::{read, until, work};
use super::*;

/// What a program may write into attributes of its file, for the server to find after a crash.
const PATHS: [&str; 8] = [
    "others/title.ts",
    "../outside.ts",
    "/outside.ts",
    "a/../../outside.ts",
    ".tactus/journal",
    ".TACTUS/failed",
    "link/title.ts",
    "new.ts",
];

fn set(file: &File, name: &str, value: &[u8]) {
    rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()).unwrap();
}

/// The only working file, by its path.
fn only_working(volume_dir: &TestVolume) -> PathBuf {
    let names = std::fs::read_dir(volume_dir.path(".tactus/working")).unwrap();
    let mut paths = names.map(|entry| entry.unwrap().path());
    let found = paths.find(|path| path.extension().is_none()).unwrap();
    assert_eq!(paths.filter(|path| path.extension().is_none()).count(), 0);
    found
}

fn of_studio(path: &str, last: Precondition) -> WorkingFileSpec {
    let (path, principal) = (path.to_owned(), Principal::new("studio"));
    WorkingFileSpec { path, first: Precondition::Any, last, principal }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l05_no_attribute_of_a_file_says_what_it_becomes_after_a_crash() {
    for path in PATHS {
        let volume_dir = TestVolume::new();
        let volume = volume_dir.open().await;
        std::os::unix::fs::symlink("others", volume_dir.path("link")).unwrap();
        let others = content(1, 1000);
        store(&volume, put("others/title.ts", None), &others).await.unwrap();
        let bytes = content(2, 2000);
        let (mut file, write) = work(&volume, "mine/one.ts").await;
        file.grow(2000).unwrap();
        write.write_all_at(&bytes, 0).unwrap();
        let attributes = |file: &File| {
            set(file, "user.tactus.path", path.as_bytes());
            set(file, "user.tactus.owner", b"somebody");
            set(file, "user.tactus.digests", b"1.2.3.4 SHA1:00");
        };
        attributes(&write);
        file.sync().await.unwrap();
        attributes(&write);
        let crashed = volume_dir.crashed();
        let (after, report) = super::open(&crashed, limits(1 << 30)).await;
        assert_eq!(report.working, 1, "{path}");
        until(|| crashed.own("working") == 0).await;
        let mine = ("mine/one.ts".to_owned(), 2000);
        // The link leads to the directory of the other title.
        let mut titles = crashed.titles();
        titles.retain(|(name, _)| !name.starts_with("link/"));
        assert_eq!(titles, [mine, ("others/title.ts".to_owned(), 1000)], "{path}");
        assert!(read(&crashed, "mine/one.ts") == Some(bytes));
        assert!(read(&crashed, "others/title.ts") == Some(others));
        assert!(!crashed.0.path().parent().unwrap().join("outside.ts").exists());
        assert_eq!(after.usage_of(&Principal::new("ann")).stored, 3000, "{path}");
        assert_eq!(after.usage_of(&Principal::new("somebody")), Account::default(), "{path}");
        after.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l05_a_title_has_no_attribute_that_its_program_wrote() {
    let volume_dir = TestVolume::new();
    let bytes = content(3, 1000);
    // A title whose checksums are a file, which goes with it.
    let options = StoreOptions { attribute_units: 0, ..options() };
    let volume = volume_dir.open_with(options).await;
    store(&volume, put("others.ts", None), &bytes).await.unwrap();
    volume.close().await;
    let others = File::open(volume_dir.path("others.ts")).unwrap();
    let id = sums::SumsAttribute::read(&others).unwrap().unwrap().id().unwrap();
    let volume = volume_dir.open().await;
    let spec = WorkingFileSpec {
        principal: Principal::new(""),
        ..of_studio("mine.ts", Precondition::Any)
    };
    let mut file = volume.work(spec).await.unwrap();
    file.grow(1000).unwrap();
    let write = File::from(file.descriptors().unwrap().write);
    write.write_all_at(&bytes, 0).unwrap();
    set(&write, "user.tactus.owner", b"somebody");
    set(&write, "user.tactus.digests", b"1.2.3.4 SHA1:00");
    set(&write, "user.tactus", format!("{id}.{:x}", write.metadata().unwrap().ino()).as_bytes());
    drop(write);
    file.finish().await.unwrap();
    let mine = File::open(volume_dir.path("mine.ts")).unwrap();
    let mut room = [0; 256];
    for name in ["user.tactus.owner", "user.tactus.digests"] {
        assert_eq!(sums::attribute(&mine, name, &mut room), Ok(None), "{name}");
    }
    assert_eq!(sums::SumsAttribute::read(&mine).unwrap().unwrap().id(), None);
    volume.delete("mine.ts", Precondition::Any).await.unwrap();
    until(|| volume_dir.own("trash") == 0).await;
    assert!(volume.sums_of(&others).unwrap().is_some(), "the other title has its checksums");
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l05_a_crash_does_not_widen_the_condition_under_which_a_name_was_permitted() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(4, 2000);
    let mut file = volume.work(of_studio("one.ts", Precondition::CreateOnly)).await.unwrap();
    file.grow(2000).unwrap();
    let write = File::from(file.descriptors().unwrap().write);
    write.write_all_at(&bytes, 0).unwrap();
    file.sync().await.unwrap();
    // Another principal is faster.
    let others = content(5, 1000);
    store(&volume, put("one.ts", None), &others).await.unwrap();
    let crashed = volume_dir.crashed();
    let (after, report) = super::open(&crashed, options()).await;
    assert_eq!(report.working, 1);
    until(|| !lock(&after.inner.waiting).is_empty()).await;
    assert!(read(&crashed, "one.ts").as_ref() == Some(&others));
    assert!(std::fs::read(only_working(&crashed)).unwrap() == bytes, "no byte is lost");
    let held = after.usage_of(&Principal::new("studio"));
    assert_eq!(held, Account { stored: 0, reserved: 2000, uploads: 1 }, "its room is counted");
    // Once the name is free, the next start makes the title.
    after.rename("one.ts", Precondition::Any, "two.ts", ReplacePolicy::Nothing).await.unwrap();
    after.close().await;
    let (after, report) = super::open(&crashed, options()).await;
    assert_eq!(report.working, 1);
    until(|| crashed.own("working") == 0).await;
    assert!(read(&crashed, "one.ts") == Some(bytes));
    assert!(read(&crashed, "two.ts") == Some(others));
    after.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l05_a_title_that_finds_its_name_taken_counts_until_the_next_start() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let mut file = volume.work(of_studio("one.ts", Precondition::CreateOnly)).await.unwrap();
    file.grow(2000).unwrap();
    let write = File::from(file.descriptors().unwrap().write);
    write.write_all_at(&content(6, 2000), 0).unwrap();
    file.sync().await.unwrap();
    store(&volume, put("one.ts", None), &content(7, 1000)).await.unwrap();
    drop(write);
    assert!(matches!(file.finish().await, Err(UploadError::Exists)));
    let held = volume.usage_of(&Principal::new("studio"));
    assert_eq!(held, Account { stored: 0, reserved: 2000, uploads: 1 });
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l05_bytes_whose_record_is_missing_or_damaged_stay_and_get_no_name() {
    for is_damaged in [false, true] {
        let volume_dir = TestVolume::new();
        let volume = volume_dir.open().await;
        let (mut file, write) = work(&volume, "one.ts").await;
        file.grow(10).unwrap();
        write.write_all_at(b"0123456789", 0).unwrap();
        set(&write, "user.tactus.path", b"two.ts");
        file.sync().await.unwrap();
        let crashed = volume_dir.crashed();
        let record = only_working(&crashed).with_extension("record");
        match is_damaged {
            true => {
                let record = File::options().write(true).open(&record).unwrap();
                let (mut value, name) = ([0; 512], "user.tactus.record");
                let len = rustix::fs::fgetxattr(&record, name, &mut value).unwrap();
                value[60] ^= 1;
                set(&record, name, &value[..len]);
            }
            false => std::fs::remove_file(&record).unwrap(),
        }
        let (after, report) = super::open(&crashed, options()).await;
        assert_eq!((report.working, report.strays), (0, 0));
        after.close().await;
        assert!(crashed.titles().is_empty());
        assert_eq!(std::fs::read(only_working(&crashed)).unwrap(), b"0123456789");
    }
}

/// Other names of a working file: on the stage under its own number while it replaces a title, and
/// under the number of another one after that one has replaced it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w5_w8_a_crash_while_names_are_exchanged_loses_nothing_and_brings_nothing_back() {
    for is_replaced in [false, true] {
        let volume_dir = TestVolume::new();
        let volume = volume_dir.open().await;
        let (before, bytes) = (content(8, 1000), content(9, 2000));
        store(&volume, put("one.ts", None), &before).await.unwrap();
        let (mut file, write) = work(&volume, "one.ts").await;
        file.grow(2000).unwrap();
        write.write_all_at(&bytes, 0).unwrap();
        file.sync().await.unwrap();
        let crashed = volume_dir.crashed();
        let working = only_working(&crashed);
        let number = match is_replaced {
            false => working.file_name().unwrap().to_str().unwrap().to_owned(),
            true => StoreId::random().to_string(),
        };
        std::fs::hard_link(&working, crashed.path(".tactus/stage").join(number)).unwrap();
        let (after, report) = super::open(&crashed, options()).await;
        assert_eq!(report.working, usize::from(!is_replaced));
        until(|| crashed.own("working") == 0).await;
        let expected = if is_replaced { before } else { bytes };
        assert!(read(&crashed, "one.ts") == Some(expected));
        assert_eq!(crashed.own("stage"), 0);
        after.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l06_a_program_that_keeps_its_descriptor_keeps_its_claim_and_no_more() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    // Of a file that was dropped, and of one whose copy is a title.
    for is_finished in [false, true] {
        let (mut file, write) = work(&volume, "one.ts").await;
        let permitted = file.grow(1000).unwrap();
        write.write_all_at(&content(10, 1000), 0).unwrap();
        let reserved = match is_finished {
            false => {
                drop(file);
                permitted
            }
            true => {
                file.finish().await.unwrap();
                1000
            }
        };
        let usage = volume.usage();
        assert_eq!((usage.reserved, usage.uploads), (reserved, 1));
        write.set_len(reserved).unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(write.metadata().unwrap().len(), reserved, "it is within its claim");
        write.set_len(reserved + 1).unwrap();
        until(|| write.metadata().unwrap().len() == 0).await;
        assert_eq!(volume.usage().uploads, 1);
        drop(write);
        until(|| volume.usage().uploads == 0).await;
        assert_eq!(volume.usage().reserved, 0);
    }
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l06_a_file_without_its_name_has_a_claim_and_becomes_nothing() {
    let volume_dir = TestVolume::new();
    let limits = Limits { title_max: Bytes(1_000_000), ..Limits::default() };
    let volume = volume_dir.open_with(StoreOptions { limits, ..options() }).await;
    let (mut file, write) = work(&volume, "one.ts").await;
    file.grow(10).unwrap();
    write.write_all_at(b"bytes", 0).unwrap();
    file.sync().await.unwrap();
    file.forget_name().await.unwrap();
    assert_eq!(volume_dir.own("working"), 0);
    write.write_all_at(b" more", 5).unwrap();
    file.sync().await.unwrap();
    assert_eq!(volume_dir.own("working"), 0);
    assert!(matches!(file.grow(1_000_001), Err(UploadError::TooLarge(_))));
    assert!(file.is_within_claim());
    write.set_len(1_000_001).unwrap();
    assert!(!file.is_within_claim());
    drop(write);
    drop(file);
    assert_eq!(volume.usage(), Account::default());
    volume.close().await;
    assert!(volume_dir.titles().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l06_blocks_beyond_the_end_of_a_file_are_beyond_its_claim_and_no_title_has_them() {
    let volume_dir = TestVolume::new();
    let limits = Limits { title_max: Bytes(1_000_000), ..Limits::default() };
    let volume = volume_dir.open_with(StoreOptions { limits, ..options() }).await;
    let (mut file, write) = work(&volume, "one.ts").await;
    file.grow(1000).unwrap();
    let bytes = content(11, 1000);
    write.write_all_at(&bytes, 0).unwrap();
    let allocate = |len| {
        rustix::fs::fallocate(&write, FallocateFlags::KEEP_SIZE, 0, len).unwrap();
    };
    allocate(8 << 20);
    assert!(file.is_within_claim(), "file systems allocate ahead themselves");
    allocate(32 << 20);
    assert!(!file.is_within_claim());
    file.clear();
    assert_eq!(write.metadata().unwrap().blocks(), 0);
    assert!(file.is_within_claim());
    write.write_all_at(&bytes, 0).unwrap();
    allocate(8 << 20);
    let then = std::time::UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789);
    write.set_modified(then).unwrap();
    drop(write);
    file.finish().await.unwrap();
    let title = std::fs::metadata(volume_dir.path("one.ts")).unwrap();
    assert_eq!((title.len(), title.modified().unwrap()), (1000, then));
    assert!(title.blocks() * 512 < 1 << 20, "{} blocks", title.blocks());
    assert!(read(&volume_dir, "one.ts") == Some(bytes));
    volume.close().await;
}

#[tokio::test]
async fn a09_the_server_s_own_directory_belongs_to_no_other_user() {
    let volume_dir = TestVolume::new();
    let own = volume_dir.path(".tactus");
    std::fs::create_dir(&own).unwrap();
    let mode = |mode: u32| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(&own, mode(0o777)).unwrap();
    volume_dir.open().await.close().await;
    assert_eq!(std::fs::metadata(&own).unwrap().mode() & 0o777, 0o755);
    let somebody = 4_000_000_000 + 1;
    if std::os::unix::fs::chown(&own, Some(somebody), None).is_err() {
        println!("skipped: no right to give a directory to another user");
        return;
    }
    let is_refused = |result: Result<(), OpenError>| match result {
        Err(OpenError::Foreign { owner, .. }) => owner == somebody,
        _ => false,
    };
    assert!(is_refused(try_open(&volume_dir, options()).await.map(drop)));
    assert!(is_refused(check(volume_dir.0.path())));
    // The owner of the volume may also own `.tactus`.
    std::os::unix::fs::chown(volume_dir.0.path(), Some(somebody), None).unwrap();
    check(volume_dir.0.path()).unwrap();
    volume_dir.open().await.close().await;
}
