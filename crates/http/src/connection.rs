//! One connection: requests and answers in turn, until one side closes it.
//!
//! Promise: requests are served one after the other. A client with too many requests sees
//! backpressure from its own socket, because nothing is read meanwhile. Every wait has a bound.
//! While the engine sends, the connection costs only a sleeping task.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tactus_control::broker::{
    self, Admission, DeliverySpec, Device, Output, Overlap, Party, Viewer,
};
use tactus_control::settings::ClientShare;
use tactus_core::datagrams::Framing;
use tactus_core::stagger::Tick;
use tactus_core::units::{Bytes, KIB, MIB};
use tactus_engine::message::{Outcome, Pace};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

use super::answer::{Answer, ContentEnd, Delivery, Live, refused, unreadable};
use super::change::{self, ChangeOutcome};
use super::connection_limit::ConnectionPermit;
use super::cors::Cors;
use super::counters::Abuse;
use super::exchange::Exchange;
use super::fault::Fault;
use super::fields::Fields;
use super::forwarded::{self, Hop};
use super::framing::{Body, Version};
use super::inbox::{DrainResult, Inbox, NextRequest, WaitFor};
use super::incoming::Incoming;
use super::limits::{DISCARD_BYTES, READ_BYTES};
use super::live;
use super::principals::Authentication;
use super::rate::{self, PlannedPace};
use super::request::{InvalidHead, Method, Request};
use super::response::{Persistence, Response, Source};
use super::schedule::{Renewal, RenewalReason};
use super::transport::{Client, Transport};
use super::{Site, StopSignal, route};

/// How a connection begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Preamble {
    WithRequest,
    /// With a PROXY protocol header of a trusted proxy.
    WithProxyHeader,
}

/// Serves `socket` until it is closed.
pub(super) async fn serve(site: Arc<Site>, socket: Transport, peer: Client, preamble: Preamble) {
    let cors = Cors::of(&site.limits.origins, None);
    let mut connection = Connection {
        site,
        peer,
        client: peer,
        cors,
        party: None,
        prefix: false,
        inbox: Inbox::default(),
        to_come: UnreadInput::Little,
    };
    let (socket, _permit) = match preamble {
        Preamble::WithRequest => (Ok(socket), None),
        // Boxed, to keep an idle connection's future small.
        Preamble::WithProxyHeader => Box::pin(connection.proxied(socket)).await,
    };
    let kept = match socket {
        Ok(socket) => connection.requests(socket).await,
        Err(refused) => refused,
    };
    if let Some(socket) = kept {
        Box::pin(linger(socket, &connection.site, connection.to_come)).await;
    }
}

struct Connection {
    site: Arc<Site>,
    /// The other end of the connection, or the client that a PROXY protocol header names.
    peer: Client,
    /// The client of the current request.
    client: Client,
    /// The CORS fields of the current answer.
    cors: Cors,
    /// The principal whose share the streams count in, if it is identified.
    party: Option<Box<Party>>,
    /// Whether paths in the answer get the public prefix.
    prefix: bool,
    inbox: Inbox,
    /// How much the client may still send after the connection's last answer.
    to_come: UnreadInput,
}

/// How much of a client's input is read after the last answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UnreadInput {
    /// A bounded number of bytes that were already in transit.
    Little,
    /// The rest of a refused body.
    Body,
}

/// Properties of the request that the head of its answer needs.
#[derive(Clone, Copy)]
struct HeadContext {
    version: Version,
    afterwards: Persistence,
    /// HEAD: the answer has no content.
    head_only: bool,
}

