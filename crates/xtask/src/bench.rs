//! Builds the server and the bench for release and runs one bench.
//!
//! Promise: what is measured is what the tree holds now, unless the arguments name binaries. Which
//! benches there are, and what they write, is the bench's own business.

use anyhow::Result;

use crate::clients;
use crate::host;
use crate::mediamtx;
use crate::workspace::{Workspace, run};

/// Runs `tactus-bench` with `arguments`.
pub(crate) fn run_bench(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    host::set_up_for_benches()?;
    if arguments.first().is_some_and(|name| name == "rtsp-many") {
        mediamtx::set_up(workspace)?;
    }
    if arguments.first().is_some_and(|name| name == "seeks") {
        clients::set_up(workspace)?;
    }
    let mut build = workspace.cargo(&["build", "--release", "--locked", "--package=tactus-bench"]);
    if !brings_its_server(arguments) {
        build.arg("--package=tactus");
    }
    run(&mut build)?;
    run(workspace.command(workspace.target.join("release/tactus-bench")).args(arguments))
}

/// Whether `against` is told of both servers, so that none is built.
fn brings_its_server(arguments: &[String]) -> bool {
    let names_it = |argument: &String| argument == "--after" || argument.starts_with("--after=");
    arguments.first().is_some_and(|name| name == "against") && arguments.iter().any(names_it)
}
