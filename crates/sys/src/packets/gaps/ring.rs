//! Frames to a device through memory that is shared with the kernel (`PACKET_TX_RING`, packet(7)).
//!
//! Promise: frames leave in the order of their entry. A frame is reported as sent when the device
//! has released it. A frame that the kernel has not begun to send can be changed and taken back:
//! the kernel reads frames only at a kick.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::packets::udp_output::grow;
use crate::udp_input::set;

/// A device's queue of frames.
pub(super) struct Ring {
    socket: OwnedFd,
    map: Mapping,
    /// The next slot to fill, and the number of slots with the kernel.
    next: usize,
    used: usize,
    laid: Box<[RingFrame]>,
}

/// A frame in the ring.
#[derive(Clone, Copy)]
pub(super) struct RingFrame {
    /// Its length at entry.
    pub(super) len: u32,
    pub(super) content: Content,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Content {
    Datagram,
    /// A filler frame.
    Filling,
}

struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to one ring, which is used by one thread at a time; the kernel's side
// of it is synchronised by the status words.
unsafe impl Send for Mapping {}

/// 2 ms of a link of 1 Gbit/s are 160 of the longest frames, or 3,000 of the shortest.
const SLOTS: usize = 4096;
const SLOT: usize = 2048;
const BLOCK: usize = 64 * 1024;
/// Size of the header in front of a frame in its slot: `TPACKET2_HDRLEN` without its address
/// (linux/if_packet.h).
const HEAD: usize = 32;
/// The longest frame that fits.
pub(super) const FRAME_MAX: u32 = (SLOT - HEAD) as u32;
/// Size of the send buffer; the kernel also counts its own overhead.
const BUFFER: usize = 16 << 20;

// linux/if_packet.h
const PACKET_VERSION: i32 = 10;
const PACKET_TX_RING: i32 = 13;
const TPACKET_V2: i32 = 1;
const SEND_REQUEST: u32 = 1;
const AVAILABLE: u32 = 0;
const WRONG_FORM: u32 = 4;
/// Requested, or refused for its form: the kernel starts with this frame at the next kick, and no
/// later one leaves before it.
const WAITS: u32 = SEND_REQUEST | WRONG_FORM;
/// These, or being sent.
const BUSY: u32 = WAITS | 2;

#[repr(C)]
struct Request {
    block_size: u32,
    block_nr: u32,
    frame_size: u32,
    frame_nr: u32,
}

impl Ring {
    /// Binds a device by its index.
    pub(super) fn bind(index: u32) -> io::Result<Self> {
        // Without a protocol nothing is received.
        let socket =
            socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        set(&socket, libc::SOL_PACKET, PACKET_VERSION, &TPACKET_V2)?;
        let request = Request {
            block_size: BLOCK as u32,
            block_nr: (SLOTS * SLOT / BLOCK) as u32,
            frame_size: SLOT as u32,
            frame_nr: SLOTS as u32,
        };
        set(&socket, libc::SOL_PACKET, PACKET_TX_RING, &request)?;
        grow(&socket, BUFFER);
        let map = Mapping::of(&socket, SLOTS * SLOT)?;
        let none = RingFrame { len: 0, content: Content::Filling };
        let ring = Self { socket, map, next: 0, used: 0, laid: vec![none; SLOTS].into() };
        ring.rebind(index)?;
        Ok(ring)
    }

