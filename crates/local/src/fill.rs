//! Reads a whole title into memory, by the engine: the server is a client of its own file server.
//!
//! Promise: the reads come after those of all streams, like those of any local client.

use std::sync::Arc;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tactus_client::memory::Mapping;
use tactus_control::broker::Broker;
use tactus_control::local::{LocalClients, REQUESTS_MAX};
use tactus_core::local::{Answer, Operation, RING_SLOTS, Request, layout};
use tactus_core::ports::Waker;
use tactus_core::units::{Bytes, KIB, MonoTime};
use tactus_ring::shared::{Receiver, RingLayout, Sender, SharedMemory, SleepMark, Words};
use tactus_storage::catalogue::OpenTitle;

/// Why a title was not read.
#[derive(Debug)]
pub(crate) enum FillError {
    /// The engine answered with this error number.
    Failed(u32),
    /// The engine did not answer.
    TimedOut,
    /// No place, or no descriptors.
    Busy,
}

/// Bytes of one request.
const PIECE: u64 = 256 * KIB;
/// A disk that answers nothing for so long does not answer.
const PATIENCE: Duration = Duration::from_secs(30);

struct Unparks(Thread);

impl Waker for Unparks {
    fn wake(&self) {
        self.0.unpark();
    }
}

/// Fills the data of `memory`, which is new, with the bytes of `title`.
pub(crate) fn fill(
    clients: &LocalClients,
    broker: &Broker,
    title: &Arc<OpenTitle>,
    memory: Arc<Mapping>,
) -> Result<(), FillError> {
    let words = Words::new(Arc::clone(&memory) as Arc<dyn SharedMemory>);
    let mut requests = Sender::new(words.clone(), RingLayout::new(layout::REQUESTS, RING_SLOTS));
    let mut answers = Receiver::new(words.clone(), RingLayout::new(layout::ANSWERS, RING_SLOTS));
    let server = SleepMark::new(words.clone(), layout::SERVER_ASLEEP);
    let own = SleepMark::new(words, layout::CLIENT_ASLEEP);
    let bell = Box::new(Unparks(thread::current()));
    let session = clients.attach_own(memory, bell);
    let mut session = session.ok_or(FillError::Busy)?;
    let handle = session.open(title, broker).map_err(|_| FillError::Busy)?;
    let (mut requested, mut done, mut under_way) = (0, 0, 0);
    let mut heard = Instant::now();
    let mut failed = None;
    while done < title.len.0 && failed.is_none() {
        while requested < title.len.0 && under_way < REQUESTS_MAX {
            let len = PIECE.min(title.len.0 - requested);
            let request = Request {
                token: requested,
                operation: Operation::Read,
                handle,
                offset: Bytes(requested),
                len: len as u32,
                at: requested,
                when: MonoTime(0),
            };
            if requests.push(&request.encode()) != Ok(true) {
                break;
            }
            requested += len;
            under_way += 1;
        }
        if server.must_ring() {
            clients.wake();
        }
        own.set();
        let before = done;
        while let Some(words) = answers.pop().unwrap_or(None) {
            under_way -= 1;
            let answer = Answer::decode(&words);
            let expected = PIECE.min(title.len.0 - answer.token);
            match answer.result {
                Ok(bytes) if u64::from(bytes) == expected => done += expected,
                // Shorter than it was.
                Ok(_) => failed = Some(ENODATA),
                Err(errno) => failed = Some(errno),
            }
        }
        if done > before {
            heard = Instant::now();
            own.clear();
        } else if failed.is_none() {
            if heard.elapsed() > PATIENCE {
                return Err(FillError::TimedOut);
            }
            thread::park_timeout(PATIENCE / 10);
        }
    }
    failed.map_or(Ok(()), |errno| Err(FillError::Failed(errno)))
}

const ENODATA: u32 = 61;
