//! What programs read: bytes, attributes, directories, names.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::UNIX_EPOCH;

use tactus_core::units::SECOND;
use tactus_media::sample;

use super::numbers::{ENAMETOOLONG, ENOENT, EROFS};
use super::*;

#[test]
fn programs_read_titles_byte_for_byte_by_both_ways() {
    let served = Served::new();
    served.title("films/one.ts", 3_000_001);
    served.title("films/deep/two.bin", 40 << 20);
    served.title("empty", 0);
    installed("rsync", "rsync");
    for way in WAYS {
        let mounted = served.mount(way);
        let both = [&*mounted.place, &*served.titles];
        script("for f in films/one.ts films/deep/two.bin empty; do cmp $1/$f $2/$f; done", &both);
        script("cat $1/films/one.ts | cmp - $2/films/one.ts", &both);
        let sums = script("for d in $1 $2; do sha256sum < $d/films/one.ts; done", &both);
        assert_eq!(sums.lines().next(), sums.lines().last());
        // Offsets and lengths that fit no page.
        for (offset, len) in [(0, 1), (1, 4095), (4095, 2), (131_071, 131_074), (2_999_999, 9)] {
            let dd = format!(
                "dd if=$1/films/one.ts iflag=skip_bytes,count_bytes skip={offset} count={len} \
                 bs=7777 status=none | cksum; \
                 dd if=$2/films/one.ts iflag=skip_bytes,count_bytes skip={offset} count={len} \
                 bs=7777 status=none | cksum"
            );
            let said = script(&dd, &both);
            let sums: Vec<_> = said.lines().collect();
            assert_eq!(sums[0], sums[1], "{offset} {len}");
        }
        let copy = served.dir.path().join("copy");
        let said = script(
            "rm -rf $3; cp -r $1 $3; rsync -rcni --exclude .tactus $2/ $3/",
            &[&mounted.place, &served.titles, &copy],
        );
        assert!(!said.lines().any(|line| line.starts_with(['<', '>'])), "they differ: {said}");
        // Many readers at random places of one open file.
        let file = open(&mounted.path("films/deep/two.bin"));
        let bytes = content(40 << 20, 40 << 20);
        std::thread::scope(|scope| {
            for reader in 0..8_usize {
                let (file, bytes) = (&file, &bytes);
                scope.spawn(move || {
                    for turn in 0..50 {
                        let at = (reader * 7_368_787 + turn * 1_299_709) % bytes.len();
                        let len = (turn * 9_973 + 1).min(bytes.len() - at);
                        let mut got = vec![0; len];
                        file.read_exact_at(&mut got, at as u64).expect("bytes");
                        assert!(got == bytes[at..at + len], "{at} {len}");
                    }
                });
            }
        });
    }
}

#[test]
fn players_play_and_seek_from_the_mount() {
    let served = Served::new();
    let path = served.titles.join("sample.ts");
    sample::write_ts(&path, SECOND.times(6)).expect("a title");
    let ffmpeg = installed("ffmpeg", "ffmpeg");
    let played = |input: &Path| {
        let sums = ["0", "3.5"].map(|seek| {
            let mut command = Command::new(&ffmpeg);
            command.args(["-v", "error", "-ss", seek, "-i"]).arg(input);
            let output = command.args(["-map", "0", "-f", "framemd5", "-"]).output();
            output.expect("ffmpeg runs").stdout
        });
        (sums, tactus_testkit::ffprobe::packets(input).len())
    };
    let expected = played(&path);
    assert!(expected.0.iter().all(|sums| sums.len() > 1000));
    for way in WAYS {
        let mounted = served.mount(way);
        assert!(played(&mounted.path("sample.ts")) == expected, "{way:?}");
    }
}

#[test]
fn attributes_are_those_of_the_titles() {
    let served = Served::new();
    served.title("films/one.ts", 1_000_001);
    let mounted = served.mount(&["-o", "umask=027,uid=12,gid=34"]);
    let (own, there) = ("films/one.ts", served.titles.join("films/one.ts"));
    let found = fs::metadata(mounted.path(own)).expect("a title");
    let expected = fs::metadata(there).expect("a title");
    assert_eq!((found.len(), found.nlink()), (1_000_001, 1));
    assert_eq!(found.blocks(), 1_000_001_u64.div_ceil(512));
    assert_eq!(found.modified().ok(), expected.modified().ok());
    assert!(found.modified().expect("a time") > UNIX_EPOCH);
    assert_eq!((found.mode(), found.uid(), found.gid()), (0o100_440, 12, 34));
    let directory = fs::metadata(mounted.path("films")).expect("a directory");
    assert_eq!((directory.mode(), directory.nlink()), (0o040_550, 1));
    // A number is the same at the next mount.
    let number = found.ino();
    assert_ne!(number, directory.ino());
    drop(mounted);
    let mounted = served.mount(&["--path", "/"]);
    assert_eq!(fs::metadata(mounted.path(own)).expect("a title").ino(), number);
    let space =
        script("df -B1 --output=size,avail $1 $2 | tail -n +2", &[&mounted.place, &served.titles]);
    let size = |line: usize| -> f64 {
        let line = space.lines().nth(line).expect("a line");
        line.split_whitespace().next().expect("a size").parse().expect("a number")
    };
    assert!(size(0) > 0.0 && (size(0) / size(1) - 1.0).abs() < 0.001, "{space}");
}

