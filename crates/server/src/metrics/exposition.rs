//! The page for Prometheus: counters and histograms of the servers, gauges of reservations, and
//! each running stream.
//!
//! Promise: names end in the unit, help texts are sentences, and labels have few values. Only
//! labels of single streams have more: at most as many as the slots of the stream table.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Unit;
use tactus_control::access;
use tactus_control::recording::{Loss, LossKind};
use tactus_core::ledger::Resource;
use tactus_engine::counters::{DeliveryCounters, PacketCounters};
use tactus_engine::message::VolumeId;
use tactus_playout::classes;
use tactus_playout::ingest::{Alarm, Recordings, State, Status};
use tactus_ring::counter::{Counter, Snapshot};
use tactus_rtsp::ReceptionFigures;
use tactus_sys::packets::back_end::{BackEnd, Candidate};
use tactus_sys::probe;

use super::health::Health;
use super::process::Process;
use super::{Sources, ratio, seconds, thousandths};

/// Reads the sources at each scrape.
pub(super) struct Collector(pub(super) Arc<Sources>);

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector")
    }
}

impl prometheus_client::collector::Collector for Collector {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut page = Page { encoder };
        let sources = &*self.0;
        process(&mut page)?;
        server(&mut page, sources)?;
        health(&mut page, sources)?;
        stalls(&mut page, sources)?;
        servers(&mut page, sources)?;
        link(&mut page, sources)?;
        packets(&mut page, sources)?;
        local(&mut page, sources)?;
        classes(&mut page, sources)?;
        rtsp(&mut page, sources)?;
        disks(&mut page, sources)?;
        uploads(&mut page, sources)?;
        indexes(&mut page, sources)?;
        recordings(&mut page, sources)?;
        recorders(&mut page, sources)?;
        promises(&mut page, sources)?;
        requests(&mut page, sources)?;
        streams(&mut page, sources)
    }
}

fn server(page: &mut Page, sources: &Sources) -> fmt::Result {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    page.gauge("tactus_build", "Always 1; the label is the version", None, [(version, 1.0)])?;
    let up = sources.started.elapsed().as_secs_f64();
    page.gauge("tactus_uptime", "Time since the start", Some(Unit::Seconds), [(vec![], up)])?;
    let degraded = sources.degraded().len() as f64;
    let help = "Problems caused by the host at the start, and stalls of the last ten minutes; \
                /api/v1/status lists them";
    page.gauge("tactus_degradations", help, None, [(vec![], degraded)])
}

/// Readiness, and records lost by the access log.
fn health(page: &mut Page, sources: &Sources) -> fmt::Result {
    let Health { ready, reasons, warnings } = Health::now(sources);
    let one = |value: f64| [(vec![], value)];
    let help = "1 while the server works as configured (/readyz)";
    page.gauge("tactus_ready", help, None, one(f64::from(u8::from(ready))))?;
    let help = "Reasons and warnings in /readyz";
    page.gauge("tactus_health_findings", help, None, one((reasons.len() + warnings.len()) as f64))?;
    let help = "Records of the access log dropped because its queue was full";
    page.counter("tactus_access_log_dropped", help, None, [(vec![], access::dropped())])
}

/// Stalls of real-time cores.
fn stalls(page: &mut Page, sources: &Sources) -> fmt::Result {
    let running = sources.placer.cpus();
    let cores = || {
        let all = sources.cpus.iter().zip(&sources.counters.cores);
        let running = all.filter(|(cpu, _)| running.contains(cpu));
        running.map(|(cpu, counters)| (vec![("core", cpu.to_string())], counters))
    };
    let help = "Turns of a real-time core that began more than 10 ms late";
    let each = cores().map(|(labels, core)| (labels, core.stalls.value()));
    page.counter("tactus_core_stalls", help, None, each)?;
    let unit = || Some(Unit::Seconds);
    let help = "Total lateness of these turns";
    let each = cores().map(|(labels, core)| (labels, seconds(core.stalled.value())));
    page.counter("tactus_core_stalled", help, unit(), each)?;
    let help = "Lateness of the latest of these turns";
    let each = cores().map(|(labels, core)| (labels, seconds(core.longest.value())));
    page.gauge("tactus_core_stall_max", help, unit(), each)?;
    let counters = &sources.counters;
    let moved = counters.sum_of_links(|link| &link.stalled_streams)
        + counters.sum_of_packet_servers(|packets| &packets.stalled_streams);
    let help =
        "Streams delayed for good by a stall of more than 250 ms; each counts once per stall";
    page.counter("tactus_streams_stalled", help, None, [(vec![], moved)])
}

