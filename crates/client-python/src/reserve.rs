//! Room for reads of a title at moments.

use pyo3::prelude::*;

/// Reserved room for the reads of one title at moments, until the title is closed.
#[pyclass(frozen, module = "tactus")]
pub(crate) struct Reserve {
    reserve: tactus_client::Reserve,
    /// Bytes of a block.
    #[pyo3(get)]
    block: u64,
}

#[pymethods]
impl Reserve {
    /// How far ahead of its moment a read has to be submitted, in nanoseconds.
    fn ahead(&self, offset: u64, length: u32) -> u64 {
        self.reserve.ahead(offset, length).0
    }
}

impl Reserve {
    pub(crate) fn new(reserve: tactus_client::Reserve) -> Self {
        Self { reserve, block: reserve.block() }
    }
}
