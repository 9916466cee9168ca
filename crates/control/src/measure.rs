//! The model of a volume's disk: measured thoroughly by `tactus measure`, or cautiously at each
//! start.
//!
//! Promise: no title is ever written to. Reads and writes go past the page cache (`O_DIRECT`), and
//! scratch data has no name, so that the kernel removes it however the program ends. The result is
//! a [`DiskModel`] that lies above every measured mean. It promises nothing about a disk with other
//! work at the same time: measure on a quiet host.

mod rig;
mod scratch;

pub mod device;
pub mod fit;
pub mod profile;

pub mod model_file;

mod quick;

use std::io;

use tactus_core::disk_model::DiskModel;

use crate::settings::{MODEL_FILE, Volume};

pub use quick::{probe_file, quick};

/// Checks the model file of a volume, if it has one.
///
/// # Errors
/// As [`model_of`].
pub fn check_model(volume: &Volume) -> io::Result<()> {
    match model_file::read(&volume.model) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => is_left_out(volume),
        Err(error) => Err(named(volume, error)),
    }
}

/// Adds the name of the file to an error.
fn named(volume: &Volume, error: io::Error) -> io::Error {
    match error.kind() {
        // The error names the file already.
        io::ErrorKind::InvalidData => error,
        kind => {
            let message = format!("cannot read the disk model {}: {error}", volume.model.display());
            io::Error::new(kind, message)
        }
    }
}

/// Only a model that the configuration names must exist.
fn is_left_out(volume: &Volume) -> io::Result<()> {
    if volume.model == volume.path.join(MODEL_FILE) {
        return Ok(());
    }
    let message = format!(
        "{} does not exist; run `tactus measure {}`, or remove `model`",
        volume.model.display(),
        volume.path.display()
    );
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}

/// The model of a volume's disk, and its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeModel {
    /// The model.
    pub model: DiskModel,
    /// Whether it comes from `tactus measure`.
    pub is_measured: bool,
    /// Whether the disk may be probed.
    pub probes: bool,
}

/// The model of a volume's disk.
///
/// # Errors
/// When the model file cannot be used, or a configured one is missing.
pub fn model_of(volume: &Volume) -> io::Result<VolumeModel> {
    match model_file::read(&volume.model) {
        Ok(file) => {
            let now = device::of(&volume.path).map(|device| device.name);
            if now.as_ref().is_some_and(|now| *now != file.device) {
                tracing::warn!(
                    "{} was measured on {}, not on this disk; run `tactus measure {}` again",
                    volume.model.display(),
                    file.device,
                    volume.path.display()
                );
            }
            Ok(VolumeModel { model: file.model, is_measured: true, probes: file.probes })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            is_left_out(volume)?;
            Ok(VolumeModel { model: quick(&volume.path), is_measured: false, probes: true })
        }
        Err(error) => Err(named(volume, error)),
    }
}
