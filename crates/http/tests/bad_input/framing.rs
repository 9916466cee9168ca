//! Rows H03 to H13, H15, H19 and H21: what a request may look like.

use tactus_http::{Abuse, Hosts};

use crate::client::Answer;
use crate::test_server::TestServer;

/// What would be a request if the bytes before it were misunderstood.
const NEXT: &str = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Sends `bytes`, with another request behind them, and expects one refusal and a closed
/// connection.
fn refused(server: &TestServer, bytes: &str, status: u16) -> Answer {
    let mut client = server.client();
    client.send(format!("{bytes}{NEXT}"));
    let answer = client.answer().unwrap_or_else(|| panic!("no answer to {bytes:?}"));
    assert_eq!(answer.status, status, "{bytes:?}: {}", answer.text());
    assert!(answer.closes(), "{bytes:?} is not closed");
    assert!(!answer.text().trim().is_empty(), "{bytes:?} is not explained");
    client.is_closed();
    answer
}

fn with_fields(fields: &str) -> String {
    format!("GET /a.ts HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n")
}

#[test]
fn h03_a_long_request_line() {
    let server = TestServer::new();
    refused(&server, &format!("GET /{} HTTP/1.1\r\n", "a".repeat(8 * 1024)), 414);
    refused(&server, &"A".repeat(10 * 1024), 414);
    assert_eq!(server.count(Abuse::LongLine), 2);
    server.serves_others();
}

#[test]
fn h04_too_many_and_too_long_fields() {
    let server = TestServer::new();
    let fields = |count: usize| (0..count).map(|n| format!("X-{n}: y\r\n")).collect::<String>();
    refused(&server, &with_fields(&fields(100)), 431);
    refused(&server, &with_fields(&format!("X: {}\r\n", "y".repeat(33 * 1024))), 431);
    refused(&server, &with_fields(&format!("X: {}", "y".repeat(40 * 1024))), 431);
    assert_eq!(server.count(Abuse::ManyFields), 3);
    let mut client = server.client();
    client.send(with_fields(&fields(99)));
    assert_eq!(client.answer().unwrap().status, 200, "a hundred are allowed");
}

#[test]
fn h05_length_and_coding_together() {
    let server = TestServer::new();
    refused(&server, &with_fields("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"), 400);
    refused(&server, &with_fields("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"), 400);
    assert_eq!(server.count(Abuse::FramingConflict), 2);
    server.serves_others();
}

#[test]
fn h06_lengths_that_are_no_plain_numbers() {
    let server = TestServer::new();
    let bad = ["+3", "0x10", "1, 1", "-1", "18446744073709551616", "", "3 ,"];
    for length in bad {
        refused(&server, &with_fields(&format!("Content-Length: {length}\r\n")), 400);
    }
    refused(&server, &with_fields("Content-Length: 1\r\nContent-Length: 1\r\n"), 400);
    assert_eq!(server.count(Abuse::FramingConflict), bad.len() as u64 + 1);
}

#[test]
fn h07_codings_that_are_not_chunked_alone() {
    let server = TestServer::new();
    for (fields, status) in [
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", 400),
        ("Transfer-Encoding: chunked, identity\r\n", 400),
        ("Transfer-Encoding: xchunked\r\n", 501),
        ("Transfer-Encoding: gzip, chunked\r\n", 501),
    ] {
        refused(&server, &with_fields(fields), status);
    }
    assert_eq!(server.count(Abuse::FramingConflict), 5);
}

#[test]
fn h08_chunk_sizes_and_line_ends() {
    let server = TestServer::new();
    let bodies = [
        "10000000000000001\r\n",
        " 3\r\nabc\r\n",
        "3\r\nabc\n0\r\n",
        "3\r\nabcX\r\n",
        "3\nabc\r\n",
    ];
    for body in bodies {
        refused(&server, &(with_fields("Transfer-Encoding: chunked\r\n") + body), 400);
    }
    assert_eq!(server.count(Abuse::BadChunk), bodies.len() as u64);
    server.serves_others();
}

#[test]
fn h09_chunk_extensions() {
    let server = TestServer::new();
    for extension in ["x".repeat(257), "a=\"b\"".into(), "a=\"\r\n\"".into()] {
        let body = format!("3;{extension}\r\nabc\r\n0\r\n\r\n");
        refused(&server, &(with_fields("Transfer-Encoding: chunked\r\n") + &body), 400);
    }
    assert_eq!(server.count(Abuse::BadChunk), 3);
}

#[test]
fn h10_line_ends_folds_spaces_and_control_bytes() {
    let server = TestServer::new();
    let bad = [
        "GET /a.ts HTTP/1.1\nHost: localhost\r\n\r\n",
        "GET /a.ts HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n",
        "GET /a.ts HTTP/1.1\r\nHost: localhost\r\n\n",
        "GET /a.ts HTTP/1.1\r\nHost: localhost\r\nX: y\r\n z\r\n\r\n",
        "GET /a.ts HTTP/1.1\r\nHost: localhost\r\nX : y\r\n\r\n",
        "GET /a.ts HTTP/1.1\r\nHost: localhost\r\nX: y\0\r\n\r\n",
        "GET /a.ts HTTP/1.1\r\nHost: localhost\r\nX\x01: y\r\n\r\n",
        "GET /a.ts HTTP/1.1\r\nHost: localhost\r\nX: \x7f\r\n\r\n",
        "GET /a.ts HTTP/1.1\r\nHost: localhost\r\nX: y\rZ: w\r\n\r\n",
    ];
    for bytes in bad {
        refused(&server, bytes, 400);
    }
    assert_eq!(server.count(Abuse::BadRequest), bad.len() as u64);
    server.serves_others();
}

