//! The little of HTTP that a client needs: status, Content-Length, where the body begins.
//!
//! Promise: an answer that it does not understand is an error that quotes it, never a guess.

/// The longest head that is read.
pub(crate) const HEAD_MAX: usize = 16 << 10;

/// The head of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    /// The status code.
    pub(crate) status: u16,
    /// The length of the body.
    pub(crate) length: u64,
    /// The length of the head itself, its empty line included.
    pub(crate) size: usize,
}

impl Head {
    /// Reads the head at the start of `text`; `None` while it is not complete.
    pub(crate) fn parse(text: &[u8]) -> Result<Option<Self>, String> {
        let Some(size) = text.windows(4).position(|four| four == b"\r\n\r\n") else {
            return match text.len() < HEAD_MAX {
                true => Ok(None),
                false => Err(format!("a head of more than {HEAD_MAX} bytes")),
            };
        };
        let head = String::from_utf8_lossy(&text[..size]);
        let mut lines = head.split("\r\n");
        let status = lines
            .next()
            .and_then(|line| line.strip_prefix("HTTP/1.1 "))
            .and_then(|rest| rest.get(..3)?.parse().ok())
            .ok_or_else(|| format!("not a status line: {head:.80}"))?;
        let length = lines
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .and_then(|(_, value)| value.trim().parse().ok())
            // RFC 9110, section 8.6: an answer 204 has neither a body nor a length.
            .or((status == 204).then_some(0))
            .ok_or_else(|| format!("status {status} without a Content-Length"))?;
        Ok(Some(Self { status, length, size: size + 4 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_gives_status_length_and_where_the_body_begins() {
        let text = b"HTTP/1.1 206 Partial Content\r\nServer: x\r\ncontent-LENGTH: 17\r\n\r\nbody";
        let head = Head { status: 206, length: 17, size: text.len() - 4 };
        assert_eq!(Head::parse(text), Ok(Some(head)));
        for end in 0..head.size {
            assert_eq!(Head::parse(&text[..end]), Ok(None), "{end} bytes");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        assert!(Head::parse(b"SIP/2.0 200 OK\r\n\r\n").is_err());
        assert!(Head::parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
        let no_content = b"HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n";
        let head = Head { status: 204, length: 0, size: no_content.len() };
        assert_eq!(Head::parse(no_content), Ok(Some(head)));
        assert!(Head::parse(&[b'x'; HEAD_MAX]).is_err());
    }
}
