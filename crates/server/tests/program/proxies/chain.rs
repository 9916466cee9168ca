//! A server and a proxy before it, as processes.

use std::fs;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use tactus_testkit::process::{Process, exchange, turn};
use tactus_testkit::{DISK_MODEL, server};

use super::guide::GuideExample;
use crate::TACTUS;

/// Hanging programs are ended after this time.
const PATIENCE: Duration = Duration::from_secs(20);

/// The token for uploads.
pub(crate) const TOKEN: &str = "a-test-may-change-this-server";

/// The socket file of the guide.
const SOCKET: &str = "/run/tactus/http.sock";

/// `tactus serve`. One server at a time, as it pins its cores.
pub(crate) struct Server {
    process: Process,
    /// The addresses of titles, of the PROXY protocol, and of metrics.
    pub(crate) http: String,
    pub(crate) proxied: Option<String>,
    admin: String,
    dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Server {
    /// Serves titles with a configuration of the guide, on free ports and with a token for uploads.
    pub(crate) fn start(shown: &str) -> Self {
        let turn = turn();
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
        let media = dir.path().join("media");
        fs::create_dir_all(media.join(".tactus")).unwrap();
        fs::create_dir_all(media.join("films")).unwrap();
        fs::write(media.join(".tactus/disk-model.toml"), DISK_MODEL).unwrap();
        fs::write(media.join("a.bin"), content(1_200_000)).unwrap();
        let token = dir.path().join("token");
        fs::write(&token, TOKEN).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&token, private).unwrap();
        let shown = shown.replace("127.0.0.1:8080", "127.0.0.1:0").replace(":8081", ":0");
        let shown = shown.replace(SOCKET, dir.path().join("http.sock").to_str().unwrap());
        let shown = shown.replace("group = \"www-data\"\n", "");
        let shown = match shown.contains("address = ") {
            true => shown,
            false => shown.replace("[http]", "[http]\naddress = \"127.0.0.1:0\""),
        };
        let text = format!(
            "{shown}[admin]\naddress = \"127.0.0.1:0\"\n[memory]\narena = \"64 MiB\"\n\
             [cores]\nrealtime = \"off\"\n\
             [[volume]]\npath = \"{}\"\nmount = \"/\"\nuploads = true\n\
             [[upload.principal]]\nname = \"somebody\"\ntoken_file = \"token\"\n",
            media.display()
        );
        let config = dir.path().join("tactus.toml");
        fs::write(&config, text).unwrap();
        let mut command = server::serve(TACTUS, dir.path());
        command.arg("--config").arg(&config);
        let log = dir.path().join("log");
        let (process, said) =
            server::start(&mut command, Some(&log), server::until("Metrics"), drop);
        let address = |first| server::address(&said, first, "http://").map(str::to_owned);
        Self {
            process,
            http: address("Serving").expect("an address"),
            proxied: address("PROXY"),
            admin: address("Metrics").expect("an address"),
            dir,
            _turn: turn,
        }
    }

