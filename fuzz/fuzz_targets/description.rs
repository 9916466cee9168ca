//! Fuzzes session descriptions.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::untrusted::run("description", bytes);
});
