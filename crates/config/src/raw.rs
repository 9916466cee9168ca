//! The configuration as written: the keys and their types.
//!
//! Promise: a key that is missing here is an error. This module has no defaults and no meanings: an
//! absent key is `None`, and the check decides.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use tactus_control::access::AccessForm;
use tactus_control::class::raw::RawClass;
use tactus_control::rights::{Readers, Right};
use tactus_control::settings::{BackEnd, Sendfile, Unfinished};
use tactus_core::units::{BitRate, Bytes, Nanos};
use tactus_notation::units::{Percent, Value};
use tactus_notation::value::{OneOrMore, Placed, Switch};
use toml::Spanned;

use super::http::{ForwardedField, StoredPages};
use super::rtsp::Recorders;

/// A whole file.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
pub struct Raw {
    /// `[http]`
    pub http: Http,
    /// `[admin]`
    pub admin: Admin,
    /// `[[volume]]`
    pub volume: Vec<Volume>,
    /// `[memory]`
    pub memory: Memory,
    /// `[link]`
    pub link: Link,
    /// `[rate]`
    pub rate: Rate,
    /// `[cpu]`
    pub cpu: Cpu,
    /// `[cores]`
    pub cores: Cores,
    /// `[packets]`
    pub packets: Packets,
    /// `[gap_frames]`
    pub gap_frames: GapFrames,
    /// `[best_effort]`
    pub best_effort: BestEffort,
    /// `[slow_reader]`
    pub slow_reader: SlowReader,
    /// `[upload]`
    pub upload: Upload,
    /// `[[recording]]`
    pub recording: Vec<Recording>,
    /// `[[class]]`
    pub class: Vec<RawClass>,
    /// `[[channel]]`
    pub channel: Vec<Channel>,
    /// `[rtsp]`
    pub rtsp: Rtsp,
    /// `[server]`
    pub server: Server,
    /// `[log]`
    pub log: Log,
}

/// `[server]`: the server as a whole.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Server {
    pub strict: Option<bool>,
}

/// `[log]`: contents, form and destination of the logs.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Log {
    pub format: Option<LogForm>,
    pub access: Option<AccessForm>,
    pub access_to: Placed<String>,
}

/// The form of the log.
#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[serde(rename_all = "lowercase")]
pub enum LogForm {
    /// Lines of text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// `[http]`: listening and the limits of requests.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Http {
    pub address: Placed<OneOrMore>,
    pub unix_socket: Vec<UnixSocket>,
    pub proxy_protocol: Placed<OneOrMore>,
    pub trusted_proxies: Vec<Spanned<String>>,
    pub forwarded_field: Option<ForwardedField>,
    pub public_url: Placed<String>,
    pub allowed_hosts: Option<Vec<String>>,
    pub allowed_origins: Vec<Spanned<String>>,
    pub stored_pages: Option<StoredPages>,
    pub listing: Option<bool>,
    pub readers: Placed<Readers>,
    pub connections_max: Placed<u32>,
    pub connections_per_address_max: Placed<u32>,
    pub abuse_score_max: Placed<u32>,
    pub abuse_refusal: Placed<Value<Nanos>>,
    pub request_line_max: Placed<Value<Bytes>>,
    pub fields_max: Placed<u32>,
    pub fields_size_max: Placed<Value<Bytes>>,
    pub body_max: Placed<Value<Bytes>>,
    pub ranges_max: Placed<u32>,
    pub head_timeout: Placed<Value<Nanos>>,
    pub idle_timeout: Placed<Value<Nanos>>,
    pub drain_limit: Placed<Value<Nanos>>,
}

/// `[[http.unix_socket]]`, `[[admin.unix_socket]]`: one socket file.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct UnixSocket {
    pub path: Spanned<String>,
    #[serde(default)]
    pub mode: Placed<String>,
    pub owner: Option<String>,
    pub group: Option<String>,
}

/// `[admin]`: where metrics and status are served.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Admin {
    pub address: Placed<Switch<String>>,
    pub unix_socket: Vec<UnixSocket>,
    pub allowed_hosts: Option<Vec<String>>,
    pub on_http: Option<bool>,
}

