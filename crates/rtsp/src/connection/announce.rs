//! ANNOUNCE, SETUP and RECORD: rights, transport and the destination of the recording.
//!
//! Promise: nothing is recorded without a right (row S17), over a title that must stay, or without
//! room for its rate. A refusal says why and leaves nothing behind. A recording belongs to its
//! connection and ends with it.

use std::sync::atomic::Ordering;

use tactus_control::api_path::{API_PATH, is_api_path};
use tactus_control::recording::{Begin, BeginError};
use tactus_core::assembly::{Assembly, Track, tracks};
use tactus_core::rtsp::transport::Lower;
use tactus_core::sdp::{Description, Media};
use tactus_core::units::BitRate;
use tactus_engine::message::VolumeId;
use tactus_storage::catalogue::PathObject;
use tactus_storage::store::{self, Precondition, ResumeError, UploadError};

use super::super::record::{Ends, IncomingPacket, Parts, RecordSession, Sockets};
use super::super::transport::failed;
use super::*;

/// An announced recording.
pub(super) struct AnnouncedRecording {
    base: String,
    path: RequestPath,
    /// Its service name.
    name: String,
    principal: Option<String>,
    media: Vec<Medium>,
    /// Set by the first SETUP.
    id: Option<SessionId>,
    is_recorded: bool,
}

struct Medium {
    track: Track,
    /// The announced rate.
    rate: Option<BitRate>,
    line: Option<MediumTransport>,
}

/// The transport of a medium.
enum MediumTransport {
    Datagrams(Option<Sockets>),
    Frames((u8, u8)),
}

impl MediumTransport {
    /// Whether its frames or its reports are on this channel of the connection.
    fn uses(&self, channel: u8) -> bool {
        match self {
            Self::Datagrams(_) => false,
            Self::Frames((a, b)) => [*a, *b].contains(&channel),
        }
    }
}

/// The destination of interleaved frames.
pub(super) struct WritePath {
    id: SessionId,
    /// Each channel with the number of its medium, and whether it carries reports.
    channels: Vec<(u8, usize, bool)>,
    ends: Ends,
}

impl Connection {
    pub(super) async fn announce(
        &mut self,
        request: &Request,
        principal: Option<&Principal>,
    ) -> Answer {
        let server = Arc::clone(&self.server);
        let may = match server.settings.recorders {
            Recorders::Nobody => false,
            Recorders::Principals => principal.is_some_and(|one| one.records),
            Recorders::Anyone => true,
        };
        if !may {
            server.counters.refuse(Reason::Forbidden);
            let text = match server.settings.recorders {
                Recorders::Nobody => "recording over RTSP is off; see [rtsp] recorders",
                _ => "this principal has no right to record; see `records` of [[rtsp.principal]]",
            };
            return Err(Reply::said(Status::FORBIDDEN, text));
        }
        if self.announced.as_ref().is_some_and(|announced| announced.id.is_some()) {
            return Err(Reply::new(Status::NOT_IN_THIS_STATE));
        }
        if request.field("content-type").is_some_and(|kind| !message::is_sdp(kind)) {
            return Err(Reply::said(
                Status::UNSUPPORTED_MEDIA,
                "the content type of ANNOUNCE must \
                be application/sdp",
            ));
        }
        let bad = || {
            Reply::said(
                Status::BAD_REQUEST,
                "the body is not a session description (RFC \
            8866)",
            )
        };
        let body = std::mem::take(&mut self.body);
        let text = std::str::from_utf8(&body).map_err(|_| bad())?;
        let description = Description::read(text).map_err(|_| bad())?;
        let tracks = tracks(&description);
        let tracks = tracks.map_err(|why| Reply::said(Status::UNSUPPORTED_MEDIA, &why.0))?;
        let (path, base) = target(&request.uri)?;
        if !path.name().to_ascii_lowercase().ends_with(".ts") {
            let text = "recordings are transport streams; choose a name that ends with .ts";
            return Err(Reply::said(Status::FORBIDDEN, text));
        }
        if principal.is_some_and(|one| !one.paths.cover(path.name())) {
            server.counters.refuse(Reason::Forbidden);
            let text = "this principal has no right to record at this path; see `paths` of \
                [[rtsp.principal]]";
            return Err(Reply::said(Status::FORBIDDEN, text));
        }
        if is_api_path(path.name()) {
            return Err(Reply::said(Status::FORBIDDEN, API_PATH));
        }
        let spot = server.catalogue.spot(&path);
        spot.map_err(|_| Reply::said(Status::NOT_FOUND, "no volume is mounted at this path"))?;
        let found = server.catalogue.find(&path).await;
        let is_taken = match found {
            Ok(PathObject::Title(_)) => !server.settings.overwrite,
            Ok(PathObject::Directory(_)) => true,
            Err(_) => false,
        };
        if is_taken || server.is_being_recorded(path.name()) {
            let text = "this name is already in use; choose another one";
            return Err(Reply::said(Status::CONFLICT, text));
        }
        let media = tracks.into_iter().zip(&description.media);
        let media = media.map(|(track, media)| Medium { track, rate: rate_of(media), line: None });
        let (media, principal) = (media.collect(), principal.map(|one| one.name.clone()));
        let (id, is_recorded) = (None, false);
        let name = name_of(&description, &path);
        self.announced =
            Some(AnnouncedRecording { base, path, name, principal, media, id, is_recorded });
        Ok(Reply::new(Status::OK))
    }

