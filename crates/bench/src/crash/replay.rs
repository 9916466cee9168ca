//! Loads a subject, simulates a power failure at many points of its writes, and judges the
//! remaining volume each time.
//!
//! Promise: each cut is mounted, recovered, read and unmounted before the next; whatever cannot be
//! done is counted and named, never skipped. Half of the cuts are drawn from all events, half are
//! at an acknowledgement, where most is at stake; half of either lose whole writes, half pieces.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags, open, syncfs};
use serde::Serialize;
use tactus_core::units::Bytes;

use super::disk::{FileSystem, LoggingDisk};
use super::history::{History, Judgement};
use super::log::Loss;
use super::recorder::Recorder;
use super::subject::Subject;
use crate::benches::say;
use crate::interrupt;
use crate::random::Random;

/// One series of cuts.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) file_system: FileSystem,
    pub(super) cuts: u64,
    pub(super) seed: u64,
    /// Enough as soon as something is found.
    pub(super) until_found: bool,
    /// Where the image of the first cut goes that a audio subject does not survive.
    pub(super) out: PathBuf,
}

/// What came out, in numbers of cuts.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Outcome {
    /// The subject.
    pub(super) subject: String,
    /// What it does before it acknowledges.
    pub(super) method: String,
    /// Whether it should survive.
    pub(super) audio: bool,
    /// The file system, as it is mounted.
    pub(super) file_system: String,
    /// Cuts.
    pub(super) cuts: u64,
    /// Loads that they were taken from.
    pub(super) loads: u64,
    /// Acknowledgements in these loads.
    pub(super) acks: u64,
    /// Faults that hit in these loads.
    pub(super) faults: u64,
    /// Cuts after which something acknowledged was not there.
    pub(super) lost: u64,
    /// Cuts after which something visible was no whole version.
    pub(super) torn: u64,
    /// Cuts after which an offset or the bytes below it were wrong.
    pub(super) wrong_offset: u64,
    /// Cuts after which something was left that belongs to nothing.
    pub(super) stray: u64,
    /// Cuts after which an upload had more than was acknowledged, all of it right: no fault.
    pub(super) ahead: u64,
    /// Cuts whose image could not be mounted.
    pub(super) unmountable: u64,
    /// Cuts after which mounting and recovering took more than [`READY`].
    pub(super) slow: u64,
    /// Cuts after which the subject did not recover.
    pub(super) unrecovered: u64,
    /// The longest time from the mount to the end of recovery, in seconds.
    pub(super) ready_max_seconds: f64,
    /// Time for the cuts alone, in seconds; of all parts, which run beside each other.
    pub(super) seconds: f64,
    /// The first faults in words, with their cuts.
    pub(super) examples: Vec<String>,
}

/// What a subject may take until it is ready.
const READY: Duration = Duration::from_secs(5);
/// Cuts of one load. A load costs about as much as a few cuts.
const CUTS_PER_LOAD: u64 = 50;
/// Room for the reserve that the server keeps free, and the load beside it.
const DISK_SIZE: Bytes = Bytes(1 << 30);
const EXAMPLES_MAX: usize = 8;

impl Outcome {
    /// Whether anything was wrong.
    pub(super) fn found(&self) -> bool {
        let counts = [self.lost, self.torn, self.wrong_offset, self.stray, self.unmountable];
        counts.into_iter().chain([self.slow, self.unrecovered]).any(|count| count > 0)
    }

    /// Adds another part of the same series.
    pub(super) fn merge(&mut self, part: Self) {
        self.cuts += part.cuts;
        self.loads += part.loads;
        self.acks += part.acks;
        self.faults += part.faults;
        self.lost += part.lost;
        self.torn += part.torn;
        self.wrong_offset += part.wrong_offset;
        self.stray += part.stray;
        self.ahead += part.ahead;
        self.unmountable += part.unmountable;
        self.slow += part.slow;
        self.unrecovered += part.unrecovered;
        self.ready_max_seconds = self.ready_max_seconds.max(part.ready_max_seconds);
        self.seconds += part.seconds;
        self.examples.extend(part.examples);
    }

    fn add(&mut self, wrong: &Judgement) {
        self.lost += u64::from(!wrong.lost.is_empty());
        self.torn += u64::from(!wrong.torn.is_empty());
        self.wrong_offset += u64::from(!wrong.wrong_offset.is_empty());
        self.stray += u64::from(!wrong.stray.is_empty());
        self.ahead += u64::from(wrong.ahead > 0);
    }
}

