//! The consumption of a title: how many of its bytes a player needs by which time.
//!
//! Promise: it comes from the decoding times of a transport stream, or from the sample tables or
//! fragments of a movie of any codec. Times of samples are rounded down to [`SLOT`], so a schedule
//! by them is early by that much and never late. Points are bounded by [`POINTS_MAX`]. A movie
//! whose tracks are not interleaved has no consumption: players seek in it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use shiguredo_mp4::Decode;
use shiguredo_mp4::boxes::{MoofBox, TrexBox};
use tactus_core::smoothing::{Consumption, PlayerBuffer, Shape};
use tactus_core::ts::Index;
use tactus_core::units::{BitRate, Bytes, MIB, MediaTime, Nanos};

use super::probe::boxes::{Table, boxes, child, top_level};
use super::probe::movie::{SAMPLES_MAX, Samples, time_header, track_id, version, word};
use super::probe::{audio, matroska};
use super::scan::Scan;
pub use super::stairs::{POINTS_MAX, SLOT};
use super::{MediaFacts, MediaKind};

/// The same in nanoseconds.
const SLOT_SPAN: Nanos = Nanos::from_millis(10);
/// The player by default, whose schedule has the stated peak.
const PLAYER: PlayerBuffer = PlayerBuffer {
    held: MediaTime(2 * 27_000_000),
    burst: MediaTime(27_000_000),
    burst_max: Bytes(8 * MIB),
    late: MediaTime(0),
};
/// More than 100 Gbit/s means wrong times.
const RATE_MAX: BitRate = BitRate(100_000_000_000);
/// In a transport stream without decoding times, how much sooner than by its clock a byte may be
/// needed: a tenth of a second is the largest distance of clock references (ISO/IEC 13818-1,
/// 2.7.2), in which a frame ends, and as much is the difference of audio and video in the time from
/// their bytes to their decoding.
const CLOCK_LEAD: MediaTime = MediaTime(27_000_000 / 5);
/// Upper bound of slots while the samples are read: 32 MiB.
const SLOTS_MAX: usize = 1 << 20;
/// The most bytes that are needed before they are due, because others behind them are.
const AHEAD_MAX: u64 = 16 * MIB;
/// Bytes of a scan that are read at once.
const PIECE: usize = MIB as usize;
/// Upper bound of a `moof` box.
const FRAGMENT_MAX: u64 = 4 * MIB;
/// Bound of what edits move, so that times stay positive: a day.
const BEFORE: u64 = 27_000_000 * 86_400;
/// Edits read of one track.
const EDITS_MAX: usize = 64;
/// Upper bound of times: eleven years.
const TIME_MAX: u64 = 27_000_000 * 86_400 * 4096;

/// The facts of a fragmented movie whose index does not state its duration, from its fragments. May
/// block.
#[must_use]
pub fn facts_of_fragments(file: &File) -> Option<MediaFacts> {
    let len = file.metadata().ok()?.len();
    let index = top_level(file, len).find(|found| found.kind == *b"moov")?;
    child(file, &index.body, b"mvex")?;
    let ticks = u128::from(of_movie(file)?.duration().0);
    let duration = Nanos(u64::try_from(ticks * 1000 / 27).ok()?);
    let bits = u128::from(len) * 216_000_000;
    let rate = BitRate(u64::try_from(bits.div_ceil(ticks.max(1))).ok()?);
    let is_plausible = duration >= SLOT_SPAN && rate <= RATE_MAX;
    let head = Bytes(index.body.end);
    is_plausible.then_some(MediaFacts { kind: MediaKind::Movie, rate, peak: None, duration, head })
}

/// The highest rate of the schedule of a whole title; none if its rate is constant.
#[must_use]
pub fn peak(consumption: &Consumption) -> Option<BitRate> {
    let line = consumption.smoothed(PLAYER);
    let (mut rates, mut others) = (line.rates(), line.rates().skip(1));
    others.next()?;
    rates.next().map(|first| rates.fold(first, BitRate::max))
}

