//! SETUP: which way a session's packets take, and the promise that they will have it.
//!
//! Promise: nothing is sent to anybody but who asks, unless the configuration says so (rows S08 to S10); what is
//! answered with 200 is admitted, and what is refused says what is short and leaves nothing behind.

use super::*;

impl Connection {
    pub(super) async fn setup(
        &mut self,
        socket: &TcpStream,
        request: &Request,
        caller: &Caller<'_>,
        principal: Option<&Principal>,
    ) -> Answer {
        let house = Arc::clone(&self.house);
        let (path, base) = target(&request.uri)?;
        let offers = request.field("transport").map(offers).unwrap_or_default();
        let of = (&path, &*base, track_of(&request.uri));
        if let Some(reply) = self.setup_film(of, caller, request.session(), &offers).await? {
            return Ok(reply);
        }
        if request.session().is_some() {
            return self.setup_again(&base, caller, request.session(), &offers);
        }
        let programme = Arc::new(house.programme(path).await?);
        let mut worst = Reply::new(Status::UNSUPPORTED_TRANSPORT);
        for offer in offers {
            match self.way(socket, &offer, principal) {
                Ok(way) => return self.admit(&programme, (&base, offer), caller, way),
                Err(reply) => worst = reply,
            }
        }
        house.counters.refuse(Reason::Transport);
        Err(worst)
    }

    fn setup_again(
        &self,
        base: &str,
        caller: &Caller<'_>,
        named: Option<&str>,
        offers: &[Offer],
    ) -> Answer {
        let offer = *offers.first().ok_or_else(|| Reply::new(Status::UNSUPPORTED_TRANSPORT))?;
        let now = tactus_sys::clock::now();
        let new = self.new_id()?;
        let setup = self.house.sessions().handle_setup(now, caller, named, (base, offer), new);
        match setup.map_err(|why| self.refused(why))? {
            Setup::Same(id) => {
                let streams = self.house.streams();
                let handle =
                    streams.get(&id).ok_or_else(|| Reply::new(Status::SESSION_NOT_FOUND))?;
                let transport = handle.transport.clone();
                Ok(Reply::new(Status::OK).with("Session", session(id)).with("Transport", transport))
            }
            Setup::New => unreachable!("a session was named"),
        }
    }

    /// The way that packets would take.
    ///
    /// # Errors
    /// When they must not.
    fn way(
        &self,
        socket: &TcpStream,
        offer: &Offer,
        principal: Option<&Principal>,
    ) -> Result<Way, Reply> {
        let none = |text: &str| Reply::said(Status::UNSUPPORTED_TRANSPORT, text);
        let house = &self.house;
        if offer.records {
            return Err(none("nothing is recorded by RTSP here"));
        }
        let failed = |error: io::Error| {
            tracing::warn!(%error, "no ports can be had for RTP");
            Reply::said(Status::INTERNAL, "no ports can be had")
        };
        match offer.lower {
            Lower::Interleaved(_) if self.pipe.is_some() || self.coming.is_some() => {
                Err(none("this connection carries another session already"))
            }
            Lower::Interleaved(channels) => {
                let channels = channels.unwrap_or((0, 1));
                let wanted = Preparation { not_sent_max: Some(NOT_SENT_MAX), send_buffer: None };
                let writer = tactus_sys::tcp::prepare(socket, wanted)
                    .and_then(|_| socket.as_fd().try_clone_to_owned())
                    .and_then(|socket| TcpStream::from_std(socket.into()))
                    .map_err(failed)?;
                let transport =
                    format!("RTP/AVP/TCP;unicast;interleaved={}-{}", channels.0, channels.1);
                let path = Path::Frames(ByFrames { writer, channels, is_broken: false });
                Ok(Way { path, to: self.peer, transport })
            }
            Lower::Unicast(ports) => {
                let mut to = self.peer;
                if let Some(other) = offer.destination.filter(|other| *other != self.peer.ip()) {
                    if !may_be_sent_to(other, self.own, principal) {
                        house.counters.refuse(Reason::Reflect);
                        tracing::warn!(peer = %self.peer, destination = %other, "it must not be sent there");
                        return Err(none("packets are sent to who asks"));
                    }
                    to = SocketAddr::new(other, 0);
                }
                if to.is_ipv4() != self.own.is_ipv4() {
                    return Err(none("packets are sent by the same protocol"));
                }
                let pair = house.pair(self.own).map_err(failed)?;
                // Row S10: not to ourselves.
                if to.ip() == self.own && [pair.ports.rtp, pair.ports.rtcp()].contains(&ports.rtp) {
                    return Err(none("these ports are the server's"));
                }
                to.set_port(ports.rtp);
                let mut from = to;
                from.set_port(ports.rtcp());
                let server = pair.ports;
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
                let burst = house.config.burst;
                let reports = Some((pair, from));
                Ok(Way {
                    path: Path::Datagrams(ByDatagrams { outlet, to, burst, reports }),
                    to,
                    transport,
                })
            }
            Lower::Multicast(port) => {
                let hops = offer.ttl.unwrap_or(house.config.hops);
                if hops == 0 || hops > house.config.hops {
                    return Err(none("not so far"));
                }
                let port = port.map_or(house.config.group_port, |port| port.rtp);
                if port != house.config.group_port {
                    return Err(none("groups have another port here"));
                }
                let group = house.groups.take(offer.destination, self.own.is_ipv4());
                let group = group.map_err(|why| match why {
                    NoGroup::NotOurs => none("this is no group of ours"),
                    NoGroup::InUse => {
                        house.counters.refuse(Reason::Room);
                        Reply::said(Status::NOT_ENOUGH_BANDWIDTH, "no group is free")
                    }
                })?;
                let outlet = house.pairs.for_group(group, hops).map_err(|error| {
                    house.groups.free(group);
                    failed(error)
                })?;
                let to = SocketAddr::new(group, port);
                let transport = format!(
                    "RTP/AVP/UDP;multicast;destination={group};port={port}-{};ttl={hops}",
                    port + 1
                );
                let burst = house.config.burst;
                let path = Path::Datagrams(ByDatagrams { outlet, to, burst, reports: None });
                Ok(Way { path, to, transport })
            }
        }
    }