impl Connection {
    /// Answers requests; returns the socket if it must be closed with a linger.
    async fn requests(&mut self, mut socket: Transport) -> Option<Transport> {
        let mut wait = WaitFor::First;
        let mut stop = self.site.stopping();
        loop {
            let next = tokio::select! {
                next = self.inbox.next(&mut socket, wait, &self.site.limits) => next,
                () = wait_for_stop(&mut stop, wait) => return Some(socket),
            };
            let mut request = match next {
                NextRequest::Request(request) => request,
                NextRequest::Fault(InvalidHead { fault, fields }) => {
                    let fault = self.identify_client(fields.as_ref()).err().unwrap_or(fault);
                    let exchange = Exchange::of_fault(self.client.peer);
                    return Box::pin(self.refuse(socket, fault, exchange)).await;
                }
                NextRequest::Disconnected => return None,
                NextRequest::Silent => {
                    if wait == WaitFor::First {
                        self.client = self.peer;
                        self.abused(Abuse::IdleNew);
                    }
                    return None;
                }
            };
            wait = WaitFor::Another;
            self.site.counters.requested();
            request.hop = match self.identify_client(Some(&request.fields)) {
                Ok(hop) => Some(Box::new(hop)),
                Err(fault) => {
                    let exchange = Exchange::of_fault(self.peer.peer);
                    return Box::pin(self.refuse(socket, fault, exchange)).await;
                }
            };
            let mut exchange = Exchange::of(&self.site, &request, self.client.peer);
            let mut afterwards = match request.keeps_alive && !stop.is_stopping() {
                true => Persistence::Keep,
                false => Persistence::Close,
            };
            // A direct client holds a permit for its connection, so its requests need none.
            let permit = match self.client == self.peer {
                true => Ok(None),
                false => ConnectionPermit::take(&self.site, self.client),
            };
            let _permit = match permit {
                Ok(permit) => permit,
                Err(response) => {
                    if request.body != Body::None {
                        afterwards = Persistence::Close;
                        self.to_come = UnreadInput::Body;
                    }
                    let head_only = request.method == Method::Head;
                    let manner = HeadContext { version: request.version, afterwards, head_only };
                    drop(request);
                    socket = Box::pin(self.send(socket, *response, manner, &mut exchange)).await?;
                    if afterwards == Persistence::Close {
                        return Some(socket);
                    }
                    continue;
                }
            };
            if let Some(change) = change::wanted(&self.site, &request) {
                let (limits, received) = (&self.site.limits, exchange.received());
                let inbox = &mut self.inbox;
                let incoming = Incoming::new(&mut socket, inbox, limits, &request, received);
                // Boxed, to keep an idle connection's future small.
                let made = Box::pin(change.make(&self.site, self.client, &request, incoming)).await;
                let (response, another) = match made {
                    ChangeOutcome::Answer(response, another) => (response, another),
                    ChangeOutcome::Fault(fault) => {
                        return Box::pin(self.refuse(socket, fault, exchange)).await;
                    }
                    ChangeOutcome::Disconnected => return None,
                };
                if !another {
                    afterwards = Persistence::Close;
                    self.to_come = UnreadInput::Body;
                }
                let head_only = request.method == Method::Head;
                let manner = HeadContext { version: request.version, afterwards, head_only };
                drop(request);
                socket = Box::pin(self.send(socket, response, manner, &mut exchange)).await?;
                if afterwards == Persistence::Close {
                    return Some(socket);
                }
                continue;
            }
            match self.body(&mut socket, &request).await {
                NextStep::Answer(None) => exchange.read_over(request.body),
                NextStep::Answer(Some(close)) => afterwards = close,
                NextStep::Fault(fault) => {
                    if fault == Fault::LargeBody {
                        self.to_come = UnreadInput::Body;
                    }
                    return Box::pin(self.refuse(socket, fault, exchange)).await;
                }
                NextStep::Disconnected => return None,
            }
            let head_only = request.method == Method::Head;
            let manner = HeadContext { version: request.version, afterwards, head_only };
            self.party = self.principal(&request.fields).map(Box::new);
            let answer = Box::pin(route::answer(&self.site, self.client, &request)).await;
            drop(request);
            let exchange = &mut exchange;
            socket = match answer {
                Answer::Short(response) => {
                    Box::pin(self.send(socket, response, manner, exchange)).await?
                }
                Answer::Delivery(delivery) => {
                    Box::pin(self.deliver(socket, *delivery, manner, exchange)).await?
                }
                Answer::Live(live) => {
                    Box::pin(self.follow_channel(socket, *live, manner, exchange)).await?
                }
            };
            if afterwards == Persistence::Close {
                return Some(socket);
            }
        }
    }

