//! Titles that are written: whole, or at a rate.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use tactus_client::{BitRate, RecordingOptions, Replace, WriteOptions};

use crate::client::{Client, SIGNALS};
use crate::error::Failure;
use crate::exclusive::Exclusive;

/// A title that is written. It has no name before `publish`; closed before, nothing of it is left.
#[pyclass(frozen, subclass, module = "tactus")]
pub(crate) struct Writer {
    writer: Exclusive<tactus_client::Writer>,
}

/// A title that a program writes at a rate. The server makes a title of the written bytes, also if
/// the recording fails.
#[pyclass(frozen, subclass, module = "tactus")]
pub(crate) struct Recording {
    recording: Exclusive<tactus_client::Recording>,
}

#[pymethods]
impl Writer {
    #[new]
    #[pyo3(signature = (client, path, *, length = None, replace = "titles"))]
    fn new(
        py: Python<'_>,
        client: &Client,
        path: &str,
        length: Option<u64>,
        replace: &str,
    ) -> Result<Self, Failure> {
        let client = client.get()?;
        let options = WriteOptions { len: length, replace: replace_of(replace)? };
        let writer = py.detach(|| client.create(path, &options))?;
        Ok(Self { writer: Exclusive::new(writer, "the writer is closed") })
    }

    /// The number of bytes written so far.
    #[getter]
    fn length(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.writer.with(py, |writer| Ok(writer.len()))
    }

    /// Appends all of `data`, and waits until the server has it. Returns its number of bytes.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> Result<usize, Failure> {
        let data = bytes_of(data)?;
        self.writer.with(py, |writer| writer.write_all(&data))?;
        Ok(data.len())
    }

    /// Waits until all bytes so far are on stable storage. They are no title before `publish`.
    fn sync(&self, py: Python<'_>) -> Result<(), Failure> {
        self.writer.with(py, |writer| writer.sync())
    }

    /// Makes a title of all bytes, and waits until it is on stable storage. `modified_ns` is its
    /// modification time in nanoseconds since 1970, by default now.
    #[pyo3(signature = (modified_ns = None))]
    fn publish(&self, py: Python<'_>, modified_ns: Option<i64>) -> Result<(), Failure> {
        let writer = self.writer.take(py)?;
        Ok(py.detach(|| match modified_ns {
            Some(modified) => writer.publish_at(modified),
            None => writer.publish(),
        })?)
    }

    /// Drops all bytes. Their space is free when this returns.
    fn abort(&self, py: Python<'_>) -> Result<(), Failure> {
        let writer = self.writer.take(py)?;
        Ok(py.detach(|| writer.abort())?)
    }

    /// Drops all bytes, unless they are published, and does not wait for it.
    fn close(&self) {
        self.writer.close();
    }
}

#[pymethods]
impl Recording {
    #[new]
    #[pyo3(signature = (client, path, rate, *, replace = "titles", room = 0))]
    fn new(
        py: Python<'_>,
        client: &Client,
        path: &str,
        rate: u64,
        replace: &str,
        room: u64,
    ) -> Result<Self, Failure> {
        let client = client.get()?;
        let options = RecordingOptions { rate: BitRate(rate), replace: replace_of(replace)?, room };
        let recording = py.detach(|| client.record(path, &options))?;
        Ok(Self { recording: Exclusive::new(recording, "the recording is closed") })
    }

    /// The rate in bits per second.
    #[getter]
    fn rate(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.recording.with(py, |recording| Ok(recording.rate().0))
    }

    /// The number of bytes handed over so far.
    #[getter]
    fn length(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.recording.with(py, |recording| Ok(recording.len()))
    }

    /// Bytes, from the first one on, that a power failure does not take any more.
    #[getter]
    fn durable(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.recording.with(py, |recording| Ok(recording.durable()))
    }

    /// How often this program was faster than its rate.
    #[getter]
    fn overruns(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.recording.with(py, |recording| Ok(recording.overruns()))
    }

    /// How often this program was slower than its rate.
    #[getter]
    fn underruns(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.recording.with(py, |recording| Ok(recording.underruns()))
    }

    /// The number of bytes that can be put now. Never waits.
    fn ready(&self, py: Python<'_>) -> Result<usize, Failure> {
        self.recording.with(py, |recording| recording.space().map(|space| space.len()))
    }

    /// Hands the first bytes of `data` over, as many as there is room for, and returns their
    /// number. Never waits.
    fn put(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> Result<usize, Failure> {
        let data = bytes_of(data)?;
        self.recording.with(py, |recording| {
            let space = recording.space()?;
            let len = space.len().min(data.len());
            space[..len].copy_from_slice(&data[..len]);
            recording.commit(len);
            Ok(len)
        })
    }

    /// Hands all of `data` over, and returns its number of bytes. Waits for room: a program that is
    /// faster than its rate is held to it.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> Result<usize, Failure> {
        let data = bytes_of(data)?;
        let mut done = 0;
        while done < data.len() {
            let rest = &data[done..];
            done += self.recording.with(py, |recording| {
                let space = recording.wait(Some(SIGNALS))?;
                let len = space.len().min(rest.len());
                space[..len].copy_from_slice(&rest[..len]);
                recording.commit(len);
                Ok(len)
            })?;
            py.check_signals()?;
        }
        Ok(done)
    }

    /// Makes a title of all bytes, and waits until it is on stable storage. Returns its length.
    fn finish(&self, py: Python<'_>) -> Result<u64, Failure> {
        let recording = self.recording.take(py)?;
        Ok(py.detach(|| recording.finish())?)
    }

    /// Closes the recording without waiting for its end. The server makes a title of the bytes that
    /// were handed over.
    fn close(&self) {
        self.recording.close();
    }
}

pub(crate) fn replace_of(name: &str) -> PyResult<Replace> {
    match name {
        "titles" => Ok(Replace::Titles),
        "nothing" => Ok(Replace::Nothing),
        "existing" => Ok(Replace::Existing),
        _ => {
            let text = format!("replace is \"titles\", \"nothing\" or \"existing\", not {name:?}");
            Err(PyValueError::new_err(text))
        }
    }
}

/// The bytes of an object, which the interpreter's lock does not guard: another kind than `bytes`
/// is copied.
fn bytes_of(data: &Bound<'_, PyAny>) -> PyResult<PyBackedBytes> {
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return Ok(PyBackedBytes::from(bytes.clone()));
    }
    let view = pyo3::types::PyMemoryView::from(data)?;
    view.call_method0("tobytes")?.extract().map_err(PyErr::from)
}
