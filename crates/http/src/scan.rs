//! Finds the end of a request's head, byte by byte, and refuses ambiguous input.
//!
//! Promise: before parsing, every line ends with CR LF, no line continues the previous one, no byte
//! is a control character, and the request line, the fields and their number are within their
//! limits. Each byte is scanned once, so slow senders cost no more than fast ones.

use super::fault::Fault;
use super::limits::Limits;

/// The state of a scan.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct HeadScan {
    at: usize,
    line_start: usize,
    fields_start: usize,
    lines: usize,
}

/// A complete head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HeadEnd {
    /// Its length, with the empty line.
    pub(super) len: usize,
    /// Number of its fields.
    pub(super) fields: usize,
}

impl HeadScan {
    /// Continues in `bytes`, which begin with the head and have only grown since the last call.
    pub(super) fn advance(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
    ) -> Result<Option<HeadEnd>, Fault> {
        while let Some(&byte) = bytes.get(self.at) {
            let after_cr = self.at > 0 && bytes[self.at - 1] == b'\r';
            match byte {
                b'\n' if !after_cr => return Err(Fault::BareLineEnd),
                _ if after_cr && byte != b'\n' => return Err(Fault::BareLineEnd),
                b' ' | b'\t' if self.at == self.line_start => {
                    return Err(if self.lines == 0 { Fault::Grammar } else { Fault::Folded });
                }
                0..=8 | 0x0b | 0x0c | 0x0e..=0x1f | 0x7f => return Err(Fault::Control),
                _ => {}
            }
            self.at += 1;
            if byte == b'\n' && self.end_of_line(limits)? {
                return Ok(Some(HeadEnd { len: self.at, fields: self.lines - 1 }));
            }
        }
        self.check_length(limits)?;
        Ok(None)
    }

    /// Whether this was the empty line at the end.
    fn end_of_line(&mut self, limits: &Limits) -> Result<bool, Fault> {
        self.check_length(limits)?;
        let is_empty = self.at - self.line_start == LINE_END;
        match (self.lines, is_empty) {
            (0, true) => return Err(Fault::Grammar),
            (0, false) => self.fields_start = self.at,
            (_, true) => return Ok(true),
            (lines, false) if lines > limits.fields_max => return Err(Fault::ManyFields),
            (_, false) => {}
        }
        self.lines += 1;
        self.line_start = self.at;
        Ok(false)
    }

    fn check_length(&self, limits: &Limits) -> Result<(), Fault> {
        if self.lines == 0 {
            let too_long = self.at - self.line_start > limits.request_line_max + LINE_END;
            return if too_long { Err(Fault::LongLine) } else { Ok(()) };
        }
        let fields = self.at - self.fields_start;
        if fields > limits.fields_bytes_max + LINE_END { Err(Fault::ManyFields) } else { Ok(()) }
    }
}

/// CR and LF.
const LINE_END: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scan(bytes: &[u8]) -> Result<Option<HeadEnd>, Fault> {
        HeadScan::default().advance(bytes, &Limits::default())
    }

    #[test]
    fn a_head_ends_at_its_empty_line() {
        let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nB: c\r\n\r\nGET /next";
        assert_eq!(scan(bytes), Ok(Some(HeadEnd { len: bytes.len() - 9, fields: 2 })));
        assert_eq!(scan(b"GET / HTTP/1.1\r\n\r\n"), Ok(Some(HeadEnd { len: 18, fields: 0 })));
        assert_eq!(scan(b"GET / HTTP/1.1\r\nHost: a\r\n"), Ok(None));
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for (bytes, fault) in [
            (&b"GET / HTTP/1.1\nHost: a\r\n\r\n"[..], Fault::BareLineEnd),
            (b"GET / HTTP/1.1\r\nHost: a\n\r\n", Fault::BareLineEnd),
            (b"GET / HTTP/1.1\r\nHost: a\r\n\n", Fault::BareLineEnd),
            (b"GET / HTTP/1.1\r\nHost: a\rB: c\r\n\r\n", Fault::BareLineEnd),
            (b"GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", Fault::BareLineEnd),
            (b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", Fault::Folded),
            (b"GET / HTTP/1.1\r\n\tHost: a\r\n\r\n", Fault::Folded),
            (b"GET / HTTP/1.1\r\nHost: a\0\r\n\r\n", Fault::Control),
            (b"GET / HTTP/1.1\r\nHost: \x1b\r\n\r\n", Fault::Control),
            (b"\x7f", Fault::Control),
            (b" GET", Fault::Grammar),
            (b"\r\n", Fault::Grammar),
        ] {
            assert_eq!(scan(bytes), Err(fault), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn the_line_and_the_fields_keep_their_bounds_exactly() {
        let limits = Limits::default();
        let line = |len: usize| format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(len - 14));
        assert!(scan(line(limits.request_line_max).as_bytes()).is_ok());
        assert_eq!(scan(line(limits.request_line_max + 1).as_bytes()), Err(Fault::LongLine));
        assert_eq!(scan(&vec![b'a'; limits.request_line_max + 3]), Err(Fault::LongLine));

        let fields = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(count));
        assert!(scan(fields(limits.fields_max).as_bytes()).is_ok());
        assert_eq!(scan(fields(limits.fields_max + 1).as_bytes()), Err(Fault::ManyFields));

        let wide = |len: usize| format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "b".repeat(len - 5));
        assert!(scan(wide(limits.fields_bytes_max).as_bytes()).is_ok());
        assert_eq!(scan(wide(limits.fields_bytes_max + 1).as_bytes()), Err(Fault::ManyFields));
        let open = format!("GET / HTTP/1.1\r\nA: {}", "b".repeat(limits.fields_bytes_max));
        assert_eq!(scan(open.as_bytes()), Err(Fault::ManyFields));
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_the_bytes_arrive(
            bytes in
                "(GET / HTTP/1.1|[ -~]{0,9})(\r\n|\n|\r)([A-B]: [c-d\t ]{0,5}(\r\n|\n| )){0,3}\r\n",
            cut in 0usize..60,
        ) {
            let bytes = bytes.as_bytes();
            let mut scan = HeadScan::default();
            let limits = Limits::default();
            let first = scan.advance(&bytes[..cut.min(bytes.len())], &limits);
            let in_two = match first {
                Ok(None) => scan.advance(bytes, &limits),
                ended => ended,
            };
            prop_assert_eq!(in_two, HeadScan::default().advance(bytes, &limits));
        }
    }
}
