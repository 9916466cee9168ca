//! Titles in memory that programs map: each a memory file of its own, which can be taken back.
//!
//! Promise: a program sees one version of one title and nothing else. The memory of all of them is
//! bounded. When the last program has closed a title, its memory is given back even if a program
//! keeps its mapping: the file is cut to nothing, and whoever looks at it then gets `SIGBUS`.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rustix::fs::{Mode, OFlags};
use tactus_client::memory::{self, Mapping};
use tactus_control::broker::Broker;
use tactus_control::local::LocalClients;
use tactus_core::local::layout;
use tactus_core::units::Bytes;
use tactus_engine::message::TitleId;
use tactus_ring::shared::{SharedBytes, SharedMemory};
use tactus_storage::catalogue::OpenTitle;

use crate::budget::{MemoryBudget, MemoryShare};
use crate::fill::{self, FillError};

/// The titles that programs have mapped. Clones share them.
#[derive(Clone)]
pub(crate) struct MappedTitles(Arc<Shared>);

struct Shared {
    clients: LocalClients,
    broker: Broker,
    budget: MemoryBudget,
    table: Mutex<HashMap<TitleId, Weak<TitleMemory>>>,
    /// One title at a time is read: the server has one place among its own clients.
    reading: Mutex<()>,
}

/// A title in memory, as long as a program has it open.
pub(crate) struct TitleMemory {
    file: OwnedFd,
    /// Set once it is filled.
    mapping: OnceLock<Arc<Mapping>>,
    shared: Arc<Shared>,
    /// Given back when the file has been cut.
    _share: MemoryShare,
}

/// Why a title is not mapped.
#[derive(Debug)]
pub(crate) enum MapFault {
    /// It has no bytes, or grows.
    Unfit,
    /// Its memory would be more than is left of the limit.
    NoRoom(Bytes),
    /// It could not be read into memory.
    Fill(FillError),
    /// The kernel refuses.
    System(io::Error),
}

impl MappedTitles {
    pub(crate) fn new(clients: LocalClients, broker: Broker, budget: MemoryBudget) -> Self {
        let (table, reading) = Default::default();
        Self(Arc::new(Shared { clients, broker, budget, table, reading }))
    }

    /// Reads `title` into `memory`, which is new. Waits for the disk.
    pub(crate) fn fill(
        &self,
        title: &Arc<OpenTitle>,
        memory: Arc<Mapping>,
    ) -> Result<(), FillError> {
        let _reading = self.0.reading();
        fill::fill(&self.0.clients, &self.0.broker, title, memory)
    }

    /// The memory of a title: that of another program, or new and filled by the engine.
    pub(crate) fn get(&self, title: &Arc<OpenTitle>) -> Result<Arc<TitleMemory>, MapFault> {
        if title.len.0 == 0 || title.following.is_some() {
            return Err(MapFault::Unfit);
        }
        let known = || self.0.table().get(&title.id).and_then(Weak::upgrade);
        if let Some(known) = known() {
            return Ok(known);
        }
        let _reading = self.0.reading();
        if let Some(known) = known() {
            return Ok(known);
        }
        let len = title.len.0;
        let memory = Arc::new(self.0.claim(len)?);
        let whole = (layout::DATA as u64 + len) as usize;
        rustix::fs::ftruncate(&memory.file, whole as u64).map_err(system)?;
        let mapping = Mapping::of_own(memory.file.as_fd(), whole).map_err(MapFault::System)?;
        let mapping = Arc::new(mapping);
        memory::seal_content(&memory.file).map_err(MapFault::System)?;
        fill::fill(&self.0.clients, &self.0.broker, title, Arc::clone(&mapping))
            .map_err(MapFault::Fill)?;
        memory.mapping.set(mapping).ok();
        self.0.table().insert(title.id, Arc::downgrade(&memory));
        Ok(memory)
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, HashMap<TitleId, Weak<TitleMemory>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reading(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `len` bytes of the limit, for an empty file.
    fn claim(self: &Arc<Self>, len: u64) -> Result<TitleMemory, MapFault> {
        let file = memory::create_title().map_err(MapFault::System)?;
        let mut share = self.budget.share();
        share.resize(len).map_err(MapFault::NoRoom)?;
        let mapping = OnceLock::new();
        Ok(TitleMemory { file, mapping, shared: Arc::clone(self), _share: share })
    }
}

impl TitleMemory {
    /// Its bytes. They must not be looked at when it has been dropped.
    pub(crate) fn bytes(&self) -> SharedBytes {
        let mapping = self.mapping.get().expect("it is given out when it is filled");
        SharedBytes::new(Arc::clone(mapping) as Arc<dyn SharedMemory>, layout::DATA)
    }

    /// A descriptor for a program, which can only be read.
    pub(crate) fn read_only(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&self.file));
        Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }
}

impl Drop for TitleMemory {
    fn drop(&mut self) {
        // Only now the memory is free: a program may keep its mapping.
        if let Err(error) = rustix::fs::ftruncate(&self.file, 0) {
            tracing::error!("the memory of a title cannot be taken back: {error}");
        }
        self.shared.table().retain(|_, title| title.strong_count() > 0);
    }
}

fn system(error: rustix::io::Errno) -> MapFault {
    MapFault::System(error.into())
}
