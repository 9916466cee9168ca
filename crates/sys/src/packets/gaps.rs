//! Gap frames: a packet port that keeps one link full, so that the link itself is the clock.
//!
//! Promise: a send never blocks. The frames of a turn are as many bytes apart as their times
//! require. The filler frames are PAUSE frames of IEEE 802.3, annex 31B, with a pause of zero; the
//! first switch does not forward them. Datagrams for other devices are kept until their time and
//! leave by their UDP output's socket; so do all datagrams while the link's device is down or gone,
//! and none is held up. The link's device must carry nothing else, and **a switch must stand behind
//! it**: on a hub, or a cable to another host, all of the filling arrives. The argument:
//! `docs/design/gap-frames.md`.

mod device;
mod ring;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tactus_core::gaps::{Progress, Timeline, WireFraming};
use tactus_core::ports::{Batch, BatchProgress, FilePart, Message, PacketPort, SocketHandle, Stop};
use tactus_core::units::{BitRate, MonoTime, Nanos, SECOND};

use self::device::Device;
use self::ring::{Content, Ring, RingFrame};
use crate::clock;
use crate::packets::directions::{self, Direction, Directions, FEW, Key, Resolution, RouteQuery};
use crate::packets::early_queue::{EarlyQueue, EnqueueResult};
use crate::packets::frame::{self, Checksum, Mac, Route};
use crate::packets::routes::{self, Routes};
use crate::packets::udp_output::{UdpLink, cookie};

/// A link that is kept full.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GapOptions {
    /// Its device.
    pub device: String,
    /// Its exact rate, with all overhead on the wire.
    pub rate: BitRate,
    /// Overhead of each frame on the wire: 24 bytes on an Ethernet; zero if a queueing discipline
    /// is the wire.
    pub overhead: u32,
    /// How far it is filled ahead: longer than the longest delay of the filling thread.
    pub ahead: Nanos,
}

/// The port; its handles are file descriptors of UDP outputs.
pub struct GapLink {
    udp: UdpLink,
    directions: Directions,
    early_queue: EarlyQueue,
    ring: Ring,
    timeline: Timeline,
    /// Bytes of the wire that the device has released.
    sent: u64,
    ahead: Nanos,
    device: Device,
    mac: Mac,
    /// Set while the device is down: no frame is laid until a try succeeds.
    is_down: bool,
    /// When the device is checked or tried again.
    next_look: MonoTime,
    counts: Arc<GapCounters>,
}

/// Counters of a port.
#[derive(Default, Debug)]
pub struct GapCounters {
    /// Frames with datagrams.
    pub frames: AtomicU64,
    /// Filler frames.
    pub gaps: AtomicU64,
    /// Number of times that the wire had run empty.
    pub empty: AtomicU64,
    /// Sum of all delays of the wire behind its rate, in ns.
    pub lost: AtomicU64,
    /// Datagrams that were taken and then could not be sent.
    pub refused: AtomicU64,
}

/// An Ethernet's shortest frame, without its checksum.
const FRAME_MIN: u32 = 60;
const FRAME_MAX: u32 = 1514;
const ETHERNET: u32 = 14;
const _: () = assert!(FRAME_MAX <= ring::FRAME_MAX);
/// Looks per time that is filled ahead.
const LOOKS: u64 = 8;
/// The minimum MTU for datagrams (RFC 791). A device with a smaller one is not used for datagrams;
/// with this one, any gap can be filled.
const MTU_MIN: u32 = 576;
/// Interval of the check of the device's MTU and index.
const DEVICE_LOOK: Nanos = SECOND;
/// Retry interval while the device is down.
const DEVICE_TRY: Nanos = Nanos::from_millis(100);

impl GapLink {
    /// Binds the device, for this number of destinations. `now` is of the clock of the due times.
    ///
    /// # Errors
    /// Errors of the kernel: `EPERM` without `CAP_NET_RAW`; `ENODEV` if the device is no Ethernet,
    /// or not up.
    pub fn open(options: &GapOptions, destinations: usize, now: MonoTime) -> io::Result<Self> {
        let mut routes = Routes::open()?;
        let name = options.device.clone();
        let mut device = device_named(&mut routes, &name)?;
        let (index, mac) = (device.index, device.mac);
        let mut next_look = now + DEVICE_LOOK;
        let find = move |question: &RouteQuery| {
            let now = clock::now();
            if now >= next_look {
                // A missing device has no routes either.
                device = device_named(&mut routes, &name).unwrap_or(device);
                next_look = now + DEVICE_LOOK;
            }
            directions::find(&mut routes, &[device], question)
        };
        Self::with(
            options,
            now,
            (&options.device, index, mac),
            Directions::new(destinations, find)?,
        )
    }

