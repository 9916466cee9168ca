//! The index of a title: made from its file and stored beside it.
//!
//! Promise: a stored index belongs to this file with this content. It is written under a temporary
//! name and renamed, without a sync, and never changes a title. A volume without the `.tactus`
//! directory is not written to.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, AtFlags, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use tactus_core::ts::{Index, IndexFault, Indexer};
use tactus_core::units::MIB;

use crate::RESERVED;

/// Why there is no index.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The title can have no index.
    #[error(transparent)]
    Fault(#[from] IndexFault),
    /// The title changed meanwhile.
    #[error("the title changes while it is read")]
    Changed,
    /// The title cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// The file that an index belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owner {
    inode: u64,
    len: u64,
    modified: (i64, u32),
}

/// Bytes read at once.
const PIECE: usize = MIB as usize;
const MAGIC: &[u8; 8] = b"TactuIdx";
const VERSION: u32 = 5;
/// Magic, version, inode, length, two parts of the modification time.
const HEAD: usize = 8 + 4 + 8 + 8 + 8 + 4;
/// Upper bound of an index: a point takes at most ten bytes, an access point fifteen.
const KEPT_MAX: u64 = 8 * MIB;

/// Makes the index of `file`. After each piece `rest` gets its length and its read time.
///
/// # Errors
/// If it has none, or cannot be read.
pub fn make(
    file: &File,
    mut rest: impl FnMut(usize, Duration),
) -> Result<(Index, Stat), IndexError> {
    let before = stat(file)?;
    // Read once: the page cache should keep the data of streams. Not every kernel supports this.
    rustix::fs::fadvise(file, 0, None, Advice::NoReuse).unwrap_or_default();
    let (mut indexer, mut piece) = (Indexer::default(), vec![0; PIECE]);
    loop {
        let begun = Instant::now();
        let count = match file.read_at(&mut piece, indexer.len()) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        indexer.add(&piece[..count]);
        if indexer.is_hopeless() {
            break;
        }
        rest(count, begun.elapsed());
    }
    let index = indexer.finish()?;
    let after = stat(file)?;
    match Owner::of(&before) == Owner::of(&after) && index.len() == Owner::of(&after).len {
        true => Ok((index, after)),
        false => Err(IndexError::Changed),
    }
}

/// The stored index below `root` for the file with this status, if any.
pub fn kept(root: impl AsFd, of: &Stat) -> Option<Index> {
    let owner = Owner::of(of);
    let ours = directory(root, "index").ok()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::openat(ours, owner.place(), flags, Mode::empty()).ok()?;
    let file = File::from(file);
    let len = file.metadata().ok().filter(|facts| facts.is_file())?.len();
    let mut bytes = vec![0; usize::try_from(len).ok().filter(|_| len <= KEPT_MAX)?];
    file.read_exact_at(&mut bytes, 0).ok()?;
    decode(&bytes, owner)
}

/// Stores `index` for the file with this status below `root`; false if there is no directory for
/// it.
///
/// # Errors
/// If it cannot be written.
pub fn keep(root: impl AsFd, of: &Stat, index: &Index) -> io::Result<bool> {
    let owner = Owner::of(of);
    let root = root.as_fd();
    match directory(root, ".") {
        Ok(ours) => make_directory(&ours, "index")?,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    }
    let ours = directory(root, "index")?;
    let place = owner.place();
    make_directory(&ours, &place[..2])?;
    // A concurrent writer writes the same bytes.
    let new = format!("{place}.new");
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(&ours, &new, flags, Mode::from_raw_mode(0o644))?;
    let written = File::from(file).write_all_at(&encode(index, owner), 0);
    let named = written.and_then(|()| Ok(rustix::fs::renameat(&ours, &new, &ours, &place)?));
    if named.is_err() {
        // Leftovers are overwritten later.
        rustix::fs::unlinkat(&ours, &new, AtFlags::empty()).unwrap_or_default();
    }
    named.map(|()| true)
}

/// Removes the index of a file that is about to be removed.
pub fn forget(root: impl AsFd, inode: u64) {
    let owner = Owner { inode, len: 0, modified: (0, 0) };
    if let Ok(ours) = directory(root, "index") {
        // A leftover does not match another file, and the next scan of the volume removes it.
        rustix::fs::unlinkat(&ours, owner.place(), AtFlags::empty()).unwrap_or_default();
    }
}

