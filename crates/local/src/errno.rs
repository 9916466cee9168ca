//! Error numbers of what is refused to a program.
//!
//! Promise: each fault of the store has one number, and the text says what to do.

use tactus_control::changes::ChangeRefusal;
use tactus_storage::store::{ChangeError, NameFault, UploadError};

/// A refusal: an error number, and the reason.
pub(crate) type Refusal = (u32, String);

pub(crate) const ENOENT: u32 = 2;
pub(crate) const EIO: u32 = 5;
pub(crate) const EBADF: u32 = 9;
pub(crate) const EAGAIN: u32 = 11;
pub(crate) const ENOMEM: u32 = 12;
pub(crate) const EACCES: u32 = 13;
pub(crate) const EFAULT: u32 = 14;
pub(crate) const EBUSY: u32 = 16;
pub(crate) const EEXIST: u32 = 17;
const EXDEV: u32 = 18;
pub(crate) const ENOTDIR: u32 = 20;
pub(crate) const EISDIR: u32 = 21;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const EMFILE: u32 = 24;
const EFBIG: u32 = 27;
pub(crate) const ENOSPC: u32 = 28;
pub(crate) const ESPIPE: u32 = 29;
pub(crate) const EROFS: u32 = 30;
const ENOTEMPTY: u32 = 39;
pub(crate) const ENODATA: u32 = 61;
pub(crate) const EPROTO: u32 = 71;
pub(crate) const EBADMSG: u32 = 74;
pub(crate) const EMSGSIZE: u32 = 90;
pub(crate) const EPROTONOSUPPORT: u32 = 93;
pub(crate) const EOPNOTSUPP: u32 = 95;
pub(crate) const ETIMEDOUT: u32 = 110;
pub(crate) const EALREADY: u32 = 114;
pub(crate) const ESTALE: u32 = 116;
pub(crate) const EDQUOT: u32 = 122;
pub(crate) const ECANCELED: u32 = 125;

/// The refusal of a title that is not stored.
pub(crate) fn not_stored(error: &UploadError) -> Refusal {
    let errno = match error {
        UploadError::Name(fault) => of_name(*fault),
        UploadError::Exists => EEXIST,
        // A program can only require that there is a title.
        UploadError::PreconditionFailed => ENOENT,
        UploadError::TooLarge(_) => EFBIG,
        UploadError::Incomplete { .. } => ENODATA,
        UploadError::QuotaExceeded(_) => EDQUOT,
        UploadError::NoSpace => ENOSPC,
        UploadError::TooMany(_) | UploadError::Uncounted(_) => EBUSY,
        UploadError::ReadOnly(_) => EROFS,
        UploadError::Io(error) => of_io(error),
    };
    (errno, error.to_string())
}

/// The refusal of a change of names.
pub(crate) fn not_changed(error: &ChangeError) -> Refusal {
    let errno = match error {
        ChangeError::NotFound => ENOENT,
        ChangeError::Name(fault) => of_name(*fault),
        ChangeError::Exists => EEXIST,
        ChangeError::PreconditionFailed => ENOENT,
        ChangeError::NoSpace => ENOSPC,
        ChangeError::ReadOnly(_) => EROFS,
        ChangeError::Io(error) => of_io(error),
    };
    (errno, error.to_string())
}

/// The refusal of a change that does not begin.
pub(crate) fn not_begun(refusal: &ChangeRefusal) -> Refusal {
    let errno = match refusal {
        ChangeRefusal::NoUploads(_) | ChangeRefusal::Closed(_) => EROFS,
        ChangeRefusal::Reserved(_) => EACCES,
        ChangeRefusal::Down(_) | ChangeRefusal::Failed(_) => EIO,
        ChangeRefusal::Locked(_) | ChangeRefusal::HoldsVolume => EBUSY,
        ChangeRefusal::InUse => EEXIST,
    };
    (errno, refusal.to_string())
}

/// The refusal of a move between volumes.
pub(crate) fn other_volume() -> Refusal {
    (EXDEV, "the new name is on another volume; write the title there instead".to_owned())
}

fn of_name(fault: NameFault) -> u32 {
    match fault {
        NameFault::Path(_) | NameFault::Itself => EINVAL,
        NameFault::Reserved => EACCES,
        NameFault::NoDirectory => ENOTDIR,
        NameFault::NoTitle => EISDIR,
        NameFault::NotEmpty => ENOTEMPTY,
    }
}

fn of_io(error: &std::io::Error) -> u32 {
    error.raw_os_error().map_or(EIO, i32::unsigned_abs)
}
