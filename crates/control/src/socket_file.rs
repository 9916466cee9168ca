//! The file of a Unix socket that a server listens on, with mode, owner and group.
//!
//! Promise: no client can connect before the file has its mode, owner and group. The socket file of
//! a server that ended without removing it is replaced. The file of a running server, and any file
//! that is no socket, stays. At the end the file is removed if it still belongs to this server.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::unistd::{Group, User};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A socket file, as configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnixSocket {
    /// Its path.
    pub path: PathBuf,
    /// Its permissions: write permission for the file is permission to connect.
    pub mode: u32,
    /// Its user, by name or number; none: the server's.
    pub owner: Option<String>,
    /// Its group, by name or number; none: the server's.
    pub group: Option<String>,
}

/// The file of a listening socket. Dropping it removes the file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode, because another server may have replaced the file.
    file: (u64, u64),
}

impl SocketFile {
    /// Creates the file of a socket of this type, and listens. The socket does not block.
    ///
    /// # Errors
    /// When another server listens there, the file is no socket, a name is unknown, or the kernel
    /// refuses.
    pub fn bind(wanted: &UnixSocket, kind: SocketType) -> Result<(Self, OwnedFd)> {
        let path = &wanted.path;
        let (owner, group) = owners(wanted)?;
        // Without a lock, another server could bind the path between the test of an old file and
        // its removal.
        let directory = fs::File::open(directory_of(path)).with_context(|| cannot(path))?;
        lock(&directory, path)?;
        remove_stale(path, kind)?;
        let socket = socket(kind).with_context(|| cannot(path))?;
        let address = SocketAddrUnix::new(path).with_context(|| cannot(path))?;
        rustix::net::bind(&socket, &address).with_context(|| cannot(path))?;
        let prepared = || -> Result<_> {
            fs::set_permissions(path, fs::Permissions::from_mode(wanted.mode))?;
            if owner.is_some() || group.is_some() {
                let text = || format!("cannot give {} to its owner and group", path.display());
                std::os::unix::fs::chown(path, owner, group).with_context(text)?;
            }
            let found = fs::symlink_metadata(path)?;
            // Until here the kernel refuses every connection.
            rustix::net::listen(&socket, BACKLOG)?;
            Ok(Self { path: path.clone(), file: (found.dev(), found.ino()) })
        };
        let file = prepared().with_context(|| cannot(path)).inspect_err(|_| {
            fs::remove_file(path).ok();
        })?;
        Ok((file, socket))
    }

    /// Checks that [`Self::bind`] would work now, apart from a server that listens there.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn check(wanted: &UnixSocket) -> Result<()> {
        let path = &wanted.path;
        owners(wanted)?;
        fs::File::open(directory_of(path)).with_context(|| cannot(path))?;
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => Err(no_socket(path)),
            _ => Ok(()),
        }
    }

    /// The path of its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if !found.is_ok_and(|found| (found.dev(), found.ino()) == self.file) {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("cannot remove the socket {}: {error}", self.path.display());
        }
    }
}

/// Locks the directory of `path`. Another server holds the lock for a short time only, while it
/// binds. The directory `.tactus` of a volume stays locked, also by this server itself.
fn lock(directory: &fs::File, path: &Path) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        match flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Errno::WOULDBLOCK) => bail!(
                "{}: the directory {} is locked; choose a path outside of a volume's .tactus",
                cannot(path),
                directory_of(path).display()
            ),
            locked => return locked.with_context(|| cannot(path)),
        }
    }
}

/// How long a server waits for the lock.
const PATIENCE: Duration = Duration::from_secs(2);

/// Connections that the kernel queues; it takes its own maximum if that is less.
const BACKLOG: i32 = 1024;

fn socket(kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?)
}

