//! The simplest server on a Unix socket: it reads a request of 16 bytes and writes that part of a
//! title out of memory.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use anyhow::Result;

use crate::priority;

/// A request: the first byte, and how many.
pub(super) const REQUEST: usize = 16;

/// A server thread; it ends when the client closes.
pub(super) struct SocketServer {
    /// The client's end.
    pub(super) client: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl SocketServer {
    /// Serves `title` from `core`.
    pub(super) fn start(title: Vec<u8>, core: usize) -> Result<Self> {
        let (client, server) = UnixStream::pair()?;
        let thread = std::thread::spawn(move || {
            // Without the right it is anywhere.
            priority::pin(core).ok();
            serve(&title, server);
        });
        Ok(Self { client, thread: Some(thread) })
    }
}

fn serve(title: &[u8], mut server: UnixStream) {
    let mut request = [0; REQUEST];
    while server.read_exact(&mut request).is_ok() {
        let number = |at: usize| {
            let bytes = request[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes) as usize
        };
        let (first, len) = (number(0), number(8));
        let Some(part) = title.get(first..first + len) else { return };
        if server.write_all(part).is_err() {
            return;
        }
    }
}

impl Drop for SocketServer {
    fn drop(&mut self) {
        self.client.shutdown(std::net::Shutdown::Both).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
