//! Attackers: clients that send bad requests at a steady rate, whatever the answers.
//!
//! Promise: each attacker has one address and begins a request at each of its instants. A request
//! without an answer blocks one of its connections only. Answers are counted by status.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow};
use rustix::net::{AddressFamily, SocketType};
use tactus_core::units::Nanos;

use crate::netns::Side;
use crate::receiver::head::{HEAD_MAX, Head};
use crate::{clock, priority};

/// What the attackers do.
#[derive(Clone, Debug)]
pub(super) struct Attack {
    pub(super) server: SocketAddrV4,
    /// One for each attacker.
    pub(super) clients: Vec<Ipv4Addr>,
    /// The interval of each attacker's requests.
    pub(super) every: Nanos,
    /// A title that exists.
    pub(super) title: String,
    pub(super) core: usize,
}

/// Number of requests by outcome.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcomes(pub(super) BTreeMap<String, u64>);

/// Running attackers.
pub(super) struct Running {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    lanes: Vec<JoinHandle<Result<Outcomes>>>,
}

/// Connections per attacker: at 200 requests per second an answer may take 40 ms.
const LANES: u64 = 8;
/// After this time a request counts as not answered.
const PATIENCE: Duration = Duration::from_secs(5);
/// The body of uploads without the right.
const BODY: usize = 4096;

/// One bad request.
struct Request {
    bytes: Vec<u8>,
    /// The connection is closed as soon as the request is sent.
    is_dropped: bool,
}

impl Attack {
    /// Begins, from `side` of a wire.
    pub(super) fn begin(self, side: &Side) -> Result<Running> {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let requests: Arc<[Request]> = requests(&self.title).into();
        let begun = clock::now();
        let mut lanes = Vec::new();
        for (number, &client) in self.clients.iter().enumerate() {
            for lane in 0..LANES {
                let (side, stop, sent) = (side.clone(), Arc::clone(&stop), Arc::clone(&sent));
                let (server, core, every) = (self.server, self.core, self.every);
                let requests = Arc::clone(&requests);
                let thread = std::thread::Builder::new().name("attacker".into());
                lanes.push(thread.spawn(move || {
                    side.enter()?;
                    priority::pin(core)?;
                    let mut lane_of = AttackerConnection { server, client, connection: None };
                    let mut outcomes = Outcomes::default();
                    let mut due = begun + every.times(lane);
                    let mut place = number + lane as usize;
                    while !stop.load(Ordering::Relaxed) {
                        clock::sleep_until(due);
                        // Requests that were not sent in time are not made up for.
                        due = (due + every.times(LANES)).max(clock::now());
                        let ended = lane_of.send(&requests[place % requests.len()]);
                        sent.fetch_add(1, Ordering::Relaxed);
                        *outcomes.0.entry(ended).or_default() += 1;
                        place += 1;
                    }
                    Ok(outcomes)
                })?);
            }
        }
        Ok(Running { stop, sent, lanes })
    }
}

impl Running {
    /// Number of requests sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Ends the attack.
    pub(super) fn end(self) -> Result<Outcomes> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Outcomes::default();
        for lane in self.lanes {
            let one = lane.join().map_err(|_| anyhow!("an attacker panicked"))??;
            for (outcome, count) in one.0 {
                *all.0.entry(outcome).or_default() += count;
            }
        }
        Ok(all)
    }
}

/// One connection at a time of one attacker.
struct AttackerConnection {
    server: SocketAddrV4,
    client: Ipv4Addr,
    connection: Option<TcpStream>,
}

