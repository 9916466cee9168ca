//! A local client that writes the words itself, so that it can write wrong ones, too.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use tactus_client::memory::Mapping;
use tactus_client::protocol::{Replace, Reply, Request as Message};
use tactus_client::socket;
use tactus_core::local::{
    ANSWER_WORDS, Answer, Operation, REQUEST_WORDS, RING_SLOTS, Request, VERSION, layout,
};
use tactus_core::units::{Bytes, MonoTime};
use tactus_ring::shared::{
    Receiver, RingLayout, Sender, SharedBytes, SharedMemory, SleepMark, Words,
};

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Data that it shares.
pub(super) const DATA: u64 = 4 << 20;

/// A connected client.
pub(super) struct Raw {
    connection: OwnedFd,
    bell: OwnedFd,
    requests: Sender<REQUEST_WORDS>,
    answers: Receiver<ANSWER_WORDS>,
    server: SleepMark,
    pub(super) data: SharedBytes,
    /// All of the memory, to write rubbish into.
    pub(super) memory: SharedBytes,
}

impl Raw {
    pub(super) fn connect(path: &Path) -> Self {
        let kind = SocketType::SEQPACKET;
        let connection =
            rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
                .expect("a server that answers");
        rustix::net::connect(
            &connection,
            &SocketAddrUnix::new(path).expect("a server that answers"),
        )
        .expect("a server that answers");
        let hello = Message::Hello { version: VERSION, data: DATA };
        socket::send(&connection, &hello, &[]).expect("a server that answers");
        let (reply, mut descriptors) = socket::receive::<Reply>(&connection)
            .expect("a server that answers")
            .expect("a server that answers");
        let Reply::Welcome { memory, .. } = reply else { panic!("{reply:?}") };
        let bell = descriptors.pop().expect("a server that answers");
        let file = descriptors.pop().expect("a server that answers");
        let mapping: Arc<dyn SharedMemory> =
            Arc::new(Mapping::new(file.as_fd(), memory as usize).expect("a server that answers"));
        let words = Words::new(Arc::clone(&mapping));
        Self {
            connection,
            bell,
            requests: Sender::new(words.clone(), RingLayout::new(layout::REQUESTS, RING_SLOTS)),
            answers: Receiver::new(words.clone(), RingLayout::new(layout::ANSWERS, RING_SLOTS)),
            server: SleepMark::new(words, layout::SERVER_ASLEEP),
            data: SharedBytes::new(Arc::clone(&mapping), layout::DATA),
            memory: SharedBytes::new(mapping, 0),
        }
    }

    pub(super) fn ask(&self, message: &Message) -> Reply {
        self.ask_for_files(message).0
    }

    pub(super) fn ask_for_files(&self, message: &Message) -> (Reply, Vec<OwnedFd>) {
        socket::send(&self.connection, message, &[]).expect("a server that answers");
        socket::receive(&self.connection)
            .expect("a server that answers")
            .expect("a server that answers")
    }

    /// Begins a stream. Returns the number, and all of the memory of its ring.
    pub(super) fn stream(&self, handle: u32, first: u64, rate: u64) -> (u32, SharedBytes) {
        let rate = Some(rate);
        let message = Message::Stream { handle, first, rate, burst: 0, room: 0 };
        let (reply, mut files) = self.ask_for_files(&message);
        let Reply::Stream { stream, memory, .. } = reply else { panic!("{reply:?}") };
        let file = files.pop().expect("a ring");
        let mapping = Mapping::new(file.as_fd(), memory as usize).expect("a ring");
        (stream, SharedBytes::new(Arc::new(mapping), 0))
    }

    /// Begins a recording. Returns the number, and all of the memory of its ring.
    pub(super) fn record(&self, title: &str, rate: u64) -> (u32, SharedBytes) {
        let (title, replace) = (title.to_owned(), Replace::Titles);
        let (reply, mut files) =
            self.ask_for_files(&Message::Record { title, rate, replace, room: 0 });
        let Reply::Recording { recording, memory } = reply else { panic!("{reply:?}") };
        let file = files.pop().expect("a ring");
        let mapping = Mapping::new(file.as_fd(), memory as usize).expect("a ring");
        (recording, SharedBytes::new(Arc::new(mapping), 0))
    }

    /// Waits until the server has ended the connection.
    pub(super) fn is_cut(&self) -> bool {
        socket::receive::<Reply>(&self.connection).is_ok_and(|reply| reply.is_none())
    }

    /// The error number of a refused message.
    pub(super) fn refusal(&self, message: &Message) -> u32 {
        match self.ask(message) {
            Reply::Error { errno, .. } => errno,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn open(&self, title: &str) -> u32 {
        match self.ask(&Message::Open { title: title.into() }) {
            Reply::Opened { handle, .. } => handle,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn push(&mut self, words: &[u64; REQUEST_WORDS]) {
        assert!(self.requests.push(words).expect("a server that answers"));
        self.ring_if_asleep();
    }

    fn ring_if_asleep(&self) {
        if self.server.must_ring() {
            self.ring();
        }
    }

    /// Rings, asleep or not. The server may have gone.
    pub(super) fn ring(&self) {
        rustix::net::send(&self.bell, &[1], SendFlags::NOSIGNAL).ok();
    }

    pub(super) fn answer(&mut self) -> Answer {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(words) = self.answers.pop().expect("a server that answers") {
                return Answer::decode(&words);
            }
            assert!(Instant::now() < until, "no answer");
            std::hint::spin_loop();
        }
    }

    pub(super) fn read(&mut self, handle: u32, offset: u64, len: u32, at: u64) -> Result<u32, u32> {
        let request = Request {
            token: offset,
            operation: Operation::Read,
            handle,
            offset: Bytes(offset),
            len,
            at,
            when: MonoTime(0),
        };
        self.push(&request.encode());
        let answer = self.answer();
        assert_eq!(answer.token, offset);
        answer.result
    }
}
