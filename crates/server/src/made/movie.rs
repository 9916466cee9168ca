//! A movie's tracks as elementary streams of RTP: H.264 (RFC 6184), H.265 (RFC 7798), AAC (RFC 3640).
//!
//! Promise: samples leave in the order in which they are decoded, each from its decoding time on, the packets
//! of a picture spread over the time to the next one; timestamps say when they are shown (RFC 3550, section
//! 5.1). What comes from the file in another order is held; what is not sent is passed over.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use tactus_core::datagrams::Session;
use tactus_core::made::Timed;
use tactus_core::rtp::{self, Header, LengthPrefixed, aac, h264, h265};
use tactus_core::units::{BitRate, Bytes, Nanos};

use super::{Feed, Transformer};
use crate::broker::{MadeRate, Reading};
use crate::catalogue::OpenTitle;
use crate::media::movie::{Begin, Codec, Movie, Sample, SampleId, Track};

/// Most bytes of a packet, its RTP header included: room for tunnels that a frame of 1,500 bytes goes through.
pub const PACKET_MAX: usize = 1400;
/// Most bytes of a payload.
const PAYLOAD_MAX: usize = PACKET_MAX - rtp::HEADER;

/// Which tracks of a movie are sent, and from where to where.
#[derive(Clone, Debug)]
pub struct Part {
    /// The movie.
    pub movie: Arc<Movie>,
    /// Where it begins.
    pub begin: Begin,
    /// What is decoded later is not sent.
    pub end: Option<Nanos>,
    /// Each track that is sent, in the order of the outputs.
    pub tracks: Vec<Sent>,
}

/// A track that is sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Its number in the movie.
    pub track: u32,
    /// As it was described.
    pub payload_type: u8,
    /// Its source, the number of its first packet, and the timestamp of the movie's beginning.
    pub session: Session,
}

impl Part {
    /// What has to be read for it; none when there is nothing to send.
    pub fn feed(&self, title: &Arc<OpenTitle>) -> Option<Feed> {
        let reading = self.reading(self.range()?);
        let ready = self.movie.needs.ahead;
        Some(Feed { title: Arc::clone(title), reading, ready, hold: Bytes(ready.0 + ready.0 / 2) })
    }

    fn reading(&self, range: Range<u64>) -> Reading {
        let needs = self.movie.needs;
        // What a reader of our own is late by is made up for.
        let rate = BitRate(needs.rate.0 + needs.rate.0.div_ceil(32));
        Reading { range, itinerary: None, rate, burst: Bytes(needs.ahead.0.div_ceil(2)) }
    }

    /// As much of the file as any part has.
    pub fn reading_of_all(&self) -> Reading {
        let ends = self.movie.by_place().iter().map(|&id| self.movie.sample(id));
        self.reading(0..ends.map(|sample| sample.at + u64::from(sample.len)).max().unwrap_or(1))
    }

    /// What each output needs at most.
    pub fn needs(&self) -> Vec<MadeRate> {
        let needs = |sent: &Sent| {
            let track = &self.movie.tracks[sent.track as usize];
            let bytes = track.rate.0.div_ceil(8);
            // Each sample may end with a packet that is not full, and bring its parameter sets.
            let whole = bytes.div_ceil(PAYLOAD_MAX as u64 - 4);
            let datagrams = whole + 3 * u64::from(track.samples_per_second);
            let rate = BitRate((bytes + datagrams * 16) * 8);
            MadeRate { rate, datagrams: u32::try_from(datagrams).unwrap_or(u32::MAX) }
        };
        self.tracks.iter().map(needs).collect()
    }

    /// What of the file has it all.
    fn range(&self) -> Option<Range<u64>> {
        let wanted = self.movie.by_time().iter().filter(|&&id| self.output(id).is_some());
        let mut ranges = wanted.map(|&id| {
            let sample = self.movie.sample(id);
            sample.at..sample.at + u64::from(sample.len)
        });
        let first = ranges.next()?;
        Some(ranges.fold(first, |all, one| all.start.min(one.start)..all.end.max(one.end)))
    }

