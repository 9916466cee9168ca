//! Datagrams that a port received early, with no queueing discipline to keep their times.
//!
//! Promise: none leaves early, or by another socket that has reused the number of its UDP output; a
//! look checks each UDP output once with the kernel. Consecutive datagrams of one UDP output leave
//! by one call. No allocation after the start.

use std::net::SocketAddr;
use std::os::fd::RawFd;

use tactus_core::ports::{Batch, BatchProgress, Message, PacketPort, SocketHandle, Stop};
use tactus_core::units::MonoTime;

use crate::packets::directions::Key;
use crate::packets::udp_output::{MESSAGES_MAX, UdpLink, cookie};

/// The kept datagrams, in order of arrival.
pub(crate) struct EarlyQueue {
    slots: Box<[Slot]>,
    bytes: Box<[[u8; LEN_MAX]]>,
    first: usize,
    count: usize,
    /// Number of datagrams for each destination, by its hash.
    places: Box<[u16]>,
}

#[derive(Clone, Copy)]
struct Slot {
    udp_output: SocketHandle,
    cookie: u64,
    to: SocketAddr,
    due: MonoTime,
    len: usize,
}

/// The result of keeping a datagram.
pub(crate) enum EnqueueResult {
    Whole,
    /// No room: earlier ones must leave first.
    Full,
    /// It can never be kept.
    TooLong,
}

/// A kept datagram.
pub(crate) struct EarlyDatagram<'a> {
    pub(crate) udp_output: SocketHandle,
    pub(crate) key: Key,
    pub(crate) to: SocketAddr,
    pub(crate) due: MonoTime,
    pub(crate) bytes: &'a [u8],
}

/// The result of an offer.
pub(crate) enum OfferResult {
    Taken,
    /// It stays.
    Refused,
    /// It stays, and so do all behind it.
    Full,
}

/// The UDP output of a datagram that has been handed over.
const NOBODY: SocketHandle = SocketHandle(-1);
/// 2 ms of 2.5 Gbit/s.
const PLACES: usize = 512;
/// Limit of the datagrams of one call.
const RUN_MAX: usize = MESSAGES_MAX;
/// Places of destinations. Two that share a place are held together, which costs them only their
/// own time.
const DESTINATIONS: usize = 1024;
/// A datagram of seven packets and an RTP header has 1,328 bytes; a generated one may be slightly
/// longer.
const LEN_MAX: usize = 2048;

impl EarlyQueue {
    pub(crate) fn new() -> Self {
        let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
        let empty = Slot { udp_output: NOBODY, cookie: 0, to: nobody, due: MonoTime(0), len: 0 };
        let bytes = vec![[0; LEN_MAX]; PLACES].into();
        let places = vec![0; DESTINATIONS].into();
        Self { slots: vec![empty; PLACES].into(), bytes, first: 0, count: 0, places }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a datagram for this destination is kept: a later one must not overtake it.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.count > 0 && self.places[key.hash() % DESTINATIONS] > 0
    }

    /// When the first one is due.
    pub(crate) fn next(&self) -> Option<MonoTime> {
        (self.count > 0).then(|| self.slots[self.first].due)
    }

