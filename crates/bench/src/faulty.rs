//! A disk that does what it is told to: fails, waits, forgets, and changes what it holds.
//!
//! Promise: without orders it is a quick and honest disk. It is a process of its own, on a loop
//! device as the emulated one, so that the server above it sees a block device, and the process can
//! be stopped.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tactus_core::units::Bytes;

use crate::command;
use crate::disk::exported_file::{BLOCK, Medium};
use crate::disk::loop_device::LoopDevice;
use crate::priority;
use crate::random::Random;

/// Blocks that begin with it are of a title's content, for [`Order::FailTitleWrites`].
pub const TITLE_MARK: &[u8; 8] = b"a title:";

/// What a faulty disk is told, one line each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Only asks for the counts.
    Count,
    /// Every read fails that touches these bytes; an empty range heals it.
    FailReads {
        /// Where they begin.
        at: u64,
        /// How many.
        len: u64,
    },
    /// Every write of title content fails, or none.
    FailTitleWrites(bool),
    /// The next flush fails, and only that one.
    FailFlush,
    /// So many of a thousand reads bring less than was asked for, or are interrupted. Only who
    /// reads the file behind the device sees that: see [`FaultyDisk::behind`].
    CutReads {
        /// How many.
        per_thousand: u64,
    },
    /// So many of a thousand requests take so much longer, and all behind them wait.
    Delay {
        /// How many.
        per_thousand: u64,
        /// How much longer.
        micros: u64,
    },
    /// Another bit in this byte.
    Flip {
        /// Which byte of the disk.
        at: u64,
        /// Which of its bits.
        bit: u8,
    },
    /// Two blocks of 4 KiB change places.
    Swap {
        /// Where one begins.
        one: u64,
        /// Where the other begins.
        other: u64,
    },
}

/// What it has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Requests that were failed.
    pub failed: u64,
}

/// Serves a faulty disk until standard input ends.
pub fn serve(size: Bytes) -> Result<()> {
    let medium = Arc::new(FaultyMedium::new(size)?);
    let loop_device = LoopDevice::build(Arc::clone(&medium))?;
    println!("ready {}", loop_device.device());
    for line in std::io::stdin().lines() {
        medium.obey(serde_json::from_str(&line?)?)?;
        println!("{}", serde_json::to_string(&medium.lock().counts)?);
    }
    Ok(())
}

struct FaultyMedium {
    size: Bytes,
    /// In memory only.
    content: File,
    state: Mutex<State>,
}

struct State {
    counts: Counts,
    unreadable: Range<u64>,
    no_titles: bool,
    no_flush: bool,
    cut_per_thousand: u64,
    per_thousand: u64,
    delay: Duration,
    random: Random,
}

impl State {
    /// Less, down to one block and a sector, as a device moves whole sectors.
    fn cut(&mut self, length: u32) -> u32 {
        let least = BLOCK as u64 + SECTOR;
        let sectors = u64::from(length).saturating_sub(least) / SECTOR;
        if sectors == 0 { length } else { (least + self.random.next() % sectors * SECTOR) as u32 }
    }
}

/// The least that a device moves.
const SECTOR: u64 = 512;

