//! The native half of the Python package `tactus`: `tactus-client` as classes of Python.
//!
//! Promise: no call holds the interpreter's lock while it waits for the server. Bytes are copied
//! once, into memory of Python; a title in memory is mapped by Python itself, so that the lifetime
//! of a view is Python's to keep. The other half, in `python/tactus`, has the file objects, the
//! maps and asyncio.

#![forbid(unsafe_code)]

use pyo3::pymodule;

mod error;

mod closable;
mod reserve;
mod stat;

mod title;

mod client;

mod exclusive;

mod stream;
mod writing;

mod memory;

/// The module `tactus._native`.
#[pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use crate::client::{Client, Completion};
    #[pymodule_export]
    use crate::memory::MemoryWriter;
    #[pymodule_export]
    use crate::reserve::Reserve;
    #[pymodule_export]
    use crate::stat::{Entry, Stat};
    #[pymodule_export]
    use crate::stream::Stream;
    #[pymodule_export]
    use crate::title::{Memory, OpenTitle, Title};
    #[pymodule_export]
    use crate::writing::{Recording, Writer};
}