    /// Reads the PROXY protocol header. Returns the socket for requests with the client's permit,
    /// or the socket to close; none if the peer closed it.
    async fn proxied(
        &mut self,
        mut socket: Transport,
    ) -> (Result<Transport, Option<Transport>>, Option<ConnectionPermit>) {
        if !self.peer.peer.is_trusted(&self.site.limits.proxies) {
            let exchange = Exchange::of_fault(self.peer.peer);
            return (Err(Box::pin(self.refuse(socket, Fault::NoProxy, exchange)).await), None);
        }
        let mut stop = self.site.stopping();
        let said = tokio::select! {
            said = self.inbox.proxied(&mut socket, &self.site.limits) => said,
            () = stop.wait() => return (Err(Some(socket)), None),
        };
        let source = match said {
            Ok(Some(source)) => source,
            Ok(None) => return (Ok(socket), None),
            Err(None) => return (Err(None), None),
            Err(Some(fault)) => {
                if let Some(left_out) = self.site.throttle("http.proxy_protocol", None) {
                    tracing::warn!(
                        proxy = %self.peer.peer, left_out,
                        "{fault}; the connection is closed"
                    );
                }
                let exchange = Exchange::of_fault(self.peer.peer);
                return (Err(Box::pin(self.refuse(socket, fault, exchange)).await), None);
            }
        };
        self.peer = source.into();
        self.client = self.peer;
        match ConnectionPermit::take(&self.site, self.peer) {
            Ok(permit) => (Ok(socket), permit),
            Err(response) => {
                let (version, afterwards) = (Version::Http11, Persistence::Close);
                let manner = HeadContext { version, afterwards, head_only: false };
                let mut exchange = Exchange::of_fault(self.peer.peer);
                (Err(Box::pin(self.send(socket, *response, manner, &mut exchange)).await), None)
            }
        }
    }

    /// The principal of a request with a valid token.
    fn principal(&self, fields: &Fields) -> Option<Party> {
        let uploads = self.site.store.as_ref()?.uploads.as_ref()?;
        fields.one("authorization")?;
        match uploads.principals.who(fields) {
            Authentication::Principal(name, _) => Some(Party::Principal(name.to_owned())),
            Authentication::Invalid | Authentication::Anonymous => None,
        }
    }

    /// Identifies the client of a request with these fields.
    fn identify_client(&mut self, fields: Option<&Fields>) -> Result<Hop, Fault> {
        let limits = &self.site.limits;
        self.client = self.peer;
        self.cors = Cors::of(&limits.origins, fields);
        let unknown = Fields::default();
        let hop = forwarded::hop(&limits.proxies, self.peer, fields.unwrap_or(&unknown))?;
        self.client = hop.client;
        self.prefix = hop.is_public;
        Ok(hop)
    }

    /// Reads over the request's body before the answer, so that no byte of the body can be a
    /// request.
    async fn body(&mut self, socket: &mut Transport, request: &Request) -> NextStep {
        let limits = &self.site.limits;
        let too_large = matches!(request.body, Body::Length(len) if len > limits.body_bytes_max);
        if request.body != Body::None && request.expects_continue && !too_large {
            if !matches!(request.method, Method::Get | Method::Head) {
                // The answer is final and is sent at once. The body may follow or not, so the
                // connection is closed.
                return NextStep::Answer(Some(Persistence::Close));
            }
            let said = socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
            if !matches!(timeout(limits.answer_time, said).await, Ok(Ok(()))) {
                return NextStep::Disconnected;
            }
        }
        match self.inbox.drain(socket, request.body, limits).await {
            DrainResult::Whole => NextStep::Answer(None),
            DrainResult::Fault(fault) => NextStep::Fault(fault),
            DrainResult::Disconnected => NextStep::Disconnected,
        }
    }

    /// Sends the client the error as the last answer.
    async fn refuse(
        &self,
        socket: Transport,
        fault: Fault,
        mut exchange: Exchange,
    ) -> Option<Transport> {
        self.abused(fault.abuse());
        tracing::debug!(client = %self.client, %fault, "request refused");
        let (version, afterwards) = (Version::Http11, Persistence::Close);
        let manner = HeadContext { version, afterwards, head_only: false };
        let response = Response::text(fault.status(), fault.to_string());
        self.send(socket, response, manner, &mut exchange).await
    }

    /// Completes an answer for its client: the public prefix, and the CORS fields.
    fn address(&self, response: &mut Response) {
        if self.prefix {
            response.prefix_paths(&self.site.limits.public.prefix);
        }
        self.cors.put(response);
    }

