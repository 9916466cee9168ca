//! placement: how the cores of the servers change the time that local programs need.
//!
//! Promise: one to seven programs do the work of Bonnie or PostMark through the client library,
//! with the servers in each distribution that two cores can hold, and by `pread` and `pwrite` on
//! the file system of the kernel. All of them have their turn in each round, on files in memory of
//! the same file system, and only values of one round are compared.

mod distribution;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tactus_core::units::Nanos;

use super::local_server::{LocalServer, ServerSettings, TOKEN};
use super::say;
use super::server_places::server_places;
use crate::cpu::process_run_time;
use crate::file_load::{Load, Outcome, READY};
use crate::report::{Report, Table, Verdict, number, spread};
use crate::spread::quantile;
use crate::{interrupt, machine};
use distribution::{DEFAULT, Distribution, KERNEL_ONE, KERNEL_TWO, ONE_CORE, Server};

/// What the command line says.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Rounds; in each every distribution has its turn. By default 5, with --quick 1.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: Option<u16>,
    /// Try the bench out: one round, 1 and 5 clients, less work.
    #[arg(long)]
    pub quick: bool,
    /// Numbers of clients, 1 to 7, as in 1,5. By default all of them.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=7))]
    pub clients: Vec<u16>,
    /// Only the runs whose name contains one of these, as in "bonnie;one core": a run is called
    /// LOAD, DISTRIBUTION.
    #[arg(long, value_delimiter = ';')]
    pub only: Vec<String>,
    /// The server to measure; by default the binary `tactus` beside this one.
    #[arg(long)]
    pub tactus: Option<PathBuf>,
    /// Where the files are; a file system in memory, or writes wait for a disk.
    #[arg(long, default_value = "/dev/shm")]
    pub data: PathBuf,
    /// Where the report is written.
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
}

const ROUNDS: u16 = 5;
const CLIENTS: [u16; 7] = [1, 2, 3, 4, 5, 6, 7];
const QUICK_CLIENTS: [u16; 2] = [1, 5];
/// The number of clients of the ancestor's published ratio.
const FIVE: u16 = 5;
/// What one client does of a load: how often, and how many accesses or transactions each time.
/// Bonnie's accesses are the ancestor's. A client needs some tenths of a second.
const WORK: [(Load, u32, u32); 2] = [(Load::Bonnie, 5, 4_000), (Load::Postmark, 1, 200)];
const QUICK_WORK: [(Load, u32, u32); 2] = [(Load::Bonnie, 1, 4_000), (Load::Postmark, 1, 50)];
/// The title that a server needs to have; no client reads it.
const TITLE: u64 = 4096;

/// One run.
#[derive(Clone, Debug)]
struct Sample {
    /// From the begin of the first client to the end of the last one.
    seconds: f64,
    /// Run time of clients and server, in seconds.
    cpu: f64,
    /// Time of each part, in milliseconds: the mean of the clients.
    parts: BTreeMap<String, f64>,
}

/// What a sample says.
type Figure = fn(&Sample) -> f64;

/// The samples of a load, by distribution and number of clients; one for each round.
type Samples = BTreeMap<(usize, u16), Vec<Sample>>;

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    let question = "what does it matter on which core the servers of local programs are?";
    let mut report = Report::new("placement", question);
    let place = tempfile::Builder::new().prefix("tactus-bench-").tempdir_in(&options.data)?;
    let data = place.path().canonicalize()?;
    report.settings.push(("files".into(), machine::storage(&data)));
    let distributions = distribution::all();
    let work = if options.quick { QUICK_WORK } else { WORK };
    let clients = match (&options.clients[..], options.quick) {
        ([], true) => QUICK_CLIENTS.to_vec(),
        ([], false) => CLIENTS.to_vec(),
        (some, _) => some.to_vec(),
    };
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { ROUNDS });
    let mut samples = work.map(|_| Samples::new());
    for round in 1..=rounds {
        for (nth, one) in distributions.iter().enumerate() {
            let wanted = |load: Load| is_wanted(options, load, one);
            if !work.iter().any(|&(load, ..)| wanted(load)) {
                continue;
            }
            say(&format!("round {round} of {rounds}: {}", one.name));
            let running = RunningDistribution::set(one, options, &data)?;
            if let (Some(server), true, DEFAULT) = (&running.server, round == 1, &*one.name) {
                let found = placement(server.http).context("the placement by default")?;
                report.settings.push(("placement by default".into(), found));
            }
            // What the first requests of a server take for good is in no sample.
            running.measure((Load::Bonnie, 1, 100), 1)?;
            for (&(load, passes, count), samples) in work.iter().zip(&mut samples) {
                if !wanted(load) {
                    continue;
                }
                for &clients in &clients {
                    interrupt::check()?;
                    let sample = running.measure((load, passes, count), clients)?;
                    report.runs.push(json!({
                        "round": round, "load": load, "distribution": one.name,
                        "clients": clients, "seconds": sample.seconds, "cpu": sample.cpu,
                        "parts_ms": sample.parts,
                    }));
                    samples.entry((nth, clients)).or_default().push(sample);
                }
            }
            report.keep(&options.out)?;
        }
    }
    for (&(load, ..), samples) in work.iter().zip(&samples) {
        let results = Results { load, distributions: &distributions, clients: &clients, samples };
        results.summarise(&mut report);
    }
    describe(work, &mut report);
    report.publish(&options.out)?;
    Ok(())
}

