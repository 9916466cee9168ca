//! Open titles.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice};
use tactus_client::{Nanos, ReserveOptions, TitleMemory};

use crate::closable::Closable;
use crate::error::Failure;
use crate::reserve::Reserve;
use crate::stat::Stat;

/// An open title. It is closed by `close`, or with its last reference.
#[pyclass(frozen, subclass, module = "tactus")]
pub(crate) struct Title {
    title: Closable<Arc<tactus_client::Title>>,
    #[pyo3(get)]
    stat: Py<Stat>,
}

/// A title that was opened, to make a `Title` of.
#[pyclass(frozen, module = "tactus")]
pub(crate) struct OpenTitle(Arc<tactus_client::Title>);

/// The memory file of a title. While it lives, the title is open.
#[pyclass(frozen, module = "tactus")]
pub(crate) struct Memory {
    memory: Closable<Arc<(TitleMemory, Arc<tactus_client::Title>)>>,
    /// Where the title begins in the file, in bytes.
    #[pyo3(get)]
    first: u64,
    /// The length of the title in bytes.
    #[pyo3(get)]
    length: u64,
}

#[pymethods]
impl Title {
    #[new]
    fn new(py: Python<'_>, title: &OpenTitle) -> PyResult<Self> {
        let title = Arc::clone(&title.0);
        let stat = Py::new(py, Stat::from(title.stat().clone()))?;
        Ok(Self { title: Closable::new(title, "the title is closed"), stat })
    }

    /// Its length in bytes when it was opened.
    #[getter]
    fn length(&self) -> PyResult<u64> {
        Ok(self.get()?.len())
    }

    /// Its rate in bits per second, if the server knows it.
    #[getter]
    fn rate(&self) -> PyResult<Option<u64>> {
        Ok(self.get()?.stat().rate)
    }

    /// Reads up to `length` bytes from `offset` on; fewer only at the end of the title.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: usize,
    ) -> Result<Bound<'py, PyBytes>, Failure> {
        let title = self.get()?;
        let rest = title.len().saturating_sub(offset);
        let length = usize::try_from(rest).map_or(length, |rest| rest.min(length));
        let mut read = Ok(0);
        let bytes = PyBytes::new_with(py, length, |into| {
            read = py.detach(|| title.read_at(offset, into));
            Ok(())
        })?;
        let read = read?;
        // Shorter than when it was opened.
        if read < length { Ok(PyBytes::new(py, &bytes.as_bytes()[..read])) } else { Ok(bytes) }
    }

    /// Reads bytes from `offset` on into `buffer`, and returns their number: as many as the buffer
    /// has, fewer only at the end of the title.
    #[pyo3(signature = (buffer, offset = 0))]
    fn read_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        offset: u64,
    ) -> Result<usize, Failure> {
        let title = self.get()?;
        let view = PyMemoryView::from(buffer)?.call_method1("cast", ("B",))?;
        let length = view.len()?;
        let view = view.unbind();
        py.detach(|| {
            title.read_pieces(offset, length, |at, piece| {
                Python::attach(|py| copy(view.bind(py), at, piece)).map_err(Failure::from)
            })
        })
    }

    /// Has the title read into memory, and returns its memory file.
    fn memory(&self, py: Python<'_>) -> Result<Memory, Failure> {
        let title = self.get()?;
        let memory = py.detach(|| title.memory())?;
        let TitleMemory { first, len: length, .. } = memory;
        let memory = Closable::new(Arc::new((memory, title)), "the memory is closed");
        Ok(Memory { memory, first, length })
    }

    /// Reserves room for reads at moments, `interval_ns` nanoseconds apart in the mean and of
    /// `length` bytes at most: disk time, memory and CPU. A moment may be `tolerance_ns` earlier
    /// than the interval allows.
    #[pyo3(signature = (interval_ns, length, *, tolerance_ns = 0))]
    fn reserve(
        &self,
        py: Python<'_>,
        interval_ns: u64,
        length: u32,
        tolerance_ns: u64,
    ) -> Result<Reserve, Failure> {
        let title = self.get()?;
        let (interval, tolerance) = (Nanos(interval_ns), Nanos(tolerance_ns));
        let options = ReserveOptions { interval, tolerance, len: length };
        Ok(Reserve::new(py.detach(|| title.reserve(&options))?))
    }

    /// Closes it, when its maps are gone as well.
    fn close(&self) {
        self.title.close();
    }
}

impl OpenTitle {
    pub(crate) fn new(title: tactus_client::Title) -> Self {
        Self(Arc::new(title))
    }
}

impl Title {
    pub(crate) fn get(&self) -> PyResult<Arc<tactus_client::Title>> {
        self.title.get()
    }
}

#[pymethods]
impl Memory {
    /// The descriptor of the file.
    fn fileno(&self) -> PyResult<RawFd> {
        Ok(self.memory.get()?.0.file.as_raw_fd())
    }
}

/// Copies a piece to its place in a view of bytes.
fn copy(view: &Bound<'_, PyAny>, at: usize, piece: &[u8]) -> PyResult<()> {
    let py = view.py();
    if piece.is_empty() {
        return Ok(());
    }
    let (from, to) = (at as isize, (at + piece.len()) as isize);
    let place = view.get_item(PySlice::new(py, from, to, 1))?;
    PyBuffer::<u8>::get(&place)?.copy_from_slice(py, piece)
}
