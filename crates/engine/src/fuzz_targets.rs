//! The memory that local clients share with the server, as a function of bytes.
//!
//! Promise: whatever one program writes into its rings, the file server does not panic, its turns
//! are bounded, the reads of another program come with the right bytes, and nothing of the first
//! program is left when it is detached. Compiled for tests and fuzzing only.

use std::sync::atomic::Ordering;

use tactus_core::local::{Operation, REQUEST_WORDS, Request, layout};
use tactus_core::units::{Bytes, MonoTime, Nanos};

use crate::file::fixture::{DATA, Fixture, TITLE_LEN};
use crate::file::program::Program;

/// Plays the bytes as steps of a program, of its server's block servers, and of the control side.
/// Returns whether the program has kept to the protocol: it was not broken off.
pub fn rings(script: &[u8]) -> bool {
    let mut fixture = Fixture::new();
    fixture.holds_forwarded = true;
    let mut neighbour = fixture.attach(0);
    let program = fixture.attach(1);
    for handle in 0..2 {
        fixture.open(neighbour.id, handle);
    }
    let (handles, reserved) = ([HandleState::Free; HANDLES], [false; HANDLES]);
    let mut steps = Steps { rest: script, program, handles, reserved };
    let mut count = 0_u32;
    while !steps.rest.is_empty() {
        steps.step(&mut fixture);
        count += 1;
        if count.is_multiple_of(NEIGHBOUR_EVERY) {
            neighbour.read(&mut fixture, count / NEIGHBOUR_EVERY % 2);
        }
    }
    neighbour.read(&mut fixture, 0);
    let (one, other) = (neighbour.id, steps.program.id);
    let is_broken = fixture.broken.contains(&other);
    assert!(!fixture.broken.contains(&one) && fixture.detached.is_empty());
    for client in [other, one] {
        fixture.detach(client);
        let is_gone = |fixture: &Fixture| fixture.detached.contains(&client).then_some(());
        fixture.run(TURNS_OF_END, is_gone);
    }
    // The returns of the last one.
    fixture.turn();
    assert_eq!(fixture.lent(), 0, "a block is left");
    !is_broken
}

/// The next bytes of a script; zeros behind its end.
pub fn take<const N: usize>(script: &mut &[u8]) -> [u8; N] {
    let len = N.min(script.len());
    let (taken, rest) = script.split_at(len);
    *script = rest;
    let mut bytes = [0; N];
    bytes[..len].copy_from_slice(taken);
    bytes
}

/// Handles that the program opens.
const HANDLES: usize = 4;
/// What the control side carries out.
const WRITER_OPERATIONS: [Operation; 5] =
    [Operation::Write, Operation::Sync, Operation::Publish, Operation::WriteBack, Operation::Grow];
/// Steps between two reads of the other program.
const NEIGHBOUR_EVERY: u32 = 16;
/// Turns in which a client is detached: its wants are answered, and it is reported.
const TURNS_OF_END: u32 = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum HandleState {
    Free,
    Open,
    Mapped,
    Closing,
}

struct Steps<'a> {
    rest: &'a [u8],
    program: Program,
    handles: [HandleState; HANDLES],
    /// Those whose moments are kept.
    reserved: [bool; HANDLES],
}

