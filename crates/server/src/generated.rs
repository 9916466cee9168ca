//! Streams whose datagrams are made here, out of bytes of a title.
//!
//! Promise: the title is read at a promised rate, never beside the disk's plan; what is made of it
//! leaves by the engine's clock, each datagram at its own time. What is made ahead is bounded, and
//! so is what is read ahead; when anything of a stream ends, all of it does, and everything goes
//! back. The argument: `docs/design/generated.md`.
//!
//! ```text
//! disk ─► arena ─► link ─► pair of sockets ─► packetizer ─► rings ─► packet server ─► outlets
//!      promised rate         bounded            here         bounded    byte clock
//!                                                           one ring ─► link ─► a connection, in frames
//! ```

pub mod movie;
pub mod movies;
mod tally;

use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use tactus_core::generated::Timed;
use tactus_core::rtp::frame;
use tactus_core::units::{BitRate, Bytes, KIB, MIB, MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_engine::message::{Extent, Outcome};
use tactus_ring::spsc::Producer;
use tokio::io::AsyncReadExt;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::broker::{
    Broker, ChunkRing, DeliverySpec, GeneratedRate, Grant, Interleaver, Output, Punctuality,
    Reading, Refusal, Running, Source, is_whole,
};
use crate::catalogue::OpenTitle;
use tally::Tally;

/// Makes datagrams out of bytes. It is asked on an ordinary thread, which it must not hold for
/// long.
pub trait Packetizer: Send + 'static {
    /// More bytes of the source, in order.
    fn push(&mut self, bytes: &[u8]);

    /// There are no more.
    fn end(&mut self);

    /// The next datagram and the number of its output, in order of their times over all outputs.
    /// None when more bytes are needed, or there is nothing left.
    fn next(&mut self) -> Option<(usize, Timed)>;

    /// Whether the last answer was none only because the work paused for other tasks, so that it
    /// must be called again.
    fn is_pausing(&self) -> bool {
        false
    }

    /// Bytes that were pushed and are still needed.
    fn held(&self) -> usize;
}

/// What is read, and how fast.
#[derive(Clone, Debug)]
pub struct Feed {
    /// What.
    pub title: Arc<OpenTitle>,
    /// What of it; not nothing.
    pub reading: Reading,
    /// Bytes that must have come when the streams begin. Within each stretch of time no more may be
    /// needed than these and what comes in it at the rate at which it is read.
    pub ready: Bytes,
    /// Most bytes that the packetizer holds before it is given more: at least `ready`, or it waits
    /// for ever.
    pub hold: Bytes,
}

/// Where one of the generated streams goes, as it is generated.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Its output.
    pub output: Output,
    /// What it needs at most.
    pub needs: GeneratedRate,
}

/// A connection that generated streams share, in frames.
#[derive(Clone, Debug)]
pub struct FrameOutput {
    /// The connection, which must be non-blocking and prepared for the link. Nothing else writes to it.
    pub output: Output,
    /// The channel of each stream.
    pub channels: Vec<u8>,
}

/// What has left of one output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone {
    /// What its times count from, as it is now: it moves when it is late.
    pub begin: MonoTime,
    /// Packets.
    pub packets: u64,
    /// Their payload, which what RTP puts in front is none of.
    pub bytes: u64,
}

/// A generated session: one source and the streams that are made of it. It ends when this is dropped.
pub struct GeneratedSession {
    broker: Broker,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    end: watch::Receiver<Option<Ended>>,
    interleaver: Option<Interleaver>,
}

/// How a session ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Why.
    pub why: End,
    /// How many datagrams have left of each output.
    pub packets: Vec<u64>,
}

/// Why a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It was asked to.
    Stopped,
    /// All that was made has left.
    Complete,
    /// The source ended early.
    Source(Outcome),
    /// An output did.
    Output(Outcome),
}

impl End {
    /// Its name in logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stopped => Outcome::Stopped.name(),
            Self::Complete => Outcome::Complete.name(),
            Self::Source(outcome) | Self::Output(outcome) => outcome.name(),
        }
    }
}

struct Shared {
    begin: OnceLock<MonoTime>,
    /// Told to stop.
    stop: Notify,
    /// Told to begin, where what is made goes between what is said.
    go: Notify,
    slots: Vec<u32>,
    /// Where there is one slot for all outputs: which of them its frames were of.
    tally: Option<Tally>,
    /// When the engine took it over, where that is not when it began.
    opened: Option<MonoTime>,
    /// A connection stands behind half a frame.
    is_cut: AtomicBool,
}

