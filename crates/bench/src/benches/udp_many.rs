//! udp-many: what a datagram costs, and how late it is, with many streams at once.
//!
//! Promise: every sender gets the same title, rate and addresses, and core 0 for everything it
//! does; the receiver has core 1, a socket for each of a hundred streams, and the kernel's stamp of
//! each arrival. A datagram that the receiver itself has lost voids the run. Then the same to
//! groups without members gives the cost of sending alone: on this wire receiving is a part of
//! sending. Peers take turns; ratios are taken within a round.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;
use tactus_core::units::{BitRate, Nanos, SECOND};

use super::measurement::{self, HostInterference, NoCleanWindow};
use super::{Fixture, RECEIVER_CORE, SERVER_CORES, say};
use crate::arrivals::Trace;
use crate::cpu::CpuSnapshot;
use crate::datagrams::{Destination, Inboxes, PORT, Reading};
use crate::figures::windows::{Grid, Span};
use crate::figures::{delay_factor, jitter, lateness};
use crate::netns::Wire;
use crate::peers::{self, Server};
use crate::report::{Report, Table, Verdict, number, spread};
use crate::spread::{self, Spread};
use crate::{clock, command, interrupt, pace, priority};

/// The warm-up: nothing that is sent in this time counts.
const WARM_UP: Nanos = SECOND.times(3);
/// The warm-up with so few streams that the reads by which a new server learns its disk, some 25 s
/// after its start, would be a tenth of its cost. Channels run for days.
const WARM_UP_OF_FEW: Nanos = SECOND.times(30);
const FEW: usize = 20;
const ROUNDS: usize = 3;
const COUNTS: [usize; 4] = [20, 100, 500, 1000];
/// A process for each stream: more of them would not fit beside the receiver.
const PROCESSES_MAX: usize = 100;
/// Streams that have listeners; of more, one in so many. What many receivers do at once on one
/// machine would be the sender's loss: on a wire they are elsewhere.
const LISTENERS: usize = 100;
/// Seven transport packets.
pub(super) const PAYLOAD: f64 = 1316.0;

/// Who sends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Sender {
    /// As it is configured by itself.
    Tactus,
    /// With a tick of 100 us.
    TactusFine,
    /// By AF_XDP.
    TactusXdp,
    /// The same with a tick of 500 us.
    TactusXdpCoarse,
    /// Datagrams of 8 ms as one message: three at 4 Mbit/s.
    TactusGathered,
    /// Datagrams of 20 ms, half of what receivers of television by IP even out: seven.
    TactusPatient,
    /// Datagrams of 8 ms as one frame by a packet socket.
    TactusFrames,
    /// RTP in frames of 8 ms.
    TactusRtp,
    /// The same with the smallest burst that holds three datagrams of 4 Mbit/s, and a turn each
    /// half a millisecond.
    TactusRtpTight,
    /// As that, with two datagrams in each message: dearer, and with 3 ms to spare.
    TactusRtpPairs,
    /// One process that hands a quarter of a second of each stream to a class of its own of HTB.
    Htb,
    /// A thread for each stream that sleeps until each datagram's time.
    Threads,
    Multicat,
    Ffmpeg,
}

