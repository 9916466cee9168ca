//! Titles that programs write as files, by a mount of the server (`tactus mount -o rw`).
//!
//! Promise: a flush, a close, a rename or a removal is an acknowledgement when its call returns.
//! Recovery is a start of the server. It makes titles of flushed files that were never closed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tactus_core::units::{Bytes, Nanos};
use tempfile::TempDir;

use super::served::{CLIENTS, EXPIRY, LENGTH_MAX_KIB, NAMES, RESERVED, TIDY_WITHIN};
use super::served::{look, name_of};
use super::{RecoveredSubject, Subject, files, seen};
use crate::clock;
use crate::crash::content::{StoredVersion, Version};
use crate::crash::history::{History, VolumeContents};
use crate::crash::recorder::Recorder;
use crate::crash::server::{Program, Server};
use crate::random::Random;

/// The server, and programs that write by its mount.
#[derive(Debug)]
struct MountSubject {
    program: Program,
}

pub(super) fn all(binary: &Path) -> Vec<Box<dyn Subject>> {
    let binary = binary.to_owned();
    let program = Program { binary, wrong: None, expiry: EXPIRY, local: true, quota: QUOTA };
    vec![Box::new(MountSubject { program })]
}

/// Each file that is written claims 64 MiB at first.
const QUOTA: Bytes = Bytes(1 << 30);

/// Changes of one program.
const ACTS: usize = 16;

/// One title in so many is longer than [`LONG`], and gets its checksums after its name.
const LONG_EACH: u64 = 6;
const LONG: u64 = 1 << 20;

impl Subject for MountSubject {
    fn name(&self) -> &'static str {
        "tactus-mount"
    }

    fn method(&self) -> &'static str {
        "the server, titles written by its mount"
    }

    fn audio(&self) -> bool {
        true
    }

    fn load(&self, root: &Path, recorder: &Recorder<'_>, random: &mut Random) -> Result<()> {
        let server = self.program.start(root)?;
        let mounted = Mounted::start(&self.program.binary, &server)?;
        let seeds: Vec<_> = (0..CLIENTS).map(|_| random.next()).collect();
        let done = std::thread::scope(|scope| {
            let work = |(number, seed)| {
                let (place, random) = (mounted.place.path(), Random::new(seed));
                let held = BTreeMap::new();
                let mut load = Load { number, place, root, recorder, random, held };
                scope.spawn(move || load.work())
            };
            let workers: Vec<_> = seeds.into_iter().enumerate().map(work).collect();
            for worker in workers {
                worker.join().map_err(|_| anyhow!("a program panicked"))??;
            }
            anyhow::Ok(())
        });
        done.with_context(|| format!("the server said: {}", server.output()))?;
        mounted.end()
    }

    fn recover<'a>(&'a self, root: &'a Path) -> Result<Box<dyn RecoveredSubject + 'a>> {
        let server = self.program.start(root)?;
        Ok(Box::new(RestartedServer { server, program: &self.program, root }))
    }
}

/// A server that has started again.
struct RestartedServer<'a> {
    server: Server,
    program: &'a Program,
    root: &'a Path,
}

impl RecoveredSubject for RestartedServer<'_> {
    fn look(&mut self, history: &History) -> Result<VolumeContents> {
        // The server gives flushed files their names in the background.
        let working = self.root.join(RESERVED).join("working");
        let deadline = clock::now() + TIDY_WITHIN;
        while !files(&working)?.is_empty() && clock::now() < deadline {
            clock::sleep(Nanos::from_millis(2));
        }
        let said = |server: &Server| format!("the server said: {}", server.output());
        // Every title has its checksums, or the mark that they are due.
        self.program.verify(self.root).with_context(|| said(&self.server))?;
        look(&self.server, self.root, history, true).with_context(|| said(&self.server))
    }

    fn starved(&self) -> Result<std::time::Duration> {
        self.server.starved()
    }
}

/// One program at work. Its names are its own: changes of one name come one after the other.
struct Load<'a, 'b> {
    number: usize,
    /// The mount.
    place: &'a Path,
    /// The volume below it.
    root: &'a Path,
    recorder: &'a Recorder<'b>,
    random: Random,
    /// The versions that it knows to be there.
    held: BTreeMap<String, Version>,
}