    /// The timestamp that stands for [`Begin::at`], of output `nth`: `rtptime` of `RTP-Info`.
    pub fn stamp_at_begin(&self, nth: usize) -> u32 {
        let sent = &self.tracks[nth];
        let track = &self.movie.tracks[sent.track as usize];
        let ticks = u128::from(self.begin.at.0) * u128::from(track.clock()) / 1_000_000_000;
        sent.session.timestamp.wrapping_add(ticks as u32)
    }

    /// The timestamp that stands for the beginning of all streams, of output `nth`.
    pub fn stamp_at_epoch(&self, nth: usize) -> u32 {
        let sent = &self.tracks[nth];
        let clock = i128::from(self.movie.tracks[sent.track as usize].clock());
        let ticks = (self.epoch() * clock).div_euclid(1_000_000_000);
        sent.session.timestamp.wrapping_add(ticks as u32)
    }

    /// When the first packet of all is due on the movie's time: where the streams' own time begins.
    fn epoch(&self) -> i128 {
        let firsts = self.tracks.iter().filter_map(|sent| {
            let track = &self.movie.tracks[sent.track as usize];
            let first = *self.begin.first.get(sent.track as usize)?;
            Some(track.decoded(track.samples().get(first as usize)?))
        });
        firsts.min().unwrap_or(0)
    }

    /// By which output a sample leaves.
    fn output(&self, id: SampleId) -> Option<usize> {
        let output = self.tracks.iter().position(|sent| sent.track == id.track)?;
        let is_behind = id.sample >= *self.begin.first.get(id.track as usize)?;
        let is_before = self.end.is_none_or(|end| {
            let track = &self.movie.tracks[id.track as usize];
            track.decoded(self.movie.sample(id)) < i128::from(end.0)
        });
        (is_behind && is_before).then_some(output)
    }
}

/// Makes the packets of a part.
pub struct MovieStreams {
    part: Part,
    epoch: i128,
    /// Where in the file the next byte comes from.
    at: u64,
    /// The next sample that comes from the file, and what has come of it.
    place: usize,
    partial: Vec<u8>,
    /// The next sample that leaves.
    time: usize,
    /// What has come and not left.
    ready: HashMap<(u32, u32), Vec<u8>>,
    held: usize,
    has_ended: bool,
    /// The next number of each output.
    sequences: Vec<u16>,
    /// Packets of the sample that leaves.
    packets: VecDeque<(usize, Timed)>,
}

impl MovieStreams {
    /// Those of `part`, whose source begins at byte `from` of the file.
    pub fn new(part: Part, from: u64) -> Self {
        let sequences = part.tracks.iter().map(|sent| sent.session.sequence).collect();
        Self {
            epoch: part.epoch(),
            part,
            at: from,
            place: 0,
            partial: vec![],
            time: 0,
            ready: HashMap::new(),
            held: 0,
            has_ended: false,
            sequences,
            packets: VecDeque::new(),
        }
    }

    fn packetise(&mut self, output: usize, id: SampleId, bytes: &[u8]) {
        let sent = self.part.tracks[output];
        let movie = Arc::clone(&self.part.movie);
        let track = &movie.tracks[id.track as usize];
        let sample = movie.sample(id);
        let due = u64::try_from(track.decoded(sample) - self.epoch).unwrap_or(0);
        let lasts = u128::from(track.lasts(id.sample as usize).0);
        let timestamp = sent.session.timestamp.wrapping_add(track.stamp(sample));
        let (packets, sequence) = (&mut self.packets, &mut self.sequences[output]);
        each_payload(track, sample, bytes, |front, bytes| {
            let header = Header {
                marker: false,
                payload_type: sent.payload_type,
                sequence: *sequence,
                timestamp,
                source: sent.session.source,
            };
            *sequence = sequence.wrapping_add(1);
            let parts = [&header.write(), front, bytes];
            packets.push_back((output, Timed::of_parts(Nanos(0), &parts)));
        });
        let count = packets.len() as u128;
        for (nth, (_, packet)) in (0..).zip(packets.iter_mut()) {
            packet.due = Nanos(due + (lasts * nth / count) as u64);
            if nth + 1 == count {
                // The marker: the last of an access unit, in all three formats.
                packet.bytes_mut()[1] |= 0x80;
            }
        }
    }
}

