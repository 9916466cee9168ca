//! The test suite: builds all test binaries, spreads their tests over processes that run side by
//! side, and prints how long each took.
//!
//! Promise: every test that `cargo test --workspace` runs is run, doc tests included, but for
//! [`OPTIMISED`]; a process that ran fewer tests than it was given fails. A test that judges times
//! runs beside one other of its kind, or alone if the times are exact: after the longest tests,
//! when the disks have what was built, and before all others, when the steps in the background have
//! work yet for the processors that such tests leave idle. A process that fails beside others is
//! run again alone, and is named in the remark if it passes then. A failed process does not stop
//! the rest; its whole output is printed and it is named in the error. Processes that hang are
//! ended, with their children, where the run is unattended.

mod cost;
mod idle;
mod schedule;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use self::idle::IdleTime;
use self::schedule::{Plan, Shard, Target};
use crate::step::Remark;
use crate::workspace::{Failures, Workspace, output, run, shown, succeeds};

/// Binaries whose worlds take an eighth of the time when they are optimised: the step `sim` runs
/// them.
pub(crate) const OPTIMISED: [&str; 4] = ["past_seeds", "packets", "balancing", "learning"];

/// Integration tests of the quick gate. The others start servers or players, or send hostile input
/// over the network, and take more than half of the processor time of all tests. The step `clippy`
/// still checks that they compile.
const QUICK: [&str; 16] = [
    "allocations",
    "client",
    "disk",
    "engine",
    "guide",
    "large",
    "lock_limit",
    "network",
    "promises",
    "recording",
    "size_limit",
    "small_uploads",
    "sound",
    "spinning",
    "txtime",
    "writer",
];

/// Processes that run beside each other however busy the processors are.
const BESIDE_MIN: usize = 5;

/// Upper bound of the processes that run beside each other while processors are idle. Most tests
/// wait for real time more than they compute; all of them together compute for half of the time
/// that two cores have while five processes run.
const BESIDE_MAX: usize = 10;

/// Processes that run beside each other in the quiet, one for each of two processors.
const QUIET: usize = 2;

/// Rows of each printed table.
const ROWS: usize = 20;

/// Upper bound of the time of one process. The longest takes a sixth of it.
const PATIENCE: &str = "10m";

/// How much of the suite is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Whole,
    /// Unit tests, and the integration tests of [`QUICK`] without the longest.
    Quick,
}

/// Builds and runs the suite.
pub(crate) fn run_suite(workspace: &Workspace, extent: Extent) -> Result<Remark> {
    let binaries = build(workspace, extent)?;
    let targets = binaries.iter().map(Binary::target).collect::<Result<Vec<_>>>()?;
    let plan = Plan::new(&targets, extent == Extent::Quick)?;
    let place = workspace.target.join("tests");
    fs::create_dir_all(&place)?;
    let runner = Runner { workspace, place: &place, binaries: &binaries, is_apart: is_apart() };
    let begin = Instant::now();
    let mut rows = runner.run_beside(&plan.long, "long", BESIDE_MIN..BESIDE_MAX);
    println!("the longest side by side: {:.1} s", begin.elapsed().as_secs_f64());
    let begin = Instant::now();
    rows.extend(runner.run_beside(&plan.quiet, "quiet", QUIET..QUIET));
    rows.extend(plan.alone.iter().enumerate().map(|(nth, shard)| runner.run(shard, nth, "alone")));
    println!("in pairs and alone: {:.1} s", begin.elapsed().as_secs_f64());
    let begin = Instant::now();
    let documented = std::thread::scope(|scope| {
        let documented = scope.spawn(|| match extent {
            Extent::Whole => test_documentation(workspace),
            Extent::Quick => Ok(()),
        });
        rows.extend(runner.run_beside(&plan.beside, "beside", BESIDE_MIN..BESIDE_MAX));
        documented.join().expect("it does not panic")
    });
    let mut crowded = Vec::new();
    let others = plan.long.iter().chain(&plan.quiet).chain(&plan.beside);
    for (nth, shard) in others.enumerate() {
        let Some(row) = rows.iter_mut().find(|row| row.failure.is_some() && row.shard == *shard)
        else {
            continue;
        };
        *row = runner.run(shard, nth, "again");
        if row.failure.is_none() {
            crowded.push(row.shard.to_string());
        }
    }
    println!("side by side: {:.1} s", begin.elapsed().as_secs_f64());
    println!("{}", tables(&mut rows));
    let mut failed: Vec<_> = rows.iter().filter_map(|row| row.failure.clone()).collect();
    failed.extend(documented.err().map(|error| format!("{error:#}")));
    if !failed.is_empty() {
        bail!("{} of {} failed\n{}", failed.len(), rows.len(), failed.join("\n"));
    }
    let ran: usize = rows.iter().map(|row| row.tests).sum();
    let listed: usize = targets.iter().map(|target| target.tests.len()).sum();
    ensure!(ran + plan.left_out == listed, "{ran} tests ran of {listed}");
    let of = if plan.left_out == 0 { String::new() } else { format!(" of {listed}") };
    let without = match extent {
        Extent::Whole => "",
        Extent::Quick => ", without those of servers and players",
    };
    let only = match crowded.len() {
        0 => String::new(),
        some => format!("; {some} passed only alone: {}", crowded.join(", ")),
    };
    Ok(Some(format!("{ran}{of} tests{without}{only}")))
}

