//! `tactus verify`: compares stored titles with their checksums.
//!
//! Promise: it changes nothing and needs no server. Each damaged title is named with the beginning
//! of the damage. A walk over a volume leaves out only files that are not titles.

use std::path::{Path, PathBuf};

use anyhow::Context;
use indicatif::ProgressBar;
use tactus_core::units::Bytes;
use tactus_media::RESERVED;
use tactus_storage::catalogue::is_reserved;
use tactus_storage::store::{Verdict, VerifyError, clear_failed, verify};

use super::progress::{meter, style};
use super::{Failure, api, console};

/// Compares stored titles with their checksums
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus verify /srv/media                 all titles of a volume
  tactus verify /srv/media/films a.ts      a directory of it, and one title
  tactus verify --clear /srv/media         after a write or flush failed and the disk was looked at

It reads the files past the page cache and beside a running server, whose streams it may delay on a
spinning disk. Files that were not uploaded have no checksums; they are only read.

Exit codes: 0 nothing is damaged; 1 something is damaged or cannot be read; 2 wrong arguments.")]
pub(super) struct Verify {
    /// Titles, or directories of them
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// When nothing is damaged: take uploads again on this volume, where a write or flush had
    /// failed
    #[arg(long)]
    clear: bool,
    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A file that may be a title.
struct Candidate {
    root: PathBuf,
    /// Below the root.
    name: String,
    len: u64,
}

#[derive(Default)]
struct VerifyCounts {
    whole: u64,
    bytes: u64,
    without: u64,
    bad: u64,
    /// Paths of damaged or unreadable files, each with its error.
    wrong: Vec<(String, String)>,
}

impl Verify {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut candidates = Vec::new();
        let mut found = VerifyCounts::default();
        for path in &self.paths {
            let named = |error| Failure::usage(format!("{}: {error}", path.display()));
            let path = path.canonicalize().map_err(named)?;
            collect(&volume_of(&path), &path, &mut candidates, &mut found);
        }
        if !self.json {
            for (path, wrong) in &found.wrong {
                console::line(format_args!("{path}: {wrong}"))?;
            }
        }
        let all = candidates.iter().map(|candidate| candidate.len).sum();
        let meter = meter(self.quiet, Some(all));
        meter.set_style(style());
        for candidate in &candidates {
            judge(candidate, &meter, &mut found, self.json)?;
        }
        meter.finish_and_clear();
        let VerifyCounts { whole, bytes, without, bad, wrong } = found;
        if self.json {
            let wrong = wrong
                .into_iter()
                .map(|(path, error)| serde_json::json!({ "path": path, "error": error }));
            api::print(&serde_json::json!({
                "whole": whole,
                "whole_bytes": bytes,
                "without_checksums": without,
                "damaged_or_unreadable": bad,
                "wrong": wrong.collect::<Vec<_>>(),
            }))?;
        } else {
            let bytes = Bytes(bytes);
            console::line(format_args!(
                "{whole} whole ({bytes:.1}), {without} without checksums, {bad} damaged or \
                 unreadable"
            ))?;
        }
        if bad > 0 {
            return Err(Failure::Shown);
        }
        if self.clear {
            for path in &self.paths {
                let cleared = clear_failed(path);
                let cleared = cleared.with_context(|| format!("{}", path.display()))?;
                if !self.json {
                    console::line(if cleared {
                        "uploads are accepted again from the next start"
                    } else {
                        "the volume has no mark of a failed write"
                    })?;
                }
            }
        }
        Ok(())
    }
}

fn judge(
    candidate: &Candidate,
    meter: &ProgressBar,
    found: &mut VerifyCounts,
    json: bool,
) -> Result<(), Failure> {
    let begun = meter.position();
    let verdict = verify(&candidate.root, &candidate.name, &mut |read| meter.inc(read));
    meter.set_position(begun + candidate.len);
    let wrong = match verdict {
        Ok(Verdict::Whole(len)) => {
            found.whole += 1;
            found.bytes += len.0;
            return Ok(());
        }
        // A file with an unusable name, or one that was removed meanwhile, is not a title.
        Ok(Verdict::NoSums) | Err(VerifyError::Name(_) | VerifyError::NotFound) => {
            found.without += 1;
            return Ok(());
        }
        Ok(Verdict::Damaged { first, units, unreadable }) => {
            let unread = match unreadable {
                0 => String::new(),
                count => format!(", {count} of them cannot be read"),
            };
            format!("{units} units of 64 KiB are damaged, the first at byte {}{unread}", first.0)
        }
        Err(error) => error.to_string(),
    };
    found.bad += 1;
    let path = candidate.root.join(&candidate.name);
    if !json {
        let told = meter.suspend(|| console::line(format_args!("{}: {wrong}", path.display())));
        told?;
    }
    found.wrong.push((path.display().to_string(), wrong));
    Ok(())
}

/// The volume of `path`: the directory with the server's own directory in it.
pub(super) fn volume_of(path: &Path) -> PathBuf {
    let has_ours = |above: &&Path| above.join(RESERVED).is_dir();
    let directory = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    directory.ancestors().find(has_ours).unwrap_or(directory).to_owned()
}

/// All files at and below `path`, in the order of their names, except the server's own files and
/// links.
fn collect(root: &Path, path: &Path, into: &mut Vec<Candidate>, found: &mut VerifyCounts) {
    let read = || -> std::io::Result<Vec<(PathBuf, std::fs::Metadata)>> {
        let facts = path.symlink_metadata()?;
        if !facts.is_dir() {
            return Ok(vec![(path.to_owned(), facts)]);
        }
        let mut entries = Vec::new();
        for entry in path.read_dir()? {
            let entry = entry?;
            if !is_reserved(&entry.file_name().to_string_lossy()) {
                entries.push((entry.path(), entry.metadata()?));
            }
        }
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(entries)
    };
    let entries = read().unwrap_or_else(|error| {
        found.bad += 1;
        found.wrong.push((path.display().to_string(), format!("cannot be read: {error}")));
        Vec::new()
    });
    for (path, facts) in entries {
        if facts.is_dir() {
            collect(root, &path, into, found);
        } else if facts.is_file() {
            match path.strip_prefix(root).ok().and_then(Path::to_str) {
                Some(name) => {
                    let (root, name) = (root.to_owned(), name.to_owned());
                    into.push(Candidate { root, name, len: facts.len() });
                }
                // The name of a title is valid UTF-8.
                None => found.without += 1,
            }
        }
    }
}
