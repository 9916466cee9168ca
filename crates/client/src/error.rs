//! What goes wrong, as an error number and a text.

use std::borrow::Cow;
use std::{fmt, io};

use rustix::io::Errno;

/// What went wrong: an error number of the system, and what was attempted.
///
/// Numbers with a meaning of their own:
///
/// | number | meaning |
/// |---|---|
/// | `EAGAIN` | no room for more requests; take completions, then try again |
/// | `ENOBUFS` | no free range of this length in the data; drop buffers or connect with more |
/// | `ECONNRESET` | the server has gone; connect again |
/// | `ETIMEDOUT` | no answer within [`patience`](crate::Options::patience); connect again |
/// | `EPROTO` | the server wrote an answer that no request has; connect again |
/// | `EPROTONOSUPPORT` | the server speaks another version of the protocol |
/// | `EINVAL` | a title or a buffer of another client, or a length that cannot be |
///
/// All other numbers are the server's, for instance `ENOENT` or `EACCES` when a title is opened,
/// `EIO` when a disk cannot read, and `ENOSPC`, `EDQUOT` or `EFBIG` when a title is written.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    errno: Errno,
    message: Cow<'static, str>,
}

/// The result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) const fn new(errno: Errno, message: &'static str) -> Self {
        Self { errno, message: Cow::Borrowed(message) }
    }

    /// An error of a library that is built upon this one, with a number of `errno.h`.
    #[must_use]
    pub const fn with_errno(errno: i32, message: &'static str) -> Self {
        Self::new(Errno::from_raw_os_error(errno), message)
    }

    /// What a system call says while `message`.
    pub(crate) fn system(error: &io::Error, message: &'static str) -> Self {
        // Errors without a number come from malformed messages.
        let errno = error.raw_os_error().map_or(Errno::PROTO, Errno::from_raw_os_error);
        Self::new(errno, message)
    }

    /// What the server says: a number from a message or an answer.
    pub(crate) fn server(errno: u32, message: impl Into<Cow<'static, str>>) -> Self {
        let is_possible = (1..=ERRNO_MAX).contains(&errno);
        let errno = if is_possible { Errno::from_raw_os_error(errno as i32) } else { Errno::PROTO };
        Self { errno, message: message.into() }
    }

    pub(crate) const fn gone() -> Self {
        Self::new(Errno::CONNRESET, "the server has gone; connect again")
    }

    pub(crate) const fn broken() -> Self {
        Self::new(Errno::PROTO, "the server wrote an answer that no request has; connect again")
    }

    /// The error number, as in `errno.h`.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        self.errno.raw_os_error()
    }

    /// The text, without the error number.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.message, io::Error::from(self.errno))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    /// Keeps the number, so that its kind can be matched; the text is lost.
    fn from(error: Error) -> Self {
        error.errno.into()
    }
}

/// The error of a submitted request that was answered with an error number.
pub(crate) fn request_failed(errno: u32) -> Error {
    if errno == Errno::CONNRESET.raw_os_error() as u32 {
        return Error::gone();
    }
    Error::server(
        errno,
        match Errno::from_raw_os_error(errno as i32) {
            Errno::TIME => "the moment is nearer than the reads of its blocks take",
            Errno::BUSY => "the moments are closer to each other than was reserved",
            Errno::MSGSIZE => "the read is longer than was reserved",
            _ => "the server has not carried the request out",
        },
    )
}

/// The largest error number of Linux (`MAX_ERRNO`).
const ERRNO_MAX: u32 = 4095;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_none_are_errors_of_the_protocol() {
        for errno in [0, ERRNO_MAX + 1, u32::MAX] {
            assert_eq!(Error::server(errno, "x").errno(), Errno::PROTO.raw_os_error(), "{errno}");
        }
        let error = Error::server(2, "no title has this name");
        assert_eq!(error.message(), "no title has this name");
        assert!(error.to_string().contains("os error 2"), "{error}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
    }
}
