//! The tracks of an MP4 or QuickTime movie and the positions of their samples (ISO/IEC 14496-12),
//! for sending each track as RTP.
//!
//! Promise: the first video track (H.264, H.265) and all audio tracks (AAC, AC-3, E-AC-3, Opus,
//! MPEG audio), with decoding and presentation times, including edits at the beginning; tracks that
//! are not sent are named with the reason; bounded by `INDEX_MAX` and `SAMPLES_MAX`. Inconsistent
//! tables, and samples that cannot be sent in decoding order, are refused with the reason. Only
//! indexes are read, never a sample.

mod codec;
mod groups;
mod languages;
#[cfg(any(test, feature = "fuzz-targets"))]
pub mod rows;

use std::fs::File;
use std::num::NonZeroU32;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use shiguredo_mp4::Decode;
use shiguredo_mp4::aux::SampleTableAccessor;
use shiguredo_mp4::boxes::{HdlrBox, MoofBox, MoovBox, TrakBox, TrexBox};
use tactus_core::rtp::aac;
use tactus_core::sdp::{Attribute, Media};
use tactus_core::units::{BitRate, Bytes, MIB, Nanos, SECOND};

use super::probe::boxes;
use super::probe::movie::may_be_movie;
use codec::OtherCodec;
use groups::Group;

pub use codec::Codec;

/// Upper bound of the index: ten hours of two tracks have 20 MiB.
const INDEX_MAX: u64 = 64 * MIB;
/// Upper bound of samples: eight hours of 25 video frames and 47 audio frames a second.
const SAMPLES_MAX: usize = 1 << 21;
/// Upper bound of sent tracks: the media of a description.
const TRACKS_MAX: usize = tactus_core::sdp::MEDIA_MAX;
/// Upper bound of Opus packets, which are not divided (RFC 7587, section 4.2).
pub const OPUS_MAX: u32 = 1388;
/// How far samples that are due together may lie apart in the file: this much is held in memory.
const SPREAD_MAX: u64 = 16 * MIB;

/// The tracks of a movie that can be sent.
#[derive(Debug)]
pub struct Movie {
    /// The video track comes first.
    pub tracks: Vec<Track>,
    /// The tracks that are not sent.
    pub others: Vec<OtherTrack>,
    /// All samples in decoding order, and in file order.
    by_time: Vec<SampleId>,
    by_place: Vec<SampleId>,
    /// How it has to be read.
    pub needs: ReadRequirements,
    /// From the first to the end of the last presented sample.
    pub duration: Nanos,
}

/// The reading that lets each track be sent on time, from any position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequirements {
    /// The least rate at which each sample arrives in time, if `ahead` is there at the beginning.
    pub rate: BitRate,
    /// The bytes needed at the beginning and held: a second at that rate, and the distance of
    /// samples that are due together.
    pub ahead: Bytes,
}

/// One track.
#[derive(Debug)]
pub struct Track {
    /// Its identifier in the file.
    pub id: u32,
    /// Its codec.
    pub codec: Codec,
    /// The language tag (RFC 5646), if it is known.
    pub language: Option<String>,
    /// Ticks in a second.
    timescale: NonZeroU32,
    samples: Vec<Sample>,
    groups: Vec<Group>,
    /// Ticks from a decoding time to the movie's time.
    shift: i64,
    /// Largest number of bits that are due in a second.
    pub rate: BitRate,
    /// Largest number of samples that are due in a second.
    pub samples_per_second: u32,
}

/// A track that is not sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtherTrack {
    /// Its identifier in the file.
    pub id: u32,
    /// `video`, `audio` or `text`.
    pub kind: &'static str,
    /// The name of its codec.
    pub codec: String,
    /// Its language tag, if it is known.
    pub language: Option<String>,
    /// The reason, as part of a sentence.
    pub why: &'static str,
}

/// One sample: a video frame or an audio frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Its offset in the file.
    pub at: u64,
    /// Its length.
    pub len: u32,
    /// Whether decoding can start here.
    pub is_sync: bool,
    /// Ticks from decoding to presentation.
    shown_after: i32,
    /// The decoding time in ticks.
    decoded: u64,
}

/// The identity of a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampleId {
    /// The number of its track.
    pub track: u32,
    /// Its number in the track.
    pub sample: u32,
}

