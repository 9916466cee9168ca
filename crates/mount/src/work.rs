//! A file that programs write, before it is a title: the descriptors of its working file.
//!
//! Promise: bytes are written and read by the kernel's page cache of the file itself. No byte is
//! written without the server's permission for its length, and none after writing was closed. An
//! error of a flush is final, and so is that of a write whose program had its answer before. A file
//! whose last write has failed is flushed by nothing, and becomes no title unless it was flushed
//! before.
//!
//! A program need not wait until the file has the bytes of a long write: it has its answer when
//! they are sure to have room. Whatever reads, flushes, measures or changes the file afterwards
//! waits for them.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fuser::Errno;
use rustix::fs::{FallocateFlags, Timespec, Timestamps, UTIME_OMIT};
use tactus_client::{Error, NewWorkingFile, Stat, WorkingFile};
use tactus_sys::file::begin_write_back;

use crate::file_writer::FileWriter;
use crate::habit::FlushHabit;
use crate::reader::{Reader, is_gone};
use crate::trial::Trial;
use crate::wakefulness::Wakefulness;

/// A file that is being written.
pub(crate) struct Work {
    working: WorkingFile,
    /// None when no byte may be written any more.
    write: RwLock<Option<File>>,
    pub(crate) read: Arc<File>,
    /// Its connection lives as long.
    _reader: Arc<Reader>,
    wakefulness: Arc<Wakefulness>,
    /// Held by a change until the file has it: the program may have its answer before.
    changing: Mutex<FileWriter>,
    progress: Mutex<Progress>,
    ahead: Mutex<FlushAhead>,
    /// Bytes since the last flush.
    unsynced: AtomicU64,
    /// Bytes since the disk was last told to begin.
    unsent: AtomicU64,
    /// The error number of the last write; 0 if it was done.
    refusal: AtomicI32,
    /// That of a write whose program had its answer before; 0 if there is none.
    loss: AtomicI32,
    /// It has lost its name: nothing is made of it.
    is_nameless: AtomicBool,
}

/// What a flush changes.
#[derive(Default)]
struct Progress {
    /// The server makes a title of it after a crash.
    is_kept: bool,
    has_failed: bool,
    is_published: bool,
}

/// A flush that has begun before the program requests it.
#[derive(Default)]
struct FlushAhead {
    habit: FlushHabit,
    /// Whether the program is faster when threads of the mount stay awake for it, and whether they
    /// do.
    trial: Trial,
    stays_awake: bool,
    is_under_way: bool,
    /// It includes every change that a program has its answer to.
    covers_all: bool,
    /// What was requested meanwhile.
    requests: Vec<FlushAnswer>,
}

/// Gets the end of a flush.
type FlushAnswer = Box<dyn FnOnce(Result<(), Errno>) + Send>;

impl Work {
    pub(crate) fn new(
        new: NewWorkingFile,
        reader: Arc<Reader>,
        wakefulness: Arc<Wakefulness>,
    ) -> Self {
        let NewWorkingFile { working, write, read } = new;
        Self {
            working,
            write: RwLock::new(Some(write)),
            read: Arc::new(read),
            _reader: reader,
            wakefulness,
            changing: Mutex::default(),
            progress: Mutex::default(),
            ahead: Mutex::default(),
            unsynced: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            refusal: AtomicI32::new(0),
            loss: AtomicI32::new(0),
            is_nameless: AtomicBool::new(false),
        }
    }

    /// The number of the file.
    pub(crate) fn number(&self) -> u64 {
        self.working.number()
    }

    /// The facts as of a title.
    pub(crate) fn stat(&self) -> Result<Stat, Errno> {
        self.settle();
        facts(&self.read, self.number())
    }

