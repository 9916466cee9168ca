//! Sample titles: the two clips of `assets/`, repeated to any duration.
//!
//! Promise: the result is a valid, seamless title: clocks, counters and sample tables continue over
//! each seam, and the same duration always gives the same bytes. A title appears under its name
//! completely or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use tactus_core::ts::Repeat;
use tactus_core::units::{BitRate, Bytes, MediaTime, Nanos};

mod movie;

use movie::Movie;

/// A title to write: a head, then turns of equal length.
#[derive(Clone, Debug)]
pub struct Sample {
    head: Vec<u8>,
    turn: Turn,
    turns: u64,
    period: Nanos,
}

#[derive(Clone, Debug)]
enum Turn {
    /// Packets whose clocks and counters advance from turn to turn.
    Packets(Box<Repeat>),
    /// The same bytes; the head has what changes.
    Same(Vec<u8>),
}

/// The transport stream's rate: 2500 packets a second.
pub const TS_RATE: BitRate = BitRate(3_760_000);
/// 1.2 s: 30 frames of 25 a second, 50 frames of 1152 samples of 48 kHz.
const TS_PERIOD: Nanos = Nanos(1_200_000_000);
/// 1.92 s: 48 frames of 25 a second, 90 frames of 1024 samples of 48 kHz.
const MP4_PERIOD: Nanos = Nanos(1_920_000_000);

const TS_CLIP: &[u8] = include_bytes!("../../../assets/clip.ts");
const MP4_CLIP: &[u8] = include_bytes!("../../../assets/clip.mp4");

/// Writes the sample transport stream to `path`: the least number of turns that last `duration`.
pub fn write_ts(path: &Path, duration: Nanos) -> io::Result<Sample> {
    let sample = Sample::ts(duration);
    sample.write(path)?;
    Ok(sample)
}

/// Writes the sample movie to `path`: the least number of turns that last `duration`.
pub fn write_mp4(path: &Path, duration: Nanos) -> io::Result<Sample> {
    let sample = Sample::mp4(duration);
    sample.write(path)?;
    Ok(sample)
}

impl Sample {
    /// A transport stream of at least `duration`: 1280x720 H.264 and Layer II at [`TS_RATE`],
    /// constant.
    pub fn ts(duration: Nanos) -> Self {
        let period = MediaTime(TS_PERIOD.0 / 1000 * 27);
        let clip = Repeat::new(TS_CLIP, TS_RATE, period).expect("the clip loops, as a test shows");
        Self {
            head: Vec::new(),
            turn: Turn::Packets(Box::new(clip)),
            turns: turns(duration, TS_PERIOD),
            period: TS_PERIOD,
        }
    }

    /// A movie of at least `duration`: 640x360 H.264 and AAC, index in front, a second per chunk.
    pub fn mp4(duration: Nanos) -> Self {
        let turns = turns(duration, MP4_PERIOD);
        let Movie { head, turn } =
            Movie::new(MP4_CLIP, MP4_PERIOD, turns).expect("the clip loops, as a test shows");
        Self { head, turn: Turn::Same(turn), turns, period: MP4_PERIOD }
    }

    /// The size of the title.
    pub fn len(&self) -> Bytes {
        Bytes(self.head.len() as u64 + self.turns * self.turn.len())
    }

    /// Always false: a title has at least one turn.
    pub fn is_empty(&self) -> bool {
        self.len() == Bytes::ZERO
    }

    /// The duration.
    pub fn duration(&self) -> Nanos {
        self.period.times(self.turns)
    }

    /// The size over the duration, rounded up; for the transport stream its constant rate.
    pub fn rate(&self) -> BitRate {
        let bits_e9 = u128::from(self.len().0) * 8_000_000_000;
        BitRate(bits_e9.div_ceil(u128::from(self.duration().0)) as u64)
    }

    /// Writes the title to `path`, replacing an existing file. The name appears with the last byte.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut name = OsString::from(".");
        name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
        name.push(".partial");
        let partial = path.with_file_name(name);
        self.write_all(&partial)
            .and_then(|()| fs::rename(&partial, path))
            .inspect_err(|_| drop(fs::remove_file(&partial)))
    }

    /// Whether the file at `path` is this title, by its length, its head and its first and last
    /// turn.
    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            opened => opened?,
        };
        let facts = file.metadata()?;
        if !facts.is_file() || facts.len() != self.len().0 {
            return Ok(false);
        }
        let holds = |offset: u64, due: &[u8]| -> io::Result<bool> {
            let mut found = vec![0; due.len()];
            file.read_exact_at(&mut found, offset)?;
            Ok(found == due)
        };
        let mut turn = self.turn.room();
        for nth in [0, self.turns - 1] {
            self.turn.write(nth, &mut turn);
            if !holds(self.head.len() as u64 + nth * self.turn.len(), &turn)? {
                return Ok(false);
            }
        }
        holds(0, &self.head)
    }

    fn write_all(&self, path: &Path) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(&self.head)?;
        let mut turn = self.turn.room();
        for nth in 0..self.turns {
            self.turn.write(nth, &mut turn);
            file.write_all(&turn)?;
        }
        // Guaranteed streams read past the page cache, so the bytes must be on the disk.
        file.sync_data()
    }
}

impl Turn {
    fn len(&self) -> u64 {
        match self {
            Self::Packets(repeat) => repeat.turn_len().0,
            Self::Same(bytes) => bytes.len() as u64,
        }
    }

    fn room(&self) -> Vec<u8> {
        match self {
            Self::Packets(repeat) => vec![0; repeat.turn_len().0 as usize],
            Self::Same(bytes) => bytes.clone(),
        }
    }

    /// Writes turn `nth` into `room`.
    fn write(&self, nth: u64, room: &mut [u8]) {
        if let Self::Packets(repeat) = self {
            repeat.write_turn(nth, room);
        }
    }
}

/// Rounds up to at least `duration`, and to at least one turn.
fn turns(duration: Nanos, period: Nanos) -> u64 {
    duration.0.div_ceil(period.0).max(1)
}

#[cfg(test)]
mod tests;
