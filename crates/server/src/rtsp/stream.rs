//! What a session sends: begun, stopped and moved by orders, one at a time.
//!
//! Promise: the receiver sees one RTP stream, whatever is ordered: numbers go on with the datagrams that have left,
//! timestamps with the time (RFC 2326, appendix B). What was paused goes on with the very next byte. The grant goes back when nobody can
//! order any more.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tactus_core::datagrams::{Form, PAYLOAD, Session};
use tactus_core::rtp::rtcp::{Compound, Timeline};
use tactus_core::rtsp::session::SessionId;
use tactus_core::units::{MediaTime, MonoTime, Nanos, WallTime};
use tactus_engine::message::Outcome;
use tokio::sync::{mpsc, oneshot};

use super::describe::{Part, Place, Programme};
use super::ports::Pair;
use super::reports::Sent;
use super::{House, Status};
use crate::broker::{Broker, Grant, Outlet, Target};

/// What is to be done.
pub(super) enum Order {
    Play { part: Part, begun: oneshot::Sender<Option<Begun>> },
    Pause { done: oneshot::Sender<()> },
}

/// What is played now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Begun {
    pub(super) from: MediaTime,
    pub(super) to: MediaTime,
    /// Of the first packet.
    pub(super) sequence: u16,
    /// Of the first packet.
    pub(super) timestamp: u32,
}

/// A stream as it is known to others. It ends when this is dropped.
pub(super) struct Handle {
    pub(super) orders: mpsc::Sender<Order>,
    pub(super) programme: Arc<Programme>,
    /// Where RTP goes.
    pub(super) to: SocketAddr,
    /// Where reports come to, and from where.
    pub(super) reports: Option<(Arc<Pair>, SocketAddr)>,
    pub(super) principal: Option<String>,
    /// As it was answered.
    pub(super) transport: String,
    pub(super) place: u32,
}

/// What a stream is made of.
pub(super) struct Stream {
    pub(super) house: Weak<House>,
    pub(super) id: SessionId,
    pub(super) broker: Broker,
    pub(super) programme: Arc<Programme>,
    pub(super) grant: Grant,
    pub(super) outlet: Outlet,
    pub(super) to: SocketAddr,
    pub(super) burst: Nanos,
    pub(super) reports: Option<(Arc<Pair>, SocketAddr)>,
    pub(super) numbers: Numbers,
    /// In earlier parts.
    pub(super) sent: Sent,
}

/// The numbers of RTP over everything that a session sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Numbers {
    pub(super) source: u32,
    /// Of the next packet.
    sequence: u16,
    /// At `epoch`.
    timestamp: u32,
    epoch: MonoTime,
}

impl Numbers {
    /// The law of the timestamps, as long as nothing has been sent.
    pub(super) fn timeline(&self) -> Timeline {
        Timeline { epoch: self.epoch, base: self.timestamp }
    }

    /// As `bits` have it (RFC 3550, section 5.1: at random).
    pub(super) fn new(bits: [u8; 10], now: MonoTime) -> Self {
        let [a, b, c, d, e, f, g, h, i, j] = bits;
        Self {
            source: u32::from_be_bytes([a, b, c, d]),
            timestamp: u32::from_be_bytes([e, f, g, h]),
            sequence: u16::from_be_bytes([i, j]),
            epoch: now,
        }
    }

    /// Those of a packet that leaves now.
    pub(super) fn begin(&self, now: MonoTime) -> Session {
        let ticks = u128::from(now.since(self.epoch).0) * 9 / 100_000;
        let timestamp = self.timestamp.wrapping_add(ticks as u32);
        Session { source: self.source, sequence: self.sequence, timestamp }
    }

    /// So many bytes have left in datagrams.
    fn go_on(&mut self, sent: u64) {
        self.sequence = self.sequence.wrapping_add(sent.div_ceil(PAYLOAD.0) as u16);
    }
}

/// Orders that may wait: a connection gives one at a time, and a session may have several.
const ORDERS_MAX: usize = 4;
/// How often receivers are told what has been sent (RFC 3550, section 6.2: 5 s at least on average).
const REPORT_EACH: Duration = Duration::from_secs(5);
/// After the last packet has left it is on its way for a while; the goodbye must not overtake it.
const GOODBYE_AFTER: Duration = Duration::from_millis(200);

pub(super) fn orders() -> (mpsc::Sender<Order>, mpsc::Receiver<Order>) {
    mpsc::channel(ORDERS_MAX)
}

