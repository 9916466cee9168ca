//! The fields of tus 1.0, read strictly.
//!
//! Promise: a number has only digits and is below 2^63; a list is bounded. An ambiguous value is a
//! [`FieldError`], never a default.

use data_encoding::BASE64;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use tactus_core::path::RequestPath;

use crate::fields::Fields;
use crate::response::Response;
use crate::target::{self, Target};

/// The place where uploads are created. Each upload is below it.
pub(crate) const UPLOADS: &str = "/api/v1/uploads";

/// The supported version.
pub(super) const VERSION: &str = "1.0.0";

/// The supported checksums of a request's body.
pub(super) const ALGORITHMS: &str = "sha1,sha256,crc32c";

/// Most parts of one upload.
pub(super) const PARTS_MAX: usize = 1000;

/// Why a request is invalid, with the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FieldError {
    /// The version of tus is another one, or missing.
    Version,
    /// The value of this field is invalid.
    Field(&'static str),
    /// Neither `Upload-Length` nor `Upload-Defer-Length`, or both.
    Length,
    /// The body has another media type.
    MediaType,
    /// More parts than [`PARTS_MAX`].
    ManyParts,
    /// The checksum's algorithm is not supported.
    Algorithm,
}

impl FieldError {
    pub(super) fn response(self) -> Response {
        match self {
            Self::Version => {
                let text = format!("write Tus-Resumable: {VERSION}");
                Response::text(412, text).with("Tus-Version", VERSION)
            }
            Self::Field(name) => Response::text(400, format!("the value of {name} is invalid")),
            Self::Length => {
                Response::text(400, "write either Upload-Length, or Upload-Defer-Length: 1")
            }
            Self::MediaType => {
                Response::text(415, "write Content-Type: application/offset+octet-stream")
            }
            Self::ManyParts => {
                Response::text(400, format!("an upload has at most {PARTS_MAX} parts"))
            }
            Self::Algorithm => Response::text(
                400,
                format!(
                    "the checksum algorithm must be one of \
                {ALGORITHMS}"
                ),
            ),
        }
    }
}

/// Checks the version of tus in the request.
pub(super) fn version(fields: &Fields) -> Result<(), FieldError> {
    match fields.one("tus-resumable") {
        Some(version) if version == VERSION.as_bytes() => Ok(()),
        _ => Err(FieldError::Version),
    }
}

/// `Upload-Offset`, which is required.
pub(super) fn offset(fields: &Fields) -> Result<u64, FieldError> {
    let name = "Upload-Offset";
    number(fields, name)?.ok_or(FieldError::Field(name))
}

/// `Upload-Length`, if present.
pub(super) fn length(fields: &Fields) -> Result<Option<u64>, FieldError> {
    number(fields, "Upload-Length")
}

/// The length in a creation; none if it follows later.
pub(super) fn declared(fields: &Fields) -> Result<Option<u64>, FieldError> {
    match (length(fields)?, fields.one("upload-defer-length")) {
        (Some(length), None) => Ok(Some(length)),
        (None, Some(b"1")) => Ok(None),
        (None, Some(_)) => Err(FieldError::Field("Upload-Defer-Length")),
        (Some(_), Some(_)) | (None, None) => Err(FieldError::Length),
    }
}

/// Checks that the media type is that of bytes of an upload.
pub(super) fn media_type(fields: &Fields) -> Result<(), FieldError> {
    let name = fields.one("content-type").unwrap_or_default();
    match name.eq_ignore_ascii_case(b"application/offset+octet-stream") {
        true => Ok(()),
        false => Err(FieldError::MediaType),
    }
}

fn number(fields: &Fields, name: &'static str) -> Result<Option<u64>, FieldError> {
    let Some(value) = fields.one(name) else { return Ok(None) };
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(value).ok().filter(|_| digits).and_then(|v| v.parse().ok());
    // No file can be longer: the kernel counts in signed 64 bits.
    let number = number.filter(|&number: &u64| i64::try_from(number).is_ok());
    number.map(Some).ok_or(FieldError::Field(name))
}

/// The relation of an upload to others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Concat {
    /// It becomes a title of its own.
    Alone,
    /// It is a part of another upload.
    Partial,
    /// It joins the parts of these identifiers in this order.
    Final(Vec<String>),
}

