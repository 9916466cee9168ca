//! RTSP: titles that are asked for, sent as datagrams, paused and sought in.
//!
//! Promise: nothing is sent but to who asks, or where the configuration allows it; each session is
//! admitted at SETUP, and its promise goes back when it is over, at the latest after 60 s of
//! silence. What is decided is decided in [`tactus_core::rtsp`]. The argument:
//! `docs/design/rtsp.md`.

mod auth;
mod connection;
mod connection_limit;
mod counters;
mod describe;
mod ended;
mod groups;
mod play;
mod play_record;
mod ports;
mod reception;
mod record;
mod reports;
mod stream;
mod unplayed;
mod way;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz_targets;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tactus_core::rtsp::session::{SessionId, Sessions, State};
use tactus_core::units::Nanos;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

pub(crate) use auth::password_in;
pub use counters::{Counters, Reason};
pub use reception::{Receiver, ReceptionFigures};

use crate::access::{self, Protocol, Record};
use crate::broker::Broker;
use crate::catalogue::Catalogue;
use crate::config;
use crate::made::movies::Movies;
use crate::recording::Recorder;
use auth::Passwords;
use connection_limit::ConnectionLimit;
use groups::Groups;
use play::PlaySession;
use ports::PortPairs;
use reception::Receptions;
use record::RecordSession;
use stream::Handle;
use unplayed::UnplayedQuota;

/// What serves RTSP.
#[derive(Clone)]
pub struct Rtsp(Arc<Server>);

struct Server {
    config: config::rtsp::Rtsp,
    catalogue: Arc<Catalogue>,
    broker: Broker,
    passwords: Passwords,
    groups: Groups,
    pairs: PortPairs,
    connection_limit: Arc<ConnectionLimit>,
    unplayed: Arc<UnplayedQuota>,
    counters: Counters,
    sessions: Mutex<Sessions>,
    streams: Mutex<HashMap<SessionId, Handle>>,
    /// Sessions of movies.
    play_sessions: Mutex<HashMap<SessionId, Arc<PlaySession>>>,
    movies: Movies,
    /// What receivers report.
    receptions: Receptions,
    /// Sessions that record.
    record_sessions: Mutex<HashMap<SessionId, Arc<RecordSession>>>,
    /// More of them that are not there yet; it grows while `takes` is locked.
    record_sessions_beginning: AtomicUsize,
    recorder: OnceLock<Recorder>,
    /// Streams, and who reads the reports; they end with the server.
    tasks: Mutex<JoinSet<()>>,
    connections: AtomicU64,
    is_stopping: AtomicBool,
}

/// One session, as it is now.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct Status {
    /// The beginning of its name: enough to tell two apart, not to end one.
    pub session: String,
    /// Its title's path.
    pub title: String,
    /// Where it goes.
    pub to: String,
    /// `ready`, `playing` or `recording`.
    pub state: &'static str,
    /// Who set it up, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// What was promised.
    pub set_rate_bits_per_second: u64,
    /// Payload of what is played now; of a recording, what has come.
    pub sent_bytes: u64,
    /// Datagrams whose bytes were not there in time.
    pub underruns: u64,
    /// What its receiver reports, of each track of which it has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub receivers: Vec<Receiver>,
}

/// How often it is looked for sessions that are silent.
const LOOK: Duration = Duration::from_millis(500);
/// How long accepting pauses when the kernel is out of something.
const PAUSE: Duration = Duration::from_millis(50);

impl Rtsp {
    /// What serves by `config`; nothing is listened on yet.
    ///
    /// # Errors
    /// When a password cannot be read.
    pub fn new(
        config: &config::rtsp::Rtsp,
        catalogue: &Arc<Catalogue>,
        broker: &Broker,
    ) -> anyhow::Result<Self> {
        Ok(Self(Arc::new(Server {
            passwords: Passwords::read(&config.principals)?,
            groups: Groups::new(&config.groups),
            pairs: PortPairs::new(config),
            connection_limit: Arc::new(ConnectionLimit::new(config)),
            unplayed: UnplayedQuota::new(broker.link()),
            counters: Counters::default(),
            sessions: Mutex::new(Sessions::new(config.sessions_max as usize)),
            streams: Mutex::default(),
            play_sessions: Mutex::default(),
            movies: Movies::default(),
            receptions: Receptions::default(),
            record_sessions: Mutex::default(),
            record_sessions_beginning: AtomicUsize::new(0),
            recorder: OnceLock::new(),
            tasks: Mutex::default(),
            connections: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            config: config.clone(),
            catalogue: Arc::clone(catalogue),
            broker: broker.clone(),
        })))
    }

    /// From now on who may record does so with this.
    pub fn record_with(&self, recorder: Recorder) {
        // It is one for the whole server.
        drop(self.0.recorder.set(recorder));
    }

    /// From now on silence ends a session after this, though answers say 60 s: for whoever cannot
    /// wait that long to see it, as tests.
    pub fn end_after(&self, silence_max: Nanos) {
        self.0.sessions().end_after(silence_max);
    }

