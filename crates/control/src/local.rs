//! Local clients as the control side sees them: who is attached, and which titles each has open.
//!
//! Promise: a session that is dropped gives everything back, and waits until the engine has: its
//! memory is unmapped and its files are closed only then. A client that lies is cut off. Each
//! request of a writer is answered once.

mod forwarded;

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tactus_core::local::layout;
use tactus_core::ports::Waker;
use tactus_engine::message::{ClientId, LocalClient, LocalCommand, LocalReport};
use tactus_ring::shared::{SharedBytes, SharedMemory};
use tactus_ring::spsc::Producer;
use tactus_storage::catalogue::OpenTitle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::broker::{Broker, TimedGrant, TitleFile};

pub use forwarded::{ForwardedRequest, ForwardedRequests};
pub use tactus_engine::file::REQUESTS_MAX;
pub use tactus_engine::message::HANDLES_MAX;

/// The table of local clients. Clones share it.
#[derive(Clone)]
pub struct LocalClients(Arc<Shared>);

struct Shared {
    table: Mutex<Table>,
    /// Wakes the cores.
    waker: Box<dyn Waker + Sync>,
}

struct Table {
    commands: Producer<LocalCommand>,
    slots: Vec<Slot>,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    session: Option<Attached>,
}

/// The session of a slot, for reports.
struct Attached {
    reports: Sender<SessionReport>,
    /// No more than [`REQUESTS_MAX`] wait there: the file server forwards no more of one client.
    forwarded: UnboundedSender<ForwardedRequest>,
    /// Ends the connection of the client.
    cut: Box<dyn Fn() + Send>,
}

enum SessionReport {
    Closed(u32),
    Detached(Box<LocalClient>),
}

/// One attached client. Dropping it detaches the client.
pub struct LocalSession {
    clients: LocalClients,
    id: ClientId,
    reports: Receiver<SessionReport>,
    titles: Vec<Option<OpenedTitle>>,
    /// Until they are taken.
    forwarded: Option<ForwardedRequests>,
}

/// What the engine uses of an open title.
struct OpenedTitle {
    _file: TitleFile,
    /// Keeps the memory of its bytes.
    memory: Option<Box<dyn Send>>,
    /// The room for its reads at moments.
    reserve: Option<TimedGrant>,
}

/// Why a title was not opened.
#[derive(Debug, thiserror::Error)]
pub enum LocalOpenFault {
    /// Too many are open.
    #[error("{HANDLES_MAX} titles are open, which is the most for one program")]
    TooMany,
    /// Its file cannot be opened once more.
    #[error("its file cannot be opened once more: {0}")]
    File(#[from] std::io::Error),
}

impl LocalClients {
    /// The table of an engine with room for `clients`.
    pub(crate) fn new(
        commands: Producer<LocalCommand>,
        clients: u16,
        waker: Box<dyn Waker + Sync>,
    ) -> Self {
        let slots = (0..clients).map(|_| Slot::default()).collect();
        Self(Arc::new(Shared { table: Mutex::new(Table { commands, slots }), waker }))
    }

    /// Attaches a client. `bell` wakes it and must never block; `cut` ends its connection. `None`
    /// if there are as many as there may be.
    pub fn attach(
        &self,
        memory: Arc<dyn SharedMemory>,
        bell: Box<dyn Waker>,
        cut: Box<dyn Fn() + Send>,
    ) -> Option<LocalSession> {
        let programs = self.table().slots.len() - usize::from(OWN_CLIENTS);
        self.attach_to(0..programs, memory, bell, cut)
    }

    /// Attaches the server itself, which reads titles into memory like a program. `None` if it is
    /// attached already.
    pub fn attach_own(
        &self,
        memory: Arc<dyn SharedMemory>,
        bell: Box<dyn Waker>,
    ) -> Option<LocalSession> {
        let slots = self.table().slots.len();
        self.attach_to(slots - usize::from(OWN_CLIENTS)..slots, memory, bell, Box::new(|| ()))
    }

    fn attach_to(
        &self,
        range: Range<usize>,
        memory: Arc<dyn SharedMemory>,
        bell: Box<dyn Waker>,
        cut: Box<dyn Fn() + Send>,
    ) -> Option<LocalSession> {
        let (reports, answers) = channel();
        let mut table = self.table();
        let mut free = range.filter(|&index| table.slots[index].session.is_none());
        let index = free.next()?;
        let slot = &mut table.slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        let (forwarded, requests) = unbounded_channel();
        slot.session = Some(Attached { reports, forwarded, cut });
        let data = SharedBytes::new(Arc::clone(&memory), layout::DATA);
        let forwarded = Some(ForwardedRequests::new(requests, data));
        let id = ClientId { index: index as u16, generation: slot.generation };
        table.send(LocalCommand::Attach(Box::new(LocalClient::new(id, memory, bell))));
        drop(table);
        self.wake();
        let titles = (0..HANDLES_MAX).map(|_| None).collect();
        Some(LocalSession { clients: self.clone(), id, reports: answers, titles, forwarded })
    }

    /// Has the file server look for requests.
    pub fn wake(&self) {
        self.0.waker.wake();
    }

