//! Programs that others have written, run to their end.

use std::ffi::OsStr;
use std::process::{Command, Output};

/// Runs `command` with `args` until it ends by itself, which is to be soon.
pub(crate) fn run<S: AsRef<OsStr>>(
    mut command: Command,
    args: impl IntoIterator<Item = S>,
) -> Output {
    command.args(args).output().expect("it was found")
}

/// What it has said, for who asks why.
pub(crate) fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// A script of the tests.
pub(crate) fn script(name: &str) -> String {
    format!("{}/tests/clients/{name}", env!("CARGO_MANIFEST_DIR"))
}
