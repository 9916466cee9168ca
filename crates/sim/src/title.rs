//! Titles of a simulated world: content and position.

use tactus_core::units::{BitRate, Bytes, MonoTime};

/// The user of a title. If the users differ, a disk can recognise the kind of a read.
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
    /// Its position on its device.
    pub(crate) position: u64,
    pub(crate) audience: Audience,
    /// The checksums of its bytes are known.
    pub(crate) has_sums: bool,
    /// Its growth; `None` if it is complete.
    pub(crate) growth: Option<Growth>,
}

/// A title that is being recorded while it is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    /// When the world began, and the length at that time.
    pub(crate) since: MonoTime,
    pub(crate) from: Bytes,
    pub(crate) rate: BitRate,
}

impl Title {
    /// Title `number` of the first volume, for paced streams, apart from all others on the disk.
    pub(crate) fn paced(number: u64, len: Bytes) -> Self {
        let (audience, position) = (Audience::Paced, number << 34);
        Self { volume: 0, len, position, audience, has_sums: false, growth: None }
    }

    /// Its length at `now`.
    pub(crate) fn len_at(&self, now: MonoTime) -> Bytes {
        let grown =
            self.growth.map(|growth| growth.from + growth.rate.bytes_in(now.since(growth.since)));
        grown.map_or(self.len, |grown| grown.min(self.len))
    }
}
