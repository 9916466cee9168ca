//! Checksums of whole titles that clients have sent and the server has verified, kept beside the file.
//!
//! Promise: they are told only for the version that they were made for, by inode, length and modification
//! time. They are for clients that compare trees; what is served is checked by the store's own sums.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::FileVersion;

/// Checksums in the form of `oc:checksum`: `SHA1:<hex> MD5:<hex>`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Digests(String);

/// The attribute: the version, and behind a space the checksums.
const ATTRIBUTE: &str = "user.tactus.digests";

/// All algorithms that are known, with room.
const VALUE_MAX: usize = 384;

impl Digests {
    /// Checksums in canonical form; none when there are none.
    #[must_use]
    pub fn new(text: String) -> Option<Self> {
        let fits = !text.is_empty() && text.len() < VALUE_MAX - VERSION_MAX;
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b": ".contains(&byte));
        (fits && plain).then_some(Self(text))
    }

    /// As a client reads them.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Keeps them beside `file`, for the version that it is now.
    ///
    /// # Errors
    /// When the file system has no room for them.
    pub fn keep(&self, file: impl AsFd) -> Result<(), Errno> {
        let version = FileVersion::of(&rustix::fs::fstat(&file)?);
        let value = format!("{} {}", bound(&version), self.0);
        rustix::fs::fsetxattr(file, ATTRIBUTE, value.as_bytes(), XattrFlags::empty())
    }

    /// Those of an open file; none when there are none for what it is now. May block.
    #[must_use]
    pub fn of(file: impl AsFd) -> Option<Self> {
        let version = FileVersion::of(&rustix::fs::fstat(&file).ok()?);
        let mut value = [0; VALUE_MAX];
        let len = rustix::fs::fgetxattr(file, ATTRIBUTE, &mut value).ok()?;
        Self::read(&value[..len], &version)
    }

    /// Those of what is called `name` in `directory` and has this version. May block.
    pub(super) fn in_directory(
        directory: &OwnedFd,
        name: &CStr,
        version: &FileVersion,
    ) -> Option<Self> {
        let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
        path.extend_from_slice(name.to_bytes());
        let mut value = [0; VALUE_MAX];
        let len = rustix::fs::lgetxattr(path, ATTRIBUTE, &mut value).ok()?;
        Self::read(&value[..len], version)
    }

    fn read(value: &[u8], version: &FileVersion) -> Option<Self> {
        let (of, text) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        if of != bound(version) {
            return None;
        }
        Self::new(text.to_owned())
    }
}

/// Four numbers of sixteen digits and three signs.
const VERSION_MAX: usize = 4 * 16 + 4;

/// What does not change when only attributes do.
fn bound(version: &FileVersion) -> String {
    let FileVersion { inode, len, modified: (seconds, nanos), .. } = version;
    format!("{inode:x}.{:x}.{seconds:x}.{nanos:x}", len.0)
}
