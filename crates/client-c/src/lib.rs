//! libtactus: Tactus for C programs on the same machine.
//!
//! The C interface of `tactus-client`, and nothing else. Its documentation is the header,
//! `include/tactus.h`, which cbindgen makes of this crate.
//!
//! Promise: a function checks each pointer against null and each number against its range; what
//! else is wrong with a pointer is the caller's. Nothing allocates per request. A mistake of this
//! library ends the program instead of unwinding into C.

pub mod memory;
pub mod stream;
pub mod writing;

pub mod recording;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Duration;

use tactus_client::{
    Client, Completion, Error, MonoTime, Nanos, Options, RawBuffer, ReadRequest, ReserveOptions,
    Stat, Title,
};

/// A connection to the server. It can be used by several threads at once.
pub struct TactusClient(Client);

/// An open title. It can be used by several threads at once.
pub struct TactusTitle(Title);

/// What can be chosen for a connection.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TactusOptions {
    /// Bytes of data to share with the server: the room for all buffers. 0: 4 MiB.
    pub data: u64,
    /// How long a call that waits looks for its answer before it sleeps, in nanoseconds. 0 sleeps
    /// at once; 20000 is as long as the server looks for the next request.
    pub spin_ns: u64,
}

/// Facts about a title or a directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TactusInfo {
    /// Length in bytes; 0 for a directory.
    pub len: u64,
    /// When it was changed, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Its rate in bits per second; 0: not known.
    pub rate: u64,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// A part of the memory that is shared with the server. It begins at a page. While a request is
/// under way in it, the program must not touch it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TactusBuffer {
    /// The first byte.
    pub data: *mut u8,
    /// The number of bytes.
    pub len: u32,
    /// For the library.
    pub pages: u64,
}

/// A request that has ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TactusCompletion {
    /// Which request it was.
    pub token: u64,
    /// Its buffer, which belongs to the program again.
    pub buffer: TactusBuffer,
    /// The number of bytes at the beginning of the buffer that were read or written, less than
    /// requested only for a read at the end of the title; or a negative error number.
    pub result: i64,
    /// When it took effect, in nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
}

/// Reserved room for the reads of one title at moments.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TactusReserve {
    /// How far ahead of its moment a read has to be submitted, for each block that it lies in, in
    /// nanoseconds. The request needs some time to the server: add a few milliseconds.
    pub ahead_ns: u64,
    /// Bytes of a block.
    pub block: u64,
}

/// Called for each name of a directory. Any value but 0 ends the list.
pub type TactusListFunction = Option<
    unsafe extern "C" fn(user: *mut c_void, name: *const c_char, info: *const TactusInfo) -> c_int,
>;

/// Connects to the server at the Unix socket `path`. `options` may be null.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// `path` is a string; `options` is null or valid; `client` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_connect(
    path: *const c_char,
    options: *const TactusOptions,
    client: *mut *mut TactusClient,
) -> c_int {
    let connect = || {
        // SAFETY: as the caller promises.
        let path = unsafe { text(path) }?;
        let mut chosen = Options::default();
        // SAFETY: as the caller promises.
        if let Some(options) = unsafe { options.as_ref() } {
            if options.data > 0 {
                chosen.data = options.data;
            }
            chosen.spin = Duration::from_nanos(options.spin_ns);
        }
        let connected = Box::new(TactusClient(Client::connect_with(path, &chosen)?));
        // SAFETY: as the caller promises.
        unsafe { put(client, Box::into_raw(connected)) }
    };
    status(connect())
}

/// Gives up a connection. It ends when its titles are closed as well, which stay usable; its
/// buffers must not be touched any more. Null is ignored.
///
/// # Safety
/// `client` is from tactus_connect() and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_disconnect(client: *mut TactusClient) {
    if !client.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(client) });
    }
}

/// The text of the last error of this thread: valid until its next error. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn tactus_error() -> *const c_char {
    LAST_ERROR.with_borrow(|text| text.as_ptr())
}

/// Opens a title for reading, by its path as in HTTP: "/films/one.ts".
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// `client` is valid; `path` is a string; `title` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_open(
    client: *const TactusClient,
    path: *const c_char,
    title: *mut *mut TactusTitle,
) -> c_int {
    let open = || {
        // SAFETY: as the caller promises.
        let (client, path) = (unsafe { of(client) }?, unsafe { text(path) }?);
        let opened = Box::new(TactusTitle(client.0.open(path)?));
        // SAFETY: as the caller promises.
        unsafe { put(title, Box::into_raw(opened)) }
    };
    status(open())
}

