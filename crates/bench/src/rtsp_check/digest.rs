//! Digest authentication as a client does it (RFC 7616; RFC 2617 and RFC 2069 where a server offers
//! no more).
//!
//! Promise: a password is never sent, but hashed with what the server has said; of several
//! challenges the strongest that is known is answered.

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use md5::{Digest, Md5};
use sha2::Sha256;

/// Who asks.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) name: String,
    pub(super) password: String,
}

// A password is nobody's to see.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a server wants to be answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Challenge {
    realm: String,
    nonce: String,
    opaque: Option<String>,
    is_sha256: bool,
    /// `qop` has `auth` in it.
    has_quality: bool,
    /// Answered so far.
    count: u32,
    /// The credentials were right, but made with an old nonce.
    pub(super) is_stale: bool,
}

/// What a client adds by itself; it need not be secret where nothing else is.
const OWN_NONCE: &str = "0a4f113b";

impl Challenge {
    /// The best of those in `headers`, each the value of one `WWW-Authenticate`.
    pub(super) fn choose<'a>(headers: impl Iterator<Item = &'a str>) -> Result<Self> {
        let all: Vec<_> = headers.filter_map(Self::read).collect();
        let best = all.iter().find(|one| one.is_sha256).or(all.first());
        best.cloned().context("401 without a challenge that is Digest by MD5 or SHA-256")
    }

    fn read(text: &str) -> Option<Self> {
        let (scheme, mut rest) = text.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("digest").then_some(())?;
        let mut fields = vec![];
        loop {
            rest = rest.trim_start_matches([' ', ',']);
            if rest.is_empty() {
                break;
            }
            let (name, behind) = rest.split_once('=')?;
            let value;
            if let Some(quoted) = behind.trim_start().strip_prefix('"') {
                (value, rest) = quoted.split_once('"')?;
            } else {
                (value, rest) = behind.split_once(',').unwrap_or((behind, ""));
            }
            fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
        let field = |name: &str| {
            let found = fields.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone())
        };
        let is_sha256 = match field("algorithm").as_deref() {
            None => false,
            Some(name) if name.eq_ignore_ascii_case("MD5") => false,
            Some(name) if name.eq_ignore_ascii_case("SHA-256") => true,
            Some(_) => return None,
        };
        let qualities = field("qop");
        let has_quality =
            qualities.is_some_and(|all| all.split(',').any(|one| one.trim() == "auth"));
        Some(Self {
            realm: field("realm")?,
            nonce: field("nonce")?,
            opaque: field("opaque"),
            is_sha256,
            has_quality,
            count: 0,
            is_stale: field("stale").is_some_and(|value| value.eq_ignore_ascii_case("true")),
        })
    }

    /// What `Authorization` says of this request.
    pub(super) fn answer(&mut self, who: &Credentials, verb: &str, url: &str) -> String {
        self.count += 1;
        let Credentials { name, password } = who;
        let Self { realm, nonce, opaque, has_quality, count, .. } = &*self;
        let secret = self.hash(&format!("{name}:{realm}:{password}"));
        let what = self.hash(&format!("{verb}:{url}"));
        let quality = format!("{count:08x}:{OWN_NONCE}:auth");
        let response = match has_quality {
            true => self.hash(&format!("{secret}:{nonce}:{quality}:{what}")),
            false => self.hash(&format!("{secret}:{nonce}:{what}")),
        };
        let mut text = format!(
            "Digest username=\"{name}\", realm=\"{realm}\", nonce=\"{nonce}\", uri=\"{url}\", \
             response=\"{response}\""
        );
        if self.is_sha256 {
            text += ", algorithm=SHA-256";
        }
        if *has_quality {
            text += &format!(", qop=auth, nc={count:08x}, cnonce=\"{OWN_NONCE}\"");
        }
        if let Some(opaque) = opaque {
            text += &format!(", opaque=\"{opaque}\"");
        }
        text
    }

    fn hash(&self, text: &str) -> String {
        match self.is_sha256 {
            true => HEXLOWER.encode(&Sha256::digest(text)),
            false => HEXLOWER.encode(&Md5::digest(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc_is_answered() {
        // RFC 2617, section 3.5, whose client has the same nonce.
        let offered = "Digest realm=\"testrealm@host.com\", qop=\"auth,auth-int\", \
                       nonce=\"dcd98b7102dd2f0e8b11d0f600bfb0c093\", \
                       opaque=\"5ccc069c403ebaf9f0171e9517f40e41\"";
        let mut challenge = Challenge::choose([offered].into_iter()).expect("it is one");
        let who = Credentials { name: "Mufasa".to_owned(), password: "Circle Of Life".to_owned() };
        let answer = challenge.answer(&who, "GET", "/dir/index.html");
        assert!(answer.contains("response=\"6629fae49393a05397450978507c4ef1\""), "{answer}");
        assert!(answer.contains("nc=00000001") && answer.contains("opaque=\"5ccc"), "{answer}");
        assert!(!format!("{who:?}").contains("Circle"));
    }

    #[test]
    fn of_several_challenges_the_strongest_is_taken() {
        let md5 = "Digest realm=\"a\", nonce=\"b\", algorithm=MD5";
        let sha = "digest realm=\"a\",nonce=\"b\",algorithm=SHA-256, stale=TRUE";
        let other = "Digest realm=\"a\", nonce=\"b\", algorithm=SHA-512-256";
        let choose = |all: &[&'static str]| Challenge::choose(all.iter().copied()).ok();
        let taken = choose(&["Basic realm=\"a\"", md5, sha]).expect("two are known");
        assert!(taken.is_sha256 && taken.is_stale && !taken.has_quality);
        assert!(choose(&[other, md5]).is_some_and(|taken| !taken.is_sha256));
        for none in [&[][..], &["Basic realm=\"a\""], &[other], &["Digest nonce=\"b\""]] {
            assert_eq!(choose(none), None, "{none:?}");
        }
    }
}
