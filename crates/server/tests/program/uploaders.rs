//! Real clients upload to the real server: curl, tus-js-client, tuspy, rclone, Chromium through the
//! page, and `tactus put`; some of them through cuts of the network and kills of the server.
//!
//! Promise: whatever the client says is stored is there, byte for byte. A client that is not
//! installed fails its test by name.

mod dav;

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tactus_testkit::process::{Process, free_port, turn};
use tactus_testkit::programs::installed;
use tactus_testkit::{content, server};

use crate::TACTUS;
use crate::clients::script;

/// Enough for a slow machine; what hangs ends here.
const CLIENT_SECONDS_MAX: &str = "600";

/// `tactus serve DIR --uploads` on a port that it keeps. One at a time: it pins its cores.
struct TestServer {
    server: Process,
    port: u16,
    /// The address of metrics.
    figures: String,
    token: String,
    dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl TestServer {
    fn new() -> Self {
        let turn = turn();
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
        fs::create_dir(dir.path().join("titles")).expect("a directory");
        // Free now, and nobody else takes it: ports are given out in turn.
        let port = free_port();
        let (server, said) = start(dir.path(), port);
        let token = said.iter().find_map(|line| line.strip_prefix("Uploads with the token "));
        let token = token.expect("the token is printed when it is made").to_owned();
        let figures = figures(&said);
        Self { server, port, figures, token, dir, _turn: turn }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Ends the server as a crash would, and starts it again.
    fn kill_and_start(&mut self) {
        self.server.kill();
        let (server, said) = start(self.dir.path(), self.port);
        self.server = server;
        self.figures = figures(&said);
        assert!(
            !said.join("\n").contains(&self.token),
            "it is printed only when it is made: {said:?}"
        );
    }

    /// A file to upload; no two places of it look alike.
    fn file(&self, name: &str, len: usize) -> (PathBuf, Vec<u8>) {
        let bytes = content(len as u64, len);
        let path = self.dir.path().join(name);
        fs::write(&path, &bytes).expect("a file");
        (path, bytes)
    }

    fn stored(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.dir.path().join("titles").join(name)).ok()
    }

    fn has(&self, name: &str, bytes: &[u8]) {
        let stored = self.stored(name).unwrap_or_else(|| panic!("{name} is not stored"));
        assert!(stored == bytes, "{name} has {} bytes, or others", stored.len());
    }
}

/// The address of metrics and status in the server's output.
fn figures(said: &[String]) -> String {
    server::address(said, "Metrics", "http://").expect("it says where its figures are").to_owned()
}

/// What it says is logged as fully as it can.
fn start(dir: &Path, port: u16) -> (Process, Vec<String>) {
    let mut command = server::serve(TACTUS, dir);
    command.arg(dir.join("titles")).env("TACTUS_LOG", "trace");
    command.arg("--config").arg(server::little_memory(dir));
    command.args(["--uploads", "--http", &format!("127.0.0.1:{port}"), "--admin", "127.0.0.1:0"]);
    // The access log follows on standard output.
    let access = fs::File::options().create(true).append(true).open(dir.join("access"));
    let mut access = access.expect("a log");
    let log = dir.join("log");
    server::start(&mut command, Some(&log), server::until("Uploads with"), move |line| {
        writeln!(access, "{line}").expect("there is room");
    })
}

/// A way to the server that breaks after so many bytes of each of the first connections.
struct Cuts {
    port: u16,
    made: Arc<AtomicU64>,
}

impl Cuts {
    fn new(server: u16, after: u64, cuts: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let made = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&made);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // While the server is being started again there is nobody behind.
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let (up, down) = (
                    upstream.try_clone().expect("a socket"),
                    client.try_clone().expect("a socket"),
                );
                std::thread::spawn(move || {
                    // A client that waits for its answer hears of a server that was killed, too.
                    drop(std::io::copy(&mut &up, &mut &down));
                    drop(down.shutdown(Shutdown::Write));
                });
                let count = Arc::clone(&count);
                std::thread::spawn(move || {
                    let (mut sent, mut chunk) = (0, vec![0; 64 * 1024]);
                    while let Ok(read @ 1..) = (&client).read(&mut chunk) {
                        if (&upstream).write_all(&chunk[..read]).is_err() {
                            break;
                        }
                        sent += read as u64;
                        if sent > after && count.load(Ordering::Relaxed) < cuts {
                            count.fetch_add(1, Ordering::Relaxed);
                            break;
                        }
                    }
                    // Either side may be gone already.
                    drop(client.shutdown(Shutdown::Both));
                    drop(upstream.shutdown(Shutdown::Both));
                });
            }
        });
        Self { port, made }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn wait_for(&self, cuts: u64) {
        for _ in 0..6000 {
            if self.made() >= cuts {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("only {} of {cuts} cuts were made in half a minute", self.made());
    }

    fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }
}

