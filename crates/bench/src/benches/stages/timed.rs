//! Requests with a moment: how much later than their moment they take effect, and are seen.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tactus_client::{Client, Nanos, ReadRequest, ReserveOptions, Title, now};
use tactus_core::units::{KIB, MIB};

use super::streams::cost;
use super::{SERVER_CORE, TITLE};
use crate::hogs::Hogs;
use crate::random::Random;
use crate::report::{Report, Table, Verdict, spread};
use crate::spread::quantile;

/// Requests of a run.
const REQUESTS: usize = 1000;
/// How far ahead their moments are, in microseconds: the server sleeps meanwhile.
const AHEAD: std::ops::Range<u64> = 1_000..4_000;
const LEN: u64 = 4 * KIB;
/// Lengths of reads that give the price of a request and of a MiB, and how far ahead their moments
/// are: the time between two of them.
const LENS: [u64; 2] = [4 * KIB, 256 * KIB];
const INTERVAL: Nanos = Nanos::from_micros(2_000);
/// Programs that read from the disk, and the reads of each, of which so many are under way: a
/// reserved read comes half a second ahead of its moment.
const PROGRAMS: u64 = 4;
const DISK_REQUESTS: u64 = 40;
const UNDER_WAY: u64 = 8;
const DISK_INTERVAL: Nanos = Nanos::from_millis(100);
/// Time of a run without requests.
const IDLE: Duration = Duration::from_secs(2);

/// How a run is made.
#[derive(Clone, Copy)]
struct TimedSetup {
    name: &'static str,
    /// The program looks for the answer without sleep.
    awake: bool,
    /// Programs that never rest on the core of the server.
    hogs: usize,
}

const WAYS: [TimedSetup; 3] = [
    TimedSetup { name: "program asleep", awake: false, hogs: 0 },
    TimedSetup { name: "program awake", awake: true, hogs: 0 },
    TimedSetup { name: "program asleep, a hog on the core of the server", awake: false, hogs: 1 },
];

/// Errors of one run, in microseconds.
struct Run {
    /// When the server says that it took effect.
    effect: Vec<f64>,
    /// When the program saw the answer.
    seen: Vec<f64>,
}

/// One run of each way, and the prices.
pub(super) struct Round {
    runs: [Run; WAYS.len()],
    prices: Prices,
}

/// Time of the server's real-time threads, in microseconds.
struct Prices {
    per_request: f64,
    per_mib: f64,
    /// A request whose block comes from the disk.
    per_block_request: f64,
}

/// One kind of error.
type Kind = fn(&Run) -> &[f64];

const KINDS: [(&str, Kind); 2] = [("effect", |run| &run.effect), ("seen", |run| &run.seen)];

/// Reads 4 KiB of a title in memory again and again, each at a moment.
pub(super) fn measure(
    socket: &Path,
    file: &Path,
    server: u32,
    random: &mut Random,
) -> Result<Round> {
    let name = file.file_name().and_then(|name| name.to_str()).context("a name")?;
    let path = format!("/{name}");
    let client = Client::connect(socket)?;
    let title = client.open(&path)?;
    let map = title.map()?;
    let mut run = |way: TimedSetup| measure_way(&client, &title, way, random);
    let [asleep, awake, beside] = WAYS;
    let runs = [run(asleep)?, run(awake)?, run(beside)?];
    let of_disk = |random: &mut Random| read_from_disk(socket, &path, random);
    let prices = prices(&client, &title, of_disk, server, random)?;
    drop(map);
    Ok(Round { runs, prices })
}

/// The time that requests take at each length, and from the disk, less that without requests.
fn prices(
    client: &Client,
    title: &Title,
    read_from_disk: impl FnOnce(&mut Random) -> Result<()>,
    server: u32,
    random: &mut Random,
) -> Result<Prices> {
    let idle = cost(server, || std::thread::sleep(IDLE))?;
    let mut costs = [0.0; LENS.len()];
    for (us, len) in costs.iter_mut().zip(LENS) {
        let (begun, mut done) = (Instant::now(), Ok(()));
        let cost = cost(server, || done = read_at_moments(client, title, len, random))?;
        done?;
        *us = (cost - idle) * begun.elapsed().as_secs_f64() * 1e6 / REQUESTS as f64;
    }
    let per_mib = (costs[1] - costs[0]) / ((LENS[1] - LENS[0]) as f64 / MIB as f64);
    let per_request = costs[0] - LENS[0] as f64 / MIB as f64 * per_mib;
    let (begun, mut done) = (Instant::now(), Ok(()));
    let cost = cost(server, || done = read_from_disk(random))?;
    done?;
    let all = (PROGRAMS * DISK_REQUESTS) as f64;
    let per_block_request = (cost - idle) * begun.elapsed().as_secs_f64() * 1e6 / all;
    Ok(Prices { per_request, per_mib, per_block_request })
}

