//! The uploading side: clients that PUT titles of a known length and note when each was
//! acknowledged.
//!
//! Promise: one thread, one epoll, a connection for each upload; it never blocks on one of them. An
//! upload that is due begins then, however many are open (open loop), so a slow server cannot thin
//! its own load. Bodies come from one piece of memory and repeat one word, so they cost an emulated
//! disk no room. It judges nothing.

mod connection;

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::event::epoll;
use rustix::time::Timespec;
use tactus_core::units::{Bytes, MIB, MonoTime, Nanos, SECOND};

use crate::arrivals::{Arrival, Record, Trace};
use crate::netns::Side;
use crate::{clock, interrupt, priority, spread};
use connection::Connection;

pub use connection::Upload;

/// What an uploader shall do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the server takes uploads.
    pub server: SocketAddrV4,
    /// Names are this and a number.
    pub target: String,
    /// Sent as the bearer's token.
    pub token: String,
    /// How uploads follow each other.
    pub pace: Pace,
    /// The length of each.
    pub size: Bytes,
    /// When the first begins.
    pub from: MonoTime,
    /// After it none begins.
    pub to: MonoTime,
    /// How long open ones are waited for after that.
    pub patience: Nanos,
    /// The uploader's core.
    pub core: usize,
}

/// How uploads follow each other.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// So many clients, each of which begins the next as soon as the last is answered.
    Greedy(usize),
    /// One in every such span, whatever became of the others.
    Every(Nanos),
}

/// Everything that an uploader did.
#[derive(Debug)]
pub struct Harvest {
    /// In the order in which they began.
    pub uploads: Vec<Upload>,
    /// The bytes of bodies that the socket took, one trace for each upload.
    pub traces: Vec<Trace>,
}

impl Harvest {
    /// Body bytes that went out in `from..to`.
    pub fn bytes_between(&self, from: MonoTime, to: MonoTime) -> u64 {
        self.traces.iter().map(|trace| trace.bytes_between(from, to)).sum()
    }

    /// Milliseconds from the instant when an upload was due until its acknowledgement was there,
    /// for those that got one.
    pub fn acks(&self) -> Vec<f64> {
        let acked = self.uploads.iter().filter(|upload| upload.acked());
        acked
            .filter_map(|upload| Some(upload.answered_at?.since(upload.due_at).0 as f64 / 1e6))
            .collect()
    }

    /// Quantile `q` of the acknowledgements, milliseconds.
    pub fn ack(&self, q: f64) -> f64 {
        spread::quantile(&mut self.acks(), q).unwrap_or(f64::NAN)
    }

    /// Uploads without an acknowledgement: refused, broken, or open at the end.
    pub fn unacked(&self) -> usize {
        self.uploads.iter().filter(|upload| !upload.acked()).count()
    }

    /// How those ended, each way once, with its count; open ones apart.
    pub fn reasons(&self) -> Vec<String> {
        let mut counts = std::collections::BTreeMap::<String, usize>::new();
        for upload in self.uploads.iter().filter(|upload| !upload.acked()) {
            *counts.entry(upload.outcome()).or_default() += 1;
        }
        counts.into_iter().map(|(reason, count)| format!("{count} x {reason}")).collect()
    }
}

/// How many of the acknowledged uploads lie in `place` as they were sent: their names there begin
/// with `prefix`.
pub fn check(place: &Path, prefix: &str, harvest: &Harvest, size: Bytes) -> Result<usize> {
    let mut stored = 0;
    for (number, _) in harvest.uploads.iter().enumerate().filter(|(_, upload)| upload.acked()) {
        let path = place.join(format!("{prefix}{number}"));
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            bytes => bytes.with_context(|| path.display().to_string())?,
        };
        let is_whole = bytes.len() as u64 == size.0;
        let is_same = bytes.chunks(WORD.len()).all(|chunk| *chunk == WORD[..chunk.len()]);
        stored += usize::from(is_whole && is_same);
    }
    Ok(stored)
}

/// Events per call.
const EVENTS: usize = 64;
/// The piece of memory that bodies come from.
const PIECE: usize = MIB as usize;
/// The word that all bodies repeat: none that titles hold.
const WORD: [u8; 8] = *b"uploaded";
/// So many refusals in turn end a greedy uploader.
const REFUSED_MAX: usize = 100;
/// How long a turn may wait for events, so that an interrupt is seen.
const TURN: Nanos = Nanos::from_millis(20);
/// The socket takes about as much in one event.
const ARRIVAL: u64 = 64 << 10;

