//! http-hot --links 2: several link servers, each on a core of its own, against one.
//!
//! Promise: both servers have the same budget for each core, a part of it, so that the receiver has
//! the rest. First each is asked for more streams than it admits. Then it carries as many as it has
//! admitted, and is measured.

use anyhow::{Result, ensure};
use tactus_core::units::{BitRate, Bytes, MIB, Nanos, SECOND};

use super::{Fixture, say};
use crate::machine;
use crate::peers::{Peer, Tactus, Tuning};
use crate::report::{Report, Table, Verdict, number, spread};
use crate::run::{Figures, Scene};
use crate::spread::Spread;
use crate::titles::Titles;

const RATE: BitRate = BitRate(4_000_000);
const TITLES: usize = 16;
const ROUNDS: usize = 5;
/// Part of each core that streams may fill, in percent. With more, the receiver is late itself.
const BUDGET: u32 = 15;
/// Requests for each link server: more than its core has time for.
const FILL: usize = 800;
const FILL_TIME: Nanos = SECOND.times(8);

/// One server in all rounds.
struct Side {
    peer: Tactus,
    admitted: Vec<f64>,
    figures: Vec<Figures>,
}

/// Runs it.
pub(super) fn bench(fixture: &Fixture, links: usize) -> Result<Report> {
    let cores = std::thread::available_parallelism()?.get();
    ensure!(links <= cores, "{links} link servers need as many cores; here are {cores}");
    let question = "how many more streams do several link servers admit than one?";
    let mut report = fixture.report("http-hot-links", question);
    let titles = Titles::lay(&fixture.options.data.join("hot"), TITLES, fixture.title_size(RATE))?;
    report.settings.push(("disk".into(), machine::storage(titles.root())));
    let mut sides = [1, links].map(Side::new);
    let all_cores = format!("0-{}", links - 1);
    let base = Scene { cold: false, server_cores: &all_cores, ..fixture.scene(&titles, RATE, 0) };
    for side in &sides {
        let scene = Scene { streams: FILL * links, ..base };
        report.settings.push((side.peer.name(), side.peer.settings(&scene.setting())?));
    }
    for round in 0..fixture.rounds(ROUNDS) {
        // Each side is first in turn.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for place in order {
            let side = &mut sides[place];
            say(&format!("round {}: {}: fill", round + 1, side.peer.name()));
            let fill = Scene { streams: FILL * links, stagger: FILL_TIME, ..base };
            let (outcome, _) = fixture.outcome(&side.peer, &fill, &mut report)?;
            let admitted = outcome.answers.iter().filter(|answer| answer.went_well()).count();
            ensure!(admitted > 0, "no stream was admitted: {:?}", outcome.reasons());
            say(&format!("round {}: {}: {admitted} streams", round + 1, side.peer.name()));
            let scene = Scene { streams: admitted, ..base };
            let (_, figures) = fixture.outcome(&side.peer, &scene, &mut report)?;
            side.admitted.push(admitted as f64);
            side.figures.push(figures);
        }
    }
    summarise(&sides, links, &mut report);
    report.method.push(format!(
        "Each core has {BUDGET} % of its time for streams. {} requests over {FILL_TIME} fill a \
         server; then a new one carries as many streams as were admitted. The receiver has core 1, \
         which a link server shares.",
        FILL * links
    ));
    Ok(report)
}

impl Side {
    fn new(links: usize) -> Self {
        let first = r#"{ cpu = 0, servers = ["disk.0", "block", "delivery", "link"] }"#;
        let further = (1..links).map(|n| format!("{{ cpu = {n}, servers = [\"link.{n}\"] }}"));
        let all: Vec<_> = std::iter::once(first.to_owned()).chain(further).collect();
        let tuning = Tuning {
            tick: Some(Nanos::from_micros(62_500)),
            start_burst: Some(Nanos::ZERO),
            arena: Some(Bytes(2048 * MIB)),
            cpu_budget: Some(BUDGET),
            placement: Some(format!("[{}]", all.join(", "))),
            ..Tuning::default()
        };
        let label = format!("links: {links}");
        Self { peer: Tactus { label, tuning }, admitted: vec![], figures: vec![] }
    }

    fn values(&self, value: fn(&Figures) -> f64) -> Vec<f64> {
        self.figures.iter().map(value).collect()
    }
}

fn summarise(sides: &[Side; 2], links: usize, report: &mut Report) {
    let head = ["server", "admitted", "CPU s/GB", "J 1 s, %", "DF p99, ms", "underruns", "failed"];
    let mut table = Table::new("links", &head);
    for side in sides {
        let of = |value: fn(&Figures) -> f64| spread(&side.values(value));
        table.row(vec![
            side.peer.name(),
            spread(&side.admitted),
            of(|f| f.cpu_per_gb),
            of(|f| f.j1s.mean),
            of(|f| f.df_run.p99),
            of(|f| f.underruns as f64),
            of(|f| f.streams_failed as f64),
        ]);
    }
    report.tables.push(table);
    let ratio = |[one, several]: [Vec<f64>; 2]| {
        let ratios: Vec<_> = one.iter().zip(&several).map(|(one, several)| several / one).collect();
        Spread::of(&ratios).map(|spread| spread.median)
    };
    let mut judge = |figure: &str, value: Option<f64>, must: f64, is_least: bool| {
        let reached = value.map(|value| if is_least { value >= must } else { value <= must });
        report.verdicts.push(Verdict {
            figure: format!("{figure}, {links} link servers against one"),
            measured: value.map_or("-".into(), number),
            must: number(must),
            reached,
            push: "-".into(),
            pushed: None,
        });
    };
    let of = |value| [sides[0].values(value), sides[1].values(value)];
    let admitted = [sides[0].admitted.clone(), sides[1].admitted.clone()];
    judge("streams admitted", ratio(admitted), 0.95 * links as f64, true);
    judge("CPU per byte", ratio(of(|f| f.cpu_per_gb)), 1.03, false);
    judge("DF p99", ratio(of(|f| f.df_run.p99)), 1.03, false);
    let late = sides.iter().flat_map(|side| &side.figures).map(|f| f.underruns as f64).sum();
    judge("underruns", Some(late), 0.0, false);
}
