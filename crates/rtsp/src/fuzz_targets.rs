//! Fuzz targets of RTSP and RTCP, without a connection.
//!
//! Promise: see [`crate::fuzz_targets`].

use tactus_core::assembly::tracks;
use tactus_core::sdp::{Description, MEDIA_MAX};

use super::{auth, reports};

/// Parses the session description of an ANNOUNCE.
pub fn description(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(description) = Description::read(text) else { return false };
    assert!(description.media.len() <= MEDIA_MAX);
    let tracks = tracks(&description);
    tracks.is_ok_and(|tracks| tracks.len() == description.media.len())
}

/// Parses a value of `Authorization`.
pub fn credentials(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(auth::understood)
}

/// Parses an RTCP datagram.
pub fn reports(bytes: &[u8]) -> bool {
    let Some(heard) = reports::read(bytes) else { return false };
    // A reception report block has 24 bytes.
    assert!(heard.receptions.len() * 24 <= bytes.len());
    true
}
