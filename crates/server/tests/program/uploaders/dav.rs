//! WebDAV clients that compare trees, mount them, or query the free space: rclone, davfs2, cadaver,
//! gio.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{TestServer, begin, ended_well, rclone, text};

/// Names that have caused errors in clients and servers.
const ODD: [&str; 24] = [
    "a b",
    "100%20",
    "%41",
    "größe",
    "a&b",
    "c+d",
    "e#f",
    "g?h",
    "q\"r",
    "i'j",
    "k;l",
    "m=n",
    "sq[1]",
    "star*",
    "lt<gt>",
    "~lead",
    "dot.",
    "käse\u{301}",
    "日本",
    "%",
    "%2F",
    "a:b",
    "-dash",
    "{curly}",
];

/// The files of a tree with their contents.
fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => left.push(path),
                false => {
                    let name = path.strip_prefix(root).expect("below").to_string_lossy();
                    all.insert(name.into_owned(), fs::read(&path).expect("a file"));
                }
            }
        }
    }
    all
}

/// Changes the bytes of about fifty files, with the same length and times a minute later.
fn change_fifty(root: &Path, salt: u8) -> usize {
    let mut changed = 0;
    for (name, mut bytes) in tree(root).into_iter().step_by((names() / 50).max(1)) {
        bytes.iter_mut().for_each(|byte| *byte ^= salt);
        let path = root.join(&name);
        let before = fs::metadata(&path).and_then(|data| data.modified()).expect("a time");
        fs::write(&path, bytes).expect("a file");
        let file = fs::File::options().append(true).open(&path).expect("a file");
        file.set_modified(before + Duration::from_secs(60)).expect("its time is set");
        changed += 1;
    }
    changed
}

/// Number of files that rclone reports as copied.
fn copied(said: &str) -> usize {
    said.lines().filter(|line| line.contains(": Copied (")).count()
}

/// Number of names; `TACTUS_SYNC_NAMES` overrides it.
fn names() -> usize {
    let wanted = std::env::var("TACTUS_SYNC_NAMES").ok().and_then(|names| names.parse().ok());
    wanted.unwrap_or(240)
}

fn sync_both_ways(vendor: &str) {
    let server = TestServer::new();
    let here = server.dir.path().join("here");
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
    for number in 0..names() {
        let directory = here.join(["", "d", "größe & <b>", "100%25/x y"][number % 4]);
        fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join(format!("{}-{number}.ts", ODD[number % ODD.len()]));
        fs::write(&path, [number as u8].repeat(1 + number * 7 % 3000)).expect("a file");
        let file = fs::File::options().append(true).open(&path).expect("a file");
        file.set_modified(then + Duration::from_secs(number as u64)).expect("its time is set");
    }
    let sync = |from: &str, to: &str| {
        let vendor = ["--webdav-vendor", vendor, "--transfers", "8"];
        let args = [&["sync", "-v", from, to][..], &vendor].concat();
        let began = std::time::Instant::now();
        let ended = rclone(&server, &args).env("RCLONE_STATS_LOG_LEVEL", "DEBUG").output();
        let ended = ended.expect("it ends");
        let complaints = String::from_utf8_lossy(&ended.stderr).into_owned();
        let said = ended_well(ended) + &complaints;
        println!("{from} -> {to}: {} copied in {:?}", copied(&said), began.elapsed());
        copied(&said)
    };
    let (remote, local) = (":webdav:there", text(&here));
    let there = server.dir.path().join("titles/there");
    // Up: all files, then none, then the changed ones, although their sizes are the same.
    assert_eq!(sync(local, remote), names());
    assert!(tree(&here) == tree(&there), "{vendor}: the trees differ after the first sync");
    assert_eq!(sync(local, remote), 0, "{vendor}");
    let changed = change_fifty(&here, 0x55);
    assert_eq!(sync(local, remote), changed, "{vendor}");
    assert!(tree(&here) == tree(&there), "{vendor}: the trees differ after the changes");
    // Down, into another tree; then the files that changed meanwhile.
    let copy = server.dir.path().join("copy");
    let second = text(&copy);
    assert_eq!(sync(remote, second), names());
    assert_eq!(sync(remote, second), 0, "{vendor}");
    let changed = change_fifty(&here, 0xaa);
    assert_eq!(sync(local, remote), changed, "{vendor}");
    assert_eq!(sync(remote, second), changed, "{vendor}");
    assert!(tree(&here) == tree(&copy), "{vendor}: the trees differ after both ways");
    // By checksums, without reading content.
    let ended = rclone(&server, &["check", local, remote, "--webdav-vendor", vendor]).output();
    let ended = ended.expect("it ends");
    let checked = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success() && !checked.contains("could not be checked"), "{checked}");
    assert!(checked.contains(&format!("{} matching files", names())), "{checked}");
}

