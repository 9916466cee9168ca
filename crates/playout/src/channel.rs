//! `[[channel]]`: titles that are sent as datagrams, one after another, without a request.
//!
//! Promise: an ambiguous address is refused, as for inputs.

mod sound;

pub mod raw;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value};
use tactus_control::class::{Classes, SendOptions};
use tactus_core::rtp::pcm::PcmFormat;
use tactus_core::units::{BitRate, Nanos, WallTime};
use tactus_notation::{Auto, ConfigError, checks, units};
use tactus_storage::dates;
use tactus_sys::packets::udp_output::is_broadcast;

use super::recording::Kind;

/// Upper bound of the titles of a channel: a month of one-minute titles.
pub const TITLES_MAX: usize = 50_000;

/// One channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Channel {
    /// Its name in logs, metrics and the API.
    pub name: String,
    /// Its titles and their times.
    pub playlist: Playlist,
    /// Its destination.
    pub to: Output,
    /// The name of the interface, for groups and link-local addresses.
    pub interface: Option<String>,
    /// The source address of its datagrams.
    pub source: Option<IpAddr>,
    /// The hop limit of its datagrams.
    pub hops: u8,
    /// The class of the link.
    pub class: Option<String>,
    /// The DSCP of its datagrams, six bits; none: the DSCP of its class.
    pub dscp: Option<u8>,
    /// Its rate; by default the rate that the title's PCRs give.
    pub rate: Auto<BitRate>,
    /// The constant rate of the output; null packets fill the difference to the title's rate.
    pub stuff: Option<BitRate>,
    /// How long the first of several datagrams may wait for the last of them; none: the limit of
    /// its class.
    pub burst: Option<Nanos>,
    /// Whether it is announced by SAP.
    pub announced: bool,
    /// The sound that it sends instead of transport streams.
    pub sound: Option<PcmFormat>,
    /// Channels with the same word here begin together.
    pub sync: Option<String>,
}

/// The titles of a channel and their times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Playlist {
    /// Titles that follow each other.
    pub list: List,
    /// Whether the list starts again after its end.
    pub repeats: bool,
    /// When the list begins; none: at once.
    pub start: Option<ScheduledTime>,
    /// Titles with a fixed time, at which they interrupt the present title.
    pub timed: Vec<(ScheduledTime, String)>,
    /// The title that is repeated when there is no other.
    pub fill: Option<String>,
}

/// Where the titles of a channel are listed; their paths are written as in URLs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum List {
    /// In the configuration; at least one.
    Titles(Vec<String>),
    /// In a file on a volume, one on each line.
    File(String),
}

/// A moment, or a time of each day.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScheduledTime {
    /// Once.
    At(WallTime),
    /// Each day at this second, in the host's time zone.
    Daily(u32),
}

impl ScheduledTime {
    /// Parses a moment.
    ///
    /// # Errors
    /// The text is invalid; the message shows the valid forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        let daily = || {
            let parts: Option<Vec<_>> = text.split(':').map(number).collect();
            let (hour, minute, second) = match parts?[..] {
                [hour, minute] => (hour, minute, 0),
                [hour, minute, second] => (hour, minute, second),
                _ => return None,
            };
            let is_right = hour < 24 && minute < 60 && second < 60;
            is_right.then_some(Self::Daily((hour * 3600 + minute * 60 + second) as u32))
        };
        dates::read_rfc_3339(text).map(Self::At).or_else(daily).ok_or_else(|| {
            format!("{text:?} is not a time; write it like \"20:00\" or \"2026-11-22T20:00:00Z\"")
        })
    }

    /// Its next occurrence after `now`; a moment occurs once.
    pub fn next(self, now: WallTime) -> Option<WallTime> {
        match self {
            Self::At(time) => (time > now).then_some(time),
            Self::Daily(seconds) => Some(tactus_sys::clock::next_daily(now, seconds)),
        }
    }
}

