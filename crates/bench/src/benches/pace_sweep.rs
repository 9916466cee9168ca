//! pace-sweep: how even one flow is, at rates from 100 Mbit/s to 10 Gbit/s, against the kernel's
//! disciplines.
//!
//! Promise: datagrams of 1,316 bytes over a wire with an MTU of 1500; Tactus sends a title, HTB and
//! TBF get what a socket that is always full gives them. J is of the payload that the kernel
//! stamped in each second.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;
use tactus_core::units::{BitRate, MILLISECOND, Nanos, SECOND};

use super::measurement::{Measurement, NoCleanWindow, listen};
use super::{Fixture, RECEIVER_CORE, SERVER_CORE, SERVER_CORES, say};
use crate::datagrams::{Inboxes, PORT, Reading};
use crate::figures::jitter;
use crate::figures::windows::Grid;
use crate::hogs::Hogs;
use crate::peers::{Server, measure_volume};
use crate::report::{Plot, Report, Table, Verdict, spread};
use crate::spread::Spread;
use crate::{command, interrupt, priority};

const WARM_UP: Nanos = SECOND.times(2);
const ROUNDS: usize = 5;
const PAYLOAD: u64 = 1316;
/// What HTB and TBF count besides: Ethernet's header, IP's and UDP's.
const HEADERS: u64 = 42;
/// Least burst of a discipline: two frames.
const BURST_MIN: u64 = 3000;
/// Arrivals that there is memory for: 10 Gbit/s for 25 s.
const ROOM: usize = 24_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sender {
    Tactus,
    Htb,
    Tbf,
    HtbWide,
    TbfWide,
}

impl Sender {
    const ALL: [Self; 5] = [Self::Tactus, Self::Htb, Self::Tbf, Self::HtbWide, Self::TbfWide];

