//! `tactus record`: records a live stream as titles of a server.
//!
//! Promise: the server itself receives a stream from the network, with reserved disk time and
//! memory; a break of this command's connection loses no packet. A stream from standard input is
//! sent at its rate, and its received part becomes a title, however it ends.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};
use tactus_core::units::{BitRate, Bytes, Nanos};
use tactus_notation::units;
use tactus_playout::recording::{Input, Rotate};

use super::client::{self, ClientError, RequestBody, Response, Url};
use super::progress;
use super::put::refused;
use super::serve::signals;
use super::token::Credentials;
use super::{Failure, console};

/// Records a live stream to titles of a server
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus record udp://239.1.1.1:5000 --to http://127.0.0.1:8080/live/match.ts --duration \"2 h\"
  tactus record rtp://0.0.0.0:5004 --to http://127.0.0.1:8080/live/%Y%m%d-%H%M%S.ts --rotate \"1 h\"
  tactus record \"udp://232.1.1.1:5000?source=10.0.0.5\" --interface eth1 --to http://host/a-%n.ts
  ffmpeg -i rtsp://camera/ -c copy -f mpegts - | tactus record - --rate 8M --to http://host/a.ts

A stream from the network is received by the server: the address is one of its own, or a group that
it can join. The recording is admitted at its rate, and ends with Ctrl-C or after --duration; with
--detach it goes on until `DELETE /api/v1/recordings/NAME`. So it does when this command is killed.
Names of titles take %Y %m %d %H %M %S in UTC and %n, a counter.

Exit codes: 0 done; 1 failed, or nothing came; 2 wrong arguments; 3 the server has no room.")]
pub(super) struct Record {
    /// udp://ADDRESS:PORT or rtp://ADDRESS:PORT, to one host or a group; or - for standard input
    #[arg(value_name = "SOURCE")]
    from: String,
    /// URL of the title, or of many: names may have fields
    #[arg(long, value_name = "URL")]
    to: String,
    /// Reserve this rate, like 8M or "8 Mbit/s" [default: by the stream's own clock]
    #[arg(short, long, value_name = "RATE", value_parser = read_rate)]
    rate: Option<BitRate>,
    /// End after this time, counted from the first packet
    #[arg(short, long, value_name = "TIME", value_parser = units::read::<Nanos>)]
    duration: Option<Nanos>,
    /// Begin another title at whole multiples of this time, or after this size
    #[arg(long, value_name = "TIME|SIZE", value_parser = Rotate::parse)]
    rotate: Option<Rotate>,
    /// The server's interface on which a group is joined
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// How it is called in the status and in metrics [default: by its title]
    #[arg(long)]
    name: Option<String>,
    /// Leave it to the server, and end at once
    #[arg(long)]
    detach: bool,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    credentials: Credentials,
}

const RECORDINGS: &str = "/api/v1/recordings";
/// Interval of the status requests.
const LOOK: Duration = Duration::from_millis(250);
/// A server that does not answer for this long does not recover.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than the status of a recording.
const STATUS_MAX: u64 = 256 * 1024;

fn read_rate(text: &str) -> Result<BitRate, String> {
    let rate = units::read_short_rate(text).map_err(|error| error.to_string())?;
    if rate.0 == 0 { Err("--rate must be above zero".into()) } else { Ok(rate) }
}

impl Record {
    pub(super) fn run(self) -> Result<(), Failure> {
        let to = Url::parse(&self.to).map_err(Failure::usage)?;
        if to.path.ends_with('/') {
            return Err(Failure::usage("the URL ends with a slash; add the name of the title"));
        }
        if self.from == "-" {
            return self.send(&to);
        }
        Input::parse(&self.from).map_err(Failure::usage)?;
        if self.detach && self.duration.is_some() {
            return Err(Failure::usage(
                "--duration cannot be combined with --detach; remove one of \
                them",
            ));
        }
        self.receive(&to)
    }

