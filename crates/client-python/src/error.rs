//! Errors of this crate as exceptions.

use pyo3::PyErr;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// What a method raises.
pub(crate) enum Failure {
    /// `tactus.Error`.
    Client(tactus_client::Error),
    /// What Python itself says.
    Python(PyErr),
}

impl From<tactus_client::Error> for Failure {
    fn from(error: tactus_client::Error) -> Self {
        Self::Client(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Client(error) => exception(&error),
            Failure::Python(error) => error,
        }
    }
}

/// `tactus.Error` with number and text.
pub(crate) fn exception(error: &tactus_client::Error) -> PyErr {
    // Written in Python, where a subclass of OSError is one line.
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    Python::attach(|py| match CLASS.import(py, "tactus._error", "Error") {
        Ok(class) => PyErr::from_type(class.clone(), (error.errno(), error.message().to_owned())),
        Err(no_class) => no_class,
    })
}
