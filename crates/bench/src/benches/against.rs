//! against: what a byte and a datagram cost by one server binary and by another.
//!
//! Promise: both servers run at the same time on the same core, each with half of the streams, so
//! whatever happens on the machine happens to both; each round has two such runs, between which
//! they change places, and its ratio is the geometric mean of both. The CPU time is that of a
//! server's own threads, so other programs are not in it. A run that lost a stream or a part of the
//! payload does not count. How even the streams are is not looked at: `http-cold`, `http-hot` and
//! `udp-many` do that.

use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;
use tactus_core::units::{BitRate, Bytes, MIB, Nanos, SECOND};

use super::udp_many::{self, Load};
use super::{RECEIVER_CORE, SERVER_CORES, say};
use crate::arrivals::Trace;
use crate::cpu::{CpuSnapshot, CpuUsage};
use crate::datagrams::Destination;
use crate::figures::windows::Span;
use crate::netns::{CONGESTION_CONTROL, NetworkPath, Wire};
use crate::peers::{PORT, Peer, Server, Setting, Tactus, Tuning};
use crate::read_ahead::ReadAhead;
use crate::receiver::{Harvest, Plan, PlannedRequest, StreamReceiver};
use crate::report::{Report, Table, Verdict, spread};
use crate::run::{self, Scene};
use crate::spread::{self, Spread};
use crate::titles::Titles;
use crate::{clock, interrupt, machine};

/// A load that both servers carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Case {
    /// 100 cold streams of 8.8 Mbit/s each, by HTTP from the disk.
    HttpCold,
    /// 500 hot streams of 4 Mbit/s each, by HTTP from memory.
    HttpHot,
    /// 250 UDP streams of 4 Mbit/s each, with a burst of 8 ms and no receiver.
    UdpMany,
}

/// What the command line says.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// What to compare; by default all.
    pub cases: Vec<Case>,
    /// The server to compare with. May be a script that changes the file behind `--config` where
    /// that server's keys are others, and then ends with `exec SERVER "$@"`.
    #[arg(long)]
    pub before: PathBuf,
    /// The server that is compared; by default the binary `tactus` beside this one.
    #[arg(long, alias = "tactus")]
    pub after: Option<PathBuf>,
    /// Rounds, each with two runs of each case.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Seconds that are measured in each run.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(3..=60))]
    pub seconds: u64,
    /// Fail when the median of the ratios of a case is above this, as in 1.02.
    #[arg(long)]
    pub max: Option<f64>,
    /// Where titles are laid down; they are kept for the next run.
    #[arg(long, default_value = "target/bench/data")]
    pub data: PathBuf,
    /// The read-ahead of the machine's own disk in KiB.
    #[arg(long, default_value_t = 512)]
    pub read_ahead: u64,
    /// Where the report is written.
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
}

/// One run.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    /// CPU seconds of the server's threads, and of its real-time threads alone.
    cpu: f64,
    real_time: f64,
    /// Bytes of payload, or datagrams.
    sent: f64,
    /// Of what should have been sent.
    share: f64,
}

/// Both servers in one run.
#[derive(Clone, Copy, Debug, Serialize)]
struct Pair {
    before: Sample,
    after: Sample,
}

/// The runs of a round: the old server in the first place, and in the second. Who wakes up first on
/// a core pays for the caches, by up to a tenth of the cost of a datagram.
type Round = [Pair; 2];

/// How often a run that failed or does not count is repeated.
const REPEATS: usize = 2;
/// What may be missing at the borders of the measured span, and be too much there.
const SHARES: std::ops::RangeInclusive<f64> = 0.98..=1.02;
const WARM_UP: Nanos = Nanos::from_millis(1_500);
/// Over which streams are asked for.
const STAGGER: Nanos = SECOND;
/// The title of the longest allowed run fits every run, so that none is laid down twice.
const LONGEST: Nanos = SECOND.times(20);
/// How long channels may take until all of them send, and how often they are looked at.
const BEGINS_MAX: Nanos = SECOND.times(30);
const LOOKS: Nanos = Nanos::from_millis(250);

