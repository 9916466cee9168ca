//! Generated streams: datagrams made in this process from bytes of a title.
//!
//! Promise: the title is read at a promised rate, always within the disk's plan. The datagrams
//! leave by the engine's clock, each at its own time. Generation ahead is bounded, and so is
//! read-ahead. When one part of a session ends, all of it ends, and all resources return. The
//! argument: `docs/design/generated.md`.
//!
//! ```text
//! disk ─► arena ─► link ─► pair of sockets ─► packetizer ─► rings ─► packet server ─► UDP outputs
//!      promised rate         bounded            here         bounded    byte clock
//!                                             one ring ─► link ─► a connection, in frames
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

use tactus_core::datagrams::Framing;
use tactus_core::generated::TimedDatagram;
use tactus_core::rtp::frame;
use tactus_core::units::{BitRate, Bytes, KIB, MIB, MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_engine::message::{Extent, Outcome};
use tactus_ring::spsc::Producer;
use tactus_storage::catalogue::OpenTitle;
use tokio::io::AsyncReadExt;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::broker::{
    Broker, ChunkRing, DeliverySpec, GeneratedRate, Grant, Interleaver, Output, Punctuality,
    Reading, Refusal, Running, Source, is_whole,
};
use tally::Tally;

/// Makes datagrams from bytes. It runs on an ordinary thread, which it must not block for long.
pub trait Packetizer: Send + 'static {
    /// More bytes of the source, in order.
    fn push(&mut self, bytes: &[u8]);

    /// The source has ended.
    fn end(&mut self);

    /// The next datagram and the number of its output, in order of their times over all outputs.
    /// `None` if more bytes are needed, or the end is reached.
    fn next(&mut self) -> Option<(usize, TimedDatagram)>;

    /// Whether the last result was `None` only because the work paused for other tasks. Then `next`
    /// must be called again.
    fn is_pausing(&self) -> bool {
        false
    }

    /// Number of pushed bytes that are still needed.
    fn buffered(&self) -> usize;
}

/// The source of a session, and its rate.
#[derive(Clone, Debug)]
pub struct SourceSpec {
    /// The title.
    pub title: Arc<OpenTitle>,
    /// Its bytes; at least one.
    pub reading: Reading,
    /// Bytes that must have come when the streams begin. In any interval, the need must not exceed
    /// these bytes and the bytes that come in it at the read rate.
    pub ready: Bytes,
    /// Limit of the bytes in the packetizer; beyond it, no more are pushed. At least `ready`;
    /// otherwise the session never begins.
    pub buffer_max: Bytes,
    /// The id of the session, if it may begin anew in its own room.
    pub session: Option<u64>,
}

/// The destination of one generated stream.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Its output.
    pub output: Output,
    /// Its peak needs.
    pub needs: GeneratedRate,
}

/// A connection that generated streams share, in frames.
#[derive(Clone, Debug)]
pub struct FrameOutput {
    /// The connection, which must be non-blocking and prepared for the link. Nothing else writes
    /// to it.
    pub output: Output,
    /// The channel of each stream.
    pub channels: Vec<u8>,
}

/// The sent packets of one output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutputProgress {
    /// The current origin of its times. It moves when the output is late.
    pub begin: MonoTime,
    /// Number of packets.
    pub packets: u64,
    /// Their payload bytes, without RTP headers.
    pub bytes: u64,
}

/// A generated session: one source and the streams generated from it. Dropping it ends the session.
pub struct GeneratedSession {
    broker: Broker,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    end: watch::Receiver<Option<SessionEnd>>,
    interleaver: Option<Interleaver>,
}

/// How a session ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionEnd {
    /// The reason.
    pub why: End,
    /// Number of datagrams sent by each output.
    pub packets: Vec<u64>,
}

/// Why a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It was stopped.
    Stopped,
    /// All generated datagrams have left.
    Complete,
    /// The source ended early.
    Source(Outcome),
    /// An output ended early.
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
    /// Signals the stop.
    stop: Notify,
    /// Signals the start of the frames, if the session shares its connection with interleaved
    /// messages.
    go: Notify,
    slots: Vec<u32>,
    /// If all outputs share one slot: the outputs of the sent frames.
    tally: Option<Tally>,
    /// When the engine opened the stream, if that differs from the beginning.
    opened: Option<MonoTime>,
    /// A connection was left in the middle of a frame.
    is_cut: AtomicBool,
    /// The room is kept for the next part of the session.
    keeps_room: AtomicBool,
}

