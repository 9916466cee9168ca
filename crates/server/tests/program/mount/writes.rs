//! What programs write by the mount, and what other doors see of it.

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::time::SystemTime;

use rustix::fs::OFlags;

use super::numbers::{EEXIST, EISDIR, ENOENT, ENOTCONN, ENOTEMPTY};
use super::*;

#[test]
fn a_file_becomes_a_title_when_it_is_closed_and_not_before() {
    let served = Served::new();
    let mounted = served.mount(RW);
    let bytes = content(1, 3_000_000);
    let path = mounted.path("one.ts");
    let mut file = create(&path);
    file.write_all(&bytes[..2_000_000]).expect("room");
    file.sync_all().expect("a flush");
    // The mount shows it, with its number, and no other door does.
    assert_eq!(fs::metadata(&path).expect("facts").len(), 2_000_000);
    assert!(fs::read(&path).expect("bytes") == bytes[..2_000_000]);
    assert_eq!(fs::read_dir(&mounted.place).expect("a directory").count(), 1);
    assert!(get(&served, "one.ts").is_none());
    assert!(!served.titles.join("one.ts").exists());
    file.write_all(&bytes[2_000_000..]).expect("room");
    let number = file.metadata().expect("facts").ino();
    drop(file);
    assert!(get(&served, "one.ts").as_ref() == Some(&bytes), "at once");
    assert!(fs::read(&path).expect("bytes") == bytes);
    assert_eq!(fs::metadata(&path).expect("facts").ino(), number);
    // Another one is written over it.
    let mut file = create(&path);
    file.write_all(b"short").expect("room");
    assert!(get(&served, "one.ts").as_ref() == Some(&bytes), "the version before");
    drop(file);
    assert!(get(&served, "one.ts").as_deref() == Some(b"short"));
    assert!(fs::read(&path).expect("bytes") == b"short");
}

#[test]
fn a_title_is_changed_in_place_and_stays_whole_for_others() {
    let served = Served::new();
    let mut bytes = content(2, 1_000_000);
    put(&served, "one.ts", &bytes);
    let mounted = served.mount(RW);
    let path = mounted.path("one.ts");
    let reader = open(&path);
    let mut file = File::options().read(true).write(true).open(&path).expect("a title");
    assert_eq!(get(&served, "one.ts").expect("a title").len(), bytes.len());
    file.write_all_at(b"in the middle", 500_000).expect("room");
    file.seek(SeekFrom::End(0)).expect("an end");
    file.write_all(b"behind").expect("room");
    let before = bytes.clone();
    bytes[500_000..][..13].copy_from_slice(b"in the middle");
    bytes.extend_from_slice(b"behind");
    let mut found = vec![];
    file.rewind().expect("a beginning");
    file.read_to_end(&mut found).expect("bytes");
    assert!(found == bytes);
    file.sync_data().expect("a flush");
    assert!(get(&served, "one.ts").as_ref() == Some(&before), "whole, until it is closed");
    file.set_len(600_000).expect("a length");
    bytes.truncate(600_000);
    drop(file);
    assert!(get(&served, "one.ts").as_ref() == Some(&bytes));
    assert!(fs::read(&path).expect("bytes") == bytes);
    drop(reader);
    // Without an open file, and beyond its end.
    script("truncate -s 700000 $1", &[&path]);
    bytes.resize(700_000, 0);
    assert!(get(&served, "one.ts").as_ref() == Some(&bytes));
    script("echo appended >> $1", &[&path]);
    bytes.extend_from_slice(b"appended\n");
    assert!(get(&served, "one.ts").as_ref() == Some(&bytes));
}

