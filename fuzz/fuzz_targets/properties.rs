//! Fuzzes the bodies of PROPFIND and PROPPATCH.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("properties", bytes);
});
