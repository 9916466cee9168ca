//! A connection to the server, as a program uses it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::buffer::{Buffer, RawBuffer};
use crate::completion::{Completion, ReadRequest, WriteRequest};
use crate::connection::{Connection, Read, unexpected};
use crate::error::{Error, Result};
use crate::future::RequestFuture;
use crate::memory_writer::MemoryWriter;
use crate::options::{Options, WriteOptions};
use crate::protocol::{Change, Entry, Origin, Replace, Reply, Request, Stat};
use crate::recording::{Recording, RecordingOptions};
use crate::stream::{Stream, StreamOptions};
use crate::table::{Destination, Extent, Token};
use crate::title::{NO_ROOM, Title};
use crate::working_file::{NewWorkingFile, WorkingFile};
use crate::writer::{Part, Writer};

/// Space of a file system in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// All of it.
    pub total: u64,
    /// What no file uses.
    pub free: u64,
    /// The part of it that can be used.
    pub available: u64,
}

/// A connection to the server.
///
/// Clones share it, and so do its titles and buffers; it ends when the last of them is dropped. All
/// of them can be used by any thread: a lock inside is held for a short time, never while
/// a call waits. Threads that read much are better off with a client each.
///
/// A program waits in one of three ways:
///
/// - **blocking**: [`wait`](Self::wait), or [`Title::read_at`];
/// - **polling**: [`poll`](Self::poll) in a loop of its own, which costs no system call while the
///   server is awake;
/// - **by an event loop**: [`arm`](Self::arm), the descriptor, [`disarm`](Self::disarm).
#[derive(Clone)]
pub struct Client {
    connection: Arc<Connection>,
}

impl Client {
    /// Connects to the server at the Unix socket `path`.
    ///
    /// # Errors
    /// What the system says of the socket, `EACCES` or `EPERM` if this user or group may not
    /// connect, `EPROTONOSUPPORT` if the server speaks another version.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self> {
        Self::connect_with(path, &Options::default())
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_with(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let connection = Connection::new(path.as_ref(), options)?;
        Ok(Self { connection: Arc::new(connection) })
    }

    /// Opens a title for reading, by its path as in HTTP: `/films/one.ts`.
    ///
    /// # Errors
    /// `ENOENT`, `EACCES`, `EISDIR`, `EMFILE` if as many are open as may be, or what else the
    /// server says.
    pub fn open(&self, path: &str) -> Result<Title> {
        match self.connection.ask(&Request::Open { title: path.to_owned() })? {
            Reply::Opened { handle, stat } => {
                Ok(Title::new(Arc::clone(&self.connection), handle, stat))
            }
            other => Err(unexpected(other)),
        }
    }

    /// Has a title sent at a rate, into a ring of its own. The title can be closed meanwhile.
    ///
    /// # Errors
    /// `EBUSY` if the server has no room for such a stream, `ENOSPC` if it has no memory for it:
    /// the text names the resource. `EINVAL` if the title has no known rate and none is given,
    /// grows, is another client's, or ends before the first byte, or for a rate or room that
    /// cannot be; `EMFILE` if as many streams are open as may be.
    pub fn stream(&self, title: &Title, options: &StreamOptions) -> Result<Stream> {
        if !title.belongs_to(&self.connection) {
            return Err(Error::new(Errno::INVAL, "the title belongs to another client"));
        }
        Stream::begin(&self.connection, title, options)
    }

