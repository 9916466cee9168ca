//! The requests under way: which pages each one uses, and where its result goes.
//!
//! Promise: an answer reaches the request that it belongs to, once, or is an error; pages of a
//! request come back when it has been answered, whether or not its caller still waits. There are
//! never more requests than the rings have slots, so that neither ring is ever full. Nothing here
//! allocates after the constructor.

use std::task::Waker;

use rustix::io::Errno;
use tactus_core::local::{Answer, RING_SLOTS};
use tactus_core::units::MonoTime;

use crate::pages::PageRange;

/// Names a request from its submission to its completion. Never used twice by one client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub(crate) u64);

impl Token {
    const fn new(slot: usize, generation: u32) -> Self {
        Self(slot as u64 | (generation as u64) << 32)
    }

    /// The token as a number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Where the result of a request goes.
pub(crate) enum Destination {
    /// To the queue of completions.
    Queue,
    /// Its caller takes it by its token; the waker of a future is woken.
    Caller(Option<Waker>),
    /// Nobody waits for it any more.
    Nobody,
}

/// A request that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outcome {
    pub(crate) token: Token,
    pub(crate) buffer: Extent,
    /// Number of bytes, or the error number.
    pub(crate) result: Result<u32, u32>,
    /// When it took effect.
    pub(crate) at: MonoTime,
}

/// The bytes of a buffer: its pages, and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) pages: PageRange,
    pub(crate) len: u32,
}

impl Extent {
    /// Of a request that has no bytes.
    pub(crate) const NONE: Self = Self { pages: PageRange::NONE, len: 0 };
}

/// An answer that belongs to no request under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StrayAnswer;

/// The table.
pub(crate) struct Table {
    slots: Vec<Slot>,
    /// Free slots; the last one is used next.
    free: Vec<u8>,
    /// Slots with a completion for the queue, a ring whose oldest is at `oldest`.
    queue: [u8; SLOTS],
    oldest: u8,
    queued: u32,
    /// Requests for the queue that are not answered.
    queue_under_way: u32,
    /// Wakers of futures that have a result.
    woken: Vec<Waker>,
    /// Pages of answered requests that nobody waits for.
    returned: Vec<PageRange>,
}

struct Slot {
    generation: u32,
    state: State,
}

enum State {
    Free,
    UnderWay(Extent, Destination),
    Done(Outcome),
}

const SLOTS: usize = RING_SLOTS as usize;
// A slot has a number of 8 bits.
const _: () = assert!(SLOTS == 256);

