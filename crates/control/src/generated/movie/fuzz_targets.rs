//! Fuzz target: a request to play a movie, against the movie's tables.
//!
//! Promise: as all fuzz targets, see [`crate::fuzz_targets`].

use std::sync::Arc;

use tactus_core::datagrams::Session;
use tactus_core::units::Nanos;
use tactus_media::fuzz_targets::aside;
use tactus_media::movie::rows;

use super::{MovieStreams, Part, TrackStream};
use crate::generated::{DATAGRAMS_AT_ONCE, PIECE, Packetizer};

/// The begin and the end in milliseconds of four bytes each (zero: none), then the rows of the
/// tables. A separate thread reads the tables. This function searches for the beginning, takes in a
/// piece of the file, and makes the first datagrams.
pub fn film(bytes: &[u8]) -> bool {
    let Some((head, rest)) = bytes.split_first_chunk::<8>() else { return false };
    let [from, to] = [0, 4].map(|at| u32::from_be_bytes([0, 1, 2, 3].map(|nth| head[at + nth])));
    let Some(movie) = aside(|| rows::movie(rest).ok()).map(Arc::new) else { return false };
    let begin = movie.begin(Nanos::from_millis(from.into()));
    let counts = movie.tracks.iter().map(|track| track.samples().len());
    assert!(begin.first.iter().zip(counts).all(|(&first, count)| (first as usize) < count));
    let end = (to > 0).then(|| Nanos::from_millis(to.into()));
    let sent = |track| TrackStream {
        track,
        payload_type: 96,
        session: Session { source: 1, sequence: 2, timestamp: 3 },
    };
    // Only the video track: the audio between its samples is skipped.
    let (kept, tracks) = (Arc::clone(&movie), vec![sent(0)]);
    let part = Part { movie, begin, end, tracks, stretch: 1 };
    let is_sent = send(part);
    // Large tables are freed on a thread of their own.
    aside(|| drop(kept));
    is_sent
}

fn send(part: Part) -> bool {
    let Some(range) = part.range() else { return false };
    std::hint::black_box((part.reading_of_all(), part.needs()));
    let mut streams = MovieStreams::new(part, range.start);
    let len = usize::try_from(range.end - range.start).unwrap_or(PIECE).min(PIECE);
    streams.push(&vec![0; len]);
    let mut last = Nanos(0);
    for _ in 0..DATAGRAMS_AT_ONCE {
        let Some((_, timed)) = streams.next() else { break };
        assert!(timed.due >= last, "in order of their times");
        last = timed.due;
    }
    true
}