    /// Serves `listener` until the server stops, and then until nobody plays any more. Dropping the
    /// future ends all connections at once.
    pub async fn serve(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        let mut look = tokio::time::interval(LOOK);
        while !self.0.is_over() {
            tokio::select! {
                _ = look.tick() => self.0.end_silent(),
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = listener.accept(), if !self.0.is_stopping() => match accepted {
                    Ok((socket, peer)) => self.welcome(&mut connections, socket, peer),
                    Err(error) => {
                        tracing::debug!(%error, "accepting RTSP connections pauses");
                        tokio::time::sleep(PAUSE).await;
                    }
                },
            }
        }
    }

    fn welcome(&self, connections: &mut JoinSet<()>, socket: TcpStream, peer: SocketAddr) {
        let Some(permit) = self.0.connection_limit.take(peer.ip()) else {
            // Closed at once.
            return self.0.counters.refuse(Reason::Connections);
        };
        let server = Arc::clone(&self.0);
        connections.spawn(async move {
            connection::serve(server, socket, peer).await;
            drop(permit);
        });
    }

    /// From now on nobody is welcome.
    pub fn stop(&self) {
        self.0.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Ends all streams, and comes back when they have given up their promises.
    pub async fn close(&self) {
        self.stop();
        self.0.streams().clear();
        self.0.play_sessions().clear();
        self.0.end_record_sessions().await;
        let mut tasks = std::mem::take(&mut *self.0.tasks());
        tasks.shutdown().await;
    }

    /// What it counts.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// What receivers of all sessions have reported.
    #[must_use]
    pub fn reported(&self) -> ReceptionFigures {
        self.0.receptions.reported()
    }

    /// How many sessions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.sessions().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All sessions.
    #[must_use]
    pub fn all(&self) -> Vec<Status> {
        let streams = self.0.streams();
        let sessions = self.0.sessions();
        let now = tactus_sys::clock::now();
        let receivers = |id: &SessionId| self.0.receptions.of(*id, now);
        let status = |(id, handle): (&SessionId, &Handle)| {
            let state = match sessions.state(*id)? {
                State::Ready => "ready",
                State::Playing => "playing",
            };
            let status = handle.status(*id, state, &self.0.broker);
            Some(Status { receivers: receivers(id), ..status })
        };
        let of_play_sessions = |(id, session): (&SessionId, &Arc<PlaySession>)| {
            let state = match sessions.state(*id)? {
                State::Ready => "ready",
                State::Playing => "playing",
            };
            Some(Status { receivers: receivers(id), ..session.status(*id, state, &self.0) })
        };
        let play_sessions = self.0.play_sessions();
        let play_sessions = play_sessions.iter().filter_map(of_play_sessions);
        let record_sessions = self.0.record_sessions();
        let record_sessions = record_sessions.iter().map(|(id, session)| session.status(*id));
        streams.iter().filter_map(status).chain(play_sessions).chain(record_sessions).collect()
    }
}

impl Server {
    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<SessionId, Handle>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn play_sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<PlaySession>>> {
        self.play_sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<RecordSession>>> {
        self.record_sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// It stops, and nobody plays.
    fn is_over(&self) -> bool {
        let playing = || {
            let sessions = self.sessions();
            let is_playing = |id: &SessionId| sessions.state(*id) == Some(State::Playing);
            self.streams().keys().any(is_playing) || self.play_sessions().keys().any(is_playing)
        };
        self.is_stopping() && !playing()
    }

    fn end_silent(&self) {
        let silent = self.sessions().poll_silent(tactus_sys::clock::now());
        for id in silent {
            tracing::debug!(session = ?id, "nothing has been heard of it");
            self.counters.silent();
            self.end_stream(id);
        }
        let mut tasks = self.tasks();
        while tasks.try_join_next().is_some() {}
    }

    /// The session is over in the books; its stream ends, and closes what comes back when it has.
    fn end_stream(&self, id: SessionId) -> Option<oneshot::Receiver<()>> {
        self.stop_record_session(id);
        self.receptions.forget(id);
        let session = self.play_sessions().remove(&id);
        if let Some(session) = session {
            log_end(&session.status(id, "over", self));
            session.forget(id);
            // Its groups are another one's when nothing is sent to them any more.
            if session.connection().is_none() {
                self.tasks().spawn(async move { session.close().await });
            }
        }
        let handle = self.streams().remove(&id)?;
        log_end(&handle.status(id, "over", &self.broker));
        if let Some((pair, from)) = &handle.reports {
            pair.forget(*from, id);
        }
        handle.left
    }
}

/// Logs the end of a session.
fn log_end(status: &Status) {
    if !access::is_on() {
        return;
    }
    let Status { session, title, to, principal, sent_bytes, underruns, .. } = status;
    let client = to.parse::<SocketAddr>().map(|to| to.ip()).ok();
    access::record(Record {
        name: Some(session.clone()),
        client: client.map(|ip| ip.to_string()),
        principal: principal.clone(),
        sent_bytes: *sent_bytes,
        underruns: Some(*underruns),
        rate: Some(status.set_rate_bits_per_second),
        ..Record::new(Protocol::Rtsp, "session", title)
    });
}

/// Random bits that nobody can guess.
///
/// # Errors
/// When the host has none yet.
fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if filled == N { Ok(bytes) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
}
