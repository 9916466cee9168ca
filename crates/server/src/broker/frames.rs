//! Deliveries as packets of RTP in frames of a connection, and what is said between them.
//!
//! Promise: they are admitted like datagrams; every text is either sent whole, in the order in which texts
//! were given, or comes back; a connection that comes back stands behind a whole frame and behind every text
//! that was sent.

use std::collections::VecDeque;
use std::future::Future;
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;

use tactus_core::datagrams::{Form, Ip, Plan, Session};
use tactus_core::rtp::frame;
use tactus_core::units::{BitRate, Nanos};
use tactus_engine::message::{Command, INTERLEAVED_MAX, Outcome, StreamId};
use tokio::sync::oneshot;

use super::{Book, Broker, Delivered, Grant, Part, Shared, Way, ended};
use crate::catalogue::OpenTitle;

/// How packets go into a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lane {
    /// The channel of the stream's packets.
    pub channel: u8,
    /// What its RTP session begins with.
    pub session: Session,
    /// What is known of its bytes and times; none when they are the title's at one rate.
    pub plan: Option<Arc<Plan>>,
}

/// Whether a connection is of use after its stream has ended like this.
pub fn is_whole(outcome: Outcome) -> bool {
    match outcome {
        Outcome::Complete
        | Outcome::Stopped
        | Outcome::Unreadable { .. }
        | Outcome::Damaged { .. } => true,
        Outcome::PeerGone(_) | Outcome::TooSlow | Outcome::DiskFailed(_) => false,
    }
}

/// The way to say something between the frames of a stream.
#[derive(Clone)]
pub struct Interleaver {
    shared: Arc<Shared>,
    stream: StreamId,
}

impl Interleaver {
    /// Has `text` sent between two frames: an answer, or packets in frames of their own. It waits behind
    /// those that were given before.
    ///
    /// The future gives the text back when the stream has ended before it: then the connection, if it comes
    /// back at all, is the caller's to write it to.
    ///
    /// # Panics
    /// When it is empty or longer than [`INTERLEAVED_MAX`].
    pub fn insert(
        &self,
        text: Box<[u8]>,
    ) -> impl Future<Output = Result<(), Box<[u8]>>> + Send + use<> {
        assert!((1..=INTERLEAVED_MAX).contains(&text.len()), "a text is short");
        let (answer, answered) = oneshot::channel();
        self.shared.book().insert(self.stream, text, answer);
        async { answered.await.expect("every text is answered") }
    }
}

/// A delivery in frames that is under way. It goes on when this is dropped, until its grant is.
pub struct Framed {
    interleaver: Interleaver,
    delivered: oneshot::Receiver<Delivered>,
}

impl Framed {
    /// As [`Interleaver::insert`].
    ///
    /// # Panics
    /// As there.
    pub fn insert(
        &self,
        text: Box<[u8]>,
    ) -> impl Future<Output = Result<(), Box<[u8]>>> + Send + use<> {
        self.interleaver.insert(text)
    }

    /// Ends it, behind the frame that is begun: [`Self::ended`] says when.
    pub fn stop(&self) {
        let Interleaver { shared, stream } = &self.interleaver;
        let mut book = shared.book();
        let place = &book.places[stream.index as usize];
        if place.generation == stream.generation && place.way.is_some() {
            book.stop(stream.index);
        }
    }

    /// Its end, with the connection when it is of use. Asking again is asking too much.
    pub async fn ended(&mut self) -> Delivered {
        ended((&mut self.delivered).await)
    }
}

impl Broker {
    /// Reserves what `title` needs to leave at `rate` in frames to a peer that speaks `ip`.
    ///
    /// # Errors
    /// [`super::Refusal`] names the short resource; nothing has changed.
    pub fn admit_frames(
        &self,
        title: &Arc<OpenTitle>,
        rate: BitRate,
        ip: Ip,
    ) -> Result<Grant, super::Refusal> {
        // A segment of TCP carries somewhat more than one frame, and its header is longer than UDP's: that
        // of the frame covers the difference.
        let session = Session { source: 0, sequence: 0, timestamp: 0 };
        let wire = Form::Rtp(session).wire_rate(rate, ip);
        let wire = BitRate(wire.0 + wire.0 * frame::HEAD as u64 / 1316);
        self.admit_packets(title, rate, [rate, wire], Nanos(0), None, None)
    }

    /// Begins to send `range` of `title` to `socket`, which must be non-blocking and prepared for the link,
    /// once or again and again.
    ///
    /// # Errors
    /// What became of it, when the title's file cannot be opened again.
    ///
    /// # Panics
    /// When the range is empty, or the title grows.
    pub async fn send_frames(
        &self,
        grant: &mut Grant,
        title: &Arc<OpenTitle>,
        range: Range<u64>,
        repeats: bool,
        (socket, lane): (TcpStream, Lane),
    ) -> Result<Framed, Delivered> {
        assert!(range.start < range.end, "there is something to send");
        assert!(title.following.is_none(), "only what is whole is sent");
        let part = Part { repeats, ..Part::of(range) };
        let delivered = self.start(grant, title, part, Way::Frames(socket, lane)).await?;
        Ok(Framed { interleaver: self.interleaver(grant), delivered })
    }

    /// How to say something between the frames of the stream that is sent with `grant`.
    pub fn interleaver(&self, grant: &Grant) -> Interleaver {
        Interleaver { shared: Arc::clone(&self.shared), stream: self.stream_of(grant) }
    }
}

type Answer = oneshot::Sender<Result<(), Box<[u8]>>>;

/// What goes between the frames of one stream. As long as whoever gave it waits.
#[derive(Default)]
pub(super) struct Texts {
    /// Whoever waits for the one that the engine has.
    at_engine: Option<Answer>,
    waiting: VecDeque<(Box<[u8]>, Answer)>,
}

impl Texts {
    /// The stream has ended.
    pub(super) fn give_back(&mut self) {
        for (text, answer) in self.waiting.drain(..) {
            // Who does not wait any more does not want it.
            answer.send(Err(text)).ok();
        }
    }
}

impl Book {
    fn insert(&mut self, stream: StreamId, text: Box<[u8]>, answer: Answer) {
        let place = &mut self.places[stream.index as usize];
        let is_in_frames = matches!(place.way, Some(Way::Frames(..) | Way::Made(..)));
        if place.generation != stream.generation || !is_in_frames {
            answer.send(Err(text)).ok();
            return;
        }
        if place.texts.at_engine.is_some() {
            place.texts.waiting.push_back((text, answer));
            return;
        }
        place.texts.at_engine = Some(answer);
        self.command(Command::Interleave { stream, message: text });
    }

    /// The engine has answered: the next one may go.
    pub(super) fn interleaved(&mut self, stream: StreamId, text: Box<[u8]>, is_sent: bool) {
        let place = &mut self.places[stream.index as usize];
        // What was asked for too late may be answered in the next life of the place.
        let goes_on = is_sent || place.generation != stream.generation;
        let stream = StreamId { generation: place.generation, ..stream };
        let texts = &mut place.texts;
        let answer = texts.at_engine.take().expect("the engine answers what it was asked");
        answer.send(if is_sent { Ok(()) } else { Err(text) }).ok();
        if let Some((text, answer)) = texts.waiting.pop_front() {
            if goes_on {
                texts.at_engine = Some(answer);
                self.command(Command::Interleave { stream, message: text });
            } else {
                // None behind it may be sent before it.
                answer.send(Err(text)).ok();
                self.places[stream.index as usize].texts.give_back();
            }
        }
    }
}
