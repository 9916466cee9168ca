//! Fuzzes what proxies say of connections and requests.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tactus::untrusted::knock("proxied", bytes);
});
