//! The benches, and the stage on which each of them plays.
//!
//! Promise: a bench interleaves its peers (A B A B), repeats a round in which the machine stood
//! still, and compares only values of one round. It publishes one report whatever came out.

mod links;
mod local_server;
mod memory_ballast;

mod admission;
mod aes67;
mod against;
mod balance;
mod gap_frames;
mod hdd_capacity;
mod hog;
mod http_cold;
mod http_hot;
mod measurement;
mod memory;
mod migrate;
mod mount;
mod pace_share;
mod pace_sweep;
mod placement;
mod price;
mod proxy_crowd;
mod recordings;
mod rtsp_crowd;
mod rtsp_many;
mod seeks;
mod server_places;
mod small_acks;
mod stages;
mod stretches;
mod udp_many;
mod uploads;
mod vbr;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use serde_json::json;
use tactus_core::units::{BitRate, Bytes, Nanos, SECOND};

use measurement::NoCleanWindow;
use memory_ballast::{FreeMemory, MemoryBallast};

use crate::cpu::CpuUsage;
use crate::disk::{EmulatedDisk, Profile, Shape};
use crate::floors;
use crate::gaps::Looks;
use crate::interrupt;
use crate::netns::{CONGESTION_CONTROL, NetworkPath, Wire};
use crate::peers::{Peer, measure_volume};
use crate::read_ahead::ReadAhead;
use crate::report::{Floor, Report};
use crate::run::{self, Extra, Figures, Outcome, Scene};
use crate::titles::Titles;

/// A bench by name.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Bench {
    /// CPU per byte and per datagram of one server binary against another, in turns.
    Against(against::Options),
    /// The physical limits of this machine.
    Limits(Options),
    /// 200 cold streams of 8.8 Mbit/s: evenness and CPU per byte against nginx.
    HttpCold(Options),
    /// Cold and hot streams at the server's defaults: CPU per byte against nginx, by path and
    /// read-ahead.
    Price(Options),
    /// Hot streams of 4 Mbit/s: how many one core carries at DF p99 of 70 ms.
    HttpHot(Options),
    /// Streams of 8.8 Mbit/s that an emulated 7200 rpm disk holds without an underrun.
    HddCapacity(Options),
    /// A full server and 1,000 requests more: how fast it refuses, and who notices.
    Admission(Options),
    /// 200 streams and a CPU hog on the control side's core.
    Hog(Options),
    /// 200 streams beside four local programs in tight loops and one that writes rubbish.
    LocalHog(Options),
    /// 200 streams while the servers of the engine move between two cores: pauses, and what the
    /// streams notice.
    Migrate(Options),
    /// Streams that double, grow past what one core carries, and go away again: how soon servers of
    /// the engine have moved to the other core and back, what the streams notice, and how good the
    /// place is beside those by hand.
    Balance(Options),
    /// Loads of Bonnie and PostMark by local programs, with the servers of the engine in each
    /// distribution over two cores, beside the file system of the kernel.
    Placement(placement::Options),
    /// A loaded server under a memory limit.
    Memory(Options),
    /// Deliveries from an emulated 7200 rpm disk while clients upload as fast as they are let.
    Uploads(Options),
    /// Titles of a variable rate: how long players stand still, and how many viewers a link admits
    /// against a reservation at each title's peak.
    Vbr(Options),
    /// As many live inputs as are admitted beside deliveries from an emulated 7200 rpm disk, and
    /// greedy uploads.
    Recordings(Options),
    /// A full server and 100 uploads of 64 KiB a second, each of them acknowledged.
    SmallAcks(Options),
    /// 20 to 1,000 streams of datagrams: CPU per packet and lateness against multicat, ffmpeg,
    /// threads and HTB.
    UdpMany(Options),
    /// 200 viewers and 20 attackers behind one nginx. Fails when a viewer is refused or a stream is
    /// late.
    ProxyCrowd(Options),
    /// 2,000 RTSP clients that seek and pause at random while uploads come in.
    RtspCrowd(Options),
    /// 100 and 500 RTSP readers of 4 Mbit/s: CPU and memory against MediaMTX.
    RtspMany(Options),
    /// mpv, VLC and Chromium seek on a full server: refusals, time to data and to the picture,
    /// beside nginx.
    Seeks(seeks::Options),
    /// What a request of a local program costs, by size, beside a server on a Unix socket.
    Stages(stages::Options),
    /// The mounted library beside the file system below it and beside the local client.
    Mount(mount::Options),
    /// One flow of 100 Mbit/s to 10 Gbit/s: evenness against HTB and TBF.
    PaceSweep(Options),
    /// Two outputs of sound in packets of a millisecond beside CPU hogs: lateness, and how far they
    /// are apart.
    Aes67(Options),
    /// Flows that want more than the link carries, and join one after the other: the error of each
    /// share.
    PaceShare(Options),
    /// Streams of 8.8 Mbit/s by gap frames, ticks and sleeping threads: how even they leave a
    /// limited wire.
    GapFrames(Options),
}

