//! against: what a byte and a datagram cost by one server binary and by another.
//!
//! Promise: in each round every bench runs both binaries one right after the other, and the next
//! round in the other order, so that what changes on the machine meets both alike; the ratio is taken
//! within a round. The CPU time is that of the server's own threads, so other programs are not in it.
//! A run that lost a stream or a part of the payload does not count. How even the streams are is not
//! looked at: `http-cold`, `http-hot` and `udp-many` do that.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::json;
use tactus_core::units::{BitRate, Bytes, MIB, Nanos, SECOND};

use super::{RECEIVER_CORE, SERVER_CORES, START_UP, say, udp_many};
use crate::cpu::{Look, Spent};
use crate::netns::{CONGESTION_CONTROL, Wire};
use crate::peers::{Server, Tactus, Tuning};
use crate::read_ahead::ReadAhead;
use crate::report::{Report, Table, Verdict, spread};
use crate::run::{self, Scene};
use crate::spread::{self, Spread};
use crate::titles::Titles;
use crate::{clock, interrupt, machine};

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Case {
    /// 200 cold streams of 8.8 Mbit/s, by HTTP from the disk.
    HttpCold,
    /// 1,000 hot streams of 4 Mbit/s, by HTTP from memory.
    HttpHot,
    /// 500 streams of 4 Mbit/s by UDP, with a burst of 8 ms, to nobody.
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
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(3..=60))]
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

/// Both runs of one round.
#[derive(Clone, Copy, Debug, Serialize)]
struct Pair {
    before: Sample,
    after: Sample,
}

/// How often a run that does not count is repeated.
const REPEATS: usize = 2;
/// What may be missing at the borders of the measured span, and be too much there.
const SHARES: std::ops::RangeInclusive<f64> = 0.98..=1.02;
const WARM_UP: Nanos = SECOND.times(2);
/// Over which streams are asked for.
const STAGGER: Nanos = SECOND;
/// The title of the longest allowed run fits every run, so that none is laid down twice.
const LONGEST: Nanos = SECOND.times(20);
/// How long channels may take until all of them send, and how often they are looked at.
const BEGINS_MAX: Nanos = SECOND.times(30);
const LOOKS: Nanos = Nanos::from_millis(250);

/// Runs it.
pub(super) fn run(options: Options) -> Result<()> {
    let stage = Stage::set(options)?;
    let mut pairs: Vec<(Case, Pair)> = Vec::new();
    let question = "what do a byte and a datagram cost, against another server binary?";
    let mut report = Report::new("against", question);
    stage.describe(&mut report);
    let rounds = usize::from(stage.options.rounds);
    for round in 0..rounds {
        for case in &stage.cases {
            say(&format!("round {} of {rounds}: {}", round + 1, case.kind.name()));
            match stage.pair(case, round) {
                Ok(pair) => {
                    report.runs.push(
                        json!({ "name": case.kind.name(), "round": round + 1, "pair": pair }),
                    );
                    pairs.push((case.kind, pair));
                }
                Err(error) if round == 0 => return Err(error),
                Err(error) => {
                    interrupt::check()?;
                    report.note(format!("{}, round {}: {error:#}", case.kind.name(), round + 1));
                }
            }
            // Whatever ends the bench, what was measured is there.
            report.keep(&stage.options.out)?;
        }
    }
    let kinds = stage.cases.iter().map(|case| case.kind);
    let missed = summarise(kinds, &pairs, &stage.options, &mut report);
    report.publish(&stage.options.out)?;
    ensure!(missed.is_empty(), "{}", missed.join("; "));
    Ok(())
}

/// Both servers, and what they share.
struct Stage {
    options: Options,
    before: PathBuf,
    after: PathBuf,
    cases: Vec<Prepared>,
    wire: Wire,
    _read_ahead: Option<ReadAhead>,
}

/// A case with its titles.
struct Prepared {
    kind: Case,
    source: Source,
}

