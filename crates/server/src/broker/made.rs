//! Deliveries to readers of our own, and streams of datagrams that they make.
//!
//! Promise: the source is read at a rate that is promised like any other, and only the link is left out;
//! what is made is promised the link and the cores' time, and only the disk is left out. The memory between
//! the two sides lives until the engine has retired the stream.

use std::future::Future;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tactus_core::block_list::BlockList;
use tactus_core::classes::ClassNumber;
use tactus_core::cost::{Order, OutputCost, PacedRead, Share};
use tactus_core::datagrams::Ip;
use tactus_core::made::{self, Timed};
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, KIB, MonoTime};
use tactus_engine::message::{Chunks, Command, Delivery, Outcome, Pace, Start, StreamId};
use tactus_ring::spsc::{Producer, ring};
use tokio::sync::oneshot;

use super::request::{Read, Request};
use super::{Broker, Delivered, Grant, Part, Refusal, Source, Target, Way, ended, in_class};
use crate::catalogue::OpenTitle;

/// What is read for a reader of our own, and how fast.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Bytes of the title; of a block list its own, from zero on.
    pub range: Range<u64>,
    /// Which blocks are read instead, in which order.
    pub block_list: Option<BlockList>,
    /// How fast.
    pub rate: BitRate,
    /// Bytes that come at once at the beginning.
    pub burst: Bytes,
}

/// What a made stream needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadeRate {
    /// Most bits of its datagrams in a second.
    pub rate: BitRate,
    /// Most datagrams in a second.
    pub datagrams: u32,
}

/// Where a made stream goes.
#[derive(Clone, Debug)]
pub enum MadeWay {
    /// Out as datagrams. The form is not used: what stands in front is made too.
    Datagrams(Target),
    /// Into a connection, which must be non-blocking and prepared for the link, as frames. What is made has its
    /// heads already.
    Frames {
        /// The connection.
        socket: Arc<OwnedFd>,
        /// Its other end.
        peer: SocketAddr,
    },
}

impl MadeWay {
    fn ip(&self) -> Ip {
        let (Self::Datagrams(Target { to, .. }) | Self::Frames { peer: to, .. }) = self;
        if to.is_ipv4() { Ip::V4 } else { Ip::V6 }
    }

    /// The class of the link that it belongs to: connections have none.
    fn class(&self) -> Option<ClassNumber> {
        match self {
            Self::Datagrams(target) => target.class(),
            Self::Frames { .. } => None,
        }
    }
}

/// A made stream that the engine sends.
pub struct MadeStream {
    delivered: oneshot::Receiver<Delivered>,
    outcome: Option<Outcome>,
}

impl MadeStream {
    /// How it ended.
    pub async fn ended(&mut self) -> Outcome {
        std::future::poll_fn(|context| self.poll_ended(context)).await
    }

    /// How it ended, once it has.
    pub fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        if let Some(outcome) = self.outcome {
            return Poll::Ready(outcome);
        }
        let delivered = ready!(Pin::new(&mut self.delivered).poll(context));
        Poll::Ready(*self.outcome.insert(ended(delivered).outcome))
    }
}

/// Most bytes that a reader is given at once, where the shortest tick allows it: a third of what the kernel
/// holds for it, so that it may miss two.
const PIECE_MAX: Bytes = Bytes(64 * KIB);

