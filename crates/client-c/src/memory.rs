//! Titles that are built in memory.

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

use tactus_client::MemoryWriter;

use crate::writing::replace_of;
use crate::{NULL, TactusClient, failed, of, of_mut, put, status, text};

/// A title that is built in memory. One thread at a time may use it.
pub struct TactusMemory(MemoryWriter);

/// The memory of a title.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TactusMemoryView {
    /// The first byte of the title. It never moves.
    pub data: *mut u8,
    /// The number of bytes that are there.
    pub len: u64,
    /// The number of bytes that are final: they must not be changed.
    pub written_back: u64,
    /// The most bytes that the memory can ever have.
    pub limit: u64,
}

/// Begins to build the title `path` in memory, without bytes at first. It has no name before
/// tactus_memory_publish(). `replace` is TACTUS_REPLACE_TITLES, _NOTHING or _EXISTING.
///
/// Returns 0 or a negative error number, as tactus_create().
///
/// # Safety
/// `client` is valid; `path` is a string; `memory` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_memory_create(
    client: *const TactusClient,
    path: *const c_char,
    replace: c_int,
    memory: *mut *mut TactusMemory,
) -> c_int {
    let create = || {
        // SAFETY: as the caller promises.
        let (client, path) = (unsafe { of(client) }?, unsafe { text(path) }?);
        let created = client.0.create_in_memory(path, replace_of(replace)?)?;
        // SAFETY: as the caller promises.
        unsafe { put(memory, Box::into_raw(Box::new(TactusMemory(created)))) }
    };
    status(create())
}

/// Begins to build the next version of the title `path` in memory: the memory begins with the bytes
/// that the title has now.
///
/// Returns 0 or a negative error number, as tactus_create(); -ENOMEM if the memory for titles of
/// programs is in use.
///
/// # Safety
/// `client` is valid; `path` is a string; `memory` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_memory_edit(
    client: *const TactusClient,
    path: *const c_char,
    memory: *mut *mut TactusMemory,
) -> c_int {
    let edit = || {
        // SAFETY: as the caller promises.
        let (client, path) = (unsafe { of(client) }?, unsafe { text(path) }?);
        let created = client.0.edit_in_memory(path)?;
        // SAFETY: as the caller promises.
        unsafe { put(memory, Box::into_raw(Box::new(TactusMemory(created)))) }
    };
    status(edit())
}

/// Goes on to build the title `path` as far as it was synced before this program, the server or the
/// machine has ended. `upload` is what tactus_memory_upload() has said.
///
/// Returns 0 or a negative error number, as tactus_memory_edit(); -ENOENT if there is no such
/// upload of this title, or it has expired; -EALREADY if it was published.
///
/// # Safety
/// `client` is valid; `path` and `upload` are strings; `memory` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_memory_resume(
    client: *const TactusClient,
    path: *const c_char,
    upload: *const c_char,
    memory: *mut *mut TactusMemory,
) -> c_int {
    let resume = || {
        // SAFETY: as the caller promises.
        let (client, path) = (unsafe { of(client) }?, unsafe { text(path) }?);
        // SAFETY: as the caller promises.
        let created = client.0.resume_in_memory(path, unsafe { text(upload) }?)?;
        // SAFETY: as the caller promises.
        unsafe { put(memory, Box::into_raw(Box::new(TactusMemory(created)))) }
    };
    status(resume())
}

/// The memory of the title as it is now.
///
/// # Safety
/// `memory` is valid; `info` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_memory_info(
    memory: *const TactusMemory,
    info: *mut TactusMemoryView,
) -> c_int {
    let tell = || {
        // SAFETY: as the caller promises.
        let writer = &unsafe { of(memory) }?.0;
        let (len, written_back, limit) =
            (writer.len() as u64, writer.written_back(), writer.limit());
        let data = writer.as_ptr().cast_mut();
        // SAFETY: as the caller promises.
        unsafe { put(info, TactusMemoryView { data, len, written_back, limit }) }
    };
    status(tell())
}

