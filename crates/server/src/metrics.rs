//! The server's figures: `/metrics` for Prometheus, `/api/v1/...` for programs and people.
//!
//! Promise: reading costs the real-time threads nothing, as they only write counters. Every name
//! ends in its unit. No history is stored: that is Prometheus' work. The listeners are chosen
//! elsewhere: the admin address, and others only if configured.

mod formats;
mod health;
mod process;

mod capacity;
mod exposition;
mod status;

use std::cmp::Reverse;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use tactus_config::Config;
use tactus_control::broker::{ActiveStream, Broker, Degradations};
use tactus_control::engine::{
    self, Engine, LearnedModel, PacketFacts, Stalls, VolumeFacts, Watchdog, WritePath,
};
use tactus_control::pins::Pins;
use tactus_control::placer::Placer;
use tactus_control::recording::{Recorder, Totals};
use tactus_core::units::BitRate;
use tactus_engine::assembly::Counters;
use tactus_engine::message::VolumeId;
use tactus_http::{self as http, Internal, Response, Uploads};
use tactus_notation::units;
use tactus_playout::channels::Channels;
use tactus_playout::classes::Classes;
use tactus_playout::ingest::Recordings;
use tactus_rtsp::Rtsp;
use tactus_storage::catalogue::{self, Catalogue};
use tactus_storage::conditions::{Condition, Kind, Severity};
use tactus_sys::clock;

/// The sources of all figures.
pub struct Sources {
    broker: Broker,
    counters: Counters,
    catalogue: Arc<Catalogue>,
    http: Arc<http::Counters>,
    volumes: Vec<Volume>,
    write_paths: Vec<Option<WritePath>>,
    watchdog: Watchdog,
    degradations: Degradations,
    stalls: Stalls,
    /// The processors of the real-time cores.
    cpus: Vec<u32>,
    placer: Placer,
    degraded: Vec<String>,
    recordings: Option<Recordings>,
    recorder: Option<Recorder>,
    uploads: Option<Uploads>,
    channels: Option<Channels>,
    classes: Classes,
    pins: Pins,
    rtsp: Option<Rtsp>,
    packets: PacketFacts,
    started: Instant,
    config: Config,
}

/// One volume: its configuration, and its properties as determined at the start.
struct Volume {
    mount: String,
    facts: VolumeFacts,
}

/// The parts of a server that have figures.
pub struct MetricsSources<'a> {
    /// The running engine.
    pub engine: &'a Engine,
    /// The configuration at the start.
    pub config: &'a Config,
    /// The titles.
    pub catalogue: Arc<Catalogue>,
    /// The HTTP side.
    pub http: Arc<http::Counters>,
    /// The link classes.
    pub classes: Classes,
    /// What is kept in memory.
    pub pins: Pins,
    /// Recordings, where a volume takes uploads.
    pub recordings: Option<Recordings>,
    /// Running recordings with a reserved rate, where a volume takes uploads.
    pub recorder: Option<Recorder>,
    /// Uploads, where a volume takes them.
    pub uploads: Option<Uploads>,
    /// Channels.
    pub channels: Option<Channels>,
    /// The RTSP server, where there is one.
    pub rtsp: Option<Rtsp>,
}

/// Answers for `/metrics` and `/api/v1/...`.
pub struct MetricsEndpoint {
    sources: Arc<Sources>,
    registry: Registry,
}

impl MetricsEndpoint {
    /// The figures of these parts.
    pub fn new(parts: MetricsSources<'_>) -> Self {
        let MetricsSources { engine, config, catalogue, http, classes, pins, .. } = parts;
        let MetricsSources { recordings, recorder, uploads, channels, rtsp, .. } = parts;
        let mounts = config.volumes.iter().map(|volume| volume.mount.clone());
        let volumes = mounts.zip(engine.volumes.iter().cloned());
        let sources = Arc::new(Sources {
            broker: engine.broker.clone(),
            counters: engine.counters.clone(),
            catalogue,
            http,
            volumes: volumes.map(|(mount, facts)| Volume { mount, facts }).collect(),
            write_paths: engine.write_paths.clone(),
            watchdog: engine.watchdog.clone(),
            degradations: engine.degradations.clone(),
            stalls: engine.stalls.clone(),
            cpus: engine.cpus.clone(),
            placer: engine.placer.clone(),
            degraded: engine.degraded.clone(),
            recordings,
            recorder,
            uploads,
            channels,
            classes,
            pins,
            rtsp,
            packets: engine.packets.clone(),
            started: Instant::now(),
            config: config.clone(),
        });
        let mut registry = Registry::default();
        registry.register_collector(Box::new(exposition::Collector(Arc::clone(&sources))));
        Self { sources, registry }
    }

