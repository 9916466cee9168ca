//! mount: what the mounted library costs, beside the file system below it and beside the client.
//!
//! Promise: all ways read the same bytes of the same title, in turns within a round, and only
//! values of one round are compared. Cold means that the page cache has no page of the file before
//! the turn; the host's own cache below the disk may.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, OFlags, fadvise};
use serde_json::json;
use tactus_client::{Client, Title};
use tactus_core::units::{KIB, MIB};

use super::local_server::{self, LocalServer};
use super::say;
use crate::interrupt;
use crate::random::Random;
use crate::report::{Report, Table, Verdict, spread};

/// What the command line says.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Rounds; in each every way has its turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Seconds of a paced read.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(4..))]
    pub paced: u64,
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
/// The part that is read at random places, so that it is in memory on all ways.
const PART: u64 = 32 * MIB;
/// How long one way reads at random places in a round.
const SPAN: Duration = Duration::from_millis(500);

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    let mut report = Report::new("mount", "what does a file of the mounted library cost?");
    let place = ("mount", TITLE, SERVER_CORE);
    let server = LocalServer::start(place, options.tactus.as_deref(), &options.data)?;
    let sound = Sound::lay(server.title.with_file_name("sound.wav"), options.paced)?;
    let mount = |extra: &[&str]| Mounted::start(&server.socket, options, extra);
    let (kernel, own) = (mount(&[])?, mount(&["--no-passthrough"])?);
    let name = server.title.file_name().and_then(|name| name.to_str()).context("a name")?;
    let client = Client::connect(&server.socket)?;
    let title = client.open(&format!("/{name}"))?;
    let ways = [
        ("file system", server.title.clone(), vec![]),
        ("mount, passthrough", kernel.path(name), vec![kernel.id()]),
        ("mount, by the server", own.path(name), vec![own.id(), server.id()]),
    ];

    let mut samples: Vec<[Sequential; 3]> = vec![];
    let mut random: Vec<[Rate; 2]> = vec![];
    for round in 1..=options.rounds {
        say(&format!("round {round} of {}", options.rounds));
        let mut row = [Sequential::default(); 3];
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
        let file = File::options().read(true).custom_flags(direct).open(own.path(name))?;
        let by_client = at_random(&[server.id()], |into, at| read_title(&title, into, at))?;
        let by_mount =
            at_random(&[own.id(), server.id()], |into, at| Ok(file.read_exact_at(into, at)?))?;
        random.push([by_client, by_mount]);
    }
    drop((kernel, own));
    let errors = paced(&mount(&["--paced"])?.path("sound.wav"), &sound)?;
    for (row, rates) in samples.iter().zip(&random) {
        let rows = ways.iter().zip(row).map(|((way, ..), one)| {
            json!({ "way": way, "cold_mib_s": one.cold, "hot_mib_s": one.hot, "cpu_s_gb": one.cpu })
        });
        report.runs.extend(rows);
        let [client, mount] = rates;
        report.runs.push(json!({
            "client_4k_s": client.reads, "mount_4k_s": mount.reads,
            "client_cpu_s_gb": client.cpu, "mount_cpu_s_gb": mount.cpu,
        }));
    }
    let names = ways.map(|(way, ..)| way);
    summarise(&names, &samples, &random, &errors, &mut report);
    report.method.push(format!(
        "A title of {} MiB is read from its beginning to its end by reads of 1 MiB, hot and cold, \
         in turns. CPU is the run time of the program's thread, of the mount and of the server. \
         At random places of {} MiB in memory the client and a mount without passthrough read 4 \
         KiB, and for CPU per byte 1 MiB; the mount's file is open with O_DIRECT, as pages of the \
         kernel would answer instead. The paced read is of a WAVE file of 9.2 Mbit/s, by reads of \
         16 KiB; the error is that of the bytes in each second behind the burst, between two \
         reads.",
        TITLE / MIB,
        PART / MIB
    ));
    report.publish(&options.out)?;
    Ok(())
}

/// One way in one round: MiB/s, and seconds of CPU time for 10^9 bytes.
#[derive(Clone, Copy, Default)]
struct Sequential {
    cold: f64,
    hot: f64,
    cpu: f64,
}

