//! The packet port over AF_XDP: frames that are written here and leave past the kernel's network stack.
//!
//! Promise: as [`UdpLink`]: a send never waits, messages of one call leave in their order. What AF_XDP cannot
//! reach (this host, devices without Ethernet, addresses that the kernel has not resolved yet) leaves by the outlet's
//! own socket. Every few seconds each destination does once, so that the kernel goes on resolving it, and
//! changes of routes and neighbours are seen.
//!
//! What is bypassed: the host's firewall, its queueing disciplines, its counters of UDP. So nobody gets this
//! without naming it.

mod frame;
mod rings;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tactus_core::ports::{Batch, FilePart, Gone, Message, PacketPort, SocketHandle, Stop};
use tactus_core::units::{MonoTime, Nanos, SECOND};
use tactus_ring::spsc::{Consumer, Producer, ring};

use self::frame::{Mac, Route, mac_of_group};
use self::rings::Rings;
use crate::bell::{Bell, Sleeper, bell};
use crate::outlet::{UdpLink, cookie, group_interface, option};
use crate::routes::{Device, Routes};

/// The port; its handles are file descriptors of outlets.
pub struct XdpLink {
    udp: UdpLink,
    /// None when it has failed.
    devices: Vec<Option<Rings>>,
    known: Box<[Option<Known>]>,
    /// How many of them there are.
    count: usize,
    questions: Producer<Question>,
    answers: Consumer<Answer>,
    resolver: Resolver,
}

/// What is known of a destination.
#[derive(Clone, Copy)]
struct Known {
    key: Key,
    state: State,
}

/// An outlet, by what the kernel never gives to two sockets, and an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    cookie: u64,
    to: IpAddr,
}

#[derive(Clone, Copy)]
enum State {
    /// An answer is on its way.
    Asked,
    /// Until then by the outlet's own socket.
    ByKernel(MonoTime),
    /// Until then past it.
    Direct(Route, MonoTime),
}

#[derive(Clone, Copy, Debug)]
struct Question {
    outlet: RawFd,
    key: Key,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    key: Key,
    route: Option<Route>,
}

/// Places for destinations: twice as many as there are, or looking for one takes long. When they are full, all
/// are forgotten and asked again.
const PLACES: usize = 8192;
const KNOWN_MAX: usize = PLACES / 2;
/// How long an answer holds. The kernel forgets a neighbour after 30 s at the earliest.
const HOLDS: Nanos = SECOND.times(5);
/// Questions under way.
const QUESTIONS: usize = 256;
/// Devices that are bound at the start.
const DEVICES_MAX: usize = 16;

impl XdpLink {
    /// Binds every device that carries Ethernet frames, in the network namespace of the caller.
    ///
    /// # Errors
    /// When there is none, or none may be bound: `EPERM` without `CAP_NET_RAW`.
    pub fn new() -> io::Result<Self> {
        let mut routes = Routes::open()?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        let (mut rings, mut devices) = (vec![], vec![]);
        for device in routes.devices()?.into_iter().take(DEVICES_MAX) {
            match Rings::bind(device.index) {
                Ok(bound) => {
                    rings.push(Some(bound));
                    devices.push(device);
                }
                Err(error) => last = error,
            }
        }
        if rings.is_empty() {
            return Err(last);
        }
        Self::with(rings, move |question| find(&mut routes, &devices, question))
    }

