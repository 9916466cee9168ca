//! The catalogue: from a request path to a title that is open for direct reads.
//!
//! Promise: everything that it opens lies beneath the volume's root, on the volume's own file
//! system, and is a regular file or a directory. It follows no link, and no path can block a
//! thread. While a version of a file is remembered, it has one [`TitleId`] for each media type that
//! its names imply; a changed file gets another one. It reads no content, except by the probe for a
//! title's media facts.

mod digests;
mod growing;
mod known_titles;
mod listing;
mod media_type;
mod version;
mod volume;
pub(crate) mod walk;

mod index_queue;

mod indexes;
mod inspection;
mod scroll;
mod survey;

mod previews;

mod consumptions;
mod playlists;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::Stat;
use tactus_core::path::RequestPath;
use tactus_core::sums::Sums;
use tactus_core::units::{BitRate, Bytes, MIB, WallTime};
use tactus_engine::message::{TitleId, VolumeId};
use tactus_media::MediaFacts;
use tokio::sync::OnceCell;

use crate::conditions::{Conditions, Kind};
use crate::warnings;

pub use consumptions::{Exactness, PartConsumption};
pub use digests::Digests;
pub use growing::{
    Follower, GROWING_TITLES_MAX, GrowingTitleSpec, Growth, GrowthPublisher, Watermark,
};
pub use index_queue::{CurrentIndex, IndexOutcome, IndexProgress, Unindexed};
pub use indexes::{IndexState, LONG};
pub use listing::{Entry, EntryKind};
pub use previews::{Preview, PreviewRequest, READ_MAX as PREVIEW_MAX, SHORT};
pub use scroll::{Position, Scroll};
pub use version::FileVersion;
pub use volume::is_reserved;

use consumptions::Consumptions;
use growing::GrowingTitles;
use indexes::Indexes;
use known_titles::KnownTitles;
use listing::shown;
use playlists::Playlists;
use previews::Previews;
use scroll::{LastWarning, ScanOptions};
use survey::Survey;
use volume::{OpenObject, Volume, WaitPolicy};

/// Remembered titles, each with an open file. A thousand is more than the titles that are requested
/// from one disk within a minute, and a small part of the usual limit of open files.
pub const KNOWN_TITLES_MAX: usize = 1024;

/// Memory for names while a directory is listed: about 15,000 names of usual length. A larger
/// directory is read in several passes.
pub const LISTING_NAMES_MAX: Bytes = Bytes(MIB);

/// Finds the rate and the other media facts of a title, from its file and its name. May block.
pub type MediaProbe = fn(&File, &str) -> Option<MediaFacts>;

/// Finds the checksums of a title, from its volume's root and its file; none when the title has no
/// checksums. May block.
pub type SumsLookup =
    fn(BorrowedFd<'_>, BorrowedFd<'_>) -> Result<Option<Arc<Sums>>, ChecksumFault>;

/// Why a title with checksums is not served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChecksumFault {
    /// Its checksums are gone.
    #[error("the title's checksums are gone; restore them, or store the title again")]
    Missing,
    /// Its checksums do not check themselves.
    #[error("the title's checksums are damaged; restore them, or store the title again")]
    Manifest,
    /// Its checksums were written by another version of Tactus.
    #[error("the title's checksums have a form that this version does not know")]
    Unknown,
    /// Its length differs from the one in its checksums.
    #[error("the title was cut, grew, or was changed in place; store it again")]
    Length,
    /// The file system failed, with this error number.
    #[error("the title's checksums cannot be read: error {0}")]
    Unreadable(i32),
}

/// The limits and functions of a catalogue.
#[derive(Clone, Debug)]
pub struct CatalogueRules {
    /// Most titles that are remembered with an open file.
    pub known_titles_max: usize,
    /// Memory for names while a directory is listed.
    pub listing_names_max: Bytes,
    /// Finds the media facts of a title.
    pub probe: MediaProbe,
    /// Finds the checksums of a title.
    pub sums: SumsLookup,
    /// Memory for the checksums of remembered titles; those of a single title may be larger.
    pub sums_max: Bytes,
    /// The list for files that cannot be served.
    pub conditions: Conditions,
}

