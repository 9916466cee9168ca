//! The configuration as written: the keys and their types.
//!
//! Promise: a key that is missing here is an error. This module has no defaults and no meanings: an
//! absent key is `None`, and the check decides.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use tactus_control::access::AccessForm;
use tactus_control::class::raw::RawClass;
use tactus_control::rights::{Readers, Right};
use tactus_control::settings::{BackEnd, Sendfile, UnfinishedTitles};
use tactus_core::units::{BitRate, Bytes, Nanos};
use tactus_http::settings::{ForwardedField, StoredPages};
use tactus_notation::units::{Percent, Value};
use tactus_notation::value::{OneOrMore, SpannedKey, Switch};
use tactus_playout::channel::raw::RawChannel;
use tactus_playout::recording::raw::RawRecording;
use tactus_rtsp::settings::Recorders;
use toml::Spanned;

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
    pub recording: Vec<RawRecording>,
    /// `[[class]]`
    pub class: Vec<RawClass>,
    /// `[[channel]]`
    pub channel: Vec<RawChannel>,
    /// `[rtsp]`
    pub rtsp: Rtsp,
    /// `[local]`
    pub local: Local,
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
    pub access_to: SpannedKey<String>,
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
    pub address: SpannedKey<OneOrMore>,
    pub unix_socket: Vec<UnixSocket>,
    pub proxy_protocol: SpannedKey<OneOrMore>,
    pub trusted_proxies: Vec<Spanned<String>>,
    pub forwarded_field: Option<ForwardedField>,
    pub public_url: SpannedKey<String>,
    pub allowed_hosts: Option<Vec<String>>,
    pub allowed_origins: Vec<Spanned<String>>,
    pub stored_pages: Option<StoredPages>,
    pub listing: Option<bool>,
    pub readers: SpannedKey<Readers>,
    pub connections_max: SpannedKey<u32>,
    pub connections_per_address_max: SpannedKey<u32>,
    pub abuse_score_max: SpannedKey<u32>,
    pub abuse_refusal: SpannedKey<Value<Nanos>>,
    pub request_line_max: SpannedKey<Value<Bytes>>,
    pub fields_max: SpannedKey<u32>,
    pub fields_size_max: SpannedKey<Value<Bytes>>,
    pub body_max: SpannedKey<Value<Bytes>>,
    pub ranges_max: SpannedKey<u32>,
    pub head_timeout: SpannedKey<Value<Nanos>>,
    pub idle_timeout: SpannedKey<Value<Nanos>>,
    pub drain_limit: SpannedKey<Value<Nanos>>,
}

/// `[[http.unix_socket]]`, `[[admin.unix_socket]]`: one socket file.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct UnixSocket {
    pub path: Spanned<String>,
    #[serde(default)]
    pub mode: SpannedKey<String>,
    pub owner: Option<String>,
    pub group: Option<String>,
}

/// `[local]`: programs of this machine, through shared memory.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Local {
    pub path: SpannedKey<String>,
    pub mode: SpannedKey<String>,
    pub owner: Option<String>,
    pub group: Option<String>,
    pub users: Vec<String>,
    pub groups: Vec<String>,
    pub write_users: Vec<String>,
    pub write_groups: Vec<String>,
    pub principal: SpannedKey<String>,
    pub clients_max: SpannedKey<u32>,
    pub data_max: SpannedKey<Value<Bytes>>,
    pub titles_max: SpannedKey<Value<Bytes>>,
}

/// `[admin]`: where metrics and status are served.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Admin {
    pub address: SpannedKey<Switch<String>>,
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
    pub mount: SpannedKey<String>,
    #[serde(default)]
    pub cycle: SpannedKey<Switch<Value<Nanos>>>,
    #[serde(default)]
    pub block: SpannedKey<Switch<Value<Bytes>>>,
    #[serde(default)]
    pub depth: SpannedKey<Switch<u32>>,
    #[serde(default)]
    pub model: SpannedKey<Switch<String>>,
    #[serde(default)]
    pub budget: SpannedKey<Value<Percent>>,
    pub sendfile: Option<Sendfile>,
    pub uploads: Option<bool>,
    pub unfinished: Option<UnfinishedTitles>,
    #[serde(default)]
    pub write_share: SpannedKey<Value<Bytes>>,
    #[serde(default)]
    pub upload_floor: SpannedKey<Value<Percent>>,
}

/// `[memory]`: limits of memory and streams.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Memory {
    pub arena: SpannedKey<Switch<Value<Bytes>>>,
    pub streams_max: SpannedKey<u32>,
    pub lock: SpannedKey<Switch<de::IgnoredAny>>,
    pub pinned: Vec<Spanned<String>>,
}

