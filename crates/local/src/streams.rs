//! Streams of one client: titles at a rate, into rings of bytes that it shares.
//!
//! Promise: a stream is admitted like any other, and refused with the short resource. Each has one
//! place in the ledger at a time, also while it seeks. However it ends, its blocks, its place and
//! its memory come back. The memory of all rings of a client is bounded.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tactus_client::memory::{self, Mapping};
use tactus_client::protocol::Reply;
use tactus_control::broker::{Broker, DeliverySpec, Grant, Output, Party, Source, Viewer};
use tactus_control::settings::ClientShare;
use tactus_core::datagrams::Plan;
use tactus_core::ledger::Resource;
use tactus_core::local::stream::{BYTES, StreamEnd};
use tactus_core::path::RequestPath;
use tactus_core::smoothing::{Consumption, PlayerBuffer};
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MIB, MediaTime};
use tactus_engine::message::{EPROTO, Outcome, Rate, StreamRing};
use tactus_storage::catalogue::{Catalogue, OpenTitle, PartConsumption};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::budget::{MemoryBudget, MemoryShare};
use crate::doorbell::Doorbell;
use crate::errno::{
    EBADF, EBADMSG, EBUSY, ECANCELED, EINVAL, EIO, EMFILE, ENOSPC, ETIMEDOUT, Refusal,
};
use crate::peer::Peer;
use crate::rings::{RATES, TICK, claim, room_of};

/// Streams that a client may have at once.
const STREAMS_MAX: usize = 64;

/// What a player of a title with a variable rate holds, and what it needs before it begins: as for
/// players over HTTP by default.
const HELD: MediaTime = MediaTime(54_000_000);
const BEGIN: MediaTime = MediaTime(27_000_000);
/// The most that is sent at once at the beginning of such a title.
const BEGIN_MAX: Bytes = Bytes(8 * MIB);

/// What the streams of a client use of the server and of the client.
pub(crate) struct StreamContext {
    pub(crate) broker: Broker,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) runtime: Handle,
    /// The client's memory, with its mark.
    pub(crate) client: Arc<Mapping>,
    pub(crate) bell: Doorbell,
    /// Ends the client's connection.
    pub(crate) cut: Arc<dyn Fn() + Send + Sync>,
    pub(crate) memory: MemoryBudget,
}

/// A request for a stream.
pub(crate) struct StreamRequest {
    pub(crate) title: Arc<OpenTitle>,
    pub(crate) path: RequestPath,
    pub(crate) first: u64,
    /// `None`: the title's own rate.
    pub(crate) rate: Option<u64>,
    /// Bytes that are sent at once at the beginning.
    pub(crate) burst: u64,
    /// Bytes of the ring; zero: the server chooses.
    pub(crate) room: u64,
}

/// The streams of a client, by number.
pub(crate) struct Streams {
    context: StreamContext,
    viewer: Viewer,
    streams: HashMap<u32, Stream>,
}

/// One stream. Its delivery ends when this is dropped.
struct Stream {
    request: StreamRequest,
    ring: Arc<StreamRing>,
    /// While the ring has memory.
    _share: MemoryShare,
    /// Its viewer, as the broker knows it.
    session: u64,
    delivery: Option<RunningDelivery>,
}

struct RunningDelivery {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// How a part of a title is sent.
struct Schedule {
    rate: Rate,
    /// `None` at one rate.
    plan: Option<Arc<Plan>>,
}

impl Streams {
    pub(crate) fn new(context: StreamContext, peer: &Peer) -> Self {
        let viewer = Viewer {
            party: Party::User(peer.uid.as_raw()),
            device: None,
            client: format!("program {}", peer.pid),
            share: ClientShare::All,
        };
        Self { context, viewer, streams: HashMap::new() }
    }

    /// Begins a stream. Returns its ring with the reply.
    pub(crate) fn begin(
        &mut self,
        request: StreamRequest,
    ) -> Result<(Reply, Option<OwnedFd>), Refusal> {
        let number = (0..STREAMS_MAX as u32).find(|number| !self.streams.contains_key(number));
        let number = number.ok_or_else(|| {
            (EMFILE, format!("{STREAMS_MAX} streams are open, which is the most for one program"))
        })?;
        let schedule = self.context.schedule(&request, request.first)?;
        let room = schedule.room(request.room)?;
        let share = claim(&self.context.memory, room)?;
        let session = SESSIONS.fetch_add(1, Ordering::Relaxed);
        let grant = self.context.admit(&request, &schedule, session, &self.viewer)?;
        let (ring, file) = self.context.ring(room).map_err(|error| {
            let errno = error.raw_os_error().map_or(EIO, |errno| errno as u32);
            (errno, format!("no memory for the ring: {error}"))
        })?;
        let reply = Reply::Stream {
            stream: number,
            memory: BYTES as u64 + room,
            rate: schedule.rate.rate.0,
        };
        let mut stream = Stream { request, ring, _share: share, session, delivery: None };
        stream.start(&self.context, stream.request.first, schedule, grant);
        self.streams.insert(number, stream);
        Ok((reply, Some(file)))
    }