/// Runs one series on a disk of its own, mounted at `place`.
pub(super) fn run(subject: &dyn Subject, series: &Series, place: &Path) -> Result<Outcome> {
    let mut disk = LoggingDisk::start(series.file_system, DISK_SIZE, place)?;
    let mut random = Random::new(series.seed);
    let mut outcome = Outcome {
        subject: subject.name().into(),
        method: subject.method().into(),
        audio: subject.audio(),
        file_system: format!("{:?}", series.file_system).to_lowercase(),
        ..Outcome::default()
    };
    while outcome.cuts < series.cuts && !(series.until_found && outcome.found()) {
        disk.rewind()?;
        disk.mount()?.context("cannot mount the empty file system")?;
        let from = disk.events()?;
        let root = disk.root().to_owned();
        let recorder = Recorder::of_disk(&mut disk);
        let loaded = subject.load(&root, &recorder, &mut random);
        let written_back = write_back(&root);
        let to = recorder.now()?;
        let history = recorder.into_history();
        disk.unmount()?;
        loaded.with_context(|| format!("{} could not do its work", subject.name()))?;
        // After a fault that the file system did not survive there is nothing to write back.
        if outcome.faults == disk.hits()? {
            written_back?;
        }
        outcome.loads += 1;
        outcome.acks += history.acks().len() as u64;
        outcome.faults = disk.hits()?;
        let count = CUTS_PER_LOAD.min(series.cuts - outcome.cuts);
        let started = Instant::now();
        for cut in draw(from, to, &history, count, &mut random) {
            interrupt::check()?;
            replay(subject, series, &mut disk, &history, &cut, &mut outcome)?;
            if series.until_found && outcome.found() {
                break;
            }
        }
        outcome.seconds += started.elapsed().as_secs_f64();
    }
    Ok(outcome)
}

/// Events that every volume sees, so that cuts fall into them, too. Another program flushes its own
/// file, and with it the journal. Then the kernel writes back the dirty pages.
fn write_back(root: &Path) -> std::io::Result<()> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let other = File::from(open(root, flags, Mode::RUSR | Mode::WUSR)?);
    other.set_len(1)?;
    other.sync_all()?;
    Ok(syncfs(File::open(root)?)?)
}

/// One cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    at: u64,
    loss: Loss,
    seed: u64,
}

/// Draws cuts, in ascending order.
fn draw(from: u64, to: u64, history: &History, count: u64, random: &mut Random) -> Vec<Cut> {
    let acks = history.acks();
    let mut cuts: Vec<Cut> = (0..count)
        .map(|number| {
            let anywhere = from + random.next() % (to - from + 1);
            let at = match acks.is_empty() || number.is_multiple_of(2) {
                true => anywhere,
                false => acks[random.next() as usize % acks.len()],
            };
            let loss = if number / 2 % 2 == 0 { Loss::Writes } else { Loss::Pieces };
            Cut { at, loss, seed: random.next() }
        })
        .collect();
    cuts.sort_by_key(|cut| cut.at);
    cuts
}

fn replay(
    subject: &dyn Subject,
    series: &Series,
    disk: &mut LoggingDisk,
    history: &History,
    cut: &Cut,
    outcome: &mut Outcome,
) -> Result<()> {
    disk.cut(cut.at, cut.loss, cut.seed)?;
    outcome.cuts += 1;
    let (started, starved_before) = (Instant::now(), disk.starved()?);
    let mut wrong = Vec::new();
    match disk.mount()? {
        Err(error) => {
            outcome.unmountable += 1;
            wrong.push(format!("not to be mounted: {error}"));
        }
        Ok(()) => {
            let root = disk.root().to_owned();
            let recovered = subject.recover(&root);
            let ready = started.elapsed();
            outcome.ready_max_seconds = outcome.ready_max_seconds.max(ready.as_secs_f64());
            let starved = recovered.as_ref().map_or(Ok(Duration::ZERO), |this| this.starved())?;
            let starved = starved + disk.starved()?.saturating_sub(starved_before);
            if ready.saturating_sub(starved) > READY {
                outcome.slow += 1;
                wrong.push(format!("ready after {ready:.1?}, {starved:.1?} without a processor"));
            }
            match recovered.and_then(|mut recovered| recovered.look(history)) {
                Ok(found) => {
                    let judgement = history.judge(cut.at, &found);
                    outcome.add(&judgement);
                    wrong.extend(judgement.sentences());
                }
                Err(error) => {
                    outcome.unrecovered += 1;
                    wrong.push(format!("not recovered: {error:#}"));
                }
            }
            disk.unmount()?;
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    if subject.audio() && outcome.examples.is_empty() {
        let name = format!("{}-{}.img", outcome.subject, outcome.file_system);
        // As it was before anybody mounted it.
        disk.cut(cut.at, cut.loss, cut.seed)?;
        disk.save(&series.out.join(name))?;
    }
    for sentence in wrong {
        if subject.audio() {
            say(&format!("{} on {}: {sentence}", outcome.subject, outcome.file_system));
        }
        if outcome.examples.len() < EXAMPLES_MAX {
            outcome.examples.push(format!("event {}, {:?}: {sentence}", cut.at, cut.loss));
        }
    }
    Ok(())
}
