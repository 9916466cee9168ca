//! Packet ports over whole frames, which are written here and bypass a part of the kernel's network
//! stack.
//!
//! Promise: as [`UdpLink`]: a send never blocks, messages of one call leave in order. Destinations
//! that frames cannot reach (this host, devices without Ethernet, addresses that the kernel has not
//! resolved yet) use the UDP output's own socket. Every few seconds each destination uses it once,
//! so that the kernel continues to resolve it, and changes of routes and neighbours are noticed.
//!
//! These ports bypass the host's firewall and its UDP counters; AF_XDP also bypasses the queueing
//! disciplines. So they are used only if the configuration names them.

mod packet_socket;
mod rings;

use std::hint::black_box;
use std::io;

use tactus_core::ports::{Batch, BatchProgress, FilePart, PacketPort, SocketHandle, Stop};
use tactus_core::units::MonoTime;

use self::packet_socket::PacketSocket;
use self::rings::Rings;
use crate::packets::directions::{self, Direction, Directions, FEW, Key, Resolution, RouteQuery};
use crate::packets::frame::Route;
use crate::packets::routes::Routes;
use crate::packets::udp_output::{MESSAGES_MAX, UdpLink, cookie};

/// Frames by AF_XDP.
pub(crate) type XdpLink = FrameLink<Rings>;
/// Frames by a packet socket; messages of several datagrams are segmented behind it.
pub(crate) type PacketSocketLink = FrameLink<PacketSocket>;

/// The port over devices of one kind; its handles are file descriptors of UDP outputs.
pub(crate) struct FrameLink<D> {
    udp: UdpLink,
    /// `None` if the device has failed.
    devices: Vec<Option<D>>,
    directions: Directions,
    /// Routes of messages that leave by one device together.
    routes: Vec<Route>,
}

/// Takes frames of one network device.
pub(crate) trait Device: Send + Sized {
    /// Binds a device by its number.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_RAW`, and errors of the kernel.
    fn bind(index: u32) -> io::Result<Self>;

    /// Sends messages with a route each. Returns the number taken, and why the next one was not.
    fn send(&mut self, routes: &[Route], batch: Batch<'_>) -> (usize, Option<DeviceRefusal>);
}

/// Why a device does not take a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceRefusal {
    /// No room: earlier frames must leave first.
    Room,
    /// The message is too long for the device, or the device cannot segment it.
    Fit,
    /// The device is gone, or down.
    Device,
}

/// Limit of devices that are bound at the start.
const DEVICES_MAX: usize = 16;

impl<D: Device> FrameLink<D> {
    /// Binds every device that carries Ethernet frames, in the network namespace of the caller, for
    /// this number of destinations.
    ///
    /// # Errors
    /// If there is none, or none may be bound: `EPERM` without `CAP_NET_RAW`.
    pub(crate) fn new(destinations: usize) -> io::Result<Self> {
        let mut routes = Routes::open()?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        let (mut bound, mut devices) = (vec![], vec![]);
        for device in routes.devices()?.into_iter().take(DEVICES_MAX) {
            match D::bind(device.index) {
                Ok(one) => {
                    bound.push(Some(one));
                    devices.push(device);
                }
                Err(error) => last = error,
            }
        }
        if bound.is_empty() {
            return Err(last);
        }
        let find = move |question: &RouteQuery| directions::find(&mut routes, &devices, question);
        Ok(Self::over(bound, Directions::new(destinations, find)?))
    }

    /// Binds the loopback, where all IPv6 frames come back to this host: for measurements and
    /// tests. The kernel accepts no IPv4 frame with an address of this host as the source.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn on_loopback() -> io::Result<Self> {
        let device = D::bind(crate::udp_input::interface("lo")?)?;
        Ok(Self::over(vec![Some(device)], Directions::new(FEW, directions::find_here)?))
    }

    fn over(devices: Vec<Option<D>>, directions: Directions) -> Self {
        let routes = Vec::with_capacity(MESSAGES_MAX);
        Self { udp: UdpLink::new(), devices, directions, routes }
    }

    /// The route past the kernel, if it is known and valid.
    fn route(&mut self, now: MonoTime, udp_output: SocketHandle, key: Key) -> Option<Route> {
        let Direction::Fresh(Resolution::Direct(route)) =
            self.directions.look(now, udp_output, key)
        else {
            return None;
        };
        self.devices[usize::from(route.device)].is_some().then_some(route)
    }

    /// Finds the routes of the first messages that leave by one device, into `routes`. Returns
    /// whether the next message has none.
    fn look_ahead(
        &mut self,
        now: MonoTime,
        udp_output: SocketHandle,
        cookie: u64,
        batch: Batch<'_>,
    ) -> bool {
        self.routes.clear();
        let keys = || {
            let messages = batch.messages.iter().take(MESSAGES_MAX);
            messages.map(|message| Key { cookie, to: message.to.ip() })
        };
        // The state of each is cold. Loaded together, the waits overlap.
        black_box(keys().fold(0, |read, key| read ^ self.directions.look_up(&key)));
        let mut before = None;
        for key in keys() {
            // Streams to the ports of one host are common.
            let same = self.routes.last().filter(|_| before == Some(key.to)).copied();
            let Some(route) = same.or_else(|| self.route(now, udp_output, key)) else {
                return true;
            };
            if self.routes.first().is_some_and(|first| first.device != route.device) {
                return false;
            }
            self.routes.push(route);
            before = Some(key.to);
        }
        false
    }

    /// Sends messages with known routes. Returns the number taken, and why not all.
    fn send_direct(&mut self, batch: Batch<'_>) -> (usize, Option<DeviceRefusal>) {
        let Some(&Route { device, .. }) = self.routes.first() else { return (0, None) };
        let (own, _) = split(batch, self.routes.len());
        let place = &mut self.devices[usize::from(device)];
        let Some(bound) = place else { return (0, Some(DeviceRefusal::Device)) };
        let (taken, lack) = bound.send(&self.routes, own);
        // A device that takes no frames would block every stream; the sockets report the reason.
        if lack == Some(DeviceRefusal::Device) {
            *place = None;
        }
        (taken, lack)
    }
}

