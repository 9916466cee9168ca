//! Builds the server and the bench for release and runs one bench.
//!
//! Promise: what is measured is what the tree holds now. Which benches there are, and what they
//! write, is the bench's own business.

use anyhow::Result;

use crate::host;
use crate::mediamtx;
use crate::workspace::{Workspace, run};

/// Runs `tactus-bench` with `arguments`.
pub(crate) fn run_bench(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    host::set_up_for_benches()?;
    if arguments.first().is_some_and(|name| name == "rtsp-many") {
        mediamtx::set_up(workspace)?;
    }
    run(&mut workspace.cargo(&[
        "build",
        "--release",
        "--locked",
        "--package=tactus",
        "--package=tactus-bench",
    ]))?;
    run(workspace.command(workspace.target.join("release/tactus-bench")).args(arguments))
}
