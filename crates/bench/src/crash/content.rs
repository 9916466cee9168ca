//! What the versions of titles hold: bytes that say themselves which version and place they are.
//!
//! Promise: two versions or two places never have an equal block, so that any mixture of them is
//! seen. A version's number is nobody else's, so that it is known under whatever name it is found.

use crate::disk::exported_file::BLOCK;
use crate::random::Random;

/// Every block of a title begins with it.
const MAGIC: u64 = u64::from_be_bytes(*b"a title:");
/// Words at the beginning of a block: magic, version, length, place.
const HEAD: usize = 4;

/// One version of one title.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Version {
    number: u64,
    /// At least one head.
    length: u64,
}

/// What was found under a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StoredVersion {
    /// This version, every byte of it.
    Whole(u64),
    /// No version, for this reason.
    Torn(String),
}

impl Version {
    /// Version `number`.
    pub(super) fn new(number: u64, length: u64) -> Self {
        assert!(length >= (HEAD * 8) as u64, "a version says what it is");
        Self { number, length }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The bytes from `from` on to `to`.
    pub(super) fn bytes(&self, from: u64, to: u64) -> Vec<u8> {
        assert!(from <= to && to <= self.length, "no bytes are there but the version's own");
        let first = from / BLOCK as u64;
        let blocks = first..to.div_ceil(BLOCK as u64);
        // Block by block: taken byte by byte, they cost the gate a twelfth of all cuts.
        let mut whole = Vec::new();
        blocks.for_each(|place| whole.extend_from_slice(&self.block(place)));
        let start = first * BLOCK as u64;
        whole[(from - start) as usize..(to - start) as usize].to_vec()
    }

    /// The first place from the beginning of `bytes` on where they are not those of this version.
    pub(super) fn differs(&self, bytes: &[u8]) -> Option<u64> {
        let blocks = bytes.chunks(BLOCK).enumerate();
        let wrong =
            |(place, block): &(usize, &[u8])| self.block(*place as u64)[..block.len()] != **block;
        blocks.into_iter().find(wrong).map(|(place, _)| (place * BLOCK) as u64)
    }

    fn block(&self, place: u64) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        let (head, fill) = block.as_chunks_mut().0.split_at_mut(HEAD);
        let values = [MAGIC, self.number, self.length, place];
        head.iter_mut().zip(values).for_each(|(word, value)| *word = value.to_le_bytes());
        let mut random = Random::new(self.number.rotate_left(20) ^ place.rotate_left(40));
        // A plain loop: the gate compares millions of blocks without optimisation.
        for word in fill {
            *word = random.next().to_le_bytes();
        }
        block
    }
}

/// Which version these bytes are.
pub(super) fn identify(bytes: &[u8]) -> StoredVersion {
    let word = |place: usize| bytes.as_chunks().0.get(place).map(|word| u64::from_le_bytes(*word));
    if word(0) != Some(MAGIC) {
        return StoredVersion::Torn(format!("{} bytes that are no title's", bytes.len()));
    }
    let (Some(number), Some(length)) = (word(1), word(2)) else {
        return StoredVersion::Torn("not even a head".into());
    };
    let version = Version { number, length };
    if length != bytes.len() as u64 {
        StoredVersion::Torn(format!("{} of the {length} bytes of version {number}", bytes.len()))
    } else if let Some(place) = version.differs(bytes) {
        StoredVersion::Torn(format!("version {number} at first, another content at {place}"))
    } else {
        StoredVersion::Whole(number)
    }
}

/// Whether a piece of a write begins as a block of a title does.
pub(super) fn is_of_a_title(piece: &[u8]) -> bool {
    piece.starts_with(&MAGIC.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_known_by_its_bytes_and_any_mixture_is_torn() {
        let (old, new) = (Version::new(1, 20_000), Version::new(2, 20_000));
        let bytes = old.bytes(0, 20_000);
        assert_eq!(identify(&bytes), StoredVersion::Whole(1));
        assert_eq!([old.bytes(0, 9000), old.bytes(9000, 20_000)].concat(), bytes);
        let torn = |bytes: &[u8]| assert!(matches!(identify(bytes), StoredVersion::Torn(_)));
        torn(&[&bytes[..8192], &new.bytes(8192, 20_000)].concat());
        torn(&bytes[..19_999]);
        torn(&[&bytes[..4096], &[0; 4096], &bytes[8192..]].concat());
        torn(&[&bytes[..4096], &bytes[..4096], &bytes[8192..]].concat());
        torn(&[]);
        let mut flipped = bytes;
        flipped[19_998] ^= 1;
        torn(&flipped);
    }
}