impl Sender {
    const ALL: [Self; 14] = [
        Self::Tactus,
        Self::TactusFine,
        Self::TactusXdp,
        Self::TactusXdpCoarse,
        Self::TactusGathered,
        Self::TactusPatient,
        Self::TactusFrames,
        Self::TactusRtp,
        Self::TactusRtpTight,
        Self::TactusRtpPairs,
        Self::Htb,
        Self::Threads,
        Self::Multicat,
        Self::Ffmpeg,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Tactus => "tactus",
            Self::TactusFine => "tactus (tick 100 us)",
            Self::TactusXdp => "tactus (AF_XDP)",
            Self::TactusXdpCoarse => "tactus (AF_XDP, tick 500 us)",
            Self::TactusGathered => "tactus (burst 8 ms)",
            Self::TactusPatient => "tactus (burst 20 ms)",
            Self::TactusFrames => "tactus (AF_PACKET, burst 8 ms)",
            Self::TactusRtp => "tactus (RTP, AF_PACKET, burst 8 ms)",
            Self::TactusRtpTight => "tactus (RTP, AF_PACKET, burst 7.9 ms, tick 500 us)",
            Self::TactusRtpPairs => "tactus (RTP, AF_PACKET, burst 5.3 ms, tick 500 us)",
            Self::Htb => "HTB, a class per stream",
            Self::Threads => "thread per stream",
            Self::Multicat => "multicat",
            Self::Ffmpeg => "ffmpeg -re",
        }
    }

    fn is_tactus(self) -> bool {
        !matches!(self, Self::Htb | Self::Threads | Self::Multicat | Self::Ffmpeg)
    }

    /// What stands in each datagram before the title's packets.
    fn header(self) -> u32 {
        if self.is_rtp() { 12 } else { 0 }
    }

    fn is_rtp(self) -> bool {
        matches!(self, Self::TactusRtp | Self::TactusRtpTight | Self::TactusRtpPairs)
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
    /// The same with the kernel's workers and the interrupt work outside threads, on a machine that
    /// is quiet.
    us_in_all: Option<f64>,
    /// Voluntary switches of the sending core's thread; of Tactus only.
    wake_ups: Option<f64>,
    packets_per_second: f64,
    /// Of what should have come.
    share: f64,
    /// What the receiver saw; none where nobody listens.
    measurement: Option<ReceiverFigures>,
}

#[derive(Clone, Debug, Serialize)]
struct ReceiverFigures {
    late_p50: f64,
    late_p99: f64,
    late_p999: f64,
    j1s: f64,
    j1s_p99: f64,
    /// The buffer that a receiver needs, in milliseconds of the rate; p99 over streams.
    df_p99: f64,
    /// For so many seconds without a gap: the longest stretch, which is what DF is told of.
    calm: f64,
    /// For how much of the time somebody else worked on the sender's core, in percent.
    slow: f64,
    /// DF over the longest stretch in which nobody did, if there is any, and how long that is.
    df_whole: Option<f64>,
    whole: f64,
    /// What the receiver's device had no room for, and its sockets dropped.
    dropped: u64,
}

/// One thing to measure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Case {
    rate: u64,
    streams: usize,
    /// Whether anybody listens.
    is_heard: bool,
}

