//! One place: a pipe whose references keep a block's pages in memory.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

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
}

impl Pin {
    pub(super) fn new(block: u32) -> io::Result<Self> {
        Ok(Self { pipe: Arc::new(Pipe::new(block)?), life: None, block })
    }

    /// Whether the place begins a new life with this generation.
    pub(super) fn begin(&mut self, generation: u32) -> bool {
        self.life.replace(generation) != Some(generation)
    }

    /// Gives up what the last life referred to.
    pub(super) fn empty(&self, sink: &OwnedFd) {
        let all = self.block as usize;
        // An empty pipe answers EAGAIN; to `/dev/null` nothing else can fail.
        while splice(self.pipe.0.as_raw_fd(), None, sink.as_raw_fd(), all).is_ok_and(|n| n > 0) {}
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
