//! Titles that are built in memory.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use pyo3::prelude::*;
use tactus_client::MemoryFile;

use crate::client::Client;
use crate::error::Failure;
use crate::exclusive::Exclusive;
use crate::writing::replace_of;

/// A title that is built in memory. It has no name before `publish`; closed before, nothing of it
/// is left but what was synced.
#[pyclass(frozen, subclass, module = "tactus")]
pub(crate) struct MemoryWriter {
    memory: Exclusive<MemoryFile>,
    /// Where the title begins in the file, in bytes.
    #[pyo3(get)]
    first: u64,
    /// The most bytes that its memory can ever have.
    #[pyo3(get)]
    limit: u64,
    /// What it is continued by after a crash, if it was synced.
    #[pyo3(get)]
    upload: String,
}

#[pymethods]
impl MemoryWriter {
    #[new]
    #[pyo3(signature = (client, path, *, replace = "titles", edit = false, upload = None))]
    fn new(
        py: Python<'_>,
        client: &Client,
        path: &str,
        replace: &str,
        edit: bool,
        upload: Option<&str>,
    ) -> Result<Self, Failure> {
        let (client, replace) = (client.get()?, replace_of(replace)?);
        let begun = py.detach(|| match upload {
            Some(upload) => client.resume_in_memory(path, upload),
            None if edit => client.edit_in_memory(path),
            None => client.create_in_memory(path, replace),
        });
        let memory = begun?.into_file();
        let (first, limit, upload) = (memory.first(), memory.limit(), memory.upload().to_owned());
        let memory = Exclusive::new(memory, "the writer is closed");
        Ok(Self { memory, first, limit, upload })
    }

    /// The number of bytes that are there.
    #[getter]
    fn length(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.memory.with(py, |memory| Ok(memory.len()))
    }

    /// The number of bytes, from the first one on, that are final.
    #[getter]
    fn written_back(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.memory.with(py, |memory| Ok(memory.written_back()))
    }

    /// The descriptor of its memory file.
    fn fileno(&self, py: Python<'_>) -> Result<RawFd, Failure> {
        self.memory.with(py, |memory| Ok(memory.as_fd().as_raw_fd()))
    }

    /// Has memory for at least `length` bytes from now on, new ones zero.
    fn grow(&self, py: Python<'_>, length: u64) -> Result<(), Failure> {
        self.memory.with(py, |memory| memory.grow(length))
    }

    /// Makes the first `end` bytes final, and waits until the server has taken them.
    fn write_back(&self, py: Python<'_>, end: u64) -> Result<(), Failure> {
        self.memory.with(py, |memory| memory.write_back(end))
    }

    /// The same, and waits until they are on stable storage.
    fn sync(&self, py: Python<'_>, end: u64) -> Result<(), Failure> {
        self.memory.with(py, |memory| memory.sync(end))
    }

    /// Makes a title of the first `length` bytes, and waits until it is on stable storage.
    /// `modified_ns` is its modification time in nanoseconds since 1970, by default now.
    #[pyo3(signature = (length, modified_ns = None))]
    fn publish(
        &self,
        py: Python<'_>,
        length: u64,
        modified_ns: Option<i64>,
    ) -> Result<(), Failure> {
        let memory = self.memory.take(py)?;
        Ok(py.detach(|| memory.publish_at(length, modified_ns.unwrap_or(0)))?)
    }

    /// Drops all bytes, even if they were synced. Their space is free when this returns.
    fn abort(&self, py: Python<'_>) -> Result<(), Failure> {
        let memory = self.memory.take(py)?;
        Ok(py.detach(|| memory.abort())?)
    }

    /// Drops what was not synced, unless it is published, and does not wait for it.
    fn close(&self) {
        self.memory.close();
    }
}
