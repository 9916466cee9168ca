//! Fuzz targets for untrusted HTTP input, without a socket, and their tests.
//!
//! Promise: each fuzz target takes any bytes, and returns whether they are valid. It panics if the
//! result of valid bytes breaks a rule. Compiled for tests and fuzzing only.

use std::sync::LazyLock;
use std::time::{Duration, UNIX_EPOCH};

use tactus_control::rights::Rights;
use tactus_core::path::{PATH_BYTES_MAX, RequestPath, check_name, encode_segment};
use tactus_core::range::{self, RANGES_MAX, RequestedRange};
use tactus_core::ts::Index;
use tactus_core::units::{BitRate, Bytes};
use tactus_engine::message::Pace;
use tactus_media::fuzz_targets::aside;
use tactus_notation::net::Net;

use super::chunked::Chunked;
use super::conditional::{self, Validators};
use super::fields::Fields;
use super::framing::Body;
use super::limits::Limits;
use super::multipart::Multipart;
use super::principals::{Authentication, Principals};
use super::request::Request;
use super::response::Response;
use super::scan::HeadScan;
use super::settings::{self, ForwardedField, Proxies};
use super::target::{self, Target};
use super::transport::{Client, Peer};
use super::{dav, forwarded, if_lists, listing, proxy_protocol, put, rate, route, seek, tus};

/// A request's head, and the body after it.
pub fn request(bytes: &[u8]) -> bool {
    let limits = Limits::default();
    let whole = HeadScan::default().advance(bytes, &limits);
    let mut scan = HeadScan::default();
    let halves = match scan.advance(&bytes[..bytes.len() / 2], &limits) {
        Ok(None) => scan.advance(bytes, &limits),
        ended => ended,
    };
    assert_eq!(halves, whole, "it does not matter how the bytes arrive");
    let Ok(Some(end)) = whole else { return false };
    let (head, rest) = bytes.split_at(end.len);
    let Ok(request) = Request::parse(head.to_vec(), end, &limits) else { return false };
    if let Target::Path { path, query } = &request.target {
        safe(path);
        paced(query.as_deref(), &request.fields);
    }
    // The date of RFC 9110's examples.
    let modified = UNIX_EPOCH + Duration::from_secs(784_111_777);
    let current = Validators { etag: "\"abc\"", modified };
    let verdict = conditional::verdict(&request.fields, current);
    let now = modified + Duration::from_secs(10);
    if conditional::range_counts(&request.fields, current, now)
        && let Some(field) = request.fields.one("range")
    {
        parts_of(field, 1_000_000);
    }
    std::hint::black_box(verdict);
    match request.body {
        Body::None => true,
        Body::Length(length) => length > 0,
        Body::Chunked => chunked(rest),
    }
}

/// The body of a PROPFIND or PROPPATCH.
pub fn properties(bytes: &[u8]) -> bool {
    dav::understood(bytes)
}

/// The body of a PROPFIND, a zero byte, and the names in a directory, one per line: writes the
/// listing as a page, JSON, a playlist and WebDAV.
pub fn listing(bytes: &[u8]) -> bool {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (body, names) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    let names = names.split(|&byte| byte == b'\n').filter_map(|name| {
        let name = std::str::from_utf8(name).ok()?;
        check_name(name).is_ok().then_some(name)
    });
    let names: Vec<_> = names.collect();
    listing::check(&names);
    dav::check_parts(body, &names) && !names.is_empty()
}

/// A stored index: the JSON about its title, and the places where parts of the title begin. Reads
/// it on a thread of its own.
pub fn times(bytes: &[u8]) -> bool {
    let Some(index) = aside(|| Index::decode(bytes)) else { return false };
    let told = Response::json(200, &seek::facts(&index));
    assert!(!told.content().is_empty());
    seek::check(&index);
    true
}

/// Parses a PROXY protocol header; or else `Forwarded` from the first line and `X-Forwarded-For`
/// from the rest.
pub fn proxied(bytes: &[u8]) -> bool {
    let line = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
    let (first, rest) = (&bytes[..line], bytes.get(line + 1..).unwrap_or_default());
    let mut understood = proxy_protocol::understood(bytes);
    let trusted = vec![Net::parse("10.0.0.0/8").expect("a network")];
    let peer = Client::of([10, 0, 0, 1].into());
    for (field, name, value) in [
        (ForwardedField::Forwarded, "forwarded", first),
        (ForwardedField::XForwardedFor, "x-forwarded-for", rest),
    ] {
        let head = [name.as_bytes(), value].concat();
        let places = vec![(0..name.len(), name.len()..head.len())];
        let proxies = Proxies { trusted: trusted.clone(), unix: false, field };
        if let Ok(hop) = forwarded::hop(&proxies, peer, &Fields::new(head, places)) {
            if let Peer::Address(ip) = hop.client.peer {
                assert_eq!(ip, ip.to_canonical());
            }
            understood |= hop.client != peer;
        }
    }
    understood
}

