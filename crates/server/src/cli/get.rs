//! `tactus get`: downloads a title, with a progress bar, and goes on where it stopped.
//!
//! Promise: FILE appears only when it is whole, and all its bytes are of one version of the title:
//! what is there already is kept in FILE.part together with the version's entity tag, and goes on
//! only if the server still has that version (`If-Range`).

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use tactus_core::units::{BitRate, Bytes, Nanos};

use super::Failure;
use super::client::{self, ClientError, Response, Url};
use crate::config::units;

/// Downloads a title
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus get http://127.0.0.1:8080/film.ts
  tactus get http://127.0.0.1:8080/film.ts --rate max -o /tmp/film.ts
  tactus get http://127.0.0.1:8080/film.ts -o - | ffplay -

The download is kept in FILE.part until it is whole. Run the same command again to go on.

Exit codes: 0 done; 1 failed, run it again to go on; 2 wrong arguments; 3 the server has no room.")]
pub(super) struct Get {
    /// What to download, like http://127.0.0.1:8080/film.ts
    url: String,
    /// Where to; `-` is standard output [default: the last part of the URL, here]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Ask for this rate, like 8.8M or "8.8 Mbit/s"; `max` is as fast as it goes
    #[arg(short, long, value_name = "RATE", value_parser = read_rate)]
    rate: Option<Asked>,
    /// When the server has no room, try again for this long, like "5 min"
    #[arg(short, long, value_name = "TIME", default_value = "0 s", value_parser = units::read::<Nanos>)]
    wait: Nanos,
    /// Replace FILE if it is there
    #[arg(short, long)]
    force: bool,
    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
}

/// The rate that the request names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Exact(BitRate),
    Max,
}

fn read_rate(text: &str) -> Result<Asked, String> {
    if text == "max" {
        return Ok(Asked::Max);
    }
    let rate = units::read_short_rate(text).map_err(|error| error.to_string())?;
    if rate.0 == 0 {
        return Err("a rate of zero never ends; leave it out, or write max".into());
    }
    Ok(Asked::Exact(rate))
}

impl Get {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut url = Url::parse(&self.url).map_err(Failure::usage)?;
        match self.rate {
            Some(Asked::Exact(rate)) => url = url.with_query("rate", &rate.0.to_string()),
            Some(Asked::Max) => url = url.with_query("rate", "max"),
            None => {}
        }
        let output = match &self.output {
            Some(output) => output.clone(),
            None => url.file_name().map(PathBuf::from).ok_or_else(|| {
                Failure::usage(format!("{} names no file; say where to with -o FILE", self.url))
            })?,
        };
        let meter = if self.quiet { ProgressBar::hidden() } else { ProgressBar::no_length() };
        let begun = Instant::now();
        if output == Path::new("-") {
            self.to_stdout(&url, &meter)?;
            self.tell("standard output", &meter, begun);
            return Ok(());
        }
        if output.exists() && !self.force {
            let message = format!(
                "{} is there already; name another with -o, or replace it with --force",
                output.display()
            );
            return Err(Failure::usage(message));
        }
        let part = Part::new(&output);
        self.to_file(&url, &part, &meter)?;
        std::fs::rename(&part.path, &output)
            .with_context(|| format!("cannot rename {}", part.path.display()))?;
        part.forget_version()?;
        self.tell(&output.display().to_string(), &meter, begun);
        Ok(())
    }

    fn tell(&self, output: &str, meter: &ProgressBar, begun: Instant) {
        meter.finish_and_clear();
        if !self.quiet {
            let taken = begun.elapsed();
            let (bytes, rate) = (Bytes(meter.position()), rate_of(meter.position(), taken));
            eprintln!("{output}: {bytes} in {:.1} s, {rate}", taken.as_secs_f64());
        }
    }

    fn to_stdout(&self, url: &Url, meter: &ProgressBar) -> Result<(), Failure> {
        let response = self.ask(url, &[])?;
        if response.status != 200 {
            return Err(refused(response));
        }
        copy(response, 0, &mut io::stdout().lock(), meter)?;
        Ok(())
    }

    /// Fills the part until it is whole. A connection that breaks after it has brought something is
    /// followed by another; those that bring nothing count.
    fn to_file(&self, url: &Url, part: &Part, meter: &ProgressBar) -> Result<(), Failure> {
        let mut tries = 0;
        loop {
            let before = part.len();
            let error = match self.go_on(url, part, meter) {
                Err(Failure::Broken(error)) => error,
                done => return done,
            };
            let progress = part.len() > before;
            tries = if progress { TRIES } else { tries };
            if tries == 0 {
                let kept = match part.len() {
                    0 => return Err(Failure::Broken(error)),
                    _ => format!("{} keeps what has come", part.path.display()),
                };
                return Err(Failure::Broken(error.context(kept)));
            }
            tries -= 1;
            if !progress {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn go_on(&self, url: &Url, part: &Part, meter: &ProgressBar) -> Result<(), Failure> {
        let have = part.len();
        let version = part.version().filter(|_| have > 0);
        let range = format!("bytes={have}-");
        let response = match &version {
            Some(version) => self.ask(url, &[("Range", &range), ("If-Range", version)])?,
            None => self.ask(url, &[])?,
        };
        let start = match response.status {
            200 => 0,
            206 if starts_at(&response, have) => have,
            // All of it has come already, but the rename was not reached.
            416 if is_whole(&response, have) => return Ok(()),
            206 | 416 => {
                part.forget_version()?;
                return Err(Failure::Broken(anyhow::anyhow!("the server's title has changed")));
            }
            _ => return Err(refused(response)),
        };
        let mut file = part.open(start)?;
        // A weak tag does not vouch for bytes (RFC 9110, 13.1.5): then the next try starts over.
        match response.field("etag").filter(|tag| tag.starts_with('"')) {
            Some(tag) => part.set_version(tag)?,
            None => part.forget_version()?,
        }
        copy(response, start, &mut file, meter)?;
        file.sync_all().with_context(|| format!("cannot write {}", part.path.display()))?;
        Ok(())
    }

    /// Asks, and asks again while the server has no room and there is time left.
    fn ask(&self, url: &Url, fields: &[(&str, &str)]) -> Result<Response, Failure> {
        let until = Instant::now() + Duration::from_nanos(self.wait.0);
        loop {
            let response = client::fetch("GET", url, fields).map_err(Failure::from)?;
            let left = until.saturating_duration_since(Instant::now());
            if response.status != 503 || left.is_zero() {
                return Ok(response);
            }
            let after = response.field("retry-after").and_then(|s| s.parse().ok()).unwrap_or(1);
            std::thread::sleep(Duration::from_secs(after).clamp(PAUSE, left.max(PAUSE)));
        }
    }
}

/// How often a connection may bring nothing.
const TRIES: u32 = 5;
/// Between two such tries.
const PAUSE: Duration = Duration::from_secs(1);

/// A download that is not whole yet: its bytes, and the version that they are of.
struct Part {
    path: PathBuf,
    version_path: PathBuf,
}

impl Part {
    fn new(output: &Path) -> Self {
        let beside = |ending: &str| {
            let mut name = output.as_os_str().to_owned();
            name.push(ending);
            PathBuf::from(name)
        };
        Self { path: beside(".part"), version_path: beside(".part.etag") }
    }

    fn len(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |meta| meta.len())
    }

    fn version(&self) -> Option<String> {
        let tag = std::fs::read_to_string(&self.version_path).ok()?;
        (tag.len() > 2 && tag.bytes().all(|b| b.is_ascii_graphic())).then_some(tag)
    }

    fn set_version(&self, tag: &str) -> Result<(), Failure> {
        std::fs::write(&self.version_path, tag)
            .with_context(|| format!("cannot write {}", self.version_path.display()))?;
        Ok(())
    }

    fn forget_version(&self) -> Result<(), Failure> {
        match std::fs::remove_file(&self.version_path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(anyhow::Error::new(error).into())
            }
            _ => Ok(()),
        }
    }

    /// Opens the part for writing at `start`; what lay behind it is gone. Its version is unknown
    /// until it is set.
    fn open(&self, start: u64) -> Result<File, Failure> {
        let open = || -> io::Result<File> {
            let options =
                OpenOptions::new().write(true).create(true).truncate(false).open(&self.path);
            let mut file = options?;
            file.set_len(start)?;
            file.seek(SeekFrom::Start(start))?;
            Ok(file)
        };
        Ok(open().with_context(|| format!("cannot write {}", self.path.display()))?)
    }
}

