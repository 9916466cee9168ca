//! The stream of a session of a transport stream: started, stopped and moved by orders, one at a
//! time.
//!
//! Promise: the receiver sees one RTP stream. Sequence numbers continue with the sent datagrams,
//! and timestamps with the time (RFC 2326, appendix B). Continuity counters continue over seeks and
//! changes of scale, and each jump is marked. PLAY after PAUSE goes on with the next byte. The
//! reservation is released when the last sender of orders is dropped.

mod scaled;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tactus_control::broker::{Broker, Grant, Refusal, Source};
use tactus_control::trick;
use tactus_core::datagrams::{Counting, FinalCounters, Framing, PAYLOAD, Plan, Session};
use tactus_core::rtp::rtcp::{Compound, Timeline};
use tactus_core::rtsp::session::SessionId;
use tactus_core::ts::{Count, TableCount};
use tactus_core::units::{Bytes, MediaTime, MonoTime, WallTime};
use tactus_engine::message::{Extent, Outcome};
use tactus_storage::warnings;
use tokio::sync::{mpsc, oneshot, watch};

use super::describe::{Part, ScaledPlay, TitlePosition, TsTitle};
use super::ended::{EndReporter, Ending};
use super::play_record::PlayRecord;
use super::ports::Pair;
use super::reports::{SenderState, now_and_wall};
use super::transport::{RtpTransport, report_frame as frame};
use super::unplayed::UnplayedReservation;
use super::{Server, Status};

/// An order to a stream.
pub(super) enum Order {
    Play {
        part: Part,
        begun: oneshot::Sender<Result<PlayStart, PlayError>>,
        reporter: Option<EndReporter>,
    },
    Trick {
        shown: ScaledPlay,
        begun: oneshot::Sender<Result<PlayStart, trick::Fault>>,
        reporter: Option<EndReporter>,
    },
    /// Returns the position of the pause.
    Pause { done: oneshot::Sender<u64> },
    /// A message between the frames of a connection.
    Text(Box<[u8]>),
}

/// Why a PLAY failed.
#[derive(Debug)]
pub(super) enum PlayError {
    /// Playback has already passed the end of the range.
    Behind,
    /// The unplayed reservation was released, and there is no room now.
    NoRoom(Refusal),
}

/// A started PLAY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PlayStart {
    pub(super) from: MediaTime,
    pub(super) to: MediaTime,
    /// The SSRC.
    pub(super) source: u32,
    /// The sequence number of the first packet.
    pub(super) sequence: u16,
    /// The timestamp of the first packet.
    pub(super) timestamp: u32,
}

/// The shared handle of a stream. The stream ends when this is dropped.
pub(super) struct Handle {
    pub(super) orders: mpsc::Sender<Order>,
    /// Dropping it ends the session, even if senders of orders exist.
    pub(super) _over: watch::Sender<()>,
    /// The connection that carries it; `None` for datagrams.
    pub(super) connection: Option<u64>,
    pub(super) ts_title: Arc<TsTitle>,
    /// The destination of RTP.
    pub(super) to: SocketAddr,
    /// The pair and the address of receiver reports.
    pub(super) reports: Option<(Arc<Pair>, SocketAddr)>,
    pub(super) principal: Option<String>,
    /// The Transport header of the answer.
    pub(super) transport: String,
    /// Index in the delivery table; [`NOWHERE`] while nothing is reserved.
    pub(super) slot: Arc<AtomicU32>,
    /// Closed when the stream has ended and its resources are free; a connection has its own
    /// signal.
    pub(super) left: Option<oneshot::Receiver<()>>,
}

/// The parts of a stream.
pub(super) struct Stream {
    pub(super) server: Weak<Server>,
    pub(super) id: SessionId,
    pub(super) broker: Broker,
    pub(super) ts_title: Arc<TsTitle>,
    /// `None` if the reservation was released before PLAY.
    pub(super) grant: Option<Grant>,
    /// The shared index of the delivery table.
    pub(super) slot: Arc<AtomicU32>,
    /// The reservation that counts against its address until PLAY.
    pub(super) unplayed: Option<UnplayedReservation>,
    pub(super) path: RtpTransport,
    pub(super) numbers: Numbers,
    /// Packets and bytes of earlier PLAYs.
    pub(super) sent: SenderState,
    /// The current continuity counters.
    pub(super) counts: Vec<Count>,
    /// The current table versions.
    pub(super) tables: Vec<TableCount>,
    /// The last sent bytes are not those before the position.
    pub(super) is_elsewhere: bool,
    /// Dropped at the end, when all other resources are released.
    pub(super) done: oneshot::Sender<()>,
}