/// Checksums of 8 TiB of titles.
const SUMS_MAX: Bytes = Bytes(512 * MIB);

impl Default for CatalogueRules {
    fn default() -> Self {
        Self {
            known_titles_max: KNOWN_TITLES_MAX,
            listing_names_max: LISTING_NAMES_MAX,
            probe: |_, _| None,
            sums: |_, _| Ok(None),
            sums_max: SUMS_MAX,
            conditions: Conditions::default(),
        }
    }
}

/// One version of a stored object, open for reading.
#[derive(Debug)]
pub struct OpenTitle {
    /// Its number in the engine. No other version ever gets this number.
    pub id: TitleId,
    /// The disk that stores it.
    pub volume: VolumeId,
    /// The file, open for direct reads if `direct` is set.
    pub file: OwnedFd,
    /// Whether `file` was opened past the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Its length.
    pub len: Bytes,
    /// When its content last changed.
    pub modified: WallTime,
    /// Its strong entity tag, quotes included.
    pub etag: String,
    /// Its media type, by the extension of its name.
    pub media_type: &'static str,
    /// Where it begins on the device, as a sweep key; zero if the order does not matter.
    pub position: u64,
    /// The checksums of its bytes, if known.
    pub sums: Option<Arc<Sums>>,
    media: OnceCell<Option<MediaFacts>>,
    sent_file: OnceLock<OwnedFd>,
    /// Set while the title is still growing: `len` is then the durable watermark at the lookup.
    pub following: Option<Follower>,
}

impl OpenTitle {
    /// Its mean rate, if it has been determined.
    pub fn own_rate(&self) -> Option<BitRate> {
        Some(self.media.get().copied().flatten()?.rate)
    }

    /// Which file it is ([`FileVersion::file`]).
    ///
    /// # Errors
    /// What the file system says.
    pub fn file_number(&self) -> io::Result<u64> {
        Ok(FileVersion::of(&rustix::fs::fstat(&self.file)?).file())
    }

    /// Its file for sends from the page cache, which all its streams share; opened when it is first
    /// asked for.
    ///
    /// # Errors
    /// `EMFILE` if descriptors are exhausted.
    pub fn sent_file(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(file) = self.sent_file.get() {
            return Ok(file.as_fd());
        }
        let opened = tactus_sys::file::reopen_to_send(&self.file)?;
        Ok(self.sent_file.get_or_init(|| opened).as_fd())
    }

    /// Whether its file has no name: the title was deleted or replaced, or it grows and has none
    /// yet. May block.
    pub fn is_nameless(&self) -> bool {
        rustix::fs::fstat(&self.file).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Memory of its checksums.
    fn sums_size(&self) -> u64 {
        self.sums.as_ref().map_or(0, |sums| size_of_val(sums.units()) as u64)
    }
}

/// The object of a path.
#[derive(Debug)]
pub enum PathObject {
    /// A stored object.
    Title(Arc<OpenTitle>),
    /// A directory.
    Directory(Directory),
}

/// A directory to list.
#[derive(Debug)]
pub struct Directory {
    /// The directory itself; none if it holds only mount points of volumes.
    open: Option<(usize, OwnedFd)>,
    /// Its path from the top, to find the volumes that are mounted in it.
    path: String,
}

/// The space of a file system in bytes, or that of several together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VolumeSpace {
    /// All of it.
    pub total: u64,
    /// What no file uses.
    pub free: u64,
    /// The part of it that files of ordinary users can use.
    pub available: u64,
}

/// The entries of a directory that are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListingScope {
    /// Those that its page shows.
    Shown,
    /// All that can be requested.
    All,
}

/// How much is read about a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Its status in the file system.
    Status,
    /// The status, and the checksums that clients sent.
    Digests,
}

