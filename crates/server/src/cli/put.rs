//! `tactus put`: uploads files and directories with a progress bar for each file, and resumes
//! interrupted uploads.
//!
//! Promise: a title appears only when it is complete. Bytes that the server has stored are not sent
//! again (tus 1.0), whether the connection, the server or this command was interrupted. A file that
//! cannot be stored is reported, and the other files are sent. The upload of each file is recorded
//! in the user's state directory until it is done.

mod tree;

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use anyhow::Context;
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};
use tactus_core::units::{Bytes, Nanos};
use tactus_http::percent;
use tactus_notation::units;

use super::client::{self, ClientError, RequestBody, Response, Url, escaped};
use super::progress::{meter, rate_of, style};
use super::retries::{AttemptError, Retries, is_temporary, retry_after};
use super::token::Credentials;
use super::{Failure, console, state};
use tree::Plan;

/// Uploads files
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus put film.ts http://127.0.0.1:8080/films/ --token-file token
  TACTUS_TOKEN=... tactus put a.ts b.ts http://127.0.0.1:8080/
  tactus put --recursive films https://media.example/       becomes /films/...

A title appears when it is whole. After a cut, or a restart of the server, the upload goes on where
it stopped; run the same command again to go on after this command was ended.

A file that cannot be stored, as because there is a title of its name, is named, and the others are
sent all the same. With --recursive a directory is sent with all files in it, hidden ones too; links
to files are followed, links to directories are not, and empty directories are not made.

Exit codes: 0 all is stored; 1 a file is not, run it again to go on; 2 wrong arguments; 3 the server
has no room.")]
#[command(override_usage = "tactus put [OPTIONS] <FILE>... <URL>")]
pub(super) struct Put {
    /// What to upload, and where to: a directory's URL that ends with `/`, or one file's own
    #[arg(required = true, num_args = 2.., value_names = ["FILE|URL"])]
    files: Vec<PathBuf>,
    /// Upload directories with all their files
    #[arg(short, long)]
    recursive: bool,
    /// Replace a title that has the name
    #[arg(short, long)]
    force: bool,
    /// While the server cannot be reached, or takes nothing, try again for this long
    #[arg(short, long, value_name = "TIME", default_value = "1 min")]
    #[arg(value_parser = units::read::<Nanos>)]
    wait: Nanos,
    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    credentials: Credentials,
}

/// Where uploads are created on a server.
const UPLOADS: &str = "/api/v1/uploads";

impl Put {
    pub(super) fn run(self) -> Result<(), Failure> {
        let (url, files) = self.files.split_last().expect("two are required");
        let url = url.to_str().ok_or_else(|| Failure::usage("a URL is text"))?;
        let url = Url::parse(url).map_err(Failure::usage)?;
        if files.len() > 1 && !url.path.ends_with('/') {
            return Err(Failure::usage(
                "several files go into a directory: end the URL with a slash",
            ));
        }
        let authorization = self.credentials.field()?;
        let plan = Plan::of(files, &url, self.recursive)?;
        let (alone, total) = (plan.is_one_file, plan.uploads.len());
        let mut failed = plan.left_out > 0;
        for (nth, (path, to)) in plan.uploads.into_iter().enumerate() {
            let name = path.display().to_string();
            let result = Source::open(&path).map_err(|failure| (failure, false)).and_then(|file| {
                let meter = meter(self.quiet, Some(file.len));
                let upload = Upload { put: &self, to, file, authorization: &authorization, meter };
                upload.run().map_err(|failure| {
                    // Other failures would be the same for each file.
                    let is_for_all = !matches!(failure, Failure::Failed(_));
                    (failure, is_for_all)
                })
            });
            let Err((failure, is_for_all)) = result else { continue };
            if alone {
                return Err(failure.about(&name));
            }
            console::notice(format_args!("tactus: {name}: {failure}"));
            failed = true;
            if is_for_all {
                if nth + 1 < total {
                    console::notice(format_args!(
                        "tactus: {} more files were not sent",
                        total - nth - 1
                    ));
                }
                return Err(Failure::Several(failure.code()));
            }
        }
        if failed { Err(Failure::Several(1)) } else { Ok(()) }
    }
}