/// The receiving side of orders.
pub(super) struct Orders {
    orders: mpsc::Receiver<Order>,
    over: watch::Receiver<()>,
}

/// The result of a PLAY.
struct PlayResult {
    outcome: Outcome,
    sent: u64,
    timeline: Option<Timeline>,
    /// The order that ended it; `None` if it ended by itself.
    order: Option<Option<Order>>,
}

impl PlayResult {
    fn failed(outcome: Outcome) -> Self {
        Self { outcome, sent: 0, timeline: None, order: None }
    }
}

/// Bytes of a title as RTP.
fn blocks(range: Range<u64>, session: Session, plan: Option<Arc<Plan>>) -> Source {
    let extent = Extent::Range(Bytes(range.start)..Bytes(range.end));
    Source::Blocks { extent, framing: Framing::Rtp(session), plan }
}

/// The numbers of RTP over everything that a session sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Numbers {
    pub(super) source: u32,
    /// The sequence number of the next packet.
    sequence: u16,
    /// The timestamp at `epoch`.
    timestamp: u32,
    epoch: MonoTime,
    /// Lower bound of the next timestamp after the first packet: on a connection timestamps run
    /// ahead of the time by part of a tick.
    least: Option<u32>,
}

impl Numbers {
    /// The mapping of time to timestamps before the first packet.
    pub(super) fn timeline(&self) -> Timeline {
        Timeline { epoch: self.epoch, base: self.timestamp }
    }

    /// Random initial numbers out of `bits` (RFC 3550, section 5.1).
    pub(super) fn new(bits: [u8; 10], now: MonoTime) -> Self {
        let [a, b, c, d, e, f, g, h, i, j] = bits;
        Self {
            source: u32::from_be_bytes([a, b, c, d]),
            timestamp: u32::from_be_bytes([e, f, g, h]),
            sequence: u16::from_be_bytes([i, j]),
            epoch: now,
            least: None,
        }
    }

    /// The numbers of a packet that leaves now.
    pub(super) fn begin(&self, now: MonoTime) -> Session {
        let ticks = u128::from(now.since(self.epoch).0) * 9 / 100_000;
        let timestamp = self.timestamp.wrapping_add(ticks as u32);
        // RFC 2326, appendix B: monotonic over jumps. Modular comparison: half of all values are
        // ahead.
        let is_ahead = |least: &u32| least.wrapping_sub(timestamp) < 1 << 31;
        let timestamp = self.least.filter(is_ahead).unwrap_or(timestamp);
        Session { source: self.source, sequence: self.sequence, timestamp }
    }

    /// The numbers of the last packet of the only track.
    fn last(&self) -> (u32, u32, u16) {
        (1, self.source, self.sequence.wrapping_sub(1))
    }

    /// Continues after `sent` bytes in datagrams; `next` is the timestamp of the datagram after
    /// them.
    fn go_on(&mut self, sent: u64, next: Option<u32>) {
        if sent > 0 {
            self.least = next;
        }
        self.sequence = self.sequence.wrapping_add(sent.div_ceil(PAYLOAD.0) as u16);
    }
}

/// No index of the delivery table.
pub(super) const NOWHERE: u32 = u32::MAX;
/// A reservation of SETUP is released after this time without PLAY. Players play at once; a later
/// PLAY is admitted again.
const UNPLAYED_MAX: Duration = Duration::from_secs(5);
/// Queued orders: a connection sends one at a time, and several connections may share a session.
const ORDERS_MAX: usize = 4;
/// Interval of sender reports (RFC 3550, section 6.2: 5 s on average at least).
const REPORT_EACH: Duration = Duration::from_secs(5);
/// The last packets are still on their way; BYE must not overtake them.
const GOODBYE_AFTER: Duration = Duration::from_millis(200);

pub(super) fn orders() -> (mpsc::Sender<Order>, watch::Sender<()>, Orders) {
    let (give, orders) = mpsc::channel(ORDERS_MAX);
    let (end, over) = watch::channel(());
    (give, end, Orders { orders, over })
}

