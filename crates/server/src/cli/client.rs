//! The HTTP client of the commands: one request, one answer, by `ureq` with `rustls`.
//!
//! Promise: connecting and each read have a timeout. A body that ends early is an error, never a
//! short success. Redirects are followed (credentials are sent to the original server only),
//! chunked bodies are read, and the proxy comes from the environment as with curl. A request is
//! never repeated here: that is up to the command.

mod early;
mod proxy;
mod tls;

use std::io::{self, Read};
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{ConnectProxyConnector, Connector, TcpConnector};
use ureq::{Agent, Proxy, SendBody, Timeout, http};

use early::SendStop;
use tactus_http::percent;
use tls::Tls;

/// A URL: the server, the path and the query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Url {
    /// The scheme is https.
    pub(crate) secure: bool,
    /// Host name or address, without brackets.
    pub(crate) host: String,
    /// Port.
    pub(crate) port: u16,
    /// Path, percent-encoded, beginning with `/`.
    pub(crate) path: String,
    /// Query without `?`, possibly empty.
    pub(crate) query: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The text is not an HTTP URL.
    #[error("{0:?} is not a URL that can be fetched; write it like http://127.0.0.1:8080/film.ts")]
    Url(String),
    /// The connection failed.
    #[error("cannot connect to {host}:{port}: {error}; is the server running?")]
    Connect {
        /// The server.
        host: String,
        /// Its port.
        port: u16,
        /// The error of the system.
        error: io::Error,
    },
    /// The certificate is not valid for the server, or the server does not speak TLS.
    #[error(
        "TLS with {host} failed: {error}; to trust your own certificate authority, set \
         SSL_CERT_FILE to its certificate"
    )]
    Tls {
        /// The server.
        host: String,
        /// The error.
        error: String,
    },
    /// The connection broke, or no data arrived for [`SILENCE_MAX`].
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The answer is not HTTP, or uses a feature that this client lacks.
    #[error("the answer cannot be read: {0}; try curl")]
    Answer(String),
    /// A redirect of a request whose body cannot be sent again.
    #[error("the server redirects to {0}; use that URL")]
    Redirect(String),
}

/// An answer whose body has not been read yet.
pub(crate) struct Response {
    /// Status code.
    pub(crate) status: u16,
    /// The URL that answered, after redirects.
    pub(crate) url: Url,
    fields: Vec<(String, String)>,
    /// The length of the body, if the server has declared it.
    pub(crate) len: Option<u64>,
    /// The body; reading fails when the connection ends before the body does.
    pub(crate) body: Body,
}

/// A body that must be whole.
pub(crate) struct Body(Option<ureq::BodyReader<'static>>);

/// Time for name lookup, connection and TLS handshake.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Time without a byte after which a connection counts as broken. A paced stream sends at least
/// four times a second; a server that waits longer than this for its disk does not recover.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Longest head of an answer.
const HEAD_MAX: usize = 64 * 1024;
/// Redirects that are followed. Browsers follow 20; more is a loop.
const REDIRECTS_MAX: usize = 10;
/// Larger bodies, and those of unknown length, wait for `100 Continue`.
const UNASKED_MAX: u64 = 64 * 1024;
/// Longest wait for `100 Continue`; then the body is sent without it (RFC 9110, 10.1.1).
const AGREE_MAX: Duration = Duration::from_secs(2);

impl Url {
    /// Reads `http[s]://host[:port][/path][?query]`; characters that a path may not contain are
    /// encoded.
    ///
    /// # Errors
    /// [`ClientError::Url`]
    pub(crate) fn parse(text: &str) -> Result<Self, ClientError> {
        let wrong = || ClientError::Url(text.into());
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(wrong()),
        };
        let rest = rest.split('#').next().unwrap_or(rest);
        let (authority, target) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (host, port) = if let Some(bracketed) = authority.strip_prefix('[') {
            let (host, after) = bracketed.split_once(']').ok_or_else(wrong)?;
            let port = if after.is_empty() {
                None
            } else {
                Some(after.strip_prefix(':').ok_or_else(wrong)?)
            };
            (host, port)
        } else {
            match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            }
        };
        let plain =
            |host: &str| host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:%".contains(&b));
        if host.is_empty() || !plain(host) {
            return Err(wrong());
        }
        let default = if secure { 443 } else { 80 };
        let port = port.map_or(Ok(default), |port| port.parse().map_err(|_| wrong()))?;
        let path = if path.is_empty() { "/".into() } else { encoded(path) };
        Ok(Self { secure, host: host.into(), port, path, query: encoded(query) })
    }

    /// Adds `name=value` to the query.
    pub(crate) fn with_query(mut self, name: &str, value: &str) -> Self {
        if !self.query.is_empty() {
            self.query.push('&');
        }
        self.query.push_str(&format!("{name}={value}"));
        self
    }

    /// The last segment of the path, decoded; `None` for a directory or an invalid file name.
    pub(crate) fn file_name(&self) -> Option<String> {
        let name = percent::decode(self.path.rsplit('/').next()?)?;
        let plain = !matches!(&*name, "" | "." | "..");
        (plain && !name.contains(['/', '\0'])).then(|| name.into_owned())
    }

    /// The URL as text.
    pub(crate) fn text(&self) -> String {
        format!("{}://{}{}", self.scheme(), self.authority(), self.target())
    }

    /// The URL of `target`: a path on the same server, perhaps with a query, or another server's
    /// URL.
    ///
    /// # Errors
    /// [`ClientError::Url`]
    pub(crate) fn join(&self, target: &str) -> Result<Self, ClientError> {
        if let Some(elsewhere) = target.strip_prefix("//") {
            return Self::parse(&format!("{}://{elsewhere}", self.scheme()));
        }
        match target.starts_with('/') {
            true => Self::parse(&format!("{}://{}{target}", self.scheme(), self.authority())),
            false => Self::parse(target),
        }
    }

    /// The target of a redirect to `location`: as [`Self::join`], or relative to this path.
    fn redirected(&self, location: &str) -> Result<Self, ClientError> {
        let is_relative = !location.starts_with('/') && !location.contains("://");
        if !is_relative {
            return self.join(location);
        }
        let directory = &self.path[..=self.path.rfind('/').unwrap_or(0)];
        self.join(&format!("{directory}{location}"))
    }

    /// Whether credentials for this URL may be sent to `other`: the same server, or the same name
    /// over TLS instead of plain HTTP.
    fn trusts(&self, other: &Self) -> bool {
        let same = self.host.eq_ignore_ascii_case(&other.host);
        let upgraded = !self.secure && other.secure;
        same && (upgraded || (self.secure, self.port) == (other.secure, other.port))
    }

    fn scheme(&self) -> &'static str {
        if self.secure { "https" } else { "http" }
    }

    fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.secure, self.port) {
            (false, 80) | (true, 443) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    fn target(&self) -> String {
        match self.query.as_str() {
            "" => self.path.clone(),
            query => format!("{}?{query}", self.path),
        }
    }
}

