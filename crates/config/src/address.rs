//! Addresses to listen on, in the forms that other servers accept.
//!
//! Promise: a text has one meaning. Without a host it is this machine only (`8080`), with an empty
//! host all interfaces (`:8080`). No name is looked up: `localhost` is 127.0.0.1, other names are
//! refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Parses an address: `127.0.0.1:8080`, `[::]:8080`, `:8080` and `*:8080` (all interfaces, IPv4 and
/// IPv6), `localhost:8080` and `8080` (this machine only).
///
/// # Errors
/// The text is invalid; the message shows the valid forms.
pub fn parse(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Some(port) = port(text) {
        return Ok(SocketAddr::new(LOCAL, port));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, text)) if !host.contains(':') || host.starts_with('[') => (host, port(text)),
        _ => (text, None),
    };
    let ip = match host {
        "" | "*" => Some(ALL),
        host if host.eq_ignore_ascii_case("localhost") => Some(LOCAL),
        _ => None,
    };
    match (ip, port) {
        (Some(ip), Some(port)) => Ok(SocketAddr::new(ip, port)),
        _ => Err(format!(
            "{text:?} is not an address to listen on; write \"127.0.0.1:8080\" or \"8080\" for \
             this machine only, \":8080\" for all interfaces, or the address of one interface in \
             numbers"
        )),
    }
}

/// All interfaces. A socket with this address accepts IPv4 too.
const ALL: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Only digits: the number parser would accept a sign.
fn port(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w10_addresses_are_taken_as_other_servers_take_them() {
        for (text, meant) in [
            ("8080", "127.0.0.1:8080"),
            ("0", "127.0.0.1:0"),
            (":8080", "[::]:8080"),
            (":0", "[::]:0"),
            ("*:8080", "[::]:8080"),
            ("localhost:8080", "127.0.0.1:8080"),
            ("LocalHost:80", "127.0.0.1:80"),
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("0.0.0.0:8080", "0.0.0.0:8080"),
            ("[::]:8080", "[::]:8080"),
            ("[::1]:8080", "[::1]:8080"),
            ("[fe80::1%2]:8080", "[fe80::1%2]:8080"),
        ] {
            assert_eq!(parse(text), Ok(meant.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn w10_what_has_no_port_or_a_name_to_look_up_is_refused_with_the_forms() {
        for text in [
            "",
            ":",
            "localhost",
            "127.0.0.1",
            "::",
            "::1",
            "::1:8080",
            "[::]",
            "[::]:",
            "65536",
            ":65536",
            "+80",
            ":+80",
            " 80",
            "-1",
            "tv.example:80",
            "http://127.0.0.1:80",
            "*",
            "a:b:80",
            "8080:",
            "0x50",
        ] {
            // "::1:8080" is an IPv6 address without a port.
            let error = parse(text).expect_err(text);
            assert!(error.contains(&format!("{text:?}")) && error.contains("\":8080\""), "{error}");
        }
    }
}
