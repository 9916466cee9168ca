//! Digest authentication (RFC 7616; without `qop` as in RFC 2069, which players use).
//!
//! Promise: neither a password nor a value that is valid on another connection crosses the wire.
//! Guessing is limited to [`GUESSES_MAX`] a minute for each address. Basic is not offered: RTSP is
//! not encrypted.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use data_encoding::HEXLOWER;
use md5::{Digest, Md5};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use tactus_control::secret;

use super::connection_limit::network;
use super::settings::Principal;

/// The realm, which players show beside the password prompt.
const REALM: &str = "tactus";
/// Shorter passwords can be guessed from a captured response.
const CHARS_MIN: usize = 8;
const CHARS_MAX: usize = 1024;
/// Wrong passwords of one address in a minute.
pub(super) const GUESSES_MAX: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);
/// Addresses whose wrong passwords are counted.
const GUESSERS_MAX: usize = 16 * 1024;
/// A nonce older than this is stale.
const NONCE_AGE_MAX: Duration = Duration::from_secs(3600);

/// The accounts, and the wrong passwords of each address.
pub(super) struct Passwords {
    accounts: Vec<Account>,
    guesses: Mutex<HashMap<IpAddr, FailedLogins>>,
}

struct Account {
    principal: Principal,
    /// H(name ":" realm ":" password), by MD5 and by SHA-256.
    md5: String,
    sha256: String,
}

struct FailedLogins {
    since: Instant,
    count: u32,
}

/// The nonce of one connection.
pub(super) struct Nonce {
    text: String,
    made: Instant,
}

impl Nonce {
    pub(super) fn new() -> std::io::Result<Self> {
        let text = HEXLOWER.encode(&super::random::<16>()?);
        Ok(Self { text, made: Instant::now() })
    }

    /// The challenges: SHA-256 first, as it is stronger, and MD5 last, as ffmpeg and GStreamer use
    /// the last one.
    pub(super) fn challenges(&self, is_stale: bool) -> [String; 2] {
        let stale = if is_stale { ", stale=true" } else { "" };
        ["SHA-256", "MD5"].map(|algorithm| {
            let nonce = &self.text;
            format!("Digest realm=\"{REALM}\", nonce=\"{nonce}\", algorithm={algorithm}{stale}")
        })
    }

    pub(super) fn is_old(&self) -> bool {
        self.made.elapsed() > NONCE_AGE_MAX
    }
}

/// The result of checking credentials.
pub(super) enum Verdict<'a> {
    Right(&'a Principal),
    /// Valid, but made with an old nonce.
    Stale,
    Wrong,
}

/// The signed parts of a request.
#[derive(Clone, Copy)]
pub(super) struct SignedRequest<'a> {
    pub(super) verb: &'a str,
    pub(super) uri: &'a str,
}

impl Passwords {
    pub(super) fn read(principals: &[Principal]) -> Result<Self> {
        let accounts = principals.iter().map(|principal| {
            let password = password_in(&principal.password)?;
            let secret = [principal.name.as_bytes(), REALM.as_bytes(), &password].join(&b':');
            let principal = principal.clone();
            let (md5, sha256) = (hash::<Md5>(&secret), hash::<Sha256>(&secret));
            Ok(Account { principal, md5, sha256 })
        });
        Ok(Self { accounts: accounts.collect::<Result<_>>()?, guesses: Mutex::default() })
    }

    /// Whether this address has reached the limit of wrong passwords.
    pub(super) fn is_locked(&self, address: IpAddr, now: Instant) -> bool {
        let guesses = self.guesses.lock().unwrap_or_else(PoisonError::into_inner);
        let found = guesses.get(&network(address));
        found.is_some_and(|one| one.count >= GUESSES_MAX && now - one.since < MINUTE)
    }

    pub(super) fn count_guess(&self, address: IpAddr, now: Instant) {
        let mut guesses = self.guesses.lock().unwrap_or_else(PoisonError::into_inner);
        if guesses.len() >= GUESSERS_MAX {
            guesses.retain(|_, one| now - one.since < MINUTE);
        }
        if guesses.len() >= GUESSERS_MAX {
            // More addresses guess than can be counted. The delay of each wrong answer still
            // applies.
            guesses.clear();
        }
        let one = guesses.entry(network(address)).or_insert(FailedLogins { since: now, count: 0 });
        if now - one.since >= MINUTE {
            *one = FailedLogins { since: now, count: 0 };
        }
        one.count += 1;
    }

