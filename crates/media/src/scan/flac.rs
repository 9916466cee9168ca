//! The frames of FLAC (RFC 9639), which state no length: each ends where the next one begins.
//!
//! A frame's header has a code, a checksum and a number that ascends, so that sound is not mistaken
//! for it.

use tactus_core::units::MediaTime;

use super::Step;
use super::mpeg_audio::tag;
use crate::stairs::Stairs;

#[derive(Debug, Default)]
pub(super) struct Flac {
    info: Option<StreamInfo>,
    /// Whether the blocks of metadata are behind.
    is_audio: bool,
    /// The frame that has begun: when it plays, in samples, and the number of the next one.
    frame: Option<(u64, u64)>,
}

/// The facts of a title (section 8.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StreamInfo {
    /// Samples of a frame, if all have as many.
    block: u64,
    /// Samples of a channel per second.
    pub(crate) sampling: u32,
    /// Samples of a channel; zero if they were not counted.
    pub(crate) samples: u64,
}

/// A frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Frame {
    /// Its first sample, in samples.
    start: u64,
    /// Its number, or its first sample; and that of the next one.
    number: u64,
    next: u64,
}

/// Name and content of the first block.
pub(crate) const MAGIC: &[u8; 4] = b"fLaC";
pub(crate) const STREAM_INFO: usize = 34;
/// The longest header of a frame: four bytes, a number of seven, a size and a rate of two, a sum.
const HEADER_MAX: usize = 16;
/// Frames that may be missing.
const MISSING_MAX: u64 = 8;

impl Flac {
    pub(super) fn step(&mut self, at: u64, bytes: &[u8], stairs: &mut Stairs) -> Step {
        match self.info {
            None => self.begin(bytes),
            Some(_) if !self.is_audio => {
                let Some(&[kind, size @ ..]) = bytes.first_chunk::<4>() else { return Step::More };
                self.is_audio = kind & 0x80 != 0;
                Step::Skip(4 + block_size(size))
            }
            Some(info) => self.find(info, at, bytes, stairs),
        }
    }

    pub(super) fn finish(&self, len: u64, stairs: &mut Stairs) {
        if let (Some((start, _)), Some(info)) = (self.frame, self.info) {
            stairs.add(info.time(start), len);
        }
    }

    fn begin(&mut self, bytes: &[u8]) -> Step {
        if let Some(len) = tag(bytes) {
            return Step::Skip(len);
        }
        let Some(head) = bytes.get(..8 + STREAM_INFO) else { return Step::More };
        self.info = StreamInfo::read(&head[4..]).filter(|_| head.starts_with(MAGIC));
        if self.info.is_none() { Step::End } else { Step::Skip(4) }
    }

    fn find(&mut self, info: StreamInfo, at: u64, bytes: &[u8], stairs: &mut Stairs) -> Step {
        let places = bytes.windows(2).enumerate();
        let mut places = places.filter(|(_, word)| word[0] == 0xff && word[1] & 0xfe == 0xf8);
        let Some((place, _)) = places.next() else {
            return match bytes.len() {
                0 | 1 => Step::More,
                len => Step::Skip(len as u64 - 1),
            };
        };
        if place > 0 {
            return Step::Skip(place as u64);
        }
        if bytes.len() < HEADER_MAX {
            return Step::More;
        }
        let follows = |frame: &Frame| match self.frame {
            Some((_, next)) => {
                (next..=next.saturating_add(info.step(frame) * MISSING_MAX)).contains(&frame.number)
            }
            None => true,
        };
        if let Some(frame) = Frame::read(bytes, info).filter(follows) {
            if let Some((start, _)) = self.frame {
                stairs.add(info.time(start), at);
            }
            self.frame = Some((frame.start, frame.next));
        }
        Step::Skip(2)
    }
}

impl StreamInfo {
    /// From the block with its header.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (&[kind, size @ ..], info) = bytes.split_first_chunk::<4>()?;
        let info = info.get(..STREAM_INFO)?;
        let block = |at: usize| u64::from(u16::from_be_bytes([info[at], info[at + 1]]));
        let word = u64::from_be_bytes(*info[10..].first_chunk()?);
        let (sampling, samples) = ((word >> 44) as u32, word & ((1 << 36) - 1));
        let is_one = kind & 0x7f == 0 && block_size(size) == STREAM_INFO as u64 && sampling > 0;
        let block = if block(0) == block(2) { block(0) } else { 0 };
        is_one.then_some(Self { block, sampling, samples })
    }

    /// Rounds down.
    pub(crate) fn time(&self, sample: u64) -> MediaTime {
        let ticks = u128::from(sample) * 27_000_000 / u128::from(self.sampling);
        MediaTime(u64::try_from(ticks).unwrap_or(u64::MAX))
    }

    /// How far the numbers of two frames are apart.
    fn step(&self, frame: &Frame) -> u64 {
        frame.next - frame.number
    }
}

impl Frame {
    /// The header at the start of `bytes` (section 9.1).
    fn read(bytes: &[u8], info: StreamInfo) -> Option<Self> {
        let &[0xff, second, third, fourth] = bytes.first_chunk::<4>()? else { return None };
        if second & 0xfe != 0xf8 || fourth & 1 != 0 {
            return None;
        }
        let (number, mut len) = coded_number(bytes.get(4..)?)?;
        len += 4;
        let mut field = |count: usize| {
            let bytes = bytes.get(len..len + count)?;
            len += count;
            Some(bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
        };
        let block = match u32::from(third >> 4) {
            0 => return None,
            1 => 192,
            code @ 2..=5 => 144 << code,
            6 => field(1)? + 1,
            7 => field(2)? + 1,
            code => 1 << code,
        };
        match third & 0xf {
            12 => field(1)?,
            13 | 14 => field(2)?,
            15 => return None,
            _ => 0,
        };
        if crc8(bytes.get(..len)?) != *bytes.get(len)? {
            return None;
        }
        Some(match second & 1 {
            // The last frame may be shorter than the others.
            0 => {
                let block = if info.block > 0 { info.block } else { block };
                Self { start: number.checked_mul(block)?, number, next: number + 1 }
            }
            _ => Self { start: number, number, next: number + block },
        })
    }
}

/// The length of a metadata block.
pub(crate) fn block_size([a, b, c]: [u8; 3]) -> u64 {
    u64::from(u32::from_be_bytes([0, a, b, c]))
}

/// A number coded like a character of UTF-8, of up to 36 bits, and its length.
fn coded_number(bytes: &[u8]) -> Option<(u64, usize)> {
    let (&first, rest) = bytes.split_first()?;
    let len = match first.leading_ones() {
        0 => return Some((first.into(), 1)),
        ones @ 2..=7 => ones as usize,
        _ => return None,
    };
    let first = u64::from(first) & ((1 << (7 - len)) - 1);
    let value = rest.get(..len - 1)?.iter().try_fold(first, |value, &byte| {
        (byte & 0xc0 == 0x80).then_some(value << 6 | u64::from(byte & 0x3f))
    })?;
    Some((value, len))
}

/// The checksum of a header: x^8 + x^2 + x + 1.
fn crc8(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, &byte| {
        (0..8).fold(sum ^ byte, |sum, _| sum << 1 ^ if sum & 0x80 != 0 { 7 } else { 0 })
    })
}