    /// The place of its socket file, if it has one.
    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("http.sock")
    }

    /// Ends it by SIGTERM, and waits for the end.
    pub(crate) fn terminate(&mut self) {
        let child = &mut self.process.0;
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success(), "{}", self.log());
    }

    pub(crate) fn stored(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.media().join(name)).ok()
    }

    pub(crate) fn media(&self) -> std::path::PathBuf {
        self.dir.path().join("media")
    }

    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> String {
        let file = self.dir.path().join(name);
        fs::write(&file, bytes).unwrap();
        file.to_str().unwrap().to_owned()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// The server's status.
    pub(crate) fn status(&self) -> serde_json::Value {
        let request = "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let answer = exchange(&*self.admin, request.as_bytes());
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

/// A proxy before a server.
pub(crate) struct Proxy {
    _process: Process,
    _dir: tempfile::TempDir,
}

impl Proxy {
    /// Starts the proxy with a configuration of the guide, but on `port`, and with the addresses of
    /// `server`.
    pub(crate) fn start(shown: &GuideExample, server: &Server, port: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut text = shown.proxy.replace("127.0.0.1:8080", &server.http);
        text = text.replace(SOCKET, server.socket().to_str().unwrap());
        if let Some(proxied) = &server.proxied {
            text = text.replace("127.0.0.1:8081", proxied);
        }
        let at = dir.path().display().to_string();
        let (text, args) = match shown.program {
            "nginx" => nginx(&text, &at, port),
            "haproxy" => {
                let text = text.replace("bind :80", &format!("bind 127.0.0.1:{port}"));
                (text, vec!["-db".into(), "-f".into()])
            }
            _ => {
                let site = format!("http://tv.example:{port} {{\n    bind 127.0.0.1");
                let text = text.replace("http://tv.example {", &site);
                let text = format!("{{\n    admin off\n    auto_https off\n}}\n{text}");
                let args = ["run", "--adapter", "caddyfile", "--config"];
                (text, args.map(str::to_owned).to_vec())
            }
        };
        assert!(text.contains(&port.to_string()), "it listens on another port:\n{text}");
        let file = dir.path().join("configuration");
        fs::write(&file, &text).unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let mut process = Command::new(shown.program)
            .args(args)
            .arg(&file)
            .env("HOME", dir.path())
            .env("XDG_CONFIG_HOME", dir.path())
            .env("XDG_DATA_HOME", dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; cargo xtask setup", shown.program));
        let end_of_time = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let said = || fs::read_to_string(dir.path().join("log")).unwrap_or_default();
            let ended = process.try_wait().unwrap();
            assert!(ended.is_none(), "{} ends with {ended:?}: {}\n{text}", shown.program, said());
            assert!(Instant::now() < end_of_time, "{} does not listen: {}", shown.program, said());
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { _process: Process(process), _dir: dir }
    }
}

/// Completes nginx's `server` block to a configuration.
fn nginx(server: &str, at: &str, port: u16) -> (String, Vec<String>) {
    let server = server.replace("listen 80;", &format!("listen 127.0.0.1:{port};"));
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths: String =
        kinds.iter().map(|kind| format!("    {kind}_temp_path {at}/{kind};\n")).collect();
    let text = format!(
        "pid {at}/pid;\nerror_log {at}/errors;\ndaemon off;\nmaster_process off;\nevents {{}}\n\
         http {{\n    access_log off;\n{paths}{server}}}\n"
    );
    (text, ["-p", at, "-c"].map(str::to_owned).to_vec())
}

/// An answer that curl received.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends a request to a proxy on `port` from `from`, an address of this host.
pub(crate) fn ask(from: &str, port: u16, args: &[&str], url: &str) -> Answer {
    let mut curl = begin(from, port);
    let output = curl.args(["--max-time", "60", "-i"]).args(args).arg(url).output();
    let output = output.expect("curl is missing: cargo xtask setup");
    assert!(output.status.success(), "{args:?} {url}: {output:?}");
    let mut rest = &output.stdout[..];
    loop {
        let end = rest.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        let head = String::from_utf8_lossy(&rest[..end]).into_owned();
        rest = &rest[end..];
        let status = head.split(' ').nth(1).and_then(|text| text.trim().parse().ok());
        let status = status.expect("a status");
        if status != 100 {
            return Answer { status, head, body: rest.to_vec() };
        }
    }
}

/// curl, with `tv.example` resolved to the proxy.
pub(crate) fn begin(from: &str, port: u16) -> Command {
    let mut curl = Command::new("curl");
    let name = format!("tv.example:{port}:127.0.0.1");
    curl.args(["-sS", "--interface", from, "--resolve", &name]).stdin(Stdio::null());
    curl
}

/// Bytes that differ between positions.
pub(crate) fn content(len: u32) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
