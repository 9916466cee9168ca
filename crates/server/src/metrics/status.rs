//! `GET /api/v1/status`: the state of the server: volumes, limits and streams.
//!
//! Promise: it shows effective values, not configured ones: the placement, models and sizes that
//! were determined at the start, everything that the host refused, and each stream's set and real
//! rate.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use tactus_control::engine::{OngoingStall, Stall, StallSummary};
use tactus_control::placer::{CoreStatus, MoveCause, RecentMove};
use tactus_control::recording::{Figures, LossKind, Recorder};
use tactus_core::disk_model::DiskModel;
use tactus_core::units::Nanos;
use tactus_engine::counters::PacketCounters;
use tactus_engine::message::VolumeId;
use tactus_notation::units::exact;
use tactus_playout::channels::{self, Channels};
use tactus_playout::classes;
use tactus_ring::counter::Counter;
use tactus_storage::conditions::Condition;
use tactus_sys::clock;
use tactus_sys::packets::back_end::Candidate;
use tactus_sys::packets::gaps::GapCounters;
use tactus_sys::packets::udp_output::Cutting;
use tactus_sys::probe;

use super::health::Health;
use super::{Sources, Stream, Volume, ratio, seconds, thousandths};

#[derive(Serialize)]
pub(super) struct Status {
    version: &'static str,
    uptime_seconds: u64,
    /// Problems caused by the host, with their effect, and stalls of the last ten minutes.
    degraded: Vec<String>,
    /// Problems of titles and volumes, the most severe first.
    conditions: Vec<Condition>,
    /// Readiness, as in `/readyz`.
    health: Health,
    /// Stalls of real-time cores.
    stalls: StallStatus,
    placement: Vec<CoreStatus>,
    /// The last servers that moved to another core, the newest first.
    moves: Vec<MoveStatus>,
    volumes: Vec<VolumeStatus>,
    /// Indexes of transport streams, made in the background.
    indexes: Indexes,
    totals: Totals,
    packets: Packets,
    /// Classes of the link, for datagrams.
    classes: Vec<classes::Status>,
    streams: Vec<StreamStatus>,
    /// Recordings with a reserved rate.
    recordings: Vec<RecordingStatus>,
    /// Titles that are sent as datagrams.
    channels: Vec<channels::Status>,
}

#[derive(Serialize)]
struct Indexes {
    /// Titles that want an index, with the current one.
    wanted: usize,
    /// Indexes made since the start.
    made: u64,
    /// Titles that can have none.
    without: u64,
    /// Titles that could not be read; they are tried again after the next inspection.
    failed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<CurrentIndex>,
}

#[derive(Serialize)]
struct CurrentIndex {
    title: String,
    read_bytes: u64,
    bytes: u64,
}

/// Datagrams of all streams since the start.
#[derive(Serialize)]
struct Packets {
    /// The back end that sends them.
    back_end: &'static str,
    /// Whether several can be sent in one message (`UDP_SEGMENT`).
    segments: bool,
    /// The cost of a datagram in admission.
    datagram_cpu_seconds: f64,
    /// Measurements at the start, on the loopback.
    back_ends: Vec<BackEndStatus>,
    sent_bytes: u64,
    datagrams: u64,
    messages: u64,
    calls: u64,
    turns: u64,
    refused: u64,
    full: u64,
    underruns: u64,
    stuffed: u64,
    slots_late: u64,
    unstamped: u64,
    stalls: u64,
    lateness_p50_seconds: f64,
    lateness_p99_seconds: f64,
    lateness_p999_seconds: f64,
    deviation_mean_ratio: f64,
    deviation_p99_ratio: f64,
    /// Queues that may drop datagrams of this host after the send call has succeeded.
    queues: Vec<Queue>,
    /// The link that is kept full with gap frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    gap_frames: Option<GapFrames>,
}

#[derive(Serialize)]
struct Queue {
    device: String,
    discipline: String,
    /// Packets of all senders, since the discipline was created.
    dropped: u64,
}

