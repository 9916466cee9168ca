//! Bytes into a file: fills places, sums up on the way, hands them over in order.
//!
//! Promise: what has settled lies in the file, in its order, with the checksums of exactly these
//! bytes. It waits only for places; writes are whole sectors, so the last one is filled up with
//! zeros, which are written over when more comes and cut off at the end.

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
    /// Where the place begins in the file, a whole sector.
    base: u64,
    /// Bytes in the place; without one, in `tail`.
    filled: usize,
    /// What is to stand at the beginning of the next place: less than a sector.
    tail: Vec<u8>,
    flying: InFlight,
    sums: SumsBuilder,
    /// Who is told of what has landed.
    landed: Option<Arc<WrittenWatermark>>,
    /// A sector that was filled up, and is written once more with what comes next.
    rounded: Option<PaddedWrite>,
}

/// The write of a sector that was filled up with zeros.
struct PaddedWrite {
    end: u64,
    /// Whether it has landed.
    done: watch::Receiver<Option<bool>>,
}

impl WriteBuffer {
    /// Writes `file` from its beginning.
    pub(super) fn new(medium: Arc<dyn Medium>, file: Arc<OwnedFd>) -> Self {
        Self::after(medium, file, SumsBuilder::default(), Vec::new())
    }

    /// Goes on where `sums` ended; `tail` is what the file has since the last whole sector.
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

    /// Where the next place would end: what must be reserved before `space`.
    pub(super) fn reach(&self) -> u64 {
        self.base + self.medium.slot_size() as u64
    }

    /// From now on `landed` is told of what has landed.
    pub(super) fn tell(&mut self, landed: Arc<WrittenWatermark>) {
        self.landed = Some(landed);
    }

    pub(super) fn sums(&self) -> &SumsBuilder {
        &self.sums
    }

    pub(super) fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Whether everything up to `end` has landed, as far as [`Self::space`] has seen.
    pub(super) fn landed(&self, end: u64) -> bool {
        self.flying.landed(end)
    }

    /// Room for the next bytes, at least one. Waits for a place.
    pub(super) async fn space(&mut self) -> io::Result<&mut [u8]> {
        self.ready().await?;
        Ok(self.space_there())
    }

    /// The room in the place that is there.
    pub(super) fn space_there(&mut self) -> &mut [u8] {
        let place = self.place.as_mut().expect("there is one now");
        &mut place.memory()[self.filled..]
    }

    /// Waits for a place, when there is none. Nothing is lost when it is given up.
    pub(super) async fn ready(&mut self) -> io::Result<()> {
        self.flying.reap()?;
        if self.place.is_none() {
            self.flying.thin(self.medium.places_each() - 1).await?;
            let place = self.medium.place().await;
            self.set_out(place);
        }
        Ok(())
    }

    /// The same without a wait; whether there is a place.
    pub(super) fn ready_now(&mut self) -> io::Result<bool> {
        self.flying.reap()?;
        if self.place.is_none()
            && let Some(place) = self.medium.place_now()
        {
            self.set_out(place);
        }
        Ok(self.place.is_some())
    }

    /// Whether a place is being filled.
    pub(super) fn has_place(&self) -> bool {
        self.place.is_some()
    }

    /// Goes on in a spare place, when there is one; tells how much it takes.
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

    /// Takes notice of what has landed.
    pub(super) fn reap(&mut self) -> io::Result<()> {
        self.flying.reap()
    }

    /// The first `count` bytes of the space have been filled. Tells the length at which a place has
    /// been handed over by this.
    pub(super) fn advance(&mut self, count: usize) -> Option<u64> {
        let place = self.place.as_mut().expect("space was given");
        self.sums.add(&place.memory()[self.filled..][..count]);
        self.filled += count;
        (self.filled == self.medium.slot_size()).then(|| {
            self.hand_over(self.filled);
            self.base
        })
    }

    /// Gives the place back while nothing comes: whole sectors are written, the rest is kept.
    pub(super) fn park(&mut self) {
        let Some(place) = &mut self.place else { return };
        let whole = self.filled - self.filled % SECTOR as usize;
        self.tail.extend(&place.memory()[whole..self.filled]);
        match whole {
            0 => self.place = None,
            whole => self.hand_over(whole),
        }
    }

    /// Writes the place's first `whole` bytes; what is after them must be in `tail`.
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

    /// Begins a write; of a sector that is on its way already, only when that has landed.
    fn begin(&mut self, place: Box<dyn WriteSlot>, offset: u64, len: usize) -> PendingIo {
        let (file, offset) = (Arc::clone(&self.file), Bytes(offset));
        let extent = Extent { file, offset, len };
        match self.rounded.take() {
            Some(mut rounded) if rounded.end > offset.0 => {
                let write = tokio::spawn(async move {
                    match rounded.done.wait_for(Option::is_some).await.map(|done| *done) {
                        Ok(Some(true)) => place.write(extent).await,
                        // Whoever waits for that one hears why.
                        _ => Err(stopped()),
                    }
                });
                Box::pin(async move { write.await.unwrap_or_else(|_| Err(stopped())) })
            }
            _ => place.write(extent),
        }
    }

    /// Writes what does not fill a sector, filled up with zeros.
    fn fill_up(&mut self, mut place: Box<dyn WriteSlot>) -> PendingIo {
        let sector = &mut place.memory()[..SECTOR as usize];
        sector[..self.tail.len()].copy_from_slice(&self.tail);
        sector[self.tail.len()..].fill(0);
        self.begin(place, self.base, SECTOR as usize)
    }

    /// Begins to write everything that has come, also what does not fill a sector, without a wait. Tells where
    /// it will have ended; nothing while there is no place for that.
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

    /// Waits until everything lies in the file.
    pub(super) async fn settle(&mut self) -> io::Result<()> {
        self.park();
        if !self.tail.is_empty() {
            let place = self.medium.place().await;
            let write = self.fill_up(place);
            // The same sector may be written again, by what comes next: only after this.
            self.flying.push(self.base + SECTOR, write);
        }
        self.flying.land().await
    }

    /// Waits until nothing is under way, also after a failure.
    pub(super) async fn land(&mut self) -> io::Result<()> {
        self.flying.land().await
    }

    /// What the file has since the last whole sector; after it has settled.
    pub(super) fn tail(&self) -> &[u8] {
        &self.tail
    }

    pub(super) fn into_sums(self) -> SumsBuilder {
        self.sums
    }
}
