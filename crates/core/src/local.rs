//! Requests and answers of local clients, as words of shared memory.
//!
//! Promise: any words decode to a request that is valid in itself, or to an error number; nothing
//! is trusted beyond what was checked here, and the rest (handles, lengths) is checked by who
//! knows them. The layout is in `docs/design/local-clients.md`.

pub mod stream;

use crate::units::{Bytes, MonoTime};

/// Version of the layout and of the messages.
pub const VERSION: u32 = 1;

/// Words of a request.
pub const REQUEST_WORDS: usize = 8;
/// Words of an answer.
pub const ANSWER_WORDS: usize = 4;
/// Requests in the ring, and answers in theirs.
pub const RING_SLOTS: u32 = 256;

/// Where the parts of the shared memory begin.
pub mod layout {
    use super::{ANSWER_WORDS, REQUEST_WORDS, RING_SLOTS};

    /// Number of requests pushed, written by the client.
    pub const REQUESTS_PUSHED: usize = 0;
    /// Number of requests taken, written by the server.
    pub const REQUESTS_TAKEN: usize = 128;
    /// Number of answers pushed, written by the server.
    pub const ANSWERS_PUSHED: usize = 256;
    /// Number of answers taken, written by the client.
    pub const ANSWERS_TAKEN: usize = 384;
    /// Set while the server sleeps.
    pub const SERVER_ASLEEP: usize = 512;
    /// Set while the client sleeps.
    pub const CLIENT_ASLEEP: usize = 640;
    /// The processor of the server, by [`processor_word`](super::processor_word), written by the
    /// server.
    pub const SERVER_PROCESSOR: usize = 768;
    /// The processor on which the client was when it last rang or woke up, written by the client. A
    /// hint: whatever is there, only this client waits longer or shorter.
    pub const CLIENT_PROCESSOR: usize = 896;
    /// The slots of the requests.
    pub const REQUEST_SLOTS: usize = 4096;
    /// The slots of the answers.
    pub const ANSWER_SLOTS: usize = REQUEST_SLOTS + RING_SLOTS as usize * REQUEST_WORDS * 8;
    /// The client's data.
    pub const DATA: usize = 65_536;

    /// The ring of requests: its two numbers and its slots.
    pub const REQUESTS: [usize; 3] = [REQUESTS_PUSHED, REQUESTS_TAKEN, REQUEST_SLOTS];
    /// The ring of answers: its two numbers and its slots.
    pub const ANSWERS: [usize; 3] = [ANSWERS_PUSHED, ANSWERS_TAKEN, ANSWER_SLOTS];

    const _: () = assert!(ANSWER_SLOTS + RING_SLOTS as usize * ANSWER_WORDS * 8 <= DATA);
}

/// A processor as a word of the shared memory: its number and one, so that zero is none.
#[must_use]
pub const fn processor_word(processor: u32) -> u64 {
    processor as u64 + 1
}

/// What a request wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Only an answer.
    Nothing,
    /// Bytes of a title, copied into the client's data.
    Read,
    /// Bytes of the client's data, appended to a title that it writes.
    Write,
    /// Makes all bytes written so far durable.
    Sync,
    /// Makes a title of all bytes written so far; the offset is its modification time in
    /// nanoseconds since 1970, or zero.
    Publish,
    /// Bytes of a title that is built in memory, up to the offset, appended to the title. They are
    /// final.
    WriteBack,
    /// Memory, quota and space for a title that is built in memory, as many bytes as the offset
    /// says.
    Grow,
}

impl Operation {
    const fn code(self) -> u64 {
        match self {
            Self::Nothing => 1,
            Self::Read => 2,
            Self::Write => 16,
            Self::Sync => 17,
            Self::Publish => 18,
            Self::WriteBack => 19,
            Self::Grow => 20,
        }
    }

    /// Whether its handle is that of a writer: the control side carries it out.
    #[must_use]
    pub const fn is_of_writer(self) -> bool {
        match self {
            Self::Nothing | Self::Read => false,
            Self::Write | Self::Sync | Self::Publish | Self::WriteBack | Self::Grow => true,
        }
    }
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Comes back with the answer.
    pub token: u64,
    /// What it wants.
    pub operation: Operation,
    /// An open title, by the number that its opening has returned.
    pub handle: u32,
    /// The first byte of the title.
    pub offset: Bytes,
    /// Number of bytes.
    pub len: u32,
    /// Where they go, from the beginning of the client's data.
    pub at: u64,
    /// When it takes effect; zero: at once.
    pub when: MonoTime,
}