    /// Reads up to `len` bytes, fewer only at the end of the file.
    pub(crate) fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.settle();
        read_at(&self.read, offset, len)
    }

    pub(crate) fn is_nameless(&self) -> bool {
        self.is_nameless.load(Ordering::Acquire)
    }

    /// The bytes of `base`, which is empty no more afterwards.
    pub(crate) fn copy(&self, base: &File) -> Result<(), Errno> {
        let len = base.metadata()?.len();
        if len == 0 {
            return Ok(());
        }
        let write = self.write();
        let write = write.as_ref().ok_or(Errno::EIO)?;
        self.permit(len)?;
        let changing = self.changing();
        let mut from = 0;
        while from < len {
            let (mut at, left) = (from, usize::try_from(len - from).unwrap_or(usize::MAX));
            // The file systems that can, share the blocks.
            match rustix::fs::copy_file_range(base, Some(&mut from), write, Some(&mut at), left) {
                Ok(0) => return Err(Errno::EIO),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(Errno::from_i32(errno.raw_os_error())),
            }
        }
        self.note_change(&changing, len);
        Ok(())
    }

    /// Writes all of `bytes`. Calls `answer` once when the write cannot be refused any more, which
    /// is before the file has the bytes if they are many; after that, this may wait for the disk.
    /// False if writing was closed.
    pub(crate) fn write_at(
        &self,
        offset: u64,
        bytes: &[u8],
        answer: &mut dyn FnMut(),
    ) -> Result<bool, Errno> {
        let written = self.write_all_at(offset, bytes, answer).inspect_err(|errno| {
            self.refusal.store(errno.code(), Ordering::Relaxed);
        });
        match written? {
            None => return Ok(false),
            Some(true) => self.flush_ahead(),
            Some(false) => self.send(offset + bytes.len() as u64),
        }
        Ok(true)
    }

    /// As [`Self::write_at`]. Returns whether to flush ahead; none if writing was closed.
    fn write_all_at(
        &self,
        offset: u64,
        bytes: &[u8],
        answer: &mut dyn FnMut(),
    ) -> Result<Option<bool>, Errno> {
        let write = self.write();
        let Some(file) = write.as_ref() else { return Ok(None) };
        let len = bytes.len() as u64;
        self.permit(offset.checked_add(len).ok_or(Errno::EFBIG)?)?;
        // One after the other, as the programs have made them: they may overlap.
        let mut changing = self.changing();
        self.check_loss()?;
        // What waits for the disk in any case: then the program requests its flush meanwhile.
        let passes = changing.can_pass(offset, bytes.len()) && self.ahead().habit.expects_flush();
        let is_early = passes || bytes.len() >= EARLY_BYTES;
        let mut is_flushed = false;
        let mut accept = |changing: &MutexGuard<'_, FileWriter>| {
            // Before the answer: the next write may be refused at once.
            self.refusal.store(0, Ordering::Relaxed);
            is_flushed = self.expects_flush(changing);
            answer();
        };
        if is_early {
            accept(&changing);
        }
        let written = match passes {
            true => changing.write_past(file, bytes, offset),
            false => changing.write(file, bytes, offset),
        };
        self.note_change(&changing, len);
        self.unsent.fetch_add(len, Ordering::Relaxed);
        match written {
            Ok(()) if is_early => {}
            Ok(()) => accept(&changing),
            Err(error) if is_early => {
                let errno = Errno::from(error);
                tracing::warn!("bytes of a file that is being written are lost: {errno:?}");
                self.loss.store(errno.code(), Ordering::Relaxed);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(Some(is_flushed))
    }

    /// Whether the program is expected to flush the write that it has no answer to yet. If so, what
    /// is requested from then on waits for [`Self::flush_ahead`], which the caller must call.
    fn expects_flush(&self, _changing: &MutexGuard<'_, FileWriter>) -> bool {
        let mut ahead = self.ahead();
        let is_expected = ahead.habit.write() && !ahead.is_under_way;
        ahead.is_under_way |= is_expected;
        ahead.covers_all = is_expected;
        is_expected
    }

    /// Flushes, and answers those who have requested it meanwhile.
    fn flush_ahead(&self) {
        let synced = self.sync();
        let mut ahead = self.ahead();
        (ahead.is_under_way, ahead.covers_all) = (false, false);
        let requests = std::mem::take(&mut ahead.requests);
        let stays_awake = ahead.trial.end_period(Instant::now());
        ahead.stays_awake = stays_awake;
        drop(ahead);
        for answer in requests {
            answer(synced);
        }
        if stays_awake {
            // The program is about to write again.
            self.wakefulness.await_request();
        }
    }

    /// Lets the disk begin with what was written up to `end`, if it is much: now, and not with the
    /// flush.
    fn send(&self, end: u64) {
        if self.unsent.load(Ordering::Relaxed) < SENT_BYTES {
            return;
        }
        self.unsent.store(0, Ordering::Relaxed);
        // What this finds out, the next flush does as well.
        begin_write_back(&self.read, end.saturating_sub(SENT_BYTES), SENT_BYTES).ok();
    }

    /// The file has a change of `bytes` by now. After the change: a flush that began before may
    /// have missed it.
    fn note_change(&self, _changing: &MutexGuard<'_, FileWriter>, bytes: u64) {
        self.unsynced.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sets the length. False if writing was closed.
    pub(crate) fn truncate(&self, len: u64) -> Result<bool, Errno> {
        let write = self.write();
        let Some(file) = write.as_ref() else { return Ok(false) };
        self.permit(len)?;
        self.change(|| Ok(file.set_len(len)?))?;
        // The program has given up what it could not write.
        self.refusal.store(0, Ordering::Relaxed);
        Ok(true)
    }

    /// Allocates or frees blocks. False if writing was closed.
    pub(crate) fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<bool, Errno> {
        let write = self.write();
        let Some(file) = write.as_ref() else { return Ok(false) };
        let flags = FallocateFlags::from_bits(mode).ok_or(Errno::EOPNOTSUPP)?;
        self.permit(offset.checked_add(len).ok_or(Errno::EFBIG)?)?;
        self.change(|| {
            let done = rustix::fs::fallocate(file, flags, offset, len);
            done.map_err(|errno| Errno::from_i32(errno.raw_os_error()))
        })?;
        Ok(true)
    }

    /// Sets the time of the last change.
    pub(crate) fn set_modified(&self, modified: SystemTime) -> Result<bool, Errno> {
        let write = self.write();
        let Some(file) = write.as_ref() else { return Ok(false) };
        let since = modified.duration_since(UNIX_EPOCH).map_err(|_| Errno::EINVAL)?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec {
                tv_sec: i64::try_from(since.as_secs()).map_err(|_| Errno::EINVAL)?,
                tv_nsec: since.subsec_nanos().into(),
            },
        };
        self.change(|| {
            let set = rustix::fs::futimens(file, &times);
            set.map_err(|errno| Errno::from_i32(errno.raw_os_error()))
        })?;
        Ok(true)
    }

    /// Makes a change that is no write, after all writes before it.
    fn change(&self, change: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let changing = self.changing();
        self.ahead().covers_all = false;
        let changed = change();
        self.note_change(&changing, 1);
        changed
    }

    /// Calls `answer` when all that was written before survives a crash, as [`Self::sync`] does:
    /// by a flush of its own, or at the end of the one that has begun before this request.
    pub(crate) fn sync_then(&self, answer: impl FnOnce(Result<(), Errno>) + Send + 'static) {
        let mut ahead = self.ahead();
        ahead.habit.flush();
        if ahead.covers_all {
            let is_answered = Arc::new(AtomicBool::new(false));
            let told = Arc::clone(&is_answered);
            ahead.requests.push(Box::new(move |synced| {
                answer(synced);
                told.store(true, Ordering::Release);
            }));
            let stays_awake = ahead.stays_awake;
            drop(ahead);
            if stays_awake {
                self.wakefulness.await_flush(|| is_answered.load(Ordering::Acquire));
            }
            return;
        }
        drop(ahead);
        answer(self.sync());
    }

    /// Returns when all that was written before survives a crash, under its name if it has one.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        self.settle();
        let mut progress = self.progress();
        if progress.has_failed {
            return Err(Errno::EIO);
        }
        if progress.is_published {
            return Ok(());
        }
        self.check_last_write()?;
        let unsynced = self.unsynced.swap(0, Ordering::Relaxed);
        if unsynced == 0 && (progress.is_kept || self.is_nameless()) {
            return Ok(());
        }
        let synced = self.flush(&mut progress, unsynced);
        // The kernel says once that bytes are lost: nobody may hear of success afterwards.
        progress.has_failed = synced.is_err();
        synced
    }

    fn flush(&self, progress: &mut Progress, unsynced: u64) -> Result<(), Errno> {
        let is_known = progress.is_kept || self.is_nameless();
        self.unsent.store(0, Ordering::Relaxed);
        if is_known || unsynced > ALONE_BYTES {
            let flushed = rustix::fs::fdatasync(&*self.read);
            if let Err(errno) = flushed {
                // The server finds out by itself what this means for the volume.
                self.working.sync(Some(patience(0))).ok();
                return Err(Errno::from_i32(errno.raw_os_error()));
            }
        }
        if !is_known {
            self.working.sync(Some(patience(unsynced))).map_err(|error| number_of(&error))?;
            progress.is_kept = true;
        }
        Ok(())
    }

    /// Half a file is flushed by nobody, and becomes no title.
    fn check_last_write(&self) -> Result<(), Errno> {
        self.check_loss()?;
        checked(&self.refusal)
    }

    fn check_loss(&self) -> Result<(), Errno> {
        checked(&self.loss)
    }

    /// Makes a title of it. No byte can be written from here on.
    pub(crate) fn publish(&self) -> Result<(), Errno> {
        *self.write.write().unwrap_or_else(PoisonError::into_inner) = None;
        // Who flushes it meanwhile waits for the title.
        let mut progress = self.progress();
        if progress.has_failed {
            return Err(Errno::EIO);
        }
        // What was flushed stays, whatever happened to the bytes after it.
        if !progress.is_kept
            && let Err(errno) = self.check_last_write()
        {
            self.forget_name().ok();
            return Err(errno);
        }
        let len = self.read.metadata().map_or(0, |about| about.len());
        let published = self.working.publish(Some(patience(len)));
        progress.is_published = published.is_ok();
        progress.has_failed = published.is_err();
        published.map_err(|error| number_of(&error))?;
        // The title is what was flushed, and the program has not heard of the rest yet.
        self.check_loss()
    }

    /// It gets another name.
    pub(crate) fn retarget(&self, path: &str) -> Result<(), Errno> {
        let _progress = self.progress();
        self.working.retarget(path).map_err(|error| number_of(&error))
    }

    /// It loses its name, and nothing is made of it. Programs that have it open go on.
    pub(crate) fn forget_name(&self) -> Result<(), Errno> {
        self.is_nameless.store(true, Ordering::Release);
        self.working.forget_name().map_err(|error| number_of(&error))
    }

    /// Lets the file be as long.
    fn permit(&self, len: u64) -> Result<(), Errno> {
        if len <= self.working.permitted() {
            return Ok(());
        }
        self.working.grow(len).map_err(|error| number_of(&error))
    }

    fn write(&self) -> RwLockReadGuard<'_, Option<File>> {
        self.write.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// While the guard lives, no other change is made.
    fn changing(&self) -> MutexGuard<'_, FileWriter> {
        lock(&self.changing)
    }

    /// Waits until the file has all changes that programs have their answers to.
    fn settle(&self) {
        drop(self.changing());
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        lock(&self.progress)
    }

    fn ahead(&self) -> MutexGuard<'_, FlushAhead> {
        lock(&self.ahead)
    }
}

