//! AC-3 (RFC 4184) and Enhanced AC-3 (RFC 4598) over RTP.
//!
//! Promise: a receiver reassembles the given frames. No payload exceeds the requested size. The
//! bytes of a frame are not changed; of an enhanced frame only its size is read.

/// The payload header (RFC 4184, section 4.1.1; RFC 4598, section 4.1).
pub const FRONT: usize = 2;
/// Upper bound of the fragments of a frame: their number has eight bits.
const FRAGMENTS_MAX: usize = 255;

/// A payload: the header, and whole frames or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload<'a> {
    /// The payload header.
    pub front: [u8; FRONT],
    /// The bytes behind it.
    pub bytes: &'a [u8],
    /// It ends a frame: the marker of RTP.
    pub ends: bool,
}

/// The payloads of one AC-3 frame, each of at most `most` bytes. None if the frame has too many
/// parts.
///
/// # Panics
/// If `most` leaves no room for a byte of the frame.
pub fn payloads(frame: &[u8], most: usize) -> impl Iterator<Item = Payload<'_>> {
    assert!(most > FRONT, "a fragment carries something");
    let most = most - FRONT;
    // Full parts: the first one should have five eighths of the frame (section 4.1.1).
    let has_most = most * 8 >= frame.len() * 5;
    parts(frame, most).map(move |Part { bytes, nth, count }| {
        let kind = match (count, nth) {
            (1, _) => 0,
            (_, 0) if has_most => 1,
            (_, 0) => 2,
            _ => 3,
        };
        Payload { front: [kind, count], bytes, ends: nth + 1 == usize::from(count) }
    })
}

/// The payloads of the frames of one access unit of Enhanced AC-3: an independent frame and those
/// that depend on it.
///
/// # Panics
/// If `most` leaves no room for a byte of a frame.
pub fn enhanced_payloads(unit: &[u8], most: usize) -> impl Iterator<Item = Payload<'_>> {
    assert!(most > FRONT, "a fragment carries something");
    let most = most - FRONT;
    let together = frames(unit).count();
    let is_whole = unit.len() <= most && together <= FRAGMENTS_MAX && !unit.is_empty();
    let whole = Payload { front: [0, together as u8], bytes: unit, ends: true };
    let each = frames(if is_whole { &[] } else { unit }).flat_map(move |frame| {
        parts(frame, most).map(|Part { bytes, nth, count }| {
            let front = [u8::from(count > 1), count];
            Payload { front, bytes, ends: nth + 1 == usize::from(count) }
        })
    });
    is_whole.then_some(whole).into_iter().chain(each)
}

struct Part<'a> {
    bytes: &'a [u8],
    nth: usize,
    count: u8,
}

fn parts(frame: &[u8], most: usize) -> impl Iterator<Item = Part<'_>> {
    let count = frame.len().div_ceil(most);
    let frame = if count > FRAGMENTS_MAX { &[] } else { frame };
    frame.chunks(most).enumerate().map(move |(nth, bytes)| Part { bytes, nth, count: count as u8 })
}

/// The frames of a unit by their sizes (ETSI TS 102 366, E.1.3.1.3); the rest is one frame if it
/// does not begin like one.
fn frames(mut unit: &[u8]) -> impl Iterator<Item = &[u8]> {
    core::iter::from_fn(move || {
        let size = match *unit {
            [] => return None,
            [0x0b, 0x77, high, low, ..] => (usize::from(high & 7) << 8 | usize::from(low)) * 2 + 2,
            _ => unit.len(),
        };
        // A syncword and its size at least.
        let (frame, rest) = unit.split_at(size.max(4).min(unit.len()));
        unit = rest;
        Some(frame)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// The frames that a receiver reassembles; `kinds` is the mask of the frame type.
    fn received<'a>(payloads: impl Iterator<Item = Payload<'a>>, kinds: u8) -> Vec<Vec<u8>> {
        let (mut frames, mut partial, mut missing) = (vec![], vec![], 0);
        for Payload { front: [kind, count], bytes, ends } in payloads {
            assert!(kind <= kinds && count > 0 && !bytes.is_empty());
            if kind == 0 {
                assert!(missing == 0 && ends);
                frames.push(bytes.to_vec());
                continue;
            }
            if missing == 0 {
                assert!(kinds == 1 || kind != 3, "an initial fragment");
                missing = count;
            } else {
                assert_eq!(kind, kinds, "a later fragment");
            }
            missing -= 1;
            partial.extend(bytes);
            assert_eq!(ends, missing == 0);
            if ends {
                frames.push(core::mem::take(&mut partial));
            }
        }
        assert_eq!(missing, 0);
        frames
    }

    proptest! {
        #[test]
        fn r09_ac3_frames_come_out_as_they_went_in(
            frame in proptest::collection::vec(any::<u8>(), 1..4000), most in 100usize..1500,
        ) {
            prop_assert!(payloads(&frame, most).all(|part| part.bytes.len() + FRONT <= most));
            let first = payloads(&frame, most).next().unwrap();
            let has_most = first.bytes.len() * 8 >= frame.len() * 5;
            prop_assert!(first.front[0] == 0 || (first.front[0] == 1) == has_most);
            prop_assert!(received(payloads(&frame, most), 3) == [frame]);
        }

        #[test]
        fn r09_enhanced_frames_come_out_as_they_went_in(
            sizes in proptest::collection::vec(2usize..1000, 1..4), most in 100usize..1500,
        ) {
            let frame = |&words: &usize| {
                let mut frame = vec![words as u8; words * 2];
                let [high, low] = (words as u16 - 1).to_be_bytes();
                frame[..4].copy_from_slice(&[0x0b, 0x77, 0x40 | high, low]);
                frame
            };
            let all: Vec<Vec<u8>> = sizes.iter().map(frame).collect();
            let unit = all.concat();
            let fits = |part: Payload<'_>| part.bytes.len() + FRONT <= most;
            prop_assert!(enhanced_payloads(&unit, most).all(fits));
            let frames = received(enhanced_payloads(&unit, most), 1);
            if unit.len() + FRONT <= most {
                let front = enhanced_payloads(&unit, most).next().unwrap().front;
                prop_assert_eq!(front, [0, all.len() as u8]);
                prop_assert!(frames == [unit]);
            } else {
                prop_assert!(frames == all);
            }
        }

        #[test]
        fn r09_any_bytes_are_carried_as_they_are(
            unit in proptest::collection::vec(
                prop_oneof![Just(0x0b), Just(0x77), any::<u8>()],
                0..3000,
            ),
        ) {
            let bytes: Vec<u8> =
                enhanced_payloads(&unit, 1400).flat_map(|part| part.bytes).copied().collect();
            prop_assert!(bytes == unit);
        }
    }

    #[test]
    fn r09_a_frame_of_too_many_parts_is_not_sent() {
        assert_eq!(payloads(&[1; 256], 3).count(), 0);
        assert_eq!(payloads(&[1; 255], 3).count(), 255);
        assert_eq!(payloads(&[], 3).count(), 0);
        assert_eq!(enhanced_payloads(&[], 3).count(), 0);
    }
}