    /// Has a stream go on at another byte of its title.
    pub(crate) fn seek(&mut self, number: u32, first: u64) -> Result<Reply, Refusal> {
        let Self { context, viewer, streams, .. } = self;
        let stream = streams.get_mut(&number).ok_or_else(|| unknown(number))?;
        if first >= stream.request.title.len.0 {
            // The stream goes on where it is.
            return Err(beyond(&stream.request, first));
        }
        stream.stop(context);
        let position = stream.ring.written();
        let begun = context.schedule(&stream.request, first).and_then(|schedule| {
            let grant = context.admit(&stream.request, &schedule, stream.session, viewer)?;
            Ok((schedule, grant))
        });
        match begun {
            Ok((schedule, grant)) => {
                let rate = schedule.rate.rate.0;
                stream.ring.continue_stream();
                stream.start(context, first, schedule, grant);
                Ok(Reply::Sought { position, rate })
            }
            Err((errno, message)) => {
                stream.ring.end(StreamEnd::Failed(errno));
                Err((errno, message))
            }
        }
    }

    /// Ends a stream.
    pub(crate) fn end(&mut self, number: u32) -> Result<Reply, Refusal> {
        self.streams.remove(&number).map(|_| Reply::Closed).ok_or_else(|| unknown(number))
    }
}

fn unknown(number: u32) -> Refusal {
    (EBADF, format!("no stream has the number {number}"))
}

fn beyond(request: &StreamRequest, first: u64) -> Refusal {
    (EINVAL, format!("byte {first} is behind the end of the title, at {}", request.title.len.0))
}

impl Stream {
    fn start(&mut self, context: &StreamContext, first: u64, schedule: Schedule, grant: Grant) {
        let (stop, stopped) = oneshot::channel();
        let title = Arc::clone(&self.request.title);
        let source = Source::planned(first..title.len.0, schedule.plan);
        let (ring, cut) = (Arc::clone(&self.ring), Arc::clone(&context.cut));
        let delivery = deliver(grant, title, source, ring, stopped, cut);
        self.delivery = Some(RunningDelivery { stop, task: context.runtime.spawn(delivery) });
    }

    /// Ends its delivery, and waits until its room is kept for the next one.
    fn stop(&mut self, context: &StreamContext) {
        if let Some(RunningDelivery { stop, task }) = self.delivery.take() {
            // One that has ended already listens no more.
            stop.send(()).ok();
            if context.runtime.block_on(task).is_err() {
                tracing::error!("the task of a local stream has panicked");
            }
        }
    }
}

/// Runs one delivery to its end, or until it is stopped: by a seek, or because its stream is gone.
async fn deliver(
    mut grant: Grant,
    title: Arc<OpenTitle>,
    source: Source,
    ring: Arc<StreamRing>,
    stopped: oneshot::Receiver<()>,
    cut: Arc<dyn Fn() + Send + Sync>,
) {
    let mut running = match grant.start(&title, source, Output::ring(Arc::clone(&ring))).await {
        Ok(running) => running,
        Err(ended) => return ring.end(end_of(ended.outcome)),
    };
    let ended = tokio::select! {
        ended = running.ended() => ended,
        stopped = stopped => {
            running.stop();
            running.ended().await;
            return match stopped {
                Ok(()) => grant.vacate().await,
                Err(_) => grant.retire().await,
            };
        }
    };
    ring.end(end_of(ended.outcome));
    if ended.outcome == Outcome::PeerGone(EPROTO) {
        tracing::warn!(
            "a local client claims to have read what was not sent; its connection is ended"
        );
        cut();
    }
    grant.retire().await;
}

fn end_of(outcome: Outcome) -> StreamEnd {
    StreamEnd::Failed(match outcome {
        Outcome::Complete => return StreamEnd::Complete,
        Outcome::TooSlow => ETIMEDOUT,
        Outcome::Stopped => ECANCELED,
        Outcome::Damaged { .. } => EBADMSG,
        Outcome::PeerGone(errno) => errno.unsigned_abs(),
        Outcome::DiskFailed(errno) | Outcome::Unreadable { errno, .. } => errno.unsigned_abs(),
    })
}

impl StreamContext {
    /// The schedule of a title from `first` on.
    fn schedule(&self, request: &StreamRequest, first: u64) -> Result<Schedule, Refusal> {
        let StreamRequest { title, path, rate, burst, .. } = request;
        if title.following.is_some() {
            return Err((EINVAL, "a title that grows is not streamed by a ring".into()));
        }
        if first >= title.len.0 {
            return Err(beyond(request, first));
        }
        let of = |rate: BitRate| Schedule {
            rate: Rate { rate, burst: Bytes(*burst), tick: Tick::for_rate(rate, TICK) },
            plan: None,
        };
        if let &Some(rate) = rate {
            let rate = Some(BitRate(rate)).filter(|rate| RATES.contains(&rate.0));
            let impossible = || (EINVAL, "a rate is 1 kbit/s to 1 Tbit/s".into());
            return rate.map(of).ok_or_else(impossible);
        }
        self.runtime.block_on(async {
            let media = self.catalogue.media(title, path).await.ok().flatten();
            let media = media.filter(|media| RATES.contains(&media.rate.0));
            let media =
                media.ok_or((EINVAL, "the rate of this title is unknown: name one".into()))?;
            let part = first..title.len.0;
            let found = self.catalogue.consumption(title, path, &media, part).await.0;
            let PartConsumption::Known(consumption) = found else { return Ok(of(media.rate)) };
            Ok(Schedule::following(&consumption).unwrap_or_else(|| of(media.rate)))
        })
    }

