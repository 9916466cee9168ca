//! Ports: the interfaces between the engine's servers and the outside, as traits.
//!
//! `sys` implements them on the kernel, `sim` on a simulated world. A port never blocks: it takes
//! work, and later returns the results.

use core::net::SocketAddr;

use crate::units::{Bytes, MILLISECOND, MonoTime, Nanos};

/// An open file that a volume's device reads from. The port defines the meaning of the number (a
/// file descriptor, or an index into simulated files).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct FileHandle(pub i32);

/// A connected socket, as a number known to the link's port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct SocketHandle(pub i32);

/// One place of an arena and its generation, which identifies leases and completions from earlier
/// uses of the place. A transfer's direction selects one of a volume's two arenas.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct BlockRef {
    /// Index of the place in the arena.
    pub place: u32,
    /// Counts the uses of the place.
    pub generation: u32,
}

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the device into a block of the volume's memory.
    Read,
    /// From a place of the volume's write share to the device.
    Write,
}

impl Direction {
    /// The opposite one.
    pub const fn other(self) -> Self {
        match self {
            Self::Read => Self::Write,
            Self::Write => Self::Read,
        }
    }
}

/// The expected checksum of the first bytes of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sum {
    /// Number of bytes, from the beginning of the block.
    pub len: u32,
    /// Their CRC32C.
    pub crc32c: u32,
}

/// One disk request: moves `len` bytes between a file and a block, beginning at `at` within the
/// block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// The direction.
    pub direction: Direction,
    /// The block; comes back with the completion.
    pub block: BlockRef,
    /// The file.
    pub file: FileHandle,
    /// Offset in the file, a multiple of the sector.
    pub offset: Bytes,
    /// Offset within the block, a multiple of the sector.
    pub at: u32,
    /// Length in bytes, a multiple of the sector, at most the block's size.
    pub len: u32,
    /// The expected checksum of the whole block. Set only if the port alone sees the bytes (the
    /// page cache), and only in the transfer that ends a block. The port compares when every
    /// transfer of the block has ended, and fails this one with [`DiskFault::DAMAGED`] if the
    /// checksum differs.
    pub sum: Option<Sum>,
    /// Whether the kernel may read more of the file than this, in advance. Means something only to
    /// a port on the page cache that [limits](crate::kernel_read_ahead) this.
    pub reads_ahead: bool,
    /// Bytes of the title behind the block, for a port on the page cache: the kernel reads no more
    /// than them in advance.
    pub rest: Bytes,
}

impl Transfer {
    /// From or to the beginning of the block, without a checksum and without read-ahead.
    #[must_use]
    pub const fn new(
        direction: Direction,
        block: BlockRef,
        file: FileHandle,
        offset: Bytes,
        len: u32,
    ) -> Self {
        let (at, sum, reads_ahead, rest) = (0, None, false, Bytes(0));
        Self { direction, block, file, offset, at, len, sum, reads_ahead, rest }
    }
}

/// The end of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The transfer that has ended.
    pub transfer: Transfer,
    /// Bytes moved (a read is short at the end of a file, a write never), or the reason of the
    /// failure.
    pub result: Result<u32, DiskFault>,
}

/// Why a transfer failed: the kernel's error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskFault(pub i32);

impl DiskFault {
    /// The bytes differ from the stored bytes: `EBADMSG`.
    pub const DAMAGED: Self = Self(74);
}

/// A flush of one file: brings all bytes written before it, and the length, to stable storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sync {
    /// Comes back with the answer.
    pub token: u32,
    /// The file or directory.
    pub file: FileHandle,
    /// The part of the file.
    pub reach: SyncScope,
}

/// The part of a file that a flush brings to stable storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncScope {
    /// The bytes, and the metadata needed to find them: if no block of the file is new, the file
    /// system's journal has nothing to write.
    Data,
    /// Attributes too; for a directory its names.
    All,
}

/// The end of a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncResult {
    /// The flush that has ended.
    pub sync: Sync,
    /// A failure is final: bytes written since the last flush may be lost, even if a later flush
    /// succeeds.
    pub result: Result<(), DiskFault>,
}

/// A device with a queue.
pub trait DiskPort {
    /// Takes a transfer into the device's queue, or returns it if the queue is full.
    ///
    /// # Errors
    /// The transfer itself, if there is no room.
    fn submit(&mut self, now: MonoTime, transfer: Transfer) -> Result<(), Transfer>;

    /// Starts what was submitted. Called once per turn, so that a batch costs one system call.
    fn kick(&mut self, now: MonoTime);

    /// Bytes that the kernel has the device read behind the transfer that was submitted last, for
    /// the next one of its file.
    fn read_ahead(&self) -> u32 {
        0
    }

    /// Whether the read that was submitted last needs the device. A read of pages that are in
    /// memory, or that the device is reading already, takes no place in the device's queue.
    fn needs_device(&self) -> bool {
        true
    }

    /// How long the read whose end was polled last has waited for the device. This counts for reads
    /// that [did not need it](Self::needs_device): the device was still reading their pages.
    fn waited(&self) -> Nanos {
        Nanos(0)
    }

    /// The next transfer that has ended, in any order.
    fn poll_completion(&mut self, now: MonoTime) -> Option<Completion>;

    /// Takes a flush, which begins with the next kick; or returns it if the number of flushes under
    /// way is at the port's limit. It covers the writes whose completions were polled before.
    ///
    /// # Errors
    /// The flush itself, if there is no room.
    fn submit_sync(&mut self, now: MonoTime, sync: Sync) -> Result<(), Sync>;