/// `Upload-Concat`. A part that is not ours keeps its identifier, which no upload has. `own`
/// converts a client's path to the server's form.
pub(super) fn concat(
    fields: &Fields,
    own: &impl Fn(RequestPath) -> RequestPath,
) -> Result<Concat, FieldError> {
    const WRONG: FieldError = FieldError::Field("Upload-Concat");
    let Some(value) = fields.one("upload-concat") else { return Ok(Concat::Alone) };
    if value == b"partial" {
        return Ok(Concat::Partial);
    }
    let urls = value.strip_prefix(b"final;").ok_or(WRONG)?;
    let urls: Vec<_> = urls.split(|&byte| byte == b' ').filter(|url| !url.is_empty()).collect();
    if urls.is_empty() {
        return Err(WRONG);
    }
    if urls.len() > PARTS_MAX {
        return Err(FieldError::ManyParts);
    }
    let parts = urls.into_iter().map(|url| part(url, own).ok_or(WRONG));
    parts.collect::<Result<_, _>>().map(Concat::Final)
}

/// The identifier in a part's URL, which is absolute or a path. The host does not matter, as in the
/// request.
fn part(url: &[u8], own: &impl Fn(RequestPath) -> RequestPath) -> Option<String> {
    let (target, _) = target::of_url(url).ok()?;
    let Target::Path { path, .. } = target else { return None };
    let path = own(path);
    let id = path.name().strip_prefix(UPLOADS.trim_start_matches('/'))?.strip_prefix('/')?;
    Some(id.to_owned())
}

/// The expected checksum of a body, and its computation.
pub(super) struct Checksum {
    summing: ChecksumState,
    expected: Vec<u8>,
}

#[derive(Clone)]
enum ChecksumState {
    Sha1(Sha1),
    Sha256(Sha256),
    Crc32c(u32),
}

/// `Upload-Checksum`, if present.
pub(super) fn checksum(fields: &Fields) -> Result<Option<Checksum>, FieldError> {
    const WRONG: FieldError = FieldError::Field("Upload-Checksum");
    let Some(value) = fields.one("upload-checksum") else { return Ok(None) };
    let space = value.iter().position(|&byte| byte == b' ').ok_or(WRONG)?;
    let (summing, len) = match &value[..space] {
        b"sha1" => (ChecksumState::Sha1(Sha1::new()), 20),
        b"sha256" => (ChecksumState::Sha256(Sha256::new()), 32),
        b"crc32c" => (ChecksumState::Crc32c(0), 4),
        _ => return Err(FieldError::Algorithm),
    };
    let expected = BASE64.decode(value[space..].trim_ascii()).map_err(|_| WRONG)?;
    match expected.len() == len {
        true => Ok(Some(Checksum { summing, expected })),
        false => Err(WRONG),
    }
}

