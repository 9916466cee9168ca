//! One measured run: a server, N streams, and what they cost and were.
//!
//! Promise: the measured span begins when all streams run and the warm-up is over; how long a
//! stream waits for its first byte is a figure of its own; cost and payload are of the same span,
//! which is the measured one unless the bench names a part of it. A
//! run in which the machine stood still too often is no result; one in which the server ended is an
//! error.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;
use tactus_core::units::{BitRate, Bytes, MILLISECOND, MonoTime, Nanos, SECOND};

use crate::arrivals::Trace;
use crate::clock;
use crate::cpu::{Cost, CpuSnapshot, CpuUsage};
use crate::figures::delay_factor::{self, DelayFactor};
use crate::figures::jitter::{self, Jitter};
use crate::figures::underrun::{Player, Underruns};
use crate::figures::windows::{Grid, Span};
use crate::gaps::{DROPPED_MAX, Detector, Looks};
use crate::interrupt;
use crate::machine;
use crate::netns::Wire;
use crate::peers::{Peer, Server, Setting, address};
use crate::receiver::{Answer, End, Harvest, Plan, PlannedRequest, StreamReceiver};
use crate::spread;
use crate::titles::Titles;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// Between server and receiver.
    pub wire: &'a Wire,
    /// What is asked for: stream k gets title k modulo their number.
    pub titles: &'a Titles,
    /// The rate of every stream.
    pub rate: BitRate,
    /// How many streams.
    pub streams: usize,
    /// The time over which they are asked for, evenly.
    pub stagger: Nanos,
    /// What is dropped after the last has begun.
    pub warm_up: Nanos,
    /// What is measured.
    pub length: Nanos,
    /// The start-up buffer of the virtual players.
    pub start_up: Nanos,
    /// Whether the titles must come from the disk or from memory.
    pub cold: bool,
    /// The server's cores, as a list.
    pub server_cores: &'a str,
    /// The receiver's core.
    pub receiver_core: usize,
    /// How often the gap detector looks on it.
    pub looks: Looks,
    /// What the machine did without a server, if known.
    pub idle: Option<&'a CpuUsage>,
    /// The binary of Tactus.
    pub tactus: &'a Path,
}

impl Scene<'_> {
    /// The length of title that no stream outruns: everything that the run asks for, a start burst,
    /// and a margin.
    pub fn title_size(rate: BitRate, stagger: Nanos, warm_up: Nanos, length: Nanos) -> Bytes {
        rate.bytes_in(stagger + BEGIN_MAX + warm_up + length + SECOND.times(10))
    }

    /// What the server of this scene is told.
    pub fn setting(&self) -> Setting<'_> {
        Setting {
            wire: self.wire,
            titles: self.titles,
            rate: self.rate,
            cores: self.server_cores,
            streams: self.streams,
            tactus: self.tactus,
            group: None,
            uploads: false,
        }
    }

    /// The same for a server that takes uploads too.
    pub fn setting_with_uploads(&self) -> Setting<'_> {
        Setting { uploads: true, ..self.setting() }
    }
}

/// How long the measured span waits for streams that have no payload yet.
const BEGIN_MAX: Nanos = SECOND.times(15);

/// What a run brought.
#[derive(Debug)]
pub struct Outcome {
    /// The measured span.
    pub measured: Span,
    /// The part of it in which CPU time was counted.
    pub costed: Span,
    /// Standstills of the machine.
    pub gaps: Vec<Span>,
    /// One per stream.
    pub traces: Vec<Trace>,
    /// One per stream.
    pub answers: Vec<Answer>,
    /// One per further request.
    pub extra_answers: Vec<Answer>,
    /// One per further request.
    pub extra_traces: Vec<Trace>,
    /// When the receiver stopped.
    pub stopped_at: MonoTime,
    /// CPU time in `costed`.
    pub spent: CpuUsage,
    /// The most memory that the server's first process held, in bytes.
    pub memory_peak: Option<Bytes>,
    /// Things to know about this run.
    pub notes: Vec<String>,
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// J over 10 ms.
    pub j10ms: Jitter,
    /// J over 100 ms.
    pub j100ms: Jitter,
    /// J over 1 s.
    pub j1s: Jitter,
    /// DF per run.
    pub df_run: DelayFactor,
    /// DF per second.
    pub df_second: DelayFactor,
    /// Payload in the measured span.
    pub payload: u64,
    /// Share of the payload that the rates ask for.
    pub payload_share: f64,
    /// CPU seconds per 10^9 payload bytes of all requests: threads, kernel workers and X.
    pub cpu_per_gb: f64,
    /// The same of the threads alone.
    pub tree_per_gb: f64,
    /// CPU seconds of the receiver per 10^9 payload bytes.
    pub receiver_per_gb: f64,
    /// Its parts, in CPU seconds.
    pub cost: Cost,
    /// Underruns of all streams over the whole run, start-up included.
    pub underruns: u64,
    /// Streams with at least one underrun.
    pub streams_underrun: usize,
    /// Streams that were refused or broke.
    pub streams_failed: usize,
    /// The slowest start of a player, seconds after its request.
    pub start_delay_max: f64,
    /// From the request to the first payload: median and maximum over streams, seconds.
    pub first_byte: (f64, f64),
    /// Windows of one second dropped for a gap, of all.
    pub dropped: (usize, usize),
    /// Everything that ran, by kind.
    pub spent: CpuUsage,
}