    fn admit(
        &mut self,
        programme: &Arc<Programme>,
        what: (&str, Offer),
        caller: &Caller<'_>,
        way: Way,
    ) -> Answer {
        let group = Some(way.to.ip()).filter(IpAddr::is_multicast);
        let result = self.try_admit(programme, what, caller, way);
        if let (Err(_), Some(group)) = (&result, group) {
            self.house.groups.free(group);
        }
        let reply = result?;
        Ok(reply)
    }

    fn try_admit(
        &mut self,
        programme: &Arc<Programme>,
        what: (&str, Offer),
        caller: &Caller<'_>,
        way: Way,
    ) -> Answer {
        let house = &self.house;
        let now = tactus_sys::clock::now();
        let id = self.new_id()?;
        let bits = random().map_err(|_| Reply::new(Status::INTERNAL))?;
        let numbers = Numbers::new(bits, now);
        let setup = house.sessions().handle_setup(now, caller, None, what, id);
        setup.map_err(|why| self.refused(why))?;
        let admitted = match &way.path {
            Path::Datagrams(path) => {
                let form = tactus_core::datagrams::Form::Rtp(numbers.begin(now));
                let (outlet, burst) = (Arc::clone(&path.outlet), path.burst);
                let target = Target { outlet, to: path.to, form, burst, after: None, plan: None };
                house.broker.admit_datagrams(&programme.title, programme.rate, &target)
            }
            Path::Frames(_) => {
                let ip = if way.to.is_ipv4() { Ip::V4 } else { Ip::V6 };
                house.broker.admit_frames(&programme.title, programme.mean, ip)
            }
        };
        let grant = match admitted {
            Ok(grant) => grant,
            Err(refusal) => {
                house.sessions().handle_over(id);
                house.counters.refuse(Reason::Room);
                let again = refusal.retry_after.as_secs().max(1).to_string();
                let reply = Reply::said(Status::NOT_ENOUGH_BANDWIDTH, &refusal.message);
                return Err(reply.with("Retry-After", again));
            }
        };
        let transport = format!("{};ssrc={:08X};mode=\"PLAY\"", way.transport, numbers.source);
        let (give, end, take) = orders();
        let (done, is_done) = oneshot::channel();
        let (reports, connection) = match &way.path {
            Path::Datagrams(path) => (path.reports.clone(), None),
            Path::Frames(path) => {
                let (orders, channels) = (give.clone(), path.channels);
                self.coming = Some(Pipe { id, orders, channels, done: is_done });
                (None, Some(self.number))
            }
        };
        if let Some((pair, from)) = &reports {
            pair.expect(*from, id);
        }
        let handle = Handle {
            orders: give,
            _over: end,
            connection,
            programme: Arc::clone(programme),
            transport: transport.clone(),
            to: way.to,
            reports,
            principal: caller.principal.map(str::to_owned),
            place: grant.place(),
        };
        house.streams().insert(id, handle);
        let stream = Stream {
            house: Arc::downgrade(house),
            id,
            broker: house.broker.clone(),
            programme: Arc::clone(programme),
            grant,
            path: way.path,
            done: Some(done),
            numbers,
            sent: Sent {
                source: numbers.source,
                timeline: numbers.timeline(),
                packets: 0,
                bytes: 0,
            },
        };
        house.tasks().spawn(stream.run(take));
        self.has_session();
        self.sessions.push(id);
        Ok(Reply::new(Status::OK).with("Session", session(id)).with("Transport", transport))
    }

