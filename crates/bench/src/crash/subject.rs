//! Who works on the disk: something that stores titles and acknowledges them.
//!
//! Promise: a subject acknowledges to the recorder what it would to a client, and recovers as it would
//! after a power failure, from the volume alone.

mod chunks;
mod writers;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::recorder::Recorder;
use crate::random::Random;

/// A way to store titles.
pub(super) trait Subject: Sync {
    /// Its name on the command line.
    fn name(&self) -> &str;
    /// What it does before it acknowledges.
    fn method(&self) -> &str;
    /// Whether it is right. One that is not must be found out.
    fn sound(&self) -> bool;
    /// Works on the volume at `root` until its load is done.
    fn load(&self, root: &Path, recorder: &Recorder<'_>, random: &mut Random) -> Result<()>;
    /// Recovers after a power failure, and says what there is.
    fn recover(&self, root: &Path) -> Result<Recovered>;
}

/// What a subject says that there is.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    /// Titles by their names.
    pub(super) titles: Vec<(String, PathBuf)>,
    /// Uploads that can be resumed: id, offset, and the file with the bytes below it.
    pub(super) uploads: Vec<(String, u64, PathBuf)>,
    /// What belongs to nothing.
    pub(super) strays: Vec<String>,
}

/// All subjects that need nothing but the kernel.
pub(super) fn built_in() -> Vec<Box<dyn Subject>> {
    writers::all().into_iter().chain(chunks::all()).collect()
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
