//! A request's body on its way into the caller's memory: directly from the socket, without a buffer
//! in between.
//!
//! Promise: exactly the bytes of the body are returned, only in the memory that the caller gives.
//! Nothing is read before the caller reads, so a caller that does not read holds the client back. A
//! client that waits for `100 Continue` gets it at the first read. A body that comes too slowly
//! ends; only the time of the caller's waits counts.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::chunked::{BadChunk, Chunked};
use super::fault::Fault;
use super::framing::Body;
use super::inbox::Inbox;
use super::limits::{Limits, READ_BYTES};
use super::request::Request;
use super::transport::Transport;

/// A body that may be read, and the progress of reading it.
pub(super) struct Incoming<'a> {
    socket: &'a mut Transport,
    inbox: &'a mut Inbox,
    limits: &'a Limits,
    rest: RemainingBody,
    /// The client waits for `100 Continue` before it sends.
    waits: bool,
    /// Why nothing more can be read, once that is known.
    ended: Option<BodyEnd>,
    /// The time spent waiting for the client since the last check of its speed, and the bytes that
    /// came.
    waited: Duration,
    came: u64,
    /// Counts the received content, for the access log.
    received: Option<&'a AtomicU64>,
}

/// The rest of a body.
enum RemainingBody {
    Length(u64),
    Chunked(Chunked),
}

/// Why a body ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BodyEnd {
    /// The body breaks the rules, or is too slow.
    Fault(Fault),
    /// The client closed the connection.
    Disconnected,
}

/// Why a read returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadEnd {
    /// The memory is full, or the body is complete.
    Full,
    /// No bytes came for [`SILENCE`]; other uploads may need the memory.
    Silence,
    /// No more bytes will come.
    BodyEnd(BodyEnd),
}

/// After this time without a byte, an upload gives its memory back. It is longer than a
/// retransmission of one lost packet takes on any path.
const SILENCE: Duration = Duration::from_millis(500);

impl<'a> Incoming<'a> {
    /// The body of `request`; `inbox` may hold its beginning.
    pub(super) fn new(
        socket: &'a mut Transport,
        inbox: &'a mut Inbox,
        limits: &'a Limits,
        request: &Request,
        received: Option<&'a AtomicU64>,
    ) -> Self {
        let rest = match request.body {
            Body::None => RemainingBody::Length(0),
            Body::Length(length) => RemainingBody::Length(length),
            Body::Chunked => RemainingBody::Chunked(Chunked::new()),
        };
        let waits = request.expects_continue && request.body != Body::None;
        let (ended, waited, came) = (None, Duration::ZERO, 0);
        Self { socket, inbox, limits, rest, waits, ended, waited, came, received }
    }

    /// How many bytes are to come, if known.
    pub(super) fn announced(&self) -> Option<u64> {
        match self.rest {
            RemainingBody::Length(left) => Some(left),
            RemainingBody::Chunked(_) => None,
        }
    }

    /// Waits until content can be read, without memory for it; false if the body is complete.
    pub(super) async fn more(&mut self) -> Result<bool, BodyEnd> {
        loop {
            self.rest.words(self.inbox.bytes()).map_err(|ended| self.end(ended))?;
            if self.rest.is_over() {
                return Ok(false);
            }
            if !self.inbox.bytes().is_empty() {
                return Ok(true);
            }
            self.go_ahead().await?;
            if self.rest.content_next() > 0 {
                // Bytes are counted where they are read.
                let socket = &*self.socket;
                let ready = async { socket.readable().await.map(|()| 1) };
                let ready = Self::timed(&mut self.waited, self.limits, ready, Duration::MAX).await;
                if self.read(ready)?.is_some() {
                    self.came = self.came.saturating_sub(1);
                    return Ok(true);
                }
                continue;
            }
            let fill = self.inbox.fill(self.socket);
            let read = Self::timed(&mut self.waited, self.limits, fill, Duration::MAX).await;
            self.read(read)?;
        }
    }

