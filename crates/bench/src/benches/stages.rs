//! stages: what a request of a local program costs, by size and by way, beside a server on a Unix
//! socket.
//!
//! Promise: all ways read the same bytes of the same title out of memory, in turns, from the same
//! core; each reply is read by the program. The server is Tactus itself, at its defaults but for
//! `[local]`.

mod peer;
mod socket_server;
mod streams;
mod timed;
mod ways;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tactus_core::units::{KIB, MIB};

use super::local_server::LocalServer;
use super::say;
use crate::random::Random;
use crate::report::{Plot, Report, Table, Verdict, spread};
use crate::{interrupt, priority};
use peer::Peer;
use ways::{AccessPath, Sample};

/// What the command line says.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Rounds; in each every way has its turn at every size.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Milliseconds of each way at each size in each round.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub span: u64,
    /// The server to measure; by default the binary `tactus` beside this one.
    #[arg(long)]
    pub tactus: Option<PathBuf>,
    /// The program `iceoryx2-peer`, if it was built; see the head of its `Cargo.toml`.
    #[arg(long, default_value = "target/peers/release/iceoryx2-peer")]
    pub iceoryx2: PathBuf,
    /// Where the title is laid down.
    #[arg(long, default_value = "target/bench/data")]
    pub data: PathBuf,
    /// Where the report is written.
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
}

/// Sizes of the ancestor's table, and those of today.
const SIZES: [u64; 9] = [512, KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB];
/// The title is read over and over: so much of it that the processor's cache does not hold it.
const TITLE: u64 = 64 * MIB;
/// The program's core; the server has the other one.
const CORE: usize = 0;
/// The core of the server.
const SERVER_CORE: usize = 1;
/// The size of the ancestor's sum.
const ALL: u64 = 200_000;

/// What a sample says.
type Figure = fn(&Sample) -> f64;

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    let question = "what does a request of a program on the same machine cost?";
    let mut report = Report::new("stages", question);
    let place = ("stages", TITLE, SERVER_CORE);
    let served = LocalServer::start(place, options.tactus.as_deref(), &options.data)?;
    priority::pin(CORE)?;
    let peer = match options.iceoryx2.exists() {
        true => Some(Peer::start(&options.iceoryx2, &served.title)?),
        false => {
            say(&format!("without iceoryx2: {} is not there", options.iceoryx2.display()));
            None
        }
    };
    let process = served.id();
    let mut ways = AccessPath::all(&served.socket, &served.title, process, peer)?;
    // By way, then by size.
    let mut samples: Vec<Vec<Vec<Sample>>> = vec![vec![vec![]; SIZES.len()]; ways.len()];
    for round in 1..=options.rounds {
        say(&format!("round {round} of {}", options.rounds));
        for (nth, &size) in SIZES.iter().enumerate() {
            for (way, samples) in ways.iter_mut().zip(&mut samples) {
                interrupt::check()?;
                samples[nth].push(way.measure(size, Duration::from_millis(options.span))?);
            }
        }
    }
    summarise(&ways, &samples, &mut report);
    drop(ways);
    let mut random = Random::new(11);
    let mut rounds = vec![];
    for round in 1..=options.rounds {
        say(&format!("timed requests, round {round} of {}", options.rounds));
        interrupt::check()?;
        rounds.push(timed::measure(&served.socket, &served.title, process, &mut random)?);
    }
    timed::summarise(&rounds, &mut report);
    let mut rounds = vec![];
    for round in 1..=options.rounds {
        say(&format!("streams, round {round} of {}", options.rounds));
        interrupt::check()?;
        rounds.push(streams::measure(&served.socket, &served.title, process)?);
    }
    streams::summarise(&rounds, &mut report);
    report.method.push(
        "A way reads at random multiples of the size out of a title of 64 MiB, all of it in \
         memory, one request after the other, and reads the first and the last byte of each \
         reply. CPU is the run time of the program's thread and of all threads of the server, by \
         the scheduler."
            .into(),
    );
    report.method.push(
        "A timed request reads 4 KiB of a title in memory 1 to 4 ms after it was submitted. The \
         server sleeps until shortly before, and the program until its answer or not at all. The \
         effect is by the server's clock, *seen* by the program's."
            .into(),
    );
    report.publish(&options.out)?;
    Ok(())
}