impl AttackerConnection {
    /// Sends `request`; returns the outcome in words.
    fn send(&mut self, request: &Request) -> String {
        // A kept connection may have been closed meanwhile; then a new one is used.
        let kept = self.connection.take();
        if let Some(mut kept) = kept
            && let Ok(Some(ended)) = self.exchange(&mut kept, request)
        {
            return self.keep(kept, ended);
        }
        let opened = self.open();
        let mut fresh = match opened {
            Ok(fresh) => fresh,
            Err(error) => return format!("not connected: {:?}", error.kind()),
        };
        match self.exchange(&mut fresh, request) {
            Ok(Some(ended)) => self.keep(fresh, ended),
            Ok(None) => "closed without an answer".into(),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => format!("not answered within {PATIENCE:?}"),
                kind => format!("broken: {kind:?}"),
            },
        }
    }

    fn keep(&mut self, connection: TcpStream, (ended, is_kept): (String, bool)) -> String {
        self.connection = is_kept.then_some(connection);
        ended
    }

    fn open(&self) -> std::io::Result<TcpStream> {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        rustix::net::bind(&socket, &SocketAddrV4::new(self.client, 0))?;
        rustix::net::connect(&socket, &self.server)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Returns the outcome, and whether the connection stays open; `None` when it was closed
    /// without a byte.
    fn exchange(
        &self,
        stream: &mut TcpStream,
        request: &Request,
    ) -> std::io::Result<Option<(String, bool)>> {
        let written = stream.write_all(&request.bytes);
        if request.is_dropped {
            written?;
            return Ok(Some(("dropped by the attacker".into(), false)));
        }
        // A server that closes before it has read everything may have answered.
        let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let received = stream.read(&mut piece)?;
            answer.extend_from_slice(&piece[..received]);
            if received == 0 && answer.is_empty() {
                return Ok(None);
            }
            let head = Head::parse(&answer);
            match head {
                Ok(Some(head)) => {
                    let status = head.status.to_string();
                    let whole = head.size as u64 + head.length;
                    let close = b"connection: close";
                    let fields = answer[..head.size].to_ascii_lowercase();
                    let closes = fields.windows(close.len()).any(|part| part == close);
                    let is_kept = !closes && written.is_ok() && whole <= HEAD_MAX as u64;
                    if !is_kept || answer.len() as u64 >= whole {
                        return Ok(Some((status, is_kept)));
                    }
                    if received == 0 {
                        return Ok(Some((status, false)));
                    }
                }
                Ok(None) if received > 0 => {}
                Ok(None) | Err(_) => {
                    let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
                    let status = String::from_utf8_lossy(line).chars().skip(9).take(3).collect();
                    return Ok(Some((status, false)));
                }
            }
        }
    }
}

/// All that attackers send, in turns.
fn requests(title: &str) -> Vec<Request> {
    let token = "Authorization: Bearer this-is-no-token\r\n";
    let ranges: Vec<String> = (0..200).map(|part| format!("{}-{}", part * 2, part * 2)).collect();
    let ranges = format!("Range: bytes={}\r\n", ranges.join(","));
    let body = "x".repeat(BODY);
    let xml = "<D:propfind xmlns:D=\"DAV:\"><D:prop><D:x></D:prop>";
    let length = |body: &str| format!("Content-Length: {}\r\n", body.len());
    let whole = |line: &str, fields: &str, body: &str| {
        format!("{line} HTTP/1.1\r\nHost: tv.example\r\n{fields}\r\n{body}")
    };
    let title_at = |query: &str| format!("GET {title}{query}");
    let kept = [
        whole("DELETE /x", token, ""),
        whole("PUT /x", &format!("{token}{}", length(&body)), &body),
        whole("GET /%00", "", ""),
        whole("GET /a/%2e%2e/%2e%2e/%2e%2e/etc/passwd", "", ""),
        whole("GET /a/%2", "", ""),
        whole("GET /a%2fb", "", ""),
        whole(&title_at(""), &ranges, ""),
        whole(&title_at("?rate=nonsense"), "", ""),
        whole(&title_at("?start=-1"), "", ""),
        whole("BREW /", "", ""),
        whole("PROPFIND /", &format!("Depth: 1\r\n{}", length(xml)), xml),
        whole("POST /api/v1/uploads?path=../../x", token, ""),
    ];
    let dropped = [
        "GET / HTTP/1.1\r\nHost: tv.ex".to_owned(),
        whole(&title_at("?rate=1000000"), "", ""),
        whole("PUT /y", &format!("{token}Content-Length: 1000000\r\n"), "the rest never comes"),
    ];
    let request = |is_dropped| move |text: String| Request { bytes: text.into_bytes(), is_dropped };
    kept.map(request(false)).into_iter().chain(dropped.map(request(true))).collect()
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn attackers_keep_what_is_kept_and_count_what_is_answered() -> Result<()> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let std::net::SocketAddr::V4(server) = listener.local_addr()? else {
            return Err(anyhow!("not by IPv4"));
        };
        let answers = std::thread::spawn(move || -> Result<()> {
            let (mut first, _) = listener.accept()?;
            let mut piece = [0; 4096];
            for answer in ["401 No", "400 Bad"] {
                ensure_some(first.read(&mut piece)?)?;
                write!(first, "HTTP/1.1 {answer}\r\nContent-Length: 2\r\n\r\nno")?;
            }
            // The server closes a connection that it promised to keep, then accepts a new one.
            drop(first);
            let (mut second, _) = listener.accept()?;
            ensure_some(second.read(&mut piece)?)?;
            Ok(())
        });
        let mut lane = AttackerConnection { server, client: Ipv4Addr::LOCALHOST, connection: None };
        let ask = Request { bytes: b"GET / HTTP/1.1\r\n\r\n".to_vec(), is_dropped: false };
        assert_eq!(lane.send(&ask), "401");
        assert_eq!(lane.send(&ask), "400");
        assert_eq!(lane.send(&ask), "closed without an answer");
        answers.join().expect("it does not panic")
    }

    fn ensure_some(received: usize) -> Result<()> {
        (received > 0).then_some(()).context("nothing came")
    }
}
