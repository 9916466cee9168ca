//! Does the emulated disk do what its table says?
//!
//! Promise: it reads the block device as a server would, one direct read at a time, and prints what
//! came out beside what the model promises, with the sizes that reached the model.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use anyhow::Result;
use rustix::fs::OFlags;
use tactus_core::units::{Bytes, MIB, Nanos, SECOND};

use super::{EmulatedDisk, Profile, Shape};
use crate::aligned::Aligned;
use crate::clock;
use crate::interrupt;
use crate::random::Random;
use crate::report::{Table, number};

/// Builds a disk of `shape` and reads it.
pub fn check(shape: Shape, each: Nanos) -> Result<Table> {
    let (profile, size) = (shape.profile, shape.size);
    let mut disk = EmulatedDisk::start(shape)?;
    disk.timed()?;
    let title = format!("emulated {profile:?}, one direct read at a time");
    let mut table = Table::new(
        &title,
        &["read", "reads/s", "MB/s", "table", "mean request, KiB", "requests/read"],
    );
    let promised = |hdd: &str, sata: &str, nvme: &str| match profile {
        Profile::Hdd => hdd.to_owned(),
        Profile::Sata => sata.to_owned(),
        Profile::Nvme => nvme.to_owned(),
    };
    let flash = ("<= 500 MB/s", "<= 3000 MB/s");
    for (name, length, random, expected) in [
        ("random 256 KiB", MIB / 4, true, promised("65 IOPS, 17 MB/s", flash.0, flash.1)),
        ("random 1 MiB", MIB, true, promised("48 MB/s", flash.0, flash.1)),
        ("sequential 1 MiB", MIB, false, promised("137 MB/s", flash.0, flash.1)),
    ] {
        interrupt::check()?;
        let before = disk.asked()?;
        let (reads, span) = read_for(disk.device(), size, length, random, each)?;
        let after = disk.asked()?;
        let seconds = span.0 as f64 / 1e9;
        let requests = (after.reads - before.reads) as f64;
        let bytes = (after.read_bytes - before.read_bytes) as f64;
        table.row(vec![
            name.into(),
            number(reads as f64 / seconds),
            number(reads as f64 * length as f64 / seconds / 1e6),
            expected,
            number(bytes / requests / 1024.0),
            number(requests / reads as f64),
        ]);
    }
    Ok(table)
}

fn read_for(
    device: &str,
    size: Bytes,
    length: u64,
    random: bool,
    span: Nanos,
) -> Result<(u64, Nanos)> {
    let flags = OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(device)?;
    let mut buffer = Aligned::new(length as usize);
    let mut places = Random::new(11);
    let blocks = size.0 / length;
    let start = clock::now();
    let mut reads = 0;
    while clock::now().since(start) < span.min(SECOND.times(60)) {
        let block = if random { places.next() % blocks } else { reads % blocks };
        file.read_exact_at(buffer.bytes(), block * length)?;
        reads += 1;
    }
    Ok((reads, clock::now().since(start)))
}
