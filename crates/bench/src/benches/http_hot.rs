//! http-hot: how many hot streams of 4 Mbit/s one core carries at DF p99 <= 70 ms.
//!
//! Promise: the server has core 0 for everything it does, the receiver core 1; a count holds when
//! DF p99 stays within the bound, no stream fails and no payload is missing. nginx runs the same
//! sweep, so that its own limit, at whatever DF, stands beside.

use std::collections::BTreeMap;

use anyhow::Result;
use tactus_core::units::{BitRate, Bytes, MIB, Nanos};

use super::{Fixture, links, say};
use crate::interrupt;
use crate::machine;
use crate::peers::{Nginx, NginxStyle, Peer, Tactus, Tuning};
use crate::report::{Plot, Report, Table, Verdict, number, spread};
use crate::run::{Figures, Scene};
use crate::spread::Spread;
use crate::titles::Titles;

const RATE: BitRate = BitRate(4_000_000);
const COUNTS: [usize; 7] = [500, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000];
/// Few titles and many viewers: what makes a title hot.
const TITLES: usize = 16;
const ROUNDS: usize = 3;
/// The bound on DF p99, in milliseconds.
const DF_MAX: f64 = 70.0;
/// What may be missing at the borders of the measured span.
const SHARE_MIN: f64 = 0.999;

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    if fixture.options.links > 1 {
        return links::bench(fixture, fixture.options.links);
    }
    let question = "how many hot streams of 4 Mbit/s does one core carry at DF p99 <= 70 ms?";
    let mut report = fixture.report("http-hot", question);
    say("laying down the titles");
    let titles = Titles::lay(&fixture.options.data.join("hot"), TITLES, fixture.title_size(RATE))?;
    report.settings.push(("disk".into(), machine::storage(titles.root())));
    report.settings.push(("titles".into(), format!("{TITLES} of {}, in memory", titles.size())));
    let peers = peers();
    let mut found: BTreeMap<(usize, usize), Vec<Figures>> = BTreeMap::new();
    let mut broken = vec![false; peers.len()];
    let counts = match &fixture.options.streams[..] {
        [] => &COUNTS[..],
        asked => asked,
    };
    for &streams in counts {
        let scene = Scene { cold: false, ..fixture.scene(&titles, RATE, streams) };
        for round in 0..fixture.rounds(ROUNDS) {
            for (place, peer) in peers.iter().enumerate() {
                if broken[place] || !fixture.wants(&peer.name()) {
                    continue;
                }
                say(&format!("{streams} streams, round {}: {}", round + 1, peer.name()));
                match fixture.outcome(peer.as_ref(), &scene, &mut report) {
                    Ok((_, figures)) => found.entry((place, streams)).or_default().push(figures),
                    Err(error) => {
                        interrupt::check()?;
                        let name = peer.name();
                        report.note(format!("{name}, {streams} streams: {error:#}"));
                        broken[place] = true;
                    }
                }
            }
        }
        if streams == counts[0] {
            fixture.note_settings(&peers, &scene, &mut report)?;
        }
    }
    summarise(&peers, &found, &mut report);
    Ok(report)
}

fn peers() -> Vec<Box<dyn Peer>> {
    let tuning = Tuning {
        tick: Some(Nanos::from_micros(62_500)),
        start_burst: Some(Nanos::ZERO),
        arena: Some(Bytes(2048 * MIB)),
        cpu_budget: Some(94),
        ..Tuning::default()
    };
    vec![
        Box::new(Tactus { label: "tick 62.5 ms".into(), tuning }),
        Box::new(Nginx(NginxStyle::Sendfile)),
    ]
}

fn holds(figures: &Figures) -> bool {
    figures.df_run.p99 <= DF_MAX
        && figures.streams_failed == 0
        && figures.underruns == 0
        && figures.payload_share >= SHARE_MIN
}

fn summarise(
    peers: &[Box<dyn Peer>],
    found: &BTreeMap<(usize, usize), Vec<Figures>>,
    report: &mut Report,
) {
    let mut table = Table::new(
        "sweep",
        &[
            "server",
            "streams",
            "DF p99, ms",
            "J 1 s, %",
            "payload share",
            "core busy, %",
            "CPU s/GB",
            "underruns",
            "failed",
            "holds",
        ],
    );
    for ((place, streams), runs) in found {
        let values =
            |value: fn(&Figures) -> f64| spread(&runs.iter().map(value).collect::<Vec<_>>());
        table.row(vec![
            peers[*place].name(),
            streams.to_string(),
            values(|f| f.df_run.p99),
            values(|f| f.j1s.mean),
            values(|f| f.payload_share),
            values(|f| f.spent.tree / f.spent.wall * 100.0),
            values(|f| f.cpu_per_gb),
            values(|f| f.underruns as f64),
            values(|f| f.streams_failed as f64),
            format!("{} of {}", runs.iter().filter(|run| holds(run)).count(), runs.len()),
        ]);
    }
    report.tables.push(table);
    let line = |value: fn(&Figures) -> f64| -> Vec<(String, Vec<(f64, f64)>)> {
        let all = peers.iter().enumerate();
        all.map(|(place, peer)| {
            let points = found.iter().filter(|((of, _), _)| *of == place);
            let points = points.filter_map(|((_, streams), runs)| {
                let values: Vec<f64> = runs.iter().map(value).collect();
                Some((*streams as f64, Spread::of(&values)?.median))
            });
            (peer.name(), points.collect())
        })
        .collect()
    };
    let plot = |title: &str, unit: &str, value, mark| Plot::Lines {
        title: title.into(),
        axes: ("streams".into(), unit.into()),
        lines: line(value),
        mark,
    };
    let goal = Some(("goal".to_owned(), DF_MAX));
    report.plots.push(plot("DF per run, p99", "ms", |f| f.df_run.p99, goal));
    report.plots.push(plot("CPU per byte", "s/GB", |f| f.cpu_per_gb, None));
    let ours = found.iter().filter(|((place, _), _)| *place == 0);
    let most = ours
        .clone()
        .filter(|(_, runs)| runs.iter().all(holds))
        .map(|((_, streams), _)| *streams)
        .max();
    let tried = ours.count() > 0;
    report.verdicts.push(Verdict {
        figure: "hot streams of 4 Mbit/s on one core at DF p99 <= 70 ms".into(),
        measured: most.map_or("-".into(), |most| number(most as f64)),
        must: "3000".into(),
        reached: tried.then(|| most.is_some_and(|most| most >= 3_000)),
        push: "5000".into(),
        pushed: tried.then(|| most.is_some_and(|most| most >= 5_000)),
    });
}