#[test]
fn w05_rclone_syncs_odd_names_both_ways_and_sends_only_changes_as_owncloud() {
    sync_both_ways("owncloud");
}

#[test]
fn w05_rclone_syncs_odd_names_both_ways_and_sends_only_changes_as_nextcloud() {
    sync_both_ways("nextcloud");
}

#[test]
fn w05_rclone_about_shows_the_free_space() {
    let server = TestServer::new();
    for vendor in ["other", "owncloud", "nextcloud"] {
        let about = ["about", "--json", ":webdav:", "--webdav-vendor", vendor];
        let said = ended_well(rclone(&server, &about).output().expect("it ends"));
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let disk = rustix::fs::statvfs(server.dir.path()).expect("a file system");
        let (free, used) = (said["free"].as_u64().unwrap_or(0), said["used"].as_u64().unwrap_or(0));
        assert!(free > 0 && free <= disk.f_bavail * disk.f_frsize + (1 << 30), "{said}");
        assert!(used > 0 && used + free <= disk.f_blocks * disk.f_frsize, "{said}");
    }
}

#[test]
fn w08_rclone_lists_and_copies_all_of_a_large_directory_by_http_and_webdav() {
    let server = TestServer::new();
    let many = server.dir.path().join("titles/many");
    fs::create_dir(&many).expect("a directory");
    for number in 0..20_300 {
        fs::File::create(many.join(format!("{number} %20.ts"))).expect("a file");
    }
    // Without a request per title, rclone takes the last segment of a path for a file.
    let http = ["--http-url", &server.url("/many/"), "--http-no-head"];
    for (remote, more) in [(":http:", &http[..]), (":webdav:many", &[])] {
        let args = [&["lsf", "--files-only", remote][..], more].concat();
        let listed = ended_well(rclone(&server, &args).output().expect("it ends"));
        assert_eq!(listed.lines().count(), 20_300, "{remote}");
    }
    // Copies some of them with their content.
    let some = server.dir.path().join("titles/some");
    fs::create_dir(&some).expect("a directory");
    for number in 0..150 {
        fs::write(some.join(format!("{number} %20 ü.ts")), number.to_string()).expect("a file");
    }
    let to = server.dir.path().join("some");
    let args = ["copy", ":http:some", text(&to), "--http-url", &server.url("/")];
    ended_well(rclone(&server, &args).output().expect("it ends"));
    assert!(tree(&some) == tree(&to));
}

#[test]
fn w12_cadaver_stores_three_megabytes_though_it_sends_them_before_the_token() {
    let server = TestServer::new();
    let (file, bytes) = server.file("large.ts", 3_000_000);
    let login = format!("machine 127.0.0.1\nlogin anybody\npassword {}\n", server.token);
    let netrc = server.dir.path().join(".netrc");
    fs::write(&netrc, login).expect("a file");
    for name in ["1.ts", "2.ts", "3.ts"] {
        // Each in a run of its own: the first PUT of a run comes without the token.
        let said = cadaver(&server, &format!("put {} {name}\nquit\n", text(&file)));
        assert!(said.contains("succeeded"), "{said}");
        server.has(name, &bytes);
    }
}

fn cadaver(server: &TestServer, commands: &str) -> String {
    let script = server.dir.path().join("commands");
    fs::write(&script, commands).expect("a file");
    let mut command = begin("cadaver", [server.url("/")]);
    command.env("HOME", server.dir.path()).stdin(fs::File::open(&script).expect("a file"));
    let ended = command.output().expect("it ends");
    String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned()
}

