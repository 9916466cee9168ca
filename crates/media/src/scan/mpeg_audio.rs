//! The frames of MPEG audio, layers I to III: MP3 (ISO/IEC 11172-3, 13818-3).
//!
//! Tags are left behind by their size, and damage at the next two frames that fit together. A first
//! frame with a table (Xing, Info, VBRI) holds no audio.

use tactus_core::units::MediaTime;

use super::Step;
use crate::stairs::Stairs;

#[derive(Debug, Default)]
pub(super) struct MpegAudio {
    /// Samples so far, of a stream whose frames have one sampling rate.
    samples: u64,
    /// The first frame; all others are of its kind.
    kind: Option<Frame>,
    is_lost: bool,
}

/// The header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    /// Bits per second.
    pub(crate) rate: u32,
    pub(crate) len: usize,
    /// Samples of a channel.
    pub(crate) samples: u32,
    /// Samples of a channel per second.
    pub(crate) sampling: u32,
    /// Where a table begins, if there is one.
    table_at: usize,
}

/// The table in front of a title.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Table {
    /// Frames of audio, if it counts them.
    pub(crate) frames: Option<u32>,
    /// Whether all frames have one rate.
    pub(crate) is_constant: bool,
}

/// Bytes of a frame's header.
const HEADER: usize = 4;
/// Bytes from a table's name to the end of its counts.
const TABLE: usize = 18;

/// Bytes of the ID3v2 tag at the start of `bytes` (ID3v2.4, section 3.1).
pub(crate) fn tag(bytes: &[u8]) -> Option<u64> {
    let [b'I', b'D', b'3', _, _, flags, size @ ..] = bytes.first_chunk::<10>()? else {
        return None;
    };
    let size = size
        .iter()
        .try_fold(0, |size, &byte| (byte < 0x80).then_some(size << 7 | u64::from(byte)))?;
    Some(10 + size + if flags & 0x10 != 0 { 10 } else { 0 })
}

impl MpegAudio {
    pub(super) fn step(&mut self, at: u64, bytes: &[u8], stairs: &mut Stairs) -> Step {
        if bytes.len() < 10 {
            return Step::More;
        }
        if let Some(len) = tag(bytes) {
            return Step::Skip(len);
        }
        let fits = |frame: &Frame| self.kind.is_none_or(|kind| kind.is_like(frame));
        let Some(frame) = Frame::read(bytes).filter(fits) else {
            self.is_lost = true;
            // The next byte that can begin a frame or a tag.
            let next = bytes[1..].iter().position(|byte| matches!(byte, 0xff | b'I'));
            return Step::Skip(next.map_or(bytes.len() as u64, |next| next as u64 + 1));
        };
        if self.is_lost || self.kind.is_none() {
            let Some(next) = bytes.get(frame.len..frame.len + HEADER) else { return Step::More };
            if !Frame::read(next).is_some_and(|next| frame.is_like(&next)) {
                self.is_lost = true;
                return Step::Skip(1);
            }
        }
        let is_first = self.kind.is_none();
        (self.kind, self.is_lost) = (Some(frame), false);
        if !(is_first && frame.table(bytes).is_some()) {
            let time = u128::from(self.samples) * 27_000_000 / u128::from(frame.sampling);
            stairs.add(MediaTime(time as u64), at + frame.len as u64);
            self.samples += u64::from(frame.samples);
        }
        Step::Skip(frame.len as u64)
    }
}

impl Frame {
    /// The frame at the start of `bytes`; `None` for free formats, whose frames state no length.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let [0xff, second, third, fourth] = *bytes.first_chunk::<HEADER>()? else { return None };
        if second & 0xe0 != 0xe0 {
            return None;
        }
        // 0: MPEG 2.5, 2: MPEG 2, 3: MPEG 1.
        let version = second >> 3 & 3;
        let layer = 4 - usize::from(second >> 1 & 3);
        let (index, sampling) = (usize::from(third >> 4), usize::from(third >> 2 & 3));
        if version == 1 || layer == 4 || index == 15 || index == 0 || sampling == 3 {
            return None;
        }
        let rates = match (version == 3, layer) {
            (true, 1) => &RATES_1_1,
            (true, 2) => &RATES_1_2,
            (true, _) => &RATES_1_3,
            (false, 1) => &RATES_2_1,
            (false, _) => &RATES_2_2,
        };
        let rate = u32::from(rates[index]) * 1000;
        let sampling = [44_100, 48_000, 32_000][sampling] >> [2, 0, 1, 0][usize::from(version)];
        let samples = match (layer, version == 3) {
            (1, _) => 384,
            (3, false) => 576,
            _ => 1152,
        };
        let padding = u32::from(third >> 1 & 1);
        let len = match layer {
            1 => (12 * rate / sampling + padding) * 4,
            _ => samples / 8 * rate / sampling + padding,
        };
        let is_mono = fourth >> 6 == 3;
        let table_at = HEADER
            + match (version == 3, is_mono) {
                (true, false) => 32,
                (true, true) | (false, false) => 17,
                (false, true) => 9,
            };
        Some(Self { rate, len: len as usize, samples, sampling, table_at })
    }

    /// Whether both can be frames of one title.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        (self.samples, self.sampling) == (other.samples, other.sampling)
    }

    /// The table in this frame, which is at the start of `bytes`.
    pub(crate) fn table(&self, bytes: &[u8]) -> Option<Table> {
        let name = |at: usize| bytes.get(at..at + TABLE).map(|bytes| bytes.split_at(4));
        let count = |bytes: &[u8], at: usize| {
            bytes.get(at..)?.first_chunk().map(|count| u32::from_be_bytes(*count))
        };
        match (name(self.table_at), name(HEADER + 32)) {
            (Some((kind @ (b"Xing" | b"Info"), rest)), _) => Some(Table {
                frames: count(rest, 4).filter(|_| rest[3] & 1 != 0),
                is_constant: kind == b"Info",
            }),
            (_, Some((b"VBRI", rest))) => {
                Some(Table { frames: count(rest, 10), is_constant: false })
            }
            _ => None,
        }
    }
}

const RATES_1_1: [u16; 15] = [0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448];
const RATES_1_2: [u16; 15] = [0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384];
const RATES_1_3: [u16; 15] = [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320];
const RATES_2_1: [u16; 15] = [0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256];
const RATES_2_2: [u16; 15] = [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160];
