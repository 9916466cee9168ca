//! A movie clip repeated to any duration: new sample tables over the same samples (ISO/IEC
//! 14496-12, 8.5 to 8.7).
//!
//! Promise: the index lies in front, chunks of video and audio alternate about once a second, and
//! every turn starts exactly one period after the last one in each track. An edit list that skips
//! priming or reordering at the start keeps its meaning. Chunk offsets have 64 bits when needed.
//! Only the embedded clips are supported.

use std::num::NonZeroU32;

use shiguredo_mp4::aux::SampleTableAccessor;
use shiguredo_mp4::boxes::{
    Co64Box, CttsBox, CttsEntry, ElstEntry, MoovBox, StcoBox, StscBox, StscEntry, StssBox, StszBox,
    SttsBox, SttsEntry, TrakBox,
};
use shiguredo_mp4::{Decode, Either, Encode};
use tactus_core::units::{Nanos, SECOND};

/// A long movie: its head up to the first sample, and the samples of one turn.
pub(super) struct Movie {
    pub(super) head: Vec<u8>,
    pub(super) turn: Vec<u8>,
}

/// Why a clip cannot be repeated.
#[derive(Debug, thiserror::Error)]
pub(super) enum MovieFault {
    /// The boxes are not those of a movie.
    #[error("the clip has invalid boxes: {0}")]
    Boxes(String),
    /// A required box is missing.
    #[error("the clip has no {0}")]
    Missing(&'static str),
    /// A track's samples do not add up to the period.
    #[error("the samples of track {0} of the clip do not fill the period")]
    Uneven(u32),
    /// A number does not fit its field.
    #[error("the movie is too long for its tables")]
    TooLong,
}

/// Chunks of each track in a turn: with a period of 1.92 s about one a second, which is what a
/// player must buffer before it starts.
const CHUNKS_PER_TURN: usize = 2;

/// A sample of the clip.
#[derive(Clone, Copy)]
struct Sample {
    lasts: u32,
    /// From decoding to presentation.
    shown_after: i64,
    sync: bool,
    size: u32,
    at: usize,
}

/// A track: its boxes, to be filled again, and its samples of one turn.
struct Track {
    boxes: TrakBox,
    samples: Vec<Sample>,
    /// The start of each of its chunks within a turn.
    chunks: Vec<u64>,
}

impl Movie {
    pub(super) fn new(clip: &[u8], period: Nanos, turns: u64) -> Result<Self, MovieFault> {
        let start = top_box(clip, b"ftyp").ok_or(MovieFault::Missing("ftyp"))?;
        let index = top_box(clip, b"moov").ok_or(MovieFault::Missing("moov"))?;
        let (mut index, _) = MoovBox::decode(index).map_err(boxes)?;
        let mut tracks = Vec::new();
        for track in std::mem::take(&mut index.trak_boxes) {
            tracks.push(Track::new(track, period)?);
        }
        let turn = lay_out(clip, &mut tracks)?;

        let timescale = index.mvhd_box.timescale;
        for track in &mut tracks {
            track.write_tables(turns, timescale)?;
        }
        index.mvhd_box.duration = tracks
            .iter()
            .map(|track| track.boxes.tkhd_box.duration)
            .max()
            .ok_or(MovieFault::Missing("trak"))?;

        // The index has chunk offsets, which depend on its own length; the length depends only on
        // the width of an offset.
        let media = (turn.len() as u64).checked_mul(turns).ok_or(MovieFault::TooLong)?;
        let mut head_len = 0;
        loop {
            let wide = u32::try_from(head_len + media).is_err();
            index.trak_boxes = tracks
                .iter()
                .map(|track| track.boxes_at(head_len, turn.len(), turns, wide))
                .collect();
            let mut head = start.to_vec();
            head.extend(index.encode_to_vec().map_err(boxes)?);
            match u32::try_from(media + 8) {
                Ok(size) => head.extend([size.to_be_bytes(), *b"mdat"].concat()),
                Err(_) => {
                    head.extend([1u32.to_be_bytes(), *b"mdat"].concat());
                    head.extend((media + 16).to_be_bytes());
                }
            }
            if head.len() as u64 == head_len {
                return Ok(Self { head, turn });
            }
            head_len = head.len() as u64;
        }
    }
}

/// Lays the samples of a turn out chunk by chunk, and records the start of each chunk.
fn lay_out(clip: &[u8], tracks: &mut [Track]) -> Result<Vec<u8>, MovieFault> {
    let mut turn = Vec::new();
    for chunk in 0..CHUNKS_PER_TURN {
        for track in &mut *tracks {
            track.chunks.push(turn.len() as u64);
            for sample in &track.samples[chunk_of(track.samples.len(), chunk)] {
                let bytes = clip.get(sample.at..).and_then(|rest| rest.get(..sample.size as usize));
                turn.extend_from_slice(bytes.ok_or(MovieFault::Missing("samples"))?);
            }
        }
    }
    Ok(turn)
}

/// The samples of chunk `nth` of a turn of `samples`.
fn chunk_of(samples: usize, nth: usize) -> std::ops::Range<usize> {
    samples * nth / CHUNKS_PER_TURN..samples * (nth + 1) / CHUNKS_PER_TURN
}

impl Track {
    /// Takes as many samples of the track as fill the period exactly.
    fn new(boxes: TrakBox, period: Nanos) -> Result<Self, MovieFault> {
        let table = &boxes.mdia_box.minf_box.stbl_box;
        let has_syncs = table.stss_box.is_some();
        let table = SampleTableAccessor::new(table)
            .map_err(|error| MovieFault::Boxes(format!("{error:?}")))?;
        let timescale = u64::from(boxes.mdia_box.mdhd_box.timescale.get());
        let mut left = period.0 * timescale;
        let mut samples = Vec::new();
        for sample in table.samples() {
            if left == 0 {
                break;
            }
            left = u64::from(sample.duration())
                .checked_mul(SECOND.0)
                .and_then(|lasts| left.checked_sub(lasts))
                .ok_or(MovieFault::Uneven(boxes.tkhd_box.track_id))?;
            samples.push(Sample {
                lasts: sample.duration(),
                shown_after: sample.composition_time_offset().unwrap_or(0),
                sync: has_syncs && sample.is_sync_sample(),
                size: sample.data_size(),
                at: sample.data_offset() as usize,
            });
        }
        if left > 0 || samples.len() < CHUNKS_PER_TURN {
            return Err(MovieFault::Uneven(boxes.tkhd_box.track_id));
        }
        Ok(Self { boxes, samples, chunks: Vec::new() })
    }