    async fn send(
        &self,
        mut socket: Transport,
        mut response: Response,
        manner: HeadContext,
        exchange: &mut Exchange,
    ) -> Option<Transport> {
        if !manner.head_only
            && let Some(source) = response.source()
        {
            // Boxed, to keep an idle connection's future small.
            return Box::pin(self.send_parts(socket, response, source, manner, exchange)).await;
        }
        let len = response.content().len();
        let room = self.site.long_answers.try_acquire_many(len as u32);
        if len > SHORT_ANSWER && room.is_err() {
            response = busy();
        }
        self.address(&mut response);
        self.site.counters.answered(response.status());
        exchange.answered(response.status());
        let mut bytes = response.head(manner.version, manner.afterwards, SystemTime::now());
        if !manner.head_only {
            bytes.extend_from_slice(response.content());
        }
        let sent = self.write(&mut socket, &bytes).await;
        if sent && !manner.head_only {
            exchange.sent(response.content().len());
        }
        drop(room);
        sent.then_some(socket)
    }

    /// Sends content in chunks while it is generated (RFC 9112 section 7.1).
    async fn send_parts(
        &self,
        mut socket: Transport,
        mut response: Response,
        mut source: Box<dyn Source>,
        manner: HeadContext,
        exchange: &mut Exchange,
    ) -> Option<Transport> {
        let Ok(room) = self.site.long_answers.try_acquire_many(PARTS_MEMORY) else {
            return Box::pin(self.send(socket, busy(), manner, exchange)).await;
        };
        self.address(&mut response);
        self.site.counters.answered(response.status());
        exchange.answered(response.status());
        let head = response.head(manner.version, manner.afterwards, SystemTime::now());
        let chunked = manner.version == Version::Http11;
        let begun = Instant::now();
        let mut sent = 0;
        let mut next = Some(Ok(head));
        let mut framed = false;
        while let Some(part) = next {
            let Ok(part) = part else {
                // The missing last chunk, or the reset, shows the client that the content is
                // truncated.
                socket.reset_at_close().ok();
                return None;
            };
            let bytes = match framed && chunked {
                true => [format!("{:x}\r\n", part.len()).as_bytes(), &part, b"\r\n"].concat(),
                false => part,
            };
            // The limit grows with the bytes sent. Otherwise a slow reader would hold the memory
            // for hours.
            let time = self.site.limits.answer_time + PARTS_TIME * (sent / PARTS_PER_TIME) as u32;
            match timeout_at(begun + time, socket.write_all(&bytes)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) => {
                    self.abused(Abuse::SlowReader);
                    return None;
                }
            }
            sent += bytes.len();
            if framed {
                exchange.sent(bytes.len());
            }
            framed = true;
            next = source.next().await;
        }
        drop((source, room));
        match chunked {
            true => self.write(&mut socket, b"0\r\n\r\n").await.then_some(socket),
            false => {
                Box::pin(linger(socket, &self.site, UnreadInput::Little)).await;
                None
            }
        }
    }

    /// Starts a delivery by the engine, if the broker admits it.
    async fn deliver(
        &self,
        mut socket: Transport,
        mut delivery: Delivery,
        manner: HeadContext,
        exchange: &mut Exchange,
    ) -> Option<Transport> {
        let store = self.site.store.as_ref()?;
        let broker = &store.broker;
        if let Some((_, first)) = delivery.parts.first()
            && broker.readable(&delivery.title, first) == first.start
        {
            return self.send(socket, unreadable(first.start), manner, exchange).await;
        }
        let (len, kind) = (Bytes(delivery.len()), socket.kind());
        let viewer = self.viewer(delivery.share, Some(delivery.device));
        let is_known = match delivery.is_seek {
            true => broker.has_been_inside(&viewer),
            false => broker.is_inside(&viewer),
        };
        let may_be_slowed = delivery.may_be_slowed && is_known;
        if let Some(usual) = delivery.paces.last().filter(|_| may_be_slowed) {
            let slowed = rate::slowed(usual, &store.rates);
            delivery.paces.extend(slowed);
        }
        let spec = |paced: &PlannedPace| {
            let spec = DeliverySpec::connection(broker, &delivery.title, paced.pace.rate(), len);
            let spec = if delivery.is_playlist { spec.short() } else { spec };
            let spec = if paced.takes_spare { spec.with_spare_memory() } else { spec };
            let spec = if paced.is_slowed { spec.for_successors() } else { spec };
            let spec = if delivery.is_piece { spec.without_successor() } else { spec };
            let line = paced.plan.as_ref().and_then(|plan| plan.line.as_ref());
            let spec = line.into_iter().fold(spec, |spec, line| spec.by_line(broker, line));
            spec.within_share(&viewer)
        };
        let specs: Vec<_> = delivery.paces.iter().map(spec).collect();
        self.address(&mut delivery.head);
        let words = |paced: &PlannedPace| {
            let head = delivery.head.clone().with("Tactus-Rate", rate::in_words(paced));
            head.head(manner.version, manner.afterwards, SystemTime::now())
        };
        let status = delivery.head.status();
        let (mut is_announced, mut has_waited) = (false, false);
        let admitted = match broker.admit_or_succeed(&specs, delivery.overlap) {
            Ok(Admission::Granted(nth, grant)) => Ok((nth, grant)),
            Ok(Admission::Waits(succession)) => {
                has_waited = true;
                // A player that seeks closes its stream before when it has this head.
                if succession.is_open() && delivery.overlap == Overlap::Likely {
                    is_announced = true;
                    self.site.counters.answered(status);
                    exchange.answered(status);
                    if !self.write(&mut socket, &words(&delivery.paces[0])).await {
                        return None;
                    }
                }
                succession.admit(broker, &specs).await
            }
            Err(refusal) => Err(refusal),
        };
        let (nth, mut grant) = match admitted {
            Ok(granted) => granted,
            // The end of the connection shows the client that the content is missing.
            Err(_) if is_announced => return None,
            Err(refusal) => {
                return self.send(socket, refused(&refusal), manner, exchange).await;
            }
        };
        let paced = &delivery.paces[nth];
        let (mut pace, mut plan) = (paced.pace, paced.plan.clone());
        let mut renewal = delivery.renewal.take().and_then(|renewal| match renewal.reason {
            RenewalReason::Index => Some(renewal),
            _ if !paced.is_slowed => None,
            _ if has_waited => Some(Renewal { reason: RenewalReason::OwnRoom, ..renewal }),
            _ => Some(renewal),
        });
        exchange.paced(pace);
        let mut words = if is_announced { Vec::new() } else { words(paced) };
        if !is_announced {
            self.site.counters.answered(status);
            exchange.answered(status);
        }
        if let Some(follows) = delivery.follows {
            if !self.write(&mut socket, &words).await {
                return None;
            }
            if follows == ContentEnd::UntilClosed {
                socket.reset_at_close().ok()?;
            }
            let engines = prepare(socket, pace).ok()?;
            let output = Output::connection(engines);
            let delivered = grant.follow(&delivery.title, 0, output).await;
            exchange.delivered(&delivered);
            return match (delivered.outcome, delivered.socket) {
                (Outcome::Complete, Some(socket)) if follows != ContentEnd::UntilClosed => {
                    Transport::from_engine(kind, socket).ok()
                }
                (Outcome::Complete, Some(socket)) => {
                    // The end of the connection is the regular end of this content.
                    let socket = Transport::from_engine(kind, socket).ok()?;
                    socket.end_at_close().ok()?;
                    Box::pin(linger(socket, &self.site, UnreadInput::Little)).await;
                    None
                }
                _ => None,
            };
        }
        for (before, part) in delivery.parts {
            words.extend(before);
            if !self.write(&mut socket, &words).await {
                return None;
            }
            words.clear();
            let mut left = part.start..broker.readable(&delivery.title, &part);
            while !left.is_empty() {
                let engines = prepare(socket, pace).ok()?;
                let title = &delivery.title;
                let output = Output::connection(engines);
                // Behind an unreadable place bytes come at the granted rate.
                let source = broker::Source::planned(left.clone(), plan.take());
                let mut running = match grant.start(title, source, output).await {
                    Ok(running) => running,
                    Err(failed) => {
                        exchange.delivered(&failed);
                        return None;
                    }
                };
                let renewed = async {
                    match &renewal {
                        Some(renewal) => {
                            let from = (&store.catalogue, broker);
                            renewal.rest(from, title, left.clone(), grant.slot(), &viewer).await
                        }
                        None => std::future::pending().await,
                    }
                };
                let (delivered, rest) = tokio::select! {
                    delivered = running.ended() => (delivered, None),
                    rest = renewed => (running.interrupted().await, Some(rest)),
                };
                exchange.delivered(&delivered);
                if let Some(rest) = rest
                    && delivered.outcome == Outcome::Stopped
                {
                    left.start += delivered.sent;
                    plan = rest.plan(left.start);
                    (grant, pace, renewal) = (rest.grant, rest.pace, None);
                    socket = Transport::from_engine(kind, delivered.socket?).ok()?;
                    continue;
                }
                if delivered.outcome == Outcome::TooSlow {
                    self.abused(Abuse::SlowReader);
                }
                left = match (delivered.outcome, delivered.readable_to) {
                    (Outcome::Complete, _) => left.end..left.end,
                    // Sends the bytes before the unreadable place. This ends, because each place is
                    // before the last one.
                    (Outcome::Unreadable { .. }, Some(end)) if end < left.end => {
                        let at = left.start + delivered.sent;
                        at..end.max(at)
                    }
                    // The content is shorter than announced: closing the connection shows this to
                    // an HTTP/1.1 client.
                    _ => return None,
                };
                socket = Transport::from_engine(kind, delivered.socket?).ok()?;
            }
            if left.end < part.end {
                Box::pin(linger(socket, &self.site, UnreadInput::Little)).await;
                return None;
            }
        }
        drop(grant);
        words.extend(delivery.tail);
        self.write(&mut socket, &words).await.then_some(socket)
    }

    /// The client for admission, with its share.
    fn viewer(&self, share: ClientShare, device: Option<Device>) -> Viewer {
        Viewer {
            device,
            party: self.party.as_deref().cloned().unwrap_or_else(|| self.client.peer.party()),
            client: self.client.to_string(),
            // A proxy that does not name its client may serve any number of clients.
            share: match self.client.peer.is_trusted(&self.site.limits.proxies)
                && self.party.is_none()
            {
                true => ClientShare::All,
                false => share,
            },
        }
    }

    /// Sends what a channel sends, until it ends. The last chunk, or the regular end of an HTTP/1.0
    /// connection, shows the client that the content is complete.
    async fn follow_channel(
        &self,
        mut socket: Transport,
        mut live: Live,
        manner: HeadContext,
        exchange: &mut Exchange,
    ) -> Option<Transport> {
        let store = self.site.store.as_ref()?;
        let viewer = self.viewer(store.rates.title.client_share, None);
        let listening = match live.channels.listen(&live.name, &viewer) {
            Ok(listening) => listening,
            Err(error) => return self.send(socket, live::refusal(&error), manner, exchange).await,
        };
        let pace = Pace::Paced { rate: listening.reserved(), burst: Bytes(0), tick: Tick::Ms10 };
        let is_chunked = manner.version == Version::Http11;
        self.address(&mut live.head);
        self.site.counters.answered(live.head.status());
        exchange.answered(live.head.status());
        exchange.paced(pace);
        let head = live.head.head(manner.version, manner.afterwards, SystemTime::now());
        if !self.write(&mut socket, &head).await {
            return None;
        }
        if !is_chunked {
            socket.reset_at_close().ok()?;
        }
        let kind = socket.kind();
        let output = Output::connection(prepare(socket, pace).ok()?);
        let framing = if is_chunked { Framing::Chunked } else { Framing::Plain };
        let delivered = listening.deliver(output, framing).await;
        exchange.delivered(&delivered);
        if delivered.outcome == Outcome::TooSlow {
            self.abused(Abuse::SlowReader);
        }
        let socket = delivered.socket.filter(|_| delivered.outcome == Outcome::Complete)?;
        let mut socket = Transport::from_engine(kind, socket).ok()?;
        if is_chunked {
            return self.write(&mut socket, b"0\r\n\r\n").await.then_some(socket);
        }
        socket.end_at_close().ok()?;
        Box::pin(linger(socket, &self.site, UnreadInput::Little)).await;
        None
    }

    async fn write(&self, socket: &mut Transport, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return true;
        }
        match timeout(self.site.limits.answer_time, socket.write_all(bytes)).await {
            Ok(written) => written.is_ok(),
            Err(_) => {
                self.abused(Abuse::SlowReader);
                false
            }
        }
    }

    fn abused(&self, abuse: Abuse) {
        self.site.abused(self.client, abuse);
    }
}

