//! Interleaved messages: what the control side sends between the frames of a delivery.
//!
//! Promise: every message is either sent whole, in the order in which messages were given, or comes back.
//! A connection that comes back stands behind a whole frame and behind every message that was sent.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use tactus_engine::message::{Command, INTERLEAVED_MAX, Outcome, StreamId};
use tokio::sync::oneshot;

use super::{Shared, StreamTable};

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

/// The sender of messages between the frames of a stream.
#[derive(Clone)]
pub struct Interleaver {
    shared: Arc<Shared>,
    stream: StreamId,
}

impl Interleaver {
    pub(super) fn of(shared: Arc<Shared>, stream: StreamId) -> Self {
        Self { shared, stream }
    }

    /// Has `message` sent between two frames: an answer, or packets in frames of their own. It waits
    /// behind those that were given before.
    ///
    /// The future gives the message back if the stream has ended before it: then the connection, if it
    /// comes back at all, is the caller's to write it to.
    ///
    /// # Panics
    /// When it is empty or longer than [`INTERLEAVED_MAX`].
    pub fn send(
        &self,
        message: Box<[u8]>,
    ) -> impl Future<Output = Result<(), Box<[u8]>>> + Send + use<> {
        assert!((1..=INTERLEAVED_MAX).contains(&message.len()), "a message is short");
        let (answer, answered) = oneshot::channel();
        self.shared.table().interleave(self.stream, message, answer);
        async { answered.await.expect("every message is answered") }
    }
}

type Answer = oneshot::Sender<Result<(), Box<[u8]>>>;

/// The messages of one stream that are not sent yet.
#[derive(Default)]
pub(super) struct Messages {
    /// The sender of the one that the engine has.
    at_engine: Option<Answer>,
    waiting: VecDeque<(Box<[u8]>, Answer)>,
}

impl Messages {
    /// The stream has ended.
    pub(super) fn give_back(&mut self) {
        for (message, answer) in self.waiting.drain(..) {
            // A sender that waits no more does not need it.
            answer.send(Err(message)).ok();
        }
    }
}

impl StreamTable {
    fn interleave(&mut self, stream: StreamId, message: Box<[u8]>, answer: Answer) {
        let slot = &mut self.slots[stream.index as usize];
        let is_framed = slot.output.is_some() && slot.is_framed;
        if slot.generation != stream.generation || !is_framed {
            answer.send(Err(message)).ok();
            return;
        }
        if slot.messages.at_engine.is_some() {
            slot.messages.waiting.push_back((message, answer));
            return;
        }
        slot.messages.at_engine = Some(answer);
        self.command(Command::Interleave { stream, message });
    }

    /// The engine has answered: the next message may go.
    pub(super) fn interleaved(&mut self, stream: StreamId, message: Box<[u8]>, is_sent: bool) {
        let slot = &mut self.slots[stream.index as usize];
        // A message that came too late may be answered in the next life of the slot.
        let goes_on = is_sent || slot.generation != stream.generation;
        let stream = StreamId { generation: slot.generation, ..stream };
        let messages = &mut slot.messages;
        let answer = messages.at_engine.take().expect("the engine answers each message once");
        answer.send(if is_sent { Ok(()) } else { Err(message) }).ok();
        if let Some((message, answer)) = messages.waiting.pop_front() {
            if goes_on {
                messages.at_engine = Some(answer);
                self.command(Command::Interleave { stream, message });
            } else {
                // None behind it may be sent before it.
                answer.send(Err(message)).ok();
                self.slots[stream.index as usize].messages.give_back();
            }
        }
    }
}
