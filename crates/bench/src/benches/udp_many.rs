//! udp-many: what a datagram costs, and how late it is, with many streams at once.
//!
//! Promise: every sender gets the same title, rate and addresses, and core 0 for everything it does; the
//! receiver has core 1, a socket for each stream, and the kernel's stamp of each arrival. A datagram that the receiver
//! itself has lost voids the run. Peers take turns; ratios are taken within a round.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;
use tactus_core::units::{BitRate, Nanos, SECOND};

use super::{RECEIVER_CORE, SERVER_CORES, Stage, say};
use crate::arrivals::Trace;
use crate::cpu::Look;
use crate::datagrams::{Inboxes, PORT};
use crate::figures::jitter;
use crate::figures::lateness;
use crate::figures::windows::{Grid, Span};
use crate::gaps::Detector;
use crate::peers::Server;
use crate::report::{Report, Table, Verdict, number, spread};
use crate::spread::{self, Spread};
use crate::{clock, command, interrupt, priority};

/// What is dropped at the beginning of a run.
const WARM_UP: Nanos = SECOND.times(3);
const ROUNDS: usize = 3;
const COUNTS: [usize; 3] = [20, 100, 500];
/// A process for each stream: more of them would not fit beside the receiver.
const PROCESSES_MAX: usize = 100;
/// Seven transport packets.
const PAYLOAD: f64 = 1316.0;

/// Who sends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Sender {
    Tactus,
    /// Datagrams of 4 ms as one message.
    TactusGathered,
    /// A thread for each stream that sleeps until each datagram's time.
    Threads,
    Multicat,
    Ffmpeg,
}

impl Sender {
    const ALL: [Self; 5] =
        [Self::Tactus, Self::TactusGathered, Self::Threads, Self::Multicat, Self::Ffmpeg];

    fn name(self) -> &'static str {
        match self {
            Self::Tactus => "tactus",
            Self::TactusGathered => "tactus (burst 4 ms)",
            Self::Threads => "thread per stream",
            Self::Multicat => "multicat",
            Self::Ffmpeg => "ffmpeg -re",
        }
    }

    fn is_process_per_stream(self) -> bool {
        matches!(self, Self::Multicat | Self::Ffmpeg)
    }
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    /// CPU microseconds for each datagram that came.
    us_per_packet: f64,
    late_p50: f64,
    late_p99: f64,
    late_p999: f64,
    j1s: f64,
    j1s_p99: f64,
    packets_per_second: f64,
    /// Of what should have come.
    share: f64,
    /// What the receiver's sockets dropped.
    dropped: u64,
}

/// Runs it.
pub(super) fn bench(stage: &Stage) -> Result<Report> {
    let question = "what does a datagram cost, and how late is it, with many streams at once?";
    let mut report = stage.report("udp-many", question);
    report.method = vec![
        "Sender and receiver live in two network namespaces joined by a veth pair, MTU 1500; the sender has \
         core 0 for everything, the receiver core 1. Receiving runs inside the sender's time, for every sender alike."
            .into(),
        "The receiver has a socket for each stream with the kernel's stamp of each arrival (SO_TIMESTAMPNS). Lateness: \
         a_k - (t0 + k P / R) less the smallest of the same stream. J over 1 s by the same stamps."
            .into(),
        "CPU = run time of the sender's threads from the scheduler, by datagrams that came in the same span. All \
         senders send the same constant-rate title, made by ffmpeg, from memory."
            .into(),
    ];
    let all = [BitRate(4_000_000), BitRate(8_800_000)];
    let rates = if stage.options.quick { &all[..1] } else { &all[..] };
    let counts = match &stage.options.streams[..] {
        [] => COUNTS.to_vec(),
        given => given.to_vec(),
    };
    let mut found: BTreeMap<(u64, usize, Sender), Vec<Figures>> = BTreeMap::new();
    for &rate in rates {
        let title = title(stage, rate)?;
        for &streams in &counts {
            let fits =
                |sender: &Sender| !sender.is_process_per_stream() || streams <= PROCESSES_MAX;
            let senders: Vec<Sender> = Sender::ALL.into_iter().filter(fits).collect();
            let names: Vec<String> = senders
                .iter()
                .map(|sender| format!("{}, {streams} streams of {rate}", sender.name()))
                .collect();
            let runs = stage.take_turns(&names, stage.rounds(ROUNDS), &mut report, |place, _, report| {
                let figures = run(stage, senders[place], &title, rate, streams)?;
                report.runs.push(json!({
                    "name": senders[place].name(), "streams": streams, "rate": rate.0, "figures": &figures,
                }));
                Ok((senders[place], figures))
            })?;
            for (sender, figures) in runs {
                found.entry((rate.0, streams, sender)).or_default().push(figures);
            }
        }
    }
    summarise(&found, &mut report);
    Ok(report)
}

