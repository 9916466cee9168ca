//! Routes of datagrams that are sent as frames: device, addresses, and the next hop's link-layer
//! address.
//!
//! Promise: a look-up never blocks and allocates nothing. A separate thread queries the kernel, and
//! answers are valid for a few seconds. A message with a stale answer leaves by the UDP output's
//! socket, so the kernel continues to resolve neighbours, and changed routes are noticed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tactus_core::ports::SocketHandle;
use tactus_core::units::{MonoTime, Nanos, SECOND};
use tactus_ring::spsc::{Consumer, Producer, ring};

use crate::packets::frame::{Mac, Route, mac_of_group};
use crate::packets::routes::{Device, Routes};
use crate::packets::udp_output::{cookie, group_interface, option};
use crate::waker::{Sleeper, Waker, waker};

/// The known destinations of a port.
pub(crate) struct Directions {
    known: Vec<CacheEntry>,
    /// At this number, unused destinations are removed.
    known_max: usize,
    /// Index in `known` of each destination, by its hash: small, so a look-up costs little memory.
    places: Box<[u16]>,
    questions: Producer<RouteQuery>,
    answers: Consumer<Answer>,
    resolver: Resolver,
}

/// The answer for a destination, and its validity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// The first query is under way.
    Unknown,
    /// The answer is valid.
    Fresh(Resolution),
    /// The answer has expired and is queried again: this one message leaves by the UDP output's own
    /// socket.
    Stale(Resolution),
}

/// The route to a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resolution {
    /// By frames of this kind.
    Direct(Route),
    /// By one of the port's devices, but the next hop's address is unknown yet: by the UDP output's
    /// own socket.
    Unresolved,
    /// Only by the UDP output's own socket.
    Elsewhere,
}

/// A UDP output, by its unique cookie, and an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub(crate) cookie: u64,
    pub(crate) to: IpAddr,
}

impl Key {
    /// Hashes keys to places: one multiplication for each word.
    pub(crate) fn hash(&self) -> usize {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let address = match self.to {
            IpAddr::V4(to) => u64::from(to.to_bits()),
            IpAddr::V6(to) => (to.to_bits() >> 64) as u64 ^ to.to_bits() as u64,
        };
        let mixed = (address.wrapping_mul(ODD) ^ self.cookie).wrapping_mul(ODD);
        (mixed >> 40) as usize
    }
}

#[derive(Clone, Copy)]
struct CacheEntry {
    key: Key,
    found: Option<Resolution>,
    until: MonoTime,
    is_asked: bool,
}

/// A query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteQuery {
    udp_output: RawFd,
    key: Key,
}

impl RouteQuery {
    /// The UDP output of the datagrams.
    pub(crate) fn udp_output(&self) -> SocketHandle {
        SocketHandle(self.udp_output)
    }
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    key: Key,
    found: Resolution,
}

/// Number of destinations of a measurement.
pub(crate) const FEW: usize = 64;
/// Limits of known destinations: the upper one from their small indices; the lower one for any
/// requested number.
const KNOWN: RangeInclusive<usize> = FEW..=32_768;
const NOBODY: u16 = u16::MAX;
const _: () = assert!(*KNOWN.end() <= NOBODY as usize);
/// Limit of an answer's validity. The kernel removes a neighbour after 30 s at the earliest.
const VALID_FOR: Nanos = SECOND.times(5);
/// Limit of queries under way.
const QUESTIONS: usize = 256;

impl Directions {
    /// Starts empty, for this number of destinations. `find` runs on a separate thread.
    pub(crate) fn new(
        destinations: usize,
        find: impl FnMut(&RouteQuery) -> Resolution + Send + 'static,
    ) -> io::Result<Self> {
        let (questions, asked) = ring(QUESTIONS);
        let (answered, answers) = ring(QUESTIONS);
        let resolver = Resolver::start(asked, answered, find)?;
        // A quarter more for destinations that have just ended.
        let known_max = (destinations + destinations / 4).clamp(*KNOWN.start(), *KNOWN.end());
        let known = Vec::with_capacity(known_max);
        // Twice as many places, so that look-ups stay short.
        let places = vec![NOBODY; 2 * known_max.next_power_of_two()].into_boxed_slice();
        Ok(Self { known, known_max, places, questions, answers, resolver })
    }