type FiguresByCase = BTreeMap<(Case, Sender), Vec<Figures>>;

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "what does a datagram cost, and how late is it, with many streams at once?";
    let mut report = fixture.report("udp-many", question);
    let unheard = if fixture.options.apart {
        "leave by a device of their own that swallows them (ifb), as a network card takes away \
         what it is given."
    } else {
        "the receiver's device drops before its IP has seen them. Even that runs inside the \
         sender's time."
    };
    report.method = vec![
        format!(
            "Sender and receiver live in two network namespaces joined by a veth pair, MTU 1500; \
             the sender has core 0 for everything, the receiver core 1. On a wire of this kind \
             receiving runs inside the sender's time, so of more than a hundred streams one in so \
             many is listened to. The others go to groups of their own, which {unheard}"
        ),
        "The receiver has a socket for each stream that it hears with the kernel's stamp of each \
         arrival (SO_TIMESTAMPNS). Lateness: a_k - (t0 + k P / R) less the smallest of the same \
         stream. J over 1 s by the same stamps."
            .into(),
        "Seconds in which the host took a core for more than a millisecond do not count, and DF \
         is told of the longest stretch without one. The receiver's core is watched by a thread \
         of the highest priority; the sender's by a timer that interrupts whatever runs there \
         each 200 us, the kernel's own work too, so that nothing that a sender does passes for \
         the host."
            .into(),
        "CPU = run time of the sender's threads from the scheduler, by datagrams that came in the \
         same span. All senders send the same constant-rate title, made by ffmpeg, from memory. \
         \"With X\" adds the kernel's workers and the interrupt work outside threads, where the \
         machine is quiet enough to tell: HTB's timer runs there."
            .into(),
        "\"Heard\": a hundred streams have receivers, of which some work is a part of sending. \
         \"To nobody\": none."
            .into(),
    ];
    let all = [BitRate(4_000_000), BitRate(8_800_000)];
    let usual = if fixture.options.quick { &all[..1] } else { &all[..] };
    let rates: Vec<BitRate> = match &fixture.options.rates[..] {
        [] => usual.to_vec(),
        given => given.iter().map(|mbits| BitRate((mbits * 1e6).round() as u64)).collect(),
    };
    let counts = match &fixture.options.streams[..] {
        [] => COUNTS.to_vec(),
        given => given.to_vec(),
    };
    let mut found = FiguresByCase::new();
    for rate in rates {
        let title = title(&fixture.options.data, rate)?;
        let cases = counts.iter().flat_map(|&streams| {
            [true, false].map(|is_heard| Case { rate: rate.0, streams, is_heard })
        });
        for case in cases.collect::<Vec<_>>() {
            let fits =
                |sender: &Sender| !sender.is_process_per_stream() || case.streams <= PROCESSES_MAX;
            let senders: Vec<Sender> = Sender::ALL.into_iter().filter(fits).collect();
            let whom = if case.is_heard { "heard" } else { "to nobody" };
            let names: Vec<String> = senders
                .iter()
                .map(|sender| {
                    format!("{}, {} streams of {rate}, {whom}", sender.name(), case.streams)
                })
                .collect();
            let runs = fixture.take_turns(
                &names,
                fixture.rounds(ROUNDS),
                &mut report,
                |place, _, report| {
                    let figures = run(fixture, senders[place], &title, case)?;
                    report.runs.push(json!({
                        "name": senders[place].name(), "streams": case.streams, "rate": rate.0,
                        "is_heard": case.is_heard, "figures": &figures,
                    }));
                    Ok((senders[place], figures))
                },
            )?;
            for (sender, figures) in runs {
                found.entry((case, sender)).or_default().push(figures);
            }
        }
    }
    summarise(&found, &mut report);
    Ok(report)
}

fn run(fixture: &Fixture, sender: Sender, title: &Path, case: Case) -> Result<Figures> {
    interrupt::check()?;
    let rate = BitRate(case.rate);
    let header = sender.header();
    let lasts = fixture.seconds(20).0 / SECOND.0 + SETTLES.0 / SECOND.0;
    let room = case.listeners() * (rate.0 / 8 / PAYLOAD as u64 + 1) as usize * lasts as usize;
    let reading = Reading { header, room, ..Reading::default() };
    let open =
        || Inboxes::open(fixture.wire.receiver_side(), case.listeners(), RECEIVER_CORE, reading);
    let inboxes = case.is_heard.then(open).transpose()?;
    let _htb =
        (sender == Sender::Htb).then(|| Htb::set(fixture, rate, case.streams)).transpose()?;
    let mut server = start(fixture, sender, title, case)?;
    // Only now: whoever starts a server asks it by this wire whether it is ready.
    let _end = DeadEnd::set(&fixture.wire)?;
    let watch = case.is_heard.then(|| measurement::Watch::start(fixture)).transpose()?.flatten();
    match &inboxes {
        Some(inboxes) => inboxes.wait_until_all_have_some(&mut server)?,
        None => interrupt::sleep_until(clock::now() + BEGINS)?,
    }
    let is_few = case.streams <= FEW && !sender.is_process_per_stream();
    let from = clock::now() + if is_few { WARM_UP_OF_FEW } else { WARM_UP };
    let measured = Span { from, to: from + fixture.seconds(20) };
    interrupt::sleep_until(measured.from)?;
    let lost = fixture.wire.lost()?;
    let (before, came, switches) =
        (CpuSnapshot::take()?, fixture.wire.received()?, switches(server.process()));
    interrupt::sleep_until(measured.to)?;
    let spent = CpuSnapshot::take()?.since(&before, server.process());
    let came = (fixture.wire.received()? - came) as f64 / (PAYLOAD + f64::from(header));
    let lost = fixture.wire.lost()? - lost;
    let switches = self::switches(server.process()).zip(switches);
    server.check()?;
    let away = measurement::Watch::stop(watch, measured)?;
    drop(server);
    ensure!(came >= 1.0, "nothing came");
    let measurement =
        inboxes.map(|inboxes| what_came(inboxes, rate, measured, &away)).transpose()?;
    let measurement = measurement
        .map(|measurement| ReceiverFigures { dropped: measurement.dropped + lost, ..measurement });
    let expected = rate.0 as f64 / 8.0 / PAYLOAD * spent.wall * case.streams as f64;
    let cost = spent.cost(&fixture.idle);
    let us = |seconds: f64| seconds * 1e6 / came;
    Ok(Figures {
        us_per_packet: us(spent.tree),
        us_in_all: cost.outside.map(|outside| us(cost.tree + cost.workers + outside)),
        wake_ups: switches.map(|(after, before)| (after - before) as f64 / spent.wall),
        packets_per_second: came / spent.wall,
        share: came / expected,
        measurement,
    })
}

