//! The access log: one record for each request, stream or session that ends.
//!
//! Promise: logging never blocks the caller. Records go through a bounded queue to a thread;
//! records that are lost in a full queue or on a full disk are counted. A file has whole lines
//! only, also after a full disk or a rotation. A record holds no secrets: it has the path of a URL,
//! but no query, password or token. Control characters are escaped, so that a client cannot forge a
//! line.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use tactus_core::units::{Nanos, WallTime};
use tactus_storage::dates;

/// Records that may wait for the writer: some tenths of a second of a full server.
const QUEUE: usize = 8192;
/// Longer texts from clients are truncated to this length, in bytes.
const FIELD_MAX: usize = 1024;
/// How long the server's shutdown waits for the last records.
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// Lines are written to the file in pieces of this size, or when the queue is empty.
const WRITE_AT: usize = 8 * 1024;
/// Most bytes of lines that are kept while the file cannot be written, for example on a full disk.
const UNWRITTEN_MAX: usize = 1024 * 1024;
/// How often a failing destination is reported.
const COMPLAINTS: Duration = Duration::from_secs(60);

/// Where the access log goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AccessTo {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, which is reopened at SIGHUP.
    File(PathBuf),
}

/// The form of the access log.
#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[serde(rename_all = "lowercase")]
pub enum AccessForm {
    /// `name=value` pairs, one request per line.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
    /// No access log.
    Off,
}

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
    /// How it ended, if the status does not say so.
    pub outcome: Option<String>,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Payload bytes received.
    pub received_bytes: u64,
    /// The duration.
    pub duration: Duration,
    /// The requested rate.
    pub rate_asked: Option<String>,
    /// The granted rate, in bits per second.
    pub rate: Option<u64>,
    /// The lateness of the latest send.
    pub lateness: Option<Nanos>,
    /// Sends that were late.
    pub underruns: Option<u64>,
    /// The client: its address, or the user and process of a Unix socket.
    pub client: Option<String>,
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
        see("time", Value::Text(&dates::rfc_3339_millis(self.time)));
        see("protocol", Value::Text(self.protocol.name()));
        text(see, "client", self.client.as_deref());
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
                // The line begins with the time, without its name.
                Value::Text(text) if name == "time" => line.push_str(text),
                Value::Text(text) if is_plain(text) && text.len() <= FIELD_MAX => {
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
            for character in text.chars().take(FIELD_MAX) {
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

static LOG: OnceLock<AccessLog> = OnceLock::new();

enum Message {
    Record(Box<Record>),
    /// Wakes the thread to check [`Shared::reopen`].
    Wake,
    /// Dropping it signals that all records before it are written.
    Close(SyncSender<()>),
}

struct AccessLog {
    queue: SyncSender<Message>,
    shared: Arc<Shared>,
}

/// State outside of the queue, because the queue may be full.
#[derive(Default)]
struct Shared {
    /// Lost records.
    dropped: AtomicU64,
    /// The file must be opened again.
    reopen: AtomicBool,
}

impl AccessLog {
    fn start(form: AccessForm, output: Output) -> io::Result<Self> {
        let (queue, messages) = sync_channel(QUEUE);
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let body = move || write_all(&messages, form, output, &own);
        std::thread::Builder::new().name("tactus-access".to_owned()).spawn(body)?;
        Ok(Self { queue, shared })
    }

    fn record(&self, record: Record) {
        if self.queue.try_send(Message::Record(Box::new(record))).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Release);
        // If the queue is full, the thread is awake already.
        self.queue.try_send(Message::Wake).ok();
    }

    /// Waits until all records so far are written, for at most [`CLOSE_MAX`].
    fn close(&self) {
        let begun = Instant::now();
        let (written, is_written) = sync_channel(0);
        let mut message = Message::Close(written);
        while let Err(TrySendError::Full(same)) = self.queue.try_send(message) {
            if begun.elapsed() >= CLOSE_MAX {
                return;
            }
            message = same;
            std::thread::sleep(Duration::from_millis(5));
        }
        // Either everything is written, or the writer takes too long.
        is_written.recv_timeout(CLOSE_MAX.saturating_sub(begun.elapsed())).ok();
    }
}

/// Starts the log of this process; only the first call takes effect.
///
/// # Errors
/// When the file cannot be opened.
pub fn start(form: AccessForm, to: &AccessTo) -> io::Result<()> {
    if form == AccessForm::Off || LOG.get().is_some() {
        return Ok(());
    }
    let output = Output::open(to)?;
    // A concurrent second start opened the same file; its log is dropped.
    drop(LOG.set(AccessLog::start(form, output)?));
    Ok(())
}

/// Checks that the file at `path` can be opened, or created if it does not exist. Creates nothing.
///
/// # Errors
/// When the file cannot be opened or created.
pub fn check(path: &Path) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match LogFile::open(path, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let may = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
            let flags = rustix::fs::AtFlags::EACCESS;
            Ok(rustix::fs::accessat(rustix::fs::CWD, dir, may, flags)?)
        }
        opened => opened.map(drop),
    }
}

