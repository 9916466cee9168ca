//! PLAY of a movie: its position, its tracks and the numbers of their first packets.
//!
//! Promise: at scale 1 all tracks start at one common time. At another scale only the video is
//! sent; the audio still has a number and a time. A range outside of the title is refused and
//! changes nothing (RFC 2326, appendix A.2). A PLAY at scale 1 has the room of the previous one. A
//! PLAY without room has stopped the previous one.

use std::sync::Arc;

use tactus_control::broker::{GeneratedRate, Output};
use tactus_control::generated::movie::{MovieStreams, Part};
use tactus_control::generated::{FrameOutput, GeneratedSession, Lane, SourceSpec};
use tactus_control::trick::movie::MovieTrick;
use tactus_control::trick::{self, Destination, Fault, TrickRequest, TrickTimeline};
use tactus_core::datagrams::Framing;
use tactus_core::rtsp::Status;
use tactus_core::rtsp::message::Reply;
use tactus_core::rtsp::session::SessionId;
use tactus_core::rtsp::span::{RangeStart, Span};
use tactus_core::ts::trick::Scale;
use tactus_core::units::{MediaTime, MonoTime, Nanos};
use tactus_storage::warnings;

use super::super::Server;
use super::super::describe::shown;
use super::super::ended::EndReporter;
use super::super::play_record::PlayRecord;
use super::super::transport::{InterleavedTransport, RtpTransport, UdpTransport};
use super::watcher::{Reporter, Watcher};
use super::{PlaySession, PlayingPart, State, Track, media_time, nanos, ticks};

/// A started PLAY.
pub(in super::super) struct PlayStart {
    /// The played range.
    pub(in super::super) range: (MediaTime, MediaTime),
    /// Each track: number, SSRC, and the sequence number and timestamp of its first packet.
    pub(in super::super) tracks: Vec<(u32, u32, u16, u32)>,
}

/// A started PLAY before its watcher runs.
struct Parts {
    generated: GeneratedSession,
    course: TrickTimeline,
    /// One for each track.
    tracks: Vec<TrackPart>,
}

/// A track of the PLAY.
struct TrackPart {
    /// The output of the track; `None`: it is silent.
    output: Option<usize>,
    /// The timestamp of the first presented sample, and of the beginning of all streams.
    timestamp: u32,
    at_epoch: u32,
}

impl PlaySession {
    /// Plays the requested range at this scale.
    ///
    /// # Errors
    /// The refusal to answer with.
    pub(in super::super) async fn play(
        &self,
        server: &Arc<Server>,
        id: SessionId,
        asked: Span,
        scale: Scale,
        reporter: Option<EndReporter>,
    ) -> Result<PlayStart, Reply> {
        let mut state = self.state.lock().await;
        let now = tactus_sys::clock::now();
        // An invalid request is refused before the current PLAY stops.
        match scale {
            Scale::PLAY => drop(self.part(&state, asked, (state.here(now), now))?),
            scale => {
                self.video_frames(server, &state, asked.from, (scale, state.here(now)))?;
            }
        }
        state.stop(scale == Scale::PLAY).await;
        let now = tactus_sys::clock::now();
        let begun = match scale {
            Scale::PLAY => self.as_it_is(server, (id, &state), asked, now),
            scale => self.scaled(server, &state, asked.from, scale, now).await,
        };
        let begun = begun.inspect_err(|_| server.sessions().handle_end(id));
        let Parts { generated, course, tracks } = begun?;
        if !server.sessions().handle_begin(id) {
            return Err(Reply::new(Status::SESSION_NOT_FOUND));
        }
        let generated = Arc::new(generated);
        let of = |(track, part): (&Track, &TrackPart)| {
            Reporter::new(track, part.output, part.at_epoch, self.clock_of(track))
        };
        let reporters = state.tracks.iter().zip(&tracks).map(of).collect();
        let told = |(track, part): (&Track, &TrackPart)| {
            (track.number, track.source, track.sequence, part.timestamp)
        };
        let told: Vec<_> = state.tracks.iter().zip(&tracks).map(told).collect();
        let (title, rate) = (shown(&self.movie_title.path), self.movie_title.movie.needs.rate);
        let record = Arc::new(PlayRecord::begin(id, title, rate));
        let watch = Watcher {
            server: Arc::downgrade(server),
            id,
            generated: Arc::clone(&generated),
            record: Arc::clone(&record),
            reporters,
            reporter,
            course,
            first: told.iter().map(|&(number, source, first, _)| (number, source, first)).collect(),
        };
        let watch = tokio::spawn(watch.run());
        let sent = (0..tracks.len()).filter(|&nth| tracks[nth].output.is_some()).collect();
        state.playing = Some(PlayingPart { generated, course, record, sent, watch });
        Ok(PlayStart { range: (course.from, course.last), tracks: told })
    }