/// Why a movie's tracks cannot be sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MovieFault {
    /// It cannot be read.
    #[error("the movie cannot be read: {0}")]
    Unreadable(String),
    /// It begins like no MP4 and no QuickTime file.
    #[error("the title is no MP4 and no QuickTime movie")]
    NotMovie,
    /// Invalid boxes.
    #[error("the movie has an invalid index: {0}")]
    Index(String),
    /// No supported track.
    #[error(
        "the movie has no track that can be sent: H.264, H.265, AAC, AC-3, E-AC-3, Opus or MPEG \
         audio"
    )]
    NoTrack,
    /// Too many samples or fragments, or too large an index.
    #[error("the movie has too many samples or fragments, or too large an index")]
    TooLong,
    /// Video and audio are not interleaved.
    #[error(
        "video and audio lie {0} bytes apart in the file; have them interleaved \
         (ffmpeg -c copy does)"
    )]
    Apart(u64),
}

impl Drop for Movie {
    /// Freeing two million samples takes the kernel milliseconds, which a thread that serves other
    /// clients does not have.
    fn drop(&mut self) {
        if self.by_time.len() <= FREED_AT_ONCE {
            return;
        }
        let tables = (
            std::mem::take(&mut self.tracks),
            std::mem::take(&mut self.by_time),
            std::mem::take(&mut self.by_place),
        );
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(tables));
        }
    }
}

/// Samples whose tables are freed on the dropping thread: some three megabytes.
const FREED_AT_ONCE: usize = 1 << 16;

impl Movie {
    /// Reads the index of `file`, which must not be open for direct I/O.
    ///
    /// # Errors
    /// Why its tracks cannot be sent.
    pub fn read(file: &File) -> Result<Self, MovieFault> {
        let unreadable = |error: std::io::Error| MovieFault::Unreadable(error.to_string());
        let len = file.metadata().map_err(unreadable)?.len();
        if !may_be_movie(file) {
            return Err(MovieFault::NotMovie);
        }
        let mut top = boxes::top_level(file, len);
        let index = top.by_ref().find(|found| found.kind == *b"moov");
        let index = index.ok_or_else(|| MovieFault::Index("it has no moov box".to_owned()))?;
        let index: MoovBox = decode(file, &index.whole())?;
        let (mut tracks, others) = tracks(&index)?;
        if let Some(fragments) = &index.mvex_box {
            read_fragments(file, len, &mut tracks, &fragments.trex_boxes)?;
        }
        Self::of_tracks(tracks, others, len)
    }

    fn of_tracks(
        mut tracks: Vec<Track>,
        mut others: Vec<OtherTrack>,
        len: u64,
    ) -> Result<Self, MovieFault> {
        let in_file = |sample: &Sample| {
            sample.len > 0 && sample.at.checked_add(sample.len.into()).is_some_and(|end| end <= len)
        };
        for track in &mut tracks {
            // Samples behind the end of a truncated file are dropped.
            track.samples.retain(in_file);
        }
        tracks.retain(|track| !track.samples.is_empty());
        let is_large = |track: &mut Track| {
            let is_opus = matches!(track.codec, Codec::Opus { .. });
            is_opus && track.samples.iter().any(|sample| sample.len > OPUS_MAX)
        };
        for track in tracks.extract_if(.., is_large) {
            others.push(OtherTrack {
                id: track.id,
                kind: "audio",
                codec: track.codec.name().to_owned(),
                language: track.language.clone(),
                why: "its packets are larger than a datagram",
            });
        }
        if tracks.is_empty() {
            return Err(MovieFault::NoTrack);
        }
        let ids = |(track, each): (u32, &Track)| {
            (0..each.samples.len() as u32).map(move |sample| SampleId { track, sample })
        };
        let mut by_time: Vec<_> = (0..).zip(&tracks).flat_map(ids).collect();
        if by_time.len() > SAMPLES_MAX {
            return Err(MovieFault::TooLong);
        }
        let sample = |id: SampleId| tracks[id.track as usize].samples[id.sample as usize];
        let mut by_place = by_time.clone();
        by_place.sort_by_key(|&id| sample(id).at);
        by_time.sort_by_key(|&id| tracks[id.track as usize].decoded(&sample(id)));
        let spread = spread(by_time.iter().map(|&id| sample(id)));
        if spread > SPREAD_MAX {
            return Err(MovieFault::Apart(spread));
        }
        let mut reached = 0;
        let due: Vec<_> = by_time
            .iter()
            .map(|&id| {
                let (track, sample) = (&tracks[id.track as usize], sample(id));
                reached = reached.max(sample.at + u64::from(sample.len));
                ByteNeed { due: track.decoded(&sample), to: reached }
            })
            .collect();
        let rate = least_rate(&due);
        let ahead = Bytes(rate.bytes_in(SECOND).0 + spread);
        for track in &mut tracks {
            (track.rate, track.samples_per_second) = track.busiest_second();
            track.group();
        }
        let end = tracks.iter().filter_map(Track::end).max().unwrap_or(0);
        let duration = Nanos(u64::try_from(end).unwrap_or(0));
        let needs = ReadRequirements { rate, ahead };
        Ok(Self { tracks, others, by_time, by_place, needs, duration })
    }

