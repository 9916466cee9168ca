//! The players: mpv, VLC and Chromium, told to seek and asked when they show a picture.
//!
//! Promise: one that shows nothing within [`PATIENCE_SECONDS`] is no error of the bench. Its
//! process ends with the value.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tactus_core::units::{MonoTime, SECOND};

use super::titles::Container;
use super::{missing, wait_for};
use crate::clock;

/// Seconds that a player has until it shows a picture.
pub(super) const PATIENCE_SECONDS: u64 = 20;

/// A program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Program {
    Mpv,
    /// mpv that goes to the exact time instead of an access point.
    MpvExact,
    Vlc,
    Chromium,
}

impl Program {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mpv => "mpv",
            Self::MpvExact => "mpv exact",
            Self::Vlc => "vlc",
            Self::Chromium => "chromium",
        }
    }

    /// Whether a line of its output says that a picture is shown.
    fn shows(self, line: &str) -> bool {
        match self {
            Self::Mpv | Self::MpvExact => {
                let event: Option<Value> = serde_json::from_str(line).ok();
                event.is_some_and(|event| event["event"] == "playback-restart")
            }
            Self::Vlc => line.contains("Stream buffering done"),
            Self::Chromium => line == "shown",
        }
    }
}

/// A running player.
pub(super) struct Player {
    program: Program,
    child: Child,
    input: Box<dyn Write>,
    lines: Receiver<(MonoTime, String)>,
    _folder: tempfile::TempDir,
}

impl Player {
    /// Starts it, and waits for its first picture.
    pub(super) fn start(program: Program, url: &str, clients: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("tactus-bench-player-").tempdir()?;
        let mut player = match program {
            Program::Mpv | Program::MpvExact => Self::mpv(program, url, folder)?,
            Program::Vlc => Self::vlc(url, folder)?,
            Program::Chromium => Self::chromium(url, clients, folder)?,
        };
        if player.wait_for_picture()?.is_none() {
            bail!("{} shows nothing of {url}", program.name());
        }
        Ok(player)
    }

    fn mpv(program: Program, url: &str, folder: tempfile::TempDir) -> Result<Self> {
        let socket = folder.path().join("socket");
        let mut command = Command::new("mpv");
        command.args(["--no-config", "--vo=null", "--ao=null", "--keep-open=yes"]);
        command.args(["--really-quiet", "--demuxer-seekable-cache=no"]);
        command.arg(format!("--input-ipc-server={}", socket.display())).arg(url);
        command.stdin(Stdio::null());
        let child = command.spawn().with_context(|| missing("mpv", "mpv"))?;
        let input = wait_for("mpv listens", || Ok(UnixStream::connect(&socket).ok()))?;
        let lines = lines_of(input.try_clone()?);
        Ok(Self { program, child, input: Box::new(input), lines, _folder: folder })
    }

    fn vlc(url: &str, folder: tempfile::TempDir) -> Result<Self> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = match rustix::process::getuid().is_root() {
            // VLC refuses to run as root.
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "cvlc"]);
                command
            }
            false => Command::new("cvlc"),
        };
        command.args(["-I", "rc", "--rc-host", &format!("127.0.0.1:{port}"), "-vv"]);
        command.args(["--no-media-library", "--ignore-config", "--vout=dummy", "--aout=dummy"]);
        command.args(["--avcodec-hw=none", url]).env("HOME", "/nonexistent");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| missing("cvlc", "vlc-bin"))?;
        let lines = lines_of(child.stderr.take().context("it is piped")?);
        let input = wait_for("VLC listens", || {
            if let Some(status) = child.try_wait()? {
                bail!("it ended with {status}");
            }
            Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok())
        })?;
        let mut echo = input.try_clone()?;
        thread::spawn(move || std::io::copy(&mut echo, &mut std::io::sink()));
        Ok(Self { program: Program::Vlc, child, input: Box::new(input), lines, _folder: folder })
    }

    fn chromium(url: &str, clients: &Path, folder: tempfile::TempDir) -> Result<Self> {
        let script = clients.join("seek.mjs");
        if !script.exists() {
            bail!("{} is missing: cargo xtask setup", script.display());
        }
        let mut command = Command::new("node");
        command.arg(script).args(["/usr/bin/chromium", url]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| missing("node", "nodejs"))?;
        let lines = lines_of(child.stdout.take().context("it is piped")?);
        let input = Box::new(child.stdin.take().context("it is piped")?);
        Ok(Self { program: Program::Chromium, child, input, lines, _folder: folder })
    }

    /// Seeks, and returns when a picture is shown, if that is soon enough.
    pub(super) fn seek(
        &mut self,
        container: Container,
        to: f64,
        length: f64,
    ) -> Result<Option<MonoTime>> {
        // Nothing of the seek before.
        while self.lines.try_recv().is_ok() {}
        let command = match self.program {
            Program::Mpv => json!({ "command": ["seek", to, "absolute+keyframes"] }).to_string(),
            Program::MpvExact => json!({ "command": ["seek", to, "absolute+exact"] }).to_string(),
            Program::Vlc if container == Container::Ts => {
                // It does not know how long it is.
                format!("seek {}%", (to / length * 100.0).round())
            }
            Program::Vlc => format!("seek {}", to.round()),
            Program::Chromium => to.to_string(),
        };
        writeln!(self.input, "{command}")?;
        self.input.flush()?;
        self.wait_for_picture()
    }

    fn wait_for_picture(&mut self) -> Result<Option<MonoTime>> {
        let deadline = clock::now() + SECOND.times(PATIENCE_SECONDS);
        loop {
            let left = Duration::from_nanos(deadline.since(clock::now()).0);
            match self.lines.recv_timeout(left) {
                Ok((at, line)) if self.program.shows(&line) => return Ok(Some(at)),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => bail!("{} ended", self.program.name()),
            }
        }
    }
}

/// The lines of `source` and when they came. The thread ends with the player.
fn lines_of(source: impl Read + Send + 'static) -> Receiver<(MonoTime, String)> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(source).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim().to_owned();
            if sender.send((clock::now(), line)).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Drop for Player {
    fn drop(&mut self) {
        if self.program == Program::Chromium {
            // The script closes the browser when its input ends.
            self.input = Box::new(std::io::sink());
            for _ in 0..250 {
                if matches!(self.child.try_wait(), Ok(Some(_))) {
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        // It may have ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
