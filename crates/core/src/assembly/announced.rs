//! Media described by an announcement (SDP), as far as they are supported.
//!
//! Promise: each medium can be put into a transport stream; otherwise the error names the medium
//! that cannot.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::rtp::gather::{Audio, AudioConfig, Gather, Kind, Layout, Units};
use crate::sdp::{Description, Media};

/// One medium.
#[derive(Clone, Debug)]
pub struct Track {
    /// The end of its URL, or the whole URL (`a=control`).
    pub control: Option<String>,
    /// The payload type of its packets.
    pub payload_type: u8,
    /// Ticks of its clock in a second.
    pub clock: u32,
    /// Its coding.
    pub coding: Coding,
    /// Its video frames are displayed in the order of arrival.
    pub is_in_order: bool,
}

/// The coding of a medium.
#[derive(Clone, Debug)]
pub enum Coding {
    /// A transport stream.
    Whole,
    /// A part of one.
    Parts(Gather),
}

/// Why an announcement is not supported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnsupportedAnnouncement(pub String);

/// The media of an announcement.
///
/// # Errors
/// The unsupported medium, and the supported ones.
pub fn tracks(description: &Description) -> Result<Vec<Track>, UnsupportedAnnouncement> {
    let tracks = description.media.iter().map(track).collect::<Result<Vec<_>, _>>()?;
    let wholes = tracks.iter().filter(|track| matches!(track.coding, Coding::Whole)).count();
    if tracks.is_empty() {
        return Err(UnsupportedAnnouncement("nothing is announced".to_owned()));
    }
    if wholes > 0 && tracks.len() > 1 {
        return Err(UnsupportedAnnouncement(
            "a transport stream has all media in it; announce it alone".to_owned(),
        ));
    }
    Ok(tracks)
}

fn track(media: &Media) -> Result<Track, UnsupportedAnnouncement> {
    let unfit = || {
        let encoding = media.encoding().unwrap_or("an unknown coding").escape_debug();
        let text = "send H264, H265, MPEG4-GENERIC, MP4A-LATM or MP2T";
        UnsupportedAnnouncement(format!("{encoding} cannot be recorded; {text}"))
    };
    let payload_type = media.payload_type().ok_or_else(unfit)?;
    let encoding = media.encoding().ok_or_else(unfit)?;
    let (name, rest) = encoding.split_once('/').ok_or_else(unfit)?;
    let clock = rest.split('/').next().and_then(|clock| clock.parse().ok());
    let clock: u32 = clock.filter(|clock| (1..=1_000_000).contains(clock)).ok_or_else(unfit)?;
    let format = format_of(media, payload_type);
    let parameter = |name: &str| parameter(format, name);
    let sets = |names: &[&str]| {
        let texts =
            names.iter().filter_map(|name| parameter(name)).flat_map(|list| list.split(','));
        texts.filter_map(base64).collect::<Vec<_>>()
    };
    let number = |name: &str| parameter(name).and_then(|text| text.parse::<u8>().ok());
    let video_frames = |kind, sets: Vec<Vec<u8>>| {
        Coding::Parts(Gather::VideoFrames(Units::new(kind, sets.iter().map(|set| &set[..]))))
    };
    let mut is_in_order = false;
    let coding = match name.to_ascii_uppercase().as_str() {
        "MP2T" => Coding::Whole,
        "H264" => {
            let sets = sets(&["sprop-parameter-sets"]);
            // Baseline has no video frames out of order (H.264, A.2.1).
            is_in_order =
                sets.iter().any(|set| matches!(set[..], [first, 66, ..] if first & 0x1f == 7));
            video_frames(Kind::H264, sets)
        }
        "H265" => video_frames(Kind::H265, sets(&["sprop-vps", "sprop-sps", "sprop-pps"])),
        "MPEG4-GENERIC" => {
            let mode = parameter("mode").unwrap_or_default();
            let config = parameter("config").and_then(hex).ok_or_else(unfit)?;
            let config = AudioConfig::read(&config, 0).ok_or_else(unfit)?;
            if !mode.to_ascii_lowercase().starts_with("aac-") {
                return Err(unfit());
            }
            let bits = |name| number(name).filter(|bits| *bits <= 32);
            let (size, index) = (bits("sizelength").ok_or_else(unfit)?, bits("indexlength"));
            let (index, delta) = (index.unwrap_or(0), bits("indexdeltalength").unwrap_or(0));
            // Without a size, or with further headers, the mode is not in use.
            if !(6..=16).contains(&size) || number("auxiliarydatasizelength").unwrap_or(0) > 0 {
                return Err(unfit());
            }
            let layout = Layout::Headers { size, index, delta };
            Coding::Parts(Gather::Audio(Audio::new(config, layout)))
        }
        "MP4A-LATM" => {
            // StreamMuxConfig (ISO/IEC 14496-3, 1.7.3): version 0, one program of one layer, then
            // the configuration.
            let config = parameter("config").and_then(hex).ok_or_else(unfit)?;
            let (Some(&first), Some(&second)) = (config.first(), config.get(1)) else {
                return Err(unfit());
            };
            let is_plain = first & 0xc0 == 0x40 && second >> 1 == 0;
            if !is_plain || parameter("cpresent").is_some_and(|present| present != "0") {
                return Err(unfit());
            }
            let audio = AudioConfig::read(&config, 15).ok_or_else(unfit)?;
            let layout = Layout::Latm { frames: (first & 0x3f) + 1 };
            Coding::Parts(Gather::Audio(Audio::new(audio, layout)))
        }
        _ => return Err(unfit()),
    };
    let control = media.attribute("control").map(ToOwned::to_owned);
    Ok(Track { control, payload_type, clock, coding, is_in_order })
}