    /// Reads into `space`; returns how many bytes came, and why no more came.
    pub(super) async fn fill(&mut self, space: &mut [u8]) -> (usize, ReadEnd) {
        let mut filled = 0;
        loop {
            match self.rest.take(self.inbox.bytes(), &mut space[filled..]) {
                Ok(taken) => {
                    filled += taken;
                    self.count(taken);
                }
                Err(ended) => return (filled, ReadEnd::BodyEnd(self.end(ended))),
            }
            if self.rest.is_over() || filled == space.len() {
                return (filled, ReadEnd::Full);
            }
            if let Err(ended) = self.go_ahead().await {
                return (filled, ReadEnd::BodyEnd(ended));
            }
            // The content of a chunk is read alone, without the coding around it.
            let direct = self.rest.content_next().min((space.len() - filled) as u64) as usize;
            let read = if direct > 0 {
                let read = self.socket.read(&mut space[filled..][..direct]);
                Self::timed(&mut self.waited, self.limits, read, SILENCE).await
            } else {
                let read = self.inbox.fill(self.socket);
                Self::timed(&mut self.waited, self.limits, read, SILENCE).await
            };
            match self.read(read) {
                Ok(Some(read)) if direct > 0 => {
                    self.rest.took(read);
                    filled += read;
                    self.count(read);
                }
                Ok(Some(_)) => {}
                Ok(None) => return (filled, ReadEnd::Silence),
                Err(ended) => return (filled, ReadEnd::BodyEnd(ended)),
            }
        }
    }

    fn count(&self, received: usize) {
        if let Some(all) = self.received {
            all.fetch_add(received as u64, Ordering::Relaxed);
        }
    }

    /// The whole body of at most `most` bytes; none if it is longer. Holds all of it in memory.
    pub(super) async fn whole(&mut self, most: u64) -> Result<Option<Vec<u8>>, BodyEnd> {
        if self.announced().is_some_and(|announced| announced > most) {
            return Ok(None);
        }
        let mut body = Vec::new();
        let mut space = vec![0; READ_BYTES];
        while self.more().await? {
            match self.fill(&mut space).await {
                (filled, ReadEnd::Full | ReadEnd::Silence) => {
                    body.extend_from_slice(&space[..filled])
                }
                (_, ReadEnd::BodyEnd(ended)) => return Err(ended),
            }
            if body.len() as u64 > most {
                return Ok(None);
            }
        }
        Ok(Some(body))
    }

    /// Evaluates one wait: bytes, none after a timeout, or the end.
    fn read(&mut self, read: Option<io::Result<usize>>) -> Result<Option<usize>, BodyEnd> {
        match read {
            Some(Ok(0) | Err(_)) => return Err(self.end(BodyEnd::Disconnected)),
            Some(Ok(read)) => self.came += read as u64,
            None => {}
        }
        if self.waited >= self.limits.body_time {
            if self.came < self.limits.body_bytes_min {
                return Err(self.end(BodyEnd::Fault(Fault::SlowBody)));
            }
            (self.waited, self.came) = (Duration::ZERO, 0);
        }
        Ok(read.and_then(Result::ok))
    }

    /// Waits for `something` for as long as a body may be silent, and no longer than `most`.
    async fn timed<T>(
        waited: &mut Duration,
        limits: &Limits,
        something: impl Future<Output = T>,
        most: Duration,
    ) -> Option<T> {
        let begun = Instant::now();
        let left = limits.body_time.saturating_sub(*waited);
        let done = timeout(left.min(most), something).await.ok();
        *waited += begun.elapsed();
        done
    }

    /// Sends `100 Continue`, if the client waits for it.
    async fn go_ahead(&mut self) -> Result<(), BodyEnd> {
        if !std::mem::take(&mut self.waits) {
            return Ok(());
        }
        let said = self.socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
        match timeout(self.limits.answer_time, said).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(self.end(BodyEnd::Disconnected)),
        }
    }

    fn end(&mut self, ended: BodyEnd) -> BodyEnd {
        *self.ended.insert(ended)
    }

    /// Reads over the rest of the body, up to the limit for unused bodies. Returns whether the next
    /// request can begin after it, or that the client closed the connection.
    pub(super) async fn read_over(mut self) -> Result<bool, Disconnected> {
        match self.ended {
            Some(BodyEnd::Disconnected) => return Err(Disconnected),
            Some(BodyEnd::Fault(_)) => return Ok(false),
            None => {}
        }
        if self.rest.is_over() {
            return Ok(true);
        }
        // A client that waits for `100 Continue` gets the answer instead. Its body may follow or
        // not.
        let mut left = self.limits.body_bytes_max;
        if self.waits || self.announced().is_some_and(|announced| announced > left) {
            return Ok(false);
        }
        let mut space = vec![0; READ_BYTES];
        while left > 0 && !self.rest.is_over() {
            match self.fill(&mut space).await {
                (filled, ReadEnd::Full) => left = left.saturating_sub(filled as u64),
                // A live source, such as a camera, sends for long: its answer does not wait for the
                // rest.
                (_, ReadEnd::Silence) => return Ok(false),
                (_, ReadEnd::BodyEnd(BodyEnd::Disconnected)) => return Err(Disconnected),
                (_, ReadEnd::BodyEnd(BodyEnd::Fault(_))) => return Ok(false),
            }
        }
        Ok(self.rest.is_over())
    }
}