/// The next step of the connection.
enum NextStep {
    /// Answer, perhaps for the last time.
    Answer(Option<Persistence>),
    Fault(Fault),
    Disconnected,
}

/// Detaches the socket from the control side, ready for the link.
fn prepare(socket: Transport, pace: Pace) -> io::Result<OwnedFd> {
    let not_sent_max = match pace {
        Pace::Paced { rate, burst, tick } => {
            let due = rate.bytes_in(tick.span().times(2)).0.max(burst.0);
            Some(due.clamp(NOT_SENT_MIN, NOT_SENT_MAX) as u32)
        }
        Pace::BestEffort => None,
    };
    socket.into_engine(not_sent_max)
}

/// The answer if there is no memory for another long answer.
fn busy() -> Response {
    Response::text(503, "the limit of large responses in progress is reached; try again shortly")
        .with("Retry-After", "1")
}

/// Memory of an answer in parts, in bytes: names of a directory, a part, and its text.
const PARTS_MEMORY: u32 = 2 << 20;

/// With [`PARTS_PER_TIME`], the limit for slow readers: 32 KiB/s.
const PARTS_TIME: Duration = Duration::from_secs(1);
/// See [`PARTS_TIME`].
const PARTS_PER_TIME: usize = 32 * KIB as usize;