impl GeneratedSession {
    /// Admits a source and its outputs, all or none, and begins.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    ///
    /// # Panics
    /// Outside of an executor, and when the range is empty or more must be ready than may be held.
    pub fn start(
        broker: &Broker,
        feed: Feed,
        outputs: Vec<Lane>,
        packetizer: impl Packetizer,
    ) -> Result<Self, Refusal> {
        let source = admit_source(broker, &feed)?;
        let admitted = outputs.into_iter().map(|Lane { output, needs }| {
            let spec = DeliverySpec::generated(broker, &feed.title, needs, &output);
            Ok(Admitted { grant: broker.admit(&spec)?, output, needs })
        });
        let outputs = admitted.collect::<Result<Vec<_>, Refusal>>()?;
        let shared = Shared {
            begin: OnceLock::new(),
            stop: Notify::new(),
            go: Notify::new(),
            slots: outputs.iter().map(|output| output.grant.slot()).collect(),
            tally: None,
            opened: None,
            is_cut: AtomicBool::new(false),
        };
        let mut rings = vec![];
        let outputs = outputs.into_iter().map(|output| {
            let (ours, engines) = ring_for(output.needs);
            rings.push(ours);
            (output, Some(engines))
        });
        let lanes = Lanes { outputs: outputs.collect(), rings, streams: vec![], channels: None };
        let packetizer = Box::new(packetizer);
        Ok(Self::run(broker, feed, source, lanes, packetizer, shared, None))
    }

    /// The same into a connection, which is the engine's for writing from now on until it has
    /// ended. What is made waits for [`Self::go`]; what is said meanwhile, and later, is said by
    /// [`Self::interleaver`].
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    ///
    /// # Panics
    /// As above.
    pub fn start_in_frames(
        broker: &Broker,
        feed: Feed,
        connection: FrameOutput,
        needs: &[GeneratedRate],
        packetizer: impl Packetizer,
    ) -> Result<Self, Refusal> {
        assert!(needs.len() == connection.channels.len(), "each output has its channel");
        let FrameOutput { output, channels } = connection;
        let source = admit_source(broker, &feed)?;
        let needs = GeneratedRate {
            rate: BitRate(needs.iter().map(|each| in_frames(each).0).sum()),
            datagrams: needs.iter().map(|each| each.datagrams).sum(),
        };
        let spec = DeliverySpec::generated(broker, &feed.title, needs, &output);
        let mut grant = broker.admit(&spec)?;
        let (ours, ring) = ring_for(needs);
        let opened = tactus_sys::clock::now();
        let chunks = Source::Chunks { ring, begin: opened };
        let started = grant.start_now(&feed.title, chunks, output.clone());
        let stream = started.expect("a generated stream opens no file");
        let interleaver = stream.interleaver();
        let shared = Shared {
            begin: OnceLock::new(),
            stop: Notify::new(),
            go: Notify::new(),
            slots: vec![grant.slot(); channels.len()],
            tally: Some(Tally::new(channels.len())),
            opened: Some(opened),
            is_cut: AtomicBool::new(false),
        };
        let lanes = Lanes {
            outputs: vec![(Admitted { grant, output, needs }, None)],
            rings: vec![ours],
            streams: vec![stream],
            channels: Some(channels),
        };
        let packetizer = Box::new(packetizer);
        Ok(Self::run(broker, feed, source, lanes, packetizer, shared, Some(interleaver)))
    }

    fn run(
        broker: &Broker,
        feed: Feed,
        source: Grant,
        lanes: Lanes,
        packetizer: Box<dyn Packetizer>,
        shared: Shared,
        interleaver: Option<Interleaver>,
    ) -> Self {
        let (tell, end) = watch::channel(None);
        let shared = Arc::new(shared);
        let session = Session { feed, source, lanes, packetizer, shared: Arc::clone(&shared) };
        let task = tokio::spawn(async move {
            let ended = session.run().await;
            // Whoever asked may have gone.
            drop(tell.send(Some(ended)));
        });
        Self { broker: broker.clone(), shared, task, end, interleaver }
    }

    /// Lets frames follow what has been said.
    pub fn go(&self) {
        self.shared.go.notify_one();
    }

    /// How to say something between frames; none where it goes as datagrams.
    #[must_use]
    pub fn interleaver(&self) -> Option<&Interleaver> {
        self.interleaver.as_ref()
    }

