//! Programs that others have written, run to their end.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Fails by name when `program` is not there.
pub(crate) fn installed(program: &str, package: &str) -> String {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|dir| dir.join(program));
    let found = found.find(|file| file.is_file());
    let found =
        found.unwrap_or_else(|| panic!("{program} is missing: install the package {package}"));
    found.to_str().expect("a plain name").to_owned()
}

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

/// Where clients of the tests are that come from elsewhere than Debian.
pub(crate) fn clients() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target");
    target.join("tools/clients")
}

/// A script of the tests.
pub(crate) fn script(name: &str) -> String {
    format!("{}/tests/clients/{name}", env!("CARGO_MANIFEST_DIR"))
}
