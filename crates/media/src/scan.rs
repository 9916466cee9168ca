//! The frame times of containers without a table of samples, from one pass over their bytes.
//!
//! Promise: bytes come in pieces of any length, and where they are cut makes no difference. Time
//! is linear in the bytes; memory is bounded by `LOOK_MAX` and the points of a consumption. A
//! title of another container, or with times without order, is hopeless and has none.

use std::ops::Range;

use tactus_core::smoothing::Consumption;
use tactus_core::units::{KIB, MediaTime};

use crate::stairs::Stairs;

pub(crate) mod flac;
mod matroska;
pub(crate) mod mpeg_audio;
mod ogg;

use flac::Flac;
use matroska::Matroska;
use mpeg_audio::MpegAudio;
use ogg::Ogg;

pub(crate) use ogg::NAME as OGG;

use super::MediaKind;

/// A pass over a title.
#[derive(Debug)]
pub struct Scan {
    format: Option<Format>,
    /// The next byte that the format has to see.
    at: u64,
    /// Bytes that have come.
    len: u64,
    /// Bytes from `at` on that were not enough for the format.
    rest: Vec<u8>,
    stairs: Stairs,
}

#[derive(Debug)]
enum Format {
    Matroska(Matroska),
    MpegAudio(MpegAudio),
    Flac(Flac),
    Ogg(Ogg),
}

/// What a format does with the bytes that it sees.
enum Step {
    /// It goes on this many bytes further.
    Skip(u64),
    /// It has to see more bytes.
    More,
    /// There is no use in going on.
    End,
}

/// Most bytes that a format sees at once before it goes on: headers are shorter.
const LOOK_MAX: usize = 64 * KIB as usize;

impl Scan {
    /// A pass over a title of this kind; `None` if it has a table of its own, or a constant rate.
    #[must_use]
    pub fn of(kind: MediaKind) -> Option<Self> {
        Some(Self::new(match kind {
            MediaKind::Matroska => Format::Matroska(Matroska::default()),
            MediaKind::Mp3 { is_constant: false } => Format::MpegAudio(MpegAudio::default()),
            MediaKind::Flac => Format::Flac(Flac::default()),
            MediaKind::Ogg => Format::Ogg(Ogg::default()),
            MediaKind::TransportStream { .. }
            | MediaKind::Movie
            | MediaKind::Mp3 { is_constant: true }
            | MediaKind::Wave => return None,
        }))
    }

    /// A pass that begins somewhere within a title of this kind, whose first bytes are `head`. Its
    /// bytes and times count from there. `None` if its format needs all bytes before.
    #[must_use]
    pub fn within(kind: MediaKind, head: &[u8]) -> Option<Self> {
        let mut scan = Self::of(kind)?;
        scan.add(head);
        match scan.format? {
            Format::Matroska(format) => Some(Self::new(Format::Matroska(format.lost()))),
            Format::MpegAudio(_) | Format::Flac(_) | Format::Ogg(_) => None,
        }
    }

    /// The times of the first and the latest block of Matroska behind the first cluster in `bytes`,
    /// which lie somewhere in a title whose ticks have `scale` nanoseconds.
    pub(crate) fn of_clusters(scale: u64, bytes: &[u8]) -> Option<Range<MediaTime>> {
        let mut scan = Self::new(Format::Matroska(Matroska::within(scale)));
        scan.add(bytes);
        scan.stairs.times()
    }

    /// How long an Ogg plays, by bytes of its beginning and of its end.
    pub(crate) fn ogg_duration(begin: &[u8], end: &[u8]) -> MediaTime {
        let (mut ogg, mut stairs) = (Ogg::default(), Stairs::default());
        for bytes in [begin, end] {
            let mut rest = bytes;
            while let Step::Skip(count) = ogg.step(0, rest, &mut stairs) {
                let Some(further) = rest.get(count as usize..) else { break };
                rest = further;
            }
        }
        ogg.duration()
    }

    fn new(format: Format) -> Self {
        let stairs = Stairs::default();
        Self { format: Some(format), at: 0, len: 0, rest: Vec::new(), stairs }
    }

    /// Adds the next bytes of the title, from the first on.
    pub fn add(&mut self, piece: &[u8]) {
        let begin = self.len - self.rest.len() as u64;
        self.len += piece.len() as u64;
        let mut joined = std::mem::take(&mut self.rest);
        let bytes = match joined.is_empty() {
            true => piece,
            false => {
                joined.extend_from_slice(piece);
                &joined
            }
        };
        let Some(format) = &mut self.format else { return };
        while let Some(seen) = usize::try_from(self.at - begin).ok().and_then(|at| bytes.get(at..))
        {
            match format.step(self.at, seen, &mut self.stairs) {
                Step::Skip(count) => self.at = self.at.saturating_add(count),
                Step::More if seen.len() < LOOK_MAX => {
                    self.rest = seen.to_vec();
                    break;
                }
                Step::More | Step::End => {
                    self.format = None;
                    break;
                }
            }
            if self.stairs.is_jumbled() {
                self.format = None;
                break;
            }
        }
    }

    /// Bytes that have been added.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing has been added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether more bytes change nothing: there will be no consumption.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        self.format.is_none()
    }

    /// The consumption of the title; `None` if it has none, or a constant rate.
    #[must_use]
    pub fn finish(mut self) -> Option<Consumption> {
        self.format.take()?.finish(self.len, &mut self.stairs);
        self.stairs.finish(self.len)
    }
}

impl Format {
    fn step(&mut self, at: u64, bytes: &[u8], stairs: &mut Stairs) -> Step {
        match self {
            Self::Matroska(format) => format.step(at, bytes, stairs),
            Self::MpegAudio(format) => format.step(at, bytes, stairs),
            Self::Flac(format) => format.step(at, bytes, stairs),
            Self::Ogg(format) => format.step(at, bytes, stairs),
        }
    }

    fn finish(self, len: u64, stairs: &mut Stairs) {
        match self {
            Self::Flac(format) => format.finish(len, stairs),
            Self::Matroska(format) => format.finish(stairs),
            Self::MpegAudio(_) | Self::Ogg(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
