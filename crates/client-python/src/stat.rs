//! Facts about titles and directories.

use pyo3::prelude::*;

/// Facts about a title or a directory.
#[pyclass(frozen, get_all, eq, module = "tactus")]
#[derive(PartialEq)]
pub(crate) struct Stat {
    /// Length in bytes; zero for a directory.
    length: u64,
    /// When it was changed, in nanoseconds since 1970.
    modified_ns: i64,
    /// Its rate in bits per second, if the server knows it.
    rate: Option<u64>,
    /// Whether it is a directory.
    is_directory: bool,
}

/// One name of a directory.
#[pyclass(frozen, get_all, module = "tactus")]
pub(crate) struct Entry {
    /// The name.
    name: String,
    /// The facts.
    stat: Py<Stat>,
}

impl From<tactus_client::Stat> for Stat {
    fn from(stat: tactus_client::Stat) -> Self {
        let tactus_client::Stat { is_directory, len, modified, rate, .. } = stat;
        Self { length: len, modified_ns: modified, rate, is_directory }
    }
}

#[pymethods]
impl Stat {
    fn __repr__(&self) -> String {
        let Self { length, modified_ns, rate, is_directory } = self;
        let rate = rate.map_or("None".to_owned(), |rate| rate.to_string());
        let is_directory = if *is_directory { "True" } else { "False" };
        format!(
            "Stat(length={length}, modified_ns={modified_ns}, rate={rate}, \
             is_directory={is_directory})"
        )
    }
}

#[pymethods]
impl Entry {
    fn __repr__(&self) -> String {
        format!("Entry(name={:?}, stat={})", self.name, self.stat.get().__repr__())
    }
}

impl Entry {
    pub(crate) fn new(py: Python<'_>, entry: tactus_client::Entry) -> PyResult<Self> {
        Ok(Self { name: entry.name, stat: Py::new(py, Stat::from(entry.stat))? })
    }
}