    /// Keeps a datagram.
    pub(crate) fn keep(
        &mut self,
        udp_output: SocketHandle,
        cookie: u64,
        to: SocketAddr,
        due: MonoTime,
        parts: &[&[u8]],
    ) -> EnqueueResult {
        let len = parts.iter().map(|part| part.len()).sum();
        if len > LEN_MAX {
            return EnqueueResult::TooLong;
        }
        if self.count == PLACES {
            return EnqueueResult::Full;
        }
        let place = (self.first + self.count) % PLACES;
        let mut at = 0;
        for part in parts {
            self.bytes[place][at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.slots[place] = Slot { udp_output, cookie, to, due, len };
        self.count += 1;
        self.places[Key { cookie, to: to.ip() }.hash() % DESTINATIONS] += 1;
        EnqueueResult::Whole
    }

    /// Offers them to a port that can keep their times now, in order, up to one without room.
    pub(crate) fn hand_over(&mut self, offer: impl FnMut(&EarlyDatagram<'_>) -> OfferResult) {
        self.hand_over_by(&mut Check::new(cookie), offer);
    }

    fn hand_over_by(
        &mut self,
        check: &mut Check<impl FnMut(RawFd) -> Option<u64>>,
        mut offer: impl FnMut(&EarlyDatagram<'_>) -> OfferResult,
    ) {
        for nth in 0..self.count {
            let place = (self.first + nth) % PLACES;
            let Slot { udp_output, cookie: own, to, due, len } = self.slots[place];
            if udp_output == NOBODY || !check.is_open(udp_output, own) {
                continue;
            }
            let key = Key { cookie: own, to: to.ip() };
            match offer(&EarlyDatagram {
                udp_output,
                key,
                to,
                due,
                bytes: &self.bytes[place][..len],
            }) {
                OfferResult::Taken => {
                    self.places[key.hash() % DESTINATIONS] -= 1;
                    self.slots[place].udp_output = NOBODY;
                }
                OfferResult::Refused => {}
                OfferResult::Full => break,
            }
        }
        while self.count > 0 && self.slots[self.first].udp_output == NOBODY {
            self.pass();
        }
    }

    /// Sends the due ones, up to one without room in its socket. Returns the number that the kernel
    /// refused.
    pub(crate) fn send_due(&mut self, now: MonoTime, udp: &mut UdpLink) -> u64 {
        if self.next().is_none_or(|due| due > now) {
            return 0;
        }
        self.send_due_by(now, &mut Check::new(cookie), |udp_output, batch| {
            udp.send(now, udp_output, batch)
        })
    }

    fn send_due_by(
        &mut self,
        now: MonoTime,
        check: &mut Check<impl FnMut(RawFd) -> Option<u64>>,
        mut send: impl FnMut(SocketHandle, Batch<'_>) -> BatchProgress,
    ) -> u64 {
        let mut refused = 0;
        while self.next().is_some_and(|due| due <= now) {
            let Slot { udp_output, cookie: own, .. } = self.slots[self.first];
            if udp_output == NOBODY || !check.is_open(udp_output, own) {
                self.pass();
                continue;
            }
            let run = self.run(now);
            let mut messages =
                [Message { to: self.slots[self.first].to, segment: 0, parts: 1 }; RUN_MAX];
            let mut parts = [&[][..]; RUN_MAX];
            for nth in 0..run {
                let place = (self.first + nth) % PLACES;
                let Slot { to, len, .. } = self.slots[place];
                messages[nth] = Message { to, segment: len as u16, parts: 1 };
                parts[nth] = &self.bytes[place][..len];
            }
            let BatchProgress { messages, stop } =
                send(udp_output, Batch { messages: &messages[..run], parts: &parts[..run] });
            (0..messages).for_each(|_| self.pass());
            match stop {
                Some(Stop::Full) => return refused,
                Some(Stop::Refused(_)) => {
                    refused += 1;
                    self.pass();
                }
                None => {}
            }
        }
        refused
    }

    /// Number of the first ones that are due and share one UDP output.
    fn run(&self, now: MonoTime) -> usize {
        let first = self.slots[self.first];
        let belongs = |nth: &usize| {
            let slot = self.slots[(self.first + nth) % PLACES];
            slot.due <= now && (slot.udp_output, slot.cookie) == (first.udp_output, first.cookie)
        };
        (0..self.count.min(RUN_MAX)).take_while(belongs).count()
    }

    /// Removes the first one.
    fn pass(&mut self) {
        let Slot { udp_output, cookie, to, .. } = self.slots[self.first];
        if udp_output != NOBODY {
            self.places[Key { cookie, to: to.ip() }.hash() % DESTINATIONS] -= 1;
        }
        self.first = (self.first + 1) % PLACES;
        self.count -= 1;
    }
}

/// Checks whether UDP outputs are still open, once for each: a closed one may have left its number
/// to another socket.
struct Check<F> {
    cookie: F,
    /// By their numbers; UDP outputs that share a place are checked in turns.
    known: [(SocketHandle, Option<u64>); CHECKED],
}

const CHECKED: usize = 32;

impl<F: FnMut(RawFd) -> Option<u64>> Check<F> {
    fn new(cookie: F) -> Self {
        Self { cookie, known: [(NOBODY, None); CHECKED] }
    }

    fn is_open(&mut self, udp_output: SocketHandle, own: u64) -> bool {
        let known = &mut self.known[udp_output.0 as usize % CHECKED];
        if known.0 != udp_output {
            *known = (udp_output, (self.cookie)(udp_output.0));
        }
        known.1 == Some(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const NOW: MonoTime = MonoTime(1000);

    /// Sixty of three UDP outputs in turns; all but the last thirty are due.
    fn early_queue() -> EarlyQueue {
        let mut early_queue = EarlyQueue::new();
        let to = "127.0.0.1:9".parse().unwrap();
        for nth in 0..60u8 {
            let udp_output = 7 + i32::from(nth / 5 % 3);
            let due = if nth < 30 { NOW } else { MonoTime(2000) };
            let kept =
                early_queue.keep(SocketHandle(udp_output), udp_output as u64, to, due, &[&[nth]]);
            assert!(matches!(kept, EnqueueResult::Whole));
        }
        early_queue
    }

    #[test]
    fn the_kernel_is_asked_once_in_a_look_for_each_udp_output() {
        let asked = Cell::new(0);
        let cookie = |udp_output: RawFd| {
            asked.set(asked.get() + 1);
            Some(udp_output as u64)
        };
        let mut early_queue = early_queue();
        let mut offered = 0;
        early_queue.hand_over_by(&mut Check::new(cookie), |_| {
            offered += 1;
            OfferResult::Refused
        });
        assert_eq!((offered, asked.take()), (60, 3));
        let mut sent = vec![];
        let refused = early_queue.send_due_by(NOW, &mut Check::new(cookie), |udp_output, batch| {
            let marks = batch.parts.iter().map(|part| part[0]);
            sent.push((udp_output.0, marks.collect::<Vec<u8>>()));
            BatchProgress { messages: batch.messages.len(), stop: None }
        });
        assert_eq!((refused, asked.take()), (0, 3));
        let own: Vec<_> =
            (0..6u8).map(|run| (7 + i32::from(run % 3), run * 5..run * 5 + 5)).collect();
        assert_eq!(sent, own.into_iter().map(|(by, all)| (by, all.collect())).collect::<Vec<_>>());
        assert_eq!((early_queue.count, early_queue.next()), (30, Some(MonoTime(2000))));
    }

    #[test]
    fn what_is_refused_and_what_has_no_udp_output_any_more_is_passed_over() {
        let mut early_queue = early_queue();
        // The second UDP output's number belongs to another socket now, and the kernel refuses
        // every third.
        let mut sent = 0;
        let cookie = |udp_output: RawFd| Some(if udp_output == 8 { 99 } else { udp_output as u64 });
        let refused = early_queue.send_due_by(NOW, &mut Check::new(cookie), |udp_output, batch| {
            assert_ne!(udp_output.0, 8);
            let messages = batch.parts.iter().take_while(|part| part[0] % 3 != 0).count();
            sent += messages;
            let stop = (messages < batch.parts.len()).then_some(Stop::Refused(libc::ENETUNREACH));
            BatchProgress { messages, stop }
        });
        assert_eq!((sent, refused, early_queue.count), (14, 6, 30));
        let mut calls = 0;
        let full = |_: SocketHandle, _: Batch<'_>| {
            calls += 1;
            BatchProgress { messages: 2, stop: Some(Stop::Full) }
        };
        let known = |udp_output: RawFd| Some(udp_output as u64);
        assert_eq!(early_queue.send_due_by(MonoTime(2000), &mut Check::new(known), full), 0);
        assert_eq!((calls, early_queue.count), (1, 28), "behind a full socket they wait");
        let all = |_: SocketHandle, batch: Batch<'_>| BatchProgress {
            messages: batch.messages.len(),
            stop: None,
        };
        early_queue.send_due_by(MonoTime(2000), &mut Check::new(known), all);
        assert!(early_queue.is_empty() && early_queue.places.iter().all(|&count| count == 0));
    }
}
