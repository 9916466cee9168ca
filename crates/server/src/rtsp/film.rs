//! Sessions of movies: each track is a stream of RTP of its own, and all of them are begun, paused and moved
//! together.
//!
//! Promise: numbers go on over pauses and seeks with the packets that have left, timestamps with the time; the
//! tracks' sender reports name the same moments, so that players keep pictures and sound together.
//! A movie is admitted when it is played: at PAUSE and at its end its promise goes back.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tactus_core::datagrams::{Form, Session};
use tactus_core::path::RequestPath;
use tactus_core::rtp::rtcp::{Compound, NtpTime, SenderInfo};
use tactus_core::rtsp::Status;
use tactus_core::rtsp::message::Reply;
use tactus_core::rtsp::session::SessionId;
use tactus_core::rtsp::span::{self, From, Span};
use tactus_core::rtsp::transport::{Lower, Offer};
use tactus_core::units::{MediaTime, MonoTime, Nanos, SECOND, WallTime};
use tokio::task::JoinHandle;

use super::describe::fault;
use super::ports::Pair;
use super::{House, Status as Told};
use crate::broker::{Outlet, Refusal, Target};
use crate::catalogue::{Found, OpenTitle};
use crate::made::movie::{MovieStreams, Part, Sent};
use crate::made::{Made, Output};
use crate::media::MediaKind;
use crate::media::movie::Movie;

/// A movie that can be played.
pub(super) struct Film {
    path: RequestPath,
    title: Arc<OpenTitle>,
    movie: Arc<Movie>,
}

/// A session of one, as others know it. It ends when this is dropped.
pub(super) struct Show {
    film: Arc<Film>,
    principal: Option<String>,
    state: tokio::sync::Mutex<State>,
    /// What is known without waiting.
    ways: std::sync::Mutex<Vec<Known>>,
}

/// Where a track goes.
#[derive(Clone)]
struct Known {
    number: u32,
    to: SocketAddr,
    reports: Option<(Arc<Pair>, SocketAddr)>,
    transport: String,
}

#[derive(Default)]
struct State {
    tracks: Vec<Track>,
    playing: Option<Playing>,
    /// Where it goes on.
    position: Nanos,
}

/// A track that has been set up.
struct Track {
    number: u32,
    outlet: Outlet,
    to: SocketAddr,
    reports: Option<(Arc<Pair>, SocketAddr)>,
    source: u32,
    /// Of the next packet.
    sequence: u16,
    /// At `epoch`.
    timestamp: u32,
    epoch: MonoTime,
}

struct Playing {
    made: Arc<Made>,
    /// On the movie's time.
    from: Nanos,
    watch: JoinHandle<()>,
}

impl Drop for Playing {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// The way that a track's packets take.
pub(super) struct TrackWay {
    pub(super) number: u32,
    pub(super) outlet: Outlet,
    pub(super) to: SocketAddr,
    pub(super) reports: Option<(Arc<Pair>, SocketAddr)>,
    pub(super) transport: String,
}

/// What is played now.
pub(super) struct Begun {
    /// From where to where.
    pub(super) range: (MediaTime, MediaTime),
    /// Each track with the number and the timestamp of its first packet.
    pub(super) tracks: Vec<(u32, u16, u32)>,
}

/// As of dynamic types the first (RFC 3551, section 6).
const PAYLOAD_TYPE: u8 = 96;
/// How often receivers are told what has been sent (RFC 3550, section 6.2: 5 s at least on average), but for
/// the first time: before it nobody knows which pictures belong to which sound.
const REPORT_EACH: Duration = Duration::from_secs(5);
const REPORT_FIRST: Duration = Duration::from_millis(50);
/// After the last packet has left it is on its way for a while; the goodbye must not overtake it.
const GOODBYE_AFTER: Duration = Duration::from_millis(200);

impl House {
    /// The movie under `path`, if it is one.
    ///
    /// # Errors
    /// What is answered instead.
    pub(super) async fn film(&self, path: &RequestPath) -> Result<Option<Arc<Film>>, Reply> {
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
        Ok(Some(Arc::new(Film { path: path.clone(), title, movie })))
    }

