//! Play sessions of movies: each track is its own RTP stream; all tracks start, pause and seek
//! together.
//!
//! Promise: over pauses and seeks, sequence numbers continue with the sent packets and timestamps
//! with the time. The sender reports of all tracks name the same moments, so that players keep
//! video and audio in sync. A movie is admitted at PLAY; PAUSE and the end release the reservation.
//! At another scale only its video is sent.

mod start;
mod watcher;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tactus_control::broker::DeliverySpec;
use tactus_control::generated::movie::{Part, TrackStream};
use tactus_control::generated::{End, GeneratedSession};
use tactus_control::trick::TrickTimeline;
use tactus_core::datagrams::Session;
use tactus_core::path::RequestPath;
use tactus_core::rtsp::Status;
use tactus_core::rtsp::message::Reply;
use tactus_core::rtsp::session::SessionId;
use tactus_core::rtsp::span;
use tactus_core::rtsp::transport::Offer;
use tactus_core::units::{MediaTime, MonoTime, Nanos, SECOND};
use tactus_media::MediaKind;
use tactus_media::movie::{Movie, MovieFault, OtherTrack};
use tactus_storage::catalogue::{OpenTitle, PathObject};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::describe::{fault, later};
use super::play_record::PlayRecord;
use super::ports::Pair;
use super::transport::{InterleavedTransport, RtpTransport, StreamTransport, report_frame};
use super::{Server, Status as SessionStatus};

/// A movie that can be played.
pub(super) struct MovieTitle {
    path: RequestPath,
    title: Arc<OpenTitle>,
    movie: Arc<Movie>,
}

/// A play session. It ends when this is dropped.
pub(super) struct PlaySession {
    movie_title: Arc<MovieTitle>,
    principal: Option<String>,
    /// The connection that carries it; `None` for datagrams.
    connection: Option<u64>,
    /// Dropped when the session has left its connection.
    done: Mutex<Option<oneshot::Sender<()>>>,
    state: tokio::sync::Mutex<State>,
    /// The state that is readable without waiting.
    transports: Mutex<Vec<TrackTransport>>,
}

/// The transport of a track.
#[derive(Clone)]
struct TrackTransport {
    number: u32,
    offer: Offer,
    to: String,
    reports: Option<(Arc<Pair>, SocketAddr)>,
    transport: String,
}

#[derive(Default)]
struct State {
    tracks: Vec<Track>,
    playing: Option<PlayingPart>,
    /// Where PLAY resumes.
    position: MediaTime,
}

/// A track that is set up.
struct Track {
    number: u32,
    payload_type: u8,
    path: RtpTransport,
    source: u32,
    /// The sequence number of the next packet.
    sequence: u16,
    /// The timestamp at `epoch`.
    timestamp: u32,
    epoch: MonoTime,
    /// Packets and bytes of earlier PLAYs.
    before: (u64, u64),
}

struct PlayingPart {
    generated: Arc<GeneratedSession>,
    course: TrickTimeline,
    record: Arc<PlayRecord>,
    /// The track of each output.
    sent: Vec<usize>,
    watch: JoinHandle<()>,
}

impl Track {
    /// The timestamp of this moment.
    fn timestamp_at(&self, now: MonoTime, clock: u32) -> u32 {
        self.timestamp.wrapping_add(ticks(now.since(self.epoch), clock))
    }

    /// The numbering of its next packets, from this timestamp on.
    fn sent(&self, timestamp: u32) -> TrackStream {
        let track = self.number - 1;
        let session = Session { source: self.source, sequence: self.sequence, timestamp };
        TrackStream { track, payload_type: self.payload_type, session }
    }
}

impl Drop for PlayingPart {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// How long a request waits for the index of a movie. Each of its fragments takes a read, and a
/// disk of 7,200 rpm does a hundred of them a second.
const INDEX_WAIT_MAX: Duration = Duration::from_secs(5);
/// Tracks that a description names as not sent; more are no help.
const OTHERS_MAX: usize = 16;
/// The first dynamic payload type (RFC 3551, section 6).
const PAYLOAD_TYPE: u8 = 96;

impl Server {
    /// The movie under `path`, if it is one.
    ///
    /// # Errors
    /// The refusal to answer with.
    pub(super) async fn movie_title(
        &self,
        path: &RequestPath,
    ) -> Result<Option<Arc<MovieTitle>>, Reply> {
        let title = match self.catalogue.find(path).await {
            Ok(PathObject::Title(title)) if title.following.is_none() => title,
            // Errors are answered where titles are looked up.
            _ => return Ok(None),
        };
        let facts = self.catalogue.media(&title, path).await.map_err(fault)?;
        // A movie may have no rate for HTTP, and tracks all the same.
        if facts.is_some_and(|facts| facts.kind != MediaKind::Movie) {
            return Ok(None);
        }
        let read = tokio::time::timeout(INDEX_WAIT_MAX, self.movies.of(&title)).await;
        let movie = match read {
            Ok(Err(MovieFault::NotMovie)) => return Ok(None),
            Ok(movie) => movie,
            Err(_) => {
                return Err(later("the index of this movie is being read; try again shortly"));
            }
        };
        let movie =
            movie.map_err(|why| Reply::said(Status::UNSUPPORTED_MEDIA, &why.to_string()))?;
        Ok(Some(Arc::new(MovieTitle { path: path.clone(), title, movie })))
    }