    /// Writes every table but the chunk offsets, and the durations.
    fn write_tables(&mut self, turns: u64, movie_timescale: NonZeroU32) -> Result<(), MovieFault> {
        let turns = usize::try_from(turns).map_err(|_| MovieFault::TooLong)?;
        let count = self.samples.len().checked_mul(turns).ok_or(MovieFault::TooLong)?;
        u32::try_from(count).map_err(|_| MovieFault::TooLong)?;
        let all = || std::iter::repeat_n(&self.samples, turns).flatten();

        let period: u64 = self.samples.iter().map(|sample| u64::from(sample.lasts)).sum();
        let lasts = period * turns as u64;
        let media = &mut self.boxes.mdia_box;
        media.mdhd_box.duration = lasts;
        let table = &mut media.minf_box.stbl_box;
        table.stts_box = SttsBox {
            entries: runs(all().map(|sample| sample.lasts))
                .map(|(sample_count, sample_delta)| SttsEntry { sample_count, sample_delta })
                .collect(),
        };
        if let Some(offsets) = &mut table.ctts_box {
            *offsets = CttsBox {
                version: offsets.version,
                entries: runs(all().map(|sample| sample.shown_after))
                    .map(|(sample_count, sample_offset)| CttsEntry { sample_count, sample_offset })
                    .collect(),
            };
        }
        table.stsz_box =
            StszBox::Variable { entry_sizes: all().map(|sample| sample.size).collect() };
        if let Some(syncs) = &mut table.stss_box {
            let numbers = all().zip(1..).filter(|(sample, _)| sample.sync);
            *syncs = StssBox {
                sample_numbers: numbers.filter_map(|(_, number)| NonZeroU32::new(number)).collect(),
            };
        }
        let chunk_lens = (0..turns * CHUNKS_PER_TURN)
            .map(|nth| chunk_of(self.samples.len(), nth % CHUNKS_PER_TURN).len() as u32);
        let mut first_chunk = NonZeroU32::MIN;
        let mut entries = Vec::new();
        for (chunks, sample_per_chunk) in runs(chunk_lens) {
            let sample_description_index = NonZeroU32::MIN;
            entries.push(StscEntry { first_chunk, sample_per_chunk, sample_description_index });
            first_chunk = first_chunk.checked_add(chunks).ok_or(MovieFault::TooLong)?;
        }
        table.stsc_box = StscBox { entries };
        // Sample groups and dependency tables count samples too; they are optional.
        table.cslg_box = None;
        table.sdtp_box = None;
        table.unknown_boxes.clear();

        // On the track's time: the end of the last frame's presentation, less the part that the
        // edit list skips.
        let shown_until = self.samples.iter().try_fold((0i64, 0i64), |(at, until), sample| {
            let next = at.checked_add(sample.lasts.into())?;
            Some((next, until.max(next + sample.shown_after)))
        });
        let shown_until = shown_until.ok_or(MovieFault::TooLong)?.1 + (lasts - period) as i64;
        let edit = self.boxes.edts_box.as_mut().and_then(|edits| edits.elst_box.as_mut());
        let skipped = match &edit.as_ref().map(|edit| edit.entries.as_slice()) {
            None => 0,
            Some([only]) if only.media_time >= 0 => only.media_time,
            Some(_) => return Err(MovieFault::Missing("single edit")),
        };
        let shown = u128::try_from(shown_until - skipped).map_err(|_| MovieFault::TooLong)?;
        // Rounds to the nearest: the movie's timescale is coarser than the track's.
        let timescale = u128::from(self.boxes.mdia_box.mdhd_box.timescale.get());
        let shown = (shown * u128::from(movie_timescale.get()) + timescale / 2) / timescale;
        let shown = u64::try_from(shown).map_err(|_| MovieFault::TooLong)?;
        self.boxes.tkhd_box.duration = shown;
        if let Some(edit) = edit {
            edit.entries = edit
                .entries
                .iter()
                .map(|only| ElstEntry { edit_duration: shown, ..only.clone() })
                .collect();
        }
        Ok(())
    }