    /// A session of `film` begins.
    pub(super) fn open_film(
        &self,
        id: SessionId,
        film: Arc<Film>,
        principal: Option<String>,
    ) -> Arc<Show> {
        let (state, ways) = (tokio::sync::Mutex::default(), std::sync::Mutex::default());
        let show = Arc::new(Show { film, principal, state, ways });
        self.films().insert(id, Arc::clone(&show));
        show
    }

    /// The session of a movie of this name.
    pub(super) fn show(&self, id: SessionId) -> Option<Arc<Show>> {
        self.films().get(&id).cloned()
    }
}

impl Film {
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
            span::write(MediaTime(0), media_time(self.movie.duration)),
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
    pub(super) fn has_room(&self, house: &House) -> Result<(), Reply> {
        let part = Part {
            movie: Arc::clone(&self.movie),
            begin: self.movie.begin(Nanos(0)),
            end: None,
            tracks: vec![],
        };
        let reading = part.reading_of_all();
        let room = house.broker.admit_reader(&self.title, &reading);
        room.map(drop).map_err(|refusal| no_room(house, &refusal))
    }

    /// Whether it has this track, counted from one.
    pub(super) fn has_track(&self, number: u32) -> bool {
        (1..=self.movie.tracks.len() as u32).contains(&number)
    }
}

/// The way to a receiver on the other end of a connection, from our address `own` to `peer`.
///
/// # Errors
/// When it is offered no way that tracks of movies can go.
pub(super) fn way(
    house: &Arc<House>,
    (peer, own): (SocketAddr, IpAddr),
    offers: &[Offer],
    number: u32,
) -> Result<TrackWay, Reply> {
    let none = |text: &str| Reply::said(Status::UNSUPPORTED_TRANSPORT, text);
    let ports = offers.iter().find_map(|offer| match offer.lower {
        Lower::Unicast(ports) if !offer.records => {
            offer.destination.is_none_or(|to| to == peer.ip()).then_some(ports)
        }
        _ => None,
    });
    let ports = ports.ok_or_else(|| none("tracks of movies come by UDP to who asks"))?;
    let pair = house.pair(own).map_err(|error| {
        tracing::warn!(%error, "no ports can be had for RTP");
        Reply::said(Status::INTERNAL, "no ports can be had")
    })?;
    let server = pair.ports;
    // Row S10: not to ourselves.
    if peer.ip() == own && [server.rtp, server.rtcp()].contains(&ports.rtp) {
        return Err(none("these ports are the server's"));
    }
    let (mut to, mut from) = (peer, peer);
    to.set_port(ports.rtp);
    from.set_port(ports.rtcp());
    let transport = format!(
        "RTP/AVP/UDP;unicast;destination={};source={};client_port={}-{};server_port={}-{}",
        to.ip(),
        pair.address,
        ports.rtp,
        ports.rtcp(),
        server.rtp,
        server.rtcp(),
    );
    let outlet = Arc::clone(&pair.outlet);
    Ok(TrackWay { number, outlet, to, reports: Some((pair, from)), transport })
}

impl Show {
    /// What is shown.
    pub(super) fn film(&self) -> Arc<Film> {
        Arc::clone(&self.film)
    }

