//! One connection to a server: requests out, answers and frames in.
//!
//! Promise: what a server sends is read by the grammar or refused with the bytes that break it;
//! nothing waits for longer than it is told to.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tactus_core::rtp::frame;

use super::address::Address;
use super::digest::{Challenge, Credentials};

pub(super) const ONE: &str = "RTSP/1.0";
pub(super) const TWO: &str = "RTSP/2.0";

/// How long an answer may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Response {
    pub(super) version: String,
    pub(super) status: u16,
    pub(super) reason: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Response {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name).next()
    }

    /// The header, which must be there.
    pub(super) fn need(&self, name: &str) -> Result<&str> {
        self.header(name).with_context(|| format!("there is no {name}"))
    }

    /// The answer, when it is one of `wanted`.
    pub(super) fn expect(self, wanted: &[u16], to: &str) -> Result<Self> {
        let Self { status, ref reason, .. } = self;
        let wanted_text: Vec<_> = wanted.iter().map(u16::to_string).collect();
        let wanted_text = wanted_text.join(" or ");
        ensure!(wanted.contains(&status), "{to} is answered {status} {reason}, not {wanted_text}");
        Ok(self)
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> impl Iterator<Item = &'a str> {
    let is_one = move |own: &str| own.eq_ignore_ascii_case(name);
    headers.iter().filter(move |(own, _)| is_one(own)).map(|(_, value)| value.as_str())
}

/// What comes out of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Item {
    Response(Response),
    Frame(Frame),
    /// What a server may ask its client.
    Request(ServerRequest),
}

/// A request of the server's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ServerRequest {
    /// Method, address and version.
    pub(super) line: String,
    headers: Vec<(String, String)>,
}

impl ServerRequest {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name).next()
    }

    pub(super) fn method(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }
}

/// A packet between messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    pub(super) at: Instant,
    pub(super) channel: u8,
    pub(super) bytes: Vec<u8>,
}

pub(super) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    pub(super) cseq: u32,
    /// The version that is spoken.
    pub(super) version: &'static str,
    pub(super) credentials: Option<Credentials>,
    /// The last that has come.
    challenge: Option<Challenge>,
    /// Those that came while an answer was waited for.
    pub(super) frames: Vec<Frame>,
    /// What the server has asked.
    pub(super) asked: Vec<ServerRequest>,
}