    /// SETUP of an announced medium.
    pub(super) fn setup_recording(&mut self, request: &Request, caller: &Caller<'_>) -> Answer {
        let server = Arc::clone(&self.server);
        let (own, peer) = (self.own, self.peer.ip());
        let new = self.new_id()?;
        let refused = |offered: &str| {
            server.counters.refuse(Reason::Transport);
            Reply::said(Status::UNSUPPORTED_TRANSPORT, offered)
        };
        let announced = self.announced.as_mut().expect("it was looked for");
        if announced.principal.as_deref() != caller.principal {
            return Err(self.challenge(false));
        }
        if announced.is_recorded {
            return Err(Reply::new(Status::NOT_IN_THIS_STATE));
        }
        let nth = announced.medium(&request.uri);
        let nth =
            nth.ok_or_else(|| Reply::said(Status::NOT_FOUND, "this medium was not announced"))?;
        let used = |channel: u8| {
            let mut transports = announced.media.iter().filter_map(|medium| medium.line.as_ref());
            transports.any(|transport| transport.uses(channel))
        };
        let offers = request.field("transport");
        let offers = offers.map(|value| self::offers(request.version, value)).unwrap_or_default();
        let mut found = None;
        for offer in &offers {
            let is_elsewhere = offer.destination.is_some_and(|other| other != peer);
            match offer.lower {
                Lower::Unicast(ports) if !is_elsewhere => {
                    let to = SocketAddr::new(peer, ports.rtcp());
                    let sockets = Sockets::open(own, to).map_err(|error| failed(&error))?;
                    let transport = format!(
                        "RTP/AVP/UDP;unicast;source={own};client_port={}-{};server_port={}-{};\
                         mode=\"RECORD\"",
                        ports.rtp,
                        ports.rtcp(),
                        sockets.ports.rtp,
                        sockets.ports.rtcp(),
                    );
                    found = Some((*offer, MediumTransport::Datagrams(Some(sockets)), transport));
                }
                Lower::Interleaved(channels) => {
                    let first = u8::try_from(2 * nth).expect(
                        "a description may have at most 16 \
                        media",
                    );
                    let (rtp, rtcp) = channels.unwrap_or((first, first + 1));
                    if !used(rtp) && !used(rtcp) {
                        let transport =
                            format!("RTP/AVP/TCP;unicast;interleaved={rtp}-{rtcp};mode=\"RECORD\"");
                        found = Some((*offer, MediumTransport::Frames((rtp, rtcp)), transport));
                    }
                }
                Lower::Unicast(_) | Lower::Multicast(_) => {}
            }
            if found.is_some() {
                break;
            }
        }
        let (offer, line, transport) = found.ok_or_else(|| {
            refused(
                "use UDP from the address of this connection, or interleaved \
                transport",
            )
        })?;
        let others = announced.media.iter().filter_map(|medium| medium.line.as_ref());
        let is_framed = matches!(line, MediumTransport::Frames(_));
        if others.into_iter().any(|other| matches!(other, MediumTransport::Frames(_)) != is_framed)
        {
            return Err(refused("use one transport for all media: UDP or interleaved"));
        }
        let now = tactus_sys::clock::now();
        let id = match announced.id {
            Some(id) => {
                let alive = server.sessions().handle_alive(now, caller, request.session());
                match alive {
                    Ok(alive) if alive == id => id,
                    Ok(_) => return Err(Reply::new(Status::SESSION_NOT_FOUND)),
                    Err(why) => return Err(self.refused(why)),
                }
            }
            None => {
                let what = (announced.base.as_str(), offer);
                let setup = server.sessions().handle_setup(now, caller, None, what, new);
                if let Err(why) = setup {
                    return Err(self.refused(why));
                }
                // Until RECORD there is no reservation.
                server.sessions().promise_when_played(new);
                announced.id = Some(new);
                self.sessions.push(new);
                new
            }
        };
        let announced = self.announced.as_mut().expect("it was looked for");
        announced.media[nth].line = Some(line);
        Ok(Reply::new(Status::OK).with("Session", session(id)).with("Transport", transport))
    }

