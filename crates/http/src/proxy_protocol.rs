//! The PROXY protocol, versions 1 and 2, by HAProxy's `proxy-protocol.txt`: a header with the
//! client's address at the start of a connection.
//!
//! Promise: a header has one interpretation or is refused; it is never longer than
//! [`HEADER_BYTES_MAX`]. This file parses available bytes without waiting. Trust in the sender is
//! decided elsewhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest header: version 2 with additional values (certificates, names).
pub(super) const HEADER_BYTES_MAX: usize = 4096;

/// Longest header of version 1, with its line end (section 2.1).
const V1_BYTES_MAX: usize = 107;

const V1: &[u8] = b"PROXY ";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, length.
const V2_HEAD: usize = 16;

/// A complete header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// Its length.
    pub(super) len: usize,
    /// The client of the proxy; none if the proxy itself is the client, or does not have the
    /// client's address.
    pub(super) source: Option<SocketAddr>,
}

/// The bytes are not a PROXY protocol header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MalformedHeader;

/// The header at the beginning of `bytes`; none if it is incomplete.
///
/// # Errors
/// When the bytes are not the beginning of a header.
pub(super) fn header(bytes: &[u8]) -> Result<Option<Header>, MalformedHeader> {
    if begins(bytes, V1) {
        return version_1(bytes);
    }
    if begins(bytes, V2) {
        return version_2(bytes);
    }
    Err(MalformedHeader)
}

/// Whether `bytes` and `mark` are equal up to the end of the shorter one.
fn begins(bytes: &[u8], mark: &[u8]) -> bool {
    let len = bytes.len().min(mark.len());
    bytes[..len] == mark[..len]
}

fn version_1(bytes: &[u8]) -> Result<Option<Header>, MalformedHeader> {
    let line = &bytes[..bytes.len().min(V1_BYTES_MAX)];
    let Some(end) = line.windows(2).position(|two| two == b"\r\n") else {
        return if line.len() < V1_BYTES_MAX { Ok(None) } else { Err(MalformedHeader) };
    };
    let text = std::str::from_utf8(&line[V1.len()..end]).map_err(|_| MalformedHeader)?;
    let len = end + 2;
    // Section 2.1: the rest after UNKNOWN is ignored.
    if text == "UNKNOWN" || text.starts_with("UNKNOWN ") {
        return Ok(Some(Header { len, source: None }));
    }
    let words: Vec<_> = text.split(' ').collect();
    let [family, source, destination, from, to] = words[..] else { return Err(MalformedHeader) };
    let ip = |text: &str| -> Result<IpAddr, MalformedHeader> {
        match family {
            "TCP4" => text.parse::<Ipv4Addr>().map(Into::into).map_err(|_| MalformedHeader),
            "TCP6" => text.parse::<Ipv6Addr>().map(Into::into).map_err(|_| MalformedHeader),
            _ => Err(MalformedHeader),
        }
    };
    let (source, _, from, _) = (ip(source)?, ip(destination)?, port(from)?, port(to)?);
    Ok(Some(Header { len, source: Some(SocketAddr::new(source, from)) }))
}

/// A port without a sign or leading zeros.
fn port(text: &str) -> Result<u16, MalformedHeader> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = text == "0" || !text.starts_with('0');
    text.parse().ok().filter(|_| plain && is_short).ok_or(MalformedHeader)
}

fn version_2(bytes: &[u8]) -> Result<Option<Header>, MalformedHeader> {
    let Some(head) = bytes.get(..V2_HEAD) else { return Ok(None) };
    let (command, family) = (head[12], head[13]);
    let body = usize::from(u16::from_be_bytes([head[14], head[15]]));
    let len = V2_HEAD + body;
    if len > HEADER_BYTES_MAX {
        return Err(MalformedHeader);
    }
    // Section 2.2: version 2, and LOCAL or PROXY.
    let is_local = match command {
        0x20 => true,
        0x21 => false,
        _ => return Err(MalformedHeader),
    };
    // Streams over IPv4 and IPv6; families with unspecified or unusable addresses.
    let addresses = match family {
        0x11 => 12,
        0x21 => 36,
        0x31 => 216,
        0x00 => 0,
        _ if is_local => 0,
        _ => return Err(MalformedHeader),
    };
    if !is_local && body < addresses {
        return Err(MalformedHeader);
    }
    let Some(body) = bytes.get(V2_HEAD..len) else { return Ok(None) };
    let source = match family {
        _ if is_local => None,
        0x11 => {
            let ip = <[u8; 4]>::try_from(&body[..4]).expect("it is as long");
            Some(SocketAddr::new(ip.into(), u16::from_be_bytes([body[8], body[9]])))
        }
        0x21 => {
            let ip = <[u8; 16]>::try_from(&body[..16]).expect("it is as long");
            Some(SocketAddr::new(ip.into(), u16::from_be_bytes([body[32], body[33]])))
        }
        _ => None,
    };
    Ok(Some(Header { len, source }))
}

