//! The ways by which a program gets a part of a title.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tactus_client::{Buffer, Client, ReadRequest, Title, TitleMap};
use tactus_core::units::MIB;

use super::peer::Peer;
use super::socket_server::SocketServer;
use super::{CORE, TITLE};
use crate::cpu::{own_run_time, process_run_time};
use crate::random::Random;
use crate::spread::quantile;

pub(super) const IN_PLACE: &str = "shared ring, in place";
pub(super) const MEMORY: &str = "shared ring, title in memory";
pub(super) const MAPPED: &str = "mapped title";
pub(super) const COPIED: &str = "shared ring, copied";
pub(super) const EMPTY: &str = "shared ring, no bytes";
pub(super) const SOCKET: &str = "Unix socket, copied";
pub(super) const PEER: &str = "iceoryx2, request and response";

/// Requests of one size in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Times in microseconds.
    pub(super) p50: f64,
    pub(super) p999: f64,
    /// CPU time of both sides for a request, in microseconds.
    pub(super) cpu: f64,
    pub(super) requests: usize,
}

/// A way to read.
pub(super) struct AccessPath {
    name: &'static str,
    kind: Kind,
    /// The server's process, whose threads count.
    process: u32,
    random: Random,
    times: Vec<f64>,
}

enum Kind {
    InPlace(Client, Title, Option<Buffer>),
    /// No request: the title is mapped.
    Mapped(TitleMap<'static>),
    Copied(Title, Vec<u8>),
    /// The hand-over alone.
    Empty(Client, Title, Option<Buffer>),
    Socket(SocketServer, Vec<u8>),
    /// Another program, which measures itself.
    Peer(Peer),
}

impl AccessPath {
    /// All ways to read the title served at `socket`, whose bytes are in `file`.
    pub(super) fn all(
        socket: &Path,
        file: &Path,
        process: u32,
        peer: Option<Peer>,
    ) -> Result<Vec<Self>> {
        let name = file.file_name().and_then(|name| name.to_str()).context("a name")?;
        let title = |client: &Client| client.open(&format!("/{name}"));
        let make = |name, kind, process| Self {
            name,
            kind,
            process,
            random: Random::new(7),
            times: Vec::with_capacity(1 << 20),
        };
        let client = Client::connect(socket)?;
        let placed = Kind::InPlace(client.clone(), title(&client)?, None);
        let fourth = Client::connect(socket)?;
        // A map lives no longer than its title; these live as long as the bench.
        let in_memory: &'static Title = Box::leak(Box::new(title(&fourth)?));
        let mapped = Kind::Mapped(in_memory.map()?);
        let memory = title(&fourth)?;
        drop(memory.map()?);
        let memory = Kind::InPlace(fourth, memory, None);
        let other = Client::connect(socket)?;
        let copied = Kind::Copied(title(&other)?, vec![0; MIB as usize]);
        let third = Client::connect(socket)?;
        let empty = Kind::Empty(third.clone(), title(&third)?, None);
        let server = SocketServer::start(fs::read(file)?, 1 - CORE)?;
        let own = std::process::id();
        let mut all = vec![
            make(MAPPED, mapped, process),
            make(MEMORY, memory, process),
            make(IN_PLACE, placed, process),
            make(COPIED, copied, process),
            make(EMPTY, empty, process),
            make(SOCKET, Kind::Socket(server, vec![0; MIB as usize]), own),
        ];
        all.extend(peer.map(|peer| make(PEER, Kind::Peer(peer), own)));
        Ok(all)
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Reads parts of `size` for `span`, after a tenth of it as a warm-up.
    pub(super) fn measure(&mut self, size: u64, span: Duration) -> Result<Sample> {
        if let Kind::Peer(peer) = &mut self.kind {
            return peer.measure(size, span);
        }
        let warm = Instant::now() + span / 10;
        while Instant::now() < warm {
            self.read(size)?;
        }
        self.times.clear();
        let before = self.cpu()?;
        let until = Instant::now() + span;
        loop {
            let begun = Instant::now();
            if begun >= until || self.times.len() == self.times.capacity() {
                break;
            }
            self.read(size)?;
            self.times.push(begun.elapsed().as_nanos() as f64 / 1e3);
        }
        let cpu = (self.cpu()? - before) as f64 / 1e3;
        let requests = self.times.len();
        ensure!(requests > 0, "no request ended in {span:?}");
        let at = |times: &mut [f64], q| quantile(times, q).unwrap_or(f64::NAN);
        Ok(Sample {
            p50: at(&mut self.times, 0.5),
            p999: at(&mut self.times, 0.999),
            cpu: cpu / requests as f64,
            requests,
        })
    }

    /// Run time of the program's thread, and of all threads of the server, in nanoseconds.
    fn cpu(&self) -> Result<u64> {
        let mut sum = process_run_time(self.process)?;
        if self.process != std::process::id() {
            sum += own_run_time()?;
        }
        Ok(sum.0)
    }

    fn read(&mut self, size: u64) -> Result<()> {
        let first = self.random.next() % (TITLE / size) * size;
        let expected = (first ^ first >> 8 ^ first >> 16) as u8;
        let len = size as usize;
        match &mut self.kind {
            Kind::InPlace(client, title, buffer) => {
                let own = buffer.take().filter(|buffer| buffer.len() == len);
                let own = own.map_or_else(|| client.buffer(len), Ok)?;
                client.submit(ReadRequest::new(title, first, own))?;
                let done = client.wait(None)?.context("one request is under way")?;
                check(done.bytes()?, len, expected)?;
                *buffer = Some(done.buffer);
            }
            Kind::Mapped(map) => {
                let first = first as usize;
                check(&map[first..first + len], len, expected)?;
            }
            Kind::Copied(title, into) => {
                ensure!(title.read_at(first, &mut into[..len])? == len, "all bytes");
                check(&into[..len], len, expected)?;
            }
            Kind::Empty(client, title, buffer) => {
                let own = buffer.take().map_or_else(|| client.buffer(1), Ok)?;
                // Behind the end.
                client.submit(ReadRequest::new(title, TITLE, own))?;
                let done = client.wait(None)?.context("one request is under way")?;
                ensure!(done.bytes()?.is_empty(), "no bytes");
                *buffer = Some(done.buffer);
            }
            Kind::Socket(server, into) => {
                let mut request = [0; super::socket_server::REQUEST];
                request[..8].copy_from_slice(&first.to_le_bytes());
                request[8..].copy_from_slice(&size.to_le_bytes());
                server.client.write_all(&request)?;
                server.client.read_exact(&mut into[..len])?;
                check(&into[..len], len, expected)?;
            }
            Kind::Peer(_) => anyhow::bail!("the peer measures itself"),
        }
        Ok(())
    }
}

/// Reads the first and the last byte: what a program does with the others is its own cost.
fn check(bytes: &[u8], len: usize, first: u8) -> Result<()> {
    ensure!(bytes.len() == len && bytes[0] == first, "these are not the bytes of the title");
    std::hint::black_box(bytes[len - 1]);
    Ok(())
}
