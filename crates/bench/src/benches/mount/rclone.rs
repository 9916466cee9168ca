//! The same library mounted by rclone, by HTTP.
//!
//! Promise: it is there when it is returned, and gone when it is dropped.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tactus_core::units::Nanos;

use crate::clock;

/// Longer than it takes to mount.
const PATIENCE: Duration = Duration::from_secs(30);

/// A library mounted by rclone.
pub(super) struct RcloneMount {
    process: Child,
    place: tempfile::TempDir,
}

impl RcloneMount {
    /// Mounts the library of the server at `http`. Returns `None` if rclone is not installed.
    pub(super) fn start(http: SocketAddr) -> Result<Option<Self>> {
        let place = tempfile::Builder::new().prefix("tactus-bench-rclone-").tempdir()?;
        let url = format!("http://{http}/");
        let mut command = Command::new("rclone");
        command.arg("mount").arg(":http:").arg(place.path()).args(["--http-url", &url]);
        command.args(["--read-only", "--config", "/dev/null"]).stdout(Stdio::null());
        let process = match command.stderr(Stdio::null()).spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            process => process?,
        };
        let mounted = Self { process, place };
        let above = device(&std::env::temp_dir())?;
        let until = Instant::now() + PATIENCE;
        while device(mounted.place.path())? == above {
            ensure!(Instant::now() < until, "rclone does not mount the library");
            clock::sleep(Nanos::from_millis(50));
        }
        Ok(Some(mounted))
    }

    /// Its process.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// The file of a title.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }
}

impl Drop for RcloneMount {
    fn drop(&mut self) {
        // It unmounts at this signal.
        kill_process(Pid::from_child(&self.process), Signal::TERM).ok();
        self.process.wait().ok();
    }
}

/// The number of the file system of a directory.
fn device(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path)?.dev())
}