/// Runs it.
pub(super) fn run(options: Options) -> Result<()> {
    let fixture = Fixture::set(options)?;
    let mut done: Vec<(Case, Round)> = Vec::new();
    let question = "what do a byte and a datagram cost, against another server binary?";
    let mut report = Report::new("against", question);
    fixture.describe(&mut report);
    let rounds = usize::from(fixture.options.rounds);
    for round in 0..rounds {
        for case in &fixture.cases {
            say(&format!("round {} of {rounds}: {}", round + 1, case.kind.name()));
            match fixture.round(case) {
                Ok(pairs) => {
                    let name = case.kind.name();
                    report.runs.push(json!({ "name": name, "round": round + 1, "runs": pairs }));
                    done.push((case.kind, pairs));
                }
                Err(error) if round == 0 => return Err(error),
                Err(error) => {
                    interrupt::check()?;
                    report.note(format!("{}, round {}: {error:#}", case.kind.name(), round + 1));
                }
            }
            // An interrupted bench keeps its measured runs.
            report.keep(&fixture.options.out)?;
        }
    }
    let kinds = fixture.cases.iter().map(|case| case.kind);
    let missed = summarise(kinds, &done, &fixture.options, &mut report);
    report.publish(&fixture.options.out)?;
    ensure!(missed.is_empty(), "{}", missed.join("; "));
    Ok(())
}

/// The two servers and their common network.
struct Fixture {
    options: Options,
    before: PathBuf,
    after: PathBuf,
    cases: Vec<PreparedCase>,
    wire: Wire,
    _read_ahead: Option<ReadAhead>,
}

/// A case with its titles.
struct PreparedCase {
    kind: Case,
    source: Source,
}

enum Source {
    Http(Titles),
    Udp(PathBuf),
}

impl Fixture {
    fn set(options: Options) -> Result<Self> {
        let binary = |path: &Path| {
            path.canonicalize().with_context(|| format!("no server at {}", path.display()))
        };
        let before = binary(&options.before)?;
        let after = match &options.after {
            Some(path) => binary(path)?,
            None => binary(&std::env::current_exe()?.with_file_name("tactus"))?,
        };
        std::fs::create_dir_all(&options.data)?;
        let data = options.data.canonicalize()?;
        let mut wanted = options.cases.clone();
        if wanted.is_empty() {
            wanted = vec![Case::HttpCold, Case::HttpHot, Case::UdpMany];
        }
        say("laying down the titles");
        let cases = wanted.into_iter().map(|kind| PreparedCase::lay(kind, &data, &options));
        let cases = cases.collect::<Result<_>>()?;
        let _read_ahead = ReadAhead::set(&data, options.read_ahead)?;
        let mut wire = Wire::lay(NetworkPath::default())?;
        wire.swallow_groups()?;
        wire.swallow_apart(GROUPS_APART)?;
        Ok(Self { options, before, after, cases, wire, _read_ahead })
    }

    fn describe(&self, report: &mut Report) {
        report.method = [
            "Both servers run at the same time on core 0, each with half of the streams, the \
             receivers on core 1, in two network namespaces joined by a veth pair, MTU 1500. \
             Datagrams leave by two devices that swallow them (ifb).",
            "A round has two such runs, between which the servers change places: which starts \
             first, and which titles or groups it has. Its ratio is the geometric mean of both \
             runs, its cost their mean.",
            "CPU = run time of a server's threads from the scheduler in the measured span, by the \
             payload bytes that its receiver read in it, or by the datagrams that its device \
             counted. Real-time threads are those with SCHED_FIFO, SCHED_RR or SCHED_DEADLINE.",
            "The interval holds the median with 95 % confidence or more: order statistics, as in \
             the sign test.",
        ]
        .map(String::from)
        .into();
        let wire = format!("congestion control {CONGESTION_CONTROL} on both sides (by route)");
        let mut set = |name: &str, value: String| report.settings.push((name.into(), value));
        set("wire", wire);
        set("before", self.before.display().to_string());
        set("after", self.after.display().to_string());
        set("disk", machine::storage(&self.options.data));
        set("measured in each run", SECOND.times(self.options.seconds).to_string());
    }

