//! One RTSP connection: its requests, one after the other, and their answers.
//!
//! Promise: the memory and time of an incomplete request are bounded. Each request is answered
//! once. A protocol violation ends the connection.

mod announce;
mod play;
mod setup;
mod v2;
mod whole;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tactus_control::access::{self, Protocol, Record};
use tactus_control::rights::Readers;
use tactus_core::path::RequestPath;
use tactus_core::rtsp::message::{
    self, BODY_MAX, FRAME_HEAD, HEAD_MAX, Method, Piece, Reply, Request, piece,
};
use tactus_core::rtsp::session::{Caller, SessionId, SessionRefusal, Setup};
use tactus_core::rtsp::span::{self, Span};
use tactus_core::rtsp::transport::{Offer, offers};
use tactus_core::rtsp::v2::{Pipelines, StreamEnd};
use tactus_core::rtsp::{Status, Version};
use tactus_core::ts::trick::Scale;
use tactus_core::units::MediaTime;
use tactus_engine::message::INTERLEAVED_MAX;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use self::announce::{AnnouncedRecording, WritePath, report_of};
use super::auth::{Nonce, SignedRequest, Verdict};
use super::describe::TsTitle;
use super::ended::{EndReporter, ends};
use super::play::{MovieTitle, PlaySession};
use super::reception::Track;
use super::reports::{self, SenderState};
use super::settings::{Principal, Recorders};
use super::stream::{Handle, Numbers, Order, PlayError, PlayStart, Stream, orders};
use super::transport::{ConnectionUse, Requester, RtpTransport, StreamTransport};
use super::{Reason, Server, random};

/// Time for a message to arrive after its first byte (row S03).
const MESSAGE_MAX: Duration = Duration::from_secs(10);
/// Time that a connection without a session may wait for its next request.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Time for the client to read an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Bytes of a closed connection are read and discarded for this time, so that its last answer
/// arrives.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: u64 = 256 << 10;
/// Wrong credentials are answered after this and a random part of a second (row S16).
const GUESS_DELAY: Duration = Duration::from_millis(500);

/// Longest interleaved frame of a client, which is a report.
const FRAME_MAX: usize = FRAME_HEAD + 2048;
/// Frames in a second; receivers report every few seconds.
const FRAMES_MAX: u32 = 100;
/// Requests of the server that a client may leave unanswered. A later answer is malformed.
const UNANSWERED_MAX: usize = 64;
/// The methods of the server.
const PUBLIC: &str = "OPTIONS, DESCRIBE, ANNOUNCE, SETUP, PLAY, PAUSE, RECORD, TEARDOWN, \
                      GET_PARAMETER, SET_PARAMETER";

/// Serves `socket` until it ends.
pub(super) async fn serve(server: Arc<Server>, mut socket: TcpStream, peer: SocketAddr) {
    // Answers are written whole; waiting to fill a packet would only delay them.
    let Ok(own) = socket.set_nodelay(true).and_then(|()| socket.local_addr()) else { return };
    let Ok(nonce) = Nonce::new() else { return };
    let number = server.connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut connection = Connection {
        server,
        number,
        peer: canonical(peer),
        own: own.ip().to_canonical(),
        nonce,
        last: None,
        sessions: vec![],
        pipe: None,
        coming: None,
        announced: None,
        write_path: None,
        body: Vec::new(),
        pipelines: Pipelines::default(),
        ends: ends(),
        asked: 0,
        unanswered: VecDeque::new(),
        frames: (Instant::now(), 0),
        bytes: Vec::new(),
    };
    if let Err(error) = connection.run(&mut socket).await {
        tracing::debug!(%peer, %error, "an RTSP connection ended");
    }
    connection.end_recording();
    // A session that was never played ends with its connection, since no other connection may play
    // it.
    for id in std::mem::take(&mut connection.sessions) {
        if connection.server.sessions().is_unplayed(id) {
            connection.server.sessions().handle_over(id);
            connection.server.end_stream(id);
        }
    }
    // Interleaved packets have no destination any more.
    if let Some(Pipe { id, .. }) = connection.pipe.or(connection.coming) {
        connection.server.sessions().handle_over(id);
        connection.server.end_stream(id);
    }
}

