//! Power failures: builds the server and the bench, and lets the bench cut the power.
//!
//! Promise: the gate takes a thousand cuts of the server on each file system, some more on failing
//! disks, and kills it; and it sees that the same replay finds out a server and writers that are
//! wrong. What a cut is, and who must survive it, is the bench's own business.

use anyhow::Result;

use crate::host;
use crate::step::Remark;
use crate::workspace::{Workspace, run};

/// What the gate asks for: what is in one row runs one after the other, and the rows beside each
/// other. Most of a cut is waiting, so many disks go beside each other. How soon the server is
/// ready after a kill is not judged on a machine that may be busy with anything else.
const ROWS: [&[&[&str]]; 3] = [
    &[&["--cuts=1000", "--subject=tactus", "--jobs=10"]],
    &[
        &["--cuts=100", "--subject=tactus-local", "--out=target/crash/local"],
        &["--cuts=50", "--subject=tactus-memory", "--out=target/crash/memory"],
        &["--cuts=30", "--subject=tactus-mount", "--out=target/crash/mount"],
    ],
    &[
        &["--kills=25", "--ready=60", "--out=target/crash/kills"],
        &["--cuts=300", "--until-found", WRONG, "--jobs=6", "--out=target/crash/wrong"],
        &["--cuts=100", "--subject=tactus-faulty", "--out=target/crash/faulty"],
    ],
];

/// No flush of folders, an offset from the size, a second try of a failed flush: in the server,
/// where it can be told to, and in writers of a few lines.
const WRONG: &str = "--subject=tactus-folders,tactus-sizes,fsync-rename,chunks-size,fsync-retried";

/// The step of the gate.
pub(crate) fn check(workspace: &Workspace) -> Result<Remark> {
    build(workspace)?;
    let cut = |arguments: &[&str]| {
        cut(workspace, &arguments.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    std::thread::scope(|scope| {
        let cut = &cut;
        let rows = ROWS.map(|row| scope.spawn(move || row.iter().try_for_each(|words| cut(words))));
        let ended = rows.map(|row| row.join().expect("it does not panic"));
        ended.into_iter().collect::<Result<()>>()
    })?;
    Ok(None)
}

/// Runs `tactus-bench crash` with `arguments`.
pub(crate) fn run_crash(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    build(workspace)?;
    cut(workspace, arguments)
}

/// Builds the server and the bench by the command of the test suite. Asked for less, Cargo finds
/// other features for the crates of others and compiles most of them again. Not for release: most
/// of a cut is the kernel's time.
fn build(workspace: &Workspace) -> Result<()> {
    host::set_up_for_tests(workspace)?;
    run(&mut workspace.cargo(&["test", "--workspace", "--locked", "--no-run"]))
}

fn cut(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let bench = workspace.target.join("debug/tactus-bench");
    run(workspace.command(bench).arg("crash").args(arguments))
}
