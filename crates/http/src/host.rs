//! The host of a request (RFC 9112 section 3.2): exactly one, well formed, and accepted here.
//!
//! Promise: unless every name is allowed, pages of other sites cannot reach this server through a
//! name of their own that resolves to its address (DNS rebinding).

use std::net::{IpAddr, Ipv6Addr};

use super::fault::Fault;
use super::framing::Version;

/// The host names that an address accepts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hosts {
    /// Any.
    Any,
    /// These names and addresses, with any port; IPv6 addresses are in brackets.
    Named(Vec<String>),
    /// Names of this machine, and the given names: for addresses without a password.
    Local {
        /// Further names.
        named: Vec<String>,
        /// The address of the listener. If it means all interfaces, every numeric address is
        /// accepted, because DNS rebinding needs a name.
        address: IpAddr,
    },
}

impl Hosts {
    fn allow(&self, name: &[u8]) -> bool {
        let is_in =
            |names: &[String]| names.iter().any(|ours| ours.as_bytes().eq_ignore_ascii_case(name));
        match self {
            Self::Any => true,
            Self::Named(names) => is_in(names),
            Self::Local { named, address } => {
                is_in(named)
                    || named.iter().any(|name| name == "*")
                    || is_localhost(name)
                    || address_of(name).is_some_and(|host| {
                        host.is_loopback() || host == *address || address.is_unspecified()
                    })
            }
        }
    }
}

/// RFC 6761 section 6.3: these names always resolve to the local machine.
fn is_localhost(name: &[u8]) -> bool {
    let name = name.strip_suffix(b".").unwrap_or(name).to_ascii_lowercase();
    name == b"localhost" || name.ends_with(b".localhost")
}

/// The address in the name, if it is numeric.
fn address_of(name: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(name).ok()?;
    match text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')) {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(|ip| IpAddr::V6(ip).to_canonical()),
        None => text.parse().ok(),
    }
}

/// Checks all `Host` fields, and the authority of an absolute target, which overrides them (section
/// 3.2.2), against the `allowed` hosts.
pub(super) fn check<'a>(
    version: Version,
    mut hosts: impl Iterator<Item = &'a [u8]>,
    authority: Option<&[u8]>,
    allowed: &Hosts,
) -> Result<(), Fault> {
    let host = match (hosts.next(), hosts.next()) {
        (_, Some(_)) => return Err(Fault::TwoHosts),
        (Some(host), None) => Some(host),
        // An HTTP/1.0 request may lack `Host`, but only if every name is allowed.
        (None, None) if version == Version::Http10 && *allowed == Hosts::Any => None,
        (None, None) => return Err(Fault::NoHost),
    };
    for named in [host, authority].into_iter().flatten() {
        let name = name_of(named).ok_or(Fault::BadHost)?;
        let decides = authority.is_none_or(|authority| std::ptr::eq(authority, named));
        if decides && !allowed.allow(name) {
            return Err(Fault::OtherHost);
        }
    }
    Ok(())
}

