//! The `Transport` field (RFC 2326, section 12.39; RFC 7826, section 18.54). Its literals are
//! case-insensitive (RFC 2326, section 15.1; RFC 7826, section 20.1).
//!
//! Promise: unknown offers are skipped. Ports to which a server must not send are refused (row
//! S09). Permitted addresses are decided elsewhere.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::message::whole;
use super::{Status, Version};

/// Most offers of one request.
const OFFERS_MAX: usize = 16;

/// The ports of RTP and of RTCP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ports {
    /// The RTP port; even in the server's own pairs.
    pub rtp: u16,
}

impl Ports {
    /// A client's pair, beginning at `rtp`, above the ports of services. RTP should use an even
    /// port, but need not (RFC 3550, section 11).
    pub fn new(rtp: u16) -> Option<Self> {
        (1024..u16::MAX).contains(&rtp).then_some(Self { rtp })
    }

    /// A pair of the server, beginning at `rtp`, which must be even.
    pub fn even(rtp: u16) -> Option<Self> {
        Self::new(rtp).filter(|ports| ports.rtp.is_multiple_of(2))
    }

    /// Whether the pairs share a port.
    pub const fn meets(self, other: Self) -> bool {
        self.rtp.abs_diff(other.rtp) <= 1
    }

    /// The RTCP port.
    pub const fn rtcp(self) -> u16 {
        self.rtp + 1
    }

    /// `5000-5001`, or `5000` for the same.
    fn parse(text: &str) -> Option<Self> {
        let (first, last) = pair(text)?;
        let ports = Self::new(u16::try_from(first).ok()?)?;
        last.is_none_or(|last| last == u32::from(ports.rtcp())).then_some(ports)
    }
}

/// The lower transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lower {
    /// UDP to these ports of one receiver.
    Unicast(Ports),
    /// UDP to a multicast group; its port, if named.
    Multicast(Option<Ports>),
    /// Interleaved: the channels of RTP and RTCP, if named.
    Interleaved(Option<(u8, u8)>),
}

/// The syntax of receivers. RTSP 2.0 has addresses; its one client writes ports all the same, and
/// is answered so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// `client_port` and `server_port`, with `destination` and `source` beside them (RFC 2326).
    Ports,
    /// `dest_addr` and `src_addr` (RFC 7826).
    Addresses,
}

/// Both ends of a UDP transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The receiver.
    pub to: IpAddr,
    /// Its ports.
    pub client: Ports,
    /// The sender.
    pub from: IpAddr,
    /// Its ports.
    pub server: Ports,
}

impl Form {
    /// The Transport header of a unicast answer.
    pub fn unicast(self, ends: Ends) -> String {
        let Ends { to, client, from, server } = ends;
        match self {
            Self::Ports => format!(
                "RTP/AVP/UDP;unicast;destination={to};source={from};client_port={};server_port={}",
                pair_of(client),
                pair_of(server),
            ),
            Self::Addresses => format!(
                "RTP/AVP/UDP;unicast;dest_addr={};src_addr={}",
                addresses_of(to, client),
                addresses_of(from, server),
            ),
        }
    }

    /// The Transport header of a multicast answer.
    pub fn multicast(self, group: IpAddr, ports: Ports, hops: u8) -> String {
        match self {
            Self::Ports => format!(
                "RTP/AVP/UDP;multicast;destination={group};port={};ttl={hops}",
                pair_of(ports)
            ),
            Self::Addresses => {
                format!("RTP/AVP/UDP;multicast;dest_addr={};ttl={hops}", addresses_of(group, ports))
            }
        }
    }

    /// The status for a forbidden destination: RTSP 2.0 has its own (RFC 7826, section 17.4.27).
    pub const fn prohibited(self) -> Status {
        match self {
            Self::Ports => Status::UNSUPPORTED_TRANSPORT,
            Self::Addresses => Status::DESTINATION_PROHIBITED,
        }
    }
}

fn pair_of(ports: Ports) -> String {
    format!("{}-{}", ports.rtp, ports.rtcp())
}

