//! The identity of a volume, and the identity that the host expects in a directory.
//!
//! Promise: a writable volume has a random identity in its own directory, and the host stores it
//! elsewhere too. This detects an empty mount point or another disk: nothing is stored there until
//! the operator accepts it. No titles are stored here.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tactus_media::RESERVED;

use super::StoreId;

/// The file of a volume's identity, in its own directory.
const FILE: &str = "volume";
/// Upper bound of an identity file, in bytes.
const BYTES_MAX: u64 = 4096;

/// A volume's identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity(StoreId);

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Identity {
    /// Reads the identity of the volume at `root`; none if it has none.
    ///
    /// # Errors
    /// When it cannot be read, or is invalid.
    pub fn of(root: &Path) -> io::Result<Option<Self>> {
        read(&root.join(RESERVED).join(FILE))
    }

    /// Reads the identity of the volume at `root`, or creates one.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn made(root: &Path) -> io::Result<Self> {
        if let Some(own) = Self::of(root)? {
            return Ok(own);
        }
        let own = Self(StoreId::random());
        let directory = root.join(RESERVED);
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        write(&directory, FILE, &format!("{own}\n"))?;
        Ok(own)
    }
}

/// The identities that the host stores, in a directory of its own.
#[derive(Clone, Debug)]
pub struct KnownIdentities(PathBuf);

/// Why a directory is not the expected volume.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IdentityMismatch {
    /// The directory has no volume.
    #[error(
        "{root} accepts no uploads: its volume is missing; mount its disk, or run \
         `tactus adopt {root}` and restart"
    )]
    Gone {
        /// The directory.
        root: String,
    },
    /// The directory has another volume.
    #[error(
        "{root} accepts no uploads: it holds another volume than before; mount the right disk, or \
         run `tactus adopt {root}` and restart"
    )]
    Another {
        /// The directory.
        root: String,
    },
    /// /etc/fstab has a file system there that is not mounted.
    #[error("{root} accepts no uploads: its disk in /etc/fstab is not mounted; mount it")]
    NotMounted {
        /// The directory.
        root: String,
    },
}

impl KnownIdentities {
    /// The identities stored in the directory `state`.
    #[must_use]
    pub fn within(state: &Path) -> Self {
        Self(state.join("volumes"))
    }

    /// Checks that the volume at `root` is the expected one, if one is stored.
    ///
    /// # Errors
    /// When it is not.
    pub fn check(&self, root: &Path) -> Result<(), IdentityMismatch> {
        let shown = || root.display().to_string();
        let known = match read(&self.place(root)) {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%error, "cannot read the stored identity of {}", root.display());
                None
            }
        };
        let there = Identity::of(root).ok().flatten();
        match (known, there) {
            (None, Some(_)) => Ok(()),
            (None, None) if is_missing(root) => Err(IdentityMismatch::NotMounted { root: shown() }),
            (None, None) => Ok(()),
            (Some(_), None) => Err(IdentityMismatch::Gone { root: shown() }),
            (Some(known), Some(there)) if known == there => Ok(()),
            (Some(_), Some(_)) => Err(IdentityMismatch::Another { root: shown() }),
        }
    }

    /// Stores the identity of the volume at `root`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn remember(&self, root: &Path, identity: Identity) -> io::Result<()> {
        let place = self.place(root);
        let text = format!("{identity}\n{}\n{}\n", root.display(), mount_of(root));
        if std::fs::read_to_string(&place).is_ok_and(|known| known == text) {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let name = place.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        write(&self.0, &name, &text)
    }

    /// Whether the volume that was at `root` lay on the current mount. If so, its disk is not
    /// missing: the directory was emptied or created again.
    #[must_use]
    pub fn is_same_mount(&self, root: &Path) -> bool {
        let known = std::fs::read_to_string(self.place(root)).unwrap_or_default();
        let mount = mount_of(root);
        !mount.is_empty() && known.lines().nth(2) == Some(&mount)
    }

    /// Removes the stored identity of `root`, so that the next start accepts what is there; returns
    /// whether there was one.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn forget(&self, root: &Path) -> io::Result<bool> {
        match std::fs::remove_file(self.place(root)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The host's identity file for `root`, by its path without links.
    fn place(&self, root: &Path) -> PathBuf {
        let real = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        let digest = Sha256::digest(real.as_os_str().as_encoded_bytes());
        self.0.join(data_encoding::HEXLOWER.encode(&digest[..16]))
    }
}

