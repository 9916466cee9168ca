//! `rtsp-check`: what a server of RTSP does of what the RFCs ask for. Any server.
//!
//! Promise: each check has a name and the section that it is of, asks by a connection and a session
//! of its own, and says what it has seen. It needs a presentation that plays for some seconds, and
//! changes nothing on the server but what it is told to record. What a server does not speak (2.0)
//! is skipped and named. It is no proof: a server that passes everything may still be wrong
//! elsewhere.

mod address;
mod digest;

mod client;
mod transport;
mod video_frame;

mod record_target;
mod scene;

mod media;
mod messages;
mod record;
mod two;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

use record_target::RecordTarget;
use scene::Scene;

/// What `rtsp-check` is told.
#[derive(clap::Args)]
pub struct Options {
    /// The presentation, as in `rtsp://host:8554/path` or `rtsp://name:password@host/path`.
    #[arg(required_unless_present_any = ["record", "list"])]
    url: Option<String>,
    /// Also record, to this address; `{}` in it becomes the name of the check.
    #[arg(long, value_name = "URL")]
    record: Option<String>,
    /// Also those that take minutes, as they wait for time-outs.
    #[arg(long)]
    slow: bool,
    /// Only those whose name begins so; may be given again.
    #[arg(long)]
    only: Vec<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Only name the checks.
    #[arg(long)]
    list: bool,
}

struct Check {
    name: &'static str,
    /// RFC and section.
    section: &'static str,
    /// What is asked for.
    what: &'static str,
    is_slow: bool,
    run: Run,
}

/// What a check needs.
enum Run {
    Playing(fn(&Scene) -> Result<Outcome>),
    /// The same of a server that speaks 2.0.
    PlayingTwo(fn(&Scene) -> Result<Outcome>),
    Recording(fn(&RecordTarget) -> Result<Outcome>),
}

impl Check {
    const fn new(
        name: &'static str,
        section: &'static str,
        what: &'static str,
        run: fn(&Scene) -> Result<Outcome>,
    ) -> Self {
        Self { name, section, what, is_slow: false, run: Run::Playing(run) }
    }

    const fn two(
        name: &'static str,
        section: &'static str,
        what: &'static str,
        run: fn(&Scene) -> Result<Outcome>,
    ) -> Self {
        Self { name, section, what, is_slow: false, run: Run::PlayingTwo(run) }
    }

    const fn record(
        name: &'static str,
        section: &'static str,
        what: &'static str,
        run: fn(&RecordTarget) -> Result<Outcome>,
    ) -> Self {
        Self { name, section, what, is_slow: false, run: Run::Recording(run) }
    }

    const fn slow(self) -> Self {
        Self { is_slow: true, ..self }
    }
}

/// How a check ends that has not failed.
enum Outcome {
    Passed(String),
    /// It does not apply.
    Skipped(String),
}

#[expect(clippy::unnecessary_wraps, reason = "the last expression of checks that may fail")]
fn passed(detail: impl Into<String>) -> Result<Outcome> {
    Ok(Outcome::Passed(detail.into()))
}

#[expect(clippy::unnecessary_wraps, reason = "the last expression of checks that may fail")]
fn skipped(reason: &str) -> Result<Outcome> {
    Ok(Outcome::Skipped(reason.to_owned()))
}

/// What came of all checks.
#[derive(Serialize)]
struct Report {
    url: String,
    passed: usize,
    failed: usize,
    skipped: usize,
    checks: Vec<CheckResult>,
}

/// What came of one.
#[derive(Serialize)]
struct CheckResult {
    name: &'static str,
    section: &'static str,
    what: &'static str,
    verdict: Verdict,
    detail: String,
    seconds: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// Checks a server. The exit code is 1 when something has failed.
///
/// # Errors
/// When there is nothing to check: no server, no description, no medium.
pub fn run(options: &Options) -> Result<ExitCode> {
    let has_what_it_needs = |check: &Check| match check.run {
        Run::Playing(_) | Run::PlayingTwo(_) => options.url.is_some(),
        Run::Recording(_) => options.record.is_some(),
    };
    let is_wanted = |check: &&Check| {
        (options.slow || !check.is_slow)
            && (options.only.is_empty()
                || options.only.iter().any(|own| check.name.starts_with(own)))
            && (options.list || has_what_it_needs(check))
    };
    let all = messages::CHECKS.iter().chain(media::CHECKS);
    let checks = all.chain(two::CHECKS).chain(record::CHECKS).filter(is_wanted);
    if options.list {
        for check in checks {
            println!("{:<20} {:<14} {}", check.name, check.section, check.what);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let scene = options.url.as_deref().map(Scene::new).transpose()?;
    let record_target =
        options.record.as_deref().map(|url| RecordTarget::new(url, "{}")).transpose()?;
    let played = scene.as_ref().map(Scene::url).into_iter();
    let url =
        played.chain(record_target.as_ref().map(RecordTarget::url)).collect::<Vec<_>>().join(" ");
    let mut report = Report { url, passed: 0, failed: 0, skipped: 0, checks: vec![] };
    for check in checks {
        let began = Instant::now();
        let came = run_one(check, scene.as_ref(), options.record.as_deref());
        let (verdict, detail) = match came {
            Ok(Outcome::Passed(detail)) => (Verdict::Passed, detail),
            Ok(Outcome::Skipped(reason)) => (Verdict::Skipped, reason),
            Err(error) => (Verdict::Failed, format!("{error:#}")),
        };
        *match verdict {
            Verdict::Passed => &mut report.passed,
            Verdict::Failed => &mut report.failed,
            Verdict::Skipped => &mut report.skipped,
        } += 1;
        let Check { name, section, what, .. } = *check;
        let line = CheckResult {
            name,
            section,
            what,
            verdict,
            detail,
            seconds: began.elapsed().as_secs_f64(),
        };
        if !options.json {
            print_line(&line);
        }
        report.checks.push(line);
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        let Report { ref url, passed, failed, skipped, .. } = report;
        println!("{passed} passed, {failed} failed, {skipped} skipped: {url}");
    }
    Ok(if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_one(check: &Check, scene: Option<&Scene>, record: Option<&str>) -> Result<Outcome> {
    let scene = || scene.context("it needs a presentation");
    match check.run {
        Run::Playing(run) => run(scene()?),
        Run::PlayingTwo(run) => match scene()? {
            scene if scene.speaks_two => run(scene),
            _ => skipped("it speaks 1.0 only"),
        },
        Run::Recording(run) => {
            run(&RecordTarget::new(record.context("it needs a place to record to")?, check.name)?)
        }
    }
}

fn print_line(line: &CheckResult) {
    let verdict = match line.verdict {
        Verdict::Passed => "ok",
        Verdict::Failed => "FAILED",
        Verdict::Skipped => "skipped",
    };
    let detail = match line.verdict {
        Verdict::Failed => format!("{}: {}", line.what, line.detail),
        _ => line.detail.clone(),
    };
    println!("{:<20} RFC {:<14} {verdict:<8} {detail}", line.name, line.section);
}
