//! Trick play of movies: their video frames as RTP packets, faster, backwards and slower, without
//! audio.
//!
//! Promise: except at half speed, only access points (`stss`) are shown, exactly at the scale, as
//! many in a second as the disk and the rate allow. Each video frame has been sent completely when
//! it is shown, at a rate that is never above that of the busiest second of all video frames.
//! Timestamps follow the viewer's time.

use std::collections::VecDeque;
use std::sync::Arc;

use tactus_core::block_list::BlockList;
use tactus_core::generated::TimedDatagram;
use tactus_core::ts::trick::{Choice, Scale, TrickOptions};
use tactus_core::units::{BitRate, MediaTime, Nanos};
use tactus_media::movie::{Codec, Movie, Sample, Track};
use tactus_storage::catalogue::OpenTitle;

use super::gather::Gather;
use super::plan::Plan;
use super::{Destination, Fault, TrickRequest, TrickTimeline, as_many_as_fit, nanos};
use crate::broker::{Broker, GeneratedRate, Reading};
use crate::generated::movie::{Moment, MovieStreams, Packets, Part, TrackStream, bytes_of, needs};
use crate::generated::{GeneratedSession, Packetizer, SourceSpec};

/// A trick play of a movie. Dropping its session ends it.
pub struct MovieTrick {
    /// The session, with video frames only.
    pub generated: GeneratedSession,
    /// The course: range and scale.
    pub course: TrickTimeline,
}

impl MovieTrick {
    /// Admits the trick play and begins. `sent` is the video track; its timestamp is that of the
    /// first video frame.
    ///
    /// # Errors
    /// [`Fault`] gives the reason; nothing has changed.
    ///
    /// # Panics
    /// Outside of an executor. It may take long: see [`super::started`].
    pub fn start(
        broker: &Broker,
        title: &Arc<OpenTitle>,
        movie: &Arc<Movie>,
        wanted: TrickRequest,
        sent: TrackStream,
        destination: Destination,
    ) -> Result<Self, Fault> {
        let spec = MovieSpec { broker, title, movie, wanted, sent };
        if !movie.tracks[sent.track as usize].is_video() {
            return Err(Fault::NoVideoFrames);
        }
        if wanted.scale == Scale::SLOW {
            return spec.slow(destination);
        }
        as_many_as_fit(|per_second| spec.fast(per_second, destination.clone()))
    }
}

/// The video frames to show.
struct MovieSpec<'a> {
    broker: &'a Broker,
    title: &'a Arc<OpenTitle>,
    movie: &'a Arc<Movie>,
    wanted: TrickRequest,
    sent: TrackStream,
}

impl MovieSpec<'_> {
    fn fast(&self, per_second: u32, destination: Destination) -> Result<MovieTrick, Fault> {
        let TrickRequest { scale, from } = self.wanted;
        let track = &self.movie.tracks[self.sent.track as usize];
        let needs = needs(track, track.samples_per_second.max(2 * per_second));
        let options = TrickOptions { scale, from, per_second, rate: needs.rate };
        let (samples, choices): (Vec<_>, Vec<_>) = choose(track, options).into_iter().unzip();
        let (first, last) = choices.first().zip(choices.last()).ok_or(Fault::NoVideoFrames)?;
        let after = to_send(track, &track.samples()[samples[0]], needs.rate);
        let course = TrickTimeline { scale, from: first.shown, after, last: last.shown };
        let block = self.broker.block_of(self.title.volume);
        let plan = Plan::new(choices, block, self.title.len);
        let block_list = BlockList::new(plan.stops.as_slice().into(), self.title.len, block)
            .map_err(|_| Fault::NoVideoFrames)?;
        let source_spec = SourceSpec {
            title: Arc::clone(self.title),
            reading: Reading {
                range: 0..block_list.len().0,
                block_list: Some(block_list),
                rate: plan.rate,
                burst: plan.ready,
            },
            ready: plan.ready.min(plan.len()),
            buffer_max: plan.buffer_max,
            session: None,
        };
        let maker = AccessPointPacketizer {
            movie: Arc::clone(self.movie),
            sent: self.sent,
            sequence: self.sent.session.sequence,
            rate: needs.rate,
            after,
            samples: samples.into(),
            gather: Gather::new(plan),
            packets: None,
        };
        let generated = destination.begin(self.broker, source_spec, needs, maker)?;
        Ok(MovieTrick { generated, course })
    }

    fn slow(&self, destination: Destination) -> Result<MovieTrick, Fault> {
        /// Factor of the duration.
        const STRETCH: u32 = 2;
        let TrickRequest { scale, from } = self.wanted;
        let begin = self.movie.begin(nanos(from));
        let track = &self.movie.tracks[self.sent.track as usize];
        let first = &track.samples()[begin.first[self.sent.track as usize] as usize];
        let mut sent = self.sent;
        let stamp = track.stamp(first).wrapping_mul(STRETCH);
        sent.session.timestamp = sent.session.timestamp.wrapping_sub(stamp);
        let at = begin.at;
        let movie = Arc::clone(self.movie);
        let part = Part { movie, begin, end: None, tracks: vec![sent], stretch: STRETCH };
        let source_spec = part.source_spec(self.title).ok_or(Fault::NoVideoFrames)?;
        let needs: GeneratedRate = part.needs()[0];
        // The delay between sending and showing a video frame is stretched, too.
        let ahead = (i128::from(at.0) - part.epoch()) * i128::from(STRETCH);
        let course = TrickTimeline {
            scale,
            from: media_time(at),
            after: media_time(Nanos(u64::try_from(ahead).unwrap_or(0))),
            last: media_time(self.movie.duration),
        };
        let streams = MovieStreams::new(part, source_spec.reading.range.start);
        let generated = destination.begin(self.broker, source_spec, needs, streams)?;
        Ok(MovieTrick { generated, course })
    }
}