/// The servers of the engine: what they use of their cores, and their moves to others.
fn servers(page: &mut Page, sources: &Sources) -> fmt::Result {
    let unit = || Some(Unit::Seconds);
    let busy = sources.counters.servers.iter().map(|(name, counters)| {
        (vec![("server", name.to_string())], seconds(counters.busy.value()))
    });
    let help = "Time of its real-time core that a server has used; a rate of 1 is a whole core";
    page.counter("tactus_server_busy", help, unit(), busy)?;
    let totals = sources.placer.totals();
    let moves = totals.by_cause();
    let moves = moves.map(|(cause, count)| (vec![("cause", cause.name().to_owned())], count));
    let help = "Moves of servers to other real-time cores, by cause; the log and moves in \
                /api/v1/status name each";
    page.counter("tactus_server_moves", help, None, moves)?;
    let help = "Time in which servers that moved began nothing";
    let paused = seconds(totals.paused.0);
    page.counter("tactus_server_move_pauses", help, unit(), [(vec![], paused)])
}

/// The process, with the names that Prometheus' own libraries use.
fn process(page: &mut Page) -> fmt::Result {
    let Some(process) = Process::now() else { return Ok(()) };
    let one = |value: f64| [(vec![], value)];
    let (seconds, bytes) = (|| Some(Unit::Seconds), || Some(Unit::Bytes));
    let help = "User and system CPU time of the process";
    page.counter("process_cpu", help, seconds(), one(process.cpu_seconds))?;
    let help = "Start time of the process since 1970";
    page.gauge("process_start_time", help, seconds(), one(process.start_seconds))?;
    let help = "Virtual memory of the process";
    page.gauge("process_virtual_memory", help, bytes(), one(process.virtual_bytes))?;
    let help = "Resident memory of the process";
    page.gauge("process_resident_memory", help, bytes(), one(process.resident_bytes))?;
    page.gauge("process_threads", "Threads of the process", None, one(process.threads))?;
    page.gauge("process_open_fds", "Open file descriptors", None, one(process.open_files))?;
    let most = process.open_files_max.map(|most| (vec![], most));
    page.gauge("process_max_fds", "Limit of open file descriptors", None, most)
}

fn link(page: &mut Page, sources: &Sources) -> fmt::Result {
    let counters = &sources.counters;
    let deliveries =
        |counter: fn(&DeliveryCounters) -> &Counter| counters.sum_of_deliveries(counter);
    let one = |value: u64| [(vec![], value)];
    let running = [(vec![], deliveries(|server| &server.streams) as f64)];
    page.gauge("tactus_streams", "Streams running", None, running)?;
    let started = deliveries(|server| &server.started);
    page.counter("tactus_streams_started", "Streams begun", None, one(started))?;
    let ends = [
        ("complete", deliveries(|server| &server.completed)),
        ("peer_gone", deliveries(|server| &server.peer_gone)),
        ("too_slow", deliveries(|server| &server.too_slow)),
        ("disk_failed", deliveries(|server| &server.disk_failed)),
        ("damaged", deliveries(|server| &server.damaged)),
    ];
    let ends = ends.map(|(outcome, count)| (vec![("outcome", outcome.into())], count));
    page.counter("tactus_streams_ended", "Streams ended, by outcome", None, ends)?;
    let help = "Payload bytes taken by sockets";
    page.counter(
        "tactus_sent",
        help,
        Some(Unit::Bytes),
        one(counters.sum_of_links(|link| &link.bytes)),
    )?;
    page.counter(
        "tactus_sends",
        "Calls to send",
        None,
        one(counters.sum_of_links(|link| &link.sends)),
    )?;
    let help = "Sends that a socket did not take whole: the client is slow";
    page.counter(
        "tactus_sends_blocked",
        help,
        None,
        one(counters.sum_of_links(|link| &link.blocked)),
    )?;
    let help = "Sends that were not on time, as data was missing or the core was stalled: a broken \
                promise";
    page.counter("tactus_underruns", help, None, one(sources.underruns()))?;
    let help = "Moments in which the machine stood still and all streams were moved";
    page.counter("tactus_stalls", help, None, one(counters.sum_of_links(|link| &link.stalls)))?;
    let help = "How late each send was";
    let unit = Some(Unit::Seconds);
    let lateness = counters.histogram_of_links(|link| &link.lateness);
    page.histogram("tactus_lateness", help, unit, &LATENESS, 1e9, [(vec![], lateness)])?;
    let help = "How far each second of each stream was from its rate (the figure J over 1 s)";
    let unit = Some(ratio_unit());
    let deviation = counters.histogram_of_links(|link| &link.deviation);
    page.histogram("tactus_deviation", help, unit, &DEVIATION, 1e6, [(vec![], deviation)])
}

