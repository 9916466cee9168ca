//! One place: a pipe whose references keep a block's pages in memory.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use tactus_core::ports::{Completion, FilePart, HeldPlace, Sum, Transfer};

/// Both ends of a pipe.
struct Pipe(OwnedFd);

impl Pipe {
    /// A pipe with room for `size` bytes in whole pages.
    fn new(size: u32) -> io::Result<Self> {
        let (_read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setpipe_size(&write, size as usize)?;
        // One descriptor for both ends instead of two: there is a pipe for each place.
        let path = format!("/proc/self/fd/{}", write.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }
}

/// The pipes of all places, for the disk's side and for the links.
pub struct HeldBlocks(Box<[HeldBlock]>);

/// The references of one place.
struct HeldBlock {
    pipe: Pipe,
    /// File offset of the first byte in the pipe. [`UNKNOWN`] during a fill, and for a block that
    /// was filled in several parts.
    next: AtomicU64,
}

const UNKNOWN: u64 = u64::MAX;

impl HeldBlocks {
    pub(super) fn new(places: u32, block: u32) -> io::Result<Self> {
        let held = |_| Ok(HeldBlock { pipe: Pipe::new(block)?, next: AtomicU64::new(UNKNOWN) });
        (0..places).map(held).collect::<io::Result<_>>().map(Self)
    }

    pub(super) fn pipe(&self, place: u32) -> RawFd {
        self.0[place as usize].pipe.0.as_raw_fd()
    }

    /// Moves the pages of `part` from the place to a socket. None if the pipe does not begin with
    /// `part`. Only for the stream with the sole lease.
    pub(crate) fn send(
        &self,
        socket: RawFd,
        place: HeldPlace,
        part: FilePart,
    ) -> Option<Result<usize, i32>> {
        let held = &self.0[place.place as usize];
        // SYNC(held): acquire here, release in `filled`.
        if held.next.load(Ordering::Acquire) != part.offset.0 {
            return None;
        }
        let more = if place.has_more { libc::SPLICE_F_MORE } else { 0 };
        let moved = splice(held.pipe.0.as_raw_fd(), None, socket, part.len as usize, more);
        if let Ok(moved) = moved {
            held.next.store(part.offset.0 + moved as u64, Ordering::Release);
        }
        Some(moved)
    }

    /// The place holds one part of its file, from `offset` on.
    fn filled(&self, place: u32, offset: u64) {
        // SYNC(held): release here, acquire in `send`.
        self.0[place as usize].next.store(offset, Ordering::Release);
    }

    /// The place holds several parts, in the order in which they came.
    fn mixed(&self, place: u32) {
        self.0[place as usize].next.store(UNKNOWN, Ordering::Relaxed);
    }

    /// Bytes sent out of the place since it was filled from `offset` on. Resets it.
    fn take_sent(&self, place: u32, offset: u64) -> u64 {
        match self.0[place as usize].next.swap(UNKNOWN, Ordering::AcqRel) {
            UNKNOWN => 0,
            next => next - offset,
        }
    }
}

/// A place and what it holds.
pub(super) struct Pin {
    place: u32,
    /// The life of the place that the pipe's content belongs to.
    life: Option<u32>,
    block: u32,
    /// Transfers into this block that have not ended.
    parts: u32,
    /// Transfers into this block.
    begun: u32,
    /// Where the last one begins in the file.
    offset: u64,
    /// Bytes of those that have ended.
    held: usize,
    /// One of them has failed: the block is lost whatever its sum.
    is_broken: bool,
    /// The one that ends the block, when it has landed before others.
    waiting: Option<Completion>,
}

impl Pin {
    pub(super) fn new(place: u32, block: u32) -> Self {
        Self {
            place,
            life: None,
            block,
            parts: 0,
            begun: 0,
            offset: 0,
            held: 0,
            is_broken: false,
            waiting: None,
        }
    }

    /// Whether the place begins a new life with this generation.
    pub(super) fn begin(&mut self, generation: u32) -> bool {
        let is_new = self.life.replace(generation) != Some(generation);
        if is_new {
            assert_eq!(self.parts, 0, "a block is filled anew while it is being filled");
        }
        is_new
    }

    /// A transfer into the block begins; gives what is to be compared when it has landed. With
    /// other parts still on their way that is not yet time: see [`Pin::landed`].
    pub(super) fn started(&mut self, transfer: &Transfer, held: &HeldBlocks) -> Option<Sum> {
        self.parts += 1;
        self.begun += 1;
        if self.begun > 1 {
            held.mixed(self.place);
        }
        self.offset = transfer.offset.0;
        transfer.sum.filter(|_| self.parts == 1)
    }

    /// A transfer into the block has landed, and ends, or waits to be compared. Gives the one that
    /// has waited for all the others, with what is to be compared.
    pub(super) fn landed(
        &mut self,
        completion: Completion,
        is_final: bool,
        held: &HeldBlocks,
    ) -> Option<(Completion, Option<Sum>)> {
        self.is_broken |= completion.result.is_err();
        if is_final {
            self.parts -= 1;
            self.held += completion.result.map_or(0, |count| count as usize);
            if self.begun == 1 && !self.is_broken {
                held.filled(self.place, self.offset);
            }
        } else {
            self.waiting = Some(completion);
        }
        if self.parts > 1 {
            return None;
        }
        let last = self.waiting.take()?;
        Some((last, last.transfer.sum.filter(|_| !self.is_broken)))
    }

    /// Drops the unsent references of the last life.
    pub(super) fn empty(&mut self, held: &HeldBlocks, sink: &OwnedFd) {
        let sent = held.take_sent(self.place, self.offset) as usize;
        // A failed transfer may have left any number of bytes in the pipe.
        let mut left = if self.is_broken { usize::MAX } else { self.held - sent };
        (self.is_broken, self.held, self.begun) = (false, 0, 0);
        let pipe = held.pipe(self.place);
        while left > 0 {
            // An empty pipe answers EAGAIN; to `/dev/null` nothing else can fail.
            match splice(pipe, None, sink.as_raw_fd(), self.block as usize, 0) {
                Ok(moved) if moved > 0 => left = left.saturating_sub(moved),
                _ => break,
            }
        }
    }
}

/// Moves references from `from`, at `offset` if it is a file, to `to`; never waits for a pipe.
pub(super) fn splice(
    from: i32,
    offset: Option<&mut i64>,
    to: i32,
    len: usize,
    flags: libc::c_uint,
) -> Result<usize, i32> {
    let offset = offset.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: the offset, if there is one, lives through the call, which moves it.
    let moved = unsafe {
        let flags = flags | libc::SPLICE_F_NONBLOCK;
        libc::splice(from, offset, to, std::ptr::null_mut(), len, flags)
    };
    usize::try_from(moved)
        .map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
