//! The errors of the store: one enum for each kind of operation.
//!
//! Each message says what to do. Each protocol maps an error to its own status code.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use tactus_core::path::PathFault;
use tactus_core::units::Bytes;

/// Why a volume takes no uploads.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another server uses the volume.
    #[error("{0} is in use by another server; stop it, or give each server a directory of its own")]
    InUse(PathBuf),
    /// Its file system has no extended attributes.
    #[error(
        "the file system of {0} has no user attributes, which checksums need; mount it with them \
         (`user_xattr`), or store uploads elsewhere"
    )]
    NoAttributes(PathBuf),
    /// A write or a flush failed there, and the volume has not been checked since.
    #[error(
        "{0} takes no uploads: a write or flush has failed there; check it, then `tactus verify \
         --clear {0}`"
    )]
    Unchecked(PathBuf),
    /// Another user can say what becomes of unfinished uploads.
    #[error(
        "{root}/.tactus belongs to the user {owner}, who could name titles there; give it to the \
         server's user (`chown -R`) after a look at its contents"
    )]
    Foreign {
        /// The volume's directory.
        root: PathBuf,
        /// The number of the user.
        owner: u32,
    },
    /// The file system is read-only, perhaps after an error.
    #[error(
        "{0} takes no uploads: its file system is read-only; see the kernel's log, check it and \
         mount it again"
    )]
    ReadOnly(PathBuf),
    /// One of the server's own files or directories cannot be used.
    #[error("cannot prepare {what} of {root} for uploads: {error}")]
    Failed {
        /// The volume's directory.
        root: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The error of the kernel.
        error: io::Error,
    },
}

/// Why a name cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NameFault {
    /// It breaks a rule for paths.
    #[error("{0}")]
    Path(PathFault),
    /// It is reserved for the server.
    #[error("names that begin with `.tactus` are reserved; choose another")]
    Reserved,
    /// A part of its path is a title, a link or another disk.
    #[error("a part of the path is no directory of this volume")]
    NoDirectory,
    /// The name belongs to something other than a title.
    #[error("a directory or another thing that is no title has this name")]
    NoTitle,
    /// The directory has contents.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A directory would become a part of itself.
    #[error("a directory cannot be moved into itself, or over one that it is in")]
    Itself,
}

/// Why an upload does not begin, continue or complete.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The name cannot be used.
    #[error(transparent)]
    Name(#[from] NameFault),
    /// A title already has the name.
    #[error("a title has this name already")]
    Exists,
    /// The precondition does not hold: the title is another version, or there is none.
    #[error("the title is not the requested version")]
    PreconditionFailed,
    /// The title exceeds the limit, or its declared length.
    #[error("the title is larger than {0} bytes, the limit of this server")]
    TooLarge(u64),
    /// Fewer bytes arrived than were declared.
    #[error("the body ended after {got} of {declared} declared bytes")]
    Incomplete {
        /// Bytes that arrived.
        got: u64,
        /// Bytes that were declared.
        declared: u64,
    },
    /// The quota is used up.
    #[error("the quota has room for {0} bytes more; delete something, or ask for more")]
    QuotaExceeded(u64),
    /// A part of the volume cannot be read, so the free quota is unknown.
    #[error(
        "cannot apply the quota, because {0} cannot be read; let the server read it, and restart"
    )]
    Uncounted(String),
    /// The disk is full.
    #[error(
        "the disk has no room for this: 1 % of it, and at least 256 MiB, stay free; delete \
         something"
    )]
    NoSpace,
    /// Too many uploads are open.
    #[error("{0} uploads are open already; finish or delete one, or wait until they expire")]
    TooMany(u32),
    /// An earlier write failed, so the volume accepts no more.
    #[error(
        "the volume takes no uploads since a write failed: {0}; restart after checking the disk"
    )]
    ReadOnly(String),
    /// A write failed. The upload is lost, and the volume accepts no more.
    #[error("the disk failed: {0}")]
    Io(io::Error),
}

/// Why a resumable upload does not continue.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// There is no such upload, or it belongs to another principal.
    #[error("no upload has this identifier")]
    NotFound,
    /// The client's offset differs from the journal's.
    #[error("the upload goes on at byte {0}")]
    OffsetMismatch(u64),
    /// Another request is writing and did not end in time.
    #[error("another request is writing to this upload; try again shortly")]
    Locked,
    /// A newer request has taken over.
    #[error("a newer request has taken over this upload")]
    Superseded,
    /// The upload is complete and has its name.
    #[error("the upload is finished")]
    Finished,
    /// The length was declared before.
    #[error("the length of this upload is already set")]
    LengthKnown,
    /// The protocol's metadata is too long.
    #[error("the metadata is larger than {0} bytes")]
    MetadataTooLarge(usize),
    /// The parts of a title do not fit together.
    #[error("{0}")]
    Parts(&'static str),
    /// The stored bytes of the upload do not match its checksums.
    #[error("the stored part of this upload is damaged; start a new upload")]
    Damaged,
    /// The parts cannot be read at present.
    #[error("the parts cannot be joined now: {0}")]
    Busy(super::source::Busy),
    /// An error that every upload can have.
    #[error(transparent)]
    Upload(#[from] UploadError),
}

/// Why a title or a directory is not deleted, renamed or made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The name is free.
    #[error("no title has this name")]
    NotFound,
    /// The name cannot be used.
    #[error(transparent)]
    Name(#[from] NameFault),
    /// The new name is in use.
    #[error("this name is already in use")]
    Exists,
    /// The precondition does not hold: the title is another version.
    #[error("the title is not the requested version")]
    PreconditionFailed,
    /// The disk is full: not even a name fits.
    #[error("the disk has no room for another name; delete something")]
    NoSpace,
    /// An earlier write failed, so the volume accepts no more.
    #[error(
        "the volume takes no changes since a write failed: {0}; restart after checking the disk"
    )]
    ReadOnly(String),
    /// The disk has failed.
    #[error("the disk failed: {0}")]
    Io(io::Error),
}

impl ResumeError {
    pub(super) fn io(error: io::Error) -> Self {
        Self::Upload(UploadError::Io(error))
    }
}

impl From<UploadError> for ChangeError {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::Name(fault) => Self::Name(fault),
            UploadError::Exists => Self::Exists,
            UploadError::PreconditionFailed => Self::PreconditionFailed,
            UploadError::NoSpace | UploadError::QuotaExceeded(_) => Self::NoSpace,
            UploadError::ReadOnly(why) => Self::ReadOnly(why),
            UploadError::Io(error) => Self::Io(error),
            other => Self::Io(io::Error::other(other.to_string())),
        }
    }
}

/// Whether the file system is full, as opposed to broken.
pub(super) fn is_full(error: &io::Error) -> bool {
    [Errno::NOSPC, Errno::DQUOT]
        .iter()
        .any(|full| error.raw_os_error() == Some(full.raw_os_error()))
}

/// Whether the process has too many open files. No write and no flush fails with this.
pub fn is_busy(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE]
        .iter()
        .any(|busy| error.raw_os_error() == Some(busy.raw_os_error()))
}

/// The error for this limit.
pub(super) fn too_large(limit: Bytes) -> UploadError {
    UploadError::TooLarge(limit.0)
}