#[test]
fn names_are_changed_for_all_doors() {
    let served = Served::new();
    let mounted = served.mount(RW);
    let path = |name: &str| mounted.path(name);
    fs::create_dir(path("films")).expect("a directory");
    assert_eq!(errno(fs::create_dir(path("films"))), Some(EEXIST));
    fs::write(path("films/one.ts"), b"one").expect("room");
    fs::write(path("films/two.ts"), b"two").expect("room");
    assert_eq!(errno(fs::remove_dir(path("films"))), Some(ENOTEMPTY));
    fs::rename(path("films/one.ts"), path("films/two.ts")).expect("over another");
    assert_eq!(get(&served, "films/two.ts").as_deref(), Some(&b"one"[..]));
    assert_eq!(get(&served, "films/one.ts"), None);
    fs::rename(path("films"), path("series")).expect("a directory");
    assert_eq!(get(&served, "series/two.ts").as_deref(), Some(&b"one"[..]));
    assert_eq!(fs::read(path("series/two.ts")).expect("bytes"), b"one");
    assert_eq!(errno(fs::remove_file(path("series"))), Some(EISDIR));
    fs::remove_file(path("series/two.ts")).expect("a title");
    assert_eq!(get(&served, "series/two.ts"), None);
    assert_eq!(errno(fs::remove_file(path("series/two.ts"))), Some(ENOENT));
    fs::remove_dir(path("series")).expect("empty");
    assert!(!served.titles.join("series").exists());
    // What another door stores appears.
    put(&served, "new/three.ts", b"three");
    assert_eq!(fs::read(path("new/three.ts")).expect("bytes"), b"three");
    let new = File::options().write(true).create_new(true).open(path("new/three.ts"));
    assert_eq!(errno(new), Some(EEXIST));
    let then = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500_000_000_500);
    open(&path("new/three.ts")).set_modified(then).expect("a time");
    let found = fs::metadata(served.titles.join("new/three.ts")).expect("facts");
    assert_eq!(found.modified().expect("a time"), then);
}

#[test]
fn a_file_that_is_written_follows_its_name() {
    let served = Served::new();
    put(&served, "old.ts", b"old");
    let mounted = served.mount(RW);
    let path = |name: &str| mounted.path(name);
    fs::create_dir(path("d")).expect("a directory");
    let mut file = create(&path("d/one.part"));
    file.write_all(b"first ").expect("room");
    assert_eq!(errno(fs::remove_dir(path("d"))), Some(ENOTEMPTY));
    fs::rename(path("d/one.part"), path("d/one.ts")).expect("a rename");
    fs::rename(path("d"), path("e")).expect("a rename");
    file.write_all(b"second").expect("room");
    file.sync_all().expect("a flush");
    fs::rename(path("e/one.ts"), path("old.ts")).expect("a rename");
    assert_eq!(fs::read(path("old.ts")).expect("bytes"), b"first second");
    assert_eq!(get(&served, "old.ts").as_deref(), Some(&b"old"[..]));
    drop(file);
    assert_eq!(get(&served, "old.ts").as_deref(), Some(&b"first second"[..]));
    assert_eq!(fs::read_dir(path("e")).expect("a directory").count(), 0);

    // One that loses its name is nothing.
    let mut file = create(&path("gone.ts"));
    file.write_all(b"bytes").expect("room");
    file.sync_all().expect("a flush");
    fs::remove_file(path("gone.ts")).expect("a file");
    file.write_all(b" more").expect("room");
    file.sync_all().expect("a flush");
    let mut found = [0; 10];
    file.read_exact_at(&mut found, 0).expect("bytes");
    assert_eq!((&found, file.metadata().expect("facts").nlink()), (b"bytes more", 0));
    drop(file);
    assert!(!path("gone.ts").exists());
    assert_eq!(get(&served, "gone.ts"), None);
    let left = fs::read_dir(served.titles.join(".tactus/working")).expect("a directory");
    assert_eq!(left.count(), 0);
}

#[test]
fn a_file_that_is_closed_while_its_directory_is_renamed_is_a_title_there() {
    const TURNS: usize = 60;
    let served = Served::new();
    let mounted = served.mount(RW);
    let directory = |turn: usize| mounted.path(&format!("d{turn}"));
    fs::create_dir(directory(0)).expect("a directory");
    for turn in 0..TURNS {
        let mut file = create(&directory(turn).join(format!("{turn}.ts")));
        file.write_all(b"bytes").expect("room");
        std::thread::scope(|scope| {
            scope.spawn(move || drop(file));
            fs::rename(directory(turn), directory(turn + 1)).expect("a new name");
        });
    }
    let names: Vec<_> = fs::read_dir(&mounted.place).expect("a directory").collect();
    assert_eq!(names.len(), 1, "no directory has come back under its old name: {names:?}");
    assert_eq!(fs::read_dir(directory(TURNS)).expect("a directory").count(), TURNS);
}