/// Closes a title, when the reads of it that are under way have ended; does not wait for them. Null
/// is ignored.
///
/// # Safety
/// `title` is from tactus_open() and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_close(title: *mut TactusTitle) {
    if !title.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(title) });
    }
}

/// The facts about an open title, as they were when it was opened.
///
/// # Safety
/// `title` is valid; `info` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_info(title: *const TactusTitle, info: *mut TactusInfo) -> c_int {
    // SAFETY: as the caller promises.
    status(unsafe { of(title) }.and_then(|title| unsafe { put(info, info_of(title.0.stat())) }))
}

/// The facts about a title or a directory, by its path.
///
/// # Safety
/// `client` is valid; `path` is a string; `info` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_stat(
    client: *const TactusClient,
    path: *const c_char,
    info: *mut TactusInfo,
) -> c_int {
    let stat = || {
        // SAFETY: as the caller promises.
        let (client, path) = (unsafe { of(client) }?, unsafe { text(path) }?);
        let stat = client.0.stat(path)?;
        // SAFETY: as the caller promises.
        unsafe { put(info, info_of(&stat)) }
    };
    status(stat())
}

/// Calls `function` for each name of a directory, in order. Names of directories end with a slash.
///
/// Returns 0, the value other than 0 that `function` has returned, or a negative error number.
///
/// # Safety
/// `client` is valid; `directory` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_list(
    client: *const TactusClient,
    directory: *const c_char,
    function: TactusListFunction,
    user: *mut c_void,
) -> c_int {
    let list = || {
        // SAFETY: as the caller promises.
        let (client, directory) = (unsafe { of(client) }?, unsafe { text(directory) }?);
        let function = function.ok_or(NULL)?;
        for entry in client.0.list(directory)? {
            // No name has a zero byte: no file system has such names.
            let name = CString::new(entry.name).unwrap_or_default();
            let info = info_of(&entry.stat);
            // SAFETY: the caller's function, with arguments that live until it returns.
            let result = unsafe { function(user, name.as_ptr(), &raw const info) };
            if result != 0 {
                return Ok(result);
            }
        }
        Ok(0)
    };
    list().unwrap_or_else(|error| failed(&error))
}

/// Reads bytes into memory of the program, and waits for them.
///
/// Returns the number of bytes, less than `len` only at the end of the title; or a negative error
/// number.
///
/// # Safety
/// `title` is valid; `into` is valid for writing `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_read_at(
    title: *const TactusTitle,
    offset: u64,
    into: *mut c_void,
    len: usize,
) -> i64 {
    let read = || {
        // SAFETY: as the caller promises.
        let title = unsafe { of(title) }?;
        if into.is_null() || len > isize::MAX as usize {
            return if len == 0 { Ok(0) } else { Err(NULL) };
        }
        // SAFETY: as the caller promises, and no longer than a slice may be. A program may have
        // left the bytes undefined; they are written and never read.
        let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), len) };
        title.0.read_at(offset, into)
    };
    read().map_or_else(|error| failed(&error).into(), |bytes| bytes as i64)
}

/// Takes a buffer of `len` bytes, at least one, out of the shared data.
///
/// Returns 0, -ENOBUFS if the data have no free range of this length, or another negative error
/// number.
///
/// # Safety
/// `client` is valid; `buffer` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_buffer_new(
    client: *const TactusClient,
    len: usize,
    buffer: *mut TactusBuffer,
) -> c_int {
    let take = || {
        // SAFETY: as the caller promises.
        let raw = unsafe { of(client) }?.0.buffer(len)?.into_raw();
        // SAFETY: as the caller promises.
        unsafe { put(buffer, buffer_of(raw)) }
    };
    status(take())
}

/// Returns a buffer to the shared data.
///
/// # Safety
/// `client` is valid; `buffer` is a buffer of it that belongs to the program, and is not used
/// afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_buffer_free(client: *const TactusClient, buffer: TactusBuffer) {
    // SAFETY: as the caller promises.
    if let Ok(client) = unsafe { of(client) } {
        // SAFETY: as the caller promises.
        drop(unsafe { client.0.buffer_from_raw(raw_of(buffer)) });
    }
}