    /// Starts the recording on the server, which receives the stream.
    fn receive(&self, to: &Url) -> Result<(), Failure> {
        let authorization = self.credentials.field()?;
        let interrupted = interruption()?;
        let wanted = self.wanted();
        let name = wanted["name"].as_str().unwrap_or_default().to_owned();
        let body = Value::Object(wanted).to_string();
        let fields = [("Authorization", &*authorization), ("Content-Type", "application/json")];
        let (len, from) = (Some(body.len() as u64), &mut body.as_bytes());
        let sent = RequestBody { from, len, seen: &|_| {} };
        let answer = client::send("POST", &to.join(RECORDINGS)?, &fields, Some(sent))?;
        if answer.status != 201 {
            return Err(not_begun(answer));
        }
        if self.detach {
            if !self.quiet {
                console::notice(format_args!(
                    "the server records {}: {RECORDINGS}/{name}",
                    self.from
                ));
            }
            return Ok(());
        }
        let at = to.join(&format!("{RECORDINGS}/{name}"))?;
        let watch =
            RecordingProgress { at, authorization, meter: meter(self.quiet), quiet: self.quiet };
        watch.until_ended(self.duration, &interrupted)
    }

    /// The recording, as in the configuration.
    fn wanted(&self) -> Map<String, Value> {
        let pattern = pattern_of(&self.to);
        let name = self.name.clone().unwrap_or_else(|| name_of(pattern));
        let mut keys = Map::new();
        let mut say = |key: &str, value: Option<String>| {
            keys.extend(value.map(|value| (key.to_owned(), Value::String(value))));
        };
        say("name", Some(name));
        say("from", Some(self.from.clone()));
        say("to", Some(pattern.to_owned()));
        say("rate", self.rate.map(units::exact));
        say("rotate", self.rotate.map(|rotate| rotate.to_string()));
        say("interface", self.interface.clone());
        keys
    }

    /// Sends the stream from standard input.
    fn send(&self, to: &Url) -> Result<(), Failure> {
        let misplaced = [
            ("--rotate", self.rotate.is_some()),
            ("--interface", self.interface.is_some()),
            ("--name", self.name.is_some()),
            ("--detach", self.detach),
        ];
        if let Some((option, _)) = misplaced.iter().find(|(_, is_there)| *is_there) {
            return Err(Failure::usage(format!(
                "{option} is for streams that the server receives, not for standard input"
            )));
        }
        let rate = self.rate.ok_or_else(|| {
            Failure::usage("recording from standard input needs --rate, like --rate 8M")
        })?;
        let authorization = self.credentials.field()?;
        let meter = meter(self.quiet);
        let seen = |count| meter.inc(count);
        let mut from = TimedReader {
            from: io::stdin().lock(),
            interrupted: interruption()?,
            duration: self.duration.map(|time| Duration::from_nanos(time.0)),
            since: None,
        };
        let url = to.clone().with_query("rate", &rate.0.to_string());
        let sent = RequestBody { from: &mut from, len: None, seen: &seen };
        let answer = client::send("PUT", &url, &[("Authorization", &authorization)], Some(sent));
        let count = meter.position();
        meter.finish_and_clear();
        let answer = answer?;
        match answer.status {
            201 | 204 => {
                if !self.quiet {
                    console::notice(format_args!("{}: {:.1} stored", to.text(), Bytes(count)));
                }
                Ok(())
            }
            400 if count == 0 => Err(anyhow::anyhow!("standard input was empty").into()),
            _ => Err(refused(answer)),
        }
    }
}

/// The pattern of the titles' names: the part of a URL after the server, as written.
fn pattern_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').map_or("/", |at| &rest[at..])
}

