//! One AF_XDP socket that only sends: its memory, its two rings, and the call that makes the kernel
//! process them.
//!
//! Promise: a frame is written only while this process owns it; it is owned again when the kernel
//! has reported its departure. Copy mode only: the device keeps its queues and drivers, and no
//! program is loaded. The kernel's side: Documentation/networking/af_xdp.rst, net/xdp/xsk.c
//! (generic path).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use tactus_core::ports::{Batch, Message};
use tactus_core::units::{MILLISECOND, Nanos};

use super::{Device, DeviceRefusal};
use crate::clock;
use crate::packets::frame::{self, Checksum, Frame, Route};
use crate::udp_input::set;

/// Limit of frames under way: 13 ms of 1 Gbit/s. A power of two.
const FRAMES: u32 = 1024;
/// Bytes of a frame; the kernel requires a power of two.
const FRAME: usize = 2048;
/// Size of the metadata in front of a frame whose checksum the device calculates.
const METADATA: usize = size_of::<libc::xsk_tx_metadata>();
/// Offset of the checksum in the UDP header.
const CHECKSUM: u16 = 6;
/// The kernel does not bind a socket without a fill ring, though nothing is received.
const FILL: u32 = 64;
/// Limit of the wait for a busy queue.
const BUSY_MAX: Nanos = MILLISECOND.times(500);
/// linux/if_xdp.h, from Linux 6.17 on: the frames that the kernel takes by one call.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
/// Limit of calls for one batch: older kernels take 32 frames by one (`TX_BATCH_SIZE`), and the
/// number of frames is at most that of the ring.
const KICKS_MAX: u32 = FRAMES / 32 + 4;

/// The socket.
pub(crate) struct Rings {
    socket: OwnedFd,
    memory: Mapping,
    sending: Ring,
    done: Ring,
    checksum: Checksum,
    /// Offsets of frames that this process owns.
    free: Vec<u64>,
}

/// A ring that is shared with the kernel.
struct Ring {
    map: Mapping,
    producer: usize,
    consumer: usize,
    entries: usize,
    /// The position of this process in the ring.
    position: u32,
}

/// Mapped memory, owned until it is dropped.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory; the owner of the value uses it alone, besides the kernel.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(len: usize, flags: i32, socket: i32, offset: libc::off_t) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, socket, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("nothing is mapped at zero");
        Ok(Self { base, len })
    }
}

impl Mapping {
    /// A pointer to an offset; valid only if the value lies within the mapping.
    fn at<T>(&self, offset: usize) -> *mut T {
        self.base.as_ptr().wrapping_add(offset).cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and references into it live no longer than `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Ring {
    fn slot<T>(&self, at: usize) -> *mut T {
        self.map.at(self.entries + at * size_of::<T>())
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `at` is an offset of the kernel's within the mapping, aligned for a word, which
        // both sides use atomically only.
        unsafe { AtomicU32::from_ptr(self.map.at(at)) }
    }
}

impl Device for Rings {
    /// Binds queue 0. Waits for a queue that has just been released: the kernel frees it some 100
    /// ms later.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_RAW`, `EAFNOSUPPORT` without AF_XDP, `EBUSY` while another socket
    /// has the queue.
    fn bind(device: u32) -> io::Result<Self> {
        let end = clock::now() + BUSY_MAX;
        loop {
            match Self::try_bind(device) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && clock::now() < end => {
                    clock::sleep_until(clock::now() + MILLISECOND.times(20));
                }
                result => return result,
            }
        }
    }

    fn send(&mut self, routes: &[Route], batch: Batch<'_>) -> (usize, Option<DeviceRefusal>) {
        let (mut taken, mut lack, mut parts) = (0, None, batch.parts);
        for (route, message) in routes.iter().zip(batch.messages) {
            let (own, behind) = parts.split_at(usize::from(message.parts));
            if let Err(lacks) = self.write(route, message, own) {
                lack = Some(lacks);
                break;
            }
            (taken, parts) = (taken + 1, behind);
        }
        // Frames held up by a full device are kicked with the next batch, or with the rest of this
        // one.
        match self.kick() {
            Ok(()) => (taken, lack),
            Err(_) => (taken, Some(DeviceRefusal::Device)),
        }
    }
}