fn addresses_of(ip: IpAddr, ports: Ports) -> String {
    let [rtp, rtcp] = [ports.rtp, ports.rtcp()].map(|port| SocketAddr::new(ip, port));
    format!("\"{rtp}\"/\"{rtcp}\"")
}

/// One offered transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The lower transport.
    pub lower: Lower,
    /// A destination other than the requesting address, or a group.
    pub destination: Option<IpAddr>,
    /// The TTL of multicast packets.
    pub ttl: Option<u8>,
    /// The client sends (`mode=RECORD`).
    pub records: bool,
    /// The syntax of its receiver.
    pub form: Form,
}

/// The supported and permitted offers of a request in `version`, best first.
pub fn offers(version: Version, value: &str) -> Vec<Offer> {
    // A quoted string is one value: separators inside it do not count.
    let mut is_quoted = false;
    let ends = |c: char| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    };
    value.split(ends).take(OFFERS_MAX).filter_map(|text| offer(version, text)).collect()
}

fn offer(version: Version, text: &str) -> Option<Offer> {
    let is_two = version == Version::Two;
    let mut parts = text.split(';').map(str::trim);
    let is_tcp = match parts.next()?.to_ascii_lowercase().as_str() {
        "rtp/avp" | "rtp/avp/udp" => false,
        "rtp/avp/tcp" => true,
        _ => return None,
    };
    let (mut unicast, mut client_port, mut port) = (None, None, None);
    let (mut channels, mut destination, mut ttl, mut records) = (None, None, None, false);
    let mut form = Form::Ports;
    for part in parts {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let value = value.trim();
        match name.trim().to_ascii_lowercase().as_str() {
            "unicast" => unicast = Some(true),
            "multicast" => unicast = Some(false),
            "client_port" => client_port = Some(Ports::parse(value)?),
            "port" => port = Some(Ports::parse(value)?),
            // An empty value means the default: the requesting address.
            "destination" if value.is_empty() => {}
            "destination" => destination = Some(value.trim_matches(['[', ']']).parse().ok()?),
            "dest_addr" if is_two => {
                let (to, ports) = addresses(value)?;
                (destination, client_port, port) = (to, Some(ports), Some(ports));
                form = Form::Addresses;
            }
            // RTCP has its own port here (RFC 7826, appendix C.1.6.4).
            "rtcp-mux" if is_two => return None,
            "ttl" => ttl = Some(u8::try_from(whole(value)?).ok()?),
            "interleaved" => {
                let (first, last) = pair(value)?;
                let first = u8::try_from(first).ok()?;
                let last = match last {
                    Some(last) => u8::try_from(last).ok()?,
                    None => first.checked_add(1)?,
                };
                channels = (first != last).then_some((first, last));
                channels?;
            }
            "mode" => {
                let mode = value.trim_matches('"');
                // RTSP 2.0 has no recording.
                if is_two && !mode.eq_ignore_ascii_case("play") {
                    return None;
                }
                records =
                    mode.eq_ignore_ascii_case("record") || mode.eq_ignore_ascii_case("receive");
                if !records && !mode.eq_ignore_ascii_case("play") {
                    return None;
                }
            }
            // `append`, `layers`, `ssrc` and unknown parameters have no effect.
            _ => {}
        }
    }
    let lower = match (is_tcp, unicast, client_port) {
        (true, Some(false), _) => return None,
        (true, ..) => Lower::Interleaved(channels),
        // Interleaved channels with an unknown protocol.
        (false, ..) if channels.is_some() => return None,
        // The default is multicast (section 12.39), unless client ports are given.
        (false, Some(false), _) | (false, None, None) => Lower::Multicast(port),
        (false, Some(true) | None, Some(ports)) => Lower::Unicast(ports),
        // A recording client gets the server's ports; its own are not used.
        (false, Some(true), None) => return None,
    };
    Some(Offer { lower, destination, ttl, records, form })
}

