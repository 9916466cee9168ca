//! `tactus play`: plays a title of sound on sound devices of this machine, or writes any title to
//! standard output at its rate.
//!
//! Promise: a device gets each sample of the title once and in order; of several devices the others
//! stay in [`step`] with the first. What the server sends is buffered for a second. A device that
//! ran empty is counted, with the cause. From a server on this machine the title comes at a rate
//! that the server has promised, through shared memory.

mod step;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::fs::{MemfdFlags, memfd_create};
use tactus_client::{Client, StreamOptions, Title};
use tactus_core::units::{BitRate, Nanos, WallTime};
use tactus_media::wave::{Samples, Wave, WaveFault};
use tactus_notation::units;
use tactus_playout::channel::ScheduledTime;
use tactus_sys::clock;
use tactus_sys::sound_device::{SampleFormat, SoundDevice, SoundError};

use super::client::{self, Url};
use super::{Failure, console, get};
use step::DeviceGroup;

/// Plays a WAVE title on a sound device
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus play http://127.0.0.1:8080/concert.wav
  tactus play http://127.0.0.1:8080/concert.wav --device hw:1 --at 20:00
  tactus play http://127.0.0.1:8080/concert.wav --device 'file:FILE=out.raw,FORMAT=raw'
  tactus play http://127.0.0.1:8080/concert.wav --device hw:1 --device hw:2
  tactus play /concert.wav                             from a server on this machine
  tactus play /film.ts --device - | ffplay -           any title, at its own rate

DEVICE is a name of ALSA; `aplay -L` lists them. Several devices begin together and stay in step
with the first one, although each has a clock of its own: a sample is left out or repeated where
they would drift apart. With - the bytes of a title of any kind go to standard output. Several of
these commands with one --at begin together.

A path instead of a URL is a title of a server on this machine: its bytes come through shared
memory at a rate that the server has promised. The server needs [local] in its configuration, and
this user must be admitted there.

Exit codes: 0 played to its end; 1 failed; 2 wrong arguments; 3 the server has no room.")]
pub(super) struct Play {
    /// What to play, like http://127.0.0.1:8080/concert.wav or /concert.wav
    #[arg(value_name = "URL|PATH")]
    title: String,
    /// The socket of a server on this machine: [local] path of its configuration
    #[arg(long, value_name = "PATH", default_value = "/run/tactus/local.sock")]
    socket: PathBuf,
    /// The sound device, several times for several devices; - is standard output
    #[arg(short, long, value_name = "DEVICE", default_value = "default")]
    device: Vec<String>,
    /// When it begins, like 20:00 or 2026-11-22T20:00:00Z [default: at once]
    #[arg(long, value_name = "TIME", value_parser = ScheduledTime::parse)]
    at: Option<ScheduledTime>,
    /// How much sound the device holds
    #[arg(long, value_name = "TIME", default_value = "100 ms")]
    #[arg(value_parser = units::read::<Nanos>)]
    latency: Nanos,
    /// Say nothing at the end
    #[arg(short, long)]
    quiet: bool,
}

/// Bytes in front of the first sample that are searched for it.
const HEAD_MAX: u64 = 256 * 1024;
/// Pieces in a second.
const PIECES: u32 = 100;
/// Pieces that are buffered: a second.
const BUFFERED: usize = PIECES as usize;

/// How often the device ran empty, by cause.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Underruns {
    /// Nothing had come from the server in time.
    server: u64,
    /// There was something to play; this program did not run in time.
    program: u64,
}

impl Play {
    pub(super) fn run(self) -> Result<(), Failure> {
        if !(1..=10_000_000_000).contains(&self.latency.0) {
            return Err(Failure::usage("--latency is more than 0 and at most 10 s"));
        }
        let begin = match self.at.map(|at| at.next(clock::wall_now())) {
            Some(None) => return Err(Failure::usage("--at has passed; write a later time")),
            begin => begin.flatten(),
        };
        if self.device.len() > 1 && self.device.iter().any(|device| device == STANDARD_OUTPUT) {
            let text = "--device - cannot be combined with another device; remove one of them";
            return Err(Failure::usage(text));
        }
        if self.title.starts_with('/') { self.play_local(begin) } else { self.play_url(begin) }
    }

