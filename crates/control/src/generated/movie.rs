//! A movie's tracks as elementary streams of RTP: H.264 (RFC 6184), H.265 (RFC 7798), AAC (RFC
//! 3640), AC-3 (RFC 4184), E-AC-3 (RFC 4598), Opus (RFC 7587), MPEG audio (RFC 2250).
//!
//! Promise: samples leave in decoding order, each from its decoding time on, with the packets of a
//! video frame spread over the time to the next one. Timestamps are presentation times (RFC 3550,
//! section 5.1). Samples that the file has in another order are held; unsent tracks are skipped.
//! All times may be stretched by a factor.

#[cfg(any(test, feature = "fuzz-targets"))]
pub mod fuzz_targets;
mod payloads;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use tactus_core::datagrams::Session;
use tactus_core::generated::TimedDatagram;
use tactus_core::units::{BitRate, Bytes, Nanos};
use tactus_media::movie::{Begin, Movie, Sample, SampleId};
use tactus_storage::catalogue::OpenTitle;

use super::{Packetizer, SourceSpec};
use crate::broker::{GeneratedRate, Reading};

pub use payloads::PACKET_MAX;
#[cfg(test)]
pub(crate) use payloads::units_of;
pub(crate) use payloads::{Moment, Packets, bytes_of, needs};

/// The tracks and the range of a movie to send.
#[derive(Clone, Debug)]
pub struct Part {
    /// The movie.
    pub movie: Arc<Movie>,
    /// The start position.
    pub begin: Begin,
    /// Samples with later decoding times are not sent.
    pub end: Option<Nanos>,
    /// The sent tracks, in the order of the outputs.
    pub tracks: Vec<TrackStream>,
    /// Factor of the duration: 1, or 2 for half the speed.
    pub stretch: u32,
}

/// A sent track.
#[derive(Clone, Copy, Debug)]
pub struct TrackStream {
    /// Its number in the movie.
    pub track: u32,
    /// The payload type of its description.
    pub payload_type: u8,
    /// Its SSRC, the sequence number of its first packet, and the timestamp of the movie's
    /// beginning. With a stretch, that timestamp lies the factor times as far back.
    pub session: Session,
}

impl Part {
    /// The reads of this part; `None` if there is nothing to send.
    pub fn source_spec(&self, title: &Arc<OpenTitle>) -> Option<SourceSpec> {
        let reading = self.reading(self.range()?);
        let ready = self.movie.needs.ahead;
        Some(SourceSpec {
            title: Arc::clone(title),
            reading,
            ready,
            buffer_max: Bytes(ready.0 + ready.0 / 2),
            session: None,
        })
    }

    fn reading(&self, range: Range<u64>) -> Reading {
        let needs = self.movie.needs;
        // With the same bytes ready at the beginning, a stretched part needs a rate that is lower
        // by the factor.
        let rate = needs.rate.0.div_ceil(self.stretch.into());
        // The surplus lets a reader in this process catch up after delays.
        let rate = BitRate(rate + rate.div_ceil(32));
        Reading { range, block_list: None, rate, burst: Bytes(needs.ahead.0.div_ceil(2)) }
    }

    /// A reading of all file bytes that any part needs.
    pub fn reading_of_all(&self) -> Reading {
        self.reading(0..self.movie.end().max(1))
    }

    /// The peak needs of each output.
    pub fn needs(&self) -> Vec<GeneratedRate> {
        let of = |sent: &TrackStream| {
            let track = &self.movie.tracks[sent.track as usize];
            needs(track, track.samples_per_second)
        };
        self.tracks.iter().map(of).collect()
    }

    /// The file range of the part.
    fn range(&self) -> Option<Range<u64>> {
        let ranges = self.tracks.iter().filter_map(|sent| {
            let first = *self.begin.first.get(sent.track as usize)?;
            self.movie.tracks[sent.track as usize].bytes(first as usize, self.end)
        });
        ranges.reduce(|all, one| all.start.min(one.start)..all.end.max(one.end))
    }

    /// The timestamp of output `nth` at [`Begin::at`]: `rtptime` of `RTP-Info`.
    pub fn timestamp_at_begin(&self, nth: usize) -> u32 {
        self.stamp(nth, self.begin.ticks(self.clock(nth)))
    }

    /// The timestamp of output `nth` at the beginning of all streams: rounded down.
    pub fn timestamp_at_epoch(&self, nth: usize) -> u32 {
        let ticks = self.epoch() * i128::from(self.clock(nth));
        self.stamp(nth, ticks.div_euclid(1_000_000_000))
    }