    fn round(&self, case: &PreparedCase) -> Result<Round> {
        Ok([self.pair(case, [0, 1])?, self.pair(case, [1, 0])?])
    }

    /// Both servers, each in its place, in one run that counts.
    fn pair(&self, case: &PreparedCase, places: [usize; 2]) -> Result<Pair> {
        let mut tries = 0;
        loop {
            match self.try_pair(case, places) {
                Err(error) if tries < REPEATS => {
                    interrupt::check()?;
                    say(&format!("{error:#}: once more"));
                    tries += 1;
                }
                found => return found,
            }
        }
    }

    fn try_pair(&self, case: &PreparedCase, places: [usize; 2]) -> Result<Pair> {
        // The first place starts first; each has titles or groups of its own.
        let binaries = places.map(|place| [&self.before, &self.after][place].as_path());
        let by_place = match &case.source {
            Source::Http(titles) => self.http(case.kind, titles, binaries)?,
            Source::Udp(title) => self.udp(title, binaries)?,
        };
        let [before, after] = places.map(|place| by_place[place]);
        for (sample, name) in [(before, "before"), (after, "after")] {
            let percent = sample.share * 100.0;
            ensure!(SHARES.contains(&sample.share), "{name}: {percent:.1} % of the payload came");
        }
        Ok(Pair { before, after })
    }

    fn http(&self, kind: Case, titles: &Titles, binaries: [&Path; 2]) -> Result<[Sample; 2]> {
        interrupt::check()?;
        match kind {
            Case::HttpCold => titles.chill()?,
            _ => titles.warm()?,
        }
        let streams = kind.streams();
        let start = |place: usize| -> Result<Server> {
            let tuning = Tuning { port: Some(port(place)), ..kind.tuning() };
            let setting = Setting {
                wire: &self.wire,
                titles,
                rate: kind.rate(),
                cores: SERVER_CORES,
                streams,
                tactus: binaries[place],
                group: None,
                uploads: false,
            };
            let server = Tactus { label: String::new(), tuning }.start(&setting);
            server.with_context(|| format!("cannot start {}", binaries[place].display()))
        };
        let mut servers = [start(0)?, start(1)?];
        let receive = |place: usize| {
            let target = |stream: usize| {
                // Of cold titles each server has its own: the page cache is for both.
                let title = (2 * stream + place) % titles.count();
                format!("{}?rate={}", titles.target(title), kind.rate().0)
            };
            let step = Nanos(STAGGER.0 / streams as u64);
            let ask =
                |stream: usize| PlannedRequest::get(step.times(stream as u64), &target(stream));
            let length = STAGGER + BEGINS_MAX + WARM_UP + SECOND.times(self.options.seconds);
            let room = (kind.rate().bytes_in(length).0 / PIECE + 64) as usize * streams;
            let server = self.address(place);
            let asks = (0..streams).map(ask).collect();
            StreamReceiver::start(
                self.wire.receiver_side(),
                Plan { server, asks, room, core: RECEIVER_CORE },
            )
        };
        let receivers = [receive(0)?, receive(1)?];
        let deadline = clock::now() + BEGINS_MAX;
        while receivers.iter().any(|receiver| receiver.settled() < streams) {
            ensure!(
                receivers.iter().all(|receiver| !receiver.is_finished()),
                "the receiver gave up"
            );
            ensure!(clock::now() < deadline, "not all streams run after {BEGINS_MAX}");
            interrupt::sleep_until(clock::now() + LOOKS)?;
        }
        let (spent, measured, _) = self.measure(&mut servers, || Ok(()))?;
        let mut samples = Vec::new();
        for (receiver, spent) in receivers.into_iter().zip(&spent) {
            let Harvest { answers, record, .. } = receiver.stop()?;
            let failed = answers.iter().filter(|answer| !answer.went_well());
            let reasons = run::reasons(failed);
            ensure!(reasons.is_empty(), "streams were refused or broke: {}", reasons.join("; "));
            let traces = record.traces(streams);
            let came = |trace: &Trace| trace.bytes_between(measured.from, measured.to);
            let came: u64 = traces.iter().map(came).sum();
            let wanted = kind.rate().bytes_in(measured.length()).0 as f64 * streams as f64;
            samples.push(Sample::of(spent, came as f64, came as f64 / wanted));
        }
        Ok([samples[0], samples[1]])
    }

