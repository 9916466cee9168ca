//! Fuzzes a query and a player's field that name a rate.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("pace", bytes);
});