impl Bench {
    /// Whether it uses emulated disks. Their daemon copies into the page cache, so such a bench
    /// holds memory ballast. The host itself writes what the machine's own disk reads.
    fn has_emulated_disks(&self) -> bool {
        use Bench::{HddCapacity, Recordings, SmallAcks, Uploads};
        matches!(self, HddCapacity(_) | Recordings(_) | SmallAcks(_) | Uploads(_))
    }

    /// How often the gap detector looks: seldom where the CPU of a server is judged that shares the
    /// receiver's core.
    fn looks_for_gaps(&self) -> Looks {
        match self {
            Self::Price(_) => Looks::SELDOM,
            _ => Looks::OFTEN,
        }
    }
}

/// A disk that benches of flash run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum FlashDisk {
    /// The machine's own.
    Own,
    /// An emulated SATA SSD.
    Sata,
    /// An emulated NVMe SSD.
    Nvme,
}

/// What the command line says about a run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Rounds of each peer; a claim of 1.2x needs 5, one of 1.5x needs 3.
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Seconds that are measured in each run.
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Try the bench out: few rounds, short runs, no result.
    #[arg(long)]
    pub quick: bool,
    /// Count runs in which the machine stood still too: for trying a bench out on a busy machine.
    #[arg(long)]
    pub accept_noise: bool,
    /// The numbers of streams of a sweep, as in 1000,2000.
    #[arg(long, value_delimiter = ',')]
    pub streams: Vec<usize>,
    /// The rates of a sweep, in Mbit/s, as in 4,8.8.
    #[arg(long, value_delimiter = ',')]
    pub rates: Vec<f64>,
    /// Of `pace-sweep`: so many programs that never rest beside the server, on its core, at
    /// ordinary priority.
    #[arg(long, default_value_t = 0)]
    pub beside: usize,
    /// Of `http-hot`: so many link servers, each on a core of its own, against one.
    #[arg(long, default_value_t = 1)]
    pub links: usize,
    /// Of `udp-many`: datagrams without a receiver leave by a device that drops them. On the wire,
    /// the receiver's work would run in the sender's time.
    #[arg(long)]
    pub apart: bool,
    /// Only the peers whose name contains one of these, as in "62.5;nginx (sendfile)".
    #[arg(long, value_delimiter = ';')]
    pub only: Vec<String>,
    /// Only these disks, of a bench that runs on several.
    #[arg(long, value_delimiter = ',')]
    pub disks: Vec<FlashDisk>,
    /// The server to measure; by default the binary `tactus` beside this one.
    #[arg(long)]
    pub tactus: Option<PathBuf>,
    /// Of `rtsp-many`: the binary of MediaMTX; `cargo xtask bench rtsp-many` builds it there.
    #[arg(long, default_value = "target/tools/mediamtx/mediamtx")]
    pub mediamtx: PathBuf,
    /// Where titles are laid down; they are kept for the next run.
    #[arg(long, default_value = "target/bench/data")]
    pub data: PathBuf,
    /// The read-ahead of the machine's own disk in KiB, for every server alike.
    #[arg(long, default_value_t = 512)]
    pub read_ahead: u64,
    /// On a virtual machine that gives free memory to its host: the GiB that stay free while the
    /// bench holds the rest, or `all`. Benches with emulated disks leave 5 unless this is given.
    #[arg(long, value_name = "GIB")]
    pub free_memory: Option<FreeMemory>,
    /// What lies between server and receiver: a veth pair of this MTU, or the loopback.
    #[arg(long, value_enum, default_value_t)]
    pub path: NetworkPath,
    /// Where reports are written.
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
}

/// How often a round is repeated because the machine stood still.
const REPEATS: usize = 2;
/// How a report draws one stream.
const SAMPLE_WINDOW: Nanos = Nanos::from_millis(50);
const SAMPLE_LENGTH: Nanos = SECOND.times(5);
/// Where emulated disks are mounted.
const MOUNTS: &str = "/run/tactus-bench-mounts";
/// The core of the servers, and that of the receiver.
const SERVER_CORES: &str = "0";
/// The number of [`SERVER_CORES`].
const SERVER_CORE: usize = 0;
const RECEIVER_CORE: usize = 1;
/// What every player gathers before it starts: nginx's bursts of a second must fit.
const START_UP: Nanos = SECOND.times(2);