impl Broker {
    /// Reserves what a reader of our own needs to be given what `reading` says of `title`.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    pub fn admit_reader(
        &self,
        title: &Arc<OpenTitle>,
        reading: &Reading,
    ) -> Result<Grant, Refusal> {
        let Reading { ref range, ref block_list, rate, burst } = *reading;
        let fits = |tick: &Tick| rate.bytes_in(tick.span()) <= PIECE_MAX;
        let tick = [Tick::Ms62, Tick::Ms25].into_iter().find(fits);
        let tick = Tick::for_rate(rate, tick.unwrap_or(Tick::Ms10));
        let pace = Pace::Paced { rate, burst, tick };
        let order = if block_list.is_some() { Order::Scattered } else { Order::Once };
        let read = PacedRead { rate, tick, burst, order, is_held: false };
        let share = Share { len: Bytes(range.end - range.start), title_len: title.len };
        let cost = self.shared.rules.connections[usize::from(title.volume.0)];
        let request = Request {
            volume: title.volume,
            read: Read::Paced(read, share),
            output: OutputCost::reader(cost, rate, tick),
        };
        self.admit_request(title, &request, pace, &format!("a stream of {rate}"))
    }

    /// Gives what `reading` says of `title` to the other end of `socket`, until it ends or the future is
    /// dropped. A reader that takes nothing is waited for.
    ///
    /// # Panics
    /// When that is nothing.
    pub async fn feed(
        &self,
        grant: &mut Grant,
        title: &Arc<OpenTitle>,
        reading: Reading,
        socket: UnixStream,
    ) -> Outcome {
        let Reading { range, block_list, .. } = reading;
        assert!(range.start < range.end, "there is something to read");
        let part = Part { block_list, ..Part::of(range) };
        match self.start(grant, title, part, Way::Reader(socket)).await {
            Ok(delivered) => ended(delivered.await).outcome,
            Err(ended) => ended.outcome,
        }
    }

    /// Reserves what datagrams, or frames, need that are made out of `title` and go that `way`.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    pub fn admit_made(
        &self,
        title: &Arc<OpenTitle>,
        needs: MadeRate,
        way: &MadeWay,
    ) -> Result<Grant, Refusal> {
        let MadeRate { rate, datagrams } = needs;
        // A segment of TCP carries somewhat more than one frame: that covers its longer header.
        let wire = made::wire_rate(rate, datagrams, way.ip());
        let rules = &self.shared.rules;
        let (sending, class) = (self.datagram_cost().first.times(datagrams.into()), way.class());
        let output = OutputCost::datagrams(wire, sending, class);
        let request = Request { volume: title.volume, read: Read::Elsewhere, output };
        let pace = Pace::Paced { rate: wire, burst: Bytes(0), tick: Tick::Ms10 };
        let what = format!("a stream of {rate}{}", in_class(class, rules));
        self.admit_request(title, &request, pace, &what)
    }

    /// Begins a made stream at `begin`, from which the times of its datagrams count. It ends with what the
    /// ring says is its end, or when the grant is dropped.
    ///
    /// # Panics
    /// When the grant has been used already.
    pub fn make(
        &self,
        grant: &mut Grant,
        title: &Arc<OpenTitle>,
        way: MadeWay,
        begin: MonoTime,
        made: MadeRing,
    ) -> MadeStream {
        assert!(grant.retiring.is_none(), "what is made is made once");
        let (finished, delivered) = oneshot::channel();
        let (retired, retiring) = oneshot::channel();
        let MadeRing { other, keep } = made;
        let Pace::Paced { rate, .. } = grant.pace else { unreachable!("it is paced") };
        let way = match way {
            MadeWay::Datagrams(target) => Way::Outlet(target),
            MadeWay::Frames { socket, peer } => Way::Made(socket, peer),
        };
        let mut book = self.shared.book();
        book.begun += 1;
        let begun = book.begun;
        let place = &mut book.places[grant.place as usize];
        place.begun = begun;
        place.stopped = false;
        place.generation = place.generation.wrapping_add(1);
        place.finished = Some(finished);
        place.retired = Some(retired);
        place.title = Some(Source { title: Arc::clone(title), file: None, _ring: Some(keep) });
        let (_, output) = way.output();
        place.way = Some(way);
        let stream = StreamId { index: grant.place, generation: place.generation };
        grant.in_engine = true;
        grant.retiring = Some(retiring);
        let chunks = Chunks { ring: other, begin, rate };
        let delivery = Delivery::of_chunks(chunks, output);
        book.command(Command::Start(Start { stream, delivery }));
        MadeStream { delivered, outcome: None }
    }
}

impl Broker {
    /// Gives a grant back, when nothing of what it is used for is left in the engine.
    pub async fn retire(&self, mut grant: Grant) {
        self.stop(&grant);
        if let Some(retiring) = grant.retiring.take() {
            // A closed channel says the same: the place is empty.
            drop(retiring.await);
        }
    }

    /// Has the engine end what a grant is used for, if it is used.
    pub fn stop(&self, grant: &Grant) {
        let mut book = self.shared.book();
        let place = &book.places[grant.place as usize];
        if grant.in_engine && place.way.is_some() {
            book.stop(grant.place);
        }
    }
}

/// The engine's end of a ring of datagrams, with what keeps its memory.
pub struct MadeRing {
    other: tactus_ring::spsc::Consumer<Timed>,
    keep: tactus_ring::spsc::Keep<Timed>,
}

impl MadeRing {
    /// A ring of `capacity` datagrams, and the end that fills it.
    pub fn new(capacity: usize) -> (Producer<Timed>, Self) {
        let (ours, other) = ring(capacity);
        let keep = ours.keep();
        (ours, Self { other, keep })
    }
}