#[test]
fn several_programs_write_one_file() {
    let served = Served::new();
    let mounted = served.mount(RW);
    let path = mounted.path("one.txt");
    // Each of them closes a descriptor of the same file.
    script("{ echo a; sh -c 'echo b'; sh -c 'echo c'; } > $1", &[&path]);
    wait_until("the last close", || get(&served, "one.txt").as_deref() == Some(b"a\nb\nc\n"));
    // A child has it, and has not written yet, when the program closes its own.
    let file = File::create(&path).expect("a title");
    let mut shell = Command::new("sh");
    shell.args(["-c", "read line; echo $line"]).stdin(Stdio::piped()).stdout(file);
    let mut child = shell.spawn().expect("a shell");
    drop(shell);
    assert_eq!(get(&served, "one.txt").as_deref(), Some(&b"a\nb\nc\n"[..]), "it is still written");
    child.stdin.take().expect("its input").write_all(b"child\n").expect("it reads");
    assert!(child.wait().expect("an end").success());
    wait_until("the last close", || get(&served, "one.txt").as_deref() == Some(b"child\n"));
    script("printf 'a\\nb\\nc\\n' > $1", &[&path]);
    let mut one = File::options().append(true).open(&path).expect("a title");
    let mut two = File::options().append(true).open(&path).expect("a title");
    one.write_all(b"1\n").expect("room");
    two.write_all(b"2\n").expect("room");
    drop(one);
    assert_eq!(get(&served, "one.txt").as_deref(), Some(&b"a\nb\nc\n"[..]), "it is still written");
    two.write_all(b"3\n").expect("room");
    drop(two);
    assert_eq!(get(&served, "one.txt").as_deref(), Some(&b"a\nb\nc\n1\n2\n3\n"[..]));
}

#[test]
fn what_was_flushed_survives_the_server_and_the_rest_is_an_error() {
    let mut served = Served::new();
    put(&served, "two.ts", b"before");
    let mounted = served.mount(RW);
    let bytes = content(3, 5_000_000);
    let flushed = create(&mounted.path("one.ts"));
    flushed.write_all_at(&bytes, 0).expect("room");
    flushed.sync_all().expect("a flush");
    let mut other = create(&mounted.path("two.ts"));
    other.write_all(b"never flushed").expect("room");
    served.kill();
    let begun = Instant::now();
    other.write_all(b"!").ok();
    assert_eq!(errno(other.sync_all()), Some(ENOTCONN));
    assert!(begun.elapsed() < Duration::from_secs(30));
    drop(other);

    served.start();
    // This mount has the file open for writing all the while.
    wait_until("its name", || get(&served, "one.ts").is_some());
    flushed.write_all_at(b"late", 0).ok();
    assert!(get(&served, "one.ts").as_ref() == Some(&bytes));
    assert_eq!(get(&served, "two.ts").as_deref(), Some(&b"before"[..]));
    drop(flushed);
    wait_until("the mount is back", || fs::read(mounted.path("one.ts")).is_ok());
    assert!(fs::read(mounted.path("one.ts")).expect("bytes") == bytes);
    fs::write(mounted.path("three.ts"), b"after").expect("room");
    assert_eq!(get(&served, "three.ts").as_deref(), Some(&b"after"[..]));
}

#[test]
fn what_was_flushed_survives_the_mount() {
    let served = Served::new();
    let mut mounted = served.mount(RW);
    let bytes = content(4, 1_000_000);
    let flushed = create(&mounted.path("one.ts"));
    flushed.write_all_at(&bytes, 0).expect("room");
    flushed.sync_all().expect("a flush");
    let other = create(&mounted.path("two.ts"));
    other.write_all_at(b"never flushed", 0).expect("room");
    mounted.process.kill();
    drop((flushed, other));
    wait_until("its name", || get(&served, "one.ts").is_some());
    assert!(get(&served, "one.ts").as_ref() == Some(&bytes));
    assert_eq!(get(&served, "two.ts"), None);
}

