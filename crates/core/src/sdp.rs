//! Session descriptions (SDP, RFC 8866): generated for players and announcements, parsed from
//! ANNOUNCE.
//!
//! Promise: parsing is bounded, and a refusal names the broken rule. Generated text cannot inject a
//! line. Attributes are interpreted by the caller.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use crate::rtp;

/// Longest description.
pub const LEN_MAX: usize = 64 * 1024;
/// Upper bound of media.
pub const MEDIA_MAX: usize = 16;

/// A session description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// The origin.
    pub origin: Origin,
    /// The session name.
    pub name: String,
    /// The session information.
    pub information: Option<String>,
    /// The default connection of its media.
    pub connection: Option<Connection>,
    /// In the order of the description.
    pub attributes: Vec<Attribute>,
    /// The media.
    pub media: Vec<Media>,
}

/// Identifies a session and its version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The session number.
    pub session: u64,
    /// Increases with each change.
    pub version: u64,
    /// The originating host; `None` if it is a name or unspecified.
    pub address: Option<IpAddr>,
}

/// The destination of media.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// A group or an address; unspecified if it is negotiated elsewhere.
    pub address: IpAddr,
    /// The TTL of IPv4 groups (RFC 8866, section 5.7).
    pub hops: Option<u8>,
}

/// `a=name` or `a=name:value`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attribute {
    /// The name.
    pub name: String,
    /// The value.
    pub value: Option<String>,
}

/// One medium.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Media {
    /// `video`, `audio`, `application`.
    pub kind: String,
    /// Zero if it is negotiated elsewhere.
    pub port: u16,
    /// `RTP/AVP`, or `udp` without RTP.
    pub protocol: String,
    /// The payload types, if they are numbers.
    pub formats: Vec<String>,
    /// Its destination.
    pub connection: Option<Connection>,
    /// In kbit/s, with IP and UDP headers (`b=AS`).
    pub bandwidth: Option<u64>,
    /// In the order of the description.
    pub attributes: Vec<Attribute>,
}

impl Attribute {
    /// `a=name`.
    pub fn flag(name: &str) -> Self {
        Self { name: name.into(), value: None }
    }

    /// `a=name:value`.
    pub fn new(name: &str, value: impl fmt::Display) -> Self {
        Self { name: name.into(), value: Some(value.to_string()) }
    }
}

impl Media {
    /// A transport stream in RTP (RFC 2250, RFC 3551).
    pub fn mp2t(port: u16) -> Self {
        Self::rtp("video", port, rtp::MP2T, "MP2T/90000")
    }

    /// A transport stream in UDP without RTP.
    pub fn mp2t_plain(port: u16) -> Self {
        Self { protocol: "udp".into(), attributes: Vec::new(), ..Self::mp2t(port) }
    }

    /// An RTP medium of this payload type; `map` is its encoding, like `H264/90000`.
    pub fn rtp(kind: &str, port: u16, payload_type: u8, map: &str) -> Self {
        Self {
            kind: kind.into(),
            port,
            protocol: "RTP/AVP".into(),
            formats: [payload_type.to_string()].into(),
            connection: None,
            bandwidth: None,
            attributes: [Attribute::new("rtpmap", format_args!("{payload_type} {map}"))].into(),
        }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, attribute: Attribute) -> Self {
        self.attributes.push(attribute);
        self
    }

    /// The value of an attribute that has one.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        value_of(&self.attributes, name)
    }

    /// The first payload type, if it is one.
    pub fn payload_type(&self) -> Option<u8> {
        self.formats.first()?.parse().ok().filter(|&number: &u8| number < 128)
    }

    /// The encoding of the first payload type: from `a=rtpmap`, or the static one (RFC 3551).
    pub fn encoding(&self) -> Option<&str> {
        let number = self.payload_type()?;
        let maps = self.attributes.iter().filter(|attribute| attribute.name == "rtpmap");
        let mut known = maps.filter_map(|map| map.value.as_deref()?.split_once(' '));
        let own = known.find(|(of, _)| of.parse() == Ok(number)).map(|(_, map)| map.trim());
        own.or((number == rtp::MP2T).then_some("MP2T/90000"))
    }
}