/// Mounts all titles by davfs2 with the extra options `options` and runs `script`; returns its
/// output. `$mnt` is the mount, `$dir` the directory beside it.
fn within_davfs2(server: &TestServer, options: &str, script: &str) -> String {
    let place = |name: &str| server.dir.path().join(name);
    fs::create_dir_all(place("mnt")).expect("a directory");
    let secrets = format!("{} anybody {}\n", server.url("/"), server.token);
    fs::write(place("secrets"), secrets).expect("a file");
    // Kernels since 6.15 read directories in pieces of 32 KiB and more, which do not fit into a
    // buffer of 16 KiB.
    let conf =
        format!("secrets {}\nbuf_size 64\ndelay_upload 0\n{options}\n", place("secrets").display());
    fs::write(place("davfs2.conf"), conf).expect("a file");
    for name in ["secrets", "davfs2.conf"] {
        use std::os::unix::fs::PermissionsExt;
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(place(name), private).expect("its mode is set");
    }
    // In a mount namespace and with a cache of its own, which end with its last process.
    // `umount` polls for the end of the daemon every three seconds.
    let script = format!(
        "set -e\n\
         mount -t tmpfs -o mode=1775,gid=davfs2 none /var/cache/davfs2\n\
         dir={dir}\n\
         mnt={dir}/mnt\n\
         mount -t davfs -o conf=$dir/davfs2.conf {url} $mnt\n\
         {script}\n\
         daemon=$(cat /run/mount.davfs/$(echo $mnt | cut -c2- | tr / -).pid)\n\
         umount -i $mnt\n\
         while kill -0 $daemon 2>/dev/null; do sleep 0.02; done\n",
        dir = server.dir.path().display(),
        url = server.url("/"),
    );
    let args = ["-m", "--propagation", "private", "sh", "-c", &script];
    ended_well(begin("unshare", args).env("LC_ALL", "C.UTF-8").output().expect("it ends"))
}

#[test]
fn w05_davfs2_mounts_stores_and_shows_the_free_space() {
    let server = TestServer::new();
    let said = within_davfs2(&server, "use_locks 0", "df -B1 --output=avail,used $mnt | tail -1");
    let mut room = said.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok());
    let disk = rustix::fs::statvfs(server.dir.path()).expect("a file system");
    let near = |told: u64, is: u64| told.abs_diff(is) < (4 << 30) + is / 50;
    let (free, used) = (room.next().expect("a number"), room.next().expect("a number"));
    assert!(near(free, disk.f_bavail * disk.f_frsize), "{said}");
    assert!(near(used, (disk.f_blocks - disk.f_bfree) * disk.f_frsize), "{said}");
}

