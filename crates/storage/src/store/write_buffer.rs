//! Writes bytes into a file: fills slots, computes checksums, and hands the slots over in order.
//!
//! Promise: settled bytes lie in the file, in order, with the checksums of exactly these bytes. The
//! buffer waits only for slots. Writes are whole sectors: the last one is padded with zeros, which
//! are overwritten by later bytes or cut off at the end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tactus_core::units::{Bytes, SECTOR};
use tokio::sync::watch;

use super::growing::WrittenWatermark;
use super::medium::{Extent, InFlight, Medium, PendingIo, WriteSlot, stopped};
use super::sums::SumsBuilder;

pub(super) struct WriteBuffer {
    medium: Arc<dyn Medium>,
    file: Arc<OwnedFd>,
    place: Option<Box<dyn WriteSlot>>,
    /// The slot's offset in the file, a whole sector.
    base: u64,
    /// Bytes in the slot; without a slot, in `tail`.
    filled: usize,
    /// The first bytes of the next slot: less than a sector.
    tail: Vec<u8>,
    flying: InFlight,
    sums: SumsBuilder,
    /// The watermark that completed writes advance.
    landed: Option<Arc<WrittenWatermark>>,
    /// A padded sector that must be written again with the next bytes.
    rounded: Option<PaddedWrite>,
}

/// The write of a sector that was padded with zeros.
struct PaddedWrite {
    end: u64,
    /// Whether it has completed.
    done: watch::Receiver<Option<bool>>,
}

impl WriteBuffer {
    /// Writes `file` from its beginning.
    pub(super) fn new(medium: Arc<dyn Medium>, file: Arc<OwnedFd>) -> Self {
        Self::after(medium, file, SumsBuilder::default(), Vec::new())
    }

    /// Continues where `sums` ended; `tail` holds the file's bytes since the last whole sector.
    pub(super) fn after(
        medium: Arc<dyn Medium>,
        file: Arc<OwnedFd>,
        sums: SumsBuilder,
        tail: Vec<u8>,
    ) -> Self {
        let len = sums.mark().len;
        assert_eq!(tail.len() as u64, len % SECTOR, "the tail completes the last sector");
        let base = len - tail.len() as u64;
        let (place, flying) = (None, InFlight::default());
        let (filled, landed, rounded) = (tail.len(), None, None);
        Self { medium, file, place, base, filled, tail, flying, sums, landed, rounded }
    }

    /// Bytes so far, from the file's beginning.
    pub(super) fn len(&self) -> u64 {
        self.base + self.filled as u64
    }

    /// The end of the next slot in the file: this must be reserved before `space`.
    pub(super) fn reach(&self) -> u64 {
        self.base + self.medium.slot_size() as u64
    }

    /// Advances `landed` with completed writes from now on.
    pub(super) fn tell(&mut self, landed: Arc<WrittenWatermark>) {
        self.landed = Some(landed);
    }

    pub(super) fn sums(&self) -> &SumsBuilder {
        &self.sums
    }

    pub(super) fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Whether all writes up to `end` have completed, as far as [`Self::space`] has seen.
    pub(super) fn landed(&self, end: u64) -> bool {
        self.flying.landed(end)
    }

    /// Memory for the next bytes, at least one. Waits for a slot.
    pub(super) async fn space(&mut self) -> io::Result<&mut [u8]> {
        self.ready().await?;
        Ok(self.space_there())
    }

    /// The free memory of the present slot.
    pub(super) fn space_there(&mut self) -> &mut [u8] {
        let place = self.place.as_mut().expect("there is one now");
        &mut place.memory()[self.filled..]
    }

    /// Waits for a slot, if there is none. Cancelling the wait loses nothing.
    pub(super) async fn ready(&mut self) -> io::Result<()> {
        self.flying.reap()?;
        if self.place.is_none() {
            self.flying.thin(self.medium.places_each() - 1).await?;
            let place = self.medium.place().await;
            self.set_out(place);
        }
        Ok(())
    }

    /// The same without a wait; returns whether there is a slot.
    pub(super) fn ready_now(&mut self) -> io::Result<bool> {
        self.flying.reap()?;
        if self.place.is_none()
            && let Some(place) = self.medium.place_now()
        {
            self.set_out(place);
        }
        Ok(self.place.is_some())
    }

    /// Whether a slot is being filled.
    pub(super) fn has_place(&self) -> bool {
        self.place.is_some()
    }

    /// Continues in a spare slot, if there is one; returns how much it holds.
    pub(super) fn spare_now(&mut self) -> u64 {
        assert!(self.place.is_none(), "one is filled after the other");
        let Some(place) = self.medium.spare_now() else { return 0 };
        let taken = self.tail.len();
        self.set_out(place);
        (self.medium.slot_size() - taken) as u64
    }

