//! The real server on a faulty disk, and clients that watch and upload.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tactus_bench::faulty::{FaultyDisk, TITLE_MARK};
use tactus_core::units::{Bytes, MIB};

/// What every stream is sent at: a megabyte each second.
pub(crate) const RATE: u64 = 1_000_000;
const TOKEN: &str = "what-is-broken-is-found";
/// Of clients that watch.
const PRIORITY: u32 = 1;
/// Longer than any answer here takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// One case at a time: each has disks, and counts on its time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bench() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_tactus-bench"))
}

/// The server, built beside the bench.
fn tactus() -> PathBuf {
    let path = bench().with_file_name("tactus");
    assert!(path.exists(), "{} is missing: cargo build -p tactus", path.display());
    path
}

/// What these cases cannot do without, by name.
fn can_run() {
    for device in ["/dev/fuse", "/dev/loop-control"] {
        assert!(Path::new(device).exists(), "no disk can fail here: {device} is missing");
    }
    assert!(rustix::process::geteuid().is_root(), "no disk can fail here: it takes root");
}

pub(crate) struct Fixture {
    pub(crate) server: Server,
    pub(crate) disks: Vec<FaultyDisk>,
    folder: tempfile::TempDir,
    plan: Plan,
    /// Behind the first disk.
    behind: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

/// What a case wants to be different.
#[derive(Clone)]
pub(crate) struct Plan {
    /// Of each disk.
    pub(crate) sizes: Vec<Bytes>,
    pub(crate) sendfile: bool,
    /// The file behind the first disk can be watched too, below `/behind/`.
    pub(crate) behind: bool,
    /// Limits of the process: open files, locked memory.
    pub(crate) files: Option<u64>,
    pub(crate) locked: Option<u64>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            sizes: vec![Bytes(1024 * MIB)],
            sendfile: false,
            behind: false,
            files: None,
            locked: None,
        }
    }
}

impl Fixture {
    pub(crate) fn new(plan: Plan) -> Self {
        let turn = turn();
        can_run();
        let folder = tempfile::Builder::new().prefix("tactus-faults-").tempdir().expect("a folder");
        let mut disks = Vec::new();
        for (number, &size) in plan.sizes.iter().enumerate() {
            let place = folder.path().join(format!("disk{number}"));
            fs::create_dir(&place).expect("a mount point");
            disks.push(FaultyDisk::start(&bench(), size, &place).expect("a disk"));
        }
        let (behind, _) = disks[0].behind();
        let server = Server::start(folder.path(), &plan, &behind);
        Self { server, disks, folder, plan, behind, _turn: turn }
    }

    /// The only disk, or the first.
    pub(crate) fn disk(&mut self) -> &mut FaultyDisk {
        &mut self.disks[0]
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("disk0").join(name)
    }

    /// Ends the server and starts it again.
    pub(crate) fn restart(&mut self) {
        self.server.end();
        self.server = Server::start(self.folder.path(), &self.plan, &self.behind);
    }

    /// Ends the server, lets the file system be checked and repaired, and starts the server again.
    pub(crate) fn repair(&mut self) {
        self.server.end();
        self.disks[0].repair().expect("the file system can be repaired");
        self.server = Server::start(self.folder.path(), &self.plan, &self.behind);
    }

    /// Waits until all that was written is on the disks.
    pub(crate) fn settle(&self) {
        for number in 0..self.disks.len() {
            let place = self.folder.path().join(format!("disk{number}"));
            let root = File::open(place).expect("it is mounted");
            rustix::fs::syncfs(&root).expect("it can be written");
        }
    }

    /// Runs another command of the server's on the first volume.
    pub(crate) fn tactus(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new(tactus());
        command.env("XDG_STATE_HOME", self.folder.path().join("state"));
        command.env_remove("STATE_DIRECTORY");
        command.args(arguments).arg(self.path("")).output().expect("it runs")
    }

    /// Uploads a title of so many bytes; answers its content.
    pub(crate) fn store(&self, name: &str, len: usize) -> Vec<u8> {
        let bytes = content(name, len);
        assert_eq!(self.server.put(name, &bytes), 201, "{}", self.server.said());
        bytes
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // A disk that hangs would keep the server from ending.
        for disk in &self.disks {
            disk.go_on().expect("the disk is there");
        }
        self.server.end();
    }
}

pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    output: PathBuf,
}

/// Knowing the disk beforehand it measures nothing at its start.
const MODEL: &str = r#"
version = 1
measured = "for faults"
device = "none"
[model]
visit = "100 us"
sweep = "0 ns"
read_mib = "2 ms"
write_mib = "4 ms"
depth = 8
"#;

