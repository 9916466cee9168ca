//! Fuzzes the bodies of PROPFIND and PROPPATCH.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::untrusted::run("properties", bytes);
});