/// The figures of all rounds.
fn summarise(ways: &[AccessPath], samples: &[Vec<Vec<Sample>>], report: &mut Report) {
    let values = |way: usize, size: usize, figure: Figure| -> Vec<f64> {
        samples[way][size].iter().map(figure).collect()
    };
    let head: Vec<String> = SIZES.iter().map(|&size| short(size)).collect();
    let head: Vec<&str> = ["way"].into_iter().chain(head.iter().map(String::as_str)).collect();
    let figures: [(&str, Figure); 3] = [
        ("time of a request, p50, us", |sample| sample.p50),
        ("time of a request, p99.9, us", |sample| sample.p999),
        ("CPU of both sides for a request, us", |sample| sample.cpu),
    ];
    for (title, figure) in figures {
        let mut table = Table::new(title, &head);
        for (nth, way) in ways.iter().enumerate() {
            let cells = (0..SIZES.len()).map(|size| spread(&values(nth, size, figure)));
            table.row([way.name().to_owned()].into_iter().chain(cells).collect());
        }
        report.tables.push(table);
    }
    let lines = ways.iter().enumerate().map(|(nth, way)| {
        let points = SIZES.iter().enumerate().map(|(at, &size)| {
            let mut all = values(nth, at, |sample| sample.p50);
            (size as f64 / 1024.0, crate::spread::quantile(&mut all, 0.5).unwrap_or(f64::NAN))
        });
        (way.name().to_owned(), points.collect())
    });
    report.plots.push(Plot::Lines {
        title: "time of a request, p50".into(),
        axes: ("KiB".into(), "us".into()),
        lines: lines.collect(),
        mark: None,
    });
    for (nth, way) in ways.iter().enumerate() {
        for (at, &size) in SIZES.iter().enumerate() {
            for sample in &samples[nth][at] {
                report.runs.push(json!({
                    "way": way.name(), "size": size, "p50_us": sample.p50,
                    "p999_us": sample.p999, "cpu_us": sample.cpu, "requests": sample.requests,
                }));
            }
        }
    }
    judge(ways, samples, report);
}

fn judge(ways: &[AccessPath], samples: &[Vec<Vec<Sample>>], report: &mut Report) {
    let at =
        |size: u64| SIZES.iter().position(|&known| known == size).expect("a size of the table");
    let way = |name: &str| ways.iter().position(|way| way.name() == name).expect("a way");
    let (memory, mapped, socket) = (way(ways::MEMORY), way(ways::MAPPED), way(ways::SOCKET));
    let rounds = |one: (usize, usize), other: (usize, usize), figure: Figure| {
        let pairs = samples[one.0][one.1].iter().zip(&samples[other.0][other.1]);
        pairs.map(|(one, other)| figure(one) / figure(other)).collect::<Vec<_>>()
    };
    let p50: Figure = |sample| sample.p50;
    let four = at(4 * KIB);
    let own: Vec<_> = samples[memory][four].iter().map(p50).collect();
    let cpu: Figure = |sample| sample.cpu;
    let of_mapped = |size| rounds((mapped, at(size)), (mapped, four), p50);
    let of_socket = |figure| rounds((socket, four), (memory, four), figure);
    let mut all = vec![
        ("a read of 4 KiB from memory by ring, p50, us", own, 1.0, 0.5, true),
        ("64 KiB against 4 KiB of a mapped title", of_mapped(64 * KIB), 1.1, 1.05, true),
        ("1 MiB against 4 KiB of a mapped title", of_mapped(MIB), 1.1, 1.05, true),
        ("Unix socket against the ring, 4 KiB: time", of_socket(p50), 10.0, 30.0, false),
        ("Unix socket against the ring, 4 KiB: CPU", of_socket(cpu), 10.0, 30.0, false),
    ];
    if let Some(peer) = ways.iter().position(|way| way.name() == ways::PEER) {
        let of_peer = rounds((memory, four), (peer, four), p50);
        all.push(("the ring against iceoryx2, 4 KiB: time", of_peer, 1.0, 0.5, true));
    }
    for (figure, measured, must, push, is_most) in all {
        report.verdicts.push(Verdict::of(figure, &measured, (must, push), is_most));
    }
    let mut table = Table::new("time for 200 KB in all, us", &["way", "512 B", "4 KiB", "16 KiB"]);
    for (nth, way) in ways.iter().enumerate() {
        let cells = [512, 4 * KIB, 16 * KIB].map(|size| {
            let count = ALL.div_ceil(size) as f64;
            spread(&samples[nth][at(size)].iter().map(|one| one.p50 * count).collect::<Vec<_>>())
        });
        table.row([way.name().to_owned()].into_iter().chain(cells).collect());
    }
    report.tables.push(table);
}

fn short(size: u64) -> String {
    match size {
        MIB.. => format!("{} MiB", size / MIB),
        KIB.. => format!("{} KiB", size / KIB),
        _ => format!("{size} B"),
    }
}
