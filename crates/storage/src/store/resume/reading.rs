//! The durable bytes of an upload that has no name yet, read back.
//!
//! Promise: the bytes come in order, at the disk's pace if reads are planned; their checksum is
//! compared at the end.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::AsyncReadExt;

use super::{Principal, ResumeError, Store, StoreId};
use crate::store::Inner;
use crate::store::journal::Entry;
use crate::store::medium::{AlignedMemory, read_full};
use crate::store::source::Reading;

/// The bytes of one upload, from the first one on.
pub struct UploadReader {
    method: ReadMethod,
    at: u64,
    len: u64,
    sum: u32,
    expected: u32,
}

/// How the bytes are read.
enum ReadMethod {
    Planned(Reading, Vec<u8>),
    Direct { inner: Arc<Inner>, file: Arc<OwnedFd>, memory: Option<AlignedMemory> },
}

/// As much as the reading path from the disk holds at once.
const READ_AT_ONCE: usize = 256 * 1024;

impl Store {
    /// Reads an upload back as far as it is durable now.
    ///
    /// # Errors
    /// When this principal has no such upload, it has its name, or there is no capacity for one
    /// more reader.
    pub async fn read_back(
        &self,
        id: &StoreId,
        principal: &Principal,
    ) -> Result<UploadReader, ResumeError> {
        let entry = self.inner.entry(id, principal)?;
        if entry.named.is_some() {
            return Err(ResumeError::Finished);
        }
        UploadReader::new(&self.inner, &entry).await
    }
}

impl UploadReader {
    pub(super) async fn new(inner: &Arc<Inner>, entry: &Entry) -> Result<Self, ResumeError> {
        let (len, expected) = (entry.mark.len, entry.mark.whole);
        let file = inner.data(entry.created.id, len == 0).await?;
        let method = match inner.source.get().filter(|_| len > 0) {
            Some(source) => {
                let reading = source.read(file, len).await.map_err(ResumeError::Busy)?;
                ReadMethod::Planned(reading, vec![0; READ_AT_ONCE])
            }
            None => {
                let memory = Some(AlignedMemory::new(inner.medium.slot_size()));
                ReadMethod::Direct { inner: Arc::clone(inner), file, memory }
            }
        };
        Ok(Self { method, at: 0, len, sum: 0, expected })
    }

    /// The number of bytes in all.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The next bytes; none at the end.
    ///
    /// # Errors
    /// When they cannot be read, or are not those that were stored.
    pub async fn next(&mut self) -> Result<Option<&[u8]>, ResumeError> {
        if self.at == self.len {
            return if self.sum == self.expected { Ok(None) } else { Err(ResumeError::Damaged) };
        }
        let (at, left) = (self.at, self.len - self.at);
        let bytes = match &mut self.method {
            ReadMethod::Planned(reading, memory) => {
                let count = reading.read(memory).await.map_err(ResumeError::io)?;
                if count == 0 {
                    return Err(ResumeError::io(std::io::ErrorKind::UnexpectedEof.into()));
                }
                &memory[..count]
            }
            ReadMethod::Direct { inner, file, memory } => {
                let mut lent = memory.take().expect("it comes back with each read");
                let file = Arc::clone(file);
                let read = inner.blocking(move || {
                    let count = read_full(&file, lent.bytes(), at)?;
                    Ok((lent, count))
                });
                let (lent, count) = read.await.map_err(ResumeError::io)?;
                let count = (count as u64).min(left) as usize;
                if count == 0 {
                    return Err(ResumeError::Damaged);
                }
                &memory.insert(lent).bytes()[..count]
            }
        };
        self.at += bytes.len() as u64;
        self.sum = crc32c::crc32c_append(self.sum, bytes);
        Ok(Some(bytes))
    }
}

impl std::fmt::Debug for UploadReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UploadReader").field("at", &self.at).field("len", &self.len).finish()
    }
}