/// Whether /etc/fstab has a file system for `root` and none is mounted there.
fn is_missing(root: &Path) -> bool {
    let Ok(real) = root.canonicalize() else { return false };
    let Ok(table) = std::fs::read_to_string("/etc/fstab") else { return false };
    is_in_table(&table, &real) && !is_mount_point(&real)
}

/// fstab(5): the second field of a line is the mount point.
fn is_in_table(table: &str, root: &Path) -> bool {
    let lines = table.lines().map(str::trim_start).filter(|line| !line.starts_with('#'));
    let mut points = lines.filter_map(|line| line.split_whitespace().nth(1));
    points.any(|point| Path::new(&point.replace("\\040", " ")) == root && root != Path::new("/"))
}

fn is_mount_point(root: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.any(|point| Path::new(&point.replace("\\040", " ")) == root)
}

/// The device and the mount point of the file system of `root` (proc_pid_mountinfo(5)); empty when
/// unknown.
fn mount_of(root: &Path) -> String {
    let Ok(real) = root.canonicalize() else { return String::new() };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mount = |line: &str| {
        let mut fields = line.split(' ').skip(2);
        let (device, top) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        let point = fields.next()?.replace("\\040", " ");
        real.starts_with(&point).then_some((point.len(), format!("{device} {top} {point}")))
    };
    // Of several mounts at one place, only the last one is visible.
    let found = mounts.lines().filter_map(mount).max_by_key(|(len, _)| *len);
    found.map_or_else(String::new, |(_, mount)| mount)
}

fn read(file: &Path) -> io::Result<Option<Identity>> {
    let open = match File::open(file) {
        Ok(open) => open,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    open.take(BYTES_MAX).read_to_string(&mut text)?;
    let id = text.lines().next().and_then(|line| line.trim().parse().ok());
    let id = id.ok_or_else(|| {
        io::Error::new(
            ErrorKind::InvalidData,
            format!("{} holds no valid identity", file.display()),
        )
    })?;
    Ok(Some(Identity(id)))
}

/// Writes a file atomically.
fn write(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let new = directory.join(format!("{name}.new"));
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, directory.join(name))?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s13_a_volume_that_is_gone_or_another_one_is_told_from_the_one_that_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (dir.path().join("media"), dir.path().join("other"));
        for path in [&root, &other] {
            std::fs::create_dir(path).unwrap();
        }
        let known = KnownIdentities::within(&dir.path().join("state"));
        assert_eq!(known.check(&root), Ok(()), "no identity is stored");
        let own = Identity::made(&root).unwrap();
        assert_eq!(Identity::made(&root).unwrap(), own, "it keeps it");
        known.remember(&root, own).unwrap();
        assert_eq!(known.check(&root), Ok(()));
        // A link leads to the same directory.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&root, &link).unwrap();
        assert_eq!(known.check(&link), Ok(()));
        let disk = dir.path().join("disk");
        std::fs::rename(&root, &disk).unwrap();
        std::fs::create_dir(&root).unwrap();
        let shown = root.display().to_string();
        assert_eq!(known.check(&root), Err(IdentityMismatch::Gone { root: shown.clone() }));
        Identity::made(&root).unwrap();
        assert_eq!(known.check(&root), Err(IdentityMismatch::Another { root: shown }));
        assert!(known.forget(&root).unwrap() && !known.forget(&root).unwrap());
        assert_eq!(known.check(&root), Ok(()), "it was accepted");
        assert_eq!(known.check(&other), Ok(()), "others are not concerned");
        known.remember(&other, Identity::made(&other).unwrap()).unwrap();
        assert!(known.is_same_mount(&other) && !known.is_same_mount(&root));
    }

    #[test]
    fn s13_a_disk_of_the_table_of_file_systems_is_found_by_its_place() {
        let table = "# /dev/sda1 /srv/media ext4\nUUID=x / ext4 defaults 0 1\n\
                     /dev/sdb1\t/srv/my\\040films xfs noauto 0 0\nUUID=y none swap sw 0 0\n";
        let is_in = |path: &str| is_in_table(table, Path::new(path));
        assert!(is_in("/srv/my films"));
        assert!(!is_in("/srv/media") && !is_in("/") && !is_in("/srv"));
    }
}
