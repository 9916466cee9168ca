//! Deliveries that leave as datagrams.
//!
//! Promise: they are admitted by the same ledger as those into connections, with what is on the wire and
//! what datagrams cost; an outlet stays open until the engine has finished with it.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use tactus_core::classes::ClassNumber;
use tactus_core::cost::{Order, OutputCost, PacedRead, Share};
use tactus_core::datagrams::{Form, Gathering, Ip, PAYLOAD, Plan};
use tactus_core::ledger::Resource;
use tactus_core::ports::SocketHandle;
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MIB, Nanos};
use tactus_engine::counters::StreamCounters;
use tactus_engine::message::{Datagrams, Outcome, Pace, StreamId, VolumeId};
use tokio::sync::oneshot;

use super::request::{Read, Request};
use super::{Broker, Delivered, Grant, Part, Refusal, Step, Way, ended, in_class, refusal};
use crate::catalogue::OpenTitle;

/// A socket that datagrams leave by; any number of streams of one class may share it.
pub type Outlet = Arc<Door>;

/// What an outlet may hold: 25 ms of 2.5 Gbit/s, after which a link has stalled ten times over.
pub const OUTLET_BUFFER: usize = 8 * MIB as usize;
/// Where it may hold less than this, few receivers that are not there fill it: the kernel keeps 208 KiB for each
/// neighbour that it is looking for (`unres_qlen_bytes`).
pub const OUTLET_BUFFER_MIN: usize = 4 * MIB as usize;

/// A socket, and the class of the link of what leaves by it.
#[derive(Debug)]
pub struct Door {
    socket: OwnedFd,
    class: Option<ClassNumber>,
}

impl Door {
    /// An outlet of `class`; without one, of the link itself.
    #[must_use]
    pub fn of(socket: OwnedFd, class: Option<ClassNumber>) -> Outlet {
        Arc::new(Self { socket, class })
    }

    /// The same socket, for reports and announcements.
    ///
    /// # Errors
    /// When file descriptors are exhausted.
    pub fn try_clone(&self) -> std::io::Result<OwnedFd> {
        self.socket.try_clone()
    }
}

/// Where a stream of datagrams goes, and how.
#[derive(Clone, Debug)]
pub struct Target {
    /// By which socket.
    pub outlet: Outlet,
    /// Whereto.
    pub to: SocketAddr,
    /// What stands in front of each.
    pub form: Form,
    /// How long the first of several may wait for the last of them.
    pub burst: Nanos,
    /// The stream that it follows without a gap, with its numbers, counters and clocks running on.
    pub after: Option<StreamId>,
    /// What is known of its bytes and times; none when they are the title's at one rate.
    pub plan: Option<Arc<Plan>>,
}

impl Target {
    pub(super) fn output(&self) -> Datagrams {
        let Self { ref outlet, to, burst, after, .. } = *self;
        let socket = SocketHandle(outlet.socket.as_raw_fd());
        Datagrams { socket, to, burst, class: outlet.class, after }
    }

    /// The class of the link that it belongs to.
    pub(super) fn class(&self) -> Option<ClassNumber> {
        self.outlet.class
    }

    /// The rate of all that leaves, of a title of `rate`.
    fn out(&self, rate: BitRate) -> BitRate {
        self.plan.as_ref().and_then(|plan| plan.stuff).unwrap_or(rate)
    }

    /// What its packets of `rate` are on the wire.
    fn wire(&self, rate: BitRate) -> BitRate {
        let ip = if self.to.is_ipv4() { Ip::V4 } else { Ip::V6 };
        self.form.wire_rate(rate, ip)
    }
}

/// CPU time that datagrams take of the core that sends them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramCost {
    /// The first of a message, or one alone.
    pub first: Nanos,
    /// Each of those behind it.
    pub further: Nanos,
    /// How many may be one message.
    pub together_max: u64,
    /// How far the sender's turns are apart: what falls due between two leaves together in any case.
    pub tick: Nanos,
}

impl DatagramCost {
    /// Where each leaves by itself.
    pub fn each(cost: Nanos) -> Self {
        Self { first: cost, further: cost, together_max: 1, tick: Nanos::from_millis(1) }
    }

