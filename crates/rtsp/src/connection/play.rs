//! PLAY and PAUSE: the position and range that are played, and the numbers of the first packets.
//!
//! Promise: the answer has the sequence numbers and timestamps of the first packets, the range and
//! the scale that are really sent.

use tactus_core::rtsp::v2::{self, RtpInfo};
use tactus_core::units::MonoTime;

use super::*;

/// A request to play.
struct PlayRequest<'a> {
    request: &'a Request,
    id: SessionId,
    /// The URL as requested.
    base: &'a str,
}

/// Longest wait of a request that follows others of its session too soon.
const TURN_WAIT: Duration = Duration::from_secs(2);
/// How often a waiting request checks whether it may proceed.
const TURN_LOOK: Duration = Duration::from_millis(20);

impl Connection {
    /// Takes a step of a session as soon as the session's rate limit allows it.
    async fn in_turn<T>(
        &self,
        mut step: impl FnMut(MonoTime) -> Result<T, SessionRefusal>,
    ) -> Result<T, Reply> {
        let end = Instant::now() + TURN_WAIT;
        loop {
            match step(tactus_sys::clock::now()) {
                Err(SessionRefusal::Often) if Instant::now() < end => {
                    tokio::time::sleep(TURN_LOOK).await
                }
                done => return done.map_err(|why| self.refused(why)),
            }
        }
    }

    pub(super) async fn play(&self, request: &Request, caller: &Caller<'_>) -> Answer {
        let server = &self.server;
        let asked = asked(request);
        let now = tactus_sys::clock::now();
        let named = request.session();
        // The owner is checked before errors of the request are answered.
        let id = server.sessions().handle_alive(now, caller, named);
        let id = id.map_err(|why| self.refused(why))?;
        self.own(id)?;
        if self.records(id) {
            return Err(Reply::new(Status::NOT_IN_THIS_STATE));
        }
        let base = self.whole(id, &request.uri)?;
        let play_request = PlayRequest { request, id, base: &base };
        let reporter = self.reporter(&play_request);
        let session = server.play_session(id);
        if let Some(session) = session {
            return self.play_movie(&session, &play_request, caller, (asked?, reporter)).await;
        }
        let gone = || Reply::new(Status::SESSION_NOT_FOUND);
        let (give, ts_title) = {
            let streams = server.streams();
            let handle = streams.get(&id).ok_or_else(gone)?;
            (handle.orders.clone(), Arc::clone(&handle.ts_title))
        };
        let scale = scale(request)?;
        if scale != Scale::PLAY {
            let shown = server.shown(&ts_title, asked?, scale).await?;
            self.in_turn(|now| server.sessions().handle_play(now, caller, named)).await?;
            let (begun, hear) = oneshot::channel();
            give.send(Order::Trick { shown, begun, reporter }).await.map_err(|_| gone())?;
            let begun =
                hear.await.map_err(|_| gone())?.map_err(|fault| server.not_shown(&fault))?;
            let reply = play_request.playing(&begun).with("Scale", scale.to_string());
            return Ok(play_request.with_speed(reply));
        }
        let part = server.part(&ts_title, asked?).await?;
        self.in_turn(|now| server.sessions().handle_play(now, caller, named)).await?;
        let (begun, hear) = oneshot::channel();
        give.send(Order::Play { part, begun, reporter }).await.map_err(|_| gone())?;
        let begun = hear.await.map_err(|_| gone())?.map_err(|missed| match missed {
            PlayError::Behind => Reply::said(
                Status::INVALID_RANGE,
                "playback has already passed the end of this range",
            ),
            PlayError::NoRoom(refusal) => server.no_room(&refusal),
        })?;
        let mut reply = play_request.playing(&begun);
        if request.field("scale").is_some() {
            reply = reply.with("Scale", "1");
        }
        Ok(play_request.with_speed(reply))
    }

    /// The target of PLAY_NOTIFY, which RTSP 2.0 has for the end of a stream.
    fn reporter(&self, play_request: &PlayRequest<'_>) -> Option<EndReporter> {
        let (to, url) = (self.ends.0.clone(), play_request.base.to_owned());
        let (session, played) = (play_request.id, play_request.request.cseq);
        (play_request.request.version == Version::Two).then_some(EndReporter {
            to,
            url,
            session,
            played,
        })
    }

    async fn play_movie(
        &self,
        session: &PlaySession,
        play_request: &PlayRequest<'_>,
        caller: &Caller<'_>,
        (asked, reporter): (Span, Option<EndReporter>),
    ) -> Answer {
        let server = &self.server;
        let scale = scale(play_request.request)?;
        let named = play_request.request.session();
        self.in_turn(|now| server.sessions().handle_play(now, caller, named)).await?;
        let begun = session.play(server, play_request.id, asked, scale, reporter).await?;
        let mut reply = play_request.sent(begun.range, &begun.tracks);
        if scale != Scale::PLAY {
            reply = reply.with("Scale", scale.to_string());
        } else if play_request.request.field("scale").is_some() {
            reply = reply.with("Scale", "1");
        }
        Ok(play_request.with_speed(reply))
    }