/// Classes of the link.
fn classes(page: &mut Page, sources: &Sources) -> fmt::Result {
    let all = sources.classes.all();
    let labels = |class: &classes::Status| vec![("class", class.name.clone())];
    let counts = |count: fn(&classes::Status) -> u64| {
        all.iter().map(move |class| (labels(class), count(class)))
    };
    let help = "Bytes on the wire that left as datagrams of each class and of those below it";
    page.counter("tactus_class_sent", help, Some(Unit::Bytes), counts(|class| class.sent_bytes))?;
    let help = "Those of them beyond the guarantee of the class: out of what others left";
    let unit = Some(Unit::Bytes);
    page.counter("tactus_class_borrowed", help, unit, counts(|class| class.borrowed_bytes))?;
    let rates = |rate: fn(&classes::Status) -> u64| {
        all.iter().map(move |class| (labels(class), bytes(rate(class))))
    };
    let per_second = || Some(Unit::Other("bytes_per_second".into()));
    let help = "Rate that each class has whatever others ask for";
    let each = rates(|class| class.guaranteed_bits_per_second);
    page.gauge("tactus_class_guaranteed", help, per_second(), each)?;
    let help = "Rate that streams of each class, and classes below it, have been promised";
    let each = rates(|class| class.promised_bits_per_second);
    page.gauge("tactus_class_promised", help, per_second(), each)?;
    let help = "Part of the guarantee of each class that others may use now";
    let each = rates(|class| class.lent_bits_per_second);
    page.gauge("tactus_class_lent", help, per_second(), each)
}

/// RTSP, if it is enabled.
fn rtsp(page: &mut Page, sources: &Sources) -> fmt::Result {
    let Some(rtsp) = sources.rtsp.as_ref() else { return Ok(()) };
    let counters = rtsp.counters();
    let one = |value: u64| [(vec![], value)];
    let sessions = [(vec![], rtsp.len() as f64)];
    page.gauge("tactus_rtsp_sessions", "Sessions, playing or not", None, sessions)?;
    let help = "Requests that were understood";
    page.counter("tactus_rtsp_requests", help, None, one(counters.requests()))?;
    let refused =
        counters.refused().map(|(reason, count)| (vec![("reason", reason.into())], count));
    let help = "Requests and connections that were refused, by reason";
    page.counter("tactus_rtsp_refused", help, None, refused)?;
    let help = "Sessions that ended since nothing was heard of them";
    page.counter("tactus_rtsp_sessions_silent", help, None, one(counters.silent_sessions()))?;
    let help = "RTCP packets of receivers";
    page.counter("tactus_rtcp_reports", help, None, one(counters.reports()))?;
    let help = "RTCP packets that were dropped, or say what cannot be: malformed, or nobody's";
    page.counter("tactus_rtcp_reports_bad", help, None, one(counters.reports_bad()))?;
    let ReceptionFigures { lost, jitter, round_trip } = rtsp.reported();
    let help = "Part of the packets that was lost between two reports of a receiver";
    let (unit, each) = (Some(ratio_unit()), [(vec![], lost)]);
    page.histogram("tactus_rtcp_lost", help, unit, &LOST, 1e6, each)?;
    let help = "How unevenly packets come, as each report has it";
    let (unit, each) = (Some(Unit::Seconds), [(vec![], jitter)]);
    page.histogram("tactus_rtcp_jitter", help, unit, &LATENESS, 1e9, each)?;
    let help = "Time to a receiver and back, by reports that say so";
    let (unit, each) = (Some(Unit::Seconds), [(vec![], round_trip)]);
    page.histogram("tactus_rtcp_round_trip", help, unit, &SERVICE, 1e9, each)
}

/// Datagrams.
fn local(page: &mut Page, sources: &Sources) -> fmt::Result {
    let file = &sources.counters.file;
    let one = |value: u64| [(vec![], value)];
    let clients = [(vec![], file.clients.value() as f64)];
    page.gauge("tactus_local_clients", "Programs of this machine", None, clients)?;
    let refused = file.refused.value();
    let requests = [
        (vec![("valid", "yes".into())], file.requests.value().saturating_sub(refused)),
        (vec![("valid", "no".into())], refused),
    ];
    page.counter("tactus_local_requests", "Requests in shared memory", None, requests)?;
    let help = "Bytes of titles copied into shared memory";
    page.counter("tactus_local_read", help, Some(Unit::Bytes), one(file.bytes.value()))?;
    let help = "Bytes of titles that programs have written";
    page.counter("tactus_local_written", help, Some(Unit::Bytes), one(file.written.value()))?;
    let help = "Reads of programs whose moments were promised";
    let (promised, late) = (file.promised.value(), file.late.value());
    let kept = [
        (vec![("kept", "yes".into())], promised.saturating_sub(late)),
        (vec![("kept", "no".into())], late),
    ];
    page.counter("tactus_local_moments", help, None, kept)?;
    let help = "Times that a sleeping program was woken";
    page.counter("tactus_local_wakes", help, None, one(file.rings.value()))
}