fn what_came(
    inboxes: Inboxes,
    rate: BitRate,
    measured: Span,
    away: &HostInterference,
) -> Result<ReceiverFigures> {
    let (traces, dropped) = inboxes.stop()?;
    let HostInterference { gaps, core } = away;
    let grid = Grid::new(measured, SECOND, gaps);
    let whole = Grid::new(measured, SECOND, &[&gaps[..], &core.shared].concat());
    let piece = |grid: &Grid| grid.largest_piece().map_or(0.0, |it| it.length().0 as f64 / 1e9);
    let j = jitter::jitter(&traces, rate, &grid).ok_or(NoCleanWindow)?;
    let df = delay_factor::per_run(&traces, rate, &grid).ok_or(NoCleanWindow)?;
    let calm: Vec<Span> = grid.kept().collect();
    let late = |trace: &Trace| -> Vec<f64> {
        calm.iter().flat_map(|&span| lateness::in_phase(trace, rate, measured, span)).collect()
    };
    let mut late: Vec<f64> = traces.iter().flat_map(late).collect();
    let mut quantile = |q| spread::quantile(&mut late, q).ok_or(NoCleanWindow);
    Ok(ReceiverFigures {
        late_p50: quantile(0.5)?,
        late_p99: quantile(0.99)?,
        late_p999: quantile(0.999)?,
        j1s: j.mean,
        j1s_p99: j.p99,
        df_p99: df.p99,
        calm: piece(&grid),
        slow: core.slow * 100.0,
        df_whole: delay_factor::per_run(&traces, rate, &whole).map(|df| df.p99),
        whole: piece(&whole),
        dropped,
    })
}

/// What a run may take besides: until all streams have begun, and the warm-up.
const SETTLES: Nanos = SECOND.times(100);
/// How long senders that nobody hears may take to begin.
const BEGINS: Nanos = SECOND.times(5);

/// How often the real-time thread of a process went to sleep; none of one that has no such thread.
fn switches(process: u32) -> Option<u64> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let of = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let count =
            status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        name.starts_with("tactus-core").then(|| count.trim().parse().ok())?
    };
    tasks.filter_map(Result::ok).filter_map(of).reduce(|left: u64, right| left + right)
}

/// HTB on the server's device with a class for each stream; gone with the value.
struct Htb<'a>(&'a Fixture);

impl<'a> Htb<'a> {
    /// Ethernet's header, IP's and UDP's, which HTB counts.
    const HEADERS: u64 = 14 + 20 + 8;

    fn set(fixture: &'a Fixture, rate: BitRate, streams: usize) -> Result<Self> {
        let wire = u128::from(rate.0) * (PAYLOAD as u128 + u128::from(Self::HEADERS));
        let wire = wire.div_ceil(PAYLOAD as u128);
        let device = fixture.wire.server_device();
        let mut lines = format!("qdisc replace dev {device} root handle 1: htb default 0\n");
        for stream in 0..streams as u16 {
            let class = pace::class_of(stream);
            lines.push_str(&format!(
                "class add dev {device} parent 1: classid 1:{class:x} htb rate {wire}bit burst \
                 1514 cburst 1514 quantum 1514\n"
            ));
        }
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("classes");
        fs::write(&file, lines)?;
        let mut tc = Command::new("tc");
        command::finish(&mut fixture.wire.on_server_side(tc.arg("-batch").arg(&file)))?;
        Ok(Self(fixture))
    }
}

