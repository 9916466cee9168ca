//! Power failures: builds the server and the bench, and lets the bench cut the power.
//!
//! Promise: the gate takes a thousand cuts of the server on each file system, some more on failing
//! disks, and kills it; and it sees that the same replay finds out a server and writers that are
//! wrong. What a cut is, and who must survive it, is the bench's own business.

use std::fs::{self, File};
use std::process::Stdio;

use anyhow::Result;

use crate::host;
use crate::step::Remark;
use crate::workspace::{Workspace, run};

/// What the gate asks for. Most of a cut is waiting, so many disks go beside each other. How soon
/// the server is ready after a kill is not judged on a machine that may be busy with anything else.
const GATE: [&[&str]; 4] = [
    &["--cuts=1000", "--subject=tactus", "--jobs=10"],
    &["--cuts=100", "--subject=tactus-faulty", "--out=target/crash/faulty"],
    &["--cuts=300", "--until-found", WRONG, "--jobs=6", "--out=target/crash/wrong"],
    &["--kills=25", "--ready=60", "--out=target/crash/kills"],
];

/// No flush of folders, an offset from the size, a second try of a failed flush: in the server,
/// where it can be told to, and in writers of a few lines.
const WRONG: &str = "--subject=tactus-folders,tactus-sizes,fsync-rename,chunks-size,fsync-retried";

/// The gate's step beside others: a process whose output is printed when it ends.
pub(crate) fn check_apart(workspace: &Workspace) -> Result<Remark> {
    let said = workspace.target.join("crash.log");
    let out = File::create(&said)?;
    let mut command = workspace.command("timeout");
    // Not by its path: the build step may have replaced this program.
    let own = format!("/proc/{}/exe", std::process::id());
    command.args(["--kill-after=10s", PATIENCE, &own, "crash"]);
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    let result = run(&mut command);
    println!("{}", String::from_utf8_lossy(&fs::read(&said)?));
    result.map(|()| None)
}

/// Upper bound of the time of the step.
const PATIENCE: &str = "30m";

/// The step alone.
pub(crate) fn check(workspace: &Workspace) -> Result<Remark> {
    for arguments in GATE {
        run_crash(workspace, &arguments.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    }
    Ok(None)
}

/// Runs `tactus-bench crash` with `arguments`. Not for release: the tests have built it so already,
/// and most of a cut is the kernel's time.
pub(crate) fn run_crash(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    host::set_up_for_tests(workspace)?;
    run(&mut workspace.cargo(&["build", "--locked", "--package=tactus"]))?;
    let bench = ["run", "--locked", "--package=tactus-bench", "--", "crash"];
    run(workspace.patient_cargo(&bench).args(arguments))
}
