//! http-cold: 200 cold streams of 8.8 Mbit/s from distinct files.
//!
//! Promise: evenness (J, DF) and CPU per byte of Tactus at two ticks against nginx, in one run each
//! round; the device is the machine's own disk, named in the settings.

use anyhow::Result;
use tactus_core::units::{BitRate, Nanos};

use super::{Fixture, FlashDisk, JudgedRun, say};
use crate::disk::Profile;
use crate::machine;
use crate::peers::{Nginx, NginxStyle, Peer, Tactus, Tuning};
use crate::report::{Plot, Report, Table, Verdict, number, spread};
use crate::run::{Figures, Scene};
use crate::spread::Spread;
use crate::titles::Titles;

const RATE: BitRate = BitRate(8_800_000);
const STREAMS: usize = 200;
const ROUNDS: usize = 5;
const EMULATED_ROUNDS: usize = 3;

/// The places of the peers.
const SHORT: usize = 0;
const LONG: usize = 1;
const NGINX: usize = 3;

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "200 cold streams of 8.8 Mbit/s: how even are they, and what does a byte cost?";
    let mut report = fixture.report("http-cold", question);
    if fixture.stands_on(FlashDisk::Own) {
        on_own(fixture, &mut report)?;
    }
    for profile in fixture.emulated_flash() {
        on_emulated(fixture, profile, &mut report)?;
    }
    Ok(report)
}

fn on_own(fixture: &Fixture, report: &mut Report) -> Result<()> {
    say("laying down the titles");
    let titles =
        Titles::lay(&fixture.options.data.join("cold"), STREAMS, fixture.title_size(RATE))?;
    let scene = fixture.scene(&titles, RATE, STREAMS);
    report.settings.push(("disk".into(), machine::storage(titles.root())));
    report.settings.push(("titles".into(), format!("{STREAMS} of {}", titles.size())));
    let judged = fixture.interleave(&peers(), &scene, fixture.rounds(ROUNDS), report)?;
    summarise(&judged, &scene, report);
    Ok(())
}

/// The evenness of the first peer and of nginx on an emulated flash disk. CPU is not compared
/// there: the disk's daemon burns some on the same cores.
fn on_emulated(fixture: &Fixture, profile: Profile, report: &mut Report) -> Result<()> {
    let mut disk = fixture.emulated(profile, report)?;
    let titles = Titles::lay(disk.mount(), STREAMS, fixture.title_size(RATE))?;
    disk.timed()?;
    let scene = fixture.scene(&titles, RATE, STREAMS);
    let tuning = Tuning { tick: Some(Nanos::from_micros(62_500)), ..Tuning::default() };
    let peers: [Box<dyn Peer>; 3] = [
        Box::new(Tactus { label: "tick 62.5 ms".into(), tuning }),
        Box::new(Nginx(NginxStyle::Sendfile)),
        Box::new(Nginx(NginxStyle::SendfileThreads)),
    ];
    let judged = fixture.interleave(&peers, &scene, fixture.rounds(EMULATED_ROUNDS), report)?;
    let title = format!("evenness on the emulated {profile:?}");
    report.tables.push(evenness(&title, &peers, &judged));
    let ours: Vec<f64> = values(&judged, 0, |f| f.j1s.mean);
    report.verdicts.push(Verdict {
        figure: format!("the same on the emulated {profile:?}, %"),
        measured: spread(&ours),
        must: "0.05".into(),
        reached: within(&ours, 0.05),
        push: "0.01".into(),
        pushed: within(&ours, 0.01),
    });
    Ok(())
}

fn peers() -> Vec<Box<dyn Peer>> {
    let tactus = |label: &str, tick: Nanos| {
        let tuning = Tuning { tick: Some(tick), ..Tuning::default() };
        Box::new(Tactus { label: label.into(), tuning })
    };
    vec![
        tactus("tick 62.5 ms", Nanos::from_micros(62_500)),
        tactus("tick 125 ms", Nanos::from_millis(125)),
        // Beyond TCP's shortest timeout of 200 ms: each send begins with slow start, as nginx' do.
        tactus("tick 250 ms", Nanos::from_millis(250)),
        Box::new(Nginx(NginxStyle::Sendfile)),
        Box::new(Nginx(NginxStyle::SendfileThreads)),
        Box::new(Nginx(NginxStyle::Defaults)),
    ]
}

/// `value` of all runs of `peer`.
fn values(judged: &[JudgedRun], peer: usize, value: fn(&Figures) -> f64) -> Vec<f64> {
    judged.iter().filter(|run| run.peer == peer).map(|run| value(&run.figures)).collect()
}

