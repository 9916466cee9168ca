//! The index of a title: made from its file and stored beside it. Of a title whose frames have no
//! table, its consumption is stored in the same place.
//!
//! Promise: a stored index belongs to this file with this content. The status-change time tells
//! that the content is the same; when only that time differs, samples of the content decide, and
//! the index is marked as such ([`StoredIndex::Sampled`]). An index is written under a temporary
//! name and renamed, without a sync, and never changes a title. A volume without the `.tactus`
//! directory is not written to.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{Advice, AtFlags, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use tactus_core::smoothing::Consumption;
use tactus_core::ts::{Index, IndexFault, Indexer};
use tactus_core::units::{KIB, MIB};

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

/// A stored index that fits its title.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoredIndex {
    /// Nothing about the file has changed.
    Exact(Index),
    /// The status-change time differs, as after `chmod`, a rename, or a change whose modification
    /// time was set back. Samples of the content are the same.
    Sampled(Index),
}

impl StoredIndex {
    /// The index.
    #[must_use]
    pub fn into_index(self) -> Index {
        match self {
            Self::Exact(index) | Self::Sampled(index) => index,
        }
    }
}

/// The file that an index belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owner {
    inode: u64,
    len: u64,
    modified: (i64, u32),
    /// The time of the last change of the content or of an attribute.
    changed: (i64, u32),
}

/// Bytes read at once.
const PIECE: usize = MIB as usize;
const MAGIC: &[u8; 8] = b"TactuIdx";
const VERSION: u32 = 8;
/// Magic, version, inode, length, two times of two parts, the checksum of the samples.
const HEAD: usize = 8 + 4 + 8 + 8 + 2 * (8 + 4) + 4;
/// Samples of a title, evenly spread from its first bytes to its last ones: a quarter of a MiB, a
/// second of a spinning disk's time.
const SAMPLES: u64 = 64;
const SAMPLE: u64 = 4 * KIB;
/// Shorter titles are not sampled: a new index costs as little.
const SAMPLED_MIN: u64 = 8 * MIB;
/// The longest step of the kernel's clock for file times (`CONFIG_HZ=100`), twice. A change within
/// the same step as the one before may leave the times as they are.
const TIME_STEP: Duration = Duration::from_millis(20);
/// Upper bound of an index: a point or deadline takes at most ten bytes, an access
/// point twenty.
const KEPT_MAX: u64 = 8 * MIB;

