//! Every parser of untrusted input as a function of bytes: the entry points of fuzzing
//! and its tests.
//!
//! Promise: an entry point accepts any bytes, returns, and tells whether they were valid. If the
//! result breaks one of its own rules, it panics. It keeps the limits of time and memory in
//! [`cost`]. Compiled for tests and fuzzing only, so that the parsers need not be public.

pub mod cost;
pub mod worst;

use std::path::Path;

pub use tactus_config::fuzz_targets::configuration;
pub use tactus_control::generated::movie::fuzz_targets::film;
use tactus_control::measure::model_file;
use tactus_core::disk_model::MilliVisits;
use tactus_core::rtsp::message::{Answer, Piece, Reply, Request, piece};
use tactus_core::rtsp::message::{BODY_MAX, HEAD_MAX};
use tactus_core::rtsp::span::{RangeStart, Span};
use tactus_core::rtsp::transport::{Lower, offers};
use tactus_core::rtsp::{Status, v2};
use tactus_core::units::{Bytes, KIB, MIB};
pub use tactus_engine::fuzz_targets::rings;
pub use tactus_http::fuzz_targets::{
    chunked, listing, pace, properties, proxied, range, request, target, times, upload,
};
pub use tactus_local::fuzz_targets::recording;
pub use tactus_media::fuzz_targets::{frames, index, movie, segments, transport_stream};
pub use tactus_playout::channels::fuzz_targets::{channel, playlist};
pub use tactus_playout::ingest::fuzz_targets::datagrams;
pub use tactus_rtsp::fuzz_targets::{credentials, description, reports};

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its fuzz target, and of the folder of its seeds.
    pub name: &'static str,
    /// Parses the input; returns whether it is valid.
    pub run: fn(&[u8]) -> bool,
    /// Longest input that the limits admit.
    pub bytes_max: usize,
    /// Where the server reads the input.
    pub thread: Thread,
}

/// A kind of thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Thread {
    /// One of the few that serve all connections: slow work delays every client.
    Control,
    /// A thread for blocking work: only the sender of the input waits.
    Blocking,
}

const fn of(name: &'static str, run: fn(&[u8]) -> bool, bytes_max: u64, thread: Thread) -> Target {
    Target { name, run, bytes_max: bytes_max as usize, thread }
}

/// All entry points. Configurable limits have their defaults.
pub const TARGETS: [Target; 27] = [
    // The request line, its fields, and a body that is skipped.
    of("request", request, 8 * KIB + 32 * KIB + 64 * KIB, Thread::Control),
    of("chunked", chunked, 64 * KIB, Thread::Control),
    of("range", range, 8 + 32 * KIB, Thread::Control),
    of("target", target, 8 * KIB, Thread::Control),
    of("proxied", proxied, 32 * KIB, Thread::Control),
    of("pace", pace, 8 * KIB + 32 * KIB, Thread::Control),
    of("upload", upload, 8 * KIB + 32 * KIB, Thread::Control),
    of("properties", properties, 64 * KIB, Thread::Control),
    // A body, and as many of the longest names as one part holds.
    of("listing", listing, 64 * KIB + 256 * 256, Thread::Control),
    of("channel", channel, 64 * KIB, Thread::Blocking),
    // A stored file, up to its limits; a longer file only repeats.
    of("playlist", playlist, 16 * MIB, Thread::Blocking),
    of("segments", segments, 4 * MIB, Thread::Blocking),
    of("transport_stream", transport_stream, 8 * MIB, Thread::Blocking),
    of("movie", movie, 8 * MIB, Thread::Blocking),
    of("frames", frames, 8 * MIB, Thread::Blocking),
    of("index", index, 8 * MIB, Thread::Blocking),
    // What requests ask of a movie and of an index that have been read: the most samples; the most
    // points, accesses and jumps.
    of("film", film, 8 + (4 << 21), Thread::Control),
    of("times", times, 2 * MIB, Thread::Control),
    // Files of the operator, read at the start and at a reload.
    of("configuration", configuration, 64 * KIB, Thread::Blocking),
    of("disk_model", disk_model, 64 * KIB, Thread::Blocking),
    // More than the longest datagram, so that there are several.
    of("datagrams", datagrams, 128 * KIB, Thread::Control),
    of("reports", reports, 64 * KIB, Thread::Control),
    of("rtsp", rtsp, (HEAD_MAX + BODY_MAX) as u64, Thread::Control),
    of("description", description, BODY_MAX as u64, Thread::Control),
    of("credentials", credentials, HEAD_MAX as u64, Thread::Control),
    // Steps of a program in the memory that it shares; each turn of its server is bounded.
    of("rings", rings, 16 * KIB, Thread::Blocking),
    of("recording", recording, 16 * KIB, Thread::Blocking),
];

/// Runs the entry point of this name and checks its limits: the body of the fuzz targets.
///
/// # Panics
/// When there is none, a rule is broken, or it takes too long or too much memory.
pub fn run(name: &str, bytes: &[u8]) {
    let target =
        TARGETS.iter().find(|target| target.name == name).expect("an entry point of this name");
    cost::check(target, bytes);
}

/// What comes on a connection of RTSP, in either version: requests, answers and frames.
pub fn rtsp(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        let taken = match piece(rest) {
            Ok(Piece::Frame { len, .. }) => Some(len),
            Ok(Piece::Head { len }) => rtsp_head(&rest[..len]).map(|body| len + body),
            Ok(Piece::More) | Err(_) => None,
        };
        match taken.and_then(|taken| rest.get(taken..)) {
            Some(behind) => rest = behind,
            None => return false,
        }
    }
    true
}

/// The length of the body behind it, when it is understood.
fn rtsp_head(head: &[u8]) -> Option<usize> {
    if Answer::begins(head) {
        return Some(Answer::parse(head).ok()?.body);
    }
    let request = Request::parse(head).ok()?;
    let version = request.version;
    for offer in request.fields("transport").flat_map(|value| offers(version, value)) {
        if let Lower::Unicast(ports) | Lower::Multicast(Some(ports)) = offer.lower {
            assert!(ports.rtp >= 1024 && ports.rtp < u16::MAX, "{offer:?}");
        }
    }
    for range in request.fields("range") {
        if let Ok(Span { from: RangeStart::At(from), to: Some(to) }) = Span::parse(range) {
            assert!(from <= to, "{range}");
        }
        if let Ok(Span { from: RangeStart::At(from), to: Some(to) }) = Span::parse_reverse(range) {
            assert!(from >= to, "{range}");
        }
    }
    let missing = v2::unsupported(request.fields("require"));
    assert!(missing.as_deref() != Some(""), "what is missing has a name, or nothing is");
    // Whatever stands in it, the answer is one message.
    let reply = Reply::new(Status::OK).with("Timestamp", request.uri.as_str());
    let written = reply.write(version, Some(request.cseq));
    let Ok(Piece::Head { len }) = piece(&written) else { panic!("an answer is a head") };
    let answer = Answer::parse(&written[..len]).expect("an answer is understood");
    assert_eq!((answer.cseq, len), (request.cseq, written.len()));
    Some(request.body)
}

/// A disk model's file.
pub fn disk_model(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Ok(file) = model_file::parse(Path::new("disk-model.toml"), &text) else { return false };
    // The ledger adds such times up: they must not wrap.
    let time = |visits| file.model.reading(MilliVisits(visits), Bytes(visits * MIB));
    assert!(time(1_000_000) >= time(1_000) && time(1_000) >= time(1), "{:?}", file.model);
    true
}

#[cfg(test)]
mod tests;
