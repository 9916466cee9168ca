//! Programs of the same machine that read a title through shared memory without rest, and one that
//! writes rubbish into the memory that it shares.
//!
//! Promise: they have the priority of ordinary programs, on the core that they were given. The
//! hostile one writes requests that are refused as fast as it can, and now and then positions that
//! cannot be; when the server cuts it, it connects again.

use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tactus_client::memory::Mapping;
use tactus_client::protocol::{Reply, Request};
use tactus_client::{Client, ReadRequest, doorbell, socket};
use tactus_core::local::{VERSION, layout};
use tactus_core::units::{KIB, MIB, Nanos};
use tactus_ring::shared::SharedBytes;

use crate::random::Random;
use crate::{clock, priority};

/// Some of them.
pub struct Programs {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    reads: AtomicU64,
    bytes: AtomicU64,
    rubbish: AtomicU64,
    connections: AtomicU64,
    failed: AtomicU64,
}

/// The number of their reads, bytes, writes of rubbish, connections and failures.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    reads: u64,
    bytes: u64,
    rubbish: u64,
    connections: u64,
    failed: u64,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reads, bytes, rubbish, connections, failed } = self;
        write!(
            f,
            "{reads} reads of {bytes} bytes in all, {failed} failed; {rubbish} writes of rubbish \
             in {connections} connections"
        )
    }
}

/// Bytes of a read of each program.
const READERS: [u64; 4] = [4 * KIB, 4 * KIB, 64 * KIB, MIB];
/// They read the beginning of the title over and over: it stays in memory.
const PART: u64 = 4 * MIB;
/// Reads under way at once.
const DEPTH: u64 = 4;

impl Programs {
    /// Starts them: four that read `title` and one that writes rubbish.
    ///
    /// # Errors
    /// When a thread cannot be made.
    pub fn start(core: usize, socket: &Path, title: String) -> Result<Self> {
        let mut programs = Self { shared: Arc::default(), threads: vec![] };
        for len in READERS {
            let (socket, title) = (socket.to_owned(), title.clone());
            programs.spawn(core, move |shared| read(shared, &socket, &title, len))?;
        }
        let socket = socket.to_owned();
        programs.spawn(core, move |shared| {
            let mut random = Random::new(26);
            while !shared.stop.load(Ordering::Relaxed) {
                if write_rubbish(shared, &socket, &mut random).is_err() {
                    // The server has not taken the last connection down.
                    clock::sleep(Nanos::from_millis(1));
                }
            }
            Ok(())
        })?;
        Ok(programs)
    }

    fn spawn(
        &mut self,
        core: usize,
        run: impl FnOnce(&Shared) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("program".into());
        self.threads.push(thread.spawn(move || {
            if priority::pin(core).and_then(|()| run(&shared)).is_err() {
                shared.failed.fetch_add(1, Ordering::Relaxed);
            }
        })?);
        Ok(())
    }

    /// Ends them.
    pub fn stop(mut self) -> Work {
        self.end();
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Shared { reads, bytes, rubbish, connections, failed, .. } = &*self.shared;
        Work {
            reads: value(reads),
            bytes: value(bytes),
            rubbish: value(rubbish),
            connections: value(connections),
            failed: value(failed),
        }
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It has no way to panic.
            drop(thread.join());
        }
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        self.end();
    }
}

fn read(shared: &Shared, socket: &Path, title: &str, len: u64) -> Result<()> {
    let client = Client::connect(socket)?;
    let title = client.open(title)?;
    let places = (title.len().min(PART) / len).max(1);
    for nth in 0..DEPTH.min(PART / len) {
        client.submit(ReadRequest::new(
            &title,
            nth % places * len,
            client.buffer(len as usize)?,
        ))?;
    }
    let mut nth = DEPTH;
    while let Some(completion) = client.wait(None)? {
        shared.bytes.fetch_add(completion.bytes()?.len() as u64, Ordering::Relaxed);
        shared.reads.fetch_add(1, Ordering::Relaxed);
        if !shared.stop.load(Ordering::Relaxed) {
            client.submit(ReadRequest::new(&title, nth % places * len, completion.buffer))?;
            nth += 1;
        }
    }
    Ok(())
}

/// Writes of a connection before the one that ends it.
const WRITES: u64 = 200_000;
/// Data that it shares.
const DATA: u64 = 64 * KIB;

fn write_rubbish(shared: &Shared, path: &Path, random: &mut Random) -> Result<()> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let connection = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::connect(&connection, &SocketAddrUnix::new(path)?)?;
    socket::send(&connection, &Request::Hello { version: VERSION, data: DATA }, &[])?;
    let (reply, files) = socket::receive::<Reply>(&connection)?.context("a reply")?;
    let Reply::Welcome { memory, .. } = reply else { anyhow::bail!("{reply:?}") };
    let [file, bell] = &files[..] else { anyhow::bail!("{} descriptors", files.len()) };
    let mapping = Mapping::new(file.as_fd(), memory as usize)?;
    let mut memory = SharedBytes::new(Arc::new(mapping), 0);
    shared.connections.fetch_add(1, Ordering::Relaxed);
    let word = |memory: &SharedBytes, at: usize| {
        let mut word = [0; 8];
        memory.copy_out(at as u64, &mut word);
        u64::from_le_bytes(word)
    };
    for _ in 0..WRITES {
        if shared.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Random words where requests are, then the claim that the ring is full of them, and that
        // all answers were taken.
        for _ in 0..8 {
            let at =
                layout::REQUEST_SLOTS as u64 + random.next() % (layout::DATA as u64 / 8 - 512) * 8;
            memory.copy_in(at, &(random.next() >> (random.next() % 64)).to_le_bytes());
        }
        let taken = word(&memory, layout::REQUESTS_TAKEN);
        memory.copy_in(layout::REQUESTS_PUSHED as u64, &taken.wrapping_add(256).to_le_bytes());
        let answers = word(&memory, layout::ANSWERS_PUSHED);
        memory.copy_in(layout::ANSWERS_TAKEN as u64, &answers.to_le_bytes());
        doorbell::ring(bell);
        shared.rubbish.fetch_add(1, Ordering::Relaxed);
    }
    memory.copy_in(layout::REQUESTS_PUSHED as u64, &u64::MAX.to_le_bytes());
    doorbell::ring(bell);
    // Until the server cuts the connection.
    while let Ok(Some(_)) = socket::receive::<Reply>(&connection) {}
    Ok(())
}
