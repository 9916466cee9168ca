//! One stream as the packet server sees it.

use std::sync::Arc;

use tactus_core::byte_clock::ByteClock;
use tactus_core::datagrams::{Cutter, Form, Message, Plan, Trace};
use tactus_core::mutant;
use tactus_core::pacer::ClassId;
use tactus_core::ports::FileHandle;
use tactus_core::units::{Bytes, MonoTime, Nanos};

use crate::feeding::Window;
use crate::internal::OpenBlocks;
use crate::message::{Datagrams, StreamId};
use crate::pool::List;

/// A stream that is sent.
pub(super) struct Entry {
    pub(super) stream: StreamId,
    pub(super) volume: usize,
    pub(super) output: Datagrams,
    pub(super) form: Form,
    pub(super) class: ClassId,
    pub(super) cutter: Cutter,
    /// What the pacer has of it.
    pub(super) offered: Option<Message>,
    /// Its next message was not in memory when it could have been offered.
    pub(super) is_starved: bool,
    /// What it is sent from where the page cache holds the blocks.
    pub(super) file: FileHandle,
    /// Where in the file the first byte is, and how many come before it comes again.
    pub(super) first_byte: Bytes,
    pub(super) turn: Option<Bytes>,
    pub(super) fed: List,
    /// Bytes fed and not sent; some of them may be gathered.
    pub(super) available: Bytes,
    pub(super) sent: Bytes,
    /// None while the title grows, and when it repeats.
    pub(super) len: Option<Bytes>,
    /// The running second.
    pub(super) window: Window,
    /// The stream that it follows has not ended.
    pub(super) is_waiting: bool,
    /// Who follows it.
    pub(super) next: Option<StreamId>,
    /// Of its session, its own among them.
    pub(super) session: Session,
    /// What is known of its bytes. The delivery server has it too, and longer: it is never the last that is dropped here.
    pub(super) plan: Option<Arc<Plan>>,
}

/// What has left of a session, whichever stream sent it.
#[derive(Clone, Copy, Default)]
pub(super) struct Session {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// What is known of a stream that has ended.
#[derive(Clone, Copy)]
pub(super) struct Ended {
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
            form: blocks.framing,
            class,
            cutter,
            offered: None,
            is_starved: false,
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

    /// Reads what sending reads: a number without a meaning.
    pub(super) fn look_up(&self) -> u64 {
        let offered = self.offered.map_or(0, |message| message.at.0 ^ message.due.0);
        let (fed, window) = (self.fed.look_up(), self.window.look_up());
        let output = self.output.socket.0 as u64 ^ u64::from(self.output.to.port());
        let counts = self.sent.0 ^ self.available.0 ^ self.session.bytes ^ self.volume as u64;
        self.cutter.look_up() ^ offered ^ fed ^ window ^ output ^ counts ^ self.first_byte.0
    }

    /// The next message, when all of it is in memory; none also when there will be no more.
    pub(super) fn next(&mut self) -> Option<Message> {
        let message = self.cutter.next(self.len)?;
        self.is_starved = self.ready() < mutant!(OfferedUnready, Bytes(1), message.taken);
        (!self.is_starved).then_some(message)
    }

    /// What is in memory of the title and has not been cut.
    fn ready(&self) -> Bytes {
        self.sent + self.available - self.cutter.taken()
    }

    /// Puts what else is due by `late` into the message that has been offered; what it is on the wire then, if it grows.
    pub(super) fn catch_up(&mut self, late: MonoTime) -> Option<Bytes> {
        let offered = self.offered?;
        let message = self.cutter.next_late(self.len, late)?;
        // One that has grown in a later turn than this one waits for its class, and stays as it is.
        if message.datagrams <= offered.datagrams || self.ready() < message.taken {
            return None;
        }
        self.offered = Some(message);
        Some(self.wire(&message))
    }

    /// What a message is on the wire.
    pub(super) fn wire(&self, message: &Message) -> Bytes {
        self.form.wire(message.bytes, message.datagrams, self.output.ip())
    }

    /// The size of its whole datagrams.
    pub(super) fn segment(&self) -> u16 {
        (tactus_core::datagrams::PAYLOAD + self.form.header()).0 as u16
    }

    pub(super) fn has_header(&self) -> bool {
        matches!(self.form, Form::Rtp(_))
    }

    /// How long it is.
    pub(super) fn header(&self) -> usize {
        self.form.header().0 as usize
    }

    /// Whether every byte has been sent, and there will be no more.
    pub(super) fn is_complete(&self) -> bool {
        self.len == Some(self.sent)
    }

    /// Whether nobody knows when its next bytes come.
    pub(super) fn is_growing(&self) -> bool {
        self.len.is_none() && self.turn.is_none()
    }

    /// Moves what is to come.
    pub(super) fn delay(&mut self, by: Nanos) {
        self.cutter.delay(by);
    }

    pub(super) fn clock(&self) -> ByteClock {
        self.cutter.clock()
    }
}
