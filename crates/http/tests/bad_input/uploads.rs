//! Rows U01 to U19: uploads, by PUT and by tus 1.0; and what of H19, A07, R05, K03 and C01 concerns
//! them.

use std::fs;
use std::time::Duration;

use tactus_control::settings::Sendfile;
use tactus_core::units::{Bytes, KIB, MIB};
use tactus_http::Abuse;

use crate::client::{Answer, Client};
use crate::test_server::{OTHER_TOKEN, TOKEN, TestServer, content};

const UPLOADS: &str = "/api/v1/uploads";

pub(crate) fn auth() -> String {
    format!("Authorization: Bearer {TOKEN}\r\n")
}

fn tus(more: &str) -> String {
    format!("{}Tus-Resumable: 1.0.0\r\n{more}", auth())
}

/// A request with a body.
fn request(method: &str, target: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let len = body.len();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {len}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

pub(crate) fn sent(
    client: &mut Client,
    method: &str,
    target: &str,
    fields: &str,
    body: &[u8],
) -> Answer {
    client.send(request(method, target, fields, body));
    client.answer_to(method).expect("an answer")
}

pub(crate) fn put(server: &TestServer, target: &str, fields: &str, body: &[u8]) -> Answer {
    sent(&mut server.client(), "PUT", target, &format!("{}{fields}", auth()), body)
}

/// Creates an upload; its URL.
fn create(server: &TestServer, target: &str, fields: &str) -> String {
    let answer = created(server, target, fields);
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.field("location").expect("a place").to_owned()
}

fn created(server: &TestServer, target: &str, fields: &str) -> Answer {
    sent(&mut server.client(), "POST", &format!("{UPLOADS}{target}"), &tus(fields), b"")
}

fn patch(server: &TestServer, url: &str, offset: u64, fields: &str, body: &[u8]) -> Answer {
    let fields = format!("{OCTETS}Upload-Offset: {offset}\r\n{fields}");
    sent(&mut server.client(), "PATCH", url, &tus(&fields), body)
}

const OCTETS: &str = "Content-Type: application/offset+octet-stream\r\n";

fn head(server: &TestServer, url: &str) -> Answer {
    server.client().ask("HEAD", url, &tus(""))
}

fn offset(server: &TestServer, url: &str) -> u64 {
    let answer = head(server, url);
    assert_eq!(answer.status, 200);
    answer.field("upload-offset").expect("an offset").parse().expect("a number")
}

fn stored(server: &TestServer, name: &str) -> Option<Vec<u8>> {
    fs::read(server.root().join(name)).ok()
}

fn base64(text: &str) -> String {
    data_encoding::BASE64.encode(text.as_bytes())
}

/// Nothing is open and nothing is reserved.
pub(crate) fn is_clean(server: &TestServer) {
    server.wait_until("nothing is reserved", |server| {
        let usage = server.store().usage();
        (usage.uploads, usage.reserved) == (0, 0)
    });
}

#[test]
fn a_title_is_put_read_replaced_moved_and_deleted() {
    let server = TestServer::taking_uploads();
    let body = content(3_000_001);
    let answer = put(&server, "/new/f%20ilm.ts", "", &body);
    assert_eq!((answer.status, answer.field("location")), (201, Some("/new/f%20ilm.ts")));
    let tag = answer.field("etag").unwrap().to_owned();
    let mut client = server.client();
    let read = client.get("/new/f%20ilm.ts?rate=max", "");
    assert_eq!((read.status, read.field("etag")), (200, Some(&*tag)));
    assert!(read.body == body);

    // Chunked, and replaced.
    let fields = format!("If-Match: {tag}\r\n");
    client.send(format!(
        "PUT /new/f%20ilm.ts HTTP/1.1\r\nHost: localhost\r\n\
         {}{fields}Transfer-Encoding: chunked\r\n\r\n",
        auth()
    ));
    for part in body[..1_000_000].chunks(70_000) {
        client.send(format!("{:x}\r\n", part.len()));
        client.send(part);
        client.send("\r\n");
    }
    client.send("0\r\n\r\n");
    let answer = client.answer().unwrap();
    assert_eq!(answer.status, 204);
    assert_ne!(answer.field("etag"), Some(&*tag));
    assert!(stored(&server, "new/f ilm.ts").unwrap() == body[..1_000_000]);

    // The same connection goes on: nothing of a body is left on it.
    let to = "Destination: http://localhost/b.ts\r\n";
    assert_eq!(client.ask("MOVE", "/new/f%20ilm.ts", &format!("{}{to}", auth())).status, 201);
    assert_eq!(client.get("/new/f%20ilm.ts", "").status, 404);
    let no = "Destination: /b.ts\r\nOverwrite: F\r\n";
    assert_eq!(client.ask("MOVE", "/a.ts", &format!("{}{no}", auth())).status, 412);
    assert_eq!(client.ask("MOVE", "/a.ts", &format!("{}{to}", auth())).status, 204);
    assert_eq!(client.ask("MOVE", "/none.ts", &format!("{}{to}", auth())).status, 404);
    let away = "Destination: http://other.example/b.ts\r\n";
    assert_eq!(client.ask("MOVE", "/b.ts", &format!("{}{away}", auth())).status, 502);
    assert_eq!(client.ask("DELETE", "/b.ts", &auth()).status, 204);
    assert_eq!(client.ask("DELETE", "/b.ts", &auth()).status, 404);
    assert_eq!(put(&server, "/empty.ts", "", b"").status, 204);
    assert_eq!(put(&server, "/empty-too.ts", "", b"").status, 201);
    assert_eq!(put(&server, "/dir/", "", b"x").status, 409);
    assert_eq!(put(&server, "/dir", "", b"x").status, 409);
    assert_eq!(
        put(&server, "/a.ts/x", "", b"x").status,
        201,
        "a.ts has gone: now it is a directory"
    );
    is_clean(&server);
}

#[test]
fn conditions_hold_before_the_body() {
    let server = TestServer::taking_uploads();
    let etag = server.client().ask("HEAD", "/a.ts", "").field("etag").unwrap().to_owned();
    let own = format!("If-None-Match: {etag}\r\n");
    for fields in ["If-None-Match: *\r\n", "If-Match: \"x\"\r\n", own.as_str()] {
        let mut client = server.client();
        let expect = "Expect: 100-continue\r\nContent-Length: 5\r\n";
        let head =
            format!("PUT /a.ts HTTP/1.1\r\nHost: localhost\r\n{}{fields}{expect}\r\n", auth());
        client.send(head);
        let answer = client.answer().unwrap();
        assert!(answer.status == 412 && answer.closes(), "{fields}: {}", answer.status);
    }
    assert_eq!(put(&server, "/a.ts", "If-None-Match: \"x\"\r\n", b"x").status, 204);
    assert_eq!(put(&server, "/a.ts", "If-Match: *\r\n", b"x").status, 204);
    assert_eq!(put(&server, "/c.ts", "If-Match: *\r\n", b"x").status, 412);
    assert_eq!(put(&server, "/c.ts", "If-None-Match: *\r\n", b"x").status, 201);
}

#[test]
fn who_has_no_token_changes_nothing_and_learns_nothing() {
    let server = TestServer::taking_uploads();
    for (method, target) in [
        ("PUT", "/a.ts"),
        ("PUT", "/none.ts"),
        ("DELETE", "/a.ts"),
        ("MOVE", "/a.ts"),
        ("POST", UPLOADS),
        ("PATCH", "/api/v1/uploads/0123456789abcdef0123456789abcdef"),
        ("HEAD", "/api/v1/uploads/0123456789abcdef0123456789abcdef"),
        ("POST", "/a.ts"),
    ] {
        let answer = server.client().ask(method, target, "");
        assert_eq!(answer.status, 401, "{method} {target}");
        assert!(answer.field("www-authenticate").unwrap().starts_with("Bearer realm"));
    }
    assert_eq!(server.count(Abuse::WrongToken), 0, "that was nobody's abuse");
    let wrong = format!("Authorization: Bearer {}x\r\n", &TOKEN[..TOKEN.len() - 1]);
    assert_eq!(server.client().ask("DELETE", "/a.ts", &wrong).status, 401);
    assert_eq!(server.count(Abuse::WrongToken), 1);
    let basic = format!("Authorization: Basic {}\r\n", base64(&format!("anybody:{TOKEN}")));
    assert_eq!(server.client().ask("DELETE", "/a.ts", &basic).status, 204);
}

#[test]
fn c01_a_page_of_another_site_changes_nothing() {
    let server = TestServer::taking_uploads();
    for field in ["Origin: http://evil.example", "Sec-Fetch-Site: cross-site", "Origin: null"] {
        let answer = server.client().ask("DELETE", "/a.ts", &format!("{}{field}\r\n", auth()));
        assert_eq!(answer.status, 403, "{field}");
    }
    let own = format!("{}Origin: http://localhost\r\n", auth());
    assert_eq!(server.client().ask("DELETE", "/a.ts", &own).status, 204);
}

#[test]
fn h19_an_upload_that_asks_first_is_decided_first() {
    let server = TestServer::with(|plan| {
        plan.uploads = true;
        plan.upload.object_max = Bytes(MIB);
    });
    let ask = |fields: &str, len: u64| {
        let mut client = server.client();
        client.send(format!(
            "PUT /big.ts HTTP/1.1\r\nHost: localhost\r\n{fields}Expect: 100-continue\r\n\
             Content-Length: {len}\r\n\r\n"
        ));
        client
    };
    let mut refused = ask(&auth(), MIB + 1);
    let answer = refused.answer().unwrap();
    assert!(answer.status == 413 && answer.closes(), "without 100");
    refused.is_closed();
    assert_eq!(ask("", 5).answer().unwrap().status, 401);
    let mut taken = ask(&auth(), 5);
    assert_eq!(taken.answer().unwrap().status, 100);
    taken.send("hello");
    assert_eq!(taken.answer().unwrap().status, 201);
    // Who does not wait is not told to go on.
    assert_eq!(
        sent(
            &mut taken,
            "PUT",
            "/big.ts",
            &format!("{}Expect: 100-continue\r\n", auth()),
            b"again"
        )
        .status,
        204
    );
    assert_eq!(stored(&server, "big.ts").unwrap(), b"again");
}

#[test]
fn a07_nothing_of_ours_is_written() {
    let server = TestServer::taking_uploads();
    for target in
        ["/.tactus/x", "/.tactus", "/dir/.tactus-x/y", "/.TACTUS/x", "/.tactus/upload-token"]
    {
        assert_eq!(put(&server, target, "", b"x").status, 403, "{target}");
        assert_eq!(server.client().ask("DELETE", target, &auth()).status, 403, "{target}");
        let to = format!("{}Destination: {target}\r\n", auth());
        assert_eq!(server.client().ask("MOVE", "/a.ts", &to).status, 403, "{target}");
        let by_tus = created(&server, &format!("?path={target}"), "Upload-Length: 1\r\n");
        assert_eq!(by_tus.status, 403, "{target}");
    }
    assert_eq!(put(&server, "/../x", "", b"x").status, 400);
    is_clean(&server);
}

#[test]
fn u01_neither_length_nor_chunked() {
    let server = TestServer::taking_uploads();
    assert_eq!(server.client().ask("PUT", "/x.ts", &auth()).status, 411);
    assert_eq!(stored(&server, "x.ts"), None);
}

#[test]
fn u02_too_large_for_a_title_a_quota_or_the_disk() {
    let server = TestServer::with(|plan| {
        plan.uploads = true;
        plan.upload.object_max = Bytes(1 << 50);
        plan.upload.principals[1].quota = Some(Bytes(100 * KIB));
    });
    let ask = |token: &str, len: u64| {
        let mut client = server.client();
        let fields = format!("Authorization: Bearer {token}\r\n");
        client.send(format!(
            "PUT /x.ts HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {len}\r\n\r\n"
        ));
        let answer = client.answer().unwrap();
        assert!(answer.closes());
        answer.status
    };
    assert_eq!(ask(TOKEN, (1 << 50) + 1), 413, "the title");
    assert_eq!(ask(OTHER_TOKEN, 100 * KIB + 1), 413, "the quota");
    assert_eq!(ask(TOKEN, 1 << 50), 507, "the disk");
    is_clean(&server);
    // Of unknown length: when it is too much.
    let mut client = server.client();
    client.send(format!(
        "PUT /x.ts HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {OTHER_TOKEN}\r\n\
         Transfer-Encoding: chunked\r\n\r\n40000\r\n"
    ));
    client.send(content(0x40000));
    client.send("\r\n0\r\n\r\n");
    assert_eq!(client.answer().unwrap().status, 413);
    assert_eq!(stored(&server, "x.ts"), None);
    is_clean(&server);
}

#[test]
fn u03_uploads_that_are_begun_and_left() {
    let server = TestServer::taking_uploads();
    for n in 0..100 {
        let url = create(&server, &format!("?path=/{n}.ts"), "Upload-Length: 1000000\r\n");
        assert_eq!(patch(&server, &url, 0, "", b"x").status, 204);
    }
    let answer = created(&server, "?path=/one-more.ts", "Upload-Length: 1000000\r\n");
    assert!(answer.status == 429 && answer.field("retry-after").is_some(), "{}", answer.text());
    assert_eq!(put(&server, "/one-more.ts", "", b"x").status, 429);
    assert_eq!(server.store().usage().reserved, 100 * 1_000_000);
    // A day later.
    let later = std::time::SystemTime::now() + Duration::from_secs(86_401);
    let expired = server.block_on(server.store().expire(later)).unwrap();
    assert_eq!(expired, 100);
    is_clean(&server);
    assert_eq!(put(&server, "/one-more.ts", "", b"x").status, 201);
}

#[test]
fn u04_a_coded_body() {
    let server = TestServer::taking_uploads();
    assert_eq!(put(&server, "/x.ts", "Content-Encoding: gzip\r\n", b"\x1f\x8b\x08").status, 415);
    assert_eq!(stored(&server, "x.ts"), None);
}

#[test]
fn u05_a_part_as_the_whole() {
    let server = TestServer::taking_uploads();
    assert_eq!(put(&server, "/a.ts", "Content-Range: bytes 0-2/9\r\n", b"abc").status, 400);
    assert_eq!(stored(&server, "a.ts").unwrap().len(), crate::test_server::A_LEN);
}

#[test]
fn an_upload_by_tus_goes_on_where_it_stopped() {
    let server = TestServer::taking_uploads();
    let body = content(300_000);
    let metadata = format!("filename {},path {}", base64("film.ts"), base64("new/"));
    let fields = format!("Upload-Length: 300000\r\nUpload-Metadata: {metadata}\r\n");
    let answer = created(&server, "", &fields);
    assert_eq!((answer.status, answer.field("tus-resumable")), (201, Some("1.0.0")));
    assert!(answer.field("upload-expires").is_some());
    let url = answer.field("location").unwrap().to_owned();
    let answer = patch(&server, &url, 0, "", &body[..100_001]);
    assert_eq!((answer.status, answer.field("upload-offset")), (204, Some("100001")));
    assert!(answer.field("upload-expires").is_some());
    let answer = head(&server, &url);
    for (name, value) in [
        ("upload-offset", "100001"),
        ("upload-length", "300000"),
        ("upload-metadata", &*metadata),
        ("cache-control", "no-store"),
        ("tus-resumable", "1.0.0"),
    ] {
        assert_eq!(answer.field(name), Some(value), "{name}");
    }
    assert_eq!(stored(&server, "new/film.ts"), None, "not before it is whole");
    // A cut: what has come is kept.
    let mut client = server.client();
    let whole = request(
        "PATCH",
        &url,
        &tus(&format!("{OCTETS}Upload-Offset: 100001\r\n")),
        &body[100_001..],
    );
    client.send(&whole[..whole.len() - 99_999]);
    drop(client);
    server.wait_until("the cut is seen", |server| offset(server, &url) == 200_001);
    let answer = patch(&server, &url, 200_001, "", &body[200_001..]);
    assert_eq!((answer.status, answer.field("upload-offset")), (204, Some("300000")));
    assert!(stored(&server, "new/film.ts").unwrap() == body);
    // Its client may not have heard that.
    assert_eq!(offset(&server, &url), 300_000);
    is_clean(&server);
}

#[test]
fn all_extensions_of_tus_are_there() {
    let server = TestServer::taking_uploads();
    let options = server.client().ask("OPTIONS", UPLOADS, "");
    assert_eq!((options.status, options.field("tus-version")), (204, Some("1.0.0")));
    let extensions = options.field("tus-extension").unwrap();
    for extension in [
        "creation",
        "creation-with-upload",
        "creation-defer-length",
        "expiration",
        "checksum",
        "termination",
        "concatenation",
    ] {
        assert!(extensions.split(',').any(|e| e == extension), "{extension}");
    }
    assert!(options.field("tus-checksum-algorithm").unwrap().contains("sha1"));
    // Creation with upload.
    let fields = format!("{OCTETS}Upload-Length: 11\r\n");
    let url = format!("{UPLOADS}?path=/h.txt");
    let answer = sent(&mut server.client(), "POST", &url, &tus(&fields), b"hello ");
    assert_eq!(
        (answer.status, answer.field("upload-offset")),
        (201, Some("6")),
        "{}",
        answer.text()
    );
    let url = answer.field("location").unwrap().to_owned();
    assert_eq!(patch(&server, &url, 6, "", b"world").status, 204);
    assert_eq!(stored(&server, "h.txt").unwrap(), b"hello world");
    // Deferred length.
    let url = create(&server, "?path=/d.txt", "Upload-Defer-Length: 1\r\n");
    assert_eq!(head(&server, &url).field("upload-defer-length"), Some("1"));
    assert_eq!(patch(&server, &url, 0, "", b"hello ").status, 204);
    assert_eq!(patch(&server, &url, 6, "Upload-Length: 11\r\n", b"wor").status, 204);
    assert_eq!(patch(&server, &url, 9, "Upload-Length: 12\r\n", b"l").status, 400);
    assert_eq!(patch(&server, &url, 9, "", b"ld").status, 204);
    assert_eq!(stored(&server, "d.txt").unwrap(), b"hello world");
    // Termination.
    let url = create(&server, "?path=/t.txt", "Upload-Length: 5\r\n");
    assert_eq!(server.client().ask("DELETE", &url, &tus("")).status, 204);
    assert_eq!(head(&server, &url).status, 404);
    // Concatenation.
    let part = |bytes: &[u8]| {
        let url = create(
            &server,
            "",
            &format!("Upload-Concat: partial\r\nUpload-Length: {}\r\n", bytes.len()),
        );
        assert_eq!(patch(&server, &url, 0, "", bytes).status, 204);
        url
    };
    let (first, second) = (part(b"hello "), part(b"world"));
    let concat = format!("Upload-Concat: final;{first} http://localhost{second}\r\n");
    let url = create(&server, "?path=/c.txt", &concat);
    assert_eq!(stored(&server, "c.txt").unwrap(), b"hello world");
    let answer = head(&server, &url);
    assert_eq!(
        (answer.field("upload-length"), answer.field("upload-offset")),
        (Some("11"), Some("11"))
    );
    assert_eq!(patch(&server, &url, 11, "", b"").status, 403);
    // A method in a field, for those who have no other.
    let url = create(&server, "?path=/o.txt", "Upload-Length: 5\r\n");
    let fields = format!("{OCTETS}Upload-Offset: 0\r\nX-HTTP-Method-Override: PATCH\r\n");
    assert_eq!(sent(&mut server.client(), "POST", &url, &tus(&fields), b"hello").status, 204);
    assert_eq!(stored(&server, "o.txt").unwrap(), b"hello");
    // An empty title is whole at once.
    create(&server, "?path=/e.txt", "Upload-Length: 0\r\n");
    assert_eq!(stored(&server, "e.txt").unwrap(), b"");
}

#[test]
fn another_version_of_tus_is_not_spoken() {
    let server = TestServer::taking_uploads();
    for version in ["", "Tus-Resumable: 0.2.2\r\n"] {
        let fields = format!("{}{version}Upload-Length: 5\r\n", auth());
        let answer = sent(&mut server.client(), "POST", UPLOADS, &fields, b"");
        assert_eq!((answer.status, answer.field("tus-version")), (412, Some("1.0.0")));
    }
}

#[test]
fn u06_another_offset() {
    let server = TestServer::taking_uploads();
    let url = create(&server, "?path=/x.ts", "Upload-Length: 100\r\n");
    assert_eq!(patch(&server, &url, 0, "", b"0123456789").status, 204);
    for wrong in [0, 9, 11, 100] {
        assert_eq!(patch(&server, &url, wrong, "", b"x").status, 409, "{wrong}");
    }
    assert_eq!(offset(&server, &url), 10);
    let none = sent(&mut server.client(), "PATCH", &url, &tus(OCTETS), b"x");
    assert_eq!(none.status, 400);
}

#[test]
fn u07_two_at_once() {
    let server = TestServer::taking_uploads();
    let url = create(&server, "?path=/x.ts", "Upload-Length: 1000000\r\n");
    let body = content(1_000_000);
    let mut older = server.client();
    let fields = tus(&format!("{OCTETS}Upload-Offset: 0\r\n"));
    let whole = request("PATCH", &url, &fields, &body);
    older.send(&whole[..whole.len() - 900_000]);
    std::thread::sleep(Duration::from_millis(200));
    // The older one hangs; the newer one ends it, and goes on behind all that has come.
    let begun = std::time::Instant::now();
    let answer = patch(&server, &url, offset(&server, &url), "", &body);
    assert_eq!((answer.status, answer.field("upload-offset")), (409, Some("100000")));
    let answer = patch(&server, &url, 100_000, "", &body[100_000..]);
    assert_eq!(answer.status, 204, "{}", answer.text());
    assert!(begun.elapsed() < Duration::from_secs(4));
    let ended = older.answer().expect("it is told");
    assert!(ended.status == 409 && ended.closes(), "{}", ended.status);
    assert!(stored(&server, "x.ts").unwrap() == body);
}

#[test]
fn u08_lengths_that_are_none() {
    let server = TestServer::taking_uploads();
    for length in ["-1", "1e9", "9223372036854775808", "+5", "", "5, 5"] {
        let answer = created(&server, "?path=/x.ts", &format!("Upload-Length: {length}\r\n"));
        assert_eq!(answer.status, 400, "{length:?}");
    }
    for fields in [
        "Upload-Length: 5\r\nUpload-Defer-Length: 1\r\n",
        "",
        "Upload-Defer-Length: 0\r\n",
        "Upload-Length: 5\r\nUpload-Length: 6\r\n",
    ] {
        assert_eq!(created(&server, "?path=/x.ts", fields).status, 400, "{fields:?}");
    }
    is_clean(&server);
}

#[test]
fn u09_more_than_was_declared() {
    let server = TestServer::taking_uploads();
    let url = create(&server, "?path=/x.ts", "Upload-Length: 10\r\n");
    assert_eq!(patch(&server, &url, 0, "", b"01234567890").status, 413);
    assert!(offset(&server, &url) <= 10);
    // Chunked: what fits may be kept, never more.
    let url = create(&server, "?path=/y.ts", "Upload-Length: 10\r\n");
    let mut client = server.client();
    client.send(format!(
        "PATCH {url} HTTP/1.1\r\nHost: localhost\r\n{}Transfer-Encoding: chunked\r\n\r\n\
         b\r\n01234567890\r\n0\r\n\r\n",
        tus(&format!("{OCTETS}Upload-Offset: 0\r\n"))
    ));
    assert_eq!(client.answer().unwrap().status, 413);
    assert!(offset(&server, &url) <= 10);
    // The exact length ends well.
    let url = create(&server, "?path=/z.ts", "Upload-Length: 10\r\n");
    let mut client = server.client();
    client.send(format!(
        "PATCH {url} HTTP/1.1\r\nHost: localhost\r\n{}Transfer-Encoding: chunked\r\n\r\n\
         a\r\n0123456789\r\n0\r\n\r\n",
        tus(&format!("{OCTETS}Upload-Offset: 0\r\n"))
    ));
    assert_eq!(client.answer().unwrap().status, 204);
    assert_eq!(stored(&server, "z.ts").unwrap(), b"0123456789");
}

#[test]
fn u10_a_sum_that_does_not_match() {
    let server = TestServer::taking_uploads();
    let url = create(&server, "?path=/x.ts", "Upload-Length: 22\r\n");
    let sum = "Upload-Checksum: sha1 Kq5sNclPz7QV2+lfQIuc6R7oRu0=\r\n";
    assert_eq!(patch(&server, &url, 0, sum, b"hello_world").status, 460);
    assert_eq!(offset(&server, &url), 0, "nothing of it is kept");
    assert_eq!(
        patch(&server, &url, 0, "Upload-Checksum: md5 AAAA\r\n", b"hello world").status,
        400
    );
    assert_eq!(offset(&server, &url), 0);
    assert_eq!(patch(&server, &url, 0, sum, b"hello world").status, 204);
    assert_eq!(offset(&server, &url), 11);
    // Cut in the middle: nothing is known about what came.
    let mut client = server.client();
    let fields = tus(&format!("{OCTETS}Upload-Offset: 11\r\n{sum}"));
    let whole = request("PATCH", &url, &fields, b"hello world");
    client.send(&whole[..whole.len() - 5]);
    drop(client);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(offset(&server, &url), 11);
    assert_eq!(patch(&server, &url, 11, sum, b"hello_world").status, 460, "not at its end either");
    assert_eq!(stored(&server, "x.ts"), None);
    assert_eq!(patch(&server, &url, 11, sum, b"hello world").status, 204);
    assert_eq!(stored(&server, "x.ts").unwrap(), b"hello worldhello world");
}

#[test]
fn u11_another_media_type() {
    let server = TestServer::taking_uploads();
    let url = create(&server, "?path=/x.ts", "Upload-Length: 5\r\n");
    for media_type in ["", "Content-Type: application/octet-stream\r\n"] {
        let fields = tus(&format!("Upload-Offset: 0\r\n{media_type}"));
        assert_eq!(sent(&mut server.client(), "PATCH", &url, &fields, b"hello").status, 415);
    }
    assert_eq!(offset(&server, &url), 0);
}

#[test]
fn u12_metadata_and_file_names() {
    let server = TestServer::taking_uploads();
    let with = |metadata: &str| {
        created(&server, "", &format!("Upload-Length: 5\r\nUpload-Metadata: {metadata}\r\n")).status
    };
    assert_eq!(with(&format!("filename {}", "A".repeat(4096))), 400);
    assert_eq!(with("filename !"), 400);
    for name in ["../../etc/passwd", "/etc/passwd", "a/b.ts", "..", "a\\b"] {
        assert_eq!(with(&format!("filename {}", base64(name))), 400, "{name}");
    }
    for path in ["../x", "/a/../../x", "a//b"] {
        assert_eq!(with(&format!("path {}", base64(path))), 400, "{path}");
    }
    assert_eq!(with("something"), 400, "nowhere to go");
    is_clean(&server);
}

#[test]
fn u13_somebody_elses_upload() {
    let server = TestServer::taking_uploads();
    let url = create(&server, "?path=/x.ts", "Upload-Length: 5\r\n");
    let other = format!("Authorization: Bearer {OTHER_TOKEN}\r\nTus-Resumable: 1.0.0\r\n");
    assert_eq!(server.client().ask("HEAD", &url, &other).status, 404);
    assert_eq!(server.client().ask("DELETE", &url, &other).status, 404);
    let fields = format!("{other}{OCTETS}Upload-Offset: 0\r\n");
    assert_eq!(sent(&mut server.client(), "PATCH", &url, &fields, b"hello").status, 404);
    let concat = format!("{other}Upload-Concat: final;{url}\r\n");
    let target = format!("{UPLOADS}?path=/y.ts");
    assert_eq!(sent(&mut server.client(), "POST", &target, &concat, b"").status, 404);
    for id in [
        "",
        "0",
        "0123456789abcdef0123456789abcdef",
        "../../a.ts",
        "0123456789ABCDEF0123456789abcdef",
    ] {
        let answer = server.client().ask("HEAD", &format!("{UPLOADS}/{id}"), &tus(""));
        assert!(matches!(answer.status, 400 | 404 | 405), "{id}: {}", answer.status);
    }
    assert_eq!(offset(&server, &url), 0);
}

#[test]
fn u13_everybody_sees_for_what_his_own_room_is_held() {
    let server = TestServer::taking_uploads();
    let url = create(&server, "?path=/x.ts", "Upload-Length: 1000\r\n");
    assert_eq!(patch(&server, &url, 0, "", b"hello").status, 204);
    let mut waits = server.client();
    let head = format!("{}Content-Length: 70\r\nExpect: 100-continue\r\n\r\n", auth());
    waits.send(format!("PUT /y.ts HTTP/1.1\r\nHost: localhost\r\n{head}"));
    waits.head().expect("it may go on");
    let told = |fields: &str| -> serde_json::Value {
        let answer = server.client().ask("GET", UPLOADS, fields);
        assert_eq!((answer.status, answer.field("cache-control")), (200, Some("no-store")));
        serde_json::from_str(&answer.text()).expect("JSON")
    };
    let own = &told(&auth())["volumes"][0];
    assert_eq!((own["reserved_bytes"].as_u64(), own["open"].as_u64()), (Some(1070), Some(2)));
    let [first, second] = [0, 1].map(|at| &own["uploads"][at]);
    assert_eq!((first["path"].as_str(), first["offset"].as_u64()), (Some("x.ts"), Some(5)));
    assert!(url.ends_with(first["id"].as_str().expect("it can be resumed")));
    assert_eq!(
        (second["path"].as_str(), second["reserved_bytes"].as_u64()),
        (Some("y.ts"), Some(70))
    );
    assert!(second.get("id").is_none());
    let other = &told(&format!("Authorization: Bearer {OTHER_TOKEN}\r\n"))["volumes"][0];
    assert_eq!((other["reserved_bytes"].as_u64(), other["open"].as_u64()), (Some(0), Some(0)));
    assert_eq!(server.client().ask("GET", UPLOADS, "").status, 401);
    // Who goes away before the body leaves nothing.
    drop(waits);
    server.wait_until("the claim goes", |server| server.store().usage().uploads == 1);
    assert_eq!(server.store().usage().reserved, 1000);
}

#[test]
fn u14_options_are_a_constant() {
    let server = TestServer::taking_uploads();
    let mut client = server.client();
    let of = |client: &mut Client, target: &str| {
        let mut answer = client.ask("OPTIONS", target, "");
        answer.fields.retain(|(name, _)| name != "date");
        answer
    };
    let title = of(&mut client, "/a.ts");
    let all =
        "GET, HEAD, OPTIONS, PUT, DELETE, MOVE, COPY, PROPFIND, PROPPATCH, MKCOL, LOCK, UNLOCK";
    assert_eq!((title.field("allow"), title.field("dav")), (Some(all), Some("1, 2")));
    assert_eq!(of(&mut client, "/none.ts"), title);
    let url = create(&server, "?path=/x.ts", "Upload-Length: 5\r\n");
    let uploads = of(&mut client, UPLOADS);
    assert_eq!(of(&mut client, &url), uploads);
    assert_eq!(of(&mut client, &format!("{UPLOADS}/none")), uploads);
    assert!(title.field("access-control-allow-origin").is_none());
}

#[test]
fn parts_are_joined_when_the_disk_has_time_for_it() {
    for sendfile in [Sendfile::Off, Sendfile::On] {
        let server = TestServer::with(|plan| (plan.uploads, plan.sendfile) = (true, sendfile));
        let body = content(3_000_000);
        let part = |bytes: &[u8]| {
            let fields = format!("Upload-Length: {}\r\nUpload-Concat: partial\r\n", bytes.len());
            let url = create(&server, "", &fields);
            assert_eq!(patch(&server, &url, 0, "", bytes).status, 204);
            url
        };
        let (one, none, two) = (part(&body[..1_000_001]), part(b""), part(&body[1_000_001..]));
        let read = || server.engine.counters.disks[0].best_effort_bytes.value();
        let before = read();
        let parts = format!("Upload-Concat: final;{one} {none} {two}\r\n");
        let answer = created(&server, "?path=/joined.ts", &parts);
        assert_eq!(answer.status, 201, "{}", answer.text());
        assert!(stored(&server, "joined.ts").unwrap() == body);
        assert!(read() - before >= body.len() as u64, "{} by plan", read() - before);
        server.wait_until("the readers have gone", |server| server.engine.broker.streams() == 0);
    }
    let full = TestServer::with(|plan| {
        plan.uploads = true;
        plan.engine.best_effort.streams_max = tactus_notation::Auto::Set(0);
    });
    let url = create(&full, "", "Upload-Length: 5\r\nUpload-Concat: partial\r\n");
    assert_eq!(patch(&full, &url, 0, "", b"hello").status, 204);
    let answer = created(&full, "?path=/x.ts", &format!("Upload-Concat: final;{url}\r\n"));
    assert!(answer.status == 503 && answer.field("retry-after").is_some(), "{}", answer.text());
    assert_eq!(stored(&full, "x.ts"), None);
    assert_eq!(full.store().usage().uploads, 1, "only the part is left");
}

#[test]
fn u15_parts_of_nothing() {
    let server = TestServer::taking_uploads();
    let concat = |parts: &str| {
        created(&server, "?path=/x.ts", &format!("Upload-Concat: final;{parts}\r\n")).status
    };
    assert_eq!(concat(&"x ".repeat(10_000)), 400);
    assert_eq!(
        concat(&format!("{UPLOADS}/0123456789abcdef0123456789abcdef ").repeat(10_000)),
        431,
        "the fields' own bound"
    );
    let url = create(&server, "", "Upload-Concat: partial\r\nUpload-Length: 5\r\n");
    assert_eq!(concat(&url), 400, "it is not whole");
    assert_eq!(patch(&server, &url, 0, "", b"hello").status, 204);
    assert_eq!(concat(&format!("{UPLOADS}/0123456789abcdef0123456789abcdef")), 404);
    let whole = create(&server, "?path=/w.ts", &format!("Upload-Concat: final;{url}\r\n"));
    assert_eq!(concat(&whole), 400, "a whole is no part");
    let alone = create(&server, "?path=/l.ts", "Upload-Length: 5\r\n");
    assert_eq!(concat(&alone), 400, "nor is one that was none");
    let length = format!("Upload-Concat: final;{url}\r\nUpload-Length: 5\r\n");
    assert_eq!(created(&server, "?path=/x.ts", &length).status, 400);
}

#[test]
fn u16_aborts_everywhere() {
    let server = TestServer::taking_uploads();
    let whole = request("PUT", "/x.ts", &auth(), &content(200));
    for end in 0..whole.len() {
        let mut client = server.client();
        client.send(&whole[..end]);
    }
    is_clean(&server);
    assert_eq!(stored(&server, "x.ts"), None);
    let left: Vec<_> = fs::read_dir(server.root().join(".tactus")).unwrap().collect();
    for entry in left {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() && entry.file_name() != "sums" {
            let count = fs::read_dir(entry.path()).unwrap().count();
            assert_eq!(count, 0, "{:?} holds {count} files", entry.path());
        }
    }
    assert_eq!(put(&server, "/x.ts", "", &content(200)).status, 201);
}

#[test]
fn u17_fifty_for_the_room_of_one() {
    let server = TestServer::with(|plan| {
        plan.uploads = true;
        plan.upload.principals[0].quota = Some(Bytes(150_000));
    });
    let body = content(100_000);
    let statuses: Vec<_> = std::thread::scope(|scope| {
        let one = |n: u32| {
            let (server, body) = (&server, &body);
            scope.spawn(move || put(server, &format!("/{n}.ts"), "", body).status)
        };
        let all: Vec<_> = (0..50).map(one).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let count = |status| statuses.iter().filter(|&&s| s == status).count();
    assert_eq!((count(201), count(413)), (1, 49), "{statuses:?}");
    assert_eq!(server.store().usage().stored, 100_000 + server.stored_before());
}

#[test]
fn u18_hostile_media() {
    let server = TestServer::taking_uploads();
    let atom = |len: u32, name: &[u8; 4]| [&len.to_be_bytes()[..], name].concat();
    let deep = atom(u32::MAX, b"moov").into_iter().cycle().take(80_000).collect::<Vec<_>>();
    let mut many = [atom(32, b"ftyp"), vec![0; 24], atom(64, b"moov"), atom(56, b"stts")].concat();
    many.extend([0, 0, 0, 0, 255, 255, 255, 255]);
    let mut packet = vec![0x47, 0x40, 0, 0x10, 0, 0, 0xb0, 0xff];
    packet.resize(188, 0xff);
    for (name, body) in [
        ("sizes.mp4", [atom(0, b"ftyp"), atom(1, b"moov"), vec![255; 8]].concat()),
        ("deep.mp4", deep),
        ("many.mp4", many),
        ("loop.ts", packet.repeat(1000)),
        ("empty.mp4", Vec::new()),
    ] {
        assert!(matches!(put(&server, &format!("/{name}"), "", &body).status, 201 | 204), "{name}");
        // Its rate is looked for, and not found; it is served as bytes.
        let answer = server.client().get(&format!("/{name}"), "");
        assert!(answer.status == 200 && answer.body == body, "{name}");
    }
    server.serves_others();
}

#[test]
fn u19_an_archive() {
    let server = TestServer::taking_uploads();
    let bomb = [&b"PK\x03\x04"[..], &content(500)].concat();
    assert_eq!(put(&server, "/x.zip", "", &bomb).status, 201);
    assert_eq!(stored(&server, "x.zip").unwrap(), bomb);
    let names = fs::read_dir(server.root()).unwrap().count();
    assert_eq!(put(&server, "/x.zip", "", &bomb).status, 204);
    assert_eq!(fs::read_dir(server.root()).unwrap().count(), names, "nothing else appears");
}

#[test]
fn h16_a_slow_upload_is_ended_and_tus_keeps_what_came() {
    let server = TestServer::with(|plan| {
        plan.uploads = true;
        plan.limits.body_time = Duration::from_millis(600);
        plan.limits.body_bytes_min = 1000;
    });
    let mut client = server.client();
    client.send(&request("PUT", "/x.ts", &auth(), &[b'x'; 5000])[..400]);
    let answer = client.answer().unwrap();
    assert!(answer.status == 408 && answer.closes());
    assert_eq!(server.count(Abuse::SlowBody), 1);
    let url = create(&server, "?path=/y.ts", "Upload-Length: 5000\r\n");
    let mut client = server.client();
    let whole =
        request("PATCH", &url, &tus(&format!("{OCTETS}Upload-Offset: 0\r\n")), &[b'x'; 5000]);
    client.send(&whole[..whole.len() - 4500]);
    assert_eq!(client.answer().unwrap().status, 408);
    assert_eq!(offset(&server, &url), 500);
    is_clean_but(&server, 1);
}

fn is_clean_but(server: &TestServer, uploads: u32) {
    server.wait_until("the others are gone", |server| server.store().usage().uploads == uploads);
}

#[test]
fn what_a_browser_would_run_is_sent_to_a_sandbox() {
    let server = TestServer::taking_uploads();
    assert_eq!(put(&server, "/x.html", "", b"<script>alert(1)</script>").status, 201);
    assert_eq!(
        server.client().get("/x.html", "").field("content-security-policy"),
        Some("sandbox")
    );
    assert_eq!(
        server.client().get("/dir/b.mp4?rate=max", "").field("content-security-policy"),
        None
    );
    let page = server.client().get("/", "");
    assert!(
        page.text().contains("<form id=upload method=post data-directory=\"/\""),
        "{}",
        page.text()
    );
    let script = server.client().get("/api/v1/upload.js", "");
    assert_eq!(script.field("content-type"), Some("text/javascript; charset=utf-8"));
}

/// A title stored under one of the server's own paths could never be read.
#[test]
fn s09_nothing_is_stored_under_the_server_s_own_paths() {
    let server = TestServer::taking_uploads();
    for path in [
        "/api/v1/a.ts",
        "/api/v1/uploads/x/a.ts",
        "/api/v1",
        "/metrics",
        "/api",
        "/healthz",
        "/readyz",
    ] {
        let named = format!("Upload-Length: 5\r\nUpload-Metadata: path {}\r\n", base64(path));
        assert_eq!(created(&server, "", &named).status, 403, "{path}");
        let asked = created(&server, &format!("?path={path}"), "Upload-Length: 5\r\n");
        assert_eq!(asked.status, 403, "{path}");
        let to = format!("{}Destination: {path}\r\n", auth());
        for method in ["MOVE", "COPY"] {
            let answer = sent(&mut server.client(), method, "/a.ts", &to, b"");
            assert_eq!(answer.status, 403, "{method} {path}");
        }
    }
    for path in ["/api/v1/a.ts", "/api/v1/classesx", "/metrics", "/api", "/healthz"] {
        assert_eq!(put(&server, path, "", b"hello").status, 403, "{path}");
        let answer = sent(&mut server.client(), "MKCOL", path, &auth(), b"");
        assert_eq!(answer.status, 403, "{path}");
    }
    assert!(!server.root().join("api").exists() && !server.root().join("metrics").exists());
    for path in ["/api/a.ts", "/api/v12/a.ts", "/metrics.ts", "/films/api/v1/a.ts"] {
        assert_eq!(put(&server, path, "", b"hello").status, 201, "{path}");
        let answer = server.client().get(&format!("{path}?rate=max"), "");
        assert_eq!((answer.status, &answer.body[..]), (200, &b"hello"[..]), "{path}");
    }
}

#[test]
fn s09_a_redirect_repeats_no_markup() {
    let server = TestServer::new();
    let answer = server.client().get("/dir?a=<b>\"'&c=%3C", "");
    let to = answer.field("location").unwrap();
    assert_eq!((answer.status, to), (301, "/dir/?a=%3Cb%3E%22%27&c=%3C"));
    assert!(!answer.text().contains(['<', '>', '"', '\'']), "{}", answer.text());
}