#[derive(Serialize)]
struct GapFrames {
    /// Frames with datagrams.
    frames: u64,
    /// Gap frames.
    gaps: u64,
    /// Times at which the link was empty.
    empty: u64,
    /// The total delay of the link against its configured rate.
    behind_seconds: f64,
    /// Datagrams that were accepted and could not be sent.
    refused: u64,
}

#[derive(Serialize)]
struct BackEndStatus {
    back_end: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    datagram_cpu_seconds: Option<f64>,
    /// The cost of each of seven datagrams in one message.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_seven_cpu_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct StallStatus {
    count: u64,
    total_seconds: f64,
    longest_seconds: f64,
    /// Cores that are stalled now.
    standing: Vec<StalledCore>,
    /// The last stall that was logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<LastStall>,
}

#[derive(Serialize)]
struct StalledCore {
    core: u32,
    seconds: f64,
    cause: String,
}

#[derive(Serialize)]
struct LastStall {
    /// Absent when the whole machine was suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    core: Option<u32>,
    /// Number of stalls in this entry.
    count: u64,
    seconds: f64,
    seconds_ago: f64,
    /// Streams that it delayed.
    streams: u64,
    cause: String,
}

#[derive(Serialize)]
struct MoveStatus {
    server: String,
    from: u32,
    core: u32,
    cause: MoveCause,
    /// Why, as part of a sentence.
    reason: String,
    pause_us: u64,
    seconds_ago: f64,
}

#[derive(Serialize)]
struct VolumeStatus {
    mount: String,
    path: String,
    /// Whether its disk answers.
    up: bool,
    /// The degradation because its disk is too slow.
    degradation: Degradation,
    cycle: String,
    block: String,
    arena: String,
    /// Whether blocks are sent by reference from the page cache.
    sendfile: bool,
    model: Model,
    /// Ranges that could not be read, and are skipped for a time.
    bad_ranges: Vec<BadRangeStatus>,
    /// Absent if the volume takes no uploads.
    #[serde(skip_serializing_if = "Option::is_none")]
    uploads: Option<Uploads>,
}

#[derive(Serialize)]
struct BadRangeStatus {
    title: String,
    first_byte: u64,
    bytes: u64,
    error: String,
    marked_seconds_ago: u64,
}

#[derive(Serialize)]
struct Degradation {
    /// Its number in the manual; 0: none.
    level: u8,
    name: &'static str,
    /// Streams that wait for the others, because the disk is slower than it was promised.
    deferred_streams: u64,
    ended_streams: u64,
}

#[derive(Serialize)]
struct Uploads {
    /// Why the volume takes no uploads any more; absent while it takes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    write_share: String,
    places: u32,
    places_used: u32,
    waiting: u32,
    written_bytes: u64,
    faults: u64,
    flushes: u64,
    flushes_waiting: u32,
    flush_p50_seconds: f64,
    flush_p99_seconds: f64,
    /// Time of the disk that uploads have used.
    disk_seconds: f64,
    /// Cycles through which a write or a flush has waited.
    cycles_waited: u64,
}

#[derive(Serialize)]
struct Model {
    /// True: the start had a model by `tactus measure`; false: it has guessed one.
    measured: bool,
    /// Where the model in use comes from: `measured`, `guess` or `learned`.
    source: &'static str,
    /// How much evidence there is for it: 0 to 1.
    confidence: f64,
    /// Times of reads, compared with the model of the start.
    time_ratio: f64,
    visit: String,
    sweep: String,
    read_mib: String,
    write_mib: String,
    flush: String,
    depth: u32,
}

#[derive(Serialize)]
struct Totals {
    sent_bytes: u64,
    underruns: u64,
    stalls: u64,
    cycles_missed: u64,
    lateness_p50_seconds: f64,
    lateness_p99_seconds: f64,
    lateness_p999_seconds: f64,
    /// The figure J over one second: mean and p99 over all streams and seconds since the start.
    deviation_mean_ratio: f64,
    deviation_p99_ratio: f64,
}