impl Description {
    /// The value of a session attribute.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        value_of(&self.attributes, name)
    }

    /// Parses `text`.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn read(text: &str) -> Result<Self, SdpFault> {
        if text.len() > LEN_MAX {
            return Err(SdpFault::Long);
        }
        let mut lines = text.lines().filter(|line| !line.is_empty());
        if lines.next() != Some("v=0") {
            return Err(SdpFault::Version);
        }
        let (mut origin, mut name) = (None, None);
        let (mut information, mut connection) = (None, None);
        let (mut attributes, mut media) = (Vec::new(), Vec::<Media>::new());
        for line in lines {
            let &[kind, b'=', ..] = line.as_bytes() else { return Err(SdpFault::Line) };
            let value = &line[2..];
            if kind == b'm' {
                if media.len() == MEDIA_MAX {
                    return Err(SdpFault::TooManyMedia);
                }
                media.push(read_media(value).ok_or(SdpFault::Media)?);
                continue;
            }
            match (kind, media.last_mut()) {
                (b'c', last) => {
                    let read = Some(read_connection(value).ok_or(SdpFault::Connection)?);
                    match last {
                        Some(last) => last.connection = read,
                        None => connection = read,
                    }
                }
                (b'a', last) => {
                    let attribute = match value.split_once(':') {
                        Some((name, value)) => Attribute::new(name, value),
                        None => Attribute::flag(value),
                    };
                    last.map_or(&mut attributes, |last| &mut last.attributes).push(attribute);
                }
                (b'b', Some(last)) => {
                    // Unknown bandwidth types are ignored (section 5.8).
                    if let Some(value) = value.strip_prefix("AS:") {
                        last.bandwidth = Some(value.parse().map_err(|_| SdpFault::Line)?);
                    }
                }
                (b'o', None) => origin = Some(read_origin(value).ok_or(SdpFault::Origin)?),
                (b's', None) => name = Some(value.to_owned()),
                (b'i', None) => information = Some(value.to_owned()),
                (b'b' | b'u' | b'e' | b'p' | b't' | b'r' | b'z' | b'k' | b'i', _) => {}
                _ => return Err(SdpFault::Line),
            }
        }
        let origin = origin.ok_or(SdpFault::Origin)?;
        let name = name.ok_or(SdpFault::Line)?;
        Ok(Self { origin, name, information, connection, attributes, media })
    }
}

/// The broken rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SdpFault {
    /// Longer than [`LEN_MAX`].
    Long,
    /// It does not begin with `v=0`.
    Version,
    /// An invalid, misplaced or missing line.
    Line,
    /// A missing or invalid `o=`.
    Origin,
    /// An invalid `c=`.
    Connection,
    /// An invalid `m=`.
    Media,
    /// More than [`MEDIA_MAX`].
    TooManyMedia,
}

fn value_of<'a>(attributes: &'a [Attribute], name: &str) -> Option<&'a str> {
    attributes.iter().find(|attribute| attribute.name == name)?.value.as_deref()
}

fn read_origin(value: &str) -> Option<Origin> {
    let mut words = value.split(' ');
    let (_user, session, version) = (words.next()?, words.next()?, words.next()?);
    let (_net, _family, address) = (words.next()?, words.next()?, words.next()?);
    // Longer numbers saturate: they only identify sessions.
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let address = address.parse().ok();
    Some(Origin { session: number(session)?, version: number(version)?, address })
}

fn read_connection(value: &str) -> Option<Connection> {
    let (family, rest) = value.strip_prefix("IN IP")?.split_once(' ')?;
    let mut parts = rest.split('/');
    let address: IpAddr = parts.next()?.parse().ok()?;
    let hops = match (family, address) {
        ("4", IpAddr::V4(_)) => {
            parts.next().map(|hops| hops.parse().ok()).map_or(Some(None), |hops| hops.map(Some))?
        }
        ("6", IpAddr::V6(_)) => None,
        _ => return None,
    };
    Some(Connection { address, hops })
}

