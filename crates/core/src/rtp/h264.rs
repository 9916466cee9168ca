//! H.264 over RTP (RFC 6184), packetisation mode 1: single units, FU-A, and STAP-A for parameter
//! sets.
//!
//! Promise: a receiver reassembles the given units in order. No payload exceeds the requested size.
//! Only the first byte of each unit is read.

use super::nal::{Payload, even_parts};

/// Packet types beyond those of units (RFC 6184, section 5.2).
const STAP_A: u8 = 24;
const FU_A: u8 = 28;

/// The payloads of one unit, each of at most `most` bytes.
///
/// # Panics
/// If `most` is less than four, or the unit is empty.
pub fn payloads(unit: &[u8], most: usize) -> impl Iterator<Item = Payload<'_>> {
    assert!(most >= 4 && !unit.is_empty(), "a fragment carries something");
    let whole = (unit.len() <= most).then(|| Payload::whole(unit));
    let rest: &[u8] = if whole.is_some() { &[] } else { &unit[1..] };
    let count = rest.len().div_ceil(most - 2);
    let parts = even_parts(rest, most - 2).enumerate().map(move |(nth, bytes)| {
        // Section 5.8: F and NRI of the unit; S, E and its type.
        let indicator = unit[0] & 0xe0 | FU_A;
        let start = u8::from(nth == 0) << 7;
        let end = u8::from(nth + 1 == count) << 6;
        Payload::part(&[indicator, start | end | unit[0] & 0x1f], bytes)
    });
    whole.into_iter().chain(parts)
}

/// The header of an aggregation packet (STAP-A, section 5.7.1); each unit follows its two-byte
/// length.
pub fn aggregation_header<'a>(units: impl IntoIterator<Item = &'a [u8]>) -> u8 {
    let (mut forbidden, mut importance) = (0, 0);
    for unit in units {
        let first = unit.first().copied().unwrap_or(0);
        forbidden |= first & 0x80;
        importance = importance.max(first & 0x60);
    }
    forbidden | importance | STAP_A
}

/// Whether a unit is a sequence or picture parameter set.
pub fn is_parameter_set(unit: &[u8]) -> bool {
    matches!(unit.first().map(|first| first & 0x1f), Some(7 | 8))
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
            match payload[0] & 0x1f {
                STAP_A => {
                    let mut rest = &payload[1..];
                    while !rest.is_empty() {
                        let len = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
                        units.push(rest[2..2 + len].to_vec());
                        rest = &rest[2 + len..];
                    }
                }
                FU_A => {
                    let header = payload[1];
                    assert!(header & 0xc0 != 0xc0, "a unit in one fragment is not allowed");
                    assert_eq!(header & 0x20, 0, "the reserved bit is zero");
                    if header & 0x80 != 0 {
                        assert!(open.is_none());
                        open = Some(alloc::vec![payload[0] & 0xe0 | header & 0x1f]);
                    }
                    let unit = open.as_mut().expect("a fragment follows its start");
                    unit.extend(&payload[2..]);
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
        let kind = (0u8..4, 1u8..24).prop_map(|(importance, kind)| importance << 5 | kind);
        let bytes = proptest::collection::vec(any::<u8>(), 0..5000);
        (kind, bytes).prop_map(|(kind, bytes)| [&[kind][..], &bytes].concat())
    }

    proptest! {
        #[test]
        fn units_come_out_as_they_went_in(
            units in proptest::collection::vec(unit(), 1..6), most in 4usize..1500,
        ) {
            let mut sent = Vec::new();
            for unit in &units {
                let before = sent.len();
                for payload in payloads(unit, most) {
                    prop_assert!(payload.len() <= most && !payload.is_empty());
                    sent.push([payload.front(), payload.bytes].concat());
                }
                let fewest =
                    if unit.len() <= most { 1 } else { (unit.len() - 1).div_ceil(most - 2) };
                prop_assert_eq!(sent.len() - before, fewest);
            }
            prop_assert_eq!(depacketise(&sent), units);
        }

        #[test]
        fn parameter_sets_in_one_packet_come_out(units in proptest::collection::vec(unit(), 1..4)) {
            let header = aggregation_header(units.iter().map(|unit| &unit[..]));
            let mut packet = alloc::vec![header];
            for unit in &units {
                packet.extend((unit.len() as u16).to_be_bytes());
                packet.extend(unit);
            }
            let most = units.iter().map(|unit| unit[0] & 0x60).max();
            prop_assert_eq!(Some(header & 0x60), most);
            prop_assert_eq!(depacketise(&[packet]), units);
        }
    }
}
