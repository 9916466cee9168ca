//! The command line of the bench.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use tactus_bench::benches::{self, Bench};
use tactus_bench::crash;
use tactus_bench::disk::{self, Profile, Queue, Shape};
use tactus_bench::{
    classes, datagrams, faulty, file_load, file_writer, interrupt, netns, pace, plain_sender,
    report, rtsp_check, wire_sender,
};
use tactus_core::units::{Bytes, KIB, SECOND};

/// Measures Tactus against its peers and against the limits of the machine.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    #[command(flatten)]
    Bench(Bench),
    /// What the pacer costs with ten to ten thousand classes, by itself.
    Classes(classes::Options),
    /// Mounts an emulated disk and serves it until ctrl-c.
    Disk(DiskOptions),
    /// Reads an emulated disk and prints its rates beside those of its model.
    DiskCheck(DiskOptions),
    /// Cuts the power at many points of what a subject has written, and judges what is left.
    Crash(crash::Options),
    /// A disk that logs what it is told, for `crash`.
    #[command(hide = true)]
    CrashDisk {
        /// The size.
        #[arg(long, value_parser = size)]
        size: Bytes,
    },
    /// A disk that fails as it is told to, for the tests of faults.
    #[command(hide = true)]
    FaultyDisk {
        /// The size.
        #[arg(long, value_parser = size)]
        size: Bytes,
    },
    /// Sends streams of datagrams, each from a thread of its own, for `udp-many`.
    #[command(hide = true)]
    PaceThreads(datagrams::Threads),
    /// Checks a server of RTSP, any server, against the RFCs.
    RtspCheck(rtsp_check::Options),
    /// Hands each stream's datagrams of a period to the kernel at once, for `udp-many`.
    #[command(hide = true)]
    PaceBursts(pace::Bursts),
    /// Keeps one socket full, for `pace-sweep`.
    #[command(hide = true)]
    PaceFlood(pace::Flood),
    /// Sends flows through the pacer, for `pace-share`.
    #[command(hide = true)]
    PaceFlows(pace::Flows),
    /// Works on small files, for `placement`.
    #[command(hide = true)]
    FileLoad(file_load::Options),
    /// Writes one file, for `mount`.
    #[command(hide = true)]
    WriteFile(file_writer::Options),
    /// Sends streams of datagrams onto one wire, for `gap-frames`.
    #[command(hide = true)]
    PaceWire(wire_sender::Options),
    /// Sends titles evenly and does nothing else, for `price`.
    #[command(hide = true)]
    PlainSender(plain_sender::Options),
    /// Takes down what a killed bench left behind: mounts, loop devices, network namespaces.
    Cleanup,
}

#[derive(clap::Args)]
struct DiskOptions {
    /// The timing.
    #[arg(long, default_value = "hdd")]
    profile: Profile,
    /// The size, in bytes or with K, M or G (1024 each).
    #[arg(long, default_value = "64G", value_parser = size)]
    size: Bytes,
    /// The seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The device's read-ahead.
    #[arg(long, default_value_t = 128)]
    read_ahead_kib: u64,
    /// The I/O scheduler above the device.
    #[arg(long, default_value = "mq-deadline")]
    scheduler: String,
    /// Where it is mounted.
    #[arg(long, default_value = "/run/tactus-bench-disk")]
    dir: PathBuf,
    /// Take commands (fast, timed, asked) from standard input, and end with it.
    #[arg(long, hide = true)]
    commanded: bool,
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    // Senders and clients are processes of a bench: they end at once when they are asked to.
    if !cli.task.is_of_bench() {
        interrupt::listen()?;
    }
    let done = match cli.task {
        Task::RtspCheck(options) => return rtsp_check::run(&options),

        Task::Bench(bench) => benches::run_bench(bench),
        Task::Classes(options) => classes::run(&options),
        Task::Disk(options) => disk::daemon::serve(&options.shape(), options.commanded),
        Task::DiskCheck(options) => {
            let table = disk::check::check(options.shape(), SECOND.times(8))?;
            print!("{}", report::table_text(&table));
            Ok(())
        }
        Task::Crash(options) => crash::run(&options),
        Task::CrashDisk { size } => crash::serve(size),
        Task::FaultyDisk { size } => faulty::serve(size),
        Task::PaceThreads(options) => datagrams::pace_threads(&options),
        Task::PaceBursts(options) => pace::bursts(&options),
        Task::PaceFlood(options) => pace::flood(&options),
        Task::PaceFlows(options) => pace::flows(&options),
        Task::FileLoad(options) => file_load::run(&options),
        Task::WriteFile(options) => file_writer::run(&options),
        Task::PaceWire(options) => wire_sender::run(&options),
        Task::PlainSender(options) => plain_sender::run(&options),
        Task::Cleanup => cleanup(),
    };
    done.map(|()| ExitCode::SUCCESS)
}

impl Task {
    fn is_of_bench(&self) -> bool {
        use Task::{
            FileLoad, PaceBursts, PaceFlood, PaceFlows, PaceThreads, PaceWire, PlainSender,
        };
        matches!(
            self,
            FileLoad(_)
                | PaceThreads(_)
                | PaceBursts(_)
                | PaceFlood(_)
                | PaceFlows(_)
                | PaceWire(_)
                | PlainSender(_)
        )
    }
}

impl DiskOptions {
    fn shape(&self) -> Shape {
        Shape {
            profile: self.profile,
            size: self.size,
            seed: self.seed,
            read_ahead: Bytes(self.read_ahead_kib * KIB),
            queue: Queue::plain(&self.scheduler),
            mount: self.dir.clone(),
        }
    }
}

fn cleanup() -> Result<()> {
    let mut found = disk::remove_leftovers()?;
    found.extend(netns::remove_leftovers()?);
    match found.is_empty() {
        true => println!("nothing was left behind"),
        false => found.iter().for_each(|name| println!("removed {name}")),
    }
    Ok(())
}

/// A size in bytes, or with a suffix of 1024s.
fn size(text: &str) -> Result<Bytes> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, 10),
        Some(digits) if text.ends_with('M') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };
    let count: u64 = digits.parse().context("write a number, as in 64G")?;
    let bytes = count.checked_mul(1 << shift).context("too large")?;
    Ok(Bytes(bytes.next_multiple_of(4096)))
}