fn is_wanted(options: &Options, load: Load, one: &Distribution) -> bool {
    let name = format!("{}, {}", name_of(load), one.name);
    options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str()))
}

fn name_of(load: Load) -> &'static str {
    match load {
        Load::Bonnie => "bonnie",
        Load::Postmark => "postmark",
    }
}

/// A distribution whose server runs.
struct RunningDistribution<'a> {
    distribution: &'a Distribution,
    server: Option<LocalServer>,
    /// Where files of the kernel are.
    plain: tempfile::TempDir,
}

impl<'a> RunningDistribution<'a> {
    fn set(distribution: &'a Distribution, options: &Options, data: &Path) -> Result<Self> {
        let server = match &distribution.server {
            Server::Kernel => None,
            Server::Tactus { cores, may_use } => {
                let settings = ServerSettings {
                    name: "placement",
                    len: TITLE,
                    cores,
                    is_writable: true,
                    may_use: Some(may_use),
                };
                let tactus = options.tactus.as_deref();
                Some(LocalServer::start_with(&settings, tactus, data)?)
            }
        };
        let plain = tempfile::Builder::new().prefix("plain-").tempdir_in(data)?;
        Ok(Self { distribution, server, plain })
    }

    /// So many clients at once, each with all of the work.
    fn measure(&self, (load, passes, count): (Load, u32, u32), clients: u16) -> Result<Sample> {
        let begin = |number| self.begin(number, (load, passes, count));
        let mut all = (0..clients).map(begin).collect::<Result<Vec<_>>>()?;
        for client in &mut all {
            ensure!(client.line()? == READY, "a client did not begin; its error is above");
        }
        let of_server = || match &self.server {
            Some(server) => process_run_time(server.id()),
            None => Ok(Nanos(0)),
        };
        let before = of_server()?;
        for client in &mut all {
            client.tell.write_all(b"\n")?;
        }
        let mut outcomes: Vec<Outcome> = vec![];
        for client in &mut all {
            let line = client.line()?;
            let failed = || format!("a client of {} failed", self.distribution.name);
            outcomes.push(serde_json::from_str(&line).with_context(failed)?);
        }
        let of_server = of_server()? - before;
        let begun = outcomes.iter().map(|one| one.begun).min().unwrap_or_default();
        let ended = outcomes.iter().map(|one| one.ended).max().unwrap_or_default();
        let mut parts = BTreeMap::new();
        for (name, span) in outcomes.iter().flat_map(|one| &one.parts) {
            *parts.entry(name.clone()).or_default() += *span as f64 / 1e6 / f64::from(clients);
        }
        let of_clients: u64 = outcomes.iter().map(|one| one.cpu).sum();
        Ok(Sample {
            seconds: (ended - begun) as f64 / 1e9,
            cpu: (of_clients + of_server.0) as f64 / 1e9,
            parts,
        })
    }

    fn begin(&self, number: u16, (load, passes, count): (Load, u32, u32)) -> Result<RunningClient> {
        let cores: Vec<_> = self.distribution.clients.iter().map(ToString::to_string).collect();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["file-load", "--load", name_of(load), "--cores", &cores.join(",")]);
        command.args(["--client", &number.to_string(), "--passes", &passes.to_string()]);
        command.args(["--count", &count.to_string()]);
        match &self.server {
            Some(server) => command.arg("--socket").arg(&server.socket),
            None => command.arg("--directory").arg(self.plain.path()),
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        RunningClient::start(&mut command)
    }
}

