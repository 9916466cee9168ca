//! `tactus probe` and `tactus index`: the timing of titles, for people, and indexes for all titles
//! of a directory.
//!
//! Promise: titles are only read. An index is stored where the volume has a place for it. `tactus
//! index` removes indexes whose titles no longer exist, and nothing else.

mod container;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tactus_core::ts::{AccessKind, Index, Program};
use tactus_core::units::Bytes;
use tactus_http::facts;
use tactus_media::index::{self, IndexError};
use tactus_storage::catalogue::is_reserved;

use super::progress::{meter, style};
use super::verify::volume_of;
use super::{Failure, console};
use container::Container;

/// Shows a title's duration, rates and errors
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus probe film.ts            duration, rates, programs, access points, discontinuities
  tactus probe --json film.ts     the same for programs; as GET /api/v1/titles/film.ts
  tactus probe film.mp4           duration, rates, tracks, where the index is
  tactus probe *.ts               several

A transport stream is read as a whole. Below a Tactus volume its index is stored, so the next
probe is quick. For other containers (Matroska, WebM, audio) only the name is shown.

Exit codes: 0 done; 1 a file cannot be read or has an unknown format; 2 wrong arguments.")]
pub(super) struct Probe {
    /// Transport streams, MP4 and other media files
    #[arg(required = true)]
    titles: Vec<PathBuf>,
    /// As JSON, one line for each
    #[arg(long)]
    json: bool,
}

/// Makes the indexes of all transport streams of a volume that have none yet
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus index /srv/media         what ?start= and PCR-timed delivery need, for all titles
  tactus index --quiet /srv/media

The server makes an index when one is first wanted; this makes all of them before. Indexes are \
                        kept in
DIR/.tactus/index, which is made when it is not there.

Exit codes: 0 done; 1 something cannot be read or written; 2 wrong arguments.")]
pub(super) struct MakeIndex {
    /// The volume's directory
    dir: PathBuf,
    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
}

impl Probe {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut failed = false;
        for title in &self.titles {
            match probe(title) {
                Ok(ProbeResult::Stream(index)) if self.json => console::line(facts(&index))?,
                Ok(ProbeResult::Stream(index)) => {
                    console::line(format_args!("{}\n{}", title.display(), described(&index)))?;
                }
                Ok(ProbeResult::Other(other)) if self.json => console::line(other.json())?,
                Ok(ProbeResult::Other(other)) => {
                    console::line(format_args!("{}\n{}", title.display(), other.described()))?;
                }
                Err(error) => {
                    failed = true;
                    console::notice(format_args!("tactus: {}: {error}", title.display()));
                }
            }
        }
        if failed { Err(Failure::Shown) } else { Ok(()) }
    }
}

/// The result of a probe.
enum ProbeResult {
    Stream(Box<Index>),
    Other(Box<Container>),
}

fn probe(title: &Path) -> Result<ProbeResult, IndexError> {
    let title = title.canonicalize()?;
    let file = File::open(&title)?;
    let name = title.file_name().unwrap_or_default().to_string_lossy();
    if let Some(other) = Container::read(&file, &name) {
        return Ok(ProbeResult::Other(Box::new(other)));
    }
    stream(&title, &file).map(|index| ProbeResult::Stream(Box::new(index)))
}

fn stream(title: &Path, file: &File) -> Result<Index, IndexError> {
    let root = File::open(volume_of(title))?;
    let stat = rustix::fs::fstat(file).map_err(std::io::Error::from)?;
    if let Some(stored) = index::kept(&root, &stat, file) {
        return Ok(stored.into_index());
    }
    let (index, stat) = index::make(file, |_, _| {})?;
    // Without write permission the result is shown all the same.
    index::keep(&root, &stat, file, &index).unwrap_or_default();
    Ok(index)
}

