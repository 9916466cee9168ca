//! balance: streams double and go away again, and the servers of the engine follow by themselves.
//!
//! Promise: all servers begin on one core. A move is counted when the server's own placement shows
//! it, which is read all the time. The streams of before run on, and are judged in each phase.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tactus_core::units::{BitRate, MonoTime, Nanos, SECOND};

use super::{Fixture, say};
use crate::figures::windows::Span;
use crate::peers::{self, Peer, TOKEN, Tactus, Tuning};
use crate::phase;
use crate::receiver::PlannedRequest;
use crate::report::{Report, Table, Verdict, number, spread};
use crate::run::{Extra, Scene};
use crate::titles::Titles;
use crate::{clock, interrupt, machine};

const RATE: BitRate = BitRate(8_800_000);
/// At first, and again that come and go.
const STREAMS: usize = 200;
const TITLES: usize = 16;
const ROUNDS: usize = 3;
/// Before the streams double.
const BEFORE: Nanos = SECOND.times(10);
/// In which as many streams again are requested.
const STEP: Nanos = Nanos::from_millis(200);
/// After the last of them has gone: idle cores are given back after ten seconds.
const AFTER: Nanos = SECOND.times(15);
/// Between two looks at the placement.
const LOOK: Nanos = Nanos::from_millis(10);
/// Of each core's time: with it, 200 streams of titles in memory are less than half of what a core
/// may promise, and 400 are more than four fifths.
const CPU_BUDGET: u32 = 15;
const PLACEMENT: &str = "[{ cpu = 0, servers = [\"disk.0\", \"block.0\", \"delivery\", \
                         \"link\", \"link.1\", \"packets\"] }, { cpu = 1, servers = [] }]";

/// A move that was seen: when, and where the server is then.
#[derive(Clone, Debug)]
struct Move {
    at: MonoTime,
    server: String,
    core: u64,
}

/// What one round has shown.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// From the last further request to the last move of the second after it, in seconds; none
    /// without a move.
    settled: Option<f64>,
    /// Moves in the rest of the time in which twice the streams ran.
    later: usize,
    /// From the end of the further streams until all servers shared a core, in seconds.
    together: Option<f64>,
    /// Underruns, and streams that failed, of all.
    late: u64,
}

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "how soon do the servers of the engine follow their load, and who notices?";
    let mut report = fixture.report("balance", question);
    let doubled = fixture.seconds(30);
    let length = BEFORE + doubled + AFTER;
    let size = Scene::title_size(RATE, SECOND, SECOND.times(2), length);
    let titles = Titles::lay(&fixture.options.data.join("balance"), TITLES, size)?;
    report.settings.push(("disk".into(), machine::storage(titles.root())));
    let scene = Scene { length, server_cores: "0-1", ..fixture.scene(&titles, RATE, STREAMS) };
    let tuning = Tuning {
        tick: Some(Nanos::from_micros(62_500)),
        placement: Some(PLACEMENT.into()),
        cpu_budget: Some(CPU_BUDGET),
        balance: true,
        further: STREAMS,
        ..Tuning::default()
    };
    let tactus = Tactus { label: "two cores".into(), tuning };
    report.settings.push((tactus.name(), tactus.settings(&scene.setting_with_uploads())?));
    let asked = scene.stagger + scene.warm_up + BEFORE;
    let asks = further(&titles, asked, doubled);
    let address = peers::address(scene.wire);
    let (mut calm, mut busy, mut rounds) = (vec![], vec![], vec![]);
    for round in 0..fixture.rounds(ROUNDS) {
        say(&format!("round {}: {STREAMS} streams, twice as many for {doubled}", round + 1));
        let found = Mutex::new(Vec::new());
        let looks = |from: MonoTime| {
            // Of this thread alone.
            scene.wire.move_to_receiver_side()?;
            let moves = watch_until(from + length, address)?;
            *found.lock().unwrap_or_else(PoisonError::into_inner) = moves;
            Ok(())
        };
        let extra = Extra { asks: &asks, beside: Some(&looks), uploads: true, ..Extra::default() };
        let (outcome, figures) = fixture.outcome_with(&tactus, &scene, extra, &mut report)?;
        let whole = outcome.measured;
        let step = Span { from: whole.from + BEFORE, to: whole.from + BEFORE + doubled };
        let gaps = if fixture.options.accept_noise { &[] } else { &outcome.gaps[..] };
        let judge = |from, to| phase::of(&outcome.traces, RATE, whole, Span { from, to }, gaps);
        let (before, during) = (judge(whole.from, step.from)?, judge(step.from, step.to)?);
        let moves = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let failed = outcome.extra_answers.iter().filter(|answer| !answer.went_well()).count();
        let late = figures.underruns + (figures.streams_failed + failed) as u64;
        let seen = judged(&moves, step, late);
        if let Some(run) = report.runs.last_mut() {
            run["before"] = json!(before);
            run["during"] = json!(during);
            run["moves"] = moves.iter().map(|one| told(one, step.from)).collect();
        }
        calm.push(before);
        busy.push(during);
        rounds.push(seen);
    }
    report.tables.push(phase::table("with twice the streams", [&calm, &busy]));
    summarise(&rounds, &mut report);
    Ok(report)
}

