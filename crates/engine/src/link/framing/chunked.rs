//! Generated chunks as the content of an HTTP/1.1 answer: what a visit sends is one HTTP chunk
//! (RFC 9112, section 7.1).
//!
//! Promise: a head states exactly the bytes that follow it, whatever the socket takes at a time. A
//! begun HTTP chunk is finished, also after a stop. The last one, of no bytes, is not sent here:
//! the control side knows whether the content is complete.

use tactus_core::generated::TIMED_MAX;
use tactus_core::ports::LinkPort;

use super::chunks::Chunks;
use super::parts::Parts;
use super::{Call, CallResult, FRAMES, Limit};
use crate::link::connection::Connection;
use crate::message::Outcome;

/// Longest head: the bytes of one visit take four digits.
const HEAD: usize = 4 + END.len();
/// The end of a head, and of an HTTP chunk.
const END: &[u8; 2] = b"\r\n";

pub(in crate::link) struct Chunked {
    pub(super) chunks: Chunks,
    /// The HTTP chunk of which the socket has taken a part.
    begun: Option<PartialChunk>,
}

/// An HTTP chunk: a head, whole generated chunks, and an end.
#[derive(Clone, Copy)]
struct PartialChunk {
    content: u16,
    /// How much of all three the socket has taken.
    taken: u16,
}

const _: () = assert!(FRAMES * TIMED_MAX + HEAD + END.len() <= u16::MAX as usize);

impl Chunked {
    pub(super) fn new(chunks: Chunks) -> Self {
        Self { chunks, begun: None }
    }

    pub(super) fn is_between(&self) -> bool {
        self.begun.is_none()
    }

    pub(super) fn send<P: LinkPort>(
        &mut self,
        call: &mut Call<'_, P>,
        connection: &mut Connection,
        limit: Limit,
    ) -> Result<Option<CallResult>, Outcome> {
        let mut begun = match self.begun {
            Some(begun) => begun,
            None => match self.chunks.due_bytes(limit.time) {
                0 => return Ok(None),
                content => PartialChunk { content: content as u16, taken: 0 },
            },
        };
        let (head, from) = begun.head();
        let mut parts = Parts::new();
        parts.add(&head[(from + usize::from(begun.taken)).min(HEAD)..]);
        self.chunks.offer(0..begun.content_left(), &mut parts);
        parts.add(begun.end_left());
        let offered = parts.bytes();
        let taken = call.send(&connection.end, &parts)?;
        let mut result = CallResult { offered, taken, ..CallResult::default() };
        self.chunks.take(begun.take(taken), 0, &mut result);
        self.begun = (begun.taken > 0 && taken < offered).then_some(begun);
        Ok(Some(result))
    }
}

impl PartialChunk {
    /// Its head, and where it begins.
    fn head(&self) -> ([u8; HEAD], usize) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut head = [0; HEAD];
        let (mut from, mut left) = (HEAD - END.len(), self.content);
        head[from..].copy_from_slice(END);
        while left > 0 {
            from -= 1;
            head[from] = DIGITS[usize::from(left % 16)];
            left /= 16;
        }
        (head, from)
    }

    /// How many bytes behind the head the socket has taken.
    fn behind_head(&self) -> usize {
        let (_, from) = self.head();
        usize::from(self.taken).saturating_sub(HEAD - from)
    }

    fn content_left(&self) -> usize {
        usize::from(self.content).saturating_sub(self.behind_head())
    }

    fn end_left(&self) -> &'static [u8] {
        &END[self.behind_head().saturating_sub(self.content.into())..]
    }

    /// Notes the bytes that the socket has taken. Returns how many of them are content.
    fn take(&mut self, taken: usize) -> usize {
        let before = self.content_left();
        self.taken += taken as u16;
        before - self.content_left()
    }
}
