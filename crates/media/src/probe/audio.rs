//! The rate of files of sound: MP3, FLAC, Ogg, WAVE; and what an own table states of their frames.
//!
//! Promise: it reads windows of fixed size in front and at the end, and steps over tags and
//! pictures by their stated size. A file without a stated duration has a rate if its frames tell
//! it.

use std::fs::File;

use tactus_core::smoothing::{Consumption, Shape};
use tactus_core::units::{BitRate, Bytes, KIB, MIB, MediaTime, Nanos, SECOND};

use super::super::scan::flac::{self, StreamInfo};
use super::super::scan::mpeg_audio::{self, Frame};
use super::super::scan::{OGG, Scan};
use super::super::wave::{Wave, is_wave};
use super::super::{MediaFacts, MediaKind};
use super::{duration, mean_rate, read};

/// Bytes in which frames and pages are searched: a page of Ogg has at most 64 KiB.
const WINDOW: u64 = 160 * KIB;
/// Tags, chunks and blocks of metadata that are stepped over.
const BLOCKS_MAX: usize = 128;
/// Places of an MP3 without a table at which its frames are compared.
const PLACES: u64 = 8;
/// Frames in a row that are no accident.
const FRAMES_MIN: usize = 3;
/// Bytes of each place: dozens of frames.
const GLANCE: u64 = 16 * KIB;
/// Upper bound of a table of FLAC: a point each second of a day.
const TABLE_MAX: u64 = 2 * MIB;
/// How much sooner than by a line between two points of a table a byte may be needed.
const TABLE_LEAD: MediaTime = MediaTime(27_000_000 / 2);

/// The properties of a file of sound that begins with `start`.
///
/// Frames of MP3 are searched behind a tag, or if the file `is_named` so: any bytes may look like a
/// frame.
pub(super) fn probe(file: &File, len: u64, start: &[u8], is_named: bool) -> Option<MediaFacts> {
    if is_wave(start) {
        return wave(file, len);
    }
    if start.starts_with(OGG) {
        return ogg(file, len);
    }
    let media = behind_tags(file, len, start)?;
    let begin = read(file, media, (len - media).min(WINDOW))?;
    if begin.starts_with(flac::MAGIC) {
        return of_flac(file, len, media);
    }
    let reach = if media > 0 || is_named { begin.len() } else { 1 };
    let at = (0..reach).find(|&at| frames(&begin[at..]).take(FRAMES_MIN).count() == FRAMES_MIN)?;
    mp3(file, len, media + at as u64, &begin[at..])
}

/// Where the media begins behind tags of ID3v2, which may hold pictures, in a file that begins with
/// `start`.
fn behind_tags(file: &File, len: u64, start: &[u8]) -> Option<u64> {
    let mut at = mpeg_audio::tag(start).unwrap_or(0);
    for _ in 0..BLOCKS_MAX {
        let head = read(file, at, len.checked_sub(at)?.min(10))?;
        let Some(size) = mpeg_audio::tag(&head) else { return Some(at) };
        at = at.checked_add(size).filter(|&at| at < len)?;
    }
    None
}

/// WAVE: its header states the rate.
fn wave(file: &File, len: u64) -> Option<MediaFacts> {
    let wave = Wave::read(file, len).ok()?;
    let rate = BitRate(u64::from(wave.byte_rate()) * 8);
    // A recording that was cut off states nothing or too much.
    let data = wave.data();
    let duration = duration(data.end - data.start, Some(rate).filter(|rate| rate.0 > 0)?)?;
    let facts = of_kind(MediaKind::Wave, rate, duration, data.start);
    Some(facts).filter(|facts| facts.duration > Nanos::ZERO)
}

fn ogg(file: &File, len: u64) -> Option<MediaFacts> {
    let begin = read(file, 0, len.min(WINDOW))?;
    let from = len.saturating_sub(WINDOW).max(begin.len() as u64);
    let end = read(file, from, len - from)?;
    let duration = nanos(Scan::ogg_duration(&begin, &end))?;
    let rate = mean_rate(len, duration)?;
    Some(of_kind(MediaKind::Ogg, rate, duration, 0))
}

fn of_flac(file: &File, len: u64, media: u64) -> Option<MediaFacts> {
    let flac = FlacFront::read(file, len, media)?;
    let duration = nanos(flac.info.time(flac.info.samples))?;
    let rate = mean_rate(len, duration)?;
    Some(of_kind(MediaKind::Flac, rate, duration, flac.audio))
}

/// What precedes the frames of FLAC (RFC 9639, section 8).
struct FlacFront {
    info: StreamInfo,
    /// The table of points, if there is one: where it is and its size.
    table: Option<(u64, u64)>,
    /// Where the frames begin.
    audio: u64,
}

