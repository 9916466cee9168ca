//! Fuzzes the ring that a local program records through.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("recording", bytes);
});
