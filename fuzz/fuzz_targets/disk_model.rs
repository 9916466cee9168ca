//! Fuzzes a disk model's file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::untrusted::knock("disk_model", bytes);
});
