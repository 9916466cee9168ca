//! The seeds of the fuzz targets, and thousands of mutations of them, at every door.
//!
//! Fuzzing itself searches longer, but needs an unstable compiler; this runs wherever tests run.

use super::*;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Mutated inputs for each door: all doors together take a few seconds without optimisation.
const CASES: u32 = 5_000;
/// Where the mutations begin. Another number is another walk; this one is the same everywhere.
const SEED: u8 = 15;
/// A hundred times what a door takes: only what hangs takes longer.
const PATIENCE: Duration = Duration::from_secs(120);
/// The longest mutated input: everything that is read here is refused, or bounded, well below.
const INPUT_MAX: usize = 64 * 1024;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The seeds of a door with their names, in one order everywhere.
fn seeds(door: &str) -> Vec<(String, Vec<u8>)> {
    let dir = fuzz().join("seeds").join(door);
    let listed = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut seeds: Vec<_> = listed
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect();
    seeds.sort();
    seeds
}

/// One change: which, where, and with what.
type Change = (u8, Index, Index, u8);

/// Numbers at which sums and sizes tip over.
const EDGES: [u32; 6] = [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0, u32::MAX];

fn changed(mut bytes: Vec<u8>, changes: &[Change], seeds: &[(String, Vec<u8>)]) -> Vec<u8> {
    for (kind, here, there, byte) in changes {
        let at = here.index(bytes.len() + 1);
        let end = (at + 1 + usize::from(*byte) % 32).min(bytes.len());
        match kind % 7 {
            0 if at < bytes.len() => bytes[at] = *byte,
            1 if at < bytes.len() => bytes[at] ^= 1 << (byte % 8),
            2 => bytes.insert(at, *byte),
            3 => drop(bytes.drain(at..end)),
            4 => bytes.truncate(at),
            5 => {
                let edge = EDGES[usize::from(*byte) % EDGES.len()].to_be_bytes();
                bytes.iter_mut().skip(at).zip(edge).for_each(|(old, new)| *old = new);
            }
            // What another seed says there: the words of the format find each other.
            _ => {
                let (_, other) = &seeds[usize::from(*byte) % seeds.len()];
                let from = there.index(other.len() + 1);
                let piece = other[from..].iter().take(1 + usize::from(*byte)).copied();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes.truncate(INPUT_MAX);
    bytes
}

/// Knocks on a door with its seeds and with mutations of them.
fn knock(name: &'static str) {
    let &(_, door) = DOORS.iter().find(|(door, _)| *door == name).unwrap();
    let seeds = seeds(name);
    println!("{name}: {CASES} mutations of {} seeds, from {SEED}", seeds.len());
    let last = Arc::new(Mutex::new(Vec::new()));
    let (done, ended) = channel();
    let tried = Arc::clone(&last);
    let worker = std::thread::spawn(move || {
        let knock = |bytes: &[u8]| {
            *tried.lock().unwrap_or_else(PoisonError::into_inner) = bytes.to_vec();
            door(bytes)
        };
        for (seed, bytes) in &seeds {
            assert_eq!(knock(bytes), seed.starts_with("good"), "{name}/{seed}");
        }
        let config =
            ProptestConfig { cases: CASES, failure_persistence: None, ..Default::default() };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[SEED; 32]);
        let change = (any::<u8>(), any::<Index>(), any::<Index>(), any::<u8>());
        let changes = prop::collection::vec(change, 1..6);
        let inputs = (0..seeds.len(), changes)
            .prop_map(|(nth, changes)| changed(seeds[nth].1.clone(), &changes, &seeds));
        let result = TestRunner::new_with_rng(config, rng).run(&inputs, |bytes| {
            knock(&bytes);
            Ok(())
        });
        done.send(()).expect("the test waits");
        if let Err(failure) = result {
            panic!("{name}, from {SEED}: {failure}");
        }
    });
    if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
        let last = last.lock().unwrap_or_else(PoisonError::into_inner);
        panic!("{name}, from {SEED}, does not end with {last:?}");
    }
    if let Err(panic) = worker.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn no_request_crashes_it() {
    knock("request");
}

#[test]
fn no_chunked_body_crashes_it() {
    knock("chunked");
}

#[test]
fn no_range_crashes_it() {
    knock("range");
}

#[test]
fn no_target_crashes_it() {
    knock("target");
}

#[test]
fn w02_nothing_that_proxies_say_crashes_it() {
    knock("proxied");
}

#[test]
fn no_asked_rate_crashes_it() {
    knock("pace");
}

#[test]
fn no_upload_crashes_it() {
    knock("upload");
}

#[test]
fn no_question_about_properties_crashes_it() {
    knock("properties");
}

#[test]
fn no_index_crashes_it() {
    knock("index");
}

#[test]
fn no_transport_stream_crashes_it() {
    knock("transport_stream");
}

#[test]
fn no_movie_crashes_it() {
    knock("movie");
}

#[test]
fn no_configuration_crashes_it() {
    knock("configuration");
}

#[test]
fn no_disk_model_crashes_it() {
    knock("disk_model");
}

#[test]
fn no_message_of_rtsp_crashes_it() {
    knock("rtsp");
}

#[test]
fn no_datagram_crashes_it() {
    knock("datagrams");
}

#[test]
fn every_door_has_a_test_a_fuzz_target_and_seeds_of_both_kinds() {
    let tests = include_str!("tests.rs");
    for (name, _) in DOORS {
        assert!(tests.contains(&format!("    knock(\"{name}\");")), "{name} has no test");
        let target = fs::read_to_string(fuzz().join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(target.contains(&format!("tactus::untrusted::{name}(")), "{target}");
        let seeds = seeds(name);
        let good = seeds.iter().filter(|(name, _)| name.starts_with("good")).count();
        assert!(
            good > 0 && good < seeds.len(),
            "{name} needs seeds that pass and seeds that do not"
        );
    }
}
