//! What programs get, and what becomes a title, when the disk is full.

use std::io::Write;
use std::os::unix::fs::FileExt;

use rustix::fs::FallocateFlags;

use super::numbers::ENOSPC;
use super::*;

/// Opens `$1` for writing and does what the other arguments say: writes so many MiB one by one,
/// flushes, or closes. Prints an error number for each, 0 for none.
const PROGRAM: &str = r#"
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
def act(what):
    if what == "fsync":
        os.fsync(file)
    elif what == "close":
        os.close(file)
    else:
        for _ in range(int(what)):
            os.write(file, bytes(range(256)) * 4096)
for what in sys.argv[2:]:
    try:
        act(what)
        print(0)
    except OSError as error:
        print(error.errno)
"#;

fn run(path: &Path, acts: &[&str]) -> String {
    let mut python = Command::new(installed("python3", "python3"));
    let output = python.args(["-c", PROGRAM]).arg(path).args(acts).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_file_that_finds_no_room_is_an_error_at_each_call_and_becomes_no_title() {
    let Some(small) = SmallServed::new(352 << 20) else { return };
    let SmallServed { served, disk, .. } = &small;
    put(served, "one.ts", b"before");
    let mounted = served.mount(RW);
    let working = disk.path().join(".tactus/working");
    let is_empty = || fs::read_dir(&working).expect("a directory").next().is_none();
    // A new file, and a title that is written anew.
    for name in ["new.ts", "one.ts"] {
        assert_eq!(run(&mounted.path(name), &["400", "fsync", "close"]), "28 28 28");
        assert!(is_empty());
    }
    assert_eq!(get(served, "new.ts"), None);
    assert!(!mounted.path("new.ts").exists() && !disk.path().join("new.ts").exists());
    assert_eq!(get(served, "one.ts").as_deref(), Some(&b"before"[..]));
    assert_eq!(fs::read(mounted.path("one.ts")).expect("bytes"), b"before");
    // What was flushed before stays.
    let path = mounted.path("flushed.ts");
    assert_eq!(run(&path, &["2", "fsync", "400", "fsync", "close"]), "0 0 28 28 0");
    let bytes = fs::read(disk.path().join("flushed.ts")).expect("a title");
    assert!(bytes.len() >= 2 << 20 && bytes[..1 << 20] == bytes[1 << 20..2 << 20]);
    fs::remove_file(path).expect("a title");
    // The room is back.
    wait_until("room", || run(&mounted.path("next.ts"), &["20", "fsync", "close"]) == "0 0 0");
    assert_eq!(fs::metadata(disk.path().join("next.ts")).expect("a title").len(), 20 << 20);
}

/// The mount has answered a write before the file system refuses its bytes.
#[test]
fn bytes_that_others_left_no_room_for_are_an_error_until_the_file_is_closed() {
    let Some(small) = SmallServed::new(640 << 20) else { return };
    let SmallServed { served, disk, .. } = &small;
    let mounted = served.mount(RW);
    let piece = content(1, 1 << 20);
    // The server promises room for more than this.
    let mut files = ["never.ts", "flushed.ts"].map(|name| {
        let mut file = File::create(mounted.path(name)).expect("a title");
        file.write_all(&piece).expect("room");
        file
    });
    files[1].sync_all().expect("a flush");
    let filler = disk.path().join("filler.bin");
    let filling = File::create(&filler).expect("a file");
    let space = rustix::fs::statvfs(disk.path()).expect("its space");
    // Some of it is for the file system's own blocks.
    let room = space.f_bavail * space.f_frsize - (1 << 20);
    rustix::fs::fallocate(&filling, FallocateFlags::empty(), 0, room).expect("room");
    for file in &mut files {
        let refused = (0..16).find_map(|_| errno(file.write_all(&piece)));
        assert_eq!(refused, Some(ENOSPC));
    }
    drop(filling);
    fs::remove_file(filler).expect("a file");
    // There is room again, but not for the bytes that are lost.
    for file in &mut files {
        assert_eq!(errno(file.write_all(&piece)), Some(ENOSPC));
        assert_eq!(errno(file.sync_all()), Some(ENOSPC));
    }
    drop(files);
    assert_eq!(get(served, "never.ts"), None);
    let flushed = get(served, "flushed.ts").expect("a title");
    assert!(flushed.starts_with(&piece));
}

/// A file without a name is written until nothing is left, as is every other one.
#[test]
fn l06_a_file_that_has_lost_its_name_takes_no_room_that_is_promised_to_others() {
    let Some(small) = SmallServed::new(416 << 20) else { return };
    let SmallServed { served, disk, .. } = &small;
    let mounted = served.mount(RW);
    let path = mounted.path("gone.ts");
    let mut file = create(&path);
    let piece = content(2, 1 << 20);
    file.write_all(&piece).expect("room");
    fs::remove_file(&path).expect("a file");
    let written = (1..500).find(|_| file.write_all(&piece).is_err()).expect("an end of it");
    assert!(written > 64, "it goes on without its name: {written} MiB");
    let left = || {
        let space = rustix::fs::statvfs(disk.path()).expect("its space");
        space.f_bavail * space.f_frsize
    };
    assert!(left() >= 250 << 20, "the reserve stays free: {} bytes", left());
    let mut found = vec![0; piece.len()];
    file.read_exact_at(&mut found, 8 << 20).expect("bytes");
    assert!(found == piece);
    let before = left();
    drop(file);
    wait_until("its room is back", || left() > before + (64 << 20));
    assert_eq!(run(&mounted.path("next.ts"), &["80", "fsync", "close"]), "0 0 0");
}
