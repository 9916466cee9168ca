//! Programs of this machine that read titles through shared memory.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use tactus_client::memory::Mapping;
use tactus_client::protocol::{Reply, Request as Message};
use tactus_client::socket;
use tactus_core::local::{
    ANSWER_WORDS, Answer, Operation, REQUEST_WORDS, RING_SLOTS, Request, VERSION, layout,
};
use tactus_core::units::{Bytes, MonoTime};
use tactus_ring::shared::{
    Receiver, RingLayout, Sender, SharedBytes, SharedMemory, SleepMark, Words,
};
use tactus_testkit::process::turn;
use tactus_testkit::{DISK_MODEL, server};

use crate::TACTUS;

const PATIENCE: Duration = Duration::from_secs(30);

struct Raw {
    connection: OwnedFd,
    bell: OwnedFd,
    requests: Sender<REQUEST_WORDS>,
    answers: Receiver<ANSWER_WORDS>,
    server: SleepMark,
    data: SharedBytes,
}

impl Raw {
    fn connect(path: &Path) -> Self {
        let kind = SocketType::SEQPACKET;
        let connection =
            rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
                .unwrap();
        rustix::net::connect(&connection, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let hello = Message::Hello { version: VERSION, data: 4 << 20 };
        socket::send(&connection, &hello, &[]).unwrap();
        let (reply, mut descriptors) = socket::receive::<Reply>(&connection).unwrap().unwrap();
        let Reply::Welcome { memory, .. } = reply else { panic!("{reply:?}") };
        let bell = descriptors.pop().unwrap();
        let file = descriptors.pop().unwrap();
        let mapping: Arc<dyn SharedMemory> =
            Arc::new(Mapping::new(file.as_fd(), memory as usize).unwrap());
        let words = Words::new(Arc::clone(&mapping));
        Self {
            connection,
            bell,
            requests: Sender::new(
                words.clone(),
                RingLayout {
                    pushed: layout::REQUESTS_PUSHED,
                    taken: layout::REQUESTS_TAKEN,
                    slots: layout::REQUESTS,
                    capacity: RING_SLOTS,
                },
            ),
            answers: Receiver::new(
                words.clone(),
                RingLayout {
                    pushed: layout::ANSWERS_PUSHED,
                    taken: layout::ANSWERS_TAKEN,
                    slots: layout::ANSWERS,
                    capacity: RING_SLOTS,
                },
            ),
            server: SleepMark::new(words, layout::SERVER_ASLEEP),
            data: SharedBytes::new(mapping, layout::DATA),
        }
    }

    fn ask(&self, message: &Message) -> Reply {
        socket::send(&self.connection, message, &[]).unwrap();
        socket::receive(&self.connection).unwrap().unwrap().0
    }

    fn open(&self, title: &str) -> u32 {
        match self.ask(&Message::Open { title: title.into() }) {
            Reply::Opened { handle, .. } => handle,
            other => panic!("{other:?}"),
        }
    }

    fn push(&mut self, words: &[u64; REQUEST_WORDS]) {
        assert!(self.requests.push(words).unwrap());
        if self.server.must_ring() {
            rustix::net::send(&self.bell, &[1], SendFlags::NOSIGNAL).unwrap();
        }
    }

    fn answer(&mut self) -> Answer {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(words) = self.answers.pop().unwrap() {
                return Answer::decode(&words);
            }
            assert!(Instant::now() < until, "no answer");
            std::hint::spin_loop();
        }
    }

    fn read(&mut self, handle: u32, offset: u64, len: u32, at: u64) -> Result<u32, u32> {
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

#[test]
fn a_program_reads_titles_through_shared_memory() {
    let _turn = turn();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let titles = dir.path().join("titles");
    fs::create_dir_all(titles.join("news")).expect("a directory");
    let bytes: Vec<u8> = (0..3_000_001_u32).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
    fs::write(titles.join("news/a b.ts"), &bytes).expect("a title");
    fs::create_dir_all(titles.join(".tactus")).expect("a directory");
    fs::write(titles.join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
    let config = dir.path().join("tactus.toml");
    fs::write(&config, "[local]\npath = \"local.sock\"\n").expect("a configuration");
    let mut command = server::serve(TACTUS, dir.path());
    command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
    command.args([config, titles.clone()]);
    let (_process, _said) = server::start(&mut command, None, server::until("Metrics"), drop);
    let mut client = Raw::connect(&dir.path().join("local.sock"));
    let handle = client.open("/news/a b.ts");
    let mut copy = vec![0; 1 << 20];
    for (offset, len) in [(0, 4096), (2_999_000, 4096), (1, 1 << 20), (262_143, 2), (0, 0)] {
        let expected = &bytes[offset..bytes.len().min(offset + len)];
        let got = client.read(handle, offset as u64, len as u32, 4096).unwrap();
        assert_eq!(got as usize, expected.len());
        client.data.copy_out(4096, &mut copy[..got as usize]);
        assert!(copy[..got as usize] == *expected, "{offset} {len}");
    }
    for _ in 0..5 {
        let mut times: Vec<_> = (0..100_000_u64)
            .map(|turn| {
                let begun = Instant::now();
                client.read(handle, turn * 4096 % 200_000, 4096, 0).unwrap();
                begun.elapsed().as_nanos() as u64
            })
            .collect();
        times.sort_unstable();
        println!("p50 {} p90 {} p99 {} p99.9 {}", times[50_000], times[90_000], times[99_000], times[99_900]);
    }
}
