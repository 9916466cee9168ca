//! A run in two stretches: deliveries alone, then deliveries with uploads.
//!
//! Promise: both stretches are judged alike and lie in one measured span, so what the uploads
//! change shows. Every run finds an empty directory for uploads and nothing left to be written from
//! the one before, and leaves none. What a disk was asked is taken at the borders of the second
//! stretch.

use std::fs::{self, File};
use std::net::SocketAddrV4;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use anyhow::{Context, Result, anyhow};
use serde_json::json;
use tactus_core::units::{Bytes, MonoTime, Nanos, SECOND};

use super::Fixture;
use crate::arrivals::Trace;
use crate::disk::{EmulatedDisk, RequestCounts};
use crate::figures::jitter;
use crate::figures::underrun;
use crate::figures::windows::{Grid, Span};
use crate::peers::{Peer, TOKEN, UPLOADS, address};
use crate::phase::{self, Phase};
use crate::report::Report;
use crate::run::{Extra, Scene};
use crate::uploader::{self, Harvest, Pace, Plan};
use crate::{clock, command, interrupt};

/// What runs beside both stretches; it is told where the server is and when they are.
pub(super) type ConcurrentLoad<'a> = &'a (dyn Fn(SocketAddrV4, Span) -> Result<()> + Sync);

/// The second stretch.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    /// How uploads come.
    pub(super) kind: Kind,
    /// The length of the first stretch.
    pub(super) calm: Nanos,
    /// How long acknowledgements are waited for at the end.
    pub(super) patience: Nanos,
    /// Begun when all deliveries run.
    pub(super) beside: Option<ConcurrentLoad<'a>>,
}

/// How uploads come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Over HTTP, to the server.
    Put { pace: Pace, size: Bytes },
    /// Past the server: direct sequential writes at a great depth measure the disk's write rate.
    Direct { piece: Bytes, depth: u32 },
}

/// The disk below, where it is an emulated one.
pub(super) type Disk<'a> = Option<&'a Mutex<&'a mut EmulatedDisk>>;

/// What came out.
pub(super) struct Stretches {
    /// Deliveries alone.
    pub(super) calm: Phase,
    /// Deliveries and uploads.
    pub(super) busy: Phase,
    /// J of each second, the mean over streams: seconds since the beginning of the first stretch,
    /// percent.
    pub(super) j: Vec<(f64, f64)>,
    /// Deliveries that were accepted.
    pub(super) streams: usize,
    /// Of those, the ones that stood still in either stretch, or broke.
    pub(super) late: usize,
    /// Cycles of the second stretch in which a player stood still, and all.
    pub(super) missed: (usize, usize),
    /// What the clients of the second stretch saw.
    pub(super) harvest: Harvest,
    /// The second stretch.
    pub(super) second: Span,
    /// What the disk was asked in it, and how long that took.
    pub(super) asked: Option<(RequestCounts, Nanos)>,
}

impl Stretches {
    /// Runs `peer`; `cycle` is the grid of missed cycles.
    pub(super) fn run(
        fixture: &Fixture,
        peer: &dyn Peer,
        scene: &Scene<'_>,
        load: &Load<'_>,
        cycle: Nanos,
        disk: Disk<'_>,
        report: &mut Report,
    ) -> Result<Self> {
        let folder = scene.titles.root().join(UPLOADS);
        let before = || clear(&folder, disk);
        let found = Mutex::new(None);
        let server = SocketAddrV4::new(*address(scene.wire).ip(), peer.upload_port());
        let uploads = |from: MonoTime| {
            let whole = Span { from, to: from + scene.length };
            let second = Span { from: from + load.calm, to: whole.to };
            let done = std::thread::scope(|scope| {
                let beside = load.beside.map(|act| scope.spawn(move || act(server, whole)));
                let done = upload(server, scene, load, second, disk)?;
                match beside.map(std::thread::ScopedJoinHandle::join) {
                    Some(Err(_)) => Err(anyhow!("what ran beside the uploads panicked")),
                    Some(Ok(Err(error))) => Err(error),
                    Some(Ok(Ok(()))) | None => Ok(done),
                }
            })?;
            *found.lock().map_err(|_| anyhow!("an uploader panicked"))? = Some(done);
            Ok(())
        };
        let extra = Extra {
            beside: Some(&uploads),
            before: Some(&before),
            uploads: true,
            ..Extra::default()
        };
        let (outcome, _) = fixture.outcome_with(peer, scene, extra, report)?;
        fs::remove_dir_all(&folder)?;
        let found = found.into_inner().map_err(|_| anyhow!("an uploader panicked"))?;
        let (harvest, asked) = found.context("nothing was uploaded")?;
        let whole = outcome.measured;
        let border = whole.from + load.calm;
        let (first, second) =
            (Span { from: whole.from, to: border }, Span { from: border, to: whole.to });
        let all = outcome.traces.iter().zip(&outcome.answers).zip(outcome.plays(scene));
        let accepted = all.filter(|((_, answer), _)| answer.accepted());
        let (mut traces, mut plays, mut late) = (Vec::<Trace>::new(), Vec::new(), 0);
        for ((trace, answer), play) in accepted {
            let stood = play.stood.iter().any(|span| span.overlaps(whole));
            late += usize::from(stood || answer.broke());
            traces.push(trace.clone());
            plays.push(play);
        }
        let gaps = if fixture.options.accept_noise { &[] } else { &outcome.gaps[..] };
        let judge = |span| phase::of(&traces, scene.rate, whole, span, gaps);
        let cycles = Grid::new(second, cycle, &[]);
        let seconds = Grid::new(whole, SECOND, &[]);
        let stretches = Self {
            calm: judge(first)?,
            busy: judge(second)?,
            j: jitter::over_time(&traces, scene.rate, &seconds, whole.from),
            streams: traces.len(),
            late,
            missed: (underrun::missed(&plays, &cycles), cycles.count()),
            harvest,
            second,
            asked,
        };
        if let Some(run) = report.runs.last_mut() {
            run["calm"] = json!(stretches.calm);
            run["with uploads"] = json!(stretches.busy);
            run["missed cycles"] = json!(stretches.missed);
            run["late streams"] = json!(stretches.late);
            run["uploads"] = json!({
                "begun": stretches.harvest.uploads.len(),
                "acknowledged": stretches.harvest.acks().len(),
                "others": stretches.harvest.reasons(),
                "taken MB/s": stretches.taken(),
                "disk": stretches.asked.map(|asked| asked.0),
            });
        }
        Ok(stretches)
    }

