//! Finds random access points: parses the frames of one PID as far as their type requires.
//!
//! Promise: it reads the bytes of each PES packet before the first slice, at most [`SCAN_MAX`], and
//! keeps a fixed number of them. It parses MPEG-1 and -2 video (ISO/IEC 13818-2), H.264 (7.3.1,
//! 7.3.3, D.1.8) and H.265 (7.3.1.2). For other codecs and scrambled packets it relies on the
//! `random_access_indicator`.

use super::super::{Packet, Pts, pes_times};
use super::OPEN;

/// What a decoder can do with a frame without references.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// Start: the sequence parameters come with it.
    Entry,
    /// Decode it, if the sequence parameters are known.
    Intra,
}

/// The codec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::ts) enum Codec {
    Mpeg2,
    Avc,
    Hevc,
    /// An unparsed video codec.
    Other,
    /// Audio: any frame will do.
    Audio,
}

/// Bytes of a PES packet that are searched for its first slice. Parameter sets and SEI messages
/// take some hundred.
const SCAN_MAX: usize = 64 << 10;
/// Bytes of a unit that are kept to parse its first fields: the messages before a recovery point
/// are short.
const HEAD_MAX: usize = 128;

/// The frame at the start of a PES packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct VideoFrame {
    /// The offset of the PES packet.
    pub(super) at: u64,
    /// The offset of the next PES packet, if it has started.
    pub(super) end: u64,
    pub(super) shown: Option<Pts>,
    pub(super) kind: AccessKind,
}

#[derive(Clone, Debug)]
pub(super) struct VideoFrames {
    codec: Codec,
    unit: Option<Unit>,
}

/// A PES packet whose first frame is not identified yet.
#[derive(Clone, Debug)]
struct Unit {
    at: u64,
    shown: Option<Pts>,
    /// The packet has the random access indicator.
    flagged: bool,
    /// Bytes of the PES header that are still to come.
    skip: usize,
    seen: usize,
    /// The last four bytes.
    window: u32,
    /// The first bytes of the current NAL unit or header.
    head: Head,
    /// Sequence parameters have arrived.
    has_sequence: bool,
    /// All slices are signalled as intra.
    says_intra: bool,
}

#[derive(Clone, Debug)]
struct Head {
    bytes: [u8; HEAD_MAX],
    len: usize,
    wanted: usize,
}

enum Verdict {
    Open,
    Intra,
    Other,
}

impl Codec {
    /// The codec of a stream type (ISO/IEC 13818-1, table 2-34).
    pub(in crate::ts) fn of(stream_type: u8) -> Option<Self> {
        Some(match stream_type {
            0x01 | 0x02 => Self::Mpeg2,
            0x1b => Self::Avc,
            0x24 => Self::Hevc,
            0x10 | 0x1f..=0x23 | 0x25 | 0x28..=0x2b | 0x31 | 0x33 | 0x35 | 0x42 | 0xd2 | 0xea => {
                Self::Other
            }
            0x03 | 0x04 | 0x0f | 0x11 | 0x1c | 0x2d | 0x81 | 0x87 => Self::Audio,
            _ => return None,
        })
    }
}

impl VideoFrames {
    pub(super) fn new(codec: Codec) -> Self {
        Self { codec, unit: None }
    }

    pub(super) fn codec(&self) -> Codec {
        self.codec
    }

    /// Takes the next packet of the PID at byte `at`; returns a frame without references when it is
    /// identified, of the PES packet before or of this one.
    pub(super) fn handle_packet(&mut self, at: u64, packet: &Packet<'_>) -> Option<VideoFrame> {
        let mut found = None;
        if packet.starts_unit() && packet.has_payload() {
            found = self.end_unit();
            self.begin_unit(at, packet);
        }
        let Some(unit) = &mut self.unit else { return found };
        if packet.is_scrambled() || matches!(self.codec, Codec::Other | Codec::Audio) {
            let audio = self.codec == Codec::Audio;
            let video_frame = unit.video_frame(AccessKind::Entry);
            let believed = unit.flagged || audio;
            self.unit = None;
            return found.or(video_frame.filter(|_| believed));
        }
        let payload = packet.payload();
        let skipped = unit.skip.min(payload.len());
        unit.skip -= skipped;
        match unit.scan(self.codec, &payload[skipped..]) {
            Verdict::Open if unit.seen < SCAN_MAX => found,
            Verdict::Open => found.or(self.end_unit()),
            Verdict::Other => {
                self.unit = None;
                found
            }
            Verdict::Intra => {
                let kind = match unit.has_sequence || unit.flagged {
                    true => AccessKind::Entry,
                    false => AccessKind::Intra,
                };
                let video_frame = unit.video_frame(kind);
                self.unit = None;
                found.or(video_frame)
            }
        }
    }