/// The link of a connection to its own session.
struct Pipe {
    id: SessionId,
    to: Listener,
    /// The channels of each track.
    channels: Vec<(u8, u8)>,
    /// Resolves when the session has left the connection.
    done: oneshot::Receiver<()>,
}

/// The writer of a connection that carries interleaved frames.
enum Listener {
    Stream(mpsc::Sender<Order>),
    PlaySession(Weak<PlaySession>),
}

impl Listener {
    /// Sends an answer; false if the writer has ended.
    async fn say(&self, text: Box<[u8]>) -> bool {
        match self {
            Self::Stream(orders) => orders.send(Order::Text(text)).await.is_ok(),
            Self::PlaySession(session) => match session.upgrade() {
                Some(session) => session.say(text).await,
                None => false,
            },
        }
    }
}

/// Waits until the carried session has left the connection; for ever if there is none.
async fn left(pipe: &mut Option<Pipe>) {
    match pipe {
        Some(pipe) => drop((&mut pipe.done).await),
        None => std::future::pending().await,
    }
}

/// Sends a report to a recording client unless the socket is full. A sender need not read reports,
/// and a partial frame must not remain on the connection.
async fn report_back(socket: &mut TcpStream, report: &[u8]) -> io::Result<()> {
    match socket.try_write(report) {
        Ok(len) => timeout(ANSWER_MAX, socket.write_all(&report[len..])).await?,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

/// The peer as an IPv4 address if it is IPv4-mapped, with its scope if it has one.
fn canonical(peer: SocketAddr) -> SocketAddr {
    match peer.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), peer.port()),
        IpAddr::V6(_) => peer,
    }
}

struct Connection {
    server: Arc<Server>,
    number: u64,
    peer: SocketAddr,
    own: IpAddr,
    nonce: Nonce,
    /// The CSeq of the last answered request.
    last: Option<u32>,
    /// Sessions that were set up on this connection; some may be over.
    sessions: Vec<SessionId>,
    /// The session whose packets this connection carries.
    pipe: Option<Pipe>,
    /// The same, until its SETUP is answered.
    coming: Option<Pipe>,
    /// The announced title, before and during its recording.
    announced: Option<AnnouncedRecording>,
    /// The destination of frames that are recorded.
    write_path: Option<WritePath>,
    /// The body of the last ANNOUNCE.
    body: Vec<u8>,
    /// Sessions of pipelined requests, which are sent before the session name is known.
    pipelines: Pipelines,
    /// Streams that have ended and whose client is notified.
    ends: (mpsc::Sender<StreamEnd>, mpsc::Receiver<StreamEnd>),
    /// The CSeq of the server's last request.
    asked: u32,
    /// The CSeqs of unanswered requests of the server, the oldest first.
    unanswered: VecDeque<u32>,
    /// Frames received since the instant.
    frames: (Instant, u32),
    /// Bytes received and not parsed yet.
    bytes: Vec<u8>,
}

/// An answer, or the early end of a step with an answer.
type Answer = Result<Reply, Reply>;

/// The next event of a connection.
enum ConnectionEvent {
    Request(Request),
    /// A stream has ended.
    Ended(StreamEnd),
    /// The connection is over; this answer is still sent.
    Over(Option<Reply>),
}

