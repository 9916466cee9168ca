//! Checksums of a title: one CRC32C for each 64 KiB, in a manifest with a checksum of its own. The
//! manifest of a short title is an attribute of its file and costs no flush of its own; other
//! manifests are files.
//!
//! Promise: a manifest that was read successfully equals the one that was written, for a title of
//! this length. Everything else is damage. Writing and reading share one encoding.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;
use tactus_core::sums::{self, combine};
use tactus_core::units::Bytes;

use super::id::StoreId;
pub use crate::catalogue::ChecksumFault;

/// Bytes that have one checksum.
pub const UNIT: u64 = sums::UNIT.0;

/// The attribute that refers to a title's checksums, and holds the inode that they were made for.
pub(super) const ATTRIBUTE: &str = "user.tactus";
/// The attribute that names the principal whose quota a title counts against.
pub(super) const OWNER_ATTRIBUTE: &str = "user.tactus.owner";

/// The checksums of one version of a title.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sums {
    whole: u32,
    table: Arc<sums::Sums>,
}

impl Sums {
    /// Length of the title.
    #[must_use]
    pub fn len(&self) -> Bytes {
        self.table.title_len()
    }

    /// CRC32C of the whole title.
    #[must_use]
    pub fn whole(&self) -> u32 {
        self.whole
    }

    /// CRC32C of each [`UNIT`], in the form that the block server uses; the last unit may be
    /// shorter.
    #[must_use]
    pub fn table(&self) -> &Arc<sums::Sums> {
        &self.table
    }

    fn new(len: Bytes, whole: u32, units: Vec<u32>) -> Option<Self> {
        let table = sums::Sums::new(len, units.into_boxed_slice())?;
        Some(Self { whole, table: Arc::new(table) })
    }
}

/// Computes checksums while bytes arrive.
#[derive(Clone, Debug, Default)]
pub(super) struct SumsBuilder {
    /// Units before the first counted one.
    first: usize,
    /// Checksums of the whole units since.
    units: Vec<u32>,
    /// CRC32C of all bytes of whole units.
    prefix: u32,
    /// CRC32C of the bytes after the last whole unit.
    partial: u32,
    len: u64,
}

/// The state of a [`SumsBuilder`] at one length; it continues without any earlier byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SumsState {
    pub(super) len: u64,
    /// CRC32C of all bytes.
    pub(super) whole: u32,
    /// CRC32C of the bytes after the last whole unit.
    pub(super) partial: u32,
}

impl SumsBuilder {
    /// Continues from `mark`. The result has only the units that end after it.
    pub(super) fn after(mark: SumsState, prefix: u32) -> Self {
        let first = (mark.len / UNIT) as usize;
        Self { first, units: Vec::new(), prefix, partial: mark.partial, len: mark.len }
    }

    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let left = UNIT - self.len % UNIT;
            let (now, rest) = bytes.split_at(bytes.len().min(left as usize));
            self.partial = crc32c::crc32c_append(self.partial, now);
            self.len += now.len() as u64;
            if self.len.is_multiple_of(UNIT) {
                self.prefix = combine(self.prefix, self.partial, sums::UNIT);
                self.units.push(self.partial);
                self.partial = 0;
            }
            bytes = rest;
        }
    }

    pub(super) fn mark(&self) -> SumsState {
        let whole = combine(self.prefix, self.partial, Bytes(self.len % UNIT));
        SumsState { len: self.len, whole, partial: self.partial }
    }

    /// CRC32C of the whole units so far.
    pub(super) fn prefix(&self) -> u32 {
        self.prefix
    }

    /// The checksums of whole units from unit `from` on, counted from the title's beginning.
    pub(super) fn units_from(&self, from: usize) -> &[u32] {
        &self.units[from - self.first..]
    }

    /// Whole units so far, counted from the title's beginning.
    pub(super) fn ended(&self) -> usize {
        self.first + self.units.len()
    }

    /// The checksums of all bytes, if the builder has counted from the first byte on.
    pub(super) fn finish(self) -> Sums {
        assert_eq!(self.first, 0, "the sums of a title begin at its beginning");
        let mark = self.mark();
        Sums::of(self.units, mark)
    }
}

