//! The parts of one call, in order.

use super::FRAMES;

/// Each frame is a head and a piece of a block; a part beyond this number waits for the next call.
const PARTS: usize = 2 * FRAMES;

/// The parts of one call.
pub(super) struct Parts<'a> {
    parts: [&'a [u8]; PARTS],
    count: usize,
    bytes: usize,
}

impl<'a> Parts<'a> {
    pub(super) fn new() -> Self {
        Self { parts: [&[]; PARTS], count: 0, bytes: 0 }
    }

    /// Adds a part, unless it is empty or there is no room. Returns its length.
    pub(super) fn add(&mut self, part: &'a [u8]) -> usize {
        if let Some(place) = self.parts.get_mut(self.count).filter(|_| !part.is_empty()) {
            *place = part;
            self.count += 1;
            self.bytes += part.len();
        }
        part.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn as_slice(&self) -> &[&'a [u8]] {
        &self.parts[..self.count]
    }
}
