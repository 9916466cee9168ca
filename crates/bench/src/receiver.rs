//! The receiver: asks for N streams over HTTP, discards their bytes, and notes when they came.
//!
//! Promise: one thread, pinned, SCHED_FIFO 20, one epoll. Body bytes are dropped inside the kernel
//! (`MSG_TRUNC`), so receiving costs no copy; each `recv` is stamped as it returns. It asks at the
//! instants of its plan and computes nothing while it receives.

mod connection;
pub(crate) mod head;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::event::epoll;
use rustix::time::Timespec;
use tactus_core::units::{MILLISECOND, MonoTime, Nanos};

use crate::arrivals::Record;
use crate::clock;
use crate::cpu::RECEIVER;
use crate::netns::Side;
use crate::priority;
use connection::{Connection, Progress};

pub use connection::{Answer, End};

/// Below the gap detector, above everything else on its core.
const PRIORITY: u32 = 20;
/// Events per call; more only makes stamps older.
const EVENTS: usize = 64;
/// The most that one `recv` takes; beyond what a socket buffer holds by default.
const RECEIVE_MAX: usize = 8 << 20;
/// How often the receiver looks at its orders when nothing arrives.
const PATIENCE: Nanos = Nanos::from_millis(20);

/// One request of a plan.
#[derive(Clone, Debug)]
pub struct PlannedRequest {
    /// When to connect and ask, after the start of the receiver.
    pub after: Nanos,
    /// The request as it goes out.
    pub request: Vec<u8>,
    /// The source address; none: the kernel's choice.
    pub from: Option<Ipv4Addr>,
}

impl PlannedRequest {
    /// A GET of `target`.
    pub fn get(after: Nanos, target: &str) -> Self {
        let request = format!("GET {target} HTTP/1.1\r\nHost: bench\r\n\r\n");
        Self { after, request: request.into_bytes(), from: None }
    }
}

/// What a receiver shall do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the server listens.
    pub server: SocketAddrV4,
    /// The requests in order of time; a stream's number is its place here.
    pub asks: Vec<PlannedRequest>,
    /// How many arrivals the record has room for without growing.
    pub room: usize,
    /// The receiver's core.
    pub core: usize,
}

/// Everything a receiver saw.
#[derive(Debug)]
pub struct Harvest {
    /// One per request, in the order of the plan.
    pub answers: Vec<Answer>,
    /// All arrivals of payload.
    pub record: Record,
    /// When it stopped to look.
    pub stopped_at: MonoTime,
    /// Whether it ran without SCHED_FIFO.
    pub refused_fifo: bool,
}

/// A running receiver.
#[derive(Debug)]
pub struct StreamReceiver {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<Harvest>>,
}

/// What the receiver tells while it runs.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// When the plan began; zero before.
    started_at: AtomicU64,
    /// Requests that have got payload, or never will.
    settled: AtomicUsize,
    /// Requests whose connection has ended.
    ended: AtomicUsize,
}

impl StreamReceiver {
    /// Starts a receiver on `side`.
    pub fn start(side: Side, plan: Plan) -> Result<Self> {
        ensure!(
            plan.asks.is_sorted_by_key(|ask| ask.after),
            "a plan lists its requests in the order of time"
        );
        raise_file_limit(plan.asks.len() as u64 + 256)?;
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(RECEIVER.into());
        let thread = thread.spawn(move || {
            side.enter()?;
            priority::pin(plan.core)?;
            Receiver::new(&plan, &seen)?.receive()
        })?;
        Ok(Self { shared, thread })
    }

    /// When the plan began, once it has.
    pub fn started_at(&self) -> Option<MonoTime> {
        match self.shared.started_at.load(Ordering::Acquire) {
            0 => None,
            at => Some(MonoTime(at)),
        }
    }

    /// How many requests have got payload, or have ended without.
    pub fn settled(&self) -> usize {
        self.shared.settled.load(Ordering::Relaxed)
    }

