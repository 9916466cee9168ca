//! Fuzzes listings: the body of a PROPFIND and names of entries.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("listing", bytes);
});