    /// No type was found in the unit: the indicator of the packet counts.
    fn end_unit(&mut self) -> Option<VideoFrame> {
        let unit = self.unit.take()?;
        unit.video_frame(AccessKind::Entry).filter(|_| unit.flagged)
    }

    fn begin_unit(&mut self, at: u64, packet: &Packet<'_>) {
        let payload = packet.payload();
        // Other bytes do not start a PES packet.
        let (header, readable) = match *payload {
            [0, 0, 1, _, _, _, _, _, length, ..] => (9 + usize::from(length), true),
            _ => (0, false),
        };
        self.unit = (readable || packet.is_scrambled()).then(|| Unit {
            at,
            shown: pes_times(packet).map(|times| times.shown),
            flagged: packet.is_random_access(),
            skip: header,
            seen: 0,
            window: u32::MAX,
            head: Head { bytes: [0; HEAD_MAX], len: 0, wanted: 0 },
            has_sequence: false,
            says_intra: false,
        });
    }
}

impl Unit {
    fn video_frame(&self, kind: AccessKind) -> Option<VideoFrame> {
        Some(VideoFrame { at: self.at, end: OPEN, shown: self.shown, kind })
    }

    fn scan(&mut self, codec: Codec, bytes: &[u8]) -> Verdict {
        for &byte in bytes {
            self.seen += 1;
            self.window = self.window << 8 | u32::from(byte);
            if self.window >> 8 == 1 {
                // The unit before may have been shorter than its kind ever is.
                if self.head.wanted > self.head.len
                    && let verdict @ (Verdict::Intra | Verdict::Other) = self.judge(codec)
                {
                    return verdict;
                }
                self.head.begin(byte, wanted(codec, byte));
            } else {
                self.head.add(byte, self.window);
            }
            if self.head.len > 0 && self.head.len == self.head.wanted {
                let verdict = self.judge(codec);
                self.head.wanted = 0;
                if !matches!(verdict, Verdict::Open) {
                    return verdict;
                }
            }
        }
        Verdict::Open
    }

    /// The result of parsing the beginning of a NAL unit or header.
    fn judge(&mut self, codec: Codec) -> Verdict {
        let head = &self.head.bytes[..self.head.len];
        let Some(&kind) = head.first() else { return Verdict::Open };
        match (codec, kind) {
            (Codec::Mpeg2, 0xb3) => self.has_sequence = true,
            // picture_coding_type, after ten bits of temporal_reference.
            (Codec::Mpeg2, 0x00) => {
                return match head.get(2).map(|byte| byte >> 3 & 7) {
                    Some(1) => Verdict::Intra,
                    _ => Verdict::Other,
                };
            }
            (Codec::Avc, kind) => match kind & 0x1f {
                7 => self.has_sequence = true,
                5 => return Verdict::Intra,
                6 => self.says_intra |= has_recovery_point(&head[1..]),
                // primary_pic_type: only slices of type I, or of I and SI (table 7-5).
                9 => self.says_intra |= head.get(1).is_some_and(|byte| matches!(byte >> 5, 0 | 5)),
                1 | 2 => {
                    // All slices of the frame are of this type if it is above four.
                    return match self.says_intra || slice_type(&head[1..]) == Some(7) {
                        true => Verdict::Intra,
                        false => Verdict::Other,
                    };
                }
                _ => {}
            },
            (Codec::Hevc, kind) => match kind >> 1 & 0x3f {
                33 => self.has_sequence = true,
                16..=23 => return Verdict::Intra,
                0..=15 => return Verdict::Other,
                _ => {}
            },
            _ => {}
        }
        Verdict::Open
    }
}

