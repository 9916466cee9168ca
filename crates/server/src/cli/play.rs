//! `tactus play`: plays a title of sound on a sound device of this machine.
//!
//! Promise: the device gets each sample of the title once and in order. What the server sends is
//! buffered for a second. A device that ran empty is counted, with the cause.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::fs::{MemfdFlags, memfd_create};
use tactus_core::units::{Nanos, WallTime};
use tactus_media::wave::{Samples, Wave, WaveFault};
use tactus_notation::units;
use tactus_playout::channel::ScheduledTime;
use tactus_sys::clock;
use tactus_sys::sound_device::{SampleFormat, SoundDevice, SoundError};

use super::client::{self, Url};
use super::{Failure, console, get};

/// Plays a WAVE title on a sound device
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus play http://127.0.0.1:8080/concert.wav
  tactus play http://127.0.0.1:8080/concert.wav --device hw:1 --at 20:00
  tactus play http://127.0.0.1:8080/concert.wav --device 'file:FILE=out.raw,FORMAT=raw'

DEVICE is a name of ALSA; `aplay -L` lists them. Several of these commands with one --at begin
together.

Exit codes: 0 played to its end; 1 failed; 2 wrong arguments; 3 the server has no room.")]
pub(super) struct Play {
    /// What to play, like http://127.0.0.1:8080/concert.wav
    url: String,
    /// The sound device
    #[arg(short, long, value_name = "DEVICE", default_value = "default")]
    device: String,
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
        let url = Url::parse(&self.url).map_err(Failure::usage)?;
        if !(1..=10_000_000_000).contains(&self.latency.0) {
            return Err(Failure::usage("--latency is more than 0 and at most 10 s"));
        }
        let begin = match self.at.map(|at| at.next(clock::wall_now())) {
            Some(None) => return Err(Failure::usage("--at has passed; write a later time")),
            begin => begin.flatten(),
        };
        let response = client::fetch("GET", &url, &[]).map_err(anyhow::Error::from)?;
        if response.status != 200 {
            return Err(get::refused(response));
        }
        let len = response.len.context("the server does not tell the length of the title")?;
        let mut body = response.body;
        let mut head = vec![];
        body.by_ref().take(HEAD_MAX.min(len)).read_to_end(&mut head).context("no header")?;
        let samples = samples(&head, len)
            .map_err(|fault| anyhow::anyhow!("{url}: {fault}", url = self.url))?;
        let Samples { bytes, channels, width, rate } = samples;
        let format = SampleFormat { channels, width, rate };
        let mut device =
            SoundDevice::open(&self.device, format, self.latency).map_err(anyhow::Error::from)?;
        let frame = usize::from(channels) * usize::from(width);
        let piece = frame * (rate / PIECES).max(1) as usize;
        let (give, take) = sync_channel(BUFFERED);
        let mut rest = std::io::Cursor::new(head).chain(body);
        std::io::copy(&mut rest.by_ref().take(bytes.start), &mut std::io::sink())
            .context("no header")?;
        let reader =
            std::thread::spawn(move || read(rest.take(bytes.end - bytes.start), piece, &give));
        if let Some(begin) = begin {
            wait_until(begin);
        }
        let begun = Instant::now();
        let (played, underruns) =
            play(&take, &mut device, self.latency).map_err(anyhow::Error::from)?;
        device.drain().map_err(anyhow::Error::from)?;
        match reader.join() {
            Ok(read) => read.context("the title ended early")?,
            Err(_) => return Err(anyhow::anyhow!("the reader ended").into()),
        }
        if !self.quiet {
            let seconds = played as f64 / frame as f64 / f64::from(rate);
            let Underruns { server, program } = underruns;
            console::notice(format_args!(
                "{}: {seconds:.3} s of sound in {:.3} s; the device ran empty {} times: {server} \
                 because the server was late, {program} because this program was",
                self.device,
                begun.elapsed().as_secs_f64(),
                server + program,
            ));
        }
        Ok(())
    }
}

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

/// Writes all pieces to the device. Returns the bytes, and how often it ran empty.
fn play(
    take: &Receiver<Vec<u8>>,
    device: &mut SoundDevice,
    latency: Nanos,
) -> Result<(u64, Underruns), SoundError> {
    let (mut played, mut underruns) = (0, Underruns::default());
    loop {
        let mut waited = Duration::ZERO;
        let piece = match take.try_recv() {
            Ok(piece) => piece,
            Err(TryRecvError::Disconnected) => return Ok((played, underruns)),
            Err(TryRecvError::Empty) => {
                let begun = Instant::now();
                let Ok(piece) = take.recv() else { return Ok((played, underruns)) };
                waited = begun.elapsed();
                piece
            }
        };
        let empty = device.write(&piece)?;
        if waited.as_nanos() >= u128::from(latency.0 / 2) {
            underruns.server += empty;
        } else {
            underruns.program += empty;
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
