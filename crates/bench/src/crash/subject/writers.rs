//! Writers of whole titles, right and wrong ones, in as few lines as their protocols take.
//!
//! Promise: each differs from another in one step. The wrong ones are found out, or the replay is
//! worth nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fdatasync, linkat, open};

use super::{RecoveredSubject, Subject, files, seen};
use crate::aligned::Aligned;
use crate::crash::content::Version;
use crate::crash::history::{History, VolumeContents};
use crate::crash::medium::Fault;
use crate::crash::recorder::Recorder;
use crate::random::Random;

/// A writer by its steps.
#[derive(Clone, Copy, Debug)]
struct Writer {
    name: &'static str,
    method: &'static str,
    audio: bool,
    /// Write past the page cache to a file without a name.
    unnamed: bool,
    /// Flush the file before it has its name.
    flush_file: bool,
    /// Flush the folder afterwards.
    flush_folder: bool,
    faults: Faults,
}

/// Whether writes fail, and what the writer does about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Faults {
    None,
    /// Flushes again until it succeeds.
    Retried,
    /// Gives the title up.
    Final,
}

const NAMED: Writer = Writer {
    name: "rename",
    method: "write, rename",
    audio: false,
    unnamed: false,
    flush_file: false,
    flush_folder: false,
    faults: Faults::None,
};

/// All of them.
pub(super) fn all() -> Vec<Box<dyn Subject>> {
    let flushed = Writer { flush_file: true, ..NAMED };
    let whole = Writer { flush_folder: true, ..flushed };
    [
        NAMED,
        Writer { name: "fsync-rename", method: "write, fsync, rename", ..flushed },
        Writer {
            name: "fsync-rename-fsync",
            method: "write, fsync, rename, fsync the folder",
            audio: true,
            ..whole
        },
        Writer {
            name: "unnamed",
            method: "O_TMPFILE, O_DIRECT, fdatasync, linkat, fsync the folder",
            audio: true,
            unnamed: true,
            ..whole
        },
        Writer {
            name: "fsync-retried",
            method: "the same with rename; a failed fsync is tried again",
            faults: Faults::Retried,
            ..whole
        },
        Writer {
            name: "fsync-final",
            method: "the same; a failed fsync is final",
            audio: true,
            faults: Faults::Final,
            ..whole
        },
    ]
    .into_iter()
    .map(|writer| Box::new(writer) as Box<dyn Subject>)
    .collect()
}

/// Acts of one load, and names that they go to.
const ACTS: u64 = 40;
const NAMES: u64 = 16;
/// The longest title in blocks: 64 KiB.
const LENGTH_MAX: u64 = 16;
const BLOCK: u64 = 4096;
/// One act of so many meets a fault.
const FAULT_EVERY: u64 = 4;
/// A name that has not become a title's.
const UNFINISHED: &str = ".unfinished-";
/// Flushes before the most stubborn gives up.
const TRIES: u32 = 4;

impl Subject for Writer {
    fn name(&self) -> &str {
        self.name
    }

    fn method(&self) -> &str {
        self.method
    }

    fn audio(&self) -> bool {
        self.audio
    }

    fn load(&self, root: &Path, recorder: &Recorder<'_>, random: &mut Random) -> Result<()> {
        let mut buffer = Aligned::new((LENGTH_MAX * BLOCK) as usize);
        for number in 1..=ACTS {
            let name = format!("title-{:02}", random.next() % NAMES);
            if self.faults != Faults::None && random.next().is_multiple_of(FAULT_EVERY) {
                recorder.fail(Some(Fault::Data))?;
            }
            let gone = root.join(&name).exists() && random.next().is_multiple_of(8);
            let act = recorder.begin(&name, (!gone).then_some(number))?;
            let done = match gone {
                true => self.remove(root, &name),
                false => {
                    let length = (1 + random.next() % LENGTH_MAX) * BLOCK;
                    let bytes = Version::new(number, length).bytes(0, length);
                    let target = &mut buffer.bytes()[..bytes.len()];
                    target.copy_from_slice(&bytes);
                    self.put(root, &name, number, target)
                }
            };
            match done {
                Ok(()) => recorder.ack(&act)?,
                Err(error) if self.faults == Faults::None => return Err(error.into()),
                // The client is told that it has failed.
                Err(_) => {}
            }
            recorder.fail(None)?;
        }
        Ok(())
    }

    fn recover<'a>(&'a self, root: &'a Path) -> Result<Box<dyn RecoveredSubject + 'a>> {
        let (unfinished, titles): (Vec<_>, Vec<_>) =
            files(root)?.into_iter().partition(|(name, _)| name.starts_with(UNFINISHED));
        for (_, path) in unfinished {
            fs::remove_file(path)?;
        }
        Ok(Box::new(Titles(titles)))
    }
}

/// Titles by their names.
struct Titles(Vec<(String, PathBuf)>);

impl RecoveredSubject for Titles {
    fn look(&mut self, _history: &History) -> Result<VolumeContents> {
        let mut found = VolumeContents::default();
        for (name, path) in &self.0 {
            found.titles.insert(name.clone(), seen(path)?);
        }
        Ok(found)
    }
}

impl Writer {
    fn put(&self, root: &Path, name: &str, number: u64, bytes: &[u8]) -> io::Result<()> {
        let title = root.join(name);
        let unfinished = root.join(format!("{UNFINISHED}{number}"));
        if self.unnamed {
            let flags = OFlags::TMPFILE | OFlags::DIRECT | OFlags::WRONLY | OFlags::CLOEXEC;
            let mut file = File::from(open(root, flags, Mode::from_raw_mode(0o600))?);
            file.write_all(bytes)?;
            fdatasync(&file)?;
            let source = format!("/proc/self/fd/{}", file.as_raw_fd());
            let link = |to: &Path| linkat(CWD, &source, CWD, to, AtFlags::SYMLINK_FOLLOW);
            match title.exists() {
                false => link(&title)?,
                true => {
                    link(&unfinished)?;
                    fs::rename(&unfinished, &title)?;
                }
            }
        } else {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
            let written = file.write_all(bytes).and_then(|()| self.flush(&file));
            if let Err(error) = written {
                fs::remove_file(&unfinished)?;
                return Err(error);
            }
            fs::rename(&unfinished, &title)?;
        }
        self.flush_folder(root)
    }

    fn remove(&self, root: &Path, name: &str) -> io::Result<()> {
        fs::remove_file(root.join(name))?;
        self.flush_folder(root)
    }

    fn flush(&self, file: impl AsFd) -> io::Result<()> {
        if !self.flush_file {
            return Ok(());
        }
        let tries = if self.faults == Faults::Retried { TRIES } else { 1 };
        let mut flushed = Ok(());
        for _ in 0..tries {
            flushed = fdatasync(file.as_fd());
            if flushed.is_ok() {
                break;
            }
        }
        flushed.map_err(io::Error::from)
    }

    fn flush_folder(&self, root: &Path) -> io::Result<()> {
        if self.flush_folder {
            File::open(root)?.sync_all()?;
        }
        Ok(())
    }
}