    pub(super) async fn record(&mut self, caller: &Caller<'_>, named: Option<&str>) -> Answer {
        let server = Arc::clone(&self.server);
        let now = tactus_sys::clock::now();
        let id = server.sessions().handle_alive(now, caller, named);
        let id = id.map_err(|why| self.refused(why))?;
        let announced = self.announced.as_mut().filter(|announced| announced.id == Some(id));
        let announced = announced.ok_or_else(|| Reply::new(Status::NOT_IN_THIS_STATE))?;
        let ok = Reply::new(Status::OK).with("Session", session(id)).with("Range", "npt=now-");
        if announced.is_recorded {
            // RECORD after a pause, which has no effect on a recording.
            server.sessions().handle_begin(id);
            return Ok(ok);
        }
        let source = random().map_err(|_| Reply::new(Status::INTERNAL))?;
        let recorder = server.recorder.as_ref().ok_or_else(|| {
            Reply::said(
                Status::FORBIDDEN,
                "no volume accepts recordings; see `uploads` of \
                [[volume]]",
            )
        })?;
        let (volume, inside) = server.spot(&announced.path)?;
        let (path, title) = (inside.to_owned(), announced.path.name().to_owned());
        // Errors of the request are answered before the recording starts.
        let played = server.sessions().handle_play(now, caller, named);
        if let Err(why) = played {
            return Err(self.refused(why));
        }
        // The place is taken before the first await.
        let Some(place) = RecordingPermit::take(&server) else {
            server.counters.refuse(Reason::Room);
            let full =
                "the limit of recordings is reached ([rtsp] recordings_max); try again later";
            return Err(Reply::said(Status::NOT_ENOUGH_BANDWIDTH, full));
        };
        let rate = announced.rate().unwrap_or(server.settings.record_rate);
        let precondition = match server.settings.overwrite {
            true => Precondition::Any,
            false => Precondition::CreateOnly,
        };
        let principal = announced.principal.clone();
        let account = store::Principal::new(principal.as_deref().unwrap_or("rtsp"));
        let begin = Begin { volume, path, rate, precondition, principal: account };
        let recording = recorder.begin(begin).await.map_err(|error| self.not_begun(&error))?;
        if !server.sessions().handle_begin(id) {
            // The session has ended meanwhile without a packet: no title is left.
            recording.finish().await.map_err(|error| self.not_begun(&error.into()))?;
            return Err(self.refused(SessionRefusal::Unknown(Status::SESSION_NOT_FOUND)));
        }
        let announced = self.announced.as_mut().expect("it was there");
        announced.is_recorded = true;
        let (mut used, mut channels, mut sockets) = (vec![], vec![], vec![]);
        let is_report = |&(channel, _, is_report): &(u8, usize, bool)| is_report.then_some(channel);
        for medium in &mut announced.media {
            let nth = used.len();
            match &mut medium.line {
                None => continue,
                Some(MediumTransport::Frames((rtp, rtcp))) => {
                    channels.extend([(*rtp, nth, false), (*rtcp, nth, true)]);
                }
                Some(MediumTransport::Datagrams(own)) => {
                    sockets.extend(own.take().map(|own| (nth, own)))
                }
            }
            used.push(medium.track.clone());
        }
        let parts = Parts {
            server: Arc::downgrade(&server),
            id,
            title,
            from: self.peer,
            principal,
            rate,
            assembly: Assembly::new(&used, &announced.name),
            recording,
            sockets,
            channels: channels.iter().filter_map(is_report).collect(),
            source: u32::from_be_bytes(source),
        };
        let mut record_sessions = server.record_sessions();
        let (session, ends) = RecordSession::begin(parts);
        record_sessions.insert(id, session);
        // From here on it counts as a running recording.
        drop(place);
        drop(record_sessions);
        if !channels.is_empty() {
            self.write_path = Some(WritePath { id, channels, ends });
        }
        Ok(ok)
    }

