//! Reads stored bytes when the disk's plan has time for them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::AsyncRead;

use super::medium::Pending;

/// Bytes of a file, in order. They end early when they cannot be read.
pub type Reading = Box<dyn AsyncRead + Send + Unpin>;

/// A way to read from stable storage within the disk's plan.
pub trait Source: Send + Sync {
    /// The first `len` bytes of `file`, at least one.
    fn read(&self, file: Arc<OwnedFd>, len: u64) -> Pending<Result<Reading, Busy>>;
}

/// No capacity for one more reader: the text names the resource that is short.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Busy(pub String);
