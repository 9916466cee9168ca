//! What a client, its titles and its buffers share: the rings, the table of requests under way, the
//! pages, the sockets.
//!
//! Promise: between two calls nothing is held up: an answer that has come is taken by the next call
//! of any thread, and a caller that sleeps is woken by the doorbell. One caller at a time sleeps on
//! the doorbell; the others wait for it. When the server goes, everything under way ends with
//! `ECONNRESET`.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use tactus_core::local::{
    ANSWER_WORDS, Answer, Operation, REQUEST_WORDS, RING_SLOTS, Request, VERSION, layout,
};
use tactus_core::units::{Bytes, MonoTime};
use tactus_ring::shared::{
    Receiver, RingLayout, Sender, SharedBytes, SharedMemory, SleepMark, Words,
};

use crate::doorbell::{self, Peer};
use crate::error::{Error, Result};
use crate::memory::Mapping;
use crate::neighbour::Neighbour;
use crate::options::Options;
use crate::pages::{PAGE, Pages};
use crate::protocol::{self, Change, Reply};
use crate::socket::{self, Packet};
use crate::stream_gauge::StreamGauge;
use crate::table::{Destination, Extent, StrayAnswer, Table, Token};

pub(crate) struct Connection {
    pub(crate) data: SharedBytes,
    state: Mutex<State>,
    /// Tells callers that wait for the one that sleeps.
    woken: Condvar,
    doorbell: OwnedFd,
    socket: OwnedFd,
    /// Held from a message to its reply.
    names: Mutex<Names>,
    spin: Duration,
}

/// What one thread at a time uses.
pub(crate) struct State {
    requests: Sender<REQUEST_WORDS>,
    answers: Receiver<ANSWER_WORDS>,
    server_mark: SleepMark,
    own_mark: SleepMark,
    neighbour: Neighbour,
    /// The server slept at a request, was rung for, and has not answered since.
    has_rung: bool,
    pub(crate) table: Table,
    pub(crate) pages: Pages,
    pub(crate) streams: Vec<Arc<StreamGauge>>,
    /// Why nothing can be requested any more.
    ended: Option<Error>,
    /// A caller sleeps on the doorbell.
    is_sleeping: bool,
    /// An event loop waits for the doorbell.
    is_armed: bool,
    /// Callers that wait for the one that sleeps.
    waiting: usize,
    /// Looks without an answer since the last look at the doorbell.
    idle_looks: u32,
}

#[derive(Default)]
struct Names {
    /// Replies to the closing of dropped titles. The next request reads and discards them.
    unread: usize,
}

/// One read, by numbers.
pub(crate) struct Read {
    pub(crate) handle: u32,
    pub(crate) offset: u64,
    pub(crate) buffer: Extent,
    pub(crate) when: MonoTime,
}