fn evenness(title: &str, peers: &[Box<dyn Peer>], judged: &[JudgedRun]) -> Table {
    let columns: [Column; 10] = [
        ("J 1 s, %", |f| f.j1s.mean),
        ("J 100 ms, %", |f| f.j100ms.mean),
        ("J 10 ms, %", |f| f.j10ms.mean),
        ("DF p50, ms", |f| f.df_run.p50),
        ("DF p99, ms", |f| f.df_run.p99),
        ("DF 1 s p99, ms", |f| f.df_second.p99),
        ("first byte p50, s", |f| f.first_byte.0),
        ("max, s", |f| f.first_byte.1),
        ("underruns", |f| f.underruns as f64),
        ("failed", |f| f.streams_failed as f64),
    ];
    table(title, peers, judged, &columns)
}

/// One row per peer, one column per figure.
fn table(title: &str, peers: &[Box<dyn Peer>], judged: &[JudgedRun], columns: &[Column]) -> Table {
    let head: Vec<&str> = std::iter::once("peer").chain(columns.iter().map(|c| c.0)).collect();
    let mut table = Table::new(title, &head);
    for (place, peer) in peers.iter().enumerate() {
        let cells = columns.iter().map(|column| spread(&values(judged, place, column.1)));
        table.row(std::iter::once(peer.name()).chain(cells).collect());
    }
    table
}

/// The name of a figure and how to take it.
type Column = (&'static str, fn(&Figures) -> f64);

fn summarise(judged: &[JudgedRun], scene: &Scene<'_>, report: &mut Report) {
    let peers = peers();
    report.tables.push(evenness("evenness", &peers, judged));
    let columns: [Column; 4] = [
        ("threads + workers + X", |f| f.cpu_per_gb),
        ("threads", |f| f.tree_per_gb),
        ("X, s", |f| f.cost.outside.unwrap_or(f64::NAN)),
        ("receiver", |f| f.receiver_per_gb),
    ];
    let mut cost = table("CPU seconds per 10^9 payload bytes", &peers, judged, &columns);
    cost.head.extend(["against nginx (sendfile)".into(), "rounds".into()]);
    for (place, row) in cost.rows.iter_mut().enumerate() {
        row.push(spread(&ratios(judged, place, NGINX, |f| f.cpu_per_gb)));
        row.push(values(judged, place, |f| f.payload_share).len().to_string());
    }
    report.tables.push(cost);
    let mut bars = |title: &str, value: fn(&Figures) -> f64, mark| {
        let all = peers.iter().enumerate();
        let bars = all.filter_map(|(place, peer)| {
            Some((peer.name(), Spread::of(&values(judged, place, value))?))
        });
        report.plots.push(Plot::Bars { title: title.into(), bars: bars.collect(), mark });
    };
    bars("CPU s/GB (threads + workers + X)", |f| f.cpu_per_gb, None);
    bars("DF per run, p99, ms", |f| f.df_run.p99, Some(("goal".to_owned(), 70.0)));
    bars("J over 1 s, mean, %", |f| f.j1s.mean, None);
    let first_round = judged.iter().filter(|run| run.round == 0);
    let lines = first_round.filter(|run| [SHORT, LONG, NGINX].contains(&run.peer));
    report.plots.push(Plot::Lines {
        title: "one stream, in windows of 50 ms".into(),
        axes: ("seconds".into(), "Mbit/s".into()),
        lines: lines.map(|run| (peers[run.peer].name(), run.sample.clone())).collect(),
        mark: None,
    });
    report.verdicts = verdicts(judged);
    let gb = scene.rate.bytes_in(scene.length).0 as f64 * scene.streams as f64 / 1e9;
    report.method.push(format!("Each run measures {} and {} GB.", scene.length, number(gb)));
}

/// The goals of this bench.
fn verdicts(judged: &[JudgedRun]) -> Vec<Verdict> {
    let of = |peer, value| values(judged, peer, value);
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
fn ratios(judged: &[JudgedRun], peer: usize, base: usize, value: fn(&Figures) -> f64) -> Vec<f64> {
    let of = |peer: usize, round: usize| {
        let mut runs = judged.iter().filter(|run| run.peer == peer && run.round == round);
        runs.next().map(|run| value(&run.figures))
    };
    let rounds = judged.iter().map(|run| run.round).max().map_or(0, |last| last + 1);
    (0..rounds).filter_map(|round| Some(of(peer, round)? / of(base, round)?)).collect()
}
