//! Streams and recordings of local clients: the layout of a ring of bytes, and how one ends.

/// Number of bytes written, written by the side that sends: the server of a stream, the client of a
/// recording.
pub const WRITTEN: usize = 0;
/// Number of bytes given back, written by the other side.
pub const TAKEN: usize = 128;
/// How the stream has ended, written by the server; zero while it runs.
pub const END: usize = 256;
/// Of a recording: 1 when no more bytes come, written by the client.
pub const CLOSED: usize = 384;
/// Of a recording: number of bytes that a power failure does not take any more, written by the
/// server.
pub const DURABLE: usize = 512;
/// Of a recording: how often its client was faster than its rate, written by the server.
pub const OVERRUNS: usize = 640;
/// Of a recording: how often its client was slower than its rate, written by the server.
pub const UNDERRUNS: usize = 768;
/// The bytes, up to the end of the memory.
pub const BYTES: usize = 4096;

/// How a stream has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamEnd {
    /// All its bytes are in the ring; of a recording: in a title.
    Complete,
    /// It was broken off, with this error number.
    Failed(u32),
}

impl StreamEnd {
    /// Its word.
    #[must_use]
    pub const fn encode(self) -> u64 {
        match self {
            Self::Complete => ENDED,
            Self::Failed(errno) => ENDED | errno as u64,
        }
    }

    /// The end of this word; `None` while the stream runs.
    #[must_use]
    pub const fn decode(word: u64) -> Option<Self> {
        match (word & ENDED != 0, word as u32) {
            (false, _) => None,
            (true, 0) => Some(Self::Complete),
            (true, errno) => Some(Self::Failed(errno)),
        }
    }
}

/// Tells an end from a stream that runs.
const ENDED: u64 = 1 << 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_comes_back_as_it_was_and_a_new_ring_has_none() {
        for end in [StreamEnd::Complete, StreamEnd::Failed(5), StreamEnd::Failed(u32::MAX)] {
            assert_eq!(StreamEnd::decode(end.encode()), Some(end));
        }
        assert_eq!(StreamEnd::decode(0), None);
    }
}