    /// Opens a session of `movie_title`, on the connection that carries it, if any.
    pub(super) fn open_play_session(
        &self,
        id: SessionId,
        movie_title: Arc<MovieTitle>,
        principal: Option<String>,
        carried: Option<(u64, oneshot::Sender<()>)>,
    ) -> Arc<PlaySession> {
        let (state, transports) = (tokio::sync::Mutex::default(), Mutex::default());
        let (connection, done) = carried.unzip();
        let done = Mutex::new(done);
        let session =
            Arc::new(PlaySession { movie_title, principal, connection, done, state, transports });
        self.play_sessions().insert(id, Arc::clone(&session));
        session
    }

    /// The play session with this id, if it plays a movie.
    pub(super) fn play_session(&self, id: SessionId) -> Option<Arc<PlaySession>> {
        self.play_sessions().get(&id).cloned()
    }
}

impl MovieTitle {
    /// The session description at the server's address `own`.
    pub(super) fn describe(&self, own: IpAddr) -> String {
        let family = if own.is_ipv4() { "IP4" } else { "IP6" };
        let any = if own.is_ipv4() { "0.0.0.0" } else { "::" };
        let name: String = self.path.name().chars().filter(|c| !c.is_control()).collect();
        let mut text = format!(
            "v=0\r\no=- {} {} IN {family} {own}\r\ns={name}\r\n{}c=IN {family} {any}\r\nt=0 0\r\n\
             a=tool:tactus\r\na=control:*\r\na=range:{}\r\n",
            self.title.id.0,
            self.title.modified.0 / SECOND.0,
            self.information(),
            span::write(MediaTime(0), self.length()),
        );
        for (track, number) in self.movie.tracks.iter().zip(1..) {
            let payload_type = self.payload_type(number);
            let media = track.media(payload_type);
            text += &format!("m={} 0 RTP/AVP {payload_type}\r\n", media.kind);
            if let Some(bandwidth) = media.bandwidth {
                text += &format!("b=AS:{bandwidth}\r\n");
            }
            for attribute in &media.attributes {
                let value = attribute.value.as_deref().unwrap_or_default();
                text += &format!("a={}:{value}\r\n", attribute.name);
            }
            text += &format!("a=control:track{number}\r\n");
        }
        text
    }

    /// Whether it could be played now. The reservation is made at PLAY.
    ///
    /// # Errors
    /// 453, with the resource that is short.
    pub(super) fn has_room(&self, server: &Server) -> Result<(), Reply> {
        let part = Part {
            movie: Arc::clone(&self.movie),
            begin: self.movie.begin(Nanos(0)),
            end: None,
            tracks: vec![],
            stretch: 1,
        };
        let reading = part.reading_of_all();
        let room =
            server.broker.admit(&DeliverySpec::reader(&server.broker, &self.title, &reading));
        room.map(drop).map_err(|refusal| server.no_room(&refusal))
    }

    /// The answer to a range outside of the title.
    fn plays_no_more(&self) -> Reply {
        let span = span::write(MediaTime(0), media_time(self.movie.duration));
        Reply::said(Status::INVALID_RANGE, &format!("the title covers {span}"))
    }

    /// The path of the title.
    pub(super) fn path(&self) -> &RequestPath {
        &self.path
    }

    /// The duration.
    pub(super) fn length(&self) -> MediaTime {
        media_time(self.movie.duration)
    }

    /// The line of information (RFC 8866, section 5.4) that names the tracks that are not sent;
    /// empty if there are none.
    fn information(&self) -> String {
        let other = |other: &OtherTrack| {
            let language = other.language.as_deref().map(|tag| format!(" ({tag})"));
            let OtherTrack { kind, codec, why, .. } = other;
            format!("{kind} {codec}{}, {why}", language.unwrap_or_default())
        };
        let all: Vec<_> = self.movie.others.iter().take(OTHERS_MAX).map(other).collect();
        match &all[..] {
            [] => String::new(),
            all => format!("i=not sent: {}\r\n", all.join("; ")),
        }
    }

