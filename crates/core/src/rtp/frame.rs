//! Packets in frames of a connection: RTP and RTCP between the messages of RTSP (RFC 2326, section 10.12;
//! RFC 7826, section 14).
//!
//! Promise: a frame is what the RFC has it; it knows nothing of what it carries.

/// What a frame begins with: a dollar sign, the channel, the length of what follows.
pub const HEAD: usize = 4;

/// Tells a frame from a message.
pub const MARK: u8 = b'$';

/// What stands in front of `len` bytes.
pub const fn head(channel: u8, len: u16) -> [u8; HEAD] {
    let [high, low] = len.to_be_bytes();
    [MARK, channel, high, low]
}

/// The frame that `bytes` begin with: its channel, and what it carries; none as long as it is not whole.
///
/// # Panics
/// When they do not begin with [`MARK`].
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
