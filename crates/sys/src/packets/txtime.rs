//! `SO_TXTIME`: a packet port that gives datagrams to the kernel a little early, each with its
//! transmit time.
//!
//! Promise: none leaves early. A datagram by a device with the queueing discipline `fq` leaves at
//! its own time, within any tick; every other one is kept here, and leaves by the tick. The number
//! under way never exceeds the limit of `fq` for one flow, because `fq` silently drops packets
//! above it; further ones are kept here as well. Datagrams of one UDP output to one address leave
//! in order. The argument: `docs/design/packets.md`.
//!
//! `etf` is not used: it drops packets that are slightly late, and uses another clock (TAI).

mod timed;

use std::collections::VecDeque;
use std::io;

use tactus_core::ports::{Batch, BatchProgress, FilePart, Message, PacketPort, SocketHandle, Stop};
use tactus_core::units::{MonoTime, Nanos};

use self::timed::TimedDevices;
use crate::packets::directions::{self, Direction, Directions, FEW, Key, Resolution, RouteQuery};
use crate::packets::early_queue::{EarlyQueue, EnqueueResult, OfferResult};
use crate::packets::udp_output::{Cutting, UdpLink, cookie, set_time};

/// The port; its handles are file descriptors of UDP outputs.
pub struct TxtimeLink {
    udp: UdpLink,
    directions: Directions,
    early_queue: EarlyQueue,
    /// Transmit times of the datagrams under way, in the order of sending.
    under_way: VecDeque<MonoTime>,
    under_way_max: usize,
    /// Kept datagrams may have become ready for the kernel.
    may_hand_over: bool,
    tick: Nanos,
}

/// Tolerated delay of the sender, beyond the tick, with which everything is still sent to the
/// kernel before its time.
const LATE: Nanos = Nanos::from_micros(500);
/// Time after which a datagram no longer counts as under way: the delay of `fq`'s timer
/// (`timer_slack`), and more.
const LEAVES: Nanos = Nanos::from_micros(250);
/// Limit of datagrams under way, whatever the limit of `fq`: 1.5 ms of 28 Gbit/s.
const UNDER_WAY_MAX: usize = 4096;

impl TxtimeLink {
    /// Opens the port, for a sender with one turn in a `tick`, and this number of destinations.
    ///
    /// # Errors
    /// If no device keeps packets until their time; errors of the kernel.
    pub fn open(tick: Nanos, destinations: usize) -> io::Result<Self> {
        let mut timed = TimedDevices::new(ahead(tick))?;
        let Some(kept) = timed.kept() else {
            let why = "no device has the queueing discipline fq (tc qdisc)";
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        };
        // A third is left to other senders that may share a flow.
        let under_way_max = (kept - kept / 3).min(UNDER_WAY_MAX);
        let find = move |question: &RouteQuery| {
            let (routes, devices) = timed.look();
            give_times(directions::find(routes, devices, question), question)
        };
        Self::with(tick, under_way_max, Directions::new(destinations, find)?)
    }

    /// The same on the unchanged loopback, which keeps no times: for measurements and tests.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn on_loopback(tick: Nanos) -> io::Result<Self> {
        let find = |question: &RouteQuery| give_times(directions::find_here(question), question);
        Self::with(tick, UNDER_WAY_MAX, Directions::new(FEW, find)?)
    }

    /// The same without any queueing discipline that keeps times: all early datagrams are kept
    /// here.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(crate) fn alone(tick: Nanos) -> io::Result<Self> {
        Self::with(tick, UNDER_WAY_MAX, Directions::new(FEW, |_| Resolution::Elsewhere)?)
    }

    fn with(tick: Nanos, under_way_max: usize, directions: Directions) -> io::Result<Self> {
        Ok(Self {
            udp: UdpLink::with(Cutting::Ours),
            directions,
            early_queue: EarlyQueue::new(),
            under_way: VecDeque::with_capacity(under_way_max),
            under_way_max,
            may_hand_over: false,
            tick,
        })
    }

    /// Processes answers and departures; sends kept datagrams that are due or need not be kept.
    fn look(&mut self, now: MonoTime) {
        self.may_hand_over |= self.directions.take_answers(now);
        while self.under_way.front().is_some_and(|&leaves| leaves + LEAVES < now) {
            self.under_way.pop_front();
            self.may_hand_over = true;
        }
        let Self { udp, directions, early_queue, under_way, under_way_max, may_hand_over, .. } =
            self;
        early_queue.send_due(now, udp);
        if early_queue.is_empty() || !*may_hand_over {
            return;
        }
        *may_hand_over = false;
        early_queue.hand_over(|one| {
            if under_way.len() == *under_way_max {
                return OfferResult::Full;
            }
            if !is_timed(directions, now, one.udp_output, one.key) {
                return OfferResult::Refused;
            }
            let message = Message { to: one.to, segment: one.bytes.len() as u16, parts: 1 };
            let batch = Batch { messages: &[message], parts: &[one.bytes] };
            if udp.send_at(one.udp_output, batch, &[one.due]).stop == Some(Stop::Full) {
                *may_hand_over = true;
                return OfferResult::Full;
            }
            under_way.push_back(one.due);
            OfferResult::Taken
        });
    }

    /// Number of the first messages whose times the kernel keeps, and of their parts.
    fn run(
        &mut self,
        now: MonoTime,
        udp_output: SocketHandle,
        cookie: u64,
        of: &[Message],
    ) -> (usize, usize) {
        let room = self.under_way_max - self.under_way.len();
        let (mut messages, mut parts) = (0, 0);
        for message in of.iter().take(room) {
            let key = Key { cookie, to: message.to.ip() };
            // Also for a message that waits behind others: without a query its route stays unknown.
            if !is_timed(&mut self.directions, now, udp_output, key) {
                break;
            }
            if self.early_queue.has(key) {
                self.may_hand_over = true;
                break;
            }
            messages += 1;
            parts += usize::from(message.parts);
        }
        (messages, parts)
    }

    /// Sends or keeps a message whose time the kernel does not keep. Returns why it stays, if it
    /// stays.
    fn send_one(
        &mut self,
        now: MonoTime,
        udp_output: SocketHandle,
        cookie: u64,
        one: &TimedMessage<'_>,
    ) -> Option<Stop> {
        let to = one.message.to;
        if one.due <= now && !self.early_queue.has(Key { cookie, to: to.ip() }) {
            let batch = Batch { messages: &[one.message], parts: one.parts };
            return self.udp.send(now, udp_output, batch).stop;
        }
        match self.early_queue.keep(udp_output, cookie, to, one.due, one.parts) {
            EnqueueResult::Whole => None,
            // A message that is too long stays where it is.
            EnqueueResult::Full | EnqueueResult::TooLong => Some(Stop::Full),
        }
    }
}

