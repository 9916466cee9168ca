//! migrate: servers of the engine move between two cores under a full house.
//!
//! Promise: streams run before servers move and while they move, and both phases are judged alike.
//! RTP channels, uploads and local programs run beside the streams; the bench counts their losses.
//! A move counts when the server's answer says that it has arrived.

mod company;

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use serde_json::json;
use tactus_core::units::{BitRate, MonoTime, Nanos, SECOND};

use super::server_places::exchange;
use super::{Fixture, say};
use crate::figures::windows::Span;
use crate::peers::{self, Peer, TOKEN, Tactus, Tuning};
use crate::phase::{self, Phase};
use crate::report::{Report, Table, Verdict, number};
use crate::run::{Extra, Scene};
use crate::spread::quantile;
use crate::titles::Titles;
use crate::{clock, interrupt, machine};
use company::{Company, Findings};

const RATE: BitRate = BitRate(8_800_000);
const STREAMS: usize = 200;
const TITLES: usize = 16;
const TICK: Nanos = Nanos::from_micros(62_500);
const BEFORE: Nanos = SECOND.times(10);
const ROUNDS: usize = 3;
/// Between two moves.
const PAUSE: Nanos = Nanos::from_millis(5);
/// The servers that move, all of them to one core and then to the other.
const SERVERS: [&str; 6] = ["link", "disk.0", "block.0", "delivery", "packets", "file"];
const PLACEMENT: &str = "[{ cpu = 0, servers = [\"disk.0\", \"block.0\", \"delivery\", \
                         \"link\", \"packets\", \"file\"] }, { cpu = 1, servers = [] }]";

/// Pauses of each server, in microseconds.
type Pauses = BTreeMap<&'static str, Vec<f64>>;

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "what do streams notice of servers that move to another core?";
    let mut report = fixture.report("migrate", question);
    let length = BEFORE + fixture.seconds(30);
    let size = Scene::title_size(RATE, SECOND, SECOND.times(2), length);
    let titles = Titles::lay(&fixture.options.data.join("hot"), TITLES, size)?;
    report.settings.push(("disk".into(), machine::storage(titles.root())));
    let scene = Scene { length, server_cores: "0-1", ..fixture.scene(&titles, RATE, STREAMS) };
    let company = Company::lay(fixture, &titles)?;
    let tuning = Tuning {
        tick: Some(TICK),
        placement: Some(PLACEMENT.into()),
        local: Some(company.socket()),
        sections: company.channels(),
        ..Tuning::default()
    };
    let tactus = Tactus { label: "two cores".into(), tuning };
    report.settings.push((tactus.name(), tactus.settings(&scene.setting_with_uploads())?));
    let address = peers::address(scene.wire);
    let (mut calm, mut moved, mut pauses, mut underruns) = (vec![], vec![], Pauses::new(), 0);
    let mut found = Findings::default();
    for round in 0..fixture.rounds(ROUNDS) {
        say(&format!("round {}: {BEFORE} of peace, then moves", round + 1));
        let result = Mutex::new((Pauses::new(), Findings::default()));
        let moves = |from: MonoTime| {
            let (begin, end) = (from + BEFORE, from + length);
            let guests = company.come(Span { from, to: end })?;
            // Of this thread alone.
            scene.wire.move_to_receiver_side()?;
            interrupt::sleep_until(begin)?;
            let all = move_until(end, address)?;
            *result.lock().unwrap_or_else(PoisonError::into_inner) = (all, guests.leave()?);
            Ok(())
        };
        let extra = Extra { beside: Some(&moves), uploads: true, ..Extra::default() };
        let (outcome, figures) = fixture.outcome_with(&tactus, &scene, extra, &mut report)?;
        let whole = outcome.measured;
        let border = whole.from + BEFORE;
        let gaps = if fixture.options.accept_noise { &[] } else { &outcome.gaps[..] };
        let judge = |from, to| phase::of(&outcome.traces, RATE, whole, Span { from, to }, gaps);
        let (before, during) = (judge(whole.from, border)?, judge(border, whole.to)?);
        let (spans, seen) = result.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(run) = report.runs.last_mut() {
            run["before"] = json!(before);
            run["during"] = json!(during);
            run["moves"] = json!(spans.values().map(Vec::len).sum::<usize>());
            run["beside"] = json!(seen);
        }
        for (server, spans) in spans {
            pauses.entry(server).or_default().extend(spans);
        }
        found = found.and(&seen);
        calm.push(before);
        moved.push(during);
        underruns += figures.underruns + figures.streams_failed as u64;
    }
    report.note(found.to_string());
    summarise([&calm, &moved], &mut pauses, (underruns, found.missed()), &mut report);
    Ok(report)
}

/// Moves servers until `until`; each pause in microseconds.
fn move_until(until: MonoTime, address: SocketAddrV4) -> Result<Pauses> {
    let mut pauses = Pauses::new();
    for core in [1, 0].into_iter().cycle() {
        for server in SERVERS {
            if clock::now() >= until {
                return Ok(pauses);
            }
            let pause =
                move_one(server, core, address).with_context(|| format!("moving {server}"))?;
            pauses.entry(server).or_default().push(pause);
            clock::sleep(PAUSE);
        }
    }
    Ok(pauses)
}

/// Moves one server, as `tactus place` does.
fn move_one(server: &str, core: u32, address: SocketAddrV4) -> Result<f64> {
    let (line, body) = (format!("PUT /api/v1/placement/{server}"), json!({ "core": core }));
    let moved = exchange(address.into(), TOKEN, &line, &body.to_string())?;
    moved["pause_us"].as_f64().context("no pause in the answer")
}

fn summarise(
    phases: [&[Phase]; 2],
    pauses: &mut Pauses,
    (underruns, missed): (u64, u64),
    report: &mut Report,
) {
    report.tables.push(phase::table("while servers move", phases));
    let head = ["server", "moves", "pause p50, us", "p99", "longest"];
    let mut table = Table::new("pauses", &head);
    let (mut all, mut count) = (vec![], 0);
    for (server, spans) in pauses.iter_mut() {
        let of = |spans: &mut [f64], q| quantile(spans, q).map_or("-".into(), number);
        let quantiles = [0.5, 0.99, 1.0].map(|q| of(spans, q));
        table.row([vec![server.to_string(), spans.len().to_string()], quantiles.into()].concat());
        count += spans.len();
        all.extend_from_slice(spans);
    }
    report.tables.push(table);
    let (p99, longest) = (quantile(&mut all, 0.99), quantile(&mut all, 1.0));
    let limit = |figure: &str, value: Option<f64>, must: f64, push: f64| Verdict {
        figure: figure.into(),
        measured: value.map_or("-".into(), number),
        must: number(must),
        reached: value.map(|value| value <= must),
        push: number(push),
        pushed: value.map(|value| value <= push),
    };
    report.verdicts = vec![
        limit("pause p99, us", p99, 250.0, 100.0),
        limit("longest pause, us (a turn of the packet server)", longest, 1_000.0, 1_000.0),
        limit("underruns and failed streams", Some(underruns as f64), 0.0, 0.0),
        limit("packets, requests and uploads lost or repeated", Some(missed as f64), 0.0, 0.0),
    ];
    report.note(format!("{count} moves"));
}
