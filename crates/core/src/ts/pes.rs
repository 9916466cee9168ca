//! PTS and DTS in PES headers (ISO/IEC 13818-1, 2.4.3.7).
//!
//! Promise: it reads or moves the two timestamps of a header that lie completely in one packet, and
//! nothing else. Timestamps split over packets are left alone and reported.

use super::{PACKET, Packet, Pts};
use crate::units::MediaTime;

/// The timestamps of one PES packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PesTimes {
    /// The presentation time.
    pub shown: Pts,
    /// The decoding time; equal unless the header has one.
    pub decoded: Pts,
}

/// The times of the PES packet that starts in `packet`.
pub fn pes_times(packet: &Packet<'_>) -> Option<PesTimes> {
    let timestamps = timestamps(packet)?;
    let shown = read_timestamp(timestamps.shown)?;
    let decoded = match timestamps.decoded {
        Some(field) => read_timestamp(field)?,
        None => shown,
    };
    Some(PesTimes { shown, decoded })
}

/// Adds `span` to the times of the PES packet that starts in `bytes`; false if it has none. Rounds
/// down to a tick of 90 kHz.
pub fn add_to_pes_times(bytes: &mut [u8; PACKET], span: MediaTime) -> bool {
    let Some((at, times, both)) = Packet::read(bytes).and_then(|packet| {
        let both = timestamps(&packet)?.decoded.is_some();
        Some((packet.payload_at() + TIMESTAMPS_AT, pes_times(&packet)?, both))
    }) else {
        return false;
    };
    write_timestamp(&mut bytes[at..at + TIMESTAMP], times.shown.after(span));
    if both {
        write_timestamp(&mut bytes[at + TIMESTAMP..at + 2 * TIMESTAMP], times.decoded.after(span));
    }
    true
}

/// Maps each time of the PES packet that starts in `bytes` by `other`; false if it has none.
pub fn map_pes_times(bytes: &mut [u8; PACKET], other: impl Fn(Pts) -> Pts) -> bool {
    let Some((at, times, both)) = Packet::read(bytes).and_then(|packet| {
        let both = timestamps(&packet)?.decoded.is_some();
        Some((packet.payload_at() + TIMESTAMPS_AT, pes_times(&packet)?, both))
    }) else {
        return false;
    };
    write_timestamp(&mut bytes[at..at + TIMESTAMP], other(times.shown));
    if both {
        write_timestamp(&mut bytes[at + TIMESTAMP..at + 2 * TIMESTAMP], other(times.decoded));
    }
    true
}

/// Sets presentation and decoding of the frame that starts in `bytes` to one time; false if it has
/// no times. A separate DTS becomes stuffing, unless other fields follow it.
pub fn set_pes_time(bytes: &mut [u8; PACKET], time: Pts) -> bool {
    if !map_pes_times(bytes, |_| time) {
        return false;
    }
    let at = Packet::read(bytes).map_or(PACKET, |packet| packet.payload_at());
    let flags = bytes[at + TIMESTAMPS_AT - 2];
    if flags & 0x40 != 0 && flags & 0x3f == 0 {
        bytes[at + TIMESTAMPS_AT - 2] = flags & !0x40;
        bytes[at + TIMESTAMPS_AT] = 0x20 | bytes[at + TIMESTAMPS_AT] & 0x0f;
        bytes[at + TIMESTAMPS_AT + TIMESTAMP..][..TIMESTAMP].fill(0xff);
    }
    true
}

/// Whether the PES packet that starts in `packet` may have timestamps in the next one: they can be
/// neither read nor moved.
pub fn splits_pes_times(packet: &Packet<'_>) -> bool {
    if !packet.starts_unit() || packet.is_scrambled() || !packet.has_payload() {
        return false;
    }
    let payload = packet.payload();
    // Without a PES start code it is a section.
    let begins = payload.iter().zip(&[0, 0, 1]).all(|(byte, start)| byte == start);
    let room = TIMESTAMPS_AT + 2 * TIMESTAMP;
    begins && payload.len() < room && timestamps(packet).is_none() && {
        let flags = payload.get(7).copied().unwrap_or(0xc0);
        let has_header = payload.get(6).is_none_or(|fixed| fixed & 0xc0 == 0x80);
        has_header && flags & 0xc0 != 0
    }
}

