//! One transfer on its way: what to ask of the kernel next, and when it has ended.
//!
//! Promise: the count reported is exact. A short read is asked again for its rest; it is the end of
//! the file only when asking again brings nothing more, or when it stops within a 512-byte sector,
//! where no device stops. A short write is continued, and is whole or an error, never less. Every
//! retry is bounded. Shared by all disk ports.

use tactus_core::ports::{Direction, DiskFault, Transfer};
use tactus_core::units::SECTOR;

/// A transfer and how far it has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) transfer: Transfer,
    /// Bytes from the start that are there: in the block, or in the file.
    done: u32,
    /// How often the kernel was asked.
    tries: u8,
}

/// What a result of the kernel means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Ask for [`Progress::rest`].
    Again,
    /// The transfer has ended.
    Done(Result<u32, DiskFault>),
}

/// Most times that the kernel is asked for one transfer. Interrupted and split ones are rare; one
/// that needs more is a device that does not work, and is reported as EIO.
const TRIES_MAX: u8 = 32;

/// The smallest unit of any block device, and so of any short read that is not the end of a file.
const DEVICE_SECTOR: u64 = 512;

/// What to ask of the kernel: a part of the transfer, from `from` to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Remainder {
    /// Where in the file.
    pub(crate) offset: u64,
    /// How many bytes after the transfer's start, in file and block alike.
    pub(crate) from: u32,
    /// How many bytes.
    pub(crate) len: u32,
}

impl Progress {
    /// # Panics
    /// When the transfer is not made of whole sectors: a direct one could not be.
    pub(crate) fn new(transfer: Transfer) -> Self {
        let Transfer { offset, at, len, .. } = transfer;
        assert!(len > 0, "a transfer of nothing");
        for number in [offset.0, u64::from(at), u64::from(len)] {
            assert!(number.is_multiple_of(SECTOR), "{transfer:?} is not whole sectors");
        }
        Self { transfer, done: 0, tries: 0 }
    }

    /// What is left, beginning on a sector: some bytes may be moved twice, with the same result.
    pub(crate) fn rest(&self) -> Remainder {
        let from = self.done - self.done % SECTOR as u32;
        let offset = self.transfer.offset.0 + u64::from(from);
        Remainder { offset, from, len: self.transfer.len - from }
    }

