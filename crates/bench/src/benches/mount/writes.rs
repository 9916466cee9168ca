//! Writes by the mount beside writes to the file system below it.
//!
//! Promise: both ways write the same bytes by the same calls, by turns within a round. A file is
//! written when its last flush and its close have returned.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use tactus_core::units::{KIB, MIB};

/// Bytes a second of the two ways: the file system, the mount.
#[derive(Clone, Copy, Default)]
pub(super) struct WriteRates {
    /// A long file: all bytes, one flush, the close.
    pub(super) whole: [f64; 2],
    /// A short file, with a flush after each piece.
    pub(super) pieces: [f64; 2],
}

/// Bytes of the long file, written by pieces of 1 MiB.
pub(super) const WHOLE: u64 = 300 * MIB;
/// Bytes of the short one.
pub(super) const SHORT: u64 = 32 * MIB;
/// Bytes between two flushes of it.
pub(super) const PIECE: u64 = 64 * KIB;

/// One round in the directories `plain` and `mounted`.
pub(super) fn measure(plain: &Path, mounted: &Path) -> Result<WriteRates> {
    let mut rates = WriteRates::default();
    for (way, place) in [plain, mounted].into_iter().enumerate() {
        let path = place.join("written.bin");
        rates.whole[way] = write(&path, WHOLE, MIB, WHOLE)?;
        rates.pieces[way] = write(&path, SHORT, PIECE, PIECE)?;
    }
    Ok(rates)
}

/// Writes `len` bytes by pieces of `size`, with a flush after each `flushed` bytes.
fn write(path: &Path, len: u64, size: u64, flushed: u64) -> Result<f64> {
    let bytes: Vec<u8> = (0..size).map(|at| (at ^ at >> 8) as u8).collect();
    let begun = Instant::now();
    let mut file = File::create(path).with_context(|| format!("{}", path.display()))?;
    for at in (0..len).step_by(size as usize) {
        file.write_all(&bytes)?;
        if (at + size).is_multiple_of(flushed) {
            file.sync_all()?;
        }
    }
    drop(file);
    let seconds = begun.elapsed().as_secs_f64();
    fs::remove_file(path)?;
    Ok(len as f64 / seconds)
}