    /// Checks `authorization` for this request.
    pub(super) fn judge(
        &self,
        authorization: &str,
        signed: SignedRequest<'_>,
        nonce: &Nonce,
    ) -> Verdict<'_> {
        let Some(given) = Credentials::read(authorization) else { return Verdict::Wrong };
        // Every account is tried, so that the time does not reveal which names exist.
        let mut found = None;
        for known in &self.accounts {
            let expected = known.response(&given, signed.verb);
            let is_right = bool::from(expected.as_bytes().ct_eq(given.response.as_bytes()));
            if is_right && known.principal.name == given.name {
                found = Some(&known.principal);
            }
        }
        match found {
            Some(principal) if given.uri == signed.uri && given.realm == REALM => {
                let is_fresh = given.nonce == nonce.text && !nonce.is_old();
                if is_fresh { Verdict::Right(principal) } else { Verdict::Stale }
            }
            _ => Verdict::Wrong,
        }
    }
}

impl Account {
    fn response(&self, given: &Credentials, verb: &str) -> String {
        match given.is_sha256 {
            true => response::<Sha256>(&self.sha256, given, verb),
            false => response::<Md5>(&self.md5, given, verb),
        }
    }
}

/// RFC 7616, section 3.4.1.
fn response<D: Digest>(secret: &str, given: &Credentials, verb: &str) -> String {
    let Credentials { nonce, uri, .. } = given;
    let what = hash::<D>(format!("{verb}:{uri}").as_bytes());
    let text = match &given.quality {
        None => format!("{secret}:{nonce}:{what}"),
        Some(Quality { word, count, own }) => {
            format!("{secret}:{nonce}:{count}:{own}:{word}:{what}")
        }
    };
    hash::<D>(text.as_bytes())
}

fn hash<D: Digest>(bytes: &[u8]) -> String {
    HEXLOWER.encode(&D::digest(bytes))
}

/// The fields of an `Authorization` header.
#[derive(Default)]
struct Credentials {
    name: String,
    realm: String,
    nonce: String,
    uri: String,
    response: String,
    is_sha256: bool,
    quality: Option<Quality>,
}

#[derive(Default)]
struct Quality {
    /// The text as written, which is the hashed form.
    word: String,
    count: String,
    own: String,
}

impl Credentials {
    fn read(text: &str) -> Option<Self> {
        let (scheme, mut rest) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("digest").then_some(())?;
        let mut given = Self::default();
        let (mut quality, mut has_quality) = (Quality::default(), false);
        loop {
            rest = rest.trim_start_matches([' ', ',']);
            if rest.is_empty() {
                break;
            }
            let (name, behind) = rest.split_once('=')?;
            let value;
            // No value of these fields contains an escaped quote.
            if let Some(quoted) = behind.trim_start().strip_prefix('"') {
                (value, rest) = quoted.split_once('"')?;
            } else {
                (value, rest) = behind.split_once(',').unwrap_or((behind, ""));
            }
            let value = value.trim();
            match name.trim().to_ascii_lowercase().as_str() {
                "username" => given.name = value.into(),
                "realm" => given.realm = value.into(),
                "nonce" => given.nonce = value.into(),
                "uri" => given.uri = value.into(),
                "response" => given.response = value.to_ascii_lowercase(),
                "algorithm" if value.eq_ignore_ascii_case("MD5") => {}
                "algorithm" if value.eq_ignore_ascii_case("SHA-256") => given.is_sha256 = true,
                "algorithm" => return None,
                "qop" if value.eq_ignore_ascii_case("auth") => {
                    (quality.word, has_quality) = (value.into(), true);
                }
                "qop" => return None,
                "nc" => quality.count = value.into(),
                "cnonce" => quality.own = value.into(),
                _ => {}
            }
        }
        given.quality = has_quality.then_some(quality);
        Some(given)
    }
}

/// Parses any text as credentials; returns whether it is valid. No password matches.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(super) fn understood(text: &str) -> bool {
    let principal = Principal {
        name: "a".into(),
        password: "".into(),
        destinations: vec![],
        records: false,
        paths: tactus_control::rights::Paths::everywhere(),
    };
    let account = Account { principal, md5: hash::<Md5>(b"a"), sha256: hash::<Sha256>(b"a") };
    let passwords = Passwords { accounts: vec![account], guesses: Mutex::default() };
    let nonce = Nonce { text: "a".into(), made: Instant::now() };
    let signed = SignedRequest { verb: "PLAY", uri: "rtsp://h/a.ts" };
    let verdict = passwords.judge(text, signed, &nonce);
    assert!(matches!(verdict, Verdict::Wrong), "no principal has this password");
    Credentials::read(text)
        .is_some_and(|given| !given.name.is_empty() && !given.response.is_empty())
}

