//! Fuzz targets of channel requests and lists; no channel runs.
//!
//! Promise: see [`crate::fuzz_targets`].

use super::list;
use crate::channel::{Channel, TITLES_MAX};

/// Parses a list of titles.
pub fn playlist(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(titles) = list::titles(text, "/lists/a.m3u8") else { return false };
    assert!((1..=TITLES_MAX).contains(&titles.len()));
    true
}

/// Parses the body of a request about a channel.
pub fn channel(bytes: &[u8]) -> bool {
    let Ok(keys) = serde_json::from_slice::<serde_json::Map<_, _>>(bytes) else { return false };
    let Ok(text) = toml::to_string(&keys) else { return false };
    let Ok(channel) = Channel::parse(&text) else { return false };
    assert!(!channel.name.is_empty());
    true
}