/// Requests `url` with `method`, GET or HEAD, and these further fields.
///
/// # Errors
/// When there is no connection or no valid answer. Every status is an answer.
pub(crate) fn fetch(
    method: &str,
    url: &Url,
    fields: &[(&str, &str)],
) -> Result<Response, ClientError> {
    send(method, url, fields, None)
}

/// A request's body: a number of bytes of `from`, or all of it, in chunks. `seen` gets the number
/// of sent bytes.
pub(crate) struct RequestBody<'a> {
    pub(crate) from: &'a mut dyn Read,
    pub(crate) len: Option<u64>,
    pub(crate) seen: &'a dyn Fn(u64),
}

/// Like [`fetch`], with any method and an optional body. A server may answer before it has read the
/// whole body. A redirect is followed when there is no body to repeat.
///
/// # Errors
/// As [`fetch`]; and when reading the body's source fails.
pub(crate) fn send(
    method: &str,
    url: &Url,
    fields: &[(&str, &str)],
    mut body: Option<RequestBody<'_>>,
) -> Result<Response, ClientError> {
    let (mut method, mut at) = (method, url.clone());
    for _ in 0..=REDIRECTS_MAX {
        let may_tell = url.trusts(&at);
        let told =
            |(name, _): &&(&str, &str)| may_tell || !name.eq_ignore_ascii_case("authorization");
        let fields: Vec<_> = fields.iter().filter(told).copied().collect();
        let answer = exchange(method, &at, &fields, body.as_mut())?;
        let location = match answer.status {
            301 | 302 | 303 | 307 | 308 => answer.field("location"),
            _ => None,
        };
        let Some(location) = location else { return Ok(answer) };
        let to = at.redirected(location)?;
        let has_body = body.as_ref().is_some_and(|body| body.len != Some(0));
        if at.secure && !to.secure || has_body {
            return Err(ClientError::Redirect(to.text()));
        }
        // RFC 9110, 15.4.4: the result is fetched with GET.
        if answer.status == 303 && method != "HEAD" {
            (method, body) = ("GET", None);
        }
        at = to;
    }
    Err(ClientError::Answer(format!("{} redirects more than {REDIRECTS_MAX} times", url.text())))
}

/// One request and its answer on a connection of their own.
fn exchange(
    method: &str,
    url: &Url,
    fields: &[(&str, &str)],
    body: Option<&mut RequestBody<'_>>,
) -> Result<Response, ClientError> {
    let mut request = http::Request::builder().method(method).uri(url.text());
    request = request.header("Connection", "close");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let early = SendStop::default();
    let proxy = proxy::of(url).and_then(|proxy| Proxy::new(&proxy).ok());
    let agent = Agent::with_parts(
        config(proxy),
        ().chain(ConnectProxyConnector::default())
            .chain(TcpConnector::default())
            .chain(Tls)
            .chain(early.clone()),
        DefaultResolver::default(),
    );
    let answer = match body {
        None => {
            let request =
                request.body(SendBody::none()).map_err(|_| ClientError::Url(url.text()))?;
            agent.run(request)
        }
        Some(body) => {
            request = match body.len {
                Some(len) => request.header("Content-Length", len),
                None => request.header("Transfer-Encoding", "chunked"),
            };
            if body.len.is_none_or(|len| len > UNASKED_MAX) {
                request = request.header("Expect", "100-continue");
            }
            let mut reader = early.reading(body);
            let request = request.body(SendBody::from_reader(&mut reader));
            agent.run(request.map_err(|_| ClientError::Url(url.text()))?)
        }
    };
    response(method, url, answer.map_err(|error| fault(url, error))?)
}

