//! Percent-encoding (RFC 3986, section 2.1) in queries and in URLs of the command line.
//!
//! Promise: an escape that is broken, or that makes no UTF-8, is an error and never a guess. Paths
//! of requests are not decoded here: `tactus_core::path` refuses more, byte by byte.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// Undoes percent-encoding; `None` when it is broken or no text.
pub fn decode(text: &str) -> Option<Cow<'_, str>> {
    // The library leaves a percent sign without two digits as it is.
    let begins_with_two_digits = |part: &str| {
        part.as_bytes().get(..2).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit))
    };
    let is_whole = text.split('%').skip(1).all(begins_with_two_digits);
    is_whole.then(|| percent_decode_str(text).decode_utf8().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn broken_escapes_are_no_text() {
        assert_eq!(decode("a%20b/%c3%A9").as_deref(), Some("a b/\u{e9}"));
        assert_eq!(decode("%2541").as_deref(), Some("%41"), "decoded once");
        for bad in ["%", "%2", "a%", "%zz", "%+1", "%%41", "%ff", "%c3", "%\u{e9}"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(text in ".*") {
            let encoded = percent_encoding::utf8_percent_encode(
                &text,
                percent_encoding::NON_ALPHANUMERIC,
            );
            let encoded = encoded.to_string();
            let decoded = decode(&encoded);
            prop_assert_eq!(decoded.as_deref(), Some(&text[..]));
        }
    }
}
