//! `SO_TXTIME`: a packet port whose datagrams are given to the kernel a little early, each with the time at which it
//! leaves.
//!
//! Promise: none leaves early. One that goes by a device whose queueing discipline is `fq` leaves at its own time, in
//! whichever tick that lies; every other is kept here, and leaves by the tick. Never more are under way than `fq` keeps
//! of one flow, since it throws away what is more and tells nobody; what is more is kept here as well. Datagrams of one
//! outlet to one address leave in their order. The argument: `docs/design/packets.md`.
//!
//! `etf` is not used: it throws away what is a little late, and counts in another clock (TAI).

mod timed;

use std::collections::VecDeque;
use std::io;

use tactus_core::ports::{Batch, FilePart, Gone, Message, PacketPort, SocketHandle, Stop};
use tactus_core::units::{MonoTime, Nanos};

use self::timed::Timed;
use crate::packets::directions::{self, Direction, Directions, FEW, Found, Key, Question};
use crate::packets::held::{Held, Kept, Offered};
use crate::packets::outlet::{Cutting, UdpLink, cookie, set_time};

/// The port; its handles are file descriptors of outlets.
pub struct TxtimeLink {
    udp: UdpLink,
    directions: Directions,
    held: Held,
    /// When those leave that were given early, in the order in which they were given.
    under_way: VecDeque<MonoTime>,
    under_way_max: usize,
    /// What is kept here might be handed over now.
    may_hand_over: bool,
    tick: Nanos,
}

/// How late whoever sends may be, beyond the tick, so that everything is still given before its time.
const LATE: Nanos = Nanos::from_micros(500);
/// How long after its time a datagram still counts as under way: what `fq`'s timer is late (`timer_slack`), and more.
const LEAVES: Nanos = Nanos::from_micros(250);
/// Most that are under way, whatever `fq` keeps: 1.5 ms of 28 Gbit/s.
const UNDER_WAY_MAX: usize = 4096;

impl TxtimeLink {
    /// The port, for whoever sends once in a `tick`, to so many destinations.
    ///
    /// # Errors
    /// When no device keeps packets until their time; what the kernel says.
    pub fn open(tick: Nanos, destinations: usize) -> io::Result<Self> {
        let mut timed = Timed::new(ahead(tick))?;
        let Some(kept) = timed.kept() else {
            let why = "no device has the queueing discipline fq (tc qdisc)";
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        };
        // A third is left to others who may share a flow.
        let under_way_max = (kept - kept / 3).min(UNDER_WAY_MAX);
        let find = move |question: &Question| {
            let (routes, devices) = timed.look();
            give_times(directions::find(routes, devices, question), question)
        };
        Self::with(tick, under_way_max, Directions::new(destinations, find)?)
    }

