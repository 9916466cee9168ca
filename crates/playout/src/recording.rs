//! `[[recording]]`: live inputs and their titles.
//!
//! Promise: an ambiguous input is refused: addresses are written as numbers, and an address of
//! source-specific multicast needs its source.

pub mod raw;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use tactus_core::units::{BitRate, Bytes, Nanos, SECOND};
use tactus_notation::units::{self, Quantity};
use tactus_notation::{Auto, ConfigError, checks};

use super::pattern::Pattern;

/// One live input and its titles.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recording {
    /// Its name in logs, metrics and the API.
    pub name: String,
    /// The input's address and source.
    pub from: Input,
    /// The name of the interface: where a group is joined, or the only one that is accepted for
    /// others.
    pub interface: Option<String>,
    /// The pattern of its titles' names.
    pub to: Pattern,
    /// The reserved rate; by default the rate of the stream's clock, and a quarter more.
    pub rate: Auto<BitRate>,
    /// When the next title begins; none: never.
    pub rotate: Option<Rotate>,
    /// Which titles are kept.
    pub keep: Keep,
    /// After this silence the input counts as stopped, and another source may replace it.
    pub silence: Nanos,
}

impl Recording {
    /// Checks `text`, the content of one `[[recording]]`.
    ///
    /// # Errors
    /// The first mistake, with line and column.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        checks::table(text, "recording", raw::check)
    }
}

/// When the next title begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rotate {
    /// At whole multiples of this time in UTC.
    Time(Nanos),
    /// When a title has this size.
    Size(Bytes),
}

/// Which titles of a recording are kept; the oldest are deleted first.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Keep {
    /// Most titles.
    pub titles: Option<u32>,
    /// Most bytes of all titles together.
    pub size: Option<Bytes>,
    /// Greatest age of a title.
    pub age: Option<Nanos>,
}

impl Keep {
    /// Whether there is any limit.
    pub fn is_limited(&self) -> bool {
        self.titles.is_some() || self.size.is_some() || self.age.is_some()
    }
}

/// A live input: `udp://239.1.1.1:5000`, `rtp://[ff3e::8000:1]:5004?source=2001:db8::7`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Input {
    /// The encapsulation of the transport stream.
    pub kind: Kind,
    /// The address that it is sent to.
    pub to: SocketAddr,
    /// The accepted source; none: the first one that sends valid data.
    pub source: Option<IpAddr>,
}

/// The encapsulation of a transport stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Directly in UDP.
    Udp,
    /// In RTP (RFC 2250).
    Rtp,
}

impl Input {
    /// Parses an input.
    ///
    /// # Errors
    /// The text is invalid; the message says what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (kind, rest) = if let Some(rest) = text.strip_prefix("udp://") {
            (Kind::Udp, rest)
        } else if let Some(rest) = text.strip_prefix("rtp://") {
            (Kind::Rtp, rest)
        } else {
            return Err(format!(
                "{text:?} is not the address of a live input; write it like \
                {EXAMPLE}"
            ));
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        // Players write `@` before the local address.
        let place = place.strip_prefix('@').unwrap_or(place);
        let place = place.strip_suffix('/').unwrap_or(place);
        let to: SocketAddr = place.parse().map_err(|_| {
            format!("{place:?} is not an address in numbers and a port; write it like {EXAMPLE}")
        })?;
        let mut source = None;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let Some(value) = pair.strip_prefix("source=").filter(|_| source.is_none()) else {
                return Err(format!(
                    "{pair:?} is not a known parameter; the only one is `source=`, \
                    once"
                ));
            };
            let value = value.trim_start_matches('[').trim_end_matches(']');
            let ip: IpAddr =
                value.parse().map_err(|_| format!("{value:?} is not an address in numbers"))?;
            source = Some(ip);
        }
        let input = Self { kind, to, source };
        input.check()?;
        Ok(input)
    }

    fn check(&self) -> Result<(), String> {
        let group = self.to.ip();
        if let Some(source) = self.source {
            if source.is_ipv4() != group.is_ipv4() {
                return Err("source and destination mix IPv4 and IPv6; use one of them for \
                    both"
                    .into());
            }
            if source.is_multicast() || source.is_unspecified() {
                return Err(format!("{source} is not the address of one sender; write one"));
            }
        } else if is_for_one_source(group) {
            return Err(format!(
                "{group} is a group for one source (RFC 4607); name it: ?source=ADDRESS"
            ));
        }
        Ok(())
    }

    /// Whether its interface must be named: a link-local or interface-local group does not
    /// determine it.
    pub fn needs_interface(&self) -> bool {
        match self.to.ip() {
            IpAddr::V4(_) => false,
            IpAddr::V6(ip) => {
                let [first, second, ..] = ip.octets();
                ip.is_unicast_link_local() || first == 0xff && matches!(second & 0x0f, 1 | 2)
            }
        }
    }
}