    fn set_out(&mut self, mut place: Box<dyn WriteSlot>) {
        place.memory()[..self.tail.len()].copy_from_slice(&self.tail);
        self.tail.clear();
        self.place = Some(place);
    }

    /// Removes completed writes.
    pub(super) fn reap(&mut self) -> io::Result<()> {
        self.flying.reap()
    }

    /// Records that the first `count` bytes of the space have been filled. Returns the length at
    /// which this has handed a slot over.
    pub(super) fn advance(&mut self, count: usize) -> Option<u64> {
        let place = self.place.as_mut().expect("space was given");
        self.sums.add(&place.memory()[self.filled..][..count]);
        self.filled += count;
        (self.filled == self.medium.slot_size()).then(|| {
            self.hand_over(self.filled);
            self.base
        })
    }

    /// Returns the slot while no bytes arrive: whole sectors are written, the rest is kept.
    pub(super) fn park(&mut self) {
        let Some(place) = &mut self.place else { return };
        let whole = self.filled - self.filled % SECTOR as usize;
        self.tail.extend(&place.memory()[whole..self.filled]);
        match whole {
            0 => self.place = None,
            whole => self.hand_over(whole),
        }
    }

    /// Writes the slot's first `whole` bytes; the bytes after them must be in `tail`.
    fn hand_over(&mut self, whole: usize) {
        let place = self.place.take().expect("there is something to write");
        let from = self.base;
        self.base += whole as u64;
        self.filled = self.tail.len();
        let write = self.begin(place, from, whole);
        let write = match &self.landed {
            Some(landed) => landed.watch(from, self.base, write),
            None => write,
        };
        self.flying.push(self.base, write);
    }

    /// Begins a write. A write of a sector that is under way already waits for the first one.
    fn begin(&mut self, place: Box<dyn WriteSlot>, offset: u64, len: usize) -> PendingIo {
        let (file, offset) = (Arc::clone(&self.file), Bytes(offset));
        let extent = Extent { file, offset, len };
        match self.rounded.take() {
            Some(mut rounded) if rounded.end > offset.0 => {
                let write = tokio::spawn(async move {
                    match rounded.done.wait_for(Option::is_some).await.map(|done| *done) {
                        Ok(Some(true)) => place.write(extent).await,
                        // The caller that waits for the first write gets its error.
                        _ => Err(stopped()),
                    }
                });
                Box::pin(async move { write.await.unwrap_or_else(|_| Err(stopped())) })
            }
            _ => place.write(extent),
        }
    }

    /// Writes a partial sector, padded with zeros.
    fn fill_up(&mut self, mut place: Box<dyn WriteSlot>) -> PendingIo {
        let sector = &mut place.memory()[..SECTOR as usize];
        sector[..self.tail.len()].copy_from_slice(&self.tail);
        sector[self.tail.len()..].fill(0);
        self.begin(place, self.base, SECTOR as usize)
    }

    /// Begins to write all bytes, including a partial sector, without a wait. Returns where the
    /// write ends; none while there is no slot for it.
    pub(super) fn round_off(&mut self) -> Option<u64> {
        self.park();
        if self.tail.is_empty() {
            return Some(self.base);
        }
        let place = self.medium.place_now()?;
        let (write, end) = (self.fill_up(place), self.base + SECTOR);
        let (tell, done) = watch::channel(None);
        let write = tokio::spawn(async move {
            let landed = write.await;
            tell.send_replace(Some(landed.is_ok()));
            landed
        });
        self.rounded = Some(PaddedWrite { end, done });
        let write = Box::pin(async move { write.await.unwrap_or_else(|_| Err(stopped())) });
        self.flying.push(end, write);
        Some(end)
    }

    /// Waits until all bytes lie in the file.
    pub(super) async fn settle(&mut self) -> io::Result<()> {
        self.park();
        if !self.tail.is_empty() {
            let place = self.medium.place().await;
            let write = self.fill_up(place);
            // Later bytes may write the same sector again, only after this write.
            self.flying.push(self.base + SECTOR, write);
        }
        self.flying.land().await
    }

    /// Waits until no write is under way, even after a failure.
    pub(super) async fn land(&mut self) -> io::Result<()> {
        self.flying.land().await
    }

    /// The file's bytes since the last whole sector.
    pub(super) fn tail(&self) -> &[u8] {
        &self.tail
    }

    pub(super) fn into_sums(self) -> SumsBuilder {
        self.sums
    }
}
