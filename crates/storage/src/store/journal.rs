//! The journal: the state of resumable uploads, and nothing else (W8).
//!
//! Promise: every later start finds a committed record, and finds a record whole or not at all. All
//! waiting records are written together and flushed once. The journal is append-only; when it has
//! grown too long, a new one replaces it (W11).
//!
//! ```text
//!   group: begins at a sector                                      next group
//!   | magic | journal | number | length | CRC32C | records ... | zeros | magic ...
//! ```
//!
//! A group is one write with one checksum: a torn group does not count. The group number and the
//! journal number exclude older contents of these sectors.

mod record;
mod table;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tactus_core::units::{Bytes, MIB, SECTOR};
use tokio::sync::{mpsc, oneshot};

pub(super) use record::{CreationRecord, Record, WatermarkRecord};
pub(super) use table::{Entry, Table};

use super::id::StoreId;
use super::medium::{Extent, Flush, Medium, WriteSlot, blocking};
use super::names::Names;
use record::Reader;

/// Its name in `.tactus/`.
pub(super) const FILE: &str = "journal";

const MAGIC: u32 = u32::from_le_bytes(*b"TJ01");
/// Magic, journal, number, length, checksum.
const HEAD: usize = 4 + 8 + 8 + 4 + 4;

/// Records that wait while a group is being flushed. When the queue is full, uploads wait.
const WAITING_MAX: usize = 1024;

/// Least length at which the journal is replaced: 16,384 flushes. In tests 16 flushes, so that they
/// cover the replacement.
const LENGTH_MIN: u64 = if cfg!(test) { 16 * SECTOR } else { 64 * MIB };

/// The result of reading the journal at a start.
#[derive(Debug, Default)]
pub(super) struct Replay {
    pub(super) table: Table,
    /// Sectors of groups that were torn or damaged.
    pub(super) skipped: u64,
}

/// Reads the journal in `top`; an absent one is empty.
pub(super) fn read(top: impl AsFd) -> io::Result<Replay> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(top, FILE, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Replay::default()),
        Err(errno) => return Err(errno.into()),
    };
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut std::fs::File::from(file), &mut bytes)?;
    Ok(replay(&bytes))
}

/// The state that the groups in `bytes` add up to. A damaged group is left out. An upload with a
/// record in a damaged group and later records is given up, because its state is unknown.
pub(super) fn replay(bytes: &[u8]) -> Replay {
    let mut found = Replay::default();
    let mut last = None;
    let mut rest = bytes;
    while !rest.is_empty() {
        let group = Group::read(rest).filter(|group| match last {
            None => true,
            Some((journal, number)) => group.journal == journal && group.number > number,
        });
        let sectors = match group {
            Some(group) => {
                last = Some((group.journal, group.number));
                for record in Reader::new(group.body).records() {
                    found.table.apply(record);
                }
                (HEAD + group.body.len()).next_multiple_of(SECTOR as usize)
            }
            None => {
                found.skipped += 1;
                SECTOR as usize
            }
        };
        rest = rest.get(sectors..).unwrap_or_default();
    }
    found
}

struct Group<'a> {
    journal: u64,
    number: u64,
    body: &'a [u8],
}

impl<'a> Group<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let mut reader = Reader::new(head);
        if reader.u32()? != MAGIC {
            return None;
        }
        let (journal, number, len) = (reader.u64()?, reader.u64()?, reader.u32()?);
        let body = rest.get(..len as usize)?;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..HEAD - 4]), body);
        (reader.u32()? == crc).then_some(Self { journal, number, body })
    }

    fn write(&self, to: &mut [u8]) -> usize {
        let mut head = Vec::with_capacity(HEAD);
        head.extend(MAGIC.to_le_bytes());
        head.extend(self.journal.to_le_bytes());
        head.extend(self.number.to_le_bytes());
        head.extend((self.body.len() as u32).to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head), self.body);
        head.extend(crc.to_le_bytes());
        let len = HEAD + self.body.len();
        let whole = len.next_multiple_of(SECTOR as usize);
        to[..HEAD].copy_from_slice(&head);
        to[HEAD..len].copy_from_slice(self.body);
        to[len..whole].fill(0);
        whole
    }
}

/// A record by itself, to be kept elsewhere: one group, with a checksum.
pub(super) fn seal(record: &Record) -> Vec<u8> {
    let mut body = Vec::new();
    record.write(&mut body);
    let mut whole = vec![0; (HEAD + body.len()).next_multiple_of(SECTOR as usize)];
    Group { journal: 0, number: 0, body: &body }.write(&mut whole);
    whole.truncate(HEAD + body.len());
    whole
}

/// The record that [`seal`] has written; none if anything about it is wrong.
pub(super) fn unseal(bytes: &[u8]) -> Option<Record> {
    let group = Group::read(bytes)?;
    let mut records = Reader::new(group.body).records();
    records.next().filter(|_| (group.journal, group.number) == (0, 0))
}

/// The handle that commits records.
#[derive(Debug)]
pub(super) struct Journal {
    waiting: mpsc::Sender<PendingRecord>,
    table: Arc<Mutex<Table>>,
}

#[derive(Debug)]
struct PendingRecord {
    record: Record,
    committed: oneshot::Sender<io::Result<()>>,
}

impl Journal {
    /// Starts a new journal with the contents of `table` in place of the old one, and its task.
    pub(super) async fn begin(
        names: Arc<Names>,
        medium: Arc<dyn Medium>,
        table: Table,
    ) -> io::Result<(Self, impl Future<Output = ()> + Send + 'static)> {
        let pen = GroupWriter::anew(&names, &medium, &table).await?;
        let table = Arc::new(Mutex::new(table));
        let (waiting, queue) = mpsc::channel(WAITING_MAX);
        let keeper = JournalTask { names, medium, table: Arc::clone(&table), pen };
        Ok((Self { waiting, table }, keeper.keep(queue)))
    }

