//! Fuzzes a title's length, and a `Range` field.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("range", bytes);
});
