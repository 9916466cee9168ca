//! pace-share: flows with targets of 4, 4, 4, 2 and 2 on a link of 10, which join one after the
//! other.
//!
//! Promise: each flow always has something to send; what each got in every second is held against
//! its part of what all of them got in that second.

use anyhow::{Context, Result};
use serde_json::json;
use tactus_core::units::SECOND;

use super::{Fixture, RECEIVER_CORE, SERVER_CORES, measurement};
use crate::datagrams::{Inboxes, PORT, Reading};
use crate::figures::windows::{Grid, Span};
use crate::peers::Server;
use crate::report::{Plot, Report, Table, Verdict, number, spread};
use crate::spread::{self, Spread};
use crate::{clock, interrupt, priority};

/// What each wants, in the unit; the link carries `LINK` of them.
const TARGETS: [u64; 5] = [4, 4, 4, 2, 2];
const LINK: u64 = 10;
/// A tenth of what the paper's figure had, which two cores of anything carry.
const UNIT: u64 = 100_000_000;
const ROUNDS: usize = 5;

/// The shares of one run: of each number of flows, each flow's error in each second, in percent.
struct Run {
    errors: Vec<Vec<f64>>,
    /// Each flow's rate in each second, in units.
    lines: Vec<Vec<(f64, f64)>>,
    dropped: u64,
}

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "do flows that want more than the link carries get their shares of it?";
    let mut report = fixture.report("pace-share", question);
    let joins = fixture.seconds(10).0 / SECOND.0;
    report.method.push(format!(
        "Five flows with targets of 4, 4, 4, 2 and 2 times 100 Mbit/s of payload share 1 Gbit/s; \
         one joins every {joins} s. They go through the pacer and `sendmmsg`, as the server's do, \
         in ticks of 250 us; the server itself refuses what does not fit. A flow's share of a \
         second is what it wants by what all that have joined want, of what came in that second; \
         the seconds in which somebody joins are left out."
    ));
    let names = ["pacer".to_owned()];
    let runs =
        fixture.take_turns(&names, fixture.rounds(ROUNDS), &mut report, |_, _, report| {
            let run = run(fixture, joins)?;
            report.runs.push(json!({ "errors_percent": run.errors, "dropped": run.dropped }));
            Ok(run)
        })?;
    let mut table =
        Table::new("errors", &["flows", "error of a share, mean, %", "p99, %", "largest, %"]);
    let (mut worst, mut typical) = (vec![], vec![]);
    for joined in 1..=TARGETS.len() {
        let each = runs.iter().map(|run| run.errors[joined - 1].clone());
        let each: Vec<Vec<f64>> = each.filter(|errors| !errors.is_empty()).collect();
        let of = |figure: &dyn Fn(&mut Vec<f64>) -> Option<f64>| {
            spread(
                &each.iter().filter_map(|errors| figure(&mut errors.clone())).collect::<Vec<_>>(),
            )
        };
        table.row(vec![
            joined.to_string(),
            of(&|errors| spread::mean(errors)),
            of(&|errors| spread::quantile(errors, 0.99)),
            of(&|errors| spread::quantile(errors, 1.0)),
        ]);
    }
    for run in &runs {
        let mut all: Vec<f64> = run.errors.iter().flatten().copied().collect();
        typical.extend(spread::mean(&all));
        worst.extend(spread::quantile(&mut all, 0.99));
    }
    report.tables.push(table);
    for (figure, values) in [
        ("error of each share over 1 s, mean, %", &typical),
        ("error of each share over 1 s, p99, %", &worst),
    ] {
        let all = Spread::of(values);
        report.verdicts.push(Verdict {
            figure: figure.into(),
            measured: spread(values),
            must: "<= 1".into(),
            reached: all.map(|all| all.max <= 1.0),
            push: "<= 0.1".into(),
            pushed: all.map(|all| all.max <= 0.1),
        });
    }
    if let Some(run) = runs.first() {
        let names =
            TARGETS.iter().zip(1..).map(|(target, nth)| format!("flow {nth}, wants {target}"));
        report.plots.push(Plot::Lines {
            title: "What each flow gets of a link of 10".into(),
            axes: ("seconds".into(), "units of 100 Mbit/s".into()),
            lines: names.zip(run.lines.iter().cloned()).collect(),
            mark: None,
        });
        let lost: Vec<String> = runs.iter().map(|run| number(run.dropped as f64)).collect();
        report.note(format!("lost by the receiver: {}", lost.join(", ")));
    }
    Ok(report)
}

fn run(fixture: &Fixture, joins: u64) -> Result<Run> {
    interrupt::check()?;
    let flows = TARGETS.len();
    let inboxes =
        Inboxes::open(fixture.wire.receiver_side(), flows, RECEIVER_CORE, Reading::default())?;
    let folder = tempfile::Builder::new().prefix("tactus-bench-share-").tempdir()?;
    let own = std::env::current_exe()?;
    let mut command = priority::on_cores(SERVER_CORES, None, &own.to_string_lossy());
    command.args(["pace-flows", "--to", &format!("{}:{PORT}", fixture.wire.receiver_address())]);
    let targets: Vec<String> = TARGETS.iter().map(|target| (target * UNIT).to_string()).collect();
    command.args(["--targets", &targets.join(","), "--link", &(LINK * UNIT).to_string()]);
    command.args(["--joins", &joins.to_string()]);
    let begun = clock::now();
    let mut server = Server::start_silent(&command, folder, &fixture.wire)?;
    let watch = measurement::Watch::start(fixture)?;
    inboxes.wait_until_all_have_some(&mut server)?;
    interrupt::sleep_until(clock::now() + SECOND.times(joins))?;
    server.check()?;
    let all = Span { from: begun, to: clock::now() };
    let measurement::HostInterference { gaps, .. } = measurement::Watch::stop(watch, all)?;
    drop(server);
    let (traces, dropped) = inboxes.stop()?;
    let first = |flow: usize| traces[flow].steps().first().map(|step| step.at);
    let start = first(0).context("nothing came")?;
    let end = first(flows - 1).context("the last flow never came")? + SECOND.times(joins);
    let grid = Grid::new(Span { from: start, to: end }, SECOND, &gaps);
    let mut run = Run { errors: vec![vec![]; flows], lines: vec![vec![]; flows], dropped };
    for window in grid.kept() {
        let came: Vec<f64> =
            traces.iter().map(|trace| trace.bytes_between(window.from, window.to) as f64).collect();
        let at = window.to.since(begun).0 as f64 / 1e9;
        for (line, came) in run.lines.iter_mut().zip(&came) {
            line.push((at, came * 8.0 / UNIT as f64));
        }
        let joined =
            (0..flows).filter(|&flow| first(flow).is_some_and(|at| at < window.to)).count();
        // Somebody joined within it.
        let calm = first(joined - 1).is_some_and(|at| at <= window.from);
        let wanted: u64 = TARGETS[..joined].iter().sum();
        let all: f64 = came[..joined].iter().sum();
        // Alone, or with one more, they get all that they want.
        let link = if wanted <= LINK { wanted as f64 * UNIT as f64 / 8.0 } else { all };
        for (target, came) in TARGETS[..joined].iter().zip(&came).filter(|_| calm) {
            let share = link * *target as f64 / wanted as f64;
            run.errors[joined - 1].push((came - share).abs() / share * 100.0);
        }
    }
    Ok(run)
}
