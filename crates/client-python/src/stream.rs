//! Titles at a rate.

use std::time::Duration;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice};
use tactus_client::{BitRate, StreamOptions};

use crate::client::{Client, SIGNALS};
use crate::error::Failure;
use crate::exclusive::Exclusive;
use crate::title::Title;

/// A title that comes at a rate. It ends with `close`, or with its last reference.
#[pyclass(frozen, subclass, module = "tactus")]
pub(crate) struct Stream {
    stream: Exclusive<tactus_client::Stream>,
}

#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (client, title, *, first = 0, rate = None, burst = 0, room = 0))]
    fn new(
        py: Python<'_>,
        client: &Client,
        title: &Title,
        first: u64,
        rate: Option<u64>,
        burst: u64,
        room: u64,
    ) -> Result<Self, Failure> {
        let (client, title) = (client.get()?, title.get()?);
        let options = StreamOptions { first, rate: rate.map(BitRate), burst, room };
        let stream = py.detach(|| client.stream(&title, &options))?;
        Ok(Self { stream: Exclusive::new(stream, "the stream is closed") })
    }

    /// The rate in bits per second; the highest one if it varies with the content.
    #[getter]
    fn rate(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.stream.with(py, |stream| Ok(stream.rate().0))
    }

    /// The byte of the title that comes next to the program.
    #[getter]
    fn position(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.stream.with(py, |stream| Ok(stream.position()))
    }

    /// Whether the program has read the title to its end.
    #[getter]
    fn at_end(&self, py: Python<'_>) -> Result<bool, Failure> {
        self.stream.with(py, |stream| Ok(stream.is_at_end()))
    }

    /// The number of bytes that can be taken now. Never waits.
    fn ready(&self, py: Python<'_>) -> Result<usize, Failure> {
        self.stream.with(py, |stream| stream.chunk().map(<[u8]>::len))
    }

    /// Takes up to `length` bytes that have come: none if none have. Never waits.
    fn take<'py>(&self, py: Python<'py>, length: usize) -> Result<Bound<'py, PyBytes>, Failure> {
        let bytes = self.stream.with(py, |stream| next(stream, length, Duration::ZERO))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Reads up to `length` bytes, as many as have come. Waits for at least one; none come only at
    /// the end of the title.
    fn read<'py>(&self, py: Python<'py>, length: usize) -> Result<Bound<'py, PyBytes>, Failure> {
        Ok(PyBytes::new(py, &self.next(py, length)?))
    }

    /// Reads bytes into `buffer`, as many as have come and have room, and returns their number.
    /// Waits for at least one; none come only at the end of the title.
    fn read_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> Result<usize, Failure> {
        let view = PyMemoryView::from(buffer)?.call_method1("cast", ("B",))?;
        let bytes = self.next(py, view.len()?)?;
        if !bytes.is_empty() {
            let place = view.get_item(PySlice::new(py, 0, bytes.len() as isize, 1))?;
            PyBuffer::<u8>::get(&place)?.copy_from_slice(py, &bytes)?;
        }
        Ok(bytes.len())
    }

    /// Goes on at another byte of the title, at once.
    fn seek(&self, py: Python<'_>, to: u64) -> Result<(), Failure> {
        self.stream.with(py, |stream| stream.seek(to))
    }

    /// Ends it.
    fn close(&self) {
        self.stream.close();
    }
}

impl Stream {
    /// The next bytes, at least one unless the title is at its end.
    fn next(&self, py: Python<'_>, length: usize) -> Result<Vec<u8>, Failure> {
        loop {
            let bytes = self.stream.with(py, |stream| {
                let bytes = next(stream, length, SIGNALS)?;
                let is_over = !bytes.is_empty() || length == 0 || stream.is_at_end();
                Ok(is_over.then_some(bytes))
            })?;
            if let Some(bytes) = bytes {
                return Ok(bytes);
            }
            py.check_signals()?;
        }
    }
}

/// Takes up to `length` bytes. Waits for at least one for so long.
fn next(
    stream: &mut tactus_client::Stream,
    length: usize,
    timeout: Duration,
) -> Result<Vec<u8>, tactus_client::Error> {
    let chunk = match timeout {
        Duration::ZERO => stream.chunk()?,
        timeout => stream.wait(Some(timeout))?,
    };
    let bytes = chunk[..chunk.len().min(length)].to_vec();
    stream.consume(bytes.len());
    Ok(bytes)
}