    /// The next flush that has ended, in any order.
    fn poll_synced(&mut self, now: MonoTime) -> Option<SyncResult>;

    /// The time from the beginning of a flush to the first poll for its end. Nearly all flushes
    /// take longer. A port whose flushes wake the thread at their end needs no early poll.
    fn first_look(&self) -> Nanos {
        MILLISECOND
    }

    /// Whether [`Self::leave`] may be called now. Once true it stays true until the next
    /// submission.
    fn may_leave(&mut self) -> bool {
        true
    }

    /// Frees the port of the thread that has used it, which calls this; what is under way goes on.
    /// Threads of its own follow to the processor `cpu`. Never waits.
    fn leave(&mut self, _cpu: u32) {}
}

/// The result of a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendResult {
    /// This many bytes were taken, at least one.
    Some(u32),
    /// The peer's window and the socket's buffer are full.
    Blocked,
    /// The connection is gone, with this error number.
    Broken(i32),
    /// The file has lost these bytes, with this error number. The connection is usable.
    Lost(i32),
}

/// Bytes of a file, by reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePart {
    /// The file.
    pub file: FileHandle,
    /// The first byte.
    pub offset: Bytes,
    /// The number of bytes.
    pub len: u32,
}

/// The place of a block in the page cache, for the stream with the sole lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldPlace {
    /// Number of the volume.
    pub volume: u32,
    /// The place of the block.
    pub place: u32,
    /// The next part of the same stream follows at once.
    pub has_more: bool,
}

/// A network path.
pub trait LinkPort {
    /// Offers `parts`, in order, to `socket`. Never blocks.
    fn send(&mut self, now: MonoTime, socket: SocketHandle, parts: &[&[u8]]) -> SendResult;

    /// Offers a part of a file to `socket`; the page cache must hold it. Never blocks.
    fn send_file(&mut self, now: MonoTime, socket: SocketHandle, part: FilePart) -> SendResult;

    /// As [`Self::send_file`], from the place of a block with a sole lease. The place may drop the
    /// sent pages.
    fn send_held(
        &mut self,
        now: MonoTime,
        socket: SocketHandle,
        place: HeldPlace,
        part: FilePart,
    ) -> SendResult {
        let _ = place;
        self.send_file(now, socket, part)
    }

    /// Copies a part of a file, which the page cache must hold, into memory of the same length.
    ///
    /// # Errors
    /// The error number, if the file has lost these bytes.
    fn read(&mut self, now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32>;
}

/// Datagrams of one stream that leave together: each of `segment` bytes; the last may be shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The destination.
    pub to: SocketAddr,
    /// Bytes of each datagram, including its own headers.
    pub segment: u16,
    /// Number of its parts, which are adjacent in the batch.
    pub parts: u16,
}

/// Messages and their parts, in order.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// At least one.
    pub messages: &'a [Message],
    /// The parts of the first message, then those of the second, and so on.
    pub parts: &'a [&'a [u8]],
}

/// The progress of a port with a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchProgress {
    /// Number of messages taken, from the first on.
    pub messages: usize,
    /// Why the next one was not taken; `None` if all were taken.
    pub stop: Option<Stop>,
}

/// Why a port has not taken a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// There is no room for it now.
    Full,
    /// It cannot be sent, with this error number; the next one may be.
    Refused(i32),
}

/// A network path for datagrams. Its sockets are UDP outputs: all datagrams of a UDP output leave
/// from the same address in the same way.
pub trait PacketPort: Send {
    /// Limit of datagrams in one message; 1 if the kernel does not segment.
    fn segments_max(&self) -> u32;

    /// Offers messages to a UDP output, in order. Never blocks.
    fn send(&mut self, now: MonoTime, udp_output: SocketHandle, batch: Batch<'_>) -> BatchProgress;

    /// Lead time: how long before its due time the port needs each message; zero for a port that
    /// sends at once. A port with a lead keeps the times itself, and gets messages by
    /// [`Self::send_timed`].
    fn ahead(&self) -> Nanos {
        Nanos(0)
    }

    /// As [`Self::send`], with the due time of each message.
    fn send_timed(
        &mut self,
        now: MonoTime,
        udp_output: SocketHandle,
        batch: Batch<'_>,
        _due: &[MonoTime],
    ) -> BatchProgress {
        self.send(now, udp_output, batch)
    }

    /// Ends a turn: every message due by `until` has been offered. Without streams, `until` is a
    /// time in the past. Returns when the port needs its next turn, if it needs one by itself.
    fn turn(&mut self, _now: MonoTime, _until: MonoTime) -> Option<MonoTime> {
        None
    }

    /// Copies a part of a file, which the page cache must hold, into memory of the same length.
    ///
    /// # Errors
    /// The error number, if the file has lost these bytes.
    fn read(&mut self, now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32>;
}

/// What the file server has of its host: the page cache, read by copies, and where it runs.
pub trait FilePort: Send {
    /// Copies a part of a file, which the page cache must hold, into memory of the same length.
    ///
    /// # Errors
    /// The error number, if the file has lost these bytes.
    fn read(&mut self, part: FilePart, into: &mut [u8]) -> Result<(), i32>;

    /// The processor that the calling thread is on.
    fn processor(&self) -> u32;
}

/// Wakes the other side of a ring, if it sleeps.
pub trait Waker: Send {
    /// Wakes. Costs a system call only if the other side sleeps.
    fn wake(&self);
}