impl Stream {
    /// Does what is ordered until nobody can order any more.
    pub(super) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut position = self.programme.bytes.start;
        let mut next = orders.recv().await;
        while let Some(order) = next {
            next = match order {
                Order::Pause { done } => {
                    // Who asked may have gone.
                    done.send(()).ok();
                    orders.recv().await
                }
                Order::Play { part, begun } => {
                    let from = self.from(part.from, position).await;
                    if from.is_none_or(|from| from.at >= part.to.at) {
                        begun.send(None).ok();
                        self.rest();
                        orders.recv().await
                    } else {
                        let from = from.expect("it is there");
                        self.play(from, &part, begun, &mut orders, &mut position).await
                    }
                }
            };
        }
    }

    async fn from(&self, asked: Option<Place>, position: u64) -> Option<Place> {
        match asked {
            Some(from) => Some(from),
            // After its end it begins again.
            None if position >= self.programme.bytes.end => Some(self.programme.beginning()),
            None => Some(self.house.upgrade()?.place(&self.programme, position).await),
        }
    }

    /// Plays until the end or the next order, which it gives back.
    async fn play(
        &mut self,
        from: Place,
        part: &Part,
        begun: oneshot::Sender<Option<Begun>>,
        orders: &mut mpsc::Receiver<Order>,
        position: &mut u64,
    ) -> Option<Order> {
        if let Some(house) = self.house.upgrade() {
            house.sessions().handle_begin(self.id);
        }
        let session = self.numbers.begin(tactus_sys::clock::now());
        let Session { sequence, timestamp, .. } = session;
        let to = part.to;
        begun.send(Some(Begun { from: from.time, to: to.time, sequence, timestamp })).ok();
        let range = from.at..to.at;
        let plan = match self.house.upgrade() {
            Some(house) => house.plan(&self.programme, &range, &part.front).await,
            None => None,
        };
        let front = plan.as_ref().map_or(0, |plan| plan.front.len() as u64);
        let (form, burst) = (Form::Rtp(session), self.burst);
        let outlet = Arc::clone(&self.outlet);
        let target = Target { outlet, to: self.to, form, burst, after: None, plan };
        let mut last = self.sent;
        let place = self.grant.place();
        let sending = self.broker.send_until(
            &mut self.grant,
            &self.programme.title,
            range,
            target,
            orders.recv(),
        );
        let mut sending = Box::pin(sending);
        let (outcome, sent, order) = loop {
            tokio::select! {
                biased;
                ended = &mut sending => break ended,
                () = tokio::time::sleep(REPORT_EACH) => {
                    let Some(now) = sent_now(&self.broker, place, self.sent, session) else { continue };
                    last = now;
                    report(self.reports.as_ref(), |now, wall| last.report(now, wall));
                }
            }
        };
        drop(sending);
        self.sent.timeline = last.timeline;
        // What stood in front has left with the first of it.
        let left = if sent > 0 { front + sent } else { 0 };
        self.sent.packets += left.div_ceil(PAYLOAD.0);
        self.sent.bytes += left;
        self.numbers.go_on(left);
        *position = from.at + sent;
        match order {
            Some(order) => order,
            None => {
                match outcome {
                    Outcome::Complete => {
                        tracing::debug!(session = ?self.id, "it has come to its end")
                    }
                    outcome => tracing::warn!(session = ?self.id, ?outcome, "it ended early"),
                }
                self.rest();
                tokio::time::sleep(GOODBYE_AFTER).await;
                let sent = self.sent;
                report(self.reports.as_ref(), |now, wall| sent.goodbye(now, wall));
                orders.recv().await
            }
        }
    }

    /// Nothing is sent any more.
    fn rest(&self) {
        if let Some(house) = self.house.upgrade() {
            house.sessions().handle_end(self.id);
        }
    }
}

/// What has left by now; none before the first packet has.
fn sent_now(broker: &Broker, place: u32, before: Sent, session: Session) -> Option<Sent> {
    let counters = broker.counters_of(place)?;
    let epoch = MonoTime(counters.epoch.value());
    (epoch != MonoTime(0)).then(|| Sent {
        source: session.source,
        timeline: Timeline { epoch, base: session.timestamp },
        packets: before.packets + counters.session_packets.value(),
        bytes: before.bytes + counters.session_bytes.value(),
    })
}

/// Sends what `made` makes of the time to who hears reports.
fn report(
    reports: Option<&(Arc<Pair>, SocketAddr)>,
    made: impl FnOnce(MonoTime, WallTime) -> Compound,
) {
    let Some((pair, to)) = reports else { return };
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let wall = WallTime(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
    pair.report(*to, &made(tactus_sys::clock::now(), wall).into_bytes());
}

impl Handle {
    pub(super) fn status(&self, id: SessionId, state: &'static str, broker: &Broker) -> Status {
        let counters = broker.counters_of(self.place);
        Status {
            session: format!("{id:?}"),
            title: self.programme.shown(),
            to: self.to.to_string(),
            state,
            principal: self.principal.clone(),
            set_rate_bits_per_second: self.programme.rate.0,
            sent_bytes: counters.map_or(0, |each| each.bytes.value()),
            underruns: counters.map_or(0, |each| each.underruns.value()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::SECOND;

    #[test]
    fn numbers_go_on_over_pauses() {
        let start = MonoTime(5);
        let mut numbers = Numbers::new([0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], start);
        let first = numbers.begin(start);
        assert_eq!(first, Session { source: 7, sequence: 65535, timestamp: u32::MAX });
        numbers.go_on(2 * PAYLOAD.0 + 188);
        let next = numbers.begin(start + SECOND);
        assert_eq!(next, Session { source: 7, sequence: 2, timestamp: 89_999 });
    }
}
