//! The titles that are delivered: files of a known size, each in a directory of its own.
//!
//! Promise: every block holds data that was written (no holes), so a cold read reaches the device;
//! "cold" is checked page by page, and so is "hot". On an emulated disk each 4 KiB block repeats
//! one word, which names title and block; such a block costs the disk's store eight bytes.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate};
use tactus_core::units::{Bytes, MIB, Nanos};

use crate::aligned::Aligned;
use crate::{clock, command, interrupt};

/// Titles below one directory.
#[derive(Clone, Debug)]
pub struct Titles {
    root: PathBuf,
    count: usize,
    size: Bytes,
}

/// The unit in which titles are written.
const PIECE: u64 = MIB;
/// A block of one repeated word.
const BLOCK: usize = 4096;
const NAME: &str = "title.bin";
/// A file without data that keeps the titles apart.
const ROOM: &str = "room.bin";
/// How much of a volume `lay_apart` spreads its titles over. The rest is the file system's own.
pub const FILLED_PERCENT: u64 = 92;
/// What may stay in the page cache: two folios that a closed socket still holds.
const STRAY: Bytes = Bytes(4 * MIB);
/// Reads of a server that was just ended keep their pages for a moment.
const CHILL_ROUND: Nanos = Nanos::from_millis(100);
const CHILL_ROUNDS: u32 = 100;

impl Titles {
    /// Finds `count` titles of at least `size` below `root`, and lays down those that are missing.
    pub fn lay(root: &Path, count: usize, size: Bytes) -> Result<Self> {
        let size = Bytes(size.0.next_multiple_of(PIECE));
        for number in 0..count {
            Self::lay_one(root, number, size)?;
        }
        Ok(Self { root: root.to_owned(), count, size })
    }

