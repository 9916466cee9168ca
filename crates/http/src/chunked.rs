//! The chunked coding (RFC 9112 section 7.1), read strictly, to find where a body ends.
//!
//! Promise: it consumes exactly the bytes of the body and refuses the first invalid byte. Sizes are
//! checked, extensions and trailers are bounded. The caller discards the content.

/// Most digits of a chunk's size: 64 bits.
const SIZE_DIGITS_MAX: u32 = 16;

/// Most bytes of the extensions of one chunk, and of all chunks together. Extensions are not in
/// use.
const EXTENSION_BYTES_MAX: u32 = 256;

/// Most bytes of the trailer section.
const TRAILER_BYTES_MAX: u32 = 4096;

/// The state of the parser between two bytes of a chunked body.
#[derive(Debug)]
pub(super) struct Chunked {
    state: State,
    /// Bytes of content so far, with those of the current chunk.
    content: u64,
    extension_bytes: u32,
    trailer_bytes: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Size { value: u64, digits: u32 },
    Extension { size: u64 },
    SizeEnd { size: u64 },
    Data { left: u64 },
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    LastLf,
    Done,
}

/// A byte that is invalid in a chunked body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BadChunk;

impl Chunked {
    /// A parser at the start of a body.
    pub(super) fn new() -> Self {
        let state = State::Size { value: 0, digits: 0 };
        Self { state, content: 0, extension_bytes: 0, trailer_bytes: 0 }
    }

    /// Whether the body has ended.
    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Bytes of content so far, with those of the current chunk.
    pub(super) fn content(&self) -> u64 {
        self.content
    }

    /// Consumes bytes of the body from the front of `bytes`, and returns how many they were.
    pub(super) fn handle(&mut self, bytes: &[u8]) -> Result<usize, BadChunk> {
        let mut at = 0;
        while at < bytes.len() && !self.is_done() {
            let content = self.content_next().min((bytes.len() - at) as u64);
            self.took(content);
            at += content as usize;
            at += self.words(&bytes[at..])?;
        }
        Ok(at)
    }

    /// How many bytes of content come next; zero if the next byte belongs to the coding.
    pub(super) fn content_next(&self) -> u64 {
        match self.state {
            State::Data { left } => left,
            _ => 0,
        }
    }

    /// Records that the caller has read the next `count` bytes of content itself.
    pub(super) fn took(&mut self, count: u64) {
        let State::Data { left } = self.state else {
            assert_eq!(count, 0, "no content comes here");
            return;
        };
        assert!(count <= left, "no more than the chunk has");
        self.state = match left - count {
            0 => State::DataCr,
            left => State::Data { left },
        };
    }

    /// Consumes bytes of the coding from the front of `bytes`, up to the next byte of content, and
    /// returns how many they were.
    pub(super) fn words(&mut self, bytes: &[u8]) -> Result<usize, BadChunk> {
        let mut at = 0;
        while at < bytes.len() && !self.is_done() && self.content_next() == 0 {
            self.state = self.next(bytes[at])?;
            at += 1;
        }
        Ok(at)
    }

    fn next(&mut self, byte: u8) -> Result<State, BadChunk> {
        match (self.state, byte) {
            (State::Size { value, digits }, _) if byte.is_ascii_hexdigit() => {
                if digits == SIZE_DIGITS_MAX {
                    return Err(BadChunk);
                }
                let digit = (byte as char).to_digit(16).map_or(0, u64::from);
                Ok(State::Size { value: value << 4 | digit, digits: digits + 1 })
            }
            (State::Size { digits: 0, .. }, _) => Err(BadChunk),
            (State::Size { value, .. }, b'\r') => Ok(State::SizeEnd { size: value }),
            (State::Size { value, .. }, b';') => self.extension(value),
            (State::Extension { size }, b'\r') => Ok(State::SizeEnd { size }),
            // Tokens only: a quoted string could hide a line end, and spaces are not allowed.
            (State::Extension { size }, _) if is_token(byte) || b";=".contains(&byte) => {
                self.extension(size)
            }
            (State::SizeEnd { size: 0 }, b'\n') => Ok(State::TrailerStart),
            (State::SizeEnd { size }, b'\n') => {
                self.content = self.content.checked_add(size).ok_or(BadChunk)?;
                Ok(State::Data { left: size })
            }
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => Ok(State::Size { value: 0, digits: 0 }),
            (State::TrailerStart, b'\r') => Ok(State::LastLf),
            (State::TrailerStart | State::TrailerName, _) if is_token(byte) => {
                self.trailer(State::TrailerName)
            }
            (State::TrailerName, b':') => self.trailer(State::TrailerValue),
            (State::TrailerValue, b'\r') => Ok(State::TrailerLf),
            (State::TrailerValue, b'\t' | b' '..=b'~' | 0x80..) => {
                self.trailer(State::TrailerValue)
            }
            (State::TrailerLf, b'\n') => Ok(State::TrailerStart),
            (State::LastLf, b'\n') => Ok(State::Done),
            _ => Err(BadChunk),
        }
    }