impl Stream {
    /// Executes orders until the last sender is dropped.
    pub(super) async fn run(mut self, mut orders: Orders) {
        let mut position = self.ts_title.bytes.start;
        let mut next = match tokio::time::timeout(UNPLAYED_MAX, orders.next()).await {
            Ok(next) => next,
            Err(_) => {
                self.release().await;
                orders.next().await
            }
        };
        while let Some(order) = next {
            next = match order {
                Order::Pause { done } => {
                    // The receiver of the answer may be closed.
                    done.send(position).ok();
                    orders.next().await
                }
                Order::Text(text) => {
                    self.say(&text).await;
                    orders.next().await
                }
                Order::Trick { shown, begun, reporter } => {
                    let began = (begun, reporter);
                    self.trick(shown, began, &mut orders, &mut position).await
                }
                Order::Play { part, begun, reporter } => {
                    let from = self.from(part.from, position).await;
                    if from.is_none_or(|from| from.at >= part.to.at) {
                        begun.send(Err(PlayError::Behind)).ok();
                        self.rest();
                        orders.next().await
                    } else {
                        let from = from.expect("it is there");
                        let began = (begun, reporter);
                        self.play((from, &part), began, &mut orders, &mut position).await
                    }
                }
            };
            if matches!(&self.path, RtpTransport::Interleaved(path) if path.is_broken) {
                break;
            }
        }
        self.release().await;
        let Self { path, done, .. } = self;
        drop(path);
        drop(done);
    }

    /// Releases the reservation.
    async fn release(&mut self) {
        self.unplayed = None;
        self.slot.store(NOWHERE, Ordering::Relaxed);
        if let Some(grant) = self.grant.take() {
            grant.retire().await;
        }
    }

    /// Reserves the resources of a PLAY, unless they are reserved.
    fn admit(&mut self, session: Session) -> Result<(), Refusal> {
        self.unplayed = None;
        if self.grant.is_some() {
            return Ok(());
        }
        let spec = self.path.spec(&self.broker, &self.ts_title, session);
        let grant = self.broker.admit(&spec)?;
        self.slot.store(grant.slot(), Ordering::Relaxed);
        self.grant = Some(grant);
        Ok(())
    }

    async fn from(&self, asked: Option<TitlePosition>, position: u64) -> Option<TitlePosition> {
        match asked {
            Some(from) => Some(from),
            // After the end it starts from the beginning.
            None if position >= self.ts_title.bytes.end => Some(self.ts_title.beginning()),
            None => Some(self.server.upgrade()?.place(&self.ts_title, position).await),
        }
    }

