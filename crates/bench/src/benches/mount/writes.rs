//! Writes by the mount beside writes to the file system below it.
//!
//! Promise: both ways write the same bytes by the same calls, by turns, and take turns in being the
//! first of a round. Each file is written by a program of its own, and is written when its last
//! flush and its close have returned. The next one begins when the blocks of the one before are
//! free: the file system frees them within the removal, and a server after it. All short files come
//! before the first long one: a disk is slower for a while after much was removed from it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;
use tactus_core::units::{KIB, MIB};

use super::super::say;
use crate::file_writer::{self, FileTimes};
use crate::interrupt;
use crate::report::{Report, Table, Verdict, spread};

/// The ways.
const WAYS: [&str; 2] = ["file system", "mount"];

/// The times of one file by each way.
type Pair = [FileTimes; 2];

/// The times of all rounds.
#[derive(Default)]
pub(super) struct WriteTimes {
    /// Short files, with a flush after each piece.
    pieces: Vec<Pair>,
    /// Long files: all bytes, one flush, the close.
    whole: Vec<Pair>,
}

/// Bytes of the long file, written by pieces of 1 MiB.
const WHOLE: u64 = 300 * MIB;
/// Bytes of the short one.
const SHORT: u64 = 32 * MIB;
/// Bytes between two flushes of it.
const PIECE: u64 = 64 * KIB;

/// All rounds in the directories `plain` and `mounted`.
pub(super) fn measure(plain: &Path, mounted: &Path, rounds: usize) -> Result<WriteTimes> {
    let round = |kind: &str, number: usize, (len, size, flushed): (u64, u64, u64)| {
        interrupt::check()?;
        say(&format!("{kind} writes, round {number} of {rounds}"));
        let mut times = Pair::default();
        for turn in 0..WAYS.len() {
            let way = (number + turn) % WAYS.len();
            let free = free_bytes(plain)?;
            let path = [plain, mounted][way].join("written.bin");
            times[way] = file_writer::write_apart(&path, len, size, flushed)?;
            await_free(plain, free)?;
        }
        Ok(times)
    };
    let all = |kind, file| -> Result<Vec<Pair>> {
        (1..=rounds).map(|number| round(kind, number, file)).collect()
    };
    Ok(WriteTimes {
        pieces: all("short", (SHORT, PIECE, PIECE))?,
        whole: all("long", (WHOLE, MIB, WHOLE))?,
    })
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
pub(super) fn summarise(times: &WriteTimes, report: &mut Report) {
    type Figure = fn(&FileTimes) -> f64;
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
    let files = [(&whole, &times.whole), (&pieces, &times.pieces)];
    let head: Vec<&str> =
        ["file", "way"].into_iter().chain(FIGURES.map(|(name, _)| name)).collect();
    let mut table = Table::new("writes, ms", &head);
    for (name, rounds) in files {
        for (way, way_name) in WAYS.iter().enumerate() {
            let cells = FIGURES.map(|(_, figure)| {
                let ms = rounds.iter().map(|times| figure(&times[way]) * 1e3);
                spread(&ms.collect::<Vec<_>>())
            });
            table.row([name.to_owned(), (*way_name).to_owned()].into_iter().chain(cells).collect());
            report.runs.extend(rounds.iter().map(|times| {
                let ms = FIGURES.map(|(name, figure)| (name, figure(&times[way]) * 1e3));
                json!({ "written": name, "way": way_name, "ms": ms })
            }));
        }
    }
    report.tables.push(table);
    let figures = ["write of 300 MiB, one fsync, close", "write of 64 KiB, fsync after each"];
    for (figure, (_, rounds)) in figures.into_iter().zip(files) {
        let ratios = rounds.iter().map(|[plain, mounted]| plain.all / mounted.all);
        let (figure, goals) = (format!("{figure}, against the file system"), (0.8, 0.9));
        report.verdicts.push(Verdict::of(&figure, &ratios.collect::<Vec<_>>(), goals, false));
    }
    report.method.push(format!(
        "By turns a file of {} MiB is written to the file system and by a mount with -o rw, with \
         an fsync after each {} KiB, and after all of these one of {} MiB, with one fsync, each by \
         a program of its own. The time is that from the open to the end of the close.",
        SHORT / MIB,
        PIECE / KIB,
        WHOLE / MIB,
    ));
}
