//! Checks `[[recording]]`: live inputs and the names of their titles.

use tactus_control::settings::Volume;
use tactus_core::units::{BitRate, Bytes, MIB, SECOND};
use tactus_notation::checks::{
    Checked, PLAIN_NAME, RATES, auto_quantity, in_range, interface, is_plain_name, quantity,
    unless_off,
};
use tactus_notation::error::Mistake;
use tactus_notation::units::Value;
use toml::Spanned;

use crate::pattern::Pattern;
use crate::raw;
use crate::recording::{Input, Keep, Recording, Rotate};

pub(super) fn recordings(raw: Vec<raw::Recording>, volumes: &[Volume]) -> Checked<Vec<Recording>> {
    let mut all: Vec<Recording> = Vec::with_capacity(raw.len());
    for written in raw {
        let (name, to) = (written.name.span(), written.to.span());
        let next = recording(written)?;
        if all.iter().any(|known| known.name == next.name) {
            let message =
                format!("the recording {:?} is defined twice; give each its own name", next.name);
            return Err(Mistake::at(name, message));
        }
        if all.iter().any(|known| known.to == next.to) {
            return Err(Mistake::at(to, "another recording has the same `to`; give each its own"));
        }
        let written = next.to.to_string();
        let below = |volume: &&Volume| written.starts_with(&volume.mount);
        let volume = volumes.iter().filter(below).max_by_key(|volume| volume.mount.len());
        if !volumes.is_empty() && !volume.is_some_and(|volume| volume.uploads) {
            let message = match volume {
                Some(volume) => format!(
                    "{} accepts no uploads; set `uploads = true` in its [[volume]]",
                    volume.path.display()
                ),
                None => "no volume is mounted there; begin with the `mount` of one".to_owned(),
            };
            return Err(Mistake::at(to, message));
        }
        all.push(next);
    }
    Ok(all)
}

/// Checks one recording without regard to the others.
pub(crate) fn recording(raw: raw::Recording) -> Checked<Recording> {
    let said = |text: &Spanned<String>| {
        let span = text.span();
        move |message: String| Mistake::at(span, message)
    };
    if !is_plain_name(raw.name.get_ref()) {
        return Err(Mistake::at(raw.name.span(), PLAIN_NAME));
    }
    let from = Input::parse(raw.from.get_ref()).map_err(said(&raw.from))?;
    let interface = interface(raw.interface)?;
    if interface.is_none() && from.needs_interface() {
        let message = "this is a link-local address; name its link with `interface`";
        return Err(Mistake::at(raw.from.span(), message));
    }
    let to = Pattern::parse(raw.to.get_ref()).map_err(said(&raw.to))?;
    let fits = |rate: BitRate| RATES.contains(&rate);
    let rate = auto_quantity(raw.rate, fits, "write a rate from 1 kbit/s to 100 Gbit/s")?;
    let rotate = match unless_off(
        raw.rotate,
        "write a time like \"1 h\", a size like \"1 GB\", or \"off\"",
    )? {
        None => None,
        Some((text, span)) => Some(Rotate::parse(&text).map_err(|m| Mistake::at(span, m))?),
    };
    let titles = unless_off(raw.keep_titles, "write a number, or \"off\"")?;
    let titles = titles.map(|(titles, span)| in_range(titles, span, 1..=1_000_000)).transpose()?;
    let size = unless_off(raw.keep_size, "write a size like \"500 GB\", or \"off\"")?;
    let size = size.map(|(Value(size), span)| in_range(size, span, Bytes(MIB)..=Bytes(u64::MAX)));
    let age = unless_off(raw.keep_age, "write a time like \"168 h\", or \"off\"")?;
    let ages = SECOND..=SECOND.times(86_400 * 3_660);
    let age = age.map(|(Value(age), span)| in_range(age, span, ages)).transpose()?;
    let keep = Keep { titles, size: size.transpose()?, age };
    if (rotate.is_some() || keep.is_limited()) && !to.has_fields() {
        let message = "every title would get this name; add %n or a time to it, like \
            \"/live/%Y%m%d-%H%M%S.ts\"";
        return Err(Mistake::at(raw.to.span(), message));
    }
    let silence = quantity(raw.silence, SECOND.times(5), SECOND..=SECOND.times(3600))?;
    let name = raw.name.into_inner();
    Ok(Recording { name, from, interface, to, rate, rotate, keep, silence })
}