fn packets(page: &mut Page, sources: &Sources) -> fmt::Result {
    let counters = &sources.counters;
    let sum = |counter: fn(&PacketCounters) -> &Counter| counters.sum_of_packet_servers(counter);
    let one = |value: u64| [(vec![], value)];
    let help = "Payload bytes that left as datagrams";
    page.counter(
        "tactus_packets_sent",
        help,
        Some(Unit::Bytes),
        one(sum(|packets| &packets.bytes)),
    )?;
    page.counter(
        "tactus_packets",
        "Datagrams that left",
        None,
        one(sum(|packets| &packets.datagrams)),
    )?;
    let help = "Messages that they left in, of one datagram or several";
    page.counter("tactus_packet_messages", help, None, one(sum(|packets| &packets.messages)))?;
    let help = "Calls to send datagrams";
    page.counter("tactus_packet_calls", help, None, one(sum(|packets| &packets.calls)))?;
    let help = "Ticks in which there was something to do for datagrams";
    page.counter("tactus_packet_turns", help, None, one(sum(|packets| &packets.turns)))?;
    let help = "Datagrams that the kernel would not send: no route, or an interface that is down";
    page.counter("tactus_packets_refused", help, None, one(sum(|packets| &packets.refused)))?;
    let help = "Calls after which a socket was full: the link is slower than configured";
    page.counter("tactus_packet_calls_full", help, None, one(sum(|packets| &packets.full)))?;
    let help = "Messages that were not on time, as bytes were missing or the core was stalled: a \
                broken promise";
    page.counter("tactus_packet_underruns", help, None, one(sources.packet_underruns()))?;
    let help = "Moments in which the machine or a UDP output stood still for a quarter of a \
                second, and what it made late was moved";
    page.counter("tactus_packet_stalls", help, None, one(sum(|packets| &packets.stalls)))?;
    let help = "Null packets put between those of titles, to make a constant rate";
    page.counter("tactus_packets_stuffed", help, None, one(sum(|packets| &packets.stuffed)))?;
    let help = "Transport packets that found no place when their time came: `stuff` is too low";
    page.counter("tactus_packet_slots_late", help, None, one(sum(|packets| &packets.slots_late)))?;
    let help = "Transport packets of more streams than counters can be kept of over a join";
    page.counter("tactus_packets_unstamped", help, None, one(sum(|packets| &packets.unstamped)))?;
    let dropped = probe::queues().into_iter().map(|queue| {
        let labels = vec![("device", queue.device), ("discipline", queue.discipline)];
        (labels, queue.dropped)
    });
    let help = "Packets that the queue of a device has thrown away, of whoever sent them";
    page.counter("tactus_queue_dropped", help, None, dropped)?;
    let labels = |back_end: BackEnd| vec![("back_end", back_end.name().to_owned())];
    let measured = sources.packets.candidates.iter();
    let cost = |found: &Candidate| {
        let single = found.single.as_ref().ok()?;
        Some((labels(found.back_end), single.0 as f64 / 1e9))
    };
    let help =
        "CPU time of a datagram, as measured at the start, by each back end that was looked at";
    let unit = Some(Unit::Seconds);
    page.gauge("tactus_packet_back_end_cost", help, unit, measured.filter_map(cost))?;
    let taken = [(labels(sources.packets.back_end), 1.0)];
    page.gauge("tactus_packet_back_end", "1 for the one by which datagrams leave", None, taken)?;
    let help = "How late the turn began in which each message left";
    let unit = Some(Unit::Seconds);
    let lateness = counters.histogram_of_packet_servers(|packets| &packets.lateness);
    page.histogram("tactus_packet_lateness", help, unit, &LATENESS, 1e9, [(vec![], lateness)])?;
    let help = "How far each second of each stream of datagrams was from its rate";
    let unit = Some(ratio_unit());
    let deviation = counters.histogram_of_packet_servers(|packets| &packets.deviation);
    page.histogram("tactus_packet_deviation", help, unit, &DEVIATION, 1e6, [(vec![], deviation)])
}

/// Bounds of lateness in ns: a slot is 1.25 ms, the promise 5 ms at p99.9.
const LATENESS: [u64; 11] = [
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    250_000_000,
];
/// Bounds of deviation in millionths: 0.01 % is the aim, 0.05 % the promise.
const DEVIATION: [u64; 9] = [0, 10, 100, 500, 1_000, 5_000, 10_000, 50_000, 250_000];
/// Bounds of loss in millionths: receivers count in 256ths.
const LOST: [u64; 8] = [0, 5_000, 10_000, 20_000, 50_000, 100_000, 250_000, 500_000];
/// Bounds of a disk's service time in ns, from flash to a hard disk with a queue.
const SERVICE: [u64; 12] = [
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    1_000_000_000,
];

