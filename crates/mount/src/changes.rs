//! Names that programs change: files and directories that appear, disappear and are renamed.
//!
//! Promise: the server makes each change of a title or a directory, durable and seen by all doors,
//! before the program's call returns. A file that is being written follows its name.

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::{Errno, RenameFlags};
use tactus_client::{Replace, Stat};

use crate::library::{LibraryFilesystem, Result, name_of};
use crate::open_file::OpenFile;

impl LibraryFilesystem {
    /// Creates a file under a name that is free, and opens it. `EEXIST` if it is not free.
    pub(crate) fn create_file(
        &self,
        parent: u64,
        name: &OsStr,
    ) -> Result<(u64, Arc<OpenFile>, Stat)> {
        let name = name_of(name)?;
        let _paths = self.steady_paths();
        if self.written(parent, name).is_some() {
            return Err(Errno::EEXIST);
        }
        let work = self.new_work(&self.path_of(parent, name)?, Replace::Nothing)?;
        let stat = work.stat()?;
        let open = Arc::new(OpenFile::work(work));
        let number = self.nodes.enter(parent, name, &stat).ok_or(Errno::ESTALE)?;
        self.nodes.set_open(number, &open);
        self.unpublished.add(parent, name, number);
        Ok((number, open, stat))
    }

    /// Creates an empty title.
    pub(crate) fn make_file(&self, parent: u64, name: &OsStr) -> Result<(u64, Stat)> {
        let (number, open, stat) = self.create_file(parent, name)?;
        self.publish(number, &open)?;
        Ok((number, stat))
    }

    pub(crate) fn make_directory(&self, parent: u64, name: &OsStr) -> Result<(u64, Stat)> {
        let path = self.path_of(parent, name_of(name)?)?;
        self.changes()?.ask(|reader| reader.client().make_directory(&path))?;
        self.look_up(parent, name)
    }

    /// Removes a file. Programs that have it open go on.
    pub(crate) fn remove_file(&self, parent: u64, name: &OsStr) -> Result<()> {
        let name = name_of(name)?;
        let path = self.path_of(parent, name)?;
        let was_written = self.forget_written(parent, name)?;
        match self.changes()?.ask(|reader| reader.client().remove(&path)) {
            Err(errno) if was_written && errno.code() == Errno::ENOENT.code() => Ok(()),
            done => done,
        }
    }

    pub(crate) fn remove_directory(&self, parent: u64, name: &OsStr) -> Result<()> {
        let path = self.path_of(parent, name_of(name)?)?;
        if self.has_written_below(&path) {
            return Err(Errno::ENOTEMPTY);
        }
        self.changes()?.ask(|reader| reader.client().remove_directory(&path))
    }

    /// Renames a file or a directory.
    pub(crate) fn rename_entry(
        &self,
        (parent, name): (u64, &OsStr),
        (new_parent, new_name): (u64, &OsStr),
        flags: RenameFlags,
    ) -> Result<()> {
        let (name, new_name) = (name_of(name)?, name_of(new_name)?);
        let replace = match flags {
            flags if flags.is_empty() => Replace::Titles,
            RenameFlags::RENAME_NOREPLACE => Replace::Nothing,
            _ => return Err(Errno::EINVAL),
        };
        let is_directory = self.written(parent, name).is_none()
            && self.stat(&self.path_of(parent, name)?).is_ok_and(|stat| stat.is_directory);
        let _alone = is_directory.then(|| self.changing_paths());
        let _paths = (!is_directory).then(|| self.steady_paths());
        let (from, to) = (self.path_of(parent, name)?, self.path_of(new_parent, new_name)?);
        if from == to {
            return Ok(());
        }
        let is_written = self.written(new_parent, new_name).is_some();
        if replace == Replace::Nothing && (is_written || self.stat(&to).is_ok()) {
            return Err(Errno::EEXIST);
        }
        let source = self.written(parent, name).map(|(number, _)| number);
        let open = source.and_then(|number| self.nodes.open(number));
        let _changing = open.as_ref().map(|open| open.changing());
        // It may have become a title meanwhile: nobody waits for the end of a file that a child of
        // the program may still write.
        let work = open.as_ref().and_then(|open| open.in_work());
        let source = source.filter(|_| work.is_some());
        let title = match self.stat(&from) {
            Ok(stat) => Some(stat),
            Err(errno) if source.is_some() && errno.code() == Errno::ENOENT.code() => None,
            Err(errno) => return Err(errno),
        };
        if title.is_none() && self.stat(&to).is_ok_and(|stat| stat.is_directory) {
            return Err(Errno::EISDIR);
        }
        if is_written {
            self.forget_written(new_parent, new_name)?;
        }
        if let Some(stat) = &title {
            self.rename_stored(&from, &to, stat, replace)?;
            if source.is_none() {
                let number = self.nodes.number(parent, name, stat);
                self.nodes.rename(number, new_parent, new_name);
            }
        }
        if let Some(number) = source {
            if let Some(work) = work {
                work.retarget(&to)?;
            }
            self.nodes.rename(number, new_parent, new_name);
            self.unpublished.add(new_parent, new_name, number);
        }
        if title.is_some_and(|stat| stat.is_directory) {
            self.follow(&to)?;
        }
        Ok(())
    }

    /// Renames what the server knows. A directory replaces an empty one.
    fn rename_stored(&self, from: &str, to: &str, stat: &Stat, replace: Replace) -> Result<()> {
        let changes = self.changes()?;
        if stat.is_directory && replace == Replace::Titles {
            match self.stat(to) {
                Ok(found) if found.is_directory => {
                    if self.has_written_below(to) {
                        return Err(Errno::ENOTEMPTY);
                    }
                    changes.ask(|reader| reader.client().remove_directory(to))?;
                }
                Ok(_) => return Err(Errno::ENOTDIR),
                Err(_) => {}
            }
        }
        changes.ask(|reader| reader.client().rename(from, to, replace))
    }

    /// The files that are written below a directory follow it to its new path.
    fn follow(&self, directory: &str) -> Result<()> {
        for known in self.unpublished.all() {
            let path = self.path_of(known.parent, &known.name)?;
            let open = self.nodes.open(known.number).filter(|_| is_below(&path, directory));
            let _changing = open.as_ref().map(|open| open.changing());
            if let Some(work) = open.as_ref().and_then(|open| open.in_work()) {
                work.retarget(&path)?;
            }
        }
        Ok(())
    }

    /// A file that is written under a name loses it. False if there is none.
    fn forget_written(&self, parent: u64, name: &str) -> Result<bool> {
        let Some((number, _)) = self.written(parent, name) else { return Ok(false) };
        let Some(open) = self.nodes.open(number) else { return Ok(false) };
        let _changing = open.changing();
        // It may have become a title meanwhile.
        let Some(work) = open.in_work() else { return Ok(false) };
        self.unpublished.remove(number);
        work.forget_name()?;
        Ok(true)
    }

    fn has_written_below(&self, directory: &str) -> bool {
        let all = self.unpublished.all();
        let mut paths = all.iter().filter_map(|known| self.path_of(known.parent, &known.name).ok());
        paths.any(|path| is_below(&path, directory))
    }
}

fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}
