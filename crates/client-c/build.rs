//! Gives the shared library the name under which programs look for it.

fn main() {
    // Before version 1.0 each minor version may change the interface.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtactus.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
