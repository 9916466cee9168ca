//! AAC frames: with AU headers (RFC 3640), or as LATM (RFC 6416). They come out as ADTS.
//!
//! Promise: a frame comes out complete or not at all. Only configurations that ADTS can express are
//! accepted: one of the first four object types of AAC, one to eight channels.

use alloc::vec::Vec;

use super::{Frame, Packet, follows};

/// The decoder configuration, as far as ADTS expresses it (ISO/IEC 14496-3, 1.6.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AudioConfig {
    /// 1 to 4.
    object: u8,
    /// The index of the sampling rate.
    rate: u8,
    /// The channel configuration.
    channels: u8,
}

/// The packet format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// With AU headers (RFC 3640, section 3.2.1).
    Headers {
        /// Bits of a size.
        size: u8,
        /// Bits of the first index.
        index: u8,
        /// Bits of an index delta.
        delta: u8,
    },
    /// LATM without configuration in the stream.
    Latm {
        /// Frames in each packet.
        frames: u8,
    },
}

/// The depacketizer of one audio stream.
#[derive(Clone, Debug)]
pub struct Audio {
    config: AudioConfig,
    layout: Layout,
    last: Option<u16>,
    /// Parts of an incomplete frame, and its timestamp.
    open: Option<(u32, Vec<u8>)>,
    broken: u64,
}

/// Samples of a frame.
const SAMPLES: u32 = 1024;
/// ADTS has 13 bits of length, including its header of seven bytes.
const ADTS_MAX: usize = (1 << 13) - 1;
const ADTS_HEAD: usize = 7;
/// Longest LATM element: the largest possible number of frames would be more than a minute.
const LATM_MAX: usize = 64 << 10;

impl AudioConfig {
    /// Parses it from bit `at` on; `None` if ADTS cannot express it.
    pub fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let mut bits = Bits { bytes, at };
        let mut object = bits.take(5)?;
        let rate = bits.take(4)?;
        let channels = bits.take(4)?;
        if matches!(object, 5 | 29) {
            // The first object type is that of the extension, which decoders detect by themselves.
            let _extended = bits.take(4)?;
            object = bits.take(5)?;
        }
        let fits = (1..=4).contains(&object) && rate <= 12 && (1..=7).contains(&channels);
        fits.then_some(Self { object: object as u8, rate: rate as u8, channels: channels as u8 })
    }

    /// The ADTS header of a frame of `len` bytes (ISO/IEC 13818-7, 6.2), if it fits.
    fn head(self, len: usize) -> Option<[u8; ADTS_HEAD]> {
        let len = len + ADTS_HEAD;
        if len > ADTS_MAX {
            return None;
        }
        let Self { object, rate, channels } = self;
        Some([
            0xff,
            0xf1,
            (object - 1) << 6 | rate << 2 | channels >> 2,
            (channels & 3) << 6 | (len >> 11) as u8,
            (len >> 3) as u8,
            (len << 5) as u8 | 0x1f,
            0xfc,
        ])
    }
}

impl Audio {
    /// An empty depacketizer.
    pub const fn new(config: AudioConfig, layout: Layout) -> Self {
        Self { config, layout, last: None, open: None, broken: 0 }
    }

    pub(super) const fn broken(&self) -> u64 {
        self.broken
    }

    pub(super) fn handle(&mut self, packet: &Packet<'_>, mut each: impl FnMut(Frame)) {
        if !follows(&mut self.last, packet.sequence) && self.open.take().is_some() {
            self.broken += 1;
        }
        let whole = match self.layout {
            Layout::Headers { size, index, delta } => {
                self.headers(packet, (size, index, delta), &mut each)
            }
            Layout::Latm { frames } => self.latm(packet, frames, &mut each),
        };
        if whole.is_none() {
            self.open = None;
            self.broken += 1;
        }
    }

    fn headers(
        &mut self,
        packet: &Packet<'_>,
        (size, index, delta): (u8, u8, u8),
        each: &mut impl FnMut(Frame),
    ) -> Option<()> {
        let (len, rest) = packet.payload.split_first_chunk::<2>()?;
        let len = usize::from(u16::from_be_bytes(*len));
        let (heads, mut data) = rest.split_at_checked(len.div_ceil(8))?;
        let mut bits = Bits { bytes: heads, at: 0 };
        let mut nth = 0;
        while bits.at + usize::from(size) <= len {
            let size = bits.take(size)? as usize;
            let skipped = bits.take(if nth == 0 { index } else { delta })?;
            nth += u32::from(nth > 0) * skipped;
            let heard = packet.timestamp.wrapping_add(nth * SAMPLES);
            nth += 1;
            if let Some((since, mut open)) = self.open.take() {
                // Another part of the same frame: its size is that of the whole frame.
                if since != packet.timestamp || open.len() + data.len() > size {
                    return None;
                }
                open.extend(data);
                match open.len() == size {
                    true => each(self.frame(since, &open)?),
                    false => self.open = Some((since, open)),
                }
                return Some(());
            }
            if size > data.len() {
                // The first part of a frame; no other unit may follow it (section 3.2.3).
                self.open = Some((heard, data.to_vec()));
                return (size <= ADTS_MAX).then_some(());
            }
            let (unit, more) = data.split_at(size);
            each(self.frame(heard, unit)?);
            data = more;
        }
        Some(())
    }

    fn latm(
        &mut self,
        packet: &Packet<'_>,
        frames: u8,
        each: &mut impl FnMut(Frame),
    ) -> Option<()> {
        let (heard, mut bytes) = match self.open.take() {
            Some((heard, bytes)) if heard == packet.timestamp => (heard, bytes),
            Some(_) => return None,
            None => (packet.timestamp, Vec::new()),
        };
        if bytes.len() + packet.payload.len() > LATM_MAX {
            return None;
        }
        bytes.extend(packet.payload);
        if !packet.marker {
            self.open = Some((heard, bytes));
            return Some(());
        }
        let mut rest = &bytes[..];
        for nth in 0..u32::from(frames) {
            // PayloadLengthInfo (ISO/IEC 14496-3, 1.7.3): bytes of 255, then a smaller one.
            let more = rest.iter().take_while(|&&byte| byte == 255).count();
            let len = more * 255 + usize::from(*rest.get(more)?);
            let unit = rest.get(more + 1..more + 1 + len)?;
            rest = &rest[more + 1 + len..];
            each(self.frame(heard.wrapping_add(nth * SAMPLES), unit)?);
        }
        Some(())
    }

    fn frame(&self, timestamp: u32, unit: &[u8]) -> Option<Frame> {
        let head = self.config.head(unit.len()).filter(|_| !unit.is_empty())?;
        Some(Frame { timestamp, data: [&head, unit].concat(), begins: true })
    }
}

/// A bit reader, most significant bit first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn take(&mut self, count: u8) -> Option<u32> {
        (0..count).try_fold(0, |value, _| {
            let byte = self.bytes.get(self.at / 8)?;
            let bit = byte >> (7 - self.at % 8) & 1;
            self.at += 1;
            Some(value << 1 | u32::from(bit))
        })
    }
}
