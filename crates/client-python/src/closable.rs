//! Values that a program can close before their last reference is gone.

use std::sync::{PoisonError, RwLock};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A value until it is closed.
///
/// Its drop may wait for the server, so it is dropped without the interpreter's lock.
pub(crate) struct Closable<T: Send + Sync> {
    value: RwLock<Option<T>>,
    /// The text of the exception that follows after it is closed.
    closed: &'static str,
}

impl<T: Clone + Send + Sync> Closable<T> {
    pub(crate) const fn new(value: T, closed: &'static str) -> Self {
        Self { value: RwLock::new(Some(value)), closed }
    }

    /// The value.
    ///
    /// # Errors
    /// `ValueError` after it was closed.
    pub(crate) fn get(&self) -> PyResult<T> {
        let value = self.value.read().unwrap_or_else(PoisonError::into_inner);
        value.clone().ok_or_else(|| PyValueError::new_err(self.closed))
    }
}

impl<T: Send + Sync> Closable<T> {
    pub(crate) fn close(&self) {
        let value = self.value.write().unwrap_or_else(PoisonError::into_inner).take();
        if value.is_some() {
            Python::attach(|py| py.detach(|| drop(value)));
        }
    }
}

impl<T: Send + Sync> Drop for Closable<T> {
    fn drop(&mut self) {
        self.close();
    }
}