/// A client's process; it ends when this is dropped.
struct RunningClient {
    process: Child,
    tell: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl RunningClient {
    fn start(command: &mut Command) -> Result<Self> {
        let mut process = command.spawn().context("a client does not start")?;
        let (tell, told) = (process.stdin.take(), process.stdout.take());
        let (tell, told) = tell.zip(told).context("pipes to a client")?;
        Ok(Self { process, tell, told: BufReader::new(told) })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.told.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for RunningClient {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The servers of each core, as text.
fn placement(address: SocketAddr) -> Result<String> {
    let mut cores: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for (server, core) in server_places(address, TOKEN)? {
        cores.entry(core).or_default().push(server);
    }
    let cores = cores.iter().map(|(core, servers)| format!("core {core}: {}", servers.join(", ")));
    Ok(cores.collect::<Vec<_>>().join("; "))
}

/// What a load has shown.
struct Results<'a> {
    load: Load,
    distributions: &'a [Distribution],
    clients: &'a [u16],
    samples: &'a Samples,
}

impl Results<'_> {
    /// A value of each round; none if this was not run.
    fn values(&self, name: &str, clients: u16, value: impl Fn(&Sample) -> f64) -> Vec<f64> {
        let place = self.distributions.iter().position(|one| one.name == name);
        let samples = place.and_then(|place| self.samples.get(&(place, clients)));
        samples.into_iter().flatten().map(value).collect()
    }

    fn seconds(&self, name: &str, clients: u16) -> Vec<f64> {
        self.values(name, clients, |sample| sample.seconds)
    }

    /// The times of one distribution against those of another, round by round.
    fn ratios(&self, one: &str, other: &str, clients: u16) -> Vec<f64> {
        let pairs = self.seconds(one, clients).into_iter().zip(self.seconds(other, clients));
        pairs.map(|(one, other)| one / other).collect()
    }

    /// The distribution of Tactus with the shortest median, besides the default.
    fn best(&self, clients: u16) -> Option<&str> {
        let others = self
            .distributions
            .iter()
            .filter(|one| one.server != Server::Kernel && one.name != DEFAULT);
        let timed = others.filter_map(|one| {
            let median = quantile(&mut self.seconds(&one.name, clients), 0.5)?;
            Some((median, &*one.name))
        });
        timed.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, name)| name)
    }

    fn summarise(&self, report: &mut Report) {
        if self.samples.is_empty() {
            return;
        }
        let load = name_of(self.load);
        let figures: [(&str, Figure); 2] = [
            ("time, s", |sample| sample.seconds),
            ("CPU of clients and server, s", |sample| sample.cpu),
        ];
        let of_clients = self.clients.iter().map(|clients| format!("{clients} clients"));
        let head: Vec<_> = ["distribution".to_owned()].into_iter().chain(of_clients).collect();
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        for (figure, value) in figures {
            let mut table = Table::new(&format!("{load}: {figure}"), &head);
            for one in self.distributions {
                let cell = |&clients: &u16| spread(&self.values(&one.name, clients, value));
                let cells: Vec<_> = self.clients.iter().map(cell).collect();
                if cells.iter().any(|cell| cell != "-") {
                    table.row([vec![one.name.clone()], cells].concat());
                }
            }
            report.tables.push(table);
        }
        report.tables.push(self.scaling(&head));
        report.tables.push(self.choices());
        report.tables.extend(self.parts());
        if self.load == Load::Bonnie {
            self.judge(report);
        }
    }

    /// Two cores against one.
    fn scaling(&self, head: &[&str]) -> Table {
        let load = name_of(self.load);
        let title = format!("{load}: time on two cores against one, and the serial share");
        let mut table = Table::new(&title, head);
        let cell = |ratios: &[f64]| {
            let serial: Vec<_> = ratios.iter().map(|&ratio| serial_share(ratio, 2.0)).collect();
            format!("{}, s {}", spread(ratios), spread(&serial))
        };
        let mut row = |name: &str, ratios: &dyn Fn(u16) -> Vec<f64>| {
            let cells = self.clients.iter().map(|&clients| cell(&ratios(clients)));
            table.row([name.to_owned()].into_iter().chain(cells).collect());
        };
        row(DEFAULT, &|clients| self.ratios(DEFAULT, ONE_CORE, clients));
        row("the best other place", &|clients| {
            self.best(clients).map_or(vec![], |best| self.ratios(best, ONE_CORE, clients))
        });
        row("kernel", &|clients| self.ratios(KERNEL_TWO, KERNEL_ONE, clients));
        table
    }

    /// The default, and what would have been better.
    fn choices(&self) -> Table {
        let title = format!("{}: the default against the best other place", name_of(self.load));
        let head = [
            "clients",
            "best other place",
            "time, s",
            "the default",
            "ratio",
            "against the kernel",
        ];
        let mut table = Table::new(&title, &head);
        for &clients in self.clients {
            let Some(best) = self.best(clients) else { continue };
            table.row(vec![
                clients.to_string(),
                best.to_owned(),
                spread(&self.seconds(best, clients)),
                spread(&self.seconds(DEFAULT, clients)),
                spread(&self.ratios(DEFAULT, best, clients)),
                spread(&self.ratios(DEFAULT, KERNEL_TWO, clients)),
            ]);
        }
        table
    }

