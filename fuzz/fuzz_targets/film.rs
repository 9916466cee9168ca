//! Fuzzes tables of movies, and where requests begin in them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("film", bytes);
});
