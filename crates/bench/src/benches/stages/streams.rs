//! Streams into rings of programs: what a send and a byte cost the core that sends.
//!
//! Promise: only the CPU time of the server's real-time threads counts. Their time without streams
//! is subtracted. Runs at two rates with the same number of sends give two equations, which yield
//! the price of a send and of a MiB. The programs sleep between sends, so nearly every send wakes
//! one.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use tactus_client::{BitRate, Client, Options, Stream, StreamOptions};
use tactus_core::stagger::Tick;
use tactus_core::units::{KIB, MIB};

use super::TITLE;
use crate::cpu::CpuSnapshot;
use crate::report::{Report, Table, spread};

/// Programs, and streams of each.
const CLIENTS: usize = 6;
const STREAMS: usize = 6;
/// The rates. The interval is the one that the server chooses for both.
const RATES: [BitRate; 2] = [BitRate(2_000_000), BitRate(32_000_000)];
const TICK: Tick = Tick::Ms25;
/// Time at a rate before it is measured, and time of the measurement: the title is longer.
const BEFORE: Duration = Duration::from_secs(2);
const SPAN: Duration = Duration::from_secs(4);

/// The prices of one round, in microseconds.
pub(super) struct Round {
    per_send: f64,
    per_mib: f64,
}

/// Measures the prices once.
pub(super) fn measure(socket: &Path, file: &Path, server: u32) -> Result<Round> {
    ensure!(RATES.iter().all(|&rate| Tick::for_rate(rate, TICK) == TICK), "one interval for both");
    let name = file.file_name().and_then(|name| name.to_str()).context("a name")?;
    let idle = cost(server, || std::thread::sleep(SPAN))?;
    let mut costs = [0.0; RATES.len()];
    for (cost, rate) in costs.iter_mut().zip(RATES) {
        *cost = at_rate(socket, name, rate, server)? - idle;
    }
    // Seconds of the core in a second for one stream: sends * price + bytes * price.
    let sends = 1e9 / TICK.span().0 as f64;
    let [low, high] = costs.map(|cost| cost / (CLIENTS * STREAMS) as f64 * 1e6);
    let [few, many] = RATES.map(|rate| rate.0 as f64 / 8.0 / MIB as f64);
    let per_mib = (high - low) / (many - few);
    Ok(Round { per_send: (low - few * per_mib) / sends, per_mib })
}

/// Run time of the server's real-time threads in a second of `work`.
pub(super) fn cost(server: u32, work: impl FnOnce()) -> Result<f64> {
    let before = CpuSnapshot::take()?;
    work();
    let spent = CpuSnapshot::take()?.since(&before, server);
    ensure!(spent.real_time > 0.0, "the server has no real-time threads: SCHED_FIFO is refused");
    Ok(spent.real_time / spent.wall)
}

/// The cost of all streams at `rate`, and of the server without them.
fn at_rate(socket: &Path, name: &str, rate: BitRate, server: u32) -> Result<f64> {
    let options = Options { data: 64 * KIB, ..Options::default() };
    let mut programs = vec![];
    for client in 0..CLIENTS {
        let connection = Client::connect_with(socket, &options)?;
        let title = connection.open(&format!("/{name}"))?;
        let mut streams = vec![];
        for nth in 0..STREAMS {
            // Each at another place, so that the processor's cache has few of the bytes.
            let apart = TITLE / 2 / (CLIENTS * STREAMS) as u64;
            let first = (client * STREAMS + nth) as u64 * apart;
            let options = StreamOptions { first, rate: Some(rate), ..StreamOptions::default() };
            streams.push(connection.stream(&title, &options)?);
        }
        programs.push((connection, streams));
    }
    take_for(&mut programs, BEFORE)?;
    let mut taken = Ok(());
    let cost = cost(server, || taken = take_for(&mut programs, SPAN))?;
    taken?;
    Ok(cost)
}

/// Gives all bytes back as they come, asleep in between.
fn take_for(programs: &mut [(Client, Vec<Stream>)], span: Duration) -> Result<()> {
    let until = Instant::now() + span;
    while Instant::now() < until {
        let mut is_armed = true;
        for (client, _) in &*programs {
            is_armed &= client.arm()?;
        }
        if is_armed {
            let mut fds: Vec<PollFd<'_>> = vec![];
            for (client, _) in &*programs {
                fds.push(PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN));
            }
            let most = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            poll(&mut fds, Some(&most))?;
        }
        for (client, streams) in &mut *programs {
            client.disarm();
            for stream in streams {
                let len = stream.chunk()?.len();
                ensure!(len > 0 || !stream.is_at_end(), "the title is too short");
                stream.consume(len);
            }
        }
    }
    Ok(())
}

/// The figures of all rounds.
pub(super) fn summarise(rounds: &[Round], report: &mut Report) {
    let sends: Vec<f64> = rounds.iter().map(|round| round.per_send).collect();
    let bytes: Vec<f64> = rounds.iter().map(|round| round.per_mib).collect();
    let head = ["time of the sending core, us", "each send", "each MiB"];
    let mut table = Table::new("a stream into a ring", &head);
    table.row(vec!["asleep between the sends".to_owned(), spread(&sends), spread(&bytes)]);
    report.tables.push(table);
    let runs = rounds.iter().map(
        |round| json!({ "way": "stream", "send_us": round.per_send, "mib_us": round.per_mib }),
    );
    report.runs.extend(runs);
    report.method.push(format!(
        "Streams: {CLIENTS} programs with {STREAMS} streams each of a title in memory, at {} and \
         at {}, a send each {} ms. The two costs of the server's real-time threads, less that \
         without streams, give the price of a send and of a byte.",
        RATES[0],
        RATES[1],
        TICK.span().0 as f64 / 1e6
    ));
}
