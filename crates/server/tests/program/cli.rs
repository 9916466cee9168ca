//! The program as its users meet it: what it says, what it answers, and with which exit code it
//! ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::MutexGuard;

use rustix::process::{Pid, Signal};
use tactus_testkit::process::{Process, exchange, turn};
use tactus_testkit::server;

use crate::TACTUS;

fn tactus(args: &[&str]) -> Output {
    let mut command = Command::new(TACTUS);
    command.args(args).stdin(Stdio::null()).env_remove("TACTUS_LOG");
    command.output().expect("the program starts")
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("what it says is UTF-8")
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("what it says is UTF-8")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it ends by itself")
}

/// Bytes that differ from place to place.
fn content(len: u32) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// `tactus serve` on a directory of its own. One at a time: it pins its cores.
struct RunningServer {
    server: Process,
    /// What it said first: where it is, and where its figures are.
    said: [String; 2],
    /// Its address, as this host reaches it.
    url: String,
    dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl RunningServer {
    fn new(config: &str, titles: &[(&str, &[u8])]) -> Self {
        Self::on("127.0.0.1:0", &[], config, titles)
    }

    fn with(more: &[&str]) -> Self {
        Self::on("127.0.0.1:0", more, "", &[])
    }

    /// A server whose log is written to `log`.
    fn logged(config: &str, titles: &[(&str, &[u8])], log: &Path) -> Self {
        Self::new_on("127.0.0.1:0", &[], config, titles, Some(log))
    }

    fn on(address: &str, more: &[&str], config: &str, titles: &[(&str, &[u8])]) -> Self {
        Self::new_on(address, more, config, titles, None)
    }

    fn new_on(
        address: &str,
        more: &[&str],
        config: &str,
        titles: &[(&str, &[u8])],
        log: Option<&Path>,
    ) -> Self {
        let turn = turn();
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
        let media = dir.path().join("media");
        fs::create_dir(&media).expect("a directory");
        for (name, bytes) in titles {
            fs::write(media.join(name), bytes).expect("a title");
        }
        let figures = match config.contains("[admin]") {
            true => "",
            false => "[admin]\naddress = \"off\"\non_http = true\n",
        };
        let text = format!("{figures}[memory]\narena = \"64 MiB\"\n{config}");
        fs::write(dir.path().join("tactus.toml"), text).expect("a configuration");
        let (server, said, url) = start(address, more, dir.path(), log);
        Self { server, said, url, dir, _turn: turn }
    }

    fn restart(&mut self) {
        self.server.kill();
        (self.server, self.said, self.url) = start("127.0.0.1:0", &[], self.dir.path(), None);
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("a plain name").to_owned()
    }

    fn address(&self) -> &str {
        self.url.trim_start_matches("http://").trim_end_matches('/')
    }

    fn ask(&self, target: &str) -> String {
        ask(self.address(), target)
    }
}

fn ask(address: &str, target: &str) -> String {
    ask_as(address, address, target)
}

/// Like [`ask`], with another host name.
fn ask_as(address: &str, host: &str, target: &str) -> String {
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    exchange(address, request.as_bytes())
}

fn start(
    address: &str,
    more: &[&str],
    dir: &Path,
    log: Option<&Path>,
) -> (Process, [String; 2], String) {
    let level = log.map(|_| ("TACTUS_LOG", "info"));
    let mut command = server::serve(TACTUS, dir);
    command.args(["--http", address]).args(more).arg("--config");
    command.args([dir.join("tactus.toml"), dir.join("media")]).envs(level);
    let (server, lines) = server::start(&mut command, log, |said| said.len() == 2, drop);
    let said = <[String; 2]>::try_from(lines).expect("two lines");
    let url = said[0].rsplit(' ').next().expect("the last word is the address");
    assert!(url.starts_with("http://") && url.ends_with('/'), "{said:?}");
    let url = url.replace("0.0.0.0", "127.0.0.1");
    (server, said, url)
}

#[test]
fn serve_takes_players_of_rtsp_where_the_command_line_says_so() {
    let mut served = RunningServer::with(&["--rtsp", "127.0.0.1:0"]);
    let address = served.said[1].strip_prefix("RTSP at rtsp://").expect("its address is told");
    let mut stream = TcpStream::connect(address.trim_end_matches('/')).expect("a connection");
    write!(stream, "OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n").expect("a request");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("an answer");
    assert_eq!(line, "RTSP/1.0 200 OK\r\n");
    served.restart();
    assert!(
        served.said[1].starts_with("Metrics"),
        "nobody is served by RTSP unasked: {:?}",
        served.said
    );
}

#[test]
fn help_shows_every_command_with_examples() {
    let help = out(&tactus(&["--help"]));
    let commands = [
        "serve",
        "demo",
        "measure",
        "ls",
        "get",
        "put",
        "record",
        "channel",
        "class",
        "pin",
        "reload",
        "rm",
        "mv",
        "verify",
        "doctor",
        "completions",
        "man",
    ];
    for command in commands {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is not in\n{help}");
        let own = tactus(&[command, "--help"]);
        assert!(out(&own).contains("\nExamples:\n"), "{command} shows no examples");
        assert_eq!(code(&own), 0);
    }
    assert!(help.contains("Exit codes:"));
    assert_eq!(out(&tactus(&["--version"])), format!("tactus {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_arguments_end_with_2_and_say_what_to_write() {
    for (args, said) in [
        (&["srve"][..], "'serve'"),
        (&["serve"], "name a directory"),
        (&["serve", "/nowhere/at/all"], "is not a directory"),
        (&["serve", "/", "--http", "here"], "here"),
        (&["serve", "/", "--rtsp", "8554x"], "8554x"),
        (&["serve", "/", "--admin", "on"], "\":8080\""),
        (&["get", "ftp://h/a"], "write it like http://"),
        (&["get", "http://127.0.0.1:9/"], "-o FILE"),
        (&["get", "http://127.0.0.1:9/a", "--rate", "8 mbit/s"], "did you mean \"Mbit/s\"?"),
        (&["get", "http://127.0.0.1:9/a", "--wait", "5"], "has no unit"),
        (&["put", "/nowhere/at/all", "http://127.0.0.1:9/"], "token"),
        (&["put", "/etc/passwd", "/etc/group", "http://127.0.0.1:9/a"], "slash"),
        (
            &["record", "http://h/a", "--to", "http://127.0.0.1:9/a"],
            "is not the address of a live input",
        ),
        (&["record", "-", "--to", "http://127.0.0.1:9/a"], "needs --rate"),
        (&["record", "udp://127.0.0.1:5", "--to", "http://127.0.0.1:9/"], "slash"),
        (&["rm", "http://127.0.0.1:9/a"], "--token-file"),
        (&["measure", "/nowhere/at/all"], "is not a directory"),
        (&["measure", "/", "--scratch", "1 Gib"], "did you mean \"GiB\"?"),
        (&["doctor", "/nowhere/at/all"], "name a directory"),
        (&["verify", "/nowhere/at/all"], "/nowhere/at/all"),
    ] {
        let output = tactus(args);
        assert_eq!(code(&output), 2, "{args:?}\n{}", err(&output));
        assert!(err(&output).contains(said), "{args:?} should say {said}:\n{}", err(&output));
    }
}

#[test]
fn a_mistake_in_the_configuration_is_shown_with_line_and_column() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("t.toml");
    let check = |text: &str| {
        fs::write(&file, text).expect("a configuration");
        let file = file.to_str().expect("a plain name");
        tactus(&["serve", "/", "--check-config", "--config", file])
    };
    let wrong = check("[http]\n  adress = \"127.0.0.1:1\"\n");
    assert_eq!(code(&wrong), 2);
    let said = err(&wrong);
    assert!(said.contains("t.toml:2:3: unknown key `adress`; did you mean `address`?"), "{said}");
    assert!(said.contains("2 |   adress = ") && said.contains("  |   ^^^^^^"), "{said}");
    let right = check("[http]\naddress = \"127.0.0.1:1\"\n");
    assert_eq!((code(&right), out(&right).as_str()), (0, "the configuration is valid\n"));
    let absent = tactus(&["serve", "/", "--config", "/nowhere/t.toml"]);
    assert_eq!(code(&absent), 2);
    assert!(err(&absent).contains("/nowhere/t.toml: cannot be read"), "{}", err(&absent));
}

#[test]
fn doctor_judges_this_host_for_people_and_for_programs() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let dir = dir.path().to_str().expect("a plain name");
    let json = tactus(&["doctor", dir, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("a list");
    let of = |name: &str| findings.iter().find(|finding| finding["check"] == name);
    for check in [
        "realtime",
        "memlock",
        "io_uring",
        "filesystem",
        "direct",
        "link",
        "governor",
        "congestion",
        "qdisc",
        "descriptors",
        "hugepages",
    ] {
        let finding = of(check).unwrap_or_else(|| panic!("{check} is not checked"));
        let changeable = finding["cost"].is_string() && finding["fix"].is_string();
        assert_eq!(changeable, finding["state"] != "ok", "{finding}");
    }
    assert_eq!(code(&json), i32::from(report["state"] == "bad"));
    let text = out(&tactus(&["doctor", dir]));
    for finding in findings {
        let name = finding["check"].as_str().expect("a name");
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
}

#[test]
fn completions_and_manual_pages_cover_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = out(&tactus(&["completions", shell]));
        assert!(script.contains("doctor") && script.contains("check-config"), "{shell}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let pages = dir.path().join("man1");
    assert_eq!(code(&tactus(&["man", pages.to_str().expect("a plain name")])), 0);
    for page in
        ["tactus.1", "tactus-serve.1", "tactus-get.1", "tactus-verify.1", "tactus-completions.1"]
    {
        let text = fs::read_to_string(pages.join(page)).unwrap_or_else(|_| panic!("no {page}"));
        assert!(text.contains(".SH NAME"), "{page}");
    }
    assert!(out(&tactus(&["man"])).contains(".SH NAME"));
}

#[test]
fn a_title_is_listed_and_fetched_byte_by_byte() {
    let bytes = content(3_000_001);
    let served = RunningServer::new("", &[("a title.bin", &bytes), ("empty", b"")]);

    let listed = tactus(&["ls", &served.url]);
    assert_eq!(code(&listed), 0, "{}", err(&listed));
    assert!(out(&listed).contains("a title.bin") && out(&listed).contains("2.9 MiB"));
    let json = tactus(&["ls", &served.url, "--json", "--rates"]);
    let entries: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(entries[0]["bytes"], 3_000_001);

    let file = served.file("got");
    let url = served.url("a title.bin");
    let got = tactus(&["get", &url, "-o", &file, "--rate", "100M"]);
    assert_eq!(code(&got), 0, "{}", err(&got));
    assert!(fs::read(&file).expect("the file") == bytes, "bytes differ");
    assert!(!Path::new(&format!("{file}.part")).exists());
    assert!(!Path::new(&format!("{file}.part.etag")).exists());

    let again = tactus(&["get", &url, "-o", &file]);
    assert_eq!(code(&again), 2);
    assert!(err(&again).contains("--force"), "{}", err(&again));
    assert_eq!(code(&tactus(&["get", &url, "-o", &file, "--force", "--rate", "max"])), 0);

    let piped = tactus(&["get", &url, "-o", "-", "--quiet", "--rate", "max"]);
    assert!(piped.stdout == bytes && piped.stderr.is_empty());
    assert_eq!(code(&tactus(&["get", &served.url("empty"), "-o", &served.file("empty.got")])), 0);

    let absent = tactus(&["get", &served.url("b"), "-o", &served.file("b")]);
    assert_eq!(code(&absent), 1);
    assert!(err(&absent).contains("no title of this name"), "{}", err(&absent));
    assert!(!Path::new(&served.file("b.part")).exists());
}

#[test]
fn a_download_goes_on_where_it_stopped_but_only_in_the_same_version() {
    let bytes = content(1_000_000);
    let served = RunningServer::new("", &[("a.bin", &bytes)]);
    let (url, file) = (served.url("a.bin?rate=max"), served.file("a.got"));
    let get = || tactus(&["get", &url, "-o", &file, "--force"]);
    assert_eq!(code(&get()), 0);
    let answer = served.ask("/a.bin?rate=max");
    let tag = answer.lines().find_map(|line| line.strip_prefix("ETag: ")).expect("a tag");
    let leave = |have: &[u8], tag: &str| {
        fs::write(format!("{file}.part"), have).expect("a part");
        fs::write(format!("{file}.part.etag"), tag).expect("its version");
    };

    // What is there is believed when the version is the same: so these zeros stay.
    leave(&[0; 1000], tag);
    assert_eq!(code(&get()), 0);
    let got = fs::read(&file).expect("the file");
    assert!(got[..1000] == [0; 1000] && got[1000..] == bytes[1000..] && got.len() == bytes.len());

    // Of another version nothing is kept.
    leave(&[0; 1000], "\"another\"");
    assert_eq!(code(&get()), 0);
    assert!(fs::read(&file).expect("the file") == bytes, "bytes differ");

    // All of it had come, only the last step was missing.
    leave(&bytes, tag);
    assert_eq!(code(&get()), 0);
    assert!(fs::read(&file).expect("the file") == bytes, "bytes differ");
}

#[test]
fn a_broken_connection_is_followed_by_another() {
    let bytes = content(100_000);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let sent = bytes.clone();
    let server = std::thread::spawn(move || {
        let mut heads = vec![];
        for (start, end) in [(0, 30_000), (30_000, 70_000), (70_000, 100_000)] {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut head = [0; 2048];
            let len = stream.read(&mut head).expect("a request");
            heads.push(String::from_utf8_lossy(&head[..len]).into_owned());
            let status = if start == 0 { "200 OK" } else { "206 Partial Content" };
            write!(
                stream,
                "HTTP/1.1 {status}\r\nETag: \"v1\"\r\nContent-Length: {}\r\n\
                 Content-Range: bytes {start}-99999/100000\r\n\r\n",
                100_000 - start
            )
            .expect("a head");
            stream.write_all(&sent[start..end]).expect("a part of the body");
        }
        heads
    });
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("a");
    let url = format!("http://127.0.0.1:{port}/a");
    let got = tactus(&["get", &url, "-o", file.to_str().expect("a plain name")]);
    assert_eq!(code(&got), 0, "{}", err(&got));
    assert!(fs::read(&file).expect("the file") == bytes, "bytes differ");
    let heads = server.join().expect("no panic");
    let heads: Vec<_> = heads.iter().map(|head| head.to_ascii_lowercase()).collect();
    assert!(!heads[0].contains("range:"));
    assert!(heads[2].contains("range: bytes=70000-\r\nif-range: \"v1\"\r\n"), "{}", heads[2]);
}

#[test]
fn a_server_without_room_is_told_apart_by_3() {
    let config = "[best_effort]\nstreams_max = 0\n";
    // Short answers need no place of a download.
    let served = RunningServer::new(config, &[("a.bin", &content(2_000_000))]);
    let get = |url: &str, to: &str| tactus(&["get", url, "-o", to, "--wait", "0 s"]);
    let refused = get(&served.url("a.bin?rate=max"), &served.file("a"));
    assert_eq!(code(&refused), 3, "{}", err(&refused));
    assert!(err(&refused).contains("no room") && err(&refused).contains("--wait"));
    assert_eq!(code(&get("http://127.0.0.1:9/a", &served.file("x"))), 1);
}

#[test]
fn metrics_are_served_with_the_titles_if_configured() {
    let served = RunningServer::new("", &[("a.bin", &content(10_000))]);
    assert!(served.ask("/metrics").contains("\ntactus_streams_started_total "));
    assert!(served.ask("/api/v1/status").contains("\"version\""));
    assert!(served.ask("/api/v1/capacity?rate=8.8M").contains("\"rate_bits_per_second\":8800000"));
    assert!(served.ask("/.tactus/disk-model.toml").starts_with("HTTP/1.1 404 "));
}

#[test]
fn a_running_stream_is_shown_with_its_rate_its_title_and_its_client() {
    let served = RunningServer::new("", &[("a title.bin", &content(1_000_000))]);
    let mut stream = TcpStream::connect(served.address()).expect("a connection");
    let client = stream.local_addr().expect("connected");
    // Two seconds and a half long.
    stream
        .write_all(b"GET /a%20title.bin?rate=3.2M HTTP/1.1\r\nHost: x\r\n\r\n")
        .expect("a request");
    stream.read_exact(&mut [0; 1024]).expect("it has begun");
    let status = served.ask("/api/v1/status");
    let (_, json) = status.split_once("\r\n\r\n").expect("a head and a body");
    let status: serde_json::Value = serde_json::from_str(json).expect("JSON");
    let shown = &status["streams"][0];
    assert_eq!(shown["title"], "/a title.bin");
    assert_eq!(shown["set_rate_bits_per_second"], 3_200_000);
    assert_eq!(shown["client"], client.to_string());
    let labels = "{stream=\"0\",title=\"/a title.bin\"}";
    let line = format!("tactus_stream_set_rate_bytes_per_second{labels} 400000.0");
    let metrics = served.ask("/metrics");
    assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
}

/// Paths of the server's own status and metrics.
const FIGURES: [&str; 8] = [
    "/metrics",
    "/api/v1/status",
    "/api/v1/sessions",
    "/api/v1/capacity",
    "/api/v1/recordings",
    "/api/v1/channels",
    "/api/v1/classes",
    "/api/v1/pins",
];

/// Row C03: metrics from outside: not listening.
#[test]
fn c03_figures_are_not_served_to_the_network() {
    let off = "[admin]\naddress = \"off\"\n";
    let served = RunningServer::on("0.0.0.0:0", &[], off, &[("a.bin", &content(10_000))]);
    assert!(served.said[1].contains("not served"), "{:?}", served.said);
    for path in FIGURES {
        assert!(served.ask(path).starts_with("HTTP/1.1 404 "), "{path}");
    }
    assert!(served.ask("/a.bin?rate=max").starts_with("HTTP/1.1 200 "));
}

/// A local proxy connects from a loopback address, and its clients would read the status.
#[test]
fn w13_a_loopback_address_does_not_serve_metrics_with_the_titles() {
    for (config, more, own) in [
        ("[admin]\naddress = \"off\"\n", &["--uploads"][..], false),
        ("[admin]\naddress = \"127.0.0.1:0\"\n", &[][..], true),
        ("[admin]\naddress = \"off\"\n", &["--admin", "127.0.0.1:0"], true),
        ("[admin]\naddress = \"127.0.0.1:0\"\n", &["--admin", "off"], false),
    ] {
        let served = RunningServer::on("127.0.0.1:0", more, config, &[("a.bin", &content(10_000))]);
        for path in FIGURES {
            let status = served.ask(path)[9..12].to_owned();
            // If uploads are on, some of them need a token.
            assert!(["401", "404"].contains(&status.as_str()), "{path} {status}");
        }
        let at = served.said[1].strip_prefix("Metrics and status at http://");
        assert_eq!(at.is_some(), own, "{:?}", served.said);
        let Some(at) = at.and_then(|at| at.strip_suffix("/metrics")) else { continue };
        for path in FIGURES {
            assert!(ask(at, path).starts_with("HTTP/1.1 200 "), "{path}");
        }
        assert!(ask(at, "/a.bin").starts_with("HTTP/1.1 404 "), "no title is served there");
    }
}

/// It has no password either for pages of other sites that may use the titles.
#[test]
fn s05_pages_of_other_sites_read_nothing_at_the_admin_address() {
    for origins in ["\"*\"", "\"https://app.example\", \"null\""] {
        let config = format!(
            "[http]\nallowed_origins = [{origins}]\npublic_url = \"https://tv.example/media/\"\n\
             [admin]\naddress = \"127.0.0.1:0\"\n"
        );
        let served = RunningServer::new(&config, &[("a.bin", b"hello")]);
        let admin = figures_at(&served);
        let fields =
            "Host: localhost\r\nConnection: close\r\nAccess-Control-Request-Method: GET\r\n";
        for origin in ["https://app.example", "https://evil.example", "null", "https://tv.example"]
        {
            for line in
                ["GET /api/v1/status", "GET /metrics", "OPTIONS /api/v1/status", "GET /none"]
            {
                let answer = exchange(
                    &admin,
                    format!("{line} HTTP/1.1\r\n{fields}Origin: {origin}\r\n\r\n").as_bytes(),
                );
                let answer = answer.to_ascii_lowercase();
                assert!(answer.starts_with("http/1.1 "), "{answer}");
                assert!(!answer.contains("access-control-"), "{origins} {origin}: {answer}");
                assert!(!answer.contains("cross-origin"), "{origins} {origin}: {answer}");
            }
        }
    }
}

/// The admin address has no password, so pages of other sites must not reach it by a name of their
/// own that resolves to it (DNS rebinding).
#[test]
fn s05_the_admin_address_answers_for_this_machine_only() {
    let admin = |keys: &str| format!("[admin]\naddress = \"127.0.0.1:0\"\n{keys}");
    let own = [
        ("127.0.0.1:9464", "200"),
        ("localhost", "200"),
        ("[::1]:9464", "200"),
        ("evil.example:9464", "421"),
        ("localhost.evil.example", "421"),
        ("10.0.0.1", "421"),
    ];
    let one = [("Metrics.example", "200"), ("localhost:1", "200"), ("evil.example", "421")];
    for (keys, hosts) in [
        ("", &own[..]),
        ("allowed_hosts = [\"metrics.example\"]\n", &one),
        ("allowed_hosts = [\"*\"]\n", &[("evil.example", "200")]),
    ] {
        let served = RunningServer::new(&admin(keys), &[("a.bin", b"hello")]);
        let at = figures_at(&served);
        for (host, status) in hosts {
            for path in ["/metrics", "/api/v1/status", "/api/v1/sessions"] {
                assert_eq!(&ask_as(&at, host, path)[9..12], *status, "{keys}{host}{path}");
            }
            assert_eq!(&ask_as(served.address(), host, "/a.bin?rate=max")[9..12], "200", "{host}");
        }
    }
}

/// `[http] allowed_hosts` applies to titles; the admin address has its own list.
#[test]
fn s11_the_allowed_hosts_of_titles_do_not_apply_to_the_admin_address() {
    let config = "[http]\nallowed_hosts = [\"tv.example\"]\n[admin]\naddress = \"127.0.0.1:0\"\n\
                  allowed_hosts = [\"metrics.example\"]\n";
    let served = RunningServer::new(config, &[("a.bin", b"hello")]);
    let at = figures_at(&served);
    for (host, of_titles, of_figures) in [
        ("tv.example", "200", "421"),
        ("metrics.example", "421", "200"),
        ("127.0.0.1", "421", "200"),
        ("localhost", "421", "200"),
        ("evil.example", "421", "421"),
    ] {
        assert_eq!(&ask_as(served.address(), host, "/a.bin?rate=max")[9..12], of_titles, "{host}");
        assert_eq!(&ask_as(&at, host, "/metrics")[9..12], of_figures, "{host}");
    }
}

fn figures_at(served: &RunningServer) -> String {
    let at = served.said[1].strip_prefix("Metrics and status at http://");
    at.and_then(|at| at.strip_suffix("/metrics")).expect("an address of its own").to_owned()
}

#[test]
fn w10_addresses_are_accepted_without_a_host_and_as_localhost() {
    for (http, shown, reached) in [
        (":0", "[::]", &["127.0.0.1", "[::1]"][..]),
        ("0", "127.0.0.1", &["127.0.0.1"]),
        ("localhost:0", "127.0.0.1", &["127.0.0.1"]),
    ] {
        let served = RunningServer::on(http, &["--rtsp", http, "--admin", http], "", &[]);
        assert!(served.url.starts_with(&format!("http://{shown}:")), "{}", served.url);
        let (_, port) = served.address().rsplit_once(':').expect("a port");
        for host in reached {
            assert!(ask(&format!("{host}:{port}"), "/").starts_with("HTTP/1.1 200 "), "{host}");
        }
        assert!(served.said[1].starts_with(&format!("RTSP at rtsp://{shown}:")), "{http}");
    }
    let keys = "[http]\naddress = [\"localhost:0\", \"0\"]\n[admin]\naddress = \":0\"\n\
                [rtsp]\naddress = \"localhost:0\"\n";
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("t.toml");
    for text in [keys, "[http]\naddress = 8080\n"] {
        fs::write(&file, text).expect("a configuration");
        let file = file.to_str().expect("a plain name");
        let checked = tactus(&["serve", "/", "--check-config", "--config", file]);
        assert_eq!(code(&checked), 0, "{}", err(&checked));
    }
}

#[test]
fn a_signal_lets_running_deliveries_finish() {
    let bytes = content(1_000_000);
    let mut served = RunningServer::new("", &[("a.bin", &bytes)]);
    let mut stream = TcpStream::connect(served.address()).expect("a connection");
    // A second and a half long.
    stream
        .write_all(b"GET /a.bin?rate=5M HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .expect("a request");
    let mut start = [0; 1024];
    stream.read_exact(&mut start).expect("it has begun");
    let pid = Pid::from_child(&served.server.0);
    rustix::process::kill_process(pid, Signal::TERM).expect("the server runs");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("it goes on");
    let all = [&start[..], &rest].concat();
    assert!(all.ends_with(&bytes), "{} bytes came", all.len());
    assert!(served.server.0.wait().expect("it ends").success());
}

#[test]
fn a_measured_model_is_used_at_the_next_start() {
    let mut served = RunningServer::new("", &[("a.bin", &content(10_000))]);
    assert!(served.ask("/api/v1/status").contains("\"measured\":false"));
    let media = served.file("media");
    let measured = tactus(&["measure", &media, "--fast", "--scratch", "32 MiB"]);
    assert_eq!(code(&measured), 0, "{}", err(&measured));
    assert!(out(&measured).contains("Model: ") && out(&measured).contains("4 MiB"));
    assert!(Path::new(&media).join(".tactus/disk-model.toml").exists());
    assert_eq!(fs::read_dir(Path::new(&media).join(".tactus")).expect("it is there").count(), 1);
    let doctor = out(&tactus(&["doctor", &media]));
    assert!(doctor.contains("ok    model"), "{doctor}");
    served.restart();
    assert!(served.ask("/api/v1/status").contains("\"measured\":true"));
}

/// The log of a server that is stopped by a signal while a viewer takes longer than the drain
/// limit.
#[test]
fn p09_a_stop_is_not_reported_as_a_slow_disk() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let title = dir.path().join("a.ts");
    tactus_media::sample::write_ts(&title, tactus_core::units::SECOND.times(4)).expect("a title");
    let title = fs::read(title).expect("a title");
    let channels: String = (0..3)
        .map(|nth| {
            format!(
                "[[channel]]\nname = \"c{nth}\"\ntitle = \"/a.ts\"\nto = \"udp://127.0.0.1:{}\"\n",
                9 + nth
            )
        })
        .collect();
    let config = format!("[http]\ndrain_limit = \"300 ms\"\n{channels}");
    let titles = [("a.ts", &*title), ("a.bin", &*content(4_000_000))];
    let log = dir.path().join("log");
    let mut served = RunningServer::logged(&config, &titles, &log);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let said = || fs::read_to_string(&log).expect("a log");
    while said().matches("sending a title").count() < 3 {
        assert!(std::time::Instant::now() < end, "{}", said());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let mut stream = TcpStream::connect(served.address()).expect("a connection");
    stream.write_all(b"GET /a.bin?rate=2M HTTP/1.1\r\nHost: x\r\n\r\n").expect("a request");
    stream.read_exact(&mut [0; 1024]).expect("it has begun");
    let pid = Pid::from_child(&served.server.0);
    rustix::process::kill_process(pid, Signal::TERM).expect("the server runs");
    assert!(served.server.0.wait().expect("it ends").success());
    let said = said();
    assert!(said.contains("ended at the drain limit"), "{said}");
    assert!(!said.contains("slower than") && !said.contains("the channel sends nothing"), "{said}");
    assert!(!said.contains("cannot be sent") && !said.contains("ERROR"), "{said}");
}

#[test]
fn n12_orders_that_a_channel_cannot_follow_fail_with_the_reason() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let [ts, mp4] = ["a.ts", "film.mp4"].map(|name| dir.path().join(name));
    let second = tactus_core::units::SECOND;
    tactus_media::sample::write_ts(&ts, second.times(4)).expect("a title");
    tactus_media::sample::write_mp4(&mp4, second.times(2)).expect("a movie");
    let [ts, mp4] = [ts, mp4].map(|file| fs::read(file).expect("a title"));
    let config = "[[channel]]\nname = \"lobby\"\ntitle = \"/a.ts\"\nto = \"udp://127.0.0.1:9\"\n";
    let titles = [("a.ts", &*ts), ("film.mp4", &*mp4)];
    let served = RunningServer::on("127.0.0.1:0", &["--uploads"], config, &titles);
    let token = served.file("media/.tactus/upload-token");
    let ask = |args: &[&str]| {
        let words = [&["channel", args[0], &served.url, "lobby"], &args[1..]].concat();
        tactus(&[&words[..], &["--token-file", &token]].concat())
    };
    let show = || out(&ask(&["show"]));
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !show().contains("\"running\"") {
        assert!(std::time::Instant::now() < end, "{}", show());
    }
    let refused = ask(&["set", "--stuff", "100 kbit/s"]);
    assert_eq!(code(&refused), 1, "{}", err(&refused));
    assert!(err(&refused).contains("/a.ts: its fastest second has"), "{}", err(&refused));
    for (title, cause) in
        [("/none.ts", "no title has this name"), ("/film.mp4", "not an MPEG transport stream")]
    {
        let refused = ask(&["next", title]);
        assert_eq!(code(&refused), 1, "{title}");
        assert!(
            err(&refused).contains(title) && err(&refused).contains(cause),
            "{}",
            err(&refused)
        );
    }
    assert!(show().contains("\"running\"") && !show().contains("stuff"), "{}", show());
    assert_eq!(code(&ask(&["next", "/a.ts"])), 0);
}