fn disks(page: &mut Page, sources: &Sources) -> fmt::Result {
    let volume = |index: usize| ("volume", sources.mount(index).to_owned());
    let disks = || sources.counters.disks.iter().enumerate();
    let blocks = || sources.counters.blocks.iter().enumerate();
    let up = disks().map(|(index, _)| {
        (vec![volume(index)], f64::from(u8::from(sources.watchdog.is_up(index))))
    });
    page.gauge("tactus_volume_up", "1 while the disk answers, 0 when it hangs", None, up)?;
    let number = |index: usize| VolumeId(u16::try_from(index).unwrap_or(u16::MAX));
    let steps = disks().map(|(index, _)| {
        (vec![volume(index)], f64::from(sources.degradations.level(number(index)).number()))
    });
    let help =
        "What is given up because the disk is too slow, by its number in the manual; 0: nothing";
    page.gauge("tactus_degradation_level", help, None, steps)?;
    let ended =
        disks().map(|(index, _)| (vec![volume(index)], sources.degradations.ended(number(index))));
    let help = "Streams that were ended because the disk is too slow";
    page.counter("tactus_degradation_ended", help, None, ended)?;
    learned(page, sources)?;
    let reads = disks().flat_map(|(index, disk)| {
        let labels = |class: &str| vec![volume(index), ("class", class.to_owned())];
        [
            (labels("real_time"), disk.real_time_bytes.value()),
            (labels("best_effort"), disk.best_effort_bytes.value()),
        ]
    });
    page.counter("tactus_disk_read", "Bytes read from the disk", Some(Unit::Bytes), reads)?;
    let each = disks().map(|(index, disk)| (vec![volume(index)], disk.transfers.value()));
    page.counter("tactus_disk_transfers", "Requests that the disk has answered", None, each)?;
    let each = disks().map(|(index, disk)| (vec![volume(index)], disk.faults.value()));
    page.counter("tactus_disk_faults", "Requests that the disk has failed", None, each)?;
    let each = disks().map(|(index, disk)| (vec![volume(index)], disk.cycles_missed.value()));
    let help = "Cycles that ended before all that was due had been read";
    page.counter("tactus_disk_cycles_missed", help, None, each)?;
    let each = disks().map(|(index, disk)| (vec![volume(index)], disk.service.snapshot()));
    let help = "Time from request to answer";
    page.histogram("tactus_disk_service", help, Some(Unit::Seconds), &SERVICE, 1e9, each)?;
    let each = blocks().flat_map(|(index, block)| {
        let labels = |from: &str| vec![volume(index), ("from", from.to_owned())];
        [(labels("memory"), block.hits.value()), (labels("disk"), block.misses.value())]
    });
    let help = "Blocks that streams asked for, by where they were found";
    page.counter("tactus_blocks_wanted", help, None, each)?;
    let each = blocks().map(|(index, block)| (vec![volume(index)], block.evictions.value()));
    page.counter("tactus_blocks_evicted", "Blocks that made room for others", None, each)?;
    let each = blocks().map(|(index, block)| (vec![volume(index)], block.damaged.value()));
    let help =
        "Blocks that were not what had been stored: their streams ended, nothing of them was sent";
    page.counter("tactus_blocks_damaged", help, None, each)?;
    let refused = [(vec![], sources.catalogue.damaged())];
    let help = "Requests for titles that do not fit their checksums, answered with 500";
    page.counter("tactus_titles_damaged", help, None, refused)?;
    let bad = sources.broker.bad_ranges();
    let each = disks().map(|(index, _)| {
        let here = bad.iter().filter(|place| usize::from(place.volume.0) == index).count();
        (vec![volume(index)], here as f64)
    });
    let help = "Places that could not be read, and that nobody asks the disk for meanwhile";
    page.gauge("tactus_blocks_unreadable", help, None, each)?;
    let each = blocks().flat_map(|(index, block)| {
        let labels = |state: &str| vec![volume(index), ("state", state.to_owned())];
        let leased = block.leased.value();
        let idle = block.resident.value().saturating_sub(leased);
        [(labels("leased"), leased as f64), (labels("idle"), idle as f64)]
    });
    page.gauge("tactus_blocks_resident", "Blocks in memory", None, each)
}

/// What is known about the disks, and streams that wait because one is slower than promised.
fn learned(page: &mut Page, sources: &Sources) -> fmt::Result {
    let volume = |index: usize| ("volume", sources.mount(index).to_owned());
    let disks = || sources.counters.disks.iter().enumerate();
    let number = |index: usize| VolumeId(u16::try_from(index).unwrap_or(u16::MAX));
    let each = disks().map(|(index, _)| {
        let source = sources.learned(index).source.name();
        (vec![volume(index), ("source", source.to_owned())], 1.0)
    });
    let help = "Always 1; the label tells where the disk's model comes from";
    page.gauge("tactus_disk_model", help, None, each)?;
    let each = disks()
        .map(|(index, _)| (vec![volume(index)], thousandths(sources.learned(index).confidence)));
    let help = "How much evidence there is for the disk's model, 0 to 1";
    page.gauge("tactus_disk_model_confidence", help, Some(Unit::Other("ratio".to_owned())), each)?;
    let each =
        disks().map(|(index, _)| (vec![volume(index)], thousandths(sources.learned(index).ratio)));
    let help = "Times of the disk's reads, compared with the model of the start";
    page.gauge("tactus_disk_model_time", help, Some(Unit::Other("ratio".to_owned())), each)?;
    let each = disks().map(|(index, disk)| (vec![volume(index)], disk.probe_bytes.value()));
    let help = "Bytes read to learn what the disk can do, in time that was left over";
    page.counter("tactus_disk_probed", help, Some(Unit::Bytes), each)?;
    let each = disks().map(|(index, _)| {
        (vec![volume(index)], sources.degradations.deferred(number(index)) as f64)
    });
    let help = "Streams that wait for the others, because the disk is slower than it was promised";
    page.gauge("tactus_streams_deferred", help, None, each)
}