    fn clock(&self, nth: usize) -> u32 {
        self.movie.tracks[self.tracks[nth].track as usize].clock()
    }

    /// The timestamp that is `ticks` after the movie's beginning.
    fn stamp(&self, nth: usize, ticks: i128) -> u32 {
        let ticks = ticks * i128::from(self.stretch);
        self.tracks[nth].session.timestamp.wrapping_add(ticks as u32)
    }

    /// The due time of the first packet of all, on the movie's timeline: the origin of the streams'
    /// time.
    pub(crate) fn epoch(&self) -> i128 {
        let firsts = self.tracks.iter().filter_map(|sent| {
            let track = &self.movie.tracks[sent.track as usize];
            let first = *self.begin.first.get(sent.track as usize)?;
            Some(track.decoded(track.samples().get(first as usize)?))
        });
        firsts.min().unwrap_or(0)
    }
}

/// Makes the packets of a part.
pub struct MovieStreams {
    part: Part,
    epoch: i128,
    /// Received bytes that are not yet parsed.
    inbox: Vec<u8>,
    /// The file offset of its first byte.
    at: u64,
    /// The next sample from the file, and its received bytes.
    place: usize,
    partial: Vec<u8>,
    /// The next sample to send, and the end.
    time: usize,
    time_end: usize,
    /// Received samples that have not left.
    ready: HashMap<(u32, u32), Vec<u8>>,
    buffered: usize,
    has_ended: bool,
    /// The next sequence number of each output.
    sequences: Vec<u16>,
    /// The remaining packets of the sample that each output sends.
    packets: Vec<Option<Packets>>,
    /// The due time of the last packet.
    last: Nanos,
    is_pausing: bool,
}

/// Samples that are skipped or read before other tasks may run: 1-byte samples of an unsent track
/// take no longer than a millisecond.
const SAMPLES_AT_ONCE: usize = 4096;

impl MovieStreams {
    /// The streams of `part`, whose source begins at byte `from` of the file.
    pub fn new(part: Part, from: u64) -> Self {
        let sequences: Vec<_> = part.tracks.iter().map(|sent| sent.session.sequence).collect();
        let (movie, epoch) = (&part.movie, part.epoch());
        let decoded = |id: &SampleId| movie.tracks[id.track as usize].decoded(movie.sample(*id));
        let by_time = movie.by_time();
        let time = by_time.partition_point(|id| decoded(id) < epoch);
        let time_end = part.end.map_or(by_time.len(), |end| {
            by_time.partition_point(|id| decoded(id) < i128::from(end.0))
        });
        Self {
            epoch,
            inbox: vec![],
            at: from,
            place: movie.by_place().partition_point(|&id| movie.sample(id).at < from),
            partial: vec![],
            time,
            time_end,
            ready: HashMap::new(),
            buffered: 0,
            has_ended: false,
            packets: sequences.iter().map(|_| None).collect(),
            last: Nanos(0),
            sequences,
            is_pausing: false,
            part,
        }
    }

    /// The output of a sample.
    fn output(&self, id: SampleId) -> Option<usize> {
        let output = self.part.tracks.iter().position(|sent| sent.track == id.track)?;
        let is_behind = id.sample >= *self.part.begin.first.get(id.track as usize)?;
        let decoded = self.decoded(id);
        let is_before = self.part.end.is_none_or(|end| decoded < i128::from(end.0));
        // A time before all others is invalid.
        (is_behind && is_before && decoded >= self.epoch).then_some(output)
    }

    fn decoded(&self, id: SampleId) -> i128 {
        let movie = &self.part.movie;
        movie.tracks[id.track as usize].decoded(movie.sample(id))
    }

    /// When the first packet of a sample is due.
    fn due(&self, id: SampleId) -> Nanos {
        let due = (self.decoded(id) - self.epoch) * i128::from(self.part.stretch);
        Nanos(u64::try_from(due).unwrap_or(0))
    }

