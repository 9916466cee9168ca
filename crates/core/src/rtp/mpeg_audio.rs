//! MPEG audio (layers I to III) over RTP (RFC 2250, section 3.5).
//!
//! Promise: the payloads carry the given frame in order, and no payload exceeds the requested size.

/// Sixteen zero bits, and the offset of the part in its frame.
pub const FRONT: usize = 4;
/// The static payload type of MPEG audio (RFC 3551, table 4).
pub const PAYLOAD_TYPE: u8 = 14;

/// The payloads of one frame, each of at most `most` bytes. None of a frame whose offsets have more
/// than sixteen bits.
///
/// # Panics
/// If `most` leaves no room for a byte of the frame.
pub fn payloads(frame: &[u8], most: usize) -> impl Iterator<Item = ([u8; FRONT], &[u8])> {
    assert!(most > FRONT, "a fragment carries something");
    let frame = if frame.len() > 1 << 16 { &[] } else { frame };
    let parts = super::nal::even_parts(frame, most - FRONT);
    let mut offset = 0u16;
    parts.map(move |part| {
        let [high, low] = offset.to_be_bytes();
        offset = offset.wrapping_add(part.len() as u16);
        ([0, 0, high, low], part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn r09_mpeg_audio_comes_out_as_it_went_in(
            frame in proptest::collection::vec(any::<u8>(), 0..3000), most in 5usize..1500,
        ) {
            let mut all: Vec<u8> = Vec::new();
            for (front, part) in payloads(&frame, most) {
                prop_assert!(part.len() + FRONT <= most && !part.is_empty());
                prop_assert_eq!(&front[..2], &[0, 0]);
                prop_assert_eq!(usize::from(u16::from_be_bytes([front[2], front[3]])), all.len());
                all.extend(part);
            }
            prop_assert!(all == frame);
        }
    }
}
