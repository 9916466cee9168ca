//! Counts what is stored: for the quotas, and to find checksums that belong to no title.
//!
//! Promise: no checksums of a title are lost, whatever is renamed meanwhile: what seems to belong to
//! nobody is only put aside, where its title still finds it, and goes when the next census has not
//! found a title either.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use tokio::sync::watch;

use super::id::StoreId;
use super::ledger::{Ledger, Principal};
use super::medium::blocking;
use super::names::{self, Names, list, open_beneath};
use super::sums::{ASIDE, Mark, place_of};
use crate::catalogue::is_reserved;

/// What lies on the disk.
#[derive(Default, Debug)]
pub(super) struct Census {
    /// Bytes by owner.
    pub(super) stored: HashMap<Option<Principal>, u64>,
    /// Checksums that some file names.
    named: HashSet<StoreId>,
}

/// Takes the census in the background and closes the books of what was there before.
pub(super) async fn take(names: Arc<Names>, ledger: Arc<Ledger>, counted: watch::Sender<bool>) {
    let hurry = ledger.limits().counts_stored();
    let begun = SystemTime::now();
    let walked = Arc::clone(&names);
    let stop = counted.clone();
    let census = blocking(move || {
        // Nobody waits for it: then it must not be in anybody's way either.
        let pace = if hurry { Duration::ZERO } else { PACE };
        Census::walk(&walked.root, pace, || stop.is_closed())
    });
    match census.await {
        Ok(Some(census)) => {
            for (owner, bytes) in &census.stored {
                ledger.add_stored(owner.as_ref(), *bytes);
            }
            counted.send_replace(true);
            match blocking(move || census.put_aside(&names, begun)).await {
                Ok(0) => {}
                Ok(count) => tracing::info!(count, "checksums without a title were put aside"),
                Err(error) => tracing::warn!(%error, "checksums cannot be looked through"),
            }
        }
        Ok(None) => {}
        Err(error) => {
            tracing::error!(%error, "what is stored cannot be counted: quotas count from now on");
            counted.send_replace(true);
        }
    }
}

/// A rest after each directory entries' batch: a thousand titles a second.
const PACE: Duration = Duration::from_millis(16);
const BATCH: usize = 16;

impl Census {
    /// Looks at every file of the volume; none when it is told to stop.
    pub(super) fn walk(
        root: &OwnedFd,
        pace: Duration,
        stop: impl Fn() -> bool,
    ) -> io::Result<Option<Self>> {
        let mut census = Self::default();
        let mut directories = vec![String::new()];
        let mut seen = 0_usize;
        while let Some(path) = directories.pop() {
            let directory = match open_beneath(root, &path, OFlags::RDONLY | OFlags::DIRECTORY) {
                Ok(directory) => directory,
                // Removed, replaced by a link, or another file system's.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => continue,
                Err(errno) => return Err(errno.into()),
            };
            for entry in Dir::read_from(&directory)? {
                let entry = entry?;
                let Ok(name) = entry.file_name().to_str() else { continue };
                if name == "." || name == ".." || is_reserved(name) {
                    continue;
                }
                seen += 1;
                if seen.is_multiple_of(BATCH) {
                    std::thread::sleep(pace);
                    if stop() {
                        return Ok(None);
                    }
                }
                match census.look(&directory, name)? {
                    FileType::Directory if path.is_empty() => directories.push(name.to_owned()),
                    FileType::Directory => directories.push(format!("{path}/{name}")),
                    _ => {}
                }
            }
        }
        Ok(Some(census))
    }

    fn look(&mut self, directory: &OwnedFd, name: &str) -> io::Result<FileType> {
        let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(FileType::Unknown),
            Err(errno) => return Err(errno.into()),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::RegularFile {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
                Ok(file) => file,
                Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(kind),
                Err(errno) => return Err(errno.into()),
            };
            if let Ok(Some(mark)) = Mark::read(&file) {
                self.named.extend(mark.id());
            }
            let owner = names::owner_of(&file)?;
            *self.stored.entry(owner).or_default() += super::len_of(&stat).0;
        }
        Ok(kind)
    }

    /// Puts checksums aside that no file names, and removes those that were put aside before.
    fn put_aside(&self, names: &Names, begun: SystemTime) -> io::Result<usize> {
        let sums = names.own.manifests.directory();
        let aside = open_beneath(sums, ASIDE, OFlags::RDONLY | OFlags::DIRECTORY)?;
        for name in list(&aside)? {
            if name.parse().is_ok_and(|id| !self.named.contains(&id)) {
                rustix::fs::unlinkat(&aside, &name, AtFlags::empty())?;
            }
        }
        let mut count = 0;
        let oldest = begun.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        for first in 0..=0xff_u8 {
            let directory =
                open_beneath(sums, &format!("{first:02x}"), OFlags::RDONLY | OFlags::DIRECTORY)?;
            for name in list(&directory)? {
                let Ok(id) = name.parse::<StoreId>() else { continue };
                if self.named.contains(&id) {
                    continue;
                }
                // Made since: its title may have had no name yet when its directory was read.
                let stat = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                if u64::try_from(stat.st_mtime).unwrap_or(0) + 2 >= oldest {
                    continue;
                }
                rustix::fs::renameat(sums, place_of(id), &aside, &name)?;
                count += 1;
            }
        }
        Ok(count)
    }
}