/// Lists, reads, stores, changes, renames and removes files through the mount, with names of all
/// kinds.
fn davfs2_does_everything(options: &str) {
    let server = TestServer::new();
    let (_, bytes) = server.file("film.ts", 3_000_000);
    let titles = server.dir.path().join("titles");
    fs::create_dir(titles.join("odd")).expect("a directory");
    fs::create_dir(titles.join("odd/empty dir")).expect("a directory");
    let mut names: Vec<_> = ODD.into_iter().chain(["back\\slash", "100%25 ü"]).collect();
    for name in &names {
        fs::write(titles.join("odd").join(name), *name).expect("a file");
    }
    let script = "ls $mnt/odd >$dir/listed\n\
         for name in $mnt/odd/*; do [ -d \"$name\" ] || cmp \"$name\" \
         \"$dir/titles/odd/${name##*/}\"; done\nls -A \"$mnt/odd/empty dir\"\n\
         cp $dir/film.ts \"$mnt/100%25 ü.ts\"\n\
         cmp $dir/film.ts \"$mnt/100%25 ü.ts\"\n\
         mkdir -p $mnt/sub/below\n\
         cp -r $mnt/odd/. $mnt/sub/below\n\
         cp $dir/film.ts $mnt/sub/back\\\\slash.ts\n\
         mv \"$mnt/100%25 ü.ts\" \"$mnt/sub/m o v e d.ts\"\n\
         mv $mnt/sub/below $mnt/sub/käse\n\
         : >$mnt/sub/nothing.ts\n\
         echo once >$mnt/sub/again.ts\n\
         echo more >>$mnt/sub/again.ts\n\
         cp $dir/film.ts $mnt/sub/gone.ts\n\
         rm $mnt/sub/gone.ts\n\
         rm -r $mnt/odd\n\
         ls $mnt >$dir/left";
    within_davfs2(&server, options, script);
    let listed = |name: &str| -> Vec<String> {
        let text = fs::read_to_string(server.dir.path().join(name)).expect("a list");
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    names.push("empty dir");
    names.sort_unstable();
    assert_eq!(listed("listed"), names);
    assert_eq!(listed("left"), ["lost+found", "sub"]);
    names.retain(|name| *name != "empty dir");
    for name in names {
        server.has(&format!("sub/käse/{name}"), name.as_bytes());
    }
    assert!(titles.join("sub/käse/empty dir").is_dir());
    server.has("sub/back\\slash.ts", &bytes);
    server.has("sub/m o v e d.ts", &bytes);
    server.has("sub/nothing.ts", b"");
    server.has("sub/again.ts", b"once\nmore\n");
    assert!(!titles.join("odd").exists() && !titles.join("sub/gone.ts").exists());
}

#[test]
fn w05_davfs2_lists_reads_stores_renames_and_removes_without_locks() {
    davfs2_does_everything("use_locks 0");
}

#[test]
fn w05_davfs2_lists_reads_stores_renames_and_removes_with_locks() {
    davfs2_does_everything("use_locks 1");
}

#[test]
fn w05_gnome_mounts_with_a_password_and_does_its_work() {
    let server = TestServer::new();
    let (_, bytes) = server.file("film.ts", 1_000_000);
    let titles = server.dir.path().join("titles");
    fs::create_dir(titles.join("odd")).expect("a directory");
    for name in ODD {
        fs::write(titles.join("odd").join(name), name).expect("a file");
    }
    for name in ["run", "home"] {
        fs::create_dir(server.dir.path().join(name)).expect("a directory");
    }
    // In an URL of gio everything is encoded but the names that it makes itself.
    let script = format!(
        "set -e\n\
         at=dav://127.0.0.1:{port}\n\
         cd {dir}\n\
         printf 'user\\n{token}\\n' | gio mount $at/ >said\n\
         gio list $at/odd >listed\n\
         gio info -f $at/ | grep filesystem::free\n\
         gio copy film.ts $at/new%20%C3%BC%3B%23.ts\n\
         gio cat $at/new%20%C3%BC%3B%23.ts | cmp - film.ts\n\
         gio copy film.ts $at/new%20%C3%BC%3B%23.ts\n\
         gio mkdir $at/sub\n\
         gio move $at/new%20%C3%BC%3B%23.ts $at/sub/moved.ts\n\
         gio rename $at/sub/moved.ts 're#named 100%25.ts'\n\
         gio copy $at/odd/%25 $at/sub/percent\n\
         gio remove $at/odd/%252F\n\
         gio mount -u $at/\n",
        port = server.port,
        dir = server.dir.path().display(),
        token = server.token,
    );
    let place = |name: &str| server.dir.path().join(name);
    let mut command = begin("dbus-run-session", ["--", "sh", "-c", &script]);
    command.env("XDG_RUNTIME_DIR", place("run")).env("HOME", place("home"));
    command.env("GVFS_DISABLE_FUSE", "1").env("LC_ALL", "C.UTF-8");
    let said = ended_well(command.output().expect("it ends"));
    assert!(said.contains("filesystem::free: "), "{said}");
    let listed = fs::read_to_string(place("listed")).expect("a list");
    let mut listed: Vec<_> = listed.lines().collect();
    let mut all = ODD.to_vec();
    listed.sort_unstable();
    all.sort_unstable();
    assert_eq!(listed, all);
    server.has("sub/re#named 100%25.ts", &bytes);
    server.has("sub/percent", b"%");
    assert!(!titles.join("odd/%2F").exists() && !titles.join("new ü;#.ts").exists());
}

#[test]
fn w05_cadaver_locks_what_it_changes() {
    let server = TestServer::new();
    let (file, bytes) = server.file("film.ts", 100_000);
    let login = format!("machine 127.0.0.1\nlogin anybody\npassword {}\n", server.token);
    fs::write(server.dir.path().join(".netrc"), login).expect("a file");
    let file = text(&file);
    let said = cadaver(
        &server,
        &format!(
            "put {file} a.ts\nlock a.ts\nput {file} a.ts\ndiscover a.ts\nunlock a.ts\n\
             lock a.ts\nmove a.ts b.ts\nmkcol d\nlock d\nput {file} d/c.ts\nunlock d\nquit\n"
        ),
    );
    assert!(!said.contains("failed"), "{said}");
    for name in ["a.ts", "b.ts", "d/c.ts"] {
        assert!(said.contains(name), "{said}");
    }
    server.has("b.ts", &bytes);
    server.has("d/c.ts", &bytes);
    // While it is locked, nobody else changes it; cadaver gives no lock back when it ends.
    cadaver(&server, "lock b.ts\nquit\n");
    let said = cadaver(&server, "delete b.ts\nquit\n");
    assert!(said.contains("423 Locked"), "{said}");
    server.has("b.ts", &bytes);
}
