//! Fuzzes live inputs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("datagrams", bytes);
});
