//! The access log: one record for each request, stream or session that ends.
//!
//! Promise: logging never blocks the caller. Records go through a bounded queue to a thread;
//! records that find the queue full are dropped and counted. A record holds no secrets: it has the
//! path of a URL, but no query, password or token. Control characters are escaped, so that a client
//! cannot forge a line.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use tactus_core::units::{Nanos, WallTime};

use crate::calendar;
use crate::config::{AccessForm, AccessTo, Log};

/// Records waiting to be written: some tenths of a second of a full server.
const QUEUE: usize = 8192;
/// Longer texts from clients are truncated.
const TEXT_MAX: usize = 1024;
/// How long the server's shutdown waits for the last records.
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// How often a failing destination is reported.
const COMPLAINTS: Duration = Duration::from_secs(60);

/// A completed request, stream, or session.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    /// When it began.
    pub time: WallTime,
    /// The protocol.
    pub protocol: Protocol,
    /// The method of a request, or the event of a channel or recording.
    pub method: String,
    /// The path of the title, without the query.
    pub path: String,
    /// The name of the channel, recording or session.
    pub name: Option<String>,
    /// The HTTP or RTSP status.
    pub status: Option<u16>,
    /// How it ended, if the status does not tell.
    pub outcome: Option<String>,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Payload bytes received.
    pub received_bytes: u64,
    /// The duration.
    pub duration: Duration,
    /// The rate as requested.
    pub rate_asked: Option<String>,
    /// The granted rate, in bits per second.
    pub rate: Option<u64>,
    /// The lateness of the latest send.
    pub lateness: Option<Nanos>,
    /// Sends that were not on time.
    pub underruns: Option<u64>,
    /// The client's address.
    pub client: Option<IpAddr>,
    /// The principal.
    pub principal: Option<String>,
    /// The client's `User-Agent`.
    pub user_agent: Option<String>,
}

/// The kinds of records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// A request that reads.
    Http,
    /// A request that stores or changes something.
    Upload,
    /// An RTSP request or session.
    Rtsp,
    /// A title of a channel.
    Channel,
    /// A title of a recording.
    Recording,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Upload => "upload",
            Self::Rtsp => "rtsp",
            Self::Channel => "channel",
            Self::Recording => "recording",
        }
    }
}

/// A value of a field.
enum Value<'a> {
    Text(&'a str),
    Number(u64),
    Seconds(f64),
}

impl Record {
    /// A record of a request that begins now.
    pub fn new(protocol: Protocol, method: impl Into<String>, path: impl Into<String>) -> Self {
        Self {
            time: tactus_sys::clock::wall_now(),
            protocol,
            method: method.into(),
            path: path.into(),
            name: None,
            status: None,
            outcome: None,
            sent_bytes: 0,
            received_bytes: 0,
            duration: Duration::ZERO,
            rate_asked: None,
            rate: None,
            lateness: None,
            underruns: None,
            client: None,
            principal: None,
            user_agent: None,
        }
    }

