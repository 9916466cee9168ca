//! NAL units: as ISO/IEC 14496-15 stores them in a movie, and what their packets have in common.

/// Most units of a sample, empty ones included: a video frame of the largest size has 600 slices.
/// Each unit takes at least one packet, and a hostile movie could have samples of one-byte units.
const UNITS_MAX: u32 = 4096;

/// NAL units in a sample of a movie, each after its length; the first 4,096 of them.
#[derive(Clone, Copy, Debug)]
pub struct LengthPrefixed<'a> {
    rest: &'a [u8],
    /// Bytes of each length: 1, 2 or 4.
    width: usize,
    /// Units that may still follow.
    left: u32,
}

impl<'a> LengthPrefixed<'a> {
    /// Those of `sample`, whose lengths have `width` bytes.
    pub const fn new(sample: &'a [u8], width: usize) -> Self {
        Self { rest: sample, width, left: UNITS_MAX }
    }
}

impl<'a> Iterator for LengthPrefixed<'a> {
    type Item = &'a [u8];

    /// What lies about its length ends the sample; units of nothing are passed over.
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

/// The payload of one packet: a few bytes of its own, then bytes of the unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload<'a> {
    front: [u8; 3],
    front_len: u8,
    /// Of the unit.
    pub bytes: &'a [u8],
}

impl<'a> Payload<'a> {
    /// A whole unit.
    pub(super) const fn whole(bytes: &'a [u8]) -> Self {
        Self { front: [0; 3], front_len: 0, bytes }
    }

    pub(super) fn part(front: &[u8], bytes: &'a [u8]) -> Self {
        let mut own = [0; 3];
        own[..front.len()].copy_from_slice(front);
        Self { front: own, front_len: front.len() as u8, bytes }
    }

    /// What stands in front of the bytes.
    pub fn front(&self) -> &[u8] {
        &self.front[..usize::from(self.front_len)]
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        usize::from(self.front_len) + self.bytes.len()
    }

    /// Never: a packet carries something.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Cuts `bytes` into the fewest parts of at most `most`, as even as they can be.
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
