//! Numbers of seven bits a byte, for what is kept beside a title.
//!
//! Promise: encoding and decoding round-trip. A decoder accepts any bytes, and allocates no more
//! than a small multiple of them.

use alloc::vec::Vec;

/// Longest piece of bytes: a section of MPEG.
const BYTES_MAX: u64 = 1024;

/// Encodes.
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }

    pub(crate) fn list<T: Copy>(
        &mut self,
        list: &[T],
        first: T,
        mut each: impl FnMut(&mut Self, T, T),
    ) {
        self.number(list.len() as u64);
        let mut last = first;
        for &one in list {
            each(self, last, one);
            last = one;
        }
    }
}

/// Decodes.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub(crate) fn at_most(&mut self, max: u64) -> Option<u64> {
        self.number().filter(|&number| number <= max)
    }

    pub(crate) fn after(&mut self, last: u64, max: u64) -> Option<u64> {
        last.checked_add(self.number()?).filter(|&number| number <= max)
    }

    pub(crate) fn bytes(&mut self) -> Option<Vec<u8>> {
        let len = self.at_most(BYTES_MAX)? as usize;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes.to_vec())
    }

    /// A list of at most `max` entries of at least `least` bytes each; the announced number must
    /// fit the remaining bytes.
    pub(crate) fn list<T: Copy>(
        &mut self,
        max: usize,
        least: usize,
        first: T,
        mut each: impl FnMut(&mut Self, T) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.at_most(max as u64)? as usize;
        if count > self.0.len() / least {
            return None;
        }
        let mut list = Vec::with_capacity(count);
        let mut last = first;
        for _ in 0..count {
            last = each(self, last)?;
            list.push(last);
        }
        Some(list)
    }
}