/// Writes and flushes of volumes that take uploads.
fn uploads(page: &mut Page, sources: &Sources) -> fmt::Result {
    let volume = |index: usize| ("volume", sources.mount(index).to_owned());
    let open = || {
        let disks = sources.counters.disks.iter().zip(&sources.write_paths).enumerate();
        disks.filter_map(|(index, (disk, write_path))| Some((index, disk, write_path.as_ref()?)))
    };
    let each = open().flat_map(|(index, disk, _)| {
        let labels = |time: &str| vec![volume(index), ("time", time.to_owned())];
        let (all, floor) = (disk.written_bytes.value(), disk.floor_bytes.value());
        [(labels("spare"), all.saturating_sub(floor)), (labels("floor"), floor)]
    });
    let help = "1 while the volume takes uploads, 0 since a write or flush has failed";
    let takes = open().map(|(index, ..)| {
        (vec![volume(index)], f64::from(u8::from(sources.trouble(index).is_none())))
    });
    page.gauge("tactus_volume_takes_uploads", help, None, takes)?;
    let help = "Titles that were written in place and wait for their checksums";
    let due = open().map(|(index, ..)| (vec![volume(index)], sources.checksums_due(index) as f64));
    page.gauge("tactus_volume_checksums_due", help, None, due)?;
    let help = "Bytes written to the disk, in time that was left over or that is kept for uploads";
    page.counter("tactus_disk_written", help, Some(Unit::Bytes), each)?;
    let each = open().flat_map(|(index, disk, _)| {
        let labels = |kind: &str| vec![volume(index), ("kind", kind.to_owned())];
        [(labels("write"), disk.write_faults.value()), (labels("flush"), disk.sync_faults.value())]
    });
    let help = "Writes and flushes that the disk has failed: the volume takes no more uploads";
    page.counter("tactus_disk_write_faults", help, None, each)?;
    let busy =
        open().map(|(index, disk, _)| (vec![volume(index)], seconds(disk.upload_time.value())));
    let help =
        "Time of the disk that uploads have used: their writes by its model, and their flushes";
    page.counter("tactus_disk_uploads_busy", help, Some(Unit::Seconds), busy)?;
    let each =
        open().map(|(index, disk, _)| (vec![volume(index)], disk.upload_cycles_waited.value()));
    let help = "Cycles through which a write or a flush of an upload has waited";
    page.counter("tactus_disk_upload_cycles_waited", help, None, each)?;
    let each = open().map(|(index, disk, _)| (vec![volume(index)], disk.sync_time.snapshot()));
    let help = "Time that each flush took";
    page.histogram("tactus_disk_flush", help, Some(Unit::Seconds), &SERVICE, 1e9, each)?;
    let each = open().flat_map(|(index, _, write_path)| {
        let labels = |state: &str| vec![volume(index), ("state", state.to_owned())];
        let levels = write_path.levels();
        let free = levels.places - levels.places_used;
        [(labels("used"), f64::from(levels.places_used)), (labels("free"), f64::from(free))]
    });
    page.gauge("tactus_write_share_places", "Places for bytes on their way in", None, each)?;
    let each = open().flat_map(|(index, _, write_path)| {
        let labels = |wait: &str| vec![volume(index), ("for", wait.to_owned())];
        let levels = write_path.levels();
        [(labels("place"), f64::from(levels.waiting)), (labels("flush"), f64::from(levels.syncs))]
    });
    page.gauge("tactus_uploads_waiting", "Uploads that wait for the disk", None, each)
}

/// Indexes of transport streams, made in the background.
fn indexes(page: &mut Page, sources: &Sources) -> fmt::Result {
    let progress = sources.catalogue.index_progress();
    let wanted = progress.wanted as f64;
    let help = "Titles that want an index, with the one that is read now";
    page.gauge("tactus_indexes_wanted", help, None, [(vec![], wanted)])?;
    let each =
        [("made", progress.made), ("without", progress.without), ("failed", progress.failed)];
    let each = each.map(|(outcome, count)| (vec![("outcome", outcome.to_owned())], count));
    let help = "Titles that were read for an index in the background, by outcome";
    page.counter("tactus_indexes", help, None, each)
}

