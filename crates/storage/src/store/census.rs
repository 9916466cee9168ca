//! Counts the stored titles for the quotas, and finds titles without their checksums, and checksums
//! that belong to no title.
//!
//! Promise: unreadable places never count as empty: no quota is applied to an incomplete count. No
//! checksums of a title are lost, whatever is renamed meanwhile: checksums without a title are only
//! put aside, where their title still finds them. The next census removes them if it finds no title
//! either.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use tokio::sync::watch;

use super::due::DueQueue;
use super::id::StoreId;
use super::medium::blocking;
use super::names::{self, Names, list, open_beneath};
use super::quotas::{Principal, Quotas};
use super::sums::{ASIDE, DUE, SumsAttribute, UNFOUND, due_places, place_of};
use crate::catalogue::is_reserved;
use crate::catalogue::walk::{self, Location, Visitor, WalkEnd};

/// The contents of the volume.
#[derive(Default, Debug)]
pub(super) struct Census {
    /// Bytes by owner.
    pub(super) stored: HashMap<Option<Principal>, u64>,
    /// Bytes of unreadable titles, whose owners are unknown.
    pub(super) unowned: u64,
    /// The first place that could not be read: the size of its contents is unknown.
    pub(super) uncounted: Option<String>,
    /// Checksums that a file refers to.
    named: HashSet<StoreId>,
    /// Checksums that are due.
    due: HashSet<StoreId>,
    /// Their titles, by path.
    due_titles: HashMap<StoreId, String>,
    /// Files with several hard links, by file system and inode: each file counts once.
    linked: HashSet<(u64, u64)>,
}

/// Takes the census in the background and corrects the quotas.
pub(super) async fn take(
    names: Arc<Names>,
    quotas: Arc<Quotas>,
    counted: watch::Sender<bool>,
    due: DueQueue,
) {
    let hurry = quotas.limits().counts_stored();
    let begun = SystemTime::now();
    let walked = Arc::clone(&names);
    let stop = counted.clone();
    let census = blocking(move || {
        // Without quotas no upload waits for the census, so it leaves the disk to the streams.
        let pace = if hurry { Duration::ZERO } else { PACE };
        Census::walk(&walked, pace, || stop.is_closed())
    });
    let census = match census.await {
        Ok(Some(census)) => census,
        Ok(None) => return,
        Err(error) => {
            tracing::error!(%error, "cannot count the stored titles");
            Census { uncounted: Some("/".to_owned()), ..Census::default() }
        }
    };
    for (owner, bytes) in &census.stored {
        quotas.add_stored(owner.as_ref(), *bytes);
    }
    quotas.add_unowned(census.unowned);
    if let Some(place) = &census.uncounted {
        let consequence = if hurry { "; uploads with a quota are refused" } else { "" };
        tracing::error!("cannot read {place}{consequence}; let the server read it, and restart");
        quotas.cannot_count(place.clone());
    }
    let is_whole = census.is_whole();
    counted.send_replace(true);
    let due_titles = census.due_titles.clone();
    // An unreadable title may refer to any of the checksums.
    if is_whole {
        let names = Arc::clone(&names);
        match blocking(move || census.put_aside(&names, begun)).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "checksums without a title were put aside"),
            Err(error) => tracing::warn!(%error, "cannot check for checksums without a title"),
        }
    }
    for (id, path) in due_titles {
        let names = Arc::clone(&names);
        let opened = blocking(move || Ok(open_due(&names, id, &path)));
        if let Ok(Some(file)) = opened.await {
            due.add_old(id, file).await;
        }
    }
}

/// The title at `path`, if its checksums are `id`. It may have been moved since the walk: then the
/// next census finds it.
fn open_due(names: &Names, id: StoreId, path: &str) -> Option<OwnedFd> {
    let file = open_beneath(&names.root, path, OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
    let mark = SumsAttribute::read(&file).ok()??;
    let inode = rustix::fs::fstat(&file).ok()?.st_ino;
    (mark.id() == Some(id) && mark.inode == inode).then_some(file)
}

/// Pause after each batch of directory entries: about a thousand titles a second.
const PACE: Duration = Duration::from_millis(16);
const BATCH: usize = 16;

/// How often a walk is repeated when other programs move its directories.
const WALKS_MAX: usize = 3;

impl Census {
    /// Visits every file of the volume; none when it is stopped.
    pub(super) fn walk(
        names: &Names,
        pace: Duration,
        stop: impl Fn() -> bool,
    ) -> io::Result<Option<Self>> {
        let due = list(due_directory(names)?)?;
        let due = due.iter().filter_map(|name| Some(due_id(name)?.0)).collect::<HashSet<_>>();
        for _ in 0..WALKS_MAX {
            let census = Self { due: due.clone(), ..Self::default() };
            let mut walker = Walker { census, pace, stop: &stop, seen: 0 };
            match walk::walk(&names.root, &mut walker)? {
                WalkEnd::Whole => return Ok(Some(walker.census)),
                WalkEnd::Stopped => return Ok(None),
                WalkEnd::Moved => {}
            }
        }
        Err(io::Error::other("directories are moved during each walk"))
    }

    /// Whether everything was read.
    fn is_whole(&self) -> bool {
        self.uncounted.is_none() && self.unowned == 0
    }

    fn look(&mut self, directory: &OwnedFd, place: &Location<'_>, stat: &Stat) {
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return;
        }
        if stat.st_nlink > 1 && !self.linked.insert((stat.st_dev, stat.st_ino)) {
            return;
        }
        let len = super::len_of(stat).0;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(directory, place.name, flags, Mode::empty());
        let owner = opened.and_then(|file| {
            if let Ok(Some(mark)) = SumsAttribute::read(&file) {
                self.named.extend(mark.id());
                if let Some(id) = mark.id().filter(|id| self.due.contains(id))
                    && mark.inode == stat.st_ino
                {
                    self.due_titles.insert(id, place.shown());
                }
            }
            names::owner_of(&file)
        });
        match owner {
            Ok(owner) => *self.stored.entry(owner).or_default() += len,
            // Removed, or replaced by something other than a title.
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => {}
            // Its length is known, its owner is not.
            Err(_) => self.unowned += len,
        }
    }
}