    /// Plays until the end or until the next order, which it returns.
    async fn play(
        &mut self,
        (from, part): (TitlePosition, &Part),
        (begun, reporter): (oneshot::Sender<Result<PlayStart, PlayError>>, Option<EndReporter>),
        orders: &mut Orders,
        position: &mut u64,
    ) -> Option<Order> {
        let session = self.numbers.begin(tactus_sys::clock::now());
        if let Err(refusal) = self.admit(session) {
            self.rest();
            begun.send(Err(PlayError::NoRoom(refusal))).ok();
            return orders.next().await;
        }
        if let Some(server) = self.server.upgrade() {
            server.sessions().handle_begin(self.id);
        }
        let Session { source, sequence, timestamp } = session;
        let to = part.to;
        begun
            .send(Ok(PlayStart { from: from.time, to: to.time, source, sequence, timestamp }))
            .ok();
        let range = from.at..to.at;
        self.is_elsewhere |= part.from.is_some() || from.at != *position;
        let jumps = !self.counts.is_empty() && self.is_elsewhere;
        let kept = Arc::new(FinalCounters::default());
        let before = self.counts.as_slice().into();
        let tables = self.tables.as_slice().into();
        let counting = Counting { before, tables, jumps, kept: Arc::clone(&kept) };
        let plan = match self.server.upgrade() {
            Some(server) => Some(server.plan(&self.ts_title, &range, &part.front, counting).await),
            None => None,
        };
        let front = plan.as_ref().map_or(0, |plan| plan.front.len() as u64);
        let record = self.record();
        if let RtpTransport::Interleaved(_) = &self.path {
            // The answer goes before the first frame: players discard frames before it.
            match orders.next().await {
                Some(Order::Text(answer)) => self.say(&answer).await,
                order => return order,
            }
        }
        let PlayResult { outcome, sent, timeline, order } =
            self.send((range, plan), session, orders).await;
        if let Some(timeline) = timeline {
            self.sent.timeline = timeline;
        }
        let late = self.broker.late(self.slot.load(Ordering::Relaxed));
        record.log(outcome.name(), sent, late);
        // The tables in front have left with the first bytes.
        let bare = self.ts_title.packets.bare(Bytes(sent)).0;
        let left = if sent > 0 { front + bare } else { 0 };
        self.sent.packets += left.div_ceil(PAYLOAD.0);
        self.sent.bytes += left;
        self.numbers.go_on(left, kept.ticks().map(|ticks| timestamp.wrapping_add(ticks)));
        *position = from.at + sent;
        self.is_elsewhere &= left == 0;
        let (counts, tables) = (kept.counts(), kept.tables());
        if !counts.is_empty() {
            (self.counts, self.tables) = (counts, tables);
        }
        match order {
            Some(order) => order,
            None => {
                match outcome {
                    Outcome::Complete => {
                        tracing::debug!(session = ?self.id, "the title has been sent")
                    }
                    outcome => {
                        // Rate-limited: a client can cause this repeatedly.
                        if let Some(left_out) = warnings::poll("rtsp ended early", outcome.name()) {
                            tracing::warn!(
                                session = ?self.id, ?outcome, left_out,
                                "sending ended before the end of the title"
                            );
                        }
                    }
                }
                self.rest();
                if let Some(reporter) = reporter {
                    let is_whole = outcome == Outcome::Complete;
                    let at = match is_whole {
                        true => to.time,
                        false => self.time(*position).await.unwrap_or(from.time),
                    };
                    let last = (left > 0).then(|| self.numbers.last());
                    reporter.tell(Ending { is_whole, at, scale: None, last: Vec::from_iter(last) });
                }
                self.say_goodbye().await;
                orders.next().await
            }
        }
    }

    /// The log record of a starting PLAY.
    fn record(&self) -> PlayRecord {
        PlayRecord::begin(self.id, self.ts_title.shown(), self.ts_title.rate)
    }

    async fn send(
        &mut self,
        (range, plan): (Range<u64>, Option<Arc<Plan>>),
        session: Session,
        orders: &mut Orders,
    ) -> PlayResult {
        let Ok(output) = self.path.output() else {
            return PlayResult::failed(Outcome::PeerGone(libc::EMFILE));
        };
        let grant = self.grant.as_mut().expect("it was admitted");
        let slot = grant.slot();
        let source = blocks(range, session, plan);
        let mut running = match grant.start(&self.ts_title.title, source, output).await {
            Ok(running) => running,
            Err(ended) => return PlayResult::failed(ended.outcome),
        };
        let interleaver = running.interleaver();
        let is_interleaved = matches!(self.path, RtpTransport::Interleaved(_));
        let mut timeline = None;
        let (ended, left, order) = loop {
            tokio::select! {
                biased;
                ended = running.ended() => break (ended, None, None),
                order = orders.next() => match order {
                    Some(Order::Text(text)) if is_interleaved => {
                        if let Err(text) = interleaver.send(text).await {
                            break (running.ended().await, Some(text), None);
                        }
                    }
                    order => {
                        running.stop();
                        break (running.ended().await, None, Some(order));
                    }
                },
                () = tokio::time::sleep(REPORT_EACH) => {
                    let Some(now) = sent_now(&self.broker, slot, self.sent, session) else {
                        continue;
                    };
                    timeline = Some(now.timeline);
                    let bytes = report_now(|time, wall| now.report(time, wall));
                    match &self.path {
                        RtpTransport::Udp(path) => path.listeners.report(&bytes),
                        // Not awaited: the report may wait for the frame in progress.
                        RtpTransport::Interleaved(path) => {
                            drop(interleaver.send(frame(path.channels.1, &bytes)));
                        }
                    }
                }
            }
        };
        if let RtpTransport::Interleaved(path) = &mut self.path
            && ended.socket.is_none()
        {
            path.is_broken = true;
        } else if let Some(text) = left {
            self.say(&text).await;
        }
        PlayResult { outcome: ended.outcome, sent: ended.sent, timeline, order }
    }

    /// Writes to the connection while no frames are sent.
    async fn say(&mut self, text: &[u8]) {
        if let RtpTransport::Interleaved(path) = &mut self.path {
            path.say(text).await;
        }
    }

