//! Where a server is, as a URL says it, and who asks there.

use anyhow::{Context, Result, ensure};

use super::digest::Credentials;

/// Where a server is, and what is asked of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    /// As it was written, but for name and password.
    pub(super) url: String,
    pub(super) credentials: Option<Credentials>,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("rtsp://").context("an address begins with rtsp://")?;
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let path = &rest[authority.len()..];
        let (credentials, authority) = match authority.rsplit_once('@') {
            Some((own, authority)) => (Some(credentials(own)?), authority),
            None => (None, authority),
        };
        let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => authority.split_once(':').map_or((authority, None), |(h, p)| (h, Some(p))),
        };
        ensure!(!host.is_empty(), "{url} names no host");
        let port =
            port.map_or(Ok(554), str::parse).with_context(|| format!("the port of {url}"))?;
        let url = format!("rtsp://{authority}{path}");
        Ok(Self { host: host.to_owned(), port, url, credentials })
    }

    /// Another name at the same server.
    pub(super) fn beside(&self, name: &str) -> String {
        let rest = &self.url["rtsp://".len()..];
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        format!("rtsp://{authority}/{name}")
    }
}

/// What stands in front of the host.
fn credentials(text: &str) -> Result<Credentials> {
    let (name, password) = text.split_once(':').context("write a name and a password, as a:b@")?;
    Ok(Credentials { name: decoded(name)?, password: decoded(password)? })
}

/// RFC 3986, section 2.1.
fn decoded(text: &str) -> Result<String> {
    let mut bytes = vec![];
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let pair = behind.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        let coded = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        rest = match coded.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                &behind[2..]
            }
            None => {
                bytes.push(*first);
                behind
            }
        };
    }
    String::from_utf8(bytes).context("a name and a password are text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood() {
        let parse = |url| Address::parse(url).map(|address| (address.host, address.port)).ok();
        assert_eq!(parse("rtsp://a.example/x"), Some(("a.example".to_owned(), 554)));
        assert_eq!(parse("rtsp://[::1]:8554/x?y"), Some(("::1".to_owned(), 8554)));
        assert_eq!(parse("rtsp://10.0.0.1:8554"), Some(("10.0.0.1".to_owned(), 8554)));
        for wrong in ["http://a/", "rtsp:///x", "rtsp://a:x/", "rtsp://me@a/"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let named = Address::parse("rtsp://me:y%40u%3@a:1/x").expect("it is one");
        let Credentials { name, password } = named.credentials.expect("it names some");
        assert_eq!((&*name, &*password, &*named.url), ("me", "y@u%3", "rtsp://a:1/x"));
        let beside = Address::parse("rtsp://[::1]:8554/x/y?z").map(|address| address.beside("w"));
        assert_eq!(beside.ok().as_deref(), Some("rtsp://[::1]:8554/w"));
    }
}
