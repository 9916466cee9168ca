//! Codecs of tracks: those that RTP carries, with their configuration, and the names of others.
//!
//! Promise: any bytes of a sample entry give a codec or the reason why it is not sent, in bounded
//! time.

use data_encoding::{BASE64, HEXUPPER};
use shiguredo_mp4::boxes::{AvccBox, EsdsBox, HvccBox, SampleEntry};
use shiguredo_mp4::{BaseBox, BoxType};
use tactus_core::rtp::mpeg_audio;

/// The codec of a track with its decoder configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Codec {
    /// H.264.
    H264 {
        /// Profile, constraints and level.
        profile_level: [u8; 3],
        /// Sequence and picture parameter sets.
        sets: Vec<Vec<u8>>,
        /// Bytes of the length in front of each NAL unit.
        width: usize,
    },
    /// H.265.
    H265 {
        /// Video, sequence and picture parameter sets.
        sets: [Vec<Vec<u8>>; 3],
        /// Bytes of the length in front of each NAL unit.
        width: usize,
    },
    /// AAC.
    Aac {
        /// `AudioSpecificConfig`.
        config: Vec<u8>,
        /// Samples in a second.
        rate: u32,
        /// Channels.
        channels: u16,
    },
    /// AC-3.
    Ac3 {
        /// Samples in a second.
        rate: u32,
        /// Channels.
        channels: u8,
    },
    /// Enhanced AC-3.
    Eac3 {
        /// Samples in a second.
        rate: u32,
        /// Channels of the first program.
        channels: u8,
    },
    /// Opus.
    Opus {
        /// One or two.
        channels: u8,
    },
    /// MPEG audio, layers I to III.
    MpegAudio,
}

/// A codec of a track that is not sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OtherCodec {
    /// Its name.
    pub(super) name: String,
    /// The reason.
    pub(super) why: &'static str,
}

/// What is not carried because RTP has no format for it that players know.
const NO_FORMAT: &str = "RTSP does not carry it";

impl OtherCodec {
    /// A codec that RTP carries, in a track that is not sent.
    pub(super) fn of(codec: &Codec, why: &'static str) -> Self {
        Self { name: codec.name().to_owned(), why }
    }
}

impl Codec {
    /// The codec of the first sample entry.
    ///
    /// # Errors
    /// Its name, and why it is not sent.
    pub(super) fn of_first(entries: &[SampleEntry]) -> Result<Self, OtherCodec> {
        match entries.first() {
            Some(entry) => Self::of(entry),
            None => Err(OtherCodec { name: "unknown".to_owned(), why: "it has no codec" }),
        }
    }