/// Beside the others: it mostly compiles, while they mostly wait.
fn test_documentation(workspace: &Workspace) -> Result<()> {
    run(&mut workspace.patient_cargo(&[
        "test",
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--doc",
    ]))
}

/// Whether each process may have a network of its own. Tests of one binary use the same ports and
/// multicast groups. Only root keeps its real-time priority there.
fn is_apart() -> bool {
    succeeds(Command::new("sh").args(["-c", "test $(id -u) = 0 && unshare --net ip link"]))
}

/// A program of tests.
struct Binary {
    name: String,
    /// An integration test, in `tests`; otherwise the unit tests of a crate.
    is_integration: bool,
    program: PathBuf,
    /// Where Cargo would run it.
    directory: PathBuf,
}

impl Binary {
    /// The artifact of a test in a message of Cargo's; `None` for any other message.
    fn read(message: &Value) -> Option<Self> {
        let is_test =
            message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
        let program = message["executable"].as_str().filter(|_| is_test)?;
        let manifest = Path::new(message["manifest_path"].as_str()?);
        Some(Self {
            name: message["target"]["name"].as_str()?.to_owned(),
            is_integration: message["target"]["kind"][0] == "test",
            program: PathBuf::from(program),
            directory: manifest.parent()?.to_path_buf(),
        })
    }

    /// Lists its tests.
    fn target(&self) -> Result<Target> {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.directory).args(["--list", "--format=terse"]);
        let listed = output(&mut command)?;
        let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(Target {
            name: self.name.clone(),
            is_integration: self.is_integration,
            tests: tests.map(str::to_owned).collect(),
        })
    }
}

/// Starts processes of tests.
struct Runner<'a> {
    workspace: &'a Workspace,
    /// Where their output goes.
    place: &'a Path,
    binaries: &'a [Binary],
    is_apart: bool,
}

