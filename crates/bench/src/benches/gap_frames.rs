//! gap-frames: how evenly datagrams leave when the link keeps the time, against clocks that wake a
//! thread.
//!
//! Promise: all senders send the same datagrams at the same due times through the same wire, a
//! token bucket of two frames on a veth; peers take turns.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::json;
use tactus_core::units::{BitRate, Nanos, SECOND};

use super::measurement::{Measurement, NoCleanWindow, listen};
use super::{Fixture, RECEIVER_CORE, SERVER_CORES};
use crate::arrivals::Trace;
use crate::datagrams::{Inboxes, PORT, Reading};
use crate::figures::jitter;
use crate::figures::lateness;
use crate::figures::windows::{Grid, Span};
use crate::peers::Server;
use crate::report::{Report, Table, Verdict, number, spread};
use crate::spread::{self, Spread};
use crate::wire_sender::TimingMethod;
use crate::{interrupt, priority};

/// Frames leave past the kernel's neighbours only once those are known, which is looked at every 5
/// s.
const WARM_UP: Nanos = SECOND.times(7);
const ROUNDS: usize = 3;
const RATE: BitRate = BitRate(8_800_000);
const WIRES: [BitRate; 2] = [BitRate(100_000_000), BitRate(1_000_000_000)];
const COUNTS: [usize; 2] = [1, 8];

/// The figures of a run, in microseconds.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    /// How far each space between two datagrams of a stream is from the right one.
    spacing_p50: f64,
    spacing_p99: f64,
    spacing_p999: f64,
    late_p50: f64,
    late_p99: f64,
    j1s: f64,
    /// Parts of a core that the sender took.
    cpu: f64,
    dropped: u64,
}

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "how evenly do datagrams leave when the link itself keeps the time?";
    let mut report = fixture.report("gap-frames", question);
    report.method = vec![
        "Sender and receiver live in two network namespaces joined by a veth pair whose sending \
         side has a token bucket (tbf, burst of 250 us): it is the wire, and lets each frame go \
         when its bytes have had their time. The sender has core 0, SCHED_FIFO; the receiver core \
         1, and the kernel's stamp of each arrival."
            .into(),
        "Gaps: frames of the streams and PAUSE frames between them, two milliseconds ahead \
         (PACKET_TX_RING). Ticks: one thread, each 250 us, sendmmsg. Sleep: a thread for each \
         stream, until each datagram's time."
            .into(),
        "Spacing error: |a_k - a_(k-1) - P / R| of each stream. Lateness: a_k - (t0 + k P / R) \
         less the smallest of the same stream. CPU: run time of the sender's threads by the time \
         of the run; what the token bucket does in softirqs outside them is not in it."
            .into(),
        "This wire is the kernel's, with the kernel's timers: a real link has none, and a switch \
         that drops PAUSE frames behind it."
            .into(),
    ];
    let wires = if fixture.options.quick { &WIRES[..1] } else { &WIRES[..] };
    let counts = match &fixture.options.streams[..] {
        [] => COUNTS.to_vec(),
        given => given.to_vec(),
    };
    let mut found: BTreeMap<(u64, usize, TimingMethod), Vec<Figures>> = BTreeMap::new();
    for &wire in wires {
        fixture.wire.shape(wire)?;
        for &streams in &counts {
            let keepers = TimingMethod::value_variants();
            let names: Vec<String> = keepers
                .iter()
                .map(|keeper| format!("{keeper:?}, {streams} streams on {wire}"))
                .collect();
            let runs = fixture.take_turns(
                &names,
                fixture.rounds(ROUNDS),
                &mut report,
                |place, _, report| {
                    let figures = run(fixture, keepers[place], wire, streams)?;
                    report.runs.push(json!({
                    "name": names[place], "streams": streams, "wire": wire.0, "figures": &figures,
                }));
                    Ok((keepers[place], figures))
                },
            )?;
            for (keeper, figures) in runs {
                found.entry((wire.0, streams, keeper)).or_default().push(figures);
            }
        }
    }
    summarise(&found, &mut report);
    Ok(report)
}