/// Whether a file is unchanged.
#[must_use]
pub fn is_same(one: &Stat, other: &Stat) -> bool {
    Owner::of(one) == Owner::of(other)
}

/// Removes the indexes below `root` of all files but these inodes. Returns their number.
///
/// # Errors
/// If they cannot be listed or removed.
pub fn remove_others(root: impl AsFd, inodes: &[u64]) -> io::Result<u64> {
    let ours = match directory(root, "index") {
        Err(Errno::NOENT) => return Ok(0),
        ours => ours?,
    };
    let inodes: std::collections::HashSet<_> = inodes.iter().copied().collect();
    let mut removed = 0;
    for group in 0..=0xffu8 {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = rustix::fs::openat(&ours, format!("{group:02x}"), flags, Mode::empty());
        let group = match open {
            Err(Errno::NOENT) => continue,
            group => group?,
        };
        for entry in rustix::fs::Dir::read_from(&group)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_of_none = match u64::from_str_radix(&name, 16) {
                Ok(inode) => !inodes.contains(&inode),
                // A leftover of a failed write.
                Err(_) => name.ends_with(".new"),
            };
            if is_of_none {
                rustix::fs::unlinkat(&group, entry.file_name(), AtFlags::empty())?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

impl Owner {
    fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            len: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
        }
    }

    fn place(self) -> String {
        format!("{:02x}/{:x}", self.inode & 0xff, self.inode)
    }
}

fn encode(index: &Index, owner: Owner) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend(owner.inode.to_le_bytes());
    out.extend(owner.len.to_le_bytes());
    out.extend(owner.modified.0.to_le_bytes());
    out.extend(owner.modified.1.to_le_bytes());
    out.extend(index.encode());
    out.extend(crc32c::crc32c(&out).to_le_bytes());
    out
}

fn decode(bytes: &[u8], owner: Owner) -> Option<Index> {
    let (body, sum) = bytes.split_last_chunk::<4>()?;
    let (head, index) = body.split_at_checked(HEAD)?;
    let number = |at: usize| Some(u64::from_le_bytes(*head.get(at..)?.first_chunk()?));
    let short = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?));
    let is_ours = head.starts_with(MAGIC)
        && crc32c::crc32c(body) == u32::from_le_bytes(*sum)
        && short(8)? == VERSION
        && (number(12)?, number(20)?) == (owner.inode, owner.len)
        && (number(28)?, short(36)?) == (owner.modified.0 as u64, owner.modified.1);
    Index::decode(index).filter(|index| is_ours && index.len() == owner.len)
}

/// A directory of the server below `root`.
fn directory(root: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(root, format!("{RESERVED}/{name}"), flags, Mode::empty(), resolve)
}

