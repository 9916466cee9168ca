//! A server for tests: the other side of the socket, of the doorbell and of the rings, in two
//! threads of the test. It serves titles whose bytes follow from handle and offset.

#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

pub(crate) mod building;
mod streams;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, listen, shutdown,
    socket_with, socketpair,
};
use tactus_client::memory::{self, Mapping};
use tactus_client::protocol::{Change, Entry, Reply, Request as Message, Stat};
use tactus_client::{doorbell, socket};
use tactus_core::local::{
    ANSWER_WORDS, Answer, Operation, REQUEST_WORDS, RING_SLOTS, Request, layout,
};
use tactus_ring::shared::{
    Receiver, RingLayout, Sender, SharedBytes, SharedMemory, SharedWord, SleepMark, Words,
};

/// Length of every title in bytes.
pub(crate) const TITLE_LEN: u64 = 1_000_003;
/// Room of the ring of a recording: not a multiple of what tests write.
pub(crate) const ROOM: usize = 4096;
/// Rate of every title in bits per second.
pub(crate) const TITLE_RATE: u64 = 8_000_000;

/// Byte `offset` of the title with this handle.
pub(crate) fn byte(handle: u32, offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ handle as u8
}

/// A listening server. It takes one client.
pub(crate) struct FakeServer {
    pub(crate) path: PathBuf,
    pub(crate) control: Arc<Control>,
    names: Option<JoinHandle<()>>,
}

/// What a test changes while the server runs.
#[derive(Default)]
pub(crate) struct Control {
    /// Requests are taken and not answered.
    pub(crate) is_held: AtomicBool,
    /// The youngest request is answered first.
    pub(crate) is_reversed: AtomicBool,
    /// Bytes sent to the client's doorbell.
    pub(crate) rings: AtomicU64,
    /// Requests taken.
    pub(crate) requests: AtomicU64,
    /// Where the server says that it runs, and where the client does, as words of the memory.
    pub(crate) processor: AtomicU64,
    pub(crate) processor_of_client: AtomicU64,
    /// Titles closed, and writers ended.
    pub(crate) closed: AtomicU64,
    /// Bytes that the client has written.
    pub(crate) written: Mutex<Vec<u8>>,
    /// The title that the client builds in memory.
    built: building::BuiltTitle,
    /// Names changed: what the client has asked for.
    pub(crate) changes: Mutex<Vec<String>>,
    /// Writes are answered with this error number, if it is one.
    pub(crate) write_error: AtomicU32,
    /// The server's end of the doorbell, for recordings.
    doorbell: Mutex<Option<OwnedFd>>,
    /// Answers to push as they are.
    pub(crate) answers: Mutex<Vec<[u64; ANSWER_WORDS]>>,
    stop: AtomicBool,
}