/// Uploads from `side` until the plan is done; the calling thread stays there.
pub fn upload(side: &Side, plan: &Plan) -> Result<Harvest> {
    side.enter()?;
    priority::pin(plan.core)?;
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    interrupt::sleep_until(plan.from)?;
    Uploader::new(plan)?.run()
}

struct Uploader<'a> {
    plan: &'a Plan,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    /// How many of them have no end yet.
    open: usize,
    /// How many have ended since the last acknowledgement.
    refused_in_turn: usize,
    record: Record,
    piece: Vec<u8>,
}

impl<'a> Uploader<'a> {
    fn new(plan: &'a Plan) -> Result<Self> {
        let seconds = plan.to.since(plan.from).0 / SECOND.0 + 1;
        // A gigabyte a second is more than any disk here takes.
        let room = match plan.pace {
            Pace::Greedy(_) => seconds * 1_000_000_000 / ARRIVAL,
            Pace::Every(step) => (plan.size.0 / ARRIVAL + 2) * (seconds * SECOND.0 / step.0.max(1)),
        };
        Ok(Self {
            plan,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: Vec::new(),
            open: 0,
            refused_in_turn: 0,
            record: Record::with_room(room as usize),
            piece: WORD.repeat(PIECE / WORD.len()),
        })
    }

    fn run(mut self) -> Result<Harvest> {
        let end = self.plan.to + self.plan.patience;
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            interrupt::check()?;
            let now = clock::now();
            let wait = self.begin_what_is_due(now)?;
            if now >= end || (now >= self.plan.to && self.open == 0) {
                break;
            }
            let wait = Timespec { tv_sec: 0, tv_nsec: wait.min(TURN).0 as i64 };
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
        let traces = self.record.traces(self.connections.len());
        let uploads = self.connections.into_iter().map(Connection::into_upload).collect();
        Ok(Harvest { uploads, traces })
    }

    /// Begins the uploads that are due; answers how long nothing more is.
    fn begin_what_is_due(&mut self, now: MonoTime) -> Result<Nanos> {
        loop {
            let due_at = match self.plan.pace {
                Pace::Greedy(clients) if self.open < clients => now,
                Pace::Greedy(_) => return Ok(TURN),
                Pace::Every(step) => self.plan.from + step.times(self.connections.len() as u64),
            };
            if due_at >= self.plan.to {
                return Ok(TURN);
            }
            if due_at > now {
                return Ok(due_at.since(now));
            }
            self.begin(due_at)?;
        }
    }

    fn begin(&mut self, due_at: MonoTime) -> Result<()> {
        let number = self.connections.len();
        let Plan { target, token, size, .. } = self.plan;
        let head = format!(
            "PUT {target}{number} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/octet-stream\r\nContent-Length: {}\r\n\r\n",
            size.0
        );
        let connection = Connection::open(self.plan.server, head, *size, due_at)
            .with_context(|| format!("cannot begin upload {number}"))?;
        let data = epoll::EventData::new_u64(number as u64);
        let both = epoll::EventFlags::IN | epoll::EventFlags::OUT;
        epoll::add(&self.epoll, connection.socket(), data, both)?;
        self.connections.push(connection);
        self.open += 1;
        Ok(())
    }