    /// Body bytes that went out to the server, MB/s over the second stretch.
    pub(super) fn taken(&self) -> f64 {
        let bytes = self.harvest.bytes_between(self.second.from, self.second.to);
        bytes as f64 / self.second.length().0 as f64 * 1e3
    }

    /// Bytes written to the disk, MB/s over the second stretch.
    pub(super) fn written(&self) -> Option<f64> {
        let (asked, span) = self.asked?;
        Some(asked.write_bytes as f64 / span.0 as f64 * 1e3)
    }

    /// `time` of the disk as a share of the second stretch, in percent.
    pub(super) fn disk_share(&self, time: fn(&RequestCounts) -> u64) -> f64 {
        self.asked.map_or(f64::NAN, |(asked, span)| time(&asked) as f64 / span.0 as f64 * 100.0)
    }
}

fn upload(
    server: SocketAddrV4,
    scene: &Scene<'_>,
    load: &Load<'_>,
    second: Span,
    disk: Disk<'_>,
) -> Result<(Harvest, Option<(RequestCounts, Nanos)>)> {
    interrupt::sleep_until(second.from)?;
    let look = || disk.map(|disk| anyhow::Ok((lock(disk)?.asked()?, clock::now()))).transpose();
    let first = look()?;
    let harvest = match load.kind {
        Kind::Put { pace, size } => {
            let plan = Plan {
                server,
                target: format!("/{UPLOADS}/title-"),
                token: TOKEN.into(),
                pace,
                size,
                from: second.from,
                to: second.to,
                patience: load.patience,
                core: scene.receiver_core,
            };
            uploader::upload(&scene.wire.receiver_side(), &plan)?
        }
        Kind::Direct { piece, depth } => {
            write_directly(&scene.titles.root().join(UPLOADS), piece, depth, second.length())?;
            Harvest { uploads: Vec::new(), traces: Vec::new() }
        }
    };
    let asked =
        first.zip(look()?).map(|((first, from), (last, to))| (last - first, to.since(from)));
    Ok((harvest, asked))
}

fn write_directly(folder: &Path, piece: Bytes, depth: u32, span: Nanos) -> Result<()> {
    let seconds = span.0 / SECOND.0;
    command::run(
        "fio",
        &[
            "--name=greedy",
            &format!("--directory={}", folder.display()),
            "--rw=write",
            &format!("--bs={}", piece.0),
            &format!("--iodepth={depth}"),
            "--ioengine=libaio",
            "--direct=1",
            "--size=8g",
            "--zero_buffers",
            "--time_based",
            &format!("--runtime={seconds}"),
        ],
    )
    .map(drop)
}

/// Removes what was uploaded before, and waits until nothing of it is left to be written.
fn clear(folder: &Path, disk: Disk<'_>) -> Result<()> {
    disk.map(|disk| lock(disk)?.fast()).transpose()?;
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder)?;
    rustix::fs::syncfs(File::open(folder)?)?;
    disk.map(|disk| lock(disk)?.timed()).transpose()?;
    Ok(())
}

fn lock<'a, 'b>(
    disk: &'a Mutex<&'b mut EmulatedDisk>,
) -> Result<MutexGuard<'a, &'b mut EmulatedDisk>> {
    disk.lock().map_err(|_| anyhow!("who asked the disk before has panicked"))
}
