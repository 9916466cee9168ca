//! Power failures: builds the server and the bench, and lets the bench cut the power.
//!
//! Promise: the gate takes a thousand cuts of the server on each file system, some on failing disks, and
//! kills it. What a cut is, and who must survive it, is the bench's own business.

use anyhow::Result;

use crate::host;
use crate::step::Remark;
use crate::workspace::{Workspace, run};

/// What the gate asks for. The subjects that are known to be wrong are found out by the bench's tests.
const GATE: [&[&str]; 3] = [
    &["--cuts=1000", "--subject=tactus", "--jobs=10"],
    &["--cuts=100", "--subject=tactus-faulty", "--out=target/crash/faulty"],
    &["--kills=20"],
];

/// The gate's step.
pub(crate) fn check(workspace: &Workspace) -> Result<Remark> {
    for arguments in GATE {
        run_crash(workspace, &arguments.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    }
    Ok(None)
}

/// Runs `tactus-bench crash` with `arguments`. Not for release: the tests have built it so already, and
/// most of a cut is the kernel's time.
pub(crate) fn run_crash(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    host::set_up_for_tests(workspace)?;
    run(&mut workspace.cargo(&["build", "--locked", "--package=tactus"]))?;
    let bench = ["run", "--locked", "--package=tactus-bench", "--", "crash"];
    run(workspace.patient_cargo(&bench).args(arguments))
}