impl Steps<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        take(&mut self.rest)
    }

    fn byte(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn step(&mut self, fixture: &mut Fixture) {
        match self.byte() {
            b'w' => {
                let at = usize::from(u16::from_le_bytes(self.take())) * 8 % layout::DATA;
                let word = u64::from_le_bytes(self.take());
                self.program.write(at, word);
            }
            b'r' => self.request(None),
            b'o' => self.writer_request(),
            b'f' => {
                let errno = u32::from(self.byte());
                fixture.answer_forwarded((errno > 0).then_some(errno));
                // The ring of commands holds no more than can be sent without a report between.
                fixture.turn();
                self.forget_closed(fixture);
            }
            b'x' => {
                let at = usize::from(self.byte()) % REQUEST_WORDS;
                let word = u64::from_le_bytes(self.take());
                self.request(Some((at, word)));
            }
            b'p' => {
                // More than was pushed: what is in the slots already.
                let more = u64::from(self.byte());
                let pushed = self.program.word(layout::REQUESTS_TAKEN);
                self.program.write(layout::REQUESTS_PUSHED, pushed.wrapping_add(more));
            }
            b'a' => while let Ok(Some(_)) = self.program.answers.pop() {},
            b't' => {
                let taken = self.program.word(layout::ANSWERS_PUSHED);
                let more = u64::from(self.byte());
                self.program.write(layout::ANSWERS_TAKEN, taken.wrapping_add(more));
            }
            b'm' => {
                let byte = u64::from(self.byte());
                self.program.write(layout::CLIENT_ASLEEP, byte & 1);
                self.program.write(layout::CLIENT_PROCESSOR, byte >> 1);
            }
            // The server moves to another processor.
            b'v' => fixture.processor.store(self.byte().into(), Ordering::Relaxed),
            b'q' => {
                let micros = u64::from(self.byte());
                fixture.now += Nanos::from_micros(micros);
                fixture.turn();
                self.forget_closed(fixture);
            }
            b'b' => {
                let [which, how] = self.take();
                let errno = (how & 2 != 0).then_some(-5);
                fixture.answer(which.into(), how & 1 == 0, errno);
            }
            b'h' => self.handle(fixture),
            // Bytes without a meaning let time pass.
            other => fixture.now += Nanos::from_micros(other.into()),
        }
    }

    /// A request that is valid in itself, with one word changed.
    fn request(&mut self, change: Option<(usize, u64)>) {
        let [handle, operation, when, token] = self.take();
        let [offset, len, at] = [(); 3].map(|()| u64::from(u16::from_le_bytes(self.take())));
        let mut words = [
            token.into(),
            (1 + u64::from(operation % 2)) | u64::from(handle) << 32,
            offset % (2 * TITLE_LEN),
            len % (2 * DATA),
            at % DATA,
            u64::from(when) << 24,
            0,
            0,
        ];
        if let Some((at, word)) = change {
            words[at] = word;
        }
        // A full ring, or one that was broken before.
        self.program.requests.push(&words).ok();
        self.program.server_mark.must_ring();
    }

    /// A request of a writer, valid in itself unless its numbers do not fit its operation.
    fn writer_request(&mut self) {
        let [operation, writer, token] = self.take();
        let [offset, len, at] = [(); 3].map(|()| u64::from(u16::from_le_bytes(self.take())));
        let operation = WRITER_OPERATIONS[usize::from(operation) % WRITER_OPERATIONS.len()];
        let request = Request {
            token: token.into(),
            operation,
            handle: writer.into(),
            offset: Bytes(offset),
            len: len as u32,
            at,
            when: MonoTime(0),
        };
        self.program.requests.push(&request.encode()).ok();
        self.program.server_mark.must_ring();
    }

    /// What the control side does for the program.
    fn handle(&mut self, fixture: &mut Fixture) {
        let which = usize::from(self.byte());
        let (nth, is_closing) = (which % HANDLES, which & 0x80 != 0);
        let (client, handle) = (self.program.id, nth as u32);
        let is_open = matches!(self.handles[nth], HandleState::Open | HandleState::Mapped);
        if which & 0x40 != 0 && is_open && !self.reserved[nth] {
            fixture.reserve(client, handle);
            self.reserved[nth] = true;
        }
        let next = match (self.handles[nth], is_closing) {
            (HandleState::Free, _) => {
                fixture.open(client, handle);
                HandleState::Open
            }
            (HandleState::Open, false) => {
                fixture.map(client, handle);
                HandleState::Mapped
            }
            (HandleState::Open | HandleState::Mapped, true) => {
                fixture.close(client, handle);
                HandleState::Closing
            }
            (same, _) => same,
        };
        self.handles[nth] = next;
        // The ring of commands holds no more than can be sent without a report between.
        fixture.turn();
        self.forget_closed(fixture);
    }

    fn forget_closed(&mut self, fixture: &mut Fixture) {
        for (client, handle) in fixture.closed.drain(..) {
            assert!(client == self.program.id, "the other program closes nothing");
            self.handles[handle as usize] = HandleState::Free;
            self.reserved[handle as usize] = false;
        }
    }
}