    /// The answer for a destination; sends a query if it is unknown.
    pub(crate) fn look(&mut self, now: MonoTime, udp_output: SocketHandle, key: Key) -> Direction {
        let mut place = self.place(&key);
        let known = self.known.get(usize::from(self.places[place])).copied();
        if known.is_none() && self.known.len() >= self.known_max {
            self.make_room(now);
            place = self.place(&key);
        }
        match known {
            Some(CacheEntry { found: Some(found), until, .. }) if now < until => {
                return Direction::Fresh(found);
            }
            Some(known) if known.is_asked => return known.stale(),
            _ => {}
        }
        let valid_until = known.and_then(CacheEntry::valid_until);
        // Room comes with the answers. Until then a message must not cost more than was promised;
        // otherwise many simultaneous queries keep each other, and the answering thread, from the
        // core.
        if self.questions.push(RouteQuery { udp_output: udp_output.0, key }).is_err() {
            return match (known, valid_until) {
                (Some(known), Some(until)) if now < until + VALID_FOR => known.fresh(),
                (Some(known), _) => known.stale(),
                (None, _) => Direction::Unknown,
            };
        }
        let found = known.and_then(|known| known.found);
        // A known route past the kernel stays valid until the answer comes.
        let until = valid_until.map_or(now, |until| until + VALID_FOR);
        self.set(place, CacheEntry { key, found, until, is_asked: true });
        self.resolver.waker.wake();
        known.map_or(Direction::Unknown, CacheEntry::stale)
    }

    /// Loads the memory that [`look`](Self::look) reads, for many keys at once. The number has no
    /// meaning.
    pub(crate) fn look_up(&self, key: &Key) -> u64 {
        let place = usize::from(self.places[self.first_place(key)]);
        self.known.get(place).map_or(0, |known| known.key.cookie ^ known.until.0)
    }

    /// Processes the answers. Returns whether there were any.
    pub(crate) fn take_answers(&mut self, now: MonoTime) -> bool {
        let mut has_come = false;
        while let Some(Answer { key, found }) = self.answers.pop() {
            let place = self.place(&key);
            // It may have been removed meanwhile.
            if let Some(known) = self.known.get_mut(usize::from(self.places[place])) {
                let until = now + valid_for(&key);
                *known = CacheEntry { key, found: Some(found), until, is_asked: false };
            }
            has_come = true;
        }
        has_come
    }

    fn set(&mut self, place: usize, known: CacheEntry) {
        match self.known.get_mut(usize::from(self.places[place])) {
            Some(own) => *own = known,
            None => {
                self.places[place] = self.known.len() as u16;
                self.known.push(known);
            }
        }
    }

    /// Removes destinations without a look-up since their answer expired; all, if there is none.
    fn make_room(&mut self, now: MonoTime) {
        self.known.retain(|known| known.is_asked || now < known.until + VALID_FOR);
        if self.known.len() >= self.known_max {
            self.known.clear();
        }
        self.places.fill(NOBODY);
        for nth in 0..self.known.len() {
            let place = self.place(&self.known[nth].key);
            self.places[place] = nth as u16;
        }
    }

    /// The place of `key`, or the place for it.
    fn place(&self, key: &Key) -> usize {
        let mut place = self.first_place(key);
        while self.known.get(usize::from(self.places[place])).is_some_and(|it| it.key != *key) {
            place = (place + 1) & (self.places.len() - 1);
        }
        place
    }

    /// The preferred place of `key`; the number of places is a power of two.
    fn first_place(&self, key: &Key) -> usize {
        key.hash() & (self.places.len() - 1)
    }
}

