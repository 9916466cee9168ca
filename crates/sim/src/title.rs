//! Titles of a simulated world: what there is to stream, and where it lies.

use tactus_core::units::Bytes;

/// Who asks for a title: where the two never meet, a disk knows what kind of read it sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Audience {
    Paced,
    Downloads,
    Both,
}

/// One stored object. Its number is its title, its file and the seed of its content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Title {
    pub(crate) volume: usize,
    pub(crate) len: Bytes,
    /// Where it begins on its device.
    pub(crate) position: u64,
    pub(crate) audience: Audience,
}