    fn admit(
        &self,
        request: &StreamRequest,
        schedule: &Schedule,
        session: u64,
        viewer: &Viewer,
    ) -> Result<Grant, Refusal> {
        let title = &request.title;
        let spec = DeliverySpec::ring(&self.broker, title, schedule.rate, title.len);
        let line = schedule.plan.as_ref().and_then(|plan| plan.line.as_ref());
        let spec = line.into_iter().fold(spec, |spec, line| spec.by_line(&self.broker, line));
        let spec = spec.of_session(session, 0).within_share(viewer);
        self.broker.admit(&spec).map_err(|refusal| {
            let errno = if refusal.resource == Resource::Arena { ENOSPC } else { EBUSY };
            (errno, format!("{}; try again in {:?}", refusal.message, refusal.retry_after))
        })
    }

    /// A new ring with room for `room` bytes, and the client's descriptor of it.
    fn ring(&self, room: u64) -> std::io::Result<(Arc<StreamRing>, OwnedFd)> {
        let len = BYTES + room as usize;
        let file = memory::create(len)?;
        let mapping = Arc::new(Mapping::new(file.as_fd(), len)?);
        let client = Arc::clone(&self.client);
        let ring = StreamRing::new(mapping, client, Box::new(self.bell.clone()));
        Ok((Arc::new(ring), file))
    }
}

impl Schedule {
    /// The most even schedule for a player with a small buffer. `None` if all is needed at once.
    fn following(consumption: &Consumption) -> Option<Self> {
        let line = |tick: Tick| {
            consumption.smoothed(PlayerBuffer {
                held: HELD,
                burst: BEGIN,
                burst_max: BEGIN_MAX,
                late: MediaTime(tick.span().0 * 27 / 1000),
            })
        };
        let first = line(TICK);
        let tick = Tick::for_rate(first.rates().max()?, TICK);
        let line = if tick > TICK { line(tick) } else { first };
        let rate = line.rates().max().filter(|rate| RATES.contains(&rate.0))?;
        let rate = Rate { rate, burst: line.burst(), tick };
        Some(Self { rate, plan: Some(Arc::new(Plan::of_times(line))) })
    }

    /// The room of its ring: `wanted` bytes, or enough if that is zero.
    fn room(&self, wanted: u64) -> Result<u64, Refusal> {
        let Rate { rate, burst, tick } = self.rate;
        room_of(rate, tick, burst.0, wanted)
    }
}

/// The viewers of the broker, one for each stream.
static SESSIONS: AtomicU64 = AtomicU64::new(SESSION_FIRST);
/// Far from the numbers of other sessions, which are random.
const SESSION_FIRST: u64 = 0x7a61_6c6c_0000_0000;

#[cfg(test)]
mod tests {
    use tactus_core::datagrams::Framing;
    use tactus_core::units::MonoTime;
    use tactus_engine::message::{Chunks, Connection, Delivery, Mismatch, Output};

    use super::*;

    #[test]
    fn a_ring_carries_no_frames() {
        let mapping = || {
            let file = memory::create(2 * BYTES).expect("a memory file");
            Arc::new(Mapping::new(file.as_fd(), 2 * BYTES).expect("a mapping"))
        };
        let bell = Doorbell::new().expect("a doorbell").0;
        let ring = Arc::new(StreamRing::new(mapping(), mapping(), Box::new(bell)));
        let (ring_of_chunks, framing) = (tactus_ring::spsc::ring(1).1, Framing::Plain);
        let chunks = Chunks { ring: ring_of_chunks, begin: MonoTime(0), rate: BitRate(1), framing };
        let refused = Delivery::of_chunks(chunks, Output::Connection(Connection::ring(ring)));
        assert_eq!(refused.map(|_| ()), Err(Mismatch::FramesInRing));
    }
}