#[derive(Serialize)]
struct StreamStatus {
    stream: u32,
    title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    /// Absent for a download without a rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    set_rate_bits_per_second: Option<u64>,
    real_rate_bits_per_second: u64,
    deviation_ratio: f64,
    lateness_max_seconds: f64,
    underruns: u64,
    /// Number and total delay of its stalls.
    stalls: u64,
    stalled_seconds: f64,
    sent_bytes: u64,
}

#[derive(Serialize)]
struct RecordingStatus {
    title: String,
    rate_bits_per_second: u64,
    seconds: u64,
    taken_bytes: u64,
    /// The bytes that a start after a power failure would find.
    durable_bytes: u64,
    /// By cause.
    lost: BTreeMap<&'static str, LossStatus>,
    /// How often a local program was faster than its rate, and waited.
    overruns: u64,
    /// How often it was slower.
    underruns: u64,
}

#[derive(Serialize)]
struct LossStatus {
    gaps: u64,
    bytes: u64,
}

impl Status {
    pub(super) fn now(sources: &Sources) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: sources.started.elapsed().as_secs(),
            degraded: sources.degraded(),
            conditions: sources.conditions(),
            health: Health::now(sources),
            stalls: stalls(sources),
            placement: sources.placer.placement(),
            moves: moves(sources),
            volumes: (0..)
                .zip(&sources.volumes)
                .map(|(at, one)| volume(sources, at, one))
                .collect(),
            indexes: indexes(sources),
            totals: totals(sources),
            packets: packets(sources),
            classes: sources.classes.all(),
            streams: sources.streams().iter().map(stream).collect(),
            recordings: recordings(sources),
            channels: sources.channels.as_ref().map(Channels::all).unwrap_or_default(),
        }
    }
}

fn stalls(sources: &Sources) -> StallStatus {
    let now = clock::now();
    let since = |then| seconds(now.since(then).0);
    let StallSummary { count, total, longest, last, standing } = sources.stalls.summary();
    let standing = standing.into_iter().map(|OngoingStall { core, since: begun, cause }| {
        StalledCore { core, seconds: since(begun), cause }
    });
    let last = last.map(|Stall { core, count, length, seen, streams, cause }| LastStall {
        core,
        count,
        seconds: seconds(length.0),
        seconds_ago: since(seen),
        streams,
        cause,
    });
    StallStatus {
        count,
        total_seconds: seconds(total.0),
        longest_seconds: seconds(longest.0),
        standing: standing.collect(),
        last,
    }
}

fn moves(sources: &Sources) -> Vec<MoveStatus> {
    let now = clock::now();
    let status = |RecentMove { server, from, core, pause_us, cause, reason, arrived }| MoveStatus {
        server,
        from,
        core,
        cause,
        reason,
        pause_us,
        seconds_ago: seconds(now.since(arrived).0),
    };
    sources.placer.moves().into_iter().map(status).collect()
}

fn volume(sources: &Sources, at: usize, volume: &Volume) -> VolumeStatus {
    let facts = &volume.facts;
    let learned = sources.learned(at);
    let DiskModel { visit, sweep, read_mib, write_mib, flush, depth } = learned.model;
    VolumeStatus {
        mount: volume.mount.clone(),
        path: facts.path.display().to_string(),
        up: sources.watchdog.is_up(at),
        degradation: degradation(sources, at),
        cycle: exact(facts.cycle()),
        block: exact(facts.block()),
        arena: exact(facts.arena()),
        sendfile: facts.sendfile(),
        model: Model {
            measured: facts.model_is_measured,
            source: learned.source.name(),
            confidence: thousandths(learned.confidence),
            time_ratio: thousandths(learned.ratio),
            visit: exact(visit),
            sweep: exact(sweep),
            read_mib: exact(read_mib),
            write_mib: exact(write_mib),
            flush: exact(flush),
            depth,
        },
        bad_ranges: bad_ranges(sources, at),
        uploads: uploads(sources, at),
    }
}