    async fn say_goodbye(&mut self) {
        let sent = self.sent;
        let bytes = report_now(|time, wall| sent.goodbye(time, wall));
        match &self.path {
            RtpTransport::Udp(path) => {
                tokio::time::sleep(GOODBYE_AFTER).await;
                path.listeners.report(&bytes);
            }
            RtpTransport::Interleaved(path) => {
                let framed = frame(path.channels.1, &bytes);
                self.say(&framed).await;
            }
        }
    }

    /// The normal play time of byte `position`.
    async fn time(&self, position: u64) -> Option<MediaTime> {
        Some(self.server.upgrade()?.place(&self.ts_title, position).await.time)
    }

    /// Marks the session as not playing.
    fn rest(&self) {
        if let Some(server) = self.server.upgrade() {
            server.sessions().handle_end(self.id);
        }
    }
}

/// The sent part so far; `None` before the first packet.
fn sent_now(
    broker: &Broker,
    slot: u32,
    before: SenderState,
    session: Session,
) -> Option<SenderState> {
    let counters = broker.counters_of(slot)?;
    let epoch = MonoTime(counters.epoch.value());
    (epoch != MonoTime(0)).then(|| SenderState {
        source: session.source,
        timeline: Timeline { epoch, base: session.timestamp },
        packets: before.packets + counters.session_packets.value(),
        bytes: before.bytes + counters.session_bytes.value(),
    })
}

/// Calls `made` with the current clocks.
fn report_now(generated: impl FnOnce(MonoTime, WallTime) -> Compound) -> Vec<u8> {
    let (now, wall) = now_and_wall();
    generated(now, wall).into_bytes()
}

impl Orders {
    /// The next order; `None` when the last sender is dropped, or when the session is over and its
    /// answers are sent.
    async fn next(&mut self) -> Option<Order> {
        tokio::select! {
            biased;
            // No value is ever sent: dropping the sender is the signal.
            _ = self.over.changed() => self.unsaid(),
            order = self.orders.recv() => order,
        }
    }

    /// An answer queued before the session ended: a client that sends PLAY and TEARDOWN at once
    /// waits for both.
    fn unsaid(&mut self) -> Option<Order> {
        std::iter::from_fn(|| self.orders.try_recv().ok())
            .find(|order| matches!(order, Order::Text(_)))
    }
}

impl Handle {
    pub(super) fn status(&self, id: SessionId, state: &'static str, broker: &Broker) -> Status {
        let counters = broker.counters_of(self.slot.load(Ordering::Relaxed));
        Status {
            session: format!("{id:?}"),
            title: self.ts_title.shown(),
            to: self.to.to_string(),
            state,
            principal: self.principal.clone(),
            set_rate_bits_per_second: self.ts_title.rate.0,
            sent_bytes: counters.map_or(0, |each| each.bytes.value()),
            underruns: counters.map_or(0, |each| each.underruns.value()),
            receivers: vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::SECOND;

    #[tokio::test]
    async fn what_was_answered_before_the_end_is_said_and_nothing_else_is_done() {
        let (give, over, mut orders) = orders();
        let (done, _) = oneshot::channel();
        assert!(give.send(Order::Pause { done }).await.is_ok());
        assert!(give.send(Order::Text(Box::from(&b"the answer to PLAY"[..]))).await.is_ok());
        drop(over);
        assert!(matches!(orders.next().await, Some(Order::Text(_))));
        assert!(orders.next().await.is_none());
    }

    #[test]
    fn numbers_go_on_over_pauses() {
        let start = MonoTime(5);
        let mut numbers = Numbers::new([0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], start);
        let first = numbers.begin(start);
        assert_eq!(first, Session { source: 7, sequence: 65535, timestamp: u32::MAX });
        numbers.go_on(2 * PAYLOAD.0 + 188, Some(80_000));
        let next = numbers.begin(start + SECOND);
        assert_eq!(next, Session { source: 7, sequence: 2, timestamp: 89_999 });
        // The last timestamp was ahead of the time.
        numbers.go_on(PAYLOAD.0, Some(90_500));
        let next = numbers.begin(start + SECOND);
        assert_eq!(next, Session { source: 7, sequence: 3, timestamp: 90_500 });
        numbers.go_on(0, None);
        assert_eq!(numbers.begin(start + SECOND.times(2)).timestamp, 179_999);
    }
}
