//! What a channel sends of a title: transport packets, or samples of sound.
//!
//! Promise: a title that does not fit the channel is refused with the reason and what to do. A few
//! bytes of the title are read, and nothing is sent.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use tactus_control::ts_packets::{self, TsPackets};
use tactus_core::rtp::pcm::{CHANNELS_MAX, PcmFormat, SAMPLE_RATE};
use tactus_core::ts;
use tactus_core::units::BitRate;
use tactus_media::wave::{Samples, Wave};
use tactus_storage::catalogue::OpenTitle;

use crate::channel::Channel;

/// The part of a title that is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Content {
    /// Its place in the title: whole units.
    pub(super) bytes: Range<u64>,
    /// The units.
    pub(super) kind: ContentKind,
}

/// What stays together when a title is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ContentKind {
    /// Transport packets with what is around them.
    Packets(ts::Framing),
    /// A sample of each of `channels` channels, of `width` bytes.
    Samples {
        /// The channels of sound.
        channels: u8,
        /// The bytes of a sample.
        width: u8,
    },
}

impl ContentKind {
    /// The bytes of a unit.
    fn unit(self) -> u64 {
        match self {
            Self::Packets(framing) => framing.stride as u64,
            Self::Samples { channels, width } => u64::from(channels) * u64::from(width),
        }
    }

    /// The rate of samples, which all have one.
    pub(super) fn rate(self) -> Option<BitRate> {
        match self {
            Self::Packets(_) => None,
            Self::Samples { .. } => Some(BitRate(self.unit() * 8 * u64::from(SAMPLE_RATE))),
        }
    }
}

impl Content {
    /// The rest of whole units behind a byte of the title.
    pub(super) fn behind(self, byte: u64) -> Self {
        let Self { bytes: Range { start, end }, kind } = self;
        let units = byte.saturating_sub(start).div_ceil(kind.unit());
        Self { bytes: (start + units * kind.unit()).min(end)..end, kind }
    }
}

/// What `channel` sends of `title`.
///
/// # Errors
/// Why it cannot be sent, as a sentence.
pub(super) async fn find(channel: &Channel, title: &Arc<OpenTitle>) -> Result<Content, String> {
    let Some(format) = channel.sound else {
        let TsPackets { bytes, framing } = ts_packets::find(title).await?;
        return Ok(Content { bytes, kind: ContentKind::Packets(framing) });
    };
    let title = Arc::clone(title);
    // A blocking thread: the disk may hang.
    let found = tokio::task::spawn_blocking(move || {
        // Reopened: the title's own handle may use direct I/O, which needs aligned memory.
        let file = tactus_sys::file::reopen(&title.file);
        let file = file.map_err(|error| format!("the title cannot be read: {error}"))?;
        let wave = Wave::read(&File::from(file), title.len.0);
        wave.and_then(|wave| wave.samples()).map_err(|fault| fault.to_string())
    });
    let found = found.await.map_err(|_| "cannot read the header of the title".to_owned())??;
    of_samples(found, format)
}

/// Samples that leave in this format.
fn of_samples(found: Samples, format: PcmFormat) -> Result<Content, String> {
    let Samples { bytes, channels, width, rate } = found;
    if rate != SAMPLE_RATE {
        return Err(format!(
            "its sample rate is {rate} Hz instead of {SAMPLE_RATE} Hz; convert it with \
             `ffmpeg -i IN -c:a pcm_s24le -ar {SAMPLE_RATE} OUT.wav`"
        ));
    }
    if channels > u16::from(CHANNELS_MAX) {
        return Err(format!(
            "it has {channels} channels of sound, and a stream holds {CHANNELS_MAX}; split it into \
             several titles"
        ));
    }
    if channels != u16::from(format.channels) {
        return Err(format!(
            "it has {channels} channels of sound, and this channel sends {}; set `channels = \
             {channels}` or convert the title",
            format.channels
        ));
    }
    if width > format.encoding.bytes() {
        return Err(format!(
            "its samples have {} bits, and this channel sends {}; set `encoding = \"L24\"`",
            8 * width,
            format.encoding.name()
        ));
    }
    Ok(Content { bytes, kind: ContentKind::Samples { channels: format.channels, width } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::rtp::pcm::{Encoding, PacketTime};

    #[test]
    fn behind_a_bad_block_it_goes_on_with_a_whole_packet() {
        let rest = |bytes, stride, byte| {
            let kind = ContentKind::Packets(ts::Framing { stride });
            Content { bytes, kind }.behind(byte).bytes
        };
        assert_eq!(rest(3..3 + 188 * 10, 188, 0), 3..1883);
        assert_eq!(rest(3..3 + 188 * 10, 188, 4), 191..1883);
        assert_eq!(rest(3..3 + 188 * 10, 188, 191), 191..1883);
        assert_eq!(rest(3..3 + 188 * 10, 188, 9999), 1883..1883);
        assert_eq!(rest(0..192 * 10, 192, 200), 384..1920);
        let kind = ContentKind::Samples { channels: 2, width: 3 };
        assert_eq!(Content { bytes: 44..104, kind }.behind(51).bytes, 56..104);
    }

    #[test]
    fn sound_that_does_not_fit_its_channel_is_refused_with_what_to_do() {
        let of = |channels, width, rate, encoding| {
            let format = PcmFormat { encoding, channels: 2, packet_time: PacketTime::Ms1 };
            of_samples(Samples { bytes: 44..140, channels, width, rate }, format)
        };
        for (encoding, width) in [(Encoding::L24, 3), (Encoding::L24, 2), (Encoding::L16, 2)] {
            let content = of(2, width, 48_000, encoding).unwrap();
            assert_eq!(content.kind, ContentKind::Samples { channels: 2, width });
            let rate = u64::from(width) * 2 * 8 * 48_000;
            assert_eq!(content.kind.rate(), Some(BitRate(rate)));
        }
        for (channels, width, rate, encoding, said) in [
            (2, 3, 44_100, Encoding::L24, "44100 Hz instead of 48000 Hz"),
            (3, 3, 48_000, Encoding::L24, "set `channels = 3`"),
            (9, 3, 48_000, Encoding::L24, "9 channels of sound, and a stream holds 8"),
            (2, 3, 48_000, Encoding::L16, "have 24 bits, and this channel sends L16"),
        ] {
            let error = of(channels, width, rate, encoding).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
