//! A program that writes one file and says how long each step took, for `mount`.
//!
//! Promise: it has no other files open and no children. At a close a mount asks whether the
//! program's children have the file open still, and a bench has servers with thousands of files.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::spread::quantile;

/// The file to write, and the sizes of writes and flushes.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The file; it is removed at the end.
    path: PathBuf,
    /// Its bytes.
    #[arg(long)]
    len: u64,
    /// Bytes of one write.
    #[arg(long)]
    size: u64,
    /// Bytes between two flushes.
    #[arg(long)]
    flushed: u64,
}

/// The times of one file, in seconds.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct FileTimes {
    pub(crate) all: f64,
    pub(crate) open: f64,
    /// The first write, with its flush if one follows.
    pub(crate) first: f64,
    /// The same, the median of all.
    pub(crate) median: f64,
    /// The last flush.
    pub(crate) last_flush: f64,
    pub(crate) close: f64,
}

/// Writes the file, and prints its times as JSON.
///
/// # Errors
/// A call failed.
pub fn run(options: &Options) -> Result<()> {
    let times = write(options).with_context(|| format!("{}", options.path.display()))?;
    println!("{}", serde_json::to_string(&times)?);
    Ok(())
}

/// Has a program write `len` bytes by pieces of `size`, with a flush after each `flushed` bytes.
pub(crate) fn write_apart(path: &Path, len: u64, size: u64, flushed: u64) -> Result<FileTimes> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("write-file").arg(path);
    for (option, bytes) in [("--len", len), ("--size", size), ("--flushed", flushed)] {
        command.args([option, &bytes.to_string()]);
    }
    let ended = command.output()?;
    ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    Ok(serde_json::from_slice(&ended.stdout)?)
}

fn write(options: &Options) -> Result<FileTimes> {
    let &Options { ref path, len, size, flushed } = options;
    let bytes: Vec<u8> = (0..size).map(|at| (at ^ at >> 8) as u8).collect();
    let begun = Instant::now();
    let since = |begun: Instant| begun.elapsed().as_secs_f64();
    let mut file = File::create(path)?;
    let mut times = FileTimes { open: since(begun), ..FileTimes::default() };
    let mut steps = Vec::with_capacity((len / size) as usize);
    for at in (0..len).step_by(size as usize) {
        let step = Instant::now();
        file.write_all(&bytes)?;
        if (at + size).is_multiple_of(flushed) {
            let flush = Instant::now();
            file.sync_all()?;
            times.last_flush = since(flush);
        }
        steps.push(since(step));
    }
    let close = Instant::now();
    drop(file);
    (times.close, times.all) = (since(close), since(begun));
    times.first = steps[0];
    times.median = quantile(&mut steps, 0.5).unwrap_or(f64::NAN);
    fs::remove_file(path)?;
    Ok(times)
}