/// Two digits.
fn number(text: &str) -> Option<u64> {
    let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

impl fmt::Display for ScheduledTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::At(time) => f.write_str(&dates::rfc_3339(time)),
            Self::Daily(at) => {
                write!(f, "{:02}:{:02}:{:02}", at / 3600, at / 60 % 60, at % 60)
            }
        }
    }
}

impl List {
    /// Interprets a written playlist: a single name with the ending of a list is a file.
    pub fn of(mut names: Vec<String>) -> Self {
        match &names[..] {
            [one] if is_list(one) => Self::File(names.remove(0)),
            _ => Self::Titles(names),
        }
    }

    fn names(&self) -> &[String] {
        match self {
            Self::Titles(titles) => titles,
            Self::File(file) => std::slice::from_ref(file),
        }
    }
}

/// Whether a path has the ending of a list.
fn is_list(path: &str) -> bool {
    let ending = path.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    ["m3u", "m3u8", "txt"].contains(&&*ending)
}

impl Channel {
    /// Checks `text`, the content of one `[[channel]]`.
    ///
    /// # Errors
    /// The first mistake, with line and column.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        checks::table(text, "channel", raw::check)
    }

    /// How its datagrams are sent.
    ///
    /// # Errors
    /// Its class is unknown or does not permit this; the message says what to write instead.
    pub fn send_options(&self, classes: &Classes) -> Result<SendOptions, String> {
        classes.send_options(self.class.as_deref(), self.burst, self.dscp)
    }

    /// Whether `other` has the same output, so that this channel can change into `other` while it
    /// is sent: only the titles and the announcement may differ.
    pub fn leaves_as(&self, other: &Self) -> bool {
        let Self {
            name,
            playlist: _,
            to,
            interface,
            source,
            hops,
            class,
            dscp,
            rate,
            stuff,
            burst,
            announced: _,
            sound,
            sync,
        } = self;
        let is_same_output = (name, to, interface, source, hops)
            == (&other.name, &other.to, &other.interface, &other.source, &other.hops);
        is_same_output
            && (dscp, rate, stuff, burst) == (&other.dscp, &other.rate, &other.stuff, &other.burst)
            && *class == other.class
            && (sound, sync) == (&other.sound, &other.sync)
    }

    /// The keys of the channel, as in the configuration.
    pub fn keys(&self) -> Map<String, Value> {
        let mut keys = Map::new();
        let mut say = |key: &str, value: Option<Value>| {
            keys.extend(value.map(|value| (key.to_owned(), value)));
        };
        let Playlist { list, repeats, start, timed, fill } = &self.playlist;
        say("name", Some(self.name.clone().into()));
        say("playlist", Some(list.names().into()));
        say("repeat", Some((*repeats).into()));
        say("start", start.map(|start| start.to_string().into()));
        let entry = |(when, title): &(ScheduledTime, String)| {
            let time = when.to_string();
            serde_json::json!({"time": time, "title": title})
        };
        let timed: Vec<Value> = timed.iter().map(entry).collect();
        say("at", (!timed.is_empty()).then(|| timed.into()));
        say("fill", fill.clone().map(Value::from));
        say("to", Some(self.to.to_string().into()));
        say("interface", self.interface.clone().map(Value::from));
        say("source", self.source.map(|source| source.to_string().into()));
        say("hops", Some(self.hops.into()));
        say("class", self.class.clone().map(Value::from));
        say("dscp", self.dscp.map(Value::from));
        let rate = match self.rate {
            Auto::Auto => None,
            Auto::Set(rate) => Some(units::exact(rate).into()),
        };
        say("rate", rate);
        say("stuff", self.stuff.map(|stuff| units::exact(stuff).into()));
        say("burst", self.burst.map(|burst| units::exact(burst).into()));
        say("announce", Some(self.announced.into()));
        if let Some(PcmFormat { encoding, channels, packet_time }) = self.sound {
            say("format", Some(sound::AES67.into()));
            say("encoding", Some(encoding.name().into()));
            say("channels", Some(channels.into()));
            say("packet_time", Some(packet_time.name().into()));
        }
        say("sync", self.sync.clone().map(Value::from));
        keys
    }
}

