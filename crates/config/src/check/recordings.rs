//! Checks `[[recording]]`: live inputs and the names of their titles.

use tactus_control::settings::Volume;
use tactus_notation::checks::Checked;
use tactus_notation::error::Mistake;
use tactus_playout::recording::Recording;
use tactus_playout::recording::raw::{self, RawRecording};

pub(super) fn recordings(
    written: Vec<RawRecording>,
    volumes: &[Volume],
) -> Checked<Vec<Recording>> {
    let mut all: Vec<Recording> = Vec::with_capacity(written.len());
    for written in written {
        let (name, to) = (written.name.span(), written.to.span());
        let next = raw::check(written)?;
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