    /// The parts of the load, with the fewest and the most clients.
    fn parts(&self) -> Vec<Table> {
        let counts = [self.clients.iter().min(), self.clients.iter().max()];
        let mut counts: Vec<u16> = counts.into_iter().flatten().copied().collect();
        counts.dedup();
        let first = self.samples.values().flatten().next();
        let parts: Vec<_> = first.map_or(vec![], |one| one.parts.keys().cloned().collect());
        let table = |clients: u16| {
            let title = format!("{}: parts, ms of a client of {clients}", name_of(self.load));
            let head: Vec<_> = parts.iter().map(String::as_str).collect();
            let mut table = Table::new(&title, &[vec!["distribution"], head].concat());
            for one in self.distributions {
                let cell = |part: &String| {
                    let of = |sample: &Sample| sample.parts.get(part).copied().unwrap_or_default();
                    spread(&self.values(&one.name, clients, of))
                };
                let cells: Vec<_> = parts.iter().map(cell).collect();
                if cells.iter().any(|cell| cell != "-") {
                    table.row([vec![one.name.clone()], cells].concat());
                }
            }
            table
        };
        counts.into_iter().map(table).collect()
    }

    fn judge(&self, report: &mut Report) {
        let mut judged = |figure: &str, ratios: Vec<f64>, goals| {
            if !ratios.is_empty() {
                report.verdicts.push(Verdict::of(figure, &ratios, goals, true));
            }
        };
        let five = self.ratios(DEFAULT, ONE_CORE, FIVE);
        judged("five Bonnie clients, two cores against one: time", five, (0.65, 0.58));
        let alone = self.best(1).map_or(vec![], |best| self.ratios(DEFAULT, best, 1));
        judged("one client: the default against the best other place: time", alone, (1.05, 1.0));
    }
}

/// The serial share of a program that needs `ratio` of its time on one core when it has `cores`
/// (Karp and Flatt: Measuring Parallel Processor Performance, CACM 33(5), 1990).
fn serial_share(ratio: f64, cores: f64) -> f64 {
    (ratio - 1.0 / cores) / (1.0 - 1.0 / cores)
}

fn describe(work: [(Load, u32, u32); 2], report: &mut Report) {
    let [(_, passes, accesses), (_, _, transactions)] = work;
    report.method.push(format!(
        "Clients are processes. One core: clients and all of Tactus on core 0. Otherwise a bar \
         divides core 0 from core 1; with *clients free* and by default the kernel places them. \
         The time is that from the begin of the first client to the end of the last one. The \
         balancer is off except by default. Files are in memory, as in the ancestor's runs: \
         nothing waits for a disk. Processor time of threads of the server that ended meanwhile \
         is not counted. s is the serial share, {} for a ratio of 0.65.",
        number(serial_share(0.65, 2.0))
    ));
    report.method.push(format!(
        "Bonnie, {passes} times for each client: a file of 128 KiB is written by characters \
         (collected to 4 KiB, as the C library does), changed in each block of 16 KiB, read by \
         characters, written and read by blocks, and read at {accesses} random places, of which \
         every tenth is changed. PostMark: 50 files of 500 to 10,000 bytes, {transactions} \
         transactions, each a read or an appended part and a creation or a removal. What is \
         written is on stable storage at the end of each part. A title never changes, so a client \
         of Tactus changes and appends to the next version of the title in mapped memory, and \
         publishes that."
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_shares_are_those_of_the_published_figures() {
        for (ratio, cores, share) in [(0.60, 3.0, 0.40), (0.87, 3.0, 0.805), (0.70, 2.0, 0.40)] {
            assert!((serial_share(ratio, cores) - share).abs() < 1e-9, "{ratio} on {cores}");
        }
    }

    #[test]
    fn the_default_is_compared_with_the_best_other_place_of_tactus() {
        let distributions = distribution::all();
        let mut samples = Samples::new();
        for (nth, one) in distributions.iter().enumerate() {
            let seconds = match &*one.name {
                ONE_CORE => 3.0,
                DEFAULT => 1.2,
                KERNEL_ONE | KERNEL_TWO => 0.1,
                "client, disk | file, block" => 1.0,
                _ => 2.0,
            };
            let sample = Sample { seconds, cpu: 1.0, parts: BTreeMap::new() };
            samples.insert((nth, 5), vec![sample; 3]);
        }
        let results = Results {
            load: Load::Bonnie,
            distributions: &distributions,
            clients: &[5],
            samples: &samples,
        };
        assert_eq!(results.best(5), Some("client, disk | file, block"));
        assert_eq!(results.best(1), None);
        let mut report = Report::new("placement", "?");
        results.summarise(&mut report);
        assert_eq!(report.verdicts.len(), 1, "no run had one client");
        assert_eq!(report.verdicts[0].reached, Some(true));
        assert_eq!(report.verdicts[0].measured, "0.400 (0.400-0.400)");
    }
}