    fn play_url(&self, begin: Option<WallTime>) -> Result<(), Failure> {
        let url = Url::parse(&self.title).map_err(Failure::usage)?;
        let response = client::fetch("GET", &url, &[]).map_err(anyhow::Error::from)?;
        if response.status != 200 {
            return Err(get::refused(response));
        }
        let len = response.len.context("the server does not tell the length of the title")?;
        let mut body = response.body;
        if self.is_written() {
            return write_out(body, begin);
        }
        let mut head = vec![];
        body.by_ref().take(HEAD_MAX.min(len)).read_to_end(&mut head).context("no header")?;
        let samples = self.samples(&head, len)?;
        let mut rest = std::io::Cursor::new(head).chain(body);
        std::io::copy(&mut rest.by_ref().take(samples.bytes.start), &mut std::io::sink())
            .context("no header")?;
        self.play(&samples, rest, begin)
    }

    /// Plays a title of a server on this machine, at a rate that the server has promised.
    fn play_local(&self, begin: Option<WallTime>) -> Result<(), Failure> {
        let server = Client::connect(&self.socket).with_context(|| {
            let socket = self.socket.display();
            format!("cannot connect to a server at {socket}; see [local] in its configuration")
        })?;
        let title = server.open(&self.title).with_context(|| self.title.clone())?;
        let is_written = self.is_written();
        if is_written && title.rate().is_some() {
            let stream = self.stream(&server, &title, StreamOptions::default())?;
            return write_out(stream, begin);
        }
        let mut head = vec![0; HEAD_MAX.min(title.len()) as usize];
        let read = title.read_at(0, &mut head).context("no header")?;
        let samples = self.samples(&head[..read], title.len())?;
        let rate = frame_of(&samples) as u64 * u64::from(samples.rate);
        let first = if is_written { 0 } else { samples.bytes.start };
        // A second comes at once: so much the clock of the device may differ from the server's.
        let options =
            StreamOptions { first, rate: Some(BitRate(8 * rate)), burst: rate, room: 2 * rate };
        let stream = self.stream(&server, &title, options)?;
        if is_written {
            return write_out(stream, begin);
        }
        self.play(&samples, stream, begin)
    }

    fn stream(
        &self,
        server: &Client,
        title: &Title,
        options: StreamOptions,
    ) -> Result<tactus_client::Stream, Failure> {
        server.stream(title, &options).map_err(|error| match error.errno() {
            libc::EBUSY | libc::ENOSPC => {
                Failure::NoRoom(format!("the server has no room now: {}", error.message()))
            }
            _ => anyhow::Error::from(error).context(self.title.clone()).into(),
        })
    }

    fn samples(&self, head: &[u8], len: u64) -> Result<Samples, Failure> {
        let title = &self.title;
        samples(head, len).map_err(|fault| anyhow::anyhow!("{title}: {fault}").into())
    }

    /// Plays `samples`, whose bytes come next from `rest`.
    fn play(
        &self,
        samples: &Samples,
        rest: impl Read + Send + 'static,
        begin: Option<WallTime>,
    ) -> Result<(), Failure> {
        let Samples { ref bytes, channels, width, rate } = *samples;
        let format = SampleFormat { channels, width, rate };
        let open = |name: &String| SoundDevice::open(name, format, self.latency);
        let devices = self.device.iter().map(open).collect::<Result<Vec<_>, _>>();
        let frame = frame_of(samples);
        let devices = devices.map_err(anyhow::Error::from)?;
        let mut group = DeviceGroup::new(devices, frame, rate, PIECES);
        let piece = frame * (rate / PIECES).max(1) as usize;
        let (give, take) = sync_channel(BUFFERED);
        let len = bytes.end - bytes.start;
        let reader = std::thread::spawn(move || read(rest.take(len), piece, &give));
        if let Some(begin) = begin {
            wait_until(begin);
        }
        let begun = Instant::now();
        let mut underruns = vec![Underruns::default(); self.device.len()];
        let played = play(&take, &mut group, &mut underruns, self.latency);
        let played = played.map_err(anyhow::Error::from)?;
        group.drain().map_err(anyhow::Error::from)?;
        match reader.join() {
            Ok(read) => read.context("the title ended early")?,
            Err(_) => return Err(anyhow::anyhow!("the reader ended").into()),
        }
        if !self.quiet {
            let (seconds, taken) =
                (played as f64 / frame as f64 / f64::from(rate), begun.elapsed().as_secs_f64());
            for (nth, (name, adjusted)) in self.device.iter().zip(group.adjusted()).enumerate() {
                let Underruns { server, program } = underruns[nth];
                let step = match nth {
                    0 => String::new(),
                    _ => format!("; {adjusted} samples left out or repeated to stay in step"),
                };
                console::notice(format_args!(
                    "{name}: {seconds:.3} s of sound in {taken:.3} s; the device ran empty {} \
                     times: {server} because the server was late, {program} because this program \
                     was{step}",
                    server + program,
                ));
            }
        }
        Ok(())
    }

