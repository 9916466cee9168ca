//! The pages of Ogg (RFC 3533) with their times: Vorbis, Opus, FLAC, Speex and Theora.
//!
//! A page's position states where its last packet ends. Its first packet begins where the page
//! before has ended, and is needed then. Streams that follow one another are one title.

use tactus_core::units::MediaTime;

use super::Step;
use super::flac::StreamInfo;
use crate::stairs::Stairs;

#[derive(Debug, Default)]
pub(super) struct Ogg {
    streams: Vec<Stream>,
    /// When the streams of this part of the title begin.
    base: u64,
    /// Whether pages with packets of media have come.
    is_begun: bool,
    /// When all packets so far have been played.
    end: u64,
    /// Where the first page ended.
    first: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    serial: u32,
    codec: Codec,
    /// Where the last page ended, in ticks of 27 MHz.
    reached: u64,
}

/// What a position counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Codec {
    /// Samples, this many per second, of which the first ones are not played.
    Audio { sampling: u32, skipped: u64 },
    /// Key frames, and frames behind them in the lower bits.
    Theora { numerator: u32, denominator: u32, shift: u32 },
}

/// Bytes of a page before its table of segments.
const HEADER: usize = 27;
/// Streams that are told apart.
const STREAMS_MAX: usize = 64;
/// Bytes of a stream's first packet that are read.
const FIRST: usize = 64;
/// A page begins with it.
pub(crate) const NAME: &[u8; 4] = b"OggS";
/// A title whose first page ends later than this was cut out of another one.
const LATE: u64 = 27_000_000 * 10;

impl Ogg {
    pub(super) fn step(&mut self, at: u64, bytes: &[u8], stairs: &mut Stairs) -> Step {
        if bytes.len() < HEADER {
            return Step::More;
        }
        if !bytes.starts_with(NAME) || bytes[4] != 0 {
            let next = bytes.windows(NAME.len()).skip(1).position(|word| word == NAME);
            let passed = next.map_or(bytes.len() - NAME.len() + 1, |next| next + 1);
            return Step::Skip(passed as u64);
        }
        let Some(table) = bytes.get(HEADER..HEADER + usize::from(bytes[26])) else {
            return Step::More;
        };
        let content: usize = table.iter().map(|&len| usize::from(len)).sum();
        let begin = HEADER + table.len();
        let Some(first) = bytes.get(begin..begin + content.min(FIRST)) else { return Step::More };
        let field = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let serial = field(14);
        let position = u64::from(field(10)) << 32 | u64::from(field(6));
        let len = (begin + content) as u64;
        if bytes[5] & 2 != 0 {
            self.begin(serial, first);
        } else if let Some(stream) = self.streams.iter_mut().find(|it| it.serial == serial) {
            let time = match position {
                u64::MAX => stream.reached,
                position => self.base.saturating_add(stream.codec.time(position)),
            };
            // Pages of headers are at zero.
            if position != 0 {
                self.is_begun = true;
                self.first.get_or_insert(time);
                stairs.add(MediaTime(stream.reached), at + len);
                stream.reached = time.max(stream.reached);
                self.end = self.end.max(stream.reached);
            }
        }
        Step::Skip(len)
    }

    /// The first page of a stream.
    fn begin(&mut self, serial: u32, first: &[u8]) {
        if std::mem::take(&mut self.is_begun) {
            self.base = self.end;
            self.streams.clear();
        }
        if let Some(codec) = Codec::read(first).filter(|_| self.streams.len() < STREAMS_MAX) {
            self.streams.push(Stream { serial, codec, reached: self.base });
        }
    }

    /// How long it plays.
    pub(super) fn duration(&self) -> MediaTime {
        let first = self.first.filter(|&first| first > LATE).unwrap_or(0);
        MediaTime(self.end.saturating_sub(first))
    }
}

impl Codec {
    /// From the first packet of a stream.
    fn read(first: &[u8]) -> Option<Self> {
        let little = |at: usize| Some(u32::from_le_bytes(*first.get(at..)?.first_chunk()?));
        let big = |at: usize| Some(u32::from_be_bytes(*first.get(at..)?.first_chunk()?));
        let audio = |sampling: u32, skipped: u64| {
            (sampling > 0).then_some(Self::Audio { sampling, skipped })
        };
        match first {
            // Vorbis I, section 4.2.2.
            [1, b'v', b'o', b'r', b'b', b'i', b's', ..] => audio(little(12)?, 0),
            // RFC 7845, section 5.1.
            [b'O', b'p', b'u', b's', b'H', b'e', b'a', b'd', _, _, a, b, ..] => {
                audio(48_000, u16::from_le_bytes([*a, *b]).into())
            }
            // RFC 9639, section 10.1.
            [0x7f, b'F', b'L', b'A', b'C', ..] => {
                audio(StreamInfo::read(first.get(13..)?)?.sampling, 0)
            }
            [b'S', b'p', b'e', b'e', b'x', b' ', b' ', b' ', ..] => audio(little(36)?, 0),
            // Theora, section 6.2.
            [0x80, b't', b'h', b'e', b'o', b'r', b'a', ..] => {
                let (numerator, denominator) = (big(22)?, big(26)?);
                let bits = u16::from_be_bytes(*first.get(40..)?.first_chunk()?);
                let shift = u32::from(bits >> 5 & 31);
                let is_one = numerator > 0 && denominator > 0;
                is_one.then_some(Self::Theora { numerator, denominator, shift })
            }
            _ => None,
        }
    }

    /// The time of a position, rounded down.
    fn time(self, position: u64) -> u64 {
        let ticks = match self {
            Self::Audio { sampling, skipped } => {
                u128::from(position.saturating_sub(skipped)) * 27_000_000 / u128::from(sampling)
            }
            Self::Theora { numerator, denominator, shift } => {
                let frames = (position >> shift) + (position & ((1 << shift) - 1));
                u128::from(frames) * 27_000_000 * u128::from(denominator) / u128::from(numerator)
            }
        };
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}
