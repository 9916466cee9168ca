//! Foreign clients of the tests that are no Debian packages: from npm and from the Python index.
//!
//! Promise: each is one exact version, with its hash, and lies in the build directory; nothing of
//! the machine's own is changed. What is there already, and of these versions, is left as it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host;
use crate::step::Remark;
use crate::workspace::{Workspace, run};

/// Our scripts for them, and the lists of what they are.
const SOURCE: &str = "crates/server/tests/clients";

/// Programs that the tests play against, and these clients.
pub(crate) fn set_up(workspace: &Workspace) -> Result<Remark> {
    let remark = host::set_up_for_tests(workspace)?;
    host::set_up_for_python_tools()?;
    let place = workspace.target.join("tools/clients");
    fs::create_dir_all(&place)?;
    let mut lists = Vec::new();
    for file in files(&workspace.root.join(SOURCE))? {
        let name = file.file_name().context("a file has a name")?;
        let text = fs::read(&file)?;
        fs::write(place.join(name), &text)?;
        if name == "package-lock.json" || name == "requirements.txt" {
            lists.extend(text);
        }
    }
    let done = place.join("installed");
    if fs::read(&done).is_ok_and(|installed| installed == lists) {
        return Ok(remark);
    }
    run(Command::new("npm").current_dir(&place).args([
        "ci",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
    ]))?;
    let python = place.join("python");
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&python))?;
    run(Command::new(python.join("bin/pip"))
        .args(["install", "--quiet", "--only-binary=:all:", "--require-hashes", "--requirement"])
        .arg(place.join("requirements.txt")))?;
    fs::write(done, lists)?;
    Ok(remark)
}

/// In the same order on every machine.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}
