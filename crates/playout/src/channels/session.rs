//! RTCP sender reports and SAP announcements of a channel.
//!
//! Promise: reports map timestamps to the wall clock, come about every five seconds and end with a
//! BYE (RFC 3550, section 6). An announcement is sent at once, then at the intervals of RFC 2974,
//! and is deleted at the end. A failed send counts as a loss.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tactus_core::datagrams::{SOUND_PAYLOAD_TYPE, Session};
use tactus_core::rtp::pcm::{self, PcmFormat};
use tactus_core::rtp::rtcp::{Compound, Interval, NtpTime, SenderInfo, Timeline};
use tactus_core::sdp::{Attribute, Connection, Description, Media, Origin};
use tactus_core::units::{BitRate, MonoTime};
use tactus_engine::counters::StreamCounters;
use tactus_sys::clock;

use crate::channel::Channel;
use crate::recording::Kind;

/// Random initial values of an RTP session (RFC 3550, section 5.1).
pub(super) fn random() -> [u8; 10] {
    let mut bytes = [0; 10];
    let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    if !matches!(filled, Ok(10)) {
        // The host may have no random bits yet. Then the values only have to differ between
        // channels.
        let now = clock::now().0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bytes[..8].copy_from_slice(&now.to_le_bytes());
    }
    bytes
}

fn chance() -> u32 {
    let [a, b, c, d, ..] = random();
    u32::from_le_bytes([a, b, c, d])
}

/// A new RTP session.
pub(super) fn new() -> Session {
    let [a, b, c, d, e, f, g, h, i, j] = random();
    Session {
        source: u32::from_le_bytes([a, b, c, d]),
        timestamp: u32::from_le_bytes([e, f, g, h]),
        sequence: u16::from_le_bytes([i, j]),
    }
}

/// The reports of one RTP session.
pub(super) struct Reports {
    socket: UdpSocket,
    to: SocketAddr,
    session: Session,
    name: String,
    is_sound: bool,
    rate: BitRate,
    last: Option<LastReport>,
    due: Instant,
}

/// The last report, which BYE repeats.
#[derive(Clone, Copy)]
struct LastReport {
    timeline: Timeline,
    packets: u64,
    bytes: u64,
}