    /// Whether the session records, or belongs to the announced title of this connection.
    pub(super) fn records(&self, id: SessionId) -> bool {
        let is_announced = |announced: &AnnouncedRecording| announced.id == Some(id);
        self.announced.as_ref().is_some_and(is_announced)
            || self.server.record_sessions().contains_key(&id)
    }

    fn not_begun(&self, error: &BeginError) -> Reply {
        let text = error.to_string();
        match error {
            BeginError::Refused(refusal) => self.server.no_room(refusal),
            BeginError::NotHere => Reply::said(Status::FORBIDDEN, &text),
            BeginError::Store(ResumeError::Upload(UploadError::Exists)) => {
                Reply::said(Status::CONFLICT, &text)
            }
            BeginError::Store(ResumeError::Upload(UploadError::Name(_))) => {
                Reply::said(Status::FORBIDDEN, &text)
            }
            BeginError::Stalled | BeginError::Store(_) => Reply::said(Status::UNAVAILABLE, &text),
        }
    }

    /// TEARDOWN of a recording: its title is stored before the answer. `None`: not a recording.
    pub(super) async fn teardown_recording(&mut self, id: SessionId) -> Option<Answer> {
        let announced = self.announced.take_if(|announced| announced.id == Some(id))?;
        self.write_path = None;
        let session = self.server.record_sessions().get(&id).map(Arc::clone);
        let stored = match session {
            Some(session) => session.finish().await,
            None => Ok(()),
        };
        self.server.sessions().handle_over(id);
        let base = announced.base;
        Some(stored.map(|()| Reply::new(Status::OK)).map_err(|error| {
            tracing::error!(base, error, "a recording is not stored");
            Reply::said(Status::INTERNAL, &error)
        }))
    }

    /// Passes on all complete frames, and waits where storage is slow. False if the connection must
    /// end.
    pub(super) async fn record_frames(&mut self) -> bool {
        let mut at = 0;
        while let Ok(Piece::Frame { channel, len }) = piece(&self.bytes[at..]) {
            let Some(write_path) = &self.write_path else { break };
            let known = write_path.channels.iter().find(|(known, ..)| *known == channel);
            let Some(&(_, nth, is_report)) = known else {
                // Row S12.
                self.server.counters.refuse(Reason::Malformed);
                return false;
            };
            let bytes = self.bytes[at + FRAME_HEAD..at + len].into();
            at += len;
            if write_path.ends.give.send(IncomingPacket { nth, is_report, bytes }).await.is_err() {
                // The recording is over: the disk is full or has failed, or the sender was silent
                // for too long.
                let id = write_path.id;
                tracing::debug!(session = ?id, "the recording has already ended");
                return false;
            }
        }
        self.bytes.drain(..at);
        true
    }

