//! From the exported file to a mounted file system, and back to nothing.
//!
//! Promise: each step that was taken is undone in reverse order when the value is dropped; what a
//! killed daemon leaves behind is found again by its place.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, bail, ensure};
use fuser::{BackgroundSession, Config, MountOption, Session};
use tactus_core::units::{Bytes, KIB, Nanos};

use super::export::{Export, FILE, Face, REQUEST_MAX};
use super::{Profile, Shape};
use crate::{clock, command};

/// Below it every daemon has a directory with its FUSE mount.
const PLACE: &str = "/run/tactus-bench";
/// Fixes where ext4 puts directories, so that every run has the same layout.
const HASH_SEED: &str = "7a0c1e5d-3b1f-4c55-9a6e-2d1f60a7b0c4";

/// An emulated disk, mounted.
#[derive(Debug)]
pub(super) struct Device {
    export: Arc<Export>,
    answers: Option<JoinHandle<Result<()>>>,
    /// What was done, in order.
    steps: Vec<Step>,
    session: Option<BackgroundSession>,
}

#[derive(Debug)]
enum Step {
    Export(PathBuf),
    Folder(PathBuf),
    Loop(String),
    Mount(PathBuf),
}

impl Device {
    /// Builds the disk, in fast mode.
    pub(super) fn build(shape: &Shape) -> Result<Self> {
        let export = Export::new(shape)?;
        let folder = Path::new(PLACE).join(format!("disk-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let mut device = Self {
            export: Arc::clone(&export),
            answers: None,
            steps: vec![Step::Export(folder.clone())],
            session: None,
        };
        let answering = Arc::clone(&export);
        let answers = std::thread::Builder::new().name("answers".into());
        device.answers = Some(answers.spawn(move || answering.answer_in_time())?);
        let mut options = Config::default();
        options.mount_options = vec![
            MountOption::FSName("tactus-bench".into()),
            MountOption::NoAtime,
            MountOption::CUSTOM(format!("max_read={REQUEST_MAX}")),
        ];
        let session = Session::new(Face(export), &folder, &options).context("cannot mount FUSE")?;
        device.session = Some(session.spawn()?);
        let file = folder.join(FILE).display().to_string();
        let options = ["--find", "--show", "--direct-io=on", "--sector-size", "4096", &file];
        let name = command::run("losetup", &options)?.trim().to_owned();
        device.steps.push(Step::Loop(name.clone()));
        tune(&name, shape)?;
        let features = format!("lazy_itable_init=1,nodiscard,hash_seed={HASH_SEED}");
        command::run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", &features, &name])?;
        if !shape.mount.exists() {
            fs::create_dir_all(&shape.mount)?;
            device.steps.push(Step::Folder(shape.mount.clone()));
        }
        let mount = shape.mount.display().to_string();
        command::run("mount", &["-o", "noatime,noinit_itable", &name, &mount])?;
        device.steps.push(Step::Mount(shape.mount.clone()));
        set_read_ahead(&name, shape.read_ahead)?;
        Ok(device)
    }

    pub(super) fn export(&self) -> &Export {
        &self.export
    }

    /// The block device.
    pub(super) fn name(&self) -> Option<&str> {
        self.steps.iter().find_map(|step| match step {
            Step::Loop(name) => Some(name.as_str()),
            Step::Export(_) | Step::Folder(_) | Step::Mount(_) => None,
        })
    }
}

/// Sets the queue above the device as it would be above a real one.
fn tune(device: &str, shape: &Shape) -> Result<()> {
    let name = device.strip_prefix("/dev/").context("losetup printed no device")?;
    let set = |key: &str, value: &str| {
        let path = format!("/sys/block/{name}/queue/{key}");
        fs::write(&path, value).with_context(|| format!("cannot write {value} to {path}"))
    };
    set("rotational", if shape.profile == Profile::Hdd { "1" } else { "0" })?;
    set("scheduler", &shape.scheduler)?;
    set("max_sectors_kb", &(u64::from(REQUEST_MAX) / KIB).to_string())
}

/// Sets the device's read-ahead. The kernel computes it anew whenever a limit of the queue changes,
/// as it does when a file system is made and mounted, so this comes last and again before each run.
pub(super) fn set_read_ahead(device: &str, read_ahead: Bytes) -> Result<()> {
    let path = read_ahead_path(device);
    let value = (read_ahead.0 / KIB).to_string();
    fs::write(&path, &value).with_context(|| format!("cannot write {value} to {path}"))?;
    read_ahead_is(device, read_ahead)
}

/// Fails when the device's read-ahead is another.
pub(super) fn read_ahead_is(device: &str, read_ahead: Bytes) -> Result<()> {
    let kept = fs::read_to_string(read_ahead_path(device))?;
    let kept: u64 = kept.trim().parse()?;
    ensure!(kept * KIB == read_ahead.0, "{device} has a read-ahead of {kept} KiB");
    Ok(())
}

fn read_ahead_path(device: &str) -> String {
    let name = device.strip_prefix("/dev/").unwrap_or(device);
    format!("/sys/block/{name}/queue/read_ahead_kb")
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

impl Drop for Device {
    fn drop(&mut self) {
        self.export.set_fast(true);
        while let Some(step) = self.steps.pop() {
            let undone = match &step {
                Step::Mount(path) => unmount(path),
                Step::Loop(name) => detach(name),
                Step::Folder(path) => fs::remove_dir(path).map_err(anyhow::Error::from),
                // Not joined: where another mount namespace has a copy of the mount the session lives
                // on until this process ends.
                Step::Export(path) => {
                    drop(self.session.take());
                    fs::remove_dir(path).map_err(anyhow::Error::from)
                }
            };
            if let Err(error) = undone {
                eprintln!("left behind: {step:?}: {error:#}");
            }
        }
        self.export.stop();
        let ended = self.answers.take().map(JoinHandle::join);
        if let Some(Err(_) | Ok(Err(_))) = ended {
            eprintln!("the thread that answers ended with an error");
        }
    }
}

fn unmount(path: &Path) -> Result<()> {
    let path = path.display().to_string();
    command::run("umount", &[&path]).or_else(|_| command::run("umount", &["--lazy", &path]))?;
    Ok(())
}

/// Takes down what killed daemons left behind; returns what that was.
pub fn remove_leftovers() -> Result<Vec<String>> {
    let mut found = Vec::new();
    let Ok(folders) = fs::read_dir(PLACE) else { return Ok(found) };
    for folder in folders {
        let folder = folder?.path();
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
        let owner = name.as_deref().and_then(|name| name.strip_prefix("disk-"));
        let owner = owner.ok_or_else(|| anyhow!("{} is not ours", folder.display()))?;
        if Path::new("/proc").join(owner).exists() {
            continue;
        }
        let file = folder.join(FILE);
        let loops = command::run(
            "losetup",
            &["--list", "--noheadings", "--raw", "--output", "NAME,BACK-FILE"],
        )?;
        for line in loops.lines().filter(|line| line.contains(&*file.to_string_lossy())) {
            let Some(device) = line.split_whitespace().next() else { continue };
            let mounts = command::run("findmnt", &["--noheadings", "--output", "TARGET", device]);
            for mount in mounts.unwrap_or_default().lines() {
                command::run("umount", &["--lazy", mount.trim()])?;
            }
            detach(device)?;
            found.push(device.to_owned());
        }
        // The mount may have gone with its daemon.
        if command::run("findmnt", &["--mountpoint", &folder.to_string_lossy()]).is_ok() {
            command::run("umount", &["--lazy", &folder.to_string_lossy()])?;
        }
        fs::remove_dir(&folder)?;
        found.push(folder.display().to_string());
    }
    Ok(found)
}