/// The name of a recording whose titles have these names: their constant part.
fn name_of(pattern: &str) -> String {
    let last = pattern.rfind('/').map_or(0, |slash| slash + 1);
    let ending = pattern[last..].rfind('.').map_or(pattern.len(), |dot| last + dot);
    let mut name = String::new();
    let mut letters = pattern[..ending].chars();
    while let Some(letter) = letters.next() {
        match letter {
            '%' => drop(letters.next()),
            letter if letter.is_ascii_alphanumeric() => name.push(letter),
            _ if !name.ends_with('-') => name.push('-'),
            _ => {}
        }
    }
    let name: String = name.trim_matches('-').chars().take(NAME_MAX).collect();
    if name.is_empty() { "record".into() } else { name }
}

/// Upper bound of a name (see `[[recording]]`).
const NAME_MAX: usize = 64;

/// A recording that has begun on the server.
struct RecordingProgress {
    at: Url,
    authorization: String,
    meter: ProgressBar,
    quiet: bool,
}

impl RecordingProgress {
    fn ask(&self, method: &str) -> Result<Response, ClientError> {
        client::fetch(method, &self.at, &[("Authorization", &self.authorization)])
    }

    /// Waits until the recording ends, and stops it when its time is over.
    fn until_ended(
        &self,
        duration: Option<Nanos>,
        interrupted: &AtomicBool,
    ) -> Result<(), Failure> {
        let (mut first, mut is_ending) = (None, false);
        let mut alarms = Vec::new();
        let mut heard = Instant::now();
        loop {
            let answer = match self.ask("GET") {
                Ok(answer) => answer,
                // The recording does not need this connection.
                Err(_) if heard.elapsed() < PATIENCE => {
                    std::thread::sleep(LOOK);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            heard = Instant::now();
            if answer.status == 404 {
                let text = "the recording is no longer on the server, which may have been \
                    restarted; the data received until then is a title";
                return Err(anyhow::anyhow!(text).into());
            }
            let status = status(answer)?;
            self.show(&status, &mut alarms);
            if status["state"] == "stopped" {
                return self.ended(&status);
            }
            if status["state"] != "waiting" {
                first.get_or_insert(heard);
            }
            let is_over = duration.zip(first).is_some_and(|(duration, first)| {
                first.elapsed() >= Duration::from_nanos(duration.0)
            });
            if !is_ending && (is_over || interrupted.load(Ordering::Relaxed)) {
                // The answer may arrive before the last title is stored: this command waits for
                // that.
                is_ending = self.ask("DELETE").is_ok_and(|answer| answer.status < 300);
                continue;
            }
            std::thread::sleep(LOOK);
        }
    }

    fn show(&self, status: &Value, known: &mut Vec<String>) {
        let bytes = count(status, "stored_bytes") + status["title_bytes"].as_u64().unwrap_or(0);
        self.meter.set_position(bytes);
        let title = status["title"].as_str().or(status["address"].as_str()).unwrap_or_default();
        self.meter.set_message(title.to_owned());
        let alarms = status["alarms"].as_object().cloned().unwrap_or_default();
        for (alarm, what) in &alarms {
            if !known.contains(alarm) {
                let what = what.as_str().unwrap_or(alarm);
                self.meter.suspend(|| console::notice(format_args!("tactus: {what}")));
            }
        }
        *known = alarms.into_iter().map(|(alarm, _)| alarm).collect();
    }

    /// Prints the result, and removes the recording from the server.
    fn ended(&self, status: &Value) -> Result<(), Failure> {
        self.meter.finish_and_clear();
        if self.ask("DELETE").is_err() {
            console::notice(format_args!("tactus: the server still lists {}", self.at.path));
        }
        let (titles, stored) = (count(status, "titles"), Bytes(count(status, "stored_bytes")));
        let lost = Bytes(count(status, "write_gap_bytes"));
        if lost.0 > 0 {
            console::notice(format_args!(
                "tactus: the disk was too slow for {lost:.1}: the recording has gaps"
            ));
        }
        if !self.quiet {
            let last = status["last_title"].as_str().unwrap_or("no title");
            match titles {
                0 | 1 => console::notice(format_args!("{last}: {stored:.1} stored")),
                more => {
                    console::notice(format_args!("{more} titles to {last}: {stored:.1} stored"))
                }
            }
        }
        match (count(status, "titles_failed"), titles) {
            (0, 0) => Err(anyhow::anyhow!("nothing came").into()),
            (0, _) => Ok(()),
            (failed, _) => Err(anyhow::anyhow!("{failed} titles could not be stored").into()),
        }
    }
}

fn status(answer: Response) -> Result<Value, Failure> {
    if answer.status != 200 {
        return Err(refused(answer));
    }
    let text = answer.into_text(STATUS_MAX)?;
    Ok(serde_json::from_str(&text).context(
        "the server's answer is not valid JSON of this API; \
        check the URL and the server's version",
    )?)
}

fn count(status: &Value, name: &str) -> u64 {
    status["counts"][name].as_u64().unwrap_or(0)
}

/// The failure for a recording that does not begin.
fn not_begun(answer: Response) -> Failure {
    match answer.status {
        400 | 403 | 409 => {
            let status = answer.status;
            let said = answer.into_text(STATUS_MAX).unwrap_or_default();
            let said = said.trim();
            if status == 400 { Failure::usage(said) } else { anyhow::anyhow!("{said}").into() }
        }
        404 => anyhow::anyhow!("the server accepts no uploads; start it with --uploads").into(),
        _ => refused(answer),
    }
}

fn meter(quiet: bool) -> ProgressBar {
    let style = ProgressStyle::with_template("{elapsed_precise}  {bytes}  {msg}");
    progress::meter(quiet, None).with_style(style.expect("the template is well-formed"))
}

/// Set by the first Ctrl-C or SIGTERM; a second one ends the program.
fn interruption() -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let end = {
        let _within = runtime.enter();
        signals()?
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            end.await;
            flag.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        });
    });
    Ok(interrupted)
}