    /// Binds the loopback, where all that is sent comes back to this host, when it is IPv6: to measure and to
    /// test with. Of IPv4 the kernel takes no frame that claims to come from this host.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn on_loopback() -> io::Result<Self> {
        let rings = Rings::bind(crate::datagrams::interface("lo")?)?;
        let find = |question: &Question| {
            let own = own_address(question.outlet)?;
            let (to_mac, from_mac) = ([0; 6], [0; 6]);
            let is_right = own.is_ipv4() == question.key.to.is_ipv4() && !own.ip().is_unspecified();
            let route =
                Route { device: 0, to_mac, from_mac, from: own, hops: 1, class: 0, mtu: 1500 };
            is_right.then_some(route)
        };
        Self::with(vec![Some(rings)], find)
    }

    fn with(
        devices: Vec<Option<Rings>>,
        find: impl FnMut(&Question) -> Option<Route> + Send + 'static,
    ) -> io::Result<Self> {
        let (questions, asked) = ring(QUESTIONS);
        let (answered, answers) = ring(QUESTIONS);
        let resolver = Resolver::start(asked, answered, find)?;
        let known = (0..PLACES).map(|_| None).collect();
        Ok(Self { udp: UdpLink::new(), devices, known, count: 0, questions, answers, resolver })
    }

    /// The way past the kernel, when it is known and holds.
    fn route(&mut self, now: MonoTime, outlet: SocketHandle, key: Key) -> Option<Route> {
        let place = self.place(&key);
        match self.known[place].map(|known| known.state) {
            Some(State::Direct(route, until)) if now < until => {
                return self.devices[usize::from(route.device)].is_some().then_some(route);
            }
            Some(State::Asked) => return None,
            Some(State::ByKernel(until)) if now < until => return None,
            _ => {}
        }
        // A full ring of questions: it is asked with the next message.
        if self.questions.push(Question { outlet: outlet.0, key }).is_ok() {
            if self.known[place].is_none() {
                self.count += 1;
            }
            self.known[place] = Some(Known { key, state: State::Asked });
            self.resolver.bell.ring();
        }
        None
    }

    /// Where `key` is, or would be.
    fn place(&mut self, key: &Key) -> usize {
        if self.count >= KNOWN_MAX {
            self.known.fill(None);
            self.count = 0;
        }
        let mut place = hash(key) % PLACES;
        while self.known[place].is_some_and(|known| known.key != *key) {
            place = (place + 1) % PLACES;
        }
        place
    }

    fn take_answers(&mut self, now: MonoTime) {
        while let Some(answer) = self.answers.pop() {
            let place = self.place(&answer.key);
            // It may have been forgotten meanwhile.
            if let Some(known) = &mut self.known[place] {
                let until = now + HOLDS;
                known.state = match answer.route {
                    Some(route) => State::Direct(route, until),
                    None => State::ByKernel(until),
                };
            }
        }
    }

    /// Writes the frames of one message; false when none of them could be.
    fn write(&mut self, route: &Route, message: &Message, parts: &[&[u8]]) -> Written {
        let Some(rings) = &mut self.devices[usize::from(route.device)] else {
            return Written::Unfit;
        };
        let segment = usize::from(message.segment);
        let mut left: usize = parts.iter().map(|part| part.len()).sum();
        if !rings.has_room(left.div_ceil(segment).max(1)) {
            return Written::Full;
        }
        let (mut parts, mut rest): (_, &[u8]) = (parts.iter(), &[]);
        let mut is_first = true;
        while left > 0 || is_first {
            let own = left.min(segment);
            let pushed = rings.push(|into| {
                frame::write(route, message.to, own, into, |mut body| {
                    while !body.is_empty() {
                        if rest.is_empty() {
                            rest = parts.next().expect("as many bytes as were counted");
                            continue;
                        }
                        let (part, behind) = rest.split_at(body.len().min(rest.len()));
                        let (here, after) = body.split_at_mut(part.len());
                        here.copy_from_slice(part);
                        (rest, body) = (behind, after);
                    }
                })
            });
            // All segments are as long as the first, or shorter: the first one tells whether they fit.
            if !pushed {
                assert!(is_first, "room was counted");
                return Written::Unfit;
            }
            is_first = false;
            left -= own;
        }
        Written::Whole
    }

    fn kick(&mut self, device: u8) {
        let device = &mut self.devices[usize::from(device)];
        // Gone, or down. Its frames would fill up the memory and hold up everybody; the sockets know what to say.
        if device.as_mut().is_some_and(|rings| rings.kick().is_err()) {
            *device = None;
        }
    }
}

enum Written {
    Whole,
    /// Frames must come back first.
    Full,
    /// Longer than the device takes, or the device is gone.
    Unfit,
}

impl PacketPort for XdpLink {
    fn segments_max(&self) -> u32 {
        self.udp.segments_max()
    }

    fn send(&mut self, now: MonoTime, outlet: SocketHandle, batch: Batch<'_>) -> Gone {
        self.take_answers(now);
        let Some(cookie) = cookie(outlet.0) else { return self.udp.send(now, outlet, batch) };
        let Batch { messages, mut parts } = batch;
        let mut done = 0;
        let mut dirty: Option<u8> = None;
        let mut stop = None;
        while let Some(message) = messages.get(done) {
            let (own, behind) = parts.split_at(usize::from(message.parts));
            let key = Key { cookie, to: message.to.ip() };
            if let Some(route) = self.route(now, outlet, key) {
                if dirty.is_some_and(|device| device != route.device) {
                    dirty.take().inspect(|&device| self.kick(device));
                }
                match self.write(&route, message, own) {
                    Written::Whole => {
                        dirty = Some(route.device);
                        (done, parts) = (done + 1, behind);
                        continue;
                    }
                    Written::Full => {
                        stop = Some(Stop::Full);
                        break;
                    }
                    Written::Unfit => {}
                }
            }
            // What comes before it on the wire leaves before it.
            dirty.take().inspect(|&device| self.kick(device));
            let one = Batch { messages: &messages[done..=done], parts: own };
            let gone = self.udp.send(now, outlet, one);
            if gone.stop.is_some() {
                stop = gone.stop;
                break;
            }
            (done, parts) = (done + 1, behind);
        }
        // Frames that a full device has kept are kicked with the next batch, or with this one's rest.
        match (dirty, stop) {
            (Some(device), _) => self.kick(device),
            (None, Some(Stop::Full)) => (0..self.devices.len() as u8).for_each(|at| self.kick(at)),
            (None, _) => {}
        }
        Gone { messages: done, stop }
    }