/// The properties of a path.
#[derive(Debug)]
pub struct PathInfo {
    /// The entry of the path itself; its name is empty for the root.
    pub own: Entry,
    /// The entries of the directory.
    pub below: Option<Scroll>,
}

/// A directory of the host, and where it appears.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Root {
    /// The path of its files: `/`, or `/name/`.
    pub mount: String,
    /// The directory of the host.
    pub directory: PathBuf,
}

/// Why a path could not be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenFault {
    /// No served object has this name.
    #[error("no title has this name")]
    NotFound,
    /// The server lacks the permission to read it.
    #[error("the server lacks the permission to read this; see its log")]
    Denied,
    /// Too many files are open; raise the limit of open files (`ulimit -n`).
    #[error("too many files are open; try again shortly")]
    Busy,
    /// The file system failed, with this error number; see the kernel's log.
    #[error("the file system failed with error {0}")]
    Failed(i32),
    /// It differs from the stored version.
    #[error(transparent)]
    Damaged(#[from] ChecksumFault),
}

/// The names of all volumes.
#[derive(Debug)]
pub struct Catalogue {
    volumes: Vec<Volume>,
    known: KnownTitles,
    rules: CatalogueRules,
    next_title: AtomicU64,
    damaged: AtomicU64,
    growing: Arc<GrowingTitles>,
    indexes: Indexes,
    consumptions: Consumptions,
    previews: Previews,
    playlists: Playlists,
    survey: Arc<Survey>,
    unlisted: LastWarning,
}

impl Catalogue {
    /// Serves one directory, as volume 0, at the top.
    ///
    /// # Errors
    /// When the directory cannot be opened.
    pub fn new(directory: &Path, rules: CatalogueRules) -> io::Result<Self> {
        let root = Root { mount: "/".to_owned(), directory: directory.to_owned() };
        Self::with_volumes(&[root], rules)
    }

    /// Serves `roots`, which become the volumes from number 0 on.
    ///
    /// # Errors
    /// When a root is no directory that can be opened.
    ///
    /// # Panics
    /// When there are more roots than volume numbers.
    pub fn with_volumes(roots: &[Root], rules: CatalogueRules) -> io::Result<Self> {
        let volume = |(index, root): (usize, &Root)| {
            let id = VolumeId(u16::try_from(index).expect("a host has fewer disks"));
            let opened = Volume::open(id, root.mount.trim_matches('/'), &root.directory);
            opened.map_err(|error| {
                let place = root.directory.display();
                io::Error::new(error.kind(), format!("cannot open {place}: {error}"))
            })
        };
        Ok(Self {
            volumes: roots.iter().enumerate().map(volume).collect::<io::Result<_>>()?,
            known: KnownTitles::new(rules.known_titles_max, rules.sums_max),
            rules,
            next_title: AtomicU64::new(1),
            damaged: AtomicU64::new(0),
            growing: Arc::default(),
            indexes: Indexes::default(),
            consumptions: Consumptions::default(),
            previews: Previews::default(),
            playlists: Playlists::default(),
            survey: Arc::default(),
            unlisted: LastWarning::default(),
        })
    }

    /// Opens the object of `path`. Returns at once if the kernel has the names in memory; otherwise
    /// a thread that may block looks them up.
    ///
    /// # Errors
    /// When no object is there, or it cannot be opened.
    pub async fn find(self: &Arc<Self>, path: &RequestPath) -> Result<PathObject, OpenFault> {
        let Some((index, name)) = self.volume_of(path)? else { return self.mounts(path) };
        let coming = self.coming_to(self.volumes[index].id, name);
        let opened = match self.volumes[index].open_beneath(name, WaitPolicy::Never) {
            Err(volume::Fault::WouldWait) => {
                let (this, name) = (Arc::clone(self), name.to_owned());
                let open = move || this.volumes[index].open_beneath(&name, WaitPolicy::AsNeeded);
                self.volumes[index].lookups.run(open).await?
            }
            opened => opened,
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(fault @ volume::Fault::NotServed) => {
                return self.grown(path, index, name, coming).ok_or(fault.into());
            }
            Err(fault) => return Err(self.told(path, fault)),
        };
        match self.known(path, index, opened)? {
            PathLookup::Known(found) => Ok(found),
            PathLookup::New(new) => {
                let this = Arc::clone(self);
                let remember = move || this.remember(new);
                self.volumes[index].lookups.run(remember).await?.map(PathObject::Title)
            }
        }
    }