/// A reader that ends after a time.
struct TimedReader<R> {
    from: R,
    interrupted: Arc<AtomicBool>,
    duration: Option<Duration>,
    since: Option<Instant>,
}

impl<R: Read> Read for TimedReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let is_over = self
            .duration
            .zip(self.since)
            .is_some_and(|(duration, since)| since.elapsed() >= duration);
        if is_over || self.interrupted.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let count = self.from.read(into)?;
        self.since.get_or_insert_with(Instant::now);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_called_by_what_does_not_change_in_its_titles() {
        for (pattern, name) in [
            ("/live/match.ts", "live-match"),
            ("/live/news/%Y-%m-%d/%H%M%S.ts", "live-news"),
            ("/a-%n.ts", "a"),
            ("/%n.ts", "record"),
            ("/a", "a"),
            ("/größe/%n.ts", "gr-e"),
        ] {
            assert_eq!(name_of(pattern), name, "{pattern}");
        }
        assert_eq!(pattern_of("http://host:8080/live/%n.ts"), "/live/%n.ts");
        assert_eq!(pattern_of("http://host"), "/");
    }

    #[test]
    fn what_comes_ends_when_it_is_enough() {
        let interrupted = Arc::new(AtomicBool::new(false));
        let mut until = TimedReader {
            from: io::repeat(7),
            interrupted: Arc::clone(&interrupted),
            duration: None,
            since: None,
        };
        let read = |until: &mut TimedReader<_>| until.read(&mut [0; 10]).unwrap();
        assert_eq!((read(&mut until), read(&mut until)), (10, 10));
        until.duration = Some(Duration::ZERO);
        assert_eq!(read(&mut until), 0, "its time is over");
        until.duration = None;
        interrupted.store(true, Ordering::Relaxed);
        assert_eq!(read(&mut until), 0, "somebody has ended it");
    }
}