impl Runner<'_> {
    /// Runs `shards` in their order: as many at once as `count` begins with, and as it ends with
    /// while processors are idle.
    fn run_beside(&self, shards: &[Shard], phase: &str, count: Range<usize>) -> Vec<Row> {
        let queue = Mutex::new(VecDeque::from_iter(shards.iter().enumerate()));
        let is_empty = || queue.lock().expect("no holder panics").is_empty();
        let idle = IdleTime::default();
        let work = |worker| -> Vec<Row> {
            let next = || {
                if worker >= count.start {
                    idle.wait(&is_empty);
                }
                queue.lock().expect("no holder panics").pop_front()
            };
            std::iter::from_fn(next).map(|(nth, shard)| self.run(shard, nth, phase)).collect()
        };
        std::thread::scope(|scope| {
            let work = &work;
            let workers: Vec<_> =
                (0..count.end).map(|worker| scope.spawn(move || work(worker))).collect();
            workers
                .into_iter()
                .flat_map(|worker| worker.join().expect("a worker does not panic"))
                .collect()
        })
    }

    fn run(&self, shard: &Shard, nth: usize, phase: &str) -> Row {
        let begin = Instant::now();
        let mut computed = None;
        let result = self.try_run(shard, nth, phase, &mut computed);
        let took = begin.elapsed();
        let name = shard.to_string();
        let failure = result.err().map(|error| format!("{name}: {error:#}"));
        let verdict = if failure.is_some() { "FAILED" } else { "ok" };
        let computed = computed.unwrap_or_default();
        let [seconds, own] = [took, computed].map(|time| time.as_secs_f64());
        println!("{seconds:>8.1} s, computed {own:>5.1} s  {name}: {verdict}");
        Row { shard: shard.clone(), name, tests: shard.tests.len(), took, computed, failure }
    }

    /// The output goes to a file: a pipe would be held open by what a test leaves behind.
    fn try_run(
        &self,
        shard: &Shard,
        nth: usize,
        phase: &str,
        computed: &mut Option<Duration>,
    ) -> Result<()> {
        let binary = &self.binaries[shard.target];
        let said = self.place.join(format!("{phase}-{nth}-{}", binary.name));
        let out = File::create(&said)?;
        let shell = match self.is_apart {
            true => format!("ip link set lo up || exit\n{}", cost::RUN),
            false => cost::RUN.to_owned(),
        };
        let apart: &[&str] = if self.is_apart { &["unshare", "--net"] } else { &[] };
        let mut words = [apart, &["sh", "-c", &shell, "sh"]].concat();
        if self.workspace.unattended {
            words.extend(["timeout", "--kill-after=10s", PATIENCE]);
        }
        words.push(binary.program.to_str().context("a path in UTF-8")?);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg("--exact").args(&shard.tests);
        command.current_dir(&binary.directory).stdin(Stdio::null());
        command.stdout(out.try_clone()?).stderr(out);
        let status =
            command.status().with_context(|| format!("cannot start: {}", shown(&command)))?;
        let text = String::from_utf8_lossy(&fs::read(&said)?).into_owned();
        *computed = cost::computed(&text);
        let ran = tests_in(&text);
        if status.success() && ran == Some(shard.tests.len()) {
            return Ok(());
        }
        println!("{shard}:\n{text}");
        ensure!(
            !status.success(),
            "{} of {} tests ran: {}",
            ran.unwrap_or(0),
            shard.tests.len(),
            binary.program.display()
        );
        let mut failures = Failures::default();
        text.lines().for_each(|line| failures.read(line));
        bail!("failed ({status}): {}{failures}", binary.program.display());
    }
}

/// How many tests the output of a process counts: the last summary, because a test may run its own
/// binary again. `None` without a summary.
fn tests_in(output: &str) -> Option<usize> {
    let (_, summary) = output.rsplit_once("\ntest result: ")?;
    let counted = summary.lines().next()?.split(['.', ';']).filter_map(|part| {
        let (count, kind) = part.trim().split_once(' ')?;
        let is_ran = ["passed", "failed", "ignored", "measured"].contains(&kind);
        count.parse::<usize>().ok().filter(|_| is_ran)
    });
    Some(counted.sum())
}

struct Row {
    shard: Shard,
    name: String,
    tests: usize,
    took: Duration,
    /// Processor time.
    computed: Duration,
    failure: Option<String>,
}

