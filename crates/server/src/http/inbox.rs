//! What a client has sent and nobody has read yet: heads come out whole, bodies are thrown away.
//!
//! Promise: it holds at most one head and one read; a connection that waits holds nothing. What
//! belongs to a body never comes out as a request. Every wait has an end.

use std::io;
use std::net::SocketAddr;

use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout, timeout_at};

use super::chunked::Chunked;
use super::fault::Fault;
use super::framing::Body;
use super::limits::{Limits, READ_BYTES};
use super::proxy_protocol;
use super::request::{InvalidHead, Request};
use super::scan::HeadScan;
use super::transport::Transport;

/// What came instead of, or as, the next request.
#[derive(Debug)]
pub(super) enum NextRequest {
    Request(Request),
    /// The client sent what is no request.
    Fault(InvalidHead),
    /// The client has gone.
    Disconnected,
    /// The client said nothing for too long.
    Silent,
}

/// What a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitFor {
    /// Its first request: head's time from the start, whether the client begins to speak or not.
    First,
    /// Another request.
    Another,
}

/// How a body ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Drained {
    Whole,
    Fault(Fault),
    Disconnected,
}

#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
}

impl Inbox {
    /// Waits for the next request: first for its first byte, then for the rest of its head.
    pub(super) async fn next(
        &mut self,
        socket: &mut Transport,
        wait: WaitFor,
        limits: &Limits,
    ) -> NextRequest {
        let silence = match wait {
            WaitFor::First => limits.head_time,
            WaitFor::Another => limits.keep_alive_time,
        };
        let mut scan = HeadScan::default();
        let mut end_of_time = Instant::now() + limits.head_time;
        if self.bytes.is_empty() {
            match timeout(silence, self.first_bytes(socket)).await {
                Ok(Ok(0) | Err(_)) => return NextRequest::Disconnected,
                Ok(Ok(_)) => {}
                Err(_) => return NextRequest::Silent,
            }
            if wait == WaitFor::Another {
                end_of_time = Instant::now() + limits.head_time;
            }
        }
        let mut at_start = true;
        loop {
            // RFC 9112 section 2.2: one empty line before a request is read over.
            if at_start && self.bytes.len() >= 2 {
                at_start = false;
                if self.bytes.starts_with(b"\r\n") {
                    self.bytes.drain(..2);
                }
            }
            if !at_start {
                match scan.advance(&self.bytes, limits) {
                    Err(fault) => return NextRequest::Fault(fault.into()),
                    Ok(Some(end)) => {
                        let head = self.bytes.drain(..end.len).collect();
                        return match Request::parse(head, end, limits) {
                            Ok(request) => NextRequest::Request(request),
                            Err(rejected) => NextRequest::Fault(rejected),
                        };
                    }
                    Ok(None) => {}
                }
            }
            match timeout_at(end_of_time, self.fill(socket)).await {
                Ok(Ok(0) | Err(_)) => return NextRequest::Disconnected,
                Ok(Ok(_)) => {}
                Err(_) => return NextRequest::Fault(Fault::SlowHead.into()),
            }
        }
    }

    /// Waits for the PROXY protocol header. Returns the client's address; none when the proxy
    /// speaks for itself.
    ///
    /// # Errors
    /// When the peer sends something else, or nothing within the time for a head; none when it has
    /// closed the connection.
    pub(super) async fn proxied(
        &mut self,
        socket: &mut Transport,
        limits: &Limits,
    ) -> Result<Option<SocketAddr>, Option<Fault>> {
        let end = Instant::now() + limits.head_time;
        loop {
            if let Some(header) = proxy_protocol::header(&self.bytes)
                .map_err(|proxy_protocol::MalformedHeader| Some(Fault::NoProxyHeader))?
            {
                self.bytes.drain(..header.len);
                return Ok(header.source);
            }
            match timeout_at(end, self.fill(socket)).await {
                Ok(Ok(0) | Err(_)) => return Err(None),
                Ok(Ok(_)) => {}
                Err(_) => return Err(Some(Fault::SlowHead)),
            }
        }
    }

    /// Throws away a request's body.
    pub(super) async fn drain(
        &mut self,
        socket: &mut Transport,
        body: Body,
        limits: &Limits,
    ) -> Drained {
        let mut rest = match body {
            Body::None => return Drained::Whole,
            Body::Length(length) if length > limits.body_bytes_max => {
                return Drained::Fault(Fault::LargeBody);
            }
            Body::Length(length) => RemainingBody::Length(length),
            Body::Chunked => RemainingBody::Chunked(Chunked::new()),
        };
        let mut span_end = Instant::now() + limits.body_time;
        let mut span_bytes = 0;
        loop {
            match rest.take(&mut self.bytes, limits) {
                Err(fault) => return Drained::Fault(fault),
                Ok(true) => return Drained::Whole,
                Ok(false) => {}
            }
            match timeout_at(span_end, self.fill(socket)).await {
                Ok(Ok(0) | Err(_)) => return Drained::Disconnected,
                Ok(Ok(read)) => span_bytes += read as u64,
                Err(_) if span_bytes < limits.body_bytes_min => {
                    return Drained::Fault(Fault::SlowBody);
                }
                Err(_) => (span_end, span_bytes) = (Instant::now() + limits.body_time, 0),
            }
        }
    }

    /// Reads without holding a buffer while there is nothing to read.
    async fn first_bytes(&mut self, socket: &Transport) -> io::Result<usize> {
        loop {
            self.bytes = Vec::new();
            socket.readable().await?;
            self.bytes.reserve_exact(READ_BYTES);
            match socket.try_read_buf(&mut self.bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }

    /// What has been read and belongs to nobody yet.
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Reads once.
    pub(super) async fn fill(&mut self, socket: &mut Transport) -> io::Result<usize> {
        if self.bytes.capacity() - self.bytes.len() < READ_BYTES {
            self.bytes.reserve_exact(READ_BYTES);
        }
        socket.read_buf(&mut self.bytes).await
    }
}

/// What is missing of a body.
enum RemainingBody {
    Length(u64),
    Chunked(Chunked),
}

impl RemainingBody {
    /// Takes what belongs to the body from `bytes`, and tells whether it has ended.
    fn take(&mut self, bytes: &mut Vec<u8>, limits: &Limits) -> Result<bool, Fault> {
        match self {
            Self::Length(left) => {
                let taken = (*left).min(bytes.len() as u64);
                bytes.drain(..taken as usize);
                *left -= taken;
                Ok(*left == 0)
            }
            Self::Chunked(chunked) => {
                let taken = chunked.handle(bytes).map_err(|_| Fault::BadChunk)?;
                bytes.drain(..taken);
                if chunked.content() > limits.body_bytes_max {
                    return Err(Fault::LargeBody);
                }
                Ok(chunked.is_done())
            }
        }
    }
}
