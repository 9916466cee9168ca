//! Interleaved frames: RTP and RTCP between RTSP messages (RFC 2326, section 10.12; RFC 7826,
//! section 14).
//!
//! Promise: a frame is encoded as in the RFC; its content is opaque.

/// The header: a dollar sign, the channel, the length.
pub const HEAD: usize = 4;

/// The first byte of a frame, which distinguishes it from a message.
pub const MARK: u8 = b'$';

/// The header of `len` bytes.
pub const fn head(channel: u8, len: u16) -> [u8; HEAD] {
    let [high, low] = len.to_be_bytes();
    [MARK, channel, high, low]
}

/// The frame at the start of `bytes`: its channel and content; `None` until it is complete.
///
/// # Panics
/// If they do not begin with [`MARK`].
pub fn read(bytes: &[u8]) -> Option<(u8, &[u8])> {
    assert!(bytes.first() == Some(&MARK), "a frame begins with its mark");
    let [_, channel, high, low, ..] = *bytes else { return None };
    let len = usize::from(u16::from_be_bytes([high, low]));
    Some((channel, bytes.get(HEAD..HEAD + len)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_frame_is_read_when_it_is_whole(
            channel: u8, payload in prop::collection::vec(any::<u8>(), 0..3000), more: bool,
        ) {
            let mut bytes: Vec<u8> = head(channel, payload.len() as u16).to_vec();
            bytes.extend(&payload);
            for len in 1..bytes.len() {
                prop_assert_eq!(read(&bytes[..len]), None);
            }
            bytes.extend(b"RTSP/1.0".iter().filter(|_| more));
            prop_assert_eq!(read(&bytes), Some((channel, &payload[..])));
        }
    }
}
