//! `tactus doctor`: reports how the host can be improved.

use std::path::PathBuf;

use anyhow::Context;
use tactus_config::Config;

use super::place::PLACEMENT;
use super::token::Credentials;
use super::{Failure, console};
use crate::doctor::{Facts, Finding, Requirements, State, judge};

/// Checks the host, and says what to change and what it costs to leave it
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus doctor                       the machine and its network
  tactus doctor /srv/media            and the disk of this directory
  tactus doctor /srv/media --json     for programs
  tactus doctor --server http://127.0.0.1:9464/
                                      also what a running server uses of its cores

It changes nothing. A disk without a model is read for a moment, as at a start. Run it as the user
who runs the server, so that rights are right.

Exit codes: 0 nothing is bad; 1 something is bad: a promise cannot be kept; 2 wrong arguments.")]
pub(super) struct Doctor {
    /// A directory that is to be served
    dir: Option<PathBuf>,
    /// Configuration file whose sizes and limits are wanted
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A running server, like http://127.0.0.1:9464/
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    credentials: Credentials,
}

#[derive(serde::Serialize)]
struct Report<'a> {
    /// The worst state of all findings.
    state: State,
    findings: &'a [Finding],
}

impl Doctor {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut config = match &self.config {
            Some(file) => Config::read(file).map_err(Failure::usage)?,
            None => Config::unconfigured(),
        };
        let dir = self.dir.or_else(|| config.volumes.first().map(|volume| volume.path.clone()));
        let facts = Facts::look(dir.as_deref()).map_err(|error| {
            let dir = dir.unwrap_or_default();
            Failure::usage(format!("{}: {error}; name a directory", dir.display()))
        })?;
        // The memory of a server depends on the disks that it serves.
        if let Some(dir) = facts.volume.as_ref().map(|volume| volume.path.clone())
            && config.volumes.is_empty()
        {
            config.serve_only(&dir);
        }
        let needs = Requirements::of(&config, facts.machine.memory);
        let mut findings = judge::all(&facts, &needs);
        if let Some(server) = &self.server {
            findings.extend(judge::shares(&PLACEMENT.all(server, &self.credentials)?));
        }
        if self.json {
            let state = findings.iter().map(|finding| finding.state).max().unwrap_or(State::Ok);
            let report = Report { state, findings: &findings };
            let json = serde_json::to_string_pretty(&report).context("cannot write JSON")?;
            console::line(json)?;
        } else {
            console::text(text(&findings))?;
        }
        if judge::any_bad(&findings) { Err(Failure::Shown) } else { Ok(()) }
    }
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let state = match finding.state {
            State::Ok => "ok  ",
            State::Warn => "warn",
            State::Bad => "BAD ",
        };
        text += &format!("{state}  {:12} {}\n", finding.check, finding.found);
        if let Some(cost) = finding.cost {
            text += &format!("      {:12} cost: {cost}\n", "");
        }
        if let Some(fix) = &finding.fix {
            text += &format!("      {:12} change: {fix}\n", "");
        }
    }
    let count = |state| findings.iter().filter(|finding| finding.state == state).count();
    let (bad, warn) = (count(State::Bad), count(State::Warn));
    text + &match (bad, warn) {
        (0, 0) => "\nThis host is ready.\n".to_owned(),
        (0, _) => {
            format!("\n{warn} could be better; the server works and says what it gives up.\n")
        }
        _ => {
            format!("\n{bad} bad: a promise cannot be kept on this host; {warn} could be better.\n")
        }
    }
}
