//! WAVE files (EBU Tech 3306 for RF64 and BW64): their chunks, and the samples of plain PCM.
//!
//! Promise: it reads a few bytes of at most 128 chunks. Whatever the bytes are, samples lie in the
//! file and are whole, or the fault says what to do. No sound is decoded.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Chunks that are stepped over.
const CHUNKS_MAX: usize = 128;
/// Bytes of the format chunk that count: `WAVEFORMATEXTENSIBLE`.
const FORMAT: usize = 40;
/// Bytes of the format chunk that are always there.
const FORMAT_MIN: u64 = 16;
/// The format tag of PCM.
const PCM: u16 = 1;
/// The format tag of a chunk that names its format by a GUID, which begins with the format tag.
const EXTENSIBLE: u16 = 0xfffe;
/// What follows the format tag in that GUID.
const GUID_END: [u8; 14] = *b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71";

/// Whether a file that begins with `start` is one.
#[must_use]
pub fn is_wave(start: &[u8]) -> bool {
    let is_riff = [&b"RIFF"[..], b"RF64", b"BW64"].iter().any(|name| start.starts_with(name));
    is_riff && start.get(8..12) == Some(b"WAVE")
}

/// The chunks of a file that describe its sound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wave {
    /// The format chunk; zeros follow a short one.
    format: [u8; FORMAT],
    /// The sound, as far as the file has it.
    data: Range<u64>,
    /// The stated length; `None` if the writer did not know it.
    stated: Option<u64>,
}

/// Samples of PCM: signed, the least significant byte first, the channels interleaved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Samples {
    /// Their place in the file; whole samples of all channels, at least one.
    pub bytes: Range<u64>,
    /// The channels, at least one.
    pub channels: u16,
    /// The bytes of a sample of one channel: 2 or 3.
    pub width: u8,
    /// Samples in a second of each channel.
    pub rate: u32,
}

/// Why a file has no samples that can be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaveFault {
    /// It is another file.
    Other,
    /// It has no sound behind its header.
    Empty,
    /// Its sound is compressed, or in floating point; the format tag.
    Format(u16),
    /// Other bits of a sample than 16 and 24.
    Bits(u16),
    /// Its header contradicts itself.
    Header,
    /// The sound is shorter than its header states.
    Short {
        /// The stated bytes.
        stated: u64,
        /// The bytes in the file.
        found: u64,
    },
}

impl Wave {
    /// Reads the chunks of `file`, which has `len` bytes.
    ///
    /// # Errors
    /// It is another file, or has no sound.
    pub fn read(file: &File, len: u64) -> Result<Self, WaveFault> {
        let start = part::<12>(file, 0, len).ok_or(WaveFault::Other)?;
        if !is_wave(&start) {
            return Err(WaveFault::Other);
        }
        let (mut at, mut format, mut long) = (12u64, None, None);
        for _ in 0..CHUNKS_MAX {
            if at.saturating_add(8) > len {
                return Err(WaveFault::Empty);
            }
            let head = part::<8>(file, at, len).ok_or(WaveFault::Empty)?;
            let (name, size) = (&head[..4], u64::from(word(&head, 4)));
            let content = at + 8;
            match name {
                b"fmt " => {
                    let end = content.saturating_add(size).min(len);
                    if end - content < FORMAT_MIN {
                        return Err(WaveFault::Header);
                    }
                    format = part::<FORMAT>(file, content, end);
                }
                b"ds64" => {
                    let sizes = part::<16>(file, content, len).ok_or(WaveFault::Header)?;
                    long = Some(u64::from(word(&sizes, 12)) << 32 | u64::from(word(&sizes, 8)));
                }
                b"data" => {
                    let format = format.ok_or(WaveFault::Header)?;
                    let stated = if size == u32::MAX.into() { long } else { Some(size) };
                    let stated = stated.filter(|&stated| stated > 0);
                    let end = stated.map_or(len, |stated| content.saturating_add(stated).min(len));
                    return Ok(Self { format, data: content..end, stated });
                }
                _ => {}
            }
            // Chunks begin at even places.
            at = content.saturating_add(size).saturating_add(size & 1);
        }
        Err(WaveFault::Empty)
    }

    /// Bytes of sound in a second, as stated.
    #[must_use]
    pub fn byte_rate(&self) -> u32 {
        word(&self.format, 8)
    }