/// The client closed the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Disconnected;

impl RemainingBody {
    /// Moves content from the front of `bytes` to `space`, as much as there is and fits.
    fn take(&mut self, bytes: &mut Vec<u8>, space: &mut [u8]) -> Result<usize, BodyEnd> {
        match self {
            Self::Length(left) => {
                let taken = (*left).min(bytes.len().min(space.len()) as u64) as usize;
                space[..taken].copy_from_slice(&bytes[..taken]);
                bytes.drain(..taken);
                *left -= taken as u64;
                Ok(taken)
            }
            Self::Chunked(chunked) => {
                let (mut at, mut filled) = (0, 0);
                loop {
                    at += chunked.words(&bytes[at..]).map_err(bad_chunk)?;
                    let room = (space.len() - filled).min(bytes.len() - at);
                    let taken = chunked.content_next().min(room as u64) as usize;
                    if taken == 0 {
                        break;
                    }
                    space[filled..][..taken].copy_from_slice(&bytes[at..][..taken]);
                    chunked.took(taken as u64);
                    (at, filled) = (at + taken, filled + taken);
                }
                bytes.drain(..at);
                Ok(filled)
            }
        }
    }

    /// Removes bytes of the chunked coding from the front of `bytes`.
    fn words(&mut self, bytes: &mut Vec<u8>) -> Result<(), BodyEnd> {
        if let Self::Chunked(chunked) = self {
            let taken = chunked.words(bytes).map_err(bad_chunk)?;
            bytes.drain(..taken);
        }
        Ok(())
    }

    /// Whether the body is complete.
    fn is_over(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunked) => chunked.is_done(),
        }
    }

    /// How many bytes of content come next.
    fn content_next(&self) -> u64 {
        match self {
            Self::Length(left) => *left,
            Self::Chunked(chunked) => chunked.content_next(),
        }
    }

    /// Records that `read` bytes of content have been read.
    fn took(&mut self, read: usize) {
        match self {
            Self::Length(left) => *left -= read as u64,
            Self::Chunked(chunked) => chunked.took(read as u64),
        }
    }
}

fn bad_chunk(_: BadChunk) -> BodyEnd {
    BodyEnd::Fault(Fault::BadChunk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_chunked_body_gives_its_content_however_it_arrives(
            chunks in
                proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6),
            cuts in proptest::collection::vec(1usize..30, 1..40),
            room in 1usize..50,
        ) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                wire.extend(format!("{:x}\r\n", chunk.len()).bytes());
                wire.extend(chunk);
                wire.extend(b"\r\n");
            }
            wire.extend(b"0\r\n\r\n");
            let mut rest = RemainingBody::Chunked(Chunked::new());
            let (mut inbox, mut content, mut at) = (Vec::new(), Vec::<u8>::new(), 0);
            for cut in cuts.iter().cycle() {
                let end = (at + cut).min(wire.len());
                inbox.extend(&wire[at..end]);
                at = end;
                loop {
                    let mut space = vec![0; room];
                    let filled = rest.take(&mut inbox, &mut space).unwrap();
                    content.extend(&space[..filled]);
                    if filled < room {
                        break;
                    }
                }
                if at == wire.len() {
                    break;
                }
            }
            prop_assert_eq!(content, chunks.concat());
            prop_assert!(matches!(&rest, RemainingBody::Chunked(chunked) if chunked.is_done()));
            prop_assert!(inbox.is_empty());
        }
    }

    #[test]
    fn what_is_behind_a_body_stays_where_it_is() {
        let mut inbox = b"abcGET /".to_vec();
        let mut space = [0; 10];
        assert_eq!(RemainingBody::Length(3).take(&mut inbox, &mut space), Ok(3));
        assert_eq!((&space[..3], &inbox[..]), (&b"abc"[..], &b"GET /"[..]));
        let mut inbox = b"3\r\nabc\r\n0\r\n\r\nGET /".to_vec();
        assert_eq!(RemainingBody::Chunked(Chunked::new()).take(&mut inbox, &mut space), Ok(3));
        assert_eq!(inbox, b"GET /");
        let broken =
            RemainingBody::Chunked(Chunked::new()).take(&mut b"3\nabc".to_vec(), &mut space);
        assert_eq!(broken, Err(BodyEnd::Fault(Fault::BadChunk)));
    }
}