    fn read(&mut self, now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32> {
        self.udp.read(now, part, into)
    }
}

/// Spreads keys over the places: one multiplication for each word.
fn hash(key: &Key) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let address = match key.to {
        IpAddr::V4(to) => u64::from(to.to_bits()),
        IpAddr::V6(to) => (to.to_bits() >> 64) as u64 ^ to.to_bits() as u64,
    };
    let mixed = (address.wrapping_mul(ODD) ^ key.cookie).wrapping_mul(ODD);
    (mixed >> 40) as usize
}

/// The thread that asks the kernel, so that nobody else waits for it.
struct Resolver {
    bell: Bell,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Resolver {
    fn start(
        mut asked: Consumer<Question>,
        mut answered: Producer<Answer>,
        mut find: impl FnMut(&Question) -> Option<Route> + Send + 'static,
    ) -> io::Result<Self> {
        let (bell, mut sleeper): (Bell, Sleeper) = bell()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stopping);
        let body = move || {
            while !stops.load(Ordering::Acquire) {
                while let Some(question) = asked.pop() {
                    let answer = Answer { key: question.key, route: find(&question) };
                    // As many answers fit as questions; who has gone does not take them.
                    if answered.push(answer).is_err() {
                        break;
                    }
                }
                sleeper.wait_until(None);
            }
        };
        let thread = std::thread::Builder::new().name("tactus-routes".to_owned()).spawn(body)?;
        Ok(Self { bell, stopping, thread: Some(thread) })
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // Its panic has been reported by the hook.
            drop(thread.join());
        }
    }
}

/// What the kernel would do with a datagram of an outlet to an address; none when only it can.
fn find(routes: &mut Routes, devices: &[Device], question: &Question) -> Option<Route> {
    let Question { outlet, key: Key { cookie: wanted, to } } = *question;
    let own = own_address(outlet)?;
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
    let number = |name| option(outlet, level, name, 0i32);
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
    // Frames do not come back to members on this host. Of IPv6 the kernel does not say whether there are any.
    let comes_back = hop.is_heard_here || to.is_ipv6();
    if is_group && comes_back && number(heard_here)? != 0 {
        return None;
    }
    let device = devices.iter().position(|device| device.index == hop.device)?;
    let to_mac: Mac = match mac_of_group(to) {
        Some(mac) => mac,
        None => routes.neighbour(hop.device, hop.next).ok()??,
    };
    let from = match own.ip() {
        any if any.is_unspecified() => hop.from?,
        bound => bound,
    };
    // The number may have become another outlet's meanwhile.
    (cookie(outlet) == Some(wanted)).then_some(Route {
        device: device as u8,
        to_mac,
        from_mac: devices[device].mac,
        from: SocketAddr::new(from, own.port()),
        hops: u8::try_from(hops).ok()?,
        class: u8::try_from(class).ok()?,
        mtu: devices[device].mtu,
    })
}