    /// How many requests have got everything, or have broken.
    pub fn ended(&self) -> usize {
        self.shared.ended.load(Ordering::Relaxed)
    }

    /// Whether the receiver has given up; its reason comes from `stop`.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the receiver, closes its connections and takes what it saw.
    pub fn stop(self) -> Result<Harvest> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the receiver panicked"))?
    }
}

struct Receiver<'a> {
    plan: &'a Plan,
    shared: &'a Shared,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    record: Record,
    /// Never touched: the kernel drops what is received "into" it.
    void: Vec<u8>,
    started_at: MonoTime,
    refused_fifo: bool,
}

impl<'a> Receiver<'a> {
    fn new(plan: &'a Plan, shared: &'a Shared) -> Result<Self> {
        Ok(Self {
            plan,
            shared,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: Vec::with_capacity(plan.asks.len()),
            record: Record::with_room(plan.room),
            void: vec![0; RECEIVE_MAX],
            started_at: clock::now(),
            refused_fifo: false,
        })
    }

    fn receive(mut self) -> Result<Harvest> {
        self.refused_fifo = priority::fifo(PRIORITY).is_err();
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        self.started_at = clock::now();
        self.shared.started_at.store(self.started_at.0, Ordering::Release);
        let mut events = Vec::with_capacity(EVENTS);
        while !self.shared.stop.load(Ordering::Relaxed) {
            let wait = self.ask_what_is_due()?;
            let wait = Timespec { tv_sec: 0, tv_nsec: wait.0 as i64 };
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, Some(&wait)) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error).context("epoll_wait"),
            }
            for event in &events {
                self.handle(event.data.u64() as usize)?;
            }
        }
        let stopped_at = clock::now();
        let (record, refused_fifo) = (self.record, self.refused_fifo);
        let answers = self.connections.into_iter().map(Connection::into_answer).collect();
        Ok(Harvest { answers, record, stopped_at, refused_fifo })
    }

    /// Opens the connections that are due; answers how long nothing more is.
    fn ask_what_is_due(&mut self) -> Result<Nanos> {
        while let Some(ask) = self.plan.asks.get(self.connections.len()) {
            let due = self.started_at + ask.after;
            let now = clock::now();
            if due > now {
                return Ok(due.since(now).min(PATIENCE));
            }
            let number = self.connections.len();
            let connection = Connection::open(self.plan.server, ask, now)
                .with_context(|| format!("cannot open connection {number}"))?;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&self.epoll, connection.socket(), data, epoll::EventFlags::OUT)?;
            self.connections.push(connection);
            // With everything due at once, what arrives must still be stamped in time.
            if now.since(due) > MILLISECOND {
                return Ok(Nanos::ZERO);
            }
        }
        Ok(PATIENCE)
    }

    fn handle(&mut self, number: usize) -> Result<()> {
        let connection = &mut self.connections[number];
        let payload = match connection.advance(&mut self.void) {
            Progress::Connected => {
                let data = epoll::EventData::new_u64(number as u64);
                epoll::modify(&self.epoll, connection.socket(), data, epoll::EventFlags::IN)?;
                return Ok(());
            }
            Progress::Received(payload) => payload,
        };
        if payload.first || (payload.ended && !connection.has_payload()) {
            self.shared.settled.fetch_add(1, Ordering::Relaxed);
        }
        if payload.ended {
            self.shared.ended.fetch_add(1, Ordering::Relaxed);
            epoll::delete(&self.epoll, connection.socket())?;
        }
        if let Some(arrival) = payload.arrival(number as u32) {
            self.record.push(arrival);
        }
        Ok(())
    }
}

/// Raises this process's limit of open files to at least `files`.
fn raise_file_limit(files: u64) -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= files) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(files));
    setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum })
        .with_context(|| format!("cannot raise the limit of open files to {files}"))
}