    /// The codec of a sample entry.
    ///
    /// # Errors
    /// Its name, and why it is not sent.
    fn of(entry: &SampleEntry) -> Result<Self, OtherCodec> {
        let why = match entry {
            SampleEntry::Opus(entry) if entry.dops_box.output_channel_count > 2 => {
                // RFC 7587, section 7: one or two.
                "RTP carries Opus of one or two channels"
            }
            SampleEntry::Mp4a(_) | SampleEntry::Avc1(_) => "its configuration is not supported",
            _ => NO_FORMAT,
        };
        let codec = match entry {
            SampleEntry::Avc1(entry) => h264(&entry.avcc_box),
            SampleEntry::Hev1(entry) => h265(&entry.hvcc_box),
            SampleEntry::Hvc1(entry) => h265(&entry.hvcc_box),
            SampleEntry::Mp4a(entry) => {
                let audio = &entry.audio;
                mp4a(&entry.esds_box, audio.channelcount, audio.samplerate.integer.into())
            }
            SampleEntry::Opus(entry) => {
                let channels = entry.dops_box.output_channel_count;
                (1..=2).contains(&channels).then_some(Self::Opus { channels })
            }
            SampleEntry::Unknown(unknown) => match unknown.box_type {
                BoxType::Normal(kind) => sound(kind, &unknown.payload),
                BoxType::Uuid(_) => None,
            },
            _ => None,
        };
        codec.ok_or_else(|| OtherCodec { name: name_of(entry.box_type()), why })
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::H264 { .. } => "H.264",
            Self::H265 { .. } => "H.265",
            Self::Aac { .. } => "AAC",
            Self::Ac3 { .. } => "AC-3",
            Self::Eac3 { .. } => "E-AC-3",
            Self::Opus { .. } => "Opus",
            Self::MpegAudio => "MPEG audio",
        }
    }

    /// Whether it is a video codec.
    #[must_use]
    pub const fn is_video(&self) -> bool {
        matches!(self, Self::H264 { .. } | Self::H265 { .. })
    }

    /// The RTP clock rate.
    #[must_use]
    pub const fn clock(&self) -> u32 {
        match self {
            Self::Aac { rate, .. } | Self::Ac3 { rate, .. } | Self::Eac3 { rate, .. } => *rate,
            // RFC 7587, section 4.1.
            Self::Opus { .. } => 48_000,
            // RFC 2250, section 3: of MPEG audio, too.
            Self::H264 { .. } | Self::H265 { .. } | Self::MpegAudio => 90_000,
        }
    }

    /// Its static payload type, if it has one.
    #[must_use]
    pub const fn static_type(&self) -> Option<u8> {
        match self {
            Self::MpegAudio => Some(mpeg_audio::PAYLOAD_TYPE),
            _ => None,
        }
    }

    /// The value of `a=rtpmap` behind the payload type, and that of `a=fmtp`.
    pub(super) fn description(&self) -> (String, Option<String>) {
        let list = |sets: &[Vec<u8>]| {
            sets.iter().map(|set| BASE64.encode(set)).collect::<Vec<_>>().join(",")
        };
        match self {
            // RFC 6184, section 8.1.
            Self::H264 { profile_level, sets, .. } => (
                "H264/90000".to_owned(),
                Some(format!(
                    "packetization-mode=1;profile-level-id={};sprop-parameter-sets={}",
                    HEXUPPER.encode(profile_level),
                    list(sets)
                )),
            ),
            // RFC 7798, section 7.1.
            Self::H265 { sets: [video, sequence, picture], .. } => (
                "H265/90000".to_owned(),
                Some(format!(
                    "sprop-vps={};sprop-sps={};sprop-pps={}",
                    list(video),
                    list(sequence),
                    list(picture)
                )),
            ),
            // RFC 3640, section 4.1; 1 means an unknown level.
            Self::Aac { config, rate, channels } => (
                format!("mpeg4-generic/{rate}/{channels}"),
                Some(format!(
                    "streamtype=5;profile-level-id=1;mode=AAC-hbr;sizelength=13;indexlength=3;\
                     indexdeltalength=3;config={}",
                    HEXUPPER.encode(config)
                )),
            ),
            // RFC 4184, section 5.2.
            Self::Ac3 { rate, channels } => (format!("ac3/{rate}/{channels}"), None),
            // RFC 4598, section 5.2.
            Self::Eac3 { rate, channels } => (format!("eac3/{rate}/{channels}"), None),
            // RFC 7587, section 7: always two in the map.
            Self::Opus { channels } => {
                let stereo = u8::from(*channels == 2);
                ("opus/48000/2".to_owned(), Some(format!("sprop-stereo={stereo}")))
            }
            // RFC 3555, section 4.1.17.
            Self::MpegAudio => ("MPA/90000".to_owned(), None),
        }
    }
}

/// The name of a codec by its sample entry.
fn name_of(kind: BoxType) -> String {
    let BoxType::Normal(kind) = kind else { return "unknown".to_owned() };
    let known = match &kind {
        b"avc1" => "H.264",
        b"hvc1" | b"hev1" => "H.265",
        b"av01" => "AV1",
        b"vp08" => "VP8",
        b"vp09" => "VP9",
        b"mp4v" => "MPEG-4 video",
        b"mp4a" => "MPEG-4 audio",
        b"Opus" => "Opus",
        b"fLaC" => "FLAC",
        b"alac" => "ALAC",
        b"ac-3" => "AC-3",
        b"ec-3" => "E-AC-3",
        b"ac-4" => "AC-4",
        b"tx3g" | b"text" => "timed text",
        b"wvtt" => "WebVTT",
        b"stpp" => "TTML",
        _ => {
            let letter = |&byte: &u8| match byte {
                b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' => char::from(byte),
                _ => '.',
            };
            return kind.iter().map(letter).collect();
        }
    };
    known.to_owned()
}