    /// A sample.
    pub fn sample(&self, id: SampleId) -> &Sample {
        &self.tracks[id.track as usize].samples[id.sample as usize]
    }

    /// The end of the last sample in the file.
    pub fn end(&self) -> u64 {
        let ends = self.tracks.iter().filter_map(|track| Some(track.bytes(0, None)?.end));
        ends.max().unwrap_or(0)
    }

    /// All samples in decoding order.
    pub fn by_time(&self) -> &[SampleId] {
        &self.by_time
    }

    /// All samples in file order.
    pub fn by_place(&self) -> &[SampleId] {
        &self.by_place
    }

    /// The start position for `wanted`: the last sync sample of the video before it, and the audio
    /// presented then. It takes a bounded number of steps.
    pub fn begin(&self, wanted: Nanos) -> Begin {
        let lead = &self.tracks[0];
        // A track without sync samples starts at its beginning.
        let first = lead.entry(i128::from(wanted.0)).unwrap_or(0);
        let exact = lead.shown_ticks(&lead.samples[first]).max(0);
        let at = lead.nanos(exact);
        // The first sample that ends after it.
        let of_others = self.tracks[1..].iter().map(|track| track.heard(at) as u32);
        let first = std::iter::once(first as u32).chain(of_others).collect();
        Begin { at: Nanos(at as u64), exact, timescale: lead.timescale, first }
    }
}

/// A start position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Begin {
    /// Its time, rounded down.
    pub at: Nanos,
    /// The same in fractions of a second: a third of a second has no whole nanoseconds.
    exact: i128,
    timescale: NonZeroU32,
    /// The first sample of each track.
    pub first: Vec<u32>,
}

impl Begin {
    /// The same in ticks of this clock, rounded down once, as the timestamps of samples are.
    pub fn ticks(&self, clock: u32) -> i128 {
        (self.exact * i128::from(clock)).div_euclid(i128::from(self.timescale.get()))
    }
}

impl Track {
    fn new(codec: Codec, timescale: NonZeroU32, samples: Vec<Sample>) -> Self {
        Self {
            id: 0,
            codec,
            language: None,
            timescale,
            samples,
            groups: vec![],
            shift: 0,
            rate: BitRate(0),
            samples_per_second: 0,
        }
    }

    /// Its SDP media description with this payload type.
    pub fn media(&self, payload_type: u8) -> Media {
        let kind = if self.is_video() { "video" } else { "audio" };
        let (map, parameters) = self.codec.description();
        let mut media = Media::rtp(kind, 0, payload_type, &map);
        if let Some(parameters) = parameters {
            media = media.with(Attribute::new("fmtp", format_args!("{payload_type} {parameters}")));
        }
        if let Some(language) = &self.language {
            media = media.with(Attribute::new("lang", language));
        }
        media.bandwidth = Some(self.rate.0.div_ceil(1000));
        media
    }

    /// Whether it is a video track.
    pub fn is_video(&self) -> bool {
        self.codec.is_video()
    }

    /// The RTP clock rate.
    pub fn clock(&self) -> u32 {
        self.codec.clock()
    }

    /// Its samples in decoding order.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The decoding time of a sample on the movie's time, in ns. Negative if an edit says so.
    pub fn decoded(&self, sample: &Sample) -> i128 {
        self.nanos(self.decoded_ticks(sample))
    }

