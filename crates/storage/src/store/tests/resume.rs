//! Resumable uploads: W8 under crashes, concurrent requests and other principals.

use std::time::{Duration, SystemTime};

use tactus_core::units::WallTime;

use super::*;

pub(super) fn create(path: &str, len: Option<usize>) -> Create {
    Create {
        path: Some(path.to_owned()),
        len: len.map(|len| len as u64),
        precondition: Precondition::Any,
        principal: ann(),
        metadata: b"filename ZmlsbQ==".to_vec(),
    }
}

pub(super) fn ann() -> Principal {
    Principal::new("ann")
}

pub(super) async fn send(store: &Store, id: &StoreId, offset: usize, bytes: &[u8]) -> u64 {
    let mut appender = store.append(id, &ann(), offset as u64).await.unwrap();
    for piece in bytes.chunks(9_973) {
        appender.append(piece).await.unwrap();
    }
    appender.commit().await.unwrap()
}

fn offset(store: &Store, id: &StoreId) -> u64 {
    store.status(id, &ann()).unwrap().offset
}

fn whole(volume_dir: &TestVolume, store: &Store, path: &str, bytes: &[u8]) {
    assert_eq!(std::fs::read(volume_dir.path(path)).unwrap(), bytes);
    let file = std::fs::File::open(volume_dir.path(path)).unwrap();
    let sums = store.sums_of(&file).unwrap().expect("uploaded titles have checksums");
    assert_eq!(sums.whole(), crc32c::crc32c(bytes));
    let verdict = verify(volume_dir.0.path(), path, &mut |_| {}).unwrap();
    assert_eq!(verdict, Verdict::Whole(Bytes(bytes.len() as u64)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w8_an_upload_goes_on_at_any_byte_also_after_a_restart() {
    let volume_dir = TestVolume::new();
    let bytes = content(3, 700_001);
    for restart in [false, true] {
        let mut volume = volume_dir.open().await;
        let path = format!("live/{restart}.ts");
        let id = volume.create(create(&path, (!restart).then_some(bytes.len()))).await.unwrap();
        let mut at = 0;
        for step in [1, 4095, 1, 65_000, 440, 131_072, 0, 300_000, usize::MAX] {
            let end = bytes.len().min(at + step.min(bytes.len()));
            assert_eq!(send(&volume, &id, at, &bytes[at..end]).await, end as u64);
            at = end;
            if restart {
                volume.close().await;
                volume = volume_dir.open().await;
            }
            assert_eq!(offset(&volume, &id), at as u64);
        }
        assert_eq!(volume.status(&id, &ann()).unwrap().metadata, b"filename ZmlsbQ==");
        if restart {
            volume.declare(&id, &ann(), bytes.len() as u64).await.unwrap();
        }
        let finished = volume.finish(&id, &ann()).await.unwrap();
        assert_eq!(volume.finish(&id, &ann()).await.unwrap().etag, finished.etag);
        let file = std::fs::File::open(volume_dir.path(&path)).unwrap();
        let etag = crate::catalogue::FileVersion::of(&rustix::fs::fstat(&file).unwrap()).etag();
        assert_eq!(finished.etag, etag);
        whole(&volume_dir, &volume, &path, &bytes);
        let status = volume.status(&id, &ann()).unwrap();
        assert_eq!((status.offset, status.finished), (bytes.len() as u64, true));
        let stored = (1 + u64::from(restart)) * bytes.len() as u64;
        let reserved = volume.usage();
        assert_eq!((reserved.reserved, reserved.uploads), (0, 0));
        if !restart {
            assert_eq!(reserved.stored, stored);
        }
        volume.close().await;
        assert_eq!(volume_dir.own("uploads"), 0);
        let volume = volume_dir.open().await;
        assert!(volume.status(&id, &ann()).unwrap().finished, "its client may still ask");
        volume.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w8_what_lies_past_the_journals_offset_is_cut_off() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(4, 300_000);
    let id = volume.create(create("a.ts", Some(bytes.len()))).await.unwrap();
    send(&volume, &id, 0, &bytes[..100_000]).await;
    let mut appender = volume.append(&id, &ann(), 100_000).await.unwrap();
    appender.append(&content(99, 150_000)).await.unwrap();
    drop(appender);
    let data = volume_dir.path(&format!(".tactus/uploads/{id}"));
    let size = || std::fs::metadata(&data).unwrap().len();
    while size() <= 100_000 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(offset(&volume, &id), 100_000, "the file is ahead, the journal is not");
    volume.close().await;
    let (volume, opened) = open(&volume_dir, options()).await;
    assert_eq!((opened.uploads, opened.cut, opened.lost), (1, 1, 0));
    assert_eq!(size(), 100_000);
    send(&volume, &id, 100_000, &bytes[100_000..]).await;
    volume.finish(&id, &ann()).await.unwrap();
    whole(&volume_dir, &volume, "a.ts", &bytes);
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_at_most_one_chunk_is_lost_of_a_long_request_that_is_dropped() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(5, 24 << 20);
    let id = volume.create(create("a.ts", Some(bytes.len()))).await.unwrap();
    let mut appender = volume.append(&id, &ann(), 0).await.unwrap();
    for piece in bytes[..20 << 20].chunks(100_000) {
        appender.append(piece).await.unwrap();
        // At the pace of a socket, not of memory: a disk under other load must be able to follow.
        while appender.len() > offset(&volume, &id) + (7 << 20) {
            appender.space().await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    drop(appender);
    let at = offset(&volume, &id);
    assert!(at >= 12 << 20, "{at}");
    send(&volume, &id, at as usize, &bytes[at as usize..]).await;
    volume.finish(&id, &ann()).await.unwrap();
    whole(&volume_dir, &volume, "a.ts", &bytes);
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u10_what_is_held_back_and_dropped_leaves_the_offset() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(6, 9 << 20);
    let id = volume.create(create("a.ts", Some(bytes.len()))).await.unwrap();
    send(&volume, &id, 0, &bytes[..5_000]).await;
    let mut appender = volume.append(&id, &ann(), 5_000).await.unwrap();
    appender.hold_back();
    appender.append(&content(7, 8 << 20)).await.unwrap();
    drop(appender);
    let mut appender = volume.append(&id, &ann(), 5_000).await.unwrap();
    assert_eq!(offset(&volume, &id), 5_000);
    appender.hold_back();
    appender.append(&bytes[5_000..]).await.unwrap();
    assert_eq!(appender.commit().await.unwrap(), bytes.len() as u64);
    volume.finish(&id, &ann()).await.unwrap();
    whole(&volume_dir, &volume, "a.ts", &bytes);
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u07_the_newer_request_ends_the_older() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(8, 200_000);
    let id = volume.create(create("a.ts", Some(bytes.len()))).await.unwrap();
    let mut older = volume.append(&id, &ann(), 0).await.unwrap();
    older.append(&bytes[..70_000]).await.unwrap();
    let (store, id2) = (volume.clone(), id);
    let newer = tokio::spawn(async move { store.append(&id2, &ann(), 0).await.map(drop) });
    older.superseded().await;
    assert!(matches!(older.space().await, Err(ResumeError::Superseded)));
    assert_eq!(older.commit().await.unwrap(), 70_000, "what the older one had is kept");
    assert!(matches!(newer.await.unwrap(), Err(ResumeError::OffsetMismatch(70_000))));

    let stubborn = volume.append(&id, &ann(), 70_000).await.unwrap();
    let begun = std::time::Instant::now();
    let locked = volume.append(&id, &ann(), 70_000).await;
    assert!(matches!(locked, Err(ResumeError::Locked)));
    assert!(begun.elapsed() < Duration::from_secs(4));
    drop(stubborn);
    send(&volume, &id, 70_000, &bytes[70_000..]).await;
    volume.finish(&id, &ann()).await.unwrap();
    whole(&volume_dir, &volume, "a.ts", &bytes);
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u06_u09_u13_wrong_offsets_too_many_bytes_and_other_people_are_refused() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(9, 50_000);
    let id = volume.create(create("a.ts", Some(bytes.len()))).await.unwrap();
    send(&volume, &id, 0, &bytes[..20_000]).await;
    for wrong in [0, 19_999, 20_001, u64::MAX] {
        let refused = volume.append(&id, &ann(), wrong).await;
        assert!(matches!(refused, Err(ResumeError::OffsetMismatch(20_000))), "{wrong}");
    }
    let bob = Principal::new("bob");
    assert!(matches!(volume.status(&id, &bob), Err(ResumeError::NotFound)));
    assert!(matches!(volume.append(&id, &bob, 20_000).await, Err(ResumeError::NotFound)));
    assert!(matches!(volume.terminate(&id, &bob).await, Err(ResumeError::NotFound)));
    assert!(matches!(volume.finish(&id, &bob).await, Err(ResumeError::NotFound)));
    let early = volume.finish(&id, &ann()).await;
    assert!(matches!(early, Err(ResumeError::Upload(UploadError::Incomplete { .. }))));
    let mut appender = volume.append(&id, &ann(), 20_000).await.unwrap();
    let more = appender.append(&content(9, 30_001)).await;
    assert!(matches!(more, Err(ResumeError::Upload(UploadError::TooLarge(50_000)))));
    drop(appender);
    let mut appender = volume.append(&id, &ann(), 20_000).await.unwrap();
    appender.append(&bytes[20_000..]).await.unwrap();
    appender.commit().await.unwrap();
    volume.finish(&id, &ann()).await.unwrap();
    assert!(matches!(volume.append(&id, &ann(), 50_000).await, Err(ResumeError::Finished)));
    whole(&volume_dir, &volume, "a.ts", &bytes);
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u03_open_uploads_are_few_and_expire() {
    let volume_dir = TestVolume::new();
    let limits = Limits { uploads_per_principal: 5, ..Limits::default() };
    let options = StoreOptions { limits, expiry: Duration::from_secs(3600), ..options() };
    let volume = volume_dir.open_with(options.clone()).await;
    for number in 0..5 {
        let id = volume.create(create(&format!("{number}"), Some(1 << 20))).await.unwrap();
        send(&volume, &id, 0, b"1").await;
    }
    let sixth = volume.create(create("6", Some(1 << 20))).await;
    assert!(matches!(sixth, Err(ResumeError::Upload(UploadError::TooMany(5)))));
    let put = volume.begin(put("7", Some(1))).await.map(drop);
    assert!(matches!(put, Err(UploadError::TooMany(5))));
    assert_eq!(volume.usage(), Account { stored: 0, reserved: 5 << 20, uploads: 5 });
    volume.close().await;
    let (volume, opened) = open(&volume_dir, options).await;
    assert_eq!(opened.uploads, 5);
    assert_eq!(volume.usage(), Account { stored: 0, reserved: 5 << 20, uploads: 5 });
    let soon = SystemTime::now() + Duration::from_secs(3500);
    assert_eq!(volume.expire(soon).await.unwrap(), 0);
    let later = SystemTime::now() + Duration::from_secs(3700);
    assert_eq!(volume.expire(later).await.unwrap(), 5);
    assert_eq!(volume.usage(), Account::default());
    assert_eq!(volume_dir.own("uploads"), 0);
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u15_parts_become_one_title() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(10, 400_000);
    let mut parts = Vec::new();
    for piece in [&bytes[..1], &bytes[1..150_001], &bytes[150_001..]] {
        let part = Create { path: None, ..create("", Some(piece.len())) };
        let id = volume.create(part).await.unwrap();
        send(&volume, &id, 0, piece).await;
        parts.push(id);
    }
    let unfinished = volume.create(Create { path: None, ..create("", Some(5)) }).await.unwrap();
    let named = volume.create(create("b", Some(0))).await.unwrap();
    let join = |parts: Vec<StoreId>, who: &str| {
        let principal = Principal::new(who);
        let volume = volume.clone();
        async move { volume.concat(&parts, Create { principal, ..create("whole.ts", None) }).await }
    };
    let refused = [
        vec![],
        vec![parts[0]; 2],
        vec![parts[0]; PARTS_MAX + 1],
        vec![parts[0], unfinished],
        vec![named],
    ];
    for parts in refused {
        assert!(matches!(join(parts, "ann").await, Err(ResumeError::Parts(_))));
    }
    assert!(matches!(join(parts.clone(), "bob").await, Err(ResumeError::NotFound)));
    let (id, finished) = join(parts.clone(), "ann").await.unwrap();
    assert_eq!(finished.len.0, bytes.len() as u64);
    assert!(volume.status(&id, &ann()).unwrap().finished);
    whole(&volume_dir, &volume, "whole.ts", &bytes);
    for part in parts {
        volume.terminate(&part, &ann()).await.unwrap();
    }
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_complete_upload_gets_its_name_at_the_next_start() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(11, 123_456);
    let id = volume.create(create("a.ts", Some(bytes.len()))).await.unwrap();
    send(&volume, &id, 0, &bytes).await;
    volume.close().await;
    let (volume, opened) = open(&volume_dir, options()).await;
    assert_eq!(opened.unnamed, 1);
    while !volume.status(&id, &ann()).unwrap().finished {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    whole(&volume_dir, &volume, "a.ts", &bytes);
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_without_a_length_claims_room_ahead_and_a_refusal_changes_nothing() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open_with(quota::limits(1_000_000)).await;
    let bytes = content(4, 600_001);
    let id = volume.create(create("a.ts", None)).await.unwrap();
    let mut appender = volume.append(&id, &ann(), 0).await.unwrap();
    let reserved = || volume.usage().reserved;
    for (len, expected) in [(600_001, 600_001), (5, 600_001), (900_000, 900_000)] {
        appender.reserve(len).await.unwrap();
        assert_eq!(reserved(), expected);
    }
    let refused = appender.reserve(1_000_001).await;
    let refused = refused.expect_err("more than the quota");
    assert!(
        matches!(refused, ResumeError::Upload(UploadError::QuotaExceeded(100_000))),
        "{refused}"
    );
    assert_eq!(reserved(), 900_000);
    appender.append(&bytes[..400_000]).await.unwrap();
    assert_eq!(appender.commit().await.unwrap(), 400_000);
    let mut appender = volume.append(&id, &ann(), 400_000).await.unwrap();
    appender.append(&bytes[400_000..]).await.unwrap();
    appender.commit().await.unwrap();
    assert_eq!(reserved(), 900_000, "what was claimed is enough");
    volume.declare(&id, &ann(), bytes.len() as u64).await.unwrap();
    assert_eq!(reserved(), bytes.len() as u64);
    let modified = Some(WallTime(1_500_000_000_000_000_007));
    let metadata = TitleMetadata { modified, ..TitleMetadata::default() };
    volume.finish_as(&id, &ann(), metadata).await.unwrap();
    whole(&volume_dir, &volume, "a.ts", &bytes);
    let times = std::fs::metadata(volume_dir.path("a.ts")).unwrap().modified().unwrap();
    let since = times.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(since.as_nanos(), 1_500_000_000_000_000_007);
    assert_eq!(reserved(), 0);
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_durable_bytes_of_an_upload_are_read_back_and_damage_is_found() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(5, 700_001);
    let id = volume.create(create("a.ts", None)).await.unwrap();
    let read = |whose| {
        let (volume, id) = (volume.clone(), id);
        async move {
            let mut reader = volume.read_back(&id, &Principal::new(whose)).await?;
            let mut all = Vec::new();
            while let Some(bytes) = reader.next().await? {
                all.extend_from_slice(bytes);
            }
            assert_eq!(reader.len(), all.len() as u64);
            Ok(all)
        }
    };
    assert!(read("ann").await.is_ok_and(|all| all.is_empty()));
    for end in [1, 300_000, bytes.len()] {
        let at = offset(&volume, &id) as usize;
        send(&volume, &id, at, &bytes[at..end]).await;
        assert!(read("ann").await.is_ok_and(|all| all == bytes[..end]));
    }
    assert!(matches!(read("bob").await, Err(ResumeError::NotFound)));
    let data = volume_dir.path(".tactus/uploads").join(id.to_string());
    let mut stored = std::fs::read(&data).unwrap();
    stored[500_000] ^= 1;
    std::fs::write(&data, &stored).unwrap();
    assert!(matches!(read("ann").await, Err(ResumeError::Damaged)));
    stored[500_000] ^= 1;
    std::fs::write(&data, &stored).unwrap();
    volume.declare(&id, &ann(), bytes.len() as u64).await.unwrap();
    volume.finish(&id, &ann()).await.unwrap();
    assert!(matches!(read("ann").await, Err(ResumeError::Finished)));
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w8_one_request_makes_its_bytes_durable_again_and_again() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(6, 9_500_001);
    let id = volume.create(create("a.ts", None)).await.unwrap();
    let mut appender = volume.append(&id, &ann(), 0).await.unwrap();
    let mut at = 0;
    // Some of them leave a checkpoint that waits for its writes.
    for step in [1, 4095, 1, 70_000, 0, 4_300_000, 5_000_000] {
        appender.append(&bytes[at..at + step]).await.unwrap();
        at += step;
        assert_eq!(appender.sync().await.unwrap(), at as u64);
        assert_eq!(offset(&volume, &id), at as u64);
    }
    // A newer request ends it, and goes on behind its last bytes.
    appender.append(&bytes[at..at + 9]).await.unwrap();
    assert!(!appender.is_superseded());
    let newer = {
        let (volume, id) = (volume.clone(), id);
        tokio::spawn(async move { volume.append(&id, &ann(), at as u64 + 9).await })
    };
    appender.superseded().await;
    assert!(appender.is_superseded());
    assert_eq!(appender.commit().await.unwrap(), at as u64 + 9);
    drop(newer.await.unwrap().unwrap());
    volume.close().await;
    let volume = volume_dir.open().await;
    at += 9;
    assert_eq!(offset(&volume, &id), at as u64);
    send(&volume, &id, at, &bytes[at..]).await;
    volume.declare(&id, &ann(), bytes.len() as u64).await.unwrap();
    volume.finish(&id, &ann()).await.unwrap();
    whole(&volume_dir, &volume, "a.ts", &bytes);
    volume.close().await;
}