fn h264(config: &AvccBox) -> Option<Codec> {
    let sets: Vec<_> = config.sps_list.iter().chain(&config.pps_list).cloned().collect();
    Some(Codec::H264 {
        profile_level: [
            config.avc_profile_indication,
            config.profile_compatibility,
            config.avc_level_indication,
        ],
        sets,
        width: usize::from(config.length_size_minus_one.get()) + 1,
    })
}

fn h265(config: &HvccBox) -> Option<Codec> {
    let of = |kind: u8| {
        let arrays = config.nalu_arrays.iter();
        let own = arrays.filter(|array| array.nal_unit_type.get() == kind);
        own.flat_map(|array| array.nalus.iter().cloned()).collect::<Vec<_>>()
    };
    let width = usize::from(config.length_size_minus_one.get()) + 1;
    Some(Codec::H265 { sets: [of(32), of(33), of(34)], width })
}

/// The codec of an MPEG-4 audio entry by its object type (ISO/IEC 14496-1, table 5, and its
/// registration authority).
fn mp4a(config: &EsdsBox, channels: u16, rate: u32) -> Option<Codec> {
    let is_rated = RATES_AC3.contains(&rate);
    let own = u8::try_from(channels).ok().filter(|&channels| channels > 0 && is_rated);
    match config.es.dec_config_descr.object_type_indication {
        // MPEG-2 and MPEG-1.
        0x69 | 0x6b => Some(Codec::MpegAudio),
        0xa5 => own.map(|channels| Codec::Ac3 { rate, channels }),
        0xa6 => own.map(|channels| Codec::Eac3 { rate, channels }),
        _ => aac(config, channels),
    }
}

fn aac(config: &EsdsBox, channels: u16) -> Option<Codec> {
    /// ISO/IEC 14496-3, table 1.18.
    const RATES: [u32; 13] = [
        96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025,
        8_000, 7_350,
    ];
    let config = config.es.dec_config_descr.dec_specific_info.as_ref()?.payload.clone();
    let [first, second, ..] = config[..] else { return None };
    // Five bits of object type, four of rate, four of channels.
    let rate = match usize::from(first & 7) << 1 | usize::from(second >> 7) {
        15 => {
            let bits =
                config.get(1..5)?.iter().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
            (bits >> 7 & 0xff_ffff) as u32
        }
        index => *RATES.get(index)?,
    };
    let is_aac = first >> 3 != 0 && rate > 0;
    let channels = aac_channels(&config).unwrap_or(channels.max(1));
    is_aac.then_some(Codec::Aac { config, rate, channels })
}

/// The number of channels of an AAC configuration; `None` if it lists them one by one. The sample
/// entry is unreliable: writers put two for any number (ISO/IEC 14496-14, section 5.6.1).
pub(super) fn aac_channels(config: &[u8]) -> Option<u16> {
    let [first, second, ..] = *config else { return None };
    // After the object type and the rate, which may be written out in 24 bits.
    let byte = match usize::from(first & 7) << 1 | usize::from(second >> 7) {
        15 => *config.get(4)?,
        _ => second,
    };
    // ISO/IEC 14496-3, table 1.19.
    match byte >> 3 & 15 {
        count @ 1..=6 => Some(u16::from(count)),
        11 => Some(7),
        7 | 12 | 14 => Some(8),
        _ => None,
    }
}

/// Sampling rates of AC-3, by their code (ETSI TS 102 366, table 4.1).
const RATES_AC3: [u32; 3] = [48_000, 44_100, 32_000];

/// The codec of an audio entry that is not parsed elsewhere, from the bytes behind its header.
pub(super) fn sound(kind: [u8; 4], entry: &[u8]) -> Option<Codec> {
    match &kind {
        b".mp3" | b"ms\0U" => Some(Codec::MpegAudio),
        b"ac-3" => ac3(child(entry, b"dac3")?),
        b"ec-3" => eac3(child(entry, b"dec3")?),
        _ => None,
    }
}