/// Runs `bench`.
pub fn run_bench(bench: Bench) -> Result<()> {
    let must_hold = matches!(bench, Bench::ProxyCrowd(_));
    let is_emulated = bench.has_emulated_disks();
    let looks = bench.looks_for_gaps();
    let (options, bench): (_, fn(&Fixture) -> Result<Report>) = match bench {
        Bench::Against(options) => return against::run(options),
        Bench::Seeks(options) => return seeks::run(&options),
        Bench::Stages(options) => return stages::run(&options),
        Bench::Mount(options) => return mount::run(&options),
        Bench::Placement(options) => return placement::run(&options),
        Bench::Limits(options) => (options, limits),
        Bench::HttpCold(options) => (options, http_cold::bench),
        Bench::Price(options) => (options, price::bench),
        Bench::HttpHot(options) => (options, http_hot::bench),
        Bench::HddCapacity(options) => (options, hdd_capacity::bench),
        Bench::Admission(options) => (options, admission::bench),
        Bench::Hog(options) => (options, hog::bench),
        Bench::LocalHog(options) => (options, hog::bench_programs),
        Bench::Migrate(options) => (options, migrate::bench),
        Bench::Balance(options) => (options, balance::bench),
        Bench::Memory(options) => (options, memory::bench),
        Bench::Uploads(options) => (options, uploads::bench),
        Bench::Vbr(options) => (options, vbr::bench),
        Bench::Recordings(options) => (options, recordings::bench),
        Bench::SmallAcks(options) => (options, small_acks::bench),
        Bench::UdpMany(options) => (options, udp_many::bench),
        Bench::RtspCrowd(options) => (options, rtsp_crowd::bench),
        Bench::ProxyCrowd(options) => (options, proxy_crowd::bench),
        Bench::RtspMany(options) => (options, rtsp_many::bench),
        Bench::PaceSweep(options) => (options, pace_sweep::bench),
        Bench::PaceShare(options) => (options, pace_share::bench),
        Bench::GapFrames(options) => (options, gap_frames::bench),
        Bench::Aes67(options) => (options, aes67::bench),
    };
    let fixture = Fixture::set(options, is_emulated, looks)?;
    let report = bench(&fixture)?;
    let missed: Vec<_> = report.verdicts.iter().filter(|all| all.reached == Some(false)).collect();
    let missed: Vec<_> =
        missed.iter().map(|all| format!("{}: {}", all.figure, all.measured)).collect();
    report.publish(&fixture.options.out)?;
    ensure!(!must_hold || missed.is_empty(), "{}", missed.join("; "));
    Ok(())
}

fn limits(fixture: &Fixture) -> Result<Report> {
    Ok(fixture.report("limits", "what can no server beat on this machine, now?"))
}

/// Wire, limits and idle stretch, shared by all rounds of a bench.
pub(crate) struct Fixture {
    pub(crate) options: Options,
    pub(crate) wire: Wire,
    tactus: PathBuf,
    limits: Vec<Floor>,
    idle: CpuUsage,
    looks: Looks,
    ballast: Option<MemoryBallast>,
    _read_ahead: Option<ReadAhead>,
}

/// One judged run.
pub(crate) struct JudgedRun {
    pub(crate) peer: usize,
    pub(crate) round: usize,
    pub(crate) figures: Figures,
    /// The rate of the first stream over the first seconds: (seconds, Mbit/s).
    pub(crate) sample: Vec<(f64, f64)>,
}

impl Fixture {
    fn set(options: Options, is_emulated: bool, looks: Looks) -> Result<Self> {
        std::fs::create_dir_all(&options.data)?;
        let data = options.data.canonicalize()?;
        let options = Options { data, ..options };
        let tactus = match &options.tactus {
            Some(path) => path.canonicalize()?,
            None => std::env::current_exe()?.with_file_name("tactus"),
        };
        let _read_ahead = ReadAhead::set(&options.data, options.read_ahead)?;
        let mut wire = Wire::lay(options.path)?;
        if options.apart {
            wire.swallow_groups()?;
        }
        let default = is_emulated.then_some(FreeMemory::EMULATED);
        let ballast = match options.free_memory.or(default) {
            Some(free) => MemoryBallast::load(free)?,
            None => None,
        };
        say("measuring the physical limits");
        let limits = floors::measure(&options.data)?;
        let idle = SECOND.times(if options.quick { 5 } else { 60 });
        say(&format!("watching the machine without a server for {idle}"));
        let idle = run::idle(idle, RECEIVER_CORE, looks)?;
        Ok(Self { options, wire, tactus, limits, idle, looks, ballast, _read_ahead })
    }

