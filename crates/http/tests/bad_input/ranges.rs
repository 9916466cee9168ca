//! Rows R01 to R05: what a `Range` may ask for.

use std::fs;
use std::io::Write;

use tactus_http::Abuse;

use crate::test_server::{A_LEN, TestServer, content};

fn refused(server: &TestServer, field: &str) {
    let answer = server.client().get("/a.ts?rate=max", &format!("Range: {field}\r\n"));
    assert_eq!(answer.status, 416, "{field}");
    assert_eq!(answer.field("content-range"), Some(&*format!("bytes */{A_LEN}")), "{field}");
    assert!(!answer.closes(), "the connection is fine");
}

fn tiny(count: usize) -> String {
    let specs: Vec<_> = (0..count).map(|n| format!("{0}-{0}", 10 * n)).collect();
    format!("bytes={}", specs.join(","))
}

#[test]
fn r01_many_tiny_ranges() {
    let server = TestServer::new();
    refused(&server, &tiny(500));
    refused(&server, &tiny(9));
    assert_eq!(server.count(Abuse::BadRange), 2);
    let eight = server.client().get("/a.ts?rate=max", &format!("Range: {}\r\n", tiny(8)));
    assert_eq!(eight.status, 206);
    assert_eq!(eight.text().matches("Content-Range: bytes ").count(), 8);
}

#[test]
fn r02_the_same_range_again_and_again() {
    let server = TestServer::new();
    refused(&server, &format!("bytes={}", vec!["0-"; 100].join(",")));
    refused(&server, "bytes=0-,0-");
    refused(&server, "bytes=0-9,5-14,10-19,15-24");
    server.serves_others();
}

/// RFC 9110 section 14.1.2: a last position beyond the end means the end, and so does a long
/// suffix.
#[test]
fn s12_numbers_larger_than_any_file_mean_the_end() {
    let server = TestServer::new();
    let mut client = server.client();
    for huge in ["18446744073709551615", "18446744073709551616", "99999999999999999999999999"] {
        for (field, from) in
            [(format!("0-{huge}"), 0), (format!("5-{huge}"), 5), (format!("-{huge}"), 0)]
        {
            let answer = client.get("/a.ts?rate=max", &format!("Range: bytes={field}\r\n"));
            assert_eq!((answer.status, answer.body.len()), (206, A_LEN - from), "{field}");
            let range = format!("bytes {from}-{}/{A_LEN}", A_LEN - 1);
            assert_eq!(answer.field("content-range"), Some(&*range), "{field}");
        }
    }
}

#[test]
fn r03_numbers_beyond_all_files_and_ranges_that_are_none() {
    let server = TestServer::new();
    for field in [
        "bytes=18446744073709551615-",
        "bytes=18446744073709551616-",
        "bytes=18446744073709551616-18446744073709551617",
        "bytes=1234567-",
    ] {
        refused(&server, field);
    }
    let mut client = server.client();
    for field in ["bytes=5-3", "bytes=x-", "bytes=-", "lines=1-2", "bytes=+1-2"] {
        let answer = client.get("/a.ts?rate=max", &format!("Range: {field}\r\n"));
        assert_eq!((answer.status, answer.body.len()), (200, A_LEN), "{field}");
    }
}

#[test]
fn r04_if_range_that_is_not_certain() {
    let server = TestServer::new();
    let mut client = server.client();
    let tag = client.ask("HEAD", "/a.ts", "").field("etag").unwrap().to_owned();
    for value in [format!("W/{tag}"), "Thu, 01 Jan 1970 00:00:00 GMT".into(), "\"x\"".into()] {
        let fields = format!("Range: bytes=0-9\r\nIf-Range: {value}\r\n");
        let answer = client.get("/a.ts?rate=max", &fields);
        assert_eq!((answer.status, answer.body.len()), (200, A_LEN), "{value}");
    }
    let fields = format!("Range: bytes=0-9\r\nIf-Range: {tag}\r\n");
    assert_eq!(client.get("/a.ts?rate=max", &fields).status, 206);
}

#[test]
fn r05_a_file_that_grows() {
    let server = TestServer::new();
    let all = content(40_000);
    let path = server.root().join("growing.ts");
    let mut file = fs::File::create(&path).unwrap();
    let mut client = server.client();
    let mut tags = std::collections::HashSet::new();
    for (from, to) in [(0, 9_999), (9_999, 20_000), (20_000, 40_000)] {
        file.write_all(&all[from..to]).unwrap();
        file.sync_all().unwrap();
        // What is there is sent, up to its end; what is not there is not promised.
        let answer = client.get("/growing.ts?rate=max", "Range: bytes=5000-999999\r\n");
        assert_eq!((answer.status, answer.body.as_slice()), (206, &all[5000..to]));
        let range = format!("bytes 5000-{}/{to}", to - 1);
        assert_eq!(answer.field("content-range"), Some(&*range));
        assert!(tags.insert(answer.field("etag").unwrap().to_owned()), "another version");
        let beyond = client.get("/growing.ts?rate=max", &format!("Range: bytes={to}-\r\n"));
        assert_eq!(beyond.status, 416);
    }
}