/// The `a=fmtp` parameters of a payload type.
fn format_of(media: &Media, payload_type: u8) -> &str {
    let all = media.attributes.iter().filter(|attribute| attribute.name == "fmtp");
    let mut all = all.filter_map(|attribute| attribute.value.as_deref()?.split_once(' '));
    all.find(|(of, _)| of.parse() == Ok(payload_type)).map_or("", |(_, format)| format)
}

fn parameter<'a>(format: &'a str, name: &str) -> Option<&'a str> {
    format.split(';').find_map(|part| {
        let (known, value) = part.split_once('=')?;
        known.trim().eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| Some(digit(pair[0])? << 4 | pair.get(1).map_or(Some(0), |low| digit(*low))?))
        .collect()
}

/// Decodes Base64 (RFC 4648), the form of parameter sets; `None` if it is invalid.
fn base64(text: &str) -> Option<Vec<u8>> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for byte in text.trim().trim_end_matches('=').bytes() {
        bits = bits << 6 | u32::from(value(byte)?);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(media: &str) -> Result<Vec<Track>, UnsupportedAnnouncement> {
        let text = format!("v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nt=0 0\n{media}");
        tracks(&Description::read(&text).unwrap())
    }

    #[test]
    fn what_ffmpeg_and_gstreamer_announce_is_taken() {
        let ffmpeg = described(
            "m=video 0 RTP/AVP 96\na=rtpmap:96 H264/90000\na=fmtp:96 packetization-mode=1; \
             sprop-parameter-sets=Z2QAC6zZQo35IeEAAAMAAQAAAwAyDxQplg==,aOvjyyLA; \
             profile-level-id=64000B\n\
             a=control:streamid=0\nm=audio 0 RTP/AVP 97\na=rtpmap:97 MPEG4-GENERIC/48000/2\n\
             a=fmtp:97 \
             profile-level-id=1;mode=AAC-hbr;sizelength=13;indexlength=3;indexdeltalength=3; \
             config=119056E500\na=control:streamid=1\n",
        )
        .unwrap();
        let [video, audio] = &ffmpeg[..] else { panic!("two") };
        assert_eq!((video.clock, audio.clock, video.payload_type), (90_000, 48_000, 96));
        assert_eq!(video.control.as_deref(), Some("streamid=0"));
        assert!(matches!(&audio.coding, Coding::Parts(Gather::Audio(_))) && !video.is_in_order);
        let gstreamer = described(
            "m=audio 0 RTP/AVP 97\na=rtpmap:97 MP4A-LATM/44100\n\
             a=fmtp:97 cpresent=0;config=40002420adca00;object=2\na=control:stream=1\n",
        );
        assert_eq!(gstreamer.unwrap().len(), 1);
        let whole = described("m=video 0 RTP/AVP 33\na=rtpmap:33 MP2T/90000\n").unwrap();
        assert!(matches!(whole[0].coding, Coding::Whole));
    }

    #[test]
    fn what_cannot_be_recorded_is_named() {
        let says = |media: &str| described(media).unwrap_err().0;
        assert!(says("m=video 0 RTP/AVP 96\na=rtpmap:96 VP8/90000\n").starts_with("VP8/90000 "));
        assert!(
            says("m=audio 0 RTP/AVP 97\na=rtpmap:97 MPEG4-GENERIC/48000/2\n").contains("send H264")
        );
        assert!(says("").starts_with("nothing"));
        let twice = "m=video 0 RTP/AVP 33\n".repeat(2);
        assert!(says(&twice).contains("alone"));
    }

    #[test]
    fn base64_is_read() {
        assert_eq!(base64("aOvjyyLA"), Some(alloc::vec![0x68, 0xeb, 0xe3, 0xcb, 0x22, 0xc0]));
        assert_eq!((base64("YQ=="), base64("YWI=")), (Some(b"a".to_vec()), Some(b"ab".to_vec())));
        assert_eq!(base64("a b"), None);
    }
}
