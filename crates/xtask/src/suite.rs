//! The test suite: builds all test binaries, runs them side by side, and prints how long each took.
//!
//! Promise: every test that `cargo test --workspace` runs is run, doc tests included. A binary that
//! judges exact times of a real-time server runs alone, after all the others. A failed binary does
//! not stop the rest; its whole output is printed and it is named in the error. Binaries that hang
//! are ended, with their processes, where the run is unattended.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::step::Remark;
use crate::workspace::{Failures, Workspace, run, shown};

/// Binaries that run beside each other on two cores. Most of them wait for real time more than they
/// compute. Five passed beside a build; four leave a margin.
const BESIDE: usize = 4;

/// Integration tests that judge exact times of a real-time server, or own loop devices (`faults`):
/// nothing runs beside them.
const ALONE: [&str; 15] = [
    "allocations",
    "channels",
    "classes",
    "conformance",
    "engine",
    "faults",
    "made",
    "made_movie",
    "operating",
    "promises",
    "rtsp",
    "rtsp_movies",
    "rtsp_matrix",
    "rtsp_retina",
    "trick",
];

/// The longest of the others, which begin first, so that none of them is left over at the end.
const LONG: [&str; 6] = ["players", "bad_input", "uploaders", "rtsp_record", "operating", "cli"];

/// The quick gate leaves out integration tests of a minute and more: `LONG`, and these of `ALONE`.
const NOT_QUICK: [&str; 8] = [
    "channels",
    "classes",
    "conformance",
    "faults",
    "promises",
    "rtsp",
    "rtsp_movies",
    "rtsp_matrix",
];

/// Rows of the printed table.
const SLOWEST: usize = 20;

/// What one binary may take. The longest takes a sixth of it.
const PATIENCE: &str = "60m";

/// How much of the suite is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Whole,
    /// Unit tests and the short integration tests.
    Quick,
}

/// Builds and runs the suite.
pub(crate) fn run_suite(workspace: &Workspace, extent: Extent) -> Result<Remark> {
    let mut binaries = build(workspace)?;
    let all = binaries.len();
    if extent == Extent::Quick {
        binaries.retain(Binary::is_quick);
    }
    binaries.sort_by_key(|binary| {
        LONG.iter().position(|name| *name == binary.name).unwrap_or(LONG.len())
    });
    let (alone, beside): (Vec<_>, Vec<_>) = binaries.into_iter().partition(Binary::is_alone);
    let place = workspace.target.join("tests");
    fs::create_dir_all(&place)?;
    let mut rows = run_beside(workspace, &place, beside)?;
    for binary in alone {
        rows.push(binary.run(workspace, &place)?);
    }
    println!("{}", table(&mut rows));
    let mut failed: Vec<_> = rows.iter().filter_map(|row| row.failure.clone()).collect();
    if extent == Extent::Whole {
        let documented = ["test", "--workspace", "--locked", "--no-fail-fast", "--doc"];
        if let Err(error) = run(&mut workspace.patient_cargo(&documented)) {
            failed.push(format!("{error:#}"));
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} failed\n{}", failed.len(), rows.len(), failed.join("\n"));
    }
    Ok((rows.len() < all).then(|| format!("{} of {all} test binaries", rows.len())))
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
    fn is_one_of(&self, names: &[&str]) -> bool {
        self.is_integration && names.contains(&self.name.as_str())
    }

    fn is_alone(&self) -> bool {
        self.is_one_of(&ALONE)
    }

    fn is_quick(&self) -> bool {
        !self.is_one_of(&LONG) && !self.is_one_of(&NOT_QUICK)
    }

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

    /// Its output goes to a file: a pipe would be held open by what a test leaves behind.
    fn run(&self, workspace: &Workspace, place: &Path) -> Result<Row> {
        let said = place.join(self.program.file_name().context("a program has a name")?);
        let out = File::create(&said)?;
        let mut command = if workspace.unattended {
            let mut command = Command::new("timeout");
            command.args(["--kill-after=10s", PATIENCE]).arg(&self.program);
            command
        } else {
            Command::new(&self.program)
        };
        command.current_dir(&self.directory).stdin(Stdio::null());
        command.stdout(out.try_clone()?).stderr(out);
        let begin = Instant::now();
        let status =
            command.status().with_context(|| format!("cannot start: {}", shown(&command)))?;
        let row = Row { name: self.name.clone(), took: begin.elapsed(), failure: None };
        if status.success() {
            println!("{:>8.1} s  {}", row.took.as_secs_f64(), row.name);
            return Ok(row);
        }
        let text = String::from_utf8_lossy(&fs::read(&said)?).into_owned();
        println!("{:>8.1} s  {}: FAILED\n{text}", row.took.as_secs_f64(), row.name);
        let mut failures = Failures::default();
        text.lines().for_each(|line| failures.read(line));
        let failure = Some(format!("failed ({status}): {}{failures}", shown(&command)));
        Ok(Row { failure, ..row })
    }
}

struct Row {
    name: String,
    took: Duration,
    failure: Option<String>,
}

fn build(workspace: &Workspace) -> Result<Vec<Binary>> {
    let mut command = workspace.cargo(&[
        "test",
        "--workspace",
        "--locked",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
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
    Ok(binaries)
}

fn run_beside(workspace: &Workspace, place: &Path, binaries: Vec<Binary>) -> Result<Vec<Row>> {
    let queue = Mutex::new(VecDeque::from(binaries));
    let next = || queue.lock().expect("no holder panics").pop_front();
    let work = || -> Result<Vec<Row>> {
        std::iter::from_fn(next).map(|binary| binary.run(workspace, place)).collect()
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..BESIDE).map(|_| scope.spawn(work)).collect();
        let done =
            workers.into_iter().map(|worker| worker.join().expect("a worker does not panic"));
        Ok(done.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    })
}

fn table(rows: &mut [Row]) -> String {
    rows.sort_by_key(|row| std::cmp::Reverse(row.took));
    let lines = rows.iter().take(SLOWEST).map(|row| {
        let verdict = if row.failure.is_none() { "ok" } else { "FAILED" };
        format!("\n{:<16} {:>8.1} s  {verdict}", row.name, row.took.as_secs_f64())
    });
    format!("slowest of {} test binaries:{}", rows.len(), lines.collect::<String>())
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
    fn only_integration_tests_run_alone_and_programs_are_not_run() {
        let messages = [message("test", true), message("lib", true), message("bin", false)];
        let binaries = read_all(&messages.join("\n")).unwrap();
        let alone: Vec<_> = binaries.iter().map(Binary::is_alone).collect();
        assert_eq!(alone, [true, false]);
        assert_eq!(binaries[0].directory, Path::new("/w/a"));
    }

    #[test]
    fn a_build_without_test_binaries_is_an_error() {
        assert!(read_all(r#"{"reason":"build-finished"}"#).is_err());
    }

    #[test]
    fn a_failed_binary_is_named_with_its_test_and_the_rest_still_run() {
        let dir = tempfile::tempdir().unwrap();
        let workspace =
            Workspace { root: dir.path().into(), target: dir.path().into(), unattended: false };
        let binary = |name: &str| Binary {
            name: name.to_owned(),
            is_integration: true,
            program: PathBuf::from(name),
            directory: dir.path().to_path_buf(),
        };
        let mut rows =
            run_beside(&workspace, dir.path(), ["false", "true"].map(binary).into()).unwrap();
        let table = table(&mut rows);
        assert!(table.contains("false") && table.contains("FAILED") && table.contains("ok"));
        assert_eq!(rows.iter().filter(|row| row.failure.is_some()).count(), 1);
    }
}
