//! One client of `placement`: a program that works on small files as Bonnie or PostMark do.
//!
//! Promise: it does the same on titles of a server and on files of the kernel, with bytes of the
//! same seed, and both are on stable storage where the other one is. It says when it is ready,
//! begins when it gets a line, and says what that took.

mod files;

use std::collections::BTreeMap;
use std::io::{BufRead, Write, stdin, stdout};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::cpu::own_run_time;
use crate::random::Random;
use files::{Files, PlainFiles, ServedFiles};

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// One file: written and read by characters and by blocks, changed, and read at random places.
    Bonnie,
    /// Many small files: made, read, appended to and removed.
    Postmark,
}

/// The options of a client.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The work of the client.
    #[arg(long)]
    pub load: Load,
    /// The server's socket; without it, files of the kernel are used.
    #[arg(long)]
    pub socket: Option<PathBuf>,
    /// Where files of the kernel are.
    #[arg(long, default_value = ".")]
    pub directory: PathBuf,
    /// Its number, for the names of its files and its seed.
    #[arg(long)]
    pub client: u64,
    /// The cores on which it may run.
    #[arg(long, value_delimiter = ',')]
    pub cores: Vec<usize>,
    /// How often it does all of it.
    #[arg(long)]
    pub passes: u32,
    /// How much it does: accesses at random places, or transactions.
    #[arg(long)]
    pub count: u32,
}

/// The time that the work took.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// By the monotonic clock, in nanoseconds.
    pub begun: u64,
    /// The same.
    pub ended: u64,
    /// Run time of the client, in nanoseconds.
    pub cpu: u64,
    /// Time of each part, in nanoseconds.
    pub parts: BTreeMap<String, u64>,
}

/// What a client says when it can begin.
pub const READY: &str = "ready";

/// The file of Bonnie, and its block, in bytes (`Chunk` of Bonnie 1.2).
const FILE: usize = 128 << 10;
const BLOCK: usize = 16 << 10;
/// What the C library collects of single characters before it writes them, in bytes.
const STDIO: usize = 4 << 10;
/// One of so many accesses at random places changes its block (`UpdateSeek` of Bonnie).
const UPDATE: u32 = 10;
/// Files of PostMark, and their sizes in bytes, as its defaults are.
const POOL: usize = 50;
const SIZES: (usize, usize) = (500, 10_000);

/// Runs one client.
pub fn run(options: &Options) -> Result<()> {
    let mut cores = CpuSet::new();
    options.cores.iter().for_each(|&core| cores.set(core));
    sched_setaffinity(None, &cores).context("cannot choose the cores of a client")?;
    let files: Box<dyn Files> = match &options.socket {
        Some(socket) => Box::new(ServedFiles::connect(socket)?),
        None => Box::new(PlainFiles::new(&options.directory)?),
    };
    writeln!(stdout(), "{READY}")?;
    stdout().flush()?;
    let told = stdin().lock().read_line(&mut String::new())?;
    ensure!(told > 0, "the bench has ended");
    let outcome = work(options, files.as_ref())?;
    writeln!(stdout(), "{}", serde_json::to_string(&outcome)?)?;
    Ok(())
}

/// Does all of it.
fn work(options: &Options, files: &dyn Files) -> Result<Outcome> {
    let mut random = Random::new(options.client);
    let mut outcome = Outcome { begun: clock::now().0, ..Outcome::default() };
    let cpu = own_run_time()?;
    for _ in 0..options.passes {
        match options.load {
            Load::Bonnie => bonnie(options, files, &mut random, &mut outcome)?,
            Load::Postmark => postmark(options, files, &mut random, &mut outcome)?,
        }
    }
    outcome.cpu = own_run_time()?.0 - cpu.0;
    outcome.ended = clock::now().0;
    Ok(outcome)
}

impl Outcome {
    /// Does `part`, and adds its time.
    fn timed(&mut self, name: &str, part: impl FnOnce() -> Result<()>) -> Result<()> {
        let begun = Instant::now();
        part().with_context(|| name.to_owned())?;
        *self.parts.entry(name.to_owned()).or_default() += begun.elapsed().as_nanos() as u64;
        Ok(())
    }
}

/// The parts of Bonnie, in its order. Each written file is on stable storage at the end of its
/// part.
fn bonnie(
    options: &Options,
    files: &dyn Files,
    random: &mut Random,
    outcome: &mut Outcome,
) -> Result<()> {
    let name = format!("bonnie-{}", options.client);
    let first = random.next() as u8;
    outcome.timed("write by characters", || {
        files.write(&name, FILE, STDIO, &mut |at, piece| {
            for (nth, byte) in piece.iter_mut().enumerate() {
                *byte = character(first, at + nth);
            }
        })
    })?;
    outcome.timed("change", || files.change(&name, FILE, BLOCK))?;
    let changed = |at: usize| match at % BLOCK {
        0 => !character(first, at),
        _ => character(first, at),
    };
    let mut sum = 0_u64;
    outcome.timed("read by characters", || {
        files.read(&name, FILE, STDIO, &mut |_, piece| {
            sum = piece.iter().fold(sum, |sum, &byte| sum + u64::from(byte));
        })
    })?;
    let wanted: u64 = (0..FILE).map(|at| u64::from(changed(at))).sum();
    ensure!(sum == wanted, "these are not the bytes that were written");
    outcome.timed("write by blocks", || {
        files.write(&name, FILE, BLOCK, &mut |at, piece| piece[0] = character(first, at))
    })?;
    let mut blocks = 0;
    outcome.timed("read by blocks", || {
        files.read(&name, FILE, BLOCK, &mut |at, piece| {
            blocks += usize::from(piece[0] == character(first, at));
        })
    })?;
    ensure!(blocks == FILE / BLOCK, "these are not the blocks that were written");
    let places = (0..options.count).map(|nth| {
        let block = random.next() as usize % (FILE / BLOCK);
        (block * BLOCK, nth % UPDATE == UPDATE - 1)
    });
    let places: Vec<_> = places.collect();
    outcome.timed("random accesses", || files.access(&name, FILE, BLOCK, &places))?;
    outcome.timed("remove", || files.remove(&name))
}

