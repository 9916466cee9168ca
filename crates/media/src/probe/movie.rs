//! The rate of a movie, from the index of an MP4 or QuickTime file (ISO/IEC 14496-12).
//!
//! Promise: it reads the headers of a few boxes. An index of more than [`INDEX_MAX`] has no rate. A
//! fragmented movie has a rate only if its index states the whole duration (`mehd`). The samples
//! are read by an iterator over the tables, a window at a time.

use std::fs::File;
use std::ops::Range;

use tactus_core::units::{Bytes, MIB, Nanos, SECOND};

use super::super::{MediaFacts, MediaKind};
use super::boxes::{Table, boxes, child, fixed};
use super::mean_rate;

/// Upper bound of the index: ten hours of two tracks have 20 MiB.
const INDEX_MAX: u64 = 64 * MIB;
/// Upper bound of samples: 16 Mi are three days of two tracks.
pub(crate) const SAMPLES_MAX: u64 = 16 << 20;

/// Whether the first bytes could be those of a movie.
pub(super) fn may_be(start: &[u8]) -> bool {
    let kinds = [b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp"];
    start.get(4..8).is_some_and(|kind| kinds.iter().any(|known| kind == *known))
}

/// Whether `file` begins like a movie.
pub(crate) fn may_be_movie(file: &File) -> bool {
    fixed::<8>(file, 0, u64::MAX).is_some_and(|start| may_be(&start))
}

pub(super) fn probe(file: &File, len: u64) -> Option<MediaFacts> {
    let (mut index, mut media_at) = (None, None);
    for found in boxes(file, 0..len) {
        match &found.kind {
            b"moov" if index.is_none() => index = Some(found.body),
            b"mdat" if media_at.is_none() => media_at = Some(found.body.start),
            _ => continue,
        }
        if index.is_some() && media_at.is_some() {
            break;
        }
    }
    let index = index.filter(|index| index.end - index.start <= INDEX_MAX)?;
    let duration = duration(file, &index)?;
    Some(MediaFacts {
        kind: MediaKind::Movie,
        rate: mean_rate(len, duration)?,
        peak: None,
        duration,
        head: Bytes(media_at.filter(|&media_at| index.start < media_at).unwrap_or(0)),
    })
}

/// Rounds down, so that rates round up.
fn nanos(ticks: u64, timescale: u32) -> Option<Nanos> {
    if timescale == 0 {
        return None;
    }
    let nanos = u128::from(ticks) * u128::from(SECOND.0) / u128::from(timescale);
    u64::try_from(nanos).ok().map(Nanos)
}

/// The duration in the header, or that of the fragments if the header leaves it open.
fn duration(file: &File, index: &Range<u64>) -> Option<Nanos> {
    let (timescale, stated) = time_header(file, &child(file, index, b"mvhd")?)?;
    let stated = stated.or_else(|| {
        let fragments = child(file, &child(file, index, b"mvex")?, b"mehd")?;
        match version(file, &fragments)? {
            1 => Some(u64::from_be_bytes(fixed(file, fragments.start + 4, fragments.end)?)),
            _ => Some(long(file, fragments.start + 4, fragments.end)?.into()),
        }
    });
    nanos(stated.filter(|&ticks| ticks > 0)?, timescale).filter(|&duration| duration > Nanos::ZERO)
}

/// Timescale and duration of an `mvhd` or `mdhd`, which begin alike. All ones or zero is unknown.
pub(crate) fn time_header(file: &File, header: &Range<u64>) -> Option<(u32, Option<u64>)> {
    let (at, end) = (header.start, header.end);
    let (timescale, ticks) = match version(file, header)? {
        1 => (long(file, at + 20, end)?, u64::from_be_bytes(fixed(file, at + 24, end)?)),
        _ => match long(file, at + 16, end)? {
            u32::MAX => (long(file, at + 12, end)?, u64::MAX),
            ticks => (long(file, at + 12, end)?, ticks.into()),
        },
    };
    Some((timescale, Some(ticks).filter(|&ticks| ticks != 0 && ticks != u64::MAX)))
}

/// A sample: the end of its bytes in the file, and its decoding time in ticks of its track.
pub(crate) struct Sample {
    pub(crate) end: u64,
    pub(crate) size: u32,
    pub(crate) due: u64,
}

/// The samples of one track, in order: four tables read side by side.
pub(crate) struct Samples<'f> {
    sizes: Sizes<'f>,
    /// `stts`: runs of samples with their duration.
    lengths: Table<'f, 8>,
    run: (u32, u32),
    /// `stsc`: the first chunk of each run with its samples per chunk.
    shapes: std::iter::Peekable<Table<'f, 12>>,
    per_chunk: u32,
    chunks: Chunks<'f>,
    chunk: u32,
    left_in_chunk: u32,
    at: u64,
    due: u64,
}

