//! Sessions of movies: each track is a stream of RTP of its own, and all of them are begun, paused
//! and moved together.
//!
//! Promise: numbers go on over pauses and seeks with the packets that have left, timestamps with
//! the time; the tracks' sender reports name the same moments, so that players keep video and audio
//! together. A movie is admitted when it is played: at PAUSE and at its end its promise goes back.
//! At another scale its video frames are shown, and its audio is silent.

mod start;
mod watcher;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tactus_core::datagrams::Session;
use tactus_core::path::RequestPath;
use tactus_core::rtsp::Status;
use tactus_core::rtsp::message::Reply;
use tactus_core::rtsp::session::SessionId;
use tactus_core::rtsp::span;
use tactus_core::rtsp::transport::Offer;
use tactus_core::units::{MediaTime, MonoTime, Nanos, SECOND};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::describe::fault;
use super::play_record::PlayRecord;
use super::ports::Pair;
use super::way::{ByFrames, Path, Way, report_frame};
use super::{Server, Status as SessionStatus};
use crate::catalogue::{Found, OpenTitle};
use crate::made::movie::{Part, Sent};
use crate::made::{End, Made};
use crate::media::MediaKind;
use crate::media::movie::Movie;
use crate::trick::Course;

/// A movie that can be played.
pub(super) struct MovieTitle {
    path: RequestPath,
    title: Arc<OpenTitle>,
    movie: Arc<Movie>,
}

/// A session of one, as others know it. It ends when this is dropped.
pub(super) struct PlaySession {
    movie_title: Arc<MovieTitle>,
    principal: Option<String>,
    /// The connection that carries it; none: it goes by datagrams.
    connection: Option<u64>,
    /// Dropped when it has left its connection.
    done: Mutex<Option<oneshot::Sender<()>>>,
    state: tokio::sync::Mutex<State>,
    /// What is known without waiting.
    transports: Mutex<Vec<TrackTransport>>,
}

/// Where a track goes.
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
    playing: Option<Playing>,
    /// Where it goes on.
    position: MediaTime,
}

/// A track that has been set up.
struct Track {
    number: u32,
    path: Path,
    source: u32,
    /// Of the next packet.
    sequence: u16,
    /// At `epoch`.
    timestamp: u32,
    epoch: MonoTime,
    /// Packets and bytes that have left in earlier parts.
    before: (u64, u64),
}

struct Playing {
    made: Arc<Made>,
    course: Course,
    record: Arc<PlayRecord>,
    /// Which of the tracks each output sends.
    sent: Vec<usize>,
    watch: JoinHandle<()>,
}

impl Track {
    /// The timestamp of this moment.
    fn timestamp_at(&self, now: MonoTime, clock: u32) -> u32 {
        self.timestamp.wrapping_add(ticks(now.since(self.epoch), clock))
    }