    fn lay_one(root: &Path, number: usize, size: Bytes) -> Result<()> {
        interrupt::check()?;
        let folder = root.join(directory(number));
        let path = folder.join(NAME);
        if fs::metadata(&path).is_ok_and(|found| found.len() >= size.0) {
            return Ok(());
        }
        fs::create_dir_all(folder)?;
        write(&path, number, size).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Lays titles evenly over a new volume of `span`, with reserved room between them, as in a
    /// library that fills its disk: a disk's arm has to travel from one to the next.
    pub fn lay_apart(root: &Path, count: usize, size: Bytes, span: Bytes) -> Result<Self> {
        let size = Bytes(size.0.next_multiple_of(PIECE));
        let share = span.0 / 100 * FILLED_PERCENT / count.max(1) as u64;
        let room = share.saturating_sub(size.0) / PIECE * PIECE;
        for number in 0..count {
            Self::lay_one(root, number, size)?;
            if room > 0 {
                let file = File::create(root.join(directory(number)).join(ROOM))?;
                fallocate(&file, FallocateFlags::empty(), 0, room)?;
            }
        }
        Ok(Self { root: root.to_owned(), count, size })
    }

    /// Gives back the room beside every second title, for uploads to go to: the disk is then about
    /// half full, evenly.
    pub fn make_room(&self) -> Result<()> {
        for number in (1..self.count).step_by(2) {
            let room = self.root.join(directory(number)).join(ROOM);
            match fs::remove_file(&room) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", room.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The directory that a server shall serve.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The size of each, at least.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// The path of title `number` as a request names it.
    pub fn target(&self, number: usize) -> String {
        format!("/{}/{NAME}", directory(number))
    }

    /// Whether `bytes` are those of title `number` from `offset` on, a multiple of 4 KiB.
    pub fn holds(number: usize, offset: u64, bytes: &[u8]) -> bool {
        let blocks = (offset / BLOCK as u64..).zip(bytes.chunks(BLOCK));
        let mut words = blocks.map(|(block, bytes)| (word(number, block), bytes));
        words.all(|(word, bytes)| bytes.chunks(word.len()).all(|part| *part == word[..part.len()]))
    }

    /// Drops all titles from the page cache, and checks that they are gone.
    pub fn chill(&self) -> Result<()> {
        let mut resident = Bytes::ZERO;
        for _ in 0..CHILL_ROUNDS {
            for number in 0..self.count {
                let file = File::open(self.path(number))?;
                fadvise(&file, 0, None, Advice::DontNeed)?;
            }
            fs::write("/proc/sys/vm/drop_caches", "1").context("cannot drop the page cache")?;
            resident = self.resident()?;
            if resident <= STRAY {
                return Ok(());
            }
            interrupt::check()?;
            clock::sleep(CHILL_ROUND);
        }
        bail!("{resident} of the titles stay in the page cache")
    }

    /// Reads all titles into the page cache, and checks that they are there.
    pub fn warm(&self) -> Result<()> {
        for number in 0..self.count {
            std::io::copy(&mut File::open(self.path(number))?, &mut std::io::sink())?;
        }
        let (resident, wanted) = (self.resident()?, Bytes(self.size.0 * self.count as u64));
        ensure!(resident >= wanted, "only {resident} of {wanted} stay in the page cache");
        Ok(())
    }

    /// How much of the titles the page cache holds.
    pub fn resident(&self) -> Result<Bytes> {
        let mut resident = Bytes::ZERO;
        for numbers in (0..self.count).collect::<Vec<_>>().chunks(256) {
            let paths: Vec<String> =
                numbers.iter().map(|number| self.path(*number).display().to_string()).collect();
            let mut arguments = vec!["--bytes", "--noheadings", "--output", "RES"];
            arguments.extend(paths.iter().map(String::as_str));
            for line in command::run("fincore", &arguments)?.lines() {
                resident += Bytes(line.trim().parse().context("fincore printed no number")?);
            }
        }
        Ok(resident)
    }

    fn path(&self, number: usize) -> PathBuf {
        self.root.join(directory(number)).join(NAME)
    }
}

fn directory(number: usize) -> String {
    format!("t{number:05}")
}

fn write(path: &Path, number: usize, size: Bytes) -> Result<()> {
    let mut piece = Piece::new();
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(path)?;
    // In one stretch, as a library written once and in order.
    fallocate(&file, FallocateFlags::empty(), 0, size.0)?;
    for at in (0..size.0).step_by(PIECE as usize) {
        file.write_all(piece.fill(number, at))?;
    }
    file.sync_all()?;
    Ok(())
}

/// A buffer for direct writes of one piece.
struct Piece(Aligned);

impl Piece {
    fn new() -> Self {
        Self(Aligned::new(PIECE as usize))
    }

    fn fill(&mut self, title: usize, at: u64) -> &[u8] {
        let piece = self.0.bytes();
        for (place, block) in piece.chunks_exact_mut(BLOCK).enumerate() {
            let block_number = at / BLOCK as u64 + place as u64;
            block.as_chunks_mut().0.fill(word(title, block_number));
        }
        piece
    }
}

/// The word that a block repeats.
fn word(title: usize, block: u64) -> [u8; 8] {
    ((title as u64 + 1) << 40 | block).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_repeats_the_word_that_names_it() {
        let mut piece = Piece::new();
        let bytes = piece.fill(6, PIECE);
        assert_eq!(bytes.len(), PIECE as usize);
        assert_eq!(bytes[..8], (7_u64 << 40 | 256).to_le_bytes());
        assert!(Titles::holds(6, PIECE, bytes) && Titles::holds(6, PIECE, &bytes[..13]));
        assert!(!Titles::holds(5, PIECE, bytes) && !Titles::holds(6, PIECE + 4096, bytes));
        assert_eq!(bytes[BLOCK - 8..BLOCK], bytes[..8]);
        assert_eq!(bytes[BLOCK..BLOCK + 8], (7_u64 << 40 | 257).to_le_bytes());
    }
}