    fn recordings(&self, name: &str) -> Response {
        let recordings = self.sources.recordings.as_ref();
        match (recordings, name) {
            (None, "") => Response::json(200, &[(); 0]),
            (Some(recordings), "") => Response::json(200, &recordings.all()),
            (recordings, name) => match recordings.and_then(|all| all.one(name)) {
                Some(status) => Response::json(200, &status),
                None => Response::text(404, "no recording has this name"),
            },
        }
    }

    fn sessions(&self) -> Response {
        let sessions = self.sources.rtsp.as_ref().map(Rtsp::all).unwrap_or_default();
        Response::json(200, &sessions)
    }

    fn channels(&self, name: &str) -> Response {
        let channels = self.sources.channels.as_ref();
        match (channels, name) {
            (None, "") => Response::json(200, &[(); 0]),
            (Some(channels), "") => Response::json(200, &channels.all()),
            (channels, name) => match channels.and_then(|all| all.one(name)) {
                Some(status) => Response::json(200, &status),
                None => Response::text(404, "no channel has this name"),
            },
        }
    }

    fn class(&self, name: &str) -> Response {
        match self.sources.classes.one(name) {
            Some(status) => Response::json(200, &status),
            None => Response::text(404, "no class has this name"),
        }
    }

    fn pin(&self, path: &str) -> Response {
        match self.sources.pins.one(path.trim_end_matches('/')) {
            Some(status) => Response::json(200, &status),
            None => Response::text(404, "this is not pinned"),
        }
    }

    fn exposition(&self, accept: Option<&str>) -> Response {
        let mut page = String::new();
        match text::encode(&mut page, &self.registry) {
            Ok(()) if formats::wants_open_metrics(accept) => {
                Response::new(200, formats::OPEN_METRICS, page)
            }
            Ok(()) => Response::new(200, formats::PROMETHEUS, formats::prometheus(&page)),
            Err(error) => Response::text(500, format!("the metrics cannot be written: {error}")),
        }
        .with("Vary", "Accept")
    }

    fn capacity(&self, query: Option<&str>) -> Response {
        match asked_rate(query) {
            Ok(rate) => Response::json(200, &capacity::Capacity::now(&self.sources, rate)),
            Err(message) => Response::text(400, message),
        }
    }
}

const RECORDINGS: &str = "/api/v1/recordings/";
const CHANNELS: &str = "/api/v1/channels/";
const CLASSES: &str = "/api/v1/classes/";
const PINS: &str = "/api/v1/pins/";

/// Public figures: addresses of channels, and that the server is alive.
pub struct PublicPages(pub Channels);

impl PublicPages {
    fn find(channels: &Channels, path: &str) -> Option<Response> {
        if path == "/channels.m3u" {
            return Some(Response::new(200, "audio/x-mpegurl", channels.m3u()));
        }
        let name = path.strip_prefix(CHANNELS)?.strip_suffix(".sdp")?;
        // The name of a channel may itself have this ending.
        let text = channels.description(name)?;
        Some(Response::new(200, "application/sdp", text))
    }
}

impl Internal for PublicPages {
    fn answer(&self, path: &str, _query: Option<&str>, _: Option<&str>) -> Option<Response> {
        if path == "/healthz" {
            return Some(health::alive().with("Cache-Control", "no-store"));
        }
        Some(Self::find(&self.0, path)?.with("Cache-Control", "no-store"))
    }
}