    /// Calls `see` with each field that has a value.
    fn fields(&self, see: &mut dyn FnMut(&str, Value<'_>)) {
        fn text(see: &mut dyn FnMut(&str, Value<'_>), name: &str, value: Option<&str>) {
            if let Some(value) = value {
                see(name, Value::Text(value));
            }
        }
        let number = |see: &mut dyn FnMut(&str, Value<'_>), name: &str, value: Option<u64>| {
            if let Some(value) = value {
                see(name, Value::Number(value));
            }
        };
        let client = self.client.map(|client| client.to_string());
        see("time", Value::Text(&time(self.time)));
        see("protocol", Value::Text(self.protocol.name()));
        text(see, "client", client.as_deref());
        see("method", Value::Text(&self.method));
        see("path", Value::Text(&self.path));
        text(see, "name", self.name.as_deref());
        number(see, "status", self.status.map(u64::from));
        text(see, "outcome", self.outcome.as_deref());
        see("sent_bytes", Value::Number(self.sent_bytes));
        if self.received_bytes > 0 {
            see("received_bytes", Value::Number(self.received_bytes));
        }
        see("duration_seconds", Value::Seconds(self.duration.as_secs_f64()));
        text(see, "rate_asked", self.rate_asked.as_deref());
        number(see, "rate_bits_per_second", self.rate);
        if let Some(lateness) = self.lateness {
            see("lateness_seconds", Value::Seconds(lateness.0 as f64 / 1e9));
        }
        number(see, "underruns", self.underruns);
        text(see, "principal", self.principal.as_deref());
        text(see, "user_agent", self.user_agent.as_deref());
    }

    /// One line of `name=value` pairs, without its end. Values are quoted where necessary.
    fn text(&self) -> String {
        let mut line = String::with_capacity(256);
        self.fields(&mut |name, value| {
            if !line.is_empty() {
                line.push(' ');
            }
            let is_plain = |text: &str| {
                let plain = |byte: u8| byte.is_ascii_graphic() && !b"\"\\=".contains(&byte);
                !text.is_empty() && text.bytes().all(plain)
            };
            match value {
                // The line begins with the time.
                Value::Text(text) if name == "time" => line.push_str(text),
                Value::Text(text) if is_plain(text) && text.len() <= TEXT_MAX => {
                    write!(line, "{name}={text}").expect("a string takes everything");
                }
                value => {
                    write!(line, "{name}=").expect("a string takes everything");
                    write_json(&mut line, &value);
                }
            }
        });
        line
    }

    /// One JSON object on one line, without its end.
    fn json(&self) -> String {
        let mut line = String::with_capacity(384);
        self.fields(&mut |name, value| {
            line.push(if line.is_empty() { '{' } else { ',' });
            write!(line, "\"{name}\":").expect("a string takes everything");
            write_json(&mut line, &value);
        });
        line.push('}');
        line
    }
}

fn write_json(line: &mut String, value: &Value<'_>) {
    let written = match value {
        Value::Number(number) => write!(line, "{number}"),
        Value::Seconds(seconds) => write!(line, "{seconds:.6}"),
        Value::Text(text) => {
            line.push('"');
            for character in text.chars().take(TEXT_MAX) {
                match character {
                    '"' | '\\' => line.extend(['\\', character]),
                    // Control characters, and characters that change the direction of the text.
                    _ if is_hidden(character) => {
                        write!(line, "\\u{:04x}", u32::from(character))
                            .expect("a string takes everything");
                    }
                    _ => line.push(character),
                }
            }
            line.push('"');
            Ok(())
        }
    };
    written.expect("a string takes everything");
}

fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// `2023-11-14T22:13:20.123Z`
fn time(time: WallTime) -> String {
    let second = calendar::rfc_3339(time);
    let millis = time.0 / 1_000_000 % 1000;
    format!("{}.{millis:03}Z", second.trim_end_matches('Z'))
}

static LOG: OnceLock<AccessLog> = OnceLock::new();

enum Message {
    Record(Box<Record>),
    Reopen,
    /// Dropping it signals that all records before it are written.
    Close(SyncSender<()>),
}

struct AccessLog {
    queue: SyncSender<Message>,
    dropped: AtomicU64,
}

impl AccessLog {
    fn start(form: AccessForm, output: Output) -> io::Result<Self> {
        let (queue, messages) = sync_channel(QUEUE);
        let body = move || write_all(&messages, form, output);
        std::thread::Builder::new().name("tactus-access".to_owned()).spawn(body)?;
        Ok(Self { queue, dropped: AtomicU64::new(0) })
    }

    fn send(&self, message: Message) {
        match self.queue.try_send(message) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Starts the log of this process as configured; only the first call takes effect.
///
/// # Errors
/// When the file cannot be opened.
pub fn start(log: &Log) -> io::Result<()> {
    if log.access == AccessForm::Off || LOG.get().is_some() {
        return Ok(());
    }
    let output = Output::open(&log.access_to)?;
    // A concurrent second start opened the same file; its log is dropped.
    drop(LOG.set(AccessLog::start(log.access, output)?));
    Ok(())
}

/// Whether records are logged; if not, callers need not build them.
pub fn is_on() -> bool {
    LOG.get().is_some()
}

/// Logs `record`, unless the queue is full.
pub fn record(record: Record) {
    if let Some(log) = LOG.get() {
        log.send(Message::Record(Box::new(record)));
    }
}

/// Number of records dropped because the queue was full.
pub fn dropped() -> u64 {
    LOG.get().map_or(0, |log| log.dropped.load(Ordering::Relaxed))
}

/// Reopens the file, after a rotation for example.
pub fn reopen() {
    if let Some(log) = LOG.get() {
        log.send(Message::Reopen);
    }
}

/// Waits briefly until the last records are written.
pub fn close() {
    let Some(log) = LOG.get() else { return };
    let (written, is_written) = sync_channel(0);
    log.send(Message::Close(written));
    // Either all is written, or the writer takes too long.
    is_written.recv_timeout(CLOSE_MAX).ok();
}

fn write_all(messages: &Receiver<Message>, form: AccessForm, mut output: Output) {
    let mut complained: Option<Instant> = None;
    let mut complain = |what: &str, error: &io::Error| {
        if complained.is_none_or(|last| last.elapsed() > COMPLAINTS) {
            complained = Some(Instant::now());
            tracing::warn!("the access log {what}: {error}");
        }
    };
    loop {
        let message = match messages.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                if let Err(error) = output.flush() {
                    complain("cannot be written", &error);
                }
                let Ok(message) = messages.recv() else { return };
                message
            }
        };
        let done = match message {
            Message::Record(record) => {
                let line = match form {
                    AccessForm::Json => record.json(),
                    AccessForm::Text | AccessForm::Off => record.text(),
                };
                output.line(&line)
            }
            Message::Reopen => output.reopen(),
            Message::Close(written) => {
                let flushed = output.flush();
                drop(written);
                flushed
            }
        };
        if let Err(error) = done {
            complain("loses records", &error);
        }
    }
}

/// The destination of the lines.
enum Output {
    Stdout,
    Stderr,
    File { path: PathBuf, file: BufWriter<File> },
}

impl Output {
    fn open(to: &AccessTo) -> io::Result<Self> {
        Ok(match to {
            AccessTo::Stdout => Self::Stdout,
            AccessTo::Stderr => Self::Stderr,
            AccessTo::File(path) => Self::File { path: path.clone(), file: append(path)? },
        })
    }

    fn line(&mut self, line: &str) -> io::Result<()> {
        match self {
            Self::Stdout => writeln!(io::stdout().lock(), "{line}"),
            Self::Stderr => writeln!(io::stderr().lock(), "{line}"),
            Self::File { file, .. } => writeln!(file, "{line}"),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout => io::stdout().lock().flush(),
            Self::Stderr => Ok(()),
            Self::File { file, .. } => file.flush(),
        }
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.flush()?;
        if let Self::File { path, file } = self {
            *file = append(path)?;
        }
        Ok(())
    }
}

/// Readable by owner and group only: the log shows who watches what.
fn append(path: &PathBuf) -> io::Result<BufWriter<File>> {
    let file = OpenOptions::new().create(true).append(true).mode(0o640).open(path)?;
    Ok(BufWriter::new(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            time: WallTime(1_700_000_000_123_456_789),
            status: Some(206),
            sent_bytes: 1_000,
            duration: Duration::from_millis(1_500),
            rate_asked: Some("8.8M".into()),
            rate: Some(8_800_000),
            lateness: Some(Nanos::from_micros(1_250)),
            underruns: Some(0),
            client: Some([192, 0, 2, 7].into()),
            user_agent: Some("VLC/3.0 \"x\"".into()),
            ..Record::new(Protocol::Http, "GET", "/film.ts")
        }
    }

    #[test]
    fn n11_a_record_is_one_line_of_text_or_json() {
        assert_eq!(
            record().text(),
            "2023-11-14T22:13:20.123Z protocol=http client=192.0.2.7 method=GET path=/film.ts \
             status=206 sent_bytes=1000 duration_seconds=1.500000 rate_asked=8.8M \
             rate_bits_per_second=8800000 lateness_seconds=0.001250 underruns=0 \
             user_agent=\"VLC/3.0 \\\"x\\\"\""
        );
        let value: serde_json::Value = serde_json::from_str(&record().json()).expect("JSON");
        assert_eq!(value["time"], "2023-11-14T22:13:20.123Z");
        assert_eq!(value["status"], 206);
        assert_eq!(value["lateness_seconds"], 0.001_25);
        assert_eq!(value["user_agent"], "VLC/3.0 \"x\"");
        assert_eq!(value.get("principal"), None);
    }

    #[test]
    fn n11_client_text_cannot_forge_or_hide_a_line() {
        for hostile in [
            "a\r\nGET /b HTTP/1.1",
            "\u{1b}[2J\u{7}",
            "x y=z",
            "\u{9b}31m",
            "\u{202e}cod.exe",
            "a\"b\\",
            "\0",
            "\u{2028}",
            "",
        ] {
            let record = Record { user_agent: Some(hostile.into()), ..record() };
            for line in [record.text(), record.json()] {
                assert!(!line.contains(is_hidden), "{line:?}");
            }
            let value: serde_json::Value = serde_json::from_str(&record.json()).expect("JSON");
            assert_eq!(value["user_agent"], hostile);
            let quoted = record.text().rsplit_once("user_agent=").expect("it is last").1.to_owned();
            let value: serde_json::Value = serde_json::from_str(&quoted).expect("a JSON string");
            assert_eq!(value, hostile);
        }
        let long = Record { path: "/x".repeat(40_000), ..record() };
        assert!(long.text().len() < 2_000 && long.json().len() < 2_000);
    }

    #[test]
    fn n11_records_beyond_the_queue_are_counted_and_do_not_block() {
        let (queue, messages) = sync_channel(2);
        let log = AccessLog { queue, dropped: AtomicU64::new(0) };
        for _ in 0..5 {
            log.send(Message::Record(Box::new(record())));
        }
        assert_eq!(log.dropped.load(Ordering::Relaxed), 3);
        drop(messages);
        log.send(Message::Reopen);
        assert_eq!(log.dropped.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn n11_a_moved_file_is_created_anew_at_reopen() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("access.log");
        let output = Output::open(&AccessTo::File(path.clone())).expect("a file");
        let log = AccessLog::start(AccessForm::Json, output).expect("a thread");
        let write = || {
            log.send(Message::Record(Box::new(record())));
            let (written, is_written) = sync_channel(0);
            log.send(Message::Close(written));
            assert!(is_written.recv().is_err(), "it is dropped when all is written");
        };
        write();
        let moved = dir.path().join("access.log.1");
        std::fs::rename(&path, &moved).expect("it is there");
        write();
        log.send(Message::Reopen);
        write();
        let lines = |path: &PathBuf| std::fs::read_to_string(path).expect("a file").lines().count();
        assert_eq!((lines(&moved), lines(&path)), (2, 1));
    }
}