/// Splits a batch into its first messages and the rest.
fn split(batch: Batch<'_>, messages: usize) -> (Batch<'_>, Batch<'_>) {
    let (first, behind) = batch.messages.split_at(messages);
    let parts: usize = first.iter().map(|message| usize::from(message.parts)).sum();
    let (own, rest) = batch.parts.split_at(parts);
    (Batch { messages: first, parts: own }, Batch { messages: behind, parts: rest })
}

impl<D: Device> PacketPort for FrameLink<D> {
    fn segments_max(&self) -> u32 {
        self.udp.segments_max()
    }

    fn send(&mut self, now: MonoTime, udp_output: SocketHandle, batch: Batch<'_>) -> BatchProgress {
        self.directions.take_answers(now);
        let Some(cookie) = cookie(udp_output.0) else {
            return self.udp.send(now, udp_output, batch);
        };
        let whole = batch.messages.len();
        let mut left = batch;
        while !left.messages.is_empty() {
            let has_none = self.look_ahead(now, udp_output, cookie, left);
            let (taken, lack) = self.send_direct(left);
            (_, left) = split(left, taken);
            if lack == Some(DeviceRefusal::Room) {
                return BatchProgress {
                    messages: whole - left.messages.len(),
                    stop: Some(Stop::Full),
                };
            }
            if lack.is_none() && !has_none {
                continue;
            }
            let (one, behind) = split(left, 1);
            let gone = self.udp.send(now, udp_output, one);
            if gone.stop.is_some() {
                return BatchProgress { messages: whole - left.messages.len(), stop: gone.stop };
            }
            left = behind;
        }
        BatchProgress { messages: whole, stop: None }
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
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::Duration;
    use tactus_core::ports::Message;
    use tactus_core::units::MILLISECOND;

    /// The kernel accepts no IPv4 frame with an address of this host as the source, not even on the
    /// loopback.
    const LOCAL: &str = "::1";

    /// Serialises the use of the loopback's queue.
    static QUEUE: Mutex<()> = Mutex::new(());

    fn link<D: Device>() -> Option<(FrameLink<D>, MutexGuard<'static, ()>)> {
        let turn = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
        match FrameLink::on_loopback() {
            Ok(link) => Some((link, turn)),
            Err(error) => {
                println!("skipped: it cannot be had here: {error}");
                None
            }
        }
    }

    /// Sends until the route is known, so that later messages bypass the kernel.
    fn settle<D: Device>(link: &mut FrameLink<D>, udp_output: SocketHandle, to: SocketAddr) {
        let key = Key { cookie: cookie(udp_output.0).unwrap(), to: to.ip() };
        for _ in 0..2000 {
            let now = clock::now();
            link.directions.take_answers(now);
            if link.route(now, udp_output, key).is_some() {
                return;
            }
            clock::sleep_until(now + MILLISECOND);
        }
        panic!("the question was not answered");
    }

    /// A UDP output, and a receiver that it reaches past the kernel.
    struct Ends {
        udp_output: OwnedFd,
        handle: SocketHandle,
        inbox: UdpSocket,
        to: SocketAddr,
    }

    impl Ends {
        fn of<D: Device>(link: &mut FrameLink<D>) -> Self {
            let from = LOCAL.parse().unwrap();
            let (interface, hops, dscp, heard_here) = (None, None, 0, true);
            let options = UdpOptions { from, interface, hops, dscp, heard_here, buffer: 1 << 20 };
            let udp_output = open(&options).unwrap();
            let handle = SocketHandle(udp_output.as_raw_fd());
            let inbox = UdpSocket::bind((from, 0)).unwrap();
            inbox.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let to = inbox.local_addr().unwrap();
            settle(link, handle, to);
            Self { udp_output, handle, inbox, to }
        }
    }

    #[test]
    fn what_leaves_past_the_kernel_arrives_whole_and_in_order() {
        what_leaves_past_the_kernel_arrives_whole_and_in_order_by::<Rings>();
        what_leaves_past_the_kernel_arrives_whole_and_in_order_by::<PacketSocket>();
    }

    fn what_leaves_past_the_kernel_arrives_whole_and_in_order_by<D: Device>() {
        let Some((mut link, _turn)) = link::<D>() else { return };
        let Ends { udp_output, handle, inbox, to } = Ends::of(&mut link);
        // More than the kernel takes by one call; one message of several datagrams, in parts that
        // do not match the segments.
        let bodies: Vec<Vec<u8>> = (0..70u8).map(|nth| vec![nth; 100 + usize::from(nth)]).collect();
        let mut messages: Vec<Message> =
            bodies.iter().map(|_| Message { to, segment: 1316, parts: 1 }).collect();
        let mut parts: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
        let long = vec![0xab; 2000];
        messages.push(Message { to, segment: 800, parts: 3 });
        parts.extend([&long[..300], &long[300..1700], &long[1700..]]);
        let gone = link.send(clock::now(), handle, Batch { messages: &messages, parts: &parts });
        assert_eq!(gone, BatchProgress { messages: 71, stop: None });
        let mut bytes = [0; 2000];
        let own = crate::packets::udp_output::address(&udp_output).unwrap();
        for body in &bodies {
            let (len, from) = inbox.recv_from(&mut bytes).unwrap();
            assert_eq!((&bytes[..len], from), (&body[..], own));
        }
        for len in [800, 800, 400] {
            assert_eq!(inbox.recv(&mut bytes).unwrap(), len);
        }
    }

    /// Tests the device directly: the fallback to sockets hides its errors from the other tests.
    #[test]
    fn the_device_itself_takes_what_it_may() {
        the_device_itself_takes_what_it_may_by::<Rings>();
        the_device_itself_takes_what_it_may_by::<PacketSocket>();
    }

    fn the_device_itself_takes_what_it_may_by<D: Device>() {
        let Some((mut link, _turn)) = link::<D>() else { return };
        let Ends { udp_output: _udp_output, handle, inbox, to } = Ends::of(&mut link);
        let long = vec![0xcd; 1900];
        let messages = [1000, 700, 1316].map(|segment| Message { to, segment, parts: 1 });
        let parts = [&long[..300], &long[..], &long[..1316]];
        let batch = Batch { messages: &messages, parts: &parts };
        let has_none = link.look_ahead(clock::now(), handle, cookie(handle.0).unwrap(), batch);
        assert!(!has_none);
        assert_eq!(link.send_direct(batch), (3, None));
        let mut bytes = [0; 2000];
        for len in [300, 700, 700, 500, 1316] {
            assert_eq!(inbox.recv(&mut bytes).unwrap(), len);
        }
    }

    #[test]
    fn frames_come_back_and_are_used_again() {
        frames_come_back_and_are_used_again_by::<Rings>();
        frames_come_back_and_are_used_again_by::<PacketSocket>();
    }

    fn frames_come_back_and_are_used_again_by<D: Device>() {
        let Some((mut link, _turn)) = link::<D>() else { return };
        let Ends { udp_output: _udp_output, handle, inbox, to } = Ends::of(&mut link);
        let mut bytes = [0; 64];
        for nth in 0..5000u32 {
            let body = nth.to_ne_bytes();
            let batch =
                Batch { messages: &[Message { to, segment: 100, parts: 1 }], parts: &[&body] };
            assert_eq!(
                link.send(clock::now(), handle, batch),
                BatchProgress { messages: 1, stop: None }
            );
            assert_eq!((inbox.recv(&mut bytes).unwrap(), &bytes[..4]), (4, &body[..]));
        }
    }

    #[test]
    fn what_is_too_long_for_the_device_leaves_by_the_kernel() {
        what_is_too_long_for_the_device_leaves_by_the_kernel_by::<Rings>();
        what_is_too_long_for_the_device_leaves_by_the_kernel_by::<PacketSocket>();
    }

    fn what_is_too_long_for_the_device_leaves_by_the_kernel_by<D: Device>() {
        let Some((mut link, _turn)) = link::<D>() else { return };
        let Ends { udp_output: _udp_output, handle, inbox, to } = Ends::of(&mut link);
        let body = vec![7; 4000];
        let batch = Batch { messages: &[Message { to, segment: 4000, parts: 1 }], parts: &[&body] };
        assert_eq!(
            link.send(clock::now(), handle, batch),
            BatchProgress { messages: 1, stop: None }
        );
        assert_eq!(inbox.recv(&mut [0; 5000]).unwrap(), 4000);
    }
}
