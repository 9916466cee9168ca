//! Requests to read in place, and their completions.

use std::sync::Arc;

use tactus_core::units::MonoTime;

use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::error::Result;
use crate::table::{Outcome, Token};
use crate::title::{Title, read_failed};

/// A read into a buffer: as many bytes as the buffer has.
#[derive(Debug)]
#[must_use = "a request does nothing until it is submitted"]
pub struct ReadRequest<'a> {
    pub(crate) title: &'a Title,
    pub(crate) offset: u64,
    pub(crate) buffer: Buffer,
    pub(crate) when: MonoTime,
}

impl<'a> ReadRequest<'a> {
    /// A read of the bytes of `title` from `offset` on, at once.
    pub fn new(title: &'a Title, offset: u64, buffer: Buffer) -> Self {
        Self { title, offset, buffer, when: MonoTime(0) }
    }

    /// The same, to be answered at `when` or as soon as possible after it, not before: the bytes
    /// are in the buffer by then. [`now`](crate::now) reads this clock.
    pub fn at(self, when: MonoTime) -> Self {
        Self { when, ..self }
    }
}

/// A request that has ended.
#[derive(Debug)]
pub struct Completion {
    /// Which request it was.
    pub token: Token,
    /// Its buffer.
    pub buffer: Buffer,
    /// The number of bytes at the beginning of the buffer, less than the buffer has only at the end
    /// of the title; or why they were not read.
    pub result: Result<usize>,
    /// When it took effect, by the server's reading of the monotonic clock.
    pub at: MonoTime,
}

impl Completion {
    pub(crate) fn new(connection: &Arc<Connection>, outcome: Outcome) -> Self {
        let Outcome { token, buffer, result, at } = outcome;
        let buffer = Buffer::new(Arc::clone(connection), buffer);
        let result = result.map(|bytes| bytes as usize).map_err(read_failed);
        Self { token, buffer, result, at }
    }

    /// The bytes that were read.
    ///
    /// # Errors
    /// Why they were not read.
    pub fn bytes(&self) -> Result<&[u8]> {
        let len = self.result.clone()?;
        Ok(&self.buffer[..len])
    }
}
