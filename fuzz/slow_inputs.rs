//! Prints the slowest of the worst inputs at each entry point, at the largest size that the limits
//! admit.
//!
//! Promise: it fails when an input keeps a control thread longer than allowed. Build it with
//! optimisation:
//!
//!     cd fuzz && RUSTFLAGS="--cfg fuzzing" cargo run --release --bin slow-inputs

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tactus::fuzz_targets::cost::{self, CONTROL_TIME_MAX, Cost};
use tactus::fuzz_targets::{TARGETS, Target, Thread, worst};

/// Measurements of each input; the lowest counts.
const TRIES: u32 = 3;
/// Inputs that cost less are tried once.
const CHEAP: Duration = Duration::from_micros(500);

fn main() -> ExitCode {
    if cfg!(debug_assertions) {
        eprintln!("slow-inputs: measure with --release");
        return ExitCode::from(2);
    }
    println!("| fuzz target | thread | bytes | inputs | slowest | memory | which |");
    println!("|---|---|---|---|---|---|---|");
    let mut slowest = Duration::ZERO;
    for target in &TARGETS {
        let seeds = seeds(target);
        let inputs = worst::inputs(target, &seeds, target.bytes_max);
        let cost = |bytes: &[u8]| match cost::of(target, bytes, 1) {
            cost if cost.time < CHEAP => cost,
            cost => cost.min(cost::of(target, bytes, TRIES - 1)),
        };
        let costs: Vec<_> = inputs.iter().map(|input| (cost(&input.bytes), input)).collect();
        let slowest_input = costs.iter().max_by_key(|(cost, _)| cost.time);
        let (Cost { time, .. }, input) = slowest_input.expect("each entry point has inputs");
        let held = costs.iter().map(|(cost, _)| cost.held).max().unwrap_or(0);
        let (thread, all) = (format!("{:?}", target.thread).to_lowercase(), inputs.len());
        let (millis, mebibytes) = (time.as_secs_f64() * 1e3, held as f64 / f64::from(1 << 20));
        let (name, most, what) = (target.name, target.bytes_max, &input.name);
        println!(
            "| {name} | {thread} | {most} | {all} | {millis:.2} ms | {mebibytes:.1} MiB | {what} |"
        );
        if target.thread == Thread::Control {
            slowest = slowest.max(*time);
        }
    }
    println!();
    println!("slowest input on a control thread: {:.2} ms", slowest.as_secs_f64() * 1e3);
    if slowest > CONTROL_TIME_MAX { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn seeds(target: &Target) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target.name);
    let entries = std::fs::read_dir(&dir).expect("the seeds lie beside this file");
    let mut seeds: Vec<_> = entries
        .map(|entry| {
            let entry = entry.expect("a directory can be read");
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read(entry.path()).expect("a seed can be read"))
        })
        .collect();
    seeds.sort();
    seeds
}
