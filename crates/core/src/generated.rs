//! Generated datagrams, each with the time at which it leaves.
//!
//! Promise: a datagram is a value of a fixed size, so a ring of them is memory of a fixed size. It
//! knows no payload format and no address. Design note: `docs/design/generated.md`.

use crate::datagrams::{Framing, Ip};
use crate::rtp::frame;
use crate::units::{BitRate, Bytes, Nanos};

/// Upper bound of the bytes: an IPv4 frame of 1,500 bytes less its headers. With IPv6 it is 20
/// less.
pub const TIMED_MAX: usize = 1472;

/// A complete datagram without the headers of UDP and below.
#[derive(Clone, Copy)]
pub struct TimedDatagram {
    /// When it leaves, counted from the beginning of its stream.
    pub due: Nanos,
    len: u16,
    bytes: [u8; TIMED_MAX],
}

impl TimedDatagram {
    /// A datagram of `bytes`.
    ///
    /// # Panics
    /// If there are none, or more than [`TIMED_MAX`].
    pub fn new(due: Nanos, bytes: &[u8]) -> Self {
        Self::of_parts(due, &[bytes])
    }

    /// A datagram of consecutive parts.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn of_parts(due: Nanos, parts: &[&[u8]]) -> Self {
        let mut timed = Self { due, len: 0, bytes: [0; TIMED_MAX] };
        let mut at = 0;
        for part in parts {
            timed.bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        assert!(at > 0, "a datagram of nothing is the end of its stream");
        timed.len = at as u16;
        timed
    }

    /// The same in an interleaved frame (RFC 2326, section 10.12), due so much later.
    ///
    /// # Panics
    /// If there is no room for the header: [`frame::HEAD`] less than [`TIMED_MAX`] fits.
    #[must_use]
    pub fn framed(&self, channel: u8, later: Nanos) -> Self {
        Self::of_parts(self.due + later, &[&frame::head(channel, self.len), self.bytes()])
    }

    /// The end marker of a complete stream.
    pub const fn end(due: Nanos) -> Self {
        Self { due, len: 0, bytes: [0; TIMED_MAX] }
    }

    /// The bytes; empty for the end marker.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The bytes, to be completed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(self.len)]
    }

    /// Whether it is the end marker.
    pub const fn is_end(&self) -> bool {
        self.len == 0
    }
}

/// The rate on the wire of datagrams of `rate`, at most `per_second` of them.
pub const fn wire_rate(rate: BitRate, per_second: u32, ip: Ip) -> BitRate {
    let headers = Framing::Plain.wire(Bytes(0), 1, ip);
    BitRate(rate.0 + headers.0 * 8 * per_second as u64)
}

impl core::fmt::Debug for TimedDatagram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TimedDatagram").field("due", &self.due).field("len", &self.len).finish()
    }
}
