//! A program that a test runs, its turn, and whole answers from it.
//!
//! Promise: a program ends with its test, however the test ends.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A process that is killed when it is dropped.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Waits until no other test of this process holds the turn: a server pins its cores.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An answer is awaited no longer: the program hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The whole answer to `request`, on a connection of its own. The request must ask to close it.
pub(crate) fn exchange(address: impl ToSocketAddrs, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // A refusal may arrive before the whole body was sent.
    stream.write_all(request).ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    String::from_utf8_lossy(&answer).into_owned()
}