    const fn name(self) -> &'static str {
        match self {
            Self::Tactus => "tactus",
            Self::Htb => "HTB",
            Self::Tbf => "TBF",
            Self::HtbWide => "HTB (burst 2 ms)",
            Self::TbfWide => "TBF (burst 2 ms)",
        }
    }

    /// What the discipline may send at once, in time: as much as Tactus, whose turns are as far
    /// apart; or enough for its timer to come late by.
    const fn burst(self) -> Nanos {
        match self {
            Self::Tactus | Self::Htb | Self::Tbf => Nanos::from_micros(250),
            Self::HtbWide | Self::TbfWide => Nanos::from_millis(2),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
struct Figures {
    j1s: f64,
    j1s_p99: f64,
    j100ms: f64,
    /// Of the rate.
    share: f64,
    us_per_packet: f64,
    dropped: u64,
}

struct Run {
    sender: Sender,
    rate: u64,
    figures: Figures,
}

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "how even is one flow, and at which rates?";
    let mut report = fixture.report("pace-sweep", question);
    report.method.push(
        "One flow of datagrams of 1,316 bytes. Tactus sends a title again and again from memory \
         (`burst` as by default: none, so one turn of 250 us); HTB (one class) and TBF are fed by \
         a socket that is always full, with as much burst, and with 2 ms, which their timers' \
         lateness fits into. Their rates are set on the frame, which they count (42 bytes more). \
         J by the kernel's stamps at the receiver."
            .into(),
    );
    if fixture.options.beside > 0 {
        let note = format!(
            "Beside {} programs that never rest, on the same core.",
            fixture.options.beside
        );
        report.method.push(note);
    }
    let usual: Vec<u64> = match fixture.options.quick {
        true => CLAIMS.to_vec(),
        false => (1..=100).map(|hundreds| hundreds * 100).collect(),
    };
    let mbits = match &fixture.options.rates[..] {
        [] => usual,
        given => given.iter().map(|&rate| rate as u64).collect(),
    };
    let title = title(fixture)?;
    let mut runs: Vec<Run> = vec![];
    for &mbit in &mbits {
        let rate = BitRate(mbit * 1_000_000);
        let names = Sender::ALL.map(|sender| format!("{} at {rate}", sender.name()));
        // The whole sweep is for the video frame; the claims stand at three rates.
        let rounds = if CLAIMS.contains(&mbit) { fixture.rounds(ROUNDS) } else { 1 };
        runs.extend(fixture.take_turns(&names, rounds, &mut report, |place, _, report| {
            let sender = Sender::ALL[place];
            let figures = run(fixture, sender, &title, rate)?;
            report.runs.push(json!({ "name": sender.name(), "rate": rate.0, "figures": &figures }));
            Ok(Run { sender, rate: rate.0, figures })
        })?);
    }
    summarise(&mbits, &runs, &mut report);
    Ok(report)
}

/// Where the goals are, in Mbit/s.
const CLAIMS: [u64; 3] = [100, 1000, 3000];

fn run(fixture: &Fixture, sender: Sender, title: &Path, rate: BitRate) -> Result<Figures> {
    interrupt::check()?;
    // 2 ms of 10 Gbit/s are 2.5 MB of payload, which the kernel counts twice.
    let reading = Reading { sweep: MILLISECOND.times(2), room: ROOM, header: 0 };
    let inboxes = Inboxes::open(fixture.wire.receiver_side(), 1, RECEIVER_CORE, reading)?;
    let _discipline = Discipline::set(fixture, sender, rate)?;
    let folder = tempfile::Builder::new().prefix("tactus-bench-sweep-").tempdir()?;
    let to = format!("{}:{PORT}", fixture.wire.receiver_address());
    let server = match sender {
        Sender::Tactus => tactus(fixture, folder, title, rate, &to)?,
        Sender::Htb | Sender::Tbf | Sender::HtbWide | Sender::TbfWide => {
            let own = std::env::current_exe()?;
            let mut command = priority::on_cores(SERVER_CORES, None, &own.to_string_lossy());
            command.args(["pace-flood", "--to", &to]);
            Server::start_silent(&command, folder, &fixture.wire)?
        }
    };
    let hogs = Hogs::start(SERVER_CORE, fixture.options.beside)?;
    let Measurement { measured, spent, gaps, traces, dropped } =
        listen(fixture, server, inboxes, WARM_UP)?;
    drop(hogs);
    let packets = traces[0].between(measured.from, measured.to).len();
    ensure!(packets > 0, "nothing came");
    let second =
        jitter::jitter(&traces, rate, &Grid::new(measured, SECOND, &gaps)).ok_or(NoCleanWindow)?;
    let tenth = Grid::new(measured, MILLISECOND.times(100), &gaps);
    let tenth = jitter::jitter(&traces, rate, &tenth).ok_or(NoCleanWindow)?;
    let expected = rate.0 as f64 / 8.0 / PAYLOAD as f64 * spent.wall;
    Ok(Figures {
        j1s: second.mean,
        j1s_p99: second.p99,
        j100ms: tenth.mean,
        share: packets as f64 / expected,
        us_per_packet: spent.tree * 1e6 / packets as f64,
        dropped,
    })
}

/// A title that is long enough not to be a cache line, and is sent again and again.
fn title(fixture: &Fixture) -> Result<PathBuf> {
    let folder = fixture.options.data.join("sweep");
    fs::create_dir_all(&folder)?;
    let path = folder.join("long.ts");
    if !path.is_file() {
        say("making a title of 64 MB");
        // Null packets (PID 0x1fff): nothing here looks into them, the channel names its rate.
        let mut packet = [0xff; 188];
        packet[..4].copy_from_slice(&[0x47, 0x1f, 0xff, 0x10]);
        fs::write(&path, packet.repeat(64_000_000 / 188 / 7 * 7))?;
    }
    // By the cautious model of a disk that nobody has measured fast flows would not be admitted.
    measure_volume(&fixture.tactus, &folder, fixture.options.quick)?;
    Ok(path)
}

fn tactus(
    fixture: &Fixture,
    folder: tempfile::TempDir,
    title: &Path,
    rate: BitRate,
    to: &str,
) -> Result<Server> {
    let root = title.parent().context("a title lies in a directory")?;
    let name = title.file_name().context("a title has a name")?.to_string_lossy();
    let address = crate::peers::address(&fixture.wire);
    let mut text = String::new();
    write!(
        text,
        "[http]\naddress = \"{address}\"\n[admin]\naddress = \"off\"\n\
         [link]\nrate = \"100 Gbit/s\"\n[cpu]\nbudget = \"95 %\"\n[memory]\narena = \"3 GiB\"\n\
         [cores]\n\
         placement = [{{ cpu = 0, servers = [\"disk.0\", \"block\", \"delivery\", \"link\", \
         \"packets\"] }}]\n\
         [[volume]]\npath = \"{}\"\nmount = \"/\"\nsendfile = \"off\"\n\
         [[channel]]\nname = \"one\"\ntitle = \"/{name}\"\nto = \"udp://{to}\"\n\
         rate = \"{} bit/s\"\n",
        root.display(),
        rate.0
    )?;
    let file = folder.path().join("tactus.toml");
    fs::write(&file, text)?;
    let mut command = priority::on_cores(SERVER_CORES, None, &fixture.tactus.to_string_lossy());
    command.arg("serve").arg("--config").arg(&file);
    Server::start(&command, folder, &fixture.wire, address)
}

/// A queueing discipline on the server's device; gone with the value.
struct Discipline<'a>(Option<&'a Fixture>);