/// Reads of several programs that have reserved their moments, none of which is near another.
fn read_from_disk(socket: &Path, path: &str, random: &mut Random) -> Result<()> {
    let options = ReserveOptions { interval: DISK_INTERVAL, tolerance: Nanos(0), len: LEN as u32 };
    let programs = (0..PROGRAMS).map(|_| {
        let client = Client::connect(socket)?;
        let title = client.open(path)?;
        title.reserve(&options)?;
        Ok((client, title))
    });
    let programs = programs.collect::<Result<Vec<_>>>()?;
    let begin = now() + DISK_INTERVAL.times(UNDER_WAY - 1);
    let apart = Nanos(DISK_INTERVAL.0 / PROGRAMS);
    let wait = |client: &Client| -> Result<()> {
        let done = client.wait(None)?.context("a request is under way")?;
        ensure!(done.bytes()?.len() as u64 == LEN, "it is not as requested");
        Ok(())
    };
    for nth in 0..DISK_REQUESTS + UNDER_WAY {
        for ((client, title), at) in programs.iter().zip(0..) {
            if nth >= UNDER_WAY {
                wait(client)?;
            }
            if nth < DISK_REQUESTS {
                let first = random.next() % (TITLE / LEN) * LEN;
                let when = begin + DISK_INTERVAL.times(nth) + apart.times(at);
                let buffer = client.buffer(LEN as usize)?;
                client.submit(ReadRequest::new(title, first, buffer).at(when))?;
            }
        }
    }
    Ok(())
}

fn read_at_moments(client: &Client, title: &Title, len: u64, random: &mut Random) -> Result<()> {
    for _ in 0..REQUESTS {
        let first = random.next() % (TITLE / len) * len;
        let buffer = client.buffer(len as usize)?;
        client.submit(ReadRequest::new(title, first, buffer).at(now() + INTERVAL))?;
        let done = client.wait(None)?.context("one request is under way")?;
        ensure!(done.bytes()?.len() as u64 == len, "it is not as requested");
    }
    Ok(())
}

fn measure_way(
    client: &Client,
    title: &Title,
    way: TimedSetup,
    random: &mut Random,
) -> Result<Run> {
    let _hogs = Hogs::start(SERVER_CORE, way.hogs)?;
    let mut run = Run { effect: vec![], seen: vec![] };
    for _ in 0..REQUESTS {
        let first = random.next() % (TITLE / LEN) * LEN;
        let ahead = AHEAD.start + random.next() % (AHEAD.end - AHEAD.start);
        let when = now() + Nanos::from_micros(ahead);
        let buffer = client.buffer(LEN as usize)?;
        client.submit(ReadRequest::new(title, first, buffer).at(when))?;
        let done = loop {
            if let Some(done) = client.poll() {
                break done;
            }
            if !way.awake {
                break client.wait(None)?.context("one request is under way")?;
            }
            std::hint::spin_loop();
        };
        let seen = now();
        ensure!(done.bytes()?.len() as u64 == LEN && done.at >= when, "it is not as requested");
        run.effect.push(done.at.since(when).0 as f64 / 1e3);
        run.seen.push(seen.since(when).0 as f64 / 1e3);
    }
    Ok(run)
}

/// The figures of all rounds.
pub(super) fn summarise(rounds: &[Round], report: &mut Report) {
    const QUANTILES: [(&str, f64); 4] =
        [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("highest", 1.0)];
    let at = |values: &[f64], q| quantile(&mut values.to_vec(), q).unwrap_or(f64::NAN);
    let each = |way: usize, of: Kind, q| -> Vec<f64> {
        rounds.iter().map(|round| at(of(&round.runs[way]), q)).collect()
    };
    let head = ["", "p50", "p99", "p99.9", "highest"];
    let mut table = Table::new("later than the moment of a request, us", &head);
    for (way, TimedSetup { name, .. }) in WAYS.iter().enumerate() {
        for (kind, of) in KINDS {
            let cells = QUANTILES.iter().map(|&(_, q)| spread(&each(way, of, q)));
            table.row([format!("{name}: {kind}")].into_iter().chain(cells).collect());
            report.runs.push(json!({
                "way": format!("timed, {name}"), "error": kind, "p99_us": each(way, of, 0.99),
            }));
        }
    }
    report.tables.push(table);
    let requests: Vec<f64> = rounds.iter().map(|round| round.prices.per_request).collect();
    let bytes: Vec<f64> = rounds.iter().map(|round| round.prices.per_mib).collect();
    let blocks: Vec<f64> = rounds.iter().map(|round| round.prices.per_block_request).collect();
    let head = ["time of the server's core, us", "each request", "each MiB"];
    let mut table = Table::new("a read at a moment", &head);
    table.row(vec!["2 ms ahead, program asleep".to_owned(), spread(&requests), spread(&bytes)]);
    table.row(vec!["4 KiB, wanted from the disk".to_owned(), spread(&blocks), String::new()]);
    report.tables.push(table);
    report.runs.push(json!({
        "way": "timed", "request_us": requests, "mib_us": bytes, "block_request_us": blocks,
    }));
    let effect = |way| each(way, KINDS[0].1, 0.99);
    let (figure, goals) = ("timed requests: error p99 of the effect", (200.0, 50.0));
    let beside = format!("{figure} beside a hog, us");
    report.verdicts.push(Verdict::of(&format!("{figure}, us"), &effect(0), goals, true));
    report.verdicts.push(Verdict::of(&beside, &effect(2), goals, true));
}