/// The further streams: each plays for `span`.
fn further(titles: &Titles, asked: Nanos, span: Nanos) -> Vec<PlannedRequest> {
    let last = RATE.bytes_in(span).0 - 1;
    let request = |number: usize| {
        let after = asked + Nanos(STEP.0 * number as u64 / STREAMS as u64);
        let target = format!("{}?rate={}", titles.target(number % titles.count()), RATE.0);
        let text = format!("GET {target} HTTP/1.1\r\nHost: bench\r\nRange: bytes=0-{last}\r\n\r\n");
        PlannedRequest { after, request: text.into_bytes(), from: None }
    };
    (0..STREAMS).map(request).collect()
}

/// Notes each move until `until`.
fn watch_until(until: MonoTime, address: SocketAddrV4) -> Result<Vec<Move>> {
    let (mut moves, mut known) = (vec![], placement(address)?);
    while clock::now() < until {
        interrupt::check()?;
        clock::sleep(LOOK);
        let now = placement(address)?;
        for (server, core) in now.iter().filter(|one| !known.contains(one)) {
            moves.push(Move { at: clock::now(), server: server.clone(), core: *core });
        }
        known = now;
    }
    Ok(moves)
}

/// The core of each server, as `tactus place list` shows it.
fn placement(address: SocketAddrV4) -> Result<Vec<(String, u64)>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(
        stream,
        "GET /api/v1/placement HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}\r\n\
         Connection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{answer}");
    let all: Value = serde_json::from_str(body)?;
    let of_core = |core: &Value| {
        let cpu = core["cpu"].as_u64().unwrap_or_default();
        let servers = core["servers"].as_array().cloned().unwrap_or_default();
        servers.into_iter().filter_map(move |name| Some((name.as_str()?.to_owned(), cpu)))
    };
    Ok(all.as_array().context("no list of cores")?.iter().flat_map(of_core).collect())
}

fn told(one: &Move, from: MonoTime) -> Value {
    let seconds = (one.at.0 as f64 - from.0 as f64) / 1e9;
    json!({ "server": one.server, "core": one.core, "seconds": seconds })
}

/// What `moves` say about the step of load.
fn judged(moves: &[Move], step: Span, late: u64) -> Round {
    let asked = step.from + STEP;
    let seconds = |since: MonoTime, at: MonoTime| at.since(since).0 as f64 / 1e9;
    let during = moves.iter().filter(|one| one.at >= step.from && one.at < step.to);
    let (first, later): (Vec<_>, Vec<_>) = during.partition(|one| one.at < asked + SECOND);
    let back = moves.iter().rfind(|one| one.at >= step.to);
    Round {
        settled: first.last().map(|one| seconds(asked, one.at)),
        later: later.len(),
        together: back.map(|one| seconds(step.to, one.at)),
        late,
    }
}

fn summarise(rounds: &[Round], report: &mut Report) {
    let head = ["figure", "median of the rounds (range)"];
    let mut table = Table::new("after the step", &head);
    let list = |value: fn(&Round) -> Option<f64>| rounds.iter().filter_map(value).collect();
    let settled: Vec<f64> = list(|round| round.settled);
    let together: Vec<f64> = list(|round| round.together);
    let or_none = |values: &[f64]| if values.is_empty() { "-".into() } else { spread(values) };
    table.row(vec!["settled after the last request, s".into(), or_none(&settled)]);
    table.row(vec!["one core again after the last byte, s".into(), or_none(&together)]);
    report.tables.push(table);
    let worst = settled.iter().copied().reduce(f64::max).filter(|_| settled.len() == rounds.len());
    let later: usize = rounds.iter().map(|round| round.later).sum();
    let late: u64 = rounds.iter().map(|round| round.late).sum();
    let limit = |figure: &str, value: Option<f64>, must: f64, push: f64| Verdict {
        figure: figure.into(),
        measured: value.map_or("-".into(), number),
        must: number(must),
        reached: Some(value.is_some_and(|value| value <= must)),
        push: number(push),
        pushed: Some(value.is_some_and(|value| value <= push)),
    };
    report.verdicts = vec![
        limit("settled after load has doubled, s, in the slowest round", worst, 1.0, 0.3),
        limit("moves afterwards", Some(later as f64), 0.0, 0.0),
        limit("underruns and failed streams", Some(late as f64), 0.0, 0.0),
    ];
}
