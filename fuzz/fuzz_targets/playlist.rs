//! Fuzzes lists of titles.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::untrusted::run("playlist", bytes);
});
