//! The disk's own process, and the handle by which a bench holds it.
//!
//! Promise: the daemon lives as long as its standard input; when that ends, or a signal comes, it
//! unmounts and detaches everything. So a bench that dies takes its disk with it.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tactus_core::units::{Bytes, KIB, Nanos};

use super::device::{Device, limit_unwritten, read_ahead_is, set_queue, set_read_ahead};
use super::export::{Export, RequestCounts};
use super::{Queue, Shape};
use crate::clock;
use crate::interrupt;

/// Serves a disk until standard input ends (`commanded`) or a signal comes.
pub fn serve(shape: &Shape, commanded: bool) -> Result<()> {
    let device = Device::build(shape)?;
    println!("ready {} {}", device.name(), shape.mount.display());
    if !commanded {
        device.export().set_fast(false);
        eprintln!("{}; stop it with ctrl-c", Export::describe(shape.profile));
        while !interrupt::asked() {
            clock::sleep(Nanos::from_millis(100));
        }
        return Ok(());
    }
    // The bench's signals reach this process too; it waits for the end of its input instead, so
    // that whoever uses the mount has ended before.
    for line in std::io::stdin().lines() {
        match line?.as_str() {
            "fast" => device.export().set_fast(true),
            "timed" => device.export().set_fast(false),
            "asked" => {}
            other => bail!("unknown command {other:?}"),
        }
        println!("{}", serde_json::to_string(&device.export().asked())?);
    }
    Ok(())
}

/// A disk in its own process.
#[derive(Debug)]
pub struct EmulatedDisk {
    child: Child,
    commands: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    shape: Shape,
    device: String,
}

impl EmulatedDisk {
    /// Builds a disk and mounts it; it is in fast mode.
    pub fn start(shape: Shape) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("disk").arg("--commanded");
        command.arg("--profile").arg(format!("{:?}", shape.profile).to_lowercase());
        command.arg("--size").arg(shape.size.0.to_string());
        command.arg("--seed").arg(shape.seed.to_string());
        command.arg("--read-ahead-kib").arg((shape.read_ahead.0 / KIB).to_string());
        command.arg("--scheduler").arg(&shape.queue.scheduler);
        command.arg("--dir").arg(&shape.mount);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let commands = child.stdin.take();
        let output = child.stdout.take().context("the disk has no output")?;
        let mut answers = BufReader::new(output).lines();
        let first = answers.next().context("the disk ended before it was ready")??;
        let device = first.split_whitespace().nth(1).context("the disk named no device")?;
        let device = device.to_owned();
        set_queue(&device, &shape.queue)?;
        Ok(Self { child, commands, answers, shape, device })
    }

    /// Where it is mounted.
    pub fn mount(&self) -> &Path {
        &self.shape.mount
    }

    /// The span of its addresses.
    pub fn size(&self) -> Bytes {
        self.shape.size
    }

    /// The block device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Requests are answered at once.
    pub fn fast(&mut self) -> Result<RequestCounts> {
        self.command("fast")
    }

    /// Requests are answered in the model's time.
    pub fn timed(&mut self) -> Result<RequestCounts> {
        set_read_ahead(&self.device, self.shape.read_ahead)?;
        self.command("timed")
    }

    /// Puts another scheduler above it.
    pub fn set_queue(&mut self, queue: &Queue) -> Result<()> {
        set_queue(&self.device, queue)?;
        self.shape.queue = queue.clone();
        set_read_ahead(&self.device, self.shape.read_ahead)
    }

    /// Lets no more than `most` of its pages wait in the server's memory to be written.
    pub fn limit_unwritten(&self, most: Bytes) -> Result<()> {
        limit_unwritten(&self.device, most)
    }

    /// Fails when something has changed the read-ahead meanwhile.
    pub fn check_read_ahead(&self) -> Result<()> {
        read_ahead_is(&self.device, self.shape.read_ahead)
    }

    /// What it was asked since its start.
    pub fn asked(&mut self) -> Result<RequestCounts> {
        self.command("asked")
    }

    /// What the report says about it.
    pub fn describe(&self) -> String {
        let Shape { profile, size, seed, read_ahead, queue, .. } = &self.shape;
        format!(
            "{profile:?}: {}; {size}, seed {seed}, read-ahead {read_ahead}, scheduler {queue}",
            Export::describe(*profile)
        )
    }

    fn command(&mut self, word: &str) -> Result<RequestCounts> {
        let commands = self.commands.as_mut().context("the disk takes no commands")?;
        writeln!(commands, "{word}")?;
        let answer = self.answers.next().context("the disk has ended")??;
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Drop for EmulatedDisk {
    fn drop(&mut self) {
        drop(self.commands.take());
        let ended = self.child.wait().map_err(anyhow::Error::from);
        let ended = ended.and_then(|status| {
            ensure!(status.success(), "it ended with {status}");
            Ok(())
        });
        if let Err(error) = ended {
            eprintln!("the emulated disk: {error:#}; `tactus-bench cleanup` takes down the rest");
        }
    }
}
