//! Checks `[[channel]]`: titles, times and destinations.

use std::net::IpAddr;
use std::ops::Range;

use tactus_control::class::Classes;
use tactus_core::units::BitRate;
use tactus_notation::Auto;
use tactus_notation::checks::{
    Checked, PLAIN_NAME, RATES, auto_quantity, burst, dscp, in_range, interface, is_plain_name,
    number, or_auto, unless_off,
};
use tactus_notation::error::Mistake;
use tactus_notation::units::Value;
use toml::Spanned;

use crate::channel::{Channel, List, Output, Playlist, ScheduledTime};
use crate::raw;

/// Upper bound of the titles of a channel: a month of one-minute titles.
pub const TITLES_MAX: usize = 50_000;

pub(super) fn channels(raw: Vec<raw::Channel>, classes: &Classes) -> Checked<Vec<Channel>> {
    let mut all: Vec<Channel> = Vec::with_capacity(raw.len());
    for written in raw {
        let (name, to) = (written.name.span(), written.to.span());
        let class = written.class.as_ref().map(Spanned::span);
        let next = channel(written)?;
        next.send_options(classes).map_err(|m| Mistake::at(class.unwrap_or(name.clone()), m))?;
        if all.iter().any(|known| known.name == next.name) {
            let message =
                format!("the channel {:?} is defined twice; give each its own name", next.name);
            return Err(Mistake::at(name, message));
        }
        if all.iter().any(|known| known.to.to == next.to.to) {
            return Err(Mistake::at(
                to,
                "another channel sends to this address; give each channel \
                its own",
            ));
        }
        all.push(next);
    }
    Ok(all)
}

pub(crate) fn channel(raw: raw::Channel) -> Checked<Channel> {
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
