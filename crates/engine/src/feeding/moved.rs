//! Streams whose clock has been moved, and whose delivery server has not been told.
//!
//! Promise: each is listed once, however often its clock moves, so that telling never needs more room
//! in the ring than one message for each stream.

/// A list of streams without repeats.
pub(crate) struct Moved {
    streams: Vec<u32>,
    is_listed: Vec<bool>,
}

impl Moved {
    pub(crate) fn new(streams: usize) -> Self {
        Self { streams: Vec::with_capacity(streams), is_listed: vec![false; streams] }
    }

    pub(crate) fn add(&mut self, stream: u32) {
        if !std::mem::replace(&mut self.is_listed[stream as usize], true) {
            self.streams.push(stream);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        let stream = self.streams.pop()?;
        self.is_listed[stream as usize] = false;
        Some(stream)
    }
}
