//! Streams whose datagrams are made here, out of bytes of a title.
//!
//! Promise: the title is read at a promised rate, never beside the disk's plan; what is made of it leaves by
//! the engine's clock, each datagram at its own time. What is made ahead is bounded, and so is what is read
//! ahead; when anything of a stream ends, all of it does, and everything goes back. The argument:
//! `docs/design/made.md`.
//!
//! ```text
//! disk ─► arena ─► link ─► pair of sockets ─► transformer ─► rings ─► packet server ─► outlets
//!      promised rate         bounded            here         bounded    byte clock
//! ```

pub mod movie;
pub mod movies;

use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use tactus_core::made::Timed;
use tactus_core::units::{Bytes, KIB, MIB, MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_engine::message::Outcome;
use tactus_ring::spsc::Producer;
use tokio::io::AsyncReadExt;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::broker::{Broker, Grant, MadeRate, MadeRing, MadeStream, Reading, Refusal, Target};
use crate::catalogue::OpenTitle;

/// Makes datagrams out of bytes. It is asked on an ordinary thread, which it must not hold for long.
pub trait Transformer: Send + 'static {
    /// More bytes of the source, in order.
    fn push(&mut self, bytes: &[u8]);

    /// There are no more.
    fn end(&mut self);

    /// The next datagram and the number of its output, in order of their times over all outputs. None when
    /// more bytes are needed, or there is nothing left.
    fn next(&mut self) -> Option<(usize, Timed)>;

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
    /// Bytes that must have come when the streams begin. Within each stretch of time no more may be needed
    /// than these and what comes in it at the rate at which it is read.
    pub ready: Bytes,
    /// Most bytes that the transformer holds before it is given more: at least `ready`, or it waits for
    /// ever.
    pub hold: Bytes,
}

/// Where one of the streams that are made goes.
#[derive(Clone, Debug)]
pub struct Output {
    /// Where, and by which socket. Its form is not used: what stands in front is made too.
    pub target: Target,
    /// What it needs at most.
    pub needs: MadeRate,
}

/// A made session: one source and the streams that are made of it. It ends when this is dropped.
pub struct Made {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    end: watch::Receiver<Option<Ended>>,
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

struct Shared {
    begin: OnceLock<MonoTime>,
    /// Told to stop.
    stop: Notify,
    places: Vec<u32>,
}

impl Made {
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
        outputs: Vec<Output>,
        transformer: impl Transformer,
    ) -> Result<Self, Refusal> {
        let Range { start, end } = feed.reading.range;
        assert!(start < end && feed.ready <= feed.hold, "{feed:?}");
        let source = broker.admit_reader(&feed.title, &feed.reading)?;
        let admitted = outputs.into_iter().map(|Output { target, needs }| {
            let grant = broker.admit_made(&feed.title, needs, &target)?;
            Ok(Admitted { grant, target, needs })
        });
        let outputs = admitted.collect::<Result<Vec<_>, Refusal>>()?;
        let places = outputs.iter().map(|output| output.grant.place()).collect();
        let shared = Arc::new(Shared { begin: OnceLock::new(), stop: Notify::new(), places });
        let (tell, end) = watch::channel(None);
        let session = Session {
            broker: broker.clone(),
            feed,
            source,
            outputs,
            transformer: Box::new(transformer),
            shared: Arc::clone(&shared),
        };
        let task = tokio::spawn(async move {
            let ended = session.run().await;
            // Whoever asked may have gone.
            drop(tell.send(Some(ended)));
        });
        Ok(Self { shared, task, end })
    }

    /// When it began: what all times count from. None before.
    #[must_use]
    pub fn begin(&self) -> Option<MonoTime> {
        self.shared.begin.get().copied()
    }

    /// The place of each output, by which the engine counts: packets, underruns, and what its times
    /// count from (`epoch`, which moves when it is late).
    #[must_use]
    pub fn places(&self) -> &[u32] {
        &self.shared.places
    }

    /// Waits for its end.
    pub async fn ended(&self) -> Ended {
        let mut end = self.end.clone();
        match end.wait_for(Option::is_some).await {
            Ok(end) => end.clone().expect("it was waited for"),
            // It ends with its executor.
            Err(_) => Ended { why: End::Stopped, packets: vec![0; self.shared.places.len()] },
        }
    }

    /// Stops it, and waits for its end.
    pub async fn stop(&self) -> Ended {
        self.shared.stop.notify_one();
        self.ended().await
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // What it holds stops the engine's streams, and gives their grants back when they have retired.
        self.task.abort();
    }
}

struct Admitted {
    grant: Grant,
    target: Target,
    needs: MadeRate,
}

struct Session {
    broker: Broker,
    feed: Feed,
    source: Grant,
    outputs: Vec<Admitted>,
    transformer: Box<dyn Transformer>,
    shared: Arc<Shared>,
}

/// How far ahead datagrams are made: a task may be kept waiting for nearly as long on a busy machine.
const AHEAD: Nanos = Nanos::from_millis(500);

/// How often a full ring is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// From the moment that all is there to the first datagram: the way of the commands into the engine.
const LEAD: Nanos = MILLISECOND.times(5);

/// The least room of a ring.
const ROOM_MIN: usize = 64;

/// Bytes taken from the pair of sockets at once: what the kernel holds of it.
const PIECE: usize = 256 * KIB as usize;

