//! The titles that `tactus demo` serves.
//!
//! Promise: after [`lay_down`] the directory holds each title completely. Existing titles stay as
//! they are. Together they are smaller than half a gibibyte.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tactus_core::units::{BitRate, Nanos, SECOND};

use super::sample::Sample;

/// A title of the demo.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DemoTitle {
    /// Its path.
    pub path: PathBuf,
    /// Its rate.
    pub rate: BitRate,
    /// Its duration.
    pub duration: Nanos,
}

/// Ten minutes, so that the figures settle: 269 and 84 MiB.
const DURATION: Nanos = SECOND.times(600);

/// Writes the missing demo titles to `dir`, and lists all of them.
pub fn lay_down(dir: &Path) -> io::Result<Vec<DemoTitle>> {
    lay_down_lasting(dir, DURATION)
}

/// Whether `dir` holds all sample titles.
pub fn are_laid_down(dir: &Path) -> io::Result<bool> {
    for (name, sample) in titles(DURATION) {
        if !sample.is_at(&dir.join(name))? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn titles(duration: Nanos) -> [(&'static str, Sample); 2] {
    [("tactus-demo.ts", Sample::ts(duration)), ("tactus-demo.mp4", Sample::mp4(duration))]
}

fn lay_down_lasting(dir: &Path, duration: Nanos) -> io::Result<Vec<DemoTitle>> {
    fs::create_dir_all(dir)?;
    let mut laid = Vec::new();
    for (name, sample) in titles(duration) {
        let path = dir.join(name);
        if !sample.is_at(&path)? {
            sample.write(&path)?;
        }
        laid.push(DemoTitle { path, rate: sample.rate(), duration: sample.duration() });
    }
    Ok(laid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modified(titles: &[DemoTitle]) -> Vec<std::time::SystemTime> {
        titles.iter().map(|title| title.path.metadata().unwrap().modified().unwrap()).collect()
    }

    #[test]
    fn titles_that_are_there_are_kept_and_damaged_ones_are_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let short = SECOND.times(3);
        let first = lay_down_lasting(dir.path(), short).unwrap();
        let times = modified(&first);
        assert_eq!(lay_down_lasting(dir.path(), short).unwrap(), first);
        assert_eq!(modified(&first), times, "nothing was written twice");

        let whole = fs::read(&first[0].path).unwrap();
        fs::write(&first[0].path, &whole[..whole.len() - 1]).unwrap();
        fs::write(&first[1].path, b"an older version").unwrap();
        lay_down_lasting(dir.path(), short).unwrap();
        assert_eq!(fs::read(&first[0].path).unwrap(), whole);
        assert!(Sample::mp4(short).is_at(&first[1].path).unwrap());
        let names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "no partial file is left: {names:?}");
    }

    #[test]
    fn the_demo_states_the_rates_that_the_probe_finds() {
        let dir = tempfile::tempdir().unwrap();
        for title in lay_down_lasting(dir.path(), SECOND.times(8)).unwrap() {
            let file = fs::File::open(&title.path).unwrap();
            let name = title.path.file_name().unwrap().to_str().unwrap();
            let facts = crate::probe::probe(&file, name).unwrap();
            assert_eq!((facts.rate, facts.duration), (title.rate, title.duration), "{name}");
        }
    }
}
