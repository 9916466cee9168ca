//! Input that a client has sent and that is not used yet: heads are returned whole, bodies are
//! discarded.
//!
//! Promise: it holds at most one head and one read; a waiting connection holds no buffer. Bytes of
//! a body are never returned as a request. Every wait has a bound.

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

/// The result of waiting for a request.
#[derive(Debug)]
pub(super) enum NextRequest {
    Request(Request),
    /// The client sent an invalid request.
    Fault(InvalidHead),
    /// The client closed the connection.
    Disconnected,
    /// The client was silent for too long.
    Silent,
}

/// The position of a wait in its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitFor {
    /// The first request: the time for a head counts from the start, even if the client sends
    /// nothing.
    First,
    /// Another request.
    Another,
}

/// How a body ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DrainResult {
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
            // RFC 9112 section 2.2: one empty line before a request is ignored.
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

    /// Waits for the PROXY protocol header. Returns the client's address; none if the proxy itself
    /// is the client.
    ///
    /// # Errors
    /// When the peer sends something else, or nothing within the time for a head; none if it has
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

    /// Discards a request's body.
    pub(super) async fn drain(
        &mut self,
        socket: &mut Transport,
        body: Body,
        limits: &Limits,
    ) -> DrainResult {
        let mut rest = match body {
            Body::None => return DrainResult::Whole,
            Body::Length(length) if length > limits.body_bytes_max => {
                return DrainResult::Fault(Fault::LargeBody);
            }
            Body::Length(length) => RemainingBody::Length(length),
            Body::Chunked => RemainingBody::Chunked(Chunked::new()),
        };
        let mut span_end = Instant::now() + limits.body_time;
        let mut span_bytes = 0;
        loop {
            match rest.take(&mut self.bytes, limits) {
                Err(fault) => return DrainResult::Fault(fault),
                Ok(true) => return DrainResult::Whole,
                Ok(false) => {}
            }
            match timeout_at(span_end, self.fill(socket)).await {
                Ok(Ok(0) | Err(_)) => return DrainResult::Disconnected,
                Ok(Ok(read)) => span_bytes += read as u64,
                Err(_) if span_bytes < limits.body_bytes_min => {
                    return DrainResult::Fault(Fault::SlowBody);
                }
                Err(_) => (span_end, span_bytes) = (Instant::now() + limits.body_time, 0),
            }
        }
    }

    /// Waits for bytes without a buffer, and then reads them.
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

    /// Bytes that were read and not used yet.
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

/// The rest of a body.
enum RemainingBody {
    Length(u64),
    Chunked(Chunked),
}

impl RemainingBody {
    /// Removes the body's bytes from `bytes`, and returns whether the body has ended.
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
