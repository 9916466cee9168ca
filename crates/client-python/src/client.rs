//! The connection.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tactus_client::{MonoTime, Options, ReadRequest};

use crate::closable::Closable;
use crate::error::{Failure, exception};
use crate::stat::{Entry, Stat};
use crate::title::{OpenTitle, Title};

/// A connection to the server. Titles and further references share it.
#[pyclass(frozen, subclass, module = "tactus")]
pub(crate) struct Client {
    client: Closable<tactus_client::Client>,
    /// The titles of submitted reads, which must be open until these have ended.
    titles: Mutex<HashMap<u64, Arc<tactus_client::Title>>>,
}

/// A read that has ended.
#[pyclass(frozen, module = "tactus")]
pub(crate) struct Completion {
    /// The number that `submit` returned.
    #[pyo3(get)]
    token: u64,
    /// When it took effect, in nanoseconds of the monotonic clock.
    #[pyo3(get)]
    at: u64,
    data: Result<Py<PyBytes>, tactus_client::Error>,
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (path, *, data = None, spin = None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        data: Option<u64>,
        spin: Option<f64>,
    ) -> Result<Self, Failure> {
        let mut options = Options::default();
        if let Some(data) = data {
            options.data = data;
        }
        if let Some(spin) = spin {
            options.spin = seconds(spin)?;
        }
        let client = py.detach(|| tactus_client::Client::connect_with(path, &options))?;
        let client = Closable::new(client, "the client is closed");
        Ok(Self { client, titles: Mutex::default() })
    }

    /// Opens a title for reading: for `Title`.
    fn open_title(&self, py: Python<'_>, path: &str) -> Result<OpenTitle, Failure> {
        let client = self.client.get()?;
        Ok(OpenTitle::new(py.detach(|| client.open(path))?))
    }

    /// The facts about a title or a directory.
    fn stat(&self, py: Python<'_>, path: &str) -> Result<Stat, Failure> {
        let client = self.client.get()?;
        Ok(py.detach(|| client.stat(path))?.into())
    }

    /// The names in a directory, sorted.
    #[pyo3(signature = (path = "/"))]
    fn list(&self, py: Python<'_>, path: &str) -> Result<Vec<Entry>, Failure> {
        let client = self.client.get()?;
        let names = py.detach(|| client.list(path))?;
        names
            .into_iter()
            .map(|entry| Entry::new(py, entry))
            .collect::<PyResult<_>>()
            .map_err(Into::into)
    }

    /// Removes a title.
    fn remove(&self, py: Python<'_>, path: &str) -> Result<(), Failure> {
        let client = self.client.get()?;
        Ok(py.detach(|| client.remove(path))?)
    }

    /// Submits a read, and returns its number. The completion comes from `poll` or `wait`. With
    /// `at` it is answered at that moment, in nanoseconds of `time.monotonic_ns`, not before.
    #[pyo3(signature = (title, offset, length, at = 0))]
    fn submit(&self, title: &Title, offset: u64, length: usize, at: u64) -> Result<u64, Failure> {
        let client = self.client.get()?;
        let title = title.get()?;
        let buffer = client.buffer(length)?;
        let request = ReadRequest::new(&title, offset, buffer).at(MonoTime(at));
        // Another thread may take the completion at once, and removes the title then.
        let mut titles = self.titles();
        let token = client.submit(request)?.number();
        titles.insert(token, title);
        Ok(token)
    }

    /// How many reads can be submitted now.
    #[getter]
    fn room(&self) -> PyResult<usize> {
        Ok(self.client.get()?.room())
    }

    /// The next completion, if there is one.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<Completion>> {
        Ok(self.client.get()?.poll().map(|completion| self.complete(py, completion)))
    }

    /// Waits for the next completion, for so many seconds at most. `None` if they are over, or if
    /// no read is under way.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> Result<Option<Completion>, Failure> {
        let client = self.client.get()?;
        let timeout = timeout.map(seconds).transpose()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let now = Instant::now();
            let rest = deadline.map_or(SIGNALS, |deadline| deadline.saturating_duration_since(now));
            let part = rest.min(SIGNALS);
            let completion = py.detach(|| client.wait(Some(part)))?;
            let is_over = now.elapsed() < part || rest <= SIGNALS && deadline.is_some();
            if completion.is_some() || is_over {
                return Ok(completion.map(|completion| self.complete(py, completion)));
            }
            py.check_signals()?;
        }
    }

    /// The descriptor that becomes readable after `arm` when a completion comes. It must not be
    /// read.
    fn fileno(&self) -> PyResult<RawFd> {
        Ok(self.client.get()?.as_raw_fd())
    }

    /// Prepares to wait for the descriptor. False if there is a completion already.
    fn arm(&self) -> Result<bool, Failure> {
        Ok(self.client.get()?.arm()?)
    }

    /// Ends the wait for the descriptor.
    fn disarm(&self) -> PyResult<()> {
        self.client.get()?.disarm();
        Ok(())
    }

    /// Ends the connection, when its titles are closed as well.
    fn close(&self) {
        self.client.close();
    }
}

impl Client {
    pub(crate) fn get(&self) -> PyResult<tactus_client::Client> {
        self.client.get()
    }

    fn titles(&self) -> MutexGuard<'_, HashMap<u64, Arc<tactus_client::Title>>> {
        self.titles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self, py: Python<'_>, completion: tactus_client::Completion) -> Completion {
        let title = self.titles().remove(&completion.token.number());
        py.detach(|| drop(title));
        Completion::new(py, completion)
    }
}

#[pymethods]
impl Completion {
    /// The bytes: as many as requested, fewer only at the end of the title.
    #[getter]
    fn data(&self, py: Python<'_>) -> PyResult<Py<PyBytes>> {
        match &self.data {
            Ok(bytes) => Ok(bytes.clone_ref(py)),
            Err(error) => Err(exception(error)),
        }
    }
}

impl Completion {
    fn new(py: Python<'_>, completion: tactus_client::Completion) -> Self {
        let data = completion.bytes().map(|bytes| PyBytes::new(py, bytes).unbind());
        Self { token: completion.token.number(), at: completion.at.0, data }
    }
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// How often a wait looks for signals, so that an interrupt from the keyboard ends it.
pub(crate) const SIGNALS: Duration = Duration::from_millis(100);