/// The name without its port; `None` when it is not well formed. An address keeps its brackets.
fn name_of(host: &[u8]) -> Option<&[u8]> {
    let (name, rest) = match host.strip_prefix(b"[") {
        Some(inner) => {
            let end = inner.iter().position(|&byte| byte == b']')?;
            let address = std::str::from_utf8(&inner[..end]).ok()?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            host.split_at(end + 2)
        }
        None => host.split_at(host.iter().position(|&byte| byte == b':').unwrap_or(host.len())),
    };
    let is_port = |port: &[u8]| port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
    let port_fits = rest.is_empty() || rest.strip_prefix(b":").is_some_and(is_port);
    let is_name_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
    let name_fits = name.starts_with(b"[") || (!name.is_empty() && name.iter().all(is_name_byte));
    (port_fits && name_fits).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hosts: &[&str], authority: Option<&str>, allowed: &[&str]) -> Result<(), Fault> {
        let named: Vec<_> = allowed.iter().map(|&name| name.to_owned()).collect();
        let allowed = if named.is_empty() { Hosts::Any } else { Hosts::Named(named) };
        let hosts = hosts.iter().map(|host| host.as_bytes());
        super::check(Version::Http11, hosts, authority.map(str::as_bytes), &allowed)
    }

    #[test]
    fn one_well_formed_host_passes() {
        for host in ["a", "a.b:80", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:80", "a_b", "a:"]
        {
            assert_eq!(check(&[host], None, &[]), Ok(()), "{host}");
        }
        let bad =
            ["", ":80", "a b", "a:b", "a:123456", "[::1", "[x]", "[::1]x", "a/b", "u@h", "a,b"];
        for host in bad {
            assert_eq!(check(&[host], None, &[]), Err(Fault::BadHost), "{host}");
        }
        assert_eq!(check(&[], None, &[]), Err(Fault::NoHost));
        assert_eq!(check(&["a", "a"], None, &[]), Err(Fault::TwoHosts));
    }

    #[test]
    fn only_allowed_names_are_answered_when_there_are_any() {
        let allowed = ["tv.example", "[::1]"];
        for host in ["tv.example", "TV.Example:8080", "[::1]:80"] {
            assert_eq!(check(&[host], None, &allowed), Ok(()), "{host}");
        }
        for host in ["evil.example", "127.0.0.1", "tv.example.evil"] {
            assert_eq!(check(&[host], None, &allowed), Err(Fault::OtherHost), "{host}");
        }
    }

    #[test]
    fn the_authority_of_an_absolute_target_decides() {
        assert_eq!(check(&["other"], Some("tv.example"), &["tv.example"]), Ok(()));
        let other = check(&["tv.example"], Some("other"), &["tv.example"]);
        assert_eq!(other, Err(Fault::OtherHost));
        assert_eq!(check(&[], Some("tv.example"), &[]), Err(Fault::NoHost));
    }

    #[test]
    fn http_1_0_needs_a_host_only_where_names_matter() {
        let none = || std::iter::empty();
        assert_eq!(super::check(Version::Http10, none(), None, &Hosts::Any), Ok(()));
        let ours = Hosts::Named(vec!["a".to_owned()]);
        assert_eq!(super::check(Version::Http10, none(), None, &ours), Err(Fault::NoHost));
    }

    #[test]
    fn s05_without_a_password_only_names_of_this_machine_are_accepted() {
        let at = |address: &str, named: &[&str], host: &str| {
            let named = named.iter().map(|&name| name.to_owned()).collect();
            let allowed = Hosts::Local { named, address: address.parse().unwrap() };
            super::check(Version::Http11, [host.as_bytes()].into_iter(), None, &allowed).is_ok()
        };
        for host in [
            "localhost:9464",
            "LocalHost",
            "a.localhost",
            "localhost.",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:9464",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(at("127.0.0.1", &[], host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "xlocalhost",
            "[2001:db8::1]",
            "0.0.0.0",
            "127.1",
            "2130706433",
        ] {
            assert!(!at("127.0.0.1", &[], host), "{host}");
            assert!(at("127.0.0.1", &["*"], host), "{host}");
        }
        assert!(at("10.0.0.1", &[], "10.0.0.1:9464") && !at("10.0.0.1", &[], "10.0.0.2"));
        assert!(at("0.0.0.0", &[], "10.0.0.2") && at("::", &[], "[2001:db8::1]"));
        assert!(!at("0.0.0.0", &[], "evil.example"), "a name can be made to point anywhere");
        assert!(at("0.0.0.0", &["tv.example"], "TV.example:9464"));
        let allowed = Hosts::Local { named: vec![], address: "127.0.0.1".parse().unwrap() };
        let none = || std::iter::empty();
        assert_eq!(super::check(Version::Http10, none(), None, &allowed), Err(Fault::NoHost));
    }
}
