//! Output of the commands to terminals, pipes and files.
//!
//! Promise: a closed pipe does not end a command and is no failure; a full disk is a failure.
//! `println!` and `eprintln!` panic on both, so the commands do not use them.

use std::fmt::{Arguments, Display};
use std::io::{self, Write as _};

use super::Failure;

/// Writes a line of the command's result to standard output.
pub(super) fn line(text: impl Display) -> Result<(), Failure> {
    write(format_args!("{text}\n"))
}

/// Writes text that has its own line ends to standard output.
pub(super) fn text(text: impl Display) -> Result<(), Failure> {
    write(format_args!("{text}"))
}

/// Writes bytes unchanged to standard output.
pub(super) fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    checked(out.write_all(bytes).and_then(|()| out.flush()))
}

fn write(text: Arguments<'_>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    checked(out.write_fmt(text).and_then(|()| out.flush()))
}

/// A closed pipe (`| head`) is no failure.
fn checked(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to standard output").into())
        }
        _ => Ok(()),
    }
}

/// Writes a line about the command's progress to standard error. A command continues when this
/// fails.
pub(super) fn notice(text: impl Display) {
    drop(writeln!(io::stderr().lock(), "{text}"));
}

/// How this program is called from the shell: by its path, if it was started by one.
pub(super) fn program() -> String {
    let path = std::env::args().next().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    match path.contains('/') && path.chars().all(is_plain) {
        true => path,
        false => "tactus".to_owned(),
    }
}

/// Writes the server's start messages to standard output. A server runs on when this fails.
pub(super) fn greeting(text: impl Display) {
    let mut out = io::stdout().lock();
    drop(out.write_fmt(format_args!("{text}")).and_then(|()| out.flush()));
}
