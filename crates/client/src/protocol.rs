//! Messages of the Unix socket: one JSON object in each packet, a reply for each request, in order.
//!
//! The memory and the doorbell come as descriptors with [`Reply::Welcome`].

use serde::{Deserialize, Serialize};

/// Limit of a message in bytes.
pub const MESSAGE_MAX: usize = 64 << 10;

/// From a program to the server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The first message. Answered by [`Reply::Welcome`].
    Hello {
        /// The version of the protocol.
        version: u32,
        /// Bytes of data that the program would like to share.
        data: u64,
    },
    /// Opens a title for reading. Answered by [`Reply::Opened`].
    Open {
        /// Its path, as in HTTP.
        title: String,
    },
    /// Closes a title. Answered by [`Reply::Closed`] when no request for it is under way.
    Close {
        /// The number from [`Reply::Opened`].
        handle: u32,
    },
    /// Asks for the file of a title, to be read through the page cache. Answered by
    /// [`Reply::File`], or refused with `EOPNOTSUPP` where such reads could harm streams.
    File {
        /// Its path, as in HTTP.
        title: String,
    },
    /// Asks for the space of a volume. Answered by [`Reply::Space`].
    Space {
        /// A path in it, as in HTTP; above all volumes, the sum of them is meant.
        path: String,
    },
    /// Has an open title read into memory that the program can map. Answered by [`Reply::Mapped`].
    Map {
        /// The number from [`Reply::Opened`].
        handle: u32,
    },
    /// Reserves room for reads of an open title at moments. Answered by [`Reply::Reserved`].
    Reserve {
        /// The number from [`Reply::Opened`].
        handle: u32,
        /// Between two moments in the mean, in nanoseconds.
        interval: u64,
        /// How much earlier a moment may be than the mean interval allows, in nanoseconds.
        tolerance: u64,
        /// Bytes of a read at most.
        len: u32,
    },
    /// Has an open title sent at a rate into a ring. Answered by [`Reply::Stream`].
    Stream {
        /// The number from [`Reply::Opened`].
        handle: u32,
        /// Its first byte.
        first: u64,
        /// Bits per second; none: the title's own rate.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<u64>,
        /// Bytes that are sent at once at the beginning, if the rate is constant.
        burst: u64,
        /// Bytes of the ring; zero: the server chooses.
        room: u64,
    },
    /// Has a stream go on at another byte. Answered by [`Reply::Sought`].
    Seek {
        /// The number from [`Reply::Stream`].
        stream: u32,
        /// The byte.
        first: u64,
    },
    /// Ends a stream. Answered by [`Reply::Closed`].
    EndStream {
        /// The number from [`Reply::Stream`].
        stream: u32,
    },
    /// Begins to build a title in memory that the program maps, if the program may write.
    /// Answered by [`Reply::CreatedInMemory`].
    CreateInMemory {
        /// Its path, as in HTTP.
        title: String,
        /// What may have the name already, at the beginning and when it is published.
        replace: Replace,
        /// What the memory begins with.
        origin: Origin,
    },
    /// Begins to write a title at a rate, through a ring. Answered by [`Reply::Recording`].
    Record {
        /// Its path, as in HTTP.
        title: String,
        /// Bits per second.
        rate: u64,
        /// What may have the name already, at the beginning and at the end.
        replace: Replace,
        /// Bytes of the ring; zero: the server chooses.
        room: u64,
    },
    /// Lets a recording go. One that still runs becomes a title of what its ring holds. Answered by
    /// [`Reply::Closed`], or by [`Reply::Error`] if it has ended early.
    EndRecording {
        /// The number from [`Reply::Recording`].
        recording: u32,
    },
    /// Asks for facts about a title or a directory. Answered by [`Reply::Stat`].
    Stat {
        /// Its path, as in HTTP.
        title: String,
    },
    /// Lists a directory. Answered by [`Reply::List`].
    List {
        /// Its path, as in HTTP.
        directory: String,
        /// Only the names behind this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    },
    /// Changes something.
    #[serde(untagged)]
    Change(Change),
}