/// Answers up to this length in bytes are always sent: they fit beside the buffers of their
/// connection.
const SHORT_ANSWER: usize = 16 * KIB as usize;

/// Below this many bytes in the kernel, a late wake-up of the engine empties the socket.
const NOT_SENT_MIN: u64 = 128 * KIB;

/// Above this many bytes in the kernel, a slow peer is detected late.
const NOT_SENT_MAX: u64 = MIB;

/// How long a new connection may still send its first request after the server began to stop. Its
/// client cannot detect the stop. When the listening socket outlives the server, the request would
/// be lost.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(1);

/// Waits until the connection accepts no further request: at the stop of the server, or
/// [`FIRST_REQUEST_GRACE`] later on a connection without a request yet.
async fn wait_for_stop(stop: &mut StopSignal, wait: WaitFor) {
    stop.wait().await;
    if wait == WaitFor::First {
        // Boxed, to keep an idle connection's future small.
        Box::pin(tokio::time::sleep(FIRST_REQUEST_GRACE)).await;
    }
}

/// Closes a connection so that the answer reaches the client: the kernel would discard the answer
/// if unread bytes were left (RFC 9112 section 9.6).
pub(super) async fn linger(mut socket: Transport, site: &Site, to_come: UnreadInput) {
    if socket.shutdown().await.is_err() {
        return;
    }
    let limits = &site.limits;
    let (time, mut left, silence, space) = match to_come {
        UnreadInput::Little => {
            (limits.linger_time, limits.linger_bytes_max, limits.linger_time, READ_BYTES)
        }
        UnreadInput::Body => (
            limits.linger_body_time,
            limits.linger_body_bytes_max,
            limits.linger_body_silence,
            DISCARD_BYTES,
        ),
    };
    let mut end = Instant::now() + time;
    let mut stop = site.stopping();
    let mut stops = false;
    // On the heap: on the stack it would enlarge every connection's task from the start.
    let mut thrown_away = vec![0; space];
    while left > 0 {
        let until = end.min(Instant::now() + silence);
        tokio::select! {
            read = timeout_at(until, socket.read(&mut thrown_away)) => match read {
                Ok(Ok(read @ 1..)) => left = left.saturating_sub(read as u64),
                Ok(Ok(0) | Err(_)) | Err(_) => return,
            },
            () = stop.wait(), if !stops => {
                stops = true;
                end = end.min(Instant::now() + limits.linger_time);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counters, Limits};

    #[tokio::test]
    async fn a_connection_that_waits_costs_little() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = listener.local_addr().unwrap();
        let socket = tokio::net::TcpStream::connect(peer).await.unwrap();
        let socket = Transport::Tcp(socket);
        let site = Site::new(Limits::default(), Arc::new(Counters::default()), None, Arc::new(()));
        let task = serve(Arc::new(site), socket, peer.into(), Preamble::WithRequest);
        assert!(size_of_val(&task) <= 2048, "{} bytes of task", size_of_val(&task));
    }
}
