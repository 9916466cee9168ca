//! The packet port over AF_XDP: frames that are written here and leave past the kernel's network stack.
//!
//! Promise: as [`UdpLink`]: a send never waits, messages of one call leave in their order. What AF_XDP cannot
//! reach (this host, devices without Ethernet, addresses that the kernel has not resolved yet) leaves by the outlet's
//! own socket. Every few seconds each destination does once, so that the kernel goes on resolving it, and
//! changes of routes and neighbours are seen.
//!
//! What is bypassed: the host's firewall, its queueing disciplines, its counters of UDP. So nobody gets this
//! without naming it.

mod rings;

use std::io;

use tactus_core::ports::{Batch, FilePart, Gone, Message, PacketPort, SocketHandle, Stop};
use tactus_core::units::MonoTime;

use self::rings::Rings;
use crate::directions::{self, Direction, Directions, Found, Key, Question};
use crate::frame::{self, Route};
use crate::outlet::{UdpLink, cookie};
use crate::routes::Routes;

/// The port; its handles are file descriptors of outlets.
pub struct XdpLink {
    udp: UdpLink,
    /// None when it has failed.
    devices: Vec<Option<Rings>>,
    directions: Directions,
}

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
        let find = move |question: &Question| directions::find(&mut routes, &devices, question);
        Ok(Self { udp: UdpLink::new(), devices: rings, directions: Directions::new(find)? })
    }

    /// Binds the loopback, where all that is sent comes back to this host, when it is IPv6: to measure and to
    /// test with. Of IPv4 the kernel takes no frame that claims to come from this host.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn on_loopback() -> io::Result<Self> {
        let rings = Rings::bind(crate::datagrams::interface("lo")?)?;
        let directions = Directions::new(directions::find_here)?;
        Ok(Self { udp: UdpLink::new(), devices: vec![Some(rings)], directions })
    }

    /// The way past the kernel, when it is known and holds.
    fn route(&mut self, now: MonoTime, outlet: SocketHandle, key: Key) -> Option<Route> {
        let Direction::Fresh(Found::Direct(route)) = self.directions.look(now, outlet, key) else {
            return None;
        };
        self.devices[usize::from(route.device)].is_some().then_some(route)
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
            let pushed = rings.push(|checksum, into| {
                frame::write(route, message.to, own, checksum, into, |mut body| {
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
        self.directions.take_answers(now);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::outlet::{Way, open};
    use std::net::{SocketAddr, UdpSocket};
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
            link.directions.take_answers(now);
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
}
