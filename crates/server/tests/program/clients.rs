//! Foreign clients that are no Debian packages, with our scripts for them.
//!
//! Promise: what `cargo xtask setup` has not installed fails its test by name.

use std::path::{Path, PathBuf};

/// Where they are.
pub(crate) fn directory() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target");
    target.join("tools/clients")
}

/// The path of one of our scripts.
pub(crate) fn script(name: &str) -> String {
    let place = directory().join(name);
    assert!(place.exists(), "{} is missing: cargo xtask setup", place.display());
    place.to_str().expect("a plain name").to_owned()
}