/// A file that is uploaded.
struct Source {
    path: PathBuf,
    file: File,
    len: u64,
    modified: SystemTime,
}

impl Source {
    fn open(path: &Path) -> Result<Self, Failure> {
        let open = || -> std::io::Result<Self> {
            let path = path.canonicalize()?;
            let file = File::open(&path)?;
            let facts = file.metadata()?;
            if !facts.is_file() {
                return Err(std::io::Error::other("it is no file"));
            }
            Ok(Self { path, file, len: facts.len(), modified: facts.modified()? })
        };
        open()
            .map_err(|error| Failure::usage(format!("{} cannot be read: {error}", path.display())))
    }
}

struct Upload<'a> {
    put: &'a Put,
    to: Url,
    file: Source,
    authorization: &'a str,
    meter: ProgressBar,
}

impl Upload<'_> {
    fn run(mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        self.meter.set_style(style());
        let memory = ResumeRecord::of(&self.file, &self.to);
        let mut known = memory.recall().and_then(|at| self.to.join(&at).ok());
        let meter = self.meter.clone();
        let retries = Retries::new(self.put.wait, self.put.quiet);
        let done = retries.run(|| meter.position(), || self.attempt(&mut known, &memory));
        self.meter.finish_and_clear();
        done?;
        memory.forget();
        if !self.put.quiet {
            let (taken, len) = (begun.elapsed(), self.file.len);
            let rate = rate_of(len, taken);
            let name = self.to.text();
            console::notice(format_args!(
                "{name}: {:.1} in {:.1} s, {rate:.1}",
                Bytes(len),
                taken.as_secs_f64()
            ));
        }
        Ok(())
    }

    /// Sends the missing bytes on one connection.
    fn attempt(
        &mut self,
        known: &mut Option<Url>,
        memory: &ResumeRecord,
    ) -> Result<(), AttemptError> {
        let offset = match known {
            None => None,
            Some(at) => self.offset(at)?,
        };
        let (at, offset) = match offset {
            Some((at, offset)) => (known.insert(at).clone(), offset),
            // The upload never began, has expired, or belongs to another disk of the server.
            _ => {
                *known = None;
                let Some(at) = self.create()? else { return Ok(()) };
                memory.keep(&at.path);
                (known.insert(at).clone(), 0)
            }
        };
        self.meter.set_position(offset);
        if offset == self.file.len {
            return Ok(());
        }
        self.file.file.seek(SeekFrom::Start(offset)).context("cannot read")?;
        let text = offset.to_string();
        let mut fields = self.fields();
        fields.push(("Upload-Offset", &text));
        fields.push(("Content-Type", "application/offset+octet-stream"));
        let meter = &self.meter;
        let seen = |count| meter.inc(count);
        let len = Some(self.file.len - offset);
        let body = RequestBody { from: &mut &self.file.file, len, seen: &seen };
        let answer = client::send("PATCH", &at, &fields, Some(body))?;
        match answer.status {
            204 => Ok(()),
            // The offset has changed, or the server is still ending an earlier request.
            409 | 423 => Err(AttemptError::Temporary(refused(answer), None)),
            404 | 410 => {
                *known = None;
                Err(AttemptError::Temporary(refused(answer), None))
            }
            _ => Err(stopped(answer)),
        }
    }

    /// The upload's URL and how much of it the server has stored; none when the upload is unknown
    /// to the server.
    fn offset(&self, at: &Url) -> Result<Option<(Url, u64)>, AttemptError> {
        let answer = client::fetch("HEAD", at, &self.fields())?;
        match answer.status {
            200 => {
                let offset = answer.field("upload-offset").and_then(|text| text.parse().ok());
                let offset = offset.filter(|&offset| offset <= self.file.len);
                let strange = || {
                    AttemptError::Failed(
                        anyhow::anyhow!("the server sent an invalid upload offset").into(),
                    )
                };
                Ok(Some((answer.url.clone(), offset.ok_or_else(strange)?)))
            }
            404 | 410 => Ok(None),
            _ => Err(stopped(answer)),
        }
    }

    /// Creates the upload; none when that was all, as for an empty file.
    fn create(&self) -> Result<Option<Url>, AttemptError> {
        let path = percent::decode(&self.to.path)
            .ok_or_else(|| Failure::usage(format!("{} is no path", self.to.path)))?;
        let mut url = self.to.join(UPLOADS)?;
        url = url.with_query("path", &escaped(&path));
        let len = self.file.len.to_string();
        let mut fields = self.fields();
        fields.push(("Upload-Length", &len));
        if !self.put.force {
            fields.push(("If-None-Match", "*"));
        }
        let nothing = RequestBody { from: &mut std::io::empty(), len: Some(0), seen: &|_| {} };
        let answer = client::send("POST", &url, &fields, Some(nothing))?;
        if answer.status != 201 {
            return Err(stopped(answer));
        }
        if self.file.len == 0 {
            return Ok(None);
        }
        let at = answer
            .field("location")
            .ok_or_else(|| ClientError::Answer("it has no location".into()))?;
        Ok(Some(answer.url.join(at)?))
    }

    fn fields(&self) -> Vec<(&str, &str)> {
        vec![("Tus-Resumable", "1.0.0"), ("Authorization", self.authorization)]
    }
}