enum Source {
    Http(Titles),
    Udp(PathBuf),
}

impl Stage {
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
        let cases = wanted.into_iter().map(|kind| Prepared::lay(kind, &data, &options));
        let cases = cases.collect::<Result<_>>()?;
        let _read_ahead = ReadAhead::set(&data, options.read_ahead)?;
        let mut wire = Wire::lay()?;
        wire.swallow_groups()?;
        Ok(Self { options, before, after, cases, wire, _read_ahead })
    }

    fn describe(&self, report: &mut Report) {
        report.method = [
            "The server has core 0, the receiver core 1, in two network namespaces joined by a veth \
             pair, MTU 1500. Datagrams leave by a device that swallows them (ifb).",
            "Each round runs both binaries of a case one right after the other, the next round in the \
             other order. Ratios are taken within a round.",
            "CPU = run time of the server's threads from the scheduler in the measured span, by the \
             payload bytes that the receiver read in it, or by the datagrams that the device counted. \
             Real-time threads are those with SCHED_FIFO, SCHED_RR or SCHED_DEADLINE.",
            "The interval holds the median with 95 % confidence or more: order statistics, as in the \
             sign test.",
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

    /// Both runs of a round.
    fn pair(&self, case: &Prepared, round: usize) -> Result<Pair> {
        let before = || self.counted(case, &self.before).context("before");
        let after = || self.counted(case, &self.after).context("after");
        Ok(match round % 2 {
            0 => {
                let before = before()?;
                Pair { before, after: after()? }
            }
            _ => {
                let after = after()?;
                Pair { before: before()?, after }
            }
        })
    }

    /// A run that counts.
    fn counted(&self, case: &Prepared, binary: &Path) -> Result<Sample> {
        let mut share = 0.0;
        for _ in 0..=REPEATS {
            let sample = match &case.source {
                Source::Http(titles) => self.http(case.kind, titles, binary)?,
                Source::Udp(title) => self.udp(title, binary)?,
            };
            share = sample.share;
            if SHARES.contains(&share) {
                return Ok(sample);
            }
            say(&format!("{:.1} % of the payload came: once more", share * 100.0));
        }
        bail!("only {:.1} % of the payload came, {} times", share * 100.0, REPEATS + 1)
    }

    fn http(&self, kind: Case, titles: &Titles, binary: &Path) -> Result<Sample> {
        let scene = Scene {
            wire: &self.wire,
            titles,
            rate: kind.rate(),
            streams: kind.streams(),
            stagger: STAGGER,
            warm_up: WARM_UP,
            length: SECOND.times(self.options.seconds),
            start_up: START_UP,
            cold: kind == Case::HttpCold,
            server_cores: SERVER_CORES,
            receiver_core: RECEIVER_CORE,
            idle: None,
            tactus: binary,
        };
        let outcome = run::run(&Tactus { label: String::new(), tuning: kind.tuning() }, &scene)?;
        let reasons = outcome.reasons();
        ensure!(reasons.is_empty(), "streams were refused or broke: {}", reasons.join("; "));
        let figures = outcome.figures(&scene)?;
        Ok(Sample::of(&figures.spent, figures.payload as f64, figures.payload_share))
    }

    fn udp(&self, title: &Path, binary: &Path) -> Result<Sample> {
        interrupt::check()?;
        let (rate, streams) = (Case::UdpMany.rate(), Case::UdpMany.streams());
        let mut server = udp_many::start_unheard(&self.wire, binary, title, rate, streams)?;
        let per_second = rate.0 as f64 / 8.0 / udp_many::PAYLOAD * streams as f64;
        self.wait_until_all_send(&mut server, per_second)?;
        interrupt::sleep_until(clock::now() + WARM_UP)?;
        let (before, came) = (Look::take()?, self.wire.received()?);
        interrupt::sleep_until(clock::now() + SECOND.times(self.options.seconds))?;
        let spent = Look::take()?.since(&before, server.process());
        let came = (self.wire.received()? - came) as f64 / udp_many::PAYLOAD;
        server.check()?;
        Ok(Sample::of(&spent, came, came / (per_second * spent.wall)))
    }

    /// Waits until nearly all of `per_second` datagrams leave.
    fn wait_until_all_send(&self, server: &mut Server, per_second: f64) -> Result<()> {
        let deadline = clock::now() + BEGINS_MAX;
        let mut share = 0.0;
        while clock::now() < deadline {
            server.check()?;
            let (from, before) = (clock::now(), self.wire.received()?);
            interrupt::sleep_until(from + LOOKS)?;
            let came = (self.wire.received()? - before) as f64 / udp_many::PAYLOAD;
            share = came / (per_second * clock::now().since(from).0 as f64 / 1e9);
            if share >= *SHARES.start() {
                return Ok(());
            }
        }
        bail!("after {BEGINS_MAX} {:.1} % of the datagrams are sent", share * 100.0)
    }
}

impl Prepared {
    fn lay(kind: Case, data: &Path, options: &Options) -> Result<Self> {
        let length = LONGEST.max(SECOND.times(options.seconds));
        let size = Scene::title_size(kind.rate(), STAGGER, WARM_UP, length);
        let source = match kind {
            Case::HttpCold => Source::Http(Titles::lay(&data.join("cold"), kind.streams(), size)?),
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

    fn streams(self) -> usize {
        match self {
            Self::HttpCold => 200,
            Self::HttpHot => 1_000,
            Self::UdpMany => 500,
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
                arena: Some(Bytes(2048 * MIB)),
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
    fn of(spent: &Spent, sent: f64, share: f64) -> Self {
        Self { cpu: spent.tree, real_time: spent.real_time, sent, share }
    }
}

/// Adds the tables; answers which cases are above the limit, or cannot be judged by it.
fn summarise(
    kinds: impl Iterator<Item = Case>,
    pairs: &[(Case, Pair)],
    options: &Options,
    report: &mut Report,
) -> Vec<String> {
    let head = ["case", "CPU", "before", "after", "ratio, median", "interval", "range", "rounds"];
    let mut table = Table::new("CPU of the server, after / before", &head);
    let mut missed = Vec::new();
    for kind in kinds {
        let of_kind = pairs.iter().filter(|(of, _)| *of == kind).map(|(_, pair)| pair);
        let of_kind: Vec<&Pair> = of_kind.collect();
        let (unit, scale) = kind.unit();
        type Time = fn(&Sample) -> f64;
        let all: Time = |sample| sample.cpu;
        let real_time: Time = |sample| sample.real_time;
        for (threads, time) in [("all threads", all), ("real-time threads", real_time)] {
            let cost = |sample: &Sample| time(sample) / sample.sent;
            let costs = |of: fn(&Pair) -> &Sample| -> Vec<f64> {
                of_kind.iter().map(|pair| cost(of(pair)) * scale).collect()
            };
            let ratios = of_kind.iter().map(|pair| cost(&pair.after) / cost(&pair.before));
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
    fn the_ratio_is_taken_within_a_round() {
        let sample = |cpu, sent| Sample { cpu, real_time: cpu / 2.0, sent, share: 1.0 };
        // A machine that is twice as slow in the second round, for both.
        let rounds = [(1.0, 1.1), (2.0, 2.2), (1.0, 1.1)];
        let pairs = rounds.map(|(before, after)| {
            (Case::HttpHot, Pair { before: sample(before, 1e9), after: sample(after, 1e9) })
        });
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
        let missed = summarise([Case::HttpHot].into_iter(), &pairs, &options, &mut report);
        assert_eq!(missed, ["http-hot: 1.100 in 3 rounds, must be 1.02"]);
        let row = &report.tables[0].rows[1];
        assert_eq!(
            row[1..5],
            ["real-time threads, s/GB", "0.500 (0.500-1.00)", "0.550 (0.550-1.10)", "1.100"]
        );
    }
}
