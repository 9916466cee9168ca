//! A small HTTP/1.1 client for `get`, `ls`, `put`, `rm` and `mv`: one request, one answer, then the connection closes.
//!
//! Promise: it never waits without a bound, for the connection or between two reads; and a body that
//! ends early is an error, never a short success. It speaks plain HTTP to servers that say how long
//! their answer is, as Tactus does; no TLS, no redirects, no chunked bodies.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Where to connect, and what to ask for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Url {
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
    /// The text is no `http://` URL.
    #[error("{0:?} is not a URL that can be fetched; write it like http://127.0.0.1:8080/film.ts")]
    Url(String),
    /// No connection.
    #[error("cannot connect to {host}:{port}: {error}; is the server running?")]
    Connect {
        /// Where.
        host: String,
        /// Where.
        port: u16,
        /// What the system said.
        error: io::Error,
    },
    /// The connection broke, or nothing came for [`SILENCE_MAX`].
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The answer is not HTTP/1.1, or of a kind that this client does not speak.
    #[error("the answer cannot be read: {0}; try curl")]
    Answer(String),
}

/// An answer whose body has not been read yet.
pub(crate) struct Response {
    /// Status code.
    pub(crate) status: u16,
    fields: Vec<(String, String)>,
    /// What the body holds.
    pub(crate) len: u64,
    /// The body; ends with an error when the connection ends before `len` bytes.
    pub(crate) body: Body,
}

/// A body that must be whole.
pub(crate) struct Body {
    stream: BufReader<TcpStream>,
    left: u64,
}

/// Time to find a connection.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Time without a byte after which a connection counts as broken. A paced stream sends at least four
/// times a second; a server that waits longer than this for its disk is not coming back.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Longest head of an answer.
const HEAD_MAX: usize = 64 * 1024;
/// Most fields of an answer.
const FIELDS_MAX: usize = 100;

impl Url {
    /// Reads `http://host[:port][/path][?query]`; characters that a path may not have are encoded.
    ///
    /// # Errors
    /// [`ClientError::Url`]
    pub(crate) fn parse(text: &str) -> Result<Self, ClientError> {
        let wrong = || ClientError::Url(text.into());
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
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
        let port = port.map_or(Ok(80), |port| port.parse().map_err(|_| wrong()))?;
        let path = if path.is_empty() { "/".into() } else { encoded(path) };
        Ok(Self { host: host.into(), port, path, query: encoded(query) })
    }

    /// Adds `name=value` to the query.
    pub(crate) fn with_query(mut self, name: &str, value: &str) -> Self {
        if !self.query.is_empty() {
            self.query.push('&');
        }
        self.query.push_str(&format!("{name}={value}"));
        self
    }

    /// The last part of the path, decoded; `None` for a directory or what is no plain file name.
    pub(crate) fn file_name(&self) -> Option<String> {
        let name = decoded(self.path.rsplit('/').next()?)?;
        let plain = !matches!(name.as_str(), "" | "." | "..");
        (plain && !name.contains(['/', '\0'])).then_some(name)
    }

    /// As it is written.
    pub(crate) fn text(&self) -> String {
        format!("http://{}{}", self.authority(), self.target())
    }

    /// The same server's `target`, a path with perhaps a query, or another server's URL.
    ///
    /// # Errors
    /// [`ClientError::Url`]
    pub(crate) fn join(&self, target: &str) -> Result<Self, ClientError> {
        match target.starts_with('/') {
            true => Self::parse(&format!("http://{}{target}", self.authority())),
            false => Self::parse(target),
        }
    }

    fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match self.port {
            80 => host,
            port => format!("{host}:{port}"),
        }
    }

    fn target(&self) -> String {
        match self.query.as_str() {
            "" => self.path.clone(),
            query => format!("{}?{query}", self.path),
        }
    }
}

/// Asks for `url` with `method`, GET or HEAD, and these further fields.
///
/// # Errors
/// When there is no connection or no proper answer. Every status is an answer.
pub(crate) fn fetch(
    method: &str,
    url: &Url,
    fields: &[(&str, &str)],
) -> Result<Response, ClientError> {
    send(method, url, fields, None)
}

