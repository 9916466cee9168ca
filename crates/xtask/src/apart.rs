//! Steps beside others: processes of their own, whose output is printed when they end.
//!
//! Promise: a step in the background takes only processor time that no other process wants, and
//! the kernel counts it as `nice` (proc_stat(5)). What hangs is ended with its children.

use std::fs::{self, File};
use std::process::Stdio;

use anyhow::Result;

use crate::step::{Step, Turn};
use crate::workspace::{Workspace, run};

/// Runs `step` by itself.
pub(crate) fn run_apart(workspace: &Workspace, step: &Step) -> Result<()> {
    let name = step.name;
    let priority: &[&str] = match step.turn {
        Turn::Background => &["chrt", "--idle", "0", "nice", "--adjustment=19"],
        Turn::Foreground | Turn::Beside => &[],
    };
    // Not by its path: the build step may have replaced this program.
    let own = format!("/proc/{}/exe", std::process::id());
    let words =
        [&["timeout", "--kill-after=10s", PATIENCE], priority, &[&own, name], step.arguments]
            .concat();
    fs::create_dir_all(&workspace.target)?;
    let said = workspace.target.join(format!("{name}.log"));
    let out = File::create(&said)?;
    let mut command = workspace.command(words[0]);
    command.args(&words[1..]);
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    let result = run(&mut command);
    println!("{}", String::from_utf8_lossy(&fs::read(&said)?));
    result
}

/// Upper bound of the time of one step. The longest takes a quarter of it.
const PATIENCE: &str = "60m";
