//! Fuzz targets: the configuration file.
//!
//! Promise: a fuzz target accepts any bytes, returns, and tells whether they were valid. It panics
//! if a mistake has no message or no place. Compiled for tests and fuzzing only.

use std::path::Path;

use crate::Config;

/// A configuration file.
pub fn configuration(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    match Config::parse(Path::new("/etc/tactus.toml"), &text) {
        Ok(_) => true,
        Err(mistake) => {
            assert!(!mistake.to_string().is_empty());
            let lines = text.matches('\n').count() + 1;
            assert!(mistake.place.is_none_or(|place| (1..=lines).contains(&place.line)));
            false
        }
    }
}