fn build(workspace: &Workspace, extent: Extent) -> Result<Vec<Binary>> {
    let mut command = workspace.cargo(&[
        "test",
        "--workspace",
        "--locked",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    if extent == Extent::Quick {
        command.args(["--lib", "--bins"]).args(QUICK.map(|name| format!("--test={name}")));
    }
    println!("$ {}", shown(&command));
    let done = command.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(done.status.success(), "failed ({}): {}", done.status, shown(&command));
    let messages = String::from_utf8(done.stdout).context("Cargo's messages are UTF-8")?;
    read_all(&messages)
}

fn read_all(messages: &str) -> Result<Vec<Binary>> {
    let mut binaries = Vec::new();
    for line in messages.lines() {
        let message = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        binaries.extend(Binary::read(&message));
    }
    ensure!(!binaries.is_empty(), "Cargo named no test binary");
    binaries.retain(|binary| !OPTIMISED.contains(&binary.name.as_str()));
    Ok(binaries)
}

/// The processes that took longest, and those that computed most.
fn tables(rows: &mut [Row]) -> String {
    let slowest = top(rows, |row| row.took);
    let dearest = top(rows, |row| row.computed);
    let all: Duration = rows.iter().map(|row| row.computed).sum();
    format!(
        "slowest of {} processes:{slowest}\nmost processor time, of {:.1} s in all:{dearest}",
        rows.len(),
        all.as_secs_f64()
    )
}

/// The first [`ROWS`] by `time`, the longest first.
fn top(rows: &mut [Row], time: impl Fn(&Row) -> Duration) -> String {
    rows.sort_by_key(|row| std::cmp::Reverse(time(row)));
    let lines = rows.iter().take(ROWS).map(|row| {
        let verdict = if row.failure.is_none() { "ok" } else { "FAILED" };
        format!("\n{:>8.1} s  {verdict:<6}  {}", time(row).as_secs_f64(), row.name)
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, is_test: bool) -> String {
        let target = format!(r#"{{"kind":["{kind}"],"name":"rtsp"}}"#);
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","target":{target},"#
        ) + &format!(r#""profile":{{"test":{is_test}}},"executable":"/w/t/rtsp"}}"#)
    }

    #[test]
    fn integration_tests_are_told_from_unit_tests_and_programs_are_not_run() {
        let messages = [message("test", true), message("lib", true), message("bin", false)];
        let binaries = read_all(&messages.join("\n")).unwrap();
        let kinds: Vec<_> = binaries.iter().map(|binary| binary.is_integration).collect();
        assert_eq!(kinds, [true, false]);
        assert_eq!(binaries[0].directory, Path::new("/w/a"));
    }

    #[test]
    fn binaries_that_run_optimised_are_left_to_their_step() {
        let past = message("test", true).replace("rtsp", OPTIMISED[0]);
        let binaries = read_all(&[past, message("test", true)].join("\n")).unwrap();
        assert_eq!(binaries.iter().map(|one| &one.name[..]).collect::<Vec<_>>(), ["rtsp"]);
    }

    #[test]
    fn a_build_without_test_binaries_is_an_error() {
        assert!(read_all(r#"{"reason":"build-finished"}"#).is_err());
    }

    #[test]
    fn the_last_summary_counts_the_tests() {
        let inner = "\nrunning 1 test\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; \
                     0 measured; 9 filtered out; finished in 0.10s\n";
        let outer = "\ntest result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; \
                     4 filtered out; finished in 2.00s\n";
        assert_eq!(tests_in(&format!("{inner}{outer}")), Some(4));
        assert_eq!(tests_in("running 1 test\n"), None);
    }

    /// Runs `programs` as if each had two tests.
    fn rows_of(programs: &[&str]) -> Vec<Row> {
        let dir = tempfile::tempdir().unwrap();
        let workspace =
            Workspace { root: dir.path().into(), target: dir.path().into(), unattended: false };
        let mut binaries = Vec::new();
        let mut shards = Vec::new();
        for (target, text) in programs.iter().enumerate() {
            let program = dir.path().join(format!("p{target}"));
            fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
            let can_run = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            fs::set_permissions(&program, can_run).unwrap();
            let name = format!("p{target}");
            let tests = vec!["a".to_owned(), "b".to_owned()];
            shards.push(Shard { target, name: name.clone(), tests });
            let directory = dir.path().to_path_buf();
            binaries.push(Binary { name, is_integration: true, program, directory });
        }
        let runner = Runner {
            workspace: &workspace,
            place: dir.path(),
            binaries: &binaries,
            is_apart: false,
        };
        let mut rows = runner.run_beside(&shards, "beside", 1..2);
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        rows
    }

    #[test]
    fn a_failed_process_is_named_with_its_tests_and_the_rest_still_run() {
        let passes = "printf '\\ntest result: ok. 2 passed; 0 failed'";
        let mut rows = rows_of(&["exit 1", passes]);
        assert!(rows[0].failure.as_ref().is_some_and(|text| text.contains("p0")), "named");
        assert!(rows[1].failure.is_none(), "{:?}", rows[1].failure);
        let tables = tables(&mut rows);
        assert!(tables.contains("FAILED  p0") && tables.contains("ok      p1"), "{tables}");
    }

    #[test]
    fn one_table_is_by_the_time_and_one_by_the_processor_time() {
        let row = |name: &str, [took, computed]: [u64; 2]| Row {
            shard: Shard { target: 0, name: String::new(), tests: vec![] },
            name: name.to_owned(),
            tests: 0,
            took: Duration::from_secs(took),
            computed: Duration::from_secs(computed),
            failure: None,
        };
        assert_eq!(
            tables(&mut [row("waits", [9, 1]), row("computes", [4, 8])]),
            "slowest of 2 processes:\n     9.0 s  ok      waits\n     4.0 s  ok      computes\n\
             most processor time, of 9.0 s in all:\n     8.0 s  ok      computes\n     \
             1.0 s  ok      waits"
        );
    }

    #[test]
    fn a_process_that_ran_fewer_tests_than_it_was_given_fails() {
        let rows = rows_of(&["printf '\\ntest result: ok. 1 passed; 0 failed'", "true"]);
        let failures: Vec<_> = rows.iter().map(|row| row.failure.clone().unwrap()).collect();
        assert!(failures[0].contains("1 of 2 tests ran"), "{failures:?}");
        assert!(failures[1].contains("0 of 2 tests ran"), "{failures:?}");
    }
}