/// Chooses access points, each with its number in the track: the last one at or before the
/// beginning, or else the first of all; then each one that comes soon enough and can be sent after
/// its predecessor.
fn choose(track: &Track, options: TrickOptions) -> Vec<(usize, Choice)> {
    let TrickOptions { scale, from, per_second, rate } = options;
    let shown = |sample: &Sample| {
        let shown = u64::try_from(track.shown(sample)).unwrap_or(0);
        media_time(Nanos(shown))
    };
    let alone = || track.samples().iter().enumerate().filter(|(_, sample)| sample.is_sync);
    let before = alone().rfind(|(_, sample)| shown(sample) <= from);
    let Some((first, begin)) = before.or_else(|| alone().next()) else { return vec![] };
    let begin = shown(begin);
    let apart = 27_000_000 / u64::from(per_second.max(1));
    let mut chosen: Vec<(usize, Choice)> = vec![];
    let mut take = |(nth, sample): (usize, &Sample)| {
        let (this, at) = (shown(sample), sample.at);
        let distance = match scale.is_reverse() {
            true => begin.0.checked_sub(this.0),
            false => this.0.checked_sub(begin.0),
        };
        let Some(due) = distance.map(|distance| scale.shown(MediaTime(distance))) else { return };
        if let Some((_, last)) = chosen.last() {
            let gap = due.0.saturating_sub(last.due.0);
            if gap < apart || gap < to_send(track, sample, rate).0 {
                return;
            }
        }
        chosen.push((nth, Choice { at, end: at + u64::from(sample.len), shown: this, due }));
    };
    let forwards = alone().filter(|(nth, _)| *nth >= first);
    let backwards = || track.samples()[..=first].iter().enumerate().rev();
    match scale.is_reverse() {
        true => backwards().filter(|(_, sample)| sample.is_sync).for_each(&mut take),
        false => forwards.for_each(&mut take),
    }
    chosen
}

/// Time to send a video frame.
fn to_send(track: &Track, sample: &Sample, rate: BitRate) -> MediaTime {
    let span = rate.time_for(bytes_of(track, sample.len));
    MediaTime((u128::from(span.0) * 27).div_ceil(1000) as u64)
}

/// Packets of access points. Each video frame has been sent completely when it is shown.
struct AccessPointPacketizer {
    movie: Arc<Movie>,
    sent: TrackStream,
    /// Sequence number of the next packet.
    sequence: u16,
    rate: BitRate,
    /// When the first video frame is shown.
    after: MediaTime,
    /// Numbers of the video frames that have not come.
    samples: VecDeque<usize>,
    gather: Gather,
    /// The packets of the current video frame.
    packets: Option<Packets>,
}

impl AccessPointPacketizer {
    /// Builds the packets of the next video frame; false if it has not come, or there is none.
    fn build(&mut self) -> bool {
        let Some((choice, mut bytes)) = self.gather.next() else { return false };
        let track = &self.movie.tracks[self.sent.track as usize];
        let nth = self.samples.pop_front().expect("each choice is of a sample");
        let sample = &track.samples()[nth];
        if let Codec::H265 { width, .. } = track.codec {
            cut_off(&mut bytes, width);
        }
        let lasts = to_send(track, sample, self.rate);
        let ticks = u128::from(choice.due.0) * u128::from(track.clock()) / 27_000_000;
        let moment = Moment {
            due: nanos(MediaTime(self.after.0 + choice.due.0 - lasts.0)),
            lasts: nanos(lasts),
            // Wraps at its width.
            timestamp: self.sent.session.timestamp.wrapping_add(ticks as u32),
        };
        let packets = (track, sample, bytes);
        self.packets = Some(Packets::new(packets, &self.sent, &mut self.sequence, moment));
        true
    }
}

impl Packetizer for AccessPointPacketizer {
    fn push(&mut self, bytes: &[u8]) {
        self.gather.push(bytes);
    }

    fn end(&mut self) {}

    fn next(&mut self) -> Option<(usize, TimedDatagram)> {
        loop {
            if let Some(timed) = self.packets.as_mut().and_then(Iterator::next) {
                return Some((0, timed));
            }
            if !self.build() {
                return None;
            }
        }
    }

    fn buffered(&self) -> usize {
        self.gather.buffered()
    }
}

/// Makes a video frame the first of a coded sequence of its own, so that no later video frame
/// refers to earlier ones. A decoder then outputs all earlier video frames before it, even if the
/// video frame order count (POC) runs backwards. It differs from a video frame of an open group in
/// the type of its units only (H.265, 7.4.2.2 and 8.1.3).
fn cut_off(bytes: &mut [u8], width: usize) {
    const CRA: u8 = 21;
    const BLA_N_LP: u8 = 18;
    let mut rest = bytes;
    while let Some((len, behind)) = rest.split_at_mut_checked(width) {
        let len = len.iter().fold(0, |len, &byte| len << 8 | usize::from(byte));
        let Some((unit, behind)) = behind.split_at_mut_checked(len) else { return };
        if let Some(first) = unit.first_mut()
            && *first >> 1 & 0x3f == CRA
        {
            *first = *first & 0x81 | BLA_N_LP << 1;
        }
        rest = behind;
    }
}

/// Ticks of 27 MHz. Rounds down.
fn media_time(time: Nanos) -> MediaTime {
    MediaTime((u128::from(time.0) * 27 / 1000) as u64)
}

#[cfg(test)]
mod tests;