/// Makes the index of `file`. After each piece `rest` gets its length and its read time.
///
/// # Errors
/// If it has none, or cannot be read.
pub fn make(
    file: &File,
    mut rest: impl FnMut(usize, Duration),
) -> Result<(Index, Stat), IndexError> {
    std::thread::sleep(until_settled(&stat(file)?));
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

/// How long to wait before `of` is read: each later change then has another status-change time.
#[must_use]
pub fn until_settled(of: &Stat) -> Duration {
    let (seconds, nanos) = (u64::try_from(of.st_ctime).unwrap_or(0), of.st_ctime_nsec as u32);
    let changed = UNIX_EPOCH + Duration::new(seconds, nanos);
    match SystemTime::now().duration_since(changed) {
        Ok(age) => TIME_STEP.saturating_sub(age),
        // The clock was set back.
        Err(_) => TIME_STEP,
    }
}

/// The stored index below `root` for `file`, whose status is `of`, if any.
pub fn kept(root: impl AsFd, of: &Stat, file: &File) -> Option<StoredIndex> {
    let len = Owner::of(of).len;
    let (content, is_exact) = kept_content(root, of, file)?;
    let Content::Index(index) = content else { return None };
    let index = Some(*index).filter(|index| index.len() == len)?;
    Some(if is_exact { StoredIndex::Exact(index) } else { StoredIndex::Sampled(index) })
}

/// The stored consumption below `root` for `file`, whose status is `of`, if any.
pub fn kept_consumption(root: impl AsFd, of: &Stat, file: &File) -> Option<Consumption> {
    let (Content::Consumption(consumption), _) = kept_content(root, of, file)? else { return None };
    Some(consumption).filter(|consumption| consumption.len().0 <= Owner::of(of).len)
}

/// What is stored, and whether nothing about the file has changed.
fn kept_content(root: impl AsFd, of: &Stat, file: &File) -> Option<(Content, bool)> {
    let owner = Owner::of(of);
    let stored = open_stored(root, owner)?;
    let len = stored.metadata().ok().filter(|facts| facts.is_file())?.len();
    let mut bytes = vec![0; usize::try_from(len).ok().filter(|_| len <= KEPT_MAX)?];
    stored.read_exact_at(&mut bytes, 0).ok()?;
    let (head, content) = decode(&bytes)?;
    if head.owner == owner {
        return Some((content, true));
    }
    let is_same = head.owner.has_same_content_times(owner)
        && owner.len >= SAMPLED_MIN
        && samples(file, owner.len).ok()? == head.samples;
    is_same.then_some((content, false))
}

/// Whether indexes are stored below `root`.
pub fn has_room(root: impl AsFd) -> bool {
    directory(root, ".").is_ok()
}

/// Whether the file with this status has an index that was made since its last change. Reads only
/// the beginning of the stored index.
pub fn is_kept(root: impl AsFd, of: &Stat) -> bool {
    let owner = Owner::of(of);
    let mut bytes = [0; HEAD];
    let read = |stored: File| stored.read_exact_at(&mut bytes, 0).ok();
    let read = open_stored(root, owner).and_then(read).is_some();
    read && Head::decode(&bytes).is_some_and(|head| head.owner == owner)
}

/// Stores `index` for `file`, whose status was `of` while it was read, below `root`; false if there
/// is no directory for it.
///
/// # Errors
/// If it cannot be written, or the file has changed.
pub fn keep(root: impl AsFd, of: &Stat, file: &File, index: &Index) -> io::Result<bool> {
    keep_encoded(root, of, file, &encoded(INDEX, &index.encode()))
}

/// The same for the consumption of a title whose frames have no table.
///
/// # Errors
/// As [`keep`].
pub fn keep_consumption(
    root: impl AsFd,
    of: &Stat,
    file: &File,
    consumption: &Consumption,
) -> io::Result<bool> {
    keep_encoded(root, of, file, &encoded(CONSUMPTION, &consumption.encode()))
}

fn keep_encoded(root: impl AsFd, of: &Stat, file: &File, content: &[u8]) -> io::Result<bool> {
    let owner = Owner::of(of);
    let head = Head { owner, samples: samples(file, owner.len)? };
    if Owner::of(&stat(file)?) != owner {
        return Err(io::Error::other(IndexError::Changed));
    }
    store(&root, head, content)
}

/// Writes an index file; false if there is no directory for it.
fn store(root: impl AsFd, head: Head, content: &[u8]) -> io::Result<bool> {
    let root = root.as_fd();
    match directory(root, ".") {
        Ok(ours) => make_directory(&ours, "index")?,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    }
    let ours = directory(root, "index")?;
    let place = place(head.owner.inode);
    make_directory(&ours, &place[..2])?;
    // A concurrent writer writes the same bytes.
    let new = format!("{place}.new");
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(&ours, &new, flags, Mode::from_raw_mode(0o644))?;
    let written = File::from(file).write_all_at(&encode(content, head), 0);
    let named = written.and_then(|()| Ok(rustix::fs::renameat(&ours, &new, &ours, &place)?));
    if named.is_err() {
        // Leftovers are overwritten later.
        rustix::fs::unlinkat(&ours, &new, AtFlags::empty()).unwrap_or_default();
    }
    named.map(|()| true)
}

/// Removes the index of a file that is about to be removed.
pub fn forget(root: impl AsFd, inode: u64) {
    if let Ok(ours) = directory(root, "index") {
        // A leftover does not match another file, and the next scan of the volume removes it.
        rustix::fs::unlinkat(&ours, place(inode), AtFlags::empty()).unwrap_or_default();
    }
}

/// The server itself has renamed a file: its index, made for the status `before`, stays exact.
pub fn carry(root: impl AsFd, before: &Stat, after: &Stat) {
    let (old, new) = (Owner::of(before), Owner::of(after));
    if !old.has_same_content_times(new) {
        return;
    }
    let read = || {
        let stored = open_stored(&root, old)?;
        let len = stored.metadata().ok().filter(|facts| facts.len() <= KEPT_MAX)?.len();
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        stored.read_exact_at(&mut bytes, 0).ok()?;
        let (head, content) = parts(&bytes).filter(|(head, _)| head.owner == old)?;
        Some((head, content.to_vec()))
    };
    if let Some((head, content)) = read() {
        // Without it the index is made again.
        store(&root, Head { owner: new, ..head }, &content).unwrap_or_default();
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

/// What an index file holds beside the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Head {
    owner: Owner,
    /// The CRC32C of the samples of the content; 0 for a title that is not sampled.
    samples: u32,
}

impl Owner {
    fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            len: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
            changed: (stat.st_ctime, stat.st_ctime_nsec as u32),
        }
    }

    /// Whether all but the status-change time is the same.
    fn has_same_content_times(self, other: Self) -> bool {
        Self { changed: other.changed, ..self } == other
    }
}

