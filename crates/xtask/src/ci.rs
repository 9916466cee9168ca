//! The gate: every step in its order, with a header, its time, and one table at the end.
//!
//! Promise: a step that fails fails the gate, and is named in the table; the steps after it still
//! run, so that one run shows everything that is wrong. Only a failed set-up stops at once. A
//! check that this machine cannot do is never left out silently: it stands in the table by name.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::step::{Act, Remark, Step, Turn};
use crate::suite::{self, Extent};
use crate::workspace::{Workspace, run};
use crate::{apart, clients, crash, deny, tidy};

/// How long the gate may take on two cores. Exceeding it is reported, it does not fail the gate:
/// a slow neighbour is no defect of the tree.
const BUDGET: Duration = Duration::from_secs(25 * 60);
/// The same of the quick gate.
const QUICK_BUDGET: Duration = Duration::from_secs(10 * 60);

/// From the cheapest and most often wrong to the longest. What waits for disks begins before what
/// computes, and most of what computes is done while tests wait. Steps in the background that use
/// the build directory of the foreground come last: its lock is free when the tests run.
const STEPS: [Step; 12] = [
    step("setup", "programs that the tests need", clients::set_up),
    step("fmt", "format", format),
    step("tidy", "rules of the house", tidy::check),
    step("clippy", "lints", lint),
    step("test", "unit and integration tests", test),
    beside("crash", "a thousand power failures", crash::check),
    background("sim", "worlds of the simulator", simulate),
    background("mutants", "deliberate mistakes for the simulator to find", hunt),
    background("loom", "interleavings of the rings", interleave),
    background("build", "build without the features of tests", build),
    background("doc", "documentation", document),
    step("deny", "licences, bans, sources, advisories", deny::check),
];

/// The checks that find most mistakes, for each commit. The whole gate follows before a push.
const QUICK: [Step; 6] = [
    step("setup", "programs that the tests need", clients::set_up),
    step("fmt", "format", format),
    step("tidy", "rules of the house", tidy::check),
    step("clippy", "lints", lint),
    step("test", "unit tests and tests of the engine", test_quickly),
    Step { arguments: &["--worlds=20"], ..background("sim", "some worlds", simulate) },
];

/// Runs the step called `name`.
pub(crate) fn run_one(workspace: &Workspace, name: &str) -> Result<()> {
    let step = STEPS.iter().find(|step| step.name == name).context("no such step")?;
    if let Some(remark) = (step.act)(workspace)? {
        println!("{name}: {remark}");
    }
    Ok(())
}

/// Runs every step.
pub(crate) fn run_all(workspace: &Workspace) -> Result<()> {
    run_steps(workspace, &STEPS, BUDGET)
}

/// Runs every step of the quick gate.
pub(crate) fn run_quick(workspace: &Workspace) -> Result<()> {
    run_steps(workspace, &QUICK, QUICK_BUDGET)
}

