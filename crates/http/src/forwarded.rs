//! The client of a request behind proxies: `X-Forwarded-For`, and `Forwarded` (RFC 7239).
//!
//! Promise: only trusted proxies can name the client. The client is the rightmost address that is
//! no trusted proxy, so entries that a client writes itself have no effect. There is no state.

use std::net::SocketAddr;

use super::fault::Fault;
use super::fields::Fields;
use super::settings::{ForwardedField, Proxies};
use super::transport::Client;

/// The origin of a request, according to trusted proxies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Hop {
    /// The client; the proxy itself if it names no client.
    pub(super) client: Client,
    /// The scheme that the client used.
    pub(super) scheme: Option<String>,
    /// The host that the client requested.
    pub(super) host: Option<String>,
    /// Whether the request came by the public URL, as far as is known.
    pub(super) is_public: bool,
}

/// Evaluates `fields` of a request that `peer` sent.
///
/// # Errors
/// When a trusted proxy sends a malformed `Forwarded`. A client may have written part of it.
pub(super) fn hop(proxies: &Proxies, peer: Client, fields: &Fields) -> Result<Hop, Fault> {
    let is_proxy = peer.peer.is_trusted(proxies);
    let is_public = is_proxy || proxies.is_empty();
    let mut hop = Hop { client: peer, scheme: None, host: None, is_public };
    if !is_proxy {
        return Ok(hop);
    }
    let named = match proxies.field {
        ForwardedField::XForwardedFor => {
            let last = |name| {
                let text = fields.list(name).last().and_then(|text| std::str::from_utf8(text).ok());
                text.map(str::to_owned)
            };
            hop.scheme = last("x-forwarded-proto");
            hop.host = last("x-forwarded-host");
            fields.list("x-forwarded-for").map(node).collect::<Vec<_>>()
        }
        ForwardedField::Forwarded => {
            let mut named = Vec::new();
            for value in fields.all("forwarded") {
                for element in elements(value).ok_or(Fault::BadForwarded)? {
                    hop.scheme = element.proto.or(hop.scheme);
                    hop.host = element.host.or(hop.host);
                    named.extend(element.by_whom.map(|text| node(text.as_bytes())));
                }
            }
            named
        }
    };
    hop.scheme = hop.scheme.map(|scheme| scheme.to_ascii_lowercase());
    hop.scheme.take_if(|scheme| scheme != "http" && scheme != "https");
    for client in named.into_iter().rev() {
        // The hop does not name its client, so the hop counts as the client.
        let Some(client) = client else { break };
        hop.client = client;
        if !client.peer.is_trusted(proxies) {
            break;
        }
    }
    Ok(hop)
}

/// Parses an address as in both fields, with or without a port (RFC 7239 section 6); none for
/// `unknown` and obfuscated names.
fn node(text: &[u8]) -> Option<Client> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address.into());
    }
    let text = without_hidden_port(text);
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    // A zone is valid only on the proxy's own links (RFC 4007 section 11.2).
    let address = inner.split_once('%').map_or(inner, |(address, _)| address);
    address.parse().ok().map(Client::of)
}

/// Removes an obfuscated port (`obfport`) from `text`: the address before it is still the client's.
fn without_hidden_port(text: &str) -> &str {
    match text.rsplit_once(':') {
        Some((address, port)) if port.starts_with('_') => address,
        _ => text,
    }
}

/// One element of `Forwarded`.
#[derive(Default, PartialEq, Eq, Debug)]
struct Element {
    by_whom: Option<String>,
    proto: Option<String>,
    host: Option<String>,
}

/// The elements of a `Forwarded` value (RFC 7239 section 4); none when it is malformed.
fn elements(value: &[u8]) -> Option<Vec<Element>> {
    let mut all = Vec::new();
    let mut element = Element::default();
    let mut rest = value.trim_ascii();
    loop {
        if !rest.is_empty() && !matches!(rest[0], b',' | b';') {
            let end = rest.iter().position(|byte| !is_token(*byte)).filter(|end| *end > 0)?;
            let (name, tail) = rest.split_at(end);
            let (text, tail) = parameter(tail.strip_prefix(b"=")?)?;
            let place = match name.to_ascii_lowercase().as_slice() {
                b"for" => Some(&mut element.by_whom),
                b"proto" => Some(&mut element.proto),
                b"host" => Some(&mut element.host),
                _ => None,
            };
            if let Some(place) = place
                && place.replace(text).is_some()
            {
                return None;
            }
            rest = tail.trim_ascii_start();
        }
        match rest.split_first() {
            None => {
                all.push(element);
                return Some(all);
            }
            Some((b',', tail)) => {
                all.push(std::mem::take(&mut element));
                rest = tail.trim_ascii_start();
            }
            Some((b';', tail)) => rest = tail.trim_ascii_start(),
            Some(_) => return None,
        }
    }
}