/// `[[volume]]`: one disk's directory.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Volume {
    pub path: Spanned<String>,
    #[serde(default)]
    pub mount: Placed<String>,
    #[serde(default)]
    pub cycle: Placed<Switch<Value<Nanos>>>,
    #[serde(default)]
    pub block: Placed<Switch<Value<Bytes>>>,
    #[serde(default)]
    pub depth: Placed<Switch<u32>>,
    #[serde(default)]
    pub model: Placed<Switch<String>>,
    #[serde(default)]
    pub budget: Placed<Value<Percent>>,
    pub sendfile: Option<Sendfile>,
    pub uploads: Option<bool>,
    pub unfinished: Option<Unfinished>,
    #[serde(default)]
    pub write_share: Placed<Value<Bytes>>,
    #[serde(default)]
    pub upload_floor: Placed<Value<Percent>>,
}

/// `[memory]`: limits of memory and streams.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Memory {
    pub arena: Placed<Switch<Value<Bytes>>>,
    pub streams_max: Placed<u32>,
    pub lock: Placed<Switch<de::IgnoredAny>>,
}

/// `[link]`: the network path.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Link {
    pub rate: Placed<Switch<Value<BitRate>>>,
    pub budget: Placed<Value<Percent>>,
}

/// `[rate]`: rates of streams.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Rate {
    pub default: Placed<Switch<Value<BitRate>>>,
    pub min: Placed<Value<BitRate>>,
    pub title: RateClass,
    pub asked: RateClass,
    pub cmcd: RateClass,
}

/// `[rate.title]`, `[rate.asked]`, `[rate.cmcd]`: by the source of the rate.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct RateClass {
    pub headroom: Placed<Value<Percent>>,
    pub ceiling: Placed<Value<BitRate>>,
    pub start_burst: Placed<Value<Nanos>>,
    pub tick: Placed<Value<Nanos>>,
    pub client_share: Placed<Switch<Value<Percent>>>,
}

/// `[cpu]`: the part of the processors' time that may be reserved.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Cpu {
    pub budget: Placed<Value<Percent>>,
}

/// `[cores]`: placement of servers on cores, and their priority.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Cores {
    pub placement: Placed<AutoOrList>,
    pub realtime: Placed<Switch<de::IgnoredAny>>,
    pub priority: Placed<u32>,
}

/// One entry of `placement`.
#[derive(serde::Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Core {
    pub cpu: u32,
    pub servers: Vec<String>,
}

/// `[packets]`: how datagrams are sent.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Packets {
    pub tick: Placed<Value<Nanos>>,
    pub back_end: Option<BackEnd>,
}

/// `[gap_frames]`: a link that is kept full.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct GapFrames {
    pub device: Placed<Switch<String>>,
    pub rate: Placed<Value<BitRate>>,
    pub overhead: Placed<u32>,
}

/// `[best_effort]`: deliveries without a rate.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct BestEffort {
    pub streams_max: Placed<u32>,
    pub client_share: Placed<Switch<Value<Percent>>>,
}

/// `[slow_reader]`: when the connection of a slow client is ended.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct SlowReader {
    pub behind_max: Placed<Value<Nanos>>,
    pub download_rate_min: Placed<Value<BitRate>>,
    pub download_window: Placed<Value<Nanos>>,
}

/// `[upload]`: principals and limits of uploads.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Upload {
    pub object_max: Placed<Value<Bytes>>,
    pub open_max: Placed<u32>,
    pub open_per_principal_max: Placed<u32>,
    pub expiry: Placed<Value<Nanos>>,
    pub locks_max: Placed<u32>,
    pub locks_per_principal_max: Placed<u32>,
    pub lock_timeout_max: Placed<Value<Nanos>>,
    pub principal: Vec<Principal>,
}

/// `[[upload.principal]]`: one principal.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Principal {
    pub name: Spanned<String>,
    pub token_file: Placed<String>,
    pub token_sha256: Placed<String>,
    #[serde(default)]
    pub quota: Placed<Switch<Value<Bytes>>>,
    #[serde(default)]
    pub rights: Placed<Vec<Right>>,
    #[serde(default)]
    pub paths: Placed<Vec<String>>,
    #[serde(default)]
    pub grant: Vec<Grant>,
}

