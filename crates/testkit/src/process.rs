//! A process of a test, its turn, and whole answers from it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A process that is killed when it is dropped.
#[derive(Debug)]
pub struct Process(pub Child);

impl Process {
    /// Kills the process and waits for its end.
    pub fn kill(&mut self) {
        // It may have ended already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until no other test of this process holds the turn: a server pins its cores.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Upper bound of the wait for an answer: the program hangs then.
const PATIENCE: Duration = Duration::from_secs(30);

/// The whole answer to `request`, on a connection of its own. The request must ask to close it.
///
/// # Panics
///
/// If there is no connection.
pub fn exchange(address: impl ToSocketAddrs, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // A refusal may arrive before the whole body was sent.
    stream.write_all(request).ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    String::from_utf8_lossy(&answer).into_owned()
}

/// A port that is free now; the kernel assigns ports in turn, so it stays free for a while.
///
/// # Panics
///
/// If no port is free.
#[must_use]
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port()
}