fn run_steps(workspace: &Workspace, steps: &[Step], budget: Duration) -> Result<()> {
    let begin = Instant::now();
    let is_background = |step: &&Step| step.turn == Turn::Background;
    let rows = std::thread::scope(|scope| {
        let mut others = Vec::new();
        let mut rows = Vec::new();
        for step in steps.iter().filter(|step| !is_background(step)) {
            if step.turn == Turn::Beside {
                others.push(scope.spawn(|| vec![run_step(workspace, step)]));
                continue;
            }
            let row = run_step(workspace, step);
            let is_set_up = step.name == "setup";
            let stop = row.result.is_err() && is_set_up;
            rows.push(row);
            if stop {
                break;
            }
            if is_set_up {
                others.push(scope.spawn(|| {
                    let background = steps.iter().filter(is_background);
                    background.map(|step| run_step(workspace, step)).collect()
                }));
            }
        }
        let ended = others.into_iter().map(|steps| steps.join().expect("a step does not panic"));
        rows.extend(ended.flatten());
        rows
    });
    println!("\n{}", table(&rows, begin.elapsed(), budget));
    let failed: Vec<_> =
        rows.iter().filter(|row| row.result.is_err()).map(|row| row.name).collect();
    // Once more in full: who reads the end of a long output finds it there.
    for row in &rows {
        if let Err(error) = &row.result {
            eprintln!("{}: {error:#}\n", row.name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn run_step(workspace: &Workspace, step: &Step) -> Row {
    println!("\n=== {}: {}", step.name, step.title);
    let started = Instant::now();
    let result = match step.turn {
        Turn::Foreground => (step.act)(workspace),
        Turn::Beside | Turn::Background => apart::run_apart(workspace, step).map(|()| None),
    };
    let row = Row { name: step.name, took: started.elapsed(), result };
    println!("=== {}: {} after {}", row.name, row.verdict(), seconds(row.took));
    if let Err(error) = &row.result {
        eprintln!("{error:#}");
    }
    row
}

const fn step(name: &'static str, title: &'static str, act: Act) -> Step {
    Step { name, title, act, arguments: &[], turn: Turn::Foreground }
}

const fn beside(name: &'static str, title: &'static str, act: Act) -> Step {
    Step { turn: Turn::Beside, ..step(name, title, act) }
}

const fn background(name: &'static str, title: &'static str, act: Act) -> Step {
    Step { turn: Turn::Background, ..step(name, title, act) }
}

struct Row {
    name: &'static str,
    took: Duration,
    result: Result<Remark>,
}

impl Row {
    fn verdict(&self) -> &'static str {
        if self.result.is_ok() { "ok" } else { "FAILED" }
    }

    fn remark(&self) -> String {
        match &self.result {
            Ok(remark) => remark.clone().unwrap_or_default(),
            Err(error) => error.to_string().lines().next().unwrap_or_default().to_owned(),
        }
    }
}

fn table(rows: &[Row], total: Duration, budget: Duration) -> String {
    let mut text = format!("{:<8} {:>8}  {:<6}  remark\n", "step", "time", "result");
    for row in rows {
        let line = format!(
            "{:<8} {:>8}  {:<6}  {}",
            row.name,
            seconds(row.took),
            row.verdict(),
            row.remark()
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let minutes = budget.as_secs() / 60;
    let over = if total > budget {
        format!("  more than the {minutes} minutes it may take on two cores")
    } else {
        String::new()
    };
    write!(text, "{:<8} {:>8}{over}", "total", seconds(total)).expect("a string takes all text");
    text
}

fn seconds(span: Duration) -> String {
    format!("{:.1} s", span.as_secs_f64())
}

fn format(workspace: &Workspace) -> Result<Remark> {
    run(&mut workspace.cargo(&["fmt", "--all", "--check"]))?;
    Ok(None)
}

fn lint(workspace: &Workspace) -> Result<Remark> {
    run(&mut workspace.cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--locked",
        "--",
        "--deny=warnings",
    ]))?;
    Ok(None)
}

/// Tests add features to most crates, so a feature that is missing without them shows only here.
/// The step `test` compiles the same code to the end; to do so here as well took two minutes. In
/// the profile of the steps before it: most crates of others are checked already.
fn build(workspace: &Workspace) -> Result<Remark> {
    run(&mut workspace.patient_cargo(&["check", "--workspace", "--locked"]))?;
    Ok(None)
}

fn test(workspace: &Workspace) -> Result<Remark> {
    suite::run_suite(workspace, Extent::Whole)
}

fn test_quickly(workspace: &Workspace) -> Result<Remark> {
    suite::run_suite(workspace, Extent::Quick)
}

/// In its own build directory: `--cfg loom` rebuilds every dependency, and would throw away the
/// other builds. Optimised, because loom visits millions of states.
fn interleave(workspace: &Workspace) -> Result<Remark> {
    run(workspace
        .patient_cargo(&["test", FIRST, "--package=tactus-ring", "--locked", "--target-dir"])
        .arg(workspace.target.join("loom"))
        .env("RUSTFLAGS", "--cfg loom"))?;
    Ok(None)
}

/// Worlds of the whole gate: as many as two cores simulate in a minute.
const WORLDS: u32 = 150;

fn simulate(workspace: &Workspace) -> Result<Remark> {
    simulate_worlds(workspace, WORLDS).map(|()| None)
}

/// Worlds that once broke a promise, and so many others.
pub(crate) fn simulate_worlds(workspace: &Workspace, worlds: u32) -> Result<()> {
    run(&mut simulator(workspace, "test", &suite::OPTIMISED))?;
    run(simulator(workspace, "run", &[]).args([
        "--",
        // The same worlds for the same commit, so that the gate can be repeated; fresh ones are
        // drawn by `cargo run --release -p tactus-sim`.
        "--from=1",
        &format!("--seeds={worlds}"),
        // Not by the clock: in the background a world may take any time.
        "--seconds=3600",
    ]))
}

/// Each mistake must be told by the seed that once told it. The searches by which such seeds are
/// found are not repeated: `tactus-sim --mutants` does them.
fn hunt(workspace: &Workspace) -> Result<Remark> {
    let tests = [
        "mutants",
        "learning_mutants",
        "balancing_mutants",
        "spinning_mutants",
        "small_uploads_mutants",
        "datagram_mutants",
        "pacer_mutants",
    ];
    run(&mut simulator(workspace, "test", &tests))?;
    Ok(None)
}

/// Cargo with the simulator. For the steps `sim` and `mutants` it is built once, with deliberate
/// mistakes of which none is on unless a test switches it on; the step `test` has worlds without
/// them.
fn simulator(workspace: &Workspace, task: &str, tests: &[&str]) -> Command {
    let mut cargo = workspace.patient_cargo(&[
        task,
        FIRST,
        "--package=tactus-sim",
        "--features=mutants",
        "--locked",
    ]);
    cargo.args(tests.iter().map(|test| format!("--test={test}")));
    cargo
}

/// Optimised, without the minutes that link-time optimisation takes.
const FIRST: &str = "--profile=first";

/// After the step `build`, which has checked the crates of others with the same features.
fn document(workspace: &Workspace) -> Result<Remark> {
    run(workspace
        .patient_cargo(&["doc", "--workspace", "--no-deps", "--locked"])
        .env("RUSTDOCFLAGS", "--deny=warnings"))?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_what_failed_and_what_was_remarked() {
        let rows = [
            Row { name: "fmt", took: Duration::from_millis(1500), result: Ok(None) },
            Row {
                name: "deny",
                took: Duration::from_secs(70),
                result: Ok(Some("advisories not checked".to_owned())),
            },
            Row {
                name: "test",
                took: Duration::from_secs(2),
                result: Err(anyhow::anyhow!("two\nlines")),
            },
        ];
        let text = table(&rows, Duration::from_secs(1501), BUDGET);
        assert_eq!(
            text,
            "step         time  result  remark\n\
             fmt         1.5 s  ok\n\
             deny       70.0 s  ok      advisories not checked\n\
             test        2.0 s  FAILED  two\n\
             total    1501.0 s  more than the 25 minutes it may take on two cores"
        );
    }

    #[test]
    fn every_step_has_its_own_name() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..index].iter().all(|other| other.name != step.name), "{}", step.name);
        }
    }
}