fn make_directory(within: impl AsFd, name: &str) -> io::Result<()> {
    match rustix::fs::mkdirat(within, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn stat(file: &File) -> io::Result<Stat> {
    Ok(rustix::fs::fstat(file)?)
}

#[cfg(any(test, feature = "fuzz-targets"))]
pub(crate) mod fuzz_targets {
    use super::*;

    /// Parses the bytes of an index file of any owner.
    pub(crate) fn kept(bytes: &[u8]) -> bool {
        let number = |at: usize| {
            bytes
                .get(at..)
                .and_then(|rest| rest.first_chunk())
                .map(|bytes| u64::from_le_bytes(*bytes))
        };
        let (Some(inode), Some(len), Some(seconds)) = (number(12), number(20), number(28)) else {
            return false;
        };
        let nanos = bytes.get(36..).and_then(|rest| rest.first_chunk());
        let nanos = nanos.map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let owner = Owner { inode, len, modified: (seconds as i64, nanos) };
        let Some(index) = decode(bytes, owner) else { return false };
        assert!(index.time_at(index.len()) == index.duration());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;
    use std::fs;
    use tactus_core::units::SECOND;

    fn status(file: &File) -> Stat {
        stat(file).unwrap()
    }

    #[test]
    fn an_index_is_kept_for_its_title_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let (root, path) = (File::open(dir.path()).unwrap(), dir.path().join("a.ts"));
        Sample::ts(SECOND.times(20)).write(&path).unwrap();
        let file = File::open(&path).unwrap();
        let (index, stat) = make(&file, |_, _| {}).unwrap();
        assert!(!keep(&root, &stat, &index).unwrap(), "somebody else's directory");
        assert!(kept(&root, &stat).is_none());
        fs::create_dir(dir.path().join(RESERVED)).unwrap();
        assert!(keep(&root, &stat, &index).unwrap());
        assert_eq!(kept(&root, &stat).as_ref(), Some(&index));

        fs::rename(&path, dir.path().join("b.ts")).unwrap();
        assert_eq!(kept(&root, &status(&file)), Some(index), "it goes with its title");
        fs::copy(dir.path().join("b.ts"), &path).unwrap();
        assert!(kept(&root, &status(&File::open(&path).unwrap())).is_none());
        let text = fs::OpenOptions::new().append(true).open(dir.path().join("b.ts")).unwrap();
        text.write_all_at(b"x", 0).unwrap();
        assert!(kept(&root, &status(&file)).is_none(), "it was changed");
    }

    #[test]
    fn a_damaged_index_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let (root, path) = (File::open(dir.path()).unwrap(), dir.path().join("a.ts"));
        fs::create_dir(dir.path().join(RESERVED)).unwrap();
        Sample::ts(SECOND.times(5)).write(&path).unwrap();
        let (index, stat) = make(&File::open(&path).unwrap(), |_, _| {}).unwrap();
        keep(&root, &stat, &index).unwrap();
        let place = dir.path().join(RESERVED).join("index").join(Owner::of(&stat).place());
        let bytes = fs::read(&place).unwrap();
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            fs::write(&place, &bytes).unwrap();
            assert!(kept(&root, &stat).is_none(), "byte {at}");
        }
        fs::write(&place, &bytes[..bytes.len() / 2]).unwrap();
        assert!(kept(&root, &stat).is_none());
        fs::write(&place, &bytes).unwrap();
        assert_eq!(kept(&root, &stat), Some(index));
        assert_eq!(remove_others(&root, &[stat.st_ino]).unwrap(), 0);
        forget(&root, stat.st_ino + 256);
        assert!(kept(&root, &stat).is_some(), "another one's");
        forget(&root, stat.st_ino);
        assert!(kept(&root, &stat).is_none());
        fs::write(&place, &bytes).unwrap();
        assert_eq!(remove_others(&root, &[]).unwrap(), 1);
        assert!(kept(&root, &stat).is_none());
    }

    #[test]
    fn truncated_damaged_foreign_and_empty_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.ts");
        let made = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            make(&File::open(&path).unwrap(), |_, _| {}).map(|(index, _)| index)
        };
        Sample::ts(SECOND.times(10)).write(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        let index = made(&whole).unwrap();
        let truncated = made(&whole[..whole.len() / 2 + 77]).unwrap();
        assert_eq!(truncated.flaws().skipped_bytes, truncated.len() % 188);
        assert!(truncated.duration() < index.duration());

        let mut damaged = whole.clone();
        damaged.splice(100_000..100_500, std::iter::repeat_n(0, 123));
        let damaged = made(&damaged).unwrap();
        assert!(damaged.flaws().sync_losses > 0 && damaged.flaws().gaps > 0);

        let m2ts: Vec<u8> = whole.chunks(188).flat_map(|one| [&[0; 4], one].concat()).collect();
        let m2ts = made(&m2ts).unwrap();
        assert_eq!((m2ts.stride(), m2ts.packets()), (192, index.packets()));
        assert_eq!(m2ts.accesses().len(), index.accesses().len());

        for bytes in [&b""[..], b"G", &[0x47; 700], &[0; 300_000], b"<html>no film</html>"] {
            let fault = made(bytes).unwrap_err();
            assert!(matches!(fault, IndexError::Fault(IndexFault::NotTransport)), "{fault}");
        }
        Sample::mp4(SECOND).write(&path).unwrap();
        let movie = fs::read(&path).unwrap();
        assert!(matches!(made(&movie), Err(IndexError::Fault(IndexFault::NotTransport))));
    }
}
