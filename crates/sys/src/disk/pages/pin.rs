//! One place: a pipe whose references keep a block's pages in memory.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use tactus_core::ports::{Completion, Sum};

/// Both ends of a pipe that nobody reads.
pub(super) struct Pipe(pub(super) OwnedFd);

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

/// A place and what it holds.
pub(super) struct Pin {
    pub(super) pipe: Arc<Pipe>,
    /// The life of the place that the pipe's content belongs to.
    life: Option<u32>,
    block: u32,
    /// Transfers into this block that have not ended.
    parts: u32,
    /// Bytes of those that have ended.
    held: usize,
    /// One of them has failed: the block is lost whatever its sum.
    is_broken: bool,
    /// The one that ends the block, when it has landed before others.
    waiting: Option<Completion>,
}

impl Pin {
    pub(super) fn new(block: u32) -> io::Result<Self> {
        let pipe = Arc::new(Pipe::new(block)?);
        Ok(Self { pipe, life: None, block, parts: 0, held: 0, is_broken: false, waiting: None })
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
    pub(super) fn started(&mut self, sum: Option<Sum>) -> Option<Sum> {
        self.parts += 1;
        sum.filter(|_| self.parts == 1)
    }

    /// A transfer into the block has landed, and ends, or waits to be compared. Gives the one that
    /// has waited for all the others, with what is to be compared.
    pub(super) fn landed(
        &mut self,
        completion: Completion,
        is_final: bool,
    ) -> Option<(Completion, Option<Sum>)> {
        self.is_broken |= completion.result.is_err();
        if is_final {
            self.parts -= 1;
            self.held += completion.result.map_or(0, |count| count as usize);
        } else {
            self.waiting = Some(completion);
        }
        if self.parts > 1 {
            return None;
        }
        let last = self.waiting.take()?;
        Some((last, last.transfer.sum.filter(|_| !self.is_broken)))
    }

    /// Gives up what the last life referred to.
    pub(super) fn empty(&mut self, sink: &OwnedFd) {
        // A failed transfer may have left any number of bytes in the pipe.
        let mut left = if self.is_broken { usize::MAX } else { self.held };
        (self.is_broken, self.held) = (false, 0);
        while left > 0 {
            // An empty pipe answers EAGAIN; to `/dev/null` nothing else can fail.
            match splice(self.pipe.0.as_raw_fd(), None, sink.as_raw_fd(), self.block as usize) {
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
) -> Result<usize, i32> {
    let offset = offset.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: the offset, if there is one, lives through the call, which moves it.
    let moved = unsafe {
        libc::splice(from, offset, to, std::ptr::null_mut(), len, libc::SPLICE_F_NONBLOCK)
    };
    usize::try_from(moved)
        .map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
