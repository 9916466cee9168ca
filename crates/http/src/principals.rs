//! Principals: clients with rights, each identified by a secret token.
//!
//! Promise: every token is compared by its digest with all digests in constant time, so that timing
//! reveals nothing. The token itself is neither stored nor logged. A request without a token has no
//! principal.

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tactus_control::rights::Rights;
use tactus_control::secret;

use super::fields::Fields;
use super::settings::{self, Token};

/// All principals.
pub struct Principals(Vec<PrincipalEntry>);

struct PrincipalEntry {
    name: String,
    digest: [u8; 32],
    rights: Rights,
}

/// The sender of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Authentication<'a> {
    /// The principal with this name and its rights.
    Principal(&'a str, &'a Rights),
    /// Invalid credentials.
    Invalid,
    /// No credentials, or an empty password.
    Anonymous,
}

/// Shortest token, in characters: a shorter one could be guessed.
const TOKEN_CHARS_MIN: usize = 16;

/// Longest token, in characters: a file with a longer line holds no token.
const TOKEN_CHARS_MAX: usize = 1024;

impl Principals {
    /// Reads the tokens of the configured principals.
    ///
    /// # Errors
    /// When the file of a token cannot be read, or holds no token.
    pub fn read(configured: &[settings::Principal]) -> Result<Self> {
        let mut all: Vec<PrincipalEntry> = Vec::with_capacity(configured.len());
        for principal in configured {
            let digest = digest_of(&principal.token)?;
            if let Some(other) = all.iter().find(|known| known.digest == digest) {
                bail!(same_token(&principal.name, &other.name));
            }
            let (name, rights) = (principal.name.clone(), principal.rights.clone());
            all.push(PrincipalEntry { name, digest, rights });
        }
        Ok(Self(all))
    }

    /// Whether there are no principals.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sender of `fields`, by `Authorization` (RFC 9110 section 11.6.2): `Bearer TOKEN`, or
    /// `Basic` with the token as the password and any user name.
    pub(super) fn who(&self, fields: &Fields) -> Authentication<'_> {
        let mut given = fields.all("authorization");
        let (Some(value), None) = (given.next(), given.next()) else {
            return if fields.one("authorization").is_some() {
                Authentication::Invalid
            } else {
                Authentication::Anonymous
            };
        };
        let Some(token) = token(value) else { return Authentication::Invalid };
        // A guest: a file manager sends an empty password if its user gives none.
        if token.is_empty() && is_basic(value) {
            return Authentication::Anonymous;
        }
        let digest = digest(&token);
        let mut who = Authentication::Invalid;
        for known in &self.0 {
            if bool::from(known.digest.ct_eq(&digest)) {
                who = Authentication::Principal(&known.name, &known.rights);
            }
        }
        who
    }
}

impl fmt::Debug for Principals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|known| &known.name)).finish()
    }
}

/// The digest of a token.
///
/// # Errors
/// When the file cannot be read, or holds no token.
pub fn digest_of(token: &Token) -> Result<[u8; 32]> {
    Ok(match token {
        Token::Sha256(digest) => *digest,
        Token::File(file) => digest(&token_in(file)?),
    })
}

/// The error for two principals with the same token, because their rights would be ambiguous.
pub fn same_token(name: &str, other: &str) -> String {
    format!("the principals {name:?} and {other:?} have the same token; give each its own")
}

/// Reads a token from `file`.
///
/// # Errors
/// When the file cannot be read, or holds no token.
pub fn token_in(file: &Path) -> Result<Vec<u8>> {
    secret::read(file, "token", TOKEN_CHARS_MIN, TOKEN_CHARS_MAX)
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn is_basic(value: &[u8]) -> bool {
    value.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"basic "))
}

/// The token in the value of an `Authorization` field.
fn token(value: &[u8]) -> Option<Vec<u8>> {
    let at = value.iter().position(|&byte| byte == b' ')?;
    let (scheme, rest) = value.split_at(at);
    let credentials = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(credentials.to_vec());
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    // RFC 7617 section 2: a user name has no colon, but a password may have one.
    let pair = data_encoding::BASE64.decode(credentials).ok()?;
    let colon = pair.iter().position(|&byte| byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "correct-horse-battery";

    fn principals() -> Principals {
        let principal = |name: &str, token: &str| settings::Principal {
            name: name.into(),
            token: Token::Sha256(digest(token.as_bytes())),
            quota: None,
            rights: Rights::all(),
        };
        let all = [principal("alice", TOKEN), principal("bob", "another-secret-token")];
        Principals::read(&all).expect("no file is read")
    }

    fn who(fields: &[&str]) -> String {
        let fields: Vec<_> = fields.iter().map(|value| ("authorization", *value)).collect();
        match principals().who(&Fields::of(&fields)) {
            Authentication::Principal(name, _) => name.to_owned(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_token_is_known_in_either_scheme() {
        let basic = |pair: &str| format!("Basic {}", data_encoding::BASE64.encode(pair.as_bytes()));
        assert_eq!(who(&[&format!("Bearer {TOKEN}")]), "alice");
        assert_eq!(who(&[&format!("bearer  {TOKEN}")]), "alice");
        assert_eq!(who(&["Bearer another-secret-token"]), "bob");
        assert_eq!(who(&[&basic(&format!("whoever:{TOKEN}"))]), "alice");
        assert_eq!(who(&[&basic(&format!(":{TOKEN}"))]), "alice");
        assert_eq!(who(&[]), "Anonymous");
        assert_eq!(who(&[&basic("guest:")]), "Anonymous");
        for wrong in [
            "Bearer correct-horse-batter",
            "Bearer correct-horse-battery2",
            "Bearer alice",
            "Bearer",
            "",
            TOKEN,
            &format!("Digest {TOKEN}"),
            &format!("Basic {TOKEN}"),
            &basic(TOKEN),
        ] {
            assert_eq!(who(&[wrong]), "Invalid", "{wrong}");
        }
        let right = format!("Bearer {TOKEN}");
        assert_eq!(who(&[&right, &right]), "Invalid", "a request has one sender");
    }

    #[test]
    fn k03_nothing_prints_a_token() {
        assert_eq!(format!("{:?}", principals()), "[\"alice\", \"bob\"]");
    }
}
