//! H.265 over RTP (RFC 7798) without decoding order numbers: single units, fragments, and
//! aggregation packets for parameter sets.
//!
//! Promise: a receiver reassembles the given units in order. No payload exceeds the requested size.
//! Only the first two bytes of each unit are read.

use super::nal::{Payload, even_parts};

/// Packet types beyond those of units (RFC 7798, section 4.4).
const AP: u8 = 48;
const FU: u8 = 49;

/// The payloads of one unit, each of at most `most` bytes.
///
/// # Panics
/// If `most` is less than six, or the unit has no header.
pub fn payloads(unit: &[u8], most: usize) -> impl Iterator<Item = Payload<'_>> {
    assert!(most >= 6 && unit.len() >= 2, "a fragment carries something");
    let whole = (unit.len() <= most).then(|| Payload::whole(unit));
    let rest: &[u8] = if whole.is_some() { &[] } else { &unit[2..] };
    let count = rest.len().div_ceil(most - 3);
    let parts = even_parts(rest, most - 3).enumerate().map(move |(nth, bytes)| {
        // Section 4.4.3: the unit's header with another type; S, E and its own type.
        let header = [with_type(unit[0], FU), unit[1]];
        let start = u8::from(nth == 0) << 7;
        let end = u8::from(nth + 1 == count) << 6;
        Payload::part(&[header[0], header[1], start | end | unit[0] >> 1 & 0x3f], bytes)
    });
    whole.into_iter().chain(parts)
}

/// The header of an aggregation packet (section 4.4.2): the lowest layer and temporal identifier of
/// all units; each unit follows its two-byte length.
pub fn aggregation_header<'a>(units: impl IntoIterator<Item = &'a [u8]>) -> [u8; 2] {
    let (mut forbidden, mut layer, mut temporal) = (0, 0x3f, 0x07);
    for unit in units {
        let [first, second, ..] = *unit else { continue };
        forbidden |= first & 0x80;
        layer = layer.min((first & 1) << 5 | second >> 3);
        temporal = temporal.min(second & 0x07);
    }
    [forbidden | AP << 1 | layer >> 5, (layer & 0x1f) << 3 | temporal]
}

/// Whether a unit is a video, sequence or picture parameter set.
pub fn is_parameter_set(unit: &[u8]) -> bool {
    matches!(unit.first().map(|first| first >> 1 & 0x3f), Some(32..=34))
}

const fn with_type(first: u8, kind: u8) -> u8 {
    first & 0x81 | kind << 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// Reassembles units by the rules of the RFC.
    fn depacketise(payloads: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut units = Vec::new();
        let mut open: Option<Vec<u8>> = None;
        for payload in payloads {
            match payload[0] >> 1 & 0x3f {
                AP => {
                    let mut rest = &payload[2..];
                    while !rest.is_empty() {
                        let len = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
                        units.push(rest[2..2 + len].to_vec());
                        rest = &rest[2 + len..];
                    }
                }
                FU => {
                    let header = payload[2];
                    assert!(header & 0xc0 != 0xc0, "a unit in one fragment is not allowed");
                    if header & 0x80 != 0 {
                        assert!(open.is_none());
                        let kind = (header & 0x3f) << 1;
                        open = Some(alloc::vec![payload[0] & 0x81 | kind, payload[1]]);
                    }
                    let unit = open.as_mut().expect("a fragment follows its start");
                    unit.extend(&payload[3..]);
                    if header & 0x40 != 0 {
                        units.extend(open.take());
                    }
                }
                _ => units.push(payload.clone()),
            }
        }
        assert!(open.is_none(), "the last fragment says so");
        units
    }

    fn unit() -> impl Strategy<Value = Vec<u8>> {
        let header = (0u8..48, 0u8..64, 1u8..8);
        let bytes = proptest::collection::vec(any::<u8>(), 0..5000);
        (header, bytes).prop_map(|((kind, layer, temporal), bytes)| {
            [&[kind << 1 | layer >> 5, (layer & 0x1f) << 3 | temporal][..], &bytes].concat()
        })
    }

    proptest! {
        #[test]
        fn units_come_out_as_they_went_in(
            units in proptest::collection::vec(unit(), 1..6), most in 6usize..1500,
        ) {
            let mut sent = Vec::new();
            for unit in &units {
                for payload in payloads(unit, most) {
                    prop_assert!(payload.len() <= most && !payload.is_empty());
                    sent.push([payload.front(), payload.bytes].concat());
                }
            }
            prop_assert_eq!(depacketise(&sent), units);
        }

        #[test]
        fn parameter_sets_in_one_packet_come_out(units in proptest::collection::vec(unit(), 1..4)) {
            let header = aggregation_header(units.iter().map(|unit| &unit[..]));
            let mut packet = header.to_vec();
            for unit in &units {
                packet.extend((unit.len() as u16).to_be_bytes());
                packet.extend(unit);
            }
            let lowest = units.iter().map(|unit| unit[1] & 7).min();
            prop_assert_eq!(Some(header[1] & 7), lowest);
            prop_assert_eq!(depacketise(&[packet]), units);
        }
    }
}