    /// The same on the loopback as it is, which keeps nothing: to measure and to test with.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn on_loopback(tick: Nanos) -> io::Result<Self> {
        let find = |question: &Question| give_times(directions::find_here(question), question);
        Self::with(tick, UNDER_WAY_MAX, Directions::new(FEW, find)?)
    }

    /// The same, where nothing else keeps the time: all that is given early is kept here.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn alone(tick: Nanos) -> io::Result<Self> {
        Self::with(tick, UNDER_WAY_MAX, Directions::new(FEW, |_| Found::Elsewhere)?)
    }

    fn with(tick: Nanos, under_way_max: usize, directions: Directions) -> io::Result<Self> {
        Ok(Self {
            udp: UdpLink::with(Cutting::Ours),
            directions,
            held: Held::new(),
            under_way: VecDeque::with_capacity(under_way_max),
            under_way_max,
            may_hand_over: false,
            tick,
        })
    }

    /// Sees what is known by now, and what has left; sends what was kept here for too long or needs not be kept.
    fn look(&mut self, now: MonoTime) {
        self.may_hand_over |= self.directions.take_answers(now);
        while self.under_way.front().is_some_and(|&leaves| leaves + LEAVES < now) {
            self.under_way.pop_front();
            self.may_hand_over = true;
        }
        let Self { udp, directions, held, under_way, under_way_max, may_hand_over, .. } = self;
        held.send_due(now, udp);
        if held.is_empty() || !*may_hand_over {
            return;
        }
        *may_hand_over = false;
        held.hand_over(|one| {
            if under_way.len() == *under_way_max {
                return Offered::Full;
            }
            if !is_timed(directions, now, one.outlet, one.key) {
                return Offered::Refused;
            }
            let message = Message { to: one.to, segment: one.bytes.len() as u16, parts: 1 };
            let batch = Batch { messages: &[message], parts: &[one.bytes] };
            if udp.send_at(one.outlet, batch, &[one.due]).stop == Some(Stop::Full) {
                *may_hand_over = true;
                return Offered::Full;
            }
            under_way.push_back(one.due);
            Offered::Taken
        });
    }

    /// How many of the first of these messages the kernel keeps the time of, and how many parts they have.
    fn run(
        &mut self,
        now: MonoTime,
        outlet: SocketHandle,
        cookie: u64,
        of: &[Message],
    ) -> (usize, usize) {
        let room = self.under_way_max - self.under_way.len();
        let (mut messages, mut parts) = (0, 0);
        for message in of.iter().take(room) {
            let key = Key { cookie, to: message.to.ip() };
            // Also of one that waits behind others: who is not asked for is not known.
            if !is_timed(&mut self.directions, now, outlet, key) {
                break;
            }
            if self.held.has(key) {
                self.may_hand_over = true;
                break;
            }
            messages += 1;
            parts += usize::from(message.parts);
        }
        (messages, parts)
    }

    /// Sends a message whose time the kernel does not keep, or keeps it; why not, when it stays.
    fn send_one(
        &mut self,
        now: MonoTime,
        outlet: SocketHandle,
        cookie: u64,
        one: &Sending<'_>,
    ) -> Option<Stop> {
        let to = one.message.to;
        if one.due <= now && !self.held.has(Key { cookie, to: to.ip() }) {
            let batch = Batch { messages: &[one.message], parts: one.parts };
            return self.udp.send(now, outlet, batch).stop;
        }
        match self.held.keep(outlet, cookie, to, one.due, one.parts) {
            Kept::Whole => None,
            // One that is too long has to wait where it is.
            Kept::Full | Kept::TooLong => Some(Stop::Full),
        }
    }
}

/// Whether the kernel keeps the time of what goes there.
fn is_timed(directions: &mut Directions, now: MonoTime, outlet: SocketHandle, key: Key) -> bool {
    match directions.look(now, outlet, key) {
        Direction::Fresh(found) | Direction::Stale(found) => found != Found::Elsewhere,
        Direction::Unknown => false,
    }
}

/// How long before it is due a message is wanted by whoever is asked once in a tick.
fn ahead(tick: Nanos) -> Nanos {
    tick + LATE
}

/// The outlet's datagrams may come with their time, where something keeps it.
fn give_times(found: Found, question: &Question) -> Found {
    match found {
        Found::Elsewhere => Found::Elsewhere,
        found if set_time(question.outlet()).is_ok() => found,
        _ => Found::Elsewhere,
    }
}

/// One message, and when it is due.
struct Sending<'a> {
    message: Message,
    parts: &'a [&'a [u8]],
    due: MonoTime,
}

impl PacketPort for TxtimeLink {
    /// One: each datagram has its own time.
    fn segments_max(&self) -> u32 {
        1
    }

    fn ahead(&self) -> Nanos {
        ahead(self.tick)
    }

    fn send(&mut self, now: MonoTime, outlet: SocketHandle, batch: Batch<'_>) -> Gone {
        self.udp.send(now, outlet, batch)
    }

