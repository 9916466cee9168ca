//! Fuzzes credentials of RTSP.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::untrusted::knock("credentials", bytes);
});