fn run(fixture: &Fixture, keeper: TimingMethod, wire: BitRate, streams: usize) -> Result<Figures> {
    interrupt::check()?;
    let side = fixture.wire.receiver_side();
    let to = format!("{}:{PORT}", fixture.wire.receiver_address());
    let inboxes = Inboxes::open(side, streams, RECEIVER_CORE, Reading::default())?;
    let folder = tempfile::Builder::new().prefix("tactus-bench-gaps-").tempdir()?;
    let own = std::env::current_exe()?;
    let mut command = priority::on_cores(SERVER_CORES, None, &own.to_string_lossy());
    let keeper = keeper.to_possible_value().context("it has a name")?;
    command.args(["pace-wire", "--keeper", keeper.get_name(), "--to", &to]);
    command.args(["--streams", &streams.to_string(), "--rate", &RATE.0.to_string()]);
    command.args(["--device", fixture.wire.server_device(), "--wire", &wire.0.to_string()]);
    let server = Server::start_silent(&command, folder, &fixture.wire)?;
    let Measurement { measured, spent, gaps, traces, dropped } =
        listen(fixture, server, inboxes, WARM_UP)?;
    let grid = Grid::new(measured, SECOND, &gaps);
    let j = jitter::jitter(&traces, RATE, &grid).ok_or(NoCleanWindow)?;
    let calm: Vec<Span> = grid.kept().collect();
    let of = |each: fn(&Trace, Span, Span) -> Vec<f64>| -> Vec<f64> {
        let of_trace = |trace| calm.iter().flat_map(move |&span| each(trace, measured, span));
        traces.iter().flat_map(of_trace).collect()
    };
    let mut spacing = of(|trace, _, span| spacing(trace, span));
    let mut late = of(|trace, whole, span| lateness::in_phase(trace, RATE, whole, span));
    ensure!(!spacing.is_empty(), "nothing came");
    let mut us = |q| spread::quantile(&mut spacing, q).ok_or(NoCleanWindow);
    let (spacing_p50, spacing_p99, spacing_p999) = (us(0.5)?, us(0.99)?, us(0.999)?);
    let mut ms = |q| spread::quantile(&mut late, q).ok_or(NoCleanWindow);
    Ok(Figures {
        spacing_p50,
        spacing_p99,
        spacing_p999,
        late_p50: ms(0.5)? * 1e3,
        late_p99: ms(0.99)? * 1e3,
        j1s: j.mean,
        cpu: spent.tree / spent.wall,
        dropped,
    })
}

/// How far the spaces of a stream are from the right ones, in microseconds.
fn spacing(trace: &Trace, span: Span) -> Vec<f64> {
    let steps = trace.between(span.from, span.to);
    let error = |pair: &[crate::arrivals::Step]| {
        let right = (pair[1].before - pair[0].before) as f64 * 8e9 / RATE.0 as f64;
        (pair[1].at.since(pair[0].at).0 as f64 - right).abs() / 1e3
    };
    steps.windows(2).map(error).collect()
}

fn summarise(found: &BTreeMap<(u64, usize, TimingMethod), Vec<Figures>>, report: &mut Report) {
    let head = [
        "time kept by",
        "wire",
        "streams",
        "spacing error p50, us",
        "p99, us",
        "p99.9, us",
        "late p50, us",
        "late p99, us",
        "J 1 s, %",
        "CPU, cores",
        "lost by the receiver",
    ];
    let mut table = Table::new("senders", &head);
    for ((wire, streams, keeper), runs) in found {
        let values =
            |value: fn(&Figures) -> f64| spread(&runs.iter().map(value).collect::<Vec<_>>());
        table.row(vec![
            format!("{keeper:?}").to_lowercase(),
            BitRate(*wire).to_string(),
            streams.to_string(),
            values(|f| f.spacing_p50),
            values(|f| f.spacing_p99),
            values(|f| f.spacing_p999),
            values(|f| f.late_p50),
            values(|f| f.late_p99),
            values(|f| f.j1s),
            values(|f| f.cpu),
            values(|f| f.dropped as f64),
        ]);
    }
    report.tables.push(table);
    for ((wire, streams, keeper), ours) in found {
        let Some(others) = found.get(&(*wire, *streams, TimingMethod::Sleep)) else { continue };
        if *keeper != TimingMethod::Gaps {
            continue;
        }
        let ratios: Vec<f64> = ours
            .iter()
            .zip(others)
            .map(|(our, other)| other.spacing_p99 / our.spacing_p99)
            .collect();
        let ratio = Spread::of(&ratios).map(|all| all.median);
        report.verdicts.push(Verdict {
            figure: format!("spacing error p99, sleep / gaps, {streams} on {}", BitRate(*wire)),
            measured: ratio.map_or("-".into(), number),
            must: number(1.0),
            reached: ratio.map(|ratio| ratio >= 1.0),
            push: number(5.0),
            pushed: ratio.map(|ratio| ratio >= 5.0),
        });
    }
}
