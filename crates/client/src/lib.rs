//! Tactus for programs on the same machine: titles through shared memory.
//!
//! A [`Client`] is a connection to the server. Names go through a Unix socket: [`Client::open`],
//! [`stat`](Client::stat), [`list`](Client::list), [`create`](Client::create). Bytes go through
//! rings in memory that the server shares with this program: without a system call while both sides
//! are awake, and without a copy by the program, because a [`Buffer`] is a part of that memory.
//!
//! ```no_run
//! use tactus_client::{Client, ReadRequest};
//!
//! fn main() -> tactus_client::Result<()> {
//!     let client = Client::connect("/run/tactus/local.sock")?;
//!     let title = client.open("/films/one.ts")?;
//!     println!("{} bytes at {:?}", title.len(), title.rate());
//!
//!     // The first way: a copy into memory of the program.
//!     let mut head = [0; 188];
//!     let read = title.read_at(0, &mut head)?;
//!     println!("begins with {:x?}", &head[..read]);
//!
//!     // The second way: in place, several requests at once.
//!     const LEN: usize = 64 << 10;
//!     let mut next = 0;
//!     let mut sum = 0_u64;
//!     for _ in 0..4 {
//!         client.submit(ReadRequest::new(&title, next, client.buffer(LEN)?))?;
//!         next += LEN as u64;
//!     }
//!     while let Some(completion) = client.wait(None)? {
//!         sum += completion.bytes()?.iter().map(|&byte| u64::from(byte)).sum::<u64>();
//!         if next < title.len() {
//!             client.submit(ReadRequest::new(&title, next, completion.buffer))?;
//!             next += LEN as u64;
//!         }
//!     }
//!     println!("sum of all bytes: {sum}");
//!
//!     // A new title, which has no name before it is published.
//!     let writer = client.create("/films/two.ts", &tactus_client::WriteOptions::default())?;
//!     writer.write_all(&head[..read])?;
//!     writer.publish()?;
//!
//!     // At a moment: answered one second from now.
//!     let when = tactus_client::now() + tactus_client::SECOND;
//!     client.submit(ReadRequest::new(&title, 0, client.buffer(LEN)?).at(when))?;
//!     let completion = client.wait(None)?.expect("one request is under way");
//!     println!("{} ns late", completion.at.since(when).0);
//!     Ok(())
//! }
//! ```
//!
//! The client trusts the server; the server does not trust the client. The layout of the memory
//! ([`memory`]), the messages of the socket ([`protocol`], [`socket`]), and what each side may
//! trust are in `docs/design/local-clients.md`.

pub mod memory;
pub mod protocol;

pub mod doorbell;
pub mod socket;

mod error;
mod neighbour;
mod options;
mod pages;

mod stream_gauge;
mod table;

mod connection;

mod buffer;
mod reserve;
mod title_map;

mod title;

mod recording;
mod stream;

mod working_file;
mod writer;

mod completion;

mod memory_file;
mod memory_writer;

mod future;

mod client;

pub use buffer::{Buffer, RawBuffer};
pub use client::{Client, Space};
pub use completion::{Completion, ReadRequest, WriteRequest};
pub use error::{Error, Result};
pub use future::RequestFuture;
pub use memory_file::MemoryFile;
pub use memory_writer::MemoryWriter;
pub use options::{Options, WriteOptions};
pub use protocol::{Entry, Replace, Stat};
pub use recording::{Recording, RecordingOptions};
pub use reserve::{Reserve, ReserveOptions};
pub use stream::{Stream, StreamOptions};
pub use table::Token;
pub use tactus_core::units::{BitRate, MonoTime, Nanos, SECOND};
pub use title::{PIECE, Title};
pub use title_map::{TitleMap, TitleMemory};
pub use working_file::{NewWorkingFile, WorkingFile};
pub use writer::Writer;

/// Now, by the clock of timed requests (`CLOCK_MONOTONIC`).
#[must_use]
pub fn now() -> MonoTime {
    connection::now()
}