/// The password that `file` holds.
pub fn password_in(file: &Path) -> Result<Vec<u8>> {
    secret::read(file, "password", CHARS_MIN, CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use tactus_control::rights::Paths;

    use super::*;

    fn account(name: &str, password: &str) -> Account {
        let secret = format!("{name}:{REALM}:{password}");
        let (md5, sha256) = (hash::<Md5>(secret.as_bytes()), hash::<Sha256>(secret.as_bytes()));
        let principal = Principal {
            name: name.into(),
            password: "".into(),
            destinations: vec![],
            records: false,
            paths: Paths::everywhere(),
        };
        Account { principal, md5, sha256 }
    }

    fn passwords() -> Passwords {
        let accounts = vec![account("anna", "correct horse"), account("ben", "battery staple")];
        Passwords { accounts, guesses: Mutex::default() }
    }

    const URI: &str = "rtsp://host/a.ts";

    /// A response as a player makes it.
    fn made<D: Digest>(name: &str, password: &str, nonce: &str, more: &str) -> String {
        let secret = hash::<D>(format!("{name}:{REALM}:{password}").as_bytes());
        let what = hash::<D>(format!("PLAY:{URI}").as_bytes());
        let response = hash::<D>(format!("{secret}:{nonce}:{what}").as_bytes());
        format!(
            "Digest username=\"{name}\", realm=\"{REALM}\", nonce=\"{nonce}\", uri=\"{URI}\", \
             response=\"{response}\"{more}"
        )
    }

    fn verdict(text: &str, signed: SignedRequest<'_>, nonce: &Nonce) -> String {
        match passwords().judge(text, signed, nonce) {
            Verdict::Right(principal) => principal.name.clone(),
            Verdict::Stale => "stale".into(),
            Verdict::Wrong => "wrong".into(),
        }
    }

    #[test]
    fn s16_a_digest_is_worth_something_on_its_connection_only() {
        let signed = SignedRequest { verb: "PLAY", uri: URI };
        let (nonce, other) = (Nonce::new().unwrap(), Nonce::new().unwrap());
        let right = made::<Md5>("anna", "correct horse", &nonce.text, "");
        assert_eq!(verdict(&right, signed, &nonce), "anna");
        assert_eq!(verdict(&right, signed, &other), "stale", "a replay");
        assert_eq!(verdict(&right, SignedRequest { verb: "TEARDOWN", ..signed }, &nonce), "wrong");
        let elsewhere = SignedRequest { uri: "rtsp://host/b.ts", ..signed };
        assert_eq!(verdict(&right, elsewhere, &nonce), "wrong");
        let sha = made::<Sha256>("ben", "battery staple", &nonce.text, ", algorithm=SHA-256");
        assert_eq!(verdict(&sha, signed, &nonce), "ben");
        for (name, password) in [("anna", "battery staple"), ("eve", "correct horse"), ("", "")] {
            let text = made::<Md5>(name, password, &nonce.text, "");
            assert_eq!(verdict(&text, signed, &nonce), "wrong", "{name}");
        }
        for text in
            ["", "Digest", "Digest ", "Basic YW5uYTpj", "Digest username=\"anna\"", "Digest x"]
        {
            assert_eq!(verdict(text, signed, &nonce), "wrong", "{text}");
        }
        let odd = made::<Md5>("anna", "correct horse", &nonce.text, ", algorithm=none");
        assert_eq!(verdict(&odd, signed, &nonce), "wrong");
    }

    #[test]
    fn s16_an_address_guesses_twenty_times_a_minute() {
        let (passwords, now) = (passwords(), Instant::now());
        let [one, two] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        for _ in 0..GUESSES_MAX {
            assert!(!passwords.is_locked(one, now));
            passwords.count_guess(one, now);
        }
        assert!(passwords.is_locked(one, now) && !passwords.is_locked(two, now));
        assert!(passwords.is_locked(one, now + MINUTE - Duration::from_millis(1)));
        assert!(!passwords.is_locked(one, now + MINUTE));
    }

    #[test]
    fn the_example_of_the_rfc_is_right() {
        // RFC 7616, section 3.9.1, by SHA-256 and MD5.
        let secret =
            |hash: fn(&[u8]) -> String| hash(b"Mufasa:http-auth@example.org:Circle of Life");
        let given = |is_sha256| Credentials {
            nonce: "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v".into(),
            uri: "/dir/index.html".into(),
            is_sha256,
            quality: Some(Quality {
                word: "auth".into(),
                count: "00000001".into(),
                own: "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ".into(),
            }),
            ..Credentials::default()
        };
        assert_eq!(
            response::<Md5>(&secret(hash::<Md5>), &given(false), "GET"),
            "8ca523f5e9506fed4657c9700eebdbec"
        );
        assert_eq!(
            response::<Sha256>(&secret(hash::<Sha256>), &given(true), "GET"),
            "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"
        );
    }
}
