//! A movie's tracks as elementary streams of RTP: H.264 (RFC 6184), H.265 (RFC 7798), AAC (RFC 3640).
//!
//! Promise: samples leave in the order in which they are decoded, each from its decoding time on, the packets
//! of a picture spread over the time to the next one; timestamps say when they are shown (RFC 3550, section
//! 5.1). What comes from the file in another order is held; what is not sent is passed over. All times may be
//! some times as long.

mod payloads;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use tactus_core::datagrams::Session;
use tactus_core::made::Timed;
use tactus_core::units::{BitRate, Bytes, Nanos};

use super::{Feed, Transformer};
use crate::broker::{MadeRate, Reading};
use crate::catalogue::OpenTitle;
use crate::media::movie::{Begin, Movie, Sample, SampleId};

pub use payloads::PACKET_MAX;
#[cfg(test)]
pub(crate) use payloads::units_of;
pub(crate) use payloads::{Moment, bytes_of, needs, packets};

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
    /// How many times as long as it takes it is shown: once, or twice for half the speed.
    pub stretch: u32,
}

/// A track that is sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Its number in the movie.
    pub track: u32,
    /// As it was described.
    pub payload_type: u8,
    /// Its source, the number of its first packet, and the timestamp of the movie's beginning: where that is
    /// stretched, of so many times as far before.
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
        // With as much there at the beginning, what takes longer needs so much less.
        let rate = needs.rate.0.div_ceil(self.stretch.into());
        // What a reader of our own is late by is made up for.
        let rate = BitRate(rate + rate.div_ceil(32));
        Reading { range, itinerary: None, rate, burst: Bytes(needs.ahead.0.div_ceil(2)) }
    }

    /// As much of the file as any part has.
    pub fn reading_of_all(&self) -> Reading {
        let ends = self.movie.by_place().iter().map(|&id| self.movie.sample(id));
        self.reading(0..ends.map(|sample| sample.at + u64::from(sample.len)).max().unwrap_or(1))
    }

    /// What each output needs at most.
    pub fn needs(&self) -> Vec<MadeRate> {
        let of = |sent: &Sent| {
            let track = &self.movie.tracks[sent.track as usize];
            needs(track, track.samples_per_second)
        };
        self.tracks.iter().map(of).collect()
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
        self.stamp(nth, self.begin.ticks(self.clock(nth)))
    }

    /// The timestamp that stands for the beginning of all streams, of output `nth`: rounded down.
    pub fn stamp_at_epoch(&self, nth: usize) -> u32 {
        let ticks = self.epoch() * i128::from(self.clock(nth));
        self.stamp(nth, ticks.div_euclid(1_000_000_000))
    }

    fn clock(&self, nth: usize) -> u32 {
        self.movie.tracks[self.tracks[nth].track as usize].clock()
    }

    /// The timestamp that is so many ticks behind the movie's beginning.
    fn stamp(&self, nth: usize, ticks: i128) -> u32 {
        let ticks = ticks * i128::from(self.stretch);
        self.tracks[nth].session.timestamp.wrapping_add(ticks as u32)
    }

    /// When the first packet of all is due on the movie's time: where the streams' own time begins.
    pub(crate) fn epoch(&self) -> i128 {
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
    /// Packets of the samples that leave, in order of their times.
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
        let stretch = self.part.stretch;
        let stamp = track.stamp(sample).wrapping_mul(stretch);
        let moment = Moment {
            due: self.due(id),
            lasts: track.lasts(id.sample as usize).times(stretch.into()),
            timestamp: sent.session.timestamp.wrapping_add(stamp),
        };
        let sequence = &mut self.sequences[output];
        for packet in packets((track, sample, bytes), &sent, sequence, moment) {
            // Between those of the other track, which leave meanwhile.
            let at = self.packets.partition_point(|(_, before)| before.due <= packet.due);
            self.packets.insert(at, (output, packet));
        }
    }

    /// When the first packet of a sample is due.
    fn due(&self, id: SampleId) -> Nanos {
        let movie = &self.part.movie;
        let decoded = movie.tracks[id.track as usize].decoded(movie.sample(id));
        let due = (decoded - self.epoch) * i128::from(self.part.stretch);
        Nanos(u64::try_from(due).unwrap_or(0))
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
            let Some(&id) = self.part.movie.by_time().get(self.time) else {
                return self.packets.pop_front();
            };
            if let Some(output) = self.part.output(id) {
                // What is due before it leaves before it, of whichever track.
                let due = self.due(id);
                if self.packets.front().is_some_and(|(_, packet)| packet.due <= due) {
                    return self.packets.pop_front();
                }
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

#[cfg(test)]
mod tests;
