//! `tactus mount`: the library of a running server as a directory of this machine.
//!
//! Promise: with `--background` the command returns when the directory can be used, or with the
//! reason why it cannot.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use rustix::io::Errno;
use tactus_config::LogForm;
use tactus_mount::MountOptions;

use super::{Failure, console};
use crate::supervisor;

/// Mounts the library of a server on this machine as a directory
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus mount /mnt/films                            all titles as files, until ctrl-c
  tactus mount /mnt/films --background               the same; returns when it is mounted
  tactus mount /mnt/films -o rw                      programs may write as well
  tactus mount /mnt/films --path /films -o allow_other
  tactus mount /mnt/play --paced                     reads at the titles' own rates
  fusermount3 -u /mnt/films                          end it; as root also: umount /mnt/films

The server needs [local] in its configuration, and this user must be admitted there; for -o rw also
by write_users or write_groups.

Options of -o: ro (the default), rw, allow_other, allow_root, auto_unmount, attr_timeout=SECONDS,
entry_timeout=SECONDS, uid=N, gid=N, umask=OCTAL, fsname=NAME, and the usual exec, noexec, suid,
nosuid, dev, nodev, atime, noatime.

With --background the log goes to the journal, if the machine has one: journalctl -t tactus-mount.

Exit codes: 0 unmounted; 1 failed; 2 wrong arguments.")]
pub(super) struct Mount {
    /// The directory
    #[arg(value_name = "DIR")]
    place: PathBuf,
    /// The server's socket: [local] path of its configuration
    #[arg(long, value_name = "PATH", default_value = "/run/tactus/local.sock")]
    socket: PathBuf,
    /// Mount only this directory of the library
    #[arg(long, value_name = "PATH", default_value = "/")]
    path: String,
    /// Answer reads of a title no faster than its own rate
    #[arg(long)]
    paced: bool,
    /// Read all bytes through the server, in the time that its streams leave over
    #[arg(long)]
    no_passthrough: bool,
    /// Return when it is mounted
    #[arg(short, long)]
    background: bool,
    /// Options of mount(8), separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// The child of --background
    #[arg(long, hide = true)]
    detached: bool,
}

impl Mount {
    pub(super) fn run(self) -> Result<(), Failure> {
        let place = tactus_mount::prepare(&self.place)?;
        let socket = std::path::absolute(&self.socket).context("the current directory is gone")?;
        let mut options = MountOptions::new(socket);
        options.path = self.path;
        options.paced = self.paced;
        options.passthrough = !self.no_passthrough;
        for list in &self.options {
            options.take(list).map_err(Failure::usage)?;
        }
        if self.background && !self.detached {
            return detach();
        }
        super::log(LogForm::Text);
        if self.detached {
            // It belongs to no terminal and holds no directory.
            rustix::process::setsid().context("no session of its own")?;
            rustix::process::chdir("/").context("cannot leave the directory")?;
        }
        let shown = place.display();
        let ready = || {
            console::greeting(format_args!(
                "{READY}{shown}; end it with: fusermount3 -u {shown}\n"
            ));
            supervisor::ready();
            if self.detached {
                close_output();
            }
        };
        Ok(tactus_mount::mount(&options, &place, ready)?)
    }
}

/// Starts this command once more, without a terminal, and waits until it has mounted.
fn detach() -> Result<(), Failure> {
    let is_other = |argument: &OsString| argument != "--background" && argument != "-b";
    let arguments = std::env::args_os().skip(1).filter(is_other);
    let program = std::env::current_exe().context("this program has no path")?;
    let mut child = Command::new(program)
        .args(arguments)
        .arg("--detached")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("no process for the mount")?;
    let output = child.stdout.take().context("no output of the mount")?;
    let first = BufReader::new(output).lines().next();
    match first {
        Some(Ok(line)) if line.starts_with(READY) => console::line(line),
        _ => {
            let status = child.wait().context("no end of the mount")?;
            // It has said why.
            Err(Failure::Several(status.code().and_then(|code| code.try_into().ok()).unwrap_or(1)))
        }
    }
}

/// Whoever has started the command waits for the end of its output. The log goes to the journal of
/// the system, if there is one.
fn close_output() {
    let null = File::options().read(true).write(true).open("/dev/null");
    let Ok(null) = null.inspect_err(|error| tracing::warn!("the output stays open: {error}"))
    else {
        return;
    };
    let log = journal(Path::new(JOURNAL)).map_or_else(|_| null.as_fd().try_clone_to_owned(), Ok);
    let closed = log.map_err(|_| Errno::MFILE).and_then(|log| {
        rustix::stdio::dup2_stdout(&null).and_then(|()| rustix::stdio::dup2_stderr(log))
    });
    if closed.is_err() {
        tracing::warn!("the output stays open");
    }
}

/// A stream whose lines become entries of the journal (the protocol of `sd_journal_stream_fd(3)`):
/// name, unit, priority, then whether lines have priorities of their own, and whether they are
/// forwarded to syslog, to the kernel's log and to the console.
fn journal(place: &Path) -> std::io::Result<OwnedFd> {
    let mut stream = UnixStream::connect(place)?;
    stream.write_all(b"tactus-mount\n\n6\n0\n0\n0\n0\n")?;
    Ok(stream.into())
}

/// Where the journal takes streams.
const JOURNAL: &str = "/run/systemd/journal/stdout";

/// How the line begins that says that the mount can be used.
const READY: &str = "mounted at ";

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_log_of_a_mount_in_the_background_is_a_stream_of_the_journal() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = dir.path().join("stdout");
        assert!(journal(&place).is_err(), "there is none");
        let listener = UnixListener::bind(&place).expect("a socket");
        let mut log = File::from(journal(&place).expect("a stream"));
        let (stream, _) = listener.accept().expect("a connection");
        writeln!(log, "the server has gone").expect("it takes lines");
        drop(log);
        let lines: Vec<_> = BufReader::new(stream).lines().map_while(Result::ok).collect();
        assert_eq!(lines, ["tactus-mount", "", "6", "0", "0", "0", "0", "the server has gone"]);
    }
}