/// `[[upload.principal.grant]]`: rights below further paths.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Grant {
    pub rights: Spanned<Vec<Right>>,
    pub paths: Spanned<Vec<String>>,
}

/// `[[recording]]`: one live input and its titles.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Recording {
    pub name: Spanned<String>,
    pub from: Spanned<String>,
    #[serde(default)]
    pub interface: Placed<Switch<String>>,
    pub to: Spanned<String>,
    #[serde(default)]
    pub rate: Placed<Switch<Value<BitRate>>>,
    #[serde(default)]
    pub rotate: Placed<Switch<String>>,
    #[serde(default)]
    pub keep_titles: Placed<Switch<u32>>,
    #[serde(default)]
    pub keep_size: Placed<Switch<Value<Bytes>>>,
    #[serde(default)]
    pub keep_age: Placed<Switch<Value<Nanos>>>,
    #[serde(default)]
    pub silence: Placed<Value<Nanos>>,
}

/// `[rtsp]`: the RTSP server.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Rtsp {
    pub address: Placed<OneOrMore>,
    pub readers: Option<Readers>,
    pub groups: Placed<Vec<Spanned<String>>>,
    pub group_port: Placed<u32>,
    pub interface: Placed<Switch<String>>,
    pub hops: Placed<u32>,
    pub dscp: Placed<u32>,
    pub burst: Placed<Value<Nanos>>,
    pub class: Placed<String>,
    pub connections_max: Placed<u32>,
    pub connections_per_address_max: Placed<u32>,
    pub sessions_max: Placed<u32>,
    pub recorders: Option<Recorders>,
    pub record_rate: Placed<Value<BitRate>>,
    pub recordings_max: Placed<u32>,
    pub overwrite: Option<bool>,
    pub principal: Vec<RtspPrincipal>,
}

/// `[[rtsp.principal]]`: one principal with a password.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct RtspPrincipal {
    pub name: Spanned<String>,
    pub password_file: Spanned<String>,
    #[serde(default)]
    pub destinations: Vec<Spanned<String>>,
    #[serde(default)]
    pub records: bool,
    #[serde(default)]
    pub paths: Placed<Vec<String>>,
}

/// `[[channel]]`: titles that are sent as datagrams from the start.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Channel {
    pub name: Spanned<String>,
    #[serde(default)]
    pub title: Placed<String>,
    #[serde(default)]
    pub playlist: Placed<OneOrMore>,
    pub to: Spanned<String>,
    #[serde(default)]
    pub start: Placed<String>,
    #[serde(default)]
    pub at: Vec<At>,
    #[serde(default)]
    pub fill: Placed<Switch<String>>,
    #[serde(default)]
    pub announce: Option<bool>,
    #[serde(default)]
    pub interface: Placed<Switch<String>>,
    #[serde(default)]
    pub source: Placed<Switch<String>>,
    #[serde(default)]
    pub hops: Placed<u32>,
    #[serde(default)]
    pub dscp: Placed<u32>,
    #[serde(default)]
    pub rate: Placed<Switch<Value<BitRate>>>,
    #[serde(default)]
    pub stuff: Placed<Switch<Value<BitRate>>>,
    #[serde(default)]
    pub burst: Placed<Value<Nanos>>,
    #[serde(default)]
    pub class: Placed<String>,
    #[serde(default)]
    pub repeat: Option<bool>,
}

/// A title of a channel with a fixed time.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct At {
    pub time: Spanned<String>,
    pub title: Spanned<String>,
}

/// `"auto"`, or a list of cores.
#[derive(Clone, Debug)]
pub enum AutoOrList {
    /// `"auto"`
    Auto,
    /// One entry for each core.
    List(Vec<Core>),
}

impl<'de> Deserialize<'de> for AutoOrList {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = AutoOrList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "\"auto\", or a list like [{ cpu = 1, servers = [\"disk\", \"link\"] }]",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<AutoOrList, E> {
                match text {
                    "auto" => Ok(AutoOrList::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<AutoOrList, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = list.next_element()? {
                    all.push(one);
                }
                Ok(AutoOrList::List(all))
            }

            fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<AutoOrList, A::Error> {
                Err(de::Error::invalid_type(de::Unexpected::Map, &self))
            }
        }
        from.deserialize_any(Reader)
    }
}