/// Parses any bytes as a header; the result must not depend on how they arrive.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(super) fn understood(bytes: &[u8]) -> bool {
    let whole = header(bytes);
    let half = header(&bytes[..bytes.len() / 2]);
    if let Ok(Some(early)) = half {
        assert_eq!(whole, Ok(Some(early)), "more bytes do not change a header");
    }
    if half == Err(MalformedHeader) {
        assert_eq!(whole, Err(MalformedHeader), "nothing that follows makes it right");
    }
    match whole {
        Ok(Some(header)) => {
            assert!(header.len <= bytes.len().min(HEADER_BYTES_MAX));
            true
        }
        Ok(None) => {
            assert!(bytes.len() < HEADER_BYTES_MAX, "a header ends");
            false
        }
        Err(MalformedHeader) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = V2.to_vec();
        bytes.extend([command, family]);
        bytes.extend((body.len() as u16).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    const FOUR: [u8; 12] = [192, 0, 2, 7, 127, 0, 0, 1, 0x12, 0x67, 0, 80];

    fn source(bytes: &[u8]) -> String {
        match header(bytes) {
            Ok(Some(Header { source: Some(source), .. })) => source.to_string(),
            Ok(Some(Header { source: None, .. })) => "itself".into(),
            Ok(None) => "more".into(),
            Err(MalformedHeader) => "malformed".into(),
        }
    }

    #[test]
    fn w02_version_1_names_the_source() {
        for (line, meant) in [
            ("PROXY TCP4 192.0.2.7 127.0.0.1 4711 80\r\n", "192.0.2.7:4711"),
            ("PROXY TCP6 2001:db8::1 ::1 65535 0\r\nGET /", "[2001:db8::1]:65535"),
            ("PROXY UNKNOWN\r\n", "itself"),
            ("PROXY UNKNOWN ffff:: ffff:: 65535 65535\r\n", "itself"),
            ("PROXY TCP4 192.0.2.7", "more"),
            ("PRO", "more"),
            ("", "more"),
            ("PROXY TCP4 192.0.2.7 127.0.0.1 4711 80\n", "more"),
            ("PROXY TCP4 192.0.2.7 127.0.0.1 4711\r\n", "malformed"),
            ("PROXY TCP4 192.0.2.7 127.0.0.1 4711 80 \r\n", "malformed"),
            ("PROXY TCP4  192.0.2.7 127.0.0.1 4711 80\r\n", "malformed"),
            ("PROXY TCP4 192.0.2.7 127.0.0.1 +711 80\r\n", "malformed"),
            ("PROXY TCP4 192.0.2.7 127.0.0.1 0711 80\r\n", "malformed"),
            ("PROXY TCP4 192.0.2.7 127.0.0.1 4711 65536\r\n", "malformed"),
            ("PROXY TCP4 2001:db8::1 ::1 4711 80\r\n", "malformed"),
            ("PROXY TCP6 192.0.2.7 127.0.0.1 4711 80\r\n", "malformed"),
            ("PROXY UDP4 192.0.2.7 127.0.0.1 4711 80\r\n", "malformed"),
            ("PROXY \r\n", "malformed"),
            ("proxy TCP4 192.0.2.7 127.0.0.1 4711 80\r\n", "malformed"),
            ("GET / HTTP/1.1\r\n", "malformed"),
        ] {
            assert_eq!(source(line.as_bytes()), meant, "{line:?}");
        }
        let long = format!("PROXY UNKNOWN {}", "x".repeat(100));
        assert_eq!(source(long.as_bytes()), "malformed", "no line end within 107 bytes");
    }

    #[test]
    fn w02_version_2_names_the_source_or_the_proxy_itself() {
        let mut six = [0; 36];
        six[..16].copy_from_slice(&"2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        six[32..34].copy_from_slice(&443u16.to_be_bytes());
        let with_more = [&FOUR[..], &[0x04, 0, 1, 0]].concat();
        for (bytes, meant) in [
            (v2(0x21, 0x11, &FOUR), "192.0.2.7:4711"),
            (v2(0x21, 0x11, &with_more), "192.0.2.7:4711"),
            (v2(0x21, 0x21, &six), "[2001:db8::1]:443"),
            (v2(0x20, 0x00, &[]), "itself"),
            (v2(0x20, 0x11, &FOUR), "itself"),
            (v2(0x20, 0x55, &[7; 9]), "itself"),
            (v2(0x21, 0x00, &[]), "itself"),
            (v2(0x21, 0x31, &[0; 216]), "itself"),
            (v2(0x21, 0x11, &FOUR)[..27].to_vec(), "more"),
            (V2[..5].to_vec(), "more"),
            (v2(0x21, 0x11, &FOUR[..11]), "malformed"),
            (v2(0x21, 0x21, &six[..35]), "malformed"),
            (v2(0x21, 0x12, &FOUR), "malformed"),
            (v2(0x22, 0x11, &FOUR), "malformed"),
            (v2(0x11, 0x11, &FOUR), "malformed"),
            (v2(0x20, 0x00, &[0; HEADER_BYTES_MAX])[..16].to_vec(), "malformed"),
        ] {
            assert_eq!(source(&bytes), meant, "{bytes:?}");
            assert!(understood(&bytes) != ["more", "malformed"].contains(&meant));
        }
    }
}
