//! The power fails, thousands of times: what each way of storing a title leaves behind.
//!
//! Promise: a subject works on a real file system, on a disk that logs every write and flush; then
//! the disk is cut at points of that log, mounted, recovered, and held against what had been
//! acknowledged. Subjects that are known to be wrong must be found out in the same run. The model
//! and its limits stand in `docs/design/crash-replay.md`.

mod client;
mod content;
mod disk;
mod history;
mod kills;
mod log;
mod medium;
mod recorder;
mod replay;
mod server;
mod starvation;
mod subject;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::json;

use crate::benches::say;
use crate::command;
use crate::report::{Report, Table, number};
use kills::Plan;
use replay::{Outcome, Series};
use subject::Subject;

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
    /// Which subjects, by the names of the table, or all. Those that begin with tactus are the
    /// server, which must have been built.
    #[arg(long, value_delimiter = ',', default_value = "tactus")]
    subject: Vec<String>,
    /// Instead of cutting the power, kill the server so many times.
    #[arg(long)]
    kills: Option<u64>,
    /// With kills: within so many seconds it must be ready again, without those in which others had
    /// the processors. The promise is two; where the disk is busy with something else it needs
    /// more.
    #[arg(long, default_value_t = 2)]
    ready: u64,
    /// The server; by default the binary `tactus` beside this one.
    #[arg(long)]
    tactus: Option<PathBuf>,
    /// A directory in which npm has installed @tus/server and @tus/file-store: the subject
    /// tus-server.
    #[arg(long)]
    modules: Option<PathBuf>,
    /// The seed of everything random. The kernel's part of a run is its own.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Be content with a subject as soon as something is wrong with it.
    #[arg(long)]
    until_found: bool,
    /// Where the report and the images of failures are written.
    #[arg(long, default_value = "target/crash")]
    out: PathBuf,
    /// How many disks at once.
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Already in a mount namespace of its own.
    #[arg(long, hide = true)]
    inside: bool,
}

/// Larger series are done in parts, beside each other.
const CUTS_PER_PART: u64 = 100;
/// A subject that is wrong is found out within so many cuts, or the replay is.
const FOUND_WITHIN: u64 = 300;

