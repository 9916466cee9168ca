//! One stream of datagrams at its receiver: permitted times and expected content.
//!
//! It uses its own arithmetic, so that an error of the engine cannot hide in it. It takes only the
//! due time of the first byte from the engine's counters, as RTCP does. Every datagram then bounds
//! that time from above and, while there is no fault, from below.

use std::mem;

use tactus_core::datagrams::{Framing, Gathering, Session};
use tactus_core::units::{Bytes, MonoTime, Nanos};

use super::Delivery;
use crate::content::{self, Fidelity};
use crate::verdict::{Invariant, broken, require};

/// The promise of a stream of datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatagramPromise {
    /// Its content; for a repeating title, one turn.
    pub(crate) delivery: Delivery,
    pub(crate) repeats: bool,
    /// Bits per second of payload.
    pub(crate) rate: u64,
    pub(crate) framing: Framing,
    /// How long the first datagram of a message may wait for the last one.
    pub(crate) burst: Nanos,
    pub(crate) tick: Nanos,
    /// Limit of the lateness of cores.
    pub(crate) lateness: Nanos,
}

/// A stream and its progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) serial: u16,
    pub(super) promise: DatagramPromise,
    /// Payload that has left or was refused.
    pub(super) sent: u64,
    datagrams: u64,
    /// The earliest possible due time of its first byte.
    earliest: MonoTime,
    latest: MonoTime,
    /// The time by which the rate has paid for the sent bytes.
    paid_until: MonoTime,
    /// The timestamp before, counted from the first.
    ticks: u32,
}

/// A message that has passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassedMessage {
    pub(super) payload: u64,
    pub(super) datagrams: u64,
    /// The timestamp of the last of them, counted from the first of the stream.
    ticks: u32,
}

const PAYLOAD: u64 = 1316;
const HEADER: usize = 12;

/// A longer stall of the machine or a link moves the clocks; a shorter one is made up for.
const STALL: Nanos = Nanos::from_millis(250);

impl Flow {
    pub(super) fn new(now: MonoTime, serial: u16, promise: DatagramPromise) -> Self {
        Self {
            serial,
            promise,
            sent: 0,
            datagrams: 0,
            earliest: now,
            latest: MonoTime(u64::MAX),
            paid_until: now,
            ticks: 0,
        }
    }

    /// Notes the due time of its first byte, which the engine reports before the first send.
    pub(super) fn begin(&mut self, epoch: MonoTime) {
        if self.datagrams > 0 {
            return;
        }
        require(epoch >= self.earliest, Invariant::NeverEarly, || {
            format!("it began at {epoch:?}: {self:?}")
        });
        (self.earliest, self.latest) = (epoch, epoch);
    }

    /// Time from the first datagram until this one is due.
    fn span(&self, datagram: u64) -> u64 {
        let bits = u128::from(datagram * PAYLOAD) * 8_000_000_000;
        bits.div_ceil(u128::from(self.promise.rate)) as u64
    }

    /// Checks an offered message: content and time.
    pub(super) fn check(
        &mut self,
        now: MonoTime,
        segment: u16,
        parts: &[&[u8]],
        fidelity: Fidelity,
    ) -> PassedMessage {
        let header = if matches!(self.promise.framing, Framing::Rtp(_)) { HEADER } else { 0 };
        let whole = PAYLOAD as usize + header;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let datagrams = len.div_ceil(whole);
        let payload = (len - (datagrams * header).min(len)) as u64;
        let turn = (self.promise.delivery.end - self.promise.delivery.first).0;
        let ends = !self.promise.repeats && self.sent + payload == turn;
        let is_cut =
            usize::from(segment) == whole && payload > 0 && (len.is_multiple_of(whole) || ends);
        let fits = self.promise.repeats || self.sent + payload <= turn;
        require(is_cut && fits, Invariant::RightBytes, || {
            format!("a message of {len} bytes in {segment} at {now:?}: {self:?}")
        });
        let before = self.ticks;
        let mut head = [0; HEADER];
        let (mut at, mut next) = (0, self.sent);
        for part in parts {
            let mut part = *part;
            while !part.is_empty() {
                let within = at % whole;
                let most = if within < header { header - within } else { whole - within };
                let (own, behind) = part.split_at(most.min(part.len()));
                if within < header {
                    head[within..within + own.len()].copy_from_slice(own);
                    if within + own.len() == header {
                        self.check_header(now, (at / whole) as u64, &head);
                    }
                } else {
                    self.check_bytes(now, next, own, fidelity);
                    next += own.len() as u64;
                }
                at += own.len();
                part = behind;
            }
        }
        // A message that a full socket does not take comes again.
        let ticks = mem::replace(&mut self.ticks, before);
        PassedMessage { payload, datagrams: datagrams as u64, ticks }
    }

