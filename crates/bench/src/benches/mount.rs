//! mount: what the mounted library costs, beside the file system below it, the client, and rclone.
//!
//! Promise: all ways read the same bytes of the same title, in turns within a round, and only
//! values of one round are compared. Cold means that the page cache has no page of the file before
//! the turn; the host's own cache below the disk may.

mod rclone;
mod writes;

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, OFlags, fadvise};
use serde_json::json;
use tactus_client::{Client, Error};
use tactus_core::units::{KIB, MIB};

use super::local_server::{self, LocalServer};
use super::say;
use crate::aligned::Aligned;
use crate::cpu::{own_run_time, process_run_time};
use crate::random::Random;
use crate::report::{Report, Table, Verdict, spread};
use crate::{interrupt, priority};
use rclone::RcloneMount;
use writes::WriteTimes;

/// What the command line says.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Rounds; in each every way has its turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Seconds of a paced read.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(4..))]
    pub paced: u64,
    /// Measures writes only.
    #[arg(long)]
    pub writes: bool,
    /// The server and the mount to measure; by default the binary `tactus` beside this one.
    #[arg(long)]
    pub tactus: Option<PathBuf>,
    /// Where the titles are laid down.
    #[arg(long, default_value = "target/bench/data")]
    pub data: PathBuf,
    /// Where the report is written.
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
}

/// The core of the server.
const SERVER_CORE: usize = 1;
/// The title that is read from its beginning to its end.
const TITLE: u64 = 512 * MIB;
/// Bytes of one read.
const READ: usize = MIB as usize;
/// The title that is read at random places, in memory on all ways.
const PART: u64 = 32 * MIB;
/// How long one way reads at random places in a round.
const SPAN: Duration = Duration::from_millis(500);
/// The ways to read at random places.
const PLACED: [&str; 4] =
    ["client, by a copy", "client, in place", "client, mapped", "mount, by the server"];
