//! Walks the boxes of an MP4 file by their headers (ISO/IEC 14496-12, 4.2).
//!
//! Promise: a walk makes at most [`BOXES_MAX`] reads, goes only forwards and stays within its
//! bounds; an invalid size ends it. Tables are read through a window of fixed size. It does not
//! descend by itself.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// A box: its kind, and the position of its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BoxSpan {
    pub(crate) kind: [u8; 4],
    /// Where its header begins.
    pub(crate) start: u64,
    pub(crate) body: Range<u64>,
}

impl BoxSpan {
    /// The box with its header.
    pub(crate) fn whole(&self) -> Range<u64> {
        self.start..self.body.end
    }
}

/// Boxes read on one level. A fragmented recording has thousands at the top, and its index is among
/// the first; a movie has tens of tracks.
const BOXES_MAX: u32 = 64;
/// Upper bound of fragments, and of the boxes beside them.
pub(crate) const FRAGMENTS_MAX: usize = 1 << 16;
const TOP_LEVEL_MAX: usize = FRAGMENTS_MAX * 4;

/// The boxes of one level in `within`.
pub(crate) fn boxes(file: &File, within: Range<u64>) -> impl Iterator<Item = BoxSpan> {
    let mut at = within.start;
    let mut left = BOXES_MAX;
    std::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let found = header(file, at, within.end)?;
        at = found.body.end;
        Some(found)
    })
}

/// The boxes of a file of `len` bytes.
pub(crate) fn top_level(file: &File, len: u64) -> impl Iterator<Item = BoxSpan> {
    let mut at = 0;
    let mut left = TOP_LEVEL_MAX;
    std::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let found = header(file, at, len)?;
        at = found.body.end;
        Some(found)
    })
}

/// The first box of `kind` in `within`.
pub(crate) fn child(file: &File, within: &Range<u64>, kind: &[u8; 4]) -> Option<Range<u64>> {
    boxes(file, within.clone()).find(|found| found.kind == *kind).map(|found| found.body)
}

/// The box that begins at `at`.
pub(crate) fn header(file: &File, at: u64, end: u64) -> Option<BoxSpan> {
    let [a, b, c, d, kind @ ..] = fixed::<8>(file, at, end)?;
    let (header, size) = match u32::from_be_bytes([a, b, c, d]) {
        // To the end of the file or of the enclosing box.
        0 => (8, end - at),
        1 => (16, u64::from_be_bytes(fixed(file, at + 8, end)?)),
        size => (8, u64::from(size)),
    };
    let body = at + header..at.checked_add(size)?;
    (size >= header && body.end <= end).then_some(BoxSpan { kind, start: at, body })
}

/// `N` bytes at `at`; `None` if they exceed `end`.
pub(crate) fn fixed<const N: usize>(file: &File, at: u64, end: u64) -> Option<[u8; N]> {
    if at.checked_add(N as u64)? > end {
        return None;
    }
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

/// A table of rows of `N` bytes, read a window at a time.
pub(crate) struct Table<'f, const N: usize> {
    file: &'f File,
    rows: Range<u64>,
    window: Vec<u8>,
    used: usize,
}

/// Bytes of a table in memory at a time.
const TABLE_WINDOW: u64 = 64 * 1024;

impl<'f, const N: usize> Table<'f, N> {
    /// The table at `at` with `count` rows; `None` if it exceeds `end`.
    pub(super) fn new(file: &'f File, at: u64, count: u32, end: u64) -> Option<Self> {
        let rows = at..at.checked_add(u64::from(count) * N as u64)?;
        (rows.end <= end).then(|| Self { file, rows, window: Vec::new(), used: 0 })
    }

    /// The table of a full box: version and flags, `skip` bytes, a count, the rows.
    pub(crate) fn of_box(file: &'f File, body: &Range<u64>, skip: u64) -> Option<Self> {
        let count_at = body.start + 4 + skip;
        let count = u32::from_be_bytes(fixed(file, count_at, body.end)?);
        Self::new(file, count_at + 4, count, body.end)
    }
}

impl<const N: usize> Iterator for Table<'_, N> {
    type Item = [u8; N];

    fn next(&mut self) -> Option<[u8; N]> {
        if self.used == self.window.len() {
            let most = TABLE_WINDOW / N as u64 * N as u64;
            let len = (self.rows.end - self.rows.start).min(most);
            self.window.resize(len as usize, 0);
            self.used = 0;
            if len == 0 || self.file.read_exact_at(&mut self.window, self.rows.start).is_err() {
                self.window.clear();
                self.rows.start = self.rows.end;
                return None;
            }
            self.rows.start += len;
        }
        let row = self.window[self.used..].first_chunk().copied();
        self.used += N;
        row
    }
}
