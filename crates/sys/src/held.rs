//! Datagrams that a port was given early and whose time nobody else keeps.
//!
//! Promise: none leaves early or by a socket that has taken the number of its own; nothing is allocated after the
//! start.

use std::net::SocketAddr;

use tactus_core::ports::{Batch, Message, PacketPort, SocketHandle, Stop};
use tactus_core::units::MonoTime;

use crate::directions::Key;
use crate::outlet::{UdpLink, cookie};

/// They, in the order in which they came.
pub(crate) struct Held {
    slots: Box<[Slot]>,
    bytes: Box<[[u8; LEN_MAX]]>,
    first: usize,
    count: usize,
    /// How many of them go where, by the hash of it.
    places: Box<[u16]>,
}

#[derive(Clone, Copy)]
struct Slot {
    outlet: SocketHandle,
    cookie: u64,
    to: SocketAddr,
    due: MonoTime,
    len: usize,
}

/// Whether there was room for one.
pub(crate) enum Kept {
    Whole,
    /// Others must leave first.
    Full,
    /// There never will be.
    TooLong,
}

/// One that is kept.
pub(crate) struct Early<'a> {
    pub(crate) outlet: SocketHandle,
    pub(crate) key: Key,
    pub(crate) to: SocketAddr,
    pub(crate) due: MonoTime,
    pub(crate) bytes: &'a [u8],
}

/// What became of an offer.
pub(crate) enum Offered {
    Taken,
    /// It stays.
    Refused,
    /// So do all behind it.
    Full,
}

/// The outlet of one that has been handed over.
const NOBODY: SocketHandle = SocketHandle(-1);
/// 2 ms of 2.5 Gbit/s.
const PLACES: usize = 512;
/// Places of destinations: two that share one are held together, which only costs them their own time.
const DESTINATIONS: usize = 1024;
/// A datagram of seven packets and an RTP header is 1,328; what the control side makes may be a little longer.
const LEN_MAX: usize = 2048;

impl Held {
    pub(crate) fn new() -> Self {
        let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
        let empty = Slot { outlet: NOBODY, cookie: 0, to: nobody, due: MonoTime(0), len: 0 };
        let bytes = vec![[0; LEN_MAX]; PLACES].into();
        let places = vec![0; DESTINATIONS].into();
        Self { slots: vec![empty; PLACES].into(), bytes, first: 0, count: 0, places }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether one of them may go there: what goes there too would overtake it.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.count > 0 && self.places[key.hash() % DESTINATIONS] > 0
    }

    /// When the first of them is due.
    pub(crate) fn next(&self) -> Option<MonoTime> {
        (self.count > 0).then(|| self.slots[self.first].due)
    }

    /// Keeps one.
    pub(crate) fn keep(
        &mut self,
        outlet: SocketHandle,
        cookie: u64,
        to: SocketAddr,
        due: MonoTime,
        parts: &[&[u8]],
    ) -> Kept {
        let len = parts.iter().map(|part| part.len()).sum();
        if len > LEN_MAX {
            return Kept::TooLong;
        }
        if self.count == PLACES {
            return Kept::Full;
        }
        let place = (self.first + self.count) % PLACES;
        let mut at = 0;
        for part in parts {
            self.bytes[place][at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.slots[place] = Slot { outlet, cookie, to, due, len };
        self.count += 1;
        self.places[Key { cookie, to: to.ip() }.hash() % DESTINATIONS] += 1;
        Kept::Whole
    }

    /// Offers them to whoever can keep their time now, in order, up to one that it has no room for.
    pub(crate) fn hand_over(&mut self, mut offer: impl FnMut(&Early<'_>) -> Offered) {
        for nth in 0..self.count {
            let place = (self.first + nth) % PLACES;
            let Slot { outlet, cookie: own, to, due, len } = self.slots[place];
            if outlet == NOBODY || cookie(outlet.0) != Some(own) {
                continue;
            }
            let key = Key { cookie: own, to: to.ip() };
            match offer(&Early { outlet, key, to, due, bytes: &self.bytes[place][..len] }) {
                Offered::Taken => {
                    self.places[key.hash() % DESTINATIONS] -= 1;
                    self.slots[place].outlet = NOBODY;
                }
                Offered::Refused => {}
                Offered::Full => break,
            }
        }
        while self.count > 0 && self.slots[self.first].outlet == NOBODY {
            self.pass();
        }
    }

    /// Sends those that are due, up to one that its socket has no room for; how many the kernel refuses.
    pub(crate) fn send_due(&mut self, now: MonoTime, udp: &mut UdpLink) -> u64 {
        let mut refused = 0;
        while self.next().is_some_and(|due| due <= now) {
            let Slot { outlet, cookie: own, to, len, .. } = self.slots[self.first];
            // Its outlet may have been closed, and the number be somebody else's.
            if outlet != NOBODY && cookie(outlet.0) == Some(own) {
                let message = Message { to, segment: len as u16, parts: 1 };
                let batch =
                    Batch { messages: &[message], parts: &[&self.bytes[self.first][..len]] };
                match udp.send(now, outlet, batch).stop {
                    Some(Stop::Full) => return refused,
                    Some(Stop::Refused(_)) => refused += 1,
                    None => {}
                }
            }
            if outlet != NOBODY {
                self.places[Key { cookie: own, to: to.ip() }.hash() % DESTINATIONS] -= 1;
            }
            self.pass();
        }
        refused
    }

    /// The first of them has gone.
    fn pass(&mut self) {
        self.first = (self.first + 1) % PLACES;
        self.count -= 1;
    }
}