/// Validity of an answer. It varies by key; otherwise streams that began together would send their
/// queries together for ever.
fn valid_for(key: &Key) -> Nanos {
    const PARTS: u64 = 1024;
    Nanos(VALID_FOR.0 / 2 + VALID_FOR.0 / 2 / PARTS * (key.hash() as u64 % PARTS))
}

impl CacheEntry {
    /// The end of the validity of a route past the kernel, if one is known.
    fn valid_until(self) -> Option<MonoTime> {
        matches!(self.found, Some(Resolution::Direct(_))).then_some(self.until)
    }

    fn fresh(self) -> Direction {
        self.found.map_or(Direction::Unknown, Direction::Fresh)
    }

    fn stale(self) -> Direction {
        self.found.map_or(Direction::Unknown, Direction::Stale)
    }
}

/// The thread that queries the kernel, so that no other thread blocks.
struct Resolver {
    waker: Waker,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Resolver {
    fn start(
        mut asked: Consumer<RouteQuery>,
        mut answered: Producer<Answer>,
        mut find: impl FnMut(&RouteQuery) -> Resolution + Send + 'static,
    ) -> io::Result<Self> {
        let (waker, mut sleeper): (Waker, Sleeper) = waker()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stopping);
        let body = move || {
            while !stops.load(Ordering::Acquire) {
                while let Some(question) = asked.pop() {
                    let answer = Answer { key: question.key, found: find(&question) };
                    // There is room for as many answers as queries. The receiver may have gone.
                    if answered.push(answer).is_err() {
                        break;
                    }
                }
                sleeper.wait_until(None);
            }
        };
        let thread = std::thread::Builder::new().name("tactus-routes".to_owned()).spawn(body)?;
        Ok(Self { waker, stopping, thread: Some(thread) })
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported its panic.
            drop(thread.join());
        }
    }
}

/// The kernel's routing decision for a datagram of a UDP output to an address.
pub(crate) fn find(routes: &mut Routes, devices: &[Device], question: &RouteQuery) -> Resolution {
    try_find(routes, devices, question).unwrap_or(Resolution::Elsewhere)
}

fn try_find(routes: &mut Routes, devices: &[Device], question: &RouteQuery) -> Option<Resolution> {
    let RouteQuery { udp_output, key: Key { cookie: wanted, to } } = *question;
    // Only the message carries the link of such an address.
    if matches!(to, IpAddr::V6(to) if to.is_unicast_link_local()) {
        return None;
    }
    let own = own_address(udp_output)?;
    let is_group = to.is_multicast();
    let (level, hops, heard_here, class) = match to {
        IpAddr::V4(_) => {
            let hops = if is_group { libc::IP_MULTICAST_TTL } else { libc::IP_TTL };
            (libc::IPPROTO_IP, hops, libc::IP_MULTICAST_LOOP, libc::IP_TOS)
        }
        IpAddr::V6(_) => {
            let hops = if is_group { libc::IPV6_MULTICAST_HOPS } else { libc::IPV6_UNICAST_HOPS };
            (libc::IPPROTO_IPV6, hops, libc::IPV6_MULTICAST_LOOP, libc::IPV6_TCLASS)
        }
    };
    let number = |name| option(udp_output, level, name, 0i32);
    let (hops, class) = (number(hops)?, number(class)?);
    let interface = match to {
        _ if !is_group => None,
        IpAddr::V4(_) => group_interface(wanted),
        IpAddr::V6(_) => {
            number(libc::IPV6_MULTICAST_IF).and_then(|index| u32::try_from(index).ok())
        }
    };
    let interface = interface.filter(|&index| index != 0);
    let hop = routes.hop(to, Some(own.ip()), interface).ok()??;
    // Frames are not looped back to members on this host. For IPv6 the kernel does not report
    // members.
    let comes_back = hop.is_heard_here || to.is_ipv6();
    if is_group && comes_back && number(heard_here)? != 0 {
        return None;
    }
    let device = devices.iter().position(|device| device.index == hop.device)?;
    let to_mac: Mac = match mac_of_group(to) {
        Some(mac) => mac,
        None => match routes.neighbour(hop.device, hop.next).ok()? {
            Some(mac) => mac,
            None => return Some(Resolution::Unresolved),
        },
    };
    let from = match own.ip() {
        any if any.is_unspecified() => hop.from?,
        bound => bound,
    };
    // The number may belong to another UDP output by now.
    (cookie(udp_output) == Some(wanted)).then_some(Resolution::Direct(Route {
        device: device as u8,
        to_mac,
        from_mac: devices[device].mac,
        from: SocketAddr::new(from, own.port()),
        hops: u8::try_from(hops).ok()?,
        class: u8::try_from(class).ok()?,
        mtu: devices[device].mtu,
    }))
}