impl Session {
    async fn run(self) -> Ended {
        let Self { broker, feed, mut source, outputs, transformer, shared } = self;
        let (ours, theirs) = match pair() {
            Ok(pair) => pair,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EMFILE);
                let why = End::Source(Outcome::DiskFailed(errno));
                return Ended { why, packets: vec![0; outputs.len()] };
            }
        };
        let reading = broker.feed(&mut source, &feed.title, feed.reading.clone(), theirs);
        let mut maker = Maker::new(&broker, &feed, outputs, transformer, ours);
        tokio::pin!(reading);
        let mut has_read = false;
        let why = loop {
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
        };
        Ended { why, packets: maker.close().await }
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
    broker: &'a Broker,
    feed: &'a Feed,
    transformer: Box<dyn Transformer>,
    socket: tokio::net::UnixStream,
    piece: Vec<u8>,
    received: u64,
    has_ended: bool,
    rings: Vec<Producer<Timed>>,
    /// How many each of them has been given, ends included.
    pushed: Vec<u64>,
    outputs: Vec<(Admitted, Option<MadeRing>)>,
    streams: Vec<MadeStream>,
    /// What did not fit.
    pending: Option<(usize, Timed)>,
    /// The time of what was made last.
    last: Nanos,
    /// Outputs that have been told of their end.
    told: usize,
}

impl<'a> Maker<'a> {
    fn new(
        broker: &'a Broker,
        feed: &'a Feed,
        outputs: Vec<Admitted>,
        transformer: Box<dyn Transformer>,
        socket: tokio::net::UnixStream,
    ) -> Self {
        let mut rings = vec![];
        let outputs = outputs.into_iter().map(|output| {
            let ahead = u64::from(output.needs.datagrams) * AHEAD.0 / SECOND.0;
            let (ours, engines) = MadeRing::new((ahead as usize).max(ROOM_MIN));
            rings.push(ours);
            (output, Some(engines))
        });
        let outputs: Vec<_> = outputs.collect();
        Self {
            pushed: vec![0; outputs.len()],
            broker,
            feed,
            transformer,
            socket,
            piece: vec![0; PIECE],
            received: 0,
            has_ended: false,
            rings,
            outputs,
            streams: vec![],
            pending: None,
            last: Nanos(0),
            told: 0,
        }
    }

    /// May be dropped and begun again at every await: what it has done is done.
    async fn run(&mut self, shared: &Shared) -> End {
        loop {
            self.fill();
            let is_full = self.pending.is_some();
            let has_begun = shared.begin.get().is_some();
            if !has_begun && (is_full || self.has_ended || self.received >= self.feed.ready.0) {
                self.begin(shared).await;
                continue;
            }
            let is_over = self.has_ended && !is_full && self.told == self.rings.len();
            if is_over {
                return self.last_ends().await;
            }
            let may_read = !self.has_ended && self.transformer.held() < self.feed.hold.0 as usize;
            let rooms_needed = is_full || self.has_ended || !may_read;
            tokio::select! {
                read = self.socket.read(&mut self.piece), if may_read => self.take(read),
                outcome = first_end(&mut self.streams), if has_begun => return End::Output(outcome),
                () = tokio::time::sleep(LOOK), if rooms_needed => {}
            }
        }
    }

    fn take(&mut self, read: std::io::Result<usize>) {
        match read {
            Ok(0) | Err(_) => {
                self.has_ended = true;
                self.transformer.end();
            }
            Ok(read) => {
                self.received += read as u64;
                self.transformer.push(&self.piece[..read]);
            }
        }
    }

    /// Makes what there is room for.
    fn fill(&mut self) {
        while let Some((to, timed)) = self.pending.take().or_else(|| self.transformer.next()) {
            self.last = self.last.max(timed.due);
            if let Err(timed) = self.rings[to].push(timed) {
                self.pending = Some((to, timed));
                return;
            }
            self.pushed[to] += 1;
        }
        while self.has_ended
            && let Some(ring) = self.rings.get_mut(self.told)
            && ring.push(Timed::end(self.last)).is_ok()
        {
            self.pushed[self.told] += 1;
            self.told += 1;
        }
    }

    /// Hands the rings to the engine, all with one beginning.
    async fn begin(&mut self, shared: &Shared) {
        let begin = tactus_sys::clock::now() + LEAD;
        for (output, ring) in &mut self.outputs {
            let ring = ring.take().expect("it begins once");
            let target = output.target.clone();
            let title = &self.feed.title;
            self.streams
                .push(self.broker.make(&mut output.grant, title, target, begin, ring).await);
        }
        shared.begin.set(begin).expect("it begins once");
    }

    /// Ends all outputs; how many datagrams have left of each.
    async fn close(&mut self) -> Vec<u64> {
        for (stream, (output, _)) in self.streams.iter_mut().zip(&self.outputs) {
            self.broker.stop(&output.grant);
            stream.ended().await;
        }
        if self.streams.is_empty() {
            return vec![0; self.rings.len()];
        }
        let left = |(ring, pushed): (&mut Producer<Timed>, &u64)| {
            // Nobody takes any more; what has not left is still there, and an end never leaves.
            pushed - (ring.capacity() - ring.free()) as u64
        };
        self.rings.iter_mut().zip(&self.pushed).map(left).collect()
    }

    async fn last_ends(&mut self) -> End {
        for stream in &mut self.streams {
            match stream.ended().await {
                Outcome::Complete => {}
                outcome => return End::Output(outcome),
            }
        }
        End::Complete
    }
}

/// Waits for the first output that does not end as it was told to.
async fn first_end(streams: &mut [MadeStream]) -> Outcome {
    std::future::poll_fn(|context| {
        for stream in streams.iter_mut() {
            match stream.poll_ended(context) {
                Poll::Ready(Outcome::Complete) | Poll::Pending => {}
                Poll::Ready(outcome) => return Poll::Ready(outcome),
            }
        }
        Poll::Pending
    })
    .await
}