impl Sums {
    /// From the whole units and the state at their end.
    pub(super) fn of(mut units: Vec<u32>, mark: SumsState) -> Self {
        if !mark.len.is_multiple_of(UNIT) {
            units.push(mark.partial);
        }
        Self::new(Bytes(mark.len), mark.whole, units).expect("one sum for each unit")
    }

    /// The content of a manifest.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(manifest_len(self.len().0) as usize);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend((UNIT as u32).to_le_bytes());
        out.extend(self.len().0.to_le_bytes());
        out.extend(self.whole.to_le_bytes());
        for unit in self.table.units() {
            out.extend(unit.to_le_bytes());
        }
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// Reads a manifest.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, ChecksumFault> {
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or(ChecksumFault::Manifest)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(ChecksumFault::Manifest);
        }
        let mut reader = Reader(body);
        if reader.take::<8>()? != *MAGIC || reader.u32()? != VERSION || reader.u32()? != UNIT as u32
        {
            return Err(ChecksumFault::Unknown);
        }
        let (len, whole) = (reader.u64()?, reader.u32()?);
        if bytes.len() as u64 != manifest_len(len) {
            return Err(ChecksumFault::Manifest);
        }
        let units = reader.0.chunks_exact(4);
        let unit = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("chunks of four"));
        Self::new(Bytes(len), whole, units.map(unit).collect()).ok_or(ChecksumFault::Manifest)
    }
}

const MAGIC: &[u8; 8] = b"TactuSum";
const VERSION: u32 = 1;
/// Magic, version, unit, length, whole; then the units; then the manifest's own sum.
const HEAD: u64 = 8 + 4 + 4 + 8 + 4;

fn manifest_len(len: u64) -> u64 {
    len.div_ceil(UNIT).saturating_mul(4).saturating_add(HEAD + 4)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], ChecksumFault> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(ChecksumFault::Manifest)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32, ChecksumFault> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, ChecksumFault> {
        self.take().map(u64::from_le_bytes)
    }
}

/// The checksums of one volume, for readers of its titles. Needs no store.
#[derive(Debug)]
pub struct Manifests {
    sums: OwnedFd,
}

