//! Files that programs write: when writing begins, and when a title is made of what was written.
//!
//! Promise: the first byte that is written begins a working file with the bytes of the title. It
//! becomes the title when the last program that writes it has closed it; until then only this mount
//! shows it. A close returns when what was written survives a crash.

use std::ffi::OsStr;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use fuser::Errno;
use tactus_client::{Replace, Stat};

use crate::connections::Connections;
use crate::library::{Handle, LibraryFilesystem, Result};
use crate::nodes::ROOT;
use crate::open_file::{Content, OpenFile};
use crate::work::Work;

impl LibraryFilesystem {
    /// The connection for changes.
    pub(crate) fn changes(&self) -> Result<&Connections> {
        self.writing.as_ref().ok_or(Errno::EROFS)
    }

    /// An empty file for the title at `path`.
    pub(crate) fn new_work(&self, path: &str, replace: Replace) -> Result<Arc<Work>> {
        let begun = self.changes()?.ask(|reader| {
            let new = reader.client().working_file(path, replace)?;
            Ok(Work::new(new, Arc::clone(reader), Arc::clone(&self.wakefulness)))
        });
        // What the server alone may write.
        let refused = |errno: Errno| match errno.code() {
            code if code == Errno::EOPNOTSUPP.code() => Errno::EROFS,
            _ => errno,
        };
        begun.map(Arc::new).map_err(refused)
    }

    /// The working file of an open file. If there is none yet, it begins with the bytes of the
    /// title, or without any if `is_empty`.
    pub(crate) fn begin(&self, number: u64, open: &OpenFile, is_empty: bool) -> Result<Arc<Work>> {
        let _paths = self.steady_paths();
        let _changing = open.changing();
        let base = match open.content().ok_or(Errno::EIO)? {
            Content::Work(work) => {
                if is_empty {
                    work.truncate(0)?;
                }
                return Ok(work);
            }
            Content::Failed(errno) => return Err(errno),
            Content::Title(_) => None,
            Content::Written(file) => Some(file),
        };
        let path = self.path(number)?;
        let work = self.new_work(&path, Replace::Titles)?;
        if !is_empty {
            let base = match base {
                // Another door may have replaced it.
                Some(file) if self.stat(&path)?.file == open.file() => file,
                Some(_) => return Err(Errno::ESTALE),
                None => Arc::new(self.base(&path, open.file())?),
            };
            work.copy(&base)?;
        }
        let (parent, name) = self.nodes.name(number).ok_or(Errno::ESTALE)?;
        self.nodes.change_file(number, work.number());
        open.change(Content::Work(Arc::clone(&work)));
        self.unpublished.add(parent, &name, number);
        Ok(work)
    }

    /// Opens a title to be written anew.
    pub(crate) fn open_empty(&self, number: u64) -> Result<Arc<OpenFile>> {
        let opening = self.opening();
        if let Some(open) = self.nodes.open(number) {
            drop(opening);
            if open.backing().is_some() {
                // The kernel goes on reading this version, and looks the name up again.
                self.nodes.detach(number);
                return Err(Errno::ESTALE);
            }
            self.begin(number, &open, true)?;
            return Ok(open);
        }
        let path = self.path(number)?;
        let work = self.new_work(&path, Replace::Existing)?;
        let (parent, name) = self.nodes.name(number).ok_or(Errno::ESTALE)?;
        let open = Arc::new(OpenFile::work(Arc::clone(&work)));
        self.nodes.change_file(number, work.number());
        self.nodes.set_open(number, &open);
        self.unpublished.add(parent, &name, number);
        Ok(open)
    }

    /// Opens what has the name already, for a program that would create it.
    pub(crate) fn open_existing(
        &self,
        parent: u64,
        name: &OsStr,
        is_emptied: bool,
    ) -> Result<(u64, Arc<OpenFile>, Stat)> {
        let (number, stat) = self.look_up(parent, name)?;
        if stat.is_directory {
            return Err(Errno::EISDIR);
        }
        let open = match is_emptied {
            true => self.open_empty(number)?,
            false => self.open_for_change(number)?,
        };
        if open.backing().is_some() {
            return Err(Errno::ESTALE);
        }
        let stat = self.nodes.stat(number).unwrap_or(stat);
        Ok((number, open, stat))
    }

    /// The file of the title at `path`, if it is still the file `number`.
    fn base(&self, path: &str, number: u64) -> Result<File> {
        let (file, stat) = self.connections.ask(|reader| reader.client().open_file(path))?;
        if stat.file == number { Ok(file.into()) } else { Err(Errno::ESTALE) }
    }

    /// Calls `write` with the working file of a handle, which is new if writing was closed.
    fn with_work(
        &self,
        number: u64,
        handle: &Handle,
        mut write: impl FnMut(&Work) -> Result<bool>,
    ) -> Result<()> {
        if !handle.writes {
            return Err(Errno::EBADF);
        }
        if handle.was_published.load(Ordering::Acquire) {
            handle.is_shared.store(true, Ordering::Release);
        }
        while !write(&*self.begin_or_go_on(number, &handle.open)?)? {
            // It is becoming a title: what is written now begins the next one.
            drop(handle.open.changing());
        }
        Ok(())
    }

    fn begin_or_go_on(&self, number: u64, open: &OpenFile) -> Result<Arc<Work>> {
        match open.in_work() {
            Some(work) => Ok(work),
            None => self.begin(number, open, false),
        }
    }