/// A chunked body.
pub fn chunked(bytes: &[u8]) -> bool {
    let read = |cut: usize| {
        let mut body = Chunked::new();
        let taken = body.handle(&bytes[..cut]).and_then(|taken| {
            let more = if body.is_done() { 0 } else { body.handle(&bytes[cut..])? };
            Ok(taken + more)
        });
        (taken, body.is_done(), body.content())
    };
    let (taken, is_done, content) = read(0);
    if let Ok(taken) = taken {
        assert!(taken <= bytes.len());
        assert_eq!(read(bytes.len() / 2), (Ok(taken), is_done, content), "in halves");
    }
    taken.is_ok() && is_done
}

/// A request-target.
pub fn target(bytes: &[u8]) -> bool {
    match target::parse("GET", bytes) {
        Ok((Target::Path { path, .. }, _)) => safe(&path),
        _ => return false,
    }
    true
}

/// A query in the first line, and the fields of an upload in the others.
pub fn upload(bytes: &[u8]) -> bool {
    static PRINCIPALS: LazyLock<Principals> = LazyLock::new(|| {
        let token = settings::Token::Sha256([7; 32]);
        let one =
            settings::Principal { name: "one".into(), token, quota: None, rights: Rights::all() };
        Principals::read(&[one]).expect("no file is read")
    });
    let (mut lines, mut head, mut places) = (bytes.split(|&byte| byte == b'\n'), vec![], vec![]);
    let query = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    for line in lines {
        let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
        let (begin, end) = (head.len(), head.len() + line.len());
        head.extend(line);
        places.push((begin..begin + colon, (begin + colon + 1).min(end)..end));
    }
    let fields = Fields::new(head, places);
    assert!(
        !matches!(PRINCIPALS.who(&fields), Authentication::Principal(..)),
        "no principal has this token"
    );
    let request = Request::with(fields);
    let titles = put::understood(&request);
    let locks = request.fields.one("if").is_some_and(if_lists::understood);
    tus::understood(&request.fields, Some(&query)) || titles || locks
}

/// A title's length in eight bytes, and the value of a `Range` field.
pub fn range(bytes: &[u8]) -> bool {
    let Some((len, field)) = bytes.split_first_chunk() else { return false };
    parts_of(field, u64::from_be_bytes(*len))
}

/// A query in the first line, and the value of `CMCD-Request` in the rest.
pub fn pace(bytes: &[u8]) -> bool {
    let line = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
    let query = String::from_utf8_lossy(&bytes[..line]);
    let name = b"CMCD-Request";
    let value = bytes.get(line + 1..).unwrap_or(b"");
    let places = vec![(0..name.len(), name.len()..name.len() + value.len())];
    paced(Some(&query), &Fields::new([name, value].concat(), places))
}

/// A path stays the same, however often it is written and read.
fn safe(path: &RequestPath) {
    let mut link = String::new();
    for segment in path.segments() {
        assert_eq!(check_name(segment), Ok(()));
        link.push('/');
        encode_segment(segment, &mut link);
    }
    if path.is_directory() {
        link.push('/');
    }
    if link.len() <= PATH_BYTES_MAX {
        assert_eq!(RequestPath::parse(link.as_bytes()).as_ref(), Ok(path), "{link}");
    }
    let location = route::redirect("http://h", path, None);
    assert_eq!(location.status(), 301);
}

fn parts_of(field: &[u8], len: u64) -> bool {
    let RequestedRange::Parts(parts) = range::asked(field, len, RANGES_MAX) else { return false };
    assert!((1..=RANGES_MAX).contains(&parts.len()));
    assert!(parts.iter().all(|part| part.start < part.end && part.end <= len), "{parts:?}");
    let content: u64 = parts.iter().map(|part| part.end - part.start).sum();
    assert!(content <= len, "{parts:?}");
    let words = Multipart::new(&parts, len, "video/mp2t");
    let announced = words.words_len();
    let (heads, tail) = words.into_words();
    let written: usize = heads.iter().map(Vec::len).sum();
    assert_eq!(announced, (written + tail.len()) as u64);
    true
}

fn paced(query: Option<&str>, fields: &Fields) -> bool {
    static LIMITS: LazyLock<settings::Rate> = LazyLock::new(settings::Rate::default);
    let Ok(requested) = rate::requested(query, fields) else { return false };
    let ceiling = LIMITS.title.ceiling.max(LIMITS.asked.ceiling).max(LIMITS.cmcd.ceiling);
    for own in [None, Some((1, 0)), Some((u64::MAX, u64::MAX))] {
        let own =
            own.map(|(rate, head)| rate::TitleRate { rate: BitRate(rate), head: Bytes(head) });
        if let Ok(Pace::Paced { rate, .. }) = rate::pace(requested, own, &LIMITS) {
            assert!(rate.0 > 0 && rate <= ceiling, "{rate}");
        }
    }
    requested != rate::RateRequest::Title
}