/// The body of a box within an audio sample entry (ISO/IEC 14496-12, 12.2.3; the versions 1 and 2
/// are those of QuickTime).
fn child<'a>(entry: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    let version = u16::from_be_bytes(*entry.get(8..)?.first_chunk()?);
    let mut rest = entry.get(28 + [0, 16, 36].get(usize::from(version)).copied()?..)?;
    // Each turn consumes a header at least.
    while let Some((head, _)) = rest.split_first_chunk::<8>() {
        let len = u32::from_be_bytes(*head.first_chunk()?) as usize;
        let (whole, behind) = rest.split_at_checked(len.max(8))?;
        if head[4..] == *kind {
            return Some(&whole[8..]);
        }
        rest = behind;
    }
    None
}

/// ETSI TS 102 366, F.4: `fscod` of two bits, `bsid` of five, `bsmod` of three, `acmod` of three,
/// `lfeon`.
fn ac3(config: &[u8]) -> Option<Codec> {
    let bits = u16::from_be_bytes(*config.first_chunk()?);
    let rate = *RATES_AC3.get(usize::from(bits >> 14))?;
    Some(Codec::Ac3 { rate, channels: channels_of(bits >> 3, bits >> 2) })
}

/// ETSI TS 102 366, F.6: `data_rate` of thirteen bits, `num_ind_sub` of three; of the first
/// substream `fscod` of two bits, `bsid` of five, a bit, `asvc`, `bsmod` of three, `acmod` of
/// three, `lfeon`.
fn eac3(config: &[u8]) -> Option<Codec> {
    let bits = u16::from_be_bytes(*config.get(2..)?.first_chunk()?);
    let rate = *RATES_AC3.get(usize::from(bits >> 14))?;
    Some(Codec::Eac3 { rate, channels: channels_of(bits >> 1, bits) })
}

/// ETSI TS 102 366, table 4.3, and the channel of low frequencies.
fn channels_of(acmod: u16, lfeon: u16) -> u8 {
    [2, 1, 2, 3, 3, 4, 4, 5][usize::from(acmod & 7)] + (lfeon & 1) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A sample entry with a box in it.
    fn entry(version: u8, kind: &[u8; 4], body: &[u8]) -> Vec<u8> {
        let mut entry = vec![0; 28 + [0, 16, 36][usize::from(version)]];
        entry[9] = version;
        entry.extend([0, 0, 0, 12, b'b', b't', b'r', b't', 1, 2, 3, 4]);
        entry.extend((8 + body.len() as u32).to_be_bytes());
        entry.extend([&kind[..], body].concat());
        entry
    }

    #[test]
    fn r09_dolby_configurations_have_their_rate_and_channels() {
        for version in 0..=2 {
            // 48 kHz, 3/2 with low frequencies, 448 kbit/s.
            let five = entry(version, b"dac3", &[0x10, 0x3d, 0xe0]);
            assert_eq!(sound(*b"ac-3", &five), Some(Codec::Ac3 { rate: 48_000, channels: 6 }));
            let two = entry(version, b"dec3", &[0x06, 0x00, 0x60, 0x04, 0x00]);
            assert_eq!(sound(*b"ec-3", &two), Some(Codec::Eac3 { rate: 44_100, channels: 2 }));
        }
        let reserved = entry(0, b"dac3", &[0xd0, 0x3d, 0xe0]);
        assert_eq!(sound(*b"ac-3", &reserved), None);
        assert_eq!(sound(*b"ac-3", &entry(0, b"dec3", &[0; 5])), None);
        assert_eq!(sound(*b".mp3", &[]), Some(Codec::MpegAudio));
    }

    proptest! {
        #[test]
        fn r09_any_bytes_of_an_entry_are_harmless(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200), version in 0u8..4,
        ) {
            if let Some(byte) = bytes.get_mut(9) {
                (*byte, bytes[8]) = (version, 0);
            }
            for kind in [b"ac-3", b"ec-3", b".mp3", b"zzzz"] {
                sound(*kind, &bytes);
            }
        }
    }
}