fn indexes(sources: &Sources) -> Indexes {
    let progress = sources.catalogue.index_progress();
    let title = |volume: VolumeId, name: &str| {
        let volume = sources.volumes.get(usize::from(volume.0));
        format!("{}{name}", volume.map_or("", |volume| &volume.mount))
    };
    let current = progress.current.map(|current| CurrentIndex {
        title: title(current.volume, &current.name),
        read_bytes: current.read.0,
        bytes: current.len.0,
    });
    Indexes {
        wanted: progress.wanted,
        made: progress.made,
        without: progress.without,
        failed: progress.failed,
        current,
    }
}

fn bad_ranges(sources: &Sources, at: usize) -> Vec<BadRangeStatus> {
    let places = sources.broker.bad_ranges().into_iter();
    let here = places.filter(|place| usize::from(place.volume.0) == at);
    let told = here.map(|place| {
        let title = sources.path_in_urls(place.volume, &place.file);
        BadRangeStatus {
            title: title.unwrap_or_else(|| place.file.display().to_string()),
            first_byte: place.bytes.start,
            bytes: place.len().0,
            error: std::io::Error::from_raw_os_error(place.errno).to_string(),
            marked_seconds_ago: place.age().as_secs(),
        }
    });
    told.collect()
}

fn degradation(sources: &Sources, at: usize) -> Degradation {
    let volume = VolumeId(u16::try_from(at).unwrap_or(u16::MAX));
    let level = sources.degradations.level(volume);
    let ended_streams = sources.degradations.ended(volume);
    let deferred_streams = sources.degradations.deferred(volume);
    Degradation { level: level.number(), name: level.name(), deferred_streams, ended_streams }
}

fn uploads(sources: &Sources, at: usize) -> Option<Uploads> {
    let levels = sources.write_paths.get(at)?.as_ref()?.levels();
    let disk = &sources.counters.disks[at];
    let flush = disk.sync_time.snapshot();
    Some(Uploads {
        failed: sources.trouble(at),
        write_share: exact(sources.volumes[at].facts.write_share()?),
        places: levels.places,
        places_used: levels.places_used,
        waiting: levels.waiting,
        written_bytes: disk.written_bytes.value(),
        faults: disk.write_faults.value() + disk.sync_faults.value(),
        flushes: disk.syncs.value(),
        flushes_waiting: levels.syncs,
        flush_p50_seconds: seconds(flush.quantile(0.5)),
        flush_p99_seconds: seconds(flush.quantile(0.99)),
        disk_seconds: seconds(disk.upload_time.value()),
        cycles_waited: disk.upload_cycles_waited.value(),
    })
}

fn totals(sources: &Sources) -> Totals {
    let counters = &sources.counters;
    let lateness = counters.histogram_of_links(|link| &link.lateness);
    let deviation = counters.histogram_of_links(|link| &link.deviation);
    Totals {
        sent_bytes: counters.sum_of_links(|link| &link.bytes),
        underruns: sources.underruns(),
        stalls: counters.sum_of_links(|link| &link.stalls),
        cycles_missed: sources.counters.disks.iter().map(|disk| disk.cycles_missed.value()).sum(),
        lateness_p50_seconds: seconds(lateness.quantile(0.5)),
        lateness_p99_seconds: seconds(lateness.quantile(0.99)),
        lateness_p999_seconds: seconds(lateness.quantile(0.999)),
        deviation_mean_ratio: ratio(deviation.sum()) / deviation.count().max(1) as f64,
        deviation_p99_ratio: ratio(deviation.quantile(0.99)),
    }
}

