//! Framing: what of a delivery goes into the socket in one call, and what the socket has taken of
//! it.
//!
//! | framing | source | schedule | what leaves |
//! |---|---|---|---|
//! | plain | blocks | byte clock, best effort | the bytes as they are |
//! | packets | blocks | byte clock | interleaved RTP, payload straight from the blocks |
//! | composed | blocks | plan | interleaved RTP, payload restamped in a copy |
//! | chunks | ring | time of each chunk | what the control side has generated |
//!
//! Promise: a frame that is begun is finished before anything else is sent; nothing is begun beyond
//! the limit of a call. A framing only sends; the link server's one visit decides when.

mod chunks;
mod composed;
mod packets;
mod parts;
mod plain;

use tactus_core::byte_clock::ByteClock;
use tactus_core::ports::{FilePart, LinkPort, Sent, SocketHandle};
use tactus_core::units::{Bytes, MonoTime, Nanos};

use crate::feeding::{Fed, Memory};
use crate::link::connection::Connection;
use crate::link::feed::Feed;
use crate::message::Outcome;
use crate::pool::Pool;

pub(super) use chunks::Chunks;
pub(super) use composed::Composed;
pub(super) use packets::Packets;

/// Frames offered in one call: 42 KB, which is 10 ms of 33 Mbit/s.
const FRAMES: usize = 32;
/// Payloads copied for one call: those frames and what is left of one more.
pub(super) const STAGE: usize = (1 + FRAMES) * tactus_core::datagrams::PAYLOAD.0 as usize;

/// How a delivery's bytes are put into the socket.
pub(super) enum Framing {
    Plain,
    Packets(Packets),
    Composed(Composed),
    Chunks(Chunks),
}

/// What is to be sent at a visit.
pub(super) struct Demand {
    /// There is something to offer, or the end has come.
    pub(super) is_pending: bool,
    /// New bytes are due.
    pub(super) is_due: bool,
    /// The source had nothing when something was due. By so much its clock has been moved.
    pub(super) starved: Option<Starved>,
    pub(super) limit: Limit,
}

/// A generated stream that was late.
pub(super) struct Starved {
    /// What its times count from now.
    pub(super) begin: MonoTime,
}

/// Nothing at or beyond it is begun in a call.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    /// For bytes that a byte clock paces: a position in the delivery.
    pub(super) position: Bytes,
    /// For frames that have times of their own.
    pub(super) time: MonoTime,
}

impl Limit {
    /// Only what is begun, and messages.
    pub(super) const BEGUN: Self = Self { position: Bytes(0), time: MonoTime(0) };

    pub(super) fn at(position: Bytes) -> Self {
        Self { position, ..Self::BEGUN }
    }
}

/// What one call works with.
pub(super) struct Call<'a, P> {
    pub(super) port: &'a mut P,
    pub(super) now: MonoTime,
    pub(super) feed: &'a Feed,
    pub(super) memories: &'a [Memory],
    pub(super) fed: &'a Pool<Fed>,
    pub(super) stage: &'a mut [u8],
}

/// The result of one call.
#[derive(Default)]
pub(super) struct Step {
    pub(super) offered: usize,
    pub(super) taken: usize,
    /// Bytes of the title that have been sent.
    pub(super) title: Bytes,
    /// Bytes that the control side has generated and that have been sent.
    pub(super) generated: Bytes,
    /// Packets that have been sent whole, and their payload.
    pub(super) packets: u64,
    pub(super) payload: u64,
    /// A message that has been sent whole.
    pub(super) message: Option<Box<[u8]>>,
}

impl<'a, P: LinkPort> Call<'a, P> {
    fn memory(&self) -> &'a Memory {
        &self.memories[self.feed.volume]
    }

    /// What has been fed, from the first byte that has not been sent.
    fn blocks(&self) -> impl Iterator<Item = &'a Fed> + use<'a, P> {
        self.fed.iter(&self.feed.blocks)
    }

    /// Offers `parts`. Returns how many bytes the socket has taken.
    fn send(&mut self, socket: SocketHandle, parts: &parts::Parts<'_>) -> Result<usize, Outcome> {
        let sent = self.port.send(self.now, socket, parts.as_slice());
        taken_of(parts.bytes(), sent)
    }

    /// Copies the part of a file that the page cache holds into `stage`, from `at` on.
    fn read(&mut self, part: FilePart, at: usize) -> Result<(), Outcome> {
        let into = &mut self.stage[at..at + part.len as usize];
        self.port.read(self.now, part, into).map_err(Outcome::DiskFailed)
    }
}

