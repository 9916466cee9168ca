//! Memory for direct transfers: it starts at a multiple of a huge page.
//!
//! Promise: where the kernel gives huge pages by itself the memory is contiguous for a device too,
//! so that a transfer is not split at the device's limit of segments.

use tactus_core::units::MIB;

/// A huge page.
const ALIGNMENT: usize = 2 * MIB as usize;

/// A buffer whose address is a multiple of two mebibytes.
#[derive(Debug)]
pub struct Aligned {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// A buffer of `length` zeros.
    pub fn new(length: usize) -> Self {
        let memory = vec![0; length.next_multiple_of(ALIGNMENT) + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, start, length }
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}