    /// The facts about a title or a directory.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn stat(&self, path: &str) -> Result<Stat> {
        match self.connection.ask(&Request::Stat { title: path.to_owned() })? {
            Reply::Stat(stat) => Ok(stat),
            other => Err(unexpected(other)),
        }
    }

    /// The file of a title, open for reading, and its facts. It is read through the kernel's page
    /// cache like any file, beside the plan of the disk, and costs the server nothing. It stays the
    /// version that was opened, whatever happens to the name.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where such reads could harm streams (on a spinning disk, on a disk that does
    /// not keep up), and for a title that grows: then [`Self::open`] reads it. Otherwise as
    /// [`Self::open`].
    pub fn open_file(&self, path: &str) -> Result<(OwnedFd, Stat)> {
        let request = Request::File { title: path.to_owned() };
        match self.connection.ask_for_files(&request)? {
            (Reply::File(stat), files) => {
                let no_file = Error::new(Errno::PROTO, "the server sent no file of the title");
                Ok((files.into_iter().next().ok_or(no_file)?, stat))
            }
            (other, _) => Err(unexpected(other)),
        }
    }

    /// The space of the volume at `path`; at a path above all volumes, that of all together.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn space(&self, path: &str) -> Result<Space> {
        match self.connection.ask(&Request::Space { path: path.to_owned() })? {
            Reply::Space { total, free, available } => Ok(Space { total, free, available }),
            other => Err(unexpected(other)),
        }
    }

    /// The names in a directory: those of directories, which end with a slash, then those of
    /// titles, each sorted.
    ///
    /// # Errors
    /// `ENOTDIR`, or as [`Self::open`].
    pub fn list(&self, directory: &str) -> Result<Vec<Entry>> {
        let mut all: Vec<Entry> = vec![];
        loop {
            let after = all.last().map(|entry| entry.name.as_str());
            let (entries, more) = self.list_part(directory, after)?;
            all.extend(entries);
            if !more {
                return Ok(all);
            }
        }
    }

    /// The next names in a directory behind the name `after`, as [`Self::list`] orders them, and
    /// whether there are more. One message carries some hundred names.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub fn list_part(&self, directory: &str, after: Option<&str>) -> Result<(Vec<Entry>, bool)> {
        let (directory, after) = (directory.to_owned(), after.map(str::to_owned));
        match self.connection.ask(&Request::List { directory, after })? {
            Reply::List { entries, more } => {
                // A part without a name would be asked for again without end.
                let more = more && !entries.is_empty();
                Ok((entries, more))
            }
            other => Err(unexpected(other)),
        }
    }

    /// A buffer of `len` bytes out of the shared data, at least one. Its contents are whatever was
    /// there before.
    ///
    /// # Errors
    /// `ENOBUFS` if the data have no free range of this length.
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        if len == 0 {
            return Err(Error::new(Errno::INVAL, "a buffer has at least one byte"));
        }
        let short = u32::try_from(len).map_err(|_| NO_ROOM)?;
        let pages = self.connection.state().pages.take(len).ok_or(NO_ROOM)?;
        Ok(Buffer::new(Arc::clone(&self.connection), Extent { pages, len: short }))
    }

    /// The buffer that [`Buffer::into_raw`] has made numbers of.
    ///
    /// # Safety
    /// `raw` is from a buffer of this client, and no buffer was made of it since.
    #[must_use]
    pub unsafe fn buffer_from_raw(&self, raw: RawBuffer) -> Buffer {
        // SAFETY: as the caller promises.
        unsafe { Buffer::from_raw(Arc::clone(&self.connection), raw) }
    }

    /// Submits a read. Its completion comes from [`poll`](Self::poll) or [`wait`](Self::wait).
    ///
    /// # Errors
    /// `EAGAIN` if as many requests are under way as may be ([`room`](Self::room) is zero),
    /// `ECONNRESET` if the server has gone, `EINVAL` if the title or the buffer belongs to another
    /// client. After an error the buffer is free.
    pub fn submit(&self, request: ReadRequest<'_>) -> Result<Token> {
        self.submit_to(request, Destination::Queue)
    }

    /// Begins to write the title `path`. It has no name before [`Writer::publish`]: until then no
    /// door of the server shows it, and nothing of it is left if this program ends.
    ///
    /// # Errors
    /// `EACCES` if this user may not write or lacks a right, `EEXIST` or `ENOENT` as
    /// [`WriteOptions::replace`] says, `EISDIR`, `EBUSY` if another client has locked the name,
    /// `ENOSPC`, `EDQUOT`, `EFBIG`, `EROFS` if the volume takes no titles, `EMFILE` if as many are
    /// written as may be.
    pub fn create(&self, path: &str, options: &WriteOptions) -> Result<Writer> {
        let WriteOptions { len, replace } = *options;
        let request = Change::Create { title: path.to_owned(), len, replace };
        match self.connection.ask(&request.into())? {
            Reply::Created { writer } => Ok(Writer::new(Arc::clone(&self.connection), writer)),
            other => Err(unexpected(other)),
        }
    }

    /// Begins to build the title `path` in memory that this program maps. It has no bytes at first;
    /// [`MemoryWriter::grow`] makes room for some. It has no name before [`MemoryWriter::publish`].
    ///
    /// # Errors
    /// As [`Self::create`], and what the system says of the mapping.
    pub fn create_in_memory(&self, path: &str, replace: Replace) -> Result<MemoryWriter> {
        MemoryWriter::begin(&self.connection, path, replace, Origin::Nothing)
    }

    /// Begins to build the next version of the title `path` in memory: the memory begins with the
    /// bytes that the title has now. Other programs see the old version until this one is
    /// published.
    ///
    /// # Errors
    /// As [`Self::create_in_memory`] and [`Title::map`]; `ENOENT` if there is no title.
    pub fn edit_in_memory(&self, path: &str) -> Result<MemoryWriter> {
        MemoryWriter::begin(&self.connection, path, Replace::Existing, Origin::Title)
    }

    /// Goes on to build the title `path` as far as it was synced before this program, the server or
    /// the machine has ended. `upload` is what [`MemoryWriter::upload`] has said; a writer that has
    /// it still must end.
    ///
    /// # Errors
    /// As [`Self::create_in_memory`]; `ENOENT` if there is no such upload of this title, or it has
    /// expired; `EALREADY` if it was published.
    pub fn resume_in_memory(&self, path: &str, upload: &str) -> Result<MemoryWriter> {
        let origin = Origin::Upload(upload.to_owned());
        MemoryWriter::begin(&self.connection, path, Replace::Titles, origin)
    }

    /// Begins to write the title `path` at a rate, through a ring of its own.
    ///
    /// # Errors
    /// `EBUSY` if the server has no disk time for such a recording, `ENOSPC` if it has no memory
    /// for it: the text names the resource. `EINVAL` for a rate or room that cannot be, `EMFILE` if
    /// as many recordings run as may be, or as [`Self::create`].
    pub fn record(&self, path: &str, options: &RecordingOptions) -> Result<Recording> {
        Recording::begin(&self.connection, path, options)
    }

    /// Begins to write the title `path` in place, in a file that is empty. It is no title before
    /// [`WorkingFile::publish`](crate::WorkingFile::publish), which replaces a title of this name.
    /// `replace` says what may have the name now.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where writes through the page cache could harm streams (on a spinning disk, on
    /// a disk that does not keep up); otherwise as [`Self::create`].
    pub fn working_file(&self, path: &str, replace: Replace) -> Result<NewWorkingFile> {
        let begin = Change::WorkingFile { title: path.to_owned(), replace };
        match self.connection.ask_for_files(&begin.into())? {
            (Reply::WorkingFile { writer, file, permitted }, files) => {
                let numbers = (writer, file);
                let working = WorkingFile::new(Arc::clone(&self.connection), numbers, permitted);
                let none = |_| Error::new(Errno::PROTO, "the server sent no file of the title");
                let [write, read] = <[OwnedFd; 2]>::try_from(files).map_err(none)?;
                Ok(NewWorkingFile { working, write: write.into(), read: read.into() })
            }
            (other, _) => Err(unexpected(other)),
        }
    }

    /// Removes a title. Like all changes of names it is durable when the call returns, and every
    /// door of the server shows it at once.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR` for a directory, or as [`Self::create`].
    pub fn remove(&self, path: &str) -> Result<()> {
        self.change(Change::Remove { title: path.to_owned() })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, or as [`Self::create`].
    pub fn remove_directory(&self, path: &str) -> Result<()> {
        self.change(Change::RemoveDirectory { directory: path.to_owned() })
    }

    /// Makes a directory in one that exists.
    ///
    /// # Errors
    /// `EEXIST`, `ENOTDIR` if there is no directory to make it in, or as [`Self::create`].
    pub fn make_directory(&self, path: &str) -> Result<()> {
        self.change(Change::MakeDirectory { directory: path.to_owned() })
    }

    /// Gives a title or a directory another name on the same volume. A title that has the new name
    /// is replaced in one step with [`Replace::Titles`], by another title.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EXDEV` for another volume, `EISDIR` if a directory would be replaced,
    /// `EINVAL` for [`Replace::Existing`] or a directory that would be moved into itself, or as
    /// [`Self::create`].
    pub fn rename(&self, from: &str, to: &str, replace: Replace) -> Result<()> {
        self.change(Change::Rename { from: from.to_owned(), to: to.to_owned(), replace })
    }

    /// Sets the modification time of a title or a directory, in nanoseconds since 1970.
    ///
    /// # Errors
    /// `ENOENT`, `EINVAL` for a time before 1970, or as [`Self::create`].
    pub fn set_modified(&self, path: &str, modified: i64) -> Result<()> {
        self.change(Change::SetModified { name: path.to_owned(), modified })
    }

    fn change(&self, change: Change) -> Result<()> {
        match self.connection.ask(&change.into())? {
            Reply::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Submits a request of a writer. Its completion comes from [`poll`](Self::poll) or
    /// [`wait`](Self::wait). Requests of one writer are carried out in the order of submission.
    ///
    /// # Errors
    /// As [`Self::submit`]; `EINVAL` also if the buffer has fewer bytes than the request.
    pub fn submit_write(&self, request: WriteRequest<'_>) -> Result<Token> {
        self.submit_write_to(request, Destination::Queue)
    }

    /// Submits a request of a writer, and returns a future of its completion.
    ///
    /// # Errors
    /// As [`Self::submit_write`].
    pub fn write(&self, request: WriteRequest<'_>) -> Result<RequestFuture> {
        let token = self.submit_write_to(request, Destination::Caller(None))?;
        Ok(RequestFuture::new(Arc::clone(&self.connection), token))
    }

    fn submit_write_to(
        &self,
        request: WriteRequest<'_>,
        destination: Destination,
    ) -> Result<Token> {
        let WriteRequest { writer, operation, buffer, len, value } = request;
        let connection = &self.connection;
        let has_bytes = buffer.as_ref().map_or(0, |buffer| buffer.len()) >= len;
        if !writer.belongs_to(connection)
            || !buffer.as_ref().is_none_or(|buffer| buffer.belongs_to(connection))
        {
            let message = "the writer or the buffer belongs to another client";
            return Err(Error::new(Errno::INVAL, message));
        }
        if !has_bytes || value < 0 {
            let message = "the buffer has fewer bytes than the request, or the time is before 1970";
            return Err(Error::new(Errno::INVAL, message));
        }
        let extent = buffer.map_or(Extent::NONE, Buffer::into_extent);
        let part = Part { operation, extent, len: len as u32, value: value as u64 };
        let mut state = connection.state();
        let token = writer.submit(&mut state, part, destination);
        connection.release(state);
        token
    }

    /// Submits a read, and returns a future of its completion.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn read(&self, request: ReadRequest<'_>) -> Result<RequestFuture> {
        let token = self.submit_to(request, Destination::Caller(None))?;
        Ok(RequestFuture::new(Arc::clone(&self.connection), token))
    }

    fn submit_to(&self, request: ReadRequest<'_>, destination: Destination) -> Result<Token> {
        let ReadRequest { title, offset, buffer, when } = request;
        let connection = &self.connection;
        if !title.belongs_to(connection) || !buffer.belongs_to(connection) {
            let message = "the title or the buffer belongs to another client";
            return Err(Error::new(Errno::INVAL, message));
        }
        let read = Read { handle: title.handle(), offset, buffer: buffer.into_extent(), when };
        let mut state = connection.state();
        let token = connection.submit(&mut state, &read, destination);
        connection.release(state);
        token
    }

    /// Number of requests that can be submitted now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.connection.state().table.room()
    }

    /// The next completion of a submitted request, if there is one. Never waits. Completions come
    /// in the order in which the server answers, which need not be that of the requests.
    #[must_use]
    pub fn poll(&self) -> Option<Completion> {
        let mut state = self.connection.current();
        let outcome = state.table.pop();
        self.connection.release(state);
        outcome.map(|outcome| Completion::new(&self.connection, outcome))
    }

    /// Waits for the next completion of a submitted request: first awake, then asleep (see
    /// [`Options::spin`]). Returns `None` if `timeout` is over, or if no request is under way.
    ///
    /// # Errors
    /// What the system says of the sleep. That the server has gone is the result of each
    /// completion, not an error of the wait.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Completion>> {
        // A time beyond the end of the clock is no limit.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let outcome = self.connection.wait(deadline, |state| match state.table.pop() {
            Some(outcome) => Some(Some(outcome)),
            None => (state.table.for_queue() == 0).then_some(None),
        })?;
        Ok(outcome.flatten().map(|outcome| Completion::new(&self.connection, outcome)))
    }

    /// Prepares to wait for the descriptor of this client ([`AsFd`]) by `poll`, `epoll` or another
    /// call of this kind.
    ///
    /// | step | call |
    /// |---|---|
    /// | 1 | take completions by [`poll`](Self::poll) until there is none |
    /// | 2 | `arm`; on `false` back to step 1 |
    /// | 3 | wait until the descriptor is readable (other descriptors and times as well) |
    /// | 4 | [`disarm`](Self::disarm), then step 1 |
    ///
    /// The same task drives the futures of [`read`](Self::read), which are woken in steps 2 and 4.
    /// Between steps 2 and 4, calls that wait look for their answer every 0.1 ms instead of
    /// sleeping: the descriptor belongs to the event loop.
    ///
    /// # Errors
    /// `ECONNRESET` if the server has gone and all completions were taken.
    pub fn arm(&self) -> Result<bool> {
        self.connection.arm()
    }

    /// Ends the wait for the descriptor: takes what made it readable, and the answers.
    pub fn disarm(&self) {
        self.connection.disarm();
    }
}

impl AsFd for Client {
    /// The descriptor that becomes readable when a completion comes after [`Client::arm`]. It must
    /// not be read.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.doorbell().as_fd()
    }
}

impl AsRawFd for Client {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