/// A request's body: so many bytes of `from`, or all of it, in chunks. `seen` is told how many have been
/// sent.
pub(crate) struct Sent<'a> {
    pub(crate) from: &'a mut dyn Read,
    pub(crate) len: Option<u64>,
    pub(crate) seen: &'a dyn Fn(u64),
}

/// As [`fetch`], with any method and perhaps a body. A server that answers before it has taken all of
/// the body has answered.
///
/// # Errors
/// As there; and when the body cannot be read.
pub(crate) fn send(
    method: &str,
    url: &Url,
    fields: &[(&str, &str)],
    body: Option<Sent<'_>>,
) -> Result<Response, ClientError> {
    let mut stream = connect(url)?;
    let mut head = format!(
        "{method} {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: tactus/{}\r\nConnection: close\r\n",
        url.target(),
        url.authority(),
        env!("CARGO_PKG_VERSION")
    );
    for (name, value) in fields {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    match body.as_ref().map(|body| body.len) {
        Some(Some(len)) => head.push_str(&format!("Content-Length: {len}\r\n\r\n")),
        Some(None) => head.push_str("Transfer-Encoding: chunked\r\n\r\n"),
        None => head.push_str("\r\n"),
    }
    stream.write_all(head.as_bytes())?;
    let unsent = body.and_then(|body| write_body(&mut stream, body).err());
    let mut stream = BufReader::with_capacity(256 * 1024, stream);
    if let Some(error) = unsent {
        // Perhaps it has said why it takes no more.
        let answer = read_head(&mut stream);
        return match answer {
            Ok((status, fields)) if status >= 200 => response(method, status, fields, stream),
            _ => Err(ClientError::Broken(error)),
        };
    }
    loop {
        let (status, fields) = read_head(&mut stream)?;
        // 1xx is not the answer yet (RFC 9110, 15.2).
        if status >= 200 {
            return response(method, status, fields, stream);
        }
    }
}

fn write_body(stream: &mut TcpStream, body: Sent<'_>) -> io::Result<()> {
    let mut chunk = vec![0; 256 * 1024];
    let Some(mut left) = body.len else { return write_chunks(stream, body, &mut chunk) };
    while left > 0 {
        let most = usize::try_from(left).map_or(chunk.len(), |left| left.min(chunk.len()));
        let read = body.from.read(&mut chunk[..most])?;
        if read == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file has become shorter",
            ));
        }
        stream.write_all(&chunk[..read])?;
        left -= read as u64;
        (body.seen)(read as u64);
    }
    Ok(())
}

/// RFC 9112, 7.1.
fn write_chunks(stream: &mut TcpStream, body: Sent<'_>, chunk: &mut [u8]) -> io::Result<()> {
    loop {
        let read = body.from.read(chunk)?;
        // The one without a byte is the last.
        write!(stream, "{read:x}\r\n")?;
        stream.write_all(&chunk[..read])?;
        stream.write_all(b"\r\n")?;
        if read == 0 {
            return Ok(());
        }
        (body.seen)(read as u64);
    }
}

fn connect(url: &Url) -> Result<TcpStream, ClientError> {
    let failed = |error| ClientError::Connect { host: url.host.clone(), port: url.port, error };
    let addresses = (url.host.as_str(), url.port).to_socket_addrs().map_err(failed)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(stream) => {
                stream.set_read_timeout(Some(SILENCE_MAX))?;
                stream.set_write_timeout(Some(SILENCE_MAX))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

type Fields = Vec<(String, String)>;

fn read_head(stream: &mut BufReader<TcpStream>) -> Result<(u16, Fields), ClientError> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let read = stream.by_ref().take(HEAD_MAX as u64).read_until(b'\n', &mut head)?;
        if read == 0 {
            return Err(ClientError::Broken(io::ErrorKind::UnexpectedEof.into()));
        }
        if head.len() > HEAD_MAX {
            return Err(ClientError::Answer("its head is too long".into()));
        }
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut fields);
    let wrong = |error: httparse::Error| ClientError::Answer(error.to_string());
    parsed.parse(&head).map_err(wrong)?;
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let fields = parsed.headers.iter().map(|f| (f.name.to_ascii_lowercase(), text(f.value)));
    let status = parsed.code.ok_or_else(|| ClientError::Answer("it has no status".into()))?;
    Ok((status, fields.collect()))
}