    fn extension(&mut self, size: u64) -> Result<State, BadChunk> {
        self.extension_bytes += 1;
        let fits = self.extension_bytes <= EXTENSION_BYTES_MAX;
        if fits { Ok(State::Extension { size }) } else { Err(BadChunk) }
    }

    fn trailer(&mut self, next: State) -> Result<State, BadChunk> {
        self.trailer_bytes += 1;
        if self.trailer_bytes <= TRAILER_BYTES_MAX { Ok(next) } else { Err(BadChunk) }
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The content so far and the bytes after the body, or the fault.
    fn read(bytes: &[u8]) -> Result<(u64, &[u8]), BadChunk> {
        let mut chunked = Chunked::new();
        let taken = chunked.handle(bytes)?;
        assert!(chunked.is_done(), "{:?} does not end", String::from_utf8_lossy(bytes));
        Ok((chunked.content(), &bytes[taken..]))
    }

    #[test]
    fn a_body_ends_where_it_ends() {
        assert_eq!(read(b"0\r\n\r\nGET"), Ok((0, &b"GET"[..])));
        assert_eq!(read(b"3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\nX"), Ok((13, &b"X"[..])));
        assert_eq!(read(b"1;a=b;c\r\nx\r\n0;d\r\nT: v\r\nU:\r\n\r\n"), Ok((1, &b""[..])));
    }

    #[test]
    fn h08_sizes_and_line_ends_are_strict() {
        for bytes in [
            &b"10000000000000001\r\n"[..],
            b" 3\r\nabc\r\n",
            b"3 \r\nabc\r\n",
            b"3\nabc\r\n",
            b"3\r\nabc\n",
            b"3\r\nabcd\r\n",
            b"3\r\nabc0\r\n\r\n",
            b"\r\n",
            b"+3\r\n",
            b"0x3\r\n",
            b"-1\r\n",
            b"g\r\n",
            b"3\r\r\nabc",
            b"0\r\n\n",
            b"0\r\nT: v\n",
            b"0\r\n T: v\r\n",
            b"0\r\nT : v\r\n",
            b"0\r\nT: \0\r\n",
            b"ffffffffffffffff\r\n",
        ] {
            let mut chunked = Chunked::new();
            let mut result = chunked.handle(bytes);
            if bytes.starts_with(b"ffff") {
                // The largest size is well formed; a second chunk overflows the sum.
                assert_eq!((result, chunked.content()), (Ok(bytes.len()), u64::MAX));
                chunked.state = State::SizeEnd { size: 1 };
                result = chunked.handle(b"\n");
            }
            assert_eq!(result, Err(BadChunk), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn h09_extensions_are_short_and_unquoted() {
        let with = |extension: &str| format!("1;{extension}\r\nx\r\n0\r\n\r\n");
        assert!(read(with(&"a".repeat(255)).as_bytes()).is_ok());
        assert_eq!(read(with(&"a".repeat(256)).as_bytes()), Err(BadChunk));
        for extension in ["a=\"b\"", "a=\"", "a b", "a\tb", "a\u{e9}"] {
            assert_eq!(read(with(extension).as_bytes()), Err(BadChunk), "{extension}");
        }
        let many = "1;aaaaaaaa\r\nx\r\n".repeat(100);
        assert_eq!(read(many.as_bytes()), Err(BadChunk), "they are bounded in all chunks together");
    }

    #[test]
    fn trailers_are_bounded() {
        let long = format!("0\r\nT: {}\r\n\r\n", "v".repeat(5000));
        assert_eq!(read(long.as_bytes()), Err(BadChunk));
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_the_bytes_arrive(
            bytes in "([0-3]\r\n[a-z]{0,3}(\r\n|\n)){0,4}(0\r\n)?(T: v\r\n)?\r\nGET",
            cut in 0usize..40
        ) {
            let whole = {
                let mut c = Chunked::new();
                let r = c.handle(bytes.as_bytes());
                (r, c.is_done())
            };
            let cut = cut.min(bytes.len());
            let mut chunked = Chunked::new();
            let first = chunked.handle(&bytes.as_bytes()[..cut]);
            let both = match first {
                Ok(taken) if !chunked.is_done() => {
                    chunked.handle(&bytes.as_bytes()[cut..]).map(|more| taken + more)
                }
                ended => ended,
            };
            prop_assert_eq!((both, chunked.is_done()), whole);
        }
    }
}
