//! Answers of all kinds, from servers with one fixed answer each.

use super::*;
use std::io::Write;
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
    for text in [
        "",
        "film.ts",
        "ftp://h/",
        "http://u:p@h/",
        "http://",
        "http://h:x/",
        "http://[::1/",
        "http://a b/",
    ] {
        assert!(Url::parse(text).is_err(), "{text:?} was taken");
    }
}

#[test]
fn a_hostile_path_names_no_file_elsewhere() {
    for text in ["http://h/..", "http://h/a%2Fb", "http://h/%00", "http://h/x/", "http://h/%zz"] {
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
        stream.shutdown(std::net::Shutdown::Write).unwrap();
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
    assert_eq!(error.to_string(), "the connection broke: the body ended early");
}

#[test]
fn n13_chunked_bodies_and_those_that_end_with_the_connection_are_read() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                   5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\n\r\n";
    let response = fetch("GET", &answering(chunked), &[]).unwrap();
    assert_eq!(response.len, None);
    assert_eq!(response.into_text(100).unwrap(), "hello, world");
    let open = answering("HTTP/1.1 200 OK\r\n\r\nhello");
    assert_eq!(fetch("GET", &open, &[]).unwrap().into_text(100).unwrap(), "hello");
    let cut = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\nhello";
    assert!(fetch("GET", &answering(cut), &[]).unwrap().into_text(100).is_err());
    let long = "HTTP/1.1 200 OK\r\n\r\nhello";
    assert!(fetch("GET", &answering(long), &[]).unwrap().into_text(4).is_err());
}

/// Answers with `first`, in which `{other}` is a second server's address; the second server returns
/// what it received.
fn redirecting(first: &'static str) -> (Url, std::sync::mpsc::Receiver<String>) {
    let (told, heard) = std::sync::mpsc::channel();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let other_port = other.local_addr().unwrap().port();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let first = first.replace("{other}", &format!("http://127.0.0.1:{other_port}"));
        let first = first.replace("{port}", &port.to_string());
        let answer = |listener: &TcpListener, answer: &str| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let read = stream.read(&mut request).unwrap();
            told.send(String::from_utf8_lossy(&request[..read]).into_owned()).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        };
        answer(&listener, &first);
        let is_other = first.contains(&format!(":{other_port}"));
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        answer(if is_other { &other } else { &listener }, ok);
    });
    (url(&format!("http://127.0.0.1:{port}/a/b?c=d")), heard)
}

#[test]
fn n13_redirects_are_followed_and_credentials_stay_with_their_server() {
    for (location, target, is_told) in [
        ("/x/y", "GET /x/y ", true),
        ("y?z", "GET /a/y?z ", true),
        ("http://127.0.0.1:{port}/q", "GET /q ", true),
        ("{other}/away", "GET /away ", false),
    ] {
        let head = format!("HTTP/1.1 307 Elsewhere\r\nLocation: {location}\r\n\r\n");
        let (url, heard) = redirecting(head.leak());
        let secret = [("Authorization", "Bearer secret")];
        let answer = fetch("GET", &url, &secret).unwrap();
        assert_eq!(answer.into_text(10).unwrap(), "ok", "{location}");
        let asked: Vec<_> = heard.iter().collect();
        assert!(asked[1].starts_with(target), "{location}: {asked:?}");
        assert_eq!(asked[1].contains("secret"), is_told, "{location}: {asked:?}");
    }
    let (at, _heard) = redirecting("HTTP/1.1 308 x\r\nLocation: {other}/z\r\n\r\n");
    let body = RequestBody { from: &mut &b"body"[..], len: Some(4), seen: &|_| {} };
    let error = send("PUT", &at, &[], Some(body)).err().unwrap().to_string();
    assert!(error.contains("/z; use that URL"), "{error}");
    let (at, heard) = redirecting("HTTP/1.1 303 x\r\nLocation: /got\r\n\r\n");
    let nothing = RequestBody { from: &mut std::io::empty(), len: Some(0), seen: &|_| {} };
    assert_eq!(send("POST", &at, &[], Some(nothing)).unwrap().url.path, "/got");
    assert!(heard.iter().nth(1).unwrap().starts_with("GET /got "));
    assert!(url("http://h/").trusts(&url("https://h/")));
    assert!(!url("https://h/").trusts(&url("http://h/")));
}

#[test]
fn n13_an_answer_before_the_body_is_taken_is_the_answer() {
    let at = answering("HTTP/1.1 507 Full\r\nContent-Length: 4\r\n\r\nfull");
    let body = RequestBody { from: &mut std::io::repeat(7), len: None, seen: &|_| {} };
    let answer = send("PUT", &at, &[], Some(body)).unwrap();
    assert_eq!((answer.status, answer.into_text(10).unwrap()), (507, "full".into()));
}

#[test]
fn what_is_no_answer_is_an_error() {
    for answer in ["", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 200 OK\r\n"] {
        assert!(fetch("GET", &answering(answer), &[]).is_err(), "{answer:?} was taken");
    }
}
