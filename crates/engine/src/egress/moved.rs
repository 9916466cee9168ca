//! Streams whose clock has moved, with the message to the delivery server still to send.
//!
//! Promise: each stream is listed once, however often its clock moves, so these messages never need
//! more room in the ring than one for each stream.

/// A list of streams without repeats.
pub(crate) struct StreamSet {
    streams: Vec<u32>,
    is_listed: Vec<bool>,
}

impl StreamSet {
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