    /// Takes what the kernel answered to `rest`: a count, or a negative error number.
    pub(crate) fn handle_result(&mut self, result: i32) -> Step {
        self.tries += 1;
        let Remainder { from, len, .. } = self.rest();
        match result {
            _ if result >= 0 => {
                let moved = result as u32;
                assert!(moved <= len, "the kernel moves at most what it was asked for");
                let before = self.done;
                self.done = self.done.max(from + moved);
                let end = self.transfer.offset.0 + u64::from(self.done);
                let at_end_of_file = self.transfer.direction == Direction::Read
                    && (self.done == before || !end.is_multiple_of(DEVICE_SECTOR));
                if self.done == self.transfer.len || at_end_of_file {
                    return Step::Done(Ok(self.done));
                }
            }
            // Not done, and to be asked for again: that moves the same bytes to the same place.
            _ if matches!(-result, libc::EAGAIN | libc::EINTR | libc::ECANCELED) => (),
            _ => return Step::Done(Err(DiskFault(-result))),
        }
        if self.tries < TRIES_MAX { Step::Again } else { Step::Done(Err(DiskFault(libc::EIO))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::ports::{BlockRef, Direction, FileHandle};
    use tactus_core::units::Bytes;

    fn transfer(offset: u64, len: u32) -> Transfer {
        let block = BlockRef { place: 0, generation: 1 };
        let (direction, file) = (Direction::Read, FileHandle(0));
        Transfer { at: 4096, ..Transfer::new(direction, block, file, Bytes(offset), len) }
    }

    /// The same the other way.
    fn write(len: u32, mut answer: impl FnMut(u32, u32) -> i32) -> Result<u32, DiskFault> {
        let transfer = Transfer { direction: Direction::Write, ..transfer(8192, len) };
        let mut progress = Progress::new(transfer);
        let mut written = 0;
        for turn in 0.. {
            let rest = progress.rest();
            assert!(rest.from <= written, "a gap from {written} to {}", rest.from);
            assert_eq!(rest.offset, 8192 + u64::from(rest.from));
            assert!(rest.offset.is_multiple_of(SECTOR) && rest.from + rest.len == len);
            let taken = answer(turn, rest.len);
            written = written.max(rest.from + taken.max(0) as u32);
            if let Step::Done(result) = progress.handle_result(taken) {
                assert!(result.is_err() || written == len, "{written} of {len}");
                return result;
            }
        }
        unreachable!("the loop ends by itself")
    }

    /// Reads a file of `file_len` bytes from a device that answers as `answer` says: it is told how
    /// many bytes it could give, and says how many it gives, or an error.
    fn read(
        transfer: Transfer,
        file_len: u64,
        mut answer: impl FnMut(u32, u32) -> i32,
    ) -> (Result<u32, DiskFault>, u32) {
        let mut progress = Progress::new(transfer);
        for turn in 0.. {
            let rest = progress.rest();
            assert_eq!(rest.offset, transfer.offset.0 + u64::from(rest.from));
            assert!(rest.offset.is_multiple_of(SECTOR) && rest.from + rest.len == transfer.len);
            let there = file_len.saturating_sub(rest.offset).min(u64::from(rest.len)) as u32;
            let given = answer(turn, there);
            assert!(given <= there as i32);
            if let Step::Done(result) = progress.handle_result(given) {
                return (result, turn + 1);
            }
        }
        unreachable!("the loop ends by itself")
    }

    #[test]
    fn the_count_is_exact_at_every_end_of_file() {
        for file_len in [0, 1, 511, 512, 4095, 4096, 4608, 9000, 12_288, 13_000, 20_480, 1 << 20] {
            for offset in [0, 4096, 8192] {
                let wanted = transfer(offset, 12_288);
                let there = file_len.clamp(offset, offset + 12_288) - offset;
                let (result, turns) = read(wanted, file_len, |_, there| there as i32);
                assert_eq!(result, Ok(there as u32));
                assert!(turns <= 2);
            }
        }
    }

    #[test]
    fn short_interrupted_and_split_reads_end_with_every_byte() {
        let split = |turn: u32, there: u32| match turn % 3 {
            0 => -libc::EINTR,
            1 => -libc::EAGAIN,
            // A whole number of device sectors, less than what is there.
            _ => there.min(11 * 512) as i32,
        };
        let (result, _) = read(transfer(0, 20_480), 1 << 20, split);
        assert_eq!(result, Ok(20_480));
        let (result, _) = read(transfer(4096, 12_288), 10_000, split);
        assert_eq!(result, Ok(10_000 - 4096));
    }

    #[test]
    fn a_write_is_whole_or_an_error_however_it_is_split_and_interrupted() {
        let split = |turn: u32, len: u32| match turn % 5 {
            0 => -libc::EINTR,
            1 => -libc::ECANCELED,
            2 => 0,
            // Stops within a sector, as at a limit of the file's size.
            3 => (3 * 512 + 7).min(len as i32),
            _ => (25 * 512).min(len as i32),
        };
        assert_eq!(write(28_672, split), Ok(28_672));
        let full = |turn: u32, _| if turn == 0 { 8192 } else { -libc::ENOSPC };
        assert_eq!(write(20_480, full), Err(DiskFault(libc::ENOSPC)));
        assert_eq!(write(4096, |_, _| 0), Err(DiskFault(libc::EIO)));
    }

    #[test]
    fn a_device_that_makes_no_end_of_it_is_broken() {
        let (result, turns) = read(transfer(0, 4096), 1 << 20, |_, _| -libc::EAGAIN);
        assert_eq!((result, turns), (Err(DiskFault(libc::EIO)), u32::from(TRIES_MAX)));
    }

    #[test]
    fn an_error_ends_the_transfer_at_once() {
        let (result, turns) = read(transfer(0, 4096), 1 << 20, |_, _| -libc::EIO);
        assert_eq!((result, turns), (Err(DiskFault(libc::EIO)), 1));
    }
}