/// A token or a quoted string, and the bytes after it.
fn parameter(text: &[u8]) -> Option<(String, &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|byte| !is_token(*byte)).unwrap_or(text.len());
        let (token, tail) = text.split_at(end);
        let token = String::from_utf8(token.to_vec()).ok().filter(|token| !token.is_empty())?;
        return Some((token, tail));
    };
    let mut value = Vec::new();
    let mut bytes = quoted.iter().enumerate();
    while let Some((at, &byte)) = bytes.next() {
        match byte {
            b'"' => return Some((String::from_utf8(value).ok()?, &quoted[at + 1..])),
            b'\\' => value.push(*bytes.next()?.1),
            byte => value.push(byte),
        }
    }
    None
}

/// RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tactus_notation::net::Net;

    use super::*;

    fn proxies(field: ForwardedField) -> Proxies {
        let trusted = ["10.0.0.0/8", "127.0.0.1", "fd00::/8"].map(|net| Net::parse(net).unwrap());
        Proxies { trusted: trusted.to_vec(), unix: false, field }
    }

    fn client(field: ForwardedField, peer: &str, fields: &[(&str, &str)]) -> String {
        let peer = Client::of(peer.parse().unwrap());
        match hop(&proxies(field), peer, &Fields::of(fields)) {
            Ok(hop) => hop.client.to_string(),
            Err(fault) => format!("{fault:?}"),
        }
    }

    #[test]
    fn w02_the_client_is_the_rightmost_hop_that_is_no_trusted_proxy() {
        const XFF: &str = "x-forwarded-for";
        let of = |peer, fields: &[_]| client(ForwardedField::XForwardedFor, peer, fields);
        for (value, meant) in [
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.7:4711", "192.0.2.7:4711"),
            ("198.51.100.9, 192.0.2.7", "192.0.2.7"),
            ("127.0.0.1, 192.0.2.7", "192.0.2.7"),
            ("192.0.2.7, 10.1.2.3, 10.0.0.1", "192.0.2.7"),
            ("203.0.113.1, 192.0.2.7 , 10.1.2.3", "192.0.2.7"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:99", "[2001:db8::1]:99"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("10.1.2.3", "10.1.2.3"),
            ("", "127.0.0.1"),
            ("unknown", "127.0.0.1"),
            ("192.0.2.7, unknown", "127.0.0.1"),
            ("192.0.2.7, unknown, 10.1.2.3", "10.1.2.3"),
            ("1.2.3, 192.0.2.7", "192.0.2.7"),
            (",192.0.2.7,,", "192.0.2.7"),
            ("192.0.2.7, fe80::1%eth0", "fe80::1"),
            ("192.0.2.7:_x", "192.0.2.7"),
        ] {
            assert_eq!(of("127.0.0.1", &[(XFF, value)]), meant, "{value}");
            assert_eq!(
                of("192.0.2.99", &[(XFF, value)]),
                "192.0.2.99",
                "an untrusted peer is not believed"
            );
        }
        let two = [(XFF, "203.0.113.1"), (XFF, "192.0.2.7")];
        assert_eq!(of("127.0.0.1", &two), "192.0.2.7", "several fields are one list");
        let other = [("forwarded", "for=192.0.2.7")];
        assert_eq!(of("127.0.0.1", &other), "127.0.0.1", "the proxy does not write this one");
    }

    #[test]
    fn w02_forwarded_is_read_as_rfc_7239_writes_it() {
        let of = |value: &str| {
            let fields = [("forwarded", value), ("x-forwarded-for", "203.0.113.9")];
            client(ForwardedField::Forwarded, "127.0.0.1", &fields)
        };
        for (value, meant) in [
            ("for=192.0.2.7", "192.0.2.7"),
            ("For=\"[2001:db8:cafe::17]:4711\"", "[2001:db8:cafe::17]:4711"),
            ("for=192.0.2.7;proto=http;by=203.0.113.43", "192.0.2.7"),
            ("for=198.51.100.9, for=192.0.2.7;host=\"a,b;c\"", "192.0.2.7"),
            ("by=_x;for=\"192.0.2.7:80\" , For=10.0.0.1", "192.0.2.7:80"),
            ("for=\"192.0.2\\.7\"", "192.0.2.7"),
            ("for=\"192.0.2.7:_gazonk\"", "192.0.2.7"),
            ("for=\"[2001:db8:cafe::17]:_x\"", "2001:db8:cafe::17"),
            ("for=\"[2001:db8:cafe::17%2]\"", "2001:db8:cafe::17"),
            ("for=\"_hidden:_port\"", "127.0.0.1"),
            ("for=unknown", "127.0.0.1"),
            ("for=_gazonk", "127.0.0.1"),
            ("for=192.0.2.7, for=_hidden", "127.0.0.1"),
            ("", "127.0.0.1"),
            ("proto=https", "127.0.0.1"),
        ] {
            assert_eq!(of(value), meant, "{value}");
        }
        // Text from the client must not swallow the entry of the proxy.
        for broken in [
            "for=\"x, for=192.0.2.7",
            "for=x;y=\", for=192.0.2.7",
            "for=x;y=\", for=\"[2001:db8::1]\"",
            "for=192.0.2.7;for=192.0.2.8",
            "for",
            "for=",
            "for =192.0.2.7",
            "for=[2001:db8::1]",
            "for=192.0.2.7 x",
            "=192.0.2.7",
            "for=\"192.0.2.7\\",
        ] {
            assert_eq!(of(broken), "BadForwarded", "{broken}");
        }
    }

    #[test]
    fn w02_scheme_and_host_are_those_of_the_proxy_that_is_trusted() {
        let told = |field, peer: &str, fields: &[(&str, &str)]| {
            let peer = Client::of(peer.parse().unwrap());
            let Hop { scheme, host, .. } = hop(&proxies(field), peer, &Fields::of(fields)).unwrap();
            (scheme.unwrap_or_default(), host.unwrap_or_default())
        };
        let fields = [("x-forwarded-proto", "HTTPS"), ("x-forwarded-host", "tv.example")];
        let own = ("https".to_owned(), "tv.example".to_owned());
        assert_eq!(told(ForwardedField::XForwardedFor, "127.0.0.1", &fields), own);
        assert_eq!(told(ForwardedField::XForwardedFor, "192.0.2.1", &fields), Default::default());
        let one = [("forwarded", "for=192.0.2.7;proto=https;host=tv.example")];
        assert_eq!(told(ForwardedField::Forwarded, "127.0.0.1", &one), own);
        let odd = [("x-forwarded-proto", "javascript")];
        assert_eq!(told(ForwardedField::XForwardedFor, "127.0.0.1", &odd).0, "");
    }

    proptest! {
        /// Only the hop that the proxy appended counts, whatever the client wrote before it.
        #[test]
        fn w02_nothing_in_front_of_the_proxys_own_hop_has_an_effect(
            written in "[ -~]{0,60}",
            same_line: bool,
        ) {
            let added = "192.0.2.7";
            let joined = format!("{written}, {added}");
            let fields = match same_line {
                true => vec![("x-forwarded-for", joined.as_str())],
                false => vec![("x-forwarded-for", written.as_str()), ("x-forwarded-for", added)],
            };
            prop_assert_eq!(client(ForwardedField::XForwardedFor, "10.0.0.1", &fields), added);
            let element = format!("for={added}");
            let joined = format!("{written}, {element}");
            let fields = match same_line {
                true => vec![("forwarded", joined.as_str())],
                false => vec![("forwarded", written.as_str()), ("forwarded", element.as_str())],
            };
            let said = client(ForwardedField::Forwarded, "10.0.0.1", &fields);
            prop_assert!([added, "BadForwarded"].contains(&said.as_str()), "{} {}", written, said);
        }
    }
}
