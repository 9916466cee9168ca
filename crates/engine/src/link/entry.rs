//! One stream as the link sees it.

use tactus_core::byte_clock::ByteClock;
use tactus_core::ports::{FileHandle, SocketHandle};
use tactus_core::stagger::Slot;
use tactus_core::units::{Bytes, MonoTime};

use crate::feeding::Window;
use crate::internal::Open;
use crate::link::frames::Frames;
use crate::link::made::Made;
use crate::message::{Pace, Sink, StreamId};
use crate::pool::List;

/// A place of the link's table.
pub(super) struct Entry {
    /// Who is here; none when the place is free.
    pub(super) stream: Option<StreamId>,
    pub(super) volume: usize,
    pub(super) socket: Option<SocketHandle>,
    /// What makes packets of it; none when its bytes go as they are.
    pub(super) frames: Option<Frames>,
    /// Whole frames that the control side makes; none when it is a title's bytes.
    pub(super) made: Option<Made>,
    /// For one that is waited for however long it takes nothing, what it is owed then: no more than its
    /// burst, which memory was given for.
    pub(super) waited_for: Option<Bytes>,
    /// What it is sent from where the page cache holds the blocks.
    pub(super) file: FileHandle,
    /// None for best effort.
    pub(super) clock: Option<ByteClock>,
    /// The first slot in which it is visited.
    pub(super) first: Slot,
    pub(super) fed: List,
    /// Bytes fed and not sent.
    pub(super) available: Bytes,
    pub(super) sent: Bytes,
    /// None while the title grows.
    pub(super) len: Option<Bytes>,
    /// The peer has left something untaken, and since then not all that was due has left: what is
    /// missing is the peer's doing.
    pub(super) was_blocked: bool,
    /// The running second.
    pub(super) window: Window,
    /// Best effort: when the running drain window began, and what had been sent by then.
    pub(super) drained: (MonoTime, Bytes),
    /// Best effort: not offered anything before this slot.
    pub(super) not_before: Slot,
}

impl Entry {
    pub(super) fn free() -> Self {
        Self {
            stream: None,
            volume: 0,
            socket: None,
            frames: None,
            made: None,
            waited_for: None,
            file: FileHandle(-1),
            clock: None,
            first: Slot(0),
            fed: List::default(),
            available: Bytes(0),
            sent: Bytes(0),
            len: None,
            was_blocked: false,
            window: Window::default(),
            drained: (MonoTime(0), Bytes(0)),
            not_before: Slot(0),
        }
    }

    pub(super) fn new(open: Open, now: MonoTime) -> Self {
        let socket = match open.sink {
            Sink::Socket(socket) | Sink::Reader(socket) => socket,
            Sink::Frames(frames) => frames.socket,
            Sink::Made(_) => unreachable!("what is made is not opened"),
            Sink::Datagrams(_) => unreachable!("datagrams have a server of their own"),
        };
        let burst = match open.pace {
            Pace::Paced { burst, .. } => burst,
            Pace::BestEffort => Bytes(0),
        };
        let waited_for = matches!(open.sink, Sink::Reader(_)).then_some(burst);
        Self {
            stream: Some(open.stream),
            volume: usize::from(open.volume.0),
            socket: Some(socket),
            waited_for,
            file: open.file,
            len: open.len,
            drained: (now, Bytes(0)),
            ..Self::free()
        }
    }

    /// One past the last byte that may be sent: of a title that grows what has been fed.
    pub(super) fn end(&self) -> Bytes {
        self.len.unwrap_or(self.sent + self.available)
    }

    /// Whether every byte has been sent, and there will be no more.
    pub(super) fn is_complete(&self) -> bool {
        self.len == Some(self.sent) && self.frames.as_ref().is_none_or(Frames::is_between)
    }
}