impl Framing {
    /// What is due at `until`. Of a generated stream that was late the times are moved.
    pub(super) fn demand(
        &mut self,
        feed: &Feed,
        clock: Option<&ByteClock>,
        until: MonoTime,
    ) -> Demand {
        match self {
            Self::Plain => plain::demand(feed, paced(clock), until),
            Self::Packets(packets) => packets.demand(feed, paced(clock), until),
            Self::Composed(composed) => composed.demand(feed, until),
            Self::Chunks(chunks) => chunks.demand(until),
        }
    }

    /// How far the schedule is ahead of what memory holds. Generated streams answer with their
    /// demand.
    pub(super) fn gap(&self, feed: &Feed, clock: Option<&ByteClock>, until: MonoTime) -> Nanos {
        match self {
            Self::Plain => plain::gap(feed, paced(clock), until),
            Self::Packets(_) => packets::gap(feed, paced(clock), until),
            Self::Composed(composed) => composed.gap(feed, until),
            Self::Chunks(_) => Nanos(0),
        }
    }

    /// When the oldest byte that has not been sent was due.
    pub(super) fn oldest_due(
        &mut self,
        feed: &Feed,
        clock: Option<&ByteClock>,
        until: MonoTime,
    ) -> Option<MonoTime> {
        match self {
            Self::Plain | Self::Packets(_) => Some(paced(clock).due(feed.sent + Bytes(1))),
            Self::Composed(composed) => composed.next_due(feed, until),
            Self::Chunks(chunks) => chunks.front_due(),
        }
    }

    /// Moves what is to come. Returns the time from which the times of a generated stream count.
    pub(super) fn delay(&mut self, by: Nanos) -> Option<MonoTime> {
        match self {
            Self::Plain => None,
            Self::Packets(packets) => {
                packets.delay(by);
                None
            }
            Self::Composed(composed) => {
                composed.delay(by);
                None
            }
            Self::Chunks(chunks) => Some(chunks.delay(by)),
        }
    }

    /// Whether the peer has every frame whole, or nothing of it.
    pub(super) fn is_between(&self) -> bool {
        match self {
            Self::Plain => true,
            Self::Packets(packets) => packets.is_between(),
            Self::Composed(composed) => composed.is_between(),
            Self::Chunks(chunks) => chunks.is_between(),
        }
    }

    /// Whether the connection carries frames, between which messages may be sent.
    pub(super) fn has_frames(&self) -> bool {
        !matches!(self, Self::Plain)
    }

    /// Whether each second carries the same number of bytes.
    pub(super) fn is_even(&self) -> bool {
        !matches!(self, Self::Chunks(_))
    }

    /// What times of the RTP session count from; none outside of RTP, and where it never moves with
    /// a packet.
    pub(super) fn epoch(&self) -> Option<MonoTime> {
        match self {
            Self::Plain | Self::Chunks(_) => None,
            Self::Packets(packets) => Some(packets.epoch()),
            Self::Composed(composed) => Some(composed.epoch()),
        }
    }

    /// Keeps what a later stream of the same session needs to know.
    pub(super) fn keep(&self) {
        match self {
            Self::Plain | Self::Chunks(_) => {}
            Self::Packets(packets) => packets.keep(),
            Self::Composed(composed) => composed.keep(),
        }
    }

    /// Offers to the socket, once, as much as one call takes; none when there is nothing.
    ///
    /// # Errors
    /// How the delivery ends: the connection is gone, or the page cache has lost the bytes.
    pub(super) fn send<P: LinkPort>(
        &mut self,
        call: &mut Call<'_, P>,
        connection: &mut Connection,
        limit: Limit,
    ) -> Result<Option<Step>, Outcome> {
        match self {
            Self::Plain => plain::send(call, connection.socket, limit.position),
            Self::Packets(packets) => packets.send(call, connection, limit.position),
            Self::Composed(composed) => composed.send(call, connection, limit.time),
            Self::Chunks(chunks) => chunks.send(call, connection, limit.time),
        }
    }
}

fn paced(clock: Option<&ByteClock>) -> &ByteClock {
    clock.expect("bytes at a rate have a clock")
}

/// How many of the offered bytes a socket has taken.
fn taken_of(offered: usize, sent: Sent) -> Result<usize, Outcome> {
    let taken = match sent {
        Sent::Some(taken) => taken as usize,
        Sent::Blocked => 0,
        Sent::Broken(errno) => return Err(Outcome::PeerGone(errno)),
        Sent::Lost(errno) => return Err(Outcome::DiskFailed(errno)),
    };
    assert!(taken <= offered, "a socket takes no more than it was offered");
    Ok(taken)
}