/// Where three of them are in this list.
const COPIED: usize = 0;
const MAPPED: usize = 2;
const MOUNTED: usize = 3;
/// A line of the caches, in bytes.
const LINE: usize = 64;
/// The core of the reader at a pace, and its SCHED_FIFO priority.
const READER: (usize, u32) = (0, 10);

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    let mut report = Report::new("mount", "what does a file of the mounted library cost?");
    if options.writes {
        writes::summarise(&written(options)?, &mut report);
        report.publish(&options.out)?;
        return Ok(());
    }
    let place = ("mount", TITLE, SERVER_CORE);
    let server = LocalServer::start(place, options.tactus.as_deref(), &options.data)?;
    let sound = Sound::lay(server.title.with_file_name("sound.wav"), options.paced)?;
    let mount = |extra: &[&str]| Mounted::start(&server.socket, options, extra);
    let (kernel, own) = (mount(&[])?, mount(&["--no-passthrough"])?);
    let part = lay_part(&server.title.with_file_name("part.bin"))?;
    let name = server.title.file_name().and_then(|name| name.to_str()).context("a name")?;
    let client = Client::connect(&server.socket)?;
    let title = client.open(&format!("/{part}"))?;
    let map = title.map()?;
    let mut ways = vec![
        ("file system", server.title.clone(), vec![]),
        ("mount, passthrough", kernel.path(name), vec![kernel.id()]),
        ("mount, by the server", own.path(name), vec![own.id(), server.id()]),
    ];
    let rclone = RcloneMount::start(server.http)?;
    match &rclone {
        Some(peer) => ways.push(("rclone mount", peer.path(name), vec![peer.id(), server.id()])),
        None => report.note("rclone is not installed, so it is not in the table".to_owned()),
    }

    let mut samples: Vec<Vec<Sequential>> = vec![];
    let mut random: Vec<[RandomReads; 4]> = vec![];
    for round in 1..=options.rounds {
        say(&format!("round {round} of {}", options.rounds));
        let mut row = vec![Sequential::default(); ways.len()];
        for ((_, path, processes), sample) in ways.iter().zip(&mut row) {
            interrupt::check()?;
            cool(&server.title)?;
            sample.cold = sequential(path, &[])?.0;
            // What the server has read past the page cache is not in it.
            sequential(&server.title, &[])?;
            (sample.hot, sample.cpu) = sequential(path, processes)?;
        }
        samples.push(row);
        let direct = OFlags::DIRECT.bits() as i32;
        let file = File::options().read(true).custom_flags(direct).open(own.path(part))?;
        // O_DIRECT wants memory that begins at a page.
        let mut memory = [(); 2].map(|()| Aligned::new(READ));
        let [of_copy, of_mount] = &mut memory;
        let served = [server.id()];
        random.push([
            RandomReads::measure(&served, |at, len, take| {
                let into = &mut of_copy.bytes()[..len];
                ensure!(title.read_at(at, into)? == len, "all bytes");
                take(into);
                Ok(())
            })?,
            RandomReads::measure(&served, |at, len, take| {
                let in_place = |_, piece: &[u8]| {
                    take(piece);
                    Ok::<_, Error>(())
                };
                ensure!(title.read_pieces(at, len, in_place)? == len, "all bytes");
                Ok(())
            })?,
            RandomReads::measure(&served, |at, len, take| {
                take(&map[at as usize..at as usize + len]);
                Ok(())
            })?,
            RandomReads::measure(&[own.id(), server.id()], |at, len, take| {
                let into = &mut of_mount.bytes()[..len];
                file.read_exact_at(into, at)?;
                take(into);
                Ok(())
            })?,
        ]);
    }
    let names: Vec<_> = ways.iter().map(|(way, ..)| *way).collect();
    drop((kernel, own, rclone));
    let paced = Paced::read(&mount(&["--paced"])?.path("sound.wav"), &sound)?;
    let written = written(options)?;
    report.settings.push(("reader at a pace".into(), paced.reader.clone()));
    for (row, rates) in samples.iter().zip(&random) {
        let rows = ways.iter().zip(row).map(|((way, ..), one)| {
            json!({ "way": way, "cold_mib_s": one.cold, "hot_mib_s": one.hot, "cpu_s_gb": one.cpu })
        });
        report.runs.extend(rows);
        let rows = PLACED.iter().zip(rates).map(|(way, placed)| {
            let RandomReads { reads, cpu, looked } = placed;
            json!({ "way": way, "reads_4k_s": reads, "cpu_s_gb": cpu, "looked_cpu_s_gb": looked })
        });
        report.runs.extend(rows);
    }
    summarise(&names, &samples, &random, &paced, &mut report);
    writes::summarise(&written, &mut report);
    report.method.push(format!(
        "A title of {} MiB is read from its beginning to its end by reads of 1 MiB, hot and \
         cold, in turns. rclone reads it from the same server by HTTP, with its defaults. CPU is \
         the run time of the program's thread, of the mount and of the server. At random places \
         of a title of {} MiB in memory the client and a mount without passthrough read 4 KiB, \
         and for CPU per byte 1 MiB: by a copy (read_at), in place (read_pieces: out of the \
         shared data), out of the mapped title (map), and by the mount, whose file is open with \
         O_DIRECT, as pages of the kernel would answer instead. Looked at means that the program \
         then reads one byte of each cache line, on all ways alike. The paced read is of a WAVE \
         file of 9.2 Mbit/s, by reads of 16 KiB. Its error is that of the rate between the ends \
         of two reads: the bytes between them, divided by the exact time, for the first end of a \
         read a second later. Nothing is rounded to whole reads by that. The second of the burst \
         and half a second more are left out.",
        TITLE / MIB,
        PART / MIB
    ));
    report.publish(&options.out)?;
    Ok(())
}

/// Writes by a mount, beside the file system. Its server is another one, whose titles have a
/// directory of their own.
fn written(options: &Options) -> Result<WriteTimes> {
    let place = ("mount-writes", MIB, SERVER_CORE);
    let server = LocalServer::start_writable(place, options.tactus.as_deref(), &options.data)?;
    let mounted = Mounted::start(&server.socket, options, &["-o", "rw"])?;
    let plain = tempfile::Builder::new().prefix("plain-").tempdir_in(&options.data)?;
    writes::measure(plain.path(), mounted.place.path(), options.rounds.into())
}

