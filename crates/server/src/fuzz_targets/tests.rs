//! The seeds of the fuzz targets, and thousands of mutations of them, at every fuzz target.
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

/// Mutated inputs for each fuzz target: all fuzz targets together take a few seconds without
/// optimisation.
const CASES: u32 = 5_000;
/// Where the mutations begin. Another number is another walk; this one is the same everywhere.
const SEED: u8 = 15;
/// A hundred times what a fuzz target takes: only what hangs takes longer.
const PATIENCE: Duration = Duration::from_secs(120);
/// The longest mutated input: everything that is read here is refused, or bounded, well below.
const INPUT_MAX: usize = 64 * 1024;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The seeds of a fuzz target with their names, in one order everywhere.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = fuzz().join("seeds").join(target);
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

/// Runs a fuzz target with its seeds and with mutations of them.
fn run(name: &'static str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let seeds = seeds(name);
    println!("{name}: {CASES} mutations of {} seeds, from {SEED}", seeds.len());
    let last = Arc::new(Mutex::new(Vec::new()));
    let (done, ended) = channel();
    let tried = Arc::clone(&last);
    let worker = std::thread::spawn(move || {
        let run = |bytes: &[u8]| {
            *tried.lock().unwrap_or_else(PoisonError::into_inner) = bytes.to_vec();
            (target.run)(bytes)
        };
        for (seed, bytes) in &seeds {
            assert_eq!(run(bytes), seed.starts_with("good"), "{name}/{seed}");
        }
        let config =
            ProptestConfig { cases: CASES, failure_persistence: None, ..Default::default() };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[SEED; 32]);
        let change = (any::<u8>(), any::<Index>(), any::<Index>(), any::<u8>());
        let changes = prop::collection::vec(change, 1..6);
        let inputs = (0..seeds.len(), changes)
            .prop_map(|(nth, changes)| changed(seeds[nth].1.clone(), &changes, &seeds));
        let result = TestRunner::new_with_rng(config, rng).run(&inputs, |bytes| {
            *tried.lock().unwrap_or_else(PoisonError::into_inner) = bytes.clone();
            cost::check(target, &bytes);
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
    run("request");
}

#[test]
fn no_chunked_body_crashes_it() {
    run("chunked");
}

#[test]
fn no_range_crashes_it() {
    run("range");
}

#[test]
fn no_target_crashes_it() {
    run("target");
}

#[test]
fn w02_no_proxy_header_crashes_it() {
    run("proxied");
}

#[test]
fn no_asked_rate_crashes_it() {
    run("pace");
}

#[test]
fn no_upload_crashes_it() {
    run("upload");
}

#[test]
fn no_question_about_properties_crashes_it() {
    run("properties");
}

#[test]
fn no_listing_crashes_it() {
    run("listing");
}

#[test]
fn no_table_of_a_film_crashes_it() {
    run("film");
}

#[test]
fn no_times_of_a_title_crash_it() {
    run("times");
}

#[test]
fn no_index_crashes_it() {
    run("index");
}

#[test]
fn no_transport_stream_crashes_it() {
    run("transport_stream");
}

#[test]
fn no_movie_crashes_it() {
    run("movie");
}

#[test]
fn no_frames_of_a_title_crash_it() {
    run("frames");
}

#[test]
fn no_configuration_crashes_it() {
    run("configuration");
}

#[test]
fn no_disk_model_crashes_it() {
    run("disk_model");
}

#[test]
fn no_message_of_rtsp_crashes_it() {
    run("rtsp");
}

#[test]
fn no_datagram_crashes_it() {
    run("datagrams");
}

#[test]
fn no_body_about_a_channel_crashes_it() {
    run("channel");
}

#[test]
fn r02_no_list_of_segments_crashes_it() {
    run("segments");
}

#[test]
fn no_playlist_crashes_it() {
    run("playlist");
}

#[test]
fn no_report_of_a_receiver_crashes_it() {
    run("reports");
}

#[test]
fn no_session_description_crashes_it() {
    run("description");
}

#[test]
fn no_credentials_crash_it() {
    run("credentials");
}

#[test]
fn l02_no_ring_of_a_program_crashes_it() {
    run("rings");
}

#[test]
fn l02_no_ring_of_a_recording_crashes_it() {
    run("recording");
}

/// The worst inputs of the largest size at each entry point stay within the limits of time and
/// memory.
#[test]
fn s01_the_worst_inputs_stay_within_the_limits_of_each_entry_point() {
    for target in &TARGETS {
        let most = target.bytes_max.min(WORST_MAX);
        for input in worst::inputs(target, &seeds(target.name), most) {
            println!("{}: {}", target.name, input.name);
            cost::check(target, &input.bytes);
        }
    }
}

/// Twice the input costs about twice as much: a cost that grows faster is slow at some size.
#[test]
fn s01_no_cost_grows_faster_than_its_input() {
    for target in TARGETS.iter().filter(|target| target.thread == Thread::Control) {
        let seeds = seeds(target.name);
        let most = target.bytes_max.min(WORST_MAX);
        let whole = worst::inputs(target, &seeds, most);
        let halves = worst::inputs(target, &seeds, most / 2);
        assert_eq!(whole.len(), halves.len());
        for (whole, half) in whole.iter().zip(&halves) {
            let (one, two) = (cost::of(target, &half.bytes, 1), cost::of(target, &whole.bytes, 1));
            let what = format!("{}: {}, {one:?}, {two:?}", target.name, whole.name);
            assert!(two.allocated <= 3 * one.allocated + GRAIN_BYTES, "{what}");
            if two.time > 3 * one.time + GRAIN_TIME {
                let tries = 5;
                let one = cost::of(target, &half.bytes, tries).time;
                let two = cost::of(target, &whole.bytes, tries).time;
                assert!(two <= 3 * one + GRAIN_TIME, "{what}; again {one:?}, {two:?}");
            }
        }
    }
}

/// Files are read in windows: several of them show the growth.
const WORST_MAX: usize = 128 << 10;
/// Growth below these amounts is not judged.
const GRAIN_TIME: Duration = Duration::from_millis(4);
const GRAIN_BYTES: u64 = 256 << 10;

#[test]
fn every_fuzz_target_has_a_test_a_program_and_seeds_of_both_kinds() {
    let tests = include_str!("tests.rs");
    for Target { name, .. } in TARGETS {
        assert!(tests.contains(&format!("    run(\"{name}\");")), "{name} has no test");
        let target = fs::read_to_string(fuzz().join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(
            target.contains(&format!("tactus::fuzz_targets::run(\"{name}\", bytes)")),
            "{target}"
        );
        let seeds = seeds(name);
        let good = seeds.iter().filter(|(name, _)| name.starts_with("good")).count();
        assert!(
            good > 0 && good < seeds.len(),
            "{name} needs seeds that pass and seeds that do not"
        );
    }
}