/// Whether records are logged; if not, callers need not build them.
pub fn is_on() -> bool {
    LOG.get().is_some()
}

/// Logs `record`, unless the queue is full.
pub fn record(record: Record) {
    if let Some(log) = LOG.get() {
        log.record(record);
    }
}

/// Number of lost records: dropped because the queue was full, or not written.
pub fn dropped() -> u64 {
    LOG.get().map_or(0, |log| log.shared.dropped.load(Ordering::Relaxed))
}

/// Reopens the file, after a rotation for example.
pub fn reopen() {
    if let Some(log) = LOG.get() {
        log.reopen();
    }
}

/// Waits briefly until the last records are written.
pub fn close() {
    if let Some(log) = LOG.get() {
        log.close();
    }
}

fn write_all(messages: &Receiver<Message>, form: AccessForm, mut output: Output, shared: &Shared) {
    let mut complained: Option<Instant> = None;
    let mut complain = |error: &io::Error| {
        if complained.is_none_or(|last| last.elapsed() > COMPLAINTS) {
            complained = Some(Instant::now());
            tracing::warn!("the access log cannot be written: {error}");
        }
    };
    loop {
        let message = match messages.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                if let Err(error) = output.flush() {
                    complain(&error);
                }
                let Ok(message) = messages.recv() else { return };
                message
            }
        };
        if shared.reopen.swap(false, Ordering::Acquire)
            && let Err(error) = output.reopen()
        {
            complain(&error);
        }
        let done = match message {
            Message::Record(record) => {
                let line = match form {
                    AccessForm::Json => record.json(),
                    AccessForm::Text | AccessForm::Off => record.text(),
                };
                output.line(&line)
            }
            Message::Wake => Ok(()),
            Message::Close(written) => {
                let flushed = output.flush();
                drop(written);
                flushed
            }
        };
        shared.dropped.fetch_add(output.take_lost(), Ordering::Relaxed);
        if let Err(error) = done {
            complain(&error);
        }
    }
}

/// The destination of the lines.
struct Output {
    to: LogTarget,
    /// Lost lines that are not in [`Shared::dropped`] yet.
    lost: u64,
}

enum LogTarget {
    Stdout,
    Stderr,
    File(LogFile),
}

/// A log file, with the lines that are not written yet.
struct LogFile {
    path: PathBuf,
    file: File,
    unwritten: Vec<u8>,
    /// The first of these lines is partly written.
    is_begun: bool,
}

impl Output {
    fn open(to: &AccessTo) -> io::Result<Self> {
        let to = match to {
            AccessTo::Stdout => LogTarget::Stdout,
            AccessTo::Stderr => LogTarget::Stderr,
            AccessTo::File(path) => LogTarget::File(LogFile::open(path, true)?),
        };
        Ok(Self { to, lost: 0 })
    }

    fn line(&mut self, line: &str) -> io::Result<()> {
        let whole = match &mut self.to {
            LogTarget::Stdout => writeln!(io::stdout().lock(), "{line}"),
            LogTarget::Stderr => writeln!(io::stderr().lock(), "{line}"),
            LogTarget::File(file) => {
                let written = file.write_waiting(WRITE_AT);
                if file.unwritten.len() + line.len() < UNWRITTEN_MAX {
                    file.unwritten.extend_from_slice(line.as_bytes());
                    file.unwritten.push(b'\n');
                } else {
                    self.lost += 1;
                }
                return written;
            }
        };
        self.lost += u64::from(whole.is_err());
        whole
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            LogTarget::Stdout => io::stdout().lock().flush(),
            LogTarget::Stderr => Ok(()),
            LogTarget::File(file) => file.write_waiting(1),
        }
    }

    /// Lines that the old file did not take go to the new one.
    fn reopen(&mut self) -> io::Result<()> {
        let LogTarget::File(old) = &mut self.to else { return Ok(()) };
        let flushed = old.write_waiting(1);
        let mut new = LogFile::open(&old.path, true)?;
        let mut rest = std::mem::take(&mut old.unwritten);
        if old.is_begun {
            // The old file has the beginning of this line.
            let end = rest.iter().position(|&byte| byte == b'\n').map_or(rest.len(), |at| at + 1);
            rest.drain(..end);
            self.lost += 1;
        }
        new.unwritten = rest;
        *old = new;
        flushed
    }

    fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}

