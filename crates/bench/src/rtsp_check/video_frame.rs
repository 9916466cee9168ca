//! Video frames to be recorded: H.264 of 16 by 16 points, each of which can be decoded alone.
//!
//! Promise: any decoder shows them. Their points are not compressed (I_PCM), so nothing here
//! computes.

/// The only macroblock has so many bytes: brightness, and two colours of a quarter.
const POINTS: usize = 256 + 64 + 64;
/// Of a second.
pub(super) const RATE: u32 = 25;

/// Bits of a unit, the first one highest.
struct Bits {
    bytes: Vec<u8>,
    /// Of the last byte.
    used: u32,
}

impl Bits {
    /// Behind the header of a unit (ITU-T H.264, section 7.3.1).
    fn unit(header: u8) -> Self {
        Self { bytes: vec![header], used: 8 }
    }

    fn put(&mut self, count: u32, value: u32) {
        for place in (0..count).rev() {
            if self.used == 8 {
                self.bytes.push(0);
                self.used = 0;
            }
            let bit = (value >> place & 1) as u8;
            *self.bytes.last_mut().expect("there is a header") |= bit << (7 - self.used);
            self.used += 1;
        }
    }

    /// Exp-Golomb (section 9.1).
    fn code(&mut self, value: u32) {
        let len = u32::BITS - (value + 1).leading_zeros();
        self.put(len - 1, 0);
        self.put(len, value + 1);
    }

    /// A one and zeros to the end of the byte (section 7.3.2.11).
    fn end(mut self) -> Vec<u8> {
        self.put(1, 1);
        self.bytes
    }
}

/// Parameters of the sequence (section 7.3.2.1.1): constrained baseline, level 1.
pub(super) fn sequence_parameters() -> Vec<u8> {
    let mut bits = Bits::unit(0x67);
    bits.put(24, 0x42_c0_0a);
    // Its number, numbers of video frames in four bits, order as decoded, no video frames referred
    // to.
    for value in [0, 0, 2, 0] {
        bits.code(value);
    }
    bits.put(1, 0);
    // One macroblock wide and high.
    bits.code(0);
    bits.code(0);
    // Frames, direct_8x8_inference, no cropping, no VUI.
    bits.put(4, 0b1100);
    bits.end()
}

/// Parameters of video frames (section 7.3.2.2).
pub(super) fn picture_parameters() -> Vec<u8> {
    let mut bits = Bits::unit(0x68);
    bits.code(0);
    bits.code(0);
    // CAVLC, no order in slices.
    bits.put(2, 0);
    for _ in 0..3 {
        bits.code(0);
    }
    bits.put(3, 0);
    for _ in 0..3 {
        bits.code(0);
    }
    bits.put(3, 0);
    bits.end()
}

/// The video frame of this number (sections 7.3.3 and 7.3.5): brighter and brighter, then dark
/// again.
pub(super) fn video_frame(number: u32) -> Vec<u8> {
    let mut bits = Bits::unit(0x65);
    // First macroblock, a slice of intra macroblocks, parameters.
    for value in [0, 7, 0] {
        bits.code(value);
    }
    bits.put(4, 0);
    // Two that follow each other have another number.
    bits.code(number & 1);
    // Nothing is kept for longer, and the quantizer is as it is.
    bits.put(2, 0);
    bits.code(0);
    // I_PCM, from the next byte on.
    bits.code(25);
    let mut unit = bits.bytes;
    // Neither zero nor three zeros in a row: nothing must be escaped (section 7.4.1).
    unit.resize(unit.len() + 256, (16 + number % 200) as u8);
    unit.resize(unit.len() + (POINTS - 256), 128);
    unit.push(0x80);
    unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_as_encoders_write_them() {
        let mut bits = Bits::unit(0);
        [0, 1, 2, 3, 7].into_iter().for_each(|value| bits.code(value));
        // 1 010 011 00100 0001000, and the end.
        assert_eq!(bits.end(), [0, 0b1010_0110, 0b0100_0001, 0b0001_0000]);
        assert_eq!(sequence_parameters(), [0x67, 0x42, 0xc0, 0x0a, 0xdd, 0xe4]);
        assert_eq!(picture_parameters(), [0x68, 0xce, 0x38, 0x80]);
    }

    #[test]
    fn nothing_in_a_video_frame_looks_like_a_start_code() {
        for number in 0..500 {
            let unit = video_frame(number);
            assert!(unit.windows(3).all(|three| three[0] != 0 || three[1] != 0 || three[2] > 3));
            assert!(unit.len() < 400 && unit.ends_with(&[128, 0x80]));
        }
    }
}
