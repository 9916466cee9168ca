//! One measured run: a server, N streams, and what they cost and were.
//!
//! Promise: the measured span begins when all streams have been asked for and the warm-up is over;
//! cost and payload are of the same span. A run in which the machine stood still too often, or the
//! server ended, is an error and no result.

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use tactus_core::units::{BitRate, Bytes, MILLISECOND, MonoTime, Nanos, SECOND};

use crate::arrivals::Trace;
use crate::clock;
use crate::cpu::{Cost, Look, Spent};
use crate::figures::delay_factor::{self, DelayFactor};
use crate::figures::jitter::{self, Jitter};
use crate::figures::underrun::{Player, Underruns};
use crate::figures::windows::{Grid, Span};
use crate::gaps::{DROPPED_MAX, Detector};
use crate::interrupt;
use crate::machine;
use crate::netns::Wire;
use crate::peers::{Peer, Server, Setting, address};
use crate::sink::{Answer, Ask, End, Harvest, Plan, Sink};
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
    /// What is dropped after the last was asked for.
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
    /// What the machine did without a server, if known.
    pub idle: Option<&'a Spent>,
    /// Count the windows in which the machine stood still too: for trying a bench out while other
    /// work shares the cores. Such a report says so and is no result.
    pub accept_noise: bool,
}

impl Scene<'_> {
    /// The length of title that no stream outruns: everything that the run asks for, a start burst,
    /// and a margin.
    pub fn title_size(rate: BitRate, stagger: Nanos, warm_up: Nanos, length: Nanos) -> Bytes {
        rate.bytes_in(stagger + warm_up + length + SECOND.times(15))
    }

    fn setting(&self) -> Setting<'_> {
        Setting {
            wire: self.wire,
            titles: self.titles,
            rate: self.rate,
            cores: self.server_cores,
            streams: self.streams,
        }
    }
}

/// What a run brought.
#[derive(Debug)]
pub struct Outcome {
    /// The measured span.
    pub measured: Span,
    /// Standstills of the machine.
    pub gaps: Vec<Span>,
    /// One per stream.
    pub traces: Vec<Trace>,
    /// One per stream.
    pub answers: Vec<Answer>,
    /// When the receiver stopped.
    pub stopped_at: MonoTime,
    /// CPU time in the measured span.
    pub spent: Spent,
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
    /// CPU seconds per 10^9 payload bytes: threads, kernel workers and X.
    pub cpu_per_gb: f64,
    /// The same of the threads alone.
    pub tree_per_gb: f64,
    /// CPU seconds of the receiver per 10^9 payload bytes, which holds a part of the sending.
    pub receiver_per_gb: f64,
    /// Its parts, in CPU seconds.
    pub cost: Cost,
    /// Underruns of all streams over the whole run, start-up included.
    pub underruns: u64,
    /// Streams with at least one underrun.
    pub streams_underrun: usize,
    /// Streams that were refused or broke.
    pub streams_failed: usize,
    /// The slowest start of a player, seconds.
    pub start_delay_max: f64,
    /// Windows of one second dropped for a gap, of all.
    pub dropped: (usize, usize),
    /// Everything that ran, by kind.
    pub spent: Spent,
}

/// Runs `peer` in `scene`.
pub fn run(peer: &dyn Peer, scene: &Scene<'_>) -> Result<Outcome> {
    interrupt::check()?;
    match scene.cold {
        true => scene.titles.chill()?,
        false => scene.titles.warm()?,
    }
    let server = peer.start(&scene.setting()).with_context(|| peer.name())?;
    let asks = evenly(scene, |number| peer.target(scene.titles, number, scene.rate));
    watch(server, scene, asks).with_context(|| peer.name())
}

/// Requests spread evenly over the stagger.
pub fn evenly(scene: &Scene<'_>, target: impl Fn(usize) -> String) -> Vec<Ask> {
    let step = Nanos(scene.stagger.0 / scene.streams.max(1) as u64);
    let titles = scene.titles.count();
    (0..scene.streams)
        .map(|stream| Ask::get(step.times(stream as u64), &target(stream % titles)))
        .collect()
}

