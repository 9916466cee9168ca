//! The little of HTTP that uploads need.
//!
//! Promise: an answer is whole or an error; after an error or a close the next request has a new
//! connection. What was in flight then is neither acknowledged nor refused.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tactus_core::units::Nanos;

use crate::clock;

/// Longer than any answer takes, P3's second included.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries.
const AGAIN: Nanos = Nanos::from_millis(100);

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    address: SocketAddr,
    /// Sent with every request.
    fields: String,
    connection: Option<BufReader<TcpStream>>,
    /// Asks again when it is told to come back later.
    patient: bool,
}

/// A request whose body is sent piece by piece.
#[derive(Debug)]
pub(super) struct Pieces(BufReader<TcpStream>);

impl Pieces {
    /// Sends one, which is not empty.
    pub(super) fn send(&mut self, piece: &[u8]) -> Result<()> {
        let mut stream = self.0.get_ref();
        let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        Ok(stream.write_all(&chunk)?)
    }

    /// There are no more.
    pub(super) fn end(mut self) -> Result<Answer> {
        // A refusal may have come before: then the answer counts and not the error.
        let sent = self.0.get_ref().write_all(b"0\r\n\r\n");
        let answer = Answer::read(&mut self.0, false);
        answer.or_else(|error| sent.map_err(Into::into).and(Err(error)))
    }
}

/// One answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    fields: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Client {
    pub(super) fn new(address: SocketAddr, fields: String) -> Self {
        Self { address, fields, connection: None, patient: false }
    }

    /// The same with retries after 503: on a busy machine a disk may answer later than the server
    /// waits.
    pub(super) fn patient(self) -> Self {
        Self { patient: true, ..self }
    }

    /// One request with one answer.
    pub(super) fn ask(
        &mut self,
        method: &str,
        target: &str,
        fields: &str,
        body: &[u8],
    ) -> Result<Answer> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask_once(method, target, fields, body)?;
            if answer.status != 503 || !self.patient || Instant::now() > deadline {
                return Ok(answer);
            }
            clock::sleep(AGAIN);
        }
    }

    fn ask_once(
        &mut self,
        method: &str,
        target: &str,
        fields: &str,
        body: &[u8],
    ) -> Result<Answer> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let (own, length) = (&self.fields, body.len());
        let bodiless = body.is_empty() && matches!(method, "GET" | "HEAD" | "DELETE");
        let length = if bodiless { String::new() } else { format!("Content-Length: {length}\r\n") };
        let head =
            format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{own}{fields}{length}\r\n");
        let mut stream = connection.get_ref();
        stream.write_all(head.as_bytes())?;
        // A refusal may come before the body is sent; then the answer counts and not the error.
        let sent = stream.write_all(body);
        let answer = Answer::read(&mut connection, method == "HEAD");
        let answer = answer.or_else(|error| sent.map_err(Into::into).and(Err(error)))?;
        if answer.field("connection").is_none_or(|value| !value.eq_ignore_ascii_case("close")) {
            self.connection = Some(connection);
        }
        Ok(answer)
    }
}

impl Client {
    /// Whether `length` bytes would be taken for `target`; then they are not sent.
    pub(super) fn would_be_taken(&self, target: &str, length: u64) -> Result<bool> {
        let mut connection = self.connect()?;
        let own = &self.fields;
        let head = format!(
            "PUT {target} HTTP/1.1\r\nHost: localhost\r\n{own}Content-Length: {length}\r\n\
             Expect: 100-continue\r\n\r\n"
        );
        connection.get_ref().write_all(head.as_bytes())?;
        let mut line = String::new();
        connection.read_line(&mut line)?;
        match line.split(' ').nth(1) {
            Some("100") => Ok(true),
            Some("413") => Ok(false),
            Some("507") => bail!("the disk beneath the volume is too full to tell"),
            _ => bail!("{line:?} for {length} bytes"),
        }
    }

    /// Begins a PUT in pieces, on a connection of its own.
    pub(super) fn put_pieces(&self, target: &str) -> Result<Pieces> {
        let connection = self.connect()?;
        let own = &self.fields;
        let head = format!(
            "PUT {target} HTTP/1.1\r\nHost: localhost\r\n{own}Connection: close\r\n\
             Transfer-Encoding: chunked\r\n\r\n"
        );
        connection.get_ref().write_all(head.as_bytes())?;
        Ok(Pieces(connection))
    }

    fn connect(&self) -> Result<BufReader<TcpStream>> {
        let stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(BufReader::new(stream))
    }
}

impl Answer {
    fn read(from: &mut BufReader<TcpStream>, bodiless: bool) -> Result<Self> {
        let status = next_line(from)?;
        let status = status.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.context("not a status line")?;
        let mut fields = Vec::new();
        loop {
            let line = next_line(from)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').context("not a field")?;
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut answer = Self { status, fields, body: Vec::new() };
        if bodiless || status == 204 {
            return Ok(answer);
        }
        if answer.field("transfer-encoding").is_some() {
            answer.body = read_chunks(from)?;
        } else {
            let length = answer.field("content-length").context("an answer without a length")?;
            answer.body = vec![0; length.parse()?];
            from.read_exact(&mut answer.body)?;
        }
        Ok(answer)
    }

    /// The value of a field, by its name in lower case.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

fn next_line(from: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    ensure!(from.read_line(&mut line)? > 0, "the connection was closed");
    Ok(line.trim_end().to_owned())
}

/// Without extensions and trailers, which none of the servers sends.
fn read_chunks(from: &mut BufReader<TcpStream>) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let length = usize::from_str_radix(&next_line(from)?, 16).context("not a chunk")?;
        let begin = body.len();
        body.resize(begin + length, 0);
        from.read_exact(&mut body[begin..])?;
        ensure!(next_line(from)?.is_empty(), "a chunk is longer than it says");
        if length == 0 {
            return Ok(body);
        }
    }
}
