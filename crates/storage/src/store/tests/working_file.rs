//! Titles that are written in place: what of them survives which end.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;

async fn work(store: &Store, path: &str) -> (WorkingFile, File) {
    let (path, principal) = (path.to_owned(), Principal::new("ann"));
    let (first, last) = (Precondition::Any, Precondition::Any);
    let spec = WorkingFileSpec { path, first, last, principal };
    let file = store.work(spec).await.unwrap();
    let descriptors = file.descriptors().unwrap();
    (file, descriptors.write.into())
}

fn read(volume_dir: &TestVolume, name: &str) -> Option<Vec<u8>> {
    std::fs::read(volume_dir.path(name)).ok()
}

/// Waits for what a start does in the background.
async fn until(holds: impl Fn() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it does not happen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w5_a_working_file_is_no_title_before_its_end_and_has_its_checksums_then() {
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
            let title = File::open(volume_dir.path("one.ts")).unwrap();
            let sums = volume.sums_of(&title).unwrap().unwrap();
            assert_eq!((sums.len().0, sums.whole()), (len as u64, crc32c::crc32c(&bytes)));
            assert_eq!(volume_dir.own("working"), 0);
        }
    }
    assert_eq!(volume.usage(), Account { stored: 200_001, reserved: 0, uploads: 0 });
    volume.close().await;
    assert_eq!(volume_dir.own("stage"), 0);
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
    assert_eq!(volume_dir.own("working"), 1);
    // The volume as a crash would leave it.
    let another = TestVolume::new();
    let mut copy = std::process::Command::new("cp");
    copy.arg("-a").arg(volume_dir.path(".tactus")).arg(another.0.path());
    assert!(copy.status().unwrap().success());
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
    let title = File::open(volume_dir.path("one.ts")).unwrap();
    assert_eq!(volume.sums_of(&title).unwrap().unwrap().whole(), crc32c::crc32c(&bytes));
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