    /// Writes all of `bytes`. Calls `answer` once when that cannot be refused any more, and may
    /// wait for the disk afterwards.
    pub(crate) fn write_at(
        &self,
        number: u64,
        handle: &Handle,
        offset: u64,
        bytes: &[u8],
        answer: &mut dyn FnMut(),
    ) -> Result<()> {
        self.with_work(number, handle, |work| work.write_at(offset, bytes, answer))
    }

    /// Allocates or frees blocks.
    pub(crate) fn allocate_blocks(
        &self,
        number: u64,
        handle: &Handle,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.with_work(number, handle, |work| work.allocate(mode, offset, len))
    }

    /// Sets the length of a file, which need not be open.
    pub(crate) fn set_len(&self, number: u64, len: u64) -> Result<()> {
        let (open, is_ours) = match self.nodes.open(number) {
            // The kernel reads the version before.
            Some(open) if open.backing().is_some() => {
                self.nodes.detach(number);
                return Err(Errno::ESTALE);
            }
            Some(open) => (open, false),
            None => (self.open_for_change(number)?, true),
        };
        open.add_writer();
        let done = loop {
            let work = match self.begin(number, &open, len == 0) {
                Ok(work) => work,
                Err(errno) => break Err(errno),
            };
            match work.truncate(len) {
                Ok(true) => break Ok(()),
                // It became a title meanwhile.
                Ok(false) => {}
                Err(errno) => break Err(errno),
            }
        };
        let is_last = open.remove_writer() == 0;
        if is_ours || is_last { done.and(self.publish(number, &open)) } else { done }
    }

    /// Sets the time of a file or a directory.
    pub(crate) fn set_time(&self, number: u64, modified: SystemTime) -> Result<()> {
        if let Some(work) = self.nodes.open(number).and_then(|open| open.in_work())
            && work.set_modified(modified)?
        {
            return Ok(());
        }
        let since = modified.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| Errno::EINVAL)?;
        let nanos = i64::try_from(since.as_nanos()).map_err(|_| Errno::EINVAL)?;
        if number == ROOT {
            // It has no name of its own.
            return Ok(());
        }
        let path = self.path(number)?;
        self.changes()?.ask(|reader| reader.client().set_modified(&path, nanos))
    }

    /// Returns when what was written by a handle survives a crash.
    pub(crate) fn synchronize(&self, handle: &Handle) -> Result<()> {
        match handle.open.content() {
            Some(Content::Work(work)) => work.sync(),
            Some(Content::Failed(errno)) if handle.writes => Err(errno),
            // Titles are durable.
            Some(Content::Failed(_) | Content::Title(_) | Content::Written(_)) | None => Ok(()),
        }
    }

    /// Calls `answer` when what was written by a handle survives a crash.
    pub(crate) fn synchronize_then(
        &self,
        handle: &Handle,
        answer: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        match handle.open.in_work() {
            Some(work) => work.sync_then(answer),
            None => answer(self.synchronize(handle)),
        }
    }

    /// The thread `closer` closes a descriptor of a handle. The kernel does not say whether it was
    /// the last one: a child of the program may have another, or a shell under another number. If
    /// no process has one that has used it, and none of their children, and no other handle can
    /// write, the file becomes a title now; otherwise at [`Self::release_handle`], which nobody
    /// waits for.
    pub(crate) fn close(&self, number: u64, handle: &Handle, closer: u32) -> Result<()> {
        if !handle.writes {
            return Ok(());
        }
        match handle.processes.have_open(number, closer) {
            Some(true) => return Ok(()),
            Some(false) if handle.open.writers() == 1 && !handle.is_shared() => {}
            Some(false) | None => return self.synchronize(handle),
        }
        match handle.open.content() {
            Some(Content::Work(work)) if !work.is_nameless() => {
                handle.was_published.store(true, Ordering::Release);
                self.publish(number, &handle.open)
            }
            Some(Content::Failed(errno)) => Err(errno),
            _ => Ok(()),
        }
    }

    /// The last descriptor of a handle was closed, and nothing is mapped any more.
    pub(crate) fn release_handle(&self, number: u64, handle: &Handle) {
        if !handle.writes || handle.open.remove_writer() > 0 {
            return;
        }
        if let Err(errno) = self.publish(number, &handle.open) {
            let path = self.path(number).unwrap_or_default();
            tracing::warn!(path, "what was written is no title: {errno:?}");
        }
    }

    /// Makes a title of a file that is being written.
    pub(crate) fn publish(&self, number: u64, open: &OpenFile) -> Result<()> {
        let _paths = self.steady_paths();
        let _changing = open.changing();
        let Some(work) = open.in_work().filter(|work| !work.is_nameless()) else { return Ok(()) };
        let published = work.publish();
        match published {
            Ok(()) => open.change(Content::Written(Arc::clone(&work.read))),
            Err(errno) => open.change(Content::Failed(errno)),
        }
        self.unpublished.remove(number);
        published
    }

    /// Makes all files that are written in a directory durable, with their names.
    pub(crate) fn synchronize_directory(&self, directory: u64) -> Result<()> {
        for known in self.unpublished.within(directory) {
            if let Some(work) = self.nodes.open(known.number).and_then(|open| open.in_work()) {
                work.sync()?;
            }
        }
        Ok(())
    }
}