    /// RFC 3550, section 5.1; RFC 2250, section 2.
    fn check_header(&mut self, now: MonoTime, nth: u64, head: &[u8; HEADER]) {
        let Framing::Rtp(Session { source, sequence, timestamp }) = self.promise.framing else {
            return;
        };
        let number = self.datagrams + nth;
        let field =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        // Version 2, no extension, no contributing sources, no marker, an MPEG-2 transport stream.
        let expected = u32::from(sequence.wrapping_add(number as u16)) | 0x8021 << 16;
        let is_right = field(0) == expected && field(8) == source;
        require(is_right, Invariant::RightBytes, || {
            format!("datagram {number} has the header {head:x?} at {now:?}: {self:?}")
        });
        let ticks = field(4).wrapping_sub(timestamp);
        // The time since the first was due, in ticks of 90 kHz; where clocks may have moved, no
        // less.
        let exact = (u128::from(self.span(number)) * 9 / 100_000) as u32;
        let is_exact = self.promise.delivery.is_promised;
        let is_right = if is_exact { ticks == exact } else { ticks >= exact.max(self.ticks) };
        require(is_right, Invariant::RightBytes, || {
            format!("datagram {number} says {ticks} at {now:?}, {exact} by the law: {self:?}")
        });
        // Its timestamp is also its due time: no clock that has moved makes it early.
        let said = Nanos(u64::from(ticks) * 100_000 / 9);
        require(now >= self.earliest + said, Invariant::NeverEarly, || {
            format!("datagram {number} is due {said:?} after the first, at {now:?}: {self:?}")
        });
        self.ticks = ticks;
    }

    fn check_bytes(&self, now: MonoTime, at: u64, mut bytes: &[u8], fidelity: Fidelity) {
        let Delivery { title, first, end, .. } = self.promise.delivery;
        let turn = (end - first).0;
        let mut at = at;
        while !bytes.is_empty() {
            let here = at % turn;
            let own = (turn - here).min(bytes.len() as u64) as usize;
            if let Err(wrong) = content::check(title, first.0 + here, &bytes[..own], fidelity) {
                broken(
                    Invariant::RightBytes,
                    format!("byte {wrong} at {at} of {:?} is another's at {now:?}", self.promise),
                );
            }
            (at, bytes) = (at + own as u64, &bytes[own..]);
        }
    }

    /// Notes that a message has left, or was refused, which is the same for its clock.
    pub(super) fn pass(&mut self, now: MonoTime, passed: PassedMessage) {
        let PassedMessage { payload, datagrams, ticks } = passed;
        self.ticks = ticks;
        let (first, last) = (self.datagrams, self.datagrams + datagrams - 1);
        let DatagramPromise { burst, tick, lateness, rate, .. } = self.promise;
        let gathering = Gathering::of(burst, tick);
        let (within, grid) = (gathering.within(), gathering.grid());
        let waits = Nanos(self.span(last) - self.span(first));
        // A late turn finds more due, and a message may be late by as much.
        let stall = if self.promise.delivery.is_promised { Nanos(0) } else { STALL };
        require(waits <= within + grid + lateness + stall, Invariant::NeverLate, || {
            format!("{datagrams} datagrams in one message at {now:?}: {self:?}")
        });
        self.sent += payload;
        self.datagrams += datagrams;
        let span = Nanos(self.span(last));
        require(now >= self.earliest + span, Invariant::NeverEarly, || {
            format!("datagram {last} at {now:?}, due {span:?} after the first: {self:?}")
        });
        let began = now.before(span);
        self.latest = self.latest.min(began);
        if self.promise.delivery.is_promised {
            // It left in the turn for which it was due, and this is the limit of that turn's
            // lateness.
            let most = grid + lateness + Nanos(1);
            self.earliest = self.earliest.max(MonoTime(began.0.saturating_sub(most.0)));
            require(self.earliest <= self.latest, Invariant::NeverLate, || {
                format!("datagram {last} at {now:?} is early or late beside the others: {self:?}")
            });
        }
        self.paid_until = self.paid_until.max(now) + Nanos(payload * 8_000_000_000 / rate);
        // A message held back by a full socket waits as long again as a pause left over.
        let most = STALL.times(2) + (grid + lateness).times(2) + within + waits;
        let one = Nanos(self.span(2));
        require(self.paid_until <= now + most + one, Invariant::NoBurstAfterPause, || {
            format!("above the rate at {now:?}: {self:?}")
        });
    }

    /// Stops the world when the next datagram is overdue.
    pub(super) fn check_not_late(&self, now: MonoTime) {
        let DatagramPromise { burst, tick, lateness, delivery, repeats, .. } = self.promise;
        let is_whole = !repeats && self.sent == (delivery.end - delivery.first).0;
        if !delivery.is_promised || self.sent == 0 || is_whole {
            return;
        }
        let gathering = Gathering::of(burst, tick);
        let (within, grid) = (gathering.within(), gathering.grid());
        let due = self.latest + Nanos(self.span(self.datagrams)) + within;
        require(now <= due + grid + lateness, Invariant::NeverLate, || {
            format!("datagram {} was due by {due:?}, now {now:?}: {self:?}", self.datagrams)
        });
    }

    /// Bytes sent in all.
    pub(super) fn sent(&self) -> Bytes {
        Bytes(self.sent)
    }
}