    /// The track's boxes, with chunk offsets for turns of `turn_len` that start at `media_at`.
    fn boxes_at(&self, media_at: u64, turn_len: usize, turns: u64, wide: bool) -> TrakBox {
        let offsets = (0..turns).flat_map(|turn| {
            self.chunks.iter().map(move |at| media_at + turn * turn_len as u64 + at)
        });
        let mut boxes = self.boxes.clone();
        boxes.mdia_box.minf_box.stbl_box.stco_or_co64_box = match wide {
            false => Either::A(StcoBox { chunk_offsets: offsets.map(|at| at as u32).collect() }),
            true => Either::B(Co64Box { chunk_offsets: offsets.collect() }),
        };
        boxes
    }
}

/// Equal neighbours as one entry with their count.
fn runs<T: PartialEq>(all: impl Iterator<Item = T>) -> impl Iterator<Item = (u32, T)> {
    let mut all = all.peekable();
    std::iter::from_fn(move || {
        let first = all.next()?;
        let mut count = 1;
        while all.next_if(|next| *next == first).is_some() {
            count += 1;
        }
        Some((count, first))
    })
}

/// The bytes of the clip's box of `kind`, with its header.
fn top_box<'a>(clip: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    let mut rest = clip;
    loop {
        let size = u32::from_be_bytes(*rest.first_chunk()?) as usize;
        let this = rest.get(..size).filter(|this| this.len() >= 8)?;
        if this[4..8] == *kind {
            return Some(this);
        }
        rest = &rest[size..];
    }
}

fn boxes(error: shiguredo_mp4::Error) -> MovieFault {
    MovieFault::Boxes(error.to_string())
}
