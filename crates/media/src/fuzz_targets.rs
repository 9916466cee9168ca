//! Fuzz targets: files that are titles or indexes.
//!
//! Promise: a fuzz target accepts any bytes, returns, and tells whether they were valid. It panics
//! if a valid result breaks one of its own rules. Compiled for tests and fuzzing only.

use std::fs::File;
use std::io::Write;
use std::{panic, thread};

use rustix::fs::{MemfdFlags, memfd_create};
use tactus_core::ts::{Index, IndexFault, Indexer};

use crate::probe::probe;

/// Runs `work` on a thread of its own, as the server does: its time and memory do not count for the
/// fuzz target.
///
/// # Panics
/// When `work` does.
pub fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let done = thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|panicked| panic::resume_unwind(panicked))
}

/// A file that is called a transport stream.
pub fn transport_stream(bytes: &[u8]) -> bool {
    probed(bytes, "title.ts")
}

/// A transport stream to index, in two pieces; and the same bytes as an index that was kept.
pub fn index(bytes: &[u8]) -> bool {
    let whole = indexed(&[bytes]);
    let (one, other) = bytes.split_at(bytes.len() / 2);
    assert_eq!(indexed(&[one, other]), whole, "it does not matter how the bytes arrive");
    let kept = crate::index::fuzz_targets::kept(bytes);
    let Ok(index) = whole else { return kept };
    assert_eq!(Index::decode(&index.encode()).as_ref(), Some(&index));
    for access in index.accesses() {
        assert!(index.start_of(access) < index.len());
        index.tables_before(access);
        index.pcr_at(access.at);
    }
    index.rates();
    true
}

fn indexed(pieces: &[&[u8]]) -> Result<Index, IndexFault> {
    let mut indexer = Indexer::default();
    for piece in pieces {
        indexer.add(piece);
    }
    indexer.finish()
}

/// A file that is called a movie.
pub fn movie(bytes: &[u8]) -> bool {
    probed(bytes, "title.mp4")
}

fn probed(bytes: &[u8], name: &str) -> bool {
    let file = memfd_create("title", MemfdFlags::CLOEXEC).expect("memory for a small file");
    let mut file = File::from(file);
    file.write_all(bytes).expect("memory for a small file");
    let Some(facts) = probe(&file, name) else { return false };
    assert!(facts.mean.0 > 0 && facts.mean <= facts.rate, "{facts:?}");
    assert!(facts.head.0 <= bytes.len() as u64, "{facts:?}");
    true
}