#[test]
fn h11_codings_in_http_1_0() {
    let server = TestServer::new();
    let bytes =
        "GET /a.ts HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    refused(&server, bytes, 400);
    assert_eq!(server.count(Abuse::FramingConflict), 1);
}

#[test]
fn h12_a_body_where_none_belongs() {
    let server = TestServer::new();
    // The body is made of requests; none of them is one.
    let body = NEXT.repeat(64 * 1024 / NEXT.len());
    let mut client = server.client();
    for method in ["GET", "HEAD"] {
        let head = format!("{method} /dir/b.mp4 HTTP/1.1\r\nHost: localhost\r\n");
        client.send(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()));
        assert_eq!(client.answer_to(method).unwrap().status, 200);
        client.send(format!(
            "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n",
            body.len()
        ));
        client.send("0;a=b\r\nTrailer: x\r\n\r\n");
        assert_eq!(client.answer_to(method).unwrap().status, 200);
    }
    assert_eq!(client.get("/dir/b.mp4", "").status, 200, "the next request is the next");
    assert_eq!(client.get("/dir/none", "").status, 404);

    let large = 64 * 1024 + 1;
    refused(&server, &with_fields(&format!("Content-Length: {large}\r\n")), 413);
    let chunk = format!("{large:x}\r\n");
    refused(&server, &(with_fields("Transfer-Encoding: chunked\r\n") + &chunk), 413);
    assert_eq!(server.count(Abuse::LargeBody), 2);
    server.serves_others();
}

#[test]
fn h13_hosts() {
    let server = TestServer::with(|plan| {
        plan.limits.hosts = Hosts::Named(vec!["localhost".into(), "tv.example".into()]);
    });
    refused(&server, "GET /a.ts HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400);
    refused(&server, "GET /a.ts HTTP/1.1\r\n\r\n", 400);
    refused(&server, "GET /a.ts HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421);
    refused(&server, "GET http://evil.example/a.ts HTTP/1.1\r\nHost: localhost\r\n\r\n", 421);
    refused(&server, "GET /a.ts HTTP/1.1\r\nHost: local host\r\n\r\n", 400);
    assert_eq!(server.count(Abuse::BadHost), 5);
    let mut client = server.client();
    client.send("HEAD /a.ts HTTP/1.1\r\nHost: TV.example:8080\r\n\r\n");
    assert_eq!(client.answer_to("HEAD").unwrap().status, 200);
}

#[test]
fn h15_methods() {
    let server = TestServer::new();
    for (method, target, status) in [
        ("TRACE", "/a.ts", 405),
        ("CONNECT", "localhost:80", 405),
        ("PUT", "/a.ts", 405),
        ("DELETE", "/a.ts", 405),
        ("BREW", "/a.ts", 501),
        ("get", "/a.ts", 501),
    ] {
        let answer = server.client().ask(method, target, "");
        assert_eq!(answer.status, status, "{method}");
        let allow = (status == 405).then_some("GET, HEAD, OPTIONS, PROPFIND");
        assert_eq!(answer.field("allow"), allow, "{method}");
    }
    assert_eq!(server.count(Abuse::BadMethod), 6);
}

#[test]
fn h19_a_large_upload_that_asks_first() {
    let server = TestServer::new();
    let expect = "Expect: 100-continue\r\n";
    let large = format!(
        "PUT /new.ts HTTP/1.1\r\nHost: localhost\r\n{expect}Content-Length: 9999999999\r\n\r\n"
    );
    refused(&server, &large, 413);
    // A small one is refused for its method, also without being asked for.
    let mut client = server.client();
    client.send(format!(
        "PUT /new.ts HTTP/1.1\r\nHost: localhost\r\n{expect}Content-Length: 9\r\n\r\n"
    ));
    let answer = client.answer().unwrap();
    assert!(answer.status == 405 && answer.closes());
    client.is_closed();
    // Where a body is read over, it is asked for.
    let mut client = server.client();
    client.send(format!(
        "GET /dir/b.mp4 HTTP/1.1\r\nHost: localhost\r\n{expect}Content-Length: 3\r\n\r\n"
    ));
    assert_eq!(client.answer().unwrap().status, 100);
    client.send("abc");
    assert_eq!(client.answer().unwrap().status, 200);
    refused(&server, &with_fields("Expect: something\r\n"), 417);
}

#[test]
fn h21_underscores_for_dashes() {
    let server = TestServer::new();
    refused(&server, &with_fields("Content_Length: 3\r\n"), 400);
    refused(&server, &with_fields("X-Name: a\r\nX_Name: b\r\n"), 400);
    refused(&server, &with_fields("transfer_encoding: chunked\r\n"), 400);
    assert_eq!(server.count(Abuse::BadRequest), 3);
}