impl Drop for Htb<'_> {
    fn drop(&mut self) {
        let mut tc = Command::new("tc");
        tc.args(["qdisc", "del", "dev", self.0.wire.server_device(), "root"]);
        if let Err(error) = command::finish(&mut self.0.wire.on_server_side(&tc)) {
            eprintln!("left behind: HTB: {error:#}");
        }
    }
}

/// A filter on the receiver's device that drops datagrams to groups on arrival. Dropping the value
/// removes the filter.
struct DeadEnd<'a>(&'a Wire);

impl<'a> DeadEnd<'a> {
    fn set(wire: &'a Wire) -> Result<Self> {
        let end = Self(wire);
        end.tc(&["qdisc", "add", "dev", wire.receiver_device(), "clsact"])?;
        // A classic program. Of an address on the wire that is a group's: TC_ACT_SHOT; of others:
        // TC_ACT_OK.
        let drops = ["ingress", "bpf", "da", "bytecode", "4,48 0 0 0,69 0 1 1,6 0 0 2,6 0 0 0"];
        let mut add = vec!["filter", "add", "dev", wire.receiver_device()];
        add.extend(drops);
        end.tc(&add)?;
        Ok(end)
    }

    fn tc(&self, arguments: &[&str]) -> Result<()> {
        let mut tc = Command::new("tc");
        command::finish(&mut self.0.on_receiver_side(tc.args(arguments)))?;
        Ok(())
    }
}

impl Drop for DeadEnd<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.tc(&["qdisc", "del", "dev", self.0.receiver_device(), "clsact"]) {
            eprintln!("left behind: a filter: {error:#}");
        }
    }
}