impl Connection {
    pub(crate) fn new(path: &Path, options: &Options) -> Result<Self> {
        let socket = connect(path)?;
        let timeout = |which| set_socket_timeout(&socket, which, options.patience);
        let timed = timeout(Timeout::Recv).and_then(|()| timeout(Timeout::Send));
        timed.map_err(|errno| Error::new(errno, "the time limit of the socket cannot be set"))?;
        let hello = protocol::Request::Hello { version: VERSION, data: options.data };
        let failed = |error| Error::system(&error, "the server was not reached by its socket");
        socket::send(&socket, &hello, &[]).map_err(failed)?;
        let (reply, descriptors) =
            socket::receive::<Reply>(&socket).map_err(failed)?.ok_or(Error::gone())?;
        let len = match reply {
            Reply::Welcome { version: VERSION, memory, .. } => memory,
            Reply::Welcome { .. } => return Err(OTHER_VERSION),
            other => return Err(unexpected(other)),
        };
        let len = usize::try_from(len).map_err(|_| NO_MEMORY)?;
        let [memory, doorbell] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| NO_MEMORY)?;
        if len <= layout::DATA {
            return Err(NO_MEMORY);
        }
        let mapping = Mapping::new(memory.as_fd(), len)
            .map_err(|error| Error::system(&error, "the shared memory cannot be mapped"))?;
        Ok(Self::over(Arc::new(mapping), doorbell, socket, options.spin))
    }

    fn over(
        memory: Arc<dyn SharedMemory>,
        doorbell: OwnedFd,
        socket: OwnedFd,
        spin: Duration,
    ) -> Self {
        let words = Words::new(Arc::clone(&memory));
        let data = SharedBytes::new(memory, layout::DATA);
        let state = State {
            requests: Sender::new(words.clone(), RingLayout::new(layout::REQUESTS, RING_SLOTS)),
            answers: Receiver::new(words.clone(), RingLayout::new(layout::ANSWERS, RING_SLOTS)),
            server_mark: SleepMark::new(words.clone(), layout::SERVER_ASLEEP),
            own_mark: SleepMark::new(words.clone(), layout::CLIENT_ASLEEP),
            neighbour: Neighbour::new(words),
            has_rung: false,
            table: Table::new(),
            pages: Pages::new(data.len() / PAGE),
            streams: vec![],
            ended: None,
            is_sleeping: false,
            is_armed: false,
            waiting: 0,
            idle_looks: 0,
        };
        Self {
            data,
            state: Mutex::new(state),
            woken: Condvar::new(),
            doorbell,
            socket,
            names: Mutex::default(),
            spin,
        }
    }

    pub(crate) fn doorbell(&self) -> &OwnedFd {
        &self.doorbell
    }

    /// The state, as the last call has left it.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it is held is a mistake of this crate; the state is valid at each step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, with the answers that have come.
    pub(crate) fn current(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        self.take_answers(&mut state);
        state
    }

    /// Lets go of the state, and wakes the futures whose results have come: without the lock,
    /// because a waker may run a future at once.
    pub(crate) fn release(&self, mut state: MutexGuard<'_, State>) {
        if state.table.woken().is_empty() {
            return;
        }
        let mut wakers = std::mem::take(state.table.woken());
        drop(state);
        for waker in wakers.drain(..) {
            waker.wake();
        }
        // Its memory is used again.
        let mut state = self.state();
        let kept = state.table.woken();
        if kept.capacity() == 0 {
            *kept = wakers;
        }
    }

    /// Submits a read. Its buffer belongs to the request from here on, or is free on an error.
    pub(crate) fn submit(
        &self,
        state: &mut State,
        read: &Read,
        destination: Destination,
    ) -> Result<Token> {
        let request = Request {
            token: 0,
            operation: Operation::Read,
            handle: read.handle,
            offset: Bytes(read.offset),
            len: read.buffer.len,
            at: read.buffer.pages.at(),
            when: read.when,
        };
        self.submit_request(state, request, read.buffer, destination)
    }

    /// Submits a request, which gets its token here. Its buffer belongs to it from here on, or is
    /// free on an error.
    pub(crate) fn submit_request(
        &self,
        state: &mut State,
        request: Request,
        buffer: Extent,
        destination: Destination,
    ) -> Result<Token> {
        let begun = self.begin(state, request, buffer, destination);
        if begun.is_err() {
            state.pages.give_back(buffer.pages);
        }
        begun
    }

    fn begin(
        &self,
        state: &mut State,
        request: Request,
        buffer: Extent,
        destination: Destination,
    ) -> Result<Token> {
        if let Some(error) = &state.ended {
            return Err(error.clone());
        }
        let token = state.table.begin(buffer, destination).ok_or(RING_FULL)?;
        let request = Request { token: token.0, ..request };
        // Never full: there are no more requests under way than it has slots.
        if state.requests.push(&request.encode()) != Ok(true) {
            state.end(&Error::broken());
        } else if state.server_mark.must_ring() {
            state.neighbour.tell();
            state.has_rung = true;
            if doorbell::ring(&self.doorbell) == Peer::Gone {
                self.end_after_answers(state);
            }
        }
        Ok(token)
    }

    /// Takes all answers that have come. Now and then it looks whether the server is still there,
    /// for programs that never sleep.
    fn take_answers(&self, state: &mut State) {
        if state.take_answers() || state.ended.is_some() {
            state.idle_looks = 0;
            return;
        }
        state.idle_looks += 1;
        if state.idle_looks == IDLE_LOOKS_MAX {
            state.idle_looks = 0;
            // A byte that is taken here is one for a sleeper, so none is taken beside one.
            if !state.is_sleeping && !state.is_armed {
                self.drain(state);
            }
        }
    }

    /// Waits until `look` finds something, or until `deadline`.
    pub(crate) fn wait<R>(
        &self,
        deadline: Option<Instant>,
        mut look: impl FnMut(&mut State) -> Option<R>,
    ) -> Result<Option<R>> {
        let mut state = self.current();
        let mut spin_until = None;
        loop {
            if let Some(found) = look(&mut state) {
                self.release(state);
                return Ok(Some(found));
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.release(state);
                return Ok(None);
            }
            if now < *spin_until.get_or_insert_with(|| now + state.spin(self.spin)) {
                self.release(state);
                std::hint::spin_loop();
                state = self.current();
                continue;
            }
            let timeout = deadline.map(|deadline| deadline - now);
            if state.is_armed {
                // The doorbell is the event loop's.
                self.release(state);
                std::thread::sleep(ARMED_LOOK.min(timeout.unwrap_or(ARMED_LOOK)));
                state = self.current();
            } else if state.is_sleeping {
                state = self.wait_for_sleeper(state, timeout);
            } else {
                state.own_mark.set();
                self.take_answers(&mut state);
                if let Some(found) = look(&mut state) {
                    state.own_mark.clear();
                    self.release(state);
                    return Ok(Some(found));
                }
                state.is_sleeping = true;
                self.release(state);
                let woken = self.sleep(timeout);
                state = self.state();
                self.wake_up(&mut state);
                match woken {
                    Ok(Peer::Connected) => {}
                    Ok(Peer::Gone) => self.end_after_answers(&mut state),
                    Err(error) => return Err(error),
                }
                self.take_answers(&mut state);
            }
        }
    }

    fn sleep(&self, timeout: Option<Duration>) -> Result<Peer> {
        doorbell::wait(self.doorbell.as_fd(), self.socket.as_fd(), timeout)
            .map_err(|error| Error::system(&error, "the doorbell cannot be waited for"))
    }

    /// The caller that has slept is awake, and another one may sleep.
    fn wake_up(&self, state: &mut State) {
        state.is_sleeping = false;
        // The kernel may have put it elsewhere.
        state.neighbour.tell();
        // The bytes for an event loop are left to it.
        if !state.is_armed {
            state.own_mark.clear();
            self.drain(state);
        }
        if state.waiting > 0 {
            self.woken.notify_all();
        }
    }

    fn wait_for_sleeper<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        state.waiting += 1;
        let mut state = match timeout {
            None => self.woken.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let woken = self.woken.wait_timeout(state, timeout);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.waiting -= 1;
        self.take_answers(&mut state);
        state
    }

    /// An event loop is going to wait for the doorbell. False if there is a completion already.
    pub(crate) fn arm(&self) -> Result<bool> {
        let mut state = self.current();
        let mut is_armed = false;
        if !state.has_news() {
            if let Some(error) = &state.ended {
                return Err(error.clone());
            }
            state.own_mark.set();
            state.is_armed = true;
            self.take_answers(&mut state);
            is_armed = !state.has_news() && state.ended.is_none();
            if !is_armed {
                self.disarm_with(&mut state);
            }
        }
        self.release(state);
        Ok(is_armed)
    }

    /// An event loop is awake.
    pub(crate) fn disarm(&self) {
        let mut state = self.state();
        self.disarm_with(&mut state);
        self.take_answers(&mut state);
        self.release(state);
    }

    fn disarm_with(&self, state: &mut State) {
        state.is_armed = false;
        // Bytes and mark are left to a caller that sleeps as well: it takes them when it wakes up.
        if !state.is_sleeping {
            state.own_mark.clear();
            self.drain(state);
        }
    }

    fn drain(&self, state: &mut State) {
        if doorbell::drain(&self.doorbell) == Peer::Gone {
            self.end_after_answers(state);
        }
    }

    /// Ends the connection after the server has gone. Takes the answers in the ring first.
    fn end_after_answers(&self, state: &mut State) {
        state.take_answers();
        state.end(&Error::gone());
        if state.waiting > 0 {
            self.woken.notify_all();
        }
    }

    /// Sends a message by the socket and returns its reply.
    pub(crate) fn ask(&self, request: &protocol::Request) -> Result<Reply> {
        Ok(self.ask_for_files(request)?.0)
    }

    /// The error of a request of `writer` that was answered with `errno`: with the server's reason,
    /// if it has one.
    pub(crate) fn writer_failed(&self, writer: u32, errno: u32) -> Error {
        if errno == Errno::CONNRESET.raw_os_error() as u32 {
            return Error::gone();
        }
        let reason = self.ask(&Change::Reason { writer }.into());
        let own = Error::server(errno, "the title was not written");
        reason.err().filter(|reason| reason.errno() == own.errno()).unwrap_or(own)
    }

    /// The same as [`Self::ask`], with the descriptors of the reply.
    pub(crate) fn ask_for_files(&self, request: &protocol::Request) -> Result<Packet<Reply>> {
        let mut names = self.names();
        let asked = self.ask_with(&mut names, request);
        drop(names);
        match asked {
            Ok(Some((Reply::Error { errno, message }, _))) => Err(Error::server(errno, message)),
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => {
                self.end_after_answers(&mut self.state());
                Err(Error::gone())
            }
            // The reply may come later, so that no further one belongs to its request.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                rustix::net::shutdown(&self.socket, Shutdown::Both).ok();
                let error = Error::new(Errno::TIMEDOUT, "the server does not answer");
                self.state().end(&error);
                Err(error)
            }
            Err(error) => Err(Error::system(&error, "the server did not reply by its socket")),
        }
    }

    fn ask_with(
        &self,
        names: &mut Names,
        request: &protocol::Request,
    ) -> std::io::Result<Option<Packet<Reply>>> {
        match socket::send(&self.socket, request, &[]) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(None),
            Err(error) => return Err(error),
        }
        names.unread += 1;
        loop {
            let Some(packet) = socket::receive(&self.socket)? else { return Ok(None) };
            names.unread -= 1;
            if names.unread == 0 {
                return Ok(Some(packet));
            }
        }
    }

    /// Tells the server that a title, a stream or a writer has ended. Does not wait for the reply.
    pub(crate) fn tell(&self, request: &protocol::Request) {
        let mut names = self.names();
        // A server that has gone has closed everything.
        if socket::send(&self.socket, request, &[]).is_ok() {
            names.unread += 1;
        }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether there is something that the program has not seen.
    fn has_news(&self) -> bool {
        self.table.has_completion() || self.streams.iter().any(|stream| stream.has_news())
    }

    /// Why the connection has ended.
    pub(crate) fn ended(&self) -> Option<Error> {
        self.ended.clone()
    }

    /// Takes all answers that have come. Returns whether there were any.
    fn take_answers(&mut self) -> bool {
        let mut any = false;
        // No more answers can be there than there are requests under way.
        for _ in 0..RING_SLOTS {
            let handled = match self.answers.pop() {
                Ok(None) => break,
                Ok(Some(words)) => self.table.handle_answer(&Answer::decode(&words)),
                Err(_) => Err(StrayAnswer),
            };
            if let Err(StrayAnswer) = handled {
                self.end(&Error::broken());
                break;
            }
            any = true;
        }
        if any {
            self.has_rung = false;
            self.settle();
        }
        any
    }

    /// How long a caller looks for its answer: not at all on the processor of a server that sleeps.
    /// The answer then wakes it, and the kernel puts it on an idle processor, where there is one.
    fn spin(&mut self, spin: Duration) -> Duration {
        if self.has_rung && self.neighbour.is_beside() { Duration::ZERO } else { spin }
    }

    /// Nothing is answered any more.
    fn end(&mut self, error: &Error) {
        if self.ended.is_none() {
            self.ended = Some(error.clone());
            self.table.fail_all(Errno::from_raw_os_error(error.errno()), now());
            self.settle();
        }
    }

    /// The caller of a request waits no more.
    pub(crate) fn abandon(&mut self, token: Token) {
        self.table.abandon(token);
        self.settle();
    }

    fn settle(&mut self) {
        while let Some(pages) = self.table.pop_returned() {
            self.pages.give_back(pages);
        }
    }
}

/// Now, by the clock of timed requests.
pub(crate) fn now() -> MonoTime {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    MonoTime(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn connect(path: &Path) -> Result<OwnedFd> {
    let failed = |errno| Error::new(errno, "the server was not reached by its socket");
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address)).map_err(failed)?;
    Ok(socket)
}

/// An error, or a reply that does not belong to its request.
pub(crate) fn unexpected(reply: Reply) -> Error {
    match reply {
        Reply::Error { errno, message } => Error::server(errno, message),
        _ => Error::new(Errno::PROTO, "the server sent a reply that no request has"),
    }
}

/// Looks without an answer between two looks at the doorbell: some 20 us of a loop.
const IDLE_LOOKS_MAX: u32 = 1024;

/// How often a blocking call looks for its answer while the doorbell is an event loop's.
const ARMED_LOOK: Duration = Duration::from_micros(100);

const RING_FULL: Error =
    Error::new(Errno::AGAIN, "as many requests are under way as there may be; take completions");
const OTHER_VERSION: Error =
    Error::new(Errno::PROTONOSUPPORT, "the server speaks another version of the protocol");
const NO_MEMORY: Error =
    Error::new(Errno::PROTO, "the server's first message came without its shared memory");
