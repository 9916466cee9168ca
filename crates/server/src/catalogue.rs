//! The catalogue: from a request path to a title that is open for direct reads.
//!
//! Promise: what it opens lies beneath the volume's root on the volume's own file system, was reached
//! through no link, and is a regular file or a directory; no path can block a thread. One version of
//! a file has one [`TitleId`] as long as it is remembered, and a changed file never has that of its
//! predecessor. It reads no content, except through the probe that finds a title's own rate.

mod known;
mod listing;
mod media_type;
mod version;
mod volume;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tactus_core::path::RequestPath;
use tactus_core::units::{BitRate, Bytes, WallTime};
use tactus_engine::message::{TitleId, VolumeId};
use tokio::sync::{OnceCell, Semaphore};

pub use listing::{Entry, EntryKind, Listing};
pub use version::FileVersion;

use known::KnownTitles;
use volume::{Opened, Volume, Wait};

/// Titles that are remembered, each with an open file. A thousand is more than the titles that are
/// asked for within a minute of one disk, and a small part of the usual limit of open files.
pub const KNOWN_TITLES_MAX: usize = 1024;

/// Rates that are looked for at once. A probe reads the disk beside the plan, so few may run.
pub const PROBES_AT_ONCE: usize = 2;

/// Directories that are read at once, for the same reason.
pub const LISTINGS_AT_ONCE: usize = 2;

/// Entries of a directory that are listed; the rest is reachable, but not named.
pub const LISTING_ENTRIES_MAX: usize = 10_000;

/// Finds the rate that a title needs to play, from its file and its name; may block.
pub type RateProbe = fn(&File, &str) -> Option<BitRate>;

/// What the catalogue may use.
#[derive(Clone, Debug)]
pub struct CatalogueRules {
    /// Titles that are remembered with an open file.
    pub known_titles_max: usize,
    /// Entries of one directory that are listed.
    pub listing_entries_max: usize,
    /// How a title's own rate is found.
    pub probe: RateProbe,
}

impl Default for CatalogueRules {
    fn default() -> Self {
        Self {
            known_titles_max: KNOWN_TITLES_MAX,
            listing_entries_max: LISTING_ENTRIES_MAX,
            probe: |_, _| None,
        }
    }
}

/// One version of a stored object, open for reading.
#[derive(Debug)]
pub struct OpenTitle {
    /// Its number for the engine; never given to another version.
    pub id: TitleId,
    /// The disk it lies on.
    pub volume: VolumeId,
    /// The file, for direct reads when `direct` says so.
    pub file: OwnedFd,
    /// Whether `file` was opened past the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Its length.
    pub len: Bytes,
    /// When its content last changed.
    pub modified: WallTime,
    /// Its strong entity tag, quotes included.
    pub etag: String,
    /// Its media type, by its extension.
    pub media_type: &'static str,
    /// Where it begins on the device, as a sweep key; zero where order does not matter.
    pub position: u64,
    own_rate: OnceCell<Option<BitRate>>,
}

impl OpenTitle {
    /// The rate that it needs to play, when it has been looked for and found.
    pub fn own_rate(&self) -> Option<BitRate> {
        self.own_rate.get().copied().flatten()
    }
}

/// What a path names.
#[derive(Debug)]
pub enum Found {
    /// A stored object.
    Title(Arc<OpenTitle>),
    /// A directory.
    Directory(Directory),
}

/// An open directory.
#[derive(Debug)]
pub struct Directory {
    handle: OwnedFd,
    volume: usize,
}

/// Why nothing was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenFault {
    /// Nothing that is served has this name.
    #[error("nothing is stored under this name")]
    NotFound,
    /// Too many files are open; raise the limit of open files (`ulimit -n`).
    #[error("too many files are open; try again shortly")]
    Busy,
    /// The file system failed, with this error number; see the kernel's log.
    #[error("the file system failed with error {0}")]
    Failed(i32),
}

/// Every volume's names.
#[derive(Debug)]
pub struct Catalogue {
    volumes: Vec<Volume>,
    known: KnownTitles,
    rules: CatalogueRules,
    next_title: AtomicU64,
    probes: Semaphore,
    listings: Semaphore,
}

impl Catalogue {
    /// Serves the directory `root` as the only volume, number 0.
    ///
    /// # Errors
    /// When `root` is no directory that can be opened.
    pub fn new(root: &Path, rules: CatalogueRules) -> io::Result<Self> {
        Ok(Self {
            volumes: vec![Volume::open(VolumeId(0), root)?],
            known: KnownTitles::new(rules.known_titles_max),
            rules,
            next_title: AtomicU64::new(1),
            probes: Semaphore::new(PROBES_AT_ONCE),
            listings: Semaphore::new(LISTINGS_AT_ONCE),
        })
    }