    /// Whether its connection is of no more use; known when it has ended.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.shared.is_cut.load(Ordering::Relaxed)
    }

    /// What has left of output `nth` by now; none before it has begun.
    #[must_use]
    pub fn gone(&self, nth: usize) -> Option<Gone> {
        let begin = self.begin()?;
        let counters = self.broker.counters_of(self.shared.slots[nth])?;
        // When nothing is sent any more it is forgotten.
        let epoch = counters.epoch.value();
        if epoch == 0 && self.shared.tally.is_none() {
            return None;
        }
        let begin = match self.shared.opened {
            Some(opened) => begin + Nanos(epoch.saturating_sub(opened.0)),
            None => MonoTime(epoch.max(begin.0)),
        };
        let (packets, bytes) = match &self.shared.tally {
            Some(tally) => tally.gone(counters.session_packets.value())[nth],
            None => (counters.session_packets.value(), counters.session_bytes.value()),
        };
        Some(Gone { begin, packets, bytes })
    }

    /// When it began: what all times count from. None before.
    #[must_use]
    pub fn begin(&self) -> Option<MonoTime> {
        self.shared.begin.get().copied()
    }

    /// The slot of each output, by which the engine counts: packets, underruns, and what its times
    /// count from (`epoch`, which moves when it is late).
    #[must_use]
    pub fn slots(&self) -> &[u32] {
        &self.shared.slots
    }

    /// Payload bytes that have left of all outputs, and how punctual they were: of a session that
    /// has ended.
    pub(crate) fn sent(&self) -> (u64, Punctuality) {
        let mut slots = self.slots().to_vec();
        slots.dedup();
        slots.into_iter().fold((0, Punctuality::default()), |(sent, all), slot| {
            let one = self.broker.late(slot);
            let lateness = all.lateness.max(one.lateness);
            let late = Punctuality { lateness, underruns: all.underruns + one.underruns };
            (sent + self.broker.session_bytes(slot), late)
        })
    }

    /// Waits for its end.
    pub async fn ended(&self) -> Ended {
        let mut end = self.end.clone();
        match end.wait_for(Option::is_some).await {
            Ok(end) => end.clone().expect("it was waited for"),
            // It ends with its executor.
            Err(_) => Ended { why: End::Stopped, packets: vec![0; self.shared.slots.len()] },
        }
    }

    /// Stops it, and waits for its end.
    pub async fn stop(&self) -> Ended {
        self.shared.stop.notify_one();
        self.ended().await
    }
}

impl Drop for GeneratedSession {
    fn drop(&mut self) {
        // What it holds stops the engine's streams, and gives their grants back when they have
        // retired.
        self.task.abort();
    }
}

struct Admitted {
    grant: Grant,
    output: Output,
    needs: GeneratedRate,
}

/// The ways out of a session.
struct Lanes {
    /// Each with what the engine has not been given yet.
    outputs: Vec<(Admitted, Option<ChunkRing>)>,
    rings: Vec<Producer<Timed>>,
    streams: Vec<Running>,
    /// All goes by one ring, each output in frames of its channel; none: each by its own, as it is.
    channels: Option<Vec<u8>>,
}

impl Lanes {
    /// How many outputs there are.
    fn len(&self) -> usize {
        self.channels.as_ref().map_or(self.rings.len(), Vec::len)
    }
}

fn admit_source(broker: &Broker, feed: &Feed) -> Result<Grant, Refusal> {
    let Range { start, end } = feed.reading.range;
    assert!(start < end && feed.ready <= feed.hold, "{feed:?}");
    broker.admit(&DeliverySpec::reader(broker, &feed.title, &feed.reading))
}

fn ring_for(needs: GeneratedRate) -> (Producer<Timed>, ChunkRing) {
    let ahead = u64::from(needs.datagrams) * AHEAD.0 / SECOND.0;
    ChunkRing::new((ahead as usize).max(ROOM_MIN))
}

/// The rate of what is made with a head in front of each frame.
fn in_frames(needs: &GeneratedRate) -> BitRate {
    BitRate(needs.rate.0 + u64::from(needs.datagrams) * 8 * frame::HEAD as u64)
}

struct Session {
    feed: Feed,
    source: Grant,
    lanes: Lanes,
    packetizer: Box<dyn Packetizer>,
    shared: Arc<Shared>,
}

/// How far ahead datagrams are made: a task may be kept waiting for nearly as long on a busy
/// machine.
const AHEAD: Nanos = Nanos::from_millis(500);

/// How often a full ring is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// From the moment that all is there to the first datagram: the way of the commands into the
/// engine.
const LEAD: Nanos = MILLISECOND.times(5);