/// The destination of a channel: `udp://239.1.1.1:5000`, `rtp://[ff3e::8000:1]:5004`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Output {
    /// The encapsulation of the transport stream.
    pub kind: Kind,
    /// The destination address.
    pub to: SocketAddr,
}

impl Output {
    /// Parses a destination.
    ///
    /// # Errors
    /// The text is invalid; the message says what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (kind, place) = if let Some(place) = text.strip_prefix("udp://") {
            (Kind::Udp, place)
        } else if let Some(place) = text.strip_prefix("rtp://") {
            (Kind::Rtp, place)
        } else {
            return Err(format!(
                "{text:?} is not an address of a channel; write it like {EXAMPLE}"
            ));
        };
        let place = place.strip_suffix('/').unwrap_or(place);
        let to: SocketAddr = place.parse().map_err(|_| {
            format!("{place:?} is not an address in numbers and a port; write it like {EXAMPLE}")
        })?;
        if to.port() == 0 || to.ip().is_unspecified() {
            return Err(format!(
                "{to} is not an address that can receive; write it like {EXAMPLE}"
            ));
        }
        if is_broadcast(to.ip()) {
            return Err(format!(
                "{} is a broadcast address, which reaches every host of a network; write a group, \
                 like \"udp://239.1.1.1:5000\"",
                to.ip()
            ));
        }
        Ok(Self { kind, to })
    }

    /// Whether its interface must be named: a link-local address does not determine it.
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
    use tactus_core::rtp::pcm::{Encoding, PacketTime};

    #[test]
    fn times_are_moments_or_of_each_day() {
        assert_eq!(ScheduledTime::parse("20:00"), Ok(ScheduledTime::Daily(72_000)));
        assert_eq!(ScheduledTime::parse("00:00:07"), Ok(ScheduledTime::Daily(7)));
        let moment = ScheduledTime::parse("2026-11-22T20:00:00Z").unwrap();
        assert_eq!(moment, ScheduledTime::At(WallTime(1_795_377_600_000_000_000)));
        for when in [ScheduledTime::Daily(72_061), moment] {
            assert_eq!(ScheduledTime::parse(&when.to_string()), Ok(when));
        }
        for text in ["", "8", "8:00", "24:00", "20:60", "20:00:60", "20:00:00:00", "-1:00", "now"] {
            assert!(ScheduledTime::parse(text).unwrap_err().contains("is not a time"), "{text}");
        }
        assert_eq!(moment.next(WallTime(0)), Some(WallTime(1_795_377_600_000_000_000)));
        assert_eq!(moment.next(WallTime(1_795_377_600_000_000_000)), None);
    }

    #[test]
    fn a_channel_is_written_as_it_is_read() {
        for text in [
            "name = \"a\"\ntitle = \"/a.ts\"\nto = \"udp://239.1.1.1:5000\"\n",
            "name = \"a\"\nplaylist = \"/lists/a.m3u8\"\nto = \"rtp://[ff3e::8000:1]:5004\"\n\
             interface = \"lo\"\n\
             source = \"::1\"\nhops = 9\ndscp = 34\nclass = \"gold\"\nrate = \"9 Mbit/s\"\n\
             stuff = \"10 Mbit/s\"\nburst = \"4 ms\"\nrepeat = false\nannounce = true\n\
             start = \"20:00\"\nfill = \"/i.ts\"\n\
             at = [{ time = \"21:00\", title = \"/n.ts\" }]\n",
            "name = \"a\"\nplaylist = [\"/a.ts\", \"/b.ts\"]\nto = \"udp://239.1.1.1:5000\"\n",
            "name = \"a\"\ntitle = \"/a.wav\"\nto = \"rtp://239.1.1.1:5000\"\nformat = \"aes67\"\n\
             encoding = \"L16\"\nchannels = 8\npacket_time = \"125 us\"\nsync = \"hall\"\n",
        ] {
            let channel = Channel::parse(text).unwrap();
            let written = toml::to_string(&channel.keys()).unwrap();
            assert_eq!(Channel::parse(&written).unwrap(), channel);
        }
        let list = |name: &str| List::of(vec![name.into()]);
        assert_eq!(list("/a.M3U"), List::File("/a.M3U".into()));
        assert_eq!(list("/a.ts"), List::Titles(vec!["/a.ts".into()]));
    }

    #[test]
    fn sound_is_stereo_of_24_bits_in_packets_of_a_millisecond_unless_more_is_written() {
        let parse = |to: &str, keys: &str| {
            let text = format!("name = \"a\"\ntitle = \"/a.wav\"\nto = \"{to}\"\n{keys}");
            Channel::parse(&text).map_err(|error| error.to_string())
        };
        let rtp = |keys: &str| parse("rtp://239.1.1.1:5004", keys);
        assert_eq!(rtp("format = \"mpeg-ts\"").unwrap().sound, None);
        let (encoding, packet_time) = (Encoding::L24, PacketTime::Ms1);
        let usual = PcmFormat { encoding, channels: 2, packet_time };
        assert_eq!(rtp("format = \"aes67\"").unwrap().sound, Some(usual));
        for (keys, said) in [
            ("format = \"dante\"", "\"mpeg-ts\" or \"aes67\""),
            ("channels = 2", "format = \"aes67\""),
            ("format = \"aes67\"\nchannels = 0", "1"),
            ("format = \"aes67\"\nchannels = 9", "8"),
            ("format = \"aes67\"\nencoding = \"L20\"", "\"L24\" or \"L16\""),
            ("format = \"aes67\"\npacket_time = \"2 ms\"", "\"125 us\", \"250 us\""),
            ("format = \"aes67\"\npacket_time = \"4 ms\"\nchannels = 3", "a datagram holds"),
            ("format = \"aes67\"\nburst = \"4 ms\"", "remove this key"),
            ("format = \"aes67\"\nrate = \"2 Mbit/s\"", "remove this key"),
            ("format = \"aes67\"\nstuff = \"9 Mbit/s\"", "remove this key"),
            ("sync = \"two words\"", "write"),
        ] {
            let error = rtp(keys).unwrap_err();
            assert!(error.contains(said), "{keys}: {error}");
        }
        let error = parse("udp://239.1.1.1:5004", "format = \"aes67\"").unwrap_err();
        assert!(error.contains("with rtp://"), "{error}");
    }

    #[test]
    fn s12_no_channel_goes_to_every_host_of_a_network() {
        // Every host is in the loopback network.
        for to in ["udp://255.255.255.255:5000", "rtp://127.255.255.255:5000/"] {
            assert!(Output::parse(to).unwrap_err().contains("a broadcast address"), "{to}");
        }
        for to in
            ["udp://127.0.0.1:5000", "udp://127.255.255.254:5000", "udp://239.255.255.255:5000"]
        {
            assert!(Output::parse(to).is_ok(), "{to}");
        }
    }

    #[test]
    fn outputs_are_addresses_in_numbers() {
        for text in ["udp://239.1.1.1:5000", "rtp://10.0.0.7:5004", "rtp://[ff3e::8000:1]:5004"] {
            assert_eq!(Output::parse(text).unwrap().to_string(), text);
            assert_eq!(Output::parse(&format!("{text}/")), Output::parse(text));
        }
        for (text, said) in [
            ("http://a/b", "not an address of a channel"),
            ("udp://studio:5000", "not an address in numbers"),
            ("udp://239.1.1.1", "not an address in numbers"),
            ("udp://239.1.1.1:5000?ttl=3", "not an address in numbers"),
            ("udp://239.1.1.1:0", "that can receive"),
            ("rtp://0.0.0.0:5004", "that can receive"),
            ("udp://255.255.255.255:5004", "a broadcast address"),
        ] {
            let error = Output::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        assert!(Output::parse("udp://[ff02::1]:1").unwrap().needs_interface());
        assert!(!Output::parse("udp://[ff3e::8000:1]:1").unwrap().needs_interface());
    }
}
