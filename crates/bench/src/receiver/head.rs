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
    /// The highest rate of a variable one, as Tactus says it in bit/s.
    pub(crate) peak: Option<u64>,
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
        let field = |name: &str| {
            let mut fields = lines.clone().filter_map(|line| line.split_once(':'));
            Some(fields.find(|field| field.0.eq_ignore_ascii_case(name))?.1.trim())
        };
        let peak = field("tactus-rate")
            .and_then(|value| value.split("; peak=").nth(1))
            .and_then(|peak| peak.parse().ok());
        let length = field("content-length")
            .and_then(|value| value.parse().ok())
            // RFC 9110, section 8.6: an answer 204 has neither a body nor a length.
            .or((status == 204).then_some(0))
            .ok_or_else(|| format!("status {status} without a Content-Length"))?;
        Ok(Some(Self { status, length, size: size + 4, peak }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_gives_status_length_and_where_the_body_begins() {
        let text = b"HTTP/1.1 206 Partial Content\r\nServer: x\r\ncontent-LENGTH: 17\r\n\r\nbody";
        let head = Head { status: 206, length: 17, size: text.len() - 4, peak: None };
        assert_eq!(Head::parse(text), Ok(Some(head)));
        for end in 0..head.size {
            assert_eq!(Head::parse(&text[..end]), Ok(None), "{end} bytes");
        }
    }

    #[test]
    fn a_variable_rate_names_its_peak() {
        let peak = |rate: &str| {
            let text =
                format!("HTTP/1.1 200 OK\r\nTactus-Rate: {rate}\r\nContent-Length: 1\r\n\r\n");
            Head::parse(text.as_bytes()).unwrap().unwrap().peak
        };
        assert_eq!(peak("121251; mean=2037631; peak=7761267"), Some(7_761_267));
        assert_eq!(peak("8800000"), None);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        assert!(Head::parse(b"SIP/2.0 200 OK\r\n\r\n").is_err());
        assert!(Head::parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
        let no_content = b"HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n";
        let head = Head { status: 204, length: 0, size: no_content.len(), peak: None };
        assert_eq!(Head::parse(no_content), Ok(Some(head)));
        assert!(Head::parse(&[b'x'; HEAD_MAX]).is_err());
    }
}
