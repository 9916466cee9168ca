//! What a server serves beside streams while its servers move: channels of RTP, uploads, and local
//! programs that read.
//!
//! Promise: sequence numbers identify RTP packets, uploads are read back, and the bytes of each
//! local read are compared. Losses, repetitions and differences are counted. Packets that a
//! receiver's own socket dropped are counted apart.

use std::fmt;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;
use tactus_client::{Client, ReadRequest};
use tactus_core::units::{BitRate, Bytes, KIB, MIB, Nanos, SECOND};
use tactus_sys::udp_input::{BATCH, Datagram, InputOptions, UdpInput};

use crate::benches::{Fixture, RECEIVER_CORE, udp_many};
use crate::datagrams::{PORT, behind};
use crate::figures::windows::Span;
use crate::netns::Side;
use crate::peers::{self, TOKEN};
use crate::random::Random;
use crate::titles::Titles;
use crate::uploader::{self, Harvest, Pace, Plan};
use crate::{clock, priority};

/// Each sends the same title.
const CHANNELS: u16 = 20;
const CHANNEL_RATE: BitRate = BitRate(4_000_000);
const CHANNEL_TITLE: &str = "channel.ts";
const UPLOAD: Bytes = Bytes(MIB);
const UPLOAD_EVERY: Nanos = Nanos::from_millis(250);
const UPLOADS: &str = "uploads-of-migrate";
const READERS: u64 = 2;
const READ: u64 = 64 * KIB;
/// Reads of a program under way at once.
const DEPTH: usize = 4;
/// Programs rest between answers: they are there to notice moves, not to fill a core.
const REST: Nanos = Nanos::from_micros(500);
/// What a socket holds: seconds of its channel.
const BUFFER: usize = 4 << 20;

/// What the guests have seen.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Findings {
    packets: u64,
    packets_lost: u64,
    packets_repeated: u64,
    /// By the receiver's own sockets.
    packets_dropped: u64,
    reads: u64,
    reads_lost: u64,
    reads_wrong: u64,
    uploads: u64,
    uploads_lost: u64,
}

impl Findings {
    /// The sums of both.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            packets_lost: self.packets_lost + other.packets_lost,
            packets_repeated: self.packets_repeated + other.packets_repeated,
            packets_dropped: self.packets_dropped + other.packets_dropped,
            reads: self.reads + other.reads,
            reads_lost: self.reads_lost + other.reads_lost,
            reads_wrong: self.reads_wrong + other.reads_wrong,
            uploads: self.uploads + other.uploads,
            uploads_lost: self.uploads_lost + other.uploads_lost,
        }
    }

    /// Losses, repetitions and differences that the server caused.
    pub(super) fn missed(&self) -> u64 {
        self.packets_lost.saturating_sub(self.packets_dropped)
            + self.packets_repeated
            + self.reads_lost
            + self.reads_wrong
            + self.uploads_lost
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} packets of RTP: {} lost ({} dropped by the receiver's sockets), {} repeated or out \
             of order; {} reads of local programs: {} without an answer, {} with other bytes; {} \
             uploads: {} not stored as they were sent",
            self.packets,
            self.packets_lost,
            self.packets_dropped,
            self.packets_repeated,
            self.reads,
            self.reads_lost,
            self.reads_wrong,
            self.uploads,
            self.uploads_lost
        )
    }
}

/// The titles and the directory that the guests use.
pub(super) struct Company<'a> {
    fixture: &'a Fixture,
    titles: &'a Titles,
    place: tempfile::TempDir,
}

impl<'a> Company<'a> {
    /// Lays the channels' title beside `titles`.
    pub(super) fn lay(fixture: &'a Fixture, titles: &'a Titles) -> Result<Self> {
        let title = udp_many::title(&fixture.options.data, CHANNEL_RATE)?;
        let there = titles.root().join(CHANNEL_TITLE);
        if !there.is_file() {
            fs::copy(&title, &there).with_context(|| there.display().to_string())?;
        }
        let place = tempfile::Builder::new().prefix("tactus-bench-local-").tempdir()?;
        Ok(Self { fixture, titles, place })
    }

