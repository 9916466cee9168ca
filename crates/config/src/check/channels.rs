//! Checks `[[channel]]`: titles, times and destinations.

use tactus_control::class::Classes;
use tactus_notation::checks::Checked;
use tactus_notation::error::Mistake;
use tactus_playout::channel::Channel;
use tactus_playout::channel::raw::{self, RawChannel};
use toml::Spanned;

pub(super) fn channels(written: Vec<RawChannel>, classes: &Classes) -> Checked<Vec<Channel>> {
    let mut all: Vec<Channel> = Vec::with_capacity(written.len());
    for written in written {
        let (name, to) = (written.name.span(), written.to.span());
        let class = written.class.as_ref().map(Spanned::span);
        let next = raw::check(written)?;
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