impl Connection {
    pub(super) fn open(address: &Address) -> Result<Self> {
        let all = (address.host.as_str(), address.port).to_socket_addrs();
        let all: Vec<SocketAddr> = all.with_context(|| address.host.clone())?.collect();
        let mut last = None;
        for one in &all {
            match TcpStream::connect_timeout(one, PATIENCE) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_write_timeout(Some(PATIENCE))?;
                    return Ok(Self {
                        stream,
                        buffer: vec![],
                        cseq: 0,
                        version: ONE,
                        credentials: address.credentials.clone(),
                        challenge: None,
                        frames: vec![],
                        asked: vec![],
                    });
                }
                Err(error) => last = Some(error),
            }
        }
        let error = last.map_or("no address".to_owned(), |error| error.to_string());
        bail!("no connection to {}:{}: {error}", address.host, address.port)
    }

    pub(super) fn peer(&self) -> Result<SocketAddr> {
        Ok(self.stream.peer_addr()?)
    }

    pub(super) fn own(&self) -> Result<SocketAddr> {
        Ok(self.stream.local_addr()?)
    }

    pub(super) fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("the connection takes no request")
    }

    /// A request as text, with the next number.
    pub(super) fn request(&mut self, method: &str, url: &str, headers: &[(&str, &str)]) -> String {
        self.cseq += 1;
        let mut text = format!("{method} {url} {}\r\nCSeq: {}\r\n", self.version, self.cseq);
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        if let (Some(who), Some(challenge)) = (&self.credentials, &mut self.challenge) {
            text += &format!("Authorization: {}\r\n", challenge.answer(who, method, url));
        }
        text + "User-Agent: rtsp-check\r\n\r\n"
    }

    /// Asks, and waits for the answer; frames that come meanwhile are kept.
    pub(super) fn ask(
        &mut self,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
    ) -> Result<Response> {
        self.ask_with(method, url, headers, "")
    }

    /// The same with a body; once more with credentials, where the server wants some and there are
    /// some.
    pub(super) fn ask_with(
        &mut self,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Response> {
        let was_signed = self.challenge.is_some();
        let response = self.ask_once(method, url, headers, body)?;
        if response.status != 401 || self.credentials.is_none() {
            return Ok(response);
        }
        let challenge = Challenge::choose(find(&response.headers, "WWW-Authenticate"))?;
        if was_signed && !challenge.is_stale {
            return Ok(response);
        }
        self.challenge = Some(challenge);
        self.ask_once(method, url, headers, body)
    }

    fn ask_once(
        &mut self,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Response> {
        let len = body.len().to_string();
        let of_body = [("Content-Length", len.as_str())];
        let more = if body.is_empty() { &[][..] } else { &of_body[..] };
        let text = self.request(method, url, &[headers, more].concat()) + body;
        self.send_raw(text.as_bytes())?;
        let response = self.response().with_context(|| format!("after {method}"))?;
        let own = self.cseq.to_string();
        let theirs = response.header("CSeq");
        ensure!(theirs == Some(&own), "the answer to {method} has CSeq {theirs:?}, not {own}");
        Ok(response)
    }

    /// The next answer.
    pub(super) fn response(&mut self) -> Result<Response> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.next(until)?.context("there is no answer")? {
                Item::Response(response) => return Ok(response),
                Item::Frame(frame) => self.frames.push(frame),
                Item::Request(asked) => self.hear(asked)?,
            }
        }
    }

    /// Answers what the server asks, and keeps it.
    pub(super) fn hear(&mut self, asked: ServerRequest) -> Result<()> {
        let status = match asked.method() {
            "PLAY_NOTIFY" | "OPTIONS" | "GET_PARAMETER" | "SET_PARAMETER" => "200 OK",
            _ => "501 Not Implemented",
        };
        let version = asked.line.rsplit(' ').next().unwrap_or(ONE);
        let cseq = asked.header("CSeq").context("the server asks without CSeq")?;
        let mut text = format!("{version} {status}\r\nCSeq: {cseq}\r\n");
        if let Some(session) = asked.header("Session") {
            text += &format!("Session: {session}\r\n");
        }
        self.send_raw((text + "\r\n").as_bytes())?;
        self.asked.push(asked);
        Ok(())
    }

    /// What comes next; none when nothing has by `until`.
    pub(super) fn next(&mut self, until: Instant) -> Result<Option<Item>> {
        loop {
            if let Some((item, len)) = read(&self.buffer)? {
                self.buffer.drain(..len);
                return Ok(Some(item));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut some = [0; 65_536];
            match self.stream.read(&mut some) {
                Ok(0) => bail!("the server has closed the connection"),
                Ok(len) => self.buffer.extend_from_slice(&some[..len]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => bail!("the connection broke: {error}"),
            }
        }
    }
}

/// The item that `bytes` begin with, and how long it is; none as long as it is not whole.
fn read(bytes: &[u8]) -> Result<Option<(Item, usize)>> {
    let Some(&first) = bytes.first() else { return Ok(None) };
    if first == frame::MARK {
        return Ok(frame::read(bytes).map(|(channel, packet)| {
            let frame = Frame { at: Instant::now(), channel, bytes: packet.to_vec() };
            (Item::Frame(frame), frame::HEAD + packet.len())
        }));
    }
    // Empty lines before a message are to be ignored (RFC 2326, section 4.1).
    if let Some(rest) = bytes.strip_prefix(b"\r\n") {
        return Ok(read(rest)?.map(|(item, len)| (item, len + 2)));
    }
    if bytes == b"\r" {
        return Ok(None);
    }
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
    ensure!(first.is_ascii_uppercase(), "neither a frame nor a message begins with {start:?}");
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let Some(end) = end else {
        ensure!(bytes.len() < 65_536, "a message has no end: {start:?}");
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..end]).with_context(|| format!("the head {start:?}"))?;
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap_or_default();
    let mut headers: Vec<(String, String)> = vec![];
    for line in lines {
        if line.starts_with([' ', '\t']) {
            let last = headers.last_mut().context("a line goes on that has not begun")?;
            last.1 += &format!(" {}", line.trim());
            continue;
        }
        let (name, value) = line.split_once(':').with_context(|| format!("no header: {line:?}"))?;
        ensure!(
            !name.is_empty() && !name.ends_with(' '),
            "no header has a name like that: {line:?}"
        );
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let len = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let len: usize = match len {
        Some((_, len)) => len.parse().with_context(|| format!("Content-Length: {len}"))?,
        None => 0,
    };
    let Some(body) = bytes.get(end + 4..end + 4 + len) else { return Ok(None) };
    let item = if line.starts_with("RTSP/") {
        let mut words = line.splitn(3, ' ');
        let version = words.next().unwrap_or_default().to_owned();
        let status = words.next().and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("no status line: {line:?}"))?;
        let reason = words.next().unwrap_or_default().to_owned();
        Item::Response(Response { version, status, reason, headers, body: body.to_vec() })
    } else {
        Item::Request(ServerRequest { line: line.to_owned(), headers })
    };
    Ok(Some((item, end + 4 + len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_frames_are_told_apart_wherever_they_are_cut() {
        let text =
            b"RTSP/1.0 200 OK\r\nCSeq: 7\r\ncontent-length: 3\r\nSession: a\r\n ;b\r\n\r\n$$$";
        let bytes =
            [&text[..], b"$\x01\x00\x02hi", b"\r\nOPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n"].concat();
        for cut in 0..bytes.len() {
            let (mut at, mut items) = (0, vec![]);
            for end in [cut, bytes.len()] {
                while let Some((item, len)) = read(&bytes[at..end]).expect("it is well formed") {
                    at += len;
                    items.push(item);
                }
            }
            let [Item::Response(response), Item::Frame(frame), Item::Request(asked)] = &items[..]
            else {
                panic!("{items:?}");
            };
            assert_eq!((response.status, &response.body[..]), (200, &b"$$$"[..]));
            assert_eq!(response.header("session"), Some("a ;b"));
            assert_eq!((frame.channel, &frame.bytes[..]), (1, &b"hi"[..]));
            assert_eq!((&asked.line[..], at), ("OPTIONS * RTSP/1.0", bytes.len()));
            assert_eq!((asked.method(), asked.header("cseq")), ("OPTIONS", Some("1")));
        }
        for wrong in [&b"\x80!"[..], b"RTSP/1.0 x\r\n\r\n", b"RTSP/1.0 200 OK\r\nno header\r\n\r\n"]
        {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