fn stopped(answer: Response) -> AttemptError {
    let (passes, after) = (is_temporary(answer.status), retry_after(&answer));
    let failure = refused(answer);
    if passes { AttemptError::Temporary(failure, after) } else { AttemptError::Failed(failure) }
}

/// The failure for an unexpected answer.
pub(super) fn refused(answer: Response) -> Failure {
    let status = answer.status;
    let body = answer.into_text(64 * 1024).unwrap_or_default();
    let said = body.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    match status {
        413 | 429 | 503 | 507 => Failure::NoRoom(format!(
            "the server accepts no more uploads now: \
            {said}"
        )),
        401 => Failure::usage("the server refused the token; check it"),
        404 => anyhow::anyhow!("the server has no title of this name").into(),
        405 => anyhow::anyhow!("the server accepts no uploads; start it with --uploads").into(),
        412 => anyhow::anyhow!("{said}; replace it with --force").into(),
        _ => anyhow::anyhow!("the server answered {status}: {said}").into(),
    }
}

/// The upload of a file, stored for the next attempt.
struct ResumeRecord {
    file: Option<PathBuf>,
}

impl ResumeRecord {
    /// For this version of the file and this destination. Without a home directory nothing is
    /// stored.
    fn of(source: &Source, to: &Url) -> Self {
        let nanos = source.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut name = Sha256::new();
        for part in [
            source.path.as_os_str().as_encoded_bytes(),
            to.text().as_bytes(),
            &source.len.to_le_bytes(),
            &nanos.as_nanos().to_le_bytes(),
        ] {
            name.update((part.len() as u64).to_le_bytes());
            name.update(part);
        }
        let name = data_encoding::HEXLOWER.encode(&name.finalize()[..16]);
        Self {
            file: state::directory().map(|state| state.join("uploads")).map(|dir| dir.join(name)),
        }
    }

    fn recall(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.file.as_ref()?).ok()?;
        text.starts_with(UPLOADS).then(|| text.trim_end().to_owned())
    }

    fn keep(&self, at: &str) {
        let Some(file) = &self.file else { return };
        let keep = || -> std::io::Result<()> {
            std::fs::create_dir_all(file.parent().expect("it has a directory"))?;
            std::fs::write(file, format!("{at}\n"))
        };
        if let Err(error) = keep() {
            // The upload itself continues.
            console::notice(format_args!(
                "tactus: this upload cannot be resumed later: {}: {error}",
                file.display()
            ));
        }
    }

    fn forget(&self) {
        if let Some(file) = &self.file {
            // An upload in one request has no record.
            drop(std::fs::remove_file(file));
        }
    }
}