/// From a program to the server: what only programs that may write send.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// Begins to write a title, which has no name before it is published. Answered by
    /// [`Reply::Created`].
    Create {
        /// Its path, as in HTTP.
        title: String,
        /// Its length in bytes, if it is known: space and quota are claimed at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        len: Option<u64>,
        /// What may have the name already, at the beginning and when it is published.
        replace: Replace,
    },
    /// Begins to write a title in place, in a file of its own that is empty. Answered by
    /// [`Reply::WorkingFile`], or refused with `EOPNOTSUPP` where writes through the page cache
    /// could harm streams.
    WorkingFile {
        /// Its path, as in HTTP.
        title: String,
        /// What may have the name at the beginning. At the end a title is replaced.
        replace: Replace,
    },
    /// Claims quota and space for a length of a working file. Answered by [`Reply::Granted`].
    Grow {
        /// The number from [`Reply::WorkingFile`].
        writer: u32,
        /// The length in bytes.
        len: u64,
    },
    /// Has a working file become a title of another name. Answered by [`Reply::Done`].
    Retarget {
        /// The number from [`Reply::WorkingFile`].
        writer: u32,
        /// The new path.
        to: String,
    },
    /// Has a working file lose its name: nothing is made of it. Its claim stays, and may grow,
    /// until [`Self::Abandon`]. Answered by [`Reply::Done`].
    Unname {
        /// The number from [`Reply::WorkingFile`].
        writer: u32,
    },
    /// Ends a writer and drops an unpublished title. Answered by [`Reply::Closed`].
    Abandon {
        /// The number from [`Reply::Created`].
        writer: u32,
        /// Whether what was synced of a title in memory stays, to be continued, and what was synced
        /// of a working file becomes a title.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        keeps: bool,
    },
    /// Asks why the last request of a writer has failed. Answered by [`Reply::Error`], or by
    /// [`Reply::Done`] if none has failed.
    Reason {
        /// The number from [`Reply::Created`].
        writer: u32,
    },
    /// Removes a title. Answered by [`Reply::Done`], like all changes of names: the change is
    /// durable then.
    Remove {
        /// Its path.
        title: String,
    },
    /// Removes an empty directory.
    RemoveDirectory {
        /// Its path.
        directory: String,
    },
    /// Makes a directory in one that exists.
    MakeDirectory {
        /// Its path.
        directory: String,
    },
    /// Gives a title or a directory another name on the same volume.
    Rename {
        /// Its path.
        from: String,
        /// The new path.
        to: String,
        /// What may have the new name already.
        replace: Replace,
    },
    /// Sets the time of a title or a directory.
    SetModified {
        /// Its path.
        name: String,
        /// The time, in nanoseconds since 1970.
        modified: i64,
    },
}

impl From<Change> for Request {
    fn from(change: Change) -> Self {
        Self::Change(change)
    }
}

/// What the memory of a title begins with.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Nothing.
    #[default]
    Nothing,
    /// The bytes of the title that has the name: it becomes its next version.
    Title,
    /// The bytes of an upload of the title that were synced: it goes on.
    Upload(String),
}

/// What may have a name that a title gets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replace {
    /// Nothing: the name must be free.
    Nothing,
    /// Nothing, or a title, which is replaced in one step.
    #[default]
    Titles,
    /// A title, which is replaced in one step: the name must not be free.
    Existing,
}