/// What else happens in a run.
#[derive(Clone, Copy, Default)]
pub struct Extra<'a> {
    /// Further requests, at instants after the start of the receiver; they are not streams. With
    /// them the measured span begins when the plan says so, whether all streams run or not.
    pub asks: &'a [PlannedRequest],
    /// Done beside the run; it is told when the measured span begins.
    pub beside: Option<&'a (dyn Fn(MonoTime) -> Result<()> + Sync)>,
    /// A group of processes that the server joins before it starts.
    pub group: Option<&'a Path>,
    /// Whether the server takes uploads.
    pub uploads: bool,
    /// CPU time is counted from and to these times after the beginning of the measured span; by
    /// default in all of it.
    pub costed: Option<(Nanos, Nanos)>,
    /// Done before each run, the repeated ones too.
    pub before: Option<&'a (dyn Fn() -> Result<()> + Sync)>,
}

/// Runs `peer` in `scene`.
pub fn run(peer: &dyn Peer, scene: &Scene<'_>) -> Result<Outcome> {
    run_with(peer, scene, Extra::default())
}

/// Runs `peer` in `scene` with something besides.
pub fn run_with(peer: &dyn Peer, scene: &Scene<'_>, extra: Extra<'_>) -> Result<Outcome> {
    interrupt::check()?;
    extra.before.map_or(Ok(()), |act| act())?;
    match scene.cold {
        true => scene.titles.chill()?,
        false => scene.titles.warm()?,
    }
    let setting = Setting { group: extra.group, uploads: extra.uploads, ..scene.setting() };
    let server = peer.start(&setting).with_context(|| peer.name())?;
    let mut asks = evenly(scene, |number| peer.target(scene.titles, number, scene.rate));
    asks.extend_from_slice(extra.asks);
    watch(server, scene, asks, extra).with_context(|| peer.name())
}

/// Requests spread evenly over the stagger.
fn evenly(scene: &Scene<'_>, target: impl Fn(usize) -> String) -> Vec<PlannedRequest> {
    let step = Nanos(scene.stagger.0 / scene.streams.max(1) as u64);
    let titles = scene.titles.count();
    (0..scene.streams)
        .map(|stream| PlannedRequest::get(step.times(stream as u64), &target(stream % titles)))
        .collect()
}

fn watch(
    mut server: Server,
    scene: &Scene<'_>,
    asks: Vec<PlannedRequest>,
    extra: Extra<'_>,
) -> Result<Outcome> {
    let requests = asks.len();
    let plan =
        Plan { server: address(scene.wire), asks, room: room(scene), core: scene.receiver_core };
    let detector = Detector::start(scene.receiver_core, scene.looks);
    let receiver = StreamReceiver::start(scene.wire.receiver_side(), plan)?;
    let asked_all_at = wait_until_started(&receiver, &mut server)? + scene.stagger;
    let all_run_at = match extra.asks {
        [] => wait_until_all_run(&receiver, &mut server, scene.streams, asked_all_at)?,
        _ => asked_all_at,
    };
    let from = all_run_at + scene.warm_up;
    let measured = Span { from, to: from + scene.length };
    let part = |(begin, end): (Nanos, Nanos)| Span { from: from + begin, to: from + end };
    let costed = extra.costed.map_or(measured, part);
    let spent = std::thread::scope(|scope| {
        let beside = extra.beside.map(|act| scope.spawn(move || act(from)));
        let spent = measure(&mut server, measured, costed);
        match beside.map(|act| act.join()) {
            Some(Err(_)) => Err(anyhow!("what ran beside the run panicked")),
            Some(Ok(Err(error))) => Err(error),
            Some(Ok(Ok(()))) | None => spent,
        }
    })?;
    let memory_peak = server.memory_peak();
    let Harvest { answers, record, stopped_at, refused_fifo } = receiver.stop()?;
    let mut notes = vec![format!("load average {}", machine::load())];
    let gaps = match detector.and_then(Detector::stop) {
        Ok(gaps) => gaps,
        Err(error) => {
            notes.push(format!("no gap detector: {error:#}"));
            Vec::new()
        }
    };
    if refused_fifo {
        notes.push("the receiver ran without SCHED_FIFO".into());
    }
    if record.outgrew_its_room() {
        notes.push("the receiver's record had to grow".into());
    }
    let mut traces = record.traces(requests);
    let mut answers = answers;
    let extra_traces = traces.split_off(scene.streams);
    let extra_answers = answers.split_off(scene.streams.min(answers.len()));
    ensure!(extra_traces.len() == extra_answers.len(), "not all requests were made in time");
    let waiting = traces.iter().zip(&answers).filter(|(trace, answer)| {
        answer.accepted() && trace.steps().first().is_none_or(|first| first.at > from)
    });
    let waiting = waiting.count();
    if waiting > 0 {
        notes.push(format!("{waiting} streams had no payload when the measured span began"));
    }
    Ok(Outcome {
        measured,
        costed,
        gaps,
        traces,
        answers,
        extra_answers,
        extra_traces,
        stopped_at,
        spent,
        memory_peak,
        notes,
    })
}