    /// Ends the recording of this connection.
    pub(super) fn end_recording(&mut self) {
        self.write_path = None;
        if let Some(id) = self.announced.take().and_then(|announced| announced.id) {
            self.server.stop_record_session(id);
            self.server.sessions().handle_over(id);
        }
    }
}

/// The next report of the recording within this connection; pending for ever without one.
pub(super) async fn report_of(write_path: &mut Option<WritePath>) -> Box<[u8]> {
    let report = match write_path {
        Some(write_path) => write_path.ends.reports.recv().await,
        None => None,
    };
    match report {
        Some(report) => report,
        None => std::future::pending().await,
    }
}

/// The place of a starting recording in the limit of recordings. Released when dropped.
struct RecordingPermit(Arc<Server>);

impl RecordingPermit {
    fn take(server: &Arc<Server>) -> Option<Self> {
        // Running and starting recordings are counted together: one becomes the other under this
        // lock.
        let record_sessions = server.record_sessions();
        let beginning = server.record_sessions_beginning.load(Ordering::Relaxed);
        if record_sessions.len() + beginning >= server.settings.recordings_max as usize {
            return None;
        }
        server.record_sessions_beginning.fetch_add(1, Ordering::Relaxed);
        Some(Self(Arc::clone(server)))
    }
}

impl Drop for RecordingPermit {
    fn drop(&mut self) {
        self.0.record_sessions_beginning.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    fn is_being_recorded(&self, title: &str) -> bool {
        self.record_sessions().values().any(|session| session.title == title)
    }

    fn spot<'a>(&self, path: &'a RequestPath) -> Result<(VolumeId, &'a str), Reply> {
        let none = |_| Reply::said(Status::NOT_FOUND, "no volume is mounted at this path");
        self.catalogue.spot(path).map_err(none)
    }
}

impl AnnouncedRecording {
    /// The medium of a URL: by its announced control attribute, or the only one.
    fn medium(&self, uri: &str) -> Option<usize> {
        let uri = uri.strip_suffix('/').unwrap_or(uri);
        let names = |medium: &Medium| match medium.track.control.as_deref() {
            None | Some("" | "*") => false,
            Some(control) => {
                let behind = uri.strip_prefix(&*self.base).and_then(|rest| rest.strip_prefix('/'));
                uri == control || behind == Some(control)
            }
        };
        let named = self.media.iter().position(names);
        let is_only = self.media.len() == 1 && uri == self.base;
        named.or(is_only.then_some(0))
    }

    /// The rate to reserve: the sum of the announced rates, which are means, and a half more.
    fn rate(&self) -> Option<BitRate> {
        let media = self.media.iter().filter(|medium| medium.line.is_some());
        let rates: Option<Vec<_>> = media.map(|medium| medium.rate).collect();
        let sum: u64 = rates?.iter().map(|rate| rate.0).sum();
        Some(BitRate((sum + sum / 2).max(RATE_MIN)))
    }
}

/// Smallest reservation: tables and headers take part of it.
const RATE_MIN: u64 = 256_000;
/// Largest announced rate that is accepted: 1 Gbit/s.
const RATE_MAX: u64 = 1_000_000;

/// The service name of the stream: the announced session name, else the name of the title.
fn name_of(description: &Description, path: &RequestPath) -> String {
    // RFC 8866, 5.3, has a dash for no name; ffmpeg writes words.
    let announced =
        Some(description.name.trim()).filter(|name| !["", "-", "No Name"].contains(name));
    let file = path.segments().last().unwrap_or_default();
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    announced.unwrap_or(stem).to_owned()
}

fn rate_of(media: &Media) -> Option<BitRate> {
    let kilobits = media.bandwidth.filter(|kilobits| (1..=RATE_MAX).contains(kilobits))?;
    Some(BitRate(kilobits * 1000))
}
