//! Interleaved messages: bytes of the control side between the frames of a delivery.
//!
//! Promise: every message is sent whole, in the order of the calls, or comes back. A connection
//! that comes back stands behind a whole frame and behind every sent message.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use tactus_engine::message::{Command, INTERLEAVED_MAX, Outcome, StreamId};
use tokio::sync::oneshot;

use super::{Shared, StreamTable};

/// Whether a connection is usable after a stream with this outcome.
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

    /// Sends `message` between two frames: an answer, or packets in frames of their own. It waits
    /// behind earlier messages.
    ///
    /// The future returns the message if the stream has ended before it. If the connection comes
    /// back in that case, the caller writes the message to it.
    ///
    /// # Panics
    /// If the message is empty or longer than [`INTERLEAVED_MAX`].
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

/// The unsent messages of one stream.
#[derive(Default)]
pub(super) struct Messages {
    /// The answer channel of the message at the engine.
    at_engine: Option<Answer>,
    waiting: VecDeque<(Box<[u8]>, Answer)>,
}

impl Messages {
    /// Returns all messages: the stream has ended.
    pub(super) fn give_back(&mut self) {
        for (message, answer) in self.waiting.drain(..) {
            // A sender that no longer waits does not need the message.
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

    /// Handles the engine's answer: the next message may go.
    pub(super) fn interleaved(&mut self, stream: StreamId, message: Box<[u8]>, is_sent: bool) {
        let slot = &mut self.slots[stream.index as usize];
        // The answer of a message that came too late may arrive in a later generation of the slot.
        let goes_on = is_sent || slot.generation != stream.generation;
        let stream = slot.stream(stream.index);
        let messages = &mut slot.messages;
        let answer = messages.at_engine.take().expect("the engine answers each message once");
        answer.send(if is_sent { Ok(()) } else { Err(message) }).ok();
        if let Some((message, answer)) = messages.waiting.pop_front() {
            if goes_on {
                messages.at_engine = Some(answer);
                self.command(Command::Interleave { stream, message });
            } else {
                // No later message may be sent before this one.
                answer.send(Err(message)).ok();
                self.slots[stream.index as usize].messages.give_back();
            }
        }
    }
}