    /// Assembles up to this many samples from the received bytes; returns whether all are
    /// assembled.
    fn take_in(&mut self, left: &mut usize) -> bool {
        let movie = Arc::clone(&self.part.movie);
        let inbox = std::mem::take(&mut self.inbox);
        let mut bytes = &inbox[..];
        while !bytes.is_empty() {
            let Some(&id) = movie.by_place().get(self.place) else {
                self.buffered -= bytes.len();
                return true;
            };
            let Some(fewer) = left.checked_sub(1) else {
                self.inbox = bytes.to_vec();
                return false;
            };
            *left = fewer;
            let Sample { at, len, .. } = *movie.sample(id);
            let begun = self.partial.len() as u64;
            if self.output(id).is_none() || at + begun < self.at {
                // An unsent sample, or one that overlaps another, which no valid file has.
                self.buffered -= self.partial.len();
                self.partial.clear();
                self.place += 1;
                continue;
            }
            let skip = (at + begun - self.at).min(bytes.len() as u64);
            self.at += skip;
            self.buffered -= skip as usize;
            bytes = &bytes[skip as usize..];
            let take = (u64::from(len) - begun).min(bytes.len() as u64);
            self.at += take;
            self.partial.extend_from_slice(&bytes[..take as usize]);
            bytes = &bytes[take as usize..];
            if self.partial.len() as u64 == u64::from(len) {
                let whole = std::mem::take(&mut self.partial);
                self.ready.insert((id.track, id.sample), whole);
                self.place += 1;
            }
        }
        true
    }

    fn packetise(&mut self, output: usize, id: SampleId, bytes: Vec<u8>) {
        let sent = self.part.tracks[output];
        let movie = Arc::clone(&self.part.movie);
        let track = &movie.tracks[id.track as usize];
        let sample = movie.sample(id);
        let stretch = self.part.stretch;
        let stamp = track.stamp(sample).wrapping_mul(stretch);
        let moment = Moment {
            due: self.due(id),
            lasts: track.lasts(id.sample as usize).times(stretch.into()),
            timestamp: sent.session.timestamp.wrapping_add(stamp),
        };
        let sequence = &mut self.sequences[output];
        let packets = Packets::new((track, sample, bytes), &sent, sequence, moment);
        self.packets[output] = packets.due().is_some().then_some(packets);
    }

    /// The output with the earliest packet, and its due time.
    fn first(&self) -> Option<(usize, Nanos)> {
        let firsts = self.packets.iter().enumerate();
        let firsts =
            firsts.filter_map(|(output, packets)| Some((output, packets.as_ref()?.due()?)));
        firsts.min_by_key(|&(_, due)| due)
    }

    /// The next packet of an output. If times of samples are invalid, it is due no earlier than the
    /// one before it.
    fn pop(&mut self, output: usize) -> Option<(usize, TimedDatagram)> {
        let packets = self.packets[output].as_mut()?;
        let mut timed = packets.next()?;
        if packets.due().is_none() {
            self.packets[output] = None;
        }
        timed.due = timed.due.max(self.last);
        self.last = timed.due;
        Some((output, timed))
    }

    /// Whether the file was read past the end of a sample that is still missing.
    fn is_lost(&self, id: SampleId) -> bool {
        let sample = self.part.movie.sample(id);
        self.at >= sample.at + u64::from(sample.len)
    }
}

impl Packetizer for MovieStreams {
    fn push(&mut self, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
        self.buffered += bytes.len();
    }

    fn end(&mut self) {
        self.has_ended = true;
    }

    fn next(&mut self) -> Option<(usize, TimedDatagram)> {
        let mut left = SAMPLES_AT_ONCE;
        self.is_pausing = !self.take_in(&mut left);
        while !self.is_pausing {
            let first = self.first();
            if self.time >= self.time_end {
                return self.pop(first?.0);
            }
            let id = self.part.movie.by_time()[self.time];
            if let Some(output) = self.output(id) {
                // Packets of any track that are due before it leave before it.
                let due = self.due(id);
                if let Some((output, _)) = first.filter(|&(_, before)| before <= due) {
                    return self.pop(output);
                }
                if self.packets[output].is_some() {
                    return self.pop(output);
                }
                match self.ready.remove(&(id.track, id.sample)) {
                    Some(bytes) => {
                        self.buffered -= bytes.len();
                        self.packetise(output, id, bytes);
                    }
                    None if !self.has_ended && !self.is_lost(id) => return None,
                    None => {}
                }
            }
            self.time += 1;
            left = left.saturating_sub(1);
            self.is_pausing = left == 0;
        }
        None
    }

    fn is_pausing(&self) -> bool {
        self.is_pausing
    }

    fn buffered(&self) -> usize {
        self.buffered
    }
}

#[cfg(test)]
mod tests;
