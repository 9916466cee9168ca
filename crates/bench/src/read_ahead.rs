//! The read-ahead of the machine's own disk, the same for every server while a bench runs.
//!
//! Distributions set 128 KiB, some virtual machines many MiB. It decides how much memory a server
//! that reads through the page cache needs for each stream.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Sets it, and back when dropped.
pub struct ReadAhead {
    path: PathBuf,
    before: String,
}

impl ReadAhead {
    /// Sets it to `kib` for the device that `directory` lies on; none where there is no such
    /// device.
    pub fn set(directory: &Path, kib: u64) -> Result<Option<Self>> {
        let device = fs::metadata(directory)?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        // A partition has the queue of its disk.
        let queues = [node.join("queue"), node.join("../queue")];
        let Some(queue) = queues.into_iter().find(|queue| queue.is_dir()) else { return Ok(None) };
        let path = queue.join("read_ahead_kb").canonicalize()?;
        let before = fs::read_to_string(&path)?;
        fs::write(&path, kib.to_string()).with_context(|| format!("cannot set {path:?}"))?;
        Ok(Some(Self { path, before }))
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.path, self.before.trim()) {
            eprintln!("bench: {} is not set back: {error}", self.path.display());
        }
    }
}