fn begin<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Command {
    installed(program, program);
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", CLIENT_SECONDS_MAX, program]).args(args).stdin(Stdio::null());
    command
}

fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> String {
    ended_well(begin(program, args).output().expect("timeout is part of coreutils"))
}

fn ended_well(ended: Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    assert!(ended.status.success(), "{}\n{out}\n{err}", ended.status);
    out
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain names")
}

#[test]
fn curl_puts_files_in_every_way_that_it_knows() {
    let server = TestServer::new();
    let (file, bytes) = server.file("a.ts", 3_000_001);
    let user = format!("anybody:{}", server.token);
    let curl = |more: &[&str], to: &str| {
        let format = ["-sS", "-u", &user, "-o", "/dev/null", "-w", "%{http_code}"];
        run("curl", [&format, more, &[&server.url(to)]].concat())
    };
    assert_eq!(curl(&["-T", text(&file)], "/dir/"), "201");
    server.has("dir/a.ts", &bytes);
    assert_eq!(curl(&["-T", text(&file), "-H", "Expect: 100-continue"], "/b.ts"), "201");
    server.has("b.ts", &bytes);
    assert_eq!(curl(&["-T", text(&file), "-H", "Expect:"], "/c.ts"), "201");
    server.has("c.ts", &bytes);
    assert_eq!(curl(&["-T", text(&file), "-H", "Transfer-Encoding: chunked"], "/c.ts"), "204");
    server.has("c.ts", &bytes);
    assert_eq!(curl(&["-T", text(&file), "-H", "If-None-Match: *"], "/c.ts"), "412");
    assert_eq!(curl(&["-X", "MOVE", "-H", "Destination: /d.ts"], "/c.ts"), "201");
    assert_eq!(curl(&["-X", "DELETE"], "/d.ts"), "204");
    assert_eq!(server.stored("d.ts"), None);
    let nobody = run(
        "curl",
        ["-sS", "-o", "/dev/null", "-w", "%{http_code}", "-T", text(&file), &server.url("/e.ts")],
    );
    assert_eq!(nobody, "401", "curl reads the refusal while it sends");
    assert_eq!(
        run("curl", ["-sS", "--fail", &format!("{}?rate=max", server.url("/b.ts"))]).len(),
        String::from_utf8_lossy(&bytes).len()
    );
}

