//! Fuzz targets: files that are titles or indexes.
//!
//! Promise: a fuzz target accepts any bytes, returns, and tells whether they were valid. It panics
//! if a valid result breaks one of its own rules. Compiled for tests and fuzzing only.

use std::fs::File;
use std::io::Write;
use std::{panic, thread};

use rustix::fs::{MemfdFlags, memfd_create};
use tactus_core::ts::{Index, IndexFault, Indexer};

use crate::MediaFacts;
use crate::consumption::{self, POINTS_MAX};
use crate::playlist::Playlist;
use crate::probe::probe;
use crate::scan::Scan;
use crate::wave::Wave;

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

/// A playlist of HLS, and a manifest of DASH.
pub fn segments(bytes: &[u8]) -> bool {
    let read = |name: &str| {
        let playlist = Playlist::read(name, bytes).expect("the extension is known");
        assert_eq!(Playlist::read(name, bytes).as_ref(), Some(&playlist));
        std::hint::black_box(playlist.segment("chunk-stream0-00001.m4s"));
        !playlist.is_empty()
    };
    let (hls, dash) = (read("list.m3u8"), read("list.mpd"));
    hls || dash
}

fn indexed(pieces: &[&[u8]]) -> Result<Index, IndexFault> {
    let mut indexer = Indexer::default();
    for piece in pieces {
        indexer.add(piece);
    }
    indexer.finish()
}

/// A file that is called a movie; and the same bytes as the sample entry of an audio track.
pub fn movie(bytes: &[u8]) -> bool {
    crate::movie::sound_entry(bytes);
    probed(bytes, "title.mp4")
}

/// A file of another container: its facts, its frames in two pieces, and the points it states.
pub fn frames(bytes: &[u8]) -> bool {
    let Some((file, facts)) = facts_of(bytes, "title.mp3") else { return false };
    if let Ok(samples) = Wave::read(&file, bytes.len() as u64).and_then(|wave| wave.samples()) {
        let frame = u64::from(samples.channels) * u64::from(samples.width);
        let len = samples.bytes.end - samples.bytes.start;
        assert!(samples.bytes.end <= bytes.len() as u64 && len > 0 && len % frame == 0);
    }
    let Some(mut pieces) = Scan::of(facts.kind) else { return true };
    let (one, other) = bytes.split_at(bytes.len() / 2);
    pieces.add(one);
    pieces.add(other);
    let consumption = consumption::of_frames(&file, facts.kind);
    assert_eq!(pieces.finish(), consumption, "it does not matter how the bytes arrive");
    for known in [consumption, consumption::estimate(&file, facts.kind)].into_iter().flatten() {
        assert!(known.len().0 <= bytes.len() as u64 && known.points() <= POINTS_MAX + 2);
    }
    true
}

fn probed(bytes: &[u8], name: &str) -> bool {
    facts_of(bytes, name).is_some()
}

fn facts_of(bytes: &[u8], name: &str) -> Option<(File, MediaFacts)> {
    let file = memfd_create("title", MemfdFlags::CLOEXEC).expect("memory for a small file");
    let mut file = File::from(file);
    file.write_all(bytes).expect("memory for a small file");
    let facts = probe(&file, name)?;
    assert!(facts.rate.0 > 0, "{facts:?}");
    assert!(facts.head.0 <= bytes.len() as u64, "{facts:?}");
    Some((file, facts))
}
