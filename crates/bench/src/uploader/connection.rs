//! One upload: connect, send head and body, read the head of the answer.
//!
//! Promise: it never blocks. An answer that comes before the body is out ends the upload, as a
//! refusal does. What it sends it counts only when the socket has taken it.

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use tactus_core::units::{Bytes, MonoTime};

use crate::clock;
use crate::receiver::head::{HEAD_MAX, Head};

/// The send buffer. Bytes that it holds are not the server's yet, so it is small.
const BUFFER: usize = 256 << 10;

/// What became of one upload.
#[derive(Clone, Debug)]
pub struct Upload {
    /// When it should begin.
    pub due_at: MonoTime,
    /// When the head went out.
    pub asked_at: Option<MonoTime>,
    /// When the last byte of the body went out.
    pub sent_at: Option<MonoTime>,
    /// When the head of the answer was complete.
    pub answered_at: Option<MonoTime>,
    /// Its status.
    pub status: Option<u16>,
    /// Why there is no answer.
    pub failure: Option<String>,
}

impl Upload {
    /// Whether the server has said that it has it all.
    pub fn acked(&self) -> bool {
        self.sent_at.is_some() && matches!(self.status, Some(201 | 204))
    }

    /// How it ended, in words.
    pub(super) fn outcome(&self) -> String {
        match (self.status, &self.failure) {
            (Some(status), _) => format!("status {status}"),
            (None, Some(reason)) => reason.clone(),
            (None, None) => "open at the end".into(),
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    socket: Option<OwnedFd>,
    state: State,
    head: Vec<u8>,
    size: u64,
    answer: Vec<u8>,
    upload: Upload,
}

#[derive(Debug)]
enum State {
    Connecting,
    /// So many bytes of head and body are out.
    Sending(u64),
    Waiting,
    Over,
}

impl Connection {
    /// Begins to connect.
    pub(super) fn open(
        server: SocketAddrV4,
        head: String,
        size: Bytes,
        due_at: MonoTime,
    ) -> rustix::io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        net::sockopt::set_tcp_nodelay(&socket, true)?;
        net::sockopt::set_socket_send_buffer_size(&socket, BUFFER)?;
        match net::connect(&socket, &server) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let upload = Upload {
            due_at,
            asked_at: None,
            sent_at: None,
            answered_at: None,
            status: None,
            failure: None,
        };
        Ok(Self {
            socket: Some(socket),
            state: State::Connecting,
            head: head.into_bytes(),
            size: size.0,
            answer: Vec::new(),
            upload,
        })
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        self.socket.as_ref().expect("only `close` takes it, and nothing is asked after that")
    }

    /// Whether it still has something to send.
    pub(super) fn sends(&self) -> bool {
        matches!(self.state, State::Connecting | State::Sending(_))
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Gives the socket back; a thousand finished uploads hold none.
    pub(super) fn close(&mut self) {
        self.socket = None;
    }

    pub(super) fn upload(&self) -> &Upload {
        &self.upload
    }

    pub(super) fn into_upload(self) -> Upload {
        self.upload
    }

    /// Handles one event; answers how many bytes of the body went out. `piece` repeats the body.
    pub(super) fn advance(&mut self, piece: &[u8]) -> u32 {
        let done = self.advance_or_fail(piece);
        done.unwrap_or_else(|reason| {
            self.upload.failure = Some(reason);
            self.state = State::Over;
            0
        })
    }

    fn advance_or_fail(&mut self, piece: &[u8]) -> Result<u32, String> {
        if let State::Connecting = self.state {
            net::sockopt::socket_error(self.socket())
                .and_then(|state| state)
                .map_err(|error| format!("cannot connect: {error}"))?;
            self.upload.asked_at = Some(clock::now());
            self.state = State::Sending(0);
        }
        let sent = match self.state {
            // A server that refuses may close its side: what it says comes before what we hear of
            // it.
            State::Sending(out) => match self.send(out, piece) {
                Ok(sent) => sent,
                Err(reason) => {
                    self.receive()?;
                    return if self.is_over() { Ok(0) } else { Err(reason) };
                }
            },
            State::Connecting | State::Waiting | State::Over => 0,
        };
        self.receive()?;
        Ok(sent)
    }

    fn send(&mut self, out: u64, piece: &[u8]) -> Result<u32, String> {
        let head = self.head.len() as u64;
        let all = head + self.size;
        let bytes = match self.head.get(out as usize..) {
            Some(rest) if !rest.is_empty() => rest,
            // The body repeats a word: it goes on in step with the piece.
            _ => {
                let from = ((out - head) % 8) as usize;
                let most = (all - out).min((piece.len() - 8) as u64) as usize;
                &piece[from..from + most]
            }
        };
        let sent = match net::send(self.socket(), bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => sent as u64,
            Err(Errno::AGAIN) => return Ok(0),
            Err(error) => return Err(format!("cannot send: {error}")),
        };
        let now_out = out + sent;
        self.state = State::Sending(now_out);
        if now_out == all {
            self.upload.sent_at = Some(clock::now());
            self.state = State::Waiting;
        }
        Ok(now_out.saturating_sub(head.max(out)) as u32)
    }

    fn receive(&mut self) -> Result<(), String> {
        let mut piece = [0; HEAD_MAX];
        let received = match net::recv(self.socket(), &mut piece, RecvFlags::empty()) {
            Ok((0, _)) => return Err("closed without an answer".into()),
            Ok((received, _)) => received,
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(format!("cannot receive: {error}")),
        };
        self.answer.extend_from_slice(&piece[..received]);
        if let Some(head) = Head::parse(&self.answer)? {
            self.upload.answered_at = Some(clock::now());
            self.upload.status = Some(head.status);
            self.state = State::Over;
        }
        Ok(())
    }
}
