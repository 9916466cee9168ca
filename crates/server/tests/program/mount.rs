//! The library as a mounted directory, used by real programs.
//!
//! Promise: they find there what the server has, byte for byte, whichever way the bytes take; what
//! goes wrong at the server, in the mount or in the kernel is an error number, and the mount can be
//! taken down at any time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tactus_testkit::process::{Process, turn};
use tactus_testkit::programs::installed;
use tactus_testkit::small_disk::SmallDisk;
use tactus_testkit::{DISK_MODEL, content, server};

use crate::TACTUS;

mod changes;
mod ends;
mod full;
mod paced;
mod programs;
mod reads;
mod writes;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);
const TOKEN: &str = "an-insecure-token-of-32-characters";

/// The ways of the bytes: through the kernel alone, and through the server.
const WAYS: [&[&str]; 2] = [&[], &["--no-passthrough"]];

/// The options of a writable mount.
const RW: &[&str] = &["-o", "rw"];

/// A server with `[local]`.
struct Served {
    process: Process,
    http: String,
    titles: PathBuf,
    dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Served {
    fn new() -> Self {
        let turn = turn();
        let dir = directory();
        let titles = dir.path().join("titles");
        Self::with_titles(turn, dir, titles)
    }

    /// A server whose titles are in a directory of their own.
    fn with_titles(turn: MutexGuard<'static, ()>, dir: tempfile::TempDir, titles: PathBuf) -> Self {
        installed("fusermount3", "fuse3");
        fs::create_dir_all(titles.join(".tactus")).expect("a directory");
        fs::write(titles.join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
        let token = dir.path().join("token");
        fs::write(&token, TOKEN).expect("a token");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&token, private).expect("a file of ours");
        let local = format!(
            "path = \"local.sock\"\nprincipal = \"ann\"\nwrite_users = [\"{}\"]",
            rustix::process::geteuid().as_raw()
        );
        let principal = "name = \"ann\"\ntoken_file = \"token\"";
        let text = format!(
            "[memory]\narena = \"64 MiB\"\n[local]\n{local}\n[[upload.principal]]\n{principal}\n"
        );
        fs::write(dir.path().join("tactus.toml"), text).expect("a configuration");
        let (process, http) = start(dir.path(), &titles);
        Self { process, http, titles, dir, _turn: turn }
    }

    /// Ends the server as a crash would.
    fn kill(&mut self) {
        self.process.kill();
    }

    fn start(&mut self) {
        (self.process, self.http) = start(self.dir.path(), &self.titles);
    }

    /// A title of the library, and its bytes.
    fn title(&self, name: &str, len: usize) -> Vec<u8> {
        let bytes = content(len as u64, len);
        let path = self.titles.join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(path, &bytes).expect("a title");
        bytes
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("local.sock")
    }

    /// The command that mounts at `DIR/mount`.
    fn command(&self, options: &[&str]) -> Command {
        let place = self.dir.path().join("mount");
        // It may be a mount that is broken.
        fs::create_dir(&place).ok();
        let mut command = Command::new(TACTUS);
        command.arg("mount").arg(place).arg("--socket").arg(self.socket()).args(options);
        command
    }

    fn mount(&self, options: &[&str]) -> Mounted {
        let mut command = self.command(options);
        let log = self.dir.path().join("mount.log");
        let (process, _) = server::start(&mut command, Some(&log), server::until("mounted"), drop);
        Mounted { process, place: self.dir.path().join("mount"), log }
    }
}

/// A server whose titles have a file system of their own. In the order in which the parts end.
struct SmallServed {
    served: Served,
    disk: SmallDisk,
    home: tempfile::TempDir,
}

impl SmallServed {
    /// One of `size` bytes. `None`, which is said, without the right to mount it.
    fn new(size: u64) -> Option<Self> {
        let turn = turn();
        let home = directory();
        let Some(disk) = SmallDisk::mount(home.path(), size) else {
            println!("skipped: no right to mount a loop device");
            return None;
        };
        let served = Served::with_titles(turn, directory(), disk.path().to_owned());
        Some(Self { served, disk, home })
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk")
}

fn start(dir: &Path, titles: &Path) -> (Process, String) {
    let mut command = server::serve(TACTUS, dir);
    command.args(["--http", "127.0.0.1:0", "--admin", "off", "--uploads", "--config"]);
    command.arg(dir.join("tactus.toml")).arg(titles);
    let log = dir.join("server.log");
    let (process, said) = server::start(&mut command, Some(&log), server::until("Serving"), drop);
    let http = server::address(&said, "Serving", "http://").expect("an address").to_owned();
    let until = Instant::now() + PATIENCE;
    while !dir.join("local.sock").exists() {
        assert!(Instant::now() < until, "the server does not listen for programs");
        std::thread::sleep(Duration::from_millis(5));
    }
    (process, http)
}

/// A mount, which is taken down at the end of the test.
struct Mounted {
    process: Process,
    place: PathBuf,
    log: PathBuf,
}

impl Mounted {
    fn path(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process.0), signal).expect("it runs");
    }

    /// Waits for the end of the process, and returns its exit code.
    fn ended(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.0.try_wait().expect("a child") {
                return status.code();
            }
            assert!(Instant::now() < until, "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
        mounts.contains(&format!(" {} ", self.place.display()))
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.process.kill();
        // A mount whose process has gone stays until somebody takes it down.
        if self.is_mounted() {
            let ended = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.place).status();
            assert!(ended.is_ok_and(|status| status.success()) || std::thread::panicking());
        }
    }
}

/// Runs a shell script with `$1` and so on, and returns what it says; it must succeed.
fn script(text: &str, arguments: &[&Path]) -> String {
    let output = run(text, arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}: {error}{said}");
    said.into_owned()
}

fn run(text: &str, arguments: &[&Path]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-euc", text, "sh"]).args(arguments).stdin(Stdio::null());
    command.output().expect("a shell")
}

/// The error number of an operation that must fail.
fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().map(|error| error.raw_os_error().expect("an error number"))
}

/// The numbers of errors that the tests expect.
mod numbers {
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const EISDIR: i32 = 21;
    pub(super) const ENOTEMPTY: i32 = 39;
    pub(super) const ENAMETOOLONG: i32 = 36;
    pub(super) const ENOSPC: i32 = 28;
    pub(super) const EROFS: i32 = 30;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const ECONNABORTED: i32 = 103;
    pub(super) const ENOTCONN: i32 = 107;
}

/// Waits until `holds`.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A title by HTTP; none if there is none.
fn get(served: &Served, name: &str) -> Option<Vec<u8>> {
    let mut curl = Command::new(installed("curl", "curl"));
    curl.args(["-sS", "--fail"]).arg(format!("http://{}/{name}", served.http));
    let output = curl.output().expect("curl runs");
    output.status.success().then_some(output.stdout)
}

fn create(path: &Path) -> File {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
    file.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Puts a title by HTTP.
fn put(served: &Served, name: &str, bytes: &[u8]) {
    let file = served.dir.path().join("upload");
    fs::write(&file, bytes).expect("a file");
    let mut curl = Command::new(installed("curl", "curl"));
    curl.args(["-sS", "--fail", "--retry-connrefused", "-H"]);
    curl.arg(format!("Authorization: Bearer {TOKEN}"));
    curl.arg("-T").arg(&file).arg(format!("http://{}/{name}", served.http));
    let output = curl.output().expect("curl runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn open(path: &Path) -> File {
    File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
