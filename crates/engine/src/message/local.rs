//! Messages between the control side and the file server, which serves local clients.

use std::sync::Arc;

use tactus_core::local::{ANSWER_WORDS, REQUEST_WORDS, RING_SLOTS, Request, layout};
use tactus_core::ports::Waker;
use tactus_core::timed::{ReserveUse, TimedReserve};
use tactus_ring::shared::{
    Receiver, RingLayout, Sender, SharedBytes, SharedMemory, SharedWord, SleepMark, Words,
};

use super::Origin;

/// One local client: a slot of the file server's table, and its generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ClientId {
    /// The slot.
    pub index: u16,
    /// Counts the clients of the slot.
    pub generation: u32,
}

/// Titles that a local client may have open at once.
pub const HANDLES_MAX: u32 = 64;

/// The server's side of the memory that a local client shares, and what is kept for it.
pub struct LocalClient {
    pub(crate) id: ClientId,
    pub(crate) requests: Receiver<REQUEST_WORDS>,
    pub(crate) answers: Sender<ANSWER_WORDS>,
    /// Set while the file server sleeps.
    pub(crate) own_mark: SleepMark,
    /// Set while the client sleeps.
    pub(crate) client_mark: SleepMark,
    /// Where the file server runs, for the client.
    pub(crate) own_processor: SharedWord,
    /// Where the client says that it runs.
    pub(crate) client_processor: SharedWord,
    pub(crate) data: SharedBytes,
    /// Wakes the client. Never blocks.
    pub(crate) bell: Box<dyn Waker>,
    pub(crate) handles: Vec<Option<Handle>>,
}

/// An open title of a local client.
pub(crate) struct Handle {
    pub(crate) origin: Origin,
    /// All its bytes, if it is in memory.
    pub(crate) memory: Option<SharedBytes>,
    /// Requests under way.
    pub(crate) requests: u32,
    /// Room for its reads at moments, if it was reserved.
    pub(crate) reserve: Option<ReserveUse>,
    pub(crate) is_closing: bool,
}

impl LocalClient {
    /// The server's side of `memory`, which is new and zero. `bell` wakes the client; it must never
    /// block, whatever the client does.
    ///
    /// # Panics
    /// If the memory has no room for the rings.
    pub fn new(id: ClientId, memory: Arc<dyn SharedMemory>, bell: Box<dyn Waker>) -> Self {
        let words = Words::new(Arc::clone(&memory));
        let own_mark = SleepMark::new(words.clone(), layout::SERVER_ASLEEP);
        // Its first request rings.
        own_mark.set();
        Self {
            id,
            requests: Receiver::new(words.clone(), RingLayout::new(layout::REQUESTS, RING_SLOTS)),
            answers: Sender::new(words.clone(), RingLayout::new(layout::ANSWERS, RING_SLOTS)),
            own_mark,
            client_mark: SleepMark::new(words.clone(), layout::CLIENT_ASLEEP),
            own_processor: SharedWord::new(words.clone(), layout::SERVER_PROCESSOR),
            client_processor: SharedWord::new(words, layout::CLIENT_PROCESSOR),
            data: SharedBytes::new(memory, layout::DATA),
            bell,
            handles: (0..HANDLES_MAX).map(|_| None).collect(),
        }
    }

    /// Which client it is.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// The titles that are still open, when the client has been detached.
    pub fn into_origins(self) -> impl Iterator<Item = Origin> {
        self.handles.into_iter().flatten().map(|handle| handle.origin)
    }
}

/// From the control side to the file server.
pub enum LocalCommand {
    /// A new client, in a free slot.
    Attach(Box<LocalClient>),
    /// A title is open as this handle, which is free.
    Open {
        /// The client. For one that has been detached, the command must not be sent.
        client: ClientId,
        /// The number of the handle, below [`HANDLES_MAX`].
        handle: u32,
        /// The title; its files stay open until the report.
        origin: Origin,
    },
    /// All bytes of an open title are in memory: reads are copies from there. Once for each handle.
    Map {
        /// The client.
        client: ClientId,
        /// The number of the handle.
        handle: u32,
        /// The bytes of the title, which nobody changes.
        memory: SharedBytes,
    },
    /// From now on the moments of reads of an open title are kept, or the reads are refused at
    /// once. Once for each handle.
    Reserve {
        /// The client.
        client: ClientId,
        /// The number of the handle.
        handle: u32,
        /// The room, which the ledger keeps until the handle is closed.
        reserve: TimedReserve,
    },
    /// Closes a handle when no request for it is under way. Answered by [`LocalReport::Closed`].
    Close {
        /// The client.
        client: ClientId,
        /// The number of the handle.
        handle: u32,
    },
    /// The result of a [`LocalReport::Forwarded`] request. Ignored if the client has been detached.
    Answer {
        /// The client.
        client: ClientId,
        /// The place of the request.
        place: u16,
        /// Number of bytes, or the error number.
        result: Result<u32, u32>,
    },
    /// Ends a client. Answered by [`LocalReport::Detached`] when nothing of it is under way in the
    /// engine; forwarded requests are not waited for.
    Detach(ClientId),
}

/// From the file server to the control side.
pub enum LocalReport {
    /// The files of the title can be closed.
    Closed {
        /// The client.
        client: ClientId,
        /// The number of the handle, free again.
        handle: u32,
        /// The title.
        origin: Origin,
        /// Its bytes, if it was in memory.
        memory: Option<SharedBytes>,
    },
    /// The client has a request that the control side carries out, and that
    /// [`LocalCommand::Answer`] ends. Its bytes lie within the client's data.
    Forwarded {
        /// The client.
        client: ClientId,
        /// The place of the request among those under way.
        place: u16,
        /// The request.
        request: Request,
    },
    /// The client has written what no client writes. It is not served any more; detach it.
    Broken(ClientId),
    /// Nothing of the client is left. Its memory and the files of its titles come back.
    Detached(Box<LocalClient>),
}