impl Checksum {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        match &mut self.summing {
            ChecksumState::Sha1(sum) => sum.update(bytes),
            ChecksumState::Sha256(sum) => sum.update(bytes),
            ChecksumState::Crc32c(sum) => *sum = crc32c::crc32c_append(*sum, bytes),
        }
    }

    /// Whether the bytes match the client's checksum.
    pub(super) fn matches(&self) -> bool {
        match self.summing.clone() {
            ChecksumState::Sha1(sum) => sum.finalize()[..] == self.expected,
            ChecksumState::Sha256(sum) => sum.finalize()[..] == self.expected,
            // Most significant byte first, as in every field with a CRC (RFC 3309 in network
            // order).
            ChecksumState::Crc32c(sum) => sum.to_be_bytes()[..] == self.expected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Fields {
        Fields::of(&[(name, value)])
    }

    #[test]
    fn u08_a_length_is_a_plain_number_below_two_to_the_63() {
        for (value, length) in [("0", 0), ("17", 17), ("9223372036854775807", i64::MAX as u64)] {
            assert_eq!(length_of(value), Ok(Some(length)), "{value}");
        }
        for value in [
            "-1",
            "1e9",
            "9223372036854775808",
            "18446744073709551616",
            "+5",
            "",
            "0x5",
            "5 5",
            "5,5",
        ] {
            assert_eq!(length_of(value), Err(FieldError::Field("Upload-Length")), "{value:?}");
        }
        let both = Fields::of(&[("Upload-Length", "5"), ("Upload-Defer-Length", "1")]);
        assert_eq!(declared(&both), Err(FieldError::Length));
        assert_eq!(declared(&Fields::default()), Err(FieldError::Length));
        assert_eq!(declared(&with("Upload-Defer-Length", "1")), Ok(None));
        let two = declared(&with("Upload-Defer-Length", "2"));
        assert_eq!(two, Err(FieldError::Field("Upload-Defer-Length")));
    }

    fn length_of(value: &str) -> Result<Option<u64>, FieldError> {
        length(&with("Upload-Length", value))
    }

    #[test]
    fn the_version_and_the_media_type_are_named() {
        assert_eq!(version(&with("Tus-Resumable", "1.0.0")), Ok(()));
        assert_eq!(version(&with("Tus-Resumable", "0.2.2")), Err(FieldError::Version));
        assert_eq!(version(&Fields::default()), Err(FieldError::Version));
        assert_eq!(FieldError::Version.response().status(), 412);
        assert_eq!(media_type(&with("Content-Type", "application/offset+octet-stream")), Ok(()));
        for other in ["application/octet-stream", "", "application/offset+octet-stream; x=y"] {
            assert_eq!(
                media_type(&with("Content-Type", other)),
                Err(FieldError::MediaType),
                "{other}"
            );
        }
    }

    #[test]
    fn u15_parts_are_named_by_their_urls_and_bounded() {
        let id = "0123456789abcdef0123456789abcdef";
        let parts = |value: &str| concat(&with("Upload-Concat", value), &|path| path);
        assert_eq!(parts("partial"), Ok(Concat::Partial));
        assert_eq!(concat(&Fields::default(), &|path| path), Ok(Concat::Alone));
        let both = format!("final;{UPLOADS}/{id} http://any.example:80{UPLOADS}/{id}");
        assert_eq!(parts(&both), Ok(Concat::Final(vec![id.into(), id.into()])));
        for wrong in [
            "",
            "Partial",
            "final",
            "final;",
            "final; ",
            "final;/elsewhere/x",
            "final;x",
            "final;https://x",
            &format!("final;{UPLOADS}"),
            &format!("final;{UPLOADS}/../x"),
        ] {
            assert_eq!(parts(wrong), Err(FieldError::Field("Upload-Concat")), "{wrong}");
        }
        let many = |n: usize| format!("final;{}", format!("{UPLOADS}/{id} ").repeat(n));
        assert!(
            matches!(parts(&many(PARTS_MAX)), Ok(Concat::Final(all)) if all.len() == PARTS_MAX)
        );
        assert_eq!(parts(&many(PARTS_MAX + 1)), Err(FieldError::ManyParts));
    }

    #[test]
    fn u10_a_sum_is_of_a_known_kind_and_of_its_length() {
        let of = |value: &str, bytes: &[u8]| {
            checksum(&with("Upload-Checksum", value)).map(|sum| {
                let mut sum = sum.expect("it is there");
                let (first, rest) = bytes.split_at(bytes.len() / 2);
                sum.add(first);
                sum.add(rest);
                sum.matches()
            })
        };
        // The first is the example in the protocol's specification.
        assert_eq!(of("sha1 Kq5sNclPz7QV2+lfQIuc6R7oRu0=", b"hello world"), Ok(true));
        assert_eq!(of("sha1 Kq5sNclPz7QV2+lfQIuc6R7oRu0=", b"hello, world"), Ok(false));
        let sha256 = "sha256 uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek=";
        assert_eq!(of(sha256, b"hello world"), Ok(true));
        // RFC 3720, B.4: 32 bytes of zeros.
        assert_eq!(of("crc32c ipE2qg==", &[0; 32]), Ok(true));
        for value in ["md5 1B2M2Y8AsgTpgAmY7PhCfg==", "SHA1 Kq5sNclPz7QV2+lfQIuc6R7oRu0="] {
            assert_eq!(of(value, b""), Err(FieldError::Algorithm), "{value}");
        }
        for value in ["sha1", "", "sha1 ", "sha1 AAAA", "sha1 !", "crc32c ipE2qg"] {
            assert_eq!(of(value, b""), Err(FieldError::Field("Upload-Checksum")), "{value}");
        }
    }
}
