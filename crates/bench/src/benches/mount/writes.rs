//! Writes by the mount beside writes to the file system below it.
//!
//! Promise: both ways write the same bytes by the same calls, by turns within a round, each file by
//! a program of its own. A file is written when its last flush and its close have returned. The
//! next one begins when the blocks of the one before are free: the file system frees them within
//! the removal, and a server after it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;
use tactus_core::units::{KIB, MIB};

use crate::file_writer::{self, FileTimes};
use crate::report::{Report, Table, Verdict, spread};

/// The ways.
const WAYS: [&str; 2] = ["file system", "mount"];

/// The times of one round by each way.
#[derive(Clone, Copy, Default)]
pub(super) struct WriteTimes {
    /// A long file: all bytes, one flush, the close.
    whole: [FileTimes; 2],
    /// A short file, with a flush after each piece.
    pieces: [FileTimes; 2],
}

/// Bytes of the long file, written by pieces of 1 MiB.
const WHOLE: u64 = 300 * MIB;
/// Bytes of the short one.
const SHORT: u64 = 32 * MIB;
/// Bytes between two flushes of it.
const PIECE: u64 = 64 * KIB;

/// One round in the directories `plain` and `mounted`.
pub(super) fn measure(plain: &Path, mounted: &Path) -> Result<WriteTimes> {
    let mut times = WriteTimes::default();
    for (way, place) in [plain, mounted].into_iter().enumerate() {
        let path = place.join("written.bin");
        let free = free_bytes(plain)?;
        times.whole[way] = file_writer::write_apart(&path, WHOLE, MIB, WHOLE)?;
        await_free(plain, free)?;
        times.pieces[way] = file_writer::write_apart(&path, SHORT, PIECE, PIECE)?;
        await_free(plain, free)?;
    }
    Ok(times)
}

/// Free bytes of the file system of `place`.
fn free_bytes(place: &Path) -> Result<u64> {
    let about = rustix::fs::statvfs(place)?;
    Ok(about.f_bfree * about.f_frsize)
}

/// Waits until nearly as much is free as before a file. Another program may have taken it: then
/// this gives up.
fn await_free(place: &Path, before: u64) -> Result<()> {
    let begun = Instant::now();
    while free_bytes(place)? + SHORT / 2 < before && begun.elapsed() < FREED_WITHIN {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Longer than the blocks of a file take to be freed.
const FREED_WITHIN: Duration = Duration::from_secs(10);

/// The figures of all rounds.
pub(super) fn summarise(rounds: &[WriteTimes], report: &mut Report) {
    type Figure = fn(&FileTimes) -> f64;
    type File = fn(&WriteTimes) -> &[FileTimes; 2];
    const FIGURES: [(&str, Figure); 6] = [
        ("all", |times| times.all),
        ("open", |times| times.open),
        ("first piece", |times| times.first),
        ("median piece", |times| times.median),
        ("last flush", |times| times.last_flush),
        ("close", |times| times.close),
    ];
    let whole = format!("{} MiB, one flush", WHOLE / MIB);
    let pieces = format!("{} MiB, a flush after each {} KiB", SHORT / MIB, PIECE / KIB);
    let files: [(&str, File); 2] =
        [(&whole, |times| &times.whole), (&pieces, |times| &times.pieces)];
    let head: Vec<&str> =
        ["file", "way"].into_iter().chain(FIGURES.map(|(name, _)| name)).collect();
    let mut table = Table::new("writes, ms", &head);
    for (name, file) in files {
        for (way, way_name) in WAYS.iter().enumerate() {
            let cells = FIGURES.map(|(_, figure)| {
                let ms = rounds.iter().map(|times| figure(&file(times)[way]) * 1e3);
                spread(&ms.collect::<Vec<_>>())
            });
            table.row([name.to_owned(), (*way_name).to_owned()].into_iter().chain(cells).collect());
            report.runs.extend(rounds.iter().map(|times| {
                let ms = FIGURES.map(|(name, figure)| (name, figure(&file(times)[way]) * 1e3));
                json!({ "written": name, "way": way_name, "ms": ms })
            }));
        }
    }
    report.tables.push(table);
    let figures = ["write of 300 MiB, one fsync, close", "write of 64 KiB, fsync after each"];
    for (figure, (_, file)) in figures.into_iter().zip(files) {
        let ratios = rounds.iter().map(|times| file(times)[0].all / file(times)[1].all);
        let (figure, goals) = (format!("{figure}, against the file system"), (0.8, 0.9));
        report.verdicts.push(Verdict::of(&figure, &ratios.collect::<Vec<_>>(), goals, false));
    }
    report.method.push(format!(
        "By turns a file of {} MiB is written to the file system and by a mount with -o rw, with \
         one fsync, and one of {} MiB with an fsync after each {} KiB, each by a program of its \
         own. The time is that from the open to the end of the close.",
        WHOLE / MIB,
        SHORT / MIB,
        PIECE / KIB,
    ));
}
