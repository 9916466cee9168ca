//! NAL units: length-prefixed as in movies (ISO/IEC 14496-15), and the common form of their
//! packets.

/// Upper bound of the units of a sample, including empty ones: a video frame of the largest size
/// has 600 slices. Each unit takes at least one packet, and a hostile movie could have samples of
/// one-byte units.
const UNITS_MAX: u32 = 4096;

/// The length-prefixed NAL units of a movie sample; the first 4,096 of them.
#[derive(Clone, Copy, Debug)]
pub struct LengthPrefixed<'a> {
    rest: &'a [u8],
    /// Bytes of each length: 1, 2 or 4.
    width: usize,
    /// Units that may still follow.
    left: u32,
}

impl<'a> LengthPrefixed<'a> {
    /// The units of `sample`, whose lengths have `width` bytes.
    pub const fn new(sample: &'a [u8], width: usize) -> Self {
        Self { rest: sample, width, left: UNITS_MAX }
    }
}

impl<'a> Iterator for LengthPrefixed<'a> {
    type Item = &'a [u8];

    /// An invalid length ends the sample; empty units are skipped.
    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            self.left = self.left.checked_sub(1)?;
            let (len, rest) = self.rest.split_at_checked(self.width)?;
            let len = len.iter().fold(0, |len: usize, &byte| len << 8 | usize::from(byte));
            let Some((unit, rest)) = rest.split_at_checked(len) else {
                self.rest = &[];
                return None;
            };
            self.rest = rest;
            if !unit.is_empty() {
                return Some(unit);
            }
        }
    }
}

/// The payload of one packet: a small header, then bytes of the unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload<'a> {
    front: [u8; 3],
    front_len: u8,
    /// Bytes of the unit.
    pub bytes: &'a [u8],
}

impl<'a> Payload<'a> {
    /// A complete unit.
    pub(super) const fn whole(bytes: &'a [u8]) -> Self {
        Self { front: [0; 3], front_len: 0, bytes }
    }

    pub(super) fn part(front: &[u8], bytes: &'a [u8]) -> Self {
        let mut own = [0; 3];
        own[..front.len()].copy_from_slice(front);
        Self { front: own, front_len: front.len() as u8, bytes }
    }

    /// The header.
    pub fn front(&self) -> &[u8] {
        &self.front[..usize::from(self.front_len)]
    }

    /// The total length.
    pub fn len(&self) -> usize {
        usize::from(self.front_len) + self.bytes.len()
    }

    /// Always false: a packet carries at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Splits `bytes` into the fewest parts of at most `most`, as even as possible.
pub(super) fn even_parts(bytes: &[u8], most: usize) -> impl Iterator<Item = &[u8]> {
    let parts = bytes.len().div_ceil(most).max(1);
    bytes.chunks(bytes.len().div_ceil(parts).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s01_a_sample_of_nothing_but_small_units_ends() {
        let units = [0, 0, 0, 1, 0x65].repeat(100_000);
        assert_eq!(LengthPrefixed::new(&units, 4).count(), UNITS_MAX as usize);
        assert_eq!(LengthPrefixed::new(&[0; 100_000], 1).count(), 0);
        assert_eq!(LengthPrefixed::new(&units[..5 * 600], 4).count(), 600);
    }
}