impl Connection {
    async fn run(&mut self, socket: &mut TcpStream) -> io::Result<()> {
        loop {
            let mut request = match self.next(socket).await? {
                ConnectionEvent::Request(request) => request,
                ConnectionEvent::Ended(end) => {
                    if self.tell(socket, &end).await? {
                        continue;
                    }
                    return Ok(());
                }
                ConnectionEvent::Over(None) => return Ok(()),
                ConnectionEvent::Over(Some(reply)) => {
                    let is_lost = reply.status == Status::NOT_FOUND;
                    let bytes = match is_lost {
                        true => HTTP_NONE.to_vec(),
                        false => reply.write(Version::One, None),
                    };
                    timeout(ANSWER_MAX, socket.write_all(&bytes)).await??;
                    // With unread bytes the kernel would reset the connection and lose the answer.
                    socket.shutdown().await?;
                    let mut rest = tokio::io::sink();
                    let mut unread = socket.take(LINGER_BYTES);
                    let reading = tokio::io::copy(&mut unread, &mut rest);
                    drop(timeout(LINGER, reading).await);
                    return Ok(());
                }
            };
            self.server.counters.request();
            // Row S04: the answer to a repeated request is already on its way.
            if self.last == Some(request.cseq) {
                continue;
            }
            self.last = Some(request.cseq);
            let begun = Instant::now();
            let reply = self.answer(socket, &mut request).await;
            self.log(&request, reply.status, begun);
            let mut bytes = reply.write(request.version, Some(request.cseq));
            if self.pipe.is_some() && bytes.len() > INTERLEAVED_MAX {
                let none = Reply::new(Status::INTERNAL);
                bytes = none.write(request.version, Some(request.cseq));
            }
            if !self.say(socket, bytes).await? {
                return Ok(());
            }
            if let Some(pipe) = self.coming.take() {
                self.pipe = Some(pipe);
            }
        }
    }

    /// Sends bytes, between frames if the connection carries any. False if the connection is
    /// broken.
    async fn say(&self, socket: &mut TcpStream, bytes: Vec<u8>) -> io::Result<bool> {
        if let Some(pipe) = &self.pipe {
            return Ok(pipe.to.say(bytes.into()).await);
        }
        timeout(ANSWER_MAX, socket.write_all(&bytes)).await??;
        Ok(true)
    }

    /// Notifies the client of a stream's end. False if the connection is broken.
    async fn tell(&mut self, socket: &mut TcpStream, end: &StreamEnd) -> io::Result<bool> {
        self.asked = self.asked.wrapping_add(1);
        let bytes = end.write(self.asked, &v2::date());
        if bytes.len() > INTERLEAVED_MAX {
            return Ok(true);
        }
        if self.unanswered.len() == UNANSWERED_MAX {
            self.unanswered.pop_front();
        }
        self.unanswered.push_back(self.asked);
        self.say(socket, bytes).await
    }

    /// Parses a client's response to a request of the server. Its content is ignored. False if more
    /// bytes are needed.
    fn hear(&mut self, len: usize) -> Result<bool, message::Fault> {
        let answer = message::Answer::parse(&self.bytes[..len])?;
        let place = self.unanswered.iter().position(|&asked| asked == answer.cseq);
        let place = place.ok_or(message::Fault::Malformed("a response without a request"))?;
        let is_whole = self.bytes.len() >= len + answer.body;
        if is_whole {
            self.unanswered.remove(place);
            self.bytes.drain(..len + answer.body);
            tracing::debug!(
                peer = %self.peer, status = answer.status.0,
                "the client was notified of the end of a stream"
            );
        }
        Ok(is_whole)
    }