impl GeneratedSession {
    /// Admits a source and its outputs, all or none, and begins.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    ///
    /// # Panics
    /// Outside of an executor, if the range is empty, or if `ready` exceeds `buffer_max`.
    pub fn start(
        broker: &Broker,
        source_spec: SourceSpec,
        outputs: Vec<Lane>,
        packetizer: impl Packetizer,
    ) -> Result<Self, Refusal> {
        let source = admit_source(broker, &source_spec)?;
        let admitted = outputs.into_iter().zip(1..).map(|(Lane { output, needs }, nth)| {
            let spec = DeliverySpec::generated(broker, &source_spec.title, needs, &output);
            let spec = source_spec.part_of_session(spec, nth);
            Ok(AdmittedLane { grant: broker.admit(&spec)?, output, needs })
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
            keeps_room: AtomicBool::new(false),
        };
        let mut rings = vec![];
        let outputs = outputs.into_iter().map(|output| {
            let (ours, engines) = ring_for(output.needs);
            rings.push(ours);
            (output, Some(engines))
        });
        let lanes = Lanes { outputs: outputs.collect(), rings, streams: vec![], channels: None };
        let packetizer = Box::new(packetizer);
        Ok(Self::run(broker, source_spec, source, lanes, packetizer, shared, None))
    }

    /// The same into a connection. The engine owns its writing side from now until the session has
    /// ended. Generated frames wait for [`Self::go`]; [`Self::interleaver`] sends messages before
    /// and after it.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    ///
    /// # Panics
    /// As above.
    pub fn start_in_frames(
        broker: &Broker,
        source_spec: SourceSpec,
        connection: FrameOutput,
        needs: &[GeneratedRate],
        packetizer: impl Packetizer,
    ) -> Result<Self, Refusal> {
        assert!(needs.len() == connection.channels.len(), "each output has its channel");
        let FrameOutput { output, channels } = connection;
        let source = admit_source(broker, &source_spec)?;
        let needs = GeneratedRate {
            rate: BitRate(needs.iter().map(|each| in_frames(each).0).sum()),
            datagrams: needs.iter().map(|each| each.datagrams).sum(),
        };
        let spec = DeliverySpec::generated(broker, &source_spec.title, needs, &output);
        let spec = source_spec.part_of_session(spec, 1);
        let mut grant = broker.admit(&spec)?;
        let (ours, ring) = ring_for(needs);
        let opened = tactus_sys::clock::now();
        let chunks = Source::Chunks { ring, begin: opened, framing: Framing::Plain };
        let started = grant.start_now(&source_spec.title, chunks, output.clone());
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
            keeps_room: AtomicBool::new(false),
        };
        let lanes = Lanes {
            outputs: vec![(AdmittedLane { grant, output, needs }, None)],
            rings: vec![ours],
            streams: vec![stream],
            channels: Some(channels),
        };
        let packetizer = Box::new(packetizer);
        Ok(Self::run(broker, source_spec, source, lanes, packetizer, shared, Some(interleaver)))
    }

    fn run(
        broker: &Broker,
        source_spec: SourceSpec,
        source: Grant,
        lanes: Lanes,
        packetizer: Box<dyn Packetizer>,
        shared: Shared,
        interleaver: Option<Interleaver>,
    ) -> Self {
        let (tell, end) = watch::channel(None);
        let shared = Arc::new(shared);
        let session =
            Session { source_spec, source, lanes, packetizer, shared: Arc::clone(&shared) };
        let task = tokio::spawn(async move {
            let ended = session.run().await;
            // The receiver may have gone.
            drop(tell.send(Some(ended)));
        });
        Self { broker: broker.clone(), shared, task, end, interleaver }
    }

    /// Releases the frames, after the messages sent so far.
    pub fn go(&self) {
        self.shared.go.notify_one();
    }

    /// The sender of messages between frames; `None` for datagrams.
    #[must_use]
    pub fn interleaver(&self) -> Option<&Interleaver> {
        self.interleaver.as_ref()
    }

    /// Whether its connection is unusable; valid after the end.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.shared.is_cut.load(Ordering::Relaxed)
    }

    /// The packets sent by output `nth` so far; `None` before it has begun.
    #[must_use]
    pub fn gone(&self, nth: usize) -> Option<OutputProgress> {
        let begin = self.begin()?;
        let counters = self.broker.counters_of(self.shared.slots[nth])?;
        // The engine resets the counter when the stream has ended.
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
        Some(OutputProgress { begin, packets, bytes })
    }

    /// When it began: the origin of all times. `None` before that.
    #[must_use]
    pub fn begin(&self) -> Option<MonoTime> {
        self.shared.begin.get().copied()
    }

    /// The slot of each output, which selects the engine's counters: packets, underruns, and the
    /// origin of its times (`epoch`, which moves when the output is late).
    #[must_use]
    pub fn slots(&self) -> &[u32] {
        &self.shared.slots
    }

    /// Payload bytes sent by all outputs, and their punctuality; for a session that has ended.
    pub fn sent(&self) -> (u64, Punctuality) {
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
    pub async fn ended(&self) -> SessionEnd {
        let mut end = self.end.clone();
        match end.wait_for(Option::is_some).await {
            Ok(end) => end.clone().expect("it was waited for"),
            // It ends with its executor.
            Err(_) => SessionEnd { why: End::Stopped, packets: vec![0; self.shared.slots.len()] },
        }
    }

    /// Stops it, and waits for its end. Its room is kept for the next of the same session.
    pub async fn stop_for_next(&self) -> SessionEnd {
        self.shared.keeps_room.store(true, Ordering::Relaxed);
        self.stop().await
    }

    /// Stops it, and waits for its end.
    pub async fn stop(&self) -> SessionEnd {
        self.shared.stop.notify_one();
        self.ended().await
    }
}