enum Sizes<'f> {
    Same { size: u32, left: u32 },
    Each(Table<'f, 4>),
}

enum Chunks<'f> {
    Near(Table<'f, 4>),
    Far(Table<'f, 8>),
}

impl<'f> Samples<'f> {
    pub(crate) fn new(file: &'f File, tables: &Range<u64>) -> Option<Self> {
        let sizes = child(file, tables, b"stsz")?;
        let sizes = match long(file, sizes.start + 4, sizes.end)? {
            0 => Sizes::Each(Table::of_box(file, &sizes, 4)?),
            size => Sizes::Same { size, left: long(file, sizes.start + 8, sizes.end)? },
        };
        let chunks = match child(file, tables, b"stco") {
            Some(near) => Chunks::Near(Table::of_box(file, &near, 0)?),
            None => Chunks::Far(Table::of_box(file, &child(file, tables, b"co64")?, 0)?),
        };
        Some(Self {
            sizes,
            lengths: Table::of_box(file, &child(file, tables, b"stts")?, 0)?,
            run: (0, 0),
            shapes: Table::of_box(file, &child(file, tables, b"stsc")?, 0)?.peekable(),
            per_chunk: 0,
            chunks,
            chunk: 0,
            left_in_chunk: 0,
            at: 0,
            due: 0,
        })
    }

    fn next_chunk(&mut self) -> Option<()> {
        self.at = match &mut self.chunks {
            Chunks::Near(offsets) => u64::from(u32::from_be_bytes(offsets.next()?)),
            Chunks::Far(offsets) => u64::from_be_bytes(offsets.next()?),
        };
        self.chunk += 1;
        let chunk = self.chunk;
        while let Some(shape) = self.shapes.next_if(|shape| word(shape, 0) <= chunk) {
            self.per_chunk = word(&shape, 1);
        }
        self.left_in_chunk = self.per_chunk;
        Some(())
    }
}

impl Iterator for Samples<'_> {
    type Item = Sample;

    fn next(&mut self) -> Option<Sample> {
        let size = match &mut self.sizes {
            Sizes::Same { size, left } => {
                *left = left.checked_sub(1)?;
                *size
            }
            Sizes::Each(sizes) => u32::from_be_bytes(sizes.next()?),
        };
        // Each turn consumes a row, so these loops end.
        while self.left_in_chunk == 0 {
            self.next_chunk()?;
        }
        self.left_in_chunk -= 1;
        while self.run.0 == 0 {
            let run = self.lengths.next()?;
            self.run = (word(&run, 0), word(&run, 1));
        }
        self.run.0 -= 1;
        self.at = self.at.checked_add(size.into())?;
        let sample = Sample { end: self.at, size, due: self.due };
        self.due = self.due.checked_add(self.run.1.into())?;
        Some(sample)
    }
}

/// Word `nth` of a table's row.
pub(crate) fn word(row: &[u8], nth: usize) -> u32 {
    row[nth * 4..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word))
}

/// The identifier of a track, from its `tkhd`.
pub(crate) fn track_id(file: &File, head: &Range<u64>) -> Option<u32> {
    let times = if version(file, head)? == 1 { 16 } else { 8 };
    long(file, head.start + 4 + times, head.end)
}

pub(crate) fn version(file: &File, body: &Range<u64>) -> Option<u8> {
    Some(fixed::<1>(file, body.start, body.end)?[0])
}

fn long(file: &File, at: u64, end: u64) -> Option<u32> {
    Some(u32::from_be_bytes(fixed(file, at, end)?))
}
