//! Fuzzes a chunked body.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::untrusted::run("chunked", bytes);
});