impl Request {
    /// Whether it takes effect at a moment, and not at once.
    #[must_use]
    pub const fn has_moment(&self) -> bool {
        self.when.0 > 0
    }

    /// Its words.
    #[must_use]
    pub const fn encode(&self) -> [u64; REQUEST_WORDS] {
        [
            self.token,
            self.operation.code() | (self.handle as u64) << 32,
            self.offset.0,
            self.len as u64,
            self.at,
            self.when.0,
            0,
            0,
        ]
    }

    /// The request of these words.
    ///
    /// # Errors
    /// `ENOSYS` for an unknown operation, `EINVAL` if a number does not fit or a word that must be
    /// zero is not.
    pub fn decode(words: &[u64; REQUEST_WORDS]) -> Result<Self, u32> {
        let [token, what, offset, len, at, when, zero, also_zero] = *words;
        let operation = match what & 0xff {
            1 => Operation::Nothing,
            2 => Operation::Read,
            16 => Operation::Write,
            17 => Operation::Sync,
            18 => Operation::Publish,
            19 => Operation::WriteBack,
            20 => Operation::Grow,
            _ => return Err(ENOSYS),
        };
        let len = u32::try_from(len).map_err(|_| EINVAL)?;
        let is_possible = what & 0xffff_ff00 == 0
            && (zero | also_zero) == 0
            && offset.checked_add(u64::from(len)).is_some_and(|end| end <= i64::MAX as u64)
            && at.checked_add(u64::from(len)).is_some()
            && when <= i64::MAX as u64;
        if !is_possible {
            return Err(EINVAL);
        }
        let handle = (what >> 32) as u32;
        let (offset, when) = (Bytes(offset), MonoTime(when));
        Ok(Self { token, operation, handle, offset, len, at, when })
    }
}

/// One answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The token of its request.
    pub token: u64,
    /// Number of bytes, or the error number.
    pub result: Result<u32, u32>,
    /// When it took effect.
    pub at: MonoTime,
}

impl Answer {
    /// Its words.
    #[must_use]
    pub const fn encode(&self) -> [u64; ANSWER_WORDS] {
        let result = match self.result {
            Ok(bytes) => (bytes as u64) << 32,
            // An error number of zero would be read as success.
            Err(0) => EIO as u64,
            Err(errno) => errno as u64,
        };
        [self.token, result, self.at.0, 0]
    }

    /// The answer of these words.
    #[must_use]
    pub const fn decode(words: &[u64; ANSWER_WORDS]) -> Self {
        let [token, result, at, _] = *words;
        let result = match result as u32 {
            0 => Ok((result >> 32) as u32),
            errno => Err(errno),
        };
        Self { token, result, at: MonoTime(at) }
    }
}

const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSYS: u32 = 38;

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Request = Request {
        token: 7,
        operation: Operation::Read,
        handle: u32::MAX,
        offset: Bytes(5 << 40),
        len: 1 << 20,
        at: 4096,
        when: MonoTime(123),
    };

    #[test]
    fn requests_and_answers_come_back_as_they_were() {
        assert_eq!(Request::decode(&READ.encode()), Ok(READ));
        use Operation::{Grow, Nothing, Publish, Sync, Write, WriteBack};
        for operation in [Nothing, Write, Sync, Publish, WriteBack, Grow] {
            let request = Request { operation, ..READ };
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        for result in [Ok(0), Ok(u32::MAX), Err(1), Err(u32::MAX)] {
            let answer = Answer { token: u64::MAX, result, at: MonoTime(9) };
            assert_eq!(Answer::decode(&answer.encode()), answer);
        }
    }

    #[test]
    fn words_that_are_no_request_are_refused() {
        let refused = |word: usize, value: u64| {
            let mut words = READ.encode();
            words[word] = value;
            Request::decode(&words).unwrap_err()
        };
        assert_eq!(refused(1, 0), ENOSYS);
        assert_eq!(refused(1, 99), ENOSYS);
        assert_eq!(refused(1, 0x102), EINVAL, "bits without a meaning");
        assert_eq!(refused(2, u64::MAX), EINVAL, "the end would wrap");
        assert_eq!(refused(2, i64::MAX as u64), EINVAL, "no file is that long");
        assert_eq!(refused(3, 1 << 32), EINVAL);
        assert_eq!(refused(4, u64::MAX), EINVAL);
        assert_eq!(refused(5, u64::MAX), EINVAL);
        assert_eq!(refused(6, 1), EINVAL);
        assert_eq!(refused(7, 1), EINVAL);
    }
}