/// Reserves room for reads of a title at moments: `interval_ns` between two of them in the mean,
/// each at most `tolerance_ns` earlier than that allows, of at most `len` bytes. From then on,
/// until the title is closed, the moment of each read is kept, or its completion has an error at
/// once: -ETIME if the moment is nearer than `ahead_ns` for each block that the read lies in,
/// -EBUSY if the moments are closer than reserved, -EMSGSIZE if the read is longer.
///
/// Returns 0 or a negative error number: -EBUSY or -ENOSPC if the server has no room, -EMSGSIZE if
/// `len` is more than a block, -EEXIST if the title has a reserve, -EINVAL for an interval that
/// cannot be or a title that grows.
///
/// # Safety
/// `title` is valid; `reserve` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_reserve(
    title: *const TactusTitle,
    interval_ns: u64,
    tolerance_ns: u64,
    len: u32,
    reserve: *mut TactusReserve,
) -> c_int {
    let reserved = || {
        // SAFETY: as the caller promises.
        let title = unsafe { of(title) }?;
        let (interval, tolerance) = (Nanos(interval_ns), Nanos(tolerance_ns));
        let room = title.0.reserve(&ReserveOptions { interval, tolerance, len })?;
        let (ahead_ns, block) = (room.ahead(0, 0).0, room.block());
        // SAFETY: as the caller promises.
        unsafe { put(reserve, TactusReserve { ahead_ns, block }) }
    };
    status(reserved())
}

/// Submits a read of as many bytes as the buffer has. It takes effect at `when_ns` of
/// CLOCK_MONOTONIC, not before; 0: at once. With tactus_reserve() the moment is kept or the read is
/// refused; without it the read takes effect as soon as possible after the moment. `token` may be
/// null.
///
/// Returns 0 or a negative error number: -EAGAIN if as many reads are under way as may be,
/// -ECONNRESET if the server has gone. In each case the buffer belongs to the library: after
/// success until its completion, after an error it is returned to the shared data.
///
/// # Safety
/// `client` and `title` are valid; `buffer` is a buffer of this client that belongs to the program;
/// `token` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_submit(
    client: *const TactusClient,
    title: *const TactusTitle,
    offset: u64,
    buffer: TactusBuffer,
    when_ns: u64,
    token: *mut u64,
) -> c_int {
    let submit = || {
        // SAFETY: as the caller promises.
        let client = unsafe { of(client) }?;
        // SAFETY: as the caller promises.
        let buffer = unsafe { client.0.buffer_from_raw(raw_of(buffer)) };
        // SAFETY: as the caller promises.
        let title = unsafe { of(title) }?;
        let request = ReadRequest::new(&title.0, offset, buffer).at(MonoTime(when_ns));
        let submitted = client.0.submit(request)?.number();
        if !token.is_null() {
            // SAFETY: as the caller promises.
            unsafe { token.write(submitted) };
        }
        Ok(())
    };
    status(submit())
}

/// Number of requests that can be submitted now.
///
/// # Safety
/// `client` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_room(client: *const TactusClient) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { of(client) }.map_or_else(|error| failed(&error), |client| client.0.room() as c_int)
}

/// The next completion of a request, if there is one. Never waits.
///
/// Returns 1 with a completion, 0 without.
///
/// # Safety
/// `client` is valid; `completion` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_poll(
    client: *const TactusClient,
    completion: *mut TactusCompletion,
) -> c_int {
    if completion.is_null() {
        return failed(&NULL);
    }
    // SAFETY: as the caller promises.
    let polled = unsafe { of(client) }.map(|client| client.0.poll());
    // SAFETY: as the caller promises.
    unsafe { completed(polled, completion) }
}

/// Waits for the next completion of a request, for `timeout_ns` nanoseconds at most; a negative
/// number is no limit.
///
/// Returns 1 with a completion; 0 if the time is over or no request is under way; or a negative
/// error number. That the server has gone is the result of each completion.
///
/// # Safety
/// `client` is valid; `completion` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_wait(
    client: *const TactusClient,
    timeout_ns: i64,
    completion: *mut TactusCompletion,
) -> c_int {
    if completion.is_null() {
        return failed(&NULL);
    }
    let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
    // SAFETY: as the caller promises.
    let waited = unsafe { of(client) }.and_then(|client| client.0.wait(timeout));
    // SAFETY: as the caller promises.
    unsafe { completed(waited, completion) }
}