impl Internal for MetricsEndpoint {
    fn answer(&self, path: &str, query: Option<&str>, accept: Option<&str>) -> Option<Response> {
        let channels = self.sources.channels.as_ref();
        if let Some(response) = channels.and_then(|channels| PublicPages::find(channels, path)) {
            return Some(response.with("Cache-Control", "no-store"));
        }
        let response = match path {
            "/metrics" => self.exposition(accept),
            "/healthz" => health::alive(),
            "/readyz" => health::Health::now(&self.sources).answer(),
            "/api/v1/capacity" => self.capacity(query),
            "/api/v1/status" => Response::json(200, &status::Status::now(&self.sources)),
            "/api/v1/recordings" => self.recordings(""),
            _ if path.starts_with(RECORDINGS) => self.recordings(&path[RECORDINGS.len()..]),
            "/api/v1/channels" => self.channels(""),
            "/api/v1/classes" => Response::json(200, &self.sources.classes.all()),
            "/api/v1/placement" => Response::json(200, &self.sources.placer.placement()),
            "/api/v1/pins" => Response::json(200, &self.sources.pins.all()),
            "/api/v1/sessions" => self.sessions(),
            _ if path.starts_with(CHANNELS) => self.channels(&path[CHANNELS.len()..]),
            _ if path.starts_with(CLASSES) => self.class(&path[CLASSES.len()..]),
            _ if path.starts_with(PINS) => self.pin(&path[PINS.len()..]),
            _ if path == "/api" || path.starts_with("/api/") => Response::text(
                404,
                "there are /metrics and, below /api/v1/, status, capacity, recordings, channels, \
                 classes, pins, placement and sessions",
            ),
            _ => return None,
        };
        Some(response.with("Cache-Control", "no-store"))
    }
}

/// `?rate=8.8M`: the rate for which the capacity is requested.
fn asked_rate(query: Option<&str>) -> Result<Option<BitRate>, String> {
    let pairs = query.unwrap_or_default().split('&');
    let Some(text) = pairs.filter_map(|pair| pair.strip_prefix("rate=")).next() else {
        return Ok(None);
    };
    let rate = units::read_short_rate(text).map_err(|error| error.to_string())?;
    if rate.0 == 0 {
        return Err("a rate is never zero".into());
    }
    Ok(Some(rate))
}

/// One running delivery and its counters in the engine.
struct Stream<'a> {
    running: ActiveStream,
    counters: &'a tactus_engine::counters::StreamCounters,
    /// Name of the title within its volume's tree.
    title: String,
}

impl Sources {
    /// The learned model of the disk of a volume.
    fn learned(&self, at: usize) -> LearnedModel {
        engine::learned(&self.volumes[at].facts, &self.counters.disks[at])
    }

