//! The catalogue's promises, on a real file system.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicBool;

use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags};
use tactus_core::units::Nanos;
use tactus_media::MediaKind;
use tempfile::TempDir;

use super::*;

struct TestVolume {
    directory: TempDir,
    catalogue: Arc<Catalogue>,
}

impl TestVolume {
    fn new(rules: CatalogueRules) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("root")).unwrap();
        let catalogue = Arc::new(Catalogue::new(&directory.path().join("root"), rules).unwrap());
        Self { directory, catalogue }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join("root").join(name)
    }

    fn find(&self, path: &str) -> Result<PathObject, OpenFault> {
        self.catalogue.find_blocking(&RequestPath::parse(path.as_bytes()).unwrap())
    }

    fn title(&self, path: &str) -> Arc<OpenTitle> {
        match self.find(path) {
            Ok(PathObject::Title(title)) => title,
            other => panic!("{path} gave {other:?}"),
        }
    }

    fn list(&self, path: &str) -> Vec<Entry> {
        listed(&self.catalogue, path, 2).0
    }
}

/// All entries of a directory, read in parts of `part`, and the number of unlisted names.
fn listed(catalogue: &Arc<Catalogue>, path: &str, part: usize) -> (Vec<Entry>, u64) {
    let path = RequestPath::parse(path.as_bytes()).unwrap();
    let Ok(PathObject::Directory(directory)) = catalogue.find_blocking(&path) else {
        panic!("{path:?}")
    };
    let mut walk = catalogue.scroll(directory, ListingScope::Shown, None);
    let mut entries = Vec::new();
    loop {
        let next = runtime().block_on(walk.next(part)).unwrap();
        assert!(next.len() <= part);
        if next.is_empty() {
            assert!(walk.is_over());
            return (entries, walk.unlisted());
        }
        entries.extend(next);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

#[test]
fn one_version_has_one_number_and_a_changed_file_another() {
    let fixture = TestVolume::new(CatalogueRules::default());
    fs::write(fixture.path("a.ts"), b"one").unwrap();
    let first = fixture.title("/a.ts");
    assert_eq!(fixture.title("/a.ts").id, first.id);
    fs::OpenOptions::new()
        .append(true)
        .open(fixture.path("a.ts"))
        .unwrap()
        .write_all(b"!")
        .unwrap();
    let second = fixture.title("/a.ts");
    assert_ne!(second.id, first.id);
    assert_ne!(second.etag, first.etag);
    assert_eq!(second.len, Bytes(4));
}

#[test]
fn a_copy_of_the_same_size_and_time_is_another_version() {
    let fixture = TestVolume::new(CatalogueRules::default());
    fs::write(fixture.path("a.ts"), b"one").unwrap();
    let first = fixture.title("/a.ts");
    let before = fs::metadata(fixture.path("a.ts")).unwrap();
    let file = fs::OpenOptions::new().write(true).open(fixture.path("a.ts")).unwrap();
    let changed = |status: &fs::Metadata| (status.ctime(), status.ctime_nsec());
    // The status-change time is as fine as the kernel's tick, so go on until it has moved.
    while changed(&file.metadata().unwrap()) == changed(&before) {
        (&file).write_all(b"two").unwrap();
        file.set_len(3).unwrap();
        file.set_modified(before.modified().unwrap()).unwrap();
        std::io::Seek::rewind(&mut &file).unwrap();
    }
    let second = fixture.title("/a.ts");
    assert_eq!(second.modified, first.modified);
    assert_ne!((second.id, &second.etag), (first.id, &first.etag));
}

#[test]
fn a_title_on_a_disk_is_read_past_the_page_cache() {
    let fixture = TestVolume::new(CatalogueRules::default());
    fs::write(fixture.path("a.ts"), b"one").unwrap();
    let title = fixture.title("/a.ts");
    let flags = rustix::fs::fcntl_getfl(&title.file).unwrap();
    assert_eq!(flags.contains(OFlags::DIRECT), title.direct);
    assert!(!flags.contains(OFlags::NONBLOCK), "io_uring would not wait for the disk");
}

#[test]
fn known_titles_are_bounded_and_the_least_used_goes_first() {
    let fixture =
        TestVolume::new(CatalogueRules { known_titles_max: 2, ..CatalogueRules::default() });
    for name in ["a", "b", "c"] {
        fs::write(fixture.path(name), name).unwrap();
    }
    let (a, b) = (fixture.title("/a").id, fixture.title("/b").id);
    assert_eq!(fixture.title("/a").id, a);
    fixture.title("/c");
    assert_eq!(fixture.title("/a").id, a, "used last, so still known");
    assert_ne!(fixture.title("/b").id, b, "forgotten, and its number is not used again");
}

#[test]
fn what_a_title_needs_is_looked_for_once_per_version() {
    static LOOKED: AtomicU64 = AtomicU64::new(0);
    const NEEDED: MediaFacts = MediaFacts {
        kind: MediaKind::Movie,
        rate: BitRate(8_800_000),
        peak: None,
        duration: Nanos(60_000_000_000),
        head: Bytes(300_000),
    };
    let fixture = TestVolume::new(CatalogueRules {
        probe: |file, name| {
            assert_eq!((file.metadata().unwrap().len(), name), (3, "a.ts"));
            LOOKED.fetch_add(1, Ordering::Relaxed);
            Some(NEEDED)
        },
        ..CatalogueRules::default()
    });
    fs::write(fixture.path("a.ts"), b"one").unwrap();
    let title = fixture.title("/a.ts");
    assert_eq!(title.own_rate(), None);
    let runtime = runtime();
    let path = RequestPath::parse(b"/a.ts").unwrap();
    for _ in 0..3 {
        let found = runtime.block_on(fixture.catalogue.media(&title, &path));
        assert_eq!(found, Ok(Some(NEEDED)));
    }
    assert_eq!(LOOKED.load(Ordering::Relaxed), 1);
    let EntryKind::Title { own_rate, .. } = fixture.list("/")[0].kind else { panic!() };
    assert_eq!(own_rate, Some(NEEDED.rate));
}

#[test]
fn a02_links_lead_nowhere() {
    let fixture = TestVolume::new(CatalogueRules::default());
    let secret = fixture.directory.path().join("secret");
    fs::write(&secret, b"secret").unwrap();
    fs::create_dir(fixture.path("real")).unwrap();
    fs::write(fixture.path("real/a.ts"), b"open").unwrap();
    let link = |to: &std::path::Path, name: &str| {
        std::os::unix::fs::symlink(to, fixture.path(name)).unwrap();
    };
    link(&secret, "absolute");
    link("../secret".as_ref(), "relative");
    link(fixture.directory.path(), "out");
    link("real".as_ref(), "inside");
    link("/proc/self/root".as_ref(), "magic");
    for path in ["/absolute", "/relative", "/out/secret", "/inside/a.ts", "/magic", "/magic/etc"] {
        assert_eq!(fixture.find(path).unwrap_err(), OpenFault::NotFound, "{path}");
    }
    assert_eq!(fixture.title("/real/a.ts").len, Bytes(4));
    let names: Vec<_> = fixture.list("/").into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["real"], "a listing names no link");
}

#[test]
fn a03_no_race_of_links_and_directories_escapes() {
    const ROUNDS: u32 = 100_000;
    let fixture = TestVolume::new(CatalogueRules::default());
    let outside = fixture.directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), b"secret").unwrap();
    fs::create_dir(fixture.path("d")).unwrap();
    fs::write(fixture.path("d/f"), b"open").unwrap();
    std::os::unix::fs::symlink(&outside, fixture.path("swap")).unwrap();
    let inode = fs::metadata(fixture.path("d/f")).unwrap().ino();

    let stop = AtomicBool::new(false);
    let (mut served, mut refused) = (0, 0);
    let (from, to) = (fixture.path("d"), fixture.path("swap"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(CWD, &from, CWD, &to, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let volume = &fixture.catalogue.volumes[0];
        for _ in 0..ROUNDS {
            match volume.open_beneath("d/f", WaitPolicy::AsNeeded) {
                Ok(OpenObject::File { version, .. }) => {
                    assert_eq!(version.inode, inode, "the secret was opened");
                    served += 1;
                }
                Ok(OpenObject::Directory { .. }) => panic!("a file became a directory"),
                Err(fault) => {
                    assert_eq!(fault, volume::Fault::NotServed);
                    refused += 1;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(served > 0 && refused > 0, "no race took place: {served} served, {refused} refused");
}

#[test]
fn a04_what_is_no_file_is_not_there_and_blocks_nobody() {
    let fixture = TestVolume::new(CatalogueRules::default());
    rustix::fs::mknodat(CWD, fixture.path("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(fixture.path("socket")).unwrap();
    for path in ["/fifo", "/socket"] {
        // On a thread of its own, so that a blocked one fails the case.
        let (answer, answered) = std::sync::mpsc::channel();
        let catalogue = Arc::clone(&fixture.catalogue);
        let path = RequestPath::parse(path.as_bytes()).unwrap();
        std::thread::spawn(move || answer.send(catalogue.find_blocking(&path).unwrap_err()));
        let answered = answered.recv_timeout(std::time::Duration::from_secs(20));
        assert_eq!(answered, Ok(OpenFault::NotFound), "a thread is blocked");
    }
    assert!(matches!(fixture.find("/"), Ok(PathObject::Directory(_))));
    assert!(fixture.list("/").is_empty());
    let devices = Catalogue::new("/dev".as_ref(), CatalogueRules::default()).unwrap();
    let null = devices.find_blocking(&RequestPath::parse(b"/null").unwrap());
    assert_eq!(null.unwrap_err(), OpenFault::NotFound);
}

#[test]
fn a06_twins_are_two_objects() {
    let fixture = TestVolume::new(CatalogueRules::default());
    fs::write(fixture.path("caf\u{e9}.ts"), b"composed").unwrap();
    fs::write(fixture.path("cafe\u{301}.ts"), b"decomposed").unwrap();
    fs::write(fixture.path("Case.ts"), b"upper").unwrap();
    fs::write(fixture.path("case.ts"), b"lower").unwrap();
    let ids: std::collections::HashSet<_> =
        ["/caf%C3%A9.ts", "/cafe%CC%81.ts", "/Case.ts", "/case.ts"]
            .iter()
            .map(|path| fixture.title(path).id)
            .collect();
    assert_eq!(ids.len(), 4);
}

#[test]
fn a07_reserved_names_are_not_there() {
    let fixture = TestVolume::new(CatalogueRules::default());
    fs::create_dir(fixture.path(".tactus")).unwrap();
    fs::write(fixture.path(".tactus/upload"), b"half").unwrap();
    fs::write(fixture.path(".tactus-manifest"), b"sums").unwrap();
    fs::write(fixture.path(".TACTUS"), b"folded").unwrap();
    fs::write(fixture.path("tactus.ts"), b"fine").unwrap();
    for path in ["/.tactus", "/.tactus/", "/.tactus/upload", "/.tactus-manifest", "/.TACTUS"] {
        assert_eq!(fixture.find(path).unwrap_err(), OpenFault::NotFound, "{path}");
    }
    assert_eq!(fixture.list("/").len(), 1);
}

#[test]
fn a08_other_mounts_are_not_there() {
    let root = Catalogue::new("/".as_ref(), CatalogueRules::default()).unwrap();
    let find = |path: &str| root.find_blocking(&RequestPath::parse(path.as_bytes()).unwrap());
    assert!(fs::read("/proc/version").is_ok(), "the case needs /proc");
    for path in ["/proc", "/proc/version", "/proc/self/status"] {
        assert_eq!(find(path).unwrap_err(), OpenFault::NotFound, "{path}");
    }
    assert!(matches!(find("/usr"), Ok(PathObject::Directory(_))), "what is no mount is there");
}

#[test]
fn w08_a_listing_is_complete_and_sorted_within_any_memory_limit() {
    for (names_max, part) in [(1, 1), (200, 2), (1_000, 7), (1 << 20, 1_000)] {
        let rules =
            CatalogueRules { listing_names_max: Bytes(names_max), ..CatalogueRules::default() };
        let fixture = TestVolume::new(rules);
        let mut expected = Vec::new();
        for number in 0..40 {
            let name = format!("{}-{number}", "ä".repeat(number % 9));
            match number % 3 {
                0 => fs::create_dir(fixture.path(&name)).unwrap(),
                _ => fs::write(fixture.path(&name), b"x").unwrap(),
            }
            expected.push((number % 3 != 0, name));
        }
        expected.sort();
        fs::write(fixture.path(".hidden"), b"x").unwrap();
        let entries = listed(&fixture.catalogue, "/", part).0;
        let names =
            entries.into_iter().map(|entry| (entry.kind != EntryKind::Directory, entry.name));
        assert_eq!(names.collect::<Vec<_>>(), expected, "{names_max} {part}");
    }
}

#[test]
fn w08_a_walk_continues_after_any_position_and_through_changes() {
    let rules = CatalogueRules { listing_names_max: Bytes(300), ..CatalogueRules::default() };
    let fixture = TestVolume::new(rules);
    for name in ["b", "d", "f", "h", "j", "l"] {
        fs::write(fixture.path(name), b"x").unwrap();
    }
    fs::create_dir(fixture.path("z")).unwrap();
    let walk = |after: Option<&str>| {
        let Ok(PathObject::Directory(directory)) = fixture.find("/") else { panic!() };
        fixture.catalogue.scroll(directory, ListingScope::Shown, after.map(Position::of_link))
    };
    let all = |mut walk: Scroll| {
        let mut names = String::new();
        while !walk.is_over() {
            for entry in runtime().block_on(walk.next(2)).unwrap() {
                names.push_str(&entry.name);
            }
        }
        names
    };
    for (after, names) in [
        (None, "zbdfhjl"),
        (Some("y/"), "zbdfhjl"),
        (Some("z/"), "bdfhjl"),
        (Some("a"), "bdfhjl"),
        (Some("d"), "fhjl"),
        (Some("e"), "fhjl"),
        (Some("l"), ""),
    ] {
        assert_eq!(all(walk(after)), names, "{after:?}");
    }
    // Entries that stay are listed once, whatever else changes.
    let mut changing = walk(None);
    let first = runtime().block_on(changing.next(3)).unwrap();
    assert_eq!(first.iter().map(|entry| &*entry.name).collect::<String>(), "zbd");
    fs::remove_file(fixture.path("f")).unwrap();
    fs::write(fixture.path("a"), b"x").unwrap();
    fs::write(fixture.path("k"), b"x").unwrap();
    assert_eq!(all(changing), "hjkl");
}

#[test]
fn w04_names_that_no_path_can_express_are_counted() {
    use std::os::unix::ffi::OsStrExt;
    let fixture = TestVolume::new(CatalogueRules::default());
    for name in ["100%20.ts", "a\\b.ts", "%", "%2F", "\\"] {
        fs::write(fixture.path(name), b"x").unwrap();
    }
    let root = fixture.path("");
    for name in [&b"latin-\xe9.ts"[..], b"line\n.ts", b"%2e%2e", b"a\\..\\x", b"\xff", b".\xff"] {
        fs::write(root.join(std::ffi::OsStr::from_bytes(name)), b"x").unwrap();
    }
    let (entries, unlisted) = listed(&fixture.catalogue, "/", 2);
    let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["%", "%2F", "100%20.ts", "\\", "a\\b.ts"]);
    assert_eq!(unlisted, 5, "the hidden one does not count");
}

#[test]
fn a_title_has_one_name_and_a_directory_is_no_title() {
    let fixture = TestVolume::new(CatalogueRules::default());
    fs::write(fixture.path("a.ts"), b"one").unwrap();
    assert_eq!(fixture.find("/a.ts/").unwrap_err(), OpenFault::NotFound);
    assert_eq!(fixture.find("/a.ts/b").unwrap_err(), OpenFault::NotFound);
    assert_eq!(fixture.find("/none").unwrap_err(), OpenFault::NotFound);
}

#[test]
fn what_is_in_memory_is_found_without_another_thread() {
    let fixture = TestVolume::new(CatalogueRules::default());
    fs::write(fixture.path("a.ts"), b"one").unwrap();
    let id = fixture.title("/a.ts").id;
    let path = RequestPath::parse(b"/a.ts").unwrap();
    // Without a runtime: starting a thread would panic.
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    let mut found = std::pin::pin!(fixture.catalogue.find(&path));
    match found.as_mut().poll(&mut context) {
        std::task::Poll::Ready(Ok(PathObject::Title(title))) => assert_eq!(title.id, id),
        other => panic!("{other:?}"),
    }
}

#[test]
fn volumes_appear_where_they_are_mounted() {
    let directory = tempfile::tempdir().unwrap();
    let root = |mount: &str, name: &str| {
        let directory = directory.path().join(name);
        fs::create_dir_all(directory.join("sub")).unwrap();
        fs::write(directory.join("sub/where"), name).unwrap();
        Root { mount: mount.into(), directory }
    };
    let roots = [root("/films/", "a"), root("/films/new/", "bb"), root("/music/", "ccc")];
    let catalogue = Arc::new(Catalogue::with_volumes(&roots, CatalogueRules::default()).unwrap());
    let find = |path: &str| catalogue.find_blocking(&RequestPath::parse(path.as_bytes()).unwrap());
    let seen = |path: &str| match find(path) {
        Ok(PathObject::Title(title)) => (title.volume.0, title.len.0),
        other => panic!("{path} gave {other:?}"),
    };
    assert_eq!(seen("/films/sub/where"), (0, 1));
    assert_eq!(seen("/films/new/sub/where"), (1, 2));
    assert_eq!(seen("/music/sub/where"), (2, 3));
    for path in ["/sub/where", "/filmsub/where", "/films2", "/none"] {
        assert_eq!(find(path).unwrap_err(), OpenFault::NotFound, "{path}");
    }
    let names = |path: &str| {
        let entries = listed(&catalogue, path, 100).0;
        entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>()
    };
    assert_eq!(names("/"), ["films", "music"]);
    assert_eq!(names("/films/"), ["new", "sub"]);
    assert_eq!(names("/films/new"), ["sub"]);
}

#[test]
fn a_volume_that_hangs_takes_only_its_share_of_threads() {
    use std::sync::{Condvar, Mutex};
    static GATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
    static HANGING: AtomicU64 = AtomicU64::new(0);
    let fixture = TestVolume::new(CatalogueRules {
        probe: |_, _| {
            HANGING.fetch_add(1, Ordering::Relaxed);
            let shut = GATE.1.wait_while(GATE.0.lock().unwrap(), |open| !*open).unwrap();
            drop(shut);
            None
        },
        ..CatalogueRules::default()
    });
    let titles: Vec<_> = (0..20)
        .map(|n| {
            fs::write(fixture.path(&n.to_string()), b"title").unwrap();
            (
                fixture.title(&format!("/{n}")),
                RequestPath::parse(format!("/{n}").as_bytes()).unwrap(),
            )
        })
        .collect();
    runtime().block_on(async {
        let ask = |(title, path): &(Arc<OpenTitle>, RequestPath)| {
            let (catalogue, title, path) =
                (Arc::clone(&fixture.catalogue), Arc::clone(title), path.clone());
            tokio::spawn(async move { catalogue.media(&title, &path).await })
        };
        let all: Vec<_> = titles.iter().map(ask).collect();
        while HANGING.load(Ordering::Relaxed) < 4 {
            tokio::task::yield_now().await;
        }
        // Lookups have turns of their own, and all the others wait without a thread.
        for (title, path) in &titles {
            let found = fixture.catalogue.find(path).await;
            assert!(matches!(found, Ok(PathObject::Title(found)) if found.id == title.id));
        }
        assert_eq!(HANGING.load(Ordering::Relaxed), 4);
        *GATE.0.lock().unwrap() = true;
        GATE.1.notify_all();
        for task in all {
            assert_eq!(task.await.unwrap(), Ok(None));
        }
        assert_eq!(HANGING.load(Ordering::Relaxed), 20);
    });
}

#[test]
fn checksums_of_remembered_titles_have_a_bound() {
    let sums: SumsLookup = |_, title| {
        let len = Bytes(rustix::fs::fstat(title).unwrap().st_size as u64);
        let units = vec![0; len.0.div_ceil(64 * 1024) as usize];
        Ok(Sums::new(len, units.into()).map(Arc::new))
    };
    // Each of these has four sums, of four bytes each.
    let rules = CatalogueRules { sums, sums_max: Bytes(40), ..CatalogueRules::default() };
    let fixture = TestVolume::new(rules);
    for name in ["a.ts", "b.ts", "c.ts"] {
        fs::write(fixture.path(name), vec![0; 256 * 1024]).unwrap();
    }
    let first = ["/a.ts", "/b.ts"].map(|name| fixture.title(name).id);
    assert_eq!(["/a.ts", "/b.ts"].map(|name| fixture.title(name).id), first, "two fit");
    fixture.title("/c.ts");
    assert_eq!(fixture.title("/b.ts").id, first[1], "used after the first");
    assert_ne!(fixture.title("/a.ts").id, first[0], "there was no room for three");
    // A title whose checksums alone exceed the limit is served nevertheless.
    fs::write(fixture.path("long.ts"), vec![0; 1 << 20]).unwrap();
    assert_eq!(fixture.title("/long.ts").sums.as_ref().unwrap().units().len(), 16);
}

#[test]
fn a_damaged_title_is_counted_and_not_opened() {
    let rules =
        CatalogueRules { sums: |_, _| Err(ChecksumFault::Length), ..CatalogueRules::default() };
    let fixture = TestVolume::new(rules);
    fs::write(fixture.path("a.ts"), b"one").unwrap();
    for count in 1..3 {
        assert_eq!(fixture.find("/a.ts").unwrap_err(), OpenFault::Damaged(ChecksumFault::Length));
        assert_eq!(fixture.catalogue.damaged(), count);
    }
}

#[test]
fn what_was_removed_or_changed_is_forgotten_and_its_file_closed() {
    let fixture = TestVolume::new(CatalogueRules::default());
    for name in ["kept.ts", "removed.ts", "changed.ts"] {
        fs::write(fixture.path(name), b"one").unwrap();
    }
    let kept = fixture.title("/kept.ts");
    let titles = ["/removed.ts", "/changed.ts"].map(|name| Arc::downgrade(&fixture.title(name)));
    fs::remove_file(fixture.path("removed.ts")).unwrap();
    fs::write(fixture.path("changed.ts"), b"other").unwrap();
    fixture.catalogue.forget_changed();
    assert!(titles.iter().all(|title| title.upgrade().is_none()));
    assert_eq!(fixture.title("/kept.ts").id, kept.id);
}