impl Table {
    pub(crate) fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Slot { generation: 0, state: State::Free }).collect(),
            free: (0..=u8::MAX).rev().collect(),
            queue: [0; SLOTS],
            oldest: 0,
            queued: 0,
            queue_under_way: 0,
            woken: Vec::with_capacity(SLOTS),
            returned: Vec::with_capacity(SLOTS),
        }
    }

    /// Begins a request. `None` if there are as many as there may be.
    pub(crate) fn begin(&mut self, buffer: Extent, destination: Destination) -> Option<Token> {
        let slot = self.free.pop()?;
        self.queue_under_way += u32::from(matches!(destination, Destination::Queue));
        let row = &mut self.slots[usize::from(slot)];
        row.generation = row.generation.wrapping_add(1);
        row.state = State::UnderWay(buffer, destination);
        Some(Token::new(usize::from(slot), row.generation))
    }

    /// Number of requests that can begin.
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// Requests for the queue whose completions were not taken.
    pub(crate) fn for_queue(&self) -> u32 {
        self.queue_under_way + self.queued
    }

    /// Whether the queue has a completion.
    pub(crate) fn has_completion(&self) -> bool {
        self.queued > 0
    }

    /// Ends the request of an answer.
    pub(crate) fn handle_answer(&mut self, answer: &Answer) -> Result<(), StrayAnswer> {
        let token = Token(answer.token);
        let at = self.slot_of(token).ok_or(StrayAnswer)?;
        let State::UnderWay(buffer, _) = &self.slots[at].state else { return Err(StrayAnswer) };
        // More bytes than the buffer has would be read behind its end.
        let result = match answer.result {
            Ok(bytes) if bytes > buffer.len => Err(Errno::PROTO.raw_os_error() as u32),
            result => result,
        };
        self.end(at, result, answer.at);
        Ok(())
    }

    /// Ends all requests under way with an error number.
    pub(crate) fn fail_all(&mut self, errno: Errno, now: MonoTime) {
        for at in 0..SLOTS {
            if matches!(self.slots[at].state, State::UnderWay(..)) {
                self.end(at, Err(errno.raw_os_error() as u32), now);
            }
        }
    }

    /// Takes the oldest completion of the queue.
    pub(crate) fn pop(&mut self) -> Option<Outcome> {
        self.queued = self.queued.checked_sub(1)?;
        let at = self.queue[usize::from(self.oldest)];
        self.oldest = self.oldest.wrapping_add(1);
        let outcome = self.take_at(usize::from(at));
        Some(outcome.expect("what is queued is done"))
    }

    /// Takes the result of a request for its caller. `None` while it is under way.
    pub(crate) fn take(&mut self, token: Token) -> Option<Outcome> {
        let at = self.slot_of(token)?;
        self.take_at(at)
    }

    /// Has `waker` woken at the end of a request that is under way.
    pub(crate) fn wake_at_end(&mut self, token: Token, waker: &Waker) {
        let Some(at) = self.slot_of(token) else { return };
        if let State::UnderWay(_, Destination::Caller(set)) = &mut self.slots[at].state {
            match set {
                Some(set) => set.clone_from(waker),
                None => *set = Some(waker.clone()),
            }
        }
    }

    /// The caller of a request waits no more; its pages are returned at its end.
    pub(crate) fn abandon(&mut self, token: Token) {
        let Some(at) = self.slot_of(token) else { return };
        if let State::UnderWay(_, destination) = &mut self.slots[at].state {
            *destination = Destination::Nobody;
        } else if let Some(outcome) = self.take_at(at) {
            self.returned.push(outcome.buffer.pages);
        }
    }

    /// Pages that nobody uses any more.
    pub(crate) fn pop_returned(&mut self) -> Option<PageRange> {
        self.returned.pop()
    }

    /// The wakers of futures that have a result; to be called without a lock.
    pub(crate) fn woken(&mut self) -> &mut Vec<Waker> {
        &mut self.woken
    }

    fn slot_of(&self, token: Token) -> Option<usize> {
        let at = usize::try_from(token.0 & 0xffff_ffff).ok()?;
        let slot = self.slots.get(at)?;
        (u64::from(slot.generation) == token.0 >> 32).then_some(at)
    }

    fn end(&mut self, at: usize, result: Result<u32, u32>, time: MonoTime) {
        let slot = &mut self.slots[at];
        let token = Token::new(at, slot.generation);
        let State::UnderWay(buffer, destination) = std::mem::replace(&mut slot.state, State::Free)
        else {
            unreachable!("only a request under way ends")
        };
        slot.state = State::Done(Outcome { token, buffer, result, at: time });
        match destination {
            Destination::Queue => {
                let last = self.oldest.wrapping_add(self.queued as u8);
                self.queue[usize::from(last)] = at as u8;
                self.queued += 1;
                self.queue_under_way -= 1;
            }
            Destination::Caller(waker) => self.woken.extend(waker),
            Destination::Nobody => self.abandon(token),
        }
    }

    fn take_at(&mut self, at: usize) -> Option<Outcome> {
        let State::Done(outcome) = self.slots[at].state else { return None };
        self.slots[at].state = State::Free;
        self.free.push(at as u8);
        Some(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::{PAGE, Pages};

    fn answer(token: Token, result: Result<u32, u32>) -> Answer {
        Answer { token: token.0, result, at: MonoTime(5) }
    }

    fn buffer() -> Extent {
        Extent { pages: Pages::new(1).take(PAGE).unwrap(), len: 100 }
    }

    #[test]
    fn completions_come_in_the_order_of_the_answers_and_a_token_is_used_once() {
        let mut table = Table::new();
        for _ in 0..3 {
            let tokens: Vec<_> =
                std::iter::from_fn(|| table.begin(buffer(), Destination::Queue)).collect();
            assert_eq!((tokens.len(), table.room(), table.for_queue()), (SLOTS, 0, 256));
            for token in tokens.iter().rev() {
                assert_eq!(table.handle_answer(&answer(*token, Ok(7))), Ok(()));
                assert_eq!(table.handle_answer(&answer(*token, Ok(7))), Err(StrayAnswer), "twice");
            }
            for token in tokens.iter().rev() {
                assert_eq!(table.pop().unwrap().token, *token);
            }
            assert_eq!((table.pop(), table.room(), table.for_queue()), (None, SLOTS, 0));
            let stray = table.handle_answer(&answer(tokens[0], Ok(7)));
            assert_eq!(stray, Err(StrayAnswer), "of the last round");
        }
    }

    #[test]
    fn answers_without_a_request_or_with_too_many_bytes_are_errors() {
        let mut table = Table::new();
        for token in [0, 255, 256, 1 << 31, 1 << 32, u64::MAX] {
            assert_eq!(table.handle_answer(&answer(Token(token), Ok(0))), Err(StrayAnswer));
        }
        for (bytes, result) in [(100, Ok(100)), (101, Err(71)), (u32::MAX, Err(71))] {
            let token = table.begin(buffer(), Destination::Caller(None)).unwrap();
            assert_eq!(table.take(token), None, "under way");
            assert_eq!(table.handle_answer(&answer(token, Ok(bytes))), Ok(()));
            assert_eq!(table.take(token).unwrap().result, result);
            assert_eq!(table.take(token), None, "taken");
        }
    }

    #[test]
    fn pages_of_an_abandoned_request_come_back_when_it_is_answered() {
        let mut table = Table::new();
        let [before, after] = [(); 2]
            .map(|()| table.begin(buffer(), Destination::Caller(None)).expect("there is room"));
        table.abandon(before);
        assert_eq!(table.pop_returned(), None, "the server may still write there");
        assert_eq!(table.handle_answer(&answer(before, Err(5))), Ok(()));
        assert!(table.pop_returned().is_some());
        assert_eq!(table.handle_answer(&answer(after, Ok(1))), Ok(()));
        table.abandon(after);
        assert!(table.pop_returned().is_some());
        table.abandon(after);
        assert_eq!((table.pop_returned(), table.room()), (None, SLOTS));
    }

    #[test]
    fn everything_under_way_fails_at_once() {
        let mut table = Table::new();
        let queued = table.begin(buffer(), Destination::Queue).unwrap();
        let called = table.begin(buffer(), Destination::Caller(None)).unwrap();
        let abandoned = table.begin(buffer(), Destination::Nobody).unwrap();
        table.fail_all(Errno::CONNRESET, MonoTime(9));
        let error = Err(Errno::CONNRESET.raw_os_error() as u32);
        let outcome = table.pop().unwrap();
        assert_eq!((outcome.token, outcome.result, outcome.at), (queued, error, MonoTime(9)));
        assert_eq!(table.take(called).unwrap().result, error);
        assert_eq!((table.take(abandoned), table.room()), (None, SLOTS));
        assert!(table.pop_returned().is_some());
    }
}
