//! Unguessable identifiers: 128 random bits for uploads, checksums and discarded files.

use std::fmt;
use std::str::FromStr;

use rustix::rand::{GetRandomFlags, getrandom};

/// The identifier of an upload, or of one of the store's own files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub [u8; 16]);

impl StoreId {
    /// A new identifier.
    ///
    /// # Panics
    /// When the kernel gives no random bytes; it always does once the machine has started.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        let filled = getrandom(&mut bytes, GetRandomFlags::empty());
        assert_eq!(filled, Ok(16), "the kernel gives up to 256 random bytes at once");
        Self(bytes)
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an identifier of 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an upload id has 32 lower-case hexadecimal digits")]
pub struct InvalidId;

impl FromStr for StoreId {
    type Err = InvalidId;

    /// Accepts only the spelling that [`fmt::Display`] writes.
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let plain = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 32 || !text.bytes().all(plain) {
            return Err(InvalidId);
        }
        u128::from_str_radix(text, 16).map(|bits| Self(bits.to_be_bytes())).map_err(|_| InvalidId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_back_from_its_one_spelling() {
        let id = StoreId::random();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_ne!(StoreId::random(), id);
        for text in [
            "",
            "+0000000000000000000000000000001",
            &id.to_string().replace(|c: char| c.is_ascii_digit(), "A"),
            "../../../../../../../../../../etc",
        ] {
            assert_eq!(text.parse::<StoreId>(), Err(InvalidId), "{text}");
        }
    }
}