/// Live inputs.
fn recordings(page: &mut Page, sources: &Sources) -> fmt::Result {
    let all = sources.recordings.as_ref().map(Recordings::all).unwrap_or_default();
    let of = |status: &Status| vec![("recording", status.name.clone())];
    let each = all.iter().map(|s| (of(s), f64::from(u8::from(s.state == State::Recording))));
    page.gauge("tactus_recording_up", "1 while something comes and is recorded", None, each)?;
    let each = all.iter().flat_map(|s| {
        Alarm::ALL.map(|(alarm, name)| {
            let labels = [of(s), vec![("alarm", name.to_owned())]].concat();
            (labels, f64::from(u8::from(s.alarms.contains_key(&alarm))))
        })
    });
    let help = "1 while somebody should look at it; the status says at what";
    page.gauge("tactus_recording_alarm", help, None, each)?;
    let rate = || Some(Unit::Other("bytes_per_second".into()));
    let each = all.iter().filter_map(|s| Some((of(s), bytes(s.measured_rate_bits_per_second?))));
    page.gauge("tactus_recording_rate", "The rate by the stream's clock", rate(), each)?;
    let each = all.iter().map(|s| (of(s), s.counts.datagrams));
    page.counter("tactus_recording_datagrams", "Datagrams that came", None, each)?;
    let each = all.iter().map(|s| (of(s), s.counts.received_bytes));
    page.counter("tactus_recording_received", "Bytes that came", Some(Unit::Bytes), each)?;
    let each = all.iter().map(|s| (of(s), s.counts.ts.packets));
    page.counter("tactus_recording_packets", "Transport packets that were whole", None, each)?;
    let each = all.iter().flat_map(|s| {
        s.counts
            .faults()
            .map(|(kind, count)| ([of(s), vec![("kind", kind.to_owned())]].concat(), count))
    });
    let help = "What was wrong with what came, or had to be dropped, by kind";
    page.counter("tactus_recording_faults", help, None, each)?;
    let each = all.iter().flat_map(|s| {
        let counts = &s.counts;
        [("sync", counts.ts.skipped_bytes), ("disk", counts.write_gap_bytes)]
            .map(|(why, bytes)| ([of(s), vec![("for", why.to_owned())]].concat(), bytes))
    });
    let help = "Bytes dropped: they belonged to no packet, or the disk did not take them";
    page.counter("tactus_recording_dropped", help, Some(Unit::Bytes), each)?;
    let each = all.iter().map(|s| (of(s), s.counts.titles));
    page.counter("tactus_recording_titles", "Titles stored", None, each)?;
    let each = all.iter().map(|s| (of(s), s.counts.stored_bytes));
    page.counter("tactus_recording_stored", "Bytes of titles stored", Some(Unit::Bytes), each)
}

/// Recordings with a reserved rate.
fn recorders(page: &mut Page, sources: &Sources) -> fmt::Result {
    let all: Vec<_> = sources.recorded().collect();
    let volume = |index: usize| ("volume", sources.mount(index).to_owned());
    let each = all.iter().map(|(index, totals)| (vec![volume(*index)], totals.running as f64));
    page.gauge("tactus_recorders", "Titles that are being recorded at a rate", None, each)?;
    let each = all.iter().map(|(index, totals)| (vec![volume(*index)], totals.taken.0));
    let help = "Bytes taken by recordings at a rate";
    page.counter("tactus_recorded", help, Some(Unit::Bytes), each)?;
    let lost = |what: fn(&Loss) -> u64| {
        all.iter().flat_map(move |(index, totals)| {
            LossKind::ALL.into_iter().zip(&totals.lost).map(move |(kind, loss)| {
                (vec![volume(*index), ("cause", kind.name().to_owned())], what(loss))
            })
        })
    };
    let help = "Gaps in recordings, by cause: the disk, more than the rate, the source";
    page.counter("tactus_recorded_gaps", help, None, lost(|loss| loss.gaps))?;
    let help = "Bytes that recordings have lost, by cause";
    page.counter("tactus_recorded_lost", help, Some(Unit::Bytes), lost(|loss| loss.bytes))?;
    let each = all.iter().map(|(index, totals)| (vec![volume(*index)], totals.overruns));
    let help = "How often a local program was faster than the rate of its recording, and waited";
    page.counter("tactus_recorded_overruns", help, None, each)?;
    let each = all.iter().map(|(index, totals)| (vec![volume(*index)], totals.underruns));
    let help = "How often a local program was slower than the rate of its recording";
    page.counter("tactus_recorded_underruns", help, None, each)
}

fn promises(page: &mut Page, sources: &Sources) -> fmt::Result {
    let levels = sources.broker.levels();
    let each = levels.iter().map(|level| {
        let mut labels = vec![("resource", level.resource.to_string())];
        if level.resource.is_of_disk() {
            labels.push(("volume", sources.mount(level.number as usize).to_owned()));
        } else if level.resource == Resource::Cpu {
            labels.extend(sources.cpu(level.number).map(|cpu| ("core", cpu)));
        }
        (labels, level.used as f64 / level.limit.max(1) as f64)
    });
    let help = "Part of each resource that is promised to streams; at 1 it is full";
    page.gauge("tactus_promised", help, Some(ratio_unit()), each)?;
    let refusals = sources.broker.refusals();
    let each =
        refusals.iter().map(|(resource, count)| (vec![("resource", resource.to_string())], count));
    page.counter("tactus_refusals", "Requests refused, by what was short", None, each)
}

