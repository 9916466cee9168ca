//! Requests to read and write in place, and their completions.

use std::sync::Arc;
use std::time::SystemTime;

use tactus_core::local::Operation;
use tactus_core::units::{MonoTime, Nanos};

use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::error::{Result, request_failed};
use crate::table::{Outcome, Token};
use crate::title::Title;
use crate::writer::Writer;

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

    /// The same, to be answered at `when`, not before: the bytes are in the buffer by then.
    /// [`now`](crate::now) reads this clock. With a reserve ([`Title::reserve`]) the moment is
    /// kept, or the read is refused at once. Without one nothing is promised: bytes that are not in
    /// memory by then are read in the time that is left over, and the answer comes when they are
    /// there. [`Completion::at`] says when it was.
    pub fn at(self, when: MonoTime) -> Self {
        Self { when, ..self }
    }

    /// The same at a time of the wall clock, which is read now: a later step of that clock does not
    /// move the moment.
    pub fn at_wall(self, when: SystemTime) -> Self {
        self.at(moment_of(when, SystemTime::now(), crate::connection::now()))
    }
}

/// A request of a [`Writer`] or of a [`MemoryWriter`](crate::MemoryWriter): bytes, or what becomes
/// of the bytes so far.
#[derive(Debug)]
#[must_use = "a request does nothing until it is submitted"]
pub struct WriteRequest<'a> {
    pub(crate) writer: &'a Writer,
    pub(crate) operation: Operation,
    /// `None` for a request without bytes.
    pub(crate) buffer: Option<Buffer>,
    pub(crate) len: usize,
    /// The modification time of a title that is published, or a number of bytes of one in memory.
    pub(crate) value: i64,
}

impl<'a> WriteRequest<'a> {
    /// Appends all bytes of `buffer`. It is answered when the server has taken them; the buffer can
    /// be used again then.
    pub fn new(writer: &'a Writer, buffer: Buffer) -> Self {
        let len = buffer.len();
        Self { writer, operation: Operation::Write, buffer: Some(buffer), len, value: 0 }
    }

    /// The same with the first `len` bytes of the buffer.
    pub fn len(self, len: usize) -> Self {
        Self { len, ..self }
    }

    /// Makes all bytes so far durable, as [`Writer::sync`]. Its completion has an empty buffer.
    pub fn sync(writer: &'a Writer) -> Self {
        Self { writer, operation: Operation::Sync, buffer: None, len: 0, value: 0 }
    }

    /// Has the first `end` bytes of a title in memory stored.
    pub(crate) fn write_back(writer: &'a Writer, end: u64) -> Self {
        // No memory has so many bytes that they are no file offset.
        Self { operation: Operation::WriteBack, value: end as i64, ..Self::sync(writer) }
    }

    /// Makes a title of all bytes so far, as [`Writer::publish`]. Its completion has an empty
    /// buffer, and the writer takes no more requests.
    pub fn publish(writer: &'a Writer) -> Self {
        Self { operation: Operation::Publish, ..Self::sync(writer) }
    }

    /// The same with a modification time, in nanoseconds since 1970; zero: the time of publishing.
    pub fn modified(self, modified: i64) -> Self {
        Self { value: modified, ..self }
    }
}

/// A request that has ended.
#[derive(Debug)]
pub struct Completion {
    /// Which request it was.
    pub token: Token,
    /// Its buffer.
    pub buffer: Buffer,
    /// The number of bytes at the beginning of the buffer that were read or written, less than
    /// requested only for a read at the end of the title; or why the request has failed.
    pub result: Result<usize>,
    /// When it took effect, by the server's reading of the monotonic clock.
    pub at: MonoTime,
}

impl Completion {
    pub(crate) fn new(connection: &Arc<Connection>, outcome: Outcome) -> Self {
        let Outcome { token, buffer, result, at } = outcome;
        let buffer = Buffer::new(Arc::clone(connection), buffer);
        let result = result.map(|bytes| bytes as usize).map_err(request_failed);
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

/// A time of the wall clock by the monotonic clock, of which `wall` and `now` are the same moment.
fn moment_of(when: SystemTime, wall: SystemTime, now: MonoTime) -> MonoTime {
    let nanos = |span: std::time::Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    match when.duration_since(wall) {
        Ok(ahead) => MonoTime(now.0.saturating_add(nanos(ahead)).min(i64::MAX as u64)),
        Err(past) => now.before(Nanos(nanos(past.duration()))).max(MonoTime(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_time_of_the_wall_clock_is_as_far_away_by_the_monotonic_one() {
        let (wall, now) =
            (SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000), MonoTime(500));
        let millis = Duration::from_millis(3);
        assert_eq!(moment_of(wall + millis, wall, now), MonoTime(3_000_500));
        assert_eq!(moment_of(wall - Duration::from_nanos(20), wall, now), MonoTime(480));
        // In the past, but not zero, which would be no moment.
        assert_eq!(moment_of(wall - millis, wall, now), MonoTime(1));
    }
}
