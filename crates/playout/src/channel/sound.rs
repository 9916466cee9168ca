//! The sound of a channel as written: `format`, `encoding`, `channels` and `packet_time`.
//!
//! Promise: a format that no packet or no receiver holds is refused at the key that causes it.

use tactus_core::datagrams::PAYLOAD;
use tactus_core::rtp::pcm::{CHANNELS_MAX, Encoding, PacketTime, PcmFormat};
use tactus_core::units::Nanos;
use tactus_notation::checks::{Checked, number};
use tactus_notation::error::Mistake;
use tactus_notation::units::Value;
use tactus_notation::value::SpannedKey;
use toml::Spanned;

/// How channels with sound are written.
pub(super) const AES67: &str = "aes67";
/// How channels with transport streams are written.
const MPEG_TS: &str = "mpeg-ts";

/// The keys of a channel that describe its sound.
#[derive(Debug)]
pub(super) struct SoundKeys {
    pub(super) format: SpannedKey<String>,
    pub(super) encoding: SpannedKey<String>,
    pub(super) channels: SpannedKey<u32>,
    pub(super) packet_time: SpannedKey<Value<Nanos>>,
}

/// The format of a channel's sound; `None` if it sends transport streams.
pub(super) fn check(keys: SoundKeys) -> Checked<Option<PcmFormat>> {
    let SoundKeys { format, encoding, channels, packet_time } = keys;
    match format.as_ref().map(|format| (format.get_ref().as_str(), format.span())) {
        Some((AES67, _)) => {}
        None | Some((MPEG_TS, _)) => {
            let spans = [encoding.map(|key| key.span()), channels.map(|key| key.span())];
            let spans = spans.into_iter().chain([packet_time.map(|key| key.span())]);
            return match spans.flatten().next() {
                None => Ok(None),
                Some(span) => {
                    let message = format!("this key is for sound; add `format = \"{AES67}\"`");
                    Err(Mistake::at(span, message))
                }
            };
        }
        Some((_, span)) => {
            return Err(Mistake::at(span, format!("write \"{MPEG_TS}\" or \"{AES67}\"")));
        }
    }
    let encoding = match encoding.as_ref().map(Spanned::get_ref).map(String::as_str) {
        None | Some("L24") => Encoding::L24,
        Some("L16") => Encoding::L16,
        Some(_) => {
            let span = encoding.map_or(0..0, |encoding| encoding.span());
            return Err(Mistake::at(span, "write \"L24\" or \"L16\""));
        }
    };
    let channels = number(channels, 2, 1..=u32::from(CHANNELS_MAX))? as u8;
    let (packet_time, span) = match packet_time {
        None => (PacketTime::Ms1, 0..0),
        Some(written) => {
            let (span, Value(time)) = (written.span(), written.into_inner());
            let found = match time.0 {
                125_000 => PacketTime::Us125,
                250_000 => PacketTime::Us250,
                333_000 => PacketTime::Us333,
                1_000_000 => PacketTime::Ms1,
                4_000_000 => PacketTime::Ms4,
                _ => {
                    let names = PacketTime::ALL.map(|time| format!("{:?}", time.name()));
                    let message = format!("write one of {}", names.join(", "));
                    return Err(Mistake::at(span, message));
                }
            };
            (found, span)
        }
    };
    let format = PcmFormat { encoding, channels, packet_time };
    if format.payload() > PAYLOAD {
        let message = format!(
            "packets of {} with {channels} channels of {} have {} bytes, and a datagram holds {}; \
             write \"1 ms\"",
            packet_time.name(),
            encoding.name(),
            format.payload().0,
            PAYLOAD.0
        );
        return Err(Mistake::at(span, message));
    }
    Ok(Some(format))
}