    /// The presentation time.
    pub fn shown(&self, sample: &Sample) -> i128 {
        self.nanos(self.shown_ticks(sample))
    }

    /// The presentation time as an RTP timestamp, modulo 2^32; rounds down.
    pub fn stamp(&self, sample: &Sample) -> u32 {
        let ticks = self.shown_ticks(sample) * i128::from(self.clock());
        ticks.div_euclid(i128::from(self.timescale.get())) as u32
    }

    /// The time from sample `nth` to the decoding of the next one.
    pub fn lasts(&self, nth: usize) -> Nanos {
        let (Some(this), Some(next)) = (self.samples.get(nth), self.samples.get(nth + 1)) else {
            // The last sample is as long as the one before it.
            return if nth == 0 || nth >= self.samples.len() {
                Nanos(0)
            } else {
                self.lasts(nth - 1)
            };
        };
        let lasts = self.decoded(next) - self.decoded(this);
        Nanos(u64::try_from(lasts).unwrap_or(0))
    }

    fn decoded_ticks(&self, sample: &Sample) -> i128 {
        i128::from(sample.decoded) + i128::from(self.shift)
    }

    fn shown_ticks(&self, sample: &Sample) -> i128 {
        self.decoded_ticks(sample) + i128::from(sample.shown_after)
    }

    fn nanos(&self, ticks: i128) -> i128 {
        (ticks * i128::from(SECOND.0)).div_euclid(i128::from(self.timescale.get()))
    }

    /// The decoding time behind the last sample, in ticks of the media; the last one is as long as
    /// the one before it.
    fn table_end(&self) -> u64 {
        let Some(last) = self.samples.last() else { return 0 };
        let before = self.samples.len().checked_sub(2).map(|nth| self.samples[nth].decoded);
        let lasts = before.map_or(0, |before| last.decoded.saturating_sub(before));
        last.decoded.saturating_add(lasts)
    }

    fn end(&self) -> Option<i128> {
        let last = self.samples.len().checked_sub(1)?;
        Some(self.shown(&self.samples[last]) + i128::from(self.lasts(last).0))
    }

    /// The largest numbers of bits and of samples that are due in one second.
    fn busiest_second(&self) -> (BitRate, u32) {
        let (mut second, mut bytes, mut count) = (i128::MIN, 0, 0);
        let (mut bytes_most, mut count_most) = (0, 0);
        for sample in &self.samples {
            let of = self.decoded(sample).div_euclid(i128::from(SECOND.0));
            if of != second {
                (second, bytes, count) = (of, 0, 0);
            }
            bytes += u64::from(sample.len);
            count += 1;
            bytes_most = bytes_most.max(bytes);
            count_most = count_most.max(count);
        }
        (BitRate(bytes_most * 8), count_most)
    }
}

/// The bytes of a file that must have been read by a time.
#[derive(Clone, Copy)]
struct ByteNeed {
    /// On the movie's time, in ns.
    due: i128,
    to: u64,
}

/// The largest distance of unsent samples behind the read position.
fn spread(in_time: impl DoubleEndedIterator<Item = Sample> + Clone) -> u64 {
    let mut before: Vec<u64> = in_time
        .clone()
        .rev()
        .scan(u64::MAX, |first, sample| {
            *first = sample.at.min(*first);
            Some(*first)
        })
        .collect();
    before.reverse();
    let mut reached = 0;
    let spreads = in_time.zip(before).map(|(sample, first)| {
        reached = reached.max(sample.at + u64::from(sample.len));
        reached - first
    });
    spreads.max().unwrap_or(0)
}

/// The least rate at which, between any two samples, the bytes needed do not exceed those that
/// arrive in the time between them and in one more second. Rounds up to a thousandth.
fn least_rate(needs: &[ByteNeed]) -> BitRate {
    let is_enough = |rate: u64| {
        let mut lead = i128::MIN;
        needs.iter().all(|need| {
            // In bits and billionths: the arrived minus the needed bits.
            let spare =
                need.due * i128::from(rate) - i128::from(need.to) * 8 * i128::from(SECOND.0);
            lead = lead.max(spare);
            lead - spare <= i128::from(rate) * i128::from(SECOND.0)
        })
    };
    let (mut low, mut high) = (1_000, 1_000);
    while !is_enough(high) && high < RATE_MAX {
        (low, high) = (high, high * 2);
    }
    while high - low > high / 1000 {
        let middle = low.midpoint(high);
        *(if is_enough(middle) { &mut high } else { &mut low }) = middle;
    }
    BitRate(high)
}

