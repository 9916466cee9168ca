//! Fuzzes the memory that a local client shares.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("rings", bytes);
});