#[test]
fn a_large_directory_lists_each_entry_once_with_its_size() {
    const TITLES: usize = 5_000;
    let served = Served::new();
    for nth in 0..TITLES {
        let directory = served.titles.join(format!("many/{}", "directory ".repeat(nth % 3)));
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(directory.join(format!("title number {nth}.ts")), vec![0; nth]).expect("one");
    }
    let mounted = served.mount(&[]);
    let find = "cd $1/many; find . -type f -printf '%p %s %T@ %n\n' | LC_ALL=C sort";
    let [here, there] = [&mounted.place, &served.titles].map(|place| script(find, &[place]));
    assert_eq!(here.lines().count(), TITLES);
    assert!(here == there, "another tree");
    let list = "cd $1/many; ls -Rl --time-style=+%s | grep -v ^total | awk '{print $5, $6, $NF}'";
    let [here, there] = [&mounted.place, &served.titles].map(|place| {
        let said = script(&format!("{list} | grep -v ^4096 | grep ts"), &[place]);
        (said.lines().count(), said)
    });
    assert!(here == there, "another list");
    // A reader that goes back in a directory.
    let path = mounted.path("many");
    let names = |_| -> Vec<_> {
        let entries = fs::read_dir(&path).expect("a directory");
        entries.map(|entry| entry.expect("an entry").file_name()).collect()
    };
    let [first, again] = [0, 1].map(names);
    assert!(first == again && first.len() > TITLES / 3);
}

#[test]
fn names_with_any_signs_are_found_and_listed() {
    let served = Served::new();
    let longest = "x".repeat(252) + ".ts";
    let names = [
        "a b#?&%41;'\"$`*|<>.ts",
        "ümläut 漢字 🎬.ts",
        "-dash",
        "%2e%2e%41",
        "back\\slash",
        ".hidden",
        "trailing ",
        " leading",
        &longest,
    ];
    for name in names {
        served.title(name, 100 + name.len());
    }
    // No path of the library can express them.
    let bad = std::os::unix::ffi::OsStrExt::from_bytes(b"latin\xe9.ts");
    fs::write(served.titles.join::<&std::ffi::OsStr>(bad), "x").expect("a file");
    fs::write(served.titles.join("new\nline"), "x").expect("a file");
    let mounted = served.mount(&[]);
    let mut listed: Vec<_> = fs::read_dir(&mounted.place)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    listed.sort();
    let mut expected = names.map(str::to_owned);
    expected.sort();
    assert_eq!(listed, expected);
    for name in names {
        let bytes = fs::read(mounted.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(bytes == content(100 + name.len() as u64, 100 + name.len()), "{name}");
    }
    let missing = ["none", "new\nline", ".tactus", "-dash/x"]
        .map(|name| errno(fs::metadata(mounted.path(name))));
    assert_eq!(missing, [Some(ENOENT), Some(ENOENT), Some(ENOENT), Some(20)]);
    assert_eq!(errno(fs::metadata(mounted.place.join::<&std::ffi::OsStr>(bad))), Some(ENOENT));
    assert_eq!(errno(fs::metadata(mounted.path(&"y".repeat(256)))), Some(ENAMETOOLONG));
}

#[test]
fn m02_nothing_can_be_written_to_a_mount_that_is_read_only() {
    let served = Served::new();
    served.title("one.ts", 5000);
    let mounted = served.mount(&[]);
    let one = mounted.path("one.ts");
    let writes = [
        errno(File::options().write(true).open(&one)),
        errno(File::options().append(true).open(&one)),
        errno(File::create(mounted.path("new"))),
        errno(fs::create_dir(mounted.path("new"))),
        errno(fs::remove_file(&one)),
        errno(fs::rename(&one, mounted.path("two.ts"))),
        errno(fs::hard_link(&one, mounted.path("two.ts"))),
        errno(std::os::unix::fs::symlink(&one, mounted.path("two.ts"))),
        errno(fs::set_permissions(&one, std::os::unix::fs::PermissionsExt::from_mode(0o777))),
        errno(
            rustix::fs::setxattr(&one, "user.a", b"b", rustix::fs::XattrFlags::empty())
                .map_err(Into::into),
        ),
        // A mapping that writes needs a descriptor that writes.
        errno(
            rustix::fs::open(&one, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())
                .map_err(Into::into),
        ),
    ];
    assert!(writes.iter().all(|number| *number == Some(EROFS)), "{writes:?}");
}
