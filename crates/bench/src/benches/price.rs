//! price: what a byte costs at the server's defaults, against nginx.
//!
//! Promise: Tactus runs with its default settings on both cores, as after an installation. nginx
//! runs with the settings that make it cheapest. A round in which nginx does not hold its streams
//! is no comparison. The command line names the network path and the read-ahead of a run.

use anyhow::Result;
use tactus_core::units::{BitRate, Bytes, MIB, Nanos, SECOND};

use super::{Fixture, JudgedRun, say};
use crate::machine;
use crate::peers::{Nginx, NginxStyle, Peer, PlainSender, Tactus, Tuning};
use crate::report::{Report, Table, Verdict, spread};
use crate::run::{Figures, Scene};
use crate::titles::Titles;

/// One kind of load.
struct Load {
    name: &'static str,
    folder: &'static str,
    rate: BitRate,
    streams: usize,
    titles: usize,
    cold: bool,
    /// Goals at a DF p99 of 70 ms, and of 135 ms: must, and push to.
    goals: [(f64, f64); 2],
}

const LOADS: [Load; 2] = [
    Load {
        name: "200 cold streams of 8.8 Mbit/s",
        folder: "cold",
        rate: BitRate(8_800_000),
        streams: 200,
        titles: 200,
        cold: true,
        goals: [(1.15, 1.0), (1.0, 0.9)],
    },
    Load {
        name: "400 hot streams of 4 Mbit/s from 10 titles",
        folder: "hot",
        rate: BitRate(4_000_000),
        streams: 400,
        titles: 10,
        cold: false,
        goals: [(1.25, 1.0), (1.0, 0.9)],
    },
];

/// DF p99 of a claim, in milliseconds.
const DF_MAX: [f64; 2] = [70.0, 135.0];
const ROUNDS: usize = 3;
/// The warm-up: some 25 s after its start a server has learned its disk by reads of its own.
const WARM_UP: Nanos = SECOND.times(30);
/// Where nginx is among the peers.
const NGINX: usize = 4;
/// So that memory does not decide.
const ARENA: Bytes = Bytes(4096 * MIB);
/// Both servers may use both cores; the receiver shares the second.
const CORES: &str = "0-1";

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "what does a byte cost at the server's defaults, against nginx?";
    let mut report = fixture.report("price", question);
    let read_ahead = format!("{} KiB", fixture.options.read_ahead);
    report.settings.push(("read-ahead of the disk".into(), read_ahead));
    for load in LOADS.iter().filter(|load| wants(fixture, load)) {
        say(&format!("laying down the titles: {}", load.name));
        let folder = fixture.options.data.join(load.folder);
        let size = Scene::title_size(load.rate, SECOND, WARM_UP, fixture.seconds(20));
        let titles = Titles::lay(&folder, load.titles, size)?;
        report.settings.push(("disk".into(), machine::storage(titles.root())));
        let scene = fixture.scene(&titles, load.rate, load.streams);
        let scene = Scene { cold: load.cold, server_cores: CORES, warm_up: WARM_UP, ..scene };
        let judged = fixture.interleave(&peers(), &scene, fixture.rounds(ROUNDS), &mut report)?;
        summarise(load, &judged, &mut report);
    }
    Ok(report)
}

/// Whether the command line asks for this load: `--streams 200` is the cold one.
fn wants(fixture: &Fixture, load: &Load) -> bool {
    let asked = &fixture.options.streams;
    asked.is_empty() || asked.contains(&load.streams)
}

fn peers() -> [Box<dyn Peer>; 7] {
    let tactus = |label: &str, tuning| {
        let tuning = Tuning { defaults: true, ..tuning };
        Box::new(Tactus { label: label.into(), tuning })
    };
    let sendfile = |on| Tuning { sendfile: Some(on), arena: Some(ARENA), ..Tuning::default() };
    let tick = Some(Nanos::from_millis(125));
    [
        tactus("defaults", Tuning::default()),
        tactus("tick 125 ms", Tuning { tick, ..Tuning::default() }),
        // Which of the two the defaults choose, and whether the other would be cheaper.
        tactus("sendfile", sendfile(true)),
        tactus("direct", sendfile(false)),
        Box::new(Nginx(NginxStyle::Sendfile)),
        // The lower bounds of servers that send as evenly as the first two.
        Box::new(PlainSender(18)),
        Box::new(PlainSender(9)),
    ]
}

