//! A cautious model in under two seconds, for a volume that has not been measured.
//!
//! Promise: it writes only unnamed scratch data, and it never fails: it assumes slow values for
//! everything that it cannot measure. It reads the largest title that it finds, without changing
//! it.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tactus_core::disk_model::DiskModel;
use tactus_core::units::{Bytes, KIB, MIB, Nanos};

use super::device::{self, Disk};
use super::fit::{self, Point};
use super::rig::{self, Load, Order};
use super::scratch::Scratch;

/// A flash disk without further information: half the speed of SATA flash.
const FLASH_UNKNOWN: DiskModel = DiskModel {
    visit: Nanos::from_micros(300),
    sweep: Nanos(0),
    read_mib: Nanos::from_micros(4_000),
    write_mib: Nanos::from_micros(8_000),
    depth: 4,
    flush: DiskModel::FLASH_FLUSH,
};

/// The model for a start without a model file.
pub fn quick(dir: &Path) -> DiskModel {
    let device = device::of(dir);
    if let Some(device) = &device
        && device.rotational
        && !device.is_virtual
    {
        // The kernel's statement about a real disk is reliable; the times of a hard disk cannot be
        // measured in two seconds.
        return DiskModel::SLOWEST;
    }
    match look(dir, device.as_ref()) {
        Ok(model) => model,
        Err(error) => {
            tracing::warn!("{}: its disk cannot be measured ({error})", dir.display());
            FLASH_UNKNOWN
        }
    }
}

fn look(dir: &Path, device: Option<&Disk>) -> io::Result<DiskModel> {
    if let Some(device) = device
        && device.rotational
        && let Ok(disk) = rig::open_direct(&Path::new("/dev").join(&device.name))
        && has_arm(&disk, device.size)?
    {
        return Ok(DiskModel::SLOWEST);
    }
    let (file, size) = file_to_read(dir)?;
    if has_arm(&file, size)? {
        return Ok(DiskModel::SLOWEST);
    }
    let mut reads = Vec::new();
    for (seed, len) in [(1, 256 * KIB), (2, MIB)] {
        let offsets = rig::offsets(Order::Random, size, len, REQUESTS_MAX, seed);
        let timing = rig::run(&Load::reads(&file, offsets, len, DEPTH), Some(TIME))?;
        reads.push(Point {
            visits: timing.each.len() as u64,
            bytes: Bytes(timing.bytes),
            time: Nanos(timing.wall.as_nanos() as u64),
        });
    }
    let model = fit::flash(&reads, Nanos(0), DEPTH as u32);
    let half = |time: Nanos| time.times(2);
    Ok(DiskModel {
        visit: half(model.visit),
        read_mib: half(model.read_mib),
        // Not measured: writing wears flash, and short measurements of it are misleading.
        write_mib: model.read_mib.times(8),
        ..model
    })
}

/// The file that tells how fast the disk reads: the largest title, or scratch data if all are
/// small.
fn file_to_read(dir: &Path) -> io::Result<(File, Bytes)> {
    match largest(dir) {
        Some((path, size)) if size >= FILE_MIN => Ok((rig::open_direct(&path)?, size)),
        _ => {
            let (scratch, _) = Scratch::fill(dir, SCRATCH, &mut |_| {})?;
            Ok((scratch.file, scratch.size))
        }
    }
}

/// A file for probes of the disk of `dir`, open for direct reads; `None` if there is none and none
/// can be made.
pub fn probe_file(dir: &Path) -> Option<(File, Bytes)> {
    match file_to_read(dir) {
        Ok(found) => Some(found),
        Err(error) => {
            tracing::info!(volume = %dir.display(), %error, "the disk is not probed");
            None
        }
    }
}

/// Whether distant reads take milliseconds longer than adjacent ones.
fn has_arm(file: &File, size: Bytes) -> io::Result<bool> {
    let time = |order| -> io::Result<Nanos> {
        let offsets = rig::offsets(order, size, LOOK, 24, 5);
        Ok(rig::run(&Load::reads(file, offsets, LOOK, 1), Some(TIME))?.quantile(0.5))
    };
    let (near, far) = (time(Order::Sequential)?, time(Order::Random)?);
    Ok(far > near.times(3) && far > near + ARM_MIN)
}

/// Half a turn at 15,000 rpm takes 2 ms, and no flash needs that long for half of its reads.
const ARM_MIN: Nanos = Nanos::from_millis(2);
const LOOK: u64 = 64 * KIB;
const TIME: Duration = Duration::from_millis(250);
const DEPTH: usize = 4;
/// Upper bound of the offsets, not of the time: 250 ms of a disk that reads 8 GB/s.
const REQUESTS_MAX: usize = 8192;
const FILE_MIN: Bytes = Bytes(32 * MIB);
const SCRATCH: Bytes = Bytes(32 * MIB);

/// The largest regular file among the first [`LOOKED_AT_MAX`] entries below `dir`.
fn largest(dir: &Path) -> Option<(PathBuf, Bytes)> {
    let mut best: Option<(PathBuf, Bytes)> = None;
    let mut dirs = vec![dir.to_path_buf()];
    let mut looked_at = 0;
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            looked_at += 1;
            if looked_at > LOOKED_AT_MAX {
                return best;
            }
            // The metadata of the entry itself: links are not followed.
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                dirs.push(entry.path());
            } else if meta.is_file()
                && is_whole(&meta)
                && best.as_ref().is_none_or(|(_, len)| meta.len() > len.0)
            {
                best = Some((entry.path(), Bytes(meta.len())));
            }
        }
    }
    best
}

const LOOKED_AT_MAX: usize = 2_000;

/// Whether most of a file is on the disk: holes would be read without it.
fn is_whole(meta: &Metadata) -> bool {
    u128::from(meta.blocks()) * 512 * 10 >= u128::from(meta.len()) * 9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_without_titles_gets_a_model_and_keeps_no_scratch() {
        let dir = tempfile::tempdir().unwrap();
        let model = quick(dir.path());
        assert!(model.visit > Nanos(0) && model.read_mib > Nanos(0) && model.depth > 0);
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn a_directory_that_is_not_there_is_taken_for_slow() {
        assert_eq!(quick(Path::new("/nowhere/at/all")), FLASH_UNKNOWN);
    }

    #[test]
    fn r11_a_file_of_holes_tells_nothing_about_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), [7; 10_000]).unwrap();
        File::create(dir.path().join("holes")).unwrap().set_len(1 << 40).unwrap();
        let found = largest(dir.path()).map(|(path, size)| (path, size.0));
        assert_eq!(found, Some((dir.path().join("a"), 10_000)));
    }

    #[test]
    fn the_largest_title_is_found_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("deep")).unwrap();
        std::fs::write(dir.path().join("deep/b"), [0; 100]).unwrap();
        std::fs::write(dir.path().join("a"), [0; 10]).unwrap();
        std::os::unix::fs::symlink("/proc/kcore", dir.path().join("link")).unwrap();
        let found = largest(dir.path()).map(|(path, size)| (path, size.0));
        assert_eq!(found, Some((dir.path().join("deep/b"), 100)));
    }
}
