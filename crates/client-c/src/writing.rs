//! Titles that are written, and names that are changed.

use std::ffi::{c_char, c_int, c_void};

use tactus_client::{Client, Error, Replace, WriteOptions, WriteRequest, Writer};

use crate::{EINVAL, NULL, TactusBuffer, TactusClient, failed, of, put, raw_of, status, text};

/// A title that is written. It can be used by several threads at once; its requests are carried out
/// in order.
pub struct TactusWriter(Writer);

/// An older title with the name is replaced, if there is one.
pub const TACTUS_REPLACE_TITLES: c_int = 0;
/// The name must be free: -EEXIST.
pub const TACTUS_REPLACE_NOTHING: c_int = 1;
/// A title must have the name: -ENOENT.
pub const TACTUS_REPLACE_EXISTING: c_int = 2;

/// What can be chosen for a title that is written.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TactusWriteOptions {
    /// Its length in bytes, for which space and quota are claimed at the beginning; a negative
    /// number: not known.
    pub len: i64,
    /// TACTUS_REPLACE_TITLES, _NOTHING or _EXISTING.
    pub replace: c_int,
}

/// Begins to write the title `path`, which has no name before tactus_publish(). `options` may be
/// null: the length is not known, and an older title is replaced.
///
/// Returns 0 or a negative error number: -EACCES if this user may not write, -EEXIST or -ENOENT as
/// `options` say, -EISDIR, -EBUSY if another client has locked the name, -ENOSPC, -EDQUOT, -EFBIG,
/// -EROFS if the volume takes no titles, -EMFILE.
///
/// # Safety
/// `client` is valid; `path` is a string; `options` is null or valid; `writer` is valid for
/// writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_create(
    client: *const TactusClient,
    path: *const c_char,
    options: *const TactusWriteOptions,
    writer: *mut *mut TactusWriter,
) -> c_int {
    let create = || {
        // SAFETY: as the caller promises.
        let (client, path) = (unsafe { of(client) }?, unsafe { text(path) }?);
        let mut chosen = WriteOptions::default();
        // SAFETY: as the caller promises.
        if let Some(options) = unsafe { options.as_ref() } {
            chosen.len = u64::try_from(options.len).ok();
            chosen.replace = replace_of(options.replace)?;
        }
        let created = Box::new(TactusWriter(client.0.create(path, &chosen)?));
        // SAFETY: as the caller promises.
        unsafe { put(writer, Box::into_raw(created)) }
    };
    status(create())
}

/// Appends bytes, and waits until the server has them in its own memory.
///
/// Returns 0 or a negative error number. After an error the title cannot be completed.
///
/// # Safety
/// `writer` is valid; `bytes` is valid for reading `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_write_all(
    writer: *const TactusWriter,
    bytes: *const c_void,
    len: usize,
) -> c_int {
    let write = || {
        // SAFETY: as the caller promises.
        let writer = unsafe { of(writer) }?;
        if bytes.is_null() || len > isize::MAX as usize {
            return if len == 0 { Ok(()) } else { Err(NULL) };
        }
        // SAFETY: as the caller promises, and no longer than a slice may be.
        writer.0.write_all(unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) })
    };
    status(write())
}

/// Waits until all bytes so far are on stable storage. They are no title before tactus_publish().
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// `writer` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_sync(writer: *const TactusWriter) -> c_int {
    // SAFETY: as the caller promises.
    status(unsafe { of(writer) }.and_then(|writer| writer.0.sync()))
}

/// Makes a title of all bytes, and waits until its bytes and its name are on stable storage.
/// `modified_ns` is its modification time in nanoseconds since 1970; 0: now. The writer ends in
/// each case.
///
/// Returns 0 or a negative error number: as tactus_create(), and -ENODATA if the title has fewer
/// bytes than its length.
///
/// # Safety
/// `writer` is from tactus_create() and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_publish(writer: *mut TactusWriter, modified_ns: i64) -> c_int {
    if writer.is_null() {
        return failed(&NULL);
    }
    // SAFETY: as the caller promises.
    let writer = unsafe { Box::from_raw(writer) };
    status(writer.0.publish_at(modified_ns))
}

/// Ends a writer and drops an unpublished title. Its space is free when this returns.
/// Null is ignored.
///
/// # Safety
/// `writer` is from tactus_create() and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_abort(writer: *mut TactusWriter) {
    if !writer.is_null() {
        // SAFETY: as the caller promises.
        let writer = unsafe { Box::from_raw(writer) };
        // A server that has gone has nothing of it.
        writer.0.abort().ok();
    }
}

/// Submits a write of the first `len` bytes of the buffer. Its completion comes from tactus_wait()
/// or tactus_poll(), when the server has the bytes. `token` may be null.
///
/// Returns 0 or a negative error number, as tactus_submit(). In each case the buffer belongs to the
/// library.
///
/// # Safety
/// `client` and `writer` are valid; `buffer` is a buffer of this client that belongs to the
/// program; `token` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_submit_write(
    client: *const TactusClient,
    writer: *const TactusWriter,
    buffer: TactusBuffer,
    len: u32,
    token: *mut u64,
) -> c_int {
    let submit = || {
        // SAFETY: as the caller promises.
        let client = unsafe { of(client) }?;
        // SAFETY: as the caller promises.
        let buffer = unsafe { client.0.buffer_from_raw(raw_of(buffer)) };
        // SAFETY: as the caller promises.
        let writer = unsafe { of(writer) }?;
        let request = WriteRequest::new(&writer.0, buffer).len(len as usize);
        // SAFETY: as the caller promises.
        unsafe { submitted(&client.0, request, token) }
    };
    status(submit())
}

