//! Metadata from ownCloud and Nextcloud clients: `X-OC-Mtime`, `OC-Checksum`. rclone sends them
//! with the vendors `owncloud` and `nextcloud`.
//!
//! Promise: stored checksums were computed from the received bytes. A body with a different
//! checksum is not stored. Unknown algorithms are ignored, because this server cannot compute them.

use std::fmt::Write;

use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use tactus_core::units::{SECOND, WallTime};
use tactus_storage::catalogue::Digests;
use tactus_storage::store::TitleMetadata;

use super::fields::Fields;
use super::response::Response;

/// The namespace of ownCloud's properties.
pub(super) const NAMESPACE: &str = "http://owncloud.org/ns";

/// The metadata of a request while its body is received.
pub(super) struct Metadata {
    modified: Option<WallTime>,
    /// Each checksum with the value from the client, if it has sent one.
    sums: Vec<(Checksum, Option<String>)>,
}

#[derive(Clone)]
enum Checksum {
    Sha256(Sha256),
    Sha1(Sha1),
    Md5(Md5),
    Adler32(Adler32),
}

/// Reads the fields of a request.
///
/// # Errors
/// 400 when they are invalid.
pub(super) fn said(fields: &Fields) -> Result<Metadata, Response> {
    let mut sums = Vec::new();
    for field in fields.all("oc-checksum") {
        for one in field.split(|byte| b" ,".contains(byte)).filter(|one| !one.is_empty()) {
            let wrong = || Response::text(400, "OC-Checksum must have the form SHA1:<hex>");
            let one = std::str::from_utf8(one).map_err(|_| wrong())?;
            let (name, value) = one.split_once(':').ok_or_else(wrong)?;
            let (summing, digits) = match name.to_ascii_uppercase().as_str() {
                "SHA256" => (Checksum::Sha256(Sha256::new()), 64),
                "SHA1" => (Checksum::Sha1(Sha1::new()), 40),
                "MD5" => (Checksum::Md5(Md5::new()), 32),
                "ADLER32" => (Checksum::Adler32(Adler32::default()), 8),
                _ => continue,
            };
            let known = |(known, _): &(Checksum, _)| known.name() == summing.name();
            let is_hex = value.bytes().all(|byte| byte.is_ascii_hexdigit());
            if value.len() != digits || !is_hex || sums.iter().any(known) {
                return Err(wrong());
            }
            sums.push((summing, Some(value.to_ascii_lowercase())));
        }
    }
    if !sums.is_empty() {
        // Clients that compare trees later may support only one of these algorithms.
        for other in [Checksum::Sha1(Sha1::new()), Checksum::Md5(Md5::new())] {
            if !sums.iter().any(|(known, _)| known.name() == other.name()) {
                sums.push((other, None));
            }
        }
    }
    Ok(Metadata { modified: modified(fields)?, sums })
}

/// `X-OC-Mtime`: seconds since 1970 with an optional fraction. Earlier times become 1970.
///
/// # Errors
/// 400 when it is no number, or a time that file systems cannot store.
pub(super) fn modified(fields: &Fields) -> Result<Option<WallTime>, Response> {
    let Some(value) = fields.one("x-oc-mtime") else { return Ok(None) };
    let time = std::str::from_utf8(value).ok().and_then(seconds);
    let text = "X-OC-Mtime must be seconds since 1970";
    time.map(Some).ok_or_else(|| Response::text(400, text))
}

/// Seconds since 1970, to the nanosecond; further digits are dropped.
pub(super) fn seconds(text: &str) -> Option<WallTime> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    // Ext4 stores times up to 2446; later ones would wrap.
    let whole = whole.parse::<u64>().ok().filter(|&whole| whole < 1 << 33)?;
    let nanos: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let time = whole * SECOND.0 + nanos.parse::<u64>().ok()?;
    Some(WallTime(if negative { 0 } else { time }))
}

impl Metadata {
    /// Adds received bytes.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.sums.iter_mut().for_each(|(summing, _)| summing.add(bytes));
    }

    /// Ends the body, and returns the metadata to store beside it.
    ///
    /// # Errors
    /// 400 when the bytes have another checksum.
    pub(super) fn end(self) -> Result<TitleMetadata, Response> {
        let mut text = String::new();
        for (summing, expected) in self.sums {
            let (name, sum) = (summing.name(), summing.end());
            if expected.is_some_and(|expected| expected != sum) {
                let text =
                    format!("the checksum of the received body is {name}:{sum}; send it again");
                return Err(Response::text(400, text));
            }
            let space = if text.is_empty() { "" } else { " " };
            write!(text, "{space}{name}:{sum}").expect("a string takes everything");
        }
        Ok(TitleMetadata { modified: self.modified, digests: Digests::new(text) })
    }
}

