//! The medium of a logging disk: while a subject works it logs, after a cut it shows an image.
//!
//! Promise: a write is answered when it is in the log, a flush when it is; so the log holds them in
//! an order that the kernel could see. One fault at a time can be asked for; it hits once.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};
use serde::{Deserialize, Serialize};
use tactus_core::units::Bytes;

use super::content;
use super::log::{Image, Log, Loss, Piece};
use crate::disk::exported_file::{BLOCK, Medium};
use crate::random::Random;

/// What goes wrong once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Fault {
    /// The next write that holds a piece of a title fails, and is not written.
    Data,
    /// The next flush fails, and the disk loses a part of what it should have covered.
    Flush,
}

/// What a disk has counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// Writes and flushes.
    pub(super) events: u64,
    /// Faults that have hit.
    pub(super) hits: u64,
    /// Reads of the first block, where every file system begins.
    pub(super) first_reads: u64,
}

/// A disk that remembers everything that it was told.
#[derive(Debug)]
pub(super) struct LoggingMedium {
    size: Bytes,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    log: Log,
    /// What is shown instead of the log's end.
    image: Option<Image>,
    fault: Option<Fault>,
    /// Faults that have hit.
    hits: u64,
    /// Reads of the first block.
    first_reads: u64,
    mark: usize,
    random: Random,
    buffer: Vec<u8>,
}

impl LoggingMedium {
    /// An empty disk.
    pub(super) fn new(size: Bytes) -> Self {
        let log = Log::new(size.0 as usize / BLOCK);
        let state = State {
            log,
            image: None,
            fault: None,
            hits: 0,
            first_reads: 0,
            mark: 0,
            random: Random::new(1),
            buffer: Vec::new(),
        };
        Self { size, state: Mutex::new(state) }
    }

    /// What there was so far.
    pub(super) fn counts(&self) -> Counts {
        let state = self.lock();
        let State { log, hits, first_reads, .. } = &*state;
        Counts { events: log.length() as u64, hits: *hits, first_reads: *first_reads }
    }

    /// From here on the disk can be rewound to this point.
    pub(super) fn mark(&self) {
        let mut state = self.lock();
        state.mark = state.log.length();
    }

    /// Back to the mark: all that was written since is forgotten, and the disk logs.
    pub(super) fn rewind(&self) {
        let mut state = self.lock();
        let mark = state.mark;
        state.image = None;
        state.fault = None;
        state.log.rewind(mark);
    }

    /// Asks for a fault, or for none.
    pub(super) fn fail(&self, fault: Option<Fault>) {
        self.lock().fault = fault;
    }

    /// Shows what is left when the power fails after the first `at` events.
    pub(super) fn cut(&self, at: u64, loss: Loss, seed: u64) {
        let mut state = self.lock();
        let State { log, image, .. } = &mut *state;
        let image = image.get_or_insert_with(|| Image::new(log));
        image.cut(log, (at as usize).min(log.length()), loss, &mut Random::new(seed));
    }

    /// Writes what is shown to a sparse file.
    pub(super) fn save(&self, path: &Path) -> std::io::Result<()> {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::create(path)?;
        file.set_len(self.size.0)?;
        let state = self.lock();
        for block in 0..self.size.0 as usize / BLOCK {
            if let Some(piece) = state.block(block) {
                file.write_all_at(piece, (block * BLOCK) as u64)?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of another thread ends the process; its state is as good as any.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn block(&self, block: usize) -> Option<&Piece> {
        match &self.image {
            Some(image) => image.block(&self.log, block),
            None => self.log.block(block),
        }
    }

    /// Whether the fault that was asked for hits now.
    fn hit(&mut self, fault: Fault) -> bool {
        let hit = self.image.is_none() && self.fault == Some(fault);
        if hit {
            self.fault = None;
            self.hits += 1;
        }
        hit
    }
}

impl Medium for LoggingMedium {
    fn size(&self) -> Bytes {
        self.size
    }

    fn read(&self, at: u64, length: u32, reply: ReplyData) {
        let mut state = self.lock();
        state.first_reads += u64::from(at == 0);
        let mut buffer = std::mem::take(&mut state.buffer);
        buffer.resize(length as usize, 0);
        let end = at + u64::from(length);
        if !at.is_multiple_of(BLOCK as u64) || end > self.size.0 {
            reply.error(Errno::EINVAL);
            return;
        }
        for (place, target) in buffer.chunks_mut(BLOCK).enumerate() {
            match state.block(at as usize / BLOCK + place) {
                Some(piece) => target.copy_from_slice(&piece[..target.len()]),
                None => target.fill(0),
            }
        }
        reply.data(&buffer);
        state.buffer = buffer;
    }

    fn write(&self, at: u64, data: &[u8], reply: ReplyWrite) {
        let mut state = self.lock();
        let holds_title = || data.chunks(BLOCK).any(content::is_of_a_title);
        if state.fault == Some(Fault::Data) && holds_title() && state.hit(Fault::Data) {
            reply.error(Errno::EIO);
            return;
        }
        let State { log, image, .. } = &mut *state;
        let written = match image {
            Some(image) => image.write(at, data),
            None => log.write(at, data),
        };
        match written {
            true => reply.written(data.len() as u32),
            false => reply.error(Errno::EIO),
        }
    }

    fn sync(&self, reply: ReplyEmpty) {
        let mut state = self.lock();
        if state.hit(Fault::Flush) {
            let State { log, random, .. } = &mut *state;
            log.lose_unflushed(random);
            reply.error(Errno::EIO);
            return;
        }
        if state.image.is_none() {
            state.log.flush();
        }
        reply.ok();
    }
}
