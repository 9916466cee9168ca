//! Grants, and the deliveries that they start.
//!
//! Promise: a grant returns when the engine has retired its last delivery, and not before. A socket
//! that is handed over belongs to the engine until it reports the delivery as finished.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tactus_core::cost::PlannedCost;
use tactus_core::datagrams::{Framing, Plan};
use tactus_core::units::{BitRate, Bytes, MonoTime};
use tactus_engine::message::{
    Blocks, Chunks, Command, Delivery, Extent, Mismatch, Outcome, Rate, Schedule, Start, StreamId,
};
use tactus_storage::catalogue::OpenTitle;
use tokio::sync::oneshot;

use super::generated::ChunkRing;
use super::interleaving::Interleaver;
use super::output::Output;
use super::senders::Servers;
use super::stream_table::TitleFile;
use super::{DeliveryResult, Shared};

/// Room for one delivery at a time. Dropping it stops its delivery and returns the grant.
pub struct Grant {
    pub(super) shared: Arc<Shared>,
    /// Its slot in the stream table.
    pub(super) slot: u32,
    /// The servers of its deliveries.
    pub(super) servers: Servers,
    pub(super) cost: PlannedCost,
    /// Limit of the blocks that its deliveries may hold or wait for.
    pub(super) window: u32,
    /// `None` for best effort.
    pub(super) rate: Option<Rate>,
    /// A delivery of this grant that has finished but may not have retired.
    pub(super) retiring: Option<oneshot::Receiver<()>>,
    pub(super) in_engine: bool,
}

/// The source of a delivery.
pub enum Source {
    /// Its blocks.
    Blocks {
        /// The bytes; at least one.
        extent: Extent,
        /// Their framing.
        framing: Framing,
        /// The plan of their times; `None` if they are due at the granted rate.
        plan: Option<Arc<Plan>>,
    },
    /// Chunks generated from the title, each with its time after `begin`. The end mark in the ring
    /// ends them.
    Chunks {
        /// The engine's end of their ring.
        ring: ChunkRing,
        /// The origin of their times.
        begin: MonoTime,
        /// What is put around them.
        framing: Framing,
    },
}

impl Source {
    /// These bytes, once and unframed.
    #[must_use]
    pub fn range(range: Range<u64>) -> Self {
        Self::of(Extent::Range(Bytes(range.start)..Bytes(range.end)))
    }

    /// These bytes, once and unframed, at the times of `plan` if there is one.
    #[must_use]
    pub fn planned(range: Range<u64>, plan: Option<Arc<Plan>>) -> Self {
        let extent = Extent::Range(Bytes(range.start)..Bytes(range.end));
        Self::Blocks { extent, framing: Framing::Plain, plan }
    }

    /// These bytes, unframed.
    #[must_use]
    pub fn of(extent: Extent) -> Self {
        Self::Blocks { extent, framing: Framing::Plain, plan: None }
    }
}

impl Grant {
    /// Starts a delivery, once the one before it has retired.
    ///
    /// # Errors
    /// Why it could not start.
    ///
    /// # Panics
    /// If the source is an empty range.
    pub async fn start(
        &mut self,
        title: &Arc<OpenTitle>,
        source: Source,
        output: Output,
    ) -> Result<Running, DeliveryResult> {
        if let Some(retiring) = self.retiring.take() {
            // A closed channel also means that the slot is empty.
            drop(retiring.await);
        }
        self.start_now(title, source, output)
    }

    /// Starts the first delivery of the grant.
    ///
    /// # Errors
    /// Why it could not start.
    ///
    /// # Panics
    /// If the source is an empty range, or the grant has been used before.
    pub fn start_now(
        &mut self,
        title: &Arc<OpenTitle>,
        source: Source,
        output: Output,
    ) -> Result<Running, DeliveryResult> {
        assert!(self.retiring.is_none(), "the delivery before has retired");
        let output = output.sent_by(self.servers.sender);
        let failed = |errno| DeliveryResult::without_socket(Outcome::DiskFailed(errno));
        let (mut opened, delivery) = match source {
            Source::Blocks { extent, framing, plan } => {
                let opened = TitleFile::open(title, &self.shared.rules).map_err(failed)?;
                let delivery = self.of_blocks(&opened, extent, (framing, plan), &output);
                (opened, delivery.map_err(refused)?)
            }
            Source::Chunks { ring: ChunkRing { ring, keep }, begin, framing } => {
                let rate = self.rate.map_or(BitRate(0), |rate| rate.rate);
                let chunks = Chunks { ring, begin, rate, framing };
                let delivery = Delivery::of_chunks(chunks, output.engine.clone());
                let delivery = delivery.map_err(refused)?;
                (TitleFile::chunks(title, keep), delivery)
            }
        };
        opened.ring = output.shared_ring();
        let (finished, end) = oneshot::channel();
        let (retired, retiring) = oneshot::channel();
        let mut table = self.shared.table();
        table.begun += 1;
        let begun = table.begun;
        let slot = &mut table.slots[self.slot as usize];
        slot.begun = begun;
        slot.stopped = false;
        slot.is_left = false;
        slot.is_deferred = false;
        slot.is_continued = false;
        slot.generation = slot.generation.wrapping_add(1);
        slot.finished = Some(finished);
        slot.retired = Some(retired);
        slot.title = Some(opened);
        slot.is_framed = delivery.is_framed();
        slot.output = Some(output);
        let stream = slot.stream(self.slot);
        self.in_engine = true;
        self.retiring = Some(retiring);
        table.command(Command::Start(Start { stream, delivery }));
        drop(table);
        Ok(Running { shared: Arc::clone(&self.shared), stream, end, outcome: None })
    }

