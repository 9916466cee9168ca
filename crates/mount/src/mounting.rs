//! The life of a mount: from the checks before it to its end.
//!
//! Promise: the mount ends by umount(8), `fusermount3 -u`, SIGTERM, SIGINT or SIGHUP, and nothing
//! is left of it, whether or not programs use it at that time. Nothing here looks into the mount:
//! no thread waits for a request that it would have to answer itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use fuser::{Config, MountOption, Session};
use rustix::mount::UnmountFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::connections::Connections;
use crate::library::LibraryFilesystem;
use crate::options::MountOptions;

/// Why a mount ends.
enum End {
    /// It was unmounted.
    Unmounted(io::Result<()>),
    Signal,
}

/// Checks the directory `place` and returns its full path.
///
/// # Errors
/// If it cannot be a mount point.
pub fn prepare(place: &Path) -> Result<PathBuf> {
    let shown = place.display();
    let found = fs::metadata(place).and_then(|found| Ok((found, place.canonicalize()?)));
    match found {
        Ok((found, path)) if found.is_dir() => Ok(path),
        Ok(_) => bail!("{shown} is not a directory"),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()) => {
            bail!("{shown} is still a mount of a program that has ended; run: umount {shown}")
        }
        Err(error) => Err(anyhow!("{shown} cannot be a mount point: {error}")),
    }
}

/// Mounts the library at `place`, a path of [`prepare`], and serves it until it ends. `ready` is
/// called when it can be used.
///
/// # Errors
/// If the server cannot be reached, or the kernel refuses the mount.
pub fn mount(options: &MountOptions, place: &Path, ready: impl FnOnce()) -> Result<()> {
    let socket = options.socket.display();
    let connections = Connections::new(&options.socket)
        .with_context(|| format!("no server is reached at {socket}; see [local] path"))?;
    let writing = options.writable.then(|| Connections::new(&options.socket)).transpose();
    let writing = writing.context("no connection for what is written; see [local] clients_max")?;
    let filesystem = LibraryFilesystem::new(connections, writing, options)
        .with_context(|| format!("{} cannot be mounted", options.path))?;
    let wakefulness = Arc::clone(&filesystem.wakefulness);
    let (ends, end) = channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("signals")?;
    let by_signal = ends.clone();
    std::thread::Builder::new().name("tactus-signals".to_owned()).spawn(move || {
        for _ in &mut signals {
            // After the end nobody listens.
            by_signal.send(End::Signal).ok();
        }
    })?;

    let mut session = Session::new(filesystem, place, &config(options))
        .map_err(|error| refused(place, &error))?;
    wakefulness.watch(&session)?;
    let mut unmounter = session.unmount_callable();
    std::thread::Builder::new().name("tactus-mount".to_owned()).spawn(move || {
        ends.send(End::Unmounted(session.run())).ok();
    })?;
    read_ahead(place);
    ready();

    let ended = end.recv().context("the mount's thread has ended")?;
    let End::Signal = ended else { return finish(ended) };
    if let Err(error) = unmounter.unmount() {
        tracing::debug!("{} is in use ({error}) and detached", place.display());
        // Programs that use it get ENOTCONN when this process has ended.
        if let Err(error) = rustix::mount::unmount(place, UnmountFlags::DETACH) {
            tracing::warn!("{} cannot be unmounted: {error}", place.display());
        }
    }
    match end.recv_timeout(LAST) {
        Ok(ended) => finish(ended),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(()),
    }
}

fn finish(end: End) -> Result<()> {
    match end {
        End::Unmounted(Err(error)) => Err(anyhow!("the kernel cannot be asked: {error}")),
        End::Unmounted(Ok(())) | End::Signal => Ok(()),
    }
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    let is_named = options.others.iter().any(|option| matches!(option, MountOption::FSName(_)));
    if !is_named {
        config.mount_options.push(MountOption::FSName("tactus".to_owned()));
    }
    config.mount_options.push(MountOption::Subtype("tactus".to_owned()));
    let access = if options.writable { MountOption::RW } else { MountOption::RO };
    config.mount_options.extend([access, MountOption::DefaultPermissions]);
    config.mount_options.extend(options.others.iter().cloned());
    config.acl = options.access;
    config.n_threads = Some(if options.writable { WRITING_THREADS } else { THREADS });
    config.clone_fd = true;
    config
}

fn refused(place: &Path, error: &io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "; the mount needs /dev/fuse and, without root, fusermount3",
        io::ErrorKind::PermissionDenied => "; see user_allow_other in /etc/fuse.conf",
        _ => "",
    };
    anyhow!("cannot mount at {}: {error}{hint}", place.display())
}

/// Lets the kernel read further ahead, where this process may: each read then is one of 1 MiB.
fn read_ahead(place: &Path) {
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else { return };
    let Some(device) = device(&mounts, place) else { return };
    let file = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = fs::write(&file, READ_AHEAD_KIB.to_string()) {
        tracing::debug!("{file} stays as it is: {error}");
    }
}

/// The device of the last mount at `place`, by proc_pid_mountinfo(5).
fn device<'a>(mounts: &'a str, place: &Path) -> Option<&'a str> {
    let place = place.to_str()?;
    let mut found = mounts.lines().rev().filter_map(|line| {
        let mut fields = line.split(' ');
        let device = fields.nth(2)?;
        (unescaped(fields.nth(1)?) == place).then_some(device)
    });
    found.next()
}

/// Spaces and the like are octal there.
fn unescaped(field: &str) -> String {
    let mut text = String::new();
    let mut rest = field;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        let code = after.get(..3).and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(code) => text.push(char::from(code)),
            None => return field.to_owned(),
        }
        rest = &after[3..];
    }
    text.push_str(rest);
    text
}

/// Threads for requests. They wait for names only; reads are answered elsewhere.
const THREADS: usize = 4;

/// Those of a mount that writes: some of them wait for flushes.
const WRITING_THREADS: usize = 16;

/// Time for the kernel to end its requests after the mount was detached.
const LAST: Duration = Duration::from_secs(1);

/// Two requests of the largest size.
const READ_AHEAD_KIB: u32 = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_a_mount_is_found_by_its_place() {
        let mounts = "22 1 0:21 / /proc rw - proc proc rw\n\
                      90 1 0:50 / /mnt/a\\040b ro - fuse.tactus tactus ro\n\
                      91 1 0:51 / /mnt/a\\040b ro - fuse.tactus tactus ro\n";
        assert_eq!(device(mounts, Path::new("/mnt/a b")), Some("0:51"));
        assert_eq!(device(mounts, Path::new("/mnt")), None);
    }

    #[test]
    fn only_a_directory_can_be_a_mount_point() {
        assert!(prepare(Path::new("/proc/self/status")).is_err());
        assert!(prepare(Path::new("/nowhere/at/all")).is_err());
        assert_eq!(prepare(Path::new("/proc/..")).ok(), Some(PathBuf::from("/")));
    }
}
