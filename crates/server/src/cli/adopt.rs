//! `tactus adopt`: says that what lies in a directory now is the volume that belongs there.

use std::path::PathBuf;

use anyhow::Context;

use super::{Failure, console, state};
use crate::store::Remembered;

/// Takes what lies in a directory now as the volume that belongs there
///
/// A volume that takes uploads has an identity, which the host remembers. When another volume is in its
/// place, or an empty mount point, uploads are refused until the right disk is mounted, or this command
/// says that the new one is meant. The next start of the server takes it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus adopt /srv/media                              after its disk was replaced by an empty one

Run it as the user that the server runs as: what is remembered lies in $STATE_DIRECTORY, in
$XDG_STATE_HOME/tactus, or in ~/.local/state/tactus.")]
pub(super) struct Adopt {
    /// The volume's directory
    dir: PathBuf,
}

impl Adopt {
    pub(super) fn run(self) -> Result<(), Failure> {
        let dir = self.dir.display();
        if !self.dir.is_dir() {
            return Err(Failure::usage(format!("{dir} is not a directory; mount the disk first")));
        }
        let state = state::directory();
        let state =
            state.ok_or_else(|| Failure::usage("nothing is remembered: HOME is not set"))?;
        let forgotten = Remembered::within(&state).forget(&self.dir);
        match forgotten.context("what is remembered cannot be changed")? {
            true => console::line(format_args!("{dir} is taken as it is at the next start")),
            false => {
                console::line(format_args!("nothing was remembered of {dir}: it is taken as it is"))
            }
        }
    }
}
