//! Fuzzes the probe and the scan of containers without a table of samples.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("frames", bytes);
});
