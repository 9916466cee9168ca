//! Fuzzes playlists of HLS and manifests of DASH.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::fuzz_targets::run("segments", bytes);
});
