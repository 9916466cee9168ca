//! A server that only sends evenly. Its CPU time is a lower bound for all servers that do so.
//!
//! One real-time thread sends to each connection by `sendfile`, a given number of times a second,
//! in slots as Tactus does. The kernel reads ahead, as far as it does for Tactus. The server keeps
//! no block in memory and admits, refuses and counts nothing; a slow disk stops all its streams.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::Advice;
use tactus_core::units::{BitRate, Bytes, KIB, MonoTime, Nanos, SECOND};
use tactus_sys::probe;

use crate::{clock, priority};

/// Options of the server.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The directory of the titles.
    #[arg(long)]
    root: PathBuf,
    /// Where it listens.
    #[arg(long)]
    listen: SocketAddrV4,
    /// Bits per second of each stream.
    #[arg(long)]
    rate: u64,
    /// Sends of each stream in a second.
    #[arg(long)]
    sends: u64,
    /// The core of its thread.
    #[arg(long)]
    core: usize,
}

/// Slots of a second: the wake-ups of Tactus with 200 television streams.
const SLOTS: u64 = 36;
/// That of the real-time thread of Tactus.
const PRIORITY: u32 = 40;
/// A read-ahead that Tactus doubles.
const SMALL_READ_AHEAD: Bytes = Bytes(512 * KIB);

struct Stream {
    connection: TcpStream,
    title: File,
    begin: MonoTime,
    sent: u64,
}

/// Sends until it is ended.
pub fn run(options: &Options) -> Result<()> {
    priority::pin(options.core)?;
    // Without SCHED_FIFO it runs as an ordinary thread.
    drop(priority::fifo(PRIORITY));
    let listener = TcpListener::bind(options.listen)?;
    listener.set_nonblocking(true)?;
    let slots = (SLOTS / options.sends) as usize;
    let mut streams: Vec<Vec<Stream>> = (0..slots).map(|_| Vec::new()).collect();
    let device = probe::volume(&options.root)?.device;
    let read_ahead = device.and_then(|device| device.read_ahead);
    let is_small = read_ahead.is_some_and(|bytes| bytes <= SMALL_READ_AHEAD);
    let advice = if is_small { Advice::Sequential } else { Advice::Normal };
    let begin = clock::now();
    for slot in 0.. {
        let at = begin + Nanos(SECOND.0 * slot / SLOTS);
        clock::sleep_until(at);
        loop {
            match listener.accept() {
                Ok((connection, _)) => {
                    // A connection without a request gets no stream.
                    let Some(stream) = begin_stream(connection, &options.root, advice, at)? else {
                        continue;
                    };
                    let emptiest = streams.iter_mut().min_by_key(|streams| streams.len());
                    emptiest.context("there is a slot")?.push(stream);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        let due = &mut streams[slot as usize % slots];
        due.retain_mut(|stream| send(stream, at, BitRate(options.rate)));
    }
    Ok(())
}

/// Reads the request and answers it.
fn begin_stream(
    mut connection: TcpStream,
    root: &Path,
    advice: Advice,
    at: MonoTime,
) -> Result<Option<Stream>> {
    let (mut request, mut byte) = (Vec::new(), [0]);
    while !request.ends_with(b"\r\n\r\n") {
        match connection.read(&mut byte) {
            Ok(1) => request.push(byte[0]),
            Ok(_) | Err(_) => return Ok(None),
        }
    }
    let request = String::from_utf8(request)?;
    let target = request.split(' ').nth(1).context("a request has a target")?;
    let title = File::open(root.join(target.trim_start_matches('/')))?;
    rustix::fs::fadvise(&title, 0, None, advice)?;
    let len = title.metadata()?.len();
    write!(connection, "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n")?;
    connection.set_nodelay(true)?;
    connection.set_nonblocking(true)?;
    Ok(Some(Stream { connection, title, begin: at, sent: 0 }))
}

/// Sends the due bytes of a stream. Returns false when the stream has ended.
fn send(stream: &mut Stream, at: MonoTime, rate: BitRate) -> bool {
    let due = rate.bytes_in(at.since(stream.begin)).0;
    let mut offset = stream.sent;
    while offset < due {
        let (len, before) = ((due - offset) as usize, offset);
        match rustix::fs::sendfile(&stream.connection, &stream.title, Some(&mut offset), len) {
            Ok(_) if offset > before => {}
            Err(rustix::io::Errno::AGAIN) => break,
            // The end, or the player has gone.
            Ok(_) | Err(_) => return false,
        }
    }
    stream.sent = offset;
    true
}