impl Drop for GeneratedSession {
    fn drop(&mut self) {
        // Dropping its state stops the engine's streams, and returns their grants when they have
        // retired.
        self.task.abort();
    }
}

struct AdmittedLane {
    grant: Grant,
    output: Output,
    needs: GeneratedRate,
}

/// The outputs of a session, with their rings.
struct Lanes {
    /// Each output, with its ring until the engine gets it.
    outputs: Vec<(AdmittedLane, Option<ChunkRing>)>,
    rings: Vec<Producer<TimedDatagram>>,
    streams: Vec<Running>,
    /// The channels of the outputs, if one ring carries all of them in frames; `None`: each output
    /// has its own ring of datagrams.
    channels: Option<Vec<u8>>,
}

impl Lanes {
    /// Number of outputs.
    fn len(&self) -> usize {
        self.channels.as_ref().map_or(self.rings.len(), Vec::len)
    }
}

fn admit_source(broker: &Broker, source_spec: &SourceSpec) -> Result<Grant, Refusal> {
    let Range { start, end } = source_spec.reading.range;
    assert!(start < end && source_spec.ready <= source_spec.buffer_max, "{source_spec:?}");
    let spec = DeliverySpec::reader(broker, &source_spec.title, &source_spec.reading);
    broker.admit(&source_spec.part_of_session(spec, 0))
}

impl SourceSpec {
    fn part_of_session<'a>(&self, spec: DeliverySpec<'a>, nth: u32) -> DeliverySpec<'a> {
        match self.session {
            Some(session) => spec.of_session(session, nth),
            None => spec,
        }
    }
}

fn ring_for(needs: GeneratedRate) -> (Producer<TimedDatagram>, ChunkRing) {
    let ahead = u64::from(needs.datagrams) * AHEAD.0 / SECOND.0;
    ChunkRing::new((ahead as usize).max(ROOM_MIN))
}

/// The rate with a head in front of each frame.
fn in_frames(needs: &GeneratedRate) -> BitRate {
    BitRate(needs.rate.0 + u64::from(needs.datagrams) * 8 * frame::HEAD as u64)
}

struct Session {
    source_spec: SourceSpec,
    source: Grant,
    lanes: Lanes,
    packetizer: Box<dyn Packetizer>,
    shared: Arc<Shared>,
}

/// Lead of generation over departure: a task may have to wait for nearly this long on a busy
/// machine.
const AHEAD: Nanos = Nanos::from_millis(500);

/// Interval at which a full ring is polled.
const LOOK: Duration = Duration::from_millis(100);

/// Time from readiness to the first datagram, for the commands to reach the engine.
const LEAD: Nanos = MILLISECOND.times(5);

/// Minimum capacity of a ring.
const ROOM_MIN: usize = 64;

/// Datagrams generated before other tasks may run: about a millisecond.
const DATAGRAMS_AT_ONCE: u32 = 1024;

/// Bytes taken from the socket pair at once: its kernel buffer.
const PIECE: usize = 256 * KIB as usize;

impl Session {
    async fn run(self) -> SessionEnd {
        let Self { source_spec, mut source, lanes, packetizer, shared } = self;
        let (ours, theirs) = match pair() {
            Ok(pair) => pair,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EMFILE);
                let why = End::Source(Outcome::DiskFailed(errno));
                return SessionEnd { why, packets: vec![0; lanes.len()] };
            }
        };
        let mut maker = Maker::new(&source_spec, lanes, packetizer, ours);
        let why = {
            let reading = read(&mut source, &source_spec, theirs);
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
        if shared.keeps_room.load(Ordering::Relaxed) {
            for (output, _) in maker.lanes.outputs {
                output.grant.vacate().await;
            }
            source.vacate().await;
        } else {
            // A seek begins again at once, and must not count as a second viewer of the title.
            source.retire().await;
        }
        SessionEnd { why, packets }
    }
}