fn packets(sources: &Sources) -> Packets {
    let counters = &sources.counters;
    let sum = |counter: fn(&PacketCounters) -> &Counter| counters.sum_of_packet_servers(counter);
    let lateness = counters.histogram_of_packet_servers(|packets| &packets.lateness);
    let deviation = counters.histogram_of_packet_servers(|packets| &packets.deviation);
    Packets {
        back_end: sources.packets.back_end.name(),
        segments: sources.packets.cutting == Cutting::Kernel,
        datagram_cpu_seconds: seconds(sources.broker.datagram_cost().first.0),
        back_ends: sources.packets.candidates.iter().map(back_end).collect(),
        sent_bytes: sum(|packets| &packets.bytes),
        datagrams: sum(|packets| &packets.datagrams),
        messages: sum(|packets| &packets.messages),
        calls: sum(|packets| &packets.calls),
        turns: sum(|packets| &packets.turns),
        refused: sum(|packets| &packets.refused),
        full: sum(|packets| &packets.full),
        underruns: sources.packet_underruns(),
        stuffed: sum(|packets| &packets.stuffed),
        slots_late: sum(|packets| &packets.slots_late),
        unstamped: sum(|packets| &packets.unstamped),
        stalls: sum(|packets| &packets.stalls),
        lateness_p50_seconds: seconds(lateness.quantile(0.5)),
        lateness_p99_seconds: seconds(lateness.quantile(0.99)),
        lateness_p999_seconds: seconds(lateness.quantile(0.999)),
        deviation_mean_ratio: ratio(deviation.sum()) / deviation.count().max(1) as f64,
        deviation_p99_ratio: ratio(deviation.quantile(0.99)),
        queues: probe::queues().into_iter().map(queue).collect(),
        gap_frames: sources.packets.gaps.as_deref().map(gap_frames),
    }
}

fn queue(found: probe::Queue) -> Queue {
    let probe::Queue { device, discipline, dropped } = found;
    Queue { device, discipline, dropped }
}

fn gap_frames(counters: &GapCounters) -> GapFrames {
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    GapFrames {
        frames: value(&counters.frames),
        gaps: value(&counters.gaps),
        empty: value(&counters.empty),
        behind_seconds: seconds(value(&counters.lost)),
        refused: value(&counters.refused),
    }
}

fn back_end(found: &Candidate) -> BackEndStatus {
    let cpu = |nanos: Nanos| seconds(nanos.0);
    BackEndStatus {
        back_end: found.back_end.name(),
        datagram_cpu_seconds: found.single.as_ref().ok().copied().map(cpu),
        of_seven_cpu_seconds: found.gathered.map(cpu),
        error: found.single.as_ref().err().cloned(),
    }
}

fn stream(stream: &Stream) -> StreamStatus {
    StreamStatus {
        stream: stream.running.slot,
        title: stream.title.clone(),
        client: stream.running.client.clone(),
        set_rate_bits_per_second: stream.set_rate().map(|rate| rate.0),
        real_rate_bits_per_second: stream.real_rate().0,
        deviation_ratio: ratio(stream.counters.deviation.value()),
        lateness_max_seconds: seconds(stream.counters.lateness_max.value()),
        underruns: stream.underruns(),
        stalls: stream.counters.stalls.value(),
        stalled_seconds: seconds(stream.counters.stalled.value()),
        sent_bytes: stream.counters.bytes.value(),
    }
}

fn recordings(sources: &Sources) -> Vec<RecordingStatus> {
    let running = sources.recorder.as_ref().map(Recorder::running).unwrap_or_default();
    let one = |figures: Figures| {
        let Figures { volume, path, rate, since, taken, durable, lost, overruns, underruns } =
            figures;
        let lost = LossKind::ALL.into_iter().zip(lost);
        RecordingStatus {
            title: format!("{}{path}", sources.mount(usize::from(volume.0))),
            rate_bits_per_second: rate.0,
            seconds: since.elapsed().map_or(0, |since| since.as_secs()),
            taken_bytes: taken.0,
            durable_bytes: durable.0,
            lost: lost
                .map(|(kind, loss)| {
                    (kind.name(), LossStatus { gaps: loss.gaps, bytes: loss.bytes })
                })
                .collect(),
            overruns,
            underruns,
        }
    };
    running.into_iter().map(one).collect()
}