fn read_media(value: &str) -> Option<Media> {
    let mut words = value.split(' ');
    let (kind, port, protocol) = (words.next()?, words.next()?, words.next()?);
    let port = port.split('/').next()?.parse().ok()?;
    let formats: Vec<String> = words.map(ToOwned::to_owned).collect();
    (!kind.is_empty() && !formats.is_empty()).then(|| Media {
        kind: kind.into(),
        port,
        protocol: protocol.into(),
        formats,
        connection: None,
        bandwidth: None,
        attributes: Vec::new(),
    })
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Origin { session, version, address } = self.origin;
        let address = address.unwrap_or(IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED));
        let family = family(address);
        write!(f, "v=0\r\no=- {session} {version} IN IP{family} {address}\r\n")?;
        // A name may not be empty (section 5.3).
        let name = if self.name.is_empty() { " " } else { &self.name };
        write!(f, "s={}\r\n", SingleLine(name))?;
        if let Some(information) = &self.information {
            write!(f, "i={}\r\n", SingleLine(information))?;
        }
        write_connection(f, self.connection)?;
        // Permanent: the announcer ends it.
        f.write_str("t=0 0\r\n")?;
        write_attributes(f, &self.attributes)?;
        for media in &self.media {
            write!(
                f,
                "m={} {} {}",
                SingleLine(&media.kind),
                media.port,
                SingleLine(&media.protocol)
            )?;
            for format in &media.formats {
                write!(f, " {}", SingleLine(format))?;
            }
            f.write_str("\r\n")?;
            write_connection(f, media.connection)?;
            if let Some(bandwidth) = media.bandwidth {
                write!(f, "b=AS:{bandwidth}\r\n")?;
            }
            write_attributes(f, &media.attributes)?;
        }
        Ok(())
    }
}

fn write_connection(f: &mut fmt::Formatter<'_>, one: Option<Connection>) -> fmt::Result {
    let Some(Connection { address, hops }) = one else { return Ok(()) };
    write!(f, "c=IN IP{} {address}", family(address))?;
    if let (IpAddr::V4(_), Some(hops)) = (address, hops) {
        write!(f, "/{hops}")?;
    }
    f.write_str("\r\n")
}

fn write_attributes(f: &mut fmt::Formatter<'_>, attributes: &[Attribute]) -> fmt::Result {
    for Attribute { name, value } in attributes {
        match value {
            Some(value) => write!(f, "a={}:{}\r\n", SingleLine(name), SingleLine(value))?,
            None => write!(f, "a={}\r\n", SingleLine(name))?,
        }
    }
    Ok(())
}

const fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { 4 } else { 6 }
}

/// Text without line ends.
struct SingleLine<'a>(&'a str);