/// Whether each stream had its bytes in time.
fn holds(figures: &Figures) -> bool {
    figures.underruns == 0 && figures.streams_failed == 0
}

/// The name of a figure and how to take it.
type Column = (&'static str, fn(&Figures) -> f64);

const COLUMNS: [Column; 8] = [
    ("J 1 s, %", |f| f.j1s.mean),
    ("DF p99, ms", |f| f.df_run.p99),
    ("CPU s/GB", |f| f.cpu_per_gb),
    ("of that threads", |f| f.tree_per_gb),
    ("receiver", |f| f.receiver_per_gb),
    ("payload share", |f| f.payload_share),
    ("underruns", |f| f.underruns as f64),
    ("failed", |f| f.streams_failed as f64),
];

fn summarise(load: &Load, judged: &[JudgedRun], report: &mut Report) {
    let values = |peer: usize, value: fn(&Figures) -> f64| -> Vec<f64> {
        judged.iter().filter(|run| run.peer == peer).map(|run| value(&run.figures)).collect()
    };
    // What nginx sends late it sends in larger pieces, for less CPU time than at the rate.
    let (held, late): (Vec<_>, Vec<_>) =
        judged.iter().filter(|run| run.peer == NGINX).partition(|run| holds(&run.figures));
    for run in late {
        let round = run.round + 1;
        report.note(format!("nginx did not hold its streams in round {round}: not compared"));
    }
    let against_nginx = |peer: usize, cost: fn(&Figures) -> f64| -> Vec<f64> {
        let of = |run: &&JudgedRun| run.peer == peer;
        let ratio = |run: &JudgedRun| {
            let nginx = held.iter().find(|nginx| nginx.round == run.round)?;
            Some(cost(&run.figures) / cost(&nginx.figures))
        };
        judged.iter().filter(of).filter_map(ratio).collect()
    };
    let servers = |peer: usize| against_nginx(peer, |figures| figures.cpu_per_gb);
    // The machine's cost: how often the receiver wakes depends on the server.
    let machines =
        |peer: usize| against_nginx(peer, |figures| figures.cpu_per_gb + figures.receiver_per_gb);
    let head = ["peer"].into_iter().chain(COLUMNS.map(|column| column.0));
    let head: Vec<&str> = head.chain(["against nginx", "with the receiver"]).collect();
    let mut table = Table::new(load.name, &head);
    for (place, peer) in peers().iter().enumerate() {
        let cells = COLUMNS.iter().map(|column| spread(&values(place, column.1)));
        let ratios = [spread(&servers(place)), spread(&machines(place))];
        table.row(std::iter::once(peer.name()).chain(cells).chain(ratios).collect());
    }
    report.tables.push(table);
    for (place, (must, push)) in load.goals.into_iter().enumerate() {
        let (ratios, df) = (servers(place), values(place, |f| f.df_run.p99));
        let has_held = judged.iter().filter(|run| run.peer == place).all(|run| holds(&run.figures));
        let within = |limit: f64| {
            let is_cheap = ratios.iter().all(|&ratio| ratio <= limit);
            let is_even = df.iter().all(|&df| df <= DF_MAX[place]);
            (!ratios.is_empty()).then_some(is_cheap && is_even && has_held)
        };
        report.verdicts.push(Verdict {
            figure: format!("{}: CPU s/GB against nginx at {} ms", load.name, DF_MAX[place]),
            measured: format!("{}x at {} ms", spread(&ratios), spread(&df)),
            must: format!("{must}x"),
            reached: within(must),
            push: format!("{push}x"),
            pushed: within(push),
        });
    }
}