/// `":8000"/":8001"`, `"10.0.0.1:8000"`, `"[::1]:8000"/"[::1]:8001"`: one receiver and its ports.
/// Without an address it is the requesting address.
fn addresses(text: &str) -> Option<(Option<IpAddr>, Ports)> {
    let mut parts = text.split('/').map(|part| {
        let part = part.trim().strip_prefix('"')?.strip_suffix('"')?;
        let (host, port) = part.rsplit_once(':')?;
        let host = match host.strip_prefix('[') {
            _ if host.is_empty() => None,
            Some(six) => Some(IpAddr::V6(six.strip_suffix(']')?.parse().ok()?)),
            None => Some(IpAddr::V4(host.parse().ok()?)),
        };
        Some((host, u16::try_from(whole(port)?).ok()?))
    });
    let (host, rtp) = parts.next()??;
    let ports = Ports::new(rtp)?;
    match parts.next() {
        None => {}
        Some(rtcp) if rtcp? == (host, ports.rtcp()) => {}
        Some(_) => return None,
    }
    parts.next().is_none().then_some((host, ports))
}

/// `a-b` or `a`.
fn pair(text: &str) -> Option<(u32, Option<u32>)> {
    match text.split_once('-') {
        None => Some((whole(text)?, None)),
        Some((first, last)) => Some((whole(first)?, Some(whole(last)?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offers(value: &str) -> Vec<Offer> {
        super::offers(Version::One, value)
    }

    fn unicast(rtp: u16) -> Lower {
        Lower::Unicast(Ports { rtp })
    }

    #[test]
    fn what_players_offer_is_understood() {
        let plain = |lower| Offer {
            lower,
            destination: None,
            ttl: None,
            records: false,
            form: Form::Ports,
        };
        // ffmpeg, GStreamer, live555.
        assert_eq!(offers("RTP/AVP/UDP;unicast;client_port=20034-20035"), [plain(unicast(20034))]);
        let text = "RTP/AVP;unicast;client_port=42104-42105;mode=\"PLAY\",RTP/AVP/TCP;unicast;\
                    interleaved=0-1";
        let tcp = plain(Lower::Interleaved(Some((0, 1))));
        assert_eq!(offers(text), [plain(unicast(42104)), tcp]);
        assert_eq!(offers("RTP/AVP/UDP;multicast"), [plain(Lower::Multicast(None))]);
        assert_eq!(offers("RTP/AVP"), [plain(Lower::Multicast(None))]);
        let group = "239.1.1.1".parse().ok();
        let port = Some(Ports { rtp: 5004 });
        let asked = Offer { destination: group, ttl: Some(16), ..plain(Lower::Multicast(port)) };
        assert_eq!(
            offers("RTP/AVP;multicast;destination=239.1.1.1;port=5004-5005;ttl=16"),
            [asked]
        );
        assert!(offers("RTP/AVP/TCP;unicast;mode=record;interleaved=2-3")[0].records);
        assert_eq!(offers("RAW/RAW/UDP;unicast;client_port=5000-5001"), []);
    }

    #[test]
    fn s09_ports_of_services_wide_pairs_and_huge_ones_are_not_taken() {
        let taken = |ports: &str| offers(&format!("RTP/AVP;unicast;client_port={ports}")).len();
        for good in ["1024-1025", "5000", "65534-65535", "5001-5002", "5001", "65533-65534"] {
            assert_eq!(taken(good), 1, "{good}");
        }
        for bad in [
            "0",
            "0-1",
            "22-23",
            "1022-1023",
            "1023-1024",
            "5000-5002",
            "5001-5000",
            "5001-5001",
            "5000-4999",
            "65535",
            "65535-65536",
            "65536-65537",
            "70000-70001",
            "-5000",
            "5000-",
            "",
            "5000-5001-5002",
            "5e3",
            "4294972296-4294972297",
        ] {
            assert_eq!(taken(bad), 0, "{bad}");
        }
        assert_eq!(offers("RTP/AVP;unicast"), [], "no port at all");
    }

    #[test]
    fn s12_channels_are_bytes() {
        let taken = |channels: &str| offers(&format!("RTP/AVP/TCP;interleaved={channels}")).len();
        for good in ["0-1", "254-255", "4", "1-0"] {
            assert_eq!(taken(good), 1, "{good}");
        }
        for bad in ["255-256", "256-257", "255", "0-0", "-1", ""] {
            assert_eq!(taken(bad), 0, "{bad}");
        }
    }

    #[test]
    fn s08_a_destination_is_an_address_in_numbers() {
        let to = |text: &str| {
            offers(&format!("RTP/AVP;unicast;destination={text};client_port=5000-5001"))
        };
        assert_eq!(to("10.0.0.1")[0].destination, "10.0.0.1".parse().ok());
        assert_eq!(to("[::1]")[0].destination, "::1".parse().ok());
        assert_eq!(to("victim.example"), [], "names are not looked up, and not passed over");
    }

    #[test]
    fn receivers_of_two_are_addresses_and_ports_are_understood_all_the_same() {
        let two = |text: &str| super::offers(Version::Two, text);
        let at = |text: &str| two(&format!("RTP/AVP;unicast;dest_addr={text}"));
        let Offer { lower, destination, form, .. } = at("\":8000\"/\":8001\"")[0];
        assert_eq!((lower, destination, form), (unicast(8000), None, Form::Addresses));
        assert_eq!(at("\"[::1]:8000\"/\"[::1]:8001\"")[0].destination, "::1".parse().ok());
        assert_eq!(at("\"10.0.0.1:8000\"")[0].destination, "10.0.0.1".parse().ok());
        for bad in [
            "",
            ":8000",
            "\":8000\"/\":8002\"",
            "\":8001\"/\":8003\"",
            "\":22\"/\":23\"",
            "\"10.0.0.1:8000\"/\"10.0.0.2:8001\"",
            "\":8000\"/\":8001\"/\":8002\"",
            "\"::1:8000\"",
            "\"[10.0.0.1]:8000\"",
            "\"victim.example:8000\"",
            "\"8000\"",
        ] {
            assert_eq!(at(bad), [], "{bad}");
        }
        assert_eq!(at("\":8000\"/\":8001\";RTCP-mux"), [], "reports have a port of their own");
        assert_eq!(at("\":8000\"/\":8001\";mode=\"RECORD\""), []);
        let group =
            two("RTP/AVP;multicast;dest_addr=\"239.1.1.1:5004\"/\"239.1.1.1:5005\";ttl=4")[0];
        assert_eq!(group.lower, Lower::Multicast(Some(Ports { rtp: 5004 })));
        assert_eq!((group.destination, group.ttl), ("239.1.1.1".parse().ok(), Some(4)));
        // A request of GStreamer.
        let ports = "RTP/AVP;unicast;client_port=42104-42105";
        assert_eq!(two(ports), offers(ports));
        let tcp = "RTP/AVP/TCP;unicast;interleaved=0-1";
        assert_eq!(two(tcp), offers(tcp));
        assert_eq!(offers("RTP/AVP;unicast;dest_addr=\":8000\"/\":8001\""), [], "1.0 has none");
    }

    #[test]
    fn a_receiver_is_answered_as_it_was_written() {
        let [to, from] = ["10.0.0.7", "10.0.0.1"].map(|text| text.parse().unwrap());
        let [client, server] = [8000, 6970].map(|rtp| Ports { rtp });
        let ends = Ends { to, client, from, server };
        assert_eq!(
            Form::Ports.unicast(ends),
            "RTP/AVP/UDP;unicast;destination=10.0.0.7;source=10.0.0.1;client_port=8000-8001;\
             server_port=6970-6971"
        );
        assert_eq!(
            Form::Addresses.unicast(ends),
            "RTP/AVP/UDP;unicast;dest_addr=\"10.0.0.7:8000\"/\"10.0.0.7:8001\";\
             src_addr=\"10.0.0.1:6970\"/\"10.0.0.1:6971\""
        );
        let six = "ff3e::1".parse().unwrap();
        assert_eq!(
            Form::Addresses.multicast(six, client, 3),
            "RTP/AVP/UDP;multicast;dest_addr=\"[ff3e::1]:8000\"/\"[ff3e::1]:8001\";ttl=3"
        );
        assert_eq!(
            Form::Ports.multicast(six, client, 3),
            "RTP/AVP/UDP;multicast;destination=ff3e::1;port=8000-8001;ttl=3"
        );
    }

    /// Puts the letters of `text` whose bit in `upper` is set into upper case, the others into
    /// lower case.
    fn recased(text: &str, upper: u128) -> String {
        let letters = text.chars().enumerate();
        let recase = |(at, c): (usize, char)| match upper >> (at % 128) & 1 {
            1 => c.to_ascii_uppercase(),
            _ => c.to_ascii_lowercase(),
        };
        letters.map(recase).collect()
    }

    #[test]
    fn p04_literals_are_case_insensitive_and_odd_ports_are_used() {
        let value = "RTP/AVP;UNICAST;CLIENT_PORT=5001-5002";
        assert_eq!(offers(value)[0].lower, unicast(5001));
        assert_eq!(offers("rtp/avp/udp;Unicast;Client_Port=5003")[0].lower, unicast(5003));
        let tcp = Lower::Interleaved(Some((3, 4)));
        assert_eq!(offers("Rtp/Avp/Tcp;UNICAST;InterLeaved=3-4")[0].lower, tcp);
        let group = Lower::Multicast(Some(Ports { rtp: 5005 }));
        assert_eq!(offers("RTP/avp;MULTICAST;PORT=5005-5006;TTL=3")[0].lower, group);
        assert!(offers("RTP/AVP/TCP;MODE=Record;INTERLEAVED=0-1")[0].records);
        let two = |text: &str| super::offers(Version::Two, text);
        assert_eq!(two("RTP/AVP;Unicast;Dest_Addr=\":8001\"/\":8002\"")[0].lower, unicast(8001));
        assert_eq!(two("RTP/AVP;unicast;dest_addr=\":8000\"/\":8001\";rtcp-MUX"), []);
        // A comma inside quotes does not end an offer.
        let quoted = "RTP/AVP;unicast;x=\"a,b\";client_port=5000-5001,RTP/AVP/TCP";
        assert_eq!(offers(quoted).len(), 2);
        assert!(!Ports { rtp: 5000 }.meets(Ports { rtp: 5002 }));
        assert!(Ports { rtp: 5000 }.meets(Ports { rtp: 5001 }));
    }

    proptest! {
        #[test]
        fn p04_the_case_of_a_transport_changes_nothing(nth in 0usize..8, upper in any::<u128>()) {
            let value = [
                "RTP/AVP;unicast;client_port=42104-42105;mode=\"PLAY\",\
                 RTP/AVP/TCP;unicast;interleaved=0-1",
                "RTP/AVP/UDP;unicast;destination=::abcd;client_port=5001",
                "RTP/AVP;multicast;destination=239.1.1.1;port=5004-5005;ttl=16",
                "RTP/AVP/TCP;unicast;mode=receive;interleaved=2-3",
                "RTP/AVP;unicast;dest_addr=\"[fe80::a]:8000\"/\"[fe80::a]:8001\"",
                "RTP/AVP;unicast;dest_addr=\":8000\"/\":8001\";RTCP-mux",
                "RTP/AVP/TCP;unicast;interleaved=4-5;ssrc=DEADBEEF;append",
                "RTP/AVP;unicast;client_port=6000-6001;mode=record",
            ][nth];
            for version in [Version::One, Version::Two] {
                let expected = super::offers(version, value);
                prop_assert_eq!(super::offers(version, &recased(value, upper)), expected);
            }
        }

        #[test]
        fn any_text_gives_only_ports_that_may_be_sent_to(
            text in "RTP/AVP(/UDP|/TCP)?(;(unicast|client_port=[0-9]{0,6}-?[0-9]{0,6}|\
                port=[0-9-]{0,9}|dest_addr=\"[0-9.:]{0,12}\"(/\":[0-9]{0,6}\")?|ttl=[0-9]{0,4}|\
                interleaved=[0-9-]{0,7}|,|\\PC{0,6})){0,6}",
        ) {
            for offer in offers(&text).into_iter().chain(super::offers(Version::Two, &text)) {
                if let Lower::Unicast(ports) | Lower::Multicast(Some(ports)) = offer.lower {
                    prop_assert!(ports.rtp >= 1024 && ports.rtcp() == ports.rtp + 1);
                }
            }
        }
    }
}
