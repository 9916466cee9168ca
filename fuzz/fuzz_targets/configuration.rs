//! Fuzzes a configuration file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::untrusted::run("configuration", bytes);
});