impl Server {
    fn start(folder: &Path, plan: &Plan, behind: &Path) -> Self {
        fs::write(folder.join("disk-model.toml"), MODEL).expect("a model");
        fs::write(folder.join("token"), TOKEN).expect("a token");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(folder.join("token"), private).expect("a file of ours");
        let mut text = String::from(
            "[http]\naddress = \"127.0.0.1:0\"\nconnections_per_address_max = 4096\n\
             [admin]\naddress = \"off\"\non_http = true\n\
             [memory]\narena = \"64 MiB\"\nstreams_max = 64\n\
             [rate.asked]\nclient_share = \"100 %\"\n[best_effort]\nclient_share = \"100 %\"\n\
             [[upload.principal]]\nname = \"somebody\"\ntoken_file = \"token\"\n",
        );
        for number in 0..plan.sizes.len() {
            let path = folder.join(format!("disk{number}"));
            let mount = if number == 0 { "/".to_owned() } else { format!("/disk{number}/") };
            let sendfile = if plan.sendfile { "on" } else { "off" };
            text += &format!(
                "[[volume]]\npath = \"{}\"\nmount = \"{mount}\"\nmodel = \"disk-model.toml\"\n\
                 cycle = \"250 ms\"\nblock = \"256 KiB\"\nsendfile = \"{sendfile}\"\n\
                 uploads = true\n",
                path.display()
            );
        }
        if plan.behind {
            text += &format!(
                "[[volume]]\npath = \"{}\"\nmount = \"/behind/\"\nmodel = \"disk-model.toml\"\n\
                 cycle = \"250 ms\"\nblock = \"256 KiB\"\nsendfile = \"off\"\nuploads = false\n",
                behind.display()
            );
        }
        let file = folder.join("tactus.toml");
        fs::write(&file, text).expect("a configuration");
        let output = folder.join("output.log");
        let log = File::create(&output).expect("a log");
        let mut command = Command::new("prlimit");
        if let Some(files) = plan.files {
            command.arg(format!("--nofile={files}:{files}"));
        }
        if let Some(locked) = plan.locked {
            command.arg(format!("--memlock={locked}:{locked}"));
        }
        // With the right to lock memory, root has no limit of it.
        if plan.locked.is_some() {
            let set = "--bounding-set=-ipc_lock,-sys_resource";
            command.args(["setpriv", set, "--inh-caps=-ipc_lock,-sys_resource"]);
        }
        command.arg(tactus()).arg("serve").arg("--config").arg(&file).process_group(0);
        command.env("XDG_STATE_HOME", folder.join("state")).env_remove("STATE_DIRECTORY");
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().expect("a handle"));
        let child = child.stderr(log).spawn().expect("the server starts");
        let mut server = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), output };
        let begun = Instant::now();
        loop {
            let said = server.said();
            let line = said.lines().find(|line| line.starts_with("Serving "));
            if let Some((_, place)) = line.and_then(|line| line.rsplit_once("http://")) {
                server.address = place.trim_end_matches('/').parse().expect("an address");
                return server;
            }
            let ended = server.child.try_wait().expect("its state");
            assert!(ended.is_none() && begun.elapsed() < PATIENCE, "{ended:?}: {said}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_raw(self.child.id() as i32).expect("a process has a number")
    }

    fn end(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// One request on a connection of its own.
    pub(crate) fn ask(&self, method: &str, target: &str, fields: &str, body: &[u8]) -> Answer {
        Client(self.address).ask(method, target, fields, body).expect("the server takes it")
    }

    /// One who asks again and again, also when the server is not there any more.
    pub(crate) fn client(&self) -> Client {
        Client(self.address)
    }

    /// Ends it at once (SIGKILL).
    pub(crate) fn kill(&mut self) {
        assert!(self.child.try_wait().expect("its state").is_none(), "{}", self.said());
        self.end();
    }

    /// A request whose body never comes.
    pub(crate) fn ask_without_body(
        &self,
        socket: &mut TcpStream,
        target: &str,
        len: u64,
    ) -> Answer {
        let head = format!(
            "PUT {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Authorization: Bearer {TOKEN}\r\nContent-Length: {len}\r\n\
             Expect: 100-continue\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).expect("the head is taken");
        Answer::read(socket)
    }

    /// The head of a request by somebody who may upload, as far as it is always the same.
    pub(crate) fn head(&self, method: &str, target: &str) -> String {
        format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Authorization: Bearer {TOKEN}\r\n"
        )
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.address).expect("it listens")
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> u16 {
        self.ask("PUT", &format!("/{name}"), "", bytes).status
    }

    pub(crate) fn get(&self, name: &str) -> Answer {
        self.ask("GET", &format!("/{name}?rate=max"), "", b"")
    }

    /// A figure of `/metrics`, by its name and labels; zero when it is not there.
    pub(crate) fn figure(&self, name: &str) -> f64 {
        let page = self.ask("GET", "/metrics", "", b"").text();
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().expect("a number"))
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        let text = self.ask("GET", "/api/v1/status", "", b"").text();
        serde_json::from_str(&text).expect("JSON")
    }

    /// Watches a title of which the content is known, at [`RATE`].
    pub(crate) fn watch(&self, name: &str, content: &[u8]) -> Watch {
        self.watch_by(name, content, "")
    }

    /// Watches only the beginning of a title, of which the content is known.
    pub(crate) fn watch_part(&self, name: &str, content: &[u8]) -> Watch {
        self.watch_by(name, content, &format!("Range: bytes=0-{}\r\n", content.len() - 1))
    }

    fn watch_by(&self, name: &str, content: &[u8], fields: &str) -> Watch {
        let mut socket = self.connect();
        let rate = RATE * 8 / 1000;
        let head = format!("GET /{name}?rate={rate}k HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        socket.write_all(head.as_bytes()).expect("the head is taken");
        let content = content.to_vec();
        Watch(std::thread::spawn(move || {
            // What is judged is when the server sends, not when a busy machine lets us look.
            if let Err(error) = tactus_bench::priority::fifo(PRIORITY) {
                eprintln!("a client runs without SCHED_FIFO: {error:#}");
            }
            ClientResult::of(socket, &content)
        }))
    }
}

/// Where a server is, or was.
#[derive(Clone, Copy)]
pub(crate) struct Client(SocketAddr);

impl Client {
    /// One request on a connection of its own. Without an answer the status is zero.
    pub(crate) fn ask(
        &self,
        method: &str,
        target: &str,
        fields: &str,
        body: &[u8],
    ) -> std::io::Result<Answer> {
        let mut socket = connect(self.0)?;
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Authorization: Bearer {TOKEN}\r\nContent-Length: {}\r\n{fields}\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes())?;
        // A refusal may come before the body is taken.
        drop(socket.write_all(body));
        Ok(Answer::read(&mut socket))
    }
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(&address, PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Whether as much came as was announced.
    pub(crate) is_whole: bool,
}

impl Answer {
    pub(crate) fn read(socket: &mut TcpStream) -> Self {
        let mut all = Vec::new();
        // After a refusal in the middle of a body the connection may be reset: what came counts.
        drop(socket.read_to_end(&mut all));
        let at = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(all.len());
        let head = String::from_utf8_lossy(&all[..at]).into_owned();
        let body = all.get(at + 4..).unwrap_or_default().to_vec();
        let status = head.get(9..12).and_then(|text| text.parse().ok()).unwrap_or(0);
        Self { status, is_whole: announced(&head) == Some(body.len() as u64), head, body }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn announced(head: &str) -> Option<u64> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    })
}