/// What the title is continued by after a crash, if it was synced: tactus_memory_resume(), or
/// "/api/v1/uploads/UPLOAD" over HTTP. Writes at most `size` bytes with the final zero.
///
/// Returns the number of bytes without the final zero, or a negative error number: -ERANGE if
/// `size` is too small.
///
/// # Safety
/// `memory` is valid; `text` is valid for writing `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_memory_upload(
    memory: *const TactusMemory,
    text: *mut c_char,
    size: usize,
) -> c_int {
    let tell = || {
        // SAFETY: as the caller promises.
        let upload = unsafe { of(memory) }?.0.upload();
        if text.is_null() {
            return Err(NULL);
        }
        if upload.len() >= size {
            return Err(TOO_SMALL);
        }
        let len = upload.len() + 1;
        // SAFETY: no longer than `size`, and as the caller promises; nothing is read there.
        let into = unsafe { std::slice::from_raw_parts_mut(text.cast::<MaybeUninit<u8>>(), len) };
        for (into, byte) in into.iter_mut().zip(upload.bytes().chain([0])) {
            into.write(byte);
        }
        Ok(upload.len() as c_int)
    };
    tell().unwrap_or_else(|error| failed(&error))
}

/// Has memory for at least `len` bytes from now on, new ones zero, and quota and space for a title
/// of this length.
///
/// Returns 0 or a negative error number: -ENOMEM if the memory for titles of programs is in use,
/// -EDQUOT, -ENOSPC, -EFBIG. The title has the room that it had before then.
///
/// # Safety
/// `memory` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_memory_grow(memory: *mut TactusMemory, len: u64) -> c_int {
    // SAFETY: as the caller promises.
    status(unsafe { of_mut(memory) }.and_then(|memory| memory.0.grow(len)))
}

/// Makes the first `end` bytes final, and waits until the server has taken them.
///
/// Returns 0 or a negative error number: -EINVAL if there are not so many bytes, or more are final
/// already. After another error the title cannot be completed.
///
/// # Safety
/// `memory` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_memory_write_back(memory: *mut TactusMemory, end: u64) -> c_int {
    // SAFETY: as the caller promises.
    status(unsafe { of_mut(memory) }.and_then(|memory| memory.0.write_back(end)))
}

/// The same, and waits until they are on stable storage: they outlive a crash of this program, of
/// the server and of the machine.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// `memory` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_memory_sync(memory: *mut TactusMemory, end: u64) -> c_int {
    // SAFETY: as the caller promises.
    status(unsafe { of_mut(memory) }.and_then(|memory| memory.0.sync(end)))
}

/// Makes a title of the first `len` bytes, and waits until its bytes and its name are on stable
/// storage. `modified_ns` is its modification time in nanoseconds since 1970; 0: now. The memory
/// ends in each case.
///
/// Returns 0 or a negative error number: as tactus_create(), and -ESTALE for the next version of a
/// title of which there is another version by now.
///
/// # Safety
/// `memory` is from tactus_memory_create(), _edit() or _resume() and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_memory_publish(
    memory: *mut TactusMemory,
    len: u64,
    modified_ns: i64,
) -> c_int {
    if memory.is_null() {
        return failed(&NULL);
    }
    // SAFETY: as the caller promises.
    let memory = unsafe { Box::from_raw(memory) };
    status(memory.0.publish_at(len, modified_ns))
}

/// Closes the memory. The synced part of the title remains as an open upload. A null pointer is
/// ignored.
///
/// # Safety
/// `memory` is from tactus_memory_create(), _edit() or _resume() and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_memory_close(memory: *mut TactusMemory) {
    if !memory.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(memory) });
    }
}

/// Closes the memory and deletes the title, the synced part included. Its disk space is free when
/// this returns. A null pointer is ignored.
///
/// # Safety
/// `memory` is from tactus_memory_create(), _edit() or _resume() and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_memory_abort(memory: *mut TactusMemory) {
    if !memory.is_null() {
        // SAFETY: as the caller promises.
        let memory = unsafe { Box::from_raw(memory) };
        // A server that has gone has given it up, or keeps it until it expires.
        memory.0.abort().ok();
    }
}

const TOO_SMALL: tactus_client::Error =
    tactus_client::Error::with_errno(34, "the text has no room for the name of the upload");
