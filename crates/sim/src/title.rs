//! Titles of a simulated world: what there is to stream, and where it lies.

use tactus_core::units::{BitRate, Bytes, MonoTime};

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
    /// What its bytes sum up to is known to whoever asks for it.
    pub(crate) has_sums: bool,
    /// How it comes into being; none when it is there.
    pub(crate) growth: Option<Growth>,
}

/// A title that is being recorded while it is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    /// When the world began, and what there was then.
    pub(crate) since: MonoTime,
    pub(crate) from: Bytes,
    pub(crate) rate: BitRate,
}

impl Title {
    /// How much of it there is.
    pub(crate) fn len_at(&self, now: MonoTime) -> Bytes {
        let grown =
            self.growth.map(|growth| growth.from + growth.rate.bytes_in(now.since(growth.since)));
        grown.map_or(self.len, |grown| grown.min(self.len))
    }
}
