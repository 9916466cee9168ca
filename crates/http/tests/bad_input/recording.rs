//! Recordings by HTTP: chunked bodies with a rate.

use std::time::Duration;

use tactus_control::settings::UnfinishedTitles;
use tactus_core::units::MIB;

use crate::client::Client;
use crate::test_server::{TOKEN, TestServer, content};

const LEN: usize = 3 * MIB as usize + 77;

fn server() -> TestServer {
    TestServer::with(|plan| {
        plan.uploads = true;
        plan.unfinished = UnfinishedTitles::Visible;
    })
}

fn begin(server: &TestServer, target: &str, framing: &str) -> Client {
    let mut client = server.client();
    client.send(format!(
        "PUT {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n{framing}\r\n"
    ));
    client
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn title(server: &TestServer, path: &str) -> Option<Vec<u8>> {
    let answer = server.client().get(&format!("{path}?rate=max"), "");
    (answer.status == 200).then_some(answer.body)
}

#[test]
fn a_recording_is_durable_when_it_is_answered_and_leaves_no_promise() {
    let (server, all) = (server(), content(LEN));
    let before = server.engine.broker.levels();
    let mut source = begin(&server, "/live.ts?rate=40M", CHUNKED);
    for piece in all.chunks(50_000) {
        source.send(chunk(piece));
    }
    source.send("0\r\n\r\n");
    let answer = source.answer_to("PUT").unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(title(&server, "/live.ts").as_ref(), Some(&all));
    let found = server.client().get("/live.ts?rate=max", "");
    assert_eq!(found.field("etag"), answer.field("etag"));
    server.wait_until("the promise is back", |server| server.engine.broker.levels() == before);
    // Again, in place of the first.
    let mut source = begin(&server, "/live.ts?rate=40M", CHUNKED);
    source.send(chunk(b"other"));
    source.send("0\r\n\r\n");
    assert_eq!(source.answer_to("PUT").unwrap().status, 204);
    assert_eq!(title(&server, "/live.ts").unwrap(), b"other");
}

#[test]
fn a_recording_whose_source_is_cut_off_is_a_title_as_far_as_it_came() {
    let (server, all) = (server(), content(LEN));
    let mut source = begin(&server, "/cut.ts?rate=100M", CHUNKED);
    source.send(chunk(&all));
    // In the middle of a chunk.
    source.send("ffff\r\nabc");
    drop(source);
    server.wait_until("it has its name", |server| server.root().join("cut.ts").exists());
    let title = title(&server, "/cut.ts").unwrap();
    assert!(title == [&all[..], b"abc"].concat(), "{} bytes", title.len());
    let usage = server.store().usage();
    server.wait_until("nothing is open", |server| server.store().usage().uploads == 0);
    assert!(usage.uploads <= 1);
}

#[test]
fn a_recording_that_does_not_fit_is_503_with_what_is_short_and_the_others_go_on() {
    let (server, all) = (server(), content(100_000));
    let mut running = begin(&server, "/one.ts?rate=10M", CHUNKED);
    running.send(chunk(&all));
    server.wait_until("it is running", |server| server.store().usage().uploads == 1);
    let before = server.engine.broker.levels();
    let mut refused = begin(&server, "/two.ts?rate=900G", CHUNKED);
    let answer = refused.answer_to("PUT").unwrap();
    assert_eq!(answer.status, 503);
    assert!(answer.field("retry-after").is_some());
    let text = answer.text();
    assert!(text.contains("\"resource\"") && text.contains("a recording of"), "{text}");
    assert_eq!(server.engine.broker.levels(), before);
    assert_eq!(server.store().usage().uploads, 1);
    running.send(chunk(&all));
    running.send("0\r\n\r\n");
    assert_eq!(running.answer_to("PUT").unwrap().status, 201);
    assert_eq!(title(&server, "/one.ts").unwrap(), [&all[..], &all].concat());
}

#[test]
fn a_recording_can_be_watched_while_it_comes_in() {
    let (server, all) = (server(), content(LEN));
    let mut source = begin(&server, "/live.ts?rate=40M", CHUNKED);
    source.send(chunk(&all[..LEN / 2]));
    // The end of it fills no place: it is there after some seconds all the same.
    let range = format!("Range: bytes={}-\r\n", LEN / 2 - 10);
    server.wait_until("all of it can be read", |server| {
        std::thread::sleep(Duration::from_millis(50));
        let part = server.client().get("/live.ts?rate=max", &range);
        part.status == 206 && part.body == all[LEN / 2 - 10..LEN / 2]
    });
    // Its rate is known from its request.
    let head = server.client().ask("HEAD", "/live.ts", "");
    assert_eq!(head.field("tactus-rate"), Some("40000000"), "{:?}", head.fields);
    let mut watching = server.client();
    watching.send("GET /live.ts?rate=100M HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(watching.head().unwrap().status, 200);
    source.send(chunk(&all[LEN / 2..]));
    source.send("0\r\n\r\n");
    assert_eq!(source.answer_to("PUT").unwrap().status, 201);
    assert!(title(&server, "/live.ts").unwrap() == all);
    assert!(watching.rest() == all, "it was watched to its end");
}

#[test]
fn a_recording_has_a_rate_that_is_one_and_no_length() {
    let server = server();
    let status = |target: &str, framing: &str, body: &str| {
        let mut client = begin(&server, target, framing);
        client.send(body);
        client.answer_to("PUT").unwrap().status
    };
    assert_eq!(status("/a1.ts?rate=5M", "Content-Length: 3\r\n", "abc"), 400);
    assert_eq!(status("/a2.ts?rate=fast", CHUNKED, "0\r\n\r\n"), 400);
    assert_eq!(status("/a3.ts?rate=1", CHUNKED, "0\r\n\r\n"), 400);
    assert_eq!(status("/a4.ts?rate=5M&rate=6M", CHUNKED, "0\r\n\r\n"), 400);
    assert_eq!(status("/a5.ts?rate=5M", CHUNKED, "0\r\n\r\n"), 400, "nothing came");
    // No rate is an upload, in the time that is left.
    assert_eq!(status("/a6.ts?rate=max", "Content-Length: 3\r\n", "abc"), 201);
    assert!((1..6).all(|n| !server.root().join(format!("a{n}.ts")).exists()));
}