    /// Ends the connections of all clients, and waits for a while until they have been detached.
    pub fn cut_all(&self) {
        let end = Instant::now() + PATIENCE;
        loop {
            let attached = {
                let table = self.table();
                let sessions = table.slots.iter().filter_map(|slot| slot.session.as_ref());
                sessions.map(|attached| (attached.cut)()).count()
            };
            if attached == 0 || Instant::now() >= end {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Number of clients that are attached.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.table().slots.iter().filter(|slot| slot.session.is_some()).count()
    }

    /// Handles a report of the engine.
    pub(crate) fn handle(&self, report: LocalReport) {
        let mut table = self.table();
        match report {
            LocalReport::Closed { client, handle, origin, memory } => {
                drop((origin, memory));
                if let Some(attached) = table.session(client) {
                    // A session that is being dropped no longer asks.
                    drop(attached.reports.send(SessionReport::Closed(handle)));
                }
            }
            LocalReport::Forwarded { client, place, request } => {
                let forwarded = table.session(client).map(|attached| attached.forwarded.clone());
                // A request that is not taken answers itself, for which it needs the table.
                drop(table);
                if let Some(forwarded) = forwarded {
                    let request = ForwardedRequest::new(self.clone(), client, place, request);
                    drop(forwarded.send(request));
                }
            }
            LocalReport::Broken(client) => {
                if let Some(attached) = table.session(client) {
                    tracing::warn!(
                        client = client.index,
                        "a local client wrote what is no request; its connection is ended"
                    );
                    (attached.cut)();
                }
            }
            LocalReport::Detached(client) => {
                let slot = &mut table.slots[usize::from(client.id().index)];
                if let Some(attached) = slot.session.take() {
                    drop(attached.reports.send(SessionReport::Detached(client)));
                }
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, command: LocalCommand) {
        self.table().send(command);
        self.wake();
    }
}

impl Table {
    fn send(&mut self, command: LocalCommand) {
        let pushed = self.commands.push(command);
        assert!(pushed.is_ok(), "the ring holds the commands of all clients");
    }

    fn session(&self, client: ClientId) -> Option<&Attached> {
        let slot = &self.slots[usize::from(client.index)];
        slot.session.as_ref().filter(|_| slot.generation == client.generation)
    }
}

impl LocalSession {
    /// The requests of writers, once. Dropped, they are refused.
    pub fn take_forwarded(&mut self) -> Option<ForwardedRequests> {
        self.forwarded.take()
    }

    /// Opens a title. Returns what requests name it by.
    ///
    /// # Errors
    /// If too many are open, or its file cannot be used.
    pub fn open(&mut self, title: &Arc<OpenTitle>, broker: &Broker) -> Result<u32, LocalOpenFault> {
        let handle = self.titles.iter().position(Option::is_none);
        let handle = handle.ok_or(LocalOpenFault::TooMany)?;
        let file = broker.title_file(title)?;
        let origin = file.origin();
        self.titles[handle] = Some(OpenedTitle { _file: file, memory: None, reserve: None });
        let handle = handle as u32;
        self.clients.send(LocalCommand::Open { client: self.id, handle, origin });
        Ok(handle)
    }

    /// All bytes of an open title are in `memory`, which nobody changes, and which is kept by
    /// `keep` until the engine has closed the title. Once for each handle that is open.
    pub fn map(&mut self, handle: u32, memory: SharedBytes, keep: Box<dyn Send>) {
        let client = self.id;
        let title = self.titles[handle as usize].as_mut();
        title.expect("an open title is mapped").memory = Some(keep);
        self.clients.send(LocalCommand::Map { client, handle, memory });
    }

    /// Has the engine keep the moments of reads of an open title, or refuse the reads, until the
    /// title is closed. Once for each handle that is open.
    pub fn reserve(&mut self, handle: u32, grant: TimedGrant) {
        let (client, reserve) = (self.id, grant.reserve);
        let title = self.titles[handle as usize].as_mut();
        title.expect("room is reserved for an open title").reserve = Some(grant);
        self.clients.send(LocalCommand::Reserve { client, handle, reserve });
    }

    /// Closes a title, when no request for it is under way. False if the handle is not open.
    pub fn close(&mut self, handle: u32) -> bool {
        let is_open = self.titles.get(handle as usize).is_some_and(Option::is_some);
        if is_open {
            self.clients.send(LocalCommand::Close { client: self.id, handle });
            while let Ok(report) = self.reports.recv_timeout(PATIENCE) {
                if matches!(report, SessionReport::Closed(closed) if closed == handle) {
                    self.titles[handle as usize] = None;
                    break;
                }
            }
        }
        is_open
    }
}

impl Drop for LocalSession {
    fn drop(&mut self) {
        drop(self.forwarded.take());
        self.clients.send(LocalCommand::Detach(self.id));
        loop {
            match self.reports.recv_timeout(PATIENCE) {
                // Its memory is unmapped here, and not on a real-time thread.
                Ok(SessionReport::Detached(client)) => return drop(client),
                Ok(SessionReport::Closed(_)) => {}
                Err(_) => break,
            }
        }
        // A disk does not answer, or the engine has ended. The kernel may still write into blocks
        // that wait for these files.
        for title in self.titles.drain(..).flatten() {
            std::mem::forget(title);
        }
    }
}

/// Clients that the server itself is.
pub const OWN_CLIENTS: u16 = 1;

/// How long a session waits for the engine: a disk that does not answer holds its reads.
const PATIENCE: Duration = Duration::from_secs(30);
