//! Several ranges in one answer: `multipart/byteranges` (RFC 9110 section 14.6).
//!
//! Promise: the announced length is the sum of all bytes. This file generates only the text between
//! the parts; the parts themselves go from the disk to the socket.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

/// The text around the parts of one answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Multipart {
    boundary: String,
    /// The text before each part.
    heads: Vec<Vec<u8>>,
    /// The text after the last part.
    tail: Vec<u8>,
}

impl Multipart {
    /// The text for `parts` of a title of `len` bytes.
    pub(super) fn new(parts: &[Range<u64>], len: u64, media_type: &str) -> Self {
        // The boundary is drawn later than any file is stored, so no stored file can contain it on
        // purpose.
        let boundary = format!("{:016x}{:016x}", random(), random());
        let head = |(index, part): (usize, &Range<u64>)| {
            let line_end = if index == 0 { "" } else { "\r\n" };
            let content_range = content_range(part, len);
            format!(
                "{line_end}--{boundary}\r\nContent-Type: {media_type}\r\n\
                 Content-Range: {content_range}\r\n\r\n"
            )
            .into_bytes()
        };
        let heads = parts.iter().enumerate().map(head).collect();
        let tail = format!("\r\n--{boundary}--\r\n").into_bytes();
        Self { boundary, heads, tail }
    }

    /// The media type of the whole answer.
    pub(super) fn media_type(&self) -> String {
        format!("multipart/byteranges; boundary={}", self.boundary)
    }

    /// The total length of the text, without the parts.
    pub(super) fn words_len(&self) -> u64 {
        let heads: usize = self.heads.iter().map(Vec::len).sum();
        (heads + self.tail.len()) as u64
    }

    /// The text before each part, and after the last one.
    pub(super) fn into_words(self) -> (Vec<Vec<u8>>, Vec<u8>) {
        (self.heads, self.tail)
    }
}

/// The value of `Content-Range` for a part (RFC 9110 section 14.4).
pub(super) fn content_range(part: &Range<u64>, len: u64) -> String {
    format!("bytes {}-{}/{len}", part.start, part.end - 1)
}

/// 64 bits from the standard library's hash keys, which the system draws once for each thread and
/// which differ for each call.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_rfc() {
        let words = Multipart::new(&[0..10, 90..100], 100, "video/mp2t");
        let boundary = words.boundary.clone();
        assert_eq!(words.media_type(), format!("multipart/byteranges; boundary={boundary}"));
        let len = words.words_len();
        let (heads, tail) = words.into_words();
        let all = [&heads[0][..], &heads[1], &tail].concat();
        assert_eq!(all.len() as u64, len);
        let expected = format!(
            "--{boundary}\r\nContent-Type: video/mp2t\r\nContent-Range: bytes 0-9/100\r\n\r\n\
             \r\n--{boundary}\r\nContent-Type: video/mp2t\r\nContent-Range: bytes 90-99/100\r\n\r\n\
             \r\n--{boundary}--\r\n"
        );
        assert_eq!(String::from_utf8(all).unwrap(), expected);
    }

    #[test]
    fn every_answer_has_its_own_boundary() {
        let boundaries: std::collections::HashSet<_> =
            (0..100).map(|_| Multipart::new(&[], 1, "").boundary).collect();
        assert_eq!(boundaries.len(), 100);
    }
}
