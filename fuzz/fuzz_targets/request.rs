//! Fuzzes a request's head, and the body behind it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("request", bytes);
});
