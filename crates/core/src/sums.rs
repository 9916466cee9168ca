//! Checksums of stored titles: the CRC32C of each 64 KiB, and of whole blocks combined from them.
//!
//! Promise: the sum of a block is exactly what the bytes that were stored add up to, whatever the
//! size of a block, without reading a byte of it. It sums up no bytes itself: whoever has them
//! does.
//!
//! CRC32C is linear: behind a first part of which the sum is `a`, a second one with the sum `b`
//! gives `a * x^(8 n) + b`, n being the second one's length in bytes. To multiply by a power of x
//! is to apply a matrix of bits; those for 1, 2, 4 ... bytes are made at compile time, and one for
//! each bit of the length is applied. Zlib's `crc32_combine` is the same for its own polynomial.

use alloc::boxed::Box;

use crate::ports::Sum;
use crate::units::{Bytes, KIB};

/// What each sum is of; only a title's last may be of less.
pub const UNIT: Bytes = Bytes(64 * KIB);

/// The sums of one title.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sums {
    title_len: Bytes,
    units: Box<[u32]>,
}

impl Sums {
    /// The table of a title of `title_len` bytes; none when it has another number of units.
    pub fn new(title_len: Bytes, units: Box<[u32]>) -> Option<Self> {
        let fits = units.len() as u64 == title_len.0.div_ceil(UNIT.0);
        fits.then_some(Self { title_len, units })
    }

    /// Length of the title.
    pub const fn title_len(&self) -> Bytes {
        self.title_len
    }

    /// CRC32C of each unit, in order.
    pub const fn units(&self) -> &[u32] {
        &self.units
    }

    /// What the block of at most `block` bytes sums up to that begins at `offset`.
    ///
    /// # Panics
    /// When the block is not made of whole units, or begins beyond the title's end.
    pub fn of_block(&self, offset: Bytes, block: Bytes) -> Sum {
        assert!(offset.0.is_multiple_of(UNIT.0) && block.0.is_multiple_of(UNIT.0));
        assert!(offset < self.title_len, "a block has bytes");
        let end = self.title_len.0.min(offset.0 + block.0);
        let first = (offset.0 / UNIT.0) as usize;
        let units = &self.units[first..end.div_ceil(UNIT.0) as usize];
        let mut at = offset.0;
        let mut sum = 0;
        for &unit in units {
            let len = UNIT.0.min(end - at);
            sum = combine(sum, unit, Bytes(len));
            at += len;
        }
        Sum { len: (end - offset.0) as u32, crc32c: sum }
    }
}

/// The CRC32C of two parts, one behind the other. An empty first part has the sum zero.
pub const fn combine(first: u32, second: u32, second_len: Bytes) -> u32 {
    let mut sum = first;
    let mut left = second_len.0;
    let mut power = 0;
    while left > 0 && sum != 0 {
        if left & 1 == 1 {
            sum = apply(&POWERS[power], sum);
        }
        left >>= 1;
        power += 1;
    }
    sum ^ second
}

/// What each bit of a sum becomes.
type Matrix = [u32; 32];

/// The polynomial of Castagnoli, lowest power in the highest bit (RFC 3720, appendix B.4).
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Lengths have at most so many bits.
const BITS: usize = 40;

/// Behind 1, 2, 4 ... bytes.
const POWERS: [Matrix; BITS] = {
    let mut one_bit = [0; 32];
    one_bit[0] = POLYNOMIAL;
    let mut bit = 1;
    while bit < 32 {
        one_bit[bit] = 1 << (bit - 1);
        bit += 1;
    }
    let mut powers = [[0; 32]; BITS];
    powers[0] = squared(&squared(&squared(&one_bit)));
    let mut power = 1;
    while power < BITS {
        powers[power] = squared(&powers[power - 1]);
        power += 1;
    }
    powers
};

const fn squared(matrix: &Matrix) -> Matrix {
    let mut square = [0; 32];
    let mut bit = 0;
    while bit < 32 {
        square[bit] = apply(matrix, matrix[bit]);
        bit += 1;
    }
    square
}

const fn apply(matrix: &Matrix, sum: u32) -> u32 {
    let (mut result, mut left) = (0, sum);
    while left != 0 {
        result ^= matrix[left.trailing_zeros() as usize];
        left &= left - 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn content(len: usize, seed: u64) -> Vec<u8> {
        let word = |n: u64| (n + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        (0..len.div_ceil(8) as u64).flat_map(word).take(len).collect()
    }

    proptest! {
        #[test]
        fn the_sum_of_two_parts_is_that_of_the_whole(
            first in 0usize..70_000, second in 0usize..70_000, seed: u32,
        ) {
            let bytes = content(first + second, seed.into());
            let (one, two) = bytes.split_at(first);
            let combined =
                combine(crc32c::crc32c(one), crc32c::crc32c(two), Bytes(second as u64));
            prop_assert_eq!(combined, crc32c::crc32c(&bytes));
        }

        #[test]
        fn the_sum_of_a_block_is_that_of_its_bytes(
            len in 1usize..900_000, units in 1u64..9, seed: u32,
        ) {
            let bytes = content(len, seed.into());
            let each = bytes.chunks(UNIT.0 as usize).map(crc32c::crc32c).collect();
            let sums = Sums::new(Bytes(len as u64), each).expect("one for each unit");
            let block = UNIT.0 * units;
            for (number, bytes) in bytes.chunks(block as usize).enumerate() {
                let sum = sums.of_block(Bytes(number as u64 * block), Bytes(block));
                let expected = Sum { len: bytes.len() as u32, crc32c: crc32c::crc32c(bytes) };
                prop_assert_eq!(sum, expected);
            }
        }
    }

    #[test]
    fn a_table_has_one_sum_for_each_unit() {
        let of = |len, units: usize| Sums::new(Bytes(len), alloc::vec![0; units].into());
        assert!(of(UNIT.0, 1).is_some() && of(UNIT.0 + 1, 2).is_some());
        assert!(of(UNIT.0, 2).is_none() && of(UNIT.0 + 1, 1).is_none());
    }
}