#[test]
fn a_mount_that_ends_while_a_file_is_written_loses_nothing_that_was_flushed() {
    let served = Served::new();
    let bytes = content(5, 1_000_000);
    let mut mounted = served.mount(RW);
    let mut flushed = create(&mounted.path("one.ts"));
    flushed.write_all(&bytes).expect("room");
    flushed.sync_data().expect("a flush");
    let mut other = create(&mounted.path("two.ts"));
    other.write_all(b"never flushed").expect("room");
    let refused = Command::new("umount").arg(&mounted.place).output().expect("it runs");
    assert!(!refused.status.success() && mounted.is_mounted(), "it is in use");
    other.write_all(b", nor this").expect("room");
    mounted.signal(Signal::TERM);
    assert_eq!((mounted.ended(), mounted.is_mounted()), (Some(0), false));
    let begun = Instant::now();
    assert_eq!(errno(other.write_all(b"late")), Some(ENOTCONN));
    assert_eq!(errno(other.sync_all()), Some(ENOTCONN));
    drop((flushed, other));
    assert!(begun.elapsed() < Duration::from_secs(30));
    wait_until("its name", || get(&served, "one.ts").is_some());
    assert!(get(&served, "one.ts").as_ref() == Some(&bytes));
    assert_eq!(get(&served, "two.ts"), None);

    // Detached, it goes on until the last file is closed.
    let mut mounted = served.mount(RW);
    let mut file = create(&mounted.path("three.ts"));
    file.write_all(b"before").expect("room");
    script("umount -l $1", &[&mounted.place]);
    file.write_all(b" and after").expect("room");
    file.sync_all().expect("a flush");
    drop(file);
    assert_eq!((mounted.ended(), mounted.is_mounted()), (Some(0), false));
    assert_eq!(get(&served, "three.ts").as_deref(), Some(&b"before and after"[..]));
}

/// The mount answers a write before its file has the bytes.
#[test]
fn programs_see_each_write_from_its_return_on() {
    let served = Served::new();
    let mounted = served.mount(RW);
    let path = mounted.path("one.ts");
    let file = File::create(&path).expect("a title");
    // The kernel keeps no pages for this one.
    let mut direct = File::options();
    direct.read(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
    let reader = direct.open(&path).expect("a title");
    let bytes = content(6, 4_000_000);
    let mut expected: Vec<u8> = vec![];
    for turn in 0..60_usize {
        let (offset, len) = (turn * 7_368_787 % (expected.len() + 1), 1 + turn * turn * 397);
        let piece = &bytes[turn * 40_009..][..len];
        file.write_all_at(piece, offset as u64).expect("room");
        let end = offset + len;
        expected.resize(expected.len().max(end), 0);
        expected[offset..end].copy_from_slice(piece);
        if turn % 3 == 0 {
            assert_eq!(reader.metadata().expect("facts").len(), expected.len() as u64);
        }
        let from = offset.saturating_sub(1000);
        let mut found = vec![0; (end + 1000).min(expected.len()) - from];
        reader.read_exact_at(&mut found, from as u64).expect("bytes");
        assert!(found == expected[from..][..found.len()], "{turn}");
        if turn % 5 == 4 {
            expected.truncate(end);
            file.set_len(end as u64).expect("a length");
        }
    }
    // While this process has it open for reading, the close of the other does not make the title.
    drop(reader);
    drop(file);
    assert!(get(&served, "one.ts").as_ref() == Some(&expected));
}

/// The mount sends a write past the page cache if it expects a flush behind it. Such writes and
/// cached ones alternate here.
#[test]
fn a_program_that_flushes_each_write_reads_what_it_has_written() {
    let served = Served::new();
    let mounted = served.mount(RW);
    let path = mounted.path("one.ts");
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).open(&path).expect("a title");
    let reader = open(&path);
    let bytes = content(9, 400_000);
    let mut expected: Vec<u8> = vec![];
    for turn in 0..90_usize {
        // Whole pages at their places, at the end and before it, and anything else.
        let (page, pages) = (turn * 31 % 50, 1 + turn * 7 % 66);
        let (offset, len) = match turn % 4 {
            0 => (expected.len().next_multiple_of(4096), pages * 4096),
            1 | 2 => (page * 4096, pages * 4096),
            _ => (page * 4096 + turn, pages * 1000 + turn),
        };
        let piece = &bytes[turn..][..len];
        file.write_all_at(piece, offset as u64).expect("room");
        expected.resize(expected.len().max(offset + len), 0);
        expected[offset..][..len].copy_from_slice(piece);
        assert_eq!(reader.metadata().expect("facts").len(), expected.len() as u64, "{turn}");
        file.sync_data().expect("a flush");
        let mut found = vec![0; len];
        reader.read_exact_at(&mut found, offset as u64).expect("bytes");
        assert!(found == piece, "{turn}");
    }
    drop((reader, file));
    assert!(get(&served, "one.ts").as_ref() == Some(&expected));
    assert!(fs::read(&path).expect("bytes") == expected);
}

