//! The rate of a Matroska or WebM file, and its consumption by its cues (RFC 9559).
//!
//! Promise: it reads the elements in front of the first cluster, the cues wherever they lie, and at
//! most [`TAIL_MAX`] of the end if the duration is stated nowhere. A file without clusters, or with
//! a wrong duration, has no rate.

use std::fs::File;

use tactus_core::smoothing::{Consumption, Shape};
use tactus_core::units::{Bytes, KIB, MIB, MediaTime, Nanos};

use super::super::ebml::{self, HEADER_MAX, Header, id};
use super::super::scan::Scan;
use super::super::{MediaFacts, MediaKind};
use super::{mean_rate, read};

/// Elements in front of the first cluster, and of one list of positions.
const ELEMENTS_MAX: usize = 64;
/// Upper bound of elements whose fields are read: the information and the positions.
const FIELDS_MAX: u64 = 64 * KIB;
/// Upper bound of cues: a day of film with one each second has two.
const CUES_MAX: u64 = 4 * MIB;
/// Bytes of the end in which the last cluster is searched: first few, then as many as FFmpeg puts
/// into one at most (5 MB).
const TAIL: u64 = 512 * KIB;
const TAIL_MAX: u64 = 6 * MIB;
/// How much sooner than by a line between two cues a byte may be needed. A key frame lies in front
/// of its part, and may take half the bytes of it.
const CUES_LEAD: MediaTime = MediaTime(27_000_000);

/// The elements in front of the media.
struct Front {
    len: u64,
    /// Where positions begin.
    segment: u64,
    /// Nanoseconds of a tick.
    scale: u64,
    duration: Option<Nanos>,
    /// The first cluster.
    cluster: u64,
    cues: Option<u64>,
}

/// Whether the first bytes could be those of Matroska.
pub(super) fn may_be(start: &[u8]) -> bool {
    start.starts_with(&id::EBML.to_be_bytes())
}

pub(super) fn probe(file: &File, len: u64) -> Option<MediaFacts> {
    let front = Front::read(file, len)?;
    let duration = front.duration.or_else(|| front.length_by_tail(file))?;
    let rate = mean_rate(len, duration)?;
    let head = Bytes(front.cluster);
    Some(MediaFacts { kind: MediaKind::Matroska, rate, peak: None, duration, head })
}

/// The consumption by the cues: a line from each to the next. May block.
pub(crate) fn by_cues(file: &File) -> Option<Consumption> {
    let front = Front::read(file, file.metadata().ok()?.len())?;
    let duration = front.duration?;
    let (header, at) = element(file, front.cues?, front.len)?;
    let size = header.size.filter(|&size| header.id == id::CUES && size <= CUES_MAX)?;
    let bytes = read(file, at, size)?;
    let mut points = vec![(MediaTime(0), 0), (MediaTime(0), front.cluster)];
    let mut add = |time: Option<u64>, place: Option<u64>| {
        let (Some(time), Some(place)) = (time, place) else { return };
        let time = ebml::time(time, front.scale);
        // Two tracks may have cues, and those of one time follow each other.
        let &(last, reached) = points.last().expect("there are two");
        if time > last && reached < place && place < front.len {
            points.push((time, place));
        }
    };
    let (mut time, mut place) = (None, None);
    let mut rest = &bytes[..];
    while let Ok(Header { id, len, size: Some(size) }) = ebml::header(rest) {
        let content = &rest[len..];
        let size = usize::try_from(size).ok().filter(|&size| size <= content.len())?;
        match id {
            id::CUE_POINT | id::CUE_TRACK_POSITIONS => {
                rest = content;
                continue;
            }
            id::CUE_TIME => {
                add(time.take(), place.take());
                time = Some(ebml::unsigned(&content[..size.min(8)]));
            }
            id::CUE_CLUSTER_POSITION if place.is_none() => {
                let position = ebml::unsigned(&content[..size.min(8)]);
                place = front.segment.checked_add(position);
            }
            id::CUE_RELATIVE_POSITION => {
                let position = ebml::unsigned(&content[..size.min(8)]);
                place = place.and_then(|place| place.checked_add(position));
            }
            _ => {}
        }
        rest = &content[size..];
    }
    add(time, place);
    let end = MediaTime(duration.0.saturating_mul(27) / 1000);
    let &(last, _) = points.last().expect("there are two");
    points.push((end.max(MediaTime(last.0 + 1)), front.len));
    let points = points.into_iter().map(|(time, at)| (time, Bytes(at)));
    Some(Consumption::new(Shape::Lines, points)?.with_lead(CUES_LEAD))
}