    /// Whether the command line asks for the one of this name.
    pub(crate) fn wants(&self, name: &str) -> bool {
        let only = &self.options.only;
        only.is_empty() || only.iter().any(|part| name.contains(part.as_str()))
    }

    /// Whether the bench runs on `ground`.
    pub(crate) fn stands_on(&self, ground: FlashDisk) -> bool {
        self.options.disks.is_empty() || self.options.disks.contains(&ground)
    }

    /// The emulated flash disks that the bench runs on.
    pub(crate) fn emulated_flash(&self) -> impl Iterator<Item = Profile> {
        let all = [(FlashDisk::Sata, Profile::Sata), (FlashDisk::Nvme, Profile::Nvme)];
        all.into_iter().filter(|&(ground, _)| self.stands_on(ground)).map(|(_, profile)| profile)
    }

    pub(crate) fn rounds(&self, usual: usize) -> usize {
        self.options.rounds.unwrap_or(if self.options.quick { 1 } else { usual })
    }

    pub(crate) fn seconds(&self, usual: u64) -> Nanos {
        let seconds = if self.options.quick { usual.min(10) } else { usual };
        SECOND.times(self.options.seconds.unwrap_or(seconds))
    }

    /// A report with everything that all benches have in common.
    pub(crate) fn report(&self, name: &str, question: &str) -> Report {
        let mut report = Report::new(name, question);
        report.limits = self.limits.clone();
        report.method = [
            "Server and receiver live in two network namespaces joined by a veth pair, MTU 1500 \
             unless the settings name another path, and run on one core each, 0 and 1, unless the \
             bench says otherwise; the softirq work of receiving therefore runs inside the \
             sender's time, for every peer alike.",
            "Peers take turns (A B A B); a table shows the median of the rounds and, in \
             brackets, their range. Ratios are taken within a round.",
            "CPU = run time of the server's threads from the scheduler + kernel workers + X, the \
             interrupt work outside threads; the latter two less what an idle stretch beside the \
             run showed. The receiver's run time stands apart; it holds a part of the sending.",
            "The receiver discards inside the kernel and stamps each recv. All streams share one \
             window grid; windows in which a FIFO thread saw the clock step by more than a \
             millisecond are dropped, and a run that loses more than 10 % of its tenths of a \
             second is repeated.",
        ]
        .map(String::from)
        .into();
        let wire = format!(
            "{}, congestion control {CONGESTION_CONTROL} on both sides (by route)",
            self.wire.path()
        );
        report.settings.push(("wire".into(), wire));
        if let Some(ballast) = &self.ballast {
            report.settings.push(("memory held by the bench".into(), ballast.describe()));
        }
        let idle = serde_json::to_string_pretty(&self.idle).unwrap_or_default();
        report.settings.push(("idle stretch".into(), idle));
        if !self.idle.quiet() {
            let busy = "Other programs were at work in the idle stretch: X is left out.";
            report.note(busy.into());
        }
        if self.options.quick || self.options.accept_noise {
            report
                .notes
                .push("This run was a trial (--quick or --accept-noise): no result.".into());
        }
        report
    }

    /// The size of title that a usual scene needs.
    pub(crate) fn title_size(&self, rate: BitRate) -> Bytes {
        Scene::title_size(rate, SECOND, SECOND.times(2), self.seconds(20))
    }