/// Counts what the walk finds.
struct Walker<'a, S> {
    census: Census,
    pace: Duration,
    stop: &'a S,
    seen: usize,
}

impl<S: Fn() -> bool> Visitor for Walker<'_, S> {
    fn skips(&mut self, name: &CStr, _: usize) -> bool {
        name.to_str().is_ok_and(is_reserved)
    }

    fn handle_file(&mut self, directory: &OwnedFd, place: &Location<'_>, stat: &Stat) {
        self.census.look(directory, place, stat);
    }

    fn handle_directory(&mut self, _: &Location<'_>, _: &Stat) {}

    fn handle_unreadable(&mut self, place: &Location<'_>, stat: Option<&Stat>, errno: Errno) {
        if is_of_the_file_system(place, stat) {
            return;
        }
        let path = place.shown();
        tracing::debug!(path, %errno, "cannot read the place");
        self.census.uncounted.get_or_insert(format!("/{path}"));
    }

    fn continues(&mut self) -> bool {
        self.seen += 1;
        if !self.seen.is_multiple_of(BATCH) {
            return true;
        }
        std::thread::sleep(self.pace);
        !(self.stop)()
    }
}

/// Whether this is root's `lost+found`, where fsck puts files without a name. It is at the top of
/// each file system, and it holds no titles.
fn is_of_the_file_system(place: &Location<'_>, stat: Option<&Stat>) -> bool {
    let is_roots = stat.is_some_and(|stat| stat.st_uid == 0);
    let own = rustix::process::geteuid().is_root();
    let path = [place.above, place.name.to_bytes()].concat();
    is_roots && !own && matches!(&*path, b"lost+found" | b"lost+found/")
}

impl Census {
    /// Puts checksums aside that no file refers to, and removes those that were put aside before.
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
                // Created since the walk began: its title may have had no name yet when its
                // directory was read.
                let stat = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                if u64::try_from(stat.st_mtime).unwrap_or(0) + 2 >= oldest {
                    continue;
                }
                rustix::fs::renameat(sums, place_of(id), &aside, &name)?;
                count += 1;
            }
        }
        self.put_marks_aside(names, oldest)?;
        Ok(count)
    }

    /// Renames marks of due checksums that no file refers to, and removes those that were renamed
    /// before.
    fn put_marks_aside(&self, names: &Names, oldest: u64) -> io::Result<()> {
        let sums = names.own.manifests.directory();
        let directory = due_directory(names)?;
        for name in list(&directory)? {
            let Some((id, is_unfound)) = due_id(&name) else { continue };
            let [due, unfound] = due_places(id);
            match (self.named.contains(&id), is_unfound) {
                (true, true) => rustix::fs::renameat(sums, unfound, sums, due)?,
                (false, true) => rustix::fs::unlinkat(sums, unfound, AtFlags::empty())?,
                (true, false) => {}
                (false, false) => {
                    let stat = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW);
                    match stat {
                        // As above: its title may have had no name yet.
                        Ok(stat) if u64::try_from(stat.st_mtime).unwrap_or(0) + 2 < oldest => {
                            rustix::fs::renameat(sums, due, sums, unfound)?;
                        }
                        Ok(_) | Err(Errno::NOENT) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
            }
        }
        Ok(())
    }
}

fn due_directory(names: &Names) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    Ok(open_beneath(names.own.manifests.directory(), DUE, flags)?)
}

/// The checksums that a mark stands for, and whether the last census has found no title for them.
fn due_id(name: &str) -> Option<(StoreId, bool)> {
    let bare = name.strip_suffix(UNFOUND);
    Some((bare.unwrap_or(name).parse().ok()?, bare.is_some()))
}