    /// Where local programs connect.
    pub(super) fn socket(&self) -> PathBuf {
        self.place.path().join("local.sock")
    }

    /// The channels, as sections of the configuration.
    pub(super) fn channels(&self) -> String {
        let first = (self.fixture.wire.receiver_address(), PORT).into();
        let channel = |number: u16| {
            let (to, rate) = (behind(first, number), CHANNEL_RATE.0);
            format!(
                "\n[[channel]]\nname = \"{number}\"\ntitle = \"/{CHANNEL_TITLE}\"\nto = \
                 \"rtp://{to}\"\nrate = \"{rate} bit/s\"\n"
            )
        };
        (0..CHANNELS).map(channel).collect()
    }

    /// Lets all of them come.
    pub(super) fn come(&self, span: Span) -> Result<Guests> {
        let wire = &self.fixture.wire;
        let uploads = self.titles.root().join(UPLOADS);
        fs::create_dir_all(&uploads)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (side, seen) = (wire.receiver_side(), Arc::clone(&stop));
        let listener = spawn(move || listen(&side, &seen))?;
        let plan = Plan {
            server: peers::address(wire),
            target: format!("/{UPLOADS}/"),
            token: TOKEN.into(),
            pace: Pace::Every(UPLOAD_EVERY),
            size: UPLOAD,
            from: span.from,
            to: span.to,
            patience: SECOND.times(10),
            core: RECEIVER_CORE,
        };
        let side = wire.receiver_side();
        let uploading = spawn(move || uploader::upload(&side, &plan))?;
        let readers = (0..READERS).map(|number| {
            let (socket, seen) = (self.socket(), Arc::clone(&stop));
            let title = self.titles.target(number as usize);
            spawn(move || read(&socket, &title, number, &seen))
        });
        let readers = readers.collect::<Result<_>>()?;
        Ok(Guests { stop, listener, uploading, readers, uploads })
    }
}

/// Those who have come.
pub(super) struct Guests {
    stop: Arc<AtomicBool>,
    listener: JoinHandle<Result<Findings>>,
    uploading: JoinHandle<Result<Harvest>>,
    readers: Vec<JoinHandle<Result<Findings>>>,
    uploads: PathBuf,
}

impl Guests {
    /// Ends all guests while the server runs, and returns their findings.
    pub(super) fn leave(self) -> Result<Findings> {
        // Uploads end by themselves.
        let harvest = finish(self.uploading)?;
        self.stop.store(true, Ordering::Relaxed);
        let mut found = finish(self.listener)?;
        for reader in self.readers {
            found = found.and(&finish(reader)?);
        }
        let stored = uploader::check(&self.uploads, "", &harvest, UPLOAD)?;
        fs::remove_dir_all(&self.uploads)?;
        found.uploads = harvest.uploads.len() as u64;
        found.uploads_lost = found.uploads - stored as u64;
        Ok(found)
    }
}

fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<JoinHandle<Result<T>>> {
    Ok(std::thread::Builder::new().name("guest".into()).spawn(work)?)
}

fn finish<T>(guest: JoinHandle<Result<T>>) -> Result<T> {
    guest.join().map_err(|_| anyhow!("a guest panicked"))?
}