/// A title of exactly `rate`, long enough for a run; kept for the next.
pub(super) fn title(data: &Path, rate: BitRate) -> Result<PathBuf> {
    let folder = data.join("udp");
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{}.ts", rate.0));
    if path.is_file() {
        index(&path)?;
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
    index(&path)?;
    Ok(path)
}

/// Makes what multicat times a file by, unless it is there: an index of its PCRs, which ffmpeg puts
/// on this PID.
fn index(title: &Path) -> Result<()> {
    if !title.with_extension("aux").is_file() && command::exists("ingests") {
        let mut ingests = Command::new("ingests");
        command::finish(ingests.args(["-p", "256"]).arg(title))?;
    }
    Ok(())
}

impl Case {
    /// Of how many streams one has a listener; 0 for none.
    fn every(self) -> u16 {
        if self.is_heard { self.streams.div_ceil(LISTENERS) as u16 } else { 0 }
    }

    fn listeners(self) -> usize {
        match self.every() {
            0 => 0,
            every => self.streams.div_ceil(usize::from(every)),
        }
    }

    fn destination(self, wire: &Wire) -> Destination {
        Destination { to: (wire.receiver_address(), PORT).into(), every: self.every() }
    }
}

fn start(fixture: &Fixture, sender: Sender, title: &Path, case: Case) -> Result<Server> {
    let folder = tempfile::Builder::new().prefix("tactus-bench-udp-").tempdir()?;
    let rate = case.rate.to_string();
    if let Some(settings) = Settings::of(sender) {
        let destination = case.destination(&fixture.wire);
        let load = Load {
            binary: &fixture.tactus,
            address: peers::address(&fixture.wire),
            title,
            rate: BitRate(case.rate),
            to: (0..case.streams as u16).map(|stream| destination.of(stream)).collect(),
        };
        return tactus(&fixture.wire, folder, &load, settings);
    }
    let own = |task: &str| -> Result<Command> {
        let own = std::env::current_exe()?;
        let mut command = priority::on_cores(SERVER_CORES, None, &own.to_string_lossy());
        let Destination { to, every } = case.destination(&fixture.wire);
        command.args([task, "--to", &to.to_string(), "--every", &every.to_string()]);
        command.args(["--streams", &case.streams.to_string(), "--rate", &rate]);
        Ok(command)
    };
    let each = match sender {
        Sender::Threads => {
            return Server::start_silent(&own("pace-threads")?, folder, &fixture.wire);
        }
        Sender::Htb => return Server::start_silent(&own("pace-bursts")?, folder, &fixture.wire),
        Sender::Multicat => "multicat -U TITLE TO >/dev/null 2>&1".to_owned(),
        _ => format!(
            "ffmpeg -v quiet -nostdin -re -stream_loop -1 -i TITLE -c copy -muxrate {rate} -f \
             mpegts 'udp://TO?pkt_size=1316'"
        ),
    };
    let program = if sender == Sender::Multicat { "multicat" } else { "ffmpeg" };
    ensure!(command::exists(program), "{program} is missing; install its package");
    // They end with the script, whatever becomes of it.
    let mut script = String::from("trap 'exit 0' TERM\n");
    let title = format!("'{}'", title.display());
    for stream in 0..case.streams {
        let to = case.destination(&fixture.wire).of(stream as u16);
        let one = each.replace("TITLE", &title).replace("TO", &to.to_string());
        script.push_str(&format!("setpriv --pdeathsig KILL {one} &\n"));
    }
    script.push_str("wait\n");
    let file = folder.path().join("streams.sh");
    fs::write(&file, script)?;
    let mut command = priority::on_cores(SERVER_CORES, None, "sh");
    command.arg(file);
    Server::start_silent(&command, folder, &fixture.wire)
}

/// What makes one Tactus another than the next.
struct Settings {
    /// What stands in `[packets]`.
    packets: &'static str,
    burst: &'static str,
    scheme: &'static str,
}

impl Settings {
    fn of(sender: Sender) -> Option<Self> {
        let (packets, burst) = match sender {
            Sender::Tactus => ("", "0 ms"),
            Sender::TactusFine => ("tick = \"100 us\"", "0 ms"),
            Sender::TactusXdp => ("back_end = \"af_xdp\"", "0 ms"),
            Sender::TactusXdpCoarse => ("back_end = \"af_xdp\"\ntick = \"500 us\"", "0 ms"),
            Sender::TactusGathered => ("", "8 ms"),
            Sender::TactusFrames | Sender::TactusRtp => ("back_end = \"af_packet\"", "8 ms"),
            Sender::TactusRtpTight => ("back_end = \"af_packet\"\ntick = \"500 us\"", "7.9 ms"),
            Sender::TactusRtpPairs => ("back_end = \"af_packet\"\ntick = \"500 us\"", "5.3 ms"),
            Sender::TactusPatient => ("", "20 ms"),
            Sender::Htb | Sender::Threads | Sender::Multicat | Sender::Ffmpeg => return None,
        };
        let scheme = if sender.is_rtp() { "rtp" } else { "udp" };
        Some(Self { packets, burst, scheme })
    }
}

/// One title as many streams.
pub(super) struct Load<'a> {
    pub(super) binary: &'a Path,
    /// Where the server listens.
    pub(super) address: SocketAddrV4,
    pub(super) title: &'a Path,
    pub(super) rate: BitRate,
    /// Where each stream goes.
    pub(super) to: Vec<SocketAddr>,
}

fn tactus(
    wire: &Wire,
    folder: tempfile::TempDir,
    load: &Load<'_>,
    settings: Settings,
) -> Result<Server> {
    let Settings { packets, burst, scheme } = settings;
    let Load { binary, address, title, rate, to } = load;
    let root = title.parent().context("a title lies in a directory")?;
    let name = title.file_name().context("a title has a name")?.to_string_lossy();
    let mut text = format!(
        "[http]\naddress = \"{address}\"\n[admin]\naddress = \"off\"\n\
         [link]\nrate = \"100 Gbit/s\"\n[cpu]\nbudget = \"95 %\"\n\
         [memory]\narena = \"2 GiB\"\nstreams_max = {}\n[packets]\n{packets}\n\
         [cores]\n\
         placement = [{{ cpu = 0, servers = [\"disk.0\", \"block\", \"delivery\", \"link\", \
         \"packets\"] }}]\n\
         [[volume]]\npath = \"{}\"\nmount = \"/\"\nsendfile = \"off\"\n",
        // A title that is planned anew has two places for a while.
        to.len() + 256,
        root.display()
    );
    for (stream, to) in to.iter().enumerate() {
        text.push_str(&format!(
            "[[channel]]\nname = \"{stream}\"\ntitle = \"/{name}\"\nto = \"{scheme}://{to}\"\n\
             rate = \"{} bit/s\"\nburst = \"{burst}\"\n",
            rate.0
        ));
    }
    let file = folder.path().join("tactus.toml");
    fs::write(&file, text)?;
    let mut command = priority::on_cores(SERVER_CORES, None, &binary.to_string_lossy());
    command.arg("serve").arg("--config").arg(&file);
    Server::start(&command, folder, wire, *address)
}

