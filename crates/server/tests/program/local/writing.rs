//! Programs that write titles and change names: what every other door sees of it, and when.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

use tactus_client::protocol::Change;
use tactus_client::{Client, Error, Options, Replace, WriteOptions, WriteRequest};
use tactus_testkit::small_disk::SmallDisk;

use super::*;

mod deleted;
mod recordings;

pub(super) const TOKEN: &str = "a-token-of-more-than-16-characters";

/// A server that stores titles.
pub(super) struct Site {
    process: Process,
    http: String,
    admin: String,
    pub(super) socket: PathBuf,
    pub(super) dir: tempfile::TempDir,
    /// Files of its own without a name.
    own: Vec<String>,
}

/// A server whose `[local]` has these keys beside its path; `principal` are keys of the principal
/// `studio`.
pub(super) fn serve_with(local: &str, principal: &str) -> Site {
    serve_volume(local, principal, "[[volume]]\npath = \"titles\"\nuploads = true\n")
}

/// The same, with the table of its volume.
pub(super) fn serve_volume(local: &str, principal: &str, volume: &str) -> Site {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let titles = dir.path().join("titles");
    fs::create_dir_all(titles.join(".tactus")).expect("a directory");
    fs::write(titles.join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
    fs::write(dir.path().join("token"), TOKEN).expect("a token");
    fs::set_permissions(dir.path().join("token"), fs::Permissions::from_mode(0o600)).expect("own");
    let text = format!(
        "[memory]\narena = \"64 MiB\"\n[local]\npath = \"local.sock\"\n{local}\n\
         [upload]\nobject_max = \"100 MB\"\n\
         [[upload.principal]]\nname = \"studio\"\ntoken_file = \"token\"\n{principal}\n\
         {volume}"
    );
    let config = dir.path().join("tactus.toml");
    fs::write(&config, text).expect("a configuration");
    let mut command = server::serve(TACTUS, dir.path());
    command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
    command.arg(config);
    let log = dir.path().join("err");
    let (process, said) = server::start(&mut command, Some(&log), server::until("Metrics"), drop);
    let [http, admin] = ["Serving", "Metrics"]
        .map(|first| server::address(&said, first, "http://").expect("an address").to_owned());
    let socket = dir.path().join("local.sock");
    let mut site = Site { process, http, admin, socket, dir, own: vec![] };
    site.own = site.left();
    site
}

/// A server where this user may write without a quota.
pub(super) fn serve_writers() -> Site {
    serve_with(&own_user(), "")
}

pub(super) fn own_user() -> String {
    format!("write_users = [\"{}\"]", rustix::process::geteuid().as_raw())
}

impl Site {
    pub(super) fn request(&self, head: &str, body: &str) -> String {
        let len = body.len();
        let text = format!(
            "{head}\r\nHost: {}\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}",
            self.http
        );
        exchange(&self.http, text.as_bytes())
    }

    /// The status and the body of a title.
    pub(super) fn get(&self, path: &str) -> (u16, String) {
        let answer = self.request(&format!("GET {path} HTTP/1.1"), "");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head[9..12].parse().expect("a status"), body.to_owned())
    }

    fn metrics(&self) -> String {
        let head = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n", self.admin);
        exchange(&self.admin, format!("{head}Connection: close\r\n\r\n").as_bytes())
    }

    /// The value of a metric, which may have labels.
    fn metric(&self, name: &str) -> f64 {
        let text = self.metrics();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
    }

    /// Files of the volume that no title is: names in the server's own directories, and files
    /// without a name that the server has open.
    pub(super) fn left(&self) -> Vec<String> {
        let own = self.dir.path().join("titles/.tactus");
        let names = ["stage", "uploads", "trash"].map(|name| fs::read_dir(own.join(name)));
        let names = names.into_iter().flatten().flatten().flatten();
        let mut left: Vec<_> = names.map(|entry| entry.path().display().to_string()).collect();
        let proc = Path::new("/proc").join(self.process.0.id().to_string()).join("fd");
        let open = fs::read_dir(proc).expect("its descriptors").flatten();
        // The link alone does not tell: a title that was opened before it had its name keeps the
        // place of that time there.
        let has_no_name = |fd: &Path| fs::metadata(fd).is_ok_and(|facts| facts.nlink() == 0);
        let open = open.map(|fd| fd.path()).filter(|fd| has_no_name(fd));
        let links = open.filter_map(|fd| fs::read_link(fd).ok());
        let links = links.map(|link| link.display().to_string());
        left.extend(links.filter(|link| link.contains("/titles/")));
        left.retain(|name| !self.own.contains(name));
        left
    }

    pub(super) fn wait_until_nothing_is_left(&self) {
        let until = Instant::now() + PATIENCE;
        while self.metric("tactus_local_clients") > 0.0 || !self.left().is_empty() {
            assert!(Instant::now() < until, "{:?} are left", self.left());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn connect(&self) -> Client {
        Client::connect(&self.socket).expect("a connection")
    }

    pub(super) fn store(&self, client: &Client, path: &str, bytes: &[u8]) -> Result<(), Error> {
        let writer = client.create(path, &WriteOptions::default())?;
        writer.write_all(bytes)?;
        writer.publish()
    }
}

/// Text, so that an answer over HTTP shows it as it is.
pub(super) fn content(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| b'a' + ((at ^ at >> 7 ^ at >> 15) + seed) as u8 % 26).collect()
}

pub(super) fn errno<T>(result: Result<T, Error>) -> i32 {
    result.err().expect("a refusal").errno()
}

/// The length of a file is compared with its claim between orders, too.
#[test]
fn l06_orders_without_a_pause_hide_no_bytes() {
    let _turn = turn();
    let site = serve_writers();
    let client = Raw::connect(&site.socket);
    let begin = Change::WorkingFile { title: "/one.ts".to_owned(), replace: Replace::Titles };
    let (reply, mut files) = client.ask_for_files(&begin.into());
    let Reply::WorkingFile { writer, .. } = reply else { panic!("{reply:?}") };
    let file = fs::File::from(files.remove(0));
    file.set_len(1).expect("it can be written");
    let until = Instant::now() + PATIENCE;
    while file.metadata().expect("facts").len() > 0 {
        assert!(Instant::now() < until, "it is longer than permitted");
        client.ask(&Change::Grow { writer, len: 0 }.into());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_title_that_a_program_writes_is_at_every_door_after_it_is_published_and_not_before() {
    let _turn = turn();
    let site = serve_writers();
    let client = site.connect();
    let bytes = content(5_000_003, 0);
    let writer = client.create("/in/one.ts", &WriteOptions::default()).expect("a writer");
    writer.write_all(&bytes[..1_000_001]).expect("room");
    writer.sync().expect("a disk");
    let mut next = 1_000_001;
    // In place, several at once, of lengths that are no sectors.
    for turn in 0..40 {
        let len = 50_000 + turn * 7;
        let mut buffer = client.buffer(len).expect("room");
        buffer.copy_from_slice(&bytes[next..next + len]);
        client.submit_write(WriteRequest::new(&writer, buffer)).expect("room");
        next += len;
        while let Some(completion) = client.poll() {
            completion.result.expect("a write");
        }
    }
    while let Some(completion) = client.wait(None).expect("a wait") {
        completion.result.expect("a write");
    }
    writer.sync().expect("a disk");
    writer.write_all(&bytes[next..]).expect("room");
    writer.sync().expect("a disk");
    // It has no name at any door.
    let other = site.connect();
    assert_eq!(site.get("/in/one.ts").0, 404);
    assert_eq!(errno(other.stat("/in/one.ts")), 2);
    assert!(!site.dir.path().join("titles/in").exists());
    writer.publish_at(1_600_000_000_000_000_000).expect("a title");

    let (status, body) = site.get("/in/one.ts");
    assert!(status == 200 && body.as_bytes() == bytes, "{status} {}", body.len());
    let title = other.open("/in/one.ts").expect("a title");
    assert_eq!(title.stat().modified, 1_600_000_000_000_000_000);
    let mut copy = vec![0; bytes.len() + 1];
    assert_eq!(title.read_at(0, &mut copy), Ok(bytes.len()));
    assert!(copy[..bytes.len()] == bytes[..]);
    assert!(fs::read(site.dir.path().join("titles/in/one.ts")).expect("a file") == bytes);

    // The next version replaces it in one step; its reader keeps the old one.
    let newer = content(70_000, 3);
    site.store(&client, "/in/one.ts", &newer).expect("a title");
    assert_eq!(site.get("/in/one.ts").1.as_bytes(), newer);
    assert_eq!(title.read_at(0, &mut copy), Ok(bytes.len()));
    let nothing = WriteOptions { replace: Replace::Nothing, ..WriteOptions::default() };
    assert_eq!(errno(client.create("/in/one.ts", &nothing)), 17);
    let existing = WriteOptions { replace: Replace::Existing, ..WriteOptions::default() };
    assert_eq!(errno(client.create("/in/none.ts", &existing)), 2);
    // A name that is taken meanwhile is not replaced.
    let late = client.create("/late.ts", &nothing).expect("a writer");
    site.store(&client, "/late.ts", b"first").expect("a title");
    assert_eq!(errno(late.publish()), 17);
    assert_eq!(site.get("/late.ts").1, "first");
    site.store(&client, "/empty.ts", b"").expect("a title without bytes");
    assert_eq!(client.stat("/empty.ts").expect("a title").len, 0);
    drop((title, client, other));
    site.wait_until_nothing_is_left();
}

#[test]
fn changes_of_names_are_seen_over_http_at_once() {
    let _turn = turn();
    let site = serve_writers();
    let client = site.connect();
    site.store(&client, "/a.ts", b"one").expect("a title");
    client.make_directory("/d").expect("a directory");
    assert_eq!(errno(client.make_directory("/d")), 17);
    assert_eq!(errno(client.make_directory("/no/d")), 20);
    client.rename("/a.ts", "/d/b.ts", Replace::Nothing).expect("a name");
    assert_eq!((site.get("/a.ts").0, site.get("/d/b.ts")), (404, (200, "one".to_owned())));
    site.store(&client, "/c.ts", b"two").expect("a title");
    assert_eq!(errno(client.rename("/c.ts", "/d/b.ts", Replace::Nothing)), 17);
    assert_eq!(errno(client.rename("/c.ts", "/d", Replace::Titles)), 21);
    assert_eq!(errno(client.rename("/c.ts", "/x.ts", Replace::Existing)), 22);
    assert_eq!(errno(client.rename("/none", "/x.ts", Replace::Titles)), 2);
    client.rename("/c.ts", "/d/b.ts", Replace::Titles).expect("a name");
    assert_eq!(site.get("/d/b.ts").1, "two");
    client.set_modified("/d/b.ts", 5_000_000_007).expect("a time");
    assert_eq!(client.stat("/d/b.ts").expect("a title").modified, 5_000_000_007);
    assert_eq!(errno(client.set_modified("/d/b.ts", -1)), 22);
    assert_eq!(errno(client.remove_directory("/d")), 39, "not empty");
    assert_eq!(errno(client.remove_directory("/d/b.ts")), 20);
    assert_eq!(errno(client.remove("/d")), 21);
    client.remove("/d/b.ts").expect("a title");
    assert_eq!((site.get("/d/b.ts").0, errno(client.remove("/d/b.ts"))), (404, 2));
    client.remove_directory("/d").expect("an empty directory");
    assert_eq!(
        (client.list("/").expect("a list").len(), errno(client.remove_directory("/d"))),
        (0, 2)
    );
    for bad in ["/../x", "/.tactus/x", "/api/v1/x", "/a/"] {
        let number = errno(client.create(bad, &WriteOptions::default()));
        assert!([13, 21, 22, 30].contains(&number), "{bad}: {number}");
    }

    // And the other way round.
    let put = format!("PUT /e.ts HTTP/1.1\r\nAuthorization: Bearer {TOKEN}");
    assert!(site.request(&put, "three").starts_with("HTTP/1.1 201"));
    let mut copy = [0; 9];
    assert_eq!(client.open("/e.ts").expect("a title").read_at(0, &mut copy), Ok(5));
    // What another client has locked is not changed.
    let lock = "<?xml version=\"1.0\"?><D:lockinfo xmlns:D=\"DAV:\"><D:lockscope><D:exclusive/>\
        </D:lockscope><D:locktype><D:write/></D:locktype></D:lockinfo>";
    let head = format!(
        "LOCK /e.ts HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/xml"
    );
    let answer = site.request(&head, lock);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let error = client.create("/e.ts", &WriteOptions::default()).expect_err("it is locked");
    assert_eq!((error.errno(), error.message()), (16, "/e.ts is locked by another client"));
    assert_eq!(errno(client.remove("/e.ts")), 16);
    assert_eq!(errno(client.rename("/e.ts", "/f.ts", Replace::Titles)), 16);
    assert_eq!(site.get("/e.ts").1, "three");
}

#[test]
fn without_a_right_nothing_is_changed_and_the_reason_is_told() {
    let _turn = turn();
    let site = serve_with("", "");
    let client = site.connect();
    let error = client.create("/a.ts", &WriteOptions::default()).expect_err("nobody may write");
    let text = "this user may not write; see [local] write_users and write_groups";
    assert_eq!((error.errno(), error.message()), (13, text));
    assert_eq!(errno(client.remove("/a.ts")), 13);
    assert_eq!(errno(client.make_directory("/a")), 13);
    drop((client, site));

    let local = format!("{}\nprincipal = \"studio\"", own_user());
    let site = serve_with(&local, "rights = [\"publish\"]\npaths = [\"/in\"]");
    let client = site.connect();
    let error = client.create("/a.ts", &WriteOptions::default()).expect_err("another path");
    let text = "the principal \"studio\" has no right \"publish\" at /a.ts; see [local] principal";
    assert_eq!((error.errno(), error.message()), (13, text));
    site.store(&client, "/in/a.ts", b"one").expect("a free name");
    let error = site.store(&client, "/in/a.ts", b"two").expect_err("no right to replace");
    assert!(error.errno() == 13 && error.message().contains("\"replace\""), "{error}");
    assert_eq!(errno(client.remove("/in/a.ts")), 13);
    assert_eq!(errno(client.rename("/in/a.ts", "/in/b.ts", Replace::Nothing)), 13);
    assert_eq!(errno(client.set_modified("/in/a.ts", 5)), 13);
    assert_eq!(site.get("/in/a.ts").1, "one");
}

#[test]
fn a_full_quota_or_disk_ends_a_title_and_nothing_of_it_is_left() {
    let _turn = turn();
    let local = format!("{}\nprincipal = \"studio\"", own_user());
    let site = serve_with(&local, "quota = \"6 MB\"");
    let client = site.connect();
    let declared = |len| WriteOptions { len: Some(len), ..WriteOptions::default() };
    assert_eq!(errno(client.create("/a.ts", &declared(6_000_001))), 122);
    assert_eq!(errno(client.create("/a.ts", &declared(100_000_001))), 27, "object_max");
    let writer = client.create("/a.ts", &WriteOptions::default()).expect("a writer");
    let error = writer.write_all(&content(7_000_000, 0)).expect_err("the quota is full");
    assert_eq!(error.errno(), 122);
    assert!(error.message().contains("quota"), "{error}");
    assert_eq!(errno(writer.sync()), 122, "the writer is over");
    // All of the quota is free again, although the writer is still there.
    let all = client.create("/b.ts", &declared(6_000_000)).expect("the whole quota");
    assert_eq!(errno(client.create("/c.ts", &declared(1))), 122);
    assert_eq!(errno(writer.publish()), 122);
    all.write_all(&content(1_000, 0)).expect("room");
    assert_eq!(errno(all.publish()), 61, "fewer bytes than declared");
    let all = client.create("/b.ts", &declared(6_000_000)).expect("the whole quota");
    all.abort().expect("a server");
    let all = client.create("/b.ts", &declared(6_000_000)).expect("the whole quota");
    all.write_all(&content(6_000_000, 0)).expect("room");
    assert_eq!(errno(all.write_all(b"x")), 27, "more bytes than declared");
    assert_eq!(errno(all.publish()), 27);
    assert_eq!(client.list("/").expect("a list"), []);
    drop(client);
    site.wait_until_nothing_is_left();
}

#[test]
fn on_a_full_disk_nothing_acknowledged_is_lost_and_nothing_else_is_left() {
    let _turn = turn();
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let Some(disk) = SmallDisk::mount(home.path(), 352 << 20) else {
        println!("skipped: no right to mount a loop device");
        return;
    };
    fs::create_dir(disk.path().join(".tactus")).expect("a directory");
    fs::write(disk.path().join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
    let volume = format!("[[volume]]\npath = {:?}\nuploads = true\n", disk.path());
    let site = serve_volume(&own_user(), "", &volume);
    let client = site.connect();
    let (kept, bytes) = (content(3_000_001, 0), content(1_000_000, 1));
    site.store(&client, "/kept.ts", &kept).expect("room");
    let free = || rustix::fs::statvfs(disk.path()).expect("a disk").f_bavail;
    let before = free();
    let declared = WriteOptions { len: Some(99_000_000), ..WriteOptions::default() };
    assert_eq!(errno(client.create("/whole.ts", &declared)), 28, "before the first byte");
    let writer = client.create("/big.ts", &WriteOptions::default()).expect("a writer");
    let full = (0..99).find_map(|_| writer.write_all(&bytes).err()).expect("the disk is small");
    assert_eq!(full.errno(), 28);
    assert!(full.message().contains("no room"), "{full}");
    assert_eq!(errno(writer.sync()), 28, "the writer is over");
    assert_eq!(errno(writer.publish()), 28);
    assert_eq!(errno(client.stat("/big.ts")), 2);
    assert!(site.get("/kept.ts").1.as_bytes() == kept);
    let until = Instant::now() + PATIENCE;
    while free() < before {
        assert!(Instant::now() < until, "{} of {before} blocks are free", free());
        std::thread::sleep(Duration::from_millis(20));
    }
    // The next title finds the room of the one that has failed.
    let writer = client.create("/next.ts", &WriteOptions::default()).expect("a writer");
    (0..20).for_each(|_| writer.write_all(&bytes).expect("room"));
    writer.publish().expect("room");
    assert_eq!(client.stat("/next.ts").expect("a title").len, 20_000_000);
    drop((client, site));
}

#[test]
fn requests_of_writers_that_cannot_be_are_error_numbers_and_nothing_else() {
    let _turn = turn();
    let site = serve_writers();
    let mut client = Raw::connect(&site.socket);
    let request = |operation, handle, offset, len, at| Request {
        token: 3,
        operation,
        handle,
        offset: Bytes(offset),
        len,
        at,
        when: MonoTime(0),
    };
    let result = |client: &mut Raw, words: [u64; REQUEST_WORDS]| {
        client.push(&words);
        client.answer().result
    };
    use Operation::{Publish, Sync, Write};
    for operation in [Sync, Publish] {
        assert_eq!(result(&mut client, request(operation, 0, 0, 0, 0).encode()), Err(9));
        assert_eq!(result(&mut client, request(operation, u32::MAX, 0, 0, 0).encode()), Err(9));
    }
    assert_eq!(result(&mut client, request(Write, 0, 0, 1, 0).encode()), Err(9), "no writer");
    let create = |title: &str| {
        Message::from(Change::Create { title: title.into(), len: None, replace: Replace::Titles })
    };
    let Reply::Created { writer } = client.ask(&create("/a.ts")) else { panic!("no writer") };
    client.data.copy_in(100, b"hello");
    assert_eq!(result(&mut client, request(Write, writer, 0, 5, 100).encode()), Ok(5));
    assert_eq!(result(&mut client, request(Write, writer, 0, 5, 100).encode()), Err(29));
    assert_eq!(result(&mut client, request(Write, writer, 6, 5, 100).encode()), Err(29));
    assert_eq!(result(&mut client, request(Write, writer, 5, 0, 100).encode()), Err(22));
    assert_eq!(result(&mut client, request(Write, writer, 5, 2, DATA - 1).encode()), Err(14));
    assert_eq!(result(&mut client, request(Write, writer, 5, 1, u64::MAX / 2).encode()), Err(14));
    assert_eq!(result(&mut client, request(Write, writer, 5, u32::MAX, 0).encode()), Err(14));
    assert_eq!(result(&mut client, request(Sync, writer, 0, 1, 0).encode()), Err(22));
    assert_eq!(result(&mut client, request(Sync, writer, 0, 0, 1).encode()), Err(22));
    let timed = Request { when: MonoTime(5), ..request(Write, writer, 5, 5, 100) };
    assert_eq!(result(&mut client, timed.encode()), Err(22), "nothing is written at a time");
    assert_eq!(result(&mut client, request(Operation::Read, writer, 0, 5, 0).encode()), Err(9));
    assert_eq!(result(&mut client, request(Write, writer, 5, 5, 100).encode()), Ok(5));
    // More requests than the server has under way at once, in order.
    for nth in 0..50 {
        client.push(&request(Write, writer, 10 + nth * 5, 5, 100).encode());
    }
    for _ in 0..50 {
        assert_eq!(client.answer().result, Ok(5));
    }
    assert_eq!(result(&mut client, request(Sync, writer, 0, 0, 0).encode()), Ok(0));
    assert_eq!(result(&mut client, request(Publish, writer, 0, 0, 0).encode()), Ok(0));
    assert_eq!(result(&mut client, request(Publish, writer, 0, 0, 0).encode()), Err(9));
    assert_eq!(client.refusal(&Change::Reason { writer }.into()), 9);
    assert_eq!(site.get("/a.ts").1, "hello".repeat(52));

    let abandon = |writer| Change::Abandon { writer, keeps: false }.into();
    assert_eq!(client.refusal(&abandon(77)), 9);
    assert_eq!(client.refusal(&Change::Reason { writer: 77 }.into()), 9);
    assert_eq!(client.ask(&abandon(writer)), Reply::Closed);
    assert_eq!(client.refusal(&abandon(writer)), 9);
    for nth in 0..64 {
        let Reply::Created { writer: next } = client.ask(&create(&format!("/{nth}.ts"))) else {
            panic!("no writer {nth}")
        };
        assert_ne!(next, writer, "a number is not used again");
    }
    assert_eq!(client.refusal(&create("/65.ts")), 24);
    drop(client);
    site.wait_until_nothing_is_left();
}

/// Not a test of its own: a program that writes until it is killed, for the test below.
#[test]
fn child_that_writes() {
    let Some(socket) = std::env::var_os("TACTUS_TEST_WRITER") else { return };
    let client = Client::connect(socket).expect("a connection");
    let declared = WriteOptions { len: Some(6_000_000), ..WriteOptions::default() };
    let writer = client.create("/killed.ts", &declared).expect("the whole quota");
    writer.write_all(&content(3_000_000, 0)).expect("room");
    writer.sync().expect("a disk");
    println!("synced");
    // Held until the end, and requests under way at it.
    let _buffers: Vec<_> = (0..4).map(|_| client.buffer(4096)).collect();
    loop {
        let buffer = client.buffer(4096).expect("room");
        client.submit_write(WriteRequest::new(&writer, buffer)).expect("room");
        std::thread::sleep(Duration::from_millis(10));
        drop(client.poll());
    }
}

#[test]
fn a_program_that_is_killed_leaves_no_name_no_file_no_quota_and_no_slot() {
    use std::io::{BufRead, BufReader};
    let _turn = turn();
    let local = format!("{}\nprincipal = \"studio\"", own_user());
    let site = serve_with(&local, "quota = \"6 MB\"");
    for turn in 0..8 {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(["--exact", "local::writing::child_that_writes", "--nocapture"]);
        command.env("TACTUS_TEST_WRITER", &site.socket).stdout(Stdio::piped());
        let mut child = Process(command.spawn().expect("a program"));
        let mut lines = BufReader::new(child.0.stdout.take().expect("a pipe")).lines();
        assert!(lines.any(|line| line.expect("text").contains("synced")), "it has written");
        std::thread::sleep(Duration::from_millis(turn * 7));
        child.kill();
        site.wait_until_nothing_is_left();
        assert_eq!(site.get("/killed.ts").0, 404);
    }
    let client = site.connect();
    site.store(&client, "/all.ts", &content(6_000_000, 0)).expect("the whole quota, all slots");
}

#[test]
fn writers_that_send_rubbish_and_disappear_leave_nothing_and_harm_nobody() {
    let _turn = turn();
    let site = serve_writers();
    let other = Client::connect_with(&site.socket, &Options::default()).expect("a connection");
    site.store(&other, "/other.ts", &content(100_000, 0)).expect("a title");
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for turn in 0..120 {
        let mut client = Raw::connect(&site.socket);
        let mut end = 0;
        let title = format!("/rubbish-{}.ts", turn % 3);
        let create = Change::Create { title, len: None, replace: Replace::Titles }.into();
        let Reply::Created { writer } = client.ask(&create) else { panic!("no writer") };
        for _ in 0..next() % 40 {
            let operation = if next() % 3 == 0 { Operation::Sync } else { Operation::Write };
            let len = if operation == Operation::Write { 1 + next() % 300_000 } else { 0 };
            let request = Request {
                token: next(),
                operation,
                handle: writer,
                offset: Bytes(end),
                len: len as u32,
                at: 0,
                when: MonoTime(0),
            };
            end += len;
            let mut words = request.encode();
            if turn % 2 == 0 && next() % 4 == 0 {
                words[next() as usize % REQUEST_WORDS] = next() >> (next() % 64);
            }
            client.push(&words);
        }
        if turn % 4 == 0 {
            for _ in 0..100 {
                let at = next() % (layout::DATA as u64 / 8) * 8;
                client.memory.copy_in(at, &(next() >> (next() % 64)).to_le_bytes());
            }
            client.ring();
        }
        if turn % 3 == 0 {
            std::thread::sleep(Duration::from_micros(next() % 3000));
        }
        drop(client);
        if turn % 10 == 0 {
            site.store(&other, "/other.ts", &content(100_000, turn)).expect("it is served");
        }
    }
    drop(other);
    site.wait_until_nothing_is_left();
}