    fn of_blocks(
        &self,
        opened: &TitleFile,
        extent: Extent,
        (framing, plan): (Framing, Option<Arc<Plan>>),
        output: &Output,
    ) -> Result<Delivery, Mismatch> {
        let mut origin = opened.origin();
        let range = extent.range();
        assert!(range.start < range.end, "an empty range is answered without the engine");
        if !matches!(extent, Extent::List(_)) {
            origin.len = origin.len.max(range.end);
        }
        let schedule = match (self.rate, plan) {
            (Some(rate), Some(plan)) => Schedule::Plan(rate, plan),
            (Some(rate), None) => Schedule::ByteClock(rate),
            (None, _) => Schedule::BestEffort,
        };
        let blocks = Blocks { origin, extent, window: self.window };
        Delivery::of_blocks(blocks, framing, schedule, output.engine.clone())
    }

    /// Delivers `range` of `title`, at the times of `plan` if there is one. Dropping the future
    /// stops the delivery together with its grant.
    ///
    /// # Panics
    /// If the range is empty.
    pub async fn deliver(
        &mut self,
        title: &Arc<OpenTitle>,
        range: Range<u64>,
        plan: Option<Arc<Plan>>,
        output: Output,
    ) -> DeliveryResult {
        match self.start(title, Source::planned(range, plan), output).await {
            Ok(mut running) => running.ended().await,
            Err(ended) => ended,
        }
    }

    /// Stops its delivery, if it has one.
    pub fn stop(&self) {
        let mut table = self.shared.table();
        if self.in_engine && table.slots[self.slot as usize].output.is_some() {
            table.stop(self.slot);
        }
    }

    /// Returns the grant when its deliveries have left the engine.
    pub async fn retire(mut self) {
        self.stop();
        if let Some(retiring) = self.retiring.take() {
            // A closed channel also means that the slot is empty.
            drop(retiring.await);
        }
    }

    /// Stops its delivery. When that has left the engine, the room is kept for the next delivery of
    /// the same viewer or session.
    pub async fn vacate(mut self) {
        self.stop();
        if let Some(retiring) = self.retiring.take() {
            // A closed channel also means that the slot is empty.
            drop(retiring.await);
        }
        self.shared.table().slots[self.slot as usize].is_left = true;
    }

    /// Its slot in the stream table, which selects the engine's counters.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Its delivery; `None` before the first.
    pub fn stream(&self) -> Option<StreamId> {
        let stream = self.shared.table().slots[self.slot as usize].stream(self.slot);
        self.in_engine.then_some(stream)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        let slot = &mut table.slots[self.slot as usize];
        if self.in_engine && slot.title.is_some() {
            // Not retired yet: the engine may still send or read for it.
            slot.release = Some(self.cost.clone());
            if slot.output.is_some() {
                table.stop(self.slot);
            }
        } else {
            table.leave(self.slot, self.cost.clone());
        }
    }
}

/// The caller has combined parts that do not fit together.
fn refused(mismatch: Mismatch) -> DeliveryResult {
    tracing::error!(%mismatch, "a delivery cannot start");
    DeliveryResult::without_socket(Outcome::Stopped)
}

/// A running delivery. It continues when this handle is dropped, until its grant is dropped.
pub struct Running {
    shared: Arc<Shared>,
    stream: StreamId,
    end: oneshot::Receiver<DeliveryResult>,
    /// The reported outcome and the sent bytes.
    outcome: Option<(Outcome, u64)>,
}

impl Running {
    /// The stream, which another delivery can follow.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// The sender of messages between its frames.
    pub fn interleaver(&self) -> Interleaver {
        Interleaver::of(Arc::clone(&self.shared), self.stream)
    }

    /// Stops it, behind the frame in progress. [`Self::ended`] waits for the end.
    pub fn stop(&self) {
        let mut table = self.shared.table();
        let slot = &table.slots[self.stream.index as usize];
        if slot.generation == self.stream.generation && slot.output.is_some() {
            table.stop(self.stream.index);
        }
    }

    /// Stops it between two bytes of its title, and waits for its end. The result has the socket
    /// for a delivery that continues it.
    pub async fn interrupted(&mut self) -> DeliveryResult {
        self.interrupt();
        self.ended().await
    }

    fn interrupt(&self) {
        let mut table = self.shared.table();
        let slot = &mut table.slots[self.stream.index as usize];
        if slot.generation == self.stream.generation && slot.output.is_some() {
            slot.is_continued = !slot.stopped;
            table.stop(self.stream.index);
        }
    }

    /// Waits for its end. Only the first result has the socket.
    pub async fn ended(&mut self) -> DeliveryResult {
        std::future::poll_fn(|context| self.poll_ended(context)).await
    }

    /// Its end, if it has come. Only the first result has the socket.
    pub fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<DeliveryResult> {
        if let Some((outcome, sent)) = self.outcome {
            return Poll::Ready(DeliveryResult { sent, ..DeliveryResult::without_socket(outcome) });
        }
        let delivered = ready!(Pin::new(&mut self.end).poll(context));
        let delivered = delivered.unwrap_or(DeliveryResult::without_socket(Outcome::Stopped));
        self.outcome = Some((delivered.outcome, delivered.sent));
        Poll::Ready(delivered)
    }
}
