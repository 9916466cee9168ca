//! The working files of the last run.
//!
//! Promise: what a file becomes is read from its record, which no program can reach, and never from
//! the file itself. The name, the condition and the owner are those that the server has checked
//! when it wrote the record. Bytes without a record stay where they are.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{RECORD, RECORD_ATTRIBUTE, WorkingFile, on_disk, record_of};
use crate::store::id::StoreId;
use crate::store::journal::{self, CreationRecord, Record};
use crate::store::names::{self, Names, Precondition, TitleName};
use crate::store::quotas::{Principal, Purpose};
use crate::store::{Store, len_of, sums};

/// A working file of the last run.
pub(in crate::store) struct LeftoverFile {
    id: StoreId,
    name: TitleName,
    condition: Precondition,
    principal: Principal,
    file: OwnedFd,
    len: u64,
    on_disk: u64,
}

/// Longer than any record.
const RECORD_MAX: usize = 16 * 1024;

impl Store {
    /// Makes titles of the working files of the last run: their bytes were acknowledged.
    pub(in crate::store) async fn name_working_files(self, files: Vec<LeftoverFile>) {
        for LeftoverFile { id, name, condition, principal, file, len, on_disk } in files {
            self.inner.counted().await;
            let path = name.path().to_owned();
            let purpose = Purpose { path: Some(path.clone()), id: None };
            let claim = self.inner.quotas.restore(&principal, purpose, len, on_disk);
            let left = WorkingFile {
                inner: Arc::clone(&self.inner),
                name,
                condition,
                claim: Some(claim),
                file: Some(Arc::new(file)),
                staged: None,
                kept: Some(id),
                is_nameless: false,
            };
            match left.finish().await {
                Ok(_) => tracing::info!(path, "a title that was being written has its name"),
                Err(error) => {
                    tracing::warn!(%error, path, "a title that was being written has no name");
                }
            }
        }
    }
}

/// A file in the directory of working files.
enum LeftoverKind {
    Working(LeftoverFile),
    /// It is a title already, with this name or another one that it has got since.
    Title(TitleName),
    /// The server has not written it, or its record is damaged.
    Unknown,
}

/// The working files of the last run, and how many names were of no use any more: those of titles,
/// and those of records without a file, which were never acknowledged.
pub(in crate::store) fn leftovers(names: &Names) -> io::Result<(Vec<LeftoverFile>, usize)> {
    let working = &names.own.working;
    let (records, files): (Vec<_>, Vec<_>) =
        names::list(&**working)?.into_iter().partition(|name| name.ends_with(RECORD));
    let (mut left, mut kept, mut strays) = (vec![], HashSet::new(), 0);
    for name in files {
        let found = match name.parse() {
            Ok(id) => look(names, id)?,
            Err(_) => LeftoverKind::Unknown,
        };
        match found {
            LeftoverKind::Working(file) => left.push(file),
            LeftoverKind::Title(title) => {
                // Without a directory there is nothing to flush.
                names.flush_name(&title).ok();
                rustix::fs::unlinkat(working, &name, AtFlags::empty())?;
                strays += 1;
                continue;
            }
            LeftoverKind::Unknown => tracing::warn!(
                "no record says what .tactus/working/{name} becomes: it stays there; move or \
                 remove it"
            ),
        }
        kept.insert(format!("{name}{RECORD}"));
    }
    if strays > 0 {
        // Bytes never outlive their record.
        rustix::fs::fsync(working)?;
    }
    for record in records.iter().filter(|record| !kept.contains(*record)) {
        rustix::fs::unlinkat(working, record, AtFlags::empty())?;
        strays += 1;
    }
    Ok((left, strays))
}

fn look(names: &Names, id: StoreId) -> io::Result<LeftoverKind> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |name: String| rustix::fs::openat(&names.own.working, name, flags, Mode::empty());
    let file = match open(id.to_string()) {
        Ok(file) => file,
        Err(Errno::LOOP | Errno::NXIO) => return Ok(LeftoverKind::Unknown),
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&file)?;
    let record = open(record_of(id)).ok().and_then(|record| read(record, id));
    let Some((name, created)) = record else { return Ok(LeftoverKind::Unknown) };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(LeftoverKind::Unknown);
    }
    let on_stage =
        rustix::fs::statat(&names.own.stage, id.to_string(), AtFlags::SYMLINK_NOFOLLOW).ok();
    let is_staged = on_stage.is_some_and(|stage| stage.st_ino == stat.st_ino);
    #[allow(clippy::useless_conversion, reason = "its type depends on the processor")]
    let others = u64::from(stat.st_nlink).saturating_sub(1 + u64::from(is_staged));
    if others > 0 {
        return Ok(LeftoverKind::Title(name));
    }
    let CreationRecord { principal, precondition: condition, .. } = created;
    let (len, on_disk) = (len_of(&stat).0, on_disk(&stat));
    Ok(LeftoverKind::Working(LeftoverFile { id, name, condition, principal, file, len, on_disk }))
}

/// The record of the file `id`, and its path by the rules of every upload.
fn read(record: OwnedFd, id: StoreId) -> Option<(TitleName, CreationRecord)> {
    let mut room = vec![0; RECORD_MAX];
    let bytes = sums::attribute(record, RECORD_ATTRIBUTE, &mut room).ok()??;
    let Record::Created(created) = journal::unseal(bytes)? else { return None };
    let name = TitleName::new(created.path.as_deref()?).ok()?;
    (created.id == id).then_some((name, *created))
}