    /// The same on the loopback, which is as fast as the processor: for tests.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn on_loopback(options: &GapOptions, now: MonoTime) -> io::Result<Self> {
        let index = crate::udp_input::interface("lo")?;
        let directions = Directions::new(FEW, directions::find_here)?;
        Self::with(options, now, ("lo", index, [0; 6]), directions)
    }

    fn with(
        options: &GapOptions,
        now: MonoTime,
        (name, index, mac): (&str, u32, Mac),
        directions: Directions,
    ) -> io::Result<Self> {
        let (rate, overhead) = (options.rate, options.overhead);
        let (device, ring) = (Device::named(name)?, Ring::bind(index)?);
        let no_device = || io::Error::from_raw_os_error(libc::ENODEV);
        let frame_max = frame_max(&device, &ring).ok_or_else(no_device)?;
        let wire = WireFraming { rate, overhead, frame_min: FRAME_MIN, frame_max };
        Ok(Self {
            udp: UdpLink::new(),
            directions,
            early_queue: EarlyQueue::new(),
            ring,
            timeline: Timeline::new(wire, now),
            sent: 0,
            ahead: options.ahead,
            device,
            mac,
            is_down: false,
            next_look: now + DEVICE_LOOK,
            counts: Arc::default(),
        })
    }

    /// Its counters.
    pub fn counters(&self) -> Arc<GapCounters> {
        Arc::clone(&self.counts)
    }

    /// Updates the progress of the wire.
    fn look(&mut self, now: MonoTime) {
        let framing = *self.timeline.framing();
        while let Some(len) = self.ring.poll_sent() {
            self.sent += framing.wire(len);
        }
        let under_way = self.ring.oldest().map_or(0, |len| framing.wire(len));
        let was_empty = self.timeline.handle_progress(now, Progress { sent: self.sent, under_way });
        self.counts.empty.fetch_add(u64::from(was_empty), Ordering::Relaxed);
        self.counts.lost.store(self.timeline.lost().0, Ordering::Relaxed);
    }

    /// Passes the laid frames to the kernel, and handles its errors.
    fn kick(&mut self, now: MonoTime) {
        let may_try = if now < self.next_look { !self.is_down } else { self.look_at_device(now) };
        if !may_try {
            return;
        }
        let Err(error) = self.ring.kick() else {
            self.is_down = false;
            return;
        };
        match error.raw_os_error() {
            // The device takes shorter frames than before. Other errors come at the next turn.
            Some(libc::EMSGSIZE) => {
                if self.look_at_device(now) {
                    drop(self.ring.kick());
                }
            }
            // As with any socket; the next turn tries again.
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => {}
            _ => self.handle_down(now),
        }
    }

    /// Reads the device's frame limit, and binds the device if it was created again while it was
    /// down. Returns false if it takes no frames.
    fn look_at_device(&mut self, now: MonoTime) -> bool {
        if self.is_down
            && let Some(index) = self.device.index(self.ring.socket())
        {
            // If the device is unavailable, the kick reports it.
            drop(self.ring.rebind(index));
        }
        let Some(frame_max) = frame_max(&self.device, &self.ring) else {
            self.handle_down(now);
            return false;
        };
        self.next_look = now + if self.is_down { DEVICE_TRY } else { DEVICE_LOOK };
        self.timeline.set_frame_max(frame_max);
        let (mac, counts) = (self.mac, &self.counts);
        let write = |frame: &mut [u8]| write_pause(frame, mac);
        self.ring.replace(frame_max, write, |laid| count_refused(counts, laid));
        true
    }

    /// Handles a device that is down: laid frames do not leave later in one burst, and no stream
    /// waits for them.
    fn handle_down(&mut self, now: MonoTime) {
        self.is_down = true;
        self.next_look = now + DEVICE_TRY;
        let (framing, counts) = (*self.timeline.framing(), &self.counts);
        let mut over = 0;
        self.ring.take_back(|laid| {
            over += framing.wire(laid.len);
            count_refused(counts, laid);
        });
        // Its place on the wire has passed.
        self.sent += over;
    }

    /// Sends the due datagrams that are kept for other devices.
    fn send_held(&mut self, now: MonoTime) {
        let refused = self.early_queue.send_due(now, &mut self.udp);
        self.counts.refused.fetch_add(refused, Ordering::Relaxed);
    }

    /// Fills the wire up to a time; false if there is no room.
    fn fill(&mut self, until: MonoTime) -> bool {
        while let Some(len) = self.timeline.gap(until) {
            if !self.ring.has_room() {
                return false;
            }
            let mac = self.mac;
            self.ring.push(Content::Filling, |frame| {
                write_pause(&mut frame[..len as usize], mac);
                Some(len as usize)
            });
            self.timeline.lay(len);
            self.counts.gaps.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Lays a message onto the wire.
    fn put(&mut self, route: &Route, message: &TimedMessage<'_>) -> Put {
        if !self.fill(message.due) || !self.ring.has_room() {
            return Put::Full;
        }
        let copy = |mut body: &mut [u8]| {
            for part in message.parts {
                let (here, behind) = body.split_at_mut(part.len());
                here.copy_from_slice(part);
                body = behind;
            }
        };
        let payload = message.parts.iter().map(|part| part.len()).sum();
        let to = message.message.to;
        // The MTU may have shrunk since the route was found.
        let mtu = route.mtu.min((self.timeline.framing().frame_max - ETHERNET) as u16);
        let route = &Route { mtu, ..*route };
        let write = |into: &mut [u8]| {
            frame::write(route, to, payload, Checksum::Ours, into, copy).map(|frame| frame.len)
        };
        let Some(len) = self.ring.push(Content::Datagram, write) else { return Put::Unfit };
        self.timeline.lay(len);
        self.counts.frames.fetch_add(1, Ordering::Relaxed);
        Put::Laid
    }

    /// Sends one message by the right path. Returns why it stays, if it stays.
    fn send_one(
        &mut self,
        now: MonoTime,
        udp_output: SocketHandle,
        one: &TimedMessage<'_>,
    ) -> Option<Stop> {
        let Some(cookie) = cookie(udp_output.0) else {
            return self.by_socket(now, udp_output, one);
        };
        let key = Key { cookie, to: one.message.to.ip() };
        match self.directions.look(now, udp_output, key) {
            Direction::Fresh(Resolution::Direct(route)) if !self.is_down => {
                match self.put(&route, one) {
                    Put::Laid => None,
                    Put::Full => Some(Stop::Full),
                    Put::Unfit => self.by_socket(now, udp_output, one),
                }
            }
            // It goes to the same device, behind the laid frames: the right order.
            Direction::Stale(Resolution::Direct(_))
            | Direction::Fresh(Resolution::Unresolved)
            | Direction::Stale(Resolution::Unresolved)
                if !self.is_down =>
            {
                self.by_socket(now, udp_output, one)
            }
            // There is time to wait for the answer.
            Direction::Unknown if now < one.due => Some(Stop::Full),
            Direction::Unknown => self.by_socket(now, udp_output, one),
            // By another device, or by the kernel's choice while the link's device is down.
            Direction::Fresh(_) | Direction::Stale(_) => {
                if one.due <= now && self.early_queue.is_empty() {
                    return self.by_socket(now, udp_output, one);
                }
                match self.early_queue.keep(udp_output, cookie, one.message.to, one.due, one.parts)
                {
                    EnqueueResult::Whole => None,
                    EnqueueResult::Full => Some(Stop::Full),
                    EnqueueResult::TooLong => self.by_socket(now, udp_output, one),
                }
            }
        }
    }

    fn by_socket(
        &mut self,
        now: MonoTime,
        udp_output: SocketHandle,
        one: &TimedMessage<'_>,
    ) -> Option<Stop> {
        let batch = Batch { messages: &[one.message], parts: one.parts };
        self.udp.send(now, udp_output, batch).stop
    }
}

/// The device with this name.
fn device_named(routes: &mut Routes, name: &str) -> io::Result<routes::Device> {
    let index = crate::udp_input::interface(name)?;
    let device = routes.devices()?.into_iter().find(|device| device.index == index);
    device.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
}

/// The longest frame of the device, if it is long enough.
fn frame_max(device: &Device, ring: &Ring) -> Option<u32> {
    let mtu = device.mtu(ring.socket()).filter(|&mtu| mtu >= MTU_MIN)?;
    Some(FRAME_MAX.min(ETHERNET.saturating_add(mtu)))
}

/// Counts a frame that does not leave.
fn count_refused(counts: &GapCounters, laid: RingFrame) {
    let refused = u64::from(laid.content == Content::Datagram);
    counts.refused.fetch_add(refused, Ordering::Relaxed);
}

/// One message and its due time.
struct TimedMessage<'a> {
    message: Message,
    parts: &'a [&'a [u8]],
    due: MonoTime,
}

