//! `[[channel]]` as written, and its meaning.
//!
//! Promise: the configuration and the control API read a channel by the same rules.

use std::net::IpAddr;
use std::ops::Range;

use tactus_core::units::{BitRate, Nanos};
use tactus_notation::Auto;
use tactus_notation::checks::{
    Checked, PLAIN_NAME, RATES, auto_quantity, burst, dscp, in_range, interface, is_plain_name,
    number, or_auto, unless_off,
};
use tactus_notation::error::Mistake;
use tactus_notation::units::Value;
use tactus_notation::value::{OneOrMore, SpannedKey, Switch};
use toml::Spanned;

use super::sound::{self, SoundKeys};
use super::{Channel, Kind, List, Output, Playlist, ScheduledTime, TITLES_MAX};

/// `[[channel]]`: titles that are sent as datagrams from the start.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct RawChannel {
    pub name: Spanned<String>,
    #[serde(default)]
    pub title: SpannedKey<String>,
    #[serde(default)]
    pub playlist: SpannedKey<OneOrMore>,
    pub to: Spanned<String>,
    #[serde(default)]
    pub start: SpannedKey<String>,
    #[serde(default)]
    pub at: Vec<RawTimedTitle>,
    #[serde(default)]
    pub fill: SpannedKey<Switch<String>>,
    #[serde(default)]
    pub announce: Option<bool>,
    #[serde(default)]
    pub interface: SpannedKey<Switch<String>>,
    #[serde(default)]
    pub source: SpannedKey<Switch<String>>,
    #[serde(default)]
    pub hops: SpannedKey<u32>,
    #[serde(default)]
    pub dscp: SpannedKey<u32>,
    #[serde(default)]
    pub rate: SpannedKey<Switch<Value<BitRate>>>,
    #[serde(default)]
    pub stuff: SpannedKey<Switch<Value<BitRate>>>,
    #[serde(default)]
    pub burst: SpannedKey<Value<Nanos>>,
    #[serde(default)]
    pub class: SpannedKey<String>,
    #[serde(default)]
    pub format: SpannedKey<String>,
    #[serde(default)]
    pub encoding: SpannedKey<String>,
    #[serde(default)]
    pub channels: SpannedKey<u32>,
    #[serde(default)]
    pub packet_time: SpannedKey<Value<Nanos>>,
    #[serde(default)]
    pub sync: SpannedKey<Switch<String>>,
    #[serde(default)]
    pub repeat: Option<bool>,
}

/// A title of a channel with a fixed time.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct RawTimedTitle {
    pub time: Spanned<String>,
    pub title: Spanned<String>,
}

/// Checks one channel without regard to the others.
///
/// # Errors
/// The first mistake, with its place.
pub fn check(raw: RawChannel) -> Checked<Channel> {
    if !is_plain_name(raw.name.get_ref()) {
        return Err(Mistake::at(raw.name.span(), PLAIN_NAME));
    }
    let list = match (raw.title, raw.playlist) {
        (Some(title), None) => List::Titles(vec![title_path(title)?]),
        (None, Some(playlist)) => {
            let span = playlist.span();
            let names = playlist.into_inner().0;
            if names.is_empty() || names.len() > TITLES_MAX {
                let message = format!("write at least one title, and at most {TITLES_MAX}");
                return Err(Mistake::at(span, message));
            }
            let paths = names.into_iter().map(|name| path_at(name, &span));
            List::of(paths.collect::<Checked<_>>()?)
        }
        (Some(title), Some(_)) => {
            let message = "`title` and `playlist` exclude each other; remove one of them";
            return Err(Mistake::at(title.span(), message));
        }
        (None, None) => {
            let message = "the channel has no titles; add `title` or `playlist`";
            return Err(Mistake::at(raw.name.span(), message));
        }
    };
    let when = |text: Spanned<String>| {
        ScheduledTime::parse(text.get_ref()).map_err(|message| Mistake::at(text.span(), message))
    };
    let mut timed = Vec::with_capacity(raw.at.len());
    for entry in raw.at {
        timed.push((when(entry.time)?, title_path(entry.title)?));
    }
    let fill = unless_off(raw.fill, "write a title's path, or \"off\"")?;
    let fill = fill.map(|(path, span)| path_at(path, &span)).transpose()?;
    let start = raw.start.map(when).transpose()?;
    let repeats = raw.repeat.unwrap_or(true);
    let playlist = Playlist { list, repeats, start, timed, fill };
    let to = Output::parse(raw.to.get_ref()).map_err(|m| Mistake::at(raw.to.span(), m))?;
    let interface = interface(raw.interface)?;
    if interface.is_none() && to.needs_interface() {
        let message = "this is a link-local address; name its link with `interface`";
        return Err(Mistake::at(raw.to.span(), message));
    }
    let source = match or_auto(raw.source)? {
        Auto::Auto => None,
        Auto::Set((text, span)) => match text.parse::<IpAddr>() {
            Ok(ip) if ip.is_ipv4() == to.to.is_ipv4() => Some(ip),
            _ => {
                let message = "write one of this host's addresses, of the family of `to`";
                return Err(Mistake::at(span, message));
            }
        },
    };
    let RawChannel { format, encoding, channels, packet_time, .. } = raw;
    let sound = sound::check(SoundKeys { format, encoding, channels, packet_time })?;
    if sound.is_some() {
        if to.kind != Kind::Rtp {
            let message = "sound is sent as RTP; write the address with rtp://";
            return Err(Mistake::at(raw.to.span(), message));
        }
        let rate = raw.rate.as_ref().map(Spanned::span);
        let stuff = raw.stuff.as_ref().map(Spanned::span);
        let burst = raw.burst.as_ref().map(Spanned::span);
        if let Some(span) = rate.or(stuff).or(burst) {
            let message = "sound leaves at its sample rate, packet by packet; remove this key";
            return Err(Mistake::at(span, message));
        }
    }
    let sync = match unless_off(raw.sync, "write a name, or \"off\"")? {
        Some((name, span)) if !is_plain_name(&name) => return Err(Mistake::at(span, PLAIN_NAME)),
        sync => sync.map(|(name, _)| name),
    };
    let fits = |rate: BitRate| RATES.contains(&rate);
    let stuff = match unless_off(raw.stuff, "write the total rate of the channel, or \"off\"")? {
        Some((Value(rate), span)) => Some(in_range(rate, span, RATES)?),
        None => None,
    };
    Ok(Channel {
        name: raw.name.into_inner(),
        playlist,
        to,
        interface,
        source,
        hops: number(raw.hops, 1, 1..=255)? as u8,
        class: raw.class.map(Spanned::into_inner),
        dscp: dscp(raw.dscp)?,
        rate: auto_quantity(raw.rate, fits, "write a rate from 1 kbit/s to 100 Gbit/s")?,
        stuff,
        burst: burst(raw.burst)?,
        announced: raw.announce.unwrap_or(false),
        sound,
        sync,
    })
}

fn title_path(written: Spanned<String>) -> Checked<String> {
    let span = written.span();
    path_at(written.into_inner(), &span)
}

fn path_at(path: String, span: &Range<usize>) -> Checked<String> {
    match path.starts_with('/') {
        true => Ok(path),
        false => {
            let message = "write the title's path as in a URL, like \"/films/loop.ts\"";
            Err(Mistake::at(span.clone(), message))
        }
    }
}
