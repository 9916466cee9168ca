//! The RTSP server: sessions that play, pause, seek and record titles over RTP.
//!
//! Promise: packets go to the requesting client only, unless the configuration permits another
//! address. Each session is admitted at SETUP; its reservation is released when the session ends,
//! at the latest after 60 s of silence. Protocol decisions are made in [`tactus_core::rtsp`].
//! Design note: `docs/design/rtsp.md`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

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
pub mod settings;
mod stream;
mod transport;
mod unplayed;

#[cfg(any(test, feature = "fuzz-targets"))]
pub mod fuzz_targets;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tactus_core::rtsp::session::{SessionId, Sessions, State};
use tactus_core::units::Nanos;
use tactus_storage::catalogue::Catalogue;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

pub use auth::password_in;
pub use counters::{Counters, Reason};
pub use reception::{Receiver, ReceptionFigures};
use tactus_control::access::{self, Protocol, Record};
use tactus_control::broker::Broker;
use tactus_control::generated::movies::Movies;
use tactus_control::recording::Recorder;

use auth::Passwords;
use connection_limit::ConnectionLimit;
use groups::Groups;
use play::PlaySession;
use ports::PortPairs;
use reception::Receptions;
use record::RecordSession;
use settings::RtspSettings;
use stream::Handle;
use unplayed::UnplayedQuota;

/// The RTSP server.
#[derive(Clone)]
pub struct Rtsp(Arc<Server>);

struct Server {
    settings: RtspSettings,
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
    /// Sessions that play a movie.
    play_sessions: Mutex<HashMap<SessionId, Arc<PlaySession>>>,
    movies: Movies,
    /// Reception reports of the receivers.
    receptions: Receptions,
    /// Sessions that record.
    record_sessions: Mutex<HashMap<SessionId, Arc<RecordSession>>>,
    /// Record sessions that are being set up; it grows only while `record_sessions` is locked.
    record_sessions_beginning: AtomicUsize,
    recorder: Option<Recorder>,
    /// Streams and report readers. They end with the server.
    tasks: Mutex<JoinSet<()>>,
    connections: AtomicU64,
    is_stopping: AtomicBool,
}

/// The current state of one session.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct Status {
    /// The beginning of the session name: enough to tell two sessions apart, too little to end one.
    pub session: String,
    /// The path of the title.
    pub title: String,
    /// The destination.
    pub to: String,
    /// `ready`, `playing` or `recording`.
    pub state: &'static str,
    /// The principal that set it up, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The reserved rate.
    pub set_rate_bits_per_second: u64,
    /// Payload of the current PLAY, or payload received by a recording.
    pub sent_bytes: u64,
    /// Datagrams whose bytes were not in memory in time.
    pub underruns: u64,
    /// The reception reports, one for each track that has one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub receivers: Vec<Receiver>,
}

/// Interval of the search for silent sessions.
const LOOK: Duration = Duration::from_millis(500);
/// Pause of accepting when the kernel is out of a resource.
const PAUSE: Duration = Duration::from_millis(50);

impl Rtsp {
    /// A server with these settings. It does not listen yet, and records if it has a recorder.
    ///
    /// # Errors
    /// When a password file cannot be read.
    pub fn new(
        settings: &RtspSettings,
        catalogue: &Arc<Catalogue>,
        broker: &Broker,
        recorder: Option<Recorder>,
    ) -> anyhow::Result<Self> {
        Ok(Self(Arc::new(Server {
            passwords: Passwords::read(&settings.principals)?,
            groups: Groups::new(&settings.groups),
            pairs: PortPairs::new(settings),
            connection_limit: Arc::new(ConnectionLimit::new(settings)),
            unplayed: UnplayedQuota::new(broker.link()),
            counters: Counters::default(),
            sessions: Mutex::new(Sessions::new(settings.sessions_max as usize)),
            streams: Mutex::default(),
            play_sessions: Mutex::default(),
            movies: Movies::default(),
            receptions: Receptions::default(),
            record_sessions: Mutex::default(),
            record_sessions_beginning: AtomicUsize::new(0),
            recorder,
            tasks: Mutex::default(),
            connections: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            settings: settings.clone(),
            catalogue: Arc::clone(catalogue),
            broker: broker.clone(),
        })))
    }

    /// Sets the silence that ends a session. Answers still say 60 s; tests use a shorter time.
    pub fn end_after(&self, silence_max: Nanos) {
        self.0.sessions().end_after(silence_max);
    }

    /// Serves `listener` until the server stops and no session plays any more. Dropping the future
    /// ends all connections at once.
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
                        tracing::debug!(
                            %error,
                            "cannot accept RTSP connections; trying again shortly"
                        );
                        tokio::time::sleep(PAUSE).await;
                    }
                },
            }
        }
    }

    fn welcome(&self, connections: &mut JoinSet<()>, socket: TcpStream, peer: SocketAddr) {
        let Some(permit) = self.0.connection_limit.take(peer.ip()) else {
            // The connection is closed at once.
            return self.0.counters.refuse(Reason::Connections);
        };
        let server = Arc::clone(&self.0);
        connections.spawn(async move {
            connection::serve(server, socket, peer).await;
            drop(permit);
        });
    }

    /// Refuses new connections from now on.
    pub fn stop(&self) {
        self.0.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Ends all streams and waits until their reservations are released.
    pub async fn close(&self) {
        self.stop();
        self.0.streams().clear();
        self.0.play_sessions().clear();
        self.0.end_record_sessions().await;
        let mut tasks = std::mem::take(&mut *self.0.tasks());
        tasks.shutdown().await;
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// The sums of the reception reports of all sessions.
    #[must_use]
    pub fn reported(&self) -> ReceptionFigures {
        self.0.receptions.reported()
    }

    /// The number of sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.sessions().len()
    }

    /// Whether there are no sessions.
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

    /// Whether the server is stopping and no session plays.
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
            tracing::debug!(session = ?id, "the session was silent for too long and has ended");
            self.counters.silent();
            self.end_stream(id);
        }
        let mut tasks = self.tasks();
        while tasks.try_join_next().is_some() {}
    }

    /// Ends the stream of a session that is already removed from the table. The receiver closes
    /// when the stream has ended.
    fn end_stream(&self, id: SessionId) -> Option<oneshot::Receiver<()>> {
        self.stop_record_session(id);
        self.receptions.forget(id);
        let session = self.play_sessions().remove(&id);
        if let Some(session) = session {
            log_end(&session.status(id, "over", self));
            session.forget(id);
            // Its multicast groups are free when the last packet has left.
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

/// Cryptographically random bytes.
///
/// # Errors
/// When the kernel's random source is not ready.
fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if filled == N { Ok(bytes) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
}