    /// Binds another device, or one that was created again.
    pub(super) fn rebind(&self, index: u32) -> io::Result<()> {
        let address = address_of(index);
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let socket = self.socket.as_raw_fd();
        // SAFETY: the address is readable for its length; the kernel copies it.
        let done = unsafe { libc::bind(socket, ptr::from_ref(&address).cast(), len) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The socket, for queries about devices.
    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether there is room for another frame.
    pub(super) fn has_room(&self) -> bool {
        self.used < SLOTS
    }

    /// Appends a frame that `write` fills in. `write` returns its length, or `None` to append
    /// nothing. Returns the length.
    ///
    /// # Panics
    /// If there is no room.
    pub(super) fn push(
        &mut self,
        content: Content,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Option<u32> {
        assert!(self.has_room(), "who puts a frame has looked for room");
        let len = write(self.map.frame(self.next))? as u32;
        assert!(len <= FRAME_MAX, "a frame fits its slot");
        self.map.word(self.next, 1).store(len, Ordering::Relaxed);
        // SYNC(slot): release here, the kernel's barrier before it reads the frame.
        self.map.word(self.next, 0).store(SEND_REQUEST, Ordering::Release);
        self.laid[self.next] = RingFrame { len, content };
        self.next = (self.next + 1) % SLOTS;
        self.used += 1;
        Some(len)
    }

    /// The length of the oldest frame that has not been polled as sent.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.used > 0).then(|| self.laid[self.oldest_slot()].len)
    }

    fn oldest_slot(&self) -> usize {
        (self.next + SLOTS - self.used) % SLOTS
    }

    /// The length of the oldest frame, once the device has released it.
    pub(super) fn poll_sent(&mut self) -> Option<u32> {
        if self.used == 0 {
            return None;
        }
        let oldest = self.oldest_slot();
        // SYNC(slot): acquire here, after the kernel's barrier and its store of the status.
        if self.map.word(oldest, 0).load(Ordering::Acquire) & BUSY != 0 {
            return None;
        }
        self.used -= 1;
        Some(self.laid[oldest].len)
    }

    /// Replaces every frame that the kernel has not begun to send and that is longer than
    /// `len_max`, or refused for its form, by the output of `write`; `each` gets those frames.
    /// Their lengths at entry stay: the wire is then ahead of its calculated progress by the
    /// difference.
    pub(super) fn replace(
        &mut self,
        len_max: u32,
        mut write: impl FnMut(&mut [u8]),
        mut each: impl FnMut(RingFrame),
    ) {
        for back in 1..=self.used {
            let slot = (self.next + SLOTS - back) % SLOTS;
            let status = self.map.word(slot, 0).load(Ordering::Acquire);
            if status & WAITS == 0 {
                return;
            }
            let len = self.map.word(slot, 1).load(Ordering::Relaxed);
            if len <= len_max && status & WRONG_FORM == 0 {
                continue;
            }
            let laid = &mut self.laid[slot];
            each(*laid);
            laid.content = Content::Filling;
            let len = len.min(len_max);
            write(&mut self.map.frame(slot)[..len as usize]);
            self.map.word(slot, 1).store(len, Ordering::Relaxed);
            self.map.word(slot, 0).store(SEND_REQUEST, Ordering::Release);
        }
    }

    /// Takes back every frame that the kernel has not begun to send, the newest first. The next
    /// frame takes the place where the kernel continues.
    pub(super) fn take_back(&mut self, mut each: impl FnMut(RingFrame)) {
        while self.used > 0 {
            let newest = (self.next + SLOTS - 1) % SLOTS;
            let status = self.map.word(newest, 0);
            if status.load(Ordering::Acquire) & WAITS == 0 {
                return;
            }
            status.store(AVAILABLE, Ordering::Release);
            self.next = newest;
            self.used -= 1;
            each(self.laid[newest]);
        }
    }

    /// Makes the kernel send the frames.
    pub(super) fn kick(&mut self) -> io::Result<()> {
        // SAFETY: nothing is read from the null pointer: the data is in the ring.
        let sent =
            unsafe { libc::send(self.socket.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Mapping {
    fn of(socket: &OwnedFd, len: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, socket.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("nothing is mapped at zero");
        Ok(Self { base, len })
    }

    /// A word of a slot's header: its status, or the length of its frame.
    fn word(&self, slot: usize, number: usize) -> &AtomicU32 {
        assert!(slot < SLOTS && number < HEAD / 4);
        // SAFETY: within the mapping by the line above.
        let word = unsafe { self.base.add(slot * SLOT + number * 4) }.cast();
        // SAFETY: mapped, and aligned, as slots and words are; both sides use status words
        // atomically only, and lengths are ours while the status says so.
        unsafe { word.as_ref() }
    }

    fn frame(&mut self, slot: usize) -> &mut [u8] {
        assert!(slot < SLOTS);
        let (at, len) = (slot * SLOT + HEAD, SLOT - HEAD);
        // SAFETY: within the mapping by the lines above.
        let frame = unsafe { self.base.add(at) };
        // SAFETY: mapped for its length; the slot is ours, as it was polled as sent or has never
        // been put, and the reference ends before it is put again.
        unsafe { std::slice::from_raw_parts_mut(frame.as_ptr(), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and references into it live no longer than `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn address_of(index: u32) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 0,
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}