/// Sleeps through the measured span and answers what ran in the part of it that is costed.
fn measure(server: &mut Server, span: Span, costed: Span) -> Result<CpuUsage> {
    interrupt::sleep_until(costed.from)?;
    server.check()?;
    let before = CpuSnapshot::take()?;
    interrupt::sleep_until(costed.to)?;
    let spent = CpuSnapshot::take()?.since(&before, server.process());
    interrupt::sleep_until(span.to)?;
    server.check()?;
    Ok(spent)
}

fn wait_until_started(receiver: &StreamReceiver, server: &mut Server) -> Result<MonoTime> {
    loop {
        interrupt::check()?;
        server.check()?;
        if let Some(at) = receiver.started_at() {
            return Ok(at);
        }
        ensure!(!receiver.is_finished(), "the receiver gave up");
        clock::sleep(Nanos::from_millis(5));
    }
}

/// Waits until every stream has payload or none to expect; answers when.
fn wait_until_all_run(
    receiver: &StreamReceiver,
    server: &mut Server,
    streams: usize,
    asked_all_at: MonoTime,
) -> Result<MonoTime> {
    interrupt::sleep_until(asked_all_at)?;
    while receiver.settled() < streams && clock::now() < asked_all_at + BEGIN_MAX {
        interrupt::check()?;
        server.check()?;
        ensure!(!receiver.is_finished(), "the receiver gave up");
        clock::sleep(Nanos::from_millis(5));
    }
    Ok(clock::now())
}

/// Room for the record: a stream's payload arrives in pieces of this size or larger, nearly always.
fn room(scene: &Scene<'_>) -> usize {
    const PIECE: u64 = 12 << 10;
    let span = scene.stagger + BEGIN_MAX + scene.warm_up + scene.length;
    (scene.rate.bytes_in(span).0 / PIECE + 64) as usize * scene.streams
}

/// Seconds without a standstill that are needed to judge seconds.
const SECONDS_MIN: usize = 3;

impl Outcome {
    /// Why this run is no result, if the machine stood still too often.
    pub fn refusal(&self) -> Option<String> {
        let tenths = Grid::new(self.measured, Nanos(SECOND.0 / 10), &self.gaps);
        let (dropped, all) = (tenths.dropped(), tenths.count());
        let seconds = Grid::new(self.measured, SECOND, &self.gaps);
        let whole = seconds.count() - seconds.dropped();
        (dropped as f64 > DROPPED_MAX * all as f64 || whole < SECONDS_MIN)
            .then(|| format!("the machine stood still in {dropped} of {all} tenths of a second"))
    }

