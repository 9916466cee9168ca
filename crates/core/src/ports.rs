//! Ports: what the engine's servers ask of the outside, as traits.
//!
//! `sys` implements them on the kernel, `sim` on a simulated world. A port never waits: it takes
//! work, and later gives back what has been done.

use core::net::SocketAddr;

use crate::units::{Bytes, MonoTime, Nanos};

/// An open file that a volume's device reads from; what the number means is the port's business
/// (a file descriptor, or an index into simulated files).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct FileHandle(pub i32);

/// A connected socket, as a number known to the link's port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct SocketHandle(pub i32);

/// One place of an arena and its age: a lease or a completion from an earlier life of the place is
/// told by its generation. A transfer's direction says which of a volume's two arenas is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct BlockRef {
    /// Index of the place in the arena.
    pub place: u32,
    /// Counts the lives of the place.
    pub generation: u32,
}

/// Which way a transfer goes.
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

/// What the first bytes of a block must sum up to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sum {
    /// How many bytes, from the beginning of the block.
    pub len: u32,
    /// Their CRC32C.
    pub crc32c: u32,
}

/// One disk request: moves `len` bytes between a file and a block, beginning at `at` within the
/// block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Which way.
    pub direction: Direction,
    /// Which block; comes back with the completion.
    pub block: BlockRef,
    /// Where the bytes are, or shall be.
    pub file: FileHandle,
    /// Offset in the file, a multiple of the sector.
    pub offset: Bytes,
    /// Offset within the block, a multiple of the sector.
    pub at: u32,
    /// Length in bytes, a multiple of the sector, at most the block's size.
    pub len: u32,
    /// Only where nobody but the port sees the bytes (the page cache), and only in the transfer that
    /// ends a block: what all of the block must sum up to. The port compares when every transfer of
    /// the block has landed, and fails this one with [`DiskFault::DAMAGED`] when it differs.
    pub sum: Option<Sum>,
}

/// The end of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The transfer that has ended.
    pub transfer: Transfer,
    /// Bytes moved (a read is short at the end of a file, a write never), or why it failed.
    pub result: Result<u32, DiskFault>,
}

/// Why a transfer failed: the kernel's error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskFault(pub i32);

impl DiskFault {
    /// The bytes are not those that were stored: `EBADMSG`.
    pub const DAMAGED: Self = Self(74);
}

/// A flush of one file: whatever was written to it before, and its length, to stable storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sync {
    /// Comes back with the answer.
    pub token: u32,
    /// Which file, or directory.
    pub file: FileHandle,
    /// What of it.
    pub reach: Reach,
}

/// What a flush brings to stable storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// The bytes, and what is needed to find them again: where no block of the file is new, the file
    /// system's journal has nothing to write.
    Data,
    /// Attributes too; of a directory its names.
    All,
}

/// The end of a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Synced {
    /// The flush that has ended.
    pub sync: Sync,
    /// A failure is final: what was written since the last flush may be lost, and a second one that
    /// succeeds does not say otherwise.
    pub result: Result<(), DiskFault>,
}

/// A device with a queue.
pub trait DiskPort {
    /// Takes a transfer into the device's queue, or gives it back when the queue is full.
    ///
    /// # Errors
    /// The transfer itself, when there is no room.
    fn submit(&mut self, now: MonoTime, transfer: Transfer) -> Result<(), Transfer>;

    /// Starts what was submitted. Called once per turn, so that a batch costs one system call.
    fn kick(&mut self, now: MonoTime);

    /// The next transfer that has ended, in any order.
    fn poll_completion(&mut self, now: MonoTime) -> Option<Completion>;

    /// Takes a flush, which begins with the next kick; or gives it back when as many are under way as
    /// the port was made for. It covers the writes whose completions were polled before.
    ///
    /// # Errors
    /// The flush itself, when there is no room.
    fn submit_sync(&mut self, now: MonoTime, sync: Sync) -> Result<(), Sync>;

    /// The next flush that has ended, in any order.
    fn poll_synced(&mut self, now: MonoTime) -> Option<Synced>;
}

/// What became of a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// This many bytes were taken, at least one.
    Some(u32),
    /// The peer's window and the socket's buffer are full.
    Blocked,
    /// The connection is gone, by this error number.
    Broken(i32),
    /// The file has not got these bytes any more, by this error number. The connection is whole.
    Lost(i32),
}

/// Bytes of a file, by reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePart {
    /// Which file.
    pub file: FileHandle,
    /// The first byte.
    pub offset: Bytes,
    /// How many.
    pub len: u32,
}

/// A network path.
pub trait LinkPort {
    /// Offers `parts`, in order, to `socket`. Never waits.
    fn send(&mut self, now: MonoTime, socket: SocketHandle, parts: &[&[u8]]) -> Sent;

    /// Offers a part of a file to `socket`, which the page cache must hold. Never waits.
    fn send_file(&mut self, now: MonoTime, socket: SocketHandle, part: FilePart) -> Sent;

    /// Copies a part of a file, which the page cache must hold, into memory of the same length.
    ///
    /// # Errors
    /// The error number, when the file has not got these bytes any more.
    fn read(&mut self, now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32>;
}

/// Datagrams of one stream that leave together: all of `segment` bytes, but the last may be shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Whereto.
    pub to: SocketAddr,
    /// Bytes of each datagram, headers of its own included.
    pub segment: u16,
    /// In how many parts it lies, one after the other.
    pub parts: u16,
}

/// Messages and the parts in which they lie, in order.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// At least one.
    pub messages: &'a [Message],
    /// The parts of the first message, those of the second, and so on.
    pub parts: &'a [&'a [u8]],
}

/// How far a port has come with a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone {
    /// So many messages were taken, from the first on.
    pub messages: usize,
    /// Why not the next one; none when that was all.
    pub stop: Option<Stop>,
}

/// Why a port has not taken a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// There is no room for it now.
    Full,
    /// It cannot be sent, by this error number; the next one may.
    Refused(i32),
}

/// A network path for datagrams. Its sockets are outlets: of one outlet all datagrams leave from the same
/// address in the same way.
pub trait PacketPort: Send {
    /// Most datagrams of one message; 1 where the kernel cuts none.
    fn segments_max(&self) -> u32;

    /// Offers messages to an outlet, in order. Never waits.
    fn send(&mut self, now: MonoTime, outlet: SocketHandle, batch: Batch<'_>) -> Gone;

    /// How long before it is due a port wants each message; zero for one that sends at once. A port that wants
    /// them earlier keeps the time itself, and gets them by [`Self::send_timed`].
    fn ahead(&self) -> Nanos {
        Nanos(0)
    }

    /// As [`Self::send`], with the time at which each message is due.
    fn send_timed(
        &mut self,
        now: MonoTime,
        outlet: SocketHandle,
        batch: Batch<'_>,
        _due: &[MonoTime],
    ) -> Gone {
        self.send(now, outlet, batch)
    }

    /// Ends a turn: everything that is due by `until` has been offered; a time that is past when there is nobody
    /// to send for. When the port wants the next turn, if it does so by itself.
    fn turn(&mut self, _now: MonoTime, _until: MonoTime) -> Option<MonoTime> {
        None
    }

    /// Copies a part of a file, which the page cache must hold, into memory of the same length.
    ///
    /// # Errors
    /// The error number, when the file has not got these bytes any more.
    fn read(&mut self, now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32>;
}

/// Wakes whoever waits on the other side of a ring, when it sleeps.
pub trait Waker: Send {
    /// Rings. Costs a system call only when the other side sleeps.
    fn wake(&self);
}