/// The consumption of `range` of an indexed transport stream; `None` if it is empty.
///
/// Its time begins with the first frame that is decoded: of those that begin in the range if an
/// access point begins it, otherwise of all that end in it.
#[must_use]
pub fn of_index(index: &Index, range: &Range<u64>) -> Option<Consumption> {
    let end = range.end.min(index.len());
    let last = index.deadlines().next_back();
    let Some((last, last_time)) = last.filter(|&(last, _)| range.start < last) else {
        return of_clock(index, &(range.start..end));
    };
    let mut inner = index.deadlines().filter(|&(at, _)| range.start < at).peekable();
    let &(_, first) = inner.peek()?;
    let begin = index.decoded_from(range.start).unwrap_or(first);
    // The bytes of a deadline that lies behind the end are needed at its time.
    let mut is_over = false;
    let inner = inner.take_while(move |&(at, _)| {
        let was_over = std::mem::replace(&mut is_over, at >= end);
        !was_over
    });
    // Bytes behind the last frame come by the clock.
    let rest = (end > last).then(|| {
        let later = index.time_at(end).0.saturating_sub(index.time_at(last).0);
        (end, MediaTime(last_time.0.saturating_add(later)))
    });
    let points = inner.chain(rest).map(|(at, time)| {
        (MediaTime(time.0.saturating_sub(begin.0)), Bytes(at.min(end) - range.start))
    });
    Consumption::new(Shape::Steps, points)
}

/// The same by the clock. A clock reference tells when its byte is sent by a sender that follows
/// the clock. Its frame may be decoded up to `CLOCK_LEAD` sooner than that.
fn of_clock(index: &Index, range: &Range<u64>) -> Option<Consumption> {
    let begin = index.time_at(range.start);
    let inner = index.points().filter(|&(at, _)| range.start < at && at < range.end);
    let points = inner
        .chain([(range.end, index.time_at(range.end))])
        .map(|(at, time)| (MediaTime(time.0.saturating_sub(begin.0)), Bytes(at - range.start)));
    let first = (MediaTime(0), Bytes(0));
    Some(
        Consumption::new(Shape::Lines, std::iter::once(first).chain(points))?.with_lead(CLOCK_LEAD),
    )
}

/// The consumption of a whole movie; `None` if its samples are unknown or not interleaved. May
/// block.
#[must_use]
pub fn of_movie(file: &File) -> Option<Consumption> {
    let len = file.metadata().ok()?.len();
    let index = top_level(file, len).find(|found| found.kind == *b"moov")?.body;
    let (movie_timescale, _) = time_header(file, &child(file, &index, b"mvhd")?)?;
    let mut samples = Slots::new(len);
    let mut tracks = HashMap::new();
    for track in boxes(file, index.clone()).filter(|found| found.kind == *b"trak") {
        let media = child(file, &track.body, b"mdia")?;
        let (timescale, _) = time_header(file, &child(file, &media, b"mdhd")?)?;
        let head = child(file, &track.body, b"tkhd")?;
        let shift = edit_shift(file, &track.body, timescale, movie_timescale);
        tracks.insert(track_id(file, &head)?, Track { timescale, shift, decoded: 0 });
        let tables = child(file, &child(file, &media, b"minf")?, b"stbl")?;
        for sample in Samples::new(file, &tables)? {
            samples.add(
                ticks(sample.due, timescale, shift)?,
                sample.end - u64::from(sample.size),
                sample.size,
            )?;
        }
    }
    if let Some(extends) = child(file, &index, b"mvex") {
        add_fragments(file, len, &extends, &mut tracks, &mut samples)?;
    }
    samples.consumption()
}