impl<'a> Discipline<'a> {
    fn set(fixture: &'a Fixture, sender: Sender, rate: BitRate) -> Result<Self> {
        let wire = (rate.0 * (PAYLOAD + HEADERS)).div_ceil(PAYLOAD);
        let device = fixture.wire.server_device();
        let burst = BitRate(wire).bytes_in(sender.burst()).0.max(BURST_MIN);
        let lines = match sender {
            Sender::Tactus => return Ok(Self(None)),
            Sender::Htb | Sender::HtbWide => format!(
                "qdisc replace dev {device} root handle 1: htb default 1\n\
                 class add dev {device} parent 1: classid 1:1 htb rate {wire}bit burst {burst} \
                 cburst {burst}\n"
            ),
            Sender::Tbf | Sender::TbfWide => format!(
                "qdisc replace dev {device} root tbf rate {wire}bit burst {burst} limit 4000000\n"
            ),
        };
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("discipline");
        fs::write(&file, lines)?;
        let mut tc = Command::new("tc");
        command::finish(&mut fixture.wire.on_server_side(tc.arg("-batch").arg(&file)))?;
        Ok(Self(Some(fixture)))
    }
}

impl Drop for Discipline<'_> {
    fn drop(&mut self) {
        let Some(fixture) = self.0 else { return };
        let mut tc = Command::new("tc");
        tc.args(["qdisc", "del", "dev", fixture.wire.server_device(), "root"]);
        if let Err(error) = command::finish(&mut fixture.wire.on_server_side(&tc)) {
            eprintln!("left behind: a queueing discipline: {error:#}");
        }
    }
}

fn summarise(mbits: &[u64], runs: &[Run], report: &mut Report) {
    let head = [
        "sender",
        "Mbit/s",
        "J 1 s, %",
        "J 1 s p99, %",
        "J 100 ms, %",
        "share",
        "CPU us/packet",
        "lost",
    ];
    let mut table = Table::new("evenness", &head);
    let of = |sender, mbit: u64, value: fn(&Figures) -> f64| -> Vec<f64> {
        let mine = runs.iter().filter(|run| run.sender == sender && run.rate == mbit * 1_000_000);
        mine.map(|run| value(&run.figures)).collect()
    };
    for &mbit in mbits {
        for sender in Sender::ALL {
            let values = |value| spread(&of(sender, mbit, value));
            table.row(vec![
                sender.name().into(),
                mbit.to_string(),
                values(|f| f.j1s),
                values(|f| f.j1s_p99),
                values(|f| f.j100ms),
                values(|f| f.share),
                values(|f| f.us_per_packet),
                values(|f| f.dropped as f64),
            ]);
        }
    }
    report.tables.push(table);
    for mbit in CLAIMS.into_iter().filter(|mbit| mbits.contains(mbit)) {
        let j: fn(&Figures) -> f64 = |f| f.j1s;
        let ours = of(Sender::Tactus, mbit, j);
        let all = Spread::of(&ours);
        report.verdicts.push(Verdict {
            figure: format!("J over 1 s at {mbit} Mbit/s, %"),
            measured: spread(&ours),
            must: "<= 0.05".into(),
            reached: all.map(|all| all.max <= 0.05),
            push: "<= 0.01".into(),
            pushed: all.map(|all| all.max <= 0.01),
        });
        for other in [Sender::Htb, Sender::Tbf] {
            let theirs = of(other, mbit, j);
            // Exactly even is as even as the stamps can tell: a hundred-thousandth of a percent.
            let ratios: Vec<f64> =
                ours.iter().zip(&theirs).map(|(ours, theirs)| theirs / ours.max(1e-5)).collect();
            let all = Spread::of(&ratios);
            report.verdicts.push(Verdict {
                figure: format!(
                    "J over 1 s at {mbit} Mbit/s, {} of equal burst / tactus",
                    other.name()
                ),
                measured: spread(&ratios),
                must: "5".into(),
                reached: all.map(|all| all.min >= 5.0),
                push: "-".into(),
                pushed: None,
            });
        }
    }
    let lines = Sender::ALL.map(|sender| {
        let point =
            |&mbit: &u64| Some((mbit as f64, Spread::of(&of(sender, mbit, |f| f.j1s))?.median));
        (sender.name().to_owned(), mbits.iter().filter_map(point).collect())
    });
    report.plots.push(Plot::Lines {
        title: "J over 1 s of one flow, %".into(),
        axes: ("Mbit/s".into(), "%".into()),
        lines: lines.into(),
        mark: Some(("goal".into(), 0.05)),
    });
}