    /// The part from `position` at scale 1, with the numbers of `now`, and its source.
    fn part(
        &self,
        state: &State,
        asked: Span,
        (position, now): (MediaTime, MonoTime),
    ) -> Result<(Part, SourceSpec), Reply> {
        let movie = &self.movie_title.movie;
        let wanted = match asked.from {
            RangeStart::At(time) => nanos(time),
            // After the end it starts from the beginning.
            RangeStart::Now if position >= media_time(movie.duration) => Nanos(0),
            RangeStart::Now => nanos(position),
        };
        let end = asked.to.map(nanos).filter(|&end| end < movie.duration);
        let begin = movie.begin(wanted);
        if wanted >= movie.duration || end.is_some_and(|end| end <= begin.at) {
            return Err(self.movie_title.plays_no_more());
        }
        let sent = state.tracks.iter().map(|track| {
            // The first sample has the timestamp of now.
            let back = begin.ticks(self.clock_of(track)) as u32;
            track.sent(track.timestamp_at(now, self.clock_of(track)).wrapping_sub(back))
        });
        let (movie, tracks) = (Arc::clone(movie), sent.collect());
        let part = Part { movie, begin, end, tracks, stretch: 1 };
        let source_spec = part.source_spec(&self.movie_title.title);
        let source_spec = source_spec.ok_or_else(|| Reply::new(Status::NOT_IN_THIS_STATE))?;
        Ok((part, source_spec))
    }

    /// Starts the requested range at scale 1.
    fn as_it_is(
        &self,
        server: &Server,
        (id, state): (SessionId, &State),
        asked: Span,
        now: MonoTime,
    ) -> Result<Parts, Reply> {
        let (part, mut source_spec) = self.part(state, asked, (state.position, now))?;
        // A seek keeps the room of the PLAY before.
        source_spec.session = Some(id.0 as u64);
        let streams = MovieStreams::new(part.clone(), source_spec.reading.range.start);
        let generated = state.begin(server, source_spec, part.needs(), streams)?;
        let track = |nth| TrackPart {
            output: Some(nth),
            timestamp: part.timestamp_at_begin(nth),
            at_epoch: part.timestamp_at_epoch(nth),
        };
        let course = TrickTimeline {
            scale: Scale::PLAY,
            from: media_time(part.begin.at),
            after: MediaTime(0),
            last: media_time(part.end.unwrap_or(self.movie_title.movie.duration)),
        };
        Ok(Parts { generated, course, tracks: (0..state.tracks.len()).map(track).collect() })
    }

    /// The video track, and the start position at another scale.
    fn video_frames(
        &self,
        server: &Server,
        state: &State,
        from: RangeStart,
        (scale, position): (Scale, MediaTime),
    ) -> Result<(usize, MediaTime), Reply> {
        let movie = &self.movie_title.movie;
        let duration = media_time(movie.duration);
        let from = match from {
            RangeStart::At(time) if time > duration => {
                return Err(self.movie_title.plays_no_more());
            }
            RangeStart::At(time) => time,
            // At the end, backwards means from the end.
            RangeStart::Now if scale.is_reverse() => position,
            RangeStart::Now if position >= duration => MediaTime(0),
            RangeStart::Now => position,
        };
        let is_video = |track: &Track| movie.tracks[track.number as usize - 1].is_video();
        let video_frames = state.tracks.iter().position(is_video);
        let video_frames = video_frames.ok_or_else(|| server.not_shown(&Fault::NoVideoFrames))?;
        Ok((video_frames, from))
    }

