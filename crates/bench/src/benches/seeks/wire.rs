//! A proxy that forwards each read at once, and notes when requests and answers pass.
//!
//! Promise: when one side closes its connection, the other side sees that at once. Memory is one
//! buffer for each direction of a connection.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use anyhow::Result;
use tactus_core::units::MonoTime;

use crate::clock;

/// A request and its answer.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    number: u64,
    /// The requested range, as in the header.
    pub(super) range: String,
    /// When the request passed.
    pub(super) asked: MonoTime,
    pub(super) status: Option<u16>,
    /// When the first byte of content passed.
    pub(super) data: Option<MonoTime>,
    /// The server closed the connection, before any content and while the client waited.
    cut: bool,
}

impl Exchange {
    /// Whether the answer ended before its content began.
    pub(super) fn is_cut_by_server(&self) -> bool {
        self.cut
    }
}

/// The proxy. Its threads end with the process.
pub(super) struct Wiretap {
    address: SocketAddr,
    log: Arc<Mutex<Log>>,
}

#[derive(Default)]
struct Log {
    exchanges: Vec<Exchange>,
    requests: u64,
}

/// The running exchange of a connection.
#[derive(Default)]
struct Connection {
    number: Option<u64>,
    /// The head of the answer, as far as it has come; none behind it.
    head: Option<Vec<u8>>,
    has_data: bool,
    /// The client has closed it.
    is_left: bool,
}

/// Longer heads are not read.
const HEAD_MAX: usize = 16 * 1024;

impl Wiretap {
    pub(super) fn start(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let log = Arc::<Mutex<Log>>::default();
        let shared = Arc::clone(&log);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A client whose connection fails here sees it closed.
                forward(client, server, &shared).ok();
            }
        });
        Ok(Self { address, log })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The exchanges that have begun since the last call.
    pub(super) fn take(&self) -> Vec<Exchange> {
        std::mem::take(&mut lock(&self.log).exchanges)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics with it")
}

fn forward(client: TcpStream, server: SocketAddr, log: &Arc<Mutex<Log>>) -> Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let connection = Arc::<Mutex<Connection>>::default();
    let requests = Direction {
        from: client.try_clone()?,
        to: server.try_clone()?,
        log: Arc::clone(log),
        connection: Arc::clone(&connection),
    };
    let answers = Direction { from: server, to: client, log: Arc::clone(log), connection };
    thread::spawn(move || {
        requests.copy(Direction::note_request);
        lock(&requests.connection).is_left = true;
        requests.close();
    });
    thread::spawn(move || {
        answers.copy(Direction::note_answer);
        answers.note_end();
        answers.close();
    });
    Ok(())
}

struct Direction {
    from: TcpStream,
    to: TcpStream,
    log: Arc<Mutex<Log>>,
    connection: Arc<Mutex<Connection>>,
}

impl Direction {
    fn copy(&self, note: fn(&Self, &[u8])) {
        let mut bytes = vec![0; 256 * 1024];
        while let Ok(len @ 1..) = (&self.from).read(&mut bytes) {
            note(self, &bytes[..len]);
            if (&self.to).write_all(&bytes[..len]).is_err() {
                break;
            }
        }
    }

    fn close(&self) {
        for side in [&self.from, &self.to] {
            // It may be closed already.
            side.shutdown(Shutdown::Both).ok();
        }
    }

    fn note_request(&self, bytes: &[u8]) {
        if !(bytes.starts_with(b"GET ") || bytes.starts_with(b"HEAD ")) {
            return;
        }
        let mut log = lock(&self.log);
        log.requests += 1;
        let number = log.requests;
        let asked = clock::now();
        let range = range_of(bytes);
        log.exchanges.push(Exchange { number, range, asked, status: None, data: None, cut: false });
        *lock(&self.connection) =
            Connection { number: Some(number), head: Some(Vec::new()), ..Connection::default() };
    }

    fn note_answer(&self, bytes: &[u8]) {
        let now = clock::now();
        let mut connection = lock(&self.connection);
        let Some(number) = connection.number else { return };
        let (mut status, mut has_content) = (None, true);
        if let Some(mut head) = connection.head.take() {
            head.extend(bytes);
            match head.windows(4).position(|end| end == b"\r\n\r\n") {
                Some(end) => {
                    let line = head.split(|&byte| byte == b' ').nth(1).unwrap_or_default();
                    status = std::str::from_utf8(line).ok().and_then(|line| line.parse().ok());
                    has_content = head.len() > end + 4;
                }
                None => {
                    has_content = false;
                    connection.head = Some(head).filter(|head| head.len() < HEAD_MAX);
                }
            }
        }
        let is_first = has_content && !connection.has_data;
        connection.has_data |= has_content;
        drop(connection);
        if status.is_some() || is_first {
            self.change(number, |exchange| {
                exchange.status = status.or(exchange.status);
                exchange.data = exchange.data.or(is_first.then_some(now));
            });
        }
    }

    fn note_end(&self) {
        let connection = lock(&self.connection);
        let Connection { number, has_data, is_left, .. } = *connection;
        drop(connection);
        if let Some(number) = number.filter(|_| !has_data && !is_left) {
            self.change(number, |exchange| exchange.cut = true);
        }
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Exchange)) {
        let mut log = lock(&self.log);
        if let Some(exchange) = log.exchanges.iter_mut().find(|one| one.number == number) {
            change(exchange);
        }
    }
}

/// The value of the field `Range`; empty if there is none.
fn range_of(request: &[u8]) -> String {
    let text = String::from_utf8_lossy(request);
    let fields = text.lines().filter_map(|line| line.split_once(": "));
    let mut ranges = fields.filter(|(name, _)| name.eq_ignore_ascii_case("range"));
    ranges.next().map_or(String::new(), |(_, value)| value.to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A server of one answer, in two pieces.
    fn serve(pieces: [&'static [u8]; 2]) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            assert!(client.read(&mut [0; 1000]).unwrap() > 0);
            client.write_all(pieces[0]).unwrap();
            thread::sleep(Duration::from_millis(30));
            client.write_all(pieces[1]).unwrap();
        });
        address
    }

    fn ask(server: SocketAddr) -> (Vec<Exchange>, Vec<u8>) {
        let tap = Wiretap::start(server).unwrap();
        let mut client = TcpStream::connect(tap.address()).unwrap();
        client.write_all(b"GET /film HTTP/1.1\r\n\r\n").unwrap();
        let mut got = vec![];
        client.read_to_end(&mut got).unwrap();
        (tap.take(), got)
    }

    #[test]
    fn the_head_is_no_data() {
        let pieces: [&[u8]; 2] = [b"HTTP/1.1 206 Partial\r\nA: b\r\n", b"\r\ncontent"];
        let (seen, got) = ask(serve(pieces));
        assert_eq!(got, pieces.concat());
        let [one] = &seen[..] else { panic!("{seen:?}") };
        assert!(one.status == Some(206) && !one.is_cut_by_server());
        assert!(one.data.unwrap().since(one.asked).0 >= 30_000_000);
    }

    #[test]
    fn an_answer_without_content_is_cut() {
        let (seen, _) = ask(serve([b"HTTP/1.1 206 Partial\r\n\r\n", b""]));
        assert!(seen[0].is_cut_by_server() && seen[0].data.is_none());
    }
}