fn requests(page: &mut Page, sources: &Sources) -> fmt::Result {
    let http = &sources.http;
    let open = http.connections_open() as f64;
    page.gauge("tactus_http_connections_open", "Connections open", None, [(vec![], open)])?;
    for (name, count) in http.totals() {
        let (name, help) = match name {
            "connections" => ("tactus_http_connections", "Connections taken"),
            "requests" => ("tactus_http_requests", "Requests understood"),
            "accept_pauses" => ("tactus_http_accept_pauses", "Pauses for want of descriptors"),
            _ => continue,
        };
        page.counter(name, help, None, [(vec![], count)])?;
    }
    let each = http.answers().map(|(class, count)| (vec![("class", class.to_owned())], count));
    page.counter("tactus_http_answers", "Answers, by class of status", None, each)?;
    let each = http.abuses().map(|(kind, count)| (vec![("kind", kind.to_owned())], count));
    let help = "What only broken or hostile clients do, by kind";
    page.counter("tactus_http_abuse", help, None, each)
}

fn streams(page: &mut Page, sources: &Sources) -> fmt::Result {
    let all = sources.streams();
    let labels = |stream: &super::Stream| {
        vec![("stream", stream.running.slot.to_string()), ("title", stream.title.clone())]
    };
    let rate = || Some(Unit::Other("bytes_per_second".into()));
    let each = all.iter().filter_map(|s| Some((labels(s), bytes(s.set_rate()?.0))));
    page.gauge("tactus_stream_set_rate", "The rate that was promised", rate(), each)?;
    let each = all.iter().map(|s| (labels(s), bytes(s.real_rate().0)));
    page.gauge("tactus_stream_real_rate", "Payload of the last whole second", rate(), each)?;
    let paced = || all.iter().filter(|stream| stream.set_rate().is_some());
    let each = paced().map(|s| (labels(s), ratio(s.counters.deviation.value())));
    let help = "How far the last whole second was from the rate";
    page.gauge("tactus_stream_deviation", help, Some(ratio_unit()), each)?;
    let each = paced().map(|s| (labels(s), seconds(s.counters.lateness_max.value())));
    let help = "The latest send of this stream";
    page.gauge("tactus_stream_lateness_max", help, Some(Unit::Seconds), each)?;
    let each = paced().map(|s| (labels(s), s.underruns() as f64));
    let help = "Sends of this stream that were not on time";
    page.gauge("tactus_stream_underruns", help, None, each)?;
    let each = paced().map(|s| (labels(s), seconds(s.counters.stalled.value())));
    let help = "Total delay of this stream by stalls, which lasts to its end";
    page.gauge("tactus_stream_stalled", help, Some(Unit::Seconds), each)?;
    let each = all.iter().map(|s| (labels(s), s.counters.bytes.value() as f64));
    page.gauge("tactus_stream_sent", "Payload of this stream", Some(Unit::Bytes), each)
}

/// A rate in the base unit of Prometheus, bytes per second.
fn bytes(bits: u64) -> f64 {
    bits as f64 / 8.0
}

/// The usual suffix of fractions is singular (`ratio`); the library's is not.
fn ratio_unit() -> Unit {
    Unit::Other("ratio".into())
}

type Labels = Vec<(&'static str, String)>;

/// Writes families of metrics.
struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Page<'_> {
    fn counter<V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        values: impl IntoIterator<Item = (Labels, V)>,
    ) -> fmt::Result {
        let mut family =
            self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (labels, value) in values {
            let none: Option<&Exemplar<NoLabelSet, f64>> = None;
            if labels.is_empty() {
                family.encode_counter(&value, none)?;
            } else {
                family.encode_family(&labels)?.encode_counter(&value, none)?;
            }
        }
        Ok(())
    }

    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) -> fmt::Result {
        let mut family =
            self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in values {
            if labels.is_empty() {
                family.encode_gauge(&value)?;
            } else {
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    /// Writes histograms whose values are counted in `scale` parts of the unit.
    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        bounds: &[u64],
        scale: f64,
        values: impl IntoIterator<Item = (Labels, Snapshot)>,
    ) -> fmt::Result {
        let mut family =
            self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Histogram)?;
        for (labels, snapshot) in values {
            let mut buckets = Vec::with_capacity(bounds.len() + 1);
            let mut below = 0;
            for &bound in bounds {
                let up_to = snapshot.count_up_to(bound);
                buckets.push((bound as f64 / scale, up_to - below));
                below = up_to;
            }
            let count = snapshot.count();
            buckets.push((f64::INFINITY, count - below));
            let sum = snapshot.sum() as f64 / scale;
            let none = None::<&std::collections::HashMap<usize, Exemplar<NoLabelSet, f64>>>;
            if labels.is_empty() {
                family.encode_histogram(sum, count, &buckets, none)?;
            } else {
                family.encode_family(&labels)?.encode_histogram(sum, count, &buckets, none)?;
            }
        }
        Ok(())
    }
}