/// Submits a request as tactus_sync(). Its completion has an empty buffer, which must be freed like
/// every other one. `token` may be null.
///
/// # Safety
/// As tactus_submit_write().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_submit_sync(
    client: *const TactusClient,
    writer: *const TactusWriter,
    token: *mut u64,
) -> c_int {
    let submit = || {
        // SAFETY: as the caller promises.
        let (client, writer) = (unsafe { of(client) }?, unsafe { of(writer) }?);
        // SAFETY: as the caller promises.
        unsafe { submitted(&client.0, WriteRequest::sync(&writer.0), token) }
    };
    status(submit())
}

/// Submits a request as tactus_publish(), which leaves the writer: end it with tactus_abort() after
/// the completion. `token` may be null.
///
/// # Safety
/// As tactus_submit_write().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_submit_publish(
    client: *const TactusClient,
    writer: *const TactusWriter,
    modified_ns: i64,
    token: *mut u64,
) -> c_int {
    let submit = || {
        // SAFETY: as the caller promises.
        let (client, writer) = (unsafe { of(client) }?, unsafe { of(writer) }?);
        let request = WriteRequest::publish(&writer.0).modified(modified_ns);
        // SAFETY: as the caller promises.
        unsafe { submitted(&client.0, request, token) }
    };
    status(submit())
}

/// Removes a title. Like all changes of names it is on stable storage when the call returns.
///
/// Returns 0 or a negative error number: -ENOENT, -EISDIR, or as tactus_create().
///
/// # Safety
/// `client` is valid; `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_remove(client: *const TactusClient, path: *const c_char) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { changed(client, path, Client::remove) }
}

/// Makes a directory in one that exists.
///
/// Returns 0 or a negative error number: -EEXIST, -ENOTDIR, or as tactus_create().
///
/// # Safety
/// `client` is valid; `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_make_directory(
    client: *const TactusClient,
    path: *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { changed(client, path, Client::make_directory) }
}

/// Removes an empty directory.
///
/// Returns 0 or a negative error number: -ENOENT, -ENOTDIR, -ENOTEMPTY, or as tactus_create().
///
/// # Safety
/// `client` is valid; `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_remove_directory(
    client: *const TactusClient,
    path: *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { changed(client, path, Client::remove_directory) }
}

/// Gives a title or a directory another name on the same volume. `replace` is
/// TACTUS_REPLACE_TITLES, for a title that replaces another one, or TACTUS_REPLACE_NOTHING.
///
/// Returns 0 or a negative error number: -ENOENT, -EEXIST, -EXDEV, -EISDIR, or as tactus_create().
///
/// # Safety
/// `client` is valid; `from` and `to` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_rename(
    client: *const TactusClient,
    from: *const c_char,
    to: *const c_char,
    replace: c_int,
) -> c_int {
    let rename = || {
        // SAFETY: as the caller promises.
        let (client, from, to) =
            (unsafe { of(client) }?, unsafe { text(from) }?, unsafe { text(to) }?);
        client.0.rename(from, to, replace_of(replace)?)
    };
    status(rename())
}

/// Sets the modification time of a title or a directory, in nanoseconds since 1970.
///
/// Returns 0 or a negative error number: -ENOENT, -EINVAL, or as tactus_create().
///
/// # Safety
/// `client` is valid; `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_set_modified(
    client: *const TactusClient,
    path: *const c_char,
    modified_ns: i64,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { changed(client, path, |client, path| client.set_modified(path, modified_ns)) }
}

/// # Safety
/// `client` is null or valid; `path` is null or a string.
unsafe fn changed(
    client: *const TactusClient,
    path: *const c_char,
    change: impl FnOnce(&Client, &str) -> Result<(), Error>,
) -> c_int {
    let change = || {
        // SAFETY: as the caller promises.
        let (client, path) = (unsafe { of(client) }?, unsafe { text(path) }?);
        change(&client.0, path)
    };
    status(change())
}

/// # Safety
/// `token` is null or valid for writing.
unsafe fn submitted(
    client: &Client,
    request: WriteRequest<'_>,
    token: *mut u64,
) -> Result<(), Error> {
    let submitted = client.submit_write(request)?.number();
    if !token.is_null() {
        // SAFETY: as the caller promises.
        unsafe { token.write(submitted) };
    }
    Ok(())
}

pub(crate) fn replace_of(number: c_int) -> Result<Replace, Error> {
    match number {
        TACTUS_REPLACE_TITLES => Ok(Replace::Titles),
        TACTUS_REPLACE_NOTHING => Ok(Replace::Nothing),
        TACTUS_REPLACE_EXISTING => Ok(Replace::Existing),
        _ => Err(Error::with_errno(EINVAL, "no TACTUS_REPLACE_ has this number")),
    }
}