    /// Like [`Self::find`], but blocks the calling thread.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn find_blocking(&self, path: &RequestPath) -> Result<PathObject, OpenFault> {
        let Some((index, name)) = self.volume_of(path)? else { return self.mounts(path) };
        let coming = self.coming_to(self.volumes[index].id, name);
        let opened = match self.volumes[index].open_beneath(name, WaitPolicy::AsNeeded) {
            Ok(opened) => opened,
            Err(fault @ volume::Fault::NotServed) => {
                return self.grown(path, index, name, coming).ok_or(fault.into());
            }
            Err(fault) => return Err(self.told(path, fault)),
        };
        match self.known(path, index, opened)? {
            PathLookup::Known(found) => Ok(found),
            PathLookup::New(new) => self.remember(new).map(PathObject::Title),
        }
    }

    /// The media facts of the title at `path`, if they can be determined. They are determined once
    /// per version, when a request first needs them, with a limit on concurrent probes.
    ///
    /// # Errors
    /// When the volume is busy or fails.
    pub async fn media(
        self: &Arc<Self>,
        title: &OpenTitle,
        path: &RequestPath,
    ) -> Result<Option<MediaFacts>, OpenFault> {
        let look = async || {
            let (index, name) = self.volume_of(path)?.ok_or(OpenFault::NotFound)?;
            let (this, name, id) = (Arc::clone(self), name.to_owned(), title.id);
            self.volumes[index].probes.run(move || this.probe(index, &name, id)).await?
        };
        title.media.get_or_try_init(look).await.copied()
    }

    /// Probes a title through a handle of its own: the title's handle reads past the page cache in
    /// whole sectors, but a probe reads a few bytes at a time.
    fn probe(
        &self,
        index: usize,
        name: &str,
        id: TitleId,
    ) -> Result<Option<MediaFacts>, OpenFault> {
        match self.volumes[index].open_beneath(name, WaitPolicy::AsNeeded)? {
            OpenObject::File { file, version } => {
                let known = (version, media_type::of(name));
                let same = self.known.get(&known).is_some_and(|title| title.id == id);
                // Another file has taken the name: the old version can no longer be probed.
                if !same {
                    return Ok(None);
                }
                let facts = (self.rules.probe)(&File::from(file), name);
                self.survey.store(known, facts);
                Ok(facts)
            }
            OpenObject::Directory { .. } => Ok(None),
        }
    }

    /// Names, sizes and known rates of the entries in `directory`, in order and in parts; after
    /// `after` if it is given.
    #[must_use]
    pub fn scroll(
        self: &Arc<Self>,
        directory: Directory,
        within: ListingScope,
        after: Option<Position>,
    ) -> Scroll {
        let names_max = usize::try_from(self.rules.listing_names_max.0).unwrap_or(usize::MAX);
        let everything = within == ListingScope::All;
        let reading = ScanOptions { names_max, everything, detail: Detail::Status };
        Scroll::new(self, directory, reading, after)
    }

    fn scroll_with(
        self: &Arc<Self>,
        directory: Directory,
        within: ListingScope,
        detail: Detail,
    ) -> Scroll {
        let mut scroll = self.scroll(directory, within, None);
        scroll.set_detail(detail);
        scroll
    }

    /// The properties of the object at `path`, without a look at its content; for a directory, also
    /// its entries if requested.
    ///
    /// # Errors
    /// When there is no object, or it cannot be read.
    pub async fn look(
        self: &Arc<Self>,
        path: &RequestPath,
        within: Option<ListingScope>,
        detail: Detail,
    ) -> Result<PathInfo, OpenFault> {
        let Some((index, _)) = self.volume_of(path)? else {
            return self.look_blocking(path, within, detail);
        };
        let (this, path) = (Arc::clone(self), path.clone());
        self.volumes[index].lookups.run(move || this.look_blocking(&path, within, detail)).await?
    }

    fn look_blocking(
        self: &Arc<Self>,
        path: &RequestPath,
        within: Option<ListingScope>,
        detail: Detail,
    ) -> Result<PathInfo, OpenFault> {
        let last = path.segments().last().unwrap_or_default();
        let Some((index, name)) = self.volume_of(path)? else {
            let PathObject::Directory(directory) = self.mounts(path)? else {
                return Err(OpenFault::NotFound);
            };
            let below = within.map(|within| self.scroll_with(directory, within, detail));
            return Ok(PathInfo { own: Entry::mounted(last), below });
        };
        let coming = self.coming_to(self.volumes[index].id, name);
        match self.volumes[index].open_beneath(name, WaitPolicy::AsNeeded) {
            Ok(OpenObject::Directory { handle }) => {
                let own = listing::read_one(&handle, last, detail)?;
                let directory = Directory { open: Some((index, handle)), path: path.name().into() };
                let below = within.map(|within| self.scroll_with(directory, within, detail));
                Ok(PathInfo { own, below })
            }
            Ok(OpenObject::File { .. }) if path.is_directory() => Err(OpenFault::NotFound),
            Ok(OpenObject::File { file, .. }) => {
                Ok(PathInfo { own: listing::read_one(&file, last, detail)?, below: None })
            }
            Err(fault @ volume::Fault::NotServed) => {
                let Some(PathObject::Title(title)) = self.grown(path, index, name, coming) else {
                    return Err(fault.into());
                };
                let own = Entry {
                    name: last.to_owned(),
                    kind: EntryKind::Title {
                        len: title.len,
                        own_rate: title.own_rate(),
                        peak: None,
                        duration: None,
                    },
                    modified: Some(title.modified),
                    created: None,
                    etag: Some(title.etag.clone()),
                    file: title.file_number().ok(),
                    grows: true,
                    digests: None,
                };
                Ok(PathInfo { own, below: None })
            }
            Err(fault) => Err(self.told(path, fault)),
        }
    }

    /// Whether `path` is the mount point of a volume, or a directory above one.
    pub fn holds_mount(&self, path: &RequestPath) -> bool {
        let at = |volume: &Volume| volume.mount == path.name();
        self.volumes.iter().any(|volume| at(volume) || volume.below(path.name()).is_some())
    }

    /// Whether another volume lies beneath the directory `path`, by its name or on the host.
    pub fn holds_volumes(&self, path: &RequestPath) -> bool {
        let Ok(Some((own, name))) = self.volume_of(path) else { return true };
        let place = path_of_fd(self.volumes[own].root()).join(name);
        let others = self.volumes.iter().enumerate().filter(|(index, _)| *index != own);
        let mut others = others.map(|(_, volume)| volume);
        others.any(|other| {
            other.below(path.name()).is_some() || path_of_fd(other.root()).starts_with(&place)
        })
    }

    /// The space of the volume that holds `path`, or of all volumes if it is above them. May block.
    ///
    /// # Errors
    /// When no volume holds it, or what the file system says.
    pub fn space(&self, path: &RequestPath) -> Result<VolumeSpace, OpenFault> {
        let own = self.volume_of(path)?.map(|(index, _)| index);
        let mut all = VolumeSpace::default();
        for (index, volume) in self.volumes.iter().enumerate() {
            if own.is_some_and(|own| own != index) {
                continue;
            }
            let found = rustix::fs::fstatvfs(volume.root());
            let found = found.map_err(|errno| OpenFault::Failed(errno.raw_os_error()))?;
            let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
            all.total += bytes(found.f_blocks);
            all.free += bytes(found.f_bfree);
            all.available += bytes(found.f_bavail);
        }
        Ok(all)
    }

    /// Forgets titles that have been removed or changed, to close their files. The disk frees their
    /// space when their last stream ends. May block.
    pub fn forget_changed(&self) {
        for (known, title) in self.known.all() {
            let is_same =
                rustix::fs::fstat(&title.file).is_ok_and(|stat| FileVersion::of(&stat) == known.0);
            if !is_same {
                self.known.forget(&known);
            }
        }
    }

    /// How often a title was refused because it differs from its stored version.
    pub fn damaged(&self) -> u64 {
        self.damaged.load(Ordering::Relaxed)
    }

    /// The growing title of a name that no stored object has.
    fn grown(
        &self,
        path: &RequestPath,
        index: usize,
        name: &str,
        coming: Option<growing::GrowingEntry>,
    ) -> Option<PathObject> {
        let coming = coming.filter(|_| !path.is_directory())?;
        coming.title(self.volumes[index].id, name).map(PathObject::Title)
    }

    /// The volume that holds `path`, and the path within the volume. For nested mounts it is the
    /// innermost volume; none if the path is above all volumes.
    fn volume_of<'a>(&self, path: &'a RequestPath) -> Result<Option<(usize, &'a str)>, OpenFault> {
        if path.segments().any(volume::is_reserved) {
            return Err(OpenFault::NotFound);
        }
        let within = |(index, volume): (usize, &Volume)| {
            Some((index, path_below(path.name(), &volume.mount)?))
        };
        // The innermost volume leaves the shortest path.
        let all = self.volumes.iter().enumerate().filter_map(within);
        Ok(all.min_by_key(|(_, rest)| rest.len()))
    }

    /// The volume of `path`, and the path within the volume, whether or not an object is there.
    ///
    /// # Errors
    /// When no title can be at this path.
    pub fn spot<'a>(&self, path: &'a RequestPath) -> Result<(VolumeId, &'a str), OpenFault> {
        let (index, rest) = self.volume_of(path)?.ok_or(OpenFault::NotFound)?;
        if rest.is_empty() {
            return Err(OpenFault::NotFound);
        }
        Ok((self.volumes[index].id, rest))
    }

    /// The volume of `path`, whether or not an object is there; none above all volumes.
    pub fn volume_at(&self, path: &RequestPath) -> Option<VolumeId> {
        let (index, _) = self.volume_of(path).ok()??;
        Some(self.volumes[index].id)
    }

    /// The mount of a volume, without outer slashes.
    pub fn mount_of(&self, volume: VolumeId) -> &str {
        &self.volumes[usize::from(volume.0)].mount
    }

    /// A directory that holds only mount points.
    fn mounts(&self, path: &RequestPath) -> Result<PathObject, OpenFault> {
        let above = |volume: &Volume| volume.below(path.name()).is_some();
        match self.volumes.iter().any(above) {
            true => {
                Ok(PathObject::Directory(Directory { open: None, path: path.name().to_owned() }))
            }
            false => Err(OpenFault::NotFound),
        }
    }

    fn known(
        &self,
        path: &RequestPath,
        index: usize,
        opened: OpenObject,
    ) -> Result<PathLookup, OpenFault> {
        match opened {
            OpenObject::Directory { handle } => {
                let directory = Directory { open: Some((index, handle)), path: path.name().into() };
                Ok(PathLookup::Known(PathObject::Directory(directory)))
            }
            // `/film.ts/` is not the title `/film.ts`: one object has one name.
            OpenObject::File { .. } if path.is_directory() => Err(OpenFault::NotFound),
            OpenObject::File { file, version } => {
                // The type follows the requested path: another name of the same file may imply
                // another type.
                let media_type = media_type::of(path.name());
                Ok(match self.known.get(&(version, media_type)) {
                    Some(title) => PathLookup::Known(PathObject::Title(title)),
                    None => PathLookup::New(NewTitle { file, version, volume: index, media_type }),
                })
            }
        }
    }

    /// A title for a file that need not have a name. It is not remembered.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn unnamed(
        &self,
        volume: VolumeId,
        file: &OwnedFd,
        len: Bytes,
    ) -> io::Result<Arc<OpenTitle>> {
        let (file, id) = (file.try_clone()?, self.number());
        let direct = volume::read_past_cache(&file).map_err(|_| rustix::io::Errno::IO)?;
        Ok(Arc::new(OpenTitle {
            id,
            volume,
            position: volume::sweep_key(&file),
            direct,
            file,
            len,
            modified: WallTime(0),
            etag: format!("\"u{}\"", id.0),
            media_type: media_type::of(""),
            sums: None,
            media: OnceCell::new_with(Some(None)),
            sent_file: OnceLock::new(),
            following: None,
        }))
    }

    /// The current problems.
    pub fn conditions(&self) -> &Conditions {
        &self.rules.conditions
    }

    /// Inspects a whole volume for files that cannot be served, and queues titles without an index
    /// of their present content: transport streams, and titles of other containers whose frames
    /// have no table. May block for long; returns early when `stop` returns true.
    pub fn inspect(&self, volume: usize, stop: impl Fn() -> bool) {
        let Some(inspected) = self.volumes.get(volume) else { return };
        let index = |name: &str, stat: &Stat| {
            if self.wants_index(volume, name, stat) {
                self.queue_index(inspected.id, name);
            }
        };
        let (mount, conditions) = (inspected.shown_mount(), &self.rules.conditions);
        inspection::inspect(inspected.root(), &mount, conditions, stop, index);
    }

    /// Opens a volume's directory again if another file system is mounted there and `may` allows
    /// it; returns whether it did. May block.
    ///
    /// # Errors
    /// When the directory cannot be opened.
    pub fn reopen(&self, volume: usize, may: impl FnOnce() -> bool) -> io::Result<bool> {
        self.volumes.get(volume).map_or(Ok(false), |volume| volume.reopen(may))
    }

    /// Converts a failed opening of `path`; raises a condition if a permission is missing.
    fn told(&self, path: &RequestPath, fault: volume::Fault) -> OpenFault {
        if fault == volume::Fault::Denied {
            let text = "the server lacks the permission: let it read the file and enter its \
                        directories";
            self.rules.conditions.raise(Kind::Unreadable, &format!("/{}", path.name()), text);
        }
        fault.into()
    }

    /// Reports a title without bytes by its path.
    fn report_empty(&self, volume: usize, file: &OwnedFd) {
        let volume = &self.volumes[volume];
        let (path, root) = (path_of(file), path_of_fd(volume.root()));
        if let Ok(name) = path.strip_prefix(root) {
            let subject = format!("{}{}", volume.shown_mount(), name.display());
            let text = "the title has no bytes: store it again, or delete it";
            self.rules.conditions.raise(Kind::Empty, &subject, text);
        }
    }

    /// Ends conditions of single titles whose cause is gone. May block.
    pub fn recheck(&self) {
        for condition in self.rules.conditions.all() {
            let kind = condition.kind;
            let is_title = !condition.subject.ends_with('/');
            if !is_title || !matches!(kind, Kind::Unreadable | Kind::Empty) {
                continue;
            }
            let name = condition.subject.trim_start_matches('/');
            let within = |(index, volume): (usize, &Volume)| {
                Some((index, path_below(name, &volume.mount)?.to_owned()))
            };
            let all = self.volumes.iter().enumerate().filter_map(within);
            let Some((index, rest)) = all.min_by_key(|(_, rest)| rest.len()) else { continue };
            let stands = match self.volumes[index].open_beneath(&rest, WaitPolicy::AsNeeded) {
                Ok(OpenObject::File { version, .. }) => {
                    kind == Kind::Empty && version.len == Bytes(0)
                }
                Err(fault) => kind == Kind::Unreadable && fault == volume::Fault::Denied,
                Ok(OpenObject::Directory { .. }) => false,
            };
            if !stands {
                self.rules.conditions.clear(kind, &condition.subject);
            }
        }
    }

    /// Forgets the title that `file` is: the next request finds its checksums.
    pub fn forget(&self, file: impl AsFd) {
        if let Ok(stat) = rustix::fs::fstat(file) {
            self.known.forget_version(&FileVersion::of(&stat));
        }
    }

    /// A number that no other title has.
    fn number(&self) -> TitleId {
        TitleId(self.next_title.fetch_add(1, Ordering::Relaxed))
    }

    /// Reads the missing facts about a title, and remembers it. May block.
    fn remember(&self, new: NewTitle) -> Result<Arc<OpenTitle>, OpenFault> {
        let NewTitle { file, version, volume, media_type } = new;
        if version.len == Bytes(0) {
            self.report_empty(volume, &file);
        }
        let sums = (self.rules.sums)(self.volumes[volume].root().as_fd(), file.as_fd());
        let sums = match sums {
            Ok(sums) => sums,
            // A lack of file handles or memory does not mean damaged checksums.
            Err(ChecksumFault::Unreadable(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => {
                return Err(OpenFault::Busy);
            }
            Err(damaged) => {
                self.damaged.fetch_add(1, Ordering::Relaxed);
                let name = path_of(&file);
                // Each request for the title finds the same damage, so the log is limited.
                let shown = name.display().to_string();
                if let Some(left_out) = warnings::poll("damaged", &shown) {
                    tracing::error!(title = shown, left_out, "a title is not served: {damaged}");
                }
                return Err(damaged.into());
            }
        };
        let title = OpenTitle {
            id: self.number(),
            volume: self.volumes[volume].id,
            position: volume::sweep_key(&file),
            direct: volume::read_past_cache(&file)?,
            file,
            len: version.len,
            modified: version.modified_wall(),
            etag: version.etag(),
            media_type,
            sums,
            sent_file: OnceLock::new(),
            media: self
                .survey
                .known(&(version, media_type))
                .map_or_else(OnceCell::new, OnceCell::from),
            following: None,
        };
        Ok(self.known.remember((version, media_type), Arc::new(title)))
    }
}

/// Whether the file at `path` has this entity tag; true if the file cannot be read. May block.
pub fn is_version(path: &Path, etag: &str) -> bool {
    match rustix::fs::lstat(path) {
        Ok(stat) => FileVersion::of(&stat).etag() == etag,
        Err(errno) => errno != rustix::io::Errno::NOENT,
    }
}

/// The path of an open file, as the kernel reports it now; for logs.
pub fn path_of(file: &OwnedFd) -> PathBuf {
    path_of_fd(file)
}

fn path_of_fd(file: impl AsFd) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())).unwrap_or_default()
}

/// The result of opening a path.
enum PathLookup {
    Known(PathObject),
    New(NewTitle),
}

/// A title that is not remembered yet.
struct NewTitle {
    file: OwnedFd,
    version: FileVersion,
    volume: usize,
    media_type: &'static str,
}

/// The part of `path` below `mount`; none if `path` lies elsewhere. Both have no outer slashes.
fn path_below<'a>(path: &'a str, mount: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(mount)?;
    match (mount.is_empty(), rest.is_empty()) {
        (true, _) | (_, true) => Some(rest),
        (false, false) => rest.strip_prefix('/'),
    }
}

impl From<volume::Fault> for OpenFault {
    fn from(fault: volume::Fault) -> Self {
        match fault {
            volume::Fault::NotServed => Self::NotFound,
            volume::Fault::Denied => Self::Denied,
            volume::Fault::WouldWait | volume::Fault::OutOfHandles => Self::Busy,
            volume::Fault::Failed(errno) => Self::Failed(errno.raw_os_error()),
        }
    }
}

#[cfg(test)]
mod tests;