/// Upper bound: no movie has a higher rate.
const RATE_MAX: u64 = 100_000_000_000;

fn decode<T: Decode>(file: &File, whole: &Range<u64>) -> Result<T, MovieFault> {
    if whole.end - whole.start > INDEX_MAX {
        return Err(MovieFault::TooLong);
    }
    let mut bytes = vec![0; (whole.end - whole.start) as usize];
    file.read_exact_at(&mut bytes, whole.start)
        .map_err(|error| MovieFault::Unreadable(error.to_string()))?;
    let (decoded, _) = T::decode(&bytes).map_err(|error| MovieFault::Index(error.to_string()))?;
    Ok(decoded)
}

/// The first supported video track and all supported audio tracks, and those that are not sent.
fn tracks(index: &MoovBox) -> Result<(Vec<Track>, Vec<OtherTrack>), MovieFault> {
    let (mut found, mut others) = (Vec::<Track>::new(), Vec::new());
    for boxes in &index.trak_boxes {
        let kind = match boxes.mdia_box.hdlr_box.handler_type {
            HdlrBox::HANDLER_TYPE_VIDE => "video",
            HdlrBox::HANDLER_TYPE_SOUN => "audio",
            HdlrBox::HANDLER_TYPE_SUBT | HdlrBox::HANDLER_TYPE_TEXT => "text",
            kind if kind == *b"sbtl" || kind == *b"clcp" => "text",
            // Hints, time codes and metadata are not for viewers.
            _ => continue,
        };
        let id = boxes.tkhd_box.track_id;
        let language = languages::tag(boxes.mdia_box.mdhd_box.language.as_bytes());
        let entries = &boxes.mdia_box.minf_box.stbl_box.stsd_box.entries;
        let why = match (&entries[..], Codec::of_first(entries)) {
            (_, Err(other)) => Err(other),
            ([_], Ok(codec)) if codec.is_video() != (kind == "video") => {
                Err(OtherCodec::of(&codec, "its kind does not fit its codec"))
            }
            ([_], Ok(codec)) if codec.is_video() && found.iter().any(Track::is_video) => {
                Err(OtherCodec::of(&codec, "only the first video track is sent"))
            }
            ([_], Ok(codec)) if found.len() == TRACKS_MAX => {
                Err(OtherCodec::of(&codec, "there are more tracks than one session has"))
            }
            ([_], Ok(codec)) => Ok(codec),
            (_, Ok(codec)) => Err(OtherCodec::of(&codec, "its configuration changes within it")),
        };
        match why {
            Ok(codec) => {
                let track = track(boxes, codec, language, index.mvhd_box.timescale.get())?;
                // The video track comes first.
                let at = if track.is_video() { 0 } else { found.len() };
                found.insert(at, track);
            }
            Err(OtherCodec { name, why }) => {
                others.push(OtherTrack { id, kind, codec: name, language, why });
            }
        }
    }
    if found.is_empty() { Err(MovieFault::NoTrack) } else { Ok((found, others)) }
}

fn track(
    boxes: &TrakBox,
    codec: Codec,
    language: Option<String>,
    movie_timescale: u32,
) -> Result<Track, MovieFault> {
    let timescale = boxes.mdia_box.mdhd_box.timescale;
    let table = &boxes.mdia_box.minf_box.stbl_box;
    let table =
        SampleTableAccessor::new(table).map_err(|fault| MovieFault::Index(format!("{fault:?}")))?;
    if table.sample_count() as usize > SAMPLES_MAX {
        return Err(MovieFault::TooLong);
    }
    let samples = table.samples().map(|sample| Sample {
        at: sample.data_offset(),
        len: sample.data_size(),
        is_sync: sample.is_sync_sample(),
        shown_after: sample.composition_time_offset().unwrap_or(0) as i32,
        decoded: sample.timestamp(),
    });
    let samples = samples.collect();
    let edits = boxes.edts_box.as_ref().and_then(|edits| edits.elst_box.as_ref());
    let mut shift = 0;
    for edit in edits.iter().flat_map(|edits| &edits.entries) {
        if edit.media_time < 0 {
            // An empty edit: nothing is presented for this many ticks of the movie.
            let empty = u128::from(edit.edit_duration) * u128::from(timescale.get());
            shift += (empty / u128::from(movie_timescale.max(1))) as i64;
        } else {
            // Earlier samples are decoded and not presented. Later edits are ignored.
            shift -= edit.media_time;
            break;
        }
    }
    let id = boxes.tkhd_box.track_id;
    Ok(Track { id, language, shift, ..Track::new(codec, timescale, samples) })
}