/// The same for the loopback as the only device: it reaches every UDP output with an address of its
/// own.
pub(crate) fn find_here(question: &RouteQuery) -> Resolution {
    let own = own_address(question.udp_output)
        .filter(|own| own.is_ipv4() == question.key.to.is_ipv4() && !own.ip().is_unspecified());
    let (to_mac, from_mac) = ([0; 6], [0; 6]);
    let route = |from| Route { device: 0, to_mac, from_mac, from, hops: 1, class: 0, mtu: 1500 };
    own.map_or(Resolution::Elsewhere, |own| Resolution::Direct(route(own)))
}

fn own_address(udp_output: RawFd) -> Option<SocketAddr> {
    if udp_output < 0 {
        return None;
    }
    // SAFETY: the descriptor is borrowed for this call; a closed one is an error and not a danger.
    let udp_output = unsafe { std::os::fd::BorrowedFd::borrow_raw(udp_output) };
    rustix::net::getsockname(udp_output).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use std::net::Ipv4Addr;
    use std::sync::atomic::AtomicU64;

    const UDP_OUTPUT: SocketHandle = SocketHandle(-1);

    fn ask(directions: &mut Directions, now: MonoTime, to: u32) -> Direction {
        directions.look(now, UDP_OUTPUT, Key { cookie: 1, to: IpAddr::V4(Ipv4Addr::from_bits(to)) })
    }

    fn wait(directions: &mut Directions, now: MonoTime, to: u32, wanted: Direction) {
        let end = clock::now() + SECOND.times(60);
        while ask(directions, now, to) != wanted {
            assert!(clock::now() < end, "the question was not answered");
            std::thread::yield_now();
            directions.take_answers(now);
        }
    }

    #[test]
    fn an_answer_holds_and_is_then_asked_for_again() {
        let mut directions = Directions::new(4096, |_| Resolution::Unresolved).unwrap();
        let begin = MonoTime(SECOND.0);
        assert_eq!(ask(&mut directions, begin, 7), Direction::Unknown);
        wait(&mut directions, begin, 7, Direction::Fresh(Resolution::Unresolved));
        let end = begin + VALID_FOR;
        assert_eq!(ask(&mut directions, end, 7), Direction::Stale(Resolution::Unresolved));
        wait(&mut directions, end, 7, Direction::Fresh(Resolution::Unresolved));
    }

    #[test]
    fn of_as_many_destinations_as_were_said_all_stay_known() {
        for destinations in [1_000, 8_192] {
            let asked = Arc::new(AtomicU64::new(0));
            let count = Arc::clone(&asked);
            let mut directions = Directions::new(destinations as usize, move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                route()
            })
            .unwrap();
            let begin = MonoTime(SECOND.0);
            // In turns, in the order of streams.
            for _ in 0..3 {
                for to in 0..destinations {
                    wait(&mut directions, begin, to, Direction::Fresh(route()));
                }
            }
            assert_eq!(asked.load(Ordering::Relaxed), u64::from(destinations));
        }
    }

    #[test]
    fn destinations_beyond_those_that_there_is_room_for_are_asked_again() {
        let mut directions = Directions::new(4096, |_| Resolution::Elsewhere).unwrap();
        let known_max = directions.known_max;
        for nth in 0..(known_max as u32 + 500) {
            let key = Key { cookie: 1, to: IpAddr::V4(nth.into()) };
            while ask(&mut directions, clock::now(), nth) == Direction::Unknown && {
                let place = directions.place(&key);
                directions.places[place] == NOBODY
            } {
                directions.take_answers(clock::now());
            }
            assert!(directions.known.len() <= known_max);
        }
    }

    #[test]
    fn those_that_have_ended_make_room_for_others_and_the_others_stay() {
        let mut directions = Directions::new(800, |_| route()).unwrap();
        let begin = MonoTime(SECOND.0);
        let later = begin + SECOND.times(20);
        (0..300).for_each(|to| wait(&mut directions, begin, to, Direction::Fresh(route())));
        (300..1000).for_each(|to| wait(&mut directions, later, to, Direction::Fresh(route())));
        assert_eq!(directions.known.len(), directions.known_max);
        wait(&mut directions, later, 1000, Direction::Fresh(route()));
        assert_eq!(directions.known.len(), 701);
        let mut ask = |to| ask(&mut directions, later, to);
        assert!((300..=1000).all(|to| ask(to) == Direction::Fresh(route())));
        assert_eq!(ask(0), Direction::Unknown);
    }

    /// A route past the kernel.
    fn route() -> Resolution {
        let from = "192.0.2.1:9".parse().unwrap();
        let (to_mac, from_mac) = ([1; 6], [2; 6]);
        Resolution::Direct(Route {
            device: 0,
            to_mac,
            from_mac,
            from,
            hops: 1,
            class: 0,
            mtu: 1500,
        })
    }

    #[test]
    fn destinations_that_began_together_do_not_ask_together() {
        let mut directions = Directions::new(4096, |_| route()).unwrap();
        let begin = MonoTime(SECOND.0);
        (0..1000).for_each(|to| wait(&mut directions, begin, to, Direction::Fresh(route())));
        let fresh: Vec<usize> = (0..=50)
            .map(|tenths| begin + Nanos::from_millis(100).times(tenths))
            .map(|now| directions.known.iter().filter(|known| now < known.until).count())
            .collect();
        assert_eq!((fresh[24], fresh[50]), (1000, 0), "each holds for 2.5 to 5 s");
        let asked = fresh.windows(2).map(|pair| pair[0] - pair[1]).max();
        assert!(asked < Some(80), "{asked:?} in a tenth of a second");
    }

    #[test]
    fn those_that_cannot_be_asked_for_yet_hold_on() {
        let (sender, answers) = std::sync::mpsc::channel::<()>();
        let is_held = Arc::new(AtomicBool::new(false));
        let valid_for = Arc::clone(&is_held);
        let mut directions = Directions::new(4096, move |_| {
            if valid_for.load(Ordering::Relaxed) {
                // Until the other end is dropped.
                answers.recv().unwrap_err();
            }
            route()
        })
        .unwrap();
        let begin = MonoTime(SECOND.0);
        (0..1000).for_each(|to| wait(&mut directions, begin, to, Direction::Fresh(route())));
        is_held.store(true, Ordering::Relaxed);
        let later = begin + VALID_FOR;
        let mut stale = |now| {
            let looks = (0..1000).map(|to| ask(&mut directions, now, to));
            looks.filter(|&look| look == Direction::Stale(route())).count()
        };
        let asked = stale(later);
        assert!(asked < 2 * QUESTIONS, "{asked} leave by the kernel, and are asked for");
        assert!(stale(later) <= 1, "nobody else, however often");
        assert_eq!(stale(later + VALID_FOR.times(2)), 1000, "but not for ever");
        drop(sender);
    }
}