fn config(proxy: Option<Proxy>) -> ureq::config::Config {
    Agent::config_builder()
        .http_status_as_error(false)
        .allow_non_standard_methods(true)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("tactus/", env!("CARGO_PKG_VERSION")))
        .accept("")
        .accept_encoding("")
        .max_response_header_size(HEAD_MAX)
        .timeout_resolve(Some(CONNECT_MAX))
        .timeout_connect(Some(CONNECT_MAX))
        .timeout_await_100(Some(AGREE_MAX))
        .timeout_per_read(Some(SILENCE_MAX))
        .timeout_per_write(Some(SILENCE_MAX))
        .proxy(proxy)
        .build()
}

fn response(
    method: &str,
    url: &Url,
    answer: http::Response<ureq::Body>,
) -> Result<Response, ClientError> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let fields = answer.headers().iter().map(|(name, value)| (name.as_str().into(), text(value)));
    let mut response = Response {
        status: answer.status().as_u16(),
        url: url.clone(),
        fields: fields.collect(),
        len: None,
        body: Body(None),
    };
    let has_body = method != "HEAD" && !matches!(response.status, 204 | 304);
    if has_body {
        response.len = response.field("content-length").and_then(|len| len.parse().ok());
        response.body = Body(Some(answer.into_body().into_with_config().limit(u64::MAX).reader()));
    }
    Ok(response)
}

/// Maps the library's errors to messages for users.
fn fault(url: &Url, error: ureq::Error) -> ClientError {
    use ureq::Error;
    let connect =
        |error: io::Error| ClientError::Connect { host: url.host.clone(), port: url.port, error };
    let tls = |error: String| ClientError::Tls { host: url.host.clone(), error };
    match error {
        Error::Io(error) if error.get_ref().is_some_and(|e| e.is::<rustls::Error>()) => {
            tls(error.to_string())
        }
        Error::Io(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::AddrNotAvailable => connect(error),
            _ => ClientError::Broken(error),
        },
        Error::Timeout(Timeout::Connect | Timeout::Resolve) => {
            connect(io::Error::new(io::ErrorKind::TimedOut, "no answer in 10 s"))
        }
        Error::Timeout(_) => {
            let message = format!("no data came for {} s", SILENCE_MAX.as_secs());
            ClientError::Broken(io::Error::new(io::ErrorKind::TimedOut, message))
        }
        Error::HostNotFound => connect(io::Error::new(
            io::ErrorKind::NotFound,
            "the name does not resolve to an address",
        )),
        Error::ConnectionFailed | Error::ConnectProxyFailed(_) | Error::InvalidProxyUrl => {
            connect(io::Error::other(error.to_string()))
        }
        Error::Tls(error) => tls(error.into()),
        Error::BadUri(_) => ClientError::Url(url.text()),
        error => ClientError::Answer(error.to_string()),
    }
}

impl Response {
    /// The first field with this name, in lower case.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The whole body as text, for answers that people or programs read.
    ///
    /// # Errors
    /// When it is longer than `most`, or the connection breaks.
    pub(crate) fn into_text(self, most: u64) -> Result<String, ClientError> {
        let mut text = Vec::new();
        self.body.take(most.saturating_add(1)).read_to_end(&mut text)?;
        if text.len() as u64 > most {
            return Err(ClientError::Answer(format!("it is longer than {most} bytes")));
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Read for Body {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(reader) = &mut self.0 else { return Ok(0) };
        reader.read(into).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset => {
                io::Error::new(io::ErrorKind::UnexpectedEof, "the body ended early")
            }
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                let message = format!("nothing came for {} s", SILENCE_MAX.as_secs());
                io::Error::new(io::ErrorKind::TimedOut, message)
            }
            _ => error,
        })
    }
}

/// Encodes all characters of `text` with a meaning in a query or a path, but not slashes.
pub(crate) fn escaped(text: &str) -> String {
    const ESCAPED: AsciiSet =
        NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
    utf8_percent_encode(text, &ESCAPED).to_string()
}

/// Encodes characters that a request line cannot contain: controls, spaces, and everything beyond
/// ASCII.
fn encoded(text: &str) -> String {
    const BARRED: AsciiSet = CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'\\').add(b'^');
    const ALL_BARRED: AsciiSet = BARRED.add(b'`').add(b'{').add(b'|').add(b'}');
    utf8_percent_encode(text, &ALL_BARRED).to_string()
}

#[cfg(test)]
mod tests;