/// One way in one round: MiB/s, and seconds of CPU time for 10^9 bytes.
#[derive(Clone, Copy, Default)]
struct Sequential {
    cold: f64,
    hot: f64,
    cpu: f64,
}

/// One way to read at random places in one round: reads of 4 KiB a second, and seconds of CPU time
/// for 10^9 bytes by reads of 1 MiB.
#[derive(Clone, Copy)]
struct RandomReads {
    reads: f64,
    cpu: f64,
    /// The same if the program looks at each cache line.
    looked: f64,
}

impl RandomReads {
    /// Measures the way `read`, which passes the bytes at a place, so many of them, to a function,
    /// in one or more pieces.
    fn measure(
        processes: &[u32],
        mut read: impl FnMut(u64, usize, &mut dyn FnMut(&[u8])) -> Result<()>,
    ) -> Result<Self> {
        let mut span = |size: u64, looks: bool| -> Result<(f64, f64)> {
            let (mut random, mut sum) = (Random::new(7), 0_u64);
            let mut one = |at: u64| -> Result<()> {
                let mut first = None;
                read(at, size as usize, &mut |piece| {
                    first.get_or_insert(piece[0]);
                    if looks {
                        sum += look(piece);
                    }
                })?;
                ensure!(first == Some(byte(at)), "these are not the bytes of the title");
                Ok(())
            };
            for at in (0..PART).step_by(size as usize) {
                one(at)?;
            }
            let before = cpu(processes)?;
            let begun = Instant::now();
            let mut reads = 0_u64;
            while begun.elapsed() < SPAN {
                one(random.next() % (PART / size) * size)?;
                reads += 1;
            }
            let seconds = begun.elapsed().as_secs_f64();
            let cpu = (cpu(processes)? - before) as f64 / (reads * size) as f64;
            black_box(sum);
            Ok((reads as f64 / seconds, cpu))
        };
        let (reads, _) = span(4 * KIB, false)?;
        let (_, cpu) = span(MIB, false)?;
        let (_, looked) = span(MIB, true)?;
        Ok(Self { reads, cpu, looked })
    }
}

/// Reads one byte of each cache line. Returns their sum.
fn look(bytes: &[u8]) -> u64 {
    bytes.chunks(LINE).map(|line| u64::from(line[0])).sum()
}

/// Lays the title down that is read at random places. Returns its name.
fn lay_part(path: &Path) -> Result<&'static str> {
    fs::write(path, (0..PART).map(byte).collect::<Vec<_>>())?;
    Ok("part.bin")
}

