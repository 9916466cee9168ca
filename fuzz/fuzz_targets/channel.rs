//! Fuzzes the bodies of requests about channels.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("channel", bytes);
});
