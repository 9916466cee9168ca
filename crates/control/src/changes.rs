//! Changes of stored titles by any protocol: where a path lies, and what forbids to change it.
//!
//! Promise: one place answers for all protocols. A change that another client has locked, or that
//! would take a mounted volume away, is refused by every one of them.

use std::any::Any;
use std::fmt;

use tactus_core::path::RequestPath;
use tactus_storage::store::{Pending, Principal, Store};

/// The gate that every change of a title or a directory passes.
pub trait ChangeGate: Send + Sync {
    /// The store of `path`, and its path there. A directory's path keeps its slash.
    ///
    /// # Errors
    /// If nothing can be changed there at present.
    fn place(&self, path: &RequestPath) -> Result<StorePlace, ChangeRefusal>;

    /// Begins changes for `principal`. While the guard lives, no lock is granted that forbids one
    /// of them.
    ///
    /// # Errors
    /// If a lock of another client forbids one of them, or it would take a volume away.
    fn begin(
        &self,
        principal: &Principal,
        changes: Vec<PathChange>,
    ) -> Pending<Result<ChangeGuard, ChangeRefusal>>;

    /// Ends the locks at `path` and below it, because the objects are gone.
    fn forget(&self, path: &RequestPath);
}

/// A place for a title or a directory.
#[derive(Clone, Debug)]
pub struct StorePlace {
    /// The store of its volume.
    pub store: Store,
    /// Its path within the volume.
    pub path: String,
    /// The number of the volume.
    pub volume: u16,
}

/// A change of one path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathChange {
    /// The path.
    pub path: RequestPath,
    /// What happens there.
    pub kind: ChangeKind,
}

/// What a change does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// A title is stored, new or over another one.
    Store,
    /// An object gets this name, perhaps over another one with all that is below it.
    Replace,
    /// An object disappears, with all that is below it.
    Vanish,
    /// A directory appears.
    Make,
    /// An object gets other properties.
    Set,
}

/// A change in progress. It ends when this is dropped.
#[must_use]
pub struct ChangeGuard {
    /// Dropped at the end.
    _state: Box<dyn Any + Send>,
}

impl ChangeGuard {
    /// A guard that keeps `state` until its end.
    pub fn new(state: impl Any + Send) -> Self {
        Self { _state: Box::new(state) }
    }
}

impl fmt::Debug for ChangeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeGuard").finish_non_exhaustive()
    }
}

/// Why a change is refused before the store is asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChangeRefusal {
    /// No volume there takes changes.
    #[error("{0}")]
    NoUploads(&'static str),
    /// The path belongs to the server.
    #[error("{0}")]
    Reserved(&'static str),
    /// The volume takes no changes until the operator has looked at it.
    #[error("{0}")]
    Closed(&'static str),
    /// Its disk does not answer.
    #[error("{0}")]
    Down(String),
    /// The path cannot be looked at.
    #[error("{0}")]
    Failed(String),
    /// Another client has locked it.
    #[error("/{0} is locked by another client")]
    Locked(String),
    /// A volume is mounted there.
    #[error("this name is already in use")]
    InUse,
    /// Another volume would disappear.
    #[error("another volume is mounted below this directory")]
    HoldsVolume,
}