    /// One more track is sent; what is said of its transport.
    ///
    /// # Errors
    /// When it is playing, or the track has another way already.
    pub(super) async fn add(
        &self,
        id: SessionId,
        way: TrackWay,
        bits: [u8; 10],
    ) -> Result<String, Reply> {
        let mut state = self.state.lock().await;
        if let Some(known) = self.known().iter().find(|known| known.number == way.number) {
            let is_same = known.to == way.to;
            let other = || Err(Reply::new(Status::NOT_IN_THIS_STATE));
            return if is_same { Ok(known.transport.clone()) } else { other() };
        }
        if state.playing.is_some() || !self.film.has_track(way.number) {
            return Err(Reply::new(Status::NOT_IN_THIS_STATE));
        }
        let [a, b, c, d, e, f, g, h, i, j] = bits;
        let TrackWay { number, outlet, to, reports, transport } = way;
        let source = u32::from_be_bytes([a, b, c, d]);
        let transport = format!("{transport};ssrc={source:08X};mode=\"PLAY\"");
        if let Some((pair, from)) = &reports {
            pair.expect(*from, id);
        }
        state.tracks.push(Track {
            number,
            outlet,
            to,
            reports: reports.clone(),
            source,
            sequence: u16::from_be_bytes([i, j]),
            timestamp: u32::from_be_bytes([e, f, g, h]),
            epoch: tactus_sys::clock::now(),
        });
        self.known().push(Known { number, to, reports, transport: transport.clone() });
        Ok(transport)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Vec<Known>> {
        self.ways.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Reports of its receivers do not count any more.
    pub(super) fn forget(&self, id: SessionId) {
        for known in self.known().iter() {
            if let Some((pair, from)) = &known.reports {
                pair.forget(*from, id);
            }
        }
    }

    /// Plays what is asked for.
    ///
    /// # Errors
    /// What is answered instead.
    pub(super) async fn play(
        &self,
        house: &Arc<House>,
        id: SessionId,
        asked: Span,
    ) -> Result<Begun, Reply> {
        let mut state = self.state.lock().await;
        state.stop().await;
        let movie = &self.film.movie;
        let wish = match asked.from {
            From::At(time) => nanos(time),
            // After its end it begins again.
            From::Now if state.position >= movie.duration => Nanos(0),
            From::Now => state.position,
        };
        let end = asked.to.map(nanos).filter(|&end| end < movie.duration);
        let begin = movie.begin(wish);
        if wish >= movie.duration || end.is_some_and(|end| end <= begin.at) {
            let text = format!(
                "the title plays {}",
                span::write(MediaTime(0), media_time(movie.duration))
            );
            return Err(Reply::said(Status::INVALID_RANGE, &text));
        }
        let now = tactus_sys::clock::now();
        let sent = state.tracks.iter().map(|track| {
            let number = track.number - 1;
            let clock = movie.tracks[number as usize].clock();
            // The moment at which it begins has the timestamp of now.
            let here = track.timestamp.wrapping_add(ticks(now.since(track.epoch), clock));
            let timestamp = here.wrapping_sub(ticks(begin.at, clock));
            let session = Session { source: track.source, sequence: track.sequence, timestamp };
            Sent { track: number, payload_type: PAYLOAD_TYPE + number as u8, session }
        });
        let part =
            Part { movie: Arc::clone(movie), begin: begin.clone(), end, tracks: sent.collect() };
        let feed = part.feed(&self.film.title);
        let feed = feed.ok_or_else(|| Reply::new(Status::NOT_IN_THIS_STATE))?;
        let outputs = state.tracks.iter().zip(part.needs()).map(|(track, needs)| {
            let (outlet, to, burst) = (Arc::clone(&track.outlet), track.to, Nanos(0));
            let form = Form::Udp;
            Output { target: Target { outlet, to, form, burst, after: None, plan: None }, needs }
        });
        let streams = MovieStreams::new(part.clone(), feed.reading.range.start);
        let made = Made::start(&house.broker, feed, outputs.collect(), streams);
        let made = Arc::new(made.map_err(|refusal| no_room(house, &refusal))?);
        house.sessions().handle_begin(id);
        let watch = Watch {
            house: Arc::downgrade(house),
            id,
            made: Arc::clone(&made),
            reporters: reporters(&state, &part),
        };
        let watch = tokio::spawn(watch.run());
        state.playing = Some(Playing { made, from: begin.at, watch });
        state.position = end.unwrap_or(movie.duration);
        let of = |(nth, sent): (usize, &Sent)| {
            (sent.track + 1, sent.session.sequence, part.stamp_at_begin(nth))
        };
        let tracks = part.tracks.iter().enumerate().map(of).collect();
        Ok(Begun {
            range: (media_time(begin.at), media_time(end.unwrap_or(movie.duration))),
            tracks,
        })
    }

    /// Pauses; it goes on where it is now.
    pub(super) async fn pause(&self) {
        self.state.lock().await.stop().await;
    }

    /// What is told of it.
    pub(super) fn status(&self, id: SessionId, state: &'static str, house: &House) -> Told {
        let to: Vec<_> = self.known().iter().map(|known| known.to.to_string()).collect();
        let places =
            self.state.try_lock().ok().and_then(|state| {
                state.playing.as_ref().map(|playing| playing.made.places().to_vec())
            });
        let counters = || {
            let places = places.iter().flatten();
            places.filter_map(|&place| house.broker.counters_of(place))
        };
        Told {
            session: format!("{id:?}"),
            title: super::describe::shown(&self.film.path),
            to: to.join(" "),
            state,
            principal: self.principal.clone(),
            set_rate_bits_per_second: self.film.movie.needs.rate.0,
            sent_bytes: counters().map(|each| each.bytes.value()).sum(),
            underruns: counters().map(|each| each.underruns.value()).sum(),
        }
    }
}

impl State {
    /// Stops what is played, and notes how far it has come.
    async fn stop(&mut self) {
        let Some(playing) = self.playing.take() else { return };
        let begin = playing.made.begin();
        let ended = playing.made.stop().await;
        for (track, packets) in self.tracks.iter_mut().zip(&ended.packets) {
            track.sequence = track.sequence.wrapping_add(*packets as u16);
        }
        if ended.why != crate::made::End::Complete {
            let played = begin.map_or(Nanos(0), |begin| tactus_sys::clock::now().since(begin));
            self.position = self.position.min(playing.from + played);
        }
    }
}

fn no_room(house: &House, refusal: &Refusal) -> Reply {
    house.counters.refuse(super::Reason::Room);
    let again = refusal.retry_after.as_secs().max(1).to_string();
    Reply::said(Status::NOT_ENOUGH_BANDWIDTH, &refusal.message).with("Retry-After", again)
}

/// Follows what is played, and tells receivers of it.
struct Watch {
    house: Weak<House>,
    id: SessionId,
    made: Arc<Made>,
    reporters: Vec<Reporter>,
}

/// Who tells the receiver of one track which moments its timestamps mean.
struct Reporter {
    reports: Option<(Arc<Pair>, SocketAddr)>,
    source: u32,
    /// The timestamp that the beginning of all streams stands for, and ticks in a second.
    timestamp: u32,
    clock: u32,
}

fn reporters(state: &State, part: &Part) -> Vec<Reporter> {
    let of = |(nth, track): (usize, &Track)| Reporter {
        reports: track.reports.clone(),
        source: track.source,
        timestamp: part.stamp_at_epoch(nth),
        clock: part.movie.tracks[part.tracks[nth].track as usize].clock(),
    };
    state.tracks.iter().enumerate().map(of).collect()
}

impl Watch {
    async fn run(self) {
        let mut next = REPORT_FIRST;
        loop {
            tokio::select! {
                _ = self.made.ended() => break,
                () = tokio::time::sleep(next) => {
                    let Some(house) = self.house.upgrade() else { return };
                    let has_begun = self.made.begin().is_some();
                    next = if has_begun { REPORT_EACH } else { REPORT_FIRST };
                    self.tell(&house, false);
                }
            }
        }
        let Some(house) = self.house.upgrade() else { return };
        house.sessions().handle_end(self.id);
        tokio::time::sleep(GOODBYE_AFTER).await;
        self.tell(&house, true);
    }

    fn tell(&self, house: &House, is_goodbye: bool) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let wall = WallTime(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        let now = tactus_sys::clock::now();
        for (reporter, &place) in self.reporters.iter().zip(self.made.places()) {
            let (Some((pair, to)), Some(begin)) = (&reporter.reports, self.made.begin()) else {
                continue;
            };
            let counters = house.broker.counters_of(place);
            // It moves when it was late; when nothing is sent any more it is forgotten.
            let moved = counters.map_or(0, |counters| counters.epoch.value());
            let begin = MonoTime(moved.max(begin.0));
            let info = SenderInfo {
                time: NtpTime::of(wall),
                timestamp: reporter.timestamp.wrapping_add(ticks(now.since(begin), reporter.clock)),
                packets: counters.map_or(0, |counters| counters.session_packets.value()) as u32,
                octets: counters.map_or(0, |counters| counters.session_bytes.value()) as u32,
            };
            let report =
                Compound::of_sender(reporter.source, &info, &[]).name(reporter.source, "tactus");
            let report = if is_goodbye { report.bye(reporter.source, "") } else { report };
            pair.report(*to, &report.into_bytes());
        }
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