/// Drops the pages of a file.
fn cool(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

/// Reads a file whole: MiB/s, and CPU time for 10^9 bytes.
fn sequential(path: &Path, processes: &[u32]) -> Result<(f64, f64)> {
    let mut file = File::open(path)?;
    let mut into = vec![0; READ];
    let before = cpu(processes)?;
    let begun = Instant::now();
    let mut bytes = 0;
    loop {
        let got = file.read(&mut into)?;
        if got == 0 {
            break;
        }
        ensure!(into[0] == byte(bytes), "these are not the bytes of the title");
        bytes += got as u64;
    }
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(bytes == TITLE, "{bytes} bytes of {TITLE}");
    let cpu = (cpu(processes)? - before) as f64 / bytes as f64;
    Ok((bytes as f64 / MIB as f64 / seconds, cpu))
}

/// The byte of the title at `at`.
fn byte(at: u64) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

/// Run time of this thread and of all threads of the processes, in nanoseconds.
fn cpu(processes: &[u32]) -> Result<u64> {
    let mut sum = own_run_time()?;
    for process in processes {
        sum += process_run_time(*process)?;
    }
    Ok(sum.0)
}

/// A read at a pace: the errors of its rate, as shares.
struct Paced {
    /// Over one second after the other.
    seconds: Vec<f64>,
    /// Over the second behind each read.
    any: Vec<f64>,
    /// Over all of it.
    whole: f64,
    /// With which right to the processor it was read.
    reader: String,
}

impl Paced {
    /// Reads a file, with a reader whose own delays are short.
    fn read(path: &Path, sound: &Sound) -> Result<Self> {
        let read = || {
            let (core, fifo) = READER;
            let reader = match priority::pin(core).and_then(|()| priority::fifo(fifo)) {
                Ok(()) => format!("SCHED_FIFO on core {core}"),
                Err(refused) => format!("ordinary: {refused:#}"),
            };
            Ok::<_, anyhow::Error>((ends_of_reads(path)?, reader))
        };
        let thread = std::thread::scope(|scope| scope.spawn(read).join());
        let (ends, reader) = thread.map_err(|_| anyhow::anyhow!("the reader has failed"))??;
        let error = |&(from, before): &End, &(to, after): &End| {
            (after - before) as f64 / (to - from) / sound.rate - 1.0
        };
        // A second comes at once; half a second more until the clock alone decides.
        let ends: Vec<End> = ends.into_iter().skip_while(|&(at, _)| at < 0.5).collect();
        let behind = |from: usize| {
            let to = ends[from..].iter().position(|end| end.0 - ends[from].0 >= 1.0)?;
            Some((from + to, error(&ends[from], &ends[from + to]).abs()))
        };
        let next = |&(at, _): &(usize, f64)| behind(at);
        let seconds: Vec<f64> =
            std::iter::successors(behind(0), next).map(|(_, error)| error).collect();
        let any = (0..ends.len()).map_while(behind).map(|(_, error)| error).collect();
        ensure!(seconds.len() >= 2, "the paced read was too short");
        let whole = error(&ends[0], &ends[ends.len() - 1]).abs();
        Ok(Self { seconds, any, whole, reader })
    }
}

/// When a read has ended, in seconds, and the bytes by then.
type End = (f64, u64);

/// Reads a file to its end.
fn ends_of_reads(path: &Path) -> Result<Vec<End>> {
    let mut file = File::open(path)?;
    let mut into = vec![0; 16 << 10];
    let begun = Instant::now();
    let (mut ends, mut bytes) = (vec![], 0);
    loop {
        let got = file.read(&mut into)?;
        if got == 0 {
            return Ok(ends);
        }
        bytes += got as u64;
        ends.push((begun.elapsed().as_secs_f64(), bytes));
    }
}

fn summarise(
    ways: &[&str],
    samples: &[Vec<Sequential>],
    random: &[[RandomReads; 4]],
    paced: &Paced,
    report: &mut Report,
) {
    let column = |way: usize, figure: fn(&Sequential) -> f64| -> Vec<f64> {
        samples.iter().map(|row| figure(&row[way])).collect()
    };
    let figures: [fn(&Sequential) -> f64; 3] = [|one| one.cold, |one| one.hot, |one| one.cpu];
    let head = ["way", "cold, MiB/s", "hot, MiB/s", "hot, CPU s/GB"];
    let mut table = Table::new("a title from its beginning to its end", &head);
    for (way, name) in ways.iter().enumerate() {
        let cells = figures.iter().map(|figure| spread(&column(way, *figure)));
        table.row([(*name).to_owned()].into_iter().chain(cells).collect());
    }
    report.tables.push(table);
    let against = |figure: fn(&Sequential) -> f64| -> Vec<f64> {
        samples.iter().map(|row| figure(&row[1]) / figure(&row[0])).collect()
    };
    let head = ["way", "4 KiB reads a second", "CPU s/GB at 1 MiB", "the same, looked at"];
    let mut table = Table::new("at random places of a title in memory", &head);
    for (way, name) in PLACED.iter().enumerate() {
        let figures: [fn(&RandomReads) -> f64; 3] =
            [|one| one.reads, |one| one.cpu, |one| one.looked];
        let values = figures.map(|figure| random.iter().map(|row| figure(&row[way])).collect());
        let cells = values.iter().map(|values: &Vec<f64>| spread(values));
        table.row([(*name).to_owned()].into_iter().chain(cells).collect());
    }
    report.tables.push(table);
    let head = ["a paced read, error of its rate", "median, %", "largest, %"];
    let mut table = Table::new("a paced read", &head);
    for (name, errors) in
        [("one second after the other", &paced.seconds), ("any second", &paced.any)]
    {
        let cells = [median(errors), largest(errors)].map(|error| format!("{:.4}", error * 100.0));
        table.row([name.to_owned()].into_iter().chain(cells).collect());
    }
    let whole = format!("{:.4}", paced.whole * 100.0);
    table.row(vec!["all of it".to_owned(), whole, String::new()]);
    report.tables.push(table);
    let rates: Vec<f64> = random.iter().map(|row| row[COPIED].reads / row[MOUNTED].reads).collect();
    let costs: Vec<f64> =
        random.iter().map(|row| row[MOUNTED].looked / row[MAPPED].looked).collect();
    let worst = largest(&paced.seconds) * 100.0;
    let all = [
        (
            "sequential read of the mount against the file system, cold",
            against(|one| one.cold),
            0.9,
            0.97,
            false,
        ),
        ("the same, hot", against(|one| one.hot), 0.9, 0.97, false),
        ("4 KiB reads a second, client against the mount by the server", rates, 10.0, 10.0, false),
        (
            "CPU s/GB at 1 MiB, looked at, the mount by the server against the mapped title",
            costs,
            5.0,
            5.0,
            false,
        ),
        ("paced read: largest error of the rate over a second, %", vec![worst], 0.1, 0.1, true),
    ];
    for (figure, measured, must, push, is_most) in all {
        report.verdicts.push(Verdict::of(figure, &measured, (must, push), is_most));
    }
}

fn largest(errors: &[f64]) -> f64 {
    errors.iter().copied().fold(0.0, f64::max)
}

fn median(errors: &[f64]) -> f64 {
    let mut sorted = errors.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// A WAVE file: eight channels of 24 bits at 48 kHz.
struct Sound {
    /// Bytes a second.
    rate: f64,
}

impl Sound {
    fn lay(path: PathBuf, seconds: u64) -> Result<Self> {
        const RATE: u32 = 48_000 * 8 * 3;
        let len = RATE * u32::try_from(seconds)?;
        let mut file = Vec::with_capacity(44 + len as usize);
        for part in [
            b"RIFF".as_slice(),
            &(36 + len).to_le_bytes(),
            b"WAVEfmt ",
            &16_u32.to_le_bytes(),
            &1_u16.to_le_bytes(),
            &8_u16.to_le_bytes(),
            &48_000_u32.to_le_bytes(),
            &RATE.to_le_bytes(),
            &24_u16.to_le_bytes(),
            &24_u16.to_le_bytes(),
            b"data",
            &len.to_le_bytes(),
        ] {
            file.extend_from_slice(part);
        }
        file.resize(44 + len as usize, 0);
        fs::write(path, file)?;
        Ok(Self { rate: f64::from(RATE) })
    }
}

/// A mounted library.
struct Mounted {
    process: Child,
    place: tempfile::TempDir,
}

impl Mounted {
    fn start(socket: &Path, options: &Options, extra: &[&str]) -> Result<Self> {
        let place = tempfile::Builder::new().prefix("tactus-bench-mount-").tempdir()?;
        let program = local_server::program(options.tactus.as_deref())?;
        let mut command = Command::new(program);
        command.arg("mount").arg(place.path()).arg("--socket").arg(socket).args(extra);
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let output = process.stdout.take().context("a pipe")?;
        let said = BufReader::new(output).lines().next();
        let mounted = Self { process, place };
        ensure!(said.is_some_and(|line| line.is_ok()), "the library is not mounted");
        Ok(mounted)
    }

    fn id(&self) -> u32 {
        self.process.id()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        // It unmounts at this signal.
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
        self.process.wait().ok();
    }
}