    /// The sound, as far as the file has it.
    #[must_use]
    pub fn data(&self) -> Range<u64> {
        self.data.clone()
    }

    /// Its samples, if they are PCM of 16 or 24 bits.
    ///
    /// # Errors
    /// Why they cannot be sent.
    pub fn samples(&self) -> Result<Samples, WaveFault> {
        let half = |at: usize| u16::from_le_bytes([self.format[at], self.format[at + 1]]);
        let (tag, channels, rate) = (half(0), half(2), word(&self.format, 4));
        let (frame, bits) = (half(12), half(14));
        let named = if tag == EXTENSIBLE && self.format[26..] == GUID_END { half(24) } else { tag };
        if named != PCM {
            return Err(WaveFault::Format(named));
        }
        let width = match bits {
            16 | 24 => (bits / 8) as u8,
            _ => return Err(WaveFault::Bits(bits)),
        };
        // Fewer valid bits are the upper ones of a sample.
        if channels == 0 || u32::from(frame) != u32::from(channels) * u32::from(width) {
            return Err(WaveFault::Header);
        }
        let Range { start, end } = self.data;
        let found = end - start;
        if let Some(stated) = self.stated.filter(|&stated| stated > found) {
            return Err(WaveFault::Short { stated, found });
        }
        let bytes = start..end - found % u64::from(frame);
        if bytes.is_empty() {
            return Err(WaveFault::Empty);
        }
        Ok(Samples { bytes, channels, width, rate })
    }
}

impl fmt::Display for WaveFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CONVERT: &str = "convert it with `ffmpeg -i IN -c:a pcm_s24le -ar 48000 OUT.wav`";
        match self {
            Self::Other => write!(f, "the title is not a WAVE file; {CONVERT}"),
            Self::Empty => f.write_str("the file ends before its sound begins; upload it again"),
            Self::Format(tag) => {
                write!(f, "the sound is not plain PCM but format {tag:#06x}; {CONVERT}")
            }
            Self::Bits(bits) => {
                write!(f, "samples have {bits} bits instead of 16 or 24; {CONVERT}")
            }
            Self::Header => {
                write!(f, "the header of the WAVE file contradicts itself; {CONVERT}")
            }
            Self::Short { stated, found } => write!(
                f,
                "the file is cut off: its header states {stated} bytes of sound, and {found} \
                 follow; upload all of it"
            ),
        }
    }
}