    fn streams(&self) -> Vec<Stream<'_>> {
        let running = self.broker.running().into_iter();
        running
            .filter_map(|running| {
                let counters = self.counters.streams.get(running.slot as usize)?;
                let title = self.title_of(&running);
                Some(Stream { running, counters, title })
            })
            .collect()
    }

    /// The title's path in URLs, from the path that the kernel has for the open file.
    fn title_of(&self, running: &ActiveStream) -> String {
        let volume = self.volumes.get(usize::from(running.title.volume.0));
        if let (Some(volume), Some(following)) = (volume, &running.title.following) {
            return format!("{}{}", volume.mount, following.path);
        }
        let path = catalogue::path_of(&running.title.file);
        let within = self.path_in_urls(running.title.volume, &path);
        within.unwrap_or_else(|| format!("title {}", running.title.id.0))
    }

    fn path_in_urls(&self, volume: VolumeId, path: &Path) -> Option<String> {
        let volume = self.volumes.get(usize::from(volume.0))?;
        let root = volume.facts.path.canonicalize().ok()?;
        let name = path.strip_prefix(root).ok()?;
        Some(format!("{}{}", volume.mount, name.display()))
    }

    /// Problems that the host caused at the start, and recent events.
    fn degraded(&self) -> Vec<String> {
        let grave = |one: &Condition| one.severity > Severity::Notice;
        let conditions = self.conditions().into_iter().filter(grave);
        let conditions = conditions.map(|one| format!("{}: {}", one.subject, one.message));
        self.degraded_by_host().into_iter().chain(conditions).collect()
    }

    /// The current problems of volumes, titles and live inputs, the most severe first.
    fn conditions(&self) -> Vec<Condition> {
        let mut all = self.catalogue.conditions().all();
        for recording in self.recordings.as_ref().map(Recordings::all).unwrap_or_default() {
            let since = |alarm| recording.alarmed.get(alarm).map_or(0, |at| at.elapsed().as_secs());
            all.extend(recording.alarms.iter().map(|(alarm, message)| Condition {
                kind: Kind::LiveInput,
                severity: Kind::LiveInput.severity(),
                subject: format!("recording {}", recording.name),
                message: message.clone(),
                seconds: since(alarm),
            }));
        }
        all.sort_by_key(|condition| Reverse(condition.severity));
        all
    }

    /// Problems that the host caused at the start, and stalls of the last ten minutes.
    fn degraded_by_host(&self) -> Vec<String> {
        let lately = self.stalls.degraded(clock::now());
        self.degraded.iter().cloned().chain(lately).collect()
    }

    /// The processor of a core of the ledger.
    fn cpu(&self, number: u32) -> Option<String> {
        self.cpus.get(number as usize).map(ToString::to_string)
    }

    /// Sends into connections that were not on time: data was missing, or the core was stalled.
    fn underruns(&self) -> u64 {
        let counters = &self.counters;
        counters.sum_of_links(|link| &link.underruns)
            + counters.sum_of_links(|link| &link.stalled_streams)
    }

    /// The same for datagrams.
    fn packet_underruns(&self) -> u64 {
        let counters = &self.counters;
        counters.sum_of_packet_servers(|packets| &packets.underruns)
            + counters.sum_of_packet_servers(|packets| &packets.stalled_streams)
    }

    /// Why a volume that is configured for uploads takes none.
    fn trouble(&self, index: usize) -> Option<String> {
        self.uploads.as_ref().and_then(|uploads| uploads.trouble(index))
    }

    fn checksums_due(&self, index: usize) -> u64 {
        self.uploads.as_ref().map_or(0, |uploads| uploads.checksums_due(index))
    }

    /// The volumes that take uploads, by number, each with the totals of its recordings.
    fn recorded(&self) -> impl Iterator<Item = (usize, Totals)> {
        let open =
            self.write_paths.iter().enumerate().filter(|(_, write_path)| write_path.is_some());
        let totals = |index: usize| {
            let volume = VolumeId(u16::try_from(index).unwrap_or(u16::MAX));
            self.recorder.as_ref().map(|recorder| recorder.totals(volume)).unwrap_or_default()
        };
        open.map(move |(index, _)| (index, totals(index)))
    }

    fn takes_uploads(&self, index: usize) -> bool {
        self.write_paths.get(index).is_some_and(Option::is_some)
    }

    fn mount(&self, index: usize) -> &str {
        self.volumes.get(index).map_or("/", |volume| &volume.mount)
    }
}

impl Stream<'_> {
    /// Payload bits of the last whole second.
    fn real_rate(&self) -> BitRate {
        BitRate(self.counters.second_bytes.value() * 8)
    }

    /// Sends of this stream that were not on time.
    fn underruns(&self) -> u64 {
        self.counters.underruns.value() + self.counters.stalls.value()
    }

    /// The set rate; none for best effort.
    fn set_rate(&self) -> Option<BitRate> {
        let rate = self.counters.rate.value();
        (!self.running.best_effort && rate > 0).then_some(BitRate(rate))
    }
}

/// Millionths as a fraction.
fn ratio(millionths: u64) -> f64 {
    millionths as f64 / 1e6
}

/// Thousandths as a fraction.
fn thousandths(count: u32) -> f64 {
    f64::from(count) / 1e3
}

/// Nanoseconds as seconds.
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests;