fn run(
    stage: &Stage,
    sender: Sender,
    title: &Path,
    rate: BitRate,
    streams: usize,
) -> Result<Figures> {
    interrupt::check()?;
    let inboxes = Inboxes::open(stage.wire.receiver_side(), streams, RECEIVER_CORE)?;
    let mut server = start(stage, sender, title, rate, streams)?;
    let detector = Detector::start(RECEIVER_CORE)?;
    inboxes.wait_until_all_have_some(&mut server)?;
    let from = clock::now() + WARM_UP;
    let measured = Span { from, to: from + stage.seconds(20) };
    interrupt::sleep_until(measured.from)?;
    let before = Look::take()?;
    interrupt::sleep_until(measured.to)?;
    let spent = Look::take()?.since(&before, server.process());
    server.check()?;
    let gaps = match stage.options.accept_noise {
        true => detector.stop().map(|_| vec![])?,
        false => detector.stop()?,
    };
    drop(server);
    let (traces, dropped) = inboxes.stop()?;
    let packets: usize =
        traces.iter().map(|trace| trace.between(measured.from, measured.to).len()).sum();
    ensure!(packets > 0, "nothing came");
    let lack = "no window without a gap";
    let grid = Grid::new(measured, SECOND, &gaps);
    let j = jitter::jitter(&traces, rate, &grid).context(lack)?;
    let calm: Vec<Span> = grid.kept().collect();
    let late = |trace: &Trace| -> Vec<f64> {
        calm.iter().flat_map(|&span| lateness::in_phase(trace, rate, measured, span)).collect()
    };
    let mut late: Vec<f64> = traces.iter().flat_map(late).collect();
    let mut quantile = |q| spread::quantile(&mut late, q).context(lack);
    let expected = rate.0 as f64 / 8.0 / PAYLOAD * spent.wall * streams as f64;
    Ok(Figures {
        us_per_packet: spent.tree * 1e6 / packets as f64,
        late_p50: quantile(0.5)?,
        late_p99: quantile(0.99)?,
        late_p999: quantile(0.999)?,
        j1s: j.mean,
        j1s_p99: j.p99,
        packets_per_second: packets as f64 / spent.wall,
        share: packets as f64 / expected,
        dropped,
    })
}

/// A title of exactly `rate`, long enough for a run; kept for the next.
fn title(stage: &Stage, rate: BitRate) -> Result<PathBuf> {
    let folder = stage.options.data.join("udp");
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{}.ts", rate.0));
    if path.is_file() {
        return Ok(path);
    }
    say(&format!("making a title of {rate}"));
    let part = path.with_extension("part.ts");
    let (video, mux) = ((rate.0 / 2).to_string(), rate.0.to_string());
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-v", "error", "-y", "-f", "lavfi", "-i", "testsrc2=size=352x288:rate=25"]);
    ffmpeg.args(["-t", "90", "-c:v", "mpeg2video", "-b:v", &video, "-maxrate", &video]);
    ffmpeg.args(["-bufsize", "1M", "-f", "mpegts", "-muxrate", &mux]).arg(&part);
    command::finish(&mut ffmpeg)?;
    fs::rename(&part, &path)?;
    // What multicat times a file by: an index of its PCRs, which ffmpeg puts on this PID.
    if command::exists("ingests") {
        let mut ingests = Command::new("ingests");
        command::finish(ingests.args(["-p", "256"]).arg(&path))?;
    }
    Ok(path)
}

fn start(
    stage: &Stage,
    sender: Sender,
    title: &Path,
    rate: BitRate,
    streams: usize,
) -> Result<Server> {
    let folder = tempfile::Builder::new().prefix("tactus-bench-udp-").tempdir()?;
    let to = stage.wire.receiver_address();
    let script = |each: &str| {
        let last = usize::from(PORT) + streams - 1;
        let title = title.display();
        let each = each.replace("TITLE", &format!("'{title}'"));
        // They end with the script, whatever becomes of it.
        format!(
            "trap 'exit 0' TERM\n\
             for port in $(seq {PORT} {last}); do setpriv --pdeathsig KILL {each} & done\nwait\n"
        )
    };
    let each = match sender {
        Sender::Tactus => return tactus(stage, folder, title, rate, streams, "0 ms"),
        Sender::TactusGathered => return tactus(stage, folder, title, rate, streams, "4 ms"),
        Sender::Threads => {
            let own = std::env::current_exe()?;
            let mut command = priority::on_cores(SERVER_CORES, None, &own.to_string_lossy());
            command.arg("pace-threads").arg("--to").arg(format!("{to}:{PORT}"));
            command.args(["--streams", &streams.to_string(), "--rate", &rate.0.to_string()]);
            return Server::start_silent(&command, folder, &stage.wire);
        }
        Sender::Multicat => format!("multicat -U TITLE {to}:$port >/dev/null 2>&1"),
        Sender::Ffmpeg => format!(
            "ffmpeg -v quiet -nostdin -re -stream_loop -1 -i TITLE -c copy -muxrate {} -f mpegts \
             'udp://{to}:'$port'?pkt_size=1316'",
            rate.0
        ),
    };
    let program = if sender == Sender::Multicat { "multicat" } else { "ffmpeg" };
    ensure!(command::exists(program), "{program} is missing; install its package");
    let file = folder.path().join("streams.sh");
    fs::write(&file, script(&each))?;
    let mut command = priority::on_cores(SERVER_CORES, None, "sh");
    command.arg(file);
    Server::start_silent(&command, folder, &stage.wire)
}