/// Has the engine read the source into one end of a socket pair.
async fn read(source: &mut Grant, source_spec: &SourceSpec, to: UnixStream) -> Outcome {
    let Reading { range, block_list, .. } = source_spec.reading.clone();
    let range = Extent::Range(Bytes(range.start)..Bytes(range.end));
    let extent = block_list.map_or(range, Extent::List);
    match source.start(&source_spec.title, Source::of(extent), Output::reader(to)).await {
        Ok(mut running) => running.ended().await.outcome,
        Err(ended) => ended.outcome,
    }
}

/// A pair of sockets: the end of a reader in this process, and that of the link.
pub fn pair() -> std::io::Result<(tokio::net::UnixStream, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    theirs.set_nonblocking(true)?;
    // The kernel may give less: then a fast stream is read in smaller pieces.
    rustix::net::sockopt::set_socket_send_buffer_size(&theirs, MIB as usize)?;
    Ok((tokio::net::UnixStream::from_std(ours)?, theirs))
}

/// The stage between the socket pair and the rings.
struct Maker<'a> {
    source_spec: &'a SourceSpec,
    packetizer: Box<dyn Packetizer>,
    socket: tokio::net::UnixStream,
    piece: Vec<u8>,
    received: u64,
    has_ended: bool,
    lanes: Lanes,
    /// Number of entries pushed into each ring, including end marks.
    pushed: Vec<u64>,
    /// Delay of the due times in frames, by the engine's clock, against the times of generation.
    later: Nanos,
    /// The datagram that did not fit.
    pending: Option<(usize, TimedDatagram)>,
    /// The time of the last generated datagram.
    last: Nanos,
    /// Number of rings with an end mark.
    told: usize,
}

impl<'a> Maker<'a> {
    fn new(
        source_spec: &'a SourceSpec,
        lanes: Lanes,
        packetizer: Box<dyn Packetizer>,
        socket: tokio::net::UnixStream,
    ) -> Self {
        Self {
            pushed: vec![0; lanes.rings.len()],
            source_spec,
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

    /// Cancel safe: may be dropped and restarted at every await.
    async fn run(&mut self, shared: &Shared) -> End {
        loop {
            let has_begun = shared.begin.get().is_some();
            // Frames have no times before the session has begun.
            if has_begun || self.lanes.channels.is_none() {
                self.fill(shared).await;
            }
            let is_full = self.pending.is_some();
            if !has_begun
                && (is_full || self.has_ended || self.received >= self.source_spec.ready.0)
            {
                self.begin(shared).await;
                continue;
            }
            let is_over = self.has_ended && !is_full && self.told == self.lanes.rings.len();
            if is_over {
                return self.last_ends().await;
            }
            let may_read = !self.has_ended
                && self.packetizer.buffered() < self.source_spec.buffer_max.0 as usize;
            let rooms_needed = is_full || self.has_ended || !may_read;
            let is_sent = !self.lanes.streams.is_empty();
            tokio::select! {
                read = self.socket.read(&mut self.piece), if may_read => self.take(read),
                outcome = first_end(&mut self.lanes.streams), if is_sent => {
                    return End::Output(outcome);
                }
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

    /// Generates datagrams while there is room. Cancel safe as above.
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
        let last = TimedDatagram::end(self.last + self.later);
        while self.has_ended
            && let Some(ring) = self.lanes.rings.get_mut(self.told)
            && ring.push(last).is_ok()
        {
            self.pushed[self.told] += 1;
            self.told += 1;
        }
    }

    /// Pushes a datagram of output `to` into its ring. Returns whether there was room.
    fn give(&mut self, to: usize, timed: &TimedDatagram, shared: &Shared) -> bool {
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

    /// Hands the rings to the engine, all with one origin of times; or releases the stream that the
    /// engine already has.
    async fn begin(&mut self, shared: &Shared) {
        if shared.opened.is_some() {
            shared.go.notified().await;
        }
        let begin = tactus_sys::clock::now() + LEAD;
        self.later = shared.opened.map_or(Nanos(0), |opened| begin.since(opened));
        for (output, ring) in &mut self.lanes.outputs {
            let Some(ring) = ring.take() else { continue };
            let (destination, title) = (output.output.clone(), &self.source_spec.title);
            let chunks = Source::Chunks { ring, begin, framing: Framing::Plain };
            let started = output.grant.start_now(title, chunks, destination);
            self.lanes.streams.push(started.expect("a generated stream opens no file"));
        }
        shared.begin.set(begin).expect("it begins once");
    }

    /// Ends all outputs. Returns the number of datagrams that each has sent.
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
        let left = |(ring, pushed): (&mut Producer<TimedDatagram>, &u64)| {
            // The ring has no consumer any more. Unsent entries are still in it, and an end mark
            // never leaves.
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

/// Waits for the first output with an early end.
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