const EXAMPLE: &str =
    "\"udp://239.1.1.1:5000\" or \"rtp://[ff3e::8000:1]:5004?source=2001:db8::7\"";

/// Whether a group is for source-specific multicast: 232.0.0.0/8 and ff3x::/96 (RFC 4607 section
/// 1).
fn is_for_one_source(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(ip) => ip.octets()[0] == 232,
        IpAddr::V6(ip) => {
            let words = ip.segments();
            words[0] & 0xfff0 == 0xff30 && words[1..6].iter().all(|&word| word == 0)
        }
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind == Kind::Rtp { "rtp" } else { "udp" };
        write!(f, "{kind}://{}", self.to)?;
        match self.source {
            Some(source) => write!(f, "?source={source}"),
            None => Ok(()),
        }
    }
}

impl Rotate {
    /// Parses `"1 h"` or `"2 GB"`.
    ///
    /// # Errors
    /// The text is invalid; the message says what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let time = units::read::<Nanos>(text);
        let size = units::read::<Bytes>(text);
        let (least_time, most_time) = (SECOND.times(10), SECOND.times(86_400));
        match (time, size) {
            (Ok(time), _) if (least_time..=most_time).contains(&time) => {
                if SECOND.times(86_400).0.is_multiple_of(time.0) {
                    return Ok(Self::Time(time));
                }
                Err(format!("{time} does not divide a day; write \"15 min\", \"1 h\" or \"24 h\""))
            }
            (_, Ok(size)) if size >= SIZE_MIN => Ok(Self::Size(size)),
            (Ok(_), _) => Err("write a time from 10 s to 24 h".into()),
            (_, Ok(_)) => Err(format!("write a size of {SIZE_MIN} or more")),
            (Err(_), Err(_)) => Err(format!(
                "{text:?} is neither a time nor a size; write \"1 h\" or \"{}\", or \"off\"",
                Bytes::EXAMPLE
            )),
        }
    }
}

/// Smaller titles would spend more time on flushes than on data.
const SIZE_MIN: Bytes = Bytes(64 * 1024);

impl fmt::Display for Rotate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) => f.write_str(&units::exact(*time)),
            Self::Size(size) => f.write_str(&units::exact(*size)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_written_as_players_do() {
        for (text, shown) in [
            ("udp://239.1.1.1:5000", "udp://239.1.1.1:5000"),
            ("udp://@239.1.1.1:5000/", "udp://239.1.1.1:5000"),
            ("rtp://0.0.0.0:5004?source=10.0.0.5", "rtp://0.0.0.0:5004?source=10.0.0.5"),
            (
                "rtp://[ff3e::8000:1]:5004?source=2001:db8::7",
                "rtp://[ff3e::8000:1]:5004?source=2001:db8::7",
            ),
            (
                "udp://[ff15::1]:5000?source=[2001:db8::7]",
                "udp://[ff15::1]:5000?source=2001:db8::7",
            ),
        ] {
            assert_eq!(Input::parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_is_not_clear_is_refused_with_what_to_write() {
        for (text, said) in [
            ("http://a/b", "is not the address of a live input"),
            ("udp://studio:5000", "not an address in numbers"),
            ("udp://239.1.1.1", "not an address in numbers"),
            ("udp://239.1.1.1:70000", "not an address in numbers"),
            ("udp://239.1.1.1:5000?pkt_size=1316", "only one is `source=`"),
            ("udp://239.1.1.1:5000?source=10.0.0.1&source=10.0.0.2", "once"),
            ("udp://239.1.1.1:5000?source=studio", "not an address"),
            ("udp://239.1.1.1:5000?source=2001:db8::7", "mix IPv4 and IPv6"),
            ("udp://239.1.1.1:5000?source=239.1.1.1", "is not the address of one sender"),
            ("udp://232.1.1.1:5000", "RFC 4607"),
            ("rtp://[ff3e::8000:1]:5004", "RFC 4607"),
        ] {
            let error = Input::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn titles_end_by_time_or_by_size() {
        assert_eq!(Rotate::parse("1 h"), Ok(Rotate::Time(SECOND.times(3600))));
        assert_eq!(Rotate::parse("1 GB"), Ok(Rotate::Size(Bytes(1_000_000_000))));
        for text in ["1 s", "7 h", "48 h", "1 kB", "hourly", "0"] {
            assert!(Rotate::parse(text).is_err(), "{text}");
        }
    }
}