fn tactus(
    stage: &Stage,
    folder: tempfile::TempDir,
    title: &Path,
    rate: BitRate,
    streams: usize,
    burst: &str,
) -> Result<Server> {
    let root = title.parent().context("a title lies in a directory")?;
    let name = title.file_name().context("a title has a name")?.to_string_lossy();
    let to = stage.wire.receiver_address();
    let address = crate::peers::address(&stage.wire);
    let mut text = format!(
        "[http]\naddress = \"{address}\"\n[admin]\naddress = \"off\"\n\
         [link]\nrate = \"100 Gbit/s\"\n[cpu]\nbudget = \"95 %\"\n[memory]\narena = \"1 GiB\"\n\
         [cores]\nplacement = [{{ cpu = 0, servers = [\"disk.0\", \"block\", \"delivery\", \"link\", \"packets\"] }}]\n\
         [[volume]]\npath = \"{}\"\nmount = \"/\"\nsendfile = \"off\"\n",
        root.display()
    );
    for stream in 0..streams {
        let port = usize::from(PORT) + stream;
        text.push_str(&format!(
            "[[channel]]\nname = \"{stream}\"\ntitle = \"/{name}\"\nto = \"udp://{to}:{port}\"\n\
             rate = \"{} bit/s\"\nburst = \"{burst}\"\n",
            rate.0
        ));
    }
    let file = folder.path().join("tactus.toml");
    fs::write(&file, text)?;
    let binary = stage.tactus.to_string_lossy();
    let mut command = priority::on_cores(SERVER_CORES, None, &binary);
    command.arg("serve").arg("--config").arg(&file);
    Server::start(&command, folder, &stage.wire, address)
}

fn summarise(found: &BTreeMap<(u64, usize, Sender), Vec<Figures>>, report: &mut Report) {
    let head = [
        "sender",
        "streams",
        "rate",
        "CPU us/packet",
        "late p50, ms",
        "late p99, ms",
        "late p99.9, ms",
        "J 1 s, %",
        "J 1 s p99, %",
        "share",
        "lost by the receiver",
    ];
    let mut table = Table::new("senders", &head);
    for ((rate, streams, sender), runs) in found {
        let values =
            |value: fn(&Figures) -> f64| spread(&runs.iter().map(value).collect::<Vec<_>>());
        table.row(vec![
            sender.name().into(),
            streams.to_string(),
            BitRate(*rate).to_string(),
            values(|f| f.us_per_packet),
            values(|f| f.late_p50),
            values(|f| f.late_p99),
            values(|f| f.late_p999),
            values(|f| f.j1s),
            values(|f| f.j1s_p99),
            values(|f| f.share),
            values(|f| f.dropped as f64),
        ]);
    }
    report.tables.push(table);
    let mut judge = |figure: &str, ratio: Option<f64>, must: f64, push: f64| {
        report.verdicts.push(Verdict {
            figure: figure.into(),
            measured: ratio.map_or("-".into(), number),
            must: number(must),
            reached: ratio.map(|ratio| ratio >= must),
            push: number(push),
            pushed: ratio.map(|ratio| ratio >= push),
        });
    };
    let ratio = |streams, other: Sender, at: usize, value: fn(&Figures) -> f64| {
        let of = |sender, streams| found.get(&(4_000_000, streams, sender));
        let rounds = of(Sender::Tactus, streams)?.iter().zip(of(other, at)?);
        let ratios: Vec<f64> = rounds.map(|(ours, theirs)| value(theirs) / value(ours)).collect();
        Some(Spread::of(&ratios)?.median)
    };
    let cpu: fn(&Figures) -> f64 = |f| f.us_per_packet;
    let late: fn(&Figures) -> f64 = |f| f.late_p99;
    judge(
        "CPU per packet, multicat / tactus, 100 streams",
        ratio(100, Sender::Multicat, 100, cpu),
        4.0,
        10.0,
    );
    judge(
        "CPU per packet, multicat at 100 / tactus at 500 streams",
        ratio(500, Sender::Multicat, 100, cpu),
        6.0,
        10.0,
    );
    judge(
        "CPU per packet, ffmpeg -re / tactus, 100 streams",
        ratio(100, Sender::Ffmpeg, 100, cpu),
        10.0,
        15.0,
    );
    judge(
        "lateness p99, multicat / tactus, 100 streams",
        ratio(100, Sender::Multicat, 100, late),
        5.0,
        15.0,
    );
    judge(
        "lateness p99, ffmpeg -re / tactus, 100 streams",
        ratio(100, Sender::Ffmpeg, 100, late),
        500.0,
        2000.0,
    );
}