/// The byte of Bonnie's file at `at`.
fn character(first: u8, at: usize) -> u8 {
    first.wrapping_add((at % 251) as u8)
}

/// PostMark: a pool of files, transactions of two halves, and an end without files. Each half has
/// the same chance, as by its defaults.
fn postmark(
    options: &Options,
    files: &dyn Files,
    random: &mut Random,
    outcome: &mut Outcome,
) -> Result<()> {
    let mut made = 0;
    let mut create = |random: &mut Random, outcome: &mut Outcome| -> Result<(String, usize)> {
        let name = format!("postmark-{}-{made}", options.client);
        made += 1;
        let len = size(random);
        let byte = random.next() as u8;
        outcome
            .timed("create", || files.write(&name, len, BLOCK, &mut |_, piece| piece.fill(byte)))?;
        Ok((name, len))
    };
    let pool = (0..POOL.min(options.count as usize)).map(|_| create(random, outcome));
    let mut pool = pool.collect::<Result<Vec<_>>>()?;
    for _ in 0..options.count {
        let at = random.next() as usize % pool.len();
        if random.next().is_multiple_of(2) {
            let (name, len) = &pool[at];
            outcome.timed("read", || files.read(name, *len, BLOCK, &mut |_, _| ()))?;
        } else {
            let more = size(random) / 4;
            let (name, len) = &mut pool[at];
            outcome.timed("append", || files.append(name, *len, more))?;
            *len += more;
        }
        // The pool never becomes empty: a file that is removed leaves others.
        if random.next().is_multiple_of(2) || pool.len() < 2 {
            pool.push(create(random, outcome)?);
        } else {
            let (name, _) = pool.swap_remove(at);
            outcome.timed("remove", || files.remove(&name))?;
        }
    }
    for (name, _) in pool {
        outcome.timed("remove", || files.remove(&name))?;
    }
    Ok(())
}

fn size(random: &mut Random) -> usize {
    SIZES.0 + random.next() as usize % (SIZES.1 - SIZES.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(load: Load) -> Options {
        let (socket, directory, cores) = (None, PathBuf::new(), vec![]);
        Options { load, socket, directory, client: 3, cores, passes: 2, count: 40 }
    }

    #[test]
    fn both_loads_do_all_of_their_parts_and_leave_no_file() {
        let place = tempfile::tempdir().unwrap();
        let files = PlainFiles::new(place.path()).unwrap();
        for (load, parts) in [(Load::Bonnie, 7), (Load::Postmark, 4)] {
            let outcome = work(&options(load), &files).unwrap();
            assert_eq!(outcome.parts.len(), parts, "{outcome:?}");
            let sum: u64 = outcome.parts.values().sum();
            assert!(sum <= outcome.ended - outcome.begun && outcome.cpu > 0, "{outcome:?}");
            assert_eq!(place.path().read_dir().unwrap().count(), 0);
        }
    }

    /// A way that loses a change is found.
    #[test]
    fn bonnie_reads_what_it_has_written() {
        struct Forgetful(PlainFiles);

        impl Files for Forgetful {
            fn write(
                &self,
                name: &str,
                len: usize,
                piece: usize,
                fill: &mut dyn FnMut(usize, &mut [u8]),
            ) -> Result<()> {
                self.0.write(name, len, piece, fill)
            }

            fn read(
                &self,
                name: &str,
                len: usize,
                piece: usize,
                take: &mut dyn FnMut(usize, &[u8]),
            ) -> Result<()> {
                self.0.read(name, len, piece, take)
            }

            fn change(&self, _name: &str, _len: usize, _piece: usize) -> Result<()> {
                Ok(())
            }

            fn access(
                &self,
                _name: &str,
                _len: usize,
                _piece: usize,
                _places: &[(usize, bool)],
            ) -> Result<()> {
                Ok(())
            }

            fn append(&self, _name: &str, _len: usize, _more: usize) -> Result<()> {
                Ok(())
            }

            fn remove(&self, _name: &str) -> Result<()> {
                Ok(())
            }
        }

        let place = tempfile::tempdir().unwrap();
        let files = Forgetful(PlainFiles::new(place.path()).unwrap());
        let error = work(&options(Load::Bonnie), &files).unwrap_err();
        assert!(error.to_string().contains("not the bytes"), "{error:#}");
    }
}