impl Load<'_, '_> {
    fn work(&mut self) -> Result<()> {
        fs::create_dir_all(self.path(&name_of(self.number, 0)).with_file_name(""))?;
        for _ in 0..ACTS {
            let name = name_of(self.number, self.random.next() % NAMES);
            let version = self.version();
            let is_held = self.held.contains_key(&name);
            match self.random.next() % 8 {
                0 if is_held => self.remove(&name),
                1 if is_held => self.rename(&name),
                2 => self.replace(&name, version),
                _ => self.write(&name, version),
            }
            .with_context(|| name)?;
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    fn version(&mut self) -> Version {
        let least = match self.random.next() % LONG_EACH {
            0 => LONG,
            _ => 1_000,
        };
        let length = least + self.random.next() % (LENGTH_MAX_KIB << 10);
        Version::new(self.random.next(), length)
    }

    /// Writes a file anew, or all bytes of the one that is there, in one of two orders.
    fn fill(&mut self, name: &str, version: Version) -> Result<File> {
        let is_in_place = self.random.next().is_multiple_of(3);
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(!is_in_place).open(self.path(name))?;
        let bytes = version.bytes(0, version.length());
        let size = 1 + self.random.next() as usize % bytes.len();
        let mut pieces: Vec<_> = bytes.chunks(size).enumerate().collect();
        if self.random.next().is_multiple_of(2) {
            pieces.reverse();
        }
        for (at, piece) in pieces {
            file.write_all_at(piece, (at * size) as u64)?;
        }
        file.set_len(version.length())?;
        Ok(file)
    }

    /// Writes a title, which is acknowledged by a flush or by the close.
    fn write(&mut self, name: &str, version: Version) -> Result<()> {
        let act = self.recorder.begin(name, Some(version.number()))?;
        let file = self.fill(name, version)?;
        match self.random.next() % 3 {
            0 => file.sync_all()?,
            1 => file.sync_data()?,
            _ => {
                drop(file);
                self.recorder.ack(&act)?;
                return self.hold(name, version);
            }
        }
        self.recorder.ack(&act)?;
        drop(file);
        self.hold(name, version)
    }

    /// Writes a file beside a title, flushes it, and gives it the title's name, while it is open or
    /// afterwards.
    fn replace(&mut self, name: &str, version: Version) -> Result<()> {
        let part = format!("{name}.part");
        let act = self.recorder.begin(&part, Some(version.number()))?;
        let file = self.fill(&part, version)?;
        file.sync_all()?;
        self.recorder.ack(&act)?;
        let file = Some(file).filter(|_| self.random.next().is_multiple_of(2));
        let act = self.recorder.begin_move(&part, name, version.number())?;
        fs::rename(self.path(&part), self.path(name))?;
        self.recorder.ack(&act)?;
        drop(file);
        self.hold(name, version)
    }

    fn rename(&mut self, from: &str) -> Result<()> {
        let to = name_of(self.number, self.random.next() % NAMES);
        if to == from {
            return Ok(());
        }
        let version = self.held.remove(from).context("nothing to move")?;
        let act = self.recorder.begin_move(from, &to, version.number())?;
        fs::rename(self.path(from), self.path(&to))?;
        self.recorder.ack(&act)?;
        self.hold(&to, version)
    }

    fn remove(&mut self, name: &str) -> Result<()> {
        let act = self.recorder.begin(name, None)?;
        fs::remove_file(self.path(name))?;
        self.recorder.ack(&act)?;
        self.held.remove(name);
        Ok(())
    }

    /// The title is this version, as a file of the volume too. A close that could not find out
    /// whether it is the last one leaves the name to the kernel's release.
    fn hold(&mut self, name: &str, version: Version) -> Result<()> {
        self.held.insert(name.to_owned(), version);
        let (path, deadline) = (self.root.join(name), clock::now() + TIDY_WITHIN);
        loop {
            let there = path.exists().then(|| seen(&path)).transpose()?;
            if there == Some(StoredVersion::Whole(version.number())) {
                return Ok(());
            }
            ensure!(clock::now() < deadline, "the volume has {there:?}, not {version:?}");
            clock::sleep(Nanos::from_millis(1));
        }
    }
}

/// A writable mount of a server.
struct Mounted {
    process: Child,
    place: TempDir,
}

impl Mounted {
    fn start(binary: &Path, server: &Server) -> Result<Self> {
        let place = tempfile::Builder::new().prefix("tactus-crash-mount-").tempdir()?;
        let mut command = Command::new(binary);
        command.arg("mount").arg(place.path()).arg("--socket").arg(server.socket());
        command.args(["-o", "rw"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().context("cannot start the mount")?;
        let output = process.stdout.take().context("a pipe")?;
        let said = BufReader::new(output).lines().next();
        let mounted = Self { process, place };
        ensure!(said.is_some_and(|line| line.is_ok()), "the volume cannot be mounted");
        Ok(mounted)
    }

    /// Ends it as an operator would.
    fn end(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.process), Signal::TERM)?;
        let status = self.process.wait()?;
        ensure!(status.success(), "the mount ended with {status}");
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // It unmounts at this signal, unless it has ended before.
        if matches!(self.process.try_wait(), Ok(None)) {
            kill_process(Pid::from_child(&self.process), Signal::TERM).ok();
            self.process.wait().ok();
        }
    }
}