impl FaultyMedium {
    fn new(size: Bytes) -> Result<Self> {
        let content = rustix::fs::memfd_create("faulty-disk", rustix::fs::MemfdFlags::CLOEXEC)?;
        let content = File::from(content);
        content.set_len(size.0)?;
        let state = State {
            counts: Counts::default(),
            unreadable: 0..0,
            no_titles: false,
            no_flush: false,
            cut_per_thousand: 0,
            per_thousand: 0,
            delay: Duration::ZERO,
            random: Random::new(1),
        };
        Ok(Self { size, content, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of another thread ends the process; its state is as good as any.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn obey(&self, order: Order) -> Result<()> {
        let mut state = self.lock();
        match order {
            Order::Count => {}
            Order::FailReads { at, len } => state.unreadable = at..at + len,
            Order::FailTitleWrites(fail) => state.no_titles = fail,
            Order::FailFlush => state.no_flush = true,
            Order::CutReads { per_thousand } => state.cut_per_thousand = per_thousand,
            Order::Delay { per_thousand, micros } => {
                state.per_thousand = per_thousand;
                state.delay = Duration::from_micros(micros);
            }
            Order::Flip { at, bit } => {
                let mut byte = [0];
                self.content.read_exact_at(&mut byte, at)?;
                self.content.write_all_at(&[byte[0] ^ 1 << bit], at)?;
            }
            Order::Swap { one, other } => {
                let (mut first, mut second) = ([0; BLOCK], [0; BLOCK]);
                self.content.read_exact_at(&mut first, one)?;
                self.content.read_exact_at(&mut second, other)?;
                self.content.write_all_at(&first, other)?;
                self.content.write_all_at(&second, one)?;
            }
        }
        Ok(())
    }

    /// One after the other: what comes behind a slow request waits.
    fn wait(&self) {
        // The threads belong to the FUSE library; a disk needs no processor that others could keep.
        thread_local!(static HURRIED: () = hurry());
        HURRIED.with(|()| ());
        let mut state = self.lock();
        let delay = state.delay;
        if !delay.is_zero() && state.random.next() % 1000 < state.per_thousand {
            drop(state);
            std::thread::sleep(delay);
        }
    }
}

impl Medium for FaultyMedium {
    fn size(&self) -> Bytes {
        self.size
    }

    fn read(&self, at: u64, length: u32, reply: ReplyData) {
        self.wait();
        let mut state = self.lock();
        let mut length = length;
        if state.random.next() % 1000 < state.cut_per_thousand {
            state.counts.failed += 1;
            match state.random.next() % 4 {
                0 => return reply.error(Errno::EINTR),
                1 => return reply.error(Errno::EAGAIN),
                _ => length = state.cut(length),
            }
        }
        let Range { start, end } = state.unreadable.clone();
        if at < end && start < at + u64::from(length) {
            state.counts.failed += 1;
            return reply.error(Errno::EIO);
        }
        let mut bytes = vec![0; length as usize];
        match self.content.read_exact_at(&mut bytes, at) {
            Ok(()) => reply.data(&bytes),
            Err(_) => reply.error(Errno::EINVAL),
        }
    }

    fn write(&self, at: u64, data: &[u8], reply: ReplyWrite) {
        self.wait();
        let mut state = self.lock();
        state.counts.writes += 1;
        let is_title = || data.chunks(BLOCK).any(|block| block.starts_with(TITLE_MARK));
        if state.no_titles && is_title() {
            state.counts.failed += 1;
            return reply.error(Errno::EIO);
        }
        match self.content.write_all_at(data, at) {
            Ok(()) => reply.written(data.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn sync(&self, reply: ReplyEmpty) {
        self.wait();
        let mut state = self.lock();
        state.counts.flushes += 1;
        if std::mem::take(&mut state.no_flush) {
            state.counts.failed += 1;
            return reply.error(Errno::EIO);
        }
        reply.ok();
    }
}

/// Gives the calling thread SCHED_FIFO. Where that is refused the disk is slower on a busy machine.
fn hurry() {
    if let Err(error) = priority::fifo(PRIORITY) {
        eprintln!("the disk runs without SCHED_FIFO: {error:#}");
    }
}

/// Above the server's, whose disk it is.
const PRIORITY: u32 = 50;

/// Longer than a process of another test keeps the file system.
const RELEASE: Duration = Duration::from_secs(30);

/// A faulty disk in its own process, with ext4 on it, mounted.
#[derive(Debug)]
pub struct FaultyDisk {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    device: String,
    place: PathBuf,
}

impl FaultyDisk {
    /// Starts `bench` as a disk of `size`, and mounts its file system at `place`, which is there.
    pub fn start(bench: &Path, size: Bytes, place: &Path) -> Result<Self> {
        let mut child = Command::new(bench);
        child.arg("faulty-disk").arg("--size").arg(size.0.to_string());
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take();
        let output = child.stdout.take().context("the disk has no output")?;
        let mut answers = BufReader::new(output).lines();
        let first = answers.next().context("the disk ended before it was ready")??;
        let device = first.strip_prefix("ready ").context("the disk named no device")?.to_owned();
        let disk = Self { child, orders, answers, device, place: place.to_owned() };
        let features = "lazy_itable_init=1,lazy_journal_init=1,nodiscard";
        command::run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", features, &disk.device])?;
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&self) -> Result<()> {
        let place = self.place.to_string_lossy();
        command::run("mount", &["-o", "noatime,noinit_itable", &self.device, &place])?;
        Ok(())
    }

    /// Unmounts the file system, checks and repairs it, and mounts it again.
    pub fn repair(&self) -> Result<()> {
        self.unmount()?;
        let check = || Command::new("fsck.ext4").args(["-f", "-y", &self.device]).output();
        let mut checked = check()?;
        // 8: in use, by a process with a mount namespace of its own that began meanwhile.
        let until = Instant::now() + RELEASE;
        while checked.status.code() == Some(8) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            checked = check()?;
        }
        // 1: errors were corrected.
        ensure!(matches!(checked.status.code(), Some(0 | 1)), "{checked:?}");
        self.mount()
    }

    /// Waits for a process that was killed: the kernel gives the files of its io_uring back after
    /// its reads.
    fn unmount(&self) -> Result<()> {
        let place = self.place.to_string_lossy();
        let until = Instant::now() + RELEASE;
        loop {
            match command::run("umount", &[&place]) {
                Err(_) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                done => return done.map(drop),
            }
        }
    }

    /// Gives an order.
    pub fn order(&mut self, order: Order) -> Result<Counts> {
        let orders = self.orders.as_mut().context("the disk takes no orders")?;
        writeln!(orders, "{}", serde_json::to_string(&order)?)?;
        let answer = self.answers.next().context("the disk has ended")??;
        Ok(serde_json::from_str(&answer)?)
    }

    /// Where byte `at` of a file lies on the disk.
    pub fn position(&self, name: &str, at: u64) -> Result<u64> {
        let path = self.place.join(name);
        // A line of it: `0:  0..  255:  34816..  35071:  256:  last,eof`, in blocks.
        let listed = command::run("filefrag", &["-e", "-b4096", &path.to_string_lossy()])?;
        let block = at / BLOCK as u64;
        let found = listed.lines().find_map(|line| {
            let mut parts = line.split(':').skip(1).map(|part| {
                let (first, last) = part.split_once("..")?;
                Some((first.trim().parse::<u64>().ok()?, last.trim().parse::<u64>().ok()?))
            });
            let (logical, physical) = (parts.next()??, parts.next()??);
            (logical.0 <= block && block <= logical.1).then(|| block - logical.0 + physical.0)
        });
        let found = found.with_context(|| format!("byte {at} of {name} is nowhere:\n{listed}"))?;
        Ok(found * BLOCK as u64 + at % BLOCK as u64)
    }

    /// Bytes of the device.
    pub fn raw(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        File::open(&self.device)?.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }

    /// The file behind the block device: its folder and its name.
    pub fn behind(&self) -> (PathBuf, String) {
        crate::disk::loop_device::export_of(self.child.id())
    }

    /// Stops the process, so that no request is answered any more.
    pub fn hang(&self) -> Result<()> {
        Ok(kill_process(self.pid()?, Signal::STOP)?)
    }

    /// Lets it go on.
    pub fn go_on(&self) -> Result<()> {
        Ok(kill_process(self.pid()?, Signal::CONT)?)
    }

    /// Drops what the kernel has of a file in memory.
    pub fn forget(&self, name: &str) -> Result<()> {
        let file = File::open(self.place.join(name))?;
        file.sync_all()?;
        Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
    }

    fn pid(&self) -> Result<Pid> {
        Pid::from_raw(self.child.id() as i32).context("a process has a number")
    }
}

impl Drop for FaultyDisk {
    fn drop(&mut self) {
        let ended = self.go_on().and_then(|()| {
            self.unmount().or_else(|_| {
                command::run("umount", &["--lazy", &self.place.to_string_lossy()]).map(drop)
            })?;
            drop(self.orders.take());
            let status = self.child.wait()?;
            ensure!(status.success(), "it ended with {status}");
            Ok(())
        });
        if let Err(error) = ended {
            eprintln!("the faulty disk: {error:#}; `tactus-bench cleanup` takes down the rest");
        }
    }
}
