//! A stream of frames that the control side makes: what of it is due, and how much the socket has taken.
//!
//! Promise: what has been taken is known to the byte; a frame stays in its ring until all of it has been. When one is
//! sent is not decided here. The argument: `docs/design/made.md`.

use tactus_core::made::Timed;
use tactus_core::rtp::{self, frame};
use tactus_core::units::{Bytes, MonoTime, Nanos};
use tactus_ring::spsc::Consumer;

use crate::link::frames::Text;

/// Frames offered in one call: 45 KB, which is 10 ms of 36 Mbit/s.
pub(super) const FRAMES: usize = 32;

/// What of a made frame is none of its payload.
const HEAD: usize = frame::HEAD + rtp::HEADER;

/// A stream of made frames.
pub(super) struct Made {
    pub(super) ring: Consumer<Timed>,
    /// What times count from; it moves when something was not there in time.
    pub(super) begin: MonoTime,
    /// What the socket has taken of the frame in front.
    pub(super) taken: usize,
    pub(super) text: Option<Text>,
    /// The last visit that found nothing: what was due by then is late.
    pub(super) empty_at: Option<MonoTime>,
    /// Stopped, and only here to end what is begun.
    pub(super) closing_since: Option<MonoTime>,
}

impl Made {
    /// When the frame in front is due; none when there is none. It is the end where it has no bytes.
    pub(super) fn front(&mut self) -> Option<(MonoTime, bool)> {
        self.ring.len();
        let next = self.ring.peek(0)?;
        Some((self.begin + next.due, next.is_end()))
    }

    /// Moves what is to come.
    pub(super) fn delay(&mut self, by: Nanos) {
        self.begin += by;
    }

    /// The text that will not be sent any more.
    pub(super) fn give_up(&mut self) -> Option<Box<[u8]>> {
        self.text.take().map(|text| text.bytes)
    }

    /// What may be sent now besides frames.
    pub(super) fn sendable_text(&self) -> Option<&Text> {
        self.text.as_ref().filter(|text| self.closing_since.is_none() || text.taken > 0)
    }

    /// How many frames may be begun whose time has come by `until`, behind the one that is begun.
    pub(super) fn due(&self, until: MonoTime) -> usize {
        let is_due = |nth: &usize| {
            let next = self.ring.peek(*nth);
            next.is_some_and(|next| !next.is_end() && self.begin + next.due <= until)
        };
        (0..FRAMES).take_while(is_due).count()
    }

    /// Notes that the socket has taken `left` bytes. Gives how many frames have gone, their payload in bytes,
    /// and the text that has been taken whole.
    pub(super) fn take(&mut self, mut left: usize) -> (u64, Bytes, Option<Box<[u8]>>) {
        let (mut frames, mut payload, mut text_sent) = (0, 0, None);
        while left > 0 {
            let may_text = self.taken == 0 && self.sendable_text().is_some();
            if let Some(text) = self.text.as_mut().filter(|_| may_text) {
                let own = (text.bytes.len() - text.taken).min(left);
                text.taken += own;
                left -= own;
                if text.taken == text.bytes.len() {
                    text_sent = self.give_up();
                }
                continue;
            }
            let len = self.ring.peek(0).expect("what was offered is there").bytes().len();
            let own = (len - self.taken).min(left);
            self.taken += own;
            left -= own;
            if self.taken == len {
                self.taken = 0;
                self.ring.discard();
                frames += 1;
                payload += len.saturating_sub(HEAD) as u64;
            }
        }
        (frames, Bytes(payload), text_sent)
    }
}