impl Manifests {
    /// The checksums of the volume at `root`; none if it has had no upload yet.
    ///
    /// # Errors
    /// When the directory exists and cannot be opened.
    pub fn open(root: impl AsFd) -> io::Result<Option<Self>> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        match rustix::fs::openat2(root, ".tactus/sums", flags, Mode::empty(), resolve) {
            Ok(sums) => Ok(Some(Self { sums })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The checksums of a title that is open below `root`, in the form that the catalogue uses. May
    /// block.
    ///
    /// # Errors
    /// When its checksums do not fit the title, or cannot be read.
    pub fn look_up(
        root: BorrowedFd<'_>,
        title: BorrowedFd<'_>,
    ) -> Result<Option<Arc<sums::Sums>>, ChecksumFault> {
        Ok(Self::of_title(root, title)?.map(|sums| Arc::clone(sums.table())))
    }

    /// The same with the checksum of the whole title.
    pub(super) fn of_title(
        root: BorrowedFd<'_>,
        title: BorrowedFd<'_>,
    ) -> Result<Option<Arc<Sums>>, ChecksumFault> {
        // Most files of most volumes have none: the attribute alone shows that.
        let Some(mark) = SumsAttribute::read(title)? else { return Ok(None) };
        let unreadable = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let open =
            Self::open(root).map_err(|error| ChecksumFault::Unreadable(unreadable(error)))?;
        match open {
            Some(manifests) => manifests.sums_of(title),
            None => match mark.location {
                SumsLocation::Here(sums) => Ok(Some(Arc::new(sums))),
                SumsLocation::Apart(_) => {
                    let stat = rustix::fs::fstat(title)
                        .map_err(|e| ChecksumFault::Unreadable(e.raw_os_error()))?;
                    if mark.inode == stat.st_ino { Err(ChecksumFault::Missing) } else { Ok(None) }
                }
            },
        }
    }

    pub(super) fn within(sums: OwnedFd) -> Self {
        Self { sums }
    }

    /// The checksums of an open title; none when it has none. May block.
    ///
    /// # Errors
    /// When its checksums do not fit the title, or cannot be read.
    pub fn sums_of(&self, title: impl AsFd) -> Result<Option<Arc<Sums>>, ChecksumFault> {
        let title = title.as_fd();
        let Some(mark) = SumsAttribute::read(title)? else { return Ok(None) };
        let stat =
            rustix::fs::fstat(title).map_err(|e| ChecksumFault::Unreadable(e.raw_os_error()))?;
        let len = u64::try_from(stat.st_size).unwrap_or(0);
        let sums = match mark.location {
            SumsLocation::Here(sums) => sums,
            SumsLocation::Apart(id) => match self.read_manifest(id, len) {
                // A copy has the attribute of its original, and may exist longer than the
                // original's checksums.
                Err(ChecksumFault::Missing) if mark.inode != stat.st_ino => return Ok(None),
                Err(ChecksumFault::Missing) if self.is_due(id) => return Ok(None),
                // They may have been made between the two looks.
                Err(ChecksumFault::Missing) => self.read_manifest(id, len)?,
                sums => sums?,
            },
        };
        if sums.len().0 != len {
            return Err(ChecksumFault::Length);
        }
        Ok(Some(Arc::new(sums)))
    }

    /// The manifest of a title of `len` bytes.
    fn read_manifest(&self, id: StoreId, len: u64) -> Result<Sums, ChecksumFault> {
        let unreadable = |errno: Errno| ChecksumFault::Unreadable(errno.raw_os_error());
        let manifest = match self.open_manifest(id) {
            Err(Errno::NOENT) => return Err(ChecksumFault::Missing),
            manifest => manifest.map_err(unreadable)?,
        };
        let size = rustix::fs::fstat(&manifest).map_err(unreadable)?.st_size;
        // Checked before reading: a damaged file may have any length.
        let limit = manifest_len(len).max(manifest_len(0));
        let mut bytes = vec![0; usize::try_from(limit).map_err(|_| ChecksumFault::Length)?];
        if u64::try_from(size).unwrap_or(u64::MAX) > limit {
            return Err(ChecksumFault::Length);
        }
        let mut filled = 0;
        loop {
            match rustix::io::pread(&manifest, &mut bytes[filled..], filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(unreadable(errno)),
            }
        }
        Sums::decode(&bytes[..filled])
    }

    /// Opens a manifest; moves it back if the census has put it aside.
    fn open_manifest(&self, id: StoreId) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = place_of(id);
        match rustix::fs::openat(&self.sums, &path, flags, Mode::empty()) {
            Err(Errno::NOENT) => {}
            done => return done,
        }
        let aside = format!("{ASIDE}/{id}");
        match rustix::fs::renameat(&self.sums, &aside, &self.sums, &path) {
            // Another reader may have moved it back at the same time.
            Ok(()) | Err(Errno::NOENT) => {
                rustix::fs::openat(&self.sums, &path, flags, Mode::empty())
            }
            // On a read-only volume the manifest is read where it lies.
            Err(_) => rustix::fs::openat(&self.sums, &aside, flags, Mode::empty()),
        }
    }

    /// Whether the checksums `id` are still to be made.
    pub(super) fn is_due(&self, id: StoreId) -> bool {
        // In the order in which the census renames a mark whose title it has found.
        due_places(id)
            .iter()
            .rev()
            .any(|place| rustix::fs::statat(&self.sums, place, AtFlags::SYMLINK_NOFOLLOW).is_ok())
    }

    /// Removes the checksums, and the mark that they are due. Missing ones count as removed.
    pub(super) fn remove(&self, id: StoreId) -> io::Result<()> {
        let [due, unfound] = due_places(id);
        // The mark first: without it no manifest comes into its place.
        for place in [due, unfound, place_of(id)] {
            match rustix::fs::unlinkat(&self.sums, place, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    pub(super) fn directory(&self) -> &OwnedFd {
        &self.sums
    }
}

/// Where the census puts manifests without a title.
pub(super) const ASIDE: &str = "aside";

/// Where manifests are that are still to be made.
pub(super) const DUE: &str = "due";
/// The end of the name of such a manifest whose title the last census has not found.
pub(super) const UNFOUND: &str = "~";

/// The paths below `sums/` that a manifest may have while it is still to be made.
pub(super) fn due_places(id: StoreId) -> [String; 2] {
    ["", UNFOUND].map(|end| format!("{DUE}/{id}{end}"))
}

/// The path of a manifest below `sums/`.
pub(super) fn place_of(id: StoreId) -> String {
    format!("{:02x}/{id}", id.0[0])
}

/// The content of the attribute: where the checksums are, and for which inode they were made. The
/// inode distinguishes the title from a copy that has the same attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SumsAttribute {
    pub(super) inode: u64,
    pub(super) location: SumsLocation,
}

/// Where a title's checksums are stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum SumsLocation {
    /// In a manifest file with this name.
    Apart(StoreId),
    /// In the attribute itself.
    Here(Sums),
}

/// Most units whose checksums an attribute holds: they fit beside the other attributes of an inode,
/// or into one block. A title of 1 MiB.
pub const ATTRIBUTE_UNITS_MAX: usize = 16;

/// First byte of an attribute that holds the checksums themselves; the name of a manifest never
/// begins with it.
const HERE: u8 = b'+';

/// Longest value of the attribute.
const MARK_MAX: usize = 256;

impl SumsAttribute {
    pub(super) fn id(&self) -> Option<StoreId> {
        match self.location {
            SumsLocation::Apart(id) => Some(id),
            SumsLocation::Here(_) => None,
        }
    }

    pub(super) fn write(&self, title: impl AsFd) -> Result<(), Errno> {
        let value = match &self.location {
            SumsLocation::Apart(id) => format!("{id}.{:x}", self.inode).into_bytes(),
            SumsLocation::Here(sums) => {
                [&[HERE], &self.inode.to_le_bytes()[..], &sums.encode()].concat()
            }
        };
        rustix::fs::fsetxattr(title, ATTRIBUTE, &value, XattrFlags::empty())
    }

    /// None when there is no attribute: the file is not an uploaded title.
    pub(super) fn read(title: impl AsFd) -> Result<Option<Self>, ChecksumFault> {
        let mut value = [0; MARK_MAX];
        let value = attribute(title, ATTRIBUTE, &mut value)
            .map_err(|errno| ChecksumFault::Unreadable(errno.raw_os_error()))?;
        value.map(Self::decode).transpose()
    }

    fn decode(value: &[u8]) -> Result<Self, ChecksumFault> {
        if let Some((&HERE, rest)) = value.split_first() {
            let (inode, manifest) = rest.split_first_chunk().ok_or(ChecksumFault::Manifest)?;
            let location = SumsLocation::Here(Sums::decode(manifest)?);
            return Ok(Self { inode: u64::from_le_bytes(*inode), location });
        }
        let mark = || {
            let (id, inode) = std::str::from_utf8(value).ok()?.split_once('.')?;
            let location = SumsLocation::Apart(id.parse().ok()?);
            Some(Self { inode: u64::from_str_radix(inode, 16).ok()?, location })
        };
        mark().ok_or(ChecksumFault::Unknown)
    }
}

/// The value of an extended attribute, if there is one that fits into the buffer.
pub(super) fn attribute<'a>(
    file: impl AsFd,
    name: &str,
    value: &'a mut [u8],
) -> Result<Option<&'a [u8]>, Errno> {
    match rustix::fs::fgetxattr(file, name, &mut *value) {
        Ok(len) => Ok(Some(&value[..len])),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}