/// Reads at random places: 4 KiB reads a second, and CPU time for 10^9 bytes of 1 MiB reads.
#[derive(Clone, Copy)]
struct Rate {
    reads: f64,
    cpu: f64,
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

fn read_title(title: &Title, into: &mut [u8], at: u64) -> Result<()> {
    ensure!(title.read_at(at, into)? == into.len(), "all bytes");
    Ok(())
}

fn at_random(
    processes: &[u32],
    mut read: impl FnMut(&mut [u8], u64) -> Result<()>,
) -> Result<Rate> {
    let mut random = Random::new(7);
    let mut span = |size: u64| -> Result<(f64, f64)> {
        // O_DIRECT wants memory that begins at a page.
        let mut memory = crate::aligned::Aligned::new(size as usize);
        let into = memory.bytes();
        for at in (0..PART).step_by(size as usize) {
            read(into, at)?;
        }
        let before = cpu(processes)?;
        let begun = Instant::now();
        let mut reads = 0_u64;
        while begun.elapsed() < SPAN {
            let at = random.next() % (PART / size) * size;
            read(into, at)?;
            ensure!(into[0] == byte(at), "these are not the bytes of the title");
            reads += 1;
        }
        let cpu = (cpu(processes)? - before) as f64 / (reads * size) as f64;
        Ok((reads as f64 / begun.elapsed().as_secs_f64(), cpu))
    };
    let (reads, _) = span(4 * KIB)?;
    let (_, cpu) = span(MIB)?;
    Ok(Rate { reads, cpu })
}

/// Run time of this thread and of all threads of the processes, in nanoseconds.
fn cpu(processes: &[u32]) -> Result<u64> {
    let ran = |text: &str| text.split_whitespace().next().and_then(|ran| ran.parse().ok());
    let mut sum = ran(&fs::read_to_string("/proc/thread-self/schedstat")?).unwrap_or(0);
    for process in processes {
        for task in fs::read_dir(format!("/proc/{process}/task"))? {
            // A thread may end meanwhile.
            let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
            sum += ran(&text).unwrap_or(0);
        }
    }
    Ok(sum)
}

/// The errors of the rate over each second, as shares.
fn paced(path: &Path, sound: &Sound) -> Result<Vec<f64>> {
    let mut file = File::open(path)?;
    let mut into = vec![0; 16 << 10];
    let begun = Instant::now();
    let mut seen: Vec<(f64, u64)> = vec![];
    let mut bytes = 0;
    loop {
        let got = file.read(&mut into)?;
        if got == 0 {
            break;
        }
        bytes += got as u64;
        seen.push((begun.elapsed().as_secs_f64(), bytes));
    }
    // A second comes at once; half a second more until the clock alone decides.
    let mut errors = vec![];
    let mut paced = seen.iter().copied().skip_while(|&(at, _)| at < 0.5);
    let (mut from, mut before) = paced.next().context("a paced read")?;
    for (to, after) in paced {
        if to - from >= 1.0 {
            errors.push(((after - before) as f64 / (to - from) / sound.rate - 1.0).abs());
            (from, before) = (to, after);
        }
    }
    ensure!(errors.len() >= 2, "the paced read took {:?}", begun.elapsed());
    Ok(errors)
}

fn summarise(
    ways: &[&str; 3],
    samples: &[[Sequential; 3]],
    random: &[[Rate; 2]],
    errors: &[f64],
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
    let rates: Vec<f64> = random.iter().map(|[client, mount]| client.reads / mount.reads).collect();
    let costs: Vec<f64> = random.iter().map(|[client, mount]| mount.cpu / client.cpu).collect();
    let worst = errors.iter().copied().fold(0.0, f64::max) * 100.0;
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
        ("CPU s/GB at 1 MiB, the mount by the server against the client", costs, 5.0, 5.0, false),
        ("paced read: largest error of the rate over a second, %", vec![worst], 0.1, 0.1, true),
    ];
    for (figure, measured, must, push, is_most) in all {
        report.verdicts.push(Verdict::of(figure, &measured, (must, push), is_most));
    }
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
