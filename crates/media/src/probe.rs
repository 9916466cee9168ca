//! The rate of a title, from its first and last bytes.
//!
//! Promise: of a transport stream it reads at most [`WINDOW`] at each end, and in between seven
//! samples of `GLANCE`, or at most 23 of up to `LOOK` where the rate changes much; one of up to
//! 8 MiB it reads as a whole. Of a movie it reads its box headers and sample tables; of other
//! containers windows at both ends. It never fails or panics on hostile bytes; it returns nothing
//! then. It holds a few windows in memory at a time, never a whole index. It reads by `pread` on
//! the given handle, which must not be open for direct I/O.
//!
//! What the rate means:
//! - A constant-rate transport stream has one rate, and it comes out exactly. Of a variable-rate
//!   stream it is the mean between the first and the last clock reference, rounded up: such a
//!   stream needs a start burst of its longest excess, or a configured rate.
//! - Of other titles it is the size over the duration.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tactus_core::ts::{Framing, Mux, PcrSpan, first_step, measure};
use tactus_core::units::{BitRate, Bytes, KIB, MIB, Nanos};

use super::{MediaFacts, MediaKind};

pub(super) mod audio;
pub(super) mod boxes;
pub(super) mod matroska;
pub(super) mod movie;

/// Bytes read at each end of a transport stream: at 100 Mbit/s still four times the largest
/// interval of clock references that TR 101 290 allows.
pub const WINDOW: u64 = 2 * MIB;
/// The number of parts between the two windows; each boundary is sampled.
const PLACES: u64 = 8;
/// Bytes of a sample: a single clock reference reveals a clock that was set back.
const GLANCE: u64 = 256 * KIB;
/// Bytes of a sample whose clock references are too near to each other for a rate: up to 200 Mbit/s
/// they are then further apart than a video frame.
const LOOK: u64 = MIB;
/// Further samples where the clock seems to jump. Each halves the bytes between two samples, until
/// a jump lies within [`GLANCE`], or a change of the rate shows.
const HALVES_MAX: usize = 16;
/// The longest distance of two packets.
const STRIDE_MAX: u64 = 204;
/// Bytes that identify the container.
const SNIFF: u64 = 16 * KIB;
/// Search range of the first packet in files with other names: an M2TS header, and some garbage.
const REACH_STRANGE: usize = KIB as usize;
/// Name extensions of files that are searched for packets in the whole window.
const STREAM_NAMES: [&str; 6] = ["ts", "m2ts", "mts", "m2t", "trp", "tp"];

/// Name extensions of files in which frames of MPEG audio are searched.
const SOUND_NAMES: [&str; 4] = ["mp3", "mp2", "mpga", "mpa"];

/// The properties of `file`. The extension of `name` only sets the search range of a transport
/// stream.
pub fn probe(file: &File, name: &str) -> Option<MediaFacts> {
    let len = file.metadata().ok()?.len();
    let start = read(file, 0, len.min(SNIFF))?;
    if movie::may_be(&start) {
        return movie::probe(file, len);
    }
    if matroska::may_be(&start) {
        return matroska::probe(file, len);
    }
    let extension = name.rsplit_once('.').map_or("", |(_, end)| end);
    let is_one_of =
        |names: &[&str]| names.iter().any(|known| extension.eq_ignore_ascii_case(known));
    let named = is_one_of(&STREAM_NAMES);
    if !named && let Some(facts) = audio::probe(file, len, &start, is_one_of(&SOUND_NAMES)) {
        return Some(facts);
    }
    let reach = if named { WINDOW as usize } else { REACH_STRANGE };
    if !named && Framing::find(&start, reach).is_none() {
        return None;
    }
    transport_stream(file, len, reach)
}

fn transport_stream(file: &File, len: u64, reach: usize) -> Option<MediaFacts> {
    // What lies between the windows is then at least as much as both.
    let whole = len <= 4 * WINDOW;
    let head = read(file, 0, if whole { len } else { WINDOW })?;
    let framing = Framing::find(&head, reach)?;
    let first = PcrSpan::in_window(&head, 0, framing, None)?;
    drop(head);
    let mut spans = vec![first];
    let mut ends = len <= 2 * WINDOW || first.last.at >= len - WINDOW;
    if !whole {
        let look = |at: u64, len: u64| -> Option<Option<PcrSpan>> {
            let window = read(file, at, len)?;
            Some(PcrSpan::in_window(&window, at, framing, Some(first.pid)))
        };
        // At a high rate the clock references of a short sample are too near to each other.
        let glance = |at: u64, most: u64| -> Option<Option<PcrSpan>> {
            let found = look(at, most.min(GLANCE))?;
            match found {
                Some(found) if found.is_short() && most > GLANCE => look(at, most.min(LOOK)),
                found => Some(found),
            }
        };
        let part = (len - 2 * WINDOW) / PLACES;
        for place in 1..PLACES {
            spans.extend(glance(WINDOW + part * place, part)?);
        }
        let last = look(len - WINDOW, WINDOW)?;
        ends = last.is_some();
        spans.extend(last);
        for _ in 0..HALVES_MAX {
            let Some(step) = first_step(&spans) else { break };
            // Packets, in front of which `step` ends.
            let (from, to) = (step.start + STRIDE_MAX, step.end.saturating_sub(STRIDE_MAX));
            if to.saturating_sub(from) < 2 * GLANCE {
                break;
            }
            let at = from + (to - from) / 2;
            let Some(found) = glance(at, to - at)? else { break };
            let nth = spans.partition_point(|span| span.last.at <= step.start);
            spans.insert(nth, found);
        }
    }
    let Mux { rate, broken } = measure(&spans)?;
    // A stream without a clock at its end was not measured completely.
    let broken = broken || !ends;
    Some(MediaFacts {
        kind: MediaKind::TransportStream { stride: framing.stride as u16, broken },
        rate,
        peak: None,
        duration: duration(len, rate)?,
        head: Bytes::ZERO,
    })
}

/// The duration of `len` bytes at `rate`, if it fits the unit (584 years).
fn duration(len: u64, rate: BitRate) -> Option<Nanos> {
    let nanos = (u128::from(len) * 8_000_000_000).div_ceil(u128::from(rate.0.max(1)));
    u64::try_from(nanos).ok().map(Nanos)
}

/// More than 100 Gbit/s means a wrong duration.
const RATE_MAX: u64 = 100_000_000_000;

/// The rate of `bytes` in this time, rounded up.
fn mean_rate(bytes: u64, over: Nanos) -> Option<BitRate> {
    let rate = (u128::from(bytes) * 8_000_000_000).div_ceil(u128::from(over.0.max(1)));
    u64::try_from(rate).ok().filter(|rate| (1..=RATE_MAX).contains(rate)).map(BitRate)
}

/// `len` bytes from `offset`; `None` at the end of the file or on a read error.
fn read(file: &File, offset: u64, len: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests;