/// An error number that was stored, as an error.
fn checked(number: &AtomicI32) -> Result<(), Errno> {
    match number.load(Ordering::Relaxed) {
        0 => Ok(()),
        number => Err(Errno::from_i32(number)),
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The facts of a file, as of a title.
pub(crate) fn facts(file: &File, number: u64) -> Result<Stat, Errno> {
    let about = file.metadata()?;
    let modified = about.mtime().saturating_mul(1_000_000_000).saturating_add(about.mtime_nsec());
    Ok(Stat { len: about.len(), modified, file: number, ..Stat::default() })
}

/// Reads up to `len` bytes, fewer only at the end of the file.
pub(crate) fn read_at(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let (mut bytes, mut done) = (vec![0; len], 0);
    while done < len {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// The error number for the program.
fn number_of(error: &Error) -> Errno {
    if is_gone(error) { Errno::ENOTCONN } else { Errno::from_i32(error.errno()) }
}

/// How long a flush of `bytes` may take: a disk that writes slower is taken for one that hangs.
fn patience(bytes: u64) -> Duration {
    LEAST_PATIENCE + Duration::from_secs(bytes / SLOWEST)
}

/// As for a read.
const LEAST_PATIENCE: Duration = Duration::from_secs(20);

/// Bytes per second.
const SLOWEST: u64 = 10_000_000;

/// Writes of fewer bytes are answered when the file has them: a copy of them takes no longer than
/// to wake another thread.
const EARLY_BYTES: usize = 128 << 10;

/// Bytes after which the disk begins to write.
const SENT_BYTES: u64 = 8 << 20;

/// With fewer bytes the server's flush is the only one.
const ALONE_BYTES: u64 = 1 << 20;