/// Whether the kernel keeps the times of this destination.
fn is_timed(
    directions: &mut Directions,
    now: MonoTime,
    udp_output: SocketHandle,
    key: Key,
) -> bool {
    match directions.look(now, udp_output, key) {
        Direction::Fresh(found) | Direction::Stale(found) => found != Resolution::Elsewhere,
        Direction::Unknown => false,
    }
}

/// The lead of messages of a sender with one turn in a tick.
fn ahead(tick: Nanos) -> Nanos {
    tick + LATE
}

/// Enables transmit times of a UDP output, if its device keeps them.
fn give_times(found: Resolution, question: &RouteQuery) -> Resolution {
    match found {
        Resolution::Elsewhere => Resolution::Elsewhere,
        found if set_time(question.udp_output()).is_ok() => found,
        _ => Resolution::Elsewhere,
    }
}

/// One message and its due time.
struct TimedMessage<'a> {
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

    fn send(&mut self, now: MonoTime, udp_output: SocketHandle, batch: Batch<'_>) -> BatchProgress {
        self.udp.send(now, udp_output, batch)
    }

    fn send_timed(
        &mut self,
        now: MonoTime,
        udp_output: SocketHandle,
        batch: Batch<'_>,
        due: &[MonoTime],
    ) -> BatchProgress {
        // Here too: a batch that stays because of kept datagrams gets no other turn.
        self.look(now);
        let Batch { messages, mut parts } = batch;
        // Not a socket: the send reports the error.
        let Some(cookie) = cookie(udp_output.0) else {
            return self.udp.send(now, udp_output, batch);
        };
        let mut done = 0;
        while let Some(&message) = messages.get(done) {
            let (count, used) = self.run(now, udp_output, cookie, &messages[done..]);
            if count == 0 {
                let (own, behind) = parts.split_at(usize::from(message.parts));
                let one = TimedMessage { message, parts: own, due: due[done] };
                let stop = self.send_one(now, udp_output, cookie, &one);
                if stop.is_some() {
                    return BatchProgress { messages: done, stop };
                }
                (done, parts) = (done + 1, behind);
                continue;
            }
            let (own, behind) = parts.split_at(used);
            let run = Batch { messages: &messages[done..done + count], parts: own };
            let times = &due[done..done + count];
            let gone = self.udp.send_at(udp_output, run, times);
            self.under_way.extend(times[..gone.messages].iter().filter(|&&leaves| leaves > now));
            done += gone.messages;
            if gone.stop.is_some() {
                return BatchProgress { messages: done, stop: gone.stop };
            }
            parts = behind;
        }
        BatchProgress { messages: done, stop: None }
    }

    fn turn(&mut self, now: MonoTime, _until: MonoTime) -> Option<MonoTime> {
        self.look(now);
        // By ticks, as without a queueing discipline that keeps times; not before the next tick, if
        // a socket is full.
        let tick = |at: MonoTime| MonoTime(at.0.div_ceil(self.tick.0) * self.tick.0);
        self.early_queue.next().map(|due| tick(due.max(now + Nanos(1))))
    }

    fn read(&mut self, now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32> {
        self.udp.read(now, part, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::packets::udp_output::{UdpOptions, open};
    use std::net::{SocketAddr, UdpSocket};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::time::Duration;
    use tactus_core::units::{MILLISECOND, SECOND};

    const TICK: Nanos = MILLISECOND;

    fn udp_output(from: &str) -> (OwnedFd, SocketHandle) {
        let from = from.parse().unwrap();
        let options = UdpOptions {
            from,
            interface: None,
            hops: None,
            dscp: 0,
            heard_here: true,
            buffer: 1 << 20,
        };
        let udp_output = open(&options).unwrap();
        let handle = SocketHandle(udp_output.as_raw_fd());
        (udp_output, handle)
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
        assert_eq!(gone, BatchProgress { messages: what.len(), stop: None });
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

    /// Waits until it is known that the kernel keeps the times of this destination.
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
        // For this port, a UDP output without an address of its own is not on the loopback.
        let (_udp_output, by) = udp_output("0.0.0.0");
        let (inbox, to) = inbox();
        let begin = MonoTime(SECOND.0);
        let (first, second) = (begin + Nanos(300_000), begin + Nanos(1_300_000));
        give(&mut link, begin, by, to, &[(1, first), (2, second)]);
        assert_eq!(link.turn(first.before(Nanos(1)), first), Some(begin + TICK));
        assert_eq!(take(&inbox), None, "it is early");
        assert_eq!(link.turn(begin + TICK, second), Some(begin + TICK.times(2)));
        assert_eq!((wait(&inbox), take(&inbox)), (1, None));
        // A due datagram is kept as long as one before it is kept.
        give(&mut link, second.before(Nanos(1)), by, to, &[(3, begin)]);
        assert_eq!(take(&inbox), None, "it has overtaken another");
        assert_eq!(link.turn(begin + TICK.times(2), second), None);
        assert_eq!((wait(&inbox), wait(&inbox)), (2, 3));
        give(&mut link, begin + SECOND, by, to, &[(4, begin)]);
        assert_eq!(wait(&inbox), 4);
    }

    /// The loopback keeps no times, so datagrams arrive at once.
    #[test]
    fn what_the_kernel_keeps_the_time_of_is_given_to_it_early_and_not_too_much() {
        let mut link = TxtimeLink::on_loopback(TICK).unwrap();
        link.under_way_max = 2;
        let (_udp_output, by) = udp_output("127.0.0.1");
        let (inbox, to) = inbox();
        let begin = clock::now();
        let at = |millis: u64| begin + MILLISECOND.times(millis);
        // The route is unknown: the datagram is kept until it is known.
        give(&mut link, begin, by, to, &[(1, at(50))]);
        assert_eq!(take(&inbox), None, "it was given with a time that may mean nothing");
        settle(&mut link, begin, by, to);
        give(&mut link, begin, by, to, &[(2, at(60)), (3, at(70)), (4, at(80))]);
        assert_eq!((wait(&inbox), wait(&inbox), take(&inbox)), (1, 2, None));
        assert_eq!(link.early_queue.next(), Some(at(70)));
        // When the first of them has left there is room for one, and then for the last.
        let later = at(50) + LEAVES + Nanos(1);
        link.turn(later, later);
        assert_eq!((wait(&inbox), take(&inbox), link.early_queue.next()), (3, None, Some(at(80))));
        let later = at(60) + LEAVES + Nanos(1);
        assert_eq!(link.turn(later, later), None);
        assert_eq!((wait(&inbox), take(&inbox)), (4, None));
    }

    /// Looking at all kept datagrams at each turn and each send would cost more than sending them.
    #[test]
    fn what_is_kept_is_looked_at_again_only_when_something_has_changed() {
        let mut link = TxtimeLink::on_loopback(TICK).unwrap();
        let (_udp_output, by) = udp_output("127.0.0.1");
        let (inbox, to) = inbox();
        let begin = clock::now();
        give(&mut link, begin, by, to, &[(1, begin + SECOND)]);
        let end = begin + SECOND.times(60);
        // As before the answer is processed.
        while !link.directions.take_answers(begin) {
            assert!(clock::now() < end, "the question was not answered");
            std::thread::yield_now();
        }
        link.turn(begin, begin);
        assert_eq!((take(&inbox), link.early_queue.next()), (None, Some(begin + SECOND)));
        // Room is a reason to look.
        link.under_way.push_back(begin);
        let later = begin + LEAVES + Nanos(1);
        link.turn(later, later);
        assert_eq!((wait(&inbox), link.early_queue.next()), (1, None));
    }

    #[test]
    fn messages_are_wanted_a_tick_and_some_before_they_are_due() {
        let link = TxtimeLink::on_loopback(TICK).unwrap();
        assert!(link.ahead() >= TICK + LATE && link.segments_max() == 1);
    }
}
