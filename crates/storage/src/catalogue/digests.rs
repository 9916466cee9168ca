//! Checksums of whole titles that clients sent and the server verified, stored beside the file.
//!
//! Promise: they are returned only for the version of the file that they belong to, by inode,
//! length and modification time. They serve clients that compare trees; reads are verified by the
//! store's own checksums.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::FileVersion;

/// Checksums in the form of `oc:checksum`: `SHA1:<hex> MD5:<hex>`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Digests(String);

/// The length of all supported algorithms, with room to spare.
const VALUE_MAX: usize = 384;

impl Digests {
    /// The attribute. Its value: the version, a space, and the checksums.
    pub(crate) const ATTRIBUTE: &str = "user.tactus.digests";

    /// Checksums in canonical form; none when `text` is empty.
    #[must_use]
    pub fn new(text: String) -> Option<Self> {
        let fits = !text.is_empty() && text.len() < VALUE_MAX - VERSION_MAX;
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b": ".contains(&byte));
        (fits && plain).then_some(Self(text))
    }

    /// The text for clients.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Stores them beside `file`, for its current version.
    ///
    /// # Errors
    /// When the file system has no room for them.
    pub fn keep(&self, file: impl AsFd) -> Result<(), Errno> {
        let version = FileVersion::of(&rustix::fs::fstat(&file)?);
        let value = format!("{} {}", bound(&version), self.0);
        rustix::fs::fsetxattr(file, Self::ATTRIBUTE, value.as_bytes(), XattrFlags::empty())
    }

    /// The checksums of an open file; none if there are none for its current version. May block.
    #[must_use]
    pub fn of(file: impl AsFd) -> Option<Self> {
        let version = FileVersion::of(&rustix::fs::fstat(&file).ok()?);
        let mut value = [0; VALUE_MAX];
        let len = rustix::fs::fgetxattr(file, Self::ATTRIBUTE, &mut value).ok()?;
        Self::read(&value[..len], &version)
    }

    /// The checksums of the file `name` in `directory`, if the file has this version. May block.
    pub(super) fn in_directory(
        directory: &OwnedFd,
        name: &CStr,
        version: &FileVersion,
    ) -> Option<Self> {
        let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
        path.extend_from_slice(name.to_bytes());
        let mut value = [0; VALUE_MAX];
        let len = rustix::fs::lgetxattr(path, Self::ATTRIBUTE, &mut value).ok()?;
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

/// Four numbers of sixteen digits, and the separators.
const VERSION_MAX: usize = 4 * 16 + 4;

/// The version without the time that also changes with the attributes.
fn bound(version: &FileVersion) -> String {
    let FileVersion { inode, len, modified: (seconds, nanos), .. } = version;
    format!("{inode:x}.{:x}.{seconds:x}.{nanos:x}", len.0)
}
