//! One connection of the receiver: connect, ask, read the head, then count the body away.
//!
//! Promise: it never blocks, and reads body bytes without copying them. A server that answers
//! wrongly ends its own connection, with the reason, and no other.

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::Serialize;
use tactus_core::units::{BitRate, MonoTime};

use crate::arrivals::Arrival;
use crate::clock;
use crate::receiver::PlannedRequest;
use crate::receiver::head::{HEAD_MAX, Head};

/// What became of one request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// When the receiver began to connect.
    pub opened_at: MonoTime,
    /// When the request went out.
    pub asked_at: Option<MonoTime>,
    /// When the head was complete.
    pub head_at: Option<MonoTime>,
    /// The status, once there was one.
    pub status: Option<u16>,
    /// The body's length as the head gave it.
    pub length: Option<u64>,
    /// The peak of a variable rate, if the head gave one.
    pub peak: Option<BitRate>,
    /// How it ended.
    pub end: End,
}

impl Answer {
    /// Whether the server has accepted it.
    pub fn accepted(&self) -> bool {
        matches!(self.status, Some(200 | 206))
    }

    /// Whether it was accepted, and runs or has come to its end.
    pub fn went_well(&self) -> bool {
        self.accepted() && matches!(self.end, End::Open | End::Complete)
    }

    /// Whether it was accepted, and broke.
    pub fn broke(&self) -> bool {
        self.accepted() && !self.went_well()
    }
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum End {
    /// It had not, when the run did.
    Open,
    /// The whole body had come.
    Complete,
    /// The server closed it before.
    ClosedEarly,
    /// The reason.
    Failed(String),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    state: State,
    request: Vec<u8>,
    answer: Answer,
    has_payload: bool,
}

#[derive(Debug)]
enum State {
    Connecting,
    Head(Vec<u8>),
    Body { remaining: u64 },
    Over,
}

/// What one event brought.
#[derive(Debug)]
pub(super) enum Progress {
    /// The connection stands and the request is out: from now on it only receives.
    Connected,
    /// Something was received, or the connection ended.
    Received(Payload),
}

/// What one `recv` brought.
#[derive(Debug)]
pub(super) struct Payload {
    at: MonoTime,
    bytes: u32,
    /// These are the first bytes of payload.
    pub(super) first: bool,
    /// Nothing more will come.
    pub(super) ended: bool,
}

impl Payload {
    /// The arrival of stream `stream` that it makes, if payload came.
    pub(super) fn arrival(&self, stream: u32) -> Option<Arrival> {
        (self.bytes > 0).then_some(Arrival { at: self.at, stream, bytes: self.bytes })
    }
}

impl Connection {
    /// Begins to connect.
    pub(super) fn open(
        server: SocketAddrV4,
        ask: &PlannedRequest,
        now: MonoTime,
    ) -> rustix::io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        net::sockopt::set_tcp_nodelay(&socket, true)?;
        if let Some(from) = ask.from {
            net::bind(&socket, &SocketAddrV4::new(from, 0))?;
        }
        match net::connect(&socket, &server) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let answer = Answer {
            opened_at: now,
            asked_at: None,
            head_at: None,
            status: None,
            length: None,
            peak: None,
            end: End::Open,
        };
        let request = ask.request.clone();
        Ok(Self { socket, state: State::Connecting, request, answer, has_payload: false })
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(super) fn has_payload(&self) -> bool {
        self.has_payload
    }

    pub(super) fn into_answer(self) -> Answer {
        self.answer
    }

    /// Handles one event. `void` is where body bytes are not written to.
    pub(super) fn advance(&mut self, void: &mut [u8]) -> Progress {
        let result = match &mut self.state {
            State::Connecting => match self.ask() {
                Ok(()) => return Progress::Connected,
                Err(reason) => Err(reason),
            },
            State::Head(_) => self.read_head(),
            State::Body { .. } => self.count_body(void),
            State::Over => Ok(Payload::nothing()),
        };
        Progress::Received(result.unwrap_or_else(|reason| self.end(End::Failed(reason))))
    }

    fn ask(&mut self) -> Result<(), String> {
        net::sockopt::socket_error(&self.socket)
            .and_then(|state| state)
            .map_err(|error| format!("cannot connect: {error}"))?;
        let sent = net::send(&self.socket, &self.request, SendFlags::NOSIGNAL)
            .map_err(|error| format!("cannot ask: {error}"))?;
        // A request is far smaller than an empty socket buffer.
        if sent != self.request.len() {
            return Err(format!("only {sent} bytes of the request went out"));
        }
        self.answer.asked_at = Some(clock::now());
        self.state = State::Head(Vec::new());
        Ok(())
    }

    fn read_head(&mut self) -> Result<Payload, String> {
        let State::Head(text) = &mut self.state else { return Ok(Payload::nothing()) };
        let mut piece = [0; HEAD_MAX];
        let received = match net::recv(&self.socket, &mut piece, RecvFlags::empty()) {
            Ok((0, _)) => return Ok(self.end(End::ClosedEarly)),
            Ok((received, _)) => received,
            Err(Errno::AGAIN) => return Ok(Payload::nothing()),
            Err(error) => return Err(format!("cannot receive: {error}")),
        };
        let at = clock::now();
        text.extend_from_slice(&piece[..received]);
        let Some(head) = Head::parse(text)? else {
            return Ok(Payload::nothing());
        };
        let body = (text.len() - head.size) as u64;
        let remaining = head.length.checked_sub(body);
        let remaining = remaining.ok_or("the body is longer than its Content-Length")?;
        self.answer.head_at = Some(at);
        self.answer.status = Some(head.status);
        self.answer.length = Some(head.length);
        self.answer.peak = head.peak.map(BitRate);
        self.state = State::Body { remaining };
        let ended = remaining == 0;
        if ended {
            self.end(End::Complete);
        }
        Ok(self.payload(at, body as u32, ended))
    }

    fn count_body(&mut self, void: &mut [u8]) -> Result<Payload, String> {
        let received = match net::recv(&self.socket, void, RecvFlags::TRUNC) {
            Ok((_, 0)) => return Ok(self.end(End::ClosedEarly)),
            Ok((_, received)) => received,
            Err(Errno::AGAIN) => return Ok(Payload::nothing()),
            Err(error) => return Err(format!("cannot receive: {error}")),
        };
        let at = clock::now();
        let State::Body { remaining } = &mut self.state else { return Ok(Payload::nothing()) };
        let left = remaining.checked_sub(received as u64);
        *remaining = left.ok_or("the body is longer than its Content-Length")?;
        let ended = *remaining == 0;
        if ended {
            self.end(End::Complete);
        }
        Ok(self.payload(at, received as u32, ended))
    }

    /// The body of a refusal is no payload.
    fn payload(&mut self, at: MonoTime, bytes: u32, ended: bool) -> Payload {
        let bytes = if self.answer.accepted() { bytes } else { 0 };
        let first = bytes > 0 && !self.has_payload;
        self.has_payload |= first;
        Payload { at, bytes, first, ended }
    }

    fn end(&mut self, end: End) -> Payload {
        self.state = State::Over;
        self.answer.end = end;
        Payload { ended: true, ..Payload::nothing() }
    }
}

impl Payload {
    fn nothing() -> Self {
        Self { at: MonoTime(0), bytes: 0, first: false, ended: false }
    }
}
