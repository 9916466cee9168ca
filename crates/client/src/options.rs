//! What can be chosen for a connection.

use std::time::Duration;

/// What can be chosen for a connection; made by [`Options::default`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of data to share with the server: the room for all buffers. The server may share
    /// fewer. 4 MiB by default.
    pub data: u64,
    /// How long a call that waits looks for its answer before it sleeps. An answer within this time
    /// costs no wake-up. Zero sleeps at once. 20 us by default, as long as
    /// the server looks for the next request.
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