fn own_address(outlet: RawFd) -> Option<SocketAddr> {
    if outlet < 0 {
        return None;
    }
    // SAFETY: the descriptor is borrowed for this call; one that is closed is an error, not a danger.
    let outlet = unsafe { std::os::fd::BorrowedFd::borrow_raw(outlet) };
    rustix::net::getsockname(outlet).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::outlet::{Way, open};
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::Duration;
    use tactus_core::units::MILLISECOND;

    /// Of IPv4 the kernel takes no frame that claims to come from this host, not even on the loopback.
    const LOCAL: &str = "::1";

    /// One at a time has the queue of the loopback.
    static QUEUE: Mutex<()> = Mutex::new(());

    fn link() -> Option<(XdpLink, MutexGuard<'static, ()>)> {
        let turn = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
        match XdpLink::on_loopback() {
            Ok(link) => Some((link, turn)),
            Err(error) => {
                println!("skipped: AF_XDP cannot be had here: {error}");
                None
            }
        }
    }

    /// Sends until the way is known, so that what follows leaves past the kernel.
    fn settle(link: &mut XdpLink, outlet: SocketHandle, to: SocketAddr) {
        let key = Key { cookie: cookie(outlet.0).unwrap(), to: to.ip() };
        for _ in 0..2000 {
            let now = clock::now();
            link.take_answers(now);
            if link.route(now, outlet, key).is_some() {
                return;
            }
            clock::sleep_until(now + MILLISECOND);
        }
        panic!("the question was not answered");
    }

    #[test]
    fn what_leaves_past_the_kernel_arrives_whole_and_in_order() {
        let Some((mut link, _turn)) = link() else { return };
        let from = LOCAL.parse().unwrap();
        let way =
            Way { from, interface: None, hops: None, dscp: 0, heard_here: true, buffer: 1 << 20 };
        let outlet = open(&way).unwrap();
        let handle = SocketHandle(outlet.as_raw_fd());
        let inbox = UdpSocket::bind((from, 0)).unwrap();
        inbox.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let to = inbox.local_addr().unwrap();
        settle(&mut link, handle, to);
        // More than the kernel takes by one call; one of several datagrams, in parts that meet elsewhere.
        let bodies: Vec<Vec<u8>> = (0..70u8).map(|nth| vec![nth; 100 + usize::from(nth)]).collect();
        let mut messages: Vec<Message> =
            bodies.iter().map(|_| Message { to, segment: 1316, parts: 1 }).collect();
        let mut parts: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
        let long = vec![0xab; 2000];
        messages.push(Message { to, segment: 800, parts: 3 });
        parts.extend([&long[..300], &long[300..1700], &long[1700..]]);
        let gone = link.send(clock::now(), handle, Batch { messages: &messages, parts: &parts });
        assert_eq!(gone, Gone { messages: 71, stop: None });
        let mut bytes = [0; 2000];
        let own = crate::outlet::address(&outlet).unwrap();
        for body in &bodies {
            let (len, from) = inbox.recv_from(&mut bytes).unwrap();
            assert_eq!((&bytes[..len], from), (&body[..], own));
        }
        for len in [800, 800, 400] {
            assert_eq!(inbox.recv(&mut bytes).unwrap(), len);
        }
    }

    #[test]
    fn frames_come_back_and_are_used_again() {
        let Some((mut link, _turn)) = link() else { return };
        let from = LOCAL.parse().unwrap();
        let way = Way { from, interface: None, hops: None, dscp: 0, heard_here: true, buffer: 0 };
        let outlet = open(&way).unwrap();
        let handle = SocketHandle(outlet.as_raw_fd());
        let inbox = UdpSocket::bind((from, 0)).unwrap();
        let to = inbox.local_addr().unwrap();
        settle(&mut link, handle, to);
        let mut bytes = [0; 64];
        for nth in 0..5000u32 {
            let body = nth.to_ne_bytes();
            let batch =
                Batch { messages: &[Message { to, segment: 100, parts: 1 }], parts: &[&body] };
            assert_eq!(link.send(clock::now(), handle, batch), Gone { messages: 1, stop: None });
            assert_eq!((inbox.recv(&mut bytes).unwrap(), &bytes[..4]), (4, &body[..]));
        }
    }

    #[test]
    fn what_is_too_long_for_the_device_leaves_by_the_kernel() {
        let Some((mut link, _turn)) = link() else { return };
        let from = LOCAL.parse().unwrap();
        let way =
            Way { from, interface: None, hops: None, dscp: 0, heard_here: true, buffer: 1 << 20 };
        let outlet = open(&way).unwrap();
        let handle = SocketHandle(outlet.as_raw_fd());
        let inbox = UdpSocket::bind((from, 0)).unwrap();
        let to = inbox.local_addr().unwrap();
        settle(&mut link, handle, to);
        let body = vec![7; 4000];
        let batch = Batch { messages: &[Message { to, segment: 4000, parts: 1 }], parts: &[&body] };
        assert_eq!(link.send(clock::now(), handle, batch), Gone { messages: 1, stop: None });
        assert_eq!(inbox.recv(&mut [0; 5000]).unwrap(), 4000);
    }

    #[test]
    fn destinations_beyond_those_that_there_is_room_for_are_asked_again() {
        let Some((mut link, _turn)) = link() else { return };
        for nth in 0..(KNOWN_MAX as u32 + 500) {
            let key = Key { cookie: 1, to: IpAddr::V4(nth.into()) };
            // The questions are answered by nobody who knows such an outlet.
            while link.route(clock::now(), SocketHandle(-1), key).is_none() && {
                let place = link.place(&key);
                link.known[place].is_none()
            } {
                link.take_answers(clock::now());
            }
            assert!(link.count <= KNOWN_MAX);
        }
    }
}
