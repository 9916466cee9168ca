//! Fuzzes the fields of an upload.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("upload", bytes);
});