/// How many bytes of a unit of this kind must be parsed; 0 to skip it.
fn wanted(codec: Codec, kind: u8) -> usize {
    match (codec, kind) {
        (Codec::Mpeg2, 0xb3) => 1,
        (Codec::Mpeg2, 0x00) => 3,
        (Codec::Avc, kind) => match kind & 0x1f {
            5 | 7 => 1,
            9 => 2,
            1 | 2 => 16,
            6 => HEAD_MAX,
            _ => 0,
        },
        (Codec::Hevc, kind) => match kind >> 1 & 0x3f {
            0..=23 | 33 => 1,
            _ => 0,
        },
        _ => 0,
    }
}

impl Head {
    fn begin(&mut self, byte: u8, wanted: usize) {
        self.bytes[0] = byte;
        (self.len, self.wanted) = (1, wanted);
    }

    /// Takes the next byte of the unit, except emulation prevention bytes (H.264, 7.4.1).
    fn add(&mut self, byte: u8, window: u32) {
        if self.len < self.wanted && window & 0x00ff_ffff != 3 {
            self.bytes[self.len] = byte;
            self.len += 1;
        }
    }
}

/// Whether the first SEI messages include a recovery point (H.264, 7.3.2.3.1 and D.1.8).
fn has_recovery_point(mut messages: &[u8]) -> bool {
    const RECOVERY_POINT: usize = 6;
    let number = |bytes: &mut &[u8]| -> Option<usize> {
        let mut sum = 0;
        loop {
            let (&byte, rest) = bytes.split_first()?;
            *bytes = rest;
            sum += usize::from(byte);
            if byte != 0xff {
                return Some(sum);
            }
        }
    };
    loop {
        let (Some(kind), Some(len)) = (number(&mut messages), number(&mut messages)) else {
            return false;
        };
        if kind == RECOVERY_POINT {
            return len > 0;
        }
        let Some(rest) = messages.get(len..) else { return false };
        messages = rest;
    }
}

/// The type of a slice (H.264, 7.3.3): the second number after the NAL unit's first byte.
fn slice_type(bytes: &[u8]) -> Option<u32> {
    let mut at = 0;
    golomb(bytes, &mut at)?;
    golomb(bytes, &mut at)
}

/// An unsigned Exp-Golomb number (H.264, 9.1).
fn golomb(bytes: &[u8], at: &mut usize) -> Option<u32> {
    let mut bit = || {
        let byte = bytes.get(*at / 8)?;
        let bit = byte >> (7 - *at % 8) & 1;
        *at += 1;
        Some(u32::from(bit))
    };
    let mut zeros = 0;
    while bit()? == 0 {
        zeros += 1;
        if zeros > 31 {
            return None;
        }
    }
    let mut value = 1u32;
    for _ in 0..zeros {
        value = value << 1 | bit()?;
    }
    Some(value - 1)
}

#[cfg(test)]
mod tests {
    use super::super::super::PACKET;
    use super::super::super::packet::tests::packet;
    use super::*;
    use alloc::vec::Vec;

    /// Packets of PID 256 that carry a PES packet with `content`, each with at most `each` bytes of
    /// it.
    fn unit(content: &[u8], each: usize, flagged: bool) -> Vec<[u8; PACKET]> {
        let mut bytes = alloc::vec![0, 0, 1, 0xe0, 0, 0, 0x80, 0x80, 5, 0x21, 0, 1, 0, 1];
        bytes.extend(content);
        let mut packets = Vec::new();
        for (nth, part) in bytes.chunks(each).enumerate() {
            let mut packet = packet(256, nth as u8, None);
            let stuffing = PACKET - 5 - part.len();
            packet[3] |= 0x30;
            packet[4] = stuffing as u8;
            packet[5] = if flagged && nth == 0 { 0x40 } else { 0 };
            packet[PACKET - part.len()..].copy_from_slice(part);
            if nth == 0 {
                packet[1] |= 0x40;
            }
            packets.push(packet);
        }
        packets
    }