    fn udp(&self, title: &Path, binaries: [&Path; 2]) -> Result<[Sample; 2]> {
        interrupt::check()?;
        let (rate, streams) = (Case::UdpMany.rate(), Case::UdpMany.streams());
        let start = |place: usize| -> Result<Server> {
            let nobody = Destination { to: self.address(place).into(), every: 0 };
            let first = [0, GROUPS_APART_FROM][place];
            let load = Load {
                binary: binaries[place],
                address: self.address(place),
                title,
                rate,
                to: (first..first + streams as u16).map(|stream| nobody.of(stream)).collect(),
            };
            let server = udp_many::start_bursts(&self.wire, &load);
            server.with_context(|| format!("cannot start {}", binaries[place].display()))
        };
        let mut servers = [start(0)?, start(1)?];
        let datagrams = || -> Result<[f64; 2]> {
            let all = [self.wire.received()?, self.wire.swallowed_apart()?];
            Ok(all.map(|bytes| bytes as f64 / udp_many::PAYLOAD))
        };
        let per_second = rate.0 as f64 / 8.0 / udp_many::PAYLOAD * streams as f64;
        let (mut from, mut before) = (clock::now(), datagrams()?);
        let deadline = from + BEGINS_MAX;
        loop {
            servers.iter_mut().try_for_each(Server::check)?;
            interrupt::sleep_until(from + LOOKS)?;
            let (now, came) = (clock::now(), datagrams()?);
            let wanted = per_second * now.since(from).0 as f64 / 1e9;
            let shares = [0, 1].map(|place| (came[place] - before[place]) / wanted);
            if shares.iter().all(|share| share >= SHARES.start()) {
                break;
            }
            let output = || servers.each_ref().map(|server| last_line(&server.output()));
            ensure!(now < deadline, "not all channels send: {shares:.3?}; {:?}", output());
            (from, before) = (now, came);
        }
        let (spent, _, [before, after]) = self.measure(&mut servers, datagrams)?;
        Ok([0, 1].map(|place| {
            let came = after[place] - before[place];
            let spent = &spent[place];
            Sample::of(spent, came, came / (per_second * spent.wall))
        }))
    }

    /// What both servers spend in the measured span, which begins after the warm-up, and what
    /// `look` sees at its ends.
    fn measure<T>(
        &self,
        servers: &mut [Server; 2],
        look: impl Fn() -> Result<T>,
    ) -> Result<([CpuUsage; 2], Span, [T; 2])> {
        interrupt::sleep_until(clock::now() + WARM_UP)?;
        let (from, before, seen) = (clock::now(), CpuSnapshot::take()?, look()?);
        interrupt::sleep_until(from + SECOND.times(self.options.seconds))?;
        let (to, after, then) = (clock::now(), CpuSnapshot::take()?, look()?);
        servers.iter_mut().try_for_each(Server::check)?;
        let spent = [0, 1].map(|place: usize| after.since(&before, servers[place].process()));
        Ok((spent, Span { from, to }, [seen, then]))
    }

