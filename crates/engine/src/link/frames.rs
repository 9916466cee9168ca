//! What makes frames of a stream: its packets of RTP, each behind a head, and texts between them.
//!
//! Promise: each frame carries what a datagram would, and how much of one the socket has taken is known to the
//! byte. When one is sent is not decided here.

use std::sync::Arc;

use tactus_core::byte_clock::ByteClock;
use tactus_core::datagrams::{Cutter, Cutting, Form, Gathering, PAYLOAD, Plan};
use tactus_core::rtp::{self, frame};
use tactus_core::units::{Bytes, MonoTime, Nanos};

use crate::message;

/// What stands in front of a payload.
pub(super) const HEAD: usize = frame::HEAD + rtp::HEADER;

/// What makes frames of a stream.
pub(super) struct Frames {
    pub(super) channel: u8,
    /// Behind the last frame that has been begun; of a stream with a plan, behind the last that has been taken.
    pub(super) cutter: Cutter,
    pub(super) is_planned: bool,
    /// Of a stream with a plan: what the socket has taken of the frame that is begun, and packets and bytes of those that it
    /// has taken.
    pub(super) taken: usize,
    pub(super) left: (u64, u64),
    /// What of a frame the socket has not taken yet.
    pub(super) begun: Option<Begun>,
    pub(super) text: Option<Text>,
    /// It begins again after its end.
    pub(super) repeats: bool,
    /// Stopped, and only here to end what is begun.
    pub(super) closing_since: Option<MonoTime>,
}

#[derive(Clone, Copy)]
pub(super) struct Begun {
    pub(super) head: [u8; HEAD],
    payload: usize,
    pub(super) taken: usize,
}

pub(super) struct Text {
    pub(super) bytes: Box<[u8]>,
    pub(super) taken: usize,
}

impl Frames {
    pub(super) fn new(
        sink: message::Frames,
        law: ByteClock,
        turn: Option<Bytes>,
        plan: Option<Arc<Plan>>,
    ) -> Self {
        let (repeats, is_planned) = (turn.is_some(), plan.is_some());
        let cutter = Cutter::new(Cutting {
            form: Form::Rtp(sink.session),
            clock: law,
            gathering: Gathering::NONE,
            segments_max: 1,
            turn: turn.filter(|_| is_planned),
            plan,
        });
        let (channel, closing_since) = (sink.channel, None);
        let (taken, left) = (0, (0, 0));
        Self {
            channel,
            cutter,
            is_planned,
            taken,
            left,
            begun: None,
            text: None,
            repeats,
            closing_since,
        }
    }

    /// Moves what is to come.
    pub(super) fn delay(&mut self, by: Nanos) {
        self.cutter.delay(by);
    }

    /// Whether the socket has taken nothing of what it has not taken all of.
    pub(super) fn is_between(&self) -> bool {
        self.begun.is_none()
            && self.taken == 0
            && self.text.as_ref().is_none_or(|text| text.taken == 0)
    }

    /// The text that will not be sent any more.
    pub(super) fn give_up(&mut self) -> Option<Box<[u8]>> {
        self.text.take().map(|text| text.bytes)
    }

    /// What may be sent now besides frames.
    pub(super) fn text(&self) -> Option<&Text> {
        self.text.as_ref().filter(|text| self.closing_since.is_none() || text.taken > 0)
    }
}

impl Begun {
    /// Frame `nth` of those that come next; none behind the last one.
    pub(super) fn ahead(
        channel: u8,
        cutter: &Cutter,
        nth: u32,
        len: Option<Bytes>,
    ) -> Option<Self> {
        let at = cutter.taken() + Bytes(PAYLOAD.0 * u64::from(nth));
        let left = len.map_or(PAYLOAD, |len| len.saturating_sub(at));
        let payload = left.min(PAYLOAD).0 as usize;
        let mut head = [0; HEAD];
        let (outer, inner) = head.split_at_mut(frame::HEAD);
        outer.copy_from_slice(&frame::head(channel, (rtp::HEADER + payload) as u16));
        inner.copy_from_slice(&cutter.header(nth).expect("packets in frames are of RTP"));
        (payload > 0).then_some(Self { head, payload, taken: 0 })
    }

    /// The next frame, behind which `cutter` goes on.
    pub(super) fn next(channel: u8, cutter: &mut Cutter, len: Option<Bytes>) -> Self {
        let this = Self::ahead(channel, cutter, 0, len).expect("what is offered is in the stream");
        let packet = cutter.next(len).expect("what is offered is in the stream");
        assert!(packet.bytes.0 as usize == this.payload, "one packet at a time");
        cutter.advance(&packet);
        this
    }

    pub(super) fn left(&self) -> usize {
        HEAD + self.payload - self.taken
    }

    pub(super) fn payload_left(&self) -> usize {
        self.left().min(self.payload)
    }
}
