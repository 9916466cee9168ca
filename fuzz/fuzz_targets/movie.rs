//! Fuzzes the probe of movies.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::untrusted::run("movie", bytes);
});