    /// A scene of `streams` cold streams; the caller changes what differs.
    pub(crate) fn scene<'a>(
        &'a self,
        titles: &'a Titles,
        rate: BitRate,
        streams: usize,
    ) -> Scene<'a> {
        Scene {
            wire: &self.wire,
            titles,
            rate,
            streams,
            stagger: SECOND,
            warm_up: SECOND.times(2),
            length: self.seconds(20),
            start_up: START_UP,
            cold: true,
            server_cores: SERVER_CORES,
            receiver_core: RECEIVER_CORE,
            looks: self.looks,
            idle: Some(&self.idle),
            tactus: &self.tactus,
        }
    }

    /// Runs all `peers` in turns for `rounds` rounds. A peer that cannot be run at all is noted and
    /// left out.
    pub(crate) fn interleave(
        &self,
        peers: &[Box<dyn Peer>],
        scene: &Scene<'_>,
        rounds: usize,
        report: &mut Report,
    ) -> Result<Vec<JudgedRun>> {
        self.note_settings(peers, scene, report)?;
        let names: Vec<String> = peers.iter().map(|peer| peer.name()).collect();
        self.take_turns(&names, rounds, report, |peer, round, report| {
            let (outcome, figures) = self.outcome(peers[peer].as_ref(), scene, report)?;
            let sample = outcome.sample(SAMPLE_WINDOW, SAMPLE_LENGTH);
            Ok(JudgedRun { peer, round, figures, sample })
        })
    }

    /// Does `run` for each of `names` that the command line asks for, in turns. One that fails in
    /// the first round is noted and left out.
    pub(crate) fn take_turns<T>(
        &self,
        names: &[String],
        rounds: usize,
        report: &mut Report,
        mut run: impl FnMut(usize, usize, &mut Report) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut done = Vec::new();
        let mut broken = vec![false; names.len()];
        for round in 0..rounds {
            for (place, name) in names.iter().enumerate() {
                if broken[place] || !self.wants(name) {
                    continue;
                }
                say(&format!("round {} of {rounds}: {name}", round + 1));
                let mut one = run(place, round, report);
                for _ in 0..REPEATS {
                    if !one.as_ref().is_err_and(|error| error.is::<NoCleanWindow>()) {
                        break;
                    }
                    say("the machine stood still: once more");
                    one = run(place, round, report);
                }
                match one {
                    Ok(one) => done.push(one),
                    Err(error) => {
                        interrupt::check()?;
                        report.note(format!("{name}: {error:#}"));
                        broken[place] = round == 0;
                    }
                }
                // Whatever ends the bench, what was measured is there.
                report.keep(&self.options.out)?;
            }
        }
        Ok(done)
    }

    /// Runs `peer` until the machine stood still little enough, a few times at most.
    pub(crate) fn outcome(
        &self,
        peer: &dyn Peer,
        scene: &Scene<'_>,
        report: &mut Report,
    ) -> Result<(Outcome, Figures)> {
        self.outcome_with(peer, scene, Extra::default(), report)
    }

    /// The same with something besides.
    pub(crate) fn outcome_with(
        &self,
        peer: &dyn Peer,
        scene: &Scene<'_>,
        extra: Extra<'_>,
        report: &mut Report,
    ) -> Result<(Outcome, Figures)> {
        self.outcome_unless(peer, scene, extra, |_| false, report)
    }

    /// The same, but a run that is `good` counts though the machine stood still in it: that made it
    /// harder, not easier.
    pub(crate) fn outcome_unless(
        &self,
        peer: &dyn Peer,
        scene: &Scene<'_>,
        extra: Extra<'_>,
        good: impl Fn(&Figures) -> bool,
        report: &mut Report,
    ) -> Result<(Outcome, Figures)> {
        let mut refusal = String::new();
        for _ in 0..=REPEATS {
            let outcome = run::run_with(peer, scene, extra)?;
            let figures = outcome.figures(scene)?;
            report.runs.push(json!({
                "name": peer.name(),
                "streams": scene.streams,
                "figures": &figures,
                "refusal": outcome.refusal(),
                "failed": outcome.reasons(),
                "further_requests": run::reasons(outcome.extra_answers.iter()),
                "notes": &outcome.notes,
            }));
            match outcome.refusal() {
                Some(reason) if !self.options.accept_noise && !good(&figures) => refusal = reason,
                _ => return Ok((outcome, figures)),
            }
            say(&format!("{refusal}: once more"));
        }
        bail!("{refusal}, {} times", REPEATS + 1)
    }

    /// An emulated disk of the usual shape, measured by Tactus while it was empty; in fast mode.
    pub(crate) fn emulated(&self, profile: Profile, report: &mut Report) -> Result<EmulatedDisk> {
        say(&format!("building and measuring an emulated disk: {profile:?}"));
        let name = format!("{profile:?}-{}", std::process::id()).to_lowercase();
        let mut disk = EmulatedDisk::start(Shape::usual(profile, &Path::new(MOUNTS).join(name)))?;
        disk.timed()?;
        if let Err(error) = measure_volume(&self.tactus, disk.mount(), self.options.quick) {
            interrupt::check()?;
            report.note(format!("tactus did not measure the disk: {error:#}"));
        }
        disk.fast()?;
        report.settings.push((format!("emulated {profile:?}"), disk.describe()));
        Ok(disk)
    }

    pub(crate) fn note_settings(
        &self,
        peers: &[Box<dyn Peer>],
        scene: &Scene<'_>,
        report: &mut Report,
    ) -> Result<()> {
        for peer in peers {
            let text = peer.settings(&scene.setting())?;
            report.settings.push((peer.name(), text));
        }
        Ok(())
    }
}

/// Tells the person who waits what happens.
pub(crate) fn say(sentence: &str) {
    eprintln!("bench: {sentence}");
}