impl Head {
    fn encode(&self) -> Vec<u8> {
        let Owner { inode, len, modified, changed } = self.owner;
        let mut out = Vec::with_capacity(HEAD);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(inode.to_le_bytes());
        out.extend(len.to_le_bytes());
        for (seconds, nanos) in [modified, changed] {
            out.extend(seconds.to_le_bytes());
            out.extend(nanos.to_le_bytes());
        }
        out.extend(self.samples.to_le_bytes());
        out
    }

    fn decode(head: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let short = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let is_ours = head.starts_with(MAGIC) && short(8)? == VERSION;
        let owner = Owner {
            inode: number(12)?,
            len: number(20)?,
            modified: (number(28)? as i64, short(36)?),
            changed: (number(40)? as i64, short(48)?),
        };
        Some(Self { owner, samples: short(52)? }).filter(|_| is_ours)
    }
}

/// Where the index of an inode is stored.
fn place(inode: u64) -> String {
    format!("{:02x}/{inode:x}", inode & 0xff)
}

fn open_stored(root: impl AsFd, owner: Owner) -> Option<File> {
    let ours = directory(root, "index").ok()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let stored = rustix::fs::openat(ours, place(owner.inode), flags, Mode::empty()).ok()?;
    Some(File::from(stored))
}

/// The checksum of the samples of a title of `len` bytes.
fn samples(file: &File, len: u64) -> io::Result<u32> {
    if len < SAMPLED_MIN {
        return Ok(0);
    }
    let mut sum = 0;
    let mut sample = [0; SAMPLE as usize];
    let step = (len - SAMPLE) / (SAMPLES - 1);
    for nth in 0..SAMPLES {
        let at = if nth == SAMPLES - 1 { len - SAMPLE } else { nth * step };
        file.read_exact_at(&mut sample, at)?;
        sum = crc32c::crc32c_append(sum, &sample);
    }
    Ok(sum)
}

/// What is stored of a title.
enum Content {
    Index(Box<Index>),
    Consumption(Consumption),
}

/// The first byte of an encoded content.
const INDEX: u8 = 0;
const CONSUMPTION: u8 = 1;

fn encoded(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind], content].concat()
}

fn encode(content: &[u8], head: Head) -> Vec<u8> {
    let mut out = head.encode();
    out.extend(content);
    out.extend(crc32c::crc32c(&out).to_le_bytes());
    out
}