    /// Opens what `path` names. Answers at once when the kernel has the names in memory; otherwise a
    /// thread that may block looks them up.
    ///
    /// # Errors
    /// When there is nothing to serve, or it cannot be opened.
    pub async fn find(self: &Arc<Self>, path: &RequestPath) -> Result<Found, OpenFault> {
        let (index, name) = self.volume_of(path)?;
        let opened = match self.volumes[index].open_beneath(name, Wait::Never) {
            Ok(opened) => opened,
            Err(volume::Fault::WouldWait) => {
                let (this, name) = (Arc::clone(self), name.to_owned());
                blocking(move || this.volumes[index].open_beneath(&name, Wait::AsNeeded)).await??
            }
            Err(fault) => return Err(fault.into()),
        };
        self.remember(index, name, opened, path.is_directory())
    }

    /// Like [`Self::find`], on a thread that may block.
    ///
    /// # Errors
    /// As there.
    pub fn find_blocking(&self, path: &RequestPath) -> Result<Found, OpenFault> {
        let (index, name) = self.volume_of(path)?;
        let opened = self.volumes[index].open_beneath(name, Wait::AsNeeded)?;
        self.remember(index, name, opened, path.is_directory())
    }

    /// The rate that the title under `path` needs to play. Looked for once per version, when a
    /// request first needs it, and only a few at a time.
    pub async fn own_rate(
        self: &Arc<Self>,
        title: &OpenTitle,
        path: &RequestPath,
    ) -> Option<BitRate> {
        let look = async || {
            let _turn = self.probes.acquire().await.ok()?;
            let (index, name) = self.volume_of(path).ok()?;
            let (this, name, id) = (Arc::clone(self), name.to_owned(), title.id);
            let probe = move || {
                // The title's own handle reads past the page cache, in whole sectors; a probe reads
                // a few bytes here and there, so it gets a handle of its own.
                match this.volumes[index].open_beneath(&name, Wait::AsNeeded).ok()? {
                    Opened::File { file, version, .. } => {
                        let same = this.known.by_version(&version).is_some_and(|t| t.id == id);
                        same.then(|| (this.rules.probe)(&File::from(file), &name))?
                    }
                    Opened::Directory { .. } => None,
                }
            };
            blocking(probe).await.ok()?
        };
        *title.own_rate.get_or_init(look).await
    }

    /// Names, sizes and known rates of what can be asked for in `directory`, sorted.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub async fn list(self: &Arc<Self>, directory: Directory) -> Result<Listing, OpenFault> {
        let _turn = self.listings.acquire().await.map_err(|_| OpenFault::Busy)?;
        let this = Arc::clone(self);
        blocking(move || {
            let volume = &this.volumes[directory.volume];
            let max = this.rules.listing_entries_max;
            let rate = |version: &FileVersion| {
                this.known.by_version(version).and_then(|title| title.own_rate())
            };
            listing::read(volume, directory.handle, max, rate).map_err(OpenFault::from)
        })
        .await?
    }

    /// The volume that holds `path`, and the path within it. With one volume, all of it.
    fn volume_of<'a>(&self, path: &'a RequestPath) -> Result<(usize, &'a str), OpenFault> {
        if path.segments().any(volume::is_reserved) {
            return Err(OpenFault::NotFound);
        }
        Ok((0, path.name()))
    }

    fn remember(
        &self,
        index: usize,
        name: &str,
        opened: Opened,
        as_directory: bool,
    ) -> Result<Found, OpenFault> {
        match opened {
            Opened::Directory { handle } => {
                Ok(Found::Directory(Directory { handle, volume: index }))
            }
            // `/film.ts/` is not the title `/film.ts`: one object has one name.
            Opened::File { .. } if as_directory => Err(OpenFault::NotFound),
            Opened::File { file, version } => {
                if let Some(title) = self.known.by_version(&version) {
                    return Ok(Found::Title(title));
                }
                let direct = volume::read_past_cache(&file)?;
                Ok(Found::Title(self.known.remember(
                    version,
                    Arc::new(OpenTitle {
                        id: TitleId(self.next_title.fetch_add(1, Ordering::Relaxed)),
                        volume: self.volumes[index].id,
                        position: volume::sweep_key(&file),
                        file,
                        direct,
                        len: version.len,
                        modified: version.modified_wall(),
                        etag: version.etag(),
                        media_type: media_type::of(name),
                        own_rate: OnceCell::new(),
                    }),
                )))
            }
        }
    }
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, OpenFault> {
    tokio::task::spawn_blocking(work).await.map_err(|_| OpenFault::Failed(0))
}

impl From<volume::Fault> for OpenFault {
    fn from(fault: volume::Fault) -> Self {
        match fault {
            volume::Fault::NotServed => Self::NotFound,
            volume::Fault::WouldWait | volume::Fault::OutOfHandles => Self::Busy,
            volume::Fault::Failed(errno) => Self::Failed(errno.raw_os_error()),
        }
    }
}

#[cfg(test)]
mod tests;
