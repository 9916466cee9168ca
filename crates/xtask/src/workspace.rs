//! Where the source tree and its build directory are, and how commands are run in it.
//!
//! Promise: every command is printed before it runs, runs at the root of the tree, and its failure
//! is an error that repeats the command.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The source tree.
pub(crate) struct Workspace {
    /// The directory of the workspace's manifest.
    pub(crate) root: PathBuf,
    /// Cargo's build directory.
    pub(crate) target: PathBuf,
    /// Nobody watches: what hangs must be ended.
    pub(crate) unattended: bool,
}

impl Workspace {
    /// The workspace that the current directory lies in.
    pub(crate) fn find() -> Result<Self> {
        let manifest = output(Command::new("cargo").args([
            "locate-project",
            "--workspace",
            "--message-format=plain",
        ]))?;
        let root = PathBuf::from(manifest.trim())
            .parent()
            .context("the workspace's manifest lies in a directory")?
            .to_path_buf();
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(chosen) => std::path::absolute(chosen)?,
            None => root.join("target"),
        };
        Ok(Self { root, target, unattended: false })
    }

    /// A command at the root of the tree.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }

    /// `cargo` at the root of the tree.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("cargo");
        command.args(arguments);
        command
    }

    /// `cargo` at the root of the tree; unattended it is ended, with all its children, after
    /// [`PATIENCE`].
    pub(crate) fn patient_cargo(&self, arguments: &[&str]) -> Command {
        if !self.unattended {
            return self.cargo(arguments);
        }
        let mut command = self.command("timeout");
        command.args(["--kill-after=10s", PATIENCE, "cargo"]).args(arguments);
        command
    }
}

/// What hangs fails by its own name, and does not keep a machine for hours. The longest step takes
/// two thirds of it on two cores.
const PATIENCE: &str = "60m";

/// Prints and runs `command`; its failure is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", shown(command));
    let status = command.status().with_context(|| format!("cannot start: {}", shown(command)))?;
    ensure!(status.success(), "failed ({status}): {}", shown(command));
    Ok(())
}

/// What the output of tests says about failures.
#[derive(Default)]
pub(crate) struct Failures {
    lines: Vec<String>,
    /// The next line says why.
    is_reason: bool,
}

impl Failures {
    /// What comes after so many lines is left out: there is the whole output.
    const LINES_MAX: usize = 60;

    /// Takes the next line of the output.
    pub(crate) fn read(&mut self, line: &str) {
        let is_place = line.contains("panicked at ");
        let is_test = line.ends_with(" ... FAILED") || line.trim_start().starts_with("`-p ");
        if (is_place || is_test || self.is_reason) && self.lines.len() < Self::LINES_MAX {
            self.lines.push(line.trim_end().to_owned());
        }
        self.is_reason = is_place;
    }
}

impl std::fmt::Display for Failures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lines.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// Runs `command` silently; whether it succeeded. A program that is not there counts as a failure.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// What `command` writes to its standard output; its failure is an error with what it complained.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let done = command.output().with_context(|| format!("cannot start: {}", shown(command)))?;
    if !done.status.success() {
        let complaint = String::from_utf8_lossy(&done.stderr);
        bail!("failed ({}): {}\n{}", done.status, shown(command), complaint.trim());
    }
    String::from_utf8(done.stdout).with_context(|| format!("not UTF-8: {}", shown(command)))
}

/// The command as a person would type it, with the variables it sets.
pub(crate) fn shown(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        value.map(|value| format!("{}={:?}", name.to_string_lossy(), value.to_string_lossy()))
    });
    let words = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned());
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_command_is_named_in_the_error() {
        let error = run(Command::new("false").arg("why")).unwrap_err();
        assert!(error.to_string().ends_with("false why"), "{error}");
    }

    #[test]
    fn failed_tests_are_named_in_the_error() {
        let said = "test a::b ... ok\ntest a::c ... FAILED\nthread 'a::c' panicked at x.rs:1:2:\n\
                    it is not so\nmore";
        let mut failures = Failures::default();
        said.lines().for_each(|line| failures.read(line));
        let expected =
            "\n    test a::c ... FAILED\n    thread 'a::c' panicked at x.rs:1:2:\n    it is not so";
        assert_eq!(failures.to_string(), expected);
    }

    #[test]
    fn a_program_that_is_not_there_does_not_succeed() {
        assert!(!succeeds(&mut Command::new("no-such-program-anywhere")));
    }
}
