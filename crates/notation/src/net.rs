//! Networks: addresses with a common prefix, as `10.0.0.0/8`.
//!
//! Promise: bits behind the prefix are an error, and an IPv4-mapped network is the IPv4 network.

use std::fmt;
use std::net::IpAddr;

/// A network: addresses with a common prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Net {
    /// Its first address.
    pub first: IpAddr,
    /// Length of the prefix in bits.
    pub bits: u8,
}

impl Net {
    /// Parses a network, `10.0.0.0/8`, or one address.
    ///
    /// # Errors
    /// The text is invalid; the message says what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no address; write it like \"10.0.0.0/8\" or \"fd00::/8\"");
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let first: IpAddr = address.parse().map_err(|_| wrong())?;
        let all = width(first);
        let bits: u8 = bits.map_or(Ok(all), str::parse).map_err(|_| wrong())?;
        if bits > all {
            return Err(wrong());
        }
        // IPv4-mapped addresses are compared as IPv4.
        let net = match first.to_canonical() {
            IpAddr::V4(v4) if first.is_ipv6() && bits >= MAPPED => {
                Self { first: v4.into(), bits: bits - MAPPED }
            }
            _ => Self { first, bits },
        };
        let Self { first, bits } = net;
        if net.of(first) != net.of_bits(first) {
            return Err(format!(
                "{text:?} has bits behind its /{bits}; write the first address of the net"
            ));
        }
        Ok(net)
    }

    /// Whether the network contains `address`.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && self.of(address) == self.of(self.first)
    }

    /// Number of addresses.
    #[must_use]
    pub fn len(&self) -> u128 {
        1u128.checked_shl(u32::from(width(self.first) - self.bits)).unwrap_or(u128::MAX)
    }

    /// Never: a network has at least one address.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The `nth` address after the first.
    #[must_use]
    pub fn nth(&self, nth: u128) -> Option<IpAddr> {
        (nth < self.len()).then_some(())?;
        Some(match self.first {
            IpAddr::V4(first) => IpAddr::V4((first.to_bits() + nth as u32).into()),
            IpAddr::V6(first) => IpAddr::V6((first.to_bits() + nth).into()),
        })
    }

    /// The prefix bits of an address.
    fn of(&self, address: IpAddr) -> u128 {
        let below = width(self.first) - self.bits;
        self.of_bits(address).checked_shr(u32::from(below)).unwrap_or(0) << (below % 128)
    }

    fn of_bits(&self, address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(v4) => v4.to_bits().into(),
            IpAddr::V6(v6) => v6.to_bits(),
        }
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

/// Bits before the IPv4 address in an IPv4-mapped one (RFC 4291 section 2.5.5.2).
const MAPPED: u8 = 96;

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nets_hold_what_begins_like_them() {
        let net = |text: &str| Net::parse(text).unwrap();
        let is_in = |text: &str, address: &str| net(text).contains(address.parse().unwrap());
        assert!(is_in("10.0.0.0/8", "10.255.0.1") && !is_in("10.0.0.0/8", "11.0.0.0"));
        assert!(is_in("0.0.0.0/0", "1.2.3.4") && !is_in("0.0.0.0/0", "::1"));
        assert!(is_in("::/0", "fd00::1") && is_in("fd00::/8", "fdff::1"));
        assert!(is_in("10.0.0.7", "10.0.0.7") && !is_in("10.0.0.7", "10.0.0.6"));
        assert!(is_in("::ffff:10.0.0.0/104", "10.255.0.1"), "a mapped address counts as IPv4");
        assert!(is_in("::ffff:10.0.0.7", "10.0.0.7") && !is_in("::ffff:10.0.0.7", "::ffff:a00:8"));
        assert_eq!(net("::ffff:0.0.0.0/96"), net("0.0.0.0/0"));
        assert_eq!((net("239.1.1.0/30").len(), net("::/0").len()), (4, u128::MAX));
        assert_eq!(net("239.1.1.0/30").nth(3), "239.1.1.3".parse().ok());
        assert_eq!(net("239.1.1.0/30").nth(4), None);
        for wrong in ["", "10.0.0.0/33", "10.0.0.1/8", "host", "::/129", "10.0.0.0/", "1/8"] {
            assert!(Net::parse(wrong).is_err(), "{wrong}");
        }
    }
}
