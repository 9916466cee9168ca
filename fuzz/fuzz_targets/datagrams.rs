//! Fuzzes live inputs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::untrusted::run("datagrams", bytes);
});
