//! RTP (RFC 3550): packet headers, and reordering.
//!
//! Promise: a packet is parsed as in the RFC or refused with the broken rule. Nothing is read
//! beyond the datagram. It sends nothing and knows no payload format.

pub mod frame;
pub mod gather;
mod nal;
mod receipt;
mod reorder;
pub mod rtcp;

pub mod aac;
pub mod ac3;
pub mod h264;
pub mod h265;
pub mod mpeg_audio;
pub mod pcm;

pub use nal::{LengthPrefixed, Payload};
pub use receipt::Receipt;
pub use reorder::{Counts, ReorderBuffer, Verdict, WINDOW};

/// Payload type of MPEG-2 transport streams (RFC 3551, table 5).
pub const MP2T: u8 = 33;
/// The fixed header, in bytes.
pub const HEADER: usize = 12;

/// A header without contributing sources, extension and padding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The marker bit, defined by the payload format.
    pub marker: bool,
    /// The payload type: seven bits.
    pub payload_type: u8,
    /// The sequence number.
    pub sequence: u16,
    /// The sampling time, in units of the payload format.
    pub timestamp: u32,
    /// The SSRC.
    pub source: u32,
}

impl Header {
    /// The encoded header (RFC 3550, section 5.1).
    pub const fn write(self) -> [u8; HEADER] {
        let [s0, s1] = self.sequence.to_be_bytes();
        let [t0, t1, t2, t3] = self.timestamp.to_be_bytes();
        let [i0, i1, i2, i3] = self.source.to_be_bytes();
        let kind = (self.marker as u8) << 7 | self.payload_type & 0x7f;
        [2 << 6, kind, s0, s1, t0, t1, t2, t3, i0, i1, i2, i3]
    }
}

/// A packet, parsed in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// The marker bit, defined by the payload format.
    pub marker: bool,
    /// The payload type.
    pub payload_type: u8,
    /// The sequence number.
    pub sequence: u16,
    /// The sampling time, in units of the payload format.
    pub timestamp: u32,
    /// The SSRC.
    pub source: u32,
    /// The payload without padding.
    pub payload: &'a [u8],
}

/// The rule that a packet breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RtpFault {
    /// Shorter than its header.
    Short,
    /// Not version 2.
    Version,
    /// It ends within its list of contributing sources.
    Sources,
    /// It ends within its header extension.
    Extension,
    /// More padding than payload, or padding of zero bytes.
    Padding,
}