fn watch(mut server: Server, scene: &Scene<'_>, asks: Vec<Ask>) -> Result<Outcome> {
    let streams = asks.len();
    let plan = Plan {
        server: address(scene.wire),
        asks,
        room: room(scene),
        core: scene.receiver_core,
    };
    let detector = Detector::start(scene.receiver_core);
    let sink = Sink::start(scene.wire.receiver_side(), plan)?;
    let asked_all_at = wait_until_asked(&sink, &mut server)?;
    let from = asked_all_at + scene.warm_up;
    interrupt::sleep_until(from)?;
    let before = Look::take()?;
    interrupt::sleep_until(from + scene.length)?;
    let spent = Look::take()?.since(&before, server.process());
    server.check()?;
    let Harvest { answers, record, stopped_at, refused_fifo } = sink.stop()?;
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
    let measured = Span { from, to: from + scene.length };
    let traces = record.traces(streams);
    Ok(Outcome { measured, gaps, traces, answers, stopped_at, spent, notes })
}

fn wait_until_asked(sink: &Sink, server: &mut Server) -> Result<MonoTime> {
    loop {
        interrupt::check()?;
        server.check()?;
        if let Some(at) = sink.asked_all_at() {
            return Ok(at);
        }
        ensure!(!sink.is_finished(), "the receiver gave up");
        clock::sleep(Nanos::from_millis(10));
    }
}

/// Room for the record: a stream's payload arrives in pieces of this size or larger, nearly always.
fn room(scene: &Scene<'_>) -> usize {
    const PIECE: u64 = 12 << 10;
    let span = scene.stagger + scene.warm_up + scene.length + SECOND.times(2);
    (scene.rate.bytes_in(span).0 / PIECE + 64) as usize * scene.streams
}

impl Outcome {
    /// Computes the figures.
    pub fn figures(&self, scene: &Scene<'_>) -> Result<Figures> {
        let seconds = Grid::new(self.measured, SECOND, &self.gaps);
        let dropped = (seconds.dropped(), seconds.len());
        let too_many = dropped.0 as f64 > DROPPED_MAX * dropped.1 as f64;
        if too_many && !scene.accept_noise {
            bail!("the machine stood still in {} of {} seconds: no result", dropped.0, dropped.1);
        }
        let gaps = if too_many { &[] } else { &self.gaps[..] };
        let grid = |window| Grid::new(self.measured, window, gaps);
        let second = grid(SECOND);
        let traces = &self.traces;
        let j = |window| {
            jitter::jitter(traces, scene.rate, &grid(window)).context("no window to judge")
        };
        let span = self.measured;
        let payload: u64 = traces.iter().map(|trace| trace.bytes_between(span.from, span.to)).sum();
        let wanted = scene.rate.bytes_in(span.length()).0 as f64 * traces.len() as f64;
        let cost = self.spent.cost(scene.idle.unwrap_or(&Spent::default()));
        let per_gb = |seconds: f64| seconds * 1e9 / payload.max(1) as f64;
        let plays = self.plays(scene);
        let starts: Vec<f64> =
            plays.iter().filter_map(|play| Some(play.began_after?.0 as f64 / 1e9)).collect();
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
            dropped,
            spent: self.spent.clone(),
        })
    }

    /// Plays every stream from its request to the end of the run.
    pub fn plays(&self, scene: &Scene<'_>) -> Vec<Underruns> {
        let player = Player { rate: scene.rate, start_up: scene.start_up };
        let streams = self.traces.iter().zip(&self.answers);
        streams
            .map(|(trace, answer)| {
                let asked = answer.asked_at.unwrap_or(answer.opened_at);
                player.play(trace, asked, self.stopped_at, answer.end == End::Complete)
            })
            .collect()
    }

    /// Streams that were refused or broke.
    pub fn failed(&self) -> usize {
        self.answers.iter().filter(|answer| !answer.went_well()).count()
    }

    /// The reasons of failed streams, each once, with its count.
    pub fn reasons(&self) -> Vec<String> {
        let mut counts = std::collections::BTreeMap::<String, usize>::new();
        for answer in self.answers.iter().filter(|answer| !answer.went_well()) {
            let status = answer.status.map_or("no answer".into(), |code| format!("status {code}"));
            *counts.entry(format!("{status}, {:?}", answer.end)).or_default() += 1;
        }
        counts.into_iter().map(|(reason, count)| format!("{count} x {reason}")).collect()
    }
}

/// Watches the machine without a server, for X.
pub fn idle(length: Nanos) -> Result<Spent> {
    let before = Look::take()?;
    interrupt::sleep_until(clock::now() + length)?;
    // No process has this number, so the tree is empty.
    Ok(Look::take()?.since(&before, u32::MAX))
}
