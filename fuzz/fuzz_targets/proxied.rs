//! Fuzzes PROXY protocol headers and forwarding fields.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("proxied", bytes);
});