/// `N` bytes from `at`; zeros stand for those from `end` on. `None` if all of them would, or if the
/// file cannot be read.
fn part<const N: usize>(file: &File, at: u64, end: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let there = end.checked_sub(at).filter(|&there| there > 0)?.min(N as u64) as usize;
    file.read_exact_at(&mut bytes[..there], at).ok()?;
    Some(bytes)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::io::Write;

    fn chunk(name: &[u8; 4], size: u32, bytes: &[u8]) -> Vec<u8> {
        [&name[..], &size.to_le_bytes(), bytes].concat()
    }

    fn format(tag: u16, channels: u16, rate: u32, bits: u16) -> Vec<u8> {
        let frame = channels * (bits / 8);
        let halves = [tag, channels].map(u16::to_le_bytes).concat();
        let words = [rate, rate * u32::from(frame)].map(u32::to_le_bytes).concat();
        [halves, words, [frame, bits].map(u16::to_le_bytes).concat()].concat()
    }

    fn riff(chunks: &[Vec<u8>]) -> Vec<u8> {
        [b"RIFF\0\0\0\0WAVE".to_vec(), chunks.concat()].concat()
    }

    fn samples(bytes: &[u8]) -> Result<Samples, WaveFault> {
        let mut file = File::from(memfd_create("title", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(bytes).unwrap();
        Wave::read(&file, bytes.len() as u64)?.samples()
    }

    fn stereo(bits: u16, data: Vec<u8>) -> Vec<u8> {
        riff(&[chunk(b"fmt ", 16, &format(PCM, 2, 48_000, bits)), data])
    }

    #[test]
    fn samples_are_found_behind_other_chunks_and_are_whole() {
        let data = chunk(b"data", 14, &[7; 14]);
        let found = samples(&stereo(24, data.clone())).unwrap();
        assert_eq!(found, Samples { bytes: 44..56, channels: 2, width: 3, rate: 48_000 });
        let text = chunk(b"LIST", 3, b"abc\0");
        let fmt = chunk(b"fmt ", 16, &format(PCM, 2, 48_000, 16));
        let found = samples(&riff(&[fmt, text, data])).unwrap();
        assert_eq!((found.bytes, found.width), (56..68, 2));
    }

    #[test]
    fn an_extended_header_names_pcm_at_its_end() {
        let front = [22, 0, 24, 0, 3, 0, 0, 0];
        let tail = |tag: u16| [&front[..], &tag.to_le_bytes(), &GUID_END].concat();
        let of = |tag| [format(EXTENSIBLE, 2, 48_000, 24), tail(tag)].concat();
        let file = |tag| riff(&[chunk(b"fmt ", 40, &of(tag)), chunk(b"data", 6, &[1; 6])]);
        assert_eq!(samples(&file(1)).map(|found| found.bytes), Ok(68..74));
        assert_eq!(samples(&file(3)), Err(WaveFault::Format(3)));
        let short = riff(&[chunk(b"fmt ", 16, &of(1)[..16]), chunk(b"data", 6, &[1; 6])]);
        assert_eq!(samples(&short), Err(WaveFault::Format(EXTENSIBLE)));
    }

    #[test]
    fn a_length_that_its_writer_did_not_know_is_the_rest_of_the_file() {
        for size in [0, u32::MAX] {
            let found = samples(&stereo(16, chunk(b"data", size, &[1; 9]))).unwrap();
            assert_eq!(found.bytes, 44..52);
        }
        let long = [0u64, 8, 2].map(u64::to_le_bytes).concat();
        let fmt = chunk(b"fmt ", 16, &format(PCM, 2, 48_000, 16));
        let data = chunk(b"data", u32::MAX, &[1; 30]);
        let found = samples(&riff(&[chunk(b"ds64", 24, &long), fmt, data])).unwrap();
        assert_eq!(found.bytes, 76..84);
    }

    #[test]
    fn what_cannot_be_sent_is_told_with_the_reason() {
        let of = |tag, channels, bits| {
            let fmt = chunk(b"fmt ", 16, &format(tag, channels, 48_000, bits));
            samples(&riff(&[fmt, chunk(b"data", 48, &[1; 48])]))
        };
        assert_eq!(of(PCM, 2, 8), Err(WaveFault::Bits(8)));
        assert_eq!(of(PCM, 2, 32), Err(WaveFault::Bits(32)));
        assert_eq!(of(3, 2, 32), Err(WaveFault::Format(3)));
        assert_eq!(of(PCM, 0, 16), Err(WaveFault::Header));
        let short = samples(&stereo(16, chunk(b"data", 100, &[1; 40])));
        assert_eq!(short, Err(WaveFault::Short { stated: 100, found: 40 }));
        assert_eq!(samples(b"RIFF"), Err(WaveFault::Other));
        assert_eq!(samples(b"ID3 and no WAVE"), Err(WaveFault::Other));
        assert_eq!(samples(&riff(&[])), Err(WaveFault::Empty));
        assert_eq!(samples(&stereo(16, chunk(b"data", 0, &[]))), Err(WaveFault::Empty));
        assert_eq!(samples(&stereo(16, chunk(b"data", 3, &[1; 3]))), Err(WaveFault::Empty));
        let data_first = riff(&[chunk(b"data", 4, &[1; 4])]);
        assert_eq!(samples(&data_first), Err(WaveFault::Header));
        let text = short.unwrap_err().to_string();
        assert!(text.contains("states 100 bytes of sound, and 40 follow"), "{text}");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_hostile_enough(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..120),
            at in 0usize..80,
            value in proptest::prelude::any::<u8>(),
        ) {
            let mut wave = stereo(24, chunk(b"data", 12, &[1; 12]));
            let at = at % wave.len();
            wave[at] = value;
            for bytes in [riff(&[bytes]), wave] {
                if let Ok(found) = samples(&bytes) {
                    let len = found.bytes.end - found.bytes.start;
                    assert!(found.bytes.end <= bytes.len() as u64 && len > 0);
                    assert_eq!(len % (u64::from(found.channels) * u64::from(found.width)), 0);
                }
            }
        }
    }
}