    fn send_timed(
        &mut self,
        now: MonoTime,
        outlet: SocketHandle,
        batch: Batch<'_>,
        due: &[MonoTime],
    ) -> Gone {
        // Here too: there is no other turn while a batch stays because of those that are kept.
        self.look(now);
        let Batch { messages, mut parts } = batch;
        // No socket at all: it says what is wrong.
        let Some(cookie) = cookie(outlet.0) else { return self.udp.send(now, outlet, batch) };
        let mut done = 0;
        while let Some(&message) = messages.get(done) {
            let (count, used) = self.run(now, outlet, cookie, &messages[done..]);
            if count == 0 {
                let (own, behind) = parts.split_at(usize::from(message.parts));
                let one = Sending { message, parts: own, due: due[done] };
                let stop = self.send_one(now, outlet, cookie, &one);
                if stop.is_some() {
                    return Gone { messages: done, stop };
                }
                (done, parts) = (done + 1, behind);
                continue;
            }
            let (own, behind) = parts.split_at(used);
            let run = Batch { messages: &messages[done..done + count], parts: own };
            let times = &due[done..done + count];
            let gone = self.udp.send_at(outlet, run, times);
            self.under_way.extend(times[..gone.messages].iter().filter(|&&leaves| leaves > now));
            done += gone.messages;
            if gone.stop.is_some() {
                return Gone { messages: done, stop: gone.stop };
            }
            parts = behind;
        }
        Gone { messages: done, stop: None }
    }

    fn turn(&mut self, now: MonoTime, _until: MonoTime) -> Option<MonoTime> {
        self.look(now);
        // By ticks, as datagrams leave where nothing keeps their time; not before the next one, when a socket is full.
        let tick = |at: MonoTime| MonoTime(at.0.div_ceil(self.tick.0) * self.tick.0);
        self.held.next().map(|due| tick(due.max(now + Nanos(1))))
    }

