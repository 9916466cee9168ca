//! Fuzzes what comes on a connection of RTSP.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("rtsp", bytes);
});
