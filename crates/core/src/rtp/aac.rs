//! AAC over RTP (RFC 3640), mode AAC-hbr: thirteen bits of size, three of index.
//!
//! Promise: a receiver reassembles the given access units. No payload exceeds the requested size.
//! Each packet has one access unit or a part of one, so none waits for another.

/// The header of a unit or part (sections 3.2.1 and 3.3.6): sixteen bits of AU-headers-length, then
/// the size of the whole unit and index 0.
pub const FRONT: usize = 4;

/// The largest unit: its size has thirteen bits.
pub const UNIT_MAX: usize = (1 << 13) - 1;

/// The payloads of one access unit, each of at most `most` bytes: the common header, and the parts.
/// `None` if the unit is empty or too large.
///
/// # Panics
/// If `most` leaves no room for a byte of the unit.
pub fn payloads(unit: &[u8], most: usize) -> Option<([u8; FRONT], impl Iterator<Item = &[u8]>)> {
    assert!(most > FRONT, "a fragment carries something");
    if unit.is_empty() || unit.len() > UNIT_MAX {
        return None;
    }
    let [high, low] = ((unit.len() as u16) << 3).to_be_bytes();
    Some(([0, 16, high, low], super::nal::even_parts(unit, most - FRONT)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn units_come_out_as_they_went_in(
            unit in proptest::collection::vec(any::<u8>(), 1..UNIT_MAX), most in 5usize..1500,
        ) {
            let (front, parts) = payloads(&unit, most).unwrap();
            // 16 bits of headers, which are one header: size and index.
            prop_assert_eq!(u16::from_be_bytes([front[0], front[1]]), 16);
            let header = u16::from_be_bytes([front[2], front[3]]);
            prop_assert_eq!((usize::from(header >> 3), header & 7), (unit.len(), 0));
            let parts: Vec<_> = parts.collect();
            prop_assert!(parts.iter().all(|part| part.len() + FRONT <= most && !part.is_empty()));
            prop_assert_eq!(parts.len(), unit.len().div_ceil(most - FRONT));
            prop_assert_eq!(parts.concat(), unit);
        }
    }

    #[test]
    fn what_cannot_be_told_is_not_sent() {
        assert!(payloads(&[], 100).is_none());
        assert!(payloads(&[0; UNIT_MAX + 1], 100).is_none());
        assert!(payloads(&[0; UNIT_MAX], 100).is_some());
    }
}