impl Rings {
    fn try_bind(device: u32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: takes numbers only.
        let socket = unsafe { libc::socket(libc::AF_XDP, kind, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, and nothing else uses it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let memory = Mapping::new(FRAMES as usize * FRAME, anonymous, -1, 0)?;
        let plain = libc::xdp_umem_reg {
            addr: memory.base.as_ptr() as u64,
            len: memory.len as u64,
            chunk_size: FRAME as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        let flags = libc::XDP_UMEM_TX_METADATA_LEN;
        let described = libc::xdp_umem_reg { flags, tx_metadata_len: METADATA as u32, ..plain };
        let register = |how| set(&socket, libc::SOL_XDP, libc::XDP_UMEM_REG, how);
        // Kernels before 6.8 know of no metadata.
        let checksum = match register(&described) {
            Ok(()) => Checksum::Device,
            Err(_) => register(&plain).map(|()| Checksum::Ours)?,
        };
        set(&socket, libc::SOL_XDP, libc::XDP_UMEM_FILL_RING, &FILL)?;
        set(&socket, libc::SOL_XDP, libc::XDP_UMEM_COMPLETION_RING, &FRAMES)?;
        set(&socket, libc::SOL_XDP, libc::XDP_TX_RING, &FRAMES)?;
        // Without it a turn takes a few calls more.
        drop(set(&socket, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &FRAMES));
        let offsets = offsets(&socket)?;
        let ring = |ring: libc::xdp_ring_offset, entry: usize, page: libc::off_t| {
            let entries = ring.desc as usize;
            let len = entries + FRAMES as usize * entry;
            let shared = libc::MAP_SHARED | libc::MAP_POPULATE;
            let map = Mapping::new(len, shared, socket.as_raw_fd(), page)?;
            let (producer, consumer) = (ring.producer as usize, ring.consumer as usize);
            io::Result::Ok(Ring { map, producer, consumer, entries, position: 0 })
        };
        let sending = ring(offsets.tx, size_of::<libc::xdp_desc>(), libc::XDP_PGOFF_TX_RING)?;
        let page = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;
        let done = ring(offsets.cr, size_of::<u64>(), page)?;
        // Size of the kernel's send buffer: all of the frames.
        let room = (FRAMES as usize * 2 * FRAME) as i32;
        if set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &room).is_err() {
            drop(set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &room));
        }
        let to = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_COPY,
            sxdp_ifindex: device,
            sxdp_queue_id: 0,
            sxdp_shared_umem_fd: 0,
        };
        // SAFETY: the address is readable for its size.
        let bound = unsafe {
            let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), (&raw const to).cast(), len)
        };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        let free = (0..u64::from(FRAMES)).map(|frame| frame * FRAME as u64).collect();
        Ok(Self { socket, memory, sending, done, checksum, free })
    }

    /// Writes the frames of one message, or none of them.
    fn write(
        &mut self,
        route: &Route,
        message: &Message,
        parts: &[&[u8]],
    ) -> Result<(), DeviceRefusal> {
        let segment = usize::from(message.segment);
        let mut left: usize = parts.iter().map(|part| part.len()).sum();
        if !self.has_room(left.div_ceil(segment).max(1)) {
            return Err(DeviceRefusal::Room);
        }
        let (mut parts, mut rest): (_, &[u8]) = (parts.iter(), &[]);
        let mut is_first = true;
        while left > 0 || is_first {
            let own = left.min(segment);
            let pushed = self.push(|checksum, into| {
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
            // All segments are as long as the first, or shorter: the first one decides whether they
            // fit.
            if !pushed {
                assert!(is_first, "room was counted");
                return Err(DeviceRefusal::Fit);
            }
            is_first = false;
            left -= own;
        }
        Ok(())
    }

    /// Whether this process owns this number of frames.
    fn has_room(&mut self, frames: usize) -> bool {
        if self.free.len() < frames {
            self.reap();
        }
        self.free.len() >= frames
    }

    /// Lets `write` fill a frame and appends it to the waiting ones; false if it has written
    /// nothing, or no frame is free.
    fn push(&mut self, write: impl FnOnce(Checksum, &mut [u8]) -> Option<Frame>) -> bool {
        let Some(&offset) = self.free.last() else { return false };
        // SAFETY: the offset is one of ours, so the kernel does not touch the frame and no other
        // reference to it exists; it lies within the memory.
        let place =
            unsafe { std::slice::from_raw_parts_mut(self.memory.at::<u8>(offset as usize), FRAME) };
        let (metadata, into) = match self.checksum {
            Checksum::Ours => (None, place),
            Checksum::Device => {
                let (metadata, into) = place.split_at_mut(METADATA);
                (Some(metadata), into)
            }
        };
        let Some(Frame { len, udp }) = write(self.checksum, into) else { return false };
        let (mut addr, mut options) = (offset, 0);
        if let Some(metadata) = metadata {
            // `struct xsk_tx_metadata`: flags, then the offset of the start of the sum, and the
            // offset of the result.
            metadata[..8].copy_from_slice(&u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM).to_ne_bytes());
            metadata[8..10].copy_from_slice(&(udp as u16).to_ne_bytes());
            metadata[10..12].copy_from_slice(&CHECKSUM.to_ne_bytes());
            (addr, options) = (offset + METADATA as u64, libc::XDP_TX_METADATA);
        }
        self.free.pop();
        let at = (self.sending.position & (FRAMES - 1)) as usize;
        let described = libc::xdp_desc { addr, len: len as u32, options };
        // SAFETY: the slot lies within the mapping. It is ours: as many slots are there as frames,
        // and a frame is ours only when the kernel has taken it out of its slot.
        unsafe { self.sending.slot::<libc::xdp_desc>(at).write(described) };
        self.sending.position = self.sending.position.wrapping_add(1);
        true
    }

    /// Makes the kernel take the pushed frames, as far as the device accepts them.
    ///
    /// # Errors
    /// If the device is gone or down: the pushed frames may be lost.
    fn kick(&mut self) -> io::Result<()> {
        let producer = self.sending.word(self.sending.producer);
        // SYNC(sent): release here; the kernel loads it with acquire before it looks at the slots.
        producer.store(self.sending.position, Ordering::Release);
        let mut waits = self.waits();
        for _ in 0..KICKS_MAX {
            if waits == 0 {
                break;
            }
            // SAFETY: the call takes no memory.
            let called = unsafe {
                let flags = libc::MSG_DONTWAIT;
                libc::sendto(self.socket.as_raw_fd(), ptr::null(), 0, flags, ptr::null(), 0)
            };
            let before = std::mem::replace(&mut waits, self.waits());
            if called < 0 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    // The limit of one call, a full queue, or a full completion ring: the next call
                    // continues.
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {}
                    _ => return Err(error),
                }
                if waits == before {
                    break;
                }
            }
        }
        self.reap();
        Ok(())
    }

    /// Number of frames that the kernel has not taken.
    fn waits(&self) -> u32 {
        let taken = self.sending.word(self.sending.consumer).load(Ordering::Acquire);
        self.sending.position.wrapping_sub(taken)
    }

    /// Takes back the frames that have left.
    fn reap(&mut self) {
        let done = &mut self.done;
        // SYNC(left): acquire here; the kernel stores it with release after it has filled the
        // slots.
        let end = done.word(done.producer).load(Ordering::Acquire);
        while done.position != end {
            let at = (done.position & (FRAMES - 1)) as usize;
            // SAFETY: the slot lies within the mapping and the kernel has filled it, by the line
            // above.
            let offset = unsafe { done.slot::<u64>(at).read() };
            assert!(self.free.len() < FRAMES as usize, "a frame comes back once");
            self.free.push(offset & !(FRAME as u64 - 1));
            done.position = done.position.wrapping_add(1);
        }
        done.word(done.consumer).store(end, Ordering::Release);
    }
}

fn offsets(socket: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::xdp_mmap_offsets>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into a value of that size.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            (&raw mut offsets).cast(),
            &raw mut len,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    // Before 5.4 they were shorter.
    if len as usize != size_of::<libc::xdp_mmap_offsets>() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(offsets)
}
