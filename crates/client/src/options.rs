//! What can be chosen for a connection, and for a title that is written.

use std::time::Duration;

use crate::protocol::Replace;

/// What can be chosen for a connection; made by [`Options::default`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of data to share with the server: the room for all buffers. The server may share
    /// fewer. 4 MiB by default.
    pub data: u64,
    /// How long a call that waits looks for its answer before it sleeps. An answer within this time
    /// costs no wake-up. Zero sleeps at once. 20 us by default, as long as the server looks for the
    /// next request. On the processor of a server that sleeps a call sleeps at once in any case:
    /// the server could not answer meanwhile.
    pub spin: Duration,
    /// How long a request for a name may take: opening, facts, lists. When it is over, the server
    /// counts as gone. `None`, the default, waits without limit.
    pub patience: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self { data: 4 << 20, spin: Duration::from_micros(20), patience: None }
    }
}

/// What can be chosen for a title that is written; made by [`WriteOptions::default`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WriteOptions {
    /// Its length in bytes, if it is known. Space and quota for all of it are claimed at the
    /// beginning, so that a full disk is found there and not in the middle; the title must have
    /// exactly this length when it is published. Unknown by default.
    pub len: Option<u64>,
    /// What may have the name already, both at the beginning and when the title is published. By
    /// default an older version is replaced.
    pub replace: Replace,
}
