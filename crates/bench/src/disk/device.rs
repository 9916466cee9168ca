//! From the exported file to a mounted file system.
//!
//! Promise: the queue above the device is set as it would be above a real disk, and every run has
//! the same layout on it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use tactus_core::units::{Bytes, KIB};

use super::export::Export;
use super::exported_file::REQUEST_MAX;
use super::loop_device::LoopDevice;
use super::{Profile, Queue, Shape};
use crate::command;

/// Fixes where ext4 puts directories, so that every run has the same layout.
const HASH_SEED: &str = "7a0c1e5d-3b1f-4c55-9a6e-2d1f60a7b0c4";

/// An emulated disk, mounted.
#[derive(Debug)]
pub(super) struct Device {
    export: Arc<Export>,
    answers: Option<JoinHandle<Result<()>>>,
    loop_device: Option<LoopDevice>,
    name: String,
}

impl Device {
    /// Builds the disk, in fast mode.
    pub(super) fn build(shape: &Shape) -> Result<Self> {
        let export = Export::new(shape)?;
        let answering = Arc::clone(&export);
        let answers = std::thread::Builder::new().name("answers".into());
        let answers = Some(answers.spawn(move || answering.answer_in_time())?);
        let mut device =
            Self { export: Arc::clone(&export), answers, loop_device: None, name: String::new() };
        let loop_device = device.loop_device.insert(LoopDevice::build(export)?);
        device.name = loop_device.device().to_owned();
        loop_device.tune("rotational", if shape.profile == Profile::Hdd { "1" } else { "0" })?;
        loop_device.tune("max_sectors_kb", &(u64::from(REQUEST_MAX) / KIB).to_string())?;
        set_queue(&device.name, &shape.queue)?;
        let features = format!("lazy_itable_init=1,nodiscard,hash_seed={HASH_SEED}");
        command::run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", &features, &device.name])?;
        loop_device.mount(&shape.mount, "noatime,noinit_itable")?;
        set_read_ahead(&device.name, shape.read_ahead)?;
        Ok(device)
    }

    pub(super) fn export(&self) -> &Export {
        &self.export
    }

    /// The block device.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// Puts a scheduler above the device. It is taken away first: what it was told before is forgotten.
pub(super) fn set_queue(device: &str, queue: &Queue) -> Result<()> {
    let set = |key: &str, value: &str| {
        let path = format!("{}/{key}", queue_path(device));
        fs::write(&path, value).with_context(|| format!("cannot write {value} to {path}"))
    };
    set("scheduler", "none")?;
    set("scheduler", &queue.scheduler)?;
    queue.tuned.iter().try_for_each(|(key, value)| set(&format!("iosched/{key}"), value))
}

/// Lets no more than `most` of the device's pages wait in memory to be written.
pub(super) fn limit_unwritten(device: &str, most: Bytes) -> Result<()> {
    let folder = Path::new("/sys/block").join(short(device)).join("bdi");
    for (key, value) in [("strict_limit", "1".to_owned()), ("max_bytes", most.0.to_string())] {
        let path = folder.join(key);
        fs::write(&path, &value)
            .with_context(|| format!("cannot write {value} to {}", path.display()))?;
    }
    Ok(())
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
    format!("{}/read_ahead_kb", queue_path(device))
}

fn queue_path(device: &str) -> String {
    format!("/sys/block/{}/queue", short(device))
}

/// The device's name in sysfs.
fn short(device: &str) -> &str {
    device.strip_prefix("/dev/").unwrap_or(device)
}

impl Drop for Device {
    fn drop(&mut self) {
        self.export.set_fast(true);
        drop(self.loop_device.take());
        self.export.stop();
        let ended = self.answers.take().map(JoinHandle::join);
        if let Some(Err(_) | Ok(Err(_))) = ended {
            eprintln!("the thread that answers ended with an error");
        }
    }
}