    /// Computes the figures over the measured span.
    pub fn figures(&self, scene: &Scene<'_>) -> Result<Figures> {
        let seconds = Grid::new(self.measured, SECOND, &self.gaps);
        let dropped = (seconds.dropped(), seconds.count());
        // A refused run that is looked at all the same counts every window.
        let gaps = if self.refusal().is_some() { &[] } else { &self.gaps[..] };
        let grid = |window| Grid::new(self.measured, window, gaps);
        let second = grid(SECOND);
        let traces = &self.traces;
        let j = |window| {
            jitter::jitter(traces, scene.rate, &grid(window)).context("no window to judge")
        };
        let span = self.measured;
        let payload: u64 = traces.iter().map(|trace| trace.bytes_between(span.from, span.to)).sum();
        let wanted = scene.rate.bytes_in(span.length()).0 as f64 * traces.len() as f64;
        let cost = self.spent.cost(scene.idle.unwrap_or(&CpuUsage::default()));
        let all = traces.iter().chain(&self.extra_traces);
        let paid: u64 =
            all.map(|trace| trace.bytes_between(self.costed.from, self.costed.to)).sum();
        let per_gb = |seconds: f64| seconds * 1e9 / paid.max(1) as f64;
        let plays = self.plays(scene);
        let starts: Vec<f64> =
            plays.iter().filter_map(|play| Some(play.began_after?.0 as f64 / 1e9)).collect();
        let mut first_bytes = self.first_bytes();
        let mut first_byte = |q| spread::quantile(&mut first_bytes, q).unwrap_or(f64::NAN);
        Ok(Figures {
            j10ms: j(MILLISECOND.times(10))?,
            j100ms: j(MILLISECOND.times(100))?,
            j1s: j(SECOND)?,
            df_run: delay_factor::per_run(traces, scene.rate, &second).context("no stream")?,
            df_second: delay_factor::per_window(traces, scene.rate, &second)
                .context("no stream")?,
            payload,
            payload_share: payload as f64 / wanted,
            cpu_per_gb: per_gb(cost.total()),
            tree_per_gb: per_gb(cost.tree),
            receiver_per_gb: per_gb(self.spent.receiver),
            cost,
            underruns: plays.iter().map(|play| play.count).sum(),
            streams_underrun: plays.iter().filter(|play| play.count > 0).count(),
            streams_failed: self.failed(),
            start_delay_max: spread::quantile(&mut { starts }, 1.0).unwrap_or(f64::NAN),
            first_byte: (first_byte(0.5), first_byte(1.0)),
            dropped,
            spent: self.spent.clone(),
        })
    }

    /// The first stream's rate in windows of `window` over the first `length` of the measured span:
    /// pairs of seconds and Mbit/s.
    pub fn sample(&self, window: Nanos, length: Nanos) -> Vec<(f64, f64)> {
        let from = self.measured.from;
        let span = Span { from, to: self.measured.to.min(from + length) };
        let Some(trace) = self.traces.first() else { return Vec::new() };
        let windows = Grid::new(span, window, &[]);
        let points = windows.kept().map(|each| {
            let bits = trace.bytes_between(each.from, each.to) as f64 * 8.0;
            (each.from.since(from).0 as f64 / 1e9, bits * 1e3 / window.0 as f64)
        });
        points.collect()
    }

    /// Plays every stream from its request to the end of the run.
    pub fn plays(&self, scene: &Scene<'_>) -> Vec<Underruns> {
        self.played(scene, &self.traces, &self.answers)
    }

    /// The same of the further requests.
    pub fn extra_plays(&self, scene: &Scene<'_>) -> Vec<Underruns> {
        self.played(scene, &self.extra_traces, &self.extra_answers)
    }

    fn played(&self, scene: &Scene<'_>, traces: &[Trace], answers: &[Answer]) -> Vec<Underruns> {
        let player = Player { rate: scene.rate, start_up: scene.start_up };
        let play = |(trace, answer): (&Trace, &Answer)| {
            let asked = answer.asked_at.unwrap_or(answer.opened_at);
            player.play(trace, asked, self.stopped_at, answer.end == End::Complete)
        };
        traces.iter().zip(answers).map(play).collect()
    }

    /// Seconds from each request to its first payload.
    fn first_bytes(&self) -> Vec<f64> {
        let streams = self.traces.iter().zip(&self.answers);
        let delays = streams.filter_map(|(trace, answer)| {
            Some(trace.steps().first()?.at.since(answer.asked_at?).0 as f64 / 1e9)
        });
        delays.collect()
    }

    /// Streams that were refused or broke.
    pub fn failed(&self) -> usize {
        self.answers.iter().filter(|answer| !answer.went_well()).count()
    }

    /// The reasons of failed streams, each once, with its count.
    pub fn reasons(&self) -> Vec<String> {
        reasons(self.answers.iter().filter(|answer| !answer.went_well()))
    }
}

/// How `answers` ended, each way once, with its count.
pub fn reasons<'a>(answers: impl Iterator<Item = &'a Answer>) -> Vec<String> {
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    for answer in answers {
        let status = answer.status.map_or("no answer".into(), |code| format!("status {code}"));
        *counts.entry(format!("{status}, {:?}", answer.end)).or_default() += 1;
    }
    counts.into_iter().map(|(reason, count)| format!("{count} x {reason}")).collect()
}

/// Watches the machine without a server, for X. The gap detector runs as in a measured run: its
/// timer interrupts are a part of what happens outside threads.
pub fn idle(length: Nanos, receiver_core: usize, looks: Looks) -> Result<CpuUsage> {
    let detector = Detector::start(receiver_core, looks)?;
    let before = CpuSnapshot::take()?;
    let slept = interrupt::sleep_until(clock::now() + length);
    let after = CpuSnapshot::take()?;
    // Without SCHED_FIFO there is no detector, here as in the runs; they note it.
    drop(detector.stop());
    slept?;
    // No process has this number, so the tree is empty.
    Ok(after.since(&before, u32::MAX))
}
