//! against: what a byte and a datagram cost in two builds of Tactus.
//!
//! Promise: both builds serve the same titles to the same receiver, in turns; a ratio is taken within
//! a round. A change that makes the data path dearer shows here before it lands.

use std::path::Path;

use anyhow::{Context, Result};
use tactus_core::units::{BitRate, Nanos};

use super::{Stage, say, udp_many};
use crate::peers::{Tactus, Tuning};
use crate::report::{Report, Table, Verdict, spread};
use crate::run::Scene;
use crate::spread::Spread;
use crate::titles::Titles;

const ROUNDS: usize = 10;
/// Enough payload for a cost to one per cent, short enough for ten rounds in a quarter of an hour.
const SECONDS: u64 = 8;
const COLD: (usize, BitRate) = (100, BitRate(8_800_000));
const HOT: (usize, BitRate) = (1_000, BitRate(4_000_000));
/// Few titles and many viewers: what makes a title hot.
const HOT_TITLES: usize = 16;
const DATAGRAMS: (usize, BitRate) = (500, BitRate(4_000_000));
/// How much dearer the second build may be.
const DEARER_MAX: f64 = 1.02;

/// Runs it.
pub(super) fn bench(stage: &Stage) -> Result<Report> {
    let before = stage.options.before.as_deref().context("--before names the other build")?;
    let before = before.canonicalize()?;
    let builds = [&before, &stage.tactus];
    let question = "is a byte or a datagram dearer than in the build before?";
    let mut report = stage.report("against", question);
    for (name, path) in ["before", "after"].into_iter().zip(builds) {
        report.settings.push((name.into(), path.display().to_string()));
    }
    let mut table = Table::new("cost", &["load", "unit", "before", "after", "ratio"]);
    say("laying down the titles");
    let (data, length) = (&stage.options.data, stage.seconds(SECONDS));
    let cold = Titles::lay(&data.join("cold"), COLD.0, stage.title_size(COLD.1))?;
    let hot = Titles::lay(&data.join("hot"), HOT_TITLES, stage.title_size(HOT.1))?;
    let tuning = Tuning { tick: Some(Nanos::from_micros(62_500)), ..Tuning::default() };
    let peer = Tactus { label: "tick 62.5 ms".into(), tuning };
    let loads = [("http-cold", &cold, COLD, true), ("http-hot", &hot, HOT, false)];
    for (load, titles, (streams, rate), cold) in loads {
        let scene = Scene { cold, length, ..stage.scene(titles, rate, streams) };
        let cost = |tactus: &Path, report: &mut Report| {
            let scene = Scene { tactus, ..scene };
            Ok(stage.outcome(&peer, &scene, report)?.1.tree_per_gb)
        };
        compare(stage, load, "CPU s/GB", builds, cost, &mut table, &mut report)?;
    }
    let (streams, rate) = DATAGRAMS;
    let cost = |tactus: &Path, _: &mut Report| udp_many::cost(stage, tactus, rate, streams);
    compare(stage, "udp-many", "CPU us/datagram", builds, cost, &mut table, &mut report)?;
    report.tables.push(table);
    Ok(report)
}

/// Measures both builds in turns.
fn compare(
    stage: &Stage,
    load: &str,
    unit: &str,
    builds: [&std::path::PathBuf; 2],
    mut cost: impl FnMut(&Path, &mut Report) -> Result<f64>,
    table: &mut Table,
    report: &mut Report,
) -> Result<()> {
    let names = ["before", "after"].map(|build| format!("{load}, {build}"));
    let runs = stage.take_turns(&names, stage.rounds(ROUNDS), report, |build, round, report| {
        Ok((build, round, cost(builds[build], report)?))
    })?;
    let of = |build: usize| runs.iter().filter(move |run| run.0 == build);
    let values = |build: usize| of(build).map(|run| run.2).collect::<Vec<_>>();
    let pairs = of(1).filter_map(|after| {
        let before = of(0).find(|before| before.1 == after.1)?;
        Some(after.2 / before.2)
    });
    let ratios: Vec<f64> = pairs.collect();
    table.row(vec![
        load.into(),
        unit.into(),
        spread(&values(0)),
        spread(&values(1)),
        spread(&ratios),
    ]);
    report.verdicts.push(Verdict {
        figure: format!("{load}: {unit}, after by before"),
        measured: spread(&ratios),
        must: DEARER_MAX.to_string(),
        reached: Spread::of(&ratios).map(|ratios| ratios.median <= DEARER_MAX),
        push: "0.9".into(),
        pushed: Spread::of(&ratios).map(|ratios| ratios.median <= 0.9),
    });
    Ok(())
}
