//! `tactus get`: downloads a title with a progress bar, and resumes an interrupted download.
//!
//! Promise: FILE appears only when it is complete, and all its bytes are of one version of the
//! title. The partial download is kept in FILE.part with the version's entity tag, and is resumed
//! only if the server still has that version (`If-Range`). A broken connection and a server that is
//! unreachable or has no room are retried, as by `put`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use indicatif::ProgressBar;
use tactus_core::units::{BitRate, Bytes, Nanos};
use tactus_notation::units;

use super::client::{self, ClientError, Response, Url};
use super::progress::{meter, rate_of, style};
use super::retries::{AttemptError, Retries};
use super::{Failure, console};

/// Downloads a title
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus get http://127.0.0.1:8080/film.ts
  tactus get http://127.0.0.1:8080/film.ts --rate max -o /tmp/film.ts
  tactus get http://127.0.0.1:8080/film.ts -o - | ffplay -

The download is kept in FILE.part until it is complete. An interrupted one is resumed: run the same
command again to go on after this command was ended.

Exit codes: 0 done; 1 failed, run it again to go on; 2 wrong arguments; 3 the server has no room.")]
pub(super) struct Get {
    /// What to download, like http://127.0.0.1:8080/film.ts
    url: String,
    /// Where to; `-` is standard output [default: the last part of the URL, here]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Ask for this rate, like 8.8M or "8.8 Mbit/s"; `max` is as fast as it goes
    #[arg(short, long, value_name = "RATE", value_parser = read_rate)]
    rate: Option<RequestedRate>,
    /// While the server cannot be reached, or has no room, try again for this long
    #[arg(short, long, value_name = "TIME", default_value = "1 min")]
    #[arg(value_parser = units::read::<Nanos>)]
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
enum RequestedRate {
    Exact(BitRate),
    Max,
}

fn read_rate(text: &str) -> Result<RequestedRate, String> {
    if text == "max" {
        return Ok(RequestedRate::Max);
    }
    let rate = units::read_short_rate(text).map_err(|error| error.to_string())?;
    if rate.0 == 0 {
        return Err("a rate of zero never ends; leave it out, or write max".into());
    }
    Ok(RequestedRate::Exact(rate))
}

impl Get {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut url = Url::parse(&self.url).map_err(Failure::usage)?;
        match self.rate {
            Some(RequestedRate::Exact(rate)) => url = url.with_query("rate", &rate.0.to_string()),
            Some(RequestedRate::Max) => url = url.with_query("rate", "max"),
            None => {}
        }
        let output = match &self.output {
            Some(output) => output.clone(),
            None => url.file_name().map(PathBuf::from).ok_or_else(|| {
                Failure::usage(format!("{} has no file name; choose one with -o FILE", self.url))
            })?,
        };
        let meter = meter(self.quiet, None);
        let begun = Instant::now();
        if output == Path::new("-") {
            self.to_stdout(&url, &meter)?;
            self.tell("standard output", &meter, begun);
            return Ok(());
        }
        if output.exists() && !self.force {
            let message = format!(
                "{} already exists; choose another file with -o, or replace it with --force",
                output.display()
            );
            return Err(Failure::usage(message));
        }
        let part = PartialDownload::new(&output);
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
            console::notice(format_args!(
                "{output}: {bytes:.1} in {:.1} s, {rate:.1}",
                taken.as_secs_f64()
            ));
        }
    }

    /// Bytes on standard output cannot be withdrawn: a resumed transfer must be of the same
    /// version.
    fn to_stdout(&self, url: &Url, meter: &ProgressBar) -> Result<(), Failure> {
        let (mut out, mut version) = (io::stdout().lock(), None::<String>);
        Retries::new(self.wait, self.quiet).run(
            || meter.position(),
            || {
                let have = meter.position();
                let range = format!("bytes={have}-");
                let response = match &version {
                    Some(version) => self.ask(url, &[("Range", &range), ("If-Range", version)])?,
                    None if have > 0 => {
                        return Err(AttemptError::failed(
                            "the server sends no entity tag for this title, so the download \
                             cannot be resumed",
                        ));
                    }
                    None => self.ask(url, &[])?,
                };
                match response.status {
                    200 if have == 0 => {}
                    206 if starts_at(&response, have) => {}
                    416 if is_whole(&response, have) => return Ok(()),
                    200 | 206 | 416 => {
                        let text = "the title changed on the server during the download";
                        return Err(AttemptError::failed(text));
                    }
                    _ => return Err(refused(response).into()),
                }
                version = response.field("etag").filter(|tag| tag.starts_with('"')).map(Into::into);
                copy(response, have, &mut out, meter)
            },
        )
    }

    /// Downloads until FILE.part is complete.
    fn to_file(
        &self,
        url: &Url,
        part: &PartialDownload,
        meter: &ProgressBar,
    ) -> Result<(), Failure> {
        let done =
            Retries::new(self.wait, self.quiet).run(|| part.len(), || self.go_on(url, part, meter));
        match done {
            Err(Failure::Broken(error)) if part.len() > 0 => {
                let kept = format!("{} holds the part received so far", part.path.display());
                Err(Failure::Broken(error.context(kept)))
            }
            done => done,
        }
    }

    fn go_on(
        &self,
        url: &Url,
        part: &PartialDownload,
        meter: &ProgressBar,
    ) -> Result<(), AttemptError> {
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
            // The file is complete, but an interruption prevented the rename.
            416 if is_whole(&response, have) => return Ok(()),
            206 | 416 => {
                part.forget_version()?;
                let changed = anyhow::anyhow!("the title has changed on the server");
                return Err(AttemptError::Temporary(Failure::Broken(changed), None));
            }
            _ => return Err(refused(response).into()),
        };
        let mut file = part.open(start)?;
        // A weak tag does not identify bytes (RFC 9110, 13.1.5): the next attempt starts over.
        match response.field("etag").filter(|tag| tag.starts_with('"')) {
            Some(tag) => part.set_version(tag)?,
            None => part.forget_version()?,
        }
        copy(response, start, &mut file, meter)?;
        file.sync_all().with_context(|| format!("cannot write {}", part.path.display()))?;
        Ok(())
    }

    /// Sends the request; some refusals may be retried.
    fn ask(&self, url: &Url, fields: &[(&str, &str)]) -> Result<Response, AttemptError> {
        let response = client::fetch("GET", url, fields)?;
        if !super::retries::is_temporary(response.status) {
            return Ok(response);
        }
        let after = super::retries::retry_after(&response);
        Err(AttemptError::Temporary(refused(response), after))
    }
}

/// An incomplete download: its bytes, and their version.
struct PartialDownload {
    path: PathBuf,
    version_path: PathBuf,
}

impl PartialDownload {
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

    /// Opens the part for writing at `start` and cuts it there. Its version is unknown until it is
    /// set.
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

/// The failure for an answer other than the title.
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
        404 => anyhow::anyhow!("the server has no title of this name").into(),
        _ => anyhow::anyhow!("the server answered {status}: {said}").into(),
    }
}

/// Copies a body and shows the progress.
fn copy(
    mut response: Response,
    start: u64,
    to: &mut impl Write,
    meter: &ProgressBar,
) -> Result<(), AttemptError> {
    meter.set_style(style());
    if let Some(len) = response.len {
        meter.set_length(start + len);
    }
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