    fn new_id(&self) -> Result<SessionId, Reply> {
        let bits = random().map_err(|_| Reply::new(Status::INTERNAL))?;
        Ok(SessionId(u128::from_be_bytes(bits)))
    }

    /// SETUP of a track of a movie; none when it is none.
    pub(super) async fn setup_film(
        &mut self,
        (path, base, number): (&RequestPath, &str, u32),
        caller: &Caller<'_>,
        named: Option<&str>,
        offers: &[Offer],
    ) -> Result<Option<Reply>, Reply> {
        let house = Arc::clone(&self.house);
        let now = tactus_sys::clock::now();
        let known = match named {
            None => None,
            Some(_) => {
                let alive = house.sessions().handle_alive(now, caller, named).ok();
                // Whatever is wrong is said where other sessions are looked for.
                let Some(known) = alive.and_then(|id| Some((id, house.show(id)?))) else {
                    return Ok(None);
                };
                Some(known)
            }
        };
        let film = match &known {
            Some((_, show)) => show.film(),
            None => match house.film(path).await? {
                Some(film) => film,
                None => return Ok(None),
            },
        };
        if !film.has_track(number) {
            return Err(Reply::new(Status::NOT_FOUND));
        }
        let way = film::way(&house, (self.peer, self.own), offers, number).inspect_err(|_| {
            house.counters.refuse(Reason::Transport);
        })?;
        let bits = random().map_err(|_| Reply::new(Status::INTERNAL))?;
        let (id, show) = match known {
            Some(known) => known,
            None => {
                film.has_room(&house)?;
                let id = self.new_id()?;
                let what = (base, offers[0]);
                let setup = house.sessions().handle_setup(now, caller, None, what, id);
                setup.map_err(|why| self.refused(why))?;
                self.has_session();
                self.sessions.push(id);
                (id, house.open_film(id, film, caller.principal.map(str::to_owned)))
            }
        };
        let transport = show.add(id, way, bits).await?;
        let reply = Reply::new(Status::OK).with("Session", session(id));
        Ok(Some(reply.with("Transport", transport)))
    }
}

/// The way that a session's packets take.
struct Way {
    path: Path,
    to: SocketAddr,
    transport: String,
}

/// Rows S08 and S10: others than who asks are sent to only where the configuration says so, and some never.
fn may_be_sent_to(other: IpAddr, own: IpAddr, principal: Option<&Principal>) -> bool {
    let is_broadcast = matches!(other, IpAddr::V4(ip) if ip.is_broadcast());
    let never = other == own
        || other.is_unspecified()
        || other.is_multicast()
        || other.is_loopback()
        || is_broadcast;
    !never && principal.is_some_and(|one| one.destinations.iter().any(|net| net.contains(other)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::rtsp::Net;

    #[test]
    fn s08_s10_nobody_is_sent_to_who_did_not_ask() {
        let wide = |text: &str| vec![Net::parse(text).unwrap()];
        let anna =
            |destinations| Principal { name: "anna".into(), password: "".into(), destinations };
        let own: IpAddr = "10.0.0.1".parse().unwrap();
        let may = |to: &str, who: Option<&Principal>| may_be_sent_to(to.parse().unwrap(), own, who);
        let (named, all) = (anna(wide("10.1.0.0/16")), anna(wide("0.0.0.0/0")));
        assert!(!may("10.1.0.7", None) && !may("10.1.0.7", Some(&anna(vec![]))));
        assert!(may("10.1.0.7", Some(&named)) && !may("10.2.0.7", Some(&named)));
        for never in ["10.0.0.1", "0.0.0.0", "255.255.255.255", "239.1.1.1", "127.0.0.1"] {
            assert!(!may(never, Some(&all)), "{never}");
        }
    }
}
