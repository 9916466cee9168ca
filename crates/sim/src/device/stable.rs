//! Stable storage: the content of a disk after an immediate power cut, for every sector of every
//! written file.
//!
//! A written sector is volatile, and lost with the power, until a flush that began after the write
//! has succeeded. A failed flush loses the sectors that it covers, and reports it once: the next
//! flush does not report it, like the kernel's. All memory is allocated when a file is opened,
//! outside the engine's turns.

use std::collections::BTreeMap;

use tactus_core::ports::{self, FileHandle, Transfer};
use tactus_core::units::SECTOR;
use tactus_ring::arena::{BlockRef, View};

use crate::content;
use crate::verdict::{Invariant, require};

/// Handles of written files lie above those of titles.
const FIRST: i32 = 1 << 24;

/// The directory of all written files, with a sector for the name of each.
pub(crate) const DIRECTORY: FileHandle = FileHandle(i32::MAX);

/// Whether a handle belongs to a written file.
pub(crate) fn is_written(file: FileHandle) -> bool {
    file.0 >= FIRST
}

/// The write share of a volume, and its files.
pub(crate) struct Stable {
    share: View,
    files: BTreeMap<FileHandle, File>,
}

/// A written file.
struct File {
    /// Seed of its content.
    seed: u64,
    /// Its position on the device.
    position: u64,
    is_recording: bool,
    sectors: Vec<Sector>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sector {
    Nothing,
    Volatile,
    /// A flush that covers it is under way.
    Flushing,
    Durable,
}

/// The properties of a new file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewFile {
    pub(crate) seed: u64,
    pub(crate) position: u64,
    pub(crate) is_recording: bool,
    pub(crate) len: u64,
}

impl Stable {
    pub(crate) fn new(share: View) -> Self {
        Self { share, files: BTreeMap::new() }
    }

    pub(super) fn places(&self) -> u32 {
        self.share.places()
    }

    /// Opens a file; the content of an older one with the same number is discarded.
    pub(crate) fn open(&mut self, number: usize, new: NewFile) -> FileHandle {
        let sectors = vec![Sector::Nothing; (new.len / SECTOR) as usize];
        let NewFile { seed, position, is_recording, .. } = new;
        let handle = FileHandle(FIRST + number as i32);
        self.files.insert(handle, File { seed, position, is_recording, sectors });
        handle
    }

    /// Gives the file with this number a name, in memory: it is durable after a flush of
    /// [`DIRECTORY`], which is made for `count` names.
    pub(crate) fn name(&mut self, number: usize, count: usize) {
        let empty = || File {
            seed: 0,
            position: 0,
            is_recording: false,
            sectors: vec![Sector::Nothing; count],
        };
        self.files.entry(DIRECTORY).or_insert_with(empty).sectors[number] = Sector::Volatile;
    }

    pub(crate) fn position(&self, file: FileHandle) -> u64 {
        self.of(file).position
    }

    pub(super) fn is_recording(&self, file: FileHandle) -> bool {
        self.of(file).is_recording
    }

    pub(super) fn len(&self, file: FileHandle) -> u64 {
        self.of(file).sectors.len() as u64 * SECTOR
    }

    /// Whether all of a range is on stable storage.
    pub(crate) fn is_durable(&self, file: FileHandle, from: u64, to: u64) -> bool {
        let sectors = &self.of(file).sectors[(from / SECTOR) as usize..(to / SECTOR) as usize];
        sectors.iter().all(|&sector| sector == Sector::Durable)
    }

    /// Takes the first `bytes` of a write, and checks that they are the expected ones.
    pub(super) fn write(&mut self, transfer: Transfer, bytes: u32) {
        let Transfer { block: ports::BlockRef { place, generation }, file, offset, at, .. } =
            transfer;
        let seed = self.of(file).seed;
        for sector in 0..bytes / SECTOR as u32 {
            let mut found = [0; 16];
            let within = sector * SECTOR as u32;
            self.share.copy_out(BlockRef { place, generation }, at + within, &mut found);
            let expected = content::stamp(seed, offset.0 + u64::from(within));
            require(found == expected, Invariant::RightBytes, || {
                format!("{transfer:?} writes other bytes at {within}")
            });
            let number = (offset.0 / SECTOR) as usize + sector as usize;
            self.of_mut(file).sectors[number] = Sector::Volatile;
        }
    }

    pub(super) fn flush_begins(&mut self, file: FileHandle) {
        self.turn_into(file, Sector::Volatile, Sector::Flushing);
    }

    pub(super) fn flush_ends(&mut self, file: FileHandle, is_good: bool) {
        let after = if is_good { Sector::Durable } else { Sector::Nothing };
        self.turn_into(file, Sector::Flushing, after);
    }

    fn turn_into(&mut self, file: FileHandle, before: Sector, after: Sector) {
        for sector in &mut self.of_mut(file).sectors {
            if *sector == before {
                *sector = after;
            }
        }
    }

    fn of(&self, file: FileHandle) -> &File {
        &self.files[&file]
    }

    fn of_mut(&mut self, file: FileHandle) -> &mut File {
        self.files.get_mut(&file).expect("only open files are written")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::ports::Direction;
    use tactus_core::units::Bytes;
    use tactus_ring::arena::{HeapRegion, arena};

    #[test]
    fn what_a_flush_did_not_cover_is_lost_with_the_power() {
        let (mut keeper, view) = arena(Box::new(HeapRegion::new(8192)), 8192);
        let mut stable = Stable::new(view.clone());
        let new = NewFile { seed: 5, position: 0, is_recording: false, len: 16_384 };
        let file = stable.open(0, new);
        let mut write = |stable: &mut Stable, offset: u64| {
            let block = keeper.take().expect("the place is free");
            for sector in 0..2 {
                let at = sector * SECTOR as u32;
                view.fill(block, at, &content::stamp(5, offset + u64::from(at)));
            }
            let BlockRef { place, generation } = block;
            let (block, offset, at, len) =
                (ports::BlockRef { place, generation }, Bytes(offset), 0, 8192);
            let direction = Direction::Write;
            stable
                .write(Transfer { at, ..Transfer::new(direction, block, file, offset, len) }, len);
            keeper.emptied(BlockRef { place, generation });
        };
        write(&mut stable, 0);
        assert!(!stable.is_durable(file, 0, 8192));
        stable.flush_begins(file);
        write(&mut stable, 8192);
        stable.flush_ends(file, true);
        assert!(stable.is_durable(file, 0, 8192) && !stable.is_durable(file, 8192, 16_384));
        stable.flush_begins(file);
        stable.flush_ends(file, false);
        stable.flush_begins(file);
        stable.flush_ends(file, true);
        assert!(!stable.is_durable(file, 8192, 16_384), "the second flush knows nothing of it");
        write(&mut stable, 0);
        assert!(!stable.is_durable(file, 0, 4096), "written anew, it may be torn");
    }
}