    /// How its next packets are numbered, from this timestamp on.
    fn sent(&self, timestamp: u32) -> Sent {
        let track = self.number - 1;
        let session = Session { source: self.source, sequence: self.sequence, timestamp };
        Sent { track, payload_type: PAYLOAD_TYPE + track as u8, session }
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// As of dynamic types the first (RFC 3551, section 6).
const PAYLOAD_TYPE: u8 = 96;

impl Server {
    /// The movie under `path`, if it is one.
    ///
    /// # Errors
    /// What is answered instead.
    pub(super) async fn movie_title(
        &self,
        path: &RequestPath,
    ) -> Result<Option<Arc<MovieTitle>>, Reply> {
        let title = match self.catalogue.find(path).await {
            Ok(Found::Title(title)) if title.following.is_none() => title,
            // Whatever is wrong is said where titles are looked for.
            _ => return Ok(None),
        };
        let facts = self.catalogue.media(&title, path).await.map_err(fault)?;
        if facts.is_none_or(|facts| facts.kind != MediaKind::Movie) {
            return Ok(None);
        }
        let movie = self.movies.of(&title).await;
        let movie =
            movie.map_err(|why| Reply::said(Status::UNSUPPORTED_MEDIA, &why.to_string()))?;
        Ok(Some(Arc::new(MovieTitle { path: path.clone(), title, movie })))
    }

    /// A session of `movie_title` begins, in the connection that it is to be carried by, if any.
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

    /// The session of a movie of this name.
    pub(super) fn play_session(&self, id: SessionId) -> Option<Arc<PlaySession>> {
        self.play_sessions().get(&id).cloned()
    }
}

impl MovieTitle {
    /// Its description at our address `own`.
    pub(super) fn describe(&self, own: IpAddr) -> String {
        let family = if own.is_ipv4() { "IP4" } else { "IP6" };
        let any = if own.is_ipv4() { "0.0.0.0" } else { "::" };
        let name: String = self.path.name().chars().filter(|c| !c.is_control()).collect();
        let mut text = format!(
            "v=0\r\no=- {} {} IN {family} {own}\r\ns={name}\r\nc=IN {family} {any}\r\nt=0 0\r\n\
             a=tool:tactus\r\na=control:*\r\na=range:{}\r\n",
            self.title.id.0,
            self.title.modified.0 / SECOND.0,
            span::write(MediaTime(0), self.length()),
        );
        for (track, number) in self.movie.tracks.iter().zip(1..) {
            let payload_type = PAYLOAD_TYPE + number as u8 - 1;
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

    /// Whether it could be played now. It is promised when it is.
    ///
    /// # Errors
    /// 453, with what is short.
    pub(super) fn has_room(&self, server: &Server) -> Result<(), Reply> {
        let part = Part {
            movie: Arc::clone(&self.movie),
            begin: self.movie.begin(Nanos(0)),
            end: None,
            tracks: vec![],
            stretch: 1,
        };
        let reading = part.reading_of_all();
        let room = server.broker.admit_reader(&self.title, &reading);
        room.map(drop).map_err(|refusal| server.no_room(&refusal))
    }

    /// What is said of times that it does not have.
    fn plays_no_more(&self) -> Reply {
        let span = span::write(MediaTime(0), media_time(self.movie.duration));
        Reply::said(Status::INVALID_RANGE, &format!("the title covers {span}"))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &RequestPath {
        &self.path
    }

    /// How long it plays.
    pub(super) fn length(&self) -> MediaTime {
        media_time(self.movie.duration)
    }

    /// Ticks of a track's timestamps in a second; it has this track.
    pub(super) fn clock_of(&self, number: u32) -> u32 {
        self.movie.tracks[number as usize - 1].clock()
    }

    /// Whether it has this track, counted from one.
    pub(super) fn has_track(&self, number: u32) -> bool {
        (1..=self.movie.tracks.len() as u32).contains(&number)
    }
}

impl PlaySession {
    /// What is shown.
    pub(super) fn movie_title(&self) -> Arc<MovieTitle> {
        Arc::clone(&self.movie_title)
    }

    /// The tracks that have been set up.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.transports().iter().map(|track| track.number).collect()
    }

    /// The connection that carries it.
    pub(super) fn connection(&self) -> Option<u64> {
        self.connection
    }

    /// What was said of the transport of a track that has been set up, if it has been; what is said
    /// when another one is wanted.
    pub(super) fn again(&self, number: u32, offers: &[Offer]) -> Option<Result<String, Reply>> {
        let transports = self.transports();
        let transport = transports.iter().find(|track| track.number == number)?;
        Some(match offers.contains(&transport.offer) {
            true => Ok(transport.transport.clone()),
            false => Err(Reply::new(Status::NOT_IN_THIS_STATE)),
        })
    }

    /// One more track is sent; what is said of its transport.
    ///
    /// # Errors
    /// When it is playing, or the others go another way.
    pub(super) async fn add(
        &self,
        id: SessionId,
        (number, offer): (u32, Offer),
        way: Way,
        bits: [u8; 10],
    ) -> Result<String, Reply> {
        let mut state = self.state.lock().await;
        if state.playing.is_some() {
            return Err(Reply::new(Status::NOT_IN_THIS_STATE));
        }
        let is_framed = matches!(way.path, Path::Frames(_));
        if is_framed != self.connection.is_some() {
            let text = "all tracks of a movie must use the same transport";
            return Err(Reply::said(Status::UNSUPPORTED_TRANSPORT, text));
        }
        let [a, b, c, d, e, f, g, h, i, j] = bits;
        let Way { path, to, transport } = way;
        let source = u32::from_be_bytes([a, b, c, d]);
        let transport = format!("{transport};ssrc={source:08X};mode=\"PLAY\"");
        let reports = path.reports();
        if let Some((pair, from)) = &reports {
            pair.expect(*from, id);
        }
        state.tracks.push(Track {
            number,
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

    /// Has an answer written to the connection that carries it; whether that is still of use.
    pub(super) async fn say(&self, text: Box<[u8]>) -> bool {
        let mut state = self.state.lock().await;
        state.say(text).await;
        self.keep(&state)
    }

    /// Whether its connection is of use; if not, it has left it.
    fn keep(&self, state: &State) -> bool {
        let is_broken = state.line().is_some_and(|line| line.is_broken);
        if is_broken {
            drop(self.done.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
        !is_broken
    }

    /// Stops, and leaves its connection.
    pub(super) async fn close(&self) {
        self.state.lock().await.stop().await;
        drop(self.done.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// What is played has ended: its receivers are told.
    async fn end(&self, made: &Arc<Made>, goodbyes: &[(u8, Vec<u8>)]) {
        let mut state = self.state.lock().await;
        if !state.playing.as_ref().is_some_and(|playing| Arc::ptr_eq(&playing.made, made)) {
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

    /// Reports of its receivers do not count any more.
    pub(super) fn forget(&self, id: SessionId) {
        for track in self.transports().iter() {
            if let Some((pair, from)) = &track.reports {
                pair.forget(*from, id);
            }
        }
    }

    /// Pauses; it goes on where it is now, which is told.
    pub(super) async fn pause(&self, server: &Server, id: SessionId) -> MediaTime {
        let mut state = self.state.lock().await;
        state.stop().await;
        // It may have been begun by another connection since it was said to be paused.
        server.sessions().handle_end(id);
        state.position
    }

    /// What is told of it.
    pub(super) fn status(
        &self,
        id: SessionId,
        state: &'static str,
        server: &Server,
    ) -> SessionStatus {
        let mut to: Vec<_> = self.transports().iter().map(|track| track.to.clone()).collect();
        // In a connection all tracks go to one place, and by one.
        to.dedup();
        let places = self.state.try_lock().ok().and_then(|state| {
            let mut places = state.playing.as_ref()?.made.places().to_vec();
            places.dedup();
            Some(places)
        });
        let counters = || {
            let places = places.iter().flatten();
            places.filter_map(|&place| server.broker.counters_of(place))
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
    /// The connection that carries all of it.
    fn line(&self) -> Option<&ByFrames> {
        self.tracks.first().and_then(|track| match &track.path {
            Path::Frames(path) => Some(path),
            Path::Datagrams(_) => None,
        })
    }

    fn line_mut(&mut self) -> Option<&mut ByFrames> {
        self.tracks.first_mut().and_then(|track| match &mut track.path {
            Path::Frames(path) => Some(path),
            Path::Datagrams(_) => None,
        })
    }

    /// Says something on the connection, between frames where there are any.
    async fn say(&mut self, mut text: Box<[u8]>) {
        if let Some(playing) = &self.playing
            && let Some(interleaver) = playing.made.interleaver()
        {
            match interleaver.insert(text).await {
                // The answer to PLAY is what comes first.
                Ok(()) => return playing.made.go(),
                Err(back) => text = back,
            }
            // What it was inserted into has ended.
            playing.made.ended().await;
            let is_cut = playing.made.is_cut();
            if let Some(line) = self.line_mut() {
                line.is_broken |= is_cut;
            }
        }
        if let Some(line) = self.line_mut() {
            line.say(&text).await;
        }
    }

    /// Where it is now.
    fn here(&self, now: MonoTime) -> MediaTime {
        match &self.playing {
            Some(playing) => playing.course.position(playing.made.begin(), now),
            None => self.position,
        }
    }

    /// Stops what is played, and notes how far it has come.
    async fn stop(&mut self) {
        let Some(mut playing) = self.playing.take() else { return };
        // Whoever follows it must not tell its end when the next one has begun.
        playing.watch.abort();
        (&mut playing.watch).await.ok();
        let Playing { made, course, sent, .. } = &playing;
        let begin = made.begin();
        let bytes = |nth| made.gone(nth).map_or(0, |gone| gone.bytes);
        let bytes: Vec<_> = (0..sent.len()).map(bytes).collect();
        let ended = made.stop().await;
        let (sent_bytes, late) = made.sent();
        playing.record.log(ended.why.name(), sent_bytes, late);
        for ((&nth, packets), bytes) in sent.iter().zip(&ended.packets).zip(bytes) {
            let track = &mut self.tracks[nth];
            track.sequence = track.sequence.wrapping_add(*packets as u16);
            track.before = (track.before.0 + packets, track.before.1 + bytes);
        }
        if let Some(line) = self.line_mut() {
            line.is_broken |= made.is_cut();
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

/// Rounds up, so that a time that was told comes back as itself or later.
fn nanos(time: MediaTime) -> Nanos {
    Nanos(u64::try_from((u128::from(time.0) * 1000).div_ceil(27)).unwrap_or(u64::MAX))
}
