//! A server's process: started on the server's side of the wire, pinned, and ended without a trace.
//!
//! Promise: it answers on its port before the run begins; it is asked to end first and killed only
//! when it does not; its last words are in the error when it fails.

use std::fs::{self, File};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use tactus_core::units::{Bytes, KIB, MonoTime, Nanos, SECOND};
use tempfile::TempDir;

use crate::clock;
use crate::netns::Wire;

/// How long a server may take to answer, and to end.
const PATIENCE: Nanos = SECOND.times(20);
const PAUSE: Nanos = Nanos::from_millis(20);

/// A running server.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Its configuration and its output.
    folder: TempDir,
    /// A second process of the same server, ended with it.
    beside: Option<Box<Server>>,
}

impl Server {
    /// Starts `command` on the server's side; `folder` holds its configuration.
    pub fn start(
        command: &Command,
        folder: TempDir,
        wire: &Wire,
        address: SocketAddrV4,
    ) -> Result<Self> {
        let mut server = Self::start_silent(command, folder, wire)?;
        server.wait_until_it_answers(wire, address)?;
        Ok(server)
    }

    /// The same for what answers nobody.
    pub fn start_silent(command: &Command, folder: TempDir, wire: &Wire) -> Result<Self> {
        let log = File::create(folder.path().join("output.log"))?;
        let child = wire
            .on_server_side(command)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, folder, beside: None })
    }

    /// The same with a second process, which is not in `process` nor in what that costs.
    pub fn beside(mut self, other: Server) -> Self {
        self.beside = Some(Box::new(other));
        self
    }

    /// The root of its process tree.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// What it printed so far.
    pub fn output(&self) -> String {
        fs::read_to_string(self.folder.path().join("output.log")).unwrap_or_default()
    }

    /// The most memory that it held so far, shared pages included.
    pub fn memory_peak(&self) -> Option<Bytes> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(Bytes(kib * KIB))
    }

    /// Fails when it has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the server ended with {status}: {}", last_lines(&self.output()));
        }
        self.beside.as_mut().map_or(Ok(()), |other| other.check())
    }

    fn wait_until_it_answers(&mut self, wire: &Wire, address: SocketAddrV4) -> Result<()> {
        let side = wire.receiver_side();
        let deadline = clock::now() + PATIENCE;
        let answered = std::thread::scope(|scope| {
            scope
                .spawn(|| -> Result<()> {
                    side.enter()?;
                    loop {
                        let short = Duration::from_millis(200);
                        match TcpStream::connect_timeout(&SocketAddr::V4(address), short) {
                            Ok(_) => return Ok(()),
                            Err(error) => {
                                self.check()?;
                                patience_left(deadline).with_context(|| {
                                    format!("{error}: {}", last_lines(&self.output()))
                                })?;
                            }
                        }
                    }
                })
                .join()
        });
        answered.map_err(|_| anyhow!("the thread that knocks panicked"))?
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.end();
        if let Err(error) = ended {
            eprintln!("left behind: process {}: {error:#}", self.child.id());
        }
    }
}

impl Server {
    fn end(&mut self) -> Result<()> {
        let process = Pid::from_child(&self.child);
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        kill_process(process, Signal::TERM)?;
        let deadline = clock::now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            if patience_left(deadline).is_err() {
                self.child.kill()?;
                self.child.wait()?;
                bail!("it did not end when asked to and was killed");
            }
        }
        Ok(())
    }
}

fn patience_left(deadline: MonoTime) -> Result<()> {
    if clock::now() > deadline {
        bail!("no answer within {PATIENCE}");
    }
    clock::sleep(PAUSE);
    Ok(())
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