    /// What a second of `out` takes, of which what falls due within `burst` may leave as one message.
    pub fn of(&self, out: BitRate, burst: Nanos) -> Nanos {
        let datagrams = (out.0 / 8).div_ceil(PAYLOAD.0);
        let together = Gathering::of(burst, self.tick).datagrams(out);
        let messages = datagrams.div_ceil(together.clamp(1, self.together_max));
        self.first.times(messages) + self.further.times(datagrams - messages)
    }
}

impl Broker {
    /// What a datagram counts as now.
    pub fn datagram_cost(&self) -> DatagramCost {
        self.shared.book().datagram
    }

    /// Counts datagrams of newcomers as `cost`.
    pub fn count_datagrams_as(&self, cost: DatagramCost) {
        self.shared.book().datagram = cost;
    }

    /// Reserves what `title` needs to leave once at `rate`, the highest that it has, as datagrams to `target`.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    pub fn admit_datagrams(
        &self,
        title: &Arc<OpenTitle>,
        rate: BitRate,
        target: &Target,
    ) -> Result<Grant, Refusal> {
        self.admit_turns(title, rate, target, None)
    }

    /// As [`Self::admit_datagrams`], of a title that begins again after `turn` bytes.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    pub fn admit_turns(
        &self,
        title: &Arc<OpenTitle>,
        rate: BitRate,
        target: &Target,
        turn: Option<Bytes>,
    ) -> Result<Grant, Refusal> {
        let out = target.out(rate);
        let class = target.class();
        self.admit_packets(title, rate, [out, target.wire(out)], target.burst, turn, class)
    }

    /// Reserves what `title` needs to leave at `rate` as packets, whose payload is `out`, and which are `wire`
    /// with all that is in front; those of `burst` may leave together.
    pub(super) fn admit_packets(
        &self,
        title: &Arc<OpenTitle>,
        rate: BitRate,
        [out, wire]: [BitRate; 2],
        burst: Nanos,
        turn: Option<Bytes>,
        class: Option<ClassNumber>,
    ) -> Result<Grant, Refusal> {
        let sending = self.datagram_cost().of(out, burst);
        let tick = Tick::not_under(burst);
        let order = turn.map_or(Order::Once, Order::Repeating);
        let reading = PacedRead { rate, tick, burst: Bytes(0), order, is_held: false };
        // Of a title that repeats the same block may be needed twice at once.
        let share = Share::whole(Bytes(u64::MAX));
        let pace = Pace::Paced { rate, burst: Bytes(0), tick };
        let what = format!("packets of {rate}{}", in_class(class, &self.shared.rules));
        let output = OutputCost::datagrams(wire, sending, class);
        let request = Request { volume: title.volume, read: Read::Paced(reading, share), output };
        self.admit_request(title, &request, pace, &what)
    }

    /// Reserves what `request` needs of `title`, which may be held.
    pub(super) fn admit_request(
        &self,
        title: &Arc<OpenTitle>,
        request: &Request,
        pace: Pace,
        what: &str,
    ) -> Result<Grant, Refusal> {
        let rules = &self.shared.rules;
        let step = self.shared.step(title.volume);
        let Read::Paced(PacedRead { order, .. }, _) = request.read else {
            return self.admit_without_disk(request, pace, what);
        };
        let mut book = self.shared.book();
        if step >= Step::Newcomers && !book.hot_titles.is_held(title.id) {
            book.refusals.count(Resource::Disk);
            drop(book);
            return Err(self.shared.too_slow(what));
        }
        let admitted = match book.admit(request, Some(title.id), rules) {
            Ok(admitted) => admitted,
            Err(short) => {
                book.refusals.count(short.resource);
                drop(book);
                return Err(refusal(short, what, rules));
            }
        };
        // Who looks for a place is no further viewer; but what it relies on stays.
        if order != Order::Scattered || book.hot_titles.is_held(title.id) {
            book.watch(admitted.place, Some(title), step, rules);
        }
        drop(book);
        Ok(self.grant(admitted, pace))
    }

    fn admit_without_disk(
        &self,
        request: &Request,
        pace: Pace,
        what: &str,
    ) -> Result<Grant, Refusal> {
        let rules = &self.shared.rules;
        let mut book = self.shared.book();
        let admitted = book.admit(request, None, rules).map_err(|short| {
            book.refusals.count(short.resource);
            refusal(short, what, rules)
        })?;
        drop(book);
        Ok(self.grant(admitted, pace))
    }

    /// Sends `range` of `title` to `target`, once or again and again; until it ends, or the future is
    /// dropped.
    ///
    /// # Panics
    /// When the range is empty, or the title grows.
    pub async fn send(
        &self,
        grant: &mut Grant,
        title: &Arc<OpenTitle>,
        range: Range<u64>,
        repeats: bool,
        target: Target,
    ) -> (Outcome, u64) {
        let part = Part { repeats, ..Part::of(range) };
        match self.begin_part(grant, title, part, target).await {
            Ok(mut sending) => sending.ended().await,
            Err(outcome) => (outcome, 0),
        }
    }

    /// Like [`Self::send`], once, and until `stop` is there at the latest. What it tells then is what had left.
    ///
    /// # Panics
    /// When the range is empty, or the title grows.
    pub async fn send_until<T>(
        &self,
        grant: &mut Grant,
        title: &Arc<OpenTitle>,
        range: Range<u64>,
        target: Target,
        stop: impl Future<Output = T>,
    ) -> (Outcome, u64, Option<T>) {
        assert!(range.start < range.end, "there is something to send");
        assert!(title.following.is_none(), "only what is whole is sent");
        let place = grant.place;
        let part = Part::of(range);
        let mut delivered = match self.start(grant, title, part, Way::Outlet(target)).await {
            Ok(delivered) => delivered,
            Err(Delivered { outcome, sent, .. }) => return (outcome, sent, None),
        };
        let stopped = tokio::select! {
            biased;
            delivered = &mut delivered => {
                let Delivered { outcome, sent, .. } = ended(delivered);
                return (outcome, sent, None);
            }
            stopped = stop => stopped,
        };
        self.shared.book().stop(place);
        let Delivered { outcome, sent, .. } = ended(delivered.await);
        (outcome, sent, Some(stopped))
    }

    /// Begins to send `range` of `title` to `target`, once or again and again. Behind another stream it begins when that
    /// one has ended, with the datagram that would have been due then; or by itself, when the other one has been
    /// forgotten: it is remembered as long as its grant is held.
    ///
    /// # Errors
    /// Why it could not begin.
    ///
    /// # Panics
    /// When the range is empty, or the title grows.
    pub async fn begin_sending(
        &self,
        grant: &mut Grant,
        title: &Arc<OpenTitle>,
        range: Range<u64>,
        repeats: bool,
        target: Target,
    ) -> Result<Sending, Outcome> {
        let part = Part { repeats, ..Part::of(range) };
        self.begin_part(grant, title, part, target).await
    }

    async fn begin_part(
        &self,
        grant: &mut Grant,
        title: &Arc<OpenTitle>,
        part: Part,
        target: Target,
    ) -> Result<Sending, Outcome> {
        assert!(part.range.start < part.range.end, "there is something to send");
        assert!(title.following.is_none(), "only what is whole is sent");
        let end = self.start(grant, title, part, Way::Outlet(target)).await;
        let end = end.map_err(|ended| ended.outcome)?;
        Ok(Sending { stream: self.stream_of(grant), end })
    }
}

