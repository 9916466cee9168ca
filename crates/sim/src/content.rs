//! Content of titles: a function of title and offset, so that bytes are checked without storage.
//!
//! Every eight bytes are a mix of the title and their position, so a byte from another title,
//! position or version is detected. With [`Fidelity::EveryByte`] all bytes exist. With stamps only
//! the first 16 bytes of each stretch exist, and the rest is old memory: a thousand times less to
//! write, and a wrong block, offset or order is still detected.

use tactus_ring::arena::{BlockRef, View};

use crate::dice::mix;

/// The part of the content that exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fidelity {
    /// All of it.
    EveryByte,
    /// Sixteen bytes at each multiple of this, a power of two.
    Restamping(u64),
}

const STAMP: u64 = 16;

/// Eight bytes of a title: a key, and steps of an odd constant. No two places of one title are
/// equal, and it costs an addition for each word.
#[inline]
fn word(title: u64, index: u64) -> [u8; 8] {
    mix(title).wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()
}

#[inline]
pub(crate) fn stamp(title: u64, at: u64) -> [u8; STAMP as usize] {
    let mut bytes = [0; STAMP as usize];
    bytes[..8].copy_from_slice(&word(title, at / 8));
    bytes[8..].copy_from_slice(&word(title, at / 8 + 1));
    bytes
}

/// The target of a read.
#[derive(Clone, Copy)]
pub(crate) struct ReadTarget {
    pub(crate) block: BlockRef,
    /// Offset within the block.
    pub(crate) at: u32,
}

/// Writes bytes `from..to` of `title` into a block.
pub(crate) fn fill(
    view: &View,
    target: ReadTarget,
    title: u64,
    (from, to): (u64, u64),
    fidelity: Fidelity,
) {
    let write = |begin: u64, bytes: &[u8]| {
        view.fill(target.block, target.at + (begin - from) as u32, bytes);
    };
    match fidelity {
        Fidelity::EveryByte => {
            let mut page = [0; 4096];
            let mut at = from;
            while at < to {
                let len = (to - at).min(page.len() as u64);
                expected(title, at, &mut page[..len as usize]);
                write(at, &page[..len as usize]);
                at += len;
            }
        }
        Fidelity::Restamping(every) => {
            let mut at = from.next_multiple_of(every);
            while at < to {
                let stamp = stamp(title, at);
                match stamp.get(..(to - at) as usize) {
                    Some(cut) => write(at, cut),
                    None => write(at, &stamp),
                }
                at += every;
            }
        }
    }
}

/// The CRC32C of bytes `from..to` of `title`.
pub(crate) fn sum(title: u64, (from, to): (u64, u64)) -> u32 {
    let mut page = [0; 4096];
    let (mut at, mut sum) = (from, 0);
    while at < to {
        let len = (to - at).min(page.len() as u64) as usize;
        expected(title, at, &mut page[..len]);
        sum = crc32c::crc32c_append(sum, &page[..len]);
        at += len as u64;
    }
    sum
}

/// The bytes of `title` from `at` on.
pub(crate) fn expected(title: u64, at: u64, bytes: &mut [u8]) {
    let skip = (at % 8) as usize;
    let head = bytes.len().min((8 - skip) % 8);
    let (first, rest) = bytes.split_at_mut(head);
    if head > 0 {
        first.copy_from_slice(&word(title, at / 8)[skip..skip + head]);
    }
    let begin = (at + head as u64) / 8;
    let (words, tail) = rest.as_chunks_mut::<8>();
    let end = begin + words.len() as u64;
    for (chunk, index) in words.iter_mut().zip(begin..) {
        *chunk = word(title, index);
    }
    if !tail.is_empty() {
        let len = tail.len();
        tail.copy_from_slice(&word(title, end)[..len]);
    }
}

/// Compares `bytes` with the content of `title` from `from` on. The error is the offset of the
/// first wrong stretch.
pub(crate) fn check(title: u64, from: u64, bytes: &[u8], fidelity: Fidelity) -> Result<(), u64> {
    let to = from + bytes.len() as u64;
    match fidelity {
        Fidelity::EveryByte => {
            let mut page = [0; 4096];
            for (number, chunk) in bytes.chunks(page.len()).enumerate() {
                let at = from + (number * page.len()) as u64;
                expected(title, at, &mut page[..chunk.len()]);
                if page[..chunk.len()] != *chunk {
                    return Err(at);
                }
            }
        }
        Fidelity::Restamping(every) => {
            // The first stamp that reaches into the range may begin before it.
            let mut at = from.saturating_sub(STAMP - 1).next_multiple_of(every);
            while at < to {
                let whole = at >= from && at + STAMP <= to;
                if whole && bytes[(at - from) as usize..].first_chunk() == Some(&stamp(title, at)) {
                    at += every;
                    continue;
                }
                let (begin, end) = (at.max(from), (at + STAMP).min(to));
                let found = &bytes[(begin - from) as usize..(end - from) as usize];
                if stamp(title, at)[(begin - at) as usize..(end - at) as usize] != *found {
                    return Err(at);
                }
                at += every;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_ring::arena::{HeapRegion, arena};

    #[test]
    fn what_is_filled_passes_the_check_at_its_place_and_nowhere_else() {
        for fidelity in [Fidelity::EveryByte, Fidelity::Restamping(4096)] {
            let (mut keeper, view) = arena(Box::new(HeapRegion::new(65536)), 65536);
            let block = keeper.take().unwrap();
            fill(&view, ReadTarget { block, at: 0 }, 5, (131_072, 190_001), fidelity);
            keeper.filled(block);
            let lease = keeper.lend(block);
            let bytes = &view.bytes(&lease)[..190_001 - 131_072];
            for (from, to) in [(0, bytes.len()), (1, 5000), (4090, 4099), (8191, 20_000)] {
                let at = 131_072 + from as u64;
                assert_eq!(check(5, at, &bytes[from..to], fidelity), Ok(()));
                assert!(check(6, at, &bytes[from..to], fidelity).is_err() || to - from < 4096);
                assert!(check(5, at + 4096, &bytes[from..to], fidelity).is_err() || to - from < 99);
                assert!(check(5, at + 1, &bytes[from..to], fidelity).is_err() || to - from < 99);
            }
        }
    }
}
