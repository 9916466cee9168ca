//! Fuzzes what is told of the times of a title.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::untrusted::run("times", bytes);
});
