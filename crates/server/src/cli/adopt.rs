//! `tactus adopt`: accepts the current contents of a directory as its volume.

use std::path::PathBuf;

use anyhow::Context;
use tactus_storage::store::KnownIdentities;

use super::{Failure, console, state};

/// Accepts the current contents of a directory as its volume
///
/// A writable volume has an identity, which the host stores. When the directory holds another
/// volume or is an empty mount point, uploads are refused until the right disk is mounted, or
/// until this command accepts the new one. It takes effect at the next start of the server.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus adopt /srv/media                              after its disk was replaced by an empty one

Run it as the user that the server runs as: identities are stored in $STATE_DIRECTORY, in
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
            state.ok_or_else(|| Failure::usage("no identities are stored: HOME is not set"))?;
        let forgotten = KnownIdentities::within(&state).forget(&self.dir);
        match forgotten.context("cannot change the stored identity")? {
            true => console::line(format_args!("the next start accepts {dir} as it is")),
            false => console::line(format_args!(
                "no identity is stored for {dir}: the next start accepts it as it is"
            )),
        }
    }
}
