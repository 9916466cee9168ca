//! Fuzzes the index of transport streams.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::untrusted::run("index", bytes);
});