/// `[link]`: the network path.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Link {
    pub rate: SpannedKey<Switch<Value<BitRate>>>,
    pub budget: SpannedKey<Value<Percent>>,
}

/// `[rate]`: rates of streams.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Rate {
    pub default: SpannedKey<Switch<Value<BitRate>>>,
    pub min: SpannedKey<Value<BitRate>>,
    pub player_buffer: SpannedKey<Value<Nanos>>,
    pub segment_multiple: SpannedKey<u32>,
    pub segment_max: SpannedKey<Value<Nanos>>,
    pub title: RateClass,
    pub asked: RateClass,
    pub cmcd: RateClass,
}

/// `[rate.title]`, `[rate.asked]`, `[rate.cmcd]`: by the source of the rate.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct RateClass {
    pub headroom: SpannedKey<Value<Percent>>,
    pub ceiling: SpannedKey<Value<BitRate>>,
    pub start_burst: SpannedKey<Value<Nanos>>,
    pub tick: SpannedKey<Value<Nanos>>,
    pub client_share: SpannedKey<Switch<Value<Percent>>>,
}

/// `[cpu]`: the part of the processors' time that may be reserved.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Cpu {
    pub budget: SpannedKey<Value<Percent>>,
}

/// `[cores]`: placement of servers on cores, and their priority.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Cores {
    pub placement: SpannedKey<AutoOrList>,
    pub realtime: SpannedKey<Switch<de::IgnoredAny>>,
    pub priority: SpannedKey<u32>,
    pub balance: SpannedKey<Switch<de::IgnoredAny>>,
    pub fixed: Vec<Spanned<String>>,
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
    pub tick: SpannedKey<Value<Nanos>>,
    pub back_end: Option<BackEnd>,
}

/// `[gap_frames]`: a link that is kept full.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct GapFrames {
    pub device: SpannedKey<Switch<String>>,
    pub rate: SpannedKey<Value<BitRate>>,
    pub overhead: SpannedKey<u32>,
}

/// `[best_effort]`: deliveries without a rate.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct BestEffort {
    pub streams_max: SpannedKey<Switch<u32>>,
    pub client_share: SpannedKey<Switch<Value<Percent>>>,
}

/// `[slow_reader]`: when the connection of a slow client is ended.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct SlowReader {
    pub behind_max: SpannedKey<Value<Nanos>>,
    pub download_rate_min: SpannedKey<Value<BitRate>>,
    pub download_window: SpannedKey<Value<Nanos>>,
}

/// `[upload]`: principals and limits of uploads.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Upload {
    pub object_max: SpannedKey<Value<Bytes>>,
    pub open_max: SpannedKey<u32>,
    pub open_per_principal_max: SpannedKey<u32>,
    pub expiry: SpannedKey<Value<Nanos>>,
    pub locks_max: SpannedKey<u32>,
    pub locks_per_principal_max: SpannedKey<u32>,
    pub lock_timeout_max: SpannedKey<Value<Nanos>>,
    pub principal: Vec<Principal>,
}

/// `[[upload.principal]]`: one principal.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Principal {
    pub name: Spanned<String>,
    pub token_file: SpannedKey<String>,
    pub token_sha256: SpannedKey<String>,
    #[serde(default)]
    pub quota: SpannedKey<Switch<Value<Bytes>>>,
    #[serde(default)]
    pub rights: SpannedKey<Vec<Right>>,
    #[serde(default)]
    pub paths: SpannedKey<Vec<String>>,
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

/// `[rtsp]`: the RTSP server.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct Rtsp {
    pub address: SpannedKey<OneOrMore>,
    pub readers: Option<Readers>,
    pub groups: SpannedKey<Vec<Spanned<String>>>,
    pub group_port: SpannedKey<u32>,
    pub interface: SpannedKey<Switch<String>>,
    pub hops: SpannedKey<u32>,
    pub dscp: SpannedKey<u32>,
    pub burst: SpannedKey<Value<Nanos>>,
    pub class: SpannedKey<String>,
    pub connections_max: SpannedKey<u32>,
    pub connections_per_address_max: SpannedKey<u32>,
    pub sessions_max: SpannedKey<u32>,
    pub recorders: Option<Recorders>,
    pub record_rate: SpannedKey<Value<BitRate>>,
    pub recordings_max: SpannedKey<u32>,
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
    pub paths: SpannedKey<Vec<String>>,
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