enum Put {
    Laid,
    /// No room: earlier frames must leave first.
    Full,
    /// Longer than the device's limit.
    Unfit,
}

impl PacketPort for GapLink {
    /// One: each datagram has its own place on the wire.
    fn segments_max(&self) -> u32 {
        1
    }

    fn ahead(&self) -> Nanos {
        self.ahead
    }

    fn send(&mut self, now: MonoTime, udp_output: SocketHandle, batch: Batch<'_>) -> BatchProgress {
        self.send_timed(now, udp_output, batch, &[])
    }

    fn send_timed(
        &mut self,
        now: MonoTime,
        udp_output: SocketHandle,
        batch: Batch<'_>,
        due: &[MonoTime],
    ) -> BatchProgress {
        self.directions.take_answers(now);
        // A batch that stays because of kept datagrams gets no other turn.
        self.send_held(now);
        self.look(now);
        let mut rest = batch.parts;
        let mut gone = BatchProgress { messages: 0, stop: None };
        for (at, &message) in batch.messages.iter().enumerate() {
            let (parts, behind) = rest.split_at(usize::from(message.parts));
            let due = due.get(at).copied().unwrap_or(now);
            gone.stop = self.send_one(now, udp_output, &TimedMessage { message, parts, due });
            if gone.stop.is_some() {
                break;
            }
            (gone.messages, rest) = (at + 1, behind);
        }
        self.kick(now);
        gone
    }