impl LogFile {
    /// Readable by owner and group only: the log shows the activity of each client.
    fn open(path: &Path, is_made: bool) -> io::Result<Self> {
        // Opening a pipe without a reader fails instead of blocking.
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.create(is_made).append(true).mode(0o640).custom_flags(nonblocking);
        let file = options.open(path).map_err(|error| match error.raw_os_error() {
            Some(libc::ENXIO) => io::Error::other("it is a pipe that nobody reads"),
            _ => error,
        })?;
        rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
        Ok(Self { path: path.into(), file, unwritten: vec![], is_begun: false })
    }

    /// Writes the waiting lines while they are at least `least` bytes.
    fn write_waiting(&mut self, least: usize) -> io::Result<()> {
        while self.unwritten.len() >= least {
            let count = match self.file.write(&self.unwritten) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.is_begun = self.unwritten[count - 1] != b'\n';
            self.unwritten.drain(..count);
        }
        Ok(())
    }
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
            client: Some("192.0.2.7".into()),
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
        let log = AccessLog { queue, shared: Arc::default() };
        for _ in 0..5 {
            log.record(record());
        }
        assert_eq!(log.shared.dropped.load(Ordering::Relaxed), 3);
        // A rotation takes effect although the queue is full.
        log.reopen();
        assert!(log.shared.reopen.load(Ordering::Relaxed));
        drop(messages);
        log.record(record());
        assert_eq!(log.shared.dropped.load(Ordering::Relaxed), 4);
        log.close();
    }

    #[test]
    fn n11_a_moved_file_is_created_anew_at_reopen() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("access.log");
        let output = Output::open(&AccessTo::File(path.clone())).expect("a file");
        let log = AccessLog::start(AccessForm::Json, output).expect("a thread");
        let write = || {
            log.record(record());
            log.close();
        };
        write();
        let moved = dir.path().join("access.log.1");
        std::fs::rename(&path, &moved).expect("it is there");
        write();
        log.reopen();
        write();
        let lines = |path: &PathBuf| std::fs::read_to_string(path).expect("a file").lines().count();
        assert_eq!((lines(&moved), lines(&path)), (2, 1));
    }

    /// Lost lines, and waiting bytes.
    fn outcome(output: &Output) -> (u64, usize) {
        let LogTarget::File(file) = &output.to else { panic!("it is a file") };
        (output.lost, file.unwritten.len())
    }

    #[test]
    fn n11_a_full_disk_loses_no_line_for_a_while_and_counts_what_it_loses() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("access.log");
        std::os::unix::fs::symlink("/dev/full", &path).expect("a link");
        let mut output = Output::open(&AccessTo::File(path.clone())).expect("a device");
        let line = "x".repeat(999);
        for _ in 0..1000 {
            // Every write after the first pieces fails.
            output.line(&line).ok();
        }
        assert!(output.flush().is_err());
        assert_eq!(outcome(&output), (0, 1_000_000));
        for _ in 0..100 {
            output.line(&line).expect_err("the disk is full");
        }
        let (lost, waiting) = outcome(&output);
        assert_eq!(lost as usize + waiting / 1000, 1100);
        assert!((1..=100).contains(&lost) && waiting <= UNWRITTEN_MAX);
        // The log moves to another file while the old one is still full.
        std::fs::remove_file(&path).expect("a link");
        output.reopen().expect_err("the old one is full");
        output.flush().expect("there is room");
        let text = std::fs::read_to_string(&path).expect("a file");
        assert!(text.lines().all(|one| one == line));
        assert_eq!(text.lines().count(), waiting / 1000);
        assert_eq!(output.take_lost(), lost);
    }

    #[test]
    fn n11_no_line_goes_on_in_another_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("access.log");
        let mut output = Output::open(&AccessTo::File(path.clone())).expect("a file");
        let LogTarget::File(file) = &mut output.to else { panic!("it is a file") };
        // The disk was full in the middle of the second line.
        (file.unwritten, file.is_begun) = (b"cond\nthird\n".to_vec(), true);
        file.file = OpenOptions::new().write(true).open("/dev/full").expect("a device");
        output.reopen().expect_err("the old one is full");
        output.line("fourth").expect("there is room");
        output.flush().expect("there is room");
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), "third\nfourth\n");
        assert_eq!(output.take_lost(), 1);
    }

    #[test]
    fn n11_a_pipe_that_nobody_reads_is_an_error_and_stops_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).expect("a pipe");
        let to = AccessTo::File(path.clone());
        let error = Output::open(&to).err().expect("nobody reads it");
        assert!(error.to_string().contains("nobody reads"), "{error}");
        let reader = OpenOptions::new().read(true).write(true).open(&path).expect("a pipe");
        let mut output = Output::open(&to).expect("somebody reads it");
        output.line("a").and_then(|()| output.flush()).expect("there is room");
        let flags = match &output.to {
            LogTarget::File(file) => rustix::fs::fcntl_getfl(&file.file).expect("its flags"),
            _ => panic!("it is a file"),
        };
        assert!(!flags.contains(OFlags::NONBLOCK), "a slow reader is waited for");
        drop(reader);
    }
}