    /// Starts the video at another scale.
    async fn scaled(
        &self,
        server: &Server,
        state: &State,
        from: RangeStart,
        scale: Scale,
        now: MonoTime,
    ) -> Result<Parts, Reply> {
        let movie = &self.movie_title.movie;
        let (video_frames, from) =
            self.video_frames(server, state, from, (scale, state.position))?;
        let track = &state.tracks[video_frames];
        let sent = track.sent(track.timestamp_at(now, self.clock_of(track)));
        let (output, channel) = match &track.path {
            RtpTransport::Interleaved(path) => (connection(path)?, Some(path.channels.0)),
            RtpTransport::Udp(path) => (whole(path), None),
        };
        let destination = Destination { output, framing: Framing::Rtp(sent.session), channel };
        let wanted = TrickRequest { scale, from };
        let (title, broker) = (Arc::clone(&self.movie_title.title), server.broker.clone());
        let movie = Arc::clone(movie);
        let start = move || MovieTrick::start(&broker, &title, &movie, wanted, sent, destination);
        let trick = trick::started(start).await;
        let trick = trick.ok_or_else(|| Reply::new(Status::INTERNAL))?;
        let MovieTrick { generated, course } = trick.map_err(|fault| server.not_shown(&fault))?;
        let of = |(nth, track): (usize, &Track)| {
            let clock = self.clock_of(track);
            // The first video frame is shown a while after the start of the streams.
            let (timestamp, after) = (track.timestamp_at(now, clock), nanos(course.after));
            let at_epoch = timestamp.wrapping_sub(ticks(after, clock));
            TrackPart { output: (nth == video_frames).then_some(0), timestamp, at_epoch }
        };
        Ok(Parts { generated, course, tracks: state.tracks.iter().enumerate().map(of).collect() })
    }

    /// The RTP clock rate of a track.
    fn clock_of(&self, track: &Track) -> u32 {
        self.movie_title.clock_of(track.number)
    }
}

impl State {
    /// Starts the packetizer and the outputs.
    fn begin(
        &self,
        server: &Server,
        source_spec: SourceSpec,
        needs: Vec<GeneratedRate>,
        streams: MovieStreams,
    ) -> Result<GeneratedSession, Reply> {
        let generated = match self.line() {
            Some(line) => {
                let channels = self.tracks.iter().filter_map(|track| track.path.channel());
                let (output, channels) = (connection(line)?, channels.collect());
                let connection = FrameOutput { output, channels };
                GeneratedSession::start_in_frames(
                    &server.broker,
                    source_spec,
                    connection,
                    &needs,
                    streams,
                )
            }
            None => {
                let outputs = self.tracks.iter().filter_map(|track| match &track.path {
                    RtpTransport::Udp(path) => Some(whole(path)),
                    RtpTransport::Interleaved(_) => None,
                });
                let lanes = outputs.zip(needs).map(|(output, needs)| Lane { output, needs });
                GeneratedSession::start(&server.broker, source_spec, lanes.collect(), streams)
            }
        };
        generated.map_err(|refusal| server.no_room(&refusal))
    }
}

/// The connection of `line`, handed over.
fn connection(line: &InterleavedTransport) -> Result<Output, Reply> {
    line.output().map_err(|error| {
        if let Some(left_out) = warnings::poll("rtsp connection", "") {
            tracing::warn!(%error, left_out, "cannot hand a connection over to the engine");
        }
        Reply::new(Status::INTERNAL)
    })
}

/// The output of datagrams that are generated whole: none waits for another.
fn whole(path: &UdpTransport) -> Output {
    Output::datagrams(&path.udp_output, path.to, Nanos(0))
}