impl FlacFront {
    fn read(file: &File, len: u64, media: u64) -> Option<Self> {
        let mut at = media + 4;
        let info = StreamInfo::read(&read(file, at, 4 + flac::STREAM_INFO as u64)?)?;
        let mut table = None;
        for _ in 0..BLOCKS_MAX {
            let head = read(file, at, 4)?;
            let (kind, size) = (head[0], flac::block_size([head[1], head[2], head[3]]));
            if kind & 0x7f == 3 {
                table = Some((at + 4, size)).filter(|&(_, size)| size <= TABLE_MAX);
            }
            at += 4 + size;
            if kind & 0x80 != 0 {
                return (at < len).then_some(Self { info, table, audio: at });
            }
        }
        None
    }
}

/// The consumption of a FLAC by its own table of points. May block.
pub(crate) fn by_table(file: &File) -> Option<Consumption> {
    let len = file.metadata().ok()?.len();
    let start = read(file, 0, len.min(10))?;
    let flac = FlacFront::read(file, len, behind_tags(file, len, &start)?)?;
    let (at, size) = flac.table?;
    let mut points = vec![(MediaTime(0), 0), (MediaTime(0), flac.audio)];
    for row in read(file, at, size)?.chunks_exact(18) {
        let word = |at: usize| row[at..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        let (sample, offset) = (word(0)?, word(8)?);
        // Room for more points (section 8.5).
        if sample == u64::MAX {
            break;
        }
        let (time, place) = (flac.info.time(sample), flac.audio.checked_add(offset)?);
        let &(last, reached) = points.last().expect("there are two");
        if time > last && reached < place && place < len {
            points.push((time, place));
        }
    }
    let &(last, _) = points.last().expect("there are two");
    let end = flac.info.time(flac.info.samples);
    points.push((end.max(MediaTime(last.0 + 1)), len));
    let is_useful = points.len() > 3;
    let points = points.into_iter().map(|(time, at)| (time, Bytes(at)));
    let consumption = Consumption::new(Shape::Lines, points).filter(|_| is_useful)?;
    Some(consumption.with_lead(TABLE_LEAD))
}

/// An MP3 whose first frame is at `media`, where `begin` begins.
fn mp3(file: &File, len: u64, media: u64, begin: &[u8]) -> Option<MediaFacts> {
    let frame = Frame::read(begin)?;
    let table = frame.table(begin);
    let kind = |is_constant| MediaKind::Mp3 { is_constant };
    if let Some(frames) = table.and_then(|table| table.frames).filter(|&count| count > 0) {
        let samples = u128::from(frames) * u128::from(frame.samples);
        let nanos = samples * u128::from(SECOND.0) / u128::from(frame.sampling);
        let duration = Nanos(u64::try_from(nanos).ok()?);
        // A file that was cut off, or continued, has another number of frames.
        let rate = mean_rate(len - media, duration)?;
        let is_constant = table.is_some_and(|table| table.is_constant);
        let is_plausible = (4_000..=640_000).contains(&rate.0);
        return is_plausible.then(|| of_kind(kind(is_constant), rate, duration, media));
    }
    let part = (len - media) / PLACES;
    let mut rates = Vec::new();
    for place in 0..PLACES {
        let at = media + part * place;
        let bytes = read(file, at, GLANCE.min(len - at))?;
        let first = (0..bytes.len()).find(|&at| frames(&bytes[at..]).next().is_some());
        let own = frames(&bytes[first.unwrap_or(bytes.len())..]).map(|(_, frame)| frame);
        rates.extend(own.filter(|one| one.is_like(&frame)).map(|frame| u64::from(frame.rate)));
    }
    let sum: u64 = rates.iter().sum();
    let rate = BitRate(sum.div_ceil((rates.len() as u64).max(1)));
    let is_constant = rates.iter().all(|one| *one == rate.0);
    Some(of_kind(kind(is_constant), rate, duration(len - media, rate)?, media))
}

/// The frames from the start of `bytes` on, each of which another one of its kind follows.
fn frames(bytes: &[u8]) -> impl Iterator<Item = (usize, Frame)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let frame = Frame::read(bytes.get(at..)?)?;
        let next = Frame::read(bytes.get(at + frame.len..)?)?;
        let this = at;
        at += frame.len;
        frame.is_like(&next).then_some((this, frame))
    })
}

fn of_kind(kind: MediaKind, rate: BitRate, duration: Nanos, head: u64) -> MediaFacts {
    MediaFacts { kind, rate, peak: None, duration, head: Bytes(head) }
}

fn nanos(time: MediaTime) -> Option<Nanos> {
    let nanos = u64::try_from(u128::from(time.0) * 1000 / 27).ok()?;
    Some(Nanos(nanos)).filter(|&nanos| nanos > Nanos::ZERO)
}