/// The head, and the encoded content.
fn parts(bytes: &[u8]) -> Option<(Head, &[u8])> {
    let (body, sum) = bytes.split_last_chunk::<4>()?;
    let (head, content) = body.split_at_checked(HEAD)?;
    let is_whole = crc32c::crc32c(body) == u32::from_le_bytes(*sum);
    Head::decode(head).filter(|_| is_whole).map(|head| (head, content))
}

fn decode(bytes: &[u8]) -> Option<(Head, Content)> {
    let (head, content) = parts(bytes)?;
    let content = match content.split_first()? {
        (&INDEX, index) => Content::Index(Box::new(Index::decode(index)?)),
        (&CONSUMPTION, bytes) => Content::Consumption(Consumption::decode(bytes)?),
        _ => return None,
    };
    Some((head, content))
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
        match decode(bytes) {
            Some((_, Content::Index(index))) => {
                assert!(index.time_at(index.len()) == index.duration());
            }
            Some((_, Content::Consumption(consumption))) => {
                let again = Consumption::decode(&consumption.encode());
                assert_eq!(again, Some(consumption));
            }
            None => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;
    use std::fs;
    use tactus_core::smoothing::Shape;
    use tactus_core::units::{Bytes, MediaTime, SECOND};

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
        assert!(!keep(&root, &stat, &file, &index).unwrap(), "somebody else's directory");
        assert!(kept(&root, &stat, &file).is_none() && !is_kept(&root, &stat));
        fs::create_dir(dir.path().join(RESERVED)).unwrap();
        assert!(keep(&root, &stat, &file, &index).unwrap());
        assert_eq!(kept(&root, &stat, &file), Some(StoredIndex::Exact(index.clone())));
        assert!(is_kept(&root, &stat));

        fs::rename(&path, dir.path().join("b.ts")).unwrap();
        carry(&root, &stat, &status(&file));
        let moved = kept(&root, &status(&file), &file);
        assert_eq!(moved, Some(StoredIndex::Exact(index)), "it goes with its title");
        fs::copy(dir.path().join("b.ts"), &path).unwrap();
        let copy = File::open(&path).unwrap();
        assert!(kept(&root, &status(&copy), &copy).is_none());
        let text = fs::OpenOptions::new().append(true).open(dir.path().join("b.ts")).unwrap();
        text.write_all_at(b"x", 0).unwrap();
        assert!(kept(&root, &status(&file), &file).is_none(), "it was changed");
    }

    /// Sets the modification time to that of `stat`, as `touch -r` does.
    fn set_back(file: &File, stat: &Stat) {
        let time = |seconds: i64, nanos: u64| rustix::fs::Timespec {
            tv_sec: seconds,
            tv_nsec: nanos as _,
        };
        let last_modification = time(stat.st_mtime, stat.st_mtime_nsec);
        let last_access = time(stat.st_atime, stat.st_atime_nsec);
        rustix::fs::futimens(file, &rustix::fs::Timestamps { last_access, last_modification })
            .unwrap();
    }

    #[test]
    fn r12_other_content_with_the_same_modification_time_has_no_index_and_other_rights_keep_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(RESERVED)).unwrap();
        let (root, path) = (File::open(dir.path()).unwrap(), dir.path().join("a.ts"));
        // Zeros behind the packets make it long enough to be sampled.
        for (len, is_sampled) in [(SAMPLED_MIN - 1, false), (SAMPLED_MIN, true)] {
            Sample::ts(SECOND.times(20)).write(&path).unwrap();
            let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
            file.set_len(len).unwrap();
            let (index, made) = make(&file, |_, _| {}).unwrap();
            keep(&root, &made, &file, &index).unwrap();
            let rights = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            file.set_permissions(rights).unwrap();
            let after = status(&file);
            let expected = is_sampled.then(|| StoredIndex::Sampled(index.clone()));
            assert_eq!(kept(&root, &after, &file), expected, "{len}");
            assert!(!is_kept(&root, &after), "it is read again in the background");
            for (what, at) in [("the first bytes", 0), ("the last bytes", len - 1)] {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 1], at).unwrap();
                set_back(&file, &made);
                assert!(kept(&root, &status(&file), &file).is_none(), "{what} of {len}");
                file.write_all_at(&byte, at).unwrap();
                set_back(&file, &made);
                assert_eq!(kept(&root, &status(&file), &file), expected, "{len}");
            }
            // A file that another program has put into the place of the inode.
            carry(&root, &after, &status(&file));
            assert!(!is_kept(&root, &status(&file)), "it was not exact before");
        }
    }

    #[test]
    fn r12_a_title_that_has_just_changed_is_read_when_the_next_change_shows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.ts");
        Sample::ts(SECOND.times(2)).write(&path).unwrap();
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (index, stat) = make(&file, |_, _| {}).unwrap();
        file.write_all_at(b"G", 0).unwrap();
        set_back(&file, &stat);
        assert!(!is_same(&stat, &status(&file)));
        assert!(keep(File::open(dir.path()).unwrap(), &stat, &file, &index).is_err());
        assert!(until_settled(&status(&file)) <= TIME_STEP);
    }

    #[test]
    fn r06_a_kept_consumption_is_found_again_and_is_no_index() {
        let dir = tempfile::tempdir().unwrap();
        let (root, path) = (File::open(dir.path()).unwrap(), dir.path().join("a.mkv"));
        fs::create_dir(dir.path().join(RESERVED)).unwrap();
        fs::write(&path, [7; 1000]).unwrap();
        let file = File::open(&path).unwrap();
        let points = [(0, 100), (27_000_000, 1000)];
        let points = points.map(|(time, bytes)| (MediaTime(time), Bytes(bytes)));
        let made = Consumption::new(Shape::Steps, points.into_iter()).unwrap();
        let stat = status(&file);
        assert!(kept_consumption(&root, &stat, &file).is_none());
        assert!(keep_consumption(&root, &stat, &file, &made).unwrap() && is_kept(&root, &stat));
        assert_eq!(kept_consumption(&root, &stat, &file), Some(made.clone()));
        assert!(kept(&root, &stat, &file).is_none());
        fs::rename(&path, dir.path().join("b.mkv")).unwrap();
        carry(&root, &stat, &status(&file));
        assert_eq!(kept_consumption(&root, &status(&file), &file), Some(made), "it is moved");
        fs::write(dir.path().join("b.mkv"), [7; 900]).unwrap();
        assert!(kept_consumption(&root, &status(&file), &file).is_none(), "it was cut");
    }

    #[test]
    fn a_damaged_index_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let (root, path) = (File::open(dir.path()).unwrap(), dir.path().join("a.ts"));
        fs::create_dir(dir.path().join(RESERVED)).unwrap();
        Sample::ts(SECOND.times(5)).write(&path).unwrap();
        let file = File::open(&path).unwrap();
        let (index, stat) = make(&file, |_, _| {}).unwrap();
        keep(&root, &stat, &file, &index).unwrap();
        let place = dir.path().join(RESERVED).join("index").join(place(stat.st_ino));
        let bytes = fs::read(&place).unwrap();
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            fs::write(&place, &bytes).unwrap();
            assert!(kept(&root, &stat, &file).is_none(), "byte {at}");
        }
        fs::write(&place, &bytes[..bytes.len() / 2]).unwrap();
        assert!(kept(&root, &stat, &file).is_none());
        fs::write(&place, &bytes).unwrap();
        assert_eq!(kept(&root, &stat, &file), Some(StoredIndex::Exact(index)));
        assert_eq!(remove_others(&root, &[stat.st_ino]).unwrap(), 0);
        forget(&root, stat.st_ino + 256);
        assert!(kept(&root, &stat, &file).is_some(), "another one's");
        forget(&root, stat.st_ino);
        assert!(kept(&root, &stat, &file).is_none());
        fs::write(&place, &bytes).unwrap();
        assert_eq!(remove_others(&root, &[]).unwrap(), 1);
        assert!(kept(&root, &stat, &file).is_none());
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
