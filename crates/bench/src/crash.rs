//! The power fails, thousands of times: what each way of storing a title leaves behind.
//!
//! Promise: a subject works on a real file system, on a disk that logs every write and flush; then
//! the disk is cut at points of that log, mounted, recovered, and held against what had been
//! acknowledged. Subjects that are known to be wrong must be found out in the same run. The model and
//! its limits stand in `docs/design/crash-replay.md`.

mod content;
mod disk;
mod history;
mod log;
mod medium;
mod recorder;
mod replay;
mod subject;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::benches::say;
use crate::command;
use crate::report::{Report, Table, number};
use replay::{Outcome, Series};

pub use disk::{FileSystem, serve};

/// What the command line says about a run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Power failures for each subject and file system.
    #[arg(long, default_value_t = 100)]
    cuts: u64,
    /// Which file systems; all by default.
    #[arg(long, value_delimiter = ',')]
    fs: Vec<FileSystem>,
    /// Which subjects, by the names of the table; all by default.
    #[arg(long, value_delimiter = ',')]
    subject: Vec<String>,
    /// The seed of everything random. The kernel's part of a run is its own.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Be content with a subject as soon as something is wrong with it.
    #[arg(long)]
    until_found: bool,
    /// Where the report and the images of failures are written.
    #[arg(long, default_value = "target/crash")]
    out: PathBuf,
    /// Already in a mount namespace of its own.
    #[arg(long, hide = true)]
    inside: bool,
}

/// A subject that is wrong is found out within so many cuts, or the replay is.
const FOUND_WITHIN: u64 = 300;

/// Runs what `options` ask for; fails when a sound subject has lost something, or when a wrong one was
/// not found out.
pub fn run(options: &Options) -> Result<()> {
    if !options.inside {
        return Err(enter());
    }
    can_run()?;
    std::fs::create_dir_all(&options.out)?;
    let mut subjects = subject::built_in();
    if !options.subject.is_empty() {
        let known: Vec<_> = subjects.iter().map(|subject| subject.name().to_owned()).collect();
        if let Some(unknown) = options.subject.iter().find(|name| !known.contains(name)) {
            bail!("no subject is called {unknown:?}; there are {}", known.join(", "));
        }
        subjects.retain(|subject| options.subject.iter().any(|name| name == subject.name()));
    }
    let file_systems = match options.fs.is_empty() {
        true => vec![FileSystem::Ext4, FileSystem::Xfs],
        false => options.fs.clone(),
    };
    let places = tempfile::Builder::new().prefix("tactus-crash-").tempdir()?;
    let mut outcomes = Vec::new();
    for subject in &subjects {
        for &file_system in &file_systems {
            say(&format!("{} on {file_system:?}: {} cuts", subject.name(), options.cuts));
            let series = Series {
                file_system,
                cuts: options.cuts,
                seed: options.seed,
                until_found: options.until_found && !subject.sound(),
                out: options.out.canonicalize()?,
            };
            let place = places.path().join(format!("{file_system:?}").to_lowercase());
            outcomes.push(replay::run(subject.as_ref(), &series, &place)?);
        }
    }
    publish(&outcomes, options)?;
    judge(&outcomes)
}

/// Replaces this process by one with mounts of its own: nobody else gets a copy of ours, which would
/// keep a file system alive behind our back, and none of them outlives us.
fn enter() -> anyhow::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error.into(),
    };
    let arguments = std::env::args_os().skip(1);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(program).args(arguments);
    let error = command.arg("--inside").exec();
    anyhow::Error::from(error).context("cannot run unshare (it comes with the package util-linux)")
}

/// Names what this machine lacks.
fn can_run() -> Result<()> {
    for device in ["/dev/fuse", "/dev/loop-control"] {
        ensure!(Path::new(device).exists(), "no power can fail here: {device} is missing");
    }
    for (program, package) in [
        ("fusermount3", "fuse3"),
        ("losetup", "mount"),
        ("mkfs.ext4", "e2fsprogs"),
        ("mkfs.xfs", "xfsprogs"),
    ] {
        let there = command::exists(program);
        ensure!(there, "no power can fail here: {program} is missing (package {package})");
    }
    Ok(())
}

fn publish(outcomes: &[Outcome], options: &Options) -> Result<()> {
    let mut report =
        Report::new("crash", "what does a power failure leave of what was acknowledged?");
    report.method = [
        "The subject works on a file system, on a loop device, on a FUSE file that logs every write \
         and flush, with the position in the log at every acknowledgement.",
        "A cut holds all writes before the last flush that precedes it, and of the later ones half: \
         in half of the cuts whole writes, in half pieces of 4 KiB. Half of the cuts are drawn from \
         all events, half lie at an acknowledgement.",
        "Numbers are cuts. Ahead: an upload has more than was acknowledged, and all of it is right.",
    ]
    .map(String::from)
    .into();
    report.settings.push(("options".into(), format!("{options:?}")));
    let head = [
        "before the acknowledgement",
        "file system",
        "cuts",
        "acks",
        "lost",
        "torn",
        "wrong offset",
        "stray",
        "ahead",
        "unmountable",
        "not ready",
        "ready max, s",
        "cuts/s",
        "",
    ];
    let mut table = Table::new("power failures", &head);
    for outcome in outcomes {
        let verdict = match (outcome.sound, outcome.found()) {
            (true, false) => "holds",
            (true, true) => "FAILED",
            (false, true) => "found out",
            (false, false) => "not found out",
        };
        table.row(vec![
            format!("{} ({})", outcome.subject, outcome.method),
            outcome.file_system.clone(),
            outcome.cuts.to_string(),
            outcome.acks.to_string(),
            outcome.lost.to_string(),
            outcome.torn.to_string(),
            outcome.wrong_offset.to_string(),
            outcome.stray.to_string(),
            outcome.ahead.to_string(),
            outcome.unmountable.to_string(),
            (outcome.slow + outcome.unrecovered).to_string(),
            number(outcome.ready_max_seconds),
            number(outcome.cuts as f64 / outcome.seconds),
            verdict.into(),
        ]);
        report.runs.push(json!(outcome));
    }
    report.tables.push(table);
    let parent = options.out.parent().context("the report needs a folder")?;
    report.name = options.out.file_name().unwrap_or_default().to_string_lossy().into_owned();
    report.publish(parent).map(drop)
}

fn judge(outcomes: &[Outcome]) -> Result<()> {
    for outcome in outcomes {
        let Outcome { subject, file_system, cuts, .. } = outcome;
        if outcome.sound && outcome.found() {
            let examples = outcome.examples.join("\n  ");
            bail!("{subject} on {file_system} does not survive:\n  {examples}");
        }
        if !outcome.sound && !outcome.found() && *cuts >= FOUND_WITHIN {
            bail!("{subject} on {file_system} is wrong, and {cuts} cuts did not show it");
        }
    }
    Ok(())
}