impl<'a> Packet<'a> {
    /// Parses `datagram`.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn read(datagram: &'a [u8]) -> Result<Self, RtpFault> {
        let (head, mut rest) = datagram.split_at_checked(HEADER).ok_or(RtpFault::Short)?;
        if head[0] >> 6 != 2 {
            return Err(RtpFault::Version);
        }
        let sources = usize::from(head[0] & 0x0f) * 4;
        rest = rest.get(sources..).ok_or(RtpFault::Sources)?;
        if head[0] & 0x10 != 0 {
            // RFC 3550 section 5.3.1: 16 bits of the profile, then the length in words.
            let [_, _, high, low, ..] = *rest else { return Err(RtpFault::Extension) };
            let words = usize::from(u16::from_be_bytes([high, low]));
            rest = rest.get(4 + words * 4..).ok_or(RtpFault::Extension)?;
        }
        if head[0] & 0x20 != 0 {
            // The last byte is the count, including itself.
            let padding = usize::from(*rest.last().ok_or(RtpFault::Padding)?);
            let len = rest.len().checked_sub(padding).filter(|_| padding > 0);
            rest = &rest[..len.ok_or(RtpFault::Padding)?];
        }
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        Ok(Self {
            marker: head[1] & 0x80 != 0,
            payload_type: head[1] & 0x7f,
            sequence: u16::from_be_bytes([head[2], head[3]]),
            timestamp: word(4),
            source: word(8),
            payload: rest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    struct Parts {
        sources: usize,
        extension: Option<usize>,
        padding: Option<u8>,
        payload: Vec<u8>,
    }

    fn written(parts: &Parts) -> Vec<u8> {
        let mut bytes =
            alloc::vec![0x80 | parts.sources as u8, 0x80 | MP2T, 1, 2, 0, 0, 0, 3, 0, 0, 0, 4];
        bytes.resize(HEADER + parts.sources * 4, 7);
        if let Some(words) = parts.extension {
            bytes[0] |= 0x10;
            bytes.extend([0xbe, 0xde]);
            bytes.extend((words as u16).to_be_bytes());
            bytes.resize(bytes.len() + words * 4, 9);
        }
        bytes.extend(&parts.payload);
        if let Some(padding) = parts.padding {
            bytes[0] |= 0x20;
            bytes.resize(bytes.len() + usize::from(padding) - 1, 0);
            bytes.push(padding);
        }
        bytes
    }

    fn parts() -> impl Strategy<Value = Parts> {
        let extension = proptest::option::of(0usize..300);
        let payload = proptest::collection::vec(any::<u8>(), 0..1400);
        (0usize..16, extension, proptest::option::of(1u8..=255), payload).prop_map(
            |(sources, extension, padding, payload)| Parts { sources, extension, padding, payload },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(parts in parts()) {
            let bytes = written(&parts);
            let packet = Packet::read(&bytes).unwrap();
            prop_assert_eq!(packet.payload, &parts.payload[..]);
            prop_assert_eq!((packet.marker, packet.payload_type), (true, MP2T));
            prop_assert_eq!((packet.sequence, packet.timestamp, packet.source), (0x0102, 3, 4));
        }

        #[test]
        fn a_packet_that_is_cut_is_refused_or_lacks_payload_only(
            parts in parts(),
            cut in any::<prop::sample::Index>(),
        ) {
            let bytes = written(&parts);
            let cut = cut.index(bytes.len());
            let head = bytes.len() - parts.payload.len() - usize::from(parts.padding.unwrap_or(0));
            let read = Packet::read(&bytes[..cut]);
            if cut < head {
                prop_assert!(read.is_err());
            } else if parts.padding.is_none() {
                prop_assert_eq!(read.unwrap().payload, &parts.payload[..cut - head]);
            }
        }

        #[test]
        fn no_datagram_is_hostile_enough(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(packet) = Packet::read(&bytes) {
                prop_assert!(packet.payload.len() + HEADER <= bytes.len());
            }
        }
    }

    proptest! {
        #[test]
        fn a_header_that_is_written_is_read(
            marker: bool, payload_type in 0u8..128, sequence: u16, timestamp: u32, source: u32,
        ) {
            let bytes = Header { marker, payload_type, sequence, timestamp, source }.write();
            let payload = &[][..];
            let read = Packet { marker, payload_type, sequence, timestamp, source, payload };
            prop_assert_eq!(Packet::read(&bytes), Ok(read));
        }
    }

    #[test]
    fn each_rule_is_told_by_name() {
        let plain = written(&Parts {
            sources: 0,
            extension: None,
            padding: None,
            payload: alloc::vec![5; 8],
        });
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = plain.clone();
            change(&mut bytes);
            Packet::read(&bytes).map(|packet| packet.payload.len())
        };
        assert_eq!(with(&|_| {}), Ok(8));
        assert_eq!(with(&|bytes| bytes.truncate(11)), Err(RtpFault::Short));
        assert_eq!(with(&|bytes| bytes[0] = 0x40), Err(RtpFault::Version));
        assert_eq!(with(&|bytes| bytes[0] = 0xc0), Err(RtpFault::Version));
        assert_eq!(with(&|bytes| bytes[0] |= 3), Err(RtpFault::Sources));
        assert_eq!(with(&|bytes| bytes[0] |= 0x10), Err(RtpFault::Extension), "1285 words");
        assert_eq!(with(&|bytes| bytes[0] |= 0x20), Ok(3), "the last byte is five");
        assert_eq!(
            with(&|bytes| {
                bytes[0] |= 0x20;
                bytes[19] = 9;
            }),
            Err(RtpFault::Padding)
        );
        assert_eq!(
            with(&|bytes| {
                bytes[0] |= 0x20;
                bytes[19] = 0;
            }),
            Err(RtpFault::Padding)
        );
        assert_eq!(
            with(&|bytes| {
                bytes[0] |= 0x20;
                bytes.truncate(12);
            }),
            Err(RtpFault::Padding)
        );
    }
}