    pub(super) async fn pause(&self, request: &Request, caller: &Caller<'_>) -> Answer {
        let named = request.session();
        let now = tactus_sys::clock::now();
        let alive = self.server.sessions().handle_alive(now, caller, named);
        let id = alive.map_err(|why| self.refused(why))?;
        self.own(id)?;
        if !self.records(id) {
            self.whole(id, &request.uri)?;
        }
        let pause = |now| self.server.sessions().handle_pause(now, caller, named);
        let (id, _) = self.in_turn(pause).await?;
        let reply = Reply::new(Status::OK).with("Session", session(id));
        if self.records(id) {
            // A sender in a pause stops by itself.
            return Ok(reply);
        }
        let session = self.server.play_session(id);
        let at = match session {
            Some(session) => session.pause(&self.server, id).await,
            None => self.pause_stream(id, request.version).await?,
        };
        // RTSP 2.0 answers with the position of the pause (RFC 7826, section 13.6).
        match self.server.length(id).await.filter(|_| request.version == Version::Two) {
            Some(length) => Ok(reply.with("Range", span::write(at, length))),
            None => Ok(reply),
        }
    }

    /// Pauses. The position is looked up for RTSP 2.0 only.
    async fn pause_stream(&self, id: SessionId, version: Version) -> Result<MediaTime, Reply> {
        let gone = || Reply::new(Status::SESSION_NOT_FOUND);
        let (give, ts_title) = {
            let streams = self.server.streams();
            let handle = streams.get(&id).ok_or_else(gone)?;
            (handle.orders.clone(), Arc::clone(&handle.ts_title))
        };
        let (done, hear) = oneshot::channel();
        give.send(Order::Pause { done }).await.map_err(|_| gone())?;
        let position = hear.await.map_err(|_| gone())?;
        match version {
            Version::Two => Ok(self.server.place(&ts_title, position).await.time),
            Version::One | Version::Other => Ok(MediaTime(0)),
        }
    }
}

/// The requested range.
fn asked(request: &Request) -> Result<Span, Reply> {
    let Some(range) = request.field("range") else { return Ok(Span::ON) };
    let span = match request.version {
        // Range formats other than those of SETUP's Accept-Ranges (RFC 7826, section 18.5).
        Version::Two if !Span::format(range).eq_ignore_ascii_case(v2::ACCEPT_RANGES) => {
            return Err(Reply::new(Status::NOT_VALID_FOR_RESOURCE));
        }
        Version::Two if is_reverse(request) => Span::parse_reverse(range),
        _ => Span::parse(range),
    };
    span.map_err(|_| {
        let text = "write seconds of the title, like npt=10-20";
        Reply::said(Status::INVALID_RANGE, text)
    })
}

/// The supported scale nearest to the requested one.
fn scale(request: &Request) -> Result<Scale, Reply> {
    let scale = request.field("scale").map_or(Some(Scale::PLAY), Scale::parse);
    scale.ok_or_else(|| Reply::said(Status::BAD_REQUEST, "write a scale like 4.0, -2 or 0.5"))
}

fn is_reverse(request: &Request) -> bool {
    request.field("scale").and_then(Scale::parse).is_some_and(Scale::is_reverse)
}

impl PlayRequest<'_> {
    /// The answer to PLAY when packets leave.
    fn playing(&self, begun: &PlayStart) -> Reply {
        let one = (1, begun.source, begun.sequence, begun.timestamp);
        self.sent((begun.from, begun.to), &[one])
    }

    /// The same for several tracks: number, SSRC, sequence number and timestamp of the first
    /// packet.
    fn sent(&self, (from, to): (MediaTime, MediaTime), tracks: &[(u32, u32, u16, u32)]) -> Reply {
        let version = self.request.version;
        let info = |&(number, source, sequence, timestamp): &(u32, u32, u16, u32)| RtpInfo {
            url: format!("{}/track{number}", self.base),
            source,
            sequence,
            timestamp: Some(timestamp),
        };
        let infos: Vec<_> = tracks.iter().map(info).collect();
        let reply = Reply::new(Status::OK)
            .with("Session", session(self.id))
            .with("Range", span::write(from, to))
            .with("RTP-Info", RtpInfo::write(version, &infos));
        match self.request.field("range").or(self.request.field("seek-style")) {
            Some(_) if version == Version::Two => reply.with("Seek-Style", v2::SEEK_STYLE),
            _ => reply,
        }
    }

    fn with_speed(&self, reply: Reply) -> Reply {
        match (self.request.field("speed"), self.request.version) {
            (None, _) => reply,
            (Some(_), Version::Two) => reply.with("Speed", v2::SPEED),
            (Some(_), _) => reply.with("Speed", "1"),
        }
    }
}