    /// The type found for one unit, in packets of any size.
    fn kind(codec: Codec, content: &[u8], flagged: bool) -> Option<AccessKind> {
        let found: Vec<_> = [14, 15, 16, 17, 23, 64, 180]
            .map(|each| {
                let mut video_frames = VideoFrames::new(codec);
                let mut packets = unit(content, each, flagged);
                packets.extend(unit(&[0; 40], 180, false));
                let all: Vec<_> = packets
                    .iter()
                    .filter_map(|bytes| {
                        video_frames.handle_packet(7, &Packet::read(bytes).unwrap())
                    })
                    .collect();
                assert!(all.len() <= 1);
                all.first().map(|video_frame| {
                    assert_eq!((video_frame.at, video_frame.shown), (7, Some(Pts::at(0))));
                    video_frame.kind
                })
            })
            .into();
        assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
        found[0]
    }

    const ENTRY: Option<AccessKind> = Some(AccessKind::Entry);
    const INTRA: Option<AccessKind> = Some(AccessKind::Intra);

    #[test]
    fn video_frames_of_mpeg_2_are_identified_by_their_coding_type() {
        let sequence = [0, 0, 1, 0xb3, 0x2d, 0x02, 0x40, 0x33];
        let video_frame = |kind: u8| [0, 0, 1, 0, 0x12, kind << 3, 0xff, 0xf8];
        assert_eq!(kind(Codec::Mpeg2, &[sequence, video_frame(1)].concat(), false), ENTRY);
        assert_eq!(kind(Codec::Mpeg2, &video_frame(1), false), INTRA);
        assert_eq!(kind(Codec::Mpeg2, &video_frame(2), false), None);
        assert_eq!(kind(Codec::Mpeg2, &[sequence, video_frame(3)].concat(), true), None);
    }

    #[test]
    fn video_frames_of_h264_are_identified_by_nal_units_messages_and_slices() {
        let sets = [0, 0, 0, 1, 0x67, 0x64, 0, 0x1f, 0, 0, 1, 0x68, 0xeb];
        let (idr, p, i) = ([0, 0, 1, 0x65, 0x88], [0, 0, 1, 0x41, 0x9a], [0, 0, 1, 0x41, 0x88]);
        let rest = [0x84; 20];
        // A buffering period of three bytes, one of them escaped, then a recovery point.
        let recovery = [0, 0, 1, 6, 0, 4, 0, 0, 3, 1, 7, 6, 1, 0xc4, 0x80];
        let of = |parts: &[&[u8]]| kind(Codec::Avc, &parts.concat(), false);
        assert_eq!(of(&[&sets, &idr, &rest]), ENTRY);
        assert_eq!(of(&[&idr, &rest]), INTRA);
        assert_eq!(of(&[&sets, &p, &rest]), None);
        assert_eq!(of(&[&i, &rest]), INTRA);
        assert_eq!(of(&[&sets, &recovery, &p, &rest]), ENTRY);
        assert_eq!(of(&[&[0, 0, 1, 9, 0x10], &p, &rest]), INTRA, "the delimiter says so");
        assert_eq!(of(&[&[0, 0, 1, 9, 0x30], &p, &rest]), None);
    }

    #[test]
    fn video_frames_of_h265_are_identified_by_nal_units() {
        let nal = |kind: u8| [0, 0, 1, kind << 1, 1, 0xaf];
        let of = |kinds: &[u8]| {
            let bytes: Vec<u8> = kinds.iter().flat_map(|&kind| nal(kind)).collect();
            kind(Codec::Hevc, &bytes, false)
        };
        assert_eq!(of(&[35, 32, 33, 34, 19]), ENTRY);
        assert_eq!(of(&[35, 32, 33, 34, 21]), ENTRY);
        assert_eq!(of(&[35, 21]), INTRA);
        assert_eq!(of(&[35, 1]), None);
    }

    #[test]
    fn what_cannot_be_read_is_believed() {
        assert_eq!(kind(Codec::Other, &[1; 50], true), ENTRY);
        assert_eq!(kind(Codec::Other, &[1; 50], false), None);
        assert_eq!(kind(Codec::Avc, &[1; 50], true), ENTRY, "nothing is found in it");
        assert_eq!(kind(Codec::Avc, &[1; 50], false), None);
    }
}