fn starts_at(response: &Response, have: u64) -> bool {
    let range = response.field("content-range").unwrap_or_default();
    range.starts_with(&format!("bytes {have}-"))
}

fn is_whole(response: &Response, have: u64) -> bool {
    response.field("content-range") == Some(&format!("bytes */{have}"))
}

/// What an answer other than the title means.
pub(super) fn refused(response: Response) -> Failure {
    let status = response.status;
    let after = response.field("retry-after").map(String::from);
    let body = response.into_text(64 * 1024).unwrap_or_default();
    let said = body.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let said = if said.starts_with('<') { "" } else { said };
    match status {
        503 => {
            let again =
                after.map_or(String::new(), |s| format!("; try again in {s} s, or use --wait"));
            Failure::NoRoom(format!("the server has no room now: {said}{again}"))
        }
        404 => anyhow::anyhow!("there is nothing of this name on the server").into(),
        _ => anyhow::anyhow!("the server answered {status}: {said}").into(),
    }
}

/// Copies a body, showing where it is.
fn copy(
    mut response: Response,
    start: u64,
    to: &mut impl Write,
    meter: &ProgressBar,
) -> Result<(), Failure> {
    meter.set_style(style());
    meter.set_length(start + response.len);
    meter.set_position(start);
    meter.reset_eta();
    let mut chunk = vec![0; 256 * 1024];
    loop {
        let read = match response.body.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(ClientError::Broken(error).into()),
        };
        to.write_all(&chunk[..read]).context("cannot write")?;
        meter.inc(read as u64);
    }
    to.flush().context("cannot write")?;
    Ok(())
}

pub(super) fn rate_of(bytes: u64, taken: Duration) -> BitRate {
    let nanos = taken.as_nanos().max(1);
    BitRate((u128::from(bytes) * 8_000_000_000 / nanos) as u64)
}

pub(super) fn style() -> ProgressStyle {
    let template = "[{bar:32}] {bytes} of {total_bytes}  {rate}  {left} left";
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    style
        .with_key("rate", |state: &ProgressState, to: &mut dyn std::fmt::Write| {
            let bits = BitRate((state.per_sec() * 8.0) as u64 / 1000 * 1000);
            // A line that cannot be formatted is not shown; nothing else depends on it.
            write!(to, "{bits}").unwrap_or_default();
        })
        .with_key("left", |state: &ProgressState, to: &mut dyn std::fmt::Write| {
            let seconds = state.eta().as_secs();
            write!(to, "{}:{:02}", seconds / 60, seconds % 60).unwrap_or_default();
        })
        .progress_chars("=> ")
}