    /// Where the server of a place listens.
    fn address(&self, place: usize) -> SocketAddrV4 {
        SocketAddrV4::new(self.wire.server_address(), port(place))
    }
}

fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().to_owned()
}

fn port(place: usize) -> u16 {
    PORT + place as u16
}

/// A stream's payload arrives in pieces of this size or larger, nearly always.
const PIECE: u64 = 12 << 10;
/// The groups of the second server: streams from this number on, and the network that they are in.
const GROUPS_APART_FROM: u16 = 1 << 15;
const GROUPS_APART: &str = "239.77.128.0/17";

impl PreparedCase {
    fn lay(kind: Case, data: &Path, options: &Options) -> Result<Self> {
        let length = LONGEST.max(SECOND.times(options.seconds));
        let size = Scene::title_size(kind.rate(), STAGGER, WARM_UP, length);
        let source = match kind {
            Case::HttpCold => {
                Source::Http(Titles::lay(&data.join("cold"), 2 * kind.streams(), size)?)
            }
            Case::HttpHot => Source::Http(Titles::lay(&data.join("hot"), HOT_TITLES, size)?),
            Case::UdpMany => Source::Udp(udp_many::title(data, kind.rate())?),
        };
        Ok(Self { kind, source })
    }
}

/// Few titles and many viewers: what makes a title hot.
const HOT_TITLES: usize = 16;

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::HttpCold => "http-cold",
            Self::HttpHot => "http-hot",
            Self::UdpMany => "udp-many",
        }
    }

    fn rate(self) -> BitRate {
        match self {
            Self::HttpCold => BitRate(8_800_000),
            Self::HttpHot | Self::UdpMany => BitRate(4_000_000),
        }
    }

    /// Of each server.
    fn streams(self) -> usize {
        match self {
            Self::HttpCold => 100,
            Self::HttpHot => 500,
            Self::UdpMany => 250,
        }
    }

    /// As in the bench of the same name.
    fn tuning(self) -> Tuning {
        let tick = Some(Nanos::from_micros(62_500));
        match self {
            Self::HttpCold | Self::UdpMany => Tuning { tick, ..Tuning::default() },
            Self::HttpHot => Tuning {
                tick,
                start_burst: Some(Nanos::ZERO),
                arena: Some(Bytes(1024 * MIB)),
                cpu_budget: Some(94),
                ..Tuning::default()
            },
        }
    }

    /// The unit of its cost, and how many of that a CPU second per byte or datagram is.
    fn unit(self) -> (&'static str, f64) {
        match self {
            Self::HttpCold | Self::HttpHot => ("s/GB", 1e9),
            Self::UdpMany => ("us/datagram", 1e6),
        }
    }
}

impl Sample {
    fn of(spent: &CpuUsage, sent: f64, share: f64) -> Self {
        Self { cpu: spent.tree, real_time: spent.real_time, sent, share }
    }
}

