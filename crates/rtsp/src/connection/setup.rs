//! SETUP: the transport of a session's packets, and its reservation.
//!
//! Promise: 200 means admitted. A refusal says what is short and leaves nothing behind. Permitted
//! destinations are decided in [`transport`](super::super::transport).

use std::sync::atomic::AtomicU32;

use tactus_core::rtp::rtcp;

use super::*;

impl Connection {
    pub(super) async fn setup(
        &mut self,
        socket: &TcpStream,
        request: &Request,
        caller: &Caller<'_>,
        principal: Option<&Principal>,
    ) -> Answer {
        if self.announced.is_some() {
            return self.setup_recording(request, caller);
        }
        let server = Arc::clone(&self.server);
        let (path, base) = target(&request.uri)?;
        self.check_reader(principal, &path)?;
        let offers = request.field("transport");
        let offers = offers.map(|value| self::offers(request.version, value)).unwrap_or_default();
        let number = track_named(&request.uri).unwrap_or(1);
        let of = (&path, &*base, number);
        let named = request.session();
        let movie_title = self.setup_movie(of, caller, named, &offers, (socket, principal)).await?;
        if let Some(reply) = movie_title {
            return Ok(reply);
        }
        if request.session().is_some() {
            return self.setup_again((&path, &base, number), caller, request.session(), &offers);
        }
        let ts_title = Arc::new(server.ts_title(path).await?);
        if number != 1 {
            return Err(Reply::new(Status::NOT_FOUND));
        }
        let (stream_transport, offer) =
            self.asker(socket, principal).choose(&offers, &self.carries())?;
        self.admit(&ts_title, (&base, offer), caller, stream_transport)
    }