    fn turn(&mut self, now: MonoTime, until: MonoTime) -> Option<MonoTime> {
        self.send_held(now);
        if until <= now {
            // No stream is left.
            return self.early_queue.next();
        }
        self.look(now);
        if !self.is_down {
            self.fill(until);
        }
        self.kick(now);
        let look = now + Nanos(self.ahead.0 / LOOKS);
        Some(self.early_queue.next().map_or(look, |due| due.max(now).min(look)))
    }

    fn read(&mut self, now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32> {
        self.udp.read(now, part, into)
    }
}

/// A PAUSE frame with zero quanta: "go on" (IEEE 802.3, annexes 31A and 31B). Its length fills the
/// gap.
fn write_pause(frame: &mut [u8], from: Mac) {
    frame.fill(0);
    frame[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0x00, 0x00, 0x01]);
    frame[6..12].copy_from_slice(&from);
    frame[12..16].copy_from_slice(&[0x88, 0x08, 0x00, 0x01]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::udp_output::{UdpOptions, open};
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
    use std::time::Duration;
    use tactus_core::units::MILLISECOND;

    const BODY: [u8; 1316] = [0x47; 1316];
    const OPTIONS: GapOptions = GapOptions {
        device: String::new(),
        rate: BitRate(100_000_000),
        overhead: 24,
        ahead: Nanos::from_millis(2),
    };

    fn link(now: MonoTime) -> Option<GapLink> {
        match GapLink::on_loopback(&OPTIONS, now) {
            Ok(link) => Some(link),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                println!("skipped: CAP_NET_RAW is refused here");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn count(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    #[test]
    fn a_pause_frame_asks_for_no_pause() {
        let mut frame = [0xff; 60];
        write_pause(&mut frame, [2, 0, 0, 0, 0, 1]);
        let head = [1, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x88, 0x08, 0, 1, 0, 0];
        assert_eq!(frame[..18], head);
        assert!(frame[18..].iter().all(|&byte| byte == 0));
    }

    /// On the loopback all frames come back, in order, with the number of bytes between them that
    /// their times require.
    #[test]
    fn frames_leave_in_order_with_their_time_between_them() {
        let begin = clock::now();
        let Some(mut link) = link(begin) else { return };
        let from = "::1".parse().unwrap();
        let options =
            UdpOptions { from, interface: None, hops: None, dscp: 0, heard_here: true, buffer: 0 };
        let udp_output = open(&options).unwrap();
        let handle = SocketHandle(udp_output.as_raw_fd());
        let inbox = UdpSocket::bind((from, 0)).unwrap();
        inbox.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let to = inbox.local_addr().unwrap();
        let message = Message { to, segment: 1316, parts: 2 };
        let payloads = [[1u8; 600], [2; 600]];
        let parts = [&payloads[0][..], &BODY[..716], &payloads[1][..], &BODY[..716]];
        let batch = Batch { messages: &[message; 2], parts: &parts };
        // Until the route is known no message is taken. The wire is not filled meanwhile, so the
        // kernel gets nothing.
        let due = [begin + SECOND, begin + SECOND + MILLISECOND];
        let end = clock::now() + SECOND.times(60);
        let asked = [begin + SECOND.times(1000); 2];
        // Once: the next call may find the answer, and fill the wire.
        let gone = link.send_timed(begin, handle, batch, &asked);
        assert_eq!(gone, BatchProgress { messages: 0, stop: Some(Stop::Full) });
        let key = Key { cookie: cookie(udp_output.as_raw_fd()).unwrap(), to: to.ip() };
        while link.directions.look(begin, handle, key) == Direction::Unknown {
            assert!(clock::now() < end, "the question was not answered");
            std::thread::yield_now();
            link.directions.take_answers(begin);
        }
        // As after a second.
        let now = begin + SECOND;
        let gone = link.send_timed(now, handle, batch, &due);
        assert_eq!(gone, BatchProgress { messages: 2, stop: None });
        // From one to the other 12,500 bytes: a frame of 1,378 and 24 more, and nine gaps.
        let counters = link.counters();
        assert_eq!((count(&counters.frames), count(&counters.gaps)), (2, 8));
        assert_eq!(link.timeline.laid(), 12_500 + 1402);
        let wanted = link.turn(now, now + MILLISECOND.times(2));
        assert_eq!(wanted, Some(now + Nanos::from_micros(250)));
        let mut bytes = [0; 1500];
        for payload in payloads {
            let (len, sender) = inbox.recv_from(&mut bytes).unwrap();
            assert_eq!(
                (len, sender),
                (1316, crate::packets::udp_output::address(&udp_output).unwrap())
            );
            assert_eq!((&bytes[..600], &bytes[600..len]), (&payload[..], &BODY[..716]));
        }
        // The kernel returns each slot when its frame has left the other end.
        while link.ring.oldest().is_some() {
            link.look(now);
            assert!(clock::now() < end, "{} bytes have gone", link.sent);
            std::thread::yield_now();
        }
        assert_eq!(link.sent, link.timeline.laid());
    }

    #[test]
    fn what_leaves_elsewhere_waits_for_its_time() {
        let begin = clock::now();
        let Some(mut link) = link(begin) else { return };
        // For this port, a UDP output without an address of its own is not on the loopback.
        let from = "0.0.0.0".parse().unwrap();
        let options =
            UdpOptions { from, interface: None, hops: None, dscp: 0, heard_here: true, buffer: 0 };
        let udp_output = open(&options).unwrap();
        let handle = SocketHandle(udp_output.as_raw_fd());
        let inbox = UdpSocket::bind("127.0.0.1:0").unwrap();
        inbox.set_nonblocking(true).unwrap();
        let to = inbox.local_addr().unwrap();
        let batch = Batch { messages: &[Message { to, segment: 1316, parts: 1 }], parts: &[&BODY] };
        let due = begin + MILLISECOND;
        let end = clock::now() + SECOND.times(60);
        while link.send_timed(begin, handle, batch, &[due]).stop.is_some() {
            assert!(clock::now() < end, "the question was not answered");
            std::thread::yield_now();
        }
        let mut bytes = [0; 1500];
        link.turn(due.before(Nanos(1)), due);
        assert!(inbox.recv(&mut bytes).is_err(), "it is early");
        assert_eq!(link.early_queue.next(), Some(due));
        link.turn(due, due);
        assert_eq!((inbox.recv(&mut bytes).unwrap(), link.early_queue.next()), (1316, None));
    }
}
