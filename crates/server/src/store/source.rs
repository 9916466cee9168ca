//! Reading what is stored, when whoever plans the disk has time for it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::AsyncRead;

use super::medium::Pending;

/// Bytes of a file, in their order. They end early when they cannot be read.
pub type Reading = Box<dyn AsyncRead + Send + Unpin>;

/// A way from stable storage that keeps to the disk's plan.
pub trait Source: Send + Sync {
    /// The first `len` bytes of `file`, at least one.
    fn read(&self, file: Arc<OwnedFd>, len: u64) -> Pending<Result<Reading, Busy>>;
}

/// There is no room for one more reader: what is short, in a sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Busy(pub String);
