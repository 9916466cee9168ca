//! From a medium to a block device, and back to nothing.
//!
//! Promise: each step that was taken is undone in reverse order when the value is dropped; what a
//! killed process leaves behind is found again by its place and its name.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use fuser::{BackgroundSession, Config, MountOption, Session};
use tactus_core::units::Nanos;

use super::exported_file::{BLOCK, ExportedFile, Medium, REQUEST_MAX};
use crate::{clock, command};

/// Below it every process with a medium has a directory with its FUSE mount.
const PLACE: &str = "/run/tactus-bench";

/// A loop device with direct I/O on a file behind which a medium lies.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    /// What was done, in order.
    steps: Vec<Step>,
    session: Option<BackgroundSession>,
    device: String,
}

#[derive(Debug)]
enum Step {
    Export(PathBuf),
    Folder(PathBuf),
    Loop(String),
    Mount(PathBuf),
}

impl LoopDevice {
    /// Puts a block device in front of `medium`. One for each process.
    pub(crate) fn build<M: Medium>(medium: Arc<M>) -> Result<Self> {
        let (folder, name) = export_of(std::process::id());
        fs::create_dir_all(&folder)?;
        let steps = vec![Step::Export(folder.clone())];
        let mut loop_device = Self { steps, session: None, device: String::new() };
        let mut options = Config::default();
        options.mount_options = vec![
            MountOption::FSName("tactus-bench".into()),
            MountOption::NoAtime,
            MountOption::CUSTOM(format!("max_read={REQUEST_MAX}")),
        ];
        let file = folder.join(&name).display().to_string();
        let exported_file = ExportedFile { medium, name };
        let session =
            Session::new(exported_file, &folder, &options).context("cannot mount FUSE")?;
        loop_device.session = Some(session.spawn()?);
        let sector = BLOCK.to_string();
        let options = ["--find", "--show", "--direct-io=on", "--sector-size", &sector, &file];
        loop_device.device = command::run("losetup", &options)?.trim().to_owned();
        loop_device.steps.push(Step::Loop(loop_device.device.clone()));
        Ok(loop_device)
    }

    /// The block device.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// Writes `value` to the `key` of the device's queue.
    pub(crate) fn tune(&self, key: &str, value: &str) -> Result<()> {
        let name = self.device.strip_prefix("/dev/").context("losetup printed no device")?;
        let path = format!("/sys/block/{name}/queue/{key}");
        fs::write(&path, value).with_context(|| format!("cannot write {value} to {path}"))
    }

    /// Mounts the file system on the device at `place`.
    pub(crate) fn mount(&mut self, place: &Path, options: &str) -> Result<()> {
        if !place.exists() {
            fs::create_dir_all(place)?;
            self.steps.push(Step::Folder(place.to_owned()));
        }
        command::run("mount", &["-o", options, &self.device, &place.to_string_lossy()])?;
        self.steps.push(Step::Mount(place.to_owned()));
        Ok(())
    }
}

/// Where the process `id` exports its medium: the folder, and the file in it. They have the same
/// name: a loop device whose mount namespace has ended shows only the latter.
pub(crate) fn export_of(id: u32) -> (PathBuf, String) {
    let name = format!("{OURS}{id}");
    (Path::new(PLACE).join(&name), name)
}

const OURS: &str = "disk-";

impl Drop for LoopDevice {
    fn drop(&mut self) {
        while let Some(step) = self.steps.pop() {
            let undone = match &step {
                Step::Mount(path) => unmount(path),
                Step::Loop(name) => unmount_all(name).and_then(|()| detach(name)),
                Step::Folder(path) => fs::remove_dir(path).map_err(anyhow::Error::from),
                // Not joined: where another mount namespace has a copy of the mount the session
                // lives on until this process ends.
                Step::Export(path) => {
                    drop(self.session.take());
                    fs::remove_dir(path).map_err(anyhow::Error::from)
                }
            };
            if let Err(error) = undone {
                eprintln!("left behind: {step:?}: {error:#}");
            }
        }
    }
}

fn unmount(path: &Path) -> Result<()> {
    let path = path.display().to_string();
    command::run("umount", &[&path]).or_else(|_| command::run("umount", &["--lazy", &path]))?;
    Ok(())
}

/// Takes away what others have mounted from `device` and could not unmount any more.
fn unmount_all(device: &str) -> Result<()> {
    let mounts = command::run("findmnt", &["--noheadings", "--output", "TARGET", device]);
    for mount in mounts.unwrap_or_default().lines() {
        command::run("umount", &["--lazy", mount.trim()])?;
    }
    Ok(())
}

/// Detaches a loop device and waits until it has let go of its file.
fn detach(device: &str) -> Result<()> {
    command::run("losetup", &["--detach", device])?;
    let name = device.strip_prefix("/dev/").unwrap_or(device);
    let attached = Path::new("/sys/block").join(name).join("loop/backing_file");
    for _ in 0..LET_GO_ROUNDS {
        if !attached.exists() {
            return Ok(());
        }
        clock::sleep(LET_GO_ROUND);
    }
    bail!("{device} does not let go of its file")
}

/// How long a program that looks at new block devices may hold ours open.
const LET_GO_ROUND: Nanos = Nanos::from_millis(50);
const LET_GO_ROUNDS: u32 = 200;

/// Takes down what killed processes left behind; returns what that was.
pub fn remove_leftovers() -> Result<Vec<String>> {
    let mut found = Vec::new();
    let Ok(folders) = fs::read_dir(PLACE) else { return Ok(found) };
    for folder in folders {
        let folder = folder?.path();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let owner = name.strip_prefix(OURS);
        let owner = owner.ok_or_else(|| anyhow!("{} is not ours", folder.display()))?;
        if Path::new("/proc").join(owner).exists() {
            continue;
        }
        let loops = command::run(
            "losetup",
            &["--list", "--noheadings", "--raw", "--output", "NAME,BACK-FILE"],
        )?;
        let ours = |line: &&str| line.split(['/', ' ']).any(|part| part == name);
        for line in loops.lines().filter(ours) {
            let Some(device) = line.split_whitespace().next() else { continue };
            unmount_all(device)?;
            detach(device)?;
            found.push(device.to_owned());
        }
        // The mount may have gone with its process.
        if command::run("findmnt", &["--mountpoint", &folder.to_string_lossy()]).is_ok() {
            command::run("umount", &["--lazy", &folder.to_string_lossy()])?;
        }
        fs::remove_dir(&folder)?;
        found.push(folder.display().to_string());
    }
    Ok(found)
}