/// Offset of the first timestamp in a PES packet.
const TIMESTAMPS_AT: usize = 9;
/// Bytes of a timestamp: 4 bits of kind, 33 of time, 3 of marker.
const TIMESTAMP: usize = 5;

struct Timestamps<'a> {
    shown: &'a [u8; TIMESTAMP],
    decoded: Option<&'a [u8; TIMESTAMP]>,
}

fn timestamps<'a>(packet: &Packet<'a>) -> Option<Timestamps<'a>> {
    if !packet.starts_unit() {
        return None;
    }
    let payload = packet.payload();
    let [0, 0, 1, stream, _, _, fixed, flags, length] = *payload.first_chunk::<TIMESTAMPS_AT>()?
    else {
        return None;
    };
    // Program map, padding, private 2, ECM, EMM, DSM-CC, H.222.1 type E and the directory have no
    // such header (table 2-21 of the standard).
    if matches!(stream, ..0xbc | 0xbc | 0xbe | 0xbf | 0xf0 | 0xf1 | 0xf2 | 0xf8 | 0xff)
        || fixed & 0xc0 != 0x80
    {
        return None;
    }
    // The timestamps come first; other fields of a long header may lie in the next packet.
    let end = payload.len().min(TIMESTAMPS_AT + usize::from(length));
    let fields = &payload[TIMESTAMPS_AT..end];
    let shown = fields.first_chunk().filter(|_| flags & 0x80 != 0)?;
    let decoded = match flags & 0x40 {
        0 => None,
        _ => Some(fields.get(TIMESTAMP..)?.first_chunk()?),
    };
    Some(Timestamps { shown, decoded })
}

fn read_timestamp(field: &[u8; TIMESTAMP]) -> Option<Pts> {
    let bits = field.iter().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
    // Three marker bits are always one; otherwise these bytes are something else.
    if bits & MARKERS != MARKERS {
        return None;
    }
    Some(Pts::at((bits >> 33 & 0x7) << 30 | (bits >> 17 & 0x7fff) << 15 | bits >> 1 & 0x7fff))
}

pub(super) fn write_timestamp(field: &mut [u8], time: Pts) {
    let kind = u64::from(field[0] >> 4);
    let time = time.ticks();
    let bits = kind << 36
        | (time >> 30) << 33
        | (time >> 15 & 0x7fff) << 17
        | (time & 0x7fff) << 1
        | MARKERS;
    field.copy_from_slice(&bits.to_be_bytes()[3..]);
}

const MARKERS: u64 = 1 << 32 | 1 << 16 | 1;

#[cfg(test)]
mod tests {
    use super::super::packet::tests::packet;
    use super::*;
    use proptest::prelude::*;

    fn with_times(shown: Pts, decoded: Option<Pts>) -> [u8; PACKET] {
        let mut bytes = packet(256, 0, None);
        bytes[1] |= 0x40;
        let (flags, length) = if decoded.is_some() { (0xc0, 10) } else { (0x80, 5) };
        bytes[4..13].copy_from_slice(&[0, 0, 1, 0xe0, 0, 0, 0x80, flags, length]);
        bytes[13] = 0x30;
        write_timestamp(&mut bytes[13..18], shown);
        if let Some(decoded) = decoded {
            bytes[18] = 0x10;
            write_timestamp(&mut bytes[18..23], decoded);
        }
        bytes
    }

    #[test]
    fn a_stamp_known_from_a_real_stream_reads_right() {
        // PTS 133200 (1.48 s), as ffmpeg wrote it: 21 00 09 10 a1 with kind 3.
        assert_eq!(read_timestamp(&[0x31, 0x00, 0x09, 0x10, 0xa1]), Some(Pts::at(133_200)));
        assert_eq!(read_timestamp(&[0x30, 0x00, 0x09, 0x10, 0xa1]), None);
    }