/// The mount begins with a flush before the program that flushes regularly requests it.
#[test]
fn what_was_flushed_is_on_the_disk_when_the_call_returns() {
    const PIECE: usize = 64 << 10;
    let Some(small) = SmallServed::new(352 << 20) else { return };
    let SmallServed { served, disk, home } = &small;
    let mounted = served.mount(RW);
    let image = open(&home.path().join("image"));
    let bytes = content(7, 64 * PIECE);
    let mut file = File::create(mounted.path("one.ts")).expect("a title");
    let mut written = 0;
    for (nth, pieces) in [1; 8].iter().chain(&[2, 1, 5]).chain(&[3; 8]).chain(&[1]).enumerate() {
        for _ in 0..*pieces {
            file.write_all(&bytes[written..][..PIECE]).expect("room");
            written += PIECE;
        }
        let flushed = if nth % 2 == 0 { file.sync_all() } else { file.sync_data() };
        flushed.expect("a flush");
        assert!(on_disk(disk, &image, written) == bytes[..written], "{nth}");
    }
    drop(file);
    assert!(get(served, "one.ts").as_deref() == Some(&bytes[..written]));
}

/// The first bytes of the only working file, as the device has them.
fn on_disk(disk: &SmallDisk, image: &File, len: usize) -> Vec<u8> {
    let working = fs::read_dir(disk.path().join(".tactus/working")).expect("a directory");
    let mut paths = working.map(|entry| entry.expect("an entry").path());
    // Not its record.
    let path = paths.find(|path| path.extension().is_none()).expect("a working file");
    let working = open(&path);
    let extents = tactus_sys::file::extents(&working, usize::MAX).expect("places");
    let mut bytes = vec![0; len];
    for extent in extents.expect("a file system with places") {
        let from = extent.offset as usize;
        let to = len.min(from + extent.len as usize);
        if from < to {
            image.read_exact_at(&mut bytes[from..to], extent.position).expect("an image");
        }
    }
    bytes
}

#[test]
fn a_synchronous_write_survives_the_server_and_the_mount() {
    let mut served = Served::new();
    let mut mounted = served.mount(RW);
    let bytes = content(8, 100_000);
    let files = [("one.ts", OFlags::DSYNC), ("two.ts", OFlags::SYNC)].map(|(name, flag)| {
        let mut options = File::options();
        options.write(true).create(true).custom_flags(flag.bits().cast_signed());
        let mut file = options.open(mounted.path(name)).expect("a title");
        file.write_all(&bytes).expect("room");
        file
    });
    served.kill();
    mounted.process.kill();
    drop(files);
    served.start();
    for name in ["one.ts", "two.ts"] {
        wait_until("its name", || get(&served, name).is_some());
        assert!(get(&served, name).as_ref() == Some(&bytes));
    }
}