/// Adds the samples of a fragmented movie.
fn read_fragments(
    file: &File,
    len: u64,
    tracks: &mut [Track],
    defaults: &[TrexBox],
) -> Result<(), MovieFault> {
    let fragments = boxes::top_level(file, len).filter(|found| found.kind == *b"moof");
    // The decoding time of the next sample of each track.
    let mut ends: Vec<_> = tracks.iter().map(Track::table_end).collect();
    for (nth, found) in fragments.enumerate() {
        if nth >= boxes::FRAGMENTS_MAX {
            return Err(MovieFault::TooLong);
        }
        let fragment: MoofBox = decode(file, &found.whole())?;
        add_fragment(found.start, &fragment, (tracks, &mut ends), defaults)?;
    }
    Ok(())
}

fn add_fragment(
    at: u64,
    fragment: &MoofBox,
    (tracks, ends): (&mut [Track], &mut [u64]),
    defaults: &[TrexBox],
) -> Result<(), MovieFault> {
    let lies = || MovieFault::Index("a fragment's numbers do not fit".to_owned());
    for run_of in &fragment.traf_boxes {
        let head = &run_of.tfhd_box;
        let mut own = tracks.iter_mut().zip(&mut *ends);
        let Some((track, end)) = own.find(|(track, _)| track.id == head.track_id) else {
            continue;
        };
        let default = defaults.iter().find(|default| default.track_id == head.track_id);
        let base = head.base_data_offset.unwrap_or(at);
        let stated = run_of.tfdt_box.as_ref().map(|time| time.base_media_decode_time);
        // Without a time of its own the fragment follows the one before (8.8.12).
        let mut decoded = stated.unwrap_or(*end);
        let mut place = base;
        for run in &run_of.trun_boxes {
            if let Some(offset) = run.data_offset {
                place = base.checked_add_signed(offset.into()).ok_or_else(lies)?;
            }
            for (nth, each) in run.samples.iter().enumerate() {
                let of_first = run.first_sample_flags.filter(|_| nth == 0);
                let flags = of_first.or(each.flags).or(head.default_sample_flags);
                let flags = flags.or(default.map(|default| default.default_sample_flags));
                let size = each.size.or(head.default_sample_size);
                let size = size.or(default.map(|default| default.default_sample_size)).unwrap_or(0);
                let lasts = each.duration.or(head.default_sample_duration);
                let lasts = lasts.or(default.map(|default| default.default_sample_duration));
                let shown_after = each.composition_time_offset.unwrap_or(0) as i32;
                // `sample_is_non_sync_sample` (8.8.3.1).
                let is_sync = flags.is_none_or(|flags| flags.get() & 0x1_0000 == 0);
                track.samples.push(Sample { at: place, len: size, is_sync, shown_after, decoded });
                if track.samples.len() > SAMPLES_MAX {
                    return Err(MovieFault::TooLong);
                }
                place = place.checked_add(size.into()).ok_or_else(lies)?;
                decoded = decoded.checked_add(lasts.unwrap_or(0).into()).ok_or_else(lies)?;
            }
        }
        *end = decoded;
    }
    Ok(())
}

/// Parses the bytes of the sample entry of an audio track. The result has no meaning.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(crate) fn sound_entry(bytes: &[u8]) -> bool {
    [b"ac-3", b"ec-3", b".mp3"].into_iter().filter_map(|kind| codec::sound(*kind, bytes)).count()
        > 0
}

/// The largest audio frame that can be sent.
const _: () = assert!(aac::UNIT_MAX == 8191);

#[cfg(test)]
mod tests;