impl Transformer for MovieStreams {
    fn push(&mut self, mut bytes: &[u8]) {
        let movie = Arc::clone(&self.part.movie);
        while !bytes.is_empty() {
            let Some(&id) = movie.by_place().get(self.place) else { return };
            let Sample { at, len, .. } = *movie.sample(id);
            let begun = self.partial.len() as u64;
            if self.part.output(id).is_none() || at + begun < self.at {
                // Not sent; or it lies across another one, which nothing that is written does.
                self.held -= self.partial.len();
                self.partial.clear();
                self.place += 1;
                continue;
            }
            let skip = (at + begun - self.at).min(bytes.len() as u64);
            self.at += skip;
            bytes = &bytes[skip as usize..];
            let take = (u64::from(len) - begun).min(bytes.len() as u64);
            self.at += take;
            self.partial.extend_from_slice(&bytes[..take as usize]);
            self.held += take as usize;
            bytes = &bytes[take as usize..];
            if self.partial.len() as u64 == u64::from(len) {
                let whole = std::mem::take(&mut self.partial);
                self.ready.insert((id.track, id.sample), whole);
                self.place += 1;
            }
        }
    }

    fn end(&mut self) {
        self.has_ended = true;
    }

    fn next(&mut self) -> Option<(usize, Timed)> {
        loop {
            if let Some(next) = self.packets.pop_front() {
                return Some(next);
            }
            let &id = self.part.movie.by_time().get(self.time)?;
            if let Some(output) = self.part.output(id) {
                match self.ready.remove(&(id.track, id.sample)) {
                    Some(bytes) => {
                        self.held -= bytes.len();
                        self.packetise(output, id, &bytes);
                    }
                    None if !self.has_ended && !self.is_lost(id) => return None,
                    None => {}
                }
            }
            self.time += 1;
        }
    }

    fn held(&self) -> usize {
        self.held
    }
}

impl MovieStreams {
    /// Whether the file has been read beyond a sample that has not come.
    fn is_lost(&self, id: SampleId) -> bool {
        let sample = self.part.movie.sample(id);
        self.at >= sample.at + u64::from(sample.len)
    }
}

/// Gives `take` each payload of a sample, in two parts.
fn each_payload(track: &Track, sample: &Sample, bytes: &[u8], mut take: impl FnMut(&[u8], &[u8])) {
    match &track.codec {
        Codec::H264 { sets, width, .. } => {
            let units = || LengthPrefixed::new(bytes, *width);
            if sample.is_sync && !units().any(h264::is_parameter_set) {
                let header = h264::aggregation_header(sets.iter().map(|set| &set[..]));
                take_sets(&[header], sets.iter(), &mut take);
            }
            for unit in units() {
                h264::payloads(unit, PAYLOAD_MAX).for_each(|part| take(part.front(), part.bytes));
            }
        }
        Codec::H265 { sets, width } => {
            let units = || LengthPrefixed::new(bytes, *width).filter(|unit| unit.len() >= 2);
            if sample.is_sync && !units().any(h265::is_parameter_set) {
                let sets = sets.iter().flatten();
                let header = h265::aggregation_header(sets.clone().map(|set| &set[..]));
                take_sets(&header, sets, &mut take);
            }
            for unit in units() {
                h265::payloads(unit, PAYLOAD_MAX).for_each(|part| take(part.front(), part.bytes));
            }
        }
        Codec::Aac { .. } => {
            if let Some((front, parts)) = aac::payloads(bytes, PAYLOAD_MAX) {
                parts.for_each(|part| take(&front, part));
            }
        }
    }
}

/// Parameter sets in one packet, when there are any and they fit: then whoever joins here can begin, and
/// whoever knows them loses nothing.
fn take_sets<'a>(
    header: &[u8],
    sets: impl Iterator<Item = &'a Vec<u8>>,
    take: &mut impl FnMut(&[u8], &[u8]),
) {
    let mut packet = header.to_vec();
    for set in sets {
        packet.extend((set.len() as u16).to_be_bytes());
        packet.extend(set);
    }
    if packet.len() > header.len() && packet.len() <= PAYLOAD_MAX {
        take(&packet, &[]);
    }
}

#[cfg(test)]
mod tests;
