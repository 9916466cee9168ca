//! The logging disk's own process, and the handle by which the replay holds it.
//!
//! Promise: the process lives as long as its standard input. It is a process of its own because one
//! that waits for its own disk could never be killed.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::{Deserialize, Serialize};
use tactus_core::units::{Bytes, Nanos, SECOND};

use super::log::Loss;
use super::medium::{Counts, Fault, LoggingMedium};
use super::starvation;
use crate::disk::loop_device::LoopDevice;
use crate::{clock, command};

/// A file system of which a disk's content is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

/// What the process is told, one line each.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    Count,
    Mark,
    Rewind,
    Fail(Option<Fault>),
    Cut { at: u64, loss: Loss, seed: u64 },
    Save(PathBuf),
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    events: u64,
    hits: u64,
    first_reads: u64,
}

/// Serves a logging disk until standard input ends.
pub fn serve(size: Bytes) -> Result<()> {
    let medium = Arc::new(LoggingMedium::new(size));
    let loop_device = LoopDevice::build(Arc::clone(&medium))?;
    println!("ready {}", loop_device.device());
    for line in std::io::stdin().lines() {
        match serde_json::from_str(&line?)? {
            Order::Count => {}
            Order::Mark => medium.mark(),
            Order::Rewind => medium.rewind(),
            Order::Fail(fault) => medium.fail(fault),
            Order::Cut { at, loss, seed } => medium.cut(at, loss, seed),
            Order::Save(path) => medium.save(&path)?,
        }
        let Counts { events, hits, first_reads } = medium.counts();
        println!("{}", serde_json::to_string(&Answer { events, hits, first_reads })?);
    }
    Ok(())
}

/// A logging disk in its own process.
#[derive(Debug)]
pub(super) struct LoggingDisk {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    device: String,
    file_system: FileSystem,
    place: PathBuf,
}

impl LoggingDisk {
    /// A disk with an empty file system, marked, that can be mounted at `place`.
    pub(super) fn start(file_system: FileSystem, size: Bytes, place: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("crash-disk").arg("--size").arg(size.0.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take();
        let output = child.stdout.take().context("the disk has no output")?;
        let mut answers = BufReader::new(output).lines();
        let first = answers.next().context("the disk ended before it was ready")??;
        let device = first.strip_prefix("ready ").context("the disk named no device")?.to_owned();
        let place = place.to_owned();
        let mut disk = Self { child, orders, answers, device, file_system, place };
        let device = disk.device.clone();
        match file_system {
            FileSystem::Ext4 => {
                let features = "lazy_itable_init=1,lazy_journal_init=1,nodiscard";
                command::run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", features, &device])?;
            }
            FileSystem::Xfs => drop(command::run("mkfs.xfs", &["-q", "-f", "-K", &device])?),
        }
        std::fs::create_dir_all(&disk.place)?;
        // What a file system does when it is mounted for the first time is no subject's work.
        disk.mount()??;
        disk.unmount()?;
        disk.order(&Order::Mark)?;
        Ok(disk)
    }

    /// The root of the file system, when it is mounted.
    pub(super) fn root(&self) -> &Path {
        &self.place
    }

    /// How many events there were.
    pub(super) fn events(&mut self) -> Result<u64> {
        Ok(self.order(&Order::Count)?.events)
    }

    /// How many faults have hit.
    pub(super) fn hits(&mut self) -> Result<u64> {
        Ok(self.order(&Order::Count)?.hits)
    }

    /// Back to the empty file system.
    pub(super) fn rewind(&mut self) -> Result<()> {
        self.order(&Order::Rewind).map(drop)
    }

    /// How long it was kept from its work by others so far.
    pub(super) fn starved(&self) -> Result<Duration> {
        starvation::of(self.child.id())
    }

    /// Asks for a fault, or for none.
    pub(super) fn fail(&mut self, fault: Option<Fault>) -> Result<()> {
        self.order(&Order::Fail(fault)).map(drop)
    }

    /// From now on the disk shows what is left when the power fails after the first `at` events.
    pub(super) fn cut(&mut self, at: u64, loss: Loss, seed: u64) -> Result<()> {
        self.order(&Order::Cut { at, loss, seed }).map(drop)
    }

    /// Writes what the disk shows to a sparse file.
    pub(super) fn save(&mut self, path: &Path) -> Result<()> {
        self.order(&Order::Save(path.to_owned())).map(drop)
    }

    /// Mounts the file system as the disk shows it now. The inner error is the kernel's, about the
    /// file system.
    pub(super) fn mount(&mut self) -> Result<rustix::io::Result<()>> {
        // The kernel forgets what it has read from a device when nobody has it open any more.
        // Others may (mkfs looks into every loop device that is mounted), and then a file system
        // would be mounted that is half the last image.
        let device = File::open(&self.device)?;
        rustix::fs::fadvise(&device, 0, None, rustix::fs::Advice::DontNeed)?;
        drop(device);
        let read_before = self.order(&Order::Count)?.first_reads;
        let mounted = self.mount_now();
        let read = self.order(&Order::Count)?.first_reads > read_before;
        ensure!(read, "{} was mounted out of the kernel's memory", self.device);
        Ok(mounted)
    }

    fn mount_now(&self) -> rustix::io::Result<()> {
        let (kind, options) = match self.file_system {
            FileSystem::Ext4 => (c"ext4", c"noinit_itable"),
            // The same image may still be known under its identity.
            FileSystem::Xfs => (c"xfs", c"nouuid"),
        };
        mount(self.device.as_str(), &self.place, kind, MountFlags::NOATIME, options)
    }

    /// Unmounts it, wholly: what stays mounted would be taken for the next image.
    pub(super) fn unmount(&self) -> Result<()> {
        let deadline = clock::now() + PATIENCE;
        loop {
            match unmount(&self.place, UnmountFlags::empty()) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::BUSY) if clock::now() < deadline => {
                    clock::sleep(Nanos::from_millis(2));
                }
                Err(error) => bail!("cannot unmount {}: {error}", self.place.display()),
            }
        }
    }

    fn order(&mut self, order: &Order) -> Result<Answer> {
        let orders = self.orders.as_mut().context("the disk takes no orders")?;
        writeln!(orders, "{}", serde_json::to_string(order)?)?;
        let answer = self.answers.next().context("the disk has ended")??;
        Ok(serde_json::from_str(&answer)?)
    }
}

/// How long a process that has just ended may keep the file system busy.
const PATIENCE: Nanos = SECOND.times(5);

impl Drop for LoggingDisk {
    fn drop(&mut self) {
        // After an error it may be mounted still; most often it is not.
        if unmount(&self.place, UnmountFlags::DETACH).is_ok() {
            eprintln!("{} was still mounted", self.place.display());
        }
        drop(self.orders.take());
        let ended = self.child.wait().map_err(anyhow::Error::from);
        let ended = ended.and_then(|status| {
            ensure!(status.success(), "it ended with {status}");
            Ok(())
        });
        if let Err(error) = ended {
            eprintln!("the logging disk: {error:#}; `tactus-bench cleanup` takes down the rest");
        }
    }
}
