//! Titles that are written at a rate.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use tactus_client::{BitRate, Error, Recording, RecordingOptions};

use crate::writing::replace_of;
use crate::{EINVAL, NULL, TactusClient, failed, of, of_mut, put, status, text};

/// A title that is written at a rate, through a ring of memory that the server shares. One thread
/// at a time may use it.
pub struct TactusRecording(Recording);

/// What can be chosen for a recording.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TactusRecordingOptions {
    /// The most bits per second that the program writes.
    pub rate: u64,
    /// TACTUS_REPLACE_TITLES, _NOTHING or _EXISTING.
    pub replace: c_int,
    /// Bytes of the ring: how far the server may be behind. 0: half a second, at least 256 KiB.
    pub room: u64,
}

/// How a recording gets on.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TactusRecordingState {
    /// Bytes handed over.
    pub len: u64,
    /// Bytes, from the first one on, that a power failure does not take any more.
    pub durable: u64,
    /// How often the program was faster than its rate: the ring was full when the server came.
    pub overruns: u64,
    /// How often the program was slower than its rate.
    pub underruns: u64,
}

/// Begins to write the title `path` at a rate.
///
/// Returns 0 or a negative error number: -EBUSY if the server has no disk time for such a
/// recording, -ENOSPC if it has no memory for it; tactus_error() names the resource. -EINVAL for a
/// rate or room that cannot be, or as tactus_create().
///
/// # Safety
/// `client` and `options` are valid; `path` is a string; `recording` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_record(
    client: *const TactusClient,
    path: *const c_char,
    options: *const TactusRecordingOptions,
    recording: *mut *mut TactusRecording,
) -> c_int {
    let begin = || {
        // SAFETY: as the caller promises.
        let (client, path) = (unsafe { of(client) }?, unsafe { text(path) }?);
        // SAFETY: as the caller promises.
        let TactusRecordingOptions { rate, replace, room } = *unsafe { of(options) }?;
        let (rate, replace) = (BitRate(rate), replace_of(replace)?);
        if recording.is_null() {
            return Err(NULL);
        }
        let begun = client.0.record(path, &RecordingOptions { rate, replace, room })?;
        // SAFETY: as the caller promises.
        unsafe { put(recording, Box::into_raw(Box::new(TactusRecording(begun)))) }
    };
    status(begin())
}

/// Waits until bytes are free in the ring, for `timeout_ns` nanoseconds at most; 0 does not wait, a
/// negative number is no limit. They lie behind each other from `*bytes` on, for the program to
/// fill, until tactus_recording_commit() hands them over; a later call returns them again.
///
/// Returns the number of bytes; 0 if none is free; or a negative error number (-ENOSPC, -EDQUOT,
/// -EIO) if the recording has ended early. The bytes that the server took before are a title.
///
/// # Safety
/// `recording` is valid; `bytes` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_recording_wait(
    recording: *mut TactusRecording,
    timeout_ns: i64,
    bytes: *mut *mut u8,
) -> i64 {
    let wait = || {
        // SAFETY: as the caller promises.
        let recording = unsafe { of_mut(recording) }?;
        let space = match u64::try_from(timeout_ns) {
            Ok(0) => recording.0.space()?,
            Ok(timeout) => recording.0.wait(Some(Duration::from_nanos(timeout)))?,
            Err(_) => recording.0.wait(None)?,
        };
        // SAFETY: as the caller promises.
        unsafe { put(bytes, space.as_mut_ptr()) }?;
        Ok(space.len() as i64)
    };
    wait().unwrap_or_else(|error: Error| failed(&error).into())
}

/// Hands the first `len` bytes of tactus_recording_wait() over.
///
/// Returns 0, or -EINVAL if they are more than were free.
///
/// # Safety
/// `recording` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_recording_commit(
    recording: *mut TactusRecording,
    len: usize,
) -> c_int {
    let commit = || {
        // SAFETY: as the caller promises.
        let recording = unsafe { of_mut(recording) }?;
        if len > recording.0.room() {
            return Err(TOO_MUCH);
        }
        recording.0.commit(len);
        Ok(())
    };
    status(commit())
}

/// Copies bytes into the ring and hands them over. Waits for room: a program that is faster than
/// its rate is held to it.
///
/// Returns 0 or a negative error number, as tactus_recording_wait().
///
/// # Safety
/// `recording` is valid; `bytes` is valid for reading `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_recording_write(
    recording: *mut TactusRecording,
    bytes: *const c_void,
    len: usize,
) -> c_int {
    let write = || {
        // SAFETY: as the caller promises.
        let recording = unsafe { of_mut(recording) }?;
        if bytes.is_null() || len > isize::MAX as usize {
            return if len == 0 { Ok(()) } else { Err(NULL) };
        }
        // SAFETY: as the caller promises, and no longer than a slice may be.
        recording.0.write_all(unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) })
    };
    status(write())
}

/// How a recording gets on.
///
/// Returns 0, or -EINVAL for null.
///
/// # Safety
/// `recording` is null or valid; `state` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_recording_look(
    recording: *const TactusRecording,
    state: *mut TactusRecordingState,
) -> c_int {
    // SAFETY: as the caller promises.
    let look = unsafe { of(recording) }.and_then(|TactusRecording(recording)| {
        let (len, durable) = (recording.len(), recording.durable());
        let (overruns, underruns) = (recording.overruns(), recording.underruns());
        // SAFETY: as the caller promises.
        unsafe { put(state, TactusRecordingState { len, durable, overruns, underruns }) }
    });
    status(look)
}

/// Makes a title of all bytes, and waits until its bytes and its name are on stable storage. The
/// recording ends in each case.
///
/// Returns 0 or a negative error number: as tactus_recording_wait(), and -ENODATA if no byte was
/// handed over: then there is no title.
///
/// # Safety
/// `recording` is from tactus_record() and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_recording_finish(recording: *mut TactusRecording) -> c_int {
    if recording.is_null() {
        return failed(&NULL);
    }
    // SAFETY: as the caller promises.
    let recording = unsafe { Box::from_raw(recording) };
    status(recording.0.finish().map(drop))
}

/// Closes a recording without waiting for its end. The server makes a title of the bytes that were
/// handed over. A null pointer is ignored.
///
/// # Safety
/// `recording` is from tactus_record() and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_recording_free(recording: *mut TactusRecording) {
    if !recording.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(recording) });
    }
}

const TOO_MUCH: Error = Error::with_errno(EINVAL, "only bytes that are free can be handed over");