    /// Reads the next request and its body, which only ANNOUNCE has.
    async fn next(&mut self, socket: &mut TcpStream) -> io::Result<ConnectionEvent> {
        let mut begun = None;
        loop {
            match piece(&self.bytes) {
                Ok(Piece::More) => {}
                Ok(Piece::Frame { .. }) if self.write_path.is_some() => {
                    if self.record_frames().await {
                        begun = None;
                        continue;
                    }
                    return Ok(ConnectionEvent::Over(None));
                }
                Ok(Piece::Frame { channel, len }) => {
                    if self.frame(channel, len) {
                        self.bytes.drain(..len);
                        begun = None;
                        continue;
                    }
                    // Row S12.
                    self.server.counters.refuse(Reason::Malformed);
                    return Ok(ConnectionEvent::Over(None));
                }
                Ok(Piece::Head { len })
                    if !self.unanswered.is_empty()
                        && message::Answer::begins(&self.bytes[..len]) =>
                {
                    match self.hear(len) {
                        Ok(true) => {
                            begun = None;
                            continue;
                        }
                        Ok(false) => {}
                        Err(fault) => {
                            return Ok(ConnectionEvent::Over(Some(self.malformed(fault))));
                        }
                    }
                }
                Ok(Piece::Head { len }) => match Request::parse(&self.bytes[..len]) {
                    Ok(request) if self.bytes.len() >= len + request.body => {
                        let came = self.bytes.drain(..len + request.body);
                        if request.method == Method::Announce {
                            self.body = came.skip(len).collect();
                        }
                        return Ok(ConnectionEvent::Request(request));
                    }
                    Ok(_) => {}
                    Err(fault) => return Ok(ConnectionEvent::Over(Some(self.malformed(fault)))),
                },
                Err(fault) => return Ok(ConnectionEvent::Over(Some(self.malformed(fault)))),
            }
            if !self.bytes.is_empty() && begun.is_none() {
                begun = Some(Instant::now());
            }
            let patience = match begun {
                Some(begun) => MESSAGE_MAX.saturating_sub(begun.elapsed()),
                None => IDLE_MAX,
            };
            let room = HEAD_MAX + BODY_MAX - self.bytes.len();
            let mut part = (&mut *socket).take(room as u64);
            let read = timeout(patience, part.read_buf(&mut self.bytes));
            let read = tokio::select! {
                read = read => read,
                // The stream is over, and the connection may have been cut in mid-frame.
                () = left(&mut self.pipe) => return Ok(ConnectionEvent::Over(None)),
                Some(end) = self.ends.1.recv() => return Ok(ConnectionEvent::Ended(end)),
                report = report_of(&mut self.write_path) => {
                    report_back(socket, &report).await?;
                    // Goes on with a partially received message.
                    continue;
                }
            };
            match read {
                Ok(Ok(0)) => return Ok(ConnectionEvent::Over(None)),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error),
                // A waiting connection needs a session.
                Err(_) if begun.is_none() && self.has_session() => {}
                Err(_) => {
                    self.server.counters.refuse(Reason::Slow);
                    return Ok(ConnectionEvent::Over(None));
                }
            }
        }
    }

    fn has_session(&mut self) -> bool {
        let sessions = self.server.sessions();
        self.sessions.retain(|id| sessions.state(*id).is_some());
        !self.sessions.is_empty()
    }

    /// Handles an interleaved frame of the client; false if the frame is not allowed.
    fn frame(&mut self, channel: u8, len: usize) -> bool {
        let Some(pipe) = &self.pipe else { return false };
        let is_report = pipe.channels.iter().any(|&(_, rtcp)| rtcp == channel);
        let is_own = is_report || pipe.channels.iter().any(|&(rtp, _)| rtp == channel);
        if self.frames.0.elapsed() > Duration::from_secs(1) {
            self.frames = (Instant::now(), 0);
        }
        self.frames.1 += 1;
        if !is_own || len > FRAME_MAX || self.frames.1 > FRAMES_MAX {
            return false;
        }
        if is_report {
            let id = pipe.id;
            match reports::read(&self.bytes[FRAME_HEAD..len]) {
                None => self.server.counters.bad_report(),
                Some(heard) => {
                    self.server.counters.report();
                    self.server.handle(&heard, id);
                }
            }
        }
        true
    }

    fn malformed(&self, fault: tactus_core::rtsp::message::Fault) -> Reply {
        self.server.counters.refuse(Reason::Malformed);
        tracing::debug!(peer = %self.peer, ?fault, "a malformed request");
        Reply::new(fault.status())
    }

    async fn answer(&mut self, socket: &TcpStream, request: &mut Request) -> Reply {
        let begun = match request.version {
            Version::One => self.begin_one(request),
            Version::Two => self.begin_v2(request),
            Version::Other => return Reply::new(Status::VERSION),
        };
        let (Ok(reply) | Err(reply)) = match begun {
            Ok(()) => self.serve(socket, request).await,
            Err(reply) => Err(reply),
        };
        match request.version {
            Version::Two => self.complete_two(request, reply).await,
            Version::One | Version::Other => reply,
        }
    }

    /// Keep-alive requests are not logged.
    fn log(&self, request: &Request, status: Status, begun: Instant) {
        let says_nothing =
            matches!(request.method, Method::Options | Method::GetParameter | Method::SetParameter);
        if !access::is_on() || says_nothing && status == Status::OK {
            return;
        }
        let record = Record {
            status: Some(status.0),
            duration: begun.elapsed(),
            client: Some(self.peer.ip().to_string()),
            name: request.session().map(|id| id.chars().take(SESSION_SHOWN).collect()),
            user_agent: request.field("user-agent").map(str::to_owned),
            ..Record::new(Protocol::Rtsp, request.verb.clone(), path_of(&request.uri))
        };
        access::record(record);
    }

    /// Checks a request of RTSP 1.0 before it has any effect.
    fn begin_one(&self, request: &Request) -> Result<(), Reply> {
        if request.method == Method::Unknown {
            return Err(Reply::new(Status::NOT_IMPLEMENTED).with("Public", PUBLIC));
        }
        let required = request.fields("require").chain(request.fields("proxy-require"));
        match required.flat_map(|options| options.split(',')).next() {
            Some(option) => Err(Reply::new(Status::OPTION).with("Unsupported", option.trim())),
            None => Ok(()),
        }
    }

    async fn serve(&mut self, socket: &TcpStream, request: &Request) -> Answer {
        let server = Arc::clone(&self.server);
        let principal = self.principal(&server, request).await?;
        let named = request.session();
        let caller = Caller {
            connection: self.number,
            address: self.peer.ip(),
            principal: principal.map(|principal| principal.name.as_str()),
        };
        match request.method {
            Method::Options | Method::GetParameter | Method::SetParameter => {
                let now = tactus_sys::clock::now();
                let alive = named.map(|_| server.sessions().handle_alive(now, &caller, named));
                let id = alive.transpose().map_err(|why| self.refused(why))?;
                // There are no parameters to get or set: the answers have all of them. Without a
                // body these requests are keep-alives (RFC 7826, section 10.5).
                if request.method != Method::Options && request.body > 0 {
                    return Err(Reply::new(Status::PARAMETER_NOT_UNDERSTOOD));
                }
                let reply = Reply::new(Status::OK).with("Public", PUBLIC);
                Ok(match id {
                    Some(id) => reply.with("Session", session(id)),
                    None => reply,
                })
            }
            Method::Describe => self.describe(request, principal).await,
            Method::Setup => self.setup(socket, request, &caller, principal).await,
            Method::Play => self.play(request, &caller).await,
            Method::Pause => self.pause(request, &caller).await,
            Method::Teardown => {
                let now = tactus_sys::clock::now();
                let alive = server.sessions().handle_alive(now, &caller, named);
                let id = alive.map_err(|why| self.refused(why))?;
                self.own(id)?;
                if let Some(reply) = self.teardown_recording(id).await {
                    return reply;
                }
                self.whole(id, &request.uri)?;
                server.sessions().handle_over(id);
                let session = server.play_session(id);
                if let Some(session) = session {
                    session.close().await;
                }
                let left = server.end_stream(id);
                // The connection is free again when its stream has left it.
                if let Some(pipe) = self.pipe.take_if(|pipe| pipe.id == id) {
                    drop(pipe.to);
                    pipe.done.await.ok();
                }
                // The resources are free when TEARDOWN is answered, and no further packet is sent.
                if let Some(left) = left {
                    left.await.ok();
                }
                Ok(Reply::new(Status::OK))
            }
            // Row S17.
            Method::Announce => self.announce(request, principal).await,
            Method::Record => self.record(&caller, named).await,
            Method::Unknown => Err(Reply::new(Status::NOT_IMPLEMENTED)),
        }
    }

    /// The authenticated principal; none where no login is required.
    async fn principal<'a>(
        &mut self,
        server: &'a Server,
        request: &Request,
    ) -> Result<Option<&'a Principal>, Reply> {
        let is_open = match request.method {
            Method::Options => true,
            Method::Announce | Method::Record => server.settings.recorders == Recorders::Anyone,
            Method::Describe | Method::Play => server.settings.readers == Readers::Anyone,
            // A client that has announced may go on: the connection can set up only that recording.
            _ => server.settings.readers == Readers::Anyone || self.announced.is_some(),
        };
        let Some(credentials) = request.field("authorization") else {
            return if is_open { Ok(None) } else { Err(self.challenge(false)) };
        };
        let address = self.peer.ip();
        if server.passwords.is_locked(address, Instant::now()) {
            server.counters.refuse(Reason::Unknown);
            return Err(Reply::said(Status::FORBIDDEN, "too many wrong passwords; wait a minute"));
        }
        let signed = SignedRequest { verb: &request.verb, uri: &request.uri };
        match server.passwords.judge(credentials, signed, &self.nonce) {
            Verdict::Right(principal) => Ok(Some(principal)),
            Verdict::Stale => Err(self.challenge(true)),
            Verdict::Wrong => {
                server.passwords.count_guess(address, Instant::now());
                let [more] = random::<1>().unwrap_or([128]);
                tokio::time::sleep(GUESS_DELAY + Duration::from_secs(1) * u32::from(more) / 255)
                    .await;
                Err(self.challenge(false))
            }
        }
    }

    /// Refuses a principal without the right to play `path`, if only principals may play.
    fn check_reader(&self, principal: Option<&Principal>, path: &RequestPath) -> Result<(), Reply> {
        let is_open = self.server.settings.readers == Readers::Anyone;
        if is_open || principal.is_some_and(|one| one.paths.cover(path.name())) {
            return Ok(());
        }
        self.server.counters.refuse(Reason::Forbidden);
        let text = "this principal has no right to play this path; see `paths` of \
            [[rtsp.principal]]";
        Err(Reply::said(Status::FORBIDDEN, text))
    }

    fn challenge(&mut self, is_stale: bool) -> Reply {
        self.server.counters.refuse(Reason::Unknown);
        if self.nonce.is_old()
            && let Ok(nonce) = Nonce::new()
        {
            self.nonce = nonce;
        }
        let [better, last] = self.nonce.challenges(is_stale);
        Reply::new(Status::UNAUTHORIZED)
            .with("WWW-Authenticate", better)
            .with("WWW-Authenticate", last)
    }

    /// A session within a connection is controlled on that connection only, since its answers go
    /// there.
    fn own(&self, id: SessionId) -> Result<(), Reply> {
        let connection = match self.server.play_session(id) {
            Some(session) => session.connection(),
            None => self.server.streams().get(&id).and_then(|handle| handle.connection),
        };
        match connection.is_none_or(|number| number == self.number) {
            true => Ok(()),
            false => Err(Reply::new(Status::SESSION_NOT_FOUND)),
        }
    }

    fn refused(&self, why: SessionRefusal) -> Reply {
        let reply = Reply::new(why.status());
        match why {
            SessionRefusal::Unknown(_) => self.server.counters.refuse(Reason::Session),
            SessionRefusal::State => {}
            SessionRefusal::Waiting => {
                self.server.counters.refuse(Reason::Waiting);
                let text = "this address has too many sessions that are not playing; end some of \
                    them";
                return Reply::said(why.status(), text);
            }
            SessionRefusal::Full => {
                self.server.counters.refuse(Reason::Room);
                let text =
                    "the limit of sessions is reached ([rtsp] sessions_max); try again later";
                return Reply::said(why.status(), text);
            }
            SessionRefusal::Often => {
                self.server.counters.refuse(Reason::Often);
                return reply.with("Retry-After", "1");
            }
        }
        reply
    }

    async fn describe(&self, request: &Request, principal: Option<&Principal>) -> Answer {
        let accepts = request.field("accept").unwrap_or("application/sdp");
        if !message::accepts_sdp(accepts) {
            return Err(Reply::said(
                Status(406),
                "the only supported description is \
                application/sdp",
            ));
        }
        let (path, base) = target(&request.uri)?;
        self.check_reader(principal, &path)?;
        let text = match self.server.movie_title(&path).await? {
            Some(movie_title) => movie_title.describe(self.own),
            None => {
                let ts_title = self.server.ts_title(path).await?;
                self.server.describe(&ts_title, self.own).await?
            }
        };
        Ok(Reply::new(Status::OK)
            .with("Content-Base", format!("{base}/"))
            .with("Content-Type", "application/sdp")
            .body(text.into_bytes()))
    }
}