/// Starts a server of this load, each stream with a burst of 8 ms: the sender of this bench whose
/// own code is the largest part of a datagram's cost.
pub(super) fn start_bursts(wire: &Wire, load: &Load<'_>) -> Result<Server> {
    let settings = Settings::of(Sender::TactusGathered).context("a sender of its own")?;
    let folder = tempfile::Builder::new().prefix("tactus-bench-udp-").tempdir()?;
    tactus(wire, folder, load, settings)
}

fn summarise(found: &FiguresByCase, report: &mut Report) {
    let costs =
        ["sender", "streams", "rate", "heard", "CPU us/packet", "with X", "wake-ups/s", "share"];
    let mut costs = Table::new("what a datagram costs", &costs);
    let quality = [
        "sender",
        "streams",
        "rate",
        "late p50, ms",
        "late p99, ms",
        "late p99.9, ms",
        "J 1 s, %",
        "J 1 s p99, %",
        "DF p99, ms",
        "in calm, s",
        "core shared, %",
        "DF p99 on a whole core, ms",
        "of a whole core, s",
        "lost by the receiver",
    ];
    let mut quality = Table::new("how even they come", &quality);
    for ((case, sender), runs) in found {
        let rate = BitRate(case.rate).to_string();
        let values = |value: &dyn Fn(&Figures) -> Option<f64>| {
            spread(&runs.iter().filter_map(value).collect::<Vec<_>>())
        };
        costs.row(vec![
            sender.name().into(),
            case.streams.to_string(),
            rate.clone(),
            if case.is_heard { "yes" } else { "no" }.into(),
            values(&|f| Some(f.us_per_packet)),
            values(&|f| f.us_in_all),
            values(&|f| f.wake_ups),
            values(&|f| Some(f.share)),
        ]);
        if case.is_heard {
            let measurement =
                |value: fn(&ReceiverFigures) -> f64| values(&|f| f.measurement.as_ref().map(value));
            quality.row(vec![
                sender.name().into(),
                case.streams.to_string(),
                rate,
                measurement(|h| h.late_p50),
                measurement(|h| h.late_p99),
                measurement(|h| h.late_p999),
                measurement(|h| h.j1s),
                measurement(|h| h.j1s_p99),
                measurement(|h| h.df_p99),
                measurement(|h| h.calm),
                measurement(|h| h.slow),
                values(&|f| f.measurement.as_ref()?.df_whole),
                measurement(|h| h.whole),
                measurement(|h| h.dropped as f64),
            ]);
        }
    }
    report.tables.extend([costs, quality]);
    for (is_heard, whom) in [(false, "to nobody"), (true, "heard")] {
        for ours in [
            Sender::Tactus,
            Sender::TactusGathered,
            Sender::TactusPatient,
            Sender::TactusFrames,
            Sender::TactusXdp,
            Sender::TactusXdpCoarse,
        ] {
            judge_cost(found, report, ours, is_heard, whom);
        }
    }
    judge_evenness(found, report);
}

/// Ratios of one round: `theirs` of one number of streams by `ours` of another.
fn ratios(
    found: &FiguresByCase,
    ours: (Sender, usize),
    theirs: (Sender, usize),
    is_heard: bool,
    value: &dyn Fn(&Figures) -> Option<f64>,
) -> Vec<f64> {
    let of = |(sender, streams)| {
        let case = Case { rate: 4_000_000, streams, is_heard };
        found.get(&(case, sender)).into_iter().flatten()
    };
    let pairs = of(ours).zip(of(theirs));
    pairs.filter_map(|(ours, theirs)| Some(value(theirs)? / value(ours)?)).collect()
}