impl Control {
    pub(crate) fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::SeqCst);
    }

    /// Waits until the server has taken this many requests in all.
    pub(crate) fn wait_for_requests(&self, count: u64) {
        while self.requests.load(Ordering::SeqCst) < count {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

impl FakeServer {
    /// A server that replies to the first message as it should.
    pub(crate) fn start() -> Self {
        Self::start_with(|data| {
            let len = layout::DATA as u64 + data;
            let memory = memory::create(len as usize).unwrap();
            let flags = SocketFlags::CLOEXEC;
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            let welcome = Reply::Welcome {
                version: tactus_core::local::VERSION,
                memory: len,
                handles: 4,
                requests: 16,
            };
            let mapping = Mapping::new(memory.as_fd(), len as usize).unwrap();
            (welcome, vec![memory, theirs], Some((Arc::new(mapping), ours)))
        })
    }

    /// A server that replies to the first message, which carries a length, by `welcome`.
    pub(crate) fn start_with<F>(welcome: F) -> Self
    where
        F: FnOnce(u64) -> (Reply, Vec<OwnedFd>, Option<(Arc<Mapping>, OwnedFd)>) + Send + 'static,
    {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tactus-client-{}-{count}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = listener(&path);
        let control = Arc::new(Control::default());
        let shared = Arc::clone(&control);
        let names = std::thread::spawn(move || {
            let Ok(client) = rustix::net::accept(&listener) else { return };
            let Some((Message::Hello { data, .. }, _)) = socket::receive(&client).unwrap() else {
                return;
            };
            let (reply, descriptors, engine) = welcome(data);
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            socket::send(&client, &reply, &borrowed).unwrap();
            drop(descriptors);
            let Some((memory, doorbell)) = engine else { return };
            let client = Arc::new(client);
            let cut = Arc::clone(&client);
            *shared.doorbell.lock().unwrap() = Some(doorbell.try_clone().unwrap());
            let control = Arc::clone(&shared);
            let engine = std::thread::spawn(move || {
                Engine::new(memory, doorbell, control).run();
                // Ends the thread of the names, too.
                shutdown(&cut, Shutdown::Both).ok();
            });
            serve_names(&client, &shared);
            shared.stop.store(true, Ordering::SeqCst);
            engine.join().unwrap();
            // The client sees its end.
            shared.doorbell.lock().unwrap().take();
        });
        Self { path, control, names: Some(names) }
    }

    /// Ends the server, as if it were killed.
    pub(crate) fn stop(&mut self) {
        self.control.stop.store(true, Ordering::SeqCst);
        if let Some(names) = self.names.take() {
            names.join().unwrap();
        }
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        // A thread that still waits for a client is left.
        self.control.stop.store(true, Ordering::SeqCst);
        std::fs::remove_file(&self.path).ok();
    }
}

fn listener(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&listener, 1).unwrap();
    listener
}

fn serve_names(client: &OwnedFd, control: &Arc<Control>) {
    let stat =
        Stat { len: TITLE_LEN, modified: 5, rate: Some(TITLE_RATE), file: 7, ..Stat::default() };
    let mut handles = 0;
    while let Ok(Some((message, _))) = socket::receive::<Message>(client) {
        let mut file = None;
        let reply = match message {
            Message::Stream { handle, first, rate, .. } => {
                let (reply, ring) = streams::begin(handle, first, rate);
                file = ring;
                reply
            }
            Message::Seek { .. } => Reply::Error { errno: 22, message: "behind".to_owned() },
            Message::EndStream { stream: 7 } => Reply::Closed,
            Message::EndStream { .. } => Reply::Error { errno: 9, message: "none".to_owned() },
            Message::Record { title, .. } if title.starts_with("/missing") => missing(&title),
            Message::Record { rate: 1, .. } => {
                Reply::Error { errno: 16, message: "no room for 1 bit/s".to_owned() }
            }
            Message::Record { .. } => {
                let (reply, ring) = streams::record(control);
                file = ring;
                reply
            }
            Message::EndRecording { recording: 9 } => {
                match control.write_error.load(Ordering::SeqCst) {
                    0 => Reply::Closed,
                    errno => Reply::Error { errno, message: "the disk is full".to_owned() },
                }
            }
            Message::EndRecording { .. } => Reply::Error { errno: 9, message: "none".to_owned() },
            Message::Hello { .. } => Reply::Error { errno: 22, message: "once".to_owned() },
            Message::Map { handle } => {
                let file = title_memory(handle);
                let reply = Reply::Mapped { first: MAP_FIRST, len: TITLE_LEN };
                if socket::send(client, &reply, &[file.as_fd()]).is_err() {
                    return;
                }
                continue;
            }
            Message::Reserve { interval: 0, .. } => {
                Reply::Error { errno: 22, message: "no interval".to_owned() }
            }
            Message::Reserve { .. } => Reply::Reserved { ahead: 7_000_000, block: 65_536 },
            Message::File { .. } => Reply::Error { errno: 95, message: "no file".to_owned() },
            Message::Space { path } => {
                if path == "/slow" {
                    std::thread::sleep(std::time::Duration::from_secs(1));
                }
                Reply::Space { total: 3, free: 2, available: 1 }
            }
            Message::Change(change) => change_names(change, control),
            Message::CreateInMemory { origin, .. } => {
                let (reply, memory) = control.built.begin(&origin);
                file = Some(memory);
                reply
            }
            Message::Open { title } if title.starts_with("/missing") => missing(&title),
            Message::Stat { title } if title.starts_with("/missing") => missing(&title),
            Message::Open { .. } => {
                handles += 1;
                Reply::Opened { handle: handles - 1, stat: stat.clone() }
            }
            Message::Stat { .. } => Reply::Stat(stat.clone()),
            Message::Close { .. } => {
                // A reply that comes late.
                std::thread::sleep(std::time::Duration::from_millis(5));
                control.closed.fetch_add(1, Ordering::SeqCst);
                Reply::Closed
            }
            Message::List { after, .. } => {
                let all = ["a", "b", "c", "d", "e"];
                let rest = all.iter().filter(|name| after.as_deref().is_none_or(|a| **name > a));
                let rest: Vec<_> = rest
                    .map(|name| Entry { name: (*name).to_owned(), stat: stat.clone() })
                    .collect();
                let more = rest.len() > 2;
                Reply::List { entries: rest.into_iter().take(2).collect(), more }
            }
        };
        let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        if socket::send(client, &reply, &files).is_err() {
            return;
        }
    }
}

fn missing(name: &str) -> Reply {
    Reply::Error { errno: 2, message: format!("no title has the name {name}") }
}

fn change_names(change: Change, control: &Control) -> Reply {
    match change {
        Change::Create { title, .. } if title.starts_with("/missing") => missing(&title),
        Change::Create { .. } => Reply::Created { writer: 5 },
        Change::Abandon { writer: 5, keeps } => {
            if keeps {
                control.changes.lock().unwrap().push("kept".to_owned());
            }
            control.closed.fetch_add(1, Ordering::SeqCst);
            Reply::Closed
        }
        Change::Reason { writer: 5 } => match control.write_error.load(Ordering::SeqCst) {
            0 => Reply::Done,
            errno => Reply::Error { errno, message: "the disk is full".to_owned() },
        },
        Change::WorkingFile { .. } => Reply::Error { errno: 95, message: "no file".to_owned() },
        Change::Abandon { .. }
        | Change::Reason { .. }
        | Change::Grow { .. }
        | Change::Retarget { .. }
        | Change::Unname { .. } => Reply::Error { errno: 9, message: "no such writer".to_owned() },
        Change::Remove { .. }
        | Change::RemoveDirectory { .. }
        | Change::MakeDirectory { .. }
        | Change::Rename { .. }
        | Change::SetModified { .. } => {
            control.changes.lock().unwrap().push(format!("{change:?}"));
            Reply::Done
        }
    }
}

/// Where a title begins in its memory file: not at a page.
const MAP_FIRST: u64 = 5000;

fn title_memory(handle: u32) -> OwnedFd {
    let file = memory::create_title().unwrap();
    let bytes: Vec<_> = (0..TITLE_LEN).map(|offset| byte(handle, offset)).collect();
    let len = bytes.len();
    assert_eq!(rustix::io::pwrite(&file, &bytes, MAP_FIRST).unwrap(), len);
    file
}

/// The side of the file server.
struct Engine {
    requests: Receiver<REQUEST_WORDS>,
    answers: Sender<ANSWER_WORDS>,
    own_mark: SleepMark,
    client_mark: SleepMark,
    own_processor: SharedWord,
    client_processor: SharedWord,
    data: SharedBytes,
    doorbell: OwnedFd,
    control: Arc<Control>,
    pending: Vec<Request>,
}

impl Engine {
    fn new(memory: Arc<Mapping>, doorbell: OwnedFd, control: Arc<Control>) -> Self {
        let memory: Arc<dyn SharedMemory> = memory;
        let words = Words::new(Arc::clone(&memory));
        let requests = RingLayout::new(layout::REQUESTS, RING_SLOTS);
        let answers = RingLayout::new(layout::ANSWERS, RING_SLOTS);
        Self {
            requests: Receiver::new(words.clone(), requests),
            answers: Sender::new(words.clone(), answers),
            own_mark: SleepMark::new(words.clone(), layout::SERVER_ASLEEP),
            client_mark: SleepMark::new(words.clone(), layout::CLIENT_ASLEEP),
            own_processor: SharedWord::new(words.clone(), layout::SERVER_PROCESSOR),
            client_processor: SharedWord::new(words, layout::CLIENT_PROCESSOR),
            data: SharedBytes::new(memory, layout::DATA),
            doorbell,
            control,
            pending: vec![],
        }
    }

    fn run(mut self) {
        while !self.control.stop.load(Ordering::SeqCst) {
            self.own_processor.store(self.control.processor.load(Ordering::SeqCst));
            let of_client = self.client_processor.load();
            self.control.processor_of_client.store(of_client, Ordering::SeqCst);
            if self.turn() {
                continue;
            }
            self.own_mark.set();
            if !self.turn() {
                let mut doorbell = [PollFd::new(&self.doorbell, PollFlags::IN)];
                let millisecond = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                poll(&mut doorbell, Some(&millisecond)).ok();
            }
            self.own_mark.clear();
            if doorbell::drain(&self.doorbell) == doorbell::Peer::Gone {
                return;
            }
        }
    }

    /// Takes requests and answers those whose time has come. Returns whether anything was done.
    fn turn(&mut self) -> bool {
        let mut any = false;
        while let Some(words) = self.requests.pop().unwrap() {
            self.pending.push(Request::decode(&words).unwrap());
            self.control.requests.fetch_add(1, Ordering::SeqCst);
            any = true;
        }
        for words in self.control.answers.lock().unwrap().drain(..) {
            assert_eq!(self.answers.push(&words), Ok(true));
            any = true;
        }
        if !self.control.is_held.load(Ordering::SeqCst) {
            let now = tactus_client::now();
            let (mut due, later): (Vec<_>, Vec<_>) =
                self.pending.drain(..).partition(|request| request.when <= now);
            self.pending = later;
            if self.control.is_reversed.load(Ordering::SeqCst) {
                due.reverse();
            }
            for request in due {
                self.answer(&request);
                any = true;
            }
        }
        if any && self.client_mark.must_ring() {
            doorbell::ring(&self.doorbell);
            self.control.rings.fetch_add(1, Ordering::SeqCst);
        }
        any
    }

    fn answer(&mut self, request: &Request) {
        if request.operation.is_of_writer() {
            let result = self.write(request);
            let answer = Answer { token: request.token, result, at: tactus_client::now() };
            assert_eq!(self.answers.push(&answer.encode()), Ok(true));
            return;
        }
        let Request { offset, len, at, handle, .. } = *request;
        let len = u64::from(len).min(TITLE_LEN.saturating_sub(offset.0));
        self.data.fill(at, len as usize, |into| {
            for (nth, into) in into.iter_mut().enumerate() {
                *into = byte(handle, offset.0 + nth as u64);
            }
        });
        let at = tactus_client::now();
        let answer = Answer { token: request.token, result: Ok(len as u32), at };
        assert_eq!(self.answers.push(&answer.encode()), Ok(true));
    }

    fn write(&mut self, request: &Request) -> Result<u32, u32> {
        assert_eq!(request.handle, 5);
        let errno = self.control.write_error.load(Ordering::SeqCst);
        if errno > 0 {
            return Err(errno);
        }
        if request.operation == Operation::WriteBack {
            let mut written = self.control.written.lock().unwrap();
            let from = written.len() as u64;
            written.extend(self.control.built.read(from, request.offset.0));
        } else if request.operation == Operation::Grow {
            self.control.built.grow(request.offset.0)?;
        } else if request.operation == Operation::Write {
            let mut written = self.control.written.lock().unwrap();
            if request.offset.0 == 0 {
                // Another title.
                written.clear();
            }
            assert_eq!(request.offset.0, written.len() as u64, "in order");
            let mut bytes = vec![0; request.len as usize];
            self.data.copy_out(request.at, &mut bytes);
            written.extend(bytes);
        } else {
            let change = format!("{:?} {}", request.operation, request.offset.0);
            self.control.changes.lock().unwrap().push(change);
        }
        Ok(request.len)
    }
}