    fn handle(&mut self, number: usize) -> Result<()> {
        let connection = &mut self.connections[number];
        let was_sending = connection.sends();
        let sent = connection.advance(&self.piece);
        if sent > 0 {
            let at = clock::now();
            self.record.push(Arrival { at, stream: number as u32, bytes: sent });
        }
        if connection.is_over() {
            epoll::delete(&self.epoll, connection.socket())?;
            connection.close();
            self.open -= 1;
            self.refused_in_turn = match connection.upload().acked() {
                true => 0,
                false => self.refused_in_turn + 1,
            };
            // Greed without hope would be an endless loop.
            ensure!(
                self.refused_in_turn < REFUSED_MAX || !matches!(self.plan.pace, Pace::Greedy(_)),
                "the server takes no uploads: {}",
                connection.upload().outcome()
            );
        } else if was_sending && !connection.sends() {
            let data = epoll::EventData::new_u64(number as u64);
            epoll::modify(&self.epoll, connection.socket(), data, epoll::EventFlags::IN)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::thread;

    use super::*;

    /// Takes a whole request and answers with `answer`; returns the body's length.
    fn serve(mut stream: TcpStream, answer: &str) -> usize {
        let mut text = Vec::new();
        let mut piece = [0; 65_536];
        let body_from = loop {
            let count = stream.read(&mut piece).unwrap();
            text.extend_from_slice(&piece[..count]);
            if let Some(at) = text.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let head = String::from_utf8_lossy(&text[..body_from]).into_owned();
        assert!(head.contains("Authorization: Bearer secret\r\n"), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        let length: usize = length.parse().unwrap();
        let mut got = text.len() - body_from;
        while got < length {
            got += stream.read(&mut piece).unwrap();
        }
        stream.write_all(answer.as_bytes()).unwrap();
        got
    }

    fn plan(server: SocketAddrV4, pace: Pace, length: Nanos) -> Plan {
        let from = clock::now();
        Plan {
            server,
            target: "/uploads/test-".into(),
            token: "secret".into(),
            pace,
            size: Bytes(300_000),
            from,
            to: from + length,
            patience: SECOND.times(5),
            core: 0,
        }
    }

    /// Without the namespaces of a bench: the loopback will do.
    fn run(plan: &Plan) -> Harvest {
        Uploader::new(plan).unwrap().run().unwrap()
    }

    fn listener() -> (TcpListener, SocketAddrV4) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
    }

    #[test]
    fn uploads_due_at_instants_begin_then_and_are_acknowledged_or_not() {
        let (listener, server) = listener();
        let step = Nanos::from_millis(20);
        let plan = plan(server, Pace::Every(step), step.times(4));
        let answers = ["201 Created", "201 Created", "507 Insufficient Storage", "204 No Content"];
        let serving = thread::spawn(move || {
            answers.map(|status| {
                let (stream, _) = listener.accept().unwrap();
                let length = if status.starts_with("204") { "" } else { "Content-Length: 0\r\n" };
                serve(stream, &format!("HTTP/1.1 {status}\r\n{length}\r\n"))
            })
        });
        let found = run(&plan);
        assert_eq!(serving.join().unwrap(), [300_000; 4]);
        assert_eq!(found.uploads.len(), 4);
        let dues: Vec<_> = found.uploads.iter().map(|one| one.due_at.since(plan.from)).collect();
        assert_eq!(dues, [0, 1, 2, 3].map(|place| step.times(place)));
        assert_eq!((found.acks().len(), found.unacked()), (3, 1));
        assert!(found.acks().iter().all(|ms| *ms > 0.0 && *ms < 5_000.0));
        assert_eq!(found.reasons(), ["1 x status 507"]);
        let forever = plan.to + SECOND.times(60);
        assert_eq!(found.bytes_between(plan.from, forever), 4 * 300_000);
    }

    #[test]
    fn only_what_is_stored_as_it_was_sent_counts() {
        let place = tempfile::tempdir().unwrap();
        let upload = |status| Upload {
            due_at: MonoTime(0),
            asked_at: Some(MonoTime(0)),
            sent_at: Some(MonoTime(1)),
            answered_at: Some(MonoTime(2)),
            status: Some(status),
            failure: None,
        };
        let uploads = vec![upload(201), upload(201), upload(201), upload(201), upload(507)];
        let harvest = Harvest { uploads, traces: vec![] };
        let good = WORD.repeat(4)[..30].to_vec();
        let mut bad = good.clone();
        bad[17] ^= 1;
        for (number, bytes) in [(0, &good[..]), (1, &bad), (2, &good[..29]), (4, &good)] {
            std::fs::write(place.path().join(format!("a-{number}")), bytes).unwrap();
        }
        assert_eq!(check(place.path(), "a-", &harvest, Bytes(30)).unwrap(), 1);
    }

    #[test]
    fn a_greedy_client_begins_the_next_when_the_last_is_answered() {
        let (listener, server) = listener();
        let mut plan = plan(server, Pace::Greedy(1), Nanos::from_millis(200));
        plan.patience = Nanos::ZERO;
        // The second is never answered: the only client waits for it until the end.
        let serving = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            serve(stream, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
            let (stream, _) = listener.accept().unwrap();
            thread::sleep(std::time::Duration::from_millis(400));
            drop(stream);
            listener.set_nonblocking(true).unwrap();
            listener.accept().is_err()
        });
        let found = run(&plan);
        assert!(serving.join().unwrap(), "no third upload began");
        assert_eq!((found.uploads.len(), found.acks().len()), (2, 1));
        assert_eq!(found.reasons(), ["1 x open at the end"]);
    }

    #[test]
    fn a_refusal_in_the_middle_of_the_body_is_seen() {
        let (listener, server) = listener();
        let step = Nanos::from_millis(1);
        let mut plan = plan(server, Pace::Every(step), step);
        plan.size = Bytes(64 << 20); // more than all buffers between
        let serving = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n").unwrap();
            thread::sleep(std::time::Duration::from_millis(200));
        });
        let found = run(&plan);
        serving.join().unwrap();
        assert_eq!(found.reasons(), ["1 x status 413"]);
    }
}