    /// The payload type of an existing track.
    fn payload_type(&self, number: u32) -> u8 {
        let codec = &self.movie.tracks[number as usize - 1].codec;
        codec.static_type().unwrap_or(PAYLOAD_TYPE + number as u8 - 1)
    }

    /// The RTP clock rate of an existing track.
    pub(super) fn clock_of(&self, number: u32) -> u32 {
        self.movie.tracks[number as usize - 1].clock()
    }

    /// Whether it has this track, counted from one.
    pub(super) fn has_track(&self, number: u32) -> bool {
        (1..=self.movie.tracks.len() as u32).contains(&number)
    }
}

impl PlaySession {
    /// The played title.
    pub(super) fn movie_title(&self) -> Arc<MovieTitle> {
        Arc::clone(&self.movie_title)
    }

    /// The numbers of the tracks that are set up.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.transports().iter().map(|track| track.number).collect()
    }

    /// The connection that carries it.
    pub(super) fn connection(&self) -> Option<u64> {
        self.connection
    }

    /// The Transport header of a track that is already set up; an error if the offers do not have
    /// the same transport.
    pub(super) fn again(&self, number: u32, offers: &[Offer]) -> Option<Result<String, Reply>> {
        let transports = self.transports();
        let transport = transports.iter().find(|track| track.number == number)?;
        Some(match offers.contains(&transport.offer) {
            true => Ok(transport.transport.clone()),
            false => Err(Reply::new(Status::NOT_IN_THIS_STATE)),
        })
    }

    /// Adds a track. Returns its Transport header.
    ///
    /// # Errors
    /// If the session plays, or its other tracks use another transport.
    pub(super) async fn add(
        &self,
        id: SessionId,
        (number, offer): (u32, Offer),
        stream_transport: StreamTransport,
        bits: [u8; 10],
    ) -> Result<String, Reply> {
        let mut state = self.state.lock().await;
        if state.playing.is_some() {
            return Err(Reply::new(Status::NOT_IN_THIS_STATE));
        }
        let is_framed = matches!(stream_transport.path, RtpTransport::Interleaved(_));
        if is_framed != self.connection.is_some() {
            let text = "all tracks of a movie must use the same transport";
            return Err(Reply::said(Status::UNSUPPORTED_TRANSPORT, text));
        }
        let [a, b, c, d, e, f, g, h, i, j] = bits;
        let StreamTransport { path, to, transport } = stream_transport;
        let source = u32::from_be_bytes([a, b, c, d]);
        let transport = format!("{transport};ssrc={source:08X};mode=\"PLAY\"");
        let reports = path.reports();
        if let Some((pair, from)) = &reports {
            pair.expect(*from, id);
        }
        state.tracks.push(Track {
            number,
            payload_type: self.movie_title.payload_type(number),
            path,
            source,
            sequence: u16::from_be_bytes([i, j]),
            timestamp: u32::from_be_bytes([e, f, g, h]),
            epoch: tactus_sys::clock::now(),
            before: (0, 0),
        });
        let (to, said) = (to.to_string(), transport.clone());
        self.transports().push(TrackTransport { number, offer, to, reports, transport: said });
        Ok(transport)
    }

    /// Writes an answer to the connection that carries the session. False if the connection is
    /// broken.
    pub(super) async fn say(&self, text: Box<[u8]>) -> bool {
        let mut state = self.state.lock().await;
        state.say(text).await;
        self.keep(&state)
    }

