//! Uncompressed sound in RTP: L16 (RFC 3551, section 4.5.11) and L24 (RFC 3190, section 4), with
//! the packet times of AES67.
//!
//! Promise: all packets of a format have the same number of samples, and timestamps count samples
//! of one clock. It knows no files and no packets.

use crate::units::{BitRate, Bytes, MonoTime, SECOND};

/// Samples in a second of each channel, which is also the clock of the timestamps (AES67, 7.1).
pub const SAMPLE_RATE: u32 = 48_000;

/// Upper bound of the channels in a stream: what every receiver takes (AES67, 7.4).
pub const CHANNELS_MAX: u8 = 8;

/// The format of a sample on the wire: signed, the most significant byte first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// 16 bits.
    L16,
    /// 24 bits.
    L24,
}

impl Encoding {
    /// The bytes of a sample.
    pub const fn bytes(self) -> u8 {
        match self {
            Self::L16 => 2,
            Self::L24 => 3,
        }
    }

    /// The name in session descriptions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::L16 => "L16",
            Self::L24 => "L24",
        }
    }
}

/// The duration of a packet (AES67, table 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketTime {
    /// 125 us.
    Us125,
    /// 250 us.
    Us250,
    /// 333 1/3 us.
    Us333,
    /// 1 ms, which every device supports.
    Ms1,
    /// 4 ms.
    Ms4,
}

impl PacketTime {
    /// All of them, the shortest first.
    pub const ALL: [Self; 5] = [Self::Us125, Self::Us250, Self::Us333, Self::Ms1, Self::Ms4];

    /// The samples of each channel in a packet.
    pub const fn samples(self) -> u16 {
        match self {
            Self::Us125 => 6,
            Self::Us250 => 12,
            Self::Us333 => 16,
            Self::Ms1 => 48,
            Self::Ms4 => 192,
        }
    }

    /// As in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Us125 => "125 us",
            Self::Us250 => "250 us",
            Self::Us333 => "333 us",
            Self::Ms1 => "1 ms",
            Self::Ms4 => "4 ms",
        }
    }

    /// In milliseconds, as in `a=ptime` (AES67, 8.2).
    pub const fn millis(self) -> &'static str {
        match self {
            Self::Us125 => "0.125",
            Self::Us250 => "0.25",
            Self::Us333 => "0.33",
            Self::Ms1 => "1",
            Self::Ms4 => "4",
        }
    }
}

/// The format of a stream of sound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcmFormat {
    /// The samples.
    pub encoding: Encoding,
    /// Their interleaved channels: 1 to [`CHANNELS_MAX`].
    pub channels: u8,
    /// The duration of a packet.
    pub packet_time: PacketTime,
}

impl PcmFormat {
    /// The bytes of one sample of all channels.
    pub const fn frame(self) -> Bytes {
        Bytes(self.encoding.bytes() as u64 * self.channels as u64)
    }

    /// The bytes of a packet without its header.
    pub const fn payload(self) -> Bytes {
        Bytes(self.frame().0 * self.packet_time.samples() as u64)
    }

    /// The rate of the payloads.
    pub const fn rate(self) -> BitRate {
        BitRate(self.frame().0 * 8 * SAMPLE_RATE as u64)
    }
}

/// The number of the sample at `time`, counted from the clock's zero. Rounds to the nearest.
pub fn samples(time: MonoTime) -> u64 {
    let parts = u128::from(time.0) * u128::from(SAMPLE_RATE);
    ((parts + u128::from(SECOND.0 / 2)) / u128::from(SECOND.0)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packets_have_the_samples_of_their_time() {
        for (time, millis) in [(PacketTime::Us125, 0.125), (PacketTime::Us333, 1.0 / 3.0)] {
            assert_eq!(f64::from(time.samples()), (48.0 * millis * 1.0_f64).round());
        }
        for time in PacketTime::ALL {
            let stated: f64 = time.millis().parse().unwrap();
            assert_eq!((stated * 48.0).round(), f64::from(time.samples()), "{}", time.name());
        }
        let stereo = |encoding, packet_time| PcmFormat { encoding, channels: 2, packet_time };
        assert_eq!(stereo(Encoding::L24, PacketTime::Ms1).payload(), Bytes(288));
        assert_eq!(stereo(Encoding::L16, PacketTime::Ms1).rate(), BitRate(1_536_000));
    }

    proptest! {
        #[test]
        fn times_of_samples_are_counted_exactly(second in 0u64..1 << 30, nth in 0u64..48_000) {
            // The due time of a sample rounds up to a nanosecond.
            let due = MonoTime(second * SECOND.0 + (nth * SECOND.0).div_ceil(48_000));
            prop_assert_eq!(samples(due), second * 48_000 + nth);
        }
    }
}
