//! The state of one stream in the packet server.

use std::sync::Arc;

use tactus_core::byte_clock::ByteClock;
use tactus_core::datagrams::{Cutter, Framing, Message, Place, Plan, Trace};
use tactus_core::mutant;
use tactus_core::pacer::ClassId;
use tactus_core::ports::FileHandle;
use tactus_core::units::{Bytes, MonoTime, Nanos};

use crate::egress::Window;
use crate::internal::OpenBlocks;
use crate::message::{Datagrams, StreamId};
use crate::pool::List;

/// A disk that is this late is too slow for the stream: its clock is moved instead, or it would
/// send nothing any more.
const LEFT_OUT_MAX: Nanos = Nanos::from_millis(10_000);

/// A stream that is sent.
pub(super) struct Entry {
    pub(super) stream: StreamId,
    pub(super) volume: usize,
    pub(super) output: Datagrams,
    pub(super) framing: Framing,
    pub(super) class: ClassId,
    pub(super) cutter: Cutter,
    /// Its place among the streams of its cycle.
    pub(super) place: Option<Place>,
    /// The message that the pacer has.
    pub(super) offered: Option<Message>,
    /// Its next message was not in memory at the time of its offer.
    pub(super) is_starved: bool,
    /// All its bytes in memory were late and have been left out; those behind them are late, too.
    pub(super) is_behind: bool,
    /// The file, if the page cache holds the blocks.
    pub(super) file: FileHandle,
    /// The offset of the first byte in the file, and the number of bytes after which the title
    /// repeats.
    pub(super) first_byte: Bytes,
    pub(super) turn: Option<Bytes>,
    pub(super) fed: List,
    /// Bytes fed and not sent; some of them may be gathered.
    pub(super) available: Bytes,
    pub(super) sent: Bytes,
    /// `None` while the title grows, and if it repeats.
    pub(super) len: Option<Bytes>,
    /// The running second.
    pub(super) window: Window,
    /// The predecessor has not ended.
    pub(super) is_waiting: bool,
    /// The stream that follows it.
    pub(super) next: Option<StreamId>,
    /// Counts of its session, including its own.
    pub(super) session: Session,
    /// The plan. The delivery server also holds it, and longer: the last reference is never dropped
    /// here.
    pub(super) plan: Option<Arc<Plan>>,
}

/// Counts of the sent datagrams of a session, over all its streams.
#[derive(Clone, Copy, Default)]
pub(super) struct Session {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// The final state of a stream that has ended.
#[derive(Clone, Copy)]
pub(super) struct FinalState {
    pub(super) stream: StreamId,
    pub(super) trace: Trace,
    pub(super) session: Session,
}

impl Entry {
    pub(super) fn new(
        stream: StreamId,
        blocks: &OpenBlocks,
        output: Datagrams,
        class: ClassId,
        cutter: Cutter,
    ) -> Self {
        Self {
            stream,
            volume: usize::from(blocks.volume.0),
            output,
            framing: blocks.framing,
            class,
            cutter,
            place: None,
            offered: None,
            is_starved: false,
            is_behind: false,
            file: blocks.file,
            first_byte: blocks.first,
            turn: blocks.turn,
            fed: List::default(),
            available: Bytes(0),
            sent: Bytes(0),
            len: blocks.len,
            window: Window::default(),
            is_waiting: false,
            next: None,
            session: Session::default(),
            plan: blocks.plan.clone(),
        }
    }

    /// Loads the state that sending needs into the cache. The number has no meaning.
    pub(super) fn look_up(&self) -> u64 {
        let offered = self.offered.map_or(0, |message| message.at.0 ^ message.due.0);
        let (fed, window) = (self.fed.look_up(), self.window.look_up());
        let output = self.output.socket.0 as u64 ^ u64::from(self.output.to.port());
        let counts = self.sent.0 ^ self.available.0 ^ self.session.bytes ^ self.volume as u64;
        self.cutter.look_up() ^ offered ^ fed ^ window ^ output ^ counts ^ self.first_byte.0
    }

    /// The next message, if all of it is in memory; also `None` if no more will come.
    pub(super) fn next(&mut self) -> Option<Message> {
        let message = self.cutter.next(self.len)?;
        self.is_starved = self.ready() < mutant!(OfferedUnready, Bytes(1), message.taken);
        (!self.is_starved).then_some(message)
    }

    /// The bytes of the title in memory that have not been cut.
    fn ready(&self) -> Bytes {
        self.sent + self.available - self.cutter.taken()
    }

    /// Adds the bytes due by `late` to the offered message. Returns its new size on the wire if it
    /// grows.
    pub(super) fn catch_up(&mut self, late: MonoTime) -> Option<Bytes> {
        let offered = self.offered?;
        let message = self.cutter.next_late(self.len, late)?;
        // A message that has grown in an earlier turn waits for its class and stays as it is.
        if message.datagrams <= offered.datagrams || self.ready() < message.taken {
            return None;
        }
        self.offered = Some(message);
        Some(self.wire(&message))
    }

    /// The size of a message on the wire.
    pub(super) fn wire(&self, message: &Message) -> Bytes {
        self.framing.wire(message.bytes, message.datagrams, self.output.ip())
    }

    /// The size of its whole datagrams.
    pub(super) fn segment(&self) -> u16 {
        (self.framing.payload() + self.framing.header()).0 as u16
    }

    pub(super) fn has_header(&self) -> bool {
        self.framing.header() > Bytes(0)
    }

    /// Whether it leaves at the times of a media clock.
    pub(super) fn is_sound(&self) -> bool {
        matches!(self.framing, Framing::Sound(_))
    }

    /// Length of the header.
    pub(super) fn header(&self) -> usize {
        self.framing.header().0 as usize
    }

    /// Whether every byte has been sent, and no more will come.
    pub(super) fn is_complete(&self) -> bool {
        self.len == Some(self.sent)
    }

    /// Whether the time of the next bytes is unknown.
    pub(super) fn is_growing(&self) -> bool {
        self.len.is_none() && self.turn.is_none()
    }

    /// Delays all unsent bytes, at least by this much. A stream with a place stays at its phase,
    /// and sound at the times of its clock.
    pub(super) fn delay(&mut self, by: Nanos) {
        let is_whole = self.place.is_some() || self.is_sound();
        let by = if is_whole { self.cutter.cycle().whole(by) } else { by };
        self.cutter.delay(by);
    }

    /// Whether bytes that are so much late are left out, so that the stream stays in step with its
    /// media clock. Only while all that was cut has left: bytes are used up in order.
    pub(super) fn leaves_out(&self, late: Nanos) -> bool {
        self.is_sound() && late <= LEFT_OUT_MAX && self.cutter.taken() == self.sent
    }

    /// Leaves out the bytes in memory that are late now. Returns their number.
    pub(super) fn leave_out(&mut self, now: MonoTime, late: Nanos) -> Bytes {
        let bytes = self.cutter.leave_out(late, self.ready(), self.len);
        self.is_behind = self.cutter.next(self.len).is_some_and(|next| next.due < now);
        bytes
    }

    pub(super) fn clock(&self) -> ByteClock {
        self.cutter.clock()
    }
}