/// Adds the confirmation of the time, if the request has set one.
pub(super) fn accepted(response: Response, modified: Option<WallTime>) -> Response {
    match modified {
        Some(_) => response.with("X-OC-Mtime", "accepted"),
        None => response,
    }
}

impl Checksum {
    fn name(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "SHA256",
            Self::Sha1(_) => "SHA1",
            Self::Md5(_) => "MD5",
            Self::Adler32(_) => "ADLER32",
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(sum) => sum.update(bytes),
            Self::Sha1(sum) => sum.update(bytes),
            Self::Md5(sum) => sum.update(bytes),
            Self::Adler32(sum) => sum.add(bytes),
        }
    }

    fn end(self) -> String {
        let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
        match self {
            Self::Sha256(sum) => hex(&sum.finalize()),
            Self::Sha1(sum) => hex(&sum.finalize()),
            Self::Md5(sum) => hex(&sum.finalize()),
            Self::Adler32(sum) => hex(&sum.end().to_be_bytes()),
        }
    }
}

/// RFC 1950 section 8.2.
#[derive(Clone, Copy)]
struct Adler32 {
    low: u32,
    high: u32,
}

impl Default for Adler32 {
    fn default() -> Self {
        Self { low: 1, high: 0 }
    }
}

impl Adler32 {
    const BASE: u32 = 65_521;
    /// The most bytes for which the sums stay below 2^32.
    const BYTES_MAX: usize = 5552;

    fn add(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(Self::BYTES_MAX) {
            for &byte in part {
                self.low += u32::from(byte);
                self.high += self.low;
            }
            self.low %= Self::BASE;
            self.high %= Self::BASE;
        }
    }

    fn end(self) -> u32 {
        self.high << 16 | self.low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w05_times_are_seconds_with_an_optional_fraction() {
        let nanos = |text: &str| seconds(text).map(|time| time.0);
        assert_eq!(nanos("1500000000"), Some(1_500_000_000_000_000_000));
        assert_eq!(nanos("1500000000.25"), Some(1_500_000_000_250_000_000));
        assert_eq!(nanos("1.1234567899"), Some(1_123_456_789));
        assert_eq!((nanos("0"), nanos("-5"), nanos("-1.5")), (Some(0), Some(0), Some(0)));
        for bad in ["", "x", "1e9", "+1", "0x10", "1.", ".5", "1.2.3", "8589934592", "--1", " 1"] {
            assert_eq!(nanos(bad), None, "{bad}");
        }
    }

    #[test]
    fn w05_a_checksum_is_stored_when_it_matches_the_bytes() {
        let of = |field: &str, bytes: &[u8]| {
            let mut saying = said(&Fields::of(&[("oc-checksum", field)]))?;
            bytes.chunks(3).for_each(|part| saying.add(part));
            let described = saying.end()?;
            Ok(described.digests.map(|digests| digests.text().to_owned()))
        };
        let status =
            |field: &str| of(field, b"Wikipedia").map_err(|response: Response| response.status());
        let kept = |text: &str| Ok(Some(text.to_owned()));
        let adler = "ADLER32:11e60398";
        let md5 = "MD5:9c677286866aad38f8e9b660f5411814";
        let sha1 = "SHA1:664add438097fbd4307f814de8e62a10f8905588";
        let all = format!("{adler} {sha1} {md5}");
        assert_eq!(status(adler), kept(&all));
        assert_eq!(status("adler32:11E60398"), kept(&all));
        let both = format!("{sha1} {md5}");
        assert_eq!((status(&both), status(sha1)), (kept(&both), kept(&both)));
        assert_eq!(status(md5), kept(&format!("{md5} {sha1}")));
        assert_eq!(status("SHA3:00"), Ok(None), "unknown algorithms are ignored");
        for bad in ["SHA1:00", "SHA1", "MD5:zz677286866aba38f8e9b660f5411814", "ADLER32:11e60399"] {
            assert_eq!(status(bad), Err(400), "{bad}");
        }
        let many = vec![0xff; 1_000_000];
        let mut adler = Adler32::default();
        adler.add(&many);
        assert_eq!(adler.end(), 0x3843e1be, "no sum overflows");
    }
}