/// The descriptor for an event loop. It must not be read or closed.
///
/// | step | call |
/// |---|---|
/// | 1 | take completions by tactus_poll() until there is none |
/// | 2 | tactus_arm(); if it returns 0, back to step 1 |
/// | 3 | wait until the descriptor is readable |
/// | 4 | tactus_disarm(), then step 1 |
///
/// # Safety
/// `client` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_fd(client: *const TactusClient) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { of(client) }.map_or_else(|error| failed(&error), |client| client.0.as_raw_fd())
}

/// Prepares to wait for the descriptor.
///
/// Returns 1 if the descriptor can be waited for, 0 if there is a completion already, -ECONNRESET
/// if the server has gone and all completions were taken.
///
/// # Safety
/// `client` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_arm(client: *const TactusClient) -> c_int {
    // SAFETY: as the caller promises.
    let armed = unsafe { of(client) }.and_then(|client| client.0.arm());
    armed.map_or_else(|error| failed(&error), c_int::from)
}

/// Ends the wait for the descriptor.
///
/// # Safety
/// `client` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tactus_disarm(client: *const TactusClient) {
    // SAFETY: as the caller promises.
    if let Ok(client) = unsafe { of(client) } {
        client.0.disarm();
    }
}

/// Now, in nanoseconds of CLOCK_MONOTONIC.
#[unsafe(no_mangle)]
pub extern "C" fn tactus_now() -> u64 {
    tactus_client::now().0
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

const NULL: Error = Error::with_errno(EINVAL, "a pointer is null");
const NOT_UTF_8: Error = Error::with_errno(EILSEQ, "the path is not UTF-8");

const EINVAL: i32 = 22;
const EILSEQ: i32 = 84;

/// Keeps the text of an error, and returns its negative number.
fn failed(error: &Error) -> c_int {
    let text = error.to_string().replace('\0', "?");
    LAST_ERROR.set(CString::new(text).unwrap_or_default());
    -error.errno()
}

fn status(result: Result<(), Error>) -> c_int {
    result.map_or_else(|error| failed(&error), |()| 0)
}

/// # Safety
/// `completion` is valid for writing.
unsafe fn completed(
    result: Result<Option<Completion>, Error>,
    completion: *mut TactusCompletion,
) -> c_int {
    let ended = match result {
        Ok(None) => return 0,
        Ok(Some(ended)) => ended,
        Err(error) => return failed(&error),
    };
    let Completion { token, buffer, result, at } = ended;
    let result = match result {
        Ok(bytes) => bytes as i64,
        Err(error) => failed(&error).into(),
    };
    let buffer = buffer_of(buffer.into_raw());
    let (token, at_ns) = (token.number(), at.0);
    // SAFETY: as the caller promises.
    unsafe { completion.write(TactusCompletion { token, buffer, result, at_ns }) };
    1
}

/// # Safety
/// `pointer` is null, or valid for as long as the result is used.
unsafe fn of<'a, T>(pointer: *const T) -> Result<&'a T, Error> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or(NULL)
}

/// # Safety
/// `pointer` is null or valid, and nobody else uses it during the lifetime `'a`.
unsafe fn of_mut<'a, T>(pointer: *mut T) -> Result<&'a mut T, Error> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_mut() }.ok_or(NULL)
}

/// # Safety
/// `pointer` is null or valid for writing.
unsafe fn put<T>(pointer: *mut T, value: T) -> Result<(), Error> {
    if pointer.is_null() {
        return Err(NULL);
    }
    // SAFETY: not null, and as the caller promises.
    unsafe { pointer.write(value) };
    Ok(())
}

/// # Safety
/// `pointer` is null or a string that lives as long as the result is used.
unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a str, Error> {
    if pointer.is_null() {
        return Err(NULL);
    }
    // SAFETY: not null, and as the caller promises.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| NOT_UTF_8)
}

fn info_of(stat: &Stat) -> TactusInfo {
    let Stat { is_directory, len, modified, rate, .. } = *stat;
    TactusInfo { len, modified_ns: modified, rate: rate.unwrap_or(0), is_directory }
}

const fn buffer_of(RawBuffer { data, len, pages }: RawBuffer) -> TactusBuffer {
    TactusBuffer { data, len, pages }
}

const fn raw_of(TactusBuffer { data, len, pages }: TactusBuffer) -> RawBuffer {
    RawBuffer { data, len, pages }
}