#[test]
fn k03_no_token_is_logged() {
    let server = TestServer::new();
    let (file, _) = server.file("a.ts", 1000);
    let status = |credentials: &[&str], url: &str| {
        let ask = ["-sS", "-o", "/dev/null", "-w", "%{http_code}", "-T", text(&file)];
        run("curl", [&ask, credentials, &[url]].concat())
    };
    let (bearer, wrong) =
        (format!("Authorization: Bearer {}", server.token), "not-the-right-token");
    assert_eq!(status(&["-H", &bearer], &server.url("/a.ts")), "201");
    assert_eq!(status(&["-u", &format!("me:{}", server.token)], &server.url("/b.ts")), "201");
    assert_eq!(status(&["-u", &format!("me:{wrong}")], &server.url("/c.ts")), "401");
    let read = |name: &str| fs::read_to_string(server.dir.path().join(name)).expect("a log");
    let end = Instant::now() + Duration::from_secs(10);
    // Records are written shortly after the answers.
    while !["path=/a.ts", "path=/b.ts", "status=401"]
        .iter()
        .all(|part| read("access").contains(part))
    {
        assert!(Instant::now() < end, "the access log is incomplete:\n{}", read("access"));
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = read("log") + &read("access");
    assert!(log.contains("takes uploads"), "{log}");
    let basic = |token: &str| data_encoding::BASE64.encode(format!("me:{token}").as_bytes());
    for secret in [&server.token, wrong, &basic(&server.token), &basic(wrong)] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

#[test]
fn what_is_not_what_was_stored_is_not_served_and_verify_names_it() {
    use std::os::unix::fs::FileExt;
    let server = TestServer::new();
    let (file, bytes) = server.file("a.ts", 1_000_001);
    let user = format!("anybody:{}", server.token);
    for to in ["/whole.ts", "/cut.ts", "/changed.ts"] {
        let url = server.url(to);
        run("curl", ["-sS", "--fail", "-u", &user, "-T", text(&file), &url]);
    }
    let titles = server.dir.path().join("titles");
    fs::write(titles.join("not-uploaded.ts"), &bytes).expect("a file");
    let verify = |path: &Path| {
        let ended = begin(TACTUS, ["verify", text(path)]).output();
        let ended = ended.expect("timeout is part of coreutils");
        (ended.status.code(), String::from_utf8_lossy(&ended.stdout).into_owned())
    };
    let (code, said) = verify(&titles);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("3 whole") && said.contains("1 without checksums, 0 damaged"), "{said}");

    let open = |name: &str| fs::File::options().write(true).open(titles.join(name)).expect("there");
    open("cut.ts").set_len(1_000_000).expect("a shorter file");
    open("changed.ts").write_all_at(&[!bytes[700_000]], 700_000).expect("another byte");
    let (code, said) = verify(&titles);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("cut.ts: the title was cut"), "{said}");
    assert!(said.contains("changed.ts: 1 units of 64 KiB are damaged, the first at byte 655360"));
    assert!(said.contains("1 whole") && said.contains("2 damaged"), "{said}");
    assert_eq!(verify(&titles.join("whole.ts")).0, Some(0));
    assert_eq!(verify(&titles.join("cut.ts")).0, Some(1));

    let get = |name: &str| {
        let url = format!("{}?rate=max", server.url(name));
        let ended = begin("curl", ["-sS", "-w", "%{stderr}%{http_code}", &url]).output();
        let ended = ended.expect("timeout is part of coreutils");
        let status = String::from_utf8_lossy(&ended.stderr).into_owned();
        (ended.status.code(), status, ended.stdout)
    };
    let (code, status, body) = get("/cut.ts");
    assert_eq!((code, status.as_str()), (Some(0), "500"));
    assert!(String::from_utf8_lossy(&body).contains("store it again"));
    // 18: the transfer ended before its length.
    let (code, status, body) = get("/changed.ts");
    assert_eq!((code, status.ends_with("200")), (Some(18), true), "{status}");
    assert!(body.len() < 700_000 && bytes.starts_with(&body), "{} bytes", body.len());
    let metrics = run("curl", ["-sS", &format!("http://{}/metrics", server.figures)]);
    let has =
        |line: &str| assert!(metrics.lines().any(|each| each == line), "no {line}\n{metrics}");
    has("tactus_blocks_damaged_total{volume=\"/\"} 1");
    has("tactus_titles_damaged_total 1");
    has("tactus_streams_ended_total{outcome=\"damaged\"} 1");
}

