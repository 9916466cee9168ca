//! A title that is built in memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use tactus_client::memory;
use tactus_client::protocol::{Origin, Reply};

/// Where the title begins in its memory: not at a page.
const FIRST: u64 = 5000;
/// The most bytes that it can have.
pub(crate) const MEMORY_LIMIT: u64 = 4 << 20;
/// The most bytes that the server has room for.
pub(crate) const MEMORY_ROOM: u64 = 3_900_000;

/// The memory of the title, when there is one.
#[derive(Default)]
pub(crate) struct BuiltTitle(Mutex<Option<OwnedFd>>);

impl BuiltTitle {
    /// Begins a title.
    pub(crate) fn begin(&self, origin: &Origin) -> (Reply, OwnedFd) {
        let (bytes, end): (&[u8], _) = match origin {
            Origin::Nothing => (b"", 0),
            Origin::Title => (b"the older version", 0),
            Origin::Upload(_) => (b"what was synced", 15),
        };
        let file = memory::create_growing().unwrap();
        rustix::fs::ftruncate(&file, FIRST + bytes.len() as u64).unwrap();
        rustix::io::pwrite(&file, bytes, FIRST).unwrap();
        let theirs = file.as_fd().try_clone_to_owned().unwrap();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        let (writer, first, len) = (5, FIRST, bytes.len() as u64);
        let upload = "an-upload".to_owned();
        let limit = MEMORY_LIMIT;
        (Reply::CreatedInMemory { writer, first, len, end, limit, upload }, theirs)
    }

    /// Has `len` bytes, or says why not.
    pub(super) fn grow(&self, len: u64) -> Result<(), u32> {
        if len > MEMORY_ROOM {
            return Err(12);
        }
        let file = self.0.lock().unwrap();
        rustix::fs::ftruncate(file.as_ref().unwrap(), FIRST + len).unwrap();
        Ok(())
    }

    /// Its bytes from `from` on to `to`.
    pub(super) fn read(&self, from: u64, to: u64) -> Vec<u8> {
        let file = self.0.lock().unwrap();
        let mut bytes = vec![0; (to - from) as usize];
        let read = rustix::io::pread(file.as_ref().unwrap(), &mut bytes, FIRST + from).unwrap();
        assert_eq!(read, bytes.len(), "these bytes are there");
        bytes
    }
}