    /// Commits `record`: when this returns, it is durable, and [`Self::look`] shows it. It may
    /// become durable even when the caller stops waiting.
    pub(super) async fn commit(&self, record: Record) -> io::Result<()> {
        let gone = || io::Error::other("the journal is closed");
        let (committed, answer) = oneshot::channel();
        self.waiting.send(PendingRecord { record, committed }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Reads the state in the journal.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Table) -> T) -> T {
        look(&super::lock(&self.table))
    }
}

/// The task that writes the journal: one task gives one order.
struct JournalTask {
    names: Arc<Names>,
    medium: Arc<dyn Medium>,
    table: Arc<Mutex<Table>>,
    pen: GroupWriter,
}

impl JournalTask {
    async fn keep(mut self, mut queue: mpsc::Receiver<PendingRecord>) {
        // One slot is held ready: a commit never waits behind uploads that fill theirs.
        let mut ready = self.medium.place().await;
        let mut waiting = Vec::new();
        let mut left: Option<PendingRecord> = None;
        let mut broken = None;
        loop {
            if let Some(left) = left.take() {
                waiting.push(left);
            } else {
                match queue.recv().await {
                    Some(next) => waiting.push(next),
                    None => return,
                }
            }
            let mut body = Vec::new();
            waiting[0].record.write(&mut body);
            let room = ready.memory().len() - HEAD;
            while let Ok(next) = queue.try_recv() {
                let len = body.len();
                next.record.write(&mut body);
                if body.len() > room {
                    body.truncate(len);
                    left = Some(next);
                    break;
                }
                waiting.push(next);
            }
            let result = match &broken {
                // Nothing is retried after a failure (W9).
                Some(error) => Err(again(error)),
                None => {
                    let written = self.pen.write(ready, &body).await;
                    ready = self.medium.place().await;
                    written
                }
            };
            let result = match result {
                Ok(()) => self.pen.flush(&self.medium).await,
                failed => failed,
            };
            if result.is_ok() {
                let mut table = super::lock(&self.table);
                for waiting in &waiting {
                    table.apply(waiting.record.clone());
                }
            }
            for waiting in waiting.drain(..) {
                let answer = result.as_ref().map_or_else(|error| Err(again(error)), |()| Ok(()));
                // A caller that stopped waiting needs no result.
                waiting.committed.send(answer).ok();
            }
            let result = match result {
                Ok(()) if self.pen.at > self.pen.length_max => self.anew().await,
                result => result,
            };
            if let Err(error) = result {
                broken.get_or_insert(error);
            }
        }
    }

    /// Replaces the journal by a new one.
    async fn anew(&mut self) -> io::Result<()> {
        let table = super::lock(&self.table).clone();
        self.pen = GroupWriter::anew(&self.names, &self.medium, &table).await?;
        Ok(())
    }
}

/// A copy of the error.
fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// Writes groups, one after another.
struct GroupWriter {
    file: Arc<OwnedFd>,
    journal: u64,
    number: u64,
    at: u64,
    length_max: u64,
}

impl GroupWriter {
    /// A new journal with the contents of `table`, durable under its name.
    async fn anew(names: &Arc<Names>, medium: &Arc<dyn Medium>, table: &Table) -> io::Result<Self> {
        let this = Arc::clone(names);
        let (file, staged) = blocking(move || this.nameless()).await?;
        let journal = u64::from_le_bytes(StoreId::random().0[..8].try_into().expect("eight"));
        let file = Arc::new(file);
        let mut pen = Self { file, journal, number: 0, at: 0, length_max: 0 };
        let mut body = Vec::new();
        for record in table.records() {
            let len = body.len();
            record.write(&mut body);
            if body.len() > medium.slot_size() - HEAD {
                pen.write(medium.place().await, &body[..len]).await?;
                body.drain(..len);
            }
        }
        pen.write(medium.place().await, &body).await?;
        pen.length_max = LENGTH_MIN.max(4 * pen.at);
        medium.sync(&pen.file, Flush::All).await?;
        let (this, file) = (Arc::clone(names), Arc::clone(&pen.file));
        blocking(move || Ok(name(&this, &file, staged)?)).await?;
        medium.sync(&names.own.top, Flush::All).await?;
        Ok(pen)
    }

    async fn write(&mut self, mut place: Box<dyn WriteSlot>, body: &[u8]) -> io::Result<()> {
        self.number += 1;
        let group = Group { journal: self.journal, number: self.number, body };
        let len = group.write(place.memory());
        let (file, offset) = (Arc::clone(&self.file), Bytes(self.at));
        self.at += len as u64;
        place.write(Extent { file, offset, len }).await
    }

    async fn flush(&self, medium: &Arc<dyn Medium>) -> io::Result<()> {
        medium.sync(&self.file, Flush::Data).await
    }
}

/// Gives a new journal its name, in one step.
fn name(names: &Names, file: &OwnedFd, staged: Option<StoreId>) -> Result<(), Errno> {
    let stage = &names.own.stage;
    let id = match staged {
        Some(id) => id,
        None => {
            let id = StoreId::random();
            super::names::link(file, stage, &id.to_string())?;
            id
        }
    };
    rustix::fs::renameat(stage, id.to_string(), &names.own.top, FILE)
}

#[cfg(test)]
mod tests;