/// The least room of a ring.
const ROOM_MIN: usize = 64;

/// Datagrams generated before other tasks may run: about a millisecond.
const DATAGRAMS_AT_ONCE: u32 = 1024;

/// Bytes taken from the pair of sockets at once: what the kernel holds of it.
const PIECE: usize = 256 * KIB as usize;

impl Session {
    async fn run(self) -> Ended {
        let Self { feed, mut source, lanes, packetizer, shared } = self;
        let (ours, theirs) = match pair() {
            Ok(pair) => pair,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EMFILE);
                let why = End::Source(Outcome::DiskFailed(errno));
                return Ended { why, packets: vec![0; lanes.len()] };
            }
        };
        let mut maker = Maker::new(&feed, lanes, packetizer, ours);
        let why = {
            let reading = read(&mut source, &feed, theirs);
            tokio::pin!(reading);
            let mut has_read = false;
            loop {
                tokio::select! {
                    outcome = &mut reading, if !has_read => {
                        has_read = true;
                        if outcome != Outcome::Complete {
                            break End::Source(outcome);
                        }
                    }
                    end = maker.run(&shared) => break end,
                    () = shared.stop.notified() => break End::Stopped,
                }
            }
        };
        let packets = maker.close(&shared).await;
        // Who seeks begins again at once, and is no second viewer of the title.
        source.retire().await;
        Ended { why, packets }
    }
}

/// Has the engine read the source into one end of a pair of sockets.
async fn read(source: &mut Grant, feed: &Feed, to: UnixStream) -> Outcome {
    let Reading { range, block_list, .. } = feed.reading.clone();
    let range = Extent::Range(Bytes(range.start)..Bytes(range.end));
    let extent = block_list.map_or(range, Extent::List);
    match source.start(&feed.title, Source::of(extent), Output::reader(to)).await {
        Ok(mut running) => running.ended().await.outcome,
        Err(ended) => ended.outcome,
    }
}

fn pair() -> std::io::Result<(tokio::net::UnixStream, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    theirs.set_nonblocking(true)?;
    // The kernel may give less: then a fast stream is read in smaller pieces.
    rustix::net::sockopt::set_socket_send_buffer_size(&theirs, MIB as usize)?;
    Ok((tokio::net::UnixStream::from_std(ours)?, theirs))
}

/// Between the pair of sockets and the rings.
struct Maker<'a> {
    feed: &'a Feed,
    packetizer: Box<dyn Packetizer>,
    socket: tokio::net::UnixStream,
    piece: Vec<u8>,
    received: u64,
    has_ended: bool,
    lanes: Lanes,
    /// How many each ring has been given, ends included.
    pushed: Vec<u64>,
    /// How much later than it was made for what goes by frames is due by the engine's count.
    later: Nanos,
    /// What did not fit.
    pending: Option<(usize, Timed)>,
    /// The time of what was made last.
    last: Nanos,
    /// Rings that have been told of their end.
    told: usize,
}

impl<'a> Maker<'a> {
    fn new(
        feed: &'a Feed,
        lanes: Lanes,
        packetizer: Box<dyn Packetizer>,
        socket: tokio::net::UnixStream,
    ) -> Self {
        Self {
            pushed: vec![0; lanes.rings.len()],
            feed,
            packetizer,
            socket,
            piece: vec![0; PIECE],
            received: 0,
            has_ended: false,
            lanes,
            later: Nanos(0),
            pending: None,
            last: Nanos(0),
            told: 0,
        }
    }

    /// May be dropped and begun again at every await: what it has done is done.
    async fn run(&mut self, shared: &Shared) -> End {
        loop {
            let has_begun = shared.begin.get().is_some();
            // Frames have no times before it has begun.
            if has_begun || self.lanes.channels.is_none() {
                self.fill(shared).await;
            }
            let is_full = self.pending.is_some();
            if !has_begun && (is_full || self.has_ended || self.received >= self.feed.ready.0) {
                self.begin(shared).await;
                continue;
            }
            let is_over = self.has_ended && !is_full && self.told == self.lanes.rings.len();
            if is_over {
                return self.last_ends().await;
            }
            let may_read = !self.has_ended && self.packetizer.held() < self.feed.hold.0 as usize;
            let rooms_needed = is_full || self.has_ended || !may_read;
            let is_sent = !self.lanes.streams.is_empty();
            tokio::select! {
                read = self.socket.read(&mut self.piece), if may_read => self.take(read),
                outcome = first_end(&mut self.lanes.streams), if is_sent => return End::Output(outcome),
                () = tokio::time::sleep(LOOK), if rooms_needed => {}
            }
        }
    }