/// The consumption of a title whose frames have no table, by all its bytes; `None` if it has none,
/// or a constant rate. May block for as long as it takes to read them.
#[must_use]
pub fn of_frames(file: &File, kind: MediaKind) -> Option<Consumption> {
    let mut scan = Scan::of(kind)?;
    let mut piece = vec![0; PIECE];
    while !scan.is_hopeless() {
        match file.read_at(&mut piece, scan.len()) {
            Ok(0) => break,
            Ok(count) => scan.add(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    scan.finish()
}

/// An estimate of the consumption of such a title, by the few points that it states itself. May
/// block.
#[must_use]
pub fn estimate(file: &File, kind: MediaKind) -> Option<Consumption> {
    match kind {
        MediaKind::Matroska => matroska::by_cues(file),
        MediaKind::Flac => audio::by_table(file),
        _ => None,
    }
}

/// A track of a fragmented movie.
struct Track {
    timescale: u32,
    /// Its samples are decoded this many ticks of 27 MHz later than their table says.
    shift: i64,
    /// When its next sample is decoded, if a fragment does not say so.
    decoded: u64,
}

/// The samples by time: the bytes that are due in each slot, and the end of the furthest.
struct Slots {
    /// Samples behind the end of a truncated file are left out.
    len: u64,
    left: u64,
    /// The length of a slot, in multiples of [`SLOT`].
    each: u64,
    slots: Vec<Slot>,
}

#[derive(Clone, Copy)]
struct Slot {
    number: u64,
    bytes: u64,
    start: u64,
    end: u64,
}

impl Slots {
    fn new(len: u64) -> Self {
        Self { len, left: SAMPLES_MAX.min(len), each: 1, slots: Vec::new() }
    }

    fn add(&mut self, time: u64, at: u64, size: u32) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        let end = at.checked_add(size.into()).filter(|&end| size > 0 && end <= self.len);
        let Some(end) = end else { return Some(()) };
        let number = time / (SLOT.0 * self.each);
        match self.slots.last_mut() {
            Some(last) if last.number == number => {
                last.bytes += u64::from(size);
                last.start = last.start.min(at);
                last.end = last.end.max(end);
            }
            _ => self.slots.push(Slot { number, bytes: size.into(), start: at, end }),
        }
        if self.slots.len() >= SLOTS_MAX {
            self.gather(SLOTS_MAX / 2);
        }
        Some(())
    }

    /// Sorts the slots and unites those of one number; makes them longer until there are at most
    /// `most`.
    fn gather(&mut self, most: usize) {
        self.slots.sort_by_key(|slot| slot.number);
        loop {
            self.slots.dedup_by(|next, kept| {
                let is_one = next.number == kept.number;
                if is_one {
                    kept.bytes += next.bytes;
                    kept.start = kept.start.min(next.start);
                    kept.end = kept.end.max(next.end);
                }
                is_one
            });
            if self.slots.len() <= most {
                return;
            }
            self.each *= 2;
            self.slots.iter_mut().for_each(|slot| slot.number /= 2);
        }
    }

    fn consumption(mut self) -> Option<Consumption> {
        self.gather(POINTS_MAX);
        let first = self.slots.iter().map(|slot| slot.start).min()?;
        let mut points: Vec<(u64, u64)> = Vec::new();
        let (mut reached, mut due) = (0, 0);
        for slot in &self.slots {
            due += slot.bytes;
            reached = slot.end.max(reached);
            // Bytes between samples, as the headers of fragments, are few.
            if reached - first > due + due / 8 + AHEAD_MAX {
                return None;
            }
            if points.last().is_none_or(|&(_, end)| end < reached) {
                points.push((slot.number, reached));
            }
        }
        let length = SLOT.0 * self.each;
        let begin = points.first()?.0;
        let points = points.into_iter();
        let points = points.map(|(number, end)| (MediaTime((number - begin) * length), Bytes(end)));
        Some(Consumption::new(Shape::Steps, points)?.with_resolution(MediaTime(length)))
    }
}

fn add_fragments(
    file: &File,
    len: u64,
    extends: &Range<u64>,
    tracks: &mut HashMap<u32, Track>,
    samples: &mut Slots,
) -> Option<()> {
    let mut defaults = HashMap::new();
    for found in boxes(file, extends.clone()).filter(|found| found.kind == *b"trex") {
        let default: TrexBox = decode(file, found.whole())?;
        defaults.insert(default.track_id, default);
    }
    let fragments = top_level(file, len).filter(|found| found.kind == *b"moof");
    for found in fragments {
        let at = found.whole().start;
        let fragment: MoofBox = decode(file, found.whole())?;
        for run_of in &fragment.traf_boxes {
            let head = &run_of.tfhd_box;
            let Some(track) = tracks.get_mut(&head.track_id) else { continue };
            let default = defaults.get(&head.track_id);
            if let Some(time) = &run_of.tfdt_box {
                track.decoded = time.base_media_decode_time;
            }
            let base = head.base_data_offset.unwrap_or(at);
            let mut place = base;
            for run in &run_of.trun_boxes {
                if let Some(offset) = run.data_offset {
                    place = base.checked_add_signed(offset.into())?;
                }
                for each in &run.samples {
                    let size = each.size.or(head.default_sample_size);
                    let size = size.or(default.map(|it| it.default_sample_size)).unwrap_or(0);
                    let lasts = each.duration.or(head.default_sample_duration);
                    let lasts = lasts.or(default.map(|it| it.default_sample_duration));
                    let time = ticks(track.decoded, track.timescale, track.shift)?;
                    samples.add(time, place, size)?;
                    place = place.checked_add(size.into())?;
                    track.decoded = track.decoded.checked_add(lasts.unwrap_or(0).into())?;
                }
            }
        }
    }
    Some(())
}

/// A time in ticks of 27 MHz, rounded down, after [`BEFORE`].
fn ticks(time: u64, timescale: u32, shift: i64) -> Option<u64> {
    let ticks = (u128::from(time) * 27_000_000).checked_div(timescale.into())?;
    let ticks = u64::try_from(ticks).ok().filter(|&ticks| ticks < TIME_MAX)?;
    (ticks + BEFORE).checked_add_signed(shift)
}

/// How much later than its table says a track is decoded by its edits, in ticks of 27 MHz: an empty
/// edit delays it, and what lies before the first edited sample is decoded earlier.
fn edit_shift(file: &File, track: &Range<u64>, timescale: u32, movie_timescale: u32) -> i64 {
    let list = child(file, track, b"edts").and_then(|edits| child(file, &edits, b"elst"));
    let Some(list) = list else { return 0 };
    let edits: Vec<(u64, i64)> = match version(file, &list) {
        Some(1) => Table::<20>::of_box(file, &list, 0).map(|rows| {
            rows.take(EDITS_MAX).map(|row| (wide(&row, 0), wide(&row, 8) as i64)).collect()
        }),
        _ => Table::<12>::of_box(file, &list, 0).map(|rows| {
            let each = rows.take(EDITS_MAX);
            each.map(|row| (word(&row, 0).into(), i64::from(word(&row, 1) as i32))).collect()
        }),
    }
    .unwrap_or_default();
    let scaled = |time: i64, scale: u32| {
        let ticks = i128::from(time) * 27_000_000 / i128::from(scale.max(1));
        ticks.clamp(-i128::from(BEFORE), i128::from(BEFORE)) as i64
    };
    let mut shift = 0i64;
    for (duration, media_time) in edits {
        if media_time >= 0 {
            return shift - scaled(media_time, timescale);
        }
        shift = shift.saturating_add(scaled(duration as i64, movie_timescale)).min(BEFORE as i64);
    }
    shift
}

fn wide(row: &[u8], at: usize) -> u64 {
    row[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn decode<T: Decode>(file: &File, whole: Range<u64>) -> Option<T> {
    let len = usize::try_from(whole.end - whole.start).ok()?;
    let mut bytes = vec![0; Some(len).filter(|&len| len as u64 <= FRAGMENT_MAX)?];
    file.read_exact_at(&mut bytes, whole.start).ok()?;
    T::decode(&bytes).ok().map(|(decoded, _)| decoded)
}

#[cfg(test)]
mod tests;