    /// Whether the connection works; if not, the session leaves it.
    fn keep(&self, state: &State) -> bool {
        let is_broken = state.line().is_some_and(|line| line.is_broken);
        if is_broken {
            drop(self.done.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
        !is_broken
    }

    /// Stops, and leaves the connection.
    pub(super) async fn close(&self) {
        self.state.lock().await.stop(false).await;
        drop(self.done.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Notifies receivers of the end of a PLAY.
    async fn end(&self, generated: &Arc<GeneratedSession>, goodbyes: &[(u8, Vec<u8>)]) {
        let mut state = self.state.lock().await;
        if !state.playing.as_ref().is_some_and(|playing| Arc::ptr_eq(&playing.generated, generated))
        {
            return;
        }
        for (channel, bytes) in goodbyes {
            state.say(report_frame(*channel, bytes)).await;
        }
        self.keep(&state);
    }

    fn transports(&self) -> MutexGuard<'_, Vec<TrackTransport>> {
        self.transports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ignores reports of its receivers from now on.
    pub(super) fn forget(&self, id: SessionId) {
        for track in self.transports().iter() {
            if let Some((pair, from)) = &track.reports {
                pair.forget(*from, id);
            }
        }
    }

    /// Pauses, and returns the position.
    pub(super) async fn pause(&self, server: &Server, id: SessionId) -> MediaTime {
        let mut state = self.state.lock().await;
        // Players that seek pause first.
        state.stop(true).await;
        // Another connection may have started it since the pause was requested.
        server.sessions().handle_end(id);
        state.position
    }

    /// The status of the session.
    pub(super) fn status(
        &self,
        id: SessionId,
        state: &'static str,
        server: &Server,
    ) -> SessionStatus {
        let mut to: Vec<_> = self.transports().iter().map(|track| track.to.clone()).collect();
        // On a connection all tracks have the same destination.
        to.dedup();
        let slots = self.state.try_lock().ok().and_then(|state| {
            let mut slots = state.playing.as_ref()?.generated.slots().to_vec();
            slots.dedup();
            Some(slots)
        });
        let counters = || {
            let slots = slots.iter().flatten();
            slots.filter_map(|&slot| server.broker.counters_of(slot))
        };
        SessionStatus {
            session: format!("{id:?}"),
            title: super::describe::shown(&self.movie_title.path),
            to: to.join(" "),
            state,
            principal: self.principal.clone(),
            set_rate_bits_per_second: self.movie_title.movie.needs.rate.0,
            sent_bytes: counters().map(|each| each.bytes.value()).sum(),
            underruns: counters().map(|each| each.underruns.value()).sum(),
            receivers: vec![],
        }
    }
}

impl State {
    /// The connection that carries all tracks.
    fn line(&self) -> Option<&InterleavedTransport> {
        self.tracks.first().and_then(|track| match &track.path {
            RtpTransport::Interleaved(path) => Some(path),
            RtpTransport::Udp(_) => None,
        })
    }

    fn line_mut(&mut self) -> Option<&mut InterleavedTransport> {
        self.tracks.first_mut().and_then(|track| match &mut track.path {
            RtpTransport::Interleaved(path) => Some(path),
            RtpTransport::Udp(_) => None,
        })
    }

    /// Writes to the connection, between frames if there are any.
    async fn say(&mut self, mut text: Box<[u8]>) {
        if let Some(playing) = &self.playing
            && let Some(interleaver) = playing.generated.interleaver()
        {
            match interleaver.send(text).await {
                // The answer to PLAY goes before the first frame.
                Ok(()) => return playing.generated.go(),
                Err(back) => text = back,
            }
            // The stream ended before the message was inserted.
            playing.generated.ended().await;
            let is_cut = playing.generated.is_cut();
            if let Some(line) = self.line_mut() {
                line.is_broken |= is_cut;
            }
        }
        if let Some(line) = self.line_mut() {
            line.say(&text).await;
        }
    }

    /// The current position.
    fn here(&self, now: MonoTime) -> MediaTime {
        match &self.playing {
            Some(playing) => playing.course.position(playing.generated.begin(), now),
            None => self.position,
        }
    }

    /// Stops, and keeps the position; with `keeps_room`, the room too, for the next PLAY.
    async fn stop(&mut self, keeps_room: bool) {
        let Some(mut playing) = self.playing.take() else { return };
        // The watcher must not notify of the end when the next PLAY has started.
        playing.watch.abort();
        (&mut playing.watch).await.ok();
        let PlayingPart { generated, course, sent, .. } = &playing;
        let begin = generated.begin();
        let bytes = |nth| generated.gone(nth).map_or(0, |gone| gone.bytes);
        let bytes: Vec<_> = (0..sent.len()).map(bytes).collect();
        let ended = match keeps_room {
            true => generated.stop_for_next().await,
            false => generated.stop().await,
        };
        let (sent_bytes, late) = generated.sent();
        playing.record.log(ended.why.name(), sent_bytes, late);
        for ((&nth, packets), bytes) in sent.iter().zip(&ended.packets).zip(bytes) {
            let track = &mut self.tracks[nth];
            track.sequence = track.sequence.wrapping_add(*packets as u16);
            track.before = (track.before.0 + packets, track.before.1 + bytes);
        }
        if let Some(line) = self.line_mut() {
            line.is_broken |= generated.is_cut();
        }
        self.position = match ended.why {
            End::Complete => course.last,
            _ => course.position(begin, tactus_sys::clock::now()),
        };
    }
}

/// Rounds down, modulo 2^32.
fn ticks(time: Nanos, clock: u32) -> u32 {
    (u128::from(time.0) * u128::from(clock) / u128::from(SECOND.0)) as u32
}

/// Ticks of 27 MHz. Rounds down.
fn media_time(time: Nanos) -> MediaTime {
    MediaTime((u128::from(time.0) * 27 / 1000) as u64)
}

/// Rounds up, so that a reported time maps to itself or later.
fn nanos(time: MediaTime) -> Nanos {
    Nanos(u64::try_from((u128::from(time.0) * 1000).div_ceil(27)).unwrap_or(u64::MAX))
}
