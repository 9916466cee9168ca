//! Fuzzes a disk model's file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("disk_model", bytes);
});
