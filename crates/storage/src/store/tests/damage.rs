//! Damaged titles are found, and undamaged ones with unusual attributes are served.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use super::*;

const ATTRIBUTES: [&str; 2] = [sums::ATTRIBUTE, sums::OWNER_ATTRIBUTE];

/// A copy with its attributes, as `cp -a` makes it.
fn copy(volume_dir: &TestVolume, from: &str, to: &str) {
    std::fs::copy(volume_dir.path(from), volume_dir.path(to)).unwrap();
    let (from, to) =
        (File::open(volume_dir.path(from)).unwrap(), File::open(volume_dir.path(to)).unwrap());
    for name in ATTRIBUTES {
        let mut value = [0; 256];
        let value = sums::attribute(&from, name, &mut value).unwrap().unwrap();
        rustix::fs::fsetxattr(&to, name, value, rustix::fs::XattrFlags::empty()).unwrap();
    }
}

fn manifest(volume_dir: &TestVolume, name: &str) -> PathBuf {
    let mark =
        sums::SumsAttribute::read(File::open(volume_dir.path(name)).unwrap()).unwrap().unwrap();
    volume_dir.path(".tactus/sums").join(sums::place_of(mark.id().unwrap()))
}

fn judge(volume_dir: &TestVolume, store: &Store, name: &str) -> Result<bool, ChecksumFault> {
    store.sums_of(File::open(volume_dir.path(name)).unwrap()).map(|sums| sums.is_some())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_every_flipped_bit_of_a_title_and_its_checksums_is_found() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(1, 200_000);
    store(&volume, put("a.ts", None), &bytes).await.unwrap();
    let title = File::options().write(true).open(volume_dir.path("a.ts")).unwrap();
    for at in (0..bytes.len()).step_by(19_997).chain([bytes.len() - 1]) {
        title.write_all_at(&[bytes[at] ^ 1 << (at % 8)], at as u64).unwrap();
        let first = Bytes(at as u64 / UNIT * UNIT);
        let verdict = verify(volume_dir.0.path(), "a.ts", &mut |_| {}).unwrap();
        assert_eq!(verdict, Verdict::Damaged { first, units: 1, unreadable: 0 });
        title.write_all_at(&[bytes[at]], at as u64).unwrap();
    }
    let whole = verify(volume_dir.0.path(), "a.ts", &mut |_| {}).unwrap();
    assert_eq!(whole, Verdict::Whole(Bytes(bytes.len() as u64)));

    let path = manifest(&volume_dir, "a.ts");
    let good = std::fs::read(&path).unwrap();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, bad).unwrap();
        assert_eq!(judge(&volume_dir, &volume, "a.ts"), Err(ChecksumFault::Manifest), "bit {bit}");
    }
    for len in 0..good.len() {
        std::fs::write(&path, &good[..len]).unwrap();
        assert_eq!(
            judge(&volume_dir, &volume, "a.ts"),
            Err(ChecksumFault::Manifest),
            "{len} bytes"
        );
    }
    std::fs::write(&path, [&good[..], &[0]].concat()).unwrap();
    assert!(judge(&volume_dir, &volume, "a.ts").is_err());
    std::fs::write(&path, &good).unwrap();
    assert_eq!(judge(&volume_dir, &volume, "a.ts"), Ok(true));
    for len in [bytes.len() - 1, bytes.len() + 1, 131_072] {
        title.set_len(len as u64).unwrap();
        assert!(judge(&volume_dir, &volume, "a.ts").is_err(), "{len} bytes");
    }
    title.set_len(bytes.len() as u64).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(judge(&volume_dir, &volume, "a.ts"), Err(ChecksumFault::Missing));
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_every_flipped_bit_of_checksums_in_an_attribute_is_found() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open_with(StoreOptions::default()).await;
    let bytes = content(1, sums::ATTRIBUTE_UNITS_MAX * UNIT as usize);
    store(&volume, put("a.ts", None), &bytes).await.unwrap();
    assert_eq!(volume_dir.own("sums"), 0);
    let whole = verify(volume_dir.0.path(), "a.ts", &mut |_| {}).unwrap();
    assert_eq!(whole, Verdict::Whole(Bytes(bytes.len() as u64)));
    copy(&volume_dir, "a.ts", "exact.ts");
    assert_eq!(judge(&volume_dir, &volume, "exact.ts"), Ok(true));

    let title = File::options().write(true).open(volume_dir.path("a.ts")).unwrap();
    let mut good = [0; 256];
    let good = sums::attribute(&title, sums::ATTRIBUTE, &mut good).unwrap().unwrap();
    let set = |value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::fsetxattr(&title, sums::ATTRIBUTE, value, flags).unwrap();
    };
    // The inode only identifies copies, and this attribute holds its own checksums.
    for bit in (0..8).chain(9 * 8..good.len() * 8) {
        let mut bad = good.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        set(&bad);
        assert!(judge(&volume_dir, &volume, "a.ts").is_err(), "bit {bit}");
    }
    for len in 0..good.len() {
        set(&good[..len]);
        assert!(judge(&volume_dir, &volume, "a.ts").is_err(), "{len} bytes");
    }
    set(good);
    assert_eq!(judge(&volume_dir, &volume, "a.ts"), Ok(true));
    title.set_len(bytes.len() as u64 - 1).unwrap();
    assert_eq!(judge(&volume_dir, &volume, "a.ts"), Err(ChecksumFault::Length));
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_outlives_its_originals_checksums() {
    let volume_dir = TestVolume::new();
    let volume = volume_dir.open().await;
    let bytes = content(2, 70_000);
    store(&volume, put("a.ts", None), &bytes).await.unwrap();
    std::fs::copy(volume_dir.path("a.ts"), volume_dir.path("plain.ts")).unwrap();
    copy(&volume_dir, "a.ts", "exact.ts");
    assert_eq!(judge(&volume_dir, &volume, "plain.ts"), Ok(false));
    assert_eq!(judge(&volume_dir, &volume, "exact.ts"), Ok(true));
    volume.delete("exact.ts", Precondition::Any).await.unwrap();
    copy(&volume_dir, "a.ts", "exact.ts");
    std::fs::hard_link(volume_dir.path("a.ts"), volume_dir.path("linked.ts")).unwrap();
    volume.delete("a.ts", Precondition::Any).await.unwrap();
    volume.close().await;
    let volume = volume_dir.open().await;
    assert_eq!(judge(&volume_dir, &volume, "linked.ts"), Ok(true), "the same file by another name");
    volume.delete("linked.ts", Precondition::Any).await.unwrap();
    volume.close().await;
    let volume = volume_dir.open().await;
    assert_eq!(judge(&volume_dir, &volume, "exact.ts"), Ok(false), "a file as any other");
    assert_eq!(volume_dir.own("sums"), 0);
    volume.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checksums_of_nobody_go_with_the_second_census() {
    let volume_dir = TestVolume::new();
    let counts = Limits { volume_quota: Some(Bytes(1 << 40)), ..Limits::default() };
    let options = StoreOptions { limits: counts, ..options() };
    let volume = volume_dir.open_with(options.clone()).await;
    for name in ["gone.ts", "kept.ts"] {
        store(&volume, put(name, None), &content(3, 70_000)).await.unwrap();
    }
    volume.close().await;
    let paths = [manifest(&volume_dir, "gone.ts"), manifest(&volume_dir, "kept.ts")];
    for path in &paths {
        let old = SystemTime::now() - Duration::from_secs(60);
        File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
    }
    std::fs::remove_file(volume_dir.path("gone.ts")).unwrap();
    // As if a rename by another program had hidden the title from the census.
    std::fs::rename(volume_dir.path("kept.ts"), volume_dir.path(".tactus/kept.ts")).unwrap();
    let volume = volume_dir.open_with(options.clone()).await;
    volume.close().await;
    assert_eq!(paths.each_ref().map(|path| path.exists()), [false, false]);
    std::fs::rename(volume_dir.path(".tactus/kept.ts"), volume_dir.path("kept.ts")).unwrap();
    let volume = volume_dir.open_with(options).await;
    assert_eq!(judge(&volume_dir, &volume, "kept.ts"), Ok(true));
    volume.close().await;
    assert_eq!(paths.each_ref().map(|path| path.exists()), [false, true]);
    assert_eq!(volume_dir.own("sums"), 1);
}