/// Follows the sequence numbers of all channels.
fn listen(side: &Side, stop: &AtomicBool) -> Result<Findings> {
    side.enter()?;
    priority::pin(RECEIVER_CORE)?;
    // Without it the sockets have to hold more.
    drop(priority::fifo(20));
    let open = |number| -> Result<UdpInput> {
        let to = behind((Ipv4Addr::UNSPECIFIED, PORT).into(), number);
        let wanted = InputOptions { to, source: None, interface: None, buffer: BUFFER };
        Ok(UdpInput::open(&wanted)?)
    };
    let mut inputs = (0..CHANNELS).map(open).collect::<Result<Vec<_>>>()?;
    let mut follow = vec![Sequence::default(); inputs.len()];
    while !stop.load(Ordering::Relaxed) {
        for (input, sequence) in inputs.iter_mut().zip(&mut follow) {
            let mut each = |datagram: Datagram<'_>| sequence.note(datagram.bytes);
            while input.receive(&mut each).is_ok_and(|count| count == BATCH) {}
        }
        clock::sleep(Nanos::from_millis(10));
    }
    let mut found = Findings::default();
    for (input, sequence) in inputs.iter().zip(follow) {
        ensure!(sequence.packets > 0, "a channel sends nothing");
        found.packets += sequence.packets;
        found.packets_lost += sequence.lost;
        found.packets_repeated += sequence.repeated;
        found.packets_dropped += u64::from(input.dropped()?);
    }
    Ok(found)
}

/// The sequence numbers of one channel.
#[derive(Clone, Default)]
struct Sequence {
    next: Option<u16>,
    packets: u64,
    lost: u64,
    repeated: u64,
}

impl Sequence {
    fn note(&mut self, packet: &[u8]) {
        let Some(number) = packet.get(2..4).and_then(|part| part.try_into().ok()) else { return };
        let number = u16::from_be_bytes(number);
        self.packets += 1;
        let ahead = self.next.map_or(0, |next| number.wrapping_sub(next));
        // In the far half of the numbers: behind.
        if ahead > u16::MAX / 2 {
            self.repeated += 1;
            return;
        }
        self.lost += u64::from(ahead);
        self.next = Some(number.wrapping_add(1));
    }
}

/// Reads random parts of a title, and compares them.
fn read(socket: &Path, title: &str, number: u64, stop: &AtomicBool) -> Result<Findings> {
    let client = Client::connect(socket)?;
    let title = client.open(title)?;
    let mut random = Random::new(number);
    let places = title.len() / READ;
    let mut wanted = Vec::with_capacity(DEPTH);
    let mut found = Findings::default();
    loop {
        let is_over = stop.load(Ordering::Relaxed);
        while !is_over && wanted.len() < DEPTH {
            let offset = random.next() % places * READ;
            let buffer = client.buffer(READ as usize)?;
            wanted.push((client.submit(ReadRequest::new(&title, offset, buffer))?, offset));
            found.reads += 1;
        }
        if wanted.is_empty() {
            return Ok(found);
        }
        let Some(completion) = client.wait(Some(PATIENCE))? else {
            found.reads_lost += wanted.len() as u64;
            return Ok(found);
        };
        // An answer that nothing waits for is one too many.
        let Some(at) = wanted.iter().position(|(token, _)| *token == completion.token) else {
            found.reads_wrong += 1;
            continue;
        };
        let (_, offset) = wanted.swap_remove(at);
        let is_right = completion.bytes().is_ok_and(|bytes| {
            bytes.len() as u64 == READ && Titles::holds(number as usize, offset, bytes)
        });
        found.reads_wrong += u64::from(!is_right);
        clock::sleep(REST);
    }
}

/// An answer that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[u16]) -> (u64, u64, u64) {
        let mut sequence = Sequence::default();
        for number in numbers {
            let [high, low] = number.to_be_bytes();
            sequence.note(&[0x80, 33, high, low, 0]);
        }
        (sequence.packets, sequence.lost, sequence.repeated)
    }

    #[test]
    fn gaps_and_repeats_are_counted_also_where_numbers_begin_again() {
        assert_eq!(of(&[65_534, 65_535, 0, 1]), (4, 0, 0));
        assert_eq!(of(&[7, 8, 11, 12]), (4, 2, 0));
        assert_eq!(of(&[65_535, 0, 0, 65_535, 1]), (5, 0, 2));
    }
}