fn response(
    method: &str,
    status: u16,
    fields: Fields,
    stream: BufReader<TcpStream>,
) -> Result<Response, ClientError> {
    let mut response = Response { status, fields, len: 0, body: Body { stream, left: 0 } };
    let has_body = method != "HEAD" && !matches!(status, 204 | 304);
    if has_body {
        let len = response.field("content-length").and_then(|len| len.parse().ok());
        response.len =
            len.ok_or_else(|| ClientError::Answer("it does not say how long it is".into()))?;
        response.body.left = response.len;
    }
    Ok(response)
}

impl Response {
    /// The first field of this name, in lower case.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The whole body as text, for answers that people or programs read.
    ///
    /// # Errors
    /// When it is longer than `most`, or the connection breaks.
    pub(crate) fn into_text(mut self, most: u64) -> Result<String, ClientError> {
        if self.len > most {
            return Err(ClientError::Answer(format!("it has {} bytes", self.len)));
        }
        let mut text = Vec::new();
        self.body.read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Read for Body {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).map_or(into.len(), |left| left.min(into.len()));
        if most == 0 {
            return Ok(0);
        }
        let read = match self.stream.read(&mut into[..most]) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended early")),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let message = format!("nothing came for {} s", SILENCE_MAX.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            Err(error) => return Err(error),
        };
        self.left -= read as u64;
        Ok(read)
    }
}

/// Encodes all of `text` that has a meaning in a query or a path, but not slashes.
pub(crate) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let write =
        |byte: u8| if plain(byte) { String::from(byte as char) } else { format!("%{byte:02X}") };
    text.bytes().map(write).collect()
}

/// Encodes what a request line may not hold: controls, spaces, and everything beyond ASCII.
fn encoded(text: &str) -> String {
    let keep = |b: u8| b.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&b);
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if keep(byte) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Undoes percent-encoding; `None` when it is broken or no text.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |b: u8| (b as char).to_digit(16);
        let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
        out.push((high * 16 + low) as u8);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn urls_are_taken_apart() {
        let plain = url("http://host/a/b.ts?rate=max#t=3");
        assert_eq!((plain.host.as_str(), plain.port), ("host", 80));
        assert_eq!(plain.target(), "/a/b.ts?rate=max");
        assert_eq!(plain.file_name().as_deref(), Some("b.ts"));
        let six = url("http://[::1]:8080");
        assert_eq!((six.host.as_str(), six.port, six.path.as_str()), ("::1", 8080, "/"));
        assert_eq!(six.authority(), "[::1]:8080");
        assert_eq!(six.file_name(), None);
        let spaced = url("http://h:1/größe 1.ts").with_query("rate", "5");
        assert_eq!(spaced.target(), "/gr%C3%B6%C3%9Fe%201.ts?rate=5");
        assert_eq!(spaced.file_name().as_deref(), Some("größe 1.ts"));
        for text in
            ["", "film.ts", "https://h/", "http://", "http://h:x/", "http://[::1/", "http://a b/"]
        {
            assert!(Url::parse(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn a_hostile_path_names_no_file_elsewhere() {
        for text in ["http://h/..", "http://h/a%2Fb", "http://h/%00", "http://h/x/", "http://h/%zz"]
        {
            assert_eq!(url(text).file_name(), None, "{text}");
        }
    }

    /// Answers one request with `answer` and closes.
    fn answering(answer: &'static str) -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).unwrap() > 0);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        url(&format!("http://127.0.0.1:{port}/"))
    }

    #[test]
    fn a_whole_answer_is_read_and_interim_ones_are_passed_over() {
        let url = answering(
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
             HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"a\"\r\n\r\nhello, and more",
        );
        let response = fetch("GET", &url, &[("Range", "bytes=0-4")]).unwrap();
        assert_eq!((response.status, response.field("etag")), (200, Some("\"a\"")));
        assert_eq!(response.into_text(100).unwrap(), "hello");
    }

    #[test]
    fn a_body_that_ends_early_is_an_error() {
        let url = answering("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello");
        let error = fetch("GET", &url, &[]).unwrap().into_text(1000).unwrap_err();
        assert_eq!(error.to_string(), "the connection broke: it ended early");
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for answer in ["", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"] {
            assert!(fetch("GET", &answering(answer), &[]).is_err(), "{answer:?} was taken");
        }
    }
}