impl fmt::Display for SingleLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        self.0.chars().try_for_each(|one| f.write_char(if one.is_control() { ' ' } else { one }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use proptest::prelude::*;

    fn session() -> Description {
        let group = IpAddr::V4(Ipv4Addr::new(239, 1, 1, 1));
        Description {
            origin: Origin {
                session: 12,
                version: 3,
                address: Some(Ipv4Addr::new(192, 0, 2, 1).into()),
            },
            name: "lobby".into(),
            information: Some("/films/loop.ts".into()),
            connection: Some(Connection { address: group, hops: Some(8) }),
            attributes: [Attribute::flag("recvonly")].into(),
            media: [Media { bandwidth: Some(9_250), ..Media::mp2t(5004) }].into(),
        }
    }

    #[test]
    fn a_channel_is_described_as_players_expect_it() {
        let text = "v=0\r\no=- 12 3 IN IP4 192.0.2.1\r\ns=lobby\r\ni=/films/loop.ts\r\n\
                    c=IN IP4 239.1.1.1/8\r\nt=0 0\r\na=recvonly\r\n\
                    m=video 5004 RTP/AVP 33\r\nb=AS:9250\r\na=rtpmap:33 MP2T/90000\r\n";
        assert_eq!(session().to_string(), text);
        assert_eq!(Description::read(text), Ok(session()));
        assert_eq!(session().media[0].encoding(), Some("MP2T/90000"));
        let mut six = session();
        let group: Ipv6Addr = "ff3e::8000:1".parse().unwrap();
        six.connection = Some(Connection { address: group.into(), hops: None });
        assert!(six.to_string().contains("c=IN IP6 ff3e::8000:1\r\n"));
        assert_eq!(Description::read(&six.to_string()), Ok(six));
    }

    #[test]
    fn what_encoders_announce_is_understood() {
        let text = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=No Name\nc=IN IP4 127.0.0.1\nt=0 0\n\
                    a=tool:libavformat\nm=video 0 RTP/AVP 96\nb=AS:2000\n\
                    a=rtpmap:96 H264/90000\na=fmtp:96 packetization-mode=1\na=control:streamid=0\n\
                    m=audio 0/2 RTP/AVP 97 0\na=rtpmap:0 PCMU/8000\n\
                    a=rtpmap:97 MPEG4-GENERIC/48000/2\na=control:streamid=1\n";
        let read = Description::read(text).unwrap();
        let [video, audio] = &read.media[..] else { panic!("two") };
        assert_eq!(video.encoding(), Some("H264/90000"));
        assert_eq!(video.attribute("fmtp"), Some("96 packetization-mode=1"));
        assert_eq!((video.attribute("control"), video.bandwidth), (Some("streamid=0"), Some(2000)));
        assert_eq!(audio.encoding(), Some("MPEG4-GENERIC/48000/2"));
        assert_eq!(read.attribute("tool"), Some("libavformat"));
        assert_eq!(Media::mp2t_plain(1).encoding(), Some("MP2T/90000"));
    }

    #[test]
    fn each_rule_is_told_by_name() {
        let head = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=-\n";
        let with = |rest: &str| Description::read(&alloc::format!("{head}{rest}")).map(|_| ());
        assert_eq!(with("t=0 0\nk=prompt\nm=video 1 udp 33\ni=x\n"), Ok(()));
        assert_eq!(with(&"a".repeat(LEN_MAX)), Err(SdpFault::Long));
        assert_eq!(with(&"m=video 1 udp 33\n".repeat(16)), Ok(()));
        assert_eq!(with(&"m=video 1 udp 33\n".repeat(17)), Err(SdpFault::TooManyMedia));
        for line in ["m=video", "m=video x udp 33", "m=video 65536 udp 33", "m=video 1 udp"] {
            assert_eq!(with(line), Err(SdpFault::Media), "{line}");
        }
        for line in ["c=IN IP4", "c=IN IP4 ::1", "c=IN IP6 10.0.0.1", "c=IN IP4 239.1.1.1/900"] {
            assert_eq!(with(line), Err(SdpFault::Connection), "{line}");
        }
        for line in ["x", "=", "ä=1", "q=1", "m=a 1 b 2\ns=late", "m=a 1 b 2\nb=AS:-1"] {
            assert_eq!(with(line), Err(SdpFault::Line), "{line}");
        }
        assert_eq!(Description::read("v=0\ns=x\n"), Err(SdpFault::Origin));
        assert_eq!(Description::read("v=0\no=- a b IN IP4 ::1\ns=x\n"), Err(SdpFault::Origin));
        assert_eq!(Description::read("v=0\no=- 1 1 IN IP4 h\n"), Err(SdpFault::Line));
        assert_eq!(Description::read("s=x\nv=0\n"), Err(SdpFault::Version));
        assert_eq!(Description::read(""), Err(SdpFault::Version));
    }

    proptest! {
        #[test]
        fn no_text_begins_a_line_of_its_own(name in any::<String>(), value in any::<String>()) {
            let mut one = session();
            one.name.clone_from(&name);
            one.attributes.push(Attribute::new("x", &value));
            let text = one.to_string();
            prop_assert_eq!(text.lines().count(), session().to_string().lines().count() + 1);
            let read = Description::read(&text);
            prop_assert!(read.is_ok(), "{read:?}");
        }

        #[test]
        fn no_text_is_hostile_enough(
            lines in proptest::collection::vec("[a-z]?=?[ -~é:/0-9]{0,40}", 0..30),
            any in any::<String>(),
        ) {
            let text = alloc::format!("v=0\n{}", lines.join("\n"));
            if let Ok(read) = Description::read(&text) {
                prop_assert_eq!(
                    Description::read(&read.to_string()).map(|read| read.media.len()),
                    Ok(read.media.len())
                );
            }
            drop(Description::read(&any));
        }
    }
}
