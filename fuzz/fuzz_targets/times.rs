//! Fuzzes what is told of the times of a title.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("times", bytes);
});
