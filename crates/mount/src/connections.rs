//! The connection to the server, and the next one after the server has ended.
//!
//! Promise: a call waits at most twice the time that a name may take. While the server is away each
//! call fails at once with `ENOTCONN`, and one line of the log says so; the first call after it has
//! come back connects again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::Errno;
use rustix::io::Errno as Number;
use tactus_client::{Client, Options, Result};

use crate::reader::{Reader, is_gone};

/// The connections of a mount: one at a time.
pub(crate) struct Connections {
    socket: PathBuf,
    state: Mutex<State>,
}

struct State {
    reader: Option<Arc<Reader>>,
    /// When connecting has failed last.
    failed: Option<Instant>,
}

impl Connections {
    /// Connects.
    pub(crate) fn new(socket: &Path) -> Result<Self> {
        let reader = connect(socket)?;
        let state = Mutex::new(State { reader: Some(reader), failed: None });
        Ok(Self { socket: socket.to_owned(), state })
    }

    /// Asks the server by the current connection; once more by a new one if the server has been
    /// started again meanwhile.
    pub(crate) fn ask<T>(
        &self,
        what: impl Fn(&Arc<Reader>) -> Result<T>,
    ) -> std::result::Result<T, Errno> {
        let mut is_again = false;
        loop {
            let reader = self.current()?;
            let error = match what(&reader) {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            if !is_gone(&error) {
                return Err(Errno::from_i32(error.errno()));
            }
            self.lose(&reader, &error);
            let is_slow = error.errno() == Number::TIMEDOUT.raw_os_error();
            if is_again || is_slow {
                return Err(Errno::ENOTCONN);
            }
            is_again = true;
        }
    }

    /// The current connection, or a new one.
    fn current(&self) -> std::result::Result<Arc<Reader>, Errno> {
        let mut state = self.state();
        if let Some(reader) = state.reader.as_ref().filter(|reader| !reader.has_ended()) {
            return Ok(Arc::clone(reader));
        }
        if let Some(reader) = state.reader.take() {
            self.report_loss();
            reader.close();
        }
        if state.failed.is_some_and(|failed| failed.elapsed() < PAUSE) {
            return Err(Errno::ENOTCONN);
        }
        match connect(&self.socket) {
            Ok(reader) => {
                tracing::warn!(socket = %self.socket.display(), "the server is back");
                state.reader = Some(Arc::clone(&reader));
                state.failed = None;
                Ok(reader)
            }
            Err(error) => {
                tracing::debug!("the server cannot be reached: {error}");
                state.failed = Some(Instant::now());
                Err(Errno::ENOTCONN)
            }
        }
    }

    fn lose(&self, lost: &Arc<Reader>, error: &tactus_client::Error) {
        let mut state = self.state();
        if let Some(reader) = state.reader.take_if(|reader| Arc::ptr_eq(reader, lost)) {
            tracing::debug!("the connection has ended: {error}");
            self.report_loss();
            reader.close();
        }
    }

    fn report_loss(&self) {
        tracing::warn!(
            socket = %self.socket.display(),
            "the server has gone: requests fail with ENOTCONN until it is back"
        );
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        if let Some(reader) = self.state().reader.take() {
            reader.close();
        }
    }
}

fn connect(socket: &Path) -> Result<Arc<Reader>> {
    let options = Options { data: DATA, patience: Some(PATIENCE), ..Options::default() };
    let client = Client::connect_with(socket, &options)?;
    Reader::start(client).map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(Number::AGAIN.raw_os_error());
        tactus_client::Error::with_errno(errno, "no thread for reads")
    })
}

/// Memory for reads: as much as the kernel has under way for a few readers.
const DATA: u64 = 32 << 20;

/// How long a name may take. With a new connection after it this is less than the 30 s in which a
/// program must hear that the server is stuck.
const PATIENCE: Duration = Duration::from_secs(10);

/// While the server is away it is looked for no more often.
const PAUSE: Duration = Duration::from_millis(100);