    /// Whether the title goes to standard output.
    fn is_written(&self) -> bool {
        self.device.iter().any(|device| device == STANDARD_OUTPUT)
    }
}

/// Bytes of one sample of all channels.
fn frame_of(samples: &Samples) -> usize {
    usize::from(samples.channels) * usize::from(samples.width)
}

/// Writes a title to standard output. A reader that has left is an end like any other.
fn write_out(mut title: impl Read, begin: Option<WallTime>) -> Result<(), Failure> {
    if let Some(begin) = begin {
        wait_until(begin);
    }
    match std::io::copy(&mut title, &mut std::io::stdout().lock()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(anyhow::Error::from(error).context("the title ended early").into())
        }
        _ => Ok(()),
    }
}

/// The device that is standard output.
const STANDARD_OUTPUT: &str = "-";

/// The samples of a title of `len` bytes that begins with `head`.
fn samples(head: &[u8], len: u64) -> Result<Samples, WaveFault> {
    let file = memfd_create("head", MemfdFlags::CLOEXEC).map(File::from);
    let Ok(mut file) = file else { return Err(WaveFault::Other) };
    if file.write_all(head).is_err() {
        return Err(WaveFault::Other);
    }
    Wave::read(&file, len)?.samples()
}

/// Reads pieces for the device. The last one may be shorter.
fn read(mut from: impl Read, piece: usize, give: &SyncSender<Vec<u8>>) -> std::io::Result<()> {
    loop {
        let mut bytes = Vec::with_capacity(piece);
        from.by_ref().take(piece as u64).read_to_end(&mut bytes)?;
        // Without a receiver the device has failed, which is told there.
        if bytes.is_empty() || give.send(bytes).is_err() {
            return Ok(());
        }
    }
}

/// Writes all pieces to the devices, and counts how often each ran empty. Returns the bytes.
fn play(
    take: &Receiver<Vec<u8>>,
    group: &mut DeviceGroup<SoundDevice>,
    underruns: &mut [Underruns],
    latency: Nanos,
) -> Result<u64, SoundError> {
    let mut played = 0;
    loop {
        let mut waited = Duration::ZERO;
        let piece = match take.try_recv() {
            Ok(piece) => piece,
            Err(TryRecvError::Disconnected) => return Ok(played),
            Err(TryRecvError::Empty) => {
                let begun = Instant::now();
                let Ok(piece) = take.recv() else { return Ok(played) };
                waited = begun.elapsed();
                piece
            }
        };
        let is_late = waited.as_nanos() >= u128::from(latency.0 / 2);
        for (underruns, empty) in underruns.iter_mut().zip(group.write(&piece)?) {
            if is_late {
                underruns.server += empty;
            } else {
                underruns.program += empty;
            }
        }
        played += piece.len() as u64;
    }
}

/// Sleeps until a moment of the wall clock, which may be set meanwhile.
fn wait_until(begin: WallTime) {
    loop {
        let left = begin.0.saturating_sub(clock::wall_now().0);
        if left == 0 {
            return;
        }
        std::thread::sleep(Duration::from_nanos(left).min(Duration::from_secs(1)));
    }
}
