//! Who works on the disk: something that stores titles and acknowledges them.
//!
//! Promise: the recorder gets the acknowledgements that a client would get. Recovery uses the
//! volume alone, as after a power failure.

mod chunks;
mod mounted;
mod peers;
mod served;
mod writers;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::content::{StoredVersion, identify};
use super::history::{History, VolumeContents};
use super::recorder::Recorder;
use crate::random::Random;

/// A way to store titles.
pub(super) trait Subject: Sync {
    /// Its name on the command line.
    fn name(&self) -> &str;
    /// What it does before it acknowledges.
    fn method(&self) -> &str;
    /// Whether it is right. One that is not must be found out.
    fn audio(&self) -> bool;
    /// Works on the volume at `root` until its load is done.
    fn load(&self, root: &Path, recorder: &Recorder<'_>, random: &mut Random) -> Result<()>;
    /// Recovers after a power failure, until it is ready to work.
    fn recover<'a>(&'a self, root: &'a Path) -> Result<Box<dyn RecoveredSubject + 'a>>;
}

/// A subject that is ready again. Dropped, it lets the volume go.
pub(super) trait RecoveredSubject {
    /// Reads every byte of what there is.
    fn look(&mut self, history: &History) -> Result<VolumeContents>;
    /// How long it was kept from recovering because others had the processors.
    fn starved(&self) -> Result<Duration> {
        Ok(Duration::ZERO)
    }
}

pub(super) use served::{ClientLoad, Load, audit, delete_uploaded, deliver, look, titles};

/// All subjects: those that need nothing but the kernel, the server at `tactus`, and others, of
/// which one is installed in `modules`.
pub(super) fn all(tactus: &Path, modules: Option<&Path>) -> Vec<Box<dyn Subject>> {
    let own = writers::all().into_iter().chain(chunks::all());
    let served = served::all(tactus).into_iter().chain(mounted::all(tactus));
    own.chain(served).chain(peers::all(modules)).collect()
}

/// Reads a title.
fn seen(path: &Path) -> Result<StoredVersion> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(identify(&bytes))
}

/// The files in `folder` by name, without what the file system itself put there.
fn files(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != "lost+found" {
            files.push((name, entry.path()));
        }
    }
    Ok(files)
}