/// From the server to a program.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The program is connected. With two descriptors: the memory and the program's end of the
    /// doorbell.
    Welcome {
        /// The version of the protocol.
        version: u32,
        /// Bytes of the memory, with its rings.
        memory: u64,
        /// Titles that may be open at once.
        handles: u32,
        /// Requests that may be under way at once; further ones wait in the ring.
        requests: u32,
    },
    /// A title is open.
    Opened {
        /// What requests in the ring name it by.
        handle: u32,
        /// The facts.
        stat: Stat,
    },
    /// The file of a title. With one descriptor, for reading, whose file description is the
    /// program's alone.
    File(Stat),
    /// The space of a volume, in bytes.
    Space {
        /// All of it.
        total: u64,
        /// What no file uses.
        free: u64,
        /// The part of it that can be used.
        available: u64,
    },
    /// A title is in memory, until the program closes it. With one descriptor, for reading.
    Mapped {
        /// Where the title begins in the memory.
        first: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// The moments of reads of a title are kept from now on, until it is closed, or the reads are
    /// refused at once.
    Reserved {
        /// How far ahead of its moment a read has to be submitted, for each block that it lies in,
        /// in nanoseconds.
        ahead: u64,
        /// Bytes of a block.
        block: u64,
    },
    /// A stream begins. With one descriptor: the memory of its ring.
    Stream {
        /// Its number.
        stream: u32,
        /// Bytes of the memory, with the ring's positions.
        memory: u64,
        /// Its rate in bits per second; the highest one if it varies.
        rate: u64,
    },
    /// A stream goes on at another byte.
    Sought {
        /// Where in the ring the bytes from there on begin, counted from the first byte ever.
        position: u64,
        /// Its rate in bits per second from now on; the highest one if it varies.
        rate: u64,
    },
    /// A title is closed, or a stream or a writer has ended.
    Closed,
    /// A title can be written.
    Created {
        /// What requests in the ring name its writer by. Never used twice in a connection.
        writer: u32,
    },
    /// A title can be built. With one descriptor, for reading and writing: its memory, which can
    /// grow and cannot shrink.
    CreatedInMemory {
        /// What requests in the ring name its writer by, as in [`Reply::Created`].
        writer: u32,
        /// Where the title begins in the memory.
        first: u64,
        /// Bytes of it that are there.
        len: u64,
        /// Bytes of it that are final: those of an upload that goes on.
        #[serde(default, skip_serializing_if = "is_zero")]
        end: u64,
        /// The most bytes that it can ever have there.
        limit: u64,
        /// What the title is continued by after a crash, when it was synced.
        upload: String,
    },
    /// A title can be written at its rate. With one descriptor: the memory of its ring.
    Recording {
        /// Its number.
        recording: u32,
        /// Bytes of the memory, with the ring's positions.
        memory: u64,
    },
    /// A title can be written in place. With two descriptors of its file: for reading and writing,
    /// and for reading. The ring takes *sync* and *publish* for it.
    WorkingFile {
        /// What requests name it by. Never used twice in a connection.
        writer: u32,
        /// The number of the file ([`Stat::file`]).
        file: u64,
        /// Bytes that it may have by now.
        permitted: u64,
    },
    /// A working file may be longer.
    Granted {
        /// Bytes that it may have from now on.
        len: u64,
    },
    /// The change is made and durable.
    Done,
    /// The facts.
    Stat(Stat),
    /// A part of a directory, by name.
    List {
        /// The entries.
        entries: Vec<Entry>,
        /// There are more behind the last one.
        more: bool,
    },
    /// The request was refused.
    Error {
        /// The error number.
        errno: u32,
        /// The reason as text.
        message: String,
    },
}

/// Facts about a title or a directory.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Stat {
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Its length in bytes; zero for a directory.
    pub len: u64,
    /// When it was changed, in nanoseconds since 1970.
    pub modified: i64,
    /// Its own rate in bits per second, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Which file a title is: no other file of the library has this number at the same time. It
    /// stays while the title grows or is changed in place, and is another one when the title is
    /// replaced. Zero if it is not known, and for a directory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub file: u64,
    /// Which version of a title it is: another number when the content has changed. Zero if it is
    /// not known, and for a directory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub version: u64,
    /// Whether the title is still growing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub grows: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One name of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// The facts.
    pub stat: Stat,
}
