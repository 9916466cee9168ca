//! Titles at a rate.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use tactus_client::{BitRate, Error, Stream, StreamOptions};

use crate::{EINVAL, NULL, TactusClient, TactusTitle, failed, of, of_mut, put, status};

/// A title that comes at a rate, into a ring of memory that the server shares. One thread at a time
/// may use it.
pub struct TactusStream(Stream);

/// What can be chosen for a stream.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TactusStreamOptions {
    /// The first byte of the title.
    pub first: u64,
    /// Bits per second; 0: the title's own rate, which may vary with its content.
    pub rate: u64,
    /// Bytes that come at once at the beginning, if the rate is constant.
    pub burst: u64,
    /// Bytes of the ring: how far the program may be behind. 0: the burst and half a second, at
    /// least 256 KiB.
    pub room: u64,
}

/// Has a title sent at a rate. `options` may be null: from the beginning at its own rate.
///
/// Returns 0 or a negative error number: -EBUSY if the server has no room for such a stream,
/// -ENOSPC if it has no memory for it; tactus_error() names the resource.
///
/// # Safety
/// `client` and `title` are valid; `options` is null or valid; `stream` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_stream_new(
    client: *const TactusClient,
    title: *const TactusTitle,
    options: *const TactusStreamOptions,
    stream: *mut *mut TactusStream,
) -> c_int {
    let begin = || {
        // SAFETY: as the caller promises.
        let (client, title) = (unsafe { of(client) }?, unsafe { of(title) }?);
        // SAFETY: as the caller promises.
        let chosen = unsafe { options.as_ref() }.map_or_else(StreamOptions::default, |chosen| {
            let rate = (chosen.rate > 0).then_some(BitRate(chosen.rate));
            let TactusStreamOptions { first, burst, room, .. } = *chosen;
            StreamOptions { first, rate, burst, room }
        });
        if stream.is_null() {
            return Err(NULL);
        }
        let begun = Box::new(TactusStream(client.0.stream(&title.0, &chosen)?));
        // SAFETY: as the caller promises.
        unsafe { put(stream, Box::into_raw(begun)) }
    };
    status(begin())
}

/// Ends a stream. Its chunks must not be touched any more. Null is ignored.
///
/// # Safety
/// `stream` is from tactus_stream_new() and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_stream_free(stream: *mut TactusStream) {
    if !stream.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(stream) });
    }
}

/// The rate in bits per second; the highest one if it varies with the content. 0 for null.
///
/// # Safety
/// `stream` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_stream_rate(stream: *const TactusStream) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { stream.as_ref() }.map_or(0, |stream| stream.0.rate().0)
}

/// The byte of the title that comes next to the program. 0 for null.
///
/// # Safety
/// `stream` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_stream_position(stream: *const TactusStream) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { stream.as_ref() }.map_or(0, |stream| stream.0.position())
}

/// Whether the program has consumed the title to its end.
///
/// # Safety
/// `stream` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_stream_at_end(stream: *const TactusStream) -> bool {
    // SAFETY: as the caller promises.
    unsafe { stream.as_ref() }.is_none_or(|stream| stream.0.is_at_end())
}

/// Waits until bytes have come, for `timeout_ns` nanoseconds at most; 0 does not wait, a negative
/// number is no limit. The bytes lie in the ring, behind each other from `*bytes` on. They stay
/// until they are consumed; a later call returns them again, with those that have come since.
///
/// Returns the number of bytes; 0 if none has come, or the title is at its end; or a negative error
/// number that says why the stream has ended early, when all bytes that have come are consumed.
///
/// # Safety
/// `stream` is valid; `bytes` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_stream_wait(
    stream: *mut TactusStream,
    timeout_ns: i64,
    bytes: *mut *const u8,
) -> i64 {
    let wait = || {
        // SAFETY: as the caller promises.
        let stream = unsafe { of_mut(stream) }?;
        let chunk = match u64::try_from(timeout_ns) {
            Ok(0) => stream.0.chunk()?,
            Ok(timeout) => stream.0.wait(Some(Duration::from_nanos(timeout)))?,
            Err(_) => stream.0.wait(None)?,
        };
        // SAFETY: as the caller promises.
        unsafe { put(bytes, chunk.as_ptr()) }?;
        Ok(chunk.len() as i64)
    };
    wait().unwrap_or_else(|error: Error| failed(&error).into())
}

/// Gives the next `len` bytes back: the server may write there.
///
/// Returns 0, or -EINVAL if they are more than the last tactus_stream_wait() has returned.
///
/// # Safety
/// `stream` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_stream_consume(stream: *mut TactusStream, len: usize) -> c_int {
    let consume = || {
        // SAFETY: as the caller promises.
        let stream = unsafe { of_mut(stream) }?;
        if len > stream.0.seen() {
            return Err(TOO_MUCH);
        }
        stream.0.consume(len);
        Ok(())
    };
    status(consume())
}

/// Copies the next bytes, as many as have come and `len` at most, and consumes them. Waits for at
/// least one.
///
/// Returns the number of bytes, which is 0 only at the end of the title or if `len` is 0; or a
/// negative error number.
///
/// # Safety
/// `stream` is valid; `into` is valid for writing `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_stream_read(
    stream: *mut TactusStream,
    into: *mut c_void,
    len: usize,
) -> i64 {
    let read = || {
        // SAFETY: as the caller promises.
        let stream = unsafe { of_mut(stream) }?;
        if into.is_null() || len > isize::MAX as usize {
            return if len == 0 { Ok(0) } else { Err(NULL) };
        }
        // SAFETY: as the caller promises, and no longer than a slice may be. A program may have
        // left the bytes undefined; they are written and never read.
        let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), len) };
        stream.0.read(into)
    };
    read().map_or_else(|error| failed(&error).into(), |bytes| bytes as i64)
}

/// Goes on at another byte of the title, at once. Bytes of the old place are dropped.
///
/// Returns 0; -EINVAL if the byte is behind the end, and the stream goes on where it is; or another
/// negative error number, and the stream has ended.
///
/// # Safety
/// `stream` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_stream_seek(stream: *mut TactusStream, to: u64) -> c_int {
    // SAFETY: as the caller promises.
    status(unsafe { of_mut(stream) }.and_then(|stream| stream.0.seek(to)))
}

const TOO_MUCH: Error = Error::with_errno(EINVAL, "only bytes that have come can be consumed");
