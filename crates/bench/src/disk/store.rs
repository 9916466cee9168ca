//! What an emulated disk holds, at little cost: blocks of one repeated word cost eight bytes.
//!
//! Promise: what was written is read back. A block of 4096 bytes that repeats one word (titles of
//! the bench are made of such) is kept in a table; every other block goes to a sparse file. Nothing
//! outlives the daemon.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::RwLock;

use tactus_core::units::Bytes;

use super::exported_file::BLOCK;

/// In the table: look into the file. A block that repeats this very word goes there too.
const IN_FILE: u64 = u64::MAX;

/// The content.
#[derive(Debug)]
pub(super) struct Store {
    /// The word that each block repeats; zero at first, as a new disk reads.
    words: RwLock<Vec<u64>>,
    file: File,
}

impl Store {
    /// An empty disk.
    pub(super) fn new(size: Bytes) -> io::Result<Self> {
        let file = tempfile::tempfile()?;
        file.set_len(size.0)?;
        // Zeroed by the kernel page by page as blocks are written.
        Ok(Self { words: RwLock::new(vec![0; size.0 as usize / BLOCK]), file })
    }

    /// Reads whole blocks.
    pub(super) fn read(&self, at: u64, target: &mut [u8]) -> io::Result<()> {
        let first = first_block(at, target.len())?;
        let words = self.words.read().map_err(|_| io::ErrorKind::Other)?;
        let words =
            words.get(first..first + target.len() / BLOCK).ok_or(io::ErrorKind::InvalidInput)?;
        for (place, (block, word)) in target.chunks_exact_mut(BLOCK).zip(words).enumerate() {
            match *word {
                IN_FILE => self.file.read_exact_at(block, at + (place * BLOCK) as u64)?,
                word => block.as_chunks_mut().0.fill(word.to_ne_bytes()),
            }
        }
        Ok(())
    }

    /// Writes whole blocks.
    pub(super) fn write(&self, at: u64, source: &[u8]) -> io::Result<()> {
        let first = first_block(at, source.len())?;
        let mut words = self.words.write().map_err(|_| io::ErrorKind::Other)?;
        let words = words
            .get_mut(first..first + source.len() / BLOCK)
            .ok_or(io::ErrorKind::InvalidInput)?;
        for (place, (block, word)) in source.chunks_exact(BLOCK).zip(words).enumerate() {
            *word = match repeated(block) {
                Some(repeated) if repeated != IN_FILE => repeated,
                _ => {
                    self.file.write_all_at(block, at + (place * BLOCK) as u64)?;
                    IN_FILE
                }
            };
        }
        Ok(())
    }
}

fn first_block(at: u64, length: usize) -> io::Result<usize> {
    match at.is_multiple_of(BLOCK as u64) && length.is_multiple_of(BLOCK) {
        true => Ok(at as usize / BLOCK),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// The word that `block` repeats, if it does.
fn repeated(block: &[u8]) -> Option<u64> {
    let words = block.as_chunks::<8>().0;
    let first = words.first()?;
    words.iter().all(|word| word == first).then(|| u64::from_ne_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back_whatever_it_is() {
        let store = Store::new(Bytes(16 * BLOCK as u64)).unwrap();
        let mut pieces = vec![0_u8; 5 * BLOCK];
        pieces[..BLOCK].fill(0xab); // one word
        pieces[BLOCK..2 * BLOCK].fill(0xff); // the word that the table cannot hold
        for (place, byte) in pieces[2 * BLOCK..3 * BLOCK].iter_mut().enumerate() {
            *byte = place as u8; // the words of metadata
        }
        pieces[4 * BLOCK - 1] = 1; // one byte differs
        store.write(2 * BLOCK as u64, &pieces).unwrap();
        // Overwritten by a repeated word: the file's old content must not come back.
        store.write(4 * BLOCK as u64, &[7; BLOCK]).unwrap();
        pieces[2 * BLOCK..3 * BLOCK].fill(7);
        let mut back = vec![1; 5 * BLOCK];
        store.read(2 * BLOCK as u64, &mut back).unwrap();
        assert!(back == pieces);
        store.read(10 * BLOCK as u64, &mut back).unwrap();
        assert!(back.iter().all(|byte| *byte == 0), "a new disk reads zeros");
    }

    #[test]
    fn what_lies_outside_or_across_blocks_is_refused() {
        let store = Store::new(Bytes(4 * BLOCK as u64)).unwrap();
        assert!(store.read(3 * BLOCK as u64, &mut [0; 2 * BLOCK]).is_err());
        assert!(store.write(512, &[0; BLOCK]).is_err());
        assert!(store.write(0, &[0; 512]).is_err());
    }
}
