//! http-cold: 200 cold streams of 8.8 Mbit/s from distinct files.
//!
//! Promise: evenness (J, DF) and CPU per byte of Tactus at two ticks against nginx, in one run each
//! round; the device is the machine's own disk, named in the settings.

use anyhow::Result;
use tactus_core::units::{BitRate, Nanos};

use super::{Judged, Stage, say};
use crate::machine;
use crate::peers::{Nginx, NginxStyle, Peer, Tactus, Tuning};
use crate::report::{Plot, Report, Table, Verdict, number, spread};
use crate::run::{Figures, Scene};
use crate::spread::Spread;
use crate::titles::Titles;

const RATE: BitRate = BitRate(8_800_000);
const STREAMS: usize = 200;
const ROUNDS: usize = 5;

/// The places of the peers.
const SHORT: usize = 0;
const LONG: usize = 1;
const NGINX: usize = 2;

/// Runs it.
pub(super) fn bench(stage: &Stage) -> Result<Report> {
    let question = "200 cold streams of 8.8 Mbit/s: how even are they, and what does a byte cost?";
    let mut report = stage.report("http-cold", question);
    say("laying down the titles");
    let titles = Titles::lay(&stage.options.data.join("cold"), STREAMS, stage.title_size(RATE))?;
    let scene = stage.scene(&titles, RATE, STREAMS);
    report.settings.push(("disk".into(), machine::storage(titles.root())));
    report.settings.push(("titles".into(), format!("{STREAMS} of {}", titles.size())));
    let judged = stage.interleave(&peers(), &scene, stage.rounds(ROUNDS), &mut report)?;
    summarise(&judged, &scene, &mut report);
    Ok(report)
}

fn peers() -> Vec<Box<dyn Peer>> {
    let tactus = |label: &str, tick: Nanos| {
        let tuning = Tuning { tick: Some(tick), ..Tuning::default() };
        Box::new(Tactus { label: label.into(), tuning })
    };
    vec![
        tactus("tick 62.5 ms", Nanos::from_micros(62_500)),
        tactus("tick 250 ms", Nanos::from_millis(250)),
        Box::new(Nginx(NginxStyle::Sendfile)),
        Box::new(Nginx(NginxStyle::SendfileThreads)),
        Box::new(Nginx(NginxStyle::Defaults)),
    ]
}

fn summarise(judged: &[Judged], scene: &Scene<'_>, report: &mut Report) {
    let peers = peers();
    let of = |peer: usize, value: fn(&Figures) -> f64| -> Vec<f64> {
        judged.iter().filter(|run| run.peer == peer).map(|run| value(&run.figures)).collect()
    };
    let mut even = Table::new(
        "evenness",
        &[
            "peer",
            "J 1 s, %",
            "J 100 ms, %",
            "J 10 ms, %",
            "DF p50, ms",
            "DF p99, ms",
            "DF 1 s p99, ms",
            "underruns",
            "failed",
        ],
    );
    let mut cost = Table::new(
        "CPU seconds per 10^9 payload bytes",
        &[
            "peer",
            "threads + workers + X",
            "threads",
            "X, s",
            "receiver",
            "against nginx (sendfile)",
            "rounds",
        ],
    );
    for (place, peer) in peers.iter().enumerate() {
        let values = |value| spread(&of(place, value));
        even.row(vec![
            peer.name(),
            values(|f| f.j1s.mean),
            values(|f| f.j100ms.mean),
            values(|f| f.j10ms.mean),
            values(|f| f.df_run.p50),
            values(|f| f.df_run.p99),
            values(|f| f.df_second.p99),
            values(|f| f.underruns as f64),
            values(|f| f.streams_failed as f64),
        ]);
        let rounds = of(place, |f| f.payload_share).len();
        cost.row(vec![
            peer.name(),
            values(|f| f.cpu_per_gb),
            values(|f| f.tree_per_gb),
            values(|f| f.cost.outside),
            values(|f| f.receiver_per_gb),
            spread(&ratios(judged, place, NGINX, |f| f.cpu_per_gb)),
            rounds.to_string(),
        ]);
    }
    report.tables.extend([even, cost]);
    let bars = |value: fn(&Figures) -> f64| -> Vec<(String, Spread)> {
        let all = peers.iter().enumerate();
        all.filter_map(|(place, peer)| Some((peer.name(), Spread::of(&of(place, value))?)))
            .collect()
    };
    let bar_plot =
        |title: &str, value, mark| Plot::Bars { title: title.into(), bars: bars(value), mark };
    report.plots.push(bar_plot("CPU s/GB (threads + workers + X)", |f| f.cpu_per_gb, None));
    let goal = Some(("goal".to_owned(), 70.0));
    report.plots.push(bar_plot("DF per run, p99, ms", |f| f.df_run.p99, goal));
    report.plots.push(bar_plot("J over 1 s, mean, %", |f| f.j1s.mean, None));
    report.verdicts = verdicts(judged);
    let gb = scene.rate.bytes_in(scene.length).0 as f64 * scene.streams as f64 / 1e9;
    report.method.push(format!("Each run measures {} s and {} GB.", scene.length, number(gb)));
}

/// The goals of this bench.
fn verdicts(judged: &[Judged]) -> Vec<Verdict> {
    let of = |peer: usize, value: fn(&Figures) -> f64| -> Vec<f64> {
        judged.iter().filter(|run| run.peer == peer).map(|run| value(&run.figures)).collect()
    };
    let ratio = |peer: usize, df_max: f64, must: f64, push: f64| {
        let ratios = ratios(judged, peer, NGINX, |f| f.cpu_per_gb);
        let df = Spread::of(&of(peer, |f| f.df_run.p99));
        let even = df.map(|df| df.max <= df_max);
        Verdict {
            figure: format!("CPU s/GB against nginx (sendfile) at DF p99 <= {df_max} ms"),
            measured: format!("{}x at {} ms", spread(&ratios), spread(&of(peer, |f| f.df_run.p99))),
            must: format!("{must}x"),
            reached: within(&ratios, must).zip(even).map(|(cost, even)| cost && even),
            push: format!("{push}x"),
            pushed: within(&ratios, push).zip(even).map(|(cost, even)| cost && even),
        }
    };
    let j = of(SHORT, |f| f.j1s.mean);
    vec![
        Verdict {
            figure: "J over 1 s, mean over streams, tactus (tick 62.5 ms), %".into(),
            measured: spread(&j),
            must: "0.05".into(),
            reached: within(&j, 0.05),
            push: "0.01".into(),
            pushed: within(&j, 0.01),
        },
        ratio(SHORT, 70.0, 1.4, 1.0),
        ratio(LONG, 260.0, 1.1, 1.0),
    ]
}

/// Whether all rounds are at most `limit`; `None` without a round.
fn within(values: &[f64], limit: f64) -> Option<bool> {
    Spread::of(values).map(|all| all.max <= limit)
}

/// `value` of `peer` over that of `base`, round by round.
fn ratios(judged: &[Judged], peer: usize, base: usize, value: fn(&Figures) -> f64) -> Vec<f64> {
    let of = |peer: usize, round: usize| {
        let mut runs = judged.iter().filter(|run| run.peer == peer && run.round == round);
        runs.next().map(|run| value(&run.figures))
    };
    let rounds = judged.iter().map(|run| run.round).max().map_or(0, |last| last + 1);
    (0..rounds).filter_map(|round| Some(of(peer, round)? / of(base, round)?)).collect()
}