impl Reports {
    /// The reports of `session`, which sends at about `rate`; `None` if there is no port for them.
    pub(super) fn new(
        socket: UdpSocket,
        channel: &Channel,
        session: Session,
        rate: BitRate,
    ) -> Option<Self> {
        let to = channel.to.to;
        let to = SocketAddr::new(to.ip(), to.port().checked_add(1)?);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let (name, is_sound) = (format!("{}@{host}", channel.name), channel.sound.is_some());
        let first = Interval::of_sender(rate, true).next(chance());
        let due = Instant::now() + Duration::from_nanos(first.0);
        Some(Self { socket, to, session, name, is_sound, rate, last: None, due })
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Sends a report if one is due.
    pub(super) fn poll(&mut self, counters: &StreamCounters) {
        let epoch = counters.epoch.value();
        if epoch != 0 && counters.session_packets.value() > 0 {
            let timeline = Timeline { epoch: MonoTime(epoch), base: self.session.timestamp };
            let packets = counters.session_packets.value();
            self.last =
                Some(LastReport { timeline, packets, bytes: counters.session_bytes.value() });
        }
        if Instant::now() < self.due {
            return;
        }
        let next = Interval::of_sender(self.rate, false).next(chance());
        self.due = Instant::now() + Duration::from_nanos(next.0);
        if let Some(report) = self.report() {
            self.send(&report.into_bytes());
        }
    }

    /// Sends the BYE.
    pub(super) fn end(self) {
        if let Some(report) = self.report() {
            self.send(&report.bye(self.session.source, "").into_bytes());
        }
    }

    fn report(&self) -> Option<Compound> {
        let LastReport { timeline, packets, bytes } = self.last?;
        // Both clocks, read together.
        let (time, now) = (NtpTime::of(clock::wall_now()), clock::now());
        let info = SenderInfo {
            time,
            timestamp: match self.is_sound {
                true => self.session.timestamp.wrapping_add(pcm::samples(now) as u32),
                false => timeline.timestamp(now),
            },
            // Both wrap at their width.
            packets: packets as u32,
            octets: bytes as u32,
        };
        let source = self.session.source;
        Some(Compound::of_sender(source, &info, &[]).name(source, &self.name))
    }

    fn send(&self, bytes: &[u8]) {
        if let Err(error) = self.socket.send_to(bytes, self.to) {
            tracing::debug!(to = %self.to, %error, "an RTCP report was not sent");
        }
    }
}

/// The session description of a channel.
pub(super) fn describe(channel: &Channel, from: Option<IpAddr>, number: u64) -> Description {
    let to = channel.to.to;
    let mut media = match (channel.sound, channel.to.kind) {
        (Some(format), _) => sound(to.port(), format),
        (None, Kind::Udp) => Media::mp2t_plain(to.port()),
        (None, Kind::Rtp) => Media::mp2t(to.port()),
    };
    if let (true, Some(source)) = (is_source_specific(to.ip()), from) {
        // RFC 4570.
        let family = if to.is_ipv4() { "IP4" } else { "IP6" };
        let filter = format!(" incl IN {family} {} {source}", to.ip());
        media = media.with(Attribute::new("source-filter", filter));
    }
    let hops = (to.ip().is_multicast() && to.is_ipv4()).then_some(channel.hops);
    Description {
        origin: Origin { session: number, version: number, address: from },
        name: channel.name.clone(),
        information: None,
        connection: Some(Connection { address: to.ip(), hops }),
        attributes: vec![
            Attribute::new("tool", concat!("tactus ", env!("CARGO_PKG_VERSION"))),
            Attribute::new("type", "broadcast"),
            Attribute::flag("recvonly"),
        ],
        media: vec![media],
    }
}

/// A medium of sound (AES67, section 8). There is no PTP: the reference clock is that of this host
/// (RFC 7273, section 4.8), whose zero has the timestamp zero (section 5.2).
fn sound(port: u16, format: PcmFormat) -> Media {
    let PcmFormat { encoding, channels, packet_time } = format;
    let map = format!("{}/{}/{channels}", encoding.name(), pcm::SAMPLE_RATE);
    Media::rtp("audio", port, SOUND_PAYLOAD_TYPE, &map)
        .with(Attribute::new("ptime", packet_time.millis()))
        .with(Attribute::new("ts-refclk", "local"))
        .with(Attribute::new("mediaclk", "direct=0"))
}

/// The timestamp of the monotonic clock's zero on the media clock of all sound of this process. The
/// media clock counts samples of atomic time since 1970, as that of PTP does, as far as this host's
/// clock has it. It is read once: a step of that clock moves no stream.
pub(super) fn media_clock() -> u32 {
    static ZERO: OnceLock<u32> = OnceLock::new();
    *ZERO.get_or_init(|| {
        let (now, atomic) = (clock::now(), clock::atomic_now());
        // Both wrap at the width of timestamps.
        (pcm::samples(MonoTime(atomic.0)) as u32).wrapping_sub(pcm::samples(now) as u32)
    })
}

/// Whether the group is source-specific (RFC 4607, section 1).
pub(super) fn is_source_specific(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.octets()[0] == 232,
        IpAddr::V6(group) => group.octets()[0] == 0xff && group.octets()[1] >> 4 == 3,
    }
}

/// The URL in the syntax of set-top boxes and VLC.
pub(super) fn url(channel: &Channel, from: Option<IpAddr>) -> String {
    let kind = if channel.to.kind == Kind::Rtp { "rtp" } else { "udp" };
    let source = from.filter(|_| is_source_specific(channel.to.to.ip()));
    let source = match source {
        Some(IpAddr::V6(source)) => format!("[{source}]"),
        Some(source) => source.to_string(),
        None => String::new(),
    };
    format!("{kind}://{source}@{}", channel.to.to)
}