/// A goal counts as reached when the whole range of the rounds lies on its right side.
fn verdict(figure: String, ratios: &[f64], must: f64, push: f64) -> Verdict {
    let all = Spread::of(ratios);
    Verdict {
        figure,
        measured: spread(ratios),
        must: number(must),
        reached: all.map(|all| all.min >= must),
        push: number(push),
        pushed: all.map(|all| all.min >= push),
    }
}

fn judge_cost(
    found: &FiguresByCase,
    report: &mut Report,
    ours: Sender,
    is_heard: bool,
    whom: &str,
) {
    let cpu = |f: &Figures| Some(f.us_per_packet);
    for (streams, theirs, their_streams, must, push) in [
        (20, Sender::Multicat, 20, 3.0, 5.0),
        (100, Sender::Multicat, 100, 5.0, 10.0),
        (500, Sender::Multicat, 100, 6.0, 10.0),
        (100, Sender::Ffmpeg, 100, 10.0, 15.0),
        (500, Sender::Ffmpeg, 100, 10.0, 15.0),
    ] {
        let found = ratios(found, (ours, streams), (theirs, their_streams), is_heard, &cpu);
        let (ours, theirs) = (ours.name(), theirs.name());
        let figure = format!(
            "CPU per packet, {theirs} at {their_streams} / {ours} at {streams} streams, {whom}"
        );
        report.verdicts.push(verdict(figure, &found, must, push));
    }
    let found_at = |streams: usize| ratios(found, (ours, 1000), (ours, streams), is_heard, &cpu);
    let figure = format!("cost per packet at 100 / at 1,000 streams, {}, {whom}", ours.name());
    report.verdicts.push(verdict(figure, &found_at(100), 1.0 / 0.9, 1.0 / 0.6));
    let with_x = |f: &Figures| f.us_in_all;
    let htb = ratios(found, (ours, 1000), (Sender::Htb, 1000), is_heard, &with_x);
    let figure = format!("total CPU, HTB with 1,000 classes / {}, {whom}", ours.name());
    report.verdicts.push(verdict(figure, &htb, 2.0, 4.0));
}

fn judge_evenness(found: &FiguresByCase, report: &mut Report) {
    let late = |f: &Figures| f.measurement.as_ref().map(|measurement| measurement.late_p99);
    for ours in [Sender::Tactus, Sender::TactusFine] {
        for (streams, theirs, must, push) in [
            (100, Sender::Multicat, 5.0, 15.0),
            (100, Sender::Ffmpeg, 500.0, 2000.0),
            (1000, Sender::Htb, 20.0, 100.0),
        ] {
            let found = ratios(found, (ours, streams), (theirs, streams), true, &late);
            let (ours, theirs) = (ours.name(), theirs.name());
            let figure = format!("lateness p99, {theirs} / {ours}, {streams} streams");
            report.verdicts.push(verdict(figure, &found, must, push));
        }
    }
    let most = found.iter().filter(|((case, sender), runs)| {
        let is_good = |figures: &Figures| {
            let measurement = figures.measurement.as_ref();
            measurement
                .is_some_and(|measurement| measurement.df_p99 <= DF_MAX && figures.share > 0.995)
        };
        case.rate == 4_000_000 && case.is_heard && sender.is_tactus() && runs.iter().all(is_good)
    });
    let most = most.map(|((case, sender), _)| (case.streams, sender)).max();
    report.verdicts.push(Verdict {
        figure: "streams of 4 Mbit/s by one core, DF p99 of 10 ms or less, none missing".into(),
        measured: most
            .map_or("-".into(), |(most, by)| format!("{most} of those tried, {}", by.name())),
        must: "1500".into(),
        reached: most.map(|(most, _)| most >= 1500),
        push: "2500".into(),
        pushed: most.map(|(most, _)| most >= 2500),
    });
}

/// The delay factor that a stream may have, in milliseconds.
const DF_MAX: f64 = 10.0;
