//! `[[channel]]`: titles that are sent as datagrams from the start, without being asked for.
//!
//! Promise: an address that can be understood in two ways is refused, as for inputs.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use tactus_core::units::{BitRate, Nanos};

use super::Auto;
use super::recording::Kind;

/// One channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Channel {
    /// How it is called in logs, metrics and the API.
    pub name: String,
    /// The path of its title, as in URLs.
    pub title: String,
    /// Where it goes.
    pub to: Output,
    /// The interface by its name: for groups, and for addresses of one link.
    pub interface: Option<String>,
    /// The address that it comes from.
    pub source: Option<IpAddr>,
    /// How many routers it may pass.
    pub hops: u8,
    /// The class of the network, six bits.
    pub dscp: u8,
    /// Its rate; by default what the title's clock says.
    pub rate: Auto<BitRate>,
    /// Null packets are put between those of the title, so that all leaves at this rate.
    pub stuff: Option<BitRate>,
    /// How long the first of several datagrams may wait for the last of them.
    pub burst: Nanos,
    /// After its end the title begins again.
    pub repeats: bool,
}

/// Where a channel goes: `udp://239.1.1.1:5000`, `rtp://[ff3e::8000:1]:5004`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Output {
    /// How the transport stream is wrapped.
    pub kind: Kind,
    /// Whereto.
    pub to: SocketAddr,
}

impl Output {
    /// The output that is written as `text`.
    ///
    /// # Errors
    /// What to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (kind, place) = if let Some(place) = text.strip_prefix("udp://") {
            (Kind::Udp, place)
        } else if let Some(place) = text.strip_prefix("rtp://") {
            (Kind::Rtp, place)
        } else {
            return Err(format!("{text:?} is no address of a channel; write it like {EXAMPLE}"));
        };
        let place = place.strip_suffix('/').unwrap_or(place);
        let to: SocketAddr = place.parse().map_err(|_| {
            format!("{place:?} is not an address in numbers and a port; write it like {EXAMPLE}")
        })?;
        if to.port() == 0 || to.ip().is_unspecified() {
            return Err(format!("nobody is at {to}; write it like {EXAMPLE}"));
        }
        if let IpAddr::V4(ip) = to.ip()
            && ip.is_broadcast()
        {
            return Err(
                "everybody is too many; write a group, like \"udp://239.1.1.1:5000\"".into()
            );
        }
        Ok(Self { kind, to })
    }

    /// Whether its interface must be named: an address of one link has no other.
    pub fn needs_interface(&self) -> bool {
        match self.to.ip() {
            IpAddr::V4(_) => false,
            IpAddr::V6(ip) => {
                let [first, second, ..] = ip.octets();
                let is_near_group = first == 0xff && matches!(second & 0x0f, 1 | 2);
                ip.is_unicast_link_local() || is_near_group
            }
        }
    }
}

const EXAMPLE: &str = "\"udp://239.1.1.1:5000\" or \"rtp://[ff3e::8000:1]:5004\"";

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind == Kind::Rtp { "rtp" } else { "udp" };
        write!(f, "{kind}://{}", self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_addresses_in_numbers() {
        for text in ["udp://239.1.1.1:5000", "rtp://10.0.0.7:5004", "rtp://[ff3e::8000:1]:5004"] {
            assert_eq!(Output::parse(text).unwrap().to_string(), text);
            assert_eq!(Output::parse(&format!("{text}/")), Output::parse(text));
        }
        for (text, said) in [
            ("http://a/b", "no address of a channel"),
            ("udp://studio:5000", "not an address in numbers"),
            ("udp://239.1.1.1", "not an address in numbers"),
            ("udp://239.1.1.1:5000?ttl=3", "not an address in numbers"),
            ("udp://239.1.1.1:0", "nobody"),
            ("rtp://0.0.0.0:5004", "nobody"),
            ("udp://255.255.255.255:5004", "too many"),
        ] {
            let error = Output::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        assert!(Output::parse("udp://[ff02::1]:1").unwrap().needs_interface());
        assert!(!Output::parse("udp://[ff3e::8000:1]:1").unwrap().needs_interface());
    }
}