    #[test]
    fn a_unit_without_a_pes_header_keeps_its_bytes() {
        let mut table = packet(0, 0, None);
        table[1] |= 0x40;
        let before = table;
        assert!(!add_to_pes_times(&mut table, MediaTime(300)));
        assert_eq!(table, before);
    }

    #[test]
    fn stamps_are_read_when_they_are_there_and_said_to_be_split_when_not() {
        // A header of 100 bytes, of which the packet has ever fewer, behind a field of padding.
        for padding in 0..183u8 {
            let mut bytes = [0xff; PACKET];
            let room = PACKET - 5 - usize::from(padding);
            bytes[..5].copy_from_slice(&[0x47, 0x41, 0, 0x30, padding]);
            if padding > 0 {
                bytes[5] = 0;
            }
            let mut header = [0xff; PACKET];
            header[..19].copy_from_slice(&[
                0, 0, 1, 0xe0, 0, 0, 0x80, 0xc0, 100, 0x31, 0, 9, 0x10, 0xa1, 0x11, 0, 9, 0x10,
                0xa1,
            ]);
            bytes[PACKET - room..].copy_from_slice(&header[..room]);
            let packet = Packet::read(&bytes).unwrap();
            assert_eq!(pes_times(&packet).is_some(), room >= 19, "{room}");
            assert_eq!(splits_pes_times(&packet), room < 19, "{room}");
        }
        let mut table = [0xff; PACKET];
        table[..8].copy_from_slice(&[0x47, 0x40, 0, 0x10, 0, 0, 0xb0, 0x0d]);
        assert!(!splits_pes_times(&Packet::read(&table).unwrap()));
    }

    proptest! {
        #[test]
        fn moved_times_read_back_moved(
            shown in 0u64..Pts::WRAP, decoded in proptest::option::of(0u64..Pts::WRAP),
            ticks in 0u64..Pts::WRAP,
        ) {
            let (shown, decoded) = (Pts::at(shown), decoded.map(Pts::at));
            let span = MediaTime(ticks * Pts::TICK);
            let mut bytes = with_times(shown, decoded);
            prop_assert!(add_to_pes_times(&mut bytes, span));
            prop_assert_eq!(bytes, with_times(shown.after(span), decoded.map(|at| at.after(span))));
            let times = pes_times(&Packet::read(&bytes).unwrap()).unwrap();
            prop_assert_eq!(times.shown, shown.after(span));
            prop_assert_eq!(times.decoded, decoded.unwrap_or(shown).after(span));
        }

        #[test]
        fn a_time_that_is_set_reads_back_for_both(
            shown in 0u64..Pts::WRAP, decoded in proptest::option::of(0u64..Pts::WRAP),
            time in 0u64..Pts::WRAP, is_followed: bool,
        ) {
            let (shown, decoded) = (Pts::at(shown), decoded.map(Pts::at));
            let mut bytes = with_times(shown, decoded);
            // A field behind the timestamps.
            bytes[11] |= if is_followed { 0x10 } else { 0 };
            prop_assert!(set_pes_time(&mut bytes, Pts::at(time)));
            let times = pes_times(&Packet::read(&bytes).unwrap()).unwrap();
            prop_assert_eq!((times.shown, times.decoded), (Pts::at(time), Pts::at(time)));
            prop_assert_eq!(bytes[11] & 0x40 != 0, decoded.is_some() && is_followed);
        }

        #[test]
        fn any_payload_may_claim_to_be_a_pes_header(
            tail in proptest::collection::vec(any::<u8>(), PACKET - 8), field in 0u8..4,
        ) {
            let mut bytes = [0; PACKET];
            bytes[..4].copy_from_slice(&[0x47, 0x41, 0, field << 4]);
            bytes[4..8].copy_from_slice(&[0, 0, 1, 0xe0]);
            bytes[8..].copy_from_slice(&tail);
            let before = pes_times(&Packet::read(&bytes).unwrap());
            prop_assert_eq!(add_to_pes_times(&mut bytes, MediaTime(0)), before.is_some());
            prop_assert_eq!(set_pes_time(&mut bytes.clone(), Pts::at(0)), before.is_some());
            prop_assert_eq!(pes_times(&Packet::read(&bytes).unwrap()), before);
        }
    }
}
