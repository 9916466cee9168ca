//! Values that one thread at a time uses, and that a program can close.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::Failure;

/// A value until it is closed. Nothing waits for it with the interpreter's lock.
pub(crate) struct Exclusive<T: Send> {
    value: Mutex<Option<T>>,
    /// The text of the exception that follows after it is closed.
    closed: &'static str,
}

impl<T: Send> Exclusive<T> {
    pub(crate) const fn new(value: T, closed: &'static str) -> Self {
        Self { value: Mutex::new(Some(value)), closed }
    }

    /// Uses the value, without the interpreter's lock.
    ///
    /// # Errors
    /// `ValueError` after it was closed, or what `work` says.
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut T) -> Result<R, tactus_client::Error> + Send,
    ) -> Result<R, Failure> {
        let done = py.detach(|| self.lock().as_mut().map(work));
        Ok(done.ok_or_else(|| PyValueError::new_err(self.closed))??)
    }

    /// Takes the value: it is closed from here on.
    ///
    /// # Errors
    /// `ValueError` after it was closed.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<T> {
        let value = py.detach(|| self.lock().take());
        value.ok_or_else(|| PyValueError::new_err(self.closed))
    }

    /// Drops the value, if it is there.
    pub(crate) fn close(&self) {
        Python::attach(|py| py.detach(|| drop(self.lock().take())));
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send> Drop for Exclusive<T> {
    fn drop(&mut self) {
        self.close();
    }
}
