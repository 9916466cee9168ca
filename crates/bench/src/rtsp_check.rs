//! `rtsp-check`: what a server of RTSP does of what the RFCs ask for. Any server.
//!
//! Promise: each check has a name and the section that it is of, asks by a connection and a session of its own, and
//! says what it has seen. It needs a presentation that plays for some seconds, and changes nothing on the
//! server. It is no proof: a server that passes everything may still be wrong elsewhere.

mod client;
mod media;
mod messages;
mod scene;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;

use scene::Scene;

/// What `rtsp-check` is told.
#[derive(clap::Args)]
pub struct Options {
    /// The presentation, as in `rtsp://host:8554/path`.
    url: String,
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
    run: fn(&Scene) -> Result<Outcome>,
}

impl Check {
    const fn new(
        name: &'static str,
        section: &'static str,
        what: &'static str,
        run: fn(&Scene) -> Result<Outcome>,
    ) -> Self {
        Self { name, section, what, is_slow: false, run }
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
    checks: Vec<Line>,
}

/// What came of one.
#[derive(Serialize)]
struct Line {
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
    let is_wanted = |check: &&Check| {
        (options.slow || !check.is_slow)
            && (options.only.is_empty()
                || options.only.iter().any(|own| check.name.starts_with(own)))
    };
    let checks = messages::CHECKS.iter().chain(media::CHECKS).filter(is_wanted);
    if options.list {
        for check in checks {
            println!("{:<20} {:<14} {}", check.name, check.section, check.what);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let scene = Scene::new(&options.url)?;
    let mut report =
        Report { url: options.url.clone(), passed: 0, failed: 0, skipped: 0, checks: vec![] };
    for check in checks {
        let began = Instant::now();
        let (verdict, detail) = match (check.run)(&scene) {
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
        let line =
            Line { name, section, what, verdict, detail, seconds: began.elapsed().as_secs_f64() };
        if !options.json {
            print_line(&line);
        }
        report.checks.push(line);
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        let Report { passed, failed, skipped, .. } = report;
        println!("{passed} passed, {failed} failed, {skipped} skipped: {}", options.url);
    }
    Ok(if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_line(line: &Line) {
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