impl Front {
    fn read(file: &File, len: u64) -> Option<Self> {
        let (ebml, at) = element(file, 0, len)?;
        let segment = at.checked_add(ebml.size.filter(|_| ebml.id == id::EBML)?)?;
        let (header, segment) = element(file, segment, len)?;
        let mut front =
            Self { len, segment, scale: 1_000_000, duration: None, cluster: 0, cues: None };
        if header.id != id::SEGMENT {
            return None;
        }
        let mut at = segment;
        for _ in 0..ELEMENTS_MAX {
            let (header, content) = element(file, at, len)?;
            if header.id == id::CLUSTER {
                front.cluster = at;
                return Some(front);
            }
            let size = header.size?;
            match header.id {
                id::INFO => front.add_info(&read(file, content, size.min(FIELDS_MAX))?),
                id::SEEK_HEAD => front.add_positions(&read(file, content, size.min(FIELDS_MAX))?),
                id::CUES => front.cues = Some(at),
                _ => {}
            }
            at = content.checked_add(size)?;
        }
        None
    }

    fn add_info(&mut self, info: &[u8]) {
        let mut milli = None;
        for (id, field) in fields(info) {
            match id {
                id::TIMESTAMP_SCALE => self.scale = ebml::unsigned(field).clamp(1, 1_000_000_000),
                id::DURATION => milli = ebml::float_milli(field),
                _ => {}
            }
        }
        // A duration of thousandths of a tick. Rounded down, so that the rate is rounded up.
        let nanos = milli.map(|milli| u128::from(milli) * u128::from(self.scale) / 1000);
        self.duration = nanos.and_then(|nanos| u64::try_from(nanos).ok()).map(Nanos);
    }

    fn add_positions(&mut self, positions: &[u8]) {
        for (_, seek) in fields(positions).filter(|(id, _)| *id == id::SEEK) {
            let field = |wanted| fields(seek).find(|(id, _)| *id == wanted);
            let is_cues = field(id::SEEK_ID).is_some_and(|(_, id)| id == id::CUES.to_be_bytes());
            if let Some((_, position)) = field(id::SEEK_POSITION).filter(|_| is_cues) {
                self.cues = self.segment.checked_add(ebml::unsigned(position));
            }
        }
    }

    /// The time from the first block to the last one, for a file that was written while it was
    /// recorded.
    fn length_by_tail(&self, file: &File) -> Option<Nanos> {
        let blocks =
            |from: u64, to: u64| Scan::of_clusters(self.scale, &read(file, from, to - from)?);
        let first = blocks(self.cluster, self.len.min(self.cluster + TAIL))?.start;
        [TAIL, TAIL_MAX].into_iter().find_map(|len| {
            let begin = self.len.saturating_sub(len).max(self.cluster);
            let ticks = blocks(begin, self.len)?.end.0.checked_sub(first.0)?;
            let nanos = u64::try_from(u128::from(ticks) * 1000 / 27).ok()?;
            Some(Nanos(nanos)).filter(|&nanos| nanos > Nanos::ZERO)
        })
    }
}

/// The header of the element at `at`, and where its content begins.
fn element(file: &File, at: u64, end: u64) -> Option<(Header, u64)> {
    let bytes = read(file, at, end.checked_sub(at)?.min(HEADER_MAX as u64))?;
    let header = ebml::header(&bytes).ok()?;
    Some((header, at + header.len as u64))
}

/// The fields of one element, without those that are cut.
fn fields(mut bytes: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let mut left = ELEMENTS_MAX;
    std::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let header = ebml::header(bytes).ok()?;
        let content = &bytes[header.len..];
        let (field, rest) = content.split_at_checked(usize::try_from(header.size?).ok()?)?;
        bytes = rest;
        Some((header.id, field))
    })
}