/// Removes the socket file of a server that has ended.
fn remove_stale(path: &Path, kind: SocketType) -> Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.with_context(|| cannot(path))?,
    };
    if !found.file_type().is_socket() {
        return Err(no_socket(path));
    }
    let address = SocketAddrUnix::new(path).with_context(|| cannot(path))?;
    match rustix::net::connect(&socket(kind)?, &address) {
        Err(Errno::CONNREFUSED) => {
            tracing::info!("the socket {} of a server that ended is replaced", path.display());
            fs::remove_file(path).with_context(|| cannot(path))
        }
        Err(Errno::NOENT) => Ok(()),
        // A full queue (EAGAIN) belongs to a running server.
        Ok(()) | Err(Errno::AGAIN) => {
            bail!("{}: another server listens there; stop it, or choose another path", cannot(path))
        }
        Err(error) => Err(error).with_context(|| cannot(path)),
    }
}

fn cannot(path: &Path) -> String {
    format!("cannot listen on unix:{}", path.display())
}

fn no_socket(path: &Path) -> anyhow::Error {
    anyhow!("{}: a file that is no socket is there; choose another path", cannot(path))
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        // A name alone, as in a configuration that is named without a directory.
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

/// The numeric owner and group.
fn owners(wanted: &UnixSocket) -> Result<(Option<u32>, Option<u32>)> {
    let unknown = |kind, name: &str| anyhow!("this host has no {kind} {name:?}");
    let owner = wanted.owner.as_deref().map(|name| match name.parse() {
        Ok(number) => Ok(number),
        Err(_) => User::from_name(name)?
            .map(|user| user.uid.as_raw())
            .ok_or_else(|| unknown("user", name)),
    });
    let group = wanted.group.as_deref().map(|name| match name.parse() {
        Ok(number) => Ok(number),
        Err(_) => Group::from_name(name)?
            .map(|group| group.gid.as_raw())
            .ok_or_else(|| unknown("group", name)),
    });
    Ok((owner.transpose()?, group.transpose()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(wanted: &UnixSocket) -> Result<(SocketFile, OwnedFd)> {
        SocketFile::bind(wanted, SocketType::STREAM)
    }

    fn at(path: &Path) -> UnixSocket {
        UnixSocket { path: path.into(), mode: 0o600, owner: None, group: None }
    }

    #[test]
    fn a_name_alone_is_in_the_directory_of_the_process() {
        let directories = ["local.sock", "run/local.sock", "/local.sock"];
        let found = directories.map(|path| directory_of(Path::new(path)));
        assert_eq!(found, [Path::new("."), Path::new("run"), Path::new("/")]);
    }

    #[test]
    fn a_live_socket_is_kept_a_stale_one_replaced_and_ours_removed_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("http.sock");
        // The socket file of a server that ended without removing it.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let first = bind(&at(&path)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let error = format!("{:#}", bind(&at(&path)).unwrap_err());
        assert!(error.contains("another server listens there"), "{error}");
        assert!(path.exists());
        // The file of another server must stay.
        fs::remove_file(&path).unwrap();
        let second = bind(&at(&path)).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_locked_directory_is_an_error_and_no_wait_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let held = fs::File::open(dir.path()).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let path = dir.path().join("local.sock");
        let error = format!("{:#}", bind(&at(&path)).unwrap_err());
        assert!(error.contains("is locked") && !path.exists(), "{error}");
        drop(held);
        assert!(bind(&at(&path)).is_ok());
    }

    #[test]
    fn a_file_that_is_no_socket_and_unknown_names_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "precious").unwrap();
        let error = format!("{:#}", bind(&at(&path)).unwrap_err());
        assert!(error.contains("no socket"), "{error}");
        assert!(SocketFile::check(&at(&path)).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        let path = dir.path().join("s");
        let nobody = UnixSocket { group: Some("no-such-group".into()), ..at(&path) };
        assert!(bind(&nobody).is_err() && !path.exists());
        assert!(bind(&at(&dir.path().join("none/s"))).is_err());
    }
}