/// Runs what `options` ask for; fails when a audio subject has lost something, or when a wrong one
/// was not found out.
pub fn run(options: &Options) -> Result<()> {
    if !options.inside {
        return Err(enter());
    }
    std::fs::create_dir_all(&options.out)?;
    let tactus = match &options.tactus {
        Some(path) => path.canonicalize()?,
        None => std::env::current_exe()?.with_file_name("tactus"),
    };
    if let Some(kills) = options.kills {
        return kill(&tactus, kills, options);
    }
    can_run()?;
    let mut subjects = subject::all(&tactus, options.modules.as_deref());
    if options.subject != ["all"] {
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
    let mut jobs = Vec::new();
    for subject in &subjects {
        for &file_system in &file_systems {
            let parts = options.cuts.div_ceil(CUTS_PER_PART);
            for part in 0..parts {
                // Rounds so that the parts have all cuts together.
                let cuts = options.cuts * (part + 1) / parts - options.cuts * part / parts;
                let series = Series {
                    file_system,
                    cuts,
                    seed: options.seed.wrapping_add(part << 32),
                    until_found: options.until_found && !subject.audio(),
                    out: options.out.canonicalize()?,
                };
                jobs.push((subject.as_ref(), series));
            }
        }
    }
    let started = Instant::now();
    let outcomes = run_all(&jobs, options)?;
    say(&format!("{:.0} s in all", started.elapsed().as_secs_f64()));
    publish(&outcomes, options)?;
    judge(&outcomes)
}

/// Kills the server on a volume of the machine's own disk.
fn kill(tactus: &Path, kills: u64, options: &Options) -> Result<()> {
    let volume = tempfile::Builder::new().prefix("volume-").tempdir_in(&options.out)?;
    let root = volume.path().canonicalize()?;
    let ready = Duration::from_secs(options.ready);
    let killed = kills::run(tactus, &root, Plan { kills, ready, seed: options.seed })?;
    let kills::Killed { kills, acks, deliveries, mut ready } = killed;
    ready.sort_unstable();
    let ready_seconds = |percent| {
        // Rounds down: of two the earlier is the median.
        let place = (ready.len().saturating_sub(1)) * percent / 100;
        ready.get(place).map_or(0.0, Duration::as_secs_f64)
    };
    let [half, most, all] = [50, 99, 100].map(ready_seconds);
    println!(
        "{kills} kills, {acks} acknowledgements, none lost; {deliveries} deliveries, none wrong; \
         ready within {half:.3} s, 99 of 100 within {most:.3} s, all within {all:.3} s"
    );
    let report = json!({
        "kills": kills,
        "acks": acks,
        "deliveries": deliveries,
        "ready_seconds": { "p50": half, "p99": most, "max": all },
    });
    std::fs::write(options.out.join("kills.json"), serde_json::to_string_pretty(&report)?)?;
    Ok(())
}

/// Runs all jobs, some beside each other: most of a cut is waiting. Answers one outcome for each
/// subject and file system.
fn run_all(jobs: &[(&dyn Subject, Series)], options: &Options) -> Result<Vec<Outcome>> {
    let places = tempfile::Builder::new().prefix("tactus-crash-").tempdir()?;
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, Outcome)>> {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some((subject, series)) = jobs.get(number) else { return Ok(done) };
            let Series { file_system, cuts, .. } = series;
            say(&format!("{} on {file_system:?}: {cuts} cuts", subject.name()));
            let outcome = replay::run(*subject, series, &places.path().join(number.to_string()));
            if outcome.is_err() {
                // The others end as well.
                next.store(jobs.len(), Ordering::Relaxed);
            }
            done.push((number, outcome?));
        }
    };
    let mut parts = std::thread::scope(|scope| -> Result<Vec<_>> {
        let workers: Vec<_> = (0..options.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        let mut parts = Vec::new();
        for worker in workers {
            parts.extend(worker.join().map_err(|_| anyhow!("a worker panicked"))??);
        }
        Ok(parts)
    })?;
    parts.sort_by_key(|(number, _)| *number);
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (_, part) in parts {
        let same = |whole: &&mut Outcome| {
            whole.subject == part.subject && whole.file_system == part.file_system
        };
        match outcomes.last_mut().filter(same) {
            Some(whole) => whole.merge(part),
            None => outcomes.push(part),
        }
    }
    Ok(outcomes)
}

/// Replaces this process by one in its own mount namespace. No other process keeps a copy of its
/// mounts, which would hold a file system open, and its mounts end with it.
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
        "The subject works on a file system, on a loop device, on a FUSE file that logs every \
         write and flush, with the position in the log at every acknowledgement.",
        "A cut holds all writes before the last flush that precedes it, and of the later ones \
         half: in half of the cuts whole writes, in half pieces of 4 KiB. Half of the cuts are \
         drawn from all events, half lie at an acknowledgement.",
        "Numbers are cuts. Ahead: an upload has more than was acknowledged, and all of it is \
         right.",
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
        "s/cut",
        "",
    ];
    let mut table = Table::new("power failures", &head);
    for outcome in outcomes {
        let verdict = match (outcome.audio, outcome.found()) {
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
            number(outcome.seconds / outcome.cuts as f64),
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
        if outcome.audio && outcome.found() {
            let examples = outcome.examples.join("\n  ");
            bail!("{subject} on {file_system} does not survive:\n  {examples}");
        }
        if !outcome.audio && !outcome.found() && *cuts >= FOUND_WITHIN {
            bail!("{subject} on {file_system} is wrong, and {cuts} cuts did not show it");
        }
    }
    Ok(())
}