/// The announcement of one channel (RFC 2974).
pub(super) struct Announcement {
    socket: UdpSocket,
    to: SocketAddr,
    from: IpAddr,
    text: String,
    due: Instant,
}

/// Announced channels of this server, which share one bandwidth.
static ANNOUNCED: AtomicU32 = AtomicU32::new(0);

impl Announcement {
    pub(super) fn new(socket: UdpSocket, channel: &Channel, text: String, from: IpAddr) -> Self {
        ANNOUNCED.fetch_add(1, Ordering::Relaxed);
        let to = SocketAddr::new(place(channel.to.to.ip()), PORT);
        Self { socket, to, from, text, due: Instant::now() }
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Sends an announcement if one is due.
    pub(super) fn poll(&mut self) {
        if Instant::now() < self.due {
            return;
        }
        let packet = packet(&self.text, self.from, false);
        let all = ANNOUNCED.load(Ordering::Relaxed);
        self.due = Instant::now() + interval(packet.len(), all, chance());
        self.send(&packet);
    }

    /// Sends the deletion.
    pub(super) fn end(self) {
        self.send(&packet(&self.text, self.from, true));
    }

    fn send(&self, packet: &[u8]) {
        if let Err(error) = self.socket.send_to(packet, self.to) {
            tracing::debug!(to = %self.to, %error, "an announcement was not sent");
        }
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        ANNOUNCED.fetch_sub(1, Ordering::Relaxed);
    }
}

const PORT: u16 = 9875;

/// The SAP group for the scope of `group` (section 3).
fn place(group: IpAddr) -> IpAddr {
    match group {
        IpAddr::V4(group) => {
            let place = match group.octets() {
                // The highest address of the scopes of RFC 2365.
                [239, 255, ..] => Ipv4Addr::new(239, 255, 255, 255),
                [239, 192..=195, ..] => Ipv4Addr::new(239, 195, 255, 255),
                [239, ..] => Ipv4Addr::new(239, 255, 255, 255),
                _ => Ipv4Addr::new(224, 2, 127, 254),
            };
            place.into()
        }
        IpAddr::V6(group) => {
            let scope = group.segments()[0] & 0x000f;
            Ipv6Addr::new(0xff00 | scope, 0, 0, 0, 0, 0, 2, 0x7ffe).into()
        }
    }
}

/// The packet format of section 6.
fn packet(text: &str, from: IpAddr, is_deletion: bool) -> Vec<u8> {
    let flags = 1 << 5 | u8::from(from.is_ipv6()) << 4 | u8::from(is_deletion) << 2;
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    // Zero is reserved.
    let hash = (hasher.finish() as u16).max(1).to_be_bytes();
    let mut packet = vec![flags, 0, hash[0], hash[1]];
    match from {
        IpAddr::V4(from) => packet.extend(from.octets()),
        IpAddr::V6(from) => packet.extend(from.octets()),
    }
    packet.extend(b"application/sdp\0");
    // A deletion needs only the origin line.
    let text = match is_deletion {
        true => text.lines().find(|line| line.starts_with("o=")).unwrap_or_default(),
        false => text,
    };
    packet.extend(text.as_bytes());
    packet
}

/// The announcement interval (section 3.1): 4,000 bit/s for all, at least five minutes, randomised
/// by a third.
fn interval(len: usize, count: u32, random: u32) -> Duration {
    let base = (8 * len as u64 * u64::from(count) / 4000).max(300) * 1000;
    let offset = base * 2 / 3 * u64::from(random) / (1 << 32);
    Duration::from_millis(base - base / 3 + offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(to: &str) -> Channel {
        let text = format!("name = \"a b\"\ntitle = \"/a\"\nto = \"{to}\"\nhops = 9\n");
        Channel::parse(&text.replace("a b", "a-b")).unwrap()
    }

    #[test]
    fn players_are_told_where_and_from_whom() {
        let from: IpAddr = "192.0.2.1".parse().unwrap();
        let any = describe(&channel("rtp://239.1.1.1:5004"), Some(from), 7).to_string();
        assert!(
            any.contains("c=IN IP4 239.1.1.1/9\r\n") && !any.contains("source-filter"),
            "{any}"
        );
        let specific = describe(&channel("udp://232.1.1.1:5000"), Some(from), 7).to_string();
        assert!(specific.contains("a=source-filter: incl IN IP4 232.1.1.1 192.0.2.1\r\n"));
        assert!(specific.contains("m=video 5000 udp 33\r\n"), "{specific}");
        let six =
            describe(&channel("rtp://[ff3e::8000:1]:5004"), "::1".parse().ok(), 7).to_string();
        assert!(six.contains("c=IN IP6 ff3e::8000:1\r\n"));
        for text in [any, specific, six] {
            assert!(Description::read(&text).is_ok());
        }
        for (to, url) in [
            ("rtp://239.1.1.1:5004", "rtp://@239.1.1.1:5004"),
            ("udp://232.1.1.1:5000", "udp://192.0.2.1@232.1.1.1:5000"),
            ("rtp://[ff1e::1]:5004", "rtp://@[ff1e::1]:5004"),
        ] {
            assert_eq!(super::url(&channel(to), Some(from)), url);
        }
    }

    #[test]
    fn sound_is_described_as_aes67_has_it_as_far_as_that_goes_without_ptp() {
        let text = "name = \"a\"\ntitle = \"/a.wav\"\nto = \"rtp://239.69.1.1:5004\"\n\
                    format = \"aes67\"\nchannels = 8\npacket_time = \"125 us\"\n";
        let text = describe(&Channel::parse(text).unwrap(), None, 7).to_string();
        let media = "m=audio 5004 RTP/AVP 96\r\na=rtpmap:96 L24/48000/8\r\na=ptime:0.125\r\n\
                     a=ts-refclk:local\r\na=mediaclk:direct=0\r\n";
        assert!(text.ends_with(media), "{text}");
        assert!(Description::read(&text).is_ok());
    }

    #[test]
    fn announcements_go_to_the_group_of_their_scope() {
        for (group, to) in [
            ("224.2.130.1", "224.2.127.254"),
            ("232.1.1.1", "224.2.127.254"),
            ("239.255.1.1", "239.255.255.255"),
            ("239.193.1.1", "239.195.255.255"),
            ("ff3e::8000:1", "ff0e::2:7ffe"),
            ("ff15::1", "ff05::2:7ffe"),
        ] {
            assert_eq!(place(group.parse().unwrap()).to_string(), to);
        }
    }

    #[test]
    fn an_announcement_is_as_the_rfc_has_it_and_so_is_its_end() {
        let text = "v=0\r\no=- 7 7 IN IP4 192.0.2.1\r\ns=a\r\n";
        let from = "192.0.2.1".parse().unwrap();
        let (begin, end) = (packet(text, from, false), packet(text, from, true));
        assert_eq!((begin[0], begin[1], end[0]), (0x20, 0, 0x24));
        assert_eq!(begin[2..8], end[2..8], "the same session");
        assert_eq!(begin[4..8], [192, 0, 2, 1]);
        assert_eq!(&begin[8..], [b"application/sdp\0", text.as_bytes()].concat());
        assert_eq!(&end[8..], b"application/sdp\0o=- 7 7 IN IP4 192.0.2.1");
        assert_eq!(packet(text, "::1".parse().unwrap(), false)[..2], [0x30, 0]);
        // 300 s, randomised by a third; with many channels it depends on their bytes.
        let seconds = |random| interval(500, 1, random).as_secs();
        assert_eq!((seconds(0), seconds(u32::MAX)), (200, 399));
        assert_eq!(interval(500, 1000, 1 << 31).as_secs(), 1000);
    }
}