/// Adds the tables; answers which cases are above the limit, or cannot be judged by it.
fn summarise(
    kinds: impl Iterator<Item = Case>,
    done: &[(Case, Round)],
    options: &Options,
    report: &mut Report,
) -> Vec<String> {
    let head = ["case", "CPU", "before", "after", "ratio, median", "interval", "range", "rounds"];
    let mut table = Table::new("CPU of the server, after / before", &head);
    let mut missed = Vec::new();
    for kind in kinds {
        let rounds = done.iter().filter(|(of, _)| *of == kind).map(|(_, round)| round);
        let rounds: Vec<&Round> = rounds.collect();
        let (unit, scale) = kind.unit();
        type Time = fn(&Sample) -> f64;
        let all: Time = |sample| sample.cpu;
        let real_time: Time = |sample| sample.real_time;
        for (threads, time) in [("all threads", all), ("real-time threads", real_time)] {
            let cost = |sample: &Sample| time(sample) / sample.sent;
            let costs = |of: fn(&Pair) -> &Sample| -> Vec<f64> {
                let mean = |[first, second]: &&Round| (cost(of(first)) + cost(of(second))) / 2.0;
                rounds.iter().map(|round| mean(round) * scale).collect()
            };
            let ratio = |pair: &Pair| cost(&pair.after) / cost(&pair.before);
            let ratios = rounds.iter().map(|[first, second]| (ratio(first) * ratio(second)).sqrt());
            let ratios: Vec<f64> = ratios.collect();
            let found = Spread::of(&ratios);
            let three = |value: f64| format!("{value:.3}");
            let range = |(low, high): (f64, f64)| format!("{low:.3} to {high:.3}");
            let or_dash = |text: Option<String>| text.unwrap_or("-".into());
            table.row(vec![
                kind.name().into(),
                format!("{threads}, {unit}"),
                spread(&costs(|pair| &pair.before)),
                spread(&costs(|pair| &pair.after)),
                or_dash(found.map(|found| three(found.median))),
                or_dash(spread::median_interval(&ratios).map(range)),
                or_dash(found.map(|found| range((found.min, found.max)))),
                ratios.len().to_string(),
            ]);
            if let Some(max) = options.max.filter(|_| threads == "all threads") {
                let reached = judged(&ratios, usize::from(options.rounds), max);
                if reached != Some(true) {
                    let median = or_dash(found.map(|found| three(found.median)));
                    let rounds = ratios.len();
                    let name = kind.name();
                    missed.push(format!("{name}: {median} in {rounds} rounds, must be {max}"));
                }
                report.verdicts.push(Verdict {
                    figure: format!("CPU of {}, after / before", kind.name()),
                    measured: or_dash(found.map(|found| three(found.median))),
                    must: max.to_string(),
                    reached,
                    push: "0.90".into(),
                    pushed: found.map(|found| found.median <= 0.9),
                });
            }
        }
    }
    report.tables.push(table);
    missed
}

/// Whether the median of `ratios` is at most `max`; `None` when more than half of the rounds are
/// missing.
fn judged(ratios: &[f64], rounds: usize, max: f64) -> Option<bool> {
    let found = Spread::of(ratios).filter(|found| found.rounds * 2 >= rounds)?;
    Some(found.median <= max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_judged_by_the_median_of_at_least_half_of_its_rounds() {
        assert_eq!(judged(&[1.01, 1.30, 1.00], 3, 1.02), Some(true));
        assert_eq!(judged(&[1.03, 1.04, 0.50], 3, 1.02), Some(false));
        assert_eq!(judged(&[1.0, 1.0], 5, 1.02), None);
        assert_eq!(judged(&[], 1, 1.02), None);
    }

    #[test]
    fn the_ratio_is_taken_within_a_round_and_over_both_places() {
        let sample = |cpu, sent| Sample { cpu, real_time: cpu / 2.0, sent, share: 1.0 };
        let pair = |before, after| Pair { before: sample(before, 1e9), after: sample(after, 1e9) };
        // The second place is dearer by a tenth, and the machine is twice as slow in one round.
        let round = |slow: f64| [pair(slow, slow * 1.21), pair(slow * 1.1, slow * 1.1)];
        let rounds = [1.0, 2.0, 1.0].map(|slow| (Case::HttpHot, round(slow)));
        let mut report = Report::new("against", "");
        let options = Options {
            cases: Vec::new(),
            before: PathBuf::new(),
            after: None,
            rounds: 3,
            seconds: 6,
            max: Some(1.02),
            data: PathBuf::new(),
            read_ahead: 512,
            out: PathBuf::new(),
        };
        let missed = summarise([Case::HttpHot].into_iter(), &rounds, &options, &mut report);
        assert_eq!(missed, ["http-hot: 1.100 in 3 rounds, must be 1.02"]);
        let row = &report.tables[0].rows[1];
        assert_eq!((&row[1][..], &row[4][..]), ("real-time threads, s/GB", "1.100"));
    }
}