    fn asker<'a>(
        &'a self,
        socket: &'a TcpStream,
        principal: Option<&'a Principal>,
    ) -> Requester<'a> {
        Requester { server: &self.server, socket, peer: self.peer, own: self.own, principal }
    }

    fn carries(&self) -> ConnectionUse<'static> {
        match self.pipe.is_some() || self.coming.is_some() {
            true => ConnectionUse::Another,
            false => ConnectionUse::Nothing,
        }
    }

    fn setup_again(
        &self,
        (path, base, number): (&RequestPath, &str, u32),
        caller: &Caller<'_>,
        named: Option<&str>,
        offers: &[Offer],
    ) -> Answer {
        if offers.is_empty() {
            return Err(Reply::new(Status::UNSUPPORTED_TRANSPORT));
        }
        let now = tactus_sys::clock::now();
        let alive = self.server.sessions().handle_alive(now, caller, named);
        let id = alive.map_err(|why| self.refused(why))?;
        self.own(id)?;
        self.is_of(id, path)?;
        if number != 1 {
            return Err(Reply::new(Status::NOT_FOUND));
        }
        let new = self.new_id()?;
        // A client repeats all of its offers; one of them was accepted.
        let setup = offers.iter().map(|offer| {
            self.server.sessions().handle_setup(now, caller, named, (base, *offer), new)
        });
        let setup = setup.reduce(|best, next| if best.is_ok() { best } else { next });
        let setup = setup.expect("there are some");
        match setup.map_err(|why| self.refused(why))? {
            Setup::Same(id) => {
                let streams = self.server.streams();
                let handle =
                    streams.get(&id).ok_or_else(|| Reply::new(Status::SESSION_NOT_FOUND))?;
                let transport = handle.transport.clone();
                Ok(Reply::new(Status::OK).with("Session", session(id)).with("Transport", transport))
            }
            Setup::New => unreachable!("a session was named"),
        }
    }

    fn admit(
        &mut self,
        ts_title: &Arc<TsTitle>,
        what: (&str, Offer),
        caller: &Caller<'_>,
        stream_transport: StreamTransport,
    ) -> Answer {
        let server = &self.server;
        let now = tactus_sys::clock::now();
        let id = self.new_id()?;
        let bits = random().map_err(|_| Reply::new(Status::INTERNAL))?;
        let numbers = Numbers::new(bits, now);
        let Some(unplayed) = server.unplayed.take(self.peer.ip(), ts_title.rate) else {
            return Err(self.refused(SessionRefusal::Waiting));
        };
        let setup = server.sessions().handle_setup(now, caller, None, what, id);
        setup.map_err(|why| self.refused(why))?;
        let spec = stream_transport.path.spec(&server.broker, ts_title, numbers.begin(now));
        let admitted = server.broker.admit(&spec);
        let grant = match admitted {
            Ok(grant) => grant,
            Err(refusal) => {
                server.sessions().handle_over(id);
                return Err(server.no_room(&refusal));
            }
        };
        let transport =
            format!("{};ssrc={:08X};mode=\"PLAY\"", stream_transport.transport, numbers.source);
        let (give, end, take) = orders();
        let (done, is_done) = oneshot::channel();
        let (reports, connection, left) = match &stream_transport.path {
            RtpTransport::Udp(path) => (path.listeners.receiver(), None, Some(is_done)),
            RtpTransport::Interleaved(path) => {
                let (to, channels) = (Listener::Stream(give.clone()), vec![path.channels]);
                self.coming = Some(Pipe { id, to, channels, done: is_done });
                (None, Some(self.number), None)
            }
        };
        if let Some((pair, from)) = &reports {
            pair.expect(*from, id);
        }
        let slot = Arc::new(AtomicU32::new(grant.slot()));
        let handle = Handle {
            orders: give,
            _over: end,
            connection,
            ts_title: Arc::clone(ts_title),
            transport: transport.clone(),
            to: stream_transport.to,
            reports,
            principal: caller.principal.map(str::to_owned),
            slot: Arc::clone(&slot),
            left,
        };
        server.streams().insert(id, handle);
        server.receptions.expect(id, Track::new(1, numbers.source, rtcp::VIDEO_CLOCK));
        let stream = Stream {
            server: Arc::downgrade(server),
            id,
            broker: server.broker.clone(),
            ts_title: Arc::clone(ts_title),
            grant: Some(grant),
            slot,
            unplayed: Some(unplayed),
            path: stream_transport.path,
            done,
            numbers,
            counts: vec![],
            tables: vec![],
            is_elsewhere: false,
            sent: SenderState {
                source: numbers.source,
                timeline: numbers.timeline(),
                packets: 0,
                bytes: 0,
            },
        };
        server.tasks().spawn(stream.run(take));
        self.has_session();
        self.sessions.push(id);
        Ok(Reply::new(Status::OK).with("Session", session(id)).with("Transport", transport))
    }

    pub(super) fn new_id(&self) -> Result<SessionId, Reply> {
        let bits = random().map_err(|_| Reply::new(Status::INTERNAL))?;
        Ok(SessionId(u128::from_be_bytes(bits)))
    }

    /// SETUP of a track of a movie; `None` if the title is not a movie.
    pub(super) async fn setup_movie(
        &mut self,
        (path, base, number): (&RequestPath, &str, u32),
        caller: &Caller<'_>,
        named: Option<&str>,
        offers: &[Offer],
        (socket, principal): (&TcpStream, Option<&Principal>),
    ) -> Result<Option<Reply>, Reply> {
        let server = Arc::clone(&self.server);
        let now = tactus_sys::clock::now();
        let known = match named {
            None => None,
            Some(_) => {
                let alive = server.sessions().handle_alive(now, caller, named).ok();
                // Errors are answered where other sessions are looked up.
                let Some(known) = alive.and_then(|id| Some((id, server.play_session(id)?))) else {
                    return Ok(None);
                };
                self.own(known.0)?;
                self.is_of(known.0, path)?;
                Some(known)
            }
        };
        let movie_title = match &known {
            Some((_, session)) => session.movie_title(),
            None => match server.movie_title(path).await? {
                Some(movie_title) => movie_title,
                None => return Ok(None),
            },
        };
        if !movie_title.has_track(number) {
            return Err(Reply::new(Status::NOT_FOUND));
        }
        let set_up = |id: SessionId, transport: String| {
            let reply = Reply::new(Status::OK).with("Session", session(id));
            Some(reply.with("Transport", transport))
        };
        if let Some((id, session)) = &known
            && let Some(again) = session.again(number, offers)
        {
            return again.map(|transport| set_up(*id, transport));
        }
        let own_pipe =
            self.pipe.as_ref().filter(|pipe| Some(pipe.id) == known.as_ref().map(|k| k.0));
        let carries = match own_pipe {
            Some(pipe) => ConnectionUse::Channels(&pipe.channels),
            None => self.carries(),
        };
        let (stream_transport, offer) = self.asker(socket, principal).choose(offers, &carries)?;
        let added = self
            .add_track((movie_title, base, number), caller, known, (stream_transport, offer))
            .await;
        let (id, transport) = added?;
        Ok(set_up(id, transport))
    }

    /// Adds a track to a session, or starts a session with its first track. Returns the Transport
    /// header.
    async fn add_track(
        &mut self,
        (movie_title, base, number): (Arc<MovieTitle>, &str, u32),
        caller: &Caller<'_>,
        known: Option<(SessionId, Arc<PlaySession>)>,
        (stream_transport, offer): (StreamTransport, Offer),
    ) -> Result<(SessionId, String), Reply> {
        let server = Arc::clone(&self.server);
        let bits: [u8; 10] = random().map_err(|_| Reply::new(Status::INTERNAL))?;
        let channels = match &stream_transport.path {
            RtpTransport::Interleaved(path) => Some(path.channels),
            RtpTransport::Udp(_) => None,
        };
        let [a, b, c, d, ..] = bits;
        let track =
            Track::new(number, u32::from_be_bytes([a, b, c, d]), movie_title.clock_of(number));
        if let Some((id, session)) = known {
            let transport = session.add(id, (number, offer), stream_transport, bits).await?;
            server.receptions.expect(id, track);
            if let (Some(pipe), Some(channels)) = (&mut self.pipe, channels) {
                pipe.channels.push(channels);
            }
            return Ok((id, transport));
        }
        movie_title.has_room(&server)?;
        let id = self.new_id()?;
        let (now, what) = (tactus_sys::clock::now(), (base, offer));
        let setup = server.sessions().handle_setup(now, caller, None, what, id);
        setup.map_err(|why| self.refused(why))?;
        server.sessions().promise_when_played(id);
        self.has_session();
        self.sessions.push(id);
        let (done, is_done) = oneshot::channel();
        let carried = channels.map(|_| (self.number, done));
        let session =
            server.open_play_session(id, movie_title, caller.principal.map(str::to_owned), carried);
        if let Some(channels) = channels {
            let (to, channels) = (Listener::PlaySession(Arc::downgrade(&session)), vec![channels]);
            self.coming = Some(Pipe { id, to, channels, done: is_done });
        }
        let transport = session.add(id, (number, offer), stream_transport, bits).await?;
        server.receptions.expect(id, track);
        Ok((id, transport))
    }
}