impl MakeIndex {
    pub(super) fn run(self) -> Result<(), Failure> {
        if !self.dir.is_dir() {
            let message = format!("{} is not a directory; name a volume's", self.dir.display());
            return Err(Failure::usage(message));
        }
        let root = File::open(&self.dir).with_context(|| format!("{}", self.dir.display()))?;
        let ours = self.dir.join(tactus_media::RESERVED);
        std::fs::create_dir_all(&ours).with_context(|| format!("{}", ours.display()))?;
        let mut all = Vec::new();
        let mut bad = 0u64;
        collect(&self.dir, &mut all, &mut bad)?;
        let bytes = all.iter().map(|(_, len)| len).sum();
        let meter = meter(self.quiet, Some(bytes));
        meter.set_style(style());
        let (mut made, mut there, mut without) = (0u64, 0u64, 0u64);
        let mut inodes = Vec::new();
        for (path, len) in &all {
            let end = meter.position() + len;
            let mut one = || -> Result<Option<bool>, IndexError> {
                let file = File::open(path)?;
                let stat = rustix::fs::fstat(&file).map_err(std::io::Error::from)?;
                inodes.push(stat.st_ino);
                if index::is_kept(&root, &stat) {
                    return Ok(Some(false));
                }
                match index::make(&file, |count, _| meter.inc(count as u64)) {
                    Ok((index, stat)) => {
                        index::keep(&root, &stat, &file, &index)?;
                        Ok(Some(true))
                    }
                    Err(IndexError::Fault(_)) => Ok(None),
                    Err(error) => Err(error),
                }
            };
            match one() {
                Ok(Some(true)) => made += 1,
                Ok(Some(false)) => there += 1,
                Ok(None) => without += 1,
                Err(error) => {
                    bad += 1;
                    let told = format!("{}: {error}", path.display());
                    meter.suspend(|| console::line(told))?;
                }
            }
            meter.set_position(end);
        }
        meter.finish_and_clear();
        let gone = match bad {
            // An unreadable title may have an index.
            0 => index::remove_others(&root, &inodes).context(
                "indexes without a title could not \
                be removed",
            )?,
            _ => 0,
        };
        console::line(format_args!(
            "{made} created, {there} already there, {without} not transport streams, {gone} \
            without a title removed"
        ))?;
        if bad > 0 { Err(Failure::Shown) } else { Ok(()) }
    }
}

/// All files below `directory`, except the server's own files and links.
fn collect(directory: &Path, into: &mut Vec<(PathBuf, u64)>, bad: &mut u64) -> Result<(), Failure> {
    let entries = directory.read_dir().and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let Ok(mut entries) = entries else {
        *bad += 1;
        console::line(format_args!("{}: cannot be read", directory.display()))?;
        return Ok(());
    };
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        match entry.metadata() {
            _ if is_reserved(&entry.file_name().to_string_lossy()) => {}
            Ok(facts) if facts.is_dir() => collect(&entry.path(), into, bad)?,
            Ok(facts) if facts.is_file() => into.push((entry.path(), facts.len())),
            Ok(_) => {}
            Err(_) => *bad += 1,
        }
    }
    Ok(())
}

fn described(index: &Index) -> String {
    let seconds = |ticks: u64| format!("{:.3} s", ticks as f64 / 27e6);
    let mut lines = vec![format!(
        "  {:.1} in {} packets of {} bytes, {}",
        Bytes(index.len()),
        index.packets(),
        index.stride(),
        seconds(index.duration().0)
    )];
    if let Some(rates) = index.rates() {
        let kind = if index.is_constant() { "constant" } else { "variable" };
        lines.push(format!(
            "  {kind} rate: mean {} bit/s, slowest second {}, fastest {}",
            rates.mean.0, rates.min.0, rates.max.0
        ));
    }
    let entries: Vec<_> =
        index.accesses().iter().filter(|access| access.kind == AccessKind::Entry).collect();
    let mut line = format!("  {} random access points", entries.len());
    if let [first, .., last] = entries[..] {
        let each = (last.shown.0 - first.shown.0) / (entries.len() as u64 - 1);
        line += &format!(", one each {}", seconds(each));
    }
    lines.push(line);
    for program in index.programs() {
        let Program { number, clock, streams, .. } = program;
        let streams = streams
            .iter()
            .map(|stream| format!("{} on {}", Program::kind_name(stream.kind), stream.pid.0));
        let streams = streams.collect::<Vec<_>>().join(", ");
        lines.push(format!("  program {number}, clock on {}: {streams}", clock.0));
    }
    for run in index.runs().iter().skip(1).take(DISCONTINUITIES_MAX) {
        let how = if run.announced { "announced" } else { "not announced" };
        lines.push(format!(
            "  the clock jumps at byte {}, {} ({how})",
            run.at,
            seconds(run.time.0)
        ));
    }
    if let Some(more) = index.runs().len().checked_sub(DISCONTINUITIES_MAX + 2) {
        lines.push(format!("  and {} times more", more + 1));
    }
    let flaws = index.flaws();
    let counted = [
        (flaws.skipped_bytes, "bytes belong to no packet"),
        (flaws.sync_losses, "times the packets were lost"),
        (flaws.marked, "packets are marked as damaged"),
        (flaws.malformed, "packets are malformed"),
        (flaws.bad_sections, "sections of tables do not fit"),
        (flaws.gaps, "breaks of continuity counters"),
        (flaws.scrambled, "packets are scrambled; players need the key"),
        (flaws.split_times, "time stamps are split over two packets: loops begin its clock anew"),
    ];
    lines.extend(counted.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("  {n} {what}")));
    lines.join("\n")
}

/// Discontinuities that are listed individually.
const DISCONTINUITIES_MAX: usize = 10;
