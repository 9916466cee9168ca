//! Movies whose tables are bytes, so that tests can try any table without a file.
//!
//! Promise: the movies are those of [`Movie::read`]. Compiled for tests and fuzzing only.

use std::num::NonZeroU32;

use tactus_core::units::MIB;

use super::{Codec, Movie, MovieFault, SAMPLES_MAX, Sample, Track};

/// Flags of a row of four bytes: a sync sample; audio; a time that goes back.
const SYNC: u8 = 1;
const SOUND: u8 = 2;
const BACK: u8 = 4;

/// A movie of rows: flags, milliseconds since the sample before, and two bytes with the
/// presentation offset in quarters of a second. The high bits of the first flags are the audio
/// codec.
///
/// # Errors
/// As [`Movie::read`].
pub fn movie(rows: &[u8]) -> Result<Movie, MovieFault> {
    let (rows, _) = rows.as_chunks::<4>();
    let (mut decoded, mut samples) = (0u64, [vec![], vec![]]);
    for (at, &[kind, after, high, low]) in (0..).step_by(2).zip(rows.iter().take(SAMPLES_MAX)) {
        decoded = match kind & BACK {
            0 => decoded + u64::from(after),
            _ => decoded.saturating_sub(u64::from(after) * 1000),
        };
        samples[usize::from(kind & SOUND != 0)].push(Sample {
            at,
            len: 2,
            is_sync: kind & SYNC != 0,
            shown_after: i32::from(i16::from_be_bytes([high, low])) * 250,
            decoded,
        });
    }
    let sound = match rows.first().map_or(0, |row| row[0] >> 4) {
        1 => Codec::Ac3 { rate: 48_000, channels: 6 },
        2 => Codec::Eac3 { rate: 44_100, channels: 2 },
        3 => Codec::Opus { channels: 2 },
        4 => Codec::MpegAudio,
        _ => Codec::Aac { config: vec![0x11, 0x90], rate: 48_000, channels: 2 },
    };
    let codecs = [
        Codec::H264 { profile_level: [66, 0, 30], sets: vec![vec![0x67, 66, 0, 30]], width: 1 },
        sound,
    ];
    let timescale = NonZeroU32::new(1000).expect("it is not zero");
    let track = |(codec, samples)| Track::new(codec, timescale, samples);
    Movie::of_tracks(codecs.into_iter().zip(samples).map(track).collect(), vec![], 16 * MIB)
}