    fn take(&mut self, read: std::io::Result<usize>) {
        match read {
            Ok(0) | Err(_) => {
                self.has_ended = true;
                self.packetizer.end();
            }
            Ok(read) => {
                self.received += read as u64;
                self.packetizer.push(&self.piece[..read]);
            }
        }
    }

    /// Generates datagrams while there is room. May be dropped as above.
    async fn fill(&mut self, shared: &Shared) {
        let mut left = DATAGRAMS_AT_ONCE;
        loop {
            match self.pending.take().or_else(|| self.packetizer.next()) {
                Some((to, timed)) => {
                    self.last = self.last.max(timed.due);
                    if !self.give(to, &timed, shared) {
                        self.pending = Some((to, timed));
                        return;
                    }
                    left -= 1;
                }
                None if self.packetizer.is_pausing() => left = 0,
                None => break,
            }
            if left == 0 {
                tokio::task::yield_now().await;
                left = DATAGRAMS_AT_ONCE;
            }
        }
        let last = Timed::end(self.last + self.later);
        while self.has_ended
            && let Some(ring) = self.lanes.rings.get_mut(self.told)
            && ring.push(last).is_ok()
        {
            self.pushed[self.told] += 1;
            self.told += 1;
        }
    }

    /// Puts what output `to` sends into its ring; whether there was room.
    fn give(&mut self, to: usize, timed: &Timed, shared: &Shared) -> bool {
        let (ring, timed) = match &self.lanes.channels {
            None => (to, *timed),
            Some(channels) => (0, timed.framed(channels[to], self.later)),
        };
        if self.lanes.rings[ring].push(timed).is_err() {
            return false;
        }
        self.pushed[ring] += 1;
        if let Some(tally) = &shared.tally {
            tally.pushed(to, timed.bytes().len() - frame::HEAD);
        }
        true
    }

    /// Hands the rings to the engine, all with one beginning; or lets the one go on that it has.
    async fn begin(&mut self, shared: &Shared) {
        if shared.opened.is_some() {
            shared.go.notified().await;
        }
        let begin = tactus_sys::clock::now() + LEAD;
        self.later = shared.opened.map_or(Nanos(0), |opened| begin.since(opened));
        for (output, ring) in &mut self.lanes.outputs {
            let Some(ring) = ring.take() else { continue };
            let (way, title) = (output.output.clone(), &self.feed.title);
            let started = output.grant.start_now(title, Source::Chunks { ring, begin }, way);
            self.lanes.streams.push(started.expect("a generated stream opens no file"));
        }
        shared.begin.set(begin).expect("it begins once");
    }

    /// Ends all outputs; how many datagrams have left of each.
    async fn close(&mut self, shared: &Shared) -> Vec<u64> {
        let count = self.lanes.len();
        let Lanes { outputs, rings, streams, .. } = &mut self.lanes;
        for (stream, (output, _)) in streams.iter_mut().zip(outputs) {
            output.grant.stop();
            if !is_whole(stream.ended().await.outcome) {
                shared.is_cut.store(true, Ordering::Relaxed);
            }
        }
        if streams.is_empty() {
            return vec![0; count];
        }
        let left = |(ring, pushed): (&mut Producer<Timed>, &u64)| {
            // Nobody takes any more; what has not left is still there, and an end never leaves.
            pushed - (ring.capacity() - ring.free()) as u64
        };
        let left: Vec<_> = rings.iter_mut().zip(&self.pushed).map(left).collect();
        match &shared.tally {
            Some(tally) => tally.gone(left[0]).iter().map(|&(packets, _)| packets).collect(),
            None => left,
        }
    }

    async fn last_ends(&mut self) -> End {
        for stream in &mut self.lanes.streams {
            match stream.ended().await.outcome {
                Outcome::Complete => {}
                outcome => return End::Output(outcome),
            }
        }
        End::Complete
    }
}

/// Waits for the first output that does not end as it was told to.
async fn first_end(streams: &mut [Running]) -> Outcome {
    std::future::poll_fn(|context| {
        for stream in streams.iter_mut() {
            match stream.poll_ended(context).map(|ended| ended.outcome) {
                Poll::Ready(Outcome::Complete) | Poll::Pending => {}
                Poll::Ready(outcome) => return Poll::Ready(outcome),
            }
        }
        Poll::Pending
    })
    .await
}