/// A stream of datagrams that the engine has.
#[derive(Debug)]
pub struct Sending {
    stream: StreamId,
    end: oneshot::Receiver<Delivered>,
}

impl Sending {
    /// By what the next one can follow it.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Waits for its end; how it was, and how many bytes were sent. To be asked once; who stops to wait may
    /// wait again.
    pub async fn ended(&mut self) -> (Outcome, u64) {
        let Delivered { outcome, sent, .. } = ended((&mut self.end).await);
        (outcome, sent)
    }
}

impl Broker {
    /// The size in which titles of `volume` are read.
    pub fn block_of(&self, volume: VolumeId) -> Bytes {
        self.shared.book().ledger.terms().disks[usize::from(volume.0)].block
    }

    /// What the engine counts for a place of the delivery table.
    pub fn counters_of(&self, place: u32) -> Option<&StreamCounters> {
        self.shared.streams.get(place as usize)
    }
}

impl Grant {
    /// The place in the delivery table, by which the engine counts.
    pub fn place(&self) -> u32 {
        self.place
    }

    /// What the engine calls the stream that is sent with it; none while nothing is.
    pub fn stream(&self) -> Option<StreamId> {
        let generation = self.shared.book().places[self.place as usize].generation;
        self.in_engine.then_some(StreamId { index: self.place, generation })
    }
}
