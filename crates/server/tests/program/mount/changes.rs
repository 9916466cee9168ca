//! Changes by other doors.

use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::*;

const LEN: usize = 2_000_000;

/// What the open file has from its beginning to its end.
fn whole(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; 3 * LEN];
    let mut len = 0;
    loop {
        match file.read_at(&mut bytes[len..], len as u64).expect("bytes") {
            0 => break,
            got => len += got,
        }
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn a_title_put_by_http_is_seen_when_it_is_opened_and_an_open_one_stays() {
    let served = Served::new();
    put(&served, "one.ts", &content(1, LEN));
    for way in WAYS {
        put(&served, "one.ts", &content(1, LEN));
        // An hour, so that only what is asked anew is new.
        let options = [way, &["-o", "attr_timeout=3600,entry_timeout=3600"]].concat();
        let mounted = served.mount(&options);
        let path = mounted.path("one.ts");
        let old = open(&path);
        let number = old.metadata().expect("facts").ino();
        assert!(fs::read(&path).expect("bytes") == content(1, LEN));
        for version in 2..6 {
            put(&served, "one.ts", &content(version, LEN + version as usize));
            assert!(fs::read(&path).expect("bytes") == content(version, LEN + version as usize));
        }
        assert!(whole(&old) == content(1, LEN), "the version that was opened");
        assert_ne!(fs::metadata(&path).expect("facts").ino(), number, "another file");
        assert_eq!(old.metadata().expect("facts").len(), LEN as u64);
    }
}

/// The kernel still knows the name, and opens it instead of creating it.
#[test]
fn a_title_that_was_deleted_by_another_door_is_created_anew() {
    let served = Served::new();
    let mounted = served.mount(&["-o", "rw,attr_timeout=3600,entry_timeout=3600"]);
    for name in ["one.ts", "two.ts"] {
        served.title(name, LEN);
        assert!(mounted.path(name).exists());
        fs::remove_file(served.titles.join(name)).expect("a title");
    }
    let mut file = create(&mounted.path("one.ts"));
    file.write_all(b"anew").expect("room");
    drop(file);
    assert_eq!(fs::read(mounted.path("one.ts")).expect("bytes"), b"anew");
    let gone = File::open(mounted.path("two.ts")).expect_err("nobody creates it");
    assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn names_and_attributes_follow_within_their_times() {
    let served = Served::new();
    served.title("one.ts", LEN);
    let mounted = served.mount(&["-o", "attr_timeout=0,entry_timeout=0"]);
    let path = mounted.path("one.ts");
    let file = open(&path);
    assert_eq!(fs::metadata(&path).expect("facts").len(), LEN as u64);
    put(&served, "one.ts", &content(2, 1000));
    let found = fs::metadata(&path).expect("facts");
    assert_eq!((found.len(), found.nlink()), (1000, 1));
    // The file without a name.
    let found = file.metadata().expect("facts");
    assert_eq!((found.len(), found.nlink()), (LEN as u64, 0));
    put(&served, "new/two.ts", &content(2, 1000));
    assert!(mounted.path("new/two.ts").is_file());
    assert_eq!(fs::read_dir(mounted.path("new")).expect("a directory").count(), 1);
    fs::rename(served.titles.join("one.ts"), served.titles.join("three.ts")).expect("a rename");
    assert!(!path.exists() && mounted.path("three.ts").is_file());
    assert!(whole(&file) == content(LEN as u64, LEN));

    // With the usual times it takes a second.
    drop((file, mounted));
    let mounted = served.mount(&[]);
    let path = mounted.path("three.ts");
    assert_eq!(fs::metadata(&path).expect("facts").len(), 1000);
    put(&served, "three.ts", &content(3, 2000));
    wait_until("it is not seen", || fs::metadata(&path).expect("facts").len() == 2000);
}

#[test]
fn a_growing_title_shows_its_growing_size_to_those_that_have_it_open() {
    let served = Served::new();
    for (nth, way) in WAYS.iter().enumerate() {
        let name = format!("growing-{nth}.ts");
        let there = served.titles.join(&name);
        let bytes = content(9, LEN);
        fs::write(&there, &bytes[..1000]).expect("a title");
        let options = [way, &["-o", "attr_timeout=0"][..]].concat();
        let mounted = served.mount(&options);
        let path = mounted.path(&name);
        let file = open(&path);
        assert!(whole(&file) == bytes[..1000]);
        let mut writer = File::options().append(true).open(&there).expect("a file");
        let mut len = 1000;
        for part in [1, 4095, 4096, 100_000, 1_000_000] {
            writer.write_all(&bytes[len..len + part]).expect("room");
            len += part;
            assert_eq!(file.metadata().expect("facts").len(), len as u64, "{part}");
            assert!(whole(&file) == bytes[..len], "after {part} more bytes");
        }
        assert_eq!(fs::metadata(&path).expect("facts").nlink(), 1);
    }
}