#[test]
fn a_recording_that_the_server_s_death_cuts_off_is_a_title_after_the_next_start() {
    let mut server = TestServer::new();
    let (_, bytes) = server.file("live.ts", 2_500_003);
    let user = format!("anybody:{}", server.token);
    let to = server.url("/rec/live.ts?rate=4M");
    let mut source = begin("curl", ["-sS", "-u", &user, "-T", "-", &to])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("timeout is part of coreutils");
    let mut pipe = source.stdin.take().expect("a pipe");
    pipe.write_all(&bytes).expect("curl takes it");
    let durable = || {
        let mut stream = TcpStream::connect(&server.figures).expect("it is served");
        let request = "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let body = answer.split("\r\n\r\n").nth(1).expect("a body");
        let status: serde_json::Value = serde_json::from_str(body).expect("JSON");
        let recording = &status["recordings"][0];
        assert!(recording.is_null() || recording["title"] == "/rec/live.ts", "{recording}");
        recording["durable_bytes"].as_u64().unwrap_or(0)
    };
    // What curl holds back for its next read never comes; the rest is durable though it fills no
    // place.
    let mut came = 0;
    for _ in 0..600 {
        came = durable();
        if came > 2_400_000 {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(came > 2_400_000, "{came} bytes are durable");
    assert_eq!(server.stored("rec/live.ts"), None);
    server.kill_and_start();
    drop(pipe);
    source.wait().expect("curl ends");
    for _ in 0..600 {
        if server.stored("rec/live.ts").is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let title = server.stored("rec/live.ts").expect("it has its name");
    assert!(title.len() as u64 >= came && bytes.starts_with(&title), "{} bytes", title.len());
    let verify = Command::new(TACTUS)
        .args(["verify", text(&server.dir.path().join("titles/rec/live.ts"))])
        .output();
    ended_well(verify.expect("it starts"));
}

#[test]
fn tactus_put_goes_on_through_cuts_and_kills() {
    let mut server = TestServer::new();
    let (file, bytes) = server.file("film.ts", 60_000_000);
    let cuts = Cuts::new(server.port, 9_000_000, 3);
    let state = server.dir.path().join("state");
    let put = |server: &TestServer, to: &str, more: &[&str]| {
        let args = [&["put", text(&file), to, "--wait", "20 s"], more].concat();
        let mut command = begin(TACTUS, args);
        command.env("TACTUS_TOKEN", &server.token).env("XDG_STATE_HOME", &state);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let running = put(&server, &cuts.url("/films/"), &[]).spawn().expect("it starts");
    cuts.wait_for(2);
    assert_eq!(server.stored("films/film.ts"), None, "it is killed in the middle");
    server.kill_and_start();
    ended_well(running.wait_with_output().expect("it ends"));
    assert_eq!(cuts.made(), 3);
    server.has("films/film.ts", &bytes);

    // Ended in the middle, the same command goes on.
    let slow = Cuts::new(server.port, 20_000_000, 1);
    let to = slow.url("/again.ts");
    let mut running = put(&server, &to, &["--quiet"]).spawn().expect("it starts");
    slow.wait_for(1);
    running.kill().expect("it runs until now");
    running.wait().expect("a killed command ends");
    ended_well(put(&server, &to, &[]).output().expect("it ends"));
    server.has("again.ts", &bytes);
    assert_eq!(fs::read_dir(state.join("tactus/uploads")).expect("it was used").count(), 0);

    let code = |output: Output| output.status.code();
    let taken = put(&server, &server.url("/again.ts"), &[]).output().expect("it ends");
    assert!(String::from_utf8_lossy(&taken.stderr).contains("--force"), "{taken:?}");
    assert_eq!(code(taken), Some(1));
    ended_well(put(&server, &server.url("/again.ts"), &["--force"]).output().expect("it ends"));
    let wrong =
        put(&server, &server.url("/x.ts"), &[]).env("TACTUS_TOKEN", "a-token-of-nobody").output();
    assert_eq!(code(wrong.expect("it ends")), Some(2));
    for (args, left) in [
        (&["mv", &server.url("/again.ts"), &server.url("/b/c.ts")][..], "b/c.ts"),
        (&["rm", &server.url("/b/c.ts")], "films/film.ts"),
    ] {
        let mut command = begin(TACTUS, args);
        ended_well(command.env("TACTUS_TOKEN", &server.token).output().expect("it ends"));
        server.has(left, &bytes);
    }
    assert_eq!(server.stored("b/c.ts"), None);
}

#[test]
fn tus_js_client_goes_on_through_cuts_and_kills() {
    let mut server = TestServer::new();
    let (file, bytes) = server.file("film.ts", 40_000_000);
    let cuts = Cuts::new(server.port, 9_000_000, 3);
    let upload = |endpoint: &str, path: &str, parts: &str| {
        begin("node", [&script("tus.mjs"), text(&file), endpoint, &server.token, path, parts])
    };
    let running = upload(&cuts.url("/api/v1/uploads"), "js/film.ts", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    cuts.wait_for(2);
    assert_eq!(server.stored("js/film.ts"), None, "it is killed in the middle");
    server.kill_and_start();
    ended_well(running.wait_with_output().expect("it ends"));
    assert_eq!(cuts.made(), 3);
    server.has("js/film.ts", &bytes);
    // In parts beside each other: concatenation.
    let endpoint = server.url("/api/v1/uploads");
    let command = begin(
        "node",
        [&script("tus.mjs"), text(&file), &endpoint, &server.token, "js/parts.ts", "4"],
    )
    .output();
    ended_well(command.expect("it ends"));
    server.has("js/parts.ts", &bytes);
}

#[test]
fn tuspy_goes_on_through_cuts_and_kills() {
    let mut server = TestServer::new();
    let (file, bytes) = server.file("film.ts", 40_000_000);
    // It sends 4 MiB by each connection.
    let cuts = Cuts::new(server.port, 3_000_000, 3);
    let python = script("python/bin/python3");
    let (endpoint, token) = (cuts.url("/api/v1/uploads"), server.token.clone());
    let running =
        begin("env", [&python, &script("tus.py"), text(&file), &endpoint, &token, "py/film.ts"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
    cuts.wait_for(1);
    assert_eq!(server.stored("py/film.ts"), None, "it is killed in the middle");
    server.kill_and_start();
    ended_well(running.wait_with_output().expect("it ends"));
    server.has("py/film.ts", &bytes);
}

/// rclone by WebDAV; the remote is `:webdav:`.
fn rclone(server: &TestServer, args: &[&str]) -> Command {
    let place = ["--webdav-url", &server.url("/"), "--webdav-bearer-token", &server.token];
    let mut command = begin("rclone", [args, &place].concat());
    // None of its own, and nothing of whoever runs the tests.
    command.env("RCLONE_CONFIG", "/dev/null").env("XDG_CACHE_HOME", server.dir.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn rclone_copies_checks_moves_and_deletes_trees() {
    let server = TestServer::new();
    let tree = server.dir.path().join("tree");
    for directory in ["films/größe & <b>", "many", "void"] {
        fs::create_dir_all(tree.join(directory)).expect("a directory");
    }
    let (_, film) = server.file("tree/films/a.ts", 5_000_001);
    let (_, odd) = server.file("tree/films/größe & <b>/100%#?.ts", 70_000);
    server.file("tree/empty.ts", 0);
    server.file("tree/.hidden", 100);
    for number in 0..30 {
        server.file(&format!("tree/many/{number}.ts"), number * 1000);
    }
    let said = |args: &[&str]| {
        let ended = rclone(&server, args).output().expect("it ends");
        let complaints = String::from_utf8_lossy(&ended.stderr).into_owned();
        ended_well(ended) + &complaints
    };
    let tree = text(&tree);
    said(&["copy", tree, ":webdav:tree", "--create-empty-src-dirs"]);
    server.has("tree/films/größe & <b>/100%#?.ts", &odd);
    assert!(server.dir.path().join("titles/tree/void").is_dir());
    let checked = said(&["check", "--download", tree, ":webdav:tree"]);
    assert!(checked.contains("34 matching files"), "{checked}");
    let again = said(&["copy", "-v", tree, ":webdav:tree"]);
    assert!(again.contains("There was nothing to transfer"), "{again}");

    said(&["moveto", ":webdav:tree/films", ":webdav:moved/deep/films"]);
    said(&["moveto", ":webdav:tree/empty.ts", ":webdav:moved/e.ts"]);
    said(&["copyto", ":webdav:moved/deep/films/a.ts", ":webdav:copied/a.ts"]);
    server.has("copied/a.ts", &film);
    said(&["purge", ":webdav:copied"]);
    server.has("moved/deep/films/a.ts", &film);
    let listed = said(&["lsjson", "-R", "--files-only", ":webdav:moved"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let mut listed: Vec<_> = listed
        .as_array()
        .expect("a list")
        .iter()
        .map(|file| (file["Path"].as_str().expect("a path"), file["Size"].as_u64()))
        .collect();
    listed.sort_unstable();
    let of = |len: usize| Some(len as u64);
    let expected = [
        ("deep/films/a.ts", of(film.len())),
        ("deep/films/größe & <b>/100%#?.ts", of(odd.len())),
        ("e.ts", of(0)),
    ];
    assert_eq!(listed, expected);
    said(&["delete", ":webdav:moved", "--include", "*.ts"]);
    assert_eq!(said(&["lsf", "-R", "--files-only", ":webdav:moved"]), "");
    said(&["purge", ":webdav:tree"]);
    said(&["rmdirs", ":webdav:moved"]);
    assert_eq!(said(&["lsf", "-R", ":webdav:"]), "");
}

#[test]
fn rclone_goes_on_where_it_or_the_server_was_killed() {
    let mut server = TestServer::new();
    let tree = server.dir.path().join("tree");
    fs::create_dir(&tree).expect("a directory");
    for number in 0..12 {
        server.file(&format!("tree/{number}.ts"), 4_000_000 + number);
    }
    let tree = text(&tree).to_owned();
    let titles = server.dir.path().join("titles/to");
    let count = || fs::read_dir(&titles).map_or(0, Iterator::count);
    let wait_for = |least: usize| {
        for _ in 0..6000 {
            if count() >= least {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("only {} titles came in half a minute", count());
    };
    let copy =
        ["copy", &tree, ":webdav:to", "--transfers", "2", "--bwlimit", "10M", "--retries", "10"];
    // `timeout` passes the signal on only if it can be caught.
    let mut first = rclone(&server, &copy[..]).spawn().expect("it starts");
    wait_for(2);
    let children = format!("/proc/{0}/task/{0}/children", first.id());
    let child = fs::read_to_string(children).expect("it runs").trim().parse().expect("a number");
    let child = rustix::process::Pid::from_raw(child).expect("a process has a number");
    rustix::process::kill_process(child, rustix::process::Signal::KILL).expect("it runs until now");
    assert!(!first.wait().expect("it ends").success());
    let came = count();
    assert!(came < 12, "it is killed in the middle");
    let second = rclone(&server, &[&copy[..], &["--retries-sleep", "1s"]].concat());
    let second = { second }.spawn().expect("it starts");
    wait_for(came + 2);
    server.kill_and_start();
    ended_well(second.wait_with_output().expect("it ends"));
    let checked = rclone(&server, &["check", "--download", &tree, ":webdav:to"]).output();
    ended_well(checked.expect("it ends"));
    assert_eq!(count(), 12, "nothing else has a name");
}

/// What a suite of litmus finds wrong.
fn litmus(server: &TestServer, suite: &str) -> Vec<String> {
    let user = ["--keep-going", &server.url("/"), "anybody", &server.token];
    let mut command = begin("litmus", user);
    // It leaves its logs where it runs.
    let ended = command.env("TESTS", suite).current_dir(server.dir.path()).output();
    let ended = ended.expect("it ends");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(said.contains("summary for"), "{ended:?}");
    let lines = said.split(['\r', '\n']).filter(|line| line.contains("FAIL"));
    let name = |line: &str| Some(line.split_once(". ")?.1.split_once('.')?.0.to_owned());
    lines.filter_map(name).collect()
}

#[test]
fn litmus_finds_nothing_but_that_directories_are_not_copied() {
    let server = TestServer::new();
    assert_eq!(litmus(&server, "basic"), [""; 0]);
    assert_eq!(litmus(&server, "http"), [""; 0]);
    // Each sets a property that no file system keeps, after it has changed, copied and deleted.
    assert_eq!(litmus(&server, "locks"), ["owner_modify"; 3]);
    // The first wants a directory to be replaced by a copy; the last copies a directory before it
    // moves.
    let copies = ["copy_overwrite", "copy_coll", "copy_shallow", "move_coll"];
    assert_eq!(litmus(&server, "copymove"), copies);
}

#[test]
fn chromium_uploads_through_the_page() {
    let mut server = TestServer::new();
    let (file, bytes) = server.file("größe <b>1.ts", 30_000_000);
    let (small, few) = server.file("small.ts", 10);
    let cuts = Cuts::new(server.port, 9_000_000, 2);
    fs::create_dir(server.dir.path().join("titles/films & more")).expect("a directory");
    let chromium = installed("chromium", "chromium");
    let page = cuts.url("/films%20&%20more/");
    let args = [&script("page.mjs"), &chromium, &page, &server.token, text(&file), text(&small)];
    let running = begin("node", args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    cuts.wait_for(2);
    server.kill_and_start();
    let ended = running.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "", "the page complains");
    assert_eq!(ended_well(ended), "stored\nstored\n");
    server.has("films & more/größe <b>1.ts", &bytes);
    server.has("films & more/small.ts", &few);
}

#[test]
fn tactus_record_has_the_server_receive_a_stream_and_waits_for_its_title() {
    let server = TestServer::new();
    let source = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let free = UdpSocket::bind("127.0.0.1:0").and_then(|s| s.local_addr()).expect("a port");
    let record = |name: &str, more: &[&str]| {
        let mut command = Command::new(TACTUS);
        command.args(["record", &format!("udp://{free}"), "--to", &server.url(name)]);
        command.args(["--rate", "8M"]).args(more).env("TACTUS_TOKEN", &server.token);
        command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    // A packet with its number each time, whether somebody listens or not.
    let mut number = 0u64;
    let mut send_until = |mut is_over: Box<dyn FnMut() -> bool + '_>| {
        while !is_over() {
            let mut packet = [0x47; 188];
            packet[1..4].copy_from_slice(&[1, 0, 0x10 | number as u8 & 0x0f]);
            packet[4..12].copy_from_slice(&number.to_be_bytes());
            number += 1;
            // Nobody listens: that is told as an error of the next packet.
            drop(source.send_to(&packet, free));
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let is_stream = |bytes: &[u8]| {
        let number = |packet: &[u8]| u64::from_be_bytes(packet[4..12].try_into().expect("whole"));
        let first = number(bytes);
        let mut packets = bytes.chunks(188).zip(first..);
        bytes.len() > 188 && packets.all(|(packet, next)| number(packet) == next)
    };
    // Over by itself.
    let mut command = record("/live/a.ts", &["--duration", "1 s"]);
    send_until(Box::new(|| command.try_wait().expect("its state").is_some()));
    let ended = command.wait_with_output().expect("it has ended");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success() && said.contains("/live/a.ts: "), "{said}");
    assert!(is_stream(&server.stored("live/a.ts").expect("a title")));
    // Ended by somebody.
    let mut command = record("/live/b-%n.ts", &[]);
    let begun = std::time::Instant::now();
    let mut is_told = false;
    send_until(Box::new(|| {
        if !is_told && begun.elapsed() > Duration::from_secs(3) {
            is_told = true;
            let pid = Pid::from_raw(command.id() as i32).expect("a process");
            kill_process(pid, Signal::INT).expect("it runs");
        }
        command.try_wait().expect("its state").is_some()
    }));
    let ended = command.wait_with_output().expect("it has ended");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{said}");
    assert!(is_stream(&server.stored("live/b-0001.ts").expect("a title")));
    // The server has forgotten both, so their names can be had again; and it says what cannot be.
    let detached = record("/live/b-%n.ts", &["--detach"]).wait().expect("it ends");
    assert!(detached.success());
    let again = record("/live/b-%n.ts", &[]).wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(again.status.code() == Some(1) && said.contains("is running"), "{said}");
}

#[test]
fn tactus_record_stores_what_comes_by_standard_input() {
    let server = TestServer::new();
    let (_, bytes) = server.file("film", 1_500_000);
    let record = |bytes: &[u8]| {
        let mut command = Command::new(TACTUS);
        command.args(["record", "-", "--rate", "8M", "--to", &server.url("/pipe.ts")]);
        command.env("TACTUS_TOKEN", &server.token).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut command = command.spawn().expect("it starts");
        // What a command that fails did not take says less than its own words.
        drop(command.stdin.take().expect("a pipe").write_all(bytes));
        command.wait_with_output().expect("it ends")
    };
    let ended = record(&bytes);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    server.has("pipe.ts", &bytes);
    let ended = record(b"");
    assert_eq!(ended.status.code(), Some(1), "{}", String::from_utf8_lossy(&ended.stderr));
    server.has("pipe.ts", &bytes);
}