/// The answer to HTTP requests (row S13).
const HTTP_NONE: &[u8] =
    b"HTTP/1.0 404 Not Found\r\nServer: tactus\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// The path of a URL, without a password before it or a token after it.
fn path_of(uri: &str) -> &str {
    let uri = uri.split(['?', '#']).next().unwrap_or_default();
    match uri.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => uri,
    }
}

/// Length of the logged part of a session name: the whole name is enough to end the session.
const SESSION_SHOWN: usize = 8;

fn session(id: SessionId) -> String {
    let seconds = tactus_core::rtsp::session::SILENCE_MAX.0 / 1_000_000_000;
    format!("{id};timeout={seconds}")
}

/// A path without the track at its end, and the number of that track.
fn split_track(path: &str) -> Option<(&str, u32)> {
    let (path, last) = path.rsplit_once('/')?;
    let number = last.strip_prefix("track").filter(|number| number.len() == 1)?;
    Some((path, number.parse().ok()?))
}

/// The track number in a URL, if any.
fn track_named(uri: &str) -> Option<u32> {
    let path = uri.split('?').next().unwrap_or_default();
    split_track(path.strip_suffix('/').unwrap_or(path)).map(|(_, number)| number)
}

/// The title of a URL, and the URL without a track and a slash at its end.
fn target(uri: &str) -> Result<(RequestPath, String), Reply> {
    let bad = || Reply::said(Status::BAD_REQUEST, "write a URL like rtsp://host/film.ts");
    let scheme = uri.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("rtsp://"));
    let rest = &uri[scheme.ok_or_else(bad)?.len()..];
    let slash = rest.find('/').ok_or_else(|| Reply::new(Status::NOT_FOUND))?;
    let (host, path) = rest.split_at(slash);
    // A password in the URL is not repeated in the answer.
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    // The query has no meaning here, but must not be lost.
    let path = path.split('?').next().unwrap_or_default();
    let path = path.strip_suffix('/').unwrap_or(path);
    let path = split_track(path).map_or(path, |(path, _)| path);
    let found = RequestPath::parse(path.as_bytes()).map_err(|_| Reply::new(Status::NOT_FOUND))?;
    Ok((found, format!("rtsp://{host}{path}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n11_a_url_is_logged_without_passwords_and_tokens() {
        for (uri, path) in [
            ("rtsp://user:secret@host:554/a/b.ts?token=secret", "/a/b.ts"),
            ("rtsp://host", "/"),
            ("rtsp://user:secret@host?x=/y", "/"),
            ("*", "*"),
            ("/a.ts#secret", "/a.ts"),
        ] {
            assert_eq!(path_of(uri), path);
        }
    }

    #[test]
    fn p05_urls_name_titles_with_and_without_a_track_and_no_password() {
        let named = |uri: &str| target(uri).map(|(path, base)| (path.name().to_owned(), base));
        let expected = Ok(("films/a b.ts".to_owned(), "rtsp://h:8554/films/a%20b.ts".to_owned()));
        for uri in [
            "rtsp://h:8554/films/a%20b.ts",
            "rtsp://h:8554/films/a%20b.ts/",
            "rtsp://h:8554/films/a%20b.ts/track1",
            "RTSP://h:8554/films/a%20b.ts/track1/",
            "rtsp://h:8554/films/a%20b.ts?x=y",
            "rtsp://user:password@h:8554/films/a%20b.ts",
            "rtsp://user:p@ss@h:8554/films/a%20b.ts/track1",
        ] {
            assert_eq!(named(uri), expected, "{uri}");
        }
        for uri in
            ["*", "", "http://h/a", "rtsp:/", "rtsp:///../a", "rtsp://h", "rtsp://h/%2e%2e/a", "ä"]
        {
            assert!(named(uri).is_err() || uri == "rtsp:///../a", "{uri}");
        }
    }
}
