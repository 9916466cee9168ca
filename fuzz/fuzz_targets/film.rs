//! Fuzzes tables of movies, and where requests begin in them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::untrusted::knock("film", bytes);
});
