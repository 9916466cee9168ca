//! `Upload-Metadata`: a client's metadata of its upload, and the name of its title.
//!
//! Promise: it is bounded, each key occurs once, and a file name is never a path. The target of a
//! title is a path of its own, checked as that of any request.

use std::collections::HashSet;

use data_encoding::BASE64;
use tactus_core::path::{RequestPath, check_name, encode_segment};

use crate::fields::Fields;
use crate::query;

/// Longest value of the field, in bytes.
const BYTES_MAX: usize = 4096;

/// Why the metadata, or the path, is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum MetadataError {
    #[error("Upload-Metadata has more than {BYTES_MAX} bytes")]
    Long,
    #[error("Upload-Metadata must be a list of `key base64` with unique keys")]
    Form,
    #[error("`filename` must be a name without slashes; use `path` for a path")]
    FileName,
    #[error("invalid path: {0}")]
    Path(tactus_core::path::PathFault),
    #[error(
        "the path is missing: set `filename` or `path` in Upload-Metadata, or ?path= in the \
        URL"
    )]
    Nowhere,
}

/// The parsed metadata.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Metadata {
    /// The field as received, for answers.
    pub(super) raw: String,
    filename: Option<String>,
    path: Option<String>,
}

/// Parses the field; an absent one is empty.
pub(super) fn metadata(fields: &Fields) -> Result<Metadata, MetadataError> {
    let Some(value) = fields.one("upload-metadata") else { return Ok(Metadata::default()) };
    if value.len() > BYTES_MAX {
        return Err(MetadataError::Long);
    }
    // Answers repeat it in a field, so only these characters are allowed.
    let plain = |text: &&str| text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    let raw = std::str::from_utf8(value).ok().filter(plain).ok_or(MetadataError::Form)?;
    let mut metadata = Metadata { raw: raw.to_owned(), ..Metadata::default() };
    let mut keys = HashSet::new();
    for pair in raw.split(',') {
        let pair = pair.trim();
        let (key, value) = pair.split_once(' ').unwrap_or((pair, ""));
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) || !keys.insert(key) {
            return Err(MetadataError::Form);
        }
        let value = BASE64.decode(value.as_bytes()).map_err(|_| MetadataError::Form)?;
        let text = || String::from_utf8(value).map_err(|_| MetadataError::Form);
        match key {
            "filename" => metadata.filename = Some(text()?),
            "path" => metadata.path = Some(text()?),
            _ => {}
        }
    }
    if let Some(name) = &metadata.filename {
        check_name(name).map_err(|_| MetadataError::FileName)?;
        // Some browsers send the Windows path of a file.
        if name.contains('\\') {
            return Err(MetadataError::FileName);
        }
    }
    Ok(metadata)
}

impl Metadata {
    /// The target of the upload: the path in the URL's query, otherwise the one in the metadata,
    /// otherwise the root. A path with a slash at its end is a directory, and the title in it gets
    /// its file name.
    pub(super) fn target(&self, query: Option<&str>) -> Result<RequestPath, MetadataError> {
        let in_url = match query::values(query, "path").next() {
            Some(None) => return Err(MetadataError::Form),
            Some(Some(path)) => Some(path.into_owned()),
            None => None,
        };
        let mut path = in_url.or_else(|| self.path.clone()).unwrap_or_default();
        if path.is_empty() || path.ends_with('/') {
            path.push_str(self.filename.as_deref().ok_or(MetadataError::Nowhere)?);
        }
        request_path(&path).map_err(MetadataError::Path)
    }
}

/// The path in `text`, which is not percent-encoded. Its first slash is optional.
fn request_path(text: &str) -> Result<RequestPath, tactus_core::path::PathFault> {
    let mut raw = String::new();
    for segment in text.strip_prefix('/').unwrap_or(text).split('/') {
        raw.push('/');
        // Checked before its bytes are percent-encoded.
        check_name(segment)?;
        encode_segment(segment, &mut raw);
    }
    RequestPath::parse(raw.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Result<Metadata, MetadataError> {
        metadata(&Fields::of(&[("Upload-Metadata", value)]))
    }

    fn pair(key: &str, value: &str) -> String {
        format!("{key} {}", BASE64.encode(value.as_bytes()))
    }

    #[test]
    fn the_target_is_a_path_or_a_name_at_the_top() {
        let target = |value: &str, query: Option<&str>| {
            read(value).unwrap().target(query).map(|path| path.name().to_owned())
        };
        let name = pair("filename", "größe 1.ts");
        let both = format!("{name},{}", pair("path", "films/"));
        assert_eq!(target(&name, None).unwrap(), "größe 1.ts");
        assert_eq!(target(&both, None).unwrap(), "films/größe 1.ts");
        assert_eq!(target(&both, Some("path=/x/y%20z.ts")).unwrap(), "x/y z.ts");
        assert_eq!(target(&both, Some("path=/new/")).unwrap(), "new/größe 1.ts");
        assert_eq!(target(&pair("path", "/a/b.ts"), None).unwrap(), "a/b.ts");
        assert_eq!(target("is_confidential", None), Err(MetadataError::Nowhere));
        for path in ["a\\b", "a%41", "100%20.ts", "%2f"] {
            assert_eq!(target(&pair("path", path), None).unwrap(), path, "unescaped");
        }
        for path in ["/../a", "a//b", "/a/./b", "..\\b", "a/%2e%2e", ".", "a/\u{202e}b"] {
            let target = target(&pair("path", path), None);
            assert!(matches!(target, Err(MetadataError::Path(_))), "{path}: {target:?}");
        }
    }

    #[test]
    fn u12_metadata_is_bounded_and_a_file_name_leads_nowhere() {
        assert_eq!(read(&format!("a {}", "A".repeat(4096))), Err(MetadataError::Long));
        for form in [
            "",
            " ",
            ",",
            "a b c",
            "a !",
            "a AAA",
            "a AA==,a AA==",
            "a AA==,,b",
            "\u{e9} AA==",
            "a AA== ",
        ] {
            let read = read(form);
            // A blank after a value is not part of it.
            assert_eq!(read.is_err(), form != "a AA== ", "{form:?}: {read:?}");
        }
        for name in ["../../etc/passwd", "a/b", "..", ".", "", "a\\b", "a\0b", "a\nb"] {
            assert_eq!(read(&pair("filename", name)), Err(MetadataError::FileName), "{name:?}");
        }
        assert_eq!(read(&format!("filename {}", BASE64.encode(b"\xff"))), Err(MetadataError::Form));
        let raw = format!("{},empty,other AA==", pair("filename", "a.ts"));
        assert_eq!(read(&raw).unwrap().raw, raw);
    }
}