/// A client that watches.
pub(crate) struct Watch(JoinHandle<ClientResult>);

impl Watch {
    pub(crate) fn seen(self) -> ClientResult {
        self.0.join().expect("what comes is what was stored")
    }
}

/// What a client has seen.
#[derive(Debug)]
pub(crate) struct ClientResult {
    pub(crate) status: u16,
    /// When how many bytes in all had come, since the first.
    pub(crate) arrivals: Vec<(Duration, u64)>,
    pub(crate) is_whole: bool,
}

impl ClientResult {
    fn of(mut socket: TcpStream, content: &[u8]) -> Self {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && matches!(socket.read(&mut byte), Ok(1)) {
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let status = head.get(9..12).and_then(|text| text.parse().ok()).unwrap_or(0);
        let len = announced(&head).unwrap_or(0);
        let (mut arrivals, mut come) = (Vec::new(), 0);
        let mut buffer = vec![0; 64 * 1024];
        let mut begun = None;
        while come < len && matches!(status, 200 | 206) {
            match socket.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    let begun = *begun.get_or_insert_with(Instant::now);
                    let place = come as usize..come as usize + count;
                    assert!(buffer[..count] == content[place], "wrong bytes after {come}");
                    come += count as u64;
                    arrivals.push((begun.elapsed(), come));
                }
            }
        }
        let is_whole = matches!(status, 200 | 206) && come == len;
        Self { status, arrivals, is_whole }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.arrivals.last().map_or(0, |&(_, bytes)| bytes)
    }

    /// How much later than by the rate any byte came, counted from the first.
    pub(crate) fn lateness(&self) -> Duration {
        let due = |bytes: u64| Duration::from_nanos(bytes * 1_000_000_000 / RATE);
        let late = |&(at, bytes): &(Duration, u64)| at.saturating_sub(due(bytes));
        self.arrivals.iter().map(late).max().unwrap_or_default()
    }

    /// Most bytes that came within any `span`.
    pub(crate) fn most_within(&self, span: Duration) -> u64 {
        let mut first = 0;
        let mut most = 0;
        for (last, &(at, bytes)) in self.arrivals.iter().enumerate() {
            while at - self.arrivals[first].0 > span {
                first += 1;
            }
            let before = if first == 0 { 0 } else { self.arrivals[first - 1].1 };
            most = most.max(bytes - before);
            assert!(first <= last);
        }
        most
    }
}

/// Bytes of which no two blocks look alike; each begins as a title's.
pub(crate) fn content(name: &str, len: usize) -> Vec<u8> {
    let mut random = Random::new(
        name.bytes().fold(len as u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte)),
    );
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        match bytes.len() % 4096 {
            0 => bytes.extend(TITLE_MARK),
            _ => bytes.extend(random.next().to_le_bytes()),
        }
    }
    bytes.truncate(len);
    bytes
}

/// xorshift64 of Marsaglia.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1 << 63)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
