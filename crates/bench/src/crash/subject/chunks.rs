//! Writers of uploads that can be resumed, which differ in where they find the offset again.
//!
//! Promise: a chunk is acknowledged when it is flushed. What is read from the size of a file whose
//! room was reserved is wrong; the journal's word is right.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::fs::{FallocateFlags, OFlags, fallocate, fdatasync};

use super::{RecoveredSubject, Subject, files};
use crate::aligned::Aligned;
use crate::crash::content::Version;
use crate::crash::history::{History, ResumedUpload, VolumeContents};
use crate::crash::recorder::Recorder;
use crate::random::Random;

/// A writer of chunks.
#[derive(Clone, Copy, Debug)]
struct Chunks {
    name: &'static str,
    method: &'static str,
    audio: bool,
    reserve: FallocateFlags,
    /// The offset is the journal's, and not the file's size.
    journal: bool,
}

/// All of them.
pub(super) fn all() -> Vec<Box<dyn Subject>> {
    let sized = Chunks {
        name: "chunks-size",
        method: "chunks, fallocate, fdatasync; offset from the size",
        audio: false,
        reserve: FallocateFlags::empty(),
        journal: false,
    };
    [
        sized,
        Chunks {
            name: "chunks-keep-size",
            method: "chunks, fallocate KEEP_SIZE, fdatasync; offset from the size",
            audio: true,
            reserve: FallocateFlags::KEEP_SIZE,
            ..sized
        },
        Chunks {
            name: "chunks-journal",
            method: "chunks, fallocate KEEP_SIZE, fdatasync, journal, fdatasync; offset from the \
                     journal",
            audio: true,
            reserve: FallocateFlags::KEEP_SIZE,
            journal: true,
        },
    ]
    .into_iter()
    .map(|chunks| Box::new(chunks) as Box<dyn Subject>)
    .collect()
}

/// 40 acknowledged chunks of 64 KiB in all.
const UPLOADS: u64 = 4;
const STEPS: u64 = 10;
const CHUNK: u64 = 64 << 10;
const JOURNAL: &str = ".journal";
const PREFIX: &str = "upload-";

impl Subject for Chunks {
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
        let length = STEPS * CHUNK;
        let mut journal = File::create_new(root.join(JOURNAL))?;
        let folder = File::open(root)?;
        let mut uploads = Vec::new();
        for number in 0..UPLOADS {
            let id = format!("{PREFIX}{number}");
            let version = Version::new(random.next(), length);
            let step = recorder.begin_step(&id, &id, version, 0)?;
            let flags = OFlags::DIRECT.bits().cast_signed();
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .custom_flags(flags)
                .open(root.join(&id))?;
            fallocate(&file, self.reserve, 0, length)?;
            fdatasync(&file)?;
            if self.journal {
                record(&mut journal, number, 0)?;
            }
            folder.sync_all()?;
            recorder.ack(&step)?;
            uploads.push((id, version, file, 0));
        }
        let mut buffer = Aligned::new(CHUNK as usize);
        for _ in 0..UPLOADS * STEPS {
            let unfinished = |upload: &&mut (_, _, _, u64)| upload.3 < length;
            let mut open: Vec<_> = uploads.iter_mut().filter(unfinished).collect();
            let chosen = random.next() as usize % open.len();
            let (id, version, file, offset) = &mut *open[chosen];
            let (from, to) = (*offset, *offset + CHUNK);
            buffer.bytes().copy_from_slice(&version.bytes(from, to));
            let step = recorder.begin_step(id, id, *version, to)?;
            file.write_all_at(buffer.bytes(), from)?;
            fdatasync(&*file)?;
            if self.journal {
                let number = id.trim_start_matches(PREFIX).parse()?;
                record(&mut journal, number, to)?;
            }
            recorder.ack(&step)?;
            *offset = to;
        }
        Ok(())
    }

    fn recover<'a>(&'a self, root: &'a Path) -> Result<Box<dyn RecoveredSubject + 'a>> {
        let recorded = match self.journal {
            true => read(&fs::read(root.join(JOURNAL)).unwrap_or_default()),
            false => BTreeMap::new(),
        };
        let mut uploads = Vec::new();
        for (name, path) in files(root)? {
            let Some(number) = name.strip_prefix(PREFIX) else { continue };
            let size = path.metadata()?.len();
            let offset = match (self.journal, recorded.get(&number.parse()?)) {
                (false, _) => size,
                (true, Some(offset)) => *offset,
                // Never acknowledged.
                (true, None) => {
                    fs::remove_file(path)?;
                    continue;
                }
            };
            uploads.push((name, offset, path));
        }
        Ok(Box::new(Uploads(uploads)))
    }
}

/// Names, offsets, and the files with the bytes below them.
struct Uploads(Vec<(String, u64, PathBuf)>);

impl RecoveredSubject for Uploads {
    fn look(&mut self, history: &History) -> Result<VolumeContents> {
        let mut found = VolumeContents::default();
        for (id, offset, path) in &self.0 {
            let bytes = fs::read(path)?;
            let below = &bytes[..bytes.len().min(*offset as usize)];
            let short = (below.len() < *offset as usize).then_some(below.len() as u64);
            let wrong_at =
                history.version(id).and_then(|version| match *offset > version.length() {
                    true => Some(version.length()),
                    false => version.differs(below).or(short),
                });
            found.uploads.insert(id.clone(), ResumedUpload { offset: *offset, wrong_at });
        }
        Ok(found)
    }
}

/// Upload, offset, and their sum.
const RECORD: usize = 24;

/// Appends to the journal and flushes it.
fn record(journal: &mut File, upload: u64, offset: u64) -> std::io::Result<()> {
    let words = [upload, offset, sum(upload, offset)];
    journal.write_all(&words.map(u64::to_le_bytes).concat())?;
    fdatasync(journal).map_err(std::io::Error::from)
}

/// The last offset of each upload, up to the first record that is not whole.
fn read(journal: &[u8]) -> BTreeMap<u64, u64> {
    let mut offsets = BTreeMap::new();
    for record in journal.as_chunks::<RECORD>().0 {
        let [upload, offset, recorded] = [0, 8, 16].map(|at| {
            u64::from_le_bytes(record[at..at + 8].try_into().expect("a record has three words"))
        });
        if recorded != sum(upload, offset) {
            break;
        }
        offsets.insert(upload, offset);
    }
    offsets
}

fn sum(upload: u64, offset: u64) -> u64 {
    Random::new(upload.rotate_left(32) ^ offset).next()
}