    fn read(&mut self, now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32> {
        self.udp.read(now, part, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::packets::outlet::{Way, open};
    use std::net::{SocketAddr, UdpSocket};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::time::Duration;
    use tactus_core::units::{MILLISECOND, SECOND};

    const TICK: Nanos = MILLISECOND;

    fn outlet(from: &str) -> (OwnedFd, SocketHandle) {
        let from = from.parse().unwrap();
        let way =
            Way { from, interface: None, hops: None, dscp: 0, heard_here: true, buffer: 1 << 20 };
        let outlet = open(&way).unwrap();
        let handle = SocketHandle(outlet.as_raw_fd());
        (outlet, handle)
    }

    fn inbox() -> (UdpSocket, SocketAddr) {
        let inbox = UdpSocket::bind("127.0.0.1:0").unwrap();
        inbox.set_nonblocking(true).unwrap();
        let to = inbox.local_addr().unwrap();
        (inbox, to)
    }

    fn give(
        link: &mut TxtimeLink,
        now: MonoTime,
        by: SocketHandle,
        to: SocketAddr,
        what: &[(u8, MonoTime)],
    ) {
        let messages = vec![Message { to, segment: 100, parts: 1 }; what.len()];
        let bytes: Vec<[u8; 1]> = what.iter().map(|&(byte, _)| [byte]).collect();
        let parts: Vec<&[u8]> = bytes.iter().map(|byte| &byte[..]).collect();
        let due: Vec<MonoTime> = what.iter().map(|&(_, due)| due).collect();
        let batch = Batch { messages: &messages, parts: &parts };
        let gone = link.send_timed(now, by, batch, &due);
        assert_eq!(gone, Gone { messages: what.len(), stop: None });
    }

    fn take(inbox: &UdpSocket) -> Option<u8> {
        let mut byte = [0; 2];
        (inbox.recv(&mut byte).ok() == Some(1)).then_some(byte[0])
    }

    fn wait(inbox: &UdpSocket) -> u8 {
        inbox.set_nonblocking(false).unwrap();
        inbox.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let byte = take(inbox).unwrap();
        inbox.set_nonblocking(true).unwrap();
        byte
    }

    /// Until it is known that the kernel keeps the time of what goes there.
    fn settle(link: &mut TxtimeLink, now: MonoTime, by: SocketHandle, to: SocketAddr) {
        let key = Key { cookie: cookie(by.0).unwrap(), to: to.ip() };
        let end = clock::now() + SECOND.times(60);
        while !is_timed(&mut link.directions, now, by, key) {
            assert!(clock::now() < end, "the question was not answered");
            std::thread::yield_now();
            link.may_hand_over |= link.directions.take_answers(now);
        }
    }

    #[test]
    fn what_nobody_keeps_the_time_of_waits_here_and_leaves_by_the_tick() {
        let mut link = TxtimeLink::on_loopback(TICK).unwrap();
        // An outlet without an address of its own is none of the loopback's, for this port.
        let (_outlet, by) = outlet("0.0.0.0");
        let (inbox, to) = inbox();
        let begin = MonoTime(SECOND.0);
        let (first, second) = (begin + Nanos(300_000), begin + Nanos(1_300_000));
        give(&mut link, begin, by, to, &[(1, first), (2, second)]);
        assert_eq!(link.turn(first.before(Nanos(1)), first), Some(begin + TICK));
        assert_eq!(take(&inbox), None, "it is early");
        assert_eq!(link.turn(begin + TICK, second), Some(begin + TICK.times(2)));
        assert_eq!((wait(&inbox), take(&inbox)), (1, None));
        // One that is due is kept as long as one before it is.
        give(&mut link, second.before(Nanos(1)), by, to, &[(3, begin)]);
        assert_eq!(take(&inbox), None, "it has overtaken another");
        assert_eq!(link.turn(begin + TICK.times(2), second), None);
        assert_eq!((wait(&inbox), wait(&inbox)), (2, 3));
        give(&mut link, begin + SECOND, by, to, &[(4, begin)]);
        assert_eq!(wait(&inbox), 4);
    }

    /// The loopback keeps nothing, so what the kernel is given arrives at once.
    #[test]
    fn what_the_kernel_keeps_the_time_of_is_given_to_it_early_and_not_too_much() {
        let mut link = TxtimeLink::on_loopback(TICK).unwrap();
        link.under_way_max = 2;
        let (_outlet, by) = outlet("127.0.0.1");
        let (inbox, to) = inbox();
        let begin = clock::now();
        let at = |millis: u64| begin + MILLISECOND.times(millis);
        // Nothing is known of the way: it is kept until something is.
        give(&mut link, begin, by, to, &[(1, at(50))]);
        assert_eq!(take(&inbox), None, "it was given with a time that may mean nothing");
        settle(&mut link, begin, by, to);
        give(&mut link, begin, by, to, &[(2, at(60)), (3, at(70)), (4, at(80))]);
        assert_eq!((wait(&inbox), wait(&inbox), take(&inbox)), (1, 2, None));
        assert_eq!(link.held.next(), Some(at(70)));
        // When the first of them has left there is room for one, and then for the last.
        let later = at(50) + LEAVES + Nanos(1);
        link.turn(later, later);
        assert_eq!((wait(&inbox), take(&inbox), link.held.next()), (3, None, Some(at(80))));
        let later = at(60) + LEAVES + Nanos(1);
        assert_eq!(link.turn(later, later), None);
        assert_eq!((wait(&inbox), take(&inbox)), (4, None));
    }

    /// To look at all that is kept, at each turn and each send, would cost more than to send it.
    #[test]
    fn what_is_kept_is_looked_at_again_only_when_something_has_changed() {
        let mut link = TxtimeLink::on_loopback(TICK).unwrap();
        let (_outlet, by) = outlet("127.0.0.1");
        let (inbox, to) = inbox();
        let begin = clock::now();
        give(&mut link, begin, by, to, &[(1, begin + SECOND)]);
        let end = begin + SECOND.times(60);
        // As if nobody had heard the answer.
        while !link.directions.take_answers(begin) {
            assert!(clock::now() < end, "the question was not answered");
            std::thread::yield_now();
        }
        link.turn(begin, begin);
        assert_eq!((take(&inbox), link.held.next()), (None, Some(begin + SECOND)));
        // Room is a reason.
        link.under_way.push_back(begin);
        let later = begin + LEAVES + Nanos(1);
        link.turn(later, later);
        assert_eq!((wait(&inbox), link.held.next()), (1, None));
    }

    #[test]
    fn messages_are_wanted_a_tick_and_some_before_they_are_due() {
        let link = TxtimeLink::on_loopback(TICK).unwrap();
        assert!(link.ahead() >= TICK + LATE && link.segments_max() == 1);
    }
}
