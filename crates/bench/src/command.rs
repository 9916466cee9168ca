//! Other programs: run one to its end, and say what it said when it fails.
//!
//! Promise: an error names the program, its arguments and its own words; a missing program is named
//! with the package that holds it.

use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Runs `program` with `arguments` and returns what it printed.
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    finish(&mut command)
}

/// Runs a prepared command to its end and returns what it printed.
pub fn finish(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output: Output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {program}{}", package_hint(&program)))?;
    if !output.status.success() {
        bail!(
            "{command:?} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether `program` can be found.
pub fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn package_hint(program: &str) -> String {
    let package = match program {
        "ip" => "iproute2",
        "nginx" => "nginx-light",
        "fio" => "fio",
        "ethtool" => "ethtool",
        "mkfs.ext4" => "e2fsprogs",
        "mkfs.xfs" => "xfsprogs",
        "chrt" | "taskset" | "ionice" | "nsenter" | "setpriv" | "losetup" | "fincore" => {
            "util-linux"
        }
        _ => return String::new(),
    };
    format!(" (it comes with the package {package})")
}
