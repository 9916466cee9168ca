//! Files that get no name any more and that a program can still write.
//!
//! Promise: the claim of such a file stays until no process can write it. A process that writes
//! more than was claimed loses all bytes of it within a second.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use tokio::runtime::Handle;

use super::{is_within, reopen};
use crate::store::medium::blocking;
use crate::store::quotas::Claim;

/// Pauses between two looks at a file. Most programs close their descriptor a moment later.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Lets a file go. Its claim ends now if no process can write it, and later otherwise.
pub(super) fn release(file: Arc<OwnedFd>, claim: Option<Claim>) {
    let Ok(runtime) = Handle::try_current() else { return };
    // The server's own descriptor for writing would count as a writer.
    let read = match reopen(&file, OFlags::RDONLY) {
        Ok(read) => read,
        Err(_) => {
            runtime.spawn_blocking(move || drop(file));
            return;
        }
    };
    drop(file);
    match (tactus_sys::file::has_writers(&read), claim) {
        (Ok(true), Some(claim)) => watch(read, claim),
        // Closing the last handle frees the blocks, which can take long.
        _ => drop(runtime.spawn_blocking(move || drop(read))),
    }
}

/// Holds the writers of `file`, which is open for reading only, to `claim`.
pub(super) fn watch(file: OwnedFd, claim: Claim) {
    tokio::spawn(async move {
        let (mut watched, mut pause) = (Some((file, claim)), PAUSE_MIN);
        while let Some((file, claim)) = watched {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            // Refused only when the server stops.
            watched = blocking(move || Ok(look(file, claim))).await.ok().flatten();
        }
    });
}

/// Clears a file that is longer than was claimed. None if no process can write it any more.
fn look(file: OwnedFd, claim: Claim) -> Option<(OwnedFd, Claim)> {
    if !is_within(&file, claim.reserved()) {
        let cleared = reopen(&file, OFlags::RDWR).and_then(|own| {
            rustix::fs::ftruncate(own, 0)?;
            Ok(())
        });
        if let Err(error) = cleared {
            tracing::warn!(%error, "a file that was written past its claim keeps its bytes");
        }
    }
    tactus_sys::file::has_writers(&file).unwrap_or(false).then_some((file, claim))
}
